/* SPDX-License-Identifier: Apache-2.0 */
/* bench_outer.c - codecs, the outer step, the merge of files and the journal, beside what the
 * machine gives: memcpy, SHA-256 and plain file writes in the same process.
 *   make && gcc -O2 -std=c17 -D_GNU_SOURCE -Isrc -pthread bench/bench_outer.c \
 *     $(find build/release/obj/src/{base,outer,store} -name '*.o') build/release/obj/src/hub/merge_os.o \
 *     $(pkg-config --libs sqlite3 jansson nettle libfyaml libpcre2-8) -lm -o build/bench_outer
 *   build/bench_outer DIR [millions of parameters, default 32]
 * GB are 10^9 bytes; a codec's rate counts the f32 side. Each figure is the best of several runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum { PARTS = 3, RUNS = 5 };

static double seconds(time_ns from) {
    return (double)(os_now() - from) / NS_PER_S;
}

static void report(const char *what, double gigabytes, double best) {
    printf("%-34s %8.2f GB/s  %8.3f s\n", what, gigabytes / best, best);
}

#define BEST(what, gigabytes, code)                                                                \
    do {                                                                                           \
        double best = 1e9;                                                                         \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                  \
            time_ns from_ = os_now();                                                              \
            code;                                                                                  \
            double took_ = seconds(from_);                                                         \
            best = took_ < best ? took_ : best;                                                    \
        }                                                                                          \
        report(what, gigabytes, best);                                                             \
    } while (0)

static void must(enum brg_status s, const struct err *e) {
    if (s == BRG_OK) return;
    fprintf(stderr, "%s: %s\n", status_name(s), e->text);
    exit(1);
}

static void bench_codecs(const float *x, float *y, uint8_t *bytes, size_t n) {
    static const enum codec all[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_TOPK};
    struct err e = {0};
    double gb = (double)n * 4 / 1e9;
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        char name[64];
        snprintf(name, sizeof name, "encode %s", codec_name(all[c]));
        BEST(name, gb, {
            for (size_t at = 0; at < n; at += OUTER_CHUNK) {
                must(codec_encode(all[c], x + at, OUTER_CHUNK, bytes + codec_bytes(all[c], at)),
                     &e);
            }
        });
        snprintf(name, sizeof name, "decode %s", codec_name(all[c]));
        BEST(name, gb, {
            for (size_t at = 0; at < n; at += OUTER_CHUNK) {
                must(codec_decode(all[c], bytes + codec_bytes(all[c], at), OUTER_CHUNK, y + at),
                     &e);
            }
        });
    }
}

static struct scene {
    struct outer_part parts[PARTS];
    double weight[PARTS];
    struct outer_params params;
} scene = {.parts = {{1, 1000, 30, false}, {2, 1000, 30, false}, {3, 1000, 30, false}}};

static void bench_step(float *theta, float *m, float *const *d, size_t n) {
    /* theta and m are read and written, each delta is read. */
    double gb = (double)n * 4 * (4 + PARTS) / 1e9;
    struct outer_merge g;
    outer_merge_init(&g, &scene.params, scene.parts, scene.weight, PARTS);
    BEST("outer step in memory, 3 deltas", gb, {
        for (size_t at = 0; at < n; at += OUTER_CHUNK) {
            const float *delta[PARTS];
            for (size_t i = 0; i < PARTS; i++) delta[i] = d[i] + at;
            outer_merge_chunk(&g, theta + at, m + at, delta, OUTER_CHUNK);
        }
    });
    outer_merge_fini(&g);
}

static void write_inputs(const char *dir, struct merge_job *job, struct merge_part *parts,
                         float *theta, float *m, float *const *d, uint8_t *bytes, size_t n) {
    struct err e = {0};
    struct checkpoint_writer *w;
    struct hash h;
    uint64_t size;
    must(checkpoint_writer_open(job->parent_path, &job->head, &w, &e), &e);
    must(checkpoint_write_theta(w, theta, n, &e), &e);
    must(checkpoint_write_m(w, m, n, &e), &e);
    must(checkpoint_writer_finish(w, &h, &size, &h, &e), &e);
    for (size_t i = 0; i < PARTS; i++) {
        struct delta_header head = {
            .codec = CODEC_INT8, .elements = n, .tokens = 1000, .steps = 30};
        size_t count = DELTA_HEADER_BYTES + (size_t)codec_bytes(CODEC_INT8, n);
        delta_header_encode(&head, bytes);
        must(codec_encode(CODEC_INT8, d[i], n, bytes + DELTA_HEADER_BYTES), &e);
        os_path(parts[i].path, dir, "bench-delta-%zu", i);
        must(os_write_file_atomic(parts[i].path, bytes, count, &e), &e);
        parts[i].part = scene.parts[i];
        parts[i].blob = hash_of(bytes, count);
    }
}

static void bench_files(const char *dir, float *theta, float *m, float *const *d, uint8_t *bytes,
                        size_t n) {
    static struct merge_part parts[PARTS];
    char parent[OS_PATH_MAX], out[OS_PATH_MAX], name[64];
    struct tensors table = {0};
    struct err e = {0};
    tensors_add(&table, "w", TENSOR_F32, 1, &(uint64_t){n});
    os_path(parent, dir, "bench-parent");
    os_path(out, dir, "bench-out");
    struct merge_job job = {.parent_path = parent,
                            .out_path = out,
                            .params = scene.params,
                            .weight = scene.weight,
                            .parts = parts,
                            .parts_count = PARTS};
    job.head =
        (struct checkpoint_head){.table = &table, .model_json = "{}", .ledger = "", .version = 1};
    write_inputs(dir, &job, parts, theta, m, d, bytes, n);
    double gb = (double)n * (16 + PARTS * 1.03125) / 1e9; /* read 8 + deltas, write 8 */
    BEST("write and fsync 8 bytes a parameter", (double)n * 8 / 1e9, {
        FILE *f = fopen(out, "w");
        CHECK(fwrite(theta, 4, n, f) == n);
        CHECK(fwrite(m, 4, n, f) == n);
        CHECK(fflush(f) == 0);
        CHECK(fsync(fileno(f)) == 0);
        fclose(f);
    });
    for (job.threads = 1; job.threads <= 2; job.threads++) {
        struct hash h;
        uint64_t size;
        int bad;
        snprintf(name, sizeof name, "merge of files, 3 x int8, %u thread(s)", job.threads);
        BEST(name, gb, must(merge_run(&job, &h, &size, &h, &bad, &e), &e));
    }
    struct delta_header header;
    struct delta_stats stats;
    BEST("inspect an int8 delta", (double)n * 1.03125 / 1e9,
         must(merge_inspect(parts[0].path, &parts[0].blob, n, parent, &header, &stats, &e), &e));
    for (size_t i = 0; i < PARTS; i++) (void)unlink(parts[i].path);
    (void)unlink(parent);
    (void)unlink(out);
    tensors_fini(&table);
}

static enum brg_status visit(void *user, const struct record *r, struct err *e) {
    (void)e;
    *(uint64_t *)user += r->bytes;
    return BRG_OK;
}

static void bench_journal(const char *dir) {
    char path[OS_PATH_MAX], extra[OS_PATH_MAX];
    struct journal *j;
    struct err e = {0};
    static uint8_t body[200];
    os_path(path, dir, "bench-%d.db", (int)getpid());
    must(journal_open(path, true, &j, &e), &e);
    static const size_t batches[] = {1, 16, 256};
    for (size_t b = 0; b < ARRAY_COUNT(batches); b++) {
        static struct record r[256];
        time_ns from = os_now();
        uint64_t commits = 0;
        while (seconds(from) < 2) {
            for (size_t i = 0; i < batches[b]; i++) {
                r[i] = (struct record){journal_last_seq(j) + 1 + i, 1, body, sizeof body};
            }
            must(journal_append(j, r, batches[b], &e), &e);
            commits++;
        }
        double took = seconds(from);
        printf("journal, %3zu records a commit        %8.0f commits/s %9.0f records/s\n",
               batches[b], (double)commits / took, (double)(commits * batches[b]) / took);
    }
    uint64_t total = 0, records = journal_last_seq(j);
    time_ns from = os_now();
    must(journal_replay(j, 0, visit, &total, &e), &e);
    printf("journal replay                       %8.0f records/s\n",
           (double)records / seconds(from));
    journal_close(j);
    static const char *const ends[] = {"", "-wal", "-shm", ".lock"};
    for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
        os_path(extra, dir, "bench-%d.db%s", (int)getpid(), ends[i]);
        (void)unlink(extra);
    }
}

int main(int argc, char **argv) {
    uint64_t millions = 32;
    if (argc < 2 || (argc > 2 && !parse_u64(argv[2], &millions))) {
        fprintf(stderr, "usage: bench_outer DIR [MILLIONS]\n");
        return BRG_E_USAGE;
    }
    size_t n = (size_t)millions * 1000000 / OUTER_CHUNK * OUTER_CHUNK;
    float *theta = mem_alloc(n, 4), *m = mem_alloc(n, 4), *d[PARTS];
    uint8_t *bytes = mem_alloc(n + DELTA_HEADER_BYTES / 4, 4);
    struct prng r;
    prng_seed(&r, 1);
    for (size_t i = 0; i < PARTS; i++) d[i] = mem_alloc(n, 4);
    for (size_t k = 0; k < n; k++) {
        theta[k] = (float)prng_unit(&r);
        for (size_t i = 0; i < PARTS; i++) d[i][k] = (float)(0.01 * prng_unit(&r));
    }
    struct outer_rule rule = outer_rule_default();
    outer_params_compute(&rule, scene.parts, PARTS, &scene.params, scene.weight);
    BEST("memcpy (read + write)", (double)n * 8 / 1e9, memcpy(m, theta, n * 4));
    BEST("sha256", (double)n * 4 / 1e9, {
        volatile struct hash h = hash_of(theta, n * 4);
        (void)h;
    });
    memset(m, 0, n * 4);
    bench_codecs(d[0], m, bytes, n);
    memset(m, 0, n * 4);
    bench_step(theta, m, d, n);
    bench_files(argv[1], theta, m, d, bytes, n);
    bench_journal(argv[1]);
    return 0;
}
