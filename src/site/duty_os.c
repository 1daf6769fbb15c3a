/* SPDX-License-Identifier: Apache-2.0 */
/* duty_os.c - what happens to the weights: load, reset, rebase, cut.
 *
 * The trainer waits for as little as can be: a cut copies its weights to the stage, a rebase adds to them what
 * lies ready on the stage. The writer does the rest behind its back: it codes the difference between the
 * version on disk and the copy, and computes what the next rebase will add.
 *
 *   stage: --cut--> theta --coded, checkpoint written--> free --version here--> shift --rebase--> free
 *
 * The subtraction base S of weights.h is nowhere in memory: it is the version rebased on less the own
 * contributions that are not in it, and both are files. (W2)
 *
 * All of it streams through the vectors in chunks of OUTER_CHUNK and is shared among threads; each element
 * is computed from its own neighbours alone, so the number of threads cannot show. What the training
 * thread does runs with the lock held: no answer of the hub can change what the core knows while the weights
 * change with it; the network goes on meanwhile, because sending and receiving need no lock. */
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

static enum brg_status source_residual(const struct brg_site *s, const struct id128 *did,
                                       struct source *f, struct err *e) {
    local_residual_path(s, did, f->path);
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return os_errno(e, errno, "opening", f->path);
    off_t have = lseek(f->fd, 0, SEEK_END);
    if (have < 0 || (uint64_t)have != local_residual_bytes(s))
        return err_set(e, BRG_E_CORRUPT, "%s: not of its size", f->path);
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
    const struct write_job *job;
    uint64_t from, to;
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
static enum brg_status share_all(struct brg_site *s, const struct write_job *job, share_run *run,
                                 struct err *e) {
    struct share x[THREADS_MAX] = {{0}};
    struct share_start start[THREADS_MAX];
    bool started[THREADS_MAX] = {0};
    uint64_t count = shares_count(s->elements);
    uint64_t chunks = (s->elements + OUTER_CHUNK - 1) / OUTER_CHUNK;
    sigset_t all, before; /* signals are the program's business, not this library's */
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    for (uint64_t i = count; i-- > 0;) {
        x[i] = (struct share){.s = s, .job = job, .from = chunks * i / count * OUTER_CHUNK};
        x[i].to = i + 1 == count ? s->elements : x[i + 1].from;
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
    struct source before[SITE_PENDING_MAX], after[SITE_PENDING_MAX]; /* residuals; closed: none */
    struct source held; /* the residual that a new contribution begins with */
    int versions_count, deltas_count;
    float *chunk[2], *residual[2], *sum, *one;
    uint8_t *bytes;
};

static void stream_fini(struct stream *t) {
    for (int i = 0; i < t->versions_count; i++) source_close(&t->version[i]);
    for (int i = 0; i < t->deltas_count; i++) {
        source_close(&t->delta[i]);
        source_close(&t->before[i]);
        source_close(&t->after[i]);
    }
    source_close(&t->held);
    for (int i = 0; i < 2; i++) {
        mem_free(t->chunk[i]);
        mem_free(t->residual[i]);
    }
    mem_free(t->sum);
    mem_free(t->one);
    mem_free(t->bytes);
    mem_free(t);
}

static struct stream *stream_new(void) {
    struct stream *t = mem_alloc(1, sizeof *t);
    for (int i = 0; i < 2; i++) {
        t->chunk[i] = mem_alloc(OUTER_CHUNK, sizeof(float));
        t->residual[i] = mem_alloc(OUTER_CHUNK, sizeof(float));
    }
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
        bool before = t->before[i].fd > 0;
        TRY(source_read(&t->delta[i], t->one, n, t->bytes, e));
        if (t->after[i].fd <= 0) {
            weights_add(t->sum, t->one, n);
            continue;
        }
        if (before) TRY(source_read(&t->before[i], t->residual[0], n, t->bytes, e));
        TRY(source_read(&t->after[i], t->residual[1], n, t->bytes, e));
        weights_add_aside(t->sum, t->one, t->residual[1], before ? t->residual[0] : NULL,
                          CODEC_KEEP, n);
    }
    return BRG_OK;
}

/* The sources of a job, at the share's first element: version from, for a shift version to, contributions. */
static enum brg_status stream_open(const struct share *x, struct stream *t, struct err *e) {
    const struct write_job *job = x->job;
    TRY(source_version(x->s, job->from, &t->version[t->versions_count++], e));
    if (job->kind == WRITE_SHIFT)
        TRY(source_version(x->s, job->to, &t->version[t->versions_count++], e));
    for (uint32_t i = 0; i < job->deltas_count; i++) {
        const struct site_delta *d = &job->deltas[i];
        int at = t->deltas_count++;
        TRY(source_delta(x->s, d, &t->delta[at], e));
        if (!d->residual) continue;
        TRY(source_residual(x->s, &d->c.did, &t->after[at], e));
        if (residual_named(&d->residual_before))
            TRY(source_residual(x->s, &d->residual_before, &t->before[at], e));
    }
    if (job->residual && residual_named(&job->residual_before))
        TRY(source_residual(x->s, &job->residual_before, &t->held, e));
    for (int i = 0; i < t->versions_count; i++) t->version[i].offset += 4 * x->from;
    for (int i = 0; i < t->deltas_count; i++) {
        t->delta[i].offset += codec_bytes(t->delta[i].codec, x->from);
        t->before[i].offset = t->after[i].offset = 4 * x->from;
    }
    t->held.offset = 4 * x->from;
    return BRG_OK;
}

/* ---- The shares of each duty ------------------------------------------------------------------------ */

/* theta = version - own unmerged work. A failure on the way leaves half of it behind; the caller then loads
 * the head over it. */
static enum brg_status reset_share(struct share *x, struct err *e) {
    struct stream *t = stream_new();
    enum brg_status status = stream_open(x, t, e);
    for (uint64_t at = x->from; at < x->to && status == BRG_OK; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        status = stream_next(t, n, e);
        if (status == BRG_OK)
            weights_reset(x->s->theta + at, t->one, t->chunk[0],
                          t->deltas_count > 0 ? t->sum : NULL, n);
    }
    stream_fini(t);
    return status;
}

/* stage = what a rebase adds to theta. */
static enum brg_status shift_share(struct share *x, struct err *e) {
    struct stream *t = stream_new();
    enum brg_status status = stream_open(x, t, e);
    for (uint64_t at = x->from; at < x->to && status == BRG_OK; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        float *stage = x->s->stage + at;
        status = stream_next(t, n, e);
        memset(stage, 0, n * sizeof *stage);
        if (status == BRG_OK)
            weights_rebase(stage, t->one, t->chunk[0], t->chunk[1],
                           t->deltas_count > 0 ? t->sum : NULL, n);
    }
    stream_fini(t);
    return status;
}

static enum brg_status add_share(struct share *x, struct err *e) {
    (void)e;
    for (uint64_t at = x->from; at < x->to; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        weights_add(x->s->theta + at, x->s->stage + at, n);
    }
    return BRG_OK;
}

/* stage = theta, where all of it is of a size that every codec can send. */
static enum brg_status copy_share(struct share *x, struct err *e) {
    enum { TILE = 1024, TOO_LARGE = 0x7149f2ca /* 1e30 */ };
    for (uint64_t at = x->from; at < x->to; at += TILE) {
        size_t n = x->to - at < TILE ? (size_t)(x->to - at) : TILE;
        const float *theta = x->s->theta + at;
        int32_t max = 0;
        for (size_t i = 0; i < n; i++) {
            int32_t bits;
            memcpy(&bits, theta + i, 4);
            bits &= INT32_MAX;
            max = bits > max ? bits : max;
        }
        if (max >= TOO_LARGE)
            return err_set(e, BRG_E_NONFINITE,
                           "a weight between %" PRIu64 " and %" PRIu64
                           " is not finite; the segment of %" PRIu64
                           " steps is thrown away and its samples are trained again",
                           at, at + n - 1, x->s->core.seg.steps);
        memcpy(x->s->stage + at, theta, n * sizeof *theta);
    }
    return BRG_OK;
}

/* The payload of d = version - own unmerged work - stage. */
static enum brg_status encode_share(struct share *x, struct err *e) {
    const struct write_job *job = x->job;
    if (job->codec == CODEC_GRADIENT) { /* it is on the stage as it goes */
        uint8_t *to = job->bytes + DELTA_HEADER_BYTES + codec_bytes(job->codec, x->from);
        enum brg_status s =
            codec_encode(job->codec, x->s->stage + x->from, (size_t)(x->to - x->from), to);
        return s == BRG_OK ? s : err_set(e, s, "a gradient has no finite code");
    }
    struct stream *t = stream_new();
    AUTO_FREE float *scratch = mem_alloc(2 * OUTER_CHUNK, sizeof(float));
    enum brg_status status = stream_open(x, t, e);
    uint8_t *out = job->bytes + DELTA_HEADER_BYTES + codec_bytes(job->codec, x->from);
    for (uint64_t at = x->from; at < x->to && status == BRG_OK; at += OUTER_CHUNK) {
        size_t n = x->to - at < OUTER_CHUNK ? (size_t)(x->to - at) : OUTER_CHUNK;
        status = stream_next(t, n, e);
        if (status != BRG_OK) break;
        float *base = t->one; /* S: what theta was when the segment began, less residuals */
        weights_reset(t->chunk[1], base, t->chunk[0], t->deltas_count > 0 ? t->sum : NULL, n);
        /* All samples skipped: nothing moved, and the residual stays where it is. */
        const float *theta = job->still ? t->chunk[1] : x->s->stage + at;
        if (job->residual) {
            float *residual = job->residual + at; /* zeros, where nothing was held back before */
            if (t->held.fd > 0) status = source_read(&t->held, residual, n, t->bytes, e);
            if (status != BRG_OK) break;
            status =
                weights_cut_aside(job->codec, base, theta, residual, CODEC_KEEP, n, out, scratch);
        } else {
            status = weights_cut(job->codec, base, theta, n, out, scratch);
        }
        if (status != BRG_OK) (void)err_set(e, status, "a weight has no finite code");
        out += codec_bytes(job->codec, n);
    }
    stream_fini(t);
    return status;
}

/* ---- What the writer does in the background --------------------------------------------------------- */

/* What a job needs of the core, taken while the lock is held. */
static struct write_job *job_new(struct brg_site *s, enum write_kind kind, uint64_t to) {
    struct write_job *job = mem_alloc(1, sizeof *job);
    job->kind = kind;
    job->codec = s->core.set.codec;
    job->from = s->core.base;
    job->to = to;
    for (uint32_t i = 0; i < s->core.deltas_count; i++) {
        const struct site_delta *d = &s->core.deltas[i];
        bool take = site_delta_local(d) && (kind != WRITE_SHIFT || site_delta_in(d, to));
        if (take) job->deltas[job->deltas_count++] = *d;
    }
    return job;
}

void duty_queue(struct brg_site *s, struct write_job *job) {
    if (s->jobs_last)
        s->jobs_last->next = job;
    else
        s->jobs_first = job;
    s->jobs_last = job;
    CHECK(pthread_cond_broadcast(&s->changed) == 0);
}

enum brg_status duty_encode(struct brg_site *s, struct write_job *job, struct err *e) {
    return share_all(s, job, encode_share, e);
}

enum brg_status duty_shift(struct brg_site *s, struct write_job *job, struct err *e) {
    return share_all(s, job, shift_share, e);
}

/* Is the shift that was prepared the one that a rebase to the newest version needs now? */
static bool shift_fits(const struct brg_site *s) {
    const struct write_job *job = &s->shift;
    if (!s->shift_ready || job->from != s->core.base || job->to != s->core.ready) return false;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->core.deltas_count; i++) {
        const struct site_delta *d = &s->core.deltas[i];
        if (!site_delta_in(d, job->to) || !site_delta_local(d)) continue;
        bool there = false;
        for (uint32_t k = 0; k < job->deltas_count; k++)
            there |= id_equal(&job->deltas[k].c.did, &d->c.did);
        if (!there) return false;
        count++;
    }
    return count == job->deltas_count;
}

enum site_duty duty_next(struct brg_site *s) {
    enum site_duty duty = site_duty(&s->core);
    if (duty == SITE_DUTY_CUT && s->stage_users > 0) return SITE_DUTY_NONE;
    if (duty != SITE_DUTY_REBASE || s->core.synchronous || shift_fits(s)) return duty;
    if (s->stage_users > 0) return SITE_DUTY_NONE;
    s->stage_users++;
    s->stage_is_theta = s->shift_ready = false;
    duty_queue(s, job_new(s, WRITE_SHIFT, s->core.ready));
    return SITE_DUTY_NONE;
}

bool duty_stage(struct brg_site *s) {
    struct err e = {0};
    if (!s->stage_is_theta) {
        if (s->stage_users > 0) return false;
        struct write_job job = {.kind = WRITE_CHECKPOINT};
        s->shift_ready = false;
        if (share_all(s, &job, copy_share, &e) != BRG_OK) return false; /* the next cut tells */
        s->stage_is_theta = true;
    }
    s->stage_users++;
    return true;
}

/* ---- The duties ----------------------------------------------------------------------------------- */

/* What is handed in: a copy of the weights, or the segment's gradient; zeros where all of it was skipped. */
static enum brg_status stage_fill(struct brg_site *s, struct write_job *job, struct err *e) {
    if (job->codec != CODEC_GRADIENT) return share_all(s, job, copy_share, e);
    CHECK((s->gradient_samples > 0) == !job->still);
    if (job->still)
        memset(s->stage, 0, s->elements * sizeof(float));
    else
        memcpy(s->stage, s->gradient, s->elements * sizeof(float));
    return BRG_OK;
}

/* The weights of this moment become a contribution; the trainer waits for a copy of them, and the writer does
 * the rest. */
static enum brg_status duty_cut(struct brg_site *s, struct err *e) {
    struct write_job *job = job_new(s, WRITE_DELTA, 0);
    CHECK(s->stage_users == 0);
    s->stage_is_theta = s->shift_ready = false;
    job->still = s->core.seg.steps == 0;
    if (s->core.synchronous) job->codec = CODEC_GRADIENT;
    uint64_t bytes = DELTA_HEADER_BYTES + codec_bytes(job->codec, s->elements);
    bool aside = codec_aside(job->codec) && !job->still;
    job->bytes = try_mem_alloc(bytes, 1);
    if (aside) job->residual = try_mem_alloc(local_residual_bytes(s), 1);
    job->residual_before = s->core.residual;
    enum brg_status status = BRG_OK;
    if (!job->bytes || (aside && !job->residual))
        status = err_set(e, BRG_E_MEMORY, "no memory for a contribution of %" PRIu64 " bytes",
                         bytes + (aside ? local_residual_bytes(s) : 0));
    if (status == BRG_OK) status = stage_fill(s, job, e);
    if (status != BRG_OK) {
        mem_free(job->residual);
        mem_free(job->bytes);
        mem_free(job);
        return status;
    }
    s->stage_is_theta = job->codec != CODEC_GRADIENT;
    s->gradient_samples = 0;
    s->stage_users++;
    const struct site_delta *d = site_cut(&s->core, &s->out.notes);
    CHECK(d->residual == aside);
    struct delta_header h = {.codec = job->codec,
                             .elements = s->elements,
                             .base_version = d->c.base,
                             .tokens = d->c.tokens,
                             .steps = d->c.steps,
                             .did = d->c.did,
                             .base_theta = s->base_theta};
    delta_header_encode(&h, job->bytes);
    job->did = d->c.did;
    job->bytes_count = bytes;
    duty_queue(s, job);
    return BRG_OK;
}

/* The base or a contribution can not be read: what is known to be right is the head. */
void duty_give_up(struct brg_site *s, const struct err *why) {
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
    struct write_job job = {.kind = WRITE_SHIFT};
    s->stage_is_theta = false;
    if (duty != SITE_DUTY_REBASE) s->gradient_samples = 0;
    if (duty == SITE_DUTY_REBASE && !s->core.synchronous) {
        CHECK(shift_fits(s)); /* W1 */
        status = share_all(s, &job, add_share, e);
        s->shift_ready = false;
    } else {
        struct write_job *own = job_new(s, WRITE_RESET, 0);
        if (duty != SITE_DUTY_RESET) own->from = s->core.ready;
        if (duty == SITE_DUTY_REBASE) own->deltas_count = 0; /* no own work: the version's bits */
        status = share_all(s, own, reset_share, e);
        mem_free(own);
    }
    if (status != BRG_OK) {
        duty_give_up(s, e);
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
