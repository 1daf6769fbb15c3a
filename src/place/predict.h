/* SPDX-License-Identifier: Apache-2.0 */
/* predict.h - how long will a job wait? Quantiles of the true wait of one site's jobs, learned from what
 * happened there.
 *
 * Model: y = log(1 + wait in seconds) = b . x + residual. x holds the scheduler's own estimate, what was asked
 * for, the queue and the hour; b is learned by recursive least squares as the truth drifts, around a prior
 * that believes the estimate to be somewhat too long. The residuals of the last outcomes, each taken before
 * its outcome was learned from, give the distribution: the product-limit estimator (Kaplan, Meier 1958)
 * with exponentially falling weights, because a job that was cancelled after c seconds only tells that
 * its wait is longer than c; the mass beyond the last outcome lies in the tail of a normal prior, and the
 * prior itself counts as a few outcomes, so that little knowledge shows as a wide interval. For b, a cancelled job counts with the mean of the distribution
 * beyond c (Buckley, James 1979). The width is corrected online so that central intervals hold what they
 * say (adaptive conformal inference; Gibbs, Candes 2021, arXiv 2106.00263).
 *
 * Pure; no allocation. Threads: none of its own; one caller at a time. */
#ifndef PLACE_PREDICT_H
#define PLACE_PREDICT_H

#include "base/base.h"

enum { WAIT_FEATURES = 9, WAIT_OUTCOMES = 256, WAIT_TABLE = 33, WAIT_GRID = 101 };

/* What is known when a job is submitted. */
struct wait_request {
    double estimate_s; /* the scheduler's own; negative: it gave none */
    bool refused;      /* it said that the job cannot run now; estimate_s is negative */
    double nodes, limit_s;
    double queued; /* jobs that wait at the site; negative: not known */
    double hour;   /* of the day, local to the site, 0..24 */
};

struct predictor {
    double b[WAIT_FEATURES], cov[WAIT_FEATURES][WAIT_FEATURES];
    struct {
        double residual, born; /* born: number of the outcome, for its weight */
        bool censored;
    } v[WAIT_OUTCOMES]; /* in rising order of residual */
    uint32_t count;
    uint64_t seen;          /* outcomes ever */
    double grid[WAIT_GRID]; /* residuals at (i + 0.5)/WAIT_GRID: the distribution, as it is used */
    double miss_share;      /* what the width aims at for the central 80 % interval to miss 20 % */
    uint64_t asked, held;   /* true waits; those within their 80 % interval */
};

/* prior_s: a guess of the wait where nothing is known, e.g. 3600. */
void predictor_init(struct predictor *p, double prior_s);
/* A job started after wait_s. Call once a job, in the order of events. */
void predictor_started(struct predictor *p, const struct wait_request *r, double wait_s);
/* A job was cancelled while it waited, after waited_s. */
void predictor_cancelled(struct predictor *p, const struct wait_request *r, double waited_s);

/* The q quantile (0 < q < 1) of the wait in seconds. */
double predictor_quantile(const struct predictor *p, const struct wait_request *r, double q);
/* The same for the time still to wait of a job that has waited waited_s already. */
double predictor_left(const struct predictor *p, const struct wait_request *r, double waited_s,
                      double q);
/* Quantiles at (i + 0.5)/WAIT_TABLE of the time still to wait; for drawing many samples. */
struct wait_table {
    double v[WAIT_TABLE];
};
void predictor_table(const struct predictor *p, const struct wait_request *r, double waited_s,
                     struct wait_table *out);
/* Linear between the quantiles; u in [0, 1). */
double wait_table_at(const struct wait_table *t, double u);
/* Share of true waits that lay in their 80 % interval, as told beforehand; 0.8 where none. */
double predictor_coverage(const struct predictor *p);

#endif
