/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h - how often somebody may ask: a bucket of requests for each key, filled at a steady rate.
 * Pure: the time comes in.
 *
 * The table has a fixed size. A new key takes the place of whoever of its set was away longest; a bucket
 * that was lost in this way begins full again, so that a flood of keys can make the limit milder for
 * others, never stricter, and memory never grows. */
#ifndef HUB_LIMITS_H
#define HUB_LIMITS_H

#include "base/base.h"

enum { LIMITS_SETS = 256, LIMITS_WAYS = 4 };
struct limits {
    double rate, burst; /* requests a second; how many at once */
    struct bucket {
        uint64_t key; /* 0: free */
        double level;
        time_ns at;
    } buckets[LIMITS_SETS][LIMITS_WAYS];
};
/* rate > 0, burst >= 1. */
void limits_init(struct limits *l, double rate, double burst);
/* Takes one request out of the key's bucket and gives 0; or how long until there is one again. */
time_ns limits_take(struct limits *l, uint64_t key, time_ns now);
/* The same without taking. */
time_ns limits_wait(struct limits *l, uint64_t key, time_ns now);

#endif
