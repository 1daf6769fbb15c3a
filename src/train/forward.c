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
 * one product, and so are Gate and Up. Each function cuts its rows into fixed chunks. */
#include <string.h>

#include "train/trainer.h"

static void embed_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct trainer *t = ctx;
    size_t rows, at = rows_from(t, chunk, &rows);
    for (size_t r = at; r < at + rows; r++) {
        int32_t id = t->tokens[r / t->T * (t->T + 1) + r % t->T];
        CHECK(id >= 0);
        CHECK((size_t)id < t->V);
        memcpy(t->acts[0].x1 + r * t->C, t->theta + t->embed + (size_t)id * t->C,
               t->C * sizeof(float));
    }
}

struct norm_job {
    struct trainer *t;
    float *y, *rstd;
    const float *x, *w;
};

static void norm_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct norm_job *j = ctx;
    size_t rows, at = rows_from(j->t, chunk, &rows), C = j->t->C;
    j->t->kernels->rmsnorm(j->y + at * C, j->rstd + at, j->x + at * C, j->w, rows, C,
                           (float)j->t->model.rms_norm_eps);
}

void trainer_norm(struct trainer *t, float *y, float *rstd, const float *x, size_t weight) {
    struct norm_job j = {t, y, rstd, x, t->theta + weight};
    pool_run(t->pool, row_chunks(t), norm_chunk, &j);
}

struct layer_job {
    struct trainer *t;
    uint32_t layer;
    bool backward;
    struct rope_layer rope;
    struct attn attn;
};

static void rope_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    struct trainer *t = j->t;
    size_t rows, at = rows_from(t, chunk, &rows);
    t->kernels->rope(&j->rope, t->acts[j->layer].qkv, at, rows, t->q, t->k, t->vv);
}

static void pack_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    j->t->kernels->attn_pack(&j->attn, chunk, j->backward);
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
                         .kt = t->kt,
                         .vt = t->vt,
                         .dout = t->dattn,
                         .dout_hm = t->dattn_hm,
                         .delta = t->delta,
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

void trainer_rotate(struct trainer *t, uint32_t layer, bool backward) {
    struct layer_job j = {t, layer, backward, trainer_rope(t, layer), trainer_attn(t, layer)};
    pool_run(t->pool, row_chunks(t), rope_chunk, &j);
    pool_run(t->pool, t->rows * t->kv_heads, pack_chunk, &j);
}

static void attn_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct layer_job *j = ctx;
    struct trainer *t = j->t;
    uint32_t blocks = (t->T + ATTN_BQ - 1) / ATTN_BQ;
    t->kernels->attn(&j->attn, chunk / blocks, chunk % blocks,
                     t->scratch + worker * t->scratch_count);
}

static void swiglu_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct layer_job *j = ctx;
    struct trainer *t = j->t;
    size_t rows, at = rows_from(t, chunk, &rows);
    t->kernels->swiglu(t->inner + at * t->F, t->acts[j->layer].gate_up + at * 2 * t->F, rows, t->F);
}

void trainer_swiglu(struct trainer *t, uint32_t layer) {
    struct layer_job j = {.t = t, .layer = layer};
    pool_run(t->pool, row_chunks(t), swiglu_chunk, &j);
}

static void forward_layer(struct trainer *t, uint32_t l) {
    const struct layer_offsets *o = &t->offsets[l];
    struct layer_acts *a = &t->acts[l];
    float *next = l + 1 < t->layers_count ? t->acts[l + 1].x1 : t->x_last;
    trainer_norm(t, t->h, a->rstd1, a->x1, o->norm1);
    matmul_run(&t->mm, MATMUL_NT, t->R, t->W, t->C, t->h, t->theta + o->qkv, a->qkv, NULL);
    trainer_rotate(t, l, false);
    struct layer_job j = {.t = t, .layer = l, .attn = trainer_attn(t, l)};
    pool_run(t->pool, t->rows * t->heads * ((t->T + ATTN_BQ - 1) / ATTN_BQ), attn_chunk, &j);
    matmul_run(&t->mm, MATMUL_NT, t->R, t->C, t->Q, a->attn, t->theta + o->o, a->x2, a->x1);
    trainer_norm(t, t->h, a->rstd2, a->x2, o->norm2);
    matmul_run(&t->mm, MATMUL_NT, t->R, 2 * t->F, t->C, t->h, t->theta + o->gate_up, a->gate_up,
               NULL);
    trainer_swiglu(t, l);
    matmul_run(&t->mm, MATMUL_NT, t->R, t->C, t->F, t->inner, t->theta + o->down, next, a->x2);
}

void trainer_forward(struct trainer *t) {
    pool_run(t->pool, row_chunks(t), embed_chunk, t);
    for (uint32_t l = 0; l < t->layers_count; l++) forward_layer(t, l);
    trainer_norm(t, t->h, t->rstd_last, t->x_last, t->final_norm);
}

struct head_job {
    struct trainer *t;
    size_t row0, rows;
    float scale;
};

enum { LOSS_ROWS = 4 };

static void loss_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct head_job *j = ctx;
    struct trainer *t = j->t;
    for (size_t i = (size_t)chunk * LOSS_ROWS; i < j->rows && i < (chunk + (size_t)1) * LOSS_ROWS;
         i++) {
        size_t r = j->row0 + i;
        int32_t target = t->tokens[r / t->T * (t->T + 1) + r % t->T + 1];
        CHECK(target >= 0);
        CHECK((size_t)target < t->V);
        t->losses[r] = t->kernels->cross_entropy(t->logits + i * t->V, t->V, target, j->scale);
    }
}

/* Logits exist for logit_rows rows at a time; they turn into their own gradient in place. */
void trainer_head(struct trainer *t, float scale) {
    const float *w = t->theta + t->head;
    for (size_t at = 0; at < t->R; at += t->logit_rows) {
        struct head_job j = {t, at, t->R - at < t->logit_rows ? t->R - at : t->logit_rows, scale};
        const float *h = t->h + at * t->C;
        matmul_run(&t->mm, MATMUL_NT, j.rows, t->V, t->C, h, w, t->logits, NULL);
        pool_run(t->pool, (uint32_t)((j.rows + LOSS_ROWS - 1) / LOSS_ROWS), loss_chunk, &j);
        if (scale == 0.0f) continue;
        float *dw = t->grad + t->head;
        matmul_run(&t->mm, MATMUL_NN, j.rows, t->C, t->V, t->logits, w, t->dh + at * t->C, NULL);
        matmul_run(&t->mm, MATMUL_TN, t->V, t->C, j.rows, t->logits, h, dw,
                   t->first && at == 0 ? NULL : dw);
    }
}
