/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - the arithmetic of a site's weights, chunk by chunk. Pure.
 *
 * Three vectors of P floats: theta (the trainer's own, "local"), S (the subtraction base: what local
 * was when the current segment began) and theta_v (the version rebased on; on disk). S follows from files by
 * (W2), so a site computes it chunk by chunk where it is needed and keeps it nowhere.
 *
 *   local = global + own work that is not merged yet                                          (W1)
 *   S     = theta_v - sum of d_dec over own contributions that are cut and not in theta_v      (W2)
 *
 * where d_dec is a contribution as everybody else decodes it. A cut takes d = S - theta, codes it and
 * sets S := S - d_dec. What the codec could not carry, d - d_dec, is then S - theta again: it stays in
 * the local weights and travels with the next contribution (error feedback without a vector of its
 * own). A rebase moves theta and S by the same shift, so S - theta, the work since the last cut, is
 * not touched by what the others did.                                                        */
#ifndef SITE_WEIGHTS_H
#define SITE_WEIGHTS_H

#include "base/base.h"
#include "outer/outer.h"

/* d = S - theta, coded to out[codec_bytes(c, n)]; S -= decoded d. scratch[2n]. n is a multiple of
 * CODEC_UNIT except in the last chunk. E_NONFINITE: S is as it was. */
enum brg_status weights_cut(enum codec c, float *s, const float *theta, size_t n, uint8_t *out,
                            float *scratch) MUST_USE;
/* The same with a residual e[n] beside the weights instead of in them: the error feedback of SparseLoCo (arXiv
 * 2508.15706, m and beta there), for codecs that carry little of a delta (codec_aside).
 *   d = S - theta    x = keep e + d    out = Q(x)    e = x - dec(out)
 * The contribution has all of d: until a version has it, (W2) counts d in the place of d_dec, and weights_add_aside
 * computes it from e before and after. With that version it leaves the weights: what was not sent is in e alone, comes
 * with later contributions, and fades by keep each time. E_NONFINITE: e is as it was. scratch[2n]. */
enum brg_status weights_cut_aside(enum codec c, const float *s, const float *theta, float *e,
                                  float keep, size_t n, uint8_t *out, float *scratch) MUST_USE;
/* sum += d of weights_cut_aside = d_dec + after - keep before (NULL: zeros) */
void weights_add_aside(float *sum, const float *d_dec, const float *after,
                       const float *before_or_null, float keep, size_t n);
/* theta and S += theta_new - theta_old + merged, where merged is the sum of d_dec of the own
 * contributions that theta_new contains and theta_old did not (NULL: none). */
void weights_rebase(float *theta, float *s, const float *theta_old, const float *theta_new,
                    const float *merged_or_null, size_t n);
/* sum += d_dec */
void weights_add(float *sum, const float *d, size_t n);
/* theta = S = theta_v - pending, where pending is the sum of d_dec of (W2) (NULL: none). */
void weights_reset(float *theta, float *s, const float *theta_v, const float *pending_or_null,
                   size_t n);

#endif
