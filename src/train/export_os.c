/* SPDX-License-Identifier: Apache-2.0 */
/* export_os.c - streams weights from a set of tensors into the files of an exported model.
 *
 *   set --weights_read--> piece of f32 --tensor_encode--> file      a piece has WEIGHTS_PIECE elements
 *                              '--------> SHA-256 of theta
 *
 * A run's checkpoint names the hash of its parameters. They pass here in the same order, so the hash is
 * taken on the way, and a damaged checkpoint is refused before anybody takes the copy for a model. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "train/export.h"
#include "train/model_os.h"

struct stream {
    struct export *x;
    struct weights_reader reader;
    struct hasher theta;
    float *f32;
    uint8_t *raw;
    int fd; /* of the file that is written; -1 between files */
    char path[OS_PATH_MAX];
};

static void stream_init(struct stream *s, struct export *x) {
    *s = (struct stream){.x = x, .fd = -1};
    weights_reader_init(&s->reader);
    hasher_init(&s->theta);
    s->f32 = mem_alloc(WEIGHTS_PIECE, sizeof *s->f32);
    s->raw = mem_alloc(WEIGHTS_PIECE, 4);
}

static void stream_fini(struct stream *s) {
    weights_reader_fini(&s->reader);
    mem_free(s->f32);
    mem_free(s->raw);
    if (s->fd >= 0) close(s->fd);
}

static enum brg_status begin_file(struct stream *s, const char *path, const struct buf *head,
                                  struct err *e) {
    (void)snprintf(s->path, sizeof s->path, "%s", path);
    s->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd < 0) return os_errno(e, errno, "create", path);
    s->x->files_count++;
    return os_write_all(s->fd, head->data, head->bytes_count, path, e);
}

static enum brg_status end_file(struct stream *s, struct err *e) {
    if (fsync(s->fd) != 0) return os_errno(e, errno, "fsync", s->path);
    int closed = close(s->fd); /* network file systems report a full disk as late as here */
    s->fd = -1;
    return closed == 0 ? BRG_OK : os_errno(e, errno, "close", s->path);
}

static enum brg_status write_piece(struct stream *s, const struct tensor *t, enum tensor_type type,
                                   uint64_t at, size_t n, struct err *e) {
    size_t width = tensor_type_bytes(type);
    CHECK(tensor_encode(TENSOR_F32, s->f32, n, s->raw) == n);
    hasher_update(&s->theta, s->raw, 4 * n);
    size_t fit = tensor_encode(type, s->f32, n, s->raw);
    if (fit < n)
        return err_set(e, BRG_E_NONFINITE,
                       "tensor %s: element %llu is %g, which %s cannot hold: export as f32 or bf16",
                       t->name, (unsigned long long)(at + fit), (double)s->f32[fit],
                       tensor_type_name(type));
    s->x->data_bytes += n * width;
    return os_write_all(s->fd, s->raw, n * width, s->path, e);
}

static enum brg_status write_tensor(struct stream *s, const struct tensor *want,
                                    enum tensor_type type, struct err *e) {
    const struct tensor_file *f;
    const struct tensor *t = tensor_set_find(s->x->set, want->name, &f);
    CHECK(t != NULL); /* the caller has checked the set */
    for (uint64_t at = 0; at < t->elements; at += WEIGHTS_PIECE) {
        size_t n = t->elements - at < WEIGHTS_PIECE ? (size_t)(t->elements - at) : WEIGHTS_PIECE;
        TRY(weights_read(&s->reader, f, t, at, n, s->f32, e));
        TRY(write_piece(s, t, type, at, n, e));
    }
    return BRG_OK;
}

static enum brg_status check_theta(struct stream *s, struct err *e) {
    const struct tensor_file *f = &s->x->set->files[0];
    char text[HASH_HEX_BYTES];
    struct hash want;
    if (s->x->set->files_count != 1 ||
        !tensors_meta_get(&f->table, "theta_sha256", text, sizeof text) ||
        !hex_decode(text, want.v, HASH_BYTES))
        return BRG_OK; /* no checkpoint of a run */
    struct hash is = hasher_final(&s->theta);
    if (!hash_equal(&is, &want))
        return err_set(e, BRG_E_CORRUPT,
                       "%s: the weights do not match the checkpoint's theta_sha256: the file is "
                       "damaged, take a copy of it or another version",
                       f->path);
    s->x->verified = true;
    return BRG_OK;
}

/* ---- Hugging Face ---------------------------------------------------------------------------- */
/* The number of the file that each tensor goes to; gives how many files there are. */
static uint32_t plan_shards(const struct export *x, uint32_t *file) {
    uint64_t bytes = 0;
    uint32_t files = 1;
    for (size_t i = 0; i < x->table->count; i++) {
        uint64_t more = x->table->v[i].elements * tensor_type_bytes(x->type);
        if (bytes > 0 && (bytes > x->shard_bytes || more > x->shard_bytes - bytes)) {
            files++;
            bytes = 0;
        }
        bytes += more;
        file[i] = files - 1;
    }
    return files;
}

static void shard_file(uint32_t file, uint32_t files, char out[TENSOR_NAME_MAX]) {
    if (files == 1)
        (void)snprintf(out, TENSOR_NAME_MAX, "model.safetensors");
    else
        (void)snprintf(out, TENSOR_NAME_MAX, "model-%05u-of-%05u.safetensors", file + 1, files);
}

static enum brg_status write_shard(struct stream *s, const char *path, const uint32_t *file,
                                   uint32_t number, struct err *e) {
    const struct export *x = s->x;
    struct tensors t = {0};
    AUTO_BUF struct buf head = {.bytes_max = (size_t)1 << 28};
    tensors_meta_set(&t, "format", "pt");
    if (x->version != NULL) tensors_meta_set(&t, "beringia_version", x->version);
    for (size_t i = 0; i < x->table->count; i++) {
        const struct tensor *v = &x->table->v[i];
        if (file[i] == number) tensors_add(&t, v->name, x->type, v->dims, v->shape);
    }
    enum brg_status st = tensors_header(&t, &head, e);
    tensors_fini(&t);
    TRY(st);
    TRY(begin_file(s, path, &head, e));
    for (size_t i = 0; i < x->table->count; i++)
        if (file[i] == number) TRY(write_tensor(s, &x->table->v[i], x->type, e));
    return end_file(s, e);
}

static enum brg_status write_index(const struct export *x, const char *dir, const uint32_t *file,
                                   uint32_t files, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text = {.bytes_max = (size_t)1 << 28};
    struct tensor_index index = {.files_count = files, .places_count = x->table->count};
    index.files = mem_alloc(files, sizeof *index.files);
    index.places = mem_alloc(x->table->count, sizeof *index.places);
    for (uint32_t i = 0; i < files; i++) shard_file(i, files, index.files[i]);
    for (size_t i = 0; i < x->table->count; i++) {
        memcpy(index.places[i].name, x->table->v[i].name, TENSOR_NAME_MAX);
        index.places[i].file = file[i];
    }
    tensor_index_print(&index, x->data_bytes, &text);
    tensor_index_fini(&index);
    os_path(path, dir, "model.safetensors.index.json");
    return os_write_file_atomic(path, text.data, text.bytes_count, e);
}

static enum brg_status write_weights(struct stream *s, const char *dir, struct err *e) {
    AUTO_FREE uint32_t *file = mem_alloc(s->x->table->count, sizeof *file);
    uint32_t files = plan_shards(s->x, file);
    if (files > TENSOR_FILES_MAX)
        return err_set(e, BRG_E_LIMIT,
                       "%u shards, where %d are possible: give a larger --shard-size", files,
                       TENSOR_FILES_MAX);
    for (uint32_t i = 0; i < files; i++) {
        char name[TENSOR_NAME_MAX], path[OS_PATH_MAX];
        shard_file(i, files, name);
        TRY(write_shard(s, os_path(path, dir, "%s", name), file, i, e));
    }
    TRY(check_theta(s, e));
    return files > 1 ? write_index(s->x, dir, file, files, e) : BRG_OK;
}

static enum brg_status write_text(const struct export *x, const char *dir, const char *name,
                                  void (*print)(const struct export *, struct buf *),
                                  struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text = {.bytes_max = 1 << 20};
    print(x, &text);
    CHECK(!text.overflow);
    return os_write_file_atomic(os_path(path, dir, "%s", name), text.data, text.bytes_count, e);
}

enum brg_status export_hf(struct export *x, const char *dir, struct err *e) {
    struct stream s;
    stream_init(&s, x);
    enum brg_status st = write_weights(&s, dir, e);
    stream_fini(&s);
    TRY(st);
    if (x->model == NULL) return BRG_OK;
    TRY(write_text(x, dir, "config.json", export_config_json, e));
    TRY(write_text(x, dir, "generation_config.json", export_generation_json, e));
    if (x->words->tokenizer == NULL) return BRG_OK;
    return write_text(x, dir, "tokenizer_config.json", export_tokenizer_config_json, e);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */
/* llama.cpp computes its norms in f32 and wants their weights so. */
static enum tensor_type gguf_type_of(const struct export *x, const struct tensor *t) {
    return t->dims == 1 ? TENSOR_F32 : x->type;
}

static enum brg_status gguf_head(const struct export *x, struct buf *out, struct err *e) {
    struct gguf g;
    gguf_init(&g);
    export_gguf_model(&g, x);
    enum brg_status s = export_gguf_words(&g, x->words, x->model->vocab_size, e);
    for (size_t i = 0; i < x->table->count; i++) {
        const struct tensor *t = &x->table->v[i];
        char name[TENSOR_NAME_MAX];
        export_gguf_name(t->name, name);
        gguf_tensor(&g, name, gguf_type_of(x, t), t->dims, t->shape);
    }
    if (s == BRG_OK) s = gguf_header(&g, out, e);
    gguf_fini(&g);
    return s;
}

static enum brg_status write_gguf(struct stream *s, const char *path, struct err *e) {
    static const uint8_t zeros[GGUF_ALIGN];
    const struct export *x = s->x;
    AUTO_BUF struct buf head = {.bytes_max = (size_t)2 << 30};
    TRY(gguf_head(x, &head, e));
    TRY(begin_file(s, path, &head, e));
    for (size_t i = 0; i < x->table->count; i++) {
        const struct tensor *t = &x->table->v[i];
        enum tensor_type type = gguf_type_of(x, t);
        TRY(write_tensor(s, t, type, e));
        TRY(os_write_all(s->fd, zeros, gguf_padding(t->elements * tensor_type_bytes(type)), path,
                         e));
    }
    TRY(end_file(s, e));
    return check_theta(s, e);
}

enum brg_status export_gguf(struct export *x, const char *path, struct err *e) {
    struct stream s;
    CHECK(x->model != NULL);
    stream_init(&s, x);
    enum brg_status st = write_gguf(&s, path, e);
    stream_fini(&s);
    return st;
}
