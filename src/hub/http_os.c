/* SPDX-License-Identifier: Apache-2.0 */
/* http_os.c - connections: libmicrohttpd with one thread a connection. A request waits for the disk
 * (group commit), so a thread may sleep; sites are few, and the number of connections is bounded.
 *
 *   headers --begin--> (PUT: pieces go straight to the blob store)  --end--> answer
 *                      (POST: a bounded body)                                              */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/http_os.h"
#include "wire/json.h"

enum {
    CONNECTION_MEMORY = 32 *
                        1024, /* headers and a piece of a body; bodies have a buffer of their own */
    CONNECTION_STACK = 256 * 1024,
    CONNECTION_IDLE_S = 150,
    LISTEN_BACKLOG = 4096,
    RETRY_FULL_MS = 5000,
    RETRY_STOPPING_MS = 1000
};

/* ---- Answers ------------------------------------------------------------------------------------- */
static enum MHD_Result queue(struct exchange *x, int http, struct MHD_Response *r) {
    CHECK(r != NULL);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    enum MHD_Result ok = MHD_queue_response(x->mhd, (unsigned)http, r);
    MHD_destroy_response(r);
    x->answered = true;
    return ok;
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
    } names[] = {{METHOD_GET, "GET, HEAD"}, {METHOD_POST, "POST"}, {METHOD_PUT, "PUT"}};
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

/* ---- Files with Range ------------------------------------------------------------------------------ */
/* One range only (RFC 9110, 14.2): -1 not satisfiable, 0 none or not understood (send all), 1 there. */
static int range_parse(const char *text, uint64_t bytes, uint64_t *out_from, uint64_t *out_count) {
    uint64_t from, to;
    char a[24] = "", b[24] = "";
    if (strncmp(text, "bytes=", 6) != 0 || strchr(text, ',') != NULL) return 0;
    const char *dash = strchr(text + 6, '-');
    if (dash == NULL || (size_t)(dash - text - 6) >= sizeof a || strlen(dash + 1) >= sizeof b)
        return 0;
    memcpy(a, text + 6, (size_t)(dash - text - 6));
    memcpy(b, dash + 1, strlen(dash + 1));
    if (a[0] == '\0') { /* the last so many bytes */
        if (!parse_u64(b, &to)) return 0;
        if (to == 0 || bytes == 0) return -1;
        *out_count = to < bytes ? to : bytes;
        *out_from = bytes - *out_count;
        return 1;
    }
    if (!parse_u64(a, &from) || (b[0] != '\0' && !parse_u64(b, &to))) return 0;
    if (b[0] == '\0' || to >= bytes) to = bytes > 0 ? bytes - 1 : 0;
    if (from >= bytes) return -1;
    if (to < from) return 0;
    *out_from = from;
    *out_count = to - from + 1;
    return 1;
}

enum MHD_Result reply_file(struct exchange *x, int fd, uint64_t bytes, const struct hash *hash) {
    char hex[HASH_HEX_BYTES], etag[HASH_HEX_BYTES + 4], header[96];
    hash_hex(hash, hex);
    (void)snprintf(etag, sizeof etag, "\"%s\"", hex);
    const char *range = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Range");
    const char *only = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "If-Range");
    uint64_t from = 0, count = bytes;
    int http = 200, found = 0;
    if (range != NULL && (only == NULL || strcmp(only, etag) == 0))
        found = range_parse(range, bytes, &from, &count);
    if (found < 0) {
        (void)close(fd);
        struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
        (void)snprintf(header, sizeof header, "bytes */%" PRIu64, bytes);
        (void)MHD_add_response_header(r, "Content-Range", header);
        return queue(x, 416, r);
    }
    struct MHD_Response *r = MHD_create_response_from_fd_at_offset64(count, fd, from);
    if (r == NULL) {
        (void)close(fd);
        return MHD_NO;
    }
    if (found > 0) {
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

/* ---- A request on its way ------------------------------------------------------------------------- */
static uint32_t method_of(const char *name) {
    static const struct {
        const char *name;
        uint32_t bit;
    } names[] = {
        {"GET", METHOD_GET}, {"HEAD", METHOD_HEAD}, {"POST", METHOD_POST}, {"PUT", METHOD_PUT}};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (strcmp(names[i].name, name) == 0) return names[i].bit;
    return 0;
}

static bool cut_path(struct exchange *x, const char *url) {
    size_t n = strlen(url);
    if (n >= sizeof x->path || url[0] != '/') return false;
    memcpy(x->path, url, n + 1);
    if (n == 1) return true; /* "/": the page */
    for (char *p = x->path; *p != '\0';) {
        *p++ = '\0'; /* a slash */
        if (*p == '\0' || *p == '/') return false;
        if (x->segments_count == PATH_MAX_SEGMENTS) return false;
        x->segment[x->segments_count++] = p;
        while (*p != '\0' && *p != '/') p++;
    }
    return true;
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

static enum MHD_Result on_request(void *user, struct MHD_Connection *mhd, const char *url,
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
    if (*data_bytes > 0) {
        if (x->method == METHOD_PUT)
            upload_piece(x, data, *data_bytes);
        else
            buf_put(&x->body, data, *data_bytes);
        *data_bytes = 0;
        return MHD_YES;
    }
    if (x->route == NULL) return reply_no_route(x);
    if (x->body.overflow)
        return reply_problem(x, 413, WIRE_BAD, "the body is larger than %zu bytes", x->body_max);
    return x->method == METHOD_PUT ? upload_end(x) : x->route->handle(x);
}

static void on_completed(void *user, struct MHD_Connection *mhd, void **state,
                         enum MHD_RequestTerminationCode why) {
    (void)user, (void)mhd, (void)why;
    struct exchange *x = *state;
    if (x == NULL) return;
    buf_fini(&x->body);
    mem_free(x);
    *state = NULL;
}

static void on_log(void *user, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *user, const char *fmt, va_list ap) {
    char text[240], quoted[300];
    (void)user;
    (void)vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "hub", "http", "text=%s", log_quote(text, quoted, sizeof quoted));
}

/* ---- Listening --------------------------------------------------------------------------------------- */
/* "host:port", "[v6]:port" or ":port". */
static bool address_split(const char *listen, char host[256], char port[8]) {
    const char *colon = strrchr(listen, ':');
    if (colon == NULL || strlen(colon + 1) == 0 || strlen(colon + 1) >= 8) return false;
    uint64_t number;
    if (!parse_u64(colon + 1, &number) || number > 65535) return false;
    size_t n = (size_t)(colon - listen);
    if (n >= 2 && listen[0] == '[' && listen[n - 1] == ']') {
        listen++;
        n -= 2;
    }
    if (n >= 256) return false;
    memcpy(host, listen, n);
    host[n] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

static enum brg_status open_socket(const char *listen_at, int *out_fd, struct err *e) {
    char host[256], port[8];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list = NULL;
    if (!address_split(listen_at, host, port))
        return err_set(e, BRG_E_CONFIG, "listen: '%s' is not HOST:PORT", listen_at);
    int rc = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, &list);
    if (rc != 0)
        return err_set(e, BRG_E_PORT, "listen: %s: %s; give an address of this machine", listen_at,
                       gai_strerror(rc));
    int fd = -1, error = 0, on = 1;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            error = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) break;
        error = errno;
        (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0)
        return err_set(e, BRG_E_PORT,
                       "listen: %s: %s; choose another port, port 0 takes a free one", listen_at,
                       strerror(error));
    *out_fd = fd;
    return BRG_OK;
}

/* The address that was really taken, as others may use it. */
static void name_socket(int fd, char *url, size_t cap) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[80], port[16];
    CHECK(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    CHECK(getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV) == 0);
    (void)snprintf(url, cap, a.ss_family == AF_INET6 ? "http://[%s]:%s" : "http://%s:%s", host,
                   port);
}

/* Each connection is an open file, and an upload one more. What the system allows is the limit then. */
static uint32_t files_raise(uint32_t connections) {
    enum { OTHER_FILES = 256 };
    struct rlimit r;
    rlim_t wanted = 2 * (rlim_t)connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= wanted) return connections;
    struct rlimit more = {.rlim_cur = wanted,
                          .rlim_max = r.rlim_max > wanted ? r.rlim_max : wanted};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) return connections;
    more = (struct rlimit){.rlim_cur = r.rlim_max, .rlim_max = r.rlim_max}; /* without privileges */
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) r.rlim_cur = more.rlim_cur;
    uint32_t fits = r.rlim_cur > 2 * OTHER_FILES ? (uint32_t)(r.rlim_cur - OTHER_FILES)
                                                 : OTHER_FILES;
    if (fits >= connections) return connections;
    log_line(
        LOG_WARN, "hub", "few_files",
        "connections=%u wanted=%u remedy=\"raise the limit of open files (ulimit -n) to %llu\"",
        fits, connections, (unsigned long long)wanted);
    return fits;
}

enum brg_status server_listen(struct hub_server *s, const char *listen_at, uint32_t connections_max,
                              struct err *e) {
    int fd;
    TRY(open_socket(listen_at, &fd, e));
    connections_max = files_raise(connections_max);
    name_socket(fd, s->url, sizeof s->url);
    s->http = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                                   MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC,
                               0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log,
                               NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED,
                               on_completed, NULL, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                               (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
                               (unsigned)CONNECTION_IDLE_S, MHD_OPTION_CONNECTION_LIMIT,
                               (unsigned)connections_max, MHD_OPTION_THREAD_STACK_SIZE,
                               (size_t)CONNECTION_STACK, MHD_OPTION_END);
    if (s->http != NULL) return BRG_OK;
    (void)close(fd);
    return err_set(e, BRG_E_PORT, "listen: %s: the HTTP server could not be started", listen_at);
}

void server_unlisten(struct hub_server *s) {
    if (s->http != NULL) MHD_stop_daemon(s->http);
    s->http = NULL;
}
