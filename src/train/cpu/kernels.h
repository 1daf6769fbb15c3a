/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - the inner loops of the CPU, each in three flavours behind one table: plain vectors of four (any
 * processor), AVX2 with FMA, AVX-512. The flavour is chosen once, when a trainer is made.
 *
 * The bodies stand in *_body.h and are compiled once a flavour (kernels_base.c, kernels_avx2.c,
 * kernels_avx512.c). A kernel works on one thread; cutting work into chunks is the caller's part.
 * Flavours differ in the last bits (width of the partial sums, fused multiply-add); one flavour gives
 * the same bits each time.
 *
 * Shapes: rows R, hidden C, vocabulary V, positions T, head_dim D, Dp = D rounded up to nr. */
#ifndef TRAIN_KERNELS_H
#define TRAIN_KERNELS_H

#include "train/device.h"

enum { KERNEL_MR_MAX = 12, KERNEL_NR_MAX = 32 };
/* Blocks of queries, and of keys forward and backward. */
enum { ATTN_BQ = 48, ATTN_BK = 192, ATTN_BACK_BK = 64 };

/* An attention and its scratch. */
struct attn_work {
    struct attn s;
    float *kt, *vt;         /* [B][kv_heads][Tp*D] packed transposes, Tp = T rounded up to nr */
    float *dout_hm, *delta; /* hm; [B][heads][T]: dot of dout and out */
};
/* Tiles of scores: one forward, two backward. */
enum {
    ATTN_SCRATCH = (ATTN_BQ + KERNEL_MR_MAX) * (ATTN_BK + 2 * ATTN_BACK_BK + 3 * KERNEL_MR_MAX)
};

/* Memory that will be read soon, in rows of cache lines: a block asks for some of them at each tile, so
 * that they come while it computes. Hints only: they change no number. */
struct ahead {
    const char *at;       /* of the row at hand */
    size_t stride;        /* from row to row, bytes */
    size_t rows;          /* that are left; 0: nothing to ask for */
    uint32_t lines, line; /* of a row; the next one to ask for */
};

/* Matrix product, one block. Panels: A as [ceil(m/mr)][k][mr], B as [ceil(n/nr)][k][nr], zero padded, k
 * rounded up to kstep; the inside of a panel is the flavour's own business. */
struct product {
    const char *name;
    uint32_t mr, nr, kstep, bytes; /* bytes: of an element in a panel */
    bool direct;                   /* block also takes rows of A as they lie */
    /* A's element (i,p) lies at a[i*rs + p*cs], B's (p,j) at b[p*ks + j*ns]; one step of each is 1. */
    void (*pack_a)(float *dst, const float *a, size_t rs, size_t cs, size_t m, size_t k);
    void (*pack_b)(float *dst, const float *b, size_t ks, size_t ns, size_t k, size_t n);
    /* c[m][n] = add + A B over k, a multiple of kstep; add may be c itself or NULL. lda of 0: a is
     * packed; else it is m rows lda apart, and its last m % mr rows lie packed in edge. ahead: takes,
     * or leaves, some of what it asks for. */
    void (*block)(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *edge,
                  const float *b, float *c, size_t ldc, const float *add, size_t ldadd,
                  struct ahead *ahead);
};

struct kernels {
    const char *name;
    uint32_t nr; /* columns of attention's buffers come in multiples of it */
    struct product f32;
    struct product
        bf16; /* operands rounded to bf16 (nearest, ties to even) when packed, sums f32 */

    void (*rmsnorm)(float *y, float *rstd, const float *x, const float *w, size_t rows, size_t C,
                    float eps, bool rstd_known);
    /* dx += gradient; dw[C] is overwritten with the sum over these rows. */
    void (*rmsnorm_back)(float *dx, float *dw, const float *dy, const float *x, const float *rstd,
                         const float *w, size_t rows, size_t C);
    /* rows [row0, row0+rows) of [B*T]: qkv[heads+2 kv][D] -> q, k, v head-major. */
    void (*rope)(const struct rope_layer *r, const float *qkv, size_t row0, size_t rows, float *q,
                 float *k, float *v);
    /* dqkv rows from dq, dk, dv; dqw[D] and dkw[D] are overwritten with the sums over these rows. */
    void (*rope_back)(const struct rope_layer *r, const float *qkv, size_t row0, size_t rows,
                      const float *dq, const float *dk, const float *dv, float *dqkv, float *dqw,
                      float *dkw);
    void (*swiglu)(float *act, const float *gu, size_t rows, size_t F);
    void (*swiglu_back)(float *gu, float *dact, size_t rows, size_t F);
    /* Attention: pack of one (b, kv head); one query block; then backward: one (b, head) of delta and
     * one (b, kv head) of the rest. scratch[ATTN_SCRATCH + 2*(ATTN_BACK_BK+KERNEL_MR_MAX)*Dp]. */
    void (*attn_pack)(const struct attn_work *a, uint32_t bkv, bool backward);
    void (*attn)(const struct attn_work *a, uint32_t bh, uint32_t block, float *scratch);
    void (*attn_delta)(const struct attn_work *a, uint32_t bh);
    void (*attn_back)(const struct attn_work *a, uint32_t bkv, float *scratch);
    /* One row of logits[V]: gives the loss; where scale is not 0, logits become their gradient. */
    float (*cross_entropy)(float *logits, size_t V, int32_t target, float scale, float z);
    void (*add)(float *y, const float *x, size_t n);                     /* y += x */
    void (*axpby)(float *y, const float *x, float a, float b, size_t n); /* as in device.h */
    double (*sum_squares)(const float *x, size_t n);
    void (*adamw)(float *theta, float *m, float *v, const float *g, size_t n,
                  const struct adamw_step *s);
};

/* bf16 on the matrix units of AMX; NULL where the processor or the system has none. */
const struct product *product_amx(void);
/* amx_os.c: asks the system for the use of AMX's tiles, for all threads of the process. */
bool amx_permitted(void);

extern const struct kernels kernels_base, kernels_avx2, kernels_avx512;
/* The widest flavour that this processor runs. */
const struct kernels *kernels_best(void);
/* By name ("base", "avx2", "avx512"); NULL where unknown or not runnable here. */
const struct kernels *kernels_find(const char *name);

#endif
