/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - dense row-major matrix products on all workers, in the three forms of a linear layer
 * (device.h).
 *
 * Each element of C is add + (sum over the first MATMUL_KC of k) + (the next) + ..., every partial sum
 * in order of k on one thread: its bits depend on K and the kernels' flavour, not on threads, on M, N,
 * or on where the element stands. */
#ifndef TRAIN_MATMUL_H
#define TRAIN_MATMUL_H

#include "train/cpu/kernels.h"
#include "train/cpu/threads.h"

/* Block of k: a panel of B (KC x nr) stays in the first-level cache; of m: a block of A in the second
 * level; of n: the packed B in the third. */
enum { MATMUL_KC = 256, MATMUL_MC = 192, MATMUL_NC = 2048 };

struct matmul {
    struct pool *pool;
    const struct product *product; /* f32 or bf16, of a flavour */
    float *pack_b;                 /* [MATMUL_PACK_B] shared */
    float *pack_a;                 /* [threads][MATMUL_PACK_A] */
};
enum { MATMUL_PACK_B = MATMUL_KC * MATMUL_NC, MATMUL_PACK_A = MATMUL_KC * MATMUL_MC };

/* add is NULL, c, or another [M,N] that c does not overlap. */
void matmul_run(const struct matmul *mm, enum matmul_form form, size_t M, size_t N, size_t K,
                const float *a, const float *b, float *c, const float *add);

#endif
