/* SPDX-License-Identifier: Apache-2.0 */
/* core.h - the site's state machine: membership, leases, the segment, contributions, timers. Pure.
 *
 * The shore owns one core, guards it with one lock, and does what it says:
 *   site_step(core, now, event, out)   messages and timers; out lists what to send and fetch
 *   site_take / site_trained           the training thread takes positions and reports steps
 *   site_duty, then one of site_cut, site_loaded, site_rebased, site_reset
 *                                      the training thread changes the weights, then says so
 *   site_expiry(core)                  when to come back with SITE_TICK
 * After a call from the training thread the shore sends a SITE_TICK, so that duties come out.
 * A simulator drives the same functions with lost, doubled and reordered answers.
 *
 * One control request is under way at a time and one heartbeat, each with an id; an answer with
 * another id is dropped. So a late or doubled answer can never be taken for a newer one. */
#ifndef SITE_CORE_H
#define SITE_CORE_H

#include "base/base.h"
#include "outer/outer.h"
#include "wire/wire.h"

enum {
    SITE_PENDING_MAX = 4, /* contributions that are cut and not rebased on */
    SITE_TAKE_MAX = 65536,
};
#define SITE_VERSION_NONE UINT64_MAX

struct site_settings {
    char name[WIRE_NAME_MAX];
    char fabric[WIRE_FABRIC_MAX]; /* "": not told */
    struct id128 run;
    struct hash fingerprint, tensors;
    uint32_t tokens_per_sample;
    uint64_t positions; /* of an epoch */
    uint64_t elements;  /* P */
    enum codec codec;
    uint64_t batch;        /* samples of one optimizer step, for planning */
    uint32_t pending_max;  /* 1: hand in only when the last contribution was rebased on */
    uint64_t steps_target; /* until the first round header says better */
    uint64_t seed;         /* jitter, boot and contribution ids */
    time_ns retry_min_ns, retry_max_ns;
    time_ns
        answer_ns; /* a request without an answer counts as lost; TIME_NS_NEVER: the shore tells */
    time_ns alone_ns; /* a restored site that was not let in for so long trains alone; 0: at once */
    struct schedule schedule;
    uint64_t warmup_steps; /* of a cold joiner: a local ramp over so many steps */
    uint64_t warmup_cold;  /* the same, for the moments after the run's synchronous phase */
    uint64_t sync_tokens;  /* as wire_run has it, until the first round header says better */
    bool gradients;        /* the trainer can take part in synchronous rounds */
};

enum site_state { /* moves: the table in core.c */
                  SITE_NEW = 0,
                  SITE_ASKING = 1, /* what became of contributions whose outcome is not known? */
                  SITE_JOINING = 2,
                  SITE_SYNCING = 3, /* joined; no weights yet, so no leases */
                  SITE_ACTIVE = 4,
                  SITE_LEAVING = 5, /* closing, everything is settled: LEAVE is under way */
                  SITE_GONE = 6,
                  SITE_STOPPED = 7, /* for good: stop_status, stop_text */
};
const char *site_state_name(enum site_state s);

struct site_position {
    uint32_t epoch;
    uint64_t position;
};

struct site_lease {
    struct wire_lease w;
    uint64_t cut;   /* handed in under this token by cut_did, whose answer is not here yet */
    uint64_t done;  /* behind the optimizer, counted from the lease's start (S1) */
    uint64_t taken; /* given to the trainer */
    struct id128 cut_did;
    bool shrink;    /* SHRINK_OK is to be sent for w.count */
    bool give_back; /* RETURN is to be sent; the lease is not used any more */
};

enum site_delta_state {
    PENDING_CUT = 1,    /* its bytes are on the way to the local disk */
    PENDING_UPLOAD = 2, /* on the local disk */
    PENDING_COMMIT = 3, /* at the hub; COMMIT is to be sent or is under way */
    PENDING_STAGED = 4,
    PENDING_MERGED = 5, /* in version `merged`, not rebased on yet */
    PENDING_FAILED = 6, /* rejected or discarded; waits for the reset of the weights (S4) */
};
struct site_delta {
    enum site_delta_state state;
    bool ask;      /* OUTCOME is to be asked before anything else happens with it */
    bool sent;     /* a COMMIT left: a copy of it may arrive at any time, whatever was answered */
    bool ask_last; /* its leases are gone: if the hub does not know it now, it never will */
    struct wire_commit c;
    bool residual; /* what it could not carry lies in a file of its own (weights_cut_aside) */
    struct id128 residual_before; /* the contribution whose residual it began with; zero: none */
    uint64_t known_at;            /* STAGED: not merged in versions up to this one */
    uint64_t merged;
};

struct site_segment { /* work since the last cut */
    uint64_t steps, samples;
    uint64_t steps_waited; /* done before the version came that has the last contribution */
    double lr_sum, loss_sum;
    uint32_t skips_count;
    struct wire_skip skips[WIRE_SKIPS_MAX];
};

struct site_slot { /* a request under way */
    bool busy;
    bool lost; /* no answer came: the same request goes out again at control_at */
    uint64_t id;
    time_ns deadline;
    uint32_t inc;
    struct wire_request request;
};

struct site_core {
    struct site_settings set;
    struct prng prng;
    enum site_state state;
    enum brg_status stop_status;
    char stop_text[WIRE_TEXT_MAX];

    /* membership */
    struct id128 boot, join_boot;
    uint32_t inc, term_seen, ttl_ms, heartbeat_ms;
    uint64_t req, version_seen, id_last;
    struct hash theta_seen;              /* of version_seen; zero: not known */
    struct hash version_seal, term_seal; /* the hub's proof of both; zero: none */
    bool offline, held, draining, closing, complete;
    bool alone; /* restored, trains what it holds; no JOIN of this process was answered yet */
    time_ns alone_at;
    uint32_t failures;
    struct wire_round round;

    /* leases in the order in which they are used */
    uint32_t leases_count;
    struct site_lease leases[WIRE_LEASES_MAX];
    bool dry;           /* the hub had nothing to lease when last asked */
    time_ns lease_at;   /* ask again no sooner */
    time_ns ahead_at;   /* ask for more than is needed no sooner */
    uint64_t wanted;    /* by the trainer's last site_take: a batch may be larger than planned */
    uint64_t in_flight; /* taken, not trained yet, still good */
    uint64_t void_in_flight; /* taken before a reset: a step on these is undone by another reset */
    bool void_mixed;         /* some of them were taken after samples that are still good */

    /* weights */
    bool loaded, reset_due;
    bool synchronous;             /* the base wants gradients (site_gradients) */
    uint64_t base, base_tokens;   /* version rebased on */
    uint64_t ready, ready_tokens; /* newest version on the local disk; SITE_VERSION_NONE */
    struct site_segment seg;
    uint32_t deltas_count;
    struct site_delta deltas[SITE_PENDING_MAX];
    struct id128
        residual;  /* the contribution whose residual the next one begins with; zero: none */
    uint64_t dids; /* counter behind contribution ids */
    uint32_t failed_in_row;

    /* under way */
    struct site_slot control, beat;
    time_ns now; /* of the last step */
    time_ns control_at, beat_at, upload_at, download_at, ask_at;
    uint32_t asks; /* OUTCOMEs since the last cut */
    uint32_t upload_failures, download_failures;
    bool uploading, downloading;
    struct id128 upload_did;
    uint64_t download_version;
    uint64_t hb_seq, hb_answered;

    /* figures for heartbeats and people */
    uint64_t warmup_from; /* steps_total when the ramp began: the optimizer's moments were cold */
    uint64_t steps_total, steps_local, samples_total, handed_in, merged_count, rejected_count;
    double loss_last;
    time_ns rate_at;
    uint64_t rate_steps, rate_samples;
    double rate_loss_sum, steps_per_s, tokens_per_s, loss_recent;
};

enum site_event_kind {
    SITE_TICK = 1,
    SITE_START = 2,  /* opened: begin */
    SITE_ANSWER = 3, /* u.answer, id */
    SITE_LOST = 4,   /* id: no usable answer came, the hub cannot be reached */
    SITE_BEAT_ANSWER = 5,
    SITE_BEAT_LOST = 6,
    SITE_DELTA_STORED = 7,  /* did, u.stored: durable on the local disk */
    SITE_UPLOADED = 8,      /* did */
    SITE_UPLOAD_FAILED = 9, /* did */
    SITE_DOWNLOADED = 10,   /* u.download: verified, durable on the local disk */
    SITE_DOWNLOAD_FAILED = 11,
    SITE_DRAIN = 12, /* take no more, hand in what there is */
    SITE_CLOSE = 13, /* as DRAIN, then LEAVE once everything is settled */
    SITE_FATAL = 14, /* the shore cannot go on: u.fatal */
};
struct site_event {
    enum site_event_kind kind;
    uint64_t id;
    struct id128 did;
    union {
        const struct wire_answer *answer;
        struct {
            struct hash blob;
            uint64_t bytes;
        } stored;
        struct {
            uint64_t version, tokens;
        } download;
        struct {
            enum brg_status status;
            const char *text;
        } fatal;
    } u;
};

struct site_out { /* site_out_init once, reused */
    bool has_control, has_beat, has_upload, has_download;
    uint64_t control_id, beat_id;
    struct wire_request control, beat;
    struct id128 upload_did;
    uint64_t download_version;
    struct buf notes; /* logfmt fields, one line an event: "lvl=info ev=granted ..." */
};
void site_out_init(struct site_out *o);
void site_out_fini(struct site_out *o);

void site_init(struct site_core *c, const struct site_settings *s, const struct id128 *boot);
void site_step(struct site_core *c, time_ns now, const struct site_event *ev, struct site_out *out);
time_ns site_expiry(const struct site_core *c);

/* ---- The training thread's side --------------------------------------------------------------- */
uint64_t site_available(const struct site_core *c); /* leased and not taken */
/* Up to n positions in lease order; 0 where it is better to wait (site_available may be > 0). */
uint64_t site_take(struct site_core *c, uint64_t n, struct site_position *out);
/* The optimizer has (skip NULL) or has not (skip: the reason) applied the oldest n taken samples.
 * E_LIMIT: more samples skipped than a manifest can list; the segment is reset. */
enum brg_status site_trained(struct site_core *c, time_ns now, uint64_t n, double loss, double lr,
                             const char *skip) MUST_USE;
/* The base is of the run's synchronous phase: what is trained is the gradient at the base's weights, which do not move,
 * and nothing is taken between a hand-in and the next version. A gradient is in no local checkpoint: what is saved has
 * its samples as not done, and where the head moves on before the cut they come again (reset). */
bool site_gradients(const struct site_core *c);
/* Is this contribution's work in the local weights until a version has it? That of a gradient never is. */
bool site_delta_local(const struct site_delta *d);
double site_lr_tokens(const struct site_core *c); /* where on the schedule the next step ends */
double site_lr(const struct site_core *c);

enum site_duty {
    SITE_DUTY_NONE = 0,
    SITE_DUTY_RESET = 1,  /* weights_reset with site_owed(base), then site_reset */
    SITE_DUTY_LOAD = 2,   /* theta = S = version c->ready, then site_loaded */
    SITE_DUTY_REBASE = 3, /* weights_rebase to c->ready, then site_rebased */
    SITE_DUTY_CUT = 4,    /* weights_cut, then site_cut */
};
enum site_duty site_duty(const struct site_core *c);
/* Is this contribution in (base, version]: does a rebase to version give its d_dec back? */
bool site_delta_in(const struct site_delta *d, uint64_t version);
void site_reset(struct site_core *c, struct buf *notes);
/* What was taken and not trained is as if it was never taken; the trainer promises not to train on it. */
void site_untake(struct site_core *c);
void site_loaded(struct site_core *c);
void site_rebased(struct site_core *c, struct buf *notes);
/* The segment becomes a contribution in state PENDING_CUT; gives its entry (valid until the next call). */
const struct site_delta *site_cut(struct site_core *c, struct buf *notes);
/* The segment is full, or there is nothing to train on: only a merge helps. */
bool site_hungry(const struct site_core *c);
/* Nothing is owed to the hub any more: a closing site may leave. */
bool site_settled(const struct site_core *c);
enum wire_phase site_phase(const struct site_core *c);

/* ---- The local checkpoint's part (S2) ---------------------------------------------------------- */
void site_save(const struct site_core *c, struct buf *out);
/* Into a core that was just initialised. E_CHECKPOINT, core as before, where the bytes are wrong or of
 * another run, site, data set or model. */
enum brg_status site_load(struct site_core *c, const void *data, size_t n, struct err *e) MUST_USE;
/* What must always hold, as CHECKs (numbered in core.c); cheap. */
void site_check(const struct site_core *c);

/* ---- Between the core's own files -------------------------------------------------------------- */
void core_move(struct site_core *c, enum site_state to, struct buf *notes);
void core_stop(struct site_core *c, enum brg_status status, const char *text, struct buf *notes);
void core_retry(struct site_core *c, time_ns now, uint32_t retry_ms);
void core_rejoin(struct site_core *c, time_ns now, struct buf *notes);
void core_on_answer(struct site_core *c, time_ns now, const struct wire_answer *a,
                    struct buf *notes);
void core_on_beat(struct site_core *c, time_ns now, const struct wire_answer *a, struct buf *notes);
/* The own contributions and the base are unknown or lost: the next weights are the head's. */
void site_forget(struct site_core *c, const char *why, struct buf *notes);
void core_note(struct buf *notes, const char *fmt, ...) PRINTF_LIKE(2, 3);
struct site_lease *core_lease_find(struct site_core *c, uint64_t tok);
/* Takes a lease out of the list; a reset follows where its work is in the current segment. */
void core_lease_drop(struct site_core *c, struct site_lease *l, const char *why, struct buf *notes);
void core_lease_trim(struct site_lease *l, uint64_t count);
struct site_delta *core_delta_find(struct site_core *c, const struct id128 *did);
void core_delta_remove(struct site_core *c, struct site_delta *d);

#endif
