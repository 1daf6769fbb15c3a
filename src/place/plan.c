/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - rollouts; see plan.h. Invariants
 *   (P1) the limits of running and waiting jobs, in node-seconds, and what was used fit the budget.
 *   (P2) a choice is compared with doing nothing under the same draws. */
#include "place/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPANS_MAX = 64, DRAWS_MAX = 256 };

/* When one site trains, and how fast, in one future. */
struct future {
    struct {
        double from, until, tokens_per_s;
    } v[SPANS_MAX];
    uint32_t count;
};

struct choice {
    bool submit, cancel;
    uint32_t shape, job; /* job: index of the one that is cancelled */
};

struct planner {
    const struct plan_state *s;
    const struct plan_options *o;
    struct future *sites;          /* [sites_count][draws], as things stand */
    struct future *trial;          /* [draws] of one site under a choice */
    double enough[PLAN_SITES_MAX]; /* tokens after which a site's future need not go on */
    uint64_t seed;
    uint32_t draws;
};

struct plan_options plan_options_default(void) {
    return (struct plan_options){.draws = 48,
                                 .tick_s = 600,
                                 .join_s = 180,
                                 .overhead = 0.02,
                                 .horizon_s = 90 * 86400.0,
                                 .gain_least = 0.02,
                                 .cancel_least = 8};
}

static double job_cost(const struct plan_site *site, uint32_t shape) {
    return site->shapes[shape].nodes * site->shapes[shape].limit_s;
}

double plan_budget_free(const struct plan_site *site, double now_s) {
    double free = site->budget_left_s;
    for (uint32_t j = 0; j < site->jobs_count; j++) {
        const struct plan_job *job = &site->jobs[j];
        double used = job->running ? (now_s - job->since_s) * site->shapes[job->shape].nodes : 0.0;
        free -= fmax(0.0, job_cost(site, job->shape) - used);
    }
    return free;
}

/* The shape that trains most in the long run: what is left of a cycle after waiting and joining. */
static int steady_shape(const struct plan_site *site, double join_s, double budget) {
    int best = -1;
    double most = 0;
    for (uint32_t i = 0; i < site->shapes_count; i++) {
        const struct plan_shape *h = &site->shapes[i];
        if (!site->offered[i] || job_cost(site, i) > budget) continue;
        double gap = fmax(0.0, wait_table_at(&site->waits[i], 0.5) - h->limit_s);
        double rate = h->tokens_per_s * fmax(0.0, h->limit_s - join_s) / (h->limit_s + gap);
        if (rate > most) {
            most = rate;
            best = (int)i;
        }
    }
    return best;
}

static double add_span(struct future *f, double from, double until, double tokens_per_s) {
    if (until <= from || f->count == SPANS_MAX) return 0;
    f->v[f->count].from = from;
    f->v[f->count].until = until;
    f->v[f->count++].tokens_per_s = tokens_per_s;
    return (until - from) * tokens_per_s;
}

/* A job of a future: where it stands in time. */
struct ahead {
    double start, end;
    uint32_t shape;
};

/* Lays one job after what is there: an older one that still runs hands in when this one is ready.
 * Gives the tokens that the job alone trains. */
static double lay(const struct planner *p, const struct plan_site *site, struct future *f,
                  struct ahead job) {
    double ready = fmin(job.start + p->o->join_s, job.end);
    for (uint32_t i = 0; i < f->count; i++)
        if (f->v[i].until > ready && f->v[i].from < ready) f->v[i].until = ready;
    return add_span(f, ready, job.end,
                    site->shapes[job.shape].tokens_per_s * (1.0 - p->o->overhead));
}

static int by_start(const void *a, const void *b) {
    double x = ((const struct ahead *)a)->start, y = ((const struct ahead *)b)->start;
    return (x > y) - (x < y);
}

/* The site's jobs in one future, those that exist first, in order of start. */
static uint32_t known_jobs(const struct planner *p, const struct plan_site *site,
                           const struct choice *c, struct prng *rng, struct ahead *out) {
    uint32_t n = 0;
    double now = p->s->now_s;
    for (uint32_t j = 0; j < site->jobs_count; j++) {
        const struct plan_job *job = &site->jobs[j];
        double u = prng_unit(rng); /* drawn in any case: P2 */
        if (c->cancel && c->job == j) continue;
        double start = job->running ? job->since_s : now + wait_table_at(&job->left, u);
        out[n++] = (struct ahead){start, start + site->shapes[job->shape].limit_s, job->shape};
    }
    for (uint32_t i = site->jobs_count; i < PLAN_JOBS_MAX; i++) (void)prng_unit(rng);
    if (c->submit) { /* the n-th new job of a future has the n-th draw, whatever is chosen: P2 */
        double start = now + wait_table_at(&site->waits[c->shape], prng_unit(rng));
        out[n++] = (struct ahead){start, start + site->shapes[c->shape].limit_s, c->shape};
    }
    qsort(out, n, sizeof *out, by_start);
    return n;
}

static void roll(const struct planner *p, uint32_t i, const struct choice *c, uint64_t draw,
                 struct future *f) {
    const struct plan_site *site = &p->s->sites[i];
    struct prng rng;
    prng_seed(&rng, mix64(p->seed ^ mix64(draw * PLAN_SITES_MAX + i)));
    struct ahead jobs[PLAN_JOBS_MAX + 1];
    uint32_t n = known_jobs(p, site, c, &rng, jobs);
    double end = p->s->now_s, budget = plan_budget_free(site, p->s->now_s);
    if (c->cancel) budget += job_cost(site, site->jobs[c->job].shape);
    if (c->submit) budget -= job_cost(site, c->shape);
    f->count = 0;
    double tokens = 0;
    double latest = p->s->now_s + p->o->tick_s; /* the earliest moment of a further choice */
    for (uint32_t j = 0; j < n; j++) {
        tokens += lay(p, site, f, jobs[j]);
        end = fmax(end, jobs[j].end);
        /* The rule submits only where nothing waits. */
        if (jobs[j].start > latest) latest = jobs[j].start;
    }
    while (tokens < p->enough[i] && end < p->s->now_s + p->o->horizon_s &&
           f->count < SPANS_MAX - 1) {
        int shape = steady_shape(site, p->o->join_s, budget);
        if (shape < 0) break;
        const struct wait_table *w = &site->waits[shape];
        double at = fmax(latest, end - wait_table_at(w, 0.8));
        double start = at + wait_table_at(w, prng_unit(&rng));
        struct ahead job = {start, start + site->shapes[shape].limit_s, (uint32_t)shape};
        tokens += lay(p, site, f, job);
        budget -= job_cost(site, (uint32_t)shape);
        latest = start;
        end = fmax(end, job.end);
    }
}

/* When the spans of all sites have trained so many tokens; horizon where never. */
static double reached(const struct planner *p, uint32_t draw, uint32_t changed) {
    double left = p->s->tokens_left, at = p->s->now_s, horizon = at + p->o->horizon_s;
    const struct future *f[PLAN_SITES_MAX];
    uint32_t next[PLAN_SITES_MAX] = {0};
    for (uint32_t i = 0; i < p->s->sites_count; i++)
        f[i] = i == changed ? &p->trial[draw] : &p->sites[i * p->draws + draw];
    while (left > 0 && at < horizon) {
        double rate = 0, until = horizon;
        for (uint32_t i = 0; i < p->s->sites_count; i++) {
            while (next[i] < f[i]->count && f[i]->v[next[i]].until <= at) next[i]++;
            if (next[i] == f[i]->count) continue;
            double from = f[i]->v[next[i]].from, end = f[i]->v[next[i]].until;
            if (from > at) {
                until = fmin(until, from);
            } else {
                rate += f[i]->v[next[i]].tokens_per_s;
                until = fmin(until, end);
            }
        }
        if (rate * (until - at) >= left) return at + left / rate;
        left -= rate * (until - at);
        at = until;
    }
    return horizon;
}

static double judge(const struct planner *p, uint32_t changed, double *times) {
    double sum = 0;
    for (uint32_t d = 0; d < p->draws; d++) {
        double t = reached(p, d, changed) - p->s->now_s;
        if (times) times[d] = t;
        sum += t;
    }
    return sum / p->draws;
}

static double try_choice(struct planner *p, uint32_t i, const struct choice *c) {
    for (uint32_t d = 0; d < p->draws; d++) roll(p, i, c, d, &p->trial[d]);
    return judge(p, i, NULL);
}

static void span_text(double seconds, char *out, size_t cap) {
    if (seconds < 5400)
        snprintf(out, cap, "%.0f min", seconds / 60);
    else if (seconds < 172800)
        snprintf(out, cap, "%.1f h", seconds / 3600);
    else
        snprintf(out, cap, "%.1f d", seconds / 86400);
}

static void explain(const struct planner *p, uint32_t i, const struct choice *c, double mean,
                    double idle, struct plan_action *a) {
    const struct plan_site *site = &p->s->sites[i];
    char with[24], without[24], half[24], low[24], high[24];
    span_text(mean, with, sizeof with);
    span_text(idle, without, sizeof without);
    if (a->kind == PLAN_CANCEL) {
        snprintf(a->why, sizeof a->why,
                 "the target comes in %s, or in %s with the %s that waits here since %.1f h", with,
                 without, site->shapes[site->jobs[c->job].shape].name,
                 (p->s->now_s - site->jobs[c->job].since_s) / 3600);
        return;
    }
    const struct wait_table *w = &site->waits[c->shape];
    span_text(wait_table_at(w, 0.5), half, sizeof half);
    span_text(wait_table_at(w, 0.1), low, sizeof low);
    span_text(wait_table_at(w, 0.9), high, sizeof high);
    snprintf(a->why, sizeof a->why,
             "the target comes in %s, or in %s without this job; it waits about %s (80 %%: %s to "
             "%s), then trains %.3g tokens/s for %.1f h",
             with, without, half, low, high, site->shapes[c->shape].tokens_per_s,
             site->shapes[c->shape].limit_s / 3600);
}

static uint32_t waiting_count(const struct plan_site *site) {
    uint32_t n = 0;
    for (uint32_t j = 0; j < site->jobs_count; j++) n += !site->jobs[j].running;
    return n;
}

static bool waits_already(const struct plan_site *site, uint32_t shape, const struct choice *c) {
    for (uint32_t j = 0; j < site->jobs_count; j++) {
        if (c->cancel && c->job == j) continue;
        if (!site->jobs[j].running && site->jobs[j].shape == shape) return true;
    }
    return false;
}

static bool allowed(const struct planner *p, uint32_t i, const struct choice *c) {
    const struct plan_site *site = &p->s->sites[i];
    uint32_t waiting = waiting_count(site) - c->cancel, jobs = site->jobs_count - c->cancel;
    double free = plan_budget_free(site, p->s->now_s);
    if (c->cancel) free += job_cost(site, site->jobs[c->job].shape);
    if (!c->submit) return true;
    return waiting < site->waiting_max && jobs < PLAN_JOBS_MAX && site->offered[c->shape] &&
           !waits_already(site, c->shape, c) && job_cost(site, c->shape) <= free; /* P1 */
}

/* A job that starts soon anyway is not worth a cancel, whatever came instead. */
static bool soon(const struct planner *p, const struct plan_job *job) {
    return wait_table_at(&job->left, 0.9) < p->o->cancel_least * p->o->tick_s;
}

/* All choices of a site: submit one, cancel one, or, where no more may wait, change one for another. */
static struct choice best_choice(struct planner *p, uint32_t i, double idle, double *out_mean) {
    const struct plan_site *site = &p->s->sites[i];
    struct choice best = {0};
    double gain = 0;
    bool full = waiting_count(site) >= site->waiting_max;
    *out_mean = idle;
    for (uint32_t j = 0; j <= site->jobs_count; j++) {
        bool cancel = j < site->jobs_count;
        if (cancel && (site->jobs[j].running || soon(p, &site->jobs[j]))) continue;
        for (uint32_t shape = 0; shape <= site->shapes_count; shape++) {
            struct choice c = {shape < site->shapes_count, cancel, shape, j};
            if ((!c.submit && !c.cancel) || (c.submit && c.cancel && !full)) continue;
            if (!allowed(p, i, &c)) continue;
            double mean = try_choice(p, i, &c);
            double least = (c.cancel ? p->o->cancel_least : p->o->gain_least) * p->o->tick_s;
            if (idle - mean - least > gain) {
                best = c;
                gain = idle - mean - least;
                *out_mean = mean;
            }
        }
    }
    return best;
}

static void take(struct planner *p, uint32_t i, const struct choice *c, double mean, double idle,
                 struct plan_result *out) {
    const struct plan_site *site = &p->s->sites[i];
    if (c->cancel) {
        struct plan_action *a = &out->v[out->count++];
        *a = (struct plan_action){.kind = PLAN_CANCEL, .site = i, .id = site->jobs[c->job].id};
        explain(p, i, c, mean, idle, a);
    }
    if (c->submit) {
        struct plan_action *a = &out->v[out->count++];
        *a = (struct plan_action){.kind = PLAN_SUBMIT, .site = i, .shape = c->shape};
        explain(p, i, c, mean, idle, a);
    }
    for (uint32_t d = 0; d < p->draws; d++) roll(p, i, c, d, &p->sites[i * p->draws + d]);
}

/* Thrice a site's share of the work by its speed, or all of it: sites that wait long do less than others. */
static void set_enough(struct planner *p) {
    double best[PLAN_SITES_MAX] = {0}, sum = 0;
    for (uint32_t i = 0; i < p->s->sites_count; i++) {
        const struct plan_site *site = &p->s->sites[i];
        for (uint32_t h = 0; h < site->shapes_count; h++)
            best[i] = fmax(best[i], site->shapes[h].tokens_per_s);
        sum += best[i];
    }
    for (uint32_t i = 0; i < p->s->sites_count; i++)
        p->enough[i] = p->s->tokens_left * fmin(1.0, 3.0 * best[i] / sum);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void plan_decide(const struct plan_state *s, const struct plan_options *o, uint64_t seed,
                 struct plan_result *out) {
    CHECK(s->sites_count <= PLAN_SITES_MAX);
    *out = (struct plan_result){.count = 0};
    struct planner *p = mem_alloc(1, sizeof *p);
    p->s = s;
    p->o = o;
    p->seed = seed;
    p->draws = o->draws < DRAWS_MAX ? o->draws : DRAWS_MAX;
    p->sites = mem_alloc((size_t)s->sites_count * p->draws, sizeof *p->sites);
    p->trial = mem_alloc(p->draws, sizeof *p->trial);
    set_enough(p);
    const struct choice nothing = {0};
    for (uint32_t i = 0; i < s->sites_count; i++)
        for (uint32_t d = 0; d < p->draws; d++)
            roll(p, i, &nothing, d, &p->sites[i * p->draws + d]);
    for (uint32_t i = 0; i < s->sites_count; i++) {
        double idle = judge(p, PLAN_SITES_MAX, NULL), mean;
        struct choice c = best_choice(p, i, idle, &mean);
        if (c.submit || c.cancel) take(p, i, &c, mean, idle, out);
    }
    double times[DRAWS_MAX];
    out->mean_s = judge(p, PLAN_SITES_MAX, times);
    qsort(times, p->draws, sizeof *times, by_value);
    out->low_s = times[p->draws / 10];
    out->high_s = times[p->draws * 9 / 10];
    for (uint32_t d = 0; d < p->draws; d++) out->unreached += times[d] >= o->horizon_s;
    mem_free(p->sites);
    mem_free(p->trial);
    mem_free(p);
}
