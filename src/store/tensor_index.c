/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_index.c - model.safetensors.index.json: which file of a sharded model holds which tensor.
 *
 * Like the header of a safetensors file it comes from anywhere, so nothing in it is believed: a name
 * that occurs twice, a file name that would lead out of the directory, a key that is not known refuse
 * the whole index. That the files really hold what it says is checked by whoever opens them.
 *
 * Invariants
 *   (X1) places are sorted by name, and no name occurs twice.
 *   (X2) each file of the list is named by a place, and no file occurs twice. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

void tensor_index_fini(struct tensor_index *x) {
    mem_free(x->files);
    mem_free(x->places);
    *x = (struct tensor_index){0};
}

static int by_name(const void *a, const void *b) {
    const struct tensor_place *pa = a, *pb = b;
    return strcmp(pa->name, pb->name);
}

const struct tensor_place *tensor_index_find(const struct tensor_index *x, const char *name) {
    struct tensor_place key = {.file = 0};
    size_t n = strlen(name);
    if (n >= sizeof key.name || x->places_count == 0) return NULL;
    memcpy(key.name, name, n + 1);
    return bsearch(&key, x->places, x->places_count, sizeof key, by_name);
}

/* ---- Reading --------------------------------------------------------------------------------- */
static enum brg_status bad(struct err *e, const char *path, const char *name, const char *what) {
    return err_set(e, BRG_E_CHECKPOINT, "%s: weight_map: \"%.130s\": %s; copy the index again",
                   path, name, what);
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* Neighbours in the map mostly share a file: the last one is looked at first. */
static bool file_number(struct tensor_index *x, const char *name, uint32_t *out) {
    for (size_t i = x->files_count; i-- > 0;) {
        if (strcmp(x->files[i], name) != 0) continue;
        *out = (uint32_t)i;
        return true;
    }
    if (x->files_count == TENSOR_FILES_MAX) return false;
    *out = (uint32_t)x->files_count;
    memcpy(x->files[x->files_count++], name, strlen(name) + 1);
    return true;
}

static enum brg_status read_place(struct tensor_index *x, const char *path, const char *name,
                                  const json_t *value, struct err *e) {
    const char *file = json_string_value(value);
    struct tensor_place *p = &x->places[x->places_count];
    if (strlen(name) == 0 || strlen(name) >= TENSOR_NAME_MAX)
        return bad(e, path, name, "a tensor's name has 1 to 127 bytes");
    if (file == NULL) return bad(e, path, name, "its file is no string");
    if (strlen(file) >= TENSOR_NAME_MAX || strchr(file, '/') != NULL || file[0] == '.' ||
        !ends_with(file, ".safetensors"))
        return bad(e, path, name,
                   "its file is not the name of a .safetensors file in the index's directory");
    if (!file_number(x, file, &p->file)) return bad(e, path, name, "more than 4096 files");
    memcpy(p->name, name, strlen(name) + 1);
    x->places_count++;
    return BRG_OK;
}

static enum brg_status read_map(struct tensor_index *x, const char *path, json_t *root,
                                struct err *e) {
    const char *key;
    json_t *value, *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(e, BRG_E_CHECKPOINT,
                       "%s: weight_map must be an object of tensor and file names", path);
    json_object_foreach(root, key, value) {
        if (strcmp(key, "weight_map") != 0 && strcmp(key, "metadata") != 0)
            return err_set(e, BRG_E_CHECKPOINT,
                           "%s: \"%.60s\" is unknown; an index has metadata and weight_map", path,
                           key);
    }
    size_t count = json_object_size(map);
    if (count > TENSORS_MAX)
        return err_set(e, BRG_E_CHECKPOINT, "%s: weight_map: more than %d tensors", path,
                       TENSORS_MAX);
    x->places = mem_alloc(count, sizeof *x->places);
    x->files = mem_alloc(count < TENSOR_FILES_MAX ? count : TENSOR_FILES_MAX, sizeof *x->files);
    json_object_foreach(map, key, value) TRY(read_place(x, path, key, value, e));
    qsort(x->places, x->places_count, sizeof *x->places, by_name);
    for (size_t i = 1; i < x->places_count; i++)
        CHECK(by_name(&x->places[i - 1], &x->places[i]) < 0); /* X1 */
    CHECK(x->files_count <= x->places_count);                 /* X2 */
    return BRG_OK;
}

enum brg_status tensor_index_parse(const void *data, size_t n, const char *path,
                                   struct tensor_index *out, struct err *e) {
    json_error_t why;
    json_t *root = json_loadb(data, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return err_set(e, BRG_E_CHECKPOINT, "%s: line %d: %s; copy the index again", path, why.line,
                       why.text);
    struct tensor_index x = {0};
    enum brg_status s =
        json_is_object(root)
            ? read_map(&x, path, root, e)
            : err_set(e, BRG_E_CHECKPOINT, "%s: the file must hold one JSON object", path);
    json_decref(root);
    if (s == BRG_OK)
        *out = x;
    else
        tensor_index_fini(&x);
    return s;
}

/* ---- Writing --------------------------------------------------------------------------------- */
void tensor_index_print(const struct tensor_index *x, uint64_t bytes, struct buf *out) {
    json_t *root = json_object(), *map = json_object(), *meta = json_object();
    CHECK(json_object_set_new(meta, "total_size", json_integer((json_int_t)bytes)) == 0);
    CHECK(json_object_set_new(root, "metadata", meta) == 0);
    for (size_t i = 0; i < x->places_count; i++) {
        const struct tensor_place *p = &x->places[i];
        CHECK(json_object_set_new(map, p->name, json_string(x->files[p->file])) == 0);
    }
    CHECK(json_object_set_new(root, "weight_map", map) == 0);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    CHECK(text != NULL);
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}
