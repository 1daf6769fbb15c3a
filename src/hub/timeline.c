/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.c - see the header.
 *
 * Invariants
 *   (W1) a list never holds more than its maximum, however long the hub runs.
 *   (W2) two entries of one site that follow each other differ. */
#include <string.h>

#include "hub/timeline.h"
#include "wire/json.h"

struct entry {
    time_ns wall;
    uint64_t next; /* of the same site, counted from 1; 0: none yet */
    uint32_t site;
    uint8_t state;
};
struct seen { /* of one site, by its number */
    bool known;
    uint8_t state;
    uint64_t first, last; /* its entries that are still in the list; 0: none */
};
struct timeline {
    time_ns since, began, staged_first, staged_last;
    struct timeline_round merging;
    struct entry *states;  /* the k-th, from 1, lies at (k - 1) % TIMELINE_STATES_MAX */
    uint64_t states_count; /* ever */
    struct timeline_round *rounds;
    uint64_t rounds_count;
    struct timeline_job *jobs;
    uint64_t jobs_count;
    struct seen *seen;
    uint32_t seen_cap;
    uint64_t items_seen[HUB_FACILITIES_MAX];
};

uint8_t timeline_state_of(const struct hub_site_view *v) {
    if (!v->joined) return TIMELINE_AWAY;
    if (!v->live) return TIMELINE_SILENT;
    return (uint8_t)(TIMELINE_PHASE + (int)v->phase);
}

const char *timeline_state_name(uint8_t state) {
    if (state == TIMELINE_AWAY) return "away";
    if (state == TIMELINE_SILENT) return "silent";
    return wire_phase_name((enum wire_phase)(state - TIMELINE_PHASE));
}

struct timeline *timeline_create(time_ns wall) {
    struct timeline *t = mem_alloc(1, sizeof *t);
    t->since = t->began = wall;
    t->states = mem_alloc(TIMELINE_STATES_MAX, sizeof *t->states);
    t->rounds = mem_alloc(TIMELINE_ROUNDS_MAX, sizeof *t->rounds);
    t->jobs = mem_alloc(TIMELINE_JOBS_MAX, sizeof *t->jobs);
    return t;
}

void timeline_destroy(struct timeline *t) {
    mem_free(t->states);
    mem_free(t->rounds);
    mem_free(t->jobs);
    mem_free(t->seen);
    mem_free(t);
}

static struct entry *entry_at(const struct timeline *t, uint64_t k) {
    CHECK(k > 0);
    return &t->states[(k - 1) % TIMELINE_STATES_MAX];
}

/* ---- Sites ----------------------------------------------------------------------------------------- */
static void observe_site(struct timeline *t, const struct hub_site_view *v, time_ns wall) {
    if (v->site >= t->seen_cap) {
        uint32_t cap = 2 * v->site + 16;
        t->seen = mem_grow(t->seen, t->seen_cap, cap, sizeof *t->seen);
        t->seen_cap = cap;
    }
    struct seen *s = &t->seen[v->site];
    uint8_t state = timeline_state_of(v);
    if (s->known && s->state == state) return;
    CHECK(!s->known || s->state != state); /* W2 */
    s->known = true;
    s->state = state;
    struct entry *e = entry_at(t, ++t->states_count);
    if (t->states_count >
        TIMELINE_STATES_MAX) { /* the oldest is forgotten; it is its site's first */
        struct seen *gone = &t->seen[e->site];
        gone->first = e->next;
        if (e->next == 0) gone->last = 0;
    }
    *e = (struct entry){.wall = wall, .site = v->site, .state = state};
    if (s->last > 0)
        entry_at(t, s->last)->next = t->states_count;
    else
        s->first = t->states_count;
    s->last = t->states_count;
}

static uint64_t oldest(uint64_t count, uint64_t max) {
    uint64_t first = count > max ? count - max : 0;
    CHECK(count - first <= max); /* W1 */
    return first;
}

/* ---- Jobs ------------------------------------------------------------------------------------------ */
static struct timeline_job *job_find(struct timeline *t, const char *facility,
                                     const struct wire_item *i) {
    for (uint64_t k = t->jobs_count; k > oldest(t->jobs_count, TIMELINE_JOBS_MAX); k--) {
        struct timeline_job *j = &t->jobs[(k - 1) % TIMELINE_JOBS_MAX];
        if (j->order == i->order && j->job == i->job && strcmp(j->facility, facility) == 0)
            return j;
    }
    struct timeline_job *j = &t->jobs[t->jobs_count++ % TIMELINE_JOBS_MAX];
    memset(j, 0, sizeof *j);
    memcpy(j->facility, facility, strnlen(facility, sizeof j->facility - 1));
    memcpy(j->shape, i->shape, sizeof j->shape);
    j->order = i->order;
    j->job = i->job;
    return j;
}

/* A job's `start` is the scheduler's estimate while it waits, and what happened from then on. The promise
 * that people plan with is the first: where the job itself had none yet, that of the newest probe of its
 * shape stands for it. */
static void observe_job(struct timeline *t, const struct hub_facility *f,
                        const struct wire_item *i) {
    struct timeline_job *j = job_find(t, f->name, i);
    bool waits = strcmp(i->word, "pending") == 0 || strcmp(i->word, "submitting") == 0;
    memcpy(j->state, i->word, sizeof j->state);
    if (i->id > 0) j->id = i->id;
    if (i->submit > 0) j->submit = i->submit;
    if (waits) {
        if (i->start > 0) j->estimate_last = i->start;
        for (uint32_t k = 0; j->estimate_last == 0 && k < f->shapes_count; k++) {
            const struct wire_item *p = &f->probes[k];
            if (p->n == 0 || strcmp(p->shape, i->shape) != 0 || strcmp(p->word, "fine") != 0)
                continue;
            j->estimate_last = p->start;
        }
        if (j->estimate == 0 && j->estimate_last > 0) {
            j->estimate = j->estimate_last;
            j->estimated_at = i->at;
        }
        return;
    }
    if (i->start > 0) j->start = i->start;
    if (i->end > 0 && strcmp(i->word, "running") != 0) j->end = i->end;
}

void timeline_observe(struct timeline *t, const struct hub *h, time_ns now, time_ns wall) {
    for (uint32_t i = 0; i < hub_sites_count(h); i++) {
        struct hub_site_view v;
        hub_site_at(h, i, now, &v);
        observe_site(t, &v, wall);
    }
    for (uint32_t i = 0; i < hub_facilities_count(h); i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        if (i < HUB_FACILITIES_MAX && f->n == t->items_seen[i]) continue; /* nothing new */
        if (i < HUB_FACILITIES_MAX) t->items_seen[i] = f->n;
        for (uint32_t k = 0; k < f->jobs_count; k++)
            if (f->jobs[k].n > 0) observe_job(t, f, &f->jobs[k]);
    }
}

/* ---- Rounds ---------------------------------------------------------------------------------------- */
/* Whoever handed in tells it after the machine has decided; by then the merge may have begun, or be over. */
void timeline_staged(struct timeline *t, time_ns came) {
    time_ns *first = &t->staged_first, *last = &t->staged_last;
    if (came <= t->merging.merge_began) {
        struct timeline_round *r = t->merging.version == 0
                                       ? &t->merging
                                       : &t->rounds[(t->rounds_count - 1) % TIMELINE_ROUNDS_MAX];
        first = &r->staged_first;
        last = &r->staged_last;
    }
    if (*first == 0 || came < *first) *first = came;
    if (came > *last) *last = came;
}

void timeline_merge_began(struct timeline *t, time_ns wall) {
    t->merging = (struct timeline_round){.began = t->began,
                                         .staged_first = t->staged_first,
                                         .staged_last = t->staged_last,
                                         .merge_began = wall};
    t->staged_first = t->staged_last = 0; /* what comes from here on is of the next round */
}

void timeline_merge_ended(struct timeline *t, uint64_t version, time_ns took, time_ns published) {
    t->merging.version = version; /* over */
    t->merging.merged = t->merging.merge_began + took;
    t->merging.published = published;
    t->rounds[t->rounds_count++ % TIMELINE_ROUNDS_MAX] = t->merging;
    t->began = published;
}

void timeline_merge_failed(struct timeline *t) {
    if (t->merging.staged_first > 0) t->staged_first = t->merging.staged_first;
    if (t->staged_last == 0) t->staged_last = t->merging.staged_last;
    t->merging = (struct timeline_round){0};
}

/* ---- As JSON --------------------------------------------------------------------------------------- */
static void put_time(struct buf *out, bool *first, const char *key, time_ns wall) {
    json_member_f64(out, first, key, (double)(wall / NS_PER_MS) / 1e3);
}

static void put_spans(const struct timeline *t, uint32_t site, time_ns after, struct buf *out) {
    uint64_t k = site < t->seen_cap ? t->seen[site].first : 0;
    bool any = false;
    for (const struct entry *x; k > 0; k = x->next) {
        x = entry_at(t, k);
        CHECK(x->site == site);
        if (x->wall <= after) continue;
        buf_printf(out, any ? ",[" : "[");
        json_put_f64(out, (double)(x->wall / NS_PER_MS) / 1e3);
        buf_printf(out, ",\"%s\"]", timeline_state_name(x->state));
        any = true;
    }
}

static void put_sites(const struct timeline *t, const struct hub *h, time_ns now, time_ns after,
                      struct buf *out) {
    for (uint32_t i = 0; i < hub_sites_count(h); i++) {
        struct hub_site_view v;
        bool first = true;
        hub_site_at(h, i, now, &v);
        buf_printf(out, i > 0 ? ",{" : "{");
        json_member_text(out, &first, "name", v.name);
        json_member_text(out, &first, "state", timeline_state_name(timeline_state_of(&v)));
        json_key(out, &first, "spans");
        buf_u8(out, '[');
        put_spans(t, v.site, after, out);
        buf_printf(out, "]}");
    }
}

static void put_rounds(const struct timeline *t, time_ns after, struct buf *out) {
    uint64_t from = oldest(t->rounds_count, TIMELINE_ROUNDS_MAX);
    bool any = false;
    for (uint64_t k = from; k < t->rounds_count; k++) {
        const struct timeline_round *r = &t->rounds[k % TIMELINE_ROUNDS_MAX];
        bool first = true;
        if (r->published <= after) continue;
        buf_printf(out, any ? ",{" : "{");
        any = true;
        json_member_u64(out, &first, "version", r->version);
        put_time(out, &first, "began", r->began);
        put_time(out, &first, "staged_first", r->staged_first);
        put_time(out, &first, "staged_last", r->staged_last);
        put_time(out, &first, "merge_began", r->merge_began);
        put_time(out, &first, "merged", r->merged);
        put_time(out, &first, "published", r->published);
        buf_u8(out, '}');
    }
}

static void put_jobs(const struct timeline *t, struct buf *out) {
    uint64_t from = oldest(t->jobs_count, TIMELINE_JOBS_MAX);
    for (uint64_t k = from; k < t->jobs_count; k++) {
        const struct timeline_job *j = &t->jobs[k % TIMELINE_JOBS_MAX];
        bool first = true;
        buf_printf(out, k > from ? ",{" : "{");
        json_member_text(out, &first, "facility", j->facility);
        json_member_text(out, &first, "shape", j->shape);
        json_member_text(out, &first, "state", j->state);
        json_member_u64(out, &first, "order", j->order);
        json_member_u64(out, &first, "job", j->job);
        json_member_u64(out, &first, "id", j->id);
        json_member_u64(out, &first, "submit", j->submit);
        json_member_u64(out, &first, "estimated_at", j->estimated_at);
        json_member_u64(out, &first, "estimate", j->estimate);
        json_member_u64(out, &first, "estimate_last", j->estimate_last);
        json_member_u64(out, &first, "start", j->start);
        json_member_u64(out, &first, "end", j->end);
        buf_u8(out, '}');
    }
}

void timeline_view(const struct timeline *t, const struct hub *h, time_ns now, time_ns wall,
                   time_ns after, struct buf *out) {
    uint64_t from = oldest(t->states_count, TIMELINE_STATES_MAX);
    bool first = true;
    buf_u8(out, '{');
    put_time(out, &first, "now", wall);
    put_time(out, &first, "since", t->since);
    put_time(out, &first, "states_from", from > 0 ? entry_at(t, from + 1)->wall : t->since);
    json_key(out, &first, "sites");
    buf_u8(out, '[');
    put_sites(t, h, now, after, out);
    buf_u8(out, ']');
    json_key(out, &first, "rounds");
    buf_u8(out, '[');
    put_rounds(t, after, out);
    buf_u8(out, ']');
    json_key(out, &first, "jobs");
    buf_u8(out, '[');
    put_jobs(t, out);
    buf_printf(out, "]}\n");
}
