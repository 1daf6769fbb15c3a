/* SPDX-License-Identifier: Apache-2.0 */
/* limits.c - see limits.h.
 *
 * Invariants
 *   (Q1) over any time d, a key that keeps its bucket is given at most burst + rate d requests. */
#include <string.h>

#include "hub/limits.h"

void limits_init(struct limits *l, double rate, double burst) {
    CHECK(rate > 0);
    CHECK(burst >= 1);
    memset(l, 0, sizeof *l);
    l->rate = rate;
    l->burst = burst;
}

static struct bucket *bucket_of(struct limits *l, uint64_t key, time_ns now) {
    uint64_t mixed = mix64(key);
    struct bucket *set = l->buckets[mixed % LIMITS_SETS], *oldest = set;
    if (key == 0) key = 1; /* 0 says free */
    for (size_t i = 0; i < LIMITS_WAYS; i++) {
        if (set[i].key == key) return &set[i];
        if (set[i].key == 0 || (oldest->key != 0 && set[i].at < oldest->at)) oldest = &set[i];
    }
    *oldest = (struct bucket){.key = key, .level = l->burst, .at = now};
    return oldest;
}

static struct bucket *fill(struct limits *l, uint64_t key, time_ns now) {
    struct bucket *b = bucket_of(l, key, now);
    if (now > b->at) {
        b->level += l->rate * (double)(now - b->at) / 1e9;
        b->at = now;
    }
    if (b->level > l->burst) b->level = l->burst;
    CHECK(b->level <= l->burst); /* Q1 */
    return b;
}

static time_ns missing(const struct limits *l, const struct bucket *b) {
    return b->level >= 1 ? 0 : (time_ns)((1 - b->level) / l->rate * 1e9) + 1;
}

time_ns limits_take(struct limits *l, uint64_t key, time_ns now) {
    struct bucket *b = fill(l, key, now);
    time_ns wait = missing(l, b);
    if (wait == 0) b->level -= 1;
    return wait;
}

time_ns limits_wait(struct limits *l, uint64_t key, time_ns now) {
    return missing(l, fill(l, key, now));
}
