/* SPDX-License-Identifier: Apache-2.0 */
/* model_os.c - a model's files: config.json, and the weights of a Hugging Face directory or a run. */
#include "train/model_os.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PIECE = WEIGHTS_PIECE };

enum brg_status model_config_load(const char *path, struct model_config *out, struct err *e) {
    AUTO_BUF struct buf text = {.bytes_max = CONFIG_BYTES_MAX};
    TRY(os_read_file(path, CONFIG_BYTES_MAX, &text, e));
    return model_config_parse((const char *)text.data, text.bytes_count, path, out, e);
}

/* ---- Reading weights ------------------------------------------------------------------------- */
static enum brg_status check_tensor(const char *path, const struct tensor *want,
                                    const struct tensor *is, struct err *e) {
    bool same = is->dims == want->dims;
    for (uint32_t d = 0; same && d < is->dims; d++) same = is->shape[d] == want->shape[d];
    if (!same)
        return err_set(e, BRG_E_MODEL,
                       "%s: tensor %s has %llu elements in %u dimensions, config.json "
                       "asks for %llu in %u: take the weights that belong to it",
                       path, want->name, (unsigned long long)is->elements, is->dims,
                       (unsigned long long)want->elements, want->dims);
    if (!tensor_type_is_float(is->type))
        return err_set(e, BRG_E_MODEL,
                       "%s: tensor %s is %s; it must be F32, BF16 or F16: convert it", path,
                       want->name, tensor_type_name(is->type));
    return BRG_OK;
}

/* Some exporters write lm_head though it is tied; it then repeats the embedding and is passed over. */
static bool is_tied_head(const struct model_config *c, const char *name) {
    return c->tie_word_embeddings && strcmp(name, "lm_head.weight") == 0;
}

static enum brg_status check_known(const struct tensor_file *f, const struct model_config *c,
                                   const struct tensors *want, struct err *e) {
    for (size_t i = 0; i < f->table.count; i++) {
        const char *name = f->table.v[i].name;
        if (!tensors_find(want, name) && !checkpoint_own_tensor(name) && !is_tied_head(c, name))
            return err_set(e, BRG_E_MODEL,
                           "%s: tensor %s is unknown to this config.json: take the "
                           "weights that belong to it",
                           f->path, name);
    }
    return BRG_OK;
}

enum brg_status model_check_set(const struct tensor_set *s, const struct model_config *c,
                                struct err *e) {
    struct tensors want = {0};
    enum brg_status st = BRG_OK;
    CHECK(s->files_count > 0);
    model_tensors(c, &want);
    for (size_t i = 0; st == BRG_OK && i < s->files_count; i++)
        st = check_known(&s->files[i], c, &want, e);
    for (size_t i = 0; st == BRG_OK && i < want.count; i++) {
        const struct tensor_file *f;
        const struct tensor *is = tensor_set_find(s, want.v[i].name, &f);
        if (is)
            st = check_tensor(f->path, &want.v[i], is, e);
        else
            st = err_set(e, BRG_E_MODEL,
                         "%s%s: tensor %s is missing: take the weights that belong to "
                         "this config.json",
                         s->files[0].path, s->files_count > 1 ? " and the files beside it" : "",
                         want.v[i].name);
    }
    tensors_fini(&want);
    return st;
}

void weights_reader_init(struct weights_reader *r) {
    *r = (struct weights_reader){.fd = -1, .raw = mem_alloc(WEIGHTS_PIECE, 4)};
}

void weights_reader_fini(struct weights_reader *r) {
    if (r->fd >= 0) close(r->fd);
    mem_free(r->raw);
}

enum brg_status weights_read(struct weights_reader *r, const struct tensor_file *f,
                             const struct tensor *t, uint64_t at, size_t n, float *out,
                             struct err *e) {
    size_t width = tensor_type_bytes(t->type);
    CHECK(n <= WEIGHTS_PIECE);
    CHECK(at <= t->elements);
    CHECK(n <= t->elements - at);
    if (r->file != f) {
        if (r->fd >= 0) close(r->fd);
        r->file = f;
        r->fd = open(f->path, O_RDONLY | O_CLOEXEC);
        if (r->fd < 0) return os_errno(e, errno, "open", f->path);
    }
    TRY(os_pread_all(r->fd, r->raw, n * width, t->offset + at * width, f->path, e));
    tensor_decode(t->type, r->raw, n, out);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return err_set(
                e, BRG_E_NONFINITE,
                "%s: tensor %s: element %llu is not finite: the model is broken, take an "
                "older version",
                f->path, t->name, (unsigned long long)(at + i));
    return BRG_OK;
}

static enum brg_status load_set(const struct tensor_set *s, const struct model_config *c,
                                float *theta, struct err *e) {
    struct tensors want = {0};
    struct weights_reader r;
    TRY(model_check_set(s, c, e));
    enum brg_status st = BRG_OK;
    model_tensors(c, &want);
    weights_reader_init(&r);
    for (size_t i = 0; st == BRG_OK && i < want.count; i++) {
        const struct tensor_file *f;
        const struct tensor *t = tensor_set_find(s, want.v[i].name, &f);
        for (uint64_t at = 0; st == BRG_OK && at < t->elements; at += WEIGHTS_PIECE) {
            size_t n = t->elements - at < WEIGHTS_PIECE ? (size_t)(t->elements - at)
                                                        : WEIGHTS_PIECE;
            st = weights_read(&r, f, t, at, n, theta + at, e);
        }
        theta += want.v[i].elements;
    }
    weights_reader_fini(&r);
    tensors_fini(&want);
    return st;
}

enum brg_status model_load_weights(const char *path, const struct model_config *c, float *theta,
                                   struct err *e) {
    struct tensor_set set = {0};
    enum brg_status s = tensor_set_open(path, &set, e);
    if (s == BRG_OK) s = load_set(&set, c, theta, e);
    tensor_set_fini(&set);
    return s;
}

enum brg_status model_load_dir(const char *dir, struct model_config *c, bool given, struct err *e) {
    char path[OS_PATH_MAX];
    struct model_config own;
    os_path(path, dir, "config.json");
    if (given && !os_exists(path)) return BRG_OK;
    TRY(model_config_load(path, &own, e));
    const char *field = given ? model_config_differs(c, &own) : NULL;
    if (field)
        return err_set(e, BRG_E_MODEL,
                       "%s: field %s is not what --model says: leave --model out, or take the "
                       "weights that belong to it",
                       path, field);
    if (!given) *c = own;
    return BRG_OK;
}

/* ---- Writing weights ------------------------------------------------------------------------- */
static enum brg_status write_weights(int fd, const char *path, const struct buf *head,
                                     const float *theta, uint64_t P, struct err *e) {
    AUTO_FREE uint8_t *raw = mem_alloc(PIECE, 4);
    TRY(os_write_all(fd, head->data, head->bytes_count, path, e));
    for (uint64_t at = 0; at < P; at += PIECE) {
        size_t n = P - at < PIECE ? (size_t)(P - at) : PIECE;
        CHECK(tensor_encode(TENSOR_F32, theta + at, n, raw) == n);
        TRY(os_write_all(fd, raw, 4 * n, path, e));
    }
    return fsync(fd) == 0 ? BRG_OK : os_errno(e, errno, "fsync", path);
}

static enum brg_status save_weights(const char *path, const struct model_config *c,
                                    const float *theta, struct err *e) {
    struct tensors table = {0};
    AUTO_BUF struct buf head = {.bytes_max = (size_t)1 << 30};
    char part[OS_PATH_MAX + 8];
    snprintf(part, sizeof part, "%s.part", path);
    model_tensors(c, &table);
    tensors_meta_set(&table, "format", "pt");
    enum brg_status s = tensors_header(&table, &head, e);
    tensors_fini(&table);
    TRY(s);
    AUTO_CLOSE int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "create", part);
    s = write_weights(fd, part, &head, theta, model_parameters(c), e);
    if (s == BRG_OK) s = os_rename_durable(part, path, e);
    if (s != BRG_OK) unlink(part);
    return s;
}

enum brg_status model_save(const char *dir, const struct model_config *c, const float *theta,
                           struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text = {.bytes_max = CONFIG_BYTES_MAX};
    TRY(os_mkdirs(dir, e));
    model_config_json(c, &text);
    TRY(os_write_file_atomic(os_path(path, dir, "config.json"), text.data, text.bytes_count, e));
    return save_weights(os_path(path, dir, "model.safetensors"), c, theta, e);
}
