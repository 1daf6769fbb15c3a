/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c - libFuzzer on the header of a safetensors file.
 *   make fuzz F=safetensors SECONDS=60
 * The input is the file; the file may also be longer than the part that was read. What is accepted
 * must lie in the file without gap or overlap, and must survive being written and read again. */
#include <string.h>

#include "store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layout(const struct tensors *t) {
    uint64_t at = t->data_offset;
    for (size_t i = 0; i < t->count; i++) {
        CHECK(t->v[i].offset == at);
        CHECK(t->v[i].bytes == t->v[i].elements * tensor_type_bytes(t->v[i].type));
        at += t->v[i].bytes;
    }
    CHECK(at == t->file_bytes);
}

static void check_again(struct tensors *t) {
    struct tensors back = {0};
    struct hash before = tensors_hash(t);
    struct buf header;
    struct err e;
    buf_init(&header, 1 << 24);
    CHECK(tensors_header(t, &header, &e) == BRG_OK);
    CHECK(tensors_parse(header.data, header.bytes_count, t->file_bytes, "again", &back, &e) ==
          BRG_OK);
    struct hash after = tensors_hash(&back);
    CHECK(hash_equal(&before, &after));
    CHECK(t->meta.bytes_count == back.meta.bytes_count);
    CHECK(memcmp(t->meta.data, back.meta.data, t->meta.bytes_count) == 0);
    tensors_fini(&back);
    buf_fini(&header);
}

static void one(const uint8_t *data, size_t size, uint64_t file_bytes) {
    struct tensors t = {0};
    struct err e;
    if (tensors_parse(data, size, file_bytes, "input", &t, &e) != BRG_OK) return;
    check_layout(&t);
    check_again(&t);
    tensors_fini(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    one(data, size, size);
    /* Most headers that a fuzzer finds promise data that is not there: pretend that it is. */
    if (size > 8) one(data, size, size + 4096);
    return 0;
}
