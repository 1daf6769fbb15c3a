/* SPDX-License-Identifier: Apache-2.0 */
/* floats.c - the numbers of weight files: f32, its upper half bf16, and IEEE's binary16.
 *
 *   f32    1 sign, 8 exponent, 23 mantissa      bf16   the upper 16 bits of an f32
 *   f16    1 sign, 5 exponent, 10 mantissa      largest 65504, smallest above zero 2^-24
 *
 * Both halves are read exactly. They are written by rounding to nearest, ties to even; what is finite and
 * would become infinite by that is told to the caller, because a weight of infinity is a broken model. */
#include <string.h>

#include "store/store.h"

bool tensor_type_is_float(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_BF16 || type == TENSOR_F16;
}

static float bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mantissa = h & 0x3ff, exponent = h >> 10 & 0x1f;
    if (exponent == 31) return bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * (1.0f / 16777216.0f); /* a subnormal counts 2^-24 */
    return sign ? -f : f;
}

/* x >> bits, to nearest, ties to even; 0 < bits < 32. */
static uint32_t round_shift(uint32_t x, uint32_t bits) {
    uint32_t half = 1u << (bits - 1), rest = x & ((half << 1) - 1), kept = x >> bits;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

static uint16_t to_bf16(uint32_t u) {
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* stays not a number */
    return (uint16_t)round_shift(u, 16);
}

/* A carry out of the mantissa goes into the exponent, which is what rounding up means. */
static uint16_t to_f16(uint32_t u) {
    uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 2^16 and above, infinity */
    if (magnitude >= 0x38800000u)                                    /* 2^-14: normal */
        return (uint16_t)(sign | (round_shift(magnitude, 13) - (112u << 10)));
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below 2^-25, which is a tie that goes to zero */
    return (uint16_t)(sign | round_shift((magnitude & 0x7fffffu) | 0x800000u, 126 - exponent));
}

static uint16_t get_le16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void put_le16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void tensor_decode(enum tensor_type type, const uint8_t *in, size_t n, float *out) {
    CHECK(tensor_type_is_float(type));
    if (type == TENSOR_F32)
        for (size_t i = 0; i < n; i++) out[i] = bits_f32(get_le32(in + 4 * i));
    else if (type == TENSOR_BF16)
        for (size_t i = 0; i < n; i++) out[i] = bits_f32((uint32_t)get_le16(in + 2 * i) << 16);
    else
        for (size_t i = 0; i < n; i++) out[i] = from_f16(get_le16(in + 2 * i));
}

size_t tensor_encode(enum tensor_type type, const float *in, size_t n, uint8_t *out) {
    CHECK(tensor_type_is_float(type));
    if (type == TENSOR_F32) {
        for (size_t i = 0; i < n; i++) put_le32(out + 4 * i, f32_bits(in[i]));
        return n;
    }
    uint16_t infinite = type == TENSOR_BF16 ? 0x7f80 : 0x7c00;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = f32_bits(in[i]);
        uint16_t h = type == TENSOR_BF16 ? to_bf16(u) : to_f16(u);
        if ((h & 0x7fff) == infinite && (u & 0x7fffffffu) < 0x7f800000u) return i;
        put_le16(out + 2 * i, h);
    }
    return n;
}
