/* SPDX-License-Identifier: Apache-2.0 */
/* bench_merge.c - the merge of three int4 contributions at full size, against what the machine gives.
 *   make bench-merge [ARGS="--millions 60 --dir DIR --keep 1"]
 *
 * memory   theta, m and three int4 payloads lie in memory; as many threads as processors decode, sum and step
 *          (outer_merge_coded, the code that the hub runs), beside the same threads that stream the same
 *          bytes: theta, m and payloads read, theta and m written. Promised: at least 70 % of that rate.
 * paths    what options add to it, each alone on one thread over a part of the vector, in ns an element: the products of
 *          the radial mean and of the cosines (which the hub takes of a sample), the radial merge, the mean of
 *          versions, the coded way back.
 * files    merge_run as the hub calls it: parent and contributions on disk, every hash, the update for the
 *          sites, the new checkpoint synced and read back, beside a plain reading and writing of the same
 *          bytes to the same disk, synced. Its time is what a round waits for; the trainers do not.
 * Peak memory of the files part, in a process of its own, promised: below 512 MB; its result has the same
 * hash for 1 thread and for all of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum { PARTS = 3, RUNS = 4, THREADS_MAX = 8 };
#define QWEN3_06B 596049920u

static struct scene {
    size_t n;
    unsigned threads;
    float *theta, *m;
    uint8_t *coded[PARTS];
    struct outer_part parts[PARTS];
    double weight[PARTS];
    struct outer_params params;
    struct outer_merge g;
    struct merge_part files[PARTS];
    char parent[OS_PATH_MAX], out[OS_PATH_MAX], update[OS_PATH_MAX];
} scene = {.parts = {{1, 1000, 30, false}, {2, 1000, 30, false}, {3, 1000, 30, false}}};

static double seconds(time_ns from) {
    return (double)(os_now() - from) / NS_PER_S;
}

static void must(enum brg_status s, const struct err *e) {
    if (s == BRG_OK) return;
    fprintf(stderr, "bench_merge: %s: %s\n", status_name(s), e->text);
    exit(1);
}

/* ---- In memory --------------------------------------------------------------------------------- */
struct share {
    pthread_t thread;
    size_t from, to;
    bool merge; /* else: stream */
};

static void share_merge(struct share *x) {
    static const enum codec codecs[PARTS] = {CODEC_INT4, CODEC_INT4, CODEC_INT4};
    struct outer_room room;
    outer_room_init(&room, PARTS);
    for (size_t at = x->from; at < x->to; at += OUTER_CHUNK) {
        const uint8_t *coded[PARTS];
        size_t n = x->to - at < OUTER_CHUNK ? x->to - at : OUTER_CHUNK, bad;
        for (size_t i = 0; i < PARTS; i++) coded[i] = scene.coded[i] + codec_bytes(CODEC_INT4, at);
        CHECK(outer_merge_coded(&scene.g, scene.theta + at, scene.m + at, coded, codecs, n, &room,
                                &bad) == BRG_OK);
    }
    outer_room_fini(&room);
}

/* Reads what the merge reads and writes what it writes, in its order, with nothing to compute: through a
 * buffer in the first-level cache, at the C library's best. */
static void share_stream(struct share *x) {
    static _Thread_local uint8_t buffer[4 * CODEC_UNIT];
    for (size_t at = x->from; at < x->to; at += CODEC_UNIT) {
        size_t n = x->to - at < CODEC_UNIT ? x->to - at : CODEC_UNIT;
        for (size_t i = 0; i < PARTS; i++) {
            memcpy(buffer, scene.coded[i] + codec_bytes(CODEC_INT4, at),
                   codec_bytes(CODEC_INT4, n));
            __asm__ volatile("" : : "r"(buffer) : "memory");
        }
        float *const both[] = {scene.theta + at, scene.m + at};
        for (size_t k = 0; k < 2; k++) {
            memcpy(buffer, both[k], n * sizeof(float));
            __asm__ volatile("" : : "r"(buffer) : "memory");
            memcpy(both[k], buffer, n * sizeof(float));
        }
    }
}

static void *share_main(void *user) {
    struct share *x = user;
    if (x->merge)
        share_merge(x);
    else
        share_stream(x);
    return NULL;
}

static double run_once(bool merge) {
    struct share x[THREADS_MAX];
    size_t chunks = (scene.n + OUTER_CHUNK - 1) / OUTER_CHUNK;
    time_ns from = os_now();
    for (unsigned i = 0; i < scene.threads; i++) {
        size_t end = chunks * (i + 1) / scene.threads * OUTER_CHUNK;
        x[i] = (struct share){.from = chunks * i / scene.threads * OUTER_CHUNK, .merge = merge};
        x[i].to = end < scene.n ? end : scene.n;
        CHECK(pthread_create(&x[i].thread, NULL, share_main, &x[i]) == 0);
    }
    for (unsigned i = 0; i < scene.threads; i++) pthread_join(x[i].thread, NULL);
    return seconds(from);
}

/* One after the other, several times, so that a busy moment meets both; the best of each counts. */
static double bench_memory(double gigabytes, double *out_rate) {
    double best[2] = {1e9, 1e9};
    for (int run = 0; run < RUNS; run++) {
        for (int merge = 0; merge < 2; merge++) {
            double took = run_once(merge);
            if (took < best[merge]) best[merge] = took;
        }
    }
    printf("memory  stream %6.2f GB/s %6.3f s   merge %6.2f GB/s %6.3f s   %5.1f %%\n",
           gigabytes / best[0], best[0], gigabytes / best[1], best[1], 100 * best[0] / best[1]);
    *out_rate = gigabytes / best[1];
    return best[0] / best[1];
}

/* ---- What options add --------------------------------------------------------------------------- */
enum path { PATH_MERGE, PATH_MEASURE, PATH_RADIAL, PATH_EMA, PATH_DOWN, PATHS };
static const char *const path_names[PATHS] = {"merge", "products", "radial merge", "ema",
                                              "int4 down"};

struct paths {
    size_t n;
    struct outer_room room;
    struct outer_radial radial;
    struct outer_merge g; /* with radial */
    float *ema, *scratch;
    uint8_t *e, *update;
};

static void path_chunk(struct paths *p, enum path which, size_t at, size_t n) {
    static const enum codec codecs[PARTS] = {CODEC_INT4, CODEC_INT4, CODEC_INT4};
    const uint8_t *coded[PARTS];
    float *theta = scene.theta + at;
    size_t bad;
    enum brg_status s = BRG_OK;
    for (size_t i = 0; i < PARTS; i++) coded[i] = scene.coded[i] + codec_bytes(CODEC_INT4, at);
    if (which == PATH_MERGE || which == PATH_RADIAL)
        s = outer_merge_coded_at(which == PATH_MERGE ? &scene.g : &p->g, at, theta, scene.m + at,
                                 coded, codecs, n, &p->room, &bad);
    else if (which == PATH_MEASURE)
        s = outer_radial_measure_coded(&p->radial, at, coded, codecs, n, &p->room, &bad);
    else if (which == PATH_EMA)
        outer_ema_chunk(p->ema + at, theta, 0.02, n);
    else
        s = outer_down_chunk(CODEC_INT4, p->ema + at, theta, p->e + 2 * at, n, p->update,
                             p->scratch);
    CHECK(s == BRG_OK);
}

static double cpu_seconds(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ns of processor time an element. */
static void bench_paths(double out[PATHS]) {
    struct outer_span span = {.end = scene.n};
    struct paths p = {.n = scene.n < 1 << 25 ? scene.n : 1 << 25};
    outer_room_init(&p.room, PARTS);
    outer_merge_init(&p.g, &scene.params, scene.parts, scene.weight, PARTS);
    CHECK(outer_radial_init(&p.radial, &span, 1, scene.parts, scene.weight, PARTS));
    p.ema = mem_alloc(p.n, sizeof(float));
    p.scratch = mem_alloc(2 * OUTER_CHUNK, sizeof(float));
    p.e = mem_alloc(2 * p.n, 1);
    p.update = mem_alloc(codec_bytes(CODEC_INT4, OUTER_CHUNK), 1);
    memcpy(p.ema, scene.theta, p.n * sizeof(float));
    memset(p.e, 0, 2 * p.n); /* its pages are no part of a path */
    printf("paths  ");
    for (enum path which = 0; which < PATHS; which++) {
        double from = cpu_seconds();
        for (size_t at = 0; at < p.n; at += OUTER_CHUNK)
            path_chunk(&p, which, at, p.n - at < OUTER_CHUNK ? p.n - at : OUTER_CHUNK);
        out[which] = 1e9 * (cpu_seconds() - from) / (double)p.n;
        printf(" %s %.2f ns ", path_names[which], out[which]);
        if (which == PATH_MEASURE) outer_radial_finish(&p.radial);
        p.g.radial = &p.radial;
    }
    printf("an element\n");
    outer_radial_fini(&p.radial);
    outer_merge_fini(&p.g);
    outer_room_fini(&p.room);
    void *all[] = {p.ema, p.scratch, p.e, p.update};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
}

/* ---- Files ------------------------------------------------------------------------------------- */
static void fill_vectors(struct prng *r) {
    for (size_t k = 0; k < scene.n; k++) {
        uint64_t z = prng_u64(r);
        scene.theta[k] = (float)((double)(z & 0xffff) * 1e-6 - 0.03);
        scene.m[k] = (float)((double)(z >> 16 & 0xffff) * 1e-8 - 3e-4);
    }
}

static void write_parent(const struct checkpoint_head *head) {
    struct checkpoint_writer *w;
    struct hash h;
    uint64_t bytes;
    struct err e = {0};
    must(checkpoint_writer_open(scene.parent, head, &w, &e), &e);
    must(checkpoint_write_theta(w, scene.theta, scene.n, &e), &e);
    must(checkpoint_write_m(w, scene.m, scene.n, &e), &e);
    must(checkpoint_writer_finish(w, &h, &bytes, &h, &e), &e);
}

static void write_part(size_t i, const char *dir, struct prng *r) {
    struct delta_header h = {.codec = CODEC_INT4, .elements = scene.n, .tokens = 1000, .steps = 30};
    size_t bytes = (size_t)codec_bytes(CODEC_INT4, scene.n);
    uint8_t *file = mem_alloc(DELTA_HEADER_BYTES + bytes, 1);
    AUTO_FREE float *d = mem_alloc(OUTER_CHUNK, sizeof(float));
    struct err e = {0};
    delta_header_encode(&h, file);
    for (size_t at = 0; at < scene.n; at += OUTER_CHUNK) {
        size_t n = scene.n - at < OUTER_CHUNK ? scene.n - at : OUTER_CHUNK;
        for (size_t k = 0; k < n; k++) d[k] = (float)((double)(prng_u64(r) >> 40) * 1e-10 - 8e-4);
        must(
            codec_encode(CODEC_INT4, d, n, file + DELTA_HEADER_BYTES + codec_bytes(CODEC_INT4, at)),
            &e);
    }
    os_path(scene.files[i].path, dir, "bench-merge-delta-%zu", i);
    scene.files[i].part = scene.parts[i];
    scene.files[i].blob = hash_of(file, DELTA_HEADER_BYTES + bytes);
    must(os_write_file_atomic(scene.files[i].path, file, DELTA_HEADER_BYTES + bytes, &e), &e);
    memmove(file, file + DELTA_HEADER_BYTES, bytes);
    scene.coded[i] = file;
}

struct merged {
    double seconds, peak_mb;
    struct hash file;
};

/* In a child, whose peak of memory is the merge's alone. */
static struct merged run_files(unsigned threads, const struct checkpoint_head *head) {
    struct merged got = {0};
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        /* The parent's vectors are only mapped here; what counts is what the merge adds. */
        struct merge_job job = {.parent_path = scene.parent,
                                .out_path = scene.out,
                                .params = scene.params,
                                .weight = scene.weight,
                                .parts = scene.files,
                                .parts_count = PARTS,
                                .head = *head,
                                .threads = threads,
                                .down = CODEC_INT4,
                                .update_path = scene.update};
        struct err e = {0};
        struct hash theta;
        uint64_t bytes;
        int bad;
        mem_free(scene.theta);
        mem_free(scene.m);
        for (size_t i = 0; i < PARTS; i++) mem_free(scene.coded[i]);
        char clear[8] = "5"; /* the peak begins anew */
        FILE *f = fopen("/proc/self/clear_refs", "w");
        if (f != NULL) {
            (void)fputs(clear, f);
            fclose(f);
        }
        time_ns from = os_now();
        must(merge_run(&job, &got.file, &bytes, &theta, &bad, &e), &e);
        got.seconds = seconds(from);
        f = fopen("/proc/self/status", "r");
        char line[256];
        while (f != NULL && fgets(line, sizeof line, f) != NULL)
            if (strncmp(line, "VmHWM:", 6) == 0) got.peak_mb = strtod(line + 6, NULL) / 1024;
        CHECK(write(ends[1], &got, sizeof got) == (ssize_t)sizeof got);
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(ends[0], &got, sizeof got) == (ssize_t)sizeof got);
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    return got;
}

/* The same bytes through the same disk: what the merge reads, read; what it writes, written and synced. */
static double run_plain(void) {
    struct err e = {0};
    AUTO_FREE uint8_t *piece = mem_alloc(1 << 20, 1);
    time_ns from = os_now();
    FILE *out = fopen(scene.out, "w");
    CHECK(out != NULL);
    const char *in[PARTS + 1] = {scene.parent};
    for (size_t i = 0; i < PARTS; i++) in[i + 1] = scene.files[i].path;
    for (size_t i = 0; i <= PARTS; i++) {
        FILE *f = fopen(in[i], "r");
        CHECK(f != NULL);
        for (size_t got; (got = fread(piece, 1, 1 << 20, f)) > 0;)
            if (i == 0) CHECK(fwrite(piece, 1, got, out) == got);
        fclose(f);
    }
    size_t more = 2 * scene.n + (size_t)codec_bytes(CODEC_INT4, scene.n); /* e, and the update */
    for (; more > 0; more -= more < 1 << 20 ? more : 1 << 20)
        CHECK(fwrite(piece, 1, more < 1 << 20 ? more : 1 << 20, out) > 0);
    CHECK(fflush(out) == 0);
    CHECK(fsync(fileno(out)) == 0);
    fclose(out);
    (void)e;
    return seconds(from);
}

static void clean(void) {
    (void)unlink(scene.parent);
    (void)unlink(scene.out);
    (void)unlink(scene.update);
    for (size_t i = 0; i < PARTS; i++) (void)unlink(scene.files[i].path);
}

int main(int argc, char **argv) {
    uint64_t millions = 0;
    const char *dir = getenv("BENCH_DIR") != NULL ? getenv("BENCH_DIR") : "build";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--dir") == 0) dir = argv[i + 1];
        if (strcmp(argv[i], "--millions") == 0 && !parse_u64(argv[i + 1], &millions)) millions = 0;
    }
    scene.n = millions > 0 ? (size_t)millions * 1000000 : QWEN3_06B;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    scene.threads = cpus > THREADS_MAX ? THREADS_MAX : cpus < 1 ? 1 : (unsigned)cpus;
    struct outer_rule rule = outer_rule_default();
    outer_params_compute(&rule, scene.parts, PARTS, &scene.params, scene.weight);
    outer_merge_init(&scene.g, &scene.params, scene.parts, scene.weight, PARTS);
    os_path(scene.parent, dir, "bench-merge-parent");
    os_path(scene.out, dir, "bench-merge-out");
    os_path(scene.update, dir, "bench-merge-update");
    scene.theta = mem_alloc(scene.n, sizeof(float));
    scene.m = mem_alloc(scene.n, sizeof(float));
    struct tensors table = {0};
    tensors_add(&table, "w", TENSOR_F32, 1, &(uint64_t){scene.n});
    struct checkpoint_head head = {.table = &table, .model_json = "{}", .ledger = "", .version = 1};
    struct prng r;
    prng_seed(&r, 1);
    fill_vectors(&r);
    for (size_t i = 0; i < PARTS; i++) write_part(i, dir, &r);
    write_parent(&head);
    double coded = (double)codec_bytes(CODEC_INT4, scene.n) * PARTS, n = (double)scene.n;
    double rate, ratio = bench_memory((16 * n + coded) / 1e9, &rate), path[PATHS];
    bench_paths(path);
    mem_free(scene.theta);
    mem_free(scene.m);
    for (size_t i = 0; i < PARTS; i++) mem_free(scene.coded[i]);
    scene.theta = scene.m = NULL;
    memset(scene.coded, 0, sizeof scene.coded);
    double plain = run_plain();
    struct merged one = run_files(1, &head), all = run_files(scene.threads, &head);
    bool equal = hash_equal(&one.file, &all.file);
    double peak = one.peak_mb > all.peak_mb ? one.peak_mb : all.peak_mb;
    printf("files   plain %6.2f s   merge, 1 thread %6.2f s   %u threads %6.2f s   peak %.0f MB\n",
           plain, one.seconds, scene.threads, all.seconds, peak);
    clean();
    tensors_fini(&table);
    outer_merge_fini(&scene.g);
    int broken = (ratio < 0.7) + (peak >= 512) + !equal;
    if (ratio < 0.7) printf("broken: %.1f %% of the stream rate, promised 70 %%\n", 100 * ratio);
    if (peak >= 512) printf("broken: a peak of %.0f MB, promised 512 MB\n", peak);
    if (!equal) printf("broken: the number of threads shows in the result\n");
    printf(
        "bench=merge parameters=%zu threads=%u memory_gbps=%.2f memory_ratio=%.3f radial_ns=%.2f "
        "products_ns=%.2f ema_ns=%.2f down_ns=%.2f files_s=%.2f plain_s=%.2f peak_mb=%.0f equal=%d "
        "broken=%d\n",
        scene.n, scene.threads, rate, ratio, path[PATH_RADIAL], path[PATH_MEASURE], path[PATH_EMA],
        path[PATH_DOWN], all.seconds, plain, peak, equal, broken);
    return broken > 0;
}
