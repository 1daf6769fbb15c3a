/* SPDX-License-Identifier: Apache-2.0 */
/* gguf.c - writes the head of a GGUF file, as llama.cpp's documentation of the format has it
 * (github.com/ggml-org/ggml, docs/gguf.md). Reading is not needed here: llama.cpp does it.
 *
 * Invariants
 *   (G1) offsets are multiples of 32, and a tensor's bytes and padding end where the next one begins. */
#include <string.h>

#include "store/store.h"

enum { VERSION = 3, WORDS_MAX = 1 << 30 };

void gguf_init(struct gguf *g) {
    *g = (struct gguf){0};
    buf_init(&g->pairs, WORDS_MAX);
    buf_init(&g->infos, WORDS_MAX);
}

void gguf_fini(struct gguf *g) {
    buf_fini(&g->pairs);
    buf_fini(&g->infos);
    *g = (struct gguf){0};
}

static void put_text(struct buf *b, const char *text, size_t bytes) {
    buf_u64(b, bytes);
    buf_put(b, text, bytes);
}

static void put_key(struct gguf *g, const char *key, enum gguf_type type) {
    put_text(&g->pairs, key, strlen(key));
    buf_u32(&g->pairs, type);
    g->pairs_count++;
}

void gguf_put_u32(struct gguf *g, const char *key, uint32_t v) {
    put_key(g, key, GGUF_U32);
    buf_u32(&g->pairs, v);
}

void gguf_put_f32(struct gguf *g, const char *key, float v) {
    put_key(g, key, GGUF_F32);
    buf_f32(&g->pairs, v);
}

void gguf_put_bool(struct gguf *g, const char *key, bool v) {
    put_key(g, key, GGUF_BOOL);
    buf_u8(&g->pairs, v);
}

void gguf_put_string(struct gguf *g, const char *key, const char *text, size_t bytes) {
    put_key(g, key, GGUF_STRING);
    put_text(&g->pairs, text, bytes);
}

void gguf_put_list(struct gguf *g, const char *key, enum gguf_type element, uint64_t count) {
    enum { LIST = 9 };
    put_text(&g->pairs, key, strlen(key));
    buf_u32(&g->pairs, LIST);
    buf_u32(&g->pairs, element);
    buf_u64(&g->pairs, count);
    g->pairs_count++;
}

void gguf_element_string(struct gguf *g, const char *text, size_t bytes) {
    put_text(&g->pairs, text, bytes);
}

void gguf_element_i32(struct gguf *g, int32_t v) {
    buf_u32(&g->pairs, (uint32_t)v);
}

static uint32_t tensor_number(enum tensor_type type) {
    CHECK(tensor_type_is_float(type));
    return type == TENSOR_F32 ? 0 : type == TENSOR_F16 ? 1 : 30;
}

size_t gguf_padding(uint64_t bytes) {
    return (size_t)((GGUF_ALIGN - bytes % GGUF_ALIGN) % GGUF_ALIGN);
}

void gguf_tensor(struct gguf *g, const char *name, enum tensor_type type, uint32_t dims,
                 const uint64_t *shape) {
    uint64_t bytes = tensor_type_bytes(type);
    CHECK(dims > 0);
    put_text(&g->infos, name, strlen(name));
    buf_u32(&g->infos, dims);
    for (uint32_t i = dims; i-- > 0;) {
        buf_u64(&g->infos, shape[i]);
        CHECK(!__builtin_mul_overflow(bytes, shape[i], &bytes));
    }
    buf_u32(&g->infos, tensor_number(type));
    buf_u64(&g->infos, g->data_bytes);
    CHECK(g->data_bytes % GGUF_ALIGN == 0); /* G1 */
    g->data_bytes += bytes + gguf_padding(bytes);
    g->tensors_count++;
}

enum brg_status gguf_header(const struct gguf *g, struct buf *out, struct err *e) {
    buf_reset(out);
    buf_put(out, "GGUF", 4);
    buf_u32(out, VERSION);
    buf_u64(out, g->tensors_count);
    buf_u64(out, g->pairs_count);
    buf_put(out, g->pairs.data, g->pairs.bytes_count);
    buf_put(out, g->infos.data, g->infos.bytes_count);
    static const uint8_t zeros[GGUF_ALIGN];
    buf_put(out, zeros, gguf_padding(out->bytes_count));
    if (out->overflow || g->pairs.overflow || g->infos.overflow)
        return err_set(e, BRG_E_LIMIT, "the vocabulary is too large for a GGUF file");
    return BRG_OK;
}
