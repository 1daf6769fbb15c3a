/* SPDX-License-Identifier: Apache-2.0 */
/* agent_save.c - the agent's durable state as JSON, so that a person can read what was promised. */
#include <string.h>

#include "place/agent_inner.h"
#include "wire/json.h"

enum { SAVE_LAYOUT = 1, SAVE_BYTES_MAX = 4 << 20 };

static const char *const phase_names[] = {NULL, "intended", "unsure", "known", "over"};
static const char *const state_names[] = {"none",   "pending", "running",   "suspended", "done",
                                          "failed", "timeout", "cancelled", "preempted"};
static const char *const kind_names[] = {NULL, "shape", "probe", "queue", "job", "order", "budget"};

static const struct field job_fields[] = {FIELD(agent_job, order, JSON_U64),
                                          FIELD(agent_job, job, JSON_U64),
                                          FIELD(agent_job, attempt, JSON_U64),
                                          FIELD_TEXT(agent_job, shape),
                                          FIELD_TEXT(agent_job, name),
                                          FIELD_NAME(agent_job, phase, phase_names),
                                          FIELD_NAME(agent_job, state, state_names),
                                          FIELD(agent_job, id, JSON_U64),
                                          FIELD(agent_job, intended_s, JSON_U64),
                                          FIELD(agent_job, submit_s, JSON_U64),
                                          FIELD(agent_job, start_s, JSON_U64),
                                          FIELD(agent_job, end_s, JSON_U64),
                                          FIELD(agent_job, time_s, JSON_U64),
                                          FIELD(agent_job, nodes, JSON_U64),
                                          FIELD(agent_job, drained, JSON_BOOL),
                                          FIELD(agent_job, cancelled, JSON_BOOL),
                                          FIELD(agent_job, lost, JSON_BOOL),
                                          FIELD_TEXT(agent_job, why),
                                          FIELD_END};
static const struct field order_fields[] = {
    FIELD(agent_order, id, JSON_U64),      FIELD_TEXT(agent_order, shape),
    FIELD(agent_order, jobs, JSON_U32),    FIELD(agent_order, begun, JSON_U64),
    FIELD(agent_order, retry_s, JSON_U64), FIELD(agent_order, retries, JSON_U32),
    FIELD(agent_order, fails, JSON_U32),   FIELD(agent_order, cancel, JSON_BOOL),
    FIELD(agent_order, over, JSON_BOOL),   FIELD_END};
static const struct field item_fields[] = {FIELD(wire_item, n, JSON_U64),
                                           FIELD_NAME(wire_item, kind, kind_names),
                                           FIELD(wire_item, at, JSON_U64),
                                           FIELD_TEXT(wire_item, shape),
                                           FIELD(wire_item, order, JSON_U64),
                                           FIELD(wire_item, job, JSON_U64),
                                           FIELD(wire_item, id, JSON_U64),
                                           FIELD_TEXT(wire_item, word),
                                           FIELD(wire_item, nodes, JSON_U64),
                                           FIELD(wire_item, seconds, JSON_U64),
                                           FIELD(wire_item, gpus, JSON_U64),
                                           FIELD(wire_item, submit, JSON_U64),
                                           FIELD(wire_item, start, JSON_U64),
                                           FIELD(wire_item, end, JSON_U64),
                                           FIELD(wire_item, took_ms, JSON_U64),
                                           FIELD_TEXT(wire_item, why),
                                           FIELD_END};
static const struct field agent_fields[] = {FIELD_TEXT(agent, run),
                                            FIELD(agent, item_next, JSON_U64),
                                            FIELD(agent, hours_used, JSON_F64),
                                            FIELD(agent, complete, JSON_BOOL),
                                            FIELD_LIST(agent, orders, order_fields),
                                            FIELD_LIST(agent, jobs, job_fields),
                                            FIELD_LIST(agent, items, item_fields),
                                            FIELD_END};

void agent_save(const struct agent *a, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "layout", SAVE_LAYOUT);
    json_fields_put(out, agent_fields, a, &first);
    buf_put(out, "}\n", 2);
}

/* A state that the program itself could have: the rest of it is believed. */
static const char *misfit(const struct agent *a) {
    uint8_t run[ID_BYTES];
    if (a->run[0] != '\0' && !hex_decode(a->run, run, sizeof run)) return "run";
    if (!(a->hours_used >= 0) || a->item_next == 0) return "item_next, hours_used";
    for (uint32_t i = 0; i < a->items_count; i++)
        if (a->items[i].n == 0 || a->items[i].n >= a->item_next ||
            (i > 0 && a->items[i].n <= a->items[i - 1].n))
            return "items";
    for (uint32_t i = 0; i < a->jobs_count; i++)
        if (a->jobs[i].name[0] == '\0' || !wire_word_clean(a->jobs[i].name)) return "jobs";
    return NULL;
}

enum brg_status agent_load(struct agent *a, const char *file, const void *json, size_t n,
                           struct err *e) {
    struct agent *to = mem_alloc(1, sizeof *to);
    json_t *o = NULL;
    struct err why = {0};
    enum brg_status s = json_object_parse(json, n, SAVE_BYTES_MAX, &o, &why);
    if (s == BRG_OK && json_integer_value(json_object_get(o, "layout")) != SAVE_LAYOUT)
        s = err_set(&why, BRG_E_CORRUPT, "layout: expected %d", SAVE_LAYOUT);
    if (s == BRG_OK) s = json_fields_get(o, agent_fields, to, "agent", &why);
    const char *wrong = s == BRG_OK ? misfit(to) : NULL;
    if (wrong != NULL) s = err_set(&why, BRG_E_CORRUPT, "%s: not what an agent writes", wrong);
    json_decref(o);
    if (s == BRG_OK) {
        memcpy(a->run, to->run, sizeof a->run);
        memcpy(a->orders, to->orders, sizeof a->orders);
        memcpy(a->jobs, to->jobs, sizeof a->jobs);
        memcpy(a->items, to->items, sizeof a->items);
        a->item_next = to->item_next;
        a->hours_used = to->hours_used;
        a->complete = to->complete;
        a->orders_count = to->orders_count;
        a->jobs_count = to->jobs_count;
        a->items_count = to->items_count;
    }
    mem_free(to);
    if (s == BRG_OK) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT,
                   "%s: %s; restore the file, or move it away: jobs that are queued are then found "
                   "by their names, and the budget begins anew",
                   file, why.text);
}
