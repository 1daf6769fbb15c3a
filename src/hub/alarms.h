/* SPDX-License-Identifier: Apache-2.0 */
/* alarms.h - private to the hub: what somebody should look at, in words, with what to do about it. Pure.
 *
 * Made from the state as it is at each look, so an alarm ends by itself when its cause has gone: nothing is
 * to be acknowledged. `beringia status`, the dashboard and /metrics all show this one list; docs/operating.md
 * explains each. */
#ifndef HUB_ALARMS_H
#define HUB_ALARMS_H

#include "hub/json_view.h"

enum alarm_level { ALARM_INFO = 0, ALARM_WARN = 1, ALARM_ERROR = 2 };
enum { ALARM_SUBJECT_MAX = WIRE_NAME_MAX, ALARM_TEXT_MAX = 200 };
struct alarm {
    const char *id; /* fixed word: "no_live_site" */
    enum alarm_level level;
    char subject[ALARM_SUBJECT_MAX]; /* the site or facility it is about; empty: the run */
    char text[ALARM_TEXT_MAX], remedy[ALARM_TEXT_MAX];
};
const char *alarm_level_name(enum alarm_level l); /* "info", "warn", "error" */

/* Calls visit for each, errors first, then warnings. Of many silent sites the first are named. */
void hub_alarms(const struct hub *h, time_ns now, const struct view_extra *x,
                void (*visit)(void *user, const struct alarm *a), void *user);
/* The member "alarms" of an object that the caller opened. */
void view_alarms(const struct hub *h, time_ns now, const struct view_extra *x, struct buf *out,
                 bool *first);

#endif
