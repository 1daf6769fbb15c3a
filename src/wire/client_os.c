/* SPDX-License-Identifier: Apache-2.0 */
/* client_os.c - see client.h.
 *
 * One easy handle, reset before each request: its connection stays open in between. What arrives
 * goes into a bounded buffer or straight to a file; nothing that a peer sends can make memory grow.
 * Whether an answer is worth a retry is decided here, in answer_judge(), and nowhere else.
 *
 * BERINGIA_HISTORY=FILE appends one line of JSON for each message, as a witness that shares no memory
 * with the hub: what was asked, what was answered, when. Without it nothing is done. */
#include "wire/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "object/object.h"
#include "wire/direct.h"
#include "wire/mail.h"
#include "wire/net_os.h"
#include "wire/reply.h"
#include "wire/spool.h"

enum { URL_MAX = 1024 };

struct client {
    CURL *curl;
    struct net_identity id;
    struct net_identity store; /* shows no token: who has the URL may */
    struct curl_slist *headers_json, *headers_blob, *headers_store;
    bool doubt;    /* what the object store gave last was not what it should be */
    bool direct;   /* the last download came from there */
    int store_bad; /* tries in a row that ended without an answer of the store */
    char url[URL_MAX];
    time_ns timeout_ns;
    atomic_bool stopped;
    struct buf body; /* of the answer being received */
    int fd;          /* download: where the body goes; -1: into the buffer */
    uint64_t from;   /* ... behind so many bytes that are there */
    bool write_failed;
    int write_errno;
    long http;
    char error[CURL_ERROR_SIZE];
    int history;         /* -1: none */
    char spool[URL_MAX]; /* "": HTTP */
    struct mail *mail;   /* NULL: no bucket */
    struct buf answer;   /* of spool or mail; body is a copy of its end */
};

/* One request, whichever way it goes. */
struct ask {
    enum spool_method method;
    char target[160];       /* behind the hub's address: "/v1/lease" */
    const struct buf *body; /* POST */
    struct piece *piece;    /* PUT */
    const char
        *file;     /* PUT: where the piece lies; GET: where the body goes (the descriptor c->fd) */
    uint64_t from; /* GET into a file: go on there */
    bool store_only; /* ... with what a mailbox does not carry: the store has it, or nobody */
};

enum brg_status client_global_init(struct err *e) {
    CURLcode rc = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (rc != CURLE_OK)
        return err_set(e, BRG_E_INTERNAL, "libcurl does not start: %s", curl_easy_strerror(rc));
    return BRG_OK;
}

static bool headers_add(struct curl_slist **list, const char *line) {
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer) *list = longer;
    return longer != NULL;
}

/* Both lists anew, with the token as it is now. */
static bool headers_make(struct client *c) {
    curl_slist_free_all(c->headers_json);
    curl_slist_free_all(c->headers_blob);
    curl_slist_free_all(c->headers_store);
    c->headers_json = c->headers_blob = c->headers_store = NULL;
    return headers_add(&c->headers_store, "Content-Type: application/octet-stream") &&
           headers_add(&c->headers_store, "Expect:") &&
           net_headers_begin(&c->id, &c->headers_json) &&
           net_headers_begin(&c->id, &c->headers_blob) &&
           headers_add(&c->headers_json, "Content-Type: application/json") &&
           headers_add(&c->headers_blob, "Content-Type: application/octet-stream") &&
           headers_add(&c->headers_blob, "Expect:") && headers_add(&c->headers_json, "Expect:");
}

/* The hub's certificate and name; of a bucket the store's, to which a token goes as well. A spool's courier has the token. */
enum brg_status client_identity(const struct client_options *o, struct net_identity *out,
                                struct err *e) {
    *out = (struct net_identity){.token = ""};
    if (strncmp(o->url, "spool:", 6) == 0) return BRG_OK;
    bool bucket = strncmp(o->url, "bucket:", 7) ==
                  0; /* its endpoint was looked at: https, or here */
    return net_identity_open(bucket ? "https://bucket" : o->url, o->token_file, o->ca_file, out, e);
}

time_ns client_timeout(const char *url, time_ns asked) {
    time_ns t = asked > 0 ? asked : 30 * (time_ns)NS_PER_S;
    time_ns least = strncmp(url, "bucket:", 7) == 0 ? MAIL_PATIENCE_S * (time_ns)NS_PER_S : 0;
    return t < least ? least : t;
}

enum brg_status client_open(const struct client_options *o, struct client **out, struct err *e) {
    bool http = strncmp(o->url, "http://", 7) == 0 || strncmp(o->url, "https://", 8) == 0;
    bool spool = strncmp(o->url, "spool:", 6) == 0, bucket = strncmp(o->url, "bucket:", 7) == 0;
    size_t n = strlen(o->url);
    if (spool) TRY(spool_open(o->url + 6, e));
    if ((!http && !spool && !bucket) || n + 160 > URL_MAX)
        return err_set(e, BRG_E_CONFIG,
                       "hub address \"%.200s\": want http://HOST:PORT, https://..., "
                       "bucket:s3://BUCKET/PREFIX or spool:/DIR",
                       o->url);
    struct net_identity id;
    struct mail *mail = NULL;
    TRY(client_identity(o, &id, e));
    if (bucket) TRY(mail_open(o->url + 7, &mail, e));
    struct client *c = mem_alloc(1, sizeof *c);
    c->id = id;
    c->mail = mail;
    net_identity_fini(&id);
    net_identity_store(&c->store);
    memcpy(c->url, o->url, n + 1);
    while (n > 0 && c->url[n - 1] == '/') c->url[--n] = '\0';
    c->timeout_ns = client_timeout(o->url, o->timeout_ns);
    c->fd = -1;
    const char *history = getenv("BERINGIA_HISTORY"); /* nobody calls setenv once threads run */
    c->history =
        history && *history ? open(history, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    buf_init(&c->body, WIRE_BODY_MAX);
    buf_init(&c->answer, SPOOL_BYTES_MAX);
    if (spool) (void)snprintf(c->spool, sizeof c->spool, "%s", c->url + 6);
    c->curl = curl_easy_init();
    if (!c->curl || !headers_make(c)) {
        client_close(c);
        return err_set(e, BRG_E_MEMORY, "no memory for a connection");
    }
    *out = c;
    return BRG_OK;
}

void client_close(struct client *c) {
    if (!c) return;
    mail_close(c->mail);
    if (c->curl) curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers_json);
    curl_slist_free_all(c->headers_blob);
    curl_slist_free_all(c->headers_store);
    buf_fini(&c->body);
    buf_fini(&c->answer);
    net_identity_fini(&c->id);
    if (c->history >= 0) close(c->history);
    mem_free(c);
}

void client_stop(struct client *c) {
    atomic_store(&c->stopped, true);
    if (c->mail != NULL) mail_stop(c->mail);
}

/* ---- One request ------------------------------------------------------------------------------ */

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct client *c = user;
    size_t n = size * count;
    long http = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &http);
    if (c->fd >= 0 && http >= 200 && http < 300) {
        struct err e;
        if (http == 200 && c->from > 0)
            return 0; /* Range is not honoured: nothing of it is a tail */
        if (os_write_all(c->fd, data, n, "download", &e) != BRG_OK) {
            c->write_failed = true;
            c->write_errno = errno;
            return 0;
        }
        return n;
    }
    buf_put(&c->body, data, n);
    return c->body.overflow ? 0 : n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t up, curl_off_t d) {
    (void)a, (void)b, (void)up, (void)d;
    const struct client *c = user;
    return atomic_load(&c->stopped) ? 1 : 0;
}

/* Not CURLOPT_RESUME_FROM: with that, an answer that is no part of the file (303, 403) counts as a fault of the transfer,
 * and what it says is lost. */
static void range_ask(struct client *c, uint64_t from) {
    char range[32];
    c->from = from;
    if (from == 0) return;
    (void)snprintf(range, sizeof range, "%" PRIu64 "-", from);
    curl_easy_setopt(c->curl, CURLOPT_RANGE, range);
}

static void request_begin(struct client *c, const char *url, bool transfer,
                          const struct net_identity *id, struct curl_slist *headers) {
    CURL *h = c->curl;
    long timeout_ms = (long)(c->timeout_ns / NS_PER_MS);
    buf_reset(&c->body);
    c->body.overflow = false;
    c->write_failed = false;
    c->fd = -1;
    c->from = 0;
    c->error[0] = '\0';
    curl_easy_reset(h);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    net_curl_secure(h, id);
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "beringia");
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, timeout_ms / 3 + 1);
    if (transfer) { /* no total limit: a slow link is no fault, a silent one is */
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, timeout_ms / 1000 + 1);
    } else {
        curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, timeout_ms);
    }
}

static enum brg_status request_perform(struct client *c, struct err *e) {
    if (atomic_load(&c->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
    CURLcode rc = curl_easy_perform(c->curl);
    c->http = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->http);
    if (rc == CURLE_OK) return BRG_OK;
    if (atomic_load(&c->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
    if (c->write_failed) return os_errno(e, c->write_errno, "writing", "a download");
    if (c->body.overflow)
        return err_set(e, BRG_E_MESSAGE, "%s: the answer is longer than %d bytes", c->url,
                       WIRE_BODY_MAX);
    return err_set(e, BRG_E_NET, "%s: %s%s", c->url,
                   c->error[0] ? c->error : curl_easy_strerror(rc), net_tls_remedy(rc));
}

struct piece {
    int fd;
    uint64_t at, end;
};

static size_t on_read(char *out, size_t size, size_t count, void *user) {
    struct piece *p = user;
    uint64_t n = size * count;
    if (n > p->end - p->at) n = p->end - p->at;
    ssize_t got = n ? pread(p->fd, out, n, (off_t)p->at) : 0;
    if (got < 0) return CURL_READFUNC_ABORT;
    p->at += (uint64_t)got;
    return (size_t)got;
}

static int on_seek(void *user, curl_off_t offset, int origin) {
    struct piece *p = user; /* a proxy asked for the body again; offset counts from the piece */
    (void)p, (void)offset, (void)origin;
    return CURL_SEEKFUNC_FAIL; /* the retry begins a fresh request */
}

static void piece_send(struct client *c, struct piece *piece) {
    curl_easy_setopt(c->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(c->curl, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(c->curl, CURLOPT_READDATA, piece);
    curl_easy_setopt(c->curl, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(c->curl, CURLOPT_SEEKDATA, piece);
    curl_easy_setopt(c->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(piece->end - piece->at));
}

static bool spool_stopped(void *user) {
    const struct client *c = user;
    return atomic_load(&c->stopped);
}

/* The same request through files: the courier does what curl does below. */
static enum brg_status spool_perform(struct client *c, const struct ask *a, struct err *e) {
    struct spool_request r = {.method = a->method,
                              .timeout_ms = (uint32_t)(c->timeout_ns / NS_PER_MS),
                              .offset = a->from};
    struct spool_answer w;
    buf_reset(&c->body);
    c->body.overflow = false;
    c->http = 0;
    if (atomic_load(&c->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
    (void)snprintf(r.target, sizeof r.target, "%s", a->target);
    if (a->file != NULL && realpath(a->file, r.file) == NULL)
        return os_errno(e, errno, "looking for", a->file);
    if (a->piece != NULL) {
        r.offset = a->piece->at;
        r.bytes = a->piece->end - a->piece->at;
    }
    if (a->body != NULL) {
        r.body = a->body->data;
        r.body_bytes = a->body->bytes_count;
    }
    TRY(spool_exchange(c->spool, &r, spool_stopped, c, &c->answer, &w, e));
    c->http = (long)w.http;
    buf_put(&c->body, w.body, w.body_bytes);
    return BRG_OK;
}

/* Through a bucket weights have no way but the store's: the hub has lost it for now, and goes on with it by itself. */
static enum brg_status no_line(struct client *c, struct err *e) {
    return err_set(e, BRG_E_NET,
                   "%s: the hub does not use its object store at the moment (its alarm "
                   "objects_down says why); trying again",
                   c->url);
}

/* The same through a bucket. A file that the hub sends itself comes in pieces: the ledger. */
static enum brg_status mail_perform(struct client *c, const struct ask *a, struct err *e) {
    struct spool_request r = {.form = SPOOL_MAIL,
                              .method = a->method,
                              .timeout_ms = (uint32_t)(c->timeout_ns / NS_PER_MS),
                              .offset = a->from,
                              .bytes = c->fd < 0       ? 0
                                       : a->store_only ? 1
                                                       : MAIL_PIECE_BYTES};
    struct spool_answer w;
    CHECK(a->method != SPOOL_PUT); /* client_upload */
    (void)snprintf(r.target, sizeof r.target, "%s", a->target);
    if (a->body != NULL) {
        r.body = a->body->data;
        r.body_bytes = a->body->bytes_count;
    }
    for (;;) {
        buf_reset(&c->body);
        c->body.overflow = false;
        c->http = 0;
        if (atomic_load(&c->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
        memcpy(r.token, c->id.token, sizeof r.token);
        enum brg_status s = mail_exchange(c->mail, &r, &c->answer, &w, e);
        explicit_bzero(r.token, sizeof r.token);
        TRY(s);
        c->http = (long)w.http;
        if (a->store_only && (w.http == 200 || w.http == 206)) return no_line(c, e);
        if (c->fd < 0 || (w.http != 206 && (w.http != 200 || r.offset > 0))) {
            buf_put(&c->body, w.body, w.body_bytes);
            break;
        }
        TRY(os_write_all(c->fd, w.body, w.body_bytes, "download", e));
        r.offset += w.body_bytes;
        if (w.http == 200 || w.body_bytes < r.bytes) break;
    }
    if (c->http == 416 && r.offset > a->from) c->http = 206; /* the end was a piece's end */
    return BRG_OK;
}

static enum brg_status http_perform(struct client *c, const struct ask *a, struct err *e) {
    char url[URL_MAX + 200];
    int fd = c->fd;
    (void)snprintf(url, sizeof url, "%s%s", c->url, a->target);
    request_begin(c, url, a->file != NULL, &c->id,
                  a->file != NULL ? c->headers_blob : c->headers_json);
    c->fd = fd;
    if (a->method == SPOOL_POST) {
        curl_easy_setopt(c->curl, CURLOPT_POST, 1L);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, a->body->data);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)a->body->bytes_count);
    } else if (a->method == SPOOL_PUT) {
        piece_send(c, a->piece);
    } else {
        range_ask(c, a->from);
    }
    return request_perform(c, e);
}

static enum brg_status perform_once(struct client *c, const struct ask *a, struct err *e) {
    return c->mail != NULL ? mail_perform(c, a, e) : http_perform(c, a, e);
}

/* Where the hub does not know the token, its file may have a newer one by now: once more with that. */
static enum brg_status perform(struct client *c, const struct ask *a, struct err *e) {
    if (c->spool[0] != '\0') return spool_perform(c, a, e);
    uint64_t at = a->piece != NULL ? a->piece->at : 0;
    int fd = c->fd;
    enum brg_status s = perform_once(c, a, e);
    if (c->http != 401 || !net_identity_renew(&c->id)) return s;
    log_line(LOG_INFO, "wire", "token_renewed", "file=%s", c->id.token_file);
    CHECK(headers_make(c)); /* memory */
    if (a->piece != NULL) a->piece->at = at;
    c->fd = fd;
    return perform_once(c, a, e);
}

/* The answer is not the message that was wanted: whose word is it, and is a retry right? */
static enum brg_status answer_judge(struct client *c, const char *what, const struct err *why,
                                    struct err *e) {
    char head[REPLY_HEAD_SHOWN + 1];
    reply_head(c->body.data, c->body.bytes_count, head);
    bool markup = strchr(head, '<') != NULL && strchr(head, '{') == NULL;
    const char *who = markup ? " (a web page, so not from the hub: check the address and the proxy)"
                             : "";
    if (c->http == 407)
        return err_set(e, BRG_E_NET, "%s: the proxy wants a user name and password (HTTP 407)",
                       c->url);
    if (c->http == 404 && !markup)
        return err_set(e, BRG_E_MISSING, "%s: the hub does not have %s (HTTP 404)", c->url, what);
    if (c->http == 401 && !markup)
        return err_set(e, BRG_E_REFUSED,
                       "%s: the hub does not know this token (HTTP 401)%s; ask the run's operator "
                       "for one (beringia token)",
                       c->url, c->id.token[0] == '\0' ? ", none was sent: want --token FILE" : "");
    if (c->http == 429)
        return err_set(e, BRG_E_NET, "%s: too many requests (HTTP 429); later again", c->url);
    if (c->http == 401 || c->http == 403)
        return err_set(e, markup ? BRG_E_NET : BRG_E_REFUSED, "%s: HTTP %ld for %s%s: %s", c->url,
                       c->http, what, who, head);
    if (c->http >= 200 && c->http < 300 && !markup)
        return err_set(e, BRG_E_MESSAGE, "%s: %s cannot be read: %s", c->url, what,
                       why && why->text[0] ? why->text : head);
    /* 5xx, and pages of captive portals and proxies of any kind: the path to the hub is broken. */
    return err_set(e, BRG_E_NET, "%s: HTTP %ld for %s%s: %s", c->url, c->http, what, who, head);
}

/* ---- Messages --------------------------------------------------------------------------------- */

/* One write a line, so that threads and processes that share the file do not mix. The answer stands as it
 * came where it is one line of JSON; what is no such thing is left out, as is the answer that was lost. */
static void history_put(struct client *c, const struct wire_request *r, const struct buf *asked,
                        time_ns sent, const char *status) {
    if (c->history < 0) return;
    AUTO_BUF struct buf line = {.bytes_max = 3 * (size_t)WIRE_BODY_MAX};
    buf_printf(
        &line,
        "{\"pid\":%ld,\"sent\":%" PRId64 ",\"got\":%" PRId64 ",\"kind\":\"%s\",\"status\":\"%s\","
        "\"http\":%ld,\"asked\":",
        (long)getpid(), (int64_t)sent, (int64_t)os_now(), wire_kind_name(r->kind), status, c->http);
    buf_put(&line, asked->data, asked->bytes_count);
    if (strcmp(status, status_name(BRG_OK)) == 0) {
        while (c->body.bytes_count > 0 && c->body.data[c->body.bytes_count - 1] <= ' ')
            c->body.bytes_count--;
        buf_printf(&line, ",\"answer\":");
        buf_put(&line, c->body.data, c->body.bytes_count);
    }
    buf_printf(&line, "}\n");
    struct err e;
    if (os_write_all(c->history, line.data, line.bytes_count, "history", &e) != BRG_OK)
        log_line(LOG_WARN, "wire", "history_failed", "text=\"%s\"", e.text);
}

enum brg_status client_post(struct client *c, const struct wire_request *r, struct wire_answer *out,
                            struct err *e) {
    AUTO_BUF struct buf body = {.bytes_max = WIRE_BODY_MAX};
    struct ask ask = {.method = SPOOL_POST, .body = &body};
    snprintf(ask.target, sizeof ask.target, "/v1/%s", wire_kind_name(r->kind));
    wire_request_encode(r, &body);
    CHECK(!body.overflow);
    struct err why = {0};
    struct wire_answer a;
    time_ns sent = os_now();
    c->http = 0; /* a COMMIT may take effect though this process does not live to see the answer */
    if (r->kind == WIRE_COMMIT) history_put(c, r, &body, sent, "sent");
    enum brg_status status = perform(c, &ask, e), read = status;
    if (status == BRG_OK)
        read = wire_answer_decode(r->kind, c->body.data, c->body.bytes_count, &a, &why);
    history_put(c, r, &body, sent, status_name(read));
    TRY(status);
    if (read != BRG_OK) return answer_judge(c, wire_kind_name(r->kind), &why, e);
    *out = a;
    return BRG_OK;
}

enum brg_status client_run(struct client *c, struct wire_run *out, struct err *e) {
    TRY(perform(c, &(struct ask){.method = SPOOL_GET, .target = "/v1/run"}, e));
    struct err why = {0};
    if (c->http != 200 || wire_run_decode(c->body.data, c->body.bytes_count, out, &why) != BRG_OK)
        return answer_judge(c, "the run", &why, e);
    return BRG_OK;
}

enum brg_status client_agent(struct client *c, const struct wire_report *r,
                             struct wire_agent_answer *out, struct err *e) {
    AUTO_BUF struct buf body = {.bytes_max = WIRE_BODY_MAX};
    struct ask ask = {.method = SPOOL_POST, .target = "/v1/agent", .body = &body};
    struct err why = {0};
    wire_report_encode(r, &body);
    CHECK(!body.overflow);
    TRY(perform(c, &ask, e));
    if (wire_agent_answer_decode(c->body.data, c->body.bytes_count, out, &why) != BRG_OK)
        return answer_judge(c, "an agent's report", &why, e);
    return BRG_OK;
}

/* ---- The object store ---------------------------------------------------------------------------
 * The hub gives a URL that is good for one object, one method and a while; the bytes do not touch the hub. Whatever goes
 * wrong there is worth another try, with another URL: nothing about it is for the site to decide. */

enum { STORE_BAD_MAX = 3 };

/* Behind a courier nothing but the courier is reached. A store that this site does not get through to, though the hub
 * does, must not keep it from the run: after a few tries a transfer takes the hub's own line, and the one after it tries
 * the store again. */
static bool answers_direct(const struct client *c) {
    return c->mail != NULL || (c->spool[0] == '\0' && c->store_bad < STORE_BAD_MAX);
}

static void came_from_hub(struct client *c) {
    if (c->store_bad >= STORE_BAD_MAX) c->store_bad = STORE_BAD_MAX - 1;
}

/* The body goes to fd, where fd >= 0 and the store says yes. */
static enum brg_status direct_perform(struct client *c, const char *url, struct piece *piece,
                                      int fd, uint64_t from, struct err *e) {
    char host[300];
    direct_host(url, host);
    if (strncmp(url, "https://", 8) != 0 && !net_url_is_local(url))
        return err_set(e, BRG_E_NET,
                       "the hub sent this site to %s, unencrypted: set blobs.endpoint to https://",
                       host);
    request_begin(c, url, true, &c->store, c->headers_store);
    c->fd = fd;
    if (piece != NULL) piece_send(c, piece);
    range_ask(c, from);
    enum brg_status s = request_perform(c, e);
    c->fd = -1;
    c->store_bad = s == BRG_OK && c->http < 300 ? 0 : c->store_bad + 1;
    if (s == BRG_E_NET)
        return err_set(e, s, "the object store %s: %s%s", host,
                       c->error[0] ? c->error : "the transfer was cut",
                       strncmp(url, "https://", 8) == 0 ? " (a CA of its own: BERINGIA_S3_CA)"
                                                        : "");
    return s;
}

static enum brg_status direct_refused(struct client *c, const char *url, const char *what,
                                      struct err *e) {
    char host[300];
    direct_host(url, host);
    (void)object_refusal(c->http, c->body.data, c->body.bytes_count, host, what, e);
    if (e != NULL) e->status = BRG_E_NET;
    return BRG_E_NET;
}

/* ---- Upload ----------------------------------------------------------------------------------- */

static void blob_target(const struct id128 *did, char *out, size_t cap) {
    char hex[ID_HEX_BYTES];
    id_hex(did, hex);
    snprintf(out, cap, "/v1/blobs/%s", hex);
}

/* Where the file goes: into the object store, or to the hub from out->offset on. A hub that knows no store, or has none,
 * gives the offset alone. */
static enum brg_status upload_plan(struct client *c, const struct id128 *did, uint64_t bytes,
                                   struct direct_put *out, struct err *e) {
    char target[64];
    struct err why = {0};
    struct ask ask = {.method = SPOOL_GET};
    bool direct = answers_direct(c);
    memset(out, 0, sizeof *out);
    blob_target(did, target, sizeof target);
    (void)snprintf(ask.target, sizeof ask.target, "%s", target);
    if (direct)
        (void)snprintf(ask.target, sizeof ask.target, "%s?store=1&bytes=%" PRIu64, target, bytes);
    TRY(perform(c, &ask, e));
    if (c->http == 404) return BRG_OK;
    bool good = c->http == 200;
    if (good && direct)
        good = direct_put_decode(c->body.data, c->body.bytes_count, out, &why) == BRG_OK;
    if (good && !out->store) good = reply_offset_read(buf_cstr(&c->body), &out->offset);
    return good ? BRG_OK : answer_judge(c, "an upload", &why, e);
}

static enum brg_status direct_send(struct client *c, int fd, const struct direct_piece *x,
                                   struct err *e) {
    struct piece piece = {.fd = fd, .at = x->at, .end = x->at + x->bytes};
    TRY(direct_perform(c, x->url, &piece, -1, 0, e));
    if (c->http >= 200 && c->http < 300) return BRG_OK;
    return direct_refused(c, x->url, "PUT of a contribution", e);
}

/* All of it into the object store, where the hub says so; else *out_done is false, and *out_offset where the hub is. */
static enum brg_status upload_direct(struct client *c, const struct id128 *did, int fd,
                                     uint64_t bytes, bool *out_done, uint64_t *out_offset,
                                     struct err *e) {
    AUTO_FREE struct direct_put *p = mem_alloc(1, sizeof *p);
    uint64_t farthest = 0;
    for (int turns = 0; turns <= 4; turns++) {
        TRY(upload_plan(c, did, bytes, p, e));
        *out_done = p->store;
        *out_offset = p->offset;
        if (!p->store || p->pieces_count == 0) return BRG_OK;
        if (p->offset > farthest) turns = 0;
        if (p->offset > farthest) farthest = p->offset;
        for (uint32_t i = 0; i < p->pieces_count; i++) {
            if (p->pieces[i].at > bytes || p->pieces[i].bytes > bytes - p->pieces[i].at)
                return err_set(e, BRG_E_MESSAGE, "%s: a piece that is not of this file", c->url);
            TRY(direct_send(c, fd, &p->pieces[i], e));
        }
        if (p->last) return BRG_OK;
    }
    return err_set(e, BRG_E_NET, "%s: the upload to the object store does not get further", c->url);
}

/* One piece; moves *offset to where the hub is now. */
static enum brg_status upload_piece(struct client *c, const struct id128 *did, const char *path,
                                    int fd, uint64_t bytes, uint64_t *offset, struct err *e) {
    char target[64];
    struct piece piece = {.fd = fd, .at = *offset, .end = bytes};
    struct ask ask = {.method = SPOOL_PUT, .piece = &piece, .file = path};
    if (piece.end - piece.at > CLIENT_PIECE_BYTES) piece.end = piece.at + CLIENT_PIECE_BYTES;
    uint64_t end = piece.end;
    blob_target(did, target, sizeof target);
    snprintf(ask.target, sizeof ask.target, "%s?offset=%" PRIu64, target, *offset);
    TRY(perform(c, &ask, e));
    uint64_t there = 0;
    if (c->http == 409 && reply_offset_read(buf_cstr(&c->body), &there)) {
        *offset = there;
        return BRG_OK;
    }
    if (c->http < 200 || c->http >= 300) return answer_judge(c, "a piece of a delta", NULL, e);
    *offset = end;
    return BRG_OK;
}

enum brg_status client_upload(struct client *c, const struct id128 *did, const char *path,
                              struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    struct stat st;
    if (fstat(fd, &st) != 0) return os_errno(e, errno, "looking at", path);
    uint64_t bytes = (uint64_t)st.st_size, offset = 0;
    bool done = false;
    TRY(upload_direct(c, did, fd, bytes, &done, &offset, e));
    if (done) return BRG_OK;
    if (c->mail != NULL) return no_line(c, e);
    /* Back and forth without getting further than ever before: give the caller's back-off a chance. */
    int turns = 0;
    uint64_t farthest = offset;
    while (offset < bytes) {
        TRY(upload_piece(c, did, path, fd, bytes, &offset, e));
        turns = offset > farthest ? 0 : turns + 1;
        if (offset > farthest) farthest = offset;
        if (turns > 4)
            return err_set(e, BRG_E_NET, "%s: the upload is stuck at byte %" PRIu64, c->url,
                           offset);
    }
    came_from_hub(c);
    return BRG_OK;
}

/* ---- Download --------------------------------------------------------------------------------- */

/* The hub's 303: what there is of the file goes on from the object store. */
static enum brg_status download_direct(struct client *c, int fd, uint64_t from, const char *what,
                                       struct err *e) {
    AUTO_FREE struct direct_get *g = mem_alloc(1, sizeof *g);
    struct err why = {0};
    if (direct_get_decode(c->body.data, c->body.bytes_count, g, &why) != BRG_OK)
        return err_set(e, BRG_E_NET, "%s: where version's %s is cannot be read: %s", c->url, what,
                       why.text);
    if (from >= g->bytes) { /* all of it, or too much: the caller's hash says which */
        c->http = 416;
        return BRG_OK;
    }
    TRY(direct_perform(c, g->url, NULL, fd, from, e));
    if (c->http == 416 || c->http == 404) /* there is less than the hub put there */
        c->doubt = true;
    if (c->http != 200 && c->http != 206) return direct_refused(c, g->url, what, e);
    off_t have = lseek(fd, 0, SEEK_END);
    if (have >= 0 && (uint64_t)have >= g->bytes) return BRG_OK;
    char host[300];
    direct_host(g->url, host);
    c->doubt = true;
    return err_set(e, BRG_E_NET,
                   "the object store %s: %s is truncated there: %lld of %" PRIu64 " bytes; "
                   "the hub is asked to put it there again",
                   host, what, (long long)have, g->bytes);
}

bool client_doubt(struct client *c) {
    c->doubt = c->direct;
    return c->doubt;
}

static enum brg_status download_fill(struct client *c, struct ask *ask, int fd, const char *what,
                                     struct err *e) {
    c->fd = fd;
    enum brg_status s = perform(c, ask, e);
    c->fd = -1;
    c->direct = s == BRG_OK && c->http == 303;
    if (c->direct) s = download_direct(c, fd, ask->from, what, e);
    if (ask->from > 0 && c->http == 200) { /* no Range on the way: what was appended is no tail */
        if (ftruncate(fd, 0) != 0) return os_errno(e, errno, "emptying", ask->file);
        return err_set(e, BRG_E_NET, "%s: Range is not honoured; starting over", c->url);
    }
    if (s == BRG_OK && !c->direct && (c->http == 200 || c->http == 206)) came_from_hub(c);
    if (c->http == 416 && s != BRG_E_NET)
        return BRG_OK; /* it is here, or it is of something else */
    if (s == BRG_OK && c->http != 200 && c->http != 206)
        return answer_judge(c, "this version", NULL, e);
    return s;
}

static enum brg_status download(struct client *c, uint64_t version, const char *what,
                                const char *path, struct err *e) {
    char part[OS_PATH_MAX];
    struct ask ask = {.method = SPOOL_GET, .file = part};
    size_t n = strlen(path);
    CHECK(n + 6 < sizeof part);
    memcpy(part, path, n);
    memcpy(part + n, ".part", 6);
    {
        AUTO_CLOSE int fd = open(part, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (fd < 0) return os_errno(e, errno, "opening", part);
        off_t have = lseek(fd, 0, SEEK_END);
        if (have < 0) return os_errno(e, errno, "looking at", part);
        bool direct = answers_direct(c);
        snprintf(ask.target, sizeof ask.target, "/v1/versions/%" PRIu64 "/%s%s%s", version, what,
                 direct ? "?store=1" : "", direct && c->doubt ? "&doubt=1" : "");
        c->doubt = false;
        ask.from = (uint64_t)have;
        ask.store_only = c->mail != NULL && strcmp(what, "ledger") != 0;
        TRY(download_fill(c, &ask, fd, what, e));
        if (fsync(fd) != 0) return os_errno(e, errno, "syncing", part);
    }
    return os_rename_durable(part, path, e);
}

enum brg_status client_download(struct client *c, uint64_t version, const char *path,
                                struct err *e) {
    return download(c, version, "checkpoint", path, e);
}

enum brg_status client_download_update(struct client *c, uint64_t version, const char *path,
                                       struct err *e) {
    return download(c, version, "update", path, e);
}

enum brg_status client_download_ledger(struct client *c, uint64_t version, const char *path,
                                       struct err *e) {
    return download(c, version, "ledger", path, e);
}
