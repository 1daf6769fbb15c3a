/* SPDX-License-Identifier: Apache-2.0 */
/* project.h - "what if": one training run through a world of queues, under one policy.
 *
 *   wait_all      one job a site, of the site's first shape; training goes on only while all sites run;
 *                 a job that ended is submitted again at once, and the others hold their nodes meanwhile
 *   first_free    the first shape everywhere; the first job to start trains alone, the others are
 *                 cancelled; again when it ends
 *   static_best   one site and shape for the whole run: the best by the estimates at the start
 *   elastic       the first shape at every site, submitted again when it ends; whoever runs trains
 *   queue_aware   elastic, and the planner of plan.h with the predictor of predict.h, which begins
 *                 without any outcome
 * Tokens flow from all that train; in `first_free` and `static_best` that is one site. A policy never
 * submits what its budget could not pay to the limit. Pure. */
#ifndef PLACE_PROJECT_H
#define PLACE_PROJECT_H

#include "place/queues.h"

enum policy {
    POLICY_WAIT_ALL,
    POLICY_FIRST_FREE,
    POLICY_STATIC_BEST,
    POLICY_ELASTIC,
    POLICY_QUEUE_AWARE
};
enum { POLICIES = 5 };
extern const char *const policy_names[POLICIES + 1]; /* ends with NULL */

struct project {
    struct world_site sites[PLAN_SITES_MAX];
    struct plan_site facility[PLAN_SITES_MAX]; /* shapes and budgets; jobs are the run's own */
    uint32_t sites_count;
    double target_tokens;
    double horizon_s; /* a run ends here, reached or not */
    double prior_s;   /* wait where nothing is known */
    struct plan_options plan;
};

struct project_run {
    double time_s; /* to the target; horizon where not reached */
    bool reached, over_budget;
    double node_s;                    /* used, all sites */
    double wait_s;                    /* of the jobs that started, summed */
    uint32_t jobs, cancelled, probes; /* jobs: started */
    uint64_t asked, held; /* predictions, and those whose 80 % interval held; queue_aware alone */
    double miss_ours,
        miss_theirs; /* sums of |log of predicted median, or estimate, over true wait| */
    uint64_t missed; /* terms of these sums */
};
void project_run(const struct project *p, enum policy policy, uint64_t seed,
                 struct project_run *out);

#endif
