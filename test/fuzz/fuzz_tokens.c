/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as RUN/tokens.json, and as the header that a client sends. What is read is written and read again. */
#include <string.h>

#include "hub/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct tokens t, back;
    const struct token *k;
    struct err e;
    struct buf b;
    char text[512];
    size_t m = n < sizeof text ? n : sizeof text - 1;
    buf_init(&b, TOKENS_FILE_MAX);
    if (tokens_decode(data, n, &t, &e) == BRG_OK) {
        tokens_encode(&t, &b);
        CHECK(tokens_decode(b.data, b.bytes_count, &back, &e) == BRG_OK);
        CHECK(back.tokens_count == t.tokens_count);
    }
    memcpy(text, data, m);
    text[m] = '\0';
    char token[TOKEN_HEADER_MAX];
    if (token_of_header(text, token)) (void)tokens_find(&t, token, 5, &k);
    buf_fini(&b);
    return 0;
}
