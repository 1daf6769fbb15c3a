/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - text -> ids.
 *
 *   text --(with a normalizer: ill-formed parts become U+FFFD)--> added tokens cut out
 *        --> pieces --form C--> normalized added tokens cut out --> pieces --split.c--> words --> ids
 *
 * With SPECIAL_AS_TEXT encode never makes the end-of-text id, whatever the text says: what ends a
 * document is decided by whoever cuts the documents, not by their content.
 *
 * Speed: English repeats its words, so most words come from a cache: one table of 64-byte entries,
 * addressed by the word's hash, a newer word simply replacing an older one. It needs no
 * bookkeeping, has a fixed size, and is right by construction because an entry holds the whole
 * word.
 *
 * Invariants
 *   (D4) decode(encode(x)) = x for every sequence of bytes x, where the tokenizer has no normalizer
 *        and its splitter keeps every byte; each word is covered by its ids in any case.
 *   (D5) Every id that encode gives is below vocab, and with SPECIAL_AS_TEXT it is not the end of
 *        text. */
#include "data/tokenizer.h"
#include "data/utf8.h"

enum { CACHE_WORD_BYTES = 30, CACHE_IDS = 8, CACHE_BITS_MAX = 15, CACHE_BITS_MIN = 8 };

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
    size_t ids_cap, word_bytes_max;
    struct buf repaired, formed; /* scratch: a text, a piece of it */
    struct buf *out;             /* of the run at work */
    bool special, limit;
};

struct encoder *encoder_create(const struct tokenizer *t, size_t text_bytes_expected) {
    struct encoder *n = mem_alloc(1, sizeof *n);
    n->t = t;
    n->word_bytes_max = WORD_BYTES_MAX_DEFAULT;
    buf_init(&n->repaired, SIZE_MAX / 4);
    buf_init(&n->formed, SIZE_MAX / 4);
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
    buf_fini(&n->repaired);
    buf_fini(&n->formed);
    mem_free(n->cache);
    mem_free(n->ids);
    mem_free(n);
}

void encoder_word_bytes_max(struct encoder *n, size_t bytes) {
    n->word_bytes_max = bytes;
}

static void ids_put(struct buf *out, const uint32_t *ids, size_t count) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    buf_put(out, ids, count * sizeof *ids);
#else
    for (size_t i = 0; i < count; i++) buf_u32(out, ids[i]);
#endif
}

/* Ids of a word into n->ids. */
static size_t word_ids(struct encoder *n, const char *word, size_t bytes) {
    const struct tokenizer *t = n->t;
    if (bytes > n->ids_cap) {
        mem_free(n->ids);
        n->ids_cap = bytes < 256 ? 256 : bytes;
        n->ids = mem_alloc(n->ids_cap, sizeof *n->ids);
    }
    if (t->whole != NULL) {
        uint32_t found = string_set_find(t->whole, word, bytes);
        if (found != TOKEN_NONE) {
            n->ids[0] = t->whole_ids[found];
            return 1;
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = t->byte_id[(uint8_t)word[i]];
        if (id != TOKEN_NONE) n->ids[count++] = id;
    }
    if (count <
        bytes) { /* bytes that no text has, and this vocabulary lacks: U+FFFD for the word */
        static const char INSTEAD[] = "\xef\xbf\xbd";
        for (count = 0; count < 3; count++) n->ids[count] = t->byte_id[(uint8_t)INSTEAD[count]];
        return tokenizer_merge(t, n->ids, count);
    }
    count = tokenizer_merge(t, n->ids, bytes);
    size_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(n->ids[i] < t->vocab);                   /* D5 */
        covered += tokenizer_text_bytes(t, n->ids[i]); /* 0 for the end of text */
    }
    CHECK(covered == bytes); /* D4 */
    return count;
}

static void encode_word(struct encoder *n, const char *word, size_t bytes) {
    struct cached *c = NULL;
    if (bytes <= CACHE_WORD_BYTES) {
        c = &n->cache[bytes_hash(word, bytes) >> (64 - n->cache_bits)];
        if (c->bytes_count == bytes && memcmp(c->word, word, bytes) == 0) {
            ids_put(n->out, c->ids, c->ids_count);
            return;
        }
    }
    size_t count = word_ids(n, word, bytes);
    ids_put(n->out, n->ids, count);
    if (c != NULL && count <= CACHE_IDS) {
        c->bytes_count = (uint8_t)bytes;
        c->ids_count = (uint8_t)count;
        memcpy(c->word, word, bytes);
        memcpy(c->ids, n->ids, count * sizeof *c->ids);
    }
}

/* A "word" without an end (a gigabyte of one letter) is cut, to bound the merge's memory. */
static void take_word(const char *word, size_t bytes, void *user) {
    struct encoder *n = user;
    for (; bytes > n->word_bytes_max; word += n->word_bytes_max, bytes -= n->word_bytes_max)
        encode_word(n, word, n->word_bytes_max);
    encode_word(n, word, bytes);
}

static void encode_words(struct encoder *n, const char *text, size_t bytes) {
    if (bytes > 0 && !words_each(&n->words, text, bytes, take_word, n)) n->limit = true;
}

typedef void piece_fn(struct encoder *n, const char *text, size_t bytes);

/* Cuts the set's tokens out; the pieces between them go to fn. */
static void cut_added(struct encoder *n, const struct added_set *set, const char *text,
                      size_t bytes, piece_fn *fn) {
    struct added_walk w = {.text = text, .bytes = bytes, .special = n->special};
    const struct added_token *token;
    size_t at = 0, begin, end;
    while (added_next(set, &w, &token, &begin, &end)) {
        if (at < begin) fn(n, text + at, begin - at);
        ids_put(n->out, &token->id, 1);
        at = end;
    }
    if (at < bytes) fn(n, text + at, bytes - at);
}

static void encode_formed(struct encoder *n, const char *text, size_t bytes) {
    if (added_set_empty(n->t->normalized))
        encode_words(n, text, bytes);
    else
        cut_added(n, n->t->normalized, text, bytes, encode_words);
}

static void encode_piece(struct encoder *n, const char *text, size_t bytes) {
    const struct normal *f = n->t->normal;
    if (f == NULL || normal_is_plain(f, text, bytes)) {
        encode_formed(n, text, bytes);
        return;
    }
    buf_reset(&n->formed);
    normal_put(f, text, bytes, &n->formed);
    encode_formed(n, (const char *)n->formed.data, n->formed.bytes_count);
}

enum brg_status encoder_run(struct encoder *n, const char *text, size_t bytes,
                            enum tokenizer_special special, struct buf *out_ids, struct err *e) {
    n->out = out_ids;
    n->special = special == SPECIAL_AS_IDS;
    n->limit = false;
    if (n->t->bytes_kind) {
        for (size_t i = 0; i < bytes; i++) buf_u32(out_ids, (uint8_t)text[i]);
    } else {
        if (n->t->normal != NULL && utf8_prefix(text, bytes) != bytes) {
            buf_reset(&n->repaired);
            utf8_repair(text, bytes, &n->repaired);
            text = (const char *)n->repaired.data;
            bytes = n->repaired.bytes_count;
        }
        cut_added(n, n->t->raw, text, bytes, encode_piece);
    }
    if (n->limit)
        return err_set(e, BRG_E_LIMIT,
                       "field pre_tokenizer: a pattern takes too many steps on a text of %zu "
                       "bytes; cut the text into smaller documents, or use a tokenizer with a "
                       "simpler pattern",
                       bytes);
    if (out_ids->overflow)
        return err_set(e, BRG_E_LIMIT,
                       "the ids of a text of %zu bytes need more than %zu bytes of "
                       "memory; cut the text into smaller documents",
                       bytes, out_ids->bytes_max);
    return BRG_OK;
}

enum brg_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes,
                                 enum tokenizer_special special, struct buf *out_ids,
                                 struct err *e) {
    struct encoder *n = encoder_create(t, bytes);
    enum brg_status s = encoder_run(n, text, bytes, special, out_ids, e);
    encoder_destroy(n);
    return s;
}
