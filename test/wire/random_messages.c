/* SPDX-License-Identifier: Apache-2.0 */
/* random_messages.c - see the header. Small numbers, bounds and full lists come up often. */
#include "random_messages.h"

#include <string.h>

static uint64_t number(struct prng *p, uint64_t max) {
    switch (prng_below(p, 5)) {
    case 0: return 0;
    case 1: return max;
    case 2: return prng_below(p, max < 10 ? max + 1 : 10);
    default: return max == UINT64_MAX ? prng_u64(p) : prng_below(p, max + 1);
    }
}
static uint64_t big(struct prng *p) {
    return number(p, UINT64_C(1) << 53);
}
static uint32_t u32(struct prng *p) {
    return (uint32_t)number(p, UINT32_MAX);
}
static double real(struct prng *p) {
    switch (prng_below(p, 4)) {
    case 0: return 0;
    case 1: return prng_normal(p) * 1e300;
    case 2: return prng_normal(p) * 1e-300;
    default: return prng_normal(p);
    }
}
static void bytes(struct prng *p, void *out, size_t n) {
    for (size_t i = 0; i < n; i++) ((uint8_t *)out)[i] = (uint8_t)prng_u64(p);
}
static uint32_t count(struct prng *p, uint32_t max) {
    return (uint32_t)number(p, max);
}

static void text(struct prng *p, char *out, size_t cap) {
    static const char *const pieces[] = {"a",    "\"",       "\\",           "\n",
                                         "\x01", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                         " ",    "/",        "</script>",    "\x7f"};
    size_t n = 0, want = prng_below(p, 3) == 0 ? cap - 1 : prng_below(p, cap);
    for (;;) {
        const char *s = pieces[prng_below(p, ARRAY_COUNT(pieces))];
        if (n + strlen(s) > want) break;
        memcpy(out + n, s, strlen(s));
        n += strlen(s);
    }
    out[n] = '\0';
}

static void name(struct prng *p, char *out) {
    static const char head[] = "abcxyz0189", tail[] = "abcxyz0189-_";
    size_t n = 1 + prng_below(p, WIRE_NAME_MAX - 1);
    out[0] = head[prng_below(p, sizeof head - 1)];
    for (size_t i = 1; i < n; i++) out[i] = tail[prng_below(p, sizeof tail - 1)];
    out[n] = '\0';
}

static void lease(struct prng *p, struct wire_lease *l) {
    l->tok = prng_u64(p);
    l->nonce = prng_u64(p);
    l->epoch = u32(p);
    l->ranges_count = 1 + (uint32_t)prng_below(p, WIRE_RANGES_MAX);
    for (uint32_t i = 0; i < l->ranges_count; i++) {
        l->ranges[i].start = number(p, UINT64_C(1) << 52);
        l->ranges[i].count = 1 + number(p, UINT64_C(1) << 40);
        l->count += l->ranges[i].count;
    }
}

static void part(struct prng *p, struct wire_part *out) {
    out->tok = prng_u64(p);
    out->nonce = prng_u64(p);
    out->done = big(p);
}

static void commit(struct prng *p, struct wire_commit *c) {
    bytes(p, &c->did, sizeof c->did);
    bytes(p, &c->blob, sizeof c->blob);
    c->base = big(p);
    c->tokens = big(p);
    c->steps = big(p);
    c->lr_sum = real(p);
    c->loss = real(p);
    c->elements = big(p);
    c->bytes = big(p);
    c->codec = u32(p);
    c->keep_rest = prng_below(p, 2) == 0;
    c->parts_count = 1 + count(p, WIRE_PARTS_MAX - 1);
    for (uint32_t i = 0; i < c->parts_count; i++) part(p, &c->parts[i]);
    c->skips_count = count(p, WIRE_SKIPS_MAX);
    for (uint32_t i = 0; i < c->skips_count; i++) {
        c->skips[i].position = big(p);
        text(p, c->skips[i].reason, sizeof c->skips[i].reason);
    }
}

static void join(struct prng *p, struct wire_join *j) {
    bytes(p, &j->boot, sizeof j->boot);
    bytes(p, &j->fingerprint, sizeof j->fingerprint);
    bytes(p, &j->tensors, sizeof j->tensors);
    j->protocol = u32(p);
    j->version_seen = big(p);
    j->term_seen = u32(p);
    j->tokens_per_sample = u32(p);
    j->resume_count = count(p, WIRE_LEASES_MAX);
    for (uint32_t i = 0; i < j->resume_count; i++) part(p, &j->resume[i]);
}

static void heartbeat(struct prng *p, struct wire_heartbeat *h) {
    h->hb_seq = big(p);
    h->base = big(p);
    h->steps_total = big(p);
    h->phase = (enum wire_phase)prng_below(p, PHASE_DRAINING + 1);
    h->steps_per_s = real(p);
    h->tokens_per_s = real(p);
    h->loss = real(p);
    h->pending = big(p);
    h->leases_count = count(p, WIRE_LEASES_MAX);
    for (uint32_t i = 0; i < h->leases_count; i++) {
        h->leases[i].tok = prng_u64(p);
        h->leases[i].done = number(p, UINT64_C(1) << 40);
        h->leases[i].read_ahead = h->leases[i].done + number(p, UINT64_C(1) << 40);
    }
}

void random_request(struct prng *p, enum wire_kind kind, struct wire_request *out) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    name(p, out->site);
    bytes(p, &out->run, sizeof out->run);
    out->inc = u32(p);
    out->req = big(p);
    switch (kind) {
    case WIRE_JOIN: join(p, &out->u.join); break;
    case WIRE_LEASE:
        out->u.lease.want = big(p);
        out->u.lease.base = big(p);
        out->u.lease.ahead = out->u.lease.want % 2 == 1;
        break;
    case WIRE_HEARTBEAT: heartbeat(p, &out->u.heartbeat); break;
    case WIRE_SHRINK_OK:
        out->u.shrink_ok.tok = prng_u64(p);
        out->u.shrink_ok.nonce = prng_u64(p);
        out->u.shrink_ok.keep = big(p);
        break;
    case WIRE_RETURN:
        out->u.give_back.tok = prng_u64(p);
        out->u.give_back.nonce = prng_u64(p);
        break;
    case WIRE_COMMIT: commit(p, &out->u.commit); break;
    case WIRE_OUTCOME: bytes(p, &out->u.outcome.did, ID_BYTES); break;
    case WIRE_LEAVE: break;
    }
}

static void round_of(struct prng *p, struct wire_round *r) {
    r->head = big(p);
    bytes(p, &r->theta, sizeof r->theta);
    r->tokens = big(p);
    r->tokens_per_step = big(p);
    r->steps_target = big(p);
    r->drain = prng_below(p, 2) == 0;
    r->complete = prng_below(p, 2) == 0;
}

static uint32_t states(struct prng *p, struct wire_lease_state *out) {
    uint32_t n = count(p, WIRE_LEASES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        out[i].tok = prng_u64(p);
        out[i].verdict = (enum lease_verdict)(1 + prng_below(p, 3));
        out[i].keep = big(p);
    }
    return n;
}

static void commit_answer(struct prng *p, struct wire_commit_answer *c) {
    c->outcome = (enum outcome)prng_below(p, OUTCOME_DISCARDED + 1);
    c->version = big(p);
    text(p, c->reason, sizeof c->reason);
    bytes(p, &c->consumer, sizeof c->consumer);
    c->offset = big(p);
    c->has_rest = prng_below(p, 2) == 0;
    if (c->has_rest) lease(p, &c->rest);
    round_of(p, &c->round);
}

void random_answer(struct prng *p, enum wire_kind kind, enum wire_code code,
                   struct wire_answer *out) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    out->code = code;
    out->req = big(p);
    out->term = u32(p);
    if (code != WIRE_OK && code != WIRE_COMPLETE && code != WIRE_UPLOAD) {
        out->retry_ms = u32(p);
        text(p, out->text, sizeof out->text);
        return;
    }
    if (prng_below(p, 2) == 0) text(p, out->text, sizeof out->text);
    switch (kind) {
    case WIRE_JOIN:
        out->u.join.inc = u32(p);
        round_of(p, &out->u.join.round);
        out->u.join.leases_count = states(p, out->u.join.leases);
        out->u.join.ttl_ms = u32(p);
        out->u.join.heartbeat_ms = u32(p);
        break;
    case WIRE_LEASE:
        out->u.lease.granted = prng_below(p, 2) == 0;
        if (out->u.lease.granted) lease(p, &out->u.lease.lease);
        out->u.lease.wait_ms = u32(p);
        round_of(p, &out->u.lease.round);
        break;
    case WIRE_HEARTBEAT:
        out->u.heartbeat.hb_seq = big(p);
        round_of(p, &out->u.heartbeat.round);
        out->u.heartbeat.ttl_ms = u32(p);
        out->u.heartbeat.leases_count = states(p, out->u.heartbeat.leases);
        break;
    case WIRE_COMMIT:
    case WIRE_OUTCOME: commit_answer(p, &out->u.commit); break;
    case WIRE_SHRINK_OK:
    case WIRE_RETURN:
    case WIRE_LEAVE: break;
    }
}

void random_run(struct prng *p, struct wire_run *r) {
    memset(r, 0, sizeof *r);
    bytes(p, &r->run, sizeof r->run);
    bytes(p, &r->fingerprint, sizeof r->fingerprint);
    bytes(p, &r->tensors, sizeof r->tensors);
    bytes(p, &r->theta, sizeof r->theta);
    uint32_t *u[] = {&r->protocol,   &r->seq_len,  &r->epochs, &r->codec,
                     &r->vocab_size, &r->schedule, &r->ttl_ms, &r->heartbeat_ms};
    for (size_t i = 0; i < ARRAY_COUNT(u); i++) *u[i] = u32(p);
    uint64_t *b[] = {&r->parameters, &r->positions, &r->head, &r->steps};
    for (size_t i = 0; i < ARRAY_COUNT(b); i++) *b[i] = big(p);
    r->order_seed = prng_u64(p);
    double *d[] = {&r->lr,           &r->lr_min_ratio, &r->warmup_tokens, &r->tokens_total,
                   &r->decay_share,  &r->beta1,        &r->beta2,         &r->eps,
                   &r->weight_decay, &r->clip};
    for (size_t i = 0; i < ARRAY_COUNT(d); i++) *d[i] = real(p);
    text(p, r->model_json, sizeof r->model_json);
    /* Behind the others: they came later, and are not written where they are 0. */
    r->optimizer = u32(p);
    r->muon_momentum = real(p);
    r->muon_lr_ratio = real(p);
}
