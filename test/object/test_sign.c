/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures against what is published, and against another implementation (test/golden/make_sigv4.py). */
#include "../harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "object/object.h"

/* "Deriving the signing key" of AWS' documentation, in its two versions. */
TEST(object_signing_keys_are_the_published_ones) {
    static const struct {
        const char *day, *hex;
    } known[] = {{"20150830", "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"},
                 {"20120215", "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"}};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
        char hex[HASH_HEX_BYTES];
        struct hash k = object_signing_key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", known[i].day,
                                           "us-east-1", "iam");
        hash_hex(&k, hex);
        assert_string_equal(hex, known[i].hex);
    }
}

static char *field(char **at) {
    return strsep(at, "\t");
}

static int64_t number(char **at) {
    return (int64_t)strtoll(field(at), NULL, 10);
}

/* One line of the golden file: our query is that one. The first line is AWS' own example. */
static void compare(char *line) {
    struct object_keys k = {.id = ""};
    struct object_param more[2];
    struct object_signing s = {.service = "s3", .keys = &k, .params = more};
    AUTO_BUF struct buf out;
    s.method = field(&line);
    s.host = field(&line);
    s.path = field(&line);
    s.region = field(&line);
    (void)snprintf(k.id, sizeof k.id, "%s", field(&line));
    (void)snprintf(k.secret, sizeof k.secret, "%s", field(&line));
    (void)snprintf(k.session, sizeof k.session, "%s", field(&line));
    s.unix_s = number(&line);
    s.expires_s = (uint32_t)number(&line);
    char *params = field(&line);
    for (char *p; params != NULL && *params != '\0' && (p = strsep(&params, "&")) != NULL;) {
        char *value = strchr(p, '=');
        assert_non_null(value);
        *value = '\0';
        more[s.params_count++] = (struct object_param){p, value + 1};
    }
    buf_init(&out, OBJECT_URL_MAX);
    object_sign_query(&s, &out);
    assert_string_equal(buf_cstr(&out), line);
}

TEST(object_queries_are_those_of_another_implementation) {
    AUTO_BUF struct buf text;
    struct err e = {0};
    int lines = 0;
    buf_init(&text, 1 << 20);
    if (os_read_file("test/golden/sigv4/queries.txt", 1 << 20, &text, &e) != BRG_OK)
        fail_msg("%s", e.text);
    char *copy = mem_alloc(text.bytes_count + 1, 1), *at = copy, *line;
    memcpy(copy, text.data, text.bytes_count);
    assert_non_null(
        strstr(copy, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"));
    while ((line = strsep(&at, "\n")) != NULL) {
        if (*line == '\0') continue;
        compare(line);
        lines++;
    }
    assert_int_equal(lines, 25);
    mem_free(copy);
}

TEST(object_dates_have_no_time_zone_and_know_leap_years) {
    static const struct {
        int64_t s;
        const char *text;
    } known[] = {{0, "19700101T000000Z"},          {951827696, "20000229T123456Z"},
                 {1369353600, "20130524T000000Z"}, {4107542399, "21000228T235959Z"},
                 {4107542400, "21000301T000000Z"}, {-1, "19700101T000000Z"}};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
        char out[OBJECT_DATE_BYTES];
        object_date(known[i].s, out);
        assert_string_equal(out, known[i].text);
    }
}

static void place(const char *url, const char *endpoint, const char *region, const char *says) {
    struct object_place p;
    struct err e = {0};
    enum brg_status s = object_place_parse(url, endpoint, region, &p, &e);
    assert_int_equal(s, *says == '\0' ? BRG_OK : BRG_E_CONFIG);
    if (strstr(e.text, says) == NULL) fail_msg("\"%s\" is not in \"%s\"", says, e.text);
}

TEST(object_places_that_are_none_are_named) {
    place("s3://bucket", "https://s3.example.org", "us-east-1", "");
    place("s3://bucket/a/b", "https://s3.example.org:8443/", "x", "");
    place("s3://bucket/a/b/", "http://127.0.0.1:9000", "x", "");
    place("s3://bucket", "http://localhost", "x", "");
    place("s3://bucket", "http://[::1]:80", "x", "");
    place("bucket", "https://s3", "x", "s3://");
    place("s3://b", "https://s3", "x", "bucket's name");
    place("s3://bu cket", "https://s3", "x", "bucket's name");
    place("s3://bucket/../x", "https://s3", "x", "prefix");
    place("s3://bucket//x", "https://s3", "x", "prefix");
    place("s3://bucket/x?y", "https://s3", "x", "prefix");
    place("s3://bucket", "", "x", "https://");
    place("s3://bucket", "http://s3.example.org", "x", "readable on the way");
    place("s3://bucket", "http://127.0.0.1.example.org", "x", "readable on the way");
    place("s3://bucket", "http://localhost.example.org", "x", "readable on the way");
    place("s3://bucket", "https://me@s3", "x", "https://");
    place("s3://bucket", "https://s3/path", "x", "https://");
    place("s3://bucket", "https://s3", "", "region");
    place("s3://bucket", "https://s3", "us east", "region");
}
