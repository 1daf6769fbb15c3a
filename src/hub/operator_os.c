/* SPDX-License-Identifier: Apache-2.0 */
/* operator_os.c - POST /v1/operator/...: what a person may ask of a running hub. The machine judges. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hub/http_os.h"
#include "wire/json.h"

/* ---- The operator ---------------------------------------------------------------------------------------- */
/* Where no token is wanted, from this machine alone; and only as application/json, which a page in a browser
 * cannot send here without being asked first. */
static bool operator_allowed(struct exchange *x) {
    const char *type = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Type");
    if (type == NULL || strncmp(type, "application/json", 16) != 0) return false;
    return x->who.scope != 0 || x->who.loopback;
}

/* One line of the access log; what was asked stands there before it has an effect. */
static enum brg_status write_down(struct exchange *x, const char *args, int http, struct err *e) {
    char what[64];
    bool local = strcmp(x->who.id, "00000000") == 0;
    struct access_entry entry = {.who = x->who.scope == 0 ? "loopback"
                                        : local           ? "local"
                                                          : "token",
                                 .what = what,
                                 .args = args,
                                 .http = http};
    (void)snprintf(what, sizeof what, "operator/%s", x->segment[2]);
    return access_append(x->s->dir.path, &x->who, &entry, e);
}

/* The body again, on one line. */
static enum brg_status write_down_asked(struct exchange *x, struct err *e) {
    json_t *o;
    char args[OPERATOR_BODY_MAX * 2];
    TRY(json_object_parse(x->body.data, x->body.bytes_count, OPERATOR_BODY_MAX, &o, e));
    size_t n = json_dumpb(o, args, sizeof args - 1, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(o);
    bool fits = n > 0 && n < sizeof args - 1;
    args[fits ? n : 0] = '\0';
    return write_down(x, fits ? args : NULL, 0, e);
}

struct operator_body {
    struct id128 did;
    char reason[WIRE_TEXT_MAX];
    uint64_t version, start, count;
    uint32_t epoch;
    bool on, skip;
    char site[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX];
    uint32_t jobs;
    uint64_t cancel;
    double loss;
};
static const struct field drain_fields[] = {FIELD(operator_body, on, JSON_BOOL), FIELD_END};
static const struct field discard_fields[] = {FIELD(operator_body, did, JSON_ID),
                                              FIELD_TEXT(operator_body, reason), FIELD_END};
static const struct field rollback_fields[] = {FIELD(operator_body, version, JSON_U64), FIELD_END};
static const struct field evaluated_fields[] = {FIELD(operator_body, version, JSON_U64),
                                                FIELD(operator_body, loss, JSON_F64), FIELD_END};
static const struct field quarantine_fields[] = {
    FIELD(operator_body, epoch, JSON_U32), FIELD(operator_body, start, JSON_U64),
    FIELD(operator_body, count, JSON_U64), FIELD(operator_body, skip, JSON_BOOL),
    FIELD_TEXT(operator_body, reason),     FIELD_END};

#define OPTIONAL_TEXT(m)                                                                           \
    {                                                                                              \
        .name = #m, .type = JSON_TEXT, .optional = true,                                           \
        .offset = offsetof(struct operator_body, m), .max = sizeof(((struct operator_body *)0)->m) \
    }
static const struct field order_fields[] = {OPTIONAL_TEXT(site), OPTIONAL_TEXT(shape),
                                            FIELD_OPT(operator_body, jobs, JSON_U32),
                                            FIELD_OPT(operator_body, cancel, JSON_U64), FIELD_END};

/* What the machine cannot know is looked at in `fill`: false, and the problem is answered. */
static bool fill_drain(struct exchange *x, const struct operator_body *body, struct hub_cmd *cmd) {
    (void)x;
    cmd->kind = HUB_CMD_DRAIN;
    cmd->u.drain.on = body->on;
    return true;
}

static bool fill_discard(struct exchange *x, const struct operator_body *body,
                         struct hub_cmd *cmd) {
    (void)x;
    cmd->kind = HUB_CMD_DISCARD;
    cmd->u.discard.did = body->did;
    (void)snprintf(cmd->u.discard.text, sizeof cmd->u.discard.text, "%s", body->reason);
    return true;
}

static bool fill_rollback(struct exchange *x, const struct operator_body *body,
                          struct hub_cmd *cmd) {
    struct hub_version_view v;
    CHECK(pthread_mutex_lock(&x->s->lock) == 0);
    bool there = hub_version_find(x->s->hub, body->version, &v);
    CHECK(pthread_mutex_unlock(&x->s->lock) == 0);
    cmd->kind = HUB_CMD_ROLLBACK;
    cmd->u.rollback.version = body->version;
    return there && blobs_has(x->s->blobs, &v.checkpoint);
}

/* The measured versions that the run could go back to, newest first: their checkpoints are there. */
static bool fill_evaluated(struct exchange *x, const struct operator_body *body,
                           struct hub_cmd *cmd) {
    struct hub_view view;
    struct hub_version_view v;
    AUTO_FREE struct hub_version_view *all = mem_alloc(HUB_KEPT_MAX, sizeof *all);
    uint32_t count = 0;
    CHECK(pthread_mutex_lock(&x->s->lock) == 0);
    hub_view(x->s->hub, server_now(x->s), &view);
    for (uint64_t n = view.head + 1; n-- > 0 && count < HUB_KEPT_MAX;)
        if (hub_version_find(x->s->hub, n, &v) && v.heldout > 0) all[count++] = v;
    CHECK(pthread_mutex_unlock(&x->s->lock) == 0);
    cmd->kind = HUB_CMD_EVALUATED;
    cmd->u.evaluated.version = body->version;
    cmd->u.evaluated.loss = body->loss;
    for (uint32_t i = 0; i < count; i++)
        if (blobs_has(x->s->blobs, &all[i].checkpoint))
            cmd->u.evaluated.kept[cmd->u.evaluated.kept_count++] = all[i].version;
    return true;
}

static bool fill_quarantine(struct exchange *x, const struct operator_body *body,
                            struct hub_cmd *cmd) {
    (void)x;
    cmd->kind = HUB_CMD_QUARANTINE;
    cmd->u.quarantine.epoch = body->epoch;
    cmd->u.quarantine.range = (struct range){body->start, body->count};
    cmd->u.quarantine.skip = body->skip;
    (void)snprintf(cmd->u.quarantine.reason, sizeof cmd->u.quarantine.reason, "%.*s",
                   (int)sizeof cmd->u.quarantine.reason - 1, body->reason);
    return true;
}

static bool fill_order(struct exchange *x, const struct operator_body *body, struct hub_cmd *cmd) {
    (void)x;
    cmd->kind = HUB_CMD_ORDER;
    cmd->u.order.cancel = body->cancel;
    cmd->u.order.jobs = body->jobs;
    (void)snprintf(cmd->u.order.site, sizeof cmd->u.order.site, "%s", body->site);
    (void)snprintf(cmd->u.order.shape, sizeof cmd->u.order.shape, "%s", body->shape);
    return true;
}

static const struct operation {
    const char *name;
    const struct field *fields;
    bool (*fill)(struct exchange *x, const struct operator_body *body, struct hub_cmd *cmd);
} operations[] = {
    {"drain", drain_fields, fill_drain},
    {"discard", discard_fields, fill_discard},
    {"rollback", rollback_fields, fill_rollback},
    {"quarantine", quarantine_fields, fill_quarantine},
    {"order", order_fields, fill_order},
    {"evaluated", evaluated_fields, fill_evaluated},
};

static enum brg_status operator_read(struct exchange *x, const struct operation *op,
                                     struct operator_body *out, struct err *e) {
    json_t *o;
    memset(out, 0, sizeof *out);
    TRY(json_object_parse(x->body.data, x->body.bytes_count, OPERATOR_BODY_MAX, &o, e));
    enum brg_status st = json_fields_get(o, op->fields, out, op->name, e);
    json_decref(o);
    return st;
}

/* The machine's own answer: its code, its sentence; and where the run stands after it. */
static enum MHD_Result operator_reply(struct exchange *x, enum step_result step,
                                      const struct wire_answer *a) {
    AUTO_BUF struct buf b;
    struct hub_view v;
    bool first = true;
    buf_init(&b, 4096);
    if (step != STEP_DONE) return reply_step(x, step);
    if (a->code != WIRE_OK) return reply_problem(x, 409, a->code, "%s", a->text);
    CHECK(pthread_mutex_lock(&x->s->lock) == 0);
    hub_view(x->s->hub, server_now(x->s), &v);
    CHECK(pthread_mutex_unlock(&x->s->lock) == 0);
    buf_u8(&b, '{');
    json_member_text(&b, &first, "code", wire_code_name(WIRE_OK));
    json_member_u64(&b, &first, "term", v.term);
    json_member_u64(&b, &first, "head", v.head);
    json_member_bool(&b, &first, "held", v.held);
    json_member_bool(&b, &first, "draining", v.draining);
    if (a->req != 0) json_member_u64(&b, &first, "order", a->req);
    buf_put(&b, "}\n", 2);
    return reply_json(x, 200, &b);
}

enum MHD_Result handle_operator(struct exchange *x) {
    struct operator_body body;
    struct hub_cmd cmd;
    struct wire_answer a;
    struct err e = {0};
    const struct operation *op = operations;
    while (strcmp(op->name, x->segment[2]) != 0) {
        op++;
        CHECK(op < operations + ARRAY_COUNT(operations)); /* the table of routes has no other */
    }
    memset(&cmd, 0, sizeof cmd);
    cmd.wall = os_wall();
    if (!operator_allowed(x))
        return reply_problem(
            x, 403, WIRE_BAD,
            "operator requests come with Content-Type: application/json; from this "
            "machine (loopback), or with an operator's token");
    if (operator_read(x, op, &body, &e) != BRG_OK)
        return reply_problem(x, 400, WIRE_BAD, "%.200s", e.text);
    if (!op->fill(x, &body, &cmd))
        return reply_problem(x, 409, WIRE_BAD, "the checkpoint of version %" PRIu64 " is not there",
                             body.version);
    enum brg_status st = write_down_asked(x, &e);
    if (status_class(st) == BRG_CLASS_FULL) return reply_step(x, STEP_FULL);
    if (st != BRG_OK) {
        log_line(LOG_ERROR, "hub", "access_log_failed", "cause=\"%s\"", e.text);
        return reply_problem(x, 503, WIRE_RETRY,
                             "the access log cannot be written; nothing was done");
    }
    enum step_result step = server_step(x->s, &cmd, &a);
    enum MHD_Result ok = operator_reply(x, step, &a);
    if (write_down(x, NULL, x->http, &e) != BRG_OK)
        log_line(LOG_ERROR, "hub", "access_log_failed", "cause=\"%s\"", e.text);
    return ok;
}
