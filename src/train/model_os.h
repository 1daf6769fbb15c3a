/* SPDX-License-Identifier: Apache-2.0 */
/* model_os.h - a model as files, beyond what train.h offers. */
#ifndef TRAIN_MODEL_OS_H
#define TRAIN_MODEL_OS_H

#include "train/train.h"

/* The model of a Hugging Face directory: its config.json into *c; where c is given already (--model),
 * both must mean the same model, and the directory may lack the file. */
enum brg_status model_load_dir(const char *dir, struct model_config *c, bool given, struct err *e)
    MUST_USE;
/* The set holds every tensor of the model in its shape, as F32, BF16 or F16, and no other; a run's
 * checkpoint may have tensors of its own beside them. Errors name file and tensor. */
enum brg_status model_check_set(const struct tensor_set *s, const struct model_config *c,
                                struct err *e) MUST_USE;

/* Reads weights piece by piece as f32, whatever they are in the file; keeps the last file open. */
enum { WEIGHTS_PIECE = 1 << 16 };
struct weights_reader {
    const struct tensor_file *file; /* borrowed */
    int fd;
    uint8_t *raw;
};
void weights_reader_init(struct weights_reader *r);
void weights_reader_fini(struct weights_reader *r);
/* Elements [at, at+n) of t, n <= WEIGHTS_PIECE. E_NONFINITE names the first that is not finite. */
enum brg_status weights_read(struct weights_reader *r, const struct tensor_file *f,
                             const struct tensor *t, uint64_t at, size_t n, float *out,
                             struct err *e) MUST_USE;
/* Writes dir/config.json and dir/model.safetensors (F32), each replaced as a whole. */
enum brg_status model_save(const char *dir, const struct model_config *c, const float *theta,
                           struct err *e) MUST_USE;

#endif
