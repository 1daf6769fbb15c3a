/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers: round trips of any bytes, training and merging against naive models, hostile files.
 * */
#include "../harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static const char TEXT[] =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season "
    "of "
    "Light, it was the season of Darkness.\n\nWe'll see 1234 of them -- na\xc3\xafve caf\xc3\xa9s "
    "\xe2\x80\x94 "
    "and \xe4\xb8\xad\xe6\x96\x87 too.\r\n\t  The end of the times, of the ages, of the seasons.\n";

static struct tokenizer *trained(const char *text, size_t bytes, uint32_t vocab) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    enum brg_status s = tokenizer_train(&text, &bytes, 1, vocab, &t, &e);
    if (s != BRG_OK) fail_msg("%s", e.text);
    return t;
}

static size_t encode(const struct tokenizer *t, const void *text, size_t bytes, uint32_t *ids,
                     size_t cap) {
    struct buf out;
    struct err e = {0};
    buf_init(&out, 1 << 26);
    assert_int_equal(tokenizer_encode(t, text, bytes, SPECIAL_AS_TEXT, &out, &e), BRG_OK);
    assert_true(out.bytes_count / 4 <= cap);
    for (size_t i = 0; i < out.bytes_count / 4; i++) ids[i] = get_le32(out.data + 4 * i);
    size_t n = out.bytes_count / 4;
    buf_fini(&out);
    return n;
}

static void round_trip(const struct tokenizer *t, const void *text, size_t bytes) {
    struct buf out;
    struct err e = {0};
    buf_init(&out, 1 << 26);
    uint32_t *ids = mem_alloc(bytes + 1, sizeof *ids);
    size_t n = encode(t, text, bytes, ids, bytes);
    for (size_t i = 0; i < n; i++) {
        assert_true(ids[i] < tokenizer_vocab(t)); /* D5 */
        assert_int_not_equal(ids[i], tokenizer_eot(t));
    }
    assert_int_equal(tokenizer_decode(t, ids, n, &out, &e), BRG_OK);
    assert_int_equal(out.bytes_count, bytes);
    if (bytes > 0) assert_memory_equal(out.data, text, bytes);
    mem_free(ids);
    buf_fini(&out);
}

/* Text that is likely to hit an edge: pieces of UTF-8, broken UTF-8, blanks, marks, long runs. */
static size_t hostile(struct prng *r, uint8_t *out, size_t cap) {
    static const char *const PIECES[] = {"a",
                                         "the",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\r\n",
                                         "\t",
                                         "'s",
                                         "'LL",
                                         "'",
                                         "0",
                                         "42",
                                         "\xc3\xa9",
                                         "\xe4\xb8\xad",
                                         "\xf0\x9f\x99\x82",
                                         "\xc5\xbf",
                                         "e\xcc\x81",
                                         "\xc2\xa0",
                                         "\xe3\x80\x80",
                                         "\xc2\x85",
                                         "\xef\xbb\xbf",
                                         "<|endoftext|>",
                                         "\xff",
                                         "\xc3",
                                         "\xe4\xb8",
                                         "\xf0\x9f\x99",
                                         "\xed\xa0\x80",
                                         "\xc0\xaf",
                                         "\xf4\x90\x80\x80",
                                         "\x80",
                                         "!?",
                                         "--",
                                         "of times"};
    size_t n = 0, want = prng_below(r, cap);
    while (n < want) {
        if (prng_below(r, 10) == 0) {
            out[n++] = (uint8_t)prng_u64(r);
            continue;
        }
        const char *piece = PIECES[prng_below(r, ARRAY_COUNT(PIECES))];
        size_t times = prng_below(r, 30) == 0 ? 1 + prng_below(r, 90) : 1;
        for (; times > 0 && n + strlen(piece) <= want; times--) {
            memcpy(out + n, piece, strlen(piece));
            n += strlen(piece);
        }
        if (n + 16 > want) break;
    }
    return n;
}

TEST(tokenizer_bytes_is_the_identity) {
    struct tokenizer *t = tokenizer_bytes();
    assert_int_equal(tokenizer_vocab(t), 257);
    assert_int_equal(tokenizer_eot(t), 256);
    assert_string_equal(tokenizer_kind(t), "bytes");
    uint8_t all[256];
    uint32_t ids[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    assert_int_equal(encode(t, all, 256, ids, 256), 256);
    for (uint32_t i = 0; i < 256; i++) assert_int_equal(ids[i], i);
    round_trip(t, all, 256);
    round_trip(t, "", 0);
    struct buf out;
    struct err e = {0};
    buf_init(&out, 100);
    assert_int_equal(tokenizer_write(t, &out, &e), BRG_E_USAGE);
    tokenizer_free(t);
}

TEST(tokenizer_D4_any_bytes_come_back) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290);
    struct prng r;
    prng_seed(&r, 1);
    uint8_t text[600];
    for (int i = 0; i < 20000; i++) {
        size_t n = hostile(&r, text, sizeof text);
        round_trip(t, text, n);
    }
    for (int i = 0; i < 5000; i++) {
        size_t n = prng_below(&r, 64);
        for (size_t k = 0; k < n; k++) text[k] = (uint8_t)prng_u64(&r);
        round_trip(t, text, n);
    }
    for (int i = 0; i < 65536; i++) {
        uint8_t two[2] = {(uint8_t)(i >> 8), (uint8_t)i};
        round_trip(t, two, 2);
    }
    round_trip(t, TEXT, sizeof TEXT - 1);
    tokenizer_free(t);
}

TEST(tokenizer_D5_the_marker_in_a_text_is_no_end_of_text) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290);
    round_trip(t, TOKENIZER_EOT_TEXT, strlen(TOKENIZER_EOT_TEXT));
    struct buf out;
    struct err e = {0};
    buf_init(&out, 100);
    uint32_t eot = tokenizer_eot(t);
    assert_int_equal(eot, 289);
    assert_int_equal(tokenizer_decode(t, &eot, 1, &out, &e), BRG_OK);
    assert_string_equal(buf_cstr(&out), TOKENIZER_EOT_TEXT);
    assert_int_equal(tokenizer_text_bytes(t, eot), 0);
    uint32_t beyond = 290;
    assert_int_equal(tokenizer_decode(t, &beyond, 1, &out, &e), BRG_E_TOKENIZER);
    assert_non_null(strstr(e.text, "290"));
    buf_fini(&out);
    tokenizer_free(t);
}

/* Encodes with words cut at cut; a cut may fall anywhere. */
static void round_trip_cut(const struct tokenizer *t, const char *text, size_t bytes, size_t cut) {
    struct encoder *n = encoder_create(t, bytes);
    struct buf ids, out;
    struct err e = {0};
    buf_init(&ids, (size_t)1 << 28);
    buf_init(&out, (size_t)1 << 28);
    encoder_word_bytes_max(n, cut);
    assert_int_equal(encoder_run(n, text, bytes, SPECIAL_AS_TEXT, &ids, &e), BRG_OK);
    size_t count = ids.bytes_count / 4;
    uint32_t *list = mem_alloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) list[i] = get_le32(ids.data + 4 * i);
    assert_int_equal(tokenizer_decode(t, list, count, &out, &e), BRG_OK);
    assert_int_equal(out.bytes_count, bytes);
    assert_memory_equal(out.data, text, bytes);
    mem_free(list);
    buf_fini(&ids);
    buf_fini(&out);
    encoder_destroy(n);
}

TEST(tokenizer_long_runs_take_no_quadratic_time) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290);
    static const char *const RUNS[] = {"a", " ",    "\n", "-", "the", "\xff", "\xe4\xb8\xad",
                                       "7", "\r\n "};
    size_t bytes = (1 << 20) + 4099;
    char *text = mem_alloc(bytes, 1);
    for (size_t i = 0; i < ARRAY_COUNT(RUNS); i++) {
        for (size_t k = 0; k < bytes; k++) text[k] = RUNS[i][k % strlen(RUNS[i])];
        round_trip(t, text, bytes);
        if (i == 0) round_trip_cut(t, text, bytes, 1 << 18);
    }
    mem_free(text);
    tokenizer_free(t);
}

/* ---- Splitting
 * ----------------------------------------------------------------------------------- */
static struct splitter *splitter_of(enum split_family f) {
    struct splitter *s = splitter_create();
    splitter_add_family(s, f);
    assert_true(splitter_is_simple(s));
    assert_true(splitter_is_whole(s));
    return s;
}

static void check_words(const char *text, const char *const *want) {
    struct splitter *s = splitter_of(SPLIT_QWEN2);
    struct words w;
    const char *word;
    size_t bytes;
    words_init(&w, s);
    words_start(&w, text, strlen(text));
    for (; *want != NULL; want++) {
        assert_true(words_next(&w, &word, &bytes));
        assert_int_equal(bytes, strlen(*want));
        assert_memory_equal(word, *want, bytes);
    }
    assert_false(words_next(&w, &word, &bytes));
    words_fini(&w);
    splitter_destroy(s);
}

TEST(tokenizer_words_are_split_as_the_pattern_says) {
    check_words("Hello, world! We'll  go\n\n 12 caf\xc3\xa9s",
                (const char *const[]){"Hello", ",", " world", "!", " We", "'ll", " ", " go", "\n\n",
                                      " ", "1", "2", " caf\xc3\xa9s", NULL});
    check_words("I\xe2\x80\x99m a--b \t",
                (const char *const[]){"I", "\xe2\x80\x99m", " a", "--", "b", " \t", NULL});
    check_words("x\xff\xfey \xc3", (const char *const[]){"x", "\xff\xfe", "y", " ", "\xc3", NULL});
    check_words("", (const char *const[]){NULL});
}

static void compare_with_the_pattern(enum split_family f, int rounds) {
    struct splitter *s = splitter_of(f);
    struct words a, b;
    struct prng r;
    uint8_t text[300];
    words_init(&a, s);
    words_init(&b, s);
    assert_true(a.shortcut);
    b.shortcut = false;
    prng_seed(&r, 31);
    for (int i = 0; i < rounds; i++) {
        size_t n = hostile(&r, text, sizeof text);
        if (i % 2 == 0) /* all of ASCII, blanks and apostrophes more often */
            for (n = 0; n < 40; n++) text[n] = (uint8_t)("' \n"[prng_below(&r, 3)]);
        for (size_t k = 0; i % 2 == 0 && k < n; k++)
            if (prng_below(&r, 3) > 0) text[k] = (uint8_t)prng_below(&r, 128);
        const char *x, *y;
        size_t x_bytes, y_bytes;
        words_start(&a, (const char *)text, n);
        words_start(&b, (const char *)text, n);
        while (words_next(&a, &x, &x_bytes)) {
            assert_true(words_next(&b, &y, &y_bytes));
            assert_ptr_equal(x, y);
            assert_int_equal(x_bytes, y_bytes);
        }
        assert_false(words_next(&b, &y, &y_bytes));
        assert_false(a.failed);
        assert_false(b.failed);
    }
    words_fini(&a);
    words_fini(&b);
    splitter_destroy(s);
}

TEST(tokenizer_words_come_out_the_same_without_the_shortcut) {
    compare_with_the_pattern(SPLIT_QWEN2, 60000);
    compare_with_the_pattern(SPLIT_LLAMA3, 60000);
    compare_with_the_pattern(SPLIT_GPT2, 60000);
}

/* Each short text over letters that stand for all kinds: exhaustive. */
TEST(tokenizer_words_of_all_short_texts_come_out_the_same) {
    static const char *const LETTERS[] = {"a",  "s",  "L", "7", " ",
                                          "\n", "\t", "'", "-", "\xc3\xa9"};
    enum { KINDS = ARRAY_COUNT(LETTERS), LENGTH = 5 };
    for (enum split_family f = SPLIT_OTHER + 1; f < SPLIT_FAMILIES; f++) {
        struct splitter *s = splitter_of(f);
        struct words a, b;
        words_init(&a, s);
        words_init(&b, s);
        b.shortcut = false;
        uint32_t all = 1;
        for (int i = 0; i < LENGTH; i++) all *= KINDS;
        for (uint32_t k = 0; k < all; k++) {
            char text[3 * LENGTH];
            size_t n = 0, x_bytes, y_bytes;
            const char *x, *y;
            for (uint32_t i = 0, rest = k; i < LENGTH; i++, rest /= KINDS) {
                const char *p = LETTERS[rest % KINDS];
                memcpy(text + n, p, strlen(p));
                n += strlen(p);
            }
            words_start(&a, text, n);
            words_start(&b, text, n);
            while (words_next(&a, &x, &x_bytes)) {
                assert_true(words_next(&b, &y, &y_bytes));
                if (x != y || x_bytes != y_bytes)
                    fail_msg("family %d: \"%.*s\"", (int)f, (int)n, text);
            }
            assert_false(words_next(&b, &y, &y_bytes));
        }
        words_fini(&a);
        words_fini(&b);
        splitter_destroy(s);
    }
}

TEST(tokenizer_utf8_prefix_knows_ill_formed_text) {
    static const struct {
        const char *text;
        size_t good;
    } CASES[] = {{"abcdefgh\xc3\xa9", 10},
                 {"abc\xc3", 3},
                 {"\xc0\xaf", 0},
                 {"\xe0\x9f\xbf", 0},
                 {"\xe0\xa0\x80", 3},
                 {"\xed\x9f\xbf", 3},
                 {"\xed\xa0\x80", 0},
                 {"\xf0\x8f\xbf\xbf", 0},
                 {"\xf0\x90\x80\x80", 4},
                 {"\xf4\x8f\xbf\xbf", 4},
                 {"\xf4\x90\x80\x80", 0},
                 {"\xf5\x80\x80\x80", 0},
                 {"\xfe", 0},
                 {"12345678\x80", 8},
                 {"1234567\x80", 7}};
    for (size_t i = 0; i < ARRAY_COUNT(CASES); i++)
        assert_int_equal(utf8_prefix(CASES[i].text, strlen(CASES[i].text)), CASES[i].good);
}

/* ---- Against naive models
 * ------------------------------------------------------------------------ */
enum { NAIVE_MAX = 400 };

/* Lowest rank first, leftmost first, by looking at everything again and again. */
static size_t naive_merge(const struct tokenizer *t, uint32_t *ids, size_t n) {
    for (;;) {
        size_t at = n;
        uint32_t best = t->merges_count;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t m = 0; m < best; m++)
                if (t->merges[m].left == ids[i] && t->merges[m].right == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (at == n) return n;
        ids[at] = t->merges[best].id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

TEST(tokenizer_merge_agrees_with_the_naive_one) {
    struct prng r;
    prng_seed(&r, 3);
    for (int round = 0; round < 60; round++) {
        char text[3000];
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = prng_below(&r, 9) == 0 ? ' ' : (char)('a' + prng_below(&r, 3));
        struct tokenizer *t = trained(text, sizeof text, 257 + (uint32_t)prng_below(&r, 60));
        for (int k = 0; k < 60; k++) {
            uint32_t a[NAIVE_MAX], b[NAIVE_MAX];
            size_t n = prng_below(&r, k % 3 == 0 ? NAIVE_MAX : 40);
            for (size_t i = 0; i < n; i++) a[i] = b[i] = t->byte_id['a' + prng_below(&r, 3)];
            size_t na = tokenizer_merge(t, a, n), nb = naive_merge(t, b, n);
            assert_int_equal(na, nb);
            assert_memory_equal(a, b, na * sizeof *a);
        }
        tokenizer_free(t);
    }
}

struct naive_word {
    uint32_t ids[64];
    uint32_t n;
};

/* The most frequent pair by counting everything; ties to the smaller ids. */
static uint32_t naive_best(const struct naive_word *w, size_t words, uint32_t *left,
                           uint32_t *right) {
    static uint32_t count[512][512];
    memset(count, 0, sizeof count);
    uint32_t best = 0;
    for (size_t i = 0; i < words; i++)
        for (uint32_t k = 0; k + 1 < w[i].n; k++) count[w[i].ids[k]][w[i].ids[k + 1]]++;
    for (uint32_t a = 0; a < 512; a++)
        for (uint32_t b = 0; b < 512; b++)
            if (count[a][b] > best) {
                best = count[a][b];
                *left = a;
                *right = b;
            }
    return best;
}

TEST(tokenizer_training_agrees_with_the_naive_one) {
    static struct naive_word w[1000];
    struct prng r;
    prng_seed(&r, 4);
    for (int round = 0; round < 15; round++) {
        char text[2000];
        size_t words = 0;
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = prng_below(&r, 7) == 0 ? ' ' : (char)('a' + prng_below(&r, 4));
        struct tokenizer *t = trained(text, sizeof text, 290);
        struct words it;
        const char *word;
        size_t bytes;
        words_init(&it, t->splitter);
        words_start(&it, text, sizeof text);
        while (words_next(&it, &word, &bytes)) {
            assert_true(words < ARRAY_COUNT(w));
            assert_true(bytes <= 64);
            w[words].n = (uint32_t)bytes;
            for (size_t i = 0; i < bytes; i++) w[words].ids[i] = (uint8_t)word[i];
            words++;
        }
        words_fini(&it);
        for (uint32_t m = 0; m < t->merges_count; m++) {
            uint32_t left = 0, right = 0;
            assert_true(naive_best(w, words, &left, &right) >= 2);
            assert_int_equal(t->merges[m].left, left);
            assert_int_equal(t->merges[m].right, right);
            for (size_t i = 0; i < words; i++) {
                uint32_t n = 0;
                for (uint32_t k = 0; k < w[i].n; k++) {
                    bool hit = k + 1 < w[i].n && w[i].ids[k] == left && w[i].ids[k + 1] == right;
                    w[i].ids[n++] = hit ? t->merges[m].id : w[i].ids[k];
                    k += hit;
                }
                w[i].n = n;
            }
        }
        tokenizer_free(t);
    }
}

TEST(tokenizer_training_is_deterministic_and_ignores_the_order_of_texts) {
    const char *texts[] = {"low lower lowest", "new newer newest wide wider", "lower newer"};
    const char *turned[] = {texts[2], texts[0], texts[1]};
    size_t bytes[] = {strlen(texts[0]), strlen(texts[1]), strlen(texts[2])};
    size_t turned_bytes[] = {bytes[2], bytes[0], bytes[1]};
    struct tokenizer *a = NULL, *b = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_train(texts, bytes, 3, 262, &a, &e), BRG_OK);
    assert_int_equal(tokenizer_train(turned, turned_bytes, 3, 262, &b, &e), BRG_OK);
    struct hash ha = tokenizer_hash(a), hb = tokenizer_hash(b);
    assert_true(hash_equal(&ha, &hb));
    tokenizer_free(a);
    tokenizer_free(b);
}

TEST(tokenizer_training_says_what_it_cannot_do) {
    const char *text = "abc";
    size_t bytes = 3;
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_train(&text, &bytes, 1, 256, &t, &e), BRG_E_USAGE);
    assert_int_equal(tokenizer_train(&text, &bytes, 1, 300, &t, &e), BRG_E_TOKENIZER);
    assert_non_null(strstr(e.text, "more text"));
    assert_int_equal(tokenizer_train(NULL, NULL, 0, 300, &t, &e), BRG_E_TOKENIZER);
    assert_null(t);
    assert_int_equal(tokenizer_train(NULL, NULL, 0, 257, &t, &e), BRG_OK);
    round_trip(t, TEXT, sizeof TEXT - 1);
    tokenizer_free(t);
}

/* ---- Files
 * --------------------------------------------------------------------------------------- */
TEST(tokenizer_file_comes_back_the_same) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290), *again = NULL;
    struct err e = {0};
    char path[OS_PATH_MAX];
    os_path(path, test_dir(), "tokenizer.json");
    assert_int_equal(tokenizer_save(t, path, &e), BRG_OK);
    assert_int_equal(tokenizer_load(path, &again, &e), BRG_OK);
    struct hash a = tokenizer_hash(t), b = tokenizer_hash(again);
    assert_true(hash_equal(&a, &b));
    uint32_t x[1000], y[1000];
    size_t n = encode(t, TEXT, sizeof TEXT - 1, x, 1000);
    assert_int_equal(encode(again, TEXT, sizeof TEXT - 1, y, 1000), n);
    assert_memory_equal(x, y, n * sizeof *x);
    tokenizer_free(again);
    tokenizer_free(t);
    assert_int_equal(tokenizer_load("/nonexistent/tokenizer.json", &again, &e), BRG_E_MISSING);
}

/* Replaces the first `from` of a good file by `to`, and wants E_TOKENIZER with both words in the
 * text. */
static void spoil(const char *good, const char *from, const char *to, const char *word) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct buf b;
    const char *at = strstr(good, from);
    assert_non_null(at);
    buf_init(&b, 1 << 20);
    buf_put(&b, good, (size_t)(at - good));
    buf_put(&b, to, strlen(to));
    buf_put(&b, at + strlen(from), strlen(at + strlen(from)));
    enum brg_status s = tokenizer_parse("x/tokenizer.json", b.data, b.bytes_count, &t, &e);
    if (s != BRG_E_TOKENIZER || strstr(e.text, word) == NULL ||
        strstr(e.text, "x/tokenizer.json") == NULL || strchr(e.text, '\n') != NULL)
        fail_msg("%s -> %s: status %d, text \"%s\"", from, to, (int)s, e.text);
    assert_null(t);
    buf_fini(&b);
}

TEST(tokenizer_wrong_files_are_refused_by_field) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290);
    struct err e = {0};
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(tokenizer_write(t, &b, &e), BRG_OK);
    const char *good = buf_cstr(&b);
    spoil(good, "\"BPE\"", "\"WordPiece\"", "model.type");
    spoil(good, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "normalizer.type");
    spoil(good, "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\"}]}",
          "normalizer.normalizers[0]");
    spoil(good, "\"model\"", "\"version\": \"1.0\", \"model\"", "twice");
    spoil(good, "\"vocab\": {", "\"vocab\": {}, \"vocab\": {", "model.vocab");
    spoil(good, "\"vocab\": {", "\"vocab\": {\"!\": 33,", "has the id 33 of another entry");
    spoil(good, "\"truncation\": null", "\"truncation\": 5", "truncation");
    spoil(good, "\"version\"", "\"verzion\"", "verzion");
    spoil(good, "Isolated", "Replaced", "behavior");
    spoil(good, "\\\\p{N}", "\\\\p{Nx}", "pattern");
    spoil(good, "|\\\\p{N}|", "|\\\\w|", "pattern");
    spoil(good, "|\\\\p{N}|", "|(|", "pattern");
    spoil(good, "|\\\\p{N}|", "|[[:alpha:]]|", "pattern");
    spoil(good, "|\\\\p{N}|", "|(*ACCEPT)|", "pattern");
    spoil(good, "\"Split\"", "\"Whitespace\"", "pre_tokenizer.pretokenizers[0].type");
    spoil(good, "\"special\": true", "\"special\": 1", "added_tokens[0].special");
    spoil(good, "\"content\": \"<", "\"content\": \"\", \"contents\": \"<", "contents");
    spoil(good, "\"id\": 289", "\"id\": 288", "added_tokens[0].id");
    spoil(good, "\"id\": 289", "\"id\": -1", "added_tokens[0].id");
    spoil(good, "\"dropout\": null", "\"dropout\": 0.1", "model.dropout");
    spoil(good, "\"end_of_word_suffix\": \"\"", "\"end_of_word_suffix\": \"</w>\"",
          "model.end_of_word_suffix");
    spoil(good, "\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
          "post_processor.type");
    spoil(good, "\"ignore_merges\": false", "\"ignore_merges\": 7", "model.ignore_merges");
    spoil(good, "\"!\": 33", "\"!\": 34", "vocab entry");
    spoil(good, "\"!\": 33", "\"!\": 1048576", "outside");
    spoil(good, "\"!\": 33", "\"!\": 33.5", "integer");
    spoil(good, "\"!\": 33", "\"\xe4\xb8\xad\": 33", "lacks the byte 33");
    spoil(good, "\"!\": 33", "\"\": 33", "vocab entry");
    spoil(good, "\"!\": 33", "\"!!!!!\": 33", "lacks the byte 33");
    spoil(good, "\"merges\": [", "\"merges\": [ 7,", "merges[0]");
    spoil(good, "\"merges\": [", "\"merges\": [ \"zz\",", "merges[0]");
    spoil(good, "\"merges\": [", "\"merges\": [ \"~ ~\",", "merges[0]");
    spoil(good, "\"merges\": [", "\"merges\": [ [\"a\"],", "merges[0]");
    spoil(good, "\"merges\": [", "\"merges\": [ \"\xc4\xa0t\",", "merges[0]");
    spoil(good, "\"merges\"", "\"merge\"", "merge");
    spoil(good, "\"decoder\": {", "\"decoder\": null, \"x\": {", "x");
    spoil(good, "{", "[", "JSON");
    for (size_t cut = 0; cut < b.bytes_count - 2; cut += 1 + cut / 20) {
        struct tokenizer *bad = NULL;
        assert_int_equal(tokenizer_parse("f", b.data, cut, &bad, &e), BRG_E_TOKENIZER);
    }
    buf_fini(&b);
    tokenizer_free(t);
}

TEST(tokenizer_merges_twice_are_refused) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 290);
    struct err e = {0};
    struct buf b;
    char to[200];
    buf_init(&b, 1 << 20);
    assert_int_equal(tokenizer_write(t, &b, &e), BRG_OK);
    const char *at = strstr(buf_cstr(&b), "\"merges\": [");
    const char *first = strchr(at + 11, '"'), *end = strchr(first + 1, '"');
    snprintf(to, sizeof to, "\"merges\": [%.*s,", (int)(end - first + 1), first);
    spoil(buf_cstr(&b), "\"merges\": [", to, "twice");
    buf_fini(&b);
    tokenizer_free(t);
}

TEST(tokenizer_spoiled_bytes_never_crash_the_reader) {
    struct tokenizer *t = trained(TEXT, sizeof TEXT - 1, 280);
    struct err e = {0};
    struct buf b;
    struct prng r;
    prng_seed(&r, 9);
    buf_init(&b, 1 << 20);
    assert_int_equal(tokenizer_write(t, &b, &e), BRG_OK);
    uint8_t *copy = mem_alloc(b.bytes_count, 1);
    for (int i = 0; i < 3000; i++) {
        memcpy(copy, b.data, b.bytes_count);
        for (uint64_t k = 1 + prng_below(&r, 4); k > 0; k--)
            copy[prng_below(&r, b.bytes_count)] =
                (uint8_t)(prng_below(&r, 2) ? prng_u64(&r) : '0' + prng_below(&r, 10));
        struct tokenizer *x = NULL;
        if (tokenizer_parse("f", copy, b.bytes_count, &x, &e) == BRG_OK) round_trip(x, TEXT, 200);
        tokenizer_free(x);
    }
    mem_free(copy);
    buf_fini(&b);
    tokenizer_free(t);
}
