/* SPDX-License-Identifier: Apache-2.0 */
#include "data/json_scan.h"

#include <string.h>

#include "data/utf8.h"

static void blanks(struct json_scan *s) {
    while (s->at < s->bytes) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        s->at++;
    }
}

bool scan_char(struct json_scan *s, char c) {
    blanks(s);
    if (s->at == s->bytes || s->text[s->at] != c) return false;
    s->at++;
    return true;
}

bool scan_end(struct json_scan *s) {
    blanks(s);
    return s->at == s->bytes;
}

static bool hex4(struct json_scan *s, uint32_t *out) {
    if (s->bytes - s->at < 4) return false;
    *out = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = (uint8_t)s->text[s->at], low = c | 0x20;
        if (c >= '0' && c <= '9')
            *out = *out << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *out = *out << 4 | (uint32_t)(low - 'a' + 10);
        else
            return false;
        s->at++;
    }
    return true;
}

/* Behind the backslash. */
static bool escape(struct json_scan *s, struct buf *out) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->bytes) return false;
    char c = s->text[s->at++];
    if (c != 'u') {
        const char *p = c == 0 ? NULL : strchr(FROM, c);
        if (p != NULL) buf_u8(out, (uint8_t)TO[p - FROM]);
        return p != NULL;
    }
    uint32_t high, low;
    if (!hex4(s, &high)) return false;
    if (high >= 0xdc00 && high <= 0xdfff) return false;
    if (high >= 0xd800 && high <= 0xdbff) {
        if (s->bytes - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
            return false;
        s->at += 2;
        if (!hex4(s, &low) || low < 0xdc00 || low > 0xdfff) return false;
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    char bytes[4];
    buf_put(out, bytes, utf8_encode(high, bytes));
    return true;
}

bool scan_string(struct json_scan *s, struct buf *out) {
    buf_reset(out);
    if (!scan_char(s, '"')) return false;
    for (;;) {
        size_t from = s->at;
        while (s->at < s->bytes && s->text[s->at] != '"' && s->text[s->at] != '\\' &&
               (uint8_t)s->text[s->at] >= 0x20)
            s->at++;
        buf_put(out, s->text + from, s->at - from);
        if (s->at == s->bytes) return false;
        char c = s->text[s->at];
        if (c == '\\') {
            s->at++;
            if (!escape(s, out)) return false;
        } else if (c == '"') {
            s->at++;
            break;
        } else {
            return false;
        }
    }
    return !out->overflow &&
           utf8_prefix((const char *)out->data, out->bytes_count) == out->bytes_count;
}

bool scan_u64(struct json_scan *s, uint64_t *out) {
    blanks(s);
    size_t from = s->at;
    uint64_t n = 0;
    for (; s->at < s->bytes && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++) {
        if (n > (UINT64_MAX - 9) / 10) return false;
        n = n * 10 + (uint64_t)(s->text[s->at] - '0');
    }
    if (s->at == from || (s->at > from + 1 && s->text[from] == '0')) return false;
    if (s->at < s->bytes && s->text[s->at] != 0 && strchr(".eE", s->text[s->at]) != NULL)
        return false;
    *out = n;
    return true;
}

static bool skip_string(struct json_scan *s) {
    for (s->at++; s->at < s->bytes; s->at++) {
        if (s->text[s->at] == '\\')
            s->at++;
        else if (s->text[s->at] == '"')
            return true;
    }
    return false;
}

bool scan_skip(struct json_scan *s, size_t *out_begin) {
    blanks(s);
    size_t depth = 0, begin = s->at;
    for (; s->at < s->bytes; s->at++) {
        char c = s->text[s->at];
        if (c == '"') {
            if (!skip_string(s)) {
                s->at = s->bytes;
                return false;
            }
        } else if (c == '{' || c == '[') {
            depth++;
            continue;
        } else if (c == '}' || c == ']') {
            if (depth == 0) break; /* of what stands around */
            depth--;
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
            break;
        } else {
            continue;
        }
        if (depth == 0) {
            s->at++;
            break;
        }
    }
    *out_begin = begin;
    return depth == 0 && s->at > begin;
}
