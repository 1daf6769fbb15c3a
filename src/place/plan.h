/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - what to submit where, and what to cancel, so that the token target is reached soonest.
 *
 * The planner sees each site's jobs, the shapes that the site's owner allows, what is left of the budget,
 * and for each shape the predicted wait. It looks ahead by rollouts (Bertsekas, Tsitsiklis, Wu 1997): for
 * each thing it may do at a site it draws many futures from the predicted waits, lets a simple rule
 * place the later jobs in them, and takes what brings the lowest mean time to the target. All choices see
 * the same draws, so that their difference is not noise. Sites help one another by tokens alone, so one site
 * is looked at after the other, the rest as they stand.
 *
 * The rule of the futures: a site without a waiting job submits its best steady shape as soon as what is
 * left of its running job is shorter than the wait that 4 of 5 such jobs have. When a successor starts, the
 * older job hands in and ends.
 *
 * Pure. The caller owns everything; one planner a thread. */
#ifndef PLACE_PLAN_H
#define PLACE_PLAN_H

#include "place/predict.h"

enum {
    PLAN_SITES_MAX = 16,
    PLAN_SHAPES_MAX = 32,
    PLAN_JOBS_MAX = 4,
    PLAN_TEXT_BYTES = 240,
    PLAN_NAME_BYTES = 48
};

struct plan_shape {
    char name[PLAN_NAME_BYTES];
    double nodes, limit_s;
    double tokens_per_s; /* while training undisturbed */
};

struct plan_job {
    uint32_t shape;
    bool running;
    bool keep;              /* waiting, and not to be cancelled */
    double since_s;         /* running: its start; waiting: its submission. On the clock of now_s */
    struct wait_table left; /* waiting: the time still to wait */
    uint64_t id;            /* the caller's */
};

struct plan_site {
    char name[PLAN_NAME_BYTES];
    struct plan_shape shapes[PLAN_SHAPES_MAX];
    struct wait_table waits[PLAN_SHAPES_MAX]; /* of a job submitted now */
    bool offered[PLAN_SHAPES_MAX];            /* false: the scheduler would refuse it for ever */
    uint32_t shapes_count, jobs_count, waiting_max;
    struct plan_job jobs[PLAN_JOBS_MAX];
    double budget_left_s; /* node-seconds that no job has used; running and waiting ones not yet
                             taken off; INFINITY: no limit */
};

struct plan_options {
    uint32_t draws;   /* futures a choice is judged by */
    double tick_s;    /* time to the next look */
    double join_s;    /* from a job's start to its first step */
    double overhead;  /* share of the time that rounds cost, 0..1 */
    double horizon_s; /* futures end here */
    /* A choice must shorten the mean by this share of a tick to be taken. A cancelled job gives its place
     * in the queue away, and is work for the scheduler: so it must bring more. */
    double gain_least, cancel_least;
    bool explain; /* fill `why`, `none` and `start_mean_s` */
};
struct plan_options plan_options_default(void);

struct plan_state {
    double now_s, tokens_left;
    struct plan_site sites[PLAN_SITES_MAX];
    uint32_t sites_count;
};

enum plan_kind { PLAN_SUBMIT, PLAN_CANCEL };
struct plan_action {
    enum plan_kind kind;
    uint32_t site, shape;      /* shape: SUBMIT */
    uint64_t id;               /* CANCEL */
    char why[PLAN_TEXT_BYTES]; /* words and figures */
};
enum { PLAN_ACTIONS_MAX = 2 * PLAN_SITES_MAX };

struct plan_result {
    struct plan_action v[PLAN_ACTIONS_MAX];
    uint32_t count;
    char none[PLAN_SITES_MAX]
             [PLAN_TEXT_BYTES]; /* why nothing is done at a site; "": something is */
    double mean_s, low_s,
        high_s;         /* time to the target from now: mean, 10 % and 90 % of the draws */
    uint32_t unreached; /* draws that did not reach it before the horizon */
    /* The mean if nobody trained before k + 1 sites could: [0] is as planned, to begin with the first that is up. Sites
     * that have no job in a draw are not waited for. */
    double start_mean_s[PLAN_SITES_MAX];
};
/* seed: of the draws. No action breaks a budget: what running and waiting jobs could still use up is
 * set aside before (P1). */
void plan_decide(const struct plan_state *s, const struct plan_options *o, uint64_t seed,
                 struct plan_result *out);
/* The same again and again, without making room anew each time. */
struct planner;
struct planner *planner_create(void);
void planner_destroy(struct planner *p);
void planner_decide(struct planner *p, const struct plan_state *s, const struct plan_options *o,
                    uint64_t seed, struct plan_result *out);
/* Node-seconds that are free for a further job. */
double plan_budget_free(const struct plan_site *site, double now_s);

#endif
