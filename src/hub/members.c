/* SPDX-License-Identifier: Apache-2.0 */
/* members.c - who takes part: JOIN, HEARTBEAT, LEAVE, and the header of the round that each is
 * told.
 *
 *   unknown --join--> member(inc) --join--> member(inc + 1) ...      --leave--> away --join-->
 *   member member, volatile:  live while heard of within the TTL;  ready once it said which
 *   version it has
 *
 * The fence: each JOIN of a new process raises inc, and only the newest inc may change anything.
 * Of two processes with one name the earlier is FENCED at its next message, whatever it believes.
 * A JOIN that comes twice is one JOIN (same boot); one that comes late, from a process that was
 * replaced already, is recognised by its boot and does not throw the newer process out.
 *
 * A heartbeat changes nothing durable: after a restart of the hub everybody has a full TTL again.
 * */
#include <math.h>
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- Who is live
 * -------------------------------------------------------------------------------- */

bool hub_live(const struct hub *h, const struct hub_site *s, time_ns now) {
    bool parent = h->parent_site > 0 &&
                  s == &h->sites[h->parent_site]; /* it is told of, not heard */
    return h->started && s->joined && (parent || now - s->heard < h->s.ttl_ns);
}

/* ---- The round's header
 * ------------------------------------------------------------------------- */

/* Tokens of one inner step: measured, else as in its last contribution, else 0. */
static double step_tokens(const struct hub_site *s) {
    if (s->steps_per_s > 0 && s->tokens_per_s > 0) return s->tokens_per_s / s->steps_per_s;
    if (s->last_steps > 0) return (double)s->last_tokens / (double)s->last_steps;
    return 0;
}

static struct hub_crowd crowd_of(const struct hub *h) {
    struct hub_crowd c = {.at = h->now};
    double tokens_sum = 0, steps_sum = 0;
    uint32_t tokens_known = 0, steps_known = 0;
    for (uint32_t i = 1; i <= h->sites_count; i++) {
        const struct hub_site *s = &h->sites[i];
        if (!hub_live(h, s, h->now)) continue;
        if (s->steps_per_s > 0) {
            steps_sum += s->steps_per_s;
            steps_known++;
        }
        if (!s->ready) continue;
        c.live_ready++;
        double tokens = step_tokens(s);
        if (tokens <= 0) continue;
        tokens_sum += tokens;
        tokens_known++;
        if (s->tokens_per_s <= 0) continue;
        c.batch_tokens += tokens;
        c.batch_rate += s->tokens_per_s;
    }
    uint32_t live = c.live_ready > 0 ? c.live_ready : 1;
    if (steps_known > 0) c.steps_per_s = steps_sum / steps_known;
    c.tokens_per_step = (uint64_t)live * h->s.seq_len;
    if (tokens_known == 0) return c;
    double all = floor(tokens_sum / tokens_known * live + 0.5); /* who is not known: the mean */
    c.tokens_per_step = all < 1 ? 1 : (uint64_t)all;
    return c;
}

/* Few sites are counted whenever somebody asks. Counting ten thousand for each heartbeat would be all
 * that a hub does, so of many the sums may be as old as a fraction of the time between heartbeats. */
enum { CROWD_FEW = 64, CROWD_SHARE = 16 };

void hub_crowd_count(struct hub *h) {
    if (h->sites_count <= CROWD_FEW) return;
    if (h->crowd.at > 0 && h->now - h->crowd.at < h->s.heartbeat_ns / CROWD_SHARE) return;
    h->crowd = crowd_of(h);
}

static struct hub_crowd crowd(const struct hub *h) {
    return h->sites_count <= CROWD_FEW || h->crowd.at == 0 ? crowd_of(h) : h->crowd;
}

uint32_t hub_sites_live_ready(const struct hub *h) {
    return crowd(h).live_ready;
}

static uint64_t steps_target(const struct hub *h, uint32_t site, double mean) {
    if (hub_synchronous(h)) return 1;
    const struct schedule_steps ramp = {.steps = h->s.steps > 0 ? h->s.steps : 1,
                                        .steps_first = h->s.steps_first,
                                        .share = h->s.steps_first > 0 ? h->s.ramp_share : 0,
                                        .tokens_total = h->s.schedule.tokens_total};
    uint64_t steps = schedule_steps_at(&ramp, (double)h->versions[h->head].v.tokens);
    if (!h->s.cadence || site == 0 || h->sites[site].steps_per_s <= 0 || mean <= 0) return steps;
    double share = fmin(fmax(h->sites[site].steps_per_s / mean, 0.25), 4);
    double target = floor((double)steps * share + 0.5);
    return target < 1 ? 1 : (uint64_t)target;
}

/* The sites' steps together stay as large as they are, and each has its share of them by its speed: then all do as
 * many steps in the same time, and their deltas are equally long. A share that is nearly right stays, or the roundings
 * of many small changes would add up. A site that cannot follow (its memory) is left to steps_target. 0: no wish. */
static uint64_t samples_target(const struct hub *h, uint32_t site, const struct hub_crowd *all) {
    if (!h->s.cadence || !h->s.cadence_batch || site == 0) return 0;
    const struct hub_site *s = &h->sites[site];
    double own = step_tokens(s) / h->s.seq_len;
    if (!(s->tokens_per_s > 0) || !(own > 0) || !(all->batch_rate > 0)) return 0;
    double target = all->batch_tokens * s->tokens_per_s / all->batch_rate / h->s.seq_len;
    target = floor((fabs(target - own) <= 0.1 * own ? own : target) + 0.5);
    return target < 1 ? 1 : (uint64_t)fmin(target, 1e9);
}

void hub_round_fill(const struct hub *h, uint32_t site, struct wire_round *out) {
    memset(out, 0, sizeof *out);
    if (!h->opened) return;
    const struct hub_version_view *v = &h->versions[h->head].v;
    out->head = v->version;
    out->theta = v->theta;
    out->seal = hub_head_seal(h);
    out->tokens = v->tokens;
    struct hub_crowd all = crowd(h);
    out->tokens_per_step = all.tokens_per_step;
    out->steps_target = steps_target(h, site, all.steps_per_s);
    out->samples_target = samples_target(h, site, &all);
    out->sync_tokens = (uint64_t)h->s.sync_tokens;
    out->drain = h->draining;
    out->complete = hub_complete(h);
}

/* ---- Join
 * --------------------------------------------------------------------------------------- */

static bool join_matches(struct hub *h, const struct wire_join *b) {
    if (b->protocol != WIRE_PROTOCOL)
        hub_refuse(h, WIRE_MISMATCH,
                   "the hub speaks protocol %d, this site %u: install the same version",
                   WIRE_PROTOCOL, b->protocol);
    else if (!hash_equal(&b->fingerprint, &h->s.fingerprint))
        hub_refuse(h, WIRE_MISMATCH,
                   "the data set or its order differs from the run's: copy the run's data "
                   "set to this site");
    else if (!hash_equal(&b->tensors, &h->s.tensors))
        hub_refuse(h, WIRE_MISMATCH,
                   "names or shapes of the parameters differ from the run's: use the run's "
                   "model");
    else if (b->tokens_per_sample != h->s.seq_len)
        hub_refuse(h, WIRE_MISMATCH,
                   "a sample has %u tokens in the run, %u at this site: use the run's "
                   "sequence length",
                   h->s.seq_len, b->tokens_per_sample);
    else if (hub_synchronous(h) && !b->gradients)
        hub_refuse(
            h, WIRE_BAD,
            "the run's rounds are synchronous until %.0f tokens (outer.synchronous), and this "
            "trainer hands in no gradients: use beringia site, or join after that",
            h->s.sync_tokens);
    else
        return true;
    return false;
}

static const struct wire_part *resume_find(const struct wire_join *b, const struct lease *a) {
    for (uint32_t i = 0; i < b->resume_count; i++)
        if (b->resume[i].tok == a->tok && b->resume[i].nonce == a->nonce) return &b->resume[i];
    return NULL;
}

/* A process that dies on its data and always comes back with its checkpoint keeps its lease, so that no
 * crash would ever be counted. The lease under work, at which it begins again and again without having
 * got any further, is taken from it as a crash: its positions come to quarantine as those of others do.
 * 0: none. Volatile: a restart of the hub counts anew. */
static uint64_t stuck_lease(struct hub *h, uint32_t number, const struct wire_join *b) {
    if (number == 0) return 0;
    struct hub_site *s = &h->sites[number];
    const struct wire_part *at = NULL;
    for (uint32_t i = 0; i < b->resume_count && !at; i++) {
        const struct lease *a = ledger_lease_find(h->ledger, b->resume[i].tok);
        bool own = a && a->site == number && a->nonce == b->resume[i].nonce;
        if (own && b->resume[i].done < a->count) at = &b->resume[i];
    }
    bool same = at && at->tok == s->stuck_tok && at->done == s->stuck_done;
    s->stuck_joins = same ? s->stuck_joins + 1 : 1;
    s->stuck_tok = at ? at->tok : 0;
    s->stuck_done = at ? at->done : 0;
    if (!at || h->s.crashes_max == 0 || s->stuck_joins < h->s.crashes_max) return 0;
    if (MUTANT(STUCK_KEPT)) return 0;
    hub_note(h, "lvl=warn ev=stuck site=%s lease=%llx done=%llu processes=%u", s->name,
             (unsigned long long)at->tok, (unsigned long long)at->done, s->stuck_joins);
    return at->tok;
}

static void join_record(struct hub *h, uint32_t number, const struct wire_request *q) {
    uint64_t stuck = stuck_lease(h, number, &q->u.join);
    struct hub_record *r = hub_draft(h, RECORD_JOIN);
    struct record_join *j = &r->u.join;
    j->site = number ? number : h->sites_count + 1;
    j->inc = (number ? h->sites[number].inc : h->inc_floor) + 1;
    memcpy(j->name, q->site, sizeof j->name);
    j->boot = q->u.join.boot;
    j->crashes_max = h->s.crashes_max;
    for (const struct lease *a = ledger_site_first(h->ledger, j->site); a; a = a->site_next) {
        if (a->tok != stuck && (resume_find(&q->u.join, a) || MUTANT(RESUME_KEEPS_ALL)))
            j->kept[j->kept_count++] = a->tok;
        else
            j->fenced[j->fenced_count++] = a->tok;
    }
    hub_note(h, "lvl=info ev=joined site=%s inc=%u kept=%u fenced=%u", j->name, j->inc,
             j->kept_count, j->fenced_count);
    hub_emit(h, r);
}

/* The same for the first JOIN of a process and for its repeats. */
static void join_answer(struct hub *h, uint32_t number, const struct wire_join *b) {
    struct hub_site *s = &h->sites[number];
    struct wire_join_answer *a = &h->out->answer.u.join;
    s->heard = h->now;
    a->inc = s->inc;
    a->ttl_ms = hub_ms(h->s.ttl_ns);
    a->heartbeat_ms = hub_ms(h->s.heartbeat_ns);
    a->leases_count = b->resume_count;
    for (uint32_t i = 0; i < b->resume_count; i++) {
        struct lease *l = ledger_lease_find(h->ledger, b->resume[i].tok);
        bool own = l && l->site == number && l->inc == s->inc && l->nonce == b->resume[i].nonce;
        a->leases[i].tok = b->resume[i].tok;
        a->leases[i].verdict = own ? LEASE_KEPT : LEASE_GONE;
        a->leases[i].keep = own ? l->count : 0;
        if (!own) continue;
        l->deadline = h->now + h->s.ttl_ns;
        l->done = b->resume[i].done < l->count ? b->resume[i].done : l->count;
        l->read_ahead = l->done;
    }
    hub_round_fill(h, number, &a->round);
}

static bool boot_is_old(const struct hub_site *s, const struct id128 *boot) {
    for (uint32_t i = 0; i < s->boots_old_count; i++)
        if (id_equal(&s->boots_old[i], boot)) return true;
    return false;
}

void hub_join(struct hub *h, const struct wire_request *q) {
    const struct wire_join *b = &q->u.join;
    uint32_t number = 0;
    struct hub_site *s = hub_site_named(h, q->site, &number);
    if (b->resume_count > WIRE_LEASES_MAX) {
        hub_refuse(h, WIRE_BAD, "more leases than a site can hold");
        return;
    }
    if (!join_matches(h, b)) return;
    if (s && s->joined && id_equal(&s->boot, &b->boot)) {
        join_answer(h, number, b);
        return;
    }
    if (s && boot_is_old(s, &b->boot)) {
        hub_refuse(h, WIRE_FENCED, "a newer process of this site has joined since");
        return;
    }
    if (hub_is_behind(h, q->site, b)) return;
    if (!s && h->sites_count >= h->s.sites_max) {
        hub_refuse(h, WIRE_RETRY, "the run has its maximum of %u sites; raise hub.sites_max",
                   h->s.sites_max);
        h->out->answer.retry_ms = 60000;
        return;
    }
    join_record(h, number, q);
    s = hub_site_named(h, q->site, &number);
    s->ready = false;
    s->phase = PHASE_SYNCING;
    s->hb_seq = 0;
    s->base = 0;
    s->steps_per_s = s->tokens_per_s = s->loss = 0;
    join_answer(h, number, b);
}

/* ---- Heartbeat
 * ---------------------------------------------------------------------------------- */

static double measured(double v) {
    return isfinite(v) && v > 0 ? v : 0;
}

static void progress_take(struct hub *h, uint32_t site, const struct wire_progress *p, bool fresh,
                          struct wire_lease_state *out) {
    struct lease *a = ledger_lease_find(h->ledger, p->tok);
    out->tok = p->tok;
    out->verdict = LEASE_GONE;
    if (!a || a->site != site || a->inc != h->sites[site].inc) return;
    if (fresh) {
        a->deadline = h->now + h->s.ttl_ns;
        uint64_t done = p->done < a->count ? p->done : a->count;
        uint64_t ahead = p->read_ahead < a->count ? p->read_ahead : a->count;
        if (done > a->done) a->done = done;
        if (ahead > a->read_ahead) a->read_ahead = ahead;
        if (a->read_ahead < a->done) a->read_ahead = a->done;
    }
    out->verdict = LEASE_KEPT;
    out->keep = a->count;
    uint64_t wish = hub_wish(h, a);
    if (wish >= a->count) return;
    out->verdict = LEASE_WISH;
    out->keep = wish;
}

void hub_heartbeat(struct hub *h, uint32_t site, const struct wire_heartbeat *b) {
    struct hub_site *s = &h->sites[site];
    struct wire_heartbeat_answer *a = &h->out->answer.u.heartbeat;
    if (b->leases_count > WIRE_LEASES_MAX) {
        hub_refuse(h, WIRE_BAD, "more leases than a site can hold");
        return;
    }
    bool fresh = b->hb_seq > s->hb_seq ||
                 MUTANT(HB_SEQ_IGNORED); /* a late one says nothing about now */
    if (fresh) {
        s->hb_seq = b->hb_seq;
        s->heard = h->now;
        s->phase = b->phase;
        s->base = b->base;
        s->steps_per_s = measured(b->steps_per_s);
        s->tokens_per_s = measured(b->tokens_per_s);
        s->loss = measured(b->loss);
        memcpy(s->fabric, b->fabric, sizeof s->fabric);
        /* A site that resumed trains its kept leases without asking for one. */
        const struct hub_version *v = hub_version_of(h, b->base);
        if (b->phase == PHASE_TRAINING) s->ready = v && v->on_branch;
    }
    a->hb_seq = s->hb_seq;
    a->ttl_ms = hub_ms(h->s.ttl_ns);
    a->leases_count = b->leases_count;
    for (uint32_t i = 0; i < b->leases_count; i++)
        progress_take(h, site, &b->leases[i], fresh, &a->leases[i]);
    hub_round_fill(h, site, &a->round);
}

/* ---- Leave
 * -------------------------------------------------------------------------------------- */

/* What a site keeps for its next process has lapsed: the first to go when somebody needs it. Where that
 * is soon, it goes back at once. */
void hub_leave(struct hub *h, uint32_t site, const struct wire_leave *b) {
    struct hub_site *s = &h->sites[site];
    bool keep = b->keep && !hub_holds_its_share(h, site, 0);
    if (!s->joined) return; /* again: it is away already */
    struct hub_record *r = hub_draft(h, RECORD_LEAVE);
    r->u.leave.site = site;
    r->u.leave.inc = s->inc;
    for (struct lease *a = ledger_site_first(h->ledger, site); a; a = a->site_next) {
        if (keep)
            a->deadline = h->now;
        else
            r->u.leave.toks[r->u.leave.toks_count++] = a->tok;
    }
    hub_note(h, "lvl=info ev=left site=%s inc=%u returned=%u", s->name, s->inc,
             r->u.leave.toks_count);
    hub_emit(h, r);
    s->ready = false;
}
