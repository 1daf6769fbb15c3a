/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronous rounds in the machine: who is waited for, what a round takes, how the phase ends, and that the journal
 * and a snapshot give the same state in each of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"
#include "machine_kit.h"

enum { POSITIONS = 400, PHASE = 40 }; /* of which so many samples are trained synchronously */
struct world {
    struct kit k;
    uint32_t inc[3], did;
    uint64_t req[3];
};
static const char *const names[3] = {"a", "b", "c"};

static struct hub_settings settings(double share) {
    struct hub_settings s = kit_settings(POSITIONS, 1);
    s.schedule = (struct schedule){.kind = SCHEDULE_CONSTANT, .lr = 0.01, .tokens_total = 1e6};
    s.eps = 1e-8;
    s.clip = 1;
    s.weight_decay = 0.1;
    s.sync_tokens = share * KIT_SEQ_LEN;
    return s;
}

static void site_joins(struct world *w, uint32_t i, uint8_t boot) {
    struct wire_request q = kit_join_request(&w->k, names[i], boot);
    q.u.join.gradients = true;
    const struct wire_answer *a = kit_send(&w->k, &q);
    assert_int_equal(a->code, WIRE_OK);
    w->inc[i] = a->u.join.inc;
    w->req[i] = 0;
}

static void set_up(struct world *w, const struct hub_settings *s, uint32_t sites) {
    memset(w, 0, sizeof *w);
    kit_open(&w->k, s);
    for (uint32_t i = 0; i < sites; i++) site_joins(w, i, (uint8_t)(i + 1));
}

/* A contribution of four samples on this base; gives the outcome. */
static enum outcome hand_in(struct world *w, uint32_t i, enum codec codec, uint64_t base) {
    struct wire_lease l = kit_lease(&w->k, names[i], w->inc[i], ++w->req[i], 4);
    struct wire_request q = kit_commit_request(&w->k, names[i], w->inc[i], ++w->did, &l, l.count);
    q.u.commit.codec = codec;
    q.u.commit.base = base;
    q.u.commit.steps = 1;
    const struct wire_answer *a = kit_send(&w->k, &q);
    assert_int_equal(a->code, WIRE_OK);
    return a->u.commit.outcome;
}

static uint64_t head(const struct world *w) {
    return kit_view(&w->k).head;
}

static void gradient(struct world *w, uint32_t i) {
    assert_int_equal(hand_in(w, i, CODEC_GRADIENT, head(w)), OUTCOME_STAGED);
}

static uint64_t step_of(const struct hub *h, uint64_t version) {
    const struct hub_version *v = hub_version_of(h, version);
    assert_non_null(v);
    return v->past.adamw;
}

static double momentum(const struct world *w, uint64_t version) {
    struct hub_version_view x = {0};
    assert_true(hub_version_find(w->k.h, version, &x));
    return x.mu_r;
}

/* The same state from the journal alone, and from a snapshot. */
static void check_state(const struct world *w) {
    struct hub *again = kit_replay(&w->k, UINT64_MAX), *restored = hub_create(&w->k.s, 5);
    struct hash a = hub_digest(w->k.h), b = hub_digest(again);
    struct err e = {0};
    struct buf snapshot, second;
    buf_init(&snapshot, SIZE_MAX / 2);
    buf_init(&second, SIZE_MAX / 2);
    assert_true(hash_equal(&a, &b));
    hub_snapshot(w->k.h, &snapshot);
    if (hub_restore(restored, w->k.seq, snapshot.data, snapshot.bytes_count, &e) != BRG_OK)
        fail_msg("%s", e.text);
    b = hub_digest(restored);
    assert_true(hash_equal(&a, &b));
    hub_snapshot(restored, &second);
    assert_int_equal(snapshot.bytes_count, second.bytes_count);
    assert_memory_equal(snapshot.data, second.data, snapshot.bytes_count);
    for (uint64_t v = 0; v <= head(w); v++)
        assert_int_equal(step_of(restored, v), step_of(w->k.h, v));
    buf_fini(&snapshot);
    buf_fini(&second);
    hub_destroy(again);
    hub_destroy(restored);
}

TEST(hub_a_synchronous_round_waits_for_every_live_site_and_for_no_dead_one) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    set_up(&w, &s, 3);
    for (uint32_t i = 0; i < 3; i++) /* their weights are here: from now on they are waited for */
        kit_heartbeat(&w.k, names[i], w.inc[i], NULL);
    gradient(&w, 0);
    gradient(&w, 1);
    kit_wait(&w.k, KIT_TTL - 10); /* grace is over since long, c is slow */
    assert_false(w.k.has_plan);
    gradient(&w, 2);
    assert_true(w.k.has_plan);
    assert_int_equal(w.k.plan_parts, 3);
    kit_merge(&w.k);
    assert_int_equal(step_of(w.k.h, 1), 1);
    gradient(&w, 0);
    gradient(&w, 1);
    assert_false(w.k.has_plan);
    for (int i = 0; i < 5 && !w.k.has_plan;
         i++) { /* c is silent: its lease time ends, and it is out */
        kit_heartbeat(&w.k, "a", w.inc[0], NULL);
        kit_heartbeat(&w.k, "b", w.inc[1], NULL);
        kit_wait(&w.k, 60);
    }
    assert_true(w.k.has_plan);
    assert_int_equal(w.k.plan_parts, 2);
    kit_merge(&w.k);
    assert_int_equal(step_of(w.k.h, 2), 2);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_a_round_takes_gradients_of_the_head_or_displacements_and_never_both) {
    struct world w;
    struct hub_settings s = settings(PHASE);
    s.quorum = 1;
    set_up(&w, &s, 1);
    assert_int_equal(hand_in(&w, 0, CODEC_FP32, 0), OUTCOME_REJECTED);
    assert_non_null(strstr(w.k.out.answer.u.commit.reason, "outer.synchronous"));
    uint64_t merged = 0;
    for (; merged < PHASE; merged += 4) {
        gradient(&w, 0);
        kit_merge(&w.k);
        if (merged == 8) kit_kill(&w.k);
        if (merged == 0) { /* its samples come again, and nothing of it is in the model */
            assert_int_equal(hand_in(&w, 0, CODEC_GRADIENT, 0), OUTCOME_REJECTED);
            assert_non_null(strstr(w.k.out.answer.u.commit.reason, "older version"));
        }
        assert_int_equal(step_of(w.k.h, head(&w)), merged / 4 + 1);
        check_state(&w);
    }
    assert_non_null(strstr(buf_cstr(&w.k.out.notes), "ev=synchronous_over"));
    uint64_t last = head(&w);
    assert_int_equal(hand_in(&w, 0, CODEC_GRADIENT, last), OUTCOME_REJECTED);
    assert_non_null(strstr(w.k.out.answer.u.commit.reason, "phase is over"));
    /* A displacement that was cut from a synchronous version fits nowhere. */
    assert_int_equal(hand_in(&w, 0, CODEC_FP32, last - 1), OUTCOME_REJECTED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hand_in(&w, 0, CODEC_FP32, head(&w)), OUTCOME_STAGED);
        kit_merge(&w.k);
        assert_int_equal(step_of(w.k.h, head(&w)), 0);
        if (i == 0) kit_kill(&w.k);
        check_state(&w);
    }
    /* What lay in the momentum's place was a moment: it began at zero, once. */
    assert_true(momentum(&w, last + 1) == 0);
    assert_true(momentum(&w, last + 2) > 0);
    kit_close(&w.k);
}

/* The worker computes while a late joiner hands in: its gradient is of the version before. */
TEST(hub_H24_a_gradient_that_the_head_overtook_is_dropped_and_its_samples_come_back) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    set_up(&w, &s, 1);
    gradient(&w, 0);
    assert_true(w.k.has_plan);
    site_joins(&w, 1, 7);
    gradient(&w, 1);
    assert_int_equal(kit_view(&w.k).counts.staged, 8);
    kit_merge(&w.k);
    assert_non_null(strstr(buf_cstr(&w.k.out.notes), "ev=gradient_dropped site=b"));
    struct hub_view v = kit_view(&w.k);
    assert_int_equal(v.counts.staged, 0);
    assert_int_equal(v.counts.merged, 4);
    assert_int_equal(v.counts.available, POSITIONS - 4);
    assert_false(w.k.has_plan);
    gradient(&w, 0);
    gradient(&w, 1);
    assert_int_equal(w.k.plan_parts, 2);
    kit_merge(&w.k);
    assert_int_equal(step_of(w.k.h, 2), 2);
    check_state(&w);
    kit_close(&w.k);
}

/* The phase is a setting, and a hub may start with another one. */
TEST(hub_H24_what_is_staged_for_the_other_kind_of_round_is_dropped_at_the_start) {
    for (int first = 0; first < 2; first++) {
        struct world w;
        struct hub_settings s = settings(first ? POSITIONS : 0);
        set_up(&w, &s, 2);
        assert_int_equal(hand_in(&w, 0, first ? CODEC_GRADIENT : CODEC_FP32, 0), OUTCOME_STAGED);
        w.k.s.sync_tokens = first ? 0 : POSITIONS * KIT_SEQ_LEN;
        kit_kill(&w.k);
        assert_int_equal(kit_view(&w.k).counts.staged, 0);
        assert_int_equal(kit_view(&w.k).counts.merged, 0);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(hand_in(&w, i, first ? CODEC_FP32 : CODEC_GRADIENT, 0),
                             OUTCOME_STAGED);
        kit_merge(&w.k);
        assert_int_equal(step_of(w.k.h, 1), !first);
        check_state(&w);
        kit_close(&w.k);
    }
}

TEST(hub_the_moments_go_on_from_the_version_that_a_rollback_leads_to) {
    struct world w;
    struct hub_settings s = settings(PHASE);
    s.quorum = 1;
    set_up(&w, &s, 1);
    for (int i = 0; i < PHASE / 4; i++) {
        gradient(&w, 0);
        kit_merge(&w.k);
    }
    assert_int_equal(hand_in(&w, 0, CODEC_FP32, head(&w)), OUTCOME_STAGED);
    kit_merge(&w.k);
    struct hub_cmd back = {.kind = HUB_CMD_ROLLBACK};
    back.u.rollback.version = 3;
    assert_int_equal(kit_step(&w.k, &back)->code, WIRE_OK);
    gradient(&w, 0);
    kit_merge(&w.k);
    assert_int_equal(step_of(w.k.h, head(&w)), 4);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_a_version_of_skips_alone_leaves_the_moments) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    s.positions = 8;
    set_up(&w, &s, 1);
    gradient(&w, 0);
    kit_merge(&w.k);
    struct wire_lease l = kit_lease(&w.k, "a", w.inc[0], ++w.req[0], 4);
    struct wire_request q = kit_commit_request(&w.k, "a", w.inc[0], ++w.did, &l, 4);
    struct wire_commit *c = &q.u.commit;
    struct hub_blob_verdict nothing = {0};
    c->codec = CODEC_GRADIENT;
    c->skips_count = 4;
    for (uint32_t i = 0; i < 4; i++) c->skips[i].position = l.ranges[0].start + i;
    c->tokens = c->steps = c->elements = c->bytes = 0;
    memset(&c->blob, 0, sizeof c->blob);
    assert_int_equal(kit_commit(&w.k, &q, &nothing)->u.commit.outcome, OUTCOME_STAGED);
    assert_true(w.k.has_plan); /* nothing else is to come */
    assert_int_equal(w.k.plan_parts, 0);
    kit_merge(&w.k);
    assert_int_equal(step_of(w.k.h, 2), 1);
    check_state(&w);
    kit_close(&w.k);
}

TEST(hub_a_trainer_without_gradients_waits_outside_while_the_phase_lasts) {
    struct world w;
    struct hub_settings s = settings(4);
    s.quorum = 1;
    set_up(&w, &s, 1);
    struct wire_request q = kit_join_request(&w.k, "old", 9);
    assert_int_equal(kit_send(&w.k, &q)->code, WIRE_BAD);
    assert_non_null(strstr(w.k.out.answer.text, "outer.synchronous"));
    gradient(&w, 0);
    kit_merge(&w.k);
    assert_int_equal(kit_send(&w.k, &q)->code, WIRE_OK);
    struct wire_round r;
    hub_round(w.k.h, "a", w.k.now, &r);
    assert_int_equal(r.steps_target, s.steps);
    assert_int_equal(r.sync_tokens, 4 * KIT_SEQ_LEN);
    kit_close(&w.k);
}

/* A gradient has no usual length and no bound by the rate; a number whose square leaves f32 is none. */
TEST(hub_a_gradient_is_looked_at_by_its_own_measure) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    s.norm_z = 1;
    set_up(&w, &s, 1);
    for (int i = 0; i < 3; i++) {
        struct wire_lease l = kit_lease(&w.k, "a", w.inc[0], ++w.req[0], 4);
        struct wire_request q = kit_commit_request(&w.k, "a", w.inc[0], ++w.did, &l, l.count);
        struct hub_blob_verdict blob = kit_blob();
        q.u.commit.codec = CODEC_GRADIENT;
        blob.max_abs = i == 0 ? 1e16 : 1e6;
        blob.norm = 1e7;
        blob.theta_max = 0.1;
        const struct wire_answer *a = kit_commit(&w.k, &q, &blob);
        assert_int_equal(a->u.commit.outcome, i == 0 ? OUTCOME_REJECTED : OUTCOME_STAGED);
        if (i > 0) kit_merge(&w.k);
    }
    kit_close(&w.k);
}

/* ---- The record --------------------------------------------------------------------------------------- */
static void append(struct hub *h, uint64_t *seq, struct hub_record *r, enum brg_status want) {
    struct err e = {0};
    struct buf b;
    buf_init(&b, 1000);
    hub_record_encode(r, &b);
    assert_int_equal(hub_apply(h, *seq + 1, r->kind, b.data, b.bytes_count, &e), want);
    if (want == BRG_OK) ++*seq;
    buf_fini(&b);
}

/* A crash may leave a SYNC as the journal's last record: the next process begins with another one. */
TEST(hub_H23_a_sync_that_is_not_followed_by_its_merge_has_no_effect) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    s.rule.ema = 0.9; /* a STEP stands between */
    set_up(&w, &s, 1);
    gradient(&w, 0);
    kit_merge(&w.k);
    for (int between = 0; between < 2; between++) {
        struct hub *h = hub_create(&w.k.s, 9);
        struct reader r = reader_of(w.k.journal.data, w.k.journal.bytes_count);
        uint64_t seq = 0, syncs = 0;
        while (r.p < r.end) {
            struct hub_record term = {.kind = RECORD_TERM, .u.term = {.term = 7}};
            struct err e = {0};
            uint16_t kind = get_u16(&r);
            uint32_t bytes = get_u32(&r);
            const void *body = get_bytes(&r, bytes);
            assert_int_equal(hub_apply(h, ++seq, kind, body, bytes, &e), BRG_OK);
            syncs += kind == RECORD_SYNC;
            if (kind == RECORD_SYNC && between) append(h, &seq, &term, BRG_OK);
        }
        assert_int_equal(syncs, 1);
        assert_int_equal(step_of(h, 1), between ? 0 : 1);
        hub_destroy(h);
    }
    kit_close(&w.k);
}

TEST(hub_H23_a_step_of_moments_follows_its_parents) {
    struct world w;
    struct hub_settings s = settings(POSITIONS);
    s.quorum = 1;
    set_up(&w, &s, 1);
    for (int i = 0; i < 3; i++) {
        gradient(&w, 0);
        kit_merge(&w.k);
    }
    for (uint64_t step = 1; step <= 6; step++)
        for (uint64_t version = 3; version <= 5; version++) {
            struct hub *h = kit_replay(&w.k, UINT64_MAX);
            struct hub_record r = {.kind = RECORD_SYNC,
                                   .u.sync = {.version = version, .step = step, .lr = 0.1}};
            bool good = version == 4 && (step == 1 || step == 4);
            uint64_t seq = w.k.seq;
            append(h, &seq, &r, good ? BRG_OK : BRG_E_JOURNAL);
            hub_destroy(h);
        }
    kit_close(&w.k);
}

TEST(hub_R1_a_sync_has_one_form_and_sound_scalars) {
    enum { STEP = 16, COUNTS = 24, SCALARS = 25, BYTES = 89 };
    struct hub_record r = {.kind = RECORD_SYNC,
                           .u.sync = {7, 3, false, 1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 3.7, 7.01}};
    struct hub_record back;
    struct err e = {0};
    struct buf b, again;
    buf_init(&b, 1000);
    buf_init(&again, 1000);
    hub_record_encode(&r, &b);
    assert_int_equal(b.bytes_count, BYTES);
    assert_int_equal(hub_record_decode(RECORD_SYNC, b.data, BYTES, &back, &e), BRG_OK);
    assert_true(back.u.sync.lr == 1e-3 && back.u.sync.bias2 == 7.01 && back.u.sync.step == 3);
    hub_record_encode(&back, &again);
    assert_memory_equal(b.data, again.data, BYTES);
    for (size_t n = 0; n < BYTES; n++)
        assert_int_equal(hub_record_decode(RECORD_SYNC, b.data, n, &back, &e), BRG_E_JOURNAL);
    b.data[COUNTS] = 1; /* the counting rule has none of these */
    assert_int_equal(hub_record_decode(RECORD_SYNC, b.data, BYTES, &back, &e), BRG_E_JOURNAL);
    b.data[COUNTS] = 0;
    b.data[STEP] = 0;
    assert_int_equal(hub_record_decode(RECORD_SYNC, b.data, BYTES, &back, &e), BRG_E_JOURNAL);
    b.data[STEP] = 3;
    const double bad[] = {-1, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < 8 * ARRAY_COUNT(bad); i++) {
        uint8_t *at = b.data + SCALARS + 8 * (i / ARRAY_COUNT(bad)), kept[8];
        memcpy(kept, at, sizeof kept);
        memcpy(at, &bad[i % ARRAY_COUNT(bad)], sizeof kept);
        assert_int_equal(hub_record_decode(RECORD_SYNC, b.data, BYTES, &back, &e), BRG_E_JOURNAL);
        memcpy(at, kept, sizeof kept);
    }
    buf_fini(&b);
    buf_fini(&again);
}
