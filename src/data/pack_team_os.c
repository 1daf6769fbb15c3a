/* SPDX-License-Identifier: Apache-2.0 */
/* pack_team_os.c - a ring of jobs: put at the head, worked on from the middle, taken at the tail.
 *
 *   tail                next                head          all three only grow; job i is in slot
 *    | done or at work   | put, not begun    | free       i modulo the ring's size
 *
 * Invariants
 *   (D7) tail <= next <= head <= tail + slots. */
#include "data/pack_team.h"

#include <errno.h>
#include <pthread.h>

#include "base/os.h"
#include "data/pack.h"

static const size_t JOB_IDS_BYTES_MAX = (size_t)1 << 34;
enum { JOBS_A_THREAD = 4, STACK_BYTES = 1 << 20 };

struct team {
    struct team_options o;
    struct job *jobs;
    uint64_t slots, tail, next, head;
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t put, done; /* a job is there to be begun; one is done */
    pthread_t *threads;
    unsigned threads_count; /* that run */
    struct encoder *own;    /* for work in the calling thread */
};

static struct job *slot(const struct team *t, uint64_t i) {
    return &t->jobs[i % t->slots];
}

static void put_all(struct buf *b, const uint32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) buf_u32(b, ids[i]);
}

static enum brg_status encode_document(const struct team *t, struct encoder *n, const char *text,
                                       size_t bytes, struct job *j, struct team_document *d) {
    const struct tokenizer *z = t->o.tokenizer;
    const uint32_t *before, *behind;
    uint32_t before_count, behind_count;
    size_t start = j->ids.bytes_count;
    d->half = pack_is_heldout(text, bytes, t->o.heldout_share) ? HALF_HELDOUT : HALF_TRAIN;
    tokenizer_around(z, &before, &before_count, &behind, &behind_count);
    if (t->o.around) put_all(&j->ids, before, before_count);
    TRY(encoder_run(n, text, bytes, t->o.special, &j->ids, &j->e));
    if (t->o.around) put_all(&j->ids, behind, behind_count);
    buf_u32(&j->ids, tokenizer_eot(z));
    d->ids_count = (j->ids.bytes_count - start) / 4;
    return BRG_OK;
}

static void work(const struct team *t, struct encoder *n, struct job *j) {
    void *json = NULL;
    buf_reset(&j->ids);
    for (uint32_t i = 0; i < j->count; i++) {
        struct team_document *d = &j->documents[i];
        const char *text = NULL;
        size_t bytes = 0;
        d->ids_count = 0;
        j->status = docs_decode(&j->docs, &d->span, &json, &text, &bytes, &j->e);
        if (j->status == BRG_OK && bytes > 0) j->status = encode_document(t, n, text, bytes, j, d);
        if (j->status != BRG_OK) j->count = i;
    }
    docs_release(&json);
}

static void *worker(void *user) {
    struct team *t = user;
    struct encoder *n = encoder_create(t->o.tokenizer, SIZE_MAX);
    CHECK(pthread_mutex_lock(&t->lock) == 0);
    for (;;) {
        while (!t->stop && t->next == t->head) CHECK(pthread_cond_wait(&t->put, &t->lock) == 0);
        if (t->stop) break;
        struct job *j = slot(t, t->next++);
        CHECK(pthread_mutex_unlock(&t->lock) == 0);
        work(t, n, j);
        CHECK(pthread_mutex_lock(&t->lock) == 0);
        j->done = true;
        CHECK(pthread_cond_signal(&t->done) == 0);
    }
    CHECK(pthread_mutex_unlock(&t->lock) == 0);
    encoder_destroy(n);
    return NULL;
}

static enum brg_status start_threads(struct team *t, struct err *e) {
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0);
    CHECK(pthread_attr_setstacksize(&attr, STACK_BYTES) == 0);
    int failed = 0;
    while (t->threads_count < t->o.threads && failed == 0) {
        failed = pthread_create(&t->threads[t->threads_count], &attr, worker, t);
        if (failed == 0) t->threads_count++;
    }
    CHECK(pthread_attr_destroy(&attr) == 0);
    if (failed != 0 && t->threads_count == 0)
        return os_errno(e, failed, "start a thread for", "packing (--threads)");
    return BRG_OK;
}

enum brg_status team_create(const struct team_options *o, struct team **out, struct err *e) {
    CHECK(o->threads > 0);
    struct team *t = mem_alloc(1, sizeof *t);
    t->o = *o;
    t->slots = (uint64_t)o->threads * JOBS_A_THREAD;
    t->jobs = mem_alloc(t->slots, sizeof *t->jobs);
    t->threads = mem_alloc(o->threads, sizeof *t->threads);
    for (uint64_t i = 0; i < t->slots; i++) buf_init(&t->jobs[i].ids, JOB_IDS_BYTES_MAX);
    CHECK(pthread_mutex_init(&t->lock, NULL) == 0);
    CHECK(pthread_cond_init(&t->put, NULL) == 0);
    CHECK(pthread_cond_init(&t->done, NULL) == 0);
    enum brg_status s = BRG_OK;
    if (o->threads == 1)
        t->own = encoder_create(o->tokenizer, SIZE_MAX);
    else
        s = start_threads(t, e);
    if (s == BRG_OK)
        *out = t;
    else
        team_destroy(t);
    return s;
}

void team_destroy(struct team *t) {
    if (t == NULL) return;
    CHECK(pthread_mutex_lock(&t->lock) == 0);
    t->stop = true;
    CHECK(pthread_cond_broadcast(&t->put) == 0);
    CHECK(pthread_mutex_unlock(&t->lock) == 0);
    for (unsigned i = 0; i < t->threads_count; i++) CHECK(pthread_join(t->threads[i], NULL) == 0);
    for (uint64_t i = 0; i < t->slots; i++) buf_fini(&t->jobs[i].ids);
    CHECK(pthread_mutex_destroy(&t->lock) == 0);
    CHECK(pthread_cond_destroy(&t->put) == 0);
    CHECK(pthread_cond_destroy(&t->done) == 0);
    encoder_destroy(t->own);
    mem_free(t->jobs);
    mem_free(t->threads);
    mem_free(t);
}

struct job *team_free(struct team *t) {
    if (t->head - t->tail == t->slots) return NULL;
    struct job *j = slot(t, t->head);
    j->count = 0;
    j->bytes = 0;
    j->status = BRG_OK;
    j->done = false;
    return j;
}

void team_put(struct team *t) {
    if (t->own != NULL) {
        work(t, t->own, slot(t, t->head));
        slot(t, t->head)->done = true;
        t->head++;
        t->next++;
        return;
    }
    CHECK(pthread_mutex_lock(&t->lock) == 0);
    t->head++;
    CHECK(t->tail <= t->next);            /* D7 */
    CHECK(t->next < t->head);             /* D7 */
    CHECK(t->head <= t->tail + t->slots); /* D7 */
    CHECK(pthread_cond_signal(&t->put) == 0);
    CHECK(pthread_mutex_unlock(&t->lock) == 0);
}

struct job *team_take(struct team *t) {
    if (t->tail == t->head) return NULL;
    struct job *j = slot(t, t->tail);
    if (t->own != NULL) return j;
    CHECK(pthread_mutex_lock(&t->lock) == 0);
    while (!j->done) CHECK(pthread_cond_wait(&t->done, &t->lock) == 0);
    CHECK(pthread_mutex_unlock(&t->lock) == 0);
    return j;
}

void team_drop(struct team *t) {
    CHECK(t->tail < t->head);
    CHECK(pthread_mutex_lock(&t->lock) == 0);
    t->tail++;
    CHECK(pthread_mutex_unlock(&t->lock) == 0);
}
