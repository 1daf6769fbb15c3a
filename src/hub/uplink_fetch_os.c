/* SPDX-License-Identifier: Apache-2.0 */
/* uplink_fetch_os.c - how a version of the parent comes to a region: as a site has it, by the updates that lead from the
 * last one to it (outer.down_codec at the parent), or whole; and with its ledger, which a site does not need.
 * The hash of the weights is in the header of each update and is proved by who reads them (uplink_work_os.c). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hub/uplink_weights_os.h"

enum { CHAIN_MAX = 8, LEDGER_BYTES_MAX = 1 << 30 };

/* ---- Weights in files ------------------------------------------------------------------------------------------ */
void uplink_weights_fini(struct weights *w) {
    if (w->fd >= 0) (void)close(w->fd);
    w->fd = -1;
}

static bool ends_with(const char *path, const char *end) {
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

static enum brg_status header_read(int fd, const char *path, struct update_header *h,
                                   struct err *e) {
    uint8_t bytes[UPDATE_HEADER_BYTES];
    TRY(os_pread_all(fd, bytes, sizeof bytes, 0, path, e));
    if (update_header_decode(bytes, h, e) != BRG_OK) return err_prefix(e, "%s", path);
    return BRG_OK;
}

static enum brg_status alone_open(struct weights *w, struct err *e) {
    struct update_header h;
    TRY(header_read(w->fd, w->path, &h, e));
    w->elements = h.elements;
    w->offset = UPDATE_HEADER_BYTES;
    w->version = h.to;
    w->tokens = h.tokens;
    w->theta = h.theta_to;
    w->run = h.run;
    w->ledger_offset = w->ledger_bytes = 0;
    if (os_file_bytes(w->path) == (int64_t)(w->offset + 4 * w->elements)) return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT, "%s: is cut short", w->path);
}

static enum brg_status whole_open(struct weights *w, struct err *e) {
    struct checkpoint c;
    TRY(checkpoint_open(w->path, &c, e));
    w->elements = c.elements;
    w->offset = c.theta_offset;
    w->version = c.version;
    w->tokens = c.tokens;
    w->theta = c.theta_hash;
    w->run = c.run;
    w->ledger_offset = c.ledger_offset;
    w->ledger_bytes = c.ledger_bytes;
    checkpoint_fini(&c);
    return BRG_OK;
}

enum brg_status uplink_weights_open(struct weights *w, uint64_t elements, struct err *e) {
    w->fd = open(w->path, O_RDONLY | O_CLOEXEC);
    if (w->fd < 0) return os_errno(e, errno, "opening", w->path);
    TRY(ends_with(w->path, ".theta") ? alone_open(w, e) : whole_open(w, e));
    if (w->elements == elements) return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT, "%s: is of another model", w->path);
}

enum brg_status uplink_weights_read(const struct weights *w, uint64_t at, size_t n, float *out,
                                    struct err *e) {
    return os_pread_all(w->fd, out, n * sizeof *out, w->offset + at * sizeof *out, w->path, e);
}

void uplink_version_path(const struct uplink *u, uint64_t version, const char *kind,
                         char out[OS_PATH_MAX]) {
    os_path(out, u->dir, "%" PRIu64 ".%s", version, kind);
}

void uplink_taken_path(struct uplink *u, uint64_t version, char out[OS_PATH_MAX]) {
    struct hub_version_view v = {0};
    uplink_version_path(u, version, "theta", out);
    if (os_exists(out)) return;
    uplink_version_path(u, version, "safetensors", out);
    if (version > 0) return;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    bool there = hub_version_find(u->s->hub, 0, &v);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    if (there) blobs_path(u->s->blobs, &v.checkpoint, out);
}

/* ---- The ledger -------------------------------------------------------------------------------------------------- */
static enum brg_status ledger_of(struct uplink *u, const void *bytes, size_t n, uint64_t version,
                                 const char *path, struct ledger **out, struct err *e) {
    uint64_t found = 0;
    if (ledger_checkpoint_decode(bytes, n, u->run.epochs, out, &found, e) != BRG_OK)
        return err_prefix(e, "%s", path);
    if (found == version) return BRG_OK;
    ledger_destroy(*out);
    *out = NULL;
    return err_set(e, BRG_E_CHECKPOINT, "%s: the ledger is of version %" PRIu64, path, found);
}

static enum brg_status ledger_inside(struct uplink *u, const struct weights *w, struct ledger **out,
                                     struct err *e) {
    if (w->ledger_bytes > LEDGER_BYTES_MAX)
        return err_set(e, BRG_E_CHECKPOINT, "%s: its ledger is too large", w->path);
    AUTO_FREE uint8_t *bytes = mem_alloc(w->ledger_bytes + 1, 1);
    TRY(os_pread_all(w->fd, bytes, w->ledger_bytes, w->ledger_offset, w->path, e));
    return ledger_of(u, bytes, w->ledger_bytes, w->version, w->path, out, e);
}

static enum brg_status ledger_alone(struct uplink *u, uint64_t version, struct ledger **out,
                                    struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, LEDGER_BYTES_MAX);
    uplink_version_path(u, version, "ledger", path);
    TRY(os_read_file(path, LEDGER_BYTES_MAX, &b, e));
    return ledger_of(u, b.data, b.bytes_count, version, path, out, e);
}

/* ---- Updates ------------------------------------------------------------------------------------------------------ */
struct chain { /* newest first */
    struct update_header header[CHAIN_MAX];
    char path[CHAIN_MAX][OS_PATH_MAX];
    int fd[CHAIN_MAX], count;
};

static void chain_fini(struct chain *c) {
    for (int i = 0; i < c->count; i++)
        if (c->fd[i] >= 0) (void)close(c->fd[i]);
}
#define AUTO_CHAIN __attribute__((cleanup(chain_fini)))

/* What is not there is E_MISSING, and leaves no empty file. */
static enum brg_status got(const char *path, enum brg_status s) {
    char part[OS_PATH_MAX + 8];
    if (s == BRG_E_MISSING) {
        (void)snprintf(part, sizeof part, "%s.part", path);
        (void)unlink(part);
    }
    return s;
}

static enum brg_status update_take(const struct uplink *u, uint64_t version, struct chain *c,
                                   struct err *e) {
    int i = c->count++;
    struct update_header *h = &c->header[i];
    const char *path = c->path[i];
    c->fd[i] = open(path, O_RDONLY | O_CLOEXEC);
    if (c->fd[i] < 0) return os_errno(e, errno, "opening", path);
    TRY(header_read(c->fd[i], path, h, e));
    bool follows = i == 0 || (h->to == c->header[i - 1].from &&
                              hash_equal(&h->theta_to, &c->header[i - 1].theta_from));
    int64_t want = (int64_t)(UPDATE_HEADER_BYTES + codec_bytes(h->codec, u->run.parameters));
    if (h->to == version && follows && h->elements == u->run.parameters &&
        id_equal(&h->run, &u->run.run) && os_file_bytes(path) == want)
        return BRG_OK;
    return err_set(e, BRG_E_CORRUPT, "%s: of another run, model or version", path);
}

static enum brg_status chain_fetch(struct uplink *u, uint64_t version, uint64_t taken,
                                   struct chain *c, struct err *e) {
    while (c->count < CHAIN_MAX && version > taken) {
        char *path = c->path[c->count];
        uplink_version_path(u, version, "update", path);
        if (!os_exists(path)) TRY(got(path, client_download_update(u->line, version, path, e)));
        TRY(update_take(u, version, c, e));
        version = c->header[c->count - 1].from;
    }
    if (version == taken) return BRG_OK;
    return err_set(e, BRG_E_MISSING, "no chain of updates leads from version %" PRIu64, taken);
}

static enum brg_status chain_add(const struct chain *c, const struct weights *from, int fd,
                                 const char *path, struct err *e) {
    AUTO_FREE float *x = mem_alloc(OUTER_CHUNK, sizeof *x);
    AUTO_FREE float *d = mem_alloc(OUTER_CHUNK, sizeof *d);
    AUTO_FREE uint8_t *bytes = mem_alloc((size_t)OUTER_CHUNK * 4 + CODEC_UNIT, 1);
    for (uint64_t at = 0; at < from->elements; at += OUTER_CHUNK) {
        uint64_t left = from->elements - at;
        size_t n = left < OUTER_CHUNK ? (size_t)left : OUTER_CHUNK;
        TRY(uplink_weights_read(from, at, n, x, e));
        for (int i = c->count; i-- > 0;) { /* the oldest first, as the parent did */
            enum codec k = c->header[i].codec;
            TRY(os_pread_all(c->fd[i], bytes, (size_t)codec_bytes(k, n),
                             UPDATE_HEADER_BYTES + codec_bytes(k, at), c->path[i], e));
            if (codec_decode(k, bytes, n, d) != BRG_OK)
                return err_set(e, BRG_E_CORRUPT, "%s: cannot be decoded", c->path[i]);
            update_add(x, d, n);
        }
        TRY(os_pwrite_all(fd, x, 4 * n, UPDATE_HEADER_BYTES + 4 * at, path, e));
    }
    uint8_t head[UPDATE_HEADER_BYTES];
    update_header_encode(&c->header[0], head);
    TRY(os_pwrite_all(fd, head, sizeof head, 0, path, e));
    return fsync(fd) == 0 ? BRG_OK : os_errno(e, errno, "syncing", path);
}

static enum brg_status theta_make(struct uplink *u, const struct chain *c, uint64_t taken,
                                  struct err *e) {
    AUTO_WEIGHTS struct weights from = {.fd = -1};
    char temp[OS_PATH_MAX], path[OS_PATH_MAX];
    uplink_taken_path(u, taken, from.path);
    TRY(uplink_weights_open(&from, u->run.parameters, e));
    if (from.version != taken || !hash_equal(&from.theta, &c->header[c->count - 1].theta_from))
        return err_set(e, BRG_E_MISSING, "%s: the updates begin with other weights", from.path);
    os_path(temp, u->dir, "theta.tmp");
    uplink_version_path(u, c->header[0].to, "theta", path);
    AUTO_CLOSE int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "opening", temp);
    TRY(chain_add(c, &from, fd, temp, e));
    return os_rename_durable(temp, path, e);
}

/* E_MISSING: it has to come whole. */
static enum brg_status by_updates(struct uplink *u, uint64_t version, uint64_t taken,
                                  struct err *e) {
    AUTO_CHAIN struct chain c = {.count = 0};
    char path[OS_PATH_MAX], head[OS_PATH_MAX];
    uplink_version_path(u, version, "theta", head);
    uplink_version_path(u, version, "ledger", path);
    if (os_exists(head) && os_exists(path)) return BRG_OK;
    TRY(chain_fetch(u, version, taken, &c, e));
    if (!os_exists(path)) TRY(got(path, client_download_ledger(u->line, version, path, e)));
    enum brg_status s = theta_make(u, &c, taken, e);
    for (int i = 0; i < c.count; i++) (void)unlink(c.path[i]);
    return s;
}

/* ---- Both ----------------------------------------------------------------------------------------------------------- */
static enum brg_status whole(struct uplink *u, uint64_t version, struct err *e) {
    char path[OS_PATH_MAX];
    uplink_version_path(u, version, "safetensors", path);
    if (os_exists(path)) return BRG_OK;
    enum brg_status s = client_download(u->line, version, path, e);
    if (s == BRG_E_REFUSED) return uplink_fail(u, s, "%s", e->text);
    return s == BRG_OK ? s : BRG_E_NET;
}

static enum brg_status use(struct uplink *u, uint64_t version, struct weights *out,
                           struct ledger **out_ledger, struct err *e) {
    uplink_taken_path(u, version, out->path);
    TRY(uplink_weights_open(out, u->run.parameters, e));
    if (out->version != version || !id_equal(&out->run, &u->run.run))
        return err_set(e, BRG_E_CHECKPOINT, "%s: of another run or version", out->path);
    return out->ledger_bytes > 0 ? ledger_inside(u, out, out_ledger, e)
                                 : ledger_alone(u, version, out_ledger, e);
}

void uplink_version_drop(struct uplink *u, uint64_t version) {
    static const char *const kinds[] = {"theta", "safetensors", "ledger", "update"};
    char path[OS_PATH_MAX];
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        uplink_version_path(u, version, kinds[i], path);
        (void)unlink(path);
    }
}

enum brg_status uplink_fetch(struct uplink *u, uint64_t version, uint64_t taken,
                             struct weights *out, struct ledger **out_ledger, struct err *e) {
    char path[OS_PATH_MAX];
    enum brg_status s = BRG_OK;
    uplink_version_path(u, version, "safetensors", path);
    if (!os_exists(path)) {
        s = by_updates(u, version, taken, e);
        if (s == BRG_E_NET || s == BRG_E_TIMEOUT) return BRG_E_NET;
        if (s == BRG_E_REFUSED) return uplink_fail(u, s, "%s", e->text);
        if (s != BRG_OK) {
            log_line(LOG_DEBUG, "hub", "parent_whole", "version=%" PRIu64 " cause=\"%s\"", version,
                     e->text);
            uplink_version_drop(u, version); /* half of it, or of another branch */
            TRY(whole(u, version, e));
        }
    }
    s = use(u, version, out, out_ledger, e);
    if (s != BRG_OK) uplink_version_drop(u, version); /* it is fetched again */
    return s;
}
