/* SPDX-License-Identifier: Apache-2.0 */
/* levels_link.c - messages between the hubs of a tree, and the duties of a region towards its parent: what
 * src/hub/uplink_os.c and uplink_work_os.c do, in their order, with files and lines that fail. Change both together. What is
 * decided is decided by the production code (src/hub/uplink.c, region.c). */
#include <string.h>

#include "sim/levels.h"

/* ---- Messages --------------------------------------------------------------------------------------------------- */
bool lv_ask(struct lv_hub *n, const struct wire_request *q, struct wire_answer *a) {
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .request = q};
    c.blob = (struct hub_blob_verdict){.complete = true, .norm = 1, .max_abs = 0.1};
    if (!n->alive) return false;
    if (lv_chance(n->w, 15)) { /* on its way there */
        n->w->lost++;
        return false;
    }
    *a = *lv_hub_step(n, &c);
    if (lv_chance(n->w, 15)) { /* on its way back */
        n->w->lost++;
        return false;
    }
    return true;
}

/* The process dies here: what is in memory is gone, what is on disk is not. */
static bool dies(struct lv_hub *n) {
    if (!lv_chance(n->w, 150)) return false;
    lv_hub_kill(n);
    return true;
}

static bool up_ask(struct lv_hub *n, struct wire_request *q, struct wire_answer *a) {
    struct lv_uplink *u = &n->link;
    if (n->w->turn < u->cut_until) return false;
    memcpy(q->site, n->name, sizeof q->site);
    q->run = n->up->s.run;
    q->inc = q->kind == WIRE_JOIN || q->kind == WIRE_OUTCOME ? 0 : u->inc;
    if (q->req == 0) q->req = ++u->req;
    if (!lv_ask(n->up, q, a)) return false;
    if (a->code == WIRE_UNKNOWN_SITE) u->member = false;
    if (a->code == WIRE_FENCED || a->code == WIRE_BAD || a->code == WIRE_MISMATCH ||
        a->code == WIRE_KEY_REUSED)
        lv_fail(n->w, "%s: its parent says %s: %s", n->name, wire_code_name(a->code), a->text);
    if (a->code != WIRE_OK && a->code != WIRE_COMPLETE) return false;
    const struct wire_round *r = a->kind == WIRE_JOIN        ? &a->u.join.round
                                 : a->kind == WIRE_LEASE     ? &a->u.lease.round
                                 : a->kind == WIRE_HEARTBEAT ? &a->u.heartbeat.round
                                 : a->kind == WIRE_COMMIT || a->kind == WIRE_OUTCOME
                                     ? &a->u.commit.round
                                     : NULL;
    if (r != NULL) u->head = r->head;
    return true;
}

/* ---- State -------------------------------------------------------------------------------------------------------- */
static bool keep(struct lv_hub *n) {
    if (dies(n)) return false;
    n->link.disk = n->link.st;
    return !dies(n);
}

static bool hold(struct lv_hub *n) {
    AUTO_FREE struct hub_span *spans = NULL;
    struct hub_cmd c = {.kind = HUB_CMD_HOLD};
    c.u.hold.count = uplink_spans(&n->link.st.current, &spans);
    c.u.hold.spans = spans;
    return lv_hub_step(n, &c)->code == WIRE_OK;
}

static bool reset(struct lv_hub *n, const char *why) {
    const struct hub_cmd c = {.kind = HUB_CMD_RESET};
    lv_say(n->w, "%s goes back: %s", n->name, why);
    n->w->resets++;
    (void)lv_hub_step(n, &c);
    if (dies(n)) return false;
    uplink_forget(&n->link.st);
    n->link.boot = lv_name(n->w);
    n->link.member = false;
    return keep(n);
}

void lv_uplink_start(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    u->st = u->disk;
    u->st.staged = false;
    u->member = u->asking = false;
    u->ask_at = 0;
    u->head = 0;
    u->boot = lv_name(n->w);
    u->next_closed = u->st.next.count > 0;
    if (n->h->parent_site == 0) {
        const struct hub_cmd c = {.kind = HUB_CMD_HOLD};
        if (lv_hub_step(n, &c)->code != WIRE_OK) lv_fail(n->w, "%s is no region", n->name);
    }
}

/* ---- Duties ---------------------------------------------------------------------------------------------------------- */
static bool outcome_take(struct lv_hub *n, const struct wire_commit_answer *a) {
    switch (uplink_outcome(&n->link.st, a)) {
    case UPLINK_RESET: return reset(n, "the parent did not take the contribution");
    case UPLINK_KEEP: return keep(n);
    case UPLINK_NOTHING: break;
    }
    return true;
}

static bool outcome_ask(struct lv_hub *n) {
    struct wire_request q = {.kind = WIRE_OUTCOME};
    struct wire_answer a;
    if (!n->link.st.has_pending) return true;
    q.u.outcome.did = n->link.st.commit.did;
    return up_ask(n, &q, &a) && outcome_take(n, &a.u.commit);
}

static bool join(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct wire_request q = {.kind = WIRE_JOIN};
    struct wire_answer a;
    struct wire_join *j = &q.u.join;
    const struct wire_lease *named[WIRE_LEASES_MAX];
    bool back = false;
    if (!outcome_ask(n)) return false;
    j->boot = u->boot;
    j->protocol = WIRE_PROTOCOL;
    j->fingerprint = n->up->s.fingerprint;
    j->tensors = n->up->s.tensors;
    j->tokens_per_sample = n->s.seq_len;
    j->resume_count = uplink_named(&u->st, named);
    for (uint32_t i = 0; i < j->resume_count; i++)
        j->resume[i] = (struct wire_part){named[i]->tok, named[i]->nonce, 0};
    if (!up_ask(n, &q, &a)) return false;
    u->inc = a.u.join.inc;
    u->member = true;
    u->asking = false;
    for (uint32_t i = 0; i < a.u.join.leases_count; i++) {
        const struct wire_lease_state *l = &a.u.join.leases[i];
        if (l->verdict == LEASE_GONE && !uplink_has(&u->st.pending, l->tok))
            back = uplink_gone(&u->st, l->tok) || back;
    }
    return back ? reset(n, "leases of the open set are lost") : keep(n);
}

static bool beat(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct wire_request q = {.kind = WIRE_HEARTBEAT};
    struct wire_answer a;
    struct hub_region_view v;
    const struct wire_lease *named[WIRE_LEASES_MAX];
    bool back = false, changed = false;
    hub_region(n->h, 0, &v);
    q.u.heartbeat.hb_seq = u->req + 1;
    q.u.heartbeat.base = v.taken;
    q.u.heartbeat.phase = PHASE_TRAINING;
    q.u.heartbeat.leases_count = uplink_named(&u->st, named);
    for (uint32_t i = 0; i < q.u.heartbeat.leases_count; i++)
        q.u.heartbeat.leases[i].tok = named[i]->tok;
    if (!up_ask(n, &q, &a)) return true; /* its own thread's trouble */
    for (uint32_t i = 0; i < a.u.heartbeat.leases_count; i++) {
        const struct wire_lease_state *l = &a.u.heartbeat.leases[i];
        if (l->verdict != LEASE_GONE) continue;
        if (!uplink_has(&u->st.current, l->tok) && !uplink_has(&u->st.next, l->tok)) continue;
        back = uplink_gone(&u->st, l->tok) || back;
        changed = true;
    }
    if (back) return reset(n, "leases of the open set are lost");
    return !changed || keep(n);
}

static bool hand_in(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct wire_request q = {.kind = WIRE_COMMIT};
    struct wire_answer a;
    if (!u->st.has_pending || u->st.staged) return true;
    if (u->st.commit.bytes > 0 && !u->file) return reset(n, "the contribution's file is gone");
    q.u.commit = u->st.commit;
    return up_ask(n, &q, &a) && outcome_take(n, &a.u.commit);
}

static bool take_in(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct hub_region_view v;
    struct hub_cmd c = {.kind = HUB_CMD_TAKE_IN};
    struct ledger *l = NULL;
    struct err e;
    AUTO_FREE struct hub_span *others = NULL;
    uint64_t version = 0;
    uint32_t count = 0;
    bool own_in = false;
    hub_region(n->h, 0, &v);
    enum uplink_take due = uplink_take_due(n->h, &u->st, u->head, &own_in);
    if (due == UPLINK_TAKE_NOT) return true;
    if (due == UPLINK_TAKE_RESET) return reset(n, "the parent went back");
    const struct lv_version *to = lv_version_find(n->up, u->head);
    const struct lv_version *from = lv_version_find(n->up, v.taken);
    if (n->w->turn < u->cut_until || !n->up->alive || to == NULL || from == NULL) return false;
    if (ledger_checkpoint_decode(to->ledger, to->ledger_bytes, n->s.epochs, &l, &version, &e) !=
        BRG_OK)
        lv_fail(n->w, "%s: %s", n->up->name, e.text);
    bool fits = uplink_others(n->h, &u->st, own_in, l, &others, &count);
    ledger_destroy(l);
    if (!fits) return reset(n, "the parent's books differ");
    bool own = own_in && u->st.commit.bytes > 0;
    if (own && !u->file) return reset(n, "the contribution's file is gone");
    struct lv_blob *b = lv_blob_new(n->w);
    for (uint32_t i = 0; i < n->w->weights; i++)
        b->d[i] = from->theta[i] - to->theta[i] - (own ? u->delta[i] : 0);
    if (dies(n)) return false;
    c.u.take_in.version = u->head;
    c.u.take_in.from = v.taken;
    c.u.take_in.blob = b->hash;
    c.u.take_in.bytes = DELTA_HEADER_BYTES + 4 * n->w->weights;
    c.u.take_in.did = lv_name(n->w);
    memset(c.u.take_in.did.v + 12, 0, 4);
    c.u.take_in.spans = others;
    c.u.take_in.count = count;
    (void)lv_hub_step(n, &c);
    return !dies(n);
}

static bool cut(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct hub_region_view v;
    struct wire_commit c = {.steps = 1, .lr_sum = 1, .loss = 1, .codec = CODEC_FP32};
    if (uplink_cut_due(n->h, &u->st, &c) != UPLINK_CUT_NOW) return true;
    hub_region(n->h, u->st.cut, &v);
    const struct lv_version *head = lv_version_find(n, v.head);
    const struct lv_version *from = lv_version_find(n->up, v.taken);
    if (head == NULL || from == NULL) lv_fail(n->w, "%s: a cut without weights", n->name);
    if (v.tokens != from->tokens + c.tokens)
        return reset(n, "the region's tokens are not the parent's and its own");
    c.did = lv_name(n->w);
    c.base = v.taken;
    if (c.tokens == 0) c.steps = 0, c.lr_sum = 0, c.loss = 0;
    if (c.tokens > 0) {
        struct lv_blob *b = lv_blob_new(n->w);
        for (uint32_t i = 0; i < n->w->weights; i++)
            b->d[i] = u->delta[i] = from->theta[i] - head->theta[i];
        c.blob = b->hash;
        c.elements = n->s.parameters;
        c.bytes = DELTA_HEADER_BYTES + codec_bytes(CODEC_FP32, n->s.parameters);
        u->file = true;
    }
    if (dies(n)) return false;
    uplink_cut_take(&u->st, &c, v.head);
    return keep(n);
}

static bool next_open(struct lv_hub *n) {
    if (!n->link.next_closed || !uplink_next_due(n->h, &n->link.st)) return true;
    if (!uplink_add(&n->link.st.current, &n->link.st.next)) return true;
    n->link.next_closed = false;
    return keep(n);
}

static bool lease_ask(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct wire_answer a;
    struct hub_region_view v;
    hub_region(n->h, 0, &v);
    if (!u->asking) {
        u->lease_ask = (struct wire_request){.kind = WIRE_LEASE};
        u->lease_ask.u.lease.want = n->below * (2 + prng_below(&n->w->g, 3ULL * n->w->rounds));
        u->lease_ask.u.lease.base = v.taken;
        u->lease_ask.u.lease.ahead = u->st.current.count > 0;
        u->asking = true;
    }
    if (!up_ask(n, &u->lease_ask, &a)) return false;
    u->asking = false;
    if (a.code == WIRE_COMPLETE) {
        u->ask_at = n->w->turn + 200ULL * n->w->pace; /* a rollback there may undo it */
        return true;
    }
    if (a.u.lease.granted) {
        u->st.next.leases[u->st.next.count++] = a.u.lease.lease;
        if (!keep(n)) return false;
    }
    u->next_closed = u->st.next.count > 0 && (!a.u.lease.granted || lv_chance(n->w, 2) ||
                                              u->st.next.count >= UPLINK_ASKED_MAX - 1);
    return true;
}

static bool leases(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    struct hub_region_view v;
    if (u->st.next.count == 0) u->next_closed = false;
    if (!next_open(n)) return false;
    hub_region(n->h, 0, &v);
    if (!(v.taken == 0 && u->head > 0)) (void)hold(n);
    uint32_t held = u->st.current.count + u->st.next.count +
                    (u->st.has_pending && !u->st.staged ? u->st.pending.count : 0);
    if (u->next_closed || n->w->turn < u->ask_at || held >= WIRE_LEASES_MAX) return true;
    return lease_ask(n);
}

static void alone(struct lv_hub *n) {
    if (!n->alive || !cut(n)) return;
    n->link.next_closed = true;
    if (next_open(n)) (void)hold(n);
}

static bool pass(struct lv_hub *n) {
    struct lv_uplink *u = &n->link;
    if (!u->member && !join(n)) return false;
    if (!beat(n)) return false;
    if (uplink_settle(n->h, &u->st)) {
        if (!keep(n)) return false;
        u->file = false;
    }
    if (!hand_in(n)) return false;
    bool back = u->st.merged > u->head;
    if (u->st.staged && (u->st.merged == 0 || back) && !outcome_ask(n)) return false;
    /* Heartbeats have a thread of their own: the head may be told anew after the outcome was asked. */
    if (prng_below(&n->w->g, 3) == 0) {
        if (n->up->alive) lv_hub_merge(n->up);
        if (!beat(n)) return false;
    }
    return take_in(n) && cut(n) && leases(n);
}

void lv_uplink_pass(struct lv_hub *n) {
    if (!n->alive) return;
    if (lv_chance(n->w, 400)) { /* somebody removes it */
        n->link.file = false;
        n->w->faults++;
    }
    if (!pass(n)) alone(n);
}
