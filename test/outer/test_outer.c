/* SPDX-License-Identifier: Apache-2.0 */
/* The outer step against a reference that shares nothing with it (test/golden/make_outer.py), and
 * the properties that hold for every input. */
#include "../harness.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "outer/outer.h"

enum { PARTS_MAX = 8, GOLDEN_MAX = 64 };

/* ---- Golden cases ---------------------------------------------------------------------------- */
struct golden {
    char name[32];
    size_t count, n;
    struct outer_part parts[PARTS_MAX];
    double params[8], weight[PARTS_MAX];
    float theta[GOLDEN_MAX], m[GOLDEN_MAX], delta[PARTS_MAX][GOLDEN_MAX];
    float theta_new[GOLDEN_MAX], m_new[GOLDEN_MAX];
    double theta_ref[GOLDEN_MAX], m_ref[GOLDEN_MAX];
};

static void read_f64s(FILE *f, double *out, size_t n) {
    for (size_t i = 0; i < n; i++) assert_int_equal(fscanf(f, "%la", &out[i]), 1);
}

static void read_bits(FILE *f, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t b;
        assert_int_equal(fscanf(f, "%" SCNx32, &b), 1);
        memcpy(&out[i], &b, 4);
    }
}

static bool read_case(FILE *f, struct golden *g) {
    char word[32];
    assert_int_equal(fscanf(f, "%31s", word), 1);
    if (strcmp(word, "case") != 0) return false;
    assert_int_equal(fscanf(f, "%31s %zu %zu", g->name, &g->count, &g->n), 3);
    assert_true(g->count <= PARTS_MAX);
    assert_true(g->n <= GOLDEN_MAX);
    for (size_t i = 0; i < g->count; i++) {
        struct outer_part *p = &g->parts[i];
        int late;
        assert_int_equal(fscanf(f, "%" SCNu32 " %" SCNu64 " %" SCNu64 " %d", &p->site, &p->tokens,
                                &p->steps, &late),
                         4);
        p->late = late != 0;
    }
    read_f64s(f, g->params, 8);
    read_f64s(f, g->weight, g->count);
    read_bits(f, g->theta, g->n);
    read_bits(f, g->m, g->n);
    for (size_t i = 0; i < g->count; i++) read_bits(f, g->delta[i], g->n);
    read_bits(f, g->theta_new, g->n);
    read_bits(f, g->m_new, g->n);
    read_f64s(f, g->theta_ref, g->n);
    read_f64s(f, g->m_ref, g->n);
    return true;
}

static void check_close(double got, double want) {
    assert_true(fabs(got - want) <= 1e-14 * fabs(want));
}

static struct outer_params params_of(const double *v) {
    return (struct outer_params){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
}

static void check_case(const struct golden *g) {
    struct outer_rule rule = outer_rule_default();
    struct outer_params p;
    double weight[PARTS_MAX];
    outer_params_compute(&rule, g->parts, g->count, &p, weight);
    const double got[8] = {p.eta_r, p.mu_r, p.kappa_r,      p.phi,
                           p.meff,  p.sbar, p.tokens_fresh, p.tokens_late};
    for (size_t i = 0; i < 8; i++) check_close(got[i], g->params[i]);
    for (size_t i = 0; i < g->count; i++) check_close(weight[i], g->weight[i]);

    /* As a replay does: with the recorded scalars, bit for bit. */
    p = params_of(g->params);
    struct outer_merge merge;
    outer_merge_init(&merge, &p, g->parts, g->weight, g->count);
    float theta[GOLDEN_MAX], m[GOLDEN_MAX];
    const float *delta[PARTS_MAX];
    memcpy(theta, g->theta, sizeof theta);
    memcpy(m, g->m, sizeof m);
    for (size_t i = 0; i < g->count; i++) delta[i] = g->delta[i];
    outer_merge_chunk(&merge, theta, m, delta, g->n);
    outer_merge_fini(&merge);
    assert_memory_equal(theta, g->theta_new, g->n * 4);
    assert_memory_equal(m, g->m_new, g->n * 4);
    /* And near the f64 reference: some ten roundings, each below 2^-24 of numbers below 1. */
    for (size_t k = 0; k < g->n; k++) {
        assert_true(fabs((double)theta[k] - g->theta_ref[k]) < 16 * 0x1p-24);
        assert_true(fabs((double)m[k] - g->m_ref[k]) < 16 * 0x1p-24);
    }
}

TEST(outer_equals_the_reference_for_0_1_2_5_sites_and_late_ones) {
    FILE *f = fopen("test/golden/outer-v1.txt", "r");
    assert_non_null(f);
    char title[16];
    assert_int_equal(fscanf(f, "%15s", title), 1);
    assert_string_equal(title, "outer-v1");
    size_t cases = 0;
    for (struct golden g = {0}; read_case(f, &g); cases++) check_case(&g);
    fclose(f);
    assert_int_equal(cases, 9);
}

/* ---- Properties ------------------------------------------------------------------------------ */
static void fill(struct prng *r, float *x, size_t n, double scale) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * prng_normal(r));
}

static size_t random_parts(struct prng *r, struct outer_part *parts) {
    size_t count = prng_below(r, PARTS_MAX + 1);
    uint32_t site = 0;
    for (size_t i = 0; i < count; i++) {
        site += (uint32_t)prng_below(r, 3);
        parts[i] = (struct outer_part){site,
                                       1 + prng_below(r, (uint64_t)1 << (1 + prng_below(r, 40))),
                                       prng_below(r, 200), prng_below(r, 3) == 0};
    }
    return count;
}

TEST(outer_O1_the_counting_rule_is_the_plain_sum) {
    /* Counts from several sites, two deltas of one site, a late one and one without tokens. */
    const struct outer_part parts[] = {
        {1, 7, 2, false}, {1, 3, 1, false}, {2, 900, 40, false}, {4, 0, 0, false}, {4, 5, 1, true}};
    enum { COUNT = ARRAY_COUNT(parts), N = 3 * OUTER_CHUNK / 2 };
    struct outer_rule rule = outer_rule_default();
    rule.sum = true;
    struct outer_params p;
    double weight[COUNT];
    outer_params_compute(&rule, parts, COUNT, &p, weight);
    assert_true(p.eta_r == 1);
    assert_true(p.mu_r == 0);
    assert_true(p.kappa_r == 0);
    assert_true(p.tokens_fresh == 910);
    assert_true(p.tokens_late == 5);
    float *theta = mem_alloc(N, sizeof *theta), *m = mem_alloc(N, sizeof *m);
    float *delta[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(weight[i] == (parts[i].tokens > 0 ? 1 : 0));
        delta[i] = mem_alloc(N, sizeof(float));
        for (size_t k = i; k < N; k += COUNT)
            delta[i][k] = -1; /* each part trained its own share */
    }
    for (size_t k = 0; k < N; k++) m[k] = 5; /* momentum of another rule leaves no trace */
    struct outer_merge merge;
    outer_merge_init(&merge, &p, parts, weight, COUNT);
    for (size_t at = 0; at < N; at += OUTER_CHUNK) {
        const float *chunk[COUNT];
        for (size_t i = 0; i < COUNT; i++) chunk[i] = delta[i] + at;
        outer_merge_chunk(&merge, theta + at, m + at, chunk,
                          N - at < OUTER_CHUNK ? N - at : OUTER_CHUNK);
    }
    outer_merge_fini(&merge);
    for (size_t k = 0; k < N; k++) assert_true(theta[k] == (k % COUNT == 3 ? 0.0f : 1.0f));
    for (size_t i = 0; i < COUNT; i++) mem_free(delta[i]);
    mem_free(theta);
    mem_free(m);
}

TEST(outer_O1_weights_of_fresh_sites_sum_to_one) {
    struct prng r;
    prng_seed(&r, 1);
    struct outer_rule rule = outer_rule_default();
    for (int round = 0; round < 20000; round++) {
        struct outer_part parts[PARTS_MAX];
        size_t count = random_parts(&r, parts);
        struct outer_params p;
        double weight[PARTS_MAX], fresh = 0, late = 0;
        outer_params_compute(&rule, parts, count, &p, weight); /* its CHECK sums over sites */
        for (size_t i = 0; i < count; i++) {
            assert_true(weight[i] >= 0);
            assert_true(weight[i] <= 1);
            bool first = true;
            for (size_t k = 0; k < i; k++) {
                if (parts[k].site == parts[i].site && !parts[k].late) first = false;
            }
            if (parts[i].late)
                late += weight[i];
            else if (first)
                fresh += weight[i];
        }
        if (p.tokens_fresh > 0) assert_true(fabs(fresh - 1) <= (double)count * 0x1p-52);
        assert_true(late <= 1 + 1e-12);
        assert_true(p.phi <= 2);
        assert_true(p.meff <= PARTS_MAX + 1e-9);
    }
}

TEST(outer_O1_parts_out_of_order_are_a_fault_of_the_caller) {
    struct outer_rule rule = outer_rule_default();
    const struct outer_part parts[2] = {{2, 10, 1, false}, {1, 10, 1, false}};
    struct outer_params p;
    double weight[2];
    assert_check_fails((outer_params_compute(&rule, parts, 2, &p, weight), 0));
}

/* Values whose bits an addition of zero would change, besides ordinary ones. */
static void fill_touchy(float *x, size_t n) {
    const float touchy[] = {-0.0f, 0.0f, 1e-42f, -1e-42f, FLT_MAX, 1.0f, -3.5f};
    for (size_t i = 0; i < n; i++) x[i] = touchy[i % ARRAY_COUNT(touchy)];
}

TEST(outer_O2_no_contribution_changes_no_bit) {
    enum { N = 3000 };
    static float theta[N], m[N], theta0[N], m0[N], d[N];
    fill_touchy(theta, N);
    fill_touchy(m, N);
    memcpy(theta0, theta, sizeof theta);
    memcpy(m0, m, sizeof m);
    struct outer_rule rule = outer_rule_default();
    /* Nobody handed in; or somebody did without tokens. */
    const struct outer_part idle[2] = {{1, 0, 0, false}, {2, 0, 0, true}};
    for (size_t count = 0; count <= 2; count++) {
        struct outer_params p;
        double weight[2];
        outer_params_compute(&rule, idle, count, &p, weight);
        assert_true(p.mu_r == 1);
        assert_true(p.kappa_r == 0);
        struct outer_merge g;
        outer_merge_init(&g, &p, idle, weight, count);
        const float *delta[2] = {d, d};
        outer_merge_chunk(&g, theta, m, delta, N);
        outer_merge_fini(&g);
        assert_memory_equal(theta, theta0, sizeof theta);
        assert_memory_equal(m, m0, sizeof m);
    }
}

TEST(outer_O2_late_parts_alone_leave_the_momentum_its_bits) {
    enum { N = 3000 };
    static float theta[N], m[N], theta0[N], m0[N], d[N];
    fill_touchy(m, N);
    memcpy(m0, m, sizeof m);
    for (size_t i = 0; i < N; i++) d[i] = theta[i] = theta0[i] = 1;
    struct outer_rule rule = outer_rule_default();
    const struct outer_part late[1] = {{1, 500, 30, true}};
    struct outer_params p;
    double weight[1];
    outer_params_compute(&rule, late, 1, &p, weight);
    struct outer_merge g;
    outer_merge_init(&g, &p, late, weight, 1);
    const float *delta[1] = {d};
    outer_merge_chunk(&g, theta, m, delta, N);
    outer_merge_fini(&g);
    assert_memory_equal(m, m0, sizeof m);
    for (size_t i = 0; i < N; i++) assert_true(theta[i] == 1 - (float)p.eta_r);
}

TEST(outer_O2_parts_without_their_scalars_are_a_fault_of_the_caller) {
    struct outer_params p = {.eta_r = 0.7, .mu_r = 0.9, .kappa_r = 0.9, .tokens_fresh = 5};
    struct outer_merge g;
    assert_check_fails((outer_merge_init(&g, &p, NULL, NULL, 0), 0));
}

static void merge_in_pieces(struct prng *r, const struct outer_params *p,
                            const struct outer_part *parts, const double *weight, size_t count,
                            float *theta, float *m, float *const *d, size_t n) {
    struct outer_merge g;
    outer_merge_init(&g, p, parts, weight, count);
    for (size_t at = 0; at < n;) {
        size_t piece = 1 + prng_below(r, prng_below(r, 2) ? 40 : 5000);
        if (piece > n - at) piece = n - at;
        const float *delta[PARTS_MAX];
        for (size_t i = 0; i < count; i++) delta[i] = d[i] + at;
        outer_merge_chunk(&g, theta + at, m + at, delta, piece);
        at += piece;
    }
    outer_merge_fini(&g);
}

TEST(outer_O3_the_cut_into_chunks_does_not_show) {
    enum { N = 20000 };
    struct prng r;
    prng_seed(&r, 3);
    static float theta[N], m[N], theta1[N], m1[N], d[PARTS_MAX][N];
    for (int round = 0; round < 30; round++) {
        struct outer_part parts[PARTS_MAX];
        size_t count = random_parts(&r, parts);
        struct outer_rule rule = outer_rule_default();
        struct outer_params p;
        double weight[PARTS_MAX];
        outer_params_compute(&rule, parts, count, &p, weight);
        float *rows[PARTS_MAX];
        for (size_t i = 0; i < PARTS_MAX; i++) fill(&r, rows[i] = d[i], N, 0.01);
        fill(&r, theta, N, 0.1);
        fill(&r, m, N, 0.1);
        memcpy(theta1, theta, sizeof theta);
        memcpy(m1, m, sizeof m);
        struct outer_merge g;
        outer_merge_init(&g, &p, parts, weight, count);
        outer_merge_chunk(&g, theta, m, (const float *const *)rows, N);
        outer_merge_fini(&g);
        merge_in_pieces(&r, &p, parts, weight, count, theta1, m1, rows, N);
        assert_memory_equal(theta, theta1, sizeof theta);
        assert_memory_equal(m, m1, sizeof m);
    }
    struct outer_params none = {.mu_r = 1};
    struct outer_merge g;
    outer_merge_init(&g, &none, NULL, NULL, 0);
    assert_check_fails((outer_merge_chunk(&g, theta, m, NULL, OUTER_CHUNK + 1), 0));
    outer_merge_fini(&g);
}

/* One site, steps = H_ref, M_ref = 1. */
static struct outer_params one_site(uint64_t steps, double *weight) {
    struct outer_rule rule = outer_rule_default();
    rule.m_ref = 1;
    const struct outer_part part = {1, 1000, steps, false};
    struct outer_params p;
    outer_params_compute(&rule, &part, 1, &p, weight);
    return p;
}

static void apply(const struct outer_params *p, float *theta, float *m, const float *d, size_t n) {
    const struct outer_part part = {1, 1000, 1, false};
    const double weight = 1;
    struct outer_merge g;
    outer_merge_init(&g, p, &part, &weight, 1);
    outer_merge_chunk(&g, theta, m, &d, n);
    outer_merge_fini(&g);
}

/* ---- The merge of payloads -------------------------------------------------------------------------- */
enum { CODED_P = 5 * CODEC_UNIT + 777, CODED_PARTS = 3 };
static struct coded_scene {
    float theta[CODED_P], m[CODED_P], decoded[CODED_PARTS][CODED_P];
    uint8_t coded[CODED_PARTS][CODED_P];
    struct outer_part parts[CODED_PARTS];
    double weight[CODED_PARTS];
    struct outer_params p;
} coded_scene;

static void coded_fill(struct coded_scene *x) {
    struct prng r;
    prng_seed(&r, 21);
    for (size_t k = 0; k < CODED_P; k++) {
        x->theta[k] = (float)(0.02 * prng_normal(&r));
        x->m[k] = (float)(1e-3 * prng_normal(&r));
    }
    for (size_t i = 0; i < CODED_PARTS; i++) {
        for (size_t k = 0; k < CODED_P; k++) /* some blocks are all zero */
            x->decoded[i][k] = k / 64 % 11 == i ? 0 : (float)(1e-3 * prng_normal(&r));
        assert_int_equal(codec_encode(CODEC_INT4, x->decoded[i], CODED_P, x->coded[i]), BRG_OK);
        assert_int_equal(codec_decode(CODEC_INT4, x->coded[i], CODED_P, x->decoded[i]), BRG_OK);
        x->parts[i] = (struct outer_part){(uint32_t)i, 1000 * (i + 1), 30, 0};
    }
}

static enum brg_status coded_merge(const struct coded_scene *x, float *theta, float *m,
                                   size_t *out_bad) {
    static const enum codec codecs[CODED_PARTS] = {CODEC_INT4, CODEC_INT4, CODEC_INT4};
    const uint8_t *bytes[CODED_PARTS] = {x->coded[0], x->coded[1], x->coded[2]};
    struct outer_merge g;
    struct outer_room room;
    outer_merge_init(&g, &x->p, x->parts, x->weight, CODED_PARTS);
    outer_room_init(&room, CODED_PARTS);
    memcpy(theta, x->theta, sizeof x->theta);
    memcpy(m, x->m, sizeof x->m);
    enum brg_status s = outer_merge_coded(&g, theta, m, bytes, codecs, CODED_P, &room, out_bad);
    outer_room_fini(&room);
    outer_merge_fini(&g);
    return s;
}

TEST(outer_int4_payloads_are_merged_to_the_bits_of_their_floats) {
    struct coded_scene *x = &coded_scene;
    static float theta[CODED_P], m[CODED_P], want_theta[CODED_P], want_m[CODED_P];
    struct outer_rule rule = outer_rule_default();
    size_t bad;
    coded_fill(x);
    for (int which = 0; which < 3; which++) { /* all fresh; one late; one without tokens */
        x->parts[1].late = which == 1;
        x->parts[2].tokens = which == 2 ? 0 : 3000;
        outer_params_compute(&rule, x->parts, CODED_PARTS, &x->p, x->weight);
        struct outer_merge g;
        outer_merge_init(&g, &x->p, x->parts, x->weight, CODED_PARTS);
        memcpy(want_theta, x->theta, sizeof want_theta);
        memcpy(want_m, x->m, sizeof want_m);
        outer_merge_chunk(&g, want_theta, want_m,
                          (const float *const[]){x->decoded[0], x->decoded[1], x->decoded[2]},
                          CODED_P);
        outer_merge_fini(&g);
        assert_int_equal(coded_merge(x, theta, m, &bad), BRG_OK);
        assert_memory_equal(theta, want_theta, sizeof theta);
        assert_memory_equal(m, want_m, sizeof m);
    }
}

TEST(outer_a_payload_that_is_none_is_named_by_the_merge) {
    struct coded_scene *x = &coded_scene;
    static float theta[CODED_P], m[CODED_P];
    struct outer_rule rule = outer_rule_default();
    const struct {
        size_t block, byte;
        uint8_t value;
    } faults[] = {{0, 2, 0x08}, {3, 20, 0x80}, {200, 1, 0x7f}, {319, 1, 0xff}, {64, 33, 0x88}};
    coded_fill(x);
    outer_params_compute(&rule, x->parts, CODED_PARTS, &x->p, x->weight);
    for (size_t i = 0; i < CODED_PARTS * ARRAY_COUNT(faults); i++) {
        size_t part = i % CODED_PARTS, f = i / CODED_PARTS, bad = 99;
        uint8_t *at = x->coded[part] + 34 * faults[f].block + faults[f].byte, before = *at;
        *at = faults[f].value;
        assert_int_equal(coded_merge(x, theta, m, &bad), BRG_E_CORRUPT);
        assert_int_equal(bad, part);
        *at = before;
    }
    memset(x->coded[1] + 34 * 5, 0, 2); /* a scale of 0 before bytes that are not */
    size_t bad = 99;
    assert_int_equal(coded_merge(x, theta, m, &bad), BRG_E_CORRUPT);
    assert_int_equal(bad, 1);
}

TEST(outer_phi_1_is_nesterov_in_the_form_of_pytorch) {
    double weight;
    struct outer_params p = one_site(30, &weight);
    assert_true(p.phi == 1);
    check_close(p.mu_r, 0.9);
    check_close(p.kappa_r, 0.9);
    struct prng r;
    prng_seed(&r, 4);
    float theta = 0.5f, m = 0;
    double ref = 0.5, velocity = 0;
    for (int round = 0; round < 50; round++) {
        float d = (float)(0.01 * prng_normal(&r));
        apply(&p, &theta, &m, &d, 1);
        velocity = 0.9 * velocity + (double)d; /* torch.optim.SGD(momentum=0.9, nesterov=True): */
        ref -= 0.7 * ((double)d + 0.9 * velocity); /* buf = mu buf + g;  p -= lr (g + mu buf) */
        assert_true(fabs((double)theta - ref) < 1e-6);
    }
}

/* Two rounds of half the steps and half the delta, against one whole round. With q = sqrt(mu) and
 * kappa = mu/(1+q) for phi = 1/2:
 *   whole   move / eta = (1 + mu) D + mu^2 m                             m_new = mu m + D
 *   halves  move / eta = D + kappa (q (1+q) m + (2+q)/2 D)               m_new = mu m + (1+q)/2 D
 *                      = (1 + mu (2+q)/(2(1+q))) D + mu q m
 *   so      halves - whole = eta mu ((q - mu) m - q/(2(1+q)) D)
 * which is 0.044 eta m - 0.219 eta D for mu = 0.9. In the steady state m = D/(1 - mu) of equal
 * rounds the whole moves 10 eta D, and the difference is 0.22 eta D: 2.2 percent. */
TEST(outer_phi_two_half_rounds_are_nearly_one_whole) {
    double weight;
    struct outer_params whole = one_site(30, &weight), half = one_site(15, &weight);
    assert_true(half.phi == 0.5);
    double mu = 0.9, eta = 0.7, q = sqrt(mu);
    struct prng r;
    prng_seed(&r, 5);
    for (int round = 0; round < 1000; round++) {
        float m0 = (float)prng_normal(&r), d = (float)prng_normal(&r), d_half = d / 2;
        float theta_w = 0, m_w = m0, theta_h = 0, m_h = m0;
        apply(&whole, &theta_w, &m_w, &d, 1);
        apply(&half, &theta_h, &m_h, &d_half, 1);
        apply(&half, &theta_h, &m_h, &d_half, 1);
        double differ = -eta * mu * ((q - mu) * (double)m0 - q / (2 * (1 + q)) * (double)d);
        assert_true(fabs((double)theta_h - (double)theta_w - differ) < 1e-5);
        assert_true(fabs((double)m_h - (double)m_w) <= (1 - q) / 2 * fabs((double)d) + 1e-5);
    }
    float d = 1, d_half = 0.5f, theta_w = 0, m_w = 10, theta_h = 0, m_h = 10;
    apply(&whole, &theta_w, &m_w, &d, 1);
    apply(&half, &theta_h, &m_h, &d_half, 1);
    apply(&half, &theta_h, &m_h, &d_half, 1);
    assert_true(fabs((double)(theta_h / theta_w) - 1) < 0.03);
    assert_true(fabs((double)(m_h / m_w) - 1) < 0.003);
}

TEST(outer_two_deltas_of_one_site_count_as_their_sum) {
    struct outer_rule rule = outer_rule_default();
    const struct outer_part two[3] = {
        {1, 400, 10, false}, {1, 600, 20, false}, {2, 500, 25, false}};
    const struct outer_part sum[2] = {{1, 1000, 30, false}, {2, 500, 25, false}};
    struct outer_params p2, p1;
    double w2[3], w1[2];
    outer_params_compute(&rule, two, 3, &p2, w2);
    outer_params_compute(&rule, sum, 2, &p1, w1);
    assert_memory_equal(&p1, &p2, sizeof p1);
    assert_true(w2[0] == w1[0]);
    assert_true(w2[1] == w1[0]);
    assert_true(w2[2] == w1[1]);
}

/* 1000 rounds in which a weight of 1 moves by 1e-6 each. In bf16 nothing would remain (half an ulp
 * is 2e-3); in f32 each round may round theta by 2^-25 (half an ulp below 1), so that the sum is
 * right to 1000 * 2^-25 = 3e-5, while the way is 1e-3 and m, near 1e-5, is right to 10 * 2^-41. */
TEST(outer_a_thousand_tiny_deltas_are_not_lost) {
    struct outer_params p = {.eta_r = 1, .mu_r = 0.9, .kappa_r = 0.9, .tokens_fresh = 1};
    float theta = 1, m = 0, d = 1e-6f, coded;
    uint8_t bytes[8];
    double ref = 1, ref_m = 0;
    assert_int_equal(codec_encode(CODEC_INT8, &d, 1, bytes), BRG_OK);
    for (int round = 0; round < 1000; round++) {
        assert_int_equal(codec_decode(CODEC_INT8, bytes, 1, &coded), BRG_OK);
        apply(&p, &theta, &m, &coded, 1);
        ref_m = 0.9 * ref_m + 1e-6;
        ref -= 1e-6 + 0.9 * ref_m;
    }
    assert_true(1 - ref > 9e-3);
    assert_true(fabs((double)theta - ref) < 1000 * 0x1p-25);
    assert_true(fabs((double)m - ref_m) < 1e-10);
}

/* ---- Checks before acceptance ---------------------------------------------------------------- */
TEST(outer_delta_stats_equal_the_plain_sums) {
    enum { N = 1003 };
    struct prng r;
    prng_seed(&r, 6);
    static float d[N], m[N];
    fill(&r, d, N, 0.1);
    fill(&r, m, N, 0.3);
    d[1000] = -9;
    struct delta_stats s = {0};
    delta_stats_chunk(&s, d, m, 512);
    delta_stats_chunk(&s, d + 512, m + 512, N - 512);
    double norm2 = 0, dot = 0, m2 = 0;
    for (size_t i = 0; i < N; i++) {
        norm2 += (double)d[i] * (double)d[i];
        dot += (double)d[i] * (double)m[i];
        m2 += (double)m[i] * (double)m[i];
    }
    assert_int_equal(s.count, N);
    assert_true(s.max_abs == 9);
    assert_true(fabs(s.norm2 - norm2) < 1e-12 * norm2);
    assert_true(fabs(s.dot_m - dot) < 1e-10);
    assert_true(fabs(s.m_norm2 - m2) < 1e-12 * m2);
    struct delta_stats without = {0};
    delta_stats_chunk(&without, d, NULL, N);
    assert_true(without.dot_m == 0);
    assert_true(fabs(without.norm2 - norm2) < 1e-12 * norm2);
}

TEST(outer_adamw_bound_holds_for_the_worst_gradients) {
    assert_true(fabs(outer_adamw_bound(1, 0.9, 0.95, 0, 0) - 1.1650) < 1e-3);
    assert_true(fabs(outer_adamw_bound(1, 0.9, 0.999, 0, 0) - 7.2703) < 1e-3);
    assert_true(fabs(outer_adamw_bound(2, 0.9, 0.95, 0.1, 3) - 2 * (1.1650 + 0.3)) < 1e-3);
    assert_true(isinf(outer_adamw_bound(1, 0.99, 0.9, 0, 0)));
    /* AdamW itself, with gradients made to hurt: growing, alternating, a spike after silence. The
     * bound is for the steady state; early steps are bias-corrected, and bounded by the same c
     * over sqrt of the corrections, so they are run in first. */
    struct prng r;
    prng_seed(&r, 7);
    for (int trial = 0; trial < 300; trial++) {
        double m = 0, v = 0, g = 1, moved = 0;
        int steps = 400, warm = 200;
        for (int t = 1; t <= steps; t++) {
            g = trial % 3 == 0   ? g * 1.06
                : trial % 3 == 1 ? (t == 300 ? 1e6 : 1e-9)
                                 : prng_normal(&r);
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            double move = (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.95, t))) + 1e-12);
            if (t > warm) moved += fabs(move);
        }
        assert_true(moved <= outer_adamw_bound(steps - warm, 0.9, 0.95, 0, 0) * 1.0001);
    }
}
