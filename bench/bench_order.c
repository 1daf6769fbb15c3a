/* SPDX-License-Identifier: Apache-2.0 */
/* bench_order.c - the order of samples at full size: that it is a bijection, and what a position costs.
 *
 *   build/release/bench/order [samples]        default 1,000,000,000; one bit a sample is held
 *
 * Every sample is marked once in a bitmap, by order_samples; one that is there already ends it. Figures
 * in nanoseconds a position: `sequence` many at once (as a reader of leases asks), `single` one call after
 * the other, `inverse` order_position at random places. Exit status 1: not a bijection, or `sequence`
 * beyond SEQUENCE_NS_MAX. */
#include <stdio.h>
#include <stdlib.h>

#include "base/os.h"
#include "data/data.h"

enum { PIECE = 65536, SINGLES = 20 * 1000 * 1000, INVERSES = 5 * 1000 * 1000 };
#define SEQUENCE_NS_MAX 50.0

/* Gives how many samples came that had come before. */
static uint64_t mark_all(const struct order *o, uint8_t *bits, uint64_t *out_piece) {
    uint64_t twice = 0;
    for (uint64_t at = 0; at < o->samples_count; at += PIECE) {
        uint64_t n = o->samples_count - at < PIECE ? o->samples_count - at : PIECE;
        order_samples(o, at, n, out_piece);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t s = out_piece[i];
            uint8_t bit = (uint8_t)(1u << (s & 7));
            twice += (bits[s >> 3] & bit) != 0;
            bits[s >> 3] |= bit;
        }
    }
    return twice;
}

static uint64_t count_bits(const uint8_t *bits, uint64_t bytes) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < bytes; i++) n += (uint64_t)__builtin_popcount(bits[i]);
    return n;
}

static double time_sequence(const struct order *o, uint64_t *piece, uint64_t *sum) {
    uint64_t count = o->samples_count < SINGLES ? o->samples_count : SINGLES, n = 0;
    time_ns began = os_now();
    for (uint64_t at = 0; at < count; at += n) {
        n = count - at < PIECE ? count - at : PIECE;
        order_samples(o, at, n, piece);
        *sum += piece[n / 2];
    }
    return (double)(os_now() - began) / (double)count;
}

static double time_single(const struct order *o, uint64_t *sum) {
    uint64_t count = o->samples_count < SINGLES ? o->samples_count : SINGLES;
    time_ns began = os_now();
    for (uint64_t p = 0; p < count; p++) *sum += order_sample(o, p);
    return (double)(os_now() - began) / (double)count;
}

/* Also counts what does not come back. */
static double time_inverse(const struct order *o, uint64_t *sum, uint64_t *wrong) {
    struct prng r;
    prng_seed(&r, 4);
    time_ns began = os_now();
    for (int i = 0; i < INVERSES; i++) *sum += order_position(o, prng_below(&r, o->samples_count));
    double ns = (double)(os_now() - began) / INVERSES;
    for (int i = 0; i < INVERSES / 10; i++) {
        uint64_t p = prng_below(&r, o->samples_count);
        *wrong += order_position(o, order_sample(o, p)) != p;
    }
    return ns;
}

int main(int argc, char **argv) {
    uint64_t samples = 1000 * 1000 * 1000, sum = 0, wrong = 0;
    struct order o;
    if (argc > 1 && (!parse_u64(argv[1], &samples) || samples == 0)) {
        fprintf(stderr, "usage: bench/order [samples]\n");
        return BRG_E_USAGE;
    }
    order_init(&o, 42, 0, samples, 0, 0);
    AUTO_FREE uint64_t *piece = mem_alloc(PIECE, sizeof *piece);
    uint64_t bytes = samples / 8 + 1;
    AUTO_FREE uint8_t *bits = mem_alloc(bytes, 1);
    double sequence = time_sequence(&o, piece, &sum), single = time_single(&o, &sum),
           inverse = time_inverse(&o, &sum, &wrong);
    time_ns began = os_now();
    uint64_t twice = mark_all(&o, bits, piece), marked = count_bits(bits, bytes);
    double seconds = (double)(os_now() - began) / 1e9;
    bool bijection = twice == 0 && marked == samples && wrong == 0;
    printf(
        "samples=%llu bijection=%d twice=%llu missing=%llu inverse_wrong=%llu sequence_ns=%.1f "
        "single_ns=%.1f inverse_random_ns=%.1f with_bitmap_ns=%.1f bitmap_s=%.1f checksum=%llu\n",
        (unsigned long long)samples, bijection, (unsigned long long)twice,
        (unsigned long long)(samples - marked), (unsigned long long)wrong, sequence, single,
        inverse, seconds * 1e9 / (double)samples, seconds, (unsigned long long)sum);
    if (!bijection || sequence > SEQUENCE_NS_MAX) {
        fprintf(stderr, "bench order: a promise is broken: bijection=1, sequence_ns<=%.0f\n",
                SEQUENCE_NS_MAX);
        return 1;
    }
    return 0;
}
