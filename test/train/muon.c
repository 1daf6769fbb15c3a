/* SPDX-License-Identifier: Apache-2.0 */
/* muon.c - Muon: against float64 (test/golden/make_muon.py), the bits for any number of threads, what it
 * promises about the size of a step, and who may use it. */
#include "support.h"

#include "outer/outer.h"
#include "ranks.h"

enum { GOLDEN_STEPS = 4 };

static struct trainer *make(const struct model_config *c, const struct muon *muon, uint32_t threads,
                            const char *device, enum precision precision) {
    struct trainer_options o = {.model = c,
                                .seq_len = 8,
                                .batch_max = 3,
                                .threads = threads,
                                .device = device,
                                .precision = precision,
                                .muon = muon};
    struct trainer *t = NULL;
    struct err e = {0};
    if (trainer_create(&o, &t, &e)) fail_msg("%s", e.text);
    return t;
}

struct reference {
    struct model_config model;
    struct adamw adamw;
    struct muon muon;
    double lr;
    size_t P;
    float *theta, *grad[GOLDEN_STEPS], *want[3];
};

static float *bits_of(FILE *f, size_t n) {
    float *x = mem_alloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        assert_int_equal(fscanf(f, "%x", &u), 1);
        memcpy(&x[i], &u, sizeof u);
    }
    return x;
}

static void reference_read(struct reference *r) {
    char title[16];
    FILE *f = fopen("test/golden/muon-v1.txt", "r");
    assert_non_null(f);
    struct model_config *c = &r->model;
    *c = (struct model_config){.max_position_embeddings = 64,
                               .rms_norm_eps = 1e-6,
                               .rope_theta = 10000,
                               .initializer_range = 0.02,
                               .tie_word_embeddings = true};
    assert_int_equal(fscanf(f, "%15s", title), 1);
    assert_string_equal(title, "muon-v1");
    assert_int_equal(fscanf(f, "%u %u %u %u %u %u %u", &c->vocab_size, &c->hidden_size,
                            &c->intermediate_size, &c->num_hidden_layers, &c->num_attention_heads,
                            &c->num_key_value_heads, &c->head_dim),
                     7);
    struct adamw *a = &r->adamw;
    assert_int_equal(fscanf(f, "%la %la %la %la %la %la %la %la", &r->lr, &a->weight_decay,
                            &a->clip, &a->beta1, &a->beta2, &a->eps, &r->muon.momentum,
                            &r->muon.lr_ratio),
                     8);
    r->P = model_parameters(c);
    r->theta = bits_of(f, r->P);
    for (int i = 0; i < GOLDEN_STEPS; i++) r->grad[i] = bits_of(f, r->P);
    for (int i = 0; i < 3; i++) r->want[i] = bits_of(f, r->P);
    fclose(f);
}

static void reference_free(struct reference *r) {
    mem_free(r->theta);
    for (int i = 0; i < GOLDEN_STEPS; i++) mem_free(r->grad[i]);
    for (int i = 0; i < 3; i++) mem_free(r->want[i]);
}

/* The distance of what theta moved by, tensor by tensor: theta itself hardly moves. */
static double moved_apart(const struct reference *r, const float *theta) {
    struct tensors table = {0};
    size_t at = 0;
    double worst = 0;
    model_tensors(&r->model, &table);
    for (size_t i = 0; i < table.count; at += table.v[i++].elements) {
        double d = 0, s = 0;
        for (size_t k = at; k < at + table.v[i].elements; k++) {
            double moved = (double)theta[k] - (double)r->theta[k];
            double want = (double)r->want[0][k] - (double)r->theta[k];
            d += (moved - want) * (moved - want);
            s += want * want;
        }
        worst = fmax(worst, sqrt(d / s));
    }
    tensors_fini(&table);
    return worst;
}

static void against_float64(const char *device) {
    struct reference r;
    reference_read(&r);
    struct trainer *t = make(&r.model, &r.muon, 2, device, PRECISION_F32);
    struct err e;
    double norm;
    memcpy(trainer_theta(t), r.theta, r.P * sizeof(float));
    for (int i = 0; i < GOLDEN_STEPS; i++) {
        memcpy(trainer_grad(t), r.grad[i], r.P * sizeof(float));
        assert_int_equal(trainer_update(t, &r.adamw, r.lr, &norm, &e), BRG_OK);
    }
    double apart = moved_apart(&r, trainer_theta(t));
    print_message("worst tensor's relative error %.2e\n", apart);
    assert_true(apart < 2e-4);
    assert_true(distance(trainer_m(t), r.want[1], r.P) < 1e-6);
    AUTO_FREE float *v = mem_alloc(r.P, sizeof *v);
    for (size_t at = 0; at < r.P; at += 77) /* in pieces that cut tensors */
        trainer_moment_get(t, MOMENT_V, at, r.P - at < 77 ? r.P - at : 77, v + at);
    assert_true(distance(v, r.want[2], r.P) < 1e-6);
    assert_null(trainer_v(t));
    trainer_destroy(t);
    reference_free(&r);
}

TEST(muon_follows_float64) {
    each_device(against_float64);
}

/* Just large enough for a matrix of two chunks. */
static struct model_config wide_model(void) {
    struct model_config c = small_model(3);
    c.hidden_size = 140;
    c.num_hidden_layers = 1;
    c.intermediate_size = 470;
    return c;
}

static void steps(struct trainer *t, int n, uint64_t seed) {
    struct adamw a = adamw_default();
    struct err e;
    struct prng p;
    double norm;
    prng_seed(&p, seed);
    for (int i = 0; i < n; i++) {
        for (uint64_t k = 0; k < trainer_parameters(t); k++)
            trainer_grad(t)[k] = (float)prng_normal(&p);
        assert_int_equal(trainer_update(t, &a, 1e-2, &norm, &e), BRG_OK);
    }
}

static void any_threads(enum precision precision) {
    struct model_config c = wide_model();
    struct muon muon = muon_default();
    struct trainer *t[3];
    size_t bytes = model_parameters(&c) * sizeof(float);
    for (uint32_t i = 0; i < 3; i++) {
        t[i] = make(&c, &muon, i + 1, NULL, precision);
        model_init(&c, 1, trainer_theta(t[i]));
        steps(t[i], 2, 5);
        assert_memory_equal(trainer_theta(t[i]), trainer_theta(t[0]), bytes);
        assert_memory_equal(trainer_m(t[i]), trainer_m(t[0]), bytes);
    }
    for (int i = 0; i < 3; i++) trainer_destroy(t[i]);
}

TEST_TIMEOUT(muon_T1_bits_are_the_same_for_1_2_and_3_threads, 240) {
    any_threads(PRECISION_F32);
    any_threads(PRECISION_BF16);
}

/* No step moves a weight farther than outer_muon_bound says, and a usual one moves it as far as AdamW would. */
TEST_TIMEOUT(muon_steps_have_the_size_that_is_promised, 240) {
    struct model_config c = wide_model();
    struct muon muon = {.momentum = 0.95, .lr_ratio = 1.5};
    struct trainer *t = make(&c, &muon, 2, NULL, PRECISION_F32);
    size_t P = model_parameters(&c);
    struct tensors table = {0};
    model_tensors(&c, &table);
    assert_int_equal(muon_side(&table), 470);
    tensors_fini(&table);
    double reach = outer_muon_bound(muon.lr_ratio, 470, 0, 0), most = 0, sum = 0, count = 0;
    AUTO_FREE float *before = mem_alloc(P, sizeof *before);
    struct adamw a = adamw_default();
    struct err e;
    struct prng p;
    double norm, lr = 1e-2;
    a.weight_decay = 0;
    prng_seed(&p, 9);
    for (int n = 0; n < 6; n++) {
        memcpy(before, trainer_theta(t), P * sizeof *before);
        for (size_t k = 0; k < P; k++) /* one element far above the others, or none */
            trainer_grad(t)[k] = (float)prng_normal(&p) * (n % 3 == 0 && k % 997 == 5 ? 1e4f : 1);
        assert_int_equal(trainer_update(t, &a, lr, &norm, &e), BRG_OK);
        for (size_t i = 0; i < t->matrices_count; i++)
            for (size_t k = t->matrices[i].offset;
                 k < t->matrices[i].offset + t->matrices[i].rows * t->matrices[i].columns; k++) {
                double moved = fabs((double)trainer_theta(t)[k] - (double)before[k]) / lr;
                most = fmax(most, moved);
                sum += n % 3 == 0 ? 0 : moved * moved;
                count += n % 3 != 0;
            }
    }
    print_message("farthest %.3f of at most %.3f; usual %.3f\n", most, reach, sqrt(sum / count));
    assert_true(most <= reach);
    assert_true(most > 0.01 * reach);
    assert_true(sqrt(sum / count) > 0.1 * muon.lr_ratio);
    assert_true(sqrt(sum / count) < 0.25 * muon.lr_ratio);
    trainer_destroy(t);
}

TEST(muon_T2_a_gradient_that_is_not_finite_changes_nothing) {
    struct model_config c = small_model(7);
    struct muon muon = muon_default();
    struct trainer *t = make(&c, &muon, 2, NULL, PRECISION_F32);
    size_t P = model_parameters(&c);
    struct adamw a = adamw_default();
    struct err e = {0};
    double norm = -1;
    random_weights(&c, 1, trainer_theta(t));
    steps(t, 2, 3);
    AUTO_FREE float *before = mem_alloc(2 * P, sizeof *before);
    memcpy(before, trainer_theta(t), P * sizeof *before);
    memcpy(before + P, trainer_m(t), P * sizeof *before);
    trainer_grad(t)[t->matrices[1].offset + 1] = NAN;
    assert_int_equal(trainer_update(t, &a, 1e-2, &norm, &e), BRG_E_NONFINITE);
    assert_memory_equal(before, trainer_theta(t), P * sizeof *before);
    assert_memory_equal(before + P, trainer_m(t), P * sizeof *before);
    assert_int_equal(trainer_steps(t), 2);
    trainer_destroy(t);
}

/* A gradient of nothing: no division by its norm. */
TEST(muon_a_gradient_of_zeros_only_decays) {
    struct model_config c = small_model(7);
    struct muon muon = muon_default();
    struct trainer *t = make(&c, &muon, 1, NULL, PRECISION_F32);
    struct adamw a = adamw_default();
    struct err e;
    double norm;
    random_weights(&c, 1, trainer_theta(t));
    size_t at = t->matrices[0].offset;
    double before = (double)trainer_theta(t)[at];
    memset(trainer_grad(t), 0, model_parameters(&c) * sizeof(float));
    assert_int_equal(trainer_update(t, &a, 1e-2, &norm, &e), BRG_OK);
    assert_true(fabs((double)trainer_theta(t)[at] - before * (1 - 1e-2 * a.weight_decay)) <
                1e-6 * fabs(before));
    trainer_destroy(t);
}

static void try_with_ranks(void *ctx, struct dp_net *net) {
    struct model_config c = small_model(2);
    struct muon muon = muon_default();
    struct trainer_options o = {
        .model = &c, .seq_len = 8, .batch_max = 2, .threads = 1, .net = net, .muon = &muon};
    struct trainer *t = NULL;
    struct err e = {0};
    (void)ctx;
    assert_int_equal(trainer_create(&o, &t, &e), BRG_E_CONFIG);
    assert_null(t);
    assert_non_null(strstr(e.text, "optimizer adamw"));
}

TEST(muon_with_other_ranks_is_refused_with_the_remedy) {
    ranks_run(2, 0, try_with_ranks, NULL);
}

TEST(muon_names_go_both_ways) {
    enum optimizer o = OPTIMIZER_ADAMW;
    assert_true(optimizer_parse("muon", &o));
    assert_int_equal(o, OPTIMIZER_MUON);
    assert_string_equal(optimizer_name(o), "muon");
    assert_true(optimizer_parse("adamw", &o));
    assert_string_equal(optimizer_name(o), "adamw");
    assert_false(optimizer_parse("sgd", &o));
}
