/* SPDX-License-Identifier: Apache-2.0 */
/* split.c - text -> words, by the pattern of the tokenizer.
 *
 * The pattern works on characters and is compiled by PCRE2 with its JIT. Text from outside may hold
 * bytes that are no UTF-8; PCRE2's behaviour on those is undefined once its own check is off (and
 * with the check on, each call would cost the length of the text). So the text is cut into runs
 * here: well-formed runs go through the pattern, each run of other bytes is a word by itself. What
 * comes out covers the input byte for byte, which is what makes decode the inverse of encode. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "data/tokenizer.h"

/* \s is White_Space and classes are Unicode's (PCRE2_UCP), as in the Rust crates these patterns
 * were written for. The last four alternatives together take any character, so no text is skipped.
 * */
static const struct {
    const char *name, *pattern;
} PATTERNS[] = {
    {"qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
              " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

const char *split_pattern(const char *name) {
    for (size_t i = 0; i < ARRAY_COUNT(PATTERNS); i++)
        if (strcmp(PATTERNS[i].name, name) == 0) return PATTERNS[i].pattern;
    return NULL;
}

const char *split_name(const char *pattern, size_t bytes) {
    for (size_t i = 0; i < ARRAY_COUNT(PATTERNS); i++)
        if (strlen(PATTERNS[i].pattern) == bytes &&
            memcmp(PATTERNS[i].pattern, pattern, bytes) == 0)
            return PATTERNS[i].name;
    return NULL;
}

struct splitter {
    pcre2_code *code;
    bool jit;
};

struct splitter *splitter_create(const char *name) {
    const char *pattern = split_pattern(name);
    CHECK(pattern != NULL);
    struct splitter *s = mem_alloc(1, sizeof *s);
    int error = 0;
    PCRE2_SIZE offset = 0;
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                            &error, &offset, NULL);
    CHECK(s->code != NULL);
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0; /* else the interpreter */
    return s;
}

void splitter_destroy(struct splitter *s) {
    if (s == NULL) return;
    pcre2_code_free(s->code);
    mem_free(s);
}

/* Length of the well-formed character at p, 0 where there is none. */
static size_t utf8_char(const uint8_t *p, size_t n) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2) return 0;
    if (p[0] < 0xe0) return n >= 2 && (p[1] & 0xc0) == 0x80 ? 2 : 0;
    if (p[0] < 0xf0) {
        if (n < 3 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80) return 0;
        if (p[0] == 0xe0 && p[1] < 0xa0) return 0; /* too long a form */
        if (p[0] == 0xed && p[1] > 0x9f) return 0; /* surrogate */
        return 3;
    }
    if (p[0] > 0xf4 || n < 4) return 0;
    if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0; /* beyond U+10FFFF */
    return 4;
}

size_t utf8_prefix(const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    while (i < bytes) {
        uint64_t eight;
        while (i + 8 <= bytes) {
            memcpy(&eight, p + i, 8);
            if (eight & UINT64_C(0x8080808080808080)) break;
            i += 8;
        }
        if (i == bytes) break;
        size_t n = utf8_char(p + i, bytes - i);
        if (n == 0) break;
        i += n;
    }
    return i;
}

void words_init(struct words *w, const struct splitter *s) {
    *w = (struct words){.splitter = s, .shortcut = true};
    w->match = pcre2_match_data_create(2, NULL);
    CHECK(w->match != NULL);
}

void words_fini(struct words *w) {
    if (w->match != NULL) pcre2_match_data_free(w->match);
    *w = (struct words){0};
}

void words_start(struct words *w, const char *text, size_t bytes) {
    w->text = text;
    w->bytes = bytes;
    w->at = 0;
    w->run_end = utf8_prefix(text, bytes);
}

/* The run of bytes at w->at that are no UTF-8. */
static size_t words_stray(struct words *w) {
    const uint8_t *p = (const uint8_t *)w->text;
    size_t end = w->at;
    do end++;
    while (end < w->bytes && utf8_char(p + end, w->bytes - end) == 0);
    w->run_end = end + utf8_prefix(w->text + end, w->bytes - end);
    return end;
}

static bool is_letter(uint8_t c) {
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* Most words of English are " word", or a mark before a blank. For those the pattern's answer is
 * known without asking PCRE2, which costs several times more: letters go on until something that
 * is no letter, and a mark (c is neither blank, letter nor digit) that a blank follows stands
 * alone. Gives the end of such a word, or 0 where the pattern must be asked, as for everything
 * that touches a byte beyond ASCII. All patterns in the table have this in common. */
static size_t words_shortcut(const struct words *w) {
    const uint8_t *p = (const uint8_t *)w->text;
    size_t i = w->at;
    uint8_t c = p[i];
    if (c == ' ' && i + 1 < w->run_end) i++;
    if (is_letter(p[i])) {
        do i++;
        while (i < w->run_end && is_letter(p[i]));
        return i == w->run_end || p[i] < 0x80 ? i : 0;
    }
    if (i == w->at && c > ' ' && c < 0x7f && (uint8_t)(c - '0') > 9 && i + 1 < w->run_end &&
        p[i + 1] == ' ')
        return i + 1;
    return 0;
}

bool words_next(struct words *w, const char **out, size_t *out_bytes) {
    if (w->at == w->bytes) return false;
    size_t start = w->at, end;
    if (start == w->run_end) {
        end = words_stray(w);
    } else if (!w->shortcut || (end = words_shortcut(w)) == 0) {
        const struct splitter *s = w->splitter;
        PCRE2_SPTR text = (PCRE2_SPTR)w->text;
        int n = s->jit ? pcre2_jit_match(s->code, text, w->run_end, start, PCRE2_NO_UTF_CHECK,
                                         w->match, NULL)
                       : pcre2_match(s->code, text, w->run_end, start, PCRE2_NO_UTF_CHECK, w->match,
                                     NULL);
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
        /* A limit of PCRE2's (never seen) makes the rest of the run one word: still all bytes. */
        if (n < 0)
            end = w->run_end;
        else
            end = found[0] == start && found[1] > start ? found[1] : w->run_end;
    }
    *out = w->text + start;
    *out_bytes = end - start;
    w->at = end;
    return true;
}
