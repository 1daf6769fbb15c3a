/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.c - one pass over the pattern; what is not known to mean the same in both languages is
 * refused. Syntax of the source: Oniguruma 6.9, doc/RE; of the target: pcre2pattern(3). */
#include "data/pattern.h"

#include <stdio.h>
#include <string.h>

struct pattern {
    const char *text;
    size_t bytes, at;
    struct buf *out;
    char *why;
};

static bool refuse(struct pattern *p, const char *what) {
    snprintf(p->why, 120, "at byte %zu: %s", p->at, what);
    return false;
}

static char peek(const struct pattern *p, size_t k) {
    return k < p->bytes - p->at ? p->text[p->at + k] : 0;
}

static bool starts(const struct pattern *p, const char *s) {
    return p->bytes - p->at >= strlen(s) && memcmp(p->text + p->at, s, strlen(s)) == 0;
}

static void copy(struct pattern *p, size_t n) {
    buf_put(p->out, p->text + p->at, n);
    p->at += n;
}

static void put(struct pattern *p, const char *s) {
    buf_put(p->out, s, strlen(s));
}

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* ---- \p{...} */
static bool in_list(const char *const *list, const char *name) {
    for (; *list != NULL; list++)
        if (strcmp(*list, name) == 0) return true;
    return false;
}

static bool property(struct pattern *p) {
    static const char *const CATEGORIES[] = {
        "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
        "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
        "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", NULL};
    static const char *const SCRIPTS[] = {
        "Arabic",   "Armenian", "Bengali",   "Bopomofo",  "Cyrillic", "Devanagari",
        "Ethiopic", "Georgian", "Greek",     "Gujarati",  "Gurmukhi", "Han",
        "Hangul",   "Hebrew",   "Hiragana",  "Kannada",   "Katakana", "Khmer",
        "Lao",      "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",
        "Sinhala",  "Tamil",    "Telugu",    "Thai",      "Tibetan",  NULL};
    char name[24], sign = peek(p, 1);
    size_t n = 0, k = 3;
    if (peek(p, 2) != '{') return refuse(p, "a property wants braces, as in \\p{L}");
    if (peek(p, k) == '^') {
        sign = sign == 'p' ? 'P' : 'p';
        k++;
    }
    while (is_alnum(peek(p, k)) && n < sizeof name - 1) name[n++] = peek(p, k++);
    name[n] = 0;
    bool script = in_list(SCRIPTS, name);
    if (peek(p, k) != '}' || (!script && !in_list(CATEGORIES, name)))
        return refuse(p, "a property that is neither a general category nor a common script");
    buf_printf(p->out, "\\%c{%s%s}", sign, script ? "sc:" : "", name);
    p->at += k + 1;
    return true;
}

/* ---- \x, \u */
static bool code_point(struct pattern *p) {
    uint32_t c = 0;
    size_t k = 2, digits = 0, want = peek(p, 1) == 'u' ? 4 : 2;
    bool braces = peek(p, 1) == 'x' && peek(p, 2) == '{';
    if (braces) {
        k++;
        want = 6;
    }
    for (; digits < want && hex_value(peek(p, k)) >= 0; digits++, k++)
        c = c << 4 | (uint32_t)hex_value(peek(p, k));
    if (digits == 0 || (!braces && digits != want) || (braces && peek(p, k) != '}'))
        return refuse(p, "a code point that is not written in full");
    if ((peek(p, 1) == 'x' && !braces && c > 0x7f) || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return refuse(p, "a code point that is no character");
    p->at += k + (braces ? 1 : 0);
    buf_printf(p->out, "\\x{%x}", c);
    return true;
}

static bool escape(struct pattern *p, bool in_class) {
    char c = peek(p, 1);
    switch (c) {
    case 's': put(p, "\\p{White_Space}"); break;
    case 'S': put(p, "\\P{White_Space}"); break;
    case 'd': put(p, "\\p{Nd}"); break;
    case 'D': put(p, "\\P{Nd}"); break;
    case 'v': put(p, "\\x0b"); break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e': copy(p, 2); return true;
    case 'A':
    case 'z':
        if (in_class) return refuse(p, "an anchor within a class");
        copy(p, 2);
        return true;
    case 'p':
    case 'P': return property(p);
    case 'x':
    case 'u': return code_point(p);
    default:
        if (c <= ' ' || c == 0x7f || is_alnum(c))
            return refuse(p,
                          "an escape that is not supported; those are \\s \\S \\d \\D \\p \\P \\r "
                          "\\n \\t \\f \\v \\A \\z and code points");
        copy(p, 2);
        return true;
    }
    p->at += 2;
    return true;
}

static bool class_of(struct pattern *p) {
    copy(p, peek(p, 1) == '^' ? 2 : 1);
    if (peek(p, 0) == ']') return refuse(p, "an empty class");
    while (p->at < p->bytes) {
        char c = peek(p, 0);
        if (c == ']') {
            copy(p, 1);
            return true;
        }
        if (c == '[') return refuse(p, "a class within a class; write \\[ for the character");
        if (starts(p, "&&")) return refuse(p, "an intersection of classes");
        if (c == '\\') {
            bool set = peek(p, 1) != 0 && strchr("sSdDpP", peek(p, 1)) != NULL;
            if (!escape(p, true)) return false;
            if (set && peek(p, 0) == '-' && peek(p, 1) != ']')
                return refuse(p, "a range that begins with a class");
        } else {
            copy(p, 1);
        }
    }
    return refuse(p, "a class without an end");
}

static bool group(struct pattern *p) {
    static const char *const OPENINGS[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                           "(?<=", "(?<!", "(?i:", NULL};
    if (starts(p, "(*")) return refuse(p, "a verb");
    if (!starts(p, "(?")) {
        copy(p, 1);
        return true;
    }
    for (size_t i = 0; OPENINGS[i] != NULL; i++)
        if (starts(p, OPENINGS[i])) {
            copy(p, strlen(OPENINGS[i]));
            return true;
        }
    if (p->at == 0 && starts(p, "(?i)")) {
        copy(p, 4);
        return true;
    }
    return refuse(p, "a group that is not supported; those are (?: (?= (?! (?> (?<= (?<! (?i: and "
                     "(?i) in front");
}

/* {n} {n,} {n,m} {,m}; any other brace is a character. */
static bool braces(struct pattern *p) {
    size_t k = 1, first, second = 0;
    while (peek(p, k) >= '0' && peek(p, k) <= '9') k++;
    first = k - 1;
    bool comma = peek(p, k) == ',';
    if (comma) {
        k++;
        for (; peek(p, k) >= '0' && peek(p, k) <= '9'; k++) second++;
    }
    if (peek(p, k) != '}' || first + second == 0) {
        put(p, "\\");
        copy(p, 1);
        return true;
    }
    if (first > 4 || second > 4) return refuse(p, "a repetition beyond 9999");
    put(p, first == 0 ? "{0" : "{");
    p->at++;
    copy(p, k);
    if (peek(p, 0) == '+' || (peek(p, 0) == '?' && !comma))
        return refuse(p, "a sign behind a repetition in braces");
    return true;
}

bool pattern_translate(const char *text, size_t bytes, struct buf *out, char why[120]) {
    struct pattern p = {.text = text, .bytes = bytes, .out = out, .why = why};
    if (bytes > PATTERN_BYTES_MAX) return refuse(&p, "it is longer than 16384 bytes");
    if (memchr(text, 0, bytes) != NULL) return refuse(&p, "it holds a NUL");
    while (p.at < bytes) {
        char c = peek(&p, 0);
        bool good = true;
        if (c == '\\')
            good = escape(&p, false);
        else if (c == '[')
            good = class_of(&p);
        else if (c == '(')
            good = group(&p);
        else if (c == '{')
            good = braces(&p);
        else if (c == '}' || c == ']') {
            put(&p, "\\");
            copy(&p, 1);
        } else
            copy(&p, 1);
        if (!good) return false;
    }
    return true;
}

void pattern_quote(const char *text, size_t bytes, struct buf *out) {
    for (size_t i = 0; i < bytes; i++) {
        if ((uint8_t)text[i] < 0x80 && !is_alnum(text[i]))
            buf_printf(out, "\\x{%x}", text[i]);
        else
            buf_u8(out, (uint8_t)text[i]);
    }
}
