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
 * Query i sees keys 0..i. What the mask hides is left out by tiles of registers: with diag = the block's
 * first query - its first key, row r has weights on keys below diag + r + 1 and zeros from there on, so a
 * sum over keys may end there and a sum over rows may begin where a key is first seen. Rows of a tile
 * past the last query hold leftovers; they are never summed. */
#ifndef TRAIN_ATTENTION_BODY_H
#define TRAIN_ATTENTION_BODY_H

#include "train/cpu/elementwise_body.h"
#include "train/cpu/matmul_body.h"

enum { BQ = ATTN_BQ, BK = ATTN_BK, BACK_BK = ATTN_BACK_BK };
enum { BACK_TILE = (BQ + KERNEL_MR_MAX) * (BACK_BK + KERNEL_MR_MAX) };
static_assert(BQ % MR == 0, "a query block is whole tiles");
static_assert(BK % NR == 0 && BACK_BK % NR == 0, "a key block is whole panels");
static_assert(BK % BQ == 0, "so diag is never negative forward");

static void k_attn_pack(const struct attn_work *w, uint32_t bkv, bool backward) {
    const struct attn *a = &w->s;
    size_t Tp = (a->T + NR - 1) / NR * NR, off = (size_t)bkv * a->T * a->Dp;
    k_pack_b(w->kt + (size_t)bkv * Tp * a->D, a->k + off, 1, a->Dp, a->D, a->T);
    if (backward) k_pack_b(w->vt + (size_t)bkv * Tp * a->D, a->v + off, 1, a->Dp, a->D, a->T);
}

/* s[m][ld] = q[m][Dp] kt, tiles that the mask hides left as they are; kt packed by panels, from key0 on
 * (a multiple of NR). */
static void scores(const struct attn *a, size_t m, size_t keys, size_t diag, const float *q,
                   const float *kt, size_t key0, float *s, size_t ld) {
    for (size_t j = 0; j < keys; j += NR) {
        size_t i = j < diag + MR ? 0 : (j - diag) / MR * MR; /* the first rows that see key j */
        for (; i < m; i += MR) {
            vf acc[MR][2];
            micro(a->D, q + i * a->Dp, a->Dp, 1, kt + (key0 + j) * a->D, NR, acc);
            tile_store(acc, s + i * ld + j, ld, false, NULL, 0);
        }
    }
}

/* c[m][Dp] = (add ? c : 0) + w[m][ld] b[keys][Dp], w zero where masked. c's rows past m may belong to
 * others, so the last tile is cut. */
static void weighted(size_t m, size_t keys, size_t diag, size_t Dp, const float *w, size_t ld,
                     const float *b, float *c, bool add) {
    for (size_t i = 0; i < m; i += MR) {
        size_t seen = diag + i + MR < keys ? diag + i + MR : keys;
        for (size_t j = 0; j < Dp; j += NR) {
            vf acc[MR][2];
            float *t = c + i * Dp + j;
            micro(seen, w + i * ld, ld, 1, b + j, Dp, acc);
            tile_finish(acc, m - i, NR, t, Dp, add, t, Dp);
        }
    }
}

/* c[keys][Dp] += w[m][ld]' b[m][Dp]: whole tiles of c. */
static void weighted_back(size_t m, size_t keys, size_t diag, size_t Dp, const float *w, size_t ld,
                          const float *b, float *c) {
    for (size_t i = 0; i < keys; i += MR) {
        size_t r0 = i > diag ? i - diag : 0; /* the first row that sees key i */
        if (r0 >= m) break;
        for (size_t j = 0; j < Dp; j += NR) {
            vf acc[MR][2];
            float *t = c + i * Dp + j;
            micro(m - r0, w + r0 * ld + i, 1, ld, b + r0 * Dp + j, Dp, acc);
            tile_store(acc, t, Dp, true, t, Dp);
        }
    }
}

/* Scores of a row to weights, zeros from `seen` to `keys`; rescales the row's output and sum to the
 * new maximum. */
FORCE_INLINE void softmax_row(float *s, size_t seen, size_t keys, float scale, float *out,
                              size_t Dp, float *top, float *total) {
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
    for (; i < keys; i += LANES) vstore(s + i, vset(0.0f));
}

static void k_attn(const struct attn_work *w, uint32_t bh, uint32_t block, float *scratch) {
    const struct attn *a = &w->s;
    size_t b = bh / a->heads, h = bh % a->heads, Dp = a->Dp, Tp = (a->T + NR - 1) / NR * NR;
    size_t bkv = b * a->kv_heads + h / (a->heads / a->kv_heads);
    size_t q0 = (size_t)block * BQ, m = a->T - q0 < BQ ? a->T - q0 : BQ;
    const float *q = a->q + ((size_t)bh * a->T + q0) * Dp, *v = a->v + bkv * a->T * Dp;
    const float *kt = w->kt + bkv * Tp * a->D;
    float *s = scratch, *o = scratch + (BQ + KERNEL_MR_MAX) * (BK + KERNEL_MR_MAX);
    float top[BQ], total[BQ];
    for (size_t r = 0; r < m; r++) {
        top[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (size_t key0 = 0; key0 < q0 + m; key0 += BK) {
        size_t keys = q0 + m - key0 < BK ? q0 + m - key0 : BK, diag = q0 - key0;
        scores(a, m, keys, diag, q, kt, key0, s, BK);
        for (size_t r = 0; r < m; r++) {
            size_t seen = diag + r + 1 < keys ? diag + r + 1 : keys;
            softmax_row(s + r * BK, seen, keys, a->scale, o + r * Dp, Dp, &top[r], &total[r]);
        }
        weighted(m, keys, diag, Dp, s, BK, v + key0 * Dp, o, key0 > 0);
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
    }
}

/* p: scores to weights; ds: from dP to dS. Masked places up to `keys` become 0 in both. */
FORCE_INLINE void weights_row(float *p, float *ds, size_t seen, size_t keys, float scale, float lse,
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
        for (size_t j = seen - i; j < LANES; j++) w[j] = d[j] = 0.0f;
        vstore(p + i, w);
        vstore(ds + i, d);
        i += LANES;
    }
    for (; i < keys; i += LANES) {
        vstore(p + i, zero);
        vstore(ds + i, zero);
    }
}

static void k_attn_back(const struct attn_work *w, uint32_t bkv, float *scratch) {
    const struct attn *a = &w->s;
    size_t group = a->heads / a->kv_heads, b = bkv / a->kv_heads, T = a->T, Dp = a->Dp;
    size_t Tp = (T + NR - 1) / NR * NR, head0 = b * a->heads + bkv % a->kv_heads * group;
    const float *k = a->k + (size_t)bkv * T * Dp;
    const float *kt = w->kt + (size_t)bkv * Tp * a->D, *vt = w->vt + (size_t)bkv * Tp * a->D;
    size_t side = (BACK_BK + KERNEL_MR_MAX) * Dp;
    float *p = scratch, *ds = p + BACK_TILE, *dk = ds + BACK_TILE, *dv = dk + side;
    for (size_t key0 = 0; key0 < T; key0 += BACK_BK) {
        size_t keys = T - key0 < BACK_BK ? T - key0 : BACK_BK;
        memset(dk, 0, 2 * side * sizeof(float));
        for (size_t h = head0; h < head0 + group; h++) {
            for (size_t q0 = key0; q0 < T; q0 += BQ) {
                size_t m = T - q0 < BQ ? T - q0 : BQ, row = h * T + q0, diag = q0 - key0;
                const float *q = a->q + row * Dp, *dout = w->dout_hm + row * Dp;
                scores(a, m, keys, diag, q, kt, key0, p, BACK_BK);
                scores(a, m, keys, diag, dout, vt, key0, ds, BACK_BK);
                for (size_t r = 0; r < m; r++) {
                    size_t seen = diag + r + 1;
                    weights_row(p + r * BACK_BK, ds + r * BACK_BK, seen < keys ? seen : keys, keys,
                                a->scale, a->lse[row + r], w->delta[row + r]);
                }
                weighted_back(m, keys, diag, Dp, p, BACK_BK, dout, dv);
                weighted_back(m, keys, diag, Dp, ds, BACK_BK, q, dk);
                /* the first block of keys is seen by every row, and writes it */
                weighted(m, keys, diag, Dp, ds, BACK_BK, k + key0 * Dp, a->dq + row * Dp, key0 > 0);
            }
        }
        memcpy(a->dk + ((size_t)bkv * T + key0) * Dp, dk, keys * Dp * sizeof(float));
        memcpy(a->dv + ((size_t)bkv * T + key0) * Dp, dv, keys * Dp * sizeof(float));
    }
}

#endif
