/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.h - a machine with a backfilling queue in virtual time, fed by a job trace.
 *
 * First come first served with EASY backfilling (Lifka 1995): the first waiting job has a reservation at
 * the earliest moment when, by the limits of what runs, its nodes are free; later jobs may start now
 * where they do not delay it. The trace goes round when it ends. Estimates are made as slurmctld makes
 * them for `sbatch --test-only`: when the job fits if running jobs end at their limits, plus the
 * node-minutes of what waits over the machine's nodes. Pure. */
#ifndef PLACE_CLUSTER_H
#define PLACE_CLUSTER_H

#include "place/swf.h"

struct cluster;
/* offset_s: the moment of the trace that is time 0 here; warm_s of the trace before it are run first.
 * Borrows the trace. nodes: 0 for the trace's processors; larger jobs of the trace are cut to it. */
struct cluster *cluster_create(const struct swf_trace *trace, double nodes, double offset_s,
                               double warm_s);
void cluster_destroy(struct cluster *c);
double cluster_nodes(const struct cluster *c);
/* Our own job; id: the caller's, not 0. It runs to its limit unless cluster_end comes before. */
void cluster_submit(struct cluster *c, uint64_t id, double nodes, double limit_s);
void cluster_end(struct cluster *c, uint64_t id);
double cluster_estimate(const struct cluster *c, double nodes, double limit_s);
size_t cluster_queued(const struct cluster *c);
/* The moment of the next event: a job ends, or one arrives. */
double cluster_next(const struct cluster *c);
/* Goes on until `until`, or to the start of one of our jobs: true, with its id. */
bool cluster_advance(struct cluster *c, double until, uint64_t *out_id);

#endif
