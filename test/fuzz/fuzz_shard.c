/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that may be a token shard: the first one chooses what the manifest says. */
#include "data/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct manifest m = {.seq_len = 4};
    struct err e;
    if (n == 0) return 0;
    uint64_t samples = data[0] >> 1;
    m.vocab = data[0] & 1 ? 70000 : 257;
    m.token_bytes = shard_token_bytes(m.vocab);
    data++;
    n--;
    if (shard_check("fuzz", data, n, &m, samples, &e) != BRG_OK) return 0;
    CHECK(n == SHARD_HEAD_BYTES + shard_tokens(samples, m.seq_len) * m.token_bytes);
    struct hash h = hash_of(data, n);
    if (shard_verify("fuzz", data, n, &m, &h, &e) != BRG_OK) return 0;
    h.v[0] ^= 1;
    CHECK(shard_verify("fuzz", data, n, &m, &h, &e) == BRG_E_SHARD);
    return 0;
}
