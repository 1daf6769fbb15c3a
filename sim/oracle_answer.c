/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_answer.c - I10: whatever a site is told is on the disk at that moment, and stays true.
 *
 * Each answer is looked at when it leaves the hub, against the model of the durable records. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

static void outcome_check(struct sim *m, const struct wire_answer *a, const struct id128 *did) {
    const struct wire_commit_answer *c = &a->u.commit;
    const struct model_delta *d = model_delta_find(m, did);
    enum model_delta_state s = d != NULL ? d->state : MODEL_NONE;
    bool fine = true;
    if (c->outcome == OUTCOME_UNKNOWN && a->code == WIRE_OK) MARK(m, OUTCOME_UNKNOWN);
    switch (c->outcome) {
    case OUTCOME_UNKNOWN: fine = true; break;
    case OUTCOME_STAGED:
        fine = s == MODEL_STAGED || s == MODEL_MERGED || s == MODEL_DISCARDED;
        break;
    case OUTCOME_MERGED:
        fine = (s == MODEL_MERGED && d->version == c->version) || s == MODEL_DISCARDED;
        break;
    case OUTCOME_REJECTED: fine = s == MODEL_REJECTED; break;
    case OUTCOME_DISCARDED: fine = s == MODEL_DISCARDED; break;
    }
    if (!fine)
        sim_fail(m, "I10: a site is told %s, the records say %d", wire_outcome_name(c->outcome),
                 (int)s);
    struct sim_delta *x = delta_of(m, did);
    if (x == NULL || c->outcome == OUTCOME_UNKNOWN) return;
    x->told = c->outcome;
    x->told_version = c->version;
    x->restored_away = false;
}

static void lease_check(struct sim *m, const struct wire_lease *w) {
    const struct model_lease *l = model_lease_find(m, w->tok);
    if (l == NULL || l->nonce != w->nonce || l->epoch != w->epoch)
        sim_fail(m, "I10: a site is given a lease that no record has");
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->ranges_count; i++)
        for (uint64_t k = 0; k < w->ranges[i].count && n < l->count; k++, n++)
            if (l->at[n] != w->epoch * m->w.positions + w->ranges[i].start + k)
                sim_fail(m, "I10: a site is given other positions than the record says");
}

void answer_check(struct sim *m, struct sim_hub *s, const struct sim_waiter *w) {
    const struct wire_answer *a = &w->answer;
    sim_mix(m, (uint64_t)a->kind << 16 | (uint64_t)a->code);
    SAY(m, "hub %u -> s%u/%u: %s %s", s->index, m->proc[w->proc].site, w->proc,
        wire_kind_name(a->kind), wire_code_name(a->code));
    if (!s->owner || a->code != WIRE_OK) return; /* an old hub that only reads may tell old news */
    bool fenced = a->kind != WIRE_JOIN && a->kind != WIRE_COMMIT && a->kind != WIRE_OUTCOME;
    if (fenced && m->w.f.append_s <= 0 && w->inc < m->model.inc_of[w->site])
        sim_fail(m, "a process of s%u goes on although a newer one has joined", w->site);
    const struct wire_round *r = NULL;
    const struct model *o = &m->model;
    switch (a->kind) {
    case WIRE_JOIN: r = &a->u.join.round; break;
    case WIRE_LEASE:
        if (a->u.lease.granted) lease_check(m, &a->u.lease.lease);
        r = &a->u.lease.round;
        break;
    case WIRE_COMMIT:
    case WIRE_OUTCOME:
        outcome_check(m, a, &w->did);
        if (a->u.commit.has_rest) lease_check(m, &a->u.commit.rest);
        break;
    case WIRE_HEARTBEAT: r = &a->u.heartbeat.round; break;
    case WIRE_SHRINK_OK:
    case WIRE_RETURN:
    case WIRE_LEAVE: break;
    }
    if (r == NULL) return;
    if (model_version_find(m, r->head) == NULL)
        sim_fail(m, "I6: a site is told of a version without a record");
    /* Told in the step that said so; with a slow journal an operator may have gone back since. */
    for (uint32_t e = 0; e < m->w.epochs && r->complete && m->w.f.append_s <= 0; e++)
        if (e >= o->epochs || !o->sealed[e])
            sim_fail(m, "I10: a site is told that the run is complete");
}

/* What was acknowledged ended as it was told, or as an operator decided since. */
void answers_final(struct sim *m) {
    for (uint32_t i = 0; i < m->deltas_count; i++) {
        const struct sim_delta *x = &m->delta[i];
        if (x->told == OUTCOME_UNKNOWN || x->restored_away) continue;
        const struct model_delta *d = model_delta_find(m, &x->did);
        enum model_delta_state s = d != NULL ? d->state : MODEL_NONE;
        bool taken = x->told == OUTCOME_STAGED || x->told == OUTCOME_MERGED;
        bool fine = taken ? s == MODEL_MERGED || s == MODEL_DISCARDED
                          : s == (x->told == OUTCOME_REJECTED ? MODEL_REJECTED : MODEL_DISCARDED);
        if (!fine)
            sim_fail(m, "I10: what was told as %s ended as %d", wire_outcome_name(x->told), (int)s);
    }
}
