/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h - vectors of LANES floats for the kernel bodies (GCC vector extensions; a few operations for
 * which the extensions have no word are intrinsics in the x86 flavours).
 *
 * Included by the kernels_<flavour>.c files only, after LANES is defined and the target is set. A
 * tail shorter than a vector goes through the same operations, loaded and stored by a copy, so that
 * the value of an element does not depend on where in a row it stands.
 *
 * Where FMA exists it is written out (vfma); the compiler's own contraction stays off, so which
 * operations are fused is decided here and not by the optimizer. */
#ifndef TRAIN_VEC_H
#define TRAIN_VEC_H

#ifndef LANES
#define LANES 4
#endif

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if LANES > 4
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef double vd __attribute__((vector_size(LANES * 8)));
typedef float vf_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define FORCE_INLINE static inline __attribute__((always_inline))

FORCE_INLINE vf vload(const float *p) {
    return *(const vf_unaligned *)p;
}

FORCE_INLINE void vstore(float *p, vf x) {
    *(vf_unaligned *)p = x;
}

FORCE_INLINE vf vset(float x) {
#if LANES == 8
    return (vf)_mm256_set1_ps(x);
#elif LANES == 16
    return (vf)_mm512_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

/* The first n < LANES elements, zeros behind. */
FORCE_INLINE vf vload_n(const float *p, size_t n) {
    vf x = vset(0.0f);
    memcpy(&x, p, n * sizeof(float));
    return x;
}

FORCE_INLINE void vstore_n(float *p, vf x, size_t n) {
    memcpy(p, &x, n * sizeof(float));
}

FORCE_INLINE vf vget(const float *p, size_t left) {
    return left >= LANES ? vload(p) : vload_n(p, left);
}

FORCE_INLINE void vput(float *p, vf x, size_t left) {
    if (left >= LANES)
        vstore(p, x);
    else
        vstore_n(p, x, left);
}

FORCE_INLINE vf vfma(vf a, vf b, vf c) {
#if LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c;
#endif
}

/* mask lanes are all ones or all zeros */
FORCE_INLINE vf vselect(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* Gives b where a is not a number. */
FORCE_INLINE vf vmax(vf a, vf b) {
#if LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return vselect((vi)(a > b), a, b);
#endif
}

FORCE_INLINE vf vsqrt(vf a) {
#if LANES == 8
    return (vf)_mm256_sqrt_ps((__m256)a);
#elif LANES == 16
    return (vf)_mm512_sqrt_ps((__m512)a);
#else
    return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
#endif
}

/* Sum and maximum of the lanes: halves are folded onto each other, a fixed order. */
#if LANES > 4
FORCE_INLINE __m128 vfold_add(__m256 x) {
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

FORCE_INLINE __m128 vfold_max(__m256 x) {
    return _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}
#if LANES == 16
FORCE_INLINE __m256 vlow(vf x) {
    return _mm512_castps512_ps256((__m512)x);
}

FORCE_INLINE __m256 vhigh(vf x) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1));
}
#endif

FORCE_INLINE float vsum(vf x) {
#if LANES == 16
    __m128 v = vfold_add(_mm256_add_ps(vlow(x), vhigh(x)));
#else
    __m128 v = vfold_add((__m256)x);
#endif
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

FORCE_INLINE float vmax_lane(vf x) {
#if LANES == 16
    __m128 v = vfold_max(_mm256_max_ps(vlow(x), vhigh(x)));
#else
    __m128 v = vfold_max((__m256)x);
#endif
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}
#else
FORCE_INLINE float vsum(vf x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}

FORCE_INLINE float vmax_lane(vf x) {
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
}
#endif

/* e^x, relative error below 2e-7; 0 under -87.3, held at e^88 above; not-a-number passes through.
 * x = n ln2 + r with ln2 in two parts, then the Taylor polynomial of degree 7 on |r| <= 0.3466
 * (its remainder is 5e-9). n is rounded by adding 1.5 * 2^23. */
FORCE_INLINE vf vexp(vf x) {
    const vf magic = vset(12582912.0f), low = vset(-87.3f), high = vset(88.0f);
    vi under = (vi)(x < low);
    x = vselect(under, low, x);
    x = vselect((vi)(x > high), high, x);
    vf t = vfma(x, vset(1.44269504088896341f), magic);
    vf n = t - magic;
    vf r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.0f / 5040.0f);
    p = vfma(p, r, vset(1.0f / 720.0f));
    p = vfma(p, r, vset(1.0f / 120.0f));
    p = vfma(p, r, vset(1.0f / 24.0f));
    p = vfma(p, r, vset(1.0f / 6.0f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, r, vset(1.0f));
    p = vfma(p, r, vset(1.0f));
    vi bits = ((vi)t << 23) + (vi)vset(1.0f); /* magic's low bits are zero: t's low bits are n */
    return vselect(under, vset(0.0f), p * (vf)bits);
}

FORCE_INLINE vf vsigmoid(vf x) {
    return vset(1.0f) / (vset(1.0f) + vexp(-x));
}

#endif
