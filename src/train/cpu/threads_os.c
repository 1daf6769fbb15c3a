/* SPDX-License-Identifier: Apache-2.0 */
/* threads_os.c - the worker pool.
 *
 * One word, the ticket, is both the number of the job and the next chunk to take: (job << 32) | chunk.
 * A chunk is taken by compare-and-swap on the whole word, so a worker that slept through a job can
 * never take a chunk of one job with the function of another.
 *
 *   pool_run:  close the ticket of the new job -> write fn, ctx, chunks -> open it -> take chunks too
 *              -> wait until as many chunks are done as there were
 *   worker:    read ticket -> read fn, ctx, chunks -> take a chunk -> run it -> count it done
 *
 * Closing first matters: between the writing of the fields and the opening, a late worker of the old
 * job would see the new chunk count with the old ticket and could take a chunk that does not exist.
 *
 * A worker without work spins for some microseconds (the pauses inside a training step are short),
 * then sleeps on a condition; an idle trainer uses no processor time.
 * Invariants
 *   (P1) a chunk runs exactly once.
 *   (P2) pool_run returns after the last chunk has ended. */
#include "train/cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { SPINS = 3000 };
#define CHUNK_CLOSED 0xffffffffu

struct worker {
    pthread_t thread;
    struct pool *pool;
    uint32_t index;
};

struct pool {
    uint32_t threads, started;
    _Atomic uint64_t ticket;
    _Atomic uint32_t chunks, done, sleepers;
    _Atomic bool waiting, stop;
    pool_fn *_Atomic fn;
    void *_Atomic ctx;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    struct worker workers[THREADS_MAX];
};

static void spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Takes and runs chunks of the open job until none is left. */
static void work_off(struct pool *p, uint32_t worker) {
    for (;;) {
        uint64_t t = atomic_load(&p->ticket);
        pool_fn *fn = atomic_load(&p->fn);
        void *ctx = atomic_load(&p->ctx);
        uint32_t chunks = atomic_load(&p->chunks), chunk = (uint32_t)t;
        if (chunk == CHUNK_CLOSED || chunk >= chunks) return;
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t + 1)) continue;
        fn(ctx, chunk, worker);
        uint32_t done = atomic_fetch_add(&p->done, 1) + 1;
        CHECK(done <= chunks); /* P1 */
        if (done == chunks && atomic_load(&p->waiting)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static bool has_work(struct pool *p) {
    uint32_t chunk = (uint32_t)atomic_load(&p->ticket);
    return chunk != CHUNK_CLOSED && chunk < atomic_load(&p->chunks);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        for (int i = 0; i < SPINS && !has_work(p) && !atomic_load(&p->stop); i++) spin_pause();
        if (!has_work(p)) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->sleepers, 1);
            while (!has_work(p) && !atomic_load(&p->stop)) pthread_cond_wait(&p->work, &p->lock);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        work_off(p, w->index);
    }
    return NULL;
}

static uint32_t processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (uint32_t)n;
}

enum brg_status pool_create(uint32_t threads, struct pool **out, struct err *e) {
    if (threads > THREADS_MAX)
        return err_set(e, BRG_E_LIMIT, "%u threads asked for: use at most %d", threads,
                       THREADS_MAX);
    struct pool *p = mem_alloc(1, sizeof *p);
    p->threads = threads ? threads : processors();
    atomic_store(&p->ticket, (uint64_t)CHUNK_CLOSED);
    CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    CHECK(pthread_cond_init(&p->work, NULL) == 0);
    CHECK(pthread_cond_init(&p->finished, NULL) == 0);
    for (uint32_t i = 1; i < p->threads; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0) {
            uint32_t asked = p->threads;
            pool_destroy(p);
            return err_set(e, BRG_E_MEMORY,
                           "thread %u of %u could not be started: use fewer threads", i + 1, asked);
        }
        p->started = i;
    }
    *out = p;
    return BRG_OK;
}

void pool_destroy(struct pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 1; i <= p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

uint32_t pool_threads(const struct pool *p) {
    return p->threads;
}

void pool_run(struct pool *p, uint32_t chunks, pool_fn *fn, void *ctx) {
    if (chunks == 0) return;
    CHECK(chunks < CHUNK_CLOSED);
    if (p->threads == 1 || chunks == 1) {
        for (uint32_t i = 0; i < chunks; i++) fn(ctx, i, 0);
        return;
    }
    uint64_t job = (atomic_load(&p->ticket) >> 32) + 1;
    atomic_store(&p->ticket, job << 32 | CHUNK_CLOSED);
    atomic_store(&p->fn, fn);
    atomic_store(&p->ctx, ctx);
    atomic_store(&p->chunks, chunks);
    atomic_store(&p->done, 0);
    atomic_store(&p->ticket, job << 32);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work_off(p, 0);
    for (int i = 0; i < SPINS && atomic_load(&p->done) < chunks; i++) spin_pause();
    if (atomic_load(&p->done) < chunks) {
        pthread_mutex_lock(&p->lock);
        atomic_store(&p->waiting, true);
        while (atomic_load(&p->done) < chunks) pthread_cond_wait(&p->finished, &p->lock);
        atomic_store(&p->waiting, false);
        pthread_mutex_unlock(&p->lock);
    }
    CHECK(atomic_load(&p->done) == chunks); /* P2 */
}
