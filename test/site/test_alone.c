/* SPDX-License-Identifier: Apache-2.0 */
/* A site that was restored and finds no hub. What must hold: it trains what its local checkpoint holds
 * and nothing else, hands nothing in before the hub let this process in, and drops what went to
 * somebody else meanwhile. */
#include "../harness.h"

#include <string.h>

#include "site/core.h"

static const time_ns SECOND = NS_PER_S;

struct alone {
    struct site_core core;
    struct site_out out;
    time_ns now;
    struct wire_answer a;
    struct site_position taken[64];
};

static void event(struct alone *b, const struct site_event *ev) {
    site_step(&b->core, b->now, ev, &b->out);
}

static void tick(struct alone *b) {
    event(b, &(struct site_event){.kind = SITE_TICK});
}

static struct alone *process(uint8_t boot_byte) {
    struct alone *b = mem_alloc(1, sizeof *b);
    struct site_settings s = {.name = "a",
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
    struct id128 boot = {{boot_byte}};
    site_init(&b->core, &s, &boot);
    site_out_init(&b->out);
    b->now = SECOND;
    return b;
}

static void end(struct alone *b) {
    site_out_fini(&b->out);
    mem_free(b);
}

static struct wire_answer *answer(struct alone *b, enum wire_kind want) {
    assert_true(b->core.control.busy);
    assert_int_equal(b->core.control.request.kind, want);
    memset(&b->a, 0, sizeof b->a);
    b->a.kind = want;
    b->a.code = WIRE_OK;
    b->a.term = 1;
    return &b->a;
}

static void deliver(struct alone *b) {
    event(b,
          &(struct site_event){.kind = SITE_ANSWER, .id = b->core.control.id, .u.answer = &b->a});
}

/* The verdict of the hub about the two leases; 0: gone. */
static void let_in(struct alone *b, uint64_t keep_first, uint64_t keep_second) {
    struct wire_join_answer *j = &answer(b, WIRE_JOIN)->u.join;
    j->inc = b->core.inc + 5;
    j->heartbeat_ms = 10000;
    j->ttl_ms = 60000;
    j->round.steps_target = 3;
    uint64_t keep[2] = {keep_first, keep_second};
    for (uint32_t i = 0; i < 2; i++) {
        enum lease_verdict v = keep[i] > 0 ? LEASE_KEPT : LEASE_GONE;
        j->leases[j->leases_count++] = (struct wire_lease_state){101 + i, v, keep[i]};
    }
    deliver(b);
}

static void grant(struct alone *b, uint64_t tok, uint64_t start, uint64_t count) {
    struct wire_lease_answer *l = &answer(b, WIRE_LEASE)->u.lease;
    l->granted = true;
    l->lease = (struct wire_lease){
        .tok = tok, .nonce = tok, .ranges_count = 1, .count = count, .ranges = {{start, count}}};
    l->round.steps_target = 3;
    deliver(b);
}

static uint64_t step(struct alone *b) {
    uint64_t n = site_take(&b->core, 4, b->taken);
    if (n > 0) assert_int_equal(site_trained(&b->core, b->now, n, 2.0, 0.5, NULL), BRG_OK);
    tick(b);
    return n;
}

/* A process with two leases of 8 samples and one step behind it dies; this is the next one. */
static struct alone *restored(void) {
    struct alone *b = process(1);
    event(b, &(struct site_event){.kind = SITE_START});
    let_in(b, 0, 0);
    struct site_event here = {.kind = SITE_DOWNLOADED};
    event(b, &here);
    site_loaded(&b->core);
    tick(b);
    grant(b, 101, 0, 8);
    grant(b, 102, 8, 8);
    assert_int_equal(step(b), 4);
    AUTO_BUF struct buf saved = {.bytes_max = 1 << 20};
    site_save(&b->core, &saved);
    end(b);
    struct alone *next = process(2);
    struct err e;
    assert_int_equal(site_load(&next->core, saved.data, saved.bytes_count, &e), BRG_OK);
    event(next, &(struct site_event){.kind = SITE_START});
    return next;
}

static void hub_is_away(struct alone *b) {
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    assert_true(b->core.alone);
}

TEST(site_alone_a_hub_that_does_not_answer_is_waited_for_a_while) {
    struct alone *b = restored();
    assert_int_equal(step(b), 0); /* S7 */
    assert_true(site_expiry(&b->core) <= b->now + 3 * SECOND);
    b->now += 3 * SECOND;
    tick(b);
    assert_int_equal(step(b), 4);
    assert_int_equal(b->taken[0].position, 4); /* on from the checkpoint */
    end(b);
}

TEST(site_alone_all_that_it_holds_and_no_more) {
    struct alone *b = restored();
    hub_is_away(b);
    assert_int_equal(step(b) + step(b) + step(b), 12);
    assert_int_equal(step(b), 0);
    assert_int_equal(b->core.leases_count, 2);
    end(b);
}

TEST(site_alone_without_weights_there_is_nothing_to_train) {
    struct alone *b = process(3);
    event(b, &(struct site_event){.kind = SITE_START});
    event(b, &(struct site_event){.kind = SITE_LOST, .id = b->core.control.id});
    b->now += 60 * SECOND;
    tick(b);
    assert_false(b->core.alone);
    end(b);
}

TEST(site_T7_nothing_is_cut_before_the_hub_let_this_process_in) {
    struct alone *b = restored();
    hub_is_away(b);
    for (int i = 0; i < 3; i++) (void)step(b); /* its share is done, and it has no more */
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
    assert_check_fails(site_cut(&b->core, &b->out.notes));
    b->now += 20 * SECOND;
    tick(b);
    let_in(b, 8, 8);
    assert_false(b->core.alone);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_CUT);
    const struct site_delta *d = site_cut(&b->core, &b->out.notes);
    assert_int_equal(d->c.parts_count, 2); /* what was done alone is handed in, whole */
    assert_int_equal(d->c.parts[0].done + d->c.parts[1].done, 16);
    end(b);
}

TEST(site_alone_work_on_what_went_to_somebody_else_is_thrown_away) {
    struct alone *b = restored();
    hub_is_away(b);
    (void)step(b);
    b->now += 20 * SECOND;
    tick(b);
    let_in(b, 8, 0); /* the second is gone, and nothing was done on it */
    assert_int_equal(site_duty(&b->core), SITE_DUTY_NONE);
    assert_int_equal(b->core.seg.samples, 8);
    end(b);
    b = restored();
    hub_is_away(b);
    (void)step(b);
    (void)step(b);
    b->now += 20 * SECOND;
    tick(b);
    let_in(b, 8, 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_RESET);
    site_reset(&b->core, &b->out.notes);
    assert_int_equal(b->core.seg.samples, 0);
    assert_int_equal(step(b), 4);
    assert_int_equal(b->taken[0].position, 0); /* what is its own still comes again */
    end(b);
}

TEST(site_alone_a_twin_that_came_first_ends_it) {
    struct alone *b = restored();
    hub_is_away(b);
    (void)step(b);
    b->now += 20 * SECOND;
    tick(b);
    answer(b, WIRE_JOIN)->code = WIRE_FENCED;
    deliver(b);
    assert_int_equal(b->core.state, SITE_STOPPED);
    assert_int_equal(step(b), 0);
    end(b);
}
