/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client against a server that says what the test tells it to: web pages of proxies, cut
 * transfers, ranges, pieces. What must hold: a clear status and sentence, and no byte twice. */
#include "../harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "served.h"
#include "wire/client.h"

static const char *token_put(const char *token, char out[OS_PATH_MAX]) {
    struct err e;
    os_path(out, test_dir(), "token");
    assert_int_equal(os_write_secret_atomic(out, token, strlen(token), &e), BRG_OK);
    return out;
}

static struct client *client_to(const char *url) {
    char path[OS_PATH_MAX];
    struct client_options o = {
        .url = url, .token_file = token_put("s3cret\n", path), .timeout_ns = 3 * (time_ns)NS_PER_S};
    struct client *c = NULL;
    struct err e;
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    assert_int_equal(client_global_init(&e), BRG_OK);
    assert_int_equal(client_open(&o, &c, &e), BRG_OK);
    return c;
}

static void run_gives(const char *reply, enum brg_status want, const char *says) {
    const struct turn turns[] = {{"GET /v1/run", reply}};
    struct server s;
    server_start(&s, turns, 1);
    struct client *c = client_to(s.url);
    struct wire_run r;
    struct err e = {0};
    assert_int_equal(client_run(c, &r, &e), want);
    if (!strstr(e.text, says)) fprintf(stderr, "%s\n", e.text);
    assert_non_null(strstr(e.text, says));
    client_close(c);
    server_stop(&s);
}

TEST(site_client_tells_a_web_page_from_the_hub) {
    run_gives("HTTP/1.1 502 Bad Gateway\r\n" CLOSING "\r\n<html><body>proxy</body></html>",
              BRG_E_NET, "web page");
    run_gives("HTTP/1.1 200 OK\r\n" CLOSING "\r\n<!DOCTYPE html><title>Please log in</title>",
              BRG_E_NET, "web page");
    run_gives("HTTP/1.1 403 Forbidden\r\n" CLOSING "\r\n<html>denied by policy</html>", BRG_E_NET,
              "403");
}

TEST(site_client_tells_a_broken_answer_and_a_refusal) {
    run_gives("HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"run\": 5}", BRG_E_MESSAGE, "cannot be read");
    run_gives("HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 100\r\n\r\n{\"run\"", BRG_E_NET,
              "http://");
    run_gives("HTTP/1.1 401 Unauthorized\r\n" CLOSING "\r\n{\"code\":\"BAD\"}", BRG_E_REFUSED,
              "401");
}

/* A token was rotated while the site runs: its file has the new one, and nobody has to start anything again. */
TEST(site_client_takes_a_new_token_when_the_old_one_is_over) {
    const struct turn turns[] = {
        {"Bearer s3cret\r\n", "HTTP/1.1 401 Unauthorized\r\n" CLOSING "\r\n{\"code\":\"BAD\"}"},
        {"Bearer fresh\r\n", "HTTP/1.1 502 Bad Gateway\r\n" CLOSING "\r\n"},
        {"Bearer fresh\r\n", "HTTP/1.1 401 Unauthorized\r\n" CLOSING "\r\n{\"code\":\"BAD\"}"},
    };
    struct server s;
    char path[OS_PATH_MAX];
    struct wire_run r;
    struct err e = {0};
    server_start(&s, turns, 3);
    struct client *c = client_to(s.url);
    (void)token_put("fresh\n", path);
    assert_int_equal(client_run(c, &r, &e), BRG_E_NET); /* the second answer, to the new token */
    assert_int_equal(client_run(c, &r, &e), BRG_E_REFUSED); /* no newer one: asked once */
    assert_null(strstr(e.text, "fresh"));
    client_close(c);
    server_stop(&s);
}

static void opens(const char *url, const char *token_file, const char *ca, enum brg_status want,
                  const char *says) {
    struct client_options o = {.url = url, .token_file = token_file, .ca_file = ca};
    struct client *c = NULL;
    struct err e = {0};
    assert_int_equal(client_open(&o, &c, &e), want);
    if (!strstr(e.text, says)) fprintf(stderr, "%s\n", e.text);
    assert_non_null(strstr(e.text, says));
    assert_null(strstr(e.text, "s3cret"));
    if (c) client_close(c);
}

TEST(site_client_looks_after_its_token) {
    char token[OS_PATH_MAX], other[OS_PATH_MAX];
    struct err e;
    token_put("s3cret\n", token);
    opens("https://hub.example.org", token, NULL, BRG_OK, "");
    opens("http://127.0.0.1:7070", token, NULL, BRG_OK, "");
    opens("http://localhost:7070/x", token, NULL, BRG_OK, "");
    opens("http://[::1]:7070", token, NULL, BRG_OK, "");
    /* In clear through a network: refused. */
    opens("http://hub.example.org", token, NULL, BRG_E_CONFIG, "unencrypted");
    opens("http://127.0.0.1.example.org", token, NULL, BRG_E_CONFIG, "unencrypted");
    opens("http://localhost.example.org", token, NULL, BRG_E_CONFIG, "unencrypted");
    opens("http://127.0.0.1@example.org", token, NULL, BRG_E_CONFIG, "user name");
    opens("https://me:s3cret@hub.example.org", NULL, NULL, BRG_E_CONFIG, "token file");
    opens("http://hub.example.org", NULL, NULL, BRG_OK, "");
    /* Files. */
    opens("https://hub", "/nowhere/token", NULL, BRG_E_MISSING, "/nowhere/token");
    opens("https://hub", token, "/nowhere/ca.pem", BRG_E_MISSING, "/nowhere/ca.pem");
    os_path(other, test_dir(), "other");
    assert_int_equal(os_write_file_atomic(other, "s3cret\n", 7, &e), BRG_OK);
    assert_int_equal(chmod(other, 0640), 0);
    opens("https://hub", other, NULL, BRG_E_CONFIG, "chmod 600");
    assert_int_equal(os_write_secret_atomic(other, "\n", 1, &e), BRG_OK);
    opens("https://hub", other, NULL, BRG_E_CONFIG, "no token");
    assert_int_equal(os_write_secret_atomic(other, "s3cret\nX-Evil: 1\n", 17, &e), BRG_OK);
    opens("https://hub", other, NULL, BRG_E_CONFIG, "one line");
    /* The environment, where nothing was given. */
    assert_int_equal(setenv("BERINGIA_TOKEN_FILE", "/nowhere/token", 1), 0);
    opens("https://hub", NULL, NULL, BRG_E_MISSING, "/nowhere/token");
    opens("https://hub", token, NULL, BRG_OK, "");
    assert_int_equal(unsetenv("BERINGIA_TOKEN_FILE"), 0);
    assert_int_equal(setenv("BERINGIA_TOKEN", "s3cret", 1), 0);
    opens("http://hub", NULL, NULL, BRG_E_CONFIG, "unencrypted");
    assert_int_equal(unsetenv("BERINGIA_TOKEN"), 0);
}

TEST(site_client_nobody_listens) {
    struct client *c = client_to("http://127.0.0.1:1");
    struct wire_run r;
    struct err e = {0};
    assert_int_equal(client_run(c, &r, &e), BRG_E_NET);
    client_stop(c);
    assert_int_equal(client_run(c, &r, &e), BRG_E_TIMEOUT);
    client_close(c);
}

TEST(site_client_an_address_that_is_none) {
    struct client_options o = {.url = "localhost:80"};
    struct client *c = NULL;
    struct err e = {0};
    assert_int_equal(client_open(&o, &c, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "http://"));
}

static const char *file_with(const char *name, const char *text, char out[OS_PATH_MAX]) {
    struct err e;
    os_path(out, test_dir(), "%s", name);
    assert_int_equal(os_write_file_atomic(out, text, strlen(text), &e), BRG_OK);
    return out;
}

TEST(site_client_an_upload_goes_on_where_the_hub_is) {
    char path[OS_PATH_MAX];
    file_with("delta", "0123456789", path);
    const struct turn turns[] = {
        {"GET /v1/blobs/0a", "HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"offset\": 4}"},
        {"?offset=4", "HTTP/1.1 409 Conflict\r\n" CLOSING "\r\n{\"code\":\"UPLOAD\",\"offset\":7}"},
        {"?offset=7", "HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"offset\":10}"},
    };
    struct server s;
    server_start(&s, turns, 3);
    struct client *c = client_to(s.url);
    struct id128 did = {{10}};
    struct err e = {0};
    assert_int_equal(client_upload(c, &did, path, &e), BRG_OK);
    client_close(c);
    server_stop(&s);
    assert_non_null(strstr(s.requests[1], "\r\n\r\n456789"));
    assert_non_null(strstr(s.requests[2], "\r\n\r\n789"));
    assert_null(strstr(s.requests[2], "6789"));
    assert_non_null(strstr(s.requests[2], "Authorization: Bearer s3cret"));
}

/* A hub that loses what it was sent, again and again: the caller backs off, and does not send for ever. */
TEST(site_client_an_upload_to_a_hub_that_forgets_comes_to_an_end) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    size_t bytes = 2 * (size_t)CLIENT_PIECE_BYTES;
    AUTO_FREE char *zeros = mem_alloc(bytes, 1);
    os_path(path, test_dir(), "delta");
    assert_int_equal(os_write_file_atomic(path, zeros, bytes, &e), BRG_OK);
    const char *good = "HTTP/1.1 200 OK\r\n" CLOSING "\r\n{\"offset\":1048576}";
    const char *gone = "HTTP/1.1 409 Conflict\r\n" CLOSING "\r\n{\"offset\":0}";
    const struct turn turns[] = {
        {"GET /v1/blobs/0a", "HTTP/1.1 404 Not Found\r\n" CLOSING "\r\n{}"},
        {"?offset=0", good},
        {"?offset=1048576", gone},
        {"?offset=0", good},
        {"?offset=1048576", gone},
        {"?offset=0", good},
        {"?offset=1048576", gone}};
    struct server s;
    server_start(&s, turns, 7);
    struct client *c = client_to(s.url);
    struct id128 did = {{10}};
    assert_int_equal(client_upload(c, &did, path, &e), BRG_E_NET);
    assert_non_null(strstr(e.text, "stuck"));
    client_close(c);
    server_stop(&s);
}

TEST(site_client_a_download_goes_on_with_a_range) {
    char path[OS_PATH_MAX], part[OS_PATH_MAX];
    os_path(path, test_dir(), "7.safetensors");
    file_with("7.safetensors.part", "01234", part);
    const struct turn turns[] = {
        {"Range: bytes=5-", "HTTP/1.1 206 Partial Content\r\n" CLOSING
                            "Content-Length: 5\r\nContent-Range: bytes 5-9/10\r\n\r\n56"}, /* cut */
        {"Range: bytes=7-", "HTTP/1.1 206 Partial Content\r\n" CLOSING
                            "Content-Length: 3\r\nContent-Range: bytes 7-9/10\r\n\r\n789"},
    };
    struct server s;
    server_start(&s, turns, 2);
    struct client *c = client_to(s.url);
    struct err e = {0};
    assert_int_equal(client_download(c, 7, path, &e), BRG_E_NET);
    assert_int_equal(client_download(c, 7, path, &e), BRG_OK);
    client_close(c);
    server_stop(&s);
    AUTO_BUF struct buf b = {.bytes_max = 100};
    assert_int_equal(os_read_file(path, 100, &b, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), "0123456789");
    assert_false(os_exists(part));
}

TEST(site_client_a_proxy_without_ranges_starts_over) {
    char path[OS_PATH_MAX], part[OS_PATH_MAX];
    os_path(path, test_dir(), "7.safetensors");
    file_with("7.safetensors.part", "01234", part);
    const struct turn turns[] = {
        {"Range: bytes=5-", "HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 10\r\n\r\n0123456789"},
        {"GET /v1/versions/7/checkpoint",
         "HTTP/1.1 200 OK\r\n" CLOSING "Content-Length: 10\r\n\r\n0123456789"},
    };
    struct server s;
    server_start(&s, turns, 2);
    struct client *c = client_to(s.url);
    struct err e = {0};
    assert_int_equal(client_download(c, 7, path, &e), BRG_E_NET);
    assert_int_equal(client_download(c, 7, path, &e), BRG_OK);
    client_close(c);
    server_stop(&s);
    AUTO_BUF struct buf b = {.bytes_max = 100};
    assert_int_equal(os_read_file(path, 100, &b, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), "0123456789");
}

TEST(site_client_a_version_that_is_gone) {
    char path[OS_PATH_MAX];
    os_path(path, test_dir(), "9.safetensors");
    const struct turn turns[] = {{"GET /v1/versions/9/checkpoint",
                                  "HTTP/1.1 404 Not Found\r\n" CLOSING "\r\n{\"code\":\"BAD\"}"}};
    struct server s;
    server_start(&s, turns, 1);
    struct client *c = client_to(s.url);
    struct err e = {0};
    assert_int_equal(client_download(c, 9, path, &e), BRG_E_MISSING);
    client_close(c);
    server_stop(&s);
    assert_false(os_exists(path));
}
