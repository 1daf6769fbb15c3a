/* SPDX-License-Identifier: Apache-2.0 */
/* fields.c - the walk over a table of fields, out and in. The decoder trusts nothing: every type is
 * exact, every count and length is bounded before a byte is copied, and the error names the field as a
 * path ("commit.parts[3].done"). Unknown members are ignored: a newer peer may send more. */
#include <stdio.h>
#include <string.h>

#include "wire/json.h"

static void value_put(struct buf *out, const struct field *f, const uint8_t *p);

static void struct_put(struct buf *out, const struct field *fields, const void *base) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, fields, base, &first);
    buf_u8(out, '}');
}

static uint32_t load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load_u64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void list_put(struct buf *out, const struct field *f, const uint8_t *base) {
    uint32_t count = load_u32(base + f->count_offset);
    CHECK(count <= f->max);
    buf_u8(out, '[');
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) buf_u8(out, ',');
        struct_put(out, f->sub, base + f->offset + (size_t)i * f->element_bytes);
    }
    buf_u8(out, ']');
}

static void hex_put(struct buf *out, const uint8_t *p, size_t n) {
    char hex[2 * HASH_BYTES + 1];
    CHECK(n <= HASH_BYTES);
    hex_encode(p, n, hex);
    buf_printf(out, "\"%s\"", hex);
}

static void name_put(struct buf *out, const struct field *f, const uint8_t *p) {
    uint32_t v = load_u32(p);
    CHECK(v < f->max);
    CHECK(f->names[v] != NULL);
    json_put_text(out, f->names[v]);
}

static void value_put(struct buf *out, const struct field *f, const uint8_t *p) {
    double d;
    bool b;
    switch (f->type) {
    case JSON_U32: buf_printf(out, "%u", load_u32(p)); break;
    case JSON_U64:
        CHECK(load_u64(p) <= JSON_NUMBER_MAX);
        buf_printf(out, "%llu", (unsigned long long)load_u64(p));
        break;
    case JSON_HEX64: buf_printf(out, "\"%016llx\"", (unsigned long long)load_u64(p)); break;
    case JSON_F64:
        memcpy(&d, p, sizeof d);
        json_put_f64(out, d);
        break;
    case JSON_BOOL:
        memcpy(&b, p, sizeof b);
        buf_printf(out, "%s", b ? "true" : "false");
        break;
    case JSON_ID: hex_put(out, p, ID_BYTES); break;
    case JSON_HASH: hex_put(out, p, HASH_BYTES); break;
    case JSON_TEXT: json_put_text(out, (const char *)p); break;
    case JSON_NAME: name_put(out, f, p); break;
    case JSON_STRUCT: struct_put(out, f->sub, p); break;
    case JSON_LIST: CHECK(false); break; /* json_fields_put sees to lists */
    }
}

static bool left_out(const struct field *f, const uint8_t *at) {
    static const uint8_t bytes[] = {
        [JSON_U32] = 4,  [JSON_U64] = 8,           [JSON_F64] = 8,
        [JSON_BOOL] = 1, [JSON_HASH] = HASH_BYTES, [JSON_TEXT] = 1 /* its first */};
    if (!f->omitted) return false;
    CHECK(f->type < ARRAY_COUNT(bytes)); /* the other types did not need it so far */
    CHECK(bytes[f->type] > 0);
    for (size_t i = 0; i < bytes[f->type]; i++)
        if (at[i] != 0) return false;
    return true;
}

void json_fields_put(struct buf *out, const struct field *fields, const void *base, bool *first) {
    for (const struct field *f = fields; f->name != NULL; f++) {
        if (left_out(f, (const uint8_t *)base + f->offset)) continue;
        json_key(out, first, f->name);
        if (f->type == JSON_LIST)
            list_put(out, f, base);
        else
            value_put(out, f, (const uint8_t *)base + f->offset);
    }
}

/* ---- In ----------------------------------------------------------------------------------------- */
static enum brg_status wrong(struct err *e, const char *where, const struct field *f,
                             const char *wanted) {
    return err_set(e, BRG_E_MESSAGE, "%s.%s: expected %s", where, f->name, wanted);
}

static bool integer_get(const json_t *v, uint64_t max, uint64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return *out <= max;
}

static bool hex_get(const json_t *v, uint8_t *out, size_t n) {
    const char *s = json_string_value(v);
    if (s == NULL || json_string_length(v) != 2 * n) return false;
    for (const char *c = s; *c != '\0'; c++) { /* one spelling for one value: lower case only */
        if (*c >= 'A' && *c <= 'F') return false;
    }
    return hex_decode(s, out, n);
}

static bool hex64_get(const json_t *v, uint64_t *out) {
    uint8_t b[8];
    if (!hex_get(v, b, sizeof b)) return false;
    *out = 0;
    for (size_t i = 0; i < sizeof b; i++) *out = *out << 8 | b[i];
    return true;
}

static bool text_get(const json_t *v, char *out, size_t cap) {
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (s == NULL || n >= cap || strlen(s) != n) return false;
    memcpy(out, s, n + 1);
    return true;
}

static bool name_get(const json_t *v, const struct field *f, uint32_t *out) {
    const char *s = json_string_value(v);
    for (uint32_t i = 0; s != NULL && i < f->max; i++) {
        if (f->names[i] != NULL && strcmp(f->names[i], s) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

static enum brg_status list_get(const json_t *v, const struct field *f, uint8_t *base,
                                const char *where, struct err *e) {
    if (!json_is_array(v)) return wrong(e, where, f, "an array");
    if (json_array_size(v) > f->max)
        return err_set(e, BRG_E_MESSAGE, "%s.%s: %zu entries, at most %zu are allowed", where,
                       f->name, json_array_size(v), f->max);
    uint32_t count = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < count; i++) {
        char path[96];
        (void)snprintf(path, sizeof path, "%s.%s[%u]", where, f->name, i);
        TRY(json_fields_get(json_array_get(v, i), f->sub,
                            base + f->offset + (size_t)i * f->element_bytes, path, e));
    }
    memcpy(base + f->count_offset, &count, sizeof count);
    return BRG_OK;
}

static enum brg_status number_get(const json_t *v, const struct field *f, uint8_t *p,
                                  const char *where, struct err *e) {
    uint64_t u;
    double d;
    if (f->type == JSON_F64) {
        if (!json_is_number(v) && !json_is_null(v)) return wrong(e, where, f, "a number");
        d = json_number_value(v); /* 0 for null; jansson refuses what overflows a double */
        memcpy(p, &d, sizeof d);
        return BRG_OK;
    }
    if (!integer_get(v, f->type == JSON_U32 ? UINT32_MAX : JSON_NUMBER_MAX, &u))
        return wrong(e, where, f,
                     f->type == JSON_U32 ? "an integer from 0 to 4294967295"
                                         : "an integer from 0 to 2^53");
    if (f->type == JSON_U32) {
        uint32_t u32 = (uint32_t)u;
        memcpy(p, &u32, sizeof u32);
    } else {
        memcpy(p, &u, sizeof u);
    }
    return BRG_OK;
}

static enum brg_status value_get(const json_t *v, const struct field *f, uint8_t *base,
                                 const char *where, struct err *e) {
    uint8_t *p = base + f->offset;
    uint64_t u;
    uint32_t name;
    bool b;
    char path[96];
    switch (f->type) {
    case JSON_U32:
    case JSON_U64:
    case JSON_F64: return number_get(v, f, p, where, e);
    case JSON_HEX64:
        if (!hex64_get(v, &u)) return wrong(e, where, f, "a string of 16 lower-case hex digits");
        memcpy(p, &u, sizeof u);
        return BRG_OK;
    case JSON_BOOL:
        if (!json_is_boolean(v)) return wrong(e, where, f, "true or false");
        b = json_is_true(v);
        memcpy(p, &b, sizeof b);
        return BRG_OK;
    case JSON_ID:
        if (!hex_get(v, p, ID_BYTES)) return wrong(e, where, f, "32 lower-case hex digits");
        return BRG_OK;
    case JSON_HASH:
        if (!hex_get(v, p, HASH_BYTES)) return wrong(e, where, f, "64 lower-case hex digits");
        return BRG_OK;
    case JSON_TEXT:
        if (!text_get(v, (char *)p, f->max))
            return wrong(e, where, f, "a string (or it is too long)");
        return BRG_OK;
    case JSON_NAME:
        if (!name_get(v, f, &name)) return wrong(e, where, f, "one of the known names");
        memcpy(p, &name, sizeof name);
        return BRG_OK;
    case JSON_STRUCT:
        (void)snprintf(path, sizeof path, "%s.%s", where, f->name);
        return json_fields_get(v, f->sub, p, path, e);
    case JSON_LIST: return list_get(v, f, base, where, e);
    }
    return err_set(e, BRG_E_INTERNAL, "%s.%s: unknown field type", where, f->name);
}

enum brg_status json_fields_get(const json_t *object, const struct field *fields, void *base,
                                const char *where, struct err *e) {
    if (!json_is_object(object)) return err_set(e, BRG_E_MESSAGE, "%s: expected an object", where);
    for (const struct field *f = fields; f->name != NULL; f++) {
        const json_t *v = json_object_get(object, f->name);
        if (v == NULL && f->optional) continue;
        if (v == NULL) return err_set(e, BRG_E_MESSAGE, "%s.%s: missing", where, f->name);
        TRY(value_get(v, f, base, where, e));
    }
    return BRG_OK;
}

/* The parser calls itself once a level, on the stack of whoever asked: the depth is bounded before it. What
 * is no JSON may be counted wrongly; the parser refuses that. */
static bool depth_fits(const char *text, size_t n) {
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '[' || c == '{') && ++depth > JSON_DEPTH_MAX)
            return false;
        else if (!quoted && (c == ']' || c == '}') && depth > 0)
            depth--;
    }
    return true;
}

enum brg_status json_object_parse(const void *data, size_t n, size_t bytes_max, json_t **out,
                                  struct err *e) {
    json_error_t at;
    if (n > bytes_max)
        return err_set(e, BRG_E_MESSAGE, "message: %zu bytes, at most %zu are allowed", n,
                       bytes_max);
    if (!depth_fits(data, n))
        return err_set(e, BRG_E_MESSAGE, "message: more than %d levels of lists and objects",
                       JSON_DEPTH_MAX);
    json_t *object = json_loadb(n > 0 ? data : "", n, JSON_REJECT_DUPLICATES, &at);
    if (object == NULL)
        return err_set(e, BRG_E_MESSAGE, "message: not valid JSON at byte %d: %s", at.position,
                       at.text);
    if (!json_is_object(object)) {
        json_decref(object);
        return err_set(e, BRG_E_MESSAGE, "message: expected an object");
    }
    *out = object;
    return BRG_OK;
}
