/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.h - private to the hub: what happened lately, for a page that is opened late. Pure.
 *
 * Three bounded lists, kept in memory alone (they are for people's eyes; what counts is in the journal):
 *   states   when each site changed what it does             TIMELINE_STATES_MAX entries
 *   rounds   where the time of each round went               TIMELINE_ROUNDS_MAX
 *   jobs     what a scheduler promised, and what came of it  TIMELINE_JOBS_MAX
 * A full list forgets its oldest entries. They begin with the hub's process: `since` says so.
 *
 * All times are of the wall clock, in nanoseconds since 1970. One thread at a time. */
#ifndef HUB_TIMELINE_H
#define HUB_TIMELINE_H

#include "hub/hub.h"

enum { TIMELINE_STATES_MAX = 16384, TIMELINE_ROUNDS_MAX = 2048, TIMELINE_JOBS_MAX = 1024 };

/* What a site does, as one number: gone, joined but silent, or its phase. */
enum timeline_state { TIMELINE_AWAY = 0, TIMELINE_SILENT = 1, TIMELINE_PHASE = 2 };
uint8_t timeline_state_of(const struct hub_site_view *v);
const char *timeline_state_name(uint8_t state); /* "away", "silent", "joining", ... */

struct timeline_round {
    uint64_t version;     /* that the round made */
    time_ns began;        /* its parent was published, or the hub started */
    time_ns staged_first; /* the first contribution came; 0: before the hub started */
    time_ns staged_last;
    time_ns merge_began, merged, published;
};
struct timeline_job {
    char facility[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX], state[WIRE_WORD_MAX];
    uint64_t order, job, id, submit; /* seconds since 1970 */
    uint64_t estimated_at, estimate; /* the first promise: when it was made, of what */
    uint64_t estimate_last;          /* the newest one */
    uint64_t start, end;             /* what came; 0: not yet */
};

struct timeline;
struct timeline *timeline_create(time_ns wall); /* gives (free with timeline_destroy) */
void timeline_destroy(struct timeline *t);

/* Compares sites and jobs with what is known of them; called about once a second. */
void timeline_observe(struct timeline *t, const struct hub *h, time_ns now, time_ns wall);
/* A contribution that came at this time was staged. */
void timeline_staged(struct timeline *t, time_ns came);
/* What was staged so far is being merged; then the merge is done, after `took`, and published, or it
 * did not work. */
void timeline_merge_began(struct timeline *t, time_ns wall);
void timeline_merge_ended(struct timeline *t, uint64_t version, time_ns took, time_ns published);
void timeline_merge_failed(struct timeline *t);

/* {"now":..,"since":..,"states_from":..,"sites":[..],"rounds":[..],"jobs":[..]}: docs/protocol.md.
 * Of states and rounds only those later than `after`. */
void timeline_view(const struct timeline *t, const struct hub *h, time_ns now, time_ns wall,
                   time_ns after, struct buf *out);

#endif
