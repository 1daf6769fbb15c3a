/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c - a synchronous round: the sites' gradients, one AdamW step.
 *
 * What it is: the step that a central trainer would take on the union of the sites' samples (decoupled weight decay,
 * arXiv 1711.05101), with the operations and roundings of the native trainer (train/trainer.c, k_adamw), so that one
 * site alone gives that trainer's bits. It is not: the gradients (the sites'), nor which tensors decay (the caller's).
 *
 *   g = sum w_i g_i, w_i = tokens_i / all tokens     in f64, in the order of the parts, rounded to f32 once
 *   g = g min(1, clip / (|g| + 1e-6))                |g|^2 in f64, in the order of the elements
 *   m = b1 m + (1 - b1) g     v = b2 v + (1 - b2) g^2
 *   theta = theta (1 - lr wd) - lr (m c1) / (sqrt(v c2) + eps)          c = 1 / (1 - b^step)
 *
 * Each part counts by its own tokens, also where a site has two: gradients of one version are samples of one mean,
 * and no displacements that would add up.
 *
 * The moments begin at zero with step 1, which is what a run begins with, and what follows a round of another kind or a
 * return to an older version. Then the recorded step number alone says what is in them.
 *
 * Invariants
 *   (O5) the result does not depend on how the vector is cut into chunks: the sum of squares is one chain of additions. */
#include <math.h>

#include "outer/outer.h"

static double bias(double beta, uint64_t step) {
    return 1.0 / (1.0 - pow(beta, (double)step));
}

void outer_adamw_compute(const struct outer_rule *r, const struct outer_past *past,
                         const struct outer_inner *inner, double lr, const struct outer_part *parts,
                         size_t count, struct outer_round *out, struct outer_adamw *out_step,
                         double *out_weight) {
    struct outer_params p = {.eta_r = lr, .mu_r = inner->beta1};
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(parts[i].late == 0); /* O1: gradients of other weights are in no mean with these */
        double n = (double)parts[i].tokens;
        p.tokens_fresh += n;
        squares += n * n;
    }
    for (size_t i = 0; i < count; i++) {
        bool counts = parts[i].tokens > 0;
        out_weight[i] = !counts ? 0 : r->sum ? 1 : (double)parts[i].tokens / p.tokens_fresh;
    }
    if (squares > 0) {
        p.meff = p.tokens_fresh * p.tokens_fresh / squares;
        p.sbar = 1;
        p.phi = fmin(1 / r->h_ref, 2);
    }
    if (r->sum) {
        p.eta_r = 1;
        p.mu_r = 0;
    }
    *out = (struct outer_round){.params = p,
                                .keeps_ema = r->ema > 0,
                                .ema = r->ema > 0 ? outer_ema_share(r, past->work, p.phi) : 0};
    if (squares <= 0) { /* skips alone: nothing moves, and the moments stay for the next step */
        *out_step = (struct outer_adamw){0};
        return;
    }
    uint64_t step = past->restart ? 1 : past->adamw + 1;
    *out_step = (struct outer_adamw){.step = step, .counts = r->sum};
    if (r->sum) return;
    out_step->lr = lr;
    out_step->beta1 = inner->beta1;
    out_step->beta2 = inner->beta2;
    out_step->eps = inner->eps;
    out_step->weight_decay = inner->weight_decay;
    out_step->clip = inner->clip;
    out_step->bias1 = bias(inner->beta1, step);
    out_step->bias2 = bias(inner->beta2, step);
}

double outer_adamw_mean(const double *weight, size_t count, const float *const *gradient, size_t n,
                        float *mean, double sum2) {
    CHECK(sum2 >= 0); /* O5: what the elements before these have left */
    for (size_t k = 0; k < n; k++) {
        double g = 0;
        for (size_t i = 0; i < count; i++)
            if (weight[i] > 0) g += weight[i] * (double)gradient[i][k];
        mean[k] = (float)g;
        sum2 += (double)mean[k] * (double)mean[k];
    }
    return sum2;
}

double outer_adamw_clip(const struct outer_adamw *a, double sum2) {
    return a->clip > 0 ? fmin(1.0, a->clip / (sqrt(sum2) + 1e-6)) : 1.0;
}

void outer_adamw_chunk(const struct outer_adamw *a, double clip, bool decays, float *theta,
                       float *m, float *v, const float *gradient, size_t n) {
    const float lr = (float)a->lr, eps = (float)a->eps, factor = (float)clip;
    const float decay = decays ? (float)(1.0 - a->lr * a->weight_decay) : 1.0f;
    const float b1 = (float)a->beta1, r1 = (float)(1.0 - a->beta1), c1 = (float)a->bias1;
    const float b2 = (float)a->beta2, r2 = (float)(1.0 - a->beta2), c2 = (float)a->bias2;
    for (size_t i = 0; i < n; i++) {
        float g = gradient[i] * factor;
        m[i] = m[i] * b1 + g * r1;
        v[i] = v[i] * b2 + (g * g) * r2;
        theta[i] = theta[i] * decay - lr * ((m[i] * c1) / (sqrtf(v[i] * c2) + eps));
    }
}
