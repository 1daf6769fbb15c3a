/* SPDX-License-Identifier: Apache-2.0 */
/* duty_os.c - what the training thread does to the weights: load, reset, rebase, cut.
 *
 * All four stream through the vectors in chunks of OUTER_CHUNK, so memory does not grow with the
 * number of contributions. They run with the lock held: no answer of the hub can change what the core
 * knows while the weights change with it, and the network goes on in the meantime, because sending and
 * receiving need no lock. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* ---- The duties ----------------------------------------------------------------------------------- */

typedef void apply_chunk(struct brg_site *s, struct stream *t, uint64_t at, size_t n);

static void apply_reset(struct brg_site *s, struct stream *t, uint64_t at, size_t n) {
    weights_reset(s->theta + at, s->s + at, t->chunk[0], t->deltas_count > 0 ? t->sum : NULL, n);
}

static void apply_rebase(struct brg_site *s, struct stream *t, uint64_t at, size_t n) {
    weights_rebase(s->theta + at, s->s + at, t->chunk[0], t->chunk[1],
                   t->deltas_count > 0 ? t->sum : NULL, n);
}

/* A failure on the way leaves half a shift behind; the caller then loads the head over it. */
static enum brg_status stream_run(struct brg_site *s, struct stream *t, apply_chunk *apply,
                                  struct err *e) {
    for (uint64_t at = 0; at < s->elements; at += OUTER_CHUNK) {
        uint64_t left = s->elements - at;
        size_t n = left < OUTER_CHUNK ? (size_t)left : OUTER_CHUNK;
        TRY(stream_next(t, n, e));
        apply(s, t, at, n);
    }
    return BRG_OK;
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

static enum brg_status duty_weights(struct brg_site *s, enum site_duty duty, struct err *e) {
    struct stream *t = stream_new();
    uint64_t from = duty == SITE_DUTY_LOAD ? s->core.ready : s->core.base;
    enum brg_status status = stream_version(s, t, from, e);
    if (status == BRG_OK && duty == SITE_DUTY_RESET) status = stream_deltas(s, t, false, 0, e);
    if (status == BRG_OK && duty == SITE_DUTY_REBASE) {
        status = stream_version(s, t, s->core.ready, e);
        if (status == BRG_OK) status = stream_deltas(s, t, true, s->core.ready, e);
    }
    apply_chunk *apply = duty == SITE_DUTY_REBASE ? apply_rebase : apply_reset;
    if (status == BRG_OK) status = stream_run(s, t, apply, e);
    stream_fini(t);
    return status;
}

/* d = S - theta, coded; S moves. Two passes: the first one only looks for what is not finite. */
static enum brg_status duty_cut(struct brg_site *s, struct err *e) {
    for (uint64_t i = 0; i < s->elements; i++) {
        float d = s->s[i] - s->theta[i];
        if (d - d != 0.0f)
            return err_set(e, BRG_E_NONFINITE,
                           "weight %" PRIu64 " is not finite; the segment of %" PRIu64
                           " steps is thrown away and its samples are trained again",
                           i, s->core.seg.steps);
    }
    enum codec codec = s->core.set.codec;
    uint64_t bytes = DELTA_HEADER_BYTES + codec_bytes(codec, s->elements);
    struct write_job *job = mem_alloc(1, sizeof *job);
    job->bytes = try_mem_alloc(bytes, 1);
    float *scratch = mem_alloc(2 * OUTER_CHUNK, sizeof(float));
    enum brg_status status = BRG_OK;
    if (!job->bytes)
        status =
            err_set(e, BRG_E_MEMORY, "no memory for a contribution of %" PRIu64 " bytes", bytes);
    bool still = s->core.seg.steps ==
                 0; /* all samples skipped: nothing moved, the residual stays here */
    const float *theta = still ? s->s : s->theta;
    uint8_t *out = job->bytes ? job->bytes + DELTA_HEADER_BYTES : NULL;
    for (uint64_t at = 0; at < s->elements && status == BRG_OK; at += OUTER_CHUNK) {
        size_t n = s->elements - at < OUTER_CHUNK ? (size_t)(s->elements - at) : OUTER_CHUNK;
        status = weights_cut(codec, s->s + at, theta + at, n, out, scratch);
        out += codec_bytes(codec, n);
    }
    mem_free(scratch);
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
    status = duty_weights(s, duty, e);
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
