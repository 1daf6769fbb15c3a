/* SPDX-License-Identifier: Apache-2.0 */
/* server_os.h - private to the hub's shore: the server's state and what its files share.
 *
 *   http_os.c      connections, uploads, downloads        --server_step-->  server_os.c
 *   routes_os.c    which path is what                                       tick thread
 *   standby_os.c   a hub that waits for another's end                       journal_thread_os.c
 *   json_view.c    the machine's state as JSON                              merge_thread_os.c
 *   publish_os.c   versions/, retention                                     events_os.c (viewers)
 *   objects_os.c   an object store beside the blobs                         objects thread
 *   mailbox_os.c   those who come through it                                poller, workers
 *
 * One mutex, `lock`, guards everything below it; no file, no socket and no journal is touched while it
 * is held, except in a rebuild, when there is nothing else to do anyway. */
#ifndef HUB_SERVER_OS_H
#define HUB_SERVER_OS_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>

#include "base/os.h"
#include "hub/json_view.h"
#include "hub/links.h"
#include "hub/merge.h"
#include "hub/server.h"
#include "store/store.h"

struct MHD_Daemon;
struct events;
struct gate;
struct uplink;
struct objects;
struct mailbox;

enum server_mode {
    SERVER_SERVING = 0,
    SERVER_FULL = 1, /* the journal has no space: reads only, probing for space */
    SERVER_STOPPING = 2,
    SERVER_AWAY = 3, /* the journal's server is not reached: what is durable may be read, no more */
};
enum { STRIPES = 64, RECORDS_BYTES_MAX = 64 << 20, SNAPSHOT_BYTES_MAX = 512 << 20 };

struct plan_job { /* a copy of hub_plan that no rebuild can pull away */
    struct hub_plan plan;
    uint64_t generation;
};

struct waiter { /* a thread whose answer is not durable yet; lies on its stack */
    sem_t woken;
    uint64_t seq;
    int result; /* enum step_result */
    struct waiter *next;
};

struct server_times { /* of the last rounds, for status */
    time_ns merge_began, merge_ns, publish_ns, head_since;
    uint64_t merges, merges_failed, full_times, away_times, requests, uploads_bytes;
    bool merge_bad; /* the last one did not work */
};

/* Of the main thread alone: who listens, and with which certificate. */
enum { LISTENERS_OLD_MAX = 4 };
struct listening {
    int fd;
    uint32_t connections_max;
    uint32_t bad_looks; /* in a row */
    bool tls;
    struct stat cert, key; /* as they were when they were looked at last */
    char fingerprint[HASH_HEX_BYTES];
    time_ns warned;
    struct MHD_Daemon
        *old[LISTENERS_OLD_MAX]; /* with earlier certificates: their connections go on */
    int old_fd[LISTENERS_OLD_MAX];
    uint32_t old_count;
};

struct hub_server {
    struct run_dir dir;
    struct blobs *blobs;
    struct journal *journal; /* of the journal thread alone, once that runs */
    struct MHD_Daemon *http;
    struct listening listening;
    struct events *events;   /* who watches: events_os.h */
    struct gate *gate;       /* who gets in: gate_os.h */
    struct uplink *uplink;   /* to its parent: uplink_os.h; NULL: it has none */
    struct objects *objects; /* NULL: this run has no object store; objects_os.h */
    struct mailbox *mailbox; /* NULL: nobody comes through it; mailbox_os.h */
    char url[400],
        connect[128]; /* connect: "", or where it is on this machine if not at url's name */
    time_ns started;
    uint64_t
        mark; /* of this process, in the names of files that it makes: another hub may still live */
    pthread_t journal_thread, tick_thread, merge_thread;
    bool journal_runs, tick_runs, merge_runs;
    pthread_mutex_t stripes[STRIPES]; /* one upload or commit of a contribution at a time */

    pthread_mutex_t lock;
    pthread_cond_t work, tick, merge;            /* all on CLOCK_MONOTONIC */
    struct waiter *waiters_first, *waiters_last; /* by seq */
    enum server_mode mode;
    bool away; /* the journal's server is not reached; its thread tries again */
    uint32_t away_tries;
    struct hub *hub;
    struct hub_out out;
    uint64_t generation; /* grows with each rebuild; what waited for an older one is void */
    struct buf queue;    /* framed records that are not durable yet */
    uint32_t queue_count;
    uint64_t seq_queued, seq_durable;
    bool snapshot_ready;
    struct buf snapshot;
    uint64_t snapshot_seq;
    struct hash verify; /* a large head whose hash the merge thread compares first; zero: done */
    bool merge_ready;
    struct plan_job job;
    time_ns tick_at;
    struct {
        uint64_t version;
        double max;
        bool known;
    } theta_max[4]; /* of the last bases asked for */
    uint32_t theta_max_next;
    struct server_times times;
    struct hub_links links;
    struct objects_view objects_view; /* of the last look */
    struct mailbox_view mailbox_view;
    struct notify *alive; /* of the tick thread, once that runs; NULL: nobody asks */
};

enum step_result { STEP_DONE = 0, STEP_FULL = 1, STEP_STOPPING = 2, STEP_AWAY = 3 };
/* Runs one command and waits until everything it depends on is durable. out_answer may be NULL.
 * STEP_FULL, STEP_STOPPING: nothing happened, or it was undone. STEP_AWAY: nothing happened, or what
 * became of it is not known yet; the journal will say, and whoever asks again is told. */
enum step_result server_step(struct hub_server *s, const struct hub_cmd *cmd,
                             struct wire_answer *out_answer);
/* The same for the merge thread: void where the plan belongs to an older generation. */
enum step_result server_step_generation(struct hub_server *s, const struct hub_cmd *cmd,
                                        uint64_t generation);
/* Waits until what was decided so far is durable: a reader must not tell what a crash can undo. */
enum step_result server_settle(struct hub_server *s);
/* The machine's clock; under the lock. */
time_ns server_now(struct hub_server *s);

/* Where the update from its parent to a version lies; takes a finished one, and drops the oldest. */
void server_update_path(const struct hub_server *s, uint64_t version, char out[OS_PATH_MAX]);
void server_update_adopt(struct hub_server *s, const char *from, uint64_t version);
void *server_merge_main(void *server);
void *server_journal_main(void *server);
void server_start_cmd(struct hub_cmd *c); /* what begins each process, and each new term */
/* Under the lock: hands on what the last hub_step gave. */
void server_take_out(struct hub_server *s);
/* Under the lock: those whose records are durable, or all; then server_wake, with or without it. */
struct waiter *server_take_waiters(struct hub_server *s, bool all);
void server_wake(struct waiter *list, enum step_result result);
void server_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, time_ns until);
void plan_job_fini(struct plan_job *j);
void plan_job_copy(struct plan_job *to, const struct hub_plan *p, uint64_t generation);

/* What a COMMIT's blob holds, against what the message says. Other statuses than those of a damaged
 * content (E_MESSAGE, E_CORRUPT, E_NONFINITE) are faults on this side. */
struct blob_figures {
    double norm, max_abs, cos_m, theta_max;
};
enum brg_status server_inspect(struct hub_server *s, const struct wire_commit *c,
                               struct blob_figures *out, struct err *e) MUST_USE;

/* publish_os.c: links versions/, drops checkpoints beyond retention. Called at start and after merges. */
void server_publish(struct hub_server *s, uint64_t version);
void server_publish_all(struct hub_server *s);
void server_retain_all(struct hub_server *s); /* only once the head's checkpoint was verified */
/* The versions whose checkpoint is kept, oldest first: how many. Gives *out (mem_free). */
size_t server_kept(struct hub_server *s, struct hub_version_view **out);
void server_drop_blob_if_unused(struct hub_server *s, const struct hash *h);

/* http_os.c */
enum brg_status server_listen(struct hub_server *s, const char *listen, uint32_t connections_max,
                              struct err *e) MUST_USE;
void server_unlisten(struct hub_server *s);
/* The same without an address: connections come by MHD_add_connection alone, from this process. NULL: none. */
struct MHD_Daemon *server_door(struct hub_server *s, uint32_t connections_max);

pthread_mutex_t *server_stripe(struct hub_server *s, const struct id128 *did);

#endif
