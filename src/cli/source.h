/* SPDX-License-Identifier: Apache-2.0 */
/* source.h - which model a command means: a version of a run, or a directory as Hugging Face lays it out. */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

#include "base/os.h"
#include "store/store.h"

struct model_source {
    bool run;                  /* else a directory with config.json */
    uint64_t version;          /* of the run */
    char dir[OS_PATH_MAX];     /* as it was given */
    char config[OS_PATH_MAX];  /* RUN/model.json or DIR/config.json */
    char weights[OS_PATH_MAX]; /* for tensor_set_open: a file, or DIR */
};

/* version: a number, "head" (the version that the run goes on from), or NULL: "head" of a run, and the
 * only choice for a directory. A run's journal says which version is the head; of a run that was copied
 * without its journal it is the newest version there. The hub may be running. */
enum brg_status cli_model_source(const char *dir, const char *version, struct model_source *out,
                                 struct err *e) MUST_USE;

/* The mean of the weights (outer.ema) of a run's version, in place of its weights. Into theta, P floats in model order;
 * and as a set in which the parameters' names stand at the mean's places. E_MISSING: the run keeps none. */
enum brg_status cli_ema_load(const struct model_source *s, uint64_t parameters, float *theta,
                             struct err *e) MUST_USE;
enum brg_status cli_ema_set(const struct model_source *s, struct tensor_set *set, struct err *e)
    MUST_USE;

#endif
