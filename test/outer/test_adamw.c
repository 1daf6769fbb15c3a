/* SPDX-License-Identifier: Apache-2.0 */
/* A synchronous round's arithmetic alone: whose mean it is, which step of the moments, and that no cut of the vector
 * shows in the bits. test/train/adamw.c has it against the trainer's own step. */
#include "../harness.h"

#include <math.h>
#include <string.h>

#include "outer/outer.h"

enum { P = 2 * OUTER_CHUNK + 777, SITES = 3 };

static const struct outer_inner inner = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};

static float gradient[SITES][P];
static double weight[SITES];
static struct outer_adamw adamw;

static void draw(uint64_t seed, const struct outer_part *parts) {
    struct outer_rule rule = outer_rule_default();
    struct outer_past past = {.adamw = 4};
    struct outer_round round;
    struct prng r;
    prng_seed(&r, seed);
    for (size_t i = 0; i < SITES; i++)
        for (size_t k = 0; k < P; k++) gradient[i][k] = (float)prng_normal(&r);
    outer_adamw_compute(&rule, &past, &inner, 1e-3, parts, SITES, &round, &adamw, weight);
    assert_int_equal(adamw.step, 5);
}

static const struct outer_part parts[SITES] = {
    {1, 6400, 1, false}, {2, 3200, 1, false}, {5, 100, 1, false}};

/* theta, m and v after one step, in pieces of this size. */
static void whole_step(size_t piece, float *theta, float *m, float *v) {
    const float *g[SITES];
    AUTO_FREE float *mean = mem_alloc(P, sizeof *mean);
    double sum2 = 0;
    for (size_t at = 0; at < P; at += piece) {
        size_t n = P - at < piece ? P - at : piece;
        for (size_t i = 0; i < SITES; i++) g[i] = gradient[i] + at;
        sum2 = outer_adamw_mean(weight, SITES, g, n, mean + at, sum2);
    }
    double clip = outer_adamw_clip(&adamw, sum2);
    assert_true(clip < 1);
    for (size_t at = 0; at < P; at += piece) {
        size_t n = P - at < piece ? P - at : piece;
        outer_adamw_chunk(&adamw, clip, true, theta + at, m + at, v + at, mean + at, n);
    }
}

TEST(outer_O5_no_cut_of_the_vector_shows_in_a_synchronous_step) {
    static float x[2][3][P];
    static const size_t pieces[] = {1, 77, OUTER_CHUNK, OUTER_CHUNK + 13};
    struct prng r;
    prng_seed(&r, 9);
    draw(3, parts);
    float *first = mem_alloc(3 * P, sizeof *first);
    for (size_t k = 0; k < P; k++) {
        first[k] = (float)prng_normal(&r);
        first[P + k] = (float)(0.1 * prng_normal(&r));
        first[2 * P + k] = (float)(0.1 * prng_unit(&r));
    }
    memcpy(x[0], first, sizeof x[0]);
    whole_step(P, x[0][0], x[0][1], x[0][2]);
    assert_memory_not_equal(x[0], first, sizeof x[0]);
    for (size_t i = 0; i < ARRAY_COUNT(pieces); i++) {
        memcpy(x[1], first, sizeof x[1]);
        whole_step(pieces[i], x[1][0], x[1][1], x[1][2]);
        assert_memory_equal(x[0], x[1], sizeof x[0]);
    }
    mem_free(first);
}

/* What a central run with all samples in one batch has: each sample weighs the same, whoever trained it. */
TEST(outer_a_synchronous_mean_weighs_by_samples) {
    static float mean[P];
    const float *g[SITES] = {gradient[0], gradient[1], gradient[2]};
    double sum2 = 0;
    draw(4, parts);
    sum2 = outer_adamw_mean(weight, SITES, g, P, mean, 0);
    double want2 = 0;
    for (size_t k = 0; k < P; k++) {
        double want = (6400 * (double)gradient[0][k] + 3200 * (double)gradient[1][k] +
                       100 * (double)gradient[2][k]) /
                      9700;
        assert_true(fabs((double)mean[k] - want) <= 0x1p-23 * fmax(fabs(want), 1));
        want2 += (double)mean[k] * (double)mean[k];
    }
    assert_true(sum2 == want2);
    struct outer_adamw free_of_it = adamw;
    free_of_it.clip = 0;
    assert_true(outer_adamw_clip(&free_of_it, sum2) == 1);
    assert_true(fabs(outer_adamw_clip(&adamw, sum2) - 1 / (sqrt(want2) + 1e-6)) < 1e-12);
}

TEST(outer_the_moments_begin_with_step_1_and_skips_leave_them) {
    struct outer_rule rule = outer_rule_default();
    struct outer_round round;
    struct outer_adamw a;
    double w[SITES];
    struct outer_past past = {0};
    outer_adamw_compute(&rule, &past, &inner, 1e-3, parts, SITES, &round, &a, w);
    assert_int_equal(a.step, 1);
    assert_true(fabs(a.bias1 - 10) < 1e-12);
    assert_true(fabs(w[0] + w[1] + w[2] - 1) < 1e-15);
    assert_true(round.params.sbar == 1);
    past = (struct outer_past){.adamw = 7, .restart = true};
    outer_adamw_compute(&rule, &past, &inner, 1e-3, parts, SITES, &round, &a, w);
    assert_int_equal(a.step, 1);
    const struct outer_part skips[2] = {{1, 0, 0, false}, {2, 0, 0, false}};
    outer_adamw_compute(&rule, &past, &inner, 1e-3, skips, 2, &round, &a, w);
    assert_int_equal(a.step, 0);
    assert_true(w[0] == 0);
    assert_true(round.params.phi == 0);
    rule.sum = true; /* the counting rule has no moments, and counts each sample once */
    outer_adamw_compute(&rule, &past, &inner, 1e-3, parts, SITES, &round, &a, w);
    assert_true(a.counts);
    assert_true(a.lr == 0 && a.bias1 == 0 && a.clip == 0);
    assert_true(round.params.eta_r == 1 && round.params.mu_r == 0);
    for (size_t i = 0; i < SITES; i++) assert_true(w[i] == 1);
}
