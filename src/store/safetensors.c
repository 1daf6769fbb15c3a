/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - the header of a safetensors file, both ways. Pure: bytes in, table out.
 *
 *   0  u64 header_bytes, little-endian
 *   8  JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__",
 *      an object of strings; blanks may follow it
 *   8 + header_bytes   data; offsets count from here
 *
 * The reader believes nothing. A file may come from a model hub, from a site's disk or from a
 * fuzzer, and its tensors become one vector whose order everybody must agree on. So every byte of
 * the data belongs to exactly one tensor, and a name that occurs twice, a size that does not
 * follow from shape and type, or a key that is not known refuse the whole file. The error names
 * the tensor, because the person who reads it has three hundred of them.
 *
 * The writer pads the JSON with blanks until the data begins at a multiple of 64 bytes, so that
 * vectors mapped from the file are aligned.
 *
 * Invariants
 *   (S1) tensors of a parsed table lie in file order, without gap or overlap, and end with the file.
 *   (S2) the table of a failed parse is empty. */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

enum { HEADER_BYTES_MAX = 100 * 1000 * 1000, DATA_ALIGN = 64 };
#define META_KEY "__metadata__"

/* ---- Types ----------------------------------------------------------------------------------- */
static const struct {
    enum tensor_type type;
    uint8_t bytes;
    const char *name;
} types[] = {
    {TENSOR_F32, 4, "F32"}, {TENSOR_BF16, 2, "BF16"}, {TENSOR_F16, 2, "F16"}, {TENSOR_U8, 1, "U8"},
    {TENSOR_I64, 8, "I64"}, {TENSOR_I32, 4, "I32"},   {TENSOR_F64, 8, "F64"},
};

size_t tensor_type_bytes(enum tensor_type type) {
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        if (types[i].type == type) return types[i].bytes;
    }
    CHECK(false);
    return 0;
}

const char *tensor_type_name(enum tensor_type type) {
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        if (types[i].type == type) return types[i].name;
    }
    CHECK(false);
    return "";
}

static bool type_parse(const char *name, enum tensor_type *out) {
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        if (strcmp(types[i].name, name) != 0) continue;
        *out = types[i].type;
        return true;
    }
    return false;
}

/* ---- The table ------------------------------------------------------------------------------- */
void tensors_fini(struct tensors *t) {
    mem_free(t->v);
    buf_fini(&t->meta);
    *t = (struct tensors){0};
}

const struct tensor *tensors_find(const struct tensors *t, const char *name) {
    for (size_t i = 0; i < t->count; i++) {
        if (strcmp(t->v[i].name, name) == 0) return &t->v[i];
    }
    return NULL;
}

/* The table grows by doubling; a capacity is not kept, since it follows from the count. */
static struct tensor *table_extend(struct tensors *t) {
    CHECK(t->count < TENSORS_MAX);
    if (t->count == 0) t->v = mem_alloc(16, sizeof *t->v);
    if (t->count >= 16 && (t->count & (t->count - 1)) == 0) {
        t->v = mem_grow(t->v, t->count, 2 * t->count, sizeof *t->v);
    }
    return &t->v[t->count++];
}

void tensors_add(struct tensors *t, const char *name, enum tensor_type type, uint32_t dims,
                 const uint64_t *shape) {
    CHECK(strlen(name) > 0);
    CHECK(strlen(name) < TENSOR_NAME_MAX);
    CHECK(dims <= TENSOR_DIMS_MAX);
    uint64_t elements = 1, bytes = 0;
    for (uint32_t i = 0; i < dims; i++) {
        CHECK(!__builtin_mul_overflow(elements, shape[i], &elements));
    }
    CHECK(!__builtin_mul_overflow(elements, (uint64_t)tensor_type_bytes(type), &bytes));
    uint64_t end = t->count > 0 ? t->v[t->count - 1].offset + t->v[t->count - 1].bytes : 0;
    struct tensor *x = table_extend(t);
    *x = (struct tensor){
        .type = type, .dims = dims, .elements = elements, .offset = end, .bytes = bytes};
    memcpy(x->name, name, strlen(name) + 1);
    for (uint32_t i = 0; i < dims; i++) x->shape[i] = shape[i];
}

struct hash tensors_hash(const struct tensors *t) {
    struct hasher h;
    hasher_init(&h);
    for (size_t i = 0; i < t->count; i++) {
        const struct tensor *x = &t->v[i];
        uint8_t head[3] = {(uint8_t)strlen(x->name), (uint8_t)x->type, (uint8_t)x->dims};
        hasher_update(&h, head, sizeof head);
        hasher_update(&h, x->name, strlen(x->name));
        for (uint32_t k = 0; k < x->dims; k++) {
            uint8_t le[8];
            put_le64(le, x->shape[k]);
            hasher_update(&h, le, sizeof le);
        }
    }
    return hasher_final(&h);
}
static_assert(TENSOR_NAME_MAX <= 256, "a name's length fits one byte of the hash");

/* ---- Metadata -------------------------------------------------------------------------------- */
static json_t *meta_load(const struct tensors *t) {
    json_t *meta = NULL;
    if (t->meta.bytes_count > 0) {
        meta = json_loadb((const char *)t->meta.data, t->meta.bytes_count, 0, NULL);
    }
    return meta != NULL ? meta : json_object();
}

static void meta_store(struct tensors *t, json_t *meta) {
    char *text = json_dumps(meta, JSON_COMPACT);
    CHECK(text != NULL);
    if (t->meta.bytes_max == 0) buf_init(&t->meta, HEADER_BYTES_MAX);
    buf_reset(&t->meta);
    buf_put(&t->meta, text, strlen(text));
    free(text);
    CHECK(!t->meta.overflow);
}

void tensors_meta_set(struct tensors *t, const char *key, const char *value) {
    json_t *meta = meta_load(t);
    CHECK(json_object_set_new(meta, key, json_string(value)) == 0);
    meta_store(t, meta);
    json_decref(meta);
}

bool tensors_meta_get(const struct tensors *t, const char *key, char *out, size_t cap) {
    json_t *meta = meta_load(t);
    const char *value = json_string_value(json_object_get(meta, key));
    bool found = value != NULL && strlen(value) < cap;
    if (found) memcpy(out, value, strlen(value) + 1);
    json_decref(meta);
    return found;
}

/* ---- Writing --------------------------------------------------------------------------------- */
static enum brg_status put_name(struct buf *out, const char *name, struct err *e) {
    json_t *s = json_string(name);
    char *text = s != NULL ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    if (text == NULL) return err_set(e, BRG_E_CHECKPOINT, "tensor name \"%.40s\": not UTF-8", name);
    buf_put(out, text, strlen(text));
    free(text);
    return BRG_OK;
}

static void put_entry(struct buf *out, const struct tensor *x, uint64_t begin) {
    buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", tensor_type_name(x->type));
    for (uint32_t i = 0; i < x->dims; i++) {
        buf_printf(out, "%s%llu", i > 0 ? "," : "", (unsigned long long)x->shape[i]);
    }
    buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
               (unsigned long long)(begin + x->bytes));
}

enum brg_status tensors_header(struct tensors *t, struct buf *out, struct err *e) {
    buf_reset(out);
    buf_u64(out, 0); /* the length, known at the end */
    buf_put(out, "{", 1);
    bool meta = t->meta.bytes_count > 2; /* more than {} */
    if (meta) {
        buf_printf(out, "\"" META_KEY "\":");
        buf_put(out, t->meta.data, t->meta.bytes_count);
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (i > 0 || meta) buf_put(out, ",", 1);
        TRY(put_name(out, t->v[i].name, e));
        put_entry(out, &t->v[i], begin);
        CHECK(!__builtin_add_overflow(begin, t->v[i].bytes, &begin));
    }
    buf_put(out, "}", 1);
    while (!out->overflow && out->bytes_count % DATA_ALIGN != 0) buf_put(out, " ", 1);
    if (out->overflow || out->bytes_count > HEADER_BYTES_MAX) {
        return err_set(e, BRG_E_LIMIT, "safetensors header of %zu tensors is too long", t->count);
    }
    put_le64(out->data, out->bytes_count - 8);
    t->data_offset = out->bytes_count;
    uint64_t at = t->data_offset;
    for (size_t i = 0; i < t->count; i++) {
        t->v[i].offset = at;
        at += t->v[i].bytes;
    }
    t->file_bytes = at;
    return BRG_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */
static enum brg_status bad(struct err *e, const char *path, const char *name, const char *what) {
    return err_set(e, BRG_E_CHECKPOINT,
                   "%s: tensor \"%s\": %s; the file is damaged or not safetensors", path, name,
                   what);
}

static bool get_size(const json_t *j, uint64_t *out) {
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

static enum brg_status parse_shape(const json_t *shape, const char *path, struct tensor *x,
                                   struct err *e) {
    if (!json_is_array(shape)) return bad(e, path, x->name, "shape is not a list");
    size_t dims = json_array_size(shape);
    if (dims > TENSOR_DIMS_MAX) return bad(e, path, x->name, "more than 4 dimensions");
    x->dims = (uint32_t)dims;
    x->elements = 1;
    for (size_t i = 0; i < dims; i++) {
        if (!get_size(json_array_get(shape, i), &x->shape[i])) {
            return bad(e, path, x->name, "shape holds something else than whole numbers");
        }
        if (__builtin_mul_overflow(x->elements, x->shape[i], &x->elements)) {
            return bad(e, path, x->name, "shape is too large");
        }
    }
    return BRG_OK;
}

/* Fills x; x->offset still counts from the data's first byte. */
static enum brg_status parse_entry(const char *name, json_t *entry, const char *path,
                                   struct tensor *x, struct err *e) {
    size_t name_bytes = strlen(name);
    if (name_bytes == 0 || name_bytes >= TENSOR_NAME_MAX) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: tensor name \"%.40s\": not 1 to %d bytes long",
                       path, name, TENSOR_NAME_MAX - 1);
    }
    memcpy(x->name, name, name_bytes + 1);
    if (!json_is_object(entry)) return bad(e, path, name, "not an object");
    if (json_object_size(entry) != 3)
        return bad(e, path, name, "keys are not dtype, shape, data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == NULL || !type_parse(dtype, &x->type)) return bad(e, path, name, "unknown dtype");
    TRY(parse_shape(json_object_get(entry, "shape"), path, x, e));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || !get_size(json_array_get(offsets, 0), &begin) ||
        !get_size(json_array_get(offsets, 1), &end)) {
        return bad(e, path, name, "data_offsets is not [begin, end]");
    }
    if (__builtin_mul_overflow(x->elements, (uint64_t)tensor_type_bytes(x->type), &x->bytes)) {
        return bad(e, path, name, "shape is too large");
    }
    if (end < begin || end - begin != x->bytes) {
        return bad(e, path, name, "data_offsets do not fit shape and dtype");
    }
    x->offset = begin;
    return BRG_OK;
}

static enum brg_status parse_meta(json_t *meta, const char *path, struct tensors *t,
                                  struct err *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(meta)) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: " META_KEY " is not an object", path);
    }
    json_object_foreach(meta, key, value) {
        if (!json_is_string(value)) {
            return err_set(e, BRG_E_CHECKPOINT, "%s: " META_KEY ": \"%.40s\" is not a string", path,
                           key);
        }
    }
    meta_store(t, meta);
    return BRG_OK;
}

/* By place in the file; of those without bytes, by name, so that the order is never open. */
static int by_offset(const void *pa, const void *pb) {
    const struct tensor *a = pa, *b = pb;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static enum brg_status check_cover(struct tensors *t, const char *path, struct err *e) {
    uint64_t at = 0, data_bytes = t->file_bytes - t->data_offset;
    if (t->count > 1) qsort(t->v, t->count, sizeof *t->v, by_offset);
    for (size_t i = 0; i < t->count; i++) {
        struct tensor *x = &t->v[i];
        if (x->offset < at) return bad(e, path, x->name, "overlaps the tensor before it");
        if (x->offset > at) return bad(e, path, x->name, "there is a gap before it");
        if (x->bytes > data_bytes - at)
            return bad(e, path, x->name, "reaches beyond the end of the file");
        at += x->bytes;
        x->offset += t->data_offset;
    }
    if (at != data_bytes) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: %llu bytes after the last tensor", path,
                       (unsigned long long)(data_bytes - at));
    }
    return BRG_OK;
}

static enum brg_status parse_root(json_t *root, const char *path, struct tensors *t,
                                  struct err *e) {
    const char *name;
    json_t *entry;
    if (!json_is_object(root))
        return err_set(e, BRG_E_CHECKPOINT, "%s: header is not an object", path);
    if (json_object_size(root) > TENSORS_MAX) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: more than %d tensors", path, TENSORS_MAX);
    }
    json_object_foreach(root, name, entry) {
        if (strcmp(name, META_KEY) == 0) {
            TRY(parse_meta(entry, path, t, e));
            continue;
        }
        TRY(parse_entry(name, entry, path, table_extend(t), e));
    }
    return check_cover(t, path, e);
}

/* The last string that ends before json[at], without its quotes; cut where it is long. */
static void last_string(const char *json, size_t at, char out[TENSOR_NAME_MAX]) {
    size_t end = at, begin, n = 0;
    while (end > 0 && json[end - 1] != '"') end--;
    begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && json[begin - 1] != '"') begin--;
    for (size_t i = begin; i + 1 < end && n + 1 < TENSOR_NAME_MAX; i++)
        out[n++] = (unsigned char)json[i] < 0x20 ? '?' : json[i];
    out[n] = '\0';
}

enum brg_status tensors_parse(const void *data, size_t n, uint64_t file_bytes, const char *path,
                              struct tensors *out, struct err *e) {
    if (n < 8 || file_bytes < 8) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: shorter than a safetensors header", path);
    }
    uint64_t header = get_le64(data);
    if (header > HEADER_BYTES_MAX || header > n - 8 || header > file_bytes - 8) {
        return err_set(
            e, BRG_E_CHECKPOINT,
            "%s: header of %llu bytes does not fit the file; it is cut off or not safetensors",
            path, (unsigned long long)header);
    }
    json_error_t why;
    json_t *root = json_loadb((const char *)data + 8, (size_t)header, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        char key[TENSOR_NAME_MAX] = "";
        if (json_error_code(&why) == json_error_duplicate_key)
            last_string((const char *)data + 8, (size_t)why.position, key);
        return err_set(e, BRG_E_CHECKPOINT, "%s: header at byte %d: %s%s%s%s", path,
                       8 + why.position, why.text, key[0] ? " \"" : "", key, key[0] ? "\"" : "");
    }
    struct tensors t = {.data_offset = 8 + header, .file_bytes = file_bytes};
    buf_init(&t.meta, HEADER_BYTES_MAX);
    buf_put(&t.meta, "{}", 2);
    enum brg_status s = parse_root(root, path, &t, e);
    json_decref(root);
    if (s != BRG_OK) {
        tensors_fini(&t); /* S2 */
        return s;
    }
    for (size_t i = 1; i < t.count; i++)
        CHECK(t.v[i - 1].offset + t.v[i - 1].bytes == t.v[i].offset); /* S1 */
    *out = t;
    return BRG_OK;
}
