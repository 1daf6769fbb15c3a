/* SPDX-License-Identifier: Apache-2.0 */
/* split.c - text -> words, by the steps of the tokenizer.
 *
 *   text --runs of well-formed UTF-8--> step 0 --pieces--> step 1 ... --> words
 *
 * A pattern works on characters and is compiled by PCRE2 with its JIT. Text from outside may hold
 * bytes that are no UTF-8; PCRE2's behaviour on those is undefined once its own check is off (and
 * with the check on, each call would cost the length of the text). So the text is cut into runs
 * here: well-formed runs go through the pattern, each run of other bytes is a word by itself. Where
 * all steps keep what they get, what comes out covers the input byte for byte, which is what makes
 * decode the inverse of encode.
 *
 * The way matches are looked for (find_next) and treated (split_piece) is that of Hugging Face's
 * tokenizers, empty matches included.
 *
 * A pattern may be made to turn in circles; PCRE2 counts its steps and gives up at MATCH_LIMIT, and
 * the text is refused rather than split in another way. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/split.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "data/pattern.h"
#include "data/utf8.h"

enum {
    MATCH_LIMIT = 10 * 1000 * 1000,
    HEAP_LIMIT_KB = 1 << 18,
    STACK_MIN = 1 << 15,
    STACK_MAX = 1 << 24
};

/* \s is White_Space and classes are Unicode's, as in the libraries these patterns were written for.
 * The alternatives of each together take any character, so no text is skipped. */
static const char *const PATTERNS[SPLIT_FAMILIES] = {
    [SPLIT_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [SPLIT_LLAMA3] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [SPLIT_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                   "\\s+(?!\\S)|\\s+",
};

const char *split_pattern(enum split_family f) {
    return PATTERNS[f];
}

struct step {
    pcre2_code *code; /* NULL: the step that puts a blank before */
    bool jit, invert, quoted;
    enum split_behavior behavior;
    enum split_family family;
    char *text; /* as the file has it */
};

struct splitter {
    struct step steps[SPLIT_STEPS_MAX];
    unsigned count;
};

struct splitter *splitter_create(void) {
    return mem_alloc(1, sizeof(struct splitter));
}

void splitter_destroy(struct splitter *s) {
    if (s == NULL) return;
    for (unsigned i = 0; i < s->count; i++) {
        pcre2_code_free(s->steps[i].code);
        mem_free(s->steps[i].text);
    }
    mem_free(s);
}

static bool has_room(const struct splitter *s, char why[160]) {
    if (s->count < SPLIT_STEPS_MAX) return true;
    snprintf(why, 160, "more than %d steps", SPLIT_STEPS_MAX);
    return false;
}

static pcre2_code *compile(const char *text, size_t bytes, bool quoted, char why[160]) {
    AUTO_BUF struct buf out;
    char reason[120];
    buf_init(&out, 64 * (size_t)PATTERN_BYTES_MAX);
    if (quoted) {
        pattern_quote(text, bytes, &out);
    } else if (!pattern_translate(text, bytes, &out, reason)) {
        snprintf(why, 160, "%s", reason);
        return NULL;
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile(
        (PCRE2_SPTR)buf_cstr(&out), out.bytes_count,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (code == NULL) {
        PCRE2_UCHAR said[100];
        pcre2_get_error_message(error, said, sizeof said);
        snprintf(why, 160, "PCRE2 does not take it: %s", (const char *)said);
    }
    return code;
}

static enum split_family family_of(const char *text, size_t bytes) {
    for (enum split_family f = SPLIT_OTHER + 1; f < SPLIT_FAMILIES; f++)
        if (strlen(PATTERNS[f]) == bytes && memcmp(PATTERNS[f], text, bytes) == 0) return f;
    return SPLIT_OTHER;
}

bool splitter_add(struct splitter *s, const char *text, size_t bytes, bool quoted,
                  enum split_behavior behavior, bool invert, char why[160]) {
    if (!has_room(s, why)) return false;
    pcre2_code *code = compile(text, bytes, quoted, why);
    if (code == NULL) return false;
    struct step *step = &s->steps[s->count++];
    *step = (struct step){.code = code,
                          .jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0,
                          .invert = invert,
                          .quoted = quoted,
                          .behavior = behavior,
                          .family = quoted ? SPLIT_OTHER : family_of(text, bytes)};
    step->text = mem_alloc(bytes + 1, 1);
    memcpy(step->text, text, bytes);
    return true;
}

bool splitter_add_blank(struct splitter *s, char why[160]) {
    if (!has_room(s, why)) return false;
    s->steps[s->count++] = (struct step){.text = mem_strdup("")};
    return true;
}

void splitter_add_family(struct splitter *s, enum split_family f) {
    char why[160];
    CHECK(splitter_add(s, PATTERNS[f], strlen(PATTERNS[f]), false, SPLIT_ISOLATED, false, why));
}

bool splitter_is_whole(const struct splitter *s) {
    for (unsigned i = 0; i < s->count; i++) {
        const struct step *x = &s->steps[i];
        if (x->code == NULL) return false;
        if (x->behavior == SPLIT_REMOVED && !(x->invert && x->family != SPLIT_OTHER)) return false;
    }
    return true;
}

bool splitter_is_simple(const struct splitter *s) {
    const struct step *x = &s->steps[0];
    return s->count == 1 && x->family != SPLIT_OTHER &&
           (x->behavior == SPLIT_ISOLATED || (x->behavior == SPLIT_REMOVED && x->invert));
}

void splitter_describe(const struct splitter *s, struct buf *out) {
    buf_u32(out, s->count);
    for (unsigned i = 0; i < s->count; i++) {
        const struct step *x = &s->steps[i];
        buf_u8(out, x->code == NULL ? 0 : x->quoted ? 2 : 1);
        buf_u8(out, (uint8_t)x->behavior);
        buf_u8(out, x->invert);
        buf_u32(out, (uint32_t)strlen(x->text));
        buf_put(out, x->text, strlen(x->text));
    }
}

/* ---- Matching */
void words_init(struct words *w, const struct splitter *s) {
    *w = (struct words){.splitter = s, .shortcut = true};
    w->match = pcre2_match_data_create(2, NULL);
    w->context = pcre2_match_context_create(NULL);
    CHECK(w->match != NULL);
    CHECK(w->context != NULL);
    pcre2_set_match_limit(w->context, MATCH_LIMIT);
    pcre2_set_heap_limit(w->context, HEAP_LIMIT_KB);
    for (int i = 0; i < SPLIT_STEPS_MAX; i++) buf_init(&w->blanks[i], SIZE_MAX / 4);
}

void words_fini(struct words *w) {
    if (w->match != NULL) pcre2_match_data_free(w->match);
    if (w->context != NULL) pcre2_match_context_free(w->context);
    if (w->stack != NULL) pcre2_jit_stack_free(w->stack);
    for (int i = 0; i < SPLIT_STEPS_MAX; i++) buf_fini(&w->blanks[i]);
    *w = (struct words){0};
}

/* The first match in text[0..bytes) that begins at `at` or later: 1, or 0; -1 at a limit. */
static int match(struct words *w, const struct step *x, const char *text, size_t bytes, size_t at,
                 size_t *out_begin, size_t *out_end) {
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (x->jit)
        n = pcre2_jit_match(x->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, w->match,
                            w->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT && x->jit && w->stack == NULL) {
        /* the 32 kB of the machine's stack are enough for nearly all there is */
        w->stack = pcre2_jit_stack_create(STACK_MIN, STACK_MAX, NULL);
        CHECK(w->stack != NULL);
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
        n = pcre2_jit_match(x->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, w->match,
                            w->context);
    }
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(x->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        w->match, w->context);
    if (n == PCRE2_ERROR_NOMATCH) return 0;
    if (n < 0) return -1;
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
    *out_begin = found[0];
    *out_end = found[1];
    return 1;
}

/* ---- By hand: the known patterns on ASCII text */
enum { LETTER = 1, DIGIT = 2, BLANK = 4, NEWLINE = 8, MARK = 16, BEYOND = 32 };

static uint8_t kind_of(uint8_t c) {
    if (c >= 0x80) return BEYOND;
    if ((uint8_t)((c | 0x20) - 'a') < 26) return LETTER;
    if ((uint8_t)(c - '0') < 10) return DIGIT;
    if (c == '\n' || c == '\r') return BLANK | NEWLINE;
    if (c == ' ' || (c >= 9 && c <= 13)) return BLANK;
    return MARK;
}

/* End of the run of characters of these kinds; 0 where a byte beyond ASCII ends it. */
static size_t run_of(const uint8_t *p, size_t i, size_t end, uint8_t kinds) {
    while (i < end && (kind_of(p[i]) & kinds) != 0) i++;
    return i < end && p[i] >= 0x80 ? 0 : i;
}

/* Behind an apostrophe at p[i]: the end of 's 't 're 've 'm 'll 'd, or i. */
static size_t contraction(const uint8_t *p, size_t i, size_t end, uint8_t fold) {
    if (i + 1 >= end) return i;
    uint8_t a = p[i + 1] | fold, b = i + 2 < end ? p[i + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return i;
}

static size_t blanks_end(const uint8_t *p, size_t i, size_t end, bool newlines) {
    size_t j = i, last = 0;
    for (; j < end && (kind_of(p[j]) & BLANK) != 0; j++)
        if (newlines && (kind_of(p[j]) & NEWLINE) != 0) last = j + 1;
    if (j < end && p[j] >= 0x80) return 0;
    if (last > 0) return last;
    /* the last blank goes with what follows, if there are others */
    return j < end && j - i > 1 ? j - 1 : j;
}

static size_t by_hand_gpt2(const uint8_t *p, size_t i, size_t end) {
    size_t at = i;
    if (p[i] == '\'') {
        size_t j = contraction(p, i, end, 0);
        if (j > i) return j;
    }
    if (p[i] == ' ' && i + 1 < end) at++;
    uint8_t kind = kind_of(p[at]);
    if ((kind & (LETTER | DIGIT | MARK)) != 0) return run_of(p, at, end, kind);
    return kind == BEYOND ? 0 : blanks_end(p, i, end, false);
}

/* Also a byte beyond ASCII behind an apostrophe has to be asked for: U+017F is an s to (?i). */
static size_t by_hand_qwen2(const uint8_t *p, size_t i, size_t end, size_t digits_max) {
    uint8_t kind = kind_of(p[i]), next = i + 1 < end ? kind_of(p[i + 1]) : 0;
    if (kind == LETTER) return run_of(p, i, end, LETTER);
    if (kind == DIGIT) {
        size_t j = i + 1;
        while (j < end && j - i < digits_max && kind_of(p[j]) == DIGIT) j++;
        return j - i < digits_max && j < end && p[j] >= 0x80 ? 0 : j;
    }
    if (next == BEYOND) return 0;
    if (p[i] == '\'') {
        size_t j = contraction(p, i, end, 0x20);
        if (j > i) return j;
    }
    if (next == LETTER && (kind & NEWLINE) == 0) return run_of(p, i + 1, end, LETTER);
    if (kind == MARK || (p[i] == ' ' && next == MARK)) {
        size_t j = run_of(p, i + 1, end, MARK);
        while (j > 0 && j < end && (kind_of(p[j]) & NEWLINE) != 0) j++;
        return j;
    }
    return blanks_end(p, i, end, true);
}

/* End of the word at w->at, or 0 where the pattern must be asked: where it could depend on a byte
 * beyond ASCII. */
static size_t by_hand(const struct words *w, enum split_family f) {
    const uint8_t *p = (const uint8_t *)w->text;
    if (p[w->at] >= 0x80) return 0;
    if (f == SPLIT_GPT2) return by_hand_gpt2(p, w->at, w->run_end);
    return by_hand_qwen2(p, w->at, w->run_end, f == SPLIT_LLAMA3 ? 3 : 1);
}

/* ---- Word by word */
void words_start(struct words *w, const char *text, size_t bytes) {
    w->text = text;
    w->bytes = bytes;
    w->at = 0;
    w->failed = false;
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

bool words_next(struct words *w, const char **out, size_t *out_bytes) {
    if (w->at == w->bytes || w->failed) return false;
    const struct step *x = &w->splitter->steps[0];
    size_t start = w->at, end, begin;
    if (start == w->run_end) {
        end = words_stray(w);
    } else if (!w->shortcut || (end = by_hand(w, x->family)) == 0) {
        if (match(w, x, w->text, w->run_end, start, &begin, &end) != 1 || begin != start ||
            end == start) {
            w->failed = true;
            return false;
        }
    }
    *out = w->text + start;
    *out_bytes = end - start;
    w->at = end;
    return true;
}

/* ---- Any steps */
struct each {
    struct words *words;
    word_fn *fn;
    void *user;
};

struct finder { /* of matches, as Oniguruma's binding for Rust finds them */
    const struct step *step;
    const char *text;
    size_t bytes, at, matched_to; /* matched_to: SIZE_MAX before the first */
};

static int find_next(struct words *w, struct finder *f, size_t *out_begin, size_t *out_end) {
    while (f->at <= f->bytes) {
        int n = match(w, f->step, f->text, f->bytes, f->at, out_begin, out_end);
        if (n != 1) return n;
        if (*out_begin == *out_end && f->matched_to == *out_end) {
            /* no empty match directly behind a match */
            f->at += f->at < f->bytes
                         ? utf8_char((const uint8_t *)f->text + f->at, f->bytes - f->at)
                         : 1;
            continue;
        }
        f->at = f->matched_to = *out_end;
        return 1;
    }
    return 0;
}

/* Pieces are given on one behind: the next one decides whether the held one grows. */
struct held {
    size_t begin, end;
    bool any, match; /* match: of the piece that came last */
};

static bool split_piece(struct each *e, unsigned step, const char *text, size_t bytes);

static bool held_out(struct each *e, unsigned step, const char *text, const struct held *h) {
    if (!h->any || h->begin == h->end) return true;
    return split_piece(e, step + 1, text + h->begin, h->end - h->begin);
}

static bool piece(struct each *e, unsigned step, const char *text, struct held *h, size_t begin,
                  size_t end, bool is_match) {
    const struct step *x = &e->words->splitter->steps[step];
    bool before = h->any && h->match, grow = false;
    is_match ^= x->invert;
    switch (x->behavior) {
    case SPLIT_ISOLATED: break;
    case SPLIT_REMOVED:
        if (is_match) return true;
        break;
    case SPLIT_CONTIGUOUS: grow = h->any && is_match == before; break;
    case SPLIT_MERGED_WITH_PREVIOUS: grow = h->any && is_match && !before; break;
    case SPLIT_MERGED_WITH_NEXT: grow = before && !is_match; break;
    }
    h->match = is_match;
    if (grow) {
        h->end = end;
        return true;
    }
    bool good = held_out(e, step, text, h);
    h->begin = begin;
    h->end = end;
    h->any = true;
    return good;
}

static bool split_piece(struct each *e, unsigned step, const char *text, size_t bytes) {
    struct words *w = e->words;
    if (step == w->splitter->count) {
        e->fn(text, bytes, e->user);
        return true;
    }
    const struct step *x = &w->splitter->steps[step];
    if (x->code == NULL) {
        if (text[0] == ' ') return split_piece(e, step + 1, text, bytes);
        struct buf *b = &w->blanks[step];
        buf_reset(b);
        buf_u8(b, ' ');
        buf_put(b, text, bytes);
        return split_piece(e, step + 1, (const char *)b->data, b->bytes_count);
    }
    struct finder f = {.step = x, .text = text, .bytes = bytes, .matched_to = SIZE_MAX};
    struct held h = {0};
    size_t at = 0, begin, end;
    int n;
    while ((n = find_next(w, &f, &begin, &end)) == 1) {
        if (at != begin && !piece(e, step, text, &h, at, begin, false)) return false;
        if (!piece(e, step, text, &h, begin, end, true)) return false;
        at = end;
    }
    if (n < 0) return false;
    if (at != bytes && !piece(e, step, text, &h, at, bytes, false)) return false;
    return held_out(e, step, text, &h);
}

bool words_each(struct words *w, const char *text, size_t bytes, word_fn *fn, void *user) {
    if (splitter_is_simple(w->splitter)) {
        const char *word;
        size_t n;
        words_start(w, text, bytes);
        while (words_next(w, &word, &n)) fn(word, n, user);
        return !w->failed;
    }
    struct each e = {.words = w, .fn = fn, .user = user};
    for (words_start(w, text, bytes); w->at < w->bytes;) {
        size_t from = w->at;
        if (from == w->run_end) {
            w->at = words_stray(w);
            fn(text + from, w->at - from, user);
        } else {
            w->at = w->run_end;
            if (!split_piece(&e, 0, text + from, w->run_end - from)) return false;
        }
    }
    return true;
}
