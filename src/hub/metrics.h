/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - private to the hub: its state in the text form of Prometheus. Pure.
 *
 * docs/metrics.md lists every name with its unit and meaning; a test compares the two. Names are a promise
 * to other people's dashboards: they are added, never changed. */
#ifndef HUB_METRICS_H
#define HUB_METRICS_H

#include "hub/json_view.h"

struct metrics_extra { /* what the shore knows besides view_extra */
    double cpu_s;      /* of this process, user and system */
    uint64_t resident_bytes, open_files, threads;
    uint64_t viewers, viewers_dropped, events;              /* of /v1/events */
    uint64_t connections, strangers, cut, refused, limited; /* gate_os.h */
    uint64_t disk_free_bytes;
};
void metrics_put(const struct hub *h, time_ns now, const struct run_settings *s,
                 const struct view_extra *x, const struct metrics_extra *m, struct buf *out);

#endif
