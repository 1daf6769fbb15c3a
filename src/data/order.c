/* SPDX-License-Identifier: Apache-2.0 */
/* order.c - which sample stands at which position of an epoch.
 *
 * Everybody computes the same permutation alone, in constant time and without a table, so that a
 * lease is two numbers on the wire. Two levels, because a lease should touch few blocks of storage:
 *
 *   position --group g--> within the group --F_in(epoch, g)--> slot, offset in the block
 *   slot --F_out(epoch)--> block              sample = block * B + offset
 *
 *   positions [g*M*B, (g+1)*M*B) hold exactly the samples of M blocks of B samples each
 *   (fewer in the last group); the n mod B samples behind the last full block are permuted among
 *   themselves and keep the last positions.
 *
 * F is a Feistel network over ceil(log2 n) bits, split in a low and a high part that need not be
 * equally wide: six rounds, each xors one part with a hash of the other, so each round undoes
 * itself. Results that fall outside [0, n) are walked on until they fall inside (cycle walking):
 * the domain is less than 2n, so less than two walks are expected.
 *
 * This is version 1. Its golden vectors are test/golden/order-v1.txt; a change of a single constant
 * here is a new version, because data sets carry the number in their fingerprint.
 *
 * Invariants
 *   (D1) order_sample is a bijection of [0, samples_count) for every seed, epoch, block and group.
 *   (D2) order_position is its inverse.
 *   (D3) The positions of a full group touch exactly `group` blocks. */
#include <assert.h>

#include "data/data.h"

enum { ROUNDS = 6 };
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)
#define KEY_TAIL UINT64_C(0x7461696c5f626c6b) /* the group number that stands for the short block */

/* A copy of splitmix64's finalizer on purpose: it is part of the version. */
static inline uint64_t finalize(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t key_group(const struct order *o, uint64_t group) {
    return finalize(o->key_outer ^ finalize(group + GOLDEN));
}

/* The round function: splitmix64's multiplications with one shift less, for its latency is what an
 * order costs. Good bits are the upper ones, and no part of a domain below 2^62 is wider than 31.
 * */
static inline uint64_t round_hash(uint64_t x, uint64_t key) {
    uint64_t z = (x ^ key) * UINT64_C(0xbf58476d1ce4e5b9);
    return ((z ^ (z >> 32)) * UINT64_C(0x94d049bb133111eb)) >> 32;
}

struct feistel {
    uint32_t bits_low, bits_high;
    uint64_t mask_low, mask_high;
};

static inline struct feistel feistel_of(uint64_t n) {
    uint32_t bits = n < 2 ? 0 : 64 - (uint32_t)__builtin_clzll(n - 1);
    struct feistel f = {.bits_low = bits - bits / 2, .bits_high = bits / 2};
    f.mask_low = f.bits_low == 0 ? 0 : UINT64_MAX >> (64 - f.bits_low);
    f.mask_high = f.bits_high == 0 ? 0 : UINT64_MAX >> (64 - f.bits_high);
    return f;
}

/* Even rounds change the high part, odd rounds the low part. Written out, since a loop that asks
 * for the parity costs a third of the whole. */
static inline uint64_t feistel_forward(uint64_t x, uint64_t n, uint64_t key) {
    struct feistel f = feistel_of(n);
    static_assert(ROUNDS == 6, "six rounds are written out");
    do {
        uint64_t low = x & f.mask_low, high = x >> f.bits_low;
        high ^= round_hash(low, key + 1 * GOLDEN) & f.mask_high;
        low ^= round_hash(high, key + 2 * GOLDEN) & f.mask_low;
        high ^= round_hash(low, key + 3 * GOLDEN) & f.mask_high;
        low ^= round_hash(high, key + 4 * GOLDEN) & f.mask_low;
        high ^= round_hash(low, key + 5 * GOLDEN) & f.mask_high;
        low ^= round_hash(high, key + 6 * GOLDEN) & f.mask_low;
        x = high << f.bits_low | low;
    } while (x >= n);
    return x;
}

static inline uint64_t feistel_backward(uint64_t x, uint64_t n, uint64_t key) {
    struct feistel f = feistel_of(n);
    do {
        uint64_t low = x & f.mask_low, high = x >> f.bits_low;
        low ^= round_hash(high, key + 6 * GOLDEN) & f.mask_low;
        high ^= round_hash(low, key + 5 * GOLDEN) & f.mask_high;
        low ^= round_hash(high, key + 4 * GOLDEN) & f.mask_low;
        high ^= round_hash(low, key + 3 * GOLDEN) & f.mask_high;
        low ^= round_hash(high, key + 2 * GOLDEN) & f.mask_low;
        high ^= round_hash(low, key + 1 * GOLDEN) & f.mask_high;
        x = high << f.bits_low | low;
    } while (x >= n);
    return x;
}

/* a / b, a shift where b is a power of two, as the defaults are: a division costs as much as a
 * round. */
static inline uint64_t quotient(uint64_t a, uint64_t b) {
    return (b & (b - 1)) == 0 ? a >> __builtin_ctzll(b) : a / b;
}

void order_init(struct order *o, uint64_t seed, uint32_t epoch, uint64_t samples_count,
                uint32_t block, uint32_t group) {
    CHECK(samples_count <= UINT64_C(1) << 62);
    if (block == 0) { /* a default block in a small set would leave nothing to permute outside it */
        block = ORDER_BLOCK;
        if (samples_count / 16 < block) block = (uint32_t)(samples_count / 16);
        if (block == 0) block = 1;
    }
    if (group == 0) group = ORDER_GROUP;
    *o = (struct order){.seed = seed,
                        .samples_count = samples_count,
                        .block = block,
                        .group = group,
                        .epoch = epoch,
                        .blocks_count = samples_count / block};
    o->key_outer = finalize(finalize(seed + GOLDEN) ^ finalize(UINT64_C(2) * GOLDEN + epoch));
}

uint64_t order_sample(const struct order *o, uint64_t position) {
    CHECK(position < o->samples_count);
    uint64_t block = o->block, blocks_count = o->blocks_count;
    uint64_t full = blocks_count * block;
    if (position >= full)
        return full +
               feistel_forward(position - full, o->samples_count - full, key_group(o, KEY_TAIL));
    uint64_t span = block * o->group, g = quotient(position, span), first = g * span;
    uint64_t n = full - first < span ? full - first : span;
    uint64_t j = feistel_forward(position - first, n, key_group(o, g)); /* D3 */
    uint64_t in_group = quotient(j, block), offset = j - in_group * block;
    uint64_t slot = g * o->group + in_group;
    uint64_t sample = feistel_forward(slot, blocks_count, o->key_outer) * block + offset;
    CHECK(sample < full); /* D1 */
    return sample;
}

/* ---- Many at once ------------------------------------------------------------------------------
 * What a group has in common is computed once for it: its key, and the blocks of its slots (one
 * outer walk a slot instead of one a sample). What is left, six rounds a sample, stands in a loop
 * whose turns do not depend on each other, so that the processor works on several at a time: one
 * order costs its latency, many cost their share of the multiplier. */
enum { BATCH = 256, SLOTS_MAX = 256 };

struct group_part { /* positions [first + from, first + from + count) of one group */
    uint64_t number, first, n, from, count;
};

static void slots_fill(const struct order *o, const struct group_part *g,
                       uint64_t samples[SLOTS_MAX]) {
    uint64_t slots = quotient(g->n, o->block);
    for (uint64_t i = 0; i < slots; i++)
        samples[i] = feistel_forward(g->number * o->group + i, o->blocks_count, o->key_outer) *
                     o->block;
}

/* The samples of n positions of a group by the same rounds as feistel_forward's. */
static void group_forward(uint64_t x, uint64_t n, uint64_t key, uint32_t count, uint64_t *out) {
    struct feistel f = feistel_of(n);
    const uint64_t k1 = key + 1 * GOLDEN, k2 = key + 2 * GOLDEN, k3 = key + 3 * GOLDEN,
                   k4 = key + 4 * GOLDEN, k5 = key + 5 * GOLDEN, k6 = key + 6 * GOLDEN;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t low = (x + i) & f.mask_low, high = (x + i) >> f.bits_low;
        high ^= round_hash(low, k1) & f.mask_high;
        low ^= round_hash(high, k2) & f.mask_low;
        high ^= round_hash(low, k3) & f.mask_high;
        low ^= round_hash(high, k4) & f.mask_low;
        high ^= round_hash(low, k5) & f.mask_high;
        low ^= round_hash(high, k6) & f.mask_low;
        out[i] = high << f.bits_low | low;
    }
    if ((n & (n - 1)) == 0) return; /* the domain is [0, n): nothing falls outside */
    for (uint32_t i = 0; i < count; i++)
        if (out[i] >= n) out[i] = feistel_forward(out[i], n, key);
}

static void group_samples(const struct order *o, const struct group_part *g, uint64_t *out) {
    uint64_t samples[SLOTS_MAX], key = key_group(o, g->number), block = o->block;
    bool power = (block & (block - 1)) == 0;
    uint32_t shift = (uint32_t)__builtin_ctzll(block);
    slots_fill(o, g, samples);
    for (uint64_t at = 0; at < g->count; at += BATCH) {
        uint32_t n = g->count - at < BATCH ? (uint32_t)(g->count - at) : BATCH;
        group_forward(g->from + at, g->n, key, n, out + at); /* D3 */
        for (uint32_t i = 0; i < n; i++) {
            uint64_t j = out[at + i], slot = power ? j >> shift : j / block;
            out[at + i] = samples[slot] + (j - slot * block); /* D1 */
        }
    }
}

void order_samples(const struct order *o, uint64_t first, uint64_t count, uint64_t *out) {
    CHECK(first <= o->samples_count);
    CHECK(count <= o->samples_count - first);
    uint64_t full = o->blocks_count * o->block, span = (uint64_t)o->block * o->group;
    for (uint64_t done = 0; done < count;) {
        uint64_t position = first + done, left = count - done, step = 1;
        uint64_t number = span > 0 ? quotient(position, span) : 0;
        struct group_part g = {.number = number, .first = number * span};
        g.n = full - g.first < span ? full - g.first : span;
        g.from = position - g.first;
        /* Few positions of a group do not pay for its slots; the short block has none. */
        if (position < full && o->group <= SLOTS_MAX && left >= o->group) {
            step = g.n - g.from < left ? g.n - g.from : left;
            g.count = step;
            group_samples(o, &g, out + done);
        } else {
            out[done] = order_sample(o, position);
        }
        done += step;
    }
}

uint64_t order_position(const struct order *o, uint64_t sample) {
    CHECK(sample < o->samples_count);
    uint64_t block = o->block, blocks_count = o->blocks_count;
    uint64_t full = blocks_count * block;
    if (sample >= full)
        return full +
               feistel_backward(sample - full, o->samples_count - full, key_group(o, KEY_TAIL));
    uint64_t number = quotient(sample, block), offset = sample - number * block;
    uint64_t slot = feistel_backward(number, blocks_count, o->key_outer);
    uint64_t span = block * o->group, g = quotient(slot, o->group), first = g * span;
    uint64_t n = full - first < span ? full - first : span;
    uint64_t j = (slot - g * o->group) * block + offset;
    uint64_t position = first + feistel_backward(j, n, key_group(o, g));
    CHECK(position < full); /* D2 */
    return position;
}
