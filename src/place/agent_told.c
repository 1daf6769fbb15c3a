/* SPDX-License-Identifier: Apache-2.0 */
/* agent_told.c - what came of an action: ids, queues, histories, orders. See agent.h. */
#include <stdio.h>
#include <string.h>

#include "place/agent_inner.h"
#include "place/slurm.h"

/* ---- Submissions ----------------------------------------------------------------------------------- */

/* The job of an order is begun again later, under another name. */
static void job_again(struct agent *a, struct agent_job *j, uint64_t wall_s, const char *why) {
    struct agent_order *o = agent_order_of(a, j->order);
    agent_copy(j->why, sizeof j->why, why);
    uint32_t index = (uint32_t)(j - a->jobs);
    if (o != NULL) {
        uint32_t doublings = o->retries < 8 ? o->retries : 8;
        o->begun = j->job - 1;
        uint64_t wait = (uint64_t)(a->site->look_ns / NS_PER_S)
                        << (doublings > 0 ? doublings - 1 : 0);
        o->retry_s = wall_s + (wait < 3600 ? wait : 3600);
    }
    memmove(&a->jobs[index], &a->jobs[index + 1], (a->jobs_count - index - 1) * sizeof a->jobs[0]);
    a->jobs_count--;
    a->dirty = true;
}

static void job_known(struct agent *a, struct agent_job *j, uint64_t id, uint64_t wall_s) {
    struct agent_order *o = agent_order_of(a, j->order);
    j->phase = AGENT_KNOWN;
    j->id = id;
    j->missing = 0;
    if (j->submit_s == 0) j->submit_s = wall_s;
    if (o != NULL) o->retries = 0;
    a->dirty = true;
}

void agent_submitted(struct agent *a, time_ns now, uint64_t wall_s, uint32_t job,
                     const struct place_submitted *s) {
    struct agent_job *j = &a->jobs[job];
    struct agent_order *o = agent_order_of(a, j->order);
    CHECK(j->phase == AGENT_INTENDED);
    agent_answered(a, now, s->said.class_);
    a->dirty = true;
    switch (s->said.class_) {
    case PLACE_FINE:
        job_known(a, j, s->job, wall_s);
        j->state = PLACE_JOB_PENDING;
        agent_job_item(a, j, "pending", wall_s);
        a->look_at = now + (time_ns)(a->site->look_ns / 4); /* it may start at once */
        return;
    case PLACE_NEVER:
    case PLACE_DENIED:
    case PLACE_OURS:
    case PLACE_ABSENT:
        agent_copy(j->why, sizeof j->why, s->said.text);
        agent_job_item(a, j, "refused", wall_s);
        job_again(a, j, wall_s, s->said.text);
        if (o != NULL) agent_order_over(a, o, "refused", s->said.text, wall_s);
        return;
    case PLACE_NOT_NOW:
    case PLACE_LIMIT:
    case PLACE_BUSY: job_again(a, j, wall_s, s->said.text); return;
    case PLACE_AWAY:
    case PLACE_STRANGE: break;
    }
    j->phase = AGENT_UNSURE; /* G2 */
    agent_copy(j->why, sizeof j->why, s->said.text);
    agent_job_item(a, j, "submitting", wall_s);
}

/* ---- Queue and history ------------------------------------------------------------------------------ */

static const char *end_word(const struct agent_job *j) {
    return j->lost ? "lost" : place_state_name((enum place_state)j->state);
}

static void job_over(struct agent *a, struct agent_job *j, uint64_t wall_s) {
    struct agent_order *o = agent_order_of(a, j->order);
    j->phase = AGENT_OVER;
    if (j->end_s == 0) j->end_s = wall_s;
    if (o != NULL) {
        bool failed = j->state == PLACE_JOB_FAILED && !j->lost;
        o->fails = failed ? o->fails + 1 : 0;
        if (o->fails >= AGENT_FAILS_MAX) o->begun = o->jobs; /* no more of them */
    }
    agent_job_item(a, j, end_word(j), wall_s);
    a->dirty = true;
}

static uint64_t positive(int64_t t) {
    return t > 0 ? (uint64_t)t : 0;
}

/* What the scheduler says of a job that is ours. A requeued one goes back to pending. */
static void job_seen(struct agent *a, struct agent_job *j, const struct place_job *q,
                     uint64_t wall_s) {
    bool first = j->phase != AGENT_KNOWN, moved = j->state != (uint32_t)q->state;
    if (first) job_known(a, j, q->id, wall_s);
    j->missing = 0;
    if (q->state == PLACE_JOB_PENDING && j->start_s > 0) { /* requeued: what it used is used */
        uint64_t used = wall_s > j->start_s ? wall_s - j->start_s : 0;
        a->hours_used += (double)j->nodes * (double)used / 3600.0;
        j->start_s = 0;
    }
    j->state = (uint32_t)q->state;
    if (q->submit_s > 0) j->submit_s = positive(q->submit_s);
    if (q->state != PLACE_JOB_PENDING) {
        j->start_s = positive(q->start_s);
        /* Cancelled while it waited: Slurm gives it a start equal to its end. */
        if (q->state == PLACE_JOB_CANCELLED && q->start_s == q->end_s) j->start_s = 0;
    }
    if (place_state_over(q->state)) j->end_s = positive(q->end_s);
    if (strcmp(j->why, q->reason) != 0) {
        bool told = slurm_reason_class(q->reason) != SLURM_REASON_WAITS &&
                    q->state == PLACE_JOB_PENDING;
        agent_copy(j->why, sizeof j->why, strcmp(q->reason, "None") == 0 ? "" : q->reason);
        moved = moved || told;
        a->dirty = true;
    }
    if (place_state_over(q->state)) {
        job_over(a, j, wall_s);
    } else if (moved || first) {
        agent_job_item(a, j, place_state_name(q->state), wall_s);
        a->dirty = true;
    }
}

static struct agent_job *job_find(struct agent *a, uint64_t order, uint64_t job, uint64_t attempt) {
    for (uint32_t i = 0; i < a->jobs_count; i++) {
        struct agent_job *j = &a->jobs[i];
        if (j->order == order && j->job == job && (attempt == 0 || j->attempt == attempt)) return j;
    }
    return NULL;
}

/* A job with a name of ours that the list does not have: a late arrival of an attempt that was given up, or
 * all that is left of a list that was lost. The order's count and the budget take it in. */
static void job_adopt(struct agent *a, const struct place_job *q, uint64_t order, uint64_t job,
                      uint64_t attempt, uint64_t wall_s) {
    struct agent_order *o = agent_order_of(a, order);
    if (a->jobs_count == AGENT_JOBS_MAX) return;
    /* One that is over matters only where an order would begin it again. */
    if (place_state_over(q->state) && (o == NULL || o->over || job <= o->begun)) return;
    struct agent_job *j = &a->jobs[a->jobs_count++];
    memset(j, 0, sizeof *j);
    j->order = order;
    j->job = job;
    j->attempt = attempt;
    j->phase = AGENT_UNSURE;
    j->intended_s = positive(q->submit_s);
    j->nodes = q->nodes;
    j->time_s = q->limit_s != UINT64_MAX ? q->limit_s : 0;
    agent_copy(j->name, sizeof j->name, q->name);
    if (o != NULL) {
        agent_copy(j->shape, sizeof j->shape, o->shape);
        if (o->begun < job) o->begun = job;
    }
    job_seen(a, j, q, wall_s);
}

/* Another attempt of the same job is there: one of the two goes. The older attempt stays. */
static void doubles_mark(struct agent *a, uint64_t wall_s) {
    for (uint32_t i = 0; i < a->jobs_count; i++)
        for (uint32_t k = 0; k < a->jobs_count; k++) {
            struct agent_job *x = &a->jobs[i], *y = &a->jobs[k];
            if (i == k || x->order != y->order || x->job != y->job || x->attempt <= y->attempt)
                continue;
            if (x->phase != AGENT_KNOWN || y->phase != AGENT_KNOWN || x->cancelled) continue;
            x->order = 0; /* of no order: cancel_next sends it away */
            agent_copy(x->why, sizeof x->why, "a double of an earlier attempt that arrived late");
            agent_job_item(a, x, "cancelled", wall_s);
        }
}

static const struct place_job *listed(const struct place_jobs *q, const struct agent_job *j) {
    for (uint32_t i = 0; i < q->count; i++) {
        if (strcmp(q->jobs[i].name, j->name) != 0) continue;
        if (j->phase == AGENT_KNOWN && q->jobs[i].id != j->id) continue; /* a recycled number */
        return &q->jobs[i];
    }
    return NULL;
}

/* A job that was asked for and is not in a list that was really given. */
static void job_missing(struct agent *a, struct agent_job *j, uint64_t wall_s, bool ran) {
    uint64_t settle = (uint64_t)(a->site->settle_ns / NS_PER_S);
    j->missing++;
    if (j->phase == AGENT_KNOWN || ran) {
        /* It was there: its end is in the history, or nowhere. */
        if (j->missing < 2 || !a->history_absent) {
            a->history_due = !a->history_absent;
            if (j->missing < 4) return;
        }
        j->lost = true;
        j->state = PLACE_JOB_DONE;
        agent_copy(j->why, sizeof j->why, "no longer in the queue, and there is no history");
        job_over(a, j, wall_s);
        return;
    }
    if (!a->history_absent) a->history_due = true;
    if (j->missing < 2 || a->orphan || wall_s < j->intended_s + settle) return; /* G2 */
    job_again(a, j, wall_s, "a submission without an answer did not arrive");
}

void agent_looked(struct agent *a, time_ns now, uint64_t wall_s, const struct place_jobs *q,
                  const bool *ran, uint64_t took_ms) {
    uint64_t running = 0, pending = 0, order, job, attempt;
    agent_answered(a, now, q->said.class_);
    if (q->said.class_ != PLACE_FINE) return; /* nothing is known: nothing changes */
    a->looked = true;
    /* ran[] is by index of jobs as they were: those that go away are seen to from the end. */
    for (uint32_t i = a->jobs_count; i-- > 0;) {
        struct agent_job *j = &a->jobs[i];
        const struct place_job *seen = j->phase == AGENT_OVER ? NULL : listed(q, j);
        if (j->phase == AGENT_OVER || j->phase == AGENT_INTENDED) continue;
        if (seen != NULL)
            job_seen(a, j, seen, wall_s);
        else
            job_missing(a, j, wall_s, ran[i]);
    }
    for (uint32_t i = 0; i < q->count; i++) {
        const struct place_job *x = &q->jobs[i];
        running += x->state == PLACE_JOB_RUNNING;
        pending += x->state == PLACE_JOB_PENDING;
        if (!agent_job_named(a, x->name, &order, &job, &attempt)) continue;
        bool known = job_find(a, order, job, attempt) != NULL;
        for (uint32_t k = 0; k < a->jobs_count; k++)
            known = known || strcmp(a->jobs[k].name, x->name) == 0;
        if (!known) job_adopt(a, x, order, job, attempt, wall_s);
    }
    doubles_mark(a, wall_s);
    struct wire_item *item = agent_item(a, ITEM_QUEUE, "", wall_s);
    if (item == NULL) return;
    item->nodes = running;
    item->gpus = pending;
    item->took_ms = took_ms;
    if (a->jobs_count == 0) a->history_due = false;
}

void agent_recalled(struct agent *a, time_ns now, uint64_t wall_s, const struct place_jobs *q,
                    const bool *ran) {
    (void)ran;
    agent_answered(a, now, q->said.class_);
    if (q->said.class_ == PLACE_ABSENT) a->history_absent = true;
    if (q->said.class_ != PLACE_FINE) return;
    for (uint32_t i = a->jobs_count; i-- > 0;) {
        struct agent_job *j = &a->jobs[i];
        if (j->phase == AGENT_OVER || j->phase == AGENT_INTENDED || j->missing == 0) continue;
        const struct place_job *x = listed(q, j);
        /* The history lags: it may still call a job running that the queue has seen off. */
        if (x != NULL && (place_state_over(x->state) || j->phase == AGENT_UNSURE))
            job_seen(a, j, x, wall_s);
    }
}

void agent_cancelled(struct agent *a, time_ns now, uint64_t wall_s, uint32_t job,
                     const struct place_said *said, bool drain) {
    struct agent_job *j = &a->jobs[job];
    (void)wall_s;
    agent_answered(a, now, said->class_);
    if (said->class_ == PLACE_AWAY || said->class_ == PLACE_BUSY) return; /* again */
    j->drained = j->drained || drain;
    j->cancelled = j->cancelled || !drain;
    a->look_at = now + (time_ns)(a->site->look_ns / 4);
    a->dirty = true;
}

void agent_probed(struct agent *a, time_ns now, uint64_t wall_s, const struct place_shape *shape,
                  const struct place_estimate *e, uint64_t took_ms) {
    agent_answered(a, now, e->said.class_);
    struct wire_item *i = agent_item(a, ITEM_PROBE, shape->name, wall_s);
    if (i == NULL) return;
    i->nodes = shape->nodes;
    i->seconds = shape->time_s;
    i->gpus = shape->gpus;
    i->start = positive(e->start_s);
    i->took_ms = took_ms;
    agent_copy(i->word, sizeof i->word, place_class_name(e->said.class_));
    if (e->said.class_ != PLACE_FINE) agent_copy(i->why, sizeof i->why, e->said.text);
}

/* ---- Orders ---------------------------------------------------------------------------------------- */

/* A new order of the hub's. What is wrong with it is reported under its number; nothing of it is used but
 * its number, its count, and a shape that was found by its name. */
static void order_take(struct agent *a, const struct wire_order *w, uint64_t wall_s) {
    const struct place_shape *s = sitefile_shape(a->site, w->shape);
    if (a->orders_count == AGENT_ORDERS_MAX) return; /* room comes when others are over */
    struct agent_order *o = &a->orders[a->orders_count++];
    memset(o, 0, sizeof *o);
    o->id = w->id;
    o->jobs = w->jobs;
    o->cancel = w->cancel;
    a->dirty = true;
    if (s == NULL) {
        agent_order_over(a, o, "refused", "no such shape in site.yaml", wall_s);
        return;
    }
    agent_copy(o->shape, sizeof o->shape, s->name);
    for (uint32_t i = 0; i < a->jobs_count; i++) /* found in the queue before the order was told */
        if (a->jobs[i].order == o->id && a->jobs[i].job > o->begun) o->begun = a->jobs[i].job;
    double one = (double)s->nodes * (double)s->time_s / 3600.0;
    if (w->jobs == 0 || w->jobs > WIRE_ORDER_JOBS_MAX)
        agent_order_over(a, o, "refused", "jobs: want 1 to 1000", wall_s);
    else if (one > a->site->node_hours)
        agent_order_over(a, o, "refused", "one such job is more than the whole budget", wall_s);
}

/* Orders that are over, and that the hub has taken off its list, are forgotten. */
static void orders_forget(struct agent *a, const struct wire_agent_answer *w) {
    for (uint32_t i = 0; i < a->orders_count;) {
        bool listed_still = false, item = false;
        for (uint32_t k = 0; k < w->orders_count; k++)
            listed_still = listed_still || w->orders[k].id == a->orders[i].id;
        for (uint32_t k = 0; k < a->items_count; k++)
            item = item || a->items[k].order == a->orders[i].id;
        for (uint32_t k = 0; k < a->jobs_count; k++)
            item = item || (a->jobs[k].order == a->orders[i].id && a->jobs[k].phase != AGENT_OVER);
        if (!a->orders[i].over || listed_still || item) {
            i++;
            continue;
        }
        memmove(&a->orders[i], &a->orders[i + 1], (a->orders_count - i - 1) * sizeof a->orders[0]);
        a->orders_count--;
        a->dirty = true;
    }
}

void agent_renumber(struct agent *a, uint64_t n) {
    for (uint32_t i = 0; i < a->items_count; i++) a->items[i].n = ++n;
    a->item_next = n + 1;
    a->dirty = true;
}

void agent_told(struct agent *a, time_ns now, uint64_t wall_s, const struct wire_agent_answer *w) {
    uint32_t known = 0;
    a->told = true;
    while (known < a->items_count && a->items[known].n <= w->n) known++;
    if (known > 0) {
        memmove(a->items, a->items + known, (a->items_count - known) * sizeof a->items[0]);
        a->items_count -= known;
        a->dirty = true;
    }
    if (a->complete != w->complete) {
        a->complete = w->complete;
        a->dirty = true;
    }
    for (uint32_t i = 0; i < w->orders_count; i++) {
        struct agent_order *o = agent_order_of(a, w->orders[i].id);
        if (w->orders[i].id == 0) continue;
        if (o == NULL) {
            order_take(a, &w->orders[i], wall_s);
        } else if (w->orders[i].cancel && !o->cancel) {
            o->cancel = a->dirty = true;
        }
    }
    orders_forget(a, w);
    if (a->items_count > 0) a->hub_at = now + NS_PER_S; /* the rest of them soon */
}

void agent_hub_away(struct agent *a, time_ns now, uint32_t retry_ms) {
    time_ns wait = agent_jitter(a, a->site->hub_ns);
    if ((time_ns)retry_ms * NS_PER_MS > wait) wait = (time_ns)retry_ms * NS_PER_MS;
    a->hub_at = now + wait;
}
