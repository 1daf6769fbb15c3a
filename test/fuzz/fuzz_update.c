/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_update.c - libFuzzer on an update file: header, then the payload that is added to a version.
 *   make fuzz F=update SECONDS=60
 * A header that is accepted has one form; a payload that is accepted adds finite numbers. */
#include <math.h>
#include <string.h>

#include "outer/outer.h"

enum { ELEMENTS_MAX = 9000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct update_header h;
    uint8_t again[UPDATE_HEADER_BYTES];
    static float d[ELEMENTS_MAX];
    if (size < UPDATE_HEADER_BYTES) return 0;
    if (update_header_decode(data, &h, NULL) != BRG_OK) return 0;
    CHECK(h.from < h.to);
    update_header_encode(&h, again);
    CHECK(memcmp(again, data, sizeof again) == 0);
    size_t n = h.elements % (ELEMENTS_MAX + 1);
    if (codec_bytes(h.codec, n) > size - UPDATE_HEADER_BYTES) return 0;
    if (codec_decode(h.codec, data + UPDATE_HEADER_BYTES, n, d) != BRG_OK) return 0;
    for (size_t i = 0; i < n; i++) CHECK(isfinite(d[i]));
    return 0;
}
