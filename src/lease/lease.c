/* SPDX-License-Identifier: Apache-2.0 */
/* lease.c - the operations of the ledger.
 *
 * What it is: the bookkeeping that makes "each position exactly once" true. What it is not: it
 * knows no time, no message and no member; who asks, and when a lease lapses, is the hub's
 * business.
 *
 * Why it is safe, in one step: a lease is consumed by ledger_stage, which looks whether the lease
 * is still there, still the same site's, and long enough (I3), and ends it in the same step (I4).
 * A lease that ended is gone from the table, so nothing can be staged against it again; and while
 * a lease is there its positions are LEASED to it and to nothing else (I2). Time-outs, fences and
 * promises of the sites only save work; none of this rests on them.
 *
 *   AVAILABLE --grant--> LEASED --stage--> STAGED --merge--> MERGED, SKIPPED
 *       ^  ^ ^             |                 |                   |
 *       |  | +--free, shrink, reject         |                   |
 *       |  +---------------+------discard----+                   |
 *       +------------------+---------rollback-+------------------+
 *       LEASED --free with a crash too many--> QUARANTINED --decide--> AVAILABLE, SKIPPED
 *
 * MERGED extents remember the version, not the delta: versions only grow along a branch, so a
 * rollback to v takes back exactly what has a greater number (I5), and neighbours of one version
 * join, which keeps a finished epoch at a few thousand extents. Which delta had which positions is
 * in the journal. */
#include "base/mutant.h"
#include "lease/inner.h"

#include <string.h>

const char *lease_fault_text(enum lease_fault f) {
    switch (f) {
    case LEASE_FINE: return "fine";
    case LEASE_ENDED: return "the lease has ended";
    case LEASE_FOREIGN: return "the lease belongs to another site or incarnation";
    case LEASE_TOO_LONG: return "more samples are reported than the lease has";
    case LEASE_TWICE: return "a lease is named twice";
    case LEASE_EMPTY: return "no sample is reported";
    case LEASE_BAD_SKIP: return "a skipped position is not among the reported ones, or named twice";
    case LEASE_BAD_REST: return "nothing is left of the last lease";
    case LEASE_BAD_TOK: return "the lease's number is not new";
    case LEASE_BAD_SPAN: return "positions are not in the state that this needs";
    case LEASE_BAD_EPOCH: return "the epoch is not open for this";
    case LEASE_BAD_DELTA: return "the contribution is known already, or is not staged";
    case LEASE_BAD_VERSION: return "the version is not new";
    case LEASE_UNFINISHED: return "the epoch has open positions";
    }
    return "unknown";
}

/* ---- Spans
 * -------------------------------------------------------------------------------------- */

/* The spans of the samples [from, to) of a lease, counted in its order of work. */
static uint32_t spans_cut(const struct lease *a, uint64_t from, uint64_t to,
                          struct lease_span out[LEASE_SPANS_MAX]) {
    uint32_t n = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < a->spans_count; i++) {
        uint64_t count = a->spans[i].count;
        uint64_t low = from > at ? from - at : 0, high = to > at ? to - at : 0;
        if (high > count) high = count;
        if (low < high) {
            out[n++] = (struct lease_span){.start = a->spans[i].start + low, .count = high - low};
        }
        at += count;
    }
    return n;
}

static bool span_has(const struct lease_span *s, uint64_t position) {
    return position >= s->start && position - s->start < s->count;
}

static void move_spans(struct ledger *l, uint32_t epoch, const struct lease_span *spans,
                       uint32_t count, const struct extent_move *m) {
    for (uint32_t i = 0; i < count; i++)
        extents_move(&l->epochs[epoch].x, spans[i].start, spans[i].count, m);
}

/* The samples [from, to) of a lease go elsewhere; they must be its own. */
static void move_part(struct ledger *l, const struct lease *a, uint64_t from, uint64_t to,
                      const struct extent_move *m) {
    struct lease_span spans[LEASE_SPANS_MAX];
    uint32_t n = spans_cut(a, from, to, spans);
    for (uint32_t i = 0; i < n; i++)
        CHECK(extents_all(&l->epochs[a->epoch].x, spans[i].start, spans[i].count, EXTENT_LEASED,
                          a->tok)); /* I2 */
    move_spans(l, a->epoch, spans, n, m);
}

/* ---- Leases
 * ------------------------------------------------------------------------------------- */

enum lease_fault ledger_epoch_open(struct ledger *l, uint32_t epoch) {
    if (epoch != l->epochs_count || epoch >= l->epochs_max) return LEASE_BAD_EPOCH;
    struct epoch *e = epoch_add(l);
    *e = (struct epoch){0};
    extents_init(&e->x, l->positions);
    return LEASE_FINE;
}

uint32_t ledger_choose(const struct ledger *l, uint32_t epoch, uint64_t want, uint32_t crashes_max,
                       uint64_t careful, struct lease_span out[LEASE_SPANS_MAX]) {
    uint32_t n = 0;
    uint64_t pos = 0;
    const struct extents *x = &l->epochs[epoch].x;
    while (n < LEASE_SPANS_MAX && want > 0 && pos < x->positions) {
        const struct extent *e = extents_available(x, pos);
        if (!e) break;
        bool last_chance = e->crashes > 0 && e->crashes + 1U >= crashes_max && crashes_max > 0;
        if (last_chance && n > 0) break;
        uint64_t take = e->count < want ? e->count : want;
        if (last_chance && take > careful) take = careful;
        out[n++] = (struct lease_span){.start = e->start, .count = take};
        if (last_chance) break;
        want -= take;
        pos = e->start + e->count;
    }
    return n;
}

static bool spans_disjoint(const struct lease_span *s, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i + 1; j < count; j++)
            if (span_has(&s[i], s[j].start) || span_has(&s[j], s[i].start)) return false;
    return true;
}

enum lease_fault ledger_grant(struct ledger *l, const struct lease_grant *g) {
    if (g->epoch >= l->epochs_count || l->epochs[g->epoch].sealed) return LEASE_BAD_EPOCH;
    if (g->tok <= l->tok_last) return LEASE_BAD_TOK;
    if (g->spans_count == 0 || g->spans_count > LEASE_SPANS_MAX) return LEASE_BAD_SPAN;
    if (!spans_disjoint(g->spans, g->spans_count)) return LEASE_BAD_SPAN;
    const struct extents *x = &l->epochs[g->epoch].x;
    for (uint32_t i = 0; i < g->spans_count; i++)
        if (!extents_all(x, g->spans[i].start, g->spans[i].count, EXTENT_AVAILABLE, 0))
            return LEASE_BAD_SPAN;
    lease_add(l, g);
    l->tok_last = g->tok; /* I7 */
    move_spans(l, g->epoch, g->spans, g->spans_count,
               &(struct extent_move){.to = EXTENT_LEASED, .ref = g->tok});
    return LEASE_FINE;
}

static void lease_free(struct ledger *l, struct lease *a, enum crash_rule rule,
                       uint32_t crashes_max) {
    move_part(
        l, a, 0, a->count,
        &(struct extent_move){.to = EXTENT_AVAILABLE, .crash = rule, .crashes_max = crashes_max});
    lease_drop(l, a);
}

enum lease_fault ledger_free(struct ledger *l, uint64_t tok, bool crashed, uint32_t crashes_max,
                             uint64_t *out_quarantined) {
    struct lease *a = ledger_lease_find(l, tok);
    if (!a) return LEASE_ENDED;
    const uint64_t *counts = l->epochs[a->epoch].x.counts;
    uint64_t before = counts[EXTENT_QUARANTINED];
    lease_free(l, a, crashed ? CRASH_COUNT : CRASH_KEEP, crashes_max);
    *out_quarantined = counts[EXTENT_QUARANTINED] - before;
    return LEASE_FINE;
}

enum lease_fault ledger_shrink(struct ledger *l, uint64_t tok, uint64_t keep) {
    struct lease *a = ledger_lease_find(l, tok);
    if (!a) return LEASE_ENDED;
    if (keep == 0 || keep >= a->count) return LEASE_TOO_LONG;
    move_part(l, a, keep, a->count, &(struct extent_move){.to = EXTENT_AVAILABLE});
    struct lease_span spans[LEASE_SPANS_MAX];
    uint32_t n = spans_cut(a, 0, keep, spans);
    memcpy(a->spans, spans, n * sizeof *spans);
    l->items_bytes -= (a->spans_count - n) * sizeof *spans;
    a->spans_count = n;
    a->count = keep;
    return LEASE_FINE;
}

enum lease_fault ledger_keep(struct ledger *l, uint64_t tok, uint32_t inc) {
    struct lease *a = ledger_lease_find(l, tok);
    if (!a) return LEASE_ENDED;
    if (inc <= a->inc) return LEASE_FOREIGN;
    a->inc = inc;
    a->req = 0; /* requests are numbered within an incarnation */
    return LEASE_FINE;
}

/* ---- Commit
 * ------------------------------------------------------------------------------------- */

static bool skip_inside(const struct ledger *l, const struct lease_stage *s,
                        const struct lease_skip *skip) {
    for (uint32_t i = 0; i < s->parts_count; i++) {
        const struct lease *a = ledger_lease_find(l, s->parts[i].tok);
        if (a->epoch != skip->epoch) continue;
        struct lease_span spans[LEASE_SPANS_MAX];
        uint32_t n = spans_cut(a, 0, s->parts[i].done, spans);
        for (uint32_t k = 0; k < n; k++)
            if (span_has(&spans[k], skip->position)) return true;
    }
    return false;
}

static enum lease_fault skips_check(const struct ledger *l, const struct lease_stage *s) {
    if (s->skips_count > LEASE_SKIPS_MAX) return LEASE_BAD_SKIP;
    for (uint32_t i = 0; i < s->skips_count; i++) {
        if (!skip_inside(l, s, &s->skips[i])) return LEASE_BAD_SKIP;
        for (uint32_t k = 0; k < i; k++)
            if (s->skips[k].epoch == s->skips[i].epoch &&
                s->skips[k].position == s->skips[i].position)
                return LEASE_BAD_SKIP;
    }
    return LEASE_FINE;
}

enum lease_fault ledger_stage_check(const struct ledger *l, const struct lease_stage *s,
                                    uint32_t *out_part) {
    *out_part = 0;
    if (ledger_delta_find(l, &s->did)) return LEASE_BAD_DELTA;
    if (s->parts_count == 0 || s->parts_count > LEASE_PARTS_MAX) return LEASE_EMPTY;
    uint64_t done = 0;
    const struct lease *last = NULL;
    for (uint32_t i = 0; i < s->parts_count; i++) {
        const struct lease_part *p = &s->parts[i];
        *out_part = i;
        for (uint32_t k = 0; k < i; k++)
            if (s->parts[k].tok == p->tok) return LEASE_TWICE;
        last = ledger_lease_find(l, p->tok);
        if (!last) return LEASE_ENDED;
        bool nonce = last->nonce == p->nonce || MUTANT(NO_NONCE);
        bool owner = (last->site == s->site && last->inc == s->inc) || MUTANT(NO_FENCE);
        if (!nonce || !owner) return LEASE_FOREIGN;
        if (p->done > last->count && !MUTANT(NO_CONTAINMENT)) return LEASE_TOO_LONG;
        done += p->done; /* at most 32 leases of one run: no overflow */
    }
    if (s->has_rest) {
        if (s->parts[s->parts_count - 1].done == last->count) return LEASE_BAD_REST;
        if (s->rest_tok <= l->tok_last) return LEASE_BAD_TOK;
    }
    *out_part = 0;
    if (done == 0) return LEASE_EMPTY;
    return skips_check(l, s);
}

/* One lease of a manifest: `done` samples to the delta, the rest to the pool or to the successor.
 * */
static void stage_part(struct ledger *l, const struct lease_stage *s, struct delta *d,
                       const struct lease_part *p, bool has_rest) {
    struct lease *a = ledger_lease_find(l, p->tok);
    CHECK(a != NULL);           /* I3 */
    CHECK(p->done <= a->count); /* I3 */
    CHECK(a->inc == s->inc);    /* I3 */
    struct lease_span spans[LEASE_SPANS_MAX];
    uint32_t n = spans_cut(a, 0, p->done, spans);
    for (uint32_t i = 0; i < n; i++)
        d->live->spans[d->live->spans_count++] =
            (struct delta_span){.epoch = a->epoch, .span = spans[i]};
    d->live->samples += p->done;
    move_part(l, a, 0, p->done, &(struct extent_move){.to = EXTENT_STAGED, .ref = d->serial});
    struct lease_grant rest = {.tok = s->rest_tok,
                               .nonce = s->rest_nonce,
                               .site = a->site,
                               .inc = a->inc,
                               .epoch = a->epoch,
                               .spans = spans};
    struct extent_move after = {.to = EXTENT_AVAILABLE};
    if (has_rest) after = (struct extent_move){.to = EXTENT_LEASED, .ref = s->rest_tok};
    move_part(l, a, p->done, a->count, &after);
    rest.spans_count = spans_cut(a, p->done - MUTANT(REST_OVERLAPS), a->count, spans);
    if (!MUTANT(LEASE_NOT_ENDED)) lease_drop(l, a); /* I4: consumed, once */
    if (!has_rest) return;
    lease_add(l, &rest);
    l->tok_last = rest.tok; /* I7 */
}

static uint32_t spans_needed(const struct ledger *l, const struct lease_stage *s) {
    struct lease_span spans[LEASE_SPANS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->parts_count; i++)
        n += spans_cut(ledger_lease_find(l, s->parts[i].tok), 0, s->parts[i].done, spans);
    return n;
}

enum lease_fault ledger_stage(struct ledger *l, const struct lease_stage *s) {
    uint32_t part;
    enum lease_fault f = ledger_stage_check(l, s, &part);
    if (f != LEASE_FINE) return f; /* the whole delta or none of it */
    struct delta *d = delta_add(l, &s->did, s->site, s->parts_count);
    d->blob = s->blob;
    d->manifest = s->manifest;
    d->rest_tok = s->has_rest ? s->rest_tok : 0;
    uint32_t spans_count = spans_needed(l, s);
    delta_live_set(l, d, spans_count);
    d->live->spans_count = 0;
    d->live->info = s->info;
    d->live->skipped = s->skips_count;
    for (uint32_t i = 0; i < s->parts_count; i++) {
        d->toks[i] = s->parts[i].tok;
        stage_part(l, s, d, &s->parts[i], s->has_rest && i + 1 == s->parts_count);
    }
    CHECK(d->live->spans_count == spans_count);
    for (uint32_t i = 0; i < s->skips_count; i++)
        extents_move(&l->epochs[s->skips[i].epoch].x, s->skips[i].position, 1,
                     &(struct extent_move){.to = EXTENT_STAGED,
                                           .ref = d->serial,
                                           .reason = reason_number(l, s->skips[i].reason)});
    delta_stage_link(l, d);
    return LEASE_FINE;
}

enum lease_fault ledger_reject(struct ledger *l, const struct lease_reject *r) {
    if (ledger_delta_find(l, &r->did)) return LEASE_BAD_DELTA;
    for (uint32_t i = 0; i < r->freed_count; i++) {
        const struct lease *a = ledger_lease_find(l, r->freed[i]);
        if (!a) return LEASE_ENDED;
        if (a->site != r->site || a->inc != r->inc) return LEASE_FOREIGN;
        for (uint32_t k = 0; k < i; k++)
            if (r->freed[k] == r->freed[i]) return LEASE_TWICE;
    }
    for (uint32_t i = 0; i < r->freed_count; i++)
        lease_free(l, ledger_lease_find(l, r->freed[i]), CRASH_KEEP, 0);
    struct delta *d = delta_add(l, &r->did, r->site, 0);
    d->blob = r->blob;
    d->manifest = r->manifest;
    delta_finish(l, d, DELTA_REJECTED, r->reason);
    return LEASE_FINE;
}

/* ---- After staging
 * ------------------------------------------------------------------------------ */

static void delta_move(struct ledger *l, const struct delta *d, const struct extent_move *m) {
    for (uint32_t i = 0; i < d->live->spans_count; i++) {
        const struct delta_span *s = &d->live->spans[i];
        struct extents *x = &l->epochs[s->epoch].x;
        CHECK(extents_all(x, s->span.start, s->span.count, EXTENT_STAGED, d->serial)); /* I4 */
        extents_move(x, s->span.start, s->span.count, m);
    }
}

static void delta_discard(struct ledger *l, struct delta *d, const char *reason) {
    if (!MUTANT(DISCARD_LOSES))
        delta_move(l, d,
                   &(struct extent_move){.to = EXTENT_AVAILABLE}); /* I12: nothing stays with it */
    delta_finish(l, d, DELTA_DISCARDED, reason);
}

enum lease_fault ledger_discard(struct ledger *l, const struct id128 *did, const char *reason) {
    struct delta *d = ledger_delta_find(l, did);
    if (!d || d->state != DELTA_STAGED) return LEASE_BAD_DELTA;
    delta_discard(l, d, reason);
    return LEASE_FINE;
}

enum lease_fault ledger_merge(struct ledger *l, uint64_t version, const struct id128 *dids,
                              size_t count) {
    if (version <= l->version_last) return LEASE_BAD_VERSION;
    if (count == 0) return LEASE_EMPTY;
    enum lease_fault f = LEASE_FINE;
    size_t seen = 0;
    for (; seen < count && f == LEASE_FINE; seen++) {
        struct delta *d = ledger_delta_find(l, &dids[seen]);
        if (!d || d->state != DELTA_STAGED || d->live->marked)
            f = LEASE_BAD_DELTA;
        else
            d->live->marked = true;
    }
    if (f != LEASE_FINE) {
        for (size_t i = 0; i + 1 < seen; i++) ledger_delta_find(l, &dids[i])->live->marked = false;
        return f;
    }
    for (size_t i = 0; i < count; i++) {
        struct delta *d = ledger_delta_find(l, &dids[i]);
        if (MUTANT(NON_ATOMIC) && i + 1 == count && count > 1) continue;
        delta_move(l, d,
                   &(struct extent_move){.to = EXTENT_MERGED,
                                         .ref = version,
                                         .skips = true,
                                         .crash = CRASH_FORGET}); /* I5 */
        d->version = version;
        delta_finish(l, d, DELTA_MERGED, NULL);
    }
    l->version_last = version;
    return LEASE_FINE;
}

static bool epoch_finished(const struct epoch *e) {
    uint64_t done = e->x.counts[EXTENT_MERGED] + e->x.counts[EXTENT_SKIPPED];
    if (MUTANT(SEAL_IGNORES_STAGED)) done += e->x.counts[EXTENT_STAGED];
    return done == e->x.positions;
}

enum lease_fault ledger_seal(struct ledger *l, uint32_t epoch, struct hash *out_digest) {
    if (epoch >= l->epochs_count || l->epochs[epoch].sealed) return LEASE_BAD_EPOCH;
    if (!epoch_finished(&l->epochs[epoch])) return LEASE_UNFINISHED; /* I9 */
    struct buf runs;
    buf_init(&runs, SIZE_MAX / 2);
    ledger_runs_encode(l, epoch, 0, &runs);
    *out_digest = hash_of(runs.data, runs.bytes_count);
    buf_fini(&runs);
    l->epochs[epoch].sealed = true;
    return LEASE_FINE;
}

enum lease_fault ledger_decide(struct ledger *l, uint32_t epoch, struct lease_span span, bool skip,
                               const char *reason) {
    if (epoch >= l->epochs_count) return LEASE_BAD_EPOCH;
    struct extents *x = &l->epochs[epoch].x;
    if (!extents_all(x, span.start, span.count, EXTENT_QUARANTINED, 0)) return LEASE_BAD_SPAN;
    struct extent_move m = {.to = EXTENT_AVAILABLE, .crash = CRASH_FORGET};
    if (skip) {
        m.to = EXTENT_SKIPPED;
        m.reason = reason_number(l, reason);
    }
    extents_move(x, span.start, span.count, &m);
    return LEASE_FINE;
}

/* What merged after `version` is AVAILABLE again; gives whether there was any. */
static bool epoch_rollback(struct extents *x, uint64_t version) {
    bool any = false;
    for (uint64_t pos = 0; pos < x->positions;) {
        const struct extent *e = extents_at(x, pos);
        uint64_t start = e->start, count = e->count;
        pos = start + count;
        if (e->state != EXTENT_MERGED && e->state != EXTENT_SKIPPED) continue;
        if (e->ref <= version) continue;
        extents_move(x, start, count,
                     &(struct extent_move){.to = EXTENT_AVAILABLE, .crash = CRASH_FORGET}); /* I5 */
        any = true;
    }
    return any;
}

void ledger_rollback(struct ledger *l, uint64_t version) {
    struct err text;
    (void)err_set(&text, BRG_OK, "an operator rolled back to version %llu",
                  (unsigned long long)version);
    for (uint32_t s = 0; s < l->sites_cap; s++)
        while (l->sites[s].first) lease_free(l, l->sites[s].first, CRASH_KEEP, 0);
    while (l->staged.first && !MUTANT(ROLLBACK_KEEPS_STAGED))
        delta_discard(l, l->staged.first, text.text);
    for (struct delta *d = l->final.first; d; d = d->list_next) {
        if (d->state != DELTA_MERGED || d->version <= version) continue;
        d->state = DELTA_DISCARDED;
        d->version = 0;
        delta_reason_set(l, d, text.text);
    }
    for (uint32_t i = 0; i < l->epochs_count; i++)
        if (!MUTANT(ROLLBACK_LEDGER) && epoch_rollback(&l->epochs[i].x, version))
            l->epochs[i].sealed = false; /* I9 */
}

/* ---- Reading
 * ------------------------------------------------------------------------------------ */

uint32_t ledger_epochs(const struct ledger *l) {
    return l->epochs_count;
}

uint64_t ledger_positions(const struct ledger *l) {
    return l->positions;
}

bool ledger_sealed(const struct ledger *l, uint32_t epoch) {
    return epoch < l->epochs_count && l->epochs[epoch].sealed;
}

uint64_t ledger_count(const struct ledger *l, uint32_t epoch, enum extent_state state) {
    return epoch < l->epochs_count ? l->epochs[epoch].x.counts[state] : 0;
}

uint64_t ledger_tok_last(const struct ledger *l) {
    return l->tok_last;
}

bool ledger_all(const struct ledger *l, uint32_t epoch, struct lease_span span,
                enum extent_state state) {
    if (epoch >= l->epochs_count || span.count == 0) return false;
    const struct extents *x = &l->epochs[epoch].x;
    if (span.start >= x->positions || span.count > x->positions - span.start) return false;
    for (uint64_t pos = span.start, end = span.start + span.count; pos < end;) {
        const struct extent *e = extents_at(x, pos);
        if (e->state != state) return false;
        pos = e->start + e->count;
    }
    return true;
}

void ledger_walk(const struct ledger *l, uint32_t epoch, ledger_visit *visit, void *user) {
    struct extents_iter i;
    for (const struct extent *e = extents_first(&i, &l->epochs[epoch].x); e; e = extents_next(&i)) {
        bool versioned = e->state == EXTENT_MERGED || e->state == EXTENT_SKIPPED;
        visit(user, (enum extent_state)e->state,
              (struct lease_span){.start = e->start, .count = e->count}, versioned ? e->ref : 0,
              e->crashes);
    }
}

uint64_t ledger_extents(const struct ledger *l) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->epochs_count; i++) n += l->epochs[i].x.nodes;
    return n;
}
