/* SPDX-License-Identifier: Apache-2.0 */
/* region.c - a hub that is a site of another hub, its parent: what its ledger knows of that. Pure.
 *
 * In the region's ledger the parent is a member (HUB_PARENT) like any other: it has a lease on every position
 * that it has not leased to the region, and contributes what all the others have done. So the promises of the
 * ledger (I1-I12) are the region's too, and its epochs are sealed when the parent's work and its own are all.
 *
 *   HUB_CMD_HOLD     these positions are leased to the region: AVAILABLE here; all else is the parent's lease
 *   HUB_CMD_TAKE_IN  a version of the parent: others' positions are staged as its contribution, and a PARENT
 *                    record says what the next MERGE does to theta beside its own step
 *   HUB_CMD_RESET    back to the first version: what was not merged at the parent is thrown away
 *
 *   theta' = theta_region - d,   d = (theta_from - theta_version) - own deltas merged in between
 *
 * which leaves the region's weights at the parent's version plus its own work that the parent does not have yet.
 *
 * Invariants
 *   (N1) a position is AVAILABLE only while it is leased to the region: what is not, is HUB_PARENT's, from one
 *        record to the next within one command.
 *   (N2) a PARENT record's displacement and the positions staged with it are in the same MERGE, or in none:
 *        none is made by a plan that is older, and none may be planned without it. */
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- Sets of positions of one epoch, as stretches in order ------------------------------------------------ */
struct set {
    struct lease_span *v;
    size_t count, cap;
};
static void set_fini(struct set *s) {
    mem_free(s->v);
}
#define AUTO_SET __attribute__((cleanup(set_fini)))

static void set_add(struct set *s, uint64_t start, uint64_t count) {
    if (count == 0) return;
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        s->v = mem_grow(s->v, s->cap, cap, sizeof *s->v);
        s->cap = cap;
    }
    s->v[s->count++] = (struct lease_span){start, count};
}

static int by_start(const void *a, const void *b) {
    uint64_t x = ((const struct lease_span *)a)->start, y = ((const struct lease_span *)b)->start;
    return x < y ? -1 : x > y;
}

/* In order, neighbours joined. */
static void set_tidy(struct set *s) {
    size_t n = 0;
    if (s->count > 1) qsort(s->v, s->count, sizeof *s->v, by_start);
    for (size_t i = 0; i < s->count; i++) {
        struct lease_span x = s->v[i];
        uint64_t end = n > 0 ? s->v[n - 1].start + s->v[n - 1].count : 0;
        if (n > 0 && x.start <= end) {
            if (x.start + x.count > end) s->v[n - 1].count = x.start + x.count - s->v[n - 1].start;
        } else {
            s->v[n++] = x;
        }
    }
    s->count = n;
}

/* out = a without b; all tidy. */
static void set_minus(const struct set *a, const struct set *b, struct set *out) {
    size_t k = 0;
    for (size_t i = 0; i < a->count; i++) {
        uint64_t at = a->v[i].start, end = at + a->v[i].count;
        while (k < b->count && b->v[k].start + b->v[k].count <= at) k++;
        for (size_t j = k; j < b->count && b->v[j].start < end; j++) {
            if (b->v[j].start > at) set_add(out, at, b->v[j].start - at);
            uint64_t stop = b->v[j].start + b->v[j].count;
            if (stop > at) at = stop;
        }
        if (at < end) set_add(out, at, end - at);
    }
}

static void set_both(const struct set *a, const struct set *b, struct set *out) {
    AUTO_SET struct set only = {0};
    set_minus(a, b, &only);
    set_minus(a, &only, out);
}

static bool set_equal(const struct set *a, const struct set *b) {
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->v, b->v, a->count * sizeof *a->v) == 0);
}

static bool set_within(const struct set *a, const struct set *b) {
    AUTO_SET struct set left = {0};
    set_minus(a, b, &left);
    return left.count == 0;
}

struct pick {
    struct set *out;
    unsigned states; /* bits */
};
static void pick_visit(void *user, enum extent_state state, struct lease_span span,
                       uint64_t version, uint32_t crashes) {
    const struct pick *p = user;
    (void)version, (void)crashes;
    if (p->states >> state & 1) set_add(p->out, span.start, span.count);
}

static void set_of(const struct ledger *l, uint32_t epoch, unsigned states, struct set *out) {
    struct pick p = {out, states};
    if (epoch < ledger_epochs(l)) ledger_walk(l, epoch, pick_visit, &p);
    set_tidy(out);
}

static void set_of_spans(const struct hub_span *s, uint32_t count, uint32_t epoch,
                         struct set *out) {
    for (uint32_t i = 0; i < count; i++)
        if (s[i].epoch == epoch) set_add(out, s[i].range.start, s[i].range.count);
    set_tidy(out);
}

/* What the parent has a lease on; of an epoch that is not open here, everything. */
static void set_of_parent(const struct hub *h, uint32_t epoch, struct set *out) {
    if (epoch >= ledger_epochs(h->ledger)) set_add(out, 0, h->s.positions);
    for (const struct lease *a = ledger_site_first(h->ledger, h->parent_site); a; a = a->site_next)
        for (uint32_t i = 0; i < a->spans_count && a->epoch == epoch; i++)
            set_add(out, a->spans[i].start, a->spans[i].count);
    set_tidy(out);
}

enum { DONE_STATES = 1 << EXTENT_MERGED | 1 << EXTENT_SKIPPED };

/* ---- The parent's leases ------------------------------------------------------------------------------------ */
static void parent_free(struct hub *h, uint32_t epoch) {
    const struct lease *a = ledger_site_first(h->ledger, h->parent_site);
    while (a) {
        uint64_t tok = a->tok;
        bool here = a->epoch == epoch;
        a = a->site_next;
        if (!here) continue;
        struct hub_record *r = hub_draft(h, RECORD_RECLAIM);
        r->u.reclaim.tok = tok;
        r->u.reclaim.reason = RECLAIM_RETURNED;
        hub_emit(h, r);
    }
}

static const struct lease *parent_grant(struct hub *h, uint32_t epoch, const struct lease_span *v,
                                        size_t count) {
    struct hub_record *r = hub_draft(h, RECORD_GRANT);
    struct record_grant *g = &r->u.grant;
    g->tok = hub_tok_next(h);
    g->nonce = prng_u64(&h->prng);
    g->site = h->parent_site;
    g->inc = h->sites[h->parent_site].inc;
    g->epoch = epoch;
    g->ranges_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) g->ranges[i] = (struct range){v[i].start, v[i].count};
    uint64_t tok = g->tok;
    hub_emit(h, r);
    struct lease *a = ledger_lease_find(h->ledger, tok);
    CHECK(a != NULL);
    a->deadline = TIME_NS_NEVER;
    return a;
}

static void parent_give(struct hub *h, uint32_t epoch, const struct set *s) {
    for (size_t at = 0; at < s->count; at += LEASE_SPANS_MAX) {
        size_t n = s->count - at < LEASE_SPANS_MAX ? s->count - at : LEASE_SPANS_MAX;
        (void)parent_grant(h, epoch, s->v + at, n);
    }
}

static void epoch_open(struct hub *h, uint32_t epoch) {
    while (ledger_epochs(h->ledger) <= epoch) {
        struct hub_record *r = hub_draft(h, RECORD_EPOCH);
        uint32_t e = ledger_epochs(h->ledger);
        r->u.epoch.epoch = e;
        r->u.epoch.positions = h->s.positions;
        hub_emit(h, r);
        AUTO_SET struct set all = {0};
        set_add(&all, 0, h->s.positions);
        parent_give(h, e, &all); /* N1 */
        hub_note(h, "lvl=info ev=epoch_opened epoch=%u", e);
    }
}

static void parent_join(struct hub *h) {
    struct hub_record *r = hub_draft(h, RECORD_JOIN);
    r->u.join.site = h->sites_count + 1;
    r->u.join.inc = h->inc_floor + 1;
    memcpy(r->u.join.name, HUB_PARENT, sizeof HUB_PARENT);
    hub_emit(h, r);
    CHECK(h->parent_site == h->sites_count);
    h->sites[h->parent_site].ready = false;
}

/* ---- HOLD ------------------------------------------------------------------------------------------------------ */
static void hold_epoch(struct hub *h, uint32_t e, const struct hub_span *spans, uint32_t count) {
    AUTO_SET struct set held = {0}, free = {0}, own = {0}, all = {0}, want = {0};
    if (ledger_sealed(h->ledger, e)) return;
    set_of_spans(spans, count, e, &held);
    if (MUTANT(REGION_OFFERS_MORE)) set_add(&held, 0, 1);
    set_tidy(&held);
    set_of(h->ledger, e, 1U << EXTENT_AVAILABLE, &free);
    set_of_parent(h, e, &own);
    for (size_t i = 0; i < free.count; i++) set_add(&all, free.v[i].start, free.v[i].count);
    for (size_t i = 0; i < own.count; i++) set_add(&all, own.v[i].start, own.v[i].count);
    set_tidy(&all);
    set_minus(&all, &held, &want);
    if (set_equal(&want, &own)) return;
    parent_free(h, e);
    parent_give(h, e, &want); /* N1 */
}

void hub_region_hold(struct hub *h, const struct hub_span *spans, uint32_t count) {
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++) hold_epoch(h, e, spans, count);
}

/* It may become one as long as nobody has worked in it. */
static bool is_fresh(const struct hub *h) {
    return h->versions_count == 1 && h->versions[0].v.version == 0 && h->grants == 0 &&
           ledger_epochs(h->ledger) == 1;
}

static bool spans_fine(const struct hub *h, const struct hub_span *s, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (s[i].epoch >= h->s.epochs || s[i].range.count == 0 ||
            s[i].range.start >= h->s.positions ||
            s[i].range.count > h->s.positions - s[i].range.start)
            return false;
    return true;
}

void hub_cmd_hold(struct hub *h, const struct hub_cmd *c) {
    const struct hub_span *s = c->u.hold.spans;
    uint32_t count = c->u.hold.count, last = 0;
    const char *why = NULL;
    if (!h->started)
        why = "the hub is starting";
    else if (h->parent_site == 0 && !is_fresh(h))
        why = "this run has trained on its own already: a region begins with a fresh run";
    else if (!spans_fine(h, s, count))
        why = "positions that the run does not have";
    for (uint32_t i = 0; !why && i < count; i++) last = s[i].epoch > last ? s[i].epoch : last;
    /* The ledger in the checkpoint under way has no such epoch (I5). */
    if (!why && last >= ledger_epochs(h->ledger) && h->merge) why = "a merge is under way";
    hub_operator_answer(h, why == NULL, why);
    if (why) return;
    if (h->parent_site == 0) parent_join(h);
    epoch_open(h, last);
    hub_region_hold(h, s, count);
}

void hub_cmd_reset(struct hub *h) {
    bool fine = h->started && h->parent_site > 0;
    hub_operator_answer(h, fine, "this hub is no region");
    if (fine) hub_roll_back(h, h->versions[0].v.version, false);
}

/* ---- TAKE_IN ---------------------------------------------------------------------------------------------------- */
enum { GROUP_SPANS = 8 * LEASE_SPANS_MAX };

/* Leases on exactly these stretches of one epoch become parts of the record. */
static void group_lease(struct hub *h, struct record_stage *g, const struct hub_span *s,
                        uint32_t count, uint32_t epoch) {
    AUTO_SET struct set take = {0}, own = {0}, rest = {0};
    set_of_spans(s, count, epoch, &take);
    if (take.count == 0) return;
    set_of_parent(h, epoch, &own);
    set_minus(&own, &take, &rest);
    parent_free(h, epoch);
    for (size_t at = 0; at < take.count; at += LEASE_SPANS_MAX) {
        size_t n = take.count - at < LEASE_SPANS_MAX ? take.count - at : LEASE_SPANS_MAX;
        const struct lease *a = parent_grant(h, epoch, take.v + at, n);
        CHECK(g->parts_count < WIRE_PARTS_MAX);
        g->parts[g->parts_count++] = (struct wire_part){a->tok, a->nonce, a->count};
    }
    parent_give(h, epoch, &rest); /* N1 */
}

static void group_stage(struct hub *h, const struct hub_cmd *c, const struct hub_span *s,
                        uint32_t count, uint32_t number) {
    AUTO_FREE struct record_stage *g = mem_alloc(1, sizeof *g);
    uint32_t last = UINT32_MAX;
    uint64_t done = 0;
    g->did = c->u.take_in.did;
    put_le32(g->did.v + 12, get_le32(g->did.v + 12) + number);
    g->site = h->parent_site;
    g->inc = h->sites[h->parent_site].inc;
    g->base = h->versions[h->head].v.version;
    g->steps = 1;
    g->codec = CODEC_FP32;
    for (uint32_t i = 0; i < count; i++) {
        if (s[i].epoch != last) group_lease(h, g, s, count, s[i].epoch);
        last = s[i].epoch;
        done += s[i].range.count;
        for (uint64_t k = 0; s[i].skip && k < s[i].range.count; k++) {
            struct record_skip *x = &g->skips[g->skips_count++];
            x->epoch = s[i].epoch;
            x->position = s[i].range.start + k;
            hub_text_copy(x->reason, sizeof x->reason,
                          ledger_reason_fit(h->ledger, "at the parent"));
        }
    }
    g->tokens = (done - g->skips_count) * h->s.seq_len;
    struct hub_record *r = hub_draft(h, RECORD_STAGE);
    r->u.stage = *g;
    hub_emit(h, r);
}

/* In contributions of bounded size: so many stretches, so many skips. spans are in order of epochs. */
static void stage_all(struct hub *h, const struct hub_cmd *c) {
    const struct hub_span *s = c->u.take_in.spans;
    AUTO_FREE struct hub_span *group = mem_alloc(GROUP_SPANS, sizeof *group);
    uint32_t n = 0, number = 0;
    uint64_t skips = 0;
    for (uint32_t i = 0; i < c->u.take_in.count; i++) {
        struct hub_span left = s[i];
        while (left.range.count > 0) {
            uint32_t epochs = n > 0 && group[n - 1].epoch != left.epoch;
            if (n == GROUP_SPANS - 1 || skips == WIRE_SKIPS_MAX || epochs) {
                group_stage(h, c, group, n, number++);
                n = 0;
                skips = 0;
            }
            struct hub_span x = left;
            if (x.skip && x.range.count > WIRE_SKIPS_MAX - skips)
                x.range.count = WIRE_SKIPS_MAX - skips;
            if (x.skip) skips += x.range.count;
            group[n++] = x;
            left.range.start += x.range.count;
            left.range.count -= x.range.count;
        }
    }
    if (n > 0) group_stage(h, c, group, n, number);
}

static bool all_of_parent(const struct hub *h, const struct hub_span *s, uint32_t count) {
    for (uint32_t e = 0; e < h->s.epochs; e++) {
        AUTO_SET struct set want = {0}, own = {0};
        set_of_spans(s, count, e, &want);
        if (want.count == 0) continue;
        set_of_parent(h, e, &own);
        if (!set_within(&want, &own)) return false;
    }
    return true;
}

void hub_cmd_take_in(struct hub *h, const struct hub_cmd *c) {
    const struct hub_span *s = c->u.take_in.spans;
    uint32_t count = c->u.take_in.count;
    const char *why = NULL;
    if (!h->started || h->parent_site == 0)
        why = "this hub is no region";
    else if (h->merge && !MUTANT(REGION_TAKES_DURING_MERGE))
        why = "a merge is under way"; /* N2: its result would not have it */
    else if (h->held || h->taking.bytes > 0)
        why = "the hub holds, or takes a version in already";
    else if (c->u.take_in.from != h->versions[h->head].taken ||
             c->u.take_in.version <= c->u.take_in.from || c->u.take_in.bytes == 0)
        why = "the head has taken another version in";
    else if (!spans_fine(h, s, count) || !all_of_parent(h, s, count))
        why = "positions that are not the parent's";
    hub_operator_answer(h, why == NULL, why);
    if (why) return;
    for (uint32_t i = 0; i < count; i++) epoch_open(h, s[i].epoch);
    struct hub_record *r = hub_draft(h, RECORD_PARENT);
    r->u.parent = (struct record_parent){.version = c->u.take_in.version,
                                         .from = c->u.take_in.from,
                                         .blob = c->u.take_in.blob,
                                         .bytes = c->u.take_in.bytes};
    hub_emit(h, r);
    stage_all(h, c);
    hub_note(h, "lvl=info ev=taking_in version=%llu from=%llu stretches=%u",
             (unsigned long long)c->u.take_in.version, (unsigned long long)c->u.take_in.from,
             count);
}

const char *hub_apply_parent(struct hub *h, const struct record_parent *r) {
    if (h->parent_site == 0) return "a version of a parent where there is none";
    if (r->from != h->versions[h->head].taken) return "a version that does not follow the last one";
    if ((r->bytes > 0) == (h->taking.bytes > 0)) return "two versions for one merge, or none";
    h->taking = *r;
    return NULL;
}

/* It cannot be used: the positions that came with it go back to the parent. */
void hub_region_withdraw(struct hub *h, const char *why) {
    const struct delta *d = ledger_staged_first(h->ledger);
    if (h->taking.bytes == 0) return;
    while (d) {
        const struct delta *x = d;
        d = d->list_next;
        if (x->site != h->parent_site || MUTANT(REGION_WITHDRAWS_HALF)) continue;
        struct hub_record *r = hub_draft(h, RECORD_DISCARD);
        r->u.discard.did = x->did;
        hub_text_copy(r->u.discard.reason, sizeof r->u.discard.reason, why);
        hub_emit(h, r);
    }
    struct hub_record *r = hub_draft(h, RECORD_PARENT);
    r->u.parent.version = r->u.parent.from = h->versions[h->head].taken;
    hub_emit(h, r);
    /* What is held is told anew by the next HOLD; until then nothing is given. */
    hub_region_hold(h, NULL, 0); /* N1 */
}

/* ---- In a plan ---------------------------------------------------------------------------------------------------- */
/* To a version in between there would be work of the region in its weights that has gone up with work that is void, and
 * would come down as the parent's once more. */
bool hub_region_may_return(const struct hub *h, uint64_t version) {
    return h->parent_site == 0 || MUTANT(REGION_GOES_BACK) || version == h->versions[0].v.version ||
           version == h->versions[h->head].v.version;
}

bool hub_region_part(const struct hub_plan_part *p) {
    return p->part.site == UINT32_MAX;
}

void hub_region_plan(const struct hub *h, struct hub_merge *m) {
    if (h->taking.bytes == 0 || MUTANT(REGION_LEAVES_OUT)) return;
    struct outer_params *p = &m->plan.params;
    if (!(p->eta_r > 0)) p->eta_r = 1; /* nobody else contributes */
    m->plan.parts[m->plan.parts_count++] = (struct hub_plan_part){
        .part = {.site = UINT32_MAX, .tokens = 1, .late = 1}, /* outside the momentum */
        .blob = h->taking.blob,
        .base = h->versions[h->head].v.version,
        .bytes = h->taking.bytes,
        .weight = 1 / p->eta_r};
}

/* ---- Snapshot ------------------------------------------------------------------------------------------------------ */
void hub_region_put(const struct hub *h, struct buf *out) {
    buf_u64(out, h->taking.version);
    buf_u64(out, h->taking.from);
    buf_put(out, h->taking.blob.v, HASH_BYTES);
    buf_u64(out, h->taking.bytes);
    for (uint32_t i = 0; i < h->versions_count; i++) {
        buf_u64(out, h->versions[i].taken);
        buf_put(out, h->versions[i].taken_blob.v, HASH_BYTES);
    }
}

static bool hash_get(struct reader *r, struct hash *out) {
    const void *p = get_bytes(r, HASH_BYTES);
    if (p) memcpy(out->v, p, HASH_BYTES);
    return p != NULL;
}

bool hub_region_get(struct hub *h, struct reader *r) {
    h->taking.version = get_u64(r);
    h->taking.from = get_u64(r);
    if (!hash_get(r, &h->taking.blob)) return false;
    h->taking.bytes = get_u64(r);
    for (uint32_t i = 0; i < h->versions_count; i++) {
        h->versions[i].taken = get_u64(r);
        if (!hash_get(r, &h->versions[i].taken_blob)) return false;
    }
    return r->ok;
}

/* ---- Reading -------------------------------------------------------------------------------------------------------- */
void hub_region(const struct hub *h, uint64_t since, struct hub_region_view *out) {
    memset(out, 0, sizeof *out);
    if (!h->opened) return;
    const struct hub_version *head = &h->versions[h->head];
    out->is = h->parent_site > 0;
    out->head = head->v.version;
    out->root = h->versions[0].v.version;
    out->tokens = head->v.tokens;
    out->taken = head->taken;
    out->checkpoint = head->v.checkpoint;
    out->theta = head->v.theta;
    out->taking = h->taking.bytes > 0;
    out->merging = h->merge != NULL;
    for (const struct hub_version *v = head; v && v->v.version > since;
         v = hub_version_of(h, v->v.parent)) {
        if (v->v.parts > 0) {
            out->versions++;
            out->loss_sum += v->v.loss;
        }
        if (v->v.version == out->root) break;
    }
}

uint32_t hub_seq_len(const struct hub *h) {
    return h->s.seq_len;
}

bool hub_on_branch(const struct hub *h, uint64_t version) {
    const struct hub_version *v = hub_version_of(h, version);
    return v && v->on_branch;
}

void hub_span_counts(const struct hub *h, const struct hub_span *s, uint32_t count,
                     struct hub_counts *out) {
    uint64_t *const n[] = {&out->available, &out->leased,  &out->staged,
                           &out->merged,    &out->skipped, &out->quarantined};
    memset(out, 0, sizeof *out);
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++) {
        AUTO_SET struct set want = {0};
        set_of_spans(s, count, e, &want);
        for (unsigned k = 0; want.count > 0 && k < EXTENT_STATES; k++) {
            AUTO_SET struct set in = {0}, both = {0};
            set_of(h->ledger, e, 1U << k, &in);
            set_both(&want, &in, &both);
            for (size_t i = 0; i < both.count; i++) *n[k] += both.v[i].count;
        }
    }
}

void hub_span_skips(const struct hub *h, const struct hub_span *s, uint32_t count,
                    void (*visit)(void *user, const struct hub_span *s), void *user) {
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++) {
        AUTO_SET struct set want = {0}, in = {0}, both = {0};
        set_of_spans(s, count, e, &want);
        if (want.count == 0) continue;
        set_of(h->ledger, e, 1U << EXTENT_SKIPPED, &in);
        set_both(&want, &in, &both);
        for (size_t i = 0; i < both.count; i++) {
            struct hub_span x = {e, true, {both.v[i].start, both.v[i].count}};
            visit(user, &x);
        }
    }
}

static void spans_put(struct hub_span **v, uint32_t *count, uint32_t epoch, bool skip,
                      const struct set *s) {
    if (s->count == 0) return;
    *v = mem_grow(*v, *count, *count + s->count, sizeof **v);
    for (size_t i = 0; i < s->count; i++)
        (*v)[(*count)++] = (struct hub_span){epoch, skip, {s->v[i].start, s->v[i].count}};
}

bool hub_region_others(const struct hub *h, const struct ledger *at_parent,
                       const struct hub_span *own, uint32_t own_count, struct hub_span **out,
                       uint32_t *out_count) {
    uint32_t here = ledger_epochs(h->ledger), there = ledger_epochs(at_parent);
    bool fits = true;
    *out = NULL;
    *out_count = 0;
    for (uint32_t e = 0; e < here || e < there; e++) {
        AUTO_SET struct set merged = {0}, skipped = {0}, done = {0}, known = {0}, theirs = {0};
        AUTO_SET struct set may = {0}, mine = {0}, new_merged = {0}, new_skipped = {0};
        set_of(at_parent, e, 1U << EXTENT_MERGED, &merged);
        set_of(at_parent, e, 1U << EXTENT_SKIPPED, &skipped);
        set_of(at_parent, e, DONE_STATES, &done);
        set_of(h->ledger, e, DONE_STATES, &known);
        set_of_parent(h, e, &theirs);
        /* Done there: it was done here too, or is in the parent's hands. */
        for (size_t i = 0; i < known.count; i++) set_add(&may, known.v[i].start, known.v[i].count);
        for (size_t i = 0; i < theirs.count; i++)
            set_add(&may, theirs.v[i].start, theirs.v[i].count);
        set_tidy(&may);
        fits = fits && set_within(&done, &may);
        /* Done here: it is done there too, or waits for that. */
        for (size_t i = 0; i < done.count; i++) set_add(&mine, done.v[i].start, done.v[i].count);
        for (uint32_t i = 0; i < own_count; i++)
            if (own[i].epoch == e) set_add(&mine, own[i].range.start, own[i].range.count);
        set_tidy(&mine);
        fits = fits && set_within(&known, &mine);
        set_both(&merged, &theirs, &new_merged);
        set_both(&skipped, &theirs, &new_skipped);
        spans_put(out, out_count, e, false, &new_merged);
        spans_put(out, out_count, e, true, &new_skipped);
    }
    if (fits) return true;
    mem_free(*out);
    *out = NULL;
    *out_count = 0;
    return false;
}
