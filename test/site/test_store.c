/* SPDX-License-Identifier: Apache-2.0 */
/* The object store's client against a server that says what the test tells it to. What a real store says to what is
 * signed here, `make test-s3` shows. */
#include "../harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os.h"
#include "object/object.h"
#include "served.h"
#include "wire/client.h"

#define SHA_OF_DIGITS "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
#define OK_HEAD "HTTP/1.1 200 OK\r\n" CLOSING

static void keys_put(const char *secret, char out[OS_PATH_MAX]) {
    char text[200];
    struct err e = {0};
    os_path(out, test_dir(), "keys");
    (void)snprintf(text, sizeof text,
                   "[default]\naws_access_key_id = ID\naws_secret_access_key = %s\n", secret);
    assert_int_equal(os_write_secret_atomic(out, text, strlen(text), &e), BRG_OK);
}

static struct object_store *store_at(const struct server *s, uint64_t part_bytes) {
    struct object_place p;
    struct object_store *o = NULL;
    struct err e = {0};
    char keys[OS_PATH_MAX];
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    unsetenv("AWS_PROFILE");
    keys_put("S3CRET", keys);
    assert_int_equal(client_global_init(&e), BRG_OK);
    assert_int_equal(object_place_parse("s3://bucket/p", s->url, "us-east-1", &p, &e), BRG_OK);
    assert_int_equal(object_store_open(&p, keys, part_bytes, &o, &e), BRG_OK);
    return o;
}

static void end(struct object_store *o, struct server *s) {
    object_store_close(o);
    server_stop(s);
    for (int i = 0; i < s->turns_count; i++) {
        assert_null(strstr(s->requests[i], "S3CRET"));
        assert_non_null(strstr(s->requests[i], "Authorization: AWS4-HMAC-SHA256 Credential=ID/"));
        assert_null(strstr(s->requests[i], "SignedHeaders=expect"));
    }
}

static struct hash digits(char path[OS_PATH_MAX]) {
    struct err e = {0};
    os_path(path, test_dir(), "file");
    assert_int_equal(os_write_file_atomic(path, "0123456789", 10, &e), BRG_OK);
    return hash_of("0123456789", 10);
}

#define LOOKED(total, sha)                                                                         \
    "HTTP/1.1 206 Partial Content\r\n" CLOSING                                                     \
    "Content-Length: 1\r\nContent-Range: bytes 0-0/" total "\r\nx-amz-meta-sha256: " sha           \
    "\r\n\r\n0"

static enum brg_status put_gives(const char *looked, struct err *e) {
    struct turn turns[] = {{"PUT /bucket/p/k HTTP", OK_HEAD "Content-Length: 0\r\n\r\n"},
                           {"Range: bytes=0-0", looked}};
    struct server s;
    char path[OS_PATH_MAX];
    struct hash h = digits(path);
    server_start(&s, turns, 2);
    struct object_store *o = store_at(&s, 1000);
    enum brg_status st = object_put_file(o, "k", path, &h, e);
    struct object_counts c = object_store_counts(o);
    assert_int_equal(c.writes, 1);
    assert_int_equal(c.reads, 1);
    assert_int_equal(c.bytes_up, 10);
    end(o, &s);
    assert_non_null(strstr(s.requests[0], "x-amz-meta-sha256: " SHA_OF_DIGITS));
    assert_non_null(strstr(s.requests[0], "x-amz-content-sha256: " SHA_OF_DIGITS));
    return st;
}

TEST(site_store_a_file_is_there_when_it_was_seen_there) {
    struct err e = {0};
    assert_int_equal(put_gives(LOOKED("10", SHA_OF_DIGITS), &e), BRG_OK);
    assert_int_equal(put_gives(LOOKED("9", SHA_OF_DIGITS), &e), BRG_E_CORRUPT);
    assert_non_null(strstr(e.text, "9 of the 10 bytes"));
    assert_int_equal(put_gives(LOOKED("10", "00"), &e), BRG_E_CORRUPT);
}

TEST(site_store_an_upload_in_parts_goes_on_where_it_was) {
    static const struct turn turns[] = {
        {"GET /bucket?prefix=p%2Fk&uploads= HTTP", OK_HEAD
         "\r\n<ListMultipartUploadsResult><Upload><Key>p/other</Key><UploadId>X</UploadId></Upload>"
         "<Upload><Key>p/k</Key><UploadId>U/1</UploadId></Upload></ListMultipartUploadsResult>"},
        {"GET /bucket/p/k?uploadId=U%2F1 HTTP",
         OK_HEAD "\r\n<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>\"e1\"</ETag><Size>4</"
                 "Size></Part>"
                 "<Part><PartNumber>2</PartNumber><ETag>\"short\"</ETag><Size>3</Size></Part></"
                 "ListPartsResult>"},
        {"PUT /bucket/p/k?partNumber=2&uploadId=U%2F1 HTTP",
         OK_HEAD "ETag: \"e2\"\r\nContent-Length: 0\r\n\r\n"},
        {"PUT /bucket/p/k?partNumber=3&uploadId=U%2F1 HTTP",
         OK_HEAD "ETag: \"e3\"\r\nContent-Length: 0\r\n\r\n"},
        {"POST /bucket/p/k?uploadId=U%2F1 HTTP", OK_HEAD
         "\r\n<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"},
        {"Range: bytes=0-0", LOOKED("10", SHA_OF_DIGITS)},
    };
    struct server s;
    struct err e = {0};
    char path[OS_PATH_MAX];
    struct hash h = digits(path);
    server_start(&s, turns, 6);
    struct object_store *o = store_at(&s, 4);
    if (object_put_file(o, "k", path, &h, &e) != BRG_OK) fail_msg("%s", e.text);
    end(o, &s);
    assert_non_null(strstr(s.requests[2], "\r\n\r\n4567"));
    assert_non_null(strstr(s.requests[3], "\r\n\r\n89"));
    assert_non_null(strstr(s.requests[4], "<PartNumber>1</PartNumber><ETag>&quot;e1&quot;</ETag>"));
    assert_non_null(strstr(s.requests[4], "<PartNumber>3</PartNumber><ETag>&quot;e3&quot;</ETag>"));
}

TEST(site_store_an_upload_that_does_not_become_an_object_says_so) {
    static const struct turn turns[] = {
        {"POST /bucket/p/k?uploadId=U", OK_HEAD "\r\n<Error><Code>InternalError</Code></Error>"}};
    struct server s;
    struct err e = {0};
    struct object_parts none = {0};
    server_start(&s, turns, 1);
    struct object_store *o = store_at(&s, 4);
    assert_int_equal(object_upload_finish(o, "k", "U", &none, &e), BRG_E_NET);
    end(o, &s);
}

static enum brg_status into(void *user, const void *data, size_t n, struct err *e) {
    (void)e;
    buf_put(user, data, n);
    return BRG_OK;
}

TEST(site_store_a_fetch_that_was_cut_goes_on) {
    static const struct turn turns[] = {
        {"GET /bucket/p/k HTTP", OK_HEAD "Content-Length: 10\r\n\r\n01234"},
        {"Range: bytes=5-", "HTTP/1.1 206 Partial Content\r\n" CLOSING
                            "Content-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\n56789"},
        {"Range: bytes=5-",
         OK_HEAD "Content-Length: 10\r\n\r\n0123456789"}, /* no Range on the way */
        {"Range: bytes=12-",
         "HTTP/1.1 416 Range\r\n" CLOSING "\r\n<Error><Code>InvalidRange</Code></Error>"},
    };
    struct server s;
    struct err e = {0};
    AUTO_BUF struct buf b = {.bytes_max = 100};
    uint64_t total = 0;
    server_start(&s, turns, 4);
    struct object_store *o = store_at(&s, 4);
    assert_int_equal(object_get(o, "k", 0, TIME_NS_NEVER, into, &b, &total, &e), BRG_E_NET);
    assert_string_equal(buf_cstr(&b), "01234");
    assert_int_equal(object_get(o, "k", 5, TIME_NS_NEVER, into, &b, &total, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), "0123456789");
    assert_true(total == 10);
    buf_reset(&b);
    assert_int_equal(object_get(o, "k", 5, TIME_NS_NEVER, into, &b, &total, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), "56789");
    assert_int_equal(object_get(o, "k", 12, TIME_NS_NEVER, into, &b, &total, &e), BRG_E_CORRUPT);
    end(o, &s);
}

TEST(site_store_new_credentials_are_read_when_the_old_ones_are_refused) {
    static const char no[] = "HTTP/1.1 403 Forbidden\r\n" CLOSING
                             "\r\n<Error><Code>SignatureDoesNotMatch</Code></Error>";
    static const struct turn turns[] = {
        {"GET /bucket/p/k", no}, {"GET /bucket/p/k", no}, {"GET /bucket/p/k", LOOKED("10", "00")}};
    struct server s;
    struct object_about a = {0};
    struct err e = {0};
    char keys[OS_PATH_MAX];
    server_start(&s, turns, 3);
    struct object_store *o = store_at(&s, 4);
    assert_int_equal(object_look(o, "k", &a, &e),
                     BRG_E_CONFIG); /* the file is as it was: asked once */
    assert_non_null(strstr(e.text, "look at the credentials"));
    assert_null(strstr(e.text, "S3CRET"));
    keys_put("other", keys);
    assert_int_equal(object_look(o, "k", &a, &e), BRG_OK);
    assert_true(a.bytes == 10);
    object_store_stop(o);
    assert_int_equal(object_look(o, "k", &a, &e), BRG_E_TIMEOUT);
    end(o, &s);
}
