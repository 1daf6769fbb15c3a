/* SPDX-License-Identifier: Apache-2.0 */
/* writer.c - JSON values into a buffer. Text that the program makes (causes, paths) may hold any byte;
 * what leaves here is always valid UTF-8 JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/json.h"

void json_key(struct buf *out, bool *first, const char *key) {
    if (!*first) buf_u8(out, ',');
    *first = false;
    json_put_text(out, key);
    buf_u8(out, ':');
}

/* Length of the well-formed UTF-8 sequence at p (RFC 3629: no surrogates, no overlong forms), or 0. */
static size_t utf8_length(const uint8_t *p) {
    size_t n;
    uint32_t c;
    if (p[0] < 0x80) return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        n = 2;
        c = p[0] & 0x1FU;
    } else if ((p[0] & 0xF0) == 0xE0) {
        n = 3;
        c = p[0] & 0x0FU;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        n = 4;
        c = p[0] & 0x07U;
    } else {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0; /* the closing NUL ends here too */
        c = c << 6 | (p[i] & 0x3FU);
    }
    if (n == 3 && (c < 0x800 || (c >= 0xD800 && c <= 0xDFFF))) return 0;
    if (n == 4 && (c < 0x10000 || c > 0x10FFFF)) return 0;
    return n;
}

void json_put_text(struct buf *out, const char *text) {
    const uint8_t *p = (const uint8_t *)text;
    buf_u8(out, '"');
    while (*p != '\0') {
        if (*p == '"' || *p == '\\') {
            buf_u8(out, '\\');
            buf_u8(out, *p++);
        } else if (*p < 0x20) {
            buf_printf(out, "\\u%04x", *p++);
        } else {
            size_t n = utf8_length(p);
            if (n == 0) {
                buf_u8(out, '?');
                p++;
            } else {
                buf_put(out, p, n);
                p += n;
            }
        }
    }
    buf_u8(out, '"');
}

void json_put_f64(struct buf *out, double v) {
    char text[40];
    if (!isfinite(v)) {
        buf_put(out, "null", 4);
        return;
    }
    int n = snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v) n = snprintf(text, sizeof text, "%.17g", v);
    CHECK(n > 0);
    buf_put(out, text, (size_t)n);
}

void json_member_text(struct buf *out, bool *first, const char *key, const char *text) {
    json_key(out, first, key);
    json_put_text(out, text);
}

void json_member_u64(struct buf *out, bool *first, const char *key, uint64_t v) {
    json_key(out, first, key);
    buf_printf(out, "%llu", (unsigned long long)v);
}

void json_member_f64(struct buf *out, bool *first, const char *key, double v) {
    json_key(out, first, key);
    json_put_f64(out, v);
}

void json_member_bool(struct buf *out, bool *first, const char *key, bool v) {
    json_key(out, first, key);
    buf_printf(out, "%s", v ? "true" : "false");
}

void json_member_id(struct buf *out, bool *first, const char *key, const struct id128 *v) {
    char hex[ID_HEX_BYTES];
    id_hex(v, hex);
    json_member_text(out, first, key, hex);
}

void json_member_hash(struct buf *out, bool *first, const char *key, const struct hash *v) {
    char hex[HASH_HEX_BYTES];
    hash_hex(v, hex);
    json_member_text(out, first, key, hex);
}
