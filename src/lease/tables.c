/* SPDX-License-Identifier: Apache-2.0 */
/* tables.c - leases by tok and by site, deltas by did and by age, skip reasons by number.
 *
 * Two chained hash tables that double when full. A lease is in its chain and in its site's list
 * (oldest first); a delta is in its chain and in one of two lists: staged (order of staging) or
 * final (order of becoming final). The final list is what bounds memory: past LEDGER_FINAL_MAX the
 * oldest is forgotten. */
#include "lease/inner.h"

#include <string.h>

enum { TABLE_FIRST = 16 };

uint64_t id_key(const struct id128 *id) {
    return mix64(get_le64(id->v) ^ mix64(get_le64(id->v + 8)));
}

/* ---- Leases
 * ------------------------------------------------------------------------------------- */

static struct lease **lease_slot(const struct ledger *l, uint64_t tok) {
    return &l->leases[mix64(tok) & (l->leases_cap - 1)];
}

static void leases_grow(struct ledger *l) {
    struct lease **old = l->leases;
    uint32_t old_cap = l->leases_cap;
    l->leases_cap = old_cap ? old_cap * 2 : TABLE_FIRST;
    l->leases = mem_alloc(l->leases_cap, sizeof *l->leases);
    for (uint32_t i = 0; i < old_cap; i++) {
        for (struct lease *a = old[i], *next; a; a = next) {
            next = a->hash_next;
            struct lease **slot = lease_slot(l, a->tok);
            a->hash_next = *slot;
            *slot = a;
        }
    }
    mem_free(old);
}

struct lease *ledger_lease_find(const struct ledger *l, uint64_t tok) {
    if (l->leases_count == 0) return NULL;
    struct lease *a = *lease_slot(l, tok);
    while (a && a->tok != tok) a = a->hash_next;
    return a;
}

struct ledger_site *ledger_site(struct ledger *l, uint32_t site) {
    if (site >= l->sites_cap) {
        uint32_t cap = l->sites_cap ? l->sites_cap : 4;
        while (cap <= site) cap *= 2;
        l->sites = mem_grow(l->sites, l->sites_cap, cap, sizeof *l->sites);
        l->sites_cap = cap;
    }
    return &l->sites[site];
}

static size_t lease_bytes(uint32_t spans_count) {
    return sizeof(struct lease) + spans_count * sizeof(struct lease_span);
}

struct lease *lease_add(struct ledger *l, const struct lease_grant *g) {
    if (l->leases_count >= l->leases_cap) leases_grow(l);
    struct lease *a = mem_alloc(1, lease_bytes(g->spans_count));
    l->items_bytes += lease_bytes(g->spans_count);
    a->tok = g->tok;
    a->nonce = g->nonce;
    a->req = g->req;
    a->site = g->site;
    a->inc = g->inc;
    a->epoch = g->epoch;
    a->spans_count = g->spans_count;
    for (uint32_t i = 0; i < g->spans_count; i++) {
        a->spans[i] = g->spans[i];
        a->count += g->spans[i].count;
    }
    struct lease **slot = lease_slot(l, a->tok);
    a->hash_next = *slot;
    *slot = a;
    l->leases_count++;
    struct ledger_site *s = ledger_site(l, a->site);
    a->site_prev = s->last;
    if (s->last)
        s->last->site_next = a;
    else
        s->first = a;
    s->last = a;
    s->leases++;
    return a;
}

void lease_drop(struct ledger *l, struct lease *a) {
    struct lease **at = lease_slot(l, a->tok);
    while (*at != a) {
        CHECK(*at != NULL);
        at = &(*at)->hash_next;
    }
    *at = a->hash_next;
    l->leases_count--;
    struct ledger_site *s = ledger_site(l, a->site);
    if (a->site_prev)
        a->site_prev->site_next = a->site_next;
    else
        s->first = a->site_next;
    if (a->site_next)
        a->site_next->site_prev = a->site_prev;
    else
        s->last = a->site_prev;
    s->leases--;
    l->items_bytes -= lease_bytes(a->spans_count);
    mem_free(a);
}

struct lease *ledger_site_first(const struct ledger *l, uint32_t site) {
    return site < l->sites_cap ? l->sites[site].first : NULL;
}

uint32_t ledger_site_leases(const struct ledger *l, uint32_t site) {
    return site < l->sites_cap ? l->sites[site].leases : 0;
}

uint32_t ledger_site_staged(const struct ledger *l, uint32_t site) {
    return site < l->sites_cap ? l->sites[site].staged : 0;
}

uint32_t ledger_leases(const struct ledger *l) {
    return l->leases_count;
}

/* ---- Deltas
 * ------------------------------------------------------------------------------------- */

static struct delta **delta_slot(const struct ledger *l, const struct id128 *did) {
    return &l->deltas[id_key(did) & (l->deltas_cap - 1)];
}

static void deltas_grow(struct ledger *l) {
    struct delta **old = l->deltas;
    uint32_t old_cap = l->deltas_cap;
    l->deltas_cap = old_cap ? old_cap * 2 : TABLE_FIRST;
    l->deltas = mem_alloc(l->deltas_cap, sizeof *l->deltas);
    for (uint32_t i = 0; i < old_cap; i++) {
        for (struct delta *d = old[i], *next; d; d = next) {
            next = d->hash_next;
            struct delta **slot = delta_slot(l, &d->did);
            d->hash_next = *slot;
            *slot = d;
        }
    }
    mem_free(old);
}

struct delta *ledger_delta_find(const struct ledger *l, const struct id128 *did) {
    if (l->deltas_count == 0) return NULL;
    struct delta *d = *delta_slot(l, did);
    while (d && !id_equal(&d->did, did)) d = d->hash_next;
    return d;
}

static size_t delta_bytes(uint32_t toks_count) {
    return sizeof(struct delta) + toks_count * sizeof(uint64_t);
}

static size_t live_bytes(uint32_t spans_count) {
    return sizeof(struct delta_live) + spans_count * sizeof(struct delta_span);
}

struct delta *delta_add(struct ledger *l, const struct id128 *did, uint32_t site,
                        uint32_t toks_count) {
    if (l->deltas_count >= l->deltas_cap) deltas_grow(l);
    struct delta *d = mem_alloc(1, delta_bytes(toks_count));
    l->items_bytes += delta_bytes(toks_count);
    d->did = *did;
    d->site = site;
    d->toks_count = toks_count;
    d->serial = ++l->serial_last;
    struct delta **slot = delta_slot(l, did);
    d->hash_next = *slot;
    *slot = d;
    l->deltas_count++;
    return d;
}

void delta_live_set(struct ledger *l, struct delta *d, uint32_t spans_count) {
    d->live = mem_alloc(1, live_bytes(spans_count));
    d->live->spans_count = spans_count;
    l->items_bytes += live_bytes(spans_count);
}

void delta_reason_set(struct ledger *l, struct delta *d, const char *reason) {
    CHECK(d->reason == NULL);
    d->reason = mem_strdup(reason);
    l->items_bytes += strlen(reason) + 1;
}

static void list_add(struct delta_list *list, struct delta *d) {
    d->list_prev = list->last;
    d->list_next = NULL;
    if (list->last)
        list->last->list_next = d;
    else
        list->first = d;
    list->last = d;
    list->count++;
}

static void list_remove(struct delta_list *list, struct delta *d) {
    if (d->list_prev)
        d->list_prev->list_next = d->list_next;
    else
        list->first = d->list_next;
    if (d->list_next)
        d->list_next->list_prev = d->list_prev;
    else
        list->last = d->list_prev;
    list->count--;
}

static void delta_forget(struct ledger *l, struct delta *d) {
    struct delta **at = delta_slot(l, &d->did);
    while (*at != d) {
        CHECK(*at != NULL);
        at = &(*at)->hash_next;
    }
    *at = d->hash_next;
    l->deltas_count--;
    list_remove(&l->final, d);
    l->items_bytes -= delta_bytes(d->toks_count) + (d->reason ? strlen(d->reason) + 1 : 0);
    mem_free(d->reason);
    mem_free(d);
}

void delta_stage_link(struct ledger *l, struct delta *d) {
    d->state = DELTA_STAGED;
    list_add(&l->staged, d);
    ledger_site(l, d->site)->staged++;
}

void delta_finish(struct ledger *l, struct delta *d, enum delta_state state, const char *reason) {
    if (d->state == DELTA_STAGED) {
        list_remove(&l->staged, d);
        ledger_site(l, d->site)->staged--;
        l->items_bytes -= live_bytes(d->live->spans_count);
        mem_free(d->live);
        d->live = NULL;
    }
    d->state = state;
    if (reason) delta_reason_set(l, d, reason);
    list_add(&l->final, d);
    if (l->final.count > LEDGER_FINAL_MAX) delta_forget(l, l->final.first);
}

struct delta *ledger_staged_first(const struct ledger *l) {
    return l->staged.first;
}

struct delta *ledger_final_first(const struct ledger *l) {
    return l->final.first;
}

uint32_t ledger_deltas_staged(const struct ledger *l) {
    return l->staged.count;
}

static const struct delta *consumer_in(const struct delta_list *list, uint64_t tok) {
    for (const struct delta *d = list->last; d; d = d->list_prev)
        for (uint32_t i = 0; i < d->toks_count; i++)
            if (d->toks[i] == tok && d->state != DELTA_REJECTED) return d;
    return NULL;
}

const struct delta *ledger_consumer(const struct ledger *l, uint64_t tok) {
    const struct delta *d = consumer_in(&l->staged, tok);
    return d ? d : consumer_in(&l->final, tok);
}

/* ---- Reasons
 * ------------------------------------------------------------------------------------ */

static uint32_t reason_find(const struct ledger *l, const char *reason) {
    for (uint32_t i = 1; i < l->reasons_count; i++)
        if (strcmp(l->reasons[i], reason) == 0) return i;
    return 0;
}

uint32_t reason_number(struct ledger *l, const char *reason) {
    uint32_t n = reason_find(l, reason);
    if (n) return n;
    if (l->reasons_count >= l->reasons_cap) {
        uint32_t cap = l->reasons_cap ? l->reasons_cap * 2 : 4;
        l->reasons = mem_grow(l->reasons, l->reasons_cap, cap, sizeof *l->reasons);
        l->reasons_cap = cap;
        if (l->reasons_count == 0) l->reasons_count = 1;
    }
    n = l->reasons_count++;
    size_t bytes = strlen(reason);
    CHECK(bytes < LEASE_REASON_MAX);
    memcpy(l->reasons[n], reason, bytes + 1);
    return n;
}

const char *ledger_reason_fit(const struct ledger *l, const char *reason) {
    return l->reasons_count < LEDGER_REASONS_MAX || reason_find(l, reason) ? reason : "other";
}

/* ---- Epochs
 * ------------------------------------------------------------------------------------- */

struct epoch *epoch_add(struct ledger *l) {
    if (l->epochs_count == l->epochs_cap) {
        uint32_t cap = l->epochs_cap ? l->epochs_cap * 2 : 2;
        l->epochs = mem_grow(l->epochs, l->epochs_cap, cap, sizeof *l->epochs);
        l->epochs_cap = cap;
    }
    return &l->epochs[l->epochs_count++];
}

/* ---- Life
 * --------------------------------------------------------------------------------------- */

struct ledger *ledger_create(uint64_t positions, uint32_t epochs_max) {
    CHECK(positions > 0);
    CHECK(epochs_max <= LEDGER_EPOCHS_MAX);
    struct ledger *l = mem_alloc(1, sizeof *l);
    l->positions = positions;
    l->epochs_max = epochs_max;
    return l;
}

void ledger_destroy(struct ledger *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->epochs_count; i++) extents_fini(&l->epochs[i].x);
    for (uint32_t i = 0; i < l->leases_cap; i++) {
        for (struct lease *a = l->leases[i], *next; a; a = next) {
            next = a->hash_next;
            mem_free(a);
        }
    }
    for (uint32_t i = 0; i < l->deltas_cap; i++) {
        for (struct delta *d = l->deltas[i], *next; d; d = next) {
            next = d->hash_next;
            mem_free(d->reason);
            mem_free(d->live);
            mem_free(d);
        }
    }
    mem_free(l->epochs);
    mem_free(l->leases);
    mem_free(l->deltas);
    mem_free(l->sites);
    mem_free(l->reasons);
    mem_free(l);
}

size_t ledger_bytes(const struct ledger *l) {
    size_t n = sizeof *l + l->items_bytes;
    for (uint32_t i = 0; i < l->epochs_count; i++)
        n += sizeof l->epochs[i] + l->epochs[i].x.pool_cap * sizeof(struct extent);
    n += l->leases_cap * sizeof *l->leases + l->deltas_cap * sizeof *l->deltas;
    n += l->sites_cap * sizeof *l->sites + l->reasons_cap * sizeof *l->reasons;
    return n;
}
