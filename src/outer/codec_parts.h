/* SPDX-License-Identifier: Apache-2.0 */
/* codec_parts.h - private to src/outer: the two codecs below one byte an element, which have a file each, and
 * what the files of the outer step share.
 *
 * A function named *_good judges outside bytes and must say yes before *_decode sees them; *_encode takes
 * what codec.c found to be finite and small enough. n is any count; only the last chunk of a vector may
 * be no multiple of the codec's block. */
#ifndef OUTER_CODEC_PARTS_H
#define OUTER_CODEC_PARTS_H

#include <string.h>

#include "outer/outer.h"

/* One source, two sets of instructions: body is always inlined into both. There is no fused operation
 * in AVX2, so both give the same bits; the tests compare them. */
#if defined(__x86_64__)
#define CODEC_WIDE __attribute__((target("avx2")))
#define CODEC_WIDE_HERE() (__builtin_cpu_supports("avx2") && !codec_plain_only)
#else
#define CODEC_WIDE
#define CODEC_WIDE_HERE() false
#endif
#define CODEC_INLINE static inline __attribute__((always_inline))
extern bool codec_plain_only; /* for tests: never use the wide set */

#define CODEC_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23; see codec.c */

/* The bits of |x| as a number that a signed comparison orders as the floats are ordered. */
CODEC_INLINE int32_t codec_abs_bits(const float *x) {
    int32_t b;
    memcpy(&b, x, 4);
    return b & INT32_MAX;
}

/* The nearest integer, ties to even; |x| < 2^22. */
CODEC_INLINE int32_t codec_round(float x) {
    float shifted = x + CODEC_ROUND_MAGIC;
    int32_t b;
    memcpy(&b, &shifted, 4);
    return b - 0x4b400000;
}

CODEC_INLINE float codec_of_bf16(uint16_t v) {
    uint32_t b = (uint32_t)v << 16;
    float x;
    memcpy(&x, &b, 4);
    return x;
}

CODEC_INLINE uint16_t codec_get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

enum { CODEC_INT4_BLOCK = 64, CODEC_TOPK_BLOCK = 4096 };

uint64_t int4_bytes(uint64_t n);
bool int4_fits(int32_t max_bits); /* the largest |x| has a finite code */
void int4_encode(const float *x, size_t n, uint8_t *out);
bool int4_good(const uint8_t *in, size_t n);
void int4_decode(const uint8_t *in, size_t n, float *out);

/* sum[i] += w * decoded[i] over whole blocks of a good payload, each operation rounded as in a decoding and a
 * weighted addition; only where CODEC_WIDE_HERE(). */
void int4_add_wide(const uint8_t *in, size_t blocks, float w, float *sum);

/* The whole outer step of blocks that all parts bring as int4, all of them fresh: looks at the payloads (in: not judged
 * yet), sums and steps in registers, and fetches what comes next meanwhile. The bits are those of judging, decoding,
 * summing and stepping one after the other. false: some payload is none, and theta and m are of no use. Only where
 * CODEC_WIDE_HERE(). */
struct int4_step {
    float eta, mu, kappa;
};
bool int4_step_wide(const uint8_t *const *in, const float *w, size_t parts, size_t blocks,
                    const struct int4_step *k, float *theta, float *m);

/* Parts stand in the order of their sites. */
void outer_parts_check(const struct outer_part *parts, size_t count);
/* sums[i] += c delta[i] with the factor of each element's tensor; the n elements begin at `at`. */
void outer_radial_add(const struct outer_radial *r, size_t part, uint64_t at, const float *delta,
                      size_t n, float *sums);

uint64_t topk_bytes(uint64_t n);
void topk_encode(const float *x, size_t n, uint8_t *out);
bool topk_good(const uint8_t *in, size_t n);
void topk_decode(const uint8_t *in, size_t n, float *out);

#endif
