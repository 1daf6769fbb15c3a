/* SPDX-License-Identifier: Apache-2.0 */
/* extents.h - one epoch's positions as a gapless chain of ranges, each in one state. Private to
 * lease.
 *
 * An extent is [start, start + count) with its tag. State is a property of a range, and the
 * extents of an epoch are a gapless chain from 0 to `positions`: no position can be in two states,
 * or in none (I1).
 * Neighbours with equal tags are always joined, so a state of the ledger has one form, and its
 * digest does not depend on the way that led to it. Tags of different leases or contributions are
 * never equal.
 *
 * Kept as an AVL tree over start in a pool of 40-byte nodes; each node knows whether its subtree
 * has an
 * AVAILABLE extent, so that find, split, join and "first AVAILABLE" are O(log n). Recursion is as
 * deep as the tree is high: at most 46 for 2^32 nodes. */
#ifndef LEASE_EXTENTS_H
#define LEASE_EXTENTS_H

#include <assert.h>

#include "lease/lease.h"

struct extent {
    uint64_t start, count;
    uint64_t ref; /* LEASED: tok; STAGED: serial of the delta; MERGED, SKIPPED: version; else 0 */
    uint32_t reason; /* STAGED, SKIPPED: number of the skip's reason; 0: not skipped */
    uint8_t state;   /* enum extent_state */
    uint8_t crashes;
    uint8_t height;
    uint8_t has_available; /* this node or one below */
    uint32_t left, right;  /* in the pool; 0: none */
};
static_assert(sizeof(struct extent) == 40, "a million extents are 40 MB");

struct extents {
    uint64_t positions;
    uint64_t counts[EXTENT_STATES]; /* positions in each state; their sum is positions (I8) */
    struct extent *pool;            /* [0] is never used */
    uint32_t pool_cap, pool_used, free_first, root, nodes;
};

/* What a move does to the tag of each extent in a range. */
enum crash_rule { CRASH_KEEP, CRASH_FORGET, CRASH_COUNT };
struct extent_move {
    enum extent_state to;
    uint64_t ref;
    uint32_t reason; /* for a skip that is being staged */
    bool skips;      /* MERGED: extents with a reason become SKIPPED and keep it */
    enum crash_rule crash;
    uint32_t crashes_max; /* COUNT: from here on QUARANTINED instead of `to`; 0: count nothing */
};

void extents_init(struct extents *x, uint64_t positions); /* all AVAILABLE */
void extents_fini(struct extents *x);
/* The extent that contains pos. Borrowed until the next move. */
const struct extent *extents_at(const struct extents *x, uint64_t pos);
/* The first AVAILABLE extent that starts at or after pos, or NULL. */
const struct extent *extents_available(const struct extents *x, uint64_t pos);
/* Whether every position of the range has this state and ref; false also where it is not inside. */
bool extents_all(const struct extents *x, uint64_t start, uint64_t count, enum extent_state state,
                 uint64_t ref);
void extents_move(struct extents *x, uint64_t start, uint64_t count, const struct extent_move *m);
/* In the order of positions: for (e = extents_first(&i, x); e; e = extents_next(&i)). No moves
 * between. */
struct extents_iter {
    const struct extents *x;
    uint32_t depth, stack[64];
};
const struct extent *extents_first(struct extents_iter *i, const struct extents *x);
const struct extent *extents_next(struct extents_iter *i);
/* Appends at the end while decoding: e->start must be where the chain ends so far. */
void extents_init_empty(struct extents *x, uint64_t positions);
bool extents_append(struct extents *x, const struct extent *e);
void extents_check(const struct extents *x);

#endif
