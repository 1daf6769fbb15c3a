/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_avx512.c - the kernels for AVX-512. The target is set here and not by the build, so that no flag
 * can let these instructions slip into a file that runs everywhere. */
#include "train/cpu/kernels.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#endif

#define LANES 16
#include "train/cpu/attention_body.h"
#include "train/cpu/elementwise_body.h"
#include "train/cpu/kernels_table.h"
#include "train/cpu/matmul_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const struct kernels kernels_avx512 = KERNELS_TABLE("avx512");

#endif
