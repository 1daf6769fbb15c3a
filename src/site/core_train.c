/* SPDX-License-Identifier: Apache-2.0 */
/* core_train.c - positions, steps, the segment, and when the weights change. See core.c.
 *
 * Only the training thread calls these, between its optimizer steps; so what is in the weights and
 * what the counts say change together (S2, S3). The hub's answers may come in between: they never
 * touch done or taken of a lease that stays, they only drop leases and set reset_due.
 *
 * A step on samples whose lease went away meanwhile can not be taken back, so it asks for a reset:
 * the weights go back to what is surely ours. That is dear and rare, and never wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "site/core.h"

uint64_t site_available(const struct site_core *c) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (!c->leases[i].give_back) n += c->leases[i].w.count - c->leases[i].taken;
    return n;
}

static bool leases_full(const struct site_core *c) {
    uint32_t held = c->leases_count;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state < PENDING_STAGED) held += c->deltas[i].c.parts_count;
    return held >= WIRE_LEASES_MAX;
}

static struct site_position position_at(const struct wire_lease *w, uint64_t index) {
    for (uint32_t i = 0; i < w->ranges_count; i++) {
        if (index < w->ranges[i].count)
            return (struct site_position){w->epoch, w->ranges[i].start + index};
        index -= w->ranges[i].count;
    }
    CHECK(!"index beyond the lease"); /* S5 */
    return (struct site_position){0, 0};
}

/* ---- Synchronous rounds --------------------------------------------------------------------------- */

bool site_gradients(const struct site_core *c) {
    return c->loaded && c->synchronous;
}

bool site_delta_local(const struct site_delta *d) {
    bool gradient = d->c.codec == CODEC_GRADIENT;
    return d->state != PENDING_FAILED && !gradient;
}

static bool share_done(const struct site_core *c);

/* One batch a version: more would be a gradient of it that comes too late. */
static bool gradient_wanted(const struct site_core *c) {
    if (c->inc == 0 || c->round.head > c->base) return false;
    return c->deltas_count == 0 && c->in_flight == 0 && c->void_in_flight == 0 && !share_done(c);
}

/* Where the phase ends, the trainer's own moments begin: cold, so with a ramp as a site that joins late. */
static void phase_take(struct site_core *c) {
    bool was = c->synchronous;
    c->synchronous = c->base_tokens < c->round.sync_tokens;
    if (!was || c->synchronous || c->set.warmup_cold == 0) return;
    c->set.warmup_steps = c->set.warmup_cold;
    c->warmup_from = c->steps_total;
}

uint64_t site_take(struct site_core *c, uint64_t n, struct site_position *out) {
    c->wanted = n;
    if (c->inc == 0 && !c->alone) return 0; /* S7: the hub's word about the extents comes first */
    if (!c->loaded || c->draining || c->state >= SITE_LEAVING || c->complete) return 0;
    if (c->reset_due) return 0; /* what was taken now would be thrown away */
    if (c->synchronous && !gradient_wanted(c)) return 0;
    uint64_t there = site_available(c);
    /* A short batch only where waiting brings nothing: the hub said so, or cannot be asked. */
    bool last = c->dry || c->offline || leases_full(c) || c->round.drain;
    if (there < n && !last) return 0;
    uint64_t got = 0;
    for (uint32_t i = 0; i < c->leases_count && got < n; i++) {
        struct site_lease *l = &c->leases[i];
        while (!l->give_back && l->taken < l->w.count && got < n)
            out[got++] = position_at(&l->w, l->taken++);
        if (MUTANT(DONE_AT_FETCH)) l->done = l->taken; /* and again at the step */
    }
    c->in_flight += got;
    return got;
}

static bool skips_add(struct site_core *c, const struct site_lease *l, uint64_t from, uint64_t n,
                      const char *reason) {
    struct site_segment *g = &c->seg;
    if (n > WIRE_SKIPS_MAX - g->skips_count) return false;
    for (uint64_t i = 0; i < n; i++) {
        struct wire_skip *s = &g->skips[g->skips_count++];
        s->position = (MUTANT(SKIP_WITHOUT_EPOCH) ? 0 : l->w.epoch * c->set.positions) +
                      position_at(&l->w, from + i).position;
        snprintf(s->reason, sizeof s->reason, "%s", reason);
    }
    return true;
}

static void figures(struct site_core *c, uint64_t n, double loss) {
    c->steps_total++;
    c->steps_local++;
    c->samples_total += n;
    c->loss_last = loss;
    c->rate_steps++;
    c->rate_samples += n;
    c->rate_loss_sum += loss;
}

enum brg_status site_trained(struct site_core *c, time_ns now, uint64_t n, double loss, double lr,
                             const char *skip) {
    (void)now;
    if (n == 0 || n > c->in_flight + c->void_in_flight) return BRG_E_USAGE;
    uint64_t lost = n < c->void_in_flight ? n : c->void_in_flight, left = n - lost;
    c->void_in_flight -= lost;
    /* Where void and good samples are mixed nobody can say which ones these were: all begin anew. */
    if (lost > 0 && (!skip || c->void_mixed)) c->reset_due = true;
    bool listed = true;
    for (uint32_t i = 0; i < c->leases_count && left > 0; i++) {
        struct site_lease *l = &c->leases[i];
        uint64_t k = l->taken - l->done < left ? l->taken - l->done : left;
        if (skip && listed && k > 0) listed = skips_add(c, l, l->done, k, skip);
        if (!MUTANT(DONE_AT_FETCH)) l->done += k; /* S1: here and nowhere else */
        left -= k;
        c->in_flight -= k;
        c->seg.samples += k;
    }
    CHECK(left == 0);
    if (!skip && n > lost) { /* else it is no step of this segment: none of it counts */
        c->seg.steps++;
        c->seg.lr_sum += lr;
        c->seg.loss_sum += loss;
    }
    if (!skip) figures(c, n, loss);
    if (listed) return BRG_OK;
    c->reset_due = true; /* S6: a skip that is not listed must not count as trained */
    return BRG_E_LIMIT;
}

/* ---- The rate ---------------------------------------------------------------------------------- */

double site_lr_tokens(const struct site_core *c) {
    /* Own work that the base's token count does not have yet, and the step itself: the rate is the one
     * at the end of the step, so that the first step of a warm-up moves. */
    uint64_t steps = c->seg.steps + 1;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state != PENDING_FAILED) steps += c->deltas[i].c.steps;
    uint64_t own = c->set.batch * c->set.tokens_per_sample;
    uint64_t step = c->round.tokens_per_step > 0 ? c->round.tokens_per_step : own;
    return (double)c->base_tokens + (double)steps * (double)step;
}

double site_lr(const struct site_core *c) {
    double lr = schedule_lr(&c->set.schedule, site_lr_tokens(c));
    uint64_t steps = c->steps_total - c->warmup_from;
    if (steps < c->set.warmup_steps) lr *= (double)(steps + 1) / (double)c->set.warmup_steps;
    return lr;
}

/* ---- What the training thread should do to the weights now ------------------------------------- */

static bool rebase_known(const struct site_core *c, uint64_t version) {
    if (MUTANT(REBASE_BLIND)) return true;
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        const struct site_delta *d = &c->deltas[i];
        bool unsent = (d->state == PENDING_CUT || d->state == PENDING_UPLOAD) && !d->ask &&
                      (!d->sent || MUTANT(UPLOAD_IS_UNSENT));
        bool staged = d->state == PENDING_STAGED && d->known_at >= version;
        if (!unsent && !staged && d->state != PENDING_MERGED) return false;
    }
    return true; /* T5 */
}

static bool starved(const struct site_core *c) {
    return site_available(c) == 0 && c->in_flight == 0 && (c->dry || leases_full(c));
}

/* A round's share counts from the rebase on the version that took the last contribution in: all sites
 * rebase at about the same moment, so they also finish together, and nobody's delta grows old waiting
 * for the others. Counted from the cut, a site that was early once stays early for ever. */
static bool share_done(const struct site_core *c) {
    return c->seg.steps - c->seg.steps_waited >= c->round.steps_target;
}

bool site_hungry(const struct site_core *c) {
    return (c->synchronous && c->deltas_count > 0) || share_done(c) || starved(c) || c->draining;
}

static bool cut_due(const struct site_core *c) {
    const struct site_segment *g = &c->seg;
    if (g->samples == 0 || c->deltas_count == SITE_PENDING_MAX) return false;
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (c->leases[i].cut > 0) return false; /* T3 */
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state < PENDING_STAGED) return false;
    uint64_t behind = c->round.head > c->base ? c->round.head - c->base : 0;
    if (c->synchronous && (behind > 0 || c->deltas_count > 0)) return false;
    bool member = c->state == SITE_ACTIVE || (c->alone && MUTANT(ALONE_CUTS));
    if (c->complete || !member) return false;
    if (c->draining) return behind <= 1 || c->offline;
    if (c->deltas_count >= c->set.pending_max) return false;
    bool full = share_done(c) || starved(c) || g->skips_count > WIRE_SKIPS_MAX / 2;
    /* Fresh work counts more than late work: first the new version, unless it is long in coming. */
    bool slow = behind == 1 && g->steps >= 2 * c->round.steps_target;
    return full && (behind == 0 || slow);
}

enum site_duty site_duty(const struct site_core *c) {
    if (c->state == SITE_NEW || c->state >= SITE_GONE) return SITE_DUTY_NONE;
    bool ready = c->ready != SITE_VERSION_NONE;
    if (!c->loaded) return ready ? SITE_DUTY_LOAD : SITE_DUTY_NONE;
    for (uint32_t i = 0; i < c->deltas_count; i++) /* its bytes are not on disk yet: a moment */
        if (c->deltas[i].state == PENDING_CUT) return SITE_DUTY_NONE;
    if (c->reset_due) return SITE_DUTY_RESET; /* T6 */
    bool moved = c->round.head > c->base || (ready && c->ready > c->base);
    if (c->synchronous && c->seg.samples > 0 && (moved || c->deltas_count > 0))
        return SITE_DUTY_RESET; /* a gradient that no round takes any more */
    if (ready && c->ready > c->base && rebase_known(c, c->ready)) return SITE_DUTY_REBASE;
    return cut_due(c) ? SITE_DUTY_CUT : SITE_DUTY_NONE;
}

bool site_delta_in(const struct site_delta *d, uint64_t version) {
    return d->state == PENDING_MERGED && d->merged <= version;
}

void site_reset(struct site_core *c, struct buf *notes) {
    uint64_t lost = c->seg.samples;
    for (uint32_t i = c->deltas_count; i-- > 0;) {
        struct site_delta *d = &c->deltas[i];
        if (d->state != PENDING_FAILED) continue;
        /* Its samples come again, so what it held back must not come too. */
        if (d->residual && id_equal(&c->residual, &d->c.did)) c->residual = d->residual_before;
        core_delta_remove(c, d);
    }
    /* Where nothing was done since the cut, what is taken is what comes next and stays good: else a
     * trainer that takes ahead would, at each reset, have some that the next one makes void. */
    bool again = c->void_mixed;
    for (uint32_t i = 0; i < c->leases_count; i++) again |= c->leases[i].done > c->leases[i].cut;
    if (MUTANT(VOID_LIVELOCK)) again = true;
    for (uint32_t i = 0; i < c->leases_count && again && !MUTANT(RESET_KEEPS_DONE); i++)
        c->leases[i].done = c->leases[i].taken = c->leases[i].cut;
    if (again) {
        c->void_in_flight += c->in_flight;
        c->in_flight = 0;
        c->void_mixed = false; /* all of them are older than what is taken from now on */
    }
    memset(&c->seg, 0, sizeof c->seg);
    c->reset_due = false;
    phase_take(c);
    if (c->loaded)
        core_note(notes, "lvl=warn ev=weights_reset base=%" PRIu64 " samples_again=%" PRIu64,
                  c->base, lost);
}

void site_untake(struct site_core *c) {
    for (uint32_t i = 0; i < c->leases_count; i++) c->leases[i].taken = c->leases[i].done; /* T1 */
    c->in_flight = c->void_in_flight = 0;
    c->void_mixed = false;
}

void site_loaded(struct site_core *c) {
    CHECK(!c->loaded);
    CHECK(c->deltas_count == 0);
    c->loaded = true;
    c->reset_due = false;
    c->base = c->ready;
    c->base_tokens = c->ready_tokens;
    phase_take(c);
    if (c->base_tokens == 0) c->set.warmup_steps = 0; /* the schedule's own warm-up does it */
    if (c->state == SITE_SYNCING) c->state = SITE_ACTIVE;
}

void site_rebased(struct site_core *c, struct buf *notes) {
    CHECK(!c->reset_due);             /* T6 */
    CHECK(rebase_known(c, c->ready)); /* T5, and so W1 */
    uint32_t own = 0;
    for (uint32_t i = c->deltas_count; i-- > 0;) {
        if (!site_delta_in(&c->deltas[i], c->ready)) continue;
        core_delta_remove(c, &c->deltas[i]);
        own++;
    }
    core_note(notes,
              "lvl=info ev=rebased from=%" PRIu64 " to=%" PRIu64 " own=%u segment_steps=%" PRIu64,
              c->base, c->ready, own, c->seg.steps);
    c->base = c->ready;
    c->base_tokens = c->ready_tokens;
    phase_take(c);
    if (own > 0) c->seg.steps_waited = c->seg.steps;
}

/* ---- The cut ------------------------------------------------------------------------------------ */

static struct id128 did_next(struct site_core *c) {
    /* From the boot (random, one a process start) and a counter: never the same twice. */
    struct hasher h;
    uint8_t count[8];
    put_le64(count, ++c->dids);
    hasher_init(&h);
    hasher_update(&h, c->set.run.v, ID_BYTES);
    hasher_update(&h, c->set.name, sizeof c->set.name);
    hasher_update(&h, c->boot.v, ID_BYTES);
    hasher_update(&h, count, sizeof count);
    struct hash sum = hasher_final(&h);
    struct id128 did;
    memcpy(did.v, sum.v, ID_BYTES);
    return did;
}

/* The leases behind the segment leave the list; the last one stays where its rest is kept. */
static void cut_leases(struct site_core *c, struct wire_commit *m) {
    uint32_t kept = 0;
    bool keep = !c->draining && !c->round.drain;
    for (uint32_t i = 0; i < c->leases_count; i++) {
        struct site_lease *l = &c->leases[i];
        CHECK(l->cut == 0); /* T3 */
        if (l->done > 0) {
            CHECK(m->parts_count < WIRE_PARTS_MAX);
            CHECK(!m->keep_rest); /* T1: only the last one is unfinished */
            m->parts[m->parts_count++] = (struct wire_part){l->w.tok, l->w.nonce, l->done};
            bool whole = l->done == l->w.count;
            m->keep_rest |= keep && !whole;
            if (whole || !keep) {
                c->in_flight -= l->taken - l->done;
                c->void_in_flight += l->taken - l->done;
                continue;
            }
            if (!MUTANT(CUT_KEEPS_DONE)) l->cut = l->done;
            l->cut_did = m->did;
            l->shrink = false;
        }
        c->leases[kept++] = *l;
    }
    c->leases_count = kept;
}

const struct site_delta *site_cut(struct site_core *c, struct buf *notes) {
    CHECK(!c->reset_due);                                                         /* T6 */
    CHECK(c->inc != 0);                                                           /* T7 */
    CHECK(!c->synchronous || (c->deltas_count == 0 && c->round.head <= c->base)); /* T8 */
    CHECK(c->deltas_count < SITE_PENDING_MAX);
    struct site_delta *d = &c->deltas[c->deltas_count++];
    memset(d, 0, sizeof *d);
    d->state = PENDING_CUT;
    struct wire_commit *m = &d->c;
    m->did = did_next(c);
    m->base = c->base;
    m->steps = c->seg.steps;
    m->lr_sum = c->seg.lr_sum;
    m->loss = c->seg.steps > 0 ? c->seg.loss_sum / (double)c->seg.steps : 0;
    m->elements = c->set.elements;
    m->codec = (uint32_t)(c->synchronous ? CODEC_GRADIENT : c->set.codec);
    m->skips_count = c->seg.skips_count;
    memcpy(m->skips, c->seg.skips, sizeof m->skips);
    m->tokens = (c->seg.samples - c->seg.skips_count) * c->set.tokens_per_sample;
    d->residual = codec_aside((enum codec)m->codec) && m->steps > 0; /* else nothing moved */
    d->residual_before = c->residual;
    if (d->residual) c->residual = m->did;
    cut_leases(c, m);
    char hex[ID_HEX_BYTES];
    id_hex(&m->did, hex);
    core_note(notes,
              "lvl=info ev=handed_in did=%s base=%" PRIu64 " steps=%" PRIu64 " samples=%" PRIu64
              " leases=%u keep_rest=%d loss=%.4f",
              hex, m->base, m->steps, c->seg.samples, m->parts_count, m->keep_rest, m->loss);
    memset(&c->seg, 0, sizeof c->seg);
    c->handed_in++;
    c->asks = 0;
    return d;
}

bool site_settled(const struct site_core *c) {
    if (c->reset_due) return false;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state < PENDING_STAGED || c->deltas[i].ask) return false;
    return c->seg.samples == 0 || c->complete;
}

/* ---- Invariants ---------------------------------------------------------------------------------- */

void site_check(const struct site_core *c) {
    bool seen_undone = false, seen_untaken = false;
    uint64_t flying = 0, worked = 0;
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < c->leases_count; i++) {
        const struct site_lease *l = &c->leases[i];
        if (l->give_back) continue; /* never used */
        CHECK(l->cut <= l->done);   /* T2 */
        CHECK(l->done <= l->taken);
        CHECK(l->taken <= l->w.count);
        CHECK(!seen_undone || l->done == 0); /* T1 */
        CHECK(!seen_untaken || l->taken == 0);
        seen_undone |= l->done < l->w.count;
        seen_untaken |= l->taken < l->w.count;
        flying += l->taken - l->done;
        worked += l->done - l->cut;
        waiting += l->cut > 0;
    }
    CHECK(waiting <= 1); /* T3 */
    CHECK(flying == c->in_flight);
    CHECK(c->reset_due || worked == c->seg.samples || !c->loaded); /* S3 */
}
