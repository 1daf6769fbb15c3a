/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - see agent.h: deciding. agent_told.c takes in what came of it. */
#include "place/agent.h"

#include <stdio.h>
#include <string.h>

#include "place/agent_inner.h"

/* ---- Life ---------------------------------------------------------------------------------------- */

void agent_init(struct agent *a, const struct place_site *site, uint64_t seed) {
    memset(a, 0, sizeof *a);
    a->site = site;
    a->item_next = 1;
    prng_seed(&a->prng, seed);
}

void agent_start(struct agent *a, time_ns now, uint64_t wall_s) {
    a->look_at = a->hub_at = now;
    a->budget_told_s = -1;
    for (uint32_t i = 0; i < a->site->shapes_count; i++) {
        const struct place_shape *s = &a->site->shapes[i];
        struct wire_item *item = agent_item(a, ITEM_SHAPE, s->name, wall_s);
        if (item == NULL) continue;
        item->nodes = s->nodes;
        item->seconds = s->time_s;
        item->gpus = s->gpus;
    }
    for (uint32_t i = 0; i < a->jobs_count; i++)
        if (a->jobs[i].phase == AGENT_INTENDED) {
            a->jobs[i].phase = AGENT_UNSURE; /* G2: we died in the middle of it */
            a->orphan = a->dirty = true;
        }
}

/* ---- Records for the hub --------------------------------------------------------------------------- */

/* A new item, or NULL where it is one of many and the queue is full: those about jobs and orders have a
 * quarter of it for themselves. */
struct wire_item *agent_item(struct agent *a, enum wire_item_kind kind, const char *shape,
                             uint64_t wall_s) {
    bool weighty = kind == ITEM_JOB || kind == ITEM_ORDER || kind == ITEM_SHAPE;
    if (a->items_count >= (weighty ? AGENT_ITEMS_MAX : AGENT_ITEMS_MAX * 3 / 4)) return NULL;
    struct wire_item *i = &a->items[a->items_count++];
    memset(i, 0, sizeof *i);
    i->n = a->item_next++;
    i->kind = kind;
    i->at = wall_s;
    agent_copy(i->shape, sizeof i->shape, shape);
    a->dirty = true;
    return i;
}

void agent_copy(char *out, size_t cap, const char *text) {
    size_t n = strlen(text);
    if (n >= cap) n = cap - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}

void agent_job_item(struct agent *a, const struct agent_job *j, const char *word, uint64_t wall_s) {
    struct wire_item *i = agent_item(a, ITEM_JOB, j->shape, wall_s);
    if (i == NULL) return;
    i->order = j->order;
    i->job = j->job;
    i->id = j->id;
    i->nodes = j->nodes;
    i->seconds = j->time_s;
    i->submit = j->submit_s;
    i->start = j->start_s;
    i->end = j->end_s;
    agent_copy(i->word, sizeof i->word, word);
    agent_copy(i->why, sizeof i->why, j->why);
}

void agent_order_over(struct agent *a, struct agent_order *o, const char *word, const char *why,
                      uint64_t wall_s) {
    if (o->over) return;
    o->over = a->dirty = true;
    struct wire_item *i = agent_item(a, ITEM_ORDER, o->shape, wall_s);
    if (i == NULL) {
        o->over = false; /* later, when there is room to say so */
        return;
    }
    i->order = o->id;
    agent_copy(i->word, sizeof i->word, word);
    agent_copy(i->why, sizeof i->why, why);
    if (strcmp(word, "refused") == 0) a->refused_total++;
}

/* What is left for further jobs, where that changed. */
static void budget_item(struct agent *a, uint64_t wall_s) {
    const double most = 9007199254740992.0; /* 2^53: what JSON carries */
    double free = 3600.0 * (a->site->node_hours - agent_hours(a, wall_s));
    free = free < 0 ? 0 : free > most ? most : free;
    if (a->budget_told_s >= 0 && free < a->budget_told_s + 1 && free > a->budget_told_s - 1) return;
    struct wire_item *i = agent_item(a, ITEM_BUDGET, "", wall_s);
    if (i == NULL) return;
    i->seconds = (uint64_t)free;
    i->nodes = a->site->jobs_max;
    a->budget_told_s = free;
}

/* ---- Names ------------------------------------------------------------------------------------------ */

void agent_job_name(const struct agent *a, const struct agent_job *j, char out[PLACE_JOBNAME_MAX]) {
    int n = snprintf(out, PLACE_JOBNAME_MAX, "brg-%.8s-%.20s-o%llu-j%llu-a%llu", a->run,
                     a->site->name, (unsigned long long)j->order, (unsigned long long)j->job,
                     (unsigned long long)j->attempt);
    CHECK(n > 0);
    CHECK(n < PLACE_JOBNAME_MAX);
}

static bool number_after(const char **p, const char *mark, uint64_t *out) {
    size_t n = strlen(mark), digits = 0;
    char text[24];
    if (strncmp(*p, mark, n) != 0) return false;
    *p += n;
    while ((*p)[digits] >= '0' && (*p)[digits] <= '9') digits++;
    if (digits == 0 || digits >= sizeof text) return false;
    memcpy(text, *p, digits);
    text[digits] = '\0';
    *p += digits;
    return parse_u64(text, out);
}

bool agent_job_named(const struct agent *a, const char *name, uint64_t *order, uint64_t *job,
                     uint64_t *attempt) {
    char prefix[64];
    int n = snprintf(prefix, sizeof prefix, "brg-%.8s-%.20s", a->run, a->site->name);
    const char *p = name + n;
    return strncmp(name, prefix, (size_t)n) == 0 && number_after(&p, "-o", order) &&
           number_after(&p, "-j", job) && number_after(&p, "-a", attempt) && *p == '\0';
}

struct agent_order *agent_order_of(struct agent *a, uint64_t id) {
    for (uint32_t i = 0; i < a->orders_count; i++)
        if (a->orders[i].id == id) return &a->orders[i];
    return NULL;
}

/* ---- Budget and etiquette ------------------------------------------------------------------------ */

/* Of one job: what it used, or may still use. */
double agent_job_hours(const struct agent_job *j) {
    uint64_t s = j->time_s;
    if (j->phase == AGENT_OVER) {
        if (j->start_s == 0 && !j->lost) return 0;
        if (j->start_s > 0) s = j->end_s > j->start_s ? j->end_s - j->start_s : 0;
        if (j->lost) s = j->time_s; /* not known: the worst */
    }
    return (double)j->nodes * (double)s / 3600.0;
}

double agent_hours(const struct agent *a, uint64_t wall_s) {
    double sum = a->hours_used;
    (void)wall_s;
    for (uint32_t i = 0; i < a->jobs_count; i++) sum += agent_job_hours(&a->jobs[i]);
    return sum;
}

/* How long until another command of the scheduler may run; 0: now. (G5) */
static time_ns command_wait(const struct agent *a, time_ns now) {
    const time_ns hour = 3600 * (time_ns)NS_PER_S;
    uint64_t max = a->site->commands_per_hour;
    if (now < a->back_off_until) return a->back_off_until - now;
    if (max > AGENT_COMMANDS_MAX) max = AGENT_COMMANDS_MAX; /* what the ring can vouch for */
    if (a->commands_count < max) return 0;
    uint32_t oldest = (a->commands_next + AGENT_COMMANDS_MAX - (uint32_t)max) % AGENT_COMMANDS_MAX;
    time_ns free_at = a->commands[oldest] + hour;
    return now >= free_at ? 0 : free_at - now;
}

static void command_count(struct agent *a, time_ns now) {
    CHECK(command_wait(a, now) == 0); /* G5 */
    a->commands[a->commands_next] = now;
    a->commands_next = (a->commands_next + 1) % AGENT_COMMANDS_MAX;
    if (a->commands_count < AGENT_COMMANDS_MAX) a->commands_count++;
    a->commands_total++;
}

time_ns agent_jitter(struct agent *a, time_ns interval) {
    return interval + (time_ns)((double)interval * a->site->jitter * prng_unit(&a->prng));
}

/* An answer of the scheduler, or none: back-off doubles up to a quarter of an hour. */
void agent_answered(struct agent *a, time_ns now, enum place_class c) {
    const time_ns most = 900 * (time_ns)NS_PER_S;
    if (c != PLACE_AWAY && c != PLACE_BUSY) {
        a->away = 0;
        return;
    }
    if (a->away < 16) a->away++;
    time_ns wait = a->site->look_ns;
    for (uint32_t i = 1; i < a->away && wait < most; i++) wait *= 2;
    a->back_off_until = now + agent_jitter(a, wait < most ? wait : most);
}

/* ---- What next ------------------------------------------------------------------------------------- */

static bool job_alive(const struct agent_job *j) {
    return j->phase != AGENT_OVER;
}

/* The newest job of an order that is not over; NULL: none. */
static struct agent_job *job_alive_of(struct agent *a, uint64_t order, uint32_t *out_count,
                                      bool *out_waits) {
    struct agent_job *newest = NULL;
    *out_count = 0;
    *out_waits = false;
    for (uint32_t i = 0; i < a->jobs_count; i++) {
        struct agent_job *j = &a->jobs[i];
        if (j->order != order || !job_alive(j)) continue;
        (*out_count)++;
        if (j->phase != AGENT_KNOWN ||
            (j->state != PLACE_JOB_RUNNING && j->state != PLACE_JOB_SUSPENDED))
            *out_waits = true;
        if (newest == NULL || j->job > newest->job) newest = j;
    }
    return newest;
}

static uint32_t alive_count(const struct agent *a) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->jobs_count; i++) n += job_alive(&a->jobs[i]);
    return n;
}

/* Jobs that are over make room, oldest first; their hours stay. */
static void jobs_forget(struct agent *a, bool all) {
    for (uint32_t i = 0; i < a->jobs_count && (all || a->jobs_count == AGENT_JOBS_MAX);) {
        const struct agent_order *o = agent_order_of(a, a->jobs[i].order);
        if (job_alive(&a->jobs[i]) || (o != NULL && !o->over && a->jobs_count < AGENT_JOBS_MAX)) {
            i++;
            continue;
        }
        a->hours_used += agent_job_hours(&a->jobs[i]);
        memmove(&a->jobs[i], &a->jobs[i + 1], (a->jobs_count - i - 1) * sizeof a->jobs[0]);
        a->jobs_count--;
        a->dirty = true;
    }
}

/* May this order have another job now? Where the budget says no, the order is over. */
static bool order_ready(struct agent *a, struct agent_order *o, time_ns now, uint64_t wall_s,
                        uint64_t *out_after) {
    uint32_t alive;
    bool waits;
    const struct place_shape *s = sitefile_shape(a->site, o->shape);
    (void)now;
    if (o->over || o->cancel || a->complete || s == NULL || o->begun >= o->jobs) return false;
    const struct agent_job *last = job_alive_of(a, o->id, &alive, &waits);
    if (waits || alive > 1 || wall_s < o->retry_s) return false;
    if (alive_count(a) >= a->site->jobs_max || a->jobs_count == AGENT_JOBS_MAX) return false;
    double more = (double)s->nodes * (double)s->time_s / 3600.0;
    if (agent_hours(a, wall_s) + more > a->site->node_hours) {
        /* Jobs that run may end early and leave room; where none is left, it never will. */
        if (alive_count(a) == 0)
            agent_order_over(a, o, "refused", "the budget of node-hours in site.yaml is spent",
                             wall_s);
        return false;
    }
    *out_after = last != NULL && a->site->chain_after ? last->id : 0;
    return true;
}

static bool submit_next(struct agent *a, time_ns now, uint64_t wall_s, struct agent_action *out) {
    if (!a->looked || a->orphan) return false; /* G2 */
    for (uint32_t i = 0; i < a->orders_count; i++) {
        struct agent_order *o = &a->orders[i];
        uint64_t after = 0;
        if (!order_ready(a, o, now, wall_s, &after)) continue;
        const struct place_shape *s = sitefile_shape(a->site, o->shape); /* G4 */
        struct agent_job *j = &a->jobs[a->jobs_count];
        memset(j, 0, sizeof *j);
        j->order = o->id;
        j->job = o->begun + 1;
        j->attempt = o->retries + 1;
        j->phase = AGENT_INTENDED; /* G1: the shore saves before it acts */
        j->intended_s = wall_s;
        j->time_s = s->time_s;
        j->nodes = s->nodes;
        agent_copy(j->shape, sizeof j->shape, o->shape);
        agent_job_name(a, j, j->name);
        *out = (struct agent_action){
            .kind = AGENT_SUBMIT, .job = a->jobs_count, .after = after, .shape = s};
        a->jobs_count++;
        o->begun++;
        o->retries++;
        a->dirty = true;
        double hours = agent_hours(a, wall_s);
        CHECK(hours <= a->site->node_hours + 1e-9); /* G3 */
        return true;
    }
    return false;
}

/* Jobs of cancelled orders, of a complete run, and doubles. */
static bool cancel_next(struct agent *a, struct agent_action *out) {
    for (uint32_t i = 0; i < a->jobs_count; i++) {
        struct agent_job *j = &a->jobs[i];
        const struct agent_order *o = agent_order_of(a, j->order);
        bool unwanted = a->complete || (o == NULL && a->told) ||
                        (o != NULL && (o->cancel || o->over));
        if (!unwanted || j->phase != AGENT_KNOWN || j->cancelled) continue;
        if (j->state == PLACE_JOB_PENDING || j->state == 0 || j->order == 0) {
            *out = (struct agent_action){.kind = AGENT_CANCEL, .job = i, .cancel = j->id};
            return true;
        }
        if (o == NULL || !o->cancel || j->drained || place_state_over(j->state)) continue;
        *out = (struct agent_action){.kind = AGENT_DRAIN, .job = i, .cancel = j->id};
        return true;
    }
    return false;
}

static void orders_close(struct agent *a, uint64_t wall_s) {
    for (uint32_t i = 0; i < a->orders_count; i++) {
        struct agent_order *o = &a->orders[i];
        uint32_t alive;
        bool waits;
        (void)job_alive_of(a, o->id, &alive, &waits);
        if (o->over || alive > 0) continue;
        if (o->cancel)
            agent_order_over(a, o, "cancelled", "", wall_s);
        else if (a->complete)
            agent_order_over(a, o, "done", "the run is complete", wall_s);
        else if (o->fails >= AGENT_FAILS_MAX)
            agent_order_over(a, o, "refused", "three jobs in a row failed: see their output",
                             wall_s);
        else if (o->begun >= o->jobs)
            agent_order_over(a, o, "done", "", wall_s);
    }
}

/* A probe that is due; *soonest: when the next one is. */
static bool probe_next(struct agent *a, time_ns now, struct agent_action *out, time_ns *soonest) {
    for (uint32_t i = 0; i < a->site->shapes_count && !a->complete; i++) {
        if (now >= a->probe_at[i]) {
            a->probe_at[i] = now + agent_jitter(a, a->site->probe_ns);
            *out = (struct agent_action){.kind = AGENT_PROBE, .shape = &a->site->shapes[i]};
            return true;
        }
        if (a->probe_at[i] < *soonest) *soonest = a->probe_at[i];
    }
    return false;
}

/* Something whose state the queue can tell. */
static bool look_wanted(const struct agent *a) {
    return !a->looked || alive_count(a) > 0;
}

static bool scheduler_next(struct agent *a, time_ns now, uint64_t wall_s, struct agent_action *out,
                           time_ns *soonest) {
    if (now >= a->look_at && look_wanted(a)) {
        a->look_at = now + agent_jitter(a, a->site->look_ns);
        *out = (struct agent_action){.kind = AGENT_LOOK};
        return true;
    }
    if (a->history_due) {
        a->history_due = false;
        *out = (struct agent_action){.kind = AGENT_HISTORY};
        return true;
    }
    if (cancel_next(a, out) || submit_next(a, now, wall_s, out) || probe_next(a, now, out, soonest))
        return true;
    if (look_wanted(a) && a->look_at < *soonest) *soonest = a->look_at;
    for (uint32_t i = 0; i < a->orders_count; i++) {
        const struct agent_order *o = &a->orders[i];
        if (o->over || o->retry_s <= wall_s) continue;
        time_ns at = now + (time_ns)(o->retry_s - wall_s) * NS_PER_S;
        if (at < *soonest) *soonest = at;
    }
    return false;
}

void agent_next(struct agent *a, time_ns now, uint64_t wall_s, struct agent_action *out) {
    time_ns soonest = now + 60 * (time_ns)NS_PER_S, wait = command_wait(a, now);
    memset(out, 0, sizeof *out);
    orders_close(a, wall_s);
    jobs_forget(a, false);
    if (now >= a->hub_at) {
        budget_item(a, wall_s);
        out->kind = AGENT_HUB;
        a->hub_at = now + agent_jitter(a, a->site->hub_ns);
        return;
    }
    if (a->run[0] == '\0') { /* no name can be given before the run is known */
        out->until = a->hub_at;
        return;
    }
    if (wait == 0 && scheduler_next(a, now, wall_s, out, &soonest)) {
        command_count(a, now);
        return;
    }
    if (wait > 0 && now + wait < soonest) soonest = now + wait;
    if (a->hub_at < soonest) soonest = a->hub_at;
    out->kind = AGENT_WAIT;
    out->until = soonest > now ? soonest : now + NS_PER_MS;
}

bool agent_idle(const struct agent *a) {
    if (alive_count(a) > 0 || a->items_count > 0 || !a->looked) return false;
    for (uint32_t i = 0; i < a->orders_count; i++)
        if (!a->orders[i].over) return false;
    return true;
}
