/* SPDX-License-Identifier: Apache-2.0 */
/* served.c - see the header. */
#include "../harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "served.h"

static size_t content_length(const char *head) {
    const char *at = strcasestr(head, "content-length:");
    return at ? (size_t)strtoul(at + 15, NULL, 10) : 0;
}

/* A request: the head, and the body behind it as far as the head announces one. */
static void request_read(int fd, char *out) {
    size_t n = 0, want = SIZE_MAX;
    while (n < want && n < HEAD_MAX - 1) {
        ssize_t got = read(fd, out + n, HEAD_MAX - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        out[n] = '\0';
        const char *end = strstr(out, "\r\n\r\n");
        if (end && want == SIZE_MAX) want = (size_t)(end + 4 - out) + content_length(out);
    }
    out[n] = '\0';
    char rest[4096]; /* of a body that is longer than what is kept: read, or the peer is reset */
    for (size_t left = want != SIZE_MAX && want > n ? want - n : 0; left > 0;) {
        ssize_t got = read(fd, rest, left < sizeof rest ? left : sizeof rest);
        if (got <= 0) break;
        left -= (size_t)got;
    }
}

static void *serve(void *user) {
    struct server *s = user;
    for (int i = 0; i < s->turns_count; i++) {
        int c = accept(s->fd, NULL, NULL);
        if (c < 0) return NULL;
        request_read(c, s->requests[i]);
        size_t n = strlen(s->turns[i].reply), sent = 0;
        while (sent < n) {
            ssize_t k = write(c, s->turns[i].reply + sent, n - sent);
            if (k <= 0) break;
            sent += (size_t)k;
        }
        s->served++;
        close(c);
    }
    return NULL;
}

void server_start(struct server *s, const struct turn *turns, int count) {
    memset(s, 0, sizeof *s);
    s->turns = turns;
    s->turns_count = count;
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(s->fd, 8), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

void server_stop(struct server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    assert_int_equal(s->served, s->turns_count);
    for (int i = 0; i < s->turns_count; i++)
        if (!strstr(s->requests[i], s->turns[i].want)) {
            fprintf(stderr, "request %d lacks \"%s\":\n%s\n", i, s->turns[i].want, s->requests[i]);
            fail();
        }
}
