/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's decisions against a scheduler that answers late, not at all, or loses what it was told, while the agent
 * dies at any point and goes on from what it had saved. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "place/agent.h"
#include "place/slurm.h"

static const char SITE[] =
    "site: {name: alder, hub: \"http://h:1\", state: s}\n"
    "job: {script: job.sh, drain: 0s}\n"
    "etiquette: {probe: 10m, look: 1m, hub: 30s, settle: 2m, commands_per_hour: 200}\n"
    "budget: {node_hours: 20, jobs: 3}\n"
    "shape_small: {partition: gpu, nodes: 2, time: 30m}\n"
    "shape_big: {partition: gpu, nodes: 8, time: 10h}\n";

enum { WORLD_JOBS = 400 };
struct world { /* the scheduler, the hub, and what is on the agent's disk */
    struct place_site site;
    struct agent *a;
    struct buf disk;
    struct prng prng;
    time_ns now;
    uint64_t wall, id_last;
    struct world_job {
        struct place_job j;
        uint64_t arrives_s, runs_s;
    } jobs[WORLD_JOBS];
    uint32_t jobs_count;
    bool history;
    struct wire_agent_answer hub;
    time_ns commands[4096];
    uint32_t commands_count;
    uint64_t seed;
    uint64_t budgets, budget_told_s; /* reports of it; the newest */
    bool budget_checked;             /* the agent never loses its state */
};

static bool chance(struct world *w, double p) {
    return prng_unit(&w->prng) < p;
}

static void disk_write(struct world *w) {
    buf_reset(&w->disk);
    agent_save(w->a, &w->disk);
    w->a->dirty = false;
}

static void agent_boot(struct world *w) {
    struct err e = {0};
    agent_init(w->a, &w->site, prng_u64(&w->prng));
    if (w->disk.bytes_count > 0)
        assert_int_equal(agent_load(w->a, "disk", w->disk.data, w->disk.bytes_count, &e), BRG_OK);
    agent_start(w->a, w->now, w->wall);
    w->a->orphan = false; /* the shore's lock: no submission of an earlier process lives */
}

static struct world *world_make(uint64_t seed) {
    struct world *w = mem_alloc(1, sizeof *w);
    struct err e = {0};
    w->a = mem_alloc(1, sizeof *w->a);
    w->now = 1000 * (time_ns)NS_PER_S;
    w->wall = 1795953437;
    w->seed = seed;
    prng_seed(&w->prng, seed);
    buf_init(&w->disk, 4 << 20);
    enum brg_status s = sitefile_parse("site.yaml", SITE, sizeof SITE - 1, &w->site, &e);
    if (s != BRG_OK) printf("%s\n", e.text);
    assert_int_equal(s, BRG_OK);
    w->hub.code = WIRE_OK;
    w->history = chance(w, 0.5);
    agent_boot(w);
    return w;
}

static void world_free(struct world *w) {
    buf_fini(&w->disk);
    mem_free(w->a);
    mem_free(w);
}

/* Jobs begin, and end, by their own clocks. */
static void world_move(struct world *w) {
    for (uint32_t i = 0; i < w->jobs_count; i++) {
        struct world_job *x = &w->jobs[i];
        if (x->j.state == PLACE_JOB_PENDING && w->wall >= x->arrives_s + 120 && chance(w, 0.3)) {
            x->j.state = PLACE_JOB_RUNNING;
            x->j.start_s = (int64_t)w->wall;
        } else if (x->j.state == PLACE_JOB_RUNNING &&
                   w->wall >= (uint64_t)x->j.start_s + x->runs_s) {
            x->j.state = chance(w, 0.9) ? PLACE_JOB_DONE : PLACE_JOB_FAILED;
            x->j.end_s = (int64_t)(x->j.start_s + (int64_t)x->runs_s);
        }
    }
}

static void do_submit(struct world *w, const struct agent_action *x) {
    struct place_submitted s = {.said = {.class_ = PLACE_FINE}};
    const struct agent_job *j = &w->a->jobs[x->job];
    double dice = prng_unit(&w->prng);
    bool arrives = dice < 0.8, answered = dice < 0.6 || dice >= 0.9;
    assert_true(x->shape == sitefile_shape(&w->site, j->shape));
    if (arrives) {
        assert_true(w->jobs_count < WORLD_JOBS);
        struct world_job *y = &w->jobs[w->jobs_count++];
        memset(y, 0, sizeof *y);
        y->j.id = s.job = ++w->id_last;
        y->j.state = PLACE_JOB_PENDING;
        y->j.nodes = x->shape->nodes;
        y->j.limit_s = x->shape->time_s;
        y->j.submit_s = (int64_t)w->wall;
        y->arrives_s = w->wall + (answered ? 0 : prng_below(&w->prng, 100));
        y->runs_s = 60 + prng_below(&w->prng, x->shape->time_s - 60);
        memcpy(y->j.name, j->name, sizeof y->j.name);
        snprintf(y->j.reason, sizeof y->j.reason, "Priority");
    }
    if (!answered)
        s.said.class_ = chance(w, 0.5) ? PLACE_AWAY : PLACE_STRANGE;
    else if (!arrives)
        s.said.class_ = chance(w, 0.5) ? PLACE_BUSY : PLACE_NOT_NOW;
    if (s.said.class_ != PLACE_FINE) s.job = 0;
    if (chance(w, 0.1)) { /* killed before the answer is looked at */
        agent_boot(w);
        return;
    }
    agent_submitted(w->a, w->now, w->wall, x->job, &s);
}

static void do_list(struct world *w, bool history) {
    bool ran[AGENT_JOBS_MAX] = {false};
    struct place_jobs q = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *q.jobs)};
    if (history && !w->history)
        q.said.class_ = PLACE_ABSENT;
    else if (chance(w, 0.15))
        q.said.class_ = chance(w, 0.5) ? PLACE_AWAY : PLACE_STRANGE;
    for (uint32_t i = 0; i < w->jobs_count && q.said.class_ == PLACE_FINE; i++) {
        const struct world_job *x = &w->jobs[i];
        if (w->wall < x->arrives_s) continue;
        bool old = place_state_over(x->j.state) && w->wall > (uint64_t)x->j.end_s + 300;
        if (!history && old) continue;           /* forgotten by the queue */
        if (history && chance(w, 0.1)) continue; /* it lags */
        q.jobs[q.count++] = x->j;
    }
    for (uint32_t i = 0; i < w->a->jobs_count; i++)
        for (uint32_t k = 0; k < w->jobs_count; k++)
            if (strcmp(w->jobs[k].j.name, w->a->jobs[i].name) == 0 && w->jobs[k].j.start_s > 0)
                ran[i] = true;
    if (history)
        agent_recalled(w->a, w->now, w->wall, &q, ran);
    else
        agent_looked(w->a, w->now, w->wall, &q, ran, 5);
    mem_free(q.jobs);
}

static void do_hub(struct world *w) {
    if (chance(w, 0.2)) {
        agent_hub_away(w->a, w->now, 0);
        return;
    }
    if (w->a->run[0] == '\0')
        snprintf(w->a->run, sizeof w->a->run, "0123456789abcdef0123456789abcdef");
    for (uint32_t i = 0; i < w->a->items_count; i++) {
        const struct wire_item *item = &w->a->items[i];
        assert_true(item->n > 0);
        if (item->n <= w->hub.n) continue;
        w->hub.n = item->n;
        if (item->kind == ITEM_BUDGET) {
            w->budgets++;
            w->budget_told_s = item->seconds;
            assert_int_equal(item->nodes, w->site.jobs_max);
        }
        if (item->kind != ITEM_ORDER) continue;
        for (uint32_t k = 0; k < w->hub.orders_count; k++) {
            if (w->hub.orders[k].id != item->order) continue;
            memmove(&w->hub.orders[k], &w->hub.orders[k + 1],
                    (w->hub.orders_count - k - 1) * sizeof w->hub.orders[0]);
            w->hub.orders_count--;
            break;
        }
    }
    if (w->budget_checked && w->budgets > 0 && w->a->items_count < AGENT_ITEMS_MAX / 2) {
        double free = 3600 * (w->site.node_hours - agent_hours(w->a, w->wall));
        assert_true(fabs((free > 0 ? free : 0) - (double)w->budget_told_s) <= 2);
    }
    agent_told(w->a, w->now, w->wall, &w->hub);
}

static void do_cancel(struct world *w, const struct agent_action *x) {
    struct place_said said = {.class_ = chance(w, 0.1) ? PLACE_AWAY : PLACE_FINE};
    for (uint32_t i = 0; i < w->jobs_count && said.class_ == PLACE_FINE; i++) {
        struct place_job *j = &w->jobs[i].j;
        if (j->id != x->cancel || place_state_over(j->state)) continue;
        j->state = x->kind == AGENT_DRAIN ? PLACE_JOB_DONE : PLACE_JOB_CANCELLED;
        j->end_s = (int64_t)w->wall;
    }
    agent_cancelled(w->a, w->now, w->wall, x->job, &said, x->kind == AGENT_DRAIN);
}

static void command(struct world *w) {
    w->commands[w->commands_count++ % ARRAY_COUNT(w->commands)] = w->now;
}

static void act(struct world *w, const struct agent_action *x) {
    struct place_estimate e = {.said = {.class_ = PLACE_FINE}, .start_s = (int64_t)w->wall + 60};
    if (x->kind != AGENT_WAIT && x->kind != AGENT_HUB) command(w);
    switch (x->kind) {
    case AGENT_WAIT: {
        uint64_t s = (uint64_t)((x->until - w->now) / NS_PER_S) + 1;
        w->now += (time_ns)s * NS_PER_S;
        w->wall += s;
        break;
    }
    case AGENT_HUB: do_hub(w); break;
    case AGENT_LOOK: do_list(w, false); break;
    case AGENT_HISTORY: do_list(w, true); break;
    case AGENT_SUBMIT: do_submit(w, x); break;
    case AGENT_CANCEL:
    case AGENT_DRAIN: do_cancel(w, x); break;
    case AGENT_PROBE: agent_probed(w->a, w->now, w->wall, x->shape, &e, 5); break;
    }
    w->now += NS_PER_S;
    w->wall += 1;
}

/* How many submissions of each job of each order arrived. */
static void check_once(const struct world *w) {
    for (uint32_t i = 0; i < w->jobs_count; i++)
        for (uint32_t k = i + 1; k < w->jobs_count; k++) {
            const char *x = w->jobs[i].j.name, *y = w->jobs[k].j.name;
            size_t n = (size_t)(strrchr(x, '-') - x), m = (size_t)(strrchr(y, '-') - y);
            if (n == m && strncmp(x, y, n) == 0)
                printf("seed %llu: %s, %s\n", (unsigned long long)w->seed, x, y);
            assert_false(n == m && strncmp(x, y, n) == 0); /* G2 */
        }
}

static void check_budget(const struct world *w) {
    double used = 0;
    for (uint32_t i = 0; i < w->jobs_count; i++) {
        const struct place_job *j = &w->jobs[i].j;
        uint64_t s = j->limit_s;
        if (place_state_over(j->state))
            s = j->start_s > 0 && j->state != PLACE_JOB_CANCELLED
                    ? (uint64_t)(j->end_s - j->start_s)
                    : 0;
        used += (double)j->nodes * (double)s / 3600;
    }
    assert_true(used <= w->site.node_hours + 1e-6); /* G3 */
}

static struct world *world_run(uint64_t seed, int steps) {
    struct world *w = world_make(seed);
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 1, .shape = "small", .jobs = 6};
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 2, .shape = "small", .jobs = 9};
    for (int i = 0; i < steps; i++) {
        struct agent_action x;
        world_move(w);
        agent_next(w->a, w->now, w->wall, &x);
        if (w->a->dirty) disk_write(w); /* G1: before the action */
        if (chance(w, 0.02)) {
            agent_boot(w);
            continue;
        }
        act(w, &x);
        if (chance(w, 0.02))
            agent_boot(w); /* what came of it is lost */
        else if (w->a->dirty)
            disk_write(w);
        check_budget(w);
    }
    return w;
}

TEST(place_G2_a_job_is_submitted_once_whatever_dies_or_is_late) {
    uint32_t finished = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct world *w = world_run(seed, 3000);
        check_once(w);
        finished += w->hub.orders_count == 0;
        assert_true(w->jobs_count > 3);
        world_free(w);
    }
    printf("%u of 12 ended all their orders\n", finished);
    assert_true(finished >= 11); /* nothing hangs: the others spent their budget last */
}

TEST(place_G3_no_job_beyond_the_budget) {
    struct world *w = world_make(3);
    w->budget_checked = true;
    /* 8 nodes for 10 hours are more than 20 node-hours; of 1-hour jobs there are 20, and no more. */
    w->hub.orders[w->hub.orders_count++] = (struct wire_order){.id = 1, .shape = "big", .jobs = 1};
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 2, .shape = "small", .jobs = 1000};
    for (int i = 0; i < 8000; i++) {
        struct agent_action x;
        world_move(w);
        for (uint32_t k = 0; k < w->jobs_count; k++)
            w->jobs[k].runs_s = w->jobs[k].j.limit_s; /* all of its time */
        agent_next(w->a, w->now, w->wall, &x);
        if (w->a->dirty) disk_write(w);
        act(w, &x);
        if (w->a->dirty) disk_write(w);
        check_budget(w);
    }
    check_once(w);
    assert_int_equal(w->hub.orders_count, 0);
    assert_true(w->jobs_count <= 20 + 5);
    assert_true(w->budgets >= 20); /* told whenever it changed, and no more often */
    assert_true(w->budgets <= 3 * w->jobs_count);
    world_free(w);
}

TEST(place_G4_an_order_only_names_a_shape) {
    struct world *w = world_make(4);
    struct agent_action x;
    static const char *const names[] = {"",        "none",     "small; id", "$(id)",
                                        "small\n", "../small", "-J"};
    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
        struct wire_order *o = &w->hub.orders[w->hub.orders_count++];
        o->id = i + 1;
        o->jobs = 1;
        snprintf(o->shape, sizeof o->shape, "%s", names[i]);
    }
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 99, .shape = "small", .jobs = 4294967295u};
    for (int i = 0; i < 500; i++) {
        agent_next(w->a, w->now, w->wall, &x);
        assert_true(x.kind != AGENT_SUBMIT);
        act(w, &x);
    }
    assert_int_equal(w->jobs_count, 0);
    assert_int_equal(w->hub.orders_count, 0);
    world_free(w);
}

TEST(place_G5_commands_stay_within_the_hour) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world *w = world_make(seed);
        w->hub.orders[w->hub.orders_count++] =
            (struct wire_order){.id = 1, .shape = "small", .jobs = 1000};
        for (int i = 0; i < 2000; i++) {
            struct agent_action x;
            world_move(w);
            agent_next(w->a, w->now, w->wall, &x);
            act(w, &x);
            uint32_t from = w->commands_count > 200 ? w->commands_count - 201 : 0;
            if (w->commands_count > 200)
                assert_true(w->commands[w->commands_count - 1] - w->commands[from] >=
                            3600 * (time_ns)NS_PER_S - 200 * (time_ns)NS_PER_S);
        }
        world_free(w);
    }
}

TEST(place_G1_an_intention_is_saved_before_the_submission) {
    struct world *w = world_make(7);
    struct err e = {0};
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 1, .shape = "small", .jobs = 1};
    for (int i = 0; i < 500; i++) {
        struct agent_action x;
        agent_next(w->a, w->now, w->wall, &x);
        disk_write(w);
        if (x.kind != AGENT_SUBMIT) {
            act(w, &x);
            continue;
        }
        struct agent *b = mem_alloc(1, sizeof *b);
        agent_init(b, &w->site, 1);
        assert_int_equal(agent_load(b, "disk", w->disk.data, w->disk.bytes_count, &e), BRG_OK);
        assert_int_equal(b->jobs[x.job].phase, AGENT_INTENDED);
        assert_string_equal(b->jobs[x.job].name, w->a->jobs[x.job].name);
        mem_free(b);
        world_free(w);
        return;
    }
    fail();
}

TEST(place_a_lost_state_is_found_in_the_queue) {
    struct world *w = world_make(11);
    w->hub.orders[w->hub.orders_count++] =
        (struct wire_order){.id = 1, .shape = "small", .jobs = 3};
    bool lost = false;
    for (int i = 0; i < 6000; i++) {
        struct agent_action x;
        world_move(w);
        agent_next(w->a, w->now, w->wall, &x);
        disk_write(w);
        act(w, &x);
        bool settled = true;
        for (uint32_t k = 0; k < w->a->jobs_count; k++)
            settled = settled && w->a->jobs[k].phase != AGENT_UNSURE;
        if (lost || w->jobs_count < 1 || !settled || w->jobs[0].j.state != PLACE_JOB_RUNNING)
            continue;
        lost = true;
        buf_reset(&w->disk);
        agent_boot(w);
    }
    assert_true(lost);
    check_once(w);
    world_free(w);
}

TEST(place_a_damaged_state_is_refused) {
    struct world *w = world_run(5, 300);
    struct err e = {0};
    struct agent *b = mem_alloc(1, sizeof *b);
    agent_init(b, &w->site, 1);
    assert_int_equal(agent_load(b, "f", "{}", 2, &e), BRG_E_CORRUPT);
    assert_int_equal(agent_load(b, "f", w->disk.data, w->disk.bytes_count / 2, &e), BRG_E_CORRUPT);
    assert_true(strstr(e.text, "f: ") != NULL);
    assert_int_equal(agent_load(b, "f", w->disk.data, w->disk.bytes_count, &e), BRG_OK);
    mem_free(b);
    world_free(w);
}

TEST(place_site_files_are_strict) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"", "site.name"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: "
         "1}\n",
         "no shape"},
        {"site: {name: A, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h}\n",
         "site.name"},
        {"site: {name: a, hub: \"ftp://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h}\n",
         "site.hub"},
        {"site: {name: a, hub: \"bucket:h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h}\n",
         "site.hub"},
        {"site: {name: a, hub: \"bucket:s3://bucket/p\", state: s}\njob: {script: j}\n"
         "budget: {node_hours: 1}\ncourier: {spool: /s}\nshape_a: {time: 1h}\n",
         "courier.spool"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1m}\n",
         "job.drain"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h, options: [--test]}\n",
         "given by the agent"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h, options: [rm]}\n",
         "want one option"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h, partition: --wrap}\n",
         "begins with no"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h}\nshape_a: {time: 1h}\n",
         "shape_a"},
        {"site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\nbudget: {node_hours: 1}\n"
         "shape_a: {time: 1h, gpu: 4}\n",
         "did you mean"},
    };
    struct place_site *s = mem_alloc(1, sizeof *s);
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        struct err e = {0};
        assert_int_equal(sitefile_parse("site.yaml", bad[i].text, strlen(bad[i].text), s, &e),
                         BRG_E_CONFIG);
        if (strstr(e.text, bad[i].word) == NULL) printf("%zu: %s\n", i, e.text);
        assert_non_null(strstr(e.text, bad[i].word));
        assert_true(strncmp(e.text, "site.yaml", 9) == 0);
    }
    mem_free(s);
}
