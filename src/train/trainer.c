/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - a batch's loss and gradient, and AdamW.
 *
 * A batch of rows goes through in micro-batches of at most `micro` rows; the gradient is that of the
 * mean over all rows*T predictions, because each micro-batch is scaled by the whole batch's count.
 * Invariants
 *   (T1) loss and gradient have the same bits for any number of threads. They depend on how many rows
 *        a micro-batch holds (the order of sums), in the last bits only.
 *   (T2) an update whose gradient is not finite changes nothing.
 *   (T3) a step allocates nothing. */
#include <math.h>
#include <string.h>

#include "train/trainer.h"

struct adamw adamw_default(void) {
    return (struct adamw){
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
}

static enum brg_status check_options(const struct trainer_options *o, struct err *e) {
    if (o->seq_len == 0 || o->batch_max == 0)
        return err_set(e, BRG_E_LIMIT, "sequence length and batch must be at least 1");
    if (o->muon && dp_ranks(o->net) > 1)
        return err_set(
            e, BRG_E_CONFIG,
            "optimizer muon works on whole matrices, and the ranks of a job hold parts of "
            "them: use optimizer adamw, or one rank (--mpi no)");
    if (o->seq_len > o->model->max_position_embeddings)
        return err_set(e, BRG_E_MODEL,
                       "sequence length %u exceeds the model's field "
                       "max_position_embeddings (%u): raise the field or pack shorter samples",
                       o->seq_len, o->model->max_position_embeddings);
    if ((double)o->seq_len * o->batch_max > (double)(1 << 30))
        return err_set(e, BRG_E_LIMIT,
                       "a batch of %u rows of %u tokens is more than 2^30 tokens: "
                       "lower the batch",
                       o->batch_max, o->seq_len);
    return BRG_OK;
}

enum brg_status trainer_create(const struct trainer_options *o, struct trainer **out,
                               struct err *e) {
    TRY(check_options(o, e));
    struct trainer *t = mem_alloc(1, sizeof *t);
    t->model = *o->model;
    t->T = o->seq_len;
    t->batch_max = o->batch_max;
    t->micro = o->micro_batch && o->micro_batch < o->batch_max ? o->micro_batch : o->batch_max;
    t->net = o->net;
    t->recompute = o->recompute;
    t->z_loss = (float)o->z_loss;
    t->has_muon = o->muon != NULL;
    if (o->muon) t->muon = *o->muon;
    enum brg_status s = device_open(o->device, o->threads, o->precision, &t->dev, e);
    if (s == BRG_OK) {
        t->ops = t->dev->ops;
        s = trainer_plan(t, e);
    }
    if (s == BRG_OK && t->dp) {
        t->final = dp_reduce_final;
        t->final_ctx = t->dp;
    }
    if (s != BRG_OK) {
        trainer_destroy(t);
        return s;
    }
    *out = t;
    return BRG_OK;
}

void trainer_destroy(struct trainer *t) {
    if (!t) return;
    if (t->dev) trainer_unplan(t);
    device_close(t->dev);
    mem_free(t);
}

uint64_t trainer_parameters(const struct trainer *t) {
    return t->P;
}

float *trainer_theta(struct trainer *t) {
    return t->theta;
}

float *trainer_grad(struct trainer *t) {
    return t->grad;
}

float *trainer_m(struct trainer *t) {
    return t->m;
}

float *trainer_v(struct trainer *t) {
    return t->has_muon ? NULL : t->v;
}

uint64_t trainer_steps(const struct trainer *t) {
    return t->steps;
}

void trainer_steps_set(struct trainer *t, uint64_t steps) {
    t->steps = steps;
}

uint64_t trainer_moments(const struct trainer *t) {
    return t->dp ? t->dp->own : t->P;
}

/* v[at, at + count) where Muon's matrices have none: what AdamW's pieces have of it. */
static void seconds_move(struct trainer *t, uint64_t at, uint64_t count, float *out,
                         const float *in) {
    for (size_t i = 0; i < t->adamw_count; i++) {
        const struct piece *p = &t->adamw_pieces[i];
        uint64_t from = p->offset > at ? p->offset : at, to = p->offset + p->count;
        if (to > at + count) to = at + count;
        if (from >= to) continue;
        float *v = t->v + p->second + (from - p->offset);
        if (out)
            memcpy(out + (from - at), v, (to - from) * sizeof *v);
        else
            memcpy(v, in + (from - at), (to - from) * sizeof *v);
    }
}

void trainer_moment_get(struct trainer *t, enum moment which, uint64_t at, uint64_t count,
                        float *values) {
    const float *own = which == MOMENT_M ? t->m : t->v;
    CHECK(at <= t->P);
    CHECK(count <= t->P - at);
    if (t->dp) {
        dp_collect(t->dp, own, at, count, values);
    } else if (which == MOMENT_V && t->has_muon) {
        memset(values, 0, count * sizeof(float));
        seconds_move(t, at, count, values, NULL);
    } else {
        memcpy(values, own + at, count * sizeof(float));
    }
}

void trainer_moment_put(struct trainer *t, enum moment which, uint64_t at, uint64_t count,
                        const float *values) {
    float *own = which == MOMENT_M ? t->m : t->v;
    CHECK(at <= t->P);
    CHECK(count <= t->P - at);
    if (t->dp)
        dp_scatter(t->dp, own, at, count, values);
    else if (which == MOMENT_V && t->has_muon)
        seconds_move(t, at, count, NULL, values);
    else
        memcpy(own + at, values, count * sizeof(float));
}

uint64_t trainer_part(const struct trainer *t, uint32_t rank) {
    return t->dp ? dp_own(t->dp, rank) : t->P;
}

uint64_t trainer_bucket(const struct trainer *t) {
    return t->dp ? t->dp->bucket : 0;
}

void trainer_part_get(struct trainer *t, float *parts) {
    size_t own = (size_t)trainer_moments(t);
    if (t->dp)
        dp_theta_get(t->dp, t->theta, parts);
    else
        memcpy(parts, t->theta, own * sizeof(float));
    memcpy(parts + own, t->m, own * sizeof(float));
    if (t->dp)
        memcpy(parts + 2 * own, t->v, own * sizeof(float));
    else
        trainer_moment_get(t, MOMENT_V, 0, own, parts + 2 * own);
}

void trainer_part_put(struct trainer *t, const float *parts) {
    size_t own = (size_t)trainer_moments(t);
    memcpy(t->m, parts + own, own * sizeof(float));
    if (t->dp) {
        memcpy(t->v, parts + 2 * own, own * sizeof(float));
        dp_theta_put(t->dp, t->theta, parts);
    } else {
        trainer_moment_put(t, MOMENT_V, 0, own, parts + 2 * own);
        memcpy(t->theta, parts, own * sizeof(float));
    }
}

void trainer_part_clear(struct trainer *t) {
    size_t own = (size_t)trainer_moments(t);
    memset(t->m, 0, own * sizeof(float));
    memset(t->v, 0, (own - t->matrices_elements) * sizeof(float));
}

void trainer_theta_share(struct trainer *t) {
    if (t->dp) t->net->bcast(t->net->self, t->theta, t->P * sizeof(float), false);
}

/* The micro-batch's tokens and what follows each of them. */
static void take_tokens(struct trainer *t) {
    for (size_t r = 0; r < t->R; r++) {
        const int32_t *x = t->tokens + r / t->T * (t->T + 1) + r % t->T;
        for (int i = 0; i < 2; i++) {
            CHECK(x[i] >= 0);
            CHECK((size_t)x[i] < t->V);
        }
        t->ids[r] = x[0];
        t->targets[r] = x[1];
    }
}

/* All micro-batches of a batch; where scale is not 0 gradients too, of the losses' sum times scale.
 * Gives the sum. */
static double run_batch(struct trainer *t, const int32_t *tokens, uint32_t rows, double scale) {
    CHECK(rows <= t->batch_max);
    double sum = 0;
    for (uint32_t at = 0; at < rows; at += t->micro) {
        t->rows = rows - at < t->micro ? rows - at : t->micro;
        t->R = (size_t)t->rows * t->T;
        t->tokens = tokens + (size_t)at * (t->T + 1);
        t->first = at == 0;
        t->last = scale != 0 && rows - at <= t->micro;
        CHECK(t->R <= (size_t)t->micro * t->T); /* T1: shapes alone decide how work is cut */
        take_tokens(t);
        trainer_forward(t);
        trainer_head(t, (float)scale);
        if (scale != 0) trainer_backward(t);
        t->ops->finish(t->dev);
        for (size_t r = 0; r < t->R; r++) sum += (double)t->losses[r];
    }
    t->tokens = NULL;
    return sum;
}

double trainer_loss(struct trainer *t, const int32_t *tokens, uint32_t rows) {
    CHECK(rows > 0);
    return run_batch(t, tokens, rows, 0) / ((double)rows * t->T);
}

double trainer_gradient(struct trainer *t, const int32_t *tokens, uint32_t rows) {
    return trainer_gradient_part(t, tokens, rows, rows);
}

double trainer_gradient_part(struct trainer *t, const int32_t *tokens, uint32_t rows,
                             uint32_t rows_total) {
    CHECK(rows_total > 0);
    double count = (double)rows_total * t->T;
    if (!t->dp) {
        CHECK(rows == rows_total);
        return run_batch(t, tokens, rows, 1.0 / count) / count;
    }
    dp_reduce_begin(t->dp);
    double sum = 0;
    if (rows > 0) {
        sum = run_batch(t, tokens, rows, 1.0 / count);
    } else { /* a rank without rows takes part in the sums all the same */
        memset(t->grad, 0, t->P * sizeof(float));
        dp_reduce_final(t->dp, 0);
    }
    dp_reduce_finish(t->dp);
    return dp_sum(t->net, sum) / count;
}

/* Global L2 norm: each fixed piece in double, pieces in order; then ranks in order. */
static double gradient_norm(struct trainer *t) {
    double sum = 0;
    t->ops->sum_squares(t->dev, t->sums, t->grad, t->pieces, t->pieces_count);
    for (size_t i = 0; i < t->pieces_count; i++) sum += t->sums[i];
    return sqrt(dp_sum(t->net, sum));
}

static void update_pieces(struct trainer *t, const struct adamw_step *s, size_t from, size_t to) {
    t->ops->adamw(t->dev, t->theta, t->m, t->v, t->grad, t->adamw_pieces + from, to - from, s);
    t->ops->finish(t->dev);
}

/* Bucket by bucket: while one is updated, those before it are on their way to the other ranks. */
static void update_parts(struct trainer *t, const struct adamw_step *s) {
    size_t at = 0;
    for (size_t b = 0; b < t->dp->buckets; b++) {
        size_t end = (b + 1) * t->dp->bucket, from = at;
        while (at < t->pieces_count && t->pieces[at].offset < end) at++;
        update_pieces(t, s, from, at);
        dp_spread(t->dp, t->theta, b);
    }
    dp_spread_finish(t->dp);
}

enum brg_status trainer_update(struct trainer *t, const struct adamw *a, double lr,
                               double *out_norm, struct err *e) {
    double norm = gradient_norm(t);
    if (!isfinite(norm)) /* T2 */
        return err_set(e, BRG_E_NONFINITE,
                       "the gradient of step %llu is not finite: lower the "
                       "learning rate, or take weights that are finite",
                       (unsigned long long)(t->steps + 1));
    double clip = a->clip > 0 ? fmin(1.0, a->clip / (norm + 1e-6)) : 1.0;
    double n = (double)++t->steps;
    struct adamw_step step = {.lr = (float)lr,
                              .decay = (float)(1.0 - lr * a->weight_decay),
                              .clip = (float)clip,
                              .beta1 = (float)a->beta1,
                              .beta2 = (float)a->beta2,
                              .rest1 = (float)(1.0 - a->beta1),
                              .rest2 = (float)(1.0 - a->beta2),
                              .bias1 = (float)(1.0 / (1.0 - pow(a->beta1, n))),
                              .bias2 = (float)(1.0 / (1.0 - pow(a->beta2, n))),
                              .eps = (float)a->eps};
    if (t->dp)
        update_parts(t, &step);
    else
        update_pieces(t, &step, 0, t->adamw_count);
    if (t->has_muon) muon_update(t, a, lr, clip);
    *out_norm = norm;
    return BRG_OK;
}

enum brg_status trainer_gradient_share(struct trainer *t, double *out_norm, struct err *e) {
    double norm = gradient_norm(t);
    if (!isfinite(norm)) /* T2 */
        return err_set(e, BRG_E_NONFINITE, "the gradient is not finite");
    for (size_t b = 0; t->dp && b < t->dp->buckets; b++) dp_spread(t->dp, t->grad, b);
    if (t->dp) dp_spread_finish(t->dp);
    *out_norm = norm;
    return BRG_OK;
}
