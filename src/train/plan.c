/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - all memory of a trainer, from one table.
 *
 * The table is a function that names each array with its size and where its address goes. It runs
 * twice: once to add sizes up, once to give addresses out of the slabs. So the sum can not differ from
 * what is used, and a step allocates nothing. Slabs: parameters, gradients, the moments, activations
 * (they grow with the micro-batch; with recomputation only by one row of C a layer), workspace. */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "train/trainer.h"

enum { ALIGN_FLOATS = 16 };
static const char *const SLAB_NAMES[SLABS] = {"weights", "gradients", "moments", "activations",
                                              "workspace"};

struct plan {
    float *base[SLABS]; /* NULL in the first pass */
    double used[SLABS]; /* in floats; double cannot overflow, and is exact up to 2^53 */
};

static void take(struct plan *p, enum slab s, float **slot, double count) {
    if (p->base[s]) *slot = p->base[s] + (size_t)p->used[s];
    p->used[s] += ceil(count / ALIGN_FLOATS) * ALIGN_FLOATS;
}

/* What a layer keeps beside its input. */
static void plan_layer(struct plan *p, struct trainer *t, struct layer_acts *a, double R) {
    take(p, SLAB_ACTS, &a->rstd1, R);
    take(p, SLAB_ACTS, &a->qkv, R * (double)t->W);
    take(p, SLAB_ACTS, &a->attn, R * (double)t->Q);
    take(p, SLAB_ACTS, &a->lse, R * t->heads);
    take(p, SLAB_ACTS, &a->x2, R * (double)t->C);
    take(p, SLAB_ACTS, &a->rstd2, R);
    take(p, SLAB_ACTS, &a->gate_up, R * 2 * (double)t->F);
}

static void plan_layers(struct plan *p, struct trainer *t, double R) {
    for (uint32_t l = 0; l < t->layers_count; l++) {
        if (l == 0 || !t->recompute)
            plan_layer(p, t, &t->acts[l], R);
        else
            t->acts[l] = t->acts[0];
    }
    for (uint32_t l = 0; l < t->layers_count; l++)
        take(p, SLAB_ACTS, &t->acts[l].x1, R * (double)t->C);
    take(p, SLAB_ACTS, &t->x_last, R * (double)t->C);
    take(p, SLAB_ACTS, &t->rstd_last, R);
}

static struct device_limits limits(const struct trainer *t) {
    return (struct device_limits){.B = t->micro,
                                  .T = t->T,
                                  .heads = t->heads,
                                  .kv_heads = t->kv_heads,
                                  .D = (uint32_t)t->D,
                                  .R = (size_t)t->micro * t->T,
                                  .C = t->C};
}

static void take_ints(struct plan *p, enum slab s, int32_t **slot, double count) {
    static_assert(sizeof(int32_t) == sizeof(float), "one slab holds both");
    float *at = NULL;
    take(p, s, &at, count);
    if (at) *slot = (int32_t *)(void *)at;
}

/* Room for the largest of Muon's matrices, twice, and for the products of one with itself. */
static void plan_muon(struct plan *p, struct trainer *t) {
    size_t whole = 0, gram = 0;
    for (size_t i = 0; i < t->matrices_count; i++) {
        size_t r = t->matrices[i].rows, c = t->matrices[i].columns, side = r < c ? r : c;
        whole = r * c > whole ? r * c : whole;
        gram = side * side > gram ? side * side : gram;
    }
    take(p, SLAB_WORK, &t->muon_x, (double)whole);
    take(p, SLAB_WORK, &t->muon_y, (double)whole);
    take(p, SLAB_WORK, &t->muon_gram, (double)gram);
    take(p, SLAB_WORK, &t->muon_gram2, (double)gram);
}

static void plan_work(struct plan *p, struct trainer *t, double R) {
    double C = (double)t->C;
    double slack = t->dev->slack * (double)t->Dp, width = (double)t->Dp;
    struct device_limits l = limits(t);
    take(p, SLAB_WORK, &t->h, R * C);
    take(p, SLAB_WORK, &t->inner, R * (double)t->F);
    take(p, SLAB_WORK, &t->dx, R * C);
    take(p, SLAB_WORK, &t->dh, R * C);
    take(p, SLAB_WORK, &t->dqkv, R * (double)t->W);
    take(p, SLAB_WORK, &t->dattn, R * (double)t->Q);
    take(p, SLAB_WORK, &t->q, R * t->heads * width + slack);
    take(p, SLAB_WORK, &t->k, R * t->kv_heads * width + slack);
    take(p, SLAB_WORK, &t->vv, R * t->kv_heads * width + slack);
    take(p, SLAB_WORK, &t->dq, R * t->heads * width + slack);
    take(p, SLAB_WORK, &t->dk, R * t->kv_heads * width + slack);
    take(p, SLAB_WORK, &t->dv, R * t->kv_heads * width + slack);
    take(p, SLAB_WORK, &t->cosines, t->T * (double)t->D / 2);
    take(p, SLAB_WORK, &t->sines, t->T * (double)t->D / 2);
    take(p, SLAB_WORK, &t->logits, (double)t->logit_rows * (double)t->V);
    take(p, SLAB_WORK, &t->losses, R);
    take_ints(p, SLAB_WORK, &t->ids, R);
    take_ints(p, SLAB_WORK, &t->targets, R);
    take(p, SLAB_WORK, &t->workspace, t->ops->workspace(t->dev, &l));
    plan_muon(p, t);
}

static void plan_all(struct plan *p, struct trainer *t) {
    double P = (double)t->P, R = (double)t->micro * t->T;
    for (size_t s = 0; s < SLABS; s++) p->used[s] = 0;
    take(p, SLAB_THETA, &t->theta, P);
    take(p, SLAB_GRAD, &t->grad, P);
    take(p, SLAB_MOMENTS, &t->m, (double)trainer_moments(t));
    take(p, SLAB_MOMENTS, &t->v, (double)(trainer_moments(t) - t->matrices_elements));
    plan_layers(p, t, R);
    plan_work(p, t, R);
    for (int i = 0; t->dp && i < DP_SLOTS; i++)
        take(p, SLAB_WORK, &t->dp->slots[i].parts, (double)dp_parts_count(t->dp));
}

/* E_MEMORY: what was asked, what is free, what shrinks it. */
static enum brg_status too_much(const struct plan *p, const struct trainer *t, double free_bytes,
                                struct err *e) {
    double total = 0, gib = 4.0 / (1024.0 * 1024.0 * 1024.0);
    char is_free[64] = "";
    for (size_t s = 0; s < SLABS; s++) total += p->used[s];
    if (free_bytes > 0)
        snprintf(is_free, sizeof is_free, ", %.2f GiB free", free_bytes / 4.0 * gib);
    return err_set(e, BRG_E_MEMORY,
                   "%.2f GiB asked for%s: weights, gradients and moments %.2f, activations of %u "
                   "rows of %u tokens %.2f, workspace %.2f. Lower the micro-batch first, turn "
                   "recomputation on, then lower the sequence length or the model",
                   total * gib, is_free,
                   (p->used[SLAB_THETA] + p->used[SLAB_GRAD] + p->used[SLAB_MOMENTS]) * gib,
                   t->micro, t->T, p->used[SLAB_ACTS] * gib, p->used[SLAB_WORK] * gib);
}

static enum brg_status allocate(struct plan *p, struct trainer *t, struct err *e) {
    double total = 0, is_free = t->ops->free_bytes(t->dev);
    for (size_t s = 0; s < SLABS; s++) total += p->used[s] * 4;
    /* pages are touched at once, and the system would end the process that touches one too many */
    if (total >= 1e15 || (is_free > 0 && total > is_free)) return too_much(p, t, is_free, e);
    for (size_t s = 0; s < SLABS; s++) {
        t->slab_bytes[s] = (size_t)p->used[s] * 4;
        t->slabs[s] = t->ops->alloc(t->dev, t->slab_bytes[s]);
        if (!t->slabs[s]) return too_much(p, t, is_free, e);
        p->base[s] = t->slabs[s];
    }
    return BRG_OK;
}

void trainer_memory(const struct trainer *t, struct buf *out) {
    double total = 0, mib = 1.0 / (1024.0 * 1024.0);
    for (size_t s = 0; s < SLABS; s++) total += (double)t->slab_bytes[s];
    buf_printf(out, "%.1f MiB:", total * mib);
    for (size_t s = 0; s < SLABS; s++)
        buf_printf(out, " %s %.1f%s", SLAB_NAMES[s], (double)t->slab_bytes[s] * mib,
                   s + 1 < SLABS ? "," : "");
}

static void plan_rotation(struct trainer *t) {
    size_t half = t->D / 2;
    for (size_t i = 0; i < half; i++) {
        double step = pow(t->model.rope_theta, -2.0 * (double)i / (double)t->D);
        for (size_t at = 0; at < t->T; at++) {
            t->cosines[at * half + i] = (float)cos((double)at * step);
            t->sines[at * half + i] = (float)sin((double)at * step);
        }
    }
}

/* Offsets follow the canonical order; the table of tensors is the witness (CHECK at the end). */
static void plan_offsets(struct trainer *t) {
    size_t at = t->V * t->C, kv = t->kv_heads * t->D;
    for (uint32_t l = 0; l < t->layers_count; l++) {
        struct layer_offsets *o = &t->offsets[l];
        o->norm1 = at;
        o->qkv = o->norm1 + t->C;
        o->o = o->qkv + (t->Q + 2 * kv) * t->C;
        o->q_norm = o->o + t->C * t->Q;
        o->k_norm = o->q_norm + t->D;
        o->norm2 = o->k_norm + t->D;
        o->gate_up = o->norm2 + t->C;
        o->down = o->gate_up + 2 * t->F * t->C;
        at = o->down + t->C * t->F;
    }
    t->final_norm = at;
    t->head = t->model.tie_word_embeddings ? t->embed : at + t->C;
    CHECK((t->model.tie_word_embeddings ? at + t->C : t->head + t->V * t->C) == t->P);
}

/* A chunk, or of it what this rank updates: its moments are here. */
static void plan_piece(struct trainer *t, struct piece p) {
    if (!t->dp) {
        p.moment = p.second = p.offset;
        t->pieces[t->pieces_count++] = p;
        return;
    }
    const struct dp *d = t->dp;
    size_t end = p.offset + p.count;
    for (size_t b = p.offset / d->bucket; b < d->buckets && b * d->bucket < end; b++) {
        size_t part = dp_part_at(d, b, d->net->rank), stop = dp_part_at(d, b, d->net->rank + 1);
        size_t from = p.offset > part ? p.offset : part, to = end < stop ? end : stop;
        size_t at = d->starts[b] + from - part;
        if (from < to)
            t->pieces[t->pieces_count++] = (struct piece){from, to - from, at, at, p.decay};
    }
}

static bool of_muon(const struct trainer *t, size_t offset) {
    for (size_t i = 0; i < t->matrices_count; i++) {
        const struct matrix *m = &t->matrices[i];
        if (offset >= m->offset && offset < m->offset + m->rows * m->columns) return true;
    }
    return false;
}

static void plan_adamw(struct trainer *t) {
    t->adamw_pieces = t->pieces;
    t->adamw_count = t->pieces_count;
    if (!t->has_muon) return;
    t->adamw_pieces = mem_alloc(t->pieces_count, sizeof *t->adamw_pieces);
    t->adamw_count = 0;
    size_t second = 0; /* v is of these alone, side by side */
    for (size_t i = 0; i < t->pieces_count; i++) {
        if (of_muon(t, t->pieces[i].offset)) continue;
        t->adamw_pieces[t->adamw_count] = t->pieces[i];
        t->adamw_pieces[t->adamw_count++].second = second;
        second += t->pieces[i].count;
    }
    CHECK(second + t->matrices_elements == t->P);
}

static void plan_pieces(struct trainer *t) {
    struct tensors table = {0};
    model_tensors(&t->model, &table);
    size_t most = t->P / ELEMENTS_CHUNK + table.count, at = 0;
    if (t->dp) most += t->dp->buckets;
    t->pieces = mem_alloc(most, sizeof *t->pieces);
    t->sums = mem_alloc(most, sizeof *t->sums);
    for (size_t i = 0; i < table.count; i++) {
        for (size_t done = 0; done < table.v[i].elements; done += ELEMENTS_CHUNK) {
            size_t left = table.v[i].elements - done;
            plan_piece(t, (struct piece){.offset = at + done,
                                         .count = left < ELEMENTS_CHUNK ? left : ELEMENTS_CHUNK,
                                         .decay = table.v[i].dims > 1});
            CHECK(t->pieces_count <= most);
        }
        at += table.v[i].elements;
    }
    CHECK(at == t->P);
    tensors_fini(&table);
    plan_adamw(t);
}

static void plan_sizes(struct trainer *t) {
    const struct model_config *c = &t->model;
    t->P = model_parameters(c);
    t->C = c->hidden_size;
    t->V = c->vocab_size;
    t->F = c->intermediate_size;
    t->D = c->head_dim;
    t->heads = c->num_attention_heads;
    t->kv_heads = c->num_key_value_heads;
    t->layers_count = c->num_hidden_layers;
    t->Q = t->heads * t->D;
    t->W = t->Q + 2 * t->kv_heads * t->D;
    t->Dp = device_pad(t->dev, t->D);
    t->logit_rows = LOGITS_MAX / t->V;
    if (t->logit_rows < LOGIT_ROWS_MIN) t->logit_rows = LOGIT_ROWS_MIN;
    if (t->logit_rows > LOGIT_ROWS_MAX) t->logit_rows = LOGIT_ROWS_MAX;
    size_t R = (size_t)t->micro * t->T;
    if (t->logit_rows > R) t->logit_rows = R;
}

enum brg_status trainer_plan(struct trainer *t, struct err *e) {
    plan_sizes(t);
    t->dp = dp_create(t->net, t->dev, t->P);
    t->offsets = mem_alloc(t->layers_count, sizeof *t->offsets);
    t->acts = mem_alloc(t->layers_count, sizeof *t->acts);
    muon_plan(t);
    struct plan p = {0};
    plan_all(&p, t);
    TRY(allocate(&p, t, e));
    struct plan counted = p;
    plan_all(&p, t);
    for (size_t s = 0; s < SLABS; s++) CHECK(p.used[s] == counted.used[s]); /* T3 */
    if (t->dp) t->dp->grad = t->grad;
    struct device_limits l = limits(t);
    t->ops->bind(t->dev, &l, t->workspace);
    plan_offsets(t);
    plan_pieces(t);
    plan_rotation(t);
    return BRG_OK;
}

void trainer_unplan(struct trainer *t) {
    for (size_t s = 0; s < SLABS; s++) t->ops->release(t->dev, t->slabs[s], t->slab_bytes[s]);
    if (t->adamw_pieces != t->pieces) mem_free(t->adamw_pieces);
    mem_free(t->pieces);
    mem_free(t->sums);
    muon_unplan(t);
    mem_free(t->offsets);
    mem_free(t->acts);
    dp_destroy(t->dp);
}
