/* SPDX-License-Identifier: Apache-2.0 */
/* events_os.c - see the header.
 *
 * Locks: the server's lock first, then this file's; nobody sleeps with the server's. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "hub/events.h"
#include "hub/events_os.h"
#include "hub/timeline.h"

enum { SNAPSHOT_MAX = 64 << 20, BLOCK_BYTES = 16 * 1024, RETRY_MS = 2000 };

struct snapshot { /* one event's bytes, for all viewers */
    uint64_t number;
    uint32_t users; /* under the lock */
    struct buf bytes;
};

struct events {
    struct hub_server *s;
    pthread_t thread;
    uint64_t boot; /* a restarted hub numbers afresh: ids begin with this */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a new snapshot, a new viewer, or the end; on CLOCK_MONOTONIC */
    bool stopping;
    bool wanted; /* a viewer has come who has nothing yet */
    struct snapshot *newest;
    time_ns shown; /* when it was made */
    uint64_t made, dropped;
    uint32_t viewers;
    struct timeline *timeline;
};

struct viewer {
    struct events *e;
    struct snapshot *held; /* being sent; NULL: text is */
    const char *text;
    size_t at, count;
    uint64_t number; /* of the last snapshot taken */
    time_ns began, given;
};

/* ---- Snapshots -------------------------------------------------------------------------------------- */
/* Under the lock. */
static void let_go(struct snapshot *p) {
    if (p == NULL) return;
    CHECK(p->users > 0);
    if (--p->users > 0) return;
    buf_fini(&p->bytes);
    mem_free(p);
}

static void adopt(struct events *e, struct snapshot *p) {
    let_go(e->newest);
    p->number = ++e->made;
    p->users = 1;
    e->newest = p;
    e->shown = os_now();
    pthread_cond_broadcast(&e->changed);
}

/* "id: ...\nevent: status\ndata: {...}\n\n": one line of JSON, as /v1/status gives it. */
static struct snapshot *snapshot_of(const struct events *e, uint64_t number, const char *json,
                                    size_t n) {
    struct snapshot *p = mem_alloc(1, sizeof *p);
    buf_init(&p->bytes, SNAPSHOT_MAX);
    while (n > 0 && json[n - 1] == '\n') n--;
    buf_printf(&p->bytes, "id: %" PRIx64 "-%" PRIu64 "\nevent: status\ndata: ", e->boot, number);
    buf_put(&p->bytes, json, n);
    buf_put(&p->bytes, "\n\n", 2);
    CHECK(!p->bytes.overflow);
    return p;
}

/* How long a snapshot stands: a second, or more where it is large. Under the lock. */
static time_ns period_of(const struct events *e) {
    uint64_t bytes = e->newest != NULL ? e->newest->bytes.bytes_count : 0;
    uint64_t ms = bytes * 1000 / EVENTS_BYTES_PER_S;
    if (ms < EVENTS_PERIOD_MS) ms = EVENTS_PERIOD_MS;
    if (ms > EVENTS_PERIOD_MAX_MS) ms = EVENTS_PERIOD_MAX_MS;
    return (time_ns)ms * NS_PER_MS;
}

/* ---- The watch thread -------------------------------------------------------------------------------- */
/* One look. True where a status was made into *out (somebody watches). */
static bool look(struct events *e, struct buf *out) {
    struct hub_server *s = e->s;
    time_ns wall = os_wall();
    buf_reset(out);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool serving = s->mode != SERVER_STOPPING;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    time_ns period = period_of(e);
    bool due = period == (time_ns)EVENTS_PERIOD_MS * NS_PER_MS || os_now() - e->shown >= period;
    bool watched = serving && due && e->viewers > 0;
    if (serving) timeline_observe(e->timeline, s->hub, server_now(s), wall);
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    if (watched) {
        struct view_extra x = server_view_extra(s);
        view_status(s->hub, server_now(s), &s->dir.settings, &x, out);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    /* Nobody is told what is not durable yet. */
    return watched && server_settle(s) == STEP_DONE;
}

/* A second; less for a viewer who has just come, where the last snapshot was long ago. */
static void pause_locked(struct events *e) {
    const time_ns period = period_of(e);
    time_ns end = os_now() + (time_ns)EVENTS_PERIOD_MS * NS_PER_MS;
    while (!e->stopping) {
        time_ns until = e->wanted && e->shown + period < end ? e->shown + period : end;
        if (os_now() >= until) break;
        struct timespec t = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};
        (void)pthread_cond_timedwait(&e->changed, &e->lock, &t);
    }
}

static void *watch_main(void *arg) {
    struct events *e = arg;
    struct buf b;
    uint64_t last = 0;
    buf_init(&b, SNAPSHOT_MAX - 1024);
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    while (!e->stopping) {
        CHECK(pthread_mutex_unlock(&e->lock) == 0);
        bool made = look(e, &b);
        uint64_t digest = made ? events_digest((const char *)b.data, b.bytes_count) : 0;
        CHECK(pthread_mutex_lock(&e->lock) == 0);
        if (made && (e->wanted || e->newest == NULL || digest != last)) {
            adopt(e, snapshot_of(e, e->made + 1, (const char *)b.data, b.bytes_count));
            e->wanted = false;
            last = digest;
        }
        pause_locked(e);
    }
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    buf_fini(&b);
    return NULL;
}

struct events *events_create(struct hub_server *s) {
    struct events *e = mem_alloc(1, sizeof *e);
    pthread_condattr_t a;
    e->s = s;
    e->boot = (uint64_t)(os_wall() / NS_PER_MS);
    e->timeline = timeline_create(os_wall());
    CHECK(pthread_mutex_init(&e->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&a) == 0);
    CHECK(pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&e->changed, &a) == 0);
    pthread_condattr_destroy(&a);
    CHECK(pthread_create(&e->thread, NULL, watch_main, e) == 0);
    return e;
}

void events_stop(struct events *e) {
    if (e == NULL) return;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    e->stopping = true;
    pthread_cond_broadcast(&e->changed);
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    CHECK(pthread_join(e->thread, NULL) == 0);
}

void events_destroy(struct events *e) {
    if (e == NULL) return;
    CHECK(e->viewers == 0);
    let_go(e->newest);
    timeline_destroy(e->timeline);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

/* ---- The timeline ------------------------------------------------------------------------------------ */
void events_staged(struct events *e, time_ns came) {
    if (e == NULL) return;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    timeline_staged(e->timeline, came);
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

void events_merge_began(struct events *e) {
    if (e == NULL) return;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    timeline_merge_began(e->timeline, os_wall());
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

void events_merge_ended(struct events *e, uint64_t version, time_ns merge_took) {
    if (e == NULL) return;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    timeline_merge_ended(e->timeline, version, merge_took, os_wall());
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

void events_merge_failed(struct events *e) {
    if (e == NULL) return;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    timeline_merge_failed(e->timeline);
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

void events_timeline(struct events *e, time_ns now, time_ns after, struct buf *out) {
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    timeline_view(e->timeline, e->s->hub, now, os_wall(), after, out);
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

void events_figures(struct events *e, struct metrics_extra *m) {
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    m->viewers = e->viewers;
    m->viewers_dropped = e->dropped;
    m->events = e->made;
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

/* ---- Viewers ----------------------------------------------------------------------------------------- */
static void viewer_say(struct viewer *v, const char *text) {
    v->text = text;
    v->count = strlen(text);
    v->at = 0;
    v->began = os_now();
}

/* Sleeps until there is something to send, in the connection's own thread. False at the end. */
static bool viewer_next(struct viewer *v) {
    struct events *e = v->e;
    time_ns until = os_now() + (time_ns)EVENTS_ALIVE_S * NS_PER_S;
    struct timespec t = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    let_go(v->held);
    v->held = NULL;
    int rc = 0;
    while (!e->stopping && rc == 0 && (e->newest == NULL || e->newest->number == v->number))
        rc = pthread_cond_timedwait(&e->changed, &e->lock, &t);
    bool stopping = e->stopping;
    if (!stopping && e->newest != NULL && e->newest->number != v->number) {
        v->held = e->newest;
        v->held->users++;
        v->number = v->held->number;
        v->count = v->held->bytes.bytes_count;
        v->at = 0;
        v->began = os_now();
    } else {
        viewer_say(v, ":\n\n");
    }
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    return !stopping;
}

static ssize_t viewer_read(void *user, uint64_t pos, char *out, size_t max) {
    struct viewer *v = user;
    (void)pos;
    if (v->at < v->count && os_now() - v->began > (time_ns)EVENTS_SLOW_S * NS_PER_S)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (v->at == v->count && !viewer_next(v)) return MHD_CONTENT_READER_END_OF_STREAM;
    const char *bytes = v->held != NULL ? (const char *)v->held->bytes.data : v->text;
    size_t n = v->count - v->at < max ? v->count - v->at : max;
    memcpy(out, bytes + v->at, n);
    v->at += n;
    v->given = os_now();
    return (ssize_t)n;
}

static void viewer_free(void *user) {
    struct viewer *v = user;
    struct events *e = v->e;
    /* Its thread sleeps here, in viewer_next, and not between two pieces: who was left there did not take. */
    bool slow = os_now() - v->given > (time_ns)EVENTS_SLOW_S * NS_PER_S / 2;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    let_go(v->held);
    CHECK(e->viewers > 0);
    e->viewers--;
    e->dropped += slow;
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    if (slow) log_line(LOG_INFO, "hub", "viewer_dropped", "after_s=%d", EVENTS_SLOW_S);
    mem_free(v);
}

/* What the browser says it saw last, where it is of this process; 0 otherwise. */
static uint64_t last_seen(struct exchange *x, const struct events *e) {
    const char *id = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Last-Event-ID");
    char prefix[24];
    uint64_t number = 0;
    int n = snprintf(prefix, sizeof prefix, "%" PRIx64 "-", e->boot);
    if (id == NULL || strncmp(id, prefix, (size_t)n) != 0) return 0;
    return parse_u64(id + n, &number) ? number : 0;
}

static struct viewer *viewer_create(struct events *e, uint64_t seen) {
    struct viewer *v = NULL;
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    if (e->viewers < EVENTS_VIEWERS_MAX && !e->stopping) {
        v = mem_alloc(1, sizeof *v);
        v->e = e;
        v->given = os_now();
        /* Who saw the newest one waits for the next. All others get the newest at once, or, where that is
         * old (its clocks would be wrong), one that is made for them. */
        bool there = e->newest != NULL && e->viewers > 0;
        bool fresh = there && os_now() - e->shown < period_of(e);
        bool current = there && e->newest->number == seen;
        if (e->newest != NULL && !fresh) v->number = e->newest->number;
        if (current) v->number = seen;
        if (!fresh && !current) {
            e->wanted = true;
            pthread_cond_broadcast(&e->changed);
        }
        e->viewers++;
    }
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
    return v;
}

enum MHD_Result handle_events(struct exchange *x) {
    struct events *e = x->s->events;
    static const char greeting[] = "retry: 2000\n\n";
    static_assert(RETRY_MS == 2000, "the greeting says so");
    struct viewer *v = viewer_create(e, last_seen(x, e));
    if (v == NULL)
        return reply_problem(x, 503, WIRE_RETRY, "%d viewers are here already; come again later",
                             EVENTS_VIEWERS_MAX);
    viewer_say(v, greeting);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES,
                                                               viewer_read, v, viewer_free);
    CHECK(r != NULL);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    int bytes = EVENTS_SEND_BYTES;
    if (info != NULL)
        (void)setsockopt(info->connect_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)MHD_set_connection_option(x->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)EVENTS_SLOW_S);
    (void)MHD_add_response_header(r, "Content-Type", "text/event-stream");
    (void)MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* nginx: do not collect */
    return reply_response(x, 200, r);
}
