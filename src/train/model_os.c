/* SPDX-License-Identifier: Apache-2.0 */
/* model_os.c - a model's files: config.json, and model.safetensors of a Hugging Face directory. */
#include "train/model_os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PIECE = 1 << 16 };

enum brg_status model_config_load(const char *path, struct model_config *out, struct err *e) {
    AUTO_BUF struct buf text = {.bytes_max = CONFIG_BYTES_MAX};
    TRY(os_read_file(path, CONFIG_BYTES_MAX, &text, e));
    return model_config_parse((const char *)text.data, text.bytes_count, path, out, e);
}

static float bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mantissa = h & 0x3ff, exponent = h >> 10 & 0x1f;
    if (exponent == 31) return bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * (1.0f / 16777216.0f); /* a subnormal counts 2^-24 */
    return sign ? -f : f;
}

static void convert(enum tensor_type type, const uint8_t *in, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) {
        if (type == TENSOR_F32)
            out[i] = bits_f32(get_le32(in + 4 * i));
        else if (type == TENSOR_BF16)
            out[i] = bits_f32((uint32_t)in[2 * i] << 16 | (uint32_t)in[2 * i + 1] << 24);
        else
            out[i] = from_f16((uint16_t)(in[2 * i] | in[2 * i + 1] << 8));
    }
}

static enum brg_status read_tensor(int fd, const char *path, const struct tensor *t, float *out,
                                   struct err *e) {
    size_t width = tensor_type_bytes(t->type);
    AUTO_FREE uint8_t *raw = mem_alloc(PIECE, width);
    for (uint64_t at = 0; at < t->elements; at += PIECE) {
        size_t n = t->elements - at < PIECE ? (size_t)(t->elements - at) : PIECE;
        TRY(os_pread_all(fd, raw, n * width, t->offset + at * width, path, e));
        convert(t->type, raw, n, out + at);
    }
    return BRG_OK;
}

static enum brg_status check_tensor(const char *path, const struct tensor *want,
                                    const struct tensor *is, struct err *e) {
    if (!is)
        return err_set(e, BRG_E_MODEL,
                       "%s: tensor %s is missing: take the weights that belong to "
                       "this config.json",
                       path, want->name);
    bool same = is->dims == want->dims;
    for (uint32_t d = 0; same && d < is->dims; d++) same = is->shape[d] == want->shape[d];
    if (!same)
        return err_set(e, BRG_E_MODEL,
                       "%s: tensor %s has %llu elements in %u dimensions, config.json "
                       "asks for %llu in %u: take the weights that belong to it",
                       path, want->name, (unsigned long long)is->elements, is->dims,
                       (unsigned long long)want->elements, want->dims);
    if (is->type != TENSOR_F32 && is->type != TENSOR_BF16 && is->type != TENSOR_F16)
        return err_set(e, BRG_E_MODEL, "%s: tensor %s must be F32, BF16 or F16: convert it", path,
                       want->name);
    return BRG_OK;
}

static bool is_checkpoint_extra(const char *name) {
    return strcmp(name, "outer.m") == 0 || strcmp(name, "ledger") == 0;
}

/* Some exporters write lm_head though it is tied; it then repeats the embedding and is passed over. */
static bool is_tied_head(const struct model_config *c, const char *name) {
    return c->tie_word_embeddings && strcmp(name, "lm_head.weight") == 0;
}

enum brg_status model_load_file(const char *path, const struct model_config *c, float *theta,
                                struct err *e) {
    struct tensors want = {0}, have = {0};
    AUTO_CLOSE int fd = -1;
    enum brg_status s = tensors_read(path, &have, e);
    if (s != BRG_OK) goto fail;
    model_tensors(c, &want);
    for (size_t i = 0; i < have.count; i++) {
        const char *name = have.v[i].name;
        if (!tensors_find(&want, name) && !is_checkpoint_extra(name) && !is_tied_head(c, name)) {
            s = err_set(e, BRG_E_MODEL,
                        "%s: tensor %s is unknown to this config.json: take the "
                        "weights that belong to it",
                        path, name);
            goto fail;
        }
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) s = os_errno(e, errno, "open", path);
    for (size_t i = 0; s == BRG_OK && i < want.count; i++) {
        const struct tensor *is = tensors_find(&have, want.v[i].name);
        s = check_tensor(path, &want.v[i], is, e);
        if (s == BRG_OK) s = read_tensor(fd, path, is, theta, e);
        theta += want.v[i].elements;
    }
fail:
    tensors_fini(&want);
    tensors_fini(&have);
    return s;
}

enum brg_status model_load_weights(const char *dir, const struct model_config *c, float *theta,
                                   struct err *e) {
    char path[OS_PATH_MAX];
    return model_load_file(os_path(path, dir, "model.safetensors"), c, theta, e);
}

static enum brg_status write_weights(int fd, const char *path, const struct buf *head,
                                     const float *theta, uint64_t P, struct err *e) {
    AUTO_FREE uint8_t *raw = mem_alloc(PIECE, 4);
    TRY(os_write_all(fd, head->data, head->bytes_count, path, e));
    for (uint64_t at = 0; at < P; at += PIECE) {
        size_t n = P - at < PIECE ? (size_t)(P - at) : PIECE;
        for (size_t i = 0; i < n; i++) {
            uint32_t u;
            memcpy(&u, theta + at + i, sizeof u);
            put_le32(raw + 4 * i, u);
        }
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
