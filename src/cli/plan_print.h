/* SPDX-License-Identifier: Apache-2.0 */
/* plan_print.h - a plan in words and figures, or as JSON. Pure. */
#ifndef CLI_PLAN_PRINT_H
#define CLI_PLAN_PRINT_H

#include "place/live.h"

struct plan_sent { /* what became of an action */
    bool sent;
    uint64_t order;    /* number of the order that was given, or is being cancelled */
    char problem[200]; /* what the hub said against it; "": nothing */
};
struct plan_look {
    const struct live *live;
    const struct plan_state *state;
    const struct live_site_view *views;
    const struct plan_result *result;
    const struct plan_options *options;
    const struct plan_sent *sent; /* one an action; NULL: nothing was sent */
    const char *idle; /* why there is no plan at all (the run is complete, ...); or NULL */
};
void plan_print_text(const struct plan_look *k, struct buf *out);
void plan_print_json(const struct plan_look *k, struct buf *out); /* one line */

#endif
