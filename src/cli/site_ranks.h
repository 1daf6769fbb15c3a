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
 *   END      status                                         leave
 *
 * So only the training thread of each process calls MPI, and a rank that is only waiting sleeps.
 * Everything here works with net NULL too: then there are no others to tell. */
#ifndef CLI_SITE_RANKS_H
#define CLI_SITE_RANKS_H

#include <signal.h>

#include "data/data.h"
#include "train/dp.h"
#include "train/train.h"

struct rank_setup { /* what SETUP carries, beside the model's JSON */
    uint64_t seq_len, batch, model_bytes;
    struct adamw adamw;
    uint64_t optimizer; /* enum optimizer */
    struct muon muon;
    struct hash fingerprint;
};

struct rank_words { /* the same on all ranks: the command line */
    const char *data_dir;
    uint64_t micro, threads;
    enum precision precision;
    bool recompute;
};

struct ranks {          /* a rank's share of the site's training */
    struct dp_net *net; /* NULL: alone */
    const struct rank_words *words;
    const volatile sig_atomic_t *stop; /* this rank was asked to stop */
    struct rank_setup setup;
    struct model_config model;
    struct trainer *trainer;
    struct dataset *data; /* of the other ranks; rank 0's samples come through the library */
    int32_t *tokens;      /* [this rank's rows][seq_len + 1] */
};

void ranks_fini(struct ranks *r); /* but not net */

/* ---- Rank 0 -------------------------------------------------------------------------------------- */
enum brg_status ranks_setup(struct ranks *r, const struct rank_setup *setup, const char *model_json,
                            struct err *e) MUST_USE;
/* One optimizer step over count samples. fill writes seq_len + 1 tokens of a sample; BRG_E_NONFINITE: loss or
 * gradient is not finite, and nothing changed. out_stop: some rank was asked to stop. */
struct rank_result {
    double loss, norm;
    bool stop;
};
enum brg_status ranks_step(struct ranks *r, const uint64_t *samples, uint64_t count, double lr,
                           int fill(void *user, uint64_t sample, int32_t *tokens), void *user,
                           struct rank_result *out, struct err *e) MUST_USE;
bool ranks_ping(struct ranks *r); /* was some rank asked to stop? */
void ranks_weights(struct ranks *r);
/* brg_trainer's move_array; user is struct ranks *, arrays are MOMENT_M and MOMENT_V. */
void ranks_move(void *user, size_t array, uint64_t at, uint64_t count, float *values,
                int into_trainer);
void ranks_end(struct ranks *r, int status);

/* ---- The others ---------------------------------------------------------------------------------- */
/* Until END; gives the status that the site ends with. */
int ranks_follow(struct ranks *r);

#endif
