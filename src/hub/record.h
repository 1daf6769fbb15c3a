/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - the journal's records as structs and as bytes. Pure. docs/journal.md is normative: it
 * says for each kind what is in it, offset by offset, and what it does to the state.
 *
 * Every body begins with the wall clock (u64, nanoseconds since 1970, for people only). All
 * numbers are little-endian; text is a u16 length and its bytes. A body has no padding and nothing
 * after its last field; the decoder refuses anything else (E_JOURNAL).
 *
 * Room for later: a new field means a new kind. A kind's layout never changes once released. */
#ifndef HUB_RECORD_H
#define HUB_RECORD_H

#include "base/base.h"
#include "outer/outer.h"
#include "wire/agent.h"
#include "wire/wire.h"

enum record_kind { /* numbers are stored; never reuse one */
                   RECORD_OPEN = 1,
                   RECORD_TERM = 2,
                   RECORD_JOIN = 3,
                   RECORD_EPOCH = 4,
                   RECORD_GRANT = 5,
                   RECORD_RECLAIM = 6,
                   RECORD_STAGE = 7,
                   RECORD_REJECT = 8,
                   RECORD_DISCARD = 9,
                   RECORD_MERGE = 10,
                   RECORD_SEAL = 11,
                   RECORD_LEAVE = 12,
                   RECORD_ROLLBACK = 13,
                   RECORD_QUARANTINE = 14,
                   RECORD_HOLD = 15,
                   RECORD_REBUILD = 16,
                   RECORD_LEDGER = 17,
                   RECORD_REPORT = 18,
                   RECORD_ORDER = 19,
                   RECORD_DOWN = 20,
                   RECORD_STEP = 21,
                   RECORD_EVAL = 22,
                   RECORD_SYNC = 23,
                   RECORD_PARENT = 24,
};
const char *record_kind_name(uint16_t kind); /* "open", ...; "unknown" */

enum {
    RECORD_LAYOUT = 1,
    RECORD_REASON_MAX = 24,
    RECORD_MERGE_PARTS_MAX = 4096,
    RECORD_STEP_SITES_MAX = OUTER_RADIAL_PARTS_MAX,
    RECORD_LEDGER_MAX = 256 << 10, /* bytes of a LEDGER record: far below a body's maximum */
};

enum reclaim_reason {
    RECLAIM_LAPSED = 1, /* its time was over and somebody needed its positions; counts as a crash */
    RECLAIM_RETURNED = 2, /* the site gave it back */
    RECLAIM_SHRUNK = 3,   /* the site cut it: the first `keep` samples stay leased */
};

struct record_open {
    uint16_t layout;
    struct id128 run;
    struct hash fingerprint, tensors;
    uint64_t parameters, positions;
    uint32_t seq_len, epochs;
    uint64_t order_seed;
    struct hash checkpoint, theta; /* version 0 */
    uint64_t checkpoint_bytes;
};
struct record_term {
    uint32_t term;
};
struct record_down {
    uint32_t
        codec; /* enum codec of the updates by which later versions are defined; 0: whole weights */
};
struct record_join {
    uint32_t site, inc;
    char name[WIRE_NAME_MAX];
    struct id128 boot;
    uint32_t crashes_max; /* for the fenced leases; 0: crashes are not counted */
    uint32_t kept_count, fenced_count;
    uint64_t kept[WIRE_LEASES_MAX], fenced[WIRE_LEASES_MAX]; /* together: all that the site held */
};
struct record_epoch {
    uint32_t epoch;
    uint64_t positions;
};
struct record_grant {
    uint64_t tok, nonce;
    uint32_t site, inc, epoch;
    uint64_t req;
    uint32_t ranges_count;
    struct range ranges[WIRE_RANGES_MAX];
};
struct record_reclaim {
    uint64_t tok;
    enum reclaim_reason reason;
    uint64_t keep;        /* SHRUNK: samples that stay; else 0 */
    uint32_t crashes_max; /* LAPSED: quarantine from so many crashes on (0: not counted); else 0 */
};
struct record_skip {
    uint32_t epoch;
    uint64_t position;
    char reason[RECORD_REASON_MAX];
};
struct record_stage {
    struct id128 did;
    uint32_t site, inc;
    uint64_t base, tokens, steps;
    double lr_sum, loss, norm, max_abs, cos_m;
    uint32_t codec;
    uint64_t elements, bytes;
    struct hash blob;
    uint32_t parts_count, skips_count;
    struct wire_part parts[WIRE_PARTS_MAX];
    struct record_skip skips[WIRE_SKIPS_MAX];
    bool has_rest; /* the rest of the last part's lease goes on as a new lease */
    uint64_t rest_tok, rest_nonce;
};
struct record_reject {
    struct id128 did;
    uint32_t site, inc;
    uint64_t base, tokens, steps, bytes;
    struct hash blob, manifest; /* manifest: hash of what the site sent, docs/journal.md */
    char reason[WIRE_TEXT_MAX];
    uint32_t freed_count;
    uint64_t freed[WIRE_PARTS_MAX]; /* leases of the manifest that were still the site's own */
};
struct record_discard {
    struct id128 did;
    char reason[WIRE_TEXT_MAX];
};
struct record_merge_part {
    struct id128 did;
    double weight;
    bool late;
};
struct record_merge {
    uint64_t version, parent;
    struct hash checkpoint, theta;
    uint64_t checkpoint_bytes, tokens_after;
    double eta_r, mu_r, kappa_r, phi, meff, sbar, tokens_fresh, tokens_late;
    struct hash ledger; /* of the ledger bytes inside the checkpoint */
    uint32_t parts_count;
    struct record_merge_part *parts; /* decoded: owned by the record; encoding borrows them */
};
struct
    record_step { /* of the MERGE that follows at once: what its arithmetic has beyond the plain step */
    uint64_t version;
    bool radial, keeps_ema;
    double ema,
        cos_mean; /* cos_mean: between the deltas of different sites; 0 with sites_count 0 */
    uint32_t sites_count;
    struct record_step_site {
        uint32_t site;
        double cos; /* to the others' sum */
    } sites[RECORD_STEP_SITES_MAX];
};
struct record_sync {        /* the next MERGE is a synchronous round */
    uint64_t version, step; /* step: of the moments, from 1, which begins them */
    bool counts;            /* the counting rule: no moments, all below is 0 */
    double lr, beta1, beta2, eps, weight_decay, clip, bias1, bias2;
};
struct record_eval { /* somebody has measured a version's held-out loss */
    uint64_t version;
    double loss; /* nats a token, > 0 */
    bool back;   /* it jumped: the ROLLBACK to version `to` follows */
    uint64_t to; /* an ancestor of version; back = 0: 0 */
};
struct record_parent {      /* of a region: what the next MERGE takes in of the parent's versions */
    uint64_t version, from; /* from: taken in so far */
    struct hash blob;       /* fp32: theta loses it after the outer step */
    uint64_t bytes;         /* 0: taken back, from and version are equal */
};
struct record_seal {
    uint32_t epoch;
    uint64_t merged, skipped;
    struct hash digest;
};
struct record_leave {
    uint32_t site, inc;
    uint32_t toks_count;
    uint64_t toks[WIRE_LEASES_MAX]; /* all that the site held */
};
struct record_rollback {
    uint64_t version;       /* new head: an ancestor of the head, or the head itself */
    uint64_t versions_next; /* number of the next version: greater than any ever seen */
    uint32_t term;          /* from here on: not less than before */
};
struct record_quarantine {
    uint32_t epoch;
    struct range range; /* quarantined positions, all of them */
    bool skip;          /* SKIPPED for good; else AVAILABLE again, with no crash on record */
    char reason[RECORD_REASON_MAX];
};
struct record_hold {
    uint32_t site; /* 0: a name the hub did not know yet */
    char name[WIRE_NAME_MAX];
    uint64_t version_seen;
    uint32_t term_seen;
};

struct record_rebuild {      /* instead of OPEN: the run goes on from a checkpoint */
    struct record_open open; /* its checkpoint, theta: of `version` */
    uint64_t version, parent, tokens;
    uint32_t term, inc_floor; /* beyond all that the lost hub can have given */
    uint64_t ledger_bytes;
    struct hash ledger;
};
struct record_ledger { /* a piece of the checkpoint's ledger */
    uint64_t offset;
    uint32_t bytes;
    const uint8_t *data; /* borrowed, decoded: from the body */
};

struct record_report { /* what a facility's agent saw and did: docs/journal.md, section 3 */
    char site[WIRE_NAME_MAX];
    uint32_t items_count;
    struct wire_item items[WIRE_ITEMS_MAX];
};
struct record_order {
    uint64_t id;
    char site[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX];
    uint32_t jobs;
    bool cancel; /* of a known order */
};

struct hub_record {
    uint16_t kind;
    time_ns wall;
    union {
        struct record_open open;
        struct record_term term;
        struct record_down down;
        struct record_join join;
        struct record_epoch epoch;
        struct record_grant grant;
        struct record_reclaim reclaim;
        struct record_stage stage;
        struct record_reject reject;
        struct record_discard discard;
        struct record_merge merge;
        struct record_step step;
        struct record_eval eval;
        struct record_sync sync;
        struct record_parent parent;
        struct record_seal seal;
        struct record_leave leave;
        struct record_rollback rollback;
        struct record_quarantine quarantine;
        struct record_hold hold;
        struct record_rebuild rebuild;
        struct record_ledger ledger;
        struct record_report report;
        struct record_order order;
    } u;
};

/* Appends the body to out. r is not changed (one function describes both directions). */
void hub_record_encode(struct hub_record *r, struct buf *out);
/* Strict. On success *out may own memory (hub_record_fini) and borrow the body. On failure nothing
 * is owned. */
enum brg_status hub_record_decode(uint16_t kind, const void *body, size_t n, struct hub_record *out,
                                  struct err *e) MUST_USE;
void hub_record_fini(struct hub_record *r);

#endif
