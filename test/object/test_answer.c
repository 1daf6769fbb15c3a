/* SPDX-License-Identifier: Apache-2.0 */
/* What stores say: lists, uploads, errors; and what is none of these. Credentials files. */
#include "../harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os.h"
#include "object/object.h"

struct seen {
    struct object_entry list[8];
    size_t count;
};
static void on_entry(void *user, const struct object_entry *x) {
    struct seen *s = user;
    if (s->count < ARRAY_COUNT(s->list)) s->list[s->count] = *x;
    s->count++;
}

static enum brg_status parse(const char *xml, struct seen *s, struct object_answer *a) {
    struct err e = {0};
    memset(s, 0, sizeof *s);
    memset(a, 0, sizeof *a);
    enum brg_status st = object_answer_parse(xml, strlen(xml), on_entry, s, a, &e);
    assert_true(st == BRG_OK || e.text[0] != '\0');
    return st;
}

TEST(object_lists_are_read) {
    struct seen s;
    struct object_answer a;
    assert_int_equal(
        parse("<?xml version='1.0' encoding='UTF-8'?>\n"
              "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
              "<IsTruncated>true</IsTruncated><NextContinuationToken>a+/=&amp;</"
              "NextContinuationToken>"
              "<Contents><Key>p/a&lt;b</Key><LastModified>2026-11-30T04:41:09.000Z</LastModified>"
              "<ETag>&quot;0123&quot;</ETag><Size>12345678901</Size><Owner><ID>x</ID></Owner></"
              "Contents>"
              "<Contents><Key><![CDATA[p/c]]></Key><Size>0</Size>"
              "<LastModified>1013-11-30T04:41:09.000Z</LastModified></Contents>"
              "<CommonPrefixes><Prefix>z/</Prefix></CommonPrefixes></ListBucketResult>",
              &s, &a),
        BRG_OK);
    assert_string_equal(a.root, "ListBucketResult");
    assert_true(a.more);
    assert_string_equal(a.next, "a+/=&");
    assert_int_equal(s.count, 2);
    assert_string_equal(s.list[0].key, "p/a<b");
    assert_string_equal(s.list[0].etag, "\"0123\"");
    assert_true(s.list[0].bytes == UINT64_C(12345678901));
    assert_true(s.list[0].unix_s == 1796013669);
    assert_string_equal(s.list[1].key, "p/c");
    assert_true(s.list[1].bytes == 0);
    assert_true(s.list[1].unix_s == 0);
}

TEST(object_uploads_and_parts_are_read) {
    struct seen s;
    struct object_answer a;
    assert_int_equal(parse("<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
                           "<UploadId>V1&#x2d;id</UploadId></InitiateMultipartUploadResult>",
                           &s, &a),
                     BRG_OK);
    assert_string_equal(a.upload, "V1-id");
    assert_int_equal(parse("<ListPartsResult><UploadId>u</UploadId><IsTruncated>false</IsTruncated>"
                           "<Part><PartNumber>7</PartNumber><ETag>\"e\"</ETag><Size>5</Size></Part>"
                           "<Part><PartNumber>99999</PartNumber></Part></ListPartsResult>",
                           &s, &a),
                     BRG_OK);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.list[0].number, 7);
    assert_int_equal(s.list[1].number, 0); /* beyond what there can be */
    assert_false(a.more);
}

TEST(object_answers_that_are_none_are_refused) {
    static const char *const bad[] = {
        "",
        " ",
        "hello",
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<a>&unknown;</a>",
        "<a>&#xzz;</a>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
        "<a><![CDATA[x</a>",
        "<a b='></a>",
        "<a><!-- </a>",
        "<a><b><c><d><e><f><g><h><i><j><k><l><m></m></l></k></j></i></h></g></f></e></d></c></b></"
        "a>",
        "</a>",
        "<>x</>",
    };
    struct seen s;
    struct object_answer a;
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++)
        if (parse(bad[i], &s, &a) != BRG_E_MESSAGE) fail_msg("\"%s\" was taken", bad[i]);
    AUTO_FREE char *deep = mem_alloc(8192, 1); /* a text that is longer than any of ours */
    memset(deep, 'x', 8000);
    memcpy(deep, "<a>", 3);
    memcpy(deep + 8000, "</a>", 5);
    assert_int_equal(parse(deep, &s, &a), BRG_E_MESSAGE);
    assert_int_equal(parse("<a/>", &s, &a), BRG_OK);
    assert_int_equal(parse("<a/><!-- end -->\n", &s, &a), BRG_OK);
}

static void refused(long http, const char *body, enum brg_status want, const char *says) {
    struct err e = {0};
    assert_int_equal(object_refusal(http, body, strlen(body), "https://s3/b", "GET k", &e), want);
    if (strstr(e.text, says) == NULL) fail_msg("\"%s\" is not in \"%s\"", says, e.text);
    assert_non_null(strstr(e.text, "https://s3/b"));
    assert_null(strchr(e.text, '\n'));
    assert_null(strchr(e.text, '"'));
}

#define FAULT_XML(code, text)                                                                      \
    "<?xml version=\"1.0\"?><Error><Code>" code "</Code><Message>" text "</Message></Error>"

TEST(object_refusals_say_what_to_do) {
    refused(403, FAULT_XML("RequestTimeTooSkewed", "The difference is too large"), BRG_E_CONFIG,
            "set the clock");
    refused(403, FAULT_XML("SignatureDoesNotMatch", "no"), BRG_E_CONFIG, "secret");
    refused(403, FAULT_XML("InvalidAccessKeyId", "no"), BRG_E_CONFIG, "access key");
    refused(403, FAULT_XML("AccessDenied", "Request has expired"), BRG_E_NET, "URL's time is over");
    refused(403, FAULT_XML("AccessDenied", "Access Denied"), BRG_E_REFUSED, "policy");
    refused(400, FAULT_XML("ExpiredToken", "x"), BRG_E_CONFIG, "session token");
    refused(404, FAULT_XML("NoSuchBucket", "x"), BRG_E_CONFIG, "bucket");
    refused(404, FAULT_XML("NoSuchKey", "x"), BRG_E_MISSING, "no such object");
    refused(404, "", BRG_E_MISSING, "no GET k");
    refused(416, FAULT_XML("InvalidRange", "x"), BRG_E_CORRUPT, "shorter");
    refused(503, FAULT_XML("SlowDown", "x"), BRG_E_NET, "fewer requests");
    refused(502, "<html>\"bad\"\ngateway", BRG_E_NET, "later again");
    refused(301, FAULT_XML("PermanentRedirect", "line\none \"x\""), BRG_E_REFUSED, "HTTP 301");
    refused(302, "<html>log in", BRG_E_NET, "no S3 there?");
}

/* ---- Credentials ------------------------------------------------------------------------------------------ */
static enum brg_status keys(const char *text, const char *profile, struct object_keys *k,
                            struct err *e) {
    memset(e, 0, sizeof *e);
    return object_keys_parse("credentials", text, strlen(text), profile, k, e);
}

TEST(object_credentials_are_read_and_never_repeated) {
    struct object_keys k;
    struct err e;
    static const char text[] =
        "# comment\n[default]\naws_access_key_id = AKIA\r\n"
        "aws_secret_access_key=S3CRET/x+y=\nregion = eu\n\n[ other ]\n"
        "aws_access_key_id=B\naws_secret_access_key=T\naws_session_token=U\n";
    assert_int_equal(keys(text, "default", &k, &e), BRG_OK);
    assert_string_equal(k.id, "AKIA");
    assert_string_equal(k.secret, "S3CRET/x+y=");
    assert_string_equal(k.session, "");
    assert_int_equal(keys(text, "other", &k, &e), BRG_OK);
    assert_string_equal(k.session, "U");
    assert_int_equal(keys(text, "third", &k, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "[third]"));
    assert_int_equal(keys("[default]\naws_secret_access_key S3CRET\n", "default", &k, &e),
                     BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "credentials:2"));
    assert_null(strstr(e.text, "S3CRET"));
    assert_int_equal(keys("[default]\naws_access_key_id = a b\n", "default", &k, &e), BRG_E_CONFIG);
    assert_int_equal(keys("[default]\naws_access_key_id = a\n", "default", &k, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "aws_secret_access_key"));
}

static void put_file(const char *path, const char *text, mode_t mode) {
    struct err e = {0};
    assert_int_equal(os_write_file_atomic(path, text, strlen(text), &e), BRG_OK);
    assert_int_equal(chmod(path, mode), 0);
}

TEST(object_credentials_come_from_a_file_then_the_environment_then_home) {
    char path[OS_PATH_MAX], home[OS_PATH_MAX], usual[OS_PATH_MAX];
    struct object_keys k;
    struct err e = {0};
    static const char good[] = "[default]\naws_access_key_id=F\naws_secret_access_key=S\n";
    os_path(path, test_dir(), "keys");
    os_path(home, test_dir(), "home");
    os_path(usual, home, ".aws");
    assert_int_equal(os_mkdirs(usual, &e), BRG_OK);
    os_path(usual, home, ".aws/credentials");
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE",
                                        "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE"};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) unsetenv(names[i]);
    setenv("HOME", home, 1);
    assert_int_equal(object_keys_read("", &k, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "blobs.credentials"));
    put_file(usual, "[default]\naws_access_key_id=H\naws_secret_access_key=S\n", 0600);
    assert_int_equal(object_keys_read("", &k, &e), BRG_OK);
    assert_string_equal(k.id, "H");
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    assert_int_equal(object_keys_read("", &k, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "AWS_SECRET_ACCESS_KEY"));
    setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
    assert_int_equal(object_keys_read("", &k, &e), BRG_OK);
    assert_string_equal(k.id, "E");
    put_file(path, good, 0640);
    assert_int_equal(object_keys_read(path, &k, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "chmod 600"));
    put_file(path, good, 0600);
    assert_int_equal(object_keys_read(path, &k, &e), BRG_OK);
    assert_string_equal(k.id, "F");
    os_path(path, test_dir(), "none");
    assert_int_equal(object_keys_read(path, &k, &e), BRG_E_MISSING);
}
