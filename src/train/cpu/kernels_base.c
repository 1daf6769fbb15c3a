/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_base.c - the kernels for any processor (SSE2, NEON, or whatever the compiler makes of
 * vectors of four), and the choice of flavour. */
#include "train/cpu/kernels.h"

#define LANES 4
#include "train/cpu/attention_body.h"
#include "train/cpu/elementwise_body.h"
#include "train/cpu/kernels_table.h"
#include "train/cpu/matmul_body.h"

const struct kernels kernels_base = KERNELS_TABLE("base");

static bool runs_here(const struct kernels *k) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (k == &kernels_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (k == &kernels_avx512) return __builtin_cpu_supports("avx512f");
#endif
    return k == &kernels_base;
}

const struct kernels *kernels_best(void) {
#if defined(__x86_64__)
    if (runs_here(&kernels_avx512)) return &kernels_avx512;
    if (runs_here(&kernels_avx2)) return &kernels_avx2;
#endif
    return &kernels_base;
}

const struct kernels *kernels_find(const char *name) {
    const struct kernels *all[] = {
        &kernels_base,
#if defined(__x86_64__)
        &kernels_avx2,
        &kernels_avx512,
#endif
    };
    for (size_t i = 0; i < ARRAY_COUNT(all); i++)
        if (strcmp(all[i]->name, name) == 0) return runs_here(all[i]) ? all[i] : NULL;
    return NULL;
}
