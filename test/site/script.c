/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <string.h>

void event(struct bench *b, const struct site_event *ev) {
    site_step(&b->core, b->now, ev, &b->out);
}

void tick(struct bench *b) {
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

struct bench *bench_new(void) {
    struct bench *b = mem_alloc(1, sizeof *b);
    struct site_settings s = settings();
    struct id128 boot = {{9}};
    site_init(&b->core, &s, &boot);
    site_out_init(&b->out);
    b->now = SECOND;
    b->tok = 100;
    return b;
}

void bench_free(struct bench *b) {
    site_out_fini(&b->out);
    mem_free(b);
}

struct wire_answer *answer(struct bench *b, enum wire_code code) {
    assert_true(b->core.control.busy);
    memset(&b->a, 0, sizeof b->a);
    b->a.kind = b->core.control.request.kind;
    b->a.code = code;
    b->a.term = 1;
    return &b->a;
}

void deliver(struct bench *b) {
    event(b,
          &(struct site_event){.kind = SITE_ANSWER, .id = b->core.control.id, .u.answer = &b->a});
}

uint64_t round_sync_tokens;

struct wire_round round_at(uint64_t head) {
    bool synchronous = head * 100 < round_sync_tokens;
    return (struct wire_round){.head = head,
                               .tokens = head * 100,
                               .tokens_per_step = 40,
                               .steps_target = synchronous ? 1 : 3,
                               .sync_tokens = round_sync_tokens};
}

void expect(const struct bench *b, enum wire_kind kind) {
    assert_true(b->core.control.busy);
    assert_string_equal(wire_kind_name(b->core.control.request.kind), wire_kind_name(kind));
}

void let_in(struct bench *b) {
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

void join(struct bench *b) {
    event(b, &(struct site_event){.kind = SITE_START});
    let_in(b);
}

void version_here(struct bench *b, uint64_t version) {
    struct site_event ev = {.kind = SITE_DOWNLOADED};
    ev.u.download.version = version;
    ev.u.download.tokens = version * 100;
    event(b, &ev);
}

void grant(struct bench *b, uint64_t start, uint64_t count) {
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

void nothing_to_lease(struct bench *b) {
    answer(b, WIRE_OK)->u.lease =
        (struct wire_lease_answer){.wait_ms = 1000, .round = round_at(b->head)};
    deliver(b);
}

void beat(struct bench *b, uint64_t tok, enum lease_verdict verdict, uint64_t keep) {
    assert_true(b->core.beat.busy);
    struct wire_answer h = {.kind = WIRE_HEARTBEAT};
    h.u.heartbeat.hb_seq = b->core.hb_seq;
    h.u.heartbeat.round = round_at(b->head);
    h.u.heartbeat.leases_count = tok > 0;
    h.u.heartbeat.leases[0] = (struct wire_lease_state){tok, verdict, keep};
    event(b, &(struct site_event){.kind = SITE_BEAT_ANSWER, .id = b->core.beat.id, .u.answer = &h});
}

struct bench *bench_loaded(void) {
    struct bench *b = bench_new();
    join(b);
    version_here(b, 0);
    assert_int_equal(site_duty(&b->core), SITE_DUTY_LOAD);
    site_loaded(&b->core);
    beat(b, 0, LEASE_KEPT, 0);
    tick(b);
    return b;
}

struct bench *bench_ready(void) {
    struct bench *b = bench_loaded();
    grant(b, 0, 20);
    grant(b, 20, 20);
    return b;
}

uint64_t take(struct bench *b, uint64_t n) {
    uint64_t got = site_take(&b->core, n, b->taken);
    tick(b);
    return got;
}

void trained(struct bench *b, uint64_t n) {
    assert_int_equal(site_trained(&b->core, b->now, n, 2.0, 0.5, NULL), BRG_OK);
    tick(b);
}

void steps(struct bench *b, int count) {
    for (int i = 0; i < count; i++) {
        assert_int_equal(take(b, 4), 4);
        trained(b, 4);
    }
}

struct site_delta *cut(struct bench *b) {
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

struct wire_commit_answer *outcome(struct bench *b, enum outcome o, uint64_t version) {
    struct wire_answer *a = answer(b, WIRE_OK);
    a->u.commit.outcome = o;
    a->u.commit.version = version;
    a->u.commit.round = round_at(b->head);
    return &a->u.commit;
}

void staged_with_rest(struct bench *b, uint64_t start, uint64_t count) {
    struct wire_commit_answer *a = outcome(b, OUTCOME_STAGED, 0);
    a->has_rest = true;
    a->rest = (struct wire_lease){
        .tok = ++b->tok, .nonce = 1, .ranges_count = 1, .count = count, .ranges = {{start, count}}};
    deliver(b);
}

void beat_answer(struct bench *b, enum wire_code code) {
    memset(&b->a, 0, sizeof b->a);
    b->a.kind = WIRE_HEARTBEAT;
    b->a.code = code;
    b->a.term = 1;
    event(b,
          &(struct site_event){.kind = SITE_BEAT_ANSWER, .id = b->core.beat.id, .u.answer = &b->a});
}
