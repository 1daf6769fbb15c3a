/* SPDX-License-Identifier: Apache-2.0 */
/* export.h - a model leaves: as a directory in Hugging Face's form, or as a GGUF file for llama.cpp.
 *
 * Weights are streamed piece by piece from wherever they lie, so memory does not grow with the model. */
#ifndef TRAIN_EXPORT_H
#define TRAIN_EXPORT_H

#include <jansson.h>

#include "train/train.h"

/* What goes out beside the weights: the token ids with a meaning, and the tokenizer. */
struct export_words {
    json_t *tokenizer; /* tokenizer.json; NULL where there is none */
    json_t *ids; /* bos_token_id, eos_token_id, pad_token_id: as in config.json; may be empty */
};
void export_words_fini(struct export_words *w);
/* Where ids lacks eos_token_id: the text's end mark of the tokenizer, <|endoftext|> or its like, becomes
 * bos, eos and pad. */
void export_words_complete(struct export_words *w);

struct export {
    const struct tensor_set *set;
    const struct model_config
        *model;                  /* NULL: the tensors as they are, of a trainer of somebody's own */
    const struct tensors *table; /* what is written, in order; names and shapes */
    const struct export_words *words;
    enum tensor_type type; /* of the matrices; GGUF keeps vectors F32 */
    uint64_t shard_bytes;  /* a new file begins where one would become larger */
    const char *name;      /* of the model, for people */
    const char *version;   /* of the run; NULL where it is none */
    /* result */
    uint64_t files_count, data_bytes;
    bool verified; /* a run's checkpoint: what was read has the hash that the checkpoint names */
};
/* Fills dir, which exists and is empty. Every file is synced. E_NONFINITE: a number does not fit into
 * the type; E_CORRUPT: the checkpoint is not what was written once. */
enum brg_status export_hf(struct export *x, const char *dir, struct err *e) MUST_USE;
/* Writes one file, which must not exist, and syncs it. Needs x->model and a tokenizer. */
enum brg_status export_gguf(struct export *x, const char *path, struct err *e) MUST_USE;

/* ---- Inside ---------------------------------------------------------------------------------- */
/* The tokenizer as llama.cpp reads it. E_TOKENIZER names what llama.cpp cannot do. Pure. */
enum brg_status export_gguf_words(struct gguf *g, const struct export_words *w, uint32_t vocab_size,
                                  struct err *e) MUST_USE;
void export_gguf_model(struct gguf *g, const struct export *x);
/* model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight. The name must be one of model_tensors. */
void export_gguf_name(const char *name, char out[TENSOR_NAME_MAX]);
/* tokenizer.json of the tokenizer of plain bytes: 256 letters, no merges, <|endoftext|> as 256. */
json_t *export_bytes_tokenizer(void);
/* config.json, generation_config.json, tokenizer_config.json. */
void export_config_json(const struct export *x, struct buf *out);
void export_generation_json(const struct export *x, struct buf *out);
void export_tokenizer_config_json(const struct export *x, struct buf *out);

#endif
