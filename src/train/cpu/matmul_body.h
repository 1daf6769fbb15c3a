/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_body.h - the matrix product's inner loops, one flavour; see kernels.h.
 *
 * The micro-kernel keeps MR x NR sums in registers (NR = two vectors) and walks k once: two loads of
 * B, MR broadcasts of A, 2 MR multiply-adds. Each sum runs over k in order, so an element's bits
 * depend on how k is cut and on nothing else. */
#ifndef TRAIN_MATMUL_BODY_H
#define TRAIN_MATMUL_BODY_H

#include "train/cpu/kernels.h"
#include "train/cpu/vec.h"

enum { NR = 2 * LANES, MR = LANES == 16 ? 12 : 6 };
enum { LINE = 64, AHEAD_TILE = 8 }; /* bytes of a cache line; lines asked for at a tile */

/* Not where each load is checked: the compiler would be minutes over one file. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL_STEPS
#else
#define UNROLL_STEPS _Pragma("GCC unroll 4")
#endif

/* acc = sum over p < k of a[i*rs + p*cs] * b[p*ldb + j]. Reads MR rows of a and NR columns of b. */
FORCE_INLINE void micro(size_t k, const float *a, size_t rs, size_t cs, const float *b, size_t ldb,
                        vf acc[MR][2]) {
#pragma GCC unroll 12
    for (size_t i = 0; i < MR; i++) acc[i][0] = acc[i][1] = vset(0.0f);
    UNROLL_STEPS
    for (size_t p = 0; p < k; p++) {
        vf b0 = vload(b), b1 = vload(b + LANES);
#pragma GCC unroll 12
        for (size_t i = 0; i < MR; i++) {
            vf x = vset(a[i * rs]);
            acc[i][0] = vfma(x, b0, acc[i][0]);
            acc[i][1] = vfma(x, b1, acc[i][1]);
        }
        a += cs;
        b += ldb;
    }
}

/* c = add + acc on a whole tile; add is read only where adding. */
FORCE_INLINE void tile_store(vf acc[MR][2], float *c, size_t ldc, bool adding, const float *add,
                             size_t ldadd) {
    if (adding) {
#pragma GCC unroll 12
        for (size_t i = 0; i < MR; i++) {
            vstore(c + i * ldc, vload(add + i * ldadd) + acc[i][0]);
            vstore(c + i * ldc + LANES, vload(add + i * ldadd + LANES) + acc[i][1]);
        }
    } else {
#pragma GCC unroll 12
        for (size_t i = 0; i < MR; i++) {
            vstore(c + i * ldc, acc[i][0]);
            vstore(c + i * ldc + LANES, acc[i][1]);
        }
    }
}

/* The same where only m rows and n columns of the tile exist. */
static void tile_store_part(const float *tile, size_t m, size_t n, float *c, size_t ldc,
                            bool adding, const float *add, size_t ldadd) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = (adding ? add[i * ldadd + j] : 0.0f) + tile[i * NR + j];
}

FORCE_INLINE void tile_finish(vf acc[MR][2], size_t m, size_t n, float *c, size_t ldc, bool adding,
                              const float *add, size_t ldadd) {
    if (m >= MR && n >= NR) {
        tile_store(acc, c, ldc, adding, add, ldadd);
    } else {
        float tile[MR * NR];
        tile_store(acc, tile, NR, false, NULL, 0);
        tile_store_part(tile, m < MR ? m : MR, n < NR ? n : NR, c, ldc, adding, add, ldadd);
    }
}

/* One tile's sums: A packed in panels (rs 1, cs MR) or rows as they lie in memory (cs 1). */
FORCE_INLINE void block_tile(size_t m, size_t n, size_t k, const float *a, size_t rs, size_t cs,
                             const float *b, float *c, size_t ldc, const float *add, size_t ldadd) {
    vf acc[MR][2];
    size_t rows = m < MR ? m : MR;
    for (size_t i = 0; i < rows; i++)
        __builtin_prefetch(c + i * ldc, 1); /* while the sums are made */
    micro(k, a, rs, cs, b, NR, acc);
    tile_finish(acc, m, n, c, ldc, add != NULL, add, ldadd);
}

FORCE_INLINE void ask_ahead(struct ahead *x) {
    if (x->rows == 0) return;
    for (size_t i = 0; i < AHEAD_TILE; i++) {
        __builtin_prefetch(x->at + (size_t)x->line * LINE, 0, 2);
        if (++x->line < x->lines) continue;
        x->line = 0;
        x->at += x->stride;
        if (--x->rows == 0) return;
    }
}

/* While one panel of B is used the next comes into the second level, a part at each tile. */
static void k_block(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *edge,
                    const float *b, float *c, size_t ldc, const float *add, size_t ldadd,
                    struct ahead *ahead) {
    size_t tiles = (m + MR - 1) / MR, part = (k + tiles - 1) / tiles * NR; /* of the panel */
    for (size_t j = 0; j < n; j += NR) {
        const float *p = b + j * k, *next = p + k * NR;
        for (size_t i = 0; i < m; i += MR) {
            float *t = c + i * ldc + j;
            const float *s = add ? add + i * ldadd + j : NULL;
            if (j + NR < n)
                for (size_t x = 0; x < part; x += LINE / 4) __builtin_prefetch(next + x, 0, 2);
            next += part;
            ask_ahead(ahead);
            if (lda == 0)
                block_tile(m - i, n - j, k, a + i * k, 1, MR, p, t, ldc, s, ldadd);
            else if (m - i >= MR)
                block_tile(MR, n - j, k, a + i * lda, lda, 1, p, t, ldc, s, ldadd);
            else
                block_tile(m - i, n - j, k, edge, 1, MR, p, t, ldc, s, ldadd);
        }
    }
}

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

FORCE_INLINE v4 load4(const float *p) {
    return *(const v4_unaligned *)p;
}

FORCE_INLINE void store4(float *p, v4 x) {
    *(v4_unaligned *)p = x;
}

/* Four steps of four rows x, ld apart: step i goes to dst + i * W. */
FORCE_INLINE void transpose_4x4(float *dst, size_t W, const float *x, size_t ld) {
    v4 a = load4(x), b = load4(x + ld), c = load4(x + 2 * ld), d = load4(x + 3 * ld);
    v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
       ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    v4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5),
       cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store4(dst, __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5));
    store4(dst + W, __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7));
    store4(dst + 2 * W, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
    store4(dst + 3 * W, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

FORCE_INLINE void transpose_4x2(float *dst, size_t W, const float *x, size_t ld) {
    v4 a = load4(x), b = load4(x + ld), lo = __builtin_shufflevector(a, b, 0, 4, 1, 5),
       hi = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    memcpy(dst, &lo, 8);
    memcpy(dst + W, (const char *)&lo + 8, 8);
    memcpy(dst + 2 * W, &hi, 8);
    memcpy(dst + 3 * W, (const char *)&hi + 8, 8);
}

/* A whole panel whose columns are rows of x. */
FORCE_INLINE void pack_rows(float *dst, const float *x, size_t ld, size_t k, size_t W) {
    size_t p = 0;
    for (; p + 4 <= k; p += 4) {
        size_t c = 0;
#pragma GCC unroll 8
        for (; c + 4 <= W; c += 4) transpose_4x4(dst + p * W + c, W, x + c * ld + p, ld);
        if (c < W) transpose_4x2(dst + p * W + c, W, x + c * ld + p, ld);
    }
    for (; p < k; p++)
        for (size_t c = 0; c < W; c++) dst[p * W + c] = x[c * ld + p];
}

/* Panels of W columns (a multiple of 2), k steps each; element (p, j) comes from
 * x[p*step_k + j*step_w]; one of the two steps is 1. The columns of a row-major matrix are taken a few
 * rows at a time for all panels, so that a row's cache lines and pages are used up while they are near. */
FORCE_INLINE void pack_panels(float *dst, const float *x, size_t step_k, size_t step_w, size_t k,
                              size_t n, size_t W) {
    enum { STEPS = 8 }; /* rows may lie a power of two apart: as many as a set of the cache holds */
    size_t whole = n / W * W;
    static_assert(MR % 2 == 0, "transpose_4x2 takes what transpose_4x4 leaves");
    if (step_w == 1) {
        for (size_t p0 = 0; p0 < k; p0 += STEPS) {
            size_t p1 = k - p0 < STEPS ? k : p0 + STEPS;
            for (size_t j = 0; j < whole; j += W)
                for (size_t p = p0; p < p1; p++)
                    memcpy(dst + j * k + p * W, x + p * step_k + j, W * sizeof(float));
        }
    } else {
        for (size_t j = 0; j < whole; j += W) pack_rows(dst + j * k, x + j * step_w, step_w, k, W);
    }
    if (whole == n) return;
    dst += whole * k;
    memset(dst, 0, k * W * sizeof(float));
    for (size_t p = 0; p < k; p++)
        for (size_t c = 0; c < n - whole; c++)
            dst[p * W + c] = x[p * step_k + (whole + c) * step_w];
}

static void k_pack_a(float *dst, const float *a, size_t rs, size_t cs, size_t m, size_t k) {
    if (rs == 1)
        pack_panels(dst, a, cs, 1, k, m, MR);
    else
        pack_panels(dst, a, 1, rs, k, m, MR);
}

static void k_pack_b(float *dst, const float *b, size_t ks, size_t ns, size_t k, size_t n) {
    if (ns == 1)
        pack_panels(dst, b, ks, 1, k, n, NR);
    else
        pack_panels(dst, b, 1, ns, k, n, NR);
}

/* To bf16 and back: nearest, ties to even; not-a-number stays one. The products of two such numbers are
 * exact in f32, so this gives what hardware without wider sums gives. */
FORCE_INLINE void round_bf16(float *x, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vi u = (vi)vload(x + i);
        vi odd = (u >> 16) & 1, r = (u + odd + 0x7fff) & (int32_t)0xffff0000;
        vi nan = (vi)(vload(x + i) != vload(x + i));
        vstore(x + i, vselect(nan, vload(x + i), (vf)r));
    }
    for (; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        if (x[i] == x[i]) u = (u + (u >> 16 & 1) + 0x7fff) & 0xffff0000u;
        memcpy(x + i, &u, 4);
    }
}

static void k_pack_a_bf16(float *dst, const float *a, size_t rs, size_t cs, size_t m, size_t k) {
    k_pack_a(dst, a, rs, cs, m, k);
    round_bf16(dst, (m + MR - 1) / MR * MR * k);
}

static void k_pack_b_bf16(float *dst, const float *b, size_t ks, size_t ns, size_t k, size_t n) {
    k_pack_b(dst, b, ks, ns, k, n);
    round_bf16(dst, (n + NR - 1) / NR * NR * k);
}

#endif
