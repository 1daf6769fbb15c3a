/* SPDX-License-Identifier: Apache-2.0 */
/* The algebra of a site's weights: identities that hold whatever the numbers are. */
#include "../harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "site/weights.h"

enum { N = 1000 };

static void fill(struct prng *p, float *x, double scale) {
    for (int i = 0; i < N; i++) x[i] = (float)(scale * prng_normal(p));
}

static double far(const float *a, const float *b) {
    double worst = 0;
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

TEST(site_W3_a_cut_loses_nothing) {
    struct prng p;
    prng_seed(&p, 1);
    static const enum codec codecs[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_TOPK};
    for (size_t c = 0; c < ARRAY_COUNT(codecs); c++) {
        float s[N], before[N], theta[N], d[N], scratch[2 * N];
        uint8_t out[8 * N];
        fill(&p, s, 0.02);
        memcpy(before, s, sizeof s);
        for (int i = 0; i < N; i++) theta[i] = s[i] + (float)(1e-3 * prng_normal(&p));
        assert_int_equal(weights_cut(codecs[c], s, theta, N, out, scratch), BRG_OK);
        assert_int_equal(codec_decode(codecs[c], out, N, d), BRG_OK);
        for (int i = 0; i < N; i++) {
            double all = (double)before[i] - (double)theta[i];
            double parts = (double)d[i] + ((double)s[i] - (double)theta[i]);
            assert_true(fabs(all - parts) < 4e-9); /* an ulp of the weights */
        }
    }
}

/* What int8 drops in one contribution is in a later one: the sum of what was sent follows the sum of
 * what was done, with an error that does not grow. */
TEST(site_W3_the_residual_travels_with_the_next_contribution) {
    struct prng p;
    prng_seed(&p, 2);
    float s[N], theta[N], start[N], d[N], sent[N] = {0}, scratch[2 * N];
    uint8_t out[8 * N];
    fill(&p, theta, 0.02);
    memcpy(s, theta, sizeof s);
    memcpy(start, theta, sizeof s);
    double first = 0, last = 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++) theta[i] += (float)(1e-3 * prng_normal(&p));
        assert_int_equal(weights_cut(CODEC_INT8, s, theta, N, out, scratch), BRG_OK);
        assert_int_equal(codec_decode(CODEC_INT8, out, N, d), BRG_OK);
        weights_add(sent, d, N);
        float at[N];
        for (int i = 0; i < N; i++) at[i] = start[i] - sent[i];
        last = far(at, theta);
        if (round == 0) first = last;
    }
    assert_true(last < 4 * first + 1e-6);
}

TEST(site_W1_a_rebase_onto_the_own_work_changes_nothing) {
    struct prng p;
    prng_seed(&p, 3);
    float theta_v[N], theta_next[N], d[N], local[N], s[N], keep[N], keep_s[N];
    fill(&p, theta_v, 0.02);
    fill(&p, d, 1e-3);
    fill(&p, local, 0.02);
    fill(&p, s, 0.02);
    for (int i = 0; i < N; i++) theta_next[i] = theta_v[i] - d[i]; /* eta 1, mu 0, one site */
    memcpy(keep, local, sizeof local);
    memcpy(keep_s, s, sizeof s);
    weights_rebase(local, s, theta_v, theta_next, d, N);
    assert_true(far(local, keep) < 1e-8);
    assert_true(far(s, keep_s) < 1e-8);
}

TEST(site_W1_a_rebase_adds_what_others_did_and_keeps_the_segment) {
    struct prng p;
    prng_seed(&p, 4);
    float theta_v[N], theta_next[N], own[N], others[N], local[N], s[N], segment[N];
    fill(&p, theta_v, 0.02);
    fill(&p, own, 1e-3);
    fill(&p, others, 1e-3);
    fill(&p, segment, 1e-3);
    for (int i = 0; i < N; i++) {
        s[i] = theta_v[i] - own[i]; /* own is handed in, not merged yet */
        local[i] = s[i] - segment[i];
        theta_next[i] = theta_v[i] - 0.5f * own[i] - 0.5f * others[i];
    }
    weights_rebase(local, s, theta_v, theta_next, own, N);
    for (int i = 0; i < N; i++) {
        assert_true(fabsf(s[i] - theta_next[i]) < 1e-8f);
        assert_true(fabsf(s[i] - local[i] - segment[i]) < 1e-8f);
    }
}

TEST(site_W2_a_reset_leaves_only_what_is_pending) {
    struct prng p;
    prng_seed(&p, 5);
    float theta_v[N], pending[N], local[N], s[N];
    fill(&p, theta_v, 0.02);
    fill(&p, pending, 1e-3);
    fill(&p, local, 1);
    fill(&p, s, 1);
    weights_reset(local, s, theta_v, pending, N);
    for (int i = 0; i < N; i++) assert_true(s[i] == theta_v[i] - pending[i]);
    assert_memory_equal(local, s, sizeof s);
    weights_reset(local, s, theta_v, NULL, N);
    assert_memory_equal(local, theta_v, sizeof s);
}

TEST(site_weights_a_cut_of_something_not_finite_moves_nothing) {
    float s[N] = {0}, before[N], theta[N] = {0}, scratch[2 * N];
    uint8_t out[8 * N];
    theta[N - 1] = NAN;
    memcpy(before, s, sizeof s);
    assert_int_equal(weights_cut(CODEC_INT8, s, theta, N, out, scratch), BRG_E_NONFINITE);
    assert_memory_equal(before, s, sizeof s);
}

/* ---- A residual beside the weights ---------------------------------------------------------------- */

static double to_bf16(double v) {
    float x = (float)v;
    uint32_t b;
    memcpy(&b, &x, 4);
    b = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000u;
    memcpy(&x, &b, 4);
    return (double)x;
}

static int larger_first(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* A round of SparseLoCo in double, from its equations: m = beta m + d; q = Q(TopK(m)); m = m - q. */
static void paper_round(double *m, const double *d, double *q) {
    enum { KEPT = (N + 63) / 64 };
    double size[N], mean = 0, high = 0, low = 0;
    int highs = 0;
    for (int i = 0; i < N; i++) {
        m[i] = 0.95 * m[i] + d[i];
        size[i] = fabs(m[i]);
    }
    qsort(size, N, sizeof *size, larger_first);
    for (int i = 0; i < KEPT; i++) mean += size[i] / KEPT;
    for (int i = 0; i < KEPT; i++) {
        if (size[i] > mean)
            high += size[i], highs++;
        else
            low += size[i];
    }
    high = to_bf16(high / highs);
    low = to_bf16(low / (KEPT - highs));
    for (int i = 0; i < N; i++) {
        double a = fabs(m[i]), value = a > mean ? high : low;
        q[i] = a >= size[KEPT - 1] ? copysign(value, m[i]) : 0;
        m[i] -= q[i];
    }
}

TEST(site_W3_topk_follows_the_equations_of_its_error_feedback) {
    struct prng p;
    prng_seed(&p, 11);
    static float theta[N], s[N], e[N], before[N], d[N], own[N], scratch[2 * N];
    static double m[N], work[N], q[N];
    uint8_t out[8 * N];
    fill(&p, s, 0.02);
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < N; i++) { /* some weights go one way, all of them rattle */
            theta[i] = s[i] - (float)(1e-3 * (0.3 * (i % 7) + prng_normal(&p)));
            work[i] = (double)(s[i] - theta[i]);
        }
        memcpy(before, e, sizeof e);
        assert_int_equal(weights_cut_aside(CODEC_TOPK, s, theta, e, CODEC_KEEP, N, out, scratch),
                         BRG_OK);
        assert_int_equal(codec_decode(CODEC_TOPK, out, N, d), BRG_OK);
        paper_round(m, work, q);
        for (int i = 0; i < N; i++) {
            assert_true(fabs((double)d[i] - q[i]) < 2e-3 * 5e-3);
            assert_true(fabs((double)e[i] - m[i]) < 2e-3 * 5e-3);
        }
        /* The contribution has all of the work, whatever was sent of it. */
        memset(own, 0, sizeof own);
        weights_add_aside(own, d, e, round > 0 ? before : NULL, CODEC_KEEP, N);
        for (int i = 0; i < N; i++) assert_true(fabs((double)own[i] - work[i]) < 1e-8);
        memcpy(s, theta, sizeof s);
    }
}

TEST(site_weights_a_cut_aside_of_something_not_finite_moves_nothing) {
    static float s[N], theta[N], e[N], before[N], scratch[2 * N];
    uint8_t out[8 * N];
    for (int i = 0; i < N; i++) before[i] = e[i] = (float)i;
    theta[5] = INFINITY;
    assert_int_equal(weights_cut_aside(CODEC_TOPK, s, theta, e, CODEC_KEEP, N, out, scratch),
                     BRG_E_NONFINITE);
    assert_memory_equal(before, e, sizeof e);
}

TEST(site_checksum_does_not_depend_on_the_pieces_and_sees_every_bit) {
    struct prng p;
    prng_seed(&p, 6);
    uint8_t data[777];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)prng_u64(&p);
    struct checksum whole;
    checksum_init(&whole);
    checksum_update(&whole, data, sizeof data);
    uint64_t want = checksum_final(&whole);
    for (int turn = 0; turn < 200; turn++) {
        struct checksum k;
        checksum_init(&k);
        for (size_t at = 0; at < sizeof data;) {
            size_t n = prng_below(&p, sizeof data - at) + 1;
            checksum_update(&k, data + at, n);
            at += n;
        }
        assert_true(checksum_final(&k) == want);
    }
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        struct checksum k;
        checksum_init(&k);
        checksum_update(&k, data, sizeof data);
        assert_true(checksum_final(&k) != want);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    struct checksum shorter;
    checksum_init(&shorter);
    checksum_update(&shorter, data, sizeof data - 1);
    assert_true(checksum_final(&shorter) != want);
}
