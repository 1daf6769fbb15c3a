/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's machine: contributions, rounds, versions, epochs. */
#include <string.h>

#include "hub/machine.h"
#include "hub/record.h"
#include "machine_kit.h"

static void open_small(struct kit *k, uint64_t positions, uint32_t epochs) {
    struct hub_settings s = kit_settings(positions, epochs);
    kit_open(k, &s);
}

/* One site takes, stages and merges until `positions` are merged. */
static void run_alone(struct kit *k, const char *site, uint32_t inc, uint64_t *req, uint32_t *did,
                      uint64_t positions) {
    while (kit_view(k).counts.merged < positions) {
        struct wire_lease l = kit_lease(k, site, inc, ++*req, 16);
        assert_int_equal(kit_stage(k, site, inc, ++*did, &l, l.count), OUTCOME_STAGED);
        kit_merge(k);
    }
}

/* ---- Commits
 * ------------------------------------------------------------------------------------ */

/* The ledger inside a checkpoint is the one at its MERGE record: no epoch may open in between. */
TEST(hub_I5_no_epoch_opens_while_a_merge_is_under_way) {
    struct kit k;
    struct hub_settings s = kit_settings(8, 2);
    kit_open(&k, &s);
    uint32_t a = kit_join(&k, "a", 1);
    struct wire_lease l = kit_lease(&k, "a", a, 1, 8);
    assert_int_equal(kit_stage(&k, "a", a, 1, &l, l.count), OUTCOME_STAGED);
    struct wire_lease m = kit_lease(&k, "a", a, 2, 8);
    assert_int_equal(l.count + m.count, 8);
    kit_wait(&k, 61);
    assert_true(k.has_plan);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "a", a);
    q.req = 3;
    q.u.lease.want = 8;
    const struct wire_answer *w = kit_send(&k, &q);
    assert_int_equal(w->code, WIRE_OK);
    assert_false(w->u.lease.granted);
    kit_merge(&k);
    assert_int_equal(kit_lease(&k, "a", a, 4, 8).epoch, 1);
    kit_close(&k);
}

TEST(hub_H5_a_repeated_commit_gets_the_recorded_outcome) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    (void)kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 10);
    q.u.commit.keep_rest = true;
    struct wire_answer first = *kit_send(&k, &q);
    assert_int_equal(first.u.commit.outcome, OUTCOME_STAGED);
    assert_true(first.u.commit.has_rest);
    assert_int_equal(first.u.commit.rest.count, 6);
    uint64_t seq = k.seq;
    for (int i = 0; i < 2; i++) {
        struct wire_answer again = *kit_send(&k, &q);
        assert_memory_equal(&first.u.commit.rest, &again.u.commit.rest, sizeof first.u.commit.rest);
        assert_int_equal(again.u.commit.outcome, i == 0 ? OUTCOME_STAGED : OUTCOME_MERGED);
        if (i == 0) assert_int_equal(k.seq, seq);
        if (i == 0) kit_merge(&k);
    }
    kit_kill(&k);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_MERGED);
    assert_int_equal(k.out.answer.u.commit.version, 1);
    struct wire_request old = q;
    old.inc = 0; /* OUTCOME and a known did need no fence */
    assert_int_equal(kit_send(&k, &old)->u.commit.outcome, OUTCOME_MERGED);
    struct wire_request ask = kit_request(&k, WIRE_OUTCOME, "alpha", 0);
    ask.u.outcome.did = q.u.commit.did;
    assert_int_equal(kit_send(&k, &ask)->u.commit.outcome, OUTCOME_MERGED);
    ask.u.outcome.did.v[5] = 1;
    assert_int_equal(kit_send(&k, &ask)->u.commit.outcome, OUTCOME_UNKNOWN);
    kit_close(&k);
}

TEST(hub_a_did_names_one_delta_for_ever) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16), m = kit_lease(&k, "alpha", a, 2, 16);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 10);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    struct wire_request bad = q;
    bad.u.commit.blob.v[9]++;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_KEY_REUSED);
    bad = kit_commit_request(&k, "alpha", a, 1, &m, 10);
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_KEY_REUSED);
    bad = q;
    strncpy(bad.site, "beta", sizeof bad.site);
    bad.inc = b;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_KEY_REUSED);
    kit_close(&k);
}

TEST(hub_I12_a_rejected_commit_gives_its_leases_back) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16), m = kit_lease(&k, "alpha", a, 2, 16);
    struct wire_lease other = kit_lease(&k, "beta", b, 1, 16);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 16);
    kit_part_add(&q, &m, 17); /* beyond its end */
    kit_part_add(&q, &other, 16);
    struct wire_answer first = *kit_send(&k, &q);
    assert_int_equal(first.u.commit.outcome, OUTCOME_REJECTED);
    assert_true(first.u.commit.reason[0] != 0);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.leased, 16); /* beta's stays */
    assert_int_equal(v.counts.staged, 0);
    uint64_t seq = k.seq;
    kit_kill(&k);
    struct wire_answer again = *kit_send(&k, &q);
    assert_int_equal(again.u.commit.outcome, OUTCOME_REJECTED);
    assert_string_equal(again.u.commit.reason, first.u.commit.reason);
    assert_int_equal(k.seq, seq + 1); /* the restart's term only */
    kit_close(&k);
}

TEST(hub_commits_are_refused_for_what_they_say) {
    struct kit k;
    open_small(&k, 10000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    for (uint32_t i = 0; i < 9; i++) {
        struct wire_lease l = kit_lease(&k, "alpha", a, 1 + i, 16);
        struct wire_request q = kit_commit_request(&k, "alpha", a, 1 + i, &l, 16);
        struct wire_commit *c = &q.u.commit;
        struct hub_blob_verdict blob = kit_blob();
        switch (i) {
        case 0: c->tokens--; break;
        case 1: c->elements++; break;
        case 2: c->bytes++; break;
        case 3: c->codec = 9; break;
        case 4: c->loss = 0.0 / 0.0; break;
        case 5: c->steps = 0; break;
        case 6: blob.status = BRG_E_NONFINITE; break;
        case 7: blob.status = BRG_E_CORRUPT, blob.complete = false; break;
        default: blob.theta_max = 1, blob.max_abs = 1e6; break;
        }
        const struct wire_answer *r = kit_commit(&k, &q, &blob);
        assert_int_equal(r->code, WIRE_OK);
        assert_int_equal(r->u.commit.outcome, OUTCOME_REJECTED);
        assert_true(strlen(r->u.commit.reason) > 10);
        assert_int_equal(kit_view(&k).counts.leased, 0);
    }
    assert_int_equal(kit_view(&k).rejected, 9);
    kit_close(&k);
}

/* A weight that moved by 0.03 at rates of 0.01 in all: too far for AdamW (0.012), and not for Muon with
 * matrices of up to 96 at twice the rate (0.048). */
TEST(hub_a_delta_may_be_as_long_as_the_optimizer_can_make_it) {
    for (int muon = 0; muon < 2; muon++) {
        struct kit k;
        struct hub_settings s = kit_settings(10000, 1);
        s.muon_ratio = muon ? 2 : 0;
        s.muon_side = 96;
        kit_open(&k, &s);
        uint32_t a = kit_join(&k, "alpha", 1);
        for (uint32_t i = 0; i < 2; i++) {
            struct wire_lease l = kit_lease(&k, "alpha", a, 1 + i, 16);
            struct wire_request q = kit_commit_request(&k, "alpha", a, 1 + i, &l, 16);
            struct hub_blob_verdict blob = kit_blob();
            blob.theta_max = 1;
            blob.max_abs = i == 0 ? 0.05 : 0.03;
            const struct wire_answer *r = kit_commit(&k, &q, &blob);
            bool fine = muon && i == 1;
            assert_int_equal(r->u.commit.outcome, fine ? OUTCOME_STAGED : OUTCOME_REJECTED);
            if (!fine) assert_non_null(strstr(r->u.commit.reason, muon ? "Muon" : "AdamW"));
        }
        kit_close(&k);
    }
}

TEST(hub_an_incomplete_upload_is_told_where_to_go_on) {
    struct kit k;
    open_small(&k, 4, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 4);
    struct hub_blob_verdict blob = {.offset = 123};
    for (int i = 0; i < 10; i++) { /* much longer than the TTL, without one heartbeat */
        assert_int_equal(kit_commit(&k, &q, &blob)->code, WIRE_UPLOAD);
        assert_int_equal(k.out.answer.u.commit.offset, 123);
        kit_wait(&k, KIT_TTL - 1);
        struct wire_request want = kit_request(&k, WIRE_LEASE, "beta", b);
        want.req = 1 + (uint64_t)i;
        assert_false(kit_send(&k, &want)->u.lease.granted);
    }
    blob.status = BRG_E_IO; /* our disk's trouble, not the delta's */
    assert_int_equal(kit_commit(&k, &q, &blob)->code, WIRE_RETRY);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 4), OUTCOME_STAGED);
    kit_close(&k);
}

TEST(hub_a_stale_commit_is_refused_before_its_upload) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l[3];
    for (uint64_t i = 0; i < 3; i++) l[i] = kit_lease(&k, "alpha", a, 1 + i, 16);
    struct wire_request late = kit_commit_request(&k, "alpha", a, 1, &l[0], 16);
    struct wire_request stale = kit_commit_request(&k, "alpha", a, 2, &l[1], 16);
    struct wire_request other = kit_commit_request(&k, "alpha", a, 3, &l[2], 16);
    for (uint32_t i = 0; i < 2; i++) {
        struct wire_lease m = kit_lease(&k, "beta", b, 1 + i, 16);
        assert_int_equal(kit_stage(&k, "beta", b, 10 + i, &m, 16), OUTCOME_STAGED);
        if (i == 0) {
            kit_wait(&k, KIT_TTL + 61); /* alpha silent: the round closes without it */
            kit_merge(&k);
            kit_heartbeat(&k, "beta", b, NULL);
            assert_int_equal(kit_send(&k, &late)->u.commit.outcome,
                             OUTCOME_STAGED); /* one round late */
        }
    }
    kit_merge(&k);
    struct hub_blob_verdict nothing = {0};
    assert_int_equal(kit_commit(&k, &stale, &nothing)->u.commit.outcome, OUTCOME_REJECTED);
    assert_non_null(strstr(k.out.answer.u.commit.reason, "rounds"));
    other.u.commit.base = 1; /* not what it was cut from, but that is for the site to say truly */
    assert_int_equal(kit_send(&k, &other)->u.commit.outcome, OUTCOME_STAGED);
    kit_close(&k);
}

TEST(hub_own_versions_do_not_make_a_delta_stale) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l[4];
    struct wire_request q[4];
    for (uint32_t i = 0; i < 4; i++) {
        l[i] = kit_lease(&k, "alpha", a, 1 + i, 16);
        q[i] = kit_commit_request(&k, "alpha", a, 1 + i, &l[i], 16); /* all cut from version 0 */
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(kit_send(&k, &q[i])->u.commit.outcome, OUTCOME_STAGED);
        kit_merge(&k);
    }
    assert_int_equal(kit_view(&k).head, 4);
    struct hub_version_view v;
    assert_true(hub_version_find(k.h, 4, &v));
    assert_true(v.mu_r < 1); /* fresh, not late */
    kit_close(&k);
}

/* All of the lease was skipped. */
static struct wire_request skips_only(struct kit *k, const char *name, uint32_t inc,
                                      const struct wire_lease *l) {
    struct wire_request q = kit_commit_request(k, name, inc, 1, l, l->count);
    struct wire_commit *c = &q.u.commit;
    c->skips_count = (uint32_t)l->count;
    for (uint32_t i = 0; i < c->skips_count; i++) {
        c->skips[i].position = l->ranges[0].start + i;
        strncpy(c->skips[i].reason, "overflow", sizeof c->skips[i].reason);
    }
    c->tokens = c->steps = c->elements = c->bytes = 0;
    memset(&c->blob, 0, sizeof c->blob);
    return q;
}

TEST(hub_skips_end_as_skipped_and_need_no_delta) {
    struct kit k;
    open_small(&k, 8, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 2);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4), m = kit_lease(&k, "beta", b, 1, 4);
    assert_int_equal(l.count + m.count, 8);
    struct wire_request q = skips_only(&k, "alpha", a, &l);
    struct hub_blob_verdict nothing = {0};
    assert_int_equal(kit_commit(&k, &q, &nothing)->u.commit.outcome, OUTCOME_STAGED);
    assert_false(k.has_plan); /* alone it makes no version while another site is waited for */
    q = kit_commit_request(&k, "beta", b, 2, &m, m.count);
    q.u.commit.skips_count = 1;
    q.u.commit.skips[0].position = m.ranges[0].start + 1;
    q.u.commit.tokens -= KIT_SEQ_LEN;
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    assert_int_equal(k.plan_parts, 1);
    kit_merge(&k);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.merged, m.count - 1);
    assert_int_equal(v.counts.skipped, l.count + 1);
    assert_int_equal(v.tokens, (m.count - 1) * KIT_SEQ_LEN);
    assert_true(v.complete);
    kit_close(&k);
}

/* A region hands in nothing else until what it has handed in is merged: it would wait for ever. */
TEST(hub_skips_alone_are_merged_when_nobody_else_is_waited_for) {
    struct kit k;
    open_small(&k, 8, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4), m = kit_lease(&k, "alpha", a, 2, 4);
    struct wire_request q = skips_only(&k, "alpha", a, &l);
    struct hub_blob_verdict nothing = {0};
    assert_int_equal(kit_commit(&k, &q, &nothing)->u.commit.outcome, OUTCOME_STAGED);
    assert_true(k.has_plan);
    assert_int_equal(k.plan_parts, 0);
    kit_merge(&k);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.skipped, l.count);
    assert_int_equal(v.tokens, 0);
    q = kit_commit_request(&k, "alpha", a, 2, &m, m.count);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).counts.merged, m.count);
    kit_close(&k);
}

/* A contribution may have the same position of two epochs in it; only one of them was skipped. */
TEST(hub_a_skip_says_its_epoch) {
    struct kit k;
    open_small(&k, 4, 2);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4), m = kit_lease(&k, "alpha", a, 2, 4);
    assert_int_equal(l.epoch, 0);
    assert_int_equal(m.epoch, 1);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 4);
    kit_part_add(&q, &m, 4);
    q.u.commit.skips_count = 1;
    q.u.commit.skips[0].position = 4 + 1;
    q.u.commit.tokens -= KIT_SEQ_LEN;
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_merge(&k);
    assert_true(ledger_all(k.h->ledger, 0, (struct lease_span){0, 4}, EXTENT_MERGED));
    assert_true(ledger_all(k.h->ledger, 1, (struct lease_span){1, 1}, EXTENT_SKIPPED));
    kit_close(&k);
}

TEST(hub_an_epoch_of_skips_only_ends_without_a_delta) {
    struct kit k;
    open_small(&k, 4, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 4);
    q.u.commit.skips_count = 4;
    for (uint32_t i = 0; i < 4; i++) q.u.commit.skips[i].position = i;
    q.u.commit.tokens = q.u.commit.bytes = 0;
    memset(&q.u.commit.blob, 0, sizeof q.u.commit.blob);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    assert_true(k.has_plan);
    assert_int_equal(k.plan_parts, 0);
    kit_merge(&k);
    assert_true(kit_view(&k).complete);
    kit_close(&k);
}

/* ---- Rounds
 * ------------------------------------------------------------------------------------- */

TEST(hub_a_round_closes_when_all_have_handed_in) {
    struct kit k;
    open_small(&k, 1000, 1);
    const char *names[] = {"alpha", "beta", "gamma"};
    uint32_t inc[3];
    struct wire_lease l[3];
    for (uint32_t i = 0; i < 3; i++) {
        inc[i] = kit_join(&k, names[i], 1);
        l[i] = kit_lease(&k, names[i], inc[i], 1, 16);
    }
    (void)kit_join(&k, "delta", 1); /* still syncing: nobody waits for it */
    for (uint32_t i = 0; i < 3; i++) {
        assert_false(k.has_plan);
        assert_int_equal(kit_stage(&k, names[i], inc[i], 1 + i, &l[i], 16), OUTCOME_STAGED);
    }
    assert_true(k.has_plan);
    assert_int_equal(k.plan_parts, 3);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).tokens, 48 * KIT_SEQ_LEN);
    kit_close(&k);
}

TEST(hub_quorum_and_grace_close_a_round_without_the_slow) {
    struct kit k;
    open_small(&k, 1000, 1);
    const char *names[] = {"alpha", "beta", "gamma"};
    uint32_t inc[3];
    struct wire_lease l[3];
    for (uint32_t i = 0; i < 3; i++) {
        inc[i] = kit_join(&k, names[i], 1);
        l[i] = kit_lease(&k, names[i], inc[i], 1, 16);
    }
    assert_int_equal(kit_stage(&k, names[0], inc[0], 1, &l[0], 16), OUTCOME_STAGED);
    for (uint32_t t = 0; t < 20; t++) { /* one site is no quorum, however long it waits */
        kit_wait(&k, KIT_HEARTBEAT);
        for (uint32_t i = 0; i < 3; i++) kit_heartbeat(&k, names[i], inc[i], NULL);
    }
    assert_false(k.has_plan);
    assert_int_equal(kit_stage(&k, names[1], inc[1], 2, &l[1], 16), OUTCOME_STAGED);
    for (uint32_t t = 0; t < 5; t++) {
        kit_wait(&k, KIT_HEARTBEAT);
        for (uint32_t i = 0; i < 3; i++) kit_heartbeat(&k, names[i], inc[i], NULL);
    }
    assert_false(k.has_plan);
    time_ns before = k.now;
    kit_wait(&k, KIT_HEARTBEAT + 1);
    assert_true(k.has_plan); /* at the grace's end, by the clock alone */
    assert_true(hub_expiry(k.h) > before);
    assert_int_equal(k.plan_parts, 2);
    kit_merge(&k);
    /* The third is late now: folded in beside the momentum. */
    struct wire_request q = kit_commit_request(&k, names[2], inc[2], 3, &l[2], 16);
    q.u.commit.base = 0;
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_close(&k);
}

TEST(hub_zero_sites_change_nothing) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    uint64_t req = 0;
    uint32_t did = 0;
    run_alone(&k, "alpha", a, &req, &did, 48);
    kit_wait(&k, 2 * KIT_TTL);
    uint64_t seq = k.seq;
    struct hash before = hub_digest(k.h);
    kit_wait(&k, 10 * KIT_TTL);
    struct hash after = hub_digest(k.h);
    assert_true(hash_equal(&before, &after));
    assert_int_equal(k.seq, seq);
    assert_true(hub_expiry(k.h) == TIME_NS_NEVER);
    kit_kill(&k);
    kit_kill(&k);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.head, 3);
    a = kit_join(&k, "alpha", 2);
    run_alone(&k, "alpha", a, &req, &did, 96);
    kit_close(&k);
}

TEST(hub_the_last_site_that_leaves_does_not_leave_its_work_behind) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    (void)kit_lease(&k, "beta", b, 1, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_STAGED);
    struct wire_request q = kit_request(&k, WIRE_LEAVE, "alpha", a);
    kit_send(&k, &q);
    assert_false(k.has_plan);
    q = kit_request(&k, WIRE_LEAVE, "beta", b);
    kit_send(&k, &q);
    assert_true(k.has_plan);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).counts.merged, 16);
    kit_close(&k);
}

TEST(hub_I6_a_merge_that_a_crash_forgot_is_planned_again) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_STAGED);
    assert_true(k.has_plan);
    uint64_t plan = k.plan;
    kit_kill(&k);
    assert_int_equal(kit_view(&k).head, 0);
    assert_true(k.has_plan); /* all live sites have handed in: at once */
    struct hub_cmd late = {.kind = HUB_CMD_MERGED};
    late.u.merged.plan = plan + 100;
    kit_step(&k, &late);
    assert_int_equal(kit_view(&k).head, 0);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).head, 1);
    kit_close(&k);
}

TEST(hub_a_corrupt_part_is_discarded_and_the_rest_merges) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16), m = kit_lease(&k, "beta", b, 1, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_STAGED);
    assert_int_equal(kit_stage(&k, "beta", b, 2, &m, 16), OUTCOME_STAGED);
    struct hub_cmd c = {.kind = HUB_CMD_MERGE_FAILED};
    c.u.merge_failed.plan = k.plan;
    c.u.merge_failed.bad_part = 1;
    strncpy(c.u.merge_failed.text, "its hash differs", sizeof c.u.merge_failed.text);
    k.has_plan = false;
    kit_step(&k, &c);
    assert_int_equal(kit_view(&k).discarded, 1);
    struct wire_request ask = kit_request(&k, WIRE_OUTCOME, "beta", 0);
    put_le32(ask.u.outcome.did.v, 2);
    assert_int_equal(kit_send(&k, &ask)->u.commit.outcome, OUTCOME_DISCARDED);
    assert_string_equal(k.out.answer.u.commit.reason, "its hash differs");
    assert_false(k.has_plan); /* beta lives and is waited for */
    struct wire_lease n = kit_lease(&k, "beta", b, 2, 16);
    assert_int_equal(n.ranges[0].start, m.ranges[0].start);
    assert_int_equal(kit_stage(&k, "beta", b, 3, &n, 16), OUTCOME_STAGED);
    c.u.merge_failed.plan = k.plan;
    c.u.merge_failed.bad_part = -1; /* the disk: later */
    k.has_plan = false;
    kit_step(&k, &c);
    assert_false(k.has_plan);
    kit_wait(&k, KIT_HEARTBEAT + 1);
    assert_true(k.has_plan);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).counts.merged, 32);
    kit_close(&k);
}

TEST(hub_a_discard_of_a_planned_part_cancels_the_merge) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    struct wire_request q = kit_commit_request(&k, "alpha", a, 1, &l, 16);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    struct hub_cmd c = {.kind = HUB_CMD_DISCARD};
    c.u.discard.did = q.u.commit.did;
    strncpy(c.u.discard.text, "by hand", sizeof c.u.discard.text);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    kit_merge(&k); /* the worker's result is dropped */
    assert_int_equal(kit_view(&k).head, 0);
    assert_int_equal(kit_view(&k).counts.available, 1000);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_DISCARDED);
    kit_close(&k);
}

/* ---- Epochs and branches
 * ------------------------------------------------------------------------ */

TEST(hub_I9_epochs_overlap_and_seal_one_by_one) {
    struct kit k;
    open_small(&k, 32, 3);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease slow = kit_lease(&k, "beta", b, 1, 4);
    uint64_t req = 0;
    uint32_t did = 0;
    bool overlapped = false, slow_done = false;
    while (!kit_view(&k).complete) {
        if (!slow_done) kit_heartbeat(&k, "beta", b, &slow);
        struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
        q.req = ++req;
        q.u.lease.want = 16;
        q.u.lease.base = kit_view(&k).head;
        struct wire_answer r = *kit_send(&k, &q);
        if (r.code == WIRE_COMPLETE) break;
        if (r.u.lease.granted) {
            overlapped |= r.u.lease.lease.epoch == 1 && kit_view(&k).epoch == 0;
            assert_true(r.u.lease.lease.epoch <= kit_view(&k).epoch + 1);
            assert_int_equal(
                kit_stage(&k, "alpha", a, ++did, &r.u.lease.lease, r.u.lease.lease.count),
                OUTCOME_STAGED);
        } else if (!slow_done) { /* two epochs are exhausted but for beta's lease */
            assert_int_equal(kit_view(&k).epoch, 0);
            assert_int_equal(kit_stage(&k, "beta", b, 1000, &slow, slow.count), OUTCOME_STAGED);
            slow_done = true;
        } else {
            kit_wait(&k, 10);
        }
        kit_wait(&k, 1);
        if (k.has_plan) kit_merge(&k);
        assert_true(req < 400);
    }
    assert_true(overlapped);
    struct hub_view v = kit_view(&k);
    assert_true(v.complete);
    assert_int_equal(v.counts.merged, 96);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "beta", b);
    q.req = 2;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_COMPLETE);
    kit_close(&k);
}

TEST(hub_I5_rollback_moves_head_and_ledger_together) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    uint64_t req = 0;
    uint32_t did = 0;
    run_alone(&k, "alpha", a, &req, &did, 64);
    assert_true(kit_view(&k).complete);
    uint64_t head = kit_view(&k).head;
    struct hub_version_view one;
    assert_true(hub_version_find(k.h, 1, &one));
    struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK};
    c.u.rollback.version = head + 1;
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    c.u.rollback.version = 1;
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    struct hub_view v = kit_view(&k);
    assert_false(v.complete);
    assert_int_equal(v.head, 1);
    assert_int_equal(v.tokens, one.tokens);
    assert_int_equal(v.counts.merged * KIT_SEQ_LEN, one.tokens);
    c.u.rollback.version = 2; /* off the branch now */
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
    q.req = ++req;
    q.u.lease.base = head; /* trains from what is gone: no work until it has loaded the head */
    assert_false(kit_send(&k, &q)->u.lease.granted);
    assert_int_equal(k.out.answer.u.lease.round.head, 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, ++req, 16);
    q = kit_commit_request(&k, "alpha", a, ++did, &l, 16);
    q.u.commit.base = head;
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_REJECTED);
    /* A site that joins with the lost head is no reason to hold: the hub knows that number. */
    struct wire_request j = kit_join_request(&k, "alpha", 9);
    j.u.join.version_seen = head;
    j.u.join.term_seen = 1;
    assert_int_equal(kit_send(&k, &j)->code, WIRE_OK);
    a = k.out.answer.u.join.inc;
    kit_kill(&k);
    uint64_t again = 0;
    run_alone(&k, "alpha", a, &again, &did, 64);
    assert_true(kit_view(&k).complete);
    assert_true(kit_view(&k).head > head);
    kit_close(&k);
}

TEST(hub_rollback_cancels_a_merge_and_fences_all_work) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16), m = kit_lease(&k, "alpha", a, 2, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_STAGED);
    assert_true(k.has_plan);
    struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK};
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).counts.available, 64);
    struct wire_lease n = kit_lease(&k, "alpha", a, 3, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 2, &n, 16), OUTCOME_STAGED);
    kit_merge(&k); /* of the cancelled plan: dropped, and the new one starts only now */
    assert_int_equal(kit_view(&k).head, 0);
    assert_true(k.has_plan);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).head, 1);
    assert_int_equal(kit_stage(&k, "alpha", a, 3, &m, 16), OUTCOME_REJECTED);
    kit_close(&k);
}

/* ---- Snapshots
 * ---------------------------------------------------------------------------------- */

TEST(hub_H6_a_snapshot_and_the_tail_equal_the_whole_journal) {
    struct kit k;
    open_small(&k, 200, 2);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    (void)kit_lease(&k, "beta", b, 1, 8);
    uint64_t req = 0;
    uint32_t did = 0;
    struct buf snap;
    struct err e;
    buf_init(&snap, 1 << 24);
    for (uint32_t round = 0; round < 6; round++) {
        struct wire_lease l = kit_lease(&k, "alpha", a, ++req, 16);
        struct wire_request q = kit_commit_request(&k, "alpha", a, ++did, &l, 10);
        q.u.commit.keep_rest = true;
        assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
        kit_wait(&k, 2 * KIT_TTL);
        if (k.has_plan && round % 2) kit_merge(&k);
    }
    for (uint64_t at = 0; at <= k.seq; at++) {
        struct hub *full = kit_replay(&k, at), *half = hub_create(&k.s, 5);
        buf_reset(&snap);
        hub_snapshot(full, &snap);
        assert_int_equal(hub_restore(half, at, snap.data, snap.bytes_count, &e), BRG_OK);
        hub_check(half);
        struct reader r = reader_of(k.journal.data, k.journal.bytes_count);
        for (uint64_t seq = 1; r.p < r.end; seq++) {
            uint16_t kind = get_u16(&r);
            uint32_t bytes = get_u32(&r);
            const void *body = get_bytes(&r, bytes);
            if (seq > at) assert_int_equal(hub_apply(half, seq, kind, body, bytes, &e), BRG_OK);
        }
        struct hash x = hub_digest(half), y = hub_digest(k.h);
        assert_true(hash_equal(&x, &y));
        hub_destroy(full);
        hub_destroy(half);
    }
    /* A damaged snapshot is refused, or what it gives is sound. */
    struct prng g;
    prng_seed(&g, 1);
    for (uint32_t i = 0; i < 3000; i++) {
        buf_reset(&snap);
        hub_snapshot(k.h, &snap);
        if (i % 3)
            snap.data[prng_below(&g, snap.bytes_count)] ^= (uint8_t)(1 + prng_below(&g, 255));
        else
            snap.bytes_count = prng_below(&g, snap.bytes_count);
        struct hub *h = hub_create(&k.s, 5);
        if (hub_restore(h, k.seq, snap.data, snap.bytes_count, &e) == BRG_OK) hub_check(h);
        hub_destroy(h);
    }
    buf_fini(&snap);
    kit_close(&k);
}

TEST(hub_H2_a_journal_that_does_not_fit_is_refused) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_STAGED);
    kit_merge(&k);
    /* Every record twice, every record left out, every byte changed: refused or sound, never a
     * crash. */
    struct err e;
    struct reader all = reader_of(k.journal.data, k.journal.bytes_count);
    for (uint64_t at = 1; all.p < all.end; at++) {
        uint16_t kind = get_u16(&all);
        uint32_t bytes = get_u32(&all);
        uint8_t copy[4096];
        assert_true(bytes <= sizeof copy);
        const uint8_t *body = get_bytes(&all, bytes);
        for (uint32_t i = 0; i < bytes; i++) {
            struct hub *h = kit_replay(&k, at - 1);
            memcpy(copy, body, bytes);
            copy[i] ^= (uint8_t)(1 + i % 255);
            (void)!hub_apply(h, at, kind, copy, bytes, &e);
            hub_destroy(h);
        }
        struct hub *h = kit_replay(&k, at);
        assert_int_equal(hub_apply(h, at, kind, body, bytes, &e), BRG_E_JOURNAL);
        if (kind != RECORD_HOLD)
            assert_int_equal(hub_apply(h, at + 1, kind, body, bytes, &e), BRG_E_JOURNAL);
        hub_destroy(h);
    }
    kit_close(&k);
}

TEST(hub_settings_that_differ_from_the_journal_are_refused) {
    struct kit k;
    open_small(&k, 100, 1);
    struct hub_settings s = k.s;
    s.positions = 101;
    struct hub *h = hub_create(&s, 1);
    struct reader r = reader_of(k.journal.data, k.journal.bytes_count);
    struct err e;
    uint16_t kind = get_u16(&r);
    uint32_t bytes = get_u32(&r);
    assert_int_equal(hub_apply(h, 1, kind, get_bytes(&r, bytes), bytes, &e), BRG_E_JOURNAL);
    assert_non_null(strstr(e.text, "settings"));
    hub_destroy(h);
    kit_close(&k);
}

static void blob_count(void *user, const struct hash *h) {
    (void)h;
    ++*(uint32_t *)user;
}

TEST(hub_I11_blobs_that_are_needed_are_named) {
    struct kit k;
    open_small(&k, 200, 1);
    uint32_t a = kit_join(&k, "alpha", 1), n = 0;
    uint64_t req = 0;
    uint32_t did = 0;
    run_alone(&k, "alpha", a, &req, &did, 160);
    struct wire_lease l = kit_lease(&k, "alpha", a, ++req, 8);
    assert_int_equal(kit_stage(&k, "alpha", a, ++did, &l, 4), OUTCOME_STAGED);
    hub_blobs(k.h, blob_count, &n);
    assert_int_equal(n, 5 + did); /* version 0, the newest four, every delta */
    kit_close(&k);
}

/* ---- Records
 * ------------------------------------------------------------------------------------ */

TEST(hub_R1_records_have_one_form) {
    struct prng g;
    struct err e;
    prng_seed(&g, 7);
    for (uint32_t i = 0; i < 200000; i++) {
        uint8_t body[400];
        uint16_t kind = (uint16_t)(1 + prng_below(&g, RECORD_SYNC));
        size_t n = prng_below(&g, sizeof body);
        for (size_t k = 0; k < n; k++)
            body[k] = prng_below(&g, 3) ? (uint8_t)prng_below(&g, 3) : (uint8_t)prng_u64(&g);
        struct hub_record r;
        if (hub_record_decode(kind, body, n, &r, &e) != BRG_OK) continue;
        struct buf b;
        buf_init(&b, 1 << 16);
        hub_record_encode(&r, &b);
        assert_int_equal(b.bytes_count, n);
        assert_memory_equal(b.data, body, n);
        buf_fini(&b);
        hub_record_fini(&r);
    }
}
