/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - see weights.h for the algebra.
 *
 * Invariants
 *   (W1) local = global + own work that is not merged yet. With one site, eta = 1, mu = 0 and fp32 the
 *        shift of a rebase is zero up to rounding: this is uninterrupted training.
 *   (W2) S = theta_v - sum of own pending d_dec (plus residuals that later cuts carry).
 *   (W3) a cut loses nothing: S_before - theta = d_dec + (S_after - theta), or, with the residual beside the weights,
 *        = d_dec + e_after - keep e_before, and only what e has for longer fades.
 * Every sum has a fixed order, so a site's resume repeats its bits. */
#include "site/weights.h"
#include "base/mutant.h"

#include <string.h>

enum brg_status weights_cut(enum codec c, float *s, const float *theta, size_t n, uint8_t *out,
                            float *scratch) {
    float *d = scratch, *decoded = scratch + n;
    for (size_t i = 0; i < n; i++) d[i] = s[i] - theta[i];
    TRY(codec_encode(c, d, n, out));
    TRY(codec_decode(c, out, n, decoded));
    for (size_t i = 0; i < n; i++) s[i] -= decoded[i]; /* W3 */
    return BRG_OK;
}

enum brg_status weights_cut_aside(enum codec c, const float *s, const float *theta, float *e,
                                  float keep, size_t n, uint8_t *out, float *scratch) {
    float *x = scratch, *decoded = scratch + n;
    for (size_t i = 0; i < n; i++) x[i] = keep * e[i] + (s[i] - theta[i]);
    TRY(codec_encode(c, x, n, out));
    TRY(codec_decode(c, out, n, decoded));
    for (size_t i = 0; i < n; i++) e[i] = x[i] - decoded[i];
    return BRG_OK;
}

void weights_add_aside(float *sum, const float *d_dec, const float *after, const float *before,
                       float keep, size_t n) {
    for (size_t i = 0; i < n; i++)
        sum[i] += d_dec[i] + (after[i] - (before ? keep * before[i] : 0)); /* W3 */
}

void weights_rebase(float *theta, float *s, const float *theta_old, const float *theta_new,
                    const float *merged, size_t n) {
    for (size_t i = 0; i < n; i++) {
        /* In double: where the merge took exactly the own delta the shift is the merge's own rounding,
         * so local follows global and no second rounding creeps in, round after round (W1). */
        double shift = (double)theta_new[i] - (double)theta_old[i];
        if (merged && !MUTANT(OWN_NOT_ADDED)) shift += (double)merged[i];
        theta[i] = (float)((double)theta[i] + shift);
        if (!MUTANT(S_NOT_SHIFTED)) s[i] = (float)((double)s[i] + shift);
    }
}

void weights_add(float *sum, const float *d, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += d[i];
}

void weights_reset(float *theta, float *s, const float *theta_v, const float *pending, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = pending ? theta_v[i] - pending[i] : theta_v[i]; /* W2 */
        if (!MUTANT(KEEPS_REJECTED) || !pending) theta[i] = x;
        s[i] = x;
    }
}
