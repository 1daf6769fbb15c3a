/* SPDX-License-Identifier: Apache-2.0 */
/* core.c - membership, timers, and what goes out. The other halves: core_answer.c (what the hub's
 * answers mean), core_train.c (positions, steps, the segment), core_save.c (the local checkpoint).
 *
 *   NEW --SITE_START--> ASKING --all outcomes known--> JOINING --JOIN ok--> SYNCING | ACTIVE
 *   SYNCING --site_loaded--> ACTIVE --SITE_CLOSE, settled--> LEAVING --answer--> GONE
 *   SYNCING, ACTIVE, LEAVING --UNKNOWN_SITE--> ASKING
 *   any but GONE --FENCED, MISMATCH, BAD, KEY_REUSED--> STOPPED
 *
 * A site that was restored and finds no hub is ALONE (a flag, not a state: it goes on asking): it trains
 * the samples of the leases in its local checkpoint. Whether they are its own still is not known; the
 * JOIN tells, and what went to somebody else meanwhile is thrown away with a reset, as after any cut.
 *
 * A contribution:  CUT -> UPLOAD -> COMMIT -> STAGED -> MERGED -> (rebased on, forgotten)
 *                                     |          |
 *                                     +--> FAILED <+ -> (weights reset, forgotten)
 *
 * Invariants
 *   (T1) leases are used in order: behind a lease with taken < count no lease has taken > 0; the same
 *        for done. So "the first `done` samples" describes a segment exactly (S3).
 *   (T2) cut <= done <= taken <= count for every lease (S1, S5).
 *   (T3) at most one lease waits for its successor (cut > 0), and then nothing is cut: contributions
 *        of one site are strictly sequential.
 *   (T4) no lease is asked for before weights are loaded, none is worked on after LEAVE.
 *   (T5) a rebase to v happens only when it is known, for every own contribution, whether v contains
 *        it.
 *   (T6) while a reset is due nothing is cut and nothing is rebased: rejected work can not leave.
 *   (T7) work done alone leaves only after a JOIN of this process: nothing is cut without a fence (inc).
 *   (T8) a gradient is cut at the newest version that the site knows of, as its only contribution; until it
 *        has the next one it takes no sample.
 *
 * Time-outs and losses only ever lead to a repeat of the same request under the same number; the
 * hub answers a repeat as it answered the first. Only an answer changes anything here. */
#include "site/core.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"

const char *site_state_name(enum site_state s) {
    static const char *const names[] = {"new",    "asking",  "joining", "syncing",
                                        "active", "leaving", "gone",    "stopped"};
    return (unsigned)s < ARRAY_COUNT(names) ? names[s] : "?";
}

void core_note(struct buf *notes, const char *fmt, ...) {
    char line[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    buf_printf(notes, "%s\n", line);
}

void site_out_init(struct site_out *o) {
    memset(o, 0, sizeof *o);
    buf_init(&o->notes, 64 * 1024);
}

void site_out_fini(struct site_out *o) {
    buf_fini(&o->notes);
}

static void out_reset(struct site_out *o) {
    o->has_control = o->has_beat = o->has_upload = o->has_download = false;
    buf_reset(&o->notes);
    o->notes.overflow = false;
}

void site_init(struct site_core *c, const struct site_settings *s, const struct id128 *boot) {
    memset(c, 0, sizeof *c);
    c->set = *s;
    c->boot = *boot;
    prng_seed(&c->prng, s->seed ^ get_le64(boot->v));
    c->ready = SITE_VERSION_NONE;
    c->round.steps_target = s->steps_target;
    c->round.sync_tokens = s->sync_tokens;
    c->heartbeat_ms = 10000;
    c->ttl_ms = 120000;
    c->alone_at = TIME_NS_NEVER;
}

/* ---- Moves ------------------------------------------------------------------------------------ */

static const uint8_t moves[] = {
#define TO(s) (uint8_t)(1u << (s))
    [SITE_NEW] = TO(SITE_ASKING) | TO(SITE_STOPPED) | TO(SITE_GONE),
    [SITE_ASKING] = TO(SITE_JOINING) | TO(SITE_STOPPED) | TO(SITE_GONE),
    [SITE_JOINING] = TO(SITE_SYNCING) | TO(SITE_ACTIVE) | TO(SITE_STOPPED) | TO(SITE_GONE),
    [SITE_SYNCING] = TO(SITE_ACTIVE) | TO(SITE_ASKING) | TO(SITE_LEAVING) | TO(SITE_STOPPED),
    [SITE_ACTIVE] = TO(SITE_ASKING) | TO(SITE_LEAVING) | TO(SITE_STOPPED),
    [SITE_LEAVING] = TO(SITE_GONE) | TO(SITE_ASKING) | TO(SITE_STOPPED),
    [SITE_GONE] = 0,
    [SITE_STOPPED] = 0,
};

static_assert(ARRAY_COUNT(moves) == SITE_STOPPED + 1, "one row a state");

void core_move(struct site_core *c, enum site_state to, struct buf *notes) {
    if (c->state == to) return;
    CHECK(moves[c->state] & TO(to));
#undef TO
    core_note(notes, "lvl=debug ev=state from=%s to=%s", site_state_name(c->state),
              site_state_name(to));
    c->state = to;
}

void core_stop(struct site_core *c, enum brg_status status, const char *text, struct buf *notes) {
    if (c->state == SITE_GONE || c->state == SITE_STOPPED) return;
    c->stop_status = status;
    snprintf(c->stop_text, sizeof c->stop_text, "%s", text);
    core_note(notes, "lvl=error ev=stopped status=%s text=\"%s\"", status_name(status),
              c->stop_text);
    core_move(c, SITE_STOPPED, notes);
}

/* ---- Small helpers ---------------------------------------------------------------------------- */

static time_ns backoff(struct site_core *c, uint32_t failures) {
    time_ns t = c->set.retry_min_ns;
    for (uint32_t i = 1; i < failures && t < c->set.retry_max_ns; i++) t *= 2;
    if (t > c->set.retry_max_ns) t = c->set.retry_max_ns;
    return (time_ns)((double)t * (0.75 + 0.5 * prng_unit(&c->prng)));
}

static void sooner(time_ns *at, time_ns t) {
    if (*at > t) *at = t;
}

/* The hub was heard, or was not: one line at each change, none in between. What waited out a pause that
 * grew while the hub was away waits no longer: the pause was for a hub that does not answer. Sites hear
 * of its return at their own heartbeats, so they do not come all at once. */
static void core_heard(struct site_core *c, time_ns now, struct buf *notes) {
    if (c->offline) {
        core_note(notes, "lvl=info ev=hub_back text=\"the hub answers again\"");
        if (c->control.lost) sooner(&c->control_at, now);
        if (c->upload_failures > 0) sooner(&c->upload_at, now);
        if (c->download_failures > 0) sooner(&c->download_at, now);
    }
    c->offline = false;
    c->failures = 0;
}

static void core_unheard(struct site_core *c, struct buf *notes) {
    if (c->offline) return;
    c->offline = true;
    if (c->closing) return; /* by its own hand, mostly: who leaves cuts what it waits for */
    core_note(notes,
              "lvl=warn ev=hub_unreachable samples_left=%" PRIu64
              " text=\"training goes on with the samples that are leased; trying again for ever\"",
              site_available(c));
}

void core_retry(struct site_core *c, time_ns now, uint32_t retry_ms) {
    time_ns wait = backoff(c, c->failures > 0 ? c->failures : 1);
    time_ns asked = (time_ns)retry_ms * NS_PER_MS;
    c->control_at = now + (asked > wait ? asked : wait);
}

/* Begins membership anew: after a start, and when the hub does not know this site any more. What is
 * under way is abandoned; its effect at the hub, if any, is asked for by did. */
void core_rejoin(struct site_core *c, time_ns now, struct buf *notes) {
    c->control.busy = false;
    c->beat.busy = false;
    c->control_at = now;
    for (size_t i = 0; i < sizeof c->join_boot.v; i += 8)
        put_le64(c->join_boot.v + i, prng_u64(&c->prng));
    if (c->inc == 0) c->join_boot = c->boot;
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        enum site_delta_state s = c->deltas[i].state;
        if (s == PENDING_COMMIT || s == PENDING_STAGED) c->deltas[i].ask = true;
    }
    core_move(c, SITE_ASKING, notes);
}

/* In rounds: what a site needs at hand, and what it leases ahead of need, so that an outage of so long
 * costs nothing. What a site that dies holds goes to others after its time. */
enum { ROUNDS_NEEDED = 2, ROUNDS_AHEAD = 3 };

static bool lease_low(const struct site_core *c) {
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < c->leases_count; i++)
        fresh += c->leases[i].taken < c->leases[i].w.count;
    uint64_t there = site_available(c);
    bool short_of_it = there < c->wanted; /* else the trainer waits for ever for what nobody asks */
    return fresh < 2 || short_of_it || there < ROUNDS_NEEDED * c->round.steps_target * c->set.batch;
}

static bool lease_wanted(const struct site_core *c, time_ns now) {
    if (c->state != SITE_ACTIVE || c->draining || c->round.drain || c->complete) return false;
    if (c->reset_due) return false; /* first the weights, then more work */
    uint32_t held = c->leases_count;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state < PENDING_STAGED) held += c->deltas[i].c.parts_count;
    if (held >= WIRE_LEASES_MAX || now < c->lease_at) return false;
    if (lease_low(c)) return true;
    return now >= c->ahead_at &&
           site_available(c) < ROUNDS_AHEAD * c->round.steps_target * c->set.batch;
}

static uint64_t lease_want(const struct site_core *c) {
    uint64_t steps = c->round.steps_target > 0 ? c->round.steps_target : 1;
    uint64_t planned = steps * c->set.batch;
    return planned > c->wanted ? planned : c->wanted;
}

/* ---- The next control request ----------------------------------------------------------------- */

static struct wire_request *request_begin(struct site_core *c, time_ns now, enum wire_kind kind) {
    struct site_slot *s = &c->control;
    memset(s, 0, sizeof *s);
    s->busy = true;
    s->id = ++c->id_last;
    s->deadline = c->set.answer_ns == TIME_NS_NEVER ? TIME_NS_NEVER : now + c->set.answer_ns;
    s->inc = kind == WIRE_JOIN || kind == WIRE_OUTCOME ? 0 : c->inc;
    struct wire_request *r = &s->request;
    r->kind = kind;
    memcpy(r->site, c->set.name, sizeof r->site);
    r->run = c->set.run;
    r->inc = s->inc;
    r->req = ++c->req;
    return r;
}

static void join_fill(struct site_core *c, struct wire_join *j) {
    j->boot = c->join_boot;
    j->protocol = WIRE_PROTOCOL;
    j->fingerprint = c->set.fingerprint;
    j->tensors = c->set.tensors;
    j->version_seen = c->version_seen;
    j->term_seen = c->term_seen;
    j->theta_seen = c->theta_seen;
    j->version_seal = c->version_seal;
    j->term_seal = c->term_seal;
    j->tokens_per_sample = c->set.tokens_per_sample;
    j->gradients = c->set.gradients;
    for (uint32_t i = 0; i < c->leases_count; i++) {
        const struct site_lease *l = &c->leases[i];
        if (l->give_back) continue;
        CHECK(j->resume_count < WIRE_LEASES_MAX);
        j->resume[j->resume_count++] = (struct wire_part){l->w.tok, l->w.nonce, l->done};
    }
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        const struct site_delta *d = &c->deltas[i];
        if (d->state >= PENDING_STAGED) continue;
        for (uint32_t p = 0; p < d->c.parts_count; p++) {
            if (core_lease_find(c, d->c.parts[p].tok) || j->resume_count == WIRE_LEASES_MAX)
                continue;
            j->resume[j->resume_count++] = d->c.parts[p];
        }
    }
}

/* Heartbeats bring news of a merge; a site that can only wait for one asks a little more often. A synchronous round is
 * one step, so it begins quickly there, and asks less and less often where somebody is slow. */
static time_ns ask_pause(const struct site_core *c) {
    time_ns t = (time_ns)c->heartbeat_ms * NS_PER_MS / 8, quick = 25 * (time_ns)NS_PER_MS;
    time_ns least = 100 * (time_ns)NS_PER_MS, most = 2 * (time_ns)NS_PER_S;
    t = t < least ? least : t > most ? most : t;
    quick *= 1 + c->asks / 4;
    return c->synchronous && quick < t ? quick : t;
}

static bool asks_often(const struct site_core *c) {
    return c->state == SITE_ACTIVE && !c->closing && site_hungry(c);
}

static bool next_question(struct site_core *c, time_ns now) {
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        struct site_delta *d = &c->deltas[i];
        bool news = d->state == PENDING_STAGED && d->known_at < c->round.head;
        bool again = d->state == PENDING_STAGED && asks_often(c) && now >= c->ask_at;
        /* Merged in a version that is beyond the head: the run went back, and it is in none now. */
        bool back = d->state == PENDING_MERGED && d->merged > c->round.head && now >= c->ask_at;
        if (!d->ask && !news && !again && !back) continue;
        c->ask_at = now + ask_pause(c);
        c->asks++;
        request_begin(c, now, WIRE_OUTCOME)->u.outcome.did = d->c.did;
        return true;
    }
    return false;
}

static bool next_commit(struct site_core *c, time_ns now) {
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        struct site_delta *d = &c->deltas[i];
        if (d->state >= PENDING_STAGED) continue;
        if (d->state != PENDING_COMMIT || d->ask) return false; /* T3: in the order of the cuts */
        request_begin(c, now, WIRE_COMMIT)->u.commit = d->c;
        d->sent = true;
        return true;
    }
    return false;
}

static bool next_lease_change(struct site_core *c, time_ns now) {
    for (uint32_t i = 0; i < c->leases_count; i++) {
        struct site_lease *l = &c->leases[i];
        if (l->give_back) {
            request_begin(c, now, WIRE_RETURN)->u.give_back =
                (struct wire_return){l->w.tok, l->w.nonce};
            return true;
        }
        if (l->shrink && l->cut == 0) {
            request_begin(c, now, WIRE_SHRINK_OK)->u.shrink_ok =
                (struct wire_shrink_ok){l->w.tok, l->w.nonce, l->w.count};
            return true;
        }
    }
    return false;
}

static bool next_member(struct site_core *c, time_ns now, struct buf *notes) {
    if (next_commit(c, now) || next_question(c, now) || next_lease_change(c, now)) return true;
    if (c->closing && site_settled(c)) core_move(c, SITE_LEAVING, notes);
    if (c->state == SITE_LEAVING) {
        request_begin(c, now, WIRE_LEAVE)->u.leave.keep = true; /* the next process goes on */
        return true;
    }
    if (!lease_wanted(c, now)) return false;
    CHECK(c->loaded); /* T4 */
    struct wire_request *r = request_begin(c, now, WIRE_LEASE);
    r->u.lease.want = lease_want(c);
    r->u.lease.base = c->base;
    r->u.lease.ahead = !lease_low(c);
    return true;
}

static bool control_next(struct site_core *c, time_ns now, struct buf *notes) {
    switch (c->state) {
    case SITE_ASKING:
        if (next_question(c, now)) return true;
        core_move(c, SITE_JOINING, notes);
        /* fall through */
    case SITE_JOINING: join_fill(c, &request_begin(c, now, WIRE_JOIN)->u.join); return true;
    case SITE_SYNCING:
    case SITE_ACTIVE:
    case SITE_LEAVING: return next_member(c, now, notes);
    case SITE_NEW:
    case SITE_GONE:
    case SITE_STOPPED: break;
    }
    return false;
}

/* ---- Heartbeats ------------------------------------------------------------------------------- */

static bool joined(const struct site_core *c) {
    return c->state == SITE_SYNCING || c->state == SITE_ACTIVE || c->state == SITE_LEAVING;
}

enum wire_phase site_phase(const struct site_core *c) {
    if (c->draining || c->round.drain) return PHASE_DRAINING;
    if (!joined(c)) return PHASE_JOINING;
    if (!c->loaded) return PHASE_SYNCING;
    return site_available(c) > 0 || c->in_flight > 0 ? PHASE_TRAINING : PHASE_WAITING;
}

static void rates_update(struct site_core *c, time_ns now) {
    double s = (double)(now - c->rate_at) / NS_PER_S;
    if (s < 0.2) return;
    c->steps_per_s = (double)c->rate_steps / s;
    c->tokens_per_s = (double)(c->rate_samples * c->set.tokens_per_sample) / s;
    if (c->rate_steps > 0) c->loss_recent = c->rate_loss_sum / (double)c->rate_steps;
    c->rate_at = now;
    c->rate_steps = c->rate_samples = 0;
    c->rate_loss_sum = 0;
}

static void beat_fill(const struct site_core *c, struct wire_heartbeat *h) {
    h->hb_seq = c->hb_seq;
    h->base = c->base;
    h->steps_total = c->steps_local;
    h->phase = site_phase(c);
    h->steps_per_s = c->steps_per_s;
    h->tokens_per_s = c->tokens_per_s;
    h->loss = c->loss_recent;
    h->pending = c->deltas_count;
    memcpy(h->fabric, c->set.fabric, sizeof h->fabric);
    for (uint32_t i = 0; i < c->leases_count; i++) {
        const struct site_lease *l = &c->leases[i];
        if (l->give_back) continue;
        h->leases[h->leases_count++] = (struct wire_progress){l->w.tok, l->done, l->taken};
    }
    for (uint32_t i = 0; i < c->deltas_count; i++) { /* a long upload must not cost its leases */
        const struct site_delta *d = &c->deltas[i];
        for (uint32_t p = 0; p < d->c.parts_count && d->state < PENDING_STAGED; p++) {
            bool listed = h->leases_count == WIRE_LEASES_MAX;
            for (uint32_t k = 0; k < h->leases_count; k++)
                listed |= h->leases[k].tok == d->c.parts[p].tok;
            if (listed) continue;
            uint64_t done = d->c.parts[p].done;
            h->leases[h->leases_count++] = (struct wire_progress){d->c.parts[p].tok, done, done};
        }
    }
}

static void beat_next(struct site_core *c, time_ns now, struct site_out *out) {
    rates_update(c, now);
    struct site_slot *s = &c->beat;
    memset(s, 0, sizeof *s);
    s->busy = true;
    s->id = ++c->id_last;
    s->deadline = c->set.answer_ns == TIME_NS_NEVER ? TIME_NS_NEVER : now + c->set.answer_ns;
    s->inc = c->inc;
    struct wire_request *r = &s->request;
    r->kind = WIRE_HEARTBEAT;
    memcpy(r->site, c->set.name, sizeof r->site);
    r->run = c->set.run;
    r->inc = c->inc;
    c->hb_seq++;
    r->req = c->hb_seq;
    beat_fill(c, &r->u.heartbeat);
    /* +-20 %, so that sites that started together do not stay together. */
    double ms = (double)c->heartbeat_ms * (0.8 + 0.4 * prng_unit(&c->prng));
    c->beat_at = now + (time_ns)(ms * NS_PER_MS);
    out->has_beat = true;
    out->beat_id = s->id;
    out->beat = *r;
}

/* ---- What to do now --------------------------------------------------------------------------- */

static void transfers_next(struct site_core *c, time_ns now, struct site_out *out) {
    if (c->state == SITE_NEW || c->state >= SITE_GONE) return;
    for (uint32_t i = 0; i < c->deltas_count && !c->uploading && now >= c->upload_at; i++) {
        struct site_delta *d = &c->deltas[i];
        if (d->state != PENDING_UPLOAD || d->ask || !joined(c)) continue;
        c->uploading = true;
        c->upload_did = d->c.did;
        out->has_upload = true;
        out->upload_did = d->c.did;
    }
    bool behind = joined(c) && (!c->loaded || c->round.head > c->base) && !c->complete;
    bool here = c->ready != SITE_VERSION_NONE && c->ready >= c->round.head;
    bool useful = !c->draining || !c->loaded || c->round.head > c->base + 1;
    if (behind && !here && useful && !c->downloading && now >= c->download_at) {
        c->downloading = true;
        c->download_version = c->round.head;
        out->has_download = true;
        out->download_version = c->round.head;
    }
}

static void emit(struct site_core *c, time_ns now, struct site_out *out) {
    bool silent = c->alone && MUTANT(ALONE_SILENT);
    if (!c->control.busy && now >= c->control_at && !silent && control_next(c, now, &out->notes)) {
        out->has_control = true;
        out->control_id = c->control.id;
        out->control = c->control.request;
    }
    if (!c->beat.busy && joined(c) && now >= c->beat_at) beat_next(c, now, out);
    transfers_next(c, now, out);
}

/* Only times that are still to come: what was due has just been done, or is not wanted now. */
time_ns site_expiry(const struct site_core *c) {
    time_ns t = TIME_NS_NEVER;
#define SOONER(x)                                                                                  \
    do {                                                                                           \
        if ((x) > c->now && (x) < t) t = (x);                                                      \
    } while (0)
    if (c->state == SITE_NEW || c->state >= SITE_GONE) return t;
    if (c->control.busy)
        SOONER(c->control.lost ? c->control_at : c->control.deadline);
    else
        SOONER(c->control_at > c->lease_at || c->state != SITE_ACTIVE ? c->control_at
                                                                      : c->lease_at);
    if (c->inc == 0 && !c->alone) SOONER(c->alone_at);
    if (!c->control.busy) SOONER(c->ahead_at);
    if (joined(c)) SOONER(c->beat.busy ? c->beat.deadline : c->beat_at);
    if (c->deltas_count > 0 && asks_often(c)) SOONER(c->ask_at);
    if (!c->uploading) SOONER(c->upload_at);
    if (!c->downloading) SOONER(c->download_at);
#undef SOONER
    return t;
}

/* ---- Events ----------------------------------------------------------------------------------- */

static void on_lost(struct site_core *c, time_ns now, struct buf *notes) {
    core_unheard(c, notes);
    c->failures++; /* of requests alone: heartbeats keep a time of their own */
    c->control.lost = true;
    core_retry(c, now, 0);
}

/* The same request again, under the same number: the hub answers it as it answered the first. */
static void resend(struct site_core *c, time_ns now, struct site_out *out) {
    struct site_slot *s = &c->control;
    s->id = ++c->id_last;
    s->deadline = c->set.answer_ns == TIME_NS_NEVER ? TIME_NS_NEVER : now + c->set.answer_ns;
    s->lost = false;
    out->has_control = true;
    out->control_id = s->id;
    out->control = s->request;
}

/* Gone for good, where the run went back: then what the hub says next is the head. Without weights the base
 * is that of those that were forgotten, and a head below it counts too. */
static void head_in_doubt(struct site_core *c) {
    c->round.head = c->loaded ? c->base : 0;
}

static void on_transfer(struct site_core *c, time_ns now, const struct site_event *ev,
                        struct buf *notes) {
    struct site_delta *d = core_delta_find(c, &ev->did);
    if (ev->kind == SITE_DELTA_STORED && d && d->state == PENDING_CUT) {
        d->c.blob = ev->u.stored.blob;
        d->c.bytes = ev->u.stored.bytes;
        d->state = PENDING_UPLOAD;
    }
    if (ev->kind == SITE_UPLOADED || ev->kind == SITE_UPLOAD_FAILED) {
        if (id_equal(&c->upload_did, &ev->did)) c->uploading = false;
        bool good = ev->kind == SITE_UPLOADED;
        if (good && d && d->state == PENDING_UPLOAD) d->state = PENDING_COMMIT;
        c->upload_failures = good ? 0 : c->upload_failures + 1;
        c->upload_at = good ? now : now + backoff(c, c->upload_failures);
    }
    if (ev->kind == SITE_DOWNLOADED || ev->kind == SITE_DOWNLOAD_FAILED) {
        c->downloading = false;
        bool good = ev->kind == SITE_DOWNLOADED;
        c->download_failures = good ? 0 : c->download_failures + 1;
        enum { DOWNLOADS_IN_VAIN = 4 };
        if (c->download_failures >= DOWNLOADS_IN_VAIN) head_in_doubt(c);
        c->download_at = good ? now : now + backoff(c, c->download_failures);
        bool newer = good && (c->ready == SITE_VERSION_NONE || ev->u.download.version > c->ready);
        if (newer) {
            c->ready = ev->u.download.version;
            c->ready_tokens = ev->u.download.tokens;
            core_note(notes, "lvl=info ev=version_here version=%" PRIu64, c->ready);
        }
    }
}

static void handle(struct site_core *c, time_ns now, const struct site_event *ev,
                   struct site_out *out) {
    struct buf *notes = &out->notes;
    switch (ev->kind) {
    case SITE_TICK: break;
    case SITE_START:
        if (c->state != SITE_NEW) break;
        if (c->loaded) c->alone_at = now + c->set.alone_ns;
        core_rejoin(c, now, notes);
        break;
    case SITE_ANSWER:
        if (!c->control.busy || ev->id != c->control.id || c->state >= SITE_GONE) break;
        core_heard(c, now, notes);
        c->control.busy = false;
        c->control_at = now;
        core_on_answer(c, now, ev->u.answer, notes);
        break;
    case SITE_LOST:
        if (c->control.busy && !c->control.lost && ev->id == c->control.id) on_lost(c, now, notes);
        break;
    case SITE_BEAT_ANSWER:
        if (!c->beat.busy || ev->id != c->beat.id || c->state >= SITE_GONE) break;
        c->beat.busy = false;
        core_heard(c, now, notes);
        core_on_beat(c, now, ev->u.answer, notes);
        break;
    case SITE_BEAT_LOST:
        if (!c->beat.busy || ev->id != c->beat.id) break;
        c->beat.busy = false;
        core_unheard(c, notes);
        break;
    case SITE_DELTA_STORED:
    case SITE_UPLOADED:
    case SITE_UPLOAD_FAILED:
    case SITE_DOWNLOADED:
    case SITE_DOWNLOAD_FAILED: on_transfer(c, now, ev, notes); break;
    case SITE_CLOSE:
        c->closing = true;
        /* fall through */
    case SITE_DRAIN:
        if (!c->draining) core_note(notes, "lvl=info ev=draining");
        c->draining = true;
        break;
    case SITE_FATAL: core_stop(c, ev->u.fatal.status, ev->u.fatal.text, notes); break;
    }
}

/* No hub for a restored site: it trains on with what it holds, and goes on asking. */
static void alone_begin(struct site_core *c, time_ns now, struct buf *notes) {
    if (c->inc != 0 || c->alone || !c->loaded || c->alone_at == TIME_NS_NEVER) return;
    if (now < c->alone_at && !c->offline) return;
    c->alone = true;
    core_note(notes,
              "lvl=warn ev=alone version=%" PRIu64 " samples_left=%" PRIu64
              " text=\"the hub did not let this site in yet; training the samples that it holds\"",
              c->base, site_available(c));
}

static void timers(struct site_core *c, time_ns now, struct site_out *out) {
    alone_begin(c, now, &out->notes);
    struct site_slot *s = &c->control;
    if (s->busy && !s->lost && now >= s->deadline) on_lost(c, now, &out->notes);
    if (c->beat.busy && now >= c->beat.deadline) {
        c->beat.busy = false;
        core_unheard(c, &out->notes);
    }
}

void site_step(struct site_core *c, time_ns now, const struct site_event *ev,
               struct site_out *out) {
    out_reset(out);
    c->now = now;
    handle(c, now, ev, out);
    if (c->state == SITE_NEW || c->state >= SITE_GONE) return;
    timers(c, now, out);
    if (c->control.busy && c->control.lost && now >= c->control_at) resend(c, now, out);
    emit(c, now, out);
    site_check(c);
}
