/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c - how a delta's floats become bytes, and the 128 bytes that stand before them.
 *
 * A codec is a pure function of one chunk. It never looks left or right of its block, so a payload
 * may be coded and decoded in any chunks that are multiples of a block, and the bytes are the
 * same.
 *
 *   fp32   4 bytes an element, little-endian IEEE 754
 *   bf16   2 bytes, the upper half of the f32 after rounding to nearest, ties to even
 *   int8   blocks of 128:  0  f32 scale = max|x| / 127
 *                          4  signed bytes q = round(x / scale), ties to even; the value is q * scale
 *          a last, shorter block has only its own bytes
 *   int4   codec_int4.c     topk   codec_topk.c
 *
 * Two choices at the ends of the range keep every step an ordinary IEEE operation. A block whose
 * scale would be subnormal is coded as zeros: such a scale has few bits left and could push q
 * beyond 127; what is dropped is below 127 * 2^-126. A value without a finite code (bf16 would
 * round it to infinity, int8 could not multiply it back) is refused like an infinity.
 *
 * Why not the C library's rintf: adding and subtracting 1.5 * 2^23 rounds to an integer with ties
 * to even in the default rounding mode, and every compiler turns it into two vector additions. The
 * loops run over a constant number of elements, because gcc at -O2 vectorises nothing else. Maxima
 * are taken over the bits as integers: for |x| the order is the same, the reduction may be
 * reordered, and NaN and infinity sort above every finite number, so that the finite check costs
 * nothing.
 *
 * Invariants
 *   (C1) a refused input leaves the output as it was.
 *   (C2) what encode wrote, decode accepts, and every decoded value is finite. */
#include <assert.h>
#include <float.h>
#include <string.h>

#include "outer/codec_parts.h"

static_assert(sizeof(float) == 4, "f32 is IEEE 754 binary32");
static_assert(OUTER_CHUNK % CODEC_UNIT == 0, "chunks are whole blocks");
static_assert(CODEC_UNIT % CODEC_BLOCK == 0, "of every codec");
static_assert(CODEC_UNIT % CODEC_INT4_BLOCK == 0, "of every codec");
static_assert(CODEC_UNIT % CODEC_TOPK_BLOCK == 0, "of every codec");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "vectors are stored as they lie in memory");

enum {
    BITS_INF = 0x7f800000,
    BITS_BF16_TOO_LARGE = 0x7f7f8000,  /* from here on bf16 rounds up to infinity */
    BITS_SCALE_TOO_LARGE = 0x7c000000, /* 2^121: 127 * scale stays finite below */
    INT8_BLOCK_BYTES = 4 + CODEC_BLOCK,
};
bool codec_plain_only = false;

bool codec_parse(const char *name, enum codec *out) {
    static const enum codec all[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_TOPK};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) {
        if (strcmp(name, codec_name(all[i])) != 0) continue;
        *out = all[i];
        return true;
    }
    return false;
}

const char *codec_name(enum codec c) {
    switch (c) {
    case CODEC_FP32: return "fp32";
    case CODEC_BF16: return "bf16";
    case CODEC_INT8: return "int8";
    case CODEC_INT4: return "int4";
    case CODEC_TOPK: return "topk";
    case CODEC_GRADIENT: return "gradient";
    }
    return "unknown";
}

bool codec_aside(enum codec c) {
    return c == CODEC_TOPK;
}

uint64_t codec_bytes(enum codec c, uint64_t n) {
    switch (c) {
    case CODEC_FP32:
    case CODEC_GRADIENT: return n * 4;
    case CODEC_BF16: return n * 2;
    case CODEC_INT8: return n + (n / CODEC_BLOCK + (n % CODEC_BLOCK != 0)) * 4;
    case CODEC_INT4: return int4_bytes(n);
    case CODEC_TOPK: return topk_bytes(n);
    }
    CHECK(false);
    return 0;
}

CODEC_INLINE int32_t max_bits_block(const float *x) {
    int32_t max = 0;
    for (size_t i = 0; i < CODEC_BLOCK; i++) {
        int32_t b = codec_abs_bits(x + i);
        max = b > max ? b : max;
    }
    return max;
}

CODEC_INLINE int32_t max_bits_of(const float *x, size_t n) {
    int32_t max = 0;
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK) {
        int32_t b = max_bits_block(x + i);
        max = b > max ? b : max;
    }
    for (; i < n; i++) {
        int32_t b = codec_abs_bits(x + i);
        max = b > max ? b : max;
    }
    return max;
}

static int32_t max_bits_plain(const float *x, size_t n) {
    return max_bits_of(x, n);
}
CODEC_WIDE static int32_t max_bits_wide(const float *x, size_t n) {
    return max_bits_of(x, n);
}
static int32_t max_bits(const float *x, size_t n) {
    return CODEC_WIDE_HERE() ? max_bits_wide(x, n) : max_bits_plain(x, n);
}

/* ---- bf16 ------------------------------------------------------------------------------------ */
static inline uint16_t bf16_of(const float *x) {
    uint32_t b;
    memcpy(&b, x, 4);
    b += 0x7fff + ((b >> 16) & 1); /* ties: up only where the kept part is odd */
    return (uint16_t)(b >> 16);
}

static void bf16_encode(const float *x, size_t n, uint8_t *out) {
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK) {
        uint16_t block[CODEC_BLOCK];
        for (size_t k = 0; k < CODEC_BLOCK; k++) block[k] = bf16_of(x + i + k);
        memcpy(out + 2 * i, block, sizeof block);
    }
    for (; i < n; i++) {
        uint16_t v = bf16_of(x + i);
        memcpy(out + 2 * i, &v, 2);
    }
}

static void bf16_decode(const uint8_t *in, size_t n, float *out) {
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK) {
        uint16_t block[CODEC_BLOCK];
        uint32_t wide[CODEC_BLOCK];
        memcpy(block, in + 2 * i, sizeof block);
        for (size_t k = 0; k < CODEC_BLOCK; k++) wide[k] = (uint32_t)block[k] << 16;
        memcpy(out + i, wide, sizeof wide);
    }
    for (; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, 2);
        uint32_t b = (uint32_t)v << 16;
        memcpy(out + i, &b, 4);
    }
}

static bool bf16_finite(const uint8_t *in, size_t n) {
    unsigned bad = 0;
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK) {
        uint16_t block[CODEC_BLOCK];
        memcpy(block, in + 2 * i, sizeof block);
        unsigned block_bad = 0;
        for (size_t k = 0; k < CODEC_BLOCK; k++) block_bad |= (block[k] & 0x7f80) == 0x7f80;
        bad |= block_bad;
    }
    for (; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, 2);
        bad |= (v & 0x7f80) == 0x7f80;
    }
    return bad == 0;
}

/* ---- int8 ------------------------------------------------------------------------------------ */
/* scale > 0 and |x| / scale < 128, so the sum with the magic number holds q in its lowest bits. */
static inline int8_t quantise(float x, float scale) {
    return (int8_t)codec_round(x / scale);
}

static float scale_of(int32_t max) {
    float max_abs;
    memcpy(&max_abs, &max, 4);
    float scale = max_abs / 127.0f;
    return scale < FLT_MIN ? 0.0f : scale;
}

static void int8_encode(const float *x, size_t n, uint8_t *out) {
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK, out += INT8_BLOCK_BYTES) {
        float scale = scale_of(max_bits_block(x + i));
        int8_t q[CODEC_BLOCK] = {0};
        if (scale > 0.0f) {
            for (size_t k = 0; k < CODEC_BLOCK; k++) q[k] = quantise(x[i + k], scale);
        }
        memcpy(out, &scale, 4);
        memcpy(out + 4, q, sizeof q);
    }
    if (i == n) return;
    float scale = scale_of(max_bits(x + i, n - i));
    memcpy(out, &scale, 4);
    for (size_t k = 0; i < n; i++, k++) {
        out[4 + k] = scale > 0.0f ? (uint8_t)quantise(x[i], scale) : 0;
    }
}

static void int8_decode(const uint8_t *in, size_t n, float *out) {
    size_t i = 0;
    for (; i + CODEC_BLOCK <= n; i += CODEC_BLOCK, in += INT8_BLOCK_BYTES) {
        float scale;
        int8_t q[CODEC_BLOCK];
        memcpy(&scale, in, 4);
        memcpy(q, in + 4, sizeof q);
        for (size_t k = 0; k < CODEC_BLOCK; k++) out[i + k] = (float)q[k] * scale;
    }
    if (i == n) return;
    float scale;
    memcpy(&scale, in, 4);
    for (size_t k = 0; i < n; i++, k++) out[i] = (float)(int8_t)in[4 + k] * scale;
}

static bool int8_scales_good(const uint8_t *in, size_t n) {
    bool good = true;
    for (size_t i = 0; i < n; i += CODEC_BLOCK, in += INT8_BLOCK_BYTES) {
        uint32_t scale_bits; /* a set sign bit makes it large, so that one comparison is enough */
        memcpy(&scale_bits, in, 4);
        good &= scale_bits < BITS_SCALE_TOO_LARGE;
    }
    return good;
}

/* ---- The two doors --------------------------------------------------------------------------- */
enum brg_status codec_encode(enum codec c, const float *x, size_t n, uint8_t *out) {
    int32_t max = max_bits(x, n);
    switch (c) {
    case CODEC_FP32:
    case CODEC_GRADIENT:
        if (max >= BITS_INF) return BRG_E_NONFINITE;
        if (n > 0) memcpy(out, x, n * 4);
        return BRG_OK;
    case CODEC_BF16:
        if (max >= BITS_BF16_TOO_LARGE) return BRG_E_NONFINITE;
        bf16_encode(x, n, out);
        return BRG_OK;
    case CODEC_INT8:
        if (max >= BITS_INF) return BRG_E_NONFINITE;
        float scale = scale_of(max);
        int32_t scale_bits;
        memcpy(&scale_bits, &scale, 4);
        if (scale_bits >= BITS_SCALE_TOO_LARGE) return BRG_E_NONFINITE; /* C2: it must decode */
        int8_encode(x, n, out);
        return BRG_OK;
    case CODEC_INT4:
        if (!int4_fits(max)) return BRG_E_NONFINITE;
        int4_encode(x, n, out);
        return BRG_OK;
    case CODEC_TOPK:
        if (max >= BITS_BF16_TOO_LARGE) return BRG_E_NONFINITE;
        topk_encode(x, n, out);
        return BRG_OK;
    }
    CHECK(false); /* C1: nothing was written for a codec outside the enum */
    return BRG_E_INTERNAL;
}

enum brg_status codec_decode(enum codec c, const uint8_t *in, size_t n, float *out) {
    switch (c) {
    case CODEC_FP32:
    case CODEC_GRADIENT:
        /* The input may lie at an odd address, so it is judged where it arrives: in a block. */
        for (size_t i = 0; i < n; i += CODEC_BLOCK) {
            float block[CODEC_BLOCK] = {0};
            size_t count = n - i < CODEC_BLOCK ? n - i : CODEC_BLOCK;
            memcpy(block, in + 4 * i, count * 4);
            if (max_bits_block(block) >= BITS_INF) return BRG_E_CORRUPT;
        }
        if (n > 0) memcpy(out, in, n * 4);
        return BRG_OK;
    case CODEC_BF16:
        if (!bf16_finite(in, n)) return BRG_E_CORRUPT;
        bf16_decode(in, n, out);
        return BRG_OK;
    case CODEC_INT8:
        if (!int8_scales_good(in, n)) return BRG_E_CORRUPT;
        int8_decode(in, n, out);
        return BRG_OK;
    case CODEC_INT4:
        if (!int4_good(in, n)) return BRG_E_CORRUPT;
        int4_decode(in, n, out);
        return BRG_OK;
    case CODEC_TOPK:
        if (!topk_good(in, n)) return BRG_E_CORRUPT;
        topk_decode(in, n, out);
        return BRG_OK;
    }
    CHECK(false); /* C2: only these are ever written */
    return BRG_E_INTERNAL;
}

/* ---- The header ---------------------------------------------------------------------------------
 *   0 "BRGDELT1"   8 u32 codec   12 u32 zero   16 u64 elements   24 u64 base_version   32 u64 tokens
 *  40 u64 steps   48 contribution (16)   64 base_theta (32)   96 zeros (32) */
static const char delta_magic[8] = {'B', 'R', 'G', 'D', 'E', 'L', 'T', '1'};
#define DELTA_ELEMENTS_MAX ((uint64_t)1 << 48) /* keeps every byte count far from overflow */

void delta_header_encode(const struct delta_header *h, uint8_t out[DELTA_HEADER_BYTES]) {
    CHECK(h->elements > 0);
    CHECK(h->elements <= DELTA_ELEMENTS_MAX);
    memset(out, 0, DELTA_HEADER_BYTES);
    memcpy(out, delta_magic, sizeof delta_magic);
    put_le32(out + 8, (uint32_t)h->codec);
    put_le64(out + 16, h->elements);
    put_le64(out + 24, h->base_version);
    put_le64(out + 32, h->tokens);
    put_le64(out + 40, h->steps);
    memcpy(out + 48, h->did.v, ID_BYTES);
    memcpy(out + 64, h->base_theta.v, HASH_BYTES);
}

enum brg_status delta_header_decode(const uint8_t in[DELTA_HEADER_BYTES], struct delta_header *out,
                                    struct err *e) {
    if (memcmp(in, delta_magic, sizeof delta_magic) != 0) {
        return err_set(e, BRG_E_MESSAGE,
                       "delta header: does not begin with BRGDELT1; "
                       "send the file that the site library wrote");
    }
    uint32_t codec = get_le32(in + 8);
    if (codec < CODEC_FP32 || codec > CODEC_GRADIENT) {
        return err_set(e, BRG_E_MESSAGE,
                       "delta header: codec %u is unknown; use fp32, bf16, int8, int4 or topk",
                       (unsigned)codec);
    }
    uint64_t elements = get_le64(in + 16);
    if (elements == 0 || elements > DELTA_ELEMENTS_MAX) {
        return err_set(e, BRG_E_MESSAGE, "delta header: elements %llu is not between 1 and 2^48",
                       (unsigned long long)elements);
    }
    /* What is reserved today must be zero, or no later version could give it a sense. */
    uint8_t rest = 0;
    for (size_t i = 12; i < 16; i++) rest |= in[i];
    for (size_t i = 96; i < DELTA_HEADER_BYTES; i++) rest |= in[i];
    if (rest != 0) {
        return err_set(e, BRG_E_MESSAGE,
                       "delta header: reserved bytes are not zero; "
                       "the site may be newer than this hub");
    }
    out->codec = (enum codec)codec;
    out->elements = elements;
    out->base_version = get_le64(in + 24);
    out->tokens = get_le64(in + 32);
    out->steps = get_le64(in + 40);
    memcpy(out->did.v, in + 48, ID_BYTES);
    memcpy(out->base_theta.v, in + 64, HASH_BYTES);
    return BRG_OK;
}
