/* SPDX-License-Identifier: Apache-2.0 */
/* test_rebuild.c - the hub's disk is gone, a checkpoint is left: the run goes on from it, no position is
 * in the model twice, and nothing that the lost hub gave out counts. And: a site that was fed by another
 * branch of the run is known by the hash of its weights. */
#include <string.h>

#include "hub/machine.h"
#include "machine_kit.h"

struct saved { /* what a checkpoint holds */
    uint64_t version, tokens;
    uint32_t term;
    struct hash checkpoint, theta;
    struct buf ledger;
};

/* Ends the running merge and keeps its checkpoint. */
static void merge_saving(struct kit *k, struct saved *out) {
    const struct hub_plan *p = &k->h->merge->plan;
    buf_init(&out->ledger, 1 << 20);
    buf_put(&out->ledger, p->ledger.data, p->ledger.bytes_count);
    out->term = p->term;
    kit_merge(k);
    const struct hub_version_view *v = &k->h->versions[k->h->head].v;
    out->version = v->version;
    out->tokens = v->tokens;
    out->checkpoint = v->checkpoint;
    out->theta = v->theta;
}

static struct hub_cmd rebuild_of(const struct saved *s) {
    struct hub_cmd c = {.kind = HUB_CMD_REBUILD, .wall = 1700000000LL * NS_PER_S};
    c.u.rebuild.version = s->version;
    c.u.rebuild.parent = s->version - 1;
    c.u.rebuild.tokens = s->tokens;
    c.u.rebuild.term = s->term;
    c.u.rebuild.checkpoint = s->checkpoint;
    c.u.rebuild.theta = s->theta;
    c.u.rebuild.bytes = 100;
    c.u.rebuild.ledger = s->ledger.data;
    c.u.rebuild.ledger_bytes = s->ledger.bytes_count;
    return c;
}

/* The hub of *k is lost with its journal; a new one begins with the checkpoint. */
static void rebuild(struct kit *k, const struct saved *s) {
    hub_destroy(k->h);
    buf_reset(&k->journal);
    k->seq = 0;
    k->has_plan = false;
    k->h = hub_create(&k->s, 7);
    struct hub_cmd c = rebuild_of(s);
    assert_int_equal(kit_step(k, &c)->code, WIRE_OK);
    c = (struct hub_cmd){.kind = HUB_CMD_START, .wall = c.wall};
    kit_step(k, &c);
}

/* One site trains alone until nothing is left. */
static void finish(struct kit *k, const char *site, uint32_t inc) {
    for (uint32_t i = 1; i < 500; i++) {
        struct wire_request q = kit_request(k, WIRE_LEASE, site, inc);
        q.req = 1000 + i;
        q.u.lease.want = 16;
        q.u.lease.base = k->h->versions[k->h->head].v.version;
        struct wire_answer a = *kit_send(k, &q);
        if (a.code == WIRE_COMPLETE) return;
        assert_int_equal(a.code, WIRE_OK);
        assert_true(a.u.lease.granted);
        assert_int_equal(kit_stage(k, site, inc, 5000 + i, &a.u.lease.lease, a.u.lease.lease.count),
                         OUTCOME_STAGED);
        if (k->has_plan) kit_merge(k);
    }
    fail_msg("not complete");
}

/* 128 positions, 32 of them merged in version 1 or 2, some leased and staged. */
static void half_a_run(struct kit *k, struct saved *out, struct wire_lease *out_leased,
                       struct wire_request *out_staged) {
    struct hub_settings s = kit_settings(128, 1);
    s.quorum = 1;
    kit_open(k, &s);
    uint32_t inc = kit_join(k, "a", 1);
    for (uint64_t i = 1; i <= 2; i++) {
        struct wire_lease l = kit_lease(k, "a", inc, i, 16);
        assert_int_equal(kit_stage(k, "a", inc, (uint32_t)i, &l, l.count), OUTCOME_STAGED);
        if (i == 1)
            kit_merge(k);
        else
            merge_saving(k, out);
    }
    uint32_t other = kit_join(k, "b", 2);
    *out_leased = kit_lease(k, "a", inc, 3, 16);
    struct wire_lease l = kit_lease(k, "b", other, 1, 16);
    *out_staged = kit_commit_request(k, "b", other, 77, &l, l.count);
    assert_int_equal(kit_send(k, out_staged)->u.commit.outcome, OUTCOME_STAGED);
}

TEST(hub_H7_a_run_goes_on_from_a_checkpoint) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    half_a_run(&k, &s, &leased, &staged);
    rebuild(&k, &s);
    struct hub_view v = kit_view(&k);
    assert_int_equal(v.head, 2);
    assert_int_equal(v.root, 2);
    assert_int_equal(v.counts.merged, 32);
    assert_int_equal(v.counts.available, 96);
    assert_int_equal(v.counts.staged + v.counts.leased, 0);
    assert_int_equal(v.tokens, 32 * KIT_SEQ_LEN);
    uint32_t inc = kit_join(&k, "b", 3);
    finish(&k, "b", inc);
    v = kit_view(&k);
    assert_true(v.complete);
    assert_int_equal(v.counts.merged, 128);
    assert_int_equal(v.tokens, 128 * KIT_SEQ_LEN);
    buf_fini(&s.ledger);
    kit_close(&k); /* replays: the same state */
}

/* Of a run that began with synchronous rounds nobody knows what lies in the momentum's place: it may be a moment. */
TEST(hub_a_run_that_is_rebuilt_takes_no_moment_for_a_momentum) {
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        struct kit k;
        struct saved s = {0};
        struct wire_lease leased;
        struct wire_request staged;
        struct hub_version_view v = {0};
        half_a_run(&k, &s, &leased, &staged);
        k.s.sync_tokens = synchronous ? 16 * KIT_SEQ_LEN : 0;
        rebuild(&k, &s);
        uint32_t inc = kit_join(&k, "b", 3);
        finish(&k, "b", inc);
        assert_true(hub_version_find(k.h, 3, &v));
        assert_int_equal(v.mu_r > 0, !synchronous);
        assert_true(hub_version_find(k.h, 4, &v));
        assert_true(v.mu_r > 0);
        buf_fini(&s.ledger);
        kit_close(&k);
    }
}

TEST(hub_H7_nothing_that_the_lost_hub_gave_counts) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    half_a_run(&k, &s, &leased, &staged);
    uint32_t old_inc = staged.inc, old_term = k.h->term;
    rebuild(&k, &s);
    assert_true(k.h->term > old_term + 1000);
    struct wire_request q = staged; /* the lost hub had it durable; this one never heard of it */
    assert_int_equal(kit_send(&k, &q)->code, WIRE_UNKNOWN_SITE);
    uint32_t inc = kit_join(&k, "b", 2);
    assert_true(inc > old_inc + 1000); /* an older process of b is not taken for this one */
    assert_int_equal(kit_send(&k, &q)->code, WIRE_FENCED);
    q.inc = inc;
    const struct wire_answer *a = kit_send(&k, &q);
    assert_int_equal(a->code, WIRE_OK);
    assert_int_equal(a->u.commit.outcome, OUTCOME_REJECTED);
    struct wire_request join = kit_join_request(&k, "a", 9);
    join.u.join.resume_count = 1;
    join.u.join.resume[0] = (struct wire_part){leased.tok, leased.nonce, 3};
    join.u.join.version_seen = 2;
    join.u.join.term_seen = old_term;
    a = kit_send(&k, &join);
    assert_int_equal(a->code, WIRE_OK);
    assert_int_equal(a->u.join.leases[0].verdict, LEASE_GONE);
    join.u.join.boot.v[0] = 99; /* one that has seen a version after the checkpoint */
    join.u.join.version_seen = 3;
    kit_seal(&k, &join);
    assert_int_equal(kit_send(&k, &join)->code, WIRE_HUB_BEHIND);
    buf_fini(&s.ledger);
    kit_close(&k);
}

TEST(hub_H7_a_finished_epoch_is_sealed_again_and_a_snapshot_keeps_all) {
    struct kit k;
    struct saved s = {0};
    struct hub_settings set = kit_settings(16, 2);
    kit_open(&k, &set);
    uint32_t inc = kit_join(&k, "a", 1);
    struct wire_lease l = kit_lease(&k, "a", inc, 1, 16);
    struct wire_lease rest = kit_lease(&k, "a", inc, 2, 16);
    struct wire_request q = kit_commit_request(&k, "a", inc, 1, &l, l.count);
    kit_part_add(&q, &rest, rest.count);
    assert_int_equal(kit_send(&k, &q)->u.commit.outcome, OUTCOME_STAGED);
    kit_wait(&k, 70);
    merge_saving(&k, &s);
    rebuild(&k, &s);
    assert_true(ledger_sealed(k.h->ledger, 0) == (kit_view(&k).counts.merged >= 16));
    struct buf snap;
    struct err e;
    buf_init(&snap, 1 << 20);
    hub_snapshot(k.h, &snap);
    struct hub *copy = hub_create(&k.s, 3);
    assert_int_equal(hub_restore(copy, k.seq, snap.data, snap.bytes_count, &e), BRG_OK);
    struct hash x = hub_digest(k.h), y = hub_digest(copy);
    assert_true(hash_equal(&x, &y));
    hub_check(copy);
    hub_destroy(copy);
    finish(&k, "a", kit_join(&k, "a", 4));
    assert_true(kit_view(&k).complete);
    buf_fini(&snap);
    buf_fini(&s.ledger);
    kit_close(&k);
}

/* Bytes of a checkpoint come from outside. */
TEST(hub_rebuild_refuses_what_does_not_fit_together) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    half_a_run(&k, &s, &leased, &staged);
    struct hub_cmd c = rebuild_of(&s);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD); /* this journal has begun already */
    for (int i = 0; i < 4; i++) {
        struct hub *h = hub_create(&k.s, 1);
        struct hub_out out;
        hub_out_init(&out);
        c = rebuild_of(&s);
        if (i == 0) c.u.rebuild.version++;
        if (i == 1) c.u.rebuild.tokens += KIT_SEQ_LEN;
        if (i == 2) c.u.rebuild.ledger_bytes--;
        if (i == 3) s.ledger.data[0] ^= 1;
        hub_step(h, 1, &c, &out);
        assert_int_equal(out.answer.code, WIRE_BAD);
        assert_int_equal(out.records_count, 0);
        hub_out_fini(&out);
        hub_destroy(h);
    }
    buf_fini(&s.ledger);
    kit_close(&k);
}

/* In a journal the ledger comes whole and first. */
TEST(hub_H7_a_ledger_in_pieces_is_taken_only_whole) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    struct err e;
    half_a_run(&k, &s, &leased, &staged);
    rebuild(&k, &s);
    struct reader r = reader_of(k.journal.data, k.journal.bytes_count);
    struct hub *h = hub_create(&k.s, 1);
    (void)get_u16(&r);
    uint32_t n = get_u32(&r);
    const void *body = get_bytes(&r, n);
    assert_int_equal(hub_apply(h, 1, RECORD_REBUILD, body, n, &e), BRG_OK);
    struct hub_record term = {.kind = RECORD_TERM, .u.term.term = UINT32_MAX};
    struct buf b;
    buf_init(&b, 100);
    hub_record_encode(&term, &b);
    assert_int_equal(hub_apply(h, 2, RECORD_TERM, b.data, b.bytes_count, &e), BRG_E_JOURNAL);
    hub_destroy(h);
    buf_fini(&b);
    buf_fini(&s.ledger);
    kit_close(&k);
}

/* Every byte of the opening records changed: refused, or sound; never a crash. */
TEST(hub_rebuild_from_a_damaged_journal_is_refused_or_sound) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    struct err e;
    uint32_t refused = 0, tried = 0;
    half_a_run(&k, &s, &leased, &staged);
    rebuild(&k, &s);
    const uint32_t opening = 2; /* REBUILD and one LEDGER */
    struct reader r = reader_of(k.journal.data, k.journal.bytes_count);
    size_t from[2], bytes[2];
    for (uint32_t i = 0; i < opening; i++) {
        (void)get_u16(&r);
        bytes[i] = get_u32(&r);
        from[i] = (size_t)((const uint8_t *)get_bytes(&r, bytes[i]) - k.journal.data);
    }
    for (uint32_t which = 0; which < opening; which++) {
        for (size_t at = 0; at < bytes[which]; at++, tried++) {
            uint8_t *byte = k.journal.data + from[which] + at;
            *byte ^= 0x10;
            struct hub *h = hub_create(&k.s, 1);
            enum brg_status st = BRG_OK;
            for (uint32_t i = 0; st == BRG_OK && i < opening; i++)
                st = hub_apply(h, i + 1, (uint16_t)(RECORD_REBUILD + i), k.journal.data + from[i],
                               bytes[i], &e);
            struct hub_view v;
            hub_view(h, 0, &v);
            if (v.importing) st = BRG_E_JOURNAL; /* as a start says */
            if (st == BRG_OK) hub_check(h);
            refused += st != BRG_OK;
            hub_destroy(h);
            *byte ^= 0x10;
        }
    }
    assert_true(tried > 300);
    assert_true(refused > tried / 2);
    buf_fini(&s.ledger);
    kit_close(&k);
}

/* ---- The same number, other weights --------------------------------------------------------------- */
TEST(hub_a_site_of_another_branch_is_known_by_its_weights) {
    struct kit k;
    struct saved s = {0};
    struct wire_lease leased;
    struct wire_request staged;
    half_a_run(&k, &s, &leased, &staged);
    struct wire_request join = kit_join_request(&k, "c", 5);
    join.u.join.version_seen = 2;
    join.u.join.theta_seen = s.theta;
    assert_int_equal(kit_send(&k, &join)->code, WIRE_OK);
    join = kit_join_request(&k, "d", 6);
    join.u.join.version_seen = 2;
    join.u.join.theta_seen = s.theta;
    join.u.join.theta_seen.v[5] ^= 1;
    kit_seal(&k, &join); /* of the hub of the other branch */
    const struct wire_answer *a = kit_send(&k, &join);
    assert_int_equal(a->code, WIRE_HUB_BEHIND);
    assert_non_null(strstr(a->text, "other weights"));
    assert_true(kit_view(&k).held);
    kit_kill(&k); /* the hold is durable */
    assert_true(kit_view(&k).held);
    struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK, .u.rollback.version = 2};
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    assert_false(kit_view(&k).held);
    assert_int_equal(kit_send(&k, &join)->code,
                     WIRE_OK); /* it was decided: d takes these weights */
    kit_kill(&k);
    join.u.join.boot.v[3] ^= 1;
    assert_int_equal(kit_send(&k, &join)->code, WIRE_OK);
    buf_fini(&s.ledger);
    kit_close(&k);
}
