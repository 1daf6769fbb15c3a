/* SPDX-License-Identifier: Apache-2.0 */
/* audit_walk.c - each kind of record: its bytes, its conditions, its effect, in the order of
 * docs/journal.md, section 3. A condition that does not hold is a finding; the effect is then applied as
 * far as it makes sense, so that one fault is told once and not a thousand times. */
#include <stdio.h>
#include <string.h>

#include "cli/audit.h"

/* ---- Freeing ----------------------------------------------------------------------------------------- */
typedef void run_change(struct audit *a, struct audit_run *r, uint64_t argument);

/* Applies change to the runs of a range that are in a state with this owner; the others are findings. */
static void change_range(struct audit *a, uint32_t epoch, uint64_t start, uint64_t count,
                         enum audit_position state, uint64_t owner, run_change *change,
                         uint64_t argument) {
    size_t first, n = audit_runs_cut(a, epoch, start, count, &first);
    if (n == 0) {
        audit_finding(a, "epoch %u has no positions [%llu, +%llu)", epoch,
                      (unsigned long long)start, (unsigned long long)count);
        return;
    }
    for (size_t i = first; i < first + n; i++) {
        struct audit_run *r = &a->epochs[epoch].runs[i];
        bool right = r->state == state &&
                     (state == POS_AVAILABLE || state == POS_QUARANTINED || r->owner == owner);
        if (right)
            change(a, r, argument);
        else
            audit_finding(a,
                          "epoch %u, positions [%llu, +%llu) are in another state or another hand",
                          epoch, (unsigned long long)r->start, (unsigned long long)r->count);
    }
    audit_runs_join(a, epoch, first, n);
}

static void set_available(struct audit *a, struct audit_run *r, uint64_t unused) {
    (void)a, (void)unused;
    r->state = POS_AVAILABLE;
    r->owner = 0;
    r->reason = 0;
}

static void set_crashed(struct audit *a, struct audit_run *r, uint64_t crashes_max) {
    set_available(a, r, 0);
    if (crashes_max == 0) return;
    if (r->crashes < 255) r->crashes++;
    if (r->crashes >= crashes_max) r->state = POS_QUARANTINED;
}

static void set_leased(struct audit *a, struct audit_run *r, uint64_t tok) {
    (void)a;
    r->state = POS_LEASED;
    r->owner = tok;
}

static void set_staged(struct audit *a, struct audit_run *r, uint64_t delta) {
    (void)a;
    r->state = POS_STAGED;
    r->owner = delta;
}

/* Samples [from, to) of a lease, in the order of its ranges. */
static void change_lease(struct audit *a, const struct audit_lease *l, uint64_t from, uint64_t to,
                         run_change *change, uint64_t argument) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->ranges_count; i++) {
        uint64_t low = at > from ? at : from, end = at + l->ranges[i].count,
                 high = end < to ? end : to;
        if (low < high)
            change_range(a, l->epoch, l->ranges[i].start + (low - at), high - low, POS_LEASED,
                         l->tok, change, argument);
        at = end;
    }
}

/* An ACTIVE lease by its token, or a finding. */
static struct audit_lease *active(struct audit *a, uint64_t tok) {
    struct audit_lease *l = audit_lease_find(a, tok);
    if (l == NULL)
        audit_finding(a, "lease %016llx was never given", (unsigned long long)tok);
    else if (!l->active)
        audit_finding(a, "lease %016llx ended before", (unsigned long long)tok);
    else
        return l;
    return NULL;
}

static void check_member(struct audit *a, uint32_t site, uint32_t inc) {
    if (site == 0 || site > a->sites_count || !a->sites[site - 1].member ||
        a->sites[site - 1].inc != inc)
        audit_finding(a, "site %u with incarnation %u is no member", site, inc);
}

/* From a site that was silent, began anew without it, or saw the run go back. */
static void took_back(struct audit *a, const struct audit_lease *l) {
    a->reclaimed++;
    a->samples_reclaimed += l->count;
}

static void end_leases(struct audit *a, struct reader *r, uint32_t count, uint32_t site,
                       run_change *how, uint64_t argument) {
    for (uint32_t i = 0; i < count; i++) {
        struct audit_lease *l = active(a, get_u64(r));
        if (!r->ok || l == NULL) continue;
        if (l->site != site)
            audit_finding(a, "lease %016llx is of another site", (unsigned long long)l->tok);
        l->active = false;
        if (how == set_crashed) took_back(a, l);
        change_lease(a, l, 0, l->count, how, argument);
    }
}

static void check_holds(struct audit *a, uint32_t site, uint64_t named) {
    uint64_t held = 0;
    for (size_t i = 0; i < a->leases_count; i++)
        held += a->leases[i].active && a->leases[i].site == site;
    if (held != named)
        audit_finding(a, "site %u holds %llu leases, the record names %llu", site,
                      (unsigned long long)held, (unsigned long long)named);
}

/* ---- Decoding helpers ---------------------------------------------------------------------------------- */
static struct id128 get_id(struct reader *r) {
    struct id128 v = {{0}};
    const void *p = get_bytes(r, ID_BYTES);
    if (p != NULL) memcpy(v.v, p, ID_BYTES);
    return v;
}

static struct hash get_hash(struct reader *r) {
    struct hash v = {{0}};
    const void *p = get_bytes(r, HASH_BYTES);
    if (p != NULL) memcpy(v.v, p, HASH_BYTES);
    return v;
}

static uint32_t get_list(struct reader *r, uint32_t max) {
    uint32_t count = get_u32(r);
    if (count > max) {
        r->ok = false;
        return 0;
    }
    return count;
}

static bool get_flag(struct reader *r) {
    uint8_t v = get_u8(r);
    if (v > 1) r->ok = false;
    return v == 1;
}

/* ---- Kinds 1 to 4 ----------------------------------------------------------------------------------------- */
static void walk_open(struct audit *a, struct reader *r) {
    if (a->opened || a->seq != 1) audit_finding(a, "OPEN stands at record 1 only");
    if (get_u16(r) != 1) audit_finding(a, "layout is not 1");
    a->run = get_id(r);
    (void)get_hash(r); /* fingerprint */
    (void)get_hash(r); /* tensors */
    a->parameters = get_u64(r);
    a->positions = get_u64(r);
    a->seq_len = get_u32(r);
    a->epochs_max = get_u32(r);
    (void)get_u64(r); /* order_seed */
    struct audit_version v = {.checkpoint = get_hash(r)};
    v.theta = get_hash(r);
    v.bytes = get_u64(r);
    if (a->opened || !r->ok) return;
    a->opened = true;
    a->versions =
        audit_push(a->versions, &a->versions_count, &a->versions_cap, sizeof *a->versions);
    a->versions[0] = v;
    a->version_next = 1;
    a->lease_next = 1;
}

static void walk_term(struct audit *a, struct reader *r) {
    uint32_t term = get_u32(r);
    if (term <= a->term) audit_finding(a, "term %u does not grow", term);
    a->term = term;
    a->lease_next = 1;
}

static void walk_join(struct audit *a, struct reader *r) {
    char name[AUDIT_NAME_MAX];
    uint32_t site = get_u32(r), inc = get_u32(r);
    if (!get_str(r, name, sizeof name)) r->ok = false;
    (void)get_id(r); /* boot */
    uint32_t crashes_max = get_u32(r);
    if (!r->ok) return;
    if (site == a->sites_count + 1) {
        for (size_t i = 0; i < a->sites_count; i++)
            if (strcmp(a->sites[i].name, name) == 0)
                audit_finding(a, "site '%s' has a number already", name);
        a->sites = audit_push(a->sites, &a->sites_count, &a->sites_cap, sizeof *a->sites);
        memcpy(a->sites[site - 1].name, name, sizeof name);
    } else if (site == 0 || site > a->sites_count || strcmp(a->sites[site - 1].name, name) != 0) {
        audit_finding(a, "site %u is not '%s'", site, name);
        return;
    }
    if (a->sites[site - 1].inc == 0) a->sites[site - 1].inc = a->inc_floor;
    if (inc != a->sites[site - 1].inc + 1)
        audit_finding(a, "site %u: incarnation %u does not follow", site, inc);
    a->joins++;
    uint32_t kept = get_list(r, 16);
    struct reader first = *r;
    (void)get_bytes(r, (size_t)kept * 8);
    uint32_t fenced = get_list(r, 16);
    if (!r->ok) return;
    check_holds(a, site, (uint64_t)kept + fenced);
    for (uint32_t i = 0; i < kept; i++) {
        struct audit_lease *l = active(a, get_u64(&first));
        if (l != NULL && l->site != site) audit_finding(a, "a kept lease is of another site");
        if (l != NULL) l->inc = inc;
    }
    end_leases(a, r, fenced, site, set_crashed, crashes_max);
    a->sites[site - 1].inc = inc;
    a->sites[site - 1].member = true;
}

static void walk_epoch(struct audit *a, struct reader *r) {
    uint32_t epoch = get_u32(r);
    uint64_t positions = get_u64(r);
    if (epoch != a->epochs_count || epoch >= a->epochs_max) {
        audit_finding(a, "epoch %u does not follow", epoch);
        return;
    }
    if (positions != a->positions) audit_finding(a, "epoch %u has another size", epoch);
    audit_epoch_open(a);
}

/* ---- 5 GRANT, 6 RECLAIM ------------------------------------------------------------------------------------- */
/* A new lease in the table; tok must be the next of this term. */
static struct audit_lease *lease_add(struct audit *a, uint64_t tok) {
    if (tok != ((uint64_t)a->term << 32 | a->lease_next))
        audit_finding(a, "lease %016llx is not the next of term %u", (unsigned long long)tok,
                      a->term);
    a->lease_next = (uint32_t)tok + 1;
    if (a->leases_count > 0 && a->leases[a->leases_count - 1].tok >= tok) {
        audit_finding(a, "lease %016llx comes twice", (unsigned long long)tok);
        return NULL;
    }
    a->leases = audit_push(a->leases, &a->leases_count, &a->leases_cap, sizeof *a->leases);
    struct audit_lease *l = &a->leases[a->leases_count - 1];
    l->tok = tok;
    l->active = true;
    return l;
}

static void lease_range_add(struct audit_lease *l, uint64_t start, uint64_t count) {
    l->ranges = mem_grow(l->ranges, l->ranges_count, l->ranges_count + 1, sizeof *l->ranges);
    l->ranges[l->ranges_count++] = (struct audit_range){start, count};
    l->count += count;
}

static void walk_grant(struct audit *a, struct reader *r) {
    uint64_t tok = get_u64(r), nonce = get_u64(r);
    uint32_t site = get_u32(r), inc = get_u32(r), epoch = get_u32(r);
    (void)get_u64(r); /* req */
    uint32_t count = get_list(r, 32);
    if (!r->ok) return;
    check_member(a, site, inc);
    if (count == 0) audit_finding(a, "a lease without positions");
    struct audit_lease *l = lease_add(a, tok);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t start = get_u64(r), n = get_u64(r);
        if (!r->ok || l == NULL) continue;
        if (n > 0 && start < a->positions && n <= a->positions - start && epoch < a->epochs_count)
            lease_range_add(l, start, n); /* the counting model takes none that are no positions */
        change_range(a, epoch, start, n, POS_AVAILABLE, 0, set_leased, tok);
    }
    if (l == NULL) return;
    l->nonce = nonce;
    l->site = site;
    l->inc = inc;
    l->epoch = epoch;
    a->grants++;
    a->samples_granted += l->count;
}

/* Keeps the first `keep` samples of a lease. */
static void lease_cut(struct audit_lease *l, uint64_t keep) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->ranges_count; i++) {
        if (at + l->ranges[i].count >= keep) {
            l->ranges[i].count = keep - at;
            l->ranges_count = i + 1;
            break;
        }
        at += l->ranges[i].count;
    }
    l->count = keep;
}

static void walk_reclaim(struct audit *a, struct reader *r) {
    uint64_t tok = get_u64(r);
    uint8_t reason = get_u8(r);
    uint64_t keep = get_u64(r);
    uint32_t crashes_max = get_u32(r);
    struct audit_lease *l = active(a, tok);
    if (!r->ok || l == NULL) return;
    if (reason == 3) {
        if (keep == 0 || keep >= l->count) {
            audit_finding(a, "a lease of %llu cannot be cut to %llu", (unsigned long long)l->count,
                          (unsigned long long)keep);
            return;
        }
        a->shrunk++;
        change_lease(a, l, keep, l->count, set_available, 0);
        lease_cut(l, keep);
        return;
    }
    if (reason != 1 && reason != 2) r->ok = false;
    l->active = false;
    if (reason == 1) {
        took_back(a, l);
        change_lease(a, l, 0, l->count, set_crashed, crashes_max);
    } else {
        a->returned++;
        change_lease(a, l, 0, l->count, set_available, 0);
    }
}

/* ---- 7 STAGE ---------------------------------------------------------------------------------------------- */
static void segment_add(struct audit_delta *d, uint32_t epoch, uint64_t start, uint64_t count,
                        bool skipped) {
    d->segments =
        audit_push(d->segments, &d->segments_count, &d->segments_cap, sizeof *d->segments);
    d->segments[d->segments_count - 1] = (struct audit_segment){epoch, start, count, skipped};
}

/* The first `done` samples of a lease become the contribution's. The counting model takes them whether
 * or not the strict one agrees: that is how a doubled position is seen as one. */
static void stage_part(struct audit *a, struct audit_lease *l, uint64_t done, size_t delta) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->ranges_count && at < done; i++) {
        uint64_t n = l->ranges[i].count < done - at ? l->ranges[i].count : done - at;
        segment_add(&a->deltas[delta], l->epoch, l->ranges[i].start, n, false);
        at += n;
    }
    a->deltas[delta].samples += at;
    if (l->active) change_lease(a, l, 0, done, set_staged, delta);
}

static void stage_rest(struct audit *a, size_t lease, uint64_t done, uint64_t tok, uint64_t nonce) {
    struct audit_lease *fresh = lease_add(a, tok), *old = &a->leases[lease];
    uint64_t at = 0;
    if (fresh == NULL) return;
    fresh->nonce = nonce;
    fresh->site = old->site;
    fresh->inc = old->inc;
    fresh->epoch = old->epoch;
    for (uint32_t i = 0; i < old->ranges_count; i++) {
        uint64_t n = old->ranges[i].count, skip = done > at ? done - at : 0;
        if (skip < n) {
            lease_range_add(fresh, old->ranges[i].start + skip, n - skip);
            change_range(a, old->epoch, old->ranges[i].start + skip, n - skip, POS_LEASED, old->tok,
                         set_leased, tok);
        }
        at += n;
    }
}

static size_t stage_parts(struct audit *a, struct reader *r, size_t delta, uint32_t count,
                          uint64_t *out_last_done) {
    size_t last = SIZE_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t tok = get_u64(r), nonce = get_u64(r), done = get_u64(r);
        if (!r->ok) return SIZE_MAX;
        struct audit_lease *l = audit_lease_find(a, tok);
        (void)active(a, tok); /* only for the finding */
        if (l == NULL) continue;
        const struct audit_delta *d = &a->deltas[delta];
        if (l->nonce != nonce || l->site != d->site || l->inc != d->inc)
            audit_finding(a, "lease %016llx is not this member's", (unsigned long long)tok);
        if (done > l->count) {
            audit_finding(a, "lease %016llx has %llu samples, not %llu", (unsigned long long)tok,
                          (unsigned long long)l->count, (unsigned long long)done);
            done = l->count;
        }
        stage_part(a, l, done, delta);
        last = (size_t)(l - a->leases);
        *out_last_done = done;
        if (i + 1 < count && l->active) { /* the last one's rest is seen to by the caller */
            change_lease(a, l, done, l->count, set_available, 0);
            l->active = false;
        }
    }
    return last;
}

/* Cuts one position out of the segment that holds it. */
static bool segment_skip(struct audit_delta *d, uint32_t epoch, uint64_t position) {
    for (size_t i = 0; i < d->segments_count; i++) {
        struct audit_segment s = d->segments[i];
        if (s.epoch != epoch || s.skipped || position < s.start || position >= s.start + s.count)
            continue;
        d->segments[i] = (struct audit_segment){epoch, position, 1, true};
        if (position > s.start) segment_add(d, epoch, s.start, position - s.start, false);
        if (position + 1 < s.start + s.count)
            segment_add(d, epoch, position + 1, s.start + s.count - position - 1, false);
        d->skips++;
        return true;
    }
    return false;
}

static void set_reason(struct audit *a, struct audit_run *r, uint64_t reason) {
    (void)a;
    r->reason = (uint32_t)reason;
}

static void stage_skips(struct audit *a, struct reader *r, size_t delta) {
    uint32_t count = get_list(r, 64);
    for (uint32_t i = 0; i < count; i++) {
        char reason[AUDIT_REASON_MAX];
        uint32_t epoch = get_u32(r);
        uint64_t position = get_u64(r);
        if (!get_str(r, reason, sizeof reason)) r->ok = false;
        if (!r->ok) return;
        if (segment_skip(&a->deltas[delta], epoch, position))
            change_range(a, epoch, position, 1, POS_STAGED, delta, set_reason,
                         audit_reason(a, reason));
        else
            audit_finding(a, "a skip at %llu is not among the done positions",
                          (unsigned long long)position);
    }
}

/* A contribution's entry; a did that was there before is a finding and gets no second entry. */
static struct audit_delta *delta_new(struct audit *a, const struct id128 *did, bool again_allowed) {
    struct audit_delta *d = audit_delta_find(a, did);
    char hex[ID_HEX_BYTES];
    if (d == NULL) return audit_delta_add(a, did);
    id_hex(did, hex);
    if (!again_allowed) audit_finding(a, "contribution %s comes twice", hex);
    return NULL;
}

static void walk_stage(struct audit *a, struct reader *r) {
    struct id128 did = get_id(r);
    struct audit_delta scratch = {.site = get_u32(r)}, *d;
    scratch.inc = get_u32(r);
    scratch.base = get_u64(r);
    scratch.tokens = get_u64(r);
    scratch.steps = get_u64(r);
    for (int i = 0; i < 5; i++) (void)get_f64(r);
    scratch.gradient = get_u32(r) == 6; /* codec */
    (void)get_u64(r);                   /* elements */
    scratch.bytes = get_u64(r);
    scratch.blob = get_hash(r);
    uint32_t count = get_list(r, 32);
    if (!r->ok || (d = delta_new(a, &did, false)) == NULL) {
        r->p = r->end;
        return;
    }
    size_t delta = (size_t)(d - a->deltas);
    scratch.did = did;
    scratch.fate = FATE_STAGED;
    *d = scratch;
    a->staged_ever++;
    check_member(a, d->site, d->inc);
    if (a->held) audit_finding(a, "a STAGE while the run is held");
    if (!audit_is_ancestor(a, d->base))
        audit_finding(a, "base %llu is not in the head's ancestry", (unsigned long long)d->base);
    uint64_t done = 0, rest_tok = 0, rest_nonce = 0;
    size_t last = stage_parts(a, r, delta, count, &done);
    stage_skips(a, r, delta);
    bool has_rest = get_flag(r);
    if (has_rest) {
        rest_tok = get_u64(r);
        rest_nonce = get_u64(r);
    }
    if (!r->ok || last == SIZE_MAX) return;
    if (has_rest && done >= a->leases[last].count)
        audit_finding(a, "there is no rest to go on with");
    else if (has_rest)
        stage_rest(a, last, done, rest_tok, rest_nonce);
    else if (a->leases[last].active)
        change_lease(a, &a->leases[last], done, a->leases[last].count, set_available, 0);
    a->leases[last].active = false;
    d = &a->deltas[delta];
    if (d->tokens != (d->samples - d->skips) * a->seq_len)
        audit_finding(a, "%llu tokens are not %llu samples of %u", (unsigned long long)d->tokens,
                      (unsigned long long)(d->samples - d->skips), a->seq_len);
}

/* ---- 8 REJECT, 9 DISCARD -------------------------------------------------------------------------------------- */
static void walk_reject(struct audit *a, struct reader *r) {
    char reason[240];
    struct id128 did = get_id(r);
    uint32_t site = get_u32(r), inc = get_u32(r);
    for (int i = 0; i < 4; i++) (void)get_u64(r);
    (void)get_hash(r);
    (void)get_hash(r);
    if (!get_str(r, reason, sizeof reason)) r->ok = false;
    uint32_t count = get_list(r, 32);
    if (!r->ok) return;
    check_member(a, site, inc);
    struct audit_delta *d = delta_new(a, &did, true); /* section 5: forgotten ones may come again */
    if (d != NULL) d->fate = FATE_REJECTED;
    a->rejected++;
    end_leases(a, r, count, site, set_available, 0);
}

static void free_segments(struct audit *a, size_t delta) {
    const struct audit_delta *d = &a->deltas[delta];
    for (size_t i = 0; i < d->segments_count; i++)
        change_range(a, d->segments[i].epoch, d->segments[i].start, d->segments[i].count,
                     POS_STAGED, delta, set_available, 0);
}

static void walk_discard(struct audit *a, struct reader *r) {
    char reason[240];
    struct id128 did = get_id(r);
    if (!get_str(r, reason, sizeof reason)) r->ok = false;
    struct audit_delta *d = audit_delta_find(a, &did);
    if (!r->ok) return;
    if (d == NULL || d->fate != FATE_STAGED) {
        audit_finding(a, "a contribution is discarded that is not staged");
        return;
    }
    free_segments(a, (size_t)(d - a->deltas));
    d->fate = FATE_DISCARDED;
    a->discarded++;
}

/* ---- 10 MERGE, 11 SEAL ------------------------------------------------------------------------------------------ */
static void set_merged(struct audit *a, struct audit_run *r, uint64_t version) {
    (void)a;
    r->state = r->reason != 0 ? POS_SKIPPED : POS_MERGED;
    r->crashes = 0;
    r->owner = version;
}

static void merge_part(struct audit *a, struct audit_version *v, const struct id128 *did) {
    char hex[ID_HEX_BYTES];
    struct audit_delta *d = audit_delta_find(a, did);
    id_hex(did, hex);
    if (d == NULL) {
        audit_finding(a, "contribution %s is merged and was never staged", hex);
        return;
    }
    v->parts[v->parts_count++] = (size_t)(d - a->deltas);
    v->tokens += d->tokens;
    if (d->fate != FATE_STAGED) {
        audit_finding(a, "contribution %s is merged and is not staged", hex);
        return;
    }
    d->fate = FATE_MERGED;
    d->version = v->version;
    for (size_t i = 0; i < d->segments_count; i++)
        change_range(a, d->segments[i].epoch, d->segments[i].start, d->segments[i].count,
                     POS_STAGED, (size_t)(d - a->deltas), set_merged, v->version);
}

static void check_ledger(struct audit *a, const struct hash *wanted) {
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    audit_ledger(a, &b);
    struct hash h = hash_of(b.data, b.bytes_count);
    if (!hash_equal(&h, wanted))
        audit_finding(a, "the ledger's hash is not the one of these records");
    buf_fini(&b);
}

static void walk_merge(struct audit *a, struct reader *r) {
    struct audit_version v = {.version = get_u64(r)};
    v.parent = get_u64(r);
    v.checkpoint = get_hash(r);
    v.theta = get_hash(r);
    v.bytes = get_u64(r);
    uint64_t tokens_after = get_u64(r);
    for (int i = 0; i < 8; i++) (void)get_f64(r);
    v.ledger = get_hash(r);
    uint32_t count = get_list(r, 4096);
    const struct audit_version *parent = audit_version_find(a, v.parent);
    if (!r->ok) return;
    if (v.version != a->version_next)
        audit_finding(a, "version %llu is not the next one", (unsigned long long)v.version);
    if (v.parent != a->head || parent == NULL)
        audit_finding(a, "parent %llu is not the head", (unsigned long long)v.parent);
    if (a->held) audit_finding(a, "a MERGE while the run is held");
    if (v.version < a->version_next) {
        r->p = r->end;
        return;
    }
    if (count == 0 && a->taking == 0) audit_finding(a, "a MERGE of nothing");
    v.tokens = parent != NULL ? parent->tokens : 0;
    v.taken = a->taking > 0 ? a->taking : audit_taken(a);
    a->taking = 0;
    v.parts = mem_alloc(count > 0 ? count : 1, sizeof *v.parts);
    for (uint32_t i = 0; i < count; i++) {
        struct id128 did = get_id(r);
        (void)get_f64(r);
        (void)get_flag(r);
        if (r->ok) merge_part(a, &v, &did);
    }
    audit_sync_merge(a, &v, parent);
    if (v.tokens != tokens_after) audit_finding(a, "tokens after the merge do not add up");
    a->versions =
        audit_push(a->versions, &a->versions_count, &a->versions_cap, sizeof *a->versions);
    a->versions[a->versions_count - 1] = v;
    a->head = v.version;
    a->version_next = v.version + 1;
    a->merges++;
    check_ledger(a, &v.ledger);
}

static void walk_seal(struct audit *a, struct reader *r) {
    uint64_t counts[POS_STATES] = {0};
    uint32_t epoch = get_u32(r);
    uint64_t merged = get_u64(r), skipped = get_u64(r);
    struct hash digest = get_hash(r);
    if (!r->ok) return;
    if (epoch >= a->epochs_count || a->epochs[epoch].sealed) {
        audit_finding(a, "epoch %u cannot be sealed", epoch);
        return;
    }
    struct audit_epoch *ep = &a->epochs[epoch];
    audit_epoch_counts(ep, counts);
    if (counts[POS_MERGED] != merged || counts[POS_SKIPPED] != skipped ||
        merged + skipped != a->positions)
        audit_finding(
            a, "the seal of epoch %u counts %llu merged, %llu skipped; it is %llu, %llu of %llu",
            epoch, (unsigned long long)merged, (unsigned long long)skipped,
            (unsigned long long)counts[POS_MERGED], (unsigned long long)counts[POS_SKIPPED],
            (unsigned long long)a->positions);
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    audit_epoch_ledger(a, ep, &b);
    struct hash h = hash_of(b.data, b.bytes_count);
    if (!hash_equal(&h, &digest))
        audit_finding(a, "the seal's digest is not the one of these records");
    buf_fini(&b);
    ep->sealed = true;
}

/* ---- 12 to 15 ------------------------------------------------------------------------------------------------------ */
static void walk_leave(struct audit *a, struct reader *r) {
    uint32_t site = get_u32(r), inc = get_u32(r), count = get_list(r, 16);
    if (!r->ok) return;
    check_member(a, site, inc);
    end_leases(a, r, count, site, set_available, 0); /* what is not named stays the site's */
    if (site > 0 && site <= a->sites_count) a->sites[site - 1].member = false;
    a->leaves++;
}

static void roll_epoch(struct audit *a, uint32_t epoch, uint64_t version) {
    struct audit_epoch *ep = &a->epochs[epoch];
    bool open = false;
    for (size_t i = 0; i < ep->count; i++) {
        struct audit_run *x = &ep->runs[i];
        bool newer = (x->state == POS_MERGED || x->state == POS_SKIPPED) && x->owner > version;
        if (newer) {
            set_available(a, x, 0);
            x->crashes = 0;
        }
        open = open || x->state == POS_AVAILABLE;
    }
    audit_runs_join(a, epoch, 0, ep->count);
    if (open) ep->sealed = false;
}

static void walk_rollback(struct audit *a, struct reader *r) {
    uint64_t version = get_u64(r), next = get_u64(r);
    uint32_t term = get_u32(r);
    if (!r->ok) return;
    if (!audit_is_ancestor(a, version))
        audit_finding(a, "version %llu is not in the head's ancestry", (unsigned long long)version);
    if (next < a->version_next || term < a->term)
        audit_finding(a, "a rollback may not go back in numbers");
    for (size_t i = 0; i < a->leases_count; i++) {
        if (!a->leases[i].active) continue;
        a->leases[i].active = false;
        took_back(a, &a->leases[i]);
        change_lease(a, &a->leases[i], 0, a->leases[i].count, set_available, 0);
    }
    for (size_t i = 0; i < a->deltas_count; i++) {
        struct audit_delta *d = &a->deltas[i];
        if (d->fate == FATE_STAGED) free_segments(a, i);
        if (d->fate == FATE_STAGED || (d->fate == FATE_MERGED && d->version > version))
            d->fate = FATE_DISCARDED;
    }
    for (uint32_t i = 0; i < a->epochs_count; i++) roll_epoch(a, i, version);
    a->head = version;
    a->version_next = next;
    if (term > a->term) a->lease_next = 1;
    a->term = term;
    a->held = false;
    a->taking = 0;
    a->rollbacks++;
}

static void set_decided(struct audit *a, struct audit_run *r, uint64_t reason) {
    set_available(a, r, 0);
    r->crashes = 0;
    if (reason == 0) return;
    r->state = POS_SKIPPED;
    r->reason = (uint32_t)(reason - 1);
}

static void walk_quarantine(struct audit *a, struct reader *r) {
    char reason[AUDIT_REASON_MAX];
    uint32_t epoch = get_u32(r);
    uint64_t start = get_u64(r), count = get_u64(r);
    bool skip = get_flag(r);
    if (!get_str(r, reason, sizeof reason)) r->ok = false;
    if (!r->ok) return;
    change_range(a, epoch, start, count, POS_QUARANTINED, 0, set_decided,
                 skip ? (uint64_t)audit_reason(a, reason) + 1 : 0);
}

static void walk_hold(struct audit *a, struct reader *r) {
    char name[AUDIT_NAME_MAX];
    (void)get_u32(r);
    if (!get_str(r, name, sizeof name)) r->ok = false;
    (void)get_u64(r);
    (void)get_u32(r);
    a->held = true;
}

/* How versions are coded on their way to the sites: no position depends on it. */
static void walk_down(struct audit *a, struct reader *r) {
    uint32_t codec = get_u32(r);
    if (codec > 5) audit_finding(a, "an update codec %u that is not known", codec);
}

/* What the next merge computed, and how its sites agreed: no position depends on it. */
static void walk_step(struct audit *a, struct reader *r) {
    uint64_t version = get_u64(r);
    bool radial = get_flag(r), keeps = get_flag(r);
    double ema = get_f64(r), mean = get_f64(r);
    uint32_t count = get_list(r, 64);
    for (uint32_t i = 0; i < count && r->ok; i++) {
        uint32_t site = get_u32(r);
        if (site == 0 || site > a->sites_count) audit_finding(a, "a cosine of an unknown site");
        if (!(get_f64(r) <= 1)) audit_finding(a, "a cosine above 1");
    }
    (void)radial;
    if (version != a->version_next)
        audit_finding(a, "a step of version %llu, which is not the next one",
                      (unsigned long long)version);
    if (!(ema >= 0 && ema <= 1) || (ema > 0 && !keeps) || !(mean <= 1))
        audit_finding(a, "a step with a share that is none");
}

static void walk_eval(struct audit *a, struct reader *r) {
    uint64_t version = get_u64(r);
    double loss = get_f64(r);
    bool back = get_flag(r);
    uint64_t to = get_u64(r);
    if (!r->ok) return;
    if (!(loss > 0)) audit_finding(a, "a held-out loss that is none");
    if (!audit_is_ancestor(a, version))
        audit_finding(a, "a loss of version %llu, which is not in the head's ancestry",
                      (unsigned long long)version);
    if (back && (to >= version || !audit_is_ancestor(a, to)))
        audit_finding(a, "a return to version %llu, which is no ancestor", (unsigned long long)to);
}

enum brg_status audit_record(struct audit *a, uint64_t seq, uint16_t kind, const void *body,
                             size_t n, struct err *e) {
    static void (*const walks[])(struct audit *, struct reader *) = {
        NULL,       walk_open,          walk_term,         walk_join,         walk_epoch,
        walk_grant, walk_reclaim,       walk_stage,        walk_reject,       walk_discard,
        walk_merge, walk_seal,          walk_leave,        walk_rollback,     walk_quarantine,
        walk_hold,  audit_walk_rebuild, audit_walk_ledger, audit_walk_report, audit_walk_order,
        walk_down,  walk_step,          walk_eval,         audit_walk_sync,   audit_walk_parent};
    struct reader r = reader_of(body, n);
    a->seq = seq;
    (void)get_u64(&r); /* wall clock: for people */
    if (kind >= ARRAY_COUNT(walks) || walks[kind] == NULL)
        return err_set(e, BRG_E_JOURNAL, "record %llu: kind %u is not known to this version",
                       (unsigned long long)seq, kind);
    if (!a->opened && kind != 1 && kind != 16)
        return err_set(e, BRG_E_JOURNAL,
                       "record %llu: the journal does not begin with OPEN or REBUILD",
                       (unsigned long long)seq);
    if (a->import_bytes > 0 && kind != 17)
        audit_finding(a, "the ledger of the REBUILD is not whole");
    if (kind != 10 && kind != 21)
        a->sync_version = 0; /* SYNC speaks of one MERGE; STEP may stand between */
    walks[kind](a, &r);
    if (!r.ok || r.p != r.end)
        return err_set(e, BRG_E_JOURNAL, "record %llu: the body of kind %u is damaged",
                       (unsigned long long)seq, kind);
    return BRG_OK;
}
