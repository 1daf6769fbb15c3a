/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - strict reading of JSON objects: no field too many, none missing, none of another type.
 * Inside of the data room. Every error names the file, the field's path and what to do. */
#ifndef DATA_JSON_H
#define DATA_JSON_H

#include <jansson.h>

#include "data/data.h"

/* Where errors are put, and with what: file name, status, and the sentence that says what to do. */
struct json_place {
    const char *file, *remedy;
    enum brg_status status;
    struct err *e;
};

/* A field error: "FILE: PATH.FIELD: text; remedy". path may be "". */
enum brg_status json_bad(const struct json_place *w, const char *path, const char *field,
                         const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Parses; the root must be an object. gives (free with json_decref) */
enum brg_status json_read(const struct json_place *w, const void *data, size_t bytes, json_t **out)
    MUST_USE;
/* The object has no field that is not in names (NULL at the end). */
enum brg_status json_known(const struct json_place *w, const char *path, const json_t *object,
                           const char *const *names) MUST_USE;
enum brg_status json_get(const struct json_place *w, const char *path, const json_t *object,
                         const char *field, json_type type, json_t **out) MUST_USE;
enum brg_status json_get_u64(const struct json_place *w, const char *path, const json_t *object,
                             const char *field, uint64_t max, uint64_t *out) MUST_USE;
/* Borrows from the document; holds no NUL. */
enum brg_status json_get_text(const struct json_place *w, const char *path, const json_t *object,
                              const char *field, const char **out) MUST_USE;
enum brg_status json_get_hash(const struct json_place *w, const char *path, const json_t *object,
                              const char *field, struct hash *out) MUST_USE;
const char *json_type_name(json_type type);
/* Text for people and machines: one space of indentation, a newline at the end. */
void json_write(const json_t *root, struct buf *out);

#endif
