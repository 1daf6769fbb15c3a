/* SPDX-License-Identifier: Apache-2.0 */
/* save_os.c - see save.h. Vectors pass through one chunk, because with other ranks the moments are not
 * here as a whole. A rank that fails half-way goes on with what is collective, so that no other rank
 * waits for it; the result is agreed upon at the end.
 * Invariants
 *   (C1) the file under its name is always whole: it is renamed into place when it is durable. */
#include "train/save.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "train/trainer.h"

enum { CHUNK = 1 << 18 };
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "floats are written as they lie in memory");

static const char *const VECTORS[] = {"weights", "adamw.m", "adamw.v"};
enum { VECTORS_COUNT = ARRAY_COUNT(VECTORS) };

struct file {
    int fd;
    char path[OS_PATH_MAX];
    uint64_t at;
    struct hasher hasher;
    enum brg_status status;
    struct err *e;
};

static void put(struct file *f, const void *data, size_t n) {
    if (f->status != BRG_OK) return;
    hasher_update(&f->hasher, data, n);
    f->status = os_pwrite_all(f->fd, data, n, f->at, f->path, f->e);
    f->at += n;
}

static void take(struct file *f, void *data, size_t n) {
    if (f->status == BRG_OK) f->status = os_pread_all(f->fd, data, n, f->at, f->path, f->e);
    f->at += n;
}

static void layout(const struct trainer *t, struct tensors *table) {
    uint64_t P = t->P, bytes = HASH_BYTES;
    for (int i = 0; i < VECTORS_COUNT; i++) tensors_add(table, VECTORS[i], TENSOR_F32, 1, &P);
    tensors_add(table, "sha256", TENSOR_U8, 1, &bytes);
}

static void meta_number(struct tensors *table, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    tensors_meta_set(table, key, text);
}

/* ---- Writing -------------------------------------------------------------------------------------- */

static void begin_file(struct file *f, const struct trainer *t, const struct save_mark *mark,
                       const char *settings) {
    struct tensors table = {0};
    AUTO_BUF struct buf header = {.bytes_max = 1 << 20};
    layout(t, &table);
    tensors_meta_set(&table, "format", "beringia-train-1");
    tensors_meta_set(&table, "settings", settings);
    meta_number(&table, "samples", mark->samples);
    meta_number(&table, "step", mark->step);
    meta_number(&table, "adamw_steps", t->steps);
    f->status = tensors_header(&table, &header, f->e);
    tensors_fini(&table);
    hasher_init(&f->hasher);
    if (f->status != BRG_OK) return;
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) f->status = os_errno(f->e, errno, "create", f->path);
    put(f, header.data, header.bytes_count);
}

static void end_file(struct file *f, const char *path) {
    struct hash h = hasher_final(&f->hasher);
    put(f, h.v, sizeof h.v);
    if (f->status == BRG_OK && fsync(f->fd) != 0)
        f->status = os_errno(f->e, errno, "fsync", f->path);
    if (f->fd >= 0) close(f->fd);
    if (f->status == BRG_OK) f->status = os_rename_durable(f->path, path, f->e); /* C1 */
    if (f->status != BRG_OK && f->fd >= 0) unlink(f->path);
}

enum brg_status save_write(const char *path, struct trainer *t, const struct save_mark *mark,
                           const char *settings, struct err *e) {
    bool writes = dp_rank(t->net) == 0;
    struct file f = {.fd = -1, .e = e};
    CHECK(strlen(settings) < SAVE_SETTINGS_MAX);
    snprintf(f.path, sizeof f.path, "%.4080s.part", path);
    AUTO_FREE float *chunk = mem_alloc(CHUNK, sizeof *chunk);
    if (writes) begin_file(&f, t, mark, settings);
    for (int i = 0; i < VECTORS_COUNT; i++)
        for (size_t at = 0; at < t->P; at += CHUNK) {
            size_t n = t->P - at < CHUNK ? t->P - at : CHUNK;
            if (i > 0) trainer_moment_get(t, i == 1 ? MOMENT_M : MOMENT_V, at, n, chunk);
            if (writes) put(&f, i > 0 ? chunk : t->theta + at, n * sizeof(float));
            if (writes) FAULT("train.save.torn");
        }
    if (writes) end_file(&f, path);
    if (writes) FAULT("train.save.done");
    return dp_agree(t->net, f.status, e);
}

/* ---- Reading -------------------------------------------------------------------------------------- */

/* Names the first line that differs. */
static enum brg_status compare(const char *path, const char *there, const char *here,
                               struct err *e) {
    while (*there && *here) {
        size_t n = strcspn(there, "\n"), m = strcspn(here, "\n");
        if (n != m || memcmp(there, here, n) != 0)
            return err_set(e, BRG_E_CHECKPOINT,
                           "%.300s: was made with %.*s, this command has %.*s: give the same "
                           "options to go on, or --fresh to begin anew",
                           path, (int)(n < 90 ? n : 90), there, (int)(m < 90 ? m : 90), here);
        there += n + (there[n] == '\n');
        here += m + (here[m] == '\n');
    }
    if (*there || *here)
        return err_set(e, BRG_E_CHECKPOINT,
                       "%.300s: was made by another version of this program: finish it with that "
                       "one, or give --fresh to begin anew",
                       path);
    return BRG_OK;
}

static bool meta_get(const struct tensors *table, const char *key, uint64_t *out) {
    char text[24];
    return tensors_meta_get(table, key, text, sizeof text) && parse_u64(text, out);
}

static enum brg_status check_table(const char *path, const struct tensors *is,
                                   const struct trainer *t, struct err *e) {
    struct tensors want = {0};
    layout(t, &want);
    bool same = is->count == want.count;
    for (size_t i = 0; same && i < is->count; i++)
        same = strcmp(is->v[i].name, want.v[i].name) == 0 && is->v[i].type == want.v[i].type &&
               is->v[i].elements == want.v[i].elements;
    tensors_fini(&want);
    if (same) return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT,
                   "%.300s: does not hold the weights and moments of this model: give --fresh to "
                   "begin anew",
                   path);
}

/* Everything before the hash has it. */
static enum brg_status check_hash(struct file *f, const struct tensors *table) {
    uint64_t end = tensors_find(table, "sha256")->offset;
    AUTO_FREE uint8_t *piece = mem_alloc(CHUNK, 1);
    struct hash is, want;
    hasher_init(&f->hasher);
    for (f->at = 0; f->at < end && f->status == BRG_OK;) {
        size_t n = end - f->at < CHUNK ? (size_t)(end - f->at) : CHUNK;
        take(f, piece, n);
        if (f->status == BRG_OK) hasher_update(&f->hasher, piece, n);
    }
    is = hasher_final(&f->hasher);
    take(f, want.v, sizeof want.v);
    TRY(f->status);
    if (hash_equal(&is, &want)) return BRG_OK;
    return err_set(f->e, BRG_E_CORRUPT,
                   "%.300s: its bytes do not have their hash: remove it, or give --fresh", f->path);
}

/* Rank 0: opens, checks all, and leaves the file at the first vector. */
static enum brg_status open_file(struct file *f, const struct trainer *t, const char *settings,
                                 uint64_t marks[3]) {
    struct tensors table = {0};
    AUTO_FREE char *there = mem_alloc(SAVE_SETTINGS_MAX, 1);
    if (!os_exists(f->path)) return err_set(f->e, BRG_E_MISSING, "%s: is not there", f->path);
    enum brg_status s = tensors_read(f->path, &table, f->e);
    if (s != BRG_OK) s = err_set(f->e, BRG_E_CORRUPT, "%.300s: is not whole: remove it", f->path);
    if (s == BRG_OK &&
        (!tensors_meta_get(&table, "settings", there, SAVE_SETTINGS_MAX) ||
         !meta_get(&table, "samples", &marks[0]) || !meta_get(&table, "step", &marks[1]) ||
         !meta_get(&table, "adamw_steps", &marks[2])))
        s = err_set(f->e, BRG_E_CHECKPOINT, "%.300s: is no checkpoint of beringia train", f->path);
    if (s == BRG_OK) s = compare(f->path, there, settings, f->e);
    if (s == BRG_OK) s = check_table(f->path, &table, t, f->e);
    if (s == BRG_OK) {
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
        if (f->fd < 0) s = f->status = os_errno(f->e, errno, "open", f->path);
    }
    if (s == BRG_OK) s = check_hash(f, &table);
    f->at = table.data_offset;
    tensors_fini(&table);
    return s;
}

enum brg_status save_read(const char *path, struct trainer *t, struct save_mark *out,
                          const char *settings, struct err *e) {
    bool reads = dp_rank(t->net) == 0;
    struct file f = {.fd = -1, .e = e};
    uint64_t marks[3] = {0};
    snprintf(f.path, sizeof f.path, "%.4080s", path);
    enum brg_status s = dp_agree(t->net, reads ? open_file(&f, t, settings, marks) : BRG_OK, e);
    AUTO_CLOSE int fd = f.fd;
    TRY(s);
    AUTO_FREE float *chunk = mem_alloc(CHUNK, sizeof *chunk);
    for (int i = 0; i < VECTORS_COUNT; i++)
        for (size_t at = 0; at < t->P; at += CHUNK) {
            size_t n = t->P - at < CHUNK ? t->P - at : CHUNK;
            if (reads) take(&f, i > 0 ? chunk : t->theta + at, n * sizeof(float));
            if (i > 0) trainer_moment_put(t, i == 1 ? MOMENT_M : MOMENT_V, at, n, chunk);
        }
    TRY(dp_agree(t->net, f.status, e));
    trainer_theta_share(t);
    if (t->dp) t->net->bcast(t->net->self, marks, sizeof marks, false);
    out->samples = marks[0];
    out->step = marks[1];
    trainer_steps_set(t, marks[2]);
    return BRG_OK;
}
