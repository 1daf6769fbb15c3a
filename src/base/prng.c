/* SPDX-License-Identifier: Apache-2.0 */
/* prng.c - xoshiro256** seeded through splitmix64 (Blackman, Vigna 2018). Not for secrets.
 *
 * prng_u64, prng_below and prng_unit are the same on every machine; prng_normal goes through the C
 * library's log and cos, whose last bit may differ between library versions. */
#include <math.h>

#include "base/base.h"

uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

void prng_seed(struct prng *p, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        seed += UINT64_C(0x9E3779B97F4A7C15);
        p->s[i] = mix64(seed);
    }
}

static uint64_t rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

uint64_t prng_u64(struct prng *p) {
    uint64_t *s = p->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t prng_below(struct prng *p, uint64_t n) {
    CHECK(n > 0);
    /* Draws below 2^64 mod n are thrown away: what remains is a whole multiple of n. */
    uint64_t unfair = (0 - n) % n;
    for (;;) {
        uint64_t x = prng_u64(p);
        if (x >= unfair) return x % n;
    }
}

double prng_unit(struct prng *p) {
    return (double)(prng_u64(p) >> 11) * 0x1p-53;
}

double prng_normal(struct prng *p) {
    /* The sine half of the pair is not kept: a struct prng is its four words and nothing else. */
    double u = 1.0 - prng_unit(p); /* in (0, 1]: the logarithm is finite */
    double v = prng_unit(p);
    return sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v);
}
