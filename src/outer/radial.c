/* SPDX-License-Identifier: Apache-2.0 */
/* radial.c - products of deltas: how far sites agree, and the radial-directional mean.
 *
 * Deltas of different sites are nearly orthogonal, mostly noise, so their mean is shorter than each of them, by
 * sqrt(M). Radial-directional averaging (arXiv 2604.21428) takes length and direction apart, in each tensor:
 *   u = sum w_i d_i/|d_i|     D = (sum w_i |d_i|) u/|u|
 * With g_ij = d_i . d_j this is D = sum c_i d_i with
 *   c_i = R w_i / (|d_i| |u|)    R = sum w_i |d_i|    |u|^2 = sum w_i w_j g_ij / (|d_i| |d_j|)
 * so one pass over the deltas gives the products and the merge's own pass the mean, with c in place of w. A site
 * that handed in twice is one vector, the sum of its deltas. Where the deltas cancel (|u| = 0) D is 0. The weights may
 * sum to less than 1 (a share of arrivals): R then has the share.
 *
 *   init --measure every element once, in order--> finish --> outer_merge.radial
 *
 * Deterministic: products are summed in f64 in the order of the elements; sqrt and division are exact in IEEE 754. So
 * the factors need not be recorded: a replay has them from the same deltas, with the same bits.
 *
 * Invariants
 *   (O4) the factors do not depend on how the vector was cut into pieces. */
#include <math.h>
#include <string.h>

#include "outer/codec_parts.h"

/* ---- Products -------------------------------------------------------------------------------------- */
static double dot(double sum, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

void outer_gram_add(double *gram, const struct outer_part *parts, size_t count,
                    const float *const *delta, size_t n) {
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k <= i && parts[i].late == 0; k++) {
            if (parts[k].late > 0) continue;
            gram[i * count + k] = dot(gram[i * count + k], delta[i], delta[k], n);
            gram[k * count + i] = gram[i * count + k];
        }
    }
}

/* The product of two sites' vectors; a and b are parts of them. */
static double sites_dot(const double *gram, const struct outer_part *parts, size_t count, size_t a,
                        size_t b) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count && parts[i].site == parts[a].site; k++)
            if (parts[k].site == parts[b].site) sum += gram[i * count + k];
    }
    return sum;
}

/* The first fresh part of each site stands for the site. */
static size_t sites_list(const struct outer_part *parts, const double *weight, size_t count,
                         size_t *out) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].late > 0 || !(weight[i] > 0)) continue;
        if (n == 0 || parts[out[n - 1]].site != parts[i].site) out[n++] = i;
    }
    return n;
}

double outer_cosines(const double *gram, const struct outer_part *parts, const double *weight,
                     size_t count, double *out_cos) {
    size_t list[OUTER_RADIAL_PARTS_MAX], sites, pairs = 0;
    double mean = 0;
    CHECK(count <= OUTER_RADIAL_PARTS_MAX);
    sites = sites_list(parts, weight, count, list);
    memset(out_cos, 0, count * sizeof *out_cos);
    for (size_t a = 0; a < sites; a++) {
        double own = sites_dot(gram, parts, count, list[a], list[a]), with = 0, rest = 0, value = 0;
        for (size_t b = 0; b < sites; b++) {
            double w = weight[list[b]], ab = sites_dot(gram, parts, count, list[a], list[b]);
            if (b == a) continue;
            double other = sites_dot(gram, parts, count, list[b], list[b]);
            with += w * ab;
            for (size_t k = 0; k < sites; k++)
                if (k != a)
                    rest += w * weight[list[k]] * sites_dot(gram, parts, count, list[b], list[k]);
            if (b > a || !(own > 0) || !(other > 0)) continue;
            mean += ab / sqrt(own * other);
            pairs++;
        }
        if (own > 0 && rest > 0) value = with / sqrt(own * rest);
        for (size_t i = 0; i < count; i++)
            if (parts[i].site == parts[list[a]].site && parts[i].late == 0) out_cos[i] = value;
    }
    return pairs > 0 ? mean / (double)pairs : 0;
}

/* ---- The radial mean ------------------------------------------------------------------------------- */
bool outer_span_is_plain(const char *tensor_name) {
    return strstr(tensor_name, "embed") != NULL || strstr(tensor_name, "lm_head") != NULL;
}

bool outer_radial_init(struct outer_radial *r, const struct outer_span *spans, size_t spans_count,
                       const struct outer_part *parts, const double *weight, size_t count) {
    *r = (struct outer_radial){.spans_count = spans_count,
                               .parts_count = count,
                               .spans = spans,
                               .parts = parts,
                               .weight = weight};
    if (count > OUTER_RADIAL_PARTS_MAX) return false;
    r->gram = mem_alloc(spans_count * count * count + 1, sizeof *r->gram);
    r->factor = mem_alloc(spans_count * count + 1, sizeof *r->factor);
    return true;
}

void outer_radial_fini(struct outer_radial *r) {
    mem_free(r->gram);
    mem_free(r->factor);
    *r = (struct outer_radial){0};
}

/* The tensor that element `at` is in. */
static size_t span_of(const struct outer_radial *r, uint64_t at) {
    size_t low = 0, high = r->spans_count;
    while (low + 1 < high) {
        size_t mid = low + (high - low) / 2;
        if (r->spans[mid - 1].end <= at)
            low = mid;
        else
            high = mid;
    }
    CHECK(at < r->spans[low].end);
    return low;
}

/* Elements of the piece [at, at + n) from `from` on that are in one tensor. */
static size_t span_piece(const struct outer_radial *r, uint64_t at, size_t from, size_t n,
                         size_t *out_span) {
    *out_span = span_of(r, at + from);
    uint64_t left = r->spans[*out_span].end - (at + from);
    return left < n - from ? (size_t)left : n - from;
}

void outer_radial_measure(struct outer_radial *r, uint64_t at, const float *const *delta,
                          size_t n) {
    const float *piece[OUTER_RADIAL_PARTS_MAX];
    size_t span, count = r->parts_count;
    for (size_t from = 0, len; from < n; from += len) {
        len = span_piece(r, at, from, n, &span);
        if (r->spans[span].plain) continue;
        for (size_t i = 0; i < count; i++) piece[i] = delta[i] + from;
        outer_gram_add(r->gram + span * count * count, r->parts, count, piece, len); /* O4 */
    }
}

enum brg_status outer_radial_measure_coded(struct outer_radial *r, uint64_t at,
                                           const uint8_t *const *coded, const enum codec *codecs,
                                           size_t n, struct outer_room *room,
                                           size_t *out_bad_part) {
    for (size_t from = 0; from < n; from += CODEC_UNIT) {
        size_t len = n - from < CODEC_UNIT ? n - from : CODEC_UNIT;
        for (size_t i = 0; i < r->parts_count; i++) {
            float *tile = room->tiles + i * CODEC_UNIT;
            room->delta[i] = tile;
            enum brg_status s =
                codec_decode(codecs[i], coded[i] + codec_bytes(codecs[i], from), len, tile);
            if (s == BRG_OK) continue;
            *out_bad_part = i;
            return s;
        }
        outer_radial_measure(r, at + from, room->delta, len);
    }
    return BRG_OK;
}

static void finish_span(struct outer_radial *r, size_t span) {
    size_t list[OUTER_RADIAL_PARTS_MAX], count = r->parts_count;
    size_t sites = sites_list(r->parts, r->weight, count, list);
    const double *gram = r->gram + span * count * count;
    float *factor = r->factor + span * count;
    double norm[OUTER_RADIAL_PARTS_MAX], length = 0, u2 = 0;
    for (size_t i = 0; i < count; i++) factor[i] = (float)r->weight[i];
    if (r->spans[span].plain) return;
    for (size_t a = 0; a < sites; a++) {
        norm[a] = sqrt(sites_dot(gram, r->parts, count, list[a], list[a]));
        length += r->weight[list[a]] * norm[a];
    }
    for (size_t a = 0; a < sites; a++)
        for (size_t b = 0; b < sites; b++)
            if (norm[a] > 0 && norm[b] > 0)
                u2 += r->weight[list[a]] * r->weight[list[b]] *
                      sites_dot(gram, r->parts, count, list[a], list[b]) / (norm[a] * norm[b]);
    double u = u2 > 0 ? sqrt(u2) : 0;
    for (size_t a = 0; a < sites; a++) {
        double c = norm[a] > 0 && u > 0 ? length * r->weight[list[a]] / (norm[a] * u) : 0;
        for (size_t i = 0; i < count; i++)
            if (r->parts[i].site == r->parts[list[a]].site && r->parts[i].late == 0)
                factor[i] = (float)c;
    }
}

void outer_radial_finish(struct outer_radial *r) {
    for (size_t span = 0; span < r->spans_count; span++) finish_span(r, span);
}

/* Blocks of a constant length, which gcc vectorises at -O2. */
static void add_scaled(float *restrict sum, const float *restrict d, float c, size_t n) {
    enum { BLOCK = 64 };
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (size_t j = 0; j < BLOCK; j++) sum[i + j] += c * d[i + j];
    for (; i < n; i++) sum[i] += c * d[i];
}

void outer_radial_add(const struct outer_radial *r, size_t part, uint64_t at, const float *delta,
                      size_t n, float *sums) {
    size_t span;
    for (size_t from = 0, len; from < n; from += len) {
        len = span_piece(r, at, from, n, &span);
        float c = r->factor[span * r->parts_count + part];
        add_scaled(sums + from, delta + from, c, len);
    }
}
