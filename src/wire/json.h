/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - structs to JSON and back by tables of fields; and a small JSON writer. Pure.
 *
 * A table names each field of a struct once, with its type, its place and its bounds; the encoder and
 * the strict decoder both walk it, so that neither can forget a field that the other knows. */
#ifndef WIRE_JSON_H
#define WIRE_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Integers beyond 2^53 do not survive every JSON reader (jq 1.6, JavaScript): larger ones are refused;
 * what may be larger travels as a string of 16 hexadecimal digits (JSON_HEX64). */
#define JSON_NUMBER_MAX (UINT64_C(1) << 53)

enum json_type {
    JSON_U32 = 1,
    JSON_U64,   /* 0 .. 2^53 */
    JSON_HEX64, /* "0000000000000001": 16 digits */
    JSON_F64,   /* finite; null stands for unknown and is read as 0 */
    JSON_BOOL,
    JSON_ID,     /* struct id128, 32 digits */
    JSON_HASH,   /* struct hash, 64 digits */
    JSON_TEXT,   /* char[max], NUL-terminated */
    JSON_NAME,   /* an enum by name: names[value]; a NULL or empty entry is not a value */
    JSON_STRUCT, /* an object by `sub` */
    JSON_LIST,   /* an array of objects by `sub`: max elements, count at count_offset (u32) */
};
struct field {
    const char *name;
    enum json_type type;
    bool optional; /* absent: zero */
    bool omitted;  /* a zero is not written: a member that older peers' files do not have */
    size_t offset, count_offset, element_bytes, max;
    const struct field *sub;  /* ends with a field without a name */
    const char *const *names; /* `max` of them */
};
#define FIELD(s, m, t)                                                                             \
    { .name = #m, .type = (t), .offset = offsetof(struct s, m) }
#define FIELD_OPT(s, m, t)                                                                         \
    { .name = #m, .type = (t), .optional = true, .offset = offsetof(struct s, m) }
#define FIELD_OMIT(s, m, t)                                                                        \
    { .name = #m, .type = (t), .optional = true, .omitted = true, .offset = offsetof(struct s, m) }
#define FIELD_TEXT(s, m)                                                                           \
    {                                                                                              \
        .name = #m, .type = JSON_TEXT, .offset = offsetof(struct s, m),                            \
        .max = sizeof(((struct s *)0)->m)                                                          \
    }
#define FIELD_TEXT_OMIT(s, m)                                                                      \
    {                                                                                              \
        .name = #m, .type = JSON_TEXT, .optional = true, .omitted = true,                          \
        .offset = offsetof(struct s, m), .max = sizeof(((struct s *)0)->m)                         \
    }
#define FIELD_NAME(s, m, n)                                                                        \
    {                                                                                              \
        .name = #m, .type = JSON_NAME, .offset = offsetof(struct s, m), .names = (n),              \
        .max = ARRAY_COUNT(n)                                                                      \
    }
#define FIELD_STRUCT(s, m, f)                                                                      \
    { .name = #m, .type = JSON_STRUCT, .offset = offsetof(struct s, m), .sub = (f) }
#define FIELD_LIST(s, m, f)                                                                        \
    {                                                                                              \
        .name = #m, .type = JSON_LIST, .optional = true, .offset = offsetof(struct s, m),          \
        .count_offset = offsetof(struct s, m##_count),                                             \
        .element_bytes = sizeof(((struct s *)0)->m[0]), .max = ARRAY_COUNT(((struct s *)0)->m),    \
        .sub = (f)                                                                                 \
    }
#define FIELD_END                                                                                  \
    { .name = NULL }

/* Writes the fields of *base as members of an object that the caller opened and closes. */
void json_fields_put(struct buf *out, const struct field *fields, const void *base, bool *first);
/* Reads them; *base must be zeroed and is half-filled on failure. where names the object in errors. */
enum brg_status json_fields_get(const json_t *object, const struct field *fields, void *base,
                                const char *where, struct err *e) MUST_USE;
/* Parses bytes into an object; duplicate keys, bad UTF-8, trailing bytes and more than JSON_DEPTH_MAX
 * levels are errors. */
enum { JSON_DEPTH_MAX = 32 };
enum brg_status json_object_parse(const void *data, size_t n, size_t bytes_max, json_t **out,
                                  struct err *e) MUST_USE;

/* ---- The writer: json_key where a member follows (puts the comma), json_put_* for values. -------- */
void json_key(struct buf *out, bool *first, const char *key);
void json_put_text(struct buf *out, const char *text); /* quoted, escaped; bad UTF-8 becomes '?' */
void json_put_f64(struct buf *out, double v); /* shortest that reads back; null if not finite */
void json_member_text(struct buf *out, bool *first, const char *key, const char *text);
void json_member_u64(struct buf *out, bool *first, const char *key, uint64_t v);
void json_member_f64(struct buf *out, bool *first, const char *key, double v);
void json_member_bool(struct buf *out, bool *first, const char *key, bool v);
void json_member_id(struct buf *out, bool *first, const char *key, const struct id128 *v);
void json_member_hash(struct buf *out, bool *first, const char *key, const struct hash *v);

#endif
