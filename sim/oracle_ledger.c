/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_ledger.c - what the records mean, told a second time and in the dumbest way: one entry a
 * position. Shares no code with src/lease or src/hub/apply.c; docs/journal.md is what both follow.
 *
 * Each record is looked at in the moment in which it is durable, so a violation shows at the record
 * that brings it. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

#define WRONG(m, what)                                                                             \
    do {                                                                                           \
        if (what) sim_fail(m, "record %llu: %s", (unsigned long long)(m)->model.seq, #what);       \
    } while (0)

void model_reset(struct sim *m) {
    struct model *o = &m->model;
    o->seq = 0;
    memset(o->state, 0, sizeof o->state);
    memset(o->crashes, 0, sizeof o->crashes);
    memset(o->refused, 0, sizeof o->refused);
    memset(o->sealed, 0, sizeof o->sealed);
    memset(o->sites, 0, sizeof o->sites);
    memset(o->inc_of, 0, sizeof o->inc_of);
    o->held = false;
    o->epochs = o->term = o->tok_n = o->leases_count = o->deltas_count = o->versions_count =
        o->head = 0;
    o->sites_count = 0;
    o->versions_next = 0;
    o->sync_version = o->sync_step = 0;
}

struct model_lease *model_lease_find(struct sim *m, uint64_t tok) {
    struct model *o = &m->model;
    for (uint32_t i = o->leases_count; i-- > 0;)
        if (o->leases[i].tok == tok) return &o->leases[i];
    return NULL;
}

struct model_delta *model_delta_find(struct sim *m, const struct id128 *did) {
    struct model *o = &m->model;
    for (uint32_t i = o->deltas_count; i-- > 0;)
        if (id_equal(&o->deltas[i].did, did)) return &o->deltas[i];
    return NULL;
}

struct model_version *model_version_find(struct sim *m, uint64_t version) {
    struct model *o = &m->model;
    for (uint32_t i = o->versions_count; i-- > 0;)
        if (o->versions[i].version == version) return &o->versions[i];
    return NULL;
}

static struct model_lease *active(struct sim *m, uint64_t tok) {
    struct model_lease *l = model_lease_find(m, tok);
    return l != NULL && l->active ? l : NULL;
}

static uint32_t actives_of(struct sim *m, uint32_t site) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->model.leases_count; i++)
        n += m->model.leases[i].active && m->model.leases[i].site == site;
    return n;
}

static bool member(const struct sim *m, uint32_t site, uint32_t inc) {
    const struct model *o = &m->model;
    return site >= 1 && site <= o->sites_count && o->sites[site].joined &&
           o->sites[site].inc == inc;
}

/* ---- Leases -------------------------------------------------------------------------------------------- */

static void position_free(struct sim *m, uint32_t at, uint64_t owner, bool crashed,
                          uint32_t crashes_max) {
    struct model *o = &m->model;
    if (o->state[at] != EXTENT_LEASED || o->owner[at] != owner)
        sim_fail(m, "I2: record %llu frees a position that the lease does not have",
                 (unsigned long long)o->seq);
    o->state[at] = EXTENT_AVAILABLE;
    if (!crashed || crashes_max == 0) return;
    if (o->crashes[at] < 255) o->crashes[at]++;
    if (o->crashes[at] < crashes_max) return;
    o->state[at] = EXTENT_QUARANTINED;
    MARK(m, QUARANTINED);
}

static void lease_end(struct sim *m, struct model_lease *l, bool crashed, uint32_t crashes_max) {
    for (uint32_t i = 0; i < l->count; i++)
        position_free(m, l->at[i], l->tok, crashed, crashes_max);
    l->active = false;
}

static struct model_lease *lease_new(struct sim *m, uint64_t tok, uint64_t nonce, uint32_t count) {
    struct model *o = &m->model;
    uint64_t want = (uint64_t)o->term << 32 | (o->tok_n + 1);
    if (tok != want)
        sim_fail(m, "I7: record %llu grants a tok that is not the next one",
                 (unsigned long long)o->seq);
    if (o->leases_count == SIM_LEASES) sim_fail(m, "too many leases");
    for (uint32_t i = 0; i < o->leases_count; i++)
        if (o->leases[i].tok == tok)
            sim_fail(m, "I7: tok %llx came twice", (unsigned long long)tok);
    o->tok_n++;
    struct model_lease *l = &o->leases[o->leases_count++];
    *l = (struct model_lease){.tok = tok, .nonce = nonce, .count = count, .active = true};
    l->at = sim_alloc(m, (count + 1) * sizeof *l->at);
    l->since = m->awake;
    return l;
}

static void on_grant(struct sim *m, const struct record_grant *r) {
    struct model *o = &m->model;
    uint64_t count = 0;
    WRONG(m, o->held);
    WRONG(m, !member(m, r->site, r->inc));
    WRONG(m, r->epoch >= o->epochs || o->sealed[r->epoch]);
    for (uint32_t i = 0; i < r->ranges_count; i++) count += r->ranges[i].count;
    WRONG(m, count == 0 || count > m->w.positions);
    struct model_lease *l = lease_new(m, r->tok, r->nonce, (uint32_t)count);
    l->site = r->site;
    l->inc = r->inc;
    l->epoch = r->epoch;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->ranges_count; i++) {
        for (uint64_t p = r->ranges[i].start; p < r->ranges[i].start + r->ranges[i].count; p++) {
            WRONG(m, p >= m->w.positions);
            uint32_t at = (uint32_t)(r->epoch * m->w.positions + p);
            if (o->state[at] != EXTENT_AVAILABLE)
                sim_fail(m, "I2: record %llu grants a position that is not available",
                         (unsigned long long)o->seq);
            o->state[at] = EXTENT_LEASED;
            o->owner[at] = r->tok;
            l->at[n++] = (uint16_t)at;
        }
    }
    for (uint32_t e = 0; e < r->epoch; e++)
        for (uint64_t p = 0; p < m->w.positions; p++)
            if (o->state[e * m->w.positions + p] == EXTENT_AVAILABLE && !o->sealed[e])
                sim_fail(m, "record %llu grants epoch %u while epoch %u has positions to give",
                         (unsigned long long)o->seq, r->epoch, e);
}

static void on_reclaim(struct sim *m, const struct record_reclaim *r) {
    struct model_lease *l = active(m, r->tok);
    WRONG(m, l == NULL);
    if (r->reason == RECLAIM_LAPSED) MARK(m, LEASE_STOLEN);
    /* Exact only where a record is durable in the step that made it. */
    bool exact = m->w.f.append_s <= 0 && !m->folding && m->restores == 0;
    if (exact && r->reason == RECLAIM_LAPSED && m->awake - l->since < m->settings.ttl_ns)
        sim_fail(m,
                 "record %llu takes a lease after %.6f s of the hub's own time, the TTL is %.6f s",
                 (unsigned long long)m->model.seq, (double)(m->awake - l->since) / NS_PER_S,
                 (double)m->settings.ttl_ns / NS_PER_S);
    if (r->reason == RECLAIM_RETURNED) MARK(m, LEASE_RETURNED);
    if (r->reason != RECLAIM_SHRUNK) {
        lease_end(m, l, r->reason == RECLAIM_LAPSED, r->crashes_max);
        return;
    }
    MARK(m, LEASE_SHRUNK);
    WRONG(m, r->keep == 0 || r->keep >= l->count);
    for (uint32_t i = (uint32_t)r->keep; i < l->count; i++)
        position_free(m, l->at[i], l->tok, false, 0);
    l->count = (uint32_t)r->keep;
}

static void on_join(struct sim *m, const struct record_join *r) {
    struct model *o = &m->model;
    WRONG(m, r->site == 0 || r->site > o->sites_count + 1 || r->site > SIM_PROCS);
    if (r->site > o->sites_count) o->sites_count = r->site;
    struct model_site *s = &o->sites[r->site];
    WRONG(m, r->inc != s->inc + 1);
    WRONG(m, actives_of(m, r->site) != r->kept_count + r->fenced_count);
    s->inc = r->inc;
    o->inc_of[sim_site_of(r->name)] = r->inc;
    s->joined = true;
    for (uint32_t i = 0; i < r->kept_count; i++) {
        struct model_lease *l = active(m, r->kept[i]);
        WRONG(m, l == NULL || l->site != r->site);
        l->inc = r->inc;
        l->since = m->awake;
        MARK(m, LEASE_KEPT);
    }
    for (uint32_t i = 0; i < r->fenced_count; i++) {
        struct model_lease *l = active(m, r->fenced[i]);
        WRONG(m, l == NULL || l->site != r->site);
        lease_end(m, l, true, r->crashes_max);
        MARK(m, LEASE_FENCED);
    }
}

static void on_leave(struct sim *m, const struct record_leave *r) {
    WRONG(m, !member(m, r->site, r->inc));
    if (actives_of(m, r->site) > r->toks_count) MARK(m, LEFT_KEPT);
    for (uint32_t i = 0; i < r->toks_count; i++) {
        struct model_lease *l = active(m, r->toks[i]);
        WRONG(m, l == NULL || l->site != r->site);
        lease_end(m, l, false, 0);
    }
    m->model.sites[r->site].joined = false;
}

/* ---- Contributions ------------------------------------------------------------------------------------ */

static struct model_delta *delta_new(struct sim *m, const struct id128 *did, uint32_t site) {
    struct model *o = &m->model;
    if (model_delta_find(m, did) != NULL)
        sim_fail(m, "I4: record %llu decides a second time on one contribution",
                 (unsigned long long)o->seq);
    if (o->deltas_count == SIM_DELTAS) sim_fail(m, "too many contributions");
    struct model_delta *d = &o->deltas[o->deltas_count++];
    *d = (struct model_delta){.did = *did, .site = site};
    return d;
}

/* Versions of others between base and the head; -1: base is not on the branch. */
static int behind(struct sim *m, uint32_t site, uint64_t base) {
    struct model *o = &m->model;
    struct model_version *v = model_version_find(m, base);
    int n = 0;
    if (v == NULL || !v->on_branch) return -1;
    for (v = &o->versions[o->head]; v->version > base; v = model_version_find(m, v->parent))
        n += v->real && v->only_site != site;
    return n;
}

static void stage_skips(struct sim *m, const struct record_stage *r, struct model_delta *d) {
    for (uint32_t i = 0; i < r->skips_count; i++) {
        uint32_t at = (uint32_t)(r->skips[i].epoch * m->w.positions + r->skips[i].position),
                 hits = 0;
        for (uint32_t k = 0; k < d->count; k++) {
            if (d->at[k] != at) continue;
            WRONG(m, d->skip[k]);
            d->skip[k] = 1;
            hits++;
        }
        WRONG(m, hits != 1);
    }
}

static void stage_rest(struct sim *m, const struct record_stage *r, struct model_lease *last,
                       uint32_t done, uint32_t chain) {
    struct model *o = &m->model;
    WRONG(m, done >= last->count);
    struct model_lease *l = lease_new(m, r->rest_tok, r->rest_nonce, last->count - done);
    last = model_lease_find(m, last->tok); /* the table may not move, but be plain about it */
    l->site = last->site;
    l->inc = last->inc;
    l->epoch = last->epoch;
    memcpy(l->at, last->at + done, l->count * sizeof *l->at);
    for (uint32_t i = 0; i < l->count; i++) o->owner[l->at[i]] = l->tok;
    MARK(m, KEEP_REST);
    if (chain >= 2) MARK(m, KEEP_REST_3);
}

/* The contribution, if any, whose rest this lease is; how long is the chain behind it? */
static uint32_t chain_of(struct sim *m, const struct record_stage *r) {
    const struct model_lease *l = model_lease_find(m, r->parts[r->parts_count - 1].tok);
    struct model *o = &m->model;
    for (uint32_t i = o->deltas_count - 1; i-- > 0;)
        if (o->deltas[i].count > 0 && o->deltas[i].version == l->tok)
            return o->deltas[i].rest_chain;
    return 0;
}

static void on_stage(struct sim *m, const struct record_stage *r) {
    struct model *o = &m->model;
    WRONG(m, o->held);
    WRONG(m, !member(m, r->site, r->inc));
    struct model_delta *d = delta_new(m, &r->did, r->site);
    uint64_t done = 0;
    bool two_epochs = false;
    for (uint32_t i = 0; i < r->parts_count; i++) done += r->parts[i].done;
    WRONG(m, done == 0 || done > m->w.weights);
    WRONG(m, r->tokens != (done - r->skips_count) * m->settings.seq_len);
    int late = behind(m, r->site, r->base);
    WRONG(m, late < 0 || (uint32_t)late > m->settings.staleness_max);
    d->at = sim_alloc(m, (done + 1) * sizeof *d->at);
    d->skip = sim_alloc(m, done + 1);
    d->blob = r->blob;
    d->gradient = r->codec == CODEC_GRADIENT;
    d->base = r->base;
    d->tokens = r->tokens;
    d->state = MODEL_STAGED;
    uint64_t index = (uint64_t)(d - o->deltas);
    for (uint32_t i = 0; i < r->parts_count; i++) {
        struct model_lease *l = active(m, r->parts[i].tok);
        if (l == NULL || l->nonce != r->parts[i].nonce || l->site != r->site || l->inc != r->inc ||
            r->parts[i].done > l->count)
            sim_fail(m, "I3: record %llu stages what is not leased to its site",
                     (unsigned long long)o->seq);
        two_epochs |= i > 0 && l->epoch != model_lease_find(m, r->parts[0].tok)->epoch;
        bool rest = r->has_rest && i + 1 == r->parts_count;
        uint32_t n = (uint32_t)r->parts[i].done;
        for (uint32_t k = 0; k < n; k++) {
            position_free(m, l->at[k], l->tok, false, 0);
            o->state[l->at[k]] = EXTENT_STAGED;
            o->owner[l->at[k]] = index;
            d->at[d->count++] = l->at[k];
        }
        l->active = false;
        if (rest) {
            d->rest_chain = chain_of(m, r) + 1;
            stage_rest(m, r, l, n, d->rest_chain);
            d->version = r->rest_tok; /* until it is merged: the name of its rest */
        } else {
            for (uint32_t k = n; k < l->count; k++) position_free(m, l->at[k], l->tok, false, 0);
        }
    }
    stage_skips(m, r, d);
    MARK(m, STAGED);
    if (two_epochs) MARK(m, TWO_EPOCHS);
    if (d->tokens == 0) MARK(m, SKIPS_ONLY);
    count_stage(m, d);
}

static void on_reject(struct sim *m, const struct record_reject *r) {
    WRONG(m, m->model.held);
    WRONG(m, !member(m, r->site, r->inc));
    struct model_delta *d = delta_new(m, &r->did, r->site);
    d->state = MODEL_REJECTED;
    for (uint32_t i = 0; i < r->freed_count; i++) {
        struct model_lease *l = active(m, r->freed[i]);
        WRONG(m, l == NULL || l->site != r->site || l->inc != r->inc);
        for (uint32_t k = 0; k < l->count; k++) m->model.refused[l->at[k]] = 1;
        lease_end(m, l, false, 0);
    }
    MARK(m, REJECTED);
    if (strstr(r->reason, "rounds of other sites") != NULL) MARK(m, REJECTED_STALE);
}

static void delta_free(struct sim *m, struct model_delta *d) {
    struct model *o = &m->model;
    uint64_t index = (uint64_t)(d - o->deltas);
    for (uint32_t i = 0; i < d->count; i++) {
        if (o->state[d->at[i]] != EXTENT_STAGED || o->owner[d->at[i]] != index)
            sim_fail(m, "I4: record %llu frees what the contribution does not have",
                     (unsigned long long)o->seq);
        o->state[d->at[i]] = EXTENT_AVAILABLE;
    }
    d->state = MODEL_DISCARDED;
    MARK(m, DISCARDED);
}

static void on_discard(struct sim *m, const struct record_discard *r) {
    struct model_delta *d = model_delta_find(m, &r->did);
    WRONG(m, d == NULL || d->state != MODEL_STAGED);
    delta_free(m, d);
}

/* ---- Versions --------------------------------------------------------------------------------------------- */

static void part_merge(struct sim *m, const struct record_merge *r, uint32_t i,
                       struct model_version *v) {
    struct model *o = &m->model;
    struct model_delta *d = model_delta_find(m, &r->parts[i].did);
    WRONG(m, d == NULL || d->state != MODEL_STAGED);
    int late = behind(m, d->site, d->base);
    WRONG(m, late < 0);
    if (r->parts[i].late != (late > 0 && d->tokens > 0))
        sim_fail(m, "record %llu: a contribution is %slate, the record says otherwise",
                 (unsigned long long)o->seq, late > 0 ? "" : "not ");
    if (late > 0) MARK(m, LATE);
    if (late == 0 && d->base < r->parent) MARK(m, OWN_VERSION);
    bool sync = o->sync_version == r->version;
    if (d->tokens > 0 && (d->gradient != sync || (sync && d->base != r->parent)))
        sim_fail(m, "record %llu merges a %s of version %llu in a round of %s on version %llu",
                 (unsigned long long)o->seq, d->gradient ? "gradient" : "displacement",
                 (unsigned long long)d->base, sync ? "gradients" : "displacements",
                 (unsigned long long)r->parent);
    WRONG(m, m->settings.rule.sum && r->parts[i].weight != (d->tokens > 0 ? 1 : 0));
    for (uint32_t k = 0; k < d->count; k++) {
        if (o->state[d->at[k]] != EXTENT_STAGED || o->owner[d->at[k]] != (uint64_t)(d - o->deltas))
            sim_fail(m, "I4: record %llu merges what the contribution does not have",
                     (unsigned long long)o->seq);
        o->state[d->at[k]] = d->skip[k] ? EXTENT_SKIPPED : EXTENT_MERGED;
        o->owner[d->at[k]] = r->version;
        o->crashes[d->at[k]] = 0;
        if (o->refused[d->at[k]]) MARK(m, RETRAINED);
    }
    d->state = MODEL_MERGED;
    d->version = r->version;
    v->tokens += d->tokens;
    if (d->tokens == 0) return;
    v->only_site = !v->real || v->only_site == d->site ? d->site : 0;
    v->real = true;
}

static void on_merge(struct sim *m, const struct record_merge *r) {
    struct model *o = &m->model;
    WRONG(m, o->held);
    WRONG(m, r->version != o->versions_next);
    WRONG(m, r->parent != o->versions[o->head].version);
    if (o->versions_count == SIM_VERSIONS) sim_fail(m, "too many versions");
    struct model_version v = {.version = r->version,
                              .parent = r->parent,
                              .on_branch = true,
                              .checkpoint = r->checkpoint,
                              .tokens = o->versions[o->head].tokens};
    for (uint32_t i = 0; i < r->parts_count; i++) part_merge(m, r, i, &v);
    WRONG(m, v.tokens != r->tokens_after);
    v.sync_step = !v.real                         ? o->versions[o->head].sync_step
                  : o->sync_version == r->version ? o->sync_step
                                                  : 0;
    if (v.sync_step > 0) MARK(m, SYNC_ROUND);
    if (v.sync_step > 2) MARK(m, SYNC_ROUND_3);
    o->head = o->versions_count;
    o->versions[o->versions_count++] = v;
    o->versions_next = r->version + 1;
    MARK(m, MERGED);
    count_merge(m, r);
}

/* docs/journal.md, 23. Which rounds are synchronous follows from the tokens of their parent. */
static void on_sync(struct sim *m, const struct record_sync *r) {
    struct model *o = &m->model;
    const struct model_version *head = &o->versions[o->head];
    WRONG(m, r->version != o->versions_next);
    WRONG(m, r->step != 1 && r->step != head->sync_step + 1);
    WRONG(m, (double)head->tokens >= m->settings.sync_tokens);
    WRONG(m, !r->counts);
    if (r->step == 1 && head->sync_step > 0) sim_fail(m, "the moments begin anew without a cause");
    o->sync_version = r->version;
    o->sync_step = r->step;
}

static void on_seal(struct sim *m, const struct record_seal *r) {
    struct model *o = &m->model;
    uint64_t merged = 0, skipped = 0;
    WRONG(m, r->epoch >= o->epochs || o->sealed[r->epoch]);
    for (uint64_t p = 0; p < m->w.positions; p++) {
        merged += o->state[r->epoch * m->w.positions + p] == EXTENT_MERGED;
        skipped += o->state[r->epoch * m->w.positions + p] == EXTENT_SKIPPED;
    }
    if (merged + skipped != m->w.positions || merged != r->merged || skipped != r->skipped)
        sim_fail(m, "I9: record %llu seals an epoch that is not finished",
                 (unsigned long long)o->seq);
    o->sealed[r->epoch] = true;
    MARK(m, SEALED);
    if (r->epoch + 1 < o->epochs) MARK(m, SEAL_OVERLAP);
    if (r->epoch > 0 && !o->sealed[r->epoch - 1]) MARK(m, SEAL_EARLY_NEXT);
}

static void on_rollback(struct sim *m, const struct record_rollback *r) {
    struct model *o = &m->model;
    struct model_version *to = model_version_find(m, r->version);
    WRONG(m, to == NULL || !to->on_branch);
    WRONG(m, r->versions_next < o->versions_next || r->term < o->term);
    for (uint32_t i = 0; i < o->leases_count; i++)
        if (o->leases[i].active) lease_end(m, &o->leases[i], false, 0);
    for (uint32_t i = 0; i < o->deltas_count; i++) {
        struct model_delta *d = &o->deltas[i];
        if (d->state == MODEL_STAGED) delta_free(m, d);
        if (d->state == MODEL_MERGED && d->version > r->version) d->state = MODEL_DISCARDED;
    }
    for (uint32_t at = 0; at < o->epochs * m->w.positions; at++) {
        bool done = o->state[at] == EXTENT_MERGED || o->state[at] == EXTENT_SKIPPED;
        if (!done || o->owner[at] <= r->version) continue;
        o->state[at] = EXTENT_AVAILABLE;
        o->crashes[at] = 0;
        o->sealed[at / m->w.positions] = false;
    }
    for (uint32_t i = 0; i < o->versions_count; i++)
        if (o->versions[i].version > r->version) o->versions[i].on_branch = false;
    if ((double)o->versions[o->head].tokens >= m->settings.sync_tokens &&
        (double)to->tokens < m->settings.sync_tokens)
        MARK(m, SYNC_AGAIN);
    o->head = (uint32_t)(to - o->versions);
    o->versions_next = r->versions_next;
    if (r->term > o->term) o->tok_n = 0;
    o->term = r->term;
    if (o->held) MARK(m, HUB_BRANCH);
    o->held = false;
    MARK(m, ROLLBACK);
    count_head(m);
}

static void on_quarantine(struct sim *m, const struct record_quarantine *r) {
    struct model *o = &m->model;
    for (uint64_t p = r->range.start; p < r->range.start + r->range.count; p++) {
        uint64_t at = r->epoch * m->w.positions + p;
        WRONG(m, p >= m->w.positions || o->state[at] != EXTENT_QUARANTINED);
        o->state[at] = r->skip ? EXTENT_SKIPPED : EXTENT_AVAILABLE;
        o->owner[at] = 0;
        o->crashes[at] = 0;
    }
    if (r->skip) MARK(m, QUARANTINE_SKIP);
    if (!r->skip) MARK(m, QUARANTINE_BACK);
}

/* ---- Records ---------------------------------------------------------------------------------------------- */

static void on_record(struct sim *m, const struct hub_record *r) {
    struct model *o = &m->model;
    WRONG(m, (r->kind == RECORD_OPEN) != (o->seq == 1));
    if (r->kind != RECORD_MERGE && r->kind != RECORD_STEP) o->sync_version = 0;
    switch ((enum record_kind)r->kind) {
    case RECORD_OPEN:
        o->versions[0] =
            (struct model_version){.on_branch = true, .checkpoint = r->u.open.checkpoint};
        o->versions_count = 1;
        o->versions_next = 1;
        break;
    case RECORD_TERM:
        WRONG(m, r->u.term.term <= o->term);
        o->term = r->u.term.term;
        o->tok_n = 0;
        for (uint32_t i = 0; i < o->leases_count; i++) o->leases[i].since = m->awake;
        break;
    case RECORD_JOIN: on_join(m, &r->u.join); break;
    case RECORD_EPOCH:
        WRONG(m, r->u.epoch.epoch != o->epochs || o->epochs >= m->w.epochs);
        o->epochs++;
        break;
    case RECORD_GRANT: on_grant(m, &r->u.grant); break;
    case RECORD_RECLAIM: on_reclaim(m, &r->u.reclaim); break;
    case RECORD_STAGE: on_stage(m, &r->u.stage); break;
    case RECORD_REJECT: on_reject(m, &r->u.reject); break;
    case RECORD_DISCARD: on_discard(m, &r->u.discard); break;
    case RECORD_MERGE: on_merge(m, &r->u.merge); break;
    case RECORD_SEAL: on_seal(m, &r->u.seal); break;
    case RECORD_LEAVE: on_leave(m, &r->u.leave); break;
    case RECORD_ROLLBACK: on_rollback(m, &r->u.rollback); break;
    case RECORD_QUARANTINE: on_quarantine(m, &r->u.quarantine); break;
    case RECORD_DOWN: sim_fail(m, "updates, where versions go whole");
    case RECORD_REBUILD:
    case RECORD_LEDGER: sim_fail(m, "a run that was never lost is brought back");
    case RECORD_SYNC: on_sync(m, &r->u.sync); break;
    case RECORD_STEP:
    case RECORD_PARENT:
    case RECORD_EVAL: sim_fail(m, "a mean of weights, or a held-out loss, where there is none");
    case RECORD_REPORT:
    case RECORD_ORDER: break; /* placement: no position moves */
    case RECORD_HOLD:
        o->held = true;
        MARK(m, HUB_BEHIND);
        break;
    }
}

void model_records(struct sim *m, const uint8_t *framed, size_t bytes, uint32_t count) {
    struct reader r = reader_of(framed, bytes);
    for (uint32_t i = 0; i < count; i++) {
        struct hub_record x;
        struct err e;
        uint16_t kind = get_u16(&r);
        uint32_t n = get_u32(&r);
        const void *body = get_bytes(&r, n);
        m->model.seq++;
        if (body == NULL || hub_record_decode(kind, body, n, &x, &e) != BRG_OK)
            sim_fail(m, "record %llu cannot be read", (unsigned long long)m->model.seq);
        on_record(m, &x);
        hub_record_fini(&x);
        sim_mix(m, (uint64_t)kind << 32 | n);
    }
}

/* ---- Against the machine ------------------------------------------------------------------------------------ */

struct walk {
    struct sim *m;
    uint32_t epoch;
};
static void on_extent(void *user, enum extent_state state, struct lease_span span, uint64_t version,
                      uint32_t crashes) {
    struct walk *w = user;
    struct model *o = &w->m->model;
    for (uint64_t p = span.start; p < span.start + span.count; p++) {
        uint64_t at = w->epoch * w->m->w.positions + p;
        bool done = state == EXTENT_MERGED || state == EXTENT_SKIPPED;
        if (o->state[at] != (uint8_t)state || o->crashes[at] != crashes ||
            (done && o->owner[at] != version))
            sim_fail(w->m,
                     "I1: epoch %u position %llu: the machine says state %d crashes %u, the "
                     "records say %d and %u",
                     w->epoch, (unsigned long long)p, (int)state, crashes, o->state[at],
                     o->crashes[at]);
    }
}

void model_compare(struct sim *m, const struct hub *h) {
    struct model *o = &m->model;
    if (h->seq != o->seq) return; /* it is ahead of the disk */
    WRONG(m, h->term != o->term || h->tok_n != o->tok_n || h->held != o->held);
    WRONG(m, h->versions[h->head].v.version != o->versions[o->head].version);
    WRONG(m, h->versions_next != o->versions_next || ledger_epochs(h->ledger) != o->epochs);
    for (struct walk w = {.m = m}; w.epoch < o->epochs; w.epoch++) {
        WRONG(m, ledger_sealed(h->ledger, w.epoch) != o->sealed[w.epoch]);
        ledger_walk(h->ledger, w.epoch, on_extent, &w);
    }
    uint32_t leases = 0, staged = 0;
    for (uint32_t i = 0; i < o->leases_count; i++) {
        if (!o->leases[i].active) continue;
        const struct lease *a = ledger_lease_find(h->ledger, o->leases[i].tok);
        leases++;
        WRONG(m, a == NULL || a->nonce != o->leases[i].nonce || a->count != o->leases[i].count ||
                     a->inc != o->leases[i].inc || a->site != o->leases[i].site);
    }
    for (uint32_t i = 0; i < o->deltas_count; i++) staged += o->deltas[i].state == MODEL_STAGED;
    WRONG(m, leases != ledger_leases(h->ledger));
    WRONG(m, staged != ledger_deltas_staged(h->ledger));
    count_blobs(m);
}

/* At the end of a calm run: everything is in its last state, and the head has it all. */
void model_final(struct sim *m) {
    struct model *o = &m->model;
    if (o->epochs != m->w.epochs) sim_fail(m, "L1: epoch %u was never opened", o->epochs);
    for (uint32_t e = 0; e < o->epochs; e++)
        if (!o->sealed[e]) sim_fail(m, "L1: epoch %u is not sealed", e);
    for (uint32_t at = 0; at < m->w.weights; at++)
        if (o->state[at] != EXTENT_MERGED && o->state[at] != EXTENT_SKIPPED)
            sim_fail(m, "I9: a sealed epoch has an open position");
    count_head(m);
}
