/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - rollouts; see plan.h. Invariants
 *   (P1) the limits of running and waiting jobs, in node-seconds, and what was used fit the budget.
 *   (P2) a choice is compared with doing nothing under the same draws. */
#include "place/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DRAWN: uniform numbers that are drawn once for each future; those beyond are drawn when they are needed.
 * RACE: futures after which a choice that has fallen behind is dropped. */
enum { SPANS_MAX = 64, DRAWS_MAX = 256, DRAWN = PLAN_JOBS_MAX + 12, RACE = 12 };
#define RACE_SIGMAS 2.5

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

/* The numbers that decide one site's future, the same under all choices: P2. */
struct chance {
    double unit[DRAWN];
    struct prng more;
};

/* Speed of all sites but one in one future: v[k].rate from v[k].at on. */
struct others {
    struct {
        double at, rate;
    } v[PLAN_SITES_MAX * 2 * SPANS_MAX + 1];
    uint32_t count;
};

struct facts {          /* of a site, whatever is chosen */
    double enough;      /* tokens after which its future need not go on */
    double budget_free; /* node-seconds */
    /* Shapes that a steady stream may be made of, the best first; when 4 of 5 of their jobs have started. */
    uint32_t steady[PLAN_SHAPES_MAX], steady_count;
    double wait80[PLAN_SHAPES_MAX];
};

struct planner {
    const struct plan_state *s;
    const struct plan_options *o;
    uint32_t draws;
    uint32_t room, room_draws; /* futures that the arrays have room for */
    struct future *sites;      /* [sites_count][draws], as things stand */
    struct future *trial;      /* [draws], of one site under a choice */
    struct chance *chances;    /* [sites_count][draws] */
    struct others *others;     /* [draws] */
    double idle[DRAWS_MAX];    /* times to the target as things stand */
    struct facts facts[PLAN_SITES_MAX];
};

struct plan_options plan_options_default(void) {
    return (struct plan_options){.draws = 48,
                                 .tick_s = 600,
                                 .join_s = 180,
                                 .overhead = 0.02,
                                 .horizon_s = 90 * 86400.0,
                                 .gain_least = 0.02,
                                 .cancel_least = 8,
                                 .explain = true};
}

/* As fmin and fmax, of numbers that are none of them NaN: these are called a hundred million times. */
static inline double least(double a, double b) {
    return a < b ? a : b;
}
static inline double most(double a, double b) {
    return a > b ? a : b;
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

/* ---- What is the same under all choices -------------------------------------------------------------- */

/* The shapes by what they train in the long run: what is left of a cycle after waiting and joining. */
static void set_steady(const struct planner *p, uint32_t site, struct facts *f) {
    const struct plan_site *s = &p->s->sites[site];
    double rates[PLAN_SHAPES_MAX];
    f->steady_count = 0;
    for (uint32_t i = 0; i < s->shapes_count; i++) {
        const struct plan_shape *h = &s->shapes[i];
        double gap = fmax(0.0, wait_table_at(&s->waits[i], 0.5) - h->limit_s);
        double rate = h->tokens_per_s * fmax(0.0, h->limit_s - p->o->join_s) / (h->limit_s + gap);
        f->wait80[i] = wait_table_at(&s->waits[i], 0.8);
        if (!s->offered[i] || !(rate > 0)) continue;
        uint32_t at = f->steady_count++;
        for (; at > 0 && rates[at - 1] < rate; at--) {
            rates[at] = rates[at - 1];
            f->steady[at] = f->steady[at - 1];
        }
        rates[at] = rate;
        f->steady[at] = i;
    }
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
        p->facts[i].enough = sum > 0 ? p->s->tokens_left * fmin(1.0, 3.0 * best[i] / sum) : 0;
}

static void set_facts(struct planner *p, uint64_t seed) {
    set_enough(p);
    for (uint32_t i = 0; i < p->s->sites_count; i++) {
        set_steady(p, i, &p->facts[i]);
        p->facts[i].budget_free = plan_budget_free(&p->s->sites[i], p->s->now_s);
        for (uint32_t d = 0; d < p->draws; d++) {
            struct chance *c = &p->chances[i * p->draws + d];
            prng_seed(&c->more, mix64(seed ^ mix64((uint64_t)d * PLAN_SITES_MAX + i)));
            for (uint32_t k = 0; k < DRAWN; k++) c->unit[k] = prng_unit(&c->more);
        }
    }
}

/* ---- One future of one site -------------------------------------------------------------------------- */

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

/* Lays one job after what is there: an older one that still runs hands in when this one is ready. Jobs come in
 * the order of their starts, so only the last spans can reach so far. Gives the tokens that the job alone trains. */
static double lay(const struct planner *p, const struct plan_site *site, struct future *f,
                  struct ahead job) {
    double ready = least(job.start + p->o->join_s, job.end);
    for (uint32_t i = f->count; i-- > 0 && f->v[i].until > ready;)
        if (f->v[i].from < ready) f->v[i].until = ready;
    return add_span(f, ready, job.end,
                    site->shapes[job.shape].tokens_per_s * (1.0 - p->o->overhead));
}

/* The site's jobs in one future, those that exist first, in order of start. The n-th new job of a future has the
 * n-th number, whatever is chosen: P2. */
static uint32_t known_jobs(const struct planner *p, const struct plan_site *site,
                           const struct choice *c, const double *unit, struct ahead *out) {
    uint32_t n = 0;
    double now = p->s->now_s;
    for (uint32_t j = 0; j <= site->jobs_count; j++) {
        struct ahead a;
        if (j == site->jobs_count) { /* the new one */
            if (!c->submit) break;
            a.shape = c->shape;
            a.start = now + wait_table_at(&site->waits[c->shape], unit[PLAN_JOBS_MAX]);
        } else {
            const struct plan_job *job = &site->jobs[j];
            if (c->cancel && c->job == j) continue;
            a.shape = job->shape;
            a.start = job->running ? job->since_s : now + wait_table_at(&job->left, unit[j]);
        }
        a.end = a.start + site->shapes[a.shape].limit_s;
        uint32_t at = n++;
        for (; at > 0 && out[at - 1].start > a.start; at--) out[at] = out[at - 1];
        out[at] = a;
    }
    return n;
}

/* The best shape of a steady stream that the budget still pays for; -1: none. */
static int steady_shape(const struct facts *f, const struct plan_site *site, double budget) {
    for (uint32_t i = 0; i < f->steady_count; i++)
        if (job_cost(site, f->steady[i]) <= budget) return (int)f->steady[i];
    return -1;
}

static void roll(const struct planner *p, uint32_t i, const struct choice *c, uint32_t draw,
                 struct future *f) {
    const struct plan_site *site = &p->s->sites[i];
    const struct facts *facts = &p->facts[i];
    const struct chance *chance = &p->chances[i * p->draws + draw];
    struct prng more = chance->more;
    struct ahead jobs[PLAN_JOBS_MAX + 1];
    uint32_t n = known_jobs(p, site, c, chance->unit, jobs);
    uint32_t next = PLAN_JOBS_MAX + c->submit;
    double end = p->s->now_s, horizon = end + p->o->horizon_s, budget = facts->budget_free;
    if (c->cancel) budget += job_cost(site, site->jobs[c->job].shape);
    if (c->submit) budget -= job_cost(site, c->shape);
    f->count = 0;
    double tokens = 0;
    double latest = p->s->now_s + p->o->tick_s; /* the earliest moment of a further choice */
    for (uint32_t j = 0; j < n; j++) {
        tokens += lay(p, site, f, jobs[j]);
        end = most(end, jobs[j].end);
        /* The rule submits only where nothing waits. */
        if (jobs[j].start > latest) latest = jobs[j].start;
    }
    while (tokens < facts->enough && end < horizon && f->count < SPANS_MAX - 1) {
        int shape = steady_shape(facts, site, budget);
        if (shape < 0) break;
        double unit = next < DRAWN ? chance->unit[next] : prng_unit(&more);
        double at = most(latest, end - facts->wait80[shape]);
        double start = at + wait_table_at(&site->waits[shape], unit);
        struct ahead job = {start, start + site->shapes[shape].limit_s, (uint32_t)shape};
        next++;
        tokens += lay(p, site, f, job);
        budget -= job_cost(site, (uint32_t)shape);
        latest = start;
        end = most(end, job.end);
    }
}

/* ---- When the target is reached ---------------------------------------------------------------------- */

/* Speed of all sites but `except` in one future, as steps in time. */
static void add_up(const struct planner *p, uint32_t draw, uint32_t except, struct others *out) {
    const struct future *f[PLAN_SITES_MAX];
    uint32_t next[PLAN_SITES_MAX] = {0}, n = 0;
    double at = p->s->now_s, horizon = at + p->o->horizon_s;
    for (uint32_t i = 0; i < p->s->sites_count; i++)
        if (i != except) f[n++] = &p->sites[i * p->draws + draw];
    out->count = 0;
    while (at < horizon) {
        double rate = 0, until = HUGE_VAL;
        for (uint32_t i = 0; i < n; i++) {
            while (next[i] < f[i]->count && f[i]->v[next[i]].until <= at) next[i]++;
            if (next[i] == f[i]->count) continue;
            double from = f[i]->v[next[i]].from, end = f[i]->v[next[i]].until;
            if (from <= at) rate += f[i]->v[next[i]].tokens_per_s;
            until = least(until, from > at ? from : end);
        }
        CHECK(out->count < ARRAY_COUNT(out->v));
        out->v[out->count].at = at;
        out->v[out->count++].rate = rate;
        at = until;
    }
}

/* When the others and this site's future (NULL: none) have trained what is left, if nothing trains before `at`;
 * the horizon where never. */
static double reached(const struct planner *p, const struct others *o, const struct future *mine,
                      double at) {
    double left = p->s->tokens_left, horizon = p->s->now_s + p->o->horizon_s;
    uint32_t k = 0, m = 0, count = mine != NULL ? mine->count : 0;
    while (k + 1 < o->count && o->v[k + 1].at <= at) k++;
    while (left > 0 && at < horizon) {
        double rate = o->v[k].rate, until = k + 1 < o->count ? o->v[k + 1].at : horizon;
        while (m < count && mine->v[m].until <= at) m++;
        if (m < count) {
            bool trains = mine->v[m].from <= at;
            if (trains) rate += mine->v[m].tokens_per_s;
            until = least(until, trains ? mine->v[m].until : mine->v[m].from);
        }
        until = least(until, horizon);
        if (rate * (until - at) >= left) return at + left / rate;
        left -= rate * (until - at);
        at = until;
        if (k + 1 < o->count && o->v[k + 1].at <= at) k++;
    }
    return left > 0 ? horizon : at;
}

/* Times to the target as things stand, into p->idle; p->others is of all but `except`, for trials of it. */
static double judge(struct planner *p, uint32_t except) {
    double sum = 0, now = p->s->now_s;
    for (uint32_t d = 0; d < p->draws; d++) {
        const struct future *mine = except < p->s->sites_count ? &p->sites[except * p->draws + d]
                                                               : NULL;
        add_up(p, d, except, &p->others[d]);
        p->idle[d] = reached(p, &p->others[d], mine, now) - now;
        sum += p->idle[d];
    }
    return sum / p->draws;
}

/* The mean time under a choice. One that is behind by far after some futures, of what it must win, is given up:
 * HUGE_VAL. The differences are small against the times, because all see the same draws. */
static double try_choice(struct planner *p, uint32_t i, const struct choice *c, double must_win) {
    double sum = 0, won = 0, squares = 0, now = p->s->now_s;
    for (uint32_t d = 0; d < p->draws; d++) {
        roll(p, i, c, d, &p->trial[d]);
        double t = reached(p, &p->others[d], &p->trial[d], now) - now, w = p->idle[d] - t;
        sum += t;
        won += w;
        squares += w * w;
        if ((d + 1) % RACE != 0 || d + 1 == p->draws) continue;
        double n = d + 1, mean = won / n;
        double error = sqrt(fmax(0.0, squares / n - mean * mean) / n);
        if (mean + RACE_SIGMAS * error < must_win) return HUGE_VAL;
    }
    return sum / p->draws;
}

static void span_text(double seconds, char *out, size_t cap) {
    if (seconds < 60)
        snprintf(out, cap, "%.0f s", seconds);
    else if (seconds < 5400)
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
    if (!p->o->explain) return;
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

/* The best of what is not worth it: for explaining. */
struct tried {
    double mean;
    int shape; /* -1: nothing could be submitted at all */
};

/* All choices of a site: submit one, cancel one, or, where no more may wait, change one for another. */
static struct choice best_choice(struct planner *p, uint32_t i, double idle, double *out_mean,
                                 struct tried *tried) {
    const struct plan_site *site = &p->s->sites[i];
    struct choice best = {0};
    *tried = (struct tried){HUGE_VAL, -1};
    double gain = 0;
    bool full = waiting_count(site) >= site->waiting_max;
    *out_mean = idle;
    for (uint32_t j = 0; j <= site->jobs_count; j++) {
        bool cancel = j < site->jobs_count;
        if (cancel && (site->jobs[j].running || site->jobs[j].keep || soon(p, &site->jobs[j])))
            continue;
        for (uint32_t shape = 0; shape <= site->shapes_count; shape++) {
            struct choice c = {shape < site->shapes_count, cancel, shape, j};
            if ((!c.submit && !c.cancel) || (c.submit && c.cancel && !full)) continue;
            if (!allowed(p, i, &c)) continue;
            double needed = (c.cancel ? p->o->cancel_least : p->o->gain_least) * p->o->tick_s;
            /* What is to be explained is judged to the end. */
            double mean = try_choice(p, i, &c, p->o->explain ? -HUGE_VAL : needed + gain);
            if (c.submit && !c.cancel && (tried->shape < 0 || mean < tried->mean))
                *tried = (struct tried){mean, (int)shape};
            if (idle - mean - needed > gain) {
                best = c;
                gain = idle - mean - needed;
                *out_mean = mean;
            }
        }
    }
    return best;
}

static bool any_offered(const struct plan_site *site) {
    for (uint32_t i = 0; i < site->shapes_count; i++)
        if (site->offered[i]) return true;
    return false;
}

static void explain_none(const struct planner *p, uint32_t i, const struct tried *tried,
                         double idle, char why[PLAN_TEXT_BYTES]) {
    const struct plan_site *site = &p->s->sites[i];
    char text[24], won[24], needed[24];
    if (!p->o->explain) return;
    if (!any_offered(site)) {
        snprintf(why, PLAN_TEXT_BYTES, "no shape can be ordered here");
    } else if (waiting_count(site) >= site->waiting_max) {
        snprintf(why, PLAN_TEXT_BYTES, "%u wait here, and no more may", waiting_count(site));
    } else if (tried->shape < 0) {
        snprintf(why, PLAN_TEXT_BYTES,
                 "%.1f node-hours are free here: no further job fits, or it waits already",
                 plan_budget_free(site, p->s->now_s) / 3600);
    } else {
        span_text(tried->mean, text, sizeof text);
        span_text(fabs(idle - tried->mean), won, sizeof won);
        span_text(p->o->gain_least * p->o->tick_s, needed, sizeof needed);
        snprintf(
            why, PLAN_TEXT_BYTES,
            "one more %s would bring the target in %s, %s %s than without it; it has to win %s",
            site->shapes[tried->shape].name, text, won, tried->mean < idle ? "sooner" : "later",
            needed);
    }
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

/* What it would cost to wait for more sites before anybody trains. */
static void judge_starts(const struct planner *p, struct plan_result *out) {
    for (uint32_t d = 0; d < p->draws; d++) {
        double first[PLAN_SITES_MAX];
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->s->sites_count; i++) {
            const struct future *f = &p->sites[i * p->draws + d];
            double at = HUGE_VAL;
            for (uint32_t k = 0; k < f->count; k++) at = fmin(at, f->v[k].from);
            if (f->count == 0) continue;
            uint32_t to = n++;
            for (; to > 0 && first[to - 1] > at; to--) first[to] = first[to - 1];
            first[to] = at;
        }
        for (uint32_t k = 0; k < p->s->sites_count; k++) {
            double from = n == 0 ? 0 : k == 0 ? 0 : first[k < n ? k : n - 1];
            from = fmax(from, p->s->now_s);
            out->start_mean_s[k] += (reached(p, &p->others[d], NULL, from) - p->s->now_s) /
                                    p->draws;
        }
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- Deciding ---------------------------------------------------------------------------------------- */

struct planner *planner_create(void) {
    return mem_alloc(1, sizeof(struct planner));
}

static void arrays_free(struct planner *p) {
    mem_free(p->sites);
    mem_free(p->trial);
    mem_free(p->chances);
    mem_free(p->others);
}

void planner_destroy(struct planner *p) {
    if (p == NULL) return;
    arrays_free(p);
    mem_free(p);
}

static void make_room(struct planner *p, uint32_t sites) {
    uint32_t futures = (sites > 0 ? sites : 1) * p->draws;
    if (futures <= p->room && p->draws <= p->room_draws) return;
    arrays_free(p);
    p->room_draws = p->draws;
    p->room = futures;
    p->sites = mem_alloc(futures, sizeof *p->sites);
    p->chances = mem_alloc(futures, sizeof *p->chances);
    p->trial = mem_alloc(p->draws, sizeof *p->trial);
    p->others = mem_alloc(p->draws, sizeof *p->others);
}

static void decide(struct planner *p, struct plan_result *out) {
    const struct choice nothing = {0};
    const struct plan_state *s = p->s;
    for (uint32_t i = 0; i < s->sites_count; i++)
        for (uint32_t d = 0; d < p->draws; d++)
            roll(p, i, &nothing, d, &p->sites[i * p->draws + d]);
    for (uint32_t i = 0; i < s->sites_count; i++) {
        double idle = judge(p, i), mean;
        struct tried tried;
        struct choice c = best_choice(p, i, idle, &mean, &tried);
        if (c.submit || c.cancel)
            take(p, i, &c, mean, idle, out);
        else
            explain_none(p, i, &tried, idle, out->none[i]);
    }
    out->mean_s = judge(p, PLAN_SITES_MAX);
    if (p->o->explain) judge_starts(p, out);
    qsort(p->idle, p->draws, sizeof p->idle[0], by_value);
    out->low_s = p->idle[p->draws / 10];
    out->high_s = p->idle[p->draws * 9 / 10];
    for (uint32_t d = 0; d < p->draws; d++) out->unreached += p->idle[d] >= p->o->horizon_s;
}

void planner_decide(struct planner *p, const struct plan_state *s, const struct plan_options *o,
                    uint64_t seed, struct plan_result *out) {
    CHECK(s->sites_count <= PLAN_SITES_MAX);
    CHECK(o->draws > 0);
    memset(out, 0, sizeof *out);
    p->s = s;
    p->o = o;
    p->draws = o->draws < DRAWS_MAX ? o->draws : DRAWS_MAX;
    make_room(p, s->sites_count);
    set_facts(p, seed);
    decide(p, out);
}

void plan_decide(const struct plan_state *s, const struct plan_options *o, uint64_t seed,
                 struct plan_result *out) {
    struct planner *p = planner_create();
    planner_decide(p, s, o, seed, out);
    planner_destroy(p);
}
