/* SPDX-License-Identifier: Apache-2.0 */
/* live.h - the planner on a live run: what the hub's status tells, and what follows from it.
 *
 *   GET /v1/status --live_read--> struct live --live_state--> struct plan_state --plan_decide--> orders
 *
 * Nothing is remembered from one look to the next: waits are learned anew from the jobs that the hub keeps, with
 * what the scheduler had said when each was submitted. Speeds are those of heartbeats; where a shape never
 * trained, by its nodes and GPUs from others of the site, or from other sites.
 *
 * Pure. The caller owns everything; one thread at a time. Times are seconds since 1970. */
#ifndef PLACE_LIVE_H
#define PLACE_LIVE_H

#include "place/plan.h"
#include "wire/agent.h"

enum {
    LIVE_JOBS_MAX = 128,
    LIVE_ORDERS_MAX = 128, /* of one facility: all open ones, the newest of those that are over */
    LIVE_SPEEDS_MAX = 64,
    LIVE_WHY_BYTES = 160,
};

struct live_shape {
    char shape[WIRE_SHAPE_MAX];
    uint64_t at, nodes, seconds, gpus;
};
struct live_probe {
    char shape[WIRE_SHAPE_MAX], class_[WIRE_WORD_MAX], why[WIRE_WHY_MAX];
    uint64_t at, start;
};
struct live_job {
    char shape[WIRE_SHAPE_MAX], state[WIRE_WORD_MAX];
    uint64_t order, job, nodes, seconds, submit, start, end;
    uint64_t estimate_at, estimate; /* what the scheduler had said before; 0: nothing */
    char estimate_class[WIRE_WORD_MAX];
};
struct live_order {
    uint64_t id, over;
    char site[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX], word[WIRE_WORD_MAX], why[WIRE_WHY_MAX];
    uint32_t jobs;
    bool open, cancel;
};
struct live_member { /* the site that trains under a facility's name */
    char name[WIRE_NAME_MAX];
    bool joined, live;
    double tokens_per_s, tokens_merged;
};
struct live_facility {
    char name[WIRE_NAME_MAX];
    double heard_ago_s; /* -1: not since the hub started */
    uint32_t shapes_count, probes_count, jobs_count, orders_count;
    struct live_shape shapes[PLAN_SHAPES_MAX];
    struct live_probe probes[PLAN_SHAPES_MAX];
    struct live_job jobs[LIVE_JOBS_MAX];
    struct live_order orders[LIVE_ORDERS_MAX];
    bool budget_told;
    double budget_free_s; /* node-seconds free for further jobs */
    uint64_t jobs_max;
    struct live_member member; /* name "": none yet */
};
struct live {
    char run[ID_HEX_BYTES];
    double tokens, tokens_total;
    bool complete, draining, held;
    double overhead; /* share of the time that the newest rounds cost; -1: not known */
    uint32_t facilities_count;
    struct live_facility *facilities; /* owned; live_free */
};

/* Reads a status document. E_MESSAGE names the member; E_LIMIT: more facilities or shapes than a plan
 * takes. *out is overwritten, and needs live_free only on success. */
enum brg_status live_read(const void *json, size_t n, struct live *out, struct err *e) MUST_USE;
void live_free(struct live *l);

struct live_speed { /* told by a person: --speed SITE/SHAPE=TOKENS_PER_S */
    char site[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX];
    double tokens_per_s;
};
struct live_options {
    double prior_s;  /* wait where nothing is known */
    double silent_s; /* an agent not heard of for so long gets no orders */
    uint32_t waiting_max;
    const struct live_speed *speeds;
    size_t speeds_count;
};
struct live_options live_options_default(void);

enum live_speed_source {
    LIVE_SPEED_TOLD,      /* by a person */
    LIVE_SPEED_HEARTBEAT, /* of this shape, now */
    LIVE_SPEED_SCALED,    /* by nodes and GPUs, from another shape here that trains now */
    LIVE_SPEED_MERGED,    /* from what the site's jobs trained in their time */
    LIVE_SPEED_OTHERS,    /* by nodes and GPUs, from other sites */
    LIVE_SPEED_GUESS,     /* nothing ever trained */
};
const char *live_speed_name(enum live_speed_source s);

/* What the state was made of; for explaining. */
struct live_site_view {
    struct predictor predictor;
    struct wait_request requests[PLAN_SHAPES_MAX];     /* as submitted now */
    char not_offered[PLAN_SHAPES_MAX][LIVE_WHY_BYTES]; /* "": it is offered */
    enum live_speed_source speed_source[PLAN_SHAPES_MAX];
    uint32_t jobs_left_out; /* beyond PLAN_JOBS_MAX */
};
/* now_s: the wall clock. The ids of the state's jobs are those of their orders. views: one a facility. */
void live_state(const struct live *l, const struct live_options *o, double now_s,
                struct plan_state *out, struct live_site_view *views);

#endif
