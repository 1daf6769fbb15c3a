/* SPDX-License-Identifier: Apache-2.0 */
/* audit_count.c - the counting model: no states, only sums. Every contribution in the ancestry of the head
 * adds 1 to each position that it holds; a position that an operator skipped counts as well. After a
 * sealed epoch every position must have exactly 1; before the seal at most 1. */
#include <stdlib.h>
#include <string.h>

#include "cli/audit.h"

struct edge { /* +1 where a segment begins, -1 behind its end */
    uint32_t epoch;
    int32_t step;
    uint64_t at;
};
struct edges {
    struct edge *v;
    size_t count, cap;
};

static void edges_add(struct edges *x, uint32_t epoch, uint64_t start, uint64_t count) {
    x->v = audit_push(x->v, &x->count, &x->cap, sizeof *x->v);
    x->v[x->count - 1] = (struct edge){epoch, 1, start};
    x->v = audit_push(x->v, &x->count, &x->cap, sizeof *x->v);
    x->v[x->count - 1] = (struct edge){epoch, -1, start + count};
}

static int by_place(const void *x, const void *y) {
    const struct edge *a = x, *b = y;
    if (a->epoch != b->epoch) return a->epoch < b->epoch ? -1 : 1;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->step - b->step; /* ends before beginnings */
}

/* Contributions of the head's ancestry. A parent that is missing was a finding already. */
static void add_ancestry(struct audit *a, struct edges *x) {
    const struct audit_version *v = audit_version_find(a, a->head);
    while (v != NULL && v->version > 0) {
        for (uint32_t i = 0; i < v->parts_count; i++) {
            const struct audit_delta *d = &a->deltas[v->parts[i]];
            for (size_t k = 0; k < d->segments_count; k++)
                edges_add(x, d->segments[k].epoch, d->segments[k].start, d->segments[k].count);
        }
        v = audit_parent(a, v);
    }
}

static void add_operator_skips(struct audit *a, struct edges *x) {
    for (uint32_t i = 0; i < a->epochs_count; i++) {
        const struct audit_epoch *ep = &a->epochs[i];
        for (size_t k = 0; k < ep->count; k++)
            if (ep->runs[k].state == POS_SKIPPED && ep->runs[k].owner == 0)
                edges_add(x, i, ep->runs[k].start, ep->runs[k].count);
    }
}

/* What a rebuilt run had in it when its journal began. A rollback cannot go behind that. */
static void add_before(struct audit *a, struct edges *x) {
    for (size_t i = 0; i < a->before_count; i++)
        edges_add(x, a->before[i].epoch, a->before[i].start, a->before[i].count);
}

static void sweep(struct audit *a, const struct edges *x, uint64_t *covered) {
    int64_t depth = 0;
    for (size_t i = 0; i + 1 < x->count; i++) {
        depth += x->v[i].step;
        CHECK(depth >= 0);
        if (x->v[i].epoch != x->v[i + 1].epoch) continue; /* depth is 0 here */
        uint64_t n = x->v[i + 1].at - x->v[i].at;
        if (depth > 0) covered[x->v[i].epoch] += n;
        if (depth > 1) a->doubled += n;
    }
}

void audit_count(struct audit *a) {
    struct edges x = {0};
    uint64_t *covered = mem_alloc(a->epochs_count + 1, sizeof *covered);
    add_ancestry(a, &x);
    add_before(a, &x);
    add_operator_skips(a, &x);
    if (x.count > 0) qsort(x.v, x.count, sizeof *x.v, by_place);
    sweep(a, &x, covered);
    for (uint32_t i = 0; i < a->epochs_count; i++) {
        uint64_t counts[POS_STATES] = {0};
        audit_epoch_counts(&a->epochs[i], counts);
        a->counted += covered[i];
        uint64_t recorded = counts[POS_MERGED] + counts[POS_SKIPPED];
        if (a->epochs[i].sealed && covered[i] < a->positions)
            a->lost += a->positions - covered[i];
        else if (covered[i] < recorded)
            a->lost += recorded - covered[i]; /* merged, but by nobody */
    }
    mem_free(covered);
    mem_free(x.v);
}
