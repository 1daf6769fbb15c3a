/* SPDX-License-Identifier: Apache-2.0 */
/* core_answer.c - what the hub's answers mean. See core.c for the states and invariants.
 *
 * A verdict about a lease is believed only when it can not be older than what is known here: a
 * heartbeat that left before a COMMIT was answered may call a lease gone that the COMMIT consumed. So
 * leases with a contribution under way (cut > 0) and leases of unanswered contributions take their
 * verdict from the COMMIT alone. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "site/core.h"

/* ---- Lists ------------------------------------------------------------------------------------- */

struct site_lease *core_lease_find(struct site_core *c, uint64_t tok) {
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (c->leases[i].w.tok == tok) return &c->leases[i];
    return NULL;
}

void core_lease_drop(struct site_core *c, struct site_lease *l, const char *why,
                     struct buf *notes) {
    size_t i = (size_t)(l - c->leases);
    CHECK(i < c->leases_count);
    uint64_t flying = l->taken - l->done;
    if (l->done > l->cut)
        c->reset_due = true; /* its work is in the weights and can not be handed in */
    core_note(notes,
              "lvl=%s ev=lease_dropped lease=%" PRIx64 " samples=%" PRIu64 " lost=%" PRIu64
              " why=\"%s\"",
              l->taken > l->cut ? "warn" : "info", l->w.tok, l->w.count, l->done - l->cut, why);
    CHECK(flying <= c->in_flight);
    for (size_t k = 0; k < i && flying > 0; k++)
        c->void_mixed |= c->leases[k].taken > c->leases[k].done;
    c->in_flight -= flying;
    c->void_in_flight += flying;
    memmove(l, l + 1, (c->leases_count - i - 1) * sizeof *l);
    c->leases_count--;
}

void core_lease_trim(struct site_lease *l, uint64_t count) {
    CHECK(count <= l->w.count);
    CHECK(count >= l->taken);
    uint64_t left = count;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->w.ranges_count && left > 0; i++, kept++) {
        if (l->w.ranges[i].count > left) l->w.ranges[i].count = left;
        left -= l->w.ranges[i].count;
    }
    l->w.ranges_count = kept;
    l->w.count = count;
}

struct site_delta *core_delta_find(struct site_core *c, const struct id128 *did) {
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (id_equal(&c->deltas[i].c.did, did)) return &c->deltas[i];
    return NULL;
}

void core_delta_remove(struct site_core *c, struct site_delta *d) {
    size_t i = (size_t)(d - c->deltas);
    CHECK(i < c->deltas_count);
    memmove(d, d + 1, (c->deltas_count - i - 1) * sizeof *d);
    c->deltas_count--;
}

void site_forget(struct site_core *c, const char *why, struct buf *notes) {
    core_note(notes, "lvl=warn ev=forget base=%" PRIu64 " contributions=%u why=\"%s\"", c->base,
              c->deltas_count, why);
    while (c->leases_count > 0 && c->leases[0].cut > 0)
        core_lease_drop(c, &c->leases[0], why, notes);
    c->deltas_count = 0;
    memset(&c->residual, 0, sizeof c->residual);
    c->loaded = false;
    c->void_mixed = true; /* a step before the next weights are here is lost with these */
    c->ready = SITE_VERSION_NONE;
    site_reset(c, notes);
}

/* ---- The round's header ------------------------------------------------------------------------ */

static void round_take(struct site_core *c, const struct wire_round *r, bool force,
                       struct buf *notes) {
    if (r->head < c->round.head && !force) return; /* an older answer that came late */
    if (r->head > c->round.head)
        core_note(notes, "lvl=debug ev=head version=%" PRIu64 " tokens=%" PRIu64, r->head,
                  r->tokens);
    if (r->complete && !c->complete)
        core_note(notes, "lvl=info ev=complete version=%" PRIu64, r->head);
    if (r->drain && !c->round.drain) core_note(notes, "lvl=info ev=drain_asked by=hub");
    c->round = *r;
    bool wanted = (c->loaded ? c->base_tokens : r->tokens) < r->sync_tokens;
    if (wanted && !c->set.gradients && !c->complete)
        core_stop(
            c, BRG_E_REFUSED,
            "the run's rounds are synchronous now (outer.synchronous), and this trainer hands in "
            "no gradients; use beringia site, or join when that phase is over",
            notes);
    if (c->loaded && wanted != c->synchronous) c->reset_due = true; /* the setting was changed */
    if (c->round.steps_target == 0) c->round.steps_target = c->set.steps_target;
    if (r->complete) c->complete = true;
    if (r->head < c->version_seen) return;
    c->version_seen = r->head;
    c->theta_seen = r->theta;
    c->version_seal = r->seal;
}

/* ---- JOIN -------------------------------------------------------------------------------------- */

static const struct wire_lease_state *verdict_of(const struct wire_lease_state *v, uint32_t n,
                                                 uint64_t tok) {
    for (uint32_t i = 0; i < n; i++)
        if (v[i].tok == tok) return &v[i];
    return NULL;
}

/* S7: the hub's extent is the truth, before a single position is used. */
static void join_leases(struct site_core *c, const struct wire_join_answer *a, struct buf *notes) {
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        struct site_delta *d = &c->deltas[i];
        for (uint32_t p = 0; p < d->c.parts_count && d->state < PENDING_STAGED; p++) {
            const struct wire_lease_state *v =
                verdict_of(a->leases, a->leases_count, d->c.parts[p].tok);
            if (v && v->verdict != LEASE_GONE) continue;
            d->ask = d->ask_last = true; /* consumed by this very contribution, or lost? */
        }
    }
    for (uint32_t i = c->leases_count; i-- > 0;) {
        struct site_lease *l = &c->leases[i];
        const struct wire_lease_state *v = verdict_of(a->leases, a->leases_count, l->w.tok);
        if (l->give_back) {
            core_lease_drop(c, l, "given back", notes);
        } else if (!v || v->verdict == LEASE_GONE || v->keep < l->taken) {
            if (l->cut >
                0) { /* the question above decides; nothing more of it is trained meanwhile */
                core_lease_trim(l, l->taken);
                continue;
            }
            uint64_t worked = l->done;
            core_lease_drop(c, l, "the hub gave it to somebody else", notes);
            if (!MUTANT(ALONE_KEEPS_LOST) || !c->alone) continue;
            c->seg.samples -= worked;
            c->reset_due = false;
        } else if (v->keep < l->w.count) {
            core_lease_trim(l, v->keep);
        }
    }
}

static void on_join(struct site_core *c, time_ns now, const struct wire_join_answer *a,
                    struct buf *notes) {
    c->inc = a->inc;
    c->ttl_ms = a->ttl_ms > 0 ? a->ttl_ms : c->ttl_ms;
    c->heartbeat_ms = a->heartbeat_ms > 0 ? a->heartbeat_ms : c->heartbeat_ms;
    c->beat_at = now;
    c->rate_at = now;
    c->rate_steps = c->rate_samples = 0; /* what was done before says nothing about now */
    c->rate_loss_sum = 0;
    c->hb_seq = 0;
    c->held = false;
    c->dry = false;
    c->lease_at = c->ahead_at = now;
    core_note(notes, "lvl=info ev=joined inc=%u head=%" PRIu64 " base=%" PRIu64 " leases_kept=%u",
              a->inc, a->round.head, c->loaded ? c->base : a->round.head, a->leases_count);
    round_take(c, &a->round, true, notes);
    if (c->state == SITE_STOPPED) return;
    join_leases(c, a, notes);
    c->alone = false;
    if (c->loaded && a->round.head < c->base)
        site_forget(c, "the hub went back to an older version", notes);
    core_move(c, c->loaded ? SITE_ACTIVE : SITE_SYNCING, notes);
}

/* ---- Contributions ----------------------------------------------------------------------------- */

/* A hub that was restored from an old copy gives toks again, with other nonces: what this site holds
 * under such a name is of the hub that was lost. */
static void lease_of_lost_hub(struct site_core *c, const struct wire_lease *w, struct buf *notes) {
    struct site_lease *l = core_lease_find(c, w->tok);
    if (l && l->w.nonce != w->nonce) core_lease_drop(c, l, "of a hub that was lost", notes);
}

/* The rest of the lease that this contribution ended in is ours under a new name, or not at all. */
static void rest_take(struct site_core *c, const struct site_delta *d,
                      const struct wire_commit_answer *a, struct buf *notes) {
    struct site_lease *l = NULL;
    if (a->has_rest) lease_of_lost_hub(c, &a->rest, notes);
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (c->leases[i].cut > 0 && id_equal(&c->leases[i].cut_did, &d->c.did)) l = &c->leases[i];
    if (!l) return;
    bool fits = a->has_rest && a->rest.epoch == l->w.epoch && a->rest.count >= l->taken - l->cut;
    if (!fits) {
        core_lease_drop(c, l, "the hub did not keep the rest of it", notes);
        return;
    }
    uint64_t count = l->w.count - l->cut; /* shorter than the hub's where a wish was granted (T1) */
    l->w = a->rest;
    l->done -= l->cut;
    l->taken -= l->cut;
    l->cut = 0;
    l->shrink = count < l->w.count;
    if (l->shrink) core_lease_trim(l, count);
}

static void delta_failed(struct site_core *c, struct site_delta *d, const char *how,
                         const char *why, struct buf *notes) {
    char hex[ID_HEX_BYTES];
    id_hex(&d->c.did, hex);
    core_note(notes,
              "lvl=warn ev=contribution_%s did=%s base=%" PRIu64 " steps=%" PRIu64 " reason=\"%s\"",
              how, hex, d->c.base, d->c.steps, why);
    for (uint32_t p = 0; p < d->c.parts_count; p++) {
        struct site_lease *l = core_lease_find(c, d->c.parts[p].tok);
        if (l && l->w.nonce == d->c.parts[p].nonce)
            core_lease_drop(c, l, "its contribution was refused", notes);
    }
    /* That others were faster says nothing about this machine. */
    bool late = d->c.codec == CODEC_GRADIENT && c->round.head > d->c.base;
    d->state = PENDING_FAILED; /* S4: site_duty says RESET until the weights have lost it */
    d->ask = false;
    c->reset_due = true;
    c->rejected_count++;
    enum { FAILED_IN_ROW_MAX = 8 };
    if (!late && ++c->failed_in_row >= FAILED_IN_ROW_MAX)
        core_stop(c, BRG_E_REFUSED,
                  "the hub refused several contributions in a row; the last reason "
                  "is above. Look at the learning rate, the data, and this machine.",
                  notes);
}

static void on_unknown(struct site_core *c, struct site_delta *d, struct buf *notes) {
    d->ask = false;
    if (d->ask_last || MUTANT(UNKNOWN_IS_REJECTED)) {
        delta_failed(c, d, "lost", "its leases went to somebody else meanwhile", notes);
    } else if (d->state >= PENDING_COMMIT) {
        d->state = PENDING_UPLOAD; /* the hub may have dropped the bytes with it */
    }
}

static void on_outcome(struct site_core *c, struct site_delta *d,
                       const struct wire_commit_answer *a, struct buf *notes) {
    char hex[ID_HEX_BYTES];
    id_hex(&d->c.did, hex);
    bool first = d->state < PENDING_STAGED;
    switch (a->outcome) {
    case OUTCOME_UNKNOWN: on_unknown(c, d, notes); return;
    case OUTCOME_STAGED:
    case OUTCOME_MERGED:
        d->ask = d->ask_last = false;
        if (first) rest_take(c, d, a, notes);
        if (first)
            core_note(notes, "lvl=info ev=staged did=%s samples_tokens=%" PRIu64, hex, d->c.tokens);
        c->failed_in_row = 0;
        bool again = d->state == PENDING_MERGED;
        d->state = a->outcome == OUTCOME_MERGED ? PENDING_MERGED : PENDING_STAGED;
        d->known_at = a->round.head > d->known_at ? a->round.head : d->known_at;
        d->merged = a->version;
        if (d->c.tokens == 0) {
            /* Skips only: nothing of it is in the weights, and nothing has to wait for its merge. */
            core_delta_remove(c, d);
            return;
        }
        if (a->outcome == OUTCOME_MERGED && !again) {
            c->merged_count++;
            core_note(notes, "lvl=info ev=merged did=%s version=%" PRIu64, hex, a->version);
            /* In the base already, which a rebase would have given back (T5): only a hub that
             * contradicts itself says so. The reset makes the weights right whatever it meant. */
            if (a->version <= c->base) {
                core_delta_remove(c, d);
                c->reset_due = true;
            }
        }
        return;
    case OUTCOME_REJECTED: delta_failed(c, d, "rejected", a->reason, notes); return;
    case OUTCOME_DISCARDED: {
        if (first) rest_take(c, d, a, notes);
        delta_failed(c, d, "discarded", a->reason, notes);
        return;
    }
    }
}

/* ---- Leases ------------------------------------------------------------------------------------ */

static bool lease_sound(const struct site_core *c, const struct wire_lease *l) {
    uint64_t sum = 0;
    if (l->ranges_count == 0 || l->ranges_count > WIRE_RANGES_MAX) return false;
    for (uint32_t i = 0; i < l->ranges_count; i++) {
        if (l->ranges[i].count == 0 || l->ranges[i].count > l->count - sum) return false;
        sum += l->ranges[i].count;
    }
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (c->leases[i].w.tok == l->tok) return false;
    return sum == l->count;
}

static void on_lease(struct site_core *c, time_ns now, const struct wire_lease_answer *a,
                     struct buf *notes) {
    round_take(c, &a->round, false, notes);
    if (!a->granted) {
        time_ns again = now + (time_ns)(a->wait_ms > 50 ? a->wait_ms : 50) * NS_PER_MS;
        c->ahead_at = again;
        if (c->control.request.u.lease.ahead)
            return; /* others need it; what is needed may be there */
        c->dry = true;
        c->lease_at = again;
        return;
    }
    lease_of_lost_hub(c, &a->lease, notes);
    if (!lease_sound(c, &a->lease) || c->leases_count == WIRE_LEASES_MAX) {
        core_stop(c, BRG_E_MESSAGE, "the hub granted a lease that contradicts itself", notes);
        return;
    }
    c->dry = false;
    c->leases[c->leases_count++] = (struct site_lease){.w = a->lease};
    core_note(notes, "lvl=info ev=granted lease=%" PRIx64 " epoch=%u samples=%" PRIu64,
              a->lease.tok, a->lease.epoch, a->lease.count);
}

static void on_shrunk(struct site_core *c, uint64_t tok) {
    struct site_lease *l = core_lease_find(c, tok);
    if (l) l->shrink = false;
}

static void on_given_back(struct site_core *c, uint64_t tok, struct buf *notes) {
    struct site_lease *l = core_lease_find(c, tok);
    if (l && l->give_back) core_lease_drop(c, l, "given back", notes);
}

/* ---- Control answers --------------------------------------------------------------------------- */

/* Codes that mean the same whatever was asked. True: done with this answer. */
static bool on_code(struct site_core *c, time_ns now, const struct wire_answer *a,
                    struct buf *notes) {
    switch (a->code) {
    case WIRE_OK: return false;
    case WIRE_COMPLETE: c->complete = true; return false;
    case WIRE_RETRY:
        c->control.busy = true; /* the same request again */
        c->control.lost = true;
        core_retry(c, now, a->retry_ms);
        return true;
    case WIRE_FENCED:
        core_stop(c, BRG_E_FENCED,
                  "another process took over this site's name; this one stops. Its "
                  "work since the last hand-in is done again by others.",
                  notes);
        return true;
    case WIRE_MISMATCH: core_stop(c, BRG_E_MANIFEST, a->text, notes); return true;
    case WIRE_HUB_BEHIND:
        if (!c->held)
            core_note(notes, "lvl=warn ev=hub_behind seen=%" PRIu64 " text=\"%s\"", c->version_seen,
                      a->text);
        c->held = true;
        c->control.busy = true;
        c->control.lost = true;
        c->failures = 6; /* a person has to act: ask seldom */
        core_retry(c, now, a->retry_ms);
        return true;
    case WIRE_BAD:
    case WIRE_KEY_REUSED: core_stop(c, BRG_E_REFUSED, a->text, notes); return true;
    case WIRE_UNKNOWN_SITE: core_rejoin(c, now, notes); return true;
    case WIRE_UPLOAD: return false;
    }
    core_stop(c, BRG_E_MESSAGE, "the hub answered with a code this version does not know", notes);
    return true;
}

/* An older term than one seen: a hub that was replaced and does not know it, or one restored from an
 * old copy. What it says may be long untrue ("not known" above all), so it is not believed; a JOIN, which
 * names the newest term seen, makes the one fail and the other hold. */
static bool of_old_term(struct site_core *c, time_ns now, const struct wire_answer *a,
                        struct buf *notes) {
    bool old = a->term > 0 && a->term < c->term_seen && !MUTANT(OLD_TERM_BELIEVED);
    if (!old || a->kind == WIRE_JOIN || a->code == WIRE_HUB_BEHIND) return false;
    core_note(notes, "lvl=warn ev=old_hub term=%u seen=%u", a->term, c->term_seen);
    if (c->state == SITE_ASKING)
        core_move(c, SITE_JOINING, notes);
    else
        core_rejoin(c, now, notes);
    return true;
}

/* With the hub's seal, or a JOIN could not prove it later. */
static void term_take(struct site_core *c, const struct wire_answer *a) {
    if (a->term < c->term_seen) return;
    if (a->term > c->term_seen || !hash_is_zero(&a->term_seal)) c->term_seal = a->term_seal;
    c->term_seen = a->term;
}

void core_on_answer(struct site_core *c, time_ns now, const struct wire_answer *a,
                    struct buf *notes) {
    const struct wire_request *r = &c->control.request;
    if (a->kind != r->kind || of_old_term(c, now, a, notes)) return;
    term_take(c, a);
    if (r->kind == WIRE_LEAVE && (a->code == WIRE_UNKNOWN_SITE || a->code == WIRE_FENCED)) {
        core_move(c, SITE_GONE, notes); /* gone is what was wanted */
        return;
    }
    if (on_code(c, now, a, notes)) return;
    struct site_delta *d = NULL;
    switch (r->kind) {
    case WIRE_JOIN: on_join(c, now, &a->u.join, notes); break;
    case WIRE_LEASE: on_lease(c, now, &a->u.lease, notes); break;
    case WIRE_COMMIT:
    case WIRE_OUTCOME:
        d = core_delta_find(c, r->kind == WIRE_COMMIT ? &r->u.commit.did : &r->u.outcome.did);
        if (c->state != SITE_ASKING) round_take(c, &a->u.commit.round, false, notes);
        if (!d) break;
        if (a->code == WIRE_COMPLETE && a->u.commit.outcome == OUTCOME_UNKNOWN) d->ask_last = true;
        if (a->code == WIRE_UPLOAD)
            d->state = PENDING_UPLOAD;
        else
            on_outcome(c, d, &a->u.commit, notes);
        break;
    case WIRE_SHRINK_OK: on_shrunk(c, r->u.shrink_ok.tok); break;
    case WIRE_RETURN: on_given_back(c, r->u.give_back.tok, notes); break;
    case WIRE_LEAVE: core_move(c, SITE_GONE, notes); break;
    case WIRE_HEARTBEAT: break;
    }
}

/* ---- Heartbeat answers ------------------------------------------------------------------------- */

static void on_wish(struct site_lease *l, uint64_t keep, struct buf *notes) {
    uint64_t count = keep > l->taken ? keep : l->taken; /* never below what is fetched (2.9) */
    if (count >= l->w.count) return;
    core_note(notes, "lvl=info ev=shrink lease=%" PRIx64 " from=%" PRIu64 " to=%" PRIu64, l->w.tok,
              l->w.count, count);
    if (count == 0) {
        l->give_back = true;
        return;
    }
    if (!MUTANT(SHRINK_NOT_KEPT)) core_lease_trim(l, count);
    l->shrink = true;
}

static void beat_leases(struct site_core *c, const struct wire_heartbeat_answer *a,
                        struct buf *notes) {
    const struct wire_heartbeat *asked = &c->beat.request.u.heartbeat;
    for (uint32_t i = 0; i < a->leases_count; i++) {
        struct site_lease *l = core_lease_find(c, a->leases[i].tok);
        bool was_listed = false;
        for (uint32_t k = 0; k < asked->leases_count; k++)
            was_listed |= asked->leases[k].tok == a->leases[i].tok;
        if (!l || !was_listed || l->cut > 0 || l->give_back) continue;
        /* A RETURN, SHRINK_OK or COMMIT of this lease may be under way: its answer is newer. */
        if (c->control.busy && c->control.request.kind == WIRE_SHRINK_OK) continue;
        if (a->leases[i].verdict == LEASE_GONE)
            core_lease_drop(c, l, "the hub gave it to somebody else", notes);
        else if (a->leases[i].verdict == LEASE_WISH)
            on_wish(l, a->leases[i].keep, notes);
    }
}

void core_on_beat(struct site_core *c, time_ns now, const struct wire_answer *a,
                  struct buf *notes) {
    if (c->beat.inc != c->inc || c->state < SITE_SYNCING) return; /* of an earlier membership */
    if (c->state == SITE_LEAVING)
        return; /* that the hub does not know it any more is what LEAVE is for */
    if (a->term > 0 && a->term < c->term_seen) {          /* see of_old_term */
        if (!c->control.busy) core_rejoin(c, now, notes); /* nothing else would ask */
        return;
    }
    term_take(c, a);
    switch (a->code) {
    case WIRE_OK:
    case WIRE_COMPLETE: break;
    case WIRE_FENCED:
    case WIRE_MISMATCH:
    case WIRE_BAD:
    case WIRE_KEY_REUSED: (void)on_code(c, now, a, notes); return;
    case WIRE_UNKNOWN_SITE: core_rejoin(c, now, notes); return;
    case WIRE_RETRY:
    case WIRE_HUB_BEHIND:
    case WIRE_UPLOAD: return;
    }
    const struct wire_heartbeat_answer *h = &a->u.heartbeat;
    if (h->hb_seq <= c->hb_answered && h->hb_seq != c->hb_seq) return;
    c->hb_answered = h->hb_seq;
    round_take(c, &h->round, false, notes);
    if (a->code == WIRE_COMPLETE) c->complete = true;
    beat_leases(c, h, notes);
}
