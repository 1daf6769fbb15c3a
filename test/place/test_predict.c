/* SPDX-License-Identifier: Apache-2.0 */
/* The predictor: honest when it knows little, right when it has seen much, told by cancelled jobs too. */
#include <math.h>

#include "../harness.h"
#include "place/predict.h"

/* A site whose jobs wait exp(8 + N) seconds and whose scheduler says 4 times as much, give or take. */
struct facility {
    struct prng rng;
    uint64_t n;
};

static double next_job(struct facility *f, struct wait_request *r) {
    double wait = exp(8.0 + prng_normal(&f->rng));
    *r = (struct wait_request){.estimate_s = wait * 4.0 * exp(0.5 * prng_normal(&f->rng)),
                               .nodes = (double)(4 << f->n % 3),
                               .limit_s = 3600.0 * (double)(1 + f->n % 4),
                               .queued = -1,
                               .hour = fmod((double)f->n * 1.7, 24.0)};
    f->n++;
    return wait;
}

static struct facility facility(uint64_t seed) {
    struct facility f = {.n = 0};
    prng_seed(&f.rng, seed);
    return f;
}

TEST(place_Q1_quantiles_rise_and_are_never_negative) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct facility f = facility(seed);
        struct predictor p;
        struct wait_request r;
        predictor_init(&p, 3600);
        for (int i = 0; i < 120; i++) {
            double wait = next_job(&f, &r), before = -1;
            double waited = i % 3 == 0 ? 0 : exp(12 * prng_unit(&f.rng));
            for (double q = 0.02; q < 1; q += 0.02) {
                double x = predictor_left(&p, &r, waited, q);
                assert_true(isfinite(x));
                assert_true(x >= 0);
                assert_true(x >= before);
                before = x;
            }
            if (i % 4)
                predictor_started(&p, &r, wait);
            else
                predictor_cancelled(&p, &r, wait / 2);
        }
    }
}

TEST(place_an_interval_holds_what_it_says) {
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct facility f = facility(seed);
        struct predictor p;
        struct wait_request r;
        predictor_init(&p, 3600);
        for (int i = 0; i < 600; i++) {
            double wait = next_job(&f, &r);
            predictor_started(&p, &r, wait);
        }
        assert_true(predictor_coverage(&p) > 0.76);
        assert_true(predictor_coverage(&p) < 0.86);
    }
}

TEST(place_the_schedulers_bias_is_learned) {
    struct facility f = facility(3);
    struct predictor p;
    struct wait_request r;
    double ours = 0, theirs = 0;
    predictor_init(&p, 3600);
    for (int i = 0; i < 300; i++) {
        double wait = next_job(&f, &r);
        if (i >= 50) {
            ours += fabs(log(predictor_quantile(&p, &r, 0.5) / wait));
            theirs += fabs(log(r.estimate_s / wait));
        }
        predictor_started(&p, &r, wait);
    }
    /* the estimate's noise has a standard deviation of 0.5: a mean error of 0.4 cannot be beaten by much */
    assert_true(ours / 250 < 0.5);
    assert_true(theirs / 250 > 1.2);
}

TEST(place_little_knowledge_shows_as_a_wide_interval) {
    struct facility f = facility(4);
    struct predictor p;
    struct wait_request r;
    predictor_init(&p, 3600);
    (void)next_job(&f, &r);
    double wide = predictor_quantile(&p, &r, 0.9) / predictor_quantile(&p, &r, 0.1);
    for (int i = 0; i < 200; i++) {
        double wait = next_job(&f, &r);
        predictor_started(&p, &r, wait);
    }
    double narrow = predictor_quantile(&p, &r, 0.9) / predictor_quantile(&p, &r, 0.1);
    assert_true(wide > 2 * narrow);
}

/* Whoever cancels each job after ten minutes must not come to believe that jobs wait ten minutes. */
TEST(place_cancelled_jobs_tell_that_waits_are_longer) {
    struct predictor p;
    struct wait_request r = {
        .estimate_s = -1, .nodes = 4, .limit_s = 3600, .queued = -1, .hour = 3};
    predictor_init(&p, 600);
    double before = predictor_quantile(&p, &r, 0.5);
    for (int i = 0; i < 40; i++) predictor_cancelled(&p, &r, 7200);
    double after = predictor_quantile(&p, &r, 0.5);
    assert_true(before < 1000);
    assert_true(after > 7200);
    assert_true(isfinite(predictor_quantile(&p, &r, 0.99)));
}

TEST(place_Q2_who_has_waited_long_has_the_rest_before_him) {
    struct facility f = facility(6);
    struct predictor p;
    struct wait_request r;
    predictor_init(&p, 3600);
    for (int i = 0; i < 200; i++) {
        double wait = next_job(&f, &r);
        predictor_started(&p, &r, wait);
    }
    /* P(left <= x | waited w) from the whole distribution, against what is told */
    double w = predictor_quantile(&p, &r, 0.5), x = predictor_left(&p, &r, w, 0.5);
    double q75 = predictor_quantile(&p, &r, 0.75);
    assert_true(fabs(log((w + x) / q75)) < 0.15);
    struct wait_table t;
    predictor_table(&p, &r, w, &t);
    assert_true(fabs(wait_table_at(&t, 0.5) - x) < 1e-6 * (1 + x));
}

/* Before any outcome the distribution is the prior's, a normal one of log(1 + wait) with deviation 1.5 around the prior's
 * guess; after many equal ones nearly all of it is there. */
TEST(place_the_distribution_is_the_prior_s_then_the_outcomes_) {
    static const double q[] = {0.1, 0.25, 0.5, 0.75, 0.9};
    static const double z[] = {-1.28155, -0.67449, 0, 0.67449, 1.28155};
    struct wait_request r = {.estimate_s = -1, .nodes = 1, .limit_s = 3600, .queued = -1};
    struct predictor p;
    predictor_init(&p, 3600);
    for (size_t i = 0; i < ARRAY_COUNT(q); i++) {
        double y = log1p(predictor_quantile(&p, &r, q[i])) - log1p(3600);
        assert_true(fabs(y - 1.5 * z[i]) < 0.02);
    }
    for (int i = 0; i < 150; i++) predictor_started(&p, &r, 600);
    assert_true(fabs(predictor_quantile(&p, &r, 0.5) / 600 - 1) < 0.05);
    assert_true(predictor_quantile(&p, &r, 0.9) < 1200);
    assert_true(predictor_quantile(&p, &r, 0.1) > 300);
}
