/* SPDX-License-Identifier: Apache-2.0 */
/* alphabet.c - GPT-2's alphabet: each byte is one printable character, the byte itself where that is
 * printable in Latin-1, else the next free one from U+0100 on. */
#include "data/tokenizer.h"
#include "data/utf8.h"

void alphabet_init(struct alphabet *a) {
    for (size_t i = 0; i < ARRAY_COUNT(a->of_char); i++) a->of_char[i] = -1;
    uint16_t next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        a->of_byte[b] = printable ? (uint16_t)b : next++;
        a->of_char[a->of_byte[b]] = (int16_t)b;
    }
    CHECK(next == ALPHABET_CHARS);
}

void alphabet_put(const struct alphabet *a, const uint8_t *p, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        buf_put(out, bytes, utf8_encode(a->of_byte[p[i]], bytes));
    }
}

bool alphabet_get(const struct alphabet *a, const char *text, size_t n, struct buf *out) {
    size_t start = out->bytes_count, k;
    for (size_t i = 0; i < n; i += k) {
        uint32_t c = utf8_decode((const uint8_t *)text + i, &k);
        if (c >= ALPHABET_CHARS || a->of_char[c] < 0) {
            out->bytes_count = start;
            return false;
        }
        buf_u8(out, (uint8_t)a->of_char[c]);
    }
    return true;
}
