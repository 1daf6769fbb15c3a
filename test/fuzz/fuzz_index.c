/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_index.c - libFuzzer on model.safetensors.index.json.
 *   make fuzz F=index SECONDS=60
 * What is accepted must name plain files, find each of its tensors again, and survive being written and
 * read. */
#include <string.h>

#include "store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tensor_index *x) {
    CHECK(x->places_count > 0);
    for (size_t i = 0; i < x->files_count; i++) {
        CHECK(strchr(x->files[i], '/') == NULL);
        CHECK(x->files[i][0] != '.');
    }
    for (size_t i = 0; i < x->places_count; i++) {
        CHECK(x->places[i].file < x->files_count);
        CHECK(tensor_index_find(x, x->places[i].name) == &x->places[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tensor_index x = {0}, y = {0};
    struct err e;
    if (tensor_index_parse(data, size, "input", &x, &e) != BRG_OK) return 0;
    check(&x);
    struct buf b;
    buf_init(&b, 1 << 24);
    tensor_index_print(&x, 1, &b);
    CHECK(tensor_index_parse(b.data, b.bytes_count, "again", &y, &e) == BRG_OK);
    CHECK(x.places_count == y.places_count);
    for (size_t i = 0; i < x.places_count; i++)
        CHECK(strcmp(x.files[x.places[i].file], y.files[y.places[i].file]) == 0);
    buf_fini(&b);
    tensor_index_fini(&x);
    tensor_index_fini(&y);
    return 0;
}
