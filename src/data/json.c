/* SPDX-License-Identifier: Apache-2.0 */
#include "data/json.h"

#include <stdio.h>
#include <string.h>

enum brg_status json_bad(const struct json_place *w, const char *path, const char *field,
                         const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(w->e, w->status, "%.200s: field %s%s%s: %s; %s", w->file, path,
                   path[0] != 0 && field[0] != 0 ? "." : "", field, text, w->remedy);
}

const char *json_type_name(json_type type) {
    switch (type) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    case JSON_NULL: return "null";
    }
    return "nothing known";
}

enum brg_status json_read(const struct json_place *w, const void *data, size_t bytes,
                          json_t **out) {
    json_error_t error;
    json_t *root = json_loadb(bytes == 0 ? "" : data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return err_set(w->e, w->status, "%.200s: line %d column %d: no valid JSON: %.120s; %s",
                       w->file, error.line, error.column, error.text, w->remedy);
    if (!json_is_object(root)) {
        const char *what = json_type_name(json_typeof(root));
        json_decref(root);
        return err_set(w->e, w->status, "%.200s: an object is wanted, not %s; %s", w->file, what,
                       w->remedy);
    }
    *out = root;
    return BRG_OK;
}

/* Field names from a file go into an error text: short, and without control characters. */
static void safe_name(const char *in, char out[64]) {
    size_t n = 0;
    for (; in[n] != 0 && n < 63; n++) out[n] = in[n] >= ' ' && in[n] < 127 ? in[n] : '?';
    out[n] = 0;
}

enum brg_status json_known(const struct json_place *w, const char *path, const json_t *object,
                           const char *const *names) {
    json_t *o = json_incref((json_t *)(uintptr_t)object); /* the iterator wants it writable */
    enum brg_status s = BRG_OK;
    for (void *i = json_object_iter(o); i != NULL && s == BRG_OK; i = json_object_iter_next(o, i)) {
        const char *key = json_object_iter_key(i);
        size_t k = 0;
        while (names[k] != NULL && strcmp(names[k], key) != 0) k++;
        char safe[64];
        safe_name(key, safe);
        if (names[k] == NULL) s = json_bad(w, path, safe, "is not known to this version");
    }
    json_decref(o);
    return s;
}

enum brg_status json_get(const struct json_place *w, const char *path, const json_t *object,
                         const char *field, json_type type, json_t **out) {
    json_t *v = json_object_get(object, field);
    if (v == NULL) return json_bad(w, path, field, "is missing");
    if (json_typeof(v) != type)
        return json_bad(w, path, field, "is %s where %s is wanted", json_type_name(json_typeof(v)),
                        json_type_name(type));
    *out = v;
    return BRG_OK;
}

enum brg_status json_get_u64(const struct json_place *w, const char *path, const json_t *object,
                             const char *field, uint64_t max, uint64_t *out) {
    json_t *v = NULL;
    TRY(json_get(w, path, object, field, JSON_INTEGER, &v));
    json_int_t n = json_integer_value(v);
    if (n < 0 || (uint64_t)n > max)
        return json_bad(w, path, field, "is %lld where 0..%llu is allowed", (long long)n,
                        (unsigned long long)max);
    *out = (uint64_t)n;
    return BRG_OK;
}

enum brg_status json_get_text(const struct json_place *w, const char *path, const json_t *object,
                              const char *field, const char **out) {
    json_t *v = NULL;
    TRY(json_get(w, path, object, field, JSON_STRING, &v));
    *out = json_string_value(v);
    return BRG_OK;
}

enum brg_status json_get_hash(const struct json_place *w, const char *path, const json_t *object,
                              const char *field, struct hash *out) {
    const char *text;
    struct hash h;
    TRY(json_get_text(w, path, object, field, &text));
    if (!hex_decode(text, h.v, HASH_BYTES))
        return json_bad(w, path, field, "is no SHA-256 of 64 hexadecimal digits");
    *out = h;
    return BRG_OK;
}

static int put_chunk(const char *data, size_t bytes, void *user) {
    buf_put(user, data, bytes);
    return 0;
}

void json_write(const json_t *root, struct buf *out) {
    CHECK(json_dump_callback(root, put_chunk, out, JSON_INDENT(1)) == 0);
    buf_put(out, "\n", 1);
}
