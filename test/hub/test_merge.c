/* SPDX-License-Identifier: Apache-2.0 */
/* The merge worker against the same step done in memory, and against files that are damaged. */
#include "../harness.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum { P = 3 * OUTER_CHUNK + 12345, PARTS = 5 };

static float theta[P], m[P], want_theta[P], want_m[P], delta[PARTS][P];
static uint8_t file[DELTA_HEADER_BYTES + 4 * P];

struct scene {
    struct tensors table;
    struct outer_part parts[PARTS];
    double weight[PARTS];
    struct merge_part merge_parts[PARTS];
    char parent[OS_PATH_MAX], out[OS_PATH_MAX];
    struct merge_job job;
};

static void write_parent(const char *path, const struct checkpoint_head *head) {
    struct checkpoint_writer *w;
    struct err e = {0};
    struct hash h;
    uint64_t bytes;
    if (checkpoint_writer_open(path, head, &w, &e) != BRG_OK) fail_msg("%s", e.text);
    assert_int_equal(checkpoint_write_theta(w, theta, P, &e), BRG_OK);
    assert_int_equal(checkpoint_write_m(w, m, P, &e), BRG_OK);
    assert_int_equal(checkpoint_writer_finish(w, &h, &bytes, &h, &e), BRG_OK);
}

/* Codes delta i into a file and decodes it again, since that is what the merge will see. */
static void write_delta(struct scene *s, size_t i, enum codec c) {
    struct delta_header h = {.codec = c,
                             .elements = P,
                             .base_version = 7,
                             .tokens = s->parts[i].tokens,
                             .steps = s->parts[i].steps};
    struct err e = {0};
    size_t bytes = DELTA_HEADER_BYTES + (size_t)codec_bytes(c, P);
    delta_header_encode(&h, file);
    assert_int_equal(codec_encode(c, delta[i], P, file + DELTA_HEADER_BYTES), BRG_OK);
    assert_int_equal(codec_decode(c, file + DELTA_HEADER_BYTES, P, delta[i]), BRG_OK);
    struct merge_part *p = &s->merge_parts[i];
    os_path(p->path, test_dir(), "delta-%zu", i);
    assert_int_equal(os_write_file_atomic(p->path, file, bytes, &e), BRG_OK);
    p->part = s->parts[i];
    p->blob = hash_of(file, bytes);
}

static void set_up(struct scene *s, size_t count) {
    static const struct outer_part parts[PARTS] = {{1, 6000, 30, false},
                                                   {2, 3000, 15, false},
                                                   {2, 1000, 5, false},
                                                   {5, 4000, 30, true},
                                                   {9, 2500, 31, false}};
    static const enum codec codecs[PARTS] = {CODEC_INT8, CODEC_INT4, CODEC_FP32, CODEC_TOPK,
                                             CODEC_BF16};
    struct prng r;
    prng_seed(&r, 50 + count);
    memset(s, 0, sizeof *s);
    memcpy(s->parts, parts, sizeof parts);
    for (size_t i = 0; i < P; i++) {
        theta[i] = want_theta[i] = (float)(0.1 * prng_unit(&r) - 0.05);
        m[i] = want_m[i] = (float)(0.01 * prng_unit(&r) - 0.005);
    }
    tensors_add(&s->table, "a", TENSOR_F32, 2, (const uint64_t[]){OUTER_CHUNK, 3});
    tensors_add(&s->table, "b", TENSOR_F32, 1, (const uint64_t[]){12345});
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < P; k++) delta[i][k] = (float)(0.002 * prng_unit(&r) - 0.001);
        write_delta(s, i, codecs[i]);
    }
    struct outer_rule rule = outer_rule_default();
    os_path(s->parent, test_dir(), "parent");
    os_path(s->out, test_dir(), "out");
    s->job = (struct merge_job){.parent_path = s->parent,
                                .out_path = s->out,
                                .weight = s->weight,
                                .parts = s->merge_parts,
                                .parts_count = count,
                                .threads = 1};
    s->job.head = (struct checkpoint_head){.table = &s->table,
                                           .model_json = "{}",
                                           .version = 8,
                                           .parent = 7,
                                           .tokens = 12500,
                                           .ledger = "new",
                                           .ledger_bytes = 3};
    outer_params_compute(&rule, s->parts, count, &s->job.params, s->weight);
    struct checkpoint_head head = s->job.head;
    head.version = 7;
    head.ledger = "older";
    head.ledger_bytes = 5;
    write_parent(s->parent, &head);
}

static void reference(const struct scene *s) {
    struct outer_merge g;
    outer_merge_init(&g, &s->job.params, s->parts, s->weight, s->job.parts_count);
    for (size_t at = 0; at < P; at += OUTER_CHUNK) {
        const float *d[PARTS];
        for (size_t i = 0; i < PARTS; i++) d[i] = delta[i] + at;
        outer_merge_chunk(&g, want_theta + at, want_m + at, d,
                          P - at < OUTER_CHUNK ? P - at : OUTER_CHUNK);
    }
    outer_merge_fini(&g);
}

static void check_file(const struct scene *s, const struct hash *theta_hash) {
    struct checkpoint c = {0};
    struct err e = {0};
    static float got[P];
    if (checkpoint_open(s->out, &c, &e) != BRG_OK) fail_msg("%s", e.text);
    AUTO_CLOSE int fd = open(s->out, O_RDONLY | O_CLOEXEC);
    assert_int_equal(c.elements, P);
    assert_int_equal(c.version, 8);
    assert_int_equal(c.ledger_bytes, 3);
    assert_int_equal(os_pread_all(fd, got, sizeof got, c.theta_offset, "out", &e), BRG_OK);
    assert_memory_equal(got, want_theta, sizeof got);
    struct hash want = hash_of(want_theta, sizeof want_theta);
    assert_true(hash_equal(&want, theta_hash));
    assert_true(hash_equal(&want, &c.theta_hash));
    assert_int_equal(os_pread_all(fd, got, sizeof got, c.m_offset, "out", &e), BRG_OK);
    assert_memory_equal(got, want_m, sizeof got);
    checkpoint_fini(&c);
}

TEST(merge_M2_equals_the_step_in_memory_for_any_threads) {
    static struct scene s;
    for (size_t count = 0; count <= PARTS; count++) {
        set_up(&s, count);
        reference(&s);
        struct hash first = {0};
        for (unsigned threads = 0; threads <= 3; threads++) {
            struct hash out_file = {0}, out_theta = {0};
            uint64_t bytes = 0;
            int bad = 99;
            struct err e = {0};
            s.job.threads = threads;
            if (merge_run(&s.job, &out_file, &bytes, &out_theta, &bad, &e) != BRG_OK)
                fail_msg("%s", e.text);
            assert_int_equal(bad, -1);
            assert_int_equal(bytes, os_file_bytes(s.out));
            check_file(&s, &out_theta);
            if (threads == 0) first = out_file;
            assert_true(hash_equal(&first, &out_file));
        }
        tensors_fini(&s.table);
    }
}

static void flip(const char *path, int64_t at) {
    int64_t bytes = os_file_bytes(path);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    if (at < 0) at += bytes;
    fseek(f, (long)at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void expect_bad(const struct scene *s, enum brg_status want, int want_bad) {
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct hash a = {{1}}, b = {{2}};
        uint64_t bytes = 3;
        int bad = 99;
        struct err e = {0};
        struct merge_job job = s->job;
        job.threads = threads;
        enum brg_status got = merge_run(&job, &a, &bytes, &b, &bad, &e);
        if (got != want || bad != want_bad)
            fail_msg("%s, part %d: %s", status_name(got), bad, e.text);
        assert_true(strlen(e.text) > 0);
        assert_int_equal(a.v[0], 1); /* outputs untouched, and no file is left */
        assert_int_equal(bytes, 3);
        assert_false(os_exists(s->out));
    }
}

TEST(merge_M1_a_damaged_part_is_named) {
    static struct scene s;
    set_up(&s, PARTS);
    for (size_t i = 0; i < PARTS; i++) {
        char *path = s.merge_parts[i].path;
        flip(path, -7); /* decodes to another finite number: only the hash can tell */
        expect_bad(&s, BRG_E_CORRUPT, (int)i);
        flip(path, -7);
        flip(path, 3); /* the header */
        expect_bad(&s, BRG_E_MESSAGE, (int)i);
        flip(path, 3);
        assert_int_equal(truncate(path, os_file_bytes(path) - 1), 0);
        expect_bad(&s, BRG_E_MESSAGE, (int)i);
        assert_int_equal(truncate(path, 20), 0);
        expect_bad(&s, BRG_E_MESSAGE, (int)i);
        assert_int_equal(unlink(path), 0);
        expect_bad(&s, BRG_E_MISSING, (int)i);
        write_delta(&s, i, CODEC_FP32);
        put_le32(file + DELTA_HEADER_BYTES + 4 * (P - 10), 0x7fc00000); /* NaN in the last chunk */
        struct err e;
        assert_int_equal(os_write_file_atomic(path, file, DELTA_HEADER_BYTES + 4 * (size_t)P, &e),
                         BRG_OK);
        expect_bad(&s, BRG_E_CORRUPT, (int)i);
        write_delta(&s, i, CODEC_FP32);
    }
    tensors_fini(&s.table);
}

TEST(merge_M1_a_damaged_parent_is_not_built_upon) {
    static struct scene s;
    set_up(&s, 2);
    flip(s.parent, 4096);
    expect_bad(&s, BRG_E_CORRUPT, -1);
    flip(s.parent, 4096);
    assert_int_equal(truncate(s.parent, os_file_bytes(s.parent) - 1), 0);
    expect_bad(&s, BRG_E_CHECKPOINT, -1);
    tensors_fini(&s.table);
    set_up(&s, 1);
    tensors_fini(&s.table);
    tensors_add(&s.table, "a", TENSOR_F32, 1, (const uint64_t[]){5}); /* another model */
    expect_bad(&s, BRG_E_CHECKPOINT, -1);
    tensors_fini(&s.table);
}

/* 300 parts: the pieces shrink so that their sum stays within the bound, and the result is the
 * same. */
TEST(merge_M3_many_parts_shrink_the_pieces) {
    enum { MANY = 300 };
    static struct scene s;
    set_up(&s, 1);
    struct merge_part *parts = mem_alloc(MANY, sizeof *parts);
    double *weight = mem_alloc(MANY, sizeof *weight);
    struct outer_part *plain = mem_alloc(MANY, sizeof *plain);
    for (size_t i = 0; i < MANY; i++) {
        parts[i] = s.merge_parts[0];
        parts[i].part.site = (uint32_t)i;
        plain[i] = parts[i].part;
    }
    struct outer_rule rule = outer_rule_default();
    outer_params_compute(&rule, plain, MANY, &s.job.params, weight);
    s.job.parts = parts;
    s.job.weight = weight;
    s.job.parts_count = MANY;
    struct outer_merge g;
    outer_merge_init(&g, &s.job.params, plain, weight, MANY);
    for (size_t at = 0; at < P; at += 4096) {
        const float *d[MANY];
        for (size_t i = 0; i < MANY; i++) d[i] = delta[0] + at;
        outer_merge_chunk(&g, want_theta + at, want_m + at, d, P - at < 4096 ? P - at : 4096);
    }
    outer_merge_fini(&g);
    struct hash out_file, out_theta;
    uint64_t bytes;
    int bad;
    struct err e = {0};
    if (merge_run(&s.job, &out_file, &bytes, &out_theta, &bad, &e) != BRG_OK)
        fail_msg("%s", e.text);
    check_file(&s, &out_theta);
    mem_free(parts);
    mem_free(weight);
    mem_free(plain);
    tensors_fini(&s.table);
}

TEST(merge_inspect_gives_header_and_figures) {
    static struct scene s;
    set_up(&s, PARTS);
    for (size_t i = 0; i < PARTS; i++) {
        struct delta_header h;
        struct delta_stats stats = {0};
        struct err e = {0};
        const struct merge_part *p = &s.merge_parts[i];
        enum brg_status got = merge_inspect(p->path, &p->blob, P, s.parent, &h, &stats, &e);
        if (got != BRG_OK) fail_msg("%s", e.text);
        double norm2 = 0, dot = 0, max = 0;
        for (size_t k = 0; k < P; k++) {
            norm2 += (double)delta[i][k] * (double)delta[i][k];
            dot += (double)delta[i][k] * (double)m[k];
            max = fmax(max, fabs((double)delta[i][k]));
        }
        assert_int_equal(h.tokens, s.parts[i].tokens);
        assert_int_equal(stats.count, P);
        assert_true(fabs(stats.norm2 - norm2) < 1e-9 * norm2);
        assert_true(fabs(stats.dot_m - dot) < 1e-9);
        assert_true(stats.max_abs == max);
        assert_int_equal(merge_inspect(p->path, NULL, P, NULL, &h, &stats, &e), BRG_OK);
        assert_true(stats.m_norm2 == 0);
    }
    tensors_fini(&s.table);
}

TEST(merge_inspect_tells_a_wrong_file_from_a_wrong_number) {
    static struct scene s;
    set_up(&s, 1);
    struct delta_header h = {.elements = 77};
    struct delta_stats stats = {0};
    struct err e = {0};
    struct merge_part *p = &s.merge_parts[0];
    assert_int_equal(merge_inspect(p->path, &p->blob, P + 1, NULL, &h, &stats, &e), BRG_E_MESSAGE);
    flip(p->path, -1);
    assert_int_equal(merge_inspect(p->path, &p->blob, P, NULL, &h, &stats, &e), BRG_E_CORRUPT);
    assert_int_equal(merge_inspect("/nonexistent/d", NULL, P, NULL, &h, &stats, &e), BRG_E_MISSING);
    /* A NaN that the site sent, with the right hash; then the same with another hash. */
    put_le32(file + DELTA_HEADER_BYTES, 0x7fc00000); /* the first scale */
    size_t bytes = DELTA_HEADER_BYTES + (size_t)codec_bytes(CODEC_INT8, P);
    struct hash right = hash_of(file, bytes), wrong = right;
    wrong.v[0] ^= 1;
    assert_int_equal(os_write_file_atomic(p->path, file, bytes, &e), BRG_OK);
    assert_int_equal(merge_inspect(p->path, &right, P, NULL, &h, &stats, &e), BRG_E_NONFINITE);
    assert_int_equal(e.status, BRG_E_NONFINITE);
    assert_non_null(strstr(e.text, "not finite"));
    assert_int_equal(merge_inspect(p->path, &wrong, P, NULL, &h, &stats, &e), BRG_E_CORRUPT);
    assert_int_equal(h.elements, 77);
    assert_int_equal(stats.count, 0);
    tensors_fini(&s.table);
}

/* ---- Updates --------------------------------------------------------------------------------- */
static void read_all(const char *path, size_t n, uint64_t offset, void *out) {
    struct err e;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(os_pread_all(fd, out, n, offset, path, &e), BRG_OK);
}

static struct hash run_ok(const struct scene *s, struct hash *out_file) {
    struct hash out_theta = {0};
    uint64_t bytes = 0;
    int bad = 99;
    struct err e = {0};
    if (merge_run(&s->job, out_file, &bytes, &out_theta, &bad, &e) != BRG_OK)
        fail_msg("%s", e.text);
    return out_theta;
}

/* theta_v plus the decoded update file is the new theta, bit for bit: what a site does. */
static void check_update(const char *path, enum codec c, float *x, const struct hash *want) {
    static float d[P];
    struct update_header h;
    uint8_t head[UPDATE_HEADER_BYTES];
    size_t n = (size_t)codec_bytes(c, P);
    assert_int_equal(os_file_bytes(path), UPDATE_HEADER_BYTES + n);
    read_all(path, sizeof head, 0, head);
    assert_int_equal(update_header_decode(head, &h, NULL), BRG_OK);
    assert_int_equal(h.codec, c);
    assert_int_equal(h.from, 7);
    assert_int_equal(h.to, 8);
    assert_true(hash_equal(&h.theta_to, want));
    struct hash before = hash_of(x, sizeof d);
    assert_true(hash_equal(&h.theta_from, &before));
    read_all(path, n, UPDATE_HEADER_BYTES, file);
    assert_int_equal(codec_decode(c, file, P, d), BRG_OK);
    update_add(x, d, P);
    struct hash sum = hash_of(x, sizeof d);
    assert_true(hash_equal(&sum, want));
}

/* Two versions on, then back to whole weights: theta ends within a rounding of the plain outer steps' sum, for
 * every codec and any number of threads, since what an update lost was carried on and then paid out. */
TEST(merge_U1_updates_give_the_hubs_own_bits_and_lose_nothing) {
    static struct scene s;
    static float x[P], exact[P], exact_m[P];
    static const enum codec codecs[] = {CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_TOPK};
    char parent[OS_PATH_MAX], update[OS_PATH_MAX];
    os_path(update, test_dir(), "update");
    for (size_t c = 0; c < ARRAY_COUNT(codecs); c++) {
        set_up(&s, 2);
        memcpy(x, theta, sizeof x);
        reference(&s);
        memcpy(exact, want_theta, sizeof exact);
        memcpy(exact_m, want_m, sizeof exact_m);
        s.job.update_path = update;
        for (int round = 0; round < 3; round++) {
            struct hash first = {0}, first_theta = {0};
            s.job.down = round < 2 ? codecs[c] : (enum codec)0;
            for (unsigned threads = 1; threads <= 4; threads++) {
                struct hash out_file = {0};
                s.job.threads = threads;
                struct hash out_theta = run_ok(&s, &out_file);
                if (threads == 1) first = out_file, first_theta = out_theta;
                assert_true(hash_equal(&first, &out_file)); /* M2 */
            }
            if (round < 2) check_update(update, codecs[c], x, &first_theta);
            os_path(parent, test_dir(), "parent-%zu-%d", c, round);
            assert_int_equal(rename(s.out, parent), 0);
            memcpy(s.parent, parent, sizeof s.parent);
            if (round == 2) break;
            /* The plain step from the plain weights, with the same deltas and the same momentum. */
            memcpy(want_theta, exact, sizeof exact);
            memcpy(want_m, exact_m, sizeof exact_m);
            reference(&s);
            memcpy(exact, want_theta, sizeof exact);
            memcpy(exact_m, want_m, sizeof exact_m);
        }
        struct checkpoint k = {0};
        assert_int_equal(checkpoint_open(s.parent, &k, NULL), BRG_OK);
        assert_int_equal(k.e_offset, 0);
        read_all(s.parent, sizeof x, k.theta_offset, x);
        double worst = 0;
        for (size_t i = 0; i < P; i++) worst = fmax(worst, fabs((double)x[i] - (double)exact[i]));
        if (worst >= 4e-5) fail_msg("%s: %g", codec_name(codecs[c]), worst); /* e's bf16: 2^-9 */
        checkpoint_fini(&k);
        tensors_fini(&s.table);
    }
}

/* ---- The mean of the weights, the radial mean, cosines ------------------------------------------------- */
/* What one thread's plain sum in memory gives: the deltas' radial mean over the tensors of the scene. */
static void radial_reference(const struct scene *s) {
    const struct outer_span spans[] = {{3 * OUTER_CHUNK, false}, {P, false}};
    struct outer_radial r;
    struct outer_merge g;
    const float *rows[PARTS];
    for (size_t i = 0; i < PARTS; i++) rows[i] = delta[i];
    assert_true(outer_radial_init(&r, spans, 2, s->parts, s->weight, s->job.parts_count));
    outer_radial_measure(&r, 0, rows, P);
    outer_radial_finish(&r);
    outer_merge_init(&g, &s->job.params, s->parts, s->weight, s->job.parts_count);
    g.radial = &r;
    for (size_t at = 0; at < P; at += OUTER_CHUNK) {
        for (size_t i = 0; i < PARTS; i++) rows[i] = delta[i] + at;
        outer_merge_chunk_at(&g, at, want_theta + at, want_m + at, rows,
                             P - at < OUTER_CHUNK ? P - at : OUTER_CHUNK);
    }
    outer_merge_fini(&g);
    outer_radial_fini(&r);
}

TEST(merge_M2_a_radial_mean_equals_the_one_in_memory_for_any_threads) {
    static struct scene s;
    set_up(&s, PARTS);
    radial_reference(&s);
    struct hash first = {0};
    s.job.radial = true;
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct hash out_file = {0};
        s.job.threads = threads;
        struct hash out_theta = run_ok(&s, &out_file);
        check_file(&s, &out_theta);
        if (threads == 1) first = out_file;
        assert_true(hash_equal(&first, &out_file));
    }
    flip(s.merge_parts[1].path, -7);
    expect_bad(&s, BRG_E_CORRUPT, 1);
    tensors_fini(&s.table);
}

/* Three versions that keep a mean, with and without updates, then one that does not. */
TEST(merge_keeps_a_mean_of_the_weights_until_it_is_told_not_to) {
    static struct scene s;
    static float mean[P], got[P];
    char parent[OS_PATH_MAX];
    set_up(&s, 2);
    memcpy(mean, theta, sizeof mean);
    s.job.threads = 3;
    for (int round = 0; round < 4; round++) {
        struct checkpoint k = {0};
        struct hash out_file = {0};
        s.job.keeps_ema = round < 3;
        s.job.ema = 0.25;
        s.job.down = round == 1 ? CODEC_INT4 : (enum codec)0;
        (void)run_ok(&s, &out_file);
        assert_int_equal(checkpoint_open(s.out, &k, NULL), BRG_OK);
        assert_int_equal(k.ema_offset > 0, round < 3);
        assert_int_equal(k.e_offset > 0, round == 1);
        if (round < 3) {
            read_all(s.out, sizeof got, k.theta_offset, got);
            outer_ema_chunk(mean, got, 0.25, P);
            read_all(s.out, sizeof got, k.ema_offset, got);
            assert_memory_equal(got, mean, sizeof got);
        }
        checkpoint_fini(&k);
        os_path(parent, test_dir(), "mean-%d", round);
        assert_int_equal(rename(s.out, parent), 0);
        memcpy(s.parent, parent, sizeof s.parent);
    }
    tensors_fini(&s.table);
}

TEST(merge_tells_how_the_sites_agree) {
    static struct scene s;
    double gram[PARTS * PARTS] = {0}, cosines[PARTS];
    const float *rows[PARTS];
    set_up(&s, PARTS);
    for (size_t i = 0; i < PARTS; i++) rows[i] = delta[i];
    outer_gram_add(gram, s.parts, PARTS, rows, P);
    double mean = outer_cosines(gram, s.parts, s.weight, PARTS, cosines);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct merge_figures figures = {0};
        struct hash out_file = {0};
        s.job.threads = threads;
        s.job.figures = &figures;
        (void)run_ok(&s, &out_file);
        assert_true(figures.known);
        assert_true(fabs(figures.cos_mean - mean) < 1e-9);
        for (size_t i = 0; i < PARTS; i++)
            assert_true(fabs(figures.cosines[i] - cosines[i]) < 1e-9);
    }
    tensors_fini(&s.table);
    struct merge_figures none = {0}; /* one site alone agrees with nobody */
    struct hash out_file = {0};
    set_up(&s, 1);
    s.job.figures = &none;
    (void)run_ok(&s, &out_file);
    assert_false(none.known);
    tensors_fini(&s.table);
}
