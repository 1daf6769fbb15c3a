/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - the chain rule, layer by layer from the last.
 *
 * t->dx carries the gradient of the residual stream. Weight gradients are written by the first
 * micro-batch and added to by the others. Gradients of norm weights are sums over all rows: each fixed
 * chunk of rows makes its own, and the chunks are added in order. A token that occurs often gets its
 * embedding's gradient in order of position; the work is cut by columns, so this order is kept.
 *
 * Gradients become final from the end of the flat vector to its beginning; trainer_final says how far,
 * so that other processes can be sent what they wait for while the rest is computed. */
#include <string.h>

#include "train/trainer.h"

/* grad[0..n) = (first ? 0 : grad) + the chunks' parts in order; part c lies at c * stride. */
static void sum_parts(struct trainer *t, size_t grad, size_t n, const float *parts, size_t stride) {
    float *g = t->grad + grad;
    uint32_t chunks = row_chunks(t);
    for (uint32_t c = 0; c < chunks; c++) {
        if (c == 0 && t->first)
            memcpy(g, parts, n * sizeof(float));
        else
            t->kernels->add(g, parts + c * stride, n);
    }
}

struct norm_job {
    struct trainer *t;
    const float *dy, *x, *rstd, *w;
};

static void norm_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct norm_job *j = ctx;
    struct trainer *t = j->t;
    size_t rows, at = rows_from(t, chunk, &rows), C = t->C;
    t->kernels->rmsnorm_back(t->dx + at * C, t->partials + chunk * C, j->dy + at * C, j->x + at * C,
                             j->rstd + at, j->w, rows, C);
}

/* t->dx += gradient through the norm of x. */
static void norm_back(struct trainer *t, const float *dy, const float *x, const float *rstd,
                      size_t weight) {
    struct norm_job j = {t, dy, x, rstd, t->theta + weight};
    pool_run(t->pool, row_chunks(t), norm_back_chunk, &j);
    sum_parts(t, weight, t->C, t->partials, t->C);
}

/* dx[R,in] = dy[R,out] w[out,in] and dw += dy' x */
static void linear_back(struct trainer *t, size_t weight, size_t out, size_t in, const float *dy,
                        const float *x, float *dx) {
    float *dw = t->grad + weight;
    matmul_run(&t->mm, MATMUL_TN, out, in, t->R, dy, x, dw, t->first ? NULL : dw);
    matmul_run(&t->mm, MATMUL_NN, t->R, in, out, dy, t->theta + weight, dx, NULL);
}

struct layer_job {
    struct trainer *t;
    uint32_t layer;
    struct rope_layer rope;
    struct attn attn;
};

static void swiglu_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    struct trainer *t = j->t;
    size_t rows, at = rows_from(t, chunk, &rows);
    float *gu = t->acts[j->layer].gate_up + at * 2 * t->F;
    t->kernels->swiglu_back(gu, gu, t->inner + at * t->F, rows, t->F);
}

static void delta_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    j->t->kernels->attn_delta(&j->attn, chunk);
}

static void attn_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct layer_job *j = ctx;
    j->t->kernels->attn_back(&j->attn, chunk, j->t->scratch + worker * j->t->scratch_count);
}

static void rope_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    struct trainer *t = j->t;
    size_t rows, at = rows_from(t, chunk, &rows);
    float *parts = t->partials + (size_t)chunk * 2 * t->D;
    t->kernels->rope_back(&j->rope, t->acts[j->layer].qkv, at, rows, t->dq, t->dk, t->dv, t->dqkv,
                          parts, parts + t->D);
}

static void mlp_back(struct trainer *t, uint32_t l) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    struct layer_job j = {.t = t, .layer = l};
    trainer_swiglu(t, l);
    linear_back(t, o->down, t->C, t->F, t->dx, t->inner, t->inner); /* from here on its gradient */
    pool_run(t->pool, row_chunks(t), swiglu_back_chunk, &j);
    trainer_norm(t, t->h, a->rstd2, a->x2, o->norm2);
    linear_back(t, o->gate_up, 2 * t->F, t->C, a->gate_up, t->h, t->dh);
    norm_back(t, t->dh, a->x2, a->rstd2, o->norm2);
}

static void attention_back(struct trainer *t, uint32_t l) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    struct layer_job j = {t, l, trainer_rope(t, l), trainer_attn(t, l)};
    linear_back(t, o->o, t->C, t->Q, t->dx, a->attn, t->dattn);
    trainer_rotate(t, l, true);
    pool_run(t->pool, t->rows * t->heads, delta_chunk, &j);
    pool_run(t->pool, t->rows * t->kv_heads, attn_back_chunk, &j);
    pool_run(t->pool, row_chunks(t), rope_back_chunk, &j);
    sum_parts(t, o->q_norm, t->D, t->partials, 2 * t->D);
    sum_parts(t, o->k_norm, t->D, t->partials + t->D, 2 * t->D);
    trainer_norm(t, t->h, a->rstd1, a->x1, o->norm1);
    linear_back(t, o->qkv, t->W, t->C, t->dqkv, t->h, t->dh);
    norm_back(t, t->dh, a->x1, a->rstd1, o->norm1);
}

static void embed_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct trainer *t = ctx;
    size_t c0 = (size_t)chunk * COLUMNS_CHUNK,
           n = t->C - c0 < COLUMNS_CHUNK ? t->C - c0 : COLUMNS_CHUNK;
    for (size_t r = 0; r < t->R; r++) {
        size_t id = (size_t)t->tokens[r / t->T * (t->T + 1) + r % t->T];
        t->kernels->add(t->grad + t->embed + id * t->C + c0, t->dx + r * t->C + c0, n);
    }
}

void trainer_backward(struct trainer *t) {
    memset(t->dx, 0, t->R * t->C * sizeof(float));
    norm_back(t, t->dh, t->x_last, t->rstd_last, t->final_norm);
    trainer_final(t, t->final_norm);
    for (uint32_t l = t->layers_count; l-- > 0;) {
        mlp_back(t, l);
        trainer_final(t, t->offsets[l].norm2);
        attention_back(t, l);
        trainer_final(t, t->offsets[l].norm1);
    }
    if (t->first && t->head != t->embed) memset(t->grad + t->embed, 0, t->V * t->C * sizeof(float));
    pool_run(t->pool, (uint32_t)((t->C + COLUMNS_CHUNK - 1) / COLUMNS_CHUNK), embed_back_chunk, t);
    trainer_final(t, 0);
}
