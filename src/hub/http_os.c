/* SPDX-License-Identifier: Apache-2.0 */
/* http_os.c - connections: libmicrohttpd with one thread a connection. A request waits for the disk
 * (group commit), so a thread may sleep; sites are few, and the number of connections is bounded.
 *
 *   headers --begin--> (PUT: pieces go straight to the blob store)  --end--> answer
 *                      (POST: a bounded body)                                              */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/http_os.h"
#include "hub/http_text.h"
#include "wire/json.h"

enum {
    RETRY_FULL_MS = 5000,
    RETRY_STOPPING_MS = 1000,
    BODY_SLACK = 64 *
                 1024 /* what may follow a body that is too long before the connection is cut */
};

/* ---- Answers ------------------------------------------------------------------------------------- */
static enum MHD_Result queue(struct exchange *x, int http, struct MHD_Response *r) {
    CHECK(r != NULL);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (x->watch != NULL) gate_watch_move(x->s->gate, x->watch, WATCH_ANSWER, NULL);
    if (x->gate == GATE_STRANGER || (x->gate == GATE_RATE && x->who.id[0] == '\0'))
        (void)MHD_add_response_header(r, "Connection", "close");
    if (http == 401) (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    enum MHD_Result ok = MHD_queue_response(x->mhd, (unsigned)http, r);
    MHD_destroy_response(r);
    x->answered = true;
    x->http = http;
    return ok;
}

enum MHD_Result reply_response(struct exchange *x, int http, struct MHD_Response *r) {
    return queue(x, http, r);
}

static struct MHD_Response *json_response(struct buf *json, const char *type) {
    CHECK(!json->overflow);
    struct MHD_Response *r =
        MHD_create_response_from_buffer(json->bytes_count, json->data, MHD_RESPMEM_MUST_COPY);
    CHECK(r != NULL);
    (void)MHD_add_response_header(r, "Content-Type", type);
    return r;
}

enum MHD_Result reply_json(struct exchange *x, int http, struct buf *json) {
    const char *type = http < 400 ? "application/json" : "application/problem+json";
    return queue(x, http, json_response(json, type));
}

static enum MHD_Result reply_problem_text(struct exchange *x, int http, enum wire_code code,
                                          uint32_t retry_ms, const char *text) {
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, WIRE_BODY_MAX);
    buf_u8(&b, '{');
    json_member_text(&b, &first, "code", wire_code_name(code));
    json_member_u64(&b, &first, "req", 0);
    json_member_u64(&b, &first, "term", 0);
    json_member_text(&b, &first, "text", text);
    json_member_u64(&b, &first, "retry_ms", retry_ms);
    json_member_u64(&b, &first, "status", (uint64_t)http);
    buf_put(&b, "}\n", 2);
    struct MHD_Response *r = json_response(&b, "application/problem+json");
    if (retry_ms > 0) {
        char seconds[16];
        (void)snprintf(seconds, sizeof seconds, "%u", (retry_ms + 999) / 1000);
        (void)MHD_add_response_header(r, "Retry-After", seconds);
    }
    return queue(x, http, r);
}

enum MHD_Result reply_problem(struct exchange *x, int http, enum wire_code code, const char *fmt,
                              ...) {
    char text[WIRE_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return reply_problem_text(x, http, code, code == WIRE_RETRY ? RETRY_STOPPING_MS : 0, text);
}

enum MHD_Result reply_step(struct exchange *x, enum step_result r) {
    CHECK(r != STEP_DONE);
    if (r == STEP_FULL)
        return reply_problem_text(
            x, 507, WIRE_RETRY, RETRY_FULL_MS,
            "the hub's disk is full, nothing was changed; come again, and free "
            "space on the disk of the run directory");
    if (r == STEP_AWAY)
        return reply_problem_text(
            x, 503, WIRE_RETRY, RETRY_STOPPING_MS,
            "the hub does not reach its journal; what became of this is told to whoever asks the "
            "same again, so come again");
    return reply_problem_text(x, 503, WIRE_RETRY, RETRY_STOPPING_MS,
                              "the hub is stopping, nothing was changed; come again");
}

enum MHD_Result reply_offset(struct exchange *x, int http, uint64_t offset, const char *text) {
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, 4096);
    buf_u8(&b, '{');
    if (http >= 400) {
        json_member_text(&b, &first, "code", wire_code_name(WIRE_UPLOAD));
        json_member_text(&b, &first, "text", text);
    }
    json_member_u64(&b, &first, "offset", offset);
    buf_put(&b, "}\n", 2);
    return reply_json(x, http, &b);
}

enum MHD_Result reply_method(struct exchange *x, uint32_t allowed) {
    AUTO_BUF struct buf b;
    char list[64] = "";
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {{METHOD_GET, "GET, HEAD"},
                 {METHOD_POST, "POST"},
                 {METHOD_PUT, "PUT"},
                 {METHOD_DELETE, "DELETE"}};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        if ((allowed & names[i].bit) == 0) continue;
        size_t n = strlen(list);
        (void)snprintf(list + n, sizeof list - n, "%s%s", n > 0 ? ", " : "", names[i].name);
    }
    bool first = true;
    buf_init(&b, 4096);
    buf_u8(&b, '{');
    json_member_text(&b, &first, "code", wire_code_name(WIRE_BAD));
    json_member_u64(&b, &first, "req", 0);
    json_member_u64(&b, &first, "term", 0);
    json_key(&b, &first, "text");
    buf_printf(&b, "\"this path takes %s\"", list);
    buf_put(&b, "}\n", 2);
    struct MHD_Response *r = json_response(&b, "application/problem+json");
    (void)MHD_add_response_header(r, "Allow", list);
    return queue(x, 405, r);
}

enum MHD_Result reply_other_name(struct exchange *x) {
    return reply_problem(x, 403, WIRE_BAD,
                         "this token is that of '%s' and speaks for no other site", x->who.name);
}

/* ---- Files with Range ------------------------------------------------------------------------------ */
enum MHD_Result reply_file(struct exchange *x, int fd, uint64_t bytes, const struct hash *hash) {
    return reply_stretch(x, fd, 0, bytes, hash);
}

enum MHD_Result reply_stretch(struct exchange *x, int fd, uint64_t offset, uint64_t bytes,
                              const struct hash *hash) {
    char hex[HASH_HEX_BYTES], etag[HASH_HEX_BYTES + 4], header[96];
    hash_hex(hash, hex);
    (void)snprintf(etag, sizeof etag, "\"%s\"", hex);
    const char *range = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Range");
    const char *only = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "If-Range");
    uint64_t from = 0, count = bytes;
    int http = 200;
    enum http_range found = HTTP_RANGE_NONE;
    if (range != NULL && (only == NULL || strcmp(only, etag) == 0))
        found = http_range(range, bytes, &from, &count);
    if (found == HTTP_RANGE_BAD) {
        (void)close(fd);
        struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
        (void)snprintf(header, sizeof header, "bytes */%" PRIu64, bytes);
        (void)MHD_add_response_header(r, "Content-Range", header);
        return queue(x, 416, r);
    }
    struct MHD_Response *r = MHD_create_response_from_fd_at_offset64(count, fd, offset + from);
    if (r == NULL) {
        (void)close(fd);
        return MHD_NO;
    }
    if (found == HTTP_RANGE_PART) {
        http = 206;
        (void)snprintf(header, sizeof header, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, from,
                       from + count - 1, bytes);
        (void)MHD_add_response_header(r, "Content-Range", header);
    }
    (void)MHD_add_response_header(r, "Accept-Ranges", "bytes");
    (void)MHD_add_response_header(r, "ETag", etag);
    (void)MHD_add_response_header(r, "Content-Type", "application/octet-stream");
    return queue(x, http, r);
}

/* ---- The gate ------------------------------------------------------------------------------------- */
/* What the gate said, as an answer. It tells a stranger nothing but that. */
static enum MHD_Result reply_refused(struct exchange *x) {
    switch (x->gate) {
    case GATE_IN: break;
    case GATE_STRANGER:
        return reply_problem(x, 401, WIRE_BAD,
                             "want a token that this hub knows: Authorization: Bearer ...");
    case GATE_SCOPE:
        return reply_problem(x, 403, WIRE_BAD, "this token is for something else: see its scope");
    case GATE_RATE:
        return reply_problem_text(x, 429, WIRE_RETRY, (uint32_t)(x->wait / NS_PER_MS) + 1,
                                  "too many requests; nothing was changed, come again");
    case GATE_BROKEN:
        return reply_problem(x, 503, WIRE_RETRY,
                             "the hub cannot read its tokens; its operator has to look");
    }
    CHECK(false);
    return MHD_NO;
}

/* Only a request that a token was good for makes the connection a friend's. */
static void pass_gate(struct exchange *x) {
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const union MHD_ConnectionInfo *mine =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    CHECK(from != NULL);
    x->watch = mine != NULL ? mine->socket_context : NULL;
    struct gate_question q = {
        .from = from->client_addr,
        .authorization = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Authorization"),
        .scopes = x->route != NULL ? x->route->scopes : SCOPES_FIGURES,
        .counted = x->method != METHOD_PUT};
    x->gate = gate_admit(x->s->gate, &q, &x->who, &x->wait);
    bool known = x->gate == GATE_SCOPE || (x->gate == GATE_IN && (q.scopes & SCOPES_ANYBODY) == 0);
    if (x->watch != NULL) gate_watch_move(x->s->gate, x->watch, WATCH_BODY, known ? &x->who : NULL);
}

/* ---- A request on its way ------------------------------------------------------------------------- */
static uint32_t method_of(const char *name) {
    static const struct {
        const char *name;
        uint32_t bit;
    } names[] = {{"GET", METHOD_GET},
                 {"HEAD", METHOD_HEAD},
                 {"POST", METHOD_POST},
                 {"PUT", METHOD_PUT},
                 {"DELETE", METHOD_DELETE}};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (strcmp(names[i].name, name) == 0) return names[i].bit;
    return 0;
}

static bool cut_path(struct exchange *x, const char *url) {
    size_t n = strlen(url);
    if (n >= sizeof x->path) return false;
    memcpy(x->path, url, n + 1);
    return http_cut(x->path, x->segment, PATH_MAX_SEGMENTS, &x->segments_count);
}

static enum MHD_Result reply_no_route(struct exchange *x) {
    if (x->allowed != 0) return reply_method(x, x->allowed);
    return reply_problem(x, 404, WIRE_BAD,
                         "there is nothing at this path; docs/protocol.md lists all");
}

/* The headers are here. An answer now closes the connection (a body may follow that nobody wants), so
 * that requests without a body are only answered at their end. */
static enum MHD_Result begin(struct exchange *x, const char *url, const char *method) {
    x->method = method_of(method);
    x->route = cut_path(x, url) ? route_find(x, &x->allowed) : NULL;
    bool no_body = x->method == METHOD_GET || x->method == METHOD_HEAD;
    pass_gate(x);
    if (x->gate != GATE_IN) return no_body ? MHD_YES : reply_refused(x);
    if (x->route == NULL) return no_body ? MHD_YES : reply_no_route(x);
    x->body_max = x->route->body_max;
    buf_init(&x->body, x->body_max > 0 ? x->body_max : 1);
    const char *length = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Length");
    uint64_t bytes = 0;
    if (length != NULL && parse_u64(length, &bytes) && x->method != METHOD_PUT &&
        bytes > x->body_max)
        return reply_problem(x, 413, WIRE_BAD, "the body has %" PRIu64 " bytes, %zu are allowed",
                             bytes, x->body_max);
    return x->method == METHOD_PUT ? upload_begin(x) : MHD_YES;
}

/* Without an end, or longer than it may be: what follows is not waited for. */
static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *data_bytes) {
    bool put = x->method == METHOD_PUT && x->gate == GATE_IN;
    if (x->watch != NULL) gate_watch_bytes(x->s->gate, x->watch, *data_bytes);
    if (put)
        upload_piece(x, data, *data_bytes);
    else if (x->body.bytes_max > 0)
        buf_put(&x->body, data, *data_bytes);
    bool over = put ? x->upload_status == BRG_E_LIMIT : x->body.overflow || x->body.bytes_max == 0;
    if (over) x->surplus += *data_bytes;
    *data_bytes = 0;
    return x->surplus <= BODY_SLACK ? MHD_YES : MHD_NO;
}

enum MHD_Result http_on_request(void *user, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_bytes, void **state) {
    (void)version;
    if (*state == NULL) {
        struct exchange *x = mem_alloc(1, sizeof *x);
        x->s = user;
        x->mhd = mhd;
        *state = x;
        return begin(x, url, method);
    }
    struct exchange *x = *state;
    if (x->answered) {
        *data_bytes = 0;
        return MHD_YES;
    }
    if (*data_bytes > 0) return take_body(x, data, data_bytes);
    if (x->gate != GATE_IN) return reply_refused(x);
    if (x->route == NULL) return reply_no_route(x);
    if (x->body.overflow)
        return reply_problem(x, 413, WIRE_BAD, "the body is larger than %zu bytes", x->body_max);
    return x->method == METHOD_PUT ? upload_end(x) : x->route->handle(x);
}

void http_on_completed(void *user, struct MHD_Connection *mhd, void **state,
                       enum MHD_RequestTerminationCode why) {
    (void)user, (void)mhd, (void)why;
    struct exchange *x = *state;
    if (x == NULL) return;
    if (x->watch != NULL) gate_watch_move(x->s->gate, x->watch, WATCH_IDLE, NULL);
    buf_fini(&x->body);
    mem_free(x);
    *state = NULL;
}

void http_on_connection(void *user, struct MHD_Connection *mhd, void **context,
                        enum MHD_ConnectionNotificationCode what) {
    struct hub_server *s = user;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*context != NULL) gate_watch_end(s->gate, *context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (fd != NULL && from != NULL)
        *context = gate_watch_begin(s->gate, fd->connect_fd, from->client_addr);
}
