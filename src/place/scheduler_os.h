/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_os.h - the table of functions behind which a facility's scheduler stands. Shore.
 *
 *   slurm   complete: src/place/slurm_os.c
 *   local   complete: processes of this machine, with time limits and a queue; src/place/local_os.c
 *
 * Next would be PBS Pro and Flux. What they lack, or have otherwise:
 *   PBS Pro  no --test-only: probe() would have to be PLACE_ABSENT, or `qstat -T` of a queued job, so that only
 *            jobs in the queue have an estimate; job names have at most 15 characters in old releases (the
 *            name would go to -v or -l comment); the drain signal is not the scheduler's: `qsig`, or the
 *            script's own timer from PBS_WALLTIME; `qstat -x` forgets after job_history_duration.
 *   Flux     `flux submit --dry-run` checks the request and gives no time; a start estimate exists only
 *            where sched-fluxion plans ahead (`flux jobs -o {annotations.sched.t_estimate}`); names are free,
 *            `flux jobs -a --name=` finds them; --signal=USR1@2m is like Slurm's. */
#ifndef PLACE_SCHEDULER_OS_H
#define PLACE_SCHEDULER_OS_H

#include "place/agent.h"

struct scheduler_state { /* what the functions share */
    const struct place_site *site;
    char script[4200], out_dir[4200], state_dir[4200];
    int submit_lock; /* inherited by a submission: while one lives, somebody holds it */
    volatile int *stop;
};

struct scheduler {
    const char *name;
    void (*probe)(struct scheduler_state *s, const struct place_shape *shape,
                  struct place_estimate *out);
    void (*submit)(struct scheduler_state *s, const struct place_shape *shape, const char *name,
                   uint64_t after, struct place_submitted *out);
    void (*queue)(struct scheduler_state *s, struct place_jobs *out);
    /* Of jobs by their names. */
    void (*history)(struct scheduler_state *s, const char *const *names, uint32_t count,
                    uint64_t since_s, struct place_jobs *out);
    void (*cancel)(struct scheduler_state *s, uint64_t id, bool drain, struct place_said *out);
};
extern const struct scheduler scheduler_slurm, scheduler_local;

/* ---- run_os.c: one command ------------------------------------------------------------------------ */
enum { RUN_OUTPUT_MAX = 4 << 20 };
struct run_command {
    char *const *argv; /* argv[0] is found by PATH; no shell anywhere */
    char *const *envp;
    time_ns timeout_ns; /* then it is killed, by its pid */
    int keep_fd;        /* -1, or a descriptor that it inherits */
};
struct run_output {
    struct place_reply reply; /* borrows the buffers */
    struct buf out, err;
};
void run_command(const struct run_command *c, struct run_output *o); /* blocks */
void run_output_fini(struct run_output *o);

/* The environment of commands: the process's own without what would change an answer (SLURM_*, SBATCH_*, SQUEUE_*,
 * SACCT_*, SCANCEL_* apart from SLURM_CONF; LC_*, TZ), and, where `exact`, with TZ=UTC0, LC_ALL=C and
 * SLURM_TIME_FORMAT=%s. `more`: NULL-ended. Gives (free with env_free). */
char **env_make(bool exact, const char *const *more);
/* What a job is told besides: the hub (or the spool), its names, where the facility's token and CA lie. */
struct job_env {
    char hub[SITE_PATH_MAX + 64], site[128], job[128];
    char token[SITE_PATH_MAX + 32], ca[SITE_PATH_MAX + 32];
    char fabric[WIRE_FABRIC_MAX + 32];
    const char *list[7]; /* NULL-ended; points into this very struct */
};
void job_env_make(const struct place_site *site, const char *job, struct job_env *out);
void env_free(char **env);

#endif
