/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h - the CPU as a device: chunks of rows on a pool of workers, kernels by flavour. */
#ifndef TRAIN_CPU_CPU_H
#define TRAIN_CPU_CPU_H

#include "train/cpu/matmul.h"

struct cpu {
    struct device d; /* first: a struct device is the head of its backend */
    const struct kernels *kernels;
    struct pool *pool;
    struct matmul mm;
    float *partials;                  /* [chunks of rows][max(C, 2D)]: gradients of norm weights */
    float *scratch;                   /* [threads][scratch_count] of attention */
    float *kt, *vt, *dout_hm, *delta; /* see struct attn_work */
    size_t scratch_count;
    struct device_limits limits;
};

/* flavour: NULL for the widest. */
enum brg_status cpu_open(const char *flavour, uint32_t threads, enum precision precision,
                         struct device **out, struct err *e) MUST_USE;
/* Runs chunks on all workers and books the time. */
void cpu_run(struct cpu *c, enum op_kind kind, size_t chunks, pool_fn *fn, void *ctx);

/* cpu_attn.c */
void cpu_rope(struct device *d, const struct rope_layer *l, const float *qkv, float *q, float *k,
              float *v);
void cpu_rope_back(struct device *d, const struct rope_layer *l, const float *qkv, const float *dq,
                   const float *dk, const float *dv, float *dqkv, float *dqw, float *dkw, bool add);
void cpu_attn(struct device *d, const struct attn *a);
void cpu_attn_back(struct device *d, const struct attn *a);
/* cpu.c: y[0..n) = (add ? y : 0) + parts, which lie stride apart, in order. */
void cpu_sum_parts(struct cpu *c, float *y, bool add, const float *parts, size_t n, size_t stride,
                   size_t count);

enum { CPU_ROWS = 32 }; /* rows a chunk of an elementwise pass takes */
struct rows {
    size_t at, count;
};
static inline struct rows cpu_rows(uint32_t chunk, size_t R) {
    size_t at = (size_t)chunk * CPU_ROWS;
    return (struct rows){at, R - at < CPU_ROWS ? R - at : CPU_ROWS};
}
static inline size_t cpu_chunks(size_t R) {
    return (R + CPU_ROWS - 1) / CPU_ROWS;
}

#endif
