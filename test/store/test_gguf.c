/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a GGUF file against its definition, byte for byte. test/e2e/weights.py reads whole files. */
#include "../harness.h"

#include <string.h>

#include "store/store.h"

static void expect_text(struct reader *r, const char *text) {
    uint64_t n = get_u64(r);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(get_bytes(r, n), text, n);
}

TEST(gguf_G1_the_head_is_what_the_format_says) {
    struct gguf g;
    struct buf b;
    struct err e;
    uint64_t matrix[2] = {3, 5}, vector = 7;
    gguf_init(&g);
    buf_init(&b, 1 << 20);
    gguf_put_string(&g, "name", "a\0b", 3);
    gguf_put_u32(&g, "count", 7);
    gguf_put_bool(&g, "flag", true);
    gguf_put_f32(&g, "rate", 0.5f);
    gguf_put_list(&g, "list", GGUF_I32, 2);
    gguf_element_i32(&g, -1);
    gguf_element_i32(&g, 2);
    gguf_tensor(&g, "m", TENSOR_BF16, 2, matrix); /* 30 bytes and 2 of padding */
    gguf_tensor(&g, "v", TENSOR_F32, 1, &vector); /* 28 and 4 */
    gguf_tensor(&g, "h", TENSOR_F16, 2, matrix);
    assert_int_equal(gguf_header(&g, &b, &e), BRG_OK);
    assert_int_equal(b.bytes_count % 32, 0);
    struct reader r = reader_of(b.data, b.bytes_count);
    assert_memory_equal(get_bytes(&r, 4), "GGUF", 4);
    assert_int_equal(get_u32(&r), 3);
    assert_int_equal(get_u64(&r), 3); /* tensors */
    assert_int_equal(get_u64(&r), 5); /* pairs */
    expect_text(&r, "name");
    assert_int_equal(get_u32(&r), 8);
    assert_int_equal(get_u64(&r), 3);
    assert_memory_equal(get_bytes(&r, 3), "a\0b", 3);
    expect_text(&r, "count");
    assert_int_equal(get_u32(&r), 4);
    assert_int_equal(get_u32(&r), 7);
    expect_text(&r, "flag");
    assert_int_equal(get_u32(&r), 7);
    assert_int_equal(get_u8(&r), 1);
    expect_text(&r, "rate");
    assert_int_equal(get_u32(&r), 6);
    assert_true(get_f32(&r) == 0.5f);
    expect_text(&r, "list");
    assert_int_equal(get_u32(&r), 9);
    assert_int_equal(get_u32(&r), 5);
    assert_int_equal(get_u64(&r), 2);
    assert_int_equal(get_u32(&r), UINT32_MAX);
    assert_int_equal(get_u32(&r), 2);
    static const struct {
        const char *name;
        uint32_t dims, type;
        uint64_t offset;
    } infos[] = {{"m", 2, 30, 0}, {"v", 1, 0, 32}, {"h", 2, 1, 64}};
    for (size_t i = 0; i < ARRAY_COUNT(infos); i++) {
        expect_text(&r, infos[i].name);
        assert_int_equal(get_u32(&r), infos[i].dims);
        if (infos[i].dims == 2) assert_int_equal(get_u64(&r), 5); /* the fastest first */
        assert_int_equal(get_u64(&r), infos[i].dims == 2 ? 3 : 7);
        assert_int_equal(get_u32(&r), infos[i].type);
        assert_int_equal(get_u64(&r), infos[i].offset);
    }
    assert_true(r.ok);
    while (r.p < r.end) assert_int_equal(get_u8(&r), 0);
    assert_int_equal(g.data_bytes, 96);
    assert_int_equal(gguf_padding(0), 0);
    assert_int_equal(gguf_padding(1), 31);
    assert_int_equal(gguf_padding(64), 0);
    gguf_fini(&g);
    buf_fini(&b);
}
