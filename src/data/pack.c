/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pack.h"

bool pack_is_heldout(const char *text, size_t bytes, double share) {
    struct hash h = hash_of(text, bytes);
    /* 53 bits are what a double holds exactly. */
    return (double)(get_le64(h.v) >> 11) < share * 0x1p53;
}

void cutter_init(struct cutter *c, uint32_t seq_len) {
    CHECK(seq_len > 0);
    *c = (struct cutter){.seq_len = seq_len};
    c->ids = mem_alloc((size_t)seq_len + 1, sizeof *c->ids);
}

void cutter_fini(struct cutter *c) {
    mem_free(c->ids);
    *c = (struct cutter){0};
}

bool cutter_put(struct cutter *c, const uint8_t *ids_le, size_t count, size_t *at) {
    CHECK(c->count <= c->seq_len);
    while (*at < count && c->count <= c->seq_len) {
        c->ids[c->count++] = get_le32(ids_le + 4 * *at);
        c->tokens_seen++;
        ++*at;
    }
    if (c->count <= c->seq_len) return false;
    c->samples++;
    return true;
}

void cutter_next(struct cutter *c) {
    CHECK(c->count == c->seq_len + 1);
    c->ids[0] = c->ids[c->seq_len]; /* the last target is the next sample's first input */
    c->count = 1;
}
