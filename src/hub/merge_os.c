/* SPDX-License-Identifier: Apache-2.0 */
/* merge_os.c - one pass over the parent and the deltas, a few chunks in memory at a time.
 *
 *   parent theta --+
 *   parent m ------+--> [ read, hash, decode, outer_merge_chunk ] --slot--> [ write theta, m ] --> file
 *   deltas --------+              the reading side                           the writing side
 *
 * With two threads the sides run at once and pass slots round; with one they alternate. The
 * arithmetic is in the reading side, in the order of the chunks, so the number of threads cannot
 * show in the result.
 *
 *   slot: EMPTY --reading side fills--> FULL --writing side drains--> EMPTY
 *
 * Everything is hashed while it passes. A bit that flipped on the disk since a delta was accepted
 * would decode to a plausible number and stay in the weights for ever; the same is true of the
 * parent.
 *
 * Invariants
 *   (M1) a merge succeeds only if parent theta and every part had their recorded hash in this very pass.
 *   (M2) the result does not depend on threads, nor on the size of a piece.
 *   (M3) memory is bounded by MERGE_MEMORY_BYTES plus a few chunks, for any model and number of parts. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum {
    SLOTS = 3,
    PIECE_MIN = CODEC_UNIT,
    MERGE_MEMORY_BYTES = 64 << 20, /* for the decoded pieces of all parts together */
};

/* ---- A delta file that is being read --------------------------------------------------------- */
struct source {
    int fd;
    struct delta_header header;
    struct hasher hash;
    uint64_t at; /* elements read */
    const char *path;
};

static void source_fini(struct source *s) {
    os_close_cleanup(&s->fd);
}

/* Opens a delta file of exactly the right length and reads its header. */
static enum brg_status source_open(struct source *s, const char *path, uint64_t elements,
                                   struct err *e) {
    uint8_t head[DELTA_HEADER_BYTES];
    *s = (struct source){.fd = open(path, O_RDONLY | O_CLOEXEC), .path = path};
    if (s->fd < 0) return os_errno(e, errno, "open", path);
    struct stat st;
    if (fstat(s->fd, &st) != 0) return os_errno(e, errno, "stat", path);
    if (st.st_size < DELTA_HEADER_BYTES) {
        return err_set(e, BRG_E_MESSAGE, "delta: %lld bytes are no delta file",
                       (long long)st.st_size);
    }
    TRY(os_pread_all(s->fd, head, sizeof head, 0, path, e));
    TRY(delta_header_decode(head, &s->header, e));
    if (s->header.elements != elements) {
        return err_set(e, BRG_E_MESSAGE,
                       "delta: %llu elements, the model has %llu; the site trains another "
                       "model",
                       (unsigned long long)s->header.elements, (unsigned long long)elements);
    }
    uint64_t want = DELTA_HEADER_BYTES + codec_bytes(s->header.codec, elements);
    if ((uint64_t)st.st_size != want) {
        return err_set(e, BRG_E_MESSAGE, "delta: %lld bytes instead of %llu", (long long)st.st_size,
                       (unsigned long long)want);
    }
    hasher_init(&s->hash);
    hasher_update(&s->hash, head, sizeof head);
    (void)posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return BRG_OK;
}

/* The next n elements, n a multiple of a block except at the end. bytes is scratch of 4 n bytes. */
static enum brg_status source_next(struct source *s, size_t n, uint8_t *bytes, float *out,
                                   struct err *e) {
    CHECK(s->at % CODEC_UNIT == 0); /* M2 */
    uint64_t offset = DELTA_HEADER_BYTES + codec_bytes(s->header.codec, s->at);
    size_t count = (size_t)codec_bytes(s->header.codec, n);
    TRY(os_pread_all(s->fd, bytes, count, offset, s->path, e));
    hasher_update(&s->hash, bytes, count);
    s->at += n;
    enum brg_status status = codec_decode(s->header.codec, bytes, n, out);
    if (status == BRG_OK) return BRG_OK;
    return err_set(e, status, "delta: a number before element %llu is not finite",
                   (unsigned long long)s->at);
}

static enum brg_status hash_compare(struct hasher *h, const struct hash *want, const char *path,
                                    const char *what, struct err *e) {
    struct hash got = hasher_final(h);
    if (hash_is_zero(want) || hash_equal(&got, want)) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT, "%s: %s does not have its recorded hash; the disk changed it",
                   path, what);
}

/* ---- The merge ------------------------------------------------------------------------------- */
struct slot {
    float *theta, *m;
    size_t n; /* elements; 0: empty */
};

struct merge {
    const struct merge_job *job;
    struct checkpoint parent;
    int parent_fd;
    struct hasher parent_theta;
    struct source *sources;
    struct outer_part *parts;
    struct outer_merge outer;
    size_t piece; /* elements */
    float **decoded;
    float *memory; /* of slots and decoded pieces */
    uint8_t *bytes;
    uint64_t at; /* elements that the reading side has done */
    int bad_part;
    struct checkpoint_writer *writer;
    struct slot slots[SLOTS];

    /* What the two threads share. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop; /* set by either side after a failure */
    enum brg_status read_status;
    struct err read_err;
};

static void merge_fini(struct merge *g) {
    for (size_t i = 0; g->sources != NULL && i < g->job->parts_count; i++)
        source_fini(&g->sources[i]);
    mem_free(g->sources);
    mem_free(g->parts);
    mem_free(g->decoded);
    mem_free(g->memory);
    mem_free(g->bytes);
    outer_merge_fini(&g->outer);
    os_close_cleanup(&g->parent_fd);
    checkpoint_fini(&g->parent);
    checkpoint_writer_abort(g->writer);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

static size_t piece_for(size_t parts) {
    size_t piece = OUTER_CHUNK;
    while (piece > PIECE_MIN && piece * sizeof(float) > MERGE_MEMORY_BYTES / (parts + 1))
        piece /= 2;
    return piece;
}

static uint64_t table_elements(const struct tensors *t) {
    uint64_t sum = 0;
    for (size_t i = 0; i < t->count; i++) sum += t->v[i].elements;
    return sum;
}

static enum brg_status open_sources(struct merge *g, struct err *e) {
    const struct merge_job *job = g->job;
    g->sources = mem_alloc(job->parts_count, sizeof *g->sources);
    g->parts = mem_alloc(job->parts_count, sizeof *g->parts);
    for (size_t i = 0; i < job->parts_count; i++) {
        g->sources[i].fd = -1;
        g->parts[i] = job->parts[i].part;
    }
    for (size_t i = 0; i < job->parts_count; i++) {
        g->bad_part = (int)i;
        TRY(source_open(&g->sources[i], job->parts[i].path, g->parent.elements, e));
    }
    g->bad_part = -1;
    return BRG_OK;
}

static void reserve(struct merge *g) {
    size_t count = g->job->parts_count;
    g->piece = piece_for(count);
    CHECK(count <= SIZE_MAX / sizeof(float) / g->piece - 2 * SLOTS); /* M3 */
    g->memory = mem_alloc((count + 2 * SLOTS) * g->piece, sizeof(float));
    g->bytes = mem_alloc(g->piece, sizeof(float));
    g->decoded = mem_alloc(count, sizeof *g->decoded);
    float *at = g->memory;
    for (size_t i = 0; i < count; i++, at += g->piece) g->decoded[i] = at;
    for (size_t i = 0; i < SLOTS; i++, at += 2 * g->piece) {
        g->slots[i] = (struct slot){.theta = at, .m = at + g->piece};
    }
}

static enum brg_status merge_open(struct merge *g, struct err *e) {
    const struct merge_job *job = g->job;
    TRY(checkpoint_open(job->parent_path, &g->parent, e));
    if (table_elements(job->head.table) != g->parent.elements) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: %llu parameters, the run has %llu",
                       job->parent_path, (unsigned long long)g->parent.elements,
                       (unsigned long long)table_elements(job->head.table));
    }
    g->parent_fd = open(job->parent_path, O_RDONLY | O_CLOEXEC);
    if (g->parent_fd < 0) return os_errno(e, errno, "open", job->parent_path);
    hasher_init(&g->parent_theta);
    TRY(open_sources(g, e));
    reserve(g);
    outer_merge_init(&g->outer, &job->params, g->parts, job->weight, job->parts_count);
    return checkpoint_writer_open(job->out_path, &job->head, &g->writer, e);
}

/* The reading side's work on one slot. */
static enum brg_status fill(struct merge *g, struct slot *s, struct err *e) {
    const char *path = g->job->parent_path;
    uint64_t left = g->parent.elements - g->at;
    size_t n = left < g->piece ? (size_t)left : g->piece;
    TRY(os_pread_all(g->parent_fd, s->theta, 4 * n, g->parent.theta_offset + 4 * g->at, path, e));
    TRY(os_pread_all(g->parent_fd, s->m, 4 * n, g->parent.m_offset + 4 * g->at, path, e));
    hasher_update(&g->parent_theta, s->theta, 4 * n);
    for (size_t i = 0; i < g->job->parts_count; i++) {
        g->bad_part = (int)i;
        TRY(source_next(&g->sources[i], n, g->bytes, g->decoded[i], e));
    }
    g->bad_part = -1;
    outer_merge_chunk(&g->outer, s->theta, s->m, (const float *const *)g->decoded, n);
    g->at += n;
    s->n = n;
    return BRG_OK;
}

/* The writing side's work on one slot. */
static enum brg_status drain(struct merge *g, struct slot *s, struct err *e) {
    TRY(checkpoint_write_theta(g->writer, s->theta, s->n, e));
    return checkpoint_write_m(g->writer, s->m, s->n, e);
}

static enum brg_status merge_alone(struct merge *g, struct err *e) {
    while (g->at < g->parent.elements) {
        TRY(fill(g, &g->slots[0], e));
        TRY(drain(g, &g->slots[0], e));
    }
    return BRG_OK;
}

/* Waits until the slot is full (or empty) or the other side gave up; false in the latter case. */
static bool slot_wait(struct merge *g, const struct slot *s, bool full) {
    pthread_mutex_lock(&g->lock);
    while (!g->stop && (s->n > 0) != full) pthread_cond_wait(&g->changed, &g->lock);
    bool go_on = !g->stop;
    pthread_mutex_unlock(&g->lock);
    return go_on;
}

static void slot_set(struct merge *g, struct slot *s, size_t n, bool stop) {
    pthread_mutex_lock(&g->lock);
    s->n = n;
    g->stop |= stop;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void *reading_side(void *user) {
    struct merge *g = user;
    for (size_t k = 0; g->at < g->parent.elements; k++) {
        struct slot *s = &g->slots[k % SLOTS];
        struct slot own = {.theta = s->theta, .m = s->m}; /* n is the flag between the two sides */
        if (!slot_wait(g, s, false)) break;
        g->read_status = fill(g, &own, &g->read_err);
        slot_set(g, s, own.n, g->read_status != BRG_OK);
        if (g->read_status != BRG_OK) break;
    }
    return NULL;
}

static enum brg_status merge_together(struct merge *g, struct err *e) {
    pthread_t reader;
    if (pthread_create(&reader, NULL, reading_side, g) != 0) return merge_alone(g, e);
    enum brg_status s = BRG_OK;
    uint64_t written = 0, elements = g->parent.elements;
    for (size_t k = 0; s == BRG_OK && written < elements; k++) {
        struct slot *slot = &g->slots[k % SLOTS];
        if (!slot_wait(g, slot, true)) break;
        s = drain(g, slot, e);
        written += slot->n;
        slot_set(g, slot, 0, s != BRG_OK);
    }
    pthread_join(reader, NULL);
    if (s != BRG_OK || g->read_status == BRG_OK) return s;
    if (e != NULL) *e = g->read_err;
    return g->read_status;
}

static enum brg_status check_hashes(struct merge *g, struct err *e) {
    CHECK(g->at == g->parent.elements); /* M1 */
    TRY(hash_compare(&g->parent_theta, &g->parent.theta_hash, g->job->parent_path, "theta", e));
    for (size_t i = 0; i < g->job->parts_count; i++) {
        const struct merge_part *p = &g->job->parts[i];
        g->bad_part = (int)i;
        CHECK(g->sources[i].at == g->at); /* M1 */
        TRY(hash_compare(&g->sources[i].hash, &p->blob, p->path, "delta", e));
    }
    g->bad_part = -1;
    return BRG_OK;
}

enum brg_status merge_run(const struct merge_job *job, struct hash *out_file, uint64_t *out_bytes,
                          struct hash *out_theta, int *out_bad_part, struct err *e) {
    struct merge g = {.job = job, .parent_fd = -1, .bad_part = -1};
    CHECK(pthread_mutex_init(&g.lock, NULL) == 0);
    CHECK(pthread_cond_init(&g.changed, NULL) == 0);
    enum brg_status s = merge_open(&g, e);
    if (s == BRG_OK) s = job->threads > 1 ? merge_together(&g, e) : merge_alone(&g, e);
    if (s == BRG_OK) s = check_hashes(&g, e);
    /* Only what a part's own bytes can cause is laid at its door; a disk that fails is not the
     * part. */
    bool to_blame = s == BRG_E_CORRUPT || s == BRG_E_MISSING || s == BRG_E_MESSAGE;
    *out_bad_part = to_blame ? g.bad_part : -1;
    if (s == BRG_OK) {
        struct checkpoint_writer *w = g.writer;
        g.writer = NULL; /* finish frees it in every case */
        s = checkpoint_writer_finish(w, out_file, out_bytes, out_theta, e);
    }
    merge_fini(&g);
    return s;
}

/* ---- Inspection ------------------------------------------------------------------------------ */
struct inspection {
    struct source source;
    struct checkpoint parent;
    int parent_fd;
    float *delta, *m;
    uint8_t *bytes;
    struct delta_stats stats;
    bool finite;
};

static void inspection_fini(struct inspection *x) {
    source_fini(&x->source);
    os_close_cleanup(&x->parent_fd);
    checkpoint_fini(&x->parent);
    mem_free(x->delta);
    mem_free(x->m);
    mem_free(x->bytes);
}

static enum brg_status open_parent(struct inspection *x, const char *path, uint64_t elements,
                                   struct err *e) {
    TRY(checkpoint_open(path, &x->parent, e));
    if (x->parent.elements != elements) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: is of another model", path);
    }
    x->parent_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (x->parent_fd < 0) return os_errno(e, errno, "open", path);
    x->m = mem_alloc(OUTER_CHUNK, sizeof(float));
    return BRG_OK;
}

/* Reads on after a number that is not finite: the hash of the whole tells whether the site sent it
 * or the line made it. */
static enum brg_status inspect_all(struct inspection *x, const char *parent_path, uint64_t elements,
                                   struct err *e) {
    for (uint64_t at = 0; at < elements; at += OUTER_CHUNK) {
        size_t n = elements - at < OUTER_CHUNK ? (size_t)(elements - at) : OUTER_CHUNK;
        enum brg_status s = source_next(&x->source, n, x->bytes, x->delta, x->finite ? e : NULL);
        if (s == BRG_E_CORRUPT) {
            x->finite = false;
            continue;
        }
        TRY(s);
        if (x->m != NULL) {
            TRY(os_pread_all(x->parent_fd, x->m, 4 * n, x->parent.m_offset + 4 * at, parent_path,
                             e));
        }
        delta_stats_chunk(&x->stats, x->delta, x->m, n);
    }
    return BRG_OK;
}

static enum brg_status inspect(struct inspection *x, const char *path, const struct hash *want,
                               uint64_t elements, const char *parent_path, struct err *e) {
    TRY(source_open(&x->source, path, elements, e));
    if (parent_path != NULL) TRY(open_parent(x, parent_path, elements, e));
    x->delta = mem_alloc(OUTER_CHUNK, sizeof(float));
    x->bytes = mem_alloc(OUTER_CHUNK, sizeof(float));
    TRY(inspect_all(x, parent_path, elements, e));
    if (want != NULL) {
        struct err hash_err;
        enum brg_status s = hash_compare(&x->source.hash, want, path, "delta", &hash_err);
        if (s != BRG_OK) {
            if (e != NULL) *e = hash_err;
            return s;
        }
    }
    if (x->finite) return BRG_OK;
    if (e != NULL) e->status = BRG_E_NONFINITE; /* the text says where */
    return BRG_E_NONFINITE;
}

enum brg_status merge_inspect(const char *path, const struct hash *want, uint64_t elements,
                              const char *parent_path, struct delta_header *out_header,
                              struct delta_stats *out_stats, struct err *e) {
    struct inspection x = {.source.fd = -1, .parent_fd = -1, .finite = true};
    enum brg_status s = inspect(&x, path, want, elements, parent_path, e);
    if (s == BRG_OK) {
        *out_header = x.source.header;
        *out_stats = x.stats;
    }
    inspection_fini(&x);
    return s;
}
