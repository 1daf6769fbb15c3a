/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's machine, message by message: members, leases, and what a repeated, late or foreign
 * message may do. Contributions and rounds are in test_machine_rounds.c. */
#include <stdio.h>
#include <string.h>

#include "machine_kit.h"

static void open_small(struct kit *k, uint64_t positions, uint32_t epochs) {
    struct hub_settings s = kit_settings(positions, epochs);
    kit_open(k, &s);
}

/* ---- Joining
 * ------------------------------------------------------------------------------------ */

TEST(hub_join_gives_growing_incarnations) {
    struct kit k;
    open_small(&k, 100, 1);
    assert_int_equal(kit_join(&k, "alpha", 1), 1);
    assert_int_equal(kit_join(&k, "alpha", 1), 1); /* the same process again */
    assert_int_equal(k.out.records_count, 0);
    assert_int_equal(kit_join(&k, "alpha", 2), 2);
    assert_int_equal(kit_join(&k, "beta", 1), 1);
    struct wire_request late =
        kit_join_request(&k, "alpha", 1); /* a JOIN of the replaced process */
    assert_int_equal(kit_send(&k, &late)->code, WIRE_FENCED);
    assert_int_equal(kit_join(&k, "alpha", 2), 2);
    kit_close(&k);
}

TEST(hub_join_refuses_what_does_not_match) {
    struct kit k;
    open_small(&k, 100, 1);
    struct wire_request q = kit_join_request(&k, "alpha", 1), bad = q;
    bad.u.join.protocol = 2;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_MISMATCH);
    bad = q;
    bad.u.join.fingerprint.v[31] = 1;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_MISMATCH);
    assert_non_null(strstr(k.out.answer.text, "data set"));
    bad = q;
    bad.u.join.tensors.v[31] = 1;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_MISMATCH);
    bad = q;
    bad.u.join.tokens_per_sample++;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_MISMATCH);
    bad = q;
    bad.run.v[0]++;
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_MISMATCH);
    bad = q;
    strncpy(bad.site, "../etc", sizeof bad.site);
    assert_int_equal(kit_send(&k, &bad)->code, WIRE_BAD);
    assert_int_equal(hub_sites_count(k.h), 0);
    assert_int_equal(k.seq, 3); /* OPEN, EPOCH, TERM */
    kit_close(&k);
}

TEST(hub_join_stops_at_the_maximum_of_sites) {
    struct hub_settings s = kit_settings(100, 1);
    s.sites_max = 2;
    struct kit k;
    kit_open(&k, &s);
    kit_join(&k, "a", 1);
    kit_join(&k, "b", 1);
    struct wire_request q = kit_join_request(&k, "c", 1);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_RETRY);
    assert_int_equal(kit_join(&k, "a", 2), 2);
    kit_close(&k);
}

TEST(hub_unknown_and_departed_sites_must_join_first) {
    struct kit k;
    open_small(&k, 100, 1);
    struct wire_request q = kit_request(&k, WIRE_HEARTBEAT, "alpha", 1);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", inc, 1, 8);
    struct wire_request leave = kit_request(&k, WIRE_LEAVE, "alpha", inc);
    assert_int_equal(kit_send(&k, &leave)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).departures, 1);
    assert_int_equal(kit_view(&k).counts.leased, 0);
    assert_int_equal(kit_send(&k, &leave)->code, WIRE_OK); /* again: nothing more happens */
    assert_int_equal(kit_view(&k).departures, 1);
    q = kit_request(&k, WIRE_RETURN, "alpha", inc);
    q.u.give_back.tok = l.tok;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    assert_int_equal(kit_join(&k, "alpha", 1), 2); /* it may come back, at once */
    kit_close(&k);
}

TEST(hub_what_a_site_keeps_when_it_leaves_waits_for_it_until_others_need_it) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4);
    struct wire_request leave = kit_request(&k, WIRE_LEAVE, "alpha", a);
    leave.u.leave.keep = true;
    assert_int_equal(kit_send(&k, &leave)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).counts.leased, 4);
    assert_int_equal(kit_lease(&k, "beta", b, 1, 4).ranges[0].start, 4); /* there is enough else */
    struct wire_request q = kit_join_request(&k, "alpha", 2);
    q.u.join.resume_count = 1;
    q.u.join.resume[0] = (struct wire_part){l.tok, l.nonce, 0};
    const struct wire_answer *j = kit_send(&k, &q);
    assert_int_equal(j->u.join.leases[0].verdict, LEASE_KEPT);
    leave.inc = j->u.join.inc;
    assert_int_equal(kit_send(&k, &leave)->code, WIRE_OK);
    for (uint64_t req = 2; kit_view(&k).counts.available > 0; req++)
        (void)kit_lease(&k, "beta", b, req, 64);
    assert_int_equal(kit_lease(&k, "beta", b, 100, 4).ranges[0].start, 0); /* at once, no TTL */
    assert_int_equal(kit_view(&k).reclaimed, 0);                           /* and no crash */
    q = kit_request(&k, WIRE_LEAVE, "beta", b);
    q.u.leave.keep = true;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).counts.leased, 0); /* more than a share: it goes back */
    kit_close(&k);
}

TEST(hub_I3_a_twin_fences_the_older_process) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t old = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", old, 1, 8);
    uint32_t new = kit_join(&k, "alpha", 2); /* without resume: the lease is fenced */
    assert_int_equal(kit_view(&k).counts.leased, 0);
    assert_int_equal(kit_view(&k).reclaimed, 1);
    struct wire_request q = kit_commit_request(&k, "alpha", old, 1, &l, 8);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_FENCED);
    assert_int_equal(k.out.records_count, 0); /* a zombie does not make the journal grow */
    q.inc = new;
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_REJECTED);
    kit_close(&k);
}

TEST(hub_a_resumed_process_keeps_its_leases) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t old = kit_join(&k, "alpha", 1);
    struct wire_lease a = kit_lease(&k, "alpha", old, 1, 8), b = kit_lease(&k, "alpha", old, 2, 8);
    struct wire_request q = kit_join_request(&k, "alpha", 2);
    q.u.join.resume_count = 2;
    q.u.join.resume[0] = (struct wire_part){a.tok, a.nonce, 3};
    q.u.join.resume[1] = (struct wire_part){b.tok, b.nonce + 1, 3}; /* not ours */
    for (int again = 0; again < 2; again++) {
        const struct wire_answer *r = kit_send(&k, &q);
        assert_int_equal(r->code, WIRE_OK);
        assert_int_equal(r->u.join.inc, 2);
        assert_int_equal(r->u.join.leases[0].verdict, LEASE_KEPT);
        assert_int_equal(r->u.join.leases[0].keep, 8);
        assert_int_equal(r->u.join.leases[1].verdict, LEASE_GONE);
        kit_kill(&k); /* and after a restart of the hub */
    }
    assert_int_equal(kit_view(&k).counts.leased, 8);
    assert_int_equal(kit_stage(&k, "alpha", 2, 1, &a, 8), OUTCOME_STAGED);
    assert_int_equal(kit_stage(&k, "alpha", 2, 2, &b, 8), OUTCOME_REJECTED);
    kit_close(&k);
}

TEST(hub_holds_when_a_site_has_seen_more) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", inc, 1, 8);
    struct wire_request q = kit_join_request(&k, "beta", 1);
    q.u.join.version_seen = 5;
    kit_seal(&k, &q);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
    assert_true(kit_view(&k).held);
    uint64_t seq = k.seq;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
    assert_int_equal(k.seq, seq); /* held once */
    kit_kill(&k);                 /* a restart does not forget it */
    assert_true(kit_view(&k).held);
    struct wire_request want = kit_request(&k, WIRE_LEASE, "alpha", inc);
    assert_int_equal(kit_send(&k, &want)->code, WIRE_RETRY);
    struct wire_request c = kit_commit_request(&k, "alpha", inc, 1, &l, 8);
    assert_int_equal(kit_send(&k, &c)->code, WIRE_RETRY);
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK};
    assert_int_equal(kit_step(&k, &back)->code, WIRE_OK); /* a declared branch from version 0 */
    assert_false(kit_view(&k).held);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    l = kit_lease(&k, "alpha", inc, 2, 8);
    assert_int_equal(kit_stage(&k, "alpha", inc, 2, &l, 8), OUTCOME_STAGED);
    kit_merge(&k);
    assert_int_equal(kit_view(&k).head, 6); /* never a number that a lost hub may have given */
    kit_close(&k);
}

TEST(hub_holds_when_a_site_has_seen_a_newer_term) {
    struct kit k;
    open_small(&k, 100, 1);
    struct wire_request q = kit_join_request(&k, "beta", 1);
    q.u.join.term_seen = 9;
    kit_seal(&k, &q);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK};
    kit_step(&k, &back);
    assert_int_equal(kit_view(&k).term, 10);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    kit_close(&k);
}

/* One site with a token, and the whole run stood still: any number beyond the head did. */
TEST(hub_H8_a_claim_without_a_seal_stops_its_site_alone) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t inc = kit_join(&k, "alpha", 1), bad = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "beta", bad, 1, 8);
    struct wire_request q = kit_commit_request(&k, "beta", bad, 1, &l, 8);
    q.u.commit.base = 1; /* the head is 0 */
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    q = kit_request(&k, WIRE_LEASE, "beta", bad);
    q.u.lease.base = UINT64_C(1) << 50;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    for (int i = 0; i < 5; i++) {
        q = kit_join_request(&k, "beta", (uint8_t)(10 + i));
        if (i != 1) q.u.join.version_seen = 5;
        if (i >= 1) q.u.join.term_seen = 9;
        kit_seal(&k, &q);
        if (i == 0 || i == 2) memset(&q.u.join.version_seal, 0, HASH_BYTES);
        if (i == 1 || i == 2) q.u.join.term_seal.v[31] ^= 1;
        if (i == 3) q.u.join.version_seen++, q.u.join.term_seen--; /* seals of other numbers */
        if (i == 4) { /* the one in the other's place */
            struct hash x = q.u.join.term_seal;
            q.u.join.term_seal = q.u.join.version_seal;
            q.u.join.version_seal = x;
        }
        uint64_t seq = k.seq;
        assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
        assert_non_null(strstr(k.out.answer.text, "prove"));
        assert_int_equal(k.seq, seq); /* nothing is written */
        assert_false(kit_view(&k).held);
        assert_string_equal(kit_view(&k).doubt.name, "beta");
    }
    l = kit_lease(&k, "alpha", inc, 2, 8); /* and all others go on */
    assert_int_equal(kit_stage(&k, "alpha", inc, 2, &l, 8), OUTCOME_STAGED);
    kit_wait(&k, 2 * KIT_TTL); /* for beta no longer than for any that is silent */
    kit_merge(&k);
    assert_int_equal(kit_view(&k).head, 1);
    kit_close(&k);
}

/* The site that was told a version knows the proof of it, from any answer. */
TEST(hub_H8_what_the_hub_announced_is_proved_by_what_came_with_it) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", inc, 1, 8);
    assert_int_equal(kit_stage(&k, "alpha", inc, 1, &l, 8), OUTCOME_STAGED);
    struct buf old = k.journal; /* the copy that somebody restores later */
    buf_init(&k.journal, 1 << 28);
    buf_put(&k.journal, old.data, old.bytes_count);
    uint64_t seq = k.seq;
    kit_merge(&k);
    struct wire_request q = kit_request(&k, WIRE_HEARTBEAT, "alpha", inc);
    q.u.heartbeat.hb_seq = 1;
    struct wire_answer told = *kit_send(&k, &q);
    assert_int_equal(told.u.heartbeat.round.head, 1);
    buf_fini(&k.journal);
    k.journal = old;
    k.seq = seq;
    hub_destroy(k.h);
    k.h = kit_replay(&k, UINT64_MAX);
    (void)kit_step(&k, &(struct hub_cmd){
                           .kind = HUB_CMD_START}); /* its term is no older than what alpha saw */
    q = kit_commit_request(&k, "alpha", inc, 7, &l, 8); /* it does not know yet, and goes on */
    q.u.commit.base = 1;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    assert_false(kit_view(&k).held);
    q = kit_join_request(&k, "alpha", 5);
    q.u.join.version_seen = told.u.heartbeat.round.head;
    q.u.join.theta_seen = told.u.heartbeat.round.theta;
    q.u.join.version_seal = told.u.heartbeat.round.seal;
    q.u.join.term_seen = told.term;
    q.u.join.term_seal = told.term_seal;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
    assert_true(kit_view(&k).held);
    kit_close(&k);
}

/* The key was lost with the disk: a person declares the branch, and the claim is passed over. */
TEST(hub_H8_a_rollback_skips_what_was_claimed_without_proof) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_request q = kit_join_request(&k, "beta", 2), far = kit_join_request(&k, "gamma", 3);
    q.u.join.version_seen = 5;
    q.u.join.term_seen = 4;
    q.u.join.theta_seen.v[0] = 1;
    far.u.join.version_seen = UINT64_C(1) << 52; /* no rollback may use up the numbers */
    assert_int_equal(kit_send(&k, &q)->code, WIRE_HUB_BEHIND);
    assert_int_equal(kit_send(&k, &far)->code, WIRE_HUB_BEHIND);
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK};
    assert_int_equal(kit_step(&k, &back)->code, WIRE_OK);
    assert_int_equal(kit_view(&k).term, 5);
    assert_string_equal(kit_view(&k).doubt.name, "");
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    assert_int_equal(kit_send(&k, &far)->code, WIRE_HUB_BEHIND);
    struct wire_lease l = kit_lease(&k, "alpha", inc, 2, 8);
    assert_int_equal(kit_stage(&k, "alpha", inc, 2, &l, 8), OUTCOME_STAGED);
    kit_merge(&k);
    assert_true(kit_view(&k).head > 5 && kit_view(&k).head < 10);
    kit_kill(&k);
    q.u.join.boot.v[3] ^= 1;
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK); /* decided for good */
    kit_close(&k);
}

/* ---- Leases
 * ------------------------------------------------------------------------------------- */

TEST(hub_H5_a_repeated_lease_request_gives_the_same_lease) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease a = kit_lease(&k, "alpha", inc, 7, 16),
                      b = kit_lease(&k, "alpha", inc, 7, 16);
    assert_memory_equal(&a, &b, sizeof a);
    kit_kill(&k);
    b = kit_lease(&k, "alpha", inc, 7, 16);
    assert_memory_equal(&a, &b, sizeof a);
    b = kit_lease(&k, "alpha", inc, 8, 16);
    assert_true(a.tok != b.tok);
    assert_int_equal(kit_view(&k).grants, 2);
    assert_int_equal(kit_view(&k).counts.leased, 32);
    struct wire_request late = kit_request(&k, WIRE_LEASE, "alpha", inc);
    late.req = 3; /* older than one that was granted: nothing new */
    assert_false(kit_send(&k, &late)->u.lease.granted);
    assert_int_equal(kit_stage(&k, "alpha", inc, 1, &a, 16), OUTCOME_STAGED);
    late.req = 7; /* its lease has ended since */
    assert_false(kit_send(&k, &late)->u.lease.granted);
    assert_int_equal(kit_view(&k).grants, 2);
    kit_close(&k);
}

TEST(hub_I7_toks_do_not_come_back_after_restarts) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease a = kit_lease(&k, "alpha", inc, 1, 16);
    kit_kill(&k);
    struct wire_lease b = kit_lease(&k, "alpha", inc, 2, 16);
    assert_true(b.tok > a.tok);
    assert_int_equal(b.tok >> 32, 2);
    kit_close(&k);
}

TEST(hub_lease_sizes_are_bounded_and_shrink_at_the_end) {
    struct kit k;
    open_small(&k, 400, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 1000);
    assert_int_equal(l.count, 64); /* the maximum */
    l = kit_lease(&k, "beta", b, 1, 1);
    assert_int_equal(l.count, 4); /* the minimum */
    uint64_t last = 1000, sum = 68;
    for (uint64_t req = 2; sum < 400; req++) {
        bool odd = req % 2;
        if (req > 15) break;
        l = kit_lease(&k, odd ? "alpha" : "beta", odd ? a : b, req, 1000);
        assert_true(l.count <= last);
        assert_int_equal(l.count % 4, 0);
        last = l.count;
        sum += l.count;
    }
    assert_true(last < 20);
    kit_close(&k);
}

TEST(hub_returned_positions_are_granted_first) {
    struct kit k;
    open_small(&k, 1000, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    struct wire_lease a = kit_lease(&k, "alpha", inc, 1, 8), b = kit_lease(&k, "alpha", inc, 2, 8);
    struct wire_request q = kit_request(&k, WIRE_RETURN, "alpha", inc);
    q.u.give_back = (struct wire_return){a.tok, a.nonce};
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK); /* again */
    assert_int_equal(kit_view(&k).returned, 1);
    q.u.give_back = (struct wire_return){b.tok, b.nonce + 1};
    assert_int_equal(kit_send(&k, &q)->code, WIRE_BAD);
    struct wire_lease c = kit_lease(&k, "alpha", inc, 3, 8);
    assert_int_equal(c.ranges[0].start, a.ranges[0].start);
    kit_close(&k);
}

TEST(hub_a_site_holds_a_bounded_number_of_leases) {
    struct kit k;
    open_small(&k, 10000, 1);
    uint32_t inc = kit_join(&k, "alpha", 1);
    for (uint64_t req = 1; req <= WIRE_LEASES_MAX; req++) (void)kit_lease(&k, "alpha", inc, req, 4);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", inc);
    q.req = 99;
    assert_false(kit_send(&k, &q)->u.lease.granted);
    assert_true(k.out.answer.u.lease.wait_ms > 0);
    kit_close(&k);
}

TEST(hub_lapsed_leases_are_taken_only_when_needed) {
    struct kit k;
    open_small(&k, 128, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 16);
    kit_wait(&k, 3 * KIT_TTL); /* alpha is silent far beyond the TTL */
    kit_heartbeat(&k, "beta", b, NULL);
    uint64_t req = 1, sum = 0;
    for (; sum < 112; req++) {
        kit_heartbeat(&k, "beta", b, NULL);
        struct wire_lease m = kit_lease(&k, "beta", b, req, 64);
        sum += m.count;
        assert_int_equal(kit_stage(&k, "beta", b, (uint32_t)(100 + req), &m, m.count),
                         OUTCOME_STAGED);
        if (k.has_plan) kit_merge(&k);
        assert_int_equal(kit_view(&k).reclaimed, 0);
    }
    /* Still alpha's: a late commit would be fine. Now beta needs it. */
    assert_int_equal(kit_view(&k).counts.leased, 16);
    struct wire_lease m = kit_lease(&k, "beta", b, req, 64);
    assert_int_equal(kit_view(&k).reclaimed, 1);
    assert_int_equal(m.ranges[0].start, l.ranges[0].start);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, 16), OUTCOME_REJECTED);
    kit_close(&k);
}

TEST(hub_live_leases_are_never_taken) {
    struct kit k;
    open_small(&k, 16, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l[4];
    for (uint64_t i = 0; i < 4; i++) l[i] = kit_lease(&k, "alpha", a, 1 + i, 4);
    for (uint32_t i = 0; i < 100; i++) {
        kit_wait(&k, KIT_HEARTBEAT);
        for (uint32_t n = 0; n < 4; n++) kit_heartbeat(&k, "alpha", a, &l[n]), k.now++;
        struct wire_request q = kit_request(&k, WIRE_LEASE, "beta", b);
        q.req = 1 + i;
        assert_false(kit_send(&k, &q)->u.lease.granted);
    }
    assert_int_equal(kit_view(&k).reclaimed, 0);
    kit_close(&k);
}

TEST(hub_ahead_of_need_a_site_is_given_its_share_and_no_more) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
    q.u.lease.want = 4;
    q.u.lease.ahead = true;
    for (q.req = 1; kit_send(&k, &q)->u.lease.granted;) q.req++;
    uint64_t left = kit_view(&k).counts.available;
    assert_true(left < 64);
    assert_true(left >= 32); /* for the others, who may come yet */
    assert_int_equal(kit_lease(&k, "beta", b, 1, 4).count, 4);
    q.u.lease.ahead = false; /* of need it is given what there is */
    q.req++;
    assert_true(kit_send(&k, &q)->u.lease.granted);
    kit_close(&k);
}

TEST(hub_a_lease_that_no_heartbeat_lists_lapses) {
    struct kit k;
    open_small(&k, 8, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_lease l[2];
    for (uint64_t i = 0; i < 2; i++) l[i] = kit_lease(&k, "alpha", a, 1 + i, 4);
    for (uint32_t i = 0; i < 20;
         i++) { /* the answer with l[1] was lost: alpha does not know of it */
        kit_wait(&k, KIT_HEARTBEAT);
        kit_heartbeat(&k, "alpha", a, &l[0]);
    }
    kit_heartbeat(&k, "beta", b, NULL);
    struct wire_lease m = kit_lease(&k, "beta", b, 1, 4);
    assert_int_equal(m.ranges[0].start, l[1].ranges[0].start);
    kit_close(&k);
}

TEST(hub_own_pauses_cost_nobody_a_lease) {
    struct kit k;
    open_small(&k, 8, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    for (uint64_t i = 0; i < 2; i++) (void)kit_lease(&k, "alpha", a, 1 + i, 4);
    k.now += 5LL * KIT_TTL * NS_PER_S; /* the hub was stopped: no step, no tick */
    struct wire_request q = kit_request(&k, WIRE_LEASE, "beta", b);
    q.req = 1;
    assert_false(kit_send(&k, &q)->u.lease.granted);
    assert_int_equal(kit_view(&k).reclaimed, 0);
    kit_wait(&k, 2 * KIT_TTL); /* now alpha is silent while the hub is awake */
    q.req = 2;
    assert_true(kit_send(&k, &q)->u.lease.granted);
    kit_close(&k);
}

TEST(hub_a_restart_gives_every_lease_a_full_time) {
    struct kit k;
    open_small(&k, 4, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    (void)kit_lease(&k, "alpha", a, 1, 4);
    kit_wait(&k, KIT_TTL - 10);
    kit_kill(&k);
    kit_wait(&k, KIT_TTL - 10);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "beta", b);
    q.req = 1;
    assert_false(kit_send(&k, &q)->u.lease.granted);
    kit_wait(&k, 20);
    q.req = 2;
    assert_true(kit_send(&k, &q)->u.lease.granted);
    kit_close(&k);
}

TEST(hub_old_heartbeats_renew_nothing) {
    struct kit k;
    open_small(&k, 4, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 4);
    struct wire_request q = kit_request(&k, WIRE_HEARTBEAT, "alpha", a);
    q.u.heartbeat.hb_seq = 5;
    q.u.heartbeat.leases_count = 1;
    q.u.heartbeat.leases[0].tok = l.tok;
    assert_int_equal(kit_send(&k, &q)->u.heartbeat.leases[0].verdict, LEASE_KEPT);
    struct hub_site_view v;
    kit_wait(&k, KIT_TTL - 1);
    assert_int_equal(kit_send(&k, &q)->code, WIRE_OK); /* a copy, late on the wire */
    kit_wait(&k, 2);
    hub_site_at(k.h, 0, k.now, &v);
    assert_false(v.live);
    assert_int_equal(k.seq, 5); /* nothing durable in all that */
    kit_close(&k);
}

TEST(hub_a_slow_site_is_asked_to_share_its_rest) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 64);
    for (uint64_t req = 2; kit_view(&k).counts.available > 0; req++)
        (void)kit_lease(&k, "alpha", a, req, 64);
    q = kit_request(&k, WIRE_LEASE, "beta", b);
    q.req = 1;
    assert_false(kit_send(&k, &q)->u.lease.granted); /* beta starves */
    struct wire_request hb = kit_request(&k, WIRE_HEARTBEAT, "alpha", a);
    hb.u.heartbeat.hb_seq = 1;
    hb.u.heartbeat.leases_count = 1;
    hb.u.heartbeat.leases[0] = (struct wire_progress){l.tok, 2, 6};
    const struct wire_lease_state *asked = &kit_send(&k, &hb)->u.heartbeat.leases[0];
    assert_int_equal(asked->verdict, LEASE_WISH);
    uint64_t keep = asked->keep;
    assert_true(keep >= 6 && keep < l.count);
    q.req = 2;
    assert_false(kit_send(&k, &q)->u.lease.granted); /* no answer, no steal */
    struct wire_request ok = kit_request(&k, WIRE_SHRINK_OK, "alpha", a);
    ok.u.shrink_ok = (struct wire_shrink_ok){l.tok, l.nonce, keep};
    assert_int_equal(kit_send(&k, &ok)->code, WIRE_OK);
    assert_int_equal(kit_send(&k, &ok)->code, WIRE_OK);
    q.req = 3;
    assert_true(kit_send(&k, &q)->u.lease.granted);
    assert_int_equal(kit_stage(&k, "alpha", a, 1, &l, keep + 1),
                     OUTCOME_REJECTED); /* a broken promise */
    kit_close(&k);
}

TEST(hub_a_site_that_asks_ahead_is_not_asked_to_share_with_itself) {
    struct kit k;
    open_small(&k, 64, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct wire_lease l = kit_lease(&k, "alpha", a, 1, 64);
    uint64_t req = 2;
    for (; kit_view(&k).counts.available > 0; req++) (void)kit_lease(&k, "alpha", a, req, 64);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
    q.req = req;
    assert_false(kit_send(&k, &q)->u.lease.granted);
    struct wire_request hb = kit_request(&k, WIRE_HEARTBEAT, "alpha", a);
    hb.u.heartbeat.hb_seq = 1;
    hb.u.heartbeat.leases_count = 1;
    hb.u.heartbeat.leases[0] = (struct wire_progress){l.tok, 2, 6};
    assert_int_equal(kit_send(&k, &hb)->u.heartbeat.leases[0].verdict, LEASE_KEPT);
    kit_close(&k);
}

/* The JOIN of a process that comes back from a checkpoint with this lease. */
static uint32_t join_again(struct kit *k, uint8_t boot, const struct wire_lease *l, uint64_t done,
                           enum lease_verdict want) {
    struct wire_request q = kit_join_request(k, "alpha", boot);
    q.u.join.resume_count = 1;
    q.u.join.resume[0] = (struct wire_part){l->tok, l->nonce, done};
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    assert_int_equal(a->u.join.leases[0].verdict, want);
    return a->u.join.inc;
}

TEST(hub_processes_that_die_on_a_lease_in_a_row_lose_it) {
    struct kit k;
    open_small(&k, 16, 1);
    struct wire_lease l = kit_lease(&k, "alpha", kit_join(&k, "alpha", 1), 1, 4);
    (void)join_again(&k, 2, &l, 1, LEASE_KEPT);
    (void)join_again(&k, 3, &l, 1, LEASE_KEPT);
    (void)join_again(&k, 4, &l, 2, LEASE_KEPT); /* it got further: that is not what kills it */
    (void)join_again(&k, 5, &l, 2, LEASE_KEPT);
    uint32_t inc = join_again(&k, 6, &l, 2, LEASE_GONE); /* as a crash on it */
    assert_int_equal(kit_view(&k).counts.leased, 0);
    for (uint8_t turn = 0; turn < 2; turn++) { /* two more times, and an operator has to look */
        assert_int_equal(kit_view(&k).counts.quarantined, 0);
        l = kit_lease(&k, "alpha", inc, 1, 4);
        assert_int_equal(l.ranges[0].start, 0);
        (void)join_again(&k, (uint8_t)(10 + 3 * turn), &l, 0, LEASE_KEPT);
        (void)join_again(&k, (uint8_t)(11 + 3 * turn), &l, 0, LEASE_KEPT);
        inc = join_again(&k, (uint8_t)(12 + 3 * turn), &l, 0, LEASE_GONE);
    }
    assert_true(kit_view(&k).counts.quarantined > 0);
    kit_close(&k);
}

TEST(hub_poisoned_positions_wait_for_an_operator) {
    struct kit k;
    open_small(&k, 16, 1);
    for (uint8_t boot = 1; boot <= 3; boot++) { /* each process dies on its lease */
        uint32_t inc = kit_join(&k, "alpha", boot);
        (void)kit_lease(&k, "alpha", inc, 1, 16);
    }
    uint32_t inc = kit_join(&k, "alpha", 4);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.counts.quarantined, 4);
    uint32_t did = 1;
    for (uint64_t req = 1; kit_view(&k).counts.available > 0; req++) {
        struct wire_lease l = kit_lease(&k, "alpha", inc, req, 16);
        assert_int_equal(kit_stage(&k, "alpha", inc, did++, &l, l.count), OUTCOME_STAGED);
        kit_merge(&k);
    }
    v = kit_view(&k);
    assert_int_equal(v.counts.merged, 12);
    assert_false(v.complete); /* never dropped silently */
    struct hub_cmd c = {.kind = HUB_CMD_QUARANTINE};
    c.u.quarantine.range = (struct range){0, 5};
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    c.u.quarantine.range = (struct range){0, 4};
    c.u.quarantine.skip = true;
    strncpy(c.u.quarantine.reason, "poison", sizeof c.u.quarantine.reason);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    v = kit_view(&k);
    assert_int_equal(v.counts.skipped, 4);
    assert_true(v.complete);
    kit_close(&k);
}

TEST(hub_draining_gives_no_leases) {
    struct kit k;
    open_small(&k, 100, 1);
    uint32_t a = kit_join(&k, "alpha", 1);
    struct hub_cmd c = {.kind = HUB_CMD_DRAIN};
    c.u.drain.on = true;
    kit_step(&k, &c);
    struct wire_request q = kit_request(&k, WIRE_LEASE, "alpha", a);
    q.req = 1;
    assert_false(kit_send(&k, &q)->u.lease.granted);
    assert_true(k.out.answer.u.lease.round.drain);
    c.u.drain.on = false;
    kit_step(&k, &c);
    q.req = 2;
    assert_true(kit_send(&k, &q)->u.lease.granted);
    kit_close(&k);
}

TEST(hub_cadence_gives_faster_sites_more_steps) {
    struct hub_settings s = kit_settings(100, 1);
    s.cadence = true;
    struct kit k;
    kit_open(&k, &s);
    uint32_t a = kit_join(&k, "alpha", 1), b = kit_join(&k, "beta", 1);
    (void)kit_lease(&k, "alpha", a, 1, 4);
    (void)kit_lease(&k, "beta", b, 1, 4);
    struct wire_request q = kit_request(&k, WIRE_HEARTBEAT, "alpha", a);
    q.u.heartbeat = (struct wire_heartbeat){
        .hb_seq = 1, .phase = PHASE_TRAINING, .steps_per_s = 3, .tokens_per_s = 300};
    assert_int_equal(kit_send(&k, &q)->u.heartbeat.round.steps_target, 30);
    q = kit_request(&k, WIRE_HEARTBEAT, "beta", b);
    q.u.heartbeat = (struct wire_heartbeat){
        .hb_seq = 1, .phase = PHASE_TRAINING, .steps_per_s = 1, .tokens_per_s = 200};
    const struct wire_answer *r = kit_send(&k, &q);
    assert_int_equal(r->u.heartbeat.round.steps_target, 15);
    assert_int_equal(r->u.heartbeat.round.tokens_per_step, 300); /* 100 + 200 */
    struct wire_round round;
    hub_round(k.h, "alpha", k.now, &round);
    assert_int_equal(round.steps_target, 45);
    kit_close(&k);
}
