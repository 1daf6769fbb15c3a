/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h - the hub's state machine: membership with fences, leases, rounds, and what each duty is in
 * order. Pure and deterministic: time and randomness come in, duties go out.
 *
 *   hub_step(hub, now, command, out):  decide -> records -> apply -> answer
 *   hub_apply(hub, record):            the same apply, for replay
 * State changes only through records: the state is a fold of hub_apply over the journal, so the same
 * journal gives the same state, bit for bit. What no record carries is volatile (deadlines, speeds, the
 * merge under way) and starts afresh with each process: every member then gets a full lease time.
 *
 * The caller's duties, in this order: (1) make out->records durable, in sequence; (2) only then send
 * out->answer (an answer without records of its own also waits for every record before it); (3) start
 * out->merge, if set, and come back with HUB_CMD_MERGED or HUB_CMD_MERGE_FAILED; (4) call again with
 * HUB_CMD_TICK at hub_expiry(). If (1) fails the hub object is ahead of the disk: destroy it, rebuild it
 * by replay, and answer RETRY to all who wait.
 *
 * One thread at a time. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "base/base.h"
#include "outer/outer.h"
#include "store/store.h"
#include "wire/agent.h"
#include "wire/wire.h"

struct hub_settings {
    /* the run, fixed at init (recorded as the first record) */
    struct id128 run;
    struct hash fingerprint, tensors;
    uint64_t parameters, positions; /* positions of one epoch */
    uint32_t seq_len, epochs;
    uint64_t order_seed;
    /* rounds */
    uint64_t steps;         /* H */
    uint32_t quorum;        /* sites with a staged delta before grace counts; >= 1 */
    time_ns grace_ns;       /* from the quorum on, how long the others are waited for */
    uint32_t staleness_max; /* versions of others a delta may miss (1: late ones are folded in) */
    bool cadence;           /* steps_target in proportion to measured speed */
    bool cadence_batch;     /* first the samples of a step, where a site can */
    uint64_t steps_first; /* H at the start, up to `steps` over ramp_share of the tokens; 0: none */
    double ramp_share;
    double
        norm_z; /* a delta's log norm so many deviations above its site's usual is refused; 0: not looked at */
    double loss_jump; /* nats: held-out loss that rises by more takes the run back; 0: never */
    struct outer_rule rule;
    struct schedule schedule;
    enum codec codec;
    enum codec down; /* of the updates that define the next versions; 0: whole weights */
    double beta1, beta2, weight_decay; /* for the AdamW bound, and with */
    double eps, clip;                  /* these for the steps of synchronous rounds */
    double sync_tokens; /* rounds are synchronous until so many tokens are committed; 0: none */
    double muon_ratio, muon_side; /* for Muon's; ratio 0: AdamW alone */
    /* leases */
    time_ns ttl_ns, heartbeat_ns;
    uint64_t lease_samples_min, lease_samples_max;
    uint32_t crashes_max; /* leases over one extent that ended by crash before quarantine; 3 */
    /* bounds */
    uint32_t sites_max, records_per_snapshot;
    uint64_t delta_bytes_max;
    struct hash seal_key; /* secret; of what the hub announces: seal.c */
};

struct hub;
struct hub *hub_create(const struct hub_settings *s, uint64_t random_seed); /* gives */
void hub_destroy(struct hub *h);

/* ---- Commands ----------------------------------------------------------------------------------- */
enum { HUB_KEPT_MAX = 64 };
enum hub_cmd_kind {
    HUB_CMD_INIT = 1,    /* empty journal: write the opening record (u.init) */
    HUB_CMD_START = 2,   /* every process start: term grows, live leases get a full TTL */
    HUB_CMD_REQUEST = 3, /* a message of a site (u.request) */
    HUB_CMD_TICK = 4,    /* time passed */
    HUB_CMD_MERGED = 5,  /* the planned checkpoint is durable (u.merged) */
    HUB_CMD_MERGE_FAILED =
        6,               /* u.merge_failed: a corrupt part is discarded, else planned again later */
    HUB_CMD_DISCARD = 7, /* operator: u.discard */
    HUB_CMD_ROLLBACK = 8,    /* operator: u.rollback */
    HUB_CMD_DRAIN = 9,       /* operator: ask all sites to drain; u.drain.on */
    HUB_CMD_QUARANTINE = 10, /* operator: decide a quarantined range: u.quarantine */
    HUB_CMD_REBUILD = 11, /* empty journal: go on from a checkpoint, instead of INIT (u.rebuild) */
    HUB_CMD_REPORT = 12,  /* of a facility's agent: u.report */
    HUB_CMD_ORDER = 13,   /* an operator or planner: u.order */
    HUB_CMD_EVALUATED = 14, /* a version's held-out loss: u.evaluated */
    HUB_CMD_HOLD = 15,      /* a region: what its parent has leased to it (u.hold) */
    HUB_CMD_TAKE_IN = 16,   /* a region: a version of its parent (u.take_in) */
    HUB_CMD_RESET = 17,     /* a region: back to its first version, with nothing to give */
};
struct hub_span { /* positions of an epoch */
    uint32_t epoch;
    bool skip; /* of what others did: skipped, not merged */
    struct range range;
};
struct hub_blob_verdict {   /* what the shore found about a COMMIT's blob before the command */
    bool complete;          /* all bytes there, hash equal, durable under its hash */
    uint64_t offset;        /* bytes there where not complete */
    enum brg_status status; /* OK, or E_CORRUPT / E_NONFINITE / E_MESSAGE with text */
    char text[WIRE_TEXT_MAX];
    double norm, max_abs, cos_m; /* stats of the delta; cos_m to the outer momentum (0 unknown) */
    double theta_max;            /* max|theta| of the base, for the bound; 0 = skip the bound */
};
struct hub_cmd {
    enum hub_cmd_kind kind;
    time_ns wall; /* wall clock for records, never for decisions */
    const struct wire_request *request;
    struct hub_blob_verdict blob; /* with a COMMIT */
    union {
        struct {
            struct hash checkpoint, theta;
            uint64_t bytes;
        } init; /* version 0 */
        struct {
            uint32_t term_floor;
        } start;
        struct {
            uint64_t plan;
            struct hash checkpoint, theta;
            uint64_t bytes;
            const double
                *cosines; /* borrowed: [parts of the plan], outer_cosines; NULL: not known */
            double cos_mean;
        } merged;
        struct {
            uint64_t plan;
            int32_t bad_part;
            char text[WIRE_TEXT_MAX];
        } merge_failed;
        struct {
            struct id128 did;
            char text[WIRE_TEXT_MAX];
        } discard;
        struct {
            uint64_t version;
        } rollback;
        struct {
            uint64_t version;
            double loss;
            uint32_t kept_count; /* versions whose checkpoint is there, newest first */
            uint64_t kept[HUB_KEPT_MAX];
        } evaluated;
        struct {
            bool on;
        } drain;
        struct {
            uint32_t epoch;
            struct range range;
            bool skip;
            char reason[24];
        } quarantine;
        struct {
            struct hash checkpoint, theta;
            uint64_t bytes, version, parent, tokens; /* as the checkpoint says */
            uint32_t term;                           /* of the hub that made it; 0 unknown */
            const void *ledger;                      /* borrowed: the bytes inside the checkpoint */
            uint64_t ledger_bytes;
        } rebuild;
        struct {
            const struct hub_span
                *spans; /* borrowed: all that it holds; the rest is the parent's */
            uint32_t count;
        } hold;
        struct {
            uint64_t version, from; /* from: what its head has taken in */
            struct hash blob;       /* fp32 delta file, durable: theta loses it */
            uint64_t bytes;
            struct id128 did;             /* names the positions; its last 4 bytes count */
            const struct hub_span *spans; /* borrowed: what others have done since */
            uint32_t count;
        } take_in;
        const struct wire_report *report; /* borrowed */
        struct {
            char site[WIRE_NAME_MAX], shape[WIRE_SHAPE_MAX];
            uint32_t jobs;
            uint64_t cancel; /* an order's id; 0: a new order */
        } order;
    } u;
};

/* ---- Out --------------------------------------------------------------------------------------- */
struct hub_plan_part {
    struct outer_part part; /* site, tokens, steps, late */
    struct id128 did;
    struct hash blob;
    uint64_t base, bytes;
    double weight;
};
struct hub_plan { /* what the merge worker computes; sorted by (site, did) */
    uint64_t id, parent, version, tokens_after;
    uint32_t term;
    enum codec down; /* 0: whole weights */
    struct hash parent_checkpoint;
    struct outer_params params;
    bool radial, keeps_ema; /* beyond params: struct outer_round */
    double ema;
    struct outer_adamw adamw; /* step above 0: a synchronous round */
    uint32_t parts_count;
    struct hub_plan_part *parts; /* owned by the hub, valid until the plan ends */
    struct buf ledger; /* for the checkpoint: the ledger after this merge; owned by the hub */
};
struct hub_out {        /* hub_out_init once, reused for each step */
    struct buf records; /* framed: u16 kind | u32 bytes | body, one after another */
    uint32_t records_count;
    uint64_t seq_after; /* journal sequence when these are durable */
    bool has_answer;
    struct wire_answer answer;
    const struct hub_plan *merge; /* a merge to start, or NULL */
    bool snapshot_due; /* call hub_snapshot and store it once these records are durable */
    struct buf notes;  /* logfmt fields, one line an event: "lvl=info ev=granted ..." */
};
void hub_out_init(struct hub_out *o);
void hub_out_fini(struct hub_out *o);

void hub_step(struct hub *h, time_ns now, const struct hub_cmd *cmd, struct hub_out *out);
time_ns hub_expiry(const struct hub *h); /* when TICK is due; TIME_NS_NEVER */

/* ---- Replay and snapshots ------------------------------------------------------------------------ */
/* Applies one record of the journal; E_JOURNAL (state then unusable) where it cannot follow. */
enum brg_status hub_apply(struct hub *h, uint64_t seq, uint16_t kind, const void *body, size_t n,
                          struct err *e) MUST_USE;
void hub_snapshot(const struct hub *h, struct buf *out);
enum brg_status hub_restore(struct hub *h, uint64_t seq, const void *data, size_t n, struct err *e)
    MUST_USE;
struct hash hub_digest(
    const struct hub *h); /* of the durable state, for "same journal, same state" */

/* ---- Reading (status, tests, simulation) --------------------------------------------------------- */
struct hub_counts {
    uint64_t available, leased, staged, merged, skipped, quarantined;
};
struct hub_site_view {
    uint32_t site, inc;
    char name[WIRE_NAME_MAX];
    bool joined, live, ready; /* live: heard of within the TTL; ready: may hold leases */
    enum wire_phase phase;
    char fabric[WIRE_FABRIC_MAX]; /* "": not told */
    time_ns heard_ago_ns;
    uint64_t base, leases, samples_leased, samples_done, contributions, merged, rejected,
        tokens_merged;
    double steps_per_s, tokens_per_s, loss;
    double cos_others, norm_z; /* of its newest merged, staged delta; 0: not known */
};
struct hub_version_view {
    uint64_t version, parent, tokens, parts, sites, bytes;
    struct hash checkpoint, theta;
    time_ns wall;
    double loss, norm, cos_mean, eta_r, mu_r, kappa_r;
    double cos_sites; /* mean cosine between its sites' deltas; 0: not known */
    double heldout;   /* nats a token; 0: nobody has measured it */
    uint64_t returns; /* how often a jump of held-out loss has led back to it */
    bool radial, has_ema;
};
struct
    hub_doubt { /* the newest claim to have seen more than the hub that carried no proof; volatile */
    char name[WIRE_NAME_MAX]; /* "": none since the process began */
    uint64_t version;
    uint32_t term;
    time_ns at;
};
struct hub_view {
    struct id128 run;
    uint64_t seq, head, tokens, positions, staged_deltas;
    bool importing; /* the journal ends within the ledger that it begins with: no state at all */
    uint64_t root;  /* the first version this journal knows: 0, or where it was rebuilt from */
    uint32_t term, epochs, epoch;  /* epoch: the first unsealed one */
    bool complete, draining, held; /* held: HUB_BEHIND */
    struct hub_doubt doubt;
    struct hub_counts counts; /* over all open epochs */
    uint64_t grants, reclaimed, returned, rejected, discarded, departures, samples_granted,
        samples_reclaimed; /* since the run began */
};
void hub_view(const struct hub *h, time_ns now, struct hub_view *out);
uint32_t hub_sites_count(const struct hub *h);
void hub_site_at(const struct hub *h, uint32_t index, time_ns now, struct hub_site_view *out);
/* Its measured held-out loss is more than loss_jump above that of its newest measured ancestor. */
bool hub_loss_jumped(const struct hub *h, uint64_t version);
bool hub_version_find(const struct hub *h, uint64_t version, struct hub_version_view *out);
void hub_round(const struct hub *h, const char *site, time_ns now, struct wire_round *out);
/* Quarantined ranges, in order. */
void hub_quarantined(const struct hub *h,
                     void (*visit)(void *user, uint32_t epoch, struct range range,
                                   uint32_t crashes),
                     void *user);
/* Placement: facilities that have reported, and orders. */
enum { HUB_FACILITIES_MAX = 64, HUB_SHAPES_MAX = 32, HUB_JOBS_KEPT = 64, HUB_ORDERS_KEPT = 256 };
struct
    hub_said { /* what the scheduler said of the shape as a job was submitted: predicted against actual */
    uint64_t at, start; /* of the probe; 0: there was none */
    char word[WIRE_WORD_MAX];
};
struct hub_facility {
    char name[WIRE_NAME_MAX];
    uint64_t n; /* newest item */
    uint32_t shapes_count, jobs_count;
    struct wire_item shapes[HUB_SHAPES_MAX]; /* ITEM_SHAPE */
    struct wire_item probes[HUB_SHAPES_MAX]; /* the newest ITEM_PROBE of each; n = 0: none */
    struct wire_item jobs[HUB_JOBS_KEPT];    /* the newest ITEM_JOB of each; oldest first */
    struct hub_said said[HUB_JOBS_KEPT];     /* of each of them */
    struct wire_item queue, budget;          /* the newest ITEM_QUEUE, ITEM_BUDGET; n = 0: none */
    time_ns heard;                           /* volatile */
};
struct hub_order {
    struct wire_order o;
    char site[WIRE_NAME_MAX];
    bool open;
    uint64_t over;                               /* when its facility said so */
    char word[WIRE_WORD_MAX], why[WIRE_WHY_MAX]; /* how it ended */
};
uint32_t hub_facilities_count(const struct hub *h);
const struct hub_facility *hub_facility_at(const struct hub *h, uint32_t index);
uint32_t hub_orders_count(const struct hub *h);
const struct hub_order *hub_order_at(const struct hub *h, uint32_t index); /* oldest first */
/* What is said to an agent: items that are known, orders that are open. */
void hub_agent_answer(const struct hub *h, const char *site, struct wire_agent_answer *out);

/* ---- A region: a hub that is a site of another hub, its parent (region.c, docs/hierarchy.md) -----------
 * In its ledger the parent is a member, HUB_PARENT: it has a lease on all that was not leased to the region,
 * which never lapses, and it contributes what all others did. */
#define HUB_PARENT "_parent" /* no site can have this name */
struct hub_region_view {
    bool is;                            /* it is one */
    uint64_t head, root, tokens, taken; /* taken: the parent's version that the head has taken in */
    struct hash checkpoint, theta;      /* of the head */
    bool taking;                        /* another one waits for the next merge */
    bool merging;
    uint64_t versions, loss_versions;
    double loss_sum; /* over the versions with contributions of sites since `since` */
};
/* since: of versions above it on the branch are the figures. */
void hub_region(const struct hub *h, uint64_t since, struct hub_region_view *out);
uint32_t hub_seq_len(const struct hub *h);
/* Whether a version is the head or one of its ancestors. */
bool hub_on_branch(const struct hub *h, uint64_t version);
/* How many of these positions are in each state; what is in no open epoch is not counted. */
void hub_span_counts(const struct hub *h, const struct hub_span *s, uint32_t count,
                     struct hub_counts *out);
/* Calls visit for each skipped stretch of these positions. */
void hub_span_skips(const struct hub *h, const struct hub_span *s, uint32_t count,
                    void (*visit)(void *user, const struct hub_span *s), void *user);
/* What is merged or skipped in the parent's ledger and is the parent's here: *out, the caller's to free.
 * false: the two contradict each other, given that `own` is what the region has merged, or may have merged, beyond it. */
struct ledger;
bool hub_region_others(const struct hub *h, const struct ledger *at_parent,
                       const struct hub_span *own, uint32_t own_count, struct hub_span **out,
                       uint32_t *out_count);

/* Blobs that must be kept: calls visit for each hash (checkpoints of kept versions, staged and merged
 * deltas). */
void hub_blobs(const struct hub *h, void (*visit)(void *user, const struct hash *h), void *user);
/* The seals of a version and of a term under a key: what the hub gives away with each of them. */
struct hash hub_seal_version(const struct hub_settings *s, uint64_t version,
                             const struct hash *theta);
struct hash hub_seal_term(const struct hub_settings *s, uint32_t term);
/* Panics (CHECK) where an invariant I1-I12 does not hold; O(state). For tests, sim and debug builds. */
void hub_check(const struct hub *h);

#endif
