/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's step of a synchronous round (outer/adamw.c) against the trainer's own: with one site they give the same
 * bits, clipped or not, for weights that decay and weights that do not. */
#include "support.h"

#include "outer/outer.h"

struct hub_side {
    float *theta, *m, *v, *mean;
    struct outer_past past;
};

static void hub_step_by(struct hub_side *h, const struct tensors *table, const struct adamw *a,
                        double lr, const float *gradient, size_t n) {
    const struct outer_inner inner = {a->beta1, a->beta2, a->eps, a->weight_decay, a->clip};
    const struct outer_part part = {.site = 1, .tokens = 64, .steps = 1};
    struct outer_rule rule = outer_rule_default();
    struct outer_round round;
    struct outer_adamw step;
    double weight;
    outer_adamw_compute(&rule, &h->past, &inner, lr, &part, 1, &round, &step, &weight);
    double clip = outer_adamw_clip(&step, outer_adamw_mean(&weight, 1, &gradient, n, h->mean, 0));
    size_t at = 0;
    for (size_t i = 0; i < table->count; i++) {
        size_t count = (size_t)table->v[i].elements;
        outer_adamw_chunk(&step, clip, table->v[i].dims > 1, h->theta + at, h->m + at, h->v + at,
                          h->mean + at, count);
        at += count;
    }
    assert_int_equal(at, n);
    h->past.adamw = step.step;
}

static void same_bits(const char *device) {
    struct model_config c = small_model(8);
    struct trainer *t = make_trainer(&c, 4, 1, 0, 2, device);
    struct tensors table = {0};
    struct prng p;
    model_tensors(&c, &table);
    prng_seed(&p, 4);
    size_t n = trainer_parameters(t);
    random_weights(&c, 1, trainer_theta(t));
    struct hub_side h = {.theta = mem_alloc(n, 4),
                         .m = mem_alloc(n, 4),
                         .v = mem_alloc(n, 4),
                         .mean = mem_alloc(n, 4)};
    memcpy(h.theta, trainer_theta(t), 4 * n);
    struct adamw a = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
    for (int k = 1; k <= 30; k++) {
        struct err e = {0};
        double norm, size = k % 3 ? 1.0 : 1e-4, lr = 1e-3 * k; /* clipped and not clipped */
        for (size_t i = 0; i < n; i++) trainer_grad(t)[i] = (float)(size * prng_normal(&p));
        hub_step_by(&h, &table, &a, lr, trainer_grad(t), n);
        assert_int_equal(trainer_update(t, &a, lr, &norm, &e), BRG_OK);
        assert_int_equal(norm > a.clip, k % 3 != 0);
        assert_memory_equal(h.m, trainer_m(t), 4 * n);
        assert_memory_equal(h.v, trainer_v(t), 4 * n);
        assert_memory_equal(h.theta, trainer_theta(t), 4 * n);
    }
    mem_free(h.theta);
    mem_free(h.m);
    mem_free(h.v);
    mem_free(h.mean);
    tensors_fini(&table);
    trainer_destroy(t);
}

TEST(train_a_synchronous_step_of_one_site_has_the_trainers_bits) {
    each_device(same_bits);
}
