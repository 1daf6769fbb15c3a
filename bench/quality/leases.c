/* SPDX-License-Identifier: Apache-2.0 */
/* leases.c - which samples a site trains: grants, counts and hand-ins through the program's ledger. */
#include "lab.h"

static void fine(enum lease_fault f) {
    if (f != LEASE_FINE) lab_fail(BRG_E_INTERNAL, lease_fault_text(f));
}

void lab_row(struct lab *b, uint64_t position, int32_t *row) {
    uint64_t per_pass = data_samples(b->data), pass = position / per_pass;
    if (b->order_of != pass) {
        /* Passes of seeds do not meet: each pair is an epoch number of its own. */
        data_order(b->data, (uint32_t)(b->o->seed * 64 + pass), &b->order);
        b->order_of = pass;
    }
    data_sample(b->data, order_sample(&b->order, position % per_pass), row);
}

static uint32_t live_sites(const struct lab *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->o->sites; i++) n += b->sites[i].live;
    return n;
}

/* Not more than a fair share of what is left, so that the sites end together. */
static bool grant(struct lab *b, struct lab_site *s) {
    if (s->leases_count == LAB_LEASES_MAX) return false;
    uint64_t left = ledger_count(b->ledger, 0, EXTENT_AVAILABLE);
    uint64_t share = left / live_sites(b), want = s->target * s->batch;
    if (want > share) want = share < s->batch ? s->batch : share;
    struct lab_lease *l = &s->leases[s->leases_count];
    *l = (struct lab_lease){.tok = ++b->tok, .nonce = ++b->nonce};
    l->spans_count = ledger_choose(b->ledger, 0, want, 3, s->batch, l->spans);
    if (l->spans_count == 0) return false;
    for (uint32_t i = 0; i < l->spans_count; i++) l->count += l->spans[i].count;
    struct lease_grant g = {.tok = l->tok,
                            .nonce = l->nonce,
                            .site = s->id,
                            .inc = s->inc,
                            .spans_count = l->spans_count,
                            .spans = l->spans};
    fine(ledger_grant(b->ledger, &g));
    s->leases_count++;
    return true;
}

static uint64_t position_of(const struct lab_lease *l, uint64_t at) {
    uint32_t i = 0;
    while (at >= l->spans[i].count) at -= l->spans[i++].count;
    return l->spans[i].start + at;
}

uint32_t lab_take(struct lab *b, struct lab_site *s) {
    size_t width = (size_t)data_seq_len(b->data) + 1;
    uint32_t n = 0;
    while (n < s->batch) {
        struct lab_lease *l = NULL;
        for (uint32_t i = 0; i < s->leases_count && !l; i++)
            if (s->leases[i].done < s->leases[i].count) l = &s->leases[i];
        if (!l && !grant(b, s)) break;
        if (!l) l = &s->leases[s->leases_count - 1];
        for (; n < s->batch && l->done < l->count; n++)
            lab_row(b, position_of(l, l->done++), s->rows + n * width);
    }
    return n;
}

/* What is left of a lease, as the ledger sees the rest: the spans behind `done`. */
static void cut_off(struct lab_lease *l) {
    uint64_t done = l->done;
    uint32_t first = 0;
    while (first < l->spans_count && done >= l->spans[first].count) done -= l->spans[first++].count;
    for (uint32_t i = first; i < l->spans_count; i++) l->spans[i - first] = l->spans[i];
    l->spans_count -= first;
    if (l->spans_count > 0) {
        l->spans[0].start += done;
        l->spans[0].count -= done;
    }
    l->count -= l->done;
    l->done = 0;
}

void lab_stage(struct lab *b, struct lab_site *s, const struct delta_info *info) {
    struct lease_part parts[LAB_LEASES_MAX];
    struct lab_lease rest = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->leases_count; i++) {
        struct lab_lease *l = &s->leases[i];
        if (l->done == 0) fine(ledger_free(b->ledger, l->tok, false, 0, &(uint64_t){0}));
        if (l->done == 0) continue;
        parts[n++] = (struct lease_part){l->tok, l->nonce, l->done};
        rest = *l;
    }
    struct lease_stage g = {.site = s->id,
                            .inc = s->inc,
                            .info = *info,
                            .parts = parts,
                            .parts_count = n,
                            .has_rest = rest.count > rest.done};
    put_le64(g.did.v, ++b->dids);
    if (g.has_rest) {
        g.rest_tok = ++b->tok;
        g.rest_nonce = ++b->nonce;
    }
    fine(ledger_stage(b->ledger, &g));
    s->did = g.did;
    s->leases_count = 0;
    if (!g.has_rest) return;
    rest.tok = g.rest_tok;
    rest.nonce = g.rest_nonce;
    cut_off(&rest);
    s->leases[s->leases_count++] = rest;
}

uint64_t lab_drop(struct lab *b, struct lab_site *s, bool crashed) {
    uint64_t vain = 0, quarantined = 0;
    for (uint32_t i = 0; i < s->leases_count; i++) {
        vain += s->leases[i].done;
        fine(ledger_free(b->ledger, s->leases[i].tok, crashed, 100, &quarantined));
    }
    s->leases_count = 0;
    return vain;
}
