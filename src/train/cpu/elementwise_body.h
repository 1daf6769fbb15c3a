/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise_body.h - norms, rotation, SwiGLU, cross-entropy, AdamW: one flavour; see kernels.h. */
#ifndef TRAIN_ELEMENTWISE_BODY_H
#define TRAIN_ELEMENTWISE_BODY_H

#include "train/cpu/kernels.h"
#include "train/cpu/vec.h"

FORCE_INLINE float dot(const float *a, const float *b, size_t n) {
    vf s = vset(0.0f);
    for (size_t i = 0; i < n; i += LANES) s = vfma(vget(a + i, n - i), vget(b + i, n - i), s);
    return vsum(s);
}

FORCE_INLINE float rms_scale(const float *x, size_t n, float eps) {
    return 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
}

static void k_rmsnorm(float *y, float *rstd, const float *x, const float *w, size_t rows, size_t C,
                      float eps, bool rstd_known) {
    for (size_t r = 0; r < rows; r++, x += C, y += C) {
        float s = rstd_known ? rstd[r] : rms_scale(x, C, eps);
        rstd[r] = s;
        vf vs = vset(s);
        for (size_t i = 0; i < C; i += LANES)
            vput(y + i, vget(w + i, C - i) * (vget(x + i, C - i) * vs), C - i);
    }
}

/* y_i = w_i x_i s, s = (mean x^2 + eps)^-1/2:
 * dx_i = s w_i dy_i - x_i s^3 (sum_j w_j dy_j x_j) / C,   dw_i = sum over rows of dy_i x_i s */
static void k_rmsnorm_back(float *dx, float *dw, const float *dy, const float *x, const float *rstd,
                           const float *w, size_t rows, size_t C) {
    memset(dw, 0, C * sizeof(float));
    for (size_t r = 0; r < rows; r++, x += C, dy += C, dx += C) {
        float s = rstd[r];
        vf vs = vset(s), sum = vset(0.0f);
        for (size_t i = 0; i < C; i += LANES) {
            vf xi = vget(x + i, C - i), di = vget(dy + i, C - i);
            sum = vfma(vget(w + i, C - i) * di, xi, sum);
            vput(dw + i, vfma(di, xi * vs, vget(dw + i, C - i)), C - i);
        }
        vf back = vset(-(s * s * s) * (vsum(sum) / (float)C));
        for (size_t i = 0; i < C; i += LANES) {
            vf g = vget(w + i, C - i) * vget(dy + i, C - i) * vs;
            g = vfma(vget(x + i, C - i), back, g);
            vput(dx + i, vget(dx + i, C - i) + g, C - i);
        }
    }
}

/* Rows of many heads lie far apart on the head-major side, where the processor sees no pattern: it is told
 * a row before. The last row's hint points past the end, which a hint may. */
FORCE_INLINE void row_ahead(const float *x, size_t n, bool written) {
    for (size_t i = 0; i < n; i += 16) {
        if (written)
            __builtin_prefetch(x + i, 1);
        else
            __builtin_prefetch(x + i);
    }
}

/* One head's norm and rotation: halves (a, b) turn by the position's angles. */
FORCE_INLINE void rope_head(float *out, const float *x, const float *w, const float *cosines,
                            const float *sines, size_t D, float eps) {
    size_t half = D / 2;
    vf s = vset(rms_scale(x, D, eps));
    for (size_t i = 0; i < half; i += LANES) {
        size_t n = half - i;
        vf a = vget(w + i, n) * (vget(x + i, n) * s);
        vf b = vget(w + half + i, n) * (vget(x + half + i, n) * s);
        vf c = vget(cosines + i, n), d = vget(sines + i, n);
        vput(out + i, a * c - b * d, n);
        vput(out + half + i, b * c + a * d, n);
    }
}

static void k_rope(const struct rope_layer *l, const float *qkv, size_t row0, size_t rows, float *q,
                   float *k, float *v) {
    size_t D = l->D, half = D / 2, width = (l->heads + 2 * (size_t)l->kv_heads) * D;
    for (size_t r = row0; r < row0 + rows; r++) {
        size_t b = r / l->T, t = r % l->T;
        const float *x = qkv + r * width, *c = l->cosines + t * half, *s = l->sines + t * half;
        row_ahead(x + width, width, false);
        for (size_t h = 0; h < l->heads; h++, x += D) {
            float *y = q + ((b * l->heads + h) * l->T + t) * l->Dp;
            row_ahead(y + l->Dp, D, true);
            rope_head(y, x, l->q_norm, c, s, D, l->eps);
        }
        for (size_t h = 0; h < l->kv_heads; h++, x += D) {
            float *y = k + ((b * l->kv_heads + h) * l->T + t) * l->Dp;
            row_ahead(y + l->Dp, D, true);
            rope_head(y, x, l->k_norm, c, s, D, l->eps);
        }
        for (size_t h = 0; h < l->kv_heads; h++, x += D) {
            float *y = v + ((b * l->kv_heads + h) * l->T + t) * l->Dp;
            row_ahead(y + l->Dp, D, true);
            memcpy(y, x, D * sizeof(float));
        }
    }
}

/* The way back of rope_head: turns the gradient back, then the norm's gradient; dw is added to. */
FORCE_INLINE void rope_head_back(float *dx, float *dw, const float *dout, const float *x,
                                 const float *w, const float *cosines, const float *sines, size_t D,
                                 float eps) {
    size_t half = D / 2;
    float scale = rms_scale(x, D, eps);
    vf s = vset(scale), sum = vset(0.0f);
    for (size_t i = 0; i < half; i += LANES) {
        size_t n = half - i;
        vf c = vget(cosines + i, n), d = vget(sines + i, n);
        vf ga = vget(dout + i, n), gb = vget(dout + half + i, n);
        vf a = ga * c + gb * d, b = gb * c - ga * d;
        vf xa = vget(x + i, n), xb = vget(x + half + i, n);
        vput(dw + i, vfma(a, xa * s, vget(dw + i, n)), n);
        vput(dw + half + i, vfma(b, xb * s, vget(dw + half + i, n)), n);
        a *= vget(w + i, n);
        b *= vget(w + half + i, n);
        sum = vfma(a, xa, vfma(b, xb, sum));
        vput(dx + i, a * s, n);
        vput(dx + half + i, b * s, n);
    }
    vf back = vset(-(scale * scale * scale) * (vsum(sum) / (float)D));
    for (size_t i = 0; i < D; i += LANES)
        vput(dx + i, vfma(vget(x + i, D - i), back, vget(dx + i, D - i)), D - i);
}

static void k_rope_back(const struct rope_layer *l, const float *qkv, size_t row0, size_t rows,
                        const float *dq, const float *dk, const float *dv, float *dqkv, float *dqw,
                        float *dkw) {
    size_t D = l->D, half = D / 2, width = (l->heads + 2 * (size_t)l->kv_heads) * D;
    memset(dqw, 0, D * sizeof(float));
    memset(dkw, 0, D * sizeof(float));
    for (size_t r = row0; r < row0 + rows; r++) {
        size_t b = r / l->T, t = r % l->T;
        const float *x = qkv + r * width, *c = l->cosines + t * half, *s = l->sines + t * half;
        float *dx = dqkv + r * width;
        row_ahead(x + width, width, false);
        row_ahead(dx + width, width, true);
        for (size_t h = 0; h < l->heads; h++, x += D, dx += D) {
            const float *dy = dq + ((b * l->heads + h) * l->T + t) * l->Dp;
            row_ahead(dy + l->Dp, D, false);
            rope_head_back(dx, dqw, dy, x, l->q_norm, c, s, D, l->eps);
        }
        for (size_t h = 0; h < l->kv_heads; h++, x += D, dx += D) {
            const float *dy = dk + ((b * l->kv_heads + h) * l->T + t) * l->Dp;
            row_ahead(dy + l->Dp, D, false);
            rope_head_back(dx, dkw, dy, x, l->k_norm, c, s, D, l->eps);
        }
        for (size_t h = 0; h < l->kv_heads; h++, dx += D) {
            const float *dy = dv + ((b * l->kv_heads + h) * l->T + t) * l->Dp;
            row_ahead(dy + l->Dp, D, false);
            memcpy(dx, dy, D * sizeof(float));
        }
    }
}

static void k_swiglu(float *act, const float *gu, size_t rows, size_t F) {
    for (size_t r = 0; r < rows; r++, act += F, gu += 2 * F) {
        for (size_t i = 0; i < F; i += LANES) {
            vf g = vget(gu + i, F - i);
            vput(act + i, g * vsigmoid(g) * vget(gu + F + i, F - i), F - i);
        }
    }
}

/* act = g s(g) u:  du = g s dact,  dg = u s (1 + g (1 - s)) dact. */
static void k_swiglu_back(float *gu, float *dact, size_t rows, size_t F) {
    const vf one = vset(1.0f);
    for (size_t r = 0; r < rows; r++, dact += F, gu += 2 * F) {
        for (size_t i = 0; i < F; i += LANES) {
            size_t n = F - i;
            vf g = vget(gu + i, n), u = vget(gu + F + i, n), d = vget(dact + i, n);
            vf s = vsigmoid(g), gs = g * s;
            vput(dact + i, gs * u, n);
            vput(gu + F + i, gs * d, n);
            vput(gu + i, u * s * vfma(g, one - s, one) * d, n);
        }
    }
}

/* With lse = log sum exp z: loss lse - z[target] + zc lse^2, dz_i = p_i (1 + 2 zc lse) - [i = target]. */
static float k_cross_entropy(float *z, size_t V, int32_t target, float scale, float zc) {
    vf top = vset(z[0]);
    for (size_t i = 0; i + LANES <= V; i += LANES) top = vmax(top, vload(z + i));
    float m = vmax_lane(top);
    for (size_t i = V - V % LANES; i < V; i++) m = z[i] > m ? z[i] : m;
    vf sum = vset(0.0f), vm = vset(m);
    float zt = z[target];
    size_t i = 0;
    for (; i + LANES <= V; i += LANES) {
        vf e = vexp(vload(z + i) - vm);
        sum += e;
        if (scale != 0.0f) vstore(z + i, e);
    }
    float total = vsum(sum);
    if (i < V) {
        vf e = vexp(vload_n(z + i, V - i) - vm);
        for (size_t j = 0; i + j < V; j++) total += e[j];
        if (scale != 0.0f) vstore_n(z + i, e, V - i);
    }
    float lse = m + logf(total), extra = zc == 0.0f ? 0.0f : zc * lse * lse;
    if (scale != 0.0f) {
        vf f = vset(scale * (1.0f + 2.0f * zc * lse) / total);
        for (i = 0; i < V; i += LANES) vput(z + i, vget(z + i, V - i) * f, V - i);
        z[target] -= scale;
    }
    return logf(total) + (m - zt) + extra;
}

static void k_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += LANES)
        vput(y + i, vget(y + i, n - i) + vget(x + i, n - i), n - i);
}

static void k_axpby(float *y, const float *x, float a, float b, size_t n) {
    const vf va = vset(a), vb = vset(b);
    for (size_t i = 0; i < n; i += LANES) {
        vf old = b == 0.0f ? vset(0.0f) : vget(y + i, n - i) * vb;
        vput(y + i, vfma(vget(x + i, n - i), va, old), n - i);
    }
}

static double k_sum_squares(const float *x, size_t n) {
    vd sum = __builtin_convertvector(vset(0.0f), vd);
    for (size_t i = 0; i < n; i += LANES) {
        vd v = __builtin_convertvector(vget(x + i, n - i), vd);
        sum += v * v;
    }
    double total = 0;
    for (size_t i = 0; i < LANES; i++) total += sum[i];
    return total;
}

static void k_adamw(float *theta, float *m, float *v, const float *grad, size_t n,
                    const struct adamw_step *s) {
    const vf clip = vset(s->clip), b1 = vset(s->beta1), b2 = vset(s->beta2), r1 = vset(s->rest1),
             r2 = vset(s->rest2), c1 = vset(s->bias1), c2 = vset(s->bias2), eps = vset(s->eps),
             lr = vset(s->lr), decay = vset(s->decay);
    for (size_t i = 0; i < n; i += LANES) {
        size_t left = n - i;
        vf g = vget(grad + i, left) * clip;
        vf mi = vget(m + i, left) * b1 + g * r1;
        vf vi_ = vget(v + i, left) * b2 + (g * g) * r2;
        vf p = vget(theta + i, left) * decay;
        p -= lr * ((mi * c1) / (vsqrt(vi_ * c2) + eps));
        vput(m + i, mi, left);
        vput(v + i, vi_, left);
        vput(theta + i, p, left);
    }
}

#endif
