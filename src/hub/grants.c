/* SPDX-License-Identifier: Apache-2.0 */
/* grants.c - who gets which positions, and who has to give them back.
 *
 * Order of choice for a request: what is AVAILABLE in the first unsealed epoch (returned positions
 * lie before fresh ones, so they go first), then in the next epoch (so that nobody waits for the
 * last straggler of this one), and only then the lease that lapsed longest ago. A lease of a live
 * site is never taken: that needs its word (SHRINK_OK) or its silence for a whole TTL.
 *
 * Why lapsed leases are taken so late: a site that was cut off often comes back, and then its work
 * counts; a lease that nobody needs does no harm.
 *
 * What a site asks for ahead of need, to train through an outage of the hub, it is given only while it
 * does not hold more than its share by that: near the end of an epoch the others need it.
 *
 * Sizes: what the site wants, between the two limits; near the end of an epoch at most
 * remaining / (2 * sites), so that the last one to finish does not hold much (guided
 * self-scheduling). */
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- What there is
 * ------------------------------------------------------------------------------ */

uint32_t hub_epoch_first(const struct hub *h) {
    uint32_t e = 0;
    while (e < ledger_epochs(h->ledger) && ledger_sealed(h->ledger, e)) e++;
    return e;
}

bool hub_complete(const struct hub *h) {
    return h->opened && hub_epoch_first(h) >= h->s.epochs;
}

/* One epoch ahead at most: else a lapsed lease would wait for the end of the run. */
static uint32_t epoch_last(const struct hub *h, uint32_t first) {
    return first + 1 < h->s.epochs ? first + 1 : first;
}

bool hub_work_left(const struct hub *h) {
    uint32_t first = hub_epoch_first(h);
    if (first >= h->s.epochs) return false;
    for (uint32_t e = first; e <= epoch_last(h, first); e++) {
        if (e >= ledger_epochs(h->ledger))
            return h->parent_site == 0; /* else: as it leases to us */
        if (ledger_count(h->ledger, e, EXTENT_AVAILABLE) > 0) return true;
    }
    for (uint32_t s = 1; s <= h->sites_count; s++)
        for (const struct lease *a = ledger_site_first(h->ledger, s); a; a = a->site_next)
            if (a->deadline <= h->now) return true;
    return false;
}

/* ---- Sizes
 * -------------------------------------------------------------------------------------- */

static uint64_t multiple_up(uint64_t v, uint64_t of) {
    return of > 1 && v % of != 0 ? v + (of - v % of) : v;
}

static uint64_t size_of(const struct hub *h, uint32_t epoch, uint64_t want) {
    uint64_t low = h->s.lease_samples_min > 0 ? h->s.lease_samples_min : 1;
    uint64_t high = h->s.lease_samples_max > low ? h->s.lease_samples_max : low;
    uint64_t size = want < low ? low : want > high ? high : want;
    uint64_t sites = hub_sites_live_ready(h);
    if (sites == 0) sites = 1;
    uint64_t remaining = ledger_count(h->ledger, epoch, EXTENT_AVAILABLE);
    uint64_t guided = multiple_up(remaining / (2 * sites), low);
    if (guided < low) guided = low;
    if (size > guided) size = guided;
    size = size / low * low;
    return size;
}

/* ---- Taking lapsed leases
 * ----------------------------------------------------------------------- */

static struct lease *lapsed_oldest(const struct hub *h) {
    struct lease *best = NULL;
    if (MUTANT(NEVER_RECLAIMS)) return NULL;
    uint32_t first = hub_epoch_first(h);
    for (uint32_t s = 1; s <= h->sites_count; s++) {
        for (struct lease *a = ledger_site_first(h->ledger, s); a; a = a->site_next) {
            if (a->deadline > h->now || a->epoch > epoch_last(h, first)) continue;
            if (!best || a->deadline < best->deadline ||
                (a->deadline == best->deadline && a->tok < best->tok))
                best = a;
        }
    }
    return best;
}

static void reclaim(struct hub *h, uint64_t tok, enum reclaim_reason reason, uint64_t keep) {
    struct hub_record *r = hub_draft(h, RECORD_RECLAIM);
    r->u.reclaim.tok = tok;
    r->u.reclaim.reason = reason;
    r->u.reclaim.keep = keep;
    if (reason == RECLAIM_LAPSED) r->u.reclaim.crashes_max = h->s.crashes_max;
    hub_emit(h, r);
}

/* ---- Lease
 * -------------------------------------------------------------------------------------- */

void hub_lease_fill(const struct lease *a, struct wire_lease *out) {
    memset(out, 0, sizeof *out);
    out->tok = a->tok;
    out->nonce = a->nonce;
    out->epoch = a->epoch;
    out->count = a->count;
    out->ranges_count = a->spans_count;
    for (uint32_t i = 0; i < a->spans_count; i++)
        out->ranges[i] = (struct range){a->spans[i].start, a->spans[i].count};
}

static void answer_wait(struct hub *h, time_ns wait) {
    struct wire_lease_answer *a = &h->out->answer.u.lease;
    a->granted = false;
    a->wait_ms = hub_ms(wait);
}

static void answer_grant(struct hub *h, const struct lease *l) {
    struct wire_lease_answer *a = &h->out->answer.u.lease;
    a->granted = true;
    hub_lease_fill(l, &a->lease);
}

static void grant(struct hub *h, uint32_t site, uint32_t epoch, uint64_t req,
                  const struct lease_span *spans, uint32_t count) {
    struct hub_record *r = hub_draft(h, RECORD_GRANT);
    struct record_grant *g = &r->u.grant;
    g->tok = hub_tok_next(h);
    g->nonce = prng_u64(&h->prng);
    g->site = site;
    g->inc = h->sites[site].inc;
    g->epoch = epoch;
    g->req = req;
    g->ranges_count = count;
    for (uint32_t i = 0; i < count; i++)
        g->ranges[i] = (struct range){spans[i].start, spans[i].count};
    uint64_t tok = g->tok;
    hub_emit(h, r);
    struct lease *a = ledger_lease_find(h->ledger, tok);
    CHECK(a != NULL);
    a->deadline = h->now + h->s.ttl_ns;
    answer_grant(h, a);
    hub_note(h, "lvl=info ev=granted site=%s lease=%llx epoch=%u start=%llu count=%llu",
             h->sites[site].name, (unsigned long long)tok, epoch,
             (unsigned long long)a->spans[0].start, (unsigned long long)a->count);
}

static bool grant_available(struct hub *h, uint32_t site, uint64_t want, uint64_t req) {
    uint32_t first = hub_epoch_first(h);
    if (MUTANT(OVERLAP_EARLY) && epoch_last(h, first) < ledger_epochs(h->ledger))
        first = epoch_last(h, first);
    for (uint32_t e = first; e <= epoch_last(h, first); e++) {
        if (e >= ledger_epochs(h->ledger) && h->parent_site > 0) break;
        if (e == ledger_epochs(h->ledger)) {
            /* The ledger in the checkpoint under way has no such epoch (I5): it opens after it. */
            if (h->merge && !h->merge->cancelled && !MUTANT(EPOCH_DURING_MERGE)) break;
            struct hub_record *r = hub_draft(h, RECORD_EPOCH);
            r->u.epoch.epoch = e;
            r->u.epoch.positions = h->s.positions;
            hub_emit(h, r);
            hub_note(h, "lvl=info ev=epoch_opened epoch=%u", e);
        }
        struct lease_span spans[LEASE_SPANS_MAX];
        uint32_t n = ledger_choose(h->ledger, e, size_of(h, e, want), h->s.crashes_max,
                                   h->s.lease_samples_min > 0 ? h->s.lease_samples_min : 1, spans);
        if (n == 0) continue;
        grant(h, site, e, req, spans, n);
        return true;
    }
    return false;
}

/* Of what is left to give, half is for those who run dry and for those who come yet. */
bool hub_holds_its_share(const struct hub *h, uint32_t site, uint64_t more) {
    uint32_t first = hub_epoch_first(h);
    uint64_t held = 0, sites = hub_sites_live_ready(h), left = h->s.positions;
    for (const struct lease *a = ledger_site_first(h->ledger, site); a; a = a->site_next)
        held += a->count - a->read_ahead;
    if (first < ledger_epochs(h->ledger)) left = ledger_count(h->ledger, first, EXTENT_AVAILABLE);
    uint64_t share = left / (2 * (sites > 0 ? sites : 1));
    return held >= share || more > share - held;
}

/* Answers a request that was answered before; false: it is new. */
static bool lease_again(struct hub *h, uint32_t site, uint64_t req) {
    if (req > h->sites[site].req_last || MUTANT(LEASE_NOT_REPEATED)) return false;
    for (const struct lease *a = ledger_site_first(h->ledger, site); a; a = a->site_next) {
        if (a->req != req || a->req == 0) continue;
        answer_grant(h, a);
        return true;
    }
    answer_wait(h, 0); /* its lease has ended since, or a newer request came first: ask anew */
    return true;
}

/* A site that asks while it holds as many leases as it may, some of them lapsed, does not know those: it
 * would have kept them. So it is after a hub was restored, and its newer copy found. They would stand in
 * its way for ever, since a site's own leases are never reclaimed for its own need. */
static void reclaim_forgotten(struct hub *h, uint32_t site) {
    const struct lease *a = ledger_site_first(h->ledger, site);
    if (ledger_site_leases(h->ledger, site) < WIRE_LEASES_MAX) return;
    while (a) {
        uint64_t tok = a->tok;
        bool lapsed = a->deadline <= h->now;
        a = a->site_next;
        if (lapsed) reclaim(h, tok, RECLAIM_LAPSED, 0);
    }
}

static bool lease_refused(struct hub *h, uint32_t site, uint64_t base) {
    const struct hub_version *v = hub_version_of(h, base);
    if (base >= h->versions_next) {
        hub_ask_to_join(h, base);
        return true;
    }
    if (hub_complete(h)) {
        hub_refuse(h, WIRE_COMPLETE, "the run is complete");
        return true;
    }
    if (h->held) {
        hub_refuse(h, WIRE_RETRY,
                   "the hub holds until an operator decides: a site has seen a newer version");
        h->out->answer.retry_ms = hub_ms(h->s.heartbeat_ns);
        return true;
    }
    if (base > h->versions[h->head].v.version && !MUTANT(NO_REJOIN_AFTER_ROLLBACK)) {
        /* A rollback left it ahead, on a branch that is no more; with the JOIN it learns so. */
        hub_refuse(h, WIRE_UNKNOWN_SITE, "the run went back to version %llu: join again",
                   (unsigned long long)h->versions[h->head].v.version);
        return true;
    }
    h->sites[site].base = base;
    h->sites[site].ready = v && v->on_branch;
    reclaim_forgotten(h, site);
    if (h->draining || !h->sites[site].ready ||
        ledger_site_leases(h->ledger, site) >= WIRE_LEASES_MAX) {
        answer_wait(h, h->s.heartbeat_ns);
        return true;
    }
    return false;
}

void hub_lease(struct hub *h, uint32_t site, const struct wire_request *q) {
    struct wire_lease_answer *a = &h->out->answer.u.lease;
    uint64_t want = q->u.lease.want;
    if (q->req == 0) {
        hub_refuse(h, WIRE_BAD, "requests are numbered from 1");
        return;
    }
    bool done = lease_again(h, site, q->req) || lease_refused(h, site, q->u.lease.base);
    if (!done && q->u.lease.ahead && hub_holds_its_share(h, site, want)) {
        answer_wait(h, 2 * h->s.heartbeat_ns);
        done = true;
    }
    if (!done) done = grant_available(h, site, want, q->req);
    while (!done) {
        struct lease *l = lapsed_oldest(h);
        if (!l) break;
        hub_note(h, "lvl=warn ev=reclaimed site=%s lease=%llx count=%llu for=%s",
                 h->sites[l->site].name, (unsigned long long)l->tok, (unsigned long long)l->count,
                 h->sites[site].name);
        /* Of a site that left in order: nothing crashed. */
        bool left = !h->sites[l->site].joined;
        reclaim(h, l->tok, left ? RECLAIM_RETURNED : RECLAIM_LAPSED, 0);
        done = grant_available(h, site, want, q->req); /* no: all of it is quarantined now */
    }
    if (!done) {
        h->starved_at = h->now;
        h->starved_site = site;
        answer_wait(h, h->s.heartbeat_ns / 2);
    }
    hub_round_fill(h, site, &a->round);
}

/* ---- Giving back
 * -------------------------------------------------------------------------------- */

void hub_return(struct hub *h, uint32_t site, uint64_t tok, uint64_t nonce, uint64_t keep) {
    const struct lease *a = ledger_lease_find(h->ledger, tok);
    if (!a) return; /* it has ended: what the site wants is so already */
    if (a->site != site || a->inc != h->sites[site].inc || a->nonce != nonce) {
        hub_refuse(h, WIRE_BAD, "this lease belongs to another site");
        return;
    }
    if (keep >= a->count) return;
    hub_note(h, "lvl=info ev=returned site=%s lease=%llx keep=%llu of=%llu", h->sites[site].name,
             (unsigned long long)tok, (unsigned long long)keep, (unsigned long long)a->count);
    reclaim(h, tok, keep > 0 ? RECLAIM_SHRUNK : RECLAIM_RETURNED, keep);
    struct lease *left = ledger_lease_find(h->ledger, tok);
    if (!left) return;
    if (left->done > keep) left->done = keep;
    if (left->read_ahead > keep) left->read_ahead = keep;
}

/* ---- Wishes
 * ------------------------------------------------------------------------------------- */

static uint64_t rest_of(const struct lease *a) {
    return a->count - a->read_ahead;
}

/* Only while somebody starves and nothing else is there, and only the longest rest of all: half of
 * it. Where that is the starving site's own (it asks ahead of need), there is nothing to even out. */
uint64_t hub_wish(const struct hub *h, const struct lease *a) {
    uint64_t low = h->s.lease_samples_min > 0 ? h->s.lease_samples_min : 1;
    if (h->starved_at == TIME_NS_NEVER || h->now - h->starved_at > 2 * h->s.heartbeat_ns)
        return a->count;
    if (rest_of(a) < 2 * low || hub_work_left(h) || a->site == h->starved_site) return a->count;
    for (uint32_t s = 1; s <= h->sites_count; s++) {
        if (s == h->parent_site) continue;
        for (const struct lease *b = ledger_site_first(h->ledger, s); b; b = b->site_next) {
            if (rest_of(b) > rest_of(a) || (rest_of(b) == rest_of(a) && b->tok < a->tok))
                return a->count;
        }
    }
    return a->read_ahead + multiple_up(rest_of(a) / 2, low);
}
