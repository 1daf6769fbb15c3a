/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h - a trainer's inside, shared by plan.c (memory), forward.c, backward.c and trainer.c, and
 * seen by the room's tests. Shapes: R = rows in memory at once * T, C hidden, V vocabulary, F = inner
 * width, D head_dim, Q = heads*D, W = (heads + 2 kv_heads)*D. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "train/device.h"
#include "train/dp.h"
#include "train/train.h"

enum {
    ELEMENTS_CHUNK = 1 << 16, /* parameters a chunk of the optimizer takes */
    LOGITS_MAX = 1 << 23,     /* logits that exist at once, where the row bounds below allow */
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

/* A tensor that Muon moves: [rows, columns] at `offset` of theta. */
struct matrix {
    size_t offset, rows, columns;
};

enum slab { SLAB_THETA, SLAB_GRAD, SLAB_MOMENTS, SLAB_ACTS, SLAB_WORK, SLABS };

struct trainer {
    struct model_config model;
    uint32_t T, batch_max, micro;
    bool recompute; /* layers share one set of activations but for their inputs */
    float z_loss;
    size_t P, C, V, F, D, Q, W, Dp; /* Dp: D rounded up to the device's padding */
    uint32_t heads, kv_heads, layers_count;
    struct device *dev;
    const struct device_ops *ops; /* of dev */
    float *theta, *grad, *m, *v;
    uint64_t steps;
    const struct dp_net *net; /* NULL: alone */
    struct dp
        *dp; /* NULL: alone, or the only rank; then m is [P], and v, but for Muon's matrices */
    size_t embed, final_norm, head; /* offsets; head = embed where tied */
    struct layer_offsets *offsets;  /* [layers] */
    struct layer_acts *acts;        /* [layers] */
    struct piece *pieces;           /* all of theta that is updated here */
    size_t pieces_count;
    struct piece *adamw_pieces; /* those that AdamW updates: all of them, or a list of their own */
    size_t adamw_count;
    double *sums; /* [pieces] */
    bool has_muon;
    struct muon muon;
    struct matrix *matrices; /* those that Muon updates */
    size_t matrices_count;
    size_t matrices_elements;    /* they have no v */
    struct piece *matrix_pieces; /* of the matrix at hand */
    float *muon_x, *muon_y, *muon_gram,
        *muon_gram2; /* the largest matrix; its smaller side squared */
    void *slabs[SLABS];
    size_t slab_bytes[SLABS];

    float *x_last, *rstd_last;        /* [R,C] after the last layer, [R] */
    float *h, *inner, *dx, *dh;       /* [R,C], [R,F], [R,C], [R,C] */
    float *dqkv, *dattn;              /* [R,W], [R,Q] */
    float *q, *k, *vv, *dq, *dk, *dv; /* head-major */
    float *cosines, *sines;           /* [T,D/2] */
    float *logits, *losses;           /* [logit_rows,V], [R] */
    float *workspace;                 /* the device's own */
    int32_t *ids, *targets;           /* [R] */
    size_t logit_rows;

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
    if (!t->last || !t->final) return;
    t->ops->finish(t->dev); /* the host will look at gradients */
    t->final(t->final_ctx, from);
}

/* plan.c */
enum brg_status trainer_plan(struct trainer *t, struct err *e) MUST_USE;
void trainer_unplan(struct trainer *t);
/* forward.c: residual stream up to t->x_last and its norm in t->h. */
void trainer_forward(struct trainer *t);
/* One layer, from its input; `again`: without the product into the next one's input. */
void trainer_layer(struct trainer *t, uint32_t layer, bool again);
/* Fills the head-major q, k, v of a layer. */
void trainer_rotate(struct trainer *t, uint32_t layer);
void trainer_norm(struct trainer *t, float *y, float *rstd, const float *x, size_t weight,
                  bool rstd_known);
struct attn trainer_attn(struct trainer *t, uint32_t layer);
struct rope_layer trainer_rope(struct trainer *t, uint32_t layer);
/* Losses of t->h into t->losses; where scale is not 0 also t->dh and the head's gradient. */
void trainer_head(struct trainer *t, float scale);
/* muon.c: which tensors; their scratch; the update of all of them. */
void muon_plan(struct trainer *t);
void muon_unplan(struct trainer *t);
void muon_update(struct trainer *t, const struct adamw *a, double lr, double clip);
/* backward.c: from t->dh to all gradients but the head's. */
void trainer_backward(struct trainer *t);

#endif
