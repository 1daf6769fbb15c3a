/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - see agent.h. */
#include "wire/agent.h"

#include <string.h>

#include "wire/json.h"

static const char *const kind_names[] = {NULL, "shape", "probe", "queue", "job", "order", "budget"};
static const char *const code_names[] = {"OK",         "RETRY",   "FENCED",       "MISMATCH",
                                         "HUB_BEHIND", "BAD",     "UNKNOWN_SITE", "KEY_REUSED",
                                         "UPLOAD",     "COMPLETE"};
static_assert(ARRAY_COUNT(code_names) == WIRE_COMPLETE + 1, "one name a code, in order");

#define OPT(s, m, t)                                                                               \
    { .name = #m, .type = (t), .optional = true, .offset = offsetof(struct s, m) }
#define OPT_TEXT(s, m)                                                                             \
    {                                                                                              \
        .name = #m, .type = JSON_TEXT, .optional = true, .offset = offsetof(struct s, m),          \
        .max = sizeof(((struct s *)0)->m)                                                          \
    }

static const struct field item_fields[] = {FIELD(wire_item, n, JSON_U64),
                                           FIELD_NAME(wire_item, kind, kind_names),
                                           FIELD(wire_item, at, JSON_U64),
                                           OPT_TEXT(wire_item, shape),
                                           OPT(wire_item, order, JSON_U64),
                                           OPT(wire_item, job, JSON_U64),
                                           OPT(wire_item, id, JSON_U64),
                                           OPT_TEXT(wire_item, word),
                                           OPT(wire_item, nodes, JSON_U64),
                                           OPT(wire_item, seconds, JSON_U64),
                                           OPT(wire_item, gpus, JSON_U64),
                                           OPT(wire_item, submit, JSON_U64),
                                           OPT(wire_item, start, JSON_U64),
                                           OPT(wire_item, end, JSON_U64),
                                           OPT(wire_item, took_ms, JSON_U64),
                                           OPT_TEXT(wire_item, why),
                                           FIELD_END};
static const struct field report_fields[] = {
    FIELD_TEXT(wire_report, site), FIELD(wire_report, run, JSON_ID),
    FIELD_LIST(wire_report, items, item_fields), FIELD_END};
static const struct field order_fields[] = {
    FIELD(wire_order, id, JSON_U64), FIELD_TEXT(wire_order, shape),
    FIELD(wire_order, jobs, JSON_U32), OPT(wire_order, cancel, JSON_BOOL), FIELD_END};
static const struct field answer_fields[] = {FIELD_NAME(wire_agent_answer, code, code_names),
                                             OPT(wire_agent_answer, term, JSON_U32),
                                             OPT(wire_agent_answer, retry_ms, JSON_U32),
                                             OPT_TEXT(wire_agent_answer, text),
                                             OPT(wire_agent_answer, n, JSON_U64),
                                             OPT(wire_agent_answer, complete, JSON_BOOL),
                                             OPT(wire_agent_answer, draining, JSON_BOOL),
                                             FIELD_LIST(wire_agent_answer, orders, order_fields),
                                             FIELD_END};

const char *wire_item_kind_name(enum wire_item_kind k) {
    return (size_t)k < ARRAY_COUNT(kind_names) && kind_names[k] ? kind_names[k] : "unknown";
}

bool wire_word_clean(const char *text) {
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text == 0x7f) return false;
    return true;
}

static void object_put(const struct field *fields, const void *base, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, fields, base, &first);
    buf_u8(out, '}');
}

void wire_report_encode(const struct wire_report *r, struct buf *out) {
    object_put(report_fields, r, out);
}

void wire_agent_answer_encode(const struct wire_agent_answer *a, struct buf *out) {
    object_put(answer_fields, a, out);
}

static enum brg_status item_check(const struct wire_item *i, uint32_t at, uint64_t before,
                                  struct err *e) {
    if (i->n == 0 || i->n <= before)
        return err_set(e, BRG_E_MESSAGE, "report.items[%u].n: expected numbers that grow", at);
    if (i->shape[0] != '\0' && !wire_name_valid(i->shape))
        return err_set(e, BRG_E_MESSAGE,
                       "report.items[%u].shape: expected [a-z0-9][a-z0-9_-]*, at most %d bytes", at,
                       WIRE_SHAPE_MAX - 1);
    if (!wire_word_clean(i->word) || !wire_word_clean(i->why))
        return err_set(e, BRG_E_MESSAGE, "report.items[%u]: expected text without line ends", at);
    return BRG_OK;
}

enum brg_status wire_report_decode(const void *json, size_t n, struct wire_report *out,
                                   struct err *e) {
    struct wire_report *r = mem_alloc(1, sizeof *r);
    json_t *o = NULL;
    enum brg_status s = json_object_parse(json, n, WIRE_BODY_MAX, &o, e);
    if (s == BRG_OK) s = json_fields_get(o, report_fields, r, "report", e);
    if (s == BRG_OK && !wire_name_valid(r->site))
        s = err_set(e, BRG_E_MESSAGE, "report.site: expected [a-z0-9][a-z0-9_-]*, at most %d bytes",
                    WIRE_NAME_MAX - 1);
    for (uint32_t i = 0; i < r->items_count && s == BRG_OK; i++)
        s = item_check(&r->items[i], i, i > 0 ? r->items[i - 1].n : 0, e);
    if (s == BRG_OK) *out = *r;
    json_decref(o);
    mem_free(r);
    return s;
}

enum brg_status wire_agent_answer_decode(const void *json, size_t n, struct wire_agent_answer *out,
                                         struct err *e) {
    struct wire_agent_answer *a = mem_alloc(1, sizeof *a);
    json_t *o = NULL;
    enum brg_status s = json_object_parse(json, n, WIRE_BODY_MAX, &o, e);
    if (s == BRG_OK) s = json_fields_get(o, answer_fields, a, "answer", e);
    if (s == BRG_OK) *out = *a;
    json_decref(o);
    mem_free(a);
    return s;
}
