/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h - the whole protocol in virtual time: the production state machines of hub and site, their
 * weights, codecs and merge, around a simulated network, disk, clock and operator. One thread; one
 * seed chooses everything. docs/simulation.md tells what is faulted and what is checked.
 *
 *   cmd_sim.c        seeds in a row, the report         world.c     the swarm, the turns of fate
 *   events.c         time, the heap, messages           store.c     the disk: journal, blobs
 *   hub_shore.c      as src/hub/server_os.c, uploads_os.c
 *   hub_merge.c      as src/hub/merge_thread_os.c, publish_os.c
 *   site_shore.c     as src/site/threads_os.c, loop_os.c, duty_os.c
 *   site_files.c     as src/site/local_os.c, site_os.c
 *   oracle_ledger.c  positions and leases from the records alone      (I1-I4, I7-I9, I12)
 *   oracle_count.c   weights and ledgers of checkpoints, blobs        (I5, I6, I11)
 *   oracle_answer.c  what is told is durable                          (I10)
 *   oracle_site.c    local = global + own work that is not merged yet (S3, W1, W2)
 *
 * The counting model: the model has one weight a position of each epoch. Training a position adds 1
 * to its weight; the outer step is the plain sum. So the head's weights are 1 where the ledger says
 * MERGED, and 0 elsewhere. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <setjmp.h>

#include "hub/machine.h"
#include "outer/outer.h"
#include "sim/marks.h"
#include "site/core.h"
#include "site/weights.h"

/* The same simulator for a thousand sites is compiled beside this one, with room for them (sim.mk); what it exports is
 * cmd_sim_many alone. */
#ifdef SIM_MANY
enum {
    SIM_SITES = 1000,
    SIM_PROCS = 1024,
    SIM_EPOCHS = 1,
    SIM_POSITIONS = 8192,
    SIM_EVENTS = 65536,
    SIM_MESSAGES = 32768,
    SIM_BLOBS = 32768,
    SIM_DELTAS = 32768,
    SIM_RECORDS = 262144,
    SIM_LEASES = 65536,
    SIM_VERSIONS = 4096,
    SIM_WAITERS = 32768,
    SIM_PLAN_PARTS = 4096,
    SIM_PARTS = 4096,
    SIM_EVENTS_A_SEED = 40000000,
    SIM_ARENA_MB = 3072,
};
#else
enum {
    SIM_SITES = 5,
    SIM_PROCS = 12, /* processes of sites: one a site, and twins */
    SIM_EPOCHS = 3,
    SIM_POSITIONS = 200,
    SIM_EVENTS = 4096,
    SIM_MESSAGES = 768,
    SIM_BLOBS = 2048,
    SIM_DELTAS = 2048,
    SIM_RECORDS = 16384,
    SIM_LEASES = 8192,
    SIM_VERSIONS = 2048,
    SIM_WAITERS = 256,
    SIM_PLAN_PARTS = 128,
    SIM_PARTS = 64,
    SIM_EVENTS_A_SEED = 400000,
    SIM_ARENA_MB = 48,
};
#endif
enum {
    SIM_HUBS = 2,
    SIM_WEIGHTS = SIM_EPOCHS * SIM_POSITIONS,
    SIM_SAVES = 3,
    SIM_BASES = 24,
};

/* ---- Time and events (events.c) ----------------------------------------------------------------- */
struct sim_clock { /* a machine's own: local = local0 + (t - t0) * rate, plus jumps */
    time_ns t0, local0;
    double rate;
};

enum sim_event_kind {
    EV_NONE = 0,
    EV_TO_HUB,     /* msg */
    EV_TO_SITE,    /* msg; proc, life */
    EV_TIMER,      /* proc */
    EV_TRAIN,      /* proc: the batch is through */
    EV_STORED,     /* proc: did is on the local disk */
    EV_SAVED,      /* proc: a local checkpoint is on the local disk */
    EV_UPLOAD,     /* proc: the bytes of did reach the hub, or do not */
    EV_UPLOADED,   /* proc: did, good */
    EV_DOWNLOAD,   /* proc: version is asked for */
    EV_DOWNLOADED, /* proc: version, good */
    EV_RESTART,    /* a site's machine starts a process */
    EV_HUB_TICK,   /* hub */
    EV_HUB_APPEND, /* hub: the journal's transaction ends */
    EV_HUB_MERGE,  /* hub: the worker is through; plan */
    EV_HUB_PROBE,  /* hub: is there space again? */
    EV_HUB_START,
    EV_WORLD,
    EV_FAULTS_END,
    EV_KINDS,
};
struct sim_event {
    time_ns at;
    uint64_t order, life;
    uint16_t kind, proc; /* proc: of a site, or which hub */
    uint16_t msg, good;
    uint64_t a; /* version, plan */
    struct id128 did;
};
struct sim_msg {
    uint64_t id, life;
    uint16_t proc, next;
    bool beat, used, is_answer;
    union {
        struct wire_request q;
        struct wire_answer a;
    } u;
};

/* ---- The disk (store.c) --------------------------------------------------------------------------- */
enum sim_blob_kind { BLOB_DELTA = 1, BLOB_CHECKPOINT = 2 };
struct sim_blob {
    struct hash hash;
    uint8_t kind;
    bool present, damaged; /* on the hub's disk now; flipped bits there */
    uint64_t born;         /* seq of the journal when it came */
    /* a contribution */
    struct delta_header header;
    uint64_t bytes;
    const uint8_t *coded;
    const float *d; /* decoded */
    /* a checkpoint */
    uint64_t version, parent, tokens;
    const float *theta, *m;
    struct hash theta_hash;
    const uint8_t *ledger;
    size_t ledger_bytes;
};
struct sim_part { /* incoming/<did>.part */
    struct id128 did;
    uint64_t bytes;
    bool bad; /* a bit was flipped on the way */
};
struct sim_journal {
    struct buf bytes; /* framed records */
    uint32_t offset[SIM_RECORDS + 1];
    uint64_t last_seq;
    struct {
        uint64_t seq;
        struct buf data;
        bool damaged;
    } snapshot;
};

/* ---- The hub's process (hub_shore.c, hub_merge.c) -------------------------------------------------- */
struct sim_plan {
    struct hub_plan plan;
    struct hub_plan_part parts[SIM_PLAN_PARTS];
    uint64_t generation;
    bool busy;
};
struct sim_waiter { /* an answer, or a merge's end, that waits for its records */
    uint64_t seq;
    bool merge, drop_unless_taken;
    struct hash blob;
    uint64_t version;
    uint16_t proc;
    uint64_t life, id;
    bool beat;
    struct id128 did;   /* COMMIT, OUTCOME: of the request */
    uint32_t inc, site; /* of the request: its process's slot may have another one by now */
    struct wire_answer answer;
};
struct sim_hub {
    bool alive, full, owner; /* owner: holds the store; an older process does not know yet */
    uint32_t index;
    uint64_t life, generation;
    struct hub *h;
    struct hub_out out;
    struct sim_clock clock;
    time_ns frozen_until, tick_at;
    time_ns stepped; /* on its clock: when it last did something */
    struct buf queue, batch;
    uint32_t queue_count, batch_count;
    bool appending;
    uint64_t seq_queued, seq_durable;
    bool snapshot_ready;
    struct buf snapshot;
    uint64_t snapshot_seq;
    struct sim_waiter waiters[SIM_WAITERS];
    uint32_t waiters_count;
    struct sim_plan plans[4];
};

/* ---- A site's process (site_shore.c, site_files.c) -------------------------------------------------- */
struct sim_save {
    bool valid, torn;
    struct buf core;
    float theta[SIM_WEIGHTS], s[SIM_WEIGHTS];
    uint64_t base;
};
struct sim_base {
    uint64_t version;
    const struct sim_blob *blob;
};
struct sim_dir {                     /* the files of one state directory */
    struct sim_save save[SIM_SAVES]; /* [0]: the newest; older ones exist in backups only */
    struct sim_base base[SIM_BASES];
    uint32_t base_count;
};
struct sim_proc {
    bool alive, ever, twin, foreign;
    uint16_t index, site;
    uint64_t life;
    char name[WIRE_NAME_MAX];
    struct site_core core;
    struct site_out out;
    struct sim_clock clock;
    time_ns timer_at, frozen_until, writer_free;
    double step_s;
    float theta[SIM_WEIGHTS], s[SIM_WEIGHTS];
    float gradient[SIM_WEIGHTS]; /* of a synchronous round: since the last cut */
    uint64_t gradient_samples;
    struct site_position batch[2][32]; /* taken and not trained; [0] is the older one */
    uint64_t batch_count[2];
    uint32_t batches, prefetch;
    bool training;               /* an EV_TRAIN is on its way */
    const struct sim_blob *base; /* whose weights are behind core.base */
    bool saving;
    struct sim_save pending; /* on its way to the disk */
    struct sim_dir dir;
    uint64_t changes, changes_saved;
    uint64_t looked_at; /* oracle_site.c: what was compared last */
};
struct sim_delta { /* a contribution that was ever cut */
    struct id128 did;
    struct sim_blob *content; /* its file in the outbox */
    bool stored, restored_away;
    enum outcome told;
    uint64_t told_version;
};

/* ---- What this seed's world is like (world.c) ------------------------------------------------------ */
struct sim_faults { /* chances a message, a step, or a turn of the world */
    double lose, twice, slow, very_slow, cut, cut_one_way, cut_all;
    double crash, fresh, old, twin, gone, freeze, close, save, save_torn, skip;
    double hub_crash, hub_idle_crash, hub_freeze, hub_two, hub_restore, load_newer;
    double full, damage_delta, damage_checkpoint, damage_snapshot, upload_breaks, upload_flips;
    double discard, rollback, drain, poison_kill, poison_skip, clock_jump, merge_fails,
        break_promise;
    double foreign, download_breaks, forget_files;
    double append_s, skew;
};
struct sim_world {
    struct sim_faults f;
    uint32_t sites, epochs;
    uint64_t positions, weights, batch, steps;
    enum codec codec;
    uint64_t keep_checkpoints;
    time_ns faults_end, limit, turn;
    bool real_bytes;   /* messages pass through JSON */
    uint32_t survivor; /* a site that stays */
};

/* ---- The model of the records (oracle_ledger.c) ----------------------------------------------------- */
struct model_lease {
    uint64_t tok, nonce;
    uint32_t site, inc, epoch, count;
    bool active;
    time_ns since; /* sim.awake when it was given, kept, or met a new hub */
    uint16_t *at;  /* positions in the order of work */
};
enum model_delta_state { MODEL_NONE, MODEL_STAGED, MODEL_MERGED, MODEL_REJECTED, MODEL_DISCARDED };
struct model_delta {
    struct id128 did;
    struct hash blob;
    enum model_delta_state state;
    bool gradient;
    uint32_t site, count, tokens_count;
    uint64_t base, version, tokens;
    uint16_t *at; /* epoch * positions + position */
    uint8_t *skip;
    uint32_t rest_chain; /* how many successors in a row led to its last lease */
};
struct model_version {
    uint64_t version, parent, tokens;
    bool on_branch, real;
    uint64_t sync_step; /* of the hub's moments; 0: no synchronous round */
    uint32_t only_site;
    struct hash checkpoint;
};
struct model_site {
    uint32_t inc;
    bool joined;
    uint64_t boot;
};
struct model {
    uint64_t seq;
    uint8_t state[SIM_WEIGHTS], crashes[SIM_WEIGHTS], refused[SIM_WEIGHTS];
    uint64_t owner[SIM_WEIGHTS]; /* LEASED: tok; STAGED: delta index; MERGED, SKIPPED: version */
    bool sealed[SIM_EPOCHS], held;
    uint32_t epochs, term, tok_n;
    struct model_lease leases[SIM_LEASES];
    uint32_t leases_count;
    struct model_delta deltas[SIM_DELTAS];
    uint32_t deltas_count;
    struct model_version versions[SIM_VERSIONS];
    uint32_t versions_count, head;
    uint64_t versions_next;
    uint64_t sync_version, sync_step; /* the SYNC before; version 0: none */
    struct model_site sites[SIM_PROCS + 2];
    uint32_t sites_count;
    uint32_t inc_of[SIM_SITES]; /* by the site's name */
};

/* ---- All of it ---------------------------------------------------------------------------------------- */
struct sim {
    uint64_t seed;
    uint32_t sites_wanted; /* 0: as the seed draws */
    uint64_t sync_one_in;  /* one seed in so many begins with synchronous rounds; 0: none */
    struct prng prng;
    struct sim_world w;
    time_ns now;
    bool faults_on, trace;
    bool folding; /* an old journal is read again: what has been looked at is not looked for */
    uint64_t order, lives, events_done, hash;
    jmp_buf stop;
    char why[600];
    /* memory of this seed */
    uint8_t *arena;
    size_t arena_used, arena_cap;
    /* events */
    uint32_t heap[SIM_EVENTS];
    struct sim_event event[SIM_EVENTS];
    uint32_t heap_count, event_free[SIM_EVENTS], event_free_count;
    struct sim_msg msg[SIM_MESSAGES];
    uint16_t msg_free;
    /* machines */
    struct hub_settings settings;
    struct sim_hub hub[SIM_HUBS];
    uint32_t hub_now; /* the one at the address */
    struct sim_proc proc[SIM_PROCS];
    bool site_gone[SIM_SITES], site_started[SIM_SITES];
    time_ns cut_up[SIM_SITES], cut_down[SIM_SITES];
    time_ns full_until, merge_fails_until;
    uint8_t poison[SIM_WEIGHTS]; /* 1: kills the trainer, 2: no finite loss */
    /* disk */
    struct sim_journal journal, newer; /* newer: what an old backup does not have */
    bool has_newer;
    uint64_t backup_seq;
    bool has_backup;
    struct sim_blob blob[SIM_BLOBS];
    uint32_t blobs_count;
    struct sim_part part[SIM_PARTS];
    uint32_t parts_count;
    struct sim_delta delta[SIM_DELTAS];
    uint32_t deltas_count;
    struct sim_blob *version0;
    /* oracles */
    struct model model;
    uint64_t durable_merges, resets, restores;
    time_ns awake; /* how long the hub was there and not frozen, on its own clock */
    uint64_t marks[MARKS];
};

_Noreturn void sim_fail(struct sim *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
void sim_say(struct sim *m, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define SAY(m, ...)                                                                                \
    do {                                                                                           \
        if ((m)->trace) sim_say(m, __VA_ARGS__);                                                   \
    } while (0)
#define MARK(m, name) ((m)->marks[MARK_##name] += !(m)->folding)
void sim_mix(struct sim *m, uint64_t x); /* into the trace's hash */

/* events.c */
void *sim_alloc(struct sim *m, size_t bytes); /* zeroed; gone with the seed */
bool sim_chance(struct sim *m, double p);     /* only while faults are on */
bool sim_draw(struct sim *m, double p);
double sim_unit(struct sim *m);
struct sim_event *sim_post(struct sim *m, enum sim_event_kind kind, time_ns at, uint32_t proc,
                           uint64_t life);
bool sim_pop(struct sim *m, struct sim_event *out);
struct sim_msg *sim_msg_new(struct sim *m); /* NULL: none left, the message is lost */
void sim_msg_free(struct sim *m, struct sim_msg *x);
void sim_events_reset(struct sim *m);
time_ns sim_seconds(double s);
time_ns clock_local(const struct sim_clock *c, time_ns t);
time_ns clock_when(const struct sim_clock *c, time_ns local, time_ns now);
void clock_set_rate(struct sim_clock *c, time_ns t, double rate);
time_ns net_delay(struct sim *m);
void net_request(struct sim *m, struct sim_proc *p, const struct wire_request *q, uint64_t id,
                 bool beat);
void net_answer(struct sim *m, const struct sim_waiter *w);
bool net_up(const struct sim *m, uint32_t site);

/* store.c */
struct hash sim_hash(const void *data, size_t n, uint64_t salt);
struct sim_blob *blob_find(struct sim *m, const struct hash *h);
struct sim_blob *blob_add(struct sim *m, enum sim_blob_kind kind);
struct sim_part *part_find(struct sim *m, const struct id128 *did);
struct sim_part *part_get(struct sim *m, const struct id128 *did);
void part_drop(struct sim *m, struct sim_part *p);
struct sim_delta *delta_of(struct sim *m, const struct id128 *did);
void journal_reset(struct sim_journal *j);
void journal_copy(struct sim_journal *to, const struct sim_journal *from);
void journal_cut(struct sim_journal *j, uint64_t seq);
void journal_put(struct sim *m, const struct buf *framed, uint32_t count);
void store_backup(struct sim *m);
void store_restore_old(struct sim *m);
void store_load_newer(struct sim *m);

/* hub_shore.c */
struct sim_hub *hub_at(struct sim *m);
void hub_start(struct sim *m, uint32_t index);
void hub_die(struct sim *m, struct sim_hub *s, const char *why);
void hub_die_and_restart(struct sim *m, struct sim_hub *s, const char *why);
bool hub_frozen(struct sim *m, struct sim_hub *s, const struct sim_event *e);
void hub_on_request(struct sim *m, struct sim_hub *s, const struct sim_event *e);
void hub_on_tick(struct sim *m, struct sim_hub *s);
void hub_on_append(struct sim *m, struct sim_hub *s, bool good);
void hub_on_probe(struct sim *m, struct sim_hub *s);
/* Runs a command of the world or the operator; false: refused or the hub died. */
bool hub_operator(struct sim *m, const struct hub_cmd *c);
/* Runs it and takes care of what comes out. w: whom to tell when it is durable, or NULL. */
bool hub_do(struct sim *m, struct sim_hub *s, const struct hub_cmd *c, struct sim_waiter *w);
struct hub *hub_replayed(struct sim *m, bool with_snapshot);
bool hub_crash_here(struct sim *m, struct sim_hub *s, const char *where);

/* hub_merge.c */
void merge_take(struct sim *m, struct sim_hub *s, const struct hub_plan *p);
void merge_on_end(struct sim *m, struct sim_hub *s, uint64_t plan);
void merge_durable(struct sim *m, struct sim_hub *s, const struct sim_waiter *w);
void merge_retain(struct sim *m, struct sim_hub *s);
void merge_drop_unused(struct sim *m, struct sim_hub *s, const struct hash *h);
struct sim_blob *checkpoint_make(struct sim *m, const struct sim_blob *parent, uint64_t version,
                                 uint64_t tokens);

/* site_shore.c */
void site_proc_start(struct sim *m, struct sim_proc *p, uint32_t site);
void site_proc_die(struct sim *m, struct sim_proc *p, const char *why);
void site_proc_event(struct sim *m, struct sim_proc *p, const struct site_event *ev);
void site_on_event(struct sim *m, struct sim_proc *p, const struct sim_event *e);
void site_loop(struct sim *m, struct sim_proc *p);

/* site_files.c */
const struct sim_blob *base_file(const struct sim_proc *p, uint64_t version);
void base_put(struct sim_proc *p, uint64_t version, const struct sim_blob *b);
void base_remove(struct sim_proc *p, uint64_t version);
void save_begin(struct sim *m, struct sim_proc *p);
void save_done(struct sim *m, struct sim_proc *p);
bool save_restore(struct sim *m, struct sim_proc *p);
void dir_copy(struct sim_dir *to, const struct sim_dir *from);
void dir_clear(struct sim_dir *d);

/* world.c */
void world_draw(struct sim *m);
void world_begin(struct sim *m);
void world_turn(struct sim *m);
void world_calm(struct sim *m);
void world_end(struct sim *m);
void sim_dispatch(struct sim *m, struct sim_event *e);

/* oracles */
void model_reset(struct sim *m);
void model_records(struct sim *m, const uint8_t *framed, size_t bytes, uint32_t count);
struct model_delta *model_delta_find(struct sim *m, const struct id128 *did);
struct model_lease *model_lease_find(struct sim *m, uint64_t tok);
struct model_version *model_version_find(struct sim *m, uint64_t version);
void model_compare(struct sim *m, const struct hub *h);
void model_final(struct sim *m);
void count_merge(struct sim *m, const struct record_merge *r);
void count_stage(struct sim *m, const struct model_delta *d);
void count_head(struct sim *m);
void count_blobs(struct sim *m);
void answer_check(struct sim *m, struct sim_hub *s, const struct sim_waiter *w);
void answers_final(struct sim *m);
void oracle_site(struct sim *m, struct sim_proc *p);

/* sim.c: one seed; false: why says what is wrong */
/* The site of a name s0, s1, ...; of another one: 0. */
uint32_t sim_site_of(const char *name);
struct sim *sim_create(void);
void sim_destroy(struct sim *m);
bool sim_run(struct sim *m, uint64_t seed, bool trace);

#endif
