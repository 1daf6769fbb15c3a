/* SPDX-License-Identifier: Apache-2.0 */
/* queues.c - see queues.h. What an idealised queue draws is a function of (seed, site, shape, step), so
 * that a probe and a submission of one moment speak of the same wait, and policies meet one world. */
#include "place/queues.h"

#include <math.h>

#include "place/cluster.h"

enum { STEP_S = 900 };
#define WARM_S (3 * 86400.0)

struct waiting { /* of an idealised queue */
    uint64_t id;
    double start;
};

struct walk { /* AR(1), standard deviation 1, on steps of STEP_S */
    struct prng rng;
    double *v;
    size_t count, cap;
};

struct place {
    const struct world_site *cfg;
    struct cluster *cluster; /* NULL: idealised */
    struct walk congestion, own[PLAN_SHAPES_MAX];
    struct walk start[PLAN_SHAPES_MAX]; /* v: start of a job that is submitted in that step */
    struct waiting *v;
    size_t count, cap;
    double phase; /* of the daily wave, hours */
};

struct queues {
    struct place *places;
    uint32_t count;
    uint64_t seed, next_id;
    double now;
};

struct queues *queues_create(const struct world_site *sites, uint32_t count, uint64_t seed) {
    struct queues *w = mem_alloc(1, sizeof *w);
    w->places = mem_alloc(count, sizeof *w->places);
    w->count = count;
    w->seed = seed;
    w->next_id = 1;
    for (uint32_t i = 0; i < count; i++) {
        struct place *p = &w->places[i];
        p->cfg = &sites[i];
        prng_seed(&p->congestion.rng, mix64(seed + 1000 * i + 1));
        for (uint32_t h = 0; h < PLAN_SHAPES_MAX; h++)
            prng_seed(&p->own[h].rng, mix64(seed + 1000 * i + 2 + h));
        p->phase = 24.0 * prng_unit(&p->congestion.rng);
        if (sites[i].trace)
            p->cluster = cluster_create(sites[i].trace, sites[i].trace_nodes,
                                        prng_unit(&p->congestion.rng) * sites[i].trace->span_s,
                                        WARM_S);
    }
    return w;
}

void queues_destroy(struct queues *w) {
    if (!w) return;
    for (uint32_t i = 0; i < w->count; i++) {
        cluster_destroy(w->places[i].cluster);
        mem_free(w->places[i].congestion.v);
        for (uint32_t h = 0; h < PLAN_SHAPES_MAX; h++) {
            mem_free(w->places[i].own[h].v);
            mem_free(w->places[i].start[h].v);
        }
        mem_free(w->places[i].v);
    }
    mem_free(w->places);
    mem_free(w);
}

static void walk_push(struct walk *x, double value) {
    if (x->count == x->cap) {
        size_t more = x->cap ? 2 * x->cap : 256;
        x->v = mem_grow(x->v, x->cap, more, sizeof *x->v);
        x->cap = more;
    }
    x->v[x->count++] = value;
}

static double walk_at(struct walk *x, size_t step, double correlation_s) {
    double keep = exp(-STEP_S / fmax(correlation_s, 1.0));
    while (x->count <= step) {
        double z = prng_normal(&x->rng);
        walk_push(x, x->count ? keep * x->v[x->count - 1] + sqrt(1.0 - keep * keep) * z : z);
    }
    return x->v[step];
}

/* Wait of a job that is submitted at the beginning of a step, if none could be overtaken. */
static double raw_wait(struct place *p, uint32_t shape, size_t step) {
    const struct ideal_queue *q = &p->cfg->ideal;
    const struct plan_shape *h = p->cfg->site->shapes, *s = &h[shape];
    double at = (double)step * STEP_S;
    double turn = (at / 3600.0 + p->phase) * (2.0 * 3.14159265358979323846 / 24.0);
    return exp(log(q->median_s) + q->congestion * walk_at(&p->congestion, step, q->congestion_s) +
               q->daily * sin(turn) +
               q->spread * walk_at(&p->own[shape], step, q->congestion_s / 4) +
               q->nodes_exponent * log(s->nodes / h->nodes) +
               q->hours_exponent * log(s->limit_s / h->limit_s));
}

static void ideal_draw(struct queues *w, uint32_t site, uint32_t shape, double *out_wait,
                       double *out_estimate) {
    struct place *p = &w->places[site];
    const struct ideal_queue *q = &p->cfg->ideal;
    struct walk *start = &p->start[shape];
    size_t step = (size_t)(w->now / STEP_S);
    while (start->count <= step) {
        size_t n = start->count;
        double raw = (double)n * STEP_S + raw_wait(p, shape, n);
        walk_push(start, n ? fmax(start->v[n - 1], raw) : raw);
    }
    struct prng r;
    prng_seed(&r, mix64(w->seed ^ mix64(step * 4096 + site * 64 + shape)));
    *out_wait = fmax(0.0, start->v[step] - w->now);
    double told = *out_wait * exp(log(q->estimate_bias) + q->estimate_noise * prng_normal(&r));
    *out_estimate = prng_unit(&r) < q->refused ? -1.0 : told;
}

void queues_probe(struct queues *w, uint32_t site, uint32_t shape, struct wait_request *out) {
    struct place *p = &w->places[site];
    const struct plan_shape *s = &p->cfg->site->shapes[shape];
    *out = (struct wait_request){.nodes = s->nodes, .limit_s = s->limit_s, .queued = -1};
    out->hour = fmod(w->now / 3600.0 + p->phase, 24.0);
    if (p->cluster) {
        out->estimate_s = cluster_estimate(p->cluster, s->nodes, s->limit_s);
        out->queued = (double)cluster_queued(p->cluster);
    } else {
        double wait;
        ideal_draw(w, site, shape, &wait, &out->estimate_s);
        out->refused = out->estimate_s < 0;
    }
}

/* A job's number holds its site, so that queues_end finds it. */
uint64_t queues_submit(struct queues *w, uint32_t site, uint32_t shape) {
    struct place *p = &w->places[site];
    const struct plan_shape *s = &p->cfg->site->shapes[shape];
    uint64_t id = w->next_id++ * PLAN_SITES_MAX + site;
    if (p->cluster) {
        cluster_submit(p->cluster, id, s->nodes, s->limit_s);
        return id;
    }
    double wait, estimate;
    ideal_draw(w, site, shape, &wait, &estimate);
    if (p->count == p->cap) {
        p->v = mem_grow(p->v, p->cap, p->cap ? 2 * p->cap : 4, sizeof *p->v);
        p->cap = p->cap ? 2 * p->cap : 4;
    }
    p->v[p->count++] = (struct waiting){id, w->now + wait};
    return id;
}

void queues_end(struct queues *w, uint64_t job) {
    struct place *p = &w->places[job % PLAN_SITES_MAX];
    if (p->cluster) {
        cluster_end(p->cluster, job);
        return;
    }
    for (size_t i = 0; i < p->count; i++) {
        if (p->v[i].id != job) continue;
        p->v[i] = p->v[--p->count];
        return;
    }
}

double queues_now(const struct queues *w) {
    return w->now;
}

static struct cluster *earliest(struct queues *w, double *out_at) {
    struct cluster *best = NULL;
    *out_at = HUGE_VAL;
    for (uint32_t i = 0; i < w->count; i++) {
        struct cluster *c = w->places[i].cluster;
        double at = c ? cluster_next(c) : HUGE_VAL;
        if (at >= *out_at) continue;
        *out_at = at;
        best = c;
    }
    return best;
}

/* Event by event over all machines, so that at a start of one none has gone further. */
bool queues_advance(struct queues *w, double until, uint64_t *out_job) {
    struct place *from = NULL;
    size_t which = 0;
    double first = until, at;
    for (uint32_t i = 0; i < w->count; i++) {
        struct place *p = &w->places[i];
        for (size_t j = 0; j < p->count; j++) {
            if (p->v[j].start > first || (from && p->v[j].start == first)) continue;
            first = p->v[j].start;
            from = p;
            which = j;
        }
    }
    for (struct cluster *c; (c = earliest(w, &at)) && at <= first;) {
        if (!cluster_advance(c, at, out_job)) continue;
        w->now = fmax(w->now, at);
        return true;
    }
    w->now = fmax(w->now, first);
    if (!from) return false;
    *out_job = from->v[which].id;
    from->v[which] = from->v[--from->count];
    return true;
}
