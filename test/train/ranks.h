/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - the ranks of a job as threads of one process: a dp_net without MPI. */
#ifndef TEST_TRAIN_RANKS_H
#define TEST_TRAIN_RANKS_H

#include "train/dp.h"

/* Runs body(ctx, net) as `ranks` threads, each with its net, and returns when all have ended.
 * bucket: elements exchanged at once (0: chosen from the model). */
void ranks_run(uint32_t ranks, uint32_t bucket, void (*body)(void *ctx, struct dp_net *net),
               void *ctx);

#endif
