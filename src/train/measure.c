/* SPDX-License-Identifier: Apache-2.0 */
#include "train/measure.h"

#include <string.h>

#include "train/trainer.h"

enum { LARGE = 1024, TRIES = 5 };

void measure_reset(struct trainer *t) {
    memset(t->dev->ns, 0, sizeof t->dev->ns);
}

void measure_take(const struct trainer *t, struct measured *out) {
    t->ops->finish(t->dev);
    for (size_t i = 0; i < OP_KINDS; i++) out->seconds[i] = (double)t->dev->ns[i] / 1e9;
}

const char *measure_device(const struct trainer *t) {
    return t->dev->name;
}

uint32_t measure_threads(const struct trainer *t) {
    return t->dev->threads;
}

/* One linear layer w[out,in] on x[rows,in] in its three forms; gives FLOP, adds the seconds. */
static double linear(struct trainer *t, size_t rows, size_t out, size_t in, float *x, size_t w,
                     float *y, measure_clock *now, double *seconds) {
    double best[3];
    for (int i = 0; i < TRIES; i++) {
        for (int form = 0; form < 3; form++) {
            double before = now();
            if (form == MATMUL_NT)
                t->ops->matmul(t->dev, form, rows, out, in, x, t->theta + w, y, NULL);
            else if (form == MATMUL_NN)
                t->ops->matmul(t->dev, form, rows, in, out, y, t->theta + w, x, NULL);
            else
                t->ops->matmul(t->dev, form, out, in, rows, y, x, t->grad + w, NULL);
            t->ops->finish(t->dev);
            double took = now() - before;
            if (i == 0 || took < best[form]) best[form] = took;
        }
    }
    *seconds += best[0] + best[1] + best[2];
    return 3.0 * 2.0 * (double)rows * (double)out * (double)in;
}

double measure_own_shapes(struct trainer *t, measure_clock *now) {
    const struct layer_offsets *o = &t->offsets[0];
    struct layer_acts *a = &t->acts[0];
    size_t R = (size_t)t->micro * t->T;
    double seconds = 0, head = 0, flop = 0;
    flop += linear(t, R, t->W, t->C, t->h, o->qkv, t->dqkv, now, &seconds);
    flop += linear(t, R, t->C, t->Q, t->dattn, o->o, t->dh, now, &seconds);
    flop += linear(t, R, 2 * t->F, t->C, t->h, o->gate_up, a->gate_up, now, &seconds);
    flop += linear(t, R, t->C, t->F, t->inner, o->down, t->dh, now, &seconds);
    double head_flop = linear(t, t->logit_rows, t->V, t->C, t->h, t->head, t->logits, now, &head);
    double times = (double)R / (double)t->logit_rows, layers = t->layers_count;
    return (flop * layers + head_flop * times) / (seconds * layers + head * times);
}

double measure_large(struct trainer *t, measure_clock *now) {
    size_t n = LARGE, bytes = 3 * n * n * sizeof(float);
    float *x = t->ops->alloc(t->dev, bytes);
    if (!x) return 0;
    double best = 0;
    for (int i = 0; i < 3 * TRIES; i++) {
        double before = now();
        t->ops->matmul(t->dev, (enum matmul_form)(i % 3), n, n, n, x, x + n * n, x + 2 * n * n,
                       NULL);
        t->ops->finish(t->dev);
        double rate = 2.0 * LARGE * LARGE * LARGE / (now() - before);
        if (rate > best) best = rate;
    }
    t->ops->release(t->dev, x, bytes);
    return best;
}
