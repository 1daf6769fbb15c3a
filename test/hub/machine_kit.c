/* SPDX-License-Identifier: Apache-2.0 */
#include "machine_kit.h"

#include <stdio.h>
#include <string.h>

enum { PARAMETERS = 1000 };

struct hub_settings kit_settings(uint64_t positions, uint32_t epochs) {
    return (struct hub_settings){.run = {{1, 2, 3}},
                                 .fingerprint = {{4}},
                                 .tensors = {{5}},
                                 .parameters = PARAMETERS,
                                 .positions = positions,
                                 .seq_len = KIT_SEQ_LEN,
                                 .epochs = epochs,
                                 .order_seed = 6,
                                 .steps = 30,
                                 .quorum = 2,
                                 .grace_ns = 60LL * NS_PER_S,
                                 .staleness_max = 1,
                                 .rule = outer_rule_default(),
                                 .codec = CODEC_FP32,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .ttl_ns = (time_ns)KIT_TTL * NS_PER_S,
                                 .heartbeat_ns = (time_ns)KIT_HEARTBEAT * NS_PER_S,
                                 .lease_samples_min = 4,
                                 .lease_samples_max = 64,
                                 .crashes_max = 3,
                                 .sites_max = 8,
                                 .records_per_snapshot = 100,
                                 .delta_bytes_max = 1 << 20,
                                 .seal_key = {{7}}};
}

const struct wire_answer *kit_step(struct kit *k, const struct hub_cmd *c) {
    hub_step(k->h, k->now, c, &k->out);
    assert_false(k->out.records.overflow);
    buf_put(&k->journal, k->out.records.data, k->out.records.bytes_count);
    k->seq += k->out.records_count;
    assert_int_equal(k->out.seq_after, k->seq);
    if (k->out.merge) {
        assert_false(k->has_plan); /* one at a time */
        k->has_plan = true;
        k->plan = k->out.merge->id;
        k->plan_parts = k->out.merge->parts_count;
        k->plan_version = k->out.merge->version;
    }
    hub_check(k->h);
    return &k->out.answer;
}

static struct hub_cmd command(enum hub_cmd_kind kind) {
    struct hub_cmd c = {.kind = kind, .wall = 1700000000LL * NS_PER_S};
    return c;
}

void kit_open(struct kit *k, const struct hub_settings *s) {
    memset(k, 0, sizeof *k);
    k->s = *s;
    k->now = 1000LL * NS_PER_S;
    k->seed = 1;
    k->h = hub_create(s, k->seed);
    hub_out_init(&k->out);
    buf_init(&k->journal, 1 << 28);
    struct hub_cmd c = command(HUB_CMD_INIT);
    c.u.init.checkpoint.v[0] = 1;
    c.u.init.bytes = 100;
    kit_step(k, &c);
    c = command(HUB_CMD_START);
    kit_step(k, &c);
}

void kit_close(struct kit *k) {
    struct hub *copy = kit_replay(k, UINT64_MAX);
    struct hash a = hub_digest(k->h), b = hub_digest(copy);
    assert_true(hash_equal(&a, &b)); /* H1 */
    hub_destroy(copy);
    hub_destroy(k->h);
    hub_out_fini(&k->out);
    buf_fini(&k->journal);
}

struct hub *kit_replay(const struct kit *k, uint64_t seq_max) {
    struct hub *h = hub_create(&k->s, 99);
    struct reader r = reader_of(k->journal.data, k->journal.bytes_count);
    struct err e;
    for (uint64_t seq = 1; r.p < r.end && seq <= seq_max; seq++) {
        uint16_t kind = get_u16(&r);
        uint32_t bytes = get_u32(&r);
        const void *body = get_bytes(&r, bytes);
        enum brg_status st = hub_apply(h, seq, kind, body, bytes, &e);
        if (st != BRG_OK) printf("replay: %s\n", e.text);
        assert_int_equal(st, BRG_OK);
    }
    return h;
}

void kit_seal(const struct kit *k, struct wire_request *join) {
    struct wire_join *j = &join->u.join;
    j->version_seal = hub_seal_version(&k->s, j->version_seen, &j->theta_seen);
    j->term_seal = hub_seal_term(&k->s, j->term_seen);
}

const struct wire_answer *kit_commit(struct kit *k, const struct wire_request *q,
                                     const struct hub_blob_verdict *blob) {
    struct hub_cmd c = command(HUB_CMD_REQUEST);
    c.request = q;
    c.blob = *blob;
    const struct wire_answer *a = kit_step(k, &c);
    assert_true(k->out.has_answer);
    assert_int_equal(a->kind, q->kind);
    assert_int_equal(a->req, q->req);
    return a;
}

struct hub_blob_verdict kit_blob(void) {
    return (struct hub_blob_verdict){.complete = true, .norm = 1, .max_abs = 0.1, .cos_m = 0.5};
}

const struct wire_answer *kit_send(struct kit *k, const struct wire_request *q) {
    struct hub_blob_verdict blob = kit_blob();
    return kit_commit(k, q, &blob);
}

void kit_wait(struct kit *k, double seconds) {
    time_ns end = k->now + (time_ns)(seconds * NS_PER_S);
    for (;;) {
        time_ns due = hub_expiry(k->h);
        k->now = due < end ? due : end;
        struct hub_cmd c = command(HUB_CMD_TICK);
        if (due > end) break;
        kit_step(k, &c);
    }
}

void kit_merge(struct kit *k) {
    assert_true(k->has_plan);
    k->has_plan = false;
    struct hub_cmd c = command(HUB_CMD_MERGED);
    c.u.merged.plan = k->plan;
    c.u.merged.bytes = 100;
    c.u.merged.checkpoint.v[0] = (uint8_t)(1 + k->plan_version);
    c.u.merged.theta.v[0] = (uint8_t)(2 + k->plan_version);
    kit_step(k, &c);
}

void kit_kill(struct kit *k) {
    struct hub *copy = kit_replay(k, UINT64_MAX);
    struct hash a = hub_digest(k->h), b = hub_digest(copy);
    assert_true(hash_equal(&a, &b)); /* H1 */
    hub_destroy(copy);
    hub_destroy(k->h);
    k->h = kit_replay(k, UINT64_MAX);
    k->has_plan = false;
    struct hub_cmd c = command(HUB_CMD_START);
    kit_step(k, &c);
}

struct hub_view kit_view(const struct kit *k) {
    struct hub_view v;
    hub_view(k->h, k->now, &v);
    return v;
}

struct wire_request kit_request(const struct kit *k, enum wire_kind kind, const char *site,
                                uint32_t inc) {
    struct wire_request q = {.kind = kind, .run = k->s.run, .inc = inc, .req = 1000};
    strncpy(q.site, site, sizeof q.site - 1);
    return q;
}

struct wire_request kit_join_request(const struct kit *k, const char *site, uint8_t boot) {
    struct wire_request q = kit_request(k, WIRE_JOIN, site, 0);
    q.u.join = (struct wire_join){.boot = {{boot}},
                                  .protocol = WIRE_PROTOCOL,
                                  .fingerprint = k->s.fingerprint,
                                  .tensors = k->s.tensors,
                                  .tokens_per_sample = k->s.seq_len};
    return q;
}

uint32_t kit_join(struct kit *k, const char *site, uint8_t boot) {
    struct wire_request q = kit_join_request(k, site, boot);
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    return a->u.join.inc;
}

struct wire_lease kit_lease(struct kit *k, const char *site, uint32_t inc, uint64_t req,
                            uint64_t want) {
    struct wire_request q = kit_request(k, WIRE_LEASE, site, inc);
    q.req = req;
    q.u.lease.want = want;
    q.u.lease.base = kit_view(k).head;
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    assert_true(a->u.lease.granted);
    return a->u.lease.lease;
}

void kit_part_add(struct wire_request *q, const struct wire_lease *l, uint64_t done) {
    struct wire_commit *c = &q->u.commit;
    c->parts[c->parts_count++] = (struct wire_part){l->tok, l->nonce, done};
    c->tokens += done * KIT_SEQ_LEN;
}

struct wire_request kit_commit_request(const struct kit *k, const char *site, uint32_t inc,
                                       uint32_t did, const struct wire_lease *l, uint64_t done) {
    struct wire_request q = kit_request(k, WIRE_COMMIT, site, inc);
    struct wire_commit *c = &q.u.commit;
    put_le32(c->did.v, did);
    c->base = kit_view(k).head;
    c->steps = 10;
    c->lr_sum = 0.01;
    c->loss = 3;
    c->elements = PARAMETERS;
    c->codec = CODEC_FP32;
    c->bytes = DELTA_HEADER_BYTES + codec_bytes(CODEC_FP32, PARAMETERS);
    put_le32(c->blob.v, did + 77);
    kit_part_add(&q, l, done);
    return q;
}

enum outcome kit_stage(struct kit *k, const char *site, uint32_t inc, uint32_t did,
                       const struct wire_lease *l, uint64_t done) {
    struct wire_request q = kit_commit_request(k, site, inc, did, l, done);
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    if (a->u.commit.reason[0]) printf("did %u: %s\n", did, a->u.commit.reason);
    return a->u.commit.outcome;
}

void kit_heartbeat(struct kit *k, const char *site, uint32_t inc, const struct wire_lease *l) {
    struct wire_request q = kit_request(k, WIRE_HEARTBEAT, site, inc);
    q.u.heartbeat.hb_seq = (uint64_t)k->now;
    q.u.heartbeat.phase = PHASE_TRAINING;
    q.u.heartbeat.base = kit_view(k).head;
    if (l) {
        q.u.heartbeat.leases_count = 1;
        q.u.heartbeat.leases[0].tok = l->tok;
    }
    const struct wire_answer *a = kit_send(k, &q);
    assert_int_equal(a->code, WIRE_OK);
    if (l) assert_int_equal(a->u.heartbeat.leases[0].verdict, LEASE_KEPT);
}
