/* SPDX-License-Identifier: Apache-2.0 */
/* events_os.h - private to the hub's shore: who watches the run, and what is kept for them.
 *
 *   watch thread   once a second: looks at the machine, keeps the timeline, and, where somebody watches and
 *                  something changed, makes ONE snapshot
 *   viewers        a connection of GET /v1/events each: all send the same bytes, each at its own pace
 *
 * A viewer that is slow misses snapshots, and one that takes none for EVENTS_SLOW_S is dropped; the watch
 * thread, the machine and the other viewers never wait for it. */
#ifndef HUB_EVENTS_OS_H
#define HUB_EVENTS_OS_H

#include "hub/http_os.h"
#include "hub/json_view.h"
#include "hub/metrics.h"

enum {
    EVENTS_VIEWERS_MAX = 128,
    EVENTS_PERIOD_MS = 1000, /* one snapshot at most in this time, */
    EVENTS_PERIOD_MAX_MS = 30000,
    EVENTS_BYTES_PER_S = 256 * 1024, /* and for each viewer no more than this: thousands of sites */
    EVENTS_ALIVE_S = 2, /* a comment line at least, so that a dead connection is seen */
    EVENTS_SLOW_S = 10,
    EVENTS_SEND_BYTES = 64 * 1024, /* what the system may hold for one viewer */
};

struct events;
struct events *events_create(struct hub_server *s); /* starts the watch thread; gives */
/* Ends the thread, and tells every viewer's connection to end; before the connections are closed. */
void events_stop(struct events *e);
void events_destroy(struct events *e); /* once no connection is left */

/* What the timeline is told of; NULL is allowed (nothing is kept then). */
void events_staged(struct events *e, time_ns came);
void events_merge_began(struct events *e);
void events_merge_ended(struct events *e, uint64_t version, time_ns merge_took); /* published */
void events_merge_failed(struct events *e);

/* The timeline's lists, as JSON; with the server's lock held. */
void events_timeline(struct events *e, time_ns now, time_ns after, struct buf *out);
void events_figures(struct events *e, struct metrics_extra *m);

/* Under the server's lock (routes_os.c). */
struct view_extra server_view_extra(struct hub_server *s);

/* Handlers. */
enum MHD_Result handle_events(struct exchange *x); /* events_os.c */
enum MHD_Result handle_page(struct exchange *x);   /* dashboard_os.c, and all below */
enum MHD_Result handle_timeline(struct exchange *x);
enum MHD_Result handle_versions(struct exchange *x);
enum MHD_Result handle_heldout(struct exchange *x);
enum MHD_Result handle_metrics(struct exchange *x);

#endif
