/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - the learning rate as a function of committed tokens.
 *
 * The clock is the run's committed tokens, never a site's own steps: work that was lost or refused
 * does not age the run, and sites that come and go agree on the rate without talking about it.
 *
 *   warm-up   a straight line from 0 to the peak over tokens_warmup, under every kind
 *   cosine    half a cosine from the peak at the end of the warm-up to the floor at tokens_total
 *   wsd       the peak, then a straight line to the floor over the last decay_share of the tokens
 *   constant  the peak
 * Past tokens_total the rate stays at the floor: a run is often continued for a while. */
#include <math.h>

#include "outer/outer.h"

static double clamp01(double x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* The share of the peak, after the warm-up. */
static double share_at(const struct schedule *s, double tokens) {
    double floor_share = s->lr_min_ratio;
    switch (s->kind) {
    case SCHEDULE_COSINE: {
        double span = s->tokens_total - s->tokens_warmup;
        double p = span > 0 ? clamp01((tokens - s->tokens_warmup) / span) : 1;
        return floor_share + (1 - floor_share) * 0.5 * (1 + cos(3.14159265358979323846 * p));
    }
    case SCHEDULE_WSD: {
        double span = s->tokens_total * s->decay_share;
        double start = s->tokens_total - span;
        double p = span > 0 ? clamp01((tokens - start) / span) : (double)(tokens >= start);
        return 1 - (1 - floor_share) * p;
    }
    case SCHEDULE_CONSTANT: return 1;
    }
    CHECK(false);
    return 0;
}

double schedule_lr(const struct schedule *s, double tokens) {
    if (!(tokens > 0)) tokens = 0;
    double warm = s->tokens_warmup > 0 ? clamp01(tokens / s->tokens_warmup) : 1;
    return s->lr * warm * share_at(s, tokens);
}

uint64_t schedule_steps_at(const struct schedule_steps *s, double tokens) {
    double span = s->share * s->tokens_total;
    if (!(span > 0) || s->steps_first >= s->steps || tokens >= span) return s->steps;
    if (!(tokens > 0)) tokens = 0;
    double more = (double)(s->steps - s->steps_first) * tokens / span;
    return s->steps_first + (uint64_t)(more + 0.5);
}
