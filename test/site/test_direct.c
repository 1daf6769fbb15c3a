/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that a hub sends to an object store: one server plays the hub, another the store. What must hold: the store
 * never sees the hub's token, no error has a URL's signature, and whatever the store does, the file is whole in the end
 * or the hub is asked again. */
#include "../harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "served.h"
#include "wire/client.h"

struct pair {
    struct server hub, store;
    char replies[TURNS_MAX][1024]; /* of the hub: they name the store's address */
    struct turn turns[TURNS_MAX];
    int count;
    struct client *client;
    char path[OS_PATH_MAX];
};

static void begin(struct pair *p, const struct turn *store, int count) {
    char token[OS_PATH_MAX];
    struct err e = {0};
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    memset(p, 0, sizeof *p);
    server_start(&p->store, store, count);
    os_path(token, test_dir(), "token");
    assert_int_equal(os_write_secret_atomic(token, "s3cret\n", 7, &e), BRG_OK);
    assert_int_equal(client_global_init(&e), BRG_OK);
    os_path(p->path, test_dir(), "file");
}

/* The hub's next answer, with the store's address for each %s. */
static void PRINTF_LIKE(3, 4) hub_says(struct pair *p, const char *want, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(p->replies[p->count], sizeof p->replies[0], fmt, ap);
    va_end(ap);
    p->turns[p->count].want = want;
    p->turns[p->count].reply = p->replies[p->count];
    p->count++;
}

static void hub_starts(struct pair *p) {
    char token[OS_PATH_MAX];
    struct err e = {0};
    os_path(token, test_dir(), "token");
    server_start(&p->hub, p->turns, p->count);
    struct client_options o = {
        .url = p->hub.url, .token_file = token, .timeout_ns = 3 * (time_ns)NS_PER_S};
    assert_int_equal(client_open(&o, &p->client, &e), BRG_OK);
}

static void end(struct pair *p) {
    client_close(p->client);
    server_stop(&p->hub);
    server_stop(&p->store);
    for (int i = 0; i < p->store.turns_count; i++) {
        assert_null(strstr(p->store.requests[i], "s3cret"));
        assert_null(strstr(p->store.requests[i], "Authorization"));
    }
}

static void file_is(const struct pair *p, const char *text) {
    AUTO_BUF struct buf b = {.bytes_max = 4096};
    struct err e = {0};
    assert_int_equal(os_read_file(p->path, 4096, &b, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), text);
}

#define SENT_ON                                                                                    \
    "HTTP/1.1 303 See Other\r\n" CLOSING                                                           \
    "\r\n{\"url\":\"%s/b/k?X-Amz-Signature=5ecre7\",\"bytes\":10}"

TEST(site_direct_a_download_comes_from_the_store) {
    static const struct turn store[] = {
        {"GET /b/k?X-Amz-Signature=5ecre7",
         "HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 10\r\n\r\n01234"}, /* cut */
        {"Range: bytes=5-", "HTTP/1.1 206 Partial Content\r\n" CLOSING
                            "Content-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\n56789"}};
    struct pair p;
    struct err e = {0};
    begin(&p, store, 2);
    hub_says(&p, "GET /v1/versions/7/checkpoint?store=1", SENT_ON, p.store.url);
    hub_says(&p, "GET /v1/versions/7/checkpoint?store=1", SENT_ON, p.store.url);
    hub_starts(&p);
    assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_E_NET);
    assert_null(strstr(e.text, "5ecre7"));
    assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_OK);
    end(&p);
    file_is(&p, "0123456789");
}

TEST(site_direct_an_object_that_is_cut_short_is_told_to_the_hub) {
    static const struct turn store[] = {
        {"GET /b/k", "HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 5\r\n\r\n01234"},
        {"Range: bytes=5-", "HTTP/1.1 206 Partial Content\r\n" CLOSING
                            "Content-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\n56789"}};
    struct pair p;
    struct err e = {0};
    begin(&p, store, 2);
    hub_says(&p, "?store=1 ", SENT_ON, p.store.url);
    hub_says(&p, "?store=1&doubt=1 ", SENT_ON, p.store.url);
    hub_starts(&p);
    assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_E_NET);
    assert_non_null(strstr(e.text, "truncated there: 5 of 10 bytes"));
    assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_OK);
    assert_true(
        client_doubt(p.client)); /* the caller's hash says no: the next one would say so too */
    end(&p);
    file_is(&p, "0123456789");
}

TEST(site_direct_what_the_store_refuses_is_asked_of_the_hub_in_the_end) {
    static const char over[] =
        "HTTP/1.1 403 Forbidden\r\n" CLOSING
        "\r\n<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>";
    static const struct turn store[] = {
        {"GET /b/k", over}, {"GET /b/k", over}, {"GET /b/k", over}, {"GET /b/k", over}};
    char update[OS_PATH_MAX];
    struct pair p;
    struct err e = {0};
    begin(&p, store, 4);
    for (int i = 0; i < 3; i++) hub_says(&p, "?store=1 ", SENT_ON, p.store.url);
    /* An answer that there is none is no transfer: the next one is still the hub's. */
    hub_says(&p, "GET /v1/versions/7/update HTTP",
             "HTTP/1.1 404 Not Found\r\n" CLOSING "\r\n{\"code\":\"BAD\"}");
    hub_says(&p, "GET /v1/versions/7/checkpoint HTTP",
             "HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 10\r\n\r\n0123456789");
    hub_says(&p, "?store=1 ", SENT_ON, p.store.url);
    hub_starts(&p);
    os_path(update, test_dir(), "update");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_E_NET);
        assert_non_null(strstr(e.text, "URL's time is over"));
        assert_null(strstr(e.text, "5ecre7"));
    }
    assert_int_equal(client_download_update(p.client, 7, update, &e), BRG_E_MISSING);
    assert_int_equal(client_download(p.client, 7, p.path, &e), BRG_OK);
    assert_false(client_doubt(p.client)); /* it came from the hub itself */
    file_is(&p, "0123456789");
    assert_int_equal(client_download(p.client, 7, update, &e), BRG_E_NET); /* the store again */
    end(&p);
}

static void delta_put(const struct pair *p) {
    struct err e = {0};
    assert_int_equal(os_write_file_atomic(p->path, "0123456789", 10, &e), BRG_OK);
}

TEST(site_direct_an_upload_goes_in_pieces_to_the_store) {
    static const char good[] = "HTTP/1.1 200 OK\r\n" CLOSING "ETag: \"e\"\r\n\r\n";
    static const struct turn store[] = {{"PUT /b/d?partNumber=1", good},
                                        {"PUT /b/d?partNumber=3", good}};
    struct pair p;
    struct err e = {0};
    struct id128 did = {{10}};
    begin(&p, store, 2);
    hub_says(&p, "?store=1&bytes=10 ",
             "HTTP/1.1 200 OK\r\n" CLOSING
             "\r\n{\"store\":true,\"last\":false,\"offset\":4,\"pieces\":["
             "{\"at\":0,\"bytes\":4,\"url\":\"%s/b/d?partNumber=1\"},"
             "{\"at\":8,\"bytes\":2,\"url\":\"%s/b/d?partNumber=3\"}]}",
             p.store.url, p.store.url);
    hub_says(&p, "?store=1&bytes=10 ",
             "HTTP/1.1 200 OK\r\n" CLOSING
             "\r\n{\"store\":true,\"last\":true,\"offset\":10,\"pieces\":[]}");
    delta_put(&p);
    hub_starts(&p);
    if (client_upload(p.client, &did, p.path, &e) != BRG_OK) fail_msg("%s", e.text);
    end(&p);
    assert_non_null(strstr(p.store.requests[0], "\r\n\r\n0123"));
    assert_null(strstr(p.store.requests[0], "01234"));
    assert_non_null(strstr(p.store.requests[1], "\r\n\r\n89"));
}

TEST(site_direct_a_store_that_goes_leaves_the_upload_to_the_hub) {
    static const struct turn store[] = {{"PUT /b/d",
                                         "HTTP/1.1 503 Service Unavailable\r\n" CLOSING
                                         "\r\n<Error><Code>ServiceUnavailable</Code></Error>"}};
    struct pair p;
    struct err e = {0};
    struct id128 did = {{10}};
    begin(&p, store, 1);
    hub_says(&p, "?store=1&bytes=10 ",
             "HTTP/1.1 200 OK\r\n" CLOSING
             "\r\n{\"store\":true,\"last\":true,\"offset\":0,\"pieces\":["
             "{\"at\":0,\"bytes\":10,\"url\":\"%s/b/d\"}]}",
             p.store.url);
    hub_says(&p, "?store=1&bytes=10 ", "HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"offset\":0}");
    hub_says(&p, "PUT /v1/blobs/0a", "HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"offset\":10}");
    delta_put(&p);
    hub_starts(&p);
    assert_int_equal(client_upload(p.client, &did, p.path, &e), BRG_E_NET);
    assert_non_null(strstr(e.text, "ServiceUnavailable"));
    assert_int_equal(client_upload(p.client, &did, p.path, &e), BRG_OK);
    end(&p);
}

static void refuses(const char *answer, const char *says) {
    struct pair p;
    struct err e = {0};
    begin(&p, NULL, 0);
    hub_says(&p, "?store=1 ", "HTTP/1.1 303 See Other\r\n" CLOSING "\r\n%s", answer);
    hub_starts(&p);
    assert_int_not_equal(client_download(p.client, 7, p.path, &e), BRG_OK);
    if (strstr(e.text, says) == NULL) fail_msg("\"%s\" is not in \"%s\"", says, e.text);
    end(&p);
}

TEST(site_direct_addresses_that_are_none_are_not_followed) {
    refuses("{\"url\":\"http://s3.example.org/b/k\",\"bytes\":10}", "unencrypted");
    refuses("{\"url\":\"file:///etc/passwd\",\"bytes\":10}", "no address");
    refuses("{\"url\":\"https://me@s3.example.org/b\",\"bytes\":10}", "no address");
    refuses("{\"url\":\"https://s3.example.org/b k\",\"bytes\":10}", "no address");
    refuses("{}", "url");
}
