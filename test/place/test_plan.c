/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's choices where the right one is plain, and projections as a whole. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "place/project.h"

static void waits(struct wait_table *t, double seconds) {
    for (size_t i = 0; i < WAIT_TABLE; i++)
        t->v[i] = seconds * (0.5 + (double)i / (WAIT_TABLE - 1));
}

static struct plan_shape shape(const char *name, double nodes, double hours) {
    struct plan_shape s = {.nodes = nodes, .limit_s = hours * 3600, .tokens_per_s = nodes * 100};
    (void)snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

static struct plan_state two_sites(void) {
    struct plan_state s = {.now_s = 1e6, .tokens_left = 400 * 3600 * 100.0, .sites_count = 2};
    for (size_t i = 0; i < 2; i++) {
        struct plan_site *p = &s.sites[i];
        p->shapes_count = 2;
        p->shapes[0] = shape("8x24h", 8, 24);
        p->shapes[1] = shape("8x2h", 8, 2);
        p->offered[0] = p->offered[1] = true;
        waits(&p->waits[0], 10 * 3600);
        waits(&p->waits[1], 10 * 3600);
        p->waiting_max = 2;
        p->budget_left_s = HUGE_VAL;
    }
    return s;
}

static const struct plan_action *action_at(const struct plan_result *r, uint32_t site) {
    for (uint32_t i = 0; i < r->count; i++)
        if (r->v[i].site == site) return &r->v[i];
    return NULL;
}

TEST(place_idle_sites_get_the_shape_that_trains_most) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct plan_action *a = action_at(&r, i);
        assert_non_null(a);
        assert_int_equal(a->kind, PLAN_SUBMIT);
        assert_int_equal(a->shape, 0); /* equal waits: the longer job */
        assert_non_null(strstr(a->why, "waits about 10.0 h"));
    }
    assert_true(r.mean_s > 0);
    assert_true(r.low_s <= r.mean_s);
    assert_true(r.mean_s <= r.high_s);
}

TEST(place_a_short_job_that_starts_at_once_is_worth_it) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    waits(&s.sites[1].waits[1], 60);
    waits(&s.sites[1].waits[0], 40 * 3600);
    plan_decide(&s, &o, 1, &r);
    const struct plan_action *a = action_at(&r, 1);
    assert_non_null(a);
    assert_int_equal(a->shape, 1);
}

TEST(place_P1_no_action_breaks_a_budget) {
    struct plan_options o = plan_options_default();
    struct prng rng;
    prng_seed(&rng, 5);
    for (int i = 0; i < 300; i++) {
        struct plan_state s = two_sites();
        struct plan_result r;
        struct plan_site *p = &s.sites[0];
        p->budget_left_s = 3600 * 250.0 * prng_unit(&rng);
        if (prng_below(&rng, 2)) {
            p->jobs[0] = (struct plan_job){.running = true, .since_s = s.now_s - 3600};
            p->jobs_count = 1;
        }
        double free = plan_budget_free(p, s.now_s);
        plan_decide(&s, &o, (uint64_t)i, &r);
        for (uint32_t a = 0; a < r.count; a++)
            if (r.v[a].site == 0 && r.v[a].kind == PLAN_SUBMIT)
                free -= p->shapes[r.v[a].shape].nodes * p->shapes[r.v[a].shape].limit_s;
        assert_true(free >= 0 || action_at(&r, 0) == NULL);
    }
}

TEST(place_what_is_refused_for_ever_is_not_submitted) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    s.sites[0].offered[0] = s.sites[0].offered[1] = false;
    plan_decide(&s, &o, 1, &r);
    assert_null(action_at(&r, 0));
    assert_non_null(action_at(&r, 1));
}

/* The end is near: the running job reaches the target, a further one would only waste nodes. */
TEST(place_nothing_is_submitted_that_cannot_help) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    s.tokens_left = 800 * 1800;
    s.sites[0].jobs[0] = (struct plan_job){.running = true, .since_s = s.now_s - 3600};
    s.sites[0].jobs_count = 1;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 0);
    assert_true(fabs(r.mean_s - 1800 / (1 - o.overhead)) < 1);
}

/* A waiting job that would hold the only place for days gives way to one that starts at once. */
TEST(place_a_hopeless_job_gives_way) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    struct plan_site *p = &s.sites[0];
    s.sites_count = 1;
    p->waiting_max = 1;
    p->jobs[0] = (struct plan_job){.shape = 0, .since_s = s.now_s - 3600, .id = 42};
    waits(&p->jobs[0].left, 400 * 3600);
    waits(&p->waits[0], 400 * 3600);
    waits(&p->waits[1], 60);
    p->jobs_count = 1;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.v[0].kind, PLAN_CANCEL);
    assert_int_equal(r.v[0].id, 42);
    assert_int_equal(r.v[1].kind, PLAN_SUBMIT);
    assert_int_equal(r.v[1].shape, 1);
}

/* The same job, where it cannot be cancelled alone: it stays, and the site's line says why nothing is done. */
TEST(place_a_job_that_must_stay_is_kept) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    struct plan_site *p = &s.sites[0];
    s.sites_count = 1;
    p->waiting_max = 1;
    p->jobs[0] = (struct plan_job){.shape = 0, .since_s = s.now_s - 3600, .id = 42, .keep = true};
    waits(&p->jobs[0].left, 400 * 3600);
    waits(&p->waits[0], 400 * 3600);
    waits(&p->waits[1], 60);
    p->jobs_count = 1;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 0);
    assert_non_null(strstr(r.none[0], "1 wait here"));
}

TEST(place_it_says_why_nothing_is_done) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    s.tokens_left = 800 * 1800;
    s.sites[0].jobs[0] = (struct plan_job){.running = true, .since_s = s.now_s - 3600};
    s.sites[0].jobs_count = 1;
    s.sites[1].offered[0] = s.sites[1].offered[1] = false;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 0);
    assert_non_null(strstr(r.none[0], "it has to win 12 s"));
    assert_non_null(strstr(r.none[1], "no shape can be ordered"));
    s.sites[1].offered[1] = true;
    s.sites[1].budget_left_s = 3600;
    plan_decide(&s, &o, 1, &r);
    assert_non_null(strstr(r.none[1], "1.0 node-hours are free"));
}

/* One site trains, the other's job waits for two hours: waiting for both costs those hours of the first. */
TEST(place_to_wait_for_more_sites_costs_time) {
    struct plan_state s = two_sites();
    struct plan_options o = plan_options_default();
    struct plan_result r;
    s.tokens_left = 1600 * 3600 * 4.0;
    for (uint32_t i = 0; i < 2; i++) s.sites[i].jobs_count = s.sites[i].waiting_max = 1;
    s.sites[0].jobs[0] = (struct plan_job){.running = true, .since_s = s.now_s - 600};
    s.sites[0].waiting_max = 0;
    s.sites[1].jobs[0] = (struct plan_job){.since_s = s.now_s - 60};
    for (size_t i = 0; i < WAIT_TABLE; i++) s.sites[1].jobs[0].left.v[i] = 7200;
    plan_decide(&s, &o, 1, &r);
    assert_int_equal(r.count, 0);
    assert_true(fabs(r.start_mean_s[0] - r.mean_s) < 1e-6);
    /* 4 h of both are 8 site-hours: alone for 2 h and a join, then both; or both after 2 h and a join. */
    double full = 4 * 3600 / (1 - o.overhead), join = 7200 + o.join_s;
    assert_true(fabs(r.start_mean_s[0] - (join + (2 * full - join) / 2)) < 5);
    assert_true(fabs(r.start_mean_s[1] - (join + full)) < 5);
}

static struct project small_project(double budget_s) {
    struct project p = {.sites_count = 3,
                        .target_tokens = 8e6,
                        .horizon_s = 20 * 86400.0,
                        .prior_s = 3600,
                        .plan = plan_options_default()};
    p.plan.tick_s = 3600;
    p.plan.draws = 8;
    for (uint32_t i = 0; i < 3; i++) {
        struct plan_site *f = &p.facility[i];
        f->shapes_count = 2;
        f->shapes[0] = shape("8x6h", 8, 6);
        f->shapes[1] = shape("4x2h", 4, 2);
        f->waiting_max = 2;
        f->budget_left_s = budget_s;
        p.sites[i].ideal = (struct ideal_queue){.median_s = 3600.0 * (i + 1),
                                                .nodes_exponent = 0.5,
                                                .hours_exponent = 0.5,
                                                .spread = 0.5,
                                                .congestion = 0.5,
                                                .congestion_s = 43200,
                                                .estimate_bias = 3,
                                                .estimate_noise = 0.5,
                                                .refused = 0.1};
    }
    return p;
}

TEST(place_J1_no_world_goes_beyond_a_budget) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct prng rng;
        prng_seed(&rng, seed);
        struct project p = small_project(3600 * 8 * (2.0 + 30.0 * prng_unit(&rng)));
        for (uint32_t i = 0; i < 3; i++) p.sites[i].site = &p.facility[i];
        for (int policy = 0; policy < POLICIES; policy++) {
            struct project_run r;
            project_run(&p, (enum policy)policy, seed, &r);
            assert_false(r.over_budget);
            assert_true(r.node_s <= 3 * p.facility[0].budget_left_s * (1 + 1e-9));
        }
    }
}

TEST(place_the_same_seed_is_the_same_world) {
    struct project p = small_project(HUGE_VAL);
    for (uint32_t i = 0; i < 3; i++) p.sites[i].site = &p.facility[i];
    for (int policy = 0; policy < POLICIES; policy++) {
        struct project_run a, b;
        project_run(&p, (enum policy)policy, 11, &a);
        project_run(&p, (enum policy)policy, 11, &b);
        assert_memory_equal(&a, &b, sizeof a);
        assert_true(a.reached);
    }
}

/* Without any wait all that is left is the work: what a hand can compute. */
TEST(place_J2_without_waits_time_is_work_over_speed) {
    struct project p = small_project(HUGE_VAL);
    p.plan.join_s = 0;
    p.plan.overhead = 0;
    for (uint32_t i = 0; i < 3; i++) {
        p.sites[i].site = &p.facility[i];
        p.sites[i].ideal = (struct ideal_queue){.median_s = 1e-3, .estimate_bias = 1};
    }
    static const double speeds[POLICIES] = {2400, 800, 800, 2400, 2400};
    for (int policy = 0; policy < POLICIES; policy++) {
        struct project_run r;
        project_run(&p, (enum policy)policy, 1, &r);
        assert_true(fabs(r.time_s - p.target_tokens / speeds[policy]) < 30);
    }
}
