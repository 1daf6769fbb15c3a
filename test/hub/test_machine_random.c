/* SPDX-License-Identifier: Apache-2.0 */
/* Random commands, sensible and hostile, against one hub: after each the invariants hold (the kit
 * looks), at any time the journal replays to the same digest, and any request that was ever
 * answered may come again without changing anything. */
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"
#include "hub/record.h"
#include "machine_kit.h"

enum { HISTORY = 400, LEASES = 400, STEPS = 600 };

struct past {
    struct wire_request q;
    enum outcome outcome;
    bool granted;
};
struct chaos {
    struct kit k;
    struct prng g;
    struct past past[HISTORY];
    uint32_t past_count, dids;
    struct wire_lease lease[LEASES];
    uint32_t lease_site[LEASES], leases;
    uint32_t inc[4];
    uint64_t req;
};

static uint32_t below(struct chaos *c, uint32_t n) {
    return (uint32_t)prng_below(&c->g, n);
}

static const char *const names[] = {"a", "b", "c", "d"};

static void remember(struct chaos *c, const struct wire_request *q, const struct wire_answer *a) {
    if (a->code != WIRE_OK || c->past_count == HISTORY || q->kind == WIRE_HEARTBEAT) return;
    struct past *p = &c->past[c->past_count++];
    p->q = *q;
    p->outcome = q->kind == WIRE_COMMIT ? a->u.commit.outcome : OUTCOME_UNKNOWN;
    p->granted = q->kind == WIRE_LEASE && a->u.lease.granted;
}

static void lease_keep(struct chaos *c, uint32_t site, const struct wire_lease *l) {
    if (c->leases == LEASES) return;
    c->lease_site[c->leases] = site;
    c->lease[c->leases++] = *l;
}

static void do_join(struct chaos *c, uint32_t s) {
    struct wire_request q = kit_join_request(&c->k, names[s], (uint8_t)(1 + below(c, 200)));
    q.req = ++c->req;
    q.u.join.version_seen = below(c, 100) == 0 ? 1000 : 0;
    if (below(c, 2)) kit_seal(&c->k, &q);
    for (uint32_t i = 0; i < c->leases && q.u.join.resume_count < 8; i++)
        if (below(c, 4) == 0)
            q.u.join.resume[q.u.join.resume_count++] =
                (struct wire_part){c->lease[i].tok, c->lease[i].nonce + (below(c, 9) == 0), 0};
    const struct wire_answer *a = kit_send(&c->k, &q);
    if (a->code == WIRE_OK) c->inc[s] = a->u.join.inc;
    remember(c, &q, a);
}

static void do_lease(struct chaos *c, uint32_t s) {
    struct wire_request q = kit_request(&c->k, WIRE_LEASE, names[s], c->inc[s]);
    q.req = ++c->req;
    q.u.lease.want = prng_u64(&c->g) >> below(c, 64);
    q.u.lease.base = kit_view(&c->k).head - (below(c, 8) == 0);
    if (q.u.lease.base > 1000) q.u.lease.base = 0;
    const struct wire_answer *a = kit_send(&c->k, &q);
    if (a->code == WIRE_OK && a->u.lease.granted) lease_keep(c, s, &a->u.lease.lease);
    remember(c, &q, a);
}

static void do_commit(struct chaos *c, uint32_t s) {
    if (c->leases == 0) return;
    uint32_t at = below(c, c->leases);
    for (uint32_t i = 0; i < 50 && c->lease_site[at] != s; i++) at = below(c, c->leases);
    const struct wire_lease *l = &c->lease[at];
    uint64_t done = below(c, 5) ? l->count : below(c, (uint32_t)l->count + 3);
    struct wire_request q = kit_commit_request(&c->k, names[s], c->inc[s], ++c->dids, l, done);
    q.req = ++c->req;
    if (below(c, 6) == 0) q.inc--;
    if (below(c, 10) == 0) q.u.commit.base = below(c, 10);
    if (below(c, 10) == 0) q.u.commit.tokens ^= 1ULL << below(c, 64);
    if (below(c, 10) == 0) q.u.commit.parts[0].tok = prng_u64(&c->g);
    if (below(c, 10) == 0) q.u.commit.parts[0].done = prng_u64(&c->g);
    if (below(c, 10) == 0) put_le32(q.u.commit.did.v, 1 + below(c, c->dids)); /* used already */
    if (below(c, 3) == 0) kit_part_add(&q, &c->lease[below(c, c->leases)], below(c, 20));
    if (below(c, 8) == 0 && l->count > 0) {
        q.u.commit.skips_count = 1;
        q.u.commit.skips[0].position = l->epoch * c->k.s.positions + l->ranges[0].start +
                                       below(c, 3);
        q.u.commit.tokens -= KIT_SEQ_LEN;
    }
    q.u.commit.keep_rest = below(c, 2);
    struct hub_blob_verdict blob = kit_blob();
    if (below(c, 10) == 0) blob.complete = false;
    if (below(c, 20) == 0) blob.status = BRG_E_NONFINITE;
    const struct wire_answer *a = kit_commit(&c->k, &q, &blob);
    if (a->code == WIRE_OK && a->u.commit.has_rest) lease_keep(c, s, &a->u.commit.rest);
    remember(c, &q, a);
}

static void do_give(struct chaos *c, uint32_t s) {
    if (c->leases == 0) return;
    const struct wire_lease *l = &c->lease[below(c, c->leases)];
    struct wire_request q =
        kit_request(&c->k, below(c, 2) ? WIRE_RETURN : WIRE_SHRINK_OK, names[s], c->inc[s]);
    q.req = ++c->req;
    if (q.kind == WIRE_RETURN)
        q.u.give_back = (struct wire_return){l->tok, l->nonce};
    else
        q.u.shrink_ok = (struct wire_shrink_ok){l->tok, l->nonce, below(c, 8)};
    const struct wire_answer *a = kit_send(&c->k, &q);
    if (q.kind == WIRE_RETURN || below(c, 2)) remember(c, &q, a);
}

static void do_beat(struct chaos *c, uint32_t s) {
    struct wire_request q = kit_request(&c->k, WIRE_HEARTBEAT, names[s], c->inc[s]);
    q.u.heartbeat.hb_seq = below(c, 1000);
    q.u.heartbeat.phase = (enum wire_phase)below(c, 5);
    q.u.heartbeat.steps_per_s = below(c, 2) ? 0.0 / 0.0 : -1;
    q.u.heartbeat.leases_count = c->leases < WIRE_LEASES_MAX ? c->leases : WIRE_LEASES_MAX;
    for (uint32_t i = 0; i < q.u.heartbeat.leases_count; i++)
        q.u.heartbeat.leases[i] = (struct wire_progress){c->lease[below(c, c->leases)].tok,
                                                         prng_u64(&c->g) >> below(c, 64),
                                                         prng_u64(&c->g) >> below(c, 64)};
    (void)kit_send(&c->k, &q);
}

/* An old request comes again: it is answered as before, and nothing changes. */
static void do_again(struct chaos *c) {
    if (c->past_count == 0) return;
    struct past *p = &c->past[below(c, c->past_count)];
    struct hub_view before = kit_view(&c->k);
    bool was_plan = c->k.has_plan;
    struct wire_answer a = *kit_send(&c->k, &p->q);
    if (p->q.kind == WIRE_COMMIT) {
        assert_int_equal(a.code, WIRE_OK);
        if (p->outcome == OUTCOME_REJECTED)
            assert_int_equal(a.u.commit.outcome, OUTCOME_REJECTED);
        else
            assert_int_not_equal(a.u.commit.outcome, OUTCOME_REJECTED);
        assert_int_not_equal(a.u.commit.outcome, OUTCOME_UNKNOWN);
    }
    if (p->q.kind == WIRE_LEASE && !p->granted && a.code == WIRE_OK && a.u.lease.granted) {
        p->granted =
            true; /* the first answer was "wait": now it is a lease, from here on this one */
        lease_keep(c, 0, &a.u.lease.lease);
        return;
    }
    if (p->q.kind == WIRE_JOIN &&
        c->k.out.records_count > 0) { /* only after that process had left */
        for (uint32_t s = 0; s < 4; s++)
            if (strcmp(p->q.site, names[s]) == 0) c->inc[s] = a.u.join.inc;
        return;
    }
    if (was_plan) assert_true(c->k.has_plan);
    if (c->k.out.records_count > 0) {
        struct hub_view after = kit_view(&c->k);
        assert_int_equal(before.grants, after.grants);
        assert_int_equal(before.returned, after.returned);
        assert_int_equal(before.rejected, after.rejected);
        assert_int_equal(before.departures, after.departures);
    }
}

static void do_operator(struct chaos *c) {
    struct hub_cmd cmd = {.kind = HUB_CMD_ROLLBACK};
    uint32_t what = below(c, 4);
    if (what == 0) cmd.u.rollback.version = below(c, 20);
    if (what == 1) {
        cmd.kind = HUB_CMD_DISCARD;
        put_le32(cmd.u.discard.did.v, 1 + below(c, c->dids + 1));
    }
    if (what == 2) {
        cmd.kind = HUB_CMD_QUARANTINE;
        cmd.u.quarantine.range = (struct range){below(c, 100), 1 + below(c, 4)};
        cmd.u.quarantine.skip = below(c, 2);
    }
    if (what == 3) {
        cmd.kind = HUB_CMD_MERGE_FAILED;
        cmd.u.merge_failed.plan = c->k.plan;
        cmd.u.merge_failed.bad_part = (int32_t)below(c, 4) - 1;
        c->k.has_plan = false;
    }
    (void)kit_step(&c->k, &cmd);
}

static void chaos_run(uint64_t seed) {
    struct chaos *c = mem_alloc(1, sizeof *c);
    struct hub_settings s = kit_settings(100, 2);
    prng_seed(&c->g, seed);
    s.crashes_max = below(c, 4);
    s.staleness_max = below(c, 3);
    kit_open(&c->k, &s);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t site = below(c, 4), what = below(c, 100);
        c->k.now += (time_ns)below(c, 5) * NS_PER_S;
        if (what < 6)
            do_join(c, site);
        else if (what < 30)
            do_lease(c, site);
        else if (what < 55)
            do_commit(c, site);
        else if (what < 60)
            do_give(c, site);
        else if (what < 70)
            do_beat(c, site);
        else if (what < 85)
            do_again(c);
        else if (what < 87)
            do_operator(c);
        else if (what < 97 && c->k.has_plan)
            kit_merge(&c->k);
        else if (what < 98)
            kit_kill(&c->k);
        else
            kit_wait(&c->k, below(c, 300));
    }
    kit_close(&c->k);
    mem_free(c);
}

TEST_TIMEOUT(hub_H1_random_commands_replay_to_the_same_digest, 120) {
    for (uint64_t seed = 1; seed <= 150; seed++) {
        printf("seed=%llu\n", (unsigned long long)seed);
        chaos_run(seed);
    }
}

TEST(hub_H4_an_answer_rests_only_on_records_of_its_step_and_before) {
    struct kit k;
    struct hub_settings s = kit_settings(100, 1);
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", inc, 1, 16);
    /* A hub that has just the records up to this answer gives it again. */
    for (int i = 0; i < 2; i++) {
        struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", inc);
        q.req = 1;
        struct wire_answer a = *kit_send(&k, &q);
        assert_memory_equal(&a.u.lease.lease, &l, sizeof l);
        kit_kill(&k);
    }
    struct wire_request q = kit_commit_request(&k, "alpha", inc, 1, &l, 16);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_kill(&k);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_close(&k);
}

TEST(hub_H3_tokens_that_do_not_add_up_are_damage) {
    struct kit k;
    struct hub_settings s = kit_settings(100, 1);
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "alpha", 1), found = 0;
    struct wire_lease l = kit_lease(&k, "alpha", inc, 1, 16);
    assert_int_equal(kit_stage(&k, "alpha", inc, 1, &l, 16), OUTCOME_STAGED);
    kit_merge(&k);
    struct reader r = reader_of(k.journal.data, k.journal.bytes_count);
    for (uint64_t seq = 1; r.p < r.end; seq++) {
        uint16_t kind = get_u16(&r);
        uint32_t bytes = get_u32(&r);
        const void *body = get_bytes(&r, bytes);
        if (kind != RECORD_STAGE && kind != RECORD_MERGE) continue;
        struct hub *h = kit_replay(&k, seq - 1);
        struct hub_record rec;
        struct buf b;
        struct err e;
        buf_init(&b, 1 << 16);
        assert_int_equal(hub_record_decode(kind, body, bytes, &rec, &e), BRG_OK);
        if (kind == RECORD_STAGE)
            rec.u.stage.tokens++;
        else
            rec.u.merge.tokens_after++;
        hub_record_encode(&rec, &b);
        assert_int_equal(hub_apply(h, seq, kind, b.data, b.bytes_count, &e), BRG_E_JOURNAL);
        assert_non_null(strstr(e.text, "tokens"));
        hub_record_fini(&rec);
        buf_fini(&b);
        hub_destroy(h);
        found++;
    }
    assert_int_equal(found, 2);
    kit_close(&k);
}
