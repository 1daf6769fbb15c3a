/* SPDX-License-Identifier: Apache-2.0 */
/* hub_run.h - a small run as a hub writes it down: its records, and a snapshot in their midst. For the fuzzers of both. */
#ifndef TEST_FUZZ_HUB_RUN_H
#define TEST_FUZZ_HUB_RUN_H

#include <string.h>

#include "hub/hub.h"

struct hub_run {
    struct hub_settings s;
    struct buf records; /* framed as in hub_out */
    struct buf snapshot;
    uint64_t snapshot_seq, count;
    uint64_t plan; /* a merge that was asked for; 0: none */
    struct hub *h;
    struct hub_out out;
};

static inline struct hub_settings hub_run_settings(void) {
    return (struct hub_settings){.run = {{1}},
                                 .parameters = 100,
                                 .positions = 40,
                                 .seq_len = 8,
                                 .epochs = 2,
                                 .steps = 30,
                                 .quorum = 1,
                                 .grace_ns = NS_PER_S,
                                 .staleness_max = 1,
                                 .rule = outer_rule_default(),
                                 .codec = CODEC_FP32,
                                 .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 1e-3},
                                 .ttl_ns = 100LL * NS_PER_S,
                                 .heartbeat_ns = NS_PER_S,
                                 .lease_samples_min = 4,
                                 .lease_samples_max = 16,
                                 .crashes_max = 3,
                                 .sites_max = 8,
                                 .delta_bytes_max = 1 << 20};
}

static inline const struct wire_answer *hub_run_at(struct hub_run *x, time_ns at,
                                                   const struct hub_cmd *c) {
    hub_step(x->h, at, c, &x->out);
    buf_put(&x->records, x->out.records.data, x->out.records.bytes_count);
    x->count += x->out.records_count;
    if (x->out.merge != NULL) x->plan = x->out.merge->id;
    return &x->out.answer;
}

static inline const struct wire_answer *hub_run_step(struct hub_run *x, const struct hub_cmd *c) {
    return hub_run_at(x, 5LL * NS_PER_S, c);
}

/* The merge that was planned last, or is as soon as grace is over, is made. */
static inline void hub_run_merge(struct hub_run *x, time_ns at) {
    for (int i = 0; i < 3 && x->plan == 0; i++, at += 2 * x->s.grace_ns)
        (void)hub_run_at(x, at, &(struct hub_cmd){.kind = HUB_CMD_TICK});
    CHECK(x->plan != 0);
    const struct hub_cmd c = {
        .kind = HUB_CMD_MERGED,
        .u.merged = {.plan = x->plan, .checkpoint = {{2}}, .theta = {{3}}, .bytes = 100}};
    x->plan = 0;
    (void)hub_run_at(x, at, &c);
}

static inline struct wire_request hub_run_request(const struct hub_run *x, enum wire_kind kind,
                                                  const char *site, uint32_t inc) {
    struct wire_request q = {.kind = kind, .run = x->s.run, .inc = inc, .req = 1};
    (void)snprintf(q.site, sizeof q.site, "%s", site);
    return q;
}

static inline const struct wire_answer *hub_run_ask(struct hub_run *x,
                                                    const struct wire_request *q) {
    struct hub_cmd c = {
        .kind = HUB_CMD_REQUEST, .request = q, .blob = {.complete = true, .norm = 1}};
    return hub_run_step(x, &c);
}

static inline void hub_run_site(struct hub_run *x, const char *name, uint8_t id) {
    struct wire_request q = hub_run_request(x, WIRE_JOIN, name, 0);
    q.u.join = (struct wire_join){
        .boot = {{id}}, .protocol = WIRE_PROTOCOL, .tokens_per_sample = x->s.seq_len};
    q.u.join.gradients = true;
    uint32_t inc = hub_run_ask(x, &q)->u.join.inc;
    CHECK(inc > 0);
    q = hub_run_request(x, WIRE_LEASE, name, inc);
    q.u.lease.want = 12;
    struct wire_lease l = hub_run_ask(x, &q)->u.lease.lease;
    CHECK(l.count > 0);
    struct hub_view v;
    hub_view(x->h, 0, &v);
    q = hub_run_request(x, WIRE_COMMIT, name, inc);
    q.u.commit = (struct wire_commit){.did = {{id}},
                                      .tokens = l.count * x->s.seq_len,
                                      .steps = 3,
                                      .lr_sum = 0.1,
                                      .elements = x->s.parameters,
                                      .bytes = DELTA_HEADER_BYTES + 4 * x->s.parameters,
                                      .base = v.head,
                                      .codec = x->s.sync_tokens > 0 ? CODEC_GRADIENT : CODEC_FP32,
                                      .blob = {{id}},
                                      .parts_count = 1,
                                      .parts = {{l.tok, l.nonce, l.count}}};
    CHECK(hub_run_ask(x, &q)->u.commit.outcome == OUTCOME_STAGED);
}

static inline void hub_run_begin(struct hub_run *x, double sync_tokens) {
    x->s = hub_run_settings();
    x->s.sync_tokens = sync_tokens;
    x->h = hub_create(&x->s, 1);
    hub_out_init(&x->out);
    buf_init(&x->records, 1 << 20);
    buf_init(&x->snapshot, 1 << 20);
    struct hub_cmd c = {.kind = HUB_CMD_INIT, .u.init = {.checkpoint = {{1}}, .bytes = 100}};
    (void)hub_run_step(x, &c);
    c = (struct hub_cmd){.kind = HUB_CMD_START};
    (void)hub_run_step(x, &c);
}

/* Made once a process. */
static inline struct hub_run *hub_run(void) {
    static struct hub_run run, *x = NULL;
    if (x != NULL) return x;
    x = &run;
    hub_run_begin(x, 0);
    hub_run_site(x, "a", 1);
    hub_run_site(x, "b", 2);
    hub_snapshot(x->h, &x->snapshot);
    x->snapshot_seq = x->count;
    hub_run_merge(x, 50LL * NS_PER_S);
    (void)hub_run_at(x, 52LL * NS_PER_S, &(struct hub_cmd){.kind = HUB_CMD_ROLLBACK});
    return x;
}

/* Another one, in synchronous rounds: a SYNC is among its records, and steps of moments are in its snapshot. */
static inline struct hub_run *hub_run_synchronous(void) {
    static struct hub_run run, *x = NULL;
    if (x != NULL) return x;
    x = &run;
    hub_run_begin(x, 1e9);
    hub_run_site(x, "a", 1);
    hub_run_merge(x, 5LL * NS_PER_S);
    hub_run_site(x, "b", 2);
    hub_snapshot(x->h, &x->snapshot);
    x->snapshot_seq = x->count;
    return x;
}

#endif
