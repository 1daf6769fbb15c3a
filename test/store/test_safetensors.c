/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader against hostile headers: a table of them, and random mutations. */
#include "../harness.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "store/store.h"

/* A file of one header and data_bytes of data; only the header has to be there for the parser. */
static enum brg_status parse(const char *json, size_t json_bytes, uint64_t data_bytes,
                             struct tensors *out, struct err *e) {
    struct buf b;
    buf_init(&b, 1 << 24);
    buf_u64(&b, json_bytes);
    buf_put(&b, json, json_bytes);
    enum brg_status s =
        tensors_parse(b.data, b.bytes_count, b.bytes_count + data_bytes, "f", out, e);
    buf_fini(&b);
    return s;
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static const struct {
    const char *json;
    uint64_t data_bytes;
    const char *says; /* NULL: good */
} headers[] = {
    {"{" T("a", "F32", "[2,2]", "0", "16") "}", 16, NULL},
    {"{" T("a", "F32", "[2,2]", "0", "16") "}   \n\t ", 16, NULL},
    {"{" T("b", "F32", "[1]", "4", "8") "," T("a", "F32", "[]", "0", "4") "}", 8, NULL},
    {"{" T("z", "F32", "[0]", "0", "0") "," T("a", "BF16", "[3]", "0", "6") "}", 6, NULL},
    {"{\"__metadata__\":{\"k\":\"v\"}," T("a", "U8", "[1,1,1,3]", "0", "3") "}", 3, NULL},
    {"{}", 0, NULL},
    {"{}", 1, "1 bytes after"},
    {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", 12,
     "\"b\": overlaps"},
    {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "0", "8") "}", 8, "overlaps"},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "8", "12") "}", 12,
     "\"b\": there is a gap"},
    {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "\"a\": there is a gap"},
    {"{" T("a", "F32", "[2]", "0", "8") "}", 7, "\"a\": reaches beyond"},
    {"{" T("a", "F32", "[2]", "0", "8") "}", 9, "1 bytes after"},
    {"{" T("a", "F32", "[2]", "0", "7") "}", 7, "\"a\": data_offsets do not fit"},
    {"{" T("a", "F32", "[2]", "8", "0") "}", 8, "\"a\": data_offsets do not fit"},
    {"{" T("a", "BF16", "[2]", "0", "8") "}", 8, "do not fit"},
    {"{" T("a", "F32", "[2]", "0", "8") "," T("a", "F32", "[2]", "8", "16") "}", 16, "duplicate"},
    {"{" T("a", "F99", "[2]", "0", "8") "}", 8, "unknown dtype"},
    {"{" T("a", "f32", "[2]", "0", "8") "}", 8, "unknown dtype"},
    {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
    {"{" T("a", "F32", "[1,1,1,1,2]", "0", "8") "}", 8, "more than 4"},
    {"{" T("a", "F32", "[-2]", "0", "8") "}", 8, "whole numbers"},
    {"{" T("a", "F32", "[2.0]", "0", "8") "}", 8, "whole numbers"},
    {"{" T("a", "F32", "[\"2\"]", "0", "8") "}", 8, "whole numbers"},
    {"{" T("a", "F32", "{}", "0", "8") "}", 8, "not a list"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, "too large"},
    {"{" T("a", "F64", "[4611686018427387904]", "0", "0") "}", 0, "too large"},
    {"{" T("a", "U8", "[9223372036854775807]", "0", "9223372036854775807") "}", 8,
     "reaches beyond"},
    {"{" T("a", "U8", "[2]", "9223372036854775805", "9223372036854775807") "}", 8, "gap"},
    {"{" T("a", "U8", "[2]", "-2", "0") "}", 0, "data_offsets is not"},
    {"{" T("a", "U8", "[99999999999999999999999]", "0", "0") "}", 0, "too big"},
    {"{" T("a", "U8", "[1e2]", "0", "100") "}", 100, "whole numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets is not"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "data_offsets is not"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "keys are not"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "keys are not"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"offsets\":[0,1]}}", 1, "data_offsets is not"},
    {"{\"a\":[]}", 0, "\"a\": not an object"},
    {"{\"a\":null}", 0, "\"a\": not an object"},
    {"{" T("", "U8", "[1]", "0", "1") "}", 1, "not 1 to 127"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" is not a string"},
    {"{\"__metadata__\":[]}", 0, "not an object"},
    {"[]", 0, "not an object"},
    {"", 0, "header at byte"},
    {"{", 0, "header at byte"},
    {"{} {}", 0, "header at byte"},
    {"nul", 0, "header at byte"},
    {"{\"\xff\xfe\":1}", 0, "unable to decode"},
    {"{\"a\xc0\x80\":1}", 0, "unable to decode"},
    {"{\"a\\u0000b\":1}", 0, "header at byte"},
};

TEST(safetensors_hostile_headers_are_refused_by_name) {
    for (size_t i = 0; i < ARRAY_COUNT(headers); i++) {
        struct tensors t = {0};
        struct err e = {0};
        enum brg_status s =
            parse(headers[i].json, strlen(headers[i].json), headers[i].data_bytes, &t, &e);
        if (headers[i].says == NULL) {
            if (s != BRG_OK) fail_msg("%s: %s", headers[i].json, e.text);
        } else if (s != BRG_E_CHECKPOINT || strstr(e.text, headers[i].says) == NULL) {
            fail_msg("%s: %s %s", headers[i].json, status_name(s), e.text);
        }
        tensors_fini(&t);
    }
}

TEST(safetensors_S2_the_table_of_a_failed_parse_is_untouched) {
    struct tensors t = {0};
    struct err e;
    const char *json = "{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[9]", "8", "16") "}";
    assert_int_equal(parse(json, strlen(json), 16, &t, &e), BRG_E_CHECKPOINT);
    assert_null(t.v);
    assert_int_equal(t.count, 0);
    assert_null(t.meta.data);
}

TEST(safetensors_deep_long_and_cut_off_headers) {
    struct tensors t = {0};
    struct err e;
    enum { DEEP = 1 << 20 };
    char *deep = mem_alloc(DEEP + 1, 1);
    memset(deep, '[', DEEP);
    assert_int_equal(parse(deep, DEEP, 0, &t, &e), BRG_E_CHECKPOINT);
    for (size_t i = 0; i + 5 <= DEEP; i += 5) memcpy(deep + i, "{\"a\":", 5);
    assert_int_equal(parse(deep, DEEP, 0, &t, &e), BRG_E_CHECKPOINT);
    mem_free(deep);
    char name[200];
    snprintf(name, sizeof name, "{\"%0150d\":{}}", 1);
    assert_int_equal(parse(name, strlen(name), 0, &t, &e), BRG_E_CHECKPOINT);

    uint8_t file[64] = {0};
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(tensors_parse(file, n, 64, "f", &t, &e), BRG_E_CHECKPOINT);
    }
    const uint64_t lengths[] = {57, 1000, 100000001, (uint64_t)1 << 40, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < ARRAY_COUNT(lengths); i++) {
        put_le64(file, lengths[i]);
        assert_int_equal(tensors_parse(file, sizeof file, sizeof file, "f", &t, &e),
                         BRG_E_CHECKPOINT);
        assert_int_equal(tensors_parse(file, sizeof file, UINT64_MAX, "f", &t, &e),
                         BRG_E_CHECKPOINT);
    }
}

static void sample(struct tensors *t) {
    tensors_add(t, "model.embed_tokens.weight", TENSOR_F32, 2, (const uint64_t[]){100, 8});
    tensors_add(t, "model.\"norm\"\\weight", TENSOR_BF16, 1, (const uint64_t[]){7});
    tensors_add(t, "\xc3\xa9t\xc3\xa9", TENSOR_F64, 0, NULL);
    tensors_add(t, "empty", TENSOR_I64, 3, (const uint64_t[]){4, 0, 2});
    tensors_add(t, "ledger", TENSOR_U8, 1, (const uint64_t[]){13});
    tensors_meta_set(t, "format", "pt");
    tensors_meta_set(t, "model", "{\"hidden_size\": 8, \"a\": \"\\\"\"}");
}

TEST(safetensors_S1_what_is_written_reads_back) {
    struct tensors t = {0}, back = {0};
    struct buf b;
    struct err e;
    char value[64];
    buf_init(&b, 1 << 20);
    sample(&t);
    tensors_meta_set(&t, "format", "beringia"); /* replaces */
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    assert_int_equal(b.bytes_count % 64, 0);
    assert_int_equal(t.data_offset, b.bytes_count);
    assert_int_equal(t.file_bytes, b.bytes_count + 3200 + 14 + 8 + 13);
    if (tensors_parse(b.data, b.bytes_count, t.file_bytes, "f", &back, &e) != BRG_OK)
        fail_msg("%s", e.text);
    assert_int_equal(back.count, t.count);
    for (size_t i = 0; i < t.count; i++) {
        assert_string_equal(back.v[i].name, t.v[i].name);
        assert_int_equal(back.v[i].offset, t.v[i].offset);
        assert_int_equal(back.v[i].bytes, t.v[i].bytes);
        assert_int_equal(back.v[i].type, t.v[i].type);
        assert_int_equal(back.v[i].elements, t.v[i].elements);
        assert_int_equal(back.v[i].dims, t.v[i].dims);
        assert_ptr_equal(tensors_find(&back, t.v[i].name), &back.v[i]);
    }
    assert_null(tensors_find(&back, "none"));
    assert_true(tensors_meta_get(&back, "format", value, sizeof value));
    assert_string_equal(value, "beringia");
    assert_true(tensors_meta_get(&back, "model", value, sizeof value));
    assert_string_equal(value, "{\"hidden_size\": 8, \"a\": \"\\\"\"}");
    assert_false(tensors_meta_get(&back, "model", value, 5));
    assert_false(tensors_meta_get(&back, "none", value, sizeof value));
    struct hash h1 = tensors_hash(&t), h2 = tensors_hash(&back);
    assert_true(hash_equal(&h1, &h2));
    tensors_fini(&t);
    tensors_fini(&back);
    buf_fini(&b);
}

TEST(safetensors_hash_tells_order_name_type_and_shape_apart) {
    struct hash h[6];
    for (size_t i = 0; i < ARRAY_COUNT(h); i++) {
        struct tensors t = {0};
        const uint64_t s23[] = {2, 3}, s32[] = {3, 2}, s6[] = {6};
        tensors_add(&t, i == 1 ? "b" : "a", i == 2 ? TENSOR_BF16 : TENSOR_F32, i == 3 ? 1 : 2,
                    i == 3   ? s6
                    : i == 4 ? s32
                             : s23);
        tensors_add(&t, i == 1 ? "a" : "b", TENSOR_F32, 2, s23);
        if (i == 5) tensors_add(&t, "c", TENSOR_F32, 0, NULL);
        h[i] = tensors_hash(&t);
        for (size_t k = 0; k < i; k++) assert_false(hash_equal(&h[i], &h[k]));
        tensors_fini(&t);
    }
}

TEST(safetensors_many_tensors) {
    struct tensors t = {0}, back = {0};
    struct buf b;
    struct err e;
    buf_init(&b, 100000000);
    for (uint64_t i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%llu.weight", (unsigned long long)i);
        tensors_add(&t, name, TENSOR_F32, 1, &i);
    }
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    assert_int_equal(tensors_parse(b.data, b.bytes_count, t.file_bytes, "f", &back, &e), BRG_OK);
    assert_int_equal(back.count, 5000);
    struct hash h1 = tensors_hash(&t), h2 = tensors_hash(&back);
    assert_true(hash_equal(&h1, &h2));
    tensors_fini(&t);
    tensors_fini(&back);
    buf_fini(&b);
}

static void check_layout(const struct tensors *t) {
    uint64_t at = t->data_offset;
    for (size_t i = 0; i < t->count; i++) {
        assert_true(t->v[i].offset == at);
        assert_true(t->v[i].bytes == t->v[i].elements * tensor_type_bytes(t->v[i].type));
        at += t->v[i].bytes;
    }
    assert_true(at == t->file_bytes);
}

TEST(safetensors_S1_random_mutations_are_refused_or_sound) {
    struct prng r;
    struct tensors t = {0};
    struct buf b;
    struct err e;
    prng_seed(&r, 30);
    buf_init(&b, 1 << 20);
    sample(&t);
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    uint8_t *file = mem_alloc(b.bytes_count + 64, 1);
    size_t accepted = 0;
    for (int round = 0; round < 30000; round++) {
        static const char tokens[] = "0123456789,:[]{}\"- ";
        size_t n = b.bytes_count;
        memcpy(file, b.data, n);
        for (uint64_t k = 1 + prng_below(&r, 4); k > 0; k--) {
            size_t at = 8 * (prng_below(&r, 10) > 0) + prng_below(&r, n - 8);
            switch (prng_below(&r, 4)) {
            case 0: file[at] = (uint8_t)prng_u64(&r); break;
            case 1: file[at] = (uint8_t)tokens[prng_below(&r, sizeof tokens - 1)]; break;
            case 2: memmove(file + at, file + at + 1, n - at - 1); break;
            default: memmove(file + at + 1, file + at, n - at - 1); break;
            }
        }
        struct tensors back = {0};
        if (tensors_parse(file, n, t.file_bytes, "f", &back, &e) == BRG_OK) {
            check_layout(&back);
            accepted++;
        }
        tensors_fini(&back);
    }
    assert_true(accepted > 0); /* the mutations are not all nonsense */
    mem_free(file);
    tensors_fini(&t);
    buf_fini(&b);
}

TEST(safetensors_files) {
    char path[OS_PATH_MAX];
    struct tensors t = {0}, back = {0};
    struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 20);
    os_path(path, test_dir(), "model.safetensors");
    assert_int_equal(tensors_read(path, &back, &e), BRG_E_MISSING);
    assert_int_equal(tensors_read(test_dir(), &back, &e), BRG_E_CHECKPOINT);
    sample(&t);
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    while (b.bytes_count < t.file_bytes) buf_u8(&b, 7);
    assert_int_equal(os_write_file_atomic(path, b.data, b.bytes_count, &e), BRG_OK);
    assert_int_equal(tensors_read(path, &back, &e), BRG_OK);
    assert_int_equal(back.count, t.count);
    tensors_fini(&back);
    for (size_t n = 0; n < b.bytes_count; n += 1 + n / 8) {
        assert_int_equal(os_write_file_atomic(path, b.data, n, &e), BRG_OK);
        assert_int_equal(tensors_read(path, &back, &e), BRG_E_CHECKPOINT);
        assert_non_null(strstr(e.text, "model.safetensors"));
    }
    tensors_fini(&t);
    buf_fini(&b);
}
