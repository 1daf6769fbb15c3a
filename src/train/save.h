/* SPDX-License-Identifier: Apache-2.0 */
/* save.h - a training under way as one file: from it, training goes on with the same bits as if it had
 * not been interrupted (same program, same settings, same number of ranks; with another number of
 * ranks the sums have another order, and only the last bits differ).
 *
 *   safetensors: weights [P], adamw.m [P], adamw.v [P], sha256 [32] of all bytes before it
 *   metadata:    format, settings, samples, step, adamw_steps
 *
 * There is no other state: the order of samples follows from their position, the learning rate from
 * the tokens done, and the generator of the first weights is of no use any more.
 *
 * Both calls are collective where the trainer has other ranks; rank 0 alone touches the file. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "train/train.h"

enum { SAVE_SETTINGS_MAX = 4096 };
struct save_mark {
    uint64_t samples, step; /* done */
};
/* Replaces path as a whole, durably. settings: lines "key=value", all that must be equal to go on. */
enum brg_status save_write(const char *path, struct trainer *t, const struct save_mark *mark,
                           const char *settings, struct err *e) MUST_USE;
/* E_MISSING: there is none, and nothing is changed. E_CHECKPOINT: other settings (names the first that
 * differs), or another model. E_CORRUPT: its bytes do not have their hash. */
enum brg_status save_read(const char *path, struct trainer *t, struct save_mark *out,
                          const char *settings, struct err *e) MUST_USE;

#endif
