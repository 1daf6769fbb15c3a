/* SPDX-License-Identifier: Apache-2.0 */
/* test_golden.c - the wire as it was released: each file of test/golden/wire must decode, and encode
 * to the very same bytes. A change of these files is a change of the protocol.
 * BERINGIA_ACCEPT=1 writes files that are missing (never changes one). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness.h"
#include "base/os.h"
#include "random_messages.h"
#include "wire/direct.h"

#define GOLDEN "test/golden/wire"

static void compare(const char *name, struct buf *now) {
    char path[OS_PATH_MAX];
    struct buf old;
    struct err e = {0};
    buf_init(&old, WIRE_BODY_MAX);
    os_path(path, GOLDEN, "%s.json", name);
    if (!os_exists(path) && getenv("BERINGIA_ACCEPT") != NULL) {
        buf_u8(now, '\n');
        assert_int_equal(os_write_file_atomic(path, now->data, now->bytes_count, &e), BRG_OK);
        now->bytes_count--;
    }
    if (os_read_file(path, WIRE_BODY_MAX, &old, &e) != BRG_OK) fail_msg("%s", e.text);
    assert_int_equal(old.data[old.bytes_count - 1], '\n');
    old.bytes_count--;
    assert_int_equal(old.bytes_count, now->bytes_count);
    assert_memory_equal(old.data, now->data, old.bytes_count);
    buf_fini(&old);
}

static const char *const names[] = {NULL,     "join",   "lease",   "heartbeat", "shrink_ok",
                                    "return", "commit", "outcome", "leave"};

TEST(wire_golden_requests) {
    struct prng p;
    prng_seed(&p, 100);
    for (int k = WIRE_JOIN; k <= WIRE_LEAVE; k++) {
        for (int i = 0; i < 2; i++) {
            char name[64];
            struct wire_request r, back;
            struct buf b;
            struct err e = {0};
            buf_init(&b, WIRE_BODY_MAX);
            random_request(&p, (enum wire_kind)k, &r);
            wire_request_encode(&r, &b);
            (void)snprintf(name, sizeof name, "request-%s-%d", names[k], i);
            compare(name, &b);
            assert_int_equal(
                wire_request_decode((enum wire_kind)k, b.data, b.bytes_count, &back, &e), BRG_OK);
            assert_memory_equal(&r, &back, sizeof r);
            buf_fini(&b);
        }
    }
}

/* A member that older peers do not have: written only where it says something. */
TEST(wire_golden_join_with_the_hash_of_what_was_seen) {
    struct prng p;
    struct wire_request r, back;
    struct buf b;
    struct err e = {0};
    prng_seed(&p, 103);
    random_request(&p, WIRE_JOIN, &r);
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(&r, &b);
    assert_null(strstr(buf_cstr(&b), "theta_seen"));
    for (int i = 0; i < HASH_BYTES; i++) r.u.join.theta_seen.v[i] = (uint8_t)prng_u64(&p);
    buf_reset(&b);
    wire_request_encode(&r, &b);
    compare("request-join-theta", &b);
    assert_int_equal(wire_request_decode(WIRE_JOIN, b.data, b.bytes_count, &back, &e), BRG_OK);
    assert_memory_equal(&r, &back, sizeof r);
    buf_fini(&b);
}

/* The same for where a site stands. */
TEST(wire_golden_heartbeat_with_a_fabric) {
    struct prng p;
    struct wire_request r, back;
    struct buf b;
    struct err e = {0};
    prng_seed(&p, 105);
    random_request(&p, WIRE_HEARTBEAT, &r);
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(&r, &b);
    assert_null(strstr(buf_cstr(&b), "fabric"));
    memcpy(r.u.heartbeat.fabric, "europe/alder/rack-3", sizeof "europe/alder/rack-3");
    buf_reset(&b);
    wire_request_encode(&r, &b);
    compare("request-heartbeat-fabric", &b);
    assert_int_equal(wire_request_decode(WIRE_HEARTBEAT, b.data, b.bytes_count, &back, &e), BRG_OK);
    assert_memory_equal(&r, &back, sizeof r);
    buf_fini(&b);
}

/* The same for what proves it; and where it comes from. */
TEST(wire_golden_seals) {
    struct prng p;
    struct wire_request r, back;
    struct wire_answer a, again;
    struct buf b;
    struct err e = {0};
    prng_seed(&p, 107);
    random_request(&p, WIRE_JOIN, &r);
    for (int i = 0; i < HASH_BYTES; i++) {
        r.u.join.version_seal.v[i] = (uint8_t)prng_u64(&p);
        r.u.join.term_seal.v[i] = (uint8_t)prng_u64(&p);
    }
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(&r, &b);
    compare("request-join-seals", &b);
    assert_int_equal(wire_request_decode(WIRE_JOIN, b.data, b.bytes_count, &back, &e), BRG_OK);
    assert_memory_equal(&r, &back, sizeof r);
    random_answer(&p, WIRE_HEARTBEAT, WIRE_OK, &a);
    buf_reset(&b);
    wire_answer_encode(&a, &b);
    assert_null(strstr(buf_cstr(&b), "seal"));
    for (int i = 0; i < HASH_BYTES; i++) {
        a.term_seal.v[i] = (uint8_t)prng_u64(&p);
        a.u.heartbeat.round.seal.v[i] = (uint8_t)prng_u64(&p);
    }
    buf_reset(&b);
    wire_answer_encode(&a, &b);
    compare("answer-heartbeat-seals", &b);
    assert_int_equal(wire_answer_decode(WIRE_HEARTBEAT, b.data, b.bytes_count, &again, &e), BRG_OK);
    assert_memory_equal(&a, &again, sizeof a);
    buf_fini(&b);
}

/* The same for synchronous rounds: who can take part, and until when they last. */
TEST(wire_golden_synchronous) {
    struct prng p;
    struct wire_request r, back;
    struct wire_answer a, again;
    struct buf b;
    struct err e = {0};
    prng_seed(&p, 108);
    random_request(&p, WIRE_JOIN, &r);
    r.u.join.gradients = true;
    buf_init(&b, WIRE_BODY_MAX);
    wire_request_encode(&r, &b);
    compare("request-join-gradients", &b);
    assert_int_equal(wire_request_decode(WIRE_JOIN, b.data, b.bytes_count, &back, &e), BRG_OK);
    assert_memory_equal(&r, &back, sizeof r);
    random_answer(&p, WIRE_HEARTBEAT, WIRE_OK, &a);
    buf_reset(&b);
    wire_answer_encode(&a, &b);
    assert_null(strstr(buf_cstr(&b), "sync_tokens"));
    a.u.heartbeat.round.sync_tokens = 123456789;
    buf_reset(&b);
    wire_answer_encode(&a, &b);
    compare("answer-heartbeat-synchronous", &b);
    assert_int_equal(wire_answer_decode(WIRE_HEARTBEAT, b.data, b.bytes_count, &again, &e), BRG_OK);
    assert_memory_equal(&a, &again, sizeof a);
    buf_fini(&b);
}

TEST(wire_golden_answers) {
    struct prng p;
    prng_seed(&p, 101);
    for (int k = WIRE_JOIN; k <= WIRE_LEAVE; k++) {
        for (int c = WIRE_OK; c <= WIRE_COMPLETE; c++) {
            char name[64];
            struct wire_answer a, back;
            struct buf b;
            struct err e = {0};
            buf_init(&b, WIRE_BODY_MAX);
            random_answer(&p, (enum wire_kind)k, (enum wire_code)c, &a);
            wire_answer_encode(&a, &b);
            (void)snprintf(name, sizeof name, "answer-%s-%s", names[k],
                           wire_code_name((enum wire_code)c));
            compare(name, &b);
            assert_int_equal(
                wire_answer_decode((enum wire_kind)k, b.data, b.bytes_count, &back, &e), BRG_OK);
            assert_memory_equal(&a, &back, sizeof a);
            buf_fini(&b);
        }
    }
}

TEST(wire_golden_run) {
    struct prng p;
    static struct wire_run r;
    struct buf b;
    prng_seed(&p, 102);
    random_run(&p, &r);
    (void)snprintf(r.model_json, sizeof r.model_json, "{\"model_type\":\"qwen3\"}");
    r.optimizer =
        0; /* what has no optimizer of its own is written as it was before there was another */
    r.muon_momentum = r.muon_lr_ratio = 0;
    buf_init(&b, WIRE_BODY_MAX);
    wire_run_encode(&r, &b);
    compare("run", &b);
    buf_fini(&b);
}

/* Where a hub with an object store sends a site. */
TEST(wire_golden_direct) {
    AUTO_FREE struct direct_put *p = mem_alloc(2, sizeof *p);
    AUTO_FREE struct direct_get *g = mem_alloc(2, sizeof *g);
    struct err e = {0};
    struct buf b;
    buf_init(&b, WIRE_BODY_MAX);
    (void)snprintf(g->url, sizeof g->url,
                   "https://s3.example.org/bucket/run/checkpoints/ab?X-Amz-Expires=3600");
    g->bytes = UINT64_C(1) << 40;
    direct_get_encode(g, &b);
    assert_int_equal(direct_get_decode(b.data, b.bytes_count, g + 1, &e), BRG_OK);
    assert_memory_equal(g, g + 1, sizeof *g);
    b.bytes_count--; /* its newline; compare() wants the text alone */
    compare("direct-get", &b);
    buf_reset(&b);
    p->store = true;
    p->offset = 4096;
    p->pieces_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        p->pieces[i].at = 4096 * (i + 1);
        p->pieces[i].bytes = 4096;
        (void)snprintf(p->pieces[i].url, sizeof p->pieces[i].url,
                       "https://s3.example.org/bucket/run/contributions/cd?partNumber=%u", i + 2);
    }
    direct_put_encode(p, &b);
    assert_int_equal(direct_put_decode(b.data, b.bytes_count, p + 1, &e), BRG_OK);
    assert_memory_equal(p, p + 1, sizeof *p);
    b.bytes_count--;
    compare("direct-put", &b);
    /* What hubs say that have no store. */
    assert_int_equal(direct_put_decode("{\"offset\": 4}", 13, p, &e), BRG_OK);
    assert_false(p->store);
    assert_true(p->offset == 4);
    buf_fini(&b);
}
