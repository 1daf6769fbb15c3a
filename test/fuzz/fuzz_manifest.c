/* SPDX-License-Identifier: Apache-2.0 */
/* A file that may be a manifest.json; where it is one, writing and reading it again changes
 * nothing. */
#include "data/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct manifest m, again;
    struct err e;
    struct buf b;
    if (manifest_parse("fuzz", data, n, &m, &e) != BRG_OK) return 0;
    buf_init(&b, MANIFEST_BYTES_MAX);
    manifest_write(&m, &b);
    CHECK(manifest_parse("fuzz", b.data, b.bytes_count, &again, &e) == BRG_OK);
    struct hash x = manifest_fingerprint(&m), y = manifest_fingerprint(&again);
    CHECK(hash_equal(&x, &y));
    manifest_fini(&again);
    manifest_fini(&m);
    buf_fini(&b);
    return 0;
}
