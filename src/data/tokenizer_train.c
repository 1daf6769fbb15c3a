/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_train.c - texts -> merges.
 *
 * The pair of neighbouring symbols that is most frequent over all words becomes one new symbol,
 * until the vocabulary is full. Words are counted once and merges worked on the different words
 * only; a pair knows the words it may be in, and a heap knows the most frequent pair. Counts in
 * the heap may be too high, since a pair that lost occurrences stays where it is and is put back
 * when it comes up: the usual lazy heap, exact because a count that grew is always pushed anew.
 *
 * Deterministic: equal counts go to the pair with the smaller left id, then right id, and counts do
 * not depend on the order of the texts. */
#include "data/tokenizer.h"

enum {
    WORD_BYTES_MAX = 256, /* longer ones (base64, rulers) teach nothing and are left out */
    WORDS_MAX = 1 << 26
};
#define WORD_TEXT_BYTES_MAX ((size_t)1 << 34)

struct pair {
    uint32_t left, right;
    uint64_t count;
    uint32_t *words; /* where it was seen; may name a word twice, or one that lost it */
    uint32_t words_count, words_cap;
    bool grown; /* its count grew in the merge at work */
};

struct entry {
    uint64_t count;
    uint32_t left, right, pair;
};

struct learn {
    struct string_set words, tokens;
    uint64_t *counts; /* of words */
    uint32_t counts_cap;
    uint32_t *symbols; /* of all words; word i has lengths[i] from starts[i] on */
    uint64_t *starts;
    uint32_t *lengths;
    struct pair *pairs;
    uint32_t pairs_count, pairs_cap;
    uint32_t *slots; /* pair index + 1 by hash of (left, right) */
    uint32_t slots_bits;
    struct entry *heap;
    size_t heap_count, heap_cap;
    uint32_t *grown; /* pairs to push when the merge is through */
    uint32_t grown_count, grown_cap;
    struct merge *merges;
    uint32_t merges_count, merges_cap;
};

static void learn_fini(struct learn *l) {
    string_set_fini(&l->words);
    string_set_fini(&l->tokens);
    for (uint32_t i = 0; i < l->pairs_count; i++) mem_free(l->pairs[i].words);
    mem_free(l->counts);
    mem_free(l->symbols);
    mem_free(l->starts);
    mem_free(l->lengths);
    mem_free(l->pairs);
    mem_free(l->slots);
    mem_free(l->heap);
    mem_free(l->grown);
    mem_free(l->merges);
}

/* ---- The heap: the entry that comes first is on top
 * --------------------------------------------- */
static bool entry_before(const struct entry *a, const struct entry *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void heap_push(struct learn *l, uint32_t pair) {
    if (l->heap_count == l->heap_cap) {
        size_t cap = l->heap_cap == 0 ? 1024 : l->heap_cap * 2;
        l->heap = mem_grow(l->heap, l->heap_cap, cap, sizeof *l->heap);
        l->heap_cap = cap;
    }
    const struct pair *p = &l->pairs[pair];
    struct entry x = {.count = p->count, .left = p->left, .right = p->right, .pair = pair};
    size_t i = l->heap_count++;
    for (; i > 0 && entry_before(&x, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = x;
}

static struct entry heap_pop(struct learn *l) {
    struct entry top = l->heap[0], last = l->heap[--l->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= l->heap_count) break;
        if (child + 1 < l->heap_count && entry_before(&l->heap[child + 1], &l->heap[child]))
            child++;
        if (!entry_before(&l->heap[child], &last)) break;
        l->heap[i] = l->heap[child];
        i = child;
    }
    l->heap[i] = last;
    return top;
}

/* ---- Pairs
 * -------------------------------------------------------------------------------------- */
static uint32_t *pair_slot(const struct learn *l, uint32_t left, uint32_t right) {
    uint64_t mask = (UINT64_C(1) << l->slots_bits) - 1;
    for (uint64_t i = mix64((uint64_t)left << 32 | right) & mask;; i = (i + 1) & mask) {
        uint32_t v = l->slots[i];
        if (v == 0 || (l->pairs[v - 1].left == left && l->pairs[v - 1].right == right))
            return &l->slots[i];
    }
}

static void pairs_grow(struct learn *l) {
    uint32_t cap = l->pairs_cap == 0 ? 4096 : l->pairs_cap * 2;
    l->pairs = mem_grow(l->pairs, l->pairs_cap, cap, sizeof *l->pairs);
    l->pairs_cap = cap;
    mem_free(l->slots);
    l->slots_bits = 64 - (uint32_t)__builtin_clzll((uint64_t)cap * 2 - 1);
    l->slots = mem_alloc((size_t)1 << l->slots_bits, sizeof *l->slots);
    for (uint32_t i = 0; i < l->pairs_count; i++)
        *pair_slot(l, l->pairs[i].left, l->pairs[i].right) = i + 1;
}

static uint32_t pair_get(struct learn *l, uint32_t left, uint32_t right) {
    uint32_t *slot = pair_slot(l, left, right);
    if (*slot != 0) return *slot - 1;
    if (l->pairs_count == l->pairs_cap) {
        pairs_grow(l);
        slot = pair_slot(l, left, right);
    }
    l->pairs[l->pairs_count] = (struct pair){.left = left, .right = right};
    *slot = ++l->pairs_count;
    return l->pairs_count - 1;
}

static void pair_seen(struct learn *l, uint32_t pair, uint32_t word) {
    struct pair *p = &l->pairs[pair];
    if (p->words_count > 0 && p->words[p->words_count - 1] == word) return;
    if (p->words_count == p->words_cap) {
        uint32_t cap = p->words_cap == 0 ? 4 : p->words_cap * 2;
        p->words = mem_grow(p->words, p->words_cap, cap, sizeof *p->words);
        p->words_cap = cap;
    }
    p->words[p->words_count++] = word;
}

static void pair_grown(struct learn *l, uint32_t pair) {
    if (l->pairs[pair].grown) return;
    l->pairs[pair].grown = true;
    if (l->grown_count == l->grown_cap) {
        uint32_t cap = l->grown_cap == 0 ? 256 : l->grown_cap * 2;
        l->grown = mem_grow(l->grown, l->grown_cap, cap, sizeof *l->grown);
        l->grown_cap = cap;
    }
    l->grown[l->grown_count++] = pair;
}

static void grown_push(struct learn *l) {
    for (uint32_t i = 0; i < l->grown_count; i++) {
        l->pairs[l->grown[i]].grown = false;
        heap_push(l, l->grown[i]);
    }
    l->grown_count = 0;
}

/* Adds the pairs of a word to the counts. only is a symbol: pairs without it are known to name this
 * word already; TOKEN_NONE for all. */
static void word_count_in(struct learn *l, uint32_t word, uint32_t only) {
    const uint32_t *y = l->symbols + l->starts[word];
    for (uint32_t i = 0; i + 1 < l->lengths[word]; i++) {
        uint32_t p = pair_get(l, y[i], y[i + 1]);
        l->pairs[p].count += l->counts[word];
        if (only != TOKEN_NONE && y[i] != only && y[i + 1] != only) continue;
        pair_seen(l, p, word);
        pair_grown(l, p);
    }
}

static void word_count_out(struct learn *l, uint32_t word) {
    const uint32_t *y = l->symbols + l->starts[word];
    for (uint32_t i = 0; i + 1 < l->lengths[word]; i++) {
        struct pair *p = &l->pairs[pair_get(l, y[i], y[i + 1])];
        CHECK(p->count >= l->counts[word]);
        p->count -= l->counts[word];
    }
}

static bool word_has(const struct learn *l, uint32_t word, uint32_t left, uint32_t right) {
    const uint32_t *y = l->symbols + l->starts[word];
    for (uint32_t i = 0; i + 1 < l->lengths[word]; i++)
        if (y[i] == left && y[i + 1] == right) return true;
    return false;
}

static void word_join(struct learn *l, uint32_t word, uint32_t left, uint32_t right, uint32_t id) {
    uint32_t *y = l->symbols + l->starts[word], n = l->lengths[word], kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n && y[i] == left && y[i + 1] == right) {
            y[kept++] = id;
            i++;
        } else {
            y[kept++] = y[i];
        }
    }
    l->lengths[word] = kept;
}

/* ---- The steps
 * ---------------------------------------------------------------------------------- */
static enum brg_status count_words(struct learn *l, const char *const *texts,
                                   const size_t *texts_bytes, size_t count, struct err *e) {
    struct splitter *splitter = splitter_create();
    splitter_add_family(splitter, SPLIT_QWEN2);
    struct words words;
    words_init(&words, splitter);
    enum brg_status s = BRG_OK;
    for (size_t i = 0; i < count && s == BRG_OK; i++) {
        const char *word;
        size_t bytes;
        words_start(&words, texts[i], texts_bytes[i]);
        while (words_next(&words, &word, &bytes)) {
            if (bytes > WORD_BYTES_MAX) continue;
            uint32_t w = string_set_add(&l->words, word, bytes);
            if (w >= l->counts_cap) {
                uint32_t cap = l->counts_cap == 0 ? 4096 : l->counts_cap * 2;
                l->counts = mem_grow(l->counts, l->counts_cap, cap, sizeof *l->counts);
                l->counts_cap = cap;
            }
            l->counts[w]++;
            if (l->words.count < WORDS_MAX) continue;
            s = err_set(e, BRG_E_LIMIT,
                        "the texts hold more than %d different words; train the "
                        "tokenizer on a part of them",
                        WORDS_MAX);
            break;
        }
    }
    words_fini(&words);
    splitter_destroy(splitter);
    return s;
}

static void start_symbols(struct learn *l) {
    uint32_t words_count = l->words.count;
    pairs_grow(l);
    l->symbols = mem_alloc(l->words.text.bytes_count, sizeof *l->symbols);
    l->starts = mem_alloc(words_count, sizeof *l->starts);
    l->lengths = mem_alloc(words_count, sizeof *l->lengths);
    for (size_t i = 0; i < l->words.text.bytes_count; i++) l->symbols[i] = l->words.text.data[i];
    for (uint32_t w = 0; w < words_count; w++) {
        l->starts[w] = l->words.at[w];
        l->lengths[w] = (uint32_t)(l->words.at[w + 1] - l->words.at[w]);
        word_count_in(l, w, TOKEN_NONE);
    }
    grown_push(l);
}

/* The id of left and right together: a new one, or the one that has these bytes already (a+bc after
 * ab+c); a vocabulary cannot hold a string twice. */
static uint32_t join_id(struct learn *l, uint32_t left, uint32_t right) {
    uint8_t text[2 * WORD_BYTES_MAX];
    const uint64_t *at = l->tokens.at;
    size_t a = (size_t)(at[left + 1] - at[left]), b = (size_t)(at[right + 1] - at[right]);
    CHECK(a + b <= sizeof text);
    memcpy(text, l->tokens.text.data + at[left], a);
    memcpy(text + a, l->tokens.text.data + at[right], b);
    return string_set_add(&l->tokens, text, a + b);
}

/* One merge; false where no pair is seen twice. */
static bool learn_step(struct learn *l) {
    struct entry top;
    for (;;) {
        if (l->heap_count == 0) return false;
        top = heap_pop(l);
        uint64_t now = l->pairs[top.pair].count;
        if (now == top.count) break;
        if (now < top.count && now > 1)
            heap_push(l, top.pair); /* a grown one is in the heap anew */
    }
    if (top.count < 2) return false;
    uint32_t id = join_id(l, top.left, top.right);
    if (l->merges_count == l->merges_cap) {
        uint32_t cap = l->merges_cap == 0 ? 1024 : l->merges_cap * 2;
        l->merges = mem_grow(l->merges, l->merges_cap, cap, sizeof *l->merges);
        l->merges_cap = cap;
    }
    l->merges[l->merges_count++] = (struct merge){.left = top.left, .right = top.right, .id = id};
    uint32_t *where = l->pairs[top.pair].words, where_count = l->pairs[top.pair].words_count;
    l->pairs[top.pair].words = NULL; /* it is in no word any more */
    l->pairs[top.pair].words_count = l->pairs[top.pair].words_cap = 0;
    for (uint32_t i = 0; i < where_count; i++) {
        if (!word_has(l, where[i], top.left, top.right)) continue;
        word_count_out(l, where[i]);
        word_join(l, where[i], top.left, top.right, id);
        word_count_in(l, where[i], id);
    }
    mem_free(where);
    CHECK(l->pairs[top.pair].count == 0);
    grown_push(l);
    return true;
}

/* Moves what was learned into a tokenizer. */
static enum brg_status learn_finish(struct learn *l, uint32_t vocab, struct tokenizer **out,
                                    struct err *e) {
    struct tokenizer *t = mem_alloc(1, sizeof *t);
    uint32_t eot = vocab - 1;
    t->vocab = vocab;
    t->eot = eot;
    t->splitter = splitter_create();
    splitter_add_family(t->splitter, SPLIT_QWEN2);
    for (uint32_t i = 0; i < 256; i++) t->byte_id[i] = i;
    t->token_at = mem_alloc((size_t)vocab + 1, sizeof *t->token_at);
    buf_init(&t->token_text, UINT32_MAX);
    buf_put(&t->token_text, l->tokens.text.data, l->tokens.text.bytes_count);
    buf_put(&t->token_text, TOKENIZER_EOT_TEXT, strlen(TOKENIZER_EOT_TEXT));
    CHECK(!t->token_text.overflow);
    for (uint32_t i = 0; i <= eot; i++) t->token_at[i] = (uint32_t)l->tokens.at[i];
    t->token_at[vocab] = (uint32_t)t->token_text.bytes_count;
    t->merges = l->merges;
    l->merges = NULL;
    t->merges_count = l->merges_count;
    t->added = mem_alloc(1, sizeof *t->added);
    t->added_count = 1;
    t->added[0] = (struct added_token){.content = mem_strdup(TOKENIZER_EOT_TEXT),
                                       .bytes = strlen(TOKENIZER_EOT_TEXT),
                                       .id = eot,
                                       .special = true};
    enum brg_status s = tokenizer_complete(t, e);
    if (s == BRG_OK)
        *out = t;
    else
        tokenizer_free(t);
    return s;
}

enum brg_status tokenizer_train(const char *const *texts, const size_t *texts_bytes, size_t count,
                                uint32_t vocab_size, struct tokenizer **out, struct err *e) {
    if (vocab_size < TOKENIZER_VOCAB_MIN || vocab_size > TOKENIZER_VOCAB_MAX)
        return err_set(e, BRG_E_USAGE, "a vocabulary of %u is outside %d..%d; choose a size there",
                       vocab_size, TOKENIZER_VOCAB_MIN, TOKENIZER_VOCAB_MAX);
    struct learn l = {0};
    string_set_init(&l.words, WORD_TEXT_BYTES_MAX);
    string_set_init(&l.tokens, UINT32_MAX);
    for (uint32_t i = 0; i < 256; i++) string_set_add(&l.tokens, &(uint8_t){(uint8_t)i}, 1);
    enum brg_status s = count_words(&l, texts, texts_bytes, count, e);
    if (s == BRG_OK) {
        start_symbols(&l);
        while (l.tokens.count + 1 < vocab_size && learn_step(&l)) continue;
        if (l.tokens.count + 1 < vocab_size)
            s = err_set(e, BRG_E_TOKENIZER,
                        "the texts hold no more than %u ids worth learning, "
                        "fewer than %u; give more text or a smaller vocabulary",
                        l.tokens.count + 1, vocab_size);
    }
    if (s == BRG_OK) s = learn_finish(&l, vocab_size, out, e);
    learn_fini(&l);
    return s;
}
