/* SPDX-License-Identifier: Apache-2.0 */
/* codec_topk.c - the largest 1.56 % of the elements with two bits each: 116 bytes for 4096 elements.
 *
 * Of each block of r <= 4096 elements the k = ceil(r / 64) largest by |x| are kept (of equal ones those
 * that come first), the others are zero (method: SparseLoCo, arXiv 2508.15706). What is dropped is not
 * lost: it stays in the sender's residual, which is why this codec wants an outer step without momentum.
 *
 *   0  bf16 low, bf16 high, 0 <= low <= high: the two magnitudes
 *   4  ceil(k / 4) bytes: two bits an entry, entry j at bits 2 (j mod 4) of byte j / 4:
 *      bit 0 high or low, bit 1 negative
 *      ceil(12 k / 8) bytes: the positions inside the block, 12 bits each, entry j at bit 12 j, lowest
 *      bits first, growing
 *   unused bits at the end of either list are 0
 *
 * The two magnitudes are the means of the kept |x| at most, and above, their mean: one step of the
 * best two-level code, and exact for the many blocks in which only few elements moved.
 *
 * How the k-th largest is found: bisection over the bits of |x|, with a count over the block in each step.
 * Counting is a handful of vector instructions; sorting is not. The smallest of the maxima of 64 runs of
 * 64 elements is a lower bound to begin with, and the search ends as soon as exactly k lie above.
 *
 * Invariants
 *   (C4) an accepted payload has finite, ordered magnitudes, growing positions inside the block and zero
 *        padding. */
#include "outer/codec_parts.h"

enum {
    KEEP = CODEC_TOPK_BLOCK / 64,
    RUN = 64, /* elements for one kept */
    SUB = 16, /* elements that are skipped together */
    BLOCK_BYTES = 4 + KEEP / 4 + KEEP * 12 / 8,
};

static size_t kept_of(size_t r) {
    return (r + RUN - 1) / RUN;
}

static size_t codes_bytes(size_t k) {
    return (k + 3) / 4;
}

static size_t block_bytes(size_t r) {
    size_t k = kept_of(r);
    return 4 + codes_bytes(k) + (12 * k + 7) / 8;
}

uint64_t topk_bytes(uint64_t n) {
    size_t rest = (size_t)(n % CODEC_TOPK_BLOCK);
    return n / CODEC_TOPK_BLOCK * BLOCK_BYTES + (rest > 0 ? block_bytes(rest) : 0);
}

/* ---- Choosing -------------------------------------------------------------------------------- */
struct choice {
    int32_t bits[CODEC_TOPK_BLOCK];      /* of |x|; -1 past the end of the block */
    int32_t max[CODEC_TOPK_BLOCK / SUB]; /* of each SUB of them */
};

CODEC_INLINE int32_t count_from(const int32_t *bits, int32_t least) {
    int32_t count = 0;
    for (size_t i = 0; i < CODEC_TOPK_BLOCK; i++) count += bits[i] >= least;
    return count;
}

/* The least bits of a kept element of a block of r elements: exactly k have them or more, or fewer than
 * k have more and the ties decide. */
CODEC_INLINE int32_t threshold(const float *x, size_t r, int32_t k, struct choice *c) {
    int32_t low = INT32_MAX, high = 0;
    if (r == CODEC_TOPK_BLOCK) {
        for (size_t i = 0; i < CODEC_TOPK_BLOCK; i++) c->bits[i] = codec_abs_bits(x + i);
    } else {
        for (size_t i = 0; i < r; i++) c->bits[i] = codec_abs_bits(x + i);
        for (size_t i = r; i < CODEC_TOPK_BLOCK; i++) c->bits[i] = -1;
    }
    for (size_t i = 0; i < CODEC_TOPK_BLOCK / SUB; i++) {
        int32_t max = -1;
        for (size_t j = 0; j < SUB; j++)
            max = c->bits[i * SUB + j] > max ? c->bits[i * SUB + j] : max;
        c->max[i] = max;
    }
    for (size_t i = 0; i < CODEC_TOPK_BLOCK / RUN; i++) {
        int32_t max = -1;
        for (size_t j = 0; j < RUN / SUB; j++)
            max = c->max[i * (RUN / SUB) + j] > max ? c->max[i * (RUN / SUB) + j] : max;
        if (i * RUN < r && max < low) low = max;
        if (max > high) high = max;
    }
    /* Each of the k runs has its maximum at or above low, so at least k elements are. */
    for (high++; high - low > 1;) {
        int32_t middle = low + (high - low) / 2, count = count_from(c->bits, middle);
        if (count == k) return middle;
        if (count > k)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int32_t threshold_plain(const float *x, size_t r, int32_t k, struct choice *c) {
    return threshold(x, r, k, c);
}
CODEC_WIDE static int32_t threshold_wide(const float *x, size_t r, int32_t k, struct choice *c) {
    return threshold(x, r, k, c);
}

/* The positions of the k largest, growing. Where ties decide, the first of them are taken. */
static void choose(const float *x, size_t r, size_t k, uint16_t *out_at) {
    struct choice c;
    int32_t least = CODEC_WIDE_HERE() ? threshold_wide(x, r, (int32_t)k, &c)
                                      : threshold_plain(x, r, (int32_t)k, &c);
    uint16_t at[CODEC_TOPK_BLOCK];
    size_t found = 0, above = 0, count = 0;
    for (size_t i = 0; i < CODEC_TOPK_BLOCK / SUB; i++) {
        if (c.max[i] < least) continue;
        for (size_t j = i * SUB; j < (i + 1) * SUB; j++) {
            at[found] = (uint16_t)j;
            found += c.bits[j] >= least;
            above += c.bits[j] > least;
        }
    }
    size_t ties = found > k ? k - above : found;
    for (size_t i = 0; i < found && count < k; i++) {
        bool tie = c.bits[at[i]] == least;
        if (tie && ties == 0) continue;
        ties -= tie;
        out_at[count++] = at[i];
    }
    CHECK(count == k);
}

/* ---- Writing --------------------------------------------------------------------------------- */
static uint16_t bf16_of(double v) {
    float x = (float)v;
    uint32_t b;
    memcpy(&b, &x, 4);
    b += 0x7fff + ((b >> 16) & 1);
    return (uint16_t)(b >> 16);
}

static float magnitude(const float *x) {
    int32_t b = codec_abs_bits(x);
    float a;
    memcpy(&a, &b, 4);
    return a;
}

static void put12(uint8_t *list, size_t j, unsigned value) {
    uint8_t *p = list + j * 12 / 8;
    if (j % 2 == 0) {
        p[0] = (uint8_t)value;
        p[1] |= (uint8_t)(value >> 8);
    } else {
        p[0] |= (uint8_t)(value << 4);
        p[1] = (uint8_t)(value >> 4);
    }
}

static unsigned get12(const uint8_t *list, size_t j) {
    const uint8_t *p = list + j * 12 / 8;
    if (j % 2 == 0) return p[0] | (unsigned)(p[1] & 15) << 8;
    return (unsigned)p[0] >> 4 | (unsigned)p[1] << 4;
}

static void block_encode(const float *x, size_t r, uint8_t *out) {
    uint16_t at[KEEP];
    size_t k = kept_of(r), high_count = 0;
    double sum = 0, high_sum = 0;
    choose(x, r, k, at);
    for (size_t j = 0; j < k; j++) sum += (double)magnitude(x + at[j]);
    double mean = sum / (double)k;
    for (size_t j = 0; j < k; j++) {
        double a = (double)magnitude(x + at[j]);
        if (!(a > mean)) continue;
        high_sum += a;
        high_count++;
    }
    double low_sum = sum - high_sum, high = mean, low = mean;
    if (high_count > 0) high = high_sum / (double)high_count;
    if (high_count < k) low = low_sum > 0 ? low_sum / (double)(k - high_count) : 0;
    if (low > high) low = high; /* of equal ones the difference of sums may round up */
    uint16_t scale[2] = {bf16_of(low), bf16_of(high)};
    memset(out, 0, block_bytes(r));
    memcpy(out, scale, 4);
    uint8_t *codes = out + 4, *list = codes + codes_bytes(k);
    for (size_t j = 0; j < k; j++) {
        unsigned code = ((double)magnitude(x + at[j]) > mean) | (unsigned)(x[at[j]] < 0) << 1;
        codes[j / 4] |= (uint8_t)(code << j % 4 * 2);
        put12(list, j, at[j]);
    }
}

void topk_encode(const float *x, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i += CODEC_TOPK_BLOCK) {
        size_t r = n - i < CODEC_TOPK_BLOCK ? n - i : CODEC_TOPK_BLOCK;
        block_encode(x + i, r, out);
        out += block_bytes(r);
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */
static bool block_good(const uint8_t *in, size_t r) {
    size_t k = kept_of(r);
    uint16_t low = codec_get16(in), high = codec_get16(in + 2);
    if (low > high || high >= 0x7f80) return false; /* C4: a sign bit makes either large */
    const uint8_t *codes = in + 4, *list = codes + codes_bytes(k);
    if (k % 4 != 0 && codes[k / 4] >> k % 4 * 2 != 0) return false;
    if (k % 2 != 0 && list[k * 12 / 8] >> 4 != 0) return false;
    unsigned last = get12(list, 0);
    for (size_t j = 1; j < k; j++) {
        unsigned at = get12(list, j);
        if (at <= last) return false;
        last = at;
    }
    return last < r;
}

bool topk_good(const uint8_t *in, size_t n) {
    for (size_t i = 0; i < n; i += CODEC_TOPK_BLOCK) {
        size_t r = n - i < CODEC_TOPK_BLOCK ? n - i : CODEC_TOPK_BLOCK;
        if (!block_good(in, r)) return false;
        in += block_bytes(r);
    }
    return true;
}

void topk_decode(const uint8_t *in, size_t n, float *out) {
    if (n > 0) memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i += CODEC_TOPK_BLOCK) {
        size_t r = n - i < CODEC_TOPK_BLOCK ? n - i : CODEC_TOPK_BLOCK, k = kept_of(r);
        float low = codec_of_bf16(codec_get16(in)), high = codec_of_bf16(codec_get16(in + 2));
        const float value[4] = {low, high, -low, -high};
        const uint8_t *codes = in + 4, *list = codes + codes_bytes(k);
        for (size_t j = 0; j < k; j++)
            out[i + get12(list, j)] = value[codes[j / 4] >> j % 4 * 2 & 3];
        in += block_bytes(r);
    }
}
