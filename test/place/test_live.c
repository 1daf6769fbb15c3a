/* SPDX-License-Identifier: Apache-2.0 */
/* A run's status becomes a plan's state: budgets, orders on their way, chains, speeds, waits that were learned. The
 * documents are cut from those of a hub; test/golden/plan has a whole one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "base/os.h"
#include "place/live.h"

#define NOW 2000000.0

struct doc {
    const char *jobs, *orders, *sites, *budget, *more;
};

static void write_doc(const struct doc *d, struct buf *b) {
    buf_init(b, 1 << 20);
    buf_printf(
        b,
        "{\"run\":\"00000000000000000000000000000abc\",\"tokens\":1e9,\"tokens_total\":5e9,"
        "\"complete\":false,\"draining\":false,\"held\":false,\"sites\":[%s],\"facilities\":"
        "[{\"name\":\"alder\",\"items\":9,\"heard_ago_s\":3,\"shapes\":["
        "{\"shape\":\"small\",\"at\":1000,\"nodes\":2,\"seconds\":3600,\"gpus\":4},"
        "{\"shape\":\"large\",\"at\":1000,\"nodes\":8,\"seconds\":36000,\"gpus\":4}],"
        "\"probes\":[{\"shape\":\"small\",\"class\":\"fine\",\"at\":1999900,\"start\":2000600},"
        "{\"shape\":\"large\",\"class\":\"not_now\",\"at\":1999900,\"why\":\"drained\"}],"
        "\"jobs\":[%s],\"queue\":[],\"budget\":[%s]}%s],\"orders\":[%s]}",
        d->sites, d->jobs, d->budget, d->more, d->orders);
}

struct seen {
    struct live live;
    struct plan_state state;
    struct live_site_view views[PLAN_SITES_MAX];
};

static struct seen *see(const struct doc *d, const struct live_options *o) {
    struct seen *s = mem_alloc(1, sizeof *s);
    struct buf b;
    struct err e = {0};
    write_doc(d, &b);
    if (live_read(b.data, b.bytes_count, &s->live, &e) != BRG_OK) fail_msg("%s", e.text);
    live_state(&s->live, o, NOW, &s->state, s->views);
    buf_fini(&b);
    return s;
}

static void forget(struct seen *s) {
    live_free(&s->live);
    mem_free(s);
}

#define BUDGET "{\"at\":1,\"nodes\":3,\"seconds\":360000}"
#define ORDER(id, shape, jobs)                                                                     \
    "{\"id\":" #id ",\"site\":\"alder\",\"shape\":\"" shape "\",\"jobs\":" #jobs                   \
    ",\"open\":true,\"cancel\":false,\"word\":\"\",\"why\":\"\"}"

/* What the agent has set aside is not set aside again; what it has not heard of is. */
TEST(live_V1_budgets_are_counted_once) {
    struct live_options o = live_options_default();
    struct doc d = {.jobs = "{\"shape\":\"small\",\"order\":1,\"job\":1,\"state\":\"running\","
                            "\"nodes\":2,\"seconds\":3600,\"submit\":1998000,\"start\":1999000}",
                    .orders = ORDER(1, "small", 1),
                    .sites = "",
                    .budget = BUDGET,
                    .more = ""};
    struct seen *s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 1);
    assert_true(fabs(plan_budget_free(&s->state.sites[0], NOW) - 360000) < 1);
    forget(s);
    d.orders = ORDER(1, "small", 1) "," ORDER(2, "large", 1);
    s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 2);
    assert_true(fabs(plan_budget_free(&s->state.sites[0], NOW) - (360000 - 8 * 36000)) < 1);
    forget(s);
    d.budget = "";
    s = see(&d, &o);
    assert_true(isinf(plan_budget_free(&s->state.sites[0], NOW)));
    forget(s);
}

/* An order that no job came of yet waits in the plan; one that is being cancelled does not, nor one that is done. */
TEST(live_V2_an_open_order_is_a_job) {
    struct live_options o = live_options_default();
    struct doc d = {
        .jobs = "", .orders = ORDER(7, "small", 1), .sites = "", .budget = BUDGET, .more = ""};
    struct seen *s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 1);
    assert_false(s->state.sites[0].jobs[0].running);
    assert_int_equal(s->state.sites[0].jobs[0].id, 7);
    forget(s);
    d.jobs = "{\"shape\":\"small\",\"order\":7,\"job\":1,\"state\":\"pending\",\"nodes\":2,"
             "\"seconds\":3600,\"submit\":1999000}";
    s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 1);
    assert_true(s->state.sites[0].jobs[0].since_s == 1999000);
    assert_false(s->state.sites[0].jobs[0].keep);
    forget(s);
    d.jobs = "{\"shape\":\"small\",\"order\":7,\"job\":1,\"state\":\"done\",\"nodes\":2,"
             "\"seconds\":3600,\"submit\":1999000,\"start\":1999100,\"end\":1999900}";
    s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 0);
    forget(s);
    d.jobs = "";
    d.orders = "{\"id\":7,\"site\":\"alder\",\"shape\":\"small\",\"jobs\":1,\"open\":true,"
               "\"cancel\":true}";
    s = see(&d, &o);
    assert_int_equal(s->state.sites[0].jobs_count, 0);
    forget(s);
}

/* A chain's second job waits for the end of the first by a dependency: that is no wait of the queue's. And an order
 * of which a job runs is not cancelled for the one that waits. */
TEST(live_chains_wait_for_their_predecessor) {
    struct live_options o = live_options_default();
    struct doc d = {.jobs = "{\"shape\":\"small\",\"order\":1,\"job\":1,\"state\":\"running\","
                            "\"nodes\":2,\"seconds\":3600,\"submit\":1997000,\"start\":1998000},"
                            "{\"shape\":\"small\",\"order\":1,\"job\":2,\"state\":\"pending\","
                            "\"nodes\":2,\"seconds\":3600,\"submit\":1998010}",
                    .orders = ORDER(1, "small", 2),
                    .sites = "",
                    .budget = BUDGET,
                    .more = ""};
    struct seen *s = see(&d, &o);
    const struct plan_site *p = &s->state.sites[0];
    assert_int_equal(p->jobs_count, 2);
    assert_true(p->jobs[0].running);
    assert_true(p->jobs[1].keep);
    assert_true(p->jobs[1].left.v[0] >= 1600); /* the first one has so long to its limit */
    assert_int_equal(p->waiting_max, 2);
    forget(s);
    d.jobs = "{\"shape\":\"small\",\"order\":1,\"job\":1,\"state\":\"done\",\"nodes\":2,"
             "\"seconds\":3600,\"submit\":1990000,\"start\":1990300,\"end\":1993900},"
             "{\"shape\":\"small\",\"order\":1,\"job\":2,\"state\":\"running\",\"nodes\":2,"
             "\"seconds\":3600,\"submit\":1990310,\"start\":1994200}";
    s = see(&d, &o);
    const struct predictor *q = &s->views[0].predictor;
    assert_int_equal(q->asked, 2); /* both waited 300 s */
    struct wait_request r = {.nodes = 2, .limit_s = 3600, .queued = -1, .estimate_s = -1};
    assert_true(predictor_quantile(q, &r, 0.5) < 2500);
    forget(s);
}

static double speed(const struct doc *d, const struct live_options *o, uint32_t site,
                    uint32_t shape, enum live_speed_source *out_from) {
    struct seen *s = see(d, o);
    double v = s->state.sites[site].shapes[shape].tokens_per_s;
    *out_from = s->views[site].speed_source[shape];
    forget(s);
    return v;
}

TEST(live_speeds_come_from_where_they_are_known_best) {
    static const char birch[] =
        ",{\"name\":\"birch\",\"heard_ago_s\":1,\"shapes\":[{\"shape\":\"solo\","
        "\"at\":5,\"nodes\":1,\"seconds\":3600,\"gpus\":4}],\"probes\":[],"
        "\"jobs\":[],\"queue\":[],\"budget\":[]}";
    static const char member[] = "{\"name\":\"alder\",\"joined\":true,\"live\":true,"
                                 "\"tokens_per_s\":800,\"tokens_merged\":16000}";
    static const char running[] =
        "{\"shape\":\"small\",\"order\":1,\"job\":1,\"state\":\"running\","
        "\"nodes\":2,\"seconds\":3600,\"submit\":1998000,\"start\":1999000}";
    struct live_options o = live_options_default();
    struct doc d = {.jobs = running,
                    .orders = ORDER(1, "small", 1),
                    .sites = member,
                    .budget = BUDGET,
                    .more = birch};
    enum live_speed_source from;
    assert_true(fabs(speed(&d, &o, 0, 0, &from) - 800) < 1e-6);
    assert_int_equal(from, LIVE_SPEED_HEARTBEAT);
    assert_true(fabs(speed(&d, &o, 0, 1, &from) - 3200) < 1e-6); /* four times the GPUs */
    assert_int_equal(from, LIVE_SPEED_SCALED);
    assert_true(fabs(speed(&d, &o, 1, 0, &from) - 400) < 1e-6);
    assert_int_equal(from, LIVE_SPEED_OTHERS);
    d.sites = "{\"name\":\"alder\",\"joined\":false,\"live\":false,\"tokens_per_s\":800,\"tokens_"
              "merged\":16000}";
    assert_true(fabs(speed(&d, &o, 0, 0, &from) - 16) < 1e-6); /* 16000 tokens in 1000 s */
    assert_int_equal(from, LIVE_SPEED_MERGED);
    d.sites = "";
    (void)speed(&d, &o, 0, 0, &from);
    assert_int_equal(from, LIVE_SPEED_GUESS);
    struct live_speed told = {.site = "birch", .shape = "solo", .tokens_per_s = 77};
    o.speeds = &told;
    o.speeds_count = 1;
    assert_true(fabs(speed(&d, &o, 1, 0, &from) - 77) < 1e-9);
    assert_int_equal(from, LIVE_SPEED_TOLD);
}

TEST(live_shapes_that_fail_or_are_refused_are_left_alone) {
    struct live_options o = live_options_default();
    char jobs[2000] = "";
    for (int i = 1; i <= 3; i++)
        (void)snprintf(
            jobs + strlen(jobs), sizeof jobs - strlen(jobs),
            "%s{\"shape\":\"small\",\"order\":%d,\"job\":1,\"state\":\"failed\",\"nodes\":2,"
            "\"seconds\":3600,\"submit\":%d,\"start\":%d,\"end\":%d}",
            i > 1 ? "," : "", i, 1990000 + i, 1990010 + i, 1990020 + i);
    struct doc d = {.jobs = jobs, .orders = "", .sites = "", .budget = BUDGET, .more = ""};
    struct seen *s = see(&d, &o);
    assert_false(s->state.sites[0].offered[0]);
    assert_non_null(strstr(s->views[0].not_offered[0], "failed"));
    assert_true(s->state.sites[0].offered[1]); /* "not now" is asked again */
    assert_true(s->views[0].requests[1].refused);
    assert_true(fabs(s->views[0].requests[0].estimate_s - 600) < 1);
    forget(s);
    d.jobs = "";
    d.orders = "{\"id\":4,\"site\":\"alder\",\"shape\":\"small\",\"jobs\":1,\"open\":false,"
               "\"cancel\":false,"
               "\"over\":1500,\"word\":\"refused\",\"why\":\"no \\u001b[31m such account\"}";
    s = see(&d, &o);
    assert_false(s->state.sites[0].offered[0]);
    assert_non_null(strstr(s->views[0].not_offered[0], "no ?[31m such account"));
    forget(s);
}

static struct buf golden(void) {
    struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 22);
    if (os_read_file("test/golden/plan/status.json", 1 << 22, &b, &e) != BRG_OK)
        fail_msg("%s", e.text);
    return b;
}

/* A document of a hub, as it was: test/e2e/plan.py recorded it. */
TEST(live_reads_a_hub_s_document) {
    struct buf b = golden();
    struct live l;
    struct err e = {0};
    struct seen *s = mem_alloc(1, sizeof *s);
    struct plan_result *r = mem_alloc(1, sizeof *r);
    struct live_options o = live_options_default();
    struct plan_options p = plan_options_default();
    if (live_read(b.data, b.bytes_count, &l, &e) != BRG_OK) fail_msg("%s", e.text);
    assert_int_equal(l.facilities_count, 1);
    assert_int_equal(l.facilities[0].jobs_count, 14);
    assert_true(l.facilities[0].budget_told);
    double now = (double)l.facilities[0].probes[0].at;
    live_state(&l, &o, now, &s->state, s->views);
    assert_true(s->views[0].requests[0].estimate_s >
                30000); /* what the scheduler says: ten hours */
    assert_true(wait_table_at(&s->state.sites[0].waits[0], 0.5) <
                3000); /* what came of it: minutes */
    plan_decide(&s->state, &p, 1, r);
    assert_true(r->mean_s > 0);
    live_free(&l);
    mem_free(s);
    mem_free(r);
    buf_fini(&b);
}

/* Bytes of it changed, dropped, doubled: an error with a sentence, or a state that can be planned with. */
TEST(live_survives_whatever_a_hub_says) {
    struct buf b = golden();
    struct prng rng;
    struct live_options o = live_options_default();
    struct plan_options p = plan_options_default();
    struct plan_state *plan = mem_alloc(1, sizeof *plan);
    struct plan_result *r = mem_alloc(1, sizeof *r);
    struct live_site_view *views = mem_alloc(PLAN_SITES_MAX, sizeof *views);
    uint8_t *v = mem_alloc(b.bytes_count, 1);
    uint32_t read = 0;
    p.draws = 8;
    prng_seed(&rng, 3);
    for (int i = 0; i < 400; i++) {
        struct live l;
        struct err e = {0};
        memcpy(v, b.data, b.bytes_count);
        for (uint64_t k = prng_below(&rng, 4) + 1; k > 0; k--) /* digits to digits keep it JSON */
            for (uint64_t at = prng_below(&rng, b.bytes_count); at < b.bytes_count; at++)
                if (v[at] >= '0' && v[at] <= '9') {
                    v[at] = (uint8_t)('0' + prng_below(&rng, 10));
                    if (prng_below(&rng, 3) > 0) break;
                }
        size_t n = prng_below(&rng, 10) > 0 ? b.bytes_count : prng_below(&rng, b.bytes_count);
        if (live_read(v, n, &l, &e) != BRG_OK) {
            assert_true(e.text[0] != '\0');
            continue;
        }
        live_state(&l, &o, 1.8e9, plan, views);
        plan_decide(plan, &p, 1, r);
        assert_false(isnan(r->mean_s));
        live_free(&l);
        read++;
    }
    assert_true(read > 100);
    mem_free(v);
    mem_free(views);
    mem_free(r);
    mem_free(plan);
    buf_fini(&b);
}
