/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h - a trainer's inside, shared by plan.c (memory), forward.c, backward.c and trainer.c, and
 * seen by the room's tests. Shapes: R = rows in memory at once * T, C hidden, V vocabulary, F = inner
 * width, D head_dim, Q = heads*D, W = (heads + 2 kv_heads)*D. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "train/dp.h"
#include "train/kernels.h"
#include "train/matmul.h"
#include "train/threads.h"
#include "train/train.h"

enum {
    ROWS_CHUNK = 32,          /* rows (or token positions) a chunk of an elementwise pass takes */
    COLUMNS_CHUNK = 64,       /* columns a chunk of the embedding's gradient takes */
    ELEMENTS_CHUNK = 1 << 16, /* parameters a chunk of the optimizer takes */
    LOGITS_MAX = 1 << 22,     /* logits that exist at once, where the row bounds below allow */
    LOGIT_ROWS_MIN = 128,
    LOGIT_ROWS_MAX = 1024
};

/* Where a layer's tensors begin in theta; q, k, v are one matrix [W,C], gate and up one [2F,C],
 * because the canonical order puts them side by side. */
struct layer_offsets {
    size_t norm1, qkv, o, q_norm, k_norm, norm2, gate_up, down;
};

struct layer_acts {    /* what backward needs again */
    float *x1, *rstd1; /* [R,C] input, [R] */
    float *qkv;        /* [R,W] before norm and rotation */
    float *attn, *lse; /* [R,Q], [rows,heads,T] */
    float *x2, *rstd2; /* [R,C] after attention, [R] */
    float *gate_up;    /* [R,2F]; backward turns it into its gradient */
};

struct piece { /* a fixed chunk of theta that lies within one tensor, and where its moments are */
    size_t offset, count, moment;
    bool decay;
};

struct trainer {
    struct model_config model;
    uint32_t T, batch_max, micro;
    size_t P, C, V, F, D, Q, W, Dp; /* Dp: D rounded up to whole tiles */
    uint32_t heads, kv_heads, layers_count;
    const struct kernels *kernels;
    struct pool *pool;
    struct matmul mm;
    float *theta, *grad, *m, *v;
    uint64_t steps;
    const struct dp_net *net;       /* NULL: alone */
    struct dp *dp;                  /* NULL: alone, or the only rank; then m and v are [P] */
    size_t embed, final_norm, head; /* offsets; head = embed where tied */
    struct layer_offsets *offsets;  /* [layers] */
    struct layer_acts *acts;        /* [layers] */
    struct piece *pieces;
    size_t pieces_count;
    double *sums;   /* [pieces] */
    void *slabs[5]; /* as allocated */

    float *x_last, *rstd_last;        /* [R,C] after the last layer, [R] */
    float *h, *inner, *dx, *dh;       /* [R,C], [R,F], [R,C], [R,C] */
    float *dqkv, *dattn;              /* [R,W], [R,Q] */
    float *q, *k, *vv, *dq, *dk, *dv; /* head-major */
    float *kt, *vt, *dattn_hm, *delta;
    float *cosines, *sines; /* [T,D/2] */
    float *logits, *losses; /* [logit_rows,V], [R] */
    float *partials;        /* [chunks][max(C,2D)] of norm gradients */
    float *scratch;         /* [threads][scratch_count] */
    size_t scratch_count, logit_rows;

    /* the micro-batch at hand */
    const int32_t *tokens; /* [rows][T+1] */
    uint32_t rows;
    size_t R;
    bool first; /* gradients are written, not added to */
    bool last;  /* the micro-batch after which the batch's gradients are complete */

    /* Called while backward runs, from the trainer's thread: all of grad[from, P) is final now. `from`
     * falls from call to call; at the end it is 0. NULL: nobody is interested. */
    void (*final)(void *ctx, size_t from);
    void *final_ctx;
};

static inline void trainer_final(const struct trainer *t, size_t from) {
    if (t->last && t->final) t->final(t->final_ctx, from);
}

/* The fixed chunks of rows of the micro-batch. */
static inline size_t rows_from(const struct trainer *t, uint32_t chunk, size_t *out_rows) {
    size_t at = (size_t)chunk * ROWS_CHUNK;
    *out_rows = t->R - at < ROWS_CHUNK ? t->R - at : ROWS_CHUNK;
    return at;
}

static inline uint32_t row_chunks(const struct trainer *t) {
    return (uint32_t)((t->R + ROWS_CHUNK - 1) / ROWS_CHUNK);
}

/* plan.c */
enum brg_status trainer_plan(struct trainer *t, struct err *e) MUST_USE;
void trainer_unplan(struct trainer *t);
/* forward.c: residual stream up to t->x_last and its norm in t->h. */
void trainer_forward(struct trainer *t);
/* Fills the head-major q, k, v and the packed keys of a layer. */
void trainer_rotate(struct trainer *t, uint32_t layer, bool backward);
void trainer_norm(struct trainer *t, float *y, float *rstd, const float *x, size_t weight);
void trainer_swiglu(struct trainer *t, uint32_t layer);
struct attn trainer_attn(struct trainer *t, uint32_t layer);
struct rope_layer trainer_rope(struct trainer *t, uint32_t layer);
/* Losses of t->h into t->losses; where scale is not 0 also t->dh and the head's gradient. */
void trainer_head(struct trainer *t, float scale);
/* backward.c: from t->dh to all gradients but the head's. */
void trainer_backward(struct trainer *t);
/* trainer.c: with the kernels of a given flavour, for tests. */
enum brg_status trainer_create_with(const struct trainer_options *o, const struct kernels *k,
                                    struct trainer **out, struct err *e) MUST_USE;

#endif
