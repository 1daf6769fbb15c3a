/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - an open data set. Inside of the data room. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "data/manifest.h"
#include "data/map.h"

struct shards {
    struct map *maps;
    uint64_t *first; /* [count + 1] number of the shard's first sample; the last one is the count */
    uint32_t count;
};
struct dataset {
    struct manifest manifest;
    struct tokenizer *tokenizer;
    struct hash fingerprint;
    struct shards half[HALF_COUNT];
    char *dir;
};
/* A mapped shard is shorter than it was, or holds an id that no check would have let through: ends the process. */
_Noreturn void dataset_altered(const struct dataset *d, enum half half, uint32_t shard);

#endif
