/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a text, for tokenizers of the three kinds: the first byte says which, and whether
 * special tokens count. Decoding gives back the bytes, or, with a normalizer, their form C as utf8proc
 * has it, with U+FFFD for what is ill-formed. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer.h"
#include "data/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { KINDS = 4 };

static struct tokenizer *kind(int k) {
    static const char *const FILES[KINDS] = {"test/golden/tokenizer/qwen3-small.json",
                                             "test/golden/tokenizer/llama3-small.json",
                                             "test/golden/tokenizer/gpt2-small.json", NULL};
    static struct tokenizer *read[KINDS];
    struct err e;
    if (read[k] == NULL && FILES[k] != NULL)
        CHECK(tokenizer_load(FILES[k], &read[k], &e) == BRG_OK);
    if (read[k] == NULL) read[k] = tokenizer_bytes();
    return read[k];
}

/* What decoding should give. Added tokens bound the normalizer's reach, so it is not asked of texts
 * that hold one: '<' is left out. */
static void check(const struct tokenizer *t, const char *text, size_t n, const struct buf *back) {
    if (t->normal == NULL) {
        CHECK(back->bytes_count == n);
        CHECK(n == 0 || memcmp(back->data, text, n) == 0);
        return;
    }
    if (n > 0 && (memchr(text, '<', n) != NULL || memchr(text, 0, n) != NULL)) return;
    struct buf good;
    buf_init(&good, 1 << 24);
    utf8_repair(text, n, &good);
    utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)buf_cstr(&good));
    CHECK(want != NULL);
    CHECK(strlen((const char *)want) == back->bytes_count);
    CHECK(back->bytes_count == 0 || memcmp(want, back->data, back->bytes_count) == 0);
    free(want);
    buf_fini(&good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct encoder *encoders[KINDS]; /* kept: their caches are under test, too */
    static struct buf ids, back;
    struct err e;
    if (n == 0) return 0;
    int k = data[0] % KINDS;
    enum tokenizer_special special = (data[0] & 0x80) != 0 ? SPECIAL_AS_IDS : SPECIAL_AS_TEXT;
    const struct tokenizer *t = kind(k);
    if (encoders[k] == NULL) encoders[k] = encoder_create(t, 1 << 14);
    buf_reset(&ids);
    buf_reset(&back);
    ids.bytes_max = back.bytes_max = 1 << 26;
    const char *text = (const char *)data + 1;
    CHECK(encoder_run(encoders[k], text, n - 1, special, &ids, &e) == BRG_OK);
    size_t count = ids.bytes_count / 4;
    uint32_t *list = mem_alloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) {
        list[i] = get_le32(ids.data + 4 * i);
        CHECK(special == SPECIAL_AS_IDS || list[i] != tokenizer_eot(t));
    }
    CHECK(tokenizer_decode(t, list, count, &back, &e) == BRG_OK);
    check(t, text, n - 1, &back);
    mem_free(list);
    return 0;
}
