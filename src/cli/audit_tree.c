/* SPDX-License-Identifier: Apache-2.0 */
/* audit_tree.c - a run and the regions below it (docs/hierarchy.md), each read by the audit of its own, held against each
 * other. Shares no code with the hub, as the rest of the audit. For a region R that is the site N of a parent P:
 *
 *   W        the version of P that R's head has taken in
 *   S        what P has merged or skipped up to version W
 *   mine     what contributions of R's own sites hold in R's head;  theirs: those of "_parent"
 *
 *   - S is in R's head, and theirs is in S: nothing of P is lost on the way down, nothing is made up
 *   - mine and not in S is work that P does not have yet (ahead): leased to N there, staged of N, or merged of N in a
 *     version after W; what is none of these P has taken back, and R will hear of it (unheard): counted, no fault
 *   - each contribution of N that P merged holds only what R's sites had merged in R, and each contribution of R's head is
 *     inside of it or apart: it is the union of whole ones
 *
 * R is read before P, so P knows all that R does. */
#include <stdlib.h>
#include <string.h>

#include "cli/audit.h"

/* ---- Sets of positions of all epochs, as stretches in order ---------------------------------------------------- */
struct places {
    struct audit_segment *v;
    size_t count, cap;
};
static void places_fini(struct places *s) {
    mem_free(s->v);
}
#define AUTO_PLACES __attribute__((cleanup(places_fini)))

static void places_add(struct places *s, uint32_t epoch, uint64_t start, uint64_t count) {
    if (count == 0) return;
    s->v = audit_push(s->v, &s->count, &s->cap, sizeof *s->v);
    s->v[s->count - 1] = (struct audit_segment){.epoch = epoch, .start = start, .count = count};
}

static int by_place(const void *x, const void *y) {
    const struct audit_segment *a = x, *b = y;
    if (a->epoch != b->epoch) return a->epoch < b->epoch ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

static void places_sort(struct places *s) {
    size_t n = 0;
    if (s->count > 1) qsort(s->v, s->count, sizeof *s->v, by_place);
    for (size_t i = 0; i < s->count; i++) {
        struct audit_segment x = s->v[i], *last = n > 0 ? &s->v[n - 1] : NULL;
        if (last != NULL && last->epoch == x.epoch && x.start <= last->start + last->count) {
            uint64_t end = x.start + x.count;
            if (end > last->start + last->count) last->count = end - last->start;
        } else {
            s->v[n++] = x;
        }
    }
    s->count = n;
}

static uint64_t places_size(const struct places *s) {
    uint64_t n = 0;
    for (size_t i = 0; i < s->count; i++) n += s->v[i].count;
    return n;
}

static bool before(const struct audit_segment *b, uint32_t epoch, uint64_t at) {
    return b->epoch < epoch || (b->epoch == epoch && b->start + b->count <= at);
}

/* out = a without b; both sorted. */
static void places_minus(const struct places *a, const struct places *b, struct places *out) {
    size_t k = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct audit_segment *x = &a->v[i];
        uint64_t at = x->start, end = x->start + x->count;
        while (k < b->count && before(&b->v[k], x->epoch, at)) k++;
        for (size_t j = k; j < b->count && b->v[j].epoch == x->epoch && b->v[j].start < end; j++) {
            if (b->v[j].start > at) places_add(out, x->epoch, at, b->v[j].start - at);
            if (b->v[j].start + b->v[j].count > at) at = b->v[j].start + b->v[j].count;
        }
        if (at < end) places_add(out, x->epoch, at, end - at);
    }
}

static uint64_t outside(const struct places *a, const struct places *b) {
    AUTO_PLACES struct places left = {0};
    places_minus(a, b, &left);
    return places_size(&left);
}

/* ---- Of one journal --------------------------------------------------------------------------------------------------- */
static const char *site_name(const struct audit *a, uint32_t site) {
    return site > 0 && site <= a->sites_count ? a->sites[site - 1].name : "";
}

static uint32_t site_number(const struct audit *a, const char *name) {
    for (size_t i = 0; i < a->sites_count; i++)
        if (strcmp(a->sites[i].name, name) == 0) return (uint32_t)i + 1;
    return 0;
}

static void delta_places(const struct audit_delta *d, struct places *out) {
    for (size_t k = 0; k < d->segments_count; k++)
        places_add(out, d->segments[k].epoch, d->segments[k].start, d->segments[k].count);
}

/* Merged or skipped in a version up to `version`; `late`: what an operator skipped, at whatever time. */
static void done_until(const struct audit *a, uint64_t version, struct places *out,
                       struct places *late) {
    for (uint32_t e = 0; e < a->epochs_count; e++)
        for (size_t i = 0; i < a->epochs[e].count; i++) {
            const struct audit_run *r = &a->epochs[e].runs[i];
            if (r->state != POS_MERGED && r->state != POS_SKIPPED) continue;
            if (r->state == POS_SKIPPED && r->owner == 0)
                places_add(late, e, r->start, r->count);
            else if (r->owner <= version)
                places_add(out, e, r->start, r->count);
        }
    places_sort(out);
    places_sort(late);
}

/* What waits at the parent for this site, or is merged of it after `version`. */
static void waits_at(const struct audit *p, uint32_t site, uint64_t version, struct places *out) {
    for (size_t i = 0; i < p->leases_count; i++) {
        const struct audit_lease *l = &p->leases[i];
        for (uint32_t k = 0; l->active && l->site == site && k < l->ranges_count; k++)
            places_add(out, l->epoch, l->ranges[k].start, l->ranges[k].count);
    }
    for (size_t i = 0; i < p->deltas_count; i++) {
        const struct audit_delta *d = &p->deltas[i];
        bool later = d->fate == FATE_MERGED && d->version > version;
        if (d->site == site && (d->fate == FATE_STAGED || later)) delta_places(d, out);
    }
    places_sort(out);
}

/* ---- A region against its parent --------------------------------------------------------------------------------------- */
struct books {
    struct places mine, theirs, ever; /* ever: of its sites, merged at any time */
    struct places s, late;            /* of the parent, up to what was taken in */
    struct places waits;
};
static void books_fini(struct books *b) {
    struct places *all[] = {&b->mine, &b->theirs, &b->ever, &b->s, &b->late, &b->waits};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) places_fini(all[i]);
}
#define AUTO_BOOKS __attribute__((cleanup(books_fini)))

static void books_read(const struct audit *p, const struct audit *r, uint32_t site, uint64_t taken,
                       struct books *b) {
    for (size_t i = 0; i < r->deltas_count; i++) {
        const struct audit_delta *d = &r->deltas[i];
        bool parents = strcmp(site_name(r, d->site), AUDIT_PARENT) == 0;
        bool merged = d->fate == FATE_MERGED;
        if (merged) delta_places(d, parents ? &b->theirs : &b->mine);
        if (!parents && (merged || (d->fate == FATE_DISCARDED && d->version > 0)))
            delta_places(d, &b->ever);
    }
    places_sort(&b->mine);
    places_sort(&b->theirs);
    places_sort(&b->ever);
    done_until(p, taken, &b->s, &b->late);
    waits_at(p, site, taken, &b->waits);
}

/* Is d inside of the contribution whose places these are, or apart from it? */
static bool whole_or_apart(const struct audit_delta *d, const struct places *x) {
    AUTO_PLACES struct places own = {0};
    delta_places(d, &own);
    places_sort(&own);
    uint64_t left = outside(&own, x);
    return left == 0 || left == places_size(&own);
}

static void contribution_check(struct audit *p, const struct audit *r, const struct audit_delta *d,
                               const struct books *b, struct audit_region *out) {
    AUTO_PLACES struct places x = {0};
    char hex[ID_HEX_BYTES];
    id_hex(&d->did, hex);
    delta_places(d, &x);
    places_sort(&x);
    out->contributions++;
    out->samples += places_size(&x);
    uint64_t more = outside(&x, &b->ever);
    if (more > 0)
        audit_finding(p,
                      "contribution %s of region %s has %llu positions that no site of it has done",
                      hex, out->name, (unsigned long long)more);
    for (size_t i = 0; i < r->deltas_count; i++) {
        const struct audit_delta *c = &r->deltas[i];
        if (c->fate != FATE_MERGED || strcmp(site_name(r, c->site), AUDIT_PARENT) == 0) continue;
        if (!whole_or_apart(c, &x))
            audit_finding(p, "contribution %s of region %s has a part of one of its sites'", hex,
                          out->name);
    }
}

static void sets_check(struct audit *p, const struct books *b, struct audit_region *out) {
    AUTO_PLACES struct places head = {0};
    AUTO_PLACES struct places allowed = {0};
    AUTO_PLACES struct places own = {0};
    AUTO_PLACES struct places unheard = {0};
    for (size_t i = 0; i < b->mine.count; i++)
        places_add(&head, b->mine.v[i].epoch, b->mine.v[i].start, b->mine.v[i].count);
    for (size_t i = 0; i < b->theirs.count; i++)
        places_add(&head, b->theirs.v[i].epoch, b->theirs.v[i].start, b->theirs.v[i].count);
    places_sort(&head);
    for (size_t i = 0; i < b->s.count; i++)
        places_add(&allowed, b->s.v[i].epoch, b->s.v[i].start, b->s.v[i].count);
    for (size_t i = 0; i < b->late.count; i++)
        places_add(&allowed, b->late.v[i].epoch, b->late.v[i].start, b->late.v[i].count);
    places_sort(&allowed);
    uint64_t lost = outside(&b->s, &head), made = outside(&b->theirs, &allowed);
    if (lost > 0)
        audit_finding(p, "region %s has taken version %llu in and lacks %llu of its positions",
                      out->name, (unsigned long long)out->taken, (unsigned long long)lost);
    if (made > 0)
        audit_finding(
            p, "region %s has %llu positions from its parent that version %llu does not have",
            out->name, (unsigned long long)made, (unsigned long long)out->taken);
    places_minus(&b->mine, &b->s, &own);
    out->ahead = places_size(&own);
    places_minus(&own, &b->waits, &unheard);
    out->unheard = places_size(&unheard);
}

static bool same_run(struct audit *p, const struct audit *r, const char *name) {
    if (r->positions == p->positions && r->seq_len == p->seq_len &&
        r->parameters == p->parameters && r->epochs_max == p->epochs_max)
        return true;
    audit_finding(p, "region %s is of another data set or model", name);
    return false;
}

void audit_region_check(struct audit *p, struct audit *r, struct audit_region *out) {
    AUTO_BOOKS struct books b = {0};
    uint32_t site = site_number(p, out->name);
    out->taken = audit_taken(r);
    out->head = r->head;
    out->good = r->findings_count == 0 && r->doubled == 0 && r->lost == 0;
    if (!out->good)
        audit_finding(p, "region %s has %llu problems of its own: beringia audit of its run",
                      out->name, (unsigned long long)r->findings_count);
    uint64_t before = p->findings_count;
    if (!same_run(p, r, out->name)) return;
    if (site_number(r, AUDIT_PARENT) == 0)
        audit_finding(p, "region %s: its journal knows no parent", out->name);
    if (site == 0) return; /* it never got through to the parent */
    if (!audit_is_ancestor(p, out->taken)) {
        out->behind = true; /* the parent went back, and it was not told yet: what it has is void */
        return;
    }
    books_read(p, r, site, out->taken, &b);
    sets_check(p, &b, out);
    for (size_t i = 0; i < p->deltas_count; i++)
        if (p->deltas[i].site == site && p->deltas[i].fate == FATE_MERGED)
            contribution_check(p, r, &p->deltas[i], &b, out);
    out->good = out->good && p->findings_count == before;
}
