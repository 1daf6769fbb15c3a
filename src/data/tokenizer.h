/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - inside of the tokenizers: shared by tokenizer*.c and pack_os.c only.
 *
 *   text --added.c: added tokens cut out--> pieces --normal.c: form C--> pieces --split.c: steps-->
 *        words --encode.c: cache, merges by rank--> ids
 *
 *   tokenizer.c        the tables, decode                encode.c             text -> ids
 *   tokenizer_merge.c  one word -> ids                   tokenizer_train.c    texts -> merges
 *   tokenizer_json.c   tokenizer.json: vocabulary,       tokenizer_parts.c    its other fields
 *                      merges; writing                   tokenizer_os.c       files
 *   alphabet.c         GPT-2's letters for bytes */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include <string.h>

#include "data/added.h"
#include "data/data.h"
#include "data/normal.h"
#include "data/split.h"

enum {
    TOKENIZER_VOCAB_MAX = 1 << 20,
    TOKENIZER_JSON_BYTES_MAX = 1 << 27,
    TOKENIZER_MERGES_MAX = 1 << 22,
    TOKENIZER_TOKEN_BYTES_MAX = 4096, /* of one vocabulary entry */
    TOKENIZER_VOCAB_MIN = TOKENIZER_BYTES_VOCAB
};
#define TOKENIZER_EOT_TEXT "<|endoftext|>"
#define TOKEN_NONE UINT32_MAX

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

/* What a tokenizer is made of; whoever makes one fills this. All is owned. */
struct tokenizer {
    bool bytes_kind;
    uint32_t vocab, eot; /* eot: TOKEN_NONE where no token ends a text */
    /* The rest is empty for the bytes tokenizer. */
    struct splitter *splitter;
    struct normal *normal; /* NULL: texts are taken as they come, byte for byte */
    uint32_t byte_id[256]; /* TOKEN_NONE for bytes that UTF-8 never has, where they are missing */
    uint32_t *token_at;    /* [vocab + 1] offsets into token_text; empty: an id that stands for
                              nothing */
    struct buf token_text;
    struct merge *merges; /* by rank */
    uint32_t merges_count;
    struct pair_table pairs;
    bool ignore_merges;       /* a word that is an entry of the vocabulary is that entry */
    struct string_set *whole; /* those entries but the end of text, where ignore_merges is set */
    uint32_t *whole_ids;
    struct added_token *added;
    uint32_t added_count;
    struct added_set *raw, *normalized;
    uint32_t *before, *behind; /* the post-processor's ids around a text */
    uint32_t before_count, behind_count;
    struct buf source; /* the file it was read from; empty where it was trained */
    struct hash hash;
};
/* Completes a tokenizer whose fields up to behind_count are set: tables, added sets, hash. On failure
 * t is still the caller's. */
enum brg_status tokenizer_complete(struct tokenizer *t, struct err *e) MUST_USE;
static inline const uint8_t *tokenizer_token(const struct tokenizer *t, uint32_t id,
                                             size_t *out_bytes) {
    *out_bytes = t->token_at[id + 1] - t->token_at[id];
    return t->token_text.data + t->token_at[id];
}
/* Bytes of text that id stands for: 0 for the end of text. id < vocab. */
uint32_t tokenizer_text_bytes(const struct tokenizer *t, uint32_t id);
/* Form and splitter as they were before other kinds were read: such a tokenizer keeps its hash. */
bool tokenizer_is_plain(const struct tokenizer *t);

/* Applies the merges to ids[0..count) in place, lowest rank first; gives the new count. Takes a
 * heap only for words longer than MERGE_SHORT_MAX. */
enum { MERGE_SHORT_MAX = 64 };
size_t tokenizer_merge(const struct tokenizer *t, uint32_t *ids, size_t count);

/* An encoder keeps the cache of words warm from one text to the next. One thread at a time. */
enum { WORD_BYTES_MAX_DEFAULT = 1 << 24 };
struct encoder;
struct encoder *encoder_create(const struct tokenizer *t, size_t text_bytes_expected);
enum brg_status encoder_run(struct encoder *n, const char *text, size_t bytes,
                            enum tokenizer_special special, struct buf *out_ids, struct err *e)
    MUST_USE;
/* For tests: longer words are cut, to bound the memory that one word can ask for. */
void encoder_word_bytes_max(struct encoder *n, size_t bytes);
void encoder_destroy(struct encoder *n);

/* ---- The alphabet: a byte as a printable character, for vocabulary files ------------------------
 */
enum { ALPHABET_CHARS = 0x144 };
struct alphabet {
    uint16_t of_byte[256];
    int16_t of_char[ALPHABET_CHARS]; /* -1 where it is no letter of the alphabet */
};
void alphabet_init(struct alphabet *a);
void alphabet_put(const struct alphabet *a, const uint8_t *p, size_t n, struct buf *out);
/* Appends the bytes that the text spells; false, and nothing appended, where it has other letters. */
bool alphabet_get(const struct alphabet *a, const char *text, size_t n, struct buf *out);

/* ---- JSON --------------------------------------------------------------------------------------
 * */
/* name stands in error texts. Keeps a copy of the text. */
enum brg_status tokenizer_parse(const char *name, const void *json, size_t bytes,
                                struct tokenizer **out, struct err *e) MUST_USE;
/* What was read is written as it was read, byte for byte. */
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
