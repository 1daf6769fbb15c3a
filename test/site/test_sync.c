/* SPDX-License-Identifier: Apache-2.0 */
/* The core in synchronous rounds: one gradient a version, of that version alone; nothing of it in a local checkpoint;
 * and a ramp where the trainer's own moments begin. */
#include "script.h"

#include <string.h>

enum { RAMP = 20 };

/* Joined, version 0 loaded, two leases of 20 samples; the first two versions are synchronous. */
static struct bench *ready(void) {
    struct bench *b = bench_new();
    round_sync_tokens = 200;
    b->core.set.gradients = true;
    b->core.set.warmup_cold = RAMP;
    join(b);
    version_here(b, 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_LOAD);
    site_loaded(&b->core);
    beat(b, 0, LEASE_KEPT, 0);
    tick(b);
    grant(b, 0, 20);
    grant(b, 20, 20);
    assert_true(site_gradients(&b->core));
    return b;
}

/* The hub has merged what is pending into `version`, and the site has rebased on it. */
static void merged(struct bench *b, uint64_t version) {
    b->now += 20 * SECOND;
    b->head = b->core.round.head = version; /* a heartbeat told */
    for (int i = 0; i < 5 && b->core.deltas[0].state != PENDING_MERGED; i++) {
        tick(b);
        if (b->core.control.request.kind == WIRE_LEASE) nothing_to_lease(b);
        expect(b, WIRE_OUTCOME);
        outcome(b, OUTCOME_MERGED, version);
        deliver(b);
    }
    version_here(b, version);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_REBASE);
    site_rebased(&b->core, &b->out.notes);
}

TEST(site_T8_one_gradient_a_version_and_nothing_is_taken_until_the_next) {
    struct bench *b = ready();
    uint64_t at = 0;
    for (uint64_t version = 0; version < 2; version++) {
        assert_int_equal(take(b, 4), 4);
        assert_int_equal(take(b, 4),
                         0); /* a trainer that takes ahead does not get a second batch */
        trained(b, 4);
        assert_int_equal(take(b, 4), 0);
        struct site_delta *d = cut(b);
        assert_int_equal(d->c.codec, CODEC_GRADIENT);
        assert_int_equal(d->c.base, version);
        assert_int_equal(d->c.tokens, 40);
        assert_false(site_delta_local(d));
        assert_int_equal(take(b, 4), 0);
        at += 4;
        staged_with_rest(b, at, 20 - at);
        assert_int_equal(take(b, 4), 0);
        assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
        merged(b, version + 1);
    }
    assert_false(site_gradients(&b->core)); /* 200 tokens: the phase is over */
    steps(b, 3);
    assert_int_equal(cut(b)->c.codec, CODEC_FP32);
    bench_free(b);
}

TEST(site_T8_a_gradient_that_the_head_overtook_is_not_handed_in) {
    struct bench *b = ready();
    steps(b, 1);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    b->head = b->core.round.head = 1; /* the others were faster */
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(b->core.seg.samples, 0);
    assert_int_equal(take(b, 4), 0); /* of version 0 no gradient is wanted any more */
    version_here(b, 1);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_REBASE);
    site_rebased(&b->core, &b->out.notes);
    assert_int_equal(take(b, 4), 4);
    assert_int_equal(b->taken[0].position, 0); /* the same samples again */
    bench_free(b);
}

TEST(site_S2_a_gradient_is_in_no_local_checkpoint) {
    struct bench *b = ready(), *c = bench_new();
    struct err e;
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    c->core.set.gradients = true;
    c->core.round.sync_tokens = round_sync_tokens;
    steps(b, 1);
    assert_int_equal(b->core.seg.samples, 4);
    site_save(&b->core, &saved);
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    site_check(&c->core);
    assert_true(site_gradients(&c->core));
    assert_int_equal(c->core.seg.samples, 0);
    assert_int_equal(c->core.seg.steps, 0);
    assert_int_equal(c->core.leases[0].done, 0);
    assert_int_equal(c->core.leases_count, 2);
    bench_free(b);
    bench_free(c);
}

/* A phase that begins while a displacement is in the weights: it fits no round, and its samples come again. */
TEST(site_S3_work_of_the_other_kind_is_given_back_when_the_setting_changes) {
    struct bench *b = bench_ready(), *c = bench_new();
    struct err e;
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    b->core.set.gradients = c->core.set.gradients = true;
    steps(b, 2);
    site_save(&b->core, &saved);
    c->core.round.sync_tokens = 200; /* the run's description says so at the next start */
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    assert_int_equal(site_duty(&c->core), SITE_DUTY_NONE); /* it has not begun */
    assert_true(c->core.reset_due);
    round_sync_tokens = 200;
    b->now += 20 * SECOND;
    tick(b);
    beat(b, b->core.leases[0].w.tok, LEASE_KEPT, 20);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_true(site_gradients(&b->core));
    assert_int_equal(b->core.leases[0].done, 0);
    bench_free(b);
    bench_free(c);
}

TEST(site_the_rate_rises_anew_where_the_trainers_own_moments_begin) {
    struct bench *b = ready();
    b->core.set.warmup_steps = 0;
    for (uint64_t version = 0; version < 2; version++) {
        assert_true(site_lr(&b->core) == 0.5);
        steps(b, 1);
        cut(b);
        staged_with_rest(b, 4 * (version + 1), 16 - 4 * version);
        merged(b, version + 1);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(site_lr(&b->core) == 0.5 * (i + 1) / RAMP);
        steps(b, 1);
    }
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    struct bench *c = bench_new();
    struct err e;
    site_save(&b->core, &saved);
    assert_int_equal(site_load(&c->core, saved.data, saved.bytes_count, &e), BRG_OK);
    assert_true(site_lr(&c->core) == 0.5 * 4 / RAMP); /* a restart does not begin it again */
    bench_free(b);
    bench_free(c);
}

TEST(site_a_trainer_without_gradients_stops_at_a_synchronous_round) {
    struct bench *b = bench_new();
    round_sync_tokens = 200;
    join(b);
    assert_int_equal(b->core.state, SITE_STOPPED);
    assert_int_equal(b->core.stop_status, BRG_E_REFUSED);
    assert_non_null(strstr(b->core.stop_text, "outer.synchronous"));
    bench_free(b);
}

/* The run goes back while a batch is being trained: it is void, and no step of the segment that begins then. Counted as
 * one it left the site with its share done and nothing to hand in, for ever. */
TEST(site_a_void_batch_is_no_step_of_the_next_gradient) {
    struct bench *b = ready();
    assert_int_equal(take(b, 4), 4);
    site_forget(&b->core, "the hub went back to an older version", &b->out.notes);
    trained(b, 4);
    b->core.round.head = 0;
    version_here(b, 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_LOAD);
    site_loaded(&b->core);
    tick(b);
    assert_int_equal(b->core.seg.steps, 0);
    steps(b, 1);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    bench_free(b);
}

TEST(site_who_waits_for_a_slow_site_asks_less_and_less_often) {
    struct bench *b = ready();
    steps(b, 1);
    cut(b);
    staged_with_rest(b, 4, 16);
    time_ns first = 0, pause = 0;
    for (int i = 0; i < 400; i++) {
        if (b->core.beat.busy) beat(b, b->tok, LEASE_KEPT, 16);
        if (b->core.control.busy && b->core.control.request.kind == WIRE_OUTCOME) {
            pause = b->core.ask_at - b->now;
            if (first == 0) first = pause;
            outcome(b, OUTCOME_STAGED, 0);
            deliver(b);
        } else if (b->core.control.busy) {
            nothing_to_lease(b);
        } else {
            time_ns due = site_expiry(&b->core);
            if (due > b->now) b->now = due;
            tick(b);
        }
    }
    assert_true(first == SECOND / 40);
    assert_true(pause >= SECOND); /* an eighth of the time between heartbeats */
    bench_free(b);
}
