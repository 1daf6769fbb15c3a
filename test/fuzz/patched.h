/* SPDX-License-Identifier: Apache-2.0 */
/* patched.h - bytes of a good file with a few wrong ones: what a fuzzer rarely finds by itself where counts, sizes and
 * names have to fit each other. The input is a list of u16 place (from the end where it is 0x8000 or more) | u8 value;
 * what is left at its end says how many bytes are cut off. An input that begins with 'r' is the file itself. */
#ifndef TEST_FUZZ_PATCHED_H
#define TEST_FUZZ_PATCHED_H

#include <string.h>

#include "base/base.h"

/* Into out (good->bytes_count + n bytes have room there); gives its length. */
static inline size_t patched(const struct buf *good, const uint8_t *data, size_t n, uint8_t *out) {
    if (n > 0 && data[0] == 'r') {
        if (n > 1) memcpy(out, data + 1, n - 1);
        return n - 1;
    }
    size_t bytes = good->bytes_count;
    if (bytes > 0) memcpy(out, good->data, bytes);
    for (; n >= 3; n -= 3, data += 3) {
        size_t at = (size_t)data[0] << 8 | data[1];
        at = at < 0x8000 ? at : bytes - 1 - at % 0x8000 % bytes;
        if (at < bytes) out[at] = data[2];
    }
    size_t cut = n == 2 ? (size_t)data[0] << 8 | data[1] : 0;
    return cut < bytes ? bytes - cut : bytes;
}

#endif
