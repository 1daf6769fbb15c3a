/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_merge.c - byte pair encoding of one word: of all neighbours that form a merge, the one
 * of the lowest rank is joined first, the leftmost where ranks are equal.
 *
 * Words are a few bytes long as a rule, and then looking at all pairs again after each join is the
 * fastest way. It is quadratic, so a word beyond MERGE_SHORT_MAX (a line of dashes, a base64
 * block, a megabyte of one letter from someone who means harm) goes through a heap instead: n log
 * n. */
#include "data/tokenizer.h"

void pair_table_init(struct pair_table *p, size_t pairs_max) {
    p->bits = 4;
    while ((UINT64_C(1) << p->bits) < 2 * (uint64_t)pairs_max + 2) p->bits++;
    size_t n = (size_t)1 << p->bits;
    p->slots = mem_alloc(n, sizeof *p->slots);
    for (size_t i = 0; i < n; i++) p->slots[i].key = UINT64_MAX;
}

bool pair_table_put(struct pair_table *p, uint32_t left, uint32_t right, uint32_t rank,
                    uint32_t id) {
    uint64_t key = (uint64_t)left << 32 | right;
    uint64_t mask = (UINT64_C(1) << p->bits) - 1;
    uint64_t i = (key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - p->bits);
    while (p->slots[i].key != UINT64_MAX) {
        if (p->slots[i].key == key) return false;
        i = (i + 1) & mask;
    }
    p->slots[i] = (struct pair_slot){.key = key, .rank = rank, .id = id};
    return true;
}

static size_t merge_short(const struct tokenizer *t, uint32_t *ids, size_t count) {
    uint32_t rank[MERGE_SHORT_MAX], id[MERGE_SHORT_MAX]; /* of the pair (i, i+1) */
    CHECK(count <= MERGE_SHORT_MAX);
    for (size_t i = 0; i + 1 < count; i++) {
        const struct pair_slot *s = pair_table_find(&t->pairs, ids[i], ids[i + 1]);
        rank[i] = s == NULL ? TOKEN_NONE : s->rank;
        id[i] = s == NULL ? 0 : s->id;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == TOKEN_NONE) break;
        ids[best] = id[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i]; /* the pair (best, best+1) is computed below */
            id[i - 1] = id[i];
        }
        for (size_t i = best == 0 ? 0 : best - 1; i <= best && i + 1 < count; i++) {
            const struct pair_slot *s = pair_table_find(&t->pairs, ids[i], ids[i + 1]);
            rank[i] = s == NULL ? TOKEN_NONE : s->rank;
            id[i] = s == NULL ? 0 : s->id;
        }
    }
    return count;
}

/* ---- Long words: a list of symbols and a heap of candidate pairs, stale ones left in it
 * ---------- */
struct candidate {
    uint32_t rank, at, id, left_id, right_id; /* the ids tell whether the pair is still there */
};
struct heap {
    struct candidate *items;
    size_t count;
};

static bool candidate_before(const struct candidate *a, const struct candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct heap *h, struct candidate c) {
    size_t i = h->count++;
    while (i > 0 && candidate_before(&c, &h->items[(i - 1) / 2])) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = c;
}

static struct candidate heap_pop(struct heap *h) {
    struct candidate top = h->items[0], last = h->items[--h->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count && candidate_before(&h->items[child + 1], &h->items[child]))
            child++;
        if (!candidate_before(&h->items[child], &last)) break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

struct symbols {
    uint32_t *ids, *next, *prev; /* next and prev: TOKEN_NONE at the ends */
};

static void candidate_add(const struct tokenizer *t, const struct symbols *y, struct heap *h,
                          uint32_t at) {
    if (at == TOKEN_NONE || y->next[at] == TOKEN_NONE) return;
    uint32_t left = y->ids[at], right = y->ids[y->next[at]];
    const struct pair_slot *s = pair_table_find(&t->pairs, left, right);
    if (s == NULL) return;
    heap_push(h, (struct candidate){
                     .rank = s->rank, .at = at, .id = s->id, .left_id = left, .right_id = right});
}

static size_t merge_long(const struct tokenizer *t, uint32_t *ids, size_t count) {
    CHECK(count < TOKEN_NONE);
    /* Each join takes one symbol away and adds at most two candidates: 3n is enough. */
    AUTO_FREE struct candidate *items = mem_alloc(3 * count, sizeof *items);
    AUTO_FREE uint32_t *links = mem_alloc(2 * count, sizeof *links);
    struct symbols y = {.ids = ids, .next = links, .prev = links + count};
    struct heap h = {.items = items};
    for (uint32_t i = 0; i < count; i++) {
        y.next[i] = i + 1 < count ? i + 1 : TOKEN_NONE;
        y.prev[i] = i > 0 ? i - 1 : TOKEN_NONE;
    }
    for (uint32_t i = 0; i + 1 < count; i++) candidate_add(t, &y, &h, i);
    while (h.count > 0) {
        struct candidate c = heap_pop(&h);
        if (ids[c.at] != c.left_id || y.next[c.at] == TOKEN_NONE) continue;
        uint32_t gone = y.next[c.at];
        if (ids[gone] != c.right_id) continue;
        ids[c.at] = c.id;
        ids[gone] = TOKEN_NONE; /* no candidate that starts here is valid any more */
        y.next[c.at] = y.next[gone];
        if (y.next[gone] != TOKEN_NONE) y.prev[y.next[gone]] = c.at;
        candidate_add(t, &y, &h, y.prev[c.at]);
        candidate_add(t, &y, &h, c.at);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != TOKEN_NONE; i = y.next[i]) ids[kept++] = ids[i];
    return kept;
}

size_t tokenizer_merge(const struct tokenizer *t, uint32_t *ids, size_t count) {
    if (count < 2 || t->merges_count == 0) return count;
    return count <= MERGE_SHORT_MAX ? merge_short(t, ids, count) : merge_long(t, ids, count);
}
