/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.c - when a merge starts, of what, and what its end means.
 *
 *   gathering --all handed in | quorum and grace | nobody left | nothing left--> planned (volatile)
 *   planned --MERGED--> MERGE record: head and ledger move; then SEAL of each epoch that is
 *   finished
 *   planned --MERGE_FAILED--> the corrupt part is discarded, or it is tried again after a while
 *   planned --rollback, discard, hold, operator's skip--> cancelled --MERGED or MERGE_FAILED-->
 *   gathering
 *
 * One merge at a time; a cancelled one counts until its worker has reported. A plan is made from
 * what is staged at that moment; what is staged while it runs belongs to the next round. A crash
 * forgets the plan and nothing else: no record was written, the new version was seen by nobody
 * (I6).
 *
 * Who is waited for: a live site that trains (has said its version, is not draining) and has not
 * handed in since the last plan. A site without a lease, when no work is left for it, is not
 * waited for. With nobody to wait for, what is staged merges at once; with nothing staged nothing
 * happens, however long: no site, no version, no momentum.
 *
 * A contribution of skips only has no delta. It rides along with the next merge, and no grace is given for it; alone it
 * makes a version (with the same weights) when nobody else is waited for. A site is done with it before that, but a region
 * keeps what it has handed in on its books until it is merged, and hands in nothing else. */
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- Seals
 * -------------------------------------------------------------------------------------- */

static void seal(struct hub *h, uint32_t epoch) {
    struct hub_record *r = hub_draft(h, RECORD_SEAL);
    r->u.seal.epoch = epoch;
    r->u.seal.merged = ledger_count(h->ledger, epoch, EXTENT_MERGED);
    r->u.seal.skipped = ledger_count(h->ledger, epoch, EXTENT_SKIPPED);
    struct buf runs;
    buf_init(&runs, SIZE_MAX / 2);
    ledger_runs_encode(h->ledger, epoch, 0, &runs);
    r->u.seal.digest = hash_of(runs.data, runs.bytes_count);
    buf_fini(&runs);
    hub_emit(h, r);
    hub_note(h, "lvl=info ev=sealed epoch=%u", epoch);
    if (hub_complete(h)) hub_note(h, "lvl=info ev=complete epochs=%u", h->s.epochs);
}

/* Derived from the ledger, so that a SEAL that a crash prevented comes at the next step. */
static void seals(struct hub *h) {
    for (uint32_t e = hub_epoch_first(h); e < ledger_epochs(h->ledger); e++) {
        uint64_t done = ledger_count(h->ledger, e, EXTENT_MERGED) +
                        ledger_count(h->ledger, e, EXTENT_SKIPPED);
        if (MUTANT(SEAL_IGNORES_STAGED)) done += ledger_count(h->ledger, e, EXTENT_STAGED);
        if (done == h->s.positions && !ledger_sealed(h->ledger, e)) seal(h, e);
    }
}

/* ---- When
 * --------------------------------------------------------------------------------------- */

static bool nothing_left(const struct hub *h) {
    uint32_t parents = h->parent_site > 0 ? ledger_site_leases(h->ledger, h->parent_site) : 0;
    return ledger_leases(h->ledger) == parents && !hub_work_left(h);
}

static bool quorum_staged(const struct hub *h) {
    uint32_t n = 0;
    if (ledger_deltas_staged(h->ledger) < h->s.quorum) return false;
    for (uint32_t s = 1; s <= h->sites_count && n < h->s.quorum; s++)
        n += s != h->parent_site && ledger_site_staged(h->ledger, s) > 0;
    return n >= h->s.quorum;
}

static bool holds_open(const struct hub *h, uint32_t site, bool work) {
    const struct hub_site *s = &h->sites[site];
    if (!hub_live(h, s, h->now) || !s->ready || s->phase == PHASE_DRAINING) return false;
    if (ledger_site_staged(h->ledger, site) > 0) return false;
    return ledger_site_leases(h->ledger, site) > 0 || (work && !h->draining);
}

/* Asked after every command: the site that was waited for last is mostly waited for still. */
static bool all_handed_in(struct hub *h) {
    bool work = hub_work_left(h);
    uint32_t last = h->waited_for;
    if (last > 0 && last <= h->sites_count && holds_open(h, last, work)) return false;
    for (h->waited_for = 1; h->waited_for <= h->sites_count; h->waited_for++)
        if (holds_open(h, h->waited_for, work)) return false;
    h->waited_for = 0;
    return true;
}

static bool deltas_real(const struct hub *h) {
    for (const struct delta *d = ledger_staged_first(h->ledger); d; d = d->list_next)
        if (d->live->info.tokens > 0) return true;
    return false;
}

static bool merge_due(struct hub *h) {
    bool takes = h->taking.bytes > 0;
    if (ledger_deltas_staged(h->ledger) == 0 && !takes) {
        h->quorum_since = TIME_NS_NEVER;
        return false;
    }
    if (h->quorum_since == TIME_NS_NEVER && quorum_staged(h)) h->quorum_since = h->now;
    if (h->retry_at != TIME_NS_NEVER && h->now < h->retry_at) return false;
    bool few = !takes && !deltas_real(h) &&
               ledger_deltas_staged(h->ledger) < HUB_STAGED_PER_SITE_MAX;
    if (nothing_left(h)) return true;
    if (few && MUTANT(REGION_SKIPS_WAIT)) return false;
    if (all_handed_in(h)) return true;
    if (few) return false;
    if (hub_synchronous(h)) return false; /* of all live sites, or it is another batch */
    return h->quorum_since != TIME_NS_NEVER && h->now - h->quorum_since >= h->s.grace_ns;
}

time_ns hub_rounds_expiry(const struct hub *h) {
    bool nothing = ledger_deltas_staged(h->ledger) == 0 && h->taking.bytes == 0;
    if (!h->started || h->held || h->merge || nothing) return TIME_NS_NEVER;
    time_ns due = TIME_NS_NEVER;
    const bool grace = h->quorum_since != TIME_NS_NEVER && !hub_synchronous(h);
    const time_ns grace_end = grace ? h->quorum_since + h->s.grace_ns : TIME_NS_NEVER;
    /* Only what is to come: a time that has passed without a merge (skips only) is no reason to
     * spin. */
    if (grace_end > h->now) due = grace_end;
    if (h->retry_at > h->now && h->retry_at < due) due = h->retry_at;
    return due;
}

/* ---- What
 * --------------------------------------------------------------------------------------- */

/* Staged deltas in the order of a merge: by site, then by did. */
static const struct delta **staged_sorted(const struct hub *h, uint32_t *out_count) {
    uint32_t count = ledger_deltas_staged(h->ledger);
    if (count > RECORD_MERGE_PARTS_MAX) count = RECORD_MERGE_PARTS_MAX;
    const struct delta **v = mem_alloc((size_t)count + 1, sizeof *v);
    uint32_t n = 0;
    for (const struct delta *d = ledger_staged_first(h->ledger); d && n < count; d = d->list_next) {
        uint32_t at = n++; /* insertion: a round has a handful, mostly in order */
        while (at > 0 &&
               (v[at - 1]->site > d->site ||
                (v[at - 1]->site == d->site && memcmp(v[at - 1]->did.v, d->did.v, ID_BYTES) > 0))) {
            v[at] = v[at - 1];
            at--;
        }
        v[at] = d;
    }
    *out_count = n;
    return v;
}

enum { LATE_COUNTED_MAX = 64 }; /* versions; beyond, a late delta is as good as nothing */

static void plan_part(const struct hub *h, struct hub_merge *m, const struct delta *d) {
    const struct delta_info *info = &d->live->info;
    uint32_t behind = 0, enough = h->s.rule.late_decay > 0 ? LATE_COUNTED_MAX : 1;
    CHECK(hub_staleness(h, d->site, info->base, enough,
                        &behind)); /* rollback discards what is off the branch */
    d->live->planned = true;
    struct record_merge_part *all = &m->parts[m->parts_count++];
    *all = (struct record_merge_part){.did = d->did,
                                      .late = behind > 0 && info->tokens > 0 &&
                                              d->site != h->parent_site && !MUTANT(LATE_AS_FRESH)};
    m->plan.tokens_after += info->tokens;
    if (info->tokens == 0 || d->site == h->parent_site) return; /* it has positions and no delta */
    CHECK((info->codec == CODEC_GRADIENT) == hub_synchronous(h)); /* H24 */
    m->plan.parts[m->plan.parts_count++] =
        (struct hub_plan_part){.part = {.site = d->site,
                                        .tokens = info->tokens,
                                        .steps = info->steps,
                                        .late = all->late ? behind : 0},
                               .did = d->did,
                               .blob = d->blob,
                               .base = info->base,
                               .bytes = info->bytes};
}

/* With this merge every position of every epoch is merged or skipped. */
static bool ends_the_run(const struct hub *h) {
    if (ledger_epochs(h->ledger) < h->s.epochs) return false;
    if (ledger_deltas_staged(h->ledger) > RECORD_MERGE_PARTS_MAX) return false;
    for (uint32_t e = hub_epoch_first(h); e < ledger_epochs(h->ledger); e++) {
        uint64_t done = ledger_count(h->ledger, e, EXTENT_MERGED) +
                        ledger_count(h->ledger, e, EXTENT_SKIPPED) +
                        ledger_count(h->ledger, e, EXTENT_STAGED);
        if (done < h->s.positions) return false;
    }
    return true;
}

static void plan_weights(struct hub *h, struct hub_merge *m) {
    uint32_t count = m->plan.parts_count, real = 0;
    AUTO_FREE struct outer_part *parts = mem_alloc((size_t)count + 1, sizeof *parts);
    AUTO_FREE double *weight = mem_alloc((size_t)count + 1, sizeof *weight);
    for (uint32_t i = 0; i < count; i++) parts[i] = m->plan.parts[i].part;
    struct outer_round round;
    struct outer_past past = h->versions[h->head].past;
    past.last = ends_the_run(h);
    past.restart = h->versions[h->head].v.returns > 0;
    if (hub_synchronous(h)) {
        const struct outer_inner inner = {h->s.beta1, h->s.beta2, h->s.eps, h->s.weight_decay,
                                          h->s.clip};
        outer_adamw_compute(&h->s.rule, &past, &inner,
                            schedule_lr(&h->s.schedule, (double)m->plan.tokens_after), parts, count,
                            &round, &m->plan.adamw, weight);
    } else {
        /* What lies in the momentum's place is a moment; in a checkpoint that a run was rebuilt from it may be. */
        past.restart |= past.adamw > 0 || (h->s.sync_tokens > 0 && h->head == 0);
        outer_round_compute(&h->s.rule, &past, parts, count, &round, weight);
    }
    m->plan.params = round.params;
    m->plan.radial = round.radial;
    m->plan.keeps_ema = round.keeps_ema;
    m->plan.ema = round.ema;
    for (uint32_t i = 0; i < count; i++) m->plan.parts[i].weight = weight[i];
    for (uint32_t i = 0; i < m->parts_count && real < count; i++)
        if (id_equal(&m->parts[i].did, &m->plan.parts[real].did))
            m->parts[i].weight = weight[real++];
    CHECK(real == count);
}

static void plan(struct hub *h) {
    const struct hub_version_view *head = &h->versions[h->head].v;
    struct hub_merge *m = mem_alloc(1, sizeof *m);
    uint32_t count;
    AUTO_FREE const struct delta **staged = staged_sorted(h, &count);
    m->parts = mem_alloc((size_t)count + 1, sizeof *m->parts);
    m->plan = (struct hub_plan){.id = ++h->plans,
                                .parent = head->version,
                                .version = h->versions_next,
                                .tokens_after = head->tokens,
                                .term = h->term,
                                .down = (enum codec)h->down,
                                .parent_checkpoint = head->checkpoint};
    m->plan.parts = mem_alloc((size_t)count + 1, sizeof *m->plan.parts);
    for (uint32_t i = 0; i < count; i++) plan_part(h, m, staged[i]);
    plan_weights(h, m);
    hub_region_plan(h, m);
    buf_init(&m->plan.ledger, SIZE_MAX / 2);
    ledger_checkpoint_encode(h->ledger, m->plan.version, true, &m->plan.ledger);
    m->ledger = hash_of(m->plan.ledger.data, m->plan.ledger.bytes_count);
    h->merge = m;
    h->quorum_since = TIME_NS_NEVER;
    h->retry_at = TIME_NS_NEVER;
    h->out->merge = &m->plan;
    hub_note(h, "lvl=info ev=merging version=%llu parts=%u tokens=%llu eta=%.4f mu=%.4f",
             (unsigned long long)m->plan.version, m->plan.parts_count,
             (unsigned long long)(m->plan.tokens_after - head->tokens), m->plan.params.eta_r,
             m->plan.params.mu_r);
}

void hub_rounds(struct hub *h) {
    if (!h->started) return;
    seals(h);
    if (h->held || h->merge) return;
    hub_sync_discard(h);
    if (merge_due(h)) plan(h);
}

/* ---- The end of a merge
 * ------------------------------------------------------------------------- */

void hub_merge_free(struct hub *h) {
    struct hub_merge *m = h->merge;
    if (!m) return;
    for (struct delta *d = ledger_staged_first(h->ledger); d; d = d->list_next)
        d->live->planned = false;
    mem_free(m->plan.parts);
    buf_fini(&m->plan.ledger);
    mem_free(m->parts);
    mem_free(m);
    h->merge = NULL;
}

/* The worker may still read the plan: it stays until it has reported. */
void hub_merge_cancel(struct hub *h) {
    if (!h->merge || h->merge->cancelled) return;
    h->merge->cancelled = true;
    for (struct delta *d = ledger_staged_first(h->ledger); d; d = d->list_next)
        d->live->planned = false;
    hub_note(h, "lvl=warn ev=merge_cancelled version=%llu",
             (unsigned long long)h->merge->plan.version);
}

static bool report_of_ours(struct hub *h, uint64_t plan_id) {
    if (!h->merge || h->merge->plan.id != plan_id) {
        hub_note(h, "lvl=warn ev=merge_unknown plan=%llu", (unsigned long long)plan_id);
        return false;
    }
    if (!h->merge->cancelled) return true;
    hub_merge_free(h);
    return false;
}

void hub_merged(struct hub *h, const struct hub_cmd *c) {
    if (!report_of_ours(h, c->u.merged.plan)) return;
    struct hub_merge *m = h->merge;
    const struct outer_params *p = &m->plan.params;
    hub_sync_emit(h);
    hub_step_emit(h, c);
    struct hub_record *r = hub_draft(h, RECORD_MERGE);
    r->u.merge = (struct record_merge){.version = m->plan.version,
                                       .parent = m->plan.parent,
                                       .checkpoint = c->u.merged.checkpoint,
                                       .theta = c->u.merged.theta,
                                       .checkpoint_bytes = c->u.merged.bytes,
                                       .tokens_after = m->plan.tokens_after,
                                       .eta_r = p->eta_r,
                                       .mu_r = p->mu_r,
                                       .kappa_r = p->kappa_r,
                                       .phi = p->phi,
                                       .meff = p->meff,
                                       .sbar = p->sbar,
                                       .tokens_fresh = p->tokens_fresh,
                                       .tokens_late = p->tokens_late,
                                       .ledger = m->ledger,
                                       .parts_count = m->parts_count,
                                       .parts = m->parts};
    hub_emit(h, r);
    const struct hub_version_view *v = &h->versions[h->head].v;
    hub_note(h, "lvl=info ev=merged version=%llu parts=%llu sites=%llu tokens=%llu loss=%.4f",
             (unsigned long long)v->version, (unsigned long long)v->parts,
             (unsigned long long)v->sites, (unsigned long long)v->tokens, v->loss);
    hub_merge_free(h);
}

void hub_merge_failed(struct hub *h, const struct hub_cmd *c) {
    if (!report_of_ours(h, c->u.merge_failed.plan)) return;
    int32_t bad = c->u.merge_failed.bad_part;
    struct hub_merge *m = h->merge;
    bool discard = bad >= 0 && (uint32_t)bad < m->plan.parts_count;
    struct id128 did = discard ? m->plan.parts[bad].did : (struct id128){0};
    bool parents = discard && hub_region_part(&m->plan.parts[bad]);
    hub_note(h, "lvl=error ev=merge_failed version=%llu part=%d text=\"%s\"",
             (unsigned long long)m->plan.version, (int)bad, c->u.merge_failed.text);
    hub_merge_free(h);
    if (parents) {
        hub_region_withdraw(h, c->u.merge_failed.text);
        return;
    }
    if (!discard) {
        h->retry_at = h->now + h->s.heartbeat_ns;
        return;
    }
    struct hub_record *r = hub_draft(h, RECORD_DISCARD);
    r->u.discard.did = did;
    hub_text_copy(r->u.discard.reason, sizeof r->u.discard.reason, c->u.merge_failed.text);
    hub_emit(h, r);
}
