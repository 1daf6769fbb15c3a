/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

/* ---- Status and errors ----------------------------------------------------------------------- */

TEST(base_status_table_is_consistent) {
    static const enum brg_status all[] = {
#define X(name, number, class_, sentence) BRG_##name,
        BRG_STATUS_TABLE(X)
#undef X
    };
    bool seen[256] = {false};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) {
        assert_in_range(all[i], 0, 255);
        assert_false(seen[all[i]]);
        seen[all[i]] = true;
        assert_int_equal(status_from_name(status_name(all[i])), all[i]);
        assert_true(strlen(status_sentence(all[i])) > 3);
    }
    assert_string_equal(status_name(BRG_E_CONFIG), "E_CONFIG");
    assert_int_equal(status_class(BRG_E_FULL), BRG_CLASS_FULL);
    assert_string_equal(status_name((enum brg_status)250), "E_UNKNOWN");
    assert_int_equal(status_from_name("nonsense"), BRG_E_INTERNAL);
}

TEST(base_err_is_one_line_of_whole_characters) {
    struct err e = {0};
    assert_int_equal(err_set(&e, BRG_E_IO, "a\nb\x01%d", 5), BRG_E_IO);
    assert_string_equal(e.text, "a b 5");
    assert_int_equal(err_prefix(&e, "file %s", "x"), BRG_E_IO);
    assert_string_equal(e.text, "file x: a b 5");
    assert_int_equal(err_set(NULL, BRG_E_FULL, "nobody listens"), BRG_E_FULL);
    err_set(&e, BRG_E_IO, "again: %s", e.text); /* its own text as an argument */
    assert_string_equal(e.text, "again: file x: a b 5");
    /* Cut in the middle of a character of two, three or four bytes, wherever it falls. */
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t k = 0; k < ARRAY_COUNT(characters); k++) {
        for (int shift = 0; shift < 4; shift++) {
            char text[2000] = "";
            int n = shift;
            memset(text, 'x', (size_t)shift);
            while (n < 1500) n += snprintf(text + n, 8, "%s", characters[k]);
            err_set(&e, BRG_E_IO, "%s", text);
            size_t len = strlen(e.text), width = strlen(characters[k]);
            assert_true(len > sizeof e.text - 5);
            assert_int_equal((len - (size_t)shift) % width, 0);
        }
    }
}

/* ---- Buffer and reader ----------------------------------------------------------------------- */

TEST(base_buffer_and_reader_agree) {
    struct buf b;
    buf_init(&b, 1000);
    buf_u8(&b, 0xAB);
    buf_u16(&b, 0x1234);
    buf_u32(&b, 0xDEADBEEF);
    buf_u64(&b, UINT64_C(0x0123456789ABCDEF));
    buf_f32(&b, -0.0f);
    buf_f64(&b, 1e-300);
    buf_str(&b, "text");
    buf_str(&b, "");
    assert_int_equal(b.data[1], 0x34); /* little-endian */
    assert_int_equal(b.data[3], 0xEF);
    struct reader r = reader_of(b.data, b.bytes_count);
    char text[5];
    assert_int_equal(get_u8(&r), 0xAB);
    assert_int_equal(get_u16(&r), 0x1234);
    assert_true(get_u32(&r) == 0xDEADBEEF);
    assert_true(get_u64(&r) == UINT64_C(0x0123456789ABCDEF));
    float f = get_f32(&r);
    assert_true(f == 0 && signbit(f));
    assert_true(get_f64(&r) == 1e-300);
    assert_true(get_str(&r, text, sizeof text));
    assert_string_equal(text, "text");
    assert_true(get_str(&r, text, sizeof text));
    assert_string_equal(text, "");
    assert_true(r.ok);
    assert_ptr_equal(r.p, r.end);
    buf_fini(&b);
}

/* Any puts with any maximum: what is there is a prefix of what was put, and fits. */
TEST(base_B1_a_buffer_never_holds_more_than_its_maximum) {
    struct prng p;
    prng_seed(&p, 1);
    for (int round = 0; round < 2000; round++) {
        uint8_t model[4096];
        size_t model_n = 0, max = prng_below(&p, 300);
        bool over = false;
        AUTO_BUF struct buf b = {.bytes_max = max};
        for (int i = 0; i < 20; i++) {
            uint8_t piece[40];
            size_t n = prng_below(&p, sizeof piece + 1);
            memset(piece, (int)prng_below(&p, 26) + 'a', sizeof piece);
            if (prng_below(&p, 2) == 0)
                buf_put(&b, piece, n);
            else
                buf_printf(&b, "%.*s", (int)n, (const char *)piece);
            over = over || n > max - model_n;
            if (!over) memcpy(model + model_n, piece, n), model_n += n;
            assert_int_equal(b.overflow, over);
            assert_int_equal(b.bytes_count, model_n);
            assert_true(b.bytes_count <= max);
            assert_true(strlen(buf_cstr(&b)) == model_n);
            if (model_n > 0) assert_memory_equal(b.data, model, model_n);
        }
        buf_reset(&b);
        assert_false(b.overflow);
    }
    struct buf none = {0};
    buf_u8(&none, 1);
    assert_true(none.overflow);
    assert_string_equal(buf_cstr(&none), "");
    buf_fini(&none);
}

/* Any bytes with any gets: never past the end, zeros after the first failure. */
TEST(base_B2_a_reader_never_passes_its_end) {
    struct prng p;
    prng_seed(&p, 2);
    for (int round = 0; round < 20000; round++) {
        size_t n = prng_below(&p, 40);
        uint8_t *data =
            mem_alloc(n, 1); /* its own block, so that the sanitizer sees a step beyond */
        for (size_t i = 0; i < n; i++) data[i] = (uint8_t)prng_below(&p, 4);
        struct reader r = reader_of(n ? data : NULL, n);
        bool failed = false;
        while (!failed) {
            char text[6];
            switch (prng_below(&p, 7)) {
            case 0: get_u8(&r); break;
            case 1: get_u16(&r); break;
            case 2: get_u32(&r); break;
            case 3: get_u64(&r); break;
            case 4: get_f32(&r); break;
            case 5: (void)get_str(&r, text, sizeof text); break;
            default: get_bytes(&r, prng_below(&p, 9)); break;
            }
            assert_true(r.p <= r.end);
            failed = !r.ok || r.p == r.end;
        }
        while (r.ok) get_u64(&r);
        assert_int_equal(get_u8(&r), 0);
        assert_true(get_f64(&r) == 0);
        assert_null(get_bytes(&r, 0));
        mem_free(data);
    }
}

TEST(base_strings_with_nul_or_too_long_are_refused) {
    char text[4] = "zzz";
    const uint8_t nul[] = {3, 0, 'a', 0, 'b'}, longer[] = {4, 0, 'a', 'b', 'c', 'd'};
    struct reader r = reader_of(nul, sizeof nul);
    assert_false(get_str(&r, text, sizeof text));
    assert_string_equal(text, "");
    assert_false(r.ok);
    r = reader_of(longer, sizeof longer);
    assert_false(get_str(&r, text, sizeof text));
}

/* ---- Hash, hex, random ----------------------------------------------------------------------- */

TEST(base_sha256_of_the_standard) {
    char hex[HASH_HEX_BYTES];
    struct hash h = hash_of("abc", 3);
    hash_hex(&h, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    h = hash_of(NULL, 0);
    hash_hex(&h, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    struct hasher one, fork;
    hasher_init(&one);
    hasher_update(&one, "a", 1);
    fork = one;
    hasher_update(&one, "bc", 2);
    hasher_update(&fork, "bd", 2);
    struct hash abc = hash_of("abc", 3), got = hasher_final(&one), other = hasher_final(&fork);
    assert_true(hash_equal(&abc, &got));
    assert_false(hash_equal(&abc, &other));
    assert_false(hash_is_zero(&abc));
    assert_true(hash_is_zero(&(struct hash){{0}}));
}

TEST(base_hex_wants_exactly_its_digits) {
    uint8_t v[2] = {1, 2};
    assert_true(hex_decode("aBfF", v, 2));
    assert_int_equal(v[0], 0xAB);
    assert_int_equal(v[1], 0xFF);
    assert_false(hex_decode("012", v, 2));
    assert_false(hex_decode("01234", v, 2));
    assert_false(hex_decode("01g3", v, 2));
    assert_int_equal(v[0], 0xAB);
    struct id128 id = {{0x10}};
    char text[ID_HEX_BYTES];
    id_hex(&id, text);
    assert_string_equal(text, "10000000000000000000000000000000");
}

TEST(base_prng_is_the_published_one) {
    /* xoshiro256** from state 1, 2, 3, 4: the first words of the reference implementation. */
    struct prng p = {{1, 2, 3, 4}};
    static const uint64_t want[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    for (size_t i = 0; i < ARRAY_COUNT(want); i++) assert_true(prng_u64(&p) == want[i]);
    /* splitmix64 from seed 0. */
    prng_seed(&p, 0);
    assert_true(p.s[0] == UINT64_C(0xE220A8397B1DCDAF));
    double sum = 0, square = 0;
    unsigned counts[7] = {0};
    enum { DRAWS = 70000 };
    for (int i = 0; i < DRAWS; i++) {
        double x = prng_normal(&p), u = prng_unit(&p);
        assert_true(isfinite(x));
        assert_true(u >= 0 && u < 1);
        sum += x;
        square += x * x;
        counts[prng_below(&p, 7)]++;
    }
    assert_true(fabs(sum / DRAWS) < 0.02);
    assert_true(fabs(square / DRAWS - 1) < 0.03);
    for (int i = 0; i < 7; i++) assert_in_range(counts[i], 9500, 10500);
    assert_int_equal(prng_below(&p, 1), 0);
    assert_check_fails(prng_below(&p, 0));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

TEST(base_memory_is_zeroed_and_checked) {
    uint8_t *p = mem_alloc(3, 2);
    for (int i = 0; i < 6; i++) assert_int_equal(p[i], 0);
    memset(p, 1, 6);
    p = mem_grow(p, 3, 500, 2);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], i < 6);
    mem_free(p);
    volatile size_t huge = SIZE_MAX / 2;
    assert_null(try_mem_alloc(huge, 4));
    assert_null(try_mem_alloc(huge, 1));
    p = try_mem_alloc(0, 8);
    assert_non_null(p);
    mem_free(p);
}
