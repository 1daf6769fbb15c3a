/* SPDX-License-Identifier: Apache-2.0 */
/* routes_os.c - which path is what. docs/protocol.md is the list for people; the table below is the one
 * that counts. Reading never changes the machine, and never tells what is not durable yet. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/events_os.h"
#include "hub/http_os.h"
#include "hub/json_view.h"
#include "hub/mailbox_os.h"
#include "hub/objects_os.h"
#include "wire/json.h"

enum { ROUNDS_MAX = 1000, QUARANTINE_MAX = 1000, VIEW_BYTES_MAX = 64 << 20 };

/* ---- Messages of sites ------------------------------------------------------------------------------ */
enum MHD_Result reply_answer(struct exchange *x, const struct wire_answer *a) {
    AUTO_BUF struct buf b;
    buf_init(&b, WIRE_BODY_MAX);
    wire_answer_encode(a, &b);
    buf_u8(&b, '\n');
    return reply_json(x, wire_code_http(a->code), &b);
}

static enum MHD_Result handle_message(struct exchange *x) {
    struct wire_request r;
    struct wire_answer a;
    struct err e = {0};
    enum wire_kind kind;
    if (!wire_kind_parse(x->segment[1], &kind))
        return reply_problem(x, 404, WIRE_BAD, "no such message");
    if (wire_request_decode(kind, x->body.data, x->body.bytes_count, &r, &e) != BRG_OK)
        return reply_problem(x, 400, WIRE_BAD, "%.200s", e.text);
    if (!gate_speaks_for(&x->who, r.site)) return reply_other_name(x);
    if (kind == WIRE_COMMIT) return handle_commit(x, &r);
    struct hub_cmd cmd;
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_REQUEST;
    cmd.wall = os_wall();
    cmd.request = &r;
    enum step_result step = server_step(x->s, &cmd, &a);
    return step == STEP_DONE ? reply_answer(x, &a) : reply_step(x, step);
}

/* A report of a facility's agent; the answer has its orders. */
static enum MHD_Result handle_agent(struct exchange *x) {
    struct wire_answer a;
    struct err e = {0};
    struct wire_report *r = mem_alloc(1, sizeof *r);
    struct wire_agent_answer *to = mem_alloc(1, sizeof *to);
    struct hub_cmd cmd = {.kind = HUB_CMD_REPORT, .wall = os_wall(), .u = {.report = r}};
    AUTO_BUF struct buf b;
    enum MHD_Result ok;
    buf_init(&b, WIRE_BODY_MAX);
    enum step_result step = STEP_DONE;
    if (wire_report_decode(x->body.data, x->body.bytes_count, r, &e) != BRG_OK) {
        ok = reply_problem(x, 400, WIRE_BAD, "%.200s", e.text);
    } else if (!gate_speaks_for(&x->who, r->site)) {
        ok = reply_other_name(x);
    } else if ((step = server_step(x->s, &cmd, &a)) != STEP_DONE) {
        ok = reply_step(x, step);
    } else if (a.code != WIRE_OK) {
        ok = reply_problem(x, wire_code_http(a.code), a.code, "%s", a.text);
    } else {
        CHECK(pthread_mutex_lock(&x->s->lock) == 0);
        hub_agent_answer(x->s->hub, r->site, to);
        CHECK(pthread_mutex_unlock(&x->s->lock) == 0);
        wire_agent_answer_encode(to, &b);
        buf_u8(&b, '\n');
        step = server_settle(x->s); /* an order is not told before it is durable */
        ok = step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
    }
    mem_free(r);
    mem_free(to);
    return ok;
}

/* What somebody measured of its way here. It is not durable, so nobody waits for the disk. */
static enum MHD_Result handle_links(struct exchange *x) {
    struct wire_link l;
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, 4096);
    if (wire_link_decode(x->body.data, x->body.bytes_count, &l, &e) != BRG_OK)
        return reply_problem(x, 400, WIRE_BAD, "%.200s", e.text);
    if (!gate_speaks_for(&x->who, l.site)) return reply_other_name(x);
    CHECK(pthread_mutex_lock(&x->s->lock) == 0);
    bool kept = links_note(&x->s->links, &l, (double)(os_wall() / NS_PER_MS) / 1e3);
    CHECK(pthread_mutex_unlock(&x->s->lock) == 0);
    if (!kept)
        return reply_problem(x, 503, WIRE_RETRY, "the hub keeps the figures of %d parties already",
                             HUB_LINKS_MAX);
    buf_printf(&b, "{\"code\":\"OK\"}\n");
    return reply_json(x, 200, &b);
}

/* ---- Reading ------------------------------------------------------------------------------------------ */
static enum MHD_Result handle_run(struct exchange *x) {
    struct hub_server *s = x->s;
    struct wire_run *r = mem_alloc(1, sizeof *r);
    struct hub_view v;
    struct hub_version_view head;
    AUTO_BUF struct buf b;
    buf_init(&b, WIRE_BODY_MAX);
    memset(&head, 0, sizeof head);
    run_describe(&s->dir.settings, &s->dir.facts, s->dir.model_json, r);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &v);
    (void)hub_version_find(s->hub, v.head, &head);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    r->head = v.head;
    r->theta = head.theta;
    wire_run_encode(r, &b);
    buf_u8(&b, '\n');
    mem_free(r);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

/* Under the lock. */
struct view_extra server_view_extra(struct hub_server *s) {
    time_ns now = os_now();
    objects_look_at(s->objects, &s->objects_view);
    mailbox_look_at(s->mailbox, &s->mailbox_view);
    return (struct view_extra){
        .full = s->mode == SERVER_FULL,
        .away = s->away,
        .stopping = s->mode == SERVER_STOPPING,
        .wall = (double)(os_wall() / NS_PER_MS) / 1e3,
        .uptime_s = (double)(now - s->started) / 1e9,
        .round_s = (double)(now - s->times.head_since) / 1e9,
        .merge_s = (double)s->times.merge_ns / 1e9,
        .publish_s = (double)s->times.publish_ns / 1e9,
        .merges = s->times.merges,
        .merges_failed = s->times.merges_failed,
        .merge_bad = s->times.merge_bad,
        .full_times = s->times.full_times,
        .away_times = s->times.away_times,
        .requests = s->times.requests,
        .uploads_bytes = s->times.uploads_bytes,
        .seq_durable = s->seq_durable,
        .links = &s->links,
        .objects = &s->objects_view,
        .mailbox = &s->mailbox_view,
    };
}

static enum MHD_Result handle_status(struct exchange *x) {
    struct hub_server *s = x->s;
    AUTO_BUF struct buf b;
    buf_init(&b, VIEW_BYTES_MAX);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    struct view_extra extra = server_view_extra(s);
    view_status(s->hub, server_now(s), &s->dir.settings, &extra, &b);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

static enum MHD_Result handle_rounds(struct exchange *x) {
    struct hub_server *s = x->s;
    const char *text = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "from");
    uint64_t from = 0;
    AUTO_BUF struct buf b;
    buf_init(&b, VIEW_BYTES_MAX);
    if (text != NULL && !parse_u64(text, &from))
        return reply_problem(x, 400, WIRE_BAD, "from: want a version number");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    view_rounds(s->hub, server_now(s), from, ROUNDS_MAX, &b);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

struct quarantine_view {
    struct buf *out;
    uint64_t count;
};
static void on_quarantined(void *user, uint32_t epoch, struct range range, uint32_t crashes) {
    struct quarantine_view *v = user;
    bool first = true;
    if (v->count++ >= QUARANTINE_MAX) return;
    buf_printf(v->out, v->count > 1 ? ",{" : "{");
    json_member_u64(v->out, &first, "epoch", epoch);
    json_member_u64(v->out, &first, "start", range.start);
    json_member_u64(v->out, &first, "count", range.count);
    json_member_u64(v->out, &first, "crashes", crashes);
    buf_u8(v->out, '}');
}

static enum MHD_Result handle_quarantine(struct exchange *x) {
    struct hub_server *s = x->s;
    AUTO_BUF struct buf b;
    struct quarantine_view v = {.out = &b};
    buf_init(&b, VIEW_BYTES_MAX);
    buf_printf(&b, "{\"ranges\":[");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_quarantined(s->hub, on_quarantined, &v);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    buf_printf(&b, "],\"count\":%" PRIu64 "}\n", v.count);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

/* The version of the path; where it is none, *out_ok is the answer that was given. */
static bool version_of(struct exchange *x, struct hub_version_view *out, enum MHD_Result *out_ok) {
    struct hub_server *s = x->s;
    uint64_t v = 0;
    bool there = false;
    memset(out, 0, sizeof *out);
    if (!parse_u64(x->segment[2], &v)) {
        *out_ok = reply_problem(x, 404, WIRE_BAD, "want a version number");
        return false;
    }
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    there = hub_version_find(s->hub, v, out);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum step_result step = server_settle(s);
    if (step != STEP_DONE) {
        *out_ok = reply_step(x, step);
        return false;
    }
    if (!there) *out_ok = reply_problem(x, 404, WIRE_BAD, "there is no version %" PRIu64, v);
    return there;
}

static enum MHD_Result reply_gone(struct exchange *x, uint64_t version) {
    return reply_problem(x, 404, WIRE_BAD,
                         "the checkpoint of version %" PRIu64 " is not kept any more; "
                         "take a newer one",
                         version);
}

static enum MHD_Result handle_version(struct exchange *x) {
    struct hub_version_view v;
    enum MHD_Result ok = MHD_NO;
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, 64 * 1024);
    if (!version_of(x, &v, &ok)) return ok;
    buf_u8(&b, '{');
    view_version(&v, &b, &first);
    json_member_bool(&b, &first, "kept", blobs_has(x->s->blobs, &v.checkpoint));
    buf_put(&b, "}\n", 2);
    return reply_json(x, 200, &b);
}

static enum MHD_Result handle_theta(struct exchange *x) {
    struct hub_version_view v;
    struct checkpoint c;
    struct err e = {0};
    char path[OS_PATH_MAX];
    enum MHD_Result ok = MHD_NO;
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, 64 * 1024);
    if (!version_of(x, &v, &ok)) return ok;
    blobs_path(x->s->blobs, &v.checkpoint, path);
    if (!os_exists(path)) return reply_gone(x, v.version);
    memset(&c, 0, sizeof c);
    if (checkpoint_open(path, &c, &e) != BRG_OK) {
        log_line(LOG_ERROR, "hub", "checkpoint_unreadable", "cause=\"%s\"", e.text);
        return reply_problem(x, 500, WIRE_RETRY, "the checkpoint cannot be read");
    }
    buf_u8(&b, '{');
    json_member_u64(&b, &first, "version", v.version);
    json_member_u64(&b, &first, "offset", c.theta_offset);
    json_member_u64(&b, &first, "bytes", c.elements * sizeof(float));
    json_member_hash(&b, &first, "theta", &v.theta);
    buf_put(&b, "}\n", 2);
    checkpoint_fini(&c);
    return reply_json(x, 200, &b);
}

/* ---- Through the object store: docs/protocol.md section 13 ------------------------------------------------ */
static bool argument_is_one(struct exchange *x, const char *name) {
    const char *v = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
    return v != NULL && strcmp(v, "1") == 0;
}

/* A site that can take it there is asked to. False: serve it here. */
static bool wants_store(struct exchange *x) {
    return x->s->objects != NULL && x->method == METHOD_GET && argument_is_one(x, "store");
}

static enum MHD_Result reply_direct(struct exchange *x, enum objects_answer a,
                                    const struct direct_get *g) {
    AUTO_BUF struct buf b;
    buf_init(&b, WIRE_BODY_MAX);
    if (a == OBJECTS_SOON)
        return reply_problem(x, 503, WIRE_RETRY,
                             "this version is on its way into the object store; come again");
    direct_get_encode(g, &b);
    return reply_json(x, 303, &b);
}

static enum MHD_Result handle_checkpoint(struct exchange *x) {
    struct hub_version_view v;
    char path[OS_PATH_MAX];
    enum MHD_Result ok = MHD_NO;
    if (!version_of(x, &v, &ok)) return ok;
    blobs_path(x->s->blobs, &v.checkpoint, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* reply_file takes it */
    struct stat st;
    if (fd < 0) return reply_gone(x, v.version);
    CHECK(fstat(fd, &st) == 0);
    if (!wants_store(x)) return reply_file(x, fd, (uint64_t)st.st_size, &v.checkpoint);
    AUTO_FREE struct direct_get *g = mem_alloc(1, sizeof *g);
    enum objects_answer a = objects_checkpoint(x->s->objects, &v.checkpoint, (uint64_t)st.st_size,
                                               argument_is_one(x, "doubt"), g);
    if (a == OBJECTS_SELF) return reply_file(x, fd, (uint64_t)st.st_size, &v.checkpoint);
    (void)close(fd);
    return reply_direct(x, a, g);
}

/* What a region needs beside the updates: which positions this version has. Small: some bytes a stretch. */
static enum MHD_Result handle_ledger(struct exchange *x) {
    struct hub_version_view v;
    struct checkpoint c;
    struct err e = {0};
    char path[OS_PATH_MAX];
    enum MHD_Result ok = MHD_NO;
    if (!version_of(x, &v, &ok)) return ok;
    blobs_path(x->s->blobs, &v.checkpoint, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* reply_stretch takes it */
    if (fd < 0) return reply_gone(x, v.version);
    if (checkpoint_open(path, &c, &e) != BRG_OK) {
        os_close_cleanup(&fd);
        log_line(LOG_ERROR, "hub", "checkpoint_unreadable", "cause=\"%s\"", e.text);
        return reply_problem(x, 500, WIRE_RETRY, "the checkpoint cannot be read");
    }
    uint64_t offset = c.ledger_offset, bytes = c.ledger_bytes;
    checkpoint_fini(&c);
    return reply_stretch(x, fd, offset, bytes, &v.checkpoint);
}

/* Only what is of this very version: a file may be left over from a version that never came to be. */
static bool update_fits(int fd, const struct hub_version_view *v) {
    uint8_t bytes[UPDATE_HEADER_BYTES];
    struct update_header h;
    return pread(fd, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes &&
           update_header_decode(bytes, &h, NULL) == BRG_OK && h.from == v->parent &&
           h.to == v->version && hash_equal(&h.theta_to, &v->theta);
}

static enum MHD_Result handle_update(struct exchange *x) {
    struct hub_version_view v;
    char path[OS_PATH_MAX];
    struct stat st;
    enum MHD_Result ok = MHD_NO;
    if (!version_of(x, &v, &ok)) return ok;
    server_update_path(x->s, v.version, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* reply_file takes it */
    bool fits = fd >= 0 && update_fits(fd, &v);
    if (!fits) os_close_cleanup(&fd);
    if (!fits)
        return reply_problem(x, 404, WIRE_BAD,
                             "there is no update to version %" PRIu64 "; take its checkpoint",
                             v.version);
    CHECK(fstat(fd, &st) == 0);
    if (!wants_store(x)) return reply_file(x, fd, (uint64_t)st.st_size, &v.theta);
    AUTO_FREE struct direct_get *g = mem_alloc(1, sizeof *g);
    enum objects_answer a = objects_update(x->s->objects, v.version, &v.theta, (uint64_t)st.st_size,
                                           argument_is_one(x, "doubt"), g);
    if (a == OBJECTS_SELF) return reply_file(x, fd, (uint64_t)st.st_size, &v.theta);
    (void)close(fd);
    return reply_direct(x, a, g);
}

/* ---- The table ------------------------------------------------------------------------------------------- */
#define GETS (METHOD_GET | METHOD_HEAD)
#define MESSAGE(name)                                                                              \
    { METHOD_POST, 2, {"v1", name}, WIRE_BODY_MAX, SCOPES_SITE, handle_message }
#define OPERATOR(name)                                                                             \
    {                                                                                              \
        METHOD_POST, 3, {"v1", "operator", name}, OPERATOR_BODY_MAX, SCOPES_OPERATOR,              \
            handle_operator                                                                        \
    }
static const struct route routes[] = {
    MESSAGE("join"),
    MESSAGE("lease"),
    MESSAGE("heartbeat"),
    MESSAGE("shrink_ok"),
    MESSAGE("return"),
    MESSAGE("commit"),
    MESSAGE("outcome"),
    MESSAGE("leave"),
    {METHOD_POST, 2, {"v1", "agent"}, WIRE_BODY_MAX, SCOPES_AGENT, handle_agent},
    {METHOD_POST, 2, {"v1", "links"}, WIRE_BODY_MAX, SCOPES_SITE, handle_links},
    {METHOD_PUT, 3, {"v1", "blobs", NULL}, 0, SCOPES_SITE, NULL},
    {GETS, 3, {"v1", "blobs", NULL}, 0, SCOPES_SITE, handle_blob_get},
    {METHOD_DELETE, 3, {"v1", "blobs", NULL}, 0, SCOPES_SITE, handle_blob_drop},
    {GETS, 2, {"v1", "run"}, 0, SCOPES_FIGURES, handle_run},
    {GETS, 2, {"v1", "status"}, 0, SCOPES_FIGURES, handle_status},
    {GETS, 2, {"v1", "rounds"}, 0, SCOPES_FIGURES, handle_rounds},
    {GETS, 2, {"v1", "quarantine"}, 0, SCOPES_FIGURES, handle_quarantine},
    {GETS,
     0,
     {NULL},
     0,
     SCOPES_ANYBODY,
     handle_page}, /* no figure in it: it asks for a token itself */
    {GETS, 1, {"metrics"}, 0, SCOPES_FIGURES, handle_metrics},
    {GETS, 2, {"v1", "events"}, 0, SCOPES_FIGURES, handle_events},
    {GETS, 2, {"v1", "timeline"}, 0, SCOPES_FIGURES, handle_timeline},
    {GETS, 2, {"v1", "heldout"}, 0, SCOPES_FIGURES, handle_heldout},
    {GETS, 2, {"v1", "versions"}, 0, SCOPES_FIGURES, handle_versions},
    {GETS, 3, {"v1", "versions", NULL}, 0, SCOPES_FIGURES, handle_version},
    {GETS, 4, {"v1", "versions", NULL, "checkpoint"}, 0, SCOPES_WEIGHTS, handle_checkpoint},
    {GETS, 4, {"v1", "versions", NULL, "theta"}, 0, SCOPES_FIGURES, handle_theta},
    {GETS, 4, {"v1", "versions", NULL, "update"}, 0, SCOPES_WEIGHTS, handle_update},
    {GETS, 4, {"v1", "versions", NULL, "ledger"}, 0, SCOPES_WEIGHTS, handle_ledger},
    OPERATOR("drain"),
    OPERATOR("discard"),
    OPERATOR("rollback"),
    OPERATOR("quarantine"),
    OPERATOR("order"),
    OPERATOR("evaluated"),
};

const struct route *route_find(const struct exchange *x, uint32_t *out_allowed) {
    for (size_t i = 0; i < ARRAY_COUNT(routes); i++) {
        const struct route *r = &routes[i];
        bool same = r->segments_count == x->segments_count;
        for (uint32_t k = 0; same && k < r->segments_count; k++)
            same = r->segment[k] == NULL || strcmp(r->segment[k], x->segment[k]) == 0;
        if (!same) continue;
        if ((r->method & x->method) != 0) return r;
        *out_allowed |= r->method;
    }
    return NULL;
}
