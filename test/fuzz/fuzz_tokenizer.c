/* SPDX-License-Identifier: Apache-2.0 */
/* A file that may be a tokenizer.json: whatever it holds, reading ends with a tokenizer or with one
 * line that names the field; what is read encodes a text, and decodes its ids again. */
#include "data/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const struct tokenizer *t) {
    static const char text[] = "the cat's <|endoftext|> caf\xc3\xa9 e\xcc\x81 12345 \xff\n\n  <t>x";
    struct buf ids, back;
    struct err e;
    buf_init(&ids, 1 << 20);
    buf_init(&back, 1 << 24);
    if (tokenizer_encode(t, text, sizeof text - 1, SPECIAL_AS_TEXT, &ids, &e) == BRG_OK) {
        size_t count = ids.bytes_count / 4;
        uint32_t *list = mem_alloc(count, sizeof *list);
        for (size_t i = 0; i < count; i++) {
            list[i] = get_le32(ids.data + 4 * i);
            CHECK(list[i] < tokenizer_vocab(t));
            CHECK(list[i] != tokenizer_eot(t));
        }
        CHECK(tokenizer_decode(t, list, count, &back, &e) == BRG_OK);
        mem_free(list);
    }
    buf_fini(&ids);
    buf_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct tokenizer *t = NULL;
    struct err e = {.text = ""};
    enum brg_status s = tokenizer_parse("fuzz", data, n, &t, &e);
    if (s == BRG_OK) {
        use(t);
        tokenizer_free(t);
    } else {
        CHECK(s == BRG_E_TOKENIZER);
        CHECK(strncmp(e.text, "fuzz", 4) == 0);
        CHECK(strchr(e.text, '\n') == NULL);
    }
    return 0;
}
