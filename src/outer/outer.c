/* SPDX-License-Identifier: Apache-2.0 */
/* outer.c - the outer step: from the deltas of a round to the next weights.
 *
 * What it is: two steps. outer_params_compute() (rule.c) turns tokens and steps into a handful of
 * scalars and one weight for each delta; the hub records them in its journal. outer_merge_chunk()
 * applies them to a chunk of (theta, m). It is not: reading, decoding or checking files
 * (hub/merge_os.c), nor the choice of what is merged (hub).
 *
 *   parts --outer_params_compute--> params, weights --journal--> outer_merge_chunk(theta, m, deltas)
 *
 * Why the two are apart: pow() differs in the last bit between C libraries, additions and products
 * do not. With the scalars recorded, a replay on another machine has only additions and products
 * left, and gives the same bits.
 *
 * For one element, in this order, each operation rounded to f32 (there is no fused multiply-add):
 *   D = 0;  for each fresh part in order: D = D + w_i * d_i        D is skipped where there is none
 *   m = mu_r * m + D
 *   theta = theta - eta_r * (D + kappa_r * m)
 *   L = 0;  for each late part in order:  L = L + w_i * d_i        L is skipped where there is none
 *   theta = theta - eta_r * L
 *
 * No option needs arithmetic of its own but the radial mean, where w_i is another number for each tensor
 * (radial.c): a replay from the recorded scalars does not know the rule.
 *
 * Invariants
 *   (O2) no contribution, no change: theta and m keep their bits; late ones alone leave m its bits.
 *   (O3) the result does not depend on how the vector is cut into chunks. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "outer/codec_parts.h"

/* A tile of sums stays in the first-level cache while the parts stream past it. */
enum { TILE = OUTER_TILE };
static_assert(OUTER_CHUNK % TILE == 0, "whole tiles in a whole chunk");

/* ---- Merging --------------------------------------------------------------------------------- */
void outer_merge_init(struct outer_merge *g, const struct outer_params *p,
                      const struct outer_part *parts, const double *weight, size_t count) {
    CHECK(isfinite(p->eta_r));
    CHECK(isfinite(p->mu_r));
    CHECK(isfinite(p->kappa_r));
    CHECK(count > 0 || p->tokens_fresh + p->tokens_late <= 0); /* O2 */
    outer_parts_check(parts, count);
    *g = (struct outer_merge){.params = *p, .parts_count = count, .parts = parts, .weight = weight};
    g->scratch = mem_alloc(TILE, sizeof *g->scratch);
}

void outer_merge_fini(struct outer_merge *g) {
    mem_free(g->scratch);
    *g = (struct outer_merge){0};
}

/* sum = sum + w * d. The constant trip count is what lets gcc vectorise at -O2; the values are the
 * same in both loops, since no addition is moved. */
static void add_weighted(float *restrict sum, const float *restrict d, float w, size_t n) {
    if (n == TILE) {
        for (size_t i = 0; i < TILE; i++) sum[i] += w * d[i];
    } else {
        for (size_t i = 0; i < n; i++) sum[i] += w * d[i];
    }
}

CODEC_INLINE void step_body(float *restrict theta, float *restrict m, const float *restrict sum,
                            float eta, float mu, float kappa, size_t n) {
    for (size_t i = 0; i < n; i++) {
        m[i] = mu * m[i] + sum[i];
        theta[i] -= eta * (sum[i] + kappa * m[i]);
    }
}

CODEC_WIDE static void step_tile_wide(float *theta, float *m, const float *sum, float eta, float mu,
                                      float kappa) {
    step_body(theta, m, sum, eta, mu, kappa, TILE);
}

static void step_fresh(float *theta, float *m, const float *sum, float eta, float mu, float kappa,
                       size_t n) {
    if (n == TILE && CODEC_WIDE_HERE())
        step_tile_wide(theta, m, sum, eta, mu, kappa);
    else if (n == TILE)
        step_body(theta, m, sum, eta, mu, kappa, TILE);
    else
        step_body(theta, m, sum, eta, mu, kappa, n);
}

static void step_late(float *restrict theta, const float *restrict sum, float eta, size_t n) {
    if (n == TILE) {
        for (size_t i = 0; i < TILE; i++) theta[i] -= eta * sum[i];
    } else {
        for (size_t i = 0; i < n; i++) theta[i] -= eta * sum[i];
    }
}

/* Fills sums[TILE] with the weighted sum of the fresh or of the late parts. A part of weight zero is no
 * contribution; false where nothing contributes. A part without decoded floats is added from its int4
 * payload, which begins at the unit that the tile is in. The tile begins at element `first` of the vector. */
static bool sum_parts(const struct outer_merge *g, uint64_t first, const float *const *delta,
                      const uint8_t *const *int4, size_t at, size_t n, bool late, float *sums) {
    bool any = false;
    for (size_t i = 0; i < g->parts_count; i++) {
        if ((g->parts[i].late > 0) != late || !(g->weight[i] > 0)) continue;
        if (!any) memset(sums, 0, TILE * sizeof *sums);
        any = true;
        if (g->radial != NULL && !late)
            outer_radial_add(g->radial, i, first, delta[i] + at, n, sums);
        else if (delta[i] != NULL)
            add_weighted(sums, delta[i] + at, (float)g->weight[i], n);
        else
            int4_add_wide(int4[i] + codec_bytes(CODEC_INT4, at), n / CODEC_INT4_BLOCK,
                          (float)g->weight[i], sums);
    }
    return any;
}

static void merge_tiles(const struct outer_merge *g, uint64_t first, float *theta, float *m,
                        const float *const *delta, const uint8_t *const *int4, size_t n,
                        float *sums) {
    float eta = (float)g->params.eta_r, mu = (float)g->params.mu_r,
          kappa = (float)g->params.kappa_r;
    for (size_t at = 0; at < n; at += TILE) {
        size_t count = n - at < TILE ? n - at : TILE;
        if (sum_parts(g, first + at, delta, int4, at, count, false, sums))
            step_fresh(theta + at, m + at, sums, eta, mu, kappa, count);
        if (sum_parts(g, first + at, delta, int4, at, count, true, sums))
            step_late(theta + at, sums, eta, count);
    }
}

void outer_merge_chunk_at(struct outer_merge *g, uint64_t at, float *theta, float *m,
                          const float *const *delta, size_t n) {
    CHECK(n <= OUTER_CHUNK); /* O3: a chunk never decides how many tiles there may be */
    merge_tiles(g, at, theta, m, delta, NULL, n, g->scratch);
}

void outer_merge_chunk(struct outer_merge *g, float *theta, float *m, const float *const *delta,
                       size_t n) {
    CHECK(g->radial == NULL); /* O3: tensors begin at places of the vector */
    outer_merge_chunk_at(g, 0, theta, m, delta, n);
}

static void ema_tile(float *restrict mean, const float *restrict theta, float w) {
    for (size_t i = 0; i < TILE; i++) mean[i] += w * (theta[i] - mean[i]);
}

void outer_ema_chunk(float *mean, const float *theta, double share, size_t n) {
    float w = (float)share;
    if (share >= 1) {
        memcpy(mean, theta, n * sizeof *mean);
        return;
    }
    size_t at = 0;
    for (; at + TILE <= n; at += TILE) ema_tile(mean + at, theta + at, w);
    for (; at < n; at++) mean[at] += w * (theta[at] - mean[at]);
}

/* Opens one unit of one part: to floats, or, where it can be added as it is, to its place. */
static enum brg_status unit_open(const struct outer_merge *g, enum codec c, const uint8_t *coded,
                                 size_t n, float *scratch, const float **out_delta,
                                 const uint8_t **out_int4) {
    *out_int4 = coded;
    *out_delta = NULL;
    if (c == CODEC_INT4 && n == CODEC_UNIT && CODEC_WIDE_HERE() && g->radial == NULL)
        return int4_good(coded, n) ? BRG_OK : BRG_E_CORRUPT;
    *out_delta = scratch;
    return codec_decode(c, coded, n, scratch);
}

/* Are all parts that count fresh and int4, so that a unit can be merged in one go? Gives their number, and where their
 * payloads lie in room->int4 and the weights in out_weight; 0: no. */
static size_t all_int4(const struct outer_merge *g, const uint8_t *const *coded,
                       const enum codec *codecs, struct outer_room *room, float *out_weight) {
    size_t count = 0;
    if (!CODEC_WIDE_HERE() || g->radial != NULL) return 0;
    for (size_t i = 0; i < g->parts_count; i++) {
        if (codecs[i] != CODEC_INT4 || g->parts[i].late > 0 || !(g->weight[i] > 0)) return 0;
        room->int4[count] = coded[i];
        out_weight[count++] = (float)g->weight[i];
    }
    return count;
}

/* Units from the start of the chunk as far as they are whole; gives how many elements are done. */
static enum brg_status merge_int4(const struct outer_merge *g, float *theta, float *m,
                                  const uint8_t *const *coded, const enum codec *codecs, size_t n,
                                  struct outer_room *room, size_t *out_done, size_t *out_bad_part) {
    size_t whole = n / CODEC_UNIT * CODEC_UNIT;
    float *weight = room->tiles; /* one a part: far fewer than it has room for */
    size_t parts = all_int4(g, coded, codecs, room, weight);
    const struct int4_step k = {(float)g->params.eta_r, (float)g->params.mu_r,
                                (float)g->params.kappa_r};
    *out_done = 0;
    if (parts == 0 || whole == 0) return BRG_OK;
    *out_done = whole;
    if (int4_step_wide(room->int4, weight, parts, whole / CODEC_INT4_BLOCK, &k, theta, m))
        return BRG_OK;
    for (*out_bad_part = 0; int4_good(coded[*out_bad_part], whole);) ++*out_bad_part;
    CHECK(*out_bad_part < g->parts_count);
    return BRG_E_CORRUPT;
}

enum brg_status outer_merge_coded_at(const struct outer_merge *g, uint64_t first, float *theta,
                                     float *m, const uint8_t *const *coded,
                                     const enum codec *codecs, size_t n, struct outer_room *room,
                                     size_t *out_bad_part) {
    CHECK(first % CODEC_UNIT == 0); /* O3 */
    static_assert(CODEC_UNIT % TILE == 0, "whole tiles in a unit");
    static_assert(TILE % CODEC_INT4_BLOCK == 0, "whole blocks in a tile");
    size_t done = 0;
    TRY(merge_int4(g, theta, m, coded, codecs, n, room, &done, out_bad_part));
    for (size_t at = done; at < n; at += CODEC_UNIT) {
        size_t count = n - at < CODEC_UNIT ? n - at : CODEC_UNIT;
        for (size_t i = 0; i < g->parts_count; i++) {
            enum brg_status s = unit_open(g, codecs[i], coded[i] + codec_bytes(codecs[i], at),
                                          count, room->tiles + i * CODEC_UNIT, &room->delta[i],
                                          &room->int4[i]);
            if (s == BRG_OK) continue;
            *out_bad_part = i;
            return s;
        }
        merge_tiles(g, first + at, theta + at, m + at, room->delta, room->int4, count, room->sums);
    }
    return BRG_OK;
}

enum brg_status outer_merge_coded(const struct outer_merge *g, float *theta, float *m,
                                  const uint8_t *const *coded, const enum codec *codecs, size_t n,
                                  struct outer_room *room, size_t *out_bad_part) {
    CHECK(g->radial == NULL); /* O3 */
    return outer_merge_coded_at(g, 0, theta, m, coded, codecs, n, room, out_bad_part);
}

void outer_room_init(struct outer_room *r, size_t parts) {
    r->tiles = mem_alloc(parts * CODEC_UNIT + 1, sizeof *r->tiles);
    r->delta = mem_alloc(parts + 1, sizeof *r->delta);
    r->int4 = mem_alloc(parts + 1, sizeof *r->int4);
}

void outer_room_fini(struct outer_room *r) {
    mem_free(r->tiles);
    mem_free(r->delta);
    mem_free(r->int4);
    *r = (struct outer_room){0};
}
