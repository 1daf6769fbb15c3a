/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - private to the gate: which connection is cut. Pure: the list and the time come in. */
#ifndef HUB_WATCH_H
#define HUB_WATCH_H

#include "base/base.h"

enum { WATCH_BODY_BYTES_PER_S = 2048, WATCH_STRANGERS_OF_ADDRESS = 32 };

enum watch_phase {
    WATCH_IDLE = 0, /* headers are awaited: of the first request, or of the next one */
    WATCH_BODY,     /* since the headers */
    WATCH_ANSWER    /* ours to send: no limit of this kind */
};

struct watch {
    int fd;
    uint64_t address; /* a number for the address that it comes from */
    time_ns since;    /* of the phase */
    enum watch_phase phase;
    bool admitted, cut;
    char token[12];    /* the id of the token that it was admitted for; "": none was wanted */
    uint64_t received; /* of the body */
    struct watch *older, *newer;
};
struct watch_list { /* in the order of their beginning */
    struct watch *oldest, *newest;
    uint32_t count, strangers;
};
void watch_add(struct watch_list *l, struct watch *w);
void watch_remove(struct watch_list *l, struct watch *w);
void watch_admit(struct watch_list *l, struct watch *w);
/* When it is overdue; TIME_NS_NEVER where it may take its time. */
time_ns watch_deadline(const struct watch *w, time_ns patience, time_ns idle);
/* The one to cut so that a new one of this address may stay; NULL: none. */
struct watch *watch_surplus(const struct watch_list *l, uint64_t address, uint32_t strangers_max);

#endif
