/* SPDX-License-Identifier: Apache-2.0 */
/* successor.h - one job of a site follows another while the first still runs: the newer one leaves a mark in the state
 * directory, which both share, and waits for the lock; the older one sees the mark, hands in, and leaves. */
#ifndef CLI_SUCCESSOR_H
#define CLI_SUCCESSOR_H

#include "base/base.h"

/* Asks whoever trains with this state directory to leave. Failing is no harm: the older job ends at its limit. */
void successor_ask(const char *state_dir);
/* Does somebody wait? One look at the file system; call it seldom. */
bool successor_waits(const char *state_dir);
/* By whoever has the lock now: marks of before are not for it. */
void successor_clear(const char *state_dir);

#endif
