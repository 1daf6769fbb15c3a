/* SPDX-License-Identifier: Apache-2.0 */
/* project.c - see project.h. Invariants
 *   (J1) no policy uses more node-seconds at a site than its budget.
 *   (J2) a job trains from its start plus the time to join, until it ends. */
#include "place/project.h"

#include <math.h>
#include <string.h>

const char *const policy_names[POLICIES + 1] = {"wait_all", "first_free",  "static_best",
                                                "elastic",  "queue_aware", NULL};

enum { JOBS = PLAN_JOBS_MAX };

struct job {
    uint64_t id; /* of the world */
    uint32_t shape;
    bool running;
    double submitted, started;
    struct wait_request request; /* as it was at submission */
};

struct site {
    struct job jobs[JOBS];
    uint32_t count;
    double used_s; /* node-seconds of ended jobs */
    struct predictor predictor;
    struct wait_request probes[PLAN_SHAPES_MAX];
};

struct run {
    const struct project *p;
    enum policy policy;
    struct queues *w;
    struct site sites[PLAN_SITES_MAX];
    double tokens, now;
    uint32_t only_site, only_shape; /* static_best */
    uint64_t seed, decisions;
    struct project_run *out;
    struct plan_state *state;
    struct planner *planner;
};

static const struct plan_shape *shape_of(const struct run *r, uint32_t site, uint32_t shape) {
    return &r->p->facility[site].shapes[shape];
}

static double budget_free(const struct run *r, uint32_t site) {
    const struct site *s = &r->sites[site];
    double free = r->p->facility[site].budget_left_s - s->used_s;
    for (uint32_t j = 0; j < s->count; j++) {
        const struct plan_shape *h = shape_of(r, site, s->jobs[j].shape);
        free -= h->nodes * h->limit_s;
    }
    return free;
}

static bool submit(struct run *r, uint32_t site, uint32_t shape) {
    struct site *s = &r->sites[site];
    const struct plan_shape *h = shape_of(r, site, shape);
    if (s->count == JOBS || h->nodes * h->limit_s > budget_free(r, site)) return false; /* J1 */
    struct job *j = &s->jobs[s->count++];
    *j = (struct job){.shape = shape, .submitted = r->now};
    queues_probe(r->w, site, shape, &j->request);
    j->id = queues_submit(r->w, site, shape);
    return true;
}

static void end_job(struct run *r, uint32_t site, uint32_t at) {
    struct site *s = &r->sites[site];
    struct job *j = &s->jobs[at];
    if (j->running) {
        s->used_s += (r->now - j->started) * shape_of(r, site, j->shape)->nodes;
        if (s->used_s > r->p->facility[site].budget_left_s * (1 + 1e-9)) r->out->over_budget = true;
    } else {
        r->out->cancelled++;
        predictor_cancelled(&s->predictor, &j->request, r->now - j->submitted);
    }
    queues_end(r->w, j->id);
    memmove(j, j + 1, (s->count - at - 1) * sizeof *j);
    s->count--;
}

static bool trains(const struct run *r, const struct job *j) {
    return j->running && r->now >= j->started + r->p->plan.join_s - 1e-6; /* J2 */
}

/* Tokens a second now. */
static double rate(const struct run *r) {
    double sum = 0;
    uint32_t training = 0;
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        double best = 0;
        for (uint32_t j = 0; j < r->sites[i].count; j++) {
            const struct job *job = &r->sites[i].jobs[j];
            if (trains(r, job)) best = fmax(best, shape_of(r, i, job->shape)->tokens_per_s);
        }
        training += best > 0;
        sum += best;
    }
    if (r->policy == POLICY_WAIT_ALL && training < r->p->sites_count) return 0;
    return sum * (1.0 - r->p->plan.overhead);
}

/* ---- what each policy does ------------------------------------------------------------------- */
static void submit_where_none(struct run *r) {
    for (uint32_t i = 0; i < r->p->sites_count; i++)
        if (r->sites[i].count == 0) (void)submit(r, i, 0);
}

static bool any_running(const struct run *r) {
    for (uint32_t i = 0; i < r->p->sites_count; i++)
        for (uint32_t j = 0; j < r->sites[i].count; j++)
            if (r->sites[i].jobs[j].running) return true;
    return false;
}

static void first_free(struct run *r) {
    if (!any_running(r)) {
        submit_where_none(r);
        return;
    }
    for (uint32_t i = 0; i < r->p->sites_count; i++)
        for (uint32_t j = r->sites[i].count; j-- > 0;)
            if (!r->sites[i].jobs[j].running) end_job(r, i, j);
}

static void choose_static(struct run *r) {
    double most = -1;
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        for (uint32_t h = 0; h < r->p->facility[i].shapes_count; h++) {
            const struct plan_shape *s = shape_of(r, i, h);
            struct wait_request q;
            queues_probe(r->w, i, h, &q);
            double wait = q.estimate_s >= 0 ? q.estimate_s : r->p->prior_s;
            double speed = s->tokens_per_s * s->limit_s / (s->limit_s + wait);
            if (speed <= most) continue;
            most = speed;
            r->only_site = i;
            r->only_shape = h;
        }
    }
}

static void fill_site(struct run *r, uint32_t i) {
    struct site *s = &r->sites[i];
    struct plan_site *out = &r->state->sites[i];
    *out = r->p->facility[i];
    out->budget_left_s -= s->used_s;
    out->jobs_count = s->count;
    for (uint32_t h = 0; h < out->shapes_count; h++) {
        out->offered[h] = true;
        predictor_table(&s->predictor, &s->probes[h], 0, &out->waits[h]);
    }
    for (uint32_t j = 0; j < s->count; j++) {
        const struct job *job = &s->jobs[j];
        out->jobs[j] = (struct plan_job){.shape = job->shape, .running = job->running, .id = j};
        out->jobs[j].since_s = job->running ? job->started : job->submitted;
        if (job->running) /* the planner's budget counts what a running job has used, too */
            out->budget_left_s -= (r->now - job->started) * shape_of(r, i, job->shape)->nodes;
        else
            predictor_table(&s->predictor, &job->request, r->now - job->submitted,
                            &out->jobs[j].left);
    }
}

static void queue_aware(struct run *r) {
    r->state->now_s = r->now;
    r->state->tokens_left = r->p->target_tokens - r->tokens;
    r->state->sites_count = r->p->sites_count;
    for (uint32_t i = 0; i < r->p->sites_count; i++) fill_site(r, i);
    struct plan_result d;
    struct plan_options o = r->p->plan;
    o.explain = false;
    planner_decide(r->planner, r->state, &o, mix64(r->seed + ++r->decisions), &d);
    /* Indices stay true while cancelling: at most one job of a site goes. */
    for (uint32_t a = 0; a < d.count; a++)
        if (d.v[a].kind == PLAN_CANCEL) end_job(r, d.v[a].site, (uint32_t)d.v[a].id);
    for (uint32_t a = 0; a < d.count; a++)
        if (d.v[a].kind == PLAN_SUBMIT) (void)submit(r, d.v[a].site, d.v[a].shape);
}

static void probe_all(struct run *r) {
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        for (uint32_t h = 0; h < r->p->facility[i].shapes_count; h++) {
            queues_probe(r->w, i, h, &r->sites[i].probes[h]);
            r->out->probes++;
        }
    }
}

static void act(struct run *r, bool tick) {
    switch (r->policy) {
    case POLICY_WAIT_ALL:
    case POLICY_ELASTIC: submit_where_none(r); break;
    case POLICY_FIRST_FREE: first_free(r); break;
    case POLICY_STATIC_BEST:
        if (r->sites[r->only_site].count == 0) (void)submit(r, r->only_site, r->only_shape);
        break;
    case POLICY_QUEUE_AWARE:
        if (tick) probe_all(r);
        queue_aware(r);
        break;
    }
}

/* ---- the clock ------------------------------------------------------------------------------- */
static void note_start(struct run *r, uint64_t id) {
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        struct site *s = &r->sites[i];
        for (uint32_t j = 0; j < s->count; j++) {
            struct job *job = &s->jobs[j];
            if (job->id != id) continue;
            double wait = r->now - job->submitted;
            job->running = true;
            job->started = r->now;
            r->out->jobs++;
            r->out->wait_s += wait;
            if (r->policy == POLICY_QUEUE_AWARE && job->request.estimate_s >= 0) {
                double ours = predictor_quantile(&s->predictor, &job->request, 0.5);
                r->out->miss_ours += fabs(log((ours + 60) / (wait + 60)));
                r->out->miss_theirs += fabs(log((job->request.estimate_s + 60) / (wait + 60)));
                r->out->missed++;
            }
            predictor_started(&s->predictor, &job->request, wait);
        }
    }
}

/* Jobs at their limit end; older ones end when a successor trains. Gives whether something did. */
static bool settle(struct run *r) {
    bool changed = false;
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        struct site *s = &r->sites[i];
        double newest = -1;
        for (uint32_t j = 0; j < s->count; j++)
            if (trains(r, &s->jobs[j])) newest = fmax(newest, s->jobs[j].started);
        for (uint32_t j = s->count; j-- > 0;) {
            const struct job *job = &s->jobs[j];
            if (!job->running) continue;
            bool over = r->now >= job->started + shape_of(r, i, job->shape)->limit_s - 1e-6;
            if (!over && job->started >= newest) continue;
            end_job(r, i, j);
            changed = true;
        }
    }
    return changed;
}

/* The next moment when something is due that is no start. */
static double next_due(const struct run *r, double tick) {
    double due = fmin(tick, r->p->horizon_s), speed = rate(r);
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        for (uint32_t j = 0; j < r->sites[i].count; j++) {
            const struct job *job = &r->sites[i].jobs[j];
            if (!job->running) continue;
            double ready = job->started + r->p->plan.join_s;
            if (ready > r->now + 1e-6) due = fmin(due, ready);
            due = fmin(due, job->started + shape_of(r, i, job->shape)->limit_s);
        }
    }
    if (speed > 0) due = fmin(due, r->now + (r->p->target_tokens - r->tokens) / speed + 1e-6);
    return fmax(due, r->now);
}

static void begin(struct run *r) {
    for (uint32_t i = 0; i < r->p->sites_count; i++)
        predictor_init(&r->sites[i].predictor, r->p->prior_s);
    if (r->policy == POLICY_STATIC_BEST) choose_static(r);
    act(r, true);
}

static void finish(struct run *r) {
    for (uint32_t i = 0; i < r->p->sites_count; i++) {
        while (r->sites[i].count) end_job(r, i, r->sites[i].count - 1);
        r->out->node_s += r->sites[i].used_s;
        r->out->asked += r->sites[i].predictor.asked;
        r->out->held += r->sites[i].predictor.held;
    }
    r->out->reached = r->tokens >= r->p->target_tokens;
    r->out->time_s = r->now;
}

void project_run(const struct project *p, enum policy policy, uint64_t seed,
                 struct project_run *out) {
    struct run *r = mem_alloc(1, sizeof *r);
    *out = (struct project_run){0};
    r->p = p;
    r->policy = policy;
    r->seed = seed;
    r->out = out;
    r->state = mem_alloc(1, sizeof *r->state);
    r->planner = planner_create();
    r->w = queues_create(p->sites, p->sites_count, seed);
    begin(r);
    double tick = p->plan.tick_s;
    while (r->tokens < p->target_tokens && r->now < p->horizon_s) {
        uint64_t id;
        double speed = rate(r), before = r->now;
        bool started = queues_advance(r->w, next_due(r, tick), &id);
        r->now = queues_now(r->w);
        r->tokens += speed * (r->now - before);
        if (started) note_start(r, id);
        bool ended = settle(r), ticks = r->now >= tick;
        if (r->tokens >= p->target_tokens) break;
        while (tick <= r->now) tick += p->plan.tick_s;
        if (started || ended || ticks) act(r, ticks);
    }
    finish(r);
    queues_destroy(r->w);
    planner_destroy(r->planner);
    mem_free(r->state);
    mem_free(r);
}
