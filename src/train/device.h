/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - what a processor must be able to do so that a model trains on it.
 *
 * A backend is a folder that fills `struct device_ops`: src/train/cpu is the first; a CUDA and a HIP
 * one come beside it, add their name to device.c, and must pass test/ops, which runs each operation of
 * every backend against its formula in double. forward.c, backward.c and trainer.c call nothing else.
 *
 * Contract
 *   (V1) an operation depends on its arguments alone, and its bits not on `threads`: sums run over
 *        fixed chunks in a fixed order. Backends differ from each other in the last bits.
 *   (V2) operations run in the order in which they are called. A backend may return early; `finish`
 *        waits for all. Between finish and the next call the host may read and write device memory.
 *   (V3) no operation allocates: the trainer plans memory once (`workspace`, `bind`).
 * Memory comes from `alloc`: zeroed, aligned to 64 bytes, visible to the host as V2 says (a GPU takes
 * managed memory). Pointers are to device memory unless they are called host.
 *
 * Shapes: R rows (B sequences of T positions), C hidden, F inner width, V vocabulary, D head_dim. "hm"
 * is head-major: [B][heads][T][Dp], Dp = D rounded up to the device's `pad`; padding columns are zero
 * when they come in and stay zero; `slack` rows behind the last may be read, and count for nothing.
 *
 * Errors: only open and alloc can fail; wrong arguments are a fault of the program (CHECK). A device
 * belongs to one calling thread. */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include "base/base.h"

enum precision { PRECISION_F32, PRECISION_BF16 };
const char *precision_name(enum precision p); /* "f32", "bf16" */
bool precision_parse(const char *word, enum precision *out);

/* What time is booked on. The first three are the forms of the matrix product, in their order. */
enum op_kind {
    OP_FORWARD,
    OP_INPUT_GRAD,
    OP_WEIGHT_GRAD,
    OP_ATTN,
    OP_ATTN_BACK,
    OP_ROPE,
    OP_NORM,
    OP_SWIGLU,
    OP_LOSS,
    OP_EMBED,
    OP_ADAMW,
    OP_OTHER,
    OP_KINDS
};
extern const char *const OP_NAMES[OP_KINDS];

/* The forms of a linear layer y[R,out] = x[R,in] W[out,in]', row-major:
 *   NT  C[M,N] = A[M,K] B[N,K]'   forward:            Y = X W'
 *   NN  C[M,N] = A[M,K] B[K,N]    gradient of input:  dX = dY W
 *   TN  C[M,N] = A[K,M]' B[K,N]   gradient of weight: dW = dY' X */
enum matmul_form { MATMUL_NT, MATMUL_NN, MATMUL_TN };

struct device_limits { /* the largest shapes that will come */
    uint32_t B, T, heads, kv_heads, D;
    size_t R, C;
};

struct attn { /* one layer's causal attention; query heads of a group share a key-value head */
    uint32_t B, T, D, Dp, heads, kv_heads;
    float scale;
    const float *q, *k, *v; /* hm, q and k after norm and rotation */
    float *out;             /* [R][heads*D] */
    float *lse;             /* [B][heads][T]: log of the sum of exp of a row's scores */
    const float *dout;      /* [R][heads*D] */
    float *dq, *dk, *dv;    /* hm, overwritten */
};

struct rope_layer { /* query and key: norm over a head, then rotation of halves */
    uint32_t B, T, D, Dp, heads, kv_heads;
    float eps;
    const float *q_norm, *k_norm; /* [D] */
    const float *cosines, *sines; /* [T][D/2] */
};

struct adamw_step {
    float lr, decay;                  /* decay = 1 - lr * weight decay */
    float clip;                       /* factor of the gradient */
    float beta1, beta2, rest1, rest2; /* rest_i = 1 - beta_i */
    float bias1, bias2;               /* 1 / (1 - beta_i^t) */
    float eps;
};

struct piece { /* a fixed chunk of theta that lies within one tensor, and where its moments are */
    size_t offset, count, moment, second; /* moment: of m; second: of v */
    bool decay;                           /* false: as if step.decay were 1 */
};

struct device {
    const struct device_ops *ops;
    char name[24];            /* "cpu-avx2" */
    enum precision precision; /* of the operands of `matmul` */
    uint32_t threads;
    uint32_t pad, slack;   /* of hm buffers: multiple of columns, rows behind the end */
    uint64_t ns[OP_KINDS]; /* time so far; may be set to 0 between calls */
};

struct device_ops {
    void (*close)(struct device *d);
    /* NULL where not to be had. */
    void *(*alloc)(struct device *d, size_t bytes);
    void (*release)(struct device *d, void *p, size_t bytes); /* takes NULL */
    double (*free_bytes)(struct device *d); /* what alloc could still give; 0: unknown */
    /* Floats of scratch that shapes up to `l` need; then where they are (borrowed until close). */
    double (*workspace)(struct device *d, const struct device_limits *l);
    void (*bind)(struct device *d, const struct device_limits *l, float *workspace);
    void (*finish)(struct device *d);

    void (*zero)(struct device *d, float *x, size_t n);
    void (*add)(struct device *d, float *y, const float *x, size_t n); /* y += x */
    /* y = a x + b y; where b is 0 nothing is read from y. */
    void (*axpby)(struct device *d, float *y, const float *x, float a, float b, size_t n);
    /* y[R,C] = table[ids[r]]; back: dtable[ids[r]] += dy[r], in the order of r. */
    void (*embed)(struct device *d, float *y, const float *table, const int32_t *ids, size_t R,
                  size_t C);
    void (*embed_back)(struct device *d, float *dtable, const float *dy, const int32_t *ids,
                       size_t R, size_t C);
    /* C = add + A B by form; add is NULL, c, or another [M,N] that c does not overlap. In bf16 the
     * elements of A and B are rounded to nearest even first; products and sums are f32. */
    void (*matmul)(struct device *d, enum matmul_form form, size_t M, size_t N, size_t K,
                   const float *a, const float *b, float *c, const float *add);
    /* y = w x rstd, rstd = (mean x^2 + eps)^-1/2 [R]. rstd_known: rstd[R] is there already. */
    void (*norm)(struct device *d, float *y, float *rstd, const float *x, const float *w, size_t R,
                 size_t C, float eps, bool rstd_known);
    /* dx += the gradient through the norm; dw[C] = (add ? dw : 0) + its gradient. */
    void (*norm_back)(struct device *d, float *dx, float *dw, bool add, const float *dy,
                      const float *x, const float *rstd, const float *w, size_t R, size_t C);
    /* qkv[R][heads + 2 kv][D] -> q, k, v hm. */
    void (*rope)(struct device *d, const struct rope_layer *l, const float *qkv, float *q, float *k,
                 float *v);
    /* dqkv from dq, dk, dv (hm); dqw[D], dkw[D] = (add ? themselves : 0) + gradient of the norms. */
    void (*rope_back)(struct device *d, const struct rope_layer *l, const float *qkv,
                      const float *dq, const float *dk, const float *dv, float *dqkv, float *dqw,
                      float *dkw, bool add);
    void (*attn)(struct device *d, const struct attn *a);      /* out, lse */
    void (*attn_back)(struct device *d, const struct attn *a); /* dq, dk, dv; reads out, lse too */
    /* gu[R][2F]: gate then up; act[R][F] = silu(gate) up. */
    void (*swiglu)(struct device *d, float *act, const float *gu, size_t R, size_t F);
    /* gu becomes its own gradient, and dact becomes act (which the weight's gradient needs). */
    void (*swiglu_back)(struct device *d, float *gu, float *dact, size_t R, size_t F);
    /* losses[r] = lse_r - logits[r][target] + z lse_r^2, lse_r = log sum exp logits[r]; where scale is
     * not 0 logits[R,V] become scale times the gradient of the losses' sum. */
    void (*cross_entropy)(struct device *d, float *losses, float *logits, const int32_t *targets,
                          size_t R, size_t V, float scale, float z);
    /* sums[i] (host) = sum over piece i of x^2 in double; it has finished when this returns. */
    void (*sum_squares)(struct device *d, double *sums, const float *x, const struct piece *pieces,
                        size_t n);
    /* AdamW with decoupled decay on n pieces of theta, grad (by offset), m (by moment), v (by second). */
    void (*adamw)(struct device *d, float *theta, float *m, float *v, const float *grad,
                  const struct piece *pieces, size_t n, const struct adamw_step *s);
};

/* name: NULL for the fastest here; "cpu" for the widest flavour of it; "cpu-base", "cpu-avx2",
 * "cpu-avx512". threads: 0 for as many processors as this process may use. E_CONFIG where the name is
 * unknown or cannot run here, E_LIMIT or E_MEMORY where there are too many threads. */
enum brg_status device_open(const char *name, uint32_t threads, enum precision precision,
                            struct device **out, struct err *e) MUST_USE;
void device_close(struct device *d); /* takes NULL */
/* All names that are built in, runnable here or not; NULL behind the last. */
const char *device_name(size_t i);

/* Rounds up D to the device's padding. */
static inline uint32_t device_pad(const struct device *d, size_t D) {
    return (uint32_t)((D + d->pad - 1) / d->pad * d->pad);
}

#endif
