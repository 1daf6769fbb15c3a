/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h - the messages between a facility's agent and the hub: reports up, orders down. Pure.
 *
 * POST /v1/agent: docs/protocol.md section 10. Reports are items with numbers that grow for ever at a
 * facility; the hub journals each once, and may be sent any of them again. Orders name a shape of the
 * facility's own file and nothing else: the agent refuses what its file does not offer. */
#ifndef WIRE_AGENT_H
#define WIRE_AGENT_H

#include "wire/wire.h"

enum {
    WIRE_ITEMS_MAX = 32,  /* of one report */
    WIRE_ORDERS_MAX = 64, /* open ones of one facility */
    WIRE_SHAPE_MAX = 48,  /* name of a shape, NUL included; spelled like a site's name */
    WIRE_WORD_MAX = 24,   /* a class or state */
    WIRE_WHY_MAX = 160,
    WIRE_ORDER_JOBS_MAX = 1000, /* jobs of a chain */
};

enum wire_item_kind {
    ITEM_SHAPE = 1, /* the facility offers it: nodes, seconds, gpus */
    ITEM_PROBE = 2, /* an estimate: word = class, start, nodes, seconds, took_ms */
    ITEM_QUEUE = 3, /* what the user has there: nodes = running, gpus = pending jobs, took_ms */
    ITEM_JOB = 4,   /* a job of an order: word = state, id, submit, start, end */
    ITEM_ORDER = 5, /* an order is over: word = done, refused, cancelled */
    ITEM_BUDGET =
        6, /* seconds = node-seconds that are free for further jobs (the limits of those that are not
              over are set aside), nodes = jobs that may be queued and running at a time */
};

struct wire_item {
    uint64_t n; /* 1, 2, ... for ever, at this facility */
    enum wire_item_kind kind;
    uint64_t at; /* seconds since 1970, as all times here; 0: unknown */
    char shape[WIRE_SHAPE_MAX];
    uint64_t order, job; /* job: 1.. within the order */
    uint64_t id;         /* the scheduler's number of the job */
    char word[WIRE_WORD_MAX];
    uint64_t nodes, seconds, gpus; /* gpus: of one node */
    uint64_t submit, start, end;
    uint64_t took_ms;
    char why[WIRE_WHY_MAX]; /* what the scheduler said */
};

struct wire_report {
    char site[WIRE_NAME_MAX];
    struct id128 run;
    uint32_t items_count;
    struct wire_item items[WIRE_ITEMS_MAX];
};

struct wire_order {
    uint64_t id;
    char shape[WIRE_SHAPE_MAX];
    uint32_t jobs; /* one after another */
    bool cancel;   /* what waits is cancelled; what runs is asked to drain */
};

struct wire_agent_answer {
    enum wire_code code;
    uint32_t term, retry_ms;
    char text[WIRE_TEXT_MAX];
    uint64_t n; /* items up to this one are journaled */
    bool complete, draining;
    uint32_t orders_count; /* all that are open */
    struct wire_order orders[WIRE_ORDERS_MAX];
};

const char *wire_item_kind_name(enum wire_item_kind k); /* "shape", ...; "unknown" */

void wire_report_encode(const struct wire_report *r, struct buf *out);
enum brg_status wire_report_decode(const void *json, size_t n, struct wire_report *out,
                                   struct err *e) MUST_USE;
void wire_agent_answer_encode(const struct wire_agent_answer *a, struct buf *out);
enum brg_status wire_agent_answer_decode(const void *json, size_t n, struct wire_agent_answer *out,
                                         struct err *e) MUST_USE;
/* Words for people: printable, no line ends. */
bool wire_word_clean(const char *text);

#endif
