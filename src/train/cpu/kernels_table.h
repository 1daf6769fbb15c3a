/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_table.h - the table of one flavour; the last thing a kernels_<flavour>.c includes. */
#define KERNELS_TABLE(name_)                                                                       \
    {                                                                                              \
        .name = name_, .nr = NR,                                                                   \
        .f32 = {.name = name_,                                                                     \
                .mr = MR,                                                                          \
                .nr = NR,                                                                          \
                .kstep = 1,                                                                        \
                .bytes = 4,                                                                        \
                .direct = true,                                                                    \
                .pack_a = k_pack_a,                                                                \
                .pack_b = k_pack_b,                                                                \
                .block = k_block},                                                                 \
        .bf16 = {.name = name_,                                                                    \
                 .mr = MR,                                                                         \
                 .nr = NR,                                                                         \
                 .kstep = 1,                                                                       \
                 .bytes = 4,                                                                       \
                 .pack_a = k_pack_a_bf16,                                                          \
                 .pack_b = k_pack_b_bf16,                                                          \
                 .block = k_block},                                                                \
        .rmsnorm = k_rmsnorm, .rmsnorm_back = k_rmsnorm_back, .rope = k_rope,                      \
        .rope_back = k_rope_back, .swiglu = k_swiglu, .swiglu_back = k_swiglu_back,                \
        .attn_pack = k_attn_pack, .attn = k_attn, .attn_delta = k_attn_delta,                      \
        .attn_back = k_attn_back, .cross_entropy = k_cross_entropy, .add = k_add,                  \
        .axpby = k_axpby, .sum_squares = k_sum_squares, .adamw = k_adamw                           \
    }
