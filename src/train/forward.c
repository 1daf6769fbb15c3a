/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c - from tokens to losses.
 *
 *   x = E[token]
 *   each layer:  x2 = x + O attention(rotate(norm(Q h)), rotate(norm(K h)), V h),  h = norm1(x)
 *                x' = x2 + Down(silu(Gate h) * Up h),                              h = norm2(x2)
 *   loss = cross-entropy(Head norm(x), next token)
 *
 * Kept for backward are the inputs of norms and of the nonlinear parts; what is cheap to make again
 * from them (norms, rotated heads, the inner activation) is made again. The products with Q, K, V are
 * one product, and so are Gate and Up. Where activations are recomputed only x of each layer is kept, and
 * backward runs the layer again: the same operations on the same numbers, so the same bits. */
#include "train/trainer.h"

void trainer_norm(struct trainer *t, float *y, float *rstd, const float *x, size_t weight,
                  bool rstd_known) {
    t->ops->norm(t->dev, y, rstd, x, t->theta + weight, t->R, t->C, (float)t->model.rms_norm_eps,
                 rstd_known);
}

struct attn trainer_attn(struct trainer *t, uint32_t layer) {
    return (struct attn){.B = t->rows,
                         .T = t->T,
                         .D = (uint32_t)t->D,
                         .Dp = (uint32_t)t->Dp,
                         .heads = t->heads,
                         .kv_heads = t->kv_heads,
                         .scale = 1.0f / __builtin_sqrtf((float)t->D),
                         .q = t->q,
                         .k = t->k,
                         .v = t->vv,
                         .out = t->acts[layer].attn,
                         .lse = t->acts[layer].lse,
                         .dout = t->dattn,
                         .dq = t->dq,
                         .dk = t->dk,
                         .dv = t->dv};
}

struct rope_layer trainer_rope(struct trainer *t, uint32_t layer) {
    return (struct rope_layer){.T = t->T,
                               .D = (uint32_t)t->D,
                               .Dp = (uint32_t)t->Dp,
                               .heads = t->heads,
                               .kv_heads = t->kv_heads,
                               .B = t->rows,
                               .eps = (float)t->model.rms_norm_eps,
                               .q_norm = t->theta + t->offsets[layer].q_norm,
                               .k_norm = t->theta + t->offsets[layer].k_norm,
                               .cosines = t->cosines,
                               .sines = t->sines};
}

void trainer_rotate(struct trainer *t, uint32_t layer) {
    struct rope_layer r = trainer_rope(t, layer);
    t->ops->rope(t->dev, &r, t->acts[layer].qkv, t->q, t->k, t->vv);
}

/* y[R,out] = x[R,in] W' + add */
static void linear(struct trainer *t, size_t out, size_t in, const float *x, size_t weight,
                   float *y, const float *add) {
    t->ops->matmul(t->dev, MATMUL_NT, t->R, out, in, x, t->theta + weight, y, add);
}

void trainer_layer(struct trainer *t, uint32_t l, bool again) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    trainer_norm(t, t->h, a->rstd1, a->x1, o->norm1, false);
    linear(t, t->W, t->C, t->h, o->qkv, a->qkv, NULL);
    trainer_rotate(t, l);
    struct attn attn = trainer_attn(t, l);
    t->ops->attn(t->dev, &attn);
    linear(t, t->C, t->Q, a->attn, o->o, a->x2, a->x1);
    trainer_norm(t, t->h, a->rstd2, a->x2, o->norm2, false);
    linear(t, 2 * t->F, t->C, t->h, o->gate_up, a->gate_up, NULL);
    if (again) return;
    float *next = l + 1 < t->layers_count ? t->acts[l + 1].x1 : t->x_last;
    t->ops->swiglu(t->dev, t->inner, a->gate_up, t->R, t->F);
    linear(t, t->C, t->F, t->inner, o->down, next, a->x2);
}

void trainer_forward(struct trainer *t) {
    t->ops->embed(t->dev, t->acts[0].x1, t->theta + t->embed, t->ids, t->R, t->C);
    for (uint32_t l = 0; l < t->layers_count; l++) trainer_layer(t, l, false);
    trainer_norm(t, t->h, t->rstd_last, t->x_last, t->final_norm, false);
}

/* Logits exist for logit_rows rows at a time; they turn into their own gradient in place. */
void trainer_head(struct trainer *t, float scale) {
    const float *w = t->theta + t->head;
    for (size_t at = 0; at < t->R; at += t->logit_rows) {
        size_t rows = t->R - at < t->logit_rows ? t->R - at : t->logit_rows;
        const float *h = t->h + at * t->C;
        t->ops->matmul(t->dev, MATMUL_NT, rows, t->V, t->C, h, w, t->logits, NULL);
        t->ops->cross_entropy(t->dev, t->losses + at, t->logits, t->targets + at, rows, t->V, scale,
                              t->z_loss);
        if (scale == 0.0f) continue;
        float *dw = t->grad + t->head;
        t->ops->matmul(t->dev, MATMUL_NN, rows, t->C, t->V, t->logits, w, t->dh + at * t->C, NULL);
        t->ops->matmul(t->dev, MATMUL_TN, t->V, t->C, rows, t->logits, h, dw,
                       t->first && at == 0 ? NULL : dw);
    }
}
