/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs and the delta header: golden bytes both ways, error bounds, and everything that is
 * refused. */
#include "../harness.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outer/outer.h"

static const enum codec all[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8};

/* Opens the golden file behind the line that begins with word. */
static FILE *golden_at(const char *word) {
    FILE *f = fopen("test/golden/outer-v1.txt", "r");
    assert_non_null(f);
    static char line[16384];
    size_t n = strlen(word);
    for (;;) {
        long at = ftell(f);
        assert_non_null(fgets(line, sizeof line, f));
        if (strncmp(line, word, n) != 0 || line[n] != ' ') continue;
        fseek(f, at + (long)n, SEEK_SET);
        return f;
    }
}

static void read_bits(FILE *f, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t b;
        assert_int_equal(fscanf(f, "%" SCNx32, &b), 1);
        memcpy(&out[i], &b, 4);
    }
}

TEST(codec_golden_bytes_both_ways) {
    enum { MAX = 1024 };
    static float x[MAX], back[MAX], got[MAX];
    static uint8_t bytes[4 * MAX], coded[4 * MAX];
    static char hex[8 * MAX + 1];
    FILE *f = golden_at("codecs");
    size_t n;
    assert_int_equal(fscanf(f, "%zu", &n), 1);
    assert_true(n <= MAX);
    read_bits(f, x, n);
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        size_t count;
        assert_int_equal(fscanf(f, "%zu %8192s", &count, hex), 2);
        assert_int_equal(count, codec_bytes(all[c], n));
        assert_true(hex_decode(hex, bytes, count));
        read_bits(f, back, n);
        assert_int_equal(codec_encode(all[c], x, n, coded), BRG_OK);
        assert_memory_equal(coded, bytes, count);
        assert_int_equal(codec_decode(all[c], bytes, n, got), BRG_OK);
        assert_memory_equal(got, back, 4 * n);
    }
    fclose(f);
}

TEST(codec_names_and_sizes) {
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        enum codec parsed = 0;
        assert_true(codec_parse(codec_name(all[c]), &parsed));
        assert_int_equal(parsed, all[c]);
        for (uint64_t n = 0; n < 600; n++) { /* whole blocks concatenate */
            assert_int_equal(codec_bytes(all[c], 3 * CODEC_BLOCK + n),
                             3 * codec_bytes(all[c], CODEC_BLOCK) + codec_bytes(all[c], n));
        }
    }
    enum codec untouched = CODEC_BF16;
    assert_false(codec_parse("fp64", &untouched));
    assert_false(codec_parse("", &untouched));
    assert_int_equal(untouched, CODEC_BF16);
    assert_int_equal(codec_bytes(CODEC_INT8, 1), 5);
    assert_int_equal(codec_bytes(CODEC_INT8, 129), 137);
}

static double bound_of(enum codec c, const float *x, size_t n, size_t i) {
    if (c == CODEC_FP32) return 0;
    if (c == CODEC_BF16) return fabs((double)x[i]) * 0x1p-8 + 0x1p-134;
    double max = 0;
    size_t first = i - i % CODEC_BLOCK;
    for (size_t k = first; k < n && k < first + CODEC_BLOCK; k++)
        max = fmax(max, fabs((double)x[k]));
    /* Half a step, and the roundings of scale, quotient and product. */
    return max / 127 * 0.5 + max * 4 * 0x1p-24 + 127 * 0x1p-126;
}

TEST(codec_C2_round_trip_stays_within_its_error_bound) {
    enum { N = 1500 };
    static float x[N], y[N];
    static uint8_t bytes[4 * N + 64];
    struct prng r;
    prng_seed(&r, 8);
    for (int round = 0; round < 600; round++) {
        size_t n = prng_below(&r, N + 1);
        int exponent = (int)prng_below(&r, 230) - 120;
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)ldexp(prng_normal(&r), exponent - (int)prng_below(&r, 20));
            if (prng_below(&r, 50) == 0) x[i] = 0;
        }
        for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
            size_t shift = prng_below(&r, 4); /* payloads lie at odd addresses in real files */
            assert_int_equal(codec_encode(all[c], x, n, bytes + shift), BRG_OK);
            assert_int_equal(codec_decode(all[c], bytes + shift, n, y), BRG_OK);
            for (size_t i = 0; i < n; i++) {
                assert_true(isfinite(y[i]));
                assert_true(fabs((double)x[i] - (double)y[i]) <= bound_of(all[c], x, n, i));
            }
        }
    }
}

TEST(codec_chunks_of_whole_blocks_give_the_same_bytes) {
    enum { N = 5 * CODEC_BLOCK + 17 };
    static float x[N];
    static uint8_t whole[4 * N], pieces[4 * N];
    struct prng r;
    prng_seed(&r, 9);
    for (size_t i = 0; i < N; i++) x[i] = (float)prng_normal(&r);
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        assert_int_equal(codec_encode(all[c], x, N, whole), BRG_OK);
        size_t out = 0;
        for (size_t at = 0; at < N; at += CODEC_BLOCK) {
            size_t n = N - at < CODEC_BLOCK ? N - at : CODEC_BLOCK;
            assert_int_equal(codec_encode(all[c], x + at, n, pieces + out), BRG_OK);
            out += codec_bytes(all[c], n);
        }
        assert_int_equal(out, codec_bytes(all[c], N));
        assert_memory_equal(whole, pieces, out);
    }
}

TEST(codec_C1_what_is_not_finite_is_refused_and_nothing_written) {
    enum { N = 300 };
    static float x[N];
    static uint8_t bytes[4 * N], before[4 * N];
    memset(before, 0xa5, sizeof before);
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        for (size_t b = 0; b < ARRAY_COUNT(bad); b++) {
            for (size_t at = 0; at < N; at += 23) {
                memset(x, 0, sizeof x);
                memcpy(bytes, before, sizeof bytes);
                x[at] = bad[b];
                assert_int_equal(codec_encode(all[c], x, N, bytes), BRG_E_NONFINITE);
                assert_memory_equal(bytes, before, sizeof bytes);
            }
        }
    }
    float huge = FLT_MAX;
    assert_int_equal(codec_encode(CODEC_FP32, &huge, 1, bytes), BRG_OK);
    assert_int_equal(codec_encode(CODEC_BF16, &huge, 1, bytes), BRG_E_NONFINITE);
    assert_int_equal(codec_encode(CODEC_INT8, &huge, 1, bytes), BRG_E_NONFINITE);
    assert_check_fails(!codec_encode((enum codec)9, x, 1, bytes));
}

TEST(codec_C2_corrupt_payloads_are_refused_and_nothing_written) {
    enum { N = 300 };
    static float x[N], y[N];
    static uint8_t good[4 * N], bytes[4 * N];
    for (size_t i = 0; i < N; i++) x[i] = (float)i / 7;
    const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x7fffffff};
    for (size_t b = 0; b < ARRAY_COUNT(bad); b++) {
        for (size_t at = 0; at < N; at += 13) {
            for (size_t i = 0; i < N; i++) y[i] = 5;
            (void)!codec_encode(CODEC_FP32, x, N, bytes);
            put_le32(bytes + 4 * at, bad[b]);
            assert_int_equal(codec_decode(CODEC_FP32, bytes, N, y), BRG_E_CORRUPT);
            (void)!codec_encode(CODEC_BF16, x, N, bytes);
            bytes[2 * at] = (uint8_t)(bad[b] >> 16);
            bytes[2 * at + 1] = (uint8_t)(bad[b] >> 24);
            assert_int_equal(codec_decode(CODEC_BF16, bytes, N, y), BRG_E_CORRUPT);
            for (size_t i = 0; i < N; i++) assert_true(y[i] == 5);
        }
    }
    const uint32_t bad_scale[] = {0x7f800000, 0x7fc00000, 0xbf800000,
                                  0x80000000, 0x7c000000, 0x80000001};
    assert_int_equal(codec_encode(CODEC_INT8, x, N, good), BRG_OK);
    for (size_t b = 0; b < ARRAY_COUNT(bad_scale); b++) {
        for (size_t block = 0; block < 3; block++) {
            memcpy(bytes, good, sizeof good);
            put_le32(bytes + block * (4 + CODEC_BLOCK), bad_scale[b]);
            assert_int_equal(codec_decode(CODEC_INT8, bytes, N, y), BRG_E_CORRUPT);
        }
    }
    put_le32(good,
             0x7bffffff); /* the largest scale: every byte, also -128, decodes to a finite value */
    memset(good + 4, 0x80, CODEC_BLOCK);
    assert_int_equal(codec_decode(CODEC_INT8, good, N, y), BRG_OK);
    assert_true(isfinite(y[0]));
    assert_check_fails(!codec_decode((enum codec)0, good, 1, y));
}

TEST(codec_C2_random_bytes_decode_to_finite_numbers_or_not_at_all) {
    enum { N = 200 };
    static float y[N];
    static uint8_t bytes[4 * N];
    struct prng r;
    prng_seed(&r, 10);
    for (int round = 0; round < 20000; round++) {
        size_t n = prng_below(&r, N);
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)prng_u64(&r);
        enum codec c = all[prng_below(&r, 3)];
        if (codec_decode(c, bytes, n, y) != BRG_OK) continue;
        for (size_t i = 0; i < n; i++) assert_true(isfinite(y[i]));
    }
}

/* ---- Header ---------------------------------------------------------------------------------- */
static struct delta_header sample(void) {
    struct delta_header h = {.codec = CODEC_INT8,
                             .elements = 596049920,
                             .base_version = 41,
                             .tokens = 123456789,
                             .steps = 30};
    for (size_t i = 0; i < ID_BYTES; i++) h.did.v[i] = (uint8_t)i;
    for (size_t i = 0; i < HASH_BYTES; i++) h.base_theta.v[i] = (uint8_t)(100 + i);
    return h;
}

TEST(delta_header_golden_bytes_both_ways) {
    char hex[2 * DELTA_HEADER_BYTES + 1];
    FILE *f = golden_at("header");
    assert_int_equal(fscanf(f, "%256s", hex), 1);
    fclose(f);
    uint8_t want[DELTA_HEADER_BYTES], got[DELTA_HEADER_BYTES];
    assert_true(hex_decode(hex, want, sizeof want));
    struct delta_header h = sample(), back = {0};
    delta_header_encode(&h, got);
    assert_memory_equal(got, want, sizeof want);
    struct err e;
    assert_int_equal(delta_header_decode(want, &back, &e), BRG_OK);
    assert_int_equal(back.codec, h.codec);
    assert_int_equal(back.elements, h.elements);
    assert_int_equal(back.base_version, h.base_version);
    assert_int_equal(back.tokens, h.tokens);
    assert_int_equal(back.steps, h.steps);
    assert_true(id_equal(&back.did, &h.did));
    assert_true(hash_equal(&back.base_theta, &h.base_theta));
}

TEST(delta_header_of_another_kind_is_refused) {
    struct delta_header h = sample(), out = {.elements = 77};
    uint8_t good[DELTA_HEADER_BYTES], bytes[DELTA_HEADER_BYTES];
    delta_header_encode(&h, good);
    static const struct {
        size_t at;
        uint8_t value;
    } bad[] = {{0, 'b'}, {7, '2'}, {8, 0},  {8, 4},  {11, 1}, {12, 1},
               {15, 9},  {22, 2},  {23, 1}, {96, 1}, {127, 1}};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        struct err e = {0};
        memcpy(bytes, good, sizeof good);
        bytes[bad[i].at] = bad[i].value;
        assert_int_equal(delta_header_decode(bytes, &out, &e), BRG_E_MESSAGE);
        assert_non_null(strstr(e.text, "delta header"));
        assert_int_equal(out.elements, 77);
    }
    memcpy(bytes, good, sizeof good);
    memset(bytes + 16, 0, 8);
    assert_int_equal(delta_header_decode(bytes, &out, NULL), BRG_E_MESSAGE);
}
