/* SPDX-License-Identifier: Apache-2.0 */
/* golden.c - the whole model against numbers that automatic differentiation in float64 gave
 * (test/golden/make_qwen3.py): loss, gradient of every tensor, one clipped AdamW step. */
#include "support.h"

static void compare(const struct golden *g, const char *what, const float *is, const float *want,
                    double most) {
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < g->table.count; i++) {
        double d = distance(is + at, want + at, g->table.v[i].elements);
        if (!(d <= most)) fail_msg("%s of %s is off by %.3g", what, g->table.v[i].name, d);
        worst = d > worst ? d : worst;
        at += g->table.v[i].elements;
    }
    print_message("%s: worst relative error of a tensor %.2e\n", what, worst);
}

static const char *golden_name;

static void check_golden(const char *device) {
    struct golden g;
    golden_load(golden_name, &g);
    struct trainer *t = make_trainer(&g.model, g.T, g.rows, 0, 2, device);
    struct err e = {0};
    double norm = 0;
    memcpy(trainer_theta(t), g.theta, trainer_parameters(t) * sizeof(float));
    double loss0 = trainer_loss(t, g.ids, g.rows), loss = trainer_gradient(t, g.ids, g.rows);
    print_message("loss %.9f, expected %.9f\n", loss, g.loss);
    assert_true(loss == loss0);
    assert_true(fabs(loss - g.loss) <= 2e-6 * g.loss);
    compare(&g, "gradient", trainer_grad(t), g.grad, 1e-4);
    assert_int_equal(trainer_update(t, &g.adamw, g.lr, &norm, &e), BRG_OK);
    assert_true(fabs(norm - g.norm) <= 1e-5 * g.norm);
    assert_int_equal(trainer_steps(t), 1);
    compare(&g, "step", trainer_theta(t), g.stepped, 1e-4);
    trainer_destroy(t);
    golden_free(&g);
}

TEST(train_golden_tied) {
    golden_name = "qwen3_tied";
    each_device(check_golden);
}

TEST(train_golden_untied) {
    golden_name = "qwen3_untied";
    each_device(check_golden);
}

TEST(train_golden_in_micro_batches) {
    struct golden g;
    golden_load("qwen3_tied", &g);
    struct trainer *t = make_trainer(&g.model, g.T, g.rows, 2, 2, NULL);
    memcpy(trainer_theta(t), g.theta, trainer_parameters(t) * sizeof(float));
    double loss = trainer_gradient(t, g.ids, g.rows);
    assert_true(fabs(loss - g.loss) <= 2e-6 * g.loss);
    compare(&g, "gradient", trainer_grad(t), g.grad, 1e-4);
    trainer_destroy(t);
    golden_free(&g);
}
