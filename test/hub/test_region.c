/* SPDX-License-Identifier: Apache-2.0 */
/* test_region.c - a hub whose ledger has its parent as a member: what may be given, how a version of the parent
 * comes in, and that neither a rollback, a merge that fails, a crash nor a snapshot gives what is not held. */
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"
#include "machine_kit.h"

enum { POSITIONS = 128 };

static struct hub_span span(uint32_t epoch, uint64_t start, uint64_t count) {
    return (struct hub_span){.epoch = epoch, .range = {start, count}};
}

static enum wire_code hold(struct kit *k, const struct hub_span *s, uint32_t count) {
    struct hub_cmd c = {.kind = HUB_CMD_HOLD, .wall = 1700000000LL * NS_PER_S};
    c.u.hold.spans = s;
    c.u.hold.count = count;
    return kit_step(k, &c)->code;
}

static enum wire_code take_in(struct kit *k, uint64_t version, uint64_t from,
                              const struct hub_span *s, uint32_t count) {
    struct hub_cmd c = {.kind = HUB_CMD_TAKE_IN, .wall = 1700000000LL * NS_PER_S};
    c.u.take_in.version = version;
    c.u.take_in.from = from;
    c.u.take_in.blob.v[0] = (uint8_t)(100 + version);
    c.u.take_in.bytes = DELTA_HEADER_BYTES + 4000;
    static uint32_t dids;
    put_le32(c.u.take_in.did.v, ++dids);
    c.u.take_in.did.v[8] = 1;
    c.u.take_in.spans = s;
    c.u.take_in.count = count;
    return kit_step(k, &c)->code;
}

static void region_open(struct kit *k, uint32_t epochs) {
    struct hub_settings s = kit_settings(POSITIONS, epochs);
    s.quorum = 1;
    s.lease_samples_min = 64; /* a lease is what was asked for */
    s.crashes_max = 100;
    kit_open(k, &s);
    assert_int_equal(hold(k, NULL, 0), WIRE_OK);
}

static bool grants(struct kit *k, uint32_t inc, uint64_t req) {
    struct wire_request q = kit_request(k, WIRE_LEASE, "a", inc);
    q.req = req;
    q.u.lease.want = 64;
    q.u.lease.base = kit_view(k).head;
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    return a->u.lease.granted;
}

static struct hub_region_view region(const struct kit *k) {
    struct hub_region_view v;
    hub_region(k->h, 0, &v);
    return v;
}

/* ---- What may be given --------------------------------------------------------------------------------------- */
TEST(hub_N1_only_what_is_held_is_given) {
    struct kit k;
    region_open(&k, 2);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.available, 0);
    assert_int_equal(v.counts.leased, POSITIONS);
    uint32_t inc = kit_join(&k, "a", 1);
    assert_false(grants(&k, inc, 1));
    const struct hub_span held[] = {span(0, 8, 16), span(0, 40, 8), span(1, 0, 4)};
    assert_int_equal(hold(&k, held, 3), WIRE_OK);
    v = kit_view(&k);
    assert_int_equal(v.epochs, 2);
    assert_int_equal(v.counts.available, 28);
    struct wire_lease l = kit_lease(&k, "a", inc, 2, 24);
    assert_int_equal(l.count, 24);
    assert_int_equal(l.ranges[0].start, 8);
    assert_int_equal(l.ranges[0].count, 16);
    assert_int_equal(l.ranges[1].start, 40);
    l = kit_lease(&k, "a", inc, 3, 64); /* the next epoch's, and no more than is held */
    assert_int_equal(l.epoch, 1);
    assert_int_equal(l.count, 4);
    assert_false(grants(&k, inc, 4));
    /* Nothing is held any more: what a site has stays its own, what it gives back goes to the parent at the next word. */
    assert_int_equal(hold(&k, NULL, 0), WIRE_OK);
    assert_int_equal(kit_view(&k).counts.available, 0);
    struct wire_request q = kit_request(&k, WIRE_RETURN, "a", inc);
    q.req = 5;
    q.u.give_back.tok = l.tok;
    q.u.give_back.nonce = l.nonce;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).counts.available, 4);
    assert_int_equal(hold(&k, held, 2), WIRE_OK);
    assert_int_equal(kit_view(&k).counts.available, 0);
    kit_close(&k);
}

TEST(hub_N1_after_a_rollback_all_is_the_parents) {
    struct kit k;
    const struct hub_span held[] = {span(0, 0, 64)};
    region_open(&k, 1);
    uint32_t inc = kit_join(&k, "a", 1);
    for (uint64_t i = 1; i <= 2; i++) {
        const struct hub_span part[] = {span(0, 16 * (i - 1), 16)};
        assert_int_equal(hold(&k, part, 1), WIRE_OK);
        struct wire_lease l = kit_lease(&k, "a", inc, i, 16);
        assert_int_equal(kit_stage(&k, "a", inc, (uint32_t)i, &l, l.count), OUTCOME_STAGED);
        if (i == 1) kit_merge(&k);
    }
    assert_int_equal(kit_view(&k).counts.merged, 16);
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK, .wall = 1700000000LL * NS_PER_S};
    kit_merge(&k);
    assert_int_equal(kit_view(&k).head, 2);
    back.u.rollback.version = 1; /* in between: its work may be at the parent already */
    assert_int_equal(kit_step(&k, &back)->code, WIRE_BAD);
    back.u.rollback.version = 2;
    assert_int_equal(kit_step(&k, &back)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).counts.merged, 32);
    assert_int_equal(kit_view(&k).counts.available, 0);
    const struct hub_cmd reset = {.kind = HUB_CMD_RESET, .wall = 1700000000LL * NS_PER_S};
    assert_int_equal(kit_step(&k, &reset)->code, WIRE_OK);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.head, 0);
    assert_int_equal(v.counts.leased, POSITIONS);
    assert_int_equal(v.counts.available + v.counts.merged + v.counts.staged, 0);
    kit_kill(&k);
    assert_int_equal(kit_view(&k).counts.available, 0);
    assert_int_equal(hold(&k, held, 1), WIRE_OK);
    assert_int_equal(kit_view(&k).counts.available, 64);
    kit_close(&k);
}

TEST(hub_a_region_begins_with_a_fresh_run) {
    struct kit k;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    const struct hub_span beyond[] = {span(0, 120, 9)}, epoch[] = {span(1, 0, 1)};
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "a", 1);
    (void)kit_lease(&k, "a", inc, 1, 4);
    assert_int_equal(hold(&k, NULL, 0), WIRE_BAD);
    const struct hub_cmd reset = {.kind = HUB_CMD_RESET, .wall = 1700000000LL * NS_PER_S};
    assert_int_equal(kit_step(&k, &reset)->code, WIRE_BAD);
    assert_int_equal(take_in(&k, 1, 0, NULL, 0), WIRE_BAD);
    kit_close(&k);
    region_open(&k, 1);
    assert_int_equal(hold(&k, beyond, 1), WIRE_BAD);
    assert_int_equal(hold(&k, epoch, 1), WIRE_BAD);
    struct wire_request q = kit_join_request(&k, HUB_PARENT, 3); /* nobody can be it */
    assert_int_equal(kit_send(&k, &q)->code, WIRE_BAD);
    kit_close(&k);
}

/* ---- A version of the parent ------------------------------------------------------------------------------------- */
TEST(hub_N2_a_version_and_its_positions_are_in_one_merge) {
    struct kit k;
    const struct hub_span held[] = {span(0, 0, 32)}, others[] = {span(0, 32, 16), span(0, 64, 8)};
    region_open(&k, 1);
    uint32_t inc = kit_join(&k, "a", 1);
    assert_int_equal(hold(&k, held, 1), WIRE_OK);
    struct wire_lease l = kit_lease(&k, "a", inc, 1, 32);
    assert_int_equal(kit_stage(&k, "a", inc, 1, &l, 32), OUTCOME_STAGED);
    assert_true(k.has_plan);
    assert_int_equal(take_in(&k, 3, 0, others, 2), WIRE_BAD); /* a merge without it is under way */
    kit_merge(&k);
    assert_int_equal(take_in(&k, 3, 1, others, 2), WIRE_BAD); /* of another version */
    assert_int_equal(take_in(&k, 3, 0, held, 1), WIRE_BAD);   /* the region's own */
    assert_int_equal(take_in(&k, 3, 0, others, 2), WIRE_OK);
    assert_true(k.has_plan);
    assert_int_equal(k.plan_parts,
                     1); /* the displacement; the positions have no delta of their own */
    assert_true(hub_region_part(&k.h->merge->plan.parts[0]));
    assert_true(k.h->merge->plan.parts[0].weight * k.h->merge->plan.params.eta_r == 1);
    struct hub_region_view v = region(&k);
    assert_true(v.taking);
    assert_int_equal(v.taken, 0);
    assert_int_equal(kit_view(&k).counts.staged, 24);
    kit_kill(&k); /* it is planned again, with it */
    kit_wait(&k, 100);
    assert_true(k.has_plan);
    assert_true(hub_region_part(&k.h->merge->plan.parts[k.plan_parts - 1]));
    kit_merge(&k);
    v = region(&k);
    assert_false(v.taking);
    assert_int_equal(v.taken, 3);
    assert_int_equal(v.tokens, 56 * KIT_SEQ_LEN);
    assert_int_equal(kit_view(&k).counts.merged, 56);
    /* A version that brings the region's own work alone has no positions: a merge of no part. */
    assert_int_equal(take_in(&k, 4, 3, NULL, 0), WIRE_OK);
    kit_merge(&k);
    assert_int_equal(region(&k).taken, 4);
    assert_int_equal(region(&k).tokens, 56 * KIT_SEQ_LEN);
    kit_close(&k);
}

TEST(hub_N2_a_displacement_that_cannot_be_used_takes_its_positions_back) {
    struct kit k;
    const struct hub_span others[] = {span(0, 32, 16)};
    region_open(&k, 1);
    assert_int_equal(take_in(&k, 1, 0, others, 1), WIRE_OK);
    assert_true(k.has_plan);
    k.has_plan = false;
    struct hub_cmd c = {.kind = HUB_CMD_MERGE_FAILED, .wall = 1700000000LL * NS_PER_S};
    c.u.merge_failed.plan = k.plan;
    c.u.merge_failed.bad_part = 0;
    (void)snprintf(c.u.merge_failed.text, sizeof c.u.merge_failed.text, "it is damaged");
    kit_step(&k, &c);
    assert_false(k.has_plan);
    assert_false(region(&k).taking);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.staged + v.counts.available + v.counts.merged, 0);
    assert_int_equal(take_in(&k, 1, 0, others, 1), WIRE_OK); /* once more, whole */
    kit_merge(&k);
    assert_int_equal(kit_view(&k).counts.merged, 16);
    kit_close(&k);
}

/* More stretches and skips than one record holds, in two epochs. */
TEST(hub_a_version_of_the_parent_may_bring_much) {
    struct kit k;
    struct hub_settings s = kit_settings(4096, 2);
    struct hub_span others[600];
    s.quorum = 1;
    kit_open(&k, &s);
    assert_int_equal(hold(&k, NULL, 0), WIRE_OK);
    uint64_t done = 0, skipped = 0;
    for (uint32_t i = 0; i < 600; i++) {
        others[i] = span(i / 300, (i % 300) * 13, 1 + i % 7);
        others[i].skip = i % 3 == 0;
        *(others[i].skip ? &skipped : &done) += others[i].range.count;
    }
    assert_true(skipped > WIRE_SKIPS_MAX);
    assert_int_equal(take_in(&k, 9, 0, others, 600), WIRE_OK);
    while (region(&k).taking) {
        if (!k.has_plan) kit_wait(&k, 100);
        kit_merge(&k);
    }
    while (kit_view(&k).counts.staged > 0) {
        if (!k.has_plan) kit_wait(&k, 100);
        kit_merge(&k);
    }
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.merged, done);
    assert_int_equal(v.counts.skipped, skipped);
    assert_int_equal(v.counts.available, 0);
    assert_int_equal(v.tokens, done * KIT_SEQ_LEN);
    kit_close(&k);
}

/* ---- Against the parent's ledger ------------------------------------------------------------------------------------ */
static struct ledger *ledger_with(uint64_t merged_until, bool skip_last) {
    struct ledger *l = NULL;
    struct buf b, runs;
    struct err e;
    uint64_t version;
    buf_init(&b, 1 << 16);
    buf_init(&runs, 100);
    buf_put(&b, "BRGLEDG1", 8);
    /* version 1, epochs 1, positions 128 = 0x80 0x01 */
    buf_u8(&b, 1), buf_u8(&b, 1), buf_u8(&b, 0x80), buf_u8(&b, 1);
    uint8_t merged = (uint8_t)(merged_until - skip_last),
            open = (uint8_t)(POSITIONS - merged_until);
    buf_u8(&runs, 1), buf_u8(&runs, merged), buf_u8(&runs, 1);
    if (skip_last) buf_u8(&runs, 2), buf_u8(&runs, 1), buf_u8(&runs, 1), buf_u8(&runs, 0);
    buf_u8(&runs, 0), buf_u8(&runs, open);
    buf_u8(&b, (uint8_t)runs.bytes_count);
    buf_put(&b, runs.data, runs.bytes_count);
    if (ledger_checkpoint_decode(b.data, b.bytes_count, 1, &l, &version, &e) != BRG_OK)
        fail_msg("%s", e.text);
    buf_fini(&runs);
    buf_fini(&b);
    return l;
}

TEST(hub_a_region_knows_what_others_did_from_the_two_ledgers) {
    struct kit k;
    struct hub_span *others = NULL;
    uint32_t count = 0;
    const struct hub_span held[] = {span(0, 0, 32)};
    region_open(&k, 1);
    uint32_t inc = kit_join(&k, "a", 1);
    assert_int_equal(hold(&k, held, 1), WIRE_OK);
    struct wire_lease l = kit_lease(&k, "a", inc, 1, 32);
    assert_int_equal(kit_stage(&k, "a", inc, 1, &l, 32), OUTCOME_STAGED);
    kit_merge(&k);
    /* The parent has merged 0..47 and skipped 48: ours, and 32..48 of others. */
    struct ledger *p = ledger_with(49, true);
    assert_true(hub_region_others(k.h, p, NULL, 0, &others, &count));
    assert_int_equal(count, 2);
    assert_int_equal(others[0].range.start, 32);
    assert_int_equal(others[0].range.count, 16);
    assert_false(others[0].skip);
    assert_int_equal(others[1].range.start, 48);
    assert_true(others[1].skip);
    mem_free(others);
    ledger_destroy(p);
    /* It has not merged what the region did: right only while that is on its way. */
    p = ledger_with(16, false);
    assert_false(hub_region_others(k.h, p, NULL, 0, &others, &count));
    assert_null(others);
    assert_true(hub_region_others(k.h, p, held, 1, &others, &count));
    assert_int_equal(count, 0);
    mem_free(others);
    ledger_destroy(p);
    /* Others have merged what is leased to the region: the lease was lost. */
    const struct hub_span more[] = {span(0, 32, 32)};
    assert_int_equal(hold(&k, more, 1), WIRE_OK);
    p = ledger_with(49, true);
    assert_false(hub_region_others(k.h, p, NULL, 0, &others, &count));
    ledger_destroy(p);
    kit_close(&k);
}

/* ---- Snapshots ------------------------------------------------------------------------------------------------------ */
static void snapshot_same(const struct kit *k) {
    struct buf a, b;
    struct err e = {0};
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    hub_snapshot(k->h, &a);
    struct hub *h = hub_create(&k->s, 5);
    if (hub_restore(h, k->seq, a.data, a.bytes_count, &e) != BRG_OK) fail_msg("%s", e.text);
    hub_check(h);
    hub_snapshot(h, &b);
    assert_int_equal(a.bytes_count, b.bytes_count);
    assert_memory_equal(a.data, b.data, a.bytes_count);
    struct hash x = hub_digest(k->h), y = hub_digest(h);
    assert_true(hash_equal(&x, &y));
    hub_destroy(h);
    buf_fini(&a);
    buf_fini(&b);
}

TEST(hub_a_snapshot_has_what_a_region_takes_in) {
    struct kit k;
    const struct hub_span held[] = {span(0, 0, 32)}, others[] = {span(0, 32, 16)};
    region_open(&k, 1);
    snapshot_same(&k);
    uint32_t inc = kit_join(&k, "a", 1);
    assert_int_equal(hold(&k, held, 1), WIRE_OK);
    struct wire_lease l = kit_lease(&k, "a", inc, 1, 16);
    assert_int_equal(kit_stage(&k, "a", inc, 1, &l, 16), OUTCOME_STAGED);
    kit_merge(&k);
    assert_int_equal(take_in(&k, 2, 0, others, 1), WIRE_OK);
    snapshot_same(&k); /* with it waiting for the site */
    l = kit_lease(&k, "a", inc, 2, 16);
    assert_int_equal(kit_stage(&k, "a", inc, 2, &l, l.count), OUTCOME_STAGED);
    kit_merge(&k);
    snapshot_same(&k);
    kit_close(&k);
}

/* ---- Any order of things, against a model of a byte a position -------------------------------------------------------- */
struct model {
    struct kit k;
    struct prng g;
    uint32_t inc, did;
    uint64_t req;
    bool held[POSITIONS];    /* leased to the region, as it was told last */
    bool there[POSITIONS];   /* merged at the parent by others */
    bool parents[POSITIONS]; /* the parent's lease in the region's ledger */
};

static void model_look(struct model *m) {
    memset(m->parents, 0, sizeof m->parents);
    const struct lease *a = ledger_site_first(m->k.h->ledger, m->k.h->parent_site);
    for (; a; a = a->site_next)
        for (uint32_t s = 0; s < a->spans_count; s++)
            memset(m->parents + a->spans[s].start, 1, a->spans[s].count);
}

static void model_hold(struct model *m) {
    struct hub_span s[POSITIONS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < POSITIONS; i++) {
        bool before = i % 8 != 0 && m->held[i - 1];
        m->held[i] = (i % 8 != 0 ? before : prng_below(&m->g, 3) > 0) && !m->there[i];
        if (m->held[i]) s[n++] = span(0, i, 1);
    }
    assert_int_equal(hold(&m->k, s, n), WIRE_OK);
}

static void model_take_in(struct model *m, bool all) {
    struct hub_span s[POSITIONS];
    uint32_t n = 0;
    struct hub_region_view v = region(&m->k);
    if (v.taking || v.merging) return;
    model_look(m);
    for (uint32_t i = 0; i < POSITIONS; i++) {
        if (!m->parents[i]) continue;
        if (all || prng_below(&m->g, 4) == 0) m->there[i] = true;
        if (m->there[i]) s[n++] = span(0, i, 1);
    }
    assert_int_equal(take_in(&m->k, v.taken + 1, v.taken, s, n), WIRE_OK);
}

static bool model_work(struct model *m) {
    struct wire_request q = kit_request(&m->k, WIRE_LEASE, "a", m->inc);
    q.req = ++m->req;
    q.u.lease.want = 4 + prng_below(&m->g, 12);
    q.u.lease.base = kit_view(&m->k).head;
    struct wire_answer a = *kit_send(&m->k, &q);
    if (a.code == WIRE_UNKNOWN_SITE) {
        m->inc = kit_join(&m->k, "a", (uint8_t)++m->did);
        return false;
    }
    if (a.code != WIRE_OK || !a.u.lease.granted) return false;
    const struct wire_lease *l = &a.u.lease.lease;
    for (uint32_t i = 0; i < l->ranges_count; i++)
        for (uint64_t p = 0; p < l->ranges[i].count; p++)
            assert_true(m->held[l->ranges[i].start + p]); /* N1 */
    (void)kit_stage(&m->k, "a", m->inc, 1000 + ++m->did, l, l->count);
    return true;
}

static void model_finish(struct model *m) {
    for (int i = 0; i < 1000 && !kit_view(&m->k).complete; i++) {
        if (m->k.has_plan) kit_merge(&m->k);
        if (model_work(m)) continue;
        if (kit_view(&m->k).counts.available == 0) model_take_in(m, true);
        kit_wait(&m->k, 30);
    }
    struct hub_view v = kit_view(&m->k);
    assert_true(v.complete);
    assert_int_equal(v.counts.merged, POSITIONS);
    assert_int_equal(v.tokens, POSITIONS * KIT_SEQ_LEN);
}

static void model_run(uint64_t seed) {
    const struct hub_cmd reset = {.kind = HUB_CMD_RESET, .wall = 1700000000LL * NS_PER_S};
    AUTO_FREE struct model *m = mem_alloc(1, sizeof *m);
    prng_seed(&m->g, seed);
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.crashes_max = 100;
    kit_open(&m->k, &s);
    assert_int_equal(hold(&m->k, NULL, 0), WIRE_OK);
    m->inc = kit_join(&m->k, "a", 1);
    for (int i = 0; i < 120; i++) {
        uint64_t what = prng_below(&m->g, 16);
        if (what < 3)
            model_hold(m);
        else if (what < 5)
            model_take_in(m, false);
        else if (what < 9)
            (void)model_work(m);
        else if (what < 13 && m->k.has_plan)
            kit_merge(&m->k);
        else if (what < 14)
            kit_wait(&m->k, 10);
        else if (what == 14)
            kit_kill(&m->k);
        else if (prng_below(&m->g, 4) == 0) {
            assert_int_equal(kit_step(&m->k, &reset)->code, WIRE_OK);
            assert_int_equal(kit_view(&m->k).counts.available, 0); /* N1 */
        }
        if (what == 0) snapshot_same(&m->k);
    }
    model_finish(m);
    kit_close(&m->k);
}

TEST(hub_a_region_in_any_order_of_things) {
    for (uint64_t seed = 1; seed <= 60; seed++) model_run(seed);
}
