/* SPDX-License-Identifier: Apache-2.0 */
/* eval.h - the held-out loss: one loop for the trainer, the evaluation command and whoever compares
 * runs, so that all figures mean the same. */
#ifndef TRAIN_EVAL_H
#define TRAIN_EVAL_H

#include "data/data.h"
#include "train/train.h"

struct eval_result {
    uint64_t samples, tokens; /* tokens predicted: samples * T */
    double nll;               /* mean negative log likelihood of a token, in nats */
    double perplexity;        /* e^nll */
    double bits_per_byte;     /* of the text behind the tokens; 0 where its size is unknown */
};
/* Over all held-out samples, in order. The trainer's sequence length must be the data set's, and its
 * vocabulary not smaller. E_MANIFEST where there is no held-out sample. Runs for as long as it takes. */
enum brg_status eval_heldout(struct trainer *t, const struct dataset *d, struct eval_result *out,
                             struct err *e) MUST_USE;
/* The same over rows of T+1 ids each, all below the model's vocab_size; bits_per_byte stays 0. */
void eval_rows(struct trainer *t, const int32_t *tokens, uint64_t rows, struct eval_result *out);

#endif
