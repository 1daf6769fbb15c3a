/* SPDX-License-Identifier: Apache-2.0 */
/* A file that may be a tokenizer.json; where it is one, and for the bytes otherwise, encoding and
 * decoding the input gives it back. */
#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void round_trip(const struct tokenizer *t, const uint8_t *data, size_t n) {
    struct buf ids, text;
    struct err e;
    buf_init(&ids, 1 << 24);
    buf_init(&text, 1 << 24);
    if (tokenizer_encode(t, (const char *)data, n, SPECIAL_AS_TEXT, &ids, &e) == BRG_OK) {
        size_t count = ids.bytes_count / 4;
        uint32_t *list = mem_alloc(count, sizeof *list);
        for (size_t i = 0; i < count; i++) list[i] = get_le32(ids.data + 4 * i);
        CHECK(tokenizer_decode(t, list, count, &text, &e) == BRG_OK);
        CHECK(text.bytes_count == n);
        CHECK(n == 0 || memcmp(text.data, data, n) == 0);
        mem_free(list);
    }
    buf_fini(&ids);
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char text[] = "the cat sat on the mat, that the rat that sat there hated";
    static struct tokenizer *trained;
    struct tokenizer *read = NULL;
    struct err e;
    if (trained == NULL) {
        const char *texts = text;
        size_t bytes = sizeof text - 1;
        CHECK(tokenizer_train(&texts, &bytes, 1, 262, &trained, &e) == BRG_OK);
    }
    round_trip(trained, data, n);
    if (tokenizer_parse("fuzz", data, n, &read, &e) == BRG_OK) round_trip(read, data, n);
    tokenizer_free(read);
    return 0;
}
