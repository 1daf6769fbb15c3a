/* SPDX-License-Identifier: Apache-2.0 */
/* sync.c - the first share of a run in synchronous rounds: each site's gradient at the head, and the hub's one AdamW
 * step on their mean (outer/adamw.c), as src/hub/sync.c and src/hub/merge_os.c have it. Behind it the sites begin with
 * moments at zero and a ramp, and the outer momentum begins at zero, as in the program. */
#include <string.h>

#include "lab.h"

struct gradients {
    struct tensors table;
    float *v, *mean;
    struct outer_part parts[LAB_SITES_MAX];
    struct id128 dids[LAB_SITES_MAX];
    const float *of[LAB_SITES_MAX];
    double weight[LAB_SITES_MAX];
    size_t count;
    uint64_t samples;
};

/* The site's gradient of one batch is staged; nothing moves. */
static void hand_in(struct lab *b, struct lab_site *s, struct gradients *g) {
    uint32_t rows = lab_take(b, s);
    if (rows == 0) return;
    memcpy(trainer_theta(s->trainer), b->theta, b->P * sizeof(float));
    double loss = trainer_gradient(s->trainer, s->rows, rows);
    struct delta_info info = {.base = b->version,
                              .tokens = (uint64_t)rows * data_seq_len(b->data),
                              .steps = 1,
                              .elements = b->P,
                              .bytes = codec_bytes(CODEC_GRADIENT, b->P),
                              .loss = loss,
                              .codec = CODEC_GRADIENT};
    lab_stage(b, s, &info);
    b->bytes_up += (double)info.bytes;
    b->r->steps++;
    g->of[g->count] = trainer_grad(s->trainer);
    g->dids[g->count] = s->did;
    g->parts[g->count++] = (struct outer_part){.site = s->id, .tokens = info.tokens, .steps = 1};
    g->samples += rows;
}

static void step(struct lab *b, struct gradients *g) {
    const struct adamw *a = &b->o->adamw;
    const struct outer_inner inner = {a->beta1, a->beta2, a->eps, a->weight_decay, a->clip};
    struct outer_round round;
    struct outer_adamw x;
    double tokens = (double)((b->merged_samples + g->samples) * data_seq_len(b->data));
    outer_adamw_compute(&b->o->rule, &b->past, &inner, schedule_lr(&b->schedule, tokens), g->parts,
                        g->count, &round, &x, g->weight);
    double sum2 = outer_adamw_mean(g->weight, g->count, g->of, b->P, g->mean, 0);
    double clip = outer_adamw_clip(&x, sum2);
    size_t at = 0;
    if (round.keeps_ema && !b->has_ema) memcpy(b->ema, b->theta, b->P * sizeof(float));
    b->has_ema |= round.keeps_ema;
    for (size_t i = 0; i < g->table.count; i++) {
        size_t n = (size_t)g->table.v[i].elements;
        outer_adamw_chunk(&x, clip, g->table.v[i].dims > 1, b->theta + at, b->m + at, g->v + at,
                          g->mean + at, n);
        at += n;
    }
    if (round.keeps_ema) outer_ema_chunk(b->ema, b->theta, round.ema, b->P);
    b->past = outer_past_after(&b->past, &round.params, (uint32_t)g->count);
    b->past.adamw = x.step;
    enum lease_fault f = ledger_merge(b->ledger, ++b->version, g->dids, g->count);
    if (f != LEASE_FINE) lab_fail(BRG_E_INTERNAL, lease_fault_text(f));
    b->merged_samples += g->samples;
    b->r->rounds++;
}

/* What comes now is a run over sites that begins with these weights. */
static void end_of_phase(struct lab *b) {
    size_t bytes = b->P * sizeof(float);
    memset(b->m, 0, bytes);
    b->past.adamw = 0;
    b->past.arrivals = 0;
    b->past.restart = true;
    for (uint32_t i = 0; i < b->o->sites; i++) {
        struct lab_site *s = &b->sites[i];
        memcpy(trainer_theta(s->trainer), b->theta, bytes);
        memcpy(s->s, b->theta, bytes);
        memcpy(s->base, b->theta, bytes);
        s->base_version = b->version;
        s->base_tokens = b->merged_samples * data_seq_len(b->data);
        s->pending = false;
        s->steps = s->steps_since = 0;
        s->warmup = b->o->join_warmup;
    }
}

void lab_synchronous(struct lab *b) {
    double until = b->o->synchronous * b->schedule.tokens_total;
    if (!(until > 0)) return;
    struct gradients *g = mem_alloc(1, sizeof *g);
    model_tensors(&b->model, &g->table);
    g->v = mem_alloc(b->P, sizeof(float));
    g->mean = mem_alloc(b->P, sizeof(float));
    lab_share_out(b);
    while ((double)(b->merged_samples * data_seq_len(b->data)) < until && !(b->r->stopped > 0)) {
        g->count = 0;
        g->samples = 0;
        for (uint32_t i = 0; i < b->o->sites; i++) hand_in(b, &b->sites[i], g);
        if (g->count == 0) lab_fail(BRG_E_INTERNAL, "a synchronous round without a sample");
        step(b, g);
        lab_share_out(b);
        if (lab_curve_due(b, b->merged_samples)) lab_curve_add(b, b->merged_samples);
    }
    end_of_phase(b);
    tensors_fini(&g->table);
    mem_free(g->v);
    mem_free(g->mean);
    mem_free(g);
}
