/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.c - see cluster.h. Invariants
 *   (C1) the nodes of running jobs and the free ones are the machine's.
 *   (C2) no job that came later delays the start that the limits promise to the first waiting one. */
#include "place/cluster.h"

#include <math.h>
#include <string.h>

enum { BACKFILL_DEPTH = 100 };

struct job {
    double nodes, limit_s, run_s;
    double end, end_limit; /* running */
    uint64_t id;           /* 0: of the trace */
};

struct list {
    struct job *v;
    size_t count, cap;
};

struct cluster {
    const struct swf_trace *trace;
    double nodes, free, now, offset;
    size_t next;                /* job of the trace that comes next */
    double turn;                /* trace time added by going round */
    struct list running, queue; /* running: by limit's end */
    uint64_t *started;          /* of ours, not told yet */
    size_t started_count, started_cap;
};

static void insert(struct list *l, size_t at, struct job j) {
    if (l->count == l->cap) {
        size_t more = l->cap ? 2 * l->cap : 64;
        l->v = mem_grow(l->v, l->cap, more, sizeof *l->v);
        l->cap = more;
    }
    memmove(&l->v[at + 1], &l->v[at], (l->count - at) * sizeof *l->v);
    l->v[at] = j;
    l->count++;
}

static void drop(struct list *l, size_t at) {
    memmove(&l->v[at], &l->v[at + 1], (l->count - at - 1) * sizeof *l->v);
    l->count--;
}

static void start(struct cluster *c, size_t at) {
    struct job j = c->queue.v[at];
    drop(&c->queue, at);
    j.end = c->now + fmin(j.run_s, j.limit_s);
    j.end_limit = c->now + j.limit_s;
    c->free -= j.nodes;
    CHECK(c->free > -1e-9); /* C1 */
    size_t i = c->running.count;
    while (i > 0 && c->running.v[i - 1].end_limit > j.end_limit) i--;
    insert(&c->running, i, j);
    if (j.id == 0) return;
    if (c->started_count == c->started_cap) {
        size_t more = c->started_cap ? 2 * c->started_cap : 4;
        c->started = mem_grow(c->started, c->started_cap, more, sizeof *c->started);
        c->started_cap = more;
    }
    c->started[c->started_count++] = j.id;
}

/* When so many nodes are free by the limits; out_spare: what is free then beyond them. */
static double free_at(const struct cluster *c, double nodes, double *out_spare) {
    double free = c->free, at = c->now;
    for (size_t i = 0; i < c->running.count && free < nodes; i++) {
        free += c->running.v[i].nodes;
        at = fmax(at, c->running.v[i].end_limit);
    }
    if (out_spare) *out_spare = free - nodes;
    return at;
}

static void schedule(struct cluster *c) {
    while (c->queue.count && c->queue.v[0].nodes <= c->free) start(c, 0);
    if (c->queue.count == 0 || c->free < 1) return;
    double spare, reserved = free_at(c, c->queue.v[0].nodes, &spare);
    for (size_t i = 1, seen = 0; i < c->queue.count && seen < BACKFILL_DEPTH; seen++) {
        const struct job *j = &c->queue.v[i];
        bool before = c->now + j->limit_s <= reserved;
        if (j->nodes <= c->free && (before || j->nodes <= spare)) { /* C2 */
            if (!before) spare -= j->nodes;
            start(c, i);
        } else {
            i++;
        }
    }
}

static double next_submit(const struct cluster *c) {
    return c->trace->jobs[c->next].submit_s + c->turn - c->offset;
}

static void take_from_trace(struct cluster *c) {
    const struct swf_job *t = &c->trace->jobs[c->next];
    struct job j = {
        .nodes = fmin(t->processors, c->nodes), .limit_s = t->limit_s, .run_s = t->run_s};
    insert(&c->queue, c->queue.count, j);
    if (++c->next == c->trace->count) {
        c->next = 0;
        c->turn += c->trace->span_s + 60.0;
    }
}

static size_t first_end(const struct cluster *c, double *out_at) {
    size_t best = SIZE_MAX;
    *out_at = HUGE_VAL;
    for (size_t i = 0; i < c->running.count; i++) {
        if (c->running.v[i].end < *out_at) {
            *out_at = c->running.v[i].end;
            best = i;
        }
    }
    return best;
}

static void finish(struct cluster *c, size_t at) {
    c->free += c->running.v[at].nodes;
    drop(&c->running, at);
}

double cluster_next(const struct cluster *c) {
    double end;
    if (c->started_count) return c->now;
    first_end(c, &end);
    return fmin(end, next_submit(c));
}

bool cluster_advance(struct cluster *c, double until, uint64_t *out_id) {
    for (;;) {
        if (c->started_count) {
            *out_id = c->started[0];
            memmove(c->started, c->started + 1, --c->started_count * sizeof *c->started);
            return true;
        }
        double end, submit = next_submit(c);
        size_t which = first_end(c, &end);
        if (fmin(end, submit) > until) {
            c->now = fmax(c->now, until);
            return false;
        }
        c->now = fmax(c->now, fmin(end, submit));
        if (end <= submit)
            finish(c, which);
        else
            take_from_trace(c);
        schedule(c);
    }
}

struct cluster *cluster_create(const struct swf_trace *trace, double nodes, double offset_s,
                               double warm_s) {
    struct cluster *c = mem_alloc(1, sizeof *c);
    uint64_t id;
    c->trace = trace;
    c->nodes = c->free = nodes > 0 ? nodes : trace->processors;
    c->offset = offset_s;
    c->now = -warm_s;
    double from = offset_s - warm_s;
    while (from < c->turn) c->turn -= trace->span_s + 60.0;
    while (next_submit(c) < c->now) {
        take_from_trace(c);
        c->queue.count = 0; /* before the warm-up: never there */
    }
    CHECK(!cluster_advance(c, 0.0, &id));
    return c;
}

void cluster_destroy(struct cluster *c) {
    if (!c) return;
    mem_free(c->running.v);
    mem_free(c->queue.v);
    mem_free(c->started);
    mem_free(c);
}

double cluster_nodes(const struct cluster *c) {
    return c->nodes;
}

void cluster_submit(struct cluster *c, uint64_t id, double nodes, double limit_s) {
    CHECK(id != 0);
    CHECK(nodes <= c->nodes);
    struct job j = {.nodes = nodes, .limit_s = limit_s, .run_s = limit_s, .id = id};
    insert(&c->queue, c->queue.count, j);
    schedule(c);
}

void cluster_end(struct cluster *c, uint64_t id) {
    for (size_t i = 0; i < c->queue.count; i++) {
        if (c->queue.v[i].id != id) continue;
        drop(&c->queue, i);
        break;
    }
    for (size_t i = 0; i < c->running.count; i++) {
        if (c->running.v[i].id != id) continue;
        finish(c, i);
        break;
    }
    for (size_t i = 0; i < c->started_count; i++) {
        if (c->started[i] != id) continue;
        memmove(c->started + i, c->started + i + 1,
                (c->started_count - i - 1) * sizeof *c->started);
        c->started_count--;
        break;
    }
    schedule(c);
}

double cluster_estimate(const struct cluster *c, double nodes, double limit_s) {
    (void)limit_s; /* slurmctld's estimate does not look for holes to backfill */
    double pending = 0;
    for (size_t i = 0; i < c->queue.count; i++)
        pending += c->queue.v[i].nodes * c->queue.v[i].limit_s;
    return free_at(c, nodes, NULL) - c->now + 60.0 * floor(pending / 60.0 / c->nodes);
}

size_t cluster_queued(const struct cluster *c) {
    return c->queue.count;
}
