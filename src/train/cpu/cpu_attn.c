/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_attn.c - rotation and attention on the CPU: how they are cut into chunks. */
#include "train/cpu/cpu.h"

struct rope_job {
    struct cpu *c;
    const struct rope_layer *l;
    const float *qkv, *dq, *dk, *dv;
    float *q, *k, *v, *dqkv;
};

static size_t rope_rows(const struct rope_layer *l) {
    return (size_t)l->B * l->T;
}

static void rope_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct rope_job *j = ctx;
    struct rows r = cpu_rows(chunk, rope_rows(j->l));
    j->c->kernels->rope(j->l, j->qkv, r.at, r.count, j->q, j->k, j->v);
}

void cpu_rope(struct device *d, const struct rope_layer *l, const float *qkv, float *q, float *k,
              float *v) {
    struct rope_job j = {.c = (struct cpu *)d, .l = l, .qkv = qkv, .q = q, .k = k, .v = v};
    cpu_run(j.c, OP_ROPE, cpu_chunks(rope_rows(l)), rope_chunk, &j);
}

static void rope_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct rope_job *j = ctx;
    struct rows r = cpu_rows(chunk, rope_rows(j->l));
    float *parts = j->c->partials + (size_t)chunk * 2 * j->l->D;
    j->c->kernels->rope_back(j->l, j->qkv, r.at, r.count, j->dq, j->dk, j->dv, j->dqkv, parts,
                             parts + j->l->D);
}

void cpu_rope_back(struct device *d, const struct rope_layer *l, const float *qkv, const float *dq,
                   const float *dk, const float *dv, float *dqkv, float *dqw, float *dkw,
                   bool add) {
    struct rope_job j = {
        .c = (struct cpu *)d, .l = l, .qkv = qkv, .dq = dq, .dk = dk, .dv = dv, .dqkv = dqkv};
    size_t chunks = cpu_chunks(rope_rows(l)), D = l->D;
    cpu_run(j.c, OP_ROPE, chunks, rope_back_chunk, &j);
    cpu_sum_parts(j.c, dqw, add, j.c->partials, D, 2 * D, chunks);
    cpu_sum_parts(j.c, dkw, add, j.c->partials + D, D, 2 * D, chunks);
}

struct attn_job {
    struct cpu *c;
    struct attn_work w;
    bool backward;
};

static struct attn_job attn_job(struct device *d, const struct attn *a, bool backward) {
    struct cpu *c = (struct cpu *)d;
    CHECK(a->B <= c->limits.B);
    CHECK(a->T <= c->limits.T);
    return (struct attn_job){
        .c = c,
        .w = {.s = *a, .kt = c->kt, .vt = c->vt, .dout_hm = c->dout_hm, .delta = c->delta},
        .backward = backward};
}

static void pack_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct attn_job *j = ctx;
    j->c->kernels->attn_pack(&j->w, chunk, j->backward);
}

static void attn_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct attn_job *j = ctx;
    uint32_t blocks = (j->w.s.T + ATTN_BQ - 1) / ATTN_BQ;
    j->c->kernels->attn(&j->w, chunk / blocks, chunk % blocks,
                        j->c->scratch + worker * j->c->scratch_count);
}

void cpu_attn(struct device *d, const struct attn *a) {
    struct attn_job j = attn_job(d, a, false);
    size_t blocks = (a->T + ATTN_BQ - 1) / ATTN_BQ;
    cpu_run(j.c, OP_ATTN, (size_t)a->B * a->kv_heads, pack_chunk, &j);
    cpu_run(j.c, OP_ATTN, a->B * a->heads * blocks, attn_chunk, &j);
}

static void delta_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct attn_job *j = ctx;
    j->c->kernels->attn_delta(&j->w, chunk);
}

static void attn_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct attn_job *j = ctx;
    j->c->kernels->attn_back(&j->w, chunk, j->c->scratch + worker * j->c->scratch_count);
}

void cpu_attn_back(struct device *d, const struct attn *a) {
    struct attn_job j = attn_job(d, a, true);
    cpu_run(j.c, OP_ATTN_BACK, (size_t)a->B * a->kv_heads, pack_chunk, &j);
    cpu_run(j.c, OP_ATTN_BACK, (size_t)a->B * a->heads, delta_chunk, &j);
    cpu_run(j.c, OP_ATTN_BACK, (size_t)a->B * a->kv_heads, attn_back_chunk, &j);
}
