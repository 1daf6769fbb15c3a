/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include "base/base.h"

TEST(text_u64_takes_whole_numbers_only) {
    uint64_t v = 7;
    assert_true(parse_u64("0", &v));
    assert_int_equal(v, 0);
    assert_true(parse_u64("18446744073709551615", &v));
    assert_true(v == UINT64_MAX);
    const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "0x10", "18446744073709551616", "1e3"};
    v = 7;
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) assert_false(parse_u64(bad[i], &v));
    assert_int_equal(v, 7);
}

TEST(text_f64_takes_finite_decimals_only) {
    double v = 7;
    assert_true(parse_f64("-1.5e-3", &v));
    assert_true(v == -1.5e-3);
    assert_true(parse_f64("1e-400", &v));
    const char *const bad[] = {"", "inf", "nan", "0x1p3", " 1", "1 ", "1e999", "1.2.3", "e", "1e"};
    v = 7;
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) assert_false(parse_f64(bad[i], &v));
    assert_true(v == 7);
}

TEST(text_duration_wants_a_unit_and_is_exact) {
    time_ns v = 7;
    assert_true(parse_duration("500ms", &v));
    assert_int_equal(v, 500000000);
    assert_true(parse_duration("1.5s", &v));
    assert_int_equal(v, 1500000000);
    assert_true(parse_duration("2h", &v));
    assert_true(v == (time_ns)7200 * NS_PER_S);
    assert_true(parse_duration("10m", &v));
    assert_true(v == (time_ns)600 * NS_PER_S);
    assert_true(parse_duration("0s", &v));
    assert_int_equal(v, 0);
    const char *const bad[] = {"",
                               "5",
                               "s",
                               "5 s",
                               "-5s",
                               "5S",
                               "0.5ns",
                               "1.s",
                               "300000d",
                               "99999999999999999999s",
                               "1.0000000001s"};
    v = 7;
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) assert_false(parse_duration(bad[i], &v));
    assert_int_equal(v, 7);
}

TEST(text_bytes_are_powers_of_1024) {
    uint64_t v = 7;
    assert_true(parse_bytes("64", &v));
    assert_int_equal(v, 64);
    assert_true(parse_bytes("10k", &v));
    assert_int_equal(v, 10240);
    assert_true(parse_bytes("1.5M", &v));
    assert_int_equal(v, 1536 * 1024);
    assert_true(parse_bytes("1G", &v));
    assert_int_equal(v, 1 << 30);
    const char *const bad[] = {"", "k", "1kb", "1 k", "-1", "0.5", "17179869184G"};
    v = 7;
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) assert_false(parse_bytes(bad[i], &v));
    assert_int_equal(v, 7);
}
