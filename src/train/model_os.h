/* SPDX-License-Identifier: Apache-2.0 */
/* model_os.h - a model as files, beyond what train.h offers. */
#ifndef TRAIN_MODEL_OS_H
#define TRAIN_MODEL_OS_H

#include "train/train.h"

/* Weights of one safetensors file by its path: a Hugging Face file, or a run's checkpoint, whose
 * "outer.m" and "ledger" are passed over. theta[P] may be half written on failure. */
enum brg_status model_load_file(const char *path, const struct model_config *c, float *theta,
                                struct err *e) MUST_USE;
/* Writes dir/config.json and dir/model.safetensors (F32), each replaced as a whole. */
enum brg_status model_save(const char *dir, const struct model_config *c, const float *theta,
                           struct err *e) MUST_USE;

#endif
