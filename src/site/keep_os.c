/* SPDX-License-Identifier: Apache-2.0 */
/* keep_os.c - the books of a moment, for a trainer that keeps weights and optimizer itself: in memory,
 * with another node. What it brings back must be as good as the local checkpoint, or newer.
 *
 *   0 "BRGKEEP1"   8 u32 incarnation   12 u64 steps   20 u64 version   28 u64 handed in   36 the core
 *
 * Invariants
 *   (K1) a moment is given only while every contribution that it names is a file: what it leans on
 *        outlives the process.
 *   (K2) an older moment than the local checkpoint is refused: what the checkpoint knows to be handed in
 *        would be trained again for nothing. So files are swept away as if there were no moments: one that
 *        leans on what a checkpoint has made needless is older than that checkpoint. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "site/api_os.h"

enum { KEPT_HEADER_BYTES = 36 };
static_assert(KEPT_HEADER_BYTES + SITE_CORE_BYTES_MAX <= BRG_KEPT_BYTES_MAX, "room for all of it");
static const char magic[8] = {'B', 'R', 'G', 'K', 'E', 'E', 'P', '1'};

static int say(struct brg_site *s, enum brg_status status, const char *text) {
    snprintf(s->why, sizeof s->why, "%s", text);
    return (int)status;
}

/* A process that no hub has let in yet goes on with the work of the one before it. */
uint32_t keep_incarnation(const struct brg_site *s) {
    return s->core.inc > 0 ? s->core.inc : s->inc_before;
}

static struct brg_moment moment_of(const struct site_core *c, uint64_t incarnation) {
    return (struct brg_moment){.struct_bytes = sizeof(struct brg_moment),
                               .incarnation = incarnation,
                               .steps = c->steps_total,
                               .version = c->base,
                               .handed_in = c->handed_in};
}

static bool older(const struct brg_moment *a, const struct brg_moment *b) {
    const uint64_t x[] = {a->incarnation, a->steps, a->version, a->handed_in};
    const uint64_t y[] = {b->incarnation, b->steps, b->version, b->handed_in};
    for (size_t i = 0; i < ARRAY_COUNT(x); i++)
        if (x[i] != y[i]) return x[i] < y[i];
    return false;
}

/* ---- Keeping -------------------------------------------------------------------------------------- */

static bool good_moment(const struct site_core *c) {
    if (!c->loaded || c->reset_due) return false;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (c->deltas[i].state == PENDING_CUT) return false; /* K1 */
    return true;
}

int call_keep(struct brg_site *s, void *out, size_t cap, size_t *out_bytes,
              struct brg_moment *out_moment) {
    AUTO_BUF struct buf b = {.bytes_max = KEPT_HEADER_BYTES + SITE_CORE_BYTES_MAX};
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool good = good_moment(&s->core);
    struct brg_moment m = moment_of(&s->core, keep_incarnation(s));
    if (good) {
        buf_put(&b, magic, sizeof magic);
        buf_u32(&b, (uint32_t)m.incarnation);
        buf_u64(&b, m.steps);
        buf_u64(&b, m.version);
        buf_u64(&b, m.handed_in);
        site_save(&s->core, &b);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (!good) return BRG_WAIT;
    CHECK(!b.overflow);
    if (b.bytes_count > cap)
        return say(s, BRG_E_USAGE, "brg_keep: out is smaller than BRG_KEPT_BYTES_MAX");
    memcpy(out, b.data, b.bytes_count);
    *out_bytes = b.bytes_count;
    *out_moment = m;
    return BRG_GO;
}

/* ---- Bringing back -------------------------------------------------------------------------------- */

static enum brg_status parse(const void *data, size_t n, struct brg_moment *out, struct err *e) {
    struct reader r = reader_of(data, n);
    const void *m = get_bytes(&r, sizeof magic);
    struct brg_moment x = {.struct_bytes = sizeof x};
    x.incarnation = get_u32(&r);
    x.steps = get_u64(&r);
    x.version = get_u64(&r);
    x.handed_in = get_u64(&r);
    if (!m || !r.ok || memcmp(m, magic, sizeof magic) != 0)
        return err_set(e, BRG_E_CHECKPOINT, "these are no bytes of brg_keep");
    *out = x;
    return BRG_OK;
}

/* Of the local checkpoint; E_MISSING where there is none that could be read. */
static enum brg_status moment_on_disk(const struct brg_site *s, struct brg_moment *out,
                                      struct err *e) {
    char path[OS_PATH_MAX], text[24] = "0";
    uint64_t inc = 0;
    os_path(path, s->dir, "checkpoint.safetensors");
    if (!os_exists(path)) return err_set(e, BRG_E_MISSING, "no local checkpoint");
    struct tensors t = {0};
    struct site_core *c = mem_alloc(1, sizeof *c);
    enum brg_status status = tensors_read(path, &t, e);
    const struct tensor *x = status == BRG_OK ? tensors_find(&t, "core") : NULL;
    if (!x || x->bytes > SITE_CORE_BYTES_MAX)
        status = err_set(e, BRG_E_MISSING, "the local checkpoint cannot be read");
    if (status == BRG_OK) {
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        AUTO_FREE uint8_t *bytes = mem_alloc(x->bytes + 1, 1);
        status = fd < 0 ? os_errno(e, errno, "opening", path)
                        : os_pread_all(fd, bytes, x->bytes, x->offset, path, e);
        *c = s->core;
        if (status == BRG_OK) status = site_load(c, bytes, x->bytes, e);
    }
    if (status == BRG_OK) {
        tensors_meta_get(&t, "inc", text, sizeof text); /* older ones do not say it */
        if (!parse_u64(text, &inc)) inc = 0;
        *out = moment_of(c, inc);
    }
    tensors_fini(&t);
    mem_free(c);
    return status;
}

/* Loads the moment's core into s->core, which was just begun. */
static enum brg_status load(struct brg_site *s, const void *kept, size_t n, struct err *e) {
    struct brg_moment m;
    TRY(parse(kept, n, &m, e));
    TRY(site_load(&s->core, (const uint8_t *)kept + KEPT_HEADER_BYTES, n - KEPT_HEADER_BYTES, e));
    s->inc_before = (uint32_t)m.incarnation;
    return BRG_OK;
}

static enum brg_status examine(struct brg_site *s, const void *kept, size_t n, struct err *e) {
    struct brg_moment mine, disk = {0};
    struct err why = {0};
    TRY(parse(kept, n, &mine, e));
    site_core_begin(s);
    bool there = moment_on_disk(s, &disk, &why) == BRG_OK;
    if (there && older(&mine, &disk)) /* K2 */
        return err_set(e, BRG_E_CHECKPOINT,
                       "the local checkpoint is newer (incarnation %" PRIu64 " step %" PRIu64
                       ", this one %" PRIu64 " step %" PRIu64 ")",
                       disk.incarnation, disk.steps, mine.incarnation, mine.steps);
    TRY(load(s, kept, n, e));
    return site_files_check(s, e);
}

int call_offer(struct brg_site *s, const void *kept, size_t n) {
    struct err e = {0};
    buf_fini(&s->offer);
    s->offer = (struct buf){0};
    if (s->joined_once) return say(s, BRG_E_USAGE, "brg_offer: comes before brg_join");
    if (n == 0) return BRG_GO;
    /* What brg_join will insist on; its own look at the trainer's tensors comes first there. */
    s->elements = s->run.parameters;
    s->tensors_hash = s->run.tensors;
    enum brg_status status = examine(s, kept, n, &e);
    if (status != BRG_OK) {
        s->inc_before = 0;
        return say(s, status, e.text);
    }
    buf_init(&s->offer, n);
    buf_put(&s->offer, kept, n);
    return BRG_GO;
}

enum brg_status keep_restore(struct brg_site *s, struct err *e) {
    return load(s, s->offer.data, s->offer.bytes_count, e);
}
