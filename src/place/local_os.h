/* SPDX-License-Identifier: Apache-2.0 */
/* local_os.h - scheduler: local. Jobs are processes of this machine, each under a supervisor of its own that
 * outlives the agent: it waits for its turn, keeps the time limit, sends the drain signal.
 *
 * Files of a job in STATE/local: NAME.job (what was asked for; its creation is the submission), NAME.lock (held
 * by the supervisor while it lives), NAME.run (when it began), NAME.end (how it ended); slot.K is held
 * by a job that runs. */
#ifndef PLACE_LOCAL_OS_H
#define PLACE_LOCAL_OS_H

#include "base/base.h"

/* The supervisor's whole life; the hidden command `beringia agent --local-job DIR NAME SCRIPT OUT`. Gives the
 * exit status. */
int local_job_main(const char *dir, const char *name, const char *script, const char *out);

#endif
