/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c - the CPU's table of operations: each cuts its work into fixed chunks for the pool.
 *
 * What a chunk computes follows from shapes alone, and chunks that make parts of one sum leave them
 * side by side; the caller's thread adds them in order (V1). */
#include "train/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    COLUMNS_CHUNK = 64, /* columns a chunk of the embedding's gradient takes */
    LOSS_ROWS = 4,
    COPY_CHUNK = 1 << 16
};

static struct cpu *cpu_of(struct device *d) {
    return (struct cpu *)d;
}

void cpu_run(struct cpu *c, enum op_kind kind, size_t chunks, pool_fn *fn, void *ctx) {
    CHECK(chunks <= UINT32_MAX);
    uint64_t before = pool_clock();
    pool_run(c->pool, (uint32_t)chunks, fn, ctx);
    c->d.ns[kind] += pool_clock() - before;
}

void cpu_sum_parts(struct cpu *c, float *y, bool add, const float *parts, size_t n, size_t stride,
                   size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i == 0 && !add)
            memcpy(y, parts, n * sizeof *y);
        else
            c->kernels->add(y, parts + i * stride, n);
    }
}

/* ---- Memory -------------------------------------------------------------------------------------- */
static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

struct take {
    float *base; /* NULL: only adds up */
    double used;
};

static void take(struct take *t, float **slot, double count) {
    if (t->base) *slot = t->base + (size_t)t->used;
    t->used += ceil(count / 16) * 16;
}

static double plan(struct cpu *c, const struct device_limits *l, float *base) {
    struct take t = {.base = base};
    double Dp = device_pad(&c->d, l->D), slack = c->d.slack * Dp, nr = c->kernels->nr;
    double packed = (double)l->B * l->kv_heads * ceil(l->T / nr) * nr * l->D;
    take(&t, &c->mm.pack_b, MATMUL_PACK_B);
    take(&t, &c->mm.pack_a, (double)c->d.threads * MATMUL_PACK_A);
    take(&t, &c->partials, (double)cpu_chunks(l->R) * (double)larger(l->C, 2 * (size_t)l->D));
    take(&t, &c->scratch, (double)c->d.threads * (double)c->scratch_count);
    take(&t, &c->kt, packed);
    take(&t, &c->vt, packed);
    take(&t, &c->dout_hm, (double)l->R * l->heads * Dp + slack);
    take(&t, &c->delta, (double)l->R * l->heads);
    return t.used;
}

static double cpu_workspace(struct device *d, const struct device_limits *l) {
    struct cpu *c = cpu_of(d);
    size_t side = (ATTN_BACK_BK + KERNEL_MR_MAX) * (size_t)device_pad(d, l->D);
    c->scratch_count = ATTN_SCRATCH + 2 * side;
    return plan(c, l, NULL);
}

static void cpu_bind(struct device *d, const struct device_limits *l, float *workspace) {
    cpu_of(d)->limits = *l;
    double used = plan(cpu_of(d), l, workspace);
    CHECK(used == cpu_workspace(d, l)); /* V3 */
}

static void cpu_finish(struct device *d) {
    (void)d; /* every operation has ended when it returns: V2 */
}

static void cpu_close(struct device *d) {
    pool_destroy(cpu_of(d)->pool);
    mem_free(d);
}

static void *cpu_alloc(struct device *d, size_t bytes) {
    return pool_alloc(cpu_of(d)->pool, bytes);
}

static void cpu_release(struct device *d, void *p, size_t bytes) {
    (void)d;
    pool_release(p, bytes);
}

static double cpu_free_bytes(struct device *d) {
    (void)d;
    return memory_free_bytes();
}

/* ---- Moving numbers ------------------------------------------------------------------------------ */
struct vector_job {
    struct cpu *c;
    float *y;
    const float *x;
    size_t n;
    float a, b; /* of axpby */
};

static void vector_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct vector_job *j = ctx;
    size_t at = (size_t)chunk * COPY_CHUNK, n = j->n - at < COPY_CHUNK ? j->n - at : COPY_CHUNK;
    if (j->x)
        j->c->kernels->add(j->y + at, j->x + at, n);
    else
        memset(j->y + at, 0, n * sizeof(float));
}

static void cpu_add(struct device *d, float *y, const float *x, size_t n) {
    struct vector_job j = {.c = cpu_of(d), .y = y, .x = x, .n = n};
    cpu_run(j.c, OP_OTHER, (n + COPY_CHUNK - 1) / COPY_CHUNK, vector_chunk, &j);
}

static void cpu_zero(struct device *d, float *x, size_t n) {
    cpu_add(d, x, NULL, n);
}

static void axpby_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct vector_job *j = ctx;
    size_t at = (size_t)chunk * COPY_CHUNK, n = j->n - at < COPY_CHUNK ? j->n - at : COPY_CHUNK;
    j->c->kernels->axpby(j->y + at, j->x + at, j->a, j->b, n);
}

static void cpu_axpby(struct device *d, float *y, const float *x, float a, float b, size_t n) {
    struct vector_job j = {cpu_of(d), y, x, n, a, b};
    cpu_run(j.c, OP_ADAMW, (n + COPY_CHUNK - 1) / COPY_CHUNK, axpby_chunk, &j);
}

struct embed_job {
    struct cpu *c;
    float *y;
    const float *x;
    const int32_t *ids;
    size_t R, C;
};

static void embed_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct embed_job *j = ctx;
    struct rows r = cpu_rows(chunk, j->R);
    for (size_t i = r.at; i < r.at + r.count; i++)
        memcpy(j->y + i * j->C, j->x + (size_t)j->ids[i] * j->C, j->C * sizeof(float));
}

static void cpu_embed(struct device *d, float *y, const float *table, const int32_t *ids, size_t R,
                      size_t C) {
    struct embed_job j = {cpu_of(d), y, table, ids, R, C};
    cpu_run(j.c, OP_EMBED, cpu_chunks(R), embed_chunk, &j);
}

/* Cut by columns: the rows of a token that occurs often stay in order. */
static void embed_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct embed_job *j = ctx;
    size_t c0 = (size_t)chunk * COLUMNS_CHUNK,
           n = j->C - c0 < COLUMNS_CHUNK ? j->C - c0 : COLUMNS_CHUNK;
    for (size_t r = 0; r < j->R; r++)
        j->c->kernels->add(j->y + (size_t)j->ids[r] * j->C + c0, j->x + r * j->C + c0, n);
}

static void cpu_embed_back(struct device *d, float *dtable, const float *dy, const int32_t *ids,
                           size_t R, size_t C) {
    struct embed_job j = {cpu_of(d), dtable, dy, ids, R, C};
    cpu_run(j.c, OP_EMBED, (C + COLUMNS_CHUNK - 1) / COLUMNS_CHUNK, embed_back_chunk, &j);
}

/* ---- Products, norms, the inner activation, the loss ------------------------------------------------ */
static void cpu_matmul(struct device *d, enum matmul_form form, size_t M, size_t N, size_t K,
                       const float *a, const float *b, float *c, const float *add) {
    uint64_t before = pool_clock();
    matmul_run(&cpu_of(d)->mm, form, M, N, K, a, b, c, add);
    d->ns[(enum op_kind)form] += pool_clock() - before;
}

struct norm_job {
    struct cpu *c;
    float *y, *rstd;
    const float *dy, *x, *w;
    size_t R, C;
    float eps;
    bool rstd_known;
};

static void norm_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct norm_job *j = ctx;
    struct rows r = cpu_rows(chunk, j->R);
    size_t at = r.at * j->C;
    j->c->kernels->rmsnorm(j->y + at, j->rstd + r.at, j->x + at, j->w, r.count, j->C, j->eps,
                           j->rstd_known);
}

static void cpu_norm(struct device *d, float *y, float *rstd, const float *x, const float *w,
                     size_t R, size_t C, float eps, bool rstd_known) {
    struct norm_job j = {cpu_of(d), y, rstd, NULL, x, w, R, C, eps, rstd_known};
    cpu_run(j.c, OP_NORM, cpu_chunks(R), norm_chunk, &j);
}

static void norm_back_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct norm_job *j = ctx;
    struct rows r = cpu_rows(chunk, j->R);
    size_t at = r.at * j->C;
    j->c->kernels->rmsnorm_back(j->y + at, j->c->partials + chunk * j->C, j->dy + at, j->x + at,
                                j->rstd + r.at, j->w, r.count, j->C);
}

static void cpu_norm_back(struct device *d, float *dx, float *dw, bool add, const float *dy,
                          const float *x, const float *rstd, const float *w, size_t R, size_t C) {
    float *known = (float *)(uintptr_t)rstd; /* only read */
    struct norm_job j = {cpu_of(d), dx, known, dy, x, w, R, C, 0, true};
    CHECK(C <= j.c->limits.C);
    cpu_run(j.c, OP_NORM, cpu_chunks(R), norm_back_chunk, &j);
    cpu_sum_parts(j.c, dw, add, j.c->partials, C, C, cpu_chunks(R));
}

struct swiglu_job {
    struct cpu *c;
    float *act, *gu;
    const float *gu_in;
    size_t R, F;
};

static void swiglu_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct swiglu_job *j = ctx;
    struct rows r = cpu_rows(chunk, j->R);
    float *act = j->act + r.at * j->F;
    if (j->gu)
        j->c->kernels->swiglu_back(j->gu + r.at * 2 * j->F, act, r.count, j->F);
    else
        j->c->kernels->swiglu(act, j->gu_in + r.at * 2 * j->F, r.count, j->F);
}

static void cpu_swiglu(struct device *d, float *act, const float *gu, size_t R, size_t F) {
    struct swiglu_job j = {cpu_of(d), act, NULL, gu, R, F};
    cpu_run(j.c, OP_SWIGLU, cpu_chunks(R), swiglu_chunk, &j);
}

static void cpu_swiglu_back(struct device *d, float *gu, float *dact, size_t R, size_t F) {
    struct swiglu_job j = {cpu_of(d), dact, gu, NULL, R, F};
    cpu_run(j.c, OP_SWIGLU, cpu_chunks(R), swiglu_chunk, &j);
}

struct loss_job {
    struct cpu *c;
    float *losses, *logits;
    const int32_t *targets;
    size_t R, V;
    float scale, z;
};

static void loss_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct loss_job *j = ctx;
    size_t from = (size_t)chunk * LOSS_ROWS, to = from + LOSS_ROWS < j->R ? from + LOSS_ROWS : j->R;
    for (size_t r = from; r < to; r++)
        j->losses[r] =
            j->c->kernels->cross_entropy(j->logits + r * j->V, j->V, j->targets[r], j->scale, j->z);
}

static void cpu_cross_entropy(struct device *d, float *losses, float *logits,
                              const int32_t *targets, size_t R, size_t V, float scale, float z) {
    struct loss_job j = {cpu_of(d), losses, logits, targets, R, V, scale, z};
    cpu_run(j.c, OP_LOSS, (R + LOSS_ROWS - 1) / LOSS_ROWS, loss_chunk, &j);
}

/* ---- The optimizer --------------------------------------------------------------------------------- */
struct update_job {
    struct cpu *c;
    const struct piece *pieces;
    double *sums;
    float *theta, *m, *v;
    const float *grad;
    const struct adamw_step *step;
};

static void sum_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct update_job *j = ctx;
    const struct piece *p = &j->pieces[chunk];
    j->sums[chunk] = j->c->kernels->sum_squares(j->grad + p->offset, p->count);
}

static void cpu_sum_squares(struct device *d, double *sums, const float *x,
                            const struct piece *pieces, size_t n) {
    struct update_job j = {.c = cpu_of(d), .pieces = pieces, .sums = sums, .grad = x};
    cpu_run(j.c, OP_ADAMW, n, sum_chunk, &j);
}

static void adamw_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct update_job *j = ctx;
    const struct piece *p = &j->pieces[chunk];
    struct adamw_step s = *j->step;
    if (!p->decay) s.decay = 1.0f;
    j->c->kernels->adamw(j->theta + p->offset, j->m + p->moment, j->v + p->second,
                         j->grad + p->offset, p->count, &s);
}

static void cpu_adamw(struct device *d, float *theta, float *m, float *v, const float *grad,
                      const struct piece *pieces, size_t n, const struct adamw_step *s) {
    struct update_job j = {cpu_of(d), pieces, NULL, theta, m, v, grad, s};
    cpu_run(j.c, OP_ADAMW, n, adamw_chunk, &j);
}

static const struct device_ops CPU_OPS = {.close = cpu_close,
                                          .alloc = cpu_alloc,
                                          .release = cpu_release,
                                          .free_bytes = cpu_free_bytes,
                                          .workspace = cpu_workspace,
                                          .bind = cpu_bind,
                                          .finish = cpu_finish,
                                          .zero = cpu_zero,
                                          .add = cpu_add,
                                          .axpby = cpu_axpby,
                                          .embed = cpu_embed,
                                          .embed_back = cpu_embed_back,
                                          .matmul = cpu_matmul,
                                          .norm = cpu_norm,
                                          .norm_back = cpu_norm_back,
                                          .rope = cpu_rope,
                                          .rope_back = cpu_rope_back,
                                          .attn = cpu_attn,
                                          .attn_back = cpu_attn_back,
                                          .swiglu = cpu_swiglu,
                                          .swiglu_back = cpu_swiglu_back,
                                          .cross_entropy = cpu_cross_entropy,
                                          .sum_squares = cpu_sum_squares,
                                          .adamw = cpu_adamw};

enum brg_status cpu_open(const char *flavour, uint32_t threads, enum precision precision,
                         struct device **out, struct err *e) {
    const struct kernels *k = flavour ? kernels_find(flavour) : kernels_best();
    if (!k)
        return err_set(e, BRG_E_CONFIG,
                       "device cpu-%.20s: this processor cannot run it, or there is none of that "
                       "name: use cpu",
                       flavour);
    struct cpu *c = mem_alloc(1, sizeof *c);
    enum brg_status s = pool_create(threads, &c->pool, e);
    if (s != BRG_OK) {
        mem_free(c);
        return s;
    }
    c->kernels = k;
    const struct product *amx = precision == PRECISION_BF16 && !flavour ? product_amx() : NULL;
    c->mm = (struct matmul){.pool = c->pool,
                            .product = precision == PRECISION_F32 ? &k->f32
                                       : amx                      ? amx
                                                                  : &k->bf16};
    c->d = (struct device){.ops = &CPU_OPS,
                           .precision = precision,
                           .threads = pool_threads(c->pool),
                           .pad = k->nr,
                           .slack = KERNEL_MR_MAX};
    snprintf(c->d.name, sizeof c->d.name, "cpu-%s%s", k->name, amx ? "+amx" : "");
    *out = &c->d;
    return BRG_OK;
}
