/* SPDX-License-Identifier: Apache-2.0 */
/* members.c - 10,000 members of a real hub process, each with a connection of its own that stays open:
 * all join, then all send heartbeats, one after another on each connection, for some seconds. One thread
 * here plays all members, on the same machine: what it takes is taken from the hub. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/hub/kit.h"
#include "bench/hub/process.h"

enum { BEAT_S = 5, JOIN_S = 120, EVENTS = 512, ANSWER_MAX = 4096, REQUEST_MAX = 2048 };

struct client {
    int fd;
    uint32_t number, inc;
    uint64_t seq;
    size_t have;
    char got[ANSWER_MAX];
};
struct crowd {
    const struct run_dir *d;
    int epoll;
    struct client *v;
    uint32_t count, open;
    uint64_t answers, refused, broken;
};

/* The head of a request and its body, ready to send. */
static size_t request_text(struct crowd *c, struct client *x, struct wire_request *r,
                           const char *path, char out[REQUEST_MAX]) {
    AUTO_BUF struct buf b;
    buf_init(&b, REQUEST_MAX);
    (void)snprintf(r->site, sizeof r->site, "m%u", x->number);
    r->run = c->d->facts.run;
    r->inc = x->inc;
    r->req = ++x->seq;
    wire_request_encode(r, &b);
    int n = snprintf(out, REQUEST_MAX,
                     "POST /v1/%s HTTP/1.1\r\nHost: hub\r\nContent-Length: %zu\r\n\r\n%.*s", path,
                     b.bytes_count, (int)b.bytes_count, (const char *)b.data);
    CHECK(n > 0 && n < REQUEST_MAX);
    return (size_t)n;
}

static void drop(struct crowd *c, struct client *x) {
    (void)close(x->fd);
    x->fd = -1;
    c->open--;
    c->broken++;
}

static void send_join(struct crowd *c, struct client *x) {
    char text[REQUEST_MAX], name[WIRE_NAME_MAX];
    (void)snprintf(name, sizeof name, "m%u", x->number);
    struct wire_request r = kit_join_request(c->d, name);
    size_t n = request_text(c, x, &r, "join", text);
    if (send(x->fd, text, n, MSG_NOSIGNAL) != (ssize_t)n) drop(c, x);
}

static void send_beat(struct crowd *c, struct client *x) {
    char text[REQUEST_MAX];
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_HEARTBEAT;
    r.u.heartbeat.hb_seq = x->seq + 1;
    r.u.heartbeat.phase = PHASE_TRAINING;
    r.u.heartbeat.steps_per_s = 1 + x->number % 7;
    r.u.heartbeat.tokens_per_s = 4096;
    size_t n = request_text(c, x, &r, "heartbeat", text);
    if (send(x->fd, text, n, MSG_NOSIGNAL) != (ssize_t)n) drop(c, x);
}

/* True where a whole answer is there; it is taken. */
static bool receive(struct crowd *c, struct client *x) {
    ssize_t n = recv(x->fd, x->got + x->have, sizeof x->got - 1 - x->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        drop(c, x);
        return false;
    }
    x->have += (size_t)n;
    x->got[x->have] = '\0';
    const char *body = strstr(x->got, "\r\n\r\n"), *length = strstr(x->got, "Content-Length:");
    if (body == NULL || length == NULL) return false;
    if (x->have < (size_t)(body + 4 - x->got) + strtoul(length + 15, NULL, 10)) return false;
    bool fine = strncmp(x->got, "HTTP/1.1 200", 12) == 0;
    const char *inc = x->inc == 0 ? strstr(body, "\"inc\":") : NULL;
    if (fine && inc != NULL) x->inc = (uint32_t)strtoul(inc + 6, NULL, 10);
    if (!fine && c->refused++ == 0) fprintf(stderr, "refused: %.300s\n", body + 4);
    c->answers++;
    x->have = 0;
    return true;
}

/* One answer for each member that is there, or `again` until the time is over. */
static double run_crowd(struct crowd *c, bool again, int seconds) {
    struct epoll_event events[EVENTS];
    time_ns began = os_now(), end = began + (time_ns)seconds * NS_PER_S;
    uint64_t first = c->answers;
    while (os_now() < end && c->open > 0 && (again || c->answers - first < c->count)) {
        int n = epoll_wait(c->epoll, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            struct client *x = &c->v[events[i].data.u32];
            if (x->fd < 0 || !receive(c, x)) continue;
            if (again) send_beat(c, x);
        }
    }
    return (double)(os_now() - began) / 1e9;
}

static void raise_files(uint32_t wanted) {
    struct rlimit r;
    CHECK(getrlimit(RLIMIT_NOFILE, &r) == 0);
    if (r.rlim_cur >= wanted) return;
    r.rlim_cur = wanted;
    if (r.rlim_max < wanted) r.rlim_max = wanted;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0) perror("bench hub: open files");
}

static void connect_all(struct crowd *c, const struct hub_process *p) {
    time_ns end = os_now() + (time_ns)JOIN_S * NS_PER_S;
    for (uint32_t i = 0; i < c->count && os_now() < end; i++) {
        struct client *x = &c->v[i];
        x->number = i;
        x->fd = hub_process_connect(p);
        if (x->fd < 0) {
            c->broken++;
            continue;
        }
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
        CHECK(epoll_ctl(c->epoll, EPOLL_CTL_ADD, x->fd, &e) == 0);
        c->open++;
    }
}

void part_members(const char *dir, const char *program, uint32_t members) {
    static const char *const sets[] = {"hub.sites_max=20000", "lease.ttl=1h", NULL};
    struct crowd c = {.count = members};
    struct hub_process p;
    char run[OS_PATH_MAX];
    AUTO_FREE struct run_dir *d = mem_alloc(1, sizeof *d);
    kit_run_make(dir, "members", 1000 * 1000 * 1000, sets, d);
    c.d = d;
    c.v = mem_alloc(members, sizeof *c.v);
    c.epoll = epoll_create1(EPOLL_CLOEXEC);
    raise_files(members + 256);
    hub_process_start(&p, program, os_path(run, dir, "members"));
    uint64_t empty = hub_process_rss_bytes(&p);
    time_ns began = os_now();
    connect_all(&c, &p);
    for (uint32_t i = 0; i < members; i++)
        if (c.v[i].fd >= 0) send_join(&c, &c.v[i]);
    (void)run_crowd(&c, false, JOIN_S);
    kit_figure("join_all_s", (double)(os_now() - began) / 1e9, 1);
    uint32_t joined = 0;
    for (uint32_t i = 0; i < members; i++) joined += c.v[i].inc > 0;
    kit_promise("members", joined, 0, false, members);
    uint64_t before = c.answers;
    for (uint32_t i = 0; i < members; i++)
        if (c.v[i].fd >= 0) send_beat(&c, &c.v[i]);
    double s = run_crowd(&c, true, BEAT_S);
    kit_promise("heartbeats_per_s", (double)(c.answers - before) / s, 0, false, 10000);
    kit_promise("refused_or_broken", (double)(c.refused + c.broken), 0, true, 0);
    int fd = hub_process_connect(&p);
    static const char status[] = "GET /v1/status HTTP/1.1\r\nHost: hub\r\n\r\n";
    began = os_now();
    kit_promise("status_failed", hub_process_ask(fd, status, sizeof status - 1) != 200, 0, true, 0);
    kit_figure("status_s", (double)(os_now() - began) / 1e9, 3);
    (void)close(fd);
    uint64_t full = hub_process_rss_bytes(&p);
    kit_figure("hub_rss_bytes", (double)full, 0);
    kit_figure("bytes_per_member", (double)(full - empty) / (joined > 0 ? joined : 1), 0);
    hub_process_end(&p, SIGTERM);
    for (uint32_t i = 0; i < members; i++)
        if (c.v[i].fd >= 0) (void)close(c.v[i].fd);
    (void)close(c.epoll);
    mem_free(c.v);
}
