/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, rates and the choice of connections that are cut: what lets people into the hub, without a socket. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "base/base.h"
#include "hub/limits.h"
#include "hub/tokens.h"
#include "hub/watch.h"

#define S(n) ((time_ns)((n)*1e9))

/* ---- Tokens ---------------------------------------------------------------------------------------- */
static struct tokens *with_tokens(uint32_t n, char text[][TOKEN_TEXT_BYTES]) {
    struct tokens *t = mem_alloc(1, sizeof *t);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t random[TOKEN_RANDOM_BYTES];
        struct token *k = &t->tokens[t->tokens_count++];
        for (size_t b = 0; b < sizeof random; b++) random[b] = (uint8_t)(i * 37 + b * 11 + 1);
        token_make(random, text[i], k->id, &k->hash);
        k->scope = (enum token_scope)(1 + i % 4);
        (void)snprintf(k->name, sizeof k->name, "site%u", i);
        k->created = 1000 + i;
    }
    return t;
}

TEST(hub_T1_a_token_is_good_by_its_hash_alone) {
    char text[4][TOKEN_TEXT_BYTES], bad[TOKEN_TEXT_BYTES + 8];
    struct tokens *t = with_tokens(4, text);
    const struct token *k;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(strlen(text[i]), TOKEN_TEXT_BYTES - 1);
        assert_int_equal(tokens_find(t, text[i], 5000, &k), TOKEN_GOOD);
        assert_ptr_equal(k, &t->tokens[i]);
    }
    for (size_t at = 0; at < TOKEN_TEXT_BYTES - 1; at++) { /* one digit is another */
        memcpy(bad, text[1], TOKEN_TEXT_BYTES);
        bad[at] = bad[at] == '5' ? '6' : '5';
        assert_int_equal(tokens_find(t, bad, 5000, &k), TOKEN_UNKNOWN);
        assert_null(k);
    }
    (void)snprintf(bad, sizeof bad, "%s0", text[1]);
    assert_int_equal(tokens_find(t, bad, 5000, &k), TOKEN_UNKNOWN);
    (void)snprintf(bad, sizeof bad, "%.*s", TOKEN_TEXT_BYTES - 2, text[1]);
    assert_int_equal(tokens_find(t, bad, 5000, &k), TOKEN_UNKNOWN);
    assert_int_equal(tokens_find(t, "", 5000, &k), TOKEN_UNKNOWN);
    /* The id of one with the secret of another. */
    memcpy(bad, text[1], TOKEN_TEXT_BYTES);
    memcpy(bad + 4, text[2] + 4, 8);
    assert_int_equal(tokens_find(t, bad, 5000, &k), TOKEN_UNKNOWN);
    /* A hash that is shown as a token. */
    char hex[HASH_HEX_BYTES];
    hash_hex(&t->tokens[1].hash, hex);
    (void)snprintf(bad, sizeof bad, "brg_%s_%s", t->tokens[1].id, hex);
    assert_int_equal(tokens_find(t, bad, 5000, &k), TOKEN_UNKNOWN);
    t->tokens[1].revoked = 4000;
    assert_int_equal(tokens_find(t, text[1], 5000, &k), TOKEN_REVOKED);
    t->tokens[2].expires = 5000;
    assert_int_equal(tokens_find(t, text[2], 4999, &k), TOKEN_GOOD);
    assert_int_equal(tokens_find(t, text[2], 5000, &k), TOKEN_EXPIRED);
    /* Nobody's record: a list without any. */
    t->tokens_count = 0;
    assert_int_equal(tokens_find(t, text[0], 5000, &k), TOKEN_UNKNOWN);
    mem_free(t);
}

TEST(hub_tokens_file_there_and_back) {
    char text[4][TOKEN_TEXT_BYTES];
    struct tokens *t = with_tokens(4, text), *back = mem_alloc(1, sizeof *back);
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, TOKENS_FILE_MAX);
    t->tokens[3].revoked = 77;
    tokens_encode(t, &b);
    assert_false(b.overflow);
    for (int i = 0; i < 4; i++) /* no secret in the file */
        assert_null(strstr(buf_cstr(&b), text[i] + 13));
    assert_int_equal(tokens_decode(b.data, b.bytes_count, back, &e), BRG_OK);
    assert_int_equal(back->tokens_count, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(back->tokens[i].id, t->tokens[i].id);
        assert_string_equal(back->tokens[i].name, t->tokens[i].name);
        assert_int_equal(back->tokens[i].scope, t->tokens[i].scope);
        assert_true(hash_equal(&back->tokens[i].hash, &t->tokens[i].hash));
        assert_int_equal(back->tokens[i].revoked, t->tokens[i].revoked);
    }
    /* The most that there can be fits. */
    for (uint32_t i = 4; i < TOKENS_MAX; i++) {
        t->tokens[i] = t->tokens[0];
        memset(t->tokens[i].name, 'a', WIRE_NAME_MAX - 1);
        t->tokens[i].expires = UINT64_C(1) << 53;
        (void)snprintf(t->tokens[i].id, TOKEN_ID_BYTES, "%08x", i);
    }
    t->tokens_count = TOKENS_MAX;
    buf_reset(&b);
    tokens_encode(t, &b);
    assert_false(b.overflow);
    assert_int_equal(tokens_decode(b.data, b.bytes_count, back, &e), BRG_OK);
    mem_free(t);
    mem_free(back);
}

static void refuses(const char *json, const char *names) {
    struct tokens *t = mem_alloc(1, sizeof *t);
    struct err e = {0};
    assert_int_equal(tokens_decode(json, strlen(json), t, &e), BRG_E_MESSAGE);
    assert_non_null(strstr(e.text, names));
    assert_int_equal(t->tokens_count, 0);
    mem_free(t);
}

#define HASH64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define TOKEN_JSON(id, scope, name)                                                                \
    "{\"id\":\"" id "\",\"scope\":\"" scope "\",\"name\":\"" name "\",\"hash\":\"" HASH64          \
    "\",\"created\":1,\"expires\":0,\"revoked\":0}"

TEST(hub_T2_a_tokens_file_that_is_wrong_lets_nobody_in) {
    refuses("", "JSON");
    refuses("[]", "object");
    refuses("{\"tokens\":[]}", "version");
    refuses("{\"version\":2,\"tokens\":[]}", "version");
    refuses("{\"version\":1,\"tokens\":[{}]}", "id");
    refuses("{\"version\":1,\"tokens\":[" TOKEN_JSON("0123456x", "site", "a") "]}", "tokens[0].id");
    refuses("{\"version\":1,\"tokens\":[" TOKEN_JSON("01234567", "root", "a") "]}", "scope");
    refuses("{\"version\":1,\"tokens\":[" TOKEN_JSON("01234567", "site", "") "]}", "name");
    refuses("{\"version\":1,\"tokens\":[" TOKEN_JSON("01234567", "agent", "../a") "]}", "name");
    refuses("{\"version\":1,\"tokens\":[" TOKEN_JSON("01234567", "site", "a") "," TOKEN_JSON(
                "01234567", "operator", "") "]}",
            "tokens[1].id");
}

TEST(hub_tokens_headers) {
    static const struct {
        const char *value, *token; /* NULL: none */
    } cases[] = {
        {"Bearer abc", "abc"},
        {"bearer   abc", "abc"},
        {NULL, NULL},
        {"", NULL},
        {"Bearer ", NULL},
        {"Bearerabc", NULL},
        {"Basic YTphYmM=", "abc"},
        {"basic OmE6Yg==", "a:b"}, /* no name; a colon in the password */
        {"Basic YWJj", NULL},
        {"Basic YTo=", NULL},
        {"Basic YTphYmM", NULL},
        {"Basic ****", NULL},
        {"Basic ", NULL},
        {"Digest abc", NULL},
    };
    char out[TOKEN_HEADER_MAX], large[3 * TOKEN_HEADER_MAX];
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        bool there = token_of_header(cases[i].value, out);
        assert_int_equal(there, cases[i].token != NULL);
        if (there) assert_string_equal(out, cases[i].token);
    }
    memset(large, 'A', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    memcpy(large, "Bearer ", 7);
    assert_false(token_of_header(large, out));
    memcpy(large, "Basic  ", 7);
    assert_false(token_of_header(large, out));
}

TEST(hub_tokens_scopes) {
    enum token_scope s;
    assert_true(token_scope_parse("operator", &s));
    assert_int_equal(s, TOKEN_OPERATOR);
    assert_false(token_scope_parse("root", &s));
    /* A viewer sees figures and nothing else; nobody but an operator decides; an operator trains nothing. */
    assert_int_equal(SCOPES_FIGURES & 1 << TOKEN_VIEWER, 1 << TOKEN_VIEWER);
    assert_int_equal(SCOPES_WEIGHTS & 1 << TOKEN_VIEWER, 0);
    assert_int_equal(SCOPES_SITE & 1 << TOKEN_VIEWER, 0);
    assert_int_equal(SCOPES_SITE & 1 << TOKEN_OPERATOR, 0);
    assert_int_equal(SCOPES_AGENT & 1 << TOKEN_SITE, 0);
    assert_int_equal(SCOPES_OPERATOR, 1 << TOKEN_OPERATOR);
}

/* ---- Rates ----------------------------------------------------------------------------------------- */
TEST(hub_Q1_a_key_is_given_its_rate_and_not_more) {
    struct limits *l = mem_alloc(1, sizeof *l);
    uint64_t given = 0;
    limits_init(l, 10, 20);
    for (int i = 0; i < 20; i++) assert_int_equal(limits_take(l, 7, S(1)), 0);
    time_ns wait = limits_take(l, 7, S(1));
    assert_true(wait > 0);
    assert_true(wait <= S(0.11));
    assert_int_equal(limits_take(l, 8, S(1)), 0);        /* another key */
    assert_int_equal(limits_take(l, 7, S(1) + wait), 0); /* when it was told to come */
    assert_true(limits_take(l, 7, S(1) + wait) > 0);
    for (int ms = 0; ms < 10000; ms++) /* asked a thousand times a second */
        given += limits_take(l, 9, S(5) + (time_ns)ms * NS_PER_MS) == 0;
    assert_in_range(given, 20 + 99, 20 + 101);
    assert_int_equal(limits_take(l, 9, S(3)), limits_wait(l, 9, S(3))); /* a clock that went back */
    mem_free(l);
}

TEST(hub_limits_a_flood_of_keys_does_not_grow_nor_shut_others_out) {
    struct limits *l = mem_alloc(1, sizeof *l);
    limits_init(l, 1, 2);
    for (uint64_t k = 1; k < 200000; k++) assert_int_equal(limits_take(l, k, S(1)), 0);
    assert_int_equal(limits_take(l, UINT64_MAX, S(1)), 0);
    assert_int_equal(limits_take(l, 0, S(1)), 0); /* the key that stands for none is as any other */
    assert_int_equal(limits_take(l, 0, S(1)), 0);
    assert_true(limits_take(l, 0, S(1)) > 0);
    mem_free(l);
}

/* ---- Connections ------------------------------------------------------------------------------------- */
enum { W_MAX = 400 };
static struct watch w[W_MAX];

static struct watch *open_one(struct watch_list *l, int i, uint64_t address) {
    w[i] = (struct watch){.fd = i, .address = address};
    watch_add(l, &w[i]);
    struct watch *over = watch_surplus(l, address, 100);
    if (over != NULL) over->cut = true;
    return over;
}

TEST(hub_V1_strangers_are_bounded) {
    struct watch_list l = {0};
    for (int i = 0; i < 32; i++) assert_null(open_one(&l, i, 5));
    for (int i = 32; i < 64; i++) assert_ptr_equal(open_one(&l, i, 5), &w[i - 32]); /* the oldest */
    for (int i = 64; i < 132; i++) assert_null(open_one(&l, i, 1000 + (uint64_t)i));
    /* 32 of address 5, and 68: the next is one too many for all, whoever comes */
    assert_ptr_equal(open_one(&l, 132, 9000), &w[32]);
    assert_int_equal(l.count, 133);
    for (int i = 0; i < 133; i++) watch_remove(&l, &w[i]);
    assert_int_equal(l.count, 0);
    assert_int_equal(l.strangers, 0);
    assert_null(l.oldest);
    assert_null(l.newest);
}

TEST(hub_V2_friends_are_never_cut_to_make_room) {
    struct watch_list l = {0};
    for (int i = 0; i < 40; i++) {
        assert_null(open_one(&l, i, 5));
        watch_admit(&l, &w[i]);
        watch_admit(&l, &w[i]); /* each good request says so */
    }
    assert_int_equal(l.strangers, 0);
    for (int i = 40; i < 350; i++) (void)open_one(&l, i, 5);
    for (int i = 0; i < 40; i++) assert_false(w[i].cut);
    assert_int_equal(l.strangers, 310);
}

TEST(hub_watch_deadlines) {
    struct watch x = {.since = S(10), .phase = WATCH_IDLE};
    assert_int_equal(watch_deadline(&x, S(20), S(150)), S(30)); /* nothing shown yet */
    x.admitted = true;
    assert_int_equal(watch_deadline(&x, S(20), S(150)), S(160));
    x.phase = WATCH_BODY;
    assert_int_equal(watch_deadline(&x, S(20), S(150)), S(70));
    x.received = 1 << 20; /* what has come in earns time: a slow link is no attack */
    assert_int_equal(watch_deadline(&x, S(20), S(150)), S(70 + 512));
    x.phase = WATCH_ANSWER;
    assert_int_equal(watch_deadline(&x, S(20), S(150)), TIME_NS_NEVER);
    x.phase = WATCH_IDLE;
    x.cut = true; /* once is enough */
    assert_int_equal(watch_deadline(&x, S(20), S(150)), TIME_NS_NEVER);
}
