/* SPDX-License-Identifier: Apache-2.0 */
/* duty_os.c - what the training thread does to the weights: load, reset, rebase, cut.
 *
 * All four stream through the vectors in chunks of OUTER_CHUNK, so memory does not grow with the
 * number of contributions, and share the vectors among threads: the trainer waits for this. Each element is
 * computed from its own neighbours alone, so the number of threads cannot show. They run with the lock held: no answer of the hub can change what the core
 * knows while the weights change with it, and the network goes on in the meantime, because sending and
 * receiving need no lock. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/guard.h"
#include "site/site_os.h"

/* A file that is read in chunks: a version of the run, or a contribution. */
struct source {
    int fd;
    char path[OS_PATH_MAX];
    uint64_t offset;
    enum codec codec; /* 0: plain floats */
};

static void source_close(struct source *f) {
    if (f->fd > 0) close(f->fd);
    f->fd = 0;
}

static enum brg_status source_version(const struct brg_site *s, uint64_t version, struct source *f,
                                      struct err *e) {
    struct local_base b;
    TRY(local_base_open(s, version, &b, e));
    memcpy(f->path, b.path, sizeof f->path);
    f->offset = b.offset;
    f->fd = b.fd;
    return BRG_OK;
}

static enum brg_status source_delta(const struct brg_site *s, const struct site_delta *d,
                                    struct source *f, struct err *e) {
    local_delta_path(s, &d->c.did, f->path);
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return os_errno(e, errno, "opening", f->path);
    f->codec = (enum codec)d->c.codec;
    f->offset = DELTA_HEADER_BYTES;
    uint64_t want = DELTA_HEADER_BYTES + codec_bytes(f->codec, s->elements);
    off_t have = lseek(f->fd, 0, SEEK_END);
    if (have < 0 || (uint64_t)have != want)
        return err_set(e, BRG_E_CORRUPT, "%s: not of its size", f->path);
    return BRG_OK;
}

/* The next n elements into out. bytes[codec_bytes(n)] is scratch. */
static enum brg_status source_read(struct source *f, float *out, size_t n, uint8_t *bytes,
                                   struct err *e) {
    if (f->codec == 0) {
        TRY(os_pread_all(f->fd, out, n * 4, f->offset, f->path, e));
        f->offset += n * 4;
        return BRG_OK;
    }
    size_t coded = (size_t)codec_bytes(f->codec, n);
    TRY(os_pread_all(f->fd, bytes, coded, f->offset, f->path, e));
    f->offset += coded;
    if (codec_decode(f->codec, bytes, n, out) != BRG_OK)
        return err_set(e, BRG_E_CORRUPT, "%s: cannot be decoded", f->path);
    return BRG_OK;
}

/* ---- A vector among threads ---------------------------------------------------------------------- */

enum { THREADS_MAX = 8, SHARE_MIN = 16 * OUTER_CHUNK };

struct share { /* a thread's part of the vector */
    struct brg_site *s;
    uint64_t from, to;
    enum site_duty duty;
    uint8_t *out; /* a cut: where its payload begins */
    enum brg_status status;
    struct err err;
    pthread_t thread;
};

typedef enum brg_status share_run(struct share *x, struct err *e);
struct share_start {
    struct share *x;
    share_run *run;
};

/* With a guard of its own, in the training thread as well: a fault must not jump over the joins below. */
static void *share_main(void *user) {
    struct share_start *a = user;
    struct guard g;
    if (setjmp(g.at) != 0) {
        a->x->status = err_set(&a->x->err, g.status, "%s", g.text);
        return NULL;
    }
    guard_enter(&g);
    a->x->status = a->run(a->x, &a->x->err);
    guard_leave(&g);
    return NULL;
}

static uint64_t shares_count(uint64_t elements) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t n = elements / SHARE_MIN, most = cpus < 1 ? 1 : (uint64_t)cpus;
    if (n > most) n = most;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

/* Cuts the vector at chunks; this thread takes the first share, and those that no thread can be had for. */
static enum brg_status share_all(struct brg_site *s, enum site_duty duty, share_run *run,
                                 uint8_t *out, struct err *e) {
    struct share x[THREADS_MAX] = {{0}};
    struct share_start start[THREADS_MAX];
    bool started[THREADS_MAX] = {0};
    uint64_t count = shares_count(s->elements);
    uint64_t chunks = (s->elements + OUTER_CHUNK - 1) / OUTER_CHUNK;
    sigset_t all, before; /* signals are the program's business, not this library's */
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    for (uint64_t i = count; i-- > 0;) {
        x[i] = (struct share){.s = s, .duty = duty, .from = chunks * i / count * OUTER_CHUNK};
        x[i].to = i + 1 == count ? s->elements : x[i + 1].from;
        if (out) x[i].out = out + codec_bytes(s->core.set.codec, x[i].from);
        start[i] = (struct share_start){&x[i], run};
        started[i] = i > 0 && pthread_create(&x[i].thread, NULL, share_main, &start[i]) == 0;
        if (i == 0) CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
        if (!started[i]) (void)share_main(&start[i]);
    }
    enum brg_status status = BRG_OK;
    for (uint64_t i = 0; i < count; i++) {
        if (started[i]) CHECK(pthread_join(x[i].thread, NULL) == 0);
        if (status != BRG_OK || x[i].status == BRG_OK) continue;
        status = x[i].status;
        *e = x[i].err;
    }
    return status;
}

/* ---- Streams over versions and contributions ------------------------------------------------------ */

struct stream {
    struct source version[2], delta[SITE_PENDING_MAX];
    int versions_count, deltas_count;
    float *chunk[2], *sum, *one;
    uint8_t *bytes;
};

static void stream_fini(struct stream *t) {
    for (int i = 0; i < t->versions_count; i++) source_close(&t->version[i]);
    for (int i = 0; i < t->deltas_count; i++) source_close(&t->delta[i]);
    mem_free(t->chunk[0]);
    mem_free(t->chunk[1]);
    mem_free(t->sum);
    mem_free(t->one);
    mem_free(t->bytes);
    mem_free(t);
}

static struct stream *stream_new(void) {
    struct stream *t = mem_alloc(1, sizeof *t);
    t->chunk[0] = mem_alloc(OUTER_CHUNK, sizeof(float));
    t->chunk[1] = mem_alloc(OUTER_CHUNK, sizeof(float));
    t->sum = mem_alloc(OUTER_CHUNK, sizeof(float));
    t->one = mem_alloc(OUTER_CHUNK, sizeof(float));
    t->bytes = mem_alloc(OUTER_CHUNK * 4 + 4096, 1);
    return t;
}

static enum brg_status stream_next(struct stream *t, size_t n, struct err *e) {
    for (int i = 0; i < t->versions_count; i++)
        TRY(source_read(&t->version[i], t->chunk[i], n, t->bytes, e));
    memset(t->sum, 0, n * sizeof(float));
    for (int i = 0; i < t->deltas_count; i++) {
        TRY(source_read(&t->delta[i], t->one, n, t->bytes, e));
        weights_add(t->sum, t->one, n);
    }
    return BRG_OK;
}

static enum brg_status stream_version(struct brg_site *s, struct stream *t, uint64_t version,
                                      struct err *e) {
    return source_version(s, version, &t->version[t->versions_count++], e);
}

static enum brg_status stream_deltas(struct brg_site *s, struct stream *t, bool merged,
                                     uint64_t version, struct err *e) {
    for (uint32_t i = 0; i < s->core.deltas_count; i++) {
        const struct site_delta *d = &s->core.deltas[i];
        bool take = merged ? site_delta_in(d, version) : d->state != PENDING_FAILED;
        if (take) TRY(source_delta(s, d, &t->delta[t->deltas_count++], e));
    }
    return BRG_OK;
}

/* All sources of a duty, at element `from`. */
static enum brg_status stream_open(struct brg_site *s, struct stream *t, enum site_duty duty,
                                   uint64_t from, struct err *e) {
    TRY(stream_version(s, t, duty == SITE_DUTY_LOAD ? s->core.ready : s->core.base, e));
    if (duty == SITE_DUTY_RESET) TRY(stream_deltas(s, t, false, 0, e));
    if (duty == SITE_DUTY_REBASE) {
        TRY(stream_version(s, t, s->core.ready, e));
        TRY(stream_deltas(s, t, true, s->core.ready, e));
    }
    for (int i = 0; i < t->versions_count; i++) t->version[i].offset += 4 * from;
    for (int i = 0; i < t->deltas_count; i++)
        t->delta[i].offset += codec_bytes(t->delta[i].codec, from);
    return BRG_OK;
}

/* ---- The duties ----------------------------------------------------------------------------------- */

static void apply(struct share *x, struct stream *t, uint64_t at, size_t n) {
    float *theta = x->s->theta + at, *base = x->s->s + at;
    const float *sum = t->deltas_count > 0 ? t->sum : NULL;
    if (x->duty == SITE_DUTY_REBASE)
        weights_rebase(theta, base, t->chunk[0], t->chunk[1], sum, n);
    else
        weights_reset(theta, base, t->chunk[0], sum, n);
}

/* A failure on the way leaves half a shift behind; the caller then loads the head over it. */
static enum brg_status weights_share(struct share *x, struct err *e) {
    struct stream *t = stream_new();
    enum brg_status status = stream_open(x->s, t, x->duty, x->from, e);
    for (uint64_t at = x->from; at < x->to && status == BRG_OK; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        status = stream_next(t, n, e);
        if (status == BRG_OK) apply(x, t, at, n);
    }
    stream_fini(t);
    return status;
}

static enum brg_status nonfinite(const struct share *x, uint64_t at, size_t n, struct err *e) {
    const struct brg_site *s = x->s;
    for (size_t i = 0; i + 1 < n; i++, at++) {
        float d = s->s[at] - s->theta[at];
        if (d - d != 0.0f) break;
    }
    return err_set(e, BRG_E_NONFINITE,
                   "weight %" PRIu64 " is not finite; the segment of %" PRIu64
                   " steps is thrown away and its samples are trained again",
                   at, s->core.seg.steps);
}

/* d = S - theta, coded; S moves. Where a weight is not finite S is half moved, and a reset follows. */
static enum brg_status cut_share(struct share *x, struct err *e) {
    struct brg_site *s = x->s;
    enum codec codec = s->core.set.codec;
    AUTO_FREE float *scratch = mem_alloc(2 * OUTER_CHUNK, sizeof(float));
    /* All samples skipped: nothing moved, and the residual stays here. */
    const float *theta = s->core.seg.steps == 0 ? s->s : s->theta;
    uint8_t *out = x->out;
    for (uint64_t at = x->from; at < x->to; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        enum brg_status status = weights_cut(codec, s->s + at, theta + at, n, out, scratch);
        if (status == BRG_E_NONFINITE) return nonfinite(x, at, n, e);
        TRY(status);
        out += codec_bytes(codec, n);
    }
    return BRG_OK;
}

static enum brg_status duty_cut(struct brg_site *s, struct err *e) {
    enum codec codec = s->core.set.codec;
    uint64_t bytes = DELTA_HEADER_BYTES + codec_bytes(codec, s->elements);
    struct write_job *job = mem_alloc(1, sizeof *job);
    job->bytes = try_mem_alloc(bytes, 1);
    enum brg_status status = BRG_OK;
    if (!job->bytes)
        status =
            err_set(e, BRG_E_MEMORY, "no memory for a contribution of %" PRIu64 " bytes", bytes);
    if (status == BRG_OK)
        status = share_all(s, SITE_DUTY_CUT, cut_share, job->bytes + DELTA_HEADER_BYTES, e);
    if (status != BRG_OK) {
        mem_free(job->bytes);
        mem_free(job);
        return status;
    }
    const struct site_delta *d = site_cut(&s->core, &s->out.notes);
    struct delta_header h = {.codec = codec,
                             .elements = s->elements,
                             .base_version = d->c.base,
                             .tokens = d->c.tokens,
                             .steps = d->c.steps,
                             .did = d->c.did,
                             .base_theta = s->base_theta};
    delta_header_encode(&h, job->bytes);
    job->did = d->c.did;
    job->bytes_count = bytes;
    if (s->jobs_last)
        s->jobs_last->next = job;
    else
        s->jobs_first = job;
    s->jobs_last = job;
    return BRG_OK;
}

/* The base or a contribution can not be read: what is known to be right is the head. */
static void give_up_base(struct brg_site *s, const struct err *why) {
    log_line(LOG_ERROR, "site", "local_files", "text=\"%s\"", why->text);
    if (s->core.loaded) {
        site_forget(&s->core, "local files are missing or damaged", &s->out.notes);
    } else {
        local_base_drop(s, s->core.ready);
        s->core.ready = SITE_VERSION_NONE;
    }
}

static void base_theta_learn(struct brg_site *s) {
    struct err e = {0};
    uint64_t tokens;
    struct hash theta;
    if (local_base_verify(s, s->core.base, false, &tokens, &theta, &e) == BRG_OK)
        s->base_theta = theta;
}

enum brg_status duty_run(struct brg_site *s, enum site_duty duty, int *changed, struct err *e) {
    enum brg_status status;
    if (duty == SITE_DUTY_CUT) {
        status = duty_cut(s, e);
        if (status == BRG_E_NONFINITE) {
            log_line(LOG_ERROR, "site", "nonfinite", "text=\"%s\"", e->text);
            s->core.reset_due = true;
            return ++s->nonfinite >= 3 ? status : BRG_OK;
        }
        TRY(status);
        s->nonfinite = 0;
        *changed |= BRG_CHANGED_HANDED_IN;
        s->changes++;
        return BRG_OK;
    }
    status = share_all(s, duty, weights_share, NULL, e);
    if (status != BRG_OK) {
        give_up_base(s, e);
        return BRG_OK;
    }
    *changed |= BRG_CHANGED_WEIGHTS;
    s->changes++;
    if (duty == SITE_DUTY_RESET) {
        *changed |= BRG_CHANGED_RESET;
        site_reset(&s->core, &s->out.notes);
    } else if (duty == SITE_DUTY_LOAD) {
        site_loaded(&s->core);
    } else {
        site_rebased(&s->core, &s->out.notes);
    }
    base_theta_learn(s);
    return BRG_OK;
}
