/* SPDX-License-Identifier: Apache-2.0 */
/* The core under a script: what a site does where the hub is away, orders something or has other news. */
#include "script.h"

#include <string.h>

TEST(site_core_a_step_on_samples_that_went_away_is_undone) {
    struct bench *b = bench_ready();
    assert_int_equal(take(b, 4), 4);
    core_lease_drop(&b->core, &b->core.leases[0], "test", &b->out.notes);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE); /* nothing is in the weights yet */
    trained(b, 4);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(take(b, 4), 4);
    trained(b, 4);
    assert_int_equal(b->core.seg.samples, 4);
    bench_free(b);
}

TEST(site_core_never_repeats_samples_while_the_hub_is_away) {
    struct bench *b = bench_ready();
    uint8_t seen[40] = {0};
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    for (;;) {
        uint64_t n = take(b, 4);
        if (n == 0) break;
        for (uint64_t i = 0; i < n; i++) assert_int_equal(seen[b->taken[i].position]++, 0);
        trained(b, n);
        if (site_duty(&b->core) == SITE_DUTY_CUT) (void)site_cut(&b->core, &b->out.notes);
    }
    for (int i = 0; i < 40; i++) assert_int_equal(seen[i], 1);
    bench_free(b);
}

TEST(site_core_says_once_that_the_hub_is_away_and_backs_off) {
    struct bench *b = bench_loaded();
    int told = 0;
    time_ns last = 0, longest = 0;
    for (int i = 0; i < 200; i++) {
        if (b->core.control.busy && !b->core.control.lost) {
            if (last > 0 && b->now - last > longest) longest = b->now - last;
            last = b->now;
            event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
            told += strstr(buf_cstr(&b->out.notes), "hub_unreachable") != NULL;
        }
        b->now += SECOND / 2;
        tick(b);
    }
    assert_int_equal(told, 1);
    assert_true(longest >= 6 * SECOND);
    assert_true(longest <= 11 * SECOND);
    bench_free(b);
}

TEST(site_core_an_old_answer_changes_nothing) {
    struct bench *b = bench_loaded();
    expect(b, WIRE_LEASE);
    uint64_t id = b->core.control.id;
    struct wire_answer old = *answer(b, WIRE_OK);
    old.u.lease.granted = true;
    old.u.lease.lease =
        (struct wire_lease){.tok = 500, .ranges_count = 1, .count = 5, .ranges = {{90, 5}}};
    nothing_to_lease(b);
    event(b, &(struct site_event){.kind = SITE_ANSWER, .id = id, .u.answer = &old});
    assert_null(core_lease_find(&b->core, 500));
    bench_free(b);
}

TEST(site_core_hub_behind_is_held_and_told_once) {
    struct bench *b = bench_new();
    event(b, &(struct site_event){.kind = SITE_START});
    int told = 0;
    for (int i = 0; i < 100; i++) {
        if (b->core.control.busy && !b->core.control.lost) {
            answer(b, WIRE_HUB_BEHIND);
            deliver(b);
            told += strstr(buf_cstr(&b->out.notes), "hub_behind") != NULL;
        }
        b->now += SECOND;
        tick(b);
    }
    assert_int_equal(told, 1);
    assert_int_equal(b->core.state, SITE_JOINING);
    bench_free(b);
}

TEST(site_core_draining_hands_in_gives_the_rest_back_and_leaves) {
    struct bench *b = bench_ready();
    steps(b, 1);
    if (b->core.control.busy) nothing_to_lease(b);
    event(b, &(struct site_event){.kind = SITE_CLOSE});
    assert_int_equal(take(b, 4), 0);
    struct site_delta *d = cut(b);
    assert_false(d->c.keep_rest);
    outcome(b, OUTCOME_STAGED, 0);
    deliver(b);
    expect(b, WIRE_LEAVE);
    answer(b, WIRE_OK);
    deliver(b);
    assert_int_equal(b->core.state, SITE_GONE);
    bench_free(b);
}

TEST(site_core_a_heartbeat_that_crosses_its_leave_changes_nothing) {
    for (int late = 0; late < 2; late++) { /* its answer comes before, or after the one to LEAVE */
        struct bench *b = bench_ready();
        if (b->core.control.busy) nothing_to_lease(b);
        b->now += 20 * SECOND;
        tick(b);
        assert_true(b->core.beat.busy);
        event(b, &(struct site_event){.kind = SITE_CLOSE});
        expect(b, WIRE_LEAVE);
        if (!late) beat_answer(b, WIRE_UNKNOWN_SITE);
        assert_int_equal(b->core.state, SITE_LEAVING);
        answer(b, WIRE_OK);
        deliver(b);
        b->core.beat.busy = true; /* as it is where the answer is still on its way */
        if (late) beat_answer(b, WIRE_UNKNOWN_SITE);
        assert_int_equal(b->core.state, SITE_GONE);
        bench_free(b);
    }
}

TEST(site_core_an_answer_after_the_end_changes_nothing) {
    struct bench *b = bench_ready();
    steps(b, 5); /* it asks for a lease */
    assert_true(b->core.control.busy);
    b->now += 20 * SECOND;
    tick(b);
    beat_answer(b, WIRE_FENCED);
    assert_int_equal(b->core.state, SITE_STOPPED);
    answer(b, WIRE_UNKNOWN_SITE);
    deliver(b);
    assert_int_equal(b->core.state, SITE_STOPPED);
    bench_free(b);
}

TEST(site_core_joins_anew_when_the_hub_does_not_know_it) {
    struct bench *b = bench_ready();
    steps(b, 5);
    answer(b, WIRE_UNKNOWN_SITE);
    deliver(b);
    expect(b, WIRE_JOIN);
    assert_false(id_equal(&b->core.control.request.u.join.boot, &b->core.boot));
    assert_int_equal(b->core.control.request.u.join.resume_count, 2);
    assert_int_equal(take(b, 4), 4); /* the trainer does not wait for that */
    bench_free(b);
}

/* The run went back to version 0 while this site was at 2, and the hub was away as it asked for it. */
TEST(site_core_downloads_in_vain_do_not_hide_an_older_head) {
    struct bench *b = bench_new();
    b->head = 2;
    join(b);
    version_here(b, 2);
    site_loaded(&b->core);
    tick(b);
    expect(b, WIRE_LEASE);
    answer(b, WIRE_UNKNOWN_SITE);
    deliver(b);
    b->head = 0;
    let_in(b);
    assert_int_equal(b->core.state, SITE_SYNCING);
    for (int i = 0; i < 6; i++) {
        b->now += 100 * SECOND;
        tick(b);
        assert_true(b->core.downloading);
        event(b, &(struct site_event){.kind = SITE_DOWNLOAD_FAILED});
    }
    beat(b, 0, LEASE_KEPT, 0);
    b->now += 100 * SECOND;
    tick(b);
    assert_true(b->core.downloading);
    assert_int_equal(b->core.download_version, 0);
    bench_free(b);
}

TEST(site_core_the_rate_follows_global_tokens_and_own_steps) {
    struct bench *b = bench_ready();
    b->core.base_tokens = 1000;
    assert_true(site_lr_tokens(&b->core) == 1040); /* the end of the first step of 40 tokens */
    steps(b, 2);
    assert_true(site_lr_tokens(&b->core) == 1120);
    b->core.set.warmup_steps = 10;
    assert_true(site_lr(&b->core) < 0.5 * 0.31); /* third step of ten */
    bench_free(b);
}

/* What is due within the next half second, or not at all. */
static bool asks_soon(struct bench *b) {
    b->now += SECOND / 2;
    tick(b);
    return b->core.control.busy && !b->core.control.lost;
}

/* A pause that grew while the hub was away is not waited out once the hub is heard: a heartbeat says it. */
TEST(site_core_what_waits_goes_on_when_a_heartbeat_is_answered) {
    struct bench *b = bench_ready();
    steps(b, 3);
    struct site_delta *d = cut(b);
    expect(b, WIRE_COMMIT);
    d->state = PENDING_UPLOAD; /* beside it: a transfer each way that failed */
    b->core.upload_did = d->c.did;
    for (int i = 0; i < 6; i++) {
        if (b->core.control.busy && !b->core.control.lost)
            event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
        b->now = b->core.control_at;
        tick(b);
    }
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    for (int i = 0; i < 6; i++) {
        event(b, &(struct site_event){.kind = SITE_UPLOAD_FAILED, .did = d->c.did});
        event(b, &(struct site_event){.kind = SITE_DOWNLOAD_FAILED});
    }
    assert_true(b->core.control_at > b->now + 5 * SECOND);
    assert_true(b->core.upload_at > b->now && b->core.download_at > b->now);
    while (!b->core.beat.busy) {
        assert_true(b->core.beat_at > b->now && b->core.beat_at < b->core.control_at);
        b->now = b->core.beat_at;
        tick(b);
    }
    beat(b, 0, LEASE_KEPT, 0);
    assert_true(asks_soon(b));
    assert_true(b->core.upload_at <= b->now && b->core.download_at <= b->now);
    bench_free(b);
}

/* Heartbeats that are lost say nothing of requests: two lost requests make the second pause, not a longer one. */
TEST(site_core_lost_heartbeats_do_not_lengthen_the_pause) {
    struct bench *b = bench_loaded();
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    for (int i = 0; i < 20; i++) {
        if (!b->core.beat.busy) b->now = b->core.beat_at;
        b->core.control_at = b->now + 100 * SECOND; /* out of the way */
        tick(b);
        if (b->core.beat.busy)
            event(b, &(struct site_event){.kind = SITE_BEAT_LOST, .id = b->core.beat.id});
    }
    b->now = b->core.control_at;
    tick(b);
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    assert_true(b->core.control.lost && b->core.offline);
    assert_true(b->core.control_at < b->now + 3 * SECOND);
    bench_free(b);
}
