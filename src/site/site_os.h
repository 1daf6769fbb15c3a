/* SPDX-License-Identifier: Apache-2.0 */
/* site_os.h - what the files of the site's shore share. See site_os.c. */
#ifndef SITE_SITE_OS_H
#define SITE_SITE_OS_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/os.h"
#include "beringia.h"
#include "data/data.h"
#include "site/core.h"
#include "site/weights.h"
#include "store/store.h"
#include "wire/client.h"

enum {
    SITE_ARRAYS_MAX = 16,
    SITE_COUNTERS_MAX = 16,
    SITE_CORE_BYTES_MAX = 256 * 1024,
    SITE_ORDERS = 4
};

enum line {
    LINE_CONTROL,
    LINE_BEAT,
    LINE_UP,
    LINE_DOWN,
    LINES_COUNT
}; /* a thread and a connection */
enum { THREADS_COUNT = LINES_COUNT + 1 /* the writer */ };

enum write_kind {
    WRITE_DELTA = 1, /* codes the stage's copy of the weights and writes a contribution's file */
    WRITE_CHECKPOINT = 2,
    WRITE_SHIFT = 3, /* puts what a rebase adds on the stage */
    WRITE_RESET = 4, /* never queued: the training thread's own */
};
struct write_job { /* for the writer */
    struct write_job *next;
    enum write_kind kind;
    enum codec codec;
    uint64_t from, to; /* versions: rebased on; of a shift, rebased to */
    uint32_t deltas_count;
    struct site_delta
        deltas[SITE_PENDING_MAX]; /* own contributions not in from; of a shift, in to */
    bool still;                   /* a contribution of skips alone */
    struct id128 did;
    uint8_t *bytes; /* a contribution: header and payload */
    uint64_t bytes_count;
    float *residual; /* of a contribution that leaves one: P floats and their checksum; else NULL */
    struct id128 residual_before;
    uint64_t base_kept;  /* checkpoint: versions below are not needed once it is durable */
    uint32_t dids_count; /* checkpoint: contributions it names */
    struct id128 dids[SITE_PENDING_MAX];
    uint32_t residuals_count; /* and the residuals */
    struct id128 residuals[2 * SITE_PENDING_MAX + 1];
    bool done;
    enum brg_status status; /* a job that somebody waits for is freed by the waiter */
    bool waited_for;
};

struct snapshot {   /* memory behind one checkpoint under way, beside the stage; one at a time */
    float *vectors; /* arrays */
    struct buf core;
    uint64_t counters[SITE_COUNTERS_MAX];
    uint64_t steps, base;
    uint32_t inc;
    bool busy;
};

struct brg_site {
    pthread_mutex_t
        lock; /* guards core and everything below that is not the training thread's own */
    pthread_cond_t changed;
    struct site_core core;
    struct site_out out;
    bool core_ready, threads_run;
    atomic_bool stopping, drain;
    atomic_bool breaking, broken; /* see site_broken; the two below are set before broken is */
    enum brg_status broken_status;
    char broken_text[240];
    pid_t pid;       /* of the process that opened it */
    pthread_t owner; /* the training thread, once joined_once */
    const volatile int *cancel;

    /* duties that wait for their thread */
    struct client *clients[LINES_COUNT];
    pthread_t threads[THREADS_COUNT];
    int threads_count; /* that were started */
    bool job_new[LINES_COUNT];
    uint64_t job_id[LINES_COUNT]; /* control, beat: id; down: version */
    struct wire_request job_request[2];
    struct id128 job_did;
    struct write_job *jobs_first, *jobs_last;
    struct snapshot snap;
    struct buf offer;    /* bytes of brg_keep that brg_join goes on from; empty: none */
    uint32_t inc_before; /* incarnation of the process whose state this one goes on from */

    /* fixed after open */
    char url[1024], name[WIRE_NAME_MAX], dir[OS_PATH_MAX];
    char token_file[1024], ca_file[1024], fabric[WIRE_FABRIC_MAX];
    time_ns timeout_ns, checkpoint_every_ns;
    uint64_t batch, warmup_steps, seed;
    int lock_fd;
    struct wire_run run;
    struct dataset *data;
    struct hash fingerprint;

    /* fixed after join */
    atomic_bool joining; /* a thread is in brg_join */
    bool joined_once;    /* brg_join got as far as the threads */
    bool joined;         /* brg_join said GO */
    bool elsewhere;      /* theta is only a stage: see brg_due */
    bool hub_away;       /* opened with what the last process was told */
    struct tensors table;
    struct hash tensors_hash;
    uint64_t elements;
    float *theta, *theta_own; /* theta_own: allocated here, or NULL */
    /* The stage: a copy of the weights while jobs read it, later what the next rebase adds to them. */
    float *stage;
    uint32_t stage_users; /* jobs that read or make it */
    bool stage_is_theta;  /* the copy still equals the weights */
    bool shift_ready;     /* of what: shift */
    struct write_job shift;
    struct brg_array arrays[SITE_ARRAYS_MAX];
    char array_names[SITE_ARRAYS_MAX][64];
    void (*move_array)(void *user, size_t array, uint64_t at, uint64_t count, float *values,
                       int into_trainer);
    void *move_user;
    size_t arrays_count, counters_count;
    uint64_t *counters;
    struct hash base_theta; /* of the version rebased on */
    float *gradient; /* of synchronous rounds: the mean over the segment's samples; NULL: not yet */
    bool gradients;  /* the trainer hands them in */

    /* the training thread's own */
    int due;                         /* what brg_due announced to the next brg_sync */
    uint64_t changes, changes_saved; /* what a checkpoint would save, counted */
    time_ns saved_at, segment_saved_at;
    struct site_position *positions;
    uint64_t positions_cap;
    struct order orders[SITE_ORDERS];
    bool orders_set[SITE_ORDERS];
    uint32_t nonfinite;
    uint64_t gradient_samples; /* behind `gradient`, since the last cut */
    char why[600];
};

/* All with the lock held. */
void site_event(struct brg_site *s,
                const struct site_event *ev); /* steps the core, hands duties out */
void site_tick(struct brg_site *s);
void site_notes(struct brg_site *s, struct buf *notes);
/* Waits on changed until `until` (TIME_NS_NEVER: no limit) or 100 ms at most, so that flags set by
 * signal handlers are seen. */
void site_nap(struct brg_site *s, time_ns until);
bool site_cancelled(struct brg_site *s);
time_ns site_deadline(int64_t timeout_ns); /* from now; below 0, or beyond all time: never */
/* Without the lock, or with it: then it is let go. The library found itself wrong, or without memory:
 * from now on every call on s gives this status. api_os.c */
void site_broken(struct brg_site *s, enum brg_status status, const char *text);

/* threads_os.c */
enum brg_status site_threads_start(struct brg_site *s, struct err *e) MUST_USE;
void site_threads_stop(struct brg_site *s); /* without the lock */
void site_threads_end(struct brg_site *s);  /* the same, but connections stay as they are */
void site_writer_drain(
    struct brg_site *s); /* lock held: waits until the writer has nothing to do */

/* base_os.c: versions of the run in the state directory */
struct local_base {
    int fd; /* close it */
    char path[OS_PATH_MAX];
    uint64_t version, tokens, elements, offset; /* offset: of the weights, in the file */
    struct hash theta;
};
struct fetched { /* how a version came */
    uint64_t tokens, bytes;
    int updates; /* 0: whole */
    struct hash theta;
};
enum brg_status local_base_open(const struct brg_site *s, uint64_t version, struct local_base *out,
                                struct err *e) MUST_USE;
void local_base_path(const struct brg_site *s, uint64_t version, char out[OS_PATH_MAX]);
void local_base_drop(const struct brg_site *s, uint64_t version);
enum brg_status local_base_sync(const struct brg_site *s, uint64_t version, struct err *e) MUST_USE;
/* Makes version from one that is here (not older than oldest) and the hub's updates; on the download
 * thread. E_MISSING: there is no such way;  E_CORRUPT: the sum has another hash. Take the whole then. */
enum brg_status local_base_update(struct brg_site *s, uint64_t version, uint64_t oldest,
                                  const struct hash *want_or_null, struct fetched *out,
                                  struct err *e) MUST_USE;

/* keep_os.c: moments that the trainer keeps */
uint32_t keep_incarnation(const struct brg_site *s);
enum brg_status keep_restore(struct brg_site *s, struct err *e)
    MUST_USE; /* s->core from s->offer */

/* local_os.c: files of the state directory */
void local_run_write(const struct brg_site *s); /* s->run, for a start while the hub is away */
/* Into s->run, for what the checkpoint here is of; any failure: this start needs the hub. */
enum brg_status local_run_read(struct brg_site *s, struct err *e) MUST_USE;
void local_delta_path(const struct brg_site *s, const struct id128 *did, char out[OS_PATH_MAX]);
/* What a contribution could not carry: P floats and a checksum (weights.h). */
void local_residual_path(const struct brg_site *s, const struct id128 *did, char out[OS_PATH_MAX]);
static inline bool residual_named(const struct id128 *did) {
    const struct id128 none = {0};
    return !id_equal(did, &none);
}
uint64_t local_residual_bytes(const struct brg_site *s);
void local_residual_seal(const struct brg_site *s, float *residual); /* puts the checksum there */
/* Every residual that the core's state names is here and whole. */
enum brg_status local_residuals_check(const struct brg_site *s, struct err *e) MUST_USE;
/* The checkpoint of `version` is whole and of this run; its tokens and theta's hash. */
enum brg_status local_base_verify(const struct brg_site *s, uint64_t version, bool deep,
                                  uint64_t *out_tokens, struct hash *out_theta, struct err *e)
    MUST_USE;
/* Copies the state into the snapshot and queues the writing. False: the last one is still under way. */
bool local_checkpoint_begin(struct brg_site *s, struct write_job *job);
enum brg_status local_checkpoint_write(struct brg_site *s, struct write_job *job, struct err *e)
    MUST_USE;
/* E_MISSING: there is none. */
enum brg_status local_checkpoint_read(struct brg_site *s, struct err *e) MUST_USE;
void local_sweep(struct brg_site *s, const struct write_job *checkpoint); /* lock held */

/* duty_os.c: what happens to the weights; lock held, but for the two of the writer */
/* site_duty, where it can be done now; else NONE, and what it waits for is under way. */
enum site_duty duty_next(struct brg_site *s);
bool duty_stage(struct brg_site *s); /* the weights onto the stage, for a job; false: not now */
void duty_queue(struct brg_site *s, struct write_job *job);
void duty_give_up(struct brg_site *s, const struct err *why);
enum brg_status duty_encode(struct brg_site *s, struct write_job *job, struct err *e) MUST_USE;
enum brg_status duty_shift(struct brg_site *s, struct write_job *job, struct err *e) MUST_USE;
enum brg_status duty_run(struct brg_site *s, enum site_duty duty, int *changed, struct err *e)
    MUST_USE;

/* site_os.c */
void site_core_begin(struct brg_site *s);
/* Every file that the restored state leans on, or the state is of no use. */
enum brg_status site_files_check(struct brg_site *s, struct err *e) MUST_USE;
/* What every connection of this site is opened with. */
struct client_options site_client_options(const struct brg_site *s);

#endif
