/* SPDX-License-Identifier: Apache-2.0 */
#include "data/utf8.h"

#include <string.h>

size_t utf8_char(const uint8_t *p, size_t n) {
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

uint32_t utf8_decode(const uint8_t *p, size_t *out_bytes) {
    if (p[0] < 0x80) {
        *out_bytes = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *out_bytes = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *out_bytes = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *out_bytes = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

size_t utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Length of the maximal subpart at p, which begins no well-formed character: the longest beginning
 * that some well-formed character has, or else one byte. */
static size_t subpart(const uint8_t *p, size_t n) {
    uint8_t low = 0x80, high = 0xbf;
    size_t want = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2, i = 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 1;
    if (p[0] == 0xe0) low = 0xa0;
    if (p[0] == 0xed) high = 0x9f;
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f;
    for (; i < n && i < want && p[i] >= low && p[i] <= high; i++) {
        low = 0x80;
        high = 0xbf;
    }
    return i;
}

void utf8_repair(const char *text, size_t bytes, struct buf *out) {
    for (size_t i = 0; i < bytes;) {
        size_t good = utf8_prefix(text + i, bytes - i);
        buf_put(out, text + i, good);
        i += good;
        if (i == bytes) break;
        buf_put(out, "\xef\xbf\xbd", 3);
        i += subpart((const uint8_t *)text + i, bytes - i);
    }
}

bool utf8_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
