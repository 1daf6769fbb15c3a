/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the outer step against a reference that shares nothing with them (test/golden/make_outer_v2.py), over
 * several rounds each; and what must hold for every input. */
#include "../harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "outer/outer.h"

enum { PARTS_MAX = 4, SPANS_MAX = 4, N_MAX = 64 };

struct state {
    float theta[N_MAX], m[N_MAX], ema[N_MAX];
};
struct run {
    char name[32];
    struct outer_rule rule;
    struct outer_past past;
    size_t n, spans_count, rounds;
    struct outer_span spans[SPANS_MAX];
    struct state s;
};

static void read_bits(FILE *f, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t b;
        assert_int_equal(fscanf(f, "%" SCNx32, &b), 1);
        memcpy(&out[i], &b, 4);
    }
}

static void read_f64s(FILE *f, double *out, size_t n) {
    for (size_t i = 0; i < n; i++) assert_int_equal(fscanf(f, "%la", &out[i]), 1);
}

static bool read_run(FILE *f, struct run *x) {
    char word[16];
    int kind, radial, last;
    memset(x, 0, sizeof *x);
    x->rule = outer_rule_default();
    assert_int_equal(fscanf(f, "%15s", word), 1);
    if (strcmp(word, "case") != 0) return false;
    assert_int_equal(fscanf(f, "%31s %d %" SCNu32 " %d %d %la %la %zu %zu %zu", x->name, &kind,
                            &x->rule.delay, &radial, &last, &x->rule.late_decay, &x->rule.ema,
                            &x->n, &x->spans_count, &x->rounds),
                     10);
    assert_true(x->n <= N_MAX);
    assert_true(x->spans_count <= SPANS_MAX);
    x->rule.kind = (enum outer_kind)kind;
    x->rule.radial = radial != 0;
    x->rule.last_mean = last != 0;
    for (size_t i = 0; i < x->spans_count; i++) {
        int plain;
        assert_int_equal(fscanf(f, "%" SCNu64 " %d", &x->spans[i].end, &plain), 2);
        x->spans[i].plain = plain != 0;
    }
    read_bits(f, x->s.theta, x->n);
    read_bits(f, x->s.m, x->n);
    memcpy(x->s.ema, x->s.theta, sizeof x->s.ema);
    return true;
}

static void close_to(double got, double want) {
    assert_true(fabs(got - want) <= 1e-14 * fabs(want));
}

static uint32_t fresh_sites(const struct outer_part *parts, size_t count) {
    uint32_t n = 0;
    for (size_t i = 0; i < count; i++) {
        bool first = parts[i].late == 0 && parts[i].tokens > 0;
        for (size_t k = 0; k < i; k++)
            if (parts[k].site == parts[i].site && parts[k].late == 0) first = false;
        n += first;
    }
    return n;
}

/* Reads what the round must give, and does it from the recorded scalars, as a replay does. */
static void do_round(FILE *f, struct run *x) {
    size_t count, n = x->n;
    int last, restart, radial;
    double ema, params[8], weight[PARTS_MAX], got_weight[PARTS_MAX], ref[N_MAX];
    struct outer_part parts[PARTS_MAX];
    float delta[PARTS_MAX][N_MAX], want[N_MAX];
    const float *rows[PARTS_MAX];
    struct outer_round round;
    assert_int_equal(fscanf(f, " round %zu %d %d %d %la", &count, &last, &restart, &radial, &ema),
                     5);
    assert_true(count <= PARTS_MAX);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(fscanf(f, "%" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu32, &parts[i].site,
                                &parts[i].tokens, &parts[i].steps, &parts[i].late),
                         4);
        rows[i] = delta[i];
    }
    read_f64s(f, params, 8);
    read_f64s(f, weight, count);
    for (size_t i = 0; i < count; i++) read_bits(f, delta[i], n);

    x->past.last = last != 0;
    x->past.restart = restart != 0;
    outer_round_compute(&x->rule, &x->past, parts, count, &round, got_weight);
    const struct outer_params *p = &round.params;
    const double got[8] = {p->eta_r, p->mu_r, p->kappa_r,      p->phi,
                           p->meff,  p->sbar, p->tokens_fresh, p->tokens_late};
    for (size_t i = 0; i < 8; i++) close_to(got[i], params[i]);
    for (size_t i = 0; i < count; i++) close_to(got_weight[i], weight[i]);
    assert_int_equal(round.radial, radial != 0);
    close_to(round.ema, ema);
    x->past = outer_past_after(&x->past, p, fresh_sites(parts, count));

    struct outer_params recorded = {params[0], params[1], params[2], params[3],
                                    params[4], params[5], params[6], params[7]};
    struct outer_merge g;
    struct outer_radial r;
    outer_merge_init(&g, &recorded, parts, weight, count);
    assert_true(outer_radial_init(&r, x->spans, x->spans_count, parts, weight, count));
    if (radial) {
        outer_radial_measure(&r, 0, rows, n);
        outer_radial_finish(&r);
        g.radial = &r;
    }
    outer_merge_chunk_at(&g, 0, x->s.theta, x->s.m, rows, n);
    outer_ema_chunk(x->s.ema, x->s.theta, ema, n);
    outer_radial_fini(&r);
    outer_merge_fini(&g);
    float *const rows_got[] = {x->s.theta, x->s.m, x->s.ema};
    for (size_t k = 0; k < 3; k++) {
        read_bits(f, want, n);
        assert_memory_equal(rows_got[k], want, n * 4);
    }
    for (size_t k = 0; k < 3; k++) { /* and near f64: some ten roundings a round */
        read_f64s(f, ref, n);
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)rows_got[k][i] - ref[i]) < 100 * 0x1p-24);
    }
}

TEST(outer_options_equal_the_reference_over_several_rounds) {
    FILE *f = fopen("test/golden/outer-v2.txt", "r");
    assert_non_null(f);
    char title[16];
    assert_int_equal(fscanf(f, "%15s", title), 1);
    assert_string_equal(title, "outer-v2");
    size_t cases = 0;
    static struct run x;
    for (; read_run(f, &x); cases++)
        for (size_t i = 0; i < x.rounds; i++) do_round(f, &x);
    fclose(f);
    assert_int_equal(cases, 9);
}

/* ---- The radial mean --------------------------------------------------------------------------- */
enum { P = 3 * CODEC_UNIT + 700, SITES = 3 };
static float deltas[SITES][P];

static void fill(struct prng *r, float *x, size_t n, double scale) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * prng_normal(r));
}

static const struct outer_span cut[] = {{100, false}, {5000, true}, {5001, false}, {P, false}};
static const struct outer_part three[SITES] = {{1, 100, 30, 0}, {2, 100, 30, 0}, {3, 100, 30, 0}};
static const double thirds[SITES] = {1.0 / 3, 1.0 / 3, 1.0 / 3};

static double span_norm(const float *x, uint64_t begin, uint64_t end) {
    double sum = 0;
    for (uint64_t i = begin; i < end; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* theta = -D where eta is 1 and there is no momentum. */
static void radial_merge(const float *const *rows, float *theta, float *m, size_t piece) {
    const struct outer_params p = {.eta_r = 1, .tokens_fresh = 1};
    struct outer_radial r;
    struct outer_merge g;
    memset(theta, 0, P * sizeof *theta);
    memset(m, 0, P * sizeof *m);
    assert_true(outer_radial_init(&r, cut, ARRAY_COUNT(cut), three, thirds, SITES));
    for (size_t pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            outer_radial_finish(&r);
            outer_merge_init(&g, &p, three, thirds, SITES);
            g.radial = &r;
        }
        for (size_t at = 0, n; at < P; at += n) {
            const float *d[SITES];
            n = P - at < piece ? P - at : piece;
            for (size_t i = 0; i < SITES; i++) d[i] = rows[i] + at;
            if (pass == 0)
                outer_radial_measure(&r, at, d, n);
            else
                outer_merge_chunk_at(&g, at, theta + at, m + at, d, n);
        }
    }
    outer_merge_fini(&g);
    outer_radial_fini(&r);
}

TEST(outer_O4_the_radial_mean_keeps_the_length_whatever_the_pieces) {
    static float theta[P], theta1[P], m[P];
    const float *rows[SITES];
    struct prng r;
    prng_seed(&r, 7);
    for (size_t i = 0; i < SITES; i++) {
        fill(&r, deltas[i], P, 0.01 * (double)(i + 1));
        rows[i] = deltas[i];
    }
    radial_merge(rows, theta, m, OUTER_CHUNK);
    radial_merge(rows, theta1, m, 999);
    assert_memory_equal(theta, theta1, sizeof theta);
    for (size_t s = 0, begin = 0; s < ARRAY_COUNT(cut); begin = (size_t)cut[s++].end) {
        double mean = 0, got = span_norm(theta, begin, cut[s].end);
        for (size_t i = 0; i < SITES; i++) mean += span_norm(deltas[i], begin, cut[s].end) / 3;
        if (cut[s].plain)
            assert_true(got < 0.8 * mean); /* noise averages out */
        else
            assert_true(fabs(got / mean - 1) < 1e-5);
    }
}

TEST(outer_radial_mean_of_equal_deltas_is_that_delta_and_of_opposite_ones_nothing) {
    static float theta[P], m[P], minus[P], zero[P];
    struct prng r;
    prng_seed(&r, 8);
    fill(&r, deltas[0], P, 0.01);
    for (size_t i = 0; i < P; i++) minus[i] = -deltas[0][i];
    radial_merge((const float *[]){deltas[0], deltas[0], deltas[0]}, theta, m, OUTER_CHUNK);
    for (size_t i = 0; i < P; i++)
        assert_true(fabs((double)theta[i] + (double)deltas[0][i]) <=
                    1e-6 * fabs((double)deltas[0][i]));
    radial_merge((const float *[]){deltas[0], minus, zero}, theta, m, OUTER_CHUNK);
    for (size_t i = 0; i < P; i++) assert_true(fabs((double)theta[i]) < 1e-9);
}

TEST(outer_radial_mean_of_coded_deltas_is_that_of_their_floats) {
    const enum codec codecs[SITES] = {CODEC_INT4, CODEC_INT8, CODEC_TOPK};
    static float theta[P], m[P], theta1[P], m1[P], decoded[SITES][P];
    static uint8_t coded[SITES][4 * P];
    const uint8_t *bytes[SITES];
    const float *rows[SITES];
    struct outer_radial r;
    struct outer_merge g;
    struct outer_room room;
    const struct outer_params p = {.eta_r = 1, .tokens_fresh = 1};
    struct prng rng;
    size_t bad;
    prng_seed(&rng, 9);
    for (size_t i = 0; i < SITES; i++) {
        fill(&rng, deltas[i], P, 0.01);
        assert_int_equal(codec_encode(codecs[i], deltas[i], P, coded[i]), BRG_OK);
        assert_int_equal(codec_decode(codecs[i], coded[i], P, decoded[i]), BRG_OK);
        bytes[i] = coded[i];
        rows[i] = decoded[i];
    }
    radial_merge(rows, theta, m, OUTER_CHUNK);
    outer_room_init(&room, SITES);
    assert_true(outer_radial_init(&r, cut, ARRAY_COUNT(cut), three, thirds, SITES));
    assert_int_equal(outer_radial_measure_coded(&r, 0, bytes, codecs, P, &room, &bad), BRG_OK);
    outer_radial_finish(&r);
    outer_merge_init(&g, &p, three, thirds, SITES);
    g.radial = &r;
    assert_int_equal(outer_merge_coded_at(&g, 0, theta1, m1, bytes, codecs, P, &room, &bad),
                     BRG_OK);
    assert_memory_equal(theta, theta1, sizeof theta);
    outer_merge_fini(&g);
    outer_radial_fini(&r);
    outer_room_fini(&room);
}

TEST(outer_radial_takes_no_more_parts_than_it_has_room_for) {
    struct outer_radial r;
    static struct outer_part many[OUTER_RADIAL_PARTS_MAX + 1];
    static double w[OUTER_RADIAL_PARTS_MAX + 1];
    assert_false(outer_radial_init(&r, cut, ARRAY_COUNT(cut), many, w, ARRAY_COUNT(many)));
    outer_radial_fini(&r);
}

TEST(outer_cosines_say_how_sites_agree) {
    enum { N = 4 };
    const float a[N] = {1, 0, 0, 0}, a2[N] = {1, 0, 0, 0}, b[N] = {0, 2, 0, 0}, c[N] = {1, 1, 0, 0},
                late[N] = {-5, 0, 0, 0};
    const struct outer_part parts[] = {
        {1, 10, 5, 0}, {1, 10, 5, 0}, {2, 20, 9, 0}, {3, 20, 9, 0}, {4, 20, 9, 1}};
    const double weight[] = {1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3, 0.2};
    double gram[25] = {0}, cos[5];
    outer_gram_add(gram, parts, 5, (const float *[]){a, a2, b, c, late}, N);
    double mean = outer_cosines(gram, parts, weight, 5, cos);
    /* sites (2,0), (0,2), (1,1): cosines 0, sqrt(1/2), sqrt(1/2) */
    assert_true(fabs(mean - 2 * sqrt(0.5) / 3) < 1e-12);
    assert_true(fabs(cos[0] - 2 / (2 * sqrt(10))) < 1e-12); /* (2,0) with (1,3) */
    assert_true(cos[0] == cos[1]);
    assert_true(fabs(cos[3] - 1) < 1e-12); /* (1,1) with (2,2) */
    assert_true(cos[4] == 0);
}

/* ---- Settings that do not fit together ------------------------------------------------------------ */
TEST(outer_rules_that_contradict_themselves_are_named) {
    const char *why;
    struct outer_rule r = outer_rule_default();
    assert_null(outer_rule_misfit(&r, &why));
    r.delay = 3;
    assert_string_equal(outer_rule_misfit(&r, &why), "delay");
    r.kind = OUTER_DELAYED;
    assert_null(outer_rule_misfit(&r, &why));
    r.mu = 0;
    assert_string_equal(outer_rule_misfit(&r, &why), "optimizer");
    r = outer_rule_default();
    r.sum = true;
    r.ema = 0.9;
    assert_string_equal(outer_rule_misfit(&r, &why), "ema");
}

/* ---- Norms against the usual ----------------------------------------------------------------------- */
TEST(outer_norms_judge_what_is_unusual_and_nothing_else) {
    struct prng r;
    prng_seed(&r, 11);
    struct outer_norms s = {0};
    double worst = 0;
    /* Two thousand honest deltas: the rate falls by ten, steps vary twofold, norms grow with steps^0.75. */
    for (int i = 0; i < 2000; i++) {
        double steps = 20 + (double)prng_below(&r, 21), rate = 1e-3 * (1 - 0.9 * i / 2000);
        double norm = 3 * rate * pow(steps, 0.75) * exp(0.05 * prng_normal(&r));
        double z = outer_norms_z(&s, norm, rate * steps, steps);
        if (i < OUTER_NORMS_WARM) assert_true(z == 0);
        worst = fmax(worst, fabs(z));
        outer_norms_add(&s, norm, rate * steps, steps);
    }
    assert_true(worst < 4);
    double usual = 3 * 1e-4 * pow(30, 0.75);
    assert_true(outer_norms_z(&s, 10 * usual, 30e-4, 30) > 10); /* ten times too long */
    assert_true(outer_norms_z(&s, usual / 10, 30e-4, 30) < -10);
    /* One step instead of thirty: whatever power the norm grows with, that is honest. */
    assert_true(fabs(outer_norms_z(&s, 3e-4 * pow(30, 0.25), 1e-4, 1)) < 4);
    assert_true(fabs(outer_norms_z(&s, 3e-4 * pow(30, -0.25), 1e-4, 1)) < 4);
    /* Where nothing can be said nothing is said. */
    assert_true(outer_norms_z(&s, 0, 1, 1) == 0);
    assert_true(outer_norms_z(&s, 1, 0, 1) == 0);
    assert_true(outer_norms_z(&s, (double)INFINITY, 1, 1) == 0);
    /* Others for good, and taken: it begins to learn them. */
    outer_norms_add(&s, 10 * usual, 30e-4, 30);
    assert_int_equal(s.count, 1);
}
