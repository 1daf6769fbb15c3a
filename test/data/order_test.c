/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples: all small cases, golden vectors, a large case by sampling. */
#include "../harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/data.h"

static void check_bijection(uint64_t seed, uint32_t epoch, uint64_t n, uint32_t block,
                            uint32_t group) {
    struct order o;
    bool seen[512] = {false};
    assert_true(n <= ARRAY_COUNT(seen));
    order_init(&o, seed, epoch, n, block, group);
    for (uint64_t p = 0; p < n; p++) {
        uint64_t s = order_sample(&o, p);
        assert_true(s < n);
        assert_false(seen[s]);
        seen[s] = true;
        assert_int_equal(order_position(&o, s), p);
        if (p >= n / o.block * o.block) assert_true(s >= n / o.block * o.block);
    }
}

TEST(order_D1_every_small_case_is_a_bijection_with_D2_its_inverse) {
    uint64_t cases = 0;
    for (uint64_t n = 1; n <= 40; n++)
        for (uint32_t block = 1; block <= n + 1; block++)
            for (uint32_t group = 1; group <= n / block + 2; group++, cases++)
                check_bijection(n * 1000003, group, n, block, group);
    assert_true(cases > 4000);
}

TEST(order_D1_random_middle_cases) {
    struct prng r;
    prng_seed(&r, 11);
    for (int i = 0; i < 3000; i++)
        check_bijection(prng_u64(&r), (uint32_t)prng_u64(&r), 1 + prng_below(&r, 512),
                        (uint32_t)prng_below(&r, 70), (uint32_t)prng_below(&r, 70));
}

TEST(order_D3_a_group_of_positions_touches_exactly_its_blocks) {
    struct order o;
    order_init(&o, 5, 2, 1024 * 64 * 3 + 77, 0, 0);
    for (uint64_t g = 0; g < 3; g++) {
        uint8_t hits[64 * 3 + 1] = {0};
        int blocks = 0;
        for (uint64_t p = g * 65536; p < (g + 1) * 65536; p++) {
            uint64_t b = order_sample(&o, p) / 1024;
            assert_true(b < 192);
            blocks += hits[b] == 0;
            hits[b] = 1;
        }
        assert_int_equal(blocks, 64);
    }
}

TEST(order_large_sets_invert_everywhere_they_are_looked_at) {
    struct prng r;
    prng_seed(&r, 12);
    for (int i = 0; i < 200000; i++) {
        struct order o;
        uint64_t n = 1 + (prng_u64(&r) >> (2 + prng_below(&r, 60)));
        order_init(&o, prng_u64(&r), 1, n, 0, 0);
        uint64_t p = prng_below(&r, n), s = order_sample(&o, p);
        assert_true(s < n);
        assert_int_equal(order_position(&o, s), p);
    }
}

TEST(order_defaults_leave_small_sets_at_least_sixteen_blocks) {
    struct order o;
    for (uint64_t n = 16; n < 40000; n += 7) {
        order_init(&o, 1, 0, n, 0, 0);
        assert_true(n / o.block >= 16);
        assert_true(o.block <= ORDER_BLOCK);
    }
    order_init(&o, 1, 0, 0, 0, 0);
    assert_int_equal(o.samples_count, 0);
    order_init(&o, 1, 0, 1000000, 0, 0);
    assert_int_equal(o.block, ORDER_BLOCK);
    assert_int_equal(o.group, ORDER_GROUP);
}

TEST(order_epochs_and_seeds_differ) {
    struct order a, b, c;
    int same_epoch = 0, same_seed = 0;
    order_init(&a, 1, 0, 10000, 0, 0);
    order_init(&b, 1, 1, 10000, 0, 0);
    order_init(&c, 2, 0, 10000, 0, 0);
    for (uint64_t p = 0; p < 10000; p++) {
        same_epoch += order_sample(&a, p) == order_sample(&b, p);
        same_seed += order_sample(&a, p) == order_sample(&c, p);
    }
    assert_true(same_epoch < 20);
    assert_true(same_seed < 20);
}

/* Where a sample lands should look uniform: chi-squared over 16 x 16 cells of (sample, position).
 * */
TEST(order_is_spread_evenly) {
    enum { N = 65536, CELLS = 16 };
    static int count[CELLS][CELLS];
    struct order o;
    order_init(&o, 77, 3, N, 0, 0);
    for (uint64_t p = 0; p < N; p++) count[order_sample(&o, p) * CELLS / N][p * CELLS / N]++;
    for (int i = 0; i < CELLS; i++)
        for (int j = 0; j < CELLS; j++) assert_in_range(count[i][j], 150, 370); /* 256 +- 7 sigma */
}

TEST(order_positions_outside_are_faults_of_the_program) {
    struct order o;
    order_init(&o, 1, 0, 10, 0, 0);
    assert_check_fails(order_sample(&o, 10));
    assert_check_fails(order_position(&o, 10));
}

TEST(order_D1_many_at_once_are_the_same_as_one_by_one) {
    struct prng r;
    prng_seed(&r, 13);
    for (int i = 0; i < 4000; i++) {
        struct order o;
        uint64_t out[700], n = 1 + prng_below(&r, i % 2 ? 300000 : 700);
        uint32_t block = (uint32_t)prng_below(&r, 70), group = (uint32_t)prng_below(&r, 300);
        order_init(&o, prng_u64(&r), (uint32_t)i, n, block, group);
        uint64_t first = prng_below(&r, n), count = prng_below(&r, ARRAY_COUNT(out) + 1);
        if (count > n - first) count = n - first;
        order_samples(&o, first, count, out);
        for (uint64_t k = 0; k < count; k++) assert_int_equal(out[k], order_sample(&o, first + k));
    }
}

TEST(order_golden_vectors_of_version_1) {
    FILE *f = fopen("test/golden/order-v1.txt", "r");
    assert_non_null(f);
    char line[256];
    int lines = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        uint64_t v[7];
        char *at = line;
        if (line[0] == '#') continue;
        for (int i = 0; i < 7; i++) v[i] = strtoull(at, &at, 10);
        struct order o;
        order_init(&o, v[0], (uint32_t)v[1], v[2], (uint32_t)v[3], (uint32_t)v[4]);
        assert_int_equal(order_sample(&o, v[5]), v[6]);
        assert_int_equal(order_position(&o, v[6]), v[5]);
        lines++;
    }
    fclose(f);
    assert_int_equal(lines, 492);
}
