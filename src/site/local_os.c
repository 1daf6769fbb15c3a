/* SPDX-License-Identifier: Apache-2.0 */
/* local_os.c - the state directory of a site.
 *
 *   lock                        one process at a time
 *   run.json                    what the hub said of the run, for a start while it is away
 *   checkpoint.safetensors      the local checkpoint (S2): weights, the optimizer's arrays, and the core's
 *                               state, in one file that is renamed into place
 *   outbox/<did>.delta          contributions that are not rebased on yet
 *   outbox/<did>.residual       what they and the one before could not carry, where that is not in the weights
 *   base/                       versions of the run: the one rebased on, and newer ones (base_os.c)
 *
 * The writer works in order, so a contribution's file is durable before a checkpoint that names it. A
 * file is removed only when neither the newest durable checkpoint nor the running core needs it.
 * A checkpoint that is damaged costs local work, never correctness: the site joins afresh, and the
 * hub's fences make sure that its old leases and contributions cannot count twice. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "site/site_os.h"

enum { READ_BYTES = 1 << 20, MOVE_COUNT = 1 << 20 };

void local_delta_path(const struct brg_site *s, const struct id128 *did, char out[OS_PATH_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(did, hex);
    os_path(out, s->dir, "outbox/%s.delta", hex);
}

/* ---- Residuals ----------------------------------------------------------------------------------- */

void local_residual_path(const struct brg_site *s, const struct id128 *did, char out[OS_PATH_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(did, hex);
    os_path(out, s->dir, "outbox/%s.residual", hex);
}

uint64_t local_residual_bytes(const struct brg_site *s) {
    return s->elements * sizeof(float) + 8;
}

void local_residual_seal(const struct brg_site *s, float *residual) {
    struct checksum sum;
    checksum_init(&sum);
    checksum_update(&sum, residual, s->elements * sizeof(float));
    put_le64((uint8_t *)(residual + s->elements), checksum_final(&sum));
}

/* Of the file's bytes [at, end). */
static enum brg_status file_sum(int fd, uint64_t at, uint64_t end, const char *path, uint64_t *out,
                                struct err *e) {
    AUTO_FREE uint8_t *piece = mem_alloc(READ_BYTES, 1);
    struct checksum sum;
    checksum_init(&sum);
    while (at < end) {
        size_t n = end - at < READ_BYTES ? (size_t)(end - at) : READ_BYTES;
        TRY(os_pread_all(fd, piece, n, at, path, e));
        checksum_update(&sum, piece, n);
        at += n;
    }
    *out = checksum_final(&sum);
    return BRG_OK;
}

static enum brg_status residual_check(const struct brg_site *s, const struct id128 *did,
                                      struct err *e) {
    char path[OS_PATH_MAX];
    uint8_t sealed[8];
    uint64_t end = s->elements * sizeof(float), sum;
    local_residual_path(s, did, path);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    TRY(file_sum(fd, 0, end, path, &sum, e));
    TRY(os_pread_all(fd, sealed, sizeof sealed, end, path, e));
    if (get_le64(sealed) != sum)
        return err_set(e, BRG_E_CORRUPT, "%s: does not have its checksum", path);
    return BRG_OK;
}

/* Of all contributions, failed ones too, whose residuals the reset has no use for: a list, with repetitions. */
static uint32_t residuals_of(const struct site_core *c, struct id128 *out) {
    uint32_t n = 0;
    if (residual_named(&c->residual)) out[n++] = c->residual;
    for (uint32_t i = 0; i < c->deltas_count; i++) {
        const struct site_delta *d = &c->deltas[i];
        if (!d->residual) continue;
        out[n++] = d->c.did;
        if (residual_named(&d->residual_before)) out[n++] = d->residual_before;
    }
    return n;
}

enum brg_status local_residuals_check(const struct brg_site *s, struct err *e) {
    struct id128 list[2 * SITE_PENDING_MAX + 1];
    uint32_t n = residuals_of(&s->core, list);
    for (uint32_t i = 0; i < n; i++) TRY(residual_check(s, &list[i], e));
    return BRG_OK;
}

/* ---- The run ------------------------------------------------------------------------------------- */

enum { RUN_BYTES_MAX = 64 * 1024 };

void local_run_write(const struct brg_site *s) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf now = {.bytes_max = RUN_BYTES_MAX};
    AUTO_BUF struct buf kept = {.bytes_max = RUN_BYTES_MAX};
    os_path(path, s->dir, "run.json");
    wire_run_encode(&s->run, &now);
    bool same = os_exists(path) && os_read_file(path, RUN_BYTES_MAX, &kept, &e) == BRG_OK &&
                kept.bytes_count == now.bytes_count &&
                memcmp(kept.data, now.data, now.bytes_count) == 0;
    if (same) return;
    /* Without it the next start waits for the hub, and nothing else: no reason to stop. */
    if (os_write_file_atomic(path, now.data, now.bytes_count, &e) != BRG_OK)
        log_line(LOG_WARN, "site", "run_not_kept", "text=\"%s\"", e.text);
}

static bool tensors_of_run(const struct brg_site *s, const struct tensors *t) {
    char have[64] = "", want[ID_HEX_BYTES];
    tensors_meta_get(t, "run", have, sizeof have);
    id_hex(&s->run.run, want);
    return strcmp(have, want) == 0;
}

/* Of the header alone; brg_join looks at the rest, before anything is trained. */
static enum brg_status checkpoint_of_run(const struct brg_site *s, struct err *e) {
    char path[OS_PATH_MAX];
    os_path(path, s->dir, "checkpoint.safetensors");
    if (!os_exists(path)) return err_set(e, BRG_E_MISSING, "%s: no local checkpoint", path);
    struct tensors t = {0};
    enum brg_status status = tensors_read(path, &t, e);
    if (status == BRG_OK && !tensors_of_run(s, &t))
        status = err_set(e, BRG_E_CHECKPOINT, "%s: of another run than run.json", path);
    tensors_fini(&t);
    return status;
}

enum brg_status local_run_read(struct brg_site *s, struct err *e) {
    char path[OS_PATH_MAX];
    os_path(path, s->dir, "run.json");
    if (!os_exists(path)) return err_set(e, BRG_E_MISSING, "%s: not there", path);
    AUTO_BUF struct buf b = {.bytes_max = RUN_BYTES_MAX};
    TRY(os_read_file(path, RUN_BYTES_MAX, &b, e));
    TRY(wire_run_decode(b.data, b.bytes_count, &s->run, e));
    return checkpoint_of_run(s, e);
}

/* ---- The local checkpoint: layout --------------------------------------------------------------- */

/* Beside the weights, which lie on the stage. */
static uint64_t vectors_count(const struct brg_site *s) {
    uint64_t n = 0;
    for (size_t i = 0; i < s->arrays_count; i++) n += s->arrays[i].count;
    return n;
}

static void layout(const struct brg_site *s, uint64_t core_bytes, struct tensors *t) {
    tensors_add(t, "weights", TENSOR_F32, 1, &s->elements);
    for (size_t i = 0; i < s->arrays_count; i++) {
        char name[80];
        uint64_t count = s->arrays[i].count;
        snprintf(name, sizeof name, "array.%s", s->array_names[i]);
        tensors_add(t, name, TENSOR_F32, 1, &count);
    }
    uint64_t counters = s->counters_count;
    if (counters > 0) tensors_add(t, "counters", TENSOR_I64, 1, &counters);
    tensors_add(t, "core", TENSOR_U8, 1, &core_bytes);
}

/* ---- Writing ------------------------------------------------------------------------------------ */

static void array_get(const struct brg_site *s, size_t i, float *out) {
    const struct brg_array *a = &s->arrays[i];
    if (a->data) {
        memcpy(out, a->data, a->count * sizeof(float));
        return;
    }
    for (uint64_t at = 0; at < a->count; at += MOVE_COUNT) {
        uint64_t n = a->count - at < MOVE_COUNT ? a->count - at : MOVE_COUNT;
        s->move_array(s->move_user, i, at, n, out + at, 0);
    }
}

bool local_checkpoint_begin(struct brg_site *s, struct write_job *job) {
    struct snapshot *k = &s->snap;
    if (k->busy) return false;
    if (!k->vectors) {
        k->vectors = try_mem_alloc(vectors_count(s) + 1, sizeof(float));
        buf_init(&k->core, SITE_CORE_BYTES_MAX);
        if (!k->vectors) {
            log_line(LOG_ERROR, "site", "checkpoint_failed",
                     "text=\"no memory for a snapshot of %" PRIu64 " numbers\"", vectors_count(s));
            return false;
        }
    }
    if (!duty_stage(s)) return false;
    float *at = k->vectors;
    for (size_t i = 0; i < s->arrays_count; at += s->arrays[i].count, i++) array_get(s, i, at);
    for (size_t i = 0; i < s->counters_count; i++) k->counters[i] = s->counters[i];
    buf_reset(&k->core);
    site_save(&s->core, &k->core);
    CHECK(!k->core.overflow);
    k->steps = s->core.steps_total;
    k->base = s->core.base;
    k->inc = keep_incarnation(s);
    k->busy = true;
    job->kind = WRITE_CHECKPOINT;
    job->base_kept = s->core.base;
    for (uint32_t i = 0; i < s->core.deltas_count; i++)
        job->dids[job->dids_count++] = s->core.deltas[i].c.did;
    job->residuals_count = residuals_of(&s->core, job->residuals);
    s->changes_saved = s->changes;
    s->saved_at = os_now();
    duty_queue(s, job);
    return true;
}

static void counters_put(const struct snapshot *k, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++) put_le64(out + 8 * i, k->counters[i]);
}

static void meta_set(const struct brg_site *s, struct tensors *t, const uint8_t *counters) {
    const struct snapshot *k = &s->snap;
    char text[64];
    struct checksum sum;
    checksum_init(&sum);
    checksum_update(&sum, s->stage, s->elements * sizeof(float));
    checksum_update(&sum, k->vectors, vectors_count(s) * sizeof(float));
    checksum_update(&sum, counters, 8 * s->counters_count);
    checksum_update(&sum, k->core.data, k->core.bytes_count);
    tensors_meta_set(t, "format", "beringia-site-1");
    tensors_meta_set(t, "site", s->name);
    id_hex(&s->run.run, text);
    tensors_meta_set(t, "run", text);
    snprintf(text, sizeof text, "%" PRIu64, k->steps);
    tensors_meta_set(t, "steps", text);
    snprintf(text, sizeof text, "%" PRIu64, k->base);
    tensors_meta_set(t, "version", text);
    snprintf(text, sizeof text, "%" PRIu32, k->inc);
    tensors_meta_set(t, "inc", text);
    snprintf(text, sizeof text, "%016" PRIx64, checksum_final(&sum));
    tensors_meta_set(t, "checksum", text);
}

static enum brg_status write_file(struct brg_site *s, const struct tensors *t,
                                  const struct buf *header, const uint8_t *counters,
                                  const char *path, struct err *e) {
    const struct snapshot *k = &s->snap;
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    CHECK(header->bytes_count == t->data_offset);
    TRY(os_write_all(fd, header->data, header->bytes_count, path, e));
    TRY(os_write_all(fd, s->stage, s->elements * sizeof(float), path, e));
    TRY(os_write_all(fd, k->vectors, vectors_count(s) * sizeof(float), path, e));
    TRY(os_write_all(fd, counters, 8 * s->counters_count, path, e));
    TRY(os_write_all(fd, k->core.data, k->core.bytes_count, path, e));
    if (fsync(fd) != 0) return os_errno(e, errno, "syncing", path);
    return BRG_OK;
}

enum brg_status local_checkpoint_write(struct brg_site *s, struct write_job *job, struct err *e) {
    (void)job;
    char path[OS_PATH_MAX], temp[OS_PATH_MAX];
    os_path(path, s->dir, "checkpoint.safetensors");
    os_path(temp, s->dir, "checkpoint.safetensors.tmp");
    time_ns began = os_now();
    uint8_t counters[8 * SITE_COUNTERS_MAX];
    counters_put(&s->snap, s->counters_count, counters);
    struct tensors t = {0};
    layout(s, s->snap.core.bytes_count, &t);
    meta_set(s, &t, counters);
    AUTO_BUF struct buf header = {.bytes_max = 1 << 20};
    enum brg_status status = tensors_header(&t, &header, e);
    if (status == BRG_OK) status = write_file(s, &t, &header, counters, temp, e);
    /* Without its base it would be of no use; where that is gone, the core has another by now. */
    if (status == BRG_OK) status = local_base_sync(s, s->snap.base, e);
    tensors_fini(&t);
    if (status == BRG_OK) status = os_rename_durable(temp, path, e);
    if (status != BRG_OK) {
        remove(temp);
        return status;
    }
    log_line(LOG_DEBUG, "site", "checkpoint", "steps=%" PRIu64 " version=%" PRIu64 " seconds=%.3f",
             s->snap.steps, s->snap.base, (double)(os_now() - began) / NS_PER_S);
    return BRG_OK;
}

/* ---- Reading ------------------------------------------------------------------------------------ */

static enum brg_status find(const struct tensors *t, const char *name, enum tensor_type type,
                            uint64_t elements, const struct tensor **out, struct err *e) {
    const struct tensor *x = tensors_find(t, name);
    if (!x || x->type != type || (elements != UINT64_MAX && x->elements != elements))
        return err_set(e, BRG_E_CHECKPOINT,
                       "the local checkpoint's \"%s\" is missing or of another size", name);
    *out = x;
    return BRG_OK;
}

/* Everything is where this trainer expects it, and the sum over all data is right. */
static enum brg_status verify(const struct brg_site *s, const struct tensors *t, int fd,
                              const char *path, struct err *e) {
    const struct tensor *x = NULL;
    TRY(find(t, "weights", TENSOR_F32, s->elements, &x, e));
    for (size_t i = 0; i < s->arrays_count; i++) {
        char name[80];
        snprintf(name, sizeof name, "array.%s", s->array_names[i]);
        TRY(find(t, name, TENSOR_F32, s->arrays[i].count, &x, e));
    }
    if (s->counters_count > 0) TRY(find(t, "counters", TENSOR_I64, s->counters_count, &x, e));
    TRY(find(t, "core", TENSOR_U8, UINT64_MAX, &x, e));
    if (x->bytes > SITE_CORE_BYTES_MAX || x->offset + x->bytes != t->file_bytes)
        return err_set(e, BRG_E_CHECKPOINT, "the local checkpoint's \"core\" is not at its place");
    char want[32] = "", have[32];
    uint64_t sum;
    tensors_meta_get(t, "checksum", want, sizeof want);
    TRY(file_sum(fd, t->data_offset, t->file_bytes, path, &sum, e));
    snprintf(have, sizeof have, "%016" PRIx64, sum);
    if (strcmp(want, have) != 0)
        return err_set(e, BRG_E_CHECKPOINT,
                       "the local checkpoint's content does not have its checksum");
    return BRG_OK;
}

static enum brg_status array_put(const struct brg_site *s, size_t i, int fd, uint64_t offset,
                                 const char *path, struct err *e) {
    const struct brg_array *a = &s->arrays[i];
    if (a->data) return os_pread_all(fd, a->data, a->count * 4, offset, path, e);
    AUTO_FREE float *piece = mem_alloc(MOVE_COUNT, sizeof *piece);
    for (uint64_t at = 0; at < a->count; at += MOVE_COUNT) {
        uint64_t n = a->count - at < MOVE_COUNT ? a->count - at : MOVE_COUNT;
        TRY(os_pread_all(fd, piece, n * 4, offset + 4 * at, path, e));
        s->move_array(s->move_user, i, at, n, piece, 1);
    }
    return BRG_OK;
}

static enum brg_status restore(struct brg_site *s, const struct tensors *t, int fd,
                               const char *path, struct err *e) {
    const struct tensor *core = tensors_find(t, "core");
    AUTO_FREE uint8_t *bytes = mem_alloc(core->bytes + 1, 1);
    TRY(os_pread_all(fd, bytes, core->bytes, core->offset, path, e));
    TRY(site_load(&s->core, bytes, core->bytes, e));
    uint64_t at = t->data_offset;
    TRY(os_pread_all(fd, s->theta, s->elements * 4, at, path, e));
    at += s->elements * 4;
    const struct tensor *old = tensors_find(t, "subtraction_base"); /* of versions before 0.3 */
    if (old) at += old->bytes;
    for (size_t i = 0; i < s->arrays_count; at += s->arrays[i].count * 4, i++)
        TRY(array_put(s, i, fd, at, path, e));
    uint8_t counters[8 * SITE_COUNTERS_MAX];
    TRY(os_pread_all(fd, counters, 8 * s->counters_count, at, path, e));
    for (size_t i = 0; i < s->counters_count; i++) s->counters[i] = get_le64(counters + 8 * i);
    return BRG_OK;
}

/* Said before anything else is compared, since another run's model may well have other sizes; and kept, since
 * somebody may only have named the wrong directory. */
static enum brg_status set_aside(const char *path, const struct tensors *t, struct err *e) {
    char run[64] = "", aside[OS_PATH_MAX];
    tensors_meta_get(t, "run", run, sizeof run);
    if (strspn(run, "0123456789abcdef") != strlen(run)) run[0] = '\0';
    if (snprintf(aside, sizeof aside, "%s.of-%.8s", path, run) >= (int)sizeof aside)
        return err_set(e, BRG_E_CHECKPOINT, "%s: of another run", path);
    TRY(os_rename_durable(path, aside, e));
    return err_set(e, BRG_E_CHECKPOINT,
                   "%s: of another run; kept as %s. Give each run and site a state directory of "
                   "its own",
                   path, aside);
}

/* Of the process that wrote it; 0 where it says nothing of it. */
static uint32_t inc_of(const struct tensors *t) {
    char text[24];
    uint64_t inc;
    bool there = tensors_meta_get(t, "inc", text, sizeof text) && parse_u64(text, &inc);
    return there && inc <= UINT32_MAX ? (uint32_t)inc : 0;
}

enum brg_status local_checkpoint_read(struct brg_site *s, struct err *e) {
    char path[OS_PATH_MAX];
    os_path(path, s->dir, "checkpoint.safetensors");
    if (!os_exists(path)) return err_set(e, BRG_E_MISSING, "no local checkpoint");
    struct tensors t = {0};
    enum brg_status status = tensors_read(path, &t, e);
    if (status == BRG_OK && !tensors_of_run(s, &t)) {
        status = set_aside(path, &t, e);
    } else if (status == BRG_OK) {
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        status = fd < 0 ? os_errno(e, errno, "opening", path) : verify(s, &t, fd, path, e);
        if (status == BRG_OK) status = restore(s, &t, fd, path, e);
        if (status == BRG_OK) s->inc_before = inc_of(&t);
    }
    tensors_fini(&t);
    return status;
}

/* ---- Sweeping ------------------------------------------------------------------------------------ */

static bool did_needed(const struct brg_site *s, const struct write_job *k,
                       const struct id128 *did) {
    for (uint32_t i = 0; i < k->dids_count; i++)
        if (id_equal(&k->dids[i], did)) return true;
    for (uint32_t i = 0; i < s->core.deltas_count; i++)
        if (id_equal(&s->core.deltas[i].c.did, did)) return true;
    return false;
}

static bool residual_needed(const struct brg_site *s, const struct write_job *k,
                            const struct id128 *did) {
    struct id128 now[2 * SITE_PENDING_MAX + 1];
    for (uint32_t i = 0; i < k->residuals_count; i++)
        if (id_equal(&k->residuals[i], did)) return true;
    uint32_t n = residuals_of(&s->core, now);
    for (uint32_t i = 0; i < n; i++)
        if (id_equal(&now[i], did)) return true;
    return false;
}

static bool outbox_stale(const struct brg_site *s, const struct write_job *k, const char *name) {
    char hex[ID_HEX_BYTES];
    struct id128 did;
    if (strlen(name) < 32) return false;
    memcpy(hex, name, 32);
    hex[32] = '\0';
    if (!hex_decode(hex, did.v, ID_BYTES)) return false;
    if (strcmp(name + 32, ".delta") == 0) return !did_needed(s, k, &did);
    return strcmp(name + 32, ".residual") == 0 && !residual_needed(s, k, &did);
}

static bool base_stale(const struct brg_site *s, const struct write_job *k, const char *name) {
    char digits[24];
    size_t n = strspn(name, "0123456789");
    uint64_t version;
    bool ours = strncmp(name + n, ".safetensors", 12) == 0 || strncmp(name + n, ".theta", 6) == 0 ||
                strncmp(name + n, ".update", 7) == 0;
    if (n == 0 || n >= sizeof digits || !ours) return false;
    memcpy(digits, name, n);
    digits[n] = '\0';
    if (!parse_u64(digits, &version)) return false;
    uint64_t kept = k->base_kept < s->core.base || !s->core.loaded ? k->base_kept : s->core.base;
    return version < kept;
}

static void sweep_dir(const struct brg_site *s, const struct write_job *k, const char *sub,
                      bool stale(const struct brg_site *, const struct write_job *, const char *)) {
    char path[OS_PATH_MAX];
    DIR *d = opendir(os_path(path, s->dir, "%s", sub));
    if (!d) return;
    for (struct dirent *f = readdir(d); f; f = readdir(d))
        if (stale(s, k, f->d_name)) (void)unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
}

void local_sweep(struct brg_site *s, const struct write_job *checkpoint) {
    sweep_dir(s, checkpoint, "outbox", outbox_stale);
    sweep_dir(s, checkpoint, "base", base_stale);
}
