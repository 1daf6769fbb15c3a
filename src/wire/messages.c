/* SPDX-License-Identifier: Apache-2.0 */
/* messages.c - every message as a table of fields, and the rules beyond types: site names, lengths of
 * leases that add up, no zero-length ranges. docs/protocol.md says what each field means.
 *
 * Two shapes:
 *   request  {"site","run","inc","req", fields of the kind}
 *   answer   {"code","req","term", then either the kind's fields (OK, COMPLETE, UPLOAD)
 *             or "text" and "retry_ms" (all others)}                                              */
#include <assert.h>
#include <string.h>

#include "wire/json.h"
#include "wire/wire.h"

static const char *const kind_names[] = {NULL,     "join",   "lease",   "heartbeat", "shrink_ok",
                                         "return", "commit", "outcome", "leave"};
static const struct {
    const char *name;
    int http;
} codes[] = {
    [WIRE_OK] = {"OK", 200},
    [WIRE_RETRY] = {"RETRY", 503},
    [WIRE_FENCED] = {"FENCED", 409},
    [WIRE_MISMATCH] = {"MISMATCH", 409},
    [WIRE_HUB_BEHIND] = {"HUB_BEHIND", 409},
    [WIRE_BAD] = {"BAD", 400},
    [WIRE_UNKNOWN_SITE] = {"UNKNOWN_SITE", 409},
    [WIRE_KEY_REUSED] = {"KEY_REUSED", 409},
    [WIRE_UPLOAD] = {"UPLOAD", 409},
    [WIRE_COMPLETE] = {"COMPLETE", 200},
};
static const char *const code_names[] = {"OK",         "RETRY",   "FENCED",       "MISMATCH",
                                         "HUB_BEHIND", "BAD",     "UNKNOWN_SITE", "KEY_REUSED",
                                         "UPLOAD",     "COMPLETE"};
static const char *const phase_names[] = {"joining", "syncing", "training", "waiting", "draining"};
static const char *const verdict_names[] = {NULL, "kept", "gone", "wish"};
static const char *const outcome_names[] = {"unknown", "staged", "merged", "rejected", "discarded"};
static_assert(ARRAY_COUNT(code_names) == ARRAY_COUNT(codes), "one name a code");
static_assert(sizeof(enum wire_phase) == 4, "enums are stored as 32 bits");
static_assert(sizeof(enum lease_verdict) == 4, "enums are stored as 32 bits");
static_assert(sizeof(enum outcome) == 4, "enums are stored as 32 bits");
static_assert(sizeof(enum wire_code) == 4, "enums are stored as 32 bits");

const char *wire_kind_name(enum wire_kind k) {
    CHECK((size_t)k < ARRAY_COUNT(kind_names));
    return kind_names[k] != NULL ? kind_names[k] : "none";
}

bool wire_kind_parse(const char *name, enum wire_kind *out) {
    for (size_t i = 1; i < ARRAY_COUNT(kind_names); i++) {
        if (strcmp(kind_names[i], name) != 0) continue;
        *out = (enum wire_kind)i;
        return true;
    }
    return false;
}

const char *wire_code_name(enum wire_code c) {
    CHECK((size_t)c < ARRAY_COUNT(codes));
    return codes[c].name;
}

int wire_code_http(enum wire_code c) {
    CHECK((size_t)c < ARRAY_COUNT(codes));
    return codes[c].http;
}

const char *wire_phase_name(enum wire_phase p) {
    CHECK((size_t)p < ARRAY_COUNT(phase_names));
    return phase_names[p];
}

const char *wire_outcome_name(enum outcome o) {
    CHECK((size_t)o < ARRAY_COUNT(outcome_names));
    return outcome_names[o];
}

bool wire_name_valid(const char *name) {
    size_t n = strnlen(name, WIRE_NAME_MAX);
    if (n == 0 || n >= WIRE_NAME_MAX || name[0] == '-' || name[0] == '_') return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        if (!good) return false;
    }
    return true;
}

bool wire_fabric_valid(const char *label) {
    size_t n = strnlen(label, WIRE_FABRIC_MAX), words = 1;
    if (n == 0 || n >= WIRE_FABRIC_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        char c = label[i];
        if (c == '/' && (i == 0 || i + 1 == n || label[i - 1] == '/')) return false;
        words += c == '/';
        bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        if (!good && c != '/') return false;
    }
    return words <= 3;
}

/* ---- Tables ------------------------------------------------------------------------------------- */
static const struct field range_fields[] = {FIELD(range, start, JSON_U64),
                                            FIELD(range, count, JSON_U64), FIELD_END};
static const struct field lease_fields[] = {
    FIELD(wire_lease, tok, JSON_HEX64),           FIELD(wire_lease, nonce, JSON_HEX64),
    FIELD(wire_lease, epoch, JSON_U32),           FIELD(wire_lease, count, JSON_U64),
    FIELD_LIST(wire_lease, ranges, range_fields), FIELD_END};
static const struct field part_fields[] = {FIELD(wire_part, tok, JSON_HEX64),
                                           FIELD(wire_part, nonce, JSON_HEX64),
                                           FIELD(wire_part, done, JSON_U64), FIELD_END};
static const struct field skip_fields[] = {FIELD(wire_skip, position, JSON_U64),
                                           FIELD_TEXT(wire_skip, reason), FIELD_END};
static const struct field progress_fields[] = {
    FIELD(wire_progress, tok, JSON_HEX64), FIELD(wire_progress, done, JSON_U64),
    FIELD(wire_progress, read_ahead, JSON_U64), FIELD_END};
static const struct field state_fields[] = {FIELD(wire_lease_state, tok, JSON_HEX64),
                                            FIELD_NAME(wire_lease_state, verdict, verdict_names),
                                            FIELD(wire_lease_state, keep, JSON_U64), FIELD_END};
static const struct field round_fields[] = {FIELD(wire_round, head, JSON_U64),
                                            FIELD(wire_round, theta, JSON_HASH),
                                            FIELD_OMIT(wire_round, seal, JSON_HASH),
                                            FIELD(wire_round, tokens, JSON_U64),
                                            FIELD(wire_round, tokens_per_step, JSON_U64),
                                            FIELD(wire_round, steps_target, JSON_U64),
                                            FIELD_OMIT(wire_round, samples_target, JSON_U64),
                                            FIELD_OMIT(wire_round, sync_tokens, JSON_U64),
                                            FIELD(wire_round, drain, JSON_BOOL),
                                            FIELD(wire_round, complete, JSON_BOOL),
                                            FIELD_END};

static const struct field join_fields[] = {FIELD(wire_join, boot, JSON_ID),
                                           FIELD(wire_join, protocol, JSON_U32),
                                           FIELD(wire_join, fingerprint, JSON_HASH),
                                           FIELD(wire_join, tensors, JSON_HASH),
                                           FIELD_OPT(wire_join, version_seen, JSON_U64),
                                           FIELD_OPT(wire_join, term_seen, JSON_U32),
                                           FIELD_OMIT(wire_join, theta_seen, JSON_HASH),
                                           FIELD_OMIT(wire_join, version_seal, JSON_HASH),
                                           FIELD_OMIT(wire_join, term_seal, JSON_HASH),
                                           FIELD(wire_join, tokens_per_sample, JSON_U32),
                                           FIELD_OMIT(wire_join, gradients, JSON_BOOL),
                                           FIELD_LIST(wire_join, resume, part_fields),
                                           FIELD_END};
static const struct field lease_request_fields[] = {
    FIELD(wire_lease_request, want, JSON_U64), FIELD(wire_lease_request, base, JSON_U64),
    FIELD_OMIT(wire_lease_request, ahead, JSON_BOOL), FIELD_END};
static const struct field heartbeat_fields[] = {FIELD(wire_heartbeat, hb_seq, JSON_U64),
                                                FIELD(wire_heartbeat, base, JSON_U64),
                                                FIELD_OPT(wire_heartbeat, steps_total, JSON_U64),
                                                FIELD_NAME(wire_heartbeat, phase, phase_names),
                                                FIELD_OPT(wire_heartbeat, steps_per_s, JSON_F64),
                                                FIELD_OPT(wire_heartbeat, tokens_per_s, JSON_F64),
                                                FIELD_OPT(wire_heartbeat, loss, JSON_F64),
                                                FIELD_OPT(wire_heartbeat, pending, JSON_U64),
                                                FIELD_TEXT_OMIT(wire_heartbeat, fabric),
                                                FIELD_LIST(wire_heartbeat, leases, progress_fields),
                                                FIELD_END};
static const struct field shrink_ok_fields[] = {FIELD(wire_shrink_ok, tok, JSON_HEX64),
                                                FIELD(wire_shrink_ok, nonce, JSON_HEX64),
                                                FIELD(wire_shrink_ok, keep, JSON_U64), FIELD_END};
static const struct field leave_fields[] = {FIELD_OMIT(wire_leave, keep, JSON_BOOL), FIELD_END};
static const struct field return_fields[] = {FIELD(wire_return, tok, JSON_HEX64),
                                             FIELD(wire_return, nonce, JSON_HEX64), FIELD_END};
static const struct field commit_fields[] = {FIELD(wire_commit, did, JSON_ID),
                                             FIELD(wire_commit, base, JSON_U64),
                                             FIELD(wire_commit, tokens, JSON_U64),
                                             FIELD(wire_commit, steps, JSON_U64),
                                             FIELD(wire_commit, lr_sum, JSON_F64),
                                             FIELD_OPT(wire_commit, loss, JSON_F64),
                                             FIELD(wire_commit, elements, JSON_U64),
                                             FIELD(wire_commit, bytes, JSON_U64),
                                             FIELD(wire_commit, codec, JSON_U32),
                                             FIELD(wire_commit, blob, JSON_HASH),
                                             FIELD_OPT(wire_commit, keep_rest, JSON_BOOL),
                                             FIELD_LIST(wire_commit, parts, part_fields),
                                             FIELD_LIST(wire_commit, skips, skip_fields),
                                             FIELD_END};
static const struct field outcome_fields[] = {FIELD(wire_outcome_request, did, JSON_ID), FIELD_END};

static const struct field request_fields[] = {
    FIELD_TEXT(wire_request, site), FIELD(wire_request, run, JSON_ID),
    FIELD_OPT(wire_request, inc, JSON_U32), FIELD_OPT(wire_request, req, JSON_U64), FIELD_END};

static const struct field join_answer_fields[] = {
    FIELD(wire_join_answer, inc, JSON_U32),
    FIELD_STRUCT(wire_join_answer, round, round_fields),
    FIELD_LIST(wire_join_answer, leases, state_fields),
    FIELD(wire_join_answer, ttl_ms, JSON_U32),
    FIELD(wire_join_answer, heartbeat_ms, JSON_U32),
    FIELD_END};
static const struct field lease_answer_fields[] = {
    FIELD(wire_lease_answer, granted, JSON_BOOL), FIELD_OPT(wire_lease_answer, wait_ms, JSON_U32),
    FIELD_STRUCT(wire_lease_answer, round, round_fields), FIELD_END};
static const struct field granted_fields[] = {FIELD_STRUCT(wire_lease_answer, lease, lease_fields),
                                              FIELD_END};
static const struct field heartbeat_answer_fields[] = {
    FIELD(wire_heartbeat_answer, hb_seq, JSON_U64),
    FIELD_STRUCT(wire_heartbeat_answer, round, round_fields),
    FIELD(wire_heartbeat_answer, ttl_ms, JSON_U32),
    FIELD_LIST(wire_heartbeat_answer, leases, state_fields), FIELD_END};
static const struct field commit_answer_fields[] = {
    FIELD_NAME(wire_commit_answer, outcome, outcome_names),
    FIELD(wire_commit_answer, version, JSON_U64),
    FIELD_TEXT(wire_commit_answer, reason),
    FIELD(wire_commit_answer, consumer, JSON_ID),
    FIELD(wire_commit_answer, offset, JSON_U64),
    FIELD(wire_commit_answer, has_rest, JSON_BOOL),
    FIELD_STRUCT(wire_commit_answer, round, round_fields),
    FIELD_END};
static const struct field rest_fields[] = {FIELD_STRUCT(wire_commit_answer, rest, lease_fields),
                                           FIELD_END};
static const struct field answer_fields[] = {
    FIELD_NAME(wire_answer, code, code_names), FIELD(wire_answer, req, JSON_U64),
    FIELD(wire_answer, term, JSON_U32), FIELD_OMIT(wire_answer, term_seal, JSON_HASH), FIELD_END};
static const struct field problem_fields[] = {
    FIELD_TEXT(wire_answer, text), FIELD_OPT(wire_answer, retry_ms, JSON_U32), FIELD_END};

static const struct field run_fields[] = {FIELD(wire_run, run, JSON_ID),
                                          FIELD(wire_run, protocol, JSON_U32),
                                          FIELD(wire_run, seq_len, JSON_U32),
                                          FIELD(wire_run, epochs, JSON_U32),
                                          FIELD(wire_run, codec, JSON_U32),
                                          FIELD(wire_run, vocab_size, JSON_U32),
                                          FIELD(wire_run, parameters, JSON_U64),
                                          FIELD(wire_run, positions, JSON_U64),
                                          FIELD(wire_run, head, JSON_U64),
                                          FIELD(wire_run, order_seed, JSON_HEX64),
                                          FIELD(wire_run, fingerprint, JSON_HASH),
                                          FIELD(wire_run, tensors, JSON_HASH),
                                          FIELD(wire_run, theta, JSON_HASH),
                                          FIELD(wire_run, lr, JSON_F64),
                                          FIELD(wire_run, lr_min_ratio, JSON_F64),
                                          FIELD(wire_run, warmup_tokens, JSON_F64),
                                          FIELD(wire_run, tokens_total, JSON_F64),
                                          FIELD(wire_run, decay_share, JSON_F64),
                                          FIELD(wire_run, schedule, JSON_U32),
                                          FIELD(wire_run, beta1, JSON_F64),
                                          FIELD(wire_run, beta2, JSON_F64),
                                          FIELD(wire_run, eps, JSON_F64),
                                          FIELD(wire_run, weight_decay, JSON_F64),
                                          FIELD(wire_run, clip, JSON_F64),
                                          FIELD_OMIT(wire_run, optimizer, JSON_U32),
                                          FIELD_OMIT(wire_run, muon_momentum, JSON_F64),
                                          FIELD_OMIT(wire_run, muon_lr_ratio, JSON_F64),
                                          FIELD_OMIT(wire_run, sync_tokens, JSON_U64),
                                          FIELD(wire_run, steps, JSON_U64),
                                          FIELD(wire_run, ttl_ms, JSON_U32),
                                          FIELD(wire_run, heartbeat_ms, JSON_U32),
                                          FIELD_TEXT(wire_run, model_json),
                                          FIELD_END};

/* The fields of each kind and where they lie in the request. */
static const struct {
    const struct field *fields;
    size_t offset;
} request_bodies[] = {
    [WIRE_JOIN] = {join_fields, offsetof(struct wire_request, u.join)},
    [WIRE_LEASE] = {lease_request_fields, offsetof(struct wire_request, u.lease)},
    [WIRE_HEARTBEAT] = {heartbeat_fields, offsetof(struct wire_request, u.heartbeat)},
    [WIRE_SHRINK_OK] = {shrink_ok_fields, offsetof(struct wire_request, u.shrink_ok)},
    [WIRE_RETURN] = {return_fields, offsetof(struct wire_request, u.give_back)},
    [WIRE_COMMIT] = {commit_fields, offsetof(struct wire_request, u.commit)},
    [WIRE_OUTCOME] = {outcome_fields, offsetof(struct wire_request, u.outcome)},
    [WIRE_LEAVE] = {leave_fields, offsetof(struct wire_request, u.leave)},
};
static const struct {
    const struct field *fields;
    size_t offset;
} answer_bodies[] = {
    [WIRE_JOIN] = {join_answer_fields, offsetof(struct wire_answer, u.join)},
    [WIRE_LEASE] = {lease_answer_fields, offsetof(struct wire_answer, u.lease)},
    [WIRE_HEARTBEAT] = {heartbeat_answer_fields, offsetof(struct wire_answer, u.heartbeat)},
    [WIRE_SHRINK_OK] = {NULL, 0},
    [WIRE_RETURN] = {NULL, 0},
    [WIRE_COMMIT] = {commit_answer_fields, offsetof(struct wire_answer, u.commit)},
    [WIRE_OUTCOME] = {commit_answer_fields, offsetof(struct wire_answer, u.commit)},
    [WIRE_LEAVE] = {NULL, 0},
};

/* ---- Rules beyond types -------------------------------------------------------------------------- */
static enum brg_status lease_check(const struct wire_lease *l, const char *where, struct err *e) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->ranges_count; i++) {
        const struct range *r = &l->ranges[i];
        if (r->count == 0 || r->count > JSON_NUMBER_MAX - r->start ||
            r->count > JSON_NUMBER_MAX - sum)
            return err_set(e, BRG_E_MESSAGE, "%s.ranges[%u]: empty or too large", where, i);
        sum += r->count;
    }
    if (sum != l->count || sum == 0)
        return err_set(e, BRG_E_MESSAGE, "%s.count: is not the sum of its ranges, or is 0", where);
    return BRG_OK;
}

static enum brg_status request_check(const struct wire_request *r, struct err *e) {
    if (!wire_name_valid(r->site))
        return err_set(
            e, BRG_E_MESSAGE,
            "request.site: want 1 to %d of a-z 0-9 - _, beginning with a letter or digit",
            WIRE_NAME_MAX - 1);
    if (r->kind == WIRE_HEARTBEAT) {
        if (r->u.heartbeat.fabric[0] != '\0' && !wire_fabric_valid(r->u.heartbeat.fabric))
            return err_set(
                e, BRG_E_MESSAGE,
                "heartbeat.fabric: want up to three words of a-z 0-9 - _, with / between");
        for (uint32_t i = 0; i < r->u.heartbeat.leases_count; i++) {
            if (r->u.heartbeat.leases[i].read_ahead < r->u.heartbeat.leases[i].done)
                return err_set(e, BRG_E_MESSAGE,
                               "heartbeat.leases[%u].read_ahead: is less than done", i);
        }
    }
    if (r->kind == WIRE_COMMIT && r->u.commit.parts_count == 0)
        return err_set(e, BRG_E_MESSAGE, "commit.parts: is empty; a contribution needs a manifest");
    return BRG_OK;
}

static bool answer_has_body(enum wire_code c) {
    return c == WIRE_OK || c == WIRE_COMPLETE || c == WIRE_UPLOAD;
}

/* ---- Out and in --------------------------------------------------------------------------------- */
void wire_request_encode(const struct wire_request *r, struct buf *out) {
    bool first = true;
    CHECK(r->kind >= WIRE_JOIN);
    CHECK(r->kind <= WIRE_LEAVE);
    buf_u8(out, '{');
    json_fields_put(out, request_fields, r, &first);
    if (request_bodies[r->kind].fields != NULL)
        json_fields_put(out, request_bodies[r->kind].fields,
                        (const uint8_t *)r + request_bodies[r->kind].offset, &first);
    buf_u8(out, '}');
}

static enum brg_status request_read(enum wire_kind kind, const json_t *o, struct wire_request *r,
                                    struct err *e) {
    r->kind = kind;
    TRY(json_fields_get(o, request_fields, r, "request", e));
    if (request_bodies[kind].fields != NULL)
        TRY(json_fields_get(o, request_bodies[kind].fields,
                            (uint8_t *)r + request_bodies[kind].offset, wire_kind_name(kind), e));
    return request_check(r, e);
}

enum brg_status wire_request_decode(enum wire_kind kind, const void *json, size_t n,
                                    struct wire_request *out, struct err *e) {
    struct wire_request r;
    json_t *o;
    CHECK(kind >= WIRE_JOIN);
    CHECK(kind <= WIRE_LEAVE);
    memset(&r, 0, sizeof r);
    TRY(json_object_parse(json, n, WIRE_BODY_MAX, &o, e));
    enum brg_status s = request_read(kind, o, &r, e);
    json_decref(o);
    if (s == BRG_OK) *out = r;
    return s;
}

void wire_answer_encode(const struct wire_answer *a, struct buf *out) {
    bool first = true;
    CHECK(a->kind >= WIRE_JOIN);
    CHECK(a->kind <= WIRE_LEAVE);
    buf_u8(out, '{');
    json_fields_put(out, answer_fields, a, &first);
    if (!answer_has_body(a->code)) {
        json_fields_put(out, problem_fields, a, &first);
    } else {
        if (a->text[0] != '\0') json_member_text(out, &first, "text", a->text);
        if (answer_bodies[a->kind].fields != NULL)
            json_fields_put(out, answer_bodies[a->kind].fields,
                            (const uint8_t *)a + answer_bodies[a->kind].offset, &first);
        if (a->kind == WIRE_LEASE && a->u.lease.granted)
            json_fields_put(out, granted_fields, &a->u.lease, &first);
        if ((a->kind == WIRE_COMMIT || a->kind == WIRE_OUTCOME) && a->u.commit.has_rest)
            json_fields_put(out, rest_fields, &a->u.commit, &first);
    }
    buf_u8(out, '}');
}

static enum brg_status answer_read(enum wire_kind kind, const json_t *o, struct wire_answer *a,
                                   struct err *e) {
    static const struct field text_field[] = {{.name = "text",
                                               .type = JSON_TEXT,
                                               .optional = true,
                                               .offset = offsetof(struct wire_answer, text),
                                               .max = WIRE_TEXT_MAX},
                                              FIELD_END};
    a->kind = kind;
    TRY(json_fields_get(o, answer_fields, a, "answer", e));
    if (!answer_has_body(a->code)) return json_fields_get(o, problem_fields, a, "answer", e);
    TRY(json_fields_get(o, text_field, a, "answer", e));
    if (answer_bodies[kind].fields != NULL)
        TRY(json_fields_get(o, answer_bodies[kind].fields,
                            (uint8_t *)a + answer_bodies[kind].offset, wire_kind_name(kind), e));
    if (kind == WIRE_LEASE && a->u.lease.granted) {
        TRY(json_fields_get(o, granted_fields, &a->u.lease, "lease", e));
        TRY(lease_check(&a->u.lease.lease, "lease.lease", e));
    }
    if ((kind == WIRE_COMMIT || kind == WIRE_OUTCOME) && a->u.commit.has_rest) {
        TRY(json_fields_get(o, rest_fields, &a->u.commit, "commit", e));
        TRY(lease_check(&a->u.commit.rest, "commit.rest", e));
    }
    return BRG_OK;
}

enum brg_status wire_answer_decode(enum wire_kind kind, const void *json, size_t n,
                                   struct wire_answer *out, struct err *e) {
    struct wire_answer a;
    json_t *o;
    CHECK(kind >= WIRE_JOIN);
    CHECK(kind <= WIRE_LEAVE);
    memset(&a, 0, sizeof a);
    TRY(json_object_parse(json, n, WIRE_BODY_MAX, &o, e));
    enum brg_status s = answer_read(kind, o, &a, e);
    json_decref(o);
    if (s == BRG_OK) *out = a;
    return s;
}

void wire_run_encode(const struct wire_run *r, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, run_fields, r, &first);
    buf_u8(out, '}');
}

enum brg_status wire_run_decode(const void *json, size_t n, struct wire_run *out, struct err *e) {
    struct wire_run *r = mem_alloc(1, sizeof *r);
    json_t *o = NULL;
    enum brg_status s = json_object_parse(json, n, WIRE_BODY_MAX, &o, e);
    if (s == BRG_OK) s = json_fields_get(o, run_fields, r, "run", e);
    if (s == BRG_OK) *out = *r;
    json_decref(o);
    mem_free(r);
    return s;
}
