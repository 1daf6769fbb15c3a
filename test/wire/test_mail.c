/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and answers as text, of files and of a bucket; and a mailbox's names, pauses and ages. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "wire/mail.h"
#include "wire/spool.h"

static const char files_text[] =
    "BRGSPOOL1\nmethod GET\ntarget /v1/versions/3/checkpoint\ntimeout_ms 30000\nfile /a/b\n"
    "offset 7\nbytes 0\nbody 0\n\n";
static const char mail_text[] = "BRGSPOOL2\nmethod POST\ntarget /v1/lease\ntimeout_ms 20000\n"
                                "token brg_0_x\noffset 0\nbytes 0\nbody 2\n\n{}";

static enum brg_status decode(const char *text, struct spool_request *r, struct err *e) {
    return spool_request_decode(text, strlen(text), r, e);
}

TEST(mail_requests_of_both_forms_are_what_they_were) {
    static const char *const all[] = {files_text, mail_text};
    for (int i = 0; i < 2; i++) {
        AUTO_BUF struct buf b = {.bytes_max = SPOOL_BYTES_MAX};
        struct spool_request r;
        struct err e = {0};
        if (decode(all[i], &r, &e) != BRG_OK) fail_msg("%s", e.text);
        assert_int_equal(r.form, i == 0 ? SPOOL_FILES : SPOOL_MAIL);
        spool_request_encode(&r, &b);
        assert_string_equal(buf_cstr(&b), all[i]);
    }
}

TEST(mail_request_of_a_program_that_names_no_form_is_one_of_files) {
    AUTO_BUF struct buf b = {.bytes_max = SPOOL_BYTES_MAX};
    struct spool_request r = {.method = SPOOL_GET, .target = "/v1/run", .timeout_ms = 5}, s;
    struct err e = {0};
    spool_request_encode(&r, &b);
    assert_int_equal(spool_request_decode(b.data, b.bytes_count, &s, &e), BRG_OK);
    assert_int_equal(s.form, SPOOL_FILES);
}

/* mail_text with one line replaced. */
static void refused(const char *line, const char *by, const char *says) {
    char text[8192];
    struct spool_request r;
    struct err e = {0};
    const char *at = strstr(mail_text, line);
    assert_non_null(at);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - mail_text), mail_text, by,
                   at + strlen(line));
    assert_int_equal(decode(text, &r, &e), BRG_E_MESSAGE);
    if (strstr(e.text, says) == NULL) fail_msg("\"%s\" is not in \"%s\"", says, e.text);
}

TEST(mail_requests_that_no_hub_takes_are_refused) {
    char longer[400];
    memset(longer, 'x', sizeof longer);
    memcpy(longer, "token ", 6);
    longer[sizeof longer - 1] = '\0';
    refused("BRGSPOOL2", "BRGSPOOL3", "no BRGSPOOL1");
    refused("method POST", "method PUT", "method");
    refused("method POST", "method DELETE", "method");
    refused("target /v1/lease", "target /v1/operator/drain", "target");
    refused("target /v1/lease", "target /v1/events", "target");
    refused("target /v1/lease", "target /metrics", "target");
    refused("target /v1/lease", "target /v1/../v1/lease", "target");
    refused("target /v1/lease", "target /v1/lease HTTP/1.1\r\nX: y", "target");
    refused("token brg_0_x", "token brg_0_x\r", "token");
    refused("token brg_0_x", "token two words", "token");
    refused("token brg_0_x", longer, "token");
    refused("token brg_0_x", "file /etc/passwd", "token");
    refused("offset 0", "offset 1", "offset");
    refused("bytes 0", "bytes 99999999", "offset");
    refused("timeout_ms 20000", "timeout_ms 99999999", "timeout_ms");
    refused("body 2", "body 3", "body");
}

TEST(mail_request_for_a_piece_has_a_length) {
    struct spool_request r;
    struct err e = {0};
    const char *good = "BRGSPOOL2\nmethod GET\ntarget /v1/versions/3/ledger\ntimeout_ms 20000\n"
                       "token \noffset 131072\nbytes 131072\nbody 0\n\n";
    const char *bad = "BRGSPOOL2\nmethod GET\ntarget /v1/versions/3/ledger\ntimeout_ms 20000\n"
                      "token \noffset 131072\nbytes 0\nbody 0\n\n";
    assert_int_equal(decode(good, &r, &e), BRG_OK);
    assert_int_equal(r.offset, 131072);
    assert_string_equal(r.token, "");
    assert_int_equal(decode(bad, &r, &e), BRG_E_MESSAGE);
}

TEST(mail_names_are_ids_and_nothing_else) {
    char id[ID_HEX_BYTES], key[MAIL_KEY_MAX];
    mail_key(MAIL_REQUESTS, "0123456789abcdef0123456789abcdef", key);
    assert_string_equal(key, "mail/req/0123456789abcdef0123456789abcdef");
    assert_true(mail_key_id(key, MAIL_REQUESTS, id));
    assert_string_equal(id, "0123456789abcdef0123456789abcdef");
    assert_false(mail_key_id(key, MAIL_ANSWERS, id));
    assert_false(mail_key_id("mail/req/", MAIL_REQUESTS, id));
    assert_false(mail_key_id("mail/req/0123456789ABCDEF0123456789abcdef", MAIL_REQUESTS, id));
    assert_false(mail_key_id("mail/req/0123456789abcdef0123456789abcdef0", MAIL_REQUESTS, id));
    assert_false(mail_key_id("mail/req/../456789abcdef0123456789abcdef", MAIL_REQUESTS, id));
    assert_false(mail_key_id("mail/req/0123456789abcdef0123456789abcde/", MAIL_REQUESTS, id));
}

TEST(mail_pauses_grow_to_their_limit_and_spread) {
    uint32_t p = MAIL_PAUSE_FIRST_MS, looks = 0;
    while (p < 2000) {
        uint32_t next = mail_pause_next(p, 2000);
        assert_true(next > p);
        p = next;
        looks++;
    }
    assert_int_equal(p, 2000);
    assert_int_equal(mail_pause_next(p, 2000), 2000);
    assert_in_range(looks, 5, 12);
    uint32_t least = UINT32_MAX, most = 0;
    for (uint64_t r = 0; r < 1000; r++) {
        uint32_t s = mail_pause_spread(1000, r * 0x9e3779b97f4a7c15u);
        if (s < least) least = s;
        if (s > most) most = s;
    }
    assert_int_equal(least, 800);
    assert_int_equal(most, 1200);
}

/* Ages are of the store's clock alone; one that tells no times makes nothing stale. */
TEST(mail_that_nobody_waits_for_is_stale) {
    assert_false(mail_stale(1000, 1000, 20000));
    assert_false(mail_stale(1000, 1000 + 20 + MAIL_SLACK_S, 20000));
    assert_true(mail_stale(1000, 1000 + 20 + MAIL_SLACK_S + 1, 20000));
    assert_false(mail_stale(2000, 1000, 20000));
    assert_false(mail_stale(0, 100000, 20000));
    assert_false(mail_stale(1000, 0, 20000));
}
