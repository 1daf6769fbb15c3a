/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_memory.c - libFuzzer on the header of a slot in memory, which any process of the user may have written.
 *   make fuzz F=memory SECONDS=60
 * A header that is accepted has one form, and sizes that fit a machine. */
#include <string.h>

#include "train/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct memory_mark m;
    uint8_t in[MEMORY_HEADER_BYTES], again[MEMORY_HEADER_BYTES];
    if (size < sizeof in) return 0;
    memcpy(in, data, sizeof in);
    if (memory_mark_decode(in, &m, NULL) != BRG_OK) { /* past its sum, where chance does not get */
        struct checksum k;
        checksum_init(&k);
        checksum_update(&k, in, sizeof in - 8);
        put_le64(in + sizeof in - 8, checksum_final(&k));
        if (memory_mark_decode(in, &m, NULL) != BRG_OK) return 0;
    }
    CHECK(m.shard < m.shape.ranks);
    CHECK(m.books_bytes <= MEMORY_BOOKS_MAX);
    CHECK(memory_slot_bytes(m.own) >= 12 * m.own);
    memory_mark_encode(&m, again);
    CHECK(memcmp(again, in, sizeof again) == 0);
    return 0;
}
