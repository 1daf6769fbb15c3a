/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - matrix products of operands rounded to bf16: on each device against a plain loop over rounded
 * numbers in double; and the tiles of AMX, whose instructions are played in C here (the same
 * amx_body.h as in the program), to the bit against the definition of those instructions. */
#include "ops.h"

#include "train/cpu/kernels.h"

/* The plain rounding: among the two neighbours in bf16 the nearer, of equally near ones the even. */
static float plain_bf16(float x) {
    uint32_t low, high;
    float a, b;
    memcpy(&low, &x, 4);
    low &= 0xffff0000u;
    high = low + 0x10000u;
    memcpy(&a, &low, 4);
    memcpy(&b, &high, 4);
    double da = fabs((double)x - (double)a), db = fabs((double)b - (double)x);
    if (da != db) return da < db ? a : b;
    return low >> 16 & 1 ? b : a;
}

/* ---- The instructions of AMX in C ---------------------------------------------------------------- */
static union tile {
    uint16_t h[16][32];
    float f[16][16];
} tiles[8];

static float from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void tile_load(int t, const uint16_t *p) {
    memcpy(tiles[t].h, p, sizeof tiles[t].h);
}

static void tile_store(int t, float *p, size_t ld) {
    for (size_t r = 0; r < 16; r++) memcpy(p + r * ld, tiles[t].f[r], sizeof tiles[t].f[r]);
}

static void tile_multiply(int c, int a, int b) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0;
            for (int k = 0; k < 16; k++) {
                even = fmaf(from_bf16(tiles[a].h[m][2 * k]), from_bf16(tiles[b].h[k][2 * n]), even);
                odd = fmaf(from_bf16(tiles[a].h[m][2 * k + 1]), from_bf16(tiles[b].h[k][2 * n + 1]),
                           odd);
            }
            tiles[c].f[m][n] += even + odd;
        }
}

#define TILE_CONFIG() (void)0
#define TILE_END() (void)0
#define TILE_ZERO(t) memset(&tiles[t], 0, sizeof tiles[t])
#define TILE_LOAD(t, p) tile_load(t, p)
#define TILE_MULTIPLY(c, a, b) tile_multiply(c, a, b)
#define TILE_STORE(t, p, ld) tile_store(t, p, ld)
#include "train/cpu/amx_body.h"

static const struct product played = AMX_PRODUCT;

/* c = add + sum over blocks of 32 steps of (even steps) + (odd steps), from the operands as they lie. */
static float defined(const float *a, size_t rs, size_t cs, const float *b, size_t ks, size_t ns,
                     size_t k) {
    float sum = 0;
    for (size_t p0 = 0; p0 < k; p0 += 32) {
        float part[2] = {0, 0};
        for (size_t p = p0; p < p0 + 32 && p < k; p++)
            part[p % 2] = fmaf(plain_bf16(a[p * cs]), plain_bf16(b[p * ks]), part[p % 2]);
        sum += part[0] + part[1];
    }
    (void)rs;
    (void)ns;
    return sum;
}

static void played_case(size_t m, size_t n, size_t k, bool a_by_columns, bool b_by_rows) {
    struct prng p;
    prng_seed(&p, m * 31 + n * 7 + k);
    float *a = random_floats(&p, m * k, 1), *b = random_floats(&p, n * k, 1);
    float *add = random_floats(&p, m * n, 1), *c = mem_alloc(m * n, 4);
    size_t rs = a_by_columns ? 1 : k, cs = a_by_columns ? m : 1;
    size_t ks = b_by_rows ? n : 1, ns = b_by_rows ? 1 : k;
    size_t kp = (k + 31) / 32 * 32;
    float *pa = mem_alloc((m + 31) / 32 * 16 * kp, 4), *pb = mem_alloc((n + 31) / 32 * 16 * kp, 4);
    played.pack_a(pa, a, rs, cs, m, k);
    played.pack_b(pb, b, ks, ns, k, n);
    struct ahead none = {.rows = 0};
    for (int adding = 0; adding < 2; adding++) {
        played.block(m, n, kp, pa, 0, NULL, pb, c, n, adding ? add : NULL, n, &none);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                float want = (adding ? add[i * n + j] : 0.0f) +
                             defined(a + i * rs, rs, cs, b + j * ns, ks, ns, k);
                if (memcmp(&want, &c[i * n + j], 4) != 0)
                    fail_msg("%zu x %zu x %zu: [%zu][%zu] is %a, not %a", m, n, k, i, j,
                             (double)c[i * n + j], (double)want);
            }
    }
    float *all[] = {a, b, add, c, pa, pb};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
}

TEST(ops_tiles_of_amx_played_in_c_give_the_bits_of_their_definition) {
    static const size_t sizes[][3] = {{1, 1, 1},    {16, 16, 32}, {32, 32, 64},
                                      {33, 31, 33}, {70, 65, 96}, {5, 100, 250}};
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
        for (int form = 0; form < 4; form++)
            played_case(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form & 2);
}

/* Where the processor has the instructions, they give what they were played to give. */
TEST(ops_tiles_of_amx_give_what_was_played) {
    const struct product *real = product_amx();
    if (!real) {
        print_message("this processor has no AMX: nothing to compare\n");
        return;
    }
    struct prng p;
    struct ahead none = {.rows = 0};
    prng_seed(&p, 8);
    size_t m = 45, n = 77, k = 160;
    float *a = random_floats(&p, m * k, 1), *b = random_floats(&p, n * k, 1);
    float *pa = mem_alloc(64 * k, 4), *pb = mem_alloc(96 * k, 4), *c = mem_alloc(m * n, 4),
          *d = mem_alloc(m * n, 4);
    played.pack_a(pa, a, k, 1, m, k);
    played.pack_b(pb, b, 1, k, k, n);
    played.block(m, n, k, pa, 0, NULL, pb, c, n, NULL, n, &none);
    real->block(m, n, k, pa, 0, NULL, pb, d, n, NULL, n, &none);
    assert_memory_equal(c, d, m * n * 4);
    float *all[] = {a, b, pa, pb, c, d};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) mem_free(all[i]);
}

TEST(ops_rounding_to_bf16_is_to_the_nearest_even) {
    struct prng p;
    prng_seed(&p, 5);
    for (int i = 0; i < 100000; i++) {
        uint32_t u = (uint32_t)prng_u64(&p) & 0x7fffffffu;
        if (i % 4 == 0) u = (u & 0xffff0000u) | 0x8000u; /* half way between two */
        if ((u >> 23) >= 0xfe) continue;                 /* beyond the largest */
        float x;
        memcpy(&x, &u, 4);
        assert_true(from_bf16(amx_round(x)) == plain_bf16(x));
        assert_true(from_bf16(amx_round(-x)) == -plain_bf16(x));
    }
    assert_true(isnan(from_bf16(amx_round(NAN))));
    assert_true(isinf(from_bf16(amx_round(INFINITY))));
}

/* ---- Devices ---------------------------------------------------------------------------------------- */
static void device_case(const char *name, enum matmul_form form, size_t M, size_t N, size_t K) {
    struct prng p;
    struct err e;
    prng_seed(&p, M + 3 * N + 7 * K);
    float *a = random_floats(&p, M * K, 1), *b = random_floats(&p, N * K, 1), *y[3];
    double *want = mem_alloc(M * N, sizeof *want);
    for (uint32_t i = 0; i < 3; i++) {
        struct device *d;
        y[i] = mem_alloc(M * N, 4);
        assert_int_equal(device_open(name, i + 1, PRECISION_BF16, &d, &e), BRG_OK);
        ops_bind(d);
        d->ops->matmul(d, form, M, N, K, a, b, y[i], NULL);
        ops_close(d);
    }
    size_t ar = form == MATMUL_TN ? 1 : K, ac = form == MATMUL_TN ? M : 1;
    size_t br = form == MATMUL_NT ? 1 : N, bc = form == MATMUL_NT ? K : 1;
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++)
            for (size_t q = 0; q < K; q++)
                want[i * N + j] += (double)plain_bf16(a[i * ar + q * ac]) *
                                   (double)plain_bf16(b[q * br + j * bc]);
    double off = distance_d(y[0], want, M * N);
    if (!(off < 2e-6)) fail_msg("%s: off by %.3g", name, off);
    assert_memory_equal(y[0], y[1], M * N * 4);
    assert_memory_equal(y[0], y[2], M * N * 4);
    for (int i = 0; i < 3; i++) mem_free(y[i]);
    mem_free(a);
    mem_free(b);
    mem_free(want);
}

TEST(ops_product_in_bf16_and_its_bits_for_any_threads) {
    static const size_t sizes[][3] = {{1, 1, 1}, {7, 33, 5}, {50, 70, 19}, {97, 130, 270}};
    for (size_t i = 0; i <= 3; i++) {
        const char *name = device_name(i);
        struct device *d;
        struct err e = {0};
        if (device_open(name, 1, PRECISION_BF16, &d, &e)) continue;
        device_close(d);
        for (size_t s = 0; s < ARRAY_COUNT(sizes); s++)
            for (int form = 0; form < 3; form++)
                device_case(name, (enum matmul_form)form, sizes[s][0], sizes[s][1], sizes[s][2]);
        if (!name) break; /* the fastest of all came last */
    }
}
