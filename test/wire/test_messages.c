/* SPDX-License-Identifier: Apache-2.0 */
/* test_messages.c - encode, decode, encode: the same bytes and the same struct; and hostile bytes:
 * a decoder either refuses and names the field, or gives a value that encodes again. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "random_messages.h"

static const enum wire_kind kinds[] = {WIRE_JOIN,   WIRE_LEASE,  WIRE_HEARTBEAT, WIRE_SHRINK_OK,
                                       WIRE_RETURN, WIRE_COMMIT, WIRE_OUTCOME,   WIRE_LEAVE};

static void both_ways_request(const struct wire_request *r) {
    struct buf a, b;
    struct wire_request back;
    struct err e = {0};
    buf_init(&a, WIRE_BODY_MAX);
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(r, &a);
    assert_false(a.overflow);
    if (wire_request_decode(r->kind, a.data, a.bytes_count, &back, &e) != BRG_OK)
        fail_msg("%s\n%s", e.text, buf_cstr(&a));
    wire_request_encode(&back, &b);
    assert_string_equal(buf_cstr(&a), buf_cstr(&b));
    assert_memory_equal(r, &back, sizeof back);
    buf_fini(&a);
    buf_fini(&b);
}

static void both_ways_answer(const struct wire_answer *r) {
    struct buf a, b;
    struct wire_answer back;
    struct err e = {0};
    buf_init(&a, WIRE_BODY_MAX);
    buf_init(&b, WIRE_BODY_MAX);
    wire_answer_encode(r, &a);
    if (wire_answer_decode(r->kind, a.data, a.bytes_count, &back, &e) != BRG_OK)
        fail_msg("%s\n%s", e.text, buf_cstr(&a));
    wire_answer_encode(&back, &b);
    assert_string_equal(buf_cstr(&a), buf_cstr(&b));
    assert_memory_equal(r, &back, sizeof back);
    buf_fini(&a);
    buf_fini(&b);
}

TEST(wire_requests_go_both_ways) {
    struct prng p;
    prng_seed(&p, 1);
    for (int i = 0; i < 500; i++) {
        for (size_t k = 0; k < ARRAY_COUNT(kinds); k++) {
            struct wire_request r;
            random_request(&p, kinds[k], &r);
            both_ways_request(&r);
        }
    }
}

TEST(wire_answers_go_both_ways) {
    struct prng p;
    prng_seed(&p, 2);
    for (int i = 0; i < 100; i++) {
        for (size_t k = 0; k < ARRAY_COUNT(kinds); k++) {
            for (int code = WIRE_OK; code <= WIRE_COMPLETE; code++) {
                struct wire_answer a;
                random_answer(&p, kinds[k], (enum wire_code)code, &a);
                both_ways_answer(&a);
            }
        }
    }
}

TEST(wire_run_goes_both_ways) {
    struct prng p;
    static struct wire_run r, back;
    prng_seed(&p, 3);
    for (int i = 0; i < 200; i++) {
        struct buf a;
        struct err e = {0};
        buf_init(&a, WIRE_BODY_MAX);
        random_run(&p, &r);
        wire_run_encode(&r, &a);
        assert_int_equal(wire_run_decode(a.data, a.bytes_count, &back, &e), BRG_OK);
        assert_memory_equal(&r, &back, sizeof r);
        buf_fini(&a);
    }
}

/* Any bytes: no crash; what is taken encodes and reads again. */
static void survive(const void *bytes, size_t n) {
    struct err e;
    struct wire_request r;
    struct wire_answer a;
    for (size_t k = 0; k < ARRAY_COUNT(kinds); k++) {
        e = (struct err){0};
        if (wire_request_decode(kinds[k], bytes, n, &r, &e) == BRG_OK) {
            both_ways_request(&r);
        } else {
            assert_int_equal(e.status, BRG_E_MESSAGE);
            assert_true(e.text[0] != '\0');
        }
        if (wire_answer_decode(kinds[k], bytes, n, &a, &e) == BRG_OK) both_ways_answer(&a);
    }
}

TEST(wire_altered_messages_are_refused_or_valid) {
    struct prng p;
    prng_seed(&p, 4);
    for (int i = 0; i < 3000; i++) {
        struct wire_request r;
        struct wire_answer a;
        struct buf b;
        buf_init(&b, WIRE_BODY_MAX);
        enum wire_kind kind = kinds[prng_below(&p, ARRAY_COUNT(kinds))];
        if (prng_below(&p, 2) == 0) {
            random_request(&p, kind, &r);
            wire_request_encode(&r, &b);
        } else {
            random_answer(&p, kind, WIRE_OK, &a);
            wire_answer_encode(&a, &b);
        }
        size_t n = b.bytes_count;
        for (uint64_t k = prng_below(&p, 4); k > 0; k--)
            b.data[prng_below(&p, n)] = (uint8_t) "0\"{}[]:,-e.9tn\xff\0"[prng_below(&p, 16)];
        if (prng_below(&p, 4) == 0) n = prng_below(&p, n);
        survive(b.data, n);
        buf_fini(&b);
    }
}

struct hostile {
    enum wire_kind kind;
    const char *json, *names; /* what the error must name */
};
#define HEAD "\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"inc\":1,\"req\":1"
#define ID "\"00000000000000000000000000000001\""
#define HASH "\"0000000000000000000000000000000000000000000000000000000000000001\""
static const struct hostile table[] = {
    {WIRE_LEAVE, "", "JSON"},
    {WIRE_LEAVE, "[]", "expected an object"},
    {WIRE_LEAVE, "{" HEAD "}x", "JSON"},
    {WIRE_LEAVE, "{" HEAD ",\"site\":\"b\"}", "JSON"},
    {WIRE_LEAVE, "{\"site\":\"\\u0000\"}", "JSON"},
    {WIRE_LEAVE, "{\"site\":\"\xff\"}", "JSON"},
    {WIRE_LEAVE, "{\"site\":\"../x\",\"run\":\"00000000000000000000000000000000\"}",
     "request.site"},
    {WIRE_LEAVE, "{\"site\":\"A\",\"run\":\"00000000000000000000000000000000\"}", "request.site"},
    {WIRE_LEAVE, "{\"site\":\"\",\"run\":\"00000000000000000000000000000000\"}", "request.site"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"0000\"}", "request.run"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"0000000000000000000000000000000G\"}", "request.run"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"0000000000000000000000000000000A\"}", "request.run"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"inc\":-1}",
     "request.inc"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"inc\":4294967296}",
     "request.inc"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"inc\":1.0}",
     "request.inc"},
    {WIRE_LEAVE, "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"inc\":\"1\"}",
     "request.inc"},
    {WIRE_LEAVE,
     "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"req\":9007199254740993}",
     "request.req"},
    {WIRE_LEAVE,
     "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"req\":99999999999999999999}",
     "JSON"},
    {WIRE_LEASE, "{" HEAD ",\"want\":1}", "lease.base: missing"},
    {WIRE_LEASE, "{" HEAD ",\"want\":null,\"base\":1}", "lease.want"},
    {WIRE_HEARTBEAT, "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"idle\"}", "heartbeat.phase"},
    {WIRE_HEARTBEAT, "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":2}", "heartbeat.phase"},
    {WIRE_HEARTBEAT, "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"training\",\"loss\":1e999}",
     "JSON"},
    {WIRE_HEARTBEAT, "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"training\",\"leases\":{}}",
     "heartbeat.leases"},
    {WIRE_HEARTBEAT,
     "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"training\",\"leases\":[{\"tok\":"
     "\"0000000000000001\",\"done\":2,\"read_ahead\":1}]}",
     "heartbeat.leases[0].read_ahead"},
    {WIRE_HEARTBEAT,
     "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"training\",\"fabric\":\"a//b\"}",
     "heartbeat.fabric"},
    {WIRE_SHRINK_OK, "{" HEAD ",\"tok\":1,\"nonce\":\"0000000000000001\",\"keep\":1}",
     "shrink_ok.tok"},
    {WIRE_OUTCOME, "{" HEAD ",\"did\":[]}", "outcome.did"},
    {WIRE_COMMIT,
     "{" HEAD ",\"did\":" ID ",\"base\":0,\"tokens\":1,\"steps\":1,\"lr_sum\":1,\"elements\":1,"
     "\"bytes\":1,\"codec\":1,\"blob\":" HASH "}",
     "commit.parts"},
    {WIRE_COMMIT,
     "{" HEAD ",\"did\":" ID ",\"base\":0,\"tokens\":1,\"steps\":1,\"lr_sum\":1,\"elements\":1,"
     "\"bytes\":1,\"codec\":1,\"blob\":" HASH ",\"parts\":[{\"tok\":\"0000000000000001\","
     "\"nonce\":\"0000000000000001\",\"done\":1}],\"skips\":[{\"position\":0,"
     "\"reason\":\"longer than twenty-three bytes\"}]}",
     "commit.skips[0].reason"},
};

TEST(wire_hostile_requests_are_refused_by_field) {
    for (size_t i = 0; i < ARRAY_COUNT(table); i++) {
        struct wire_request r;
        struct err e = {0};
        memset(&r, 0xAA, sizeof r);
        enum brg_status s =
            wire_request_decode(table[i].kind, table[i].json, strlen(table[i].json), &r, &e);
        if (s != BRG_E_MESSAGE || strstr(e.text, table[i].names) == NULL)
            fail_msg("case %zu %s: %d '%s' does not name '%s'", i, table[i].json, (int)s, e.text,
                     table[i].names);
        assert_int_equal(((uint8_t *)&r)[0], 0xAA); /* untouched */
    }
}

TEST(wire_too_many_entries_are_refused) {
    struct buf b;
    struct wire_request r;
    struct err e = {0};
    buf_init(&b, WIRE_BODY_MAX);
    buf_printf(&b, "{" HEAD ",\"hb_seq\":1,\"base\":0,\"phase\":\"training\",\"leases\":[");
    for (int i = 0; i <= WIRE_LEASES_MAX; i++)
        buf_printf(&b, "%s{\"tok\":\"%016x\",\"done\":0,\"read_ahead\":0}", i > 0 ? "," : "", i);
    buf_printf(&b, "]}");
    assert_int_equal(wire_request_decode(WIRE_HEARTBEAT, b.data, b.bytes_count, &r, &e),
                     BRG_E_MESSAGE);
    assert_non_null(strstr(e.text, "heartbeat.leases"));
    buf_fini(&b);
}

TEST(wire_deep_and_long_input_is_refused) {
    size_t n = WIRE_BODY_MAX + 1;
    char *deep = mem_alloc(n, 1);
    struct wire_request r;
    struct err e = {0};
    memset(deep, '[', n);
    assert_int_equal(wire_request_decode(WIRE_LEAVE, deep, n, &r, &e), BRG_E_MESSAGE);
    assert_int_equal(wire_request_decode(WIRE_LEAVE, deep, n - 1, &r, &e), BRG_E_MESSAGE);
    for (size_t i = 0; i + 5 <= n; i += 5) memcpy(deep + i, "{\"a\":", 5);
    assert_int_equal(wire_request_decode(WIRE_LEAVE, deep, n - 1, &r, &e), BRG_E_MESSAGE);
    mem_free(deep);
}

TEST(wire_a_lease_must_add_up) {
    struct prng p;
    prng_seed(&p, 5);
    struct wire_answer a, back;
    do random_answer(&p, WIRE_LEASE, WIRE_OK, &a);
    while (!a.u.lease.granted);
    a.u.lease.lease.count++;
    struct buf b;
    struct err e = {0};
    buf_init(&b, WIRE_BODY_MAX);
    wire_answer_encode(&a, &b);
    assert_int_equal(wire_answer_decode(WIRE_LEASE, b.data, b.bytes_count, &back, &e),
                     BRG_E_MESSAGE);
    assert_non_null(strstr(e.text, "lease.lease.count"));
    buf_fini(&b);
}

TEST(wire_unknown_members_are_ignored) {
    static const char json[] = "{" HEAD ",\"did\":" ID ",\"later\":{\"x\":[1,null]}}";
    struct wire_request r;
    struct err e = {0};
    assert_int_equal(wire_request_decode(WIRE_OUTCOME, json, strlen(json), &r, &e), BRG_OK);
    assert_int_equal(r.u.outcome.did.v[15], 1);
}

TEST(wire_names_of_sites) {
    assert_true(wire_name_valid("a"));
    assert_true(wire_name_valid("0-lumi_g"));
    assert_false(wire_name_valid(""));
    assert_false(wire_name_valid("-a"));
    assert_false(wire_name_valid("_a"));
    assert_false(wire_name_valid("a/b"));
    assert_false(wire_name_valid("a b"));
    assert_true(wire_name_valid("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));   /* 47 */
    assert_false(wire_name_valid("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")); /* 48 */
}

TEST(wire_kinds_and_codes_have_names) {
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        enum wire_kind k;
        assert_true(wire_kind_parse(wire_kind_name(kinds[i]), &k));
        assert_int_equal(k, kinds[i]);
    }
    enum wire_kind k;
    assert_false(wire_kind_parse("steal", &k));
    for (int c = WIRE_OK; c <= WIRE_COMPLETE; c++)
        assert_in_range(wire_code_http((enum wire_code)c), 200, 599);
}
