/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - the tables of a tokenizer, its identity, and ids -> text.
 *
 * Two kinds. "bytes": id = byte, 256 ends a text; nothing to learn, nothing to load. "bpe":
 * byte-level byte pair encoding: text is split into words by a pattern (split.c), the bytes of a
 * word become ids, and neighbours are joined by the learned merges, lowest rank first (encode.c).
 *
 * The hash covers everything that encode depends on, and no formatting of a file. Tokenizers that
 * need none of what a tokenizer.json may hold beyond version 1 keep their hash of version 1: data
 * sets that were packed with them stay what they are. */
#include "data/tokenizer.h"

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

bool tokenizer_is_plain(const struct tokenizer *t) {
    AUTO_BUF struct buf have, plain;
    buf_init(&have, SIZE_MAX / 4);
    buf_init(&plain, SIZE_MAX / 4);
    struct splitter *s = splitter_create();
    splitter_add_family(s, SPLIT_QWEN2);
    splitter_describe(s, &plain);
    splitter_describe(t->splitter, &have);
    splitter_destroy(s);
    if (have.bytes_count != plain.bytes_count ||
        memcmp(have.data, plain.data, plain.bytes_count) != 0)
        return false;
    if (t->normal != NULL || t->ignore_merges || t->before_count + t->behind_count > 0)
        return false;
    const struct added_token *a = t->added;
    return t->added_count == 1 && a->id == t->eot && a->id == t->vocab - 1 && a->special &&
           !a->normalized && !a->single_word && !a->lstrip && !a->rstrip &&
           strcmp(a->content, TOKENIZER_EOT_TEXT) == 0;
}

static void put_ids(struct buf *b, const uint32_t *ids, uint32_t count) {
    buf_u32(b, count);
    for (uint32_t i = 0; i < count; i++) buf_u32(b, ids[i]);
}

/* What version 1 does not have. */
static void put_parts(const struct tokenizer *t, struct buf *b) {
    buf_u8(b, t->normal != NULL);
    buf_u8(b, t->ignore_merges);
    splitter_describe(t->splitter, b);
    put_ids(b, t->before, t->before_count);
    put_ids(b, t->behind, t->behind_count);
    buf_u32(b, t->added_count);
    for (uint32_t i = 0; i < t->added_count; i++) {
        const struct added_token *a = &t->added[i];
        buf_u32(b, a->id);
        buf_u8(b, (uint8_t)(a->special | a->single_word << 1 | a->lstrip << 2 | a->rstrip << 3 |
                            a->normalized << 4));
        buf_u32(b, a->bytes);
        buf_put(b, a->content, a->bytes);
    }
}

static struct hash content_hash(const struct tokenizer *t) {
    AUTO_BUF struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    if (tokenizer_is_plain(t)) {
        const char *pattern = split_pattern(SPLIT_QWEN2);
        buf_put(&b, "beringia tokenizer 1 bpe", strlen("beringia tokenizer 1 bpe"));
        buf_u32(&b, (uint32_t)strlen(pattern));
        buf_put(&b, pattern, strlen(pattern));
    } else {
        buf_put(&b, "beringia tokenizer 2 bpe", strlen("beringia tokenizer 2 bpe"));
        put_parts(t, &b);
    }
    buf_u32(&b, t->vocab);
    buf_u32(&b, t->eot);
    for (uint32_t i = 0; i < t->vocab; i++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, i, &n);
        buf_u32(&b, (uint32_t)n);
        buf_put(&b, p, n);
    }
    buf_u32(&b, t->merges_count);
    for (uint32_t i = 0; i < t->merges_count; i++) {
        buf_u32(&b, t->merges[i].left);
        buf_u32(&b, t->merges[i].right);
        buf_u32(&b, t->merges[i].id);
    }
    CHECK(!b.overflow);
    return hash_of(b.data, b.bytes_count);
}

static enum brg_status build_pairs(struct tokenizer *t, struct err *e) {
    pair_table_init(&t->pairs, t->merges_count);
    for (uint32_t i = 0; i < t->merges_count; i++) {
        const struct merge *m = &t->merges[i];
        if (m->id == t->eot)
            return err_set(e, BRG_E_TOKENIZER,
                           "model.merges[%u] makes the token that ends a text; use another file",
                           i);
        if (!pair_table_put(&t->pairs, m->left, m->right, i, m->id))
            return err_set(e, BRG_E_TOKENIZER,
                           "model.merges[%u] is there twice; restore the original file", i);
    }
    return BRG_OK;
}

/* Special tokens first: where two become one by the normalizer, the earlier counts. */
static void build_added(struct tokenizer *t) {
    AUTO_BUF struct buf text;
    buf_init(&text, SIZE_MAX / 4);
    t->raw = added_set_create();
    t->normalized = added_set_create();
    for (int special = 1; special >= 0; special--)
        for (uint32_t i = 0; i < t->added_count; i++) {
            const struct added_token *a = &t->added[i];
            if (a->special != (special == 1)) continue;
            buf_reset(&text);
            if (a->normalized && t->normal != NULL)
                normal_put(t->normal, a->content, a->bytes, &text);
            else
                buf_put(&text, a->content, a->bytes);
            added_set_put(a->normalized ? t->normalized : t->raw, (const char *)text.data,
                          text.bytes_count, a);
        }
}

enum brg_status tokenizer_complete(struct tokenizer *t, struct err *e) {
    TRY(build_pairs(t, e));
    build_added(t);
    t->hash = content_hash(t);
    return BRG_OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (t == NULL) return;
    splitter_destroy(t->splitter);
    normal_destroy(t->normal);
    mem_free(t->token_at);
    buf_fini(&t->token_text);
    mem_free(t->merges);
    mem_free(t->pairs.slots);
    if (t->whole != NULL) string_set_fini(t->whole);
    mem_free(t->whole);
    mem_free(t->whole_ids);
    for (uint32_t i = 0; i < t->added_count; i++) mem_free(t->added[i].content);
    mem_free(t->added);
    added_set_destroy(t->raw);
    added_set_destroy(t->normalized);
    mem_free(t->before);
    mem_free(t->behind);
    buf_fini(&t->source);
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

void tokenizer_around(const struct tokenizer *t, const uint32_t **out_before,
                      uint32_t *out_before_count, const uint32_t **out_behind,
                      uint32_t *out_behind_count) {
    *out_before = t->before;
    *out_before_count = t->before_count;
    *out_behind = t->behind;
    *out_behind_count = t->behind_count;
}

/* ---- Decode
 * ------------------------------------------------------------------------------------- */
enum brg_status tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count,
                                 struct buf *out_text, struct err *e) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= t->vocab)
            return err_set(e, BRG_E_TOKENIZER,
                           "id %u is not below the vocabulary's size %u; these "
                           "ids were made with another tokenizer",
                           ids[i], t->vocab);
        if (t->bytes_kind) {
            if (ids[i] == t->eot)
                buf_put(out_text, TOKENIZER_EOT_TEXT, strlen(TOKENIZER_EOT_TEXT));
            else
                buf_u8(out_text, (uint8_t)ids[i]);
            continue;
        }
        size_t n;
        const uint8_t *p = tokenizer_token(t, ids[i], &n);
        if (n == 0)
            return err_set(e, BRG_E_TOKENIZER,
                           "id %u stands for nothing in this vocabulary; these ids were made with "
                           "another tokenizer",
                           ids[i]);
        buf_put(out_text, p, n);
    }
    if (out_text->overflow)
        return err_set(e, BRG_E_LIMIT,
                       "the text of %zu ids is longer than %zu bytes; decode fewer "
                       "ids at a time",
                       count, out_text->bytes_max);
    return BRG_OK;
}
