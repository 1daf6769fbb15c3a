/* SPDX-License-Identifier: Apache-2.0 */
/* json_view.h - private to the hub: its state as JSON, for people and programs. Pure. */
#ifndef HUB_JSON_VIEW_H
#define HUB_JSON_VIEW_H

#include "hub/links.h"
#include "hub/settings.h"

struct objects_view {  /* of the run's object store: objects_os.h */
    bool on, up, down; /* down: it was tried, and is not to be had */
    char cause[300];
    uint64_t objects, writes, reads, deletes, failures, bytes_up, bytes_down, times_down;
    double cost; /* of the requests since the start, by blobs.price_writes and blobs.price_reads */
};
struct mailbox_view { /* of those who come through it: mailbox_os.h */
    bool on, down;
    char cause[300];
    char address[300];                          /* "bucket:s3://..." */
    uint64_t requests, answers, refused, stale; /* taken, answered; not understood; too old */
    uint64_t lists, writes, reads, deletes, failures, bytes_in, bytes_out; /* writes: with lists */
    double cost;
};
struct view_extra {                       /* what the shore knows and the machine does not */
    bool full, away, stopping, merge_bad; /* merge_bad: the last merge did not work */
    double wall;                          /* seconds since 1970: the others here are durations */
    double uptime_s, round_s, merge_s, publish_s;
    uint64_t merges, merges_failed, full_times, away_times, requests, uploads_bytes, seq_durable;
    const struct hub_links *links;      /* borrowed; may be NULL */
    const struct objects_view *objects; /* the same */
    const struct mailbox_view *mailbox; /* the same */
};
void view_status(const struct hub *h, time_ns now, const struct run_settings *s,
                 const struct view_extra *x, struct buf *out);
/* Versions from..head, at most `max`; "next" tells where to go on. */
void view_rounds(const struct hub *h, time_ns now, uint64_t from, uint32_t max, struct buf *out);
/* One version as members of an object that the caller opened. */
void view_version(const struct hub_version_view *v, struct buf *out, bool *first);

#endif
