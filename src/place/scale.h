/* SPDX-License-Identifier: Apache-2.0 */
/* scale.h - bytes, seconds and money of a round, for any number of sites and any model: one hub, hubs below a hub, or an
 * object store that carries the weights. Pure; docs/scale.md is its output with words around it.
 *
 * A level is one exchange of topology.h, with the fan-out that comes nearest to the same number of children
 * everywhere. A design carries a number of sites while at each level the exchange takes no longer than the interval between
 * two; it is good while the delay is at most TOPO_DELAY_SHARE of it. What breaks first is named. */
#ifndef PLACE_SCALE_H
#define PLACE_SCALE_H

#include "place/topology.h"

enum scale_design { SCALE_FLAT, SCALE_TWO, SCALE_THREE, SCALE_STORE, SCALE_DESIGNS };
const char *scale_design_name(enum scale_design d); /* "one hub", "two levels", ... */

enum scale_limit { /* what a design breaks at */
                   SCALE_FITS,
                   SCALE_SITE_LINE, /* a child's line */
                   SCALE_HUB_LINE,  /* a hub's own line */
                   SCALE_MERGE,     /* processors and disk of a hub */
                   SCALE_CONTROL,   /* messages a second */
                   SCALE_DISK,      /* room on a hub's disk */
                   SCALE_LIMITS
};
const char *scale_limit_name(enum scale_limit l);
const char *scale_limit_remedy(enum scale_limit l); /* what then */

struct scale_settings { /* all double, all in scale_keys; units there */
    double h, k, codec_up, codec_down;
    double site_flops, step_tokens, memory_rate;
    double site_rate, region_rate, campus_rate, hub_rate, store_rate;
    double rtt, region_rtt, campus_rtt;
    double merge_rate, hub_threads, disk_rate, disk_bytes, keep;
    double messages, messages_rate, heartbeat_s, heartbeats_rate;
    double part_bytes;
    double egress, put_1000, get_1000, site_hour;
};
struct scale_key {
    const char *name;
    size_t offset;
    double def, min, max;
    const char *unit, *source;
};
const struct scale_key *scale_keys(size_t *out_count);
struct scale_settings scale_defaults(void);
/* "NAME=VALUE". E_CONFIG names the setting, and lists them where it is none. */
enum brg_status scale_set(struct scale_settings *s, const char *assignment, struct err *e) MUST_USE;

struct scale_level {
    uint32_t children; /* of each hub of this level */
    double hubs;       /* of this level */
    double interval_s;
    struct topo_cost cost;
    double delay_share; /* of the interval */
};
struct scale_row {
    uint64_t parameters;
    uint32_t sites, levels_count;
    enum scale_design design;
    double step_s, interval_steps, interval_s;  /* of the top */
    struct scale_level levels[TOPO_LEVELS_MAX]; /* [0] is the top */
    double top_bytes;   /* over the top hub's own line, both ways, a round of the top */
    double exposed_s;   /* of a site, a round of the top */
    double delay_share; /* the largest of all levels */
    enum scale_limit limit;
    double
        excess; /* by which factor it is exceeded; without a limit the largest share of what there is */
    double lines_usd, store_usd, exposed_usd; /* a round of the top */
    double share;                             /* of what the sites cost meanwhile */
};
/* sites >= 1. With two and three levels at least 2 hubs below the top; where there are too few sites for that,
 * out->levels_count is 0 and nothing else means anything. */
void scale_row(const struct scale_settings *s, enum scale_design d, uint64_t parameters,
               uint32_t sites, struct scale_row *out);
/* The largest number of sites, up to a million, that fits with all smaller ones tried on the way (a bisection); good: and
 * whose delay is good. 0: not one. out_next: what one site more breaks at. */
uint32_t scale_most(const struct scale_settings *s, enum scale_design d, uint64_t parameters,
                    bool good, struct scale_row *out_next);

#endif
