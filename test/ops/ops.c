/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - every operation, value and gradient, on every device, against a plain double reference.
 *
 * The reference is the formula, in double, over one vector that holds all inputs one after another.
 * With random coefficients c the scalar L = sum c_j out_j has a gradient that central differences give
 * to about 1e-9; the kernel's gradient for dout = c must agree. Where there are many inputs a random
 * sample of them is compared. */
#include "ops.h"

enum { SAMPLES = 160 };
typedef void op(const void *shape, const double *in, double *out);

struct check {
    op *reference;
    const void *shape;
    size_t in_count, out_count;
    double *in, *out, *coef;
    float *in_f, *coef_f; /* what the kernel gets: the same numbers */
};

static double scalar(struct check *c) {
    double sum = 0;
    c->reference(c->shape, c->in, c->out);
    for (size_t i = 0; i < c->out_count; i++) sum += c->coef[i] * c->out[i];
    return sum;
}

static void check_init(struct check *c, struct prng *p, op *reference, const void *shape, size_t in,
                       size_t out) {
    *c = (struct check){.reference = reference, .shape = shape, .in_count = in, .out_count = out};
    c->in_f = random_floats(p, in, 0.7);
    c->coef_f = random_floats(p, out, 1.0);
    c->in = mem_alloc(in, sizeof(double));
    c->coef = mem_alloc(out, sizeof(double));
    c->out = mem_alloc(out, sizeof(double));
}

/* After in_f was given its last changes. */
static void check_value(struct check *c, const char *what, const float *is) {
    for (size_t i = 0; i < c->in_count; i++) c->in[i] = (double)c->in_f[i];
    for (size_t i = 0; i < c->out_count; i++) c->coef[i] = (double)c->coef_f[i];
    c->reference(c->shape, c->in, c->out);
    double d = distance_d(is, c->out, c->out_count);
    if (!(d <= 3e-6)) fail_msg("%s: value off by %.3g", what, d);
}

/* Gradient of the inputs [from, from+n): is[n]. */
static void check_gradient(struct check *c, struct prng *p, const char *what, size_t from, size_t n,
                           const float *is) {
    float got[SAMPLES];
    double want[SAMPLES], h = 1e-5;
    size_t samples = n < SAMPLES ? n : SAMPLES;
    for (size_t s = 0; s < samples; s++) {
        size_t i = n <= SAMPLES ? s : prng_below(p, n);
        double x = c->in[from + i], up, down;
        c->in[from + i] = x + h;
        up = scalar(c);
        c->in[from + i] = x - h;
        down = scalar(c);
        c->in[from + i] = x;
        want[s] = (up - down) / (2 * h);
        got[s] = is[i];
    }
    double d = distance_d(got, want, samples);
    if (!(d <= 2e-5)) fail_msg("%s: gradient off by %.3g", what, d);
}

static void check_fini(struct check *c) {
    mem_free(c->in_f);
    mem_free(c->coef_f);
    mem_free(c->in);
    mem_free(c->coef);
    mem_free(c->out);
}

/* ---- matrix product ------------------------------------------------------------------------------ */
struct product {
    size_t M, N, K;
};

static void product_reference(const void *shape, const double *in, double *out) {
    const struct product *s = shape;
    const double *x = in, *w = in + s->M * s->K;
    for (size_t i = 0; i < s->M; i++)
        for (size_t j = 0; j < s->N; j++) {
            double sum = 0;
            for (size_t k = 0; k < s->K; k++) sum += x[i * s->K + k] * w[j * s->K + k];
            out[i * s->N + j] = sum;
        }
}

static void product_case(struct device *dev, struct product s) {
    struct prng p;
    struct check c;
    prng_seed(&p, s.M * 31 + s.N * 7 + s.K);
    check_init(&c, &p, product_reference, &s, (s.M + s.N) * s.K, s.M * s.N);
    const float *x = c.in_f, *w = c.in_f + s.M * s.K, *dy = c.coef_f;
    float *y = mem_alloc(s.M * s.N, 4), *dx = mem_alloc(s.M * s.K, 4),
          *dw = mem_alloc(s.N * s.K, 4);
    dev->ops->matmul(dev, MATMUL_NT, s.M, s.N, s.K, x, w, y, NULL);
    check_value(&c, "product", y);
    dev->ops->matmul(dev, MATMUL_NN, s.M, s.K, s.N, dy, w, dx, NULL);
    check_gradient(&c, &p, "product by input", 0, s.M * s.K, dx);
    dev->ops->matmul(dev, MATMUL_TN, s.N, s.K, s.M, dy, x, dw, NULL);
    check_gradient(&c, &p, "product by weight", s.M * s.K, s.N * s.K, dw);
    /* with something to add: add + product */
    float *add = random_floats(&p, s.M * s.N, 1.0), *z = mem_alloc(s.M * s.N, 4);
    dev->ops->matmul(dev, MATMUL_NT, s.M, s.N, s.K, x, w, z, add);
    for (size_t i = 0; i < s.M * s.N; i++)
        assert_true(fabs((double)z[i] - c.out[i] - (double)add[i]) < 1e-4);
    dev->ops->matmul(dev, MATMUL_NT, s.M, s.N, s.K, x, w, add, add);
    assert_memory_equal(add, z, s.M * s.N * 4);
    float *all[] = {y, dx, dw, add, z};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
    check_fini(&c);
}

static void products(struct device *dev) {
    static const struct product cases[] = {{1, 1, 1},   {1, 33, 7},   {7, 1, 5},   {6, 16, 8},
                                           {13, 35, 3}, {50, 70, 19}, {97, 40, 60}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) product_case(dev, cases[i]);
}

TEST(ops_product_and_its_gradients) {
    each_device(products);
}

/* Long sums and more blocks than one: values, and bits over 1, 2, 3 threads. */
static void large_product(struct device *dev, enum matmul_form form) {
    struct product s = {203, 1100, 530};
    struct prng p;
    struct err e;
    prng_seed(&p, 5);
    float *x = random_floats(&p, s.M * s.K, 1), *w = random_floats(&p, s.N * s.K, 1);
    float *y[3];
    for (uint32_t i = 0; i < 3; i++) {
        struct device *d;
        y[i] = mem_alloc(s.M * s.N, 4);
        assert_int_equal(device_open(dev->name, i + 1, dev->precision, &d, &e), BRG_OK);
        struct device *bound = ops_bind(d);
        d->ops->matmul(d, form, s.M, s.N, s.K, x, w, y[i], NULL);
        ops_close(bound);
    }
    assert_memory_equal(y[0], y[1], s.M * s.N * 4);
    assert_memory_equal(y[0], y[2], s.M * s.N * 4);
    size_t a_row = form == MATMUL_TN ? 1 : s.K, a_col = form == MATMUL_TN ? s.M : 1;
    size_t b_row = form == MATMUL_NT ? 1 : s.N, b_col = form == MATMUL_NT ? s.K : 1;
    for (size_t n = 0; n < 3000; n++) {
        size_t i = prng_below(&p, s.M), j = prng_below(&p, s.N);
        double sum = 0;
        for (size_t q = 0; q < s.K; q++)
            sum += (double)x[i * a_row + q * a_col] * (double)w[q * b_row + j * b_col];
        assert_true(fabs(sum - (double)y[0][i * s.N + j]) < 1e-3);
    }
    for (uint32_t i = 0; i < 3; i++) mem_free(y[i]);
    mem_free(x);
    mem_free(w);
}

static void large_products(struct device *dev) {
    large_product(dev, MATMUL_NT);
    large_product(dev, MATMUL_NN);
    large_product(dev, MATMUL_TN);
}

TEST_TIMEOUT(ops_V1_product_of_many_blocks_has_the_same_bits_for_any_threads, 120) {
    each_device(large_products);
}

/* ---- norm ---------------------------------------------------------------------------------------- */
struct norm_shape {
    size_t rows, C;
    double eps;
};

static void norm_reference(const void *shape, const double *in, double *out) {
    const struct norm_shape *s = shape;
    const double *x = in, *w = in + s->rows * s->C;
    for (size_t r = 0; r < s->rows; r++) {
        double sum = 0;
        for (size_t i = 0; i < s->C; i++) sum += x[r * s->C + i] * x[r * s->C + i];
        double f = 1 / sqrt(sum / (double)s->C + s->eps);
        for (size_t i = 0; i < s->C; i++) out[r * s->C + i] = w[i] * x[r * s->C + i] * f;
    }
}

static void norms(struct device *dev) {
    static const struct norm_shape cases[] = {
        {1, 1, 1e-5}, {3, 5, 1e-6}, {4, 16, 1e-6}, {5, 61, 1e-6}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct norm_shape s = cases[i];
        struct prng p;
        struct check c;
        size_t n = s.rows * s.C;
        prng_seed(&p, i);
        check_init(&c, &p, norm_reference, &s, n + s.C, n);
        float *y = mem_alloc(n, 4), *rstd = mem_alloc(s.rows, 4), *dw = mem_alloc(s.C, 4);
        float *dx = random_floats(&p, n, 1), *before = mem_alloc(n, 4);
        memcpy(before, dx, n * 4);
        dev->ops->norm(dev, y, rstd, c.in_f, c.in_f + n, s.rows, s.C, (float)s.eps, false);
        check_value(&c, "norm", y);
        dev->ops->norm_back(dev, dx, dw, false, c.coef_f, c.in_f, rstd, c.in_f + n, s.rows, s.C);
        for (size_t j = 0; j < n; j++) dx[j] -= before[j]; /* it is added to */
        if (s.C > 1) check_gradient(&c, &p, "norm by input", 0, n, dx);
        check_gradient(&c, &p, "norm by weight", n, s.C, dw);
        float *all[] = {y, rstd, dw, dx, before};
        for (size_t j = 0; j < ARRAY_COUNT(all); j++) mem_free(all[j]);
        check_fini(&c);
    }
}

TEST(ops_norm_and_its_gradients) {
    each_device(norms);
}

/* ---- SwiGLU -------------------------------------------------------------------------------------- */
static void swiglu_reference(const void *shape, const double *in, double *out) {
    const size_t *s = shape;
    for (size_t r = 0; r < s[0]; r++)
        for (size_t i = 0; i < s[1]; i++) {
            double g = in[r * 2 * s[1] + i], u = in[r * 2 * s[1] + s[1] + i];
            out[r * s[1] + i] = g / (1 + exp(-g)) * u;
        }
}

static void swiglus(struct device *dev) {
    static const size_t widths[] = {1, 3, 16, 37, 200};
    for (size_t i = 0; i < ARRAY_COUNT(widths); i++) {
        size_t s[2] = {i % 2 ? 3 : 70, widths[i]}, n = s[0] * s[1];
        struct prng p;
        struct check c;
        prng_seed(&p, i);
        check_init(&c, &p, swiglu_reference, s, 2 * n, n);
        for (size_t j = 0; j < 2 * n; j++) c.in_f[j] *= 3.0f;
        float *act = mem_alloc(n, 4), *dgu = mem_alloc(2 * n, 4);
        dev->ops->swiglu(dev, act, c.in_f, s[0], s[1]);
        check_value(&c, "swiglu", act);
        memcpy(dgu, c.in_f, 2 * n * 4);
        memcpy(act, c.coef_f, n * 4);
        dev->ops->swiglu_back(dev, dgu, act, s[0], s[1]);
        check_gradient(&c, &p, "swiglu", 0, 2 * n, dgu);
        check_value(&c, "swiglu, again", act);
        mem_free(act);
        mem_free(dgu);
        check_fini(&c);
    }
}

TEST(ops_swiglu_and_its_gradient) {
    each_device(swiglus);
}

static void swiglu_extremes(struct device *dev) {
    float gu[12] = {-1000, -88, -30, 30, 88, 1000, 1, 1, 1, 1, 1, 1}, act[6], d[12];
    float one[6] = {1, 1, 1, 1, 1, 1};
    dev->ops->swiglu(dev, act, gu, 1, 6);
    memcpy(d, gu, sizeof d);
    dev->ops->swiglu_back(dev, d, one, 1, 6);
    for (int i = 0; i < 6; i++)
        assert_true(isfinite(act[i]) && isfinite(d[i]) && isfinite(d[6 + i]));
    assert_true(fabsf(act[0]) < 1e-20f && act[5] == 1000.0f && act[3] == 30.0f);
}

TEST(ops_swiglu_of_large_inputs_is_finite) {
    each_device(swiglu_extremes);
}

/* ---- cross-entropy --------------------------------------------------------------------------------- */
struct entropy_shape {
    size_t rows, V;
    double z;
    int32_t targets[9];
};

static void entropy_reference(const void *shape, const double *in, double *out) {
    const struct entropy_shape *s = shape;
    for (size_t r = 0; r < s->rows; r++, in += s->V) {
        double sum = 0, top = -INFINITY;
        for (size_t i = 0; i < s->V; i++) top = fmax(top, in[i]);
        for (size_t i = 0; i < s->V; i++) sum += exp(in[i] - top);
        double lse = log(sum) + top;
        out[r] = lse - in[s->targets[r]] + s->z * lse * lse;
    }
}

static void entropy_case(struct device *dev, size_t rows, size_t V, double z) {
    struct prng p;
    struct check c;
    struct entropy_shape s = {.rows = rows, .V = V, .z = z};
    float losses[9], again[9];
    size_t n = rows * V;
    prng_seed(&p, n);
    for (size_t r = 0; r < rows; r++) s.targets[r] = (int32_t)prng_below(&p, V);
    check_init(&c, &p, entropy_reference, &s, n, rows);
    for (size_t j = 0; j < n; j++) c.in_f[j] *= 5.0f;
    for (size_t r = 0; r < rows; r++) c.coef_f[r] = 0.25f;
    float *logits = mem_alloc(n, 4);
    memcpy(logits, c.in_f, n * 4);
    dev->ops->cross_entropy(dev, losses, logits, s.targets, rows, V, 0.0f, (float)z);
    assert_memory_equal(logits, c.in_f, n * 4);
    for (size_t j = 0; j < n; j++) c.in[j] = (double)c.in_f[j];
    entropy_reference(&s, c.in, c.out);
    for (size_t r = 0; r < rows; r++) { /* a loss near 0 is exact to one ulp of 1, not of itself */
        assert_true(fabs((double)losses[r] - c.out[r]) < 1e-6 * (1 + c.out[r]));
        c.coef[r] = (double)c.coef_f[r];
    }
    dev->ops->cross_entropy(dev, again, logits, s.targets, rows, V, 0.25f, (float)z);
    assert_memory_equal(losses, again, rows * sizeof(float));
    check_gradient(&c, &p, "cross-entropy", 0, n, logits);
    mem_free(logits);
    check_fini(&c);
}

static void entropies(struct device *dev) {
    static const size_t sizes[] = {2, 7, 16, 33, 301};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
        entropy_case(dev, 1, sizes[i], 0);
        entropy_case(dev, 2 * i + 1, sizes[i], 0.01);
    }
}

TEST(ops_cross_entropy_with_z_loss_and_their_gradient) {
    each_device(entropies);
}

static float entropy_row(struct device *dev, float *logits, size_t V, int32_t target, float scale) {
    float loss;
    dev->ops->cross_entropy(dev, &loss, logits, &target, 1, V, scale, 0.0f);
    return loss;
}

static void entropy_extremes(struct device *dev) {
    float z[19], g[19];
    for (int i = 0; i < 19; i++) z[i] = i == 4 ? 3e30f : -3e30f;
    memcpy(g, z, sizeof g);
    assert_true(entropy_row(dev, g, 19, 4, 1.0f) == 0.0f);
    for (int i = 0; i < 19; i++) assert_true(g[i] == 0.0f);
    memcpy(g, z, sizeof g);
    assert_true(isfinite(entropy_row(dev, g, 19, 5, 1.0f)));
    for (int i = 0; i < 3; i++) { /* a logit that is no number shows, wherever it stands */
        memcpy(g, z, sizeof g);
        g[(int[]){0, 10, 18}[i]] = NAN;
        assert_true(isnan(entropy_row(dev, g, 19, 4, 0.0f)));
    }
}

TEST(ops_cross_entropy_of_extreme_logits) {
    each_device(entropy_extremes);
}

/* ---- Embedding, vectors, the optimizer --------------------------------------------------------------- */
static void embeddings(struct device *dev) {
    enum { V = 7, R = 70, C = 37 };
    struct prng p;
    prng_seed(&p, 3);
    float *table = random_floats(&p, V * C, 1), *dy = random_floats(&p, R * C, 1);
    float *y = mem_alloc(R * C, 4), *dtable = random_floats(&p, V * C, 1);
    double *want = mem_alloc(V * C, 8);
    int32_t ids[R];
    for (size_t r = 0; r < R; r++) ids[r] = (int32_t)(prng_below(&p, V - 1)); /* the last never */
    for (size_t i = 0; i < V * C; i++) want[i] = (double)dtable[i];
    dev->ops->embed(dev, y, table, ids, R, C);
    dev->ops->embed_back(dev, dtable, dy, ids, R, C);
    for (size_t r = 0; r < R; r++) {
        assert_memory_equal(y + r * C, table + (size_t)ids[r] * C, C * sizeof(float));
        for (size_t i = 0; i < C; i++) want[(size_t)ids[r] * C + i] += (double)dy[r * C + i];
    }
    assert_true(distance_d(dtable, want, V * C) < 3e-6);
    mem_free(table);
    mem_free(dy);
    mem_free(y);
    mem_free(dtable);
    mem_free(want);
}

TEST(ops_embedding_and_its_gradient) {
    each_device(embeddings);
}

static void vectors(struct device *dev) {
    static const size_t sizes[] = {1, 5, 33, 70001};
    struct prng p;
    prng_seed(&p, 3);
    for (size_t s = 0; s < ARRAY_COUNT(sizes); s++) {
        size_t n = sizes[s];
        float *x = random_floats(&p, n + 1, 1), *y = random_floats(&p, n + 1, 1), behind = y[n];
        float *before = mem_alloc(n, 4);
        memcpy(before, y, n * 4);
        dev->ops->add(dev, y, x, n);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == before[i] + x[i]);
        assert_true(y[n] == behind);
        memcpy(before, y, n * 4);
        dev->ops->axpby(dev, y, x, 0.75f, -1.5f, n);
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)y[i] - (0.75 * (double)x[i] - 1.5 * (double)before[i])) <
                        1e-6);
        assert_true(y[n] == behind);
        for (size_t i = 0; i < n; i++) y[i] = NAN; /* b = 0: nothing is read */
        dev->ops->axpby(dev, y, x, 0.75f, 0, n);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == 0.75f * x[i]);
        assert_true(y[n] == behind);
        dev->ops->zero(dev, y, n);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == 0.0f);
        assert_true(y[n] == behind);
        mem_free(x);
        mem_free(y);
        mem_free(before);
    }
}

TEST(ops_sums_and_zeros_of_vectors) {
    each_device(vectors);
}

/* Pieces of odd sizes with gaps between them; what no piece names stays as it is. */
static void optimizers(struct device *dev) {
    enum { P = 300 };
    static const struct piece pieces[] = {
        {.offset = 1, .count = 3, .moment = 0, .second = 90, .decay = true},
        {.offset = 10, .count = 61, .moment = 5, .second = 5, .decay = false},
        {.offset = 100, .count = 128, .moment = 70, .second = 100, .decay = true}};
    struct adamw_step step = {.lr = 1e-2f,
                              .decay = 0.99f,
                              .clip = 0.5f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .rest1 = 0.1f,
                              .rest2 = 0.05f,
                              .bias1 = 2.0f,
                              .bias2 = 3.0f,
                              .eps = 1e-6f};
    struct prng p;
    prng_seed(&p, 6);
    float *theta = random_floats(&p, P, 1), *m = random_floats(&p, P, 1),
          *v = random_floats(&p, P, 1), *g = random_floats(&p, P, 1);
    for (size_t i = 0; i < P; i++) v[i] = fabsf(v[i]);
    double x[3][P], sums[3], want[3] = {0};
    for (size_t i = 0; i < P; i++) {
        x[0][i] = (double)theta[i];
        x[1][i] = (double)m[i];
        x[2][i] = (double)v[i];
    }
    for (size_t n = 0; n < ARRAY_COUNT(pieces); n++) {
        const struct piece *q = &pieces[n];
        for (size_t i = 0; i < q->count; i++) {
            double *t = &x[0][q->offset + i], *mi = &x[1][q->moment + i],
                   *vi = &x[2][q->second + i];
            double gi = (double)g[q->offset + i];
            want[n] += gi * gi;
            gi *= (double)step.clip;
            *mi = (double)step.beta1 * *mi + (double)step.rest1 * gi;
            *vi = (double)step.beta2 * *vi + (double)step.rest2 * gi * gi;
            *t *= q->decay ? (double)step.decay : 1.0;
            *t -= (double)step.lr * (*mi * (double)step.bias1) /
                  (sqrt(*vi * (double)step.bias2) + (double)step.eps);
        }
    }
    dev->ops->sum_squares(dev, sums, g, pieces, ARRAY_COUNT(pieces));
    for (int n = 0; n < 3; n++) assert_true(fabs(sums[n] - want[n]) < 1e-12 * want[n]);
    dev->ops->adamw(dev, theta, m, v, g, pieces, ARRAY_COUNT(pieces), &step);
    assert_true(distance_d(theta, x[0], P) < 1e-6);
    assert_true(distance_d(m, x[1], P) < 1e-6);
    assert_true(distance_d(v, x[2], P) < 1e-6);
    mem_free(theta);
    mem_free(m);
    mem_free(v);
    mem_free(g);
}

TEST(ops_optimizer_follows_the_formula_on_pieces) {
    each_device(optimizers);
}
