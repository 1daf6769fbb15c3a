/* SPDX-License-Identifier: Apache-2.0 */
/* audit_state.c - the audit's picture of all positions: for each epoch a gapless list of runs, so that a
 * position cannot be in two states; and the tables of leases, contributions and versions. */
#include <stdio.h>
#include <string.h>

#include "cli/audit.h"

void audit_init(struct audit *a) {
    memset(a, 0, sizeof *a);
    a->reasons = audit_push(a->reasons, &a->reasons_count, &a->reasons_cap, sizeof *a->reasons);
}

void audit_fini(struct audit *a) {
    for (size_t i = 0; i < a->epochs_count; i++) mem_free(a->epochs[i].runs);
    for (size_t i = 0; i < a->leases_count; i++) mem_free(a->leases[i].ranges);
    for (size_t i = 0; i < a->deltas_count; i++) mem_free(a->deltas[i].segments);
    for (size_t i = 0; i < a->versions_count; i++) mem_free(a->versions[i].parts);
    mem_free(a->epochs);
    mem_free(a->leases);
    mem_free(a->deltas);
    mem_free(a->index);
    mem_free(a->versions);
    mem_free(a->sites);
    mem_free(a->reasons);
    mem_free(a->before);
    buf_fini(&a->import);
    memset(a, 0, sizeof *a);
}

void audit_finding(struct audit *a, const char *fmt, ...) {
    va_list ap;
    if (a->findings_count++ >= AUDIT_FINDINGS_MAX) return;
    char *text = a->findings[a->findings_count - 1];
    int n = snprintf(text, sizeof a->findings[0], "record %llu: ", (unsigned long long)a->seq);
    va_start(ap, fmt);
    (void)vsnprintf(text + n, sizeof a->findings[0] - (size_t)n, fmt, ap);
    va_end(ap);
}

void *audit_push(void *array, size_t *count, size_t *cap, size_t element_bytes) {
    if (*count == *cap) {
        size_t more = *cap < 16 ? 16 : *cap * 2;
        array = mem_grow(array, *cap, more, element_bytes);
        *cap = more;
    }
    memset((uint8_t *)array + *count * element_bytes, 0, element_bytes);
    (*count)++;
    return array;
}

/* ---- Runs ------------------------------------------------------------------------------------------ */
void audit_epoch_open(struct audit *a) {
    a->epochs = audit_push(a->epochs, &a->epochs_count, &a->epochs_cap, sizeof *a->epochs);
    struct audit_epoch *ep = &a->epochs[a->epochs_count - 1];
    if (a->positions == 0) return;
    ep->runs = audit_push(ep->runs, &ep->count, &ep->cap, sizeof *ep->runs);
    ep->runs[0].count = a->positions;
}

/* Index of the run that holds a position. */
static size_t run_at(const struct audit_epoch *ep, uint64_t position) {
    size_t low = 0, high = ep->count;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (ep->runs[mid].start <= position)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Makes a run begin at a position; gives its index. */
static size_t split_at(struct audit_epoch *ep, uint64_t position) {
    size_t i = run_at(ep, position);
    if (ep->runs[i].start == position) return i;
    ep->runs = audit_push(ep->runs, &ep->count, &ep->cap, sizeof *ep->runs);
    memmove(&ep->runs[i + 1], &ep->runs[i], (ep->count - 1 - i) * sizeof *ep->runs);
    struct audit_run *left = &ep->runs[i], *right = left + 1;
    right->count = left->start + left->count - position;
    left->count = position - left->start;
    right->start = position;
    return i + 1;
}

size_t audit_runs_cut(struct audit *a, uint32_t epoch, uint64_t start, uint64_t count,
                      size_t *out_first) {
    *out_first = 0;
    if (epoch >= a->epochs_count || count == 0) return 0;
    if (start >= a->positions || count > a->positions - start) return 0;
    struct audit_epoch *ep = &a->epochs[epoch];
    size_t first = split_at(ep, start);
    size_t end = start + count == a->positions ? ep->count : split_at(ep, start + count);
    *out_first = first;
    return end - first;
}

static bool runs_alike(const struct audit_run *x, const struct audit_run *y) {
    return x->state == y->state && x->crashes == y->crashes && x->reason == y->reason &&
           x->owner == y->owner;
}

void audit_runs_join(struct audit *a, uint32_t epoch, size_t first, size_t n) {
    struct audit_epoch *ep = &a->epochs[epoch];
    if (ep->count == 0) return;
    size_t kept = first > 0 ? first - 1 : 0,
           end = first + n < ep->count ? first + n + 1 : ep->count;
    for (size_t i = kept + 1; i < end; i++) {
        if (runs_alike(&ep->runs[kept], &ep->runs[i]))
            ep->runs[kept].count += ep->runs[i].count;
        else
            ep->runs[++kept] = ep->runs[i];
    }
    memmove(&ep->runs[kept + 1], &ep->runs[end], (ep->count - end) * sizeof *ep->runs);
    ep->count -= end - kept - 1;
}

void audit_epoch_counts(const struct audit_epoch *ep, uint64_t out[POS_STATES]) {
    for (size_t i = 0; i < ep->count; i++) out[ep->runs[i].state] += ep->runs[i].count;
}

void audit_counts(const struct audit *a, uint64_t out[POS_STATES]) {
    memset(out, 0, POS_STATES * sizeof *out);
    for (size_t i = 0; i < a->epochs_count; i++) audit_epoch_counts(&a->epochs[i], out);
}

/* ---- The ledger (journal.md, section 6) --------------------------------------------------------------- */
static void put_varint(struct buf *out, uint64_t v) {
    while (v >= 0x80) {
        buf_u8(out, (uint8_t)(v | 0x80));
        v >>= 7;
    }
    buf_u8(out, (uint8_t)v);
}

/* What a run is in the ledger: open, merged or skipped; owner and reason count only for the last two. */
static struct audit_run ledger_view(const struct audit_run *r) {
    struct audit_run v = *r;
    v.crashes = 0;
    v.state = r->state == POS_MERGED ? 1 : r->state == POS_SKIPPED ? 2 : 0;
    if (v.state == 0) v.owner = 0;
    if (v.state != 2) v.reason = 0;
    return v;
}

void audit_epoch_ledger(const struct audit *a, const struct audit_epoch *ep, struct buf *out) {
    for (size_t i = 0; i < ep->count;) {
        struct audit_run r = ledger_view(&ep->runs[i]);
        for (i++; i < ep->count; i++) {
            struct audit_run next = ledger_view(&ep->runs[i]);
            if (!runs_alike(&r, &next)) break;
            r.count += next.count;
        }
        buf_u8(out, r.state);
        put_varint(out, r.count);
        if (r.state != 0) put_varint(out, r.owner);
        if (r.state == 2) {
            size_t n = strlen(a->reasons[r.reason]);
            buf_u8(out, (uint8_t)n);
            buf_put(out, a->reasons[r.reason], n);
        }
    }
}

void audit_ledger(const struct audit *a, struct buf *out) {
    buf_put(out, "BRGLEDG1", 8);
    put_varint(out, a->head);
    put_varint(out, a->epochs_count);
    put_varint(out, a->positions);
    for (size_t i = 0; i < a->epochs_count; i++) {
        struct buf runs;
        buf_init(&runs, out->bytes_max);
        audit_epoch_ledger(a, &a->epochs[i], &runs);
        put_varint(out, runs.bytes_count);
        if (runs.bytes_count > 0) buf_put(out, runs.data, runs.bytes_count);
        buf_fini(&runs);
    }
}

/* ---- Tables ------------------------------------------------------------------------------------------- */
struct audit_lease *audit_lease_find(struct audit *a, uint64_t tok) {
    size_t low = 0, high = a->leases_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (a->leases[mid].tok == tok) return &a->leases[mid];
        if (a->leases[mid].tok < tok)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static size_t slot_of(const struct audit *a, const struct id128 *did) {
    size_t i = (size_t)(mix64(get_le64(did->v) ^ mix64(get_le64(did->v + 8))) & (a->index_cap - 1));
    while (a->index[i] != 0 && !id_equal(&a->deltas[a->index[i] - 1].did, did))
        i = (i + 1) & (a->index_cap - 1);
    return i;
}

struct audit_delta *audit_delta_find(struct audit *a, const struct id128 *did) {
    if (a->index_cap == 0) return NULL;
    size_t i = slot_of(a, did);
    return a->index[i] != 0 ? &a->deltas[a->index[i] - 1] : NULL;
}

struct audit_delta *audit_delta_add(struct audit *a, const struct id128 *did) {
    a->deltas = audit_push(a->deltas, &a->deltas_count, &a->deltas_cap, sizeof *a->deltas);
    a->deltas[a->deltas_count - 1].did = *did;
    if (a->deltas_count * 2 > a->index_cap) { /* at most half full: short searches */
        mem_free(a->index);
        a->index_cap = a->index_cap == 0 ? 64 : a->index_cap * 2;
        a->index = mem_alloc(a->index_cap, sizeof *a->index);
        for (size_t i = 0; i < a->deltas_count; i++)
            a->index[slot_of(a, &a->deltas[i].did)] = (uint32_t)(i + 1);
    } else {
        a->index[slot_of(a, did)] = (uint32_t)a->deltas_count;
    }
    return &a->deltas[a->deltas_count - 1];
}

struct audit_version *audit_version_find(struct audit *a, uint64_t version) {
    size_t low = 0, high = a->versions_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (a->versions[mid].version == version) return &a->versions[mid];
        if (a->versions[mid].version < version)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

uint64_t audit_taken(struct audit *a) {
    const struct audit_version *head = audit_version_find(a, a->head);
    return head != NULL ? head->taken : 0;
}

const struct audit_version *audit_parent(struct audit *a, const struct audit_version *v) {
    return v->parent < v->version ? audit_version_find(a, v->parent) : NULL;
}

bool audit_is_ancestor(struct audit *a, uint64_t version) {
    const struct audit_version *v = audit_version_find(a, a->head);
    while (v != NULL && v->version > version) v = audit_parent(a, v);
    return v != NULL && v->version == version;
}

uint32_t audit_reason(struct audit *a, const char *text) {
    for (size_t i = 1; i < a->reasons_count; i++) /* 0 stands for no skip at all */
        if (strcmp(a->reasons[i], text) == 0) return (uint32_t)i;
    a->reasons = audit_push(a->reasons, &a->reasons_count, &a->reasons_cap, sizeof *a->reasons);
    (void)snprintf(a->reasons[a->reasons_count - 1], AUDIT_REASON_MAX, "%s", text);
    return (uint32_t)(a->reasons_count - 1);
}
