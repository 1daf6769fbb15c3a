/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h - manifest.json and the head of a shard. Inside of the data room; pure. */
#ifndef DATA_MANIFEST_H
#define DATA_MANIFEST_H

#include "data/data.h"

enum {
    MANIFEST_VERSION = 1,
    MANIFEST_BYTES_MAX = 1 << 26,
    SHARD_HEAD_BYTES = 64,
    SHARDS_MAX = 100000, /* of a half: five digits in the file's name */
    SOURCES_MAX = 1000000,
    SHARD_NAME_BYTES = 32
};
#define SAMPLES_MAX (UINT64_C(1) << 48)
#define TOKENS_MAX (UINT64_C(1) << 52)

enum half { HALF_TRAIN, HALF_HELDOUT, HALF_COUNT };
extern const char *const HALF_NAMES[HALF_COUNT]; /* "train", "heldout" */

struct shard_entry {
    uint64_t samples;
    struct hash hash; /* of the file */
};
struct source_entry {
    char *name; /* the file's name without its directory */
    uint64_t bytes;
    struct hash hash;
};
struct half_entry {
    uint64_t documents, samples, tokens, tokens_dropped;
    uint64_t text_bytes; /* behind the tokens that samples predict */
    struct shard_entry *shards;
    uint32_t shards_count, shards_cap;
};
struct manifest {
    uint32_t seq_len, vocab, token_bytes;
    bool tokenizer_bytes; /* kind "bytes", else "bpe" */
    struct hash tokenizer_hash;
    uint64_t order_seed;
    double heldout_share;
    struct half_entry half[HALF_COUNT];
    struct source_entry *sources;
    uint32_t sources_count, sources_cap;
};
void manifest_fini(struct manifest *m); /* takes zeroed structs too */
struct shard_entry *manifest_shard_add(struct manifest *m, enum half half);
struct source_entry *manifest_source_add(struct manifest *m, const char *name);

/* name stands in error texts. On failure *out is zeroed. */
enum brg_status manifest_parse(const char *name, const void *json, size_t bytes,
                               struct manifest *out, struct err *e) MUST_USE;
void manifest_write(const struct manifest *m, struct buf *out);
struct hash manifest_fingerprint(const struct manifest *m);

/* ---- Shards
 * ------------------------------------------------------------------------------------- */
const char *shard_name(char out[SHARD_NAME_BYTES], enum half half, uint32_t index);
uint32_t shard_token_bytes(uint32_t vocab);                /* 2 where every id fits, else 4 */
uint64_t shard_tokens(uint64_t samples, uint32_t seq_len); /* s*T+1, or 0 */
void shard_head_encode(uint32_t token_bytes, uint64_t samples, uint64_t tokens,
                       uint8_t out[SHARD_HEAD_BYTES]);
/* Head (its bytes may be all that data has) and size of a shard against what the manifest says. */
enum brg_status shard_check(const char *name, const void *data, size_t bytes,
                            const struct manifest *m, uint64_t samples, struct err *e) MUST_USE;
/* Hash of the bytes and every id, after shard_check: at once, or in pieces of which the first has at least the
 * head, and all hold whole tokens. */
struct shard_scan {
    struct hasher hasher;
    uint64_t tokens, bad; /* bad: the first id beyond the vocabulary; UINT64_MAX: none yet */
    uint32_t bad_id;
    bool begun;
};
void shard_scan_begin(struct shard_scan *s);
void shard_scan_add(struct shard_scan *s, const struct manifest *m, const void *data, size_t bytes);
enum brg_status shard_scan_end(struct shard_scan *s, const char *name, const struct manifest *m,
                               const struct hash *want, struct err *e) MUST_USE;
enum brg_status shard_verify(const char *name, const void *data, size_t bytes,
                             const struct manifest *m, const struct hash *want, struct err *e)
    MUST_USE;

#endif
