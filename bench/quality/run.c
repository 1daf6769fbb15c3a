/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - one run from its first weights to its held-out loss: the central one, or one over sites. */
#include <math.h>
#include <string.h>

#include "base/os.h"
#include "lab.h"

static enum brg_status trainer_of(struct lab *b, uint32_t batch, struct trainer **out,
                                  struct err *e) {
    const struct lab_options *o = b->o;
    struct trainer_options t = {.model = &b->model,
                                .seq_len = data_seq_len(b->data),
                                .batch_max = batch,
                                .threads = 1,
                                .precision = o->precision,
                                .muon = o->optimizer == OPTIMIZER_MUON ? &o->muon : NULL};
    return trainer_create(&t, out, e);
}

static enum brg_status prepare(struct lab *b, struct err *e) {
    enum { JUDGE_ROWS = 32 };
    const struct lab_options *o = b->o;
    TRY(model_config_load(o->model, &b->model, e));
    TRY(data_open(o->data, false, &b->data, e));
    uint32_t T = data_seq_len(b->data);
    b->P = model_parameters(&b->model);
    b->positions = o->tokens / T;
    b->order_of = UINT64_MAX;
    if (b->positions == 0 || data_heldout_samples(b->data) == 0 ||
        data_vocab(b->data) > b->model.vocab_size)
        return err_set(e, BRG_E_CONFIG,
                       "--tokens %llu, %s and %s do not fit: want a sample of %u tokens at least, "
                       "held-out samples, and a vocabulary of %u at most",
                       (unsigned long long)o->tokens, o->data, o->model, T, b->model.vocab_size);
    b->schedule = (struct schedule){.kind = o->schedule,
                                    .lr = o->lr,
                                    .lr_min_ratio = o->lr_min_ratio,
                                    .tokens_total = (double)(b->positions * T),
                                    .decay_share = o->decay_share,
                                    .tokens_warmup = o->warmup_share * (double)(b->positions * T)};
    b->theta = mem_alloc(b->P, sizeof(float));
    model_init(&b->model, o->seed, b->theta);
    uint64_t held = data_heldout_samples(b->data),
             rows = o->curve_rows < held ? o->curve_rows : held;
    b->judge_count = rows;
    b->judge_rows = mem_alloc(rows * (T + 1) + 1, sizeof *b->judge_rows);
    for (uint64_t i = 0; i < rows; i++) /* spread over all held-out documents */
        data_heldout_sample(b->data, i * held / rows, b->judge_rows + i * (T + 1));
    return trainer_of(b, JUDGE_ROWS, &b->judge, e);
}

/* ---- Central -------------------------------------------------------------------------------------- */

static enum brg_status central(struct lab *b, struct err *e) {
    const struct lab_options *o = b->o;
    struct trainer *t = NULL;
    uint32_t T = data_seq_len(b->data);
    double norm;
    TRY(trainer_of(b, o->batch, &t, e));
    AUTO_FREE int32_t *rows = mem_alloc((size_t)o->batch * (T + 1), sizeof *rows);
    memcpy(trainer_theta(t), b->theta, b->P * sizeof(float));
    enum brg_status s = BRG_OK;
    for (uint64_t done = 0; done < b->positions && s == BRG_OK && !(b->r->stopped > 0);
         b->r->steps++) {
        uint32_t n = b->positions - done < o->batch ? (uint32_t)(b->positions - done) : o->batch;
        for (uint32_t i = 0; i < n; i++) lab_row(b, done + i, rows + (size_t)i * (T + 1));
        (void)trainer_gradient(t, rows, n);
        done += n;
        s = trainer_update(t, &o->adamw, schedule_lr(&b->schedule, (double)done * T), &norm, e);
        if (!lab_curve_due(b, done)) continue;
        memcpy(b->theta, trainer_theta(t), b->P * sizeof(float));
        lab_curve_add(b, done);
    }
    memcpy(b->theta, trainer_theta(t), b->P * sizeof(float));
    trainer_destroy(t);
    return s;
}

/* ---- Sites ---------------------------------------------------------------------------------------- */

static enum brg_status site_create(struct lab *b, uint32_t i, struct err *e) {
    const struct lab_options *o = b->o;
    struct lab_site *s = &b->sites[i];
    uint32_t sum = 0, most = 0;
    for (uint32_t k = 0; k < o->sites; k++) {
        sum += o->speeds[k];
        most = o->speeds[k] > most ? o->speeds[k] : most;
    }
    s->id = i;
    s->batch = o->batch;
    s->period = most / o->speeds[i];
    if (o->cadence_batch) { /* shares of the same sum: 4, 4, 4 becomes 2, 3, 7 for speeds 1:2:4 */
        uint32_t all = o->batch * o->sites, before = 0;
        for (uint32_t k = 0; k < i; k++) before += o->speeds[k];
        s->batch = (all * (before + o->speeds[i]) + sum / 2) / sum - (all * before + sum / 2) / sum;
        s->period = 1;
    }
    if (s->batch == 0)
        return err_set(e, BRG_E_CONFIG, "--batch %u leaves site %u no sample of a step: raise it",
                       o->batch, i);
    TRY(trainer_of(b, s->batch, &s->trainer, e));
    s->s = mem_alloc(b->P, sizeof(float));
    s->base = mem_alloc(b->P, sizeof(float));
    if (codec_aside(o->codec)) {
        s->residual = mem_alloc(b->P, sizeof(float));
        s->residual_before = mem_alloc(b->P, sizeof(float));
    }
    s->delta = mem_alloc(codec_bytes(o->codec, b->P), 1);
    s->rows = mem_alloc((size_t)s->batch * (data_seq_len(b->data) + 1), sizeof *s->rows);
    return BRG_OK;
}

static void site_destroy(struct lab_site *s) {
    trainer_destroy(s->trainer);
    mem_free(s->s);
    mem_free(s->base);
    mem_free(s->residual);
    mem_free(s->residual_before);
    mem_free(s->delta);
    mem_free(s->rows);
}

static void finish(struct lab *b) {
    struct hash digest;
    uint64_t merged = ledger_count(b->ledger, 0, EXTENT_MERGED);
    ledger_check(b->ledger);
    if (merged != b->positions || ledger_seal(b->ledger, 0, &digest) != LEASE_FINE)
        lab_fail(BRG_E_INTERNAL, "the ledger says that not every sample is in the model once");
    if (b->cosines > 0) {
        b->r->cosine = b->cosine_sum / (double)b->cosines;
        b->r->norm_ratio = b->ratio_sum / (double)b->cosines;
    }
    double fp32 = 4.0 * (double)b->P * b->o->sites * (double)b->r->rounds;
    b->r->bytes_up_share = b->bytes_up / fp32;
}

static void spans_of(struct lab *b) {
    struct tensors table = {0};
    uint64_t end = 0;
    model_tensors(&b->model, &table);
    b->spans = mem_alloc(table.count, sizeof *b->spans);
    for (b->spans_count = 0; b->spans_count < table.count; b->spans_count++) {
        const struct tensor *t = &table.v[b->spans_count];
        end += t->elements;
        b->spans[b->spans_count] = (struct outer_span){end, outer_span_is_plain(t->name)};
    }
    tensors_fini(&table);
}

static enum brg_status over_sites(struct lab *b, struct err *e) {
    const struct lab_options *o = b->o;
    b->m = mem_alloc(b->P, sizeof(float));
    b->old = mem_alloc(b->P, sizeof(float));
    b->feedback = mem_alloc(2 * b->P, 1);
    b->ema = mem_alloc(b->P, sizeof(float));
    spans_of(b);
    b->update = mem_alloc(codec_bytes(CODEC_FP32, OUTER_CHUNK), 1);
    b->ledger = ledger_create(b->positions, 1);
    if (ledger_epoch_open(b->ledger, 0) != LEASE_FINE)
        lab_fail(BRG_E_INTERNAL, "the ledger does not open");
    for (uint32_t i = 0; i < o->sites; i++) TRY(site_create(b, i, e));
    for (uint32_t i = 0; i < o->sites; i++)
        if (!(o->away >> i & 1)) lab_enter(b, &b->sites[i]);
    lab_synchronous(b);
    uint64_t idle = 0, most = 1000 + 100 * b->positions;
    for (; b->merged_samples < b->positions && !(b->r->stopped > 0); b->tick++) {
        lab_hub_turn(b);
        for (uint32_t i = 0; i < o->sites; i++)
            if (b->sites[i].live && b->tick % b->sites[i].period == 0) lab_turn(b, &b->sites[i]);
        if (++idle > most) lab_fail(BRG_E_INTERNAL, "the run does not end");
    }
    if (!(b->r->stopped > 0)) finish(b);
    return BRG_OK;
}

enum brg_status lab_run(const struct lab_options *o, struct lab_result *out, struct err *e) {
    struct lab *b = mem_alloc(1, sizeof *b);
    time_ns before = os_now();
    memset(out, 0, sizeof *out);
    b->o = o;
    b->r = out;
    enum brg_status s = prepare(b, e);
    if (s == BRG_OK) s = o->sites == 0 ? central(b, e) : over_sites(b, e);
    out->parameters = b->P;
    if (s == BRG_OK) out->tokens = b->positions * data_seq_len(b->data);
    if (s == BRG_OK && !(out->stopped > 0)) {
        out->nll = lab_loss(b, 0);
        out->perplexity = exp(out->nll);
        if (b->has_ema) {
            memcpy(b->theta, b->ema, b->P * sizeof(float));
            out->nll_ema = lab_loss(b, 0);
        }
    }
    for (uint32_t i = 0; i < o->sites; i++) site_destroy(&b->sites[i]);
    if (b->ledger) ledger_destroy(b->ledger);
    trainer_destroy(b->judge);
    if (b->data) data_close(b->data);
    void *all[] = {b->theta, b->m, b->old, b->feedback, b->update, b->judge_rows, b->ema, b->spans};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
    mem_free(b);
    out->seconds = (double)(os_now() - before) / NS_PER_S;
    return s;
}
