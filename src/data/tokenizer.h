/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - inside of the tokenizers: shared by tokenizer*.c and pack_os.c only.
 *
 *   text --split.c: valid UTF-8 runs, pattern--> words --tokenizer.c: cache, merges by rank--> ids
 *
 *   tokenizer.c        the tables, encode, decode        tokenizer_merge.c  one word -> ids
 *   split.c            text -> words                     tokenizer_train.c  texts -> merges
 *   tokenizer_json.c   tokenizer.json both ways          tokenizer_os.c     files */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include <string.h>

#include "data/data.h"

enum {
    TOKENIZER_VOCAB_MAX = 1 << 20,
    TOKENIZER_JSON_BYTES_MAX = 1 << 27,
    TOKENIZER_TOKEN_BYTES_MAX = 4096, /* of one vocabulary entry */
    TOKENIZER_VOCAB_MIN = TOKENIZER_BYTES_VOCAB
};
#define TOKENIZER_EOT_TEXT "<|endoftext|>"
#define TOKEN_NONE UINT32_MAX

/* ---- Splitting ---------------------------------------------------------------------------------
 * */
/* The patterns that are understood, by name; only "qwen2" so far. */
const char *split_pattern(const char *name);               /* NULL where unknown */
const char *split_name(const char *pattern, size_t bytes); /* the other way; NULL where unknown */

struct splitter; /* a compiled pattern; may be shared by threads */
struct splitter *splitter_create(const char *name);
void splitter_destroy(struct splitter *s);

/* Walks over text, word by word; words follow each other without gaps and cover every byte. Bytes
 * that are no UTF-8 come as words of their own, one a maximal run. */
struct words {
    const struct splitter *splitter;
    void *match;      /* pcre2_match_data */
    const char *text; /* borrowed */
    size_t bytes, at;
    size_t run_end; /* up to here the text is valid UTF-8 */
    bool shortcut;  /* plain words without PCRE2; tests compare with and without */
};
void words_init(struct words *w, const struct splitter *s);
void words_start(struct words *w, const char *text, size_t bytes);
bool words_next(struct words *w, const char **out, size_t *out_bytes);
void words_fini(struct words *w);
/* Length of the longest prefix that is well-formed UTF-8 (as PCRE2 wants it). */
size_t utf8_prefix(const char *text, size_t bytes);

/* ---- Tables ------------------------------------------------------------------------------------
 * */
struct merge {
    uint32_t left, right, id;
};

/* (left, right) -> rank of the merge; open addressing, never more than half full. */
struct pair_slot {
    uint64_t key; /* left << 32 | right; UINT64_MAX where free */
    uint32_t rank, id;
};
struct pair_table {
    struct pair_slot *slots;
    uint32_t bits;
};
void pair_table_init(struct pair_table *p, size_t pairs_max);
bool pair_table_put(struct pair_table *p, uint32_t left, uint32_t right, uint32_t rank,
                    uint32_t id); /* false where the pair is there already */
static inline const struct pair_slot *pair_table_find(const struct pair_table *p, uint32_t left,
                                                      uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    uint64_t mask = (UINT64_C(1) << p->bits) - 1;
    for (uint64_t i = (key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - p->bits);; i = (i + 1) & mask) {
        if (p->slots[i].key == key) return &p->slots[i];
        if (p->slots[i].key == UINT64_MAX) return NULL;
    }
}

struct tokenizer {
    bool bytes_kind;
    uint32_t vocab, eot;
    /* The rest is empty for the bytes tokenizer. */
    const char *pattern_name;
    struct splitter *splitter;
    uint32_t byte_id[256];
    uint32_t *token_at; /* [vocab + 1] offsets into token_text; the end-of-text token is its text */
    struct buf token_text;
    struct merge *merges; /* by rank */
    uint32_t merges_count;
    struct pair_table pairs;
    struct hash hash;
};
/* Takes merges and the content of *token_text and token_at; byte_id is copied. Builds tables and
 * hash. */
enum brg_status tokenizer_create(const char *pattern_name, uint32_t vocab, uint32_t eot,
                                 const uint32_t byte_id[256], uint32_t *token_at,
                                 struct buf *token_text, struct merge *merges,
                                 uint32_t merges_count, struct tokenizer **out, struct err *e)
    MUST_USE;
static inline const uint8_t *tokenizer_token(const struct tokenizer *t, uint32_t id,
                                             size_t *out_bytes) {
    *out_bytes = t->token_at[id + 1] - t->token_at[id];
    return t->token_text.data + t->token_at[id];
}
/* Bytes of text that id stands for: 0 for the end of text. id < vocab. */
uint32_t tokenizer_text_bytes(const struct tokenizer *t, uint32_t id);

/* Applies the merges to ids[0..count) in place, lowest rank first; gives the new count. Takes a
 * heap only for words longer than MERGE_SHORT_MAX. */
enum { MERGE_SHORT_MAX = 64 };
size_t tokenizer_merge(const struct tokenizer *t, uint32_t *ids, size_t count);

/* An encoder keeps the cache of words warm from one text to the next. One thread at a time. */
struct encoder;
struct encoder *encoder_create(const struct tokenizer *t, size_t text_bytes_expected);
enum brg_status encoder_run(struct encoder *n, const char *text, size_t bytes, struct buf *out_ids,
                            struct err *e) MUST_USE;
void encoder_destroy(struct encoder *n);

/* ---- JSON --------------------------------------------------------------------------------------
 * */
/* name stands in error texts. */
enum brg_status tokenizer_parse(const char *name, const void *json, size_t bytes,
                                struct tokenizer **out, struct err *e) MUST_USE;
enum brg_status tokenizer_write(const struct tokenizer *t, struct buf *out, struct err *e) MUST_USE;

/* ---- A set of byte strings, numbered in the order they came
 * ------------------------------------- */
static inline uint64_t bytes_hash(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = n * UINT64_C(0x9e3779b97f4a7c15), x;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&x, p, 8);
        h = (h ^ x) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 29;
    }
    x = 0;
    for (size_t i = 0; i < n; i++) x |= (uint64_t)p[i] << (8 * i);
    h = (h ^ x) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 32);
}
struct string_set {
    uint32_t *slots; /* index + 1; 0 where free */
    uint32_t bits, count, count_cap;
    uint64_t *at; /* [count_cap + 1] offsets into text */
    struct buf text;
};
void string_set_init(struct string_set *s, size_t text_bytes_max);
void string_set_fini(struct string_set *s);
uint32_t string_set_find(const struct string_set *s, const void *data,
                         size_t n);                                        /* or TOKEN_NONE */
uint32_t string_set_add(struct string_set *s, const void *data, size_t n); /* finds or adds */

#endif
