/* SPDX-License-Identifier: Apache-2.0 */
/* The core under a script: each duty of a site (S1-S9) and each invariant (T1-T6). */
#include "script.h"

#include <stdio.h>
#include <string.h>

/* ---- Duties --------------------------------------------------------------------------------------- */

TEST(site_S1_done_advances_at_the_step_and_not_before) {
    struct bench *b = bench_ready();
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(b->core.leases[0].taken, 8);
    assert_int_equal(b->core.leases[0].done, 0);
    trained(b, 4);
    assert_int_equal(b->core.leases[0].done, 4);
    b->now += 20 * SECOND;
    tick(b);
    assert_true(b->out.has_beat);
    assert_int_equal(b->out.beat.u.heartbeat.leases[0].done, 4);
    assert_int_equal(b->out.beat.u.heartbeat.leases[0].read_ahead, 8);
    bench_free(b);
}

TEST(site_S2_the_saved_state_is_the_state) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    steps(b, 2);
    AUTO_BUF struct buf one = {.bytes_max = 1 << 20}, two = {.bytes_max = 1 << 20};
    site_save(&b->core, &one);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, one.data, one.bytes_count, &e), BRG_OK);
    site_save(&c->core, &two);
    assert_int_equal(one.bytes_count, two.bytes_count);
    assert_memory_equal(one.data, two.data, one.bytes_count);
    assert_true(c->core.deltas[0].ask); /* may have been committed since */
    assert_int_equal(c->core.seg.steps, 2);
    bench_free(b);
    bench_free(c);
}

/* What a site cannot prove counts for nothing at a hub that is an old copy. */
TEST(site_S2_the_hubs_seals_are_saved_and_shown_at_the_next_join) {
    struct bench *b = bench_ready();
    b->now += 20 * SECOND;
    tick(b);
    assert_true(b->core.beat.busy);
    struct wire_answer h = {.kind = WIRE_HEARTBEAT, .term = 3, .term_seal = {{30}}};
    h.u.heartbeat.hb_seq = b->core.hb_seq;
    h.u.heartbeat.round = round_at(2);
    h.u.heartbeat.round.theta.v[0] = 21;
    h.u.heartbeat.round.seal.v[0] = 20;
    event(b, &(struct site_event){.kind = SITE_BEAT_ANSWER, .id = b->core.beat.id, .u.answer = &h});
    b->head = 2;
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    event(c, &(struct site_event){.kind = SITE_START});
    expect(c, WIRE_JOIN);
    const struct wire_join *j = &c->core.control.request.u.join;
    assert_int_equal(j->version_seen, 2);
    assert_int_equal(j->theta_seen.v[0], 21);
    assert_int_equal(j->version_seal.v[0], 20);
    assert_int_equal(j->term_seen, 3);
    assert_int_equal(j->term_seal.v[0], 30);
    bench_free(b);
    bench_free(c);
}

TEST(site_S2_a_state_of_the_layout_before_residuals_is_read) {
    struct bench *b = bench_ready(), *c = bench_new();
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    struct err e;
    steps(b, 2);
    site_save(&b->core, &saved);
    saved.data[7] = '3'; /* lacks the hub's two seals and, without contributions, the last field */
    size_t seals = 8 + ID_BYTES + 2 + strlen(b->core.set.name) + 2 * HASH_BYTES + 8 + 4 +
                   HASH_BYTES;
    size_t rest = saved.bytes_count - seals - 2 * HASH_BYTES - ID_BYTES;
    memmove(saved.data + seals, saved.data + seals + 2 * HASH_BYTES, rest);
    size_t from = seals + 1 + 4 * 8; /* and where the ramp began */
    memmove(saved.data + from, saved.data + from + 8, seals + rest - from - 8);
    rest -= 8;
    assert_int_equal(site_load(&c->core, saved.data, seals + rest, &e), BRG_OK);
    assert_int_equal(c->core.seg.steps, 2);
    assert_int_equal(site_load(&c->core, saved.data, seals + rest + 1, &e), BRG_E_CHECKPOINT);
    bench_free(b);
    bench_free(c);
}

TEST(site_S2_a_wrong_byte_anywhere_never_crashes_and_never_half_loads) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    AUTO_BUF struct buf good = {.bytes_max = 1 << 20};
    site_save(&b->core, &good);
    struct err e;
    for (size_t at = 0; at < good.bytes_count; at++) {
        struct bench *c = bench_new();
        good.data[at] ^= 0x81;
        if (site_load(&c->core, good.data, good.bytes_count, &e) == BRG_OK)
            site_check(&c->core);
        else
            assert_false(c->core.loaded);
        good.data[at] ^= 0x81;
        assert_int_equal(site_load(&c->core, good.data, at, &e), BRG_E_CHECKPOINT);
        bench_free(c);
    }
    bench_free(b);
}

TEST(site_S3_a_manifest_names_exactly_the_segment) {
    struct bench *b = bench_ready();
    steps(b, 3);
    struct site_delta *d = cut(b);
    assert_int_equal(d->c.parts_count, 1);
    assert_int_equal(d->c.parts[0].done, 12);
    assert_int_equal(d->c.tokens, 120);
    assert_int_equal(d->c.steps, 3);
    assert_true(d->c.lr_sum == 1.5);
    assert_true(d->c.loss == 2.0);
    assert_true(d->c.keep_rest);
    /* Training goes on in the rest, over the border to the next lease. */
    steps(b, 3);
    assert_int_equal(b->core.leases[0].done, 20);
    assert_int_equal(b->core.leases[1].done, 4);
    staged_with_rest(b, 12, 8);
    assert_int_equal(b->core.leases[0].w.tok, b->tok);
    assert_int_equal(b->core.leases[0].done, 8);
    b->head = 1;
    outcome(b, OUTCOME_STAGED, 0); /* whatever is asked next: the head moved, and it is merged */
    while (b->core.deltas[0].state != PENDING_MERGED) {
        if (b->core.control.request.kind == WIRE_LEASE) {
            nothing_to_lease(b);
        } else {
            outcome(b, OUTCOME_MERGED, 1);
            deliver(b);
        }
    }
    version_here(b, 1);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_REBASE);
    site_rebased(&b->core, &b->out.notes);
    /* A round's share counts from here, so that all sites finish it together. */
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
    steps(b, 3);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    (void)site_cut(&b->core, &b->out.notes);
    d = &b->core.deltas[0];
    assert_int_equal(d->c.steps, 6);
    assert_int_equal(d->c.parts_count, 2);
    assert_int_equal(d->c.parts[0].tok, b->tok); /* the successor's name */
    assert_int_equal(d->c.parts[0].done, 8);
    assert_int_equal(d->c.parts[1].done, 16);
    bench_free(b);
}

TEST(site_S4_after_a_refusal_the_weights_go_back_and_the_segment_comes_again) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    steps(b, 3); /* 8 samples of the first lease, 4 of the second */
    struct wire_commit_answer *a = outcome(b, OUTCOME_REJECTED, 0);
    snprintf(a->reason, sizeof a->reason, "too large");
    deliver(b);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    assert_int_equal(b->core.leases_count, 1); /* the refused lease is gone, its rest with it */
    assert_int_equal(take(b, 4), 0);           /* nothing before the reset */
    site_reset(&b->core, &b->out.notes);
    tick(b);
    assert_int_equal(b->core.deltas_count, 0);
    assert_int_equal(b->core.seg.samples, 0);
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(b->taken[0].position, 20); /* again from the start of what is still leased */
    bench_free(b);
}

/* Merged and rebased on: the head is 1 then. */
static void merged_and_rebased(struct bench *b) {
    b->now += 20 * SECOND;
    b->head = b->core.round.head = 1; /* a heartbeat told */
    while (b->core.deltas[0].state == PENDING_STAGED) {
        tick(b);
        if (b->core.control.request.kind == WIRE_LEASE) nothing_to_lease(b);
        expect(b, WIRE_OUTCOME);
        outcome(b, OUTCOME_MERGED, 1);
        deliver(b);
    }
    version_here(b, 1);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_REBASE);
    site_rebased(&b->core, &b->out.notes);
}

TEST(site_S4_a_refused_contribution_takes_its_residual_with_it) {
    struct bench *b = bench_ready();
    const struct id128 none = {0};
    b->core.set.codec = CODEC_TOPK;
    steps(b, 3);
    struct site_delta *d = cut(b);
    struct id128 first = d->c.did;
    assert_true(d->residual);
    assert_true(id_equal(&d->residual_before, &none));
    assert_true(id_equal(&b->core.residual, &first));
    staged_with_rest(b, 12, 8);
    merged_and_rebased(b);
    assert_true(id_equal(&b->core.residual, &first)); /* outlives the contribution */
    steps(b, 3);
    d = cut(b);
    assert_true(id_equal(&d->residual_before, &first));
    assert_true(id_equal(&b->core.residual, &d->c.did));
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    assert_true(id_equal(&c->core.residual, &d->c.did));
    assert_true(c->core.deltas[0].residual);
    assert_true(id_equal(&c->core.deltas[0].residual_before, &first));
    bench_free(c);
    snprintf(outcome(b, OUTCOME_REJECTED, 0)->reason, WIRE_TEXT_MAX, "too large");
    deliver(b);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_true(id_equal(&b->core.residual, &first));
    site_forget(&b->core, "a test", &b->out.notes);
    assert_true(id_equal(&b->core.residual, &none));
    bench_free(b);
}

TEST(site_S4_discarded_after_it_was_staged) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    staged_with_rest(b, 12, 8);
    steps(b, 1);
    b->now += 20 * SECOND;
    b->core.round.head = 1; /* a heartbeat told */
    while (b->core.deltas[0].state == PENDING_STAGED) {
        tick(b);
        if (b->core.control.request.kind == WIRE_LEASE) nothing_to_lease(b);
        expect(b, WIRE_OUTCOME);
        b->head = 1;
        outcome(b, OUTCOME_DISCARDED, 0);
        deliver(b);
    }
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(b->core.leases_count, 2); /* the rest stays ours: it was a lease of its own */
    assert_int_equal(take(b, 1), 1);
    assert_int_equal(b->taken[0].position, 12);
    bench_free(b);
}

TEST(site_S5_never_beyond_the_extent) {
    struct bench *b = bench_ready();
    assert_int_equal(take(b, 4), 4);
    b->now += 20 * SECOND;
    tick(b);
    beat(b, 101, LEASE_WISH, 2);
    assert_int_equal(b->core.leases[0].w.count, 4); /* 2 was wished, 4 are fetched already */
    expect(b, WIRE_SHRINK_OK);
    assert_int_equal(b->core.control.request.u.shrink_ok.keep, 4);
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(b->taken[0].position, 20); /* the second lease: nothing of what was given up */
    bench_free(b);
}

TEST(site_S6_skipped_samples_are_listed_with_the_reason) {
    struct bench *b = bench_ready();
    steps(b, 2);
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(site_trained(&b->core, b->now, 4, 0, 0, "nonfinite"), BRG_OK);
    steps(b, 1);
    struct site_delta *d = cut(b);
    assert_int_equal(d->c.skips_count, 4);
    assert_int_equal(d->c.skips[0].position, 8);
    assert_int_equal(d->c.skips[3].position, 11);
    assert_string_equal(d->c.skips[0].reason, "nonfinite");
    assert_int_equal(d->c.tokens, 120); /* 16 samples less 4 */
    assert_int_equal(d->c.parts[0].done, 16);
    bench_free(b);
}

TEST(site_S6_more_than_a_manifest_can_list_is_thrown_away) {
    struct bench *b = bench_loaded();
    grant(b, 0, 100);
    uint64_t left = WIRE_SKIPS_MAX;
    while (left > 0) {
        uint64_t n = take(b, 8);
        assert_int_equal(site_trained(&b->core, b->now, n, 0, 0, "test"), BRG_OK);
        left -= n;
    }
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(site_trained(&b->core, b->now, 4, 0, 0, "test"), BRG_E_LIMIT);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    bench_free(b);
}

/* Nothing of it is in the weights; to wait for its merge would be to wait for ever, since a hub merges
 * such a contribution only together with a real one. */
TEST(site_S6_a_contribution_of_skips_alone_is_settled_when_staged) {
    struct bench *b = bench_loaded();
    grant(b, 0, 8);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(take(b, 4), 4);
        assert_int_equal(site_trained(&b->core, b->now, 4, 0, 0, "nonfinite"), BRG_OK);
    }
    tick(b);
    nothing_to_lease(b);
    cut(b);
    (void)outcome(b, OUTCOME_STAGED, 0);
    deliver(b);
    assert_int_equal(b->core.deltas_count, 0);
    bench_free(b);
}

TEST(site_T1_what_is_put_back_is_taken_again_in_its_order) {
    struct bench *b = bench_ready();
    steps(b, 4);
    assert_int_equal(take(b, 8), 8); /* across the end of the first lease */
    uint64_t first = b->taken[0].position;
    site_untake(&b->core);
    assert_int_equal(b->core.in_flight, 0);
    assert_int_equal(site_trained(&b->core, b->now, 4, 2.0, 0.5, NULL), BRG_E_USAGE);
    assert_int_equal(take(b, 8), 8);
    assert_int_equal(b->taken[0].position, first);
    site_untake(&b->core);
    site_check(&b->core);
    b->core.reset_due = true;
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(b->core.void_in_flight, 0); /* nothing in hand, so nothing to be void */
    bench_free(b);
}

/* With a batch in hand that a reset made void, each step on such a batch asked for the next reset. */
TEST(site_a_trainer_that_takes_ahead_comes_out_of_a_reset) {
    struct bench *b = bench_ready();
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(take(b, 4), 4);
    b->now += 20 * SECOND;
    tick(b);
    beat(b, 101, LEASE_GONE, 0);
    trained(b, 4);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(take(b, 4), 4); /* one ahead, before the second void batch is through */
    trained(b, 4);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    trained(b, 4);
    assert_false(b->core.reset_due);
    assert_int_equal(b->core.seg.samples, 4);
    assert_int_equal(b->core.leases[0].done, 4);
    bench_free(b);
}

/* What is leased ahead is planned in batches of the site's options; who takes more must get it too. */
TEST(site_a_batch_larger_than_planned_is_leased_for) {
    struct bench *b = bench_ready(); /* 40 samples, enough for rounds of 3 steps of 4 */
    b->now += SECOND;
    assert_int_equal(take(b, 90), 0);
    expect(b, WIRE_LEASE);
    assert_int_equal(b->core.control.request.u.lease.want, 90);
    assert_false(b->core.control.request.u.lease.ahead);
    grant(b, 40, 60);
    assert_int_equal(take(b, 90), 90);
    bench_free(b);
}

TEST(site_S7_nothing_is_taken_before_the_hub_confirms_the_extents) {
    struct bench *b = bench_ready();
    steps(b, 2);
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    assert_int_equal(take(c, 4), 0);
    event(c, &(struct site_event){.kind = SITE_START});
    assert_int_equal(take(c, 4), 0);
    expect(c, WIRE_JOIN);
    assert_int_equal(c->core.control.request.u.join.resume_count, 2);
    assert_int_equal(c->core.control.request.u.join.resume[0].done, 8);
    struct wire_answer *a = answer(c, WIRE_OK);
    a->u.join.inc = 6;
    a->u.join.round = round_at(0);
    a->u.join.leases_count = 2;
    a->u.join.leases[0] = (struct wire_lease_state){101, LEASE_KEPT, 10}; /* shorter than it was */
    a->u.join.leases[1] = (struct wire_lease_state){102, LEASE_GONE, 0};
    deliver(c);
    assert_int_equal(c->core.leases_count, 1);
    assert_int_equal(c->core.leases[0].w.count, 10);
    assert_int_equal(c->core.seg.samples, 8); /* its work counts on */
    assert_int_equal(site_duty(&c->core), SITE_DUTY_NONE);
    bench_free(b);
    bench_free(c);
}

TEST(site_S7_a_lease_that_went_away_takes_its_work_with_it) {
    struct bench *b = bench_ready();
    steps(b, 2);
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    event(c, &(struct site_event){.kind = SITE_START});
    struct wire_answer *a = answer(c, WIRE_OK);
    a->u.join.inc = 6;
    a->u.join.round = round_at(0);
    a->u.join.leases_count = 1;
    a->u.join.leases[0] = (struct wire_lease_state){102, LEASE_KEPT, 20};
    deliver(c);
    assert_int_equal(site_duty(&c->core), SITE_DUTY_RESET);
    bench_free(b);
    bench_free(c);
}

TEST(site_S8_an_unknown_outcome_is_asked_for_and_the_same_contribution_goes_again) {
    struct bench *b = bench_ready();
    steps(b, 3);
    struct id128 did = cut(b)->c.did;
    struct wire_request first = b->core.control.request;
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    steps(b, 2); /* goes on meanwhile; what it does now belongs to another contribution */
    b->now += 20 * SECOND;
    tick(b);
    assert_true(b->out.has_control);
    assert_int_equal(b->out.control.req, first.req);
    assert_memory_equal(&b->out.control.u.commit, &first.u.commit, sizeof first.u.commit);
    staged_with_rest(b, 12, 8);
    assert_int_equal(b->core.seg.samples, 8);
    assert_true(id_equal(&b->core.deltas[0].c.did, &did));
    bench_free(b);
}

TEST(site_S8_after_a_restart_the_outcome_is_asked_for_first) {
    struct bench *b = bench_ready();
    steps(b, 3);
    struct id128 did = cut(b)->c.did;
    steps(b, 1);
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    version_here(c, 1);
    assert_int_equal(site_duty(&c->core), SITE_DUTY_NONE); /* T5: is it in version 1? */
    event(c, &(struct site_event){.kind = SITE_START});
    expect(c, WIRE_OUTCOME);
    outcome(c, OUTCOME_UNKNOWN, 0);
    deliver(c);
    expect(c,
           WIRE_JOIN); /* with the leases of the contribution: 101 (its rest is in use) and 102 */
    assert_int_equal(c->core.control.request.u.join.resume_count, 2);
    struct wire_answer *a = answer(c, WIRE_OK);
    a->u.join.inc = 6;
    a->u.join.round = round_at(0);
    a->u.join.leases_count = 2;
    a->u.join.leases[0] = (struct wire_lease_state){101, LEASE_KEPT, 20};
    a->u.join.leases[1] = (struct wire_lease_state){102, LEASE_KEPT, 20};
    deliver(c);
    assert_true(c->core.uploading); /* the hub may have lost the bytes: all of it again */
    event(c, &(struct site_event){.kind = SITE_UPLOADED, .did = did});
    if (c->core.control.request.kind == WIRE_LEASE) nothing_to_lease(c);
    expect(c, WIRE_COMMIT);
    assert_true(id_equal(&c->core.control.request.u.commit.did, &did));
    assert_int_equal(c->core.seg.samples, 4);
    bench_free(b);
    bench_free(c);
}

TEST(site_S8_committed_before_the_restart) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    steps(b, 1);
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    struct bench *c = bench_new();
    struct err e;
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    event(c, &(struct site_event){.kind = SITE_START});
    expect(c, WIRE_OUTCOME);
    c->tok = 200;
    staged_with_rest(c, 12, 8);
    expect(c, WIRE_JOIN);
    assert_int_equal(c->core.control.request.u.join.resume[0].tok, 201); /* under its new name */
    assert_int_equal(c->core.control.request.u.join.resume[0].done, 4);
    bench_free(b);
    bench_free(c);
}

TEST(site_S9_fenced_means_stop) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    answer(b, WIRE_FENCED);
    deliver(b);
    assert_int_equal(b->core.state, SITE_STOPPED);
    assert_int_equal(b->core.stop_status, BRG_E_FENCED);
    assert_int_equal(take(b, 4), 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
    bench_free(b);
}

/* ---- Invariants ------------------------------------------------------------------------------------ */

TEST(site_T1_leases_are_used_in_order) {
    struct bench *b = bench_ready();
    assert_int_equal(take(b, 12), 12);
    assert_int_equal(take(b, 12), 12);
    assert_int_equal(b->core.leases[0].taken, 20);
    assert_int_equal(b->core.leases[1].taken, 4);
    b->core.leases[0].taken--;
    b->core.in_flight--;
    assert_check_fails(site_check(&b->core));
    bench_free(b);
}

TEST(site_T2_counts_never_pass_each_other) {
    struct bench *b = bench_ready();
    take(b, 8);
    assert_int_equal(site_trained(&b->core, b->now, 9, 0, 0, NULL), BRG_E_USAGE);
    b->core.leases[0].done = 9;
    assert_check_fails(site_check(&b->core));
    bench_free(b);
}

TEST(site_T3_contributions_are_strictly_sequential) {
    struct bench *b = bench_ready();
    b->core.set.pending_max = 2;
    steps(b, 3);
    cut(b);
    steps(b, 3);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE); /* due, but the rest has no name yet */
    staged_with_rest(b, 12, 8);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    bench_free(b);
}

TEST(site_T4_no_lease_before_the_weights_are_there) {
    struct bench *b = bench_new();
    join(b);
    assert_int_equal(b->core.state, SITE_SYNCING);
    b->now += 100 * SECOND;
    tick(b);
    assert_false(b->core.control.busy);
    version_here(b, 0);
    site_loaded(&b->core);
    tick(b);
    expect(b, WIRE_LEASE);
    bench_free(b);
}

TEST(site_T5_no_rebase_before_it_is_known_what_the_version_contains) {
    struct bench *b = bench_ready();
    steps(b, 3);
    cut(b);
    version_here(b, 1); /* the COMMIT is not answered: version 1 may or may not contain it */
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
    b->head = 0;
    staged_with_rest(b, 12, 8);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE); /* known at version 0 only */
    b->core.round.head = 1;
    while (b->core.control.request.kind != WIRE_OUTCOME) {
        tick(b);
        if (b->core.control.request.kind == WIRE_LEASE) nothing_to_lease(b);
    }
    b->head = 1;
    outcome(b, OUTCOME_STAGED, 0); /* still waiting, so not in version 1 */
    deliver(b);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_REBASE);
    site_rebased(&b->core, &b->out.notes);
    assert_int_equal(b->core.deltas_count, 1); /* still owed */
    bench_free(b);
}

TEST(site_T6_while_a_reset_is_due_nothing_leaves) {
    struct bench *b = bench_ready();
    steps(b, 3);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    core_lease_drop(&b->core, &b->core.leases[0], "test", &b->out.notes);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    assert_check_fails(site_cut(&b->core, &b->out.notes));
    assert_check_fails(site_rebased(&b->core, &b->out.notes));
    bench_free(b);
}
