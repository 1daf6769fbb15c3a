/* SPDX-License-Identifier: Apache-2.0 */
/* hub_merge.c - the merge worker and retention, simulated: the order of src/hub/merge_thread_os.c
 * (compute, adopt, tell the machine, publish) and of src/hub/publish_os.c. The arithmetic is the
 * production one (outer/outer.h). */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

void merge_take(struct sim *m, struct sim_hub *s, const struct hub_plan *p) {
    struct sim_plan *to = NULL;
    for (size_t i = 0; i < ARRAY_COUNT(s->plans); i++)
        if (!s->plans[i].busy) to = &s->plans[i];
    if (to == NULL || p->parts_count > SIM_PLAN_PARTS)
        sim_fail(m, "two merges at a time in one machine");
    to->busy = true;
    to->generation = s->generation;
    to->plan = *p;
    memcpy(to->parts, p->parts, p->parts_count * sizeof *p->parts);
    to->plan.parts = to->parts;
    uint8_t *ledger = sim_alloc(m, p->ledger.bytes_count);
    memcpy(ledger, p->ledger.data, p->ledger.bytes_count);
    to->plan.ledger = (struct buf){.data = ledger, .bytes_count = p->ledger.bytes_count};
    double seconds = 0.01 + 0.3 * sim_unit(m);
    if (sim_chance(m, m->w.f.slow)) seconds = 15 * sim_unit(m);
    struct sim_event *e =
        sim_post(m, EV_HUB_MERGE, m->now + sim_seconds(seconds), s->index, s->life);
    e->a = (uint64_t)(to - s->plans);
}

struct sim_blob *checkpoint_make(struct sim *m, const struct sim_blob *parent, uint64_t version,
                                 uint64_t tokens) {
    struct sim_blob *b = blob_add(m, BLOB_CHECKPOINT);
    size_t bytes = m->w.weights * sizeof(float);
    float *v = sim_alloc(m, 2 * bytes);
    if (parent != NULL) memcpy(v, parent->theta, bytes);
    if (parent != NULL) memcpy(v + m->w.weights, parent->m, bytes);
    b->theta = v;
    b->m = v + m->w.weights;
    b->version = version;
    b->tokens = tokens;
    return b;
}

static void checkpoint_name(struct sim *m, struct sim_blob *b) {
    size_t n = m->w.weights;
    b->theta_hash = sim_hash(b->theta, n * sizeof(float), 1);
    uint64_t salt = b->version ^ mix64(b->parent + 77) ^ mix64(b->tokens) ^
                    get_le64(b->theta_hash.v);
    struct hash h = sim_hash(b->m, n * sizeof(float), salt);
    b->hash = sim_hash(b->ledger, b->ledger_bytes, get_le64(h.v));
}

/* BRG_OK, or E_CORRUPT with out_bad (-1: the parent). */
static enum brg_status compute(struct sim *m, bool void_plan, const struct hub_plan *p,
                               struct sim_blob **out, int *out_bad) {
    const struct sim_blob *parent = blob_find(m, &p->parent_checkpoint);
    *out_bad = -1;
    if ((parent == NULL || !parent->present) && void_plan) return BRG_E_CORRUPT;
    if (parent == NULL || !parent->present) sim_fail(m, "I11: the parent of a merge is missing");
    if (parent->damaged || m->now < m->merge_fails_until) return BRG_E_CORRUPT;
    const float *delta[SIM_PLAN_PARTS];
    struct outer_part part[SIM_PLAN_PARTS];
    double weight[SIM_PLAN_PARTS];
    size_t count = 0;
    for (uint32_t i = 0; i < p->parts_count; i++) {
        if (p->parts[i].part.tokens == 0) continue;
        const struct sim_blob *b = blob_find(m, &p->parts[i].blob);
        if ((b == NULL || !b->present) && void_plan) return BRG_E_CORRUPT;
        if (b == NULL || !b->present) sim_fail(m, "I11: a planned contribution has no blob");
        if (b->damaged) {
            *out_bad = (int)i;
            return BRG_E_CORRUPT;
        }
        delta[count] = b->d;
        part[count] = p->parts[i].part;
        weight[count++] = p->parts[i].weight;
    }
    struct sim_blob *b = checkpoint_make(m, parent, p->version, p->tokens_after);
    struct outer_merge g;
    outer_merge_init(&g, &p->params, part, weight, count);
    float *theta = (float *)(uintptr_t)b->theta, *momentum = (float *)(uintptr_t)b->m;
    outer_merge_chunk(&g, theta, momentum, delta, m->w.weights);
    outer_merge_fini(&g);
    b->parent = p->parent;
    b->ledger = p->ledger.data;
    b->ledger_bytes = p->ledger.bytes_count;
    checkpoint_name(m, b);
    /* Equal bytes have one name: the same plan made again, by this hub or by another one. */
    m->blobs_count--;
    struct sim_blob *same = blob_find(m, &b->hash);
    if (same == NULL) m->blobs_count++;
    *out = same != NULL ? same : b;
    return BRG_OK;
}

static void tell_failed(struct sim *m, struct sim_hub *s, const struct sim_plan *x, int bad) {
    struct hub_cmd c = {.kind = HUB_CMD_MERGE_FAILED};
    c.u.merge_failed.plan = x->plan.id;
    c.u.merge_failed.bad_part = bad;
    snprintf(c.u.merge_failed.text, sizeof c.u.merge_failed.text, "does not have its hash");
    MARK(m, MERGE_FAILED);
    if (bad >= 0) MARK(m, MERGE_BAD_PART);
    if (x->generation == s->generation && !s->full) (void)hub_do(m, s, &c, NULL);
}

void merge_on_end(struct sim *m, struct sim_hub *s, uint64_t plan) {
    struct sim_plan *x = &s->plans[plan];
    struct sim_blob *b = NULL;
    int bad = -1;
    if (!x->busy) return;
    x->busy = false;
    /* Of a hub that lost its store, or made before a rebuild: nobody waits for it, files may be gone. */
    bool void_plan = !s->owner || x->generation != s->generation;
    if (compute(m, void_plan, &x->plan, &b, &bad) != BRG_OK) {
        tell_failed(m, s, x, bad);
        return;
    }
    if (hub_crash_here(m, s, "the checkpoint is not adopted yet")) return;
    if (!b->present) b->born = m->journal.last_seq;
    b->present = true;
    if (hub_crash_here(m, s, "between checkpoint and record")) {
        MARK(m, HUB_CRASH_CHECKPOINT);
        return;
    }
    if (x->generation != s->generation || s->full) {
        merge_drop_unused(m, s, &b->hash);
        return;
    }
    if (s->h->merge != NULL && s->h->merge->cancelled) MARK(m, MERGE_CANCELLED);
    struct hub_cmd c = {.kind = HUB_CMD_MERGED};
    c.u.merged.plan = x->plan.id;
    c.u.merged.checkpoint = b->hash;
    c.u.merged.theta = b->theta_hash;
    c.u.merged.bytes = m->w.weights * 8 + b->ledger_bytes;
    struct sim_waiter w = {.merge = true, .blob = b->hash, .version = x->plan.version};
    (void)hub_do(m, s, &c, &w);
}

/* The flip is durable: publish, then drop what retention does not keep. */
void merge_durable(struct sim *m, struct sim_hub *s, const struct sim_waiter *w) {
    (void)w;
    if (hub_crash_here(m, s, "between record and publishing")) {
        MARK(m, HUB_CRASH_PUBLISH);
        return;
    }
    merge_retain(m, s);
}

static bool is_kept(const struct sim *m, uint64_t version, uint64_t newest, uint64_t head) {
    if (version == 0 || version == head) return true;
    return version + m->w.keep_checkpoints > newest;
}

void merge_retain(struct sim *m, struct sim_hub *s) {
    const struct hub *h = s->h;
    uint64_t head = h->versions[h->head].v.version, newest = head;
    for (uint32_t i = 0; i < h->versions_count; i++) {
        const struct hub_version_view *v = &h->versions[i].v;
        if (v->version > newest || is_kept(m, v->version, newest, head)) continue;
        bool shared = false;
        for (uint32_t k = 0; k < h->versions_count && !shared; k++)
            shared = k != i && hash_equal(&h->versions[k].v.checkpoint, &v->checkpoint) &&
                     is_kept(m, h->versions[k].v.version, newest, head);
        struct sim_blob *b = shared ? NULL : blob_find(m, &v->checkpoint);
        if (b != NULL) b->present = false;
    }
}

struct search {
    const struct hash *wanted;
    bool found;
};
static void on_blob(void *user, const struct hash *h) {
    struct search *x = user;
    if (hash_equal(h, x->wanted)) x->found = true;
}

void merge_drop_unused(struct sim *m, struct sim_hub *s, const struct hash *h) {
    struct search x = {.wanted = h};
    hub_blobs(s->h, on_blob, &x);
    struct sim_blob *b = blob_find(m, h);
    /* The journal fences an older hub, the blobs do not: two hubs that run at a time, and make the same
     * version, need the lock of the store (docs/simulation.md). */
    if (!s->owner) return;
    if (!x.found && b != NULL) b->present = false;
}
