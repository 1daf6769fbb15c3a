/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - the hub's state machine: one step, its clock, and the operator's commands.
 *
 * What it is: a deterministic function (state, now, command) -> (state, records, answer, merge).
 * What it is not: it opens no file and no socket, knows no thread, and computes no weights.
 *
 *   command --decide (members, grants, commits, rounds)--> records --apply.c--> state
 *                                                           |
 *                                                           +--> out: durable first, then the
 *                                                           answer
 *
 * The clock. All deadlines are on the caller's monotonic clock, and they cost or save work only: no
 * condition of apply.c or of the ledger reads a time (I13). Between two steps more than a quarter
 * of the
 * TTL means that we stood still, not that the sites were silent: the gap is added to every
 * deadline. To tell the two apart, hub_expiry asks for a step each eighth of the TTL while anybody
 * is live.
 *
 * The volatile part starts afresh with each process (HUB_CMD_START): every lease and every member
 * has a full TTL again.
 *
 * Invariants, besides those of the ledger (lease.h) and of apply.c
 *   (H4) an answer depends on no record that comes after it: records are complete when hub_step
 *   returns.
 *   (H5) a request that is repeated is answered as before, and changes nothing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

static_assert((int)WIRE_RANGES_MAX == (int)LEASE_SPANS_MAX,
              "a lease on the wire is a lease in the ledger");
static_assert((int)WIRE_PARTS_MAX == (int)LEASE_PARTS_MAX, "so is a manifest");
static_assert((int)WIRE_SKIPS_MAX == (int)LEASE_SKIPS_MAX, "and its skips");
static_assert((int)RECORD_REASON_MAX == (int)LEASE_REASON_MAX, "and their reasons");
static_assert(sizeof((struct wire_skip *)0)->reason == LEASE_REASON_MAX, "on the wire too");

/* A step has a handful of records of a few KB; a rebuild has a whole ledger in pieces. */
enum { RECORDS_BYTES_MAX = 128 << 20, NOTES_BYTES_MAX = 64 << 10 };

/* ---- Life
 * --------------------------------------------------------------------------------------- */

struct hub *hub_create(const struct hub_settings *s, uint64_t random_seed) {
    CHECK(s->positions > 0);
    CHECK(s->epochs > 0);
    CHECK(s->seq_len > 0);
    CHECK(s->ttl_ns > 0);
    CHECK(s->heartbeat_ns > 0);
    struct hub *h = mem_alloc(1, sizeof *h);
    h->s = *s;
    h->ledger = ledger_create(s->positions, s->epochs);
    h->quorum_since = h->retry_at = h->starved_at = TIME_NS_NEVER;
    prng_seed(&h->prng, random_seed);
    buf_init(&h->body, RECORDS_BYTES_MAX);
    buf_init(&h->import, RECORDS_BYTES_MAX);
    (void)hub_site_add(h);
    h->sites_count = 0; /* row 0 is nobody */
    return h;
}

void hub_destroy(struct hub *h) {
    if (!h) return;
    hub_merge_free(h);
    hub_facilities_free(h);
    ledger_destroy(h->ledger);
    mem_free(h->versions);
    mem_free(h->sites);
    mem_free(h->names);
    buf_fini(&h->body);
    buf_fini(&h->import);
    mem_free(h);
}

void hub_out_init(struct hub_out *o) {
    memset(o, 0, sizeof *o);
    buf_init(&o->records, RECORDS_BYTES_MAX);
    buf_init(&o->notes, NOTES_BYTES_MAX);
}

void hub_out_fini(struct hub_out *o) {
    buf_fini(&o->records);
    buf_fini(&o->notes);
}

static void out_reset(struct hub_out *o) {
    buf_reset(&o->records);
    buf_reset(&o->notes);
    o->records_count = 0;
    o->seq_after = 0;
    o->has_answer = false;
    o->merge = NULL;
    o->snapshot_due = false;
    memset(&o->answer, 0, sizeof o->answer);
}

/* ---- Records, notes, answers
 * -------------------------------------------------------------------- */

struct hub_record *hub_draft(struct hub *h, enum record_kind kind) {
    memset(&h->scratch, 0, sizeof h->scratch);
    h->scratch.kind = (uint16_t)kind;
    h->scratch.wall = h->wall;
    return &h->scratch;
}

void hub_emit(struct hub *h, struct hub_record *r) {
    buf_reset(&h->body);
    hub_record_encode(r, &h->body);
    CHECK(!h->body.overflow);
    struct err e;
    uint64_t seq = h->seq + 1;
    uint16_t kind = r->kind;
    /* From the bytes, as replay will (H1). What we decided ourselves must fit. */
    enum brg_status st = hub_apply(h, seq, kind, h->body.data, h->body.bytes_count, &e);
    if (st != BRG_OK) hub_note(h, "lvl=error ev=record_misfit text=\"%s\"", e.text);
    CHECK(st == BRG_OK); /* H1 */
    struct buf *out = &h->out->records;
    buf_u16(out, kind);
    buf_u32(out, (uint32_t)h->body.bytes_count);
    buf_put(out, h->body.data, h->body.bytes_count);
    CHECK(!out->overflow);
    h->out->records_count++;
    h->records_since_snapshot++;
}

void hub_note(struct hub *h, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' '; /* one line an event, whatever a text from outside holds */
    buf_put(&h->out->notes, line, strlen(line));
    buf_put(&h->out->notes, "\n", 1);
}

void hub_text_copy(char *out, size_t cap, const char *text) {
    size_t n = strlen(text);
    if (n >= cap) n = cap - 1;
    while (n > 0 && text[n] != '\0' && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--; /* whole characters */
    memcpy(out, text, n);
    out[n] = '\0';
}

void hub_refuse(struct hub *h, enum wire_code code, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    h->out->answer.code = code;
    hub_text_copy(h->out->answer.text, sizeof h->out->answer.text, text);
}

uint64_t hub_tok_next(const struct hub *h) {
    return (uint64_t)h->term << 32 | (h->tok_n + 1);
}

uint32_t hub_ms(time_ns ns) {
    time_ns ms = ns / NS_PER_MS;
    return ms < 1 ? 1 : ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* ---- The clock
 * ---------------------------------------------------------------------------------- */

static void gap_add(struct hub *h, time_ns gap) {
    for (uint32_t s = 1; s <= h->sites_count; s++) {
        h->sites[s].heard += gap;
        for (struct lease *a = ledger_site_first(h->ledger, s); a && s != h->parent_site;
             a = a->site_next)
            a->deadline += gap;
    }
    if (h->quorum_since != TIME_NS_NEVER) h->quorum_since += gap;
    if (h->starved_at != TIME_NS_NEVER) h->starved_at += gap;
    hub_note(h, "lvl=warn ev=own_gap ms=%u", hub_ms(gap));
}

static void clock_set(struct hub *h, time_ns now) {
    if (h->started && now <= h->now) return; /* monotonic, whatever the caller says */
    time_ns gap = now - h->now;
    h->now = now;
    if (h->started && gap > h->s.ttl_ns / 4 && !MUTANT(OWN_GAP_IGNORED)) gap_add(h, gap);
}

time_ns hub_expiry(const struct hub *h) {
    time_ns due = hub_rounds_expiry(h);
    for (uint32_t s = 1; s <= h->sites_count; s++) {
        if (!hub_live(h, &h->sites[s], h->now)) continue;
        time_ns tick = h->now + h->s.ttl_ns / 8 + 1;
        return due < tick ? due : tick;
    }
    return due;
}

/* ---- Commands
 * ----------------------------------------------------------------------------------- */

void hub_operator_answer(struct hub *h, bool fine, const char *text) {
    h->out->has_answer = true;
    if (!fine) hub_refuse(h, WIRE_BAD, "%s", text);
    if (!fine) hub_note(h, "lvl=warn ev=operator_refused text=\"%s\"", text);
}

struct record_open hub_open_record(const struct hub *h, const struct hash *checkpoint,
                                   const struct hash *theta, uint64_t bytes) {
    return (struct record_open){.layout = RECORD_LAYOUT,
                                .run = h->s.run,
                                .fingerprint = h->s.fingerprint,
                                .tensors = h->s.tensors,
                                .parameters = h->s.parameters,
                                .positions = h->s.positions,
                                .seq_len = h->s.seq_len,
                                .epochs = h->s.epochs,
                                .order_seed = h->s.order_seed,
                                .checkpoint = *checkpoint,
                                .theta = *theta,
                                .checkpoint_bytes = bytes};
}

static void cmd_init(struct hub *h, const struct hub_cmd *c) {
    if (h->opened || h->seq > 0) {
        hub_operator_answer(h, false, "the journal has an opening record already");
        return;
    }
    struct hub_record *r = hub_draft(h, RECORD_OPEN);
    r->u.open = hub_open_record(h, &c->u.init.checkpoint, &c->u.init.theta, c->u.init.bytes);
    hub_emit(h, r);
    r = hub_draft(h, RECORD_EPOCH);
    r->u.epoch.epoch = 0;
    r->u.epoch.positions = h->s.positions;
    hub_emit(h, r);
}

static void cmd_start(struct hub *h, const struct hub_cmd *c) {
    if (!h->opened) {
        hub_operator_answer(h, false, "the journal has no opening record yet");
        return;
    }
    uint32_t floor = c->u.start.term_floor;
    struct hub_record *r = hub_draft(h, RECORD_TERM);
    r->u.term.term = (h->term > floor ? h->term : floor) + 1;
    if (MUTANT(TERM_NOT_RAISED) && h->term > 0) r->u.term.term = h->term;
    hub_emit(h, r);
    if (h->down != (uint32_t)h->s.down) {
        r = hub_draft(h, RECORD_DOWN);
        r->u.down.codec = (uint32_t)h->s.down;
        hub_emit(h, r);
    }
    hub_merge_free(h);
    h->started = true;
    h->draining = false;
    h->quorum_since = h->retry_at = h->starved_at = TIME_NS_NEVER;
    for (uint32_t i = 1; i <= h->sites_count; i++) {
        struct hub_site *s = &h->sites[i];
        s->heard = h->now;
        s->phase = PHASE_SYNCING;
        bool parent = i == h->parent_site;
        s->ready = !parent &&
                   ledger_site_leases(h->ledger, i) + ledger_site_staged(h->ledger, i) > 0;
        for (struct lease *a = ledger_site_first(h->ledger, i); a; a = a->site_next)
            a->deadline = parent ? TIME_NS_NEVER : h->now + h->s.ttl_ns;
    }
    hub_note(h, "lvl=info ev=started term=%u head=%llu leases=%u staged=%u", h->term,
             (unsigned long long)h->versions[h->head].v.version, ledger_leases(h->ledger),
             ledger_deltas_staged(h->ledger));
}

static void cmd_discard(struct hub *h, const struct hub_cmd *c) {
    const struct delta *d = ledger_delta_find(h->ledger, &c->u.discard.did);
    bool fine = d && d->state == DELTA_STAGED && d->site != h->parent_site;
    hub_operator_answer(h, fine, "no staged contribution has this id");
    if (!fine) return;
    if (d->live->planned) hub_merge_cancel(h);
    struct hub_record *r = hub_draft(h, RECORD_DISCARD);
    r->u.discard.did = c->u.discard.did;
    hub_text_copy(r->u.discard.reason, sizeof r->u.discard.reason, c->u.discard.text);
    hub_emit(h, r);
    hub_note(h, "lvl=warn ev=discarded reason=\"%s\"", c->u.discard.text);
}

static void cmd_rollback(struct hub *h, const struct hub_cmd *c) {
    const struct hub_version *v = hub_version_of(h, c->u.rollback.version);
    bool fine = h->opened && v && v->on_branch;
    bool may = !fine || hub_region_may_return(h, c->u.rollback.version);
    hub_operator_answer(
        h, fine && may,
        fine ? "a region goes back to its first version or not at all: what is "
               "merged at its parent cannot be taken out there; go back at the parent"
             : "this version is not the head or one of its ancestors");
    if (!fine || !may) return;
    hub_roll_back(h, c->u.rollback.version, true);
}

void hub_roll_back(struct hub *h, uint64_t version, bool decided) {
    if (!MUTANT(ROLLBACK_KEEPS_PLAN)) hub_merge_cancel(h);
    struct hub_record *r = hub_draft(h, RECORD_ROLLBACK);
    r->u.rollback.version = version;
    r->u.rollback.versions_next = h->versions_next;
    r->u.rollback.term = h->term;
    if (h->held) { /* numbers that a lost hub may have given are never given again */
        if (h->held_version >= h->versions_next) r->u.rollback.versions_next = h->held_version + 1;
        if (h->held_term >= h->term) r->u.rollback.term = h->held_term + 1;
    }
    if (decided && h->doubted.name[0] != '\0') { /* they cannot prove it, and may be right */
        struct record_rollback *b = &r->u.rollback;
        if (h->doubted.version >= b->versions_next) b->versions_next = h->doubted.version;
        if (h->doubted.term >= b->term) b->term = h->doubted.term + 1;
        b->versions_next++; /* beyond what is next anyway: apply.c sees that a branch was declared */
        memset(&h->doubt, 0, sizeof h->doubt);
        memset(&h->doubted, 0, sizeof h->doubted);
    }
    hub_emit(h, r);
    if (h->parent_site > 0 && !MUTANT(REGION_ROLLBACK_OFFERS))
        hub_region_hold(h, NULL, 0); /* before anybody may ask: all of it is the parent's (N1) */
    for (uint32_t i = 1; i <= h->sites_count; i++)
        h->sites[i].ready = false; /* they say again from where */
    hub_note(h, "lvl=warn ev=rolled_back version=%llu", (unsigned long long)version);
}

static void cmd_quarantine(struct hub *h, const struct hub_cmd *c) {
    struct lease_span span = {c->u.quarantine.range.start, c->u.quarantine.range.count};
    bool fine = ledger_all(h->ledger, c->u.quarantine.epoch, span, EXTENT_QUARANTINED);
    hub_operator_answer(h, fine, "not all of these positions are quarantined");
    if (!fine) return;
    if (c->u.quarantine.skip && !MUTANT(SKIP_NOT_CANCELLED))
        hub_merge_cancel(h); /* its checkpoint would not have the skip */
    struct hub_record *r = hub_draft(h, RECORD_QUARANTINE);
    r->u.quarantine.epoch = c->u.quarantine.epoch;
    r->u.quarantine.range = c->u.quarantine.range;
    r->u.quarantine.skip = c->u.quarantine.skip;
    hub_text_copy(r->u.quarantine.reason, sizeof r->u.quarantine.reason,
                  ledger_reason_fit(h->ledger, c->u.quarantine.reason));
    hub_emit(h, r);
    hub_note(h, "lvl=warn ev=quarantine_decided epoch=%u start=%llu count=%llu skip=%d",
             c->u.quarantine.epoch, (unsigned long long)span.start, (unsigned long long)span.count,
             c->u.quarantine.skip);
}

/* ---- Requests
 * ----------------------------------------------------------------------------------- */

/* A member that may change things; false: answered. */
static bool fence_fine(struct hub *h, const struct wire_request *q, uint32_t site) {
    const struct hub_site *s = &h->sites[site];
    if (q->inc < s->inc && !MUTANT(NO_FENCE))
        hub_refuse(h, WIRE_FENCED,
                   "a newer process of this site has joined (incarnation %u, this is %u): stop",
                   s->inc, q->inc);
    else if (q->inc > s->inc || (!s->joined && q->kind != WIRE_LEAVE))
        hub_refuse(h, WIRE_UNKNOWN_SITE, "this site is no member now: join first");
    else
        return true;
    return false;
}

static void member_request(struct hub *h, const struct wire_request *q,
                           const struct hub_blob_verdict *blob, uint32_t site) {
    if (q->kind == WIRE_COMMIT && hub_commit_known(h, site, &q->u.commit)) return; /* H5 */
    if (!fence_fine(h, q, site)) return;
    if (q->kind != WIRE_HEARTBEAT) h->sites[site].heard = h->now;
    switch (q->kind) {
    case WIRE_LEASE: hub_lease(h, site, q); return;
    case WIRE_HEARTBEAT: hub_heartbeat(h, site, &q->u.heartbeat); return;
    case WIRE_SHRINK_OK:
        hub_return(h, site, q->u.shrink_ok.tok, q->u.shrink_ok.nonce, q->u.shrink_ok.keep);
        return;
    case WIRE_RETURN: hub_return(h, site, q->u.give_back.tok, q->u.give_back.nonce, 0); return;
    case WIRE_COMMIT: hub_commit(h, site, q, blob); return;
    case WIRE_LEAVE: hub_leave(h, site, &q->u.leave); return;
    case WIRE_JOIN:
    case WIRE_OUTCOME: break; /* answered before */
    }
}

static void cmd_request(struct hub *h, const struct hub_cmd *c) {
    const struct wire_request *q = c->request;
    uint32_t site = 0;
    h->out->has_answer = true;
    h->out->answer.kind = q->kind;
    h->out->answer.req = q->req;
    if (!h->started) {
        hub_refuse(h, WIRE_RETRY, "the hub is starting");
        h->out->answer.retry_ms = 1000;
    } else if (q->kind < WIRE_JOIN || q->kind > WIRE_LEAVE || !wire_name_valid(q->site)) {
        hub_refuse(h, WIRE_BAD,
                   "a site's name is lower-case letters, digits, '-' and '_', at most %d",
                   WIRE_NAME_MAX - 1);
    } else if (!id_equal(&q->run, &h->s.run)) {
        hub_refuse(h, WIRE_MISMATCH,
                   "this hub keeps another run: check the hub's address and the run's id");
    } else if (q->kind == WIRE_JOIN) {
        hub_join(h, q);
    } else if (q->kind == WIRE_OUTCOME) {
        (void)hub_site_named(h, q->site, &site);
        hub_outcome(h, site, &q->u.outcome.did);
    } else if (!hub_site_named(h, q->site, &site)) {
        hub_refuse(h, WIRE_UNKNOWN_SITE, "this site is not known: join first");
    } else {
        member_request(h, q, &c->blob, site);
    }
    h->out->answer.term = h->term;
    h->out->answer.term_seal = hub_term_seal(h);
}

void hub_step(struct hub *h, time_ns now, const struct hub_cmd *cmd, struct hub_out *out) {
    out_reset(out);
    h->out = out;
    h->wall = cmd->wall;
    clock_set(h, now);
    hub_crowd_count(h);
    uint64_t seq_before = h->seq;
    switch (cmd->kind) {
    case HUB_CMD_INIT: cmd_init(h, cmd); break;
    case HUB_CMD_START: cmd_start(h, cmd); break;
    case HUB_CMD_REQUEST: cmd_request(h, cmd); break;
    case HUB_CMD_TICK: break;
    case HUB_CMD_MERGED: hub_merged(h, cmd); break;
    case HUB_CMD_MERGE_FAILED: hub_merge_failed(h, cmd); break;
    case HUB_CMD_DISCARD: cmd_discard(h, cmd); break;
    case HUB_CMD_ROLLBACK: cmd_rollback(h, cmd); break;
    case HUB_CMD_DRAIN: h->draining = cmd->u.drain.on; break;
    case HUB_CMD_QUARANTINE: cmd_quarantine(h, cmd); break;
    case HUB_CMD_REBUILD: hub_rebuild_from(h, cmd); break;
    case HUB_CMD_REPORT: hub_report(h, cmd->u.report); break;
    case HUB_CMD_ORDER: hub_order(h, cmd); break;
    case HUB_CMD_EVALUATED: hub_evaluated(h, cmd); break;
    case HUB_CMD_HOLD: hub_cmd_hold(h, cmd); break;
    case HUB_CMD_TAKE_IN: hub_cmd_take_in(h, cmd); break;
    case HUB_CMD_RESET: hub_cmd_reset(h); break;
    }
    hub_rounds(h);
    hub_seals_renew(h);
    out->seq_after = h->seq;
    CHECK(h->seq == seq_before + out->records_count); /* H4 */
    if (h->s.records_per_snapshot > 0 && h->records_since_snapshot >= h->s.records_per_snapshot) {
        out->snapshot_due = true;
        h->records_since_snapshot = 0;
    }
    h->out = NULL;
}
