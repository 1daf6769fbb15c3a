/* SPDX-License-Identifier: Apache-2.0 */
/* served.h - an HTTP server that says what a test tells it to, one connection a turn. */
#ifndef TEST_SITE_SERVED_H
#define TEST_SITE_SERVED_H

#include <pthread.h>
#include <stddef.h>

enum { TURNS_MAX = 12, HEAD_MAX = 4096 };

struct turn { /* one request: what it must contain, and the raw answer */
    const char *want, *reply;
};

struct server {
    int fd;
    char url[64];
    pthread_t thread;
    const struct turn *turns;
    int turns_count, served;
    char requests[TURNS_MAX][HEAD_MAX];
};
/* Listens; `turns` may be filled in until the first request comes. */
void server_start(struct server *s, const struct turn *turns, int count);
/* Ends it; all turns were taken, and each request has what it must. */
void server_stop(struct server *s);

#define CLOSING "Connection: close\r\n"

#endif
