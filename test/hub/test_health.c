/* SPDX-License-Identifier: Apache-2.0 */
/* What the hub knows of a run's health: norms against the usual, cosines, held-out loss and the way back; and what
 * the options of the outer step make of a round. Each state must come back from the journal and from a snapshot. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"
#include "machine_kit.h"

enum { POSITIONS = 4000 };
struct world {
    struct kit k;
    uint32_t inc[3], did;
    uint64_t req;
};
static const char *const names[3] = {"a", "b", "c"};

static void set_up(struct world *w, const struct hub_settings *s, uint32_t sites) {
    memset(w, 0, sizeof *w);
    kit_open(&w->k, s);
    for (uint32_t i = 0; i < sites; i++) w->inc[i] = kit_join(&w->k, names[i], (uint8_t)(i + 1));
}

/* One contribution of a site with this norm; gives the outcome. */
static enum outcome hand_in(struct world *w, uint32_t site, double norm, double lr_sum) {
    struct wire_lease l = kit_lease(&w->k, names[site], w->inc[site], ++w->req, 4);
    struct wire_request q =
        kit_commit_request(&w->k, names[site], w->inc[site], ++w->did, &l, l.count);
    struct hub_blob_verdict blob = kit_blob();
    q.u.commit.steps = 30;
    q.u.commit.lr_sum = lr_sum;
    blob.norm = norm;
    const struct wire_answer *a = kit_commit(&w->k, &q, &blob);
    assert_int_equal(a->code, WIRE_OK);
    return a->u.commit.outcome;
}

static void merge(struct world *w) {
    if (!w->k.has_plan) kit_wait(&w->k, 61);
    kit_merge(&w->k);
}

static struct hub_version_view version(const struct world *w, uint64_t v) {
    struct hub_version_view x = {0};
    assert_true(hub_version_find(w->k.h, v, &x));
    return x;
}

/* The same state from the journal alone, and from a snapshot. */
static void check_state(const struct world *w) {
    struct hub *again = kit_replay(&w->k, UINT64_MAX), *restored = hub_create(&w->k.s, 5);
    struct hash a = hub_digest(w->k.h), b = hub_digest(again);
    struct err e = {0};
    struct buf snapshot;
    buf_init(&snapshot, SIZE_MAX / 2);
    assert_true(hash_equal(&a, &b));
    hub_snapshot(w->k.h, &snapshot);
    if (hub_restore(restored, w->k.seq, snapshot.data, snapshot.bytes_count, &e) != BRG_OK)
        fail_msg("%s", e.text);
    b = hub_digest(restored);
    assert_true(hash_equal(&a, &b));
    /* Cut short anywhere behind the ledger it is no snapshot. */
    struct hub *cut = hub_create(&w->k.s, 5);
    assert_int_equal(hub_restore(cut, w->k.seq, snapshot.data, snapshot.bytes_count - 1, &e),
                     BRG_E_JOURNAL);
    hub_destroy(cut);
    buf_fini(&snapshot);
    hub_destroy(again);
    hub_destroy(restored);
}

/* ---- Norms ------------------------------------------------------------------------------------------ */
TEST(hub_a_delta_far_longer_than_usual_is_refused_and_the_others_go_on) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.norm_z = 4;
    s.quorum = 1;
    set_up(&w, &s, 2);
    struct prng r;
    prng_seed(&r, 3);
    for (int i = 0; i < OUTER_NORMS_WARM + 10; i++) {
        assert_int_equal(hand_in(&w, 0, exp(0.05 * prng_normal(&r)), 0.01), OUTCOME_STAGED);
        merge(&w);
    }
    check_state(&w);
    uint64_t merged = kit_view(&w.k).counts.merged;
    assert_int_equal(hand_in(&w, 0, 30, 0.01), OUTCOME_REJECTED);
    assert_non_null(strstr(w.k.out.answer.u.commit.reason, "outer.norm_z"));
    struct hub_view v = kit_view(&w.k);
    assert_int_equal(v.counts.available, POSITIONS - merged); /* its positions came back */
    /* A shorter one, or one at another rate that is as long as that rate makes it, is fine. */
    assert_int_equal(hand_in(&w, 0, 0.1, 0.01), OUTCOME_STAGED);
    assert_int_equal(hand_in(&w, 0, 0.1, 0.001), OUTCOME_STAGED);
    assert_int_equal(hand_in(&w, 1, 30, 0.01),
                     OUTCOME_STAGED); /* another site: nothing is usual yet */
    merge(&w);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_a_site_whose_deltas_have_become_longer_for_good_is_learnt_anew) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.norm_z = 4;
    s.quorum = 1;
    set_up(&w, &s, 1);
    for (int i = 0; i < OUTER_NORMS_WARM + 5; i++) {
        assert_int_equal(hand_in(&w, 0, 1, 0.01), OUTCOME_STAGED);
        merge(&w);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(hand_in(&w, 0, 9, 0.01), OUTCOME_REJECTED);
    assert_int_equal(hand_in(&w, 0, 9, 0.01), OUTCOME_STAGED);
    assert_int_equal(hand_in(&w, 0, 9, 0.01), OUTCOME_STAGED);
    check_state(&w);
    /* A new process without its leases may be cold: nothing is usual for it. */
    for (int i = 0; i < OUTER_NORMS_WARM; i++)
        assert_int_equal(hand_in(&w, 0, 9, 0.01), OUTCOME_STAGED);
    w.inc[0] = kit_join(&w.k, "a", 77);
    w.req = 0;
    assert_int_equal(hand_in(&w, 0, 90, 0.01), OUTCOME_STAGED);
    kit_close(&w.k);
}

/* ---- Cosines ---------------------------------------------------------------------------------------- */
TEST(hub_cosines_between_sites_are_recorded_and_named_when_they_are_bad_twice) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    set_up(&w, &s, 2);
    for (int round = 0; round < 2; round++) {
        const double cosines[2] = {-0.5, 0.25};
        struct hub_cmd c = {.kind = HUB_CMD_MERGED};
        (void)hand_in(&w, 0, 1, 0.01);
        (void)hand_in(&w, 1, 1, 0.01);
        assert_true(w.k.has_plan);
        w.k.has_plan = false;
        c.u.merged.plan = w.k.plan;
        c.u.merged.checkpoint.v[0] = (uint8_t)(1 + w.k.plan_version);
        c.u.merged.cosines = cosines;
        c.u.merged.cos_mean = 0.125;
        kit_step(&w.k, &c);
        bool named = strstr(buf_cstr(&w.k.out.notes), "against_the_others site=a") != NULL;
        assert_int_equal(named, round == 1);
    }
    struct hub_site_view v;
    hub_site_at(w.k.h, 0, w.k.now, &v);
    assert_true(v.cos_others == -0.5);
    assert_true(version(&w, 2).cos_sites == 0.125);
    check_state(&w);
    kit_kill(&w.k);
    kit_close(&w.k);
}

/* ---- Held-out loss ------------------------------------------------------------------------------------ */
static const struct wire_answer *evaluated(struct world *w, uint64_t v, double loss,
                                           const uint64_t *kept, uint32_t kept_count) {
    struct hub_cmd c = {.kind = HUB_CMD_EVALUATED};
    c.u.evaluated.version = v;
    c.u.evaluated.loss = loss;
    c.u.evaluated.kept_count = kept_count;
    if (kept_count > 0) memcpy(c.u.evaluated.kept, kept, kept_count * sizeof *kept);
    return kit_step(&w->k, &c);
}

static void rounds(struct world *w, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        (void)hand_in(w, 0, 1, 0.01);
        merge(w);
    }
}

static const uint64_t all_kept[] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
enum { ALL = ARRAY_COUNT(all_kept) };

static void set_up_jump(struct world *w) {
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.loss_jump = 0.3;
    set_up(w, &s, 1);
    rounds(w, 4);
}

TEST(hub_a_jump_of_held_out_loss_leads_back_and_the_momentum_begins_anew) {
    struct world w;
    set_up_jump(&w);
    assert_int_equal(evaluated(&w, 1, 5.0, all_kept, ALL)->code, WIRE_OK);
    assert_int_equal(evaluated(&w, 2, 4.0, all_kept, ALL)->code, WIRE_OK);
    assert_int_equal(evaluated(&w, 3, 4.29, all_kept, ALL)->code, WIRE_OK); /* no jump yet */
    assert_int_equal(kit_view(&w.k).head, 4);
    struct wire_lease held = kit_lease(&w.k, "a", w.inc[0], ++w.req, 4);
    assert_int_equal(evaluated(&w, 4, 4.60, all_kept, ALL)->code, WIRE_OK);
    assert_int_equal(kit_view(&w.k).head, 3);
    assert_false(hub_loss_jumped(w.k.h, 3));
    assert_true(version(&w, 4).heldout == 4.60); /* on record, though off the branch */
    assert_int_equal(version(&w, 3).returns, 1);
    assert_int_equal(kit_stage(&w.k, "a", w.inc[0], ++w.did, &held, held.count), OUTCOME_REJECTED);
    check_state(&w);
    kit_kill(&w.k); /* what follows is in the journal, not in this process */
    rounds(&w, 1);
    assert_true(version(&w, 5).mu_r == 0);
    assert_true(version(&w, 5).kappa_r > 0);
    rounds(&w, 1);
    assert_true(version(&w, 6).mu_r > 0);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_a_version_that_leads_to_jumps_again_and_again_is_a_case_for_a_person) {
    struct world w;
    set_up_jump(&w);
    (void)evaluated(&w, 4, 4.0, all_kept, ALL);
    for (uint64_t i = 0; i < 3; i++) {
        rounds(&w, 1);
        uint64_t head = kit_view(&w.k).head;
        (void)evaluated(&w, head, 9.0, all_kept, ALL);
        assert_int_equal(kit_view(&w.k).head, i < 2 ? 4 : head);
        assert_int_equal(hub_loss_jumped(w.k.h, kit_view(&w.k).head), i == 2);
    }
    assert_non_null(strstr(buf_cstr(&w.k.out.notes), "no_way_back"));
    assert_int_equal(version(&w, 4).returns, 2);
    kit_close(&w.k);
}

TEST(hub_goes_back_to_the_newest_good_version_whose_checkpoint_is_kept) {
    struct world w;
    const uint64_t only_1[] = {1};
    set_up_jump(&w);
    (void)evaluated(&w, 1, 4.1, all_kept, ALL);
    (void)evaluated(&w, 3, 4.0, all_kept, ALL);
    (void)evaluated(&w, 4, 6.0, only_1, 1);
    assert_int_equal(kit_view(&w.k).head, 1);
    /* And where none is, it stays, and says so. */
    rounds(&w, 1);
    (void)evaluated(&w, kit_view(&w.k).head, 6.0, NULL, 0);
    assert_non_null(strstr(buf_cstr(&w.k.out.notes), "no_way_back"));
    assert_int_equal(kit_view(&w.k).head, 5);
    kit_close(&w.k);
}

TEST(hub_losses_that_say_nothing_change_nothing) {
    struct world w;
    set_up_jump(&w);
    uint64_t seq = w.k.seq;
    assert_int_not_equal(evaluated(&w, 99, 4, all_kept, ALL)->code, WIRE_OK);
    assert_int_not_equal(evaluated(&w, 2, 0, all_kept, ALL)->code, WIRE_OK);
    assert_int_not_equal(evaluated(&w, 2, (double)NAN, all_kept, ALL)->code, WIRE_OK);
    assert_int_equal(w.k.seq, seq);
    assert_int_equal(evaluated(&w, 2, 4, all_kept, ALL)->code, WIRE_OK);
    assert_int_equal(w.k.seq, seq + 1);
    assert_int_equal(evaluated(&w, 2, 9, all_kept, ALL)->code, WIRE_OK); /* told already */
    assert_int_equal(w.k.seq, seq + 1);
    kit_close(&w.k);
    /* Off: nothing leads back. */
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    set_up(&w, &s, 1);
    rounds(&w, 2);
    (void)evaluated(&w, 1, 4, all_kept, ALL);
    (void)evaluated(&w, 2, 9, all_kept, ALL);
    assert_int_equal(kit_view(&w.k).head, 2);
    kit_close(&w.k);
}

/* ---- Options in rounds ------------------------------------------------------------------------------- */
TEST(hub_delayed_momentum_counts_arrivals_through_crashes_and_rollbacks) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.rule.kind = OUTER_DELAYED;
    s.rule.delay = 3;
    set_up(&w, &s, 1);
    for (uint64_t v = 1; v <= 7; v++) {
        if (v == 5) kit_kill(&w.k);
        rounds(&w, 1);
        assert_int_equal(version(&w, v).kappa_r > 0, v % 3 == 0);
        assert_int_equal(version(&w, v).mu_r < 1, v % 3 == 1);
        assert_true(version(&w, v).eta_r == s.rule.eta);
    }
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK};
    back.u.rollback.version = 5; /* two have arrived since the third */
    kit_step(&w.k, &back);
    rounds(&w, 1);
    assert_true(version(&w, 8).kappa_r > 0);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_the_round_that_ends_the_run_can_be_a_plain_mean) {
    struct world w;
    struct hub_settings s = kit_settings(12, 1);
    s.quorum = 1;
    s.rule.last_mean = true;
    set_up(&w, &s, 1);
    rounds(&w, 3);
    for (uint64_t v = 1; v <= 3; v++) assert_int_equal(version(&w, v).eta_r == 1, v == 3);
    assert_true(version(&w, 3).mu_r == 0);
    assert_true(kit_view(&w.k).complete);
    kit_close(&w.k);
}

TEST(hub_a_mean_of_the_weights_and_radial_averaging_are_recorded_with_each_merge) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.rule.ema = 0.9;
    s.rule.radial = true;
    set_up(&w, &s, 1);
    rounds(&w, 3);
    for (uint64_t v = 1; v <= 3; v++) {
        assert_true(version(&w, v).radial);
        assert_true(version(&w, v).has_ema);
    }
    check_state(&w);
    /* Another setting from the next start on: what stands in the journal stays as it is. */
    w.k.s.rule.ema = 0;
    w.k.s.rule.radial = false;
    kit_kill(&w.k);
    rounds(&w, 1);
    assert_false(version(&w, 4).radial);
    assert_false(version(&w, 4).has_ema);
    assert_true(version(&w, 3).has_ema);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_H_rises_over_the_first_share_of_the_tokens) {
    struct world w;
    struct hub_settings s = kit_settings(40, 1);
    struct wire_round r;
    s.quorum = 1;
    s.steps_first = 10;
    s.ramp_share = 0.5;
    s.schedule.tokens_total = 40.0 * KIT_SEQ_LEN;
    set_up(&w, &s, 1);
    uint64_t want[] = {10, 14, 18, 22, 26, 30, 30};
    for (size_t i = 0; i < ARRAY_COUNT(want); i++) {
        hub_round(w.k.h, "a", w.k.now, &r);
        assert_int_equal(r.steps_target, want[i]);
        rounds(&w, 1);
    }
    kit_close(&w.k);
}

TEST(hub_a_late_delta_weighs_less_the_more_it_misses) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.staleness_max = 3;
    s.rule.late_decay = 0.5;
    set_up(&w, &s, 2);
    struct wire_lease old = kit_lease(&w.k, "b", w.inc[1], 1, 4);
    struct wire_request q = kit_commit_request(&w.k, "b", w.inc[1], 999, &old, old.count);
    kit_wait(&w.k, 1);
    for (int i = 0; i < 2; i++) { /* a goes on alone: b misses two versions */
        (void)hand_in(&w, 0, 1, 0.01);
        kit_wait(&w.k, 61);
        kit_merge(&w.k);
    }
    assert_int_equal(kit_send(&w.k, &q)->u.commit.outcome, OUTCOME_STAGED);
    if (!w.k.has_plan) kit_wait(&w.k, 61);
    assert_int_equal(w.k.plan_parts, 1);
    assert_int_equal(w.k.h->merge->plan.parts[0].part.late, 2);
    kit_merge(&w.k);
    check_state(&w);
    kit_close(&w.k);
}

/* A crash may leave a STEP as the journal's last record: the next process begins with another one. */
TEST(hub_H22_a_step_that_is_not_followed_by_its_merge_has_no_effect) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.quorum = 1;
    s.rule.ema = 0.9;
    set_up(&w, &s, 1);
    rounds(&w, 1);
    for (int between = 0; between < 2; between++) {
        struct hub *h = hub_create(&w.k.s, 9);
        struct reader r = reader_of(w.k.journal.data, w.k.journal.bytes_count);
        uint64_t seq = 0;
        struct err e = {0};
        while (r.p < r.end) {
            uint16_t kind = get_u16(&r);
            uint32_t bytes = get_u32(&r);
            const void *body = get_bytes(&r, bytes);
            if (kind == RECORD_MERGE && between) {
                struct hub_record term = {.kind = RECORD_TERM, .u.term = {.term = 7}};
                struct buf b;
                buf_init(&b, 100);
                hub_record_encode(&term, &b);
                assert_int_equal(hub_apply(h, ++seq, RECORD_TERM, b.data, b.bytes_count, &e),
                                 BRG_OK);
                buf_fini(&b);
            }
            assert_int_equal(hub_apply(h, ++seq, kind, body, bytes, &e), BRG_OK);
        }
        struct hub_version_view v = {0};
        assert_true(hub_version_find(h, 1, &v));
        assert_int_equal(v.has_ema, !between);
        hub_destroy(h);
    }
    kit_close(&w.k);
}

/* Speeds 1:2:4 in tokens, the same batch at first: after a few rounds of asking all do as many steps a second. */
TEST(hub_cadence_by_batch_gives_each_site_its_share_of_a_step_by_its_speed) {
    struct world w;
    struct hub_settings s = kit_settings(POSITIONS, 1);
    double speed[3] = {1000, 2000, 4000}, batch[3] = {32, 32, 32};
    uint64_t beat = 0;
    s.cadence = s.cadence_batch = true;
    set_up(&w, &s, 3);
    for (uint32_t i = 0; i < 3; i++) (void)kit_lease(&w.k, names[i], w.inc[i], ++w.req, 4);
    for (int turn = 0; turn < 20; turn++) {
        beat++;
        for (uint32_t i = 0; i < 3; i++) {
            struct wire_request q = kit_request(&w.k, WIRE_HEARTBEAT, names[i], w.inc[i]);
            q.u.heartbeat.hb_seq = beat;
            q.u.heartbeat.phase = PHASE_TRAINING;
            q.u.heartbeat.tokens_per_s = speed[i];
            q.u.heartbeat.steps_per_s = speed[i] / (batch[i] * KIT_SEQ_LEN);
            uint64_t told = kit_send(&w.k, &q)->u.heartbeat.round.samples_target;
            if (turn > 0) { /* by then the hub has heard of all */
                assert_true(told > 0);
                batch[i] = i == 2 && told > 50 ? 50
                                               : (double)told; /* the fastest has no more memory */
            }
        }
    }
    double sum = batch[0] + batch[1] + batch[2];
    assert_true(fabs(sum - 96) <= 12);
    assert_true(fabs(batch[1] / batch[0] - 2) < 0.25);
    assert_true(batch[2] == 50);
    struct wire_round r;
    hub_round(w.k.h, "c", w.k.now, &r);
    assert_true(r.steps_target >= 30); /* what the batch does not do the steps do */
    kit_close(&w.k);
}
