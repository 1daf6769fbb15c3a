/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_parts.h - the small fields of a tokenizer.json: everything but vocabulary and merges.
 * Inside of the data room; pure. Every error names the field, and what is supported there. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include "data/json.h"
#include "data/tokenizer.h"

/* A field that is absent, null, false or "" counts as not set. */
bool json_unset(const json_t *v);
enum brg_status parts_normalizer(const struct json_place *w, const json_t *v, struct tokenizer *t)
    MUST_USE;
enum brg_status parts_pre_tokenizer(const struct json_place *w, const json_t *v,
                                    struct tokenizer *t) MUST_USE;
enum brg_status parts_decoder(const struct json_place *w, const json_t *v) MUST_USE;
/* v: the list; fills t->added, without a look at the vocabulary. */
enum brg_status parts_added(const struct json_place *w, const json_t *v, struct tokenizer *t)
    MUST_USE;
/* Ids must be below `vocab`. */
enum brg_status parts_post_processor(const struct json_place *w, const json_t *v, uint32_t vocab,
                                     struct tokenizer *t) MUST_USE;
/* The model's fields other than vocab and merges; sets ignore_merges. */
enum brg_status parts_model(const struct json_place *w, const json_t *v, struct tokenizer *t)
    MUST_USE;

#endif
