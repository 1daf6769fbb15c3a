/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c - what a delta is measured by before it is accepted: figures, bounds, and what its site is used to.
 *
 * The bounds are theorems: no honest delta breaks one, whatever the data were. The norm's distance from the
 * usual is an observation, so it judges late (OUTER_NORMS_WARM), tolerates what has an honest cause (other
 * numbers of steps), and begins anew where a site's deltas have become others for good. */
#include <math.h>

#include "outer/outer.h"

/* ---- Checks before acceptance -------------------------------------------------------------------
 * Eight running sums hide the latency of the additions; they are joined in one fixed order, so equal
 * chunks give equal figures. */
enum { LANES = 8 };

static double lanes_sum(const double *lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void delta_stats_chunk(struct delta_stats *s, const float *d, const float *m_or_null, size_t n) {
    double norm2[LANES] = {0}, dot[LANES] = {0}, m2[LANES] = {0};
    float max_abs[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            double x = (double)d[i + k];
            float a = fabsf(d[i + k]);
            norm2[k] += x * x;
            max_abs[k] = a > max_abs[k] ? a : max_abs[k];
        }
    }
    for (size_t k = 0; i < n; i++, k++) {
        double x = (double)d[i];
        float a = fabsf(d[i]);
        norm2[k] += x * x;
        max_abs[k] = a > max_abs[k] ? a : max_abs[k];
    }
    for (i = 0; m_or_null != NULL && i < n; i++) {
        size_t k = i % LANES;
        double x = (double)d[i], y = (double)m_or_null[i];
        dot[k] += x * y;
        m2[k] += y * y;
    }
    s->norm2 += lanes_sum(norm2);
    s->dot_m += lanes_sum(dot);
    s->m_norm2 += lanes_sum(m2);
    for (size_t k = 0; k < LANES; k++) s->max_abs = fmax(s->max_abs, (double)max_abs[k]);
    s->count += n;
}

double outer_adamw_bound(double lr_sum, double b1, double b2, double wd, double theta_max) {
    if (b1 * b1 >= b2 || b2 >= 1) return (double)INFINITY;
    double c = (1 - b1) / sqrt((1 - b2) * (1 - b1 * b1 / b2));
    return lr_sum * (c + wd * theta_max);
}

double outer_muon_bound(double lr_sum, double side, double wd, double theta_max) {
    return lr_sum * (1.21 * 0.2 * sqrt(side) + wd * theta_max);
}

/* ---- Norms against the usual --------------------------------------------------------------------- */
/* The exponent of a norm's growth with steps lies between 1/2 and 1: the middle, and half the range. A spread
 * below SD_MIN is not believed: it would call a change of the learning rate an anomaly. */
#define NORM_POWER 0.75
#define NORM_POWER_SLACK 0.25
#define NORM_ALPHA 0.02
#define NORM_SD_MIN 0.1

/* The natural logarithm by additions and products alone: what is folded into the hub's state must have the same bits
 * with every C library. x = 2^e m, m in [1/sqrt2, sqrt2); log m = 2 atanh((m-1)/(m+1)). Good to 1e-15. */
static double log_exact(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + e * 0.69314718055994531;
}

static bool norm_value(double norm, double lr_sum, double steps, double *out) {
    double ratio = norm * steps / lr_sum;
    if (!(norm > 0) || !(lr_sum > 0) || !(steps > 0) || !isfinite(ratio) || !(ratio > 0))
        return false;
    *out = log_exact(ratio) - NORM_POWER * log_exact(steps);
    return true;
}

/* Whatever the warm-up says. */
static double norm_z(const struct outer_norms *s, double x, double log_steps) {
    double off = x - s->mean, slack = NORM_POWER_SLACK * fabs(log_steps - s->log_steps);
    double sd = fmax(sqrt(s->var), NORM_SD_MIN);
    if (fabs(off) <= slack) return 0;
    return (off > 0 ? off - slack : off + slack) / sd;
}

double outer_norms_z(const struct outer_norms *s, double norm, double lr_sum, double steps) {
    double x;
    if (s->count < OUTER_NORMS_WARM || !norm_value(norm, lr_sum, steps, &x)) return 0;
    return norm_z(s, x, log_exact(steps));
}

void outer_norms_add(struct outer_norms *s, double norm, double lr_sum, double steps) {
    double x;
    if (!norm_value(norm, lr_sum, steps, &x)) return;
    if (s->count >= OUTER_NORMS_WARM && fabs(norm_z(s, x, log_exact(steps))) >= OUTER_NORMS_NEW)
        *s = (struct outer_norms){0};
    double w = fmax(NORM_ALPHA, 1 / (double)(s->count + 1)), off = x - s->mean;
    s->mean += w * off;
    s->var = (1 - w) * (s->var + w * off * off);
    s->log_steps += w * (log_exact(steps) - s->log_steps);
    s->count++;
}
