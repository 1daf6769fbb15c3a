/* SPDX-License-Identifier: Apache-2.0 */
/* dp.h - one model on the processes of one job (ranks): data parallel, optimizer state sharded.
 *
 * Each rank takes its part of a batch's rows. Gradients are summed while backward still runs, the
 * moments of AdamW lie in parts with the ranks, each rank updates its part of the weights, and the
 * parts are then spread to all (ZeRO stage 1, Rajbhandari et al., arXiv 1910.02054).
 *
 *   theta, grad [P]  |    bucket 0    |    bucket 1    | ... |  bucket n-1  |
 *   owner's part     | r0 | r1 | r2   | r0 | r1 | r2   |     | r0 | r1 | r2 |
 *   m, v of rank 1        |0...       |  ...           |     |    | ...  own)
 *
 * A bucket is exchanged as soon as backward has left it: every rank sends every other one its part,
 * and the owner adds what arrives in the order of ranks. This moves as many bytes as a library's
 * reduce-scatter, and the order of the sum is ours whatever the library does.
 *
 * A rank that is lost ends the process: a step that lacks a part has no meaning. What the job was
 * doing goes on from its last checkpoint; moments are saved as one vector, so any number of ranks can.
 *
 * Threads: everything here is for the one thread that owns the trainer. */
#ifndef TRAIN_DP_H
#define TRAIN_DP_H

#include "base/base.h"

enum { DP_SLOTS = 4, DP_SLOT_SWAP = DP_SLOTS, DP_SLOTS_ALL, DP_RANKS_MAX = 4096 };

/* What a rank needs of the others; by MPI (dp_os.c), or by threads in the tests. All calls are
 * collective unless they say otherwise, and must come in the same order on all ranks. */
struct dp_net {
    uint32_t rank, ranks;
    uint32_t bucket; /* elements of a bucket; 0: chosen from P */
    void *self;
    /* From rank 0 to all. idle: it may take for ever until rank 0 comes; sleeps meanwhile. */
    void (*bcast)(void *self, void *data, size_t bytes, bool idle);
    /* all[ranks][bytes] from each rank's mine[bytes]; for small things. */
    void (*allgather)(void *self, const void *mine, void *all, size_t bytes);
    /* From one rank to another; only these two call. */
    void (*send)(void *self, uint32_t to, const float *data, size_t count);
    void (*recv)(void *self, uint32_t from, float *data, size_t count);
    /* Begins to send data[at[r], at[r+1]) to each other rank r, and to receive as many elements as this
     * rank's own part has from each into parts[r * own]. at[ranks + 1], borrowed until it is done. */
    void (*exchange)(void *self, uint32_t slot, const float *data, const size_t *at, float *parts);
    /* Begins to give every rank all parts [at[r], at[r+1]) of data; the own part is there. */
    void (*spread)(void *self, uint32_t slot, float *data, const size_t *at);
    /* Begins to send count floats to one rank and to receive into_count from another, in DP_SLOT_SWAP;
     * a count of 0: nothing to do on that side. All ranks call, and the counts fit each other. */
    void (*swap)(void *self, uint32_t to, const float *data, size_t count, uint32_t from,
                 float *into, size_t into_count);
    bool (*done)(void *self, uint32_t slot); /* lets messages move; does not wait; not collective */
    void (*wait)(void *self, uint32_t slot);
    /* Ends the whole job with this status; does not return. */
    void (*abort)(void *self, int status);
    void (*close)(void *self); /* the last call */
};

/* ---- Opening (dp_os.c) --------------------------------------------------------------------------- */
/* What beringia-mpi.so exports as "beringia_mpi_open". It is built apart from the program, with the MPI
 * of the place, and so is told which dp_net it should fill. Gives 0, or a status with the reason. */
enum { DP_NET_VERSION = 2 };
typedef int dp_open_fn(uint32_t net_version, int64_t timeout_ns, struct dp_net **out, char *why,
                       size_t why_bytes);

enum dp_use { DP_AUTO, DP_YES, DP_NO };
bool dp_use_parse(const char *word, enum dp_use *out); /* auto, yes, no */
/* Gives NULL where this process is not one of many (auto: no launcher's marks in the environment, or a
 * job of one). E_MISSING: the MPI part of the program is not there; says how to build it. timeout_ns is
 * how long a rank waits for the others within a step before it gives the job up with E_RANK. */
enum brg_status dp_open(enum dp_use use, time_ns timeout_ns, struct dp_net **out, struct err *e)
    MUST_USE;
void dp_close(struct dp_net *net); /* takes NULL */

/* ---- Small things over all ranks; net may be NULL ------------------------------------------------ */
uint32_t dp_rank(const struct dp_net *net);
uint32_t dp_ranks(const struct dp_net *net);
/* The bits that are set on any rank. */
uint32_t dp_or(const struct dp_net *net, uint32_t bits);
/* The sum in the order of ranks: the same bits on all. */
double dp_sum(const struct dp_net *net, double x);
/* All ranks get the status and the text of the first rank that has failed. */
enum brg_status dp_agree(const struct dp_net *net, enum brg_status status, struct err *e) MUST_USE;
/* The rows of rank `rank` are [dp_rows_at(n, rank), dp_rows_at(n, rank + 1)) of n; there may be none. */
uint32_t dp_rows_at(const struct dp_net *net, uint32_t rows, uint32_t rank);

/* ---- Parts of a vector of P elements (dp.c, for the trainer) -------------------------------------- */
struct device;
struct dp_slot {
    bool busy;
    size_t bucket;
    size_t *at; /* [ranks + 1] */
    float *parts;
};
struct dp {
    const struct dp_net *net;
    struct device *dev;
    float *grad;
    size_t P, bucket, buckets, own; /* own: elements whose moments this rank holds */
    size_t *starts;                 /* [buckets + 1]: where a bucket's own part begins in m and v */
    struct dp_slot slots[DP_SLOTS];
    size_t left; /* buckets below this one are not on their way yet */
};
/* Gives NULL where net is NULL or of one rank. */
struct dp *dp_create(const struct dp_net *net, struct device *dev, size_t P);
void dp_destroy(struct dp *d);
size_t dp_parts_count(const struct dp *d); /* floats of one slot's `parts` */
/* The elements of rank `rank` in a bucket. */
size_t dp_part_at(const struct dp *d, size_t bucket, uint32_t rank);
/* All elements of a rank: what each of its parts m and v holds. */
size_t dp_own(const struct dp *d, uint32_t rank);
/* A gradient: begin, final (falling `from`, the last one 0), finish: own parts hold the sums. */
void dp_reduce_begin(struct dp *d);
void dp_reduce_final(void *dp, size_t from);
void dp_reduce_finish(struct dp *d);
/* Spreads the own parts of a bucket of theta; finish waits for all that are under way. */
void dp_spread(struct dp *d, float *theta, size_t bucket);
void dp_spread_finish(struct dp *d);
/* This rank's elements of theta, one after another, to out[own]; back, and then to all ranks (collective). */
void dp_theta_get(const struct dp *d, const float *theta, float *out);
void dp_theta_put(struct dp *d, float *theta, const float *in);
/* Elements [at, at + count) of a vector that lies in parts: to whole[count] on rank 0, or from it. whole
 * is of no interest on other ranks. */
void dp_collect(const struct dp *d, const float *part, size_t at, size_t count, float *whole);
void dp_scatter(const struct dp *d, float *part, size_t at, size_t count, const float *whole);

#endif
