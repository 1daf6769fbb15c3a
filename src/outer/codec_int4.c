/* SPDX-License-Identifier: Apache-2.0 */
/* codec_int4.c - four bits an element: blocks of 64 with one bf16 scale, 34 bytes a block.
 *
 *   0  bf16 scale = max|x| / 7, rounded up, so that no quotient is beyond 7; 0: the block is zeros
 *   2  32 bytes: byte k holds element k in its low half and element k + 32 in its high half, each
 *      q = round(x / scale), ties to even, -7..7 in two's complement; the value is q * scale
 * A last, shorter block of r elements has h = ceil(r / 2) bytes, and byte k holds the elements k and
 * k + h; where r is odd the last high half is 0.
 *
 * The two halves of a byte lie 32 elements apart so that a vector of bytes opens into two runs of
 * neighbours without a shuffle. -8 is never written: the code stays symmetric, and a decoder can tell
 * noise from a payload. A scale that would be subnormal becomes 0: such a block moved by less than
 * 7 * 2^-126 everywhere, and the residual keeps it.
 *
 * Invariants
 *   (C3) an accepted payload is one that an encoder could have written as far as its bits can tell: scale
 *        0 or normal, positive and below 2^125; no -8; all zero under a scale of 0; padding zero. */
#include <float.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "outer/codec_parts.h"

enum {
    HALF = CODEC_INT4_BLOCK / 2,
    BLOCK_BYTES = 2 + HALF,
    SCALE_TOO_LARGE = 0x7e00, /* bf16 of 2^125: 7 * scale stays finite below */
    SCALE_SMALLEST = 0x0080,  /* bf16 of 2^-126 */
};

uint64_t int4_bytes(uint64_t n) {
    uint64_t rest = n % CODEC_INT4_BLOCK;
    return n / CODEC_INT4_BLOCK * BLOCK_BYTES + (rest > 0 ? 2 + (rest + 1) / 2 : 0);
}

CODEC_INLINE uint16_t scale_of(int32_t max) {
    float max_abs, scale;
    uint32_t b;
    memcpy(&max_abs, &max, 4);
    scale = max_abs / 7.0f;
    if (scale < FLT_MIN) return 0;
    memcpy(&b, &scale, 4);
    return (uint16_t)((b + 0xffff) >> 16); /* up */
}

bool int4_fits(int32_t max_bits) {
    return max_bits < 0x7f800000 && scale_of(max_bits) < SCALE_TOO_LARGE;
}

CODEC_INLINE void block_encode(const float *x, uint8_t *out) {
    int32_t max = 0;
    int8_t q[CODEC_INT4_BLOCK];
    for (size_t k = 0; k < CODEC_INT4_BLOCK; k++) {
        int32_t b = codec_abs_bits(x + k);
        max = b > max ? b : max;
    }
    uint16_t bits = scale_of(max);
    float scale = codec_of_bf16(bits);
    memcpy(out, &bits, 2);
    if (bits == 0) {
        memset(out + 2, 0, HALF);
        return;
    }
    for (size_t k = 0; k < CODEC_INT4_BLOCK; k++) q[k] = (int8_t)codec_round(x[k] / scale);
    uint8_t packed[HALF];
    for (size_t k = 0; k < HALF; k++)
        packed[k] = (uint8_t)((q[k] & 15) | (uint8_t)((uint8_t)q[k + HALF] << 4));
    memcpy(out + 2, packed, HALF);
}

CODEC_INLINE void block_decode(const uint8_t *in, float *out) {
    float scale = codec_of_bf16(codec_get16(in));
    uint8_t packed[HALF];
    int8_t q[CODEC_INT4_BLOCK];
    memcpy(packed, in + 2, HALF);
    for (size_t k = 0; k < HALF; k++) {
        q[k] = (int8_t)(((packed[k] & 15) ^ 8) - 8);
        q[k + HALF] = (int8_t)((packed[k] >> 4 ^ 8) - 8);
    }
    for (size_t k = 0; k < CODEC_INT4_BLOCK; k++) out[k] = (float)q[k] * scale;
}

/* Not zero where a half is -8, or where a scale of 0 stands before other bytes. */
CODEC_INLINE unsigned block_faults(const uint8_t *in) {
    uint8_t packed[HALF], bad = 0, any = 0;
    uint16_t scale = codec_get16(in);
    memcpy(packed, in + 2, HALF);
    for (size_t k = 0; k < HALF; k++) {
        uint8_t b = packed[k];
        any |= b;
        bad |= (uint8_t)((b & 15) == 8) | (uint8_t)((b & 0xf0) == 0x80);
    }
    unsigned normal = scale >= SCALE_SMALLEST && scale < SCALE_TOO_LARGE;
    return bad | (normal ? 0 : (unsigned)(scale | any)); /* C3 */
}

#define RUNS(name_, attribute_)                                                                    \
    attribute_ static void encode_##name_(const float *x, size_t blocks, uint8_t *out) {           \
        for (size_t i = 0; i < blocks; i++)                                                        \
            block_encode(x + i * CODEC_INT4_BLOCK, out + i * BLOCK_BYTES);                         \
    }                                                                                              \
    attribute_ static unsigned faults_##name_(const uint8_t *in, size_t blocks) {                  \
        unsigned bad = 0;                                                                          \
        for (size_t i = 0; i < blocks; i++) bad |= block_faults(in + i * BLOCK_BYTES);             \
        return bad;                                                                                \
    }
#define NOTHING
RUNS(plain, NOTHING)
RUNS(wide, CODEC_WIDE)

/* The last, shorter block, through a whole one. */
static void rest_encode(const float *x, size_t n, uint8_t *out) {
    float block[CODEC_INT4_BLOCK] = {0};
    uint8_t coded[BLOCK_BYTES];
    size_t half = (n + 1) / 2;
    memcpy(block, x, half * sizeof *x);
    memcpy(block + HALF, x + half, (n - half) * sizeof *x);
    block_encode(block, coded);
    memcpy(out, coded, 2 + half);
}

static void rest_spread(const uint8_t *in, size_t n, uint8_t coded[BLOCK_BYTES]) {
    memset(coded, 0, BLOCK_BYTES);
    memcpy(coded, in, 2 + (n + 1) / 2);
}

void int4_encode(const float *x, size_t n, uint8_t *out) {
    size_t blocks = n / CODEC_INT4_BLOCK, done = blocks * CODEC_INT4_BLOCK;
    if (CODEC_WIDE_HERE())
        encode_wide(x, blocks, out);
    else
        encode_plain(x, blocks, out);
    if (done < n) rest_encode(x + done, n - done, out + blocks * BLOCK_BYTES);
}

bool int4_good(const uint8_t *in, size_t n) {
    size_t blocks = n / CODEC_INT4_BLOCK, rest = n % CODEC_INT4_BLOCK;
    unsigned bad = CODEC_WIDE_HERE() ? faults_wide(in, blocks) : faults_plain(in, blocks);
    if (rest == 0) return bad == 0;
    uint8_t coded[BLOCK_BYTES];
    rest_spread(in + blocks * BLOCK_BYTES, rest, coded);
    if (rest % 2 == 1) bad |= coded[2 + rest / 2] >> 4; /* padding */
    return (bad | block_faults(coded)) == 0;
}

void int4_decode(const uint8_t *in, size_t n, float *out) {
    size_t blocks = n / CODEC_INT4_BLOCK, rest = n % CODEC_INT4_BLOCK;
    /* Plain for once: gcc opens bytes faster with SSE2, and the wide form was half as fast. */
    for (size_t i = 0; i < blocks; i++)
        block_decode(in + i * BLOCK_BYTES, out + i * CODEC_INT4_BLOCK);
    if (rest == 0) return;
    uint8_t coded[BLOCK_BYTES];
    float block[CODEC_INT4_BLOCK];
    size_t half = (rest + 1) / 2;
    rest_spread(in + blocks * BLOCK_BYTES, rest, coded);
    block_decode(coded, block);
    out += blocks * CODEC_INT4_BLOCK;
    memcpy(out, block, half * sizeof *out);
    memcpy(out + half, block + HALF, (rest - half) * sizeof *out);
}

/* By hand: the compiler's way from half bytes to floats is four times as long, and a merge is little else. */
#if defined(__x86_64__)
CODEC_WIDE static inline __m256 weighted(__m128i q, __m256 scale, __m256 w) {
    return _mm256_mul_ps(w, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), scale));
}

CODEC_WIDE static inline void eight_add(__m128i q, __m256 scale, __m256 w, float *sum) {
    _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), weighted(q, scale, w)));
}

/* As step_body of outer.c, on eight elements. */
CODEC_WIDE static inline void eight_step(__m256 sum, const struct int4_step *k, float *theta,
                                         float *m) {
    __m256 to = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(k->mu), _mm256_loadu_ps(m)), sum);
    __m256 move = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(k->kappa), to));
    _mm256_storeu_ps(m, to);
    _mm256_storeu_ps(
        theta, _mm256_sub_ps(_mm256_loadu_ps(theta), _mm256_mul_ps(_mm256_set1_ps(k->eta), move)));
}

CODEC_WIDE static inline void half_add(__m256i q, __m256 scale, __m256 w, float *sum) {
    __m128i low = _mm256_castsi256_si128(q), high = _mm256_extracti128_si256(q, 1);
    eight_add(low, scale, w, sum);
    eight_add(_mm_srli_si128(low, 8), scale, w, sum + 8);
    eight_add(high, scale, w, sum + 16);
    eight_add(_mm_srli_si128(high, 8), scale, w, sum + 24);
}

CODEC_WIDE void int4_add_wide(const uint8_t *in, size_t blocks, float w, float *sum) {
    const __m256i mask = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    const __m256 weight = _mm256_set1_ps(w);
    for (size_t i = 0; i < blocks; i++, in += BLOCK_BYTES, sum += CODEC_INT4_BLOCK) {
        __m256 scale = _mm256_set1_ps(codec_of_bf16(codec_get16(in)));
        __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)(in + 2));
        __m256i low = _mm256_and_si256(packed, mask);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
        half_add(_mm256_sub_epi8(_mm256_xor_si256(low, eight), eight), scale, weight, sum);
        half_add(_mm256_sub_epi8(_mm256_xor_si256(high, eight), eight), scale, weight, sum + HALF);
    }
}

/* Half a block of all parts into registers, and theta and m on: nothing between the payloads and them is stored. */
CODEC_WIDE static inline __m256i half_step(const uint8_t *const *in, const float *w, size_t parts,
                                           size_t at, bool high, const struct int4_step *k,
                                           float *theta, float *m) {
    const __m256i mask = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    __m256i bad = _mm256_setzero_si256();
    for (size_t i = 0; i < parts; i++) {
        const uint8_t *b = in[i] + at;
        __m256 scale = _mm256_set1_ps(codec_of_bf16(codec_get16(b))), weight = _mm256_set1_ps(w[i]);
        __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(b + 2));
        q = _mm256_and_si256(high ? _mm256_srli_epi16(q, 4) : q, mask);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(q, eight)); /* C3 */
        q = _mm256_sub_epi8(_mm256_xor_si256(q, eight), eight);
        __m128i l = _mm256_castsi256_si128(q), h = _mm256_extracti128_si256(q, 1);
        s0 = _mm256_add_ps(s0, weighted(l, scale, weight));
        s1 = _mm256_add_ps(s1, weighted(_mm_srli_si128(l, 8), scale, weight));
        s2 = _mm256_add_ps(s2, weighted(h, scale, weight));
        s3 = _mm256_add_ps(s3, weighted(_mm_srli_si128(h, 8), scale, weight));
    }
    eight_step(s0, k, theta, m);
    eight_step(s1, k, theta + 8, m + 8);
    eight_step(s2, k, theta + 16, m + 16);
    eight_step(s3, k, theta + 24, m + 24);
    return bad;
}

/* Not zero where a scale is none, or 0 before bytes that are not; the halves are looked at on the way. */
CODEC_INLINE unsigned scale_faults(const uint8_t *b) {
    uint16_t scale = codec_get16(b);
    uint8_t any = 0;
    if (scale >= SCALE_SMALLEST && scale < SCALE_TOO_LARGE) return 0;
    for (size_t k = 0; k < HALF; k++) any |= b[2 + k];
    return (unsigned)(scale | any); /* C3 */
}

CODEC_WIDE bool int4_step_wide(const uint8_t *const *in, const float *w, size_t parts,
                               size_t blocks, const struct int4_step *k, float *theta, float *m) {
    enum { AHEAD = 1024 }; /* elements: what is in flight while the sums are made */
    __m256i bad = _mm256_setzero_si256();
    unsigned faults = 0;
    for (size_t i = 0, at = 0; i < blocks; i++, at += BLOCK_BYTES) {
        for (size_t line = 0; line < CODEC_INT4_BLOCK; line += 16) {
            __builtin_prefetch(theta + AHEAD + line, 1);
            __builtin_prefetch(m + AHEAD + line, 1);
        }
        for (size_t p = 0; p < parts; p++) {
            __builtin_prefetch(in[p] + at + AHEAD / 2);
            faults |= scale_faults(in[p] + at);
        }
        bad = _mm256_or_si256(bad, half_step(in, w, parts, at, false, k, theta, m));
        bad = _mm256_or_si256(bad, half_step(in, w, parts, at, true, k, theta + HALF, m + HALF));
        theta += CODEC_INT4_BLOCK;
        m += CODEC_INT4_BLOCK;
    }
    return faults == 0 && _mm256_testz_si256(bad, bad) != 0;
}
#else
void int4_add_wide(const uint8_t *in, size_t blocks, float w, float *sum) {
    (void)in, (void)blocks, (void)w, (void)sum;
    CHECK(!"there is no wide set of instructions");
}

bool int4_step_wide(const uint8_t *const *in, const float *w, size_t parts, size_t blocks,
                    const struct int4_step *k, float *theta, float *m) {
    (void)in, (void)w, (void)parts, (void)blocks, (void)k, (void)theta, (void)m;
    CHECK(!"there is no wide set of instructions");
    return false;
}
#endif
