/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - see watch.h.
 *
 * A connection that has shown a good token is a friend's: it may idle between two requests, and only a body
 * that trickles is cut. One that has not is given `patience` for everything before its first good request,
 * and there are only so many of them, of one address and in all: the oldest goes when a new one comes. So
 * whoever opens connections without end takes the places of his own, and friends keep theirs.
 *
 * Invariants
 *   (V1) strangers of one address are at most WATCH_STRANGERS_OF_ADDRESS, in all at most strangers_max, those
 *        that are being cut not counted.
 *   (V2) a friend's connection is never cut to make room. */
#include "hub/watch.h"

void watch_add(struct watch_list *l, struct watch *w) {
    w->older = l->newest;
    w->newer = NULL;
    if (l->newest != NULL)
        l->newest->newer = w;
    else
        l->oldest = w;
    l->newest = w;
    l->count++;
    l->strangers += !w->admitted;
}

void watch_remove(struct watch_list *l, struct watch *w) {
    if (w->older != NULL)
        w->older->newer = w->newer;
    else
        l->oldest = w->newer;
    if (w->newer != NULL)
        w->newer->older = w->older;
    else
        l->newest = w->older;
    l->count--;
    l->strangers -= !w->admitted;
}

void watch_admit(struct watch_list *l, struct watch *w) {
    if (!w->admitted) l->strangers--;
    w->admitted = true;
}

time_ns watch_deadline(const struct watch *w, time_ns patience, time_ns idle) {
    if (w->cut || w->phase == WATCH_ANSWER) return TIME_NS_NEVER;
    if (w->phase == WATCH_IDLE) return w->since + (w->admitted ? idle : patience);
    double earned = (double)w->received / WATCH_BODY_BYTES_PER_S;
    return w->since + 3 * patience + (time_ns)(earned * 1e9);
}

struct watch *watch_surplus(const struct watch_list *l, uint64_t address, uint32_t strangers_max) {
    uint32_t here = 0, all = 0;
    struct watch *of_address = NULL, *of_all = NULL;
    for (struct watch *w = l->oldest; w != NULL; w = w->newer) {
        if (w->admitted || w->cut) continue;
        CHECK(!w->admitted); /* V2 */
        all++;
        if (of_all == NULL) of_all = w;
        if (w->address != address) continue;
        here++;
        if (of_address == NULL) of_address = w;
    }
    struct watch *w = here > WATCH_STRANGERS_OF_ADDRESS ? of_address
                      : all > strangers_max             ? of_all
                                                        : NULL;
    CHECK(w != NULL || (here <= WATCH_STRANGERS_OF_ADDRESS && all <= strangers_max)); /* V1 */
    return w;
}
