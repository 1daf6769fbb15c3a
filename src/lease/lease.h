/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - the ledger: who may work on which positions, and which contribution has which in it.
 *
 *   extent:  AVAILABLE -> LEASED(tok) -> STAGED(delta) -> MERGED(version) or SKIPPED(version,
 *   reason)
 *            and back to AVAILABLE: ledger_free, ledger_shrink, ledger_discard, ledger_rollback
 *            LEASED -> QUARANTINED by a crash too many; ledger_decide takes it out again
 *   lease:   ledger_grant -> ACTIVE -> ended by ledger_free, ledger_stage, ledger_reject,
 *   ledger_rollback delta:   ledger_stage -> STAGED -> ledger_merge MERGED | ledger_discard,
 *   ledger_rollback DISCARDED
 *            ledger_reject -> REJECTED
 *
 * Pure: no clock, no random number, no I/O. Every operation checks its conditions first and changes
 * nothing where one fails: it says which (enum lease_fault). The numbers of a contribution's
 * training
 * (struct delta_info) are carried, not looked at. `now` columns of a lease (deadline, done,
 * read_ahead) are notes of the caller: no operation reads them, no digest contains them (I13).
 *
 * Invariants, each with its CHECK and its test
 *   (I1) each position is in exactly one state.          (I2) at most one ACTIVE lease has a
 *   position.
 *   (I3) what is staged was leased to that site and inc, by tok and nonce, within the lease's
 *   length.
 *   (I4) a lease ends once; manifests of staged and merged deltas are disjoint.
 *   (I5) MERGED are exactly the positions of the deltas in the head's ancestry.
 *   (I7) toks only grow.       (I8) the six counts add up to the positions of the epoch.
 *   (I9) sealed: all MERGED or SKIPPED.                  (I12) a rejected or discarded delta has
 *   no position.
 *
 * Bounds: leases and staged deltas are bounded by the caller; of final deltas the newest
 * LEDGER_FINAL_MAX are remembered (outcome look-ups), older ones are forgotten in the order in
 * which they became final. One thread at a time. */
#ifndef LEASE_LEASE_H
#define LEASE_LEASE_H

#include "base/base.h"

enum {
    LEASE_SPANS_MAX = 32,
    LEASE_PARTS_MAX = 32,
    LEASE_SKIPS_MAX = 64,
    LEASE_REASON_MAX = 24,
    LEDGER_FINAL_MAX = 65536,
    LEDGER_REASONS_MAX = 4096, /* different skip reasons; see ledger_reason_fit */
    LEDGER_EPOCHS_MAX = 1 << 20,
};

enum extent_state {
    EXTENT_AVAILABLE = 0,
    EXTENT_LEASED = 1,
    EXTENT_STAGED = 2,
    EXTENT_MERGED = 3,
    EXTENT_SKIPPED = 4,
    EXTENT_QUARANTINED = 5,
    EXTENT_STATES = 6,
};

enum lease_fault {
    LEASE_FINE = 0,
    LEASE_ENDED,     /* no such active lease: it lapsed, was consumed, or never was */
    LEASE_FOREIGN,   /* nonce, site or incarnation differ */
    LEASE_TOO_LONG,  /* more done than the lease is long */
    LEASE_TWICE,     /* a lease is named twice */
    LEASE_EMPTY,     /* nothing done at all */
    LEASE_BAD_SKIP,  /* a skip outside the manifest, or twice */
    LEASE_BAD_REST,  /* a successor where nothing is left */
    LEASE_BAD_TOK,   /* a tok that is not new */
    LEASE_BAD_SPAN,  /* positions that are not in the state that this needs */
    LEASE_BAD_EPOCH, /* an epoch that is not open, or not the next one, or sealed already */
    LEASE_BAD_DELTA, /* a delta that is known already, or not staged */
    LEASE_BAD_VERSION,
    LEASE_UNFINISHED, /* an epoch with open positions is not sealed */
};
const char *lease_fault_text(enum lease_fault f); /* "the lease has ended"; static storage */

struct lease_span {
    uint64_t start, count;
};

struct lease {
    uint64_t tok, nonce, req, count; /* req: of the request that asked; 0 after a change of inc */
    uint32_t site, inc, epoch, spans_count;
    struct lease *site_prev, *site_next, *hash_next;
    /* the caller's notes, volatile */
    time_ns deadline;
    uint64_t done, read_ahead;
    struct lease_span spans[]; /* in the order of work */
};

enum delta_state { DELTA_STAGED = 1, DELTA_MERGED = 2, DELTA_REJECTED = 3, DELTA_DISCARDED = 4 };
struct delta_info { /* carried for the caller while STAGED */
    uint64_t base, tokens, steps, elements, bytes;
    double lr_sum, loss, norm, max_abs, cos_m;
    uint32_t codec;
};
struct delta_span {
    uint32_t epoch;
    struct lease_span span;
};
struct delta_live { /* freed when the delta becomes final */
    struct delta_info info;
    uint64_t samples, skipped;
    bool planned; /* the caller's note, volatile: chosen for the merge under way */
    bool marked;  /* within one operation: seen already */
    uint32_t spans_count;
    struct delta_span spans[];
};
struct delta {
    struct id128 did;
    struct hash blob, manifest;
    uint64_t serial;   /* order of creation; the ref of STAGED extents */
    uint64_t version;  /* MERGED */
    uint64_t rest_tok; /* the successor of keep_rest; 0: none */
    uint32_t site, toks_count;
    enum delta_state state;
    char *reason;                                    /* REJECTED, DISCARDED; else NULL */
    struct delta_live *live;                         /* STAGED; else NULL */
    struct delta *hash_next, *list_prev, *list_next; /* staged list, then final list */
    uint64_t toks[];                                 /* STAGED, MERGED: the leases it consumed */
};

struct ledger;
struct ledger *ledger_create(uint64_t positions, uint32_t epochs_max); /* gives (ledger_destroy) */
void ledger_destroy(struct ledger *l);

/* ---- Operations
 * ---------------------------------------------------------------------------------- */
enum lease_fault ledger_epoch_open(struct ledger *l, uint32_t epoch) MUST_USE;

struct lease_grant {
    uint64_t tok, nonce, req;
    uint32_t site, inc, epoch, spans_count;
    const struct lease_span *spans;
};
enum lease_fault ledger_grant(struct ledger *l, const struct lease_grant *g) MUST_USE;
/* Chooses what to grant: the first AVAILABLE extents, so returned ones before fresh ones. Gives
 * their number (0: none), at most LEASE_SPANS_MAX, together at most `want`. An extent whose next
 * crash would quarantine it is given alone and at most `careful` of it, so that little is lost. */
uint32_t ledger_choose(const struct ledger *l, uint32_t epoch, uint64_t want, uint32_t crashes_max,
                       uint64_t careful, struct lease_span out[LEASE_SPANS_MAX]);

/* Ends a lease without a contribution. crashed: counts a crash on each position (crashes_max as in
 * the record; 0 counts nothing). out_quarantined: positions that are QUARANTINED now. */
enum lease_fault ledger_free(struct ledger *l, uint64_t tok, bool crashed, uint32_t crashes_max,
                             uint64_t *out_quarantined) MUST_USE;
enum lease_fault ledger_shrink(struct ledger *l, uint64_t tok, uint64_t keep) MUST_USE;
/* The lease goes on under a new incarnation of its site. */
enum lease_fault ledger_keep(struct ledger *l, uint64_t tok, uint32_t inc) MUST_USE;

struct lease_part {
    uint64_t tok, nonce, done;
};
struct lease_skip {
    uint32_t epoch;
    uint64_t position;
    char reason[LEASE_REASON_MAX];
};
struct lease_stage {
    struct id128 did;
    struct hash blob, manifest;
    uint32_t site, inc;
    struct delta_info info;
    uint32_t parts_count, skips_count;
    const struct lease_part *parts;
    const struct lease_skip *skips;
    bool has_rest;
    uint64_t rest_tok, rest_nonce;
};
/* The compare-and-swap of a commit, without the swap. out_part: the part at fault (or 0). */
enum lease_fault ledger_stage_check(const struct ledger *l, const struct lease_stage *s,
                                    uint32_t *out_part) MUST_USE;
/* All of it or none of it: every lease named ends, what was done is STAGED, the rest is free or
 * goes on. */
enum lease_fault ledger_stage(struct ledger *l, const struct lease_stage *s) MUST_USE;

struct lease_reject {
    struct id128 did;
    struct hash blob, manifest;
    uint32_t site, inc, freed_count;
    const uint64_t *freed;
    const char *reason;
};
enum lease_fault ledger_reject(struct ledger *l, const struct lease_reject *r) MUST_USE;
enum lease_fault ledger_discard(struct ledger *l, const struct id128 *did, const char *reason)
    MUST_USE;
/* version must be greater than every version merged before. */
enum lease_fault ledger_merge(struct ledger *l, uint64_t version, const struct id128 *dids,
                              size_t count) MUST_USE;
enum lease_fault ledger_seal(struct ledger *l, uint32_t epoch, struct hash *out_digest) MUST_USE;
enum lease_fault ledger_decide(struct ledger *l, uint32_t epoch, struct lease_span span, bool skip,
                               const char *reason) MUST_USE;
/* Back to the state of `version` (an ancestor): leases end, staged deltas are discarded, what
 * merged later is AVAILABLE again. */
void ledger_rollback(struct ledger *l, uint64_t version);

/* ---- Reading
 * ------------------------------------------------------------------------------------- */
uint32_t ledger_epochs(const struct ledger *l); /* opened so far */
uint64_t ledger_positions(const struct ledger *l);
bool ledger_sealed(const struct ledger *l, uint32_t epoch);
uint64_t ledger_count(const struct ledger *l, uint32_t epoch, enum extent_state state);
uint64_t ledger_tok_last(const struct ledger *l);
struct lease *ledger_lease_find(const struct ledger *l, uint64_t tok); /* ACTIVE, or NULL */
struct lease *ledger_site_first(const struct ledger *l,
                                uint32_t site); /* then ->site_next; oldest first */
uint32_t ledger_site_leases(const struct ledger *l, uint32_t site);
uint32_t ledger_site_staged(const struct ledger *l, uint32_t site);
uint32_t ledger_leases(const struct ledger *l);
uint32_t ledger_deltas_staged(const struct ledger *l);
struct delta *ledger_delta_find(const struct ledger *l, const struct id128 *did); /* or NULL */
struct delta *ledger_staged_first(
    const struct ledger *l); /* then ->list_next; in order of staging */
struct delta *ledger_final_first(const struct ledger *l); /* then ->list_next; oldest first */
/* The delta that consumed this lease, or NULL: not consumed, or forgotten. O(deltas). */
const struct delta *ledger_consumer(const struct ledger *l, uint64_t tok);
/* A reason that the ledger can hold: the text, or "other" where there are too many different ones.
 * */
const char *ledger_reason_fit(const struct ledger *l, const char *reason);
/* Whether all positions of the range have this state. */
bool ledger_all(const struct ledger *l, uint32_t epoch, struct lease_span span,
                enum extent_state state);
/* Calls visit for each extent of an epoch in order; version: MERGED and SKIPPED, else 0. */
typedef void ledger_visit(void *user, enum extent_state state, struct lease_span span,
                          uint64_t version, uint32_t crashes);
void ledger_walk(const struct ledger *l, uint32_t epoch, ledger_visit *visit, void *user);
size_t ledger_bytes(const struct ledger *l); /* memory held */
uint64_t ledger_extents(const struct ledger *l);

/* ---- Bytes
 * --------------------------------------------------------------------------------------- */
/* The ledger for a checkpoint (docs/journal.md, section 6). version: of that checkpoint; where
 * `planned`, staged deltas with that note are written as merged in it. */
void ledger_checkpoint_encode(const struct ledger *l, uint64_t version, bool planned,
                              struct buf *out);
/* A fresh ledger from those bytes: MERGED and SKIPPED as written, all else AVAILABLE. */
enum brg_status ledger_checkpoint_decode(const void *data, size_t n, uint32_t epochs_max,
                                         struct ledger **out, uint64_t *out_version, struct err *e)
    MUST_USE;
/* The whole durable state, canonical: equal states give equal bytes. */
void ledger_encode(const struct ledger *l, struct buf *out);
/* Refused where it is not sound (ledger_fault), or names a site above sites_max. */
enum brg_status ledger_decode(struct reader *r, uint32_t epochs_max, uint32_t sites_max,
                              struct ledger **out, struct err *e) MUST_USE;
/* The runs of one epoch as in a checkpoint, for the digest of its seal. planned_version: as above,
 * 0: none. */
void ledger_runs_encode(const struct ledger *l, uint32_t epoch, uint64_t planned_version,
                        struct buf *out);
/* The condition of I2, I4, I7, I9 or I12 that does not hold, as text; NULL: all do. O(state · log state). */
const char *ledger_fault(const struct ledger *l);
/* Panics where an invariant does not hold, I1 and I8 too. */
void ledger_check(const struct ledger *l);

#endif
