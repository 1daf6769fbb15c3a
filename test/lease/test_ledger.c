/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's operations one by one: what each does, and that a refused one does nothing. */
#include <stdio.h>

#include "../harness.h"
#include "lease/lease.h"

static struct id128 did(uint8_t n) {
    struct id128 id = {{n, 1, 2, 3}};
    return id;
}

static struct ledger *fresh(uint64_t positions) {
    struct ledger *l = ledger_create(positions, 4);
    assert_int_equal(ledger_epoch_open(l, 0), LEASE_FINE);
    return l;
}

static enum lease_fault grant(struct ledger *l, uint64_t tok, uint32_t site, uint64_t start,
                              uint64_t count) {
    struct lease_span span = {start, count};
    struct lease_grant g = {.tok = tok,
                            .nonce = tok * 7,
                            .req = tok,
                            .site = site,
                            .inc = 1,
                            .epoch = 0,
                            .spans_count = 1,
                            .spans = &span};
    return ledger_grant(l, &g);
}

static struct lease_stage stage_of(uint8_t n, uint32_t site, const struct lease_part *parts,
                                   uint32_t count) {
    struct lease_stage s = {
        .did = did(n), .site = site, .inc = 1, .parts_count = count, .parts = parts};
    return s;
}

static enum lease_fault stage(struct ledger *l, uint8_t n, uint32_t site, uint64_t tok,
                              uint64_t done) {
    struct lease_part p = {tok, tok * 7, done};
    struct lease_stage s = stage_of(n, site, &p, 1);
    return ledger_stage(l, &s);
}

static enum lease_fault merge(struct ledger *l, uint64_t version, uint8_t n) {
    struct id128 id = did(n);
    return ledger_merge(l, version, &id, 1);
}

static struct hash state_of(const struct ledger *l) {
    struct buf b;
    buf_init(&b, 1 << 24);
    ledger_encode(l, &b);
    struct hash h = hash_of(b.data, b.bytes_count);
    buf_fini(&b);
    return h;
}

#define assert_unchanged(l_, before_)                                                              \
    do {                                                                                           \
        struct hash after_ = state_of(l_);                                                         \
        assert_true(hash_equal(&after_, &(before_)));                                              \
        ledger_check(l_);                                                                          \
    } while (0)

#define assert_counts(l_, a_, le_, st_, me_, sk_, qu_)                                             \
    do {                                                                                           \
        assert_int_equal(ledger_count(l_, 0, EXTENT_AVAILABLE), a_);                               \
        assert_int_equal(ledger_count(l_, 0, EXTENT_LEASED), le_);                                 \
        assert_int_equal(ledger_count(l_, 0, EXTENT_STAGED), st_);                                 \
        assert_int_equal(ledger_count(l_, 0, EXTENT_MERGED), me_);                                 \
        assert_int_equal(ledger_count(l_, 0, EXTENT_SKIPPED), sk_);                                \
        assert_int_equal(ledger_count(l_, 0, EXTENT_QUARANTINED), qu_);                            \
        ledger_check(l_);                                                                          \
    } while (0)

TEST(lease_I1_a_granted_position_is_not_granted_again) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 10, 20), LEASE_FINE);
    struct hash before = state_of(l);
    assert_int_equal(grant(l, 2, 2, 29, 5), LEASE_BAD_SPAN);
    assert_int_equal(grant(l, 2, 2, 0, 11), LEASE_BAD_SPAN);
    assert_int_equal(grant(l, 2, 2, 90, 11), LEASE_BAD_SPAN);
    assert_int_equal(grant(l, 2, 2, 90, 0), LEASE_BAD_SPAN);
    assert_int_equal(grant(l, 2, 2, UINT64_MAX, 2), LEASE_BAD_SPAN);
    assert_unchanged(l, before);
    assert_counts(l, 80, 20, 0, 0, 0, 0);
    ledger_destroy(l);
}

TEST(lease_I2_the_spans_of_one_lease_do_not_overlap) {
    struct ledger *l = fresh(100);
    struct lease_span spans[] = {{10, 5}, {14, 5}};
    struct lease_grant g = {.tok = 1, .site = 1, .inc = 1, .spans_count = 2, .spans = spans};
    struct hash before = state_of(l);
    assert_int_equal(ledger_grant(l, &g), LEASE_BAD_SPAN);
    assert_unchanged(l, before);
    ledger_destroy(l);
}

TEST(lease_I7_a_tok_never_comes_twice) {
    struct ledger *l = fresh(100);
    uint64_t quarantined;
    assert_int_equal(grant(l, 5, 1, 0, 10), LEASE_FINE);
    assert_int_equal(ledger_free(l, 5, false, 0, &quarantined), LEASE_FINE);
    assert_int_equal(grant(l, 5, 1, 0, 10), LEASE_BAD_TOK);
    assert_int_equal(grant(l, 4, 1, 0, 10), LEASE_BAD_TOK);
    assert_int_equal(grant(l, 6, 1, 0, 10), LEASE_FINE);
    ledger_check(l);
    ledger_destroy(l);
}

TEST(lease_I3_only_the_holder_can_stage) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    struct hash before = state_of(l);
    struct lease_part p = {1, 7, 5};
    struct lease_stage s = stage_of(1, 2, &p, 1); /* another site */
    assert_int_equal(ledger_stage(l, &s), LEASE_FOREIGN);
    s = stage_of(1, 1, &p, 1);
    s.inc = 2; /* another incarnation */
    assert_int_equal(ledger_stage(l, &s), LEASE_FOREIGN);
    s.inc = 1;
    p.nonce = 8;
    assert_int_equal(ledger_stage(l, &s), LEASE_FOREIGN);
    p = (struct lease_part){1, 7, 11}; /* beyond its end */
    assert_int_equal(ledger_stage(l, &s), LEASE_TOO_LONG);
    p = (struct lease_part){2, 14, 1}; /* never granted */
    assert_int_equal(ledger_stage(l, &s), LEASE_ENDED);
    p = (struct lease_part){1, 7, 0};
    assert_int_equal(ledger_stage(l, &s), LEASE_EMPTY);
    struct lease_part twice[] = {{1, 7, 3}, {1, 7, 4}};
    s = stage_of(1, 1, twice, 2);
    assert_int_equal(ledger_stage(l, &s), LEASE_TWICE);
    assert_unchanged(l, before);
    ledger_destroy(l);
}

TEST(lease_I3_one_bad_part_refuses_the_whole_delta) {
    struct ledger *l = fresh(100);
    uint64_t quarantined;
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    assert_int_equal(grant(l, 2, 1, 10, 10), LEASE_FINE);
    assert_int_equal(ledger_free(l, 2, false, 0, &quarantined), LEASE_FINE);
    struct hash before = state_of(l);
    struct lease_part parts[] = {{1, 7, 10}, {2, 14, 10}};
    struct lease_stage s = stage_of(1, 1, parts, 2);
    uint32_t at;
    assert_int_equal(ledger_stage_check(l, &s, &at), LEASE_ENDED);
    assert_int_equal(at, 1);
    assert_int_equal(ledger_stage(l, &s), LEASE_ENDED);
    assert_unchanged(l, before);
    ledger_destroy(l);
}

TEST(lease_I4_a_lease_is_consumed_once) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    assert_int_equal(stage(l, 1, 1, 1, 6), LEASE_FINE);
    assert_counts(l, 94, 0, 6, 0, 0, 0);
    assert_int_equal(stage(l, 2, 1, 1, 6), LEASE_ENDED);
    assert_int_equal(stage(l, 1, 1, 1, 6), LEASE_BAD_DELTA);
    const struct id128 first = did(1);
    assert_true(id_equal(&ledger_consumer(l, 1)->did, &first));
    assert_null(ledger_consumer(l, 2));
    assert_counts(l, 94, 0, 6, 0, 0, 0);
    ledger_destroy(l);
}

TEST(lease_keep_rest_goes_on_as_a_new_lease) {
    struct ledger *l = fresh(100);
    struct lease_span spans[] = {{50, 10}, {0, 10}};
    struct lease_grant g = {
        .tok = 1, .nonce = 7, .site = 1, .inc = 1, .spans_count = 2, .spans = spans};
    assert_int_equal(ledger_grant(l, &g), LEASE_FINE);
    struct lease_part p = {1, 7, 14};
    struct lease_stage s = stage_of(1, 1, &p, 1);
    s.has_rest = true;
    s.rest_tok = 1; /* not new */
    assert_int_equal(ledger_stage(l, &s), LEASE_BAD_TOK);
    s.rest_tok = 9;
    s.rest_nonce = 99;
    p.done = 20;
    assert_int_equal(ledger_stage(l, &s), LEASE_BAD_REST);
    p.done = 14;
    assert_int_equal(ledger_stage(l, &s), LEASE_FINE);
    const struct lease *rest = ledger_lease_find(l, 9);
    assert_non_null(rest);
    assert_int_equal(rest->count, 6);
    assert_int_equal(rest->nonce, 99);
    assert_int_equal(rest->spans[0].start, 4); /* the order of work: 50..59, then 0..9 */
    assert_counts(l, 80, 6, 14, 0, 0, 0);
    p = (struct lease_part){9, 99, 6};
    s = stage_of(2, 1, &p, 1);
    assert_int_equal(ledger_stage(l, &s), LEASE_FINE);
    assert_counts(l, 80, 0, 20, 0, 0, 0);
    ledger_destroy(l);
}

TEST(lease_shrink_frees_the_end_in_order_of_work) {
    struct ledger *l = fresh(100);
    struct lease_span spans[] = {{50, 10}, {0, 10}};
    struct lease_grant g = {
        .tok = 1, .nonce = 7, .site = 1, .inc = 1, .spans_count = 2, .spans = spans};
    assert_int_equal(ledger_grant(l, &g), LEASE_FINE);
    assert_int_equal(ledger_shrink(l, 1, 20), LEASE_TOO_LONG);
    assert_int_equal(ledger_shrink(l, 1, 0), LEASE_TOO_LONG);
    assert_int_equal(ledger_shrink(l, 2, 1), LEASE_ENDED);
    assert_int_equal(ledger_shrink(l, 1, 8), LEASE_FINE);
    assert_true(ledger_all(l, 0, (struct lease_span){50, 8}, EXTENT_LEASED));
    assert_true(ledger_all(l, 0, (struct lease_span){58, 42}, EXTENT_AVAILABLE));
    assert_int_equal(stage(l, 1, 1, 1, 9), LEASE_TOO_LONG); /* a broken promise */
    assert_counts(l, 92, 8, 0, 0, 0, 0);
    ledger_destroy(l);
}

TEST(lease_skips_are_merged_as_skipped) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    struct lease_part p = {1, 7, 8};
    struct lease_stage s = stage_of(1, 1, &p, 1);
    struct lease_skip skips[] = {{0, 3, "nan"}, {0, 8, "nan"}};
    s.skips = skips;
    s.skips_count = 2;
    assert_int_equal(ledger_stage(l, &s), LEASE_BAD_SKIP); /* 8 was not done */
    skips[1].position = 3;
    assert_int_equal(ledger_stage(l, &s), LEASE_BAD_SKIP); /* twice */
    skips[1] = (struct lease_skip){1, 2, "nan"};
    assert_int_equal(ledger_stage(l, &s), LEASE_BAD_SKIP); /* another epoch */
    skips[1] = (struct lease_skip){0, 7, "overflow"};
    assert_int_equal(ledger_stage(l, &s), LEASE_FINE);
    assert_counts(l, 92, 0, 8, 0, 0, 0);
    assert_int_equal(merge(l, 1, 1), LEASE_FINE);
    assert_counts(l, 92, 0, 0, 6, 2, 0);
    ledger_rollback(l, 0);
    assert_counts(l, 100, 0, 0, 0, 0, 0);
    assert_int_equal(ledger_extents(l), 1);
    ledger_destroy(l);
}

TEST(lease_I12_rejected_and_discarded_deltas_have_no_position) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    assert_int_equal(grant(l, 2, 1, 10, 10), LEASE_FINE);
    assert_int_equal(grant(l, 3, 2, 20, 10), LEASE_FINE);
    uint64_t freed[] = {1, 3};
    struct lease_reject r = {.did = did(1),
                             .site = 1,
                             .inc = 1,
                             .freed_count = 2,
                             .freed = freed,
                             .reason = "too stale"};
    struct hash before = state_of(l);
    assert_int_equal(ledger_reject(l, &r), LEASE_FOREIGN);
    assert_unchanged(l, before);
    r.freed_count = 1;
    assert_int_equal(ledger_reject(l, &r), LEASE_FINE);
    assert_string_equal(ledger_delta_find(l, &r.did)->reason, "too stale");
    assert_counts(l, 80, 20, 0, 0, 0, 0);
    assert_int_equal(stage(l, 2, 1, 2, 10), LEASE_FINE);
    struct id128 id = did(2);
    assert_int_equal(ledger_discard(l, &id, "norm"), LEASE_FINE);
    assert_counts(l, 90, 10, 0, 0, 0, 0);
    assert_int_equal(ledger_discard(l, &id, "norm"), LEASE_BAD_DELTA);
    assert_int_equal(merge(l, 1, 2), LEASE_BAD_DELTA);
    ledger_destroy(l);
}

TEST(lease_merge_takes_all_or_none) {
    struct ledger *l = fresh(100);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    assert_int_equal(grant(l, 2, 1, 10, 10), LEASE_FINE);
    assert_int_equal(stage(l, 1, 1, 1, 10), LEASE_FINE);
    assert_int_equal(stage(l, 2, 1, 2, 10), LEASE_FINE);
    struct id128 twice[] = {did(1), did(2), did(1)}, unknown[] = {did(1), did(9)},
                 both[] = {did(2), did(1)};
    struct hash before = state_of(l);
    assert_int_equal(ledger_merge(l, 1, twice, 3), LEASE_BAD_DELTA);
    assert_int_equal(ledger_merge(l, 1, unknown, 2), LEASE_BAD_DELTA);
    assert_int_equal(ledger_merge(l, 1, both, 0), LEASE_EMPTY);
    assert_int_equal(ledger_merge(l, 0, both, 2), LEASE_BAD_VERSION);
    assert_unchanged(l, before);
    assert_int_equal(ledger_merge(l, 1, both, 2), LEASE_FINE);
    assert_int_equal(ledger_merge(l, 1, both, 2), LEASE_BAD_VERSION);
    assert_counts(l, 80, 0, 0, 20, 0, 0);
    ledger_destroy(l);
}

TEST(lease_I5_rollback_takes_back_what_merged_later) {
    struct ledger *l = fresh(100);
    for (uint8_t v = 1; v <= 4; v++) {
        assert_int_equal(grant(l, v, 1, (v - 1) * 10U, 10), LEASE_FINE);
        assert_int_equal(stage(l, v, 1, v, 10), LEASE_FINE);
        if (v < 4) assert_int_equal(merge(l, v, v), LEASE_FINE);
    }
    assert_int_equal(grant(l, 5, 1, 40, 10), LEASE_FINE);
    assert_counts(l, 50, 10, 10, 30, 0, 0);
    ledger_rollback(l, 1);
    assert_counts(l, 90, 0, 0, 10, 0, 0);
    for (uint8_t n = 2; n <= 4; n++) {
        struct id128 id = did(n);
        const struct delta *d = ledger_delta_find(l, &id);
        assert_int_equal(d->state, DELTA_DISCARDED);
        assert_non_null(d->reason);
    }
    assert_int_equal(stage(l, 6, 1, 5, 10), LEASE_ENDED);
    assert_int_equal(grant(l, 6, 1, 10, 10), LEASE_FINE);
    assert_int_equal(stage(l, 6, 1, 6, 10), LEASE_FINE);
    assert_int_equal(merge(l, 3, 6), LEASE_BAD_VERSION); /* numbers of a lost branch stay used */
    assert_int_equal(merge(l, 4, 6), LEASE_FINE);
    ledger_check(l);
    ledger_destroy(l);
}

TEST(lease_I9_a_seal_needs_every_position_and_ends_the_epoch) {
    struct ledger *l = fresh(10);
    struct hash digest, again;
    assert_int_equal(ledger_seal(l, 0, &digest), LEASE_UNFINISHED);
    assert_int_equal(grant(l, 1, 1, 0, 10), LEASE_FINE);
    assert_int_equal(stage(l, 1, 1, 1, 10), LEASE_FINE);
    assert_int_equal(ledger_seal(l, 0, &digest), LEASE_UNFINISHED);
    assert_int_equal(merge(l, 1, 1), LEASE_FINE);
    assert_int_equal(ledger_seal(l, 1, &digest), LEASE_BAD_EPOCH);
    assert_int_equal(ledger_seal(l, 0, &digest), LEASE_FINE);
    assert_int_equal(ledger_seal(l, 0, &again), LEASE_BAD_EPOCH);
    assert_int_equal(grant(l, 2, 1, 0, 1), LEASE_BAD_EPOCH);
    assert_true(ledger_sealed(l, 0));
    ledger_rollback(l, 1);
    assert_true(ledger_sealed(l, 0));
    ledger_rollback(l, 0);
    assert_false(ledger_sealed(l, 0));
    ledger_destroy(l);
}

TEST(lease_quarantine_after_three_crashes_waits_for_a_decision) {
    struct ledger *l = fresh(100);
    uint64_t quarantined = 0;
    for (uint64_t tok = 1; tok <= 3; tok++) {
        struct lease_span spans[LEASE_SPANS_MAX];
        uint32_t n = ledger_choose(l, 0, 40, 3, 4, spans);
        assert_int_equal(n, 1);
        /* Before the last chance the piece gets small: the third crash costs 4 positions, not 40.
         * */
        assert_int_equal(spans[0].count, tok < 3 ? 40 : 4);
        assert_int_equal(grant(l, tok, 1, spans[0].start, spans[0].count), LEASE_FINE);
        assert_int_equal(ledger_free(l, tok, true, 3, &quarantined), LEASE_FINE);
    }
    assert_int_equal(quarantined, 4);
    assert_counts(l, 96, 0, 0, 0, 0, 4);
    assert_int_equal(grant(l, 4, 1, 0, 4), LEASE_BAD_SPAN);
    assert_int_equal(ledger_decide(l, 0, (struct lease_span){0, 5}, true, "poison"),
                     LEASE_BAD_SPAN);
    assert_int_equal(ledger_decide(l, 0, (struct lease_span){0, 1}, true, "poison"), LEASE_FINE);
    assert_int_equal(ledger_decide(l, 0, (struct lease_span){1, 3}, false, ""), LEASE_FINE);
    assert_counts(l, 99, 0, 0, 0, 1, 0);
    ledger_rollback(l, 0);
    assert_counts(l, 99, 0, 0, 0, 1, 0); /* an operator's skip is no part of a version */
    ledger_destroy(l);
}

TEST(lease_final_deltas_are_forgotten_in_order_of_age) {
    struct ledger *l = fresh(100);
    struct lease_reject r = {.site = 1, .inc = 1, .reason = "no"};
    for (uint32_t i = 0; i < LEDGER_FINAL_MAX + 10; i++) {
        put_le32(r.did.v, i + 1);
        assert_int_equal(ledger_reject(l, &r), LEASE_FINE);
    }
    size_t bytes = ledger_bytes(l);
    for (uint32_t i = 0; i < LEDGER_FINAL_MAX + 11; i++) {
        put_le32(r.did.v, i + 1);
        assert_true((ledger_delta_find(l, &r.did) != NULL) ==
                    (i >= 10 && i < LEDGER_FINAL_MAX + 10));
    }
    for (uint32_t i = 0; i < 1000; i++) {
        put_le32(r.did.v, LEDGER_FINAL_MAX + 11 + i);
        assert_int_equal(ledger_reject(l, &r), LEASE_FINE);
    }
    assert_int_equal(ledger_bytes(l), bytes); /* a steady state */
    ledger_check(l);
    ledger_destroy(l);
}

TEST(lease_an_epoch_of_1e9_samples_takes_less_than_a_megabyte) {
    enum { LEASE = 262144, LEASES = 3815 };
    const uint64_t positions = 1000000000;
    struct ledger *l = ledger_create(positions, 1);
    assert_int_equal(ledger_epoch_open(l, 0), LEASE_FINE);
    uint64_t version = 0, merged_extents = 0;
    for (uint32_t i = 0; i < LEASES; i++) {
        uint64_t start = (uint64_t)i * LEASE, left = positions - start;
        uint64_t tok = i + 1;
        struct lease_span span = {start, left < LEASE ? left : LEASE};
        struct lease_grant g = {.tok = tok,
                                .nonce = tok * 7,
                                .site = 1 + i % 3,
                                .inc = 1,
                                .spans_count = 1,
                                .spans = &span};
        assert_int_equal(ledger_grant(l, &g), LEASE_FINE);
        struct lease_part p = {tok, tok * 7, span.count};
        struct lease_stage s = {.site = g.site, .inc = 1, .parts_count = 1, .parts = &p};
        put_le32(s.did.v, i + 1);
        assert_int_equal(ledger_stage(l, &s), LEASE_FINE);
        /* Every lease its own version: nothing joins, the worst case. */
        assert_int_equal(ledger_merge(l, ++version, &s.did, 1), LEASE_FINE);
    }
    merged_extents = ledger_extents(l);
    struct buf b;
    buf_init(&b, 1 << 20);
    ledger_checkpoint_encode(l, version, false, &b);
    printf("extents=%llu memory=%zu checkpoint=%zu\n", (unsigned long long)merged_extents,
           ledger_bytes(l), b.bytes_count);
    assert_int_equal(merged_extents, LEASES);
    assert_true(ledger_bytes(l) <= 1 << 20);
    assert_true(b.bytes_count <= 64 << 10);
    buf_fini(&b);
    ledger_check(l);
    ledger_destroy(l);
}
