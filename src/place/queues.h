/* SPDX-License-Identifier: Apache-2.0 */
/* queues.h - where a projection's jobs wait: an idealised queue, or a replay of a job trace. Both answer
 * the same calls, so that each policy meets the same world.
 *
 * Times are seconds on the world's clock, which begins at 0. One world a thread; pure. */
#ifndef PLACE_QUEUES_H
#define PLACE_QUEUES_H

#include "place/plan.h"
#include "place/swf.h"

/* The idealised queue of one site. A job of n nodes and h hours that is submitted at t would wait
 *   exp(log(median) + c(t) + e(t) + a log(n/n0) + b log(h/h0))    seconds,
 * with n0, h0 of the site's first shape. c(t) is the congestion that all shapes share (AR(1) with the
 * given standard deviation and correlation time, plus a daily wave), e(t) is the shape's own (AR(1),
 * standard deviation `spread`, a quarter of that time). No job overtakes an older one of its own shape:
 * its start is the latest that any submission up to t would have had, so that nothing is won by
 * submitting again. The scheduler's estimate of the wait is
 *   wait * exp(log(bias) + noise * N(0,1)),
 * and none (a refusal) with the given probability. */
struct ideal_queue {
    double median_s, nodes_exponent, hours_exponent, spread;
    double congestion, congestion_s, daily; /* standard deviation, correlation time, amplitude */
    double estimate_bias, estimate_noise, refused;
};

struct world_site {
    const struct plan_site *site; /* shapes */
    struct ideal_queue ideal;
    const struct swf_trace *trace; /* NULL: the idealised queue */
    double trace_nodes;            /* of the replayed machine; 0: as the trace says */
};

struct queues;
struct queues *queues_create(const struct world_site *sites, uint32_t count, uint64_t seed);
void queues_destroy(struct queues *w);
/* What the scheduler says now of such a job: fills estimate, refusal, queue, hour. */
void queues_probe(struct queues *w, uint32_t site, uint32_t shape, struct wait_request *out);
uint64_t queues_submit(struct queues *w, uint32_t site, uint32_t shape);
/* A waiting job leaves the queue, a running one ends. */
void queues_end(struct queues *w, uint64_t job);
double queues_now(const struct queues *w);
/* Goes on to the next start of one of our jobs, or to `until` where none comes before. Gives true
 * and the job at a start. */
bool queues_advance(struct queues *w, double until, uint64_t *out_job);

#endif
