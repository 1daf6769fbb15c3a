/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - whether a ledger is what lease.h says it is. For tests, the simulator and debug
 * builds. */
#include "lease/inner.h"

/* (I2) each lease's spans are LEASED to it; together they are all that is LEASED. */
static void leases_check(const struct ledger *l, uint64_t leased) {
    uint32_t count = 0;
    uint64_t sum = 0;
    for (uint32_t s = 0; s < l->sites_cap; s++) {
        uint32_t of_site = 0;
        const struct lease *prev = NULL;
        for (const struct lease *a = l->sites[s].first; a; a = a->site_next) {
            CHECK(a->site == s);
            CHECK(a->site_prev == prev);
            CHECK(!prev || prev->tok < a->tok);       /* I7 */
            CHECK(a->tok <= l->tok_last);             /* I7 */
            CHECK(ledger_lease_find(l, a->tok) == a); /* I4 */
            CHECK(!l->epochs[a->epoch].sealed);       /* I9 */
            uint64_t length = 0;
            for (uint32_t i = 0; i < a->spans_count; i++) {
                CHECK(extents_all(&l->epochs[a->epoch].x, a->spans[i].start, a->spans[i].count,
                                  EXTENT_LEASED, a->tok)); /* I2 */
                length += a->spans[i].count;
            }
            CHECK(length == a->count);
            CHECK(length > 0);
            sum += length;
            of_site++;
            prev = a;
        }
        CHECK(of_site == l->sites[s].leases);
        count += of_site;
    }
    CHECK(count == l->leases_count);
    CHECK(sum == leased); /* I2 */
}

/* (I4, I12) staged deltas have their spans and nothing else is STAGED; final ones have none. */
static void deltas_check(const struct ledger *l, uint64_t staged) {
    uint64_t sum = 0, serial = 0;
    uint32_t count = 0;
    for (const struct delta *d = l->staged.first; d; d = d->list_next) {
        CHECK(d->state == DELTA_STAGED);
        CHECK(d->serial > serial);
        CHECK(ledger_delta_find(l, &d->did) == d);
        serial = d->serial;
        uint64_t length = 0;
        for (uint32_t i = 0; i < d->live->spans_count; i++) {
            const struct delta_span *s = &d->live->spans[i];
            CHECK(extents_all(&l->epochs[s->epoch].x, s->span.start, s->span.count, EXTENT_STAGED,
                              d->serial)); /* I4 */
            length += s->span.count;
        }
        CHECK(length == d->live->samples);
        CHECK(!d->live->marked);
        for (uint32_t i = 0; i < d->toks_count; i++)
            CHECK(ledger_lease_find(l, d->toks[i]) == NULL); /* I4 */
        sum += length;
        count++;
    }
    CHECK(sum == staged); /* I12 */
    CHECK(count == l->staged.count);
    count = 0;
    for (const struct delta *d = l->final.first; d; d = d->list_next) {
        CHECK(d->state != DELTA_STAGED);
        CHECK(d->live == NULL); /* I12 */
        CHECK(ledger_delta_find(l, &d->did) == d);
        CHECK((d->state == DELTA_MERGED) == (d->version > 0));
        CHECK(d->version <= l->version_last);
        count++;
    }
    CHECK(count == l->final.count);
    CHECK(count <= LEDGER_FINAL_MAX);
    CHECK(l->staged.count + l->final.count == l->deltas_count);
}

void ledger_check(const struct ledger *l) {
    uint64_t leased = 0, staged = 0;
    for (uint32_t i = 0; i < l->epochs_count; i++) {
        const struct epoch *e = &l->epochs[i];
        CHECK(e->x.positions == l->positions);
        extents_check(&e->x); /* I1, I8 */
        if (e->sealed)
            CHECK(e->x.counts[EXTENT_MERGED] + e->x.counts[EXTENT_SKIPPED] ==
                  l->positions); /* I9 */
        leased += e->x.counts[EXTENT_LEASED];
        staged += e->x.counts[EXTENT_STAGED];
    }
    leases_check(l, leased);
    deltas_check(l, staged);
}
