/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - rotation with its norms, and causal attention, value and gradient, against double. */
#include "ops.h"

enum { SAMPLES = 48 };

struct shape {
    uint32_t B, T, heads, kv, D;
};
static const struct shape SHAPES[] = {
    {1, 1, 1, 1, 2},  {2, 1, 2, 1, 8},  {2, 9, 3, 1, 6},   {1, 48, 2, 2, 16}, {1, 49, 4, 2, 10},
    {1, 64, 2, 1, 4}, {1, 65, 2, 2, 6}, {2, 97, 2, 1, 34}, {1, 130, 3, 3, 8}, {1, 250, 2, 1, 16},
};

static size_t rows_of(const struct shape *s) {
    return (size_t)s->B * s->T;
}

static size_t padded(uint32_t D, struct device *dev) {
    return device_pad(dev, D);
}

/* ---- Reference: q, k, v dense head-major [B][heads][T][D] ------------------------------------------ */
static void attention_reference(const struct shape *s, const double *q, const double *k,
                                const double *v, double *out) {
    double *w = mem_alloc(s->T, sizeof *w);
    for (uint32_t b = 0; b < s->B; b++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t t = 0; t < s->T; t++) {
                size_t g = (size_t)b * s->kv + h / (s->heads / s->kv), D = s->D;
                const double *qt = q + (((size_t)b * s->heads + h) * s->T + t) * D;
                double *o = out + (((size_t)b * s->T + t) * s->heads + h) * D, sum = 0;
                memset(o, 0, D * sizeof *o);
                for (uint32_t j = 0; j <= t; j++) {
                    double score = 0;
                    for (size_t d = 0; d < D; d++) score += qt[d] * k[(g * s->T + j) * D + d];
                    sum += w[j] = exp(score / sqrt((double)D));
                }
                for (uint32_t j = 0; j <= t; j++)
                    for (size_t d = 0; d < D; d++) o[d] += w[j] / sum * v[(g * s->T + j) * D + d];
            }
    mem_free(w);
}

struct inputs { /* dense double and padded float of the same numbers */
    struct shape s;
    size_t nq, nk, n_out, Dp;
    double *x[3]; /* q k v */
    float *f[3], *dout_f, *out, *lse;
    double *dout, *o;
    struct attn a;
};

static double scalar(struct inputs *in) {
    double sum = 0;
    attention_reference(&in->s, in->x[0], in->x[1], in->x[2], in->o);
    for (size_t i = 0; i < in->n_out; i++) sum += in->o[i] * in->dout[i];
    return sum;
}

static float *zeros(size_t n) {
    return mem_alloc(n, sizeof(float));
}

static void fill(struct inputs *in, struct device *dev, struct prng *p, double scale) {
    const struct shape *s = &in->s;
    size_t counts[3] = {rows_of(s) * s->heads, rows_of(s) * s->kv, rows_of(s) * s->kv};
    in->Dp = padded(s->D, dev);
    for (int i = 0; i < 3; i++) {
        in->x[i] = mem_alloc(counts[i] * s->D, sizeof(double));
        in->f[i] = zeros((counts[i] + dev->slack) * in->Dp);
        for (size_t r = 0; r < counts[i]; r++)
            for (size_t d = 0; d < s->D; d++) {
                float v = (float)(scale * prng_normal(p));
                in->f[i][r * in->Dp + d] = v;
                in->x[i][r * s->D + d] = (double)v;
            }
    }
    in->n_out = counts[0] * s->D;
    in->dout_f = random_floats(p, in->n_out, 1);
    in->dout = mem_alloc(in->n_out, sizeof(double));
    for (size_t i = 0; i < in->n_out; i++) in->dout[i] = (double)in->dout_f[i];
    in->o = mem_alloc(in->n_out, sizeof(double));
    in->out = zeros(in->n_out);
    in->lse = zeros(counts[0]);
    in->a = (struct attn){.B = s->B,
                          .T = s->T,
                          .D = s->D,
                          .Dp = (uint32_t)in->Dp,
                          .heads = s->heads,
                          .kv_heads = s->kv,
                          .scale = 1 / sqrtf((float)s->D),
                          .q = in->f[0],
                          .k = in->f[1],
                          .v = in->f[2],
                          .out = in->out,
                          .lse = in->lse,
                          .dout = in->dout_f,
                          .dq = zeros((counts[0] + dev->slack) * in->Dp),
                          .dk = zeros((counts[1] + dev->slack) * in->Dp),
                          .dv = zeros((counts[2] + dev->slack) * in->Dp)};
}

static void empty(struct inputs *in) {
    void *all[] = {in->x[0], in->x[1], in->x[2], in->f[0], in->f[1], in->f[2], in->dout_f,
                   in->dout, in->o,    in->out,  in->lse,  in->a.dq, in->a.dk, in->a.dv};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
}

static void run_forward(struct inputs *in, struct device *dev) {
    dev->ops->attn(dev, &in->a);
}

static void check_input(struct inputs *in, struct prng *p, int which, const float *is,
                        size_t rows) {
    static const char *const names[] = {"query", "key", "value"};
    float got[SAMPLES];
    double want[SAMPLES], h = 1e-5, *x = in->x[which];
    for (int i = 0; i < SAMPLES; i++) {
        size_t r = prng_below(p, rows), d = prng_below(p, in->s.D), at = r * in->s.D + d;
        double keep = x[at], up, down;
        x[at] = keep + h;
        up = scalar(in);
        x[at] = keep - h;
        down = scalar(in);
        x[at] = keep;
        want[i] = (up - down) / (2 * h);
        got[i] = is[r * in->Dp + d];
    }
    double off = distance_d(got, want, SAMPLES), size = 0;
    for (int i = 0; i < SAMPLES; i++) size += want[i] * want[i];
    if (size < 1e-12) return; /* one position: query and key have no say */
    if (!(off <= 3e-5))
        fail_msg("T %u D %u: gradient of the %s off by %.3g", in->s.T, in->s.D, names[which], off);
}

static void attentions(struct device *dev) {
    for (size_t i = 0; i < ARRAY_COUNT(SHAPES); i++) {
        struct inputs in = {.s = SHAPES[i]};
        struct prng p;
        prng_seed(&p, i);
        fill(&in, dev, &p, 0.8);
        run_forward(&in, dev);
        scalar(&in);
        double off = distance_d(in.out, in.o, in.n_out);
        if (!(off < 2e-6)) fail_msg("T %u D %u: output off by %.3g", in.s.T, in.s.D, off);
        dev->ops->attn_back(dev, &in.a);
        check_input(&in, &p, 0, in.a.dq, rows_of(&in.s) * in.s.heads);
        check_input(&in, &p, 1, in.a.dk, rows_of(&in.s) * in.s.kv);
        check_input(&in, &p, 2, in.a.dv, rows_of(&in.s) * in.s.kv);
        empty(&in);
    }
}

TEST_TIMEOUT(ops_attention_and_its_gradients, 120) {
    each_device(attentions);
}

/* Scores of thousands: the running maximum must carry them. */
static void large_scores(struct device *dev) {
    struct inputs in = {.s = {1, 150, 2, 1, 8}};
    struct prng p;
    prng_seed(&p, 77);
    fill(&in, dev, &p, 60);
    run_forward(&in, dev);
    dev->ops->attn_back(dev, &in.a);
    for (size_t i = 0; i < in.n_out; i++) assert_true(isfinite(in.out[i]));
    for (size_t i = 0; i < rows_of(&in.s) * in.s.heads * in.Dp; i++)
        assert_true(isfinite(in.a.dq[i]));
    for (size_t i = 0; i < rows_of(&in.s) * in.s.kv * in.Dp; i++) assert_true(isfinite(in.a.dk[i]));
    empty(&in);
}

TEST(ops_attention_of_large_scores_is_finite) {
    each_device(large_scores);
}

/* What comes later is not seen, to the bit. */
static void causal(struct device *dev) {
    struct inputs in = {.s = {1, 140, 2, 1, 16}};
    struct prng p;
    prng_seed(&p, 78);
    fill(&in, dev, &p, 1);
    run_forward(&in, dev);
    size_t seen = 75, head = in.s.heads * (size_t)in.s.D;
    float *before = zeros(in.n_out);
    memcpy(before, in.out, in.n_out * 4);
    for (size_t t = seen; t < in.s.T; t++)
        for (size_t d = 0; d < in.s.D; d++)
            in.f[1][t * in.Dp + d] = in.f[2][t * in.Dp + d] = 1000.0f;
    run_forward(&in, dev);
    assert_memory_equal(before, in.out, seen * head * 4);
    assert_memory_not_equal(before + seen * head, in.out + seen * head, head * 4);
    mem_free(before);
    empty(&in);
}

TEST(ops_attention_sees_no_later_position) {
    each_device(causal);
}

/* ---- Rotation: qkv [rows][heads + 2 kv][D], then the two norm weights ------------------------------ */
static void rope_reference(const struct shape *s, const double *in, double *out) {
    size_t D = s->D, half = D / 2, width = (s->heads + 2 * (size_t)s->kv) * D;
    for (size_t r = 0; r < rows_of(s); r++)
        for (size_t h = 0; h < s->heads + 2 * (size_t)s->kv; h++) {
            const double *x = in + r * width + h * D,
                         *w = in + rows_of(s) * width + (h < s->heads ? 0 : D);
            double *o = out + r * width + h * D, sum = 0;
            for (size_t i = 0; i < D; i++) sum += x[i] * x[i];
            double f = 1 / sqrt(sum / (double)D + 1e-6);
            for (size_t i = 0; i < half; i++) {
                double angle = (double)(r % s->T) * pow(100.0, -2.0 * (double)i / (double)D);
                double a = w[i] * x[i] * f, b = w[half + i] * x[half + i] * f;
                o[i] = a * cos(angle) - b * sin(angle);
                o[half + i] = b * cos(angle) + a * sin(angle);
            }
            if (h >= s->heads + (size_t)s->kv) memcpy(o, x, D * sizeof *o);
        }
}

/* Between the dense order of the reference and the head-major q, k, v. */
static void spread(const struct shape *s, size_t Dp, float *dense, float *hm[3], bool to_dense) {
    size_t n[3] = {s->heads, s->kv, s->kv};
    for (size_t r = 0; r < rows_of(s); r++)
        for (int part = 0; part < 3; part++)
            for (size_t h = 0; h < n[part]; h++, dense += s->D) {
                float *x = hm[part] + ((r / s->T * n[part] + h) * s->T + r % s->T) * Dp;
                if (to_dense)
                    memcpy(dense, x, s->D * sizeof *x);
                else
                    memcpy(x, dense, s->D * sizeof *x);
            }
}

static void rope_case(struct device *dev, const struct shape *s, struct prng *p) {
    size_t D = s->D, width = (s->heads + 2 * (size_t)s->kv) * D, n = rows_of(s) * width,
           Dp = padded(s->D, dev);
    float *in_f = random_floats(p, n + 2 * D, 1), *coef = random_floats(p, n, 1), *dense = zeros(n);
    float *hm[3], *d[3], *angles = zeros(2 * s->T * D), *dx = zeros(n + 2 * D);
    double *in = mem_alloc(n + 2 * D, 8), *out = mem_alloc(n, 8);
    for (int i = 0; i < 3; i++) {
        hm[i] = zeros((rows_of(s) * (i ? s->kv : s->heads) + dev->slack) * Dp);
        d[i] = zeros((rows_of(s) * (i ? s->kv : s->heads) + dev->slack) * Dp);
    }
    for (size_t t = 0; t < s->T; t++)
        for (size_t i = 0; i < D / 2; i++) {
            double angle = (double)t * pow(100.0, -2.0 * (double)i / (double)D);
            angles[t * D / 2 + i] = (float)cos(angle);
            angles[s->T * D + t * D / 2 + i] = (float)sin(angle);
        }
    struct rope_layer l = {.T = s->T,
                           .D = s->D,
                           .Dp = (uint32_t)Dp,
                           .heads = s->heads,
                           .kv_heads = s->kv,
                           .B = s->B,
                           .eps = 1e-6f,
                           .q_norm = in_f + n,
                           .k_norm = in_f + n + D,
                           .cosines = angles,
                           .sines = angles + s->T * D};
    dev->ops->rope(dev, &l, in_f, hm[0], hm[1], hm[2]);
    spread(s, Dp, dense, hm, true);
    for (size_t i = 0; i < n + 2 * D; i++) in[i] = (double)in_f[i];
    rope_reference(s, in, out);
    assert_true(distance_d(dense, out, n) < 1e-6);
    spread(s, Dp, coef, d, false);
    dev->ops->rope_back(dev, &l, in_f, d[0], d[1], d[2], dx, dx + n, dx + n + D, false);
    float got[SAMPLES];
    double want[SAMPLES], h = 1e-5;
    for (size_t i = 0; i < SAMPLES; i++) { /* the first half samples the norm weights */
        size_t at = i < SAMPLES / 2 ? n + prng_below(p, 2 * D) : prng_below(p, n);
        double keep = in[at], sum = 0;
        for (int side = -1; side <= 1; side += 2) {
            in[at] = keep + side * h;
            rope_reference(s, in, out);
            for (size_t j = 0; j < n; j++) sum += side * out[j] * (double)coef[j];
        }
        in[at] = keep;
        want[i] = sum / (2 * h);
        got[i] = dx[at];
    }
    double off = distance_d(got, want, SAMPLES / 2);
    if (!(off < 1e-5)) fail_msg("T %u D %u: norm weights off by %.3g", s->T, s->D, off);
    off = distance_d(got + SAMPLES / 2, want + SAMPLES / 2, SAMPLES / 2);
    if (!(off < 1e-5)) fail_msg("T %u D %u: input off by %.3g", s->T, s->D, off);
    void *all[] = {in_f, coef, dense, angles, dx, in, out, hm[0], hm[1], hm[2], d[0], d[1], d[2]};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
}

static void ropes(struct device *dev) {
    struct prng p;
    prng_seed(&p, 9);
    for (size_t i = 1; i < ARRAY_COUNT(SHAPES); i++) rope_case(dev, &SHAPES[i], &p);
}

TEST_TIMEOUT(ops_rotation_and_its_gradients, 120) {
    each_device(ropes);
}
