/* SPDX-License-Identifier: Apache-2.0 */
/* Small tokenizers of the three kinds, against ids that Hugging Face's own library gave:
 * test/golden/tokenizer/make.py. The published ones are in test/e2e/tokenizer.py. */
#include "../harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/os.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static struct tokenizer *golden(const char *name) {
    char path[OS_PATH_MAX];
    struct tokenizer *t = NULL;
    struct err e = {0};
    os_path(path, "test/golden/tokenizer", "%s-small.json", name);
    if (tokenizer_load(path, &t, &e) != BRG_OK) fail_msg("%s", e.text);
    return t;
}

/* Hexadecimal digits up to a byte of ends; "-" is nothing. */
static size_t hex_text(char **at, const char *ends, uint8_t *out) {
    size_t n = strcspn(*at, ends);
    if (n == 1 && **at == '-') n = 0, ++*at;
    char *digits = mem_alloc(n + 1, 1);
    memcpy(digits, *at, n);
    assert_true(hex_decode(digits, out, n / 2));
    mem_free(digits);
    *at += n;
    return n / 2;
}

static void check_line(const struct tokenizer *t, char *line, struct buf *ids, struct buf *text) {
    static uint8_t raw[4096], want[4096];
    static uint32_t list[4096];
    struct err e = {0};
    char *at = line;
    assert_true(strlen(line) < 8 * sizeof raw);
    size_t raw_bytes = hex_text(&at, "> ", raw), want_bytes = raw_bytes, count = 0;
    if (*at == '>') {
        at++;
        want_bytes = hex_text(&at, " ", want);
    } else {
        memcpy(want, raw, raw_bytes);
    }
    while (*at == ' ') list[count++] = (uint32_t)strtoul(at + 1, &at, 10);
    buf_reset(ids);
    buf_reset(text);
    assert_int_equal(tokenizer_encode(t, (char *)raw, raw_bytes, SPECIAL_AS_IDS, ids, &e), BRG_OK);
    bool same = ids->bytes_count == 4 * count;
    for (size_t i = 0; same && i < count; i++) same = get_le32(ids->data + 4 * i) == list[i];
    if (!same) fail_msg("other ids for %.200s", line);
    assert_int_equal(tokenizer_decode(t, list, count, text, &e), BRG_OK);
    if (text->bytes_count != want_bytes ||
        (want_bytes > 0 && memcmp(text->data, want, want_bytes) != 0))
        fail_msg("another text for the ids of %.200s", line);
}

static void check_file(const char *name, int lines_min) {
    struct tokenizer *t = golden(name);
    struct buf file, ids, text;
    struct err e = {0};
    char path[OS_PATH_MAX], *save = NULL;
    int lines = 0;
    buf_init(&file, 1 << 22);
    buf_init(&ids, 1 << 20);
    buf_init(&text, 1 << 20);
    os_path(path, "test/golden/tokenizer", "%s-small.txt", name);
    assert_int_equal(os_read_file(path, 1 << 22, &file, &e), BRG_OK);
    buf_cstr(&file);
    for (char *p = strtok_r((char *)file.data, "\n", &save); p != NULL;
         p = strtok_r(NULL, "\n", &save), lines++)
        check_line(t, p, &ids, &text);
    assert_true(lines >= lines_min);
    buf_fini(&file);
    buf_fini(&ids);
    buf_fini(&text);
    tokenizer_free(t);
}

TEST(tokenizer_golden_qwen3) {
    check_file("qwen3", 361);
}
TEST(tokenizer_golden_llama3) {
    check_file("llama3", 301);
}
TEST(tokenizer_golden_gpt2) {
    check_file("gpt2", 301);
}

/* ---- What the files differ in */
static size_t ids_of(const struct tokenizer *t, const char *text, enum tokenizer_special special,
                     uint32_t *out) {
    struct buf ids;
    struct err e = {0};
    buf_init(&ids, 1 << 26);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), special, &ids, &e), BRG_OK);
    size_t n = ids.bytes_count / 4;
    for (size_t i = 0; i < n && i < 64; i++) out[i] = get_le32(ids.data + 4 * i);
    buf_fini(&ids);
    return n;
}

TEST(tokenizer_D5_special_tokens_are_text_unless_asked_for) {
    static const char *const NAMES[] = {"qwen3", "llama3", "gpt2"};
    static const char *const ENDS[] = {"<|endoftext|>", "<|end_of_text|>", "<|endoftext|>"};
    for (size_t k = 0; k < 3; k++) {
        struct tokenizer *t = golden(NAMES[k]);
        uint32_t ids[64], eot = tokenizer_eot(t);
        assert_true(eot < tokenizer_vocab(t));
        assert_int_equal(ids_of(t, ENDS[k], SPECIAL_AS_IDS, ids), 1);
        assert_int_equal(ids[0], eot);
        size_t n = ids_of(t, ENDS[k], SPECIAL_AS_TEXT, ids);
        assert_true(n > 1);
        for (size_t i = 0; i < n; i++) assert_int_not_equal(ids[i], eot);
        tokenizer_free(t);
    }
    struct tokenizer *t = golden("qwen3"); /* not a special token: an id in both cases */
    uint32_t ids[64];
    assert_int_equal(ids_of(t, "<think>", SPECIAL_AS_TEXT, ids), 1);
    tokenizer_free(t);
}

TEST(tokenizer_template_is_what_stands_around_a_text) {
    const uint32_t *before, *behind;
    uint32_t before_count, behind_count;
    struct tokenizer *t = golden("llama3");
    uint32_t ids[64];
    tokenizer_around(t, &before, &before_count, &behind, &behind_count);
    assert_int_equal(before_count, 1);
    assert_int_equal(behind_count, 0);
    assert_int_equal(ids_of(t, "<|begin_of_text|>", SPECIAL_AS_IDS, ids), 1);
    assert_int_equal(before[0], ids[0]);
    tokenizer_free(t);
    t = golden("qwen3");
    tokenizer_around(t, &before, &before_count, &behind, &behind_count);
    assert_int_equal(before_count + behind_count, 0);
    tokenizer_free(t);
}

TEST(tokenizer_files_are_kept_byte_for_byte) {
    struct buf file, out;
    struct err e = {0};
    struct tokenizer *t = golden("llama3");
    buf_init(&file, 1 << 22);
    buf_init(&out, 1 << 22);
    assert_int_equal(os_read_file("test/golden/tokenizer/llama3-small.json", 1 << 22, &file, &e),
                     BRG_OK);
    assert_int_equal(tokenizer_write(t, &out, &e), BRG_OK);
    assert_int_equal(out.bytes_count, file.bytes_count);
    assert_memory_equal(out.data, file.data, out.bytes_count);
    buf_fini(&file);
    buf_fini(&out);
    tokenizer_free(t);
}

/* A file with one string replaced. */
static struct tokenizer *changed(const char *name, const char *from, const char *to) {
    struct buf file, out;
    struct err e = {0};
    struct tokenizer *t = NULL;
    char path[OS_PATH_MAX];
    buf_init(&file, 1 << 22);
    buf_init(&out, 1 << 22);
    os_path(path, "test/golden/tokenizer", "%s-small.json", name);
    assert_int_equal(os_read_file(path, 1 << 22, &file, &e), BRG_OK);
    const char *all = buf_cstr(&file), *at = strstr(all, from);
    assert_non_null(at);
    buf_put(&out, all, (size_t)(at - all));
    buf_put(&out, to, strlen(to));
    buf_put(&out, at + strlen(from), strlen(at + strlen(from)));
    if (tokenizer_parse("f", out.data, out.bytes_count, &t, &e) != BRG_OK) fail_msg("%s", e.text);
    buf_fini(&file);
    buf_fini(&out);
    return t;
}

/* Each of these decides ids, so each must be in the hash. */
TEST(tokenizer_hash_covers_every_setting) {
    static const char *const CHANGES[][2] = {
        {"\"NFC\"", "\"Sequence\",\"normalizers\":[]"},
        {"\"Isolated\"", "\"Contiguous\""},
        {"\"invert\":false", "\"invert\":true"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true"},
        {"\"use_regex\":false", "\"use_regex\":true"},
        {"\"single_word\":false", "\"single_word\":true"},
        {"\"lstrip\":false", "\"lstrip\":true"},
        {"\"rstrip\":false", "\"rstrip\":true"},
        {"\"special\":true", "\"special\":false"},
        {"\"normalized\":false", "\"normalized\":true"},
        {"<think>", "<thank>"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true"},
        {"[\"\xc4\xa0\",\"\xc4\xa0\"],", ""},
    };
    struct hash seen[ARRAY_COUNT(CHANGES) + 1];
    struct tokenizer *t = golden("qwen3");
    seen[0] = tokenizer_hash(t);
    tokenizer_free(t);
    for (size_t i = 0; i < ARRAY_COUNT(CHANGES); i++) {
        t = changed("qwen3", CHANGES[i][0], CHANGES[i][1]);
        seen[i + 1] = tokenizer_hash(t);
        for (size_t k = 0; k <= i; k++)
            if (hash_equal(&seen[k], &seen[i + 1])) fail_msg("%s changes nothing", CHANGES[i][1]);
        tokenizer_free(t);
    }
    t = changed("qwen3", "{\"version\":\"1.0\",", "{ \"version\" :\"1.0\" ,\n"); /* only blanks */
    struct hash h = tokenizer_hash(t);
    assert_true(hash_equal(&h, &seen[0]));
    tokenizer_free(t);
}

/* ---- Added tokens: what they take along */
static void check_added(const char *flags, const char *text, const char *const *want) {
    struct added_token a = {.content = (char *)(uintptr_t) "<t>",
                            .bytes = 3,
                            .id = 7,
                            .single_word = strstr(flags, "word") != NULL,
                            .lstrip = strstr(flags, "left") != NULL,
                            .rstrip = strstr(flags, "right") != NULL};
    struct added_set *s = added_set_create();
    added_set_put(s, a.content, a.bytes, &a);
    struct added_walk w = {.text = text, .bytes = strlen(text)};
    const struct added_token *found;
    size_t begin, end;
    while (added_next(s, &w, &found, &begin, &end)) {
        assert_non_null(*want);
        assert_ptr_equal(found, &a);
        assert_int_equal(end - begin, strlen(*want));
        assert_memory_equal(text + begin, *want, end - begin);
        want++;
    }
    assert_null(*want);
    added_set_destroy(s);
}

TEST(tokenizer_added_tokens_take_blanks_along_and_stand_alone) {
#define WANT(...) (const char *const[]){__VA_ARGS__, NULL}
    check_added("", "a <t> <t>b", WANT("<t>", "<t>"));
    check_added("left", "a \t<t> <t>b", WANT(" \t<t>", " <t>"));
    check_added("right", "a <t> \xc2\x85<t>b", WANT("<t> \xc2\x85", "<t>"));
    check_added("left right", " <t>  <t> ", WANT(" <t>  ", "<t> "));
    check_added("word", "a<t> <t> <t>b <t>.", WANT("<t>", "<t>"));
    check_added("word", "\xc3\xa9<t> \xe4\xb8\xad<t> _<t> \xe2\x93\x90<t> \xcc\x81<t>", WANT(NULL));
    check_added("word", "\xff<t>\xff", WANT("<t>"));
    check_added("left", "\xef\xbb\xbf<t>", WANT("<t>")); /* no blank */
#undef WANT
}

TEST(tokenizer_added_tokens_longest_first) {
    struct added_token a = {.id = 1}, b = {.id = 2}, c = {.id = 3, .special = true};
    struct added_set *s = added_set_create();
    added_set_put(s, "<a", 2, &a);
    added_set_put(s, "<ab>", 4, &b);
    added_set_put(s, "<c>", 3, &c);
    struct added_walk w = {.text = "<a<ab<ab><c><ab", .bytes = 15};
    const struct added_token *found;
    size_t begin, end, n = 0;
    static const uint32_t WANT[] = {1, 1, 2, 1};
    while (added_next(s, &w, &found, &begin, &end)) assert_int_equal(found->id, WANT[n++]);
    assert_int_equal(n, 4); /* the special one was not asked for */
    added_set_destroy(s);
}

/* ---- Steps: Hugging Face's documentation has these examples for "the-final--countdown" */
struct collected {
    char text[200];
    size_t n;
};

static void collect(const char *word, size_t bytes, void *user) {
    struct collected *c = user;
    assert_true(c->n + bytes + 2 < sizeof c->text);
    memcpy(c->text + c->n, word, bytes);
    c->n += bytes;
    c->text[c->n++] = '|';
    c->text[c->n] = 0;
}

static void check_steps(struct splitter *s, const char *text, const char *want) {
    struct words w;
    struct collected c = {.n = 0};
    words_init(&w, s);
    assert_true(words_each(&w, text, strlen(text), collect, &c));
    assert_string_equal(c.text, want);
    words_fini(&w);
    splitter_destroy(s);
}

static struct splitter *one_step(const char *pattern, bool quoted, enum split_behavior b,
                                 bool invert) {
    struct splitter *s = splitter_create();
    char why[160];
    if (!splitter_add(s, pattern, strlen(pattern), quoted, b, invert, why)) fail_msg("%s", why);
    return s;
}

TEST(tokenizer_steps_behave_as_they_are_named) {
    const char *text = "the-final--countdown";
    check_steps(one_step("-", true, SPLIT_REMOVED, false), text, "the|final|countdown|");
    check_steps(one_step("-", true, SPLIT_ISOLATED, false), text, "the|-|final|-|-|countdown|");
    check_steps(one_step("-", true, SPLIT_MERGED_WITH_PREVIOUS, false), text,
                "the-|final-|-|countdown|");
    check_steps(one_step("-", true, SPLIT_MERGED_WITH_NEXT, false), text,
                "the|-final|-|-countdown|");
    check_steps(one_step("-", true, SPLIT_CONTIGUOUS, false), text, "the|-|final|--|countdown|");
    check_steps(one_step("[a-z]+", false, SPLIT_REMOVED, true), text, "the|final|countdown|");
    check_steps(one_step("x*", false, SPLIT_ISOLATED, false), "axxb", "a|xx|b|");
    check_steps(one_step("\\p{N}", false, SPLIT_CONTIGUOUS, false), "a12b", "a|12|b|");
    struct splitter *s = one_step(" ", true, SPLIT_REMOVED, false);
    char why[160];
    assert_true(splitter_add_blank(s, why));
    assert_true(splitter_add(s, "b", 1, true, SPLIT_ISOLATED, false, why));
    assert_false(splitter_is_whole(s));
    check_steps(s, "abc d", " a|b|c| d|");
}

TEST(tokenizer_patterns_mean_what_they_meant) {
    check_steps(one_step("\\s", false, SPLIT_REMOVED, false),
                "a\xe1\xa0\x8e"
                "b\xc2\x85"
                "c\x1c"
                "d",
                "a\xe1\xa0\x8e"
                "b|c\x1c"
                "d|"); /* U+180E and U+001C are no blanks */
    check_steps(one_step("\\v", false, SPLIT_REMOVED, false), "a\nb\vc", "a\nb|c|");
    check_steps(one_step("^b$", false, SPLIT_REMOVED, false), "a\nb\nc", "a\n|\nc|");
    check_steps(one_step("(?i:\xc3\x89)", false, SPLIT_REMOVED, false),
                "a\xc3\xa9"
                "b",
                "a|b|");
    check_steps(one_step("x{,2}y", false, SPLIT_REMOVED, false), "axxyb", "a|b|");
    check_steps(one_step("a{x", false, SPLIT_REMOVED, false), "1a{x2", "1|2|");
    check_steps(one_step("[\\p{Han}\\u3042]", false, SPLIT_REMOVED, false),
                "1\xe4\xb8\xad"
                "2\xe3\x81\x82"
                "3",
                "1|2|3|");
    static const char *const REFUSED[] = {
        "\\w",     "\\b", "\\h",     "[a[b]]", "[a&&b]", "(*F)",     "(?x:a)", "(?<n>a)",
        "(?R)",    "\\1", "\\Qa\\E", "a{2}+",  "a{2}?",  "\\p{Foo}", "\\pL",   "\\x{110000}",
        "\\ud800", "(",   "[a",      "\\C",    "a(?i)b", "[]a]",     "[\\d-z]"};
    for (size_t i = 0; i < ARRAY_COUNT(REFUSED); i++) {
        struct splitter *s = splitter_create();
        char why[160] = "";
        if (splitter_add(s, REFUSED[i], strlen(REFUSED[i]), false, SPLIT_ISOLATED, false, why))
            fail_msg("%s was taken", REFUSED[i]);
        assert_true(strlen(why) > 5);
        splitter_destroy(s);
    }
}

static void measure(const char *word, size_t bytes, void *user) {
    (void)word;
    if (bytes > *(size_t *)user) *(size_t *)user = bytes;
}

/* A pattern that turns in circles ends the text with an error, not the process's day. */
TEST(tokenizer_patterns_that_turn_in_circles_are_stopped) {
    struct splitter *s = one_step("(a+)+b|c", false, SPLIT_ISOLATED, false);
    struct words w;
    struct collected c = {.n = 0};
    words_init(&w, s);
    assert_false(
        words_each(&w, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 51, collect, &c));
    words_fini(&w);
    splitter_destroy(s);
    /* one that needs more of a stack than there is by default is matched */
    s = one_step("(?:a|b)+", false, SPLIT_ISOLATED, false);
    size_t bytes = 200000, longest = 0;
    char *text = mem_alloc(bytes, 1);
    memset(text, 'a', bytes);
    words_init(&w, s);
    assert_true(words_each(&w, text, bytes, measure, &longest));
    assert_int_equal(longest, bytes);
    words_fini(&w);
    splitter_destroy(s);
    mem_free(text);
}

/* ---- Form C in linear time, equal to utf8proc's own */
TEST(tokenizer_form_c_of_many_marks_takes_no_quadratic_time) {
    struct tokenizer *t = golden("qwen3");
    struct buf text, ids, back;
    struct err e = {0};
    buf_init(&text, 1 << 24);
    buf_init(&ids, 1 << 26);
    buf_init(&back, 1 << 26);
    buf_u8(&text, 'q');
    for (int i = 0; i < 250000; i++) buf_put(&text, "\xcc\x81\xcc\x96", 4); /* classes 230, 220 */
    assert_int_equal(
        tokenizer_encode(t, (char *)text.data, text.bytes_count, SPECIAL_AS_IDS, &ids, &e), BRG_OK);
    size_t count = ids.bytes_count / 4;
    uint32_t *list = mem_alloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) list[i] = get_le32(ids.data + 4 * i);
    assert_int_equal(tokenizer_decode(t, list, count, &back, &e), BRG_OK);
    assert_int_equal(back.bytes_count, text.bytes_count);
    for (size_t i = 0; i < 250000; i++) { /* all of the lower class, then all of the higher */
        assert_memory_equal(back.data + 1 + 2 * i, "\xcc\x96", 2);
        assert_memory_equal(back.data + 500001 + 2 * i, "\xcc\x81", 2);
    }
    mem_free(list);
    buf_fini(&text);
    buf_fini(&ids);
    buf_fini(&back);
    tokenizer_free(t);
}

TEST(tokenizer_form_c_agrees_with_utf8proc) {
    static const uint32_t POINTS[] = {
        'a',    'e',     0xe9,   0x301,  0x323,  0x302,  0x316,   0x344,   0x1100, 0x1161, 0x11a8,
        0xac00, 0xac01,  0x958,  0x93c,  0x915,  0x9c7,  0x9be,   0xdd9,   0xdcf,  0xdca,  0x212b,
        0xf900, 0x1d15e, 0xfb2c, 0x1e9b, 0x1b35, 0x1b05, 0x11099, 0x110ba, 0x4e2d, 0xf73};
    struct normal *n = normal_create();
    struct prng r;
    struct buf text, out;
    prng_seed(&r, 8);
    buf_init(&text, 1 << 12);
    buf_init(&out, 1 << 14);
    for (int i = 0; i < 200000; i++) {
        buf_reset(&text);
        buf_reset(&out);
        for (uint64_t k = prng_below(&r, 12); k > 0; k--) {
            uint32_t c = prng_below(&r, 8) > 0 ? POINTS[prng_below(&r, ARRAY_COUNT(POINTS))]
                                               : (uint32_t)prng_below(&r, 0x30000);
            if (c == 0 || (c >= 0xd800 && c < 0xe000)) c = '.';
            char bytes[4];
            buf_put(&text, bytes, utf8_encode(c, bytes));
        }
        normal_put(n, (const char *)text.data, text.bytes_count, &out);
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)buf_cstr(&text));
        assert_non_null(want);
        if (strcmp((const char *)want, buf_cstr(&out)) != 0)
            fail_msg("%s: %s is not %s", (const char *)text.data, (const char *)out.data,
                     (const char *)want);
        if (normal_is_plain(n, (const char *)text.data, text.bytes_count))
            assert_string_equal((const char *)want, buf_cstr(&text));
        free(want);
    }
    buf_fini(&text);
    buf_fini(&out);
    normal_destroy(n);
}

/* Each character alone, behind a letter and before a mark: what is called plain is. */
TEST(tokenizer_form_c_of_every_character) {
    struct normal *n = normal_create();
    struct buf out;
    buf_init(&out, 1 << 10);
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        if (c >= 0x31000 && c % 17 != 0) continue; /* unassigned, for private use: a sample */
        char text[16] = "e";
        size_t k = 1 + utf8_encode(c, text + 1);
        memcpy(text + k, "\xcc\xa3", 2);
        k += 2;
        buf_reset(&out);
        normal_put(n, text, k, &out);
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text);
        if (strcmp((const char *)want, buf_cstr(&out)) != 0) fail_msg("U+%04X", c);
        free(want);
    }
    buf_fini(&out);
    normal_destroy(n);
}

TEST(tokenizer_ill_formed_parts_are_replaced_one_by_one) {
    static const char *const CASES[][2] = {
        {"a\xff\xfe", "a\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe4\xb8", "\xef\xbf\xbd"},
        {"\xe4\xb8z", "\xef\xbf\xbdz"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x90\x80\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
        {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(CASES); i++) {
        struct buf out;
        buf_init(&out, 100);
        utf8_repair(CASES[i][0], strlen(CASES[i][0]), &out);
        assert_string_equal(buf_cstr(&out), CASES[i][1]);
        buf_fini(&out);
    }
}
