/* SPDX-License-Identifier: Apache-2.0 */
/* sites.c - a site: steps, cut, rebase. The rules are those of src/site/core_train.c. */
#include <string.h>

#include "lab.h"
#include "site/weights.h"

/* Weights and subtraction base of the head; moments stay as they were when it left. */
void lab_enter(struct lab *b, struct lab_site *s) {
    size_t bytes = b->P * sizeof(float);
    memcpy(trainer_theta(s->trainer), b->theta, bytes);
    memcpy(s->s, b->theta, bytes);
    memcpy(s->base, b->theta, bytes);
    if (s->residual) memset(s->residual, 0, bytes);
    s->base_version = b->version;
    s->base_tokens = b->merged_samples * data_seq_len(b->data);
    s->live = true;
    s->starved = false;
    s->pending =
        false; /* what it had handed in before is in the head, or will be: not its own any more */
    s->inc++;
    s->steps_since = s->seg_steps = s->seg_tokens = s->steps = 0;
    s->warmup = b->version > 0 ? b->o->join_warmup : 0;
    b->r->joins++;
}

/* As site_lr has it: own work that the base's count does not have yet, and the step itself. */
static double rate(const struct lab *b, const struct lab_site *s) {
    uint64_t steps = s->seg_steps + 1 + (s->pending ? s->pending_steps : 0);
    double lr = schedule_lr(&b->schedule, (double)(s->base_tokens + steps * b->per_step));
    if (s->steps < s->warmup) lr *= (double)(s->steps + 1) / (double)s->warmup;
    return lr;
}

static void step(struct lab *b, struct lab_site *s) {
    struct err e;
    uint32_t T = data_seq_len(b->data), rows = lab_take(b, s);
    double norm;
    s->starved = rows == 0;
    if (rows == 0) return;
    double lr = rate(b, s);
    s->loss_sum += trainer_gradient(s->trainer, s->rows, rows);
    enum brg_status status = trainer_update(s->trainer, &b->o->adamw, lr, &norm, &e);
    if (status != BRG_OK) lab_fail(status, e.text);
    s->steps++;
    s->steps_since++;
    s->seg_steps++;
    s->seg_tokens += (uint64_t)rows * T;
    b->r->steps++;
}

static enum brg_status cut_chunk(struct lab *b, struct lab_site *s, uint64_t at, size_t n,
                                 float *scratch) {
    enum codec c = b->o->codec;
    const float *theta = trainer_theta(s->trainer) + at;
    uint8_t *out = s->delta + codec_bytes(c, at);
    if (!s->residual) return weights_cut(c, s->s + at, theta, n, out, scratch);
    memcpy(s->residual_before + at, s->residual + at, n * sizeof(float));
    TRY(weights_cut_aside(c, s->s + at, theta, s->residual + at, (float)b->o->keep, n, out,
                          scratch));
    memcpy(s->s + at, theta, n * sizeof(float)); /* all of it is the contribution's */
    return BRG_OK;
}

void lab_cut(struct lab *b, struct lab_site *s) {
    const struct lab_options *o = b->o;
    AUTO_FREE float *scratch = mem_alloc(2 * OUTER_CHUNK, sizeof *scratch);
    for (uint64_t at = 0; at < b->P; at += OUTER_CHUNK) {
        size_t n = b->P - at < OUTER_CHUNK ? (size_t)(b->P - at) : OUTER_CHUNK;
        enum brg_status status = cut_chunk(b, s, at, n, scratch);
        if (status != BRG_OK) lab_fail(status, "a weight of a site has no finite code");
    }
    struct delta_info info = {.base = s->base_version,
                              .tokens = s->seg_tokens,
                              .steps = s->seg_steps,
                              .elements = b->P,
                              .bytes = codec_bytes(o->codec, b->P),
                              .loss = s->loss_sum / (double)s->seg_steps,
                              .codec = (uint32_t)o->codec};
    lab_stage(b, s, &info);
    b->bytes_up += (double)info.bytes;
    s->pending = true;
    s->late = s->base_version < b->version;
    s->pending_steps = s->seg_steps;
    s->pending_tokens = s->seg_tokens;
    s->rebase_in = o->delay;
    s->seg_steps = s->seg_tokens = 0;
    s->loss_sum = 0;
}

/* local = global + own work that is not merged yet: the shift leaves theta - S alone. */
static void rebase(struct lab *b, struct lab_site *s) {
    AUTO_FREE float *own = mem_alloc(OUTER_CHUNK, sizeof *own);
    AUTO_FREE float *sent = mem_alloc(OUTER_CHUNK, sizeof *sent);
    float *theta = trainer_theta(s->trainer);
    for (uint64_t at = 0; at < b->P; at += OUTER_CHUNK) {
        size_t n = b->P - at < OUTER_CHUNK ? (size_t)(b->P - at) : OUTER_CHUNK;
        if (s->pending) {
            const uint8_t *coded = s->delta + codec_bytes(b->o->codec, at);
            enum brg_status status = codec_decode(b->o->codec, coded, n, own);
            if (status != BRG_OK) lab_fail(status, "a site cannot read its own contribution");
            if (s->residual) {
                memcpy(sent, own, n * sizeof *own);
                memset(own, 0, n * sizeof *own);
                weights_add_aside(own, sent, s->residual + at, s->residual_before + at,
                                  (float)b->o->keep, n);
            }
        }
        weights_rebase(theta + at, s->s + at, s->base + at, b->theta + at, s->pending ? own : NULL,
                       n);
    }
    memcpy(s->base, b->theta, b->P * sizeof(float));
    s->base_version = b->version;
    s->base_tokens = b->merged_samples * data_seq_len(b->data);
    s->pending = false;
    s->steps_since = 0;
}

static bool merged(const struct lab *b, const struct lab_site *s) {
    const struct delta *d = ledger_delta_find(b->ledger, &s->did);
    return d && d->state == DELTA_MERGED;
}

void lab_turn(struct lab *b, struct lab_site *s) {
    /* a version that has it is there, or the site had nothing in it */
    if (s->base_version < b->version && (!s->pending || merged(b, s))) {
        if (s->rebase_in == 0)
            rebase(b, s);
        else
            s->rebase_in--;
    }
    step(b, s);
    if (s->doomed && 2 * s->steps_since >= s->target) {
        lab_crash(b, s);
        return;
    }
    bool full = s->steps_since >= s->target || s->starved;
    if (full && !s->pending && s->seg_steps > 0) lab_cut(b, s);
}
