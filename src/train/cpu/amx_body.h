/* SPDX-License-Identifier: Apache-2.0 */
/* amx_body.h - the product of bf16 panels on a unit that multiplies tiles; included with TILE_* defined,
 * as instructions (kernels_amx.c) or as their meaning in C (test/ops/bf16.c), so that what is around
 * the instructions is tested where there are none.
 *
 * A tile is 16 rows of 64 bytes: of A 16 rows x 32 steps of k in bf16; of B 16 pairs of steps x 16
 * columns, a pair side by side; of C 16 x 16 f32. Four tiles of C are gathered at a time (32 x 32).
 * Panels hold whole tiles: A [m/32][k/32][2][16][32], B [n/32][k/32][2][16][16][2].
 * The meaning of one multiplication, for each element of C and one tile's 32 steps (Intel SDM,
 * TDPBF16PS): even and odd steps are summed by themselves in f32, then the two are added to each
 * other, then to C; denormal numbers count as 0. */

enum { AMX_M = 32, AMX_N = 32, AMX_K = 32, AMX_TILE = 16 * 32 };

static uint16_t amx_round(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (x != x) return (uint16_t)(u >> 16 | 0x40); /* quiet, so that it stays no number */
    return (uint16_t)((u + (u >> 16 & 1) + 0x7fff) >> 16);
}

static void amx_pack_a(float *dst, const float *a, size_t rs, size_t cs, size_t m, size_t k) {
    uint16_t *to = (uint16_t *)(void *)dst;
    for (size_t i0 = 0; i0 < m; i0 += AMX_M)
        for (size_t p0 = 0; p0 < k; p0 += AMX_K, to += 2 * AMX_TILE)
            for (size_t i = 0; i < AMX_M; i++)
                for (size_t p = 0; p < AMX_K; p++)
                    to[i * AMX_K + p] =
                        i0 + i < m && p0 + p < k ? amx_round(a[(i0 + i) * rs + (p0 + p) * cs]) : 0;
}

static void amx_pack_b(float *dst, const float *b, size_t ks, size_t ns, size_t k, size_t n) {
    uint16_t *to = (uint16_t *)(void *)dst;
    for (size_t j0 = 0; j0 < n; j0 += AMX_N)
        for (size_t p0 = 0; p0 < k; p0 += AMX_K, to += 2 * AMX_TILE)
            for (size_t j = 0; j < AMX_N; j++)
                for (size_t p = 0; p < AMX_K; p++)
                    to[j / 16 * AMX_TILE + p / 2 * 32 + j % 16 * 2 + p % 2] =
                        j0 + j < n && p0 + p < k ? amx_round(b[(p0 + p) * ks + (j0 + j) * ns]) : 0;
}

static void amx_finish(const float *tile, size_t m, size_t n, float *c, size_t ldc,
                       const float *add, size_t ldadd) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = (add ? add[i * ldadd + j] : 0.0f) + tile[i * AMX_N + j];
}

static void amx_block(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *edge,
                      const float *b, float *c, size_t ldc, const float *add, size_t ldadd,
                      struct ahead *ahead) {
    float sums[AMX_M * AMX_N];
    const uint16_t *pa = (const uint16_t *)(const void *)a, *pb = (const uint16_t *)(const void *)b;
    (void)lda; /* always packed */
    (void)edge;
    (void)ahead;
    TILE_CONFIG();
    for (size_t j = 0; j < n; j += AMX_N) {
        for (size_t i = 0; i < m; i += AMX_M) {
            const uint16_t *x = pa + i * k, *y = pb + j * k;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (size_t p = 0; p < k; p += AMX_K, x += 2 * AMX_TILE, y += 2 * AMX_TILE) {
                TILE_LOAD(4, x);
                TILE_LOAD(5, x + AMX_TILE);
                TILE_LOAD(6, y);
                TILE_LOAD(7, y + AMX_TILE);
                TILE_MULTIPLY(0, 4, 6);
                TILE_MULTIPLY(1, 4, 7);
                TILE_MULTIPLY(2, 5, 6);
                TILE_MULTIPLY(3, 5, 7);
            }
            TILE_STORE(0, sums, AMX_N);
            TILE_STORE(1, sums + 16, AMX_N);
            TILE_STORE(2, sums + 16 * AMX_N, AMX_N);
            TILE_STORE(3, sums + 16 * AMX_N + 16, AMX_N);
            amx_finish(sums, m - i < AMX_M ? m - i : AMX_M, n - j < AMX_N ? n - j : AMX_N,
                       c + i * ldc + j, ldc, add ? add + i * ldadd + j : NULL, ldadd);
        }
    }
    TILE_END();
}

#define AMX_PRODUCT                                                                                \
    {                                                                                              \
        .name = "amx", .mr = AMX_M, .nr = AMX_N, .kstep = AMX_K, .bytes = 2, .pack_a = amx_pack_a, \
        .pack_b = amx_pack_b, .block = amx_block                                                   \
    }
