/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h - the messages between a site and the hub, as structs, and their JSON form. Pure.
 *
 * Every request is an HTTP/1.1 POST of one JSON object to /v1/<kind> (kinds below), answered by one JSON
 * object. Blobs travel on their own: PUT /v1/blobs/<did> (uploads in pieces), GET
 * /v1/versions/<v>/checkpoint with Range (downloads). docs/protocol.md is normative.
 *
 * All structs are plain values of bounded size: nothing to free, nothing borrowed. 64-bit identifiers
 * that may exceed 2^53 (tok, nonce) travel as strings of hexadecimal digits, hashes and ids as hex. */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "base/base.h"

enum {
    WIRE_PROTOCOL = 1,
    WIRE_NAME_MAX = 48,   /* site names: [a-z0-9][a-z0-9_-]*, NUL included */
    WIRE_FABRIC_MAX = 64, /* fabric labels, NUL included */
    WIRE_RANGES_MAX = 32, /* ranges of one lease */
    WIRE_LEASES_MAX = 16, /* leases a site may hold at once */
    WIRE_PARTS_MAX = 32,  /* leases in one manifest */
    WIRE_SKIPS_MAX = 64,  /* skipped positions in one manifest */
    WIRE_BODY_MAX = 256 * 1024,
    WIRE_TEXT_MAX = 240,
};

struct range { /* positions [start, start+count) of an epoch's order */
    uint64_t start, count;
};

struct wire_lease { /* what a site holds; "done" counts along the ranges in their order */
    uint64_t tok, nonce;
    uint32_t epoch, ranges_count;
    uint64_t count; /* sum over ranges */
    struct range ranges[WIRE_RANGES_MAX];
};

struct wire_skip { /* a position whose inner step was skipped (overflow, poison), with a reason */
    uint64_t position; /* through all epochs: epoch * positions of an epoch + position */
    char reason[24];
};

struct wire_part { /* one line of a manifest: the first `done` samples of this lease */
    uint64_t tok, nonce, done;
};

enum wire_kind {
    WIRE_JOIN = 1,
    WIRE_LEASE = 2,
    WIRE_HEARTBEAT = 3,
    WIRE_SHRINK_OK = 4,
    WIRE_RETURN = 5,
    WIRE_COMMIT = 6,
    WIRE_OUTCOME = 7,
    WIRE_LEAVE = 8,
};
const char *wire_kind_name(enum wire_kind k); /* "join", "lease", ... as in the URL */
bool wire_kind_parse(const char *name, enum wire_kind *out);

enum wire_phase { /* what the site is doing, for people and for `status` */
                  PHASE_JOINING = 0,
                  PHASE_SYNCING = 1,
                  PHASE_TRAINING = 2,
                  PHASE_WAITING = 3,
                  PHASE_DRAINING = 4,
};
const char *wire_phase_name(enum wire_phase p); /* "joining", ... as on the wire */

struct wire_join {
    struct id128 boot; /* random, one a process start; makes JOIN idempotent */
    uint32_t protocol;
    struct hash fingerprint; /* data set and order */
    struct hash tensors;     /* names and shapes of the parameters */
    uint64_t version_seen;   /* highest version and term this site ever saw: HUB_BEHIND */
    uint32_t term_seen;
    struct hash theta_seen;              /* of version_seen; zero: not told */
    struct hash version_seal, term_seal; /* the hub's, as they came with those; zero: none */
    uint32_t tokens_per_sample;
    bool gradients; /* the trainer can take part in synchronous rounds */
    uint32_t resume_count;
    struct wire_part resume[WIRE_LEASES_MAX]; /* leases in the local checkpoint */
};
struct wire_lease_request {
    uint64_t want; /* samples */
    uint64_t base; /* version this site has loaded: READY */
    bool ahead;    /* of need: only while others do not need it */
};
struct wire_progress {
    uint64_t tok, done, read_ahead; /* read_ahead >= done: what is fetched already */
};
struct wire_heartbeat {
    uint64_t hb_seq;            /* grows within an incarnation */
    uint64_t base, steps_total; /* steps of this incarnation */
    enum wire_phase phase;
    double steps_per_s, tokens_per_s, loss; /* of the last seconds; 0 where unknown */
    uint64_t pending;             /* contributions handed in or under way, not merged yet */
    char fabric[WIRE_FABRIC_MAX]; /* where the site stands; "": not told */
    uint32_t leases_count;
    struct wire_progress leases[WIRE_LEASES_MAX];
};
struct wire_shrink_ok {
    uint64_t tok, nonce, keep;
};
struct wire_return {
    uint64_t tok, nonce;
};
struct wire_commit {
    struct id128 did;         /* names the contribution for ever: idempotency key */
    uint64_t base;            /* version the site had rebased on when it cut the delta */
    uint64_t tokens, steps;   /* tokens counts trained predictions = samples done * T */
    double lr_sum;            /* sum of the inner rates, for the AdamW bound */
    double loss;              /* mean training loss over the segment */
    uint64_t elements, bytes; /* of the delta: parameters, file size */
    uint32_t codec;           /* enum codec */
    struct hash blob;         /* SHA-256 of the delta file */
    bool keep_rest;           /* the rest of the last lease becomes a new lease of this site */
    uint32_t parts_count, skips_count;
    struct wire_part parts[WIRE_PARTS_MAX];
    struct wire_skip skips[WIRE_SKIPS_MAX];
};
struct wire_outcome_request {
    struct id128 did;
};
struct wire_leave {
    bool keep; /* the leases are in the site's checkpoint: its next process goes on with them */
};

struct wire_request {
    enum wire_kind kind;
    char site[WIRE_NAME_MAX];
    struct id128 run;
    uint32_t inc; /* the fence: given by JOIN; 0 in JOIN itself and in OUTCOME */
    uint64_t req; /* grows with each request of an incarnation; repeats are answered
                                     as the first one was */
    union {
        struct wire_join join;
        struct wire_lease_request lease;
        struct wire_heartbeat heartbeat;
        struct wire_shrink_ok shrink_ok;
        struct wire_return give_back;
        struct wire_commit commit;
        struct wire_outcome_request outcome;
        struct wire_leave leave;
    } u;
};

/* ---- Answers ------------------------------------------------------------------------------------ */
enum wire_code {              /* number, HTTP status, name, what the site does */
                 WIRE_OK = 0, /* 200 */
                 WIRE_RETRY =
                     1, /* 503: later, with back-off; nothing changed (also disk full: 507 RETRY) */
                 WIRE_FENCED = 2, /* 409: a newer incarnation exists; stop */
                 WIRE_MISMATCH =
                     3, /* 409: other data, other tensors, other protocol; stop and say which */
                 WIRE_HUB_BEHIND =
                     4, /* 409: the hub is older than what this site saw; hold, an operator decides */
                 WIRE_BAD = 5,          /* 400: malformed; stop (a fault of the program) */
                 WIRE_UNKNOWN_SITE = 6, /* 409: join first */
                 WIRE_KEY_REUSED =
                     7, /* 409: this did names another delta; stop (a fault of the program) */
                 WIRE_UPLOAD =
                     8, /* 409 to COMMIT: the blob is not complete; u.commit.offset says where to go on */
                 WIRE_COMPLETE = 9, /* 200: the run is complete; hand nothing in, leave */
};
const char *wire_code_name(enum wire_code c);
int wire_code_http(enum wire_code c);

enum lease_verdict { LEASE_KEPT = 1, LEASE_GONE = 2, LEASE_WISH = 3 };
struct wire_lease_state {
    uint64_t tok;
    enum lease_verdict verdict;
    uint64_t keep; /* KEPT: the hub's length of the lease; WISH: please keep only this */
};
enum outcome { /* of a contribution */
               OUTCOME_UNKNOWN = 0,
               OUTCOME_STAGED = 1,
               OUTCOME_MERGED = 2,
               OUTCOME_REJECTED = 3,
               OUTCOME_DISCARDED = 4,
};
const char *wire_outcome_name(enum outcome o); /* "unknown", "staged", ... as on the wire */
struct wire_round {           /* the round's header: what the site needs to train by */
    uint64_t head;            /* newest committed version */
    struct hash theta;        /* SHA-256 of theta_head's bytes */
    struct hash seal;         /* proves, later, that the hub has announced both; zero: none */
    uint64_t tokens;          /* committed tokens at the head */
    uint64_t tokens_per_step; /* planned tokens of all live sites in one inner step */
    uint64_t steps_target;    /* inner steps this site should hand in after */
    uint64_t samples_target;  /* samples of a step that suit its speed; 0: its own wish */
    uint64_t sync_tokens;     /* a base with fewer tokens takes gradients; 0: none does */
    bool drain, complete;
};
struct wire_join_answer {
    uint32_t inc;
    struct wire_round round;
    uint32_t leases_count;
    struct wire_lease_state leases[WIRE_LEASES_MAX];
    uint32_t ttl_ms, heartbeat_ms;
};
struct wire_lease_answer {
    bool granted;
    struct wire_lease lease;
    uint32_t wait_ms; /* not granted: ask again after this */
    struct wire_round round;
};
struct wire_heartbeat_answer {
    uint64_t hb_seq;
    struct wire_round round;
    uint32_t ttl_ms;
    uint32_t leases_count;
    struct wire_lease_state leases[WIRE_LEASES_MAX];
};
struct wire_commit_answer { /* to COMMIT and OUTCOME */
    enum outcome outcome;
    uint64_t version;           /* MERGED: the version that contains it */
    char reason[WIRE_TEXT_MAX]; /* REJECTED, DISCARDED: why, in a sentence */
    struct id128 consumer;      /* the did that consumed the manifest's first lease (zero: none) */
    uint64_t offset;            /* WIRE_UPLOAD: bytes that have arrived */
    bool has_rest;              /* the successor lease of keep_rest */
    struct wire_lease rest;
    struct wire_round round;
};
struct wire_answer {
    enum wire_kind kind; /* of the request */
    enum wire_code code;
    uint64_t req;
    uint32_t term;
    struct hash term_seal;    /* proves, later, that the hub had this term; zero: none */
    uint32_t retry_ms;        /* RETRY */
    char text[WIRE_TEXT_MAX]; /* not OK: one sentence with the remedy */
    union {
        struct wire_join_answer join;
        struct wire_lease_answer lease;
        struct wire_heartbeat_answer heartbeat;
        struct wire_commit_answer commit;
    } u;
};

/* Site names come from outside and appear in logs and file names. */
bool wire_name_valid(const char *name);
/* Where a site stands, from coarse to fine: one to three words of a-z 0-9 - _ with '/' between, as in
 * "europe/alder/rack-3". "" is not one. */
bool wire_fabric_valid(const char *label);

/* JSON. Decoders take outside bytes: strict types, unknown keys ignored (newer peers), counts bounded,
 * no partial result on failure; e names the field. */
void wire_request_encode(const struct wire_request *r, struct buf *out);
enum brg_status wire_request_decode(enum wire_kind kind, const void *json, size_t n,
                                    struct wire_request *out, struct err *e) MUST_USE;
void wire_answer_encode(const struct wire_answer *a, struct buf *out);
enum brg_status wire_answer_decode(enum wire_kind kind, const void *json, size_t n,
                                   struct wire_answer *out, struct err *e) MUST_USE;

enum { WIRE_MUON = 1 };
/* GET /v1/run: what a site needs before it joins. */
struct wire_run {
    struct id128 run;
    uint32_t protocol, seq_len, epochs, codec, vocab_size;
    uint64_t parameters, positions, head, order_seed;
    struct hash fingerprint, tensors, theta;
    /* inner training settings, the same for every site */
    double lr, lr_min_ratio, warmup_tokens, tokens_total, decay_share;
    uint32_t schedule; /* enum schedule_kind */
    double beta1, beta2, eps, weight_decay, clip;
    uint32_t optimizer; /* WIRE_MUON: of the layers' matrices; 0: AdamW for all */
    double muon_momentum, muon_lr_ratio;
    uint64_t sync_tokens; /* rounds are synchronous until so many tokens are committed */
    uint64_t steps;       /* H, nominal inner steps a round */
    uint32_t ttl_ms, heartbeat_ms;
    char model_json[8192]; /* config.json */
};
void wire_run_encode(const struct wire_run *r, struct buf *out);
enum brg_status wire_run_decode(const void *json, size_t n, struct wire_run *out, struct err *e)
    MUST_USE;

#endif
