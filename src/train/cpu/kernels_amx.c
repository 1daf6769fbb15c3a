/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_amx.c - amx_body.h with the instructions themselves. */
#include "train/cpu/kernels.h"

#if defined(__x86_64__)

#include <string.h>

#include <cpuid.h>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw"))),        \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw")
#endif

struct tile_config { /* as LDTILECFG reads it: palette 1, 16 rows of 64 bytes each */
    uint8_t palette, start_row, reserved[14];
    uint16_t columns_bytes[16];
    uint8_t rows[16];
};

static void tile_config(void) {
    struct tile_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.columns_bytes[i] = 64;
        t.rows[i] = 16;
    }
    _tile_loadconfig(&t);
}

#define TILE_CONFIG() tile_config()
#define TILE_END() _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p) _tile_loadd(t, p, 64)
#define TILE_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_STORE(t, p, ld) _tile_stored(t, p, (ld)*4)
#include "train/cpu/amx_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static const struct product amx = AMX_PRODUCT;

const struct product *product_amx(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) return NULL;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return NULL;
    if (!(d >> 22 & 1) || !(d >> 24 & 1)) return NULL; /* amx-bf16, amx-tile */
    return amx_permitted() ? &amx : NULL;
}

#else

const struct product *product_amx(void) {
    return NULL;
}

#endif
