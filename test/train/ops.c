/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - every operation, value and gradient, in every flavour, against a plain double reference.
 *
 * The reference is the formula, in double, over one vector that holds all inputs one after another.
 * With random coefficients c the scalar L = sum c_j out_j has a gradient that central differences give
 * to about 1e-9; the kernel's gradient for dout = c must agree. Where there are many inputs a random
 * sample of them is compared. */
#include "support.h"

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

static struct matmul matmul_for(const struct kernels *k, struct pool *pool) {
    struct matmul mm = {.pool = pool, .kernels = k};
    mm.pack_b = mem_alloc(MATMUL_PACK_B, sizeof(float));
    mm.pack_a = mem_alloc((size_t)pool_threads(pool) * MATMUL_PACK_A, sizeof(float));
    return mm;
}

static void matmul_done(struct matmul *mm) {
    mem_free(mm->pack_a);
    mem_free(mm->pack_b);
    pool_destroy(mm->pool);
}

static void product_case(const struct kernels *k, struct product s, uint32_t threads) {
    struct prng p;
    struct check c;
    struct pool *pool;
    struct err e;
    assert_int_equal(pool_create(threads, &pool, &e), BRG_OK);
    prng_seed(&p, s.M * 31 + s.N * 7 + s.K);
    check_init(&c, &p, product_reference, &s, (s.M + s.N) * s.K, s.M * s.N);
    struct matmul mm = matmul_for(k, pool);
    const float *x = c.in_f, *w = c.in_f + s.M * s.K, *dy = c.coef_f;
    float *y = mem_alloc(s.M * s.N, 4), *dx = mem_alloc(s.M * s.K, 4),
          *dw = mem_alloc(s.N * s.K, 4);
    matmul_run(&mm, MATMUL_NT, s.M, s.N, s.K, x, w, y, NULL);
    check_value(&c, "product", y);
    matmul_run(&mm, MATMUL_NN, s.M, s.K, s.N, dy, w, dx, NULL);
    check_gradient(&c, &p, "product by input", 0, s.M * s.K, dx);
    matmul_run(&mm, MATMUL_TN, s.N, s.K, s.M, dy, x, dw, NULL);
    check_gradient(&c, &p, "product by weight", s.M * s.K, s.N * s.K, dw);
    /* with something to add: add + product */
    float *add = random_floats(&p, s.M * s.N, 1.0), *z = mem_alloc(s.M * s.N, 4);
    matmul_run(&mm, MATMUL_NT, s.M, s.N, s.K, x, w, z, add);
    for (size_t i = 0; i < s.M * s.N; i++)
        assert_true(fabs((double)z[i] - c.out[i] - (double)add[i]) < 1e-4);
    matmul_run(&mm, MATMUL_NT, s.M, s.N, s.K, x, w, add, add);
    assert_memory_equal(add, z, s.M * s.N * 4);
    float *all[] = {y, dx, dw, add, z};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
    matmul_done(&mm);
    check_fini(&c);
}

static void products(const struct kernels *k) {
    static const struct product cases[] = {{1, 1, 1},   {1, 33, 7},   {7, 1, 5},   {6, 16, 8},
                                           {13, 35, 3}, {50, 70, 19}, {97, 40, 60}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) product_case(k, cases[i], 1 + (uint32_t)i % 3);
}

TEST(train_product_and_its_gradients) {
    each_flavour(products);
}

/* Long sums and more blocks than one: values only, and bits over 1, 2, 3 threads. */
static void large_product(const struct kernels *k) {
    struct product s = {203, 1100, 530};
    struct prng p;
    struct err e;
    prng_seed(&p, 5);
    float *x = random_floats(&p, s.M * s.K, 1), *w = random_floats(&p, s.N * s.K, 1);
    float *y[3];
    for (uint32_t i = 0; i < 3; i++) {
        struct pool *pool;
        assert_int_equal(pool_create(i + 1, &pool, &e), BRG_OK);
        struct matmul mm = matmul_for(k, pool);
        y[i] = mem_alloc(s.M * s.N, 4);
        matmul_run(&mm, MATMUL_NT, s.M, s.N, s.K, x, w, y[i], NULL);
        matmul_done(&mm);
    }
    assert_memory_equal(y[0], y[1], s.M * s.N * 4);
    assert_memory_equal(y[0], y[2], s.M * s.N * 4);
    for (size_t n = 0; n < 3000; n++) {
        size_t i = prng_below(&p, s.M), j = prng_below(&p, s.N);
        double sum = 0;
        for (size_t q = 0; q < s.K; q++) sum += (double)x[i * s.K + q] * (double)w[j * s.K + q];
        assert_true(fabs(sum - (double)y[0][i * s.N + j]) < 1e-3);
    }
    for (uint32_t i = 0; i < 3; i++) mem_free(y[i]);
    mem_free(x);
    mem_free(w);
}

TEST(train_product_of_many_blocks_has_the_same_bits_for_any_threads) {
    each_flavour(large_product);
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

static void norms(const struct kernels *k) {
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
        k->rmsnorm(y, rstd, c.in_f, c.in_f + n, s.rows, s.C, (float)s.eps);
        check_value(&c, "norm", y);
        k->rmsnorm_back(dx, dw, c.coef_f, c.in_f, rstd, c.in_f + n, s.rows, s.C);
        for (size_t j = 0; j < n; j++) dx[j] -= before[j]; /* it is added to */
        if (s.C > 1) check_gradient(&c, &p, "norm by input", 0, n, dx);
        check_gradient(&c, &p, "norm by weight", n, s.C, dw);
        float *all[] = {y, rstd, dw, dx, before};
        for (size_t j = 0; j < ARRAY_COUNT(all); j++) mem_free(all[j]);
        check_fini(&c);
    }
}

TEST(train_norm_and_its_gradients) {
    each_flavour(norms);
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

static void swiglus(const struct kernels *k) {
    static const size_t widths[] = {1, 3, 16, 37};
    for (size_t i = 0; i < ARRAY_COUNT(widths); i++) {
        size_t s[2] = {3, widths[i]}, n = s[0] * s[1];
        struct prng p;
        struct check c;
        prng_seed(&p, i);
        check_init(&c, &p, swiglu_reference, s, 2 * n, n);
        for (size_t j = 0; j < 2 * n; j++) c.in_f[j] *= 3.0f;
        float *act = mem_alloc(n, 4), *dgu = mem_alloc(2 * n, 4);
        k->swiglu(act, c.in_f, s[0], s[1]);
        check_value(&c, "swiglu", act);
        k->swiglu_back(dgu, c.in_f, c.coef_f, s[0], s[1]);
        check_gradient(&c, &p, "swiglu", 0, 2 * n, dgu);
        memcpy(act, c.coef_f, n * 4);
        k->swiglu_back(c.in_f, c.in_f, act, s[0], s[1]); /* in place */
        assert_memory_equal(c.in_f, dgu, 2 * n * 4);
        mem_free(act);
        mem_free(dgu);
        check_fini(&c);
    }
}

TEST(train_swiglu_and_its_gradient) {
    each_flavour(swiglus);
}

static void swiglu_extremes(const struct kernels *k) {
    float gu[12] = {-1000, -88, -30, 30, 88, 1000, 1, 1, 1, 1, 1, 1}, act[6], d[12];
    float one[6] = {1, 1, 1, 1, 1, 1};
    k->swiglu(act, gu, 1, 6);
    k->swiglu_back(d, gu, one, 1, 6);
    for (int i = 0; i < 6; i++)
        assert_true(isfinite(act[i]) && isfinite(d[i]) && isfinite(d[6 + i]));
    assert_true(fabsf(act[0]) < 1e-20f && act[5] == 1000.0f && act[3] == 30.0f);
}

TEST(train_swiglu_of_large_inputs_is_finite) {
    each_flavour(swiglu_extremes);
}

/* ---- cross-entropy --------------------------------------------------------------------------------- */
struct entropy_shape {
    size_t V;
    int32_t target;
};

static void entropy_reference(const void *shape, const double *in, double *out) {
    const struct entropy_shape *s = shape;
    double sum = 0, top = -INFINITY;
    for (size_t i = 0; i < s->V; i++) top = fmax(top, in[i]);
    for (size_t i = 0; i < s->V; i++) sum += exp(in[i] - top);
    out[0] = log(sum) + top - in[s->target];
}

static void entropies(const struct kernels *k) {
    static const size_t sizes[] = {2, 7, 16, 33, 301};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
        struct prng p;
        struct check c;
        prng_seed(&p, i);
        struct entropy_shape s = {sizes[i], (int32_t)prng_below(&p, sizes[i])};
        check_init(&c, &p, entropy_reference, &s, s.V, 1);
        for (size_t j = 0; j < s.V; j++) c.in_f[j] *= 5.0f;
        c.coef_f[0] = 0.25f;
        float *z = mem_alloc(s.V, 4);
        memcpy(z, c.in_f, s.V * 4);
        float loss = k->cross_entropy(z, s.V, s.target, 0.0f);
        assert_memory_equal(z, c.in_f, s.V * 4);
        /* a loss near 0 is exact to one ulp of 1, not of itself */
        for (size_t j = 0; j < s.V; j++) c.in[j] = (double)c.in_f[j];
        entropy_reference(&s, c.in, c.out);
        assert_true(fabs((double)loss - c.out[0]) < 1e-6 * (1 + c.out[0]));
        c.coef[0] = (double)c.coef_f[0];
        assert_true(k->cross_entropy(z, s.V, s.target, 0.25f) == loss);
        check_gradient(&c, &p, "cross-entropy", 0, s.V, z);
        mem_free(z);
        check_fini(&c);
    }
}

TEST(train_cross_entropy_and_its_gradient) {
    each_flavour(entropies);
}

static void entropy_extremes(const struct kernels *k) {
    float z[19], g[19];
    for (int i = 0; i < 19; i++) z[i] = i == 4 ? 3e30f : -3e30f;
    memcpy(g, z, sizeof g);
    assert_true(k->cross_entropy(g, 19, 4, 1.0f) == 0.0f);
    for (int i = 0; i < 19; i++) assert_true(g[i] == 0.0f);
    memcpy(g, z, sizeof g);
    assert_true(isfinite(k->cross_entropy(g, 19, 5, 1.0f)));
    for (int i = 0; i < 3; i++) { /* a logit that is no number shows, wherever it stands */
        memcpy(g, z, sizeof g);
        g[(int[]){0, 10, 18}[i]] = NAN;
        assert_true(isnan(k->cross_entropy(g, 19, 4, 0.0f)));
    }
}

TEST(train_cross_entropy_of_extreme_logits) {
    each_flavour(entropy_extremes);
}
