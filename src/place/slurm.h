/* SPDX-License-Identifier: Apache-2.0 */
/* slurm.h - what Slurm's commands print, as values. Pure.
 *
 * Every function takes what one command left behind (struct place_reply) and gives a class and values;
 * what it has not seen before is PLACE_STRANGE with the text, never a guess. The callers run the commands
 * with TZ=UTC0, LC_ALL=C and SLURM_TIME_FORMAT=%s, so that times are seconds since 1970; older or
 * configured dialects that print ISO times are read as UTC for that reason, and a time with its own zone
 * as it says.
 *
 * Sources: the formats were recorded from Slurm 22.05 (test/slurm/fixtures, by test/slurm/record), the
 * texts of other versions are those of slurm_errno.c and of job_will_run's print in 17.11 to 25.11. */
#ifndef PLACE_SLURM_H
#define PLACE_SLURM_H

#include "base/base.h"
#include "place/place.h"

enum slurm_reason { /* why a job waits: `squeue %r` */
                    SLURM_REASON_WAITS =
                        0, /* priority, resources, begin time, dependency: it will run */
                    SLURM_REASON_LIMITED, /* a limit that frees itself when other jobs end */
                    SLURM_REASON_STUCK,   /* it will not start until somebody changes something */
                    SLURM_REASON_STRANGE, /* not known; treated as waiting, and shown */
};

/* `sbatch --test-only`. */
void slurm_probe_parse(const struct place_reply *r, struct place_estimate *out);
/* `sbatch --parsable`, and the sentence without it: out->job where FINE. */
void slurm_submit_parse(const struct place_reply *r, struct place_submitted *out);
/* `squeue -h -o SLURM_QUEUE_FORMAT`. One bad line makes the whole of it STRANGE: what cannot be read must
 * not look like an empty queue. A name may hold line ends: what follows a job's line and does not begin
 * with "job|" belongs to its name. */
#define SLURM_QUEUE_FORMAT "job|%i|%T|%r|%S|%e|%V|%l|%D|%P|%j"
void slurm_queue_parse(const struct place_reply *r, struct place_jobs *out);
/* `sacct -X -n -P --name=... -o SLURM_HISTORY_FORMAT`: only names of ours, which hold nothing odd. E.g. "accounting storage is disabled" is PLACE_ABSENT. */
#define SLURM_HISTORY_FORMAT "JobID,State,ExitCode,Submit,Start,End,NNodes,JobName"
void slurm_history_parse(const struct place_reply *r, struct place_jobs *out);
/* `scancel`: FINE also where the job is over already. */
void slurm_cancel_parse(const struct place_reply *r, struct place_said *out);
/* One line of `scontrol -o show job`: the same values by their names. */
void slurm_job_parse(const struct place_reply *r, struct place_jobs *out);
/* `scontrol show config`: those that matter here; 0 where absent. */
struct slurm_config {
    struct place_said said;
    uint64_t min_job_age_s, message_timeout_s;
    bool accounting;
    char version[32], cluster[64];
};
void slurm_config_parse(const struct place_reply *r, struct slurm_config *out);
/* "slurm-wlm 22.05.8", "slurm 23.02.1-1": year and month; false where it is no version. */
bool slurm_version_parse(const char *text, uint32_t *out_year, uint32_t *out_month);

enum slurm_reason slurm_reason_class(const char *reason);
/* A time of one of the forms above; *out = 0 for "N/A", "Unknown", "None" and their like. */
bool slurm_time_parse(const char *text, int64_t *out_s);
/* "10", "10:00", "1:00:00", "2-00", "2-03:04:05": seconds. UINT64_MAX: no limit. 0: not set. */
bool slurm_span_parse(const char *text, uint64_t *out_s);

#endif
