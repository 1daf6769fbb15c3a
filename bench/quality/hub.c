/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c - rounds: when one is over, its merge, and what happens to the sites. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"
#include "train/eval.h"

void lab_fail(enum brg_status s, const char *what) {
    fprintf(stderr, "quality: %s: %s\n", status_name(s), what);
    exit((int)s);
}

double lab_loss(struct lab *b, uint64_t rows) {
    struct eval_result x;
    struct err e;
    memcpy(trainer_theta(b->judge), b->theta, b->P * sizeof(float));
    if (rows > 0) {
        eval_rows(b->judge, b->judge_rows, rows, &x);
    } else {
        enum brg_status s = eval_heldout(b->judge, b->data, &x, &e);
        if (s != BRG_OK) lab_fail(s, e.text);
    }
    return x.nll;
}

/* ---- The merge ------------------------------------------------------------------------------------ */

struct round {
    struct outer_part parts[LAB_SITES_MAX];
    double weight[LAB_SITES_MAX];
    const struct lab_site *of[LAB_SITES_MAX];
    size_t count;
    struct outer_round step;
    struct outer_radial radial;
    struct outer_merge merge;
    struct outer_room room;
    double norm2[LAB_SITES_MAX], dot[LAB_SITES_MAX][LAB_SITES_MAX], sum2;
};

/* How alike the contributions are: mean cosine of pairs, and |mean| / mean |d|. */
static void compare(struct lab *b, struct round *r, uint64_t at, size_t n) {
    AUTO_FREE float *d = mem_alloc(r->count * n, sizeof *d);
    for (size_t i = 0; i < r->count; i++) {
        const uint8_t *coded = r->of[i]->delta + codec_bytes(b->o->codec, at);
        enum brg_status s = codec_decode(b->o->codec, coded, n, d + i * n);
        if (s != BRG_OK) lab_fail(s, "a contribution cannot be read");
    }
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k <= i; k++) {
            double dot = 0;
            for (size_t j = 0; j < n; j++) dot += (double)d[i * n + j] * (double)d[k * n + j];
            r->dot[i][k] += dot;
        }
}

static void compared(struct lab *b, const struct round *r) {
    double cosine = 0, pairs = 0, whole = 0, norms = 0;
    for (size_t i = 0; i < r->count; i++) {
        norms += sqrt(r->dot[i][i]);
        for (size_t k = 0; k <= i; k++) whole += (i == k ? 1 : 2) * r->dot[i][k];
        for (size_t k = 0; k < i; k++, pairs++)
            cosine += r->dot[i][k] / (sqrt(r->dot[i][i] * r->dot[k][k]) + 1e-300);
    }
    if (pairs == 0) return;
    b->cosine_sum += cosine / pairs;
    b->ratio_sum += sqrt(whole) / (norms + 1e-300);
    b->cosines++;
}

static void coded_at(const struct lab *b, const struct round *r, uint64_t at,
                     const uint8_t *coded[LAB_SITES_MAX], enum codec codecs[LAB_SITES_MAX]) {
    for (size_t i = 0; i < r->count; i++) {
        coded[i] = r->of[i]->delta + codec_bytes(b->o->codec, at);
        codecs[i] = b->o->codec;
    }
}

static size_t chunk_at(const struct lab *b, uint64_t at) {
    return b->P - at < OUTER_CHUNK ? (size_t)(b->P - at) : OUTER_CHUNK;
}

/* Lengths and directions apart, tensor by tensor: two passes over the contributions, as the hub makes them. */
static void measure(struct lab *b, struct round *r) {
    const uint8_t *coded[LAB_SITES_MAX];
    enum codec codecs[LAB_SITES_MAX];
    size_t bad;
    if (!r->step.radial ||
        !outer_radial_init(&r->radial, b->spans, b->spans_count, r->parts, r->weight, r->count))
        return;
    for (uint64_t at = 0; at < b->P; at += OUTER_CHUNK) {
        coded_at(b, r, at, coded, codecs);
        enum brg_status s = outer_radial_measure_coded(&r->radial, at, coded, codecs,
                                                       chunk_at(b, at), &r->room, &bad);
        if (s != BRG_OK) lab_fail(s, "a contribution cannot be measured");
    }
    outer_radial_finish(&r->radial);
    r->merge.radial = &r->radial;
}

static void merge_chunk(struct lab *b, struct round *r, uint64_t at, float *scratch) {
    const uint8_t *coded[LAB_SITES_MAX];
    enum codec codecs[LAB_SITES_MAX];
    size_t bad = 0, n = chunk_at(b, at);
    coded_at(b, r, at, coded, codecs);
    compare(b, r, at, n);
    enum brg_status s = outer_merge_coded_at(&r->merge, at, b->theta + at, b->m + at, coded, codecs,
                                             n, &r->room, &bad);
    if (s == BRG_OK && b->o->down != 0)
        s = outer_down_chunk(b->o->down, b->old + at, b->theta + at, b->feedback + 2 * at, n,
                             b->update, scratch);
    if (s != BRG_OK) lab_fail(s, "a chunk cannot be merged");
    if (r->step.keeps_ema) outer_ema_chunk(b->ema + at, b->theta + at, r->step.ema, n);
}

static void merge(struct lab *b, struct round *r) {
    struct id128 dids[LAB_SITES_MAX];
    AUTO_FREE float *scratch = mem_alloc(2 * OUTER_CHUNK, sizeof *scratch);
    uint64_t samples = 0;
    for (size_t i = 0; i < r->count; i++) {
        dids[i] = r->of[i]->did;
        samples += r->of[i]->pending_tokens / data_seq_len(b->data);
    }
    b->past.last = b->merged_samples + samples == b->positions;
    memcpy(b->old, b->theta, b->P * sizeof(float));
    outer_round_compute(&b->o->rule, &b->past, r->parts, r->count, &r->step, r->weight);
    outer_merge_init(&r->merge, &r->step.params, r->parts, r->weight, r->count);
    outer_room_init(&r->room, r->count);
    measure(b, r);
    if (r->step.keeps_ema && !b->has_ema) memcpy(b->ema, b->old, b->P * sizeof(float));
    b->has_ema |= r->step.keeps_ema;
    for (uint64_t at = 0; at < b->P; at += OUTER_CHUNK) merge_chunk(b, r, at, scratch);
    outer_room_fini(&r->room);
    outer_radial_fini(&r->radial);
    outer_merge_fini(&r->merge);
    compared(b, r);
    uint32_t fresh = 0;
    for (size_t i = 0; i < r->count; i++) fresh += r->parts[i].late == 0;
    b->past = outer_past_after(&b->past, &r->step.params, fresh);
    b->merged_samples += samples;
    enum lease_fault f = ledger_merge(b->ledger, ++b->version, dids, r->count);
    if (f != LEASE_FINE) lab_fail(BRG_E_INTERNAL, lease_fault_text(f));
    b->r->rounds++;
}

static bool staged(const struct lab *b, const struct lab_site *s) {
    const struct delta *d = ledger_delta_find(b->ledger, &s->did);
    return d && d->state == DELTA_STAGED;
}

/* All live sites have handed in, or have nothing to hand in and nothing to do. */
static bool round_over(const struct lab *b) {
    bool any = false;
    for (uint32_t i = 0; i < b->o->sites; i++) {
        const struct lab_site *s = &b->sites[i];
        bool in = staged(b, s);
        any |= in;
        if (s->live && !in && !(s->starved && s->seg_steps == 0)) return false;
    }
    return any;
}

bool lab_curve_due(const struct lab *b, uint64_t samples) {
    const struct lab_result *r = b->r;
    double share = (double)samples / (double)b->positions;
    if (r->curve_count >= b->o->curve_points || r->curve_count >= LAB_CURVE_MAX) return false;
    return share >= (double)(r->curve_count + 1) / (double)(b->o->curve_points + 1);
}

void lab_curve_add(struct lab *b, uint64_t samples) {
    const struct lab_options *o = b->o;
    struct lab_result *r = b->r;
    double share = (double)samples / (double)b->positions, nll = lab_loss(b, b->judge_count);
    r->curve_tokens[r->curve_count] = (double)(samples * data_seq_len(b->data));
    r->curve_nll[r->curve_count++] = nll;
    for (uint32_t i = 0; i < o->stops_count; i++) /* the last bound that it has come to */
        if (o->stop_share[i] <= share &&
            (i + 1 == o->stops_count || o->stop_share[i + 1] > share) && !(nll <= o->stop_nll[i]))
            r->stopped = share;
}

/* ---- Happenings ----------------------------------------------------------------------------------- */

/* Sites of equal rank finish a round together: more steps for a faster one, as the hub's cadence has it. */
void lab_share_out(struct lab *b) {
    const struct schedule_steps h = {.steps = b->o->steps,
                                     .steps_first = b->o->steps_first ? b->o->steps_first
                                                                      : b->o->steps,
                                     .share = b->o->ramp,
                                     .tokens_total = b->schedule.tokens_total};
    uint32_t T = data_seq_len(b->data);
    double steps = (double)schedule_steps_at(&h, (double)(b->merged_samples * T));
    double sum = 0, live = 0;
    b->per_step = 0;
    for (uint32_t i = 0; i < b->o->sites; i++) {
        if (!b->sites[i].live) continue;
        sum += 1.0 / b->sites[i].period;
        live++;
    }
    for (uint32_t i = 0; i < b->o->sites && live > 0; i++) {
        struct lab_site *s = &b->sites[i];
        double share = fmin(fmax(live / (s->period * sum), 0.25), 4);
        s->target = (uint64_t)fmax(1, floor(steps * share + 0.5));
        if (s->live) b->per_step += (uint64_t)s->batch * T;
    }
}

static void happen(struct lab *b, const struct event *x) {
    struct lab_site *s = &b->sites[x->site];
    if (x->what == SITE_JOINS && !s->live) lab_enter(b, s);
    if (x->what == SITE_LEAVES && s->live) {
        if (!s->pending && s->seg_steps > 0)
            lab_cut(b, s); /* told to stop, it hands in what it has */
        b->r->lost_samples += lab_drop(b, s, false);
        s->live = false;
    }
    if (x->what == SITE_CRASHES && s->live) s->doomed = true;
}

/* What it did since its last hand-in is lost, and others do these samples again. */
void lab_crash(struct lab *b, struct lab_site *s) {
    b->r->lost_samples += lab_drop(b, s, true);
    s->live = s->doomed = false;
    lab_share_out(b);
}

/* No site is alive, and nothing is left to merge: nothing moves until the next event, however long that is. */
static bool nobody_and_nothing(const struct lab *b) {
    for (uint32_t i = 0; i < b->o->sites; i++)
        if (b->sites[i].live || staged(b, &b->sites[i])) return false;
    return true;
}

static void happenings(struct lab *b) {
    const struct lab_options *o = b->o;
    double share = (double)b->merged_samples / (double)b->positions;
    bool any = b->tick == 0;
    while (b->next_event < o->events_count &&
           (o->events[b->next_event].share <= share || nobody_and_nothing(b))) {
        happen(b, &o->events[b->next_event++]);
        any = true;
    }
    if (any) lab_share_out(b);
}

void lab_hub_turn(struct lab *b) {
    happenings(b);
    if (!round_over(b)) return;
    struct round *r = mem_alloc(1, sizeof *r);
    for (uint32_t i = 0; i < b->o->sites; i++) {
        const struct lab_site *s = &b->sites[i];
        if (!staged(b, s)) continue;
        r->of[r->count] = s;
        r->parts[r->count++] = (struct outer_part){
            .site = i, .tokens = s->pending_tokens, .steps = s->pending_steps, .late = s->late};
    }
    merge(b, r);
    mem_free(r);
    lab_share_out(b);
    if (lab_curve_due(b, b->merged_samples)) lab_curve_add(b, b->merged_samples);
}
