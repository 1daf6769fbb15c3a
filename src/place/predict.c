/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c - see predict.h. Invariants
 *   (Q1) quantiles rise with q, and are never negative.
 *   (Q2) the time still to wait, after a wait of w, is the same distribution cut at w. */
#include "place/predict.h"

#include <math.h>
#include <string.h>

/* DRIFT: how far the truth may move from one outcome to the next, of the prior's variance.
 * RESIDUAL_FORGET: a residual's weight falls to 1/e after 100 later ones. PRIOR_COUNT: how many
 * outcomes the prior is worth. */
#define DRIFT 0.002
#define RESIDUAL_FORGET 0.99
#define PRIOR_COUNT 4.0
#define PRIOR_SD 1.5
#define WIDTH_STEP 0.02
#define CANCELLED_TELLS                                                                            \
    0.05 /* of the distribution below it: less, and a cancelled job tells nothing */
#define MISS_WANTED 0.2
#define WAIT_MOST 3e9 /* a century: nothing that is said of waits goes beyond */

static const double PRIOR_DEVIATIONS[WAIT_FEATURES] = {0.7,  0.2, 2.0, 2.0, 0.25,
                                                       0.25, 0.2, 0.2, 0.2};

static void features(const struct wait_request *r, double x[WAIT_FEATURES]) {
    bool known = r->estimate_s >= 0 && !r->refused;
    double turn = r->hour * (2.0 * 3.14159265358979323846 / 24.0);
    x[0] = 1.0;
    x[1] = known ? log1p(r->estimate_s) : 0.0;
    x[2] = known ? 0.0 : 1.0;
    x[3] = r->refused ? 1.0 : 0.0;
    x[4] = log(fmax(r->nodes, 1.0));
    x[5] = log(fmax(r->limit_s, 60.0) / 3600.0);
    x[6] = r->queued >= 0 ? log1p(r->queued) : 0.0;
    x[7] = sin(turn);
    x[8] = cos(turn);
}

static double centre(const struct predictor *p, const double x[WAIT_FEATURES]) {
    double y = 0;
    for (size_t i = 0; i < WAIT_FEATURES; i++) y += p->b[i] * x[i];
    return y;
}

/* One step of recursive least squares; the noise has variance 1 by the choice of the prior. */
static void learn(struct predictor *p, const double x[WAIT_FEATURES], double y) {
    double cx[WAIT_FEATURES], s = 1.0;
    for (size_t i = 0; i < WAIT_FEATURES; i++) {
        cx[i] = 0;
        for (size_t j = 0; j < WAIT_FEATURES; j++) cx[i] += p->cov[i][j] * x[j];
    }
    for (size_t i = 0; i < WAIT_FEATURES; i++) s += x[i] * cx[i];
    double wrong = y - centre(p, x);
    for (size_t i = 0; i < WAIT_FEATURES; i++) p->b[i] += cx[i] / s * wrong;
    for (size_t i = 0; i < WAIT_FEATURES; i++) {
        for (size_t j = 0; j < WAIT_FEATURES; j++) p->cov[i][j] -= cx[i] * cx[j] / s;
    }
    /* The truth drifts (a random walk of b), up to the doubt that the prior had. */
    for (size_t i = 0; i < WAIT_FEATURES; i++) {
        double most = PRIOR_DEVIATIONS[i] * PRIOR_DEVIATIONS[i];
        if (p->cov[i][i] < most) p->cov[i][i] += DRIFT * most;
    }
}

static double weight(const struct predictor *p, uint32_t i) {
    return pow(RESIDUAL_FORGET, (double)p->seen - p->v[i].born);
}

static double normal_below(double z) {
    return 0.5 * erfc(-z / sqrt(2.0));
}

/* The distribution: rising steps of the outcomes, and the prior. */
struct steps {
    double residual[WAIT_OUTCOMES], below[WAIT_OUTCOMES];
    uint32_t count;
    double last, open; /* beyond `last` lies the share `open` that no outcome places */
    double known;      /* weight of the outcomes against the prior's PRIOR_COUNT */
};

static void steps_of(const struct predictor *p, struct steps *out) {
    double left = 0, survive = 1.0, w[WAIT_OUTCOMES];
    for (uint32_t i = 0; i < p->count; i++) left += w[i] = weight(p, i);
    out->known = left;
    out->count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (!p->v[i].censored) {
            survive *= i + 1 == p->count ? 0.0 : fmax(0.0, 1.0 - w[i] / left);
            out->residual[out->count] = p->v[i].residual;
            out->below[out->count++] = 1.0 - survive;
        }
        left -= w[i];
    }
    out->last = p->count ? p->v[p->count - 1].residual : 0.0;
    out->open = survive;
}

/* The inverse of the normal distribution, to nine digits: the rational approximations of P. J. Acklam (2003). */
static double normal_at(double p) {
    static const double A[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                               -2.759285104469687e+02, 1.383577518672690e+02,
                               -3.066479806614716e+01, 2.506628277459239e+00};
    static const double B[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                               -1.556989798598866e+02, 6.680131188771972e+01,
                               -1.328068155288572e+01};
    static const double C[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                               -2.400758277161838e+00, -2.549732539343734e+00,
                               4.374664141464968e+00,  2.938163982698783e+00};
    static const double D[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};
    double low = fmin(p, 1.0 - p);
    if (low < 1e-14) return p < 0.5 ? -8.0 : 8.0;
    if (low < 0.02425) {
        double q = sqrt(-2.0 * log(low));
        double x = (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5]) /
                   ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1.0);
        return p < 0.5 ? x : -x;
    }
    double q = p - 0.5, r = q * q;
    return (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q /
           (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1.0);
}

/* The residual below which lies so much of the weight, past the first `from` steps: there the sum is K f + P Phi, and
 * beyond the last outcome the open share follows Phi, too; both are solved for Phi. */
static double between(const struct steps *s, uint32_t from, double weight_below) {
    double rest = weight_below - s->known * (from > 0 ? s->below[from - 1] : 0.0);
    double at = fmin(normal_below(s->last / PRIOR_SD), 1 - 1e-6);
    if (from < s->count || s->open <= 0 || rest <= PRIOR_COUNT * normal_below(s->last / PRIOR_SD))
        return PRIOR_SD * normal_at(rest / PRIOR_COUNT);
    double open = s->known * s->open / (1.0 - at);
    return PRIOR_SD * normal_at((rest + open * at) / (open + PRIOR_COUNT));
}

static void remake_grid(struct predictor *p) {
    struct steps s;
    uint32_t at = 0;
    steps_of(p, &s);
    for (size_t i = 0; i < WAIT_GRID; i++) {
        double target = ((double)i + 0.5) / WAIT_GRID * (s.known + PRIOR_COUNT);
        for (;; at++) { /* the step, or the stretch before it, where the sum reaches the target */
            double before = at > 0 ? s.below[at - 1] : 0.0;
            if (at == s.count) {
                p->grid[i] = between(&s, at, target);
                break;
            }
            double prior = PRIOR_COUNT * normal_below(s.residual[at] / PRIOR_SD);
            if (target <= s.known * before + prior) {
                p->grid[i] = between(&s, at, target);
                break;
            }
            if (target > s.known * s.below[at] + prior) continue;
            p->grid[i] = s.residual[at];
            break;
        }
    }
}

static void keep(struct predictor *p, double residual, bool censored) {
    if (p->count == WAIT_OUTCOMES) {
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < p->count; i++)
            if (p->v[i].born < p->v[oldest].born) oldest = i;
        memmove(&p->v[oldest], &p->v[oldest + 1], (p->count - oldest - 1) * sizeof p->v[0]);
        p->count--;
    }
    uint32_t at = p->count++;
    for (; at > 0 && p->v[at - 1].residual > residual; at--) p->v[at] = p->v[at - 1];
    p->v[at].residual = residual;
    p->v[at].censored = censored;
    p->v[at].born = (double)++p->seen;
    remake_grid(p);
}

void predictor_init(struct predictor *p, double prior_s) {
    memset(p, 0, sizeof *p);
    /* A limit is three times the run time in many traces, and estimates believe in limits. */
    p->b[1] = 0.9;
    p->b[2] = log1p(prior_s);
    for (size_t i = 0; i < WAIT_FEATURES; i++)
        p->cov[i][i] = PRIOR_DEVIATIONS[i] * PRIOR_DEVIATIONS[i];
    p->miss_share = MISS_WANTED;
    remake_grid(p);
}

/* Share of the distribution at or below a residual, and its inverse; linear within the grid. */
static double grid_below(const struct predictor *p, double residual) {
    if (residual <= p->grid[0]) return 0.0;
    if (residual >= p->grid[WAIT_GRID - 1]) return 1.0 - 0.5 / WAIT_GRID;
    size_t low = 0, high = WAIT_GRID - 1;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (p->grid[mid] <= residual)
            low = mid;
        else
            high = mid;
    }
    double span = p->grid[high] - p->grid[low];
    double part = span > 0 ? (residual - p->grid[low]) / span : 0.0;
    return ((double)low + 0.5 + part) / WAIT_GRID;
}

static double grid_at(const struct predictor *p, double q) {
    double at = q * WAIT_GRID - 0.5;
    if (at <= 0) return p->grid[0];
    if (at >= WAIT_GRID - 1) return p->grid[WAIT_GRID - 1];
    size_t i = (size_t)at;
    return p->grid[i] + (at - (double)i) * (p->grid[i + 1] - p->grid[i]);
}

/* A quantile as asked for, moved outward or inward by what the width has learned. */
static double corrected(const struct predictor *p, double q) {
    double miss = fmin(fmax(p->miss_share, 0.01), 0.6);
    double c = 0.5 + (q - 0.5) * (1.0 - miss) / (1.0 - MISS_WANTED);
    return fmin(fmax(c, 0.002), 0.998);
}

static double left_at(const struct predictor *p, double mid, double waited, double q) {
    double from = waited > 0 ? grid_below(p, log1p(waited) - mid) : 0.0; /* Q2 */
    double c = from + (1.0 - from) * corrected(p, q);
    /* A job beyond all that was ever seen: it may wait as long again. */
    if (from > 1.0 - 1.0 / WAIT_GRID) return fmin(waited * q / (1.0 - q), WAIT_MOST);
    return fmax(0.0, fmin(expm1(mid + grid_at(p, c)), WAIT_MOST) - waited); /* Q1 */
}

double predictor_left(const struct predictor *p, const struct wait_request *r, double waited_s,
                      double q) {
    double x[WAIT_FEATURES];
    features(r, x);
    return left_at(p, centre(p, x), waited_s, q);
}

double predictor_quantile(const struct predictor *p, const struct wait_request *r, double q) {
    return predictor_left(p, r, 0.0, q);
}

void predictor_table(const struct predictor *p, const struct wait_request *r, double waited_s,
                     struct wait_table *out) {
    double x[WAIT_FEATURES];
    features(r, x);
    double mid = centre(p, x);
    for (size_t i = 0; i < WAIT_TABLE; i++)
        out->v[i] = left_at(p, mid, waited_s, ((double)i + 0.5) / WAIT_TABLE);
}

double wait_table_at(const struct wait_table *t, double u) {
    double at = u * WAIT_TABLE - 0.5;
    if (at <= 0) return t->v[0];
    if (at >= WAIT_TABLE - 1) return t->v[WAIT_TABLE - 1];
    size_t i = (size_t)at;
    return t->v[i] + (at - (double)i) * (t->v[i + 1] - t->v[i]);
}

void predictor_started(struct predictor *p, const struct wait_request *r, double wait_s) {
    double x[WAIT_FEATURES], y = log1p(fmax(wait_s, 0.0));
    bool held = wait_s >= predictor_quantile(p, r, 0.1) - 1.0 &&
                wait_s <= predictor_quantile(p, r, 0.9) + 1.0;
    p->asked++;
    p->held += held;
    p->miss_share += WIDTH_STEP * (MISS_WANTED - (held ? 0.0 : 1.0));
    p->miss_share = fmin(fmax(p->miss_share, 0.01), 0.6);
    features(r, x);
    keep(p, y - centre(p, x), false);
    learn(p, x, y);
}

void predictor_cancelled(struct predictor *p, const struct wait_request *r, double waited_s) {
    double x[WAIT_FEATURES], y = log1p(fmax(waited_s, 0.0));
    features(r, x);
    double mid = centre(p, x), from = grid_below(p, y - mid), mean = 0;
    if (from < CANCELLED_TELLS) return;
    for (int i = 0; i < 16; i++) /* the mean beyond the cut, by quantiles */
        mean += grid_at(p, from + (1.0 - from) * (i + 0.5) / 16.0) / 16.0;
    keep(p, y - mid, true);
    learn(p, x, mid + fmax(mean, y - mid));
}

double predictor_coverage(const struct predictor *p) {
    return p->asked ? (double)p->held / (double)p->asked : 1.0 - MISS_WANTED;
}
