/* SPDX-License-Identifier: Apache-2.0 */
/* merge_os.c - one pass over the parent and the deltas, a few pieces in memory at a time.
 *
 *   parent theta, m, ema, e --+
 *   deltas -------------------+--> [ read, decode, outer step, update, mean ] --> theta, m, ema, e --> the checkpoint
 *                                                                             \-> payload --> the update file
 *
 * The vector is cut into pieces; a piece in memory is a slot. There are two kinds of work, and each thread
 * takes what there is:
 *   a piece   read it, compute it, write it: any thread, any order
 *   a hash    of one stream (the parent's theta, each delta, the new theta): piece after piece in order, by
 *             one thread at a time
 *   slot: EMPTY --a thread takes the next piece--> FILLING --written--> FULL --hashed by every stream--> EMPTY
 * Each element is computed from its own piece alone, in the order of the parts, so neither the number of
 * threads nor their luck can show in the result.
 *
 * A radial mean wants each tensor's products before the first element can be computed: one pass over the deltas more,
 * by one thread, in order, so that their sums have one value. The cosines between sites come from every
 * SAMPLE-th unit of a large model, in the same pass as the merge; the last bits of their sums are chance, and they are
 * for people.
 *
 * A synchronous round wants the mean gradient's norm before the first element can be moved: likewise one pass more.
 *
 * Everything is hashed while it passes. A bit that flipped on the disk since a delta was accepted would
 * decode to a plausible number and stay in the weights for ever; the same is true of the parent.
 *
 * Invariants
 *   (M1) a merge succeeds only if parent theta and every part had their recorded hash in this very pass.
 *   (M2) the result does not depend on threads, nor on the size of a piece.
 *   (M3) memory is bounded by MERGE_MEMORY_BYTES plus two pieces a part, for any model and number of parts. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum {
    SLOTS_MAX = 12,
    THREADS_MAX = 8,
    PARTS_OF_ONE_THREAD = 256, /* beyond: each thread's decoded tiles would be dear */
    PIECE_MIN = CODEC_UNIT,
    MERGE_MEMORY_BYTES = 96 << 20, /* for all slots together */
    SAMPLE_ALL = 1 << 22,          /* elements: of a smaller model every unit is looked at */
    SAMPLE = 16,
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
enum slot_state { EMPTY = 0, FILLING = 1, FULL = 2 };
struct slot {
    enum slot_state state;
    uint64_t piece; /* which one, while not EMPTY */
    size_t n;       /* its elements */
    size_t streams_left;
    float *parent, *theta, *m, *ema; /* parent: its theta, untouched */
    float *v;                        /* of a synchronous round */
    uint8_t *e, *update;             /* bf16; payload */
    uint8_t **coded;                 /* [parts] */
};

struct worker { /* what a thread needs for itself */
    struct merge *g;
    pthread_t thread;
    float *scratch; /* [2 * piece], for the update */
    double *gram;   /* [parts * parts] of the units looked at; NULL: cosines are not wanted */
    struct outer_room room;
};

struct merge {
    const struct merge_job *job;
    struct checkpoint parent;
    int parent_fd, update_fd;
    struct source *sources;
    struct outer_part *parts;
    enum codec *codecs;
    struct outer_merge outer;
    struct outer_radial radial;
    double clip; /* of a synchronous round: the gradient's factor */
    struct outer_span *spans;
    size_t piece, slots_count; /* elements of a piece */
    uint64_t pieces;
    struct checkpoint_writer *writer;
    struct slot slots[SLOTS_MAX];
    struct worker workers[THREADS_MAX];
    unsigned workers_count;
    struct hasher parent_theta;
    /* Streams that are hashed: 0 the parent's theta, 1..parts the deltas, parts + 1 the new theta. */
    size_t streams_count;
    uint64_t *stream_at;
    bool *stream_busy;

    pthread_mutex_t lock; /* guards the state of slots and streams, and what follows */
    pthread_cond_t changed;
    uint64_t next;
    enum brg_status status; /* of the first failure: all threads end */
    int bad_part;
    struct err err;
};

static void slot_fini(struct slot *s, size_t parts) {
    mem_free(s->parent);
    mem_free(s->theta);
    mem_free(s->m);
    mem_free(s->ema);
    mem_free(s->v);
    mem_free(s->e);
    mem_free(s->update);
    for (size_t i = 0; s->coded != NULL && i < parts; i++) mem_free(s->coded[i]);
    mem_free(s->coded);
}

static void merge_fini(struct merge *g) {
    size_t parts = g->job->parts_count;
    for (size_t i = 0; g->sources != NULL && i < parts; i++) source_fini(&g->sources[i]);
    for (size_t i = 0; i < SLOTS_MAX; i++) slot_fini(&g->slots[i], parts);
    for (size_t i = 0; i < THREADS_MAX; i++) {
        outer_room_fini(&g->workers[i].room);
        mem_free(g->workers[i].scratch);
        mem_free(g->workers[i].gram);
    }
    outer_radial_fini(&g->radial);
    mem_free(g->spans);
    mem_free(g->sources);
    mem_free(g->parts);
    mem_free(g->codecs);
    mem_free(g->stream_at);
    mem_free(g->stream_busy);
    outer_merge_fini(&g->outer);
    os_close_cleanup(&g->parent_fd);
    os_close_cleanup(&g->update_fd);
    checkpoint_fini(&g->parent);
    checkpoint_writer_abort(g->writer);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
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
    g->codecs = mem_alloc(job->parts_count, sizeof *g->codecs);
    for (size_t i = 0; i < job->parts_count; i++) {
        g->sources[i].fd = -1;
        g->parts[i] = job->parts[i].part;
    }
    for (size_t i = 0; i < job->parts_count; i++) {
        g->bad_part = (int)i;
        TRY(source_open(&g->sources[i], job->parts[i].path, g->parent.elements, e));
        g->codecs[i] = g->sources[i].header.codec;
    }
    g->bad_part = -1;
    return BRG_OK;
}

/* A synchronous round whose moments are kept; the counting rule has none. */
static bool has_moments(const struct merge_job *job) {
    return job->adamw.step > 0 && !job->adamw.counts;
}

/* The second moment is written: of this round, or as it is where all samples were skipped and nothing moves. */
static bool keeps_v(const struct merge *g) {
    return has_moments(g->job) || (g->job->parts_count == 0 && g->parent.v_offset > 0);
}

/* Bytes of a slot for each element of its piece. */
static size_t slot_bytes(const struct merge *g) {
    size_t bytes = 3 * sizeof(float) + 2 + 4 + (g->job->keeps_ema ? sizeof(float) : 0) +
                   (keeps_v(g) ? sizeof(float) : 0);
    for (size_t i = 0; i < g->job->parts_count; i++)
        bytes += g->codecs[i] == CODEC_FP32 || g->codecs[i] == CODEC_GRADIENT ? 4 : 2; /* at most */
    return bytes;
}

static void sizes_choose(struct merge *g) {
    size_t parts = g->job->parts_count, each = slot_bytes(g);
    unsigned threads = g->job->threads > 0 ? g->job->threads : 1;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    if (parts > PARTS_OF_ONE_THREAD) threads = 1;
    g->workers_count = threads;
    g->slots_count = threads + 4;
    g->piece = OUTER_CHUNK;
    while (g->piece > PIECE_MIN && g->slots_count * g->piece * each > MERGE_MEMORY_BYTES)
        g->piece /= 2;
    while (g->slots_count > 1 && g->slots_count * g->piece * each > MERGE_MEMORY_BYTES)
        g->slots_count--;
    g->pieces = (g->parent.elements + g->piece - 1) / g->piece;
    g->streams_count = parts + 2;
}

static bool figures_wanted(const struct merge *g) {
    size_t parts = g->job->parts_count, sites = 0;
    uint32_t last = 0;
    if (g->job->figures == NULL || parts > OUTER_RADIAL_PARTS_MAX) return false;
    for (size_t i = 0; i < parts; i++) {
        if (g->parts[i].late > 0 || g->parts[i].site == last) continue;
        last = g->parts[i].site;
        sites++;
    }
    return sites > 1;
}

static void reserve(struct merge *g) {
    size_t parts = g->job->parts_count;
    sizes_choose(g);
    CHECK(g->slots_count <= SLOTS_MAX); /* M3 */
    g->stream_at = mem_alloc(g->streams_count, sizeof *g->stream_at);
    g->stream_busy = mem_alloc(g->streams_count, sizeof *g->stream_busy);
    for (size_t k = 0; k < g->slots_count; k++) {
        struct slot *s = &g->slots[k];
        s->parent = mem_alloc(g->piece, sizeof(float));
        s->theta = mem_alloc(g->piece, sizeof(float));
        s->m = mem_alloc(g->piece, sizeof(float));
        s->ema = mem_alloc(g->job->keeps_ema ? g->piece : 1, sizeof(float));
        s->v = mem_alloc(keeps_v(g) ? g->piece : 1, sizeof(float));
        s->e = mem_alloc(g->piece, 2);
        s->update = mem_alloc(g->job->down != 0 ? codec_bytes(g->job->down, g->piece) : 1, 1);
        s->coded = mem_alloc(parts, sizeof *s->coded);
        for (size_t i = 0; i < parts; i++)
            s->coded[i] = mem_alloc(codec_bytes(g->codecs[i], g->piece), 1);
    }
    for (unsigned k = 0; k < g->workers_count; k++) {
        struct worker *w = &g->workers[k];
        w->g = g;
        outer_room_init(&w->room, parts);
        w->scratch = mem_alloc(2 * g->piece, sizeof(float));
        if (figures_wanted(g)) w->gram = mem_alloc(parts * parts, sizeof *w->gram);
    }
}

static enum brg_status update_open(struct merge *g, struct err *e) {
    const char *path = g->job->update_path;
    if (g->job->down == 0 || path == NULL) return BRG_OK;
    g->update_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return g->update_fd < 0 ? os_errno(e, errno, "create", path) : BRG_OK;
}

static enum brg_status read_coded(struct merge *g, uint8_t **coded, uint64_t at, size_t n,
                                  struct err *e) {
    for (size_t i = 0; i < g->job->parts_count; i++) {
        uint64_t offset = DELTA_HEADER_BYTES + codec_bytes(g->codecs[i], at);
        TRY(os_pread_all(g->sources[i].fd, coded[i], (size_t)codec_bytes(g->codecs[i], n), offset,
                         g->sources[i].path, e));
    }
    return BRG_OK;
}

static enum brg_status coded_wrong(enum brg_status s, uint64_t before, struct err *e) {
    return err_set(e, s, "delta: before element %llu stands what its codec never writes",
                   (unsigned long long)before);
}

/* With more parts than a radial mean takes, the mean stays a plain one. */
static enum brg_status radial_measure(struct merge *g, struct err *e) {
    const struct tensors *t = &g->parent.table;
    struct slot *s = &g->slots[0];
    uint64_t end = 0;
    size_t bad = 0;
    g->spans = mem_alloc(t->count, sizeof *g->spans);
    for (size_t i = 0; i < t->count; i++) {
        end += t->v[i].elements;
        g->spans[i] = (struct outer_span){end, outer_span_is_plain(t->v[i].name)};
    }
    if (!outer_radial_init(&g->radial, g->spans, t->count, g->parts, g->job->weight,
                           g->job->parts_count))
        return BRG_OK;
    for (uint64_t at = 0; at < g->parent.elements; at += g->piece) {
        uint64_t left = g->parent.elements - at;
        size_t n = left < g->piece ? (size_t)left : g->piece;
        TRY(read_coded(g, s->coded, at, n, e));
        enum brg_status st = outer_radial_measure_coded(&g->radial, at,
                                                        (const uint8_t *const *)s->coded, g->codecs,
                                                        n, &g->workers[0].room, &bad);
        if (st == BRG_OK) continue;
        g->bad_part = (int)bad;
        return coded_wrong(st, at + n, e);
    }
    outer_radial_finish(&g->radial);
    g->outer.radial = &g->radial;
    return BRG_OK;
}

/* The parts' mean of n elements at `at`, tile by tile, into mean[n]; see outer_adamw_mean for sum2. */
static enum brg_status gradient_mean(struct worker *w, uint8_t *const *coded, size_t n, float *mean,
                                     double *sum2, int *out_bad) {
    const struct merge *g = w->g;
    for (size_t at = 0; at < n; at += CODEC_UNIT) {
        size_t count = n - at < CODEC_UNIT ? n - at : CODEC_UNIT;
        for (size_t i = 0; i < g->job->parts_count; i++) {
            float *tile = w->room.tiles + i * CODEC_UNIT;
            *out_bad = (int)i;
            TRY(codec_decode(g->codecs[i], coded[i] + codec_bytes(g->codecs[i], at), count, tile));
            w->room.delta[i] = tile;
        }
        *sum2 = outer_adamw_mean(g->job->weight, g->job->parts_count, w->room.delta, count,
                                 mean + at, *sum2);
    }
    *out_bad = -1;
    return BRG_OK;
}

/* Which tensors decay, and the factor of the clip: the norm in one chain of additions. */
static enum brg_status gradient_measure(struct merge *g, struct err *e) {
    struct slot *s = &g->slots[0];
    double sum2 = 0;
    for (uint64_t at = 0; at < g->parent.elements; at += g->piece) {
        uint64_t left = g->parent.elements - at;
        size_t n = left < g->piece ? (size_t)left : g->piece;
        int bad = -1;
        TRY(read_coded(g, s->coded, at, n, e));
        enum brg_status st = gradient_mean(&g->workers[0], s->coded, n, s->theta, &sum2, &bad);
        if (st == BRG_OK) continue;
        g->bad_part = bad;
        return coded_wrong(st, at + n, e);
    }
    g->clip = outer_adamw_clip(&g->job->adamw, sum2);
    return BRG_OK;
}

/* As the trainer's: matrices decay, vectors (norms) do not. */
static void gradient_step(const struct merge *g, struct slot *s, uint64_t at, const float *mean) {
    const struct tensors *t = &g->parent.table;
    uint64_t begin = 0;
    for (size_t i = 0; i < t->count; i++) {
        uint64_t end = begin + t->v[i].elements;
        uint64_t from = begin > at ? begin : at, to = end < at + s->n ? end : at + s->n;
        begin = end;
        if (from >= to) continue;
        size_t k = (size_t)(from - at);
        outer_adamw_chunk(&g->job->adamw, g->clip, t->v[i].dims > 1, s->theta + k, s->m + k,
                          s->v + k, mean + k, (size_t)(to - from));
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
    (void)posix_fadvise(g->parent_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    hasher_init(&g->parent_theta);
    TRY(open_sources(g, e));
    reserve(g);
    outer_merge_init(&g->outer, &job->params, g->parts, job->weight, job->parts_count);
    if (job->radial) TRY(radial_measure(g, e));
    if (has_moments(job)) TRY(gradient_measure(g, e));
    TRY(update_open(g, e));
    struct checkpoint_head head = job->head;
    head.has_e = job->down != 0;
    head.has_ema = job->keeps_ema;
    head.has_v = keeps_v(g);
    return checkpoint_writer_open(job->out_path, &head, &g->writer, e);
}

/* ---- A piece --------------------------------------------------------------------------------- */
/* Step 1 begins them, whatever the parent has in their place. */
static enum brg_status moments_read(struct merge *g, struct slot *s, uint64_t at, struct err *e) {
    const struct checkpoint *p = &g->parent;
    if (g->job->adamw.step == 1) {
        memset(s->m, 0, 4 * s->n);
        memset(s->v, 0, 4 * s->n);
        return BRG_OK;
    }
    if (p->v_offset == 0)
        return err_set(e, BRG_E_CHECKPOINT,
                       "%s: has no outer.v, but step %llu of synchronous rounds goes on with it",
                       g->job->parent_path, (unsigned long long)g->job->adamw.step);
    return os_pread_all(g->parent_fd, s->v, 4 * s->n, p->v_offset + 4 * at, g->job->parent_path, e);
}

static enum brg_status piece_read(struct merge *g, struct slot *s, uint64_t at, struct err *e) {
    const char *path = g->job->parent_path;
    const struct checkpoint *p = &g->parent;
    TRY(os_pread_all(g->parent_fd, s->parent, 4 * s->n, p->theta_offset + 4 * at, path, e));
    TRY(os_pread_all(g->parent_fd, s->m, 4 * s->n, p->m_offset + 4 * at, path, e));
    if (p->e_offset > 0)
        TRY(os_pread_all(g->parent_fd, s->e, 2 * s->n, p->e_offset + 2 * at, path, e));
    else
        memset(s->e, 0, 2 * s->n);
    if (g->job->keeps_ema && p->ema_offset > 0)
        TRY(os_pread_all(g->parent_fd, s->ema, 4 * s->n, p->ema_offset + 4 * at, path, e));
    else if (g->job->keeps_ema) /* the mean begins here */
        memcpy(s->ema, s->parent, 4 * s->n);
    if (keeps_v(g)) TRY(moments_read(g, s, at, e));
    return read_coded(g, s->coded, at, s->n, e);
}

/* A sample of the deltas' products. The payloads were opened without a fault before. */
static void piece_sample(struct worker *w, const struct slot *s, uint64_t at) {
    const struct merge *g = w->g;
    size_t parts = g->job->parts_count;
    uint64_t stride = g->parent.elements <= SAMPLE_ALL ? 1 : SAMPLE;
    for (size_t from = 0; w->gram != NULL && from < s->n; from += CODEC_UNIT) {
        size_t n = s->n - from < CODEC_UNIT ? s->n - from : CODEC_UNIT;
        if ((at + from) / CODEC_UNIT % stride != 0) continue;
        for (size_t i = 0; i < parts; i++) {
            float *tile = w->room.tiles + i * CODEC_UNIT;
            enum brg_status st =
                codec_decode(g->codecs[i], s->coded[i] + codec_bytes(g->codecs[i], from), n, tile);
            if (st != BRG_OK) return;
            w->room.delta[i] = tile;
        }
        outer_gram_add(w->gram, g->parts, parts, w->room.delta, n);
    }
}

static void figures_fill(struct merge *g) {
    size_t parts = g->job->parts_count;
    double *sum = g->workers[0].gram;
    if (sum == NULL) return;
    for (unsigned k = 1; k < g->workers_count; k++)
        for (size_t i = 0; i < parts * parts; i++) sum[i] += g->workers[k].gram[i];
    struct merge_figures *f = g->job->figures;
    f->cos_mean = outer_cosines(sum, g->parts, g->job->weight, parts, f->cosines);
    f->known = true;
}

static enum brg_status piece_step(struct worker *w, struct slot *s, uint64_t at, int *out_bad,
                                  struct err *e) {
    struct merge *g = w->g;
    size_t bad = 0;
    memcpy(s->theta, s->parent, 4 * s->n);
    enum brg_status st;
    if (has_moments(g->job)) {
        double sum2 = 0;
        st = gradient_mean(w, s->coded, s->n, w->scratch, &sum2, out_bad);
        if (st == BRG_OK) gradient_step(g, s, at, w->scratch);
    } else {
        st = outer_merge_coded_at(&g->outer, at, s->theta, s->m, (const uint8_t *const *)s->coded,
                                  g->codecs, s->n, &w->room, &bad);
        *out_bad = st == BRG_OK ? -1 : (int)bad;
    }
    if (st != BRG_OK) return coded_wrong(st, at + s->n, e);
    piece_sample(w, s, at);
    if (g->job->down != 0)
        st = outer_down_chunk(g->job->down, s->parent, s->theta, s->e, s->n, s->update, w->scratch);
    else if (g->parent.e_offset > 0)
        st = outer_down_settle(s->theta, s->e, s->n, w->scratch);
    if (st == BRG_OK && g->job->keeps_ema) outer_ema_chunk(s->ema, s->theta, g->job->ema, s->n);
    if (st == BRG_OK) return BRG_OK;
    return err_set(e, st == BRG_E_CORRUPT ? BRG_E_CHECKPOINT : st,
                   "the update before element %llu is not finite; go back to an earlier version",
                   (unsigned long long)(at + s->n));
}

static enum brg_status piece_write(struct merge *g, struct slot *s, uint64_t at, struct err *e) {
    enum codec down = g->job->down;
    TRY(checkpoint_write_at(g->writer, at, s->theta, s->m, down != 0 ? s->e : NULL, s->n, e));
    if (keeps_v(g)) TRY(checkpoint_write_v_at(g->writer, at, s->v, s->n, e));
    if (g->job->keeps_ema) TRY(checkpoint_write_ema_at(g->writer, at, s->ema, s->n, e));
    if (g->update_fd < 0) return BRG_OK;
    return os_pwrite_all(g->update_fd, s->update, (size_t)codec_bytes(down, s->n),
                         UPDATE_HEADER_BYTES + codec_bytes(down, at), g->job->update_path, e);
}

static enum brg_status piece_make(struct worker *w, struct slot *s, int *out_bad, struct err *e) {
    struct merge *g = w->g;
    uint64_t at = s->piece * g->piece, left = g->parent.elements - at;
    CHECK(at % CODEC_UNIT == 0); /* M2 */
    s->n = left < g->piece ? (size_t)left : g->piece;
    TRY(piece_read(g, s, at, e));
    TRY(piece_step(w, s, at, out_bad, e));
    return piece_write(g, s, at, e);
}

static void stream_hash(struct merge *g, size_t stream, const struct slot *s) {
    size_t parts = g->job->parts_count;
    if (stream == 0) {
        hasher_update(&g->parent_theta, s->parent, 4 * s->n);
    } else if (stream <= parts) {
        struct source *x = &g->sources[stream - 1];
        hasher_update(&x->hash, s->coded[stream - 1], (size_t)codec_bytes(x->header.codec, s->n));
        x->at += s->n;
    } else {
        checkpoint_hash_theta(g->writer, s->theta, s->n);
    }
}

/* ---- The threads: all with the lock held, except while they work --------------------------------- */
static bool hash_some(struct merge *g) {
    for (size_t k = 0; k < g->streams_count; k++) {
        struct slot *s = &g->slots[g->stream_at[k] % g->slots_count];
        if (g->stream_busy[k] || s->state != FULL || s->piece != g->stream_at[k]) continue;
        g->stream_busy[k] = true;
        pthread_mutex_unlock(&g->lock);
        stream_hash(g, k, s);
        pthread_mutex_lock(&g->lock);
        g->stream_busy[k] = false;
        g->stream_at[k]++;
        if (--s->streams_left == 0) s->state = EMPTY;
        pthread_cond_broadcast(&g->changed);
        return true;
    }
    return false;
}

static bool make_some(struct worker *w) {
    struct merge *g = w->g;
    struct slot *s = &g->slots[g->next % g->slots_count];
    if (g->next == g->pieces || s->state != EMPTY) return false;
    struct err e = {0};
    int bad = -1;
    s->state = FILLING;
    s->piece = g->next++;
    pthread_mutex_unlock(&g->lock);
    enum brg_status st = piece_make(w, s, &bad, &e);
    pthread_mutex_lock(&g->lock);
    if (st != BRG_OK && g->status == BRG_OK) {
        g->status = st;
        g->bad_part = bad;
        g->err = e;
    }
    s->streams_left = g->streams_count;
    s->state = FULL;
    pthread_cond_broadcast(&g->changed);
    return true;
}

static bool all_hashed(const struct merge *g) {
    for (size_t k = 0; k < g->streams_count; k++)
        if (g->stream_at[k] < g->pieces) return false;
    return true;
}

static void *work(void *user) {
    struct worker *w = user;
    struct merge *g = w->g;
    pthread_mutex_lock(&g->lock);
    while (g->status == BRG_OK && !all_hashed(g)) {
        if (hash_some(g) || make_some(w)) continue;
        pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* This thread is the first worker; where no other can be had it does all of the work. */
static enum brg_status merge_all(struct merge *g, struct err *e) {
    unsigned started = 1;
    for (; started < g->workers_count; started++) {
        struct worker *w = &g->workers[started];
        if (pthread_create(&w->thread, NULL, work, w) != 0) break;
    }
    (void)work(&g->workers[0]);
    for (unsigned k = 1; k < started; k++) pthread_join(g->workers[k].thread, NULL);
    if (g->status != BRG_OK && e != NULL) *e = g->err;
    return g->status;
}

static enum brg_status check_hashes(struct merge *g, struct err *e) {
    CHECK(all_hashed(g)); /* M1 */
    TRY(hash_compare(&g->parent_theta, &g->parent.theta_hash, g->job->parent_path, "theta", e));
    for (size_t i = 0; i < g->job->parts_count; i++) {
        const struct merge_part *p = &g->job->parts[i];
        g->bad_part = (int)i;
        CHECK(g->sources[i].at == g->parent.elements); /* M1 */
        TRY(hash_compare(&g->sources[i].hash, &p->blob, p->path, "delta", e));
    }
    g->bad_part = -1;
    return BRG_OK;
}

static enum brg_status update_seal(struct merge *g, const struct hash *theta, struct err *e) {
    if (g->update_fd < 0) return BRG_OK;
    const struct checkpoint_head *head = &g->job->head;
    uint8_t bytes[UPDATE_HEADER_BYTES];
    struct update_header h = {.codec = g->job->down,
                              .elements = g->parent.elements,
                              .from = head->parent,
                              .to = head->version,
                              .tokens = head->tokens,
                              .run = head->run,
                              .theta_from = g->parent.theta_hash,
                              .theta_to = *theta};
    update_header_encode(&h, bytes);
    return os_pwrite_all(g->update_fd, bytes, sizeof bytes, 0, g->job->update_path, e);
}

enum brg_status merge_run(const struct merge_job *job, struct hash *out_file, uint64_t *out_bytes,
                          struct hash *out_theta, int *out_bad_part, struct err *e) {
    struct merge *g = mem_alloc(1, sizeof *g);
    struct hash file, theta;
    uint64_t bytes = 0;
    g->job = job;
    g->parent_fd = g->update_fd = g->bad_part = -1;
    CHECK(pthread_mutex_init(&g->lock, NULL) == 0);
    CHECK(pthread_cond_init(&g->changed, NULL) == 0);
    enum brg_status s = merge_open(g, e);
    if (s == BRG_OK) s = merge_all(g, e);
    if (s == BRG_OK) s = check_hashes(g, e);
    /* Only what a part's own bytes can cause is laid at its door; a disk that fails is not the
     * part. */
    bool to_blame = s == BRG_E_CORRUPT || s == BRG_E_MISSING || s == BRG_E_MESSAGE;
    *out_bad_part = to_blame ? g->bad_part : -1;
    if (s == BRG_OK) {
        struct checkpoint_writer *w = g->writer;
        g->writer = NULL; /* finish frees it in every case */
        s = checkpoint_writer_finish(w, &file, &bytes, &theta, e);
    }
    if (s == BRG_OK) s = update_seal(g, &theta, e);
    if (s == BRG_OK) {
        *out_file = file;
        *out_bytes = bytes;
        *out_theta = theta;
        figures_fill(g);
    }
    merge_fini(g);
    mem_free(g);
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
