/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox_ask_os.c - see mailbox_ask_os.h. */
#include "hub/mailbox_ask_os.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

enum { SLICE_MS = 50, ASK_MAX_MS = 60000, HEAD_MAX = 16 << 10, READ_BYTES = 16 << 10 };

void mailbox_nap(const atomic_bool *stopping, uint32_t ms) {
    time_ns until = os_now() + (time_ns)ms * NS_PER_MS;
    while (os_now() < until && !atomic_load(stopping)) {
        struct timespec t = {.tv_nsec = SLICE_MS * NS_PER_MS};
        (void)nanosleep(&t, NULL);
    }
}

struct mailbox_line *mailbox_line_open(struct MHD_Daemon *door, atomic_bool *stopping) {
    struct mailbox_line *l = mem_alloc(1, sizeof *l);
    l->door = door;
    l->stopping = stopping;
    buf_init(&l->answer, WIRE_BODY_MAX + HEAD_MAX);
    return l;
}

void mailbox_line_close(struct mailbox_line *l) {
    buf_fini(&l->answer);
    explicit_bzero(&l->request, sizeof l->request);
    mem_free(l);
}

/* ---- The connection ------------------------------------------------------------------------------------ */
/* Whoever asks does not sit at this machine: the address is none (0.0.0.0), which opens nothing that loopback would. */
static int door_open(struct MHD_Daemon *door) {
    struct sockaddr_in from = {.sin_family = AF_INET};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    if (MHD_add_connection(door, pair[1], (struct sockaddr *)&from, sizeof from) == MHD_YES)
        return pair[0];
    (void)close(pair[0]); /* the other is closed by it */
    return -1;
}

/* False: the time is over, or the hub ends. */
static bool ready(const struct mailbox_line *l, int fd, short what, time_ns until) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = what};
        if (atomic_load(l->stopping) || os_now() >= until) return false;
        int n = poll(&p, 1, SLICE_MS);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

static bool send_all(const struct mailbox_line *l, int fd, const struct buf *b, time_ns until) {
    size_t at = 0;
    while (at < b->bytes_count) {
        if (!ready(l, fd, POLLOUT, until)) return false;
        ssize_t n = send(fd, b->data + at, b->bytes_count - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) at += (size_t)n;
    }
    return true;
}

/* To the end of the connection. */
static bool read_all(struct mailbox_line *l, int fd, time_ns until) {
    uint8_t bytes[READ_BYTES];
    for (;;) {
        if (!ready(l, fd, POLLIN, until)) return false;
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0) return true;
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) buf_put(&l->answer, bytes, (size_t)n);
        if (l->answer.overflow) return false;
    }
}

/* ---- One request ------------------------------------------------------------------------------------------ */
static void request_put(const struct spool_request *r, struct buf *out) {
    buf_printf(out, "%s %s HTTP/1.1\r\nHost: mailbox\r\nConnection: close\r\n",
               r->method == SPOOL_POST ? "POST" : "GET", r->target);
    if (r->token[0] != '\0') buf_printf(out, "Authorization: Bearer %s\r\n", r->token);
    if (r->bytes > 0)
        buf_printf(out, "Range: bytes=%" PRIu64 "-%" PRIu64 "\r\n", r->offset,
                   r->offset + r->bytes - 1);
    if (r->method == SPOOL_POST)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", r->body_bytes);
    buf_put(out, "\r\n", 2);
    if (r->body_bytes > 0) buf_put(out, r->body, r->body_bytes);
}

/* Of this very program: "HTTP/1.1 200 OK", headers, an empty line, so many bytes as Content-Length says. */
static bool answer_read(const struct buf *b, struct spool_answer *out) {
    static const char end[] = "\r\n\r\n", length[] = "\r\ncontent-length: ";
    const char *text = (const char *)b->data;
    uint64_t http = 0, bytes = 0;
    char number[24] = "";
    const char *stop = b->bytes_count > 0 ? memmem(text, b->bytes_count, end, 4) : NULL;
    if (stop == NULL || b->bytes_count < 13 || strncmp(text, "HTTP/1.1 ", 9) != 0) return false;
    (void)snprintf(number, sizeof number, "%.3s", text + 9);
    if (!parse_u64(number, &http)) return false;
    for (const char *p = text; p < stop; p++) {
        size_t n = sizeof length - 1;
        if ((size_t)(stop - p) <= n || strncasecmp(p, length, n) != 0) continue;
        (void)snprintf(number, sizeof number, "%.*s", (int)strspn(p + n, "0123456789"), p + n);
        if (!parse_u64(number, &bytes)) return false;
    }
    out->http = (uint32_t)http;
    out->body = (const uint8_t *)stop + 4;
    out->body_bytes = b->bytes_count - (size_t)(stop + 4 - text);
    return out->body_bytes == bytes;
}

void mailbox_ask(struct mailbox_line *l, struct spool_answer *out) {
    const struct spool_request *r = &l->request;
    AUTO_BUF struct buf text = {.bytes_max = SPOOL_BYTES_MAX};
    uint32_t limit_ms = r->timeout_ms < ASK_MAX_MS ? r->timeout_ms : ASK_MAX_MS;
    time_ns until = os_now() + (time_ns)limit_ms * NS_PER_MS;
    memset(out, 0, sizeof *out);
    buf_reset(&l->answer);
    l->answer.overflow = false;
    request_put(r, &text);
    AUTO_CLOSE int fd = text.overflow ? -1 : door_open(l->door);
    bool good = fd >= 0 && send_all(l, fd, &text, until) && read_all(l, fd, until);
    explicit_bzero(text.data, text.bytes_count); /* the token */
    if (good && answer_read(&l->answer, out)) return;
    *out = (struct spool_answer){.http = 0};
    (void)snprintf(out->text, sizeof out->text, "%s",
                   l->answer.overflow  ? "the answer is too long for a mailbox"
                   : os_now() >= until ? "the hub did not answer in time"
                                       : "the hub's own connection failed");
}
