/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - what others may know of the state, and whether it is sound. Changes nothing. */
#include <string.h>

#include "hub/machine.h"

void hub_view(const struct hub *h, time_ns now, struct hub_view *out) {
    (void)now;
    memset(out, 0, sizeof *out);
    out->run = h->s.run;
    out->seq = h->seq;
    out->term = h->term;
    out->positions = h->s.positions;
    out->epochs = h->s.epochs;
    out->epoch = hub_epoch_first(h);
    out->complete = hub_complete(h);
    out->draining = h->draining;
    out->held = h->held;
    out->doubt = h->doubt;
    out->staged_deltas = ledger_deltas_staged(h->ledger);
    out->importing = h->import_bytes > 0;
    if (h->opened) {
        out->root = h->versions[0].v.version;
        out->head = h->versions[h->head].v.version;
        out->tokens = h->versions[h->head].v.tokens;
    }
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++) {
        out->counts.available += ledger_count(h->ledger, e, EXTENT_AVAILABLE);
        out->counts.leased += ledger_count(h->ledger, e, EXTENT_LEASED);
        out->counts.staged += ledger_count(h->ledger, e, EXTENT_STAGED);
        out->counts.merged += ledger_count(h->ledger, e, EXTENT_MERGED);
        out->counts.skipped += ledger_count(h->ledger, e, EXTENT_SKIPPED);
        out->counts.quarantined += ledger_count(h->ledger, e, EXTENT_QUARANTINED);
    }
    out->grants = h->grants;
    out->reclaimed = h->reclaimed;
    out->returned = h->returned;
    out->rejected = h->rejected;
    out->discarded = h->discarded;
    out->departures = h->departures;
    out->samples_granted = h->samples_granted;
    out->samples_reclaimed = h->samples_reclaimed;
}

uint32_t hub_sites_count(const struct hub *h) {
    return h->sites_count;
}

void hub_site_at(const struct hub *h, uint32_t index, time_ns now, struct hub_site_view *out) {
    CHECK(index < h->sites_count);
    uint32_t number = index + 1;
    const struct hub_site *s = &h->sites[number];
    memset(out, 0, sizeof *out);
    out->site = number;
    out->inc = s->inc;
    memcpy(out->name, s->name, sizeof out->name);
    out->joined = s->joined;
    out->live = hub_live(h, s, now);
    out->ready = out->live && s->ready;
    out->phase = s->phase;
    memcpy(out->fabric, s->fabric, sizeof out->fabric);
    out->heard_ago_ns = h->started ? now - s->heard : 0;
    out->base = s->base;
    out->leases = ledger_site_leases(h->ledger, number);
    for (const struct lease *a = ledger_site_first(h->ledger, number); a; a = a->site_next) {
        out->samples_leased += a->count;
        out->samples_done += a->done;
    }
    out->contributions = s->contributions;
    out->merged = s->merged;
    out->rejected = s->rejected;
    out->tokens_merged = s->tokens_merged;
    out->steps_per_s = s->steps_per_s;
    out->tokens_per_s = s->tokens_per_s;
    out->loss = s->loss;
    out->cos_others = s->cos_others;
    out->norm_z = s->norm_z;
}

bool hub_version_find(const struct hub *h, uint64_t version, struct hub_version_view *out) {
    const struct hub_version *v = hub_version_of(h, version);
    if (v) *out = v->v;
    return v != NULL;
}

void hub_round(const struct hub *h, const char *site, time_ns now, struct wire_round *out) {
    (void)now;
    uint32_t number = 0;
    (void)hub_site_named(h, site, &number);
    hub_round_fill(h, number, out);
}

struct quarantine_walk {
    void (*visit)(void *user, uint32_t epoch, struct range range, uint32_t crashes);
    void *user;
    uint32_t epoch;
};

static void quarantine_visit(void *user, enum extent_state state, struct lease_span span,
                             uint64_t version, uint32_t crashes) {
    const struct quarantine_walk *w = user;
    (void)version;
    if (state != EXTENT_QUARANTINED) return;
    w->visit(w->user, w->epoch, (struct range){span.start, span.count}, crashes);
}

void hub_quarantined(const struct hub *h,
                     void (*visit)(void *user, uint32_t epoch, struct range range,
                                   uint32_t crashes),
                     void *user) {
    struct quarantine_walk w = {.visit = visit, .user = user};
    for (w.epoch = 0; w.epoch < ledger_epochs(h->ledger); w.epoch++)
        if (ledger_count(h->ledger, w.epoch, EXTENT_QUARANTINED) > 0)
            ledger_walk(h->ledger, w.epoch, quarantine_visit, &w);
}

/* Checkpoints: version 0 and the newest on the branch (how deep a rollback can go). Deltas: staged
 * ones, and merged ones as long as they are remembered, so that the weights can be computed again.
 * */
void hub_blobs(const struct hub *h, void (*visit)(void *user, const struct hash *hash),
               void *user) {
    if (!h->opened) return;
    uint32_t kept = 0;
    for (uint32_t i = h->versions_count; i > 0; i--) {
        const struct hub_version *v = &h->versions[i - 1];
        if (!v->on_branch || (kept >= HUB_CHECKPOINTS_KEPT && i > 1)) continue;
        kept++;
        visit(user, &v->v.checkpoint);
    }
    for (uint32_t i = 0; i < h->versions_count; i++)
        if (!hash_is_zero(&h->versions[i].taken_blob)) visit(user, &h->versions[i].taken_blob);
    if (h->taking.bytes > 0) visit(user, &h->taking.blob);
    for (const struct delta *d = ledger_staged_first(h->ledger); d; d = d->list_next)
        if (!hash_is_zero(&d->blob)) visit(user, &d->blob); /* I11 */
    for (const struct delta *d = ledger_final_first(h->ledger); d; d = d->list_next)
        if (d->state == DELTA_MERGED && !hash_is_zero(&d->blob)) visit(user, &d->blob);
}

/* ---- hub_check
 * ---------------------------------------------------------------------------------- */

struct merged_sum {
    const struct hub *h;
    uint64_t merged;
    bool strayed; /* positions merged into no version of the branch */
};

static void merged_visit(void *user, enum extent_state state, struct lease_span span,
                         uint64_t version, uint32_t crashes) {
    struct merged_sum *m = user;
    (void)crashes;
    if (state != EXTENT_MERGED && state != EXTENT_SKIPPED) return;
    if (version > m->h->versions[0].v.version) {
        const struct hub_version *v = hub_version_of(m->h, version);
        if (v == NULL || !v->on_branch) m->strayed = true;
    }
    if (state == EXTENT_MERGED) m->merged += span.count;
}

static const char *versions_fault(const struct hub *h) {
    struct merged_sum m = {.h = h};
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++)
        ledger_walk(h->ledger, e, merged_visit, &m);
    const struct hub_version *head = &h->versions[h->head];
    HOLDS(!m.strayed);                                /* I5: nothing of an abandoned branch */
    HOLDS(head->v.tokens == m.merged * h->s.seq_len); /* H3, I5 */
    uint32_t on_branch = 0, depth = 1;
    for (uint32_t i = 0; i < h->versions_count; i++) {
        on_branch += h->versions[i].on_branch;
        HOLDS(h->versions[i].v.version < h->versions_next); /* H2 */
        if (i > 0) HOLDS(h->versions[i].v.version > h->versions[i - 1].v.version);
    }
    for (const struct hub_version *v = head; v != h->versions; depth++) {
        HOLDS(v->on_branch); /* I5 */
        v = hub_version_of(h, v->v.parent);
        HOLDS(v != NULL);
    }
    HOLDS(depth == on_branch); /* I5: the branch is the head's ancestry */
    return NULL;
}

const char *hub_fault(const struct hub *h) {
    const char *fault = NULL;
    HOLDS(ledger_positions(h->ledger) == h->s.positions);
    HOLDS(!h->opened || h->import_bytes == 0); /* H7 */
    if (h->opened && (fault = versions_fault(h)) != NULL) return fault;
    HOLDS(ledger_tok_last(h->ledger) < hub_tok_next(h)); /* I7 */
    uint32_t leases = 0, staged = 0;
    for (uint32_t i = 1; i <= h->sites_count; i++) {
        const struct hub_site *s = &h->sites[i];
        HOLDS(s->inc > 0);
        HOLDS(i == h->parent_site || ledger_site_leases(h->ledger, i) <= WIRE_LEASES_MAX);
        for (const struct lease *a = ledger_site_first(h->ledger, i); a; a = a->site_next)
            HOLDS(a->inc == s->inc); /* I3: only the newest incarnation holds leases */
        leases += ledger_site_leases(h->ledger, i);
        staged += ledger_site_staged(h->ledger, i);
    }
    HOLDS(leases == ledger_leases(h->ledger));
    HOLDS(staged == ledger_deltas_staged(h->ledger));
    for (const struct delta *d = ledger_staged_first(h->ledger); d; d = d->list_next) {
        const struct hub_version *base = hub_version_of(h, d->live->info.base);
        HOLDS(base != NULL);
        HOLDS(base->on_branch); /* I6 */
    }
    return NULL;
}

void hub_check(const struct hub *h) {
    ledger_check(h->ledger); /* I1-I4, I7-I9, I12 */
    const char *fault = hub_fault(h);
    if (fault) check_failed(fault, __FILE__, __LINE__);
}
