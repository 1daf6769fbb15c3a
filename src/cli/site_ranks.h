/* SPDX-License-Identifier: Apache-2.0 */
/* site_ranks.h - one site on many ranks: rank 0 runs cmd_site.c and speaks to the hub; the others do what
 * it tells them. Rank 0 tells all of them one thing at a time (a broadcast), and what is told is then
 * done by all together:
 *
 *   SETUP    the run, its model, the data's fingerprint     build the trainer; all or none
 *   STEP     samples, rate, AdamW's count                   gradient and update; who was asked to stop?
 *   PING     -                                              who was asked to stop?
 *   WEIGHTS  -                                              rank 0's weights to all
 *   GET, PUT a stretch of a moment                          to rank 0, or from it
 *   MEMORY   -                                              what is left of an earlier job in memory?
 *   RECALL   number of a generation                         into all trainers
 *   TAKE     was a generation taken?                        memory for this job; moments to zero where not
 *   KEEP     the moment and the site's books                begin a generation
 *   END      status                                         leave; the run's memory may go
 *
 * So only the training thread of each process calls MPI, and a rank that is only waiting sleeps.
 * Everything here works with net NULL too: then there are no others to tell. */
#ifndef CLI_SITE_RANKS_H
#define CLI_SITE_RANKS_H

#include <signal.h>

#include "data/data.h"
#include "train/dp.h"
#include "train/memory.h"
#include "train/train.h"

struct rank_setup { /* what SETUP carries, beside the model's JSON */
    uint64_t seq_len, batch, model_bytes;
    struct adamw adamw;
    uint64_t optimizer; /* enum optimizer */
    struct muon muon;
    struct hash fingerprint;
    struct id128 run;
    char site[MEMORY_SITE_MAX];
};

struct rank_words { /* the same on all ranks: the command line */
    const char *data_dir;
    uint64_t micro, threads;
    enum precision precision;
    bool recompute;
    const char *memory_dir; /* NULL: nothing is kept in memory */
    uint32_t memory_generations;
};

struct ranks {          /* a rank's share of the site's training */
    struct dp_net *net; /* NULL: alone */
    const struct rank_words *words;
    const volatile sig_atomic_t *stop; /* this rank was asked to stop */
    struct rank_setup setup;
    struct model_config model;
    struct trainer *trainer;
    struct dataset *data;  /* of the other ranks; rank 0's samples come through the library */
    int32_t *tokens;       /* [this rank's rows][seq_len + 1] */
    struct memory *memory; /* NULL: nothing is kept in memory */
    bool memory_removed;   /* the run's memory is not needed any more */
};

void ranks_fini(struct ranks *r); /* but not net */

/* ---- Rank 0 -------------------------------------------------------------------------------------- */
enum brg_status ranks_setup(struct ranks *r, const struct rank_setup *setup, const char *model_json,
                            struct err *e) MUST_USE;
/* One optimizer step over count samples. fill writes seq_len + 1 tokens of a sample; BRG_E_NONFINITE: loss or
 * gradient is not finite, and nothing changed. stop: some rank was asked to; busy: a generation in memory is
 * not whole yet on some rank. */
struct rank_result {
    double loss, norm;
    bool stop, busy;
};
/* gradient: no step; the gradient is then in trainer_grad, whole. */
enum brg_status ranks_step(struct ranks *r, const uint64_t *samples, uint64_t count, bool gradient,
                           double lr, int fill(void *user, uint64_t sample, int32_t *tokens),
                           void *user, struct rank_result *out, struct err *e) MUST_USE;
void ranks_ping(struct ranks *r, struct rank_result *out); /* stop and busy alone */
void ranks_weights(struct ranks *r);
/* brg_trainer's move_array; user is struct ranks *, arrays are MOMENT_M and MOMENT_V. */
void ranks_move(void *user, size_t array, uint64_t at, uint64_t count, float *values,
                int into_trainer);
/* removes: what is kept in memory is not needed any more. */
void ranks_end(struct ranks *r, int status, bool removes);

/* What the ranks keep in memory: memory.h, told to all of them. Between ranks_setup and brg_join. */
enum brg_status ranks_memory(struct ranks *r, struct err *e) MUST_USE;
enum brg_status ranks_recall(struct ranks *r, uint32_t i, struct memory_recalled *out,
                             struct err *e) MUST_USE;
/* recalled: the trainers hold a generation. */
enum brg_status ranks_take(struct ranks *r, bool recalled, struct err *e) MUST_USE;
/* Not while the last result said busy. */
void ranks_keep(struct ranks *r, const struct memory_moment *moment, const void *books, size_t n);

/* ---- The others ---------------------------------------------------------------------------------- */
/* Until END; gives the status that the site ends with. */
int ranks_follow(struct ranks *r);

#endif
