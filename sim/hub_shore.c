/* SPDX-License-Identifier: Apache-2.0 */
/* hub_shore.c - the hub's shore, simulated: the order of duties of src/hub/server_os.c (step, queue,
 * one durable transaction for all that waits, then the answers), src/hub/rundir_os.c (rebuild) and
 * src/hub/uploads_os.c (what is looked at before a COMMIT reaches the machine).
 *
 * A crash may come at every yield: before a transaction, in it (its records durable or not), after it
 * and before the answer, between a blob and its record. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

struct sim_hub *hub_at(struct sim *m) {
    struct sim_hub *s = &m->hub[m->hub_now];
    return s->alive ? s : NULL;
}

/* ---- The machine from its journal: rundir_os.c, hub_rebuild ---------------------------------------- */

struct hub *hub_replayed(struct sim *m, bool with_snapshot) {
    struct sim_journal *j = &m->journal;
    struct hub *h = hub_create(&m->settings, prng_u64(&m->prng));
    uint64_t from = 0;
    struct err e;
    if (with_snapshot && j->snapshot.seq > 0) {
        enum brg_status st = BRG_E_JOURNAL;
        if (!j->snapshot.damaged) /* its sum is looked at before it is believed */
            st = hub_restore(h, j->snapshot.seq, j->snapshot.data.data,
                             j->snapshot.data.bytes_count, &e);
        if (st == BRG_OK) {
            from = j->snapshot.seq;
            MARK(m, SNAPSHOT_RESTORE);
        } else {
            if (!j->snapshot.damaged)
                sim_fail(m, "a sound snapshot cannot be restored: %s", e.text);
            MARK(m, SNAPSHOT_DAMAGED);
            hub_destroy(h);
            h = hub_create(&m->settings, prng_u64(&m->prng));
        }
    }
    for (uint64_t seq = from + 1; seq <= j->last_seq; seq++) {
        const uint8_t *p = j->bytes.data + j->offset[seq - 1];
        uint16_t kind = (uint16_t)(p[0] | p[1] << 8);
        if (hub_apply(h, seq, kind, p + 6, get_le32(p + 2), &e) != BRG_OK)
            sim_fail(m, "replay: %s", e.text);
    }
    return h;
}

static void digest_compare(struct sim *m, const struct hub *h) {
    struct hub *copy = hub_replayed(m, false);
    struct hash a = hub_digest(h), b = hub_digest(copy);
    hub_destroy(copy);
    if (!hash_equal(&a, &b)) sim_fail(m, "H6: a replay from record 1 gives another state");
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void bufs_init(struct sim_hub *s) {
    if (s->queue.bytes_max > 0) return;
    buf_init(&s->queue, 64 << 20);
    buf_init(&s->batch, 64 << 20);
    buf_init(&s->snapshot, 64 << 20);
    hub_out_init(&s->out);
}

static void plans_drop(struct sim_hub *s) {
    for (size_t i = 0; i < ARRAY_COUNT(s->plans); i++) s->plans[i].busy = false;
}

void hub_die(struct sim *m, struct sim_hub *s, const char *why) {
    if (!s->alive) return;
    SAY(m, "hub %u dies: %s", s->index, why);
    for (size_t i = 0; i < ARRAY_COUNT(s->plans); i++)
        if (s->plans[i].busy && s->plans[i].generation == s->generation) MARK(m, MERGE_AGAIN);
    hub_destroy(s->h);
    s->h = NULL;
    s->alive = s->owner = s->appending = s->full = false;
    s->life = ++m->lives;
    s->waiters_count = 0;
    plans_drop(s);
}

void hub_die_and_restart(struct sim *m, struct sim_hub *s, const char *why) {
    bool was_owner = s->owner;
    hub_die(m, s, why);
    MARK(m, HUB_CRASH);
    if (!was_owner) return;
    double away = sim_chance(m, 0.1) ? 90 : 8;
    sim_post(m, EV_HUB_START, m->now + sim_seconds(sim_unit(m) * away), s->index, 0);
}

bool hub_crash_here(struct sim *m, struct sim_hub *s, const char *where) {
    if (!sim_chance(m, m->w.f.hub_crash)) return false;
    hub_die_and_restart(m, s, where);
    return true;
}

/* The head's bytes are what sites will be given; a damaged file is put back by a person. */
static bool head_verified(struct sim *m, struct sim_hub *s) {
    const struct hub_version_view *v = &s->h->versions[s->h->head].v;
    struct sim_blob *b = blob_find(m, &v->checkpoint);
    if (b == NULL || !b->present)
        sim_fail(m, "I11: the checkpoint of version %llu, the head, is missing",
                 (unsigned long long)v->version);
    if (!b->damaged) return true;
    MARK(m, CHECKPOINT_DAMAGED);
    b->damaged = false;
    return false;
}

static void start_command(struct sim *m, struct sim_hub *s) {
    struct hub_cmd start = {.kind = HUB_CMD_START};
    s->stepped = clock_local(&s->clock, m->now); /* the machine is a new one */
    (void)hub_do(m, s, &start, NULL);
}

void hub_start(struct sim *m, uint32_t index) {
    struct sim_hub *s = &m->hub[index];
    if (s->alive) return;
    bufs_init(s);
    s->index = index;
    s->life = ++m->lives;
    s->alive = true;
    for (uint32_t i = 0; i < SIM_HUBS; i++) m->hub[i].owner = i == index;
    m->hub_now = index;
    m->parts_count = 0; /* blobs_sweep */
    s->generation++;
    s->h = hub_replayed(m, true);
    s->full = s->appending = s->snapshot_ready = false;
    s->frozen_until = 0;
    s->tick_at = TIME_NS_NEVER;
    s->waiters_count = 0;
    s->queue_count = s->batch_count = 0;
    buf_reset(&s->queue);
    plans_drop(s);
    s->seq_queued = s->seq_durable = m->journal.last_seq;
    double rate = m->faults_on && m->w.f.skew > 0 ? 0.2 + 3.8 * sim_unit(m) * sim_unit(m) : 1;
    s->clock =
        (struct sim_clock){.t0 = m->now, .local0 = sim_seconds(1000 * sim_unit(m)), .rate = rate};
    s->stepped = s->clock.local0;
    SAY(m, "hub %u starts at record %llu", index, (unsigned long long)m->journal.last_seq);
    if (sim_draw(m, 0.2)) digest_compare(m, s->h);
    model_compare(m, s->h);
    if (!head_verified(m, s)) {
        hub_die(m, s, "its head is damaged");
        sim_post(m, EV_HUB_START, m->now + sim_seconds(5 + 20 * sim_unit(m)), index, 0);
        return;
    }
    merge_retain(m, s);
    start_command(m, s);
}

/* An event for a frozen process waits in its sockets, or comes too late for them. */
bool hub_frozen(struct sim *m, struct sim_hub *s, const struct sim_event *e) {
    if (m->now >= s->frozen_until) return false;
    if (e->kind == EV_TO_HUB && m->msg[e->msg].life % 2 == 0) return true; /* the client gave up */
    struct sim_event copy = *e;
    struct sim_event *again =
        sim_post(m, (enum sim_event_kind)e->kind, s->frozen_until, e->proc, e->life);
    copy.at = again->at;
    copy.order = again->order;
    *again = copy;
    return true;
}

/* ---- Answers -------------------------------------------------------------------------------------------- */

static void refuse(struct sim_waiter *w, enum wire_code code, uint32_t retry_ms) {
    struct wire_answer a = {.kind = w->answer.kind, .code = code, .req = w->answer.req};
    a.retry_ms = retry_ms;
    w->answer = a;
}

static void waiter_done(struct sim *m, struct sim_hub *s, struct sim_waiter *w) {
    if (w->merge) {
        merge_durable(m, s, w);
        return;
    }
    if (w->drop_unless_taken && w->answer.code != WIRE_RETRY) {
        enum outcome o = w->answer.u.commit.outcome;
        bool taken = w->answer.code == WIRE_OK && (o == OUTCOME_STAGED || o == OUTCOME_MERGED);
        if (!taken) merge_drop_unused(m, s, &w->blob);
    }
    answer_check(m, s, w);
    net_answer(m, w);
}

/* S1: whoever waits for records that are durable now is told, in order. */
static void wake(struct sim *m, struct sim_hub *s) {
    uint32_t n = 0;
    while (n < s->waiters_count &&
           (s->waiters[n].seq <= s->seq_durable || MUTANT(ANSWER_BEFORE_DURABLE)))
        n++;
    uint64_t life = s->life;
    for (uint32_t i = 0; i < n && s->life == life; i++) waiter_done(m, s, &s->waiters[i]);
    if (s->life != life) return;
    s->waiters_count -= n;
    if (n > 0) memmove(s->waiters, s->waiters + n, s->waiters_count * sizeof *s->waiters);
}

/* ---- The journal's transaction ------------------------------------------------------------------------ */

static void tick_arm(struct sim *m, struct sim_hub *s) {
    time_ns due = hub_expiry(s->h);
    if (due == TIME_NS_NEVER || s->full) return;
    time_ns local = clock_local(&s->clock, m->now);
    if (due <= local) due = local + NS_PER_MS;
    time_ns at = clock_when(&s->clock, due, m->now);
    if (s->tick_at > m->now && s->tick_at <= at) return; /* one comes sooner */
    s->tick_at = at;
    sim_post(m, EV_HUB_TICK, at, s->index, s->life);
}

static void enter_full(struct sim *m, struct sim_hub *s) {
    MARK(m, FULL);
    SAY(m, "hub %u: no space; rebuilt from record %llu", s->index,
        (unsigned long long)m->journal.last_seq);
    hub_destroy(s->h);
    s->h = hub_replayed(m, true);
    model_compare(m, s->h);
    s->generation++;
    buf_reset(&s->queue);
    s->queue_count = 0;
    s->seq_queued = s->seq_durable = m->journal.last_seq;
    s->snapshot_ready = false;
    s->full = true;
    for (uint32_t i = 0; i < s->waiters_count; i++) {
        struct sim_waiter *w = &s->waiters[i];
        if (w->merge) {
            merge_drop_unused(m, s, &w->blob);
            continue;
        }
        refuse(w, WIRE_RETRY, 1000);
        net_answer(m, w);
    }
    s->waiters_count = 0;
    sim_post(m, EV_HUB_PROBE, m->now + NS_PER_S, s->index, s->life);
}

static void snapshot_store(struct sim *m, struct sim_hub *s) {
    if (!s->snapshot_ready || s->seq_durable < s->snapshot_seq) return;
    struct sim_journal *j = &m->journal;
    buf_reset(&j->snapshot.data);
    buf_put(&j->snapshot.data, s->snapshot.data, s->snapshot.bytes_count);
    j->snapshot.seq = s->snapshot_seq;
    j->snapshot.damaged = sim_chance(m, m->w.f.damage_snapshot);
    s->snapshot_ready = false;
}

static void append_begin(struct sim *m, struct sim_hub *s) {
    if (s->appending || s->queue_count == 0) return;
    if (hub_crash_here(m, s, "before its records are durable")) {
        MARK(m, HUB_CRASH_LOST);
        return;
    }
    struct buf swap = s->batch;
    s->batch = s->queue;
    s->queue = swap;
    buf_reset(&s->queue);
    s->batch_count = s->queue_count;
    s->queue_count = 0;
    s->appending = true;
    if (m->w.f.append_s <= 0 || !m->faults_on) {
        hub_on_append(m, s, true);
        return;
    }
    double slow = sim_chance(m, 0.02) ? 100 : 1;
    sim_post(m, EV_HUB_APPEND, m->now + sim_seconds(m->w.f.append_s * sim_unit(m) * slow), s->index,
             s->life);
}

void hub_on_append(struct sim *m, struct sim_hub *s, bool good) {
    (void)good;
    s->appending = false;
    if (m->journal.last_seq !=
        s->seq_durable) { /* the numbers are taken: another hub wrote since */
        MARK(m, HUB_OLD_FAILED);
        hub_die(m, s, "the journal was written by another hub");
        if (s->index == m->hub_now) sim_post(m, EV_HUB_START, m->now + NS_PER_S, s->index, 0);
        return;
    }
    if (m->now < m->full_until) {
        enter_full(m, s);
        return;
    }
    if (sim_chance(m, m->w.f.hub_crash *
                          0.5)) { /* a failed sync ends the process: both are possible */
        MARK(m, EIO);
        if (sim_draw(m, 0.5)) journal_put(m, &s->batch, s->batch_count);
        hub_die_and_restart(m, s, "the journal failed");
        return;
    }
    journal_put(m, &s->batch, s->batch_count);
    s->seq_durable += s->batch_count;
    for (uint32_t i = 0; i < SIM_HUBS; i++) m->hub[i].owner = i == s->index;
    if (s->batch_count > 2 && s->waiters_count > 1 && s->waiters[1].seq <= s->seq_durable)
        MARK(m, GROUP_COMMIT);
    if (hub_crash_here(m, s, "its records are durable, nobody was told")) {
        MARK(m, HUB_CRASH_KEPT);
        return;
    }
    snapshot_store(m, s);
    uint64_t life = s->life;
    wake(m, s);
    if (s->life == life && s->alive) append_begin(m, s);
}

void hub_on_probe(struct sim *m, struct sim_hub *s) {
    if (!s->full) return;
    if (m->now < m->full_until) {
        sim_post(m, EV_HUB_PROBE, m->now + NS_PER_S, s->index, s->life);
        return;
    }
    MARK(m, FULL_LEFT);
    s->full = false;
    start_command(m, s);
}

/* ---- One command ------------------------------------------------------------------------------------------ */

static void take_out(struct sim *m, struct sim_hub *s) {
    struct hub_out *o = &s->out;
    if (m->trace && o->notes.bytes_count > 0) SAY(m, "hub %u: %s", s->index, buf_cstr(&o->notes));
    if (o->notes.bytes_count > 0 && strstr(buf_cstr(&o->notes), "ev=unproved"))
        sim_fail(m, "what a site has truly seen has no proof");
    if (o->notes.bytes_count > 0 && strstr(buf_cstr(&o->notes), "ev=gradient_dropped"))
        MARK(m, GRADIENT_DROPPED);
    if (o->records_count > 0) {
        if (o->answer.kind == WIRE_JOIN && strstr(buf_cstr(&o->notes), "ev=stuck")) MARK(m, STUCK);
        if (s->queue_count == 0) buf_reset(&s->queue);
        buf_put(&s->queue, o->records.data, o->records.bytes_count);
        s->queue_count += o->records_count;
        s->seq_queued += o->records_count;
        if (s->seq_queued != o->seq_after) sim_fail(m, "S2: records and their numbers part ways");
    }
    if (o->snapshot_due && !s->snapshot_ready) {
        buf_reset(&s->snapshot);
        hub_snapshot(s->h, &s->snapshot);
        s->snapshot_seq = s->seq_queued;
        s->snapshot_ready = true;
    }
    if (o->merge != NULL) merge_take(m, s, o->merge);
    tick_arm(m, s);
}

/* Less than a quarter of the TTL between two steps counts as being there. */
static void awake(struct sim *m, struct sim_hub *s) {
    time_ns local = clock_local(&s->clock, m->now), gap = local - s->stepped;
    if (gap <= 0) return;
    if (gap <= m->settings.ttl_ns / 4) m->awake += gap;
    s->stepped = local;
}

bool hub_do(struct sim *m, struct sim_hub *s, const struct hub_cmd *c, struct sim_waiter *w) {
    awake(m, s);
    hub_step(s->h, clock_local(&s->clock, m->now), c, &s->out);
    sim_mix(m, (uint64_t)c->kind << 32 | s->out.records_count << 8 | (uint64_t)s->out.answer.code);
    take_out(m, s);
    if (w != NULL) {
        if (s->waiters_count == SIM_WAITERS) sim_fail(m, "too many requests wait");
        if (!w->merge) w->answer = s->out.answer;
        w->seq = s->seq_queued;
        s->waiters[s->waiters_count++] = *w;
    }
    uint64_t life = s->life;
    snapshot_store(m, s);
    if (MUTANT(ANSWER_BEFORE_DURABLE)) wake(m, s);
    append_begin(m, s);
    if (s->life != life || !s->alive) return false;
    wake(m, s);
    return s->life == life && s->alive;
}

void hub_on_tick(struct sim *m, struct sim_hub *s) {
    if (s->full) return;
    s->tick_at = TIME_NS_NEVER;
    if (hub_expiry(s->h) > clock_local(&s->clock, m->now)) {
        tick_arm(m, s);
        return;
    }
    struct hub_cmd tick = {.kind = HUB_CMD_TICK};
    (void)hub_do(m, s, &tick, NULL);
}

bool hub_operator(struct sim *m, const struct hub_cmd *c) {
    struct sim_hub *s = hub_at(m);
    if (s == NULL || s->full || m->now < s->frozen_until) return false;
    return hub_do(m, s, c, NULL) && !(s->out.has_answer && s->out.answer.code != WIRE_OK);
}

/* ---- COMMIT: uploads_os.c --------------------------------------------------------------------------------- */

/* blob_complete: false where the hub died with the blob under its name and no record. */
static bool blob_complete(struct sim *m, struct sim_hub *s, const struct wire_commit *c,
                          struct hub_blob_verdict *v, struct sim_waiter *w) {
    struct sim_blob *b = blob_find(m, &c->blob);
    v->complete = b != NULL && b->present;
    if (v->complete) return true;
    struct sim_part *p = part_find(m, &c->did);
    v->offset = p != NULL ? p->bytes : 0;
    if (MUTANT(BLOB_NOT_SYNCED) && p != NULL && v->offset > 0) {
        v->complete = true; /* said before it is so */
        return true;
    }
    if (p == NULL || p->bytes < c->bytes) return true;
    bool bad = p->bad || b == NULL;
    part_drop(m, p);
    if (bad) {
        MARK(m, UPLOAD_FLIPPED);
        v->offset = 0;
        return true;
    }
    b->present = true;
    b->damaged = false;
    b->born = m->journal.last_seq;
    v->complete = w->drop_unless_taken = true;
    w->blob = c->blob;
    if (!hub_crash_here(m, s, "between blob and record")) return true;
    MARK(m, HUB_CRASH_BLOB);
    return false;
}

/* merge_thread_os.c, header_compare */
static void blob_inspect(struct sim *m, const struct sim_hub *s, const struct wire_commit *c,
                         struct hub_blob_verdict *v) {
    const struct sim_blob *b = blob_find(m, &c->blob);
    v->norm = v->max_abs = 1;
    if (b == NULL) return; /* only under a mutant */
    const struct delta_header *h = &b->header;
    const struct hub_version *base = hub_version_of(s->h, c->base);
    const char *wrong = NULL;
    if (!id_equal(&h->did, &c->did))
        wrong = "delta: has another did inside";
    else if (h->base_version != c->base || h->tokens != c->tokens || h->steps != c->steps)
        wrong = "delta: base, tokens or steps inside are not those of the message";
    else if ((uint32_t)h->codec != c->codec || h->elements != c->elements)
        wrong = "delta: codec or elements inside are not those of the message";
    else if (base != NULL && !hash_equal(&h->base_theta, &base->v.theta))
        wrong = "delta: was cut from other weights than its base";
    if (wrong == NULL) return;
    v->status = BRG_E_MESSAGE;
    snprintf(v->text, sizeof v->text, "%s", wrong);
}

static bool look_at_blob(struct sim *m, struct sim_hub *s, const struct wire_commit *c,
                         struct hub_blob_verdict *v, struct sim_waiter *w) {
    bool known = ledger_delta_find(s->h->ledger, &c->did) != NULL;
    if (known) MARK(m, COMMIT_AGAIN);
    if (known || c->bytes == 0) {
        v->complete = true;
        return true;
    }
    if (!blob_complete(m, s, c, v, w)) return false;
    if (v->complete) blob_inspect(m, s, c, v);
    return true;
}

void hub_on_request(struct sim *m, struct sim_hub *s, const struct sim_event *e) {
    const struct sim_msg *x = &m->msg[e->msg];
    const struct wire_request *q = &x->u.q;
    struct sim_waiter w = {.proc = x->proc, .life = x->life, .id = x->id, .beat = x->beat};
    w.answer.kind = q->kind;
    w.answer.req = q->req;
    w.inc = q->inc;
    w.site = sim_site_of(q->site);
    if (q->kind == WIRE_COMMIT) w.did = q->u.commit.did;
    if (q->kind == WIRE_OUTCOME) w.did = q->u.outcome.did;
    if (s->full && q->kind != WIRE_OUTCOME) {
        refuse(&w, WIRE_RETRY, 1000);
        net_answer(m, &w);
        return;
    }
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .request = q};
    if (q->kind == WIRE_COMMIT && !look_at_blob(m, s, &q->u.commit, &c.blob, &w)) return;
    (void)hub_do(m, s, &c, &w);
}
