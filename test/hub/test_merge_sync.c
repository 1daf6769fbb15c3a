/* SPDX-License-Identifier: Apache-2.0 */
/* The merge worker's synchronous steps, several in a row through files, against the same steps done in memory: theta,
 * both moments, for any number of threads. And a parent that lacks what a step goes on with. */
#include "../harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/merge.h"

enum { MATRIX = 2 * OUTER_CHUNK, P = MATRIX + 4321, SITES = 3, STEPS = 3 };

static float theta[P], m[P], v[P], mean[P], gradient[SITES][P];
static uint8_t file[DELTA_HEADER_BYTES + 4 * P];
static const struct outer_inner inner = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 0.5};

struct scene {
    struct tensors table;
    struct outer_part parts[SITES];
    double weight[SITES];
    struct merge_part merge_parts[SITES];
    struct outer_past past;
    struct merge_job job;
    char parent[OS_PATH_MAX], out[OS_PATH_MAX];
};

static void set_up(struct scene *s) {
    struct prng r;
    struct err e = {0};
    struct hash h;
    uint64_t bytes;
    struct checkpoint_writer *w;
    memset(s, 0, sizeof *s);
    prng_seed(&r, 11);
    for (size_t i = 0; i < P; i++) {
        theta[i] = (float)(0.1 * prng_unit(&r) - 0.05);
        m[i] = (float)prng_unit(&r); /* a momentum: no step may take it for a moment */
        v[i] = 0;
    }
    tensors_add(&s->table, "a", TENSOR_F32, 2, (const uint64_t[]){OUTER_CHUNK, 2});
    tensors_add(&s->table, "b", TENSOR_F32, 1, (const uint64_t[]){P - MATRIX});
    os_path(s->parent, test_dir(), "parent");
    os_path(s->out, test_dir(), "out");
    s->job.head = (struct checkpoint_head){
        .table = &s->table, .model_json = "{}", .ledger = "ledger", .ledger_bytes = 6};
    assert_int_equal(checkpoint_writer_open(s->parent, &s->job.head, &w, &e), BRG_OK);
    assert_int_equal(checkpoint_write_theta(w, theta, P, &e), BRG_OK);
    assert_int_equal(checkpoint_write_m(w, m, P, &e), BRG_OK);
    assert_int_equal(checkpoint_writer_finish(w, &h, &bytes, &h, &e), BRG_OK);
    memset(m, 0, sizeof m);
}

/* Gradients of one round as files, and its scalars in the job. */
static void draw(struct scene *s, uint64_t step) {
    static const uint64_t tokens[SITES] = {640, 320, 64};
    struct outer_rule rule = outer_rule_default();
    struct outer_round round;
    struct err e = {0};
    struct prng r;
    prng_seed(&r, 100 + step);
    for (size_t i = 0; i < SITES; i++) {
        struct delta_header h = {.codec = CODEC_GRADIENT, .elements = P, .tokens = tokens[i]};
        for (size_t k = 0; k < P; k++) gradient[i][k] = (float)(0.01 * prng_normal(&r));
        delta_header_encode(&h, file);
        assert_int_equal(codec_encode(CODEC_GRADIENT, gradient[i], P, file + DELTA_HEADER_BYTES),
                         BRG_OK);
        struct merge_part *p = &s->merge_parts[i];
        os_path(p->path, test_dir(), "gradient-%zu", i);
        assert_int_equal(os_write_file_atomic(p->path, file, sizeof file, &e), BRG_OK);
        s->parts[i] = p->part = (struct outer_part){(uint32_t)i + 1, tokens[i], 1, 0};
        p->blob = hash_of(file, sizeof file);
    }
    outer_adamw_compute(&rule, &s->past, &inner, 1e-3, s->parts, SITES, &round, &s->job.adamw,
                        s->weight);
    assert_int_equal(s->job.adamw.step, step);
    s->job.params = round.params;
    s->job.parent_path = s->parent;
    s->job.out_path = s->out;
    s->job.weight = s->weight;
    s->job.parts = s->merge_parts;
    s->job.parts_count = SITES;
    s->job.head.version = step;
    s->job.head.parent = step - 1;
    s->past.adamw = step;
}

/* The same round with nothing in it. */
static void draw_skips(struct scene *s) {
    struct outer_rule rule = outer_rule_default();
    struct outer_round round;
    outer_adamw_compute(&rule, &s->past, &inner, 1e-3, NULL, 0, &round, &s->job.adamw, s->weight);
    assert_int_equal(s->job.adamw.step, 0);
    s->job.params = round.params;
    s->job.parts_count = 0;
}

static void in_memory(const struct scene *s) {
    const float *g[SITES] = {gradient[0], gradient[1], gradient[2]};
    const struct outer_adamw *a = &s->job.adamw;
    double clip = outer_adamw_clip(a, outer_adamw_mean(s->weight, SITES, g, P, mean, 0));
    assert_true(clip < 1);
    outer_adamw_chunk(a, clip, true, theta, m, v, mean, MATRIX);
    outer_adamw_chunk(a, clip, false, theta + MATRIX, m + MATRIX, v + MATRIX, mean + MATRIX,
                      P - MATRIX);
}

static void compare(const struct scene *s, const struct hash *theta_hash) {
    static float got[P];
    struct checkpoint c = {0};
    struct err e = {0};
    if (checkpoint_open(s->out, &c, &e) != BRG_OK) fail_msg("%s", e.text);
    assert_int_equal(c.elements, P);
    AUTO_CLOSE int fd = open(s->out, O_RDONLY | O_CLOEXEC);
    const struct {
        uint64_t at;
        const float *want;
    } all[] = {{c.theta_offset, theta}, {c.m_offset, m}, {c.v_offset, v}};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) {
        assert_true(all[i].at > 0);
        assert_int_equal(os_pread_all(fd, got, sizeof got, all[i].at, "out", &e), BRG_OK);
        assert_memory_equal(got, all[i].want, sizeof got);
    }
    struct hash want = hash_of(theta, sizeof theta);
    assert_true(hash_equal(&want, theta_hash));
    checkpoint_fini(&c);
}

TEST(merge_M2_synchronous_steps_equal_those_in_memory_for_any_threads) {
    static struct scene s;
    set_up(&s);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct hash first = {0};
        draw(&s, step);
        in_memory(&s);
        for (unsigned threads = 0; threads <= 3; threads++) {
            struct hash out_file = {0}, out_theta = {0};
            struct err e = {0};
            uint64_t bytes = 0;
            int bad = 99;
            s.job.threads = threads;
            if (merge_run(&s.job, &out_file, &bytes, &out_theta, &bad, &e) != BRG_OK)
                fail_msg("%s", e.text);
            assert_int_equal(bad, -1);
            compare(&s, &out_theta);
            if (threads == 0) first = out_file;
            assert_true(hash_equal(&first, &out_file));
        }
        assert_int_equal(rename(s.out, s.parent), 0);
    }
    tensors_fini(&s.table);
}

/* Where every sample of a round was skipped nothing moves, and the next step goes on with both moments. */
TEST(merge_a_version_of_skips_alone_keeps_both_moments) {
    static struct scene s;
    set_up(&s);
    for (uint64_t step = 1; step <= 2; step++) {
        struct hash out_file, out_theta;
        struct err e = {0};
        uint64_t bytes;
        int bad;
        draw(&s, step);
        in_memory(&s);
        for (int skips = 0; skips < 2; skips++) {
            if (skips) draw_skips(&s);
            s.job.head.version = 2 * step - 1 + (uint64_t)skips;
            s.job.head.parent = s.job.head.version - 1;
            if (merge_run(&s.job, &out_file, &bytes, &out_theta, &bad, &e) != BRG_OK)
                fail_msg("%s", e.text);
            compare(&s, &out_theta);
            assert_int_equal(rename(s.out, s.parent), 0);
        }
    }
    tensors_fini(&s.table);
}

TEST(merge_a_step_without_the_moments_that_it_goes_on_with_is_refused) {
    static struct scene s;
    struct hash a, b;
    struct err e = {0};
    uint64_t bytes;
    int bad = 99;
    set_up(&s);
    s.past.adamw = 6;
    draw(&s, 7);
    assert_int_equal(merge_run(&s.job, &a, &bytes, &b, &bad, &e), BRG_E_CHECKPOINT);
    assert_int_equal(bad, -1);
    assert_non_null(strstr(e.text, "outer.v"));
    assert_false(os_exists(s.out));
    tensors_fini(&s.table);
}

TEST(merge_M1_a_damaged_gradient_is_named) {
    static struct scene s;
    struct err e = {0};
    set_up(&s);
    draw(&s, 1);
    for (size_t i = 0; i < SITES; i++) {
        struct hash a, b;
        uint64_t bytes;
        int bad = 99;
        struct buf x = {.bytes_max = sizeof file};
        assert_int_equal(os_read_file(s.merge_parts[i].path, sizeof file, &x, &e), BRG_OK);
        x.data[DELTA_HEADER_BYTES + 4 * 1000 + 1] ^= 1; /* another finite number */
        assert_int_equal(os_write_file_atomic(s.merge_parts[i].path, x.data, x.bytes_count, &e),
                         BRG_OK);
        assert_int_equal(merge_run(&s.job, &a, &bytes, &b, &bad, &e), BRG_E_CORRUPT);
        assert_int_equal(bad, (int)i);
        assert_false(os_exists(s.out));
        x.data[DELTA_HEADER_BYTES + 4 * 1000 + 1] ^= 1;
        assert_int_equal(os_write_file_atomic(s.merge_parts[i].path, x.data, x.bytes_count, &e),
                         BRG_OK);
        buf_fini(&x);
    }
    tensors_fini(&s.table);
}
