/* SPDX-License-Identifier: Apache-2.0 */
/* apply.c - one record, one change of the durable state.
 *
 * hub_step runs every record that it decides through hub_apply, from its encoded bytes, and so does
 * replay: there is no second way to change the state, hence the same journal gives the same state
 * (H1).
 * A record may come from a damaged or a foreign journal, so everything it relies on is looked at
 * first; a record that does not fit is E_JOURNAL and says which condition failed. Records of our
 * own always fit: that is a CHECK in hub_emit.
 *
 * Times are not part of it: deadlines, speeds and readiness are set by the deciding side
 * afterwards.
 *
 * Invariants
 *   (H1) durable state is a function of the records alone.
 *   (H2) incarnations, terms, toks and version numbers only grow.
 *   (H3) the head's tokens are its MERGED positions times seq_len (I5 seen from the model's side).
 *   */
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- Rows
 * --------------------------------------------------------------------------------------- */

struct hub_version *hub_version_of(const struct hub *h, uint64_t version) {
    uint32_t low = 0, high = h->versions_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (h->versions[mid].v.version == version) return &h->versions[mid];
        if (h->versions[mid].v.version < version)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

struct hub_version *hub_version_add(struct hub *h) {
    if (h->versions_count == h->versions_cap) {
        uint32_t cap = h->versions_cap ? h->versions_cap * 2 : 4;
        h->versions = mem_grow(h->versions, h->versions_cap, cap, sizeof *h->versions);
        h->versions_cap = cap;
    }
    return &h->versions[h->versions_count++];
}

struct hub_site *hub_site_add(struct hub *h) {
    if (h->sites_count + 1 >= h->sites_cap) {
        uint32_t cap = h->sites_cap ? h->sites_cap * 2 : 4;
        h->sites = mem_grow(h->sites, h->sites_cap, cap, sizeof *h->sites);
        h->sites_cap = cap;
    }
    return &h->sites[++h->sites_count];
}

static uint32_t name_slot(const struct hub *h, const char *name) {
    uint64_t key = 14695981039346656037U; /* FNV-1a */
    for (const char *p = name; *p; p++) key = (key ^ (uint8_t)*p) * 1099511628211U;
    uint32_t i = (uint32_t)(mix64(key) & (h->names_cap - 1));
    while (h->names[i] != 0 && strcmp(h->sites[h->names[i]].name, name) != 0)
        i = (i + 1) & (h->names_cap - 1);
    return i;
}

/* At most half full: short searches. */
void hub_site_index(struct hub *h, uint32_t number) {
    if (number * 2 <= h->names_cap) {
        h->names[name_slot(h, h->sites[number].name)] = number;
        return;
    }
    mem_free(h->names);
    h->names_cap = h->names_cap ? h->names_cap * 2 : 16;
    h->names = mem_alloc(h->names_cap, sizeof *h->names);
    for (uint32_t i = 1; i <= number; i++) h->names[name_slot(h, h->sites[i].name)] = i;
}

struct hub_site *hub_site_named(const struct hub *h, const char *name, uint32_t *out_number) {
    uint32_t number = h->names_cap ? h->names[name_slot(h, name)] : 0;
    if (number == 0) return NULL;
    *out_number = number;
    return &h->sites[number];
}

static struct hub_site *member(const struct hub *h, uint32_t site, uint32_t inc) {
    if (site == 0 || site > h->sites_count) return NULL;
    struct hub_site *s = &h->sites[site];
    return s->joined && s->inc == inc ? s : NULL;
}

/* ---- The run
 * ------------------------------------------------------------------------------------ */

const char *hub_opening_misfit(const struct hub *h, const struct record_open *r) {
    const struct hub_settings *s = &h->s;
    if (h->opened) return "a second opening record";
    if (!id_equal(&r->run, &s->run)) return "the journal belongs to another run";
    if (!hash_equal(&r->fingerprint, &s->fingerprint)) return "the journal belongs to other data";
    if (!hash_equal(&r->tensors, &s->tensors)) return "the journal belongs to another model";
    if (r->parameters != s->parameters || r->positions != s->positions ||
        r->seq_len != s->seq_len || r->epochs != s->epochs || r->order_seed != s->order_seed)
        return "the run's settings differ from those it was opened with";
    return NULL;
}

static const char *apply_open(struct hub *h, const struct record_open *r, time_ns wall) {
    const char *wrong = hub_opening_misfit(h, r);
    if (wrong) return wrong;
    struct hub_version *v = hub_version_add(h);
    v->v.checkpoint = r->checkpoint;
    v->v.theta = r->theta;
    v->v.bytes = r->checkpoint_bytes;
    v->v.wall = wall;
    v->on_branch = true;
    h->versions_next = 1;
    h->opened = true;
    return NULL;
}

static const char *apply_term(struct hub *h, const struct record_term *r) {
    if (r->term <= h->term && !MUTANT(TERM_NOT_RAISED)) return "a term that does not grow"; /* H2 */
    h->term = r->term;
    h->tok_n = 0;
    return NULL;
}

static const char *apply_epoch(struct hub *h, const struct record_epoch *r) {
    if (r->positions != h->s.positions) return "an epoch of another length";
    enum lease_fault f = ledger_epoch_open(h->ledger, r->epoch);
    return f == LEASE_FINE ? NULL : lease_fault_text(f);
}

/* ---- Members
 * ------------------------------------------------------------------------------------ */

static const char *fence(struct hub *h, uint64_t tok, uint32_t crashes_max) {
    const struct lease *a = ledger_lease_find(h->ledger, tok);
    uint64_t quarantined, count = a ? a->count : 0;
    enum lease_fault f = ledger_free(h->ledger, tok, true, crashes_max, &quarantined);
    if (f != LEASE_FINE) return lease_fault_text(f);
    h->reclaimed++;
    h->samples_reclaimed += count;
    return NULL;
}

static bool toks_are_all_of(const struct hub *h, uint32_t site, const uint64_t *a, uint32_t a_count,
                            const uint64_t *b, uint32_t b_count) {
    if (ledger_site_leases(h->ledger, site) != a_count + b_count) return false;
    for (const struct lease *l = ledger_site_first(h->ledger, site); l; l = l->site_next) {
        uint32_t hits = 0;
        for (uint32_t i = 0; i < a_count; i++) hits += a[i] == l->tok;
        for (uint32_t i = 0; i < b_count; i++) hits += b[i] == l->tok;
        if (hits != 1) return false;
    }
    return true;
}

static void boot_remember(struct hub_site *s) {
    if (s->boots_old_count == HUB_BOOTS_KEPT) {
        memmove(s->boots_old, s->boots_old + 1, (HUB_BOOTS_KEPT - 1) * sizeof *s->boots_old);
        s->boots_old_count--;
    }
    s->boots_old[s->boots_old_count++] = s->boot;
}

static const char *apply_join(struct hub *h, const struct record_join *r) {
    uint32_t number = 0;
    struct hub_site *s = hub_site_named(h, r->name, &number);
    bool parent = strcmp(r->name, HUB_PARENT) == 0;
    if (!parent && !wire_name_valid(r->name)) return "a site name that is not valid";
    if (s ? number != r->site : r->site != h->sites_count + 1)
        return "a site number that does not fit";
    if (r->inc != (s ? s->inc : h->inc_floor) + 1)
        return "an incarnation that is not the next one"; /* H2 */
    if (!toks_are_all_of(h, r->site, r->kept, r->kept_count, r->fenced, r->fenced_count))
        return "leases that are not exactly the site's";
    if (!s) {
        s = hub_site_add(h);
        memcpy(s->name, r->name, sizeof s->name);
        hub_site_index(h, h->sites_count);
        if (parent) h->parent_site = h->sites_count;
    } else if (!id_equal(&s->boot, &r->boot)) {
        boot_remember(s);
    }
    s->inc = r->inc;
    s->boot = r->boot;
    s->joined = true;
    s->req_last = 0;
    if (r->kept_count == 0) s->norms = (struct outer_norms){0}; /* its optimizer may begin cold */
    for (uint32_t i = 0; i < r->kept_count; i++) {
        enum lease_fault f = ledger_keep(h->ledger, r->kept[i], r->inc);
        if (f != LEASE_FINE) return lease_fault_text(f);
    }
    for (uint32_t i = 0; i < r->fenced_count; i++) {
        const char *wrong = fence(h, r->fenced[i], r->crashes_max);
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *apply_leave(struct hub *h, const struct record_leave *r) {
    struct hub_site *s = member(h, r->site, r->inc);
    if (!s) return "a site that is no member";
    for (uint32_t i = 0; i < r->toks_count; i++) {
        uint64_t quarantined;
        const struct lease *a = ledger_lease_find(h->ledger, r->toks[i]);
        if (!a || a->site != r->site) return "a lease that is not the site's";
        enum lease_fault f = ledger_free(h->ledger, r->toks[i], false, 0, &quarantined);
        if (f != LEASE_FINE) return lease_fault_text(f);
        h->returned++;
    }
    s->joined = false;
    h->departures++;
    return NULL;
}

static const char *apply_hold(struct hub *h, const struct record_hold *r) {
    if (r->site > h->sites_count) return "a site number that does not fit";
    h->held = !MUTANT(HOLD_IGNORED);
    if (r->version_seen > h->held_version) h->held_version = r->version_seen;
    if (r->term_seen > h->held_term) h->held_term = r->term_seen;
    return NULL;
}

/* ---- Leases
 * ------------------------------------------------------------------------------------- */

static const char *apply_grant(struct hub *h, const struct record_grant *r) {
    struct hub_site *s = member(h, r->site, r->inc);
    if (!s) return "a site that is no member";
    if (h->held) return "a grant while holding";
    if (r->tok != hub_tok_next(h)) return "a lease number that is not the next one"; /* H2 */
    if (r->site != h->parent_site && ledger_site_leases(h->ledger, r->site) >= WIRE_LEASES_MAX)
        return "too many leases of a site";
    struct lease_span spans[LEASE_SPANS_MAX];
    struct lease_grant g = {.tok = r->tok,
                            .nonce = r->nonce,
                            .req = r->req,
                            .site = r->site,
                            .inc = r->inc,
                            .epoch = r->epoch,
                            .spans_count = r->ranges_count,
                            .spans = spans};
    for (uint32_t i = 0; i < r->ranges_count; i++) {
        spans[i] = (struct lease_span){r->ranges[i].start, r->ranges[i].count};
        if (r->ranges[i].count > h->s.positions) return lease_fault_text(LEASE_BAD_SPAN);
    }
    enum lease_fault f = ledger_grant(h->ledger, &g);
    if (f != LEASE_FINE) return lease_fault_text(f);
    h->tok_n++;
    if (r->req > s->req_last) s->req_last = r->req;
    h->grants++;
    h->samples_granted += ledger_lease_find(h->ledger, r->tok)->count;
    return NULL;
}

static const char *apply_reclaim(struct hub *h, const struct record_reclaim *r) {
    if (r->reason == RECLAIM_SHRUNK) {
        enum lease_fault f = ledger_shrink(h->ledger, r->tok, r->keep);
        return f == LEASE_FINE ? NULL : lease_fault_text(f);
    }
    if (r->reason == RECLAIM_LAPSED) return fence(h, r->tok, r->crashes_max);
    uint64_t quarantined;
    enum lease_fault f = ledger_free(h->ledger, r->tok, false, 0, &quarantined);
    if (f != LEASE_FINE) return lease_fault_text(f);
    h->returned++;
    return NULL;
}

static const char *apply_quarantine(struct hub *h, const struct record_quarantine *r) {
    enum lease_fault f = ledger_decide(h->ledger, r->epoch,
                                       (struct lease_span){r->range.start, r->range.count}, r->skip,
                                       r->reason);
    return f == LEASE_FINE ? NULL : lease_fault_text(f);
}

/* ---- Contributions
 * ------------------------------------------------------------------------------ */

static bool stage_tokens_fit(const struct hub *h, const struct record_stage *r) {
    uint64_t done = 0;
    for (uint32_t i = 0; i < r->parts_count; i++) done += r->parts[i].done;
    return done >= r->skips_count && r->tokens == (done - r->skips_count) * h->s.seq_len;
}

static const char *apply_stage(struct hub *h, const struct record_stage *r) {
    struct hub_site *s = member(h, r->site, r->inc);
    if (!s) return "a site that is no member";
    if (h->held) return "a contribution while holding";
    const struct hub_version *base = hub_version_of(h, r->base);
    if (!base || !base->on_branch) return "a base that is not on the branch";
    if (r->has_rest && r->rest_tok != hub_tok_next(h))
        return "a lease number that is not the next one";
    struct lease_part parts[LEASE_PARTS_MAX];
    struct lease_skip skips[LEASE_SKIPS_MAX];
    struct lease_stage g = {.did = r->did,
                            .blob = r->blob,
                            .manifest = hub_manifest_hash(r),
                            .site = r->site,
                            .inc = r->inc,
                            .info = {.base = r->base,
                                     .tokens = r->tokens,
                                     .steps = r->steps,
                                     .elements = r->elements,
                                     .bytes = r->bytes,
                                     .lr_sum = r->lr_sum,
                                     .loss = r->loss,
                                     .norm = r->norm,
                                     .max_abs = r->max_abs,
                                     .cos_m = r->cos_m,
                                     .codec = r->codec},
                            .parts_count = r->parts_count,
                            .skips_count = r->skips_count,
                            .parts = parts,
                            .skips = skips,
                            .has_rest = r->has_rest,
                            .rest_tok = r->rest_tok,
                            .rest_nonce = r->rest_nonce};
    for (uint32_t i = 0; i < r->parts_count; i++)
        parts[i] = (struct lease_part){r->parts[i].tok, r->parts[i].nonce, r->parts[i].done};
    for (uint32_t i = 0; i < r->skips_count; i++) {
        skips[i] =
            (struct lease_skip){.epoch = r->skips[i].epoch, .position = r->skips[i].position};
        memcpy(skips[i].reason, r->skips[i].reason, sizeof skips[i].reason);
    }
    enum lease_fault f = ledger_stage(h->ledger, &g);
    if (f != LEASE_FINE) return lease_fault_text(f);
    if (!stage_tokens_fit(h, r)) return "tokens that do not follow from the manifest"; /* H3 */
    if (r->has_rest) h->tok_n++;
    s->contributions++;
    if (r->tokens > 0) {
        s->last_tokens = r->tokens;
        s->last_steps = r->steps;
        if (r->codec != CODEC_GRADIENT)
            outer_norms_add(&s->norms, r->norm, r->lr_sum, (double)r->steps);
    }
    return NULL;
}

static const char *apply_reject(struct hub *h, const struct record_reject *r) {
    struct hub_site *s = member(h, r->site, r->inc);
    if (!s) return "a site that is no member";
    if (h->held) return "a contribution while holding";
    struct lease_reject g = {.did = r->did,
                             .blob = r->blob,
                             .manifest = r->manifest,
                             .site = r->site,
                             .inc = r->inc,
                             .freed_count = r->freed_count,
                             .freed = r->freed,
                             .reason = r->reason};
    enum lease_fault f = ledger_reject(h->ledger, &g);
    if (f != LEASE_FINE) return lease_fault_text(f);
    s->rejected++;
    h->rejected++;
    return NULL;
}

static const char *apply_discard(struct hub *h, const struct record_discard *r) {
    enum lease_fault f = ledger_discard(h->ledger, &r->did, r->reason);
    if (f != LEASE_FINE) return lease_fault_text(f);
    h->discarded++;
    return NULL;
}

/* ---- Versions
 * ----------------------------------------------------------------------------------- */

/* What the version's row says about its contributions; NULL where one is not staged. */
static const char *merge_sum(struct hub *h, const struct record_merge *r, struct hub_version *out) {
    double tokens = 0, loss = 0, norm = 0, cos = 0;
    uint32_t last_site = 0, fresh_site = 0, fresh = 0;
    const struct delta *before = NULL;
    for (uint32_t i = 0; i < r->parts_count; i++) {
        const struct delta *d = ledger_delta_find(h->ledger, &r->parts[i].did);
        if (!d || d->state != DELTA_STAGED) return lease_fault_text(LEASE_BAD_DELTA);
        if (before && (before->site > d->site ||
                       (before->site == d->site && memcmp(before->did.v, d->did.v, ID_BYTES) >= 0)))
            return "contributions that are not sorted";
        before = d;
        const struct delta_info *info = &d->live->info;
        out->v.tokens += info->tokens;
        if (info->tokens == 0 || d->site == h->parent_site) continue;
        out->v.parts++;
        if (d->site != last_site) out->v.sites++;
        last_site = d->site;
        if (!r->parts[i].late && d->site != fresh_site) {
            fresh_site = d->site;
            fresh++;
        }
        double n = (double)info->tokens;
        tokens += n;
        loss += n * info->loss;
        norm += n * info->norm;
        cos += n * info->cos_m;
    }
    out->only_site = out->v.sites == 1 ? last_site : 0;
    const struct outer_params scalars = {.kappa_r = r->kappa_r, .phi = r->phi};
    out->past = outer_past_after(&h->versions[h->head].past, &scalars, fresh);
    CHECK(h->sync.step == 0 || h->sync.version == r->version); /* H23 */
    out->past.adamw = h->sync.step + (MUTANT(SYNC_TWICE) && !h->out && h->sync.step > 0);
    if (h->sync.step > 0) out->past.arrivals = 0;
    if (tokens <= 0) out->past.adamw = h->versions[h->head].past.adamw; /* skips move nothing */
    if (tokens > 0) {
        out->v.loss = loss / tokens;
        out->v.norm = norm / tokens;
        out->v.cos_mean = cos / tokens;
    }
    return NULL;
}

static const char *apply_merge(struct hub *h, const struct record_merge *r, time_ns wall) {
    if (h->held) return "a merge while holding";
    if (r->version != h->versions_next) return "a version that is not the next one"; /* H2 */
    if (r->parent != h->versions[h->head].v.version)
        return "a version that does not follow the head";
    bool takes = h->taking.bytes > 0;
    if (r->parts_count == 0 && !takes) return "a version of nothing";
    struct hub_version v = {.v = {.version = r->version,
                                  .parent = r->parent,
                                  .bytes = r->checkpoint_bytes,
                                  .checkpoint = r->checkpoint,
                                  .theta = r->theta,
                                  .wall = wall,
                                  .eta_r = r->eta_r,
                                  .mu_r = r->mu_r,
                                  .kappa_r = r->kappa_r},
                            .on_branch = true,
                            .taken = takes ? h->taking.version : h->versions[h->head].taken};
    if (takes) v.taken_blob = h->taking.blob;
    const char *wrong = merge_sum(h, r, &v);
    if (wrong) return wrong;
    bool told = h->step.version > 0;
    CHECK(!told || h->step.version == r->version); /* H22 */
    if (told) {
        v.v.cos_sites = h->step.cos_mean;
        v.v.radial = h->step.radial;
        v.v.has_ema = h->step.keeps_ema;
    }
    for (uint32_t i = 0; told && i < h->step.sites_count; i++)
        h->sites[h->step.sites[i].site].cos_others = h->step.sites[i].cos;
    v.v.tokens += h->versions[h->head].v.tokens;
    if (v.v.tokens != r->tokens_after) return "tokens that do not add up"; /* H3 */
    AUTO_FREE struct id128 *dids = mem_alloc((size_t)r->parts_count + 1, sizeof *dids);
    for (uint32_t i = 0; i < r->parts_count; i++) {
        const struct delta *d = ledger_delta_find(h->ledger, &r->parts[i].did);
        dids[i] = r->parts[i].did;
        h->sites[d->site].merged++;
        h->sites[d->site].tokens_merged += d->live->info.tokens;
    }
    enum lease_fault f =
        r->parts_count > 0 ? ledger_merge(h->ledger, r->version, dids, r->parts_count) : LEASE_FINE;
    if (f != LEASE_FINE) return lease_fault_text(f);
    *hub_version_add(h) = v;
    h->head = h->versions_count - 1; /* head and ledger in one record (I5, I6) */
    h->versions_next = r->version + 1;
    if (!MUTANT(REGION_TAKES_TWICE)) memset(&h->taking, 0, sizeof h->taking);
    return NULL;
}

static const char *apply_seal(struct hub *h, const struct record_seal *r) {
    if (r->merged != ledger_count(h->ledger, r->epoch, EXTENT_MERGED) ||
        r->skipped != ledger_count(h->ledger, r->epoch, EXTENT_SKIPPED))
        return "counts that differ from the ledger";
    struct hash digest;
    enum lease_fault f = ledger_seal(h->ledger, r->epoch, &digest);
    if (f != LEASE_FINE) return lease_fault_text(f);
    return hash_equal(&digest, &r->digest) ? NULL : "a digest that differs from the ledger";
}

static const char *apply_rollback(struct hub *h, const struct record_rollback *r) {
    struct hub_version *to = hub_version_of(h, r->version);
    if (!to || !to->on_branch) return "a version that is not on the branch";
    if (r->versions_next < h->versions_next || r->term < h->term)
        return "numbers that go back"; /* H2 */
    uint32_t staged = ledger_deltas_staged(h->ledger);
    h->reclaimed += ledger_leases(h->ledger);
    for (uint32_t s = 1; s <= h->sites_count; s++)
        for (const struct lease *a = ledger_site_first(h->ledger, s); a; a = a->site_next)
            h->samples_reclaimed += a->count;
    ledger_rollback(h->ledger, r->version);
    h->discarded += staged;
    for (uint32_t i = 0; i < h->versions_count; i++)
        if (h->versions[i].v.version > r->version) h->versions[i].on_branch = false;
    h->head = (uint32_t)(to - h->versions);
    bool branched = h->held || r->versions_next > h->versions_next;
    h->versions_next = r->versions_next;
    if (r->term > h->term) {
        h->term = r->term;
        h->tok_n = 0;
    }
    /* Who was cut off has seen versions of these numbers with other weights: that was decided now. */
    if (branched) h->foreign_below = r->versions_next;
    h->held = false;
    memset(&h->taking, 0, sizeof h->taking);
    return NULL;
}

/* ---- Face
 * --------------------------------------------------------------------------------------- */

static const char *apply(struct hub *h, const struct hub_record *r) {
    switch ((enum record_kind)r->kind) {
    case RECORD_OPEN: return apply_open(h, &r->u.open, r->wall);
    case RECORD_TERM: return apply_term(h, &r->u.term);
    case RECORD_DOWN: h->down = r->u.down.codec; return NULL;
    case RECORD_JOIN: return apply_join(h, &r->u.join);
    case RECORD_EPOCH: return apply_epoch(h, &r->u.epoch);
    case RECORD_GRANT: return apply_grant(h, &r->u.grant);
    case RECORD_RECLAIM: return apply_reclaim(h, &r->u.reclaim);
    case RECORD_STAGE: return apply_stage(h, &r->u.stage);
    case RECORD_REJECT: return apply_reject(h, &r->u.reject);
    case RECORD_DISCARD: return apply_discard(h, &r->u.discard);
    case RECORD_MERGE: return apply_merge(h, &r->u.merge, r->wall);
    case RECORD_STEP: return hub_apply_step(h, &r->u.step);
    case RECORD_EVAL: return hub_apply_eval(h, &r->u.eval);
    case RECORD_SYNC: return hub_apply_sync(h, &r->u.sync);
    case RECORD_PARENT: return hub_apply_parent(h, &r->u.parent);
    case RECORD_SEAL: return apply_seal(h, &r->u.seal);
    case RECORD_LEAVE: return apply_leave(h, &r->u.leave);
    case RECORD_ROLLBACK: return apply_rollback(h, &r->u.rollback);
    case RECORD_QUARANTINE: return apply_quarantine(h, &r->u.quarantine);
    case RECORD_HOLD: return apply_hold(h, &r->u.hold);
    case RECORD_REBUILD: return hub_apply_rebuild(h, &r->u.rebuild, r->wall);
    case RECORD_LEDGER: return hub_apply_ledger(h, &r->u.ledger);
    case RECORD_REPORT: return hub_apply_report(h, &r->u.report);
    case RECORD_ORDER: return hub_apply_order(h, &r->u.order);
    }
    return "a kind that is not known";
}

enum brg_status hub_apply(struct hub *h, uint64_t seq, uint16_t kind, const void *body, size_t n,
                          struct err *e) {
    if (seq != h->seq + 1)
        return err_set(e, BRG_E_JOURNAL,
                       "record %llu is missing from the journal; restore it from a backup",
                       (unsigned long long)(h->seq + 1));
    struct hub_record r;
    if (MUTANT(REPLAY_SKIPS_DISCARD) && kind == RECORD_DISCARD && !h->out) {
        h->seq = seq;
        return BRG_OK;
    }
    if (hub_record_decode(kind, body, n, &r, e) != BRG_OK)
        return err_prefix(e, "record %llu", (unsigned long long)seq);
    bool opens = kind == RECORD_OPEN || kind == RECORD_REBUILD;
    const char *wrong = !opens && !h->opened ? "a record before the opening one"
                        : kind != RECORD_LEDGER && h->import_bytes > 0
                            ? "a record before the ledger is whole"
                            : apply(h, &r);
    if (kind != RECORD_STEP) h->step.version = 0; /* it speaks of the next record alone */
    if (kind != RECORD_STEP && kind != RECORD_SYNC) h->sync = (struct record_sync){0};
    hub_record_fini(&r);
    if (wrong)
        return err_set(e, BRG_E_JOURNAL,
                       "record %llu (%s) does not fit: %s; the journal is damaged or of "
                       "another run, restore it from a backup",
                       (unsigned long long)seq, record_kind_name(kind), wrong);
    h->seq = seq;
    return BRG_OK;
}
