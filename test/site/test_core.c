/* SPDX-License-Identifier: Apache-2.0 */
/* The core under a script: each duty of a site (S1-S9) and each invariant (T1-T6), answer by answer. */
#include "../harness.h"

#include <stdio.h>
#include <string.h>

#include "site/core.h"

static const time_ns SECOND = NS_PER_S;

struct bench {
    struct site_core core;
    struct site_out out;
    time_ns now;
    struct wire_answer a;
    uint64_t head, tok;
    struct site_position taken[256];
};

static void event(struct bench *b, const struct site_event *ev) {
    site_step(&b->core, b->now, ev, &b->out);
}

static void tick(struct bench *b) {
    event(b, &(struct site_event){.kind = SITE_TICK});
}

static struct site_settings settings(void) {
    struct site_settings s = {.name = "a",
                              .run = {{1}},
                              .fingerprint = {{2}},
                              .tensors = {{3}},
                              .tokens_per_sample = 10,
                              .elements = 4,
                              .codec = CODEC_FP32,
                              .batch = 4,
                              .pending_max = 1,
                              .steps_target = 3,
                              .seed = 7,
                              .retry_min_ns = NS_PER_S,
                              .retry_max_ns = 8 * (time_ns)NS_PER_S,
                              .answer_ns = TIME_NS_NEVER,
                              .alone_ns = 3 * (time_ns)NS_PER_S,
                              .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.5}};
    return s;
}

static struct bench *bench_new(void) {
    struct bench *b = mem_alloc(1, sizeof *b);
    struct site_settings s = settings();
    struct id128 boot = {{9}};
    site_init(&b->core, &s, &boot);
    site_out_init(&b->out);
    b->now = SECOND;
    b->tok = 100;
    return b;
}

static void bench_free(struct bench *b) {
    site_out_fini(&b->out);
    mem_free(b);
}

/* An answer to the control request under way. */
static struct wire_answer *answer(struct bench *b, enum wire_code code) {
    assert_true(b->core.control.busy);
    memset(&b->a, 0, sizeof b->a);
    b->a.kind = b->core.control.request.kind;
    b->a.code = code;
    b->a.term = 1;
    return &b->a;
}

static void deliver(struct bench *b) {
    event(b,
          &(struct site_event){.kind = SITE_ANSWER, .id = b->core.control.id, .u.answer = &b->a});
}

static struct wire_round round_at(uint64_t head) {
    return (struct wire_round){
        .head = head, .tokens = head * 100, .tokens_per_step = 40, .steps_target = 3};
}

static void expect(const struct bench *b, enum wire_kind kind) {
    assert_true(b->core.control.busy);
    assert_string_equal(wire_kind_name(b->core.control.request.kind), wire_kind_name(kind));
}

static void let_in(struct bench *b) {
    expect(b, WIRE_JOIN);
    struct wire_answer *a = answer(b, WIRE_OK);
    a->u.join.inc = 5;
    a->u.join.heartbeat_ms = 10000;
    a->u.join.ttl_ms = 60000;
    a->u.join.round = round_at(b->head);
    for (uint32_t i = 0; i < b->core.control.request.u.join.resume_count; i++) {
        a->u.join.leases[i] = (struct wire_lease_state){
            b->core.control.request.u.join.resume[i].tok, LEASE_KEPT, 1000};
        a->u.join.leases_count++;
    }
    deliver(b);
}

static void join(struct bench *b) {
    event(b, &(struct site_event){.kind = SITE_START});
    let_in(b);
}

static void version_here(struct bench *b, uint64_t version) {
    struct site_event ev = {.kind = SITE_DOWNLOADED};
    ev.u.download.version = version;
    ev.u.download.tokens = version * 100;
    event(b, &ev);
}

static void grant(struct bench *b, uint64_t start, uint64_t count) {
    expect(b, WIRE_LEASE);
    struct wire_answer *a = answer(b, WIRE_OK);
    a->u.lease.granted = true;
    a->u.lease.lease = (struct wire_lease){.tok = ++b->tok,
                                           .nonce = b->tok * 3,
                                           .ranges_count = 1,
                                           .count = count,
                                           .ranges = {{start, count}}};
    a->u.lease.round = round_at(b->head);
    deliver(b);
}

static void nothing_to_lease(struct bench *b) {
    answer(b, WIRE_OK)->u.lease =
        (struct wire_lease_answer){.wait_ms = 1000, .round = round_at(b->head)};
    deliver(b);
}

/* An answer to the heartbeat under way; one verdict where tok is not 0. */
static void beat(struct bench *b, uint64_t tok, enum lease_verdict verdict, uint64_t keep) {
    assert_true(b->core.beat.busy);
    struct wire_answer h = {.kind = WIRE_HEARTBEAT};
    h.u.heartbeat.hb_seq = b->core.hb_seq;
    h.u.heartbeat.round = round_at(b->head);
    h.u.heartbeat.leases_count = tok > 0;
    h.u.heartbeat.leases[0] = (struct wire_lease_state){tok, verdict, keep};
    event(b, &(struct site_event){.kind = SITE_BEAT_ANSWER, .id = b->core.beat.id, .u.answer = &h});
}

/* Joined, version 0 loaded, asking for a lease. */
static struct bench *bench_loaded(void) {
    struct bench *b = bench_new();
    join(b);
    version_here(b, 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_LOAD);
    site_loaded(&b->core);
    beat(b, 0, LEASE_KEPT, 0);
    tick(b);
    return b;
}

/* With two leases of 20 samples. */
static struct bench *bench_ready(void) {
    struct bench *b = bench_loaded();
    grant(b, 0, 20);
    grant(b, 20, 20);
    return b;
}

static uint64_t take(struct bench *b, uint64_t n) {
    uint64_t got = site_take(&b->core, n, b->taken);
    tick(b);
    return got;
}

static void trained(struct bench *b, uint64_t n) {
    assert_int_equal(site_trained(&b->core, b->now, n, 2.0, 0.5, NULL), BRG_OK);
    tick(b);
}

static void steps(struct bench *b, int count) {
    for (int i = 0; i < count; i++) {
        assert_int_equal(take(b, 4), 4);
        trained(b, 4);
    }
}

static struct site_delta *cut(struct bench *b) {
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    (void)site_cut(&b->core, &b->out.notes);
    struct site_delta *d = &b->core.deltas[b->core.deltas_count - 1];
    struct site_event ev = {.kind = SITE_DELTA_STORED, .did = d->c.did};
    ev.u.stored.bytes = 144;
    event(b, &ev);
    assert_int_equal(d->state, PENDING_UPLOAD);
    event(b, &(struct site_event){.kind = SITE_UPLOADED, .did = d->c.did});
    if (b->core.control.request.kind == WIRE_LEASE) nothing_to_lease(b);
    expect(b, WIRE_COMMIT);
    return d;
}

static struct wire_commit_answer *outcome(struct bench *b, enum outcome o, uint64_t version) {
    struct wire_answer *a = answer(b, WIRE_OK);
    a->u.commit.outcome = o;
    a->u.commit.version = version;
    a->u.commit.round = round_at(b->head);
    return &a->u.commit;
}

/* The hub keeps the rest [start, start + count) under a new name. */
static void staged_with_rest(struct bench *b, uint64_t start, uint64_t count) {
    struct wire_commit_answer *a = outcome(b, OUTCOME_STAGED, 0);
    a->has_rest = true;
    a->rest = (struct wire_lease){
        .tok = ++b->tok, .nonce = 1, .ranges_count = 1, .count = count, .ranges = {{start, count}}};
    deliver(b);
}

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

/* ---- Behaviour --------------------------------------------------------------------------------------- */

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

static void beat_answer(struct bench *b, enum wire_code code) {
    memset(&b->a, 0, sizeof b->a);
    b->a.kind = WIRE_HEARTBEAT;
    b->a.code = code;
    b->a.term = 1;
    event(b,
          &(struct site_event){.kind = SITE_BEAT_ANSWER, .id = b->core.beat.id, .u.answer = &b->a});
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
