/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - text <-> ids.
 *
 * Two kinds. "bytes": id = byte, 256 ends a text; nothing to learn, nothing to load. "bpe":
 * byte-level byte pair encoding: text is split into words by a pattern (split.c), the bytes of a
 * word become ids, and neighbours are joined by the learned merges, lowest rank first.
 *
 * Encode never makes the end-of-text id, whatever the text says: what ends a document is decided by
 * whoever cuts the documents, not by their content.
 *
 * Speed: English repeats its words, so most words come from a cache: one table of 64-byte entries,
 * addressed by the word's hash, a newer word simply replacing an older one. It needs no
 * bookkeeping, has a fixed size, and is right by construction because an entry holds the whole
 * word.
 *
 * The hash covers everything that encode depends on, and no formatting of a file.
 *
 * Invariants
 *   (D4) decode(encode(x)) = x for every sequence of bytes x.
 *   (D5) Every id that encode gives is below vocab and is not the end of text. */
#include "data/tokenizer.h"

enum {
    CACHE_WORD_BYTES = 30,
    CACHE_IDS = 8,
    CACHE_BITS_MAX = 15,
    CACHE_BITS_MIN = 8,
    /* A "word" without an end (a gigabyte of one letter) is cut here, to bound the merge's memory.
     * */
    WORD_BYTES_MAX = 1 << 20
};

/* ---- A set of byte strings
 * ---------------------------------------------------------------------- */
static const uint8_t *string_at(const struct string_set *s, uint32_t i, size_t *out_bytes) {
    *out_bytes = (size_t)(s->at[i + 1] - s->at[i]);
    return s->text.data + s->at[i];
}

void string_set_init(struct string_set *s, size_t text_bytes_max) {
    *s = (struct string_set){.bits = 10, .count_cap = 512};
    s->slots = mem_alloc((size_t)1 << s->bits, sizeof *s->slots);
    s->at = mem_alloc(s->count_cap + 1, sizeof *s->at);
    buf_init(&s->text, text_bytes_max);
}

void string_set_fini(struct string_set *s) {
    mem_free(s->slots);
    mem_free(s->at);
    buf_fini(&s->text);
    *s = (struct string_set){0};
}

/* The slot where the string is or would be. */
static uint32_t *string_slot(const struct string_set *s, const void *data, size_t n) {
    uint64_t mask = (UINT64_C(1) << s->bits) - 1;
    for (uint64_t i = bytes_hash(data, n) & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &s->slots[i];
        if (*slot == 0) return slot;
        size_t have;
        const uint8_t *p = string_at(s, *slot - 1, &have);
        if (have == n && (n == 0 || memcmp(p, data, n) == 0)) return slot;
    }
}

uint32_t string_set_find(const struct string_set *s, const void *data, size_t n) {
    uint32_t v = *string_slot(s, data, n);
    return v == 0 ? TOKEN_NONE : v - 1;
}

static void string_set_grow(struct string_set *s) {
    uint32_t cap = s->count_cap * 2;
    s->at = mem_grow(s->at, s->count_cap + 1, cap + 1, sizeof *s->at);
    s->count_cap = cap;
    s->bits++;
    mem_free(s->slots);
    s->slots = mem_alloc((size_t)1 << s->bits, sizeof *s->slots);
    for (uint32_t i = 0; i < s->count; i++) {
        size_t n;
        const uint8_t *p = string_at(s, i, &n);
        *string_slot(s, p, n) = i + 1;
    }
}

uint32_t string_set_add(struct string_set *s, const void *data, size_t n) {
    uint32_t *slot = string_slot(s, data, n);
    if (*slot != 0) return *slot - 1;
    if (s->count == s->count_cap) {
        string_set_grow(s);
        slot = string_slot(s, data, n);
    }
    buf_put(&s->text, data, n);
    CHECK(!s->text.overflow);
    s->at[s->count + 1] = s->text.bytes_count;
    *slot = ++s->count;
    return s->count - 1;
}

/* ---- Making
 * ------------------------------------------------------------------------------------- */
struct tokenizer *tokenizer_bytes(void) {
    struct tokenizer *t = mem_alloc(1, sizeof *t);
    t->bytes_kind = true;
    t->vocab = TOKENIZER_BYTES_VOCAB;
    t->eot = TOKENIZER_BYTES_EOT;
    static const char content[] = "beringia tokenizer 1 bytes";
    t->hash = hash_of(content, sizeof content - 1);
    return t;
}

static void hash_u32(struct hasher *h, uint32_t v) {
    uint8_t p[4];
    put_le32(p, v);
    hasher_update(h, p, sizeof p);
}

static struct hash content_hash(const struct tokenizer *t) {
    static const char start[] = "beringia tokenizer 1 bpe";
    struct hasher h;
    hasher_init(&h);
    hasher_update(&h, start, sizeof start - 1);
    const char *pattern = split_pattern(t->pattern_name);
    hash_u32(&h, (uint32_t)strlen(pattern));
    hasher_update(&h, pattern, strlen(pattern));
    hash_u32(&h, t->vocab);
    hash_u32(&h, t->eot);
    for (uint32_t i = 0; i < t->vocab; i++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, i, &n);
        hash_u32(&h, (uint32_t)n);
        hasher_update(&h, p, n);
    }
    hash_u32(&h, t->merges_count);
    for (uint32_t i = 0; i < t->merges_count; i++) {
        hash_u32(&h, t->merges[i].left);
        hash_u32(&h, t->merges[i].right);
        hash_u32(&h, t->merges[i].id);
    }
    return hasher_final(&h);
}

enum brg_status tokenizer_create(const char *pattern_name, uint32_t vocab, uint32_t eot,
                                 const uint32_t byte_id[256], uint32_t *token_at,
                                 struct buf *token_text, struct merge *merges,
                                 uint32_t merges_count, struct tokenizer **out, struct err *e) {
    struct tokenizer *t = mem_alloc(1, sizeof *t);
    t->vocab = vocab;
    t->eot = eot;
    t->pattern_name = pattern_name;
    memcpy(t->byte_id, byte_id, sizeof t->byte_id);
    t->token_at = token_at;
    t->token_text = *token_text;
    *token_text = (struct buf){0};
    t->merges = merges;
    t->merges_count = merges_count;
    pair_table_init(&t->pairs, merges_count);
    for (uint32_t i = 0; i < merges_count; i++) {
        if (!pair_table_put(&t->pairs, merges[i].left, merges[i].right, i, merges[i].id)) {
            tokenizer_free(t);
            return err_set(e, BRG_E_TOKENIZER,
                           "model.merges[%u] is there twice; restore the original file", i);
        }
    }
    t->splitter = splitter_create(pattern_name);
    t->hash = content_hash(t);
    *out = t;
    return BRG_OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (t == NULL) return;
    splitter_destroy(t->splitter);
    mem_free(t->token_at);
    buf_fini(&t->token_text);
    mem_free(t->merges);
    mem_free(t->pairs.slots);
    mem_free(t);
}

uint32_t tokenizer_vocab(const struct tokenizer *t) {
    return t->vocab;
}

uint32_t tokenizer_eot(const struct tokenizer *t) {
    return t->eot;
}

const char *tokenizer_kind(const struct tokenizer *t) {
    return t->bytes_kind ? "bytes" : "bpe";
}

struct hash tokenizer_hash(const struct tokenizer *t) {
    return t->hash;
}

uint32_t tokenizer_text_bytes(const struct tokenizer *t, uint32_t id) {
    if (id == t->eot) return 0;
    return t->bytes_kind ? 1 : t->token_at[id + 1] - t->token_at[id];
}

/* ---- Encode
 * ------------------------------------------------------------------------------------- */
struct cached {
    uint8_t bytes_count, ids_count; /* 0: free */
    char word[CACHE_WORD_BYTES];
    uint32_t ids[CACHE_IDS];
};

struct encoder {
    const struct tokenizer *t; /* borrowed */
    struct words words;
    struct cached *cache;
    uint32_t cache_bits;
    uint32_t *ids; /* scratch for one word */
    size_t ids_cap;
};

struct encoder *encoder_create(const struct tokenizer *t, size_t text_bytes_expected) {
    struct encoder *n = mem_alloc(1, sizeof *n);
    n->t = t;
    if (t->bytes_kind) return n;
    n->cache_bits = CACHE_BITS_MIN; /* a small text does not pay for clearing a large table */
    while (n->cache_bits < CACHE_BITS_MAX && (size_t)16 << n->cache_bits < text_bytes_expected)
        n->cache_bits++;
    n->cache = mem_alloc((size_t)1 << n->cache_bits, sizeof *n->cache);
    words_init(&n->words, t->splitter);
    return n;
}

void encoder_destroy(struct encoder *n) {
    if (n == NULL) return;
    words_fini(&n->words);
    mem_free(n->cache);
    mem_free(n->ids);
    mem_free(n);
}

static void ids_put(struct buf *out, const uint32_t *ids, size_t count) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    buf_put(out, ids, count * sizeof *ids);
#else
    for (size_t i = 0; i < count; i++) buf_u32(out, ids[i]);
#endif
}

static void encode_word(struct encoder *n, const char *word, size_t bytes, struct buf *out_ids) {
    struct cached *c = NULL;
    if (bytes <= CACHE_WORD_BYTES) {
        c = &n->cache[bytes_hash(word, bytes) >> (64 - n->cache_bits)];
        if (c->bytes_count == bytes && memcmp(c->word, word, bytes) == 0) {
            ids_put(out_ids, c->ids, c->ids_count);
            return;
        }
    }
    if (bytes > n->ids_cap) {
        mem_free(n->ids);
        n->ids_cap = bytes < 256 ? 256 : bytes;
        n->ids = mem_alloc(n->ids_cap, sizeof *n->ids);
    }
    for (size_t i = 0; i < bytes; i++) n->ids[i] = n->t->byte_id[(uint8_t)word[i]];
    size_t count = tokenizer_merge(n->t, n->ids, bytes), covered = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(n->ids[i] < n->t->vocab);                   /* D5 */
        covered += tokenizer_text_bytes(n->t, n->ids[i]); /* 0 for the end of text */
    }
    CHECK(covered == bytes); /* D4 */
    ids_put(out_ids, n->ids, count);
    if (c != NULL && count <= CACHE_IDS) {
        c->bytes_count = (uint8_t)bytes;
        c->ids_count = (uint8_t)count;
        memcpy(c->word, word, bytes);
        memcpy(c->ids, n->ids, count * sizeof *c->ids);
    }
}

enum brg_status encoder_run(struct encoder *n, const char *text, size_t bytes, struct buf *out_ids,
                            struct err *e) {
    if (n->t->bytes_kind) {
        for (size_t i = 0; i < bytes; i++) buf_u32(out_ids, (uint8_t)text[i]);
    } else {
        const char *word;
        size_t word_bytes;
        words_start(&n->words, text, bytes);
        while (words_next(&n->words, &word, &word_bytes)) {
            for (; word_bytes > WORD_BYTES_MAX;
                 word += WORD_BYTES_MAX, word_bytes -= WORD_BYTES_MAX)
                encode_word(n, word, WORD_BYTES_MAX, out_ids);
            encode_word(n, word, word_bytes, out_ids);
        }
    }
    if (out_ids->overflow)
        return err_set(e, BRG_E_LIMIT,
                       "the ids of a text of %zu bytes need more than %zu bytes of "
                       "memory; cut the text into smaller documents",
                       bytes, out_ids->bytes_max);
    return BRG_OK;
}

enum brg_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes,
                                 struct buf *out_ids, struct err *e) {
    struct encoder *n = encoder_create(t, bytes);
    enum brg_status s = encoder_run(n, text, bytes, out_ids, e);
    encoder_destroy(n);
    return s;
}

enum brg_status tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count,
                                 struct buf *out_text, struct err *e) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= t->vocab)
            return err_set(e, BRG_E_TOKENIZER,
                           "id %u is not below the vocabulary's size %u; these "
                           "ids were made with another tokenizer",
                           ids[i], t->vocab);
        if (ids[i] == t->eot) {
            buf_put(out_text, TOKENIZER_EOT_TEXT, strlen(TOKENIZER_EOT_TEXT));
        } else if (t->bytes_kind) {
            buf_u8(out_text, (uint8_t)ids[i]);
        } else {
            size_t n;
            const uint8_t *p = tokenizer_token(t, ids[i], &n);
            buf_put(out_text, p, n);
        }
    }
    if (out_text->overflow)
        return err_set(e, BRG_E_LIMIT,
                       "the text of %zu ids is longer than %zu bytes; decode fewer "
                       "ids at a time",
                       count, out_text->bytes_max);
    return BRG_OK;
}
