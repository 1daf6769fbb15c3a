/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_set_os.c - opens the files that together hold a model's tensors. Only headers are read. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os.h"
#include "store/store.h"

enum { INDEX_BYTES_MAX = 64 << 20 };

void tensor_set_fini(struct tensor_set *s) {
    for (size_t i = 0; i < s->files_count; i++) {
        mem_free(s->files[i].path);
        tensors_fini(&s->files[i].table);
    }
    mem_free(s->files);
    *s = (struct tensor_set){0};
}

const struct tensor *tensor_set_find(const struct tensor_set *s, const char *name,
                                     const struct tensor_file **out_file) {
    for (size_t i = 0; i < s->files_count; i++) {
        const struct tensor *t = tensors_find(&s->files[i].table, name);
        if (t == NULL) continue;
        *out_file = &s->files[i];
        return t;
    }
    return NULL;
}

static enum brg_status open_one(struct tensor_set *s, const char *path, struct err *e) {
    struct tensor_file *f = &s->files[s->files_count];
    TRY(tensors_read(path, &f->table, e));
    f->path = mem_strdup(path);
    s->files_count++;
    return BRG_OK;
}

/* The file holds what the index says of it, and nothing else. */
static enum brg_status check_file(const struct tensor_index *x, uint32_t file,
                                  const struct tensor_file *f, const char *index, struct err *e) {
    size_t promised = 0;
    for (size_t i = 0; i < f->table.count; i++) {
        const char *name = f->table.v[i].name;
        const struct tensor_place *p = tensor_index_find(x, name);
        if (p == NULL)
            return err_set(e, BRG_E_CHECKPOINT,
                           "%s: tensor \"%s\" is unknown to %s; the files do not belong together",
                           f->path, name, index);
        if (p->file != file)
            return err_set(e, BRG_E_CHECKPOINT,
                           "%s: tensor \"%s\" is here, and in %s by %s; the files do not belong "
                           "together",
                           f->path, name, x->files[p->file], index);
    }
    for (size_t i = 0; i < x->places_count; i++) promised += x->places[i].file == file;
    for (size_t i = 0; promised != f->table.count && i < x->places_count; i++) {
        const struct tensor_place *p = &x->places[i];
        if (p->file == file && tensors_find(&f->table, p->name) == NULL)
            return err_set(e, BRG_E_CHECKPOINT,
                           "%s: tensor \"%s\" is missing, which %s says is here; copy the file "
                           "again",
                           f->path, p->name, index);
    }
    CHECK(promised == f->table.count);
    return BRG_OK;
}

static enum brg_status open_indexed(struct tensor_set *s, const char *dir, const char *index,
                                    struct err *e) {
    char path[OS_PATH_MAX];
    struct tensor_index x = {0};
    AUTO_BUF struct buf text = {.bytes_max = INDEX_BYTES_MAX};
    TRY(os_read_file(index, INDEX_BYTES_MAX, &text, e));
    TRY(tensor_index_parse(text.data, text.bytes_count, index, &x, e));
    enum brg_status st = BRG_OK;
    s->files = mem_alloc(x.files_count, sizeof *s->files);
    for (size_t i = 0; st == BRG_OK && i < x.files_count; i++) {
        st = open_one(s, os_path(path, dir, "%s", x.files[i]), e);
        if (st == BRG_OK) st = check_file(&x, (uint32_t)i, &s->files[i], index, e);
    }
    tensor_index_fini(&x);
    return st;
}

static enum brg_status open_dir(struct tensor_set *s, const char *dir, struct err *e) {
    char single[OS_PATH_MAX], index[OS_PATH_MAX];
    os_path(single, dir, "model.safetensors");
    os_path(index, dir, "model.safetensors.index.json");
    if (!os_exists(single) && os_exists(index)) return open_indexed(s, dir, index, e);
    if (!os_exists(single))
        return err_set(e, BRG_E_MISSING,
                       "%s: there is neither model.safetensors nor model.safetensors.index.json; "
                       "give the directory of a model with safetensors weights",
                       dir);
    s->files = mem_alloc(1, sizeof *s->files);
    return open_one(s, single, e);
}

enum brg_status tensor_set_open(const char *path, struct tensor_set *out, struct err *e) {
    struct tensor_set s = {0};
    struct stat st;
    enum brg_status status;
    if (stat(path, &st) != 0) return os_errno(e, errno, "open", path);
    if (S_ISDIR(st.st_mode)) {
        status = open_dir(&s, path, e);
    } else {
        s.files = mem_alloc(1, sizeof *s.files);
        status = open_one(&s, path, e);
    }
    if (status == BRG_OK)
        *out = s;
    else
        tensor_set_fini(&s);
    return status;
}
