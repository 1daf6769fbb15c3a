/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on the disk: the half-precision numbers against the definition of rounding, the index of a
 * sharded model against a table of bad ones, and sets whose files and index do not agree. */
#include "../harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "store/store.h"

/* ---- Numbers --------------------------------------------------------------------------------- */
static float decode16(enum tensor_type type, unsigned h) {
    uint8_t raw[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
    float f;
    tensor_decode(type, raw, 1, &f);
    return f;
}

static unsigned encode16(enum tensor_type type, float f, bool *fits) {
    uint8_t raw[2] = {0, 0};
    *fits = tensor_encode(type, &f, 1, raw) == 1;
    return raw[0] | (unsigned)raw[1] << 8;
}

TEST(floats_every_half_comes_back) {
    static const enum tensor_type types[] = {TENSOR_F16, TENSOR_BF16};
    for (size_t k = 0; k < 2; k++) {
        for (unsigned h = 0; h < 65536; h++) {
            bool fits;
            float f = decode16(types[k], h);
            unsigned back = encode16(types[k], f, &fits);
            assert_true(fits);
            if (isnan(f))
                assert_true(isnan(decode16(types[k], back)));
            else
                assert_int_equal(back, h);
        }
    }
    assert_true(decode16(TENSOR_F16, 0x7bff) == 65504.0f);
    assert_true(decode16(TENSOR_F16, 0x8001) == -0x1p-24f);
    assert_true(decode16(TENSOR_BF16, 0x3f81) == 1.0078125f);
}

/* By definition: no other number of the type is nearer, and of two as near the even one is taken. */
static void check_nearest(enum tensor_type type, float f) {
    bool fits;
    unsigned h = encode16(type, f, &fits), infinite = type == TENSOR_F16 ? 0x7c00 : 0x7f80;
    double largest = (double)decode16(type, infinite - 1);
    double step = largest - (double)decode16(type, infinite - 2);
    assert_true(fits == (fabs((double)f) < largest + step / 2));
    if (!fits) return;
    assert_true((signbit(f) != 0) == ((h & 0x8000) != 0));
    double mine = fabs((double)decode16(type, h) - (double)f);
    for (int d = -1; d <= 1; d += 2) {
        unsigned magnitude = (h & 0x7fff) + (unsigned)d;
        if (magnitude >= infinite) continue; /* infinity, or below zero */
        double other = fabs((double)decode16(type, (h & 0x8000) | magnitude) - (double)f);
        assert_true(mine <= other);
        if (mine == other) assert_int_equal(h & 1, 0);
    }
}

TEST(floats_round_to_the_nearest_even) {
    struct prng p;
    prng_seed(&p, 5);
    for (int i = 0; i < 400000; i++) {
        uint32_t u = (uint32_t)prng_u64(&p);
        if (i % 2)
            u = (u & 0x80000000u) | ((uint32_t)(100 + prng_below(&p, 45)) << 23) | (u & 0x7fffffu);
        if (i % 3 == 0) u &= 0xfffff000u; /* ties */
        float f;
        memcpy(&f, &u, sizeof f);
        if (!isfinite(f)) continue;
        check_nearest(TENSOR_F16, f);
        check_nearest(TENSOR_BF16, f);
    }
    static const float edges[] = {65504,    65519.996f,      65520, -65520,
                                  0x1p-25f, 0x1.000002p-25f, 3e38f, 3.4e38f};
    for (size_t i = 0; i < ARRAY_COUNT(edges); i++) {
        check_nearest(TENSOR_F16, edges[i]);
        check_nearest(TENSOR_BF16, edges[i]);
    }
}

TEST(floats_the_first_that_does_not_fit_is_told) {
    float in[4] = {1, INFINITY, 70000, 80000}, out[4];
    uint8_t raw[16];
    assert_int_equal(tensor_encode(TENSOR_F16, in, 4, raw), 2); /* infinity itself fits */
    assert_int_equal(tensor_encode(TENSOR_BF16, in, 4, raw), 4);
    assert_int_equal(tensor_encode(TENSOR_F32, in, 4, raw), 4);
    tensor_decode(TENSOR_F32, raw, 4, out);
    assert_memory_equal(in, out, sizeof in);
}

/* ---- The index ------------------------------------------------------------------------------- */
static const struct {
    const char *json, *says; /* NULL: good */
} indexes[] = {
    {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", NULL},
    {"{\"metadata\":{\"total_size\":9},\"weight_map\":{\"b\":\"x.safetensors\",\"a\":\"y."
     "safetensors\"}}",
     NULL},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "duplicate"},
    {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "\"a\""},
    {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "\"a\""},
    {"{\"weight_map\":{\"a\":\".x.safetensors\"}}", "\"a\""},
    {"{\"weight_map\":{\"a\":\".safetensors\"}}", "\"a\""},
    {"{\"weight_map\":{\"a\":\"x.bin\"}}", "\"a\""},
    {"{\"weight_map\":{\"a\":7}}", "no string"},
    {"{\"weight_map\":{\"\":\"x.safetensors\"}}", "1 to 127"},
    {"{\"weight_map\":{}}", "weight_map"},
    {"{\"weight_map\":[]}", "weight_map"},
    {"{\"weights\":1,\"weight_map\":{\"a\":\"x.safetensors\"}}", "\"weights\""},
    {"{}", "weight_map"},
    {"[]", "object"},
    {"{\"weight_map\":", "line 1"},
    {"", "line"},
};

TEST(index_table) {
    for (size_t i = 0; i < ARRAY_COUNT(indexes); i++) {
        struct tensor_index x = {0};
        struct err e = {0};
        enum brg_status s =
            tensor_index_parse(indexes[i].json, strlen(indexes[i].json), "index.json", &x, &e);
        if (indexes[i].says == NULL && s != BRG_OK) fail_msg("%s: %s", indexes[i].json, e.text);
        if (indexes[i].says != NULL) {
            assert_int_equal(s, BRG_E_CHECKPOINT);
            assert_non_null(strstr(e.text, "index.json"));
            if (strstr(e.text, indexes[i].says) == NULL)
                fail_msg("%s: %s", indexes[i].json, e.text);
        }
        tensor_index_fini(&x);
    }
}

TEST(index_X1_X2_comes_back_as_it_was_written) {
    struct tensor_index x = {0}, y = {0};
    struct err e;
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"weight_map\":{");
    for (int i = 499; i >= 0; i--)
        buf_printf(&b, "%s\"t%03d\":\"model-%d.safetensors\"", i < 499 ? "," : "", i, i % 7);
    buf_printf(&b, "}}");
    assert_int_equal(tensor_index_parse(b.data, b.bytes_count, "f", &x, &e), BRG_OK);
    assert_int_equal(x.places_count, 500);
    assert_int_equal(x.files_count, 7);
    buf_reset(&b);
    tensor_index_print(&x, 12345, &b);
    assert_non_null(strstr(buf_cstr(&b), "\"total_size\": 12345"));
    assert_int_equal(tensor_index_parse(b.data, b.bytes_count, "f", &y, &e), BRG_OK);
    for (int i = 0; i < 500; i++) {
        char name[16], file[40];
        snprintf(name, sizeof name, "t%03d", i);
        snprintf(file, sizeof file, "model-%d.safetensors", i % 7);
        const struct tensor_place *p = tensor_index_find(&y, name);
        assert_non_null(p);
        assert_string_equal(y.files[p->file], file);
    }
    assert_null(tensor_index_find(&y, "t500"));
    tensor_index_fini(&x);
    tensor_index_fini(&y);
    buf_fini(&b);
}

TEST(index_X2_a_new_map_of_many_files_is_bounded) {
    struct tensor_index x = {0};
    struct err e;
    struct buf b;
    buf_init(&b, 1 << 22);
    buf_printf(&b, "{\"weight_map\":{");
    for (int i = 0; i <= TENSOR_FILES_MAX; i++)
        buf_printf(&b, "%s\"t%d\":\"%d.safetensors\"", i ? "," : "", i, i);
    buf_printf(&b, "}}");
    assert_int_equal(tensor_index_parse(b.data, b.bytes_count, "f", &x, &e), BRG_E_CHECKPOINT);
    assert_non_null(strstr(e.text, "4096"));
    buf_fini(&b);
}

/* ---- Sets ------------------------------------------------------------------------------------ */
static void write_file(const char *name, const char *tensor, const char *tensor2) {
    struct tensors t = {0};
    struct buf b;
    struct err e;
    char path[OS_PATH_MAX];
    uint64_t two = 2;
    buf_init(&b, 1 << 16);
    tensors_add(&t, tensor, TENSOR_F32, 1, &two);
    if (tensor2) tensors_add(&t, tensor2, TENSOR_BF16, 1, &two);
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    while (b.bytes_count < t.file_bytes) buf_u8(&b, 1);
    os_path(path, test_dir(), "%s", name);
    assert_int_equal(os_write_file_atomic(path, b.data, b.bytes_count, &e), BRG_OK);
    tensors_fini(&t);
    buf_fini(&b);
}

static void write_index(const char *json) {
    struct err e;
    char path[OS_PATH_MAX];
    os_path(path, test_dir(), "model.safetensors.index.json");
    assert_int_equal(os_write_file_atomic(path, json, strlen(json), &e), BRG_OK);
}

static void expect(enum brg_status status, const char *word, const char *word2) {
    struct tensor_set s = {0};
    struct err e = {0};
    enum brg_status is = tensor_set_open(test_dir(), &s, &e);
    if (is != status) fail_msg("status %d: %s", is, e.text);
    if (word && !strstr(e.text, word)) fail_msg("%s: not in: %s", word, e.text);
    if (word2 && !strstr(e.text, word2)) fail_msg("%s: not in: %s", word2, e.text);
    if (status != BRG_OK) assert_int_equal(s.files_count, 0);
    tensor_set_fini(&s);
}

TEST(set_files_and_index_must_agree) {
    char path[OS_PATH_MAX];
    expect(BRG_E_MISSING, "model.safetensors.index.json", "neither");
    write_file("x.safetensors", "a", "b");
    write_file("y.safetensors", "c", NULL);
    write_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y."
                "safetensors\"}}");
    expect(BRG_OK, NULL, NULL);
    struct tensor_set s = {0};
    struct err e;
    const struct tensor_file *f;
    assert_int_equal(tensor_set_open(test_dir(), &s, &e), BRG_OK);
    const struct tensor *t = tensor_set_find(&s, "c", &f);
    assert_non_null(t);
    assert_non_null(strstr(f->path, "y.safetensors"));
    assert_null(tensor_set_find(&s, "d", &f));
    tensor_set_fini(&s);

    write_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\"}}");
    expect(BRG_E_CHECKPOINT, "\"b\"", "unknown");
    write_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y."
                "safetensors\"}}");
    expect(BRG_E_CHECKPOINT, "\"b\"", "y.safetensors");
    write_index(
        "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\","
        "\"d\":\"y.safetensors\"}}");
    expect(BRG_E_CHECKPOINT, "\"d\"", "missing");
    write_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"z."
                "safetensors\"}}");
    expect(BRG_E_MISSING, "z.safetensors", NULL);
    write_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y."
                "safetensors\"}}");
    write_file("y.safetensors", "a", "c"); /* the same tensor in two files */
    expect(BRG_E_CHECKPOINT, "\"a\"", "y.safetensors");
    write_file("y.safetensors", "c", NULL);
    assert_int_equal(truncate(os_path(path, test_dir(), "y.safetensors"), 70), 0);
    expect(BRG_E_CHECKPOINT, "y.safetensors", NULL);
    write_file("model.safetensors", "single", NULL); /* comes first, as with other readers */
    expect(BRG_OK, NULL, NULL);
}
