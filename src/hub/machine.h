/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - the inside of the hub's state machine, shared by its files. Pure.
 *
 *   machine.c   create, hub_step's dispatch, the clock, operator commands
 *   seal.c      is the hub behind what a site has seen? Proofs, the hold
 *   members.c   join, heartbeat, leave; who is live; the round's header
 *   grants.c    lease, return, shrink; whose lapsed lease is taken away
 *   commits.c   commit, outcome: the whole of a contribution's acceptance
 *   health.c    norms, cosines, held-out loss, the way back when it jumps
 *   sync.c      synchronous rounds: gradients instead of deltas, and when they end
 *   rebuild.c   a journal that begins with a checkpoint
 *   region.c    a hub that is a site of another one
 *   facilities.c  what agents report of their queues, and orders to them
 *   rounds.c    when to merge, what, and what follows: seals, completion
 *   apply.c     one record, one change: the only file that changes durable state
 *   snapshot.c  durable state to bytes and back      view.c   reading, hub_check
 *
 * Durable fields change only in apply.c (and snapshot.c); volatile ones are marked, and belong to
 * no digest. docs/journal.md says what each record does. */
#ifndef HUB_MACHINE_H
#define HUB_MACHINE_H

#include "hub/hub.h"
#include "hub/record.h"
#include "lease/lease.h"

enum {
    HUB_BOOTS_KEPT = 8,           /* earlier processes of a site whose late JOINs are recognised */
    HUB_STAGED_PER_SITE_MAX = 64, /* beyond: RETRY until a merge */
    HUB_CHECKPOINTS_KEPT = 4,     /* newest versions on the branch, besides version 0 */
};

struct hub_site {
    char name[WIRE_NAME_MAX];
    uint32_t inc;
    bool joined; /* JOIN and no LEAVE since */
    struct id128 boot, boots_old[HUB_BOOTS_KEPT];
    uint32_t boots_old_count;
    uint64_t req_last; /* newest LEASE request of this incarnation that was granted */
    uint64_t contributions, merged, rejected, tokens_merged;
    uint64_t last_tokens, last_steps; /* of its newest staged delta */
    struct outer_norms norms;         /* of its staged deltas */
    double cos_others;                /* of its newest merged one */
    /* volatile */
    bool ready;    /* has said which version it trains from */
    time_ns heard; /* last accepted message, on the hub's clock */
    enum wire_phase phase;
    uint64_t hb_seq, base;
    char fabric[WIRE_FABRIC_MAX];
    double steps_per_s, tokens_per_s, loss;
    double norm_z;         /* of its newest delta */
    uint32_t norm_refused; /* for their norm, in a row */
    uint32_t against;      /* merges in a row in which its delta pointed against the others */
    uint64_t stuck_tok, stuck_done; /* where its processes began that came back last, */
    uint32_t stuck_joins;           /* and how many in a row did */
};

struct hub_version {
    struct hub_version_view v;
    uint32_t only_site;     /* the site of all its contributions; 0: several, or none */
    bool on_branch;         /* the head or one of its ancestors */
    struct outer_past past; /* what the next round inherits; last and restart are not of it */
    uint64_t taken;         /* a region's: the parent's version that it has taken in */
    struct hash taken_blob; /* what was taken in with this version; zero: nothing */
};

struct hub_merge { /* volatile: a crash forgets it, and it is planned again */
    struct hub_plan plan;
    struct record_merge_part *parts; /* all of the record, empty contributions too */
    uint32_t parts_count;
    struct hash ledger;
    bool cancelled; /* what it was made from has changed: its result is dropped */
};

struct hub {
    struct hub_settings s;
    /* durable */
    uint64_t seq;
    bool opened, held;
    uint32_t term, tok_n;
    uint32_t down;      /* enum codec of the updates that define versions; 0: whole weights */
    uint32_t inc_floor; /* incarnations begin above: after a rebuild older ones may be about */
    uint64_t
        foreign_below; /* versions below may have other weights elsewhere: decided by rollback */
    uint64_t import_bytes; /* of a ledger that is being taken over; 0: none */
    struct hash import_hash;
    struct buf import;
    uint64_t held_version; /* what the site that made us hold had seen */
    uint32_t held_term;
    struct ledger *ledger;
    struct hub_version *versions;                /* ascending by number */
    uint32_t versions_count, versions_cap, head; /* head: index */
    uint64_t versions_next;
    struct hub_site *sites; /* [number]; 0 is unused */
    uint32_t sites_count, sites_cap;
    uint32_t *names; /* open addressing by name: site numbers, 0 free; follows from sites */
    uint32_t names_cap;
    uint64_t grants, reclaimed, returned, rejected, discarded, departures, samples_granted,
        samples_reclaimed;
    struct hub_facility *facilities; /* placement: facilities.c */
    uint32_t facilities_count;
    struct hub_order *orders;
    uint32_t orders_count;
    uint64_t order_last;
    struct record_step step;     /* the last record, if it was a STEP; else version 0 */
    struct record_sync sync;     /* the last record, or the one before a STEP, if it was a SYNC */
    uint32_t parent_site;        /* HUB_PARENT's number; 0: no region. Follows from sites */
    struct record_parent taking; /* waits for the next MERGE; bytes 0: nothing */
    /* volatile */
    struct prng prng;
    time_ns now, wall;
    bool started, draining;
    uint32_t waited_for; /* the site that was found last to hold the round open; 0: none */
    uint64_t sync_seen;  /* what is staged fits this head, plus 1; 0: not looked yet */
    time_ns quorum_since, retry_at, starved_at; /* NEVER, or when */
    uint32_t starved_site;                      /* who found nothing then */
    struct hub_merge *merge;
    uint64_t plans;
    uint64_t records_since_snapshot;
    struct hub_crowd {
        time_ns at;
        uint32_t live_ready;
        uint64_t tokens_per_step;
        double steps_per_s; /* mean of those who told; 0: nobody */
        double batch_tokens,
            batch_rate; /* sums of those who told both: tokens of a step, tokens a second */
    } crowd;            /* of many sites: counted now and then */
    struct hub_seals {  /* of the head and the term, as they are */
        uint64_t version;
        uint32_t term;
        struct hash theta, of_version, of_term;
    } seals;
    struct hub_doubt doubt, doubted; /* doubted: the highest of each since the last rollback */
    struct hub_out *out;             /* within a step */
    struct buf body;
    struct hub_record scratch; /* the record that is being decided */
};

/* ---- machine.c
 * ---------------------------------------------------------------------------------- */
/* A record to decide: zeroed but for its kind; then hub_emit encodes, applies, frames it. */
struct hub_record *hub_draft(struct hub *h, enum record_kind kind);
void hub_emit(struct hub *h, struct hub_record *r);
void hub_note(struct hub *h, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Sets the answer's code and sentence. */
void hub_refuse(struct hub *h, enum wire_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The answer to an operator's command; text: why not. */
/* What the journal's first record says of the run, around the checkpoint it begins with. */
struct record_open hub_open_record(const struct hub *h, const struct hash *checkpoint,
                                   const struct hash *theta, uint64_t bytes);
void hub_operator_answer(struct hub *h, bool fine, const char *text);
uint64_t hub_tok_next(const struct hub *h);
struct hub_site *hub_site_named(const struct hub *h, const char *name, uint32_t *out_number);
uint32_t hub_ms(time_ns ns);
void hub_text_copy(char *out, size_t cap, const char *text);

/* ---- members.c
 * ---------------------------------------------------------------------------------- */
void hub_join(struct hub *h, const struct wire_request *r);
void hub_heartbeat(struct hub *h, uint32_t site, const struct wire_heartbeat *b);
void hub_leave(struct hub *h, uint32_t site, const struct wire_leave *b);
bool hub_live(const struct hub *h, const struct hub_site *s, time_ns now);
bool hub_holds_its_share(const struct hub *h, uint32_t site, uint64_t more);
uint32_t hub_sites_live_ready(const struct hub *h);
void hub_crowd_count(struct hub *h); /* at the begin of a step; does something seldom */
void hub_round_fill(const struct hub *h, uint32_t site, struct wire_round *out);

/* ---- seal.c
 * ------------------------------------------------------------------------------------- */
/* True: this JOIN claims more than the hub has; answered. */
bool hub_is_behind(struct hub *h, const char *name, const struct wire_join *b);
/* To a member that names a version which was never made here: its JOIN will say what it has seen. */
void hub_ask_to_join(struct hub *h, uint64_t base);
void hub_seals_renew(struct hub *h);
/* What the round's header and the answer carry. */
struct hash hub_head_seal(const struct hub *h);
struct hash hub_term_seal(const struct hub *h);

/* ---- grants.c
 * ----------------------------------------------------------------------------------- */
void hub_lease(struct hub *h, uint32_t site, const struct wire_request *r);
void hub_return(struct hub *h, uint32_t site, uint64_t tok, uint64_t nonce, uint64_t keep);
void hub_lease_fill(const struct lease *a, struct wire_lease *out);
bool hub_work_left(const struct hub *h); /* something may be granted now or after a lease lapsed */
uint32_t hub_epoch_first(const struct hub *h); /* the first unsealed one */
bool hub_complete(const struct hub *h);
/* The length that a slow site is asked to keep of this lease; its whole count: no wish. */
uint64_t hub_wish(const struct hub *h, const struct lease *a);

/* ---- commits.c
 * ---------------------------------------------------------------------------------- */
void hub_commit(struct hub *h, uint32_t site, const struct wire_request *r,
                const struct hub_blob_verdict *blob);
bool hub_commit_known(struct hub *h, uint32_t site,
                      const struct wire_commit *c); /* answered already */
void hub_outcome(struct hub *h, uint32_t site, const struct id128 *did);
struct hash hub_manifest_hash(const struct record_stage *r); /* section 4 of docs/journal.md */
/* Versions after base, on the branch, that contain contributions of other sites. false: base is
 * not on the branch. Stops counting at `enough`. */
bool hub_staleness(const struct hub *h, uint32_t site, uint64_t base, uint32_t enough,
                   uint32_t *out);

/* ---- rounds.c
 * ----------------------------------------------------------------------------------- */
void hub_rounds(struct hub *h); /* seals what is finished, plans a merge where one is due */
void hub_merged(struct hub *h, const struct hub_cmd *c);
void hub_merge_failed(struct hub *h, const struct hub_cmd *c);
void hub_merge_cancel(struct hub *h);
void hub_merge_free(struct hub *h);
time_ns hub_rounds_expiry(const struct hub *h);

/* ---- health.c
 * ------------------------------------------------------------------------------------ */
/* false: out says why. Remembers how unusual it is. */
bool hub_norm_fine(struct hub *h, const struct record_stage *g, char *out, size_t cap);
void hub_step_emit(
    struct hub *h,
    const struct hub_cmd *merged); /* before its MERGE, where there is something to say */
void hub_evaluated(struct hub *h, const struct hub_cmd *c);
const char *hub_apply_step(struct hub *h, const struct record_step *r);
const char *hub_apply_eval(struct hub *h, const struct record_eval *r);
void hub_health_put(const struct hub *h, struct buf *out); /* nothing where there is nothing */
bool hub_health_get(struct hub *h, struct reader *r);      /* to the end of r */

/* ---- sync.c ------------------------------------------------------------------------------ */
bool hub_synchronous(const struct hub *h); /* the next round is one */
/* Why a contribution of this kind, cut from this base, fits in no round that is to come; NULL: it may. */
const char *hub_sync_misfit(const struct hub *h, uint64_t base, uint32_t codec);
void hub_sync_discard(struct hub *h); /* what is staged and fits no more */
/* Before the records of a merge, where there is something to say. */
void hub_sync_emit(struct hub *h);
const char *hub_apply_sync(struct hub *h, const struct record_sync *r);

/* machine.c: to a version on the branch. decided: by a person, who has seen what is claimed. */
void hub_roll_back(struct hub *h, uint64_t version, bool decided);

/* ---- view.c
 * ------------------------------------------------------------------------------------- */
/* The condition of I3, I5-I7, H2, H3 or H7 that does not hold beside a sound ledger, as text; NULL: all do. hub_check panics
 * over it, a snapshot is refused. */
const char *hub_fault(const struct hub *h);

/* ---- apply.c
 * ------------------------------------------------------------------------------------ */
struct hub_version *hub_version_of(const struct hub *h, uint64_t version); /* NULL: none */
struct hub_version *hub_version_add(struct hub *h);
struct hub_site *hub_site_add(struct hub *h);
void hub_site_index(struct hub *h, uint32_t number); /* once its name is set */

/* ---- rebuild.c
 * ---------------------------------------------------------------------------------- */
void hub_rebuild_from(struct hub *h, const struct hub_cmd *c);
const char *hub_apply_rebuild(struct hub *h, const struct record_rebuild *r, time_ns wall);
const char *hub_apply_ledger(struct hub *h, const struct record_ledger *r);
/* ---- region.c
 * ------------------------------------------------------------------------------------ */
void hub_region_hold(struct hub *h, const struct hub_span *spans, uint32_t count);
void hub_cmd_hold(struct hub *h, const struct hub_cmd *c);
void hub_cmd_take_in(struct hub *h, const struct hub_cmd *c);
void hub_cmd_reset(struct hub *h);
const char *hub_apply_parent(struct hub *h, const struct record_parent *r);
/* What is to be taken in goes into the plan; every version has it that is made from now on. */
void hub_region_plan(const struct hub *h, struct hub_merge *m);
bool hub_region_part(const struct hub_plan_part *p); /* is this part of a plan the parent's? */
bool hub_region_may_return(const struct hub *h, uint64_t version); /* of no region: always */
void hub_region_withdraw(struct hub *h, const char *why);
void hub_region_put(const struct hub *h, struct buf *out);
bool hub_region_get(struct hub *h, struct reader *r);

/* ---- facilities.c
 * ---------------------------------------------------------------------------------- */
void hub_report(struct hub *h, const struct wire_report *r);
void hub_order(struct hub *h, const struct hub_cmd *c);
const char *hub_apply_report(struct hub *h, const struct record_report *r);
const char *hub_apply_order(struct hub *h, const struct record_order *r);
void hub_facilities_put(const struct hub *h, struct buf *out);
bool hub_facilities_get(struct hub *h, struct reader *r);
void hub_facilities_free(struct hub *h);

/* What a journal's opening says against the settings; NULL: they fit. */
const char *hub_opening_misfit(const struct hub *h, const struct record_open *r);

#endif
