/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h - which levels, H and codec suit the links between sites, regional hubs and the top. Pure.
 *
 * A fabric label says where a site stands, from coarse to fine: "europe/alder/rack-3". Sites with the same first
 * word could have a regional hub of their own below the top, those with the same first two words one below that. What
 * is proposed follows from measured links (beringia doctor --links, or a file), the sites' seconds a step, the model's size
 * and the run's length.
 *
 * One exchange of a level, n children below one hub, P parameters, b bytes a parameter up and down:
 *   up    = max(P b_up / child's rate, n P b_up / hub's rate)          children send at once and share the hub's link
 *   down  = max(P b_down / child's rate, n P b_down / hub's rate)
 *   wait  = up + merge + down + 2 round trips      the arithmetic that `make bench-round` stands beside what it measures
 *   delay = wait / seconds a step                  of the sites below at their mean speed, by which the hub sets their shares
 * A site trains on meanwhile (local = global + own work that is not merged yet), so wait costs delay and no work, as long as
 * it is shorter than the interval between two exchanges. Exposed are two passes over the weights, EXPOSED_BYTES a parameter.
 *
 * A good exchange: a delay of at most TOPO_DELAY_SHARE of the interval (docs/quality.md: a thirtieth of the work at weights
 * that lack the merge costs 0.8 %); at least TOPO_ROUNDS_GOOD merges in a run (docs/outer.md).
 *
 * Invariants
 *   (T1) a proposal never says that a link carries a cadence which takes longer than its interval.
 *   (T2) a figure that nobody measured is never made up: a level whose links are not known is not proposed, and it is
 *        said what to measure. */
#ifndef PLACE_TOPOLOGY_H
#define PLACE_TOPOLOGY_H

#include "base/base.h"

enum {
    TOPO_LEVELS_MAX = 3, /* the top's sites; with one, with two kinds of regional hubs between */
    TOPO_SITES_MAX = 4096,
    TOPO_FABRICS_MAX = 256,
    TOPO_LABEL_MAX = 64, /* NUL included */
    TOPO_NAME_MAX = 48,
    TOPO_GROUPS_MAX = 512, /* hubs of one proposal, the top included */
    TOPO_NOTES_MAX = 64,
};

#define TOPO_DELAY_SHARE 0.05
#define TOPO_ROUNDS_GOOD 200.0
#define TOPO_MERGE_RATE                                                                            \
    2.5e9 /* docs/speed.md: three int4 contributions at 1.2 ns a parameter, one processor */
#define TOPO_MEMORY_RATE 10e9
#define TOPO_EXPOSED_BYTES 20.0 /* cut: read 4, write 4; rebase: read 8, write 4 */

enum topo_codec { TOPO_FP32, TOPO_BF16, TOPO_INT8, TOPO_INT4, TOPO_TOPK, TOPO_CODECS };
const char *topo_codec_name(enum topo_codec c);
/* Bytes of a parameter in a contribution or an update, without their 128 bytes of header. A test holds them to
 * codec_bytes() of src/outer. */
double topo_codec_bytes(enum topo_codec c);

/* Words of [a-z0-9_-], one to three of them, with '/' between; "" is no label. */
bool topo_label_valid(const char *label);
/* The first `words` words of a label into out; all of it where it has fewer. Gives how many it has. */
uint32_t topo_label_prefix(const char *label, uint32_t words, char out[TOPO_LABEL_MAX]);

struct topo_link { /* outward from one party: bytes a second; 0: not known */
    double rtt_s, up, down;
    double age_s; /* since it was measured; -1: a file's */
    bool known;
};
struct topo_site {
    char name[TOPO_NAME_MAX];
    char fabric[TOPO_LABEL_MAX]; /* "": none */
    double step_s;               /* seconds of an inner step; 0: not known */
    struct topo_link top;        /* to the top hub */
};
struct topo_fabric {            /* where a regional hub could stand */
    char label[TOPO_LABEL_MAX]; /* of one word or two */
    struct topo_link up;        /* from a hub there to the hub above */
    struct topo_link inner;     /* from a site there to a hub there */
    double hub_in,
        hub_out; /* that hub's own link below it, bytes a second; 0: as wide as all of them */
};
struct topology {
    uint64_t parameters;
    double steps_total;     /* inner steps of the run, one after another; 0: not known */
    double steps;           /* H in use, to be judged too; 0: none */
    enum topo_codec codec;  /* in use, up */
    enum topo_codec down;   /* in use, down */
    bool topk;              /* may be proposed: it wants an outer step without momentum */
    double hub_in, hub_out; /* the top's own link; 0: as wide as all of them together */
    double merge_rate;      /* parameters a second that a hub merges, of one contribution */
    double memory_rate;     /* bytes a second of a pass over the weights */
    uint32_t sites_count, fabrics_count;
    struct topo_site *sites;     /* [sites_count] */
    struct topo_fabric *fabrics; /* [fabrics_count] */
};

/* ---- One exchange: the arithmetic that plan and the scale model share -------------------------------- */
struct topo_exchange {
    uint64_t parameters;
    uint32_t children;
    double bytes_up, bytes_down; /* of a parameter */
    struct topo_link link;       /* the slowest child's, each figure */
    double hub_in, hub_out;      /* 0: no bound of its own */
    double merge_rate;
};
struct topo_cost {
    double child_up, child_down; /* bytes of one child and exchange */
    double hub_in, hub_out;      /* bytes over the hub's link, of all children */
    double up_s, merge_s, down_s, wait_s;
    bool hub_bound; /* the hub's own link is what it waits for, in either direction */
};
void topo_exchange_cost(const struct topo_exchange *x, struct topo_cost *out);
/* What the trainer itself waits for in a round: two passes over the weights. */
double topo_exposed_s(uint64_t parameters, double memory_rate);

/* ---- The proposal ------------------------------------------------------------------------------------ */
struct topo_group { /* one hub and what is below it */
    char label[TOPO_LABEL_MAX];
    uint32_t level;        /* 0: the top */
    uint32_t parent;       /* index; of the top itself: 0 */
    uint32_t sites, hubs;  /* children of each kind */
    double interval;       /* inner steps between two exchanges: H below, K times that above */
    enum topo_codec codec; /* both ways */
    struct topo_cost cost;
    double step_s;                /* of the sites below, at their mean speed */
    char slowest[TOPO_LABEL_MAX]; /* the child that takes longest on its own link */
    double delay;                 /* steps */
    bool carried;                 /* wait is at most the interval */
    bool good;                    /* and the delay within DELAY_SHARE of it */
};
struct topo_plan {     /* one candidate: so many kinds of hubs, one above another */
    uint32_t levels;   /* 1: all sites at the top */
    bool possible;     /* every link of it is known */
    char missing[160]; /* not possible: what to measure */
    double h;          /* inner steps of a site in a round of the lowest level */
    double k;          /* rounds of a level in one of the level above; 1 with one level */
    bool carried, good;
    double merges;    /* at the top, in the whole run; 0: not known */
    double top_bytes; /* over the top's link, both ways, an inner step */
    double exposed_s; /* a round of the lowest level */
    uint32_t groups_count;
    struct topo_group groups[TOPO_GROUPS_MAX];
};
struct topo_proposal {
    struct topo_plan *plans;  /* [TOPO_LEVELS_MAX]: with 1, 2, 3 levels */
    uint32_t chosen;          /* index; plans[0] where none is possible */
    struct topo_group in_use; /* the settings in use, at one level; interval 0: none given */
    uint32_t notes_count;
    char notes[TOPO_NOTES_MAX][240]; /* warnings, whole sentences */
};
/* E_CONFIG: no sites, a label, or figures that are none. The proposal is to be freed with topo_proposal_free. */
enum brg_status topo_check(const struct topology *t, struct err *e) MUST_USE;
void topo_propose(const struct topology *t, struct topo_proposal *out);
void topo_proposal_free(struct topo_proposal *p);
void topology_free(struct topology *t);

/* ---- The file (topofile.c; docs/topology.md) ---------------------------------------------------------- */
/* E_CONFIG with file, line and key. out is to be freed with topology_free also on failure. */
enum brg_status topofile_parse(const char *file, const char *text, size_t n, struct topology *out,
                               struct err *e) MUST_USE;

/* ---- A hub's figures (topolive.c) --------------------------------------------------------------------- */
/* Takes what /v1/status of the top hub says, json[n]: sites, their fabrics and speeds, the links that were told. What comes
 * back is a topology without a line of the hub's own. E_MESSAGE: not a status. out is to be freed also on failure. */
enum brg_status topo_live_read(const void *json, size_t n, struct topology *out, struct err *e)
    MUST_USE;
/* Adds the hub of the region that stands in fabric `label`: the links inside it, and sites that only it knows. */
enum brg_status topo_live_region(struct topology *t, const char *label, const void *json, size_t n,
                                 struct err *e) MUST_USE;

#endif
