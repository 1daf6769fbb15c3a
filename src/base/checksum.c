/* SPDX-License-Identifier: Apache-2.0 */
/* checksum.c - see base.h. Four lanes, so that the multiplications overlap. */
#include <string.h>

#include "base/base.h"

static uint64_t lane_add(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * 0x9e3779b97f4a7c15u;
    return lane ^ (lane >> 29);
}

void checksum_init(struct checksum *k) {
    *k = (struct checksum){.lane = {1, 2, 3, 4}};
}

static void block_add(struct checksum *k, const uint8_t *p) {
    for (int i = 0; i < 4; i++) k->lane[i] = lane_add(k->lane[i], get_le64(p + 8 * i));
}

void checksum_update(struct checksum *k, const void *data, size_t n) {
    const uint8_t *p = data;
    size_t have = k->bytes % 32;
    k->bytes += n;
    if (have > 0) {
        size_t take = n < 32 - have ? n : 32 - have;
        memcpy(k->tail + have, p, take);
        p += take, n -= take;
        if (have + take < 32) return;
        block_add(k, k->tail);
    }
    for (; n >= 32; p += 32, n -= 32) block_add(k, p);
    if (n > 0) memcpy(k->tail, p, n);
}

uint64_t checksum_final(const struct checksum *k) {
    struct checksum c = *k;
    size_t have = c.bytes % 32;
    memset(c.tail + have, 0, 32 - have);
    block_add(&c, c.tail);
    uint64_t h = c.bytes;
    for (int i = 0; i < 4; i++) h = mix64(h ^ c.lane[i]);
    return h;
}
