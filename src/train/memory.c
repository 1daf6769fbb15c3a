/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - a slot's header, who keeps whose copy, who gives which shard. Pure; see memory.h.
 *
 *     0 "BRGMEM1\n"     8 u32 shard     12 u32 ranks     16 u64 elements   24 u64 bucket   32 u64 own
 *    40 u64 steps of AdamW   48 u64 incarnation   56 u64 steps   64 u64 version   72 u64 handed in
 *    80 u64 bytes of books   88 u32 optimizer     92 u32 0
 *    96 run (16)       112 site (48)   160 hash of the generation (32)   192 u64 sum of books and data
 *   200 zeros                                                            504 u64 sum of what is before
 *
 * Little-endian. The data are floats as the machine has them: they never leave a job's machines. */
#include "train/memory.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = {'B', 'R', 'G', 'M', 'E', 'M', '1', '\n'};
enum { AT_RUN = 96, AT_SITE = 112, AT_HASH = 160, AT_SUM = 192, AT_END = 200, AT_OWN_SUM = 504 };
static_assert(AT_OWN_SUM + 8 == MEMORY_HEADER_BYTES, "the header's sum is its last field");

static uint64_t sum_of(const void *data, size_t n) {
    struct checksum k;
    checksum_init(&k);
    checksum_update(&k, data, n);
    return checksum_final(&k);
}

void memory_mark_encode(const struct memory_mark *m, uint8_t out[MEMORY_HEADER_BYTES]) {
    const struct memory_shape *s = &m->shape;
    memset(out, 0, MEMORY_HEADER_BYTES);
    memcpy(out, magic, sizeof magic);
    put_le32(out + 8, m->shard);
    put_le32(out + 12, s->ranks);
    put_le64(out + 16, s->elements);
    put_le64(out + 24, s->bucket);
    put_le64(out + 32, m->own);
    put_le64(out + 40, m->adamw_steps);
    put_le64(out + 48, m->id.moment.incarnation);
    put_le64(out + 56, m->id.moment.steps);
    put_le64(out + 64, m->id.moment.version);
    put_le64(out + 72, m->id.moment.handed_in);
    put_le64(out + 80, m->books_bytes);
    put_le32(out + 88, s->optimizer);
    memcpy(out + AT_RUN, s->run.v, ID_BYTES);
    memcpy(out + AT_SITE, s->site, strnlen(s->site, MEMORY_SITE_MAX - 1));
    memcpy(out + AT_HASH, m->id.hash.v, HASH_BYTES);
    put_le64(out + AT_SUM, m->sum);
    put_le64(out + AT_OWN_SUM, sum_of(out, AT_OWN_SUM));
}

enum brg_status memory_mark_decode(const uint8_t in[MEMORY_HEADER_BYTES], struct memory_mark *out,
                                   struct err *e) {
    struct memory_mark m = {.shard = get_le32(in + 8), .own = get_le64(in + 32)};
    if (memcmp(in, magic, sizeof magic) != 0 ||
        get_le64(in + AT_OWN_SUM) != sum_of(in, AT_OWN_SUM)) /* M2 */
        return err_set(e, BRG_E_CORRUPT, "no whole generation");
    m.shape.ranks = get_le32(in + 12);
    m.shape.elements = get_le64(in + 16);
    m.shape.bucket = get_le64(in + 24);
    m.adamw_steps = get_le64(in + 40);
    m.id.moment = (struct memory_moment){get_le64(in + 48), get_le64(in + 56), get_le64(in + 64),
                                         get_le64(in + 72)};
    m.books_bytes = get_le64(in + 80);
    m.shape.optimizer = get_le32(in + 88);
    memcpy(m.shape.run.v, in + AT_RUN, ID_BYTES);
    memcpy(m.shape.site, in + AT_SITE, MEMORY_SITE_MAX);
    memcpy(m.id.hash.v, in + AT_HASH, HASH_BYTES);
    m.sum = get_le64(in + AT_SUM);
    bool sound = m.shape.ranks >= 1 && m.shape.ranks <= DP_RANKS_MAX && m.shard < m.shape.ranks &&
                 m.own <= m.shape.elements && m.books_bytes <= MEMORY_BOOKS_MAX &&
                 memory_slot_bytes(m.own) > 0 && m.shape.site[MEMORY_SITE_MAX - 1] == '\0' &&
                 get_le32(in + 92) == 0;
    for (size_t i = AT_END; i < AT_OWN_SUM; i++) sound = sound && in[i] == 0;
    for (size_t i = strnlen(m.shape.site, MEMORY_SITE_MAX); i < MEMORY_SITE_MAX; i++)
        sound = sound && m.shape.site[i] == '\0';
    if (!sound) return err_set(e, BRG_E_CORRUPT, "a generation's header contradicts itself");
    *out = m;
    return BRG_OK;
}

bool memory_shape_equal(const struct memory_shape *a, const struct memory_shape *b) {
    return id_equal(&a->run, &b->run) && strncmp(a->site, b->site, MEMORY_SITE_MAX) == 0 &&
           a->elements == b->elements && a->bucket == b->bucket && a->ranks == b->ranks &&
           a->optimizer == b->optimizer;
}

struct hash memory_hash(const struct memory_shape *shape, const struct memory_moment *moment,
                        uint64_t adamw_steps, uint64_t salt, const void *books, size_t n) {
    struct memory_mark m = {
        .shape = *shape, .id.moment = *moment, .adamw_steps = adamw_steps, .sum = salt};
    uint8_t head[MEMORY_HEADER_BYTES];
    struct hasher h;
    memory_mark_encode(&m, head);
    hasher_init(&h);
    hasher_update(&h, head, sizeof head);
    hasher_update(&h, books, n);
    return hasher_final(&h);
}

uint64_t memory_slot_bytes(uint64_t own) {
    if (own > UINT64_C(1) << 56) return 0;
    uint64_t data = 3 * own * sizeof(float);
    return MEMORY_PAGE_BYTES + MEMORY_BOOKS_MAX +
           (data + MEMORY_PAGE_BYTES - 1) / MEMORY_PAGE_BYTES * MEMORY_PAGE_BYTES;
}

/* ---- Order ---------------------------------------------------------------------------------------- */

int memory_id_compare(const struct memory_id *a, const struct memory_id *b) {
    const struct memory_moment *x = &a->moment, *y = &b->moment;
    const uint64_t p[] = {x->incarnation, x->steps, x->version, x->handed_in};
    const uint64_t q[] = {y->incarnation, y->steps, y->version, y->handed_in};
    for (size_t i = 0; i < ARRAY_COUNT(p); i++)
        if (p[i] != q[i]) return p[i] > q[i] ? -1 : 1;
    return memcmp(a->hash.v, b->hash.v, HASH_BYTES);
}

static int by_age(const void *a, const void *b) {
    return memory_id_compare(a, b);
}

size_t memory_candidates_merge(struct memory_id *ids, size_t n, size_t cap) {
    size_t kept = 0;
    if (n > 0) qsort(ids, n, sizeof *ids, by_age);
    for (size_t i = 0; i < n && kept < cap; i++)
        if (kept == 0 || !hash_equal(&ids[kept - 1].hash, &ids[i].hash)) ids[kept++] = ids[i];
    return kept;
}

/* ---- Partners ------------------------------------------------------------------------------------- */

struct seat {
    uint64_t place;
    uint32_t rank;
};

static int by_place(const void *a, const void *b) {
    const struct seat *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Ranks in a ring, place by place, and each one's partner as far ahead as the fullest place has ranks: so
 * nobody's is on its own place, unless more than half of all ranks are there. */
void memory_partners(const uint64_t *places, uint32_t ranks, uint32_t *out) {
    AUTO_FREE struct seat *ring = mem_alloc(ranks, sizeof *ring);
    uint32_t fullest = 0, here = 0;
    for (uint32_t r = 0; r < ranks; r++) ring[r] = (struct seat){places[r], r};
    qsort(ring, ranks, sizeof *ring, by_place);
    for (uint32_t i = 0; i < ranks; i++) {
        here = i > 0 && ring[i].place == ring[i - 1].place ? here + 1 : 1;
        if (here > fullest) fullest = here;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        const struct seat *to = &ring[(i + fullest) % ranks];
        out[ring[i].rank] = to->place == ring[i].place ? UINT32_MAX : to->rank;
    }
}

bool memory_sources(const uint8_t *have, uint32_t ranks, uint32_t *out) {
    for (uint32_t s = 0; s < ranks; s++) {
        uint32_t r = s;
        if (!have[(size_t)s * ranks + s])
            for (r = 0; r < ranks && !have[(size_t)r * ranks + s]; r++) {
            }
        if (r == ranks) return false;
        out[s] = r;
    }
    return true;
}
