/* SPDX-License-Identifier: Apache-2.0 */
/* The machine under a small simulated world: sites that crash, come back from old checkpoints, run
 * twice, leave; messages that are lost, doubled and late; a hub that dies before or after its
 * records are durable; an operator who discards and rolls back. A seed chooses everything.
 *
 * The oracle is a counting model: training position p adds 1 to parameter p, a delta is a vector of
 * counts, a merge adds. At every step the head's model must be 1 where the ledger says MERGED and 0
 * elsewhere; at the end every position is 1 or skipped. First safety under faults; then faults
 * stop and the run must complete. */
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"
#include "machine_kit.h"

enum {
    SITES = 3,
    POS = 96,
    EPOCHS = 2,
    PROCS = 160,
    DIDS = 2000,
    VERSIONS = 1000,
    EVENTS = 4096,
    FAULTS_END = 1500,
    TIME_END = 40000,
    SEGMENT = 12,
};

struct held {
    struct wire_lease l;
    uint64_t done;
};
struct proc { /* one process of a site; copied whole as its local checkpoint */
    uint32_t site, boot;
    bool alive, joined, pending, leaving;
    uint32_t inc;
    uint64_t req, hb_seq, base, head;
    struct held held[WIRE_LEASES_MAX];
    uint32_t held_count;
    struct wire_request commit; /* while pending */
    bool waiting;               /* for the answer to `sent` */
    struct wire_request sent;
    time_ns sent_at, beat_at;
};
struct counts {
    uint8_t c[EPOCHS][POS];
};
enum event_kind { EV_WAKE, EV_TO_HUB, EV_TO_SITE, EV_TICK, EV_MERGED, EV_WORLD };
struct event {
    time_ns at;
    uint64_t order;
    enum event_kind kind;
    uint32_t proc, generation;
    uint64_t plan;
    union {
        struct wire_request *q;
        struct wire_answer *a;
    } u;
};
struct world {
    struct kit k;
    struct prng g;
    uint64_t order;
    uint32_t events, procs, dids, generation;
    struct event heap[EVENTS];
    struct proc proc[PROCS];
    struct proc saved[SITES + 1];
    bool has_saved[SITES + 1];
    struct counts delta[DIDS], model[VERSIONS];
    bool acked[DIDS];
    bool merging;
    uint64_t plan, plan_parent, plan_version;
    uint32_t plan_did[64], plan_count;
    time_ns down_until, start;
    double p_lose, p_double, p_crash, p_hub;
    uint32_t gone; /* a site that is never heard of again once the faults stop; 0: none */
    uint64_t crashes, hub_crashes, rejected, rollbacks, doubled, restores, zombies; /* marks */
};

static bool chance(struct world *w, double p) {
    return prng_unit(&w->g) < p;
}

static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)prng_below(&w->g, n);
}

static bool faults(const struct world *w) {
    return w->k.now < w->start + (time_ns)FAULTS_END * NS_PER_S;
}

/* ---- Events: a heap by (time, order)
 * -------------------------------------------------------------- */

static bool earlier(const struct event *a, const struct event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void event_add(struct world *w, struct event e, double seconds) {
    e.at = w->k.now + (time_ns)(seconds * NS_PER_S);
    e.order = w->order++;
    assert_true(w->events < EVENTS);
    uint32_t i = w->events++;
    while (i > 0 && earlier(&e, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = e;
}

static struct event event_take(struct world *w) {
    struct event top = w->heap[0], last = w->heap[--w->events];
    uint32_t i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= w->events) break;
        if (c + 1 < w->events && earlier(&w->heap[c + 1], &w->heap[c])) c++;
        if (!earlier(&w->heap[c], &last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

static double delay(struct world *w) {
    if (faults(w) && chance(w, 0.05)) return 1 + prng_unit(&w->g) * 300; /* very late */
    return 0.01 + prng_unit(&w->g) * 0.5;
}

/* ---- Sites
 * ---------------------------------------------------------------------------------------- */

static const char *const site_names[SITES + 1] = {"", "alpha", "beta", "gamma"};

static void proc_send(struct world *w, struct proc *p, const struct wire_request *q) {
    uint32_t copies = 1;
    if (faults(w) && chance(w, w->p_lose)) copies = 0;
    if (faults(w) && chance(w, w->p_double)) copies++, w->doubled++;
    for (uint32_t i = 0; i < copies; i++) {
        struct event e = {.kind = EV_TO_HUB, .proc = (uint32_t)(p - w->proc)};
        e.u.q = mem_alloc(1, sizeof *e.u.q);
        *e.u.q = *q;
        event_add(w, e, delay(w));
    }
}

static void proc_ask(struct world *w, struct proc *p, const struct wire_request *q) {
    p->sent = *q;
    p->waiting = true;
    p->sent_at = w->k.now;
    proc_send(w, p, q);
}

static struct proc *proc_start(struct world *w, uint32_t site) {
    if (w->procs >= (faults(w) ? PROCS - 16 : PROCS)) return NULL; /* some for the quiet time */
    uint32_t n = w->procs++;
    struct proc *p = &w->proc[n];
    memset(p, 0, sizeof *p);
    if (w->has_saved[site] && chance(w, 0.7)) {
        *p = w->saved[site]; /* as old as that checkpoint is */
        w->restores++;
    }
    p->site = site;
    p->boot = n + 1;
    p->alive = true;
    p->joined = p->waiting = p->leaving = false;
    p->inc = 0;
    p->req = p->hb_seq = 0;
    event_add(w, (struct event){.kind = EV_WAKE, .proc = n}, 0.1);
    return p;
}

static struct proc *site_alive(struct world *w, uint32_t site) {
    for (uint32_t i = w->procs; i > 0; i--)
        if (w->proc[i - 1].alive && w->proc[i - 1].site == site) return &w->proc[i - 1];
    return NULL;
}

static void held_drop(struct proc *p, uint64_t tok) {
    for (uint32_t i = 0; i < p->held_count; i++)
        if (p->held[i].l.tok == tok) p->held[i--] = p->held[--p->held_count];
}

/* Parameters go back to the base: what was trained since is in no delta. */
static void proc_back_to_base(struct proc *p) {
    for (uint32_t i = 0; i < p->held_count; i++) p->held[i].done = 0;
    p->base = p->head;
}

static uint64_t position_at(const struct wire_lease *l, uint64_t i) {
    for (uint32_t r = 0; r < l->ranges_count; r++) {
        if (i < l->ranges[r].count) return l->ranges[r].start + i;
        i -= l->ranges[r].count;
    }
    assert_true(false);
    return 0;
}

static void proc_cut(struct world *w, struct proc *p) {
    assert_true(w->dids < DIDS);
    uint32_t n = w->dids++;
    struct wire_request *q = &p->commit;
    *q = kit_request(&w->k, WIRE_COMMIT, site_names[p->site], p->inc);
    struct wire_commit *c = &q->u.commit;
    put_le32(c->did.v, n + 1);
    c->base = p->base;
    c->steps = 5;
    c->loss = 2;
    c->codec = CODEC_FP32;
    c->elements = w->k.s.parameters;
    c->bytes = DELTA_HEADER_BYTES + codec_bytes(CODEC_FP32, c->elements);
    put_le32(c->blob.v, n + 1);
    c->keep_rest = chance(w, 0.6);
    memset(&w->delta[n], 0, sizeof w->delta[n]);
    for (uint32_t i = 0; i < p->held_count; i++) {
        const struct held *h = &p->held[i];
        if (h->done == 0) continue;
        kit_part_add(q, &h->l, h->done);
        for (uint64_t k = 0; k < h->done; k++) {
            uint64_t pos = position_at(&h->l, k);
            if (c->skips_count < 4 && chance(w, 0.02)) {
                c->skips[c->skips_count].position = (uint64_t)h->l.epoch * POS + pos;
                memcpy(c->skips[c->skips_count++].reason, "nan", 4);
                c->tokens -= KIT_SEQ_LEN;
                continue;
            }
            w->delta[n].c[h->l.epoch][pos]++;
        }
    }
    if (c->tokens == 0) c->bytes = 0, memset(&c->blob, 0, sizeof c->blob);
    p->pending = true;
}

static void proc_join(struct world *w, struct proc *p) {
    struct wire_request q = kit_join_request(&w->k, site_names[p->site], 0);
    put_le32(q.u.join.boot.v, p->boot);
    q.req = ++p->req;
    q.u.join.version_seen = p->head;
    q.u.join.resume_count = p->held_count;
    for (uint32_t i = 0; i < p->held_count; i++)
        q.u.join.resume[i] =
            (struct wire_part){p->held[i].l.tok, p->held[i].l.nonce, p->held[i].done};
    proc_ask(w, p, &q);
}

static void proc_beat(struct world *w, struct proc *p) {
    p->beat_at = w->k.now;
    struct wire_request q = kit_request(&w->k, WIRE_HEARTBEAT, site_names[p->site], p->inc);
    struct wire_heartbeat *b = &q.u.heartbeat;
    b->hb_seq = ++p->hb_seq;
    b->base = p->base;
    b->phase = p->leaving ? PHASE_DRAINING : p->held_count ? PHASE_TRAINING : PHASE_WAITING;
    b->steps_per_s = 1 + p->site;
    b->tokens_per_s = 10;
    b->leases_count = p->held_count;
    for (uint32_t i = 0; i < p->held_count; i++)
        b->leases[i] = (struct wire_progress){p->held[i].l.tok, p->held[i].done, p->held[i].done};
    proc_send(w, p, &q);
}

static void proc_work(struct world *w, struct proc *p) {
    uint64_t content = 0;
    struct held *open = NULL;
    for (uint32_t i = 0; i < p->held_count; i++) {
        content += p->held[i].done;
        if (p->held[i].done < p->held[i].l.count && !open) open = &p->held[i];
    }
    if (content == 0) p->base = p->head; /* loads the newest version */
    if (content >= SEGMENT || (content > 0 && (!open || p->leaving))) {
        proc_cut(w, p);
        return;
    }
    if (p->leaving) {
        struct wire_request q = kit_request(&w->k, WIRE_LEAVE, site_names[p->site], p->inc);
        q.req = ++p->req;
        proc_ask(w, p, &q);
        return;
    }
    if (open) {
        uint64_t step = 1 + below(w, 3), left = open->l.count - open->done;
        open->done += step < left ? step : left;
        if (chance(w, 0.3)) w->saved[p->site] = *p, w->has_saved[p->site] = true;
    }
    if (!open || (p->held_count < 3 && chance(w, 0.05))) {
        struct wire_request q = kit_request(&w->k, WIRE_LEASE, site_names[p->site], p->inc);
        q.req = ++p->req;
        q.u.lease.want = 4 + below(w, 12);
        q.u.lease.base = p->base;
        proc_ask(w, p, &q);
    }
}

static void proc_wake(struct world *w, uint32_t n) {
    struct proc *p = &w->proc[n];
    if (!p->alive) return;
    if (faults(w) && chance(w, w->p_crash)) {
        p->alive = false;
        w->crashes++;
        return;
    }
    if (p->joined && w->k.now - p->beat_at > (time_ns)KIT_HEARTBEAT * NS_PER_S) proc_beat(w, p);
    if (p->waiting) {
        if (w->k.now - p->sent_at > 5LL * NS_PER_S) proc_ask(w, p, &p->sent); /* the same again */
    } else if (!p->joined) {
        proc_join(w, p);
    } else if (p->pending) {
        p->commit.inc = p->inc;
        p->commit.req = ++p->req;
        proc_ask(w, p, &p->commit);
    } else {
        proc_work(w, p);
    }
    event_add(w, (struct event){.kind = EV_WAKE, .proc = n}, 0.5 + prng_unit(&w->g));
}

/* ---- Answers at the site
 * -------------------------------------------------------------------------- */

static void answer_join(struct proc *p, const struct wire_join_answer *a) {
    p->joined = true;
    p->inc = a->inc;
    p->head = a->round.head;
    bool lost = false;
    for (uint32_t i = 0; i < a->leases_count; i++) {
        if (a->leases[i].verdict != LEASE_GONE) continue;
        bool in_pending = false;
        for (uint32_t k = 0; p->pending && k < p->commit.u.commit.parts_count; k++)
            in_pending |= p->commit.u.commit.parts[k].tok == a->leases[i].tok;
        if (in_pending) continue; /* the outcome of that contribution decides */
        held_drop(p, a->leases[i].tok);
        lost = true;
    }
    if (lost && !p->pending) proc_back_to_base(p);
}

static void answer_beat(struct world *w, struct proc *p, const struct wire_heartbeat_answer *a) {
    p->head = a->round.head;
    if (p->pending || p->waiting) return;
    for (uint32_t i = 0; i < a->leases_count; i++) {
        if (a->leases[i].verdict == LEASE_GONE) {
            bool used = false;
            for (uint32_t k = 0; k < p->held_count; k++)
                used |= p->held[k].l.tok == a->leases[i].tok && p->held[k].done > 0;
            held_drop(p, a->leases[i].tok);
            if (used) proc_back_to_base(p);
        }
        if (a->leases[i].verdict != LEASE_WISH || p->waiting) continue;
        for (uint32_t k = 0; k < p->held_count; k++) {
            struct held *h = &p->held[k];
            uint64_t keep = a->leases[i].keep;
            if (h->l.tok != a->leases[i].tok || keep < h->done || keep == 0 || keep >= h->l.count)
                continue;
            uint64_t left = keep; /* cut in memory first, then say so */
            h->l.count = keep;
            for (uint32_t r = 0; r < h->l.ranges_count; r++) {
                if (h->l.ranges[r].count > left) h->l.ranges[r].count = left;
                left -= h->l.ranges[r].count;
            }
            struct wire_request q = kit_request(&w->k, WIRE_SHRINK_OK, site_names[p->site], p->inc);
            q.req = ++p->req;
            q.u.shrink_ok = (struct wire_shrink_ok){h->l.tok, h->l.nonce, keep};
            proc_ask(w, p, &q);
        }
    }
}

static void answer_commit(struct world *w, struct proc *p, const struct wire_commit_answer *a) {
    const struct wire_commit *c = &p->commit.u.commit;
    uint32_t n = get_le32(c->did.v) - 1;
    p->head = a->round.head;
    if (a->outcome == OUTCOME_STAGED || a->outcome == OUTCOME_MERGED) w->acked[n] = true;
    if (a->outcome == OUTCOME_REJECTED) w->rejected++;
    assert_true(a->outcome != OUTCOME_UNKNOWN);
    for (uint32_t i = 0; i < c->parts_count; i++) held_drop(p, c->parts[i].tok);
    if (a->has_rest && p->held_count < WIRE_LEASES_MAX)
        p->held[p->held_count++] = (struct held){.l = a->rest};
    p->pending = false;
    proc_back_to_base(p);
}

static void proc_answer(struct world *w, uint32_t n, const struct wire_answer *a) {
    struct proc *p = &w->proc[n];
    if (!p->alive) return;
    if (a->kind == WIRE_HEARTBEAT) {
        if (a->code == WIRE_OK && p->joined) answer_beat(w, p, &a->u.heartbeat);
    } else {
        if (!p->waiting || a->req != p->sent.req || a->kind != p->sent.kind)
            return; /* late, or again */
        p->waiting = false;
    }
    assert_true(a->code != WIRE_KEY_REUSED);
    assert_true(a->code != WIRE_MISMATCH);
    assert_true(a->code != WIRE_HUB_BEHIND);
    if (a->code == WIRE_FENCED) {
        p->alive = false;
        w->zombies++;
    } else if (a->code == WIRE_UNKNOWN_SITE) {
        p->joined = false;
    } else if (a->code == WIRE_COMPLETE) {
        p->head = a->u.lease.round.head;
    } else if (a->code == WIRE_OK) {
        if (a->kind == WIRE_JOIN) answer_join(p, &a->u.join);
        if (a->kind == WIRE_COMMIT) answer_commit(w, p, &a->u.commit);
        if (a->kind == WIRE_LEAVE) p->alive = false;
        if (a->kind == WIRE_LEASE) p->head = a->u.lease.round.head;
        if (a->kind == WIRE_LEASE && a->u.lease.granted && p->held_count < WIRE_LEASES_MAX) {
            held_drop(p, a->u.lease.lease.tok);
            p->held[p->held_count++] = (struct held){.l = a->u.lease.lease};
        }
    }
}

/* ---- The hub
 * -------------------------------------------------------------------------------------- */

struct seen {
    const struct counts *model;
    uint32_t epoch;
    uint64_t skipped;
};

static void extent_seen(void *user, enum extent_state state, struct lease_span span,
                        uint64_t version, uint32_t crashes) {
    struct seen *s = user;
    (void)version;
    (void)crashes;
    for (uint64_t p = span.start; p < span.start + span.count; p++)
        assert_int_equal(s->model->c[s->epoch][p], state == EXTENT_MERGED ? 1 : 0);
}

static void model_check(struct world *w) {
    const struct hub *h = w->k.h;
    struct seen s = {.model = &w->model[h->versions[h->head].v.version]};
    for (s.epoch = 0; s.epoch < ledger_epochs(h->ledger); s.epoch++)
        ledger_walk(h->ledger, s.epoch, extent_seen, &s);
}

static void plan_note(struct world *w) {
    const struct hub_plan *m = w->k.out.merge;
    if (!m) return;
    assert_false(w->merging);
    w->merging = true;
    w->plan = m->id;
    w->plan_parent = m->parent;
    w->plan_version = m->version;
    w->plan_count = m->parts_count;
    assert_true(m->version < VERSIONS);
    for (uint32_t i = 0; i < m->parts_count; i++) w->plan_did[i] = get_le32(m->parts[i].did.v) - 1;
    w->k.has_plan = false; /* reported below, not by the kit */
    event_add(w, (struct event){.kind = EV_MERGED, .plan = m->id, .generation = w->generation},
              0.1 + prng_unit(&w->g) * 20);
}

static void hub_die(struct world *w) {
    w->hub_crashes++;
    w->generation++;
    w->merging = false;
    hub_destroy(w->k.h);
    w->k.h = kit_replay(&w->k, UINT64_MAX);
    w->k.has_plan = false;
    if (chance(w, 0.3)) w->down_until = w->k.now + (time_ns)below(w, 300) * NS_PER_S;
    struct hub_cmd c = {.kind = HUB_CMD_START};
    kit_step(&w->k, &c);
    plan_note(w);
}

/* One command; false: the hub died in it and nobody gets an answer. */
static bool hub_do(struct world *w, const struct hub_cmd *c) {
    size_t bytes = w->k.journal.bytes_count;
    uint64_t seq = w->k.seq;
    kit_step(&w->k, c);
    if (faults(w) && chance(w, w->p_hub)) {
        if (chance(w, 0.5)) { /* before its records were durable */
            w->k.journal.bytes_count = bytes;
            w->k.seq = seq;
        }
        hub_die(w);
        model_check(w);
        return false;
    }
    plan_note(w);
    if (w->k.out.records_count > 0) model_check(w);
    return true;
}

static void at_hub(struct world *w, uint32_t proc, const struct wire_request *q) {
    if (w->k.now < w->down_until) return;
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .request = q, .blob = kit_blob()};
    if (q->kind == WIRE_COMMIT && chance(w, 0.1)) c.blob.complete = false;
    if (!hub_do(w, &c) || (faults(w) && chance(w, w->p_lose))) return;
    struct event e = {.kind = EV_TO_SITE, .proc = proc};
    e.u.a = mem_alloc(1, sizeof *e.u.a);
    *e.u.a = w->k.out.answer;
    event_add(w, e, delay(w));
}

static void merge_ends(struct world *w, const struct event *e) {
    if (e->generation != w->generation) return; /* that process is dead */
    w->merging = false;
    struct hub_cmd c = {.kind = HUB_CMD_MERGED};
    c.u.merged.plan = e->plan;
    if (faults(w) && chance(w, 0.1)) {
        c.kind = HUB_CMD_MERGE_FAILED;
        c.u.merge_failed.plan = e->plan;
        c.u.merge_failed.bad_part = (int32_t)below(w, w->plan_count + 1) - 1;
    }
    struct counts *to = &w->model[w->plan_version];
    *to = w->model[w->plan_parent];
    for (uint32_t i = 0; i < w->plan_count; i++)
        for (uint32_t k = 0; k < EPOCHS; k++)
            for (uint32_t p = 0; p < POS; p++) to->c[k][p] += w->delta[w->plan_did[i]].c[k][p];
    hub_do(w, &c);
}

static void quarantine_decide(struct world *w) {
    const struct hub *h = w->k.h;
    for (uint32_t e = 0; e < ledger_epochs(h->ledger); e++) {
        for (uint32_t p = 0; p < POS; p++) {
            if (!ledger_all(h->ledger, e, (struct lease_span){p, 1}, EXTENT_QUARANTINED)) continue;
            struct hub_cmd c = {.kind = HUB_CMD_QUARANTINE};
            c.u.quarantine.epoch = e;
            c.u.quarantine.range = (struct range){p, 1};
            c.u.quarantine.skip = chance(w, 0.1);
            if (!hub_do(w, &c)) return;
        }
    }
}

/* Processes are started (sometimes beside one that runs already), told to leave; the operator
 * acts. */
static void world_turn(struct world *w) {
    for (uint32_t s = 1; s <= SITES; s++) {
        struct proc *p = site_alive(w, s);
        if (s == w->gone && !faults(w)) {
            if (p) p->alive = false;
            continue;
        }
        if (!p && (chance(w, 0.3) || !faults(w))) proc_start(w, s);
        if (!faults(w)) continue;
        if (p && chance(w, 0.01) && w->procs < PROCS - SITES) proc_start(w, s); /* a twin */
        if (p && chance(w, 0.01)) p->leaving = true;
    }
    if (chance(w, 0.2)) quarantine_decide(w);
    if (faults(w) && chance(w, 0.01)) {
        struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK};
        c.u.rollback.version = below(w, (uint32_t)kit_view(&w->k).head + 1);
        hub_do(w, &c);
        w->rollbacks++;
    }
    const struct delta *d = ledger_staged_first(w->k.h->ledger);
    if (faults(w) && d && chance(w, 0.01)) {
        struct hub_cmd c = {.kind = HUB_CMD_DISCARD};
        c.u.discard.did = d->did;
        hub_do(w, &c);
    }
    event_add(w, (struct event){.kind = EV_WORLD}, 10);
}

static void world_step(struct world *w) {
    struct event e = event_take(w);
    w->k.now = e.at;
    struct hub_cmd tick = {.kind = HUB_CMD_TICK};
    switch (e.kind) {
    case EV_WAKE: proc_wake(w, e.proc); break;
    case EV_TO_HUB:
        at_hub(w, e.proc, e.u.q);
        mem_free(e.u.q);
        break;
    case EV_TO_SITE:
        proc_answer(w, e.proc, e.u.a);
        mem_free(e.u.a);
        break;
    case EV_TICK:
        if (w->k.now >= w->down_until && hub_expiry(w->k.h) <= w->k.now) hub_do(w, &tick);
        event_add(w, (struct event){.kind = EV_TICK}, 5);
        break;
    case EV_MERGED: merge_ends(w, &e); break;
    case EV_WORLD: world_turn(w); break;
    }
}

static void world_end(struct world *w) {
    struct hub_view v = kit_view(&w->k);
    if (!v.complete)
        printf("head=%llu available=%llu leased=%llu staged=%llu merged=%llu quarantined=%llu\n",
               (unsigned long long)v.head, (unsigned long long)v.counts.available,
               (unsigned long long)v.counts.leased, (unsigned long long)v.counts.staged,
               (unsigned long long)v.counts.merged, (unsigned long long)v.counts.quarantined);
    assert_true(v.complete); /* L1 */
    assert_int_equal(v.counts.merged + v.counts.skipped, EPOCHS * POS);
    for (uint32_t i = 0; i < w->dids; i++) { /* I10: what was acknowledged is known */
        if (!w->acked[i]) continue;
        struct id128 id = {{0}};
        put_le32(id.v, i + 1);
        const struct delta *d = ledger_delta_find(w->k.h->ledger, &id);
        assert_non_null(d);
        assert_true(d->state == DELTA_MERGED || d->state == DELTA_DISCARDED);
    }
    while (w->events > 0) {
        struct event e = event_take(w);
        if (e.kind == EV_TO_HUB || e.kind == EV_TO_SITE) mem_free(e.u.q);
    }
    kit_close(&w->k);
}

struct marks {
    uint64_t crashes, hub_crashes, rejected, rollbacks, doubled, restores, zombies, records;
};

static void run_seed(uint64_t seed, struct marks *m) {
    struct world *w = mem_alloc(1, sizeof *w);
    struct hub_settings s = kit_settings(POS, EPOCHS);
    prng_seed(&w->g, seed);
    s.quorum = 1 + below(w, 2);
    s.staleness_max = below(w, 3);
    s.cadence = below(w, 2);
    s.lease_samples_max = 4 + below(w, 30);
    s.crashes_max = chance(w, 0.3) ? 3 : 0;
    kit_open(&w->k, &s);
    w->start = w->k.now;
    /* Each seed has its own mixture: some kinds of fault off, the others at their own rate. */
    w->p_lose = chance(w, 0.5) ? prng_unit(&w->g) * 0.3 : 0;
    w->p_double = chance(w, 0.5) ? prng_unit(&w->g) * 0.5 : 0;
    w->p_crash = chance(w, 0.7) ? prng_unit(&w->g) * 0.02 : 0;
    w->gone = below(w, SITES + 1);
    w->p_hub = chance(w, 0.5) ? prng_unit(&w->g) * 0.02 : 0;
    event_add(w, (struct event){.kind = EV_WORLD}, 0);
    event_add(w, (struct event){.kind = EV_TICK}, 0);
    while (w->k.now < w->start + (time_ns)TIME_END * NS_PER_S &&
           !(hub_complete(w->k.h) && !faults(w)))
        world_step(w);
    m->crashes += w->crashes;
    m->hub_crashes += w->hub_crashes;
    m->rejected += w->rejected;
    m->rollbacks += w->rollbacks;
    m->doubled += w->doubled;
    m->restores += w->restores;
    m->zombies += w->zombies;
    m->records += w->k.seq;
    world_end(w);
    mem_free(w);
}

TEST_TIMEOUT(hub_L1_random_worlds_count_each_position_once, 300) {
    struct marks m = {0};
    uint64_t first = 1, count = 300;
    if (getenv("SEED")) first = strtoull(getenv("SEED"), NULL, 10), count = 1;
    if (getenv("SEEDS")) count = strtoull(getenv("SEEDS"), NULL, 10);
    for (uint64_t seed = first; seed < first + count; seed++) {
        printf("seed=%llu\n", (unsigned long long)seed);
        run_seed(seed, &m);
    }
    printf("crashes=%llu hub_crashes=%llu rejected=%llu rollbacks=%llu doubled=%llu restores=%llu "
           "zombies=%llu "
           "records=%llu\n",
           (unsigned long long)m.crashes, (unsigned long long)m.hub_crashes,
           (unsigned long long)m.rejected, (unsigned long long)m.rollbacks,
           (unsigned long long)m.doubled, (unsigned long long)m.restores,
           (unsigned long long)m.zombies, (unsigned long long)m.records);
    if (count < 300) return;
    /* The world is as hostile as it claims. */
    assert_true(m.crashes > 300);
    assert_true(m.hub_crashes > 300);
    assert_true(m.rejected > 300);
    assert_true(m.rollbacks > 100);
    assert_true(m.doubled > 300);
    assert_true(m.restores > 100);
    assert_true(m.zombies > 30);
}
