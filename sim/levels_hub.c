/* SPDX-License-Identifier: Apache-2.0 */
/* levels_hub.c - a hub's process in the tree: what it writes is durable at once, what it answers was written. A merge is
 * computed with the plan's parts, and its weights are held against the plan's ledger. */
#include <stdio.h>
#include <string.h>

#include "sim/levels.h"

/* ---- What must hold at any time ------------------------------------------------------------------------------ */
struct look {
    struct lv_hub *n;
    const float *theta; /* NULL: available positions are looked for */
    uint32_t epoch;
};

static bool is_open(const struct lv_hub *n, uint32_t epoch, uint64_t position) {
    const struct uplink_set *s = &n->link.disk.current;
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->leases[i].ranges_count; k++) {
            const struct range *r = &s->leases[i].ranges[k];
            if (s->leases[i].epoch == epoch && position >= r->start &&
                position < r->start + r->count)
                return true;
        }
    return false;
}

static void look_at(void *user, enum extent_state state, struct lease_span span, uint64_t version,
                    uint32_t crashes) {
    const struct look *x = user;
    (void)version, (void)crashes;
    for (uint64_t p = span.start; p < span.start + span.count; p++) {
        if (x->theta == NULL) {
            if (state == EXTENT_AVAILABLE && !is_open(x->n, x->epoch, p))
                lv_fail(x->n->w, "N1: %s offers position %u/%llu, which it has not leased",
                        x->n->name, x->epoch, (unsigned long long)p);
            continue;
        }
        float want = state == EXTENT_MERGED ? 1 : 0;
        float is = x->theta[lv_at(x->n->w, x->epoch, p)];
        if (is < want || is > want)
            lv_fail(x->n->w, "I5: %s version %llu: position %u/%llu counts %g, its ledger says %g",
                    x->n->name, (unsigned long long)x->n->plan.version, x->epoch,
                    (unsigned long long)p, (double)is, (double)want);
    }
}

static void offers_check(struct lv_hub *n) {
    if (n->up == NULL || n->h->parent_site == 0) return;
    for (uint32_t e = 0; e < ledger_epochs(n->h->ledger); e++) {
        struct look x = {n, NULL, e};
        ledger_walk(n->h->ledger, e, look_at, &x);
    }
}

static void counts_check(struct lv_hub *n, const struct lv_version *v) {
    struct ledger *l = NULL;
    uint64_t version = 0;
    struct err e;
    if (ledger_checkpoint_decode(v->ledger, v->ledger_bytes, n->s.epochs, &l, &version, &e) !=
        BRG_OK)
        lv_fail(n->w, "%s: the ledger of a plan: %s", n->name, e.text);
    for (uint32_t i = 0; i < ledger_epochs(l); i++) {
        struct look x = {n, v->theta, i};
        ledger_walk(l, i, look_at, &x);
    }
    ledger_destroy(l);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */
static void plan_drop(struct lv_hub *n) {
    if (n->has_plan) buf_fini(&n->plan.ledger);
    n->has_plan = false;
}

static void plan_take(struct lv_hub *n, const struct hub_plan *p) {
    plan_drop(n);
    if (p->parts_count > LV_PARTS) lv_fail(n->w, "%s: a plan of many parts", n->name);
    n->plan = *p;
    n->plan.parts = n->parts;
    memcpy(n->parts, p->parts, p->parts_count * sizeof *n->parts);
    buf_init(&n->plan.ledger, 1 << 20);
    buf_put(&n->plan.ledger, p->ledger.data, p->ledger.bytes_count);
    n->has_plan = true;
}

const struct wire_answer *lv_hub_step(struct lv_hub *n, const struct hub_cmd *c) {
    struct hub_cmd cmd = *c;
    cmd.wall = n->w->now;
    hub_step(n->h, n->w->now, &cmd, &n->out);
    buf_put(&n->journal, n->out.records.data, n->out.records.bytes_count);
    n->seq += n->out.records_count;
    if (n->out.seq_after != n->seq) lv_fail(n->w, "%s: records are not counted", n->name);
    if (n->out.merge != NULL) plan_take(n, n->out.merge);
    hub_check(n->h);
    offers_check(n);
    if (lv_chance(n->w, 40)) {
        buf_reset(&n->snapshot);
        hub_snapshot(n->h, &n->snapshot);
        n->snapshot_seq = n->seq;
        n->snapshot_offset = n->journal.bytes_count;
    }
    return &n->out.answer;
}

void lv_hub_tick(struct lv_hub *n) {
    const struct hub_cmd c = {.kind = HUB_CMD_TICK};
    if (n->alive && hub_expiry(n->h) <= n->w->now) (void)lv_hub_step(n, &c);
}

/* ---- Merges ------------------------------------------------------------------------------------------------------ */
const struct lv_version *lv_version_find(const struct lv_hub *n, uint64_t version) {
    for (uint32_t i = n->versions; i-- > 0;)
        if (n->version[i].version == version) return &n->version[i];
    return NULL;
}

static struct lv_version *compute(struct lv_hub *n) {
    const struct hub_plan *p = &n->plan;
    const struct lv_version *parent = lv_version_find(n, p->parent);
    if (parent == NULL || n->versions == LV_VERSIONS)
        lv_fail(n->w, "%s: a merge on a version that is not there", n->name);
    struct lv_version *v = &n->version[n->versions];
    memset(v, 0, sizeof *v);
    v->theta = mem_alloc(n->w->weights, sizeof *v->theta);
    v->version = p->version;
    v->tokens = p->tokens_after;
    memcpy(v->theta, parent->theta, n->w->weights * sizeof *v->theta);
    for (uint32_t i = 0; i < p->parts_count; i++) {
        const struct lv_blob *b = lv_blob_find(n->w, &p->parts[i].blob);
        if (b == NULL) lv_fail(n->w, "I11: %s merges a blob that is not there", n->name);
        float step = (float)(p->params.eta_r * p->parts[i].weight);
        for (uint32_t k = 0; k < n->w->weights; k++) v->theta[k] -= step * b->d[k];
    }
    v->ledger_bytes = p->ledger.bytes_count;
    v->ledger = mem_alloc(v->ledger_bytes + 1, 1);
    memcpy(v->ledger, p->ledger.data, v->ledger_bytes);
    return v;
}

void lv_hub_merge(struct lv_hub *n) {
    if (!n->has_plan) return;
    if (lv_chance(n->w, 12)) { /* it does not work, or a part of it is damaged */
        struct hub_cmd c = {.kind = HUB_CMD_MERGE_FAILED};
        c.u.merge_failed.plan = n->plan.id;
        c.u.merge_failed.bad_part =
            lv_chance(n->w, 2) ? (int32_t)prng_below(&n->w->g, n->plan.parts_count + 1) : -1;
        if (c.u.merge_failed.bad_part >= (int32_t)n->plan.parts_count)
            c.u.merge_failed.bad_part = -1;
        (void)snprintf(c.u.merge_failed.text, sizeof c.u.merge_failed.text,
                       "does not have its hash");
        n->w->faults++;
        plan_drop(n);
        (void)lv_hub_step(n, &c);
        return;
    }
    struct lv_version *v = compute(n);
    struct hub_cmd c = {.kind = HUB_CMD_MERGED};
    c.u.merged.plan = n->plan.id;
    c.u.merged.bytes = 100;
    struct id128 name = lv_name(n->w);
    memcpy(c.u.merged.checkpoint.v, name.v, sizeof name.v);
    memcpy(c.u.merged.theta.v, name.v, sizeof name.v);
    uint64_t before = n->h->versions[n->h->head].v.version;
    (void)lv_hub_step(n, &c);
    if (n->h->versions[n->h->head].v.version != before) { /* else it was cancelled */
        n->versions++;
        n->w->merges++;
        counts_check(n, v);
        lv_say(n->w, "%s: version %llu", n->name, (unsigned long long)v->version);
    } else {
        mem_free(v->theta);
        mem_free(v->ledger);
    }
    if (n->out.merge == NULL) plan_drop(n);
}

/* ---- Life --------------------------------------------------------------------------------------------------------- */
void lv_hub_open(struct lv_hub *n) {
    struct hub_cmd c = {.kind = HUB_CMD_INIT};
    n->h = hub_create(&n->s, prng_u64(&n->w->g));
    hub_out_init(&n->out);
    buf_init(&n->journal, 64 << 20);
    buf_init(&n->snapshot, 16 << 20);
    c.u.init.checkpoint.v[0] = 1;
    c.u.init.bytes = 100;
    n->alive = true;
    n->version = mem_alloc(LV_VERSIONS, sizeof *n->version);
    n->version[0].theta = mem_alloc(n->w->weights, sizeof(float));
    n->versions = 1; /* version 0: zeros */
    (void)lv_hub_step(n, &c);
    c = (struct hub_cmd){.kind = HUB_CMD_START};
    (void)lv_hub_step(n, &c);
    if (n->up != NULL) lv_uplink_start(n);
}

void lv_hub_kill(struct lv_hub *n) {
    if (!n->alive) return;
    hub_destroy(n->h);
    n->h = NULL;
    plan_drop(n);
    n->alive = false;
    n->down_until = n->w->turn + prng_below(&n->w->g, 40ULL * n->w->pace);
    n->w->crashes++;
    lv_say(n->w, "%s dies", n->name);
}

void lv_hub_start(struct lv_hub *n) {
    struct err e;
    uint64_t seq = 0;
    struct reader r = reader_of(n->journal.data, n->journal.bytes_count);
    n->h = hub_create(&n->s, prng_u64(&n->w->g));
    if (n->snapshot_seq > 0 && lv_chance(n->w, 2)) {
        if (hub_restore(n->h, n->snapshot_seq, n->snapshot.data, n->snapshot.bytes_count, &e) !=
            BRG_OK)
            lv_fail(n->w, "%s: its snapshot: %s", n->name, e.text);
        seq = n->snapshot_seq;
        (void)get_bytes(&r, n->snapshot_offset);
    }
    while (r.p < r.end) {
        uint16_t kind = get_u16(&r);
        uint32_t bytes = get_u32(&r);
        const void *body = get_bytes(&r, bytes);
        if (hub_apply(n->h, ++seq, kind, body, bytes, &e) != BRG_OK)
            lv_fail(n->w, "H1: %s: %s", n->name, e.text);
    }
    n->alive = true;
    const struct hub_cmd c = {.kind = HUB_CMD_START};
    (void)lv_hub_step(n, &c);
    if (n->up != NULL) lv_uplink_start(n);
}

void lv_hub_close(struct lv_hub *n) {
    if (n->h != NULL) hub_destroy(n->h);
    n->h = NULL;
    plan_drop(n);
    hub_out_fini(&n->out);
    buf_fini(&n->journal);
    buf_fini(&n->snapshot);
    for (uint32_t i = 0; i < n->versions; i++) {
        mem_free(n->version[i].theta);
        mem_free(n->version[i].ledger);
    }
    mem_free(n->version);
}
