/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - time, the heap of events, the network, and each machine's own clock. See sim.h.
 *
 * Equal times run in the order in which they were posted: nothing depends on addresses. */
#include <stdio.h>
#include <string.h>

#include "sim/sim.h"

/* ---- Memory of one seed -------------------------------------------------------------------------- */

void *sim_alloc(struct sim *m, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if (m->arena_used + bytes > m->arena_cap) sim_fail(m, "the simulator's memory is used up");
    void *p = m->arena + m->arena_used;
    m->arena_used += bytes;
    memset(p, 0, bytes);
    return p;
}

/* ---- Chance --------------------------------------------------------------------------------------- */

double sim_unit(struct sim *m) {
    return prng_unit(&m->prng);
}

bool sim_draw(struct sim *m, double p) {
    return p > 0 && prng_unit(&m->prng) < p;
}

bool sim_chance(struct sim *m, double p) {
    return m->faults_on && sim_draw(m, p);
}

time_ns sim_seconds(double s) {
    return (time_ns)(s * NS_PER_S);
}

/* ---- Clocks ---------------------------------------------------------------------------------------- */

time_ns clock_local(const struct sim_clock *c, time_ns t) {
    if (c->rate == 1) return c->local0 + (t - c->t0);
    return c->local0 + (time_ns)((double)(t - c->t0) * c->rate);
}

/* When this clock shows `local`; a little later rather than too early. */
time_ns clock_when(const struct sim_clock *c, time_ns local, time_ns now) {
    time_ns t = c->rate == 1 ? c->t0 + (local - c->local0)
                             : c->t0 + (time_ns)((double)(local - c->local0) / c->rate) + NS_PER_US;
    return t > now ? t : now;
}

void clock_set_rate(struct sim_clock *c, time_ns t, double rate) {
    c->local0 = clock_local(c, t);
    c->t0 = t;
    c->rate = rate;
}

/* ---- The heap --------------------------------------------------------------------------------------- */

static bool sooner(const struct sim *m, uint32_t a, uint32_t b) {
    const struct sim_event *x = &m->event[a], *y = &m->event[b];
    return x->at != y->at ? x->at < y->at : x->order < y->order;
}

void sim_events_reset(struct sim *m) {
    m->heap_count = 0;
    m->event_free_count = SIM_EVENTS;
    for (uint32_t i = 0; i < SIM_EVENTS; i++) m->event_free[i] = SIM_EVENTS - 1 - i;
    for (uint16_t i = 0; i < SIM_MESSAGES; i++) m->msg[i].next = (uint16_t)(i + 1);
    m->msg_free = 0;
}

struct sim_event *sim_post(struct sim *m, enum sim_event_kind kind, time_ns at, uint32_t proc,
                           uint64_t life) {
    if (m->event_free_count == 0) sim_fail(m, "too many events are pending");
    uint32_t slot = m->event_free[--m->event_free_count];
    struct sim_event *e = &m->event[slot];
    memset(e, 0, sizeof *e);
    e->at = at > m->now ? at : m->now;
    e->order = ++m->order;
    e->kind = (uint16_t)kind;
    e->proc = (uint16_t)proc;
    e->life = life;
    uint32_t i = m->heap_count++;
    while (i > 0 && sooner(m, slot, m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = slot;
    return e;
}

bool sim_pop(struct sim *m, struct sim_event *out) {
    if (m->heap_count == 0) return false;
    uint32_t top = m->heap[0], last = m->heap[--m->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= m->heap_count) break;
        if (child + 1 < m->heap_count && sooner(m, m->heap[child + 1], m->heap[child])) child++;
        if (!sooner(m, m->heap[child], last)) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    *out = m->event[top];
    m->event_free[m->event_free_count++] = top;
    return true;
}

/* ---- Messages ---------------------------------------------------------------------------------------- */

struct sim_msg *sim_msg_new(struct sim *m) {
    if (m->msg_free >= SIM_MESSAGES) return NULL;
    struct sim_msg *x = &m->msg[m->msg_free];
    m->msg_free = x->next;
    x->used = true;
    return x;
}

void sim_msg_free(struct sim *m, struct sim_msg *x) {
    x->used = false;
    x->next = m->msg_free;
    m->msg_free = (uint16_t)(x - m->msg);
}

time_ns net_delay(struct sim *m) {
    if (sim_chance(m, m->w.f.very_slow)) {
        MARK(m, VERY_SLOW);
        return sim_seconds(sim_unit(m) * 240);
    }
    if (sim_chance(m, m->w.f.slow)) return sim_seconds(sim_unit(m) * 20);
    return sim_seconds(0.001 + 0.03 * sim_unit(m));
}

bool net_up(const struct sim *m, uint32_t site) {
    return m->now >= m->cut_up[site] && m->now >= m->cut_down[site];
}

/* Through JSON and back, as on the wire: what a message cannot carry shows here. */
static void request_as_bytes(struct sim *m, struct wire_request *q) {
    struct buf b;
    struct err e;
    struct wire_request *back = sim_alloc(m, sizeof *back);
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(q, &b);
    if (wire_request_decode(q->kind, b.data, b.bytes_count, back, &e) != BRG_OK)
        sim_fail(m, "a request cannot be read back: %s", e.text);
    *q = *back;
    buf_fini(&b);
}

static void answer_as_bytes(struct sim *m, struct wire_answer *a) {
    struct buf b;
    struct err e;
    struct wire_answer *back = sim_alloc(m, sizeof *back);
    buf_init(&b, WIRE_BODY_MAX);
    wire_answer_encode(a, &b);
    if (wire_answer_decode(a->kind, b.data, b.bytes_count, back, &e) != BRG_OK)
        sim_fail(m, "an answer cannot be read back: %s", e.text);
    *a = *back;
    buf_fini(&b);
}

static int copies(struct sim *m) {
    return sim_chance(m, m->w.f.twice) ? 2 : 1;
}

void net_request(struct sim *m, struct sim_proc *p, const struct wire_request *q, uint64_t id,
                 bool beat) {
    for (int n = copies(m); n > 0; n--) {
        if (m->now < m->cut_up[p->site] || sim_chance(m, m->w.f.lose)) continue;
        struct sim_msg *x = sim_msg_new(m);
        if (x == NULL) return;
        x->id = id;
        x->life = p->life;
        x->proc = p->index;
        x->beat = beat;
        x->is_answer = false;
        x->u.q = *q;
        if (m->w.real_bytes) request_as_bytes(m, &x->u.q);
        /* The first copy may come last, long after what was sent behind it. */
        time_ns late = n > 1 && sim_draw(m, 0.5) ? sim_seconds(3 * sim_unit(m)) : 0;
        sim_post(m, EV_TO_HUB, m->now + late + net_delay(m), p->index, 0)->msg =
            (uint16_t)(x - m->msg);
    }
}

void net_answer(struct sim *m, const struct sim_waiter *w) {
    uint32_t site = m->proc[w->proc].site;
    for (int n = copies(m); n > 0; n--) {
        if (m->now < m->cut_down[site] || sim_chance(m, m->w.f.lose)) continue;
        struct sim_msg *x = sim_msg_new(m);
        if (x == NULL) return;
        x->id = w->id;
        x->life = w->life;
        x->proc = w->proc;
        x->beat = w->beat;
        x->is_answer = true;
        x->u.a = w->answer;
        if (m->w.real_bytes) answer_as_bytes(m, &x->u.a);
        sim_post(m, EV_TO_SITE, m->now + net_delay(m), w->proc, w->life)->msg =
            (uint16_t)(x - m->msg);
    }
}
