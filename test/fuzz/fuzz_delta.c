/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_delta.c - libFuzzer on a delta file: header, then payload.
 *   make fuzz F=delta SECONDS=60
 * A payload that decodes must decode to finite numbers, equally with the plain and the wide instructions,
 * and what they encode to must decode to them again (the quantising codecs to within their step: a scale
 * may round). */
#include <math.h>
#include <string.h>

#include "outer/codec_parts.h"

enum { ELEMENTS_MAX = 9000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct delta_header h;
    uint8_t again[DELTA_HEADER_BYTES];
    static float x[ELEMENTS_MAX], y[ELEMENTS_MAX];
    static uint8_t coded[4 * ELEMENTS_MAX];
    if (size < DELTA_HEADER_BYTES) return 0;
    if (delta_header_decode(data, &h, NULL) != BRG_OK) return 0;
    delta_header_encode(&h, again);
    CHECK(memcmp(again, data, sizeof again) == 0);

    size_t n = h.elements % (ELEMENTS_MAX + 1);
    if (codec_bytes(h.codec, n) > size - DELTA_HEADER_BYTES) return 0;
    enum brg_status got = codec_decode(h.codec, data + DELTA_HEADER_BYTES, n, x);
    codec_plain_only = true;
    CHECK(codec_decode(h.codec, data + DELTA_HEADER_BYTES, n, y) == got);
    codec_plain_only = false;
    if (got != BRG_OK) return 0;
    if (n > 0) CHECK(memcmp(x, y, 4 * n) == 0);
    for (size_t i = 0; i < n; i++) CHECK(isfinite(x[i]));
    if (codec_encode(h.codec, x, n, coded) != BRG_OK) return 0;
    CHECK(codec_decode(h.codec, coded, n, y) == BRG_OK);
    if (h.codec <= CODEC_BF16 && n > 0) CHECK(memcmp(x, y, 4 * n) == 0);
    struct delta_stats s = {0};
    delta_stats_chunk(&s, y, x, n);
    CHECK(isfinite(s.norm2));
    return 0;
}
