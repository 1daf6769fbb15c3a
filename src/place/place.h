/* SPDX-License-Identifier: Apache-2.0 */
/* place.h - the face of placement: how jobs of a run get on to a facility's queue.
 *
 *   site.yaml --sitefile--> what may be asked for      (shapes, budget, etiquette)
 *   slurm.h, local_os.h     what the scheduler says    (a table of functions: struct scheduler)
 *   agent.h                 what to do next            (pure: orders in, actions out)
 *   outbox.h                what was done              (a journal that outlives the process)
 *   courier_os.h            files for nodes without a network
 *
 * This header has the values that all of them share. Times are seconds since 1970, UTC; 0 is unknown. */
#ifndef PLACE_PLACE_H
#define PLACE_PLACE_H

#include "base/base.h"

enum {
    PLACE_NAME_MAX = 48,  /* of a shape, NUL included */
    PLACE_TEXT_MAX = 200, /* of a scheduler's sentence */
    PLACE_JOBNAME_MAX = 64,
    PLACE_JOBS_MAX = 1024, /* jobs of this user that one look takes */
};

enum place_class {
    PLACE_FINE = 0,
    PLACE_NEVER = 1,   /* this request will never run here: the shape is wrong */
    PLACE_NOT_NOW = 2, /* cannot run now; later perhaps (nodes down, partition drained, ...) */
    PLACE_DENIED = 3,  /* this user may not: account, QOS, group, reservation */
    PLACE_LIMIT = 4,   /* a limit of this user's that other jobs' ends will free */
    PLACE_BUSY = 5,    /* the scheduler takes no more just now */
    PLACE_AWAY =
        6, /* the scheduler did not answer: nothing is known, a submission may have taken place */
    PLACE_OURS = 7,    /* the user's own file, option or environment is wrong */
    PLACE_ABSENT = 8,  /* this facility does not have that (accounting) */
    PLACE_STRANGE = 9, /* not understood: the text says what was seen */
};
const char *place_class_name(enum place_class c);     /* "fine", "never", ... */
const char *place_class_sentence(enum place_class c); /* what it means for the request */

struct place_reply { /* what a command left behind; borrowed */
    int rc;          /* exit status; -1: killed by a signal */
    bool timed_out;  /* killed by us, at our own deadline */
    const char *out, *err;
    size_t out_bytes, err_bytes;
};

struct place_said {
    enum place_class class_;
    char text[PLACE_TEXT_MAX]; /* the line that decided; printable, no line ends */
};

struct place_estimate {
    struct place_said said;
    uint64_t job, processors;
    int64_t start_s;
    bool preempts, hetjob;
    char nodes[PLACE_TEXT_MAX], partition[64], cluster[64];
};

struct place_submitted {
    struct place_said said;
    uint64_t job;
    char cluster[64];
};

enum place_state {
    PLACE_JOB_PENDING = 1,
    PLACE_JOB_RUNNING = 2,   /* also configuring, stopping: it holds nodes */
    PLACE_JOB_SUSPENDED = 3, /* holds its place; may go on */
    PLACE_JOB_DONE = 4,      /* ended by itself with 0 */
    PLACE_JOB_FAILED = 5,    /* ended by itself, not with 0; out of memory; boot or node failure */
    PLACE_JOB_TIMEOUT = 6,
    PLACE_JOB_CANCELLED = 7,
    PLACE_JOB_PREEMPTED = 8,
};
const char *place_state_name(enum place_state s); /* "pending", ... */
static inline bool place_state_over(enum place_state s) {
    return s >= PLACE_JOB_DONE;
}

struct place_job {
    uint64_t id;
    bool array; /* several tasks behind one line */
    enum place_state state;
    uint32_t exit_code, nodes;
    int64_t submit_s, start_s, end_s; /* of a pending job: as the scheduler expects */
    uint64_t limit_s;
    char reason[96];
    char name[PLACE_JOBNAME_MAX]; /* cut where longer: ours never are */
};

struct place_jobs {
    struct place_said said;
    uint32_t count;
    struct place_job *jobs; /* PLACE_JOBS_MAX of them, the caller's; NULL: only count */
};

#endif
