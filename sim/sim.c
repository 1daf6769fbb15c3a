/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c - one seed from its beginning to its end. See sim.h. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

/* A CHECK in production code aborts; for the simulator that is one more way to see a violation. */
static struct sim *running;

void sim_fail(struct sim *m, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(m->why, sizeof m->why, fmt, args);
    va_end(args);
    SAY(m, "VIOLATION: %s", m->why);
    longjmp(m->stop, 1);
}

void sim_say(struct sim *m, const char *fmt, ...) {
    char line[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    for (char *p = line; *p; p++)
        if (*p == '\n') *p = p[1] == '\0' ? '\0' : '|';
    printf("%10.4f %s\n", (double)m->now / NS_PER_S, line);
}

void sim_mix(struct sim *m, uint64_t x) {
    m->hash = (mix64(m->hash ^ x) + x) * 0x9e3779b97f4a7c15u;
}

static void on_abort(int signal_number) {
    struct sim *m = running;
    if (m == NULL) return;
    snprintf(m->why, sizeof m->why, "%s",
             signal_number == SIGABRT ? "a CHECK failed; its line is above"
                                      : "a wild access of memory");
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal_number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    longjmp(m->stop, 1);
}

uint32_t sim_site_of(const char *name) {
    uint64_t n;
    return parse_u64(name + 1, &n) && n < SIM_SITES ? (uint32_t)n : 0;
}

struct sim *sim_create(void) {
    struct sim *m = mem_alloc(1, sizeof *m);
    m->arena_cap = (size_t)SIM_ARENA_MB << 20;
    m->arena = mem_alloc(m->arena_cap, 1);
    struct sigaction a = {.sa_handler = on_abort};
    sigaction(SIGABRT, &a, NULL);
    sigaction(SIGSEGV, &a, NULL);
    return m;
}

static void buffers_free(struct sim *m) {
    for (uint32_t i = 0; i < SIM_HUBS; i++) {
        struct sim_hub *s = &m->hub[i];
        if (s->h != NULL) hub_destroy(s->h);
        buf_fini(&s->queue);
        buf_fini(&s->batch);
        buf_fini(&s->snapshot);
        hub_out_fini(&s->out);
    }
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        struct sim_proc *p = &m->proc[i];
        site_out_fini(&p->out);
        buf_fini(&p->pending.core);
        for (int k = 0; k < SIM_SAVES; k++) buf_fini(&p->dir.save[k].core);
    }
    buf_fini(&m->journal.bytes);
    buf_fini(&m->journal.snapshot.data);
    buf_fini(&m->newer.bytes);
    buf_fini(&m->newer.snapshot.data);
}

void sim_destroy(struct sim *m) {
    buffers_free(m);
    mem_free(m->arena);
    mem_free(m);
    running = NULL;
}

/* What the last seed left is not looked at; big arrays stay as they are, their counts are what counts. */
static void reset(struct sim *m, uint64_t seed, bool trace) {
    m->seed = seed;
    m->trace = trace;
    m->why[0] = '\0';
    m->now = 0;
    m->order = m->lives = m->events_done = m->hash = 0;
    m->arena_used = 0;
    m->faults_on = true;
    m->folding = false;
    prng_seed(&m->prng, seed);
    sim_events_reset(m);
    for (uint32_t i = 0; i < SIM_HUBS; i++) {
        if (m->hub[i].h != NULL) hub_destroy(m->hub[i].h);
        m->hub[i].h = NULL;
        m->hub[i].alive = false;
        m->hub[i].generation = 0;
        m->hub[i].waiters_count = 0;
        m->hub[i].snapshot_ready = false;
    }
    m->hub_now = 0;
    for (uint16_t i = 0; i < SIM_PROCS; i++) {
        struct sim_proc *p = &m->proc[i];
        p->alive = p->ever = p->twin = p->foreign = false;
        p->index = i;
        p->site = i < SIM_SITES ? i : 0;
        p->life = 0;
        p->core.state = SITE_NEW;
        dir_clear(&p->dir);
    }
    memset(m->site_gone, 0, sizeof m->site_gone);
    memset(m->cut_up, 0, sizeof m->cut_up);
    memset(m->cut_down, 0, sizeof m->cut_down);
    m->full_until = m->merge_fails_until = 0;
    journal_reset(&m->journal);
    m->has_newer = m->has_backup = false;
    m->blobs_count = m->parts_count = m->deltas_count = 0;
    m->durable_merges = m->resets = m->restores = 0;
    m->awake = 0;
    model_reset(m);
}

static bool complete(struct sim *m) {
    const struct model *o = &m->model;
    if (o->epochs < m->w.epochs || o->held) return false;
    for (uint32_t e = 0; e < o->epochs; e++)
        if (!o->sealed[e]) return false;
    struct sim_hub *s = hub_at(m);
    return s != NULL && s->seq_queued == s->seq_durable;
}

static void stuck(struct sim *m) {
    const struct model *o = &m->model;
    uint32_t n[EXTENT_STATES] = {0}, e = 0;
    for (uint32_t at = 0; at < o->epochs * m->w.positions; at++) n[o->state[at]]++;
    while (e < o->epochs && o->sealed[e]) e++;
    sim_fail(m,
             "L1: %.0f s after the faults stopped epoch %u is not sealed: available %u leased %u "
             "staged %u merged %u skipped %u quarantined %u, held %d",
             (double)(m->now - m->w.faults_end) / NS_PER_S, e, n[0], n[1], n[2], n[3], n[4], n[5],
             o->held);
}

static void seed_run(struct sim *m) {
    struct sim_event e;
    time_ns end = TIME_NS_NEVER;
    world_draw(m);
    world_begin(m);
    while (sim_pop(m, &e)) {
        m->now = e.at;
        if (m->now > end && complete(m)) break;
        if (m->now > m->w.limit) stuck(m);
        if (++m->events_done > SIM_EVENTS_A_SEED) sim_fail(m, "the seed does not come to an end");
        sim_mix(m, (uint64_t)e.kind << 40 | (uint64_t)e.proc << 32 | (uint32_t)e.at);
        bool message = e.kind == EV_TO_HUB || e.kind == EV_TO_SITE;
        sim_dispatch(m, &e);
        if (message && e.kind != EV_NONE) sim_msg_free(m, &m->msg[e.msg]);
        if (end == TIME_NS_NEVER && complete(m))
            end = m->now + (prng_below(&m->prng, 4) == 0 ? sim_seconds(8) : 0);
        if (end != TIME_NS_NEVER && m->now >= end && complete(m)) break;
    }
    if (!complete(m)) stuck(m);
    model_compare(m, hub_at(m)->h);
    model_final(m);
    answers_final(m);
}

bool sim_run(struct sim *m, uint64_t seed, bool trace) {
    running = m;
    reset(m, seed, trace);
    bool good = setjmp(m->stop) == 0;
    if (good) {
        seed_run(m);
        return true;
    }
    for (uint32_t i = 0; i < SIM_HUBS; i++) m->hub[i].h = NULL; /* who knows what state it is in */
    return false;
}
