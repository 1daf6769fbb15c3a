/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - the chain rule, layer by layer from the last.
 *
 * t->dx carries the gradient of the residual stream. Weight gradients are written by the first
 * micro-batch and added to by the others.
 *
 * Gradients become final from the end of the flat vector to its beginning; trainer_final says how far,
 * so that other processes can be sent what they wait for while the rest is computed. */
#include "train/trainer.h"

/* t->dx += gradient through the norm of x. */
static void norm_back(struct trainer *t, const float *dy, const float *x, const float *rstd,
                      size_t weight) {
    t->ops->norm_back(t->dev, t->dx, t->grad + weight, !t->first, dy, x, rstd, t->theta + weight,
                      t->R, t->C);
}

/* dw[out,in] (+)= dy[R,out]' x[R,in] */
static void weight_grad(struct trainer *t, size_t weight, size_t out, size_t in, const float *dy,
                        const float *x) {
    float *dw = t->grad + weight;
    t->ops->matmul(t->dev, MATMUL_TN, out, in, t->R, dy, x, dw, t->first ? NULL : dw);
}

/* dx[R,in] = dy[R,out] w[out,in] */
static void input_grad(struct trainer *t, size_t weight, size_t out, size_t in, const float *dy,
                       float *dx) {
    t->ops->matmul(t->dev, MATMUL_NN, t->R, in, out, dy, t->theta + weight, dx, NULL);
}

static void mlp_back(struct trainer *t, uint32_t l) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    input_grad(t, o->down, t->C, t->F, t->dx, t->inner);
    t->ops->swiglu_back(t->dev, a->gate_up, t->inner, t->R, t->F); /* inner: the activation again */
    weight_grad(t, o->down, t->C, t->F, t->dx, t->inner);
    trainer_norm(t, t->h, a->rstd2, a->x2, o->norm2, true);
    weight_grad(t, o->gate_up, 2 * t->F, t->C, a->gate_up, t->h);
    input_grad(t, o->gate_up, 2 * t->F, t->C, a->gate_up, t->dh);
    norm_back(t, t->dh, a->x2, a->rstd2, o->norm2);
}

static void attention_back(struct trainer *t, uint32_t l) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    struct rope_layer rope = trainer_rope(t, l);
    struct attn attn = trainer_attn(t, l);
    weight_grad(t, o->o, t->C, t->Q, t->dx, a->attn);
    input_grad(t, o->o, t->C, t->Q, t->dx, t->dattn);
    trainer_rotate(t, l);
    t->ops->attn_back(t->dev, &attn);
    t->ops->rope_back(t->dev, &rope, a->qkv, t->dq, t->dk, t->dv, t->dqkv, t->grad + o->q_norm,
                      t->grad + o->k_norm, !t->first);
    trainer_norm(t, t->h, a->rstd1, a->x1, o->norm1, true);
    weight_grad(t, o->qkv, t->W, t->C, t->dqkv, t->h);
    input_grad(t, o->qkv, t->W, t->C, t->dqkv, t->dh);
    norm_back(t, t->dh, a->x1, a->rstd1, o->norm1);
}

void trainer_backward(struct trainer *t) {
    t->ops->zero(t->dev, t->dx, t->R * t->C);
    norm_back(t, t->dh, t->x_last, t->rstd_last, t->final_norm);
    trainer_final(t, t->final_norm);
    for (uint32_t l = t->layers_count; l-- > 0;) {
        if (t->recompute && l + 1 < t->layers_count) trainer_layer(t, l, true);
        mlp_back(t, l);
        trainer_final(t, t->offsets[l].norm2);
        attention_back(t, l);
        trainer_final(t, t->offsets[l].norm1);
    }
    if (t->first && t->head != t->embed) t->ops->zero(t->dev, t->grad + t->embed, t->V * t->C);
    t->ops->embed_back(t->dev, t->grad + t->embed, t->dx, t->ids, t->R, t->C);
    trainer_final(t, 0);
}
