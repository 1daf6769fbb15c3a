/* SPDX-License-Identifier: Apache-2.0 */
/* live_state.c - see live.h: from a run's status to what the planner decides by. Invariants
 *   (V1) what the agent counts against its budget is not counted a second time, and what it does not know yet
 *        (an order on its way) is counted here.
 *   (V2) an order that is open stands in the plan as a job, so that no look orders the same again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "place/live.h"

enum { FAILS_MAX = 3, PROBE_OLD_S = 3600 };
#define SPEED_MOST 1e18
#define GUESS_TOKENS_PER_S 1000.0 /* of a node, or of a GPU, where nothing ever trained */

struct live_options live_options_default(void) {
    return (struct live_options){.prior_s = 3600, .silent_s = 1800, .waiting_max = 2};
}

const char *live_speed_name(enum live_speed_source s) {
    static const char *const names[] = {"told",        "heartbeat",   "scaled",
                                        "merged work", "other sites", "a guess"};
    return names[s];
}

static bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/* ---- Jobs ------------------------------------------------------------------------------------------ */

enum stand {
    STAND_WAITS,
    STAND_RUNS,
    STAND_OVER,
    STAND_UNWANTED /* refused: it never was in the queue */
};

static enum stand stands(const struct live_job *j) {
    if (is(j->state, "pending") || is(j->state, "submitting")) return STAND_WAITS;
    if (is(j->state, "running") || is(j->state, "suspended")) return STAND_RUNS;
    return is(j->state, "refused") ? STAND_UNWANTED : STAND_OVER;
}

static bool started(const struct live_job *j) {
    return j->start > 0 && (stands(j) == STAND_RUNS || stands(j) == STAND_OVER);
}

/* The job of a chain that this one waits for, or waited for: chains are made by dependencies. NULL: none. */
static const struct live_job *waits_for(const struct live_facility *f, const struct live_job *j) {
    for (uint32_t i = 0; i < f->jobs_count; i++) {
        const struct live_job *b = &f->jobs[i];
        if (b->order != j->order || b->job + 1 != j->job || b->start == 0) continue;
        if (stands(b) == STAND_RUNS) return started(j) ? NULL : b;
        return b->end > j->submit && (!started(j) || j->start >= b->end) ? b : NULL;
    }
    return NULL;
}

/* From when on it could start. */
static double eligible(const struct live_facility *f, const struct live_job *j) {
    const struct live_job *b = waits_for(f, j);
    if (b == NULL) return (double)j->submit;
    return stands(b) == STAND_RUNS ? (double)(b->start + b->seconds) : (double)b->end;
}

/* What was known as it was submitted. */
static struct wait_request request_of(const struct live_facility *f, const struct live_job *j) {
    double from = eligible(f, j);
    struct wait_request q = {.nodes = (double)j->nodes,
                             .limit_s = (double)j->seconds,
                             .queued = -1,
                             .estimate_s = -1,
                             .hour = fmod(from / 3600.0, 24.0)};
    if (waits_for(f, j) != NULL) return q; /* the estimate was made for another moment */
    q.refused = is(j->estimate_class, "not_now");
    if (is(j->estimate_class, "fine") && j->estimate > 0)
        q.estimate_s = j->estimate > j->submit ? (double)(j->estimate - j->submit) : 0.0;
    return q;
}

struct learned {
    const struct live_job *job;
    uint64_t at;
};

static int by_time(const void *a, const void *b) {
    const struct learned *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static void learn(const struct live_facility *f, double prior_s, struct predictor *p) {
    struct learned v[LIVE_JOBS_MAX];
    uint32_t n = 0;
    predictor_init(p, prior_s);
    for (uint32_t i = 0; i < f->jobs_count; i++) {
        const struct live_job *j = &f->jobs[i];
        if (j->submit == 0 || j->nodes == 0 || j->seconds == 0) continue;
        if (started(j))
            v[n++] = (struct learned){j, j->start};
        else if (is(j->state, "cancelled") && j->end >= j->submit)
            v[n++] = (struct learned){j, j->end};
    }
    qsort(v, n, sizeof v[0], by_time);
    for (uint32_t i = 0; i < n; i++) {
        struct wait_request q = request_of(f, v[i].job);
        double wait = fmax(0.0, (double)v[i].at - eligible(f, v[i].job));
        if (started(v[i].job))
            predictor_started(p, &q, wait);
        else
            predictor_cancelled(p, &q, wait);
    }
}

/* ---- Shapes ---------------------------------------------------------------------------------------- */

static int shape_index(const struct live_facility *f, const char *name) {
    for (uint32_t i = 0; i < f->shapes_count; i++)
        if (is(f->shapes[i].shape, name)) return (int)i;
    return -1;
}

static const struct live_probe *probe_of(const struct live_facility *f, const char *shape) {
    for (uint32_t i = 0; i < f->probes_count; i++)
        if (is(f->probes[i].shape, shape)) return &f->probes[i];
    return NULL;
}

static struct wait_request request_now(const struct live_facility *f, const struct live_shape *s,
                                       double now) {
    const struct live_probe *p = probe_of(f, s->shape);
    struct wait_request q = {.nodes = (double)s->nodes,
                             .limit_s = (double)s->seconds,
                             .queued = -1,
                             .estimate_s = -1,
                             .hour = fmod(now / 3600.0, 24.0)};
    if (p == NULL) return q;
    q.refused = is(p->class_, "not_now");
    if (!is(p->class_, "fine") || p->start == 0) return q;
    double from = now - (double)p->at > PROBE_OLD_S ? (double)p->at : now;
    q.estimate_s = fmax(0.0, (double)p->start - from);
    return q;
}

/* The newest order of a shape that was refused, and not since the file was read again. */
static const struct live_order *refused_order(const struct live_facility *f,
                                              const struct live_shape *s) {
    const struct live_order *newest = NULL;
    for (uint32_t i = 0; i < f->orders_count; i++)
        if (is(f->orders[i].shape, s->shape) && (newest == NULL || f->orders[i].id > newest->id))
            newest = &f->orders[i];
    if (newest == NULL || newest->open || !is(newest->word, "refused") || newest->over < s->at)
        return NULL;
    return newest;
}

/* Jobs of the shape that failed one after another, by the newest ends, and not before the file was read again. */
static bool keeps_failing(const struct live_facility *f, const struct live_shape *s) {
    uint32_t fails = 0;
    for (uint32_t i = f->jobs_count; i-- > 0 && fails < FAILS_MAX;) {
        const struct live_job *j = &f->jobs[i];
        if (!is(j->shape, s->shape) || stands(j) != STAND_OVER || j->end < s->at) continue;
        if (is(j->state, "cancelled")) continue;
        if (!is(j->state, "failed")) return false;
        fails++;
    }
    return fails == FAILS_MAX;
}

static void span(double seconds, char *out, size_t cap) {
    if (seconds < 5400)
        (void)snprintf(out, cap, "%.0f min", seconds / 60);
    else
        (void)snprintf(out, cap, "%.1f h", seconds / 3600);
}

/* "" where it may be ordered; else why not. */
static void judge_shape(const struct live_facility *f, const struct live_shape *s,
                        const struct live_options *o, char why[LIVE_WHY_BYTES]) {
    const struct live_probe *p = probe_of(f, s->shape);
    const struct live_order *r = refused_order(f, s);
    uint64_t newest = 0;
    char text[32];
    why[0] = '\0';
    for (uint32_t i = 0; i < f->shapes_count; i++)
        if (f->shapes[i].at > newest) newest = f->shapes[i].at;
    span(f->heard_ago_s, text, sizeof text);
    if (f->heard_ago_s < 0)
        (void)snprintf(why, LIVE_WHY_BYTES,
                       "its agent has not been heard of since the hub started");
    else if (f->heard_ago_s > o->silent_s)
        (void)snprintf(why, LIVE_WHY_BYTES, "its agent has not been heard of for %s", text);
    else if (s->at < newest) /* an agent reports all that its file offers when it starts */
        (void)snprintf(why, LIVE_WHY_BYTES, "site.yaml no longer offers it");
    else if (p != NULL && (is(p->class_, "never") || is(p->class_, "denied") ||
                           is(p->class_, "ours") || is(p->class_, "absent")))
        (void)snprintf(why, LIVE_WHY_BYTES, "the scheduler says %s: %.110s", p->class_, p->why);
    else if (r != NULL)
        (void)snprintf(why, LIVE_WHY_BYTES, "order %llu was refused: %.110s",
                       (unsigned long long)r->id, r->why);
    else if (keeps_failing(f, s))
        (void)snprintf(why, LIVE_WHY_BYTES,
                       "its last %d jobs failed: see their output, then start the agent again",
                       FAILS_MAX);
    for (char *c = why; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f) *c = '?';
}

/* ---- Speeds ------------------------------------------------------------------------------------------ */

/* What speed is taken to grow with: GPUs, or nodes where there are none. */
static double units(const struct live_shape *s) {
    return (double)s->nodes * (s->gpus > 0 ? (double)s->gpus : 1.0);
}

static const struct live_job *runs_now(const struct live_facility *f) {
    const struct live_job *newest = NULL;
    for (uint32_t i = 0; i < f->jobs_count; i++)
        if (stands(&f->jobs[i]) == STAND_RUNS &&
            (newest == NULL || f->jobs[i].start > newest->start))
            newest = &f->jobs[i];
    return newest;
}

/* Tokens a second of one unit, from what all jobs trained while they ran. 0: not known. */
static double merged_speed(const struct live_facility *f, double now) {
    double unit_s = 0;
    for (uint32_t i = 0; i < f->jobs_count; i++) {
        const struct live_job *j = &f->jobs[i];
        int at = shape_index(f, j->shape);
        if (!started(j) || at < 0) continue;
        double end = stands(j) == STAND_RUNS ? now : (double)j->end;
        unit_s += fmax(0.0, end - (double)j->start) * units(&f->shapes[at]);
    }
    return unit_s > 0 && f->member.tokens_merged > 0 ? f->member.tokens_merged / unit_s : 0;
}

struct measured {
    double per_unit;
    int shape; /* by heartbeat: of this shape; -1 */
    enum live_speed_source source;
};

static struct measured measure(const struct live_facility *f, double now) {
    const struct live_job *j = runs_now(f);
    int shape = j != NULL ? shape_index(f, j->shape) : -1;
    if (f->member.joined && f->member.live && f->member.tokens_per_s > 0 && shape >= 0)
        return (struct measured){f->member.tokens_per_s / units(&f->shapes[shape]), shape,
                                 LIVE_SPEED_SCALED};
    return (struct measured){merged_speed(f, now), -1, LIVE_SPEED_MERGED};
}

static double told_speed(const struct live_options *o, const char *site, const char *shape) {
    for (size_t i = 0; i < o->speeds_count; i++)
        if (is(o->speeds[i].site, site) && is(o->speeds[i].shape, shape))
            return o->speeds[i].tokens_per_s;
    return 0;
}

static void set_speeds(const struct live *l, const struct live_options *o, double now,
                       struct plan_state *out, struct live_site_view *views) {
    struct measured m[PLAN_SITES_MAX];
    double sum = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < l->facilities_count; i++) {
        m[i] = measure(&l->facilities[i], now);
        sum += m[i].per_unit;
        known += m[i].per_unit > 0;
    }
    for (uint32_t i = 0; i < l->facilities_count; i++) {
        const struct live_facility *f = &l->facilities[i];
        for (uint32_t h = 0; h < f->shapes_count; h++) {
            double told = told_speed(o, f->name, f->shapes[h].shape), one = m[i].per_unit;
            enum live_speed_source from = (int)h == m[i].shape ? LIVE_SPEED_HEARTBEAT : m[i].source;
            if (one <= 0) {
                one = known > 0 ? sum / known : GUESS_TOKENS_PER_S;
                from = known > 0 ? LIVE_SPEED_OTHERS : LIVE_SPEED_GUESS;
            }
            views[i].speed_source[h] = told > 0 ? LIVE_SPEED_TOLD : from;
            out->sites[i].shapes[h].tokens_per_s =
                fmin(told > 0 ? told : one * units(&f->shapes[h]), SPEED_MOST);
        }
    }
}

/* ---- The state --------------------------------------------------------------------------------------- */

static const struct live_order *order_of(const struct live_facility *f, uint64_t id) {
    for (uint32_t i = 0; i < f->orders_count; i++)
        if (f->orders[i].id == id) return &f->orders[i];
    return NULL;
}

static bool order_has(const struct live_facility *f, uint64_t id, enum stand stand) {
    for (uint32_t i = 0; i < f->jobs_count; i++)
        if (f->jobs[i].order == id && stands(&f->jobs[i]) == stand) return true;
    return false;
}

static double seconds_left(const struct plan_shape *s, double used_s) {
    return s->nodes * fmax(0.0, s->limit_s - used_s);
}

/* One job into the plan, or into the count of those that found no room. `known`: to the agent, too. */
static void job_add(struct plan_site *p, struct live_site_view *v, struct plan_job job, bool known,
                    double now) {
    const struct plan_shape *s = &p->shapes[job.shape];
    if (p->jobs_count == PLAN_JOBS_MAX) {
        v->jobs_left_out++;
        return;
    }
    /* The agent has set it aside already, and plan_budget_free will: V1 */
    if (known) p->budget_left_s += seconds_left(s, job.running ? now - job.since_s : 0.0);
    p->jobs[p->jobs_count++] = job;
}

static void jobs_add(const struct live_facility *f, struct plan_site *p, struct live_site_view *v,
                     bool running, double now) {
    for (uint32_t i = 0; i < f->jobs_count; i++) {
        const struct live_job *j = &f->jobs[i];
        const struct live_order *o = order_of(f, j->order);
        int shape = shape_index(f, j->shape);
        if (stands(j) != (running ? STAND_RUNS : STAND_WAITS) || shape < 0) continue;
        if (o != NULL && (o->cancel || !o->open)) continue; /* it goes */
        double since = running ? (double)j->start : (double)j->submit;
        if (running && now >= since + (double)j->seconds) continue; /* nobody told its end yet */
        struct plan_job job = {
            .shape = (uint32_t)shape, .running = running, .id = j->order, .since_s = since};
        if (!running) {
            struct wait_request q = request_of(f, j);
            double from = eligible(f, j);
            predictor_table(&v->predictor, &q, fmax(0.0, now - from), &job.left);
            for (size_t k = 0; k < WAIT_TABLE; k++) job.left.v[k] += fmax(0.0, from - now);
            job.keep = o == NULL || order_has(f, j->order, STAND_RUNS);
        }
        job_add(p, v, job, true, now);
    }
}

/* Orders that the agent has still to submit a job of: V2. */
static void orders_add(const struct live_facility *f, struct plan_site *p, struct live_site_view *v,
                       double now) {
    for (uint32_t i = 0; i < f->orders_count; i++) {
        const struct live_order *o = &f->orders[i];
        int shape = shape_index(f, o->shape);
        uint64_t begun = 0;
        if (!o->open || o->cancel || shape < 0 || order_has(f, o->id, STAND_WAITS)) continue;
        for (uint32_t k = 0; k < f->jobs_count; k++)
            if (f->jobs[k].order == o->id && stands(&f->jobs[k]) != STAND_UNWANTED &&
                f->jobs[k].job > begun)
                begun = f->jobs[k].job;
        if (begun >= o->jobs) continue;
        struct plan_job job = {.shape = (uint32_t)shape, .since_s = now, .id = o->id};
        job.left = p->waits[shape];
        job.keep = order_has(f, o->id, STAND_RUNS);
        job_add(p, v, job, false, now);
    }
}

static void fill_site(const struct live_facility *f, const struct live_options *o, double now,
                      struct plan_site *p, struct live_site_view *v) {
    uint32_t running = 0;
    memset(p, 0, sizeof *p);
    memset(v, 0, sizeof *v);
    (void)snprintf(p->name, sizeof p->name, "%s", f->name);
    learn(f, o->prior_s, &v->predictor);
    p->shapes_count = f->shapes_count;
    for (uint32_t h = 0; h < f->shapes_count; h++) {
        const struct live_shape *s = &f->shapes[h];
        (void)snprintf(p->shapes[h].name, sizeof p->shapes[h].name, "%s", s->shape);
        p->shapes[h].nodes = (double)s->nodes;
        p->shapes[h].limit_s = (double)s->seconds;
        v->requests[h] = request_now(f, s, now);
        predictor_table(&v->predictor, &v->requests[h], 0, &p->waits[h]);
        judge_shape(f, s, o, v->not_offered[h]);
        p->offered[h] = v->not_offered[h][0] == '\0';
    }
    p->budget_left_s = f->budget_told ? f->budget_free_s : HUGE_VAL;
    jobs_add(f, p, v, true, now);
    running = p->jobs_count;
    jobs_add(f, p, v, false, now);
    orders_add(f, p, v, now);
    uint64_t room = f->budget_told && f->jobs_max > running ? f->jobs_max - running
                    : f->budget_told                        ? 0
                                                            : o->waiting_max;
    p->waiting_max = room < o->waiting_max ? (uint32_t)room : o->waiting_max;
}

void live_state(const struct live *l, const struct live_options *o, double now_s,
                struct plan_state *out, struct live_site_view *views) {
    memset(out, 0, sizeof *out);
    out->now_s = now_s;
    out->tokens_left = fmax(0.0, l->tokens_total - l->tokens);
    out->sites_count = l->facilities_count;
    for (uint32_t i = 0; i < l->facilities_count; i++)
        fill_site(&l->facilities[i], o, now_s, &out->sites[i], &views[i]);
    set_speeds(l, o, now_s, out, views);
}
