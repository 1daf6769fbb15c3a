/* SPDX-License-Identifier: Apache-2.0 */
/* extents.c - the tree of extents.
 *
 * Everything is built from five steps: find, insert, erase (plain AVL), split (shorten a node,
 * insert the rest) and join (lengthen a node, erase its neighbour). A move splits at both ends of
 * its range, changes the tags between, and joins what became equal. start and count of a node may
 * change in place because split and join keep the order of starts.
 *
 * Invariants
 *   (I1) start + count of each extent is the start of the next one; the last ends at `positions`.
 *   (I8) counts[] add up to positions. */
#include "lease/extents.h"
#include "base/mutant.h"

#include <string.h>

enum { HEIGHT_MAX = 64, POOL_FIRST = 8 };

/* ---- Nodes
 * -------------------------------------------------------------------------------------- */

static uint32_t node_new(struct extents *x) {
    uint32_t n = x->free_first;
    if (n) {
        x->free_first = x->pool[n].left;
    } else {
        if (x->pool_used == x->pool_cap) {
            CHECK(x->pool_cap <= UINT32_MAX / 2);
            /* By halves: a ledger that has settled does not hold twice what it needs. */
            uint32_t cap = x->pool_cap + x->pool_cap / 2;
            x->pool = mem_grow(x->pool, x->pool_cap, cap, sizeof *x->pool);
            x->pool_cap = cap;
        }
        n = x->pool_used++;
    }
    x->nodes++;
    return n;
}

static void node_free(struct extents *x, uint32_t n) {
    x->pool[n].left = x->free_first;
    x->free_first = n;
    x->nodes--;
}

static void node_update(struct extents *x, uint32_t n) {
    struct extent *e = &x->pool[n];
    const struct extent *l = &x->pool[e->left],
                        *r = &x->pool[e->right]; /* [0]: height 0, nothing */
    e->height = (uint8_t)(1 + (l->height > r->height ? l->height : r->height));
    e->has_available = e->state == EXTENT_AVAILABLE || l->has_available || r->has_available;
}

static uint32_t rotate_right(struct extents *x, uint32_t n) {
    uint32_t l = x->pool[n].left;
    x->pool[n].left = x->pool[l].right;
    x->pool[l].right = n;
    node_update(x, n);
    node_update(x, l);
    return l;
}

static uint32_t rotate_left(struct extents *x, uint32_t n) {
    uint32_t r = x->pool[n].right;
    x->pool[n].right = x->pool[r].left;
    x->pool[r].left = n;
    node_update(x, n);
    node_update(x, r);
    return r;
}

static int lean(const struct extents *x, uint32_t n) {
    const struct extent *e = &x->pool[n];
    return (int)x->pool[e->left].height - (int)x->pool[e->right].height;
}

static uint32_t balance(struct extents *x, uint32_t n) {
    node_update(x, n);
    int by = lean(x, n);
    if (by > 1) {
        if (lean(x, x->pool[n].left) < 0) x->pool[n].left = rotate_left(x, x->pool[n].left);
        return rotate_right(x, n);
    }
    if (by < -1) {
        if (lean(x, x->pool[n].right) > 0) x->pool[n].right = rotate_right(x, x->pool[n].right);
        return rotate_left(x, n);
    }
    return n;
}

static uint32_t insert_at(struct extents *x, uint32_t at, uint32_t n) {
    if (!at) return n;
    struct extent *e = &x->pool[at];
    CHECK(x->pool[n].start != e->start); /* I1 */
    if (x->pool[n].start < e->start)
        e->left = insert_at(x, e->left, n);
    else
        e->right = insert_at(x, e->right, n);
    return balance(x, at);
}

static uint32_t erase_first(struct extents *x, uint32_t at, uint32_t *out_first) {
    struct extent *e = &x->pool[at];
    if (!e->left) {
        *out_first = at;
        return e->right;
    }
    e->left = erase_first(x, e->left, out_first);
    return balance(x, at);
}

static uint32_t erase_at(struct extents *x, uint32_t at, uint64_t start) {
    CHECK(at != 0);
    struct extent *e = &x->pool[at];
    if (start < e->start) {
        e->left = erase_at(x, e->left, start);
    } else if (start > e->start) {
        e->right = erase_at(x, e->right, start);
    } else {
        uint32_t l = e->left, r = e->right, first;
        node_free(x, at);
        if (!r) return l;
        uint32_t rest = erase_first(x, r, &first);
        x->pool[first].left = l;
        x->pool[first].right = rest;
        at = first;
    }
    return balance(x, at);
}

/* After the tag of the node at `start` changed: what its ancestors know about AVAILABLE. */
static void path_update(struct extents *x, uint64_t start) {
    uint32_t path[HEIGHT_MAX], depth = 0, n = x->root;
    for (;;) {
        CHECK(depth < HEIGHT_MAX);
        path[depth++] = n;
        if (x->pool[n].start == start) break;
        n = start < x->pool[n].start ? x->pool[n].left : x->pool[n].right;
        CHECK(n != 0);
    }
    while (depth > 0) node_update(x, path[--depth]);
}

/* ---- Finding
 * ------------------------------------------------------------------------------------ */

static uint32_t node_at(const struct extents *x, uint64_t pos) {
    CHECK(pos < x->positions);
    uint32_t n = x->root, best = 0;
    while (n) {
        if (x->pool[n].start <= pos) {
            best = n;
            n = x->pool[n].right;
        } else {
            n = x->pool[n].left;
        }
    }
    CHECK(best != 0); /* I1 */
    return best;
}

const struct extent *extents_at(const struct extents *x, uint64_t pos) {
    return &x->pool[node_at(x, pos)];
}

static uint32_t available_at(const struct extents *x, uint32_t n, uint64_t pos) {
    const struct extent *e = &x->pool[n];
    if (!n || !e->has_available) return 0;
    if (e->start < pos) return available_at(x, e->right, pos);
    uint32_t found = available_at(x, e->left, pos);
    if (found) return found;
    return e->state == EXTENT_AVAILABLE ? n : available_at(x, e->right, pos);
}

const struct extent *extents_available(const struct extents *x, uint64_t pos) {
    uint32_t n = available_at(x, x->root, pos);
    return n ? &x->pool[n] : NULL;
}

bool extents_all(const struct extents *x, uint64_t start, uint64_t count, enum extent_state state,
                 uint64_t ref) {
    if (count == 0 || start >= x->positions || count > x->positions - start) return false;
    for (uint64_t pos = start, end = start + count; pos < end;) {
        const struct extent *e = extents_at(x, pos);
        if (e->state != state || e->ref != ref) return false;
        pos = e->start + e->count;
    }
    return true;
}

const struct extent *extents_first(struct extents_iter *i, const struct extents *x) {
    i->x = x;
    i->depth = 0;
    for (uint32_t n = x->root; n; n = x->pool[n].left) i->stack[i->depth++] = n;
    return extents_next(i);
}

const struct extent *extents_next(struct extents_iter *i) {
    if (i->depth == 0) return NULL;
    const struct extents *x = i->x;
    const struct extent *e = &x->pool[i->stack[--i->depth]];
    for (uint32_t n = e->right; n; n = x->pool[n].left) {
        CHECK(i->depth < HEIGHT_MAX);
        i->stack[i->depth++] = n;
    }
    return e;
}

/* ---- Changing
 * ----------------------------------------------------------------------------------- */

static bool tags_equal(const struct extent *a, const struct extent *b) {
    return a->state == b->state && a->ref == b->ref && a->reason == b->reason &&
           a->crashes == b->crashes;
}

static void insert(struct extents *x, const struct extent *tag, uint64_t start, uint64_t count) {
    struct extent copy = *tag; /* tag may point into the pool, which may move */
    uint32_t n = node_new(x);
    copy.start = start;
    copy.count = count;
    copy.left = copy.right = 0;
    x->pool[n] = copy;
    node_update(x, n);
    x->root = insert_at(x, x->root, n);
}

/* Makes pos the start of an extent. */
static void split(struct extents *x, uint64_t pos) {
    if (pos >= x->positions) return;
    struct extent *e = &x->pool[node_at(x, pos)];
    if (e->start == pos) return;
    uint64_t end = e->start + e->count;
    e->count = pos - e->start;
    insert(x, e, pos, end - pos);
}

static void retag(struct extents *x, struct extent *e, const struct extent_move *m) {
    enum extent_state to = m->to;
    uint64_t ref = m->ref;
    uint32_t crashes = m->crash == CRASH_FORGET ? 0 : e->crashes, reason = m->reason;
    if (m->crash == CRASH_COUNT && m->crashes_max > 0) {
        if (crashes < UINT8_MAX) crashes++;
        if (crashes >= m->crashes_max) {
            to = MUTANT(DROP_AFTER_3) ? EXTENT_SKIPPED : EXTENT_QUARANTINED;
            ref = 0;
        }
    }
    if (m->skips && e->reason != 0) {
        to = EXTENT_SKIPPED;
        reason = e->reason;
    }
    x->counts[e->state] -= e->count;
    x->counts[to] += e->count;
    e->state = (uint8_t)to;
    e->ref = ref;
    e->reason = reason;
    e->crashes = (uint8_t)crashes;
}

void extents_move(struct extents *x, uint64_t start, uint64_t count, const struct extent_move *m) {
    CHECK(count > 0);
    CHECK(start < x->positions);
    CHECK(count <= x->positions - start);
    uint64_t end = start + count;
    split(x, start);
    split(x, end);
    for (uint64_t pos = start; pos < end;) {
        struct extent *e = &x->pool[node_at(x, pos)];
        bool was = e->state == EXTENT_AVAILABLE;
        retag(x, e, m);
        pos = e->start + e->count;
        if (was != (e->state == EXTENT_AVAILABLE)) path_update(x, e->start);
    }
    /* Join from the left neighbour up to the right one. */
    uint64_t pos = start > 0 ? start - 1 : start;
    while (pos < end) {
        struct extent *e = &x->pool[node_at(x, pos)];
        uint64_t next = e->start + e->count;
        if (next > end || next >= x->positions) break;
        uint32_t n = node_at(x, next);
        if (tags_equal(e, &x->pool[n])) {
            e->count += x->pool[n].count;
            x->root = erase_at(x, x->root, next);
            pos = next - 1; /* the same extent again: it may join the next one, too */
        } else {
            pos = next;
        }
    }
}

/* ---- Life
 * --------------------------------------------------------------------------------------- */

void extents_init_empty(struct extents *x, uint64_t positions) {
    *x = (struct extents){.positions = positions, .pool_cap = POOL_FIRST, .pool_used = 1};
    x->pool = mem_alloc(POOL_FIRST, sizeof *x->pool);
}

void extents_init(struct extents *x, uint64_t positions) {
    CHECK(positions > 0);
    extents_init_empty(x, positions);
    struct extent all = {.start = 0, .count = positions, .state = EXTENT_AVAILABLE};
    CHECK(extents_append(x, &all));
}

void extents_fini(struct extents *x) {
    mem_free(x->pool);
    *x = (struct extents){0};
}

bool extents_append(struct extents *x, const struct extent *e) {
    uint64_t end = 0;
    for (uint32_t s = 0; s < EXTENT_STATES; s++) end += x->counts[s];
    if (e->start != end || e->count == 0 || e->count > x->positions - end) return false;
    if (e->state >= EXTENT_STATES) return false;
    if (x->root && tags_equal(&x->pool[node_at(x, end - 1)], e)) return false;
    insert(x, e, e->start, e->count);
    x->counts[e->state] += e->count;
    return true;
}

void extents_check(const struct extents *x) {
    uint64_t counts[EXTENT_STATES] = {0}, end = 0, sum = 0;
    uint32_t nodes = 0;
    struct extents_iter i;
    const struct extent *last = NULL;
    for (const struct extent *e = extents_first(&i, x); e; e = extents_next(&i)) {
        CHECK(e->start == end); /* I1 */
        CHECK(e->count > 0);
        CHECK(!last || !tags_equal(last, e));
        CHECK((e->reason == 0) || e->state == EXTENT_STAGED || e->state == EXTENT_SKIPPED);
        const struct extent *l = &x->pool[e->left], *r = &x->pool[e->right];
        CHECK(l->height - r->height <= 1);
        CHECK(r->height - l->height <= 1);
        CHECK(e->has_available ==
              (e->state == EXTENT_AVAILABLE || l->has_available || r->has_available));
        counts[e->state] += e->count;
        end += e->count;
        nodes++;
        last = e;
    }
    CHECK(end == x->positions); /* I1 */
    CHECK(nodes == x->nodes);
    for (uint32_t s = 0; s < EXTENT_STATES; s++) {
        CHECK(counts[s] == x->counts[s]); /* I8 */
        sum += counts[s];
    }
    CHECK(sum == x->positions); /* I8 */
}
