/* SPDX-License-Identifier: Apache-2.0 */
/* attention_body.h - causal attention by blocks, one flavour; see kernels.h.
 *
 * Forward (Dao et al. 2022, arXiv 2205.14135): for a block of ATTN_BQ queries the blocks of ATTN_BK
 * keys go by once; a running maximum and sum rescale what was gathered so far. Of the T x T scores only
 * one tile exists at a time; kept is one number a row, lse = log sum exp.
 * Backward, for one key-value head: P = exp(scale S - lse) is made again tile by tile, then with
 * delta_r = dout_r . out_r:
 *   dV += P' dO     dP = dO V'     dS = P (dP - delta) scale     dQ += dS K     dK += dS' Q
 * Key blocks are the outer loop, then the query heads of the group, then query blocks: each sum runs
 * in this order on one thread.
 *
 * Query i sees keys 0..i. Rows of a tile past the last query hold leftovers; they are never summed. */
#ifndef TRAIN_ATTENTION_BODY_H
#define TRAIN_ATTENTION_BODY_H

#include "train/cpu/elementwise_body.h"
#include "train/cpu/matmul_body.h"

enum { BQ = ATTN_BQ, BK = ATTN_BK, TILE = (ATTN_BQ + KERNEL_MR_MAX) * (ATTN_BK + KERNEL_MR_MAX) };
static_assert(ATTN_BQ % MR == 0, "a query block is whole tiles");
static_assert(ATTN_BK % NR == 0, "a key block is whole panels");

static void k_attn_pack(const struct attn_work *w, uint32_t bkv, bool backward) {
    const struct attn *a = &w->s;
    size_t Tp = (a->T + NR - 1) / NR * NR, off = (size_t)bkv * a->T * a->Dp;
    k_pack_b(w->kt + (size_t)bkv * Tp * a->D, a->k + off, 1, a->Dp, a->D, a->T);
    if (backward) k_pack_b(w->vt + (size_t)bkv * Tp * a->D, a->v + off, 1, a->Dp, a->D, a->T);
}

/* s[m][BK] = q[m][Dp] kt; kt packed by panels, from key0 on (a multiple of NR). */
FORCE_INLINE void scores(const struct attn *a, size_t m, size_t keys, const float *q,
                         const float *kt, size_t key0, float *s) {
    for (size_t j = 0; j < keys; j += NR) {
        for (size_t i = 0; i < m; i += MR) {
            vf acc[MR][2];
            micro(a->D, q + i * a->Dp, a->Dp, 1, kt + (key0 + j) * a->D, NR, acc);
            tile_store(acc, s + i * BK + j, BK, false, NULL, 0);
        }
    }
}

/* Scores of a row to weights: rescales the row's output and sum to the new maximum. */
FORCE_INLINE void softmax_row(float *s, size_t seen, float scale, float *out, size_t Dp, float *top,
                              float *total) {
    vf m4 = vset(s[0]);
    size_t i = 0;
    for (; i + LANES <= seen; i += LANES) m4 = vmax(m4, vload(s + i));
    float m = vmax_lane(m4);
    for (; i < seen; i++) m = s[i] > m ? s[i] : m;
    m *= scale;
    if (m > *top) {
        float f = vexp(vset(*top - m))[0];
        if (*total > 0.0f) {
            *total *= f;
            vf vf_ = vset(f);
            for (i = 0; i < Dp; i += LANES) vstore(out + i, vload(out + i) * vf_);
        }
        *top = m;
    }
    vf sum = vset(0.0f), vs = vset(scale), vm = vset(*top);
    for (i = 0; i + LANES <= seen; i += LANES) {
        vf e = vexp(vload(s + i) * vs - vm);
        sum += e;
        vstore(s + i, e);
    }
    if (i < seen) {
        float tail[LANES];
        vstore(tail, vexp(vload_n(s + i, seen - i) * vs - vm));
        for (size_t j = seen - i; j < LANES; j++) tail[j] = 0.0f;
        sum += vload(tail);
        vstore(s + i, vload(tail));
        i += LANES;
    }
    *total += vsum(sum);
    for (; i < BK; i += LANES) vstore(s + i, vset(0.0f));
}

static void k_attn(const struct attn_work *w, uint32_t bh, uint32_t block, float *scratch) {
    const struct attn *a = &w->s;
    size_t b = bh / a->heads, h = bh % a->heads, Dp = a->Dp, Tp = (a->T + NR - 1) / NR * NR;
    size_t bkv = b * a->kv_heads + h / (a->heads / a->kv_heads);
    size_t q0 = (size_t)block * BQ, m = a->T - q0 < BQ ? a->T - q0 : BQ;
    const float *q = a->q + ((size_t)bh * a->T + q0) * Dp, *v = a->v + bkv * a->T * Dp;
    const float *kt = w->kt + bkv * Tp * a->D;
    float *s = scratch, *o = scratch + TILE, top[BQ], total[BQ];
    memset(o, 0, BQ * Dp * sizeof(float));
    for (size_t r = 0; r < m; r++) {
        top[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (size_t key0 = 0; key0 < q0 + m; key0 += BK) {
        size_t keys = q0 + m - key0 < BK ? q0 + m - key0 : BK;
        scores(a, m, keys, q, kt, key0, s);
        for (size_t r = 0; r < m; r++) {
            if (q0 + r < key0) {
                memset(s + r * BK, 0, BK * sizeof(float));
                continue;
            }
            size_t seen = q0 + r - key0 + 1 < keys ? q0 + r - key0 + 1 : keys;
            softmax_row(s + r * BK, seen, a->scale, o + r * Dp, Dp, &top[r], &total[r]);
        }
        small_nn(m, Dp, keys, s, BK, 1, v + key0 * Dp, Dp, o, Dp, true);
    }
    for (size_t r = 0; r < m; r++) {
        float *out = a->out + ((b * a->T + q0 + r) * a->heads + h) * a->D, f = 1.0f / total[r];
        for (size_t i = 0; i < a->D; i += LANES)
            vput(out + i, vget(o + r * Dp + i, a->D - i) * vset(f), a->D - i);
        a->lse[(size_t)bh * a->T + q0 + r] = top[r] + logf(total[r]);
    }
}

static void k_attn_delta(const struct attn_work *w, uint32_t bh) {
    const struct attn *a = &w->s;
    size_t b = bh / a->heads, h = bh % a->heads;
    for (size_t t = 0; t < a->T; t++) {
        size_t at = ((b * a->T + t) * a->heads + h) * a->D, row = (size_t)bh * a->T + t;
        w->delta[row] = dot(a->dout + at, a->out + at, a->D);
        memcpy(w->dout_hm + row * a->Dp, a->dout + at, a->D * sizeof(float));
        memset(a->dq + row * a->Dp, 0, a->Dp * sizeof(float));
    }
}

/* p: scores to weights; ds: from dP to dS. Masked places become 0 in both. */
FORCE_INLINE void weights_row(float *p, float *ds, size_t seen, float scale, float lse,
                              float delta) {
    vf vs = vset(scale), vl = vset(lse), vdelta = vset(delta), zero = vset(0.0f);
    size_t i = 0;
    for (; i + LANES <= seen; i += LANES) {
        vf w = vexp(vload(p + i) * vs - vl);
        vstore(p + i, w);
        vstore(ds + i, w * (vload(ds + i) - vdelta) * vs);
    }
    if (i < seen) {
        vf w = vexp(vload(p + i) * vs - vl), d = w * (vload(ds + i) - vdelta) * vs;
        vstore(p + i, zero);
        vstore(ds + i, zero);
        vstore_n(p + i, w, seen - i);
        vstore_n(ds + i, d, seen - i);
        i += LANES;
    }
    for (; i < BK; i += LANES) {
        vstore(p + i, zero);
        vstore(ds + i, zero);
    }
}

/* dq[m][Dp] += ds[m][keys] k: dq's rows past m belong to another head, so the last tile is cut. */
FORCE_INLINE void query_grad(const struct attn *a, size_t m, size_t keys, const float *ds,
                             const float *k, float *dq) {
    size_t Dp = a->Dp;
    for (size_t j = 0; j < Dp; j += NR) {
        for (size_t i = 0; i < m; i += MR) {
            vf acc[MR][2];
            micro(keys, ds + i * BK, BK, 1, k + j, Dp, acc);
            float *t = dq + i * Dp + j;
            tile_finish(acc, m - i, NR, t, Dp, true, t, Dp);
        }
    }
}

static void k_attn_back(const struct attn_work *w, uint32_t bkv, float *scratch) {
    const struct attn *a = &w->s;
    size_t group = a->heads / a->kv_heads, b = bkv / a->kv_heads, T = a->T, Dp = a->Dp;
    size_t Tp = (T + NR - 1) / NR * NR, head0 = b * a->heads + bkv % a->kv_heads * group;
    const float *k = a->k + (size_t)bkv * T * Dp;
    const float *kt = w->kt + (size_t)bkv * Tp * a->D, *vt = w->vt + (size_t)bkv * Tp * a->D;
    size_t side = (BK + KERNEL_MR_MAX) * Dp;
    float *p = scratch, *ds = scratch + TILE, *dk = scratch + 2 * TILE, *dv = dk + side;
    for (size_t key0 = 0; key0 < T; key0 += BK) {
        size_t keys = T - key0 < BK ? T - key0 : BK;
        memset(dk, 0, 2 * side * sizeof(float));
        for (size_t h = head0; h < head0 + group; h++) {
            for (size_t q0 = key0 / BQ * BQ; q0 < T; q0 += BQ) {
                size_t m = T - q0 < BQ ? T - q0 : BQ, row = h * T + q0;
                const float *q = a->q + row * Dp, *dout = w->dout_hm + row * Dp;
                scores(a, m, keys, q, kt, key0, p);
                scores(a, m, keys, dout, vt, key0, ds);
                for (size_t r = 0; r < m; r++) {
                    size_t seen = q0 + r < key0 ? 0 : q0 + r - key0 + 1;
                    weights_row(p + r * BK, ds + r * BK, seen < keys ? seen : keys, a->scale,
                                a->lse[row + r], w->delta[row + r]);
                }
                small_nn(keys, Dp, m, p, 1, BK, dout, Dp, dv, Dp, true);
                small_nn(keys, Dp, m, ds, 1, BK, q, Dp, dk, Dp, true);
                query_grad(a, m, keys, ds, k + key0 * Dp, a->dq + row * Dp);
            }
        }
        memcpy(a->dk + ((size_t)bkv * T + key0) * Dp, dk, keys * Dp * sizeof(float));
        memcpy(a->dv + ((size_t)bkv * T + key0) * Dp, dv, keys * Dp * sizeof(float));
    }
}

#endif
