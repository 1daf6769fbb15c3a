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

#include "outer/codec_parts.h"

static const enum codec all[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_TOPK};
enum { OLD = 3 /* of them are in outer-v1.txt */ };

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
    for (size_t c = 0; c < OLD; c++) {
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

/* int4 and topk, with both sets of instructions. */
TEST(codec_golden_v2_bytes_both_ways) {
    enum { MAX = 16384 };
    static float x[MAX], back[MAX], got[MAX];
    static uint8_t bytes[MAX], coded[MAX];
    static char hex[2 * MAX + 1], name[8];
    FILE *f = fopen("test/golden/codecs-v2.txt", "r");
    assert_non_null(f);
    size_t n, count, cases = 0;
    while (fscanf(f, " codec %7s %zu", name, &n) == 2) {
        enum codec c;
        assert_true(codec_parse(name, &c));
        assert_true(n <= MAX);
        read_bits(f, x, n);
        assert_int_equal(fscanf(f, "%zu %32768s", &count, hex), 2);
        assert_int_equal(count, codec_bytes(c, n));
        assert_true(hex_decode(hex, bytes, count));
        read_bits(f, back, n);
        for (int plain = 0; plain < 2; plain++) {
            codec_plain_only = plain;
            assert_int_equal(codec_encode(c, x, n, coded), BRG_OK);
            assert_memory_equal(coded, bytes, count);
            assert_int_equal(codec_decode(c, bytes, n, got), BRG_OK);
            for (size_t i = 0; i < n; i++) assert_true(got[i] == back[i]); /* -0 is 0 here */
        }
        cases++;
    }
    assert_true(feof(f));
    assert_int_equal(cases, 12);
    fclose(f);
}

TEST(codec_names_and_sizes) {
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        enum codec parsed = 0;
        assert_true(codec_parse(codec_name(all[c]), &parsed));
        assert_int_equal(parsed, all[c]);
        for (uint64_t n = 0; n < 600; n++) { /* whole blocks concatenate */
            assert_int_equal(codec_bytes(all[c], 3 * CODEC_UNIT + n),
                             3 * codec_bytes(all[c], CODEC_UNIT) + codec_bytes(all[c], n));
        }
    }
    enum codec untouched = CODEC_BF16;
    assert_false(codec_parse("fp64", &untouched));
    assert_false(codec_parse("", &untouched));
    assert_int_equal(untouched, CODEC_BF16);
    assert_int_equal(codec_bytes(CODEC_INT8, 1), 5);
    assert_int_equal(codec_bytes(CODEC_INT8, 129), 137);
    assert_int_equal(codec_bytes(CODEC_INT4, 1), 3);
    assert_int_equal(codec_bytes(CODEC_INT4, 64), 34);
    assert_int_equal(codec_bytes(CODEC_INT4, 67), 34 + 4);
    assert_int_equal(codec_bytes(CODEC_TOPK, 1), 7);
    assert_int_equal(codec_bytes(CODEC_TOPK, 4096), 116);
    assert_int_equal(codec_bytes(CODEC_TOPK, 65), 4 + 1 + 3);
    /* A model of 596,049,920 parameters: what a round's contribution weighs. */
    assert_int_equal(codec_bytes(CODEC_INT4, 596049920), 316651520);
    assert_int_equal(codec_bytes(CODEC_TOPK, 596049920), 16880320);
}

static double bound_of(enum codec c, const float *x, size_t n, size_t i) {
    if (c == CODEC_FP32) return 0;
    if (c == CODEC_BF16) return fabs((double)x[i]) * 0x1p-8 + 0x1p-134;
    double max = 0;
    size_t block = c == CODEC_INT8 ? CODEC_BLOCK : c == CODEC_INT4 ? 64 : 4096;
    size_t first = i - i % block;
    for (size_t k = first; k < n && k < first + block; k++) max = fmax(max, fabs((double)x[k]));
    if (c == CODEC_INT4) return max / 14 * (1 + 0x1p-6) + 7 * 0x1p-126;
    if (c == CODEC_TOPK) return max * (1 + 0x1p-7); /* what is dropped is not above what is kept */
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
            if (all[c] == CODEC_TOPK && round % 16 != 0)
                continue;                     /* its bound is dear to compute */
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
    enum { N = 5 * CODEC_UNIT + 17 };
    static float x[N];
    static uint8_t whole[4 * N], pieces[4 * N];
    struct prng r;
    prng_seed(&r, 9);
    for (size_t i = 0; i < N; i++) x[i] = (float)prng_normal(&r);
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        assert_int_equal(codec_encode(all[c], x, N, whole), BRG_OK);
        size_t out = 0;
        for (size_t at = 0; at < N; at += CODEC_UNIT) {
            size_t n = N - at < CODEC_UNIT ? N - at : CODEC_UNIT;
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
    assert_int_equal(codec_encode(CODEC_INT4, &huge, 1, bytes), BRG_E_NONFINITE);
    assert_int_equal(codec_encode(CODEC_TOPK, &huge, 1, bytes), BRG_E_NONFINITE);
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
        enum codec c = all[prng_below(&r, ARRAY_COUNT(all))];
        if (codec_decode(c, bytes, n, y) != BRG_OK) continue;
        for (size_t i = 0; i < n; i++) assert_true(isfinite(y[i]));
    }
}

TEST(codec_C3_int4_that_no_encoder_writes_is_refused) {
    enum { N = 64 + 33, BYTES = 34 + 2 + 17 };
    static float x[N], y[N];
    static uint8_t good[BYTES], bytes[BYTES];
    for (size_t i = 0; i < N; i++) x[i] = (float)i - 40;
    assert_int_equal(codec_bytes(CODEC_INT4, N), BYTES);
    assert_int_equal(codec_encode(CODEC_INT4, x, N, good), BRG_OK);
    static const uint16_t bad_scale[] = {0x7e00, 0x7f80, 0x7fc0, 0x8000, 0xbf80, 0x0001, 0x007f, 0};
    for (int plain = 0; plain < 2; plain++) {
        codec_plain_only = plain;
        assert_int_equal(codec_decode(CODEC_INT4, good, N, y), BRG_OK);
        for (size_t i = 0; i < N; i++) y[i] = 5;
        for (size_t block = 0; block < 2; block++) {
            for (size_t b = 0; b < ARRAY_COUNT(bad_scale);
                 b++) { /* 0: before bytes that are not 0 */
                memcpy(bytes, good, BYTES);
                bytes[34 * block] = (uint8_t)bad_scale[b];
                bytes[34 * block + 1] = (uint8_t)(bad_scale[b] >> 8);
                assert_int_equal(codec_decode(CODEC_INT4, bytes, N, y), BRG_E_CORRUPT);
            }
            for (size_t k = 2; k < (block == 0 ? 34 : 2 + 17); k++) { /* -8 in either half */
                memcpy(bytes, good, BYTES);
                bytes[34 * block + k] = (uint8_t)((good[34 * block + k] & 0xf0) | 8);
                assert_int_equal(codec_decode(CODEC_INT4, bytes, N, y), BRG_E_CORRUPT);
                bytes[34 * block + k] = (uint8_t)((good[34 * block + k] & 0x0f) | 0x80);
                assert_int_equal(codec_decode(CODEC_INT4, bytes, N, y), BRG_E_CORRUPT);
            }
        }
        memcpy(bytes, good, BYTES);
        bytes[BYTES - 1] |= 0x10; /* 33 elements: the last high half is padding */
        assert_int_equal(codec_decode(CODEC_INT4, bytes, N, y), BRG_E_CORRUPT);
        for (size_t i = 0; i < N; i++) assert_true(y[i] == 5);
        memcpy(bytes, good, BYTES); /* a scale of 0 before zeros, and the largest scale */
        memset(bytes, 0, 34);
        bytes[34] = 0xff, bytes[35] = 0x7d;
        assert_int_equal(codec_decode(CODEC_INT4, bytes, N, y), BRG_OK);
        for (size_t i = 0; i < N; i++) assert_true(isfinite(y[i]));
    }
}

TEST(codec_C4_topk_that_no_encoder_writes_is_refused) {
    enum { N = 4096 + 65 * 5, BYTES = 116 + 4 + 2 + 9, LIST = 4 + 16 };
    static float x[N], y[N];
    static uint8_t good[BYTES], bytes[BYTES];
    struct prng r;
    prng_seed(&r, 12);
    for (size_t i = 0; i < N; i++) x[i] = (float)prng_normal(&r);
    assert_int_equal(codec_bytes(CODEC_TOPK, N), BYTES); /* 325 elements: 6 kept */
    assert_int_equal(codec_encode(CODEC_TOPK, x, N, good), BRG_OK);
    assert_int_equal(codec_decode(CODEC_TOPK, good, N, y), BRG_OK);
    for (size_t i = 0; i < N; i++) y[i] = 5;
    static const struct {
        size_t at, count;
        uint8_t value[4];
    } bad[] = {
        {2, 2, {0x80, 0x7f}},           {2, 2, {0xc0, 0x7f}},    {2, 2, {0x80, 0xff}},
        {0, 2, {0x80, 0xbf}},           {0, 2, {0x7f, 0x7f}},    /* low above high */
        {LIST, 3, {0, 0, 0}},           {LIST, 3, {5, 0x50, 0}}, /* twice the same, 5 and 5 */
        {LIST, 3, {6, 0x50, 0}},                                 /* 6, 5 */
        {116 + 5, 1, {0x10}},                                    /* a code after the last of six */
        {116 + 6 + 7, 2, {0xff, 0xff}}, /* a position past the end of the block */
    };
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        memcpy(bytes, good, BYTES);
        for (size_t k = 0; k < bad[i].count; k++) bytes[bad[i].at + k] = bad[i].value[k];
        assert_int_equal(codec_decode(CODEC_TOPK, bytes, N, y), BRG_E_CORRUPT);
        for (size_t k = 0; k < N; k++) assert_true(y[k] == 5);
    }
    float one = 3;
    assert_int_equal(codec_encode(CODEC_TOPK, &one, 1, bytes), BRG_OK);
    bytes[6] |= 0x10; /* the last half byte of an odd list is padding */
    assert_int_equal(codec_decode(CODEC_TOPK, bytes, 1, y), BRG_E_CORRUPT);
}

/* What a codec drops in one round is in a later one, as the site and the hub do it: the sum of what was
 * sent stays within a bound of the sum of what was meant, however many rounds there are. */
TEST(codec_error_feedback_loses_nothing_in_the_long_run) {
    enum { N = 4096, ROUNDS = 200 };
    static float x[N], e[N], y[N];
    static double meant[N], sent[N];
    static uint8_t bytes[4 * N];
    struct prng r;
    prng_seed(&r, 13);
    for (size_t c = 0; c < ARRAY_COUNT(all); c++) {
        double worst = 0;
        memset(e, 0, sizeof e);
        memset(meant, 0, sizeof meant);
        memset(sent, 0, sizeof sent);
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t i = 0; i < N; i++) {
                float d = (float)prng_normal(&r);
                meant[i] += (double)d;
                x[i] = d + e[i];
            }
            assert_int_equal(codec_encode(all[c], x, N, bytes), BRG_OK);
            assert_int_equal(codec_decode(all[c], bytes, N, y), BRG_OK);
            for (size_t i = 0; i < N; i++) {
                e[i] = x[i] - y[i];
                sent[i] += (double)y[i];
            }
        }
        for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs(meant[i] - sent[i]));
        /* A random walk of 200 steps reaches 14 and more: feedback keeps the dense codecs' error at half
         * a step, and topk's below what it waits for, about the smallest value it sends. */
        assert_true(worst < (all[c] == CODEC_TOPK ? 40 : 0.4));
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
    } bad[] = {{0, 'b'}, {7, '2'}, {8, 0},  {8, 7},  {11, 1}, {12, 1},
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
