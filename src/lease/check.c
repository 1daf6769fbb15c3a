/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - whether a ledger is what lease.h says it is. Tests, the simulator and debug builds stop where it is not; a
 * decoder, whose bytes may come from anywhere, refuses it. */
#include "lease/inner.h"

/* (I2) each lease's spans are LEASED to it; together they are all that is LEASED. */
static const char *leases_fault(const struct ledger *l, uint64_t leased) {
    uint32_t count = 0;
    uint64_t sum = 0;
    for (uint32_t s = 0; s < l->sites_cap; s++) {
        uint32_t of_site = 0;
        const struct lease *prev = NULL;
        for (const struct lease *a = l->sites[s].first; a; a = a->site_next) {
            HOLDS(a->site == s);
            HOLDS(a->site_prev == prev);
            HOLDS(!prev || prev->tok < a->tok);       /* I7 */
            HOLDS(a->tok <= l->tok_last);             /* I7 */
            HOLDS(ledger_lease_find(l, a->tok) == a); /* I4 */
            HOLDS(!l->epochs[a->epoch].sealed);       /* I9 */
            uint64_t length = 0;
            for (uint32_t i = 0; i < a->spans_count; i++) {
                HOLDS(extents_all(&l->epochs[a->epoch].x, a->spans[i].start, a->spans[i].count,
                                  EXTENT_LEASED, a->tok)); /* I2 */
                length += a->spans[i].count;
            }
            HOLDS(length == a->count);
            HOLDS(length > 0);
            sum += length;
            of_site++;
            prev = a;
        }
        HOLDS(of_site == l->sites[s].leases);
        count += of_site;
    }
    HOLDS(count == l->leases_count);
    HOLDS(sum == leased); /* I2 */
    return NULL;
}

/* (I4, I12) staged deltas have their spans and nothing else is STAGED; final ones have none. */
static const char *deltas_fault(const struct ledger *l, uint64_t staged) {
    uint64_t sum = 0, serial = 0;
    uint32_t count = 0;
    for (const struct delta *d = l->staged.first; d; d = d->list_next) {
        HOLDS(d->state == DELTA_STAGED);
        HOLDS(d->serial > serial);
        HOLDS(ledger_delta_find(l, &d->did) == d);
        serial = d->serial;
        uint64_t length = 0;
        for (uint32_t i = 0; i < d->live->spans_count; i++) {
            const struct delta_span *s = &d->live->spans[i];
            HOLDS(extents_all(&l->epochs[s->epoch].x, s->span.start, s->span.count, EXTENT_STAGED,
                              d->serial)); /* I4 */
            length += s->span.count;
        }
        HOLDS(length == d->live->samples);
        HOLDS(!d->live->marked);
        for (uint32_t i = 0; i < d->toks_count; i++)
            HOLDS(ledger_lease_find(l, d->toks[i]) == NULL); /* I4 */
        sum += length;
        count++;
    }
    HOLDS(sum == staged); /* I12 */
    HOLDS(count == l->staged.count);
    count = 0;
    for (const struct delta *d = l->final.first; d; d = d->list_next) {
        HOLDS(d->state != DELTA_STAGED);
        HOLDS(d->live == NULL); /* I12 */
        HOLDS(ledger_delta_find(l, &d->did) == d);
        HOLDS((d->state == DELTA_MERGED) == (d->version > 0));
        HOLDS(d->version <= l->version_last);
        count++;
    }
    HOLDS(count == l->final.count);
    HOLDS(count <= LEDGER_FINAL_MAX);
    HOLDS(l->staged.count + l->final.count == l->deltas_count);
    return NULL;
}

const char *ledger_fault(const struct ledger *l) {
    uint64_t leased = 0, staged = 0;
    for (uint32_t i = 0; i < l->epochs_count; i++) {
        const struct epoch *e = &l->epochs[i];
        HOLDS(e->x.positions == l->positions);
        if (e->sealed)
            HOLDS(e->x.counts[EXTENT_MERGED] + e->x.counts[EXTENT_SKIPPED] ==
                  l->positions); /* I9 */
        leased += e->x.counts[EXTENT_LEASED];
        staged += e->x.counts[EXTENT_STAGED];
    }
    const char *fault = leases_fault(l, leased);
    return fault ? fault : deltas_fault(l, staged);
}

void ledger_check(const struct ledger *l) {
    for (uint32_t i = 0; i < l->epochs_count; i++) extents_check(&l->epochs[i].x); /* I1, I8 */
    const char *fault = ledger_fault(l);
    if (fault) check_failed(fault, __FILE__, __LINE__);
}
