/* SPDX-License-Identifier: Apache-2.0 */
/* agent_os.h - the agent as a process: one lock, one file of state, one command at a time. Shore. */
#ifndef PLACE_AGENT_OS_H
#define PLACE_AGENT_OS_H

#include "base/base.h"

struct agent_run_options {
    const char *site_file;
    bool once;          /* all that is due now, then end; for cron */
    volatile int *stop; /* set by a signal */
    uint64_t seed;      /* 0: from the system */
};
/* Runs until it is told to stop, or (once) until nothing is due. E_BUSY: another agent has the state; E_CONFIG: the
 * site file; E_CORRUPT: the state; E_REFUSED: the hub keeps another run than before. */
enum brg_status agent_run(const struct agent_run_options *o, struct err *e) MUST_USE;

#endif
