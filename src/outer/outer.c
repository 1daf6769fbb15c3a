/* SPDX-License-Identifier: Apache-2.0 */
/* outer.c - the outer step: from the deltas of a round to the next weights.
 *
 * What it is: two functions. outer_params_compute() turns tokens and steps into a handful of
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
 * Late parts. A delta that missed its round moves theta, not m: its direction was measured at
 * weights that are gone, and momentum would repeat it for ten rounds. With several late parts the
 * weight of each is lw_i / (N + sum of lw), so that together they move theta by at most their
 * weighted mean; for one late part this is lw / (N + lw). A round with late parts only takes Meff
 * from them, and phi = 0, for which the rule gives mu_r = 1 and kappa_r = 0: no time has passed
 * for the momentum.
 *
 * The counting rule needs no arithmetic of its own: with weights 1, eta_r = 1 and mu_r = kappa_r = 0
 * the lines above are the plain sum, and a replay from the recorded scalars does not know the rule.
 *
 * Invariants
 *   (O1) weights of fresh sites sum to 1 (within 1 ulp of f64 for each) whenever there is a fresh site;
 *        under the counting rule they are all 1.
 *   (O2) no contribution, no change: theta and m keep their bits; late ones alone leave m its bits.
 *   (O3) the result does not depend on how the vector is cut into chunks. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "outer/codec_parts.h"

/* A tile of sums stays in the first-level cache while the parts stream past it. */
enum { TILE = OUTER_TILE };
static_assert(OUTER_CHUNK % TILE == 0, "whole tiles in a whole chunk");

struct outer_rule outer_rule_default(void) {
    return (struct outer_rule){.eta = 0.7, .mu = 0.9, .m_ref = 3, .h_ref = 30, .late_weight = 0.5};
}

/* ---- Scalars --------------------------------------------------------------------------------- */
struct totals {
    double tokens, tokens2; /* sum of n, sum of n^2, over sites */
    double tokens_steps;    /* sum of n * s */
};

/* Sums over the sites among the fresh (late = false) or the late parts. A site that handed in
 * twice in one round moved by the sum of its deltas, so it counts once, with all its tokens and
 * steps. */
static struct totals totals_of(const struct outer_part *parts, size_t count, bool late) {
    struct totals t = {0};
    size_t i = 0;
    while (i < count) {
        double tokens = 0, steps = 0;
        size_t first = i;
        for (; i < count && parts[i].site == parts[first].site; i++) {
            if (parts[i].late != late) continue;
            tokens += (double)parts[i].tokens;
            steps += (double)parts[i].steps;
        }
        t.tokens += tokens;
        t.tokens2 += tokens * tokens;
        t.tokens_steps += tokens * steps;
    }
    return t;
}

static double site_tokens_fresh(const struct outer_part *parts, size_t count, uint32_t site) {
    double tokens = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].site == site && !parts[i].late) tokens += (double)parts[i].tokens;
    }
    return tokens;
}

static bool first_fresh_of_site(const struct outer_part *parts, size_t at) {
    for (size_t i = at; i > 0 && parts[i - 1].site == parts[at].site; i--) {
        if (!parts[i - 1].late) return false;
    }
    return true;
}

static void check_order(const struct outer_part *parts, size_t count) {
    for (size_t i = 1; i < count; i++) CHECK(parts[i - 1].site <= parts[i].site);
}

/* A late part counts like a fresh one: what it trained is in it once, whenever it arrives. */
static void count_params(const struct outer_part *parts, size_t count, struct outer_params *p,
                         double *out_weight) {
    p->eta_r = 1;
    p->mu_r = 0;
    p->kappa_r = 0;
    for (size_t i = 0; i < count; i++) out_weight[i] = parts[i].tokens > 0 ? 1 : 0;
}

void outer_params_compute(const struct outer_rule *r, const struct outer_part *parts, size_t count,
                          struct outer_params *out, double *out_weight) {
    CHECK(r->mu >= 0);
    CHECK(r->mu < 1);
    CHECK(r->h_ref > 0);
    CHECK(r->m_ref > 0);
    check_order(parts, count);
    struct totals fresh = totals_of(parts, count, false), late = totals_of(parts, count, true);

    struct outer_params p = {.mu_r = 1, .tokens_fresh = fresh.tokens, .tokens_late = late.tokens};
    const struct totals *lead = fresh.tokens > 0 ? &fresh : &late;
    if (lead->tokens > 0) {
        p.meff = lead->tokens * lead->tokens / lead->tokens2;
        p.eta_r = r->eta * cbrt(p.meff / r->m_ref);
    }
    if (fresh.tokens > 0) {
        p.sbar = fresh.tokens_steps / fresh.tokens;
        p.phi = fmin(p.sbar / r->h_ref, 2);
        p.mu_r = pow(r->mu, p.phi);
        p.kappa_r = r->mu * (1 - p.mu_r) / (1 - r->mu);
    }
    if (r->sum) {
        count_params(parts, count, &p, out_weight);
        *out = p;
        return;
    }

    double sum = 0, late_all = fresh.tokens + r->late_weight * late.tokens;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].late) {
            double w = r->late_weight * (double)parts[i].tokens;
            out_weight[i] = w > 0 ? w / late_all : 0;
        } else {
            double n = site_tokens_fresh(parts, count, parts[i].site);
            out_weight[i] = n > 0 ? n / fresh.tokens : 0;
            if (first_fresh_of_site(parts, i)) sum += out_weight[i];
        }
    }
    if (fresh.tokens > 0) CHECK(fabs(sum - 1) <= 0x1p-52 * (double)(count + 1)); /* O1 */
    *out = p;
}

/* ---- Merging --------------------------------------------------------------------------------- */
void outer_merge_init(struct outer_merge *g, const struct outer_params *p,
                      const struct outer_part *parts, const double *weight, size_t count) {
    CHECK(isfinite(p->eta_r));
    CHECK(isfinite(p->mu_r));
    CHECK(isfinite(p->kappa_r));
    CHECK(count > 0 || p->tokens_fresh + p->tokens_late <= 0); /* O2 */
    check_order(parts, count);
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
 * payload, which begins at the unit that the tile is in. */
static bool sum_parts(const struct outer_merge *g, const float *const *delta,
                      const uint8_t *const *int4, size_t at, size_t n, bool late, float *sums) {
    bool any = false;
    for (size_t i = 0; i < g->parts_count; i++) {
        if (g->parts[i].late != late || !(g->weight[i] > 0)) continue;
        if (!any) memset(sums, 0, TILE * sizeof *sums);
        any = true;
        if (delta[i] != NULL)
            add_weighted(sums, delta[i] + at, (float)g->weight[i], n);
        else
            int4_add_wide(int4[i] + codec_bytes(CODEC_INT4, at), n / CODEC_INT4_BLOCK,
                          (float)g->weight[i], sums);
    }
    return any;
}

static void merge_tiles(const struct outer_merge *g, float *theta, float *m,
                        const float *const *delta, const uint8_t *const *int4, size_t n,
                        float *sums) {
    float eta = (float)g->params.eta_r, mu = (float)g->params.mu_r,
          kappa = (float)g->params.kappa_r;
    for (size_t at = 0; at < n; at += TILE) {
        size_t count = n - at < TILE ? n - at : TILE;
        if (sum_parts(g, delta, int4, at, count, false, sums))
            step_fresh(theta + at, m + at, sums, eta, mu, kappa, count);
        if (sum_parts(g, delta, int4, at, count, true, sums))
            step_late(theta + at, sums, eta, count);
    }
}

void outer_merge_chunk(struct outer_merge *g, float *theta, float *m, const float *const *delta,
                       size_t n) {
    CHECK(n <= OUTER_CHUNK); /* O3: a chunk never decides how many tiles there may be */
    merge_tiles(g, theta, m, delta, NULL, n, g->scratch);
}

/* Opens one unit of one part: to floats, or, where it can be added as it is, to its place. */
static enum brg_status unit_open(enum codec c, const uint8_t *coded, size_t n, float *scratch,
                                 const float **out_delta, const uint8_t **out_int4) {
    *out_int4 = coded;
    *out_delta = NULL;
    if (c == CODEC_INT4 && n == CODEC_UNIT && CODEC_WIDE_HERE())
        return int4_good(coded, n) ? BRG_OK : BRG_E_CORRUPT;
    *out_delta = scratch;
    return codec_decode(c, coded, n, scratch);
}

enum brg_status outer_merge_coded(const struct outer_merge *g, float *theta, float *m,
                                  const uint8_t *const *coded, const enum codec *codecs, size_t n,
                                  struct outer_room *room, size_t *out_bad_part) {
    static_assert(CODEC_UNIT % TILE == 0, "whole tiles in a unit");
    static_assert(TILE % CODEC_INT4_BLOCK == 0, "whole blocks in a tile");
    for (size_t at = 0; at < n; at += CODEC_UNIT) {
        size_t count = n - at < CODEC_UNIT ? n - at : CODEC_UNIT;
        for (size_t i = 0; i < g->parts_count; i++) {
            enum brg_status s = unit_open(codecs[i], coded[i] + codec_bytes(codecs[i], at), count,
                                          room->tiles + i * CODEC_UNIT, &room->delta[i],
                                          &room->int4[i]);
            if (s == BRG_OK) continue;
            *out_bad_part = i;
            return s;
        }
        merge_tiles(g, theta + at, m + at, room->delta, room->int4, count, room->sums);
    }
    return BRG_OK;
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
