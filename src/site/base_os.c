/* SPDX-License-Identifier: Apache-2.0 */
/* base_os.c - versions of the run on the site's disk: fetched whole, or made from the one before.
 *
 *   base/<version>.safetensors   as the hub sent it: weights, outer state, ledger
 *   base/<version>.theta         made here: 128 bytes of header, then the weights
 *     0 "BRGTHET1"   8 u64 version  16 u64 tokens  24 u64 elements  32 run (16)  48 SHA-256 of the weights
 *    80 zeros
 *   base/<version>.update        from its parent to it, as the hub sent it (outer.h)
 *
 * A site that is one or a few versions behind fetches the updates in between and adds them to the version
 * it has, chunk by chunk. The sum must have the hash that the hub announced for the new version: a bad
 * update, a bad base or another way of adding are found here, and the whole weights are fetched instead. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "site/site_os.h"

enum {
    READ_BYTES = 1 << 20,
    THETA_HEADER_BYTES = 128,
    CHAIN_MAX = 4, /* updates; more would be more bytes than they are worth with bf16 */
};
static const char theta_magic[8] = {'B', 'R', 'G', 'T', 'H', 'E', 'T', '1'};

static void name_of(const struct brg_site *s, uint64_t version, const char *kind,
                    char out[OS_PATH_MAX]) {
    os_path(out, s->dir, "base/%" PRIu64 ".%s", version, kind);
}

void local_base_path(const struct brg_site *s, uint64_t version, char out[OS_PATH_MAX]) {
    name_of(s, version, "theta", out);
    if (!os_exists(out)) name_of(s, version, "safetensors", out);
}

/* ---- Opening ---------------------------------------------------------------------------------- */
static enum brg_status theta_header(struct local_base *b, struct id128 *out_run, struct err *e) {
    uint8_t h[THETA_HEADER_BYTES];
    TRY(os_pread_all(b->fd, h, sizeof h, 0, b->path, e));
    b->version = get_le64(h + 8);
    b->tokens = get_le64(h + 16);
    b->elements = get_le64(h + 24);
    memcpy(out_run->v, h + 32, ID_BYTES);
    memcpy(b->theta.v, h + 48, HASH_BYTES);
    b->offset = THETA_HEADER_BYTES;
    if (memcmp(h, theta_magic, sizeof theta_magic) == 0) return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT, "%s: does not begin with BRGTHET1", b->path);
}

static enum brg_status whole_header(struct local_base *b, struct id128 *out_run, struct err *e) {
    struct checkpoint c = {0};
    TRY(checkpoint_open(b->path, &c, e));
    b->version = c.version;
    b->tokens = c.tokens;
    b->elements = c.elements;
    b->theta = c.theta_hash;
    b->offset = c.theta_offset;
    *out_run = c.run;
    checkpoint_fini(&c);
    return BRG_OK;
}

enum brg_status local_base_open(const struct brg_site *s, uint64_t version, struct local_base *out,
                                struct err *e) {
    struct local_base b = {.fd = -1};
    struct id128 run = {0};
    local_base_path(s, version, b.path);
    b.fd = open(b.path, O_RDONLY | O_CLOEXEC);
    if (b.fd < 0) return os_errno(e, errno, "opening", b.path);
    bool made_here = strcmp(strrchr(b.path, '.'), ".theta") == 0;
    enum brg_status status = made_here ? theta_header(&b, &run, e) : whole_header(&b, &run, e);
    if (status == BRG_OK && (!id_equal(&run, &s->run.run) || b.version != version))
        status = err_set(e, BRG_E_CHECKPOINT, "%s: of another run or version", b.path);
    if (status == BRG_OK && b.elements != s->elements)
        status = err_set(e, BRG_E_CHECKPOINT, "%s: %" PRIu64 " parameters instead of %" PRIu64,
                         b.path, b.elements, s->elements);
    if (status != BRG_OK) {
        os_close_cleanup(&b.fd);
        return status;
    }
    *out = b;
    return BRG_OK;
}

static enum brg_status theta_hash(const struct local_base *b, struct hash *out, struct err *e) {
    AUTO_FREE uint8_t *piece = mem_alloc(READ_BYTES, 1);
    struct hasher h;
    hasher_init(&h);
    for (uint64_t left = b->elements * 4, at = b->offset; left > 0;) {
        size_t n = left < READ_BYTES ? (size_t)left : READ_BYTES;
        TRY(os_pread_all(b->fd, piece, n, at, b->path, e));
        hasher_update(&h, piece, n);
        at += n, left -= n;
    }
    *out = hasher_final(&h);
    return BRG_OK;
}

enum brg_status local_base_verify(const struct brg_site *s, uint64_t version, bool deep,
                                  uint64_t *out_tokens, struct hash *out_theta, struct err *e) {
    struct local_base b;
    TRY(local_base_open(s, version, &b, e));
    struct hash found = b.theta;
    enum brg_status status = deep ? theta_hash(&b, &found, e) : BRG_OK;
    if (status == BRG_OK && !hash_equal(&found, &b.theta))
        status =
            err_set(e, BRG_E_CORRUPT, "%s: the weights do not have the hash of the header", b.path);
    os_close_cleanup(&b.fd);
    TRY(status);
    *out_tokens = b.tokens;
    *out_theta = found;
    return BRG_OK;
}

void local_base_drop(const struct brg_site *s, uint64_t version) {
    static const char *const kinds[] = {"theta", "safetensors", "update"};
    char path[OS_PATH_MAX];
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        name_of(s, version, kinds[i], path);
        (void)remove(path);
    }
}

enum brg_status local_base_sync(const struct brg_site *s, uint64_t version, struct err *e) {
    char path[OS_PATH_MAX];
    local_base_path(s, version, path);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    return fsync(fd) == 0 ? BRG_OK : os_errno(e, errno, "syncing", path);
}

/* ---- Updates ---------------------------------------------------------------------------------- */
struct chain { /* updates, newest first */
    struct update_header header[CHAIN_MAX];
    char path[CHAIN_MAX][OS_PATH_MAX];
    int fd[CHAIN_MAX], count;
};

static void chain_fini(struct chain *c) {
    for (int i = 0; i < c->count; i++) os_close_cleanup(&c->fd[i]);
    mem_free(c);
}

static enum brg_status update_take(const struct brg_site *s, uint64_t version, struct chain *c,
                                   struct err *e) {
    uint8_t bytes[UPDATE_HEADER_BYTES];
    int i = c->count;
    struct update_header *h = &c->header[i];
    c->fd[i] = open(c->path[i], O_RDONLY | O_CLOEXEC);
    if (c->fd[i] < 0) return os_errno(e, errno, "opening", c->path[i]);
    c->count++;
    TRY(os_pread_all(c->fd[i], bytes, sizeof bytes, 0, c->path[i], e));
    TRY(update_header_decode(bytes, h, e));
    uint64_t want = UPDATE_HEADER_BYTES + codec_bytes(h->codec, s->elements);
    bool next = i == 0 || (h->to == c->header[i - 1].from &&
                           hash_equal(&h->theta_to, &c->header[i - 1].theta_from));
    if (h->to != version || h->elements != s->elements || !id_equal(&h->run, &s->run.run) ||
        os_file_bytes(c->path[i]) != (int64_t)want || !next)
        return err_set(e, BRG_E_CORRUPT, "%s: of another run, model or version", c->path[i]);
    return BRG_OK;
}

/* Fetches updates from version backwards until one begins at a version that is here. */
static enum brg_status chain_fetch(struct brg_site *s, uint64_t version, uint64_t oldest,
                                   struct chain *c, struct err *e) {
    char base[OS_PATH_MAX], part[OS_PATH_MAX];
    while (c->count < CHAIN_MAX) {
        char *path = c->path[c->count];
        name_of(s, version, "update", path);
        if (!os_exists(path)) {
            enum brg_status status =
                client_download_update(s->clients[LINE_DOWN], version, path, e);
            if (status == BRG_E_MISSING) {
                name_of(s, version, "update.part", part);
                (void)remove(part);
            }
            TRY(status);
        }
        TRY(update_take(s, version, c, e));
        version = c->header[c->count - 1].from;
        local_base_path(s, version, base);
        if (os_exists(base)) return BRG_OK;
        if (version <= oldest) break;
    }
    return err_set(e, BRG_E_MISSING, "no chain of updates leads here");
}

static enum brg_status add_all(const struct brg_site *s, const struct chain *c,
                               const struct local_base *from, int fd, const char *path,
                               struct hasher *hash, struct err *e) {
    AUTO_FREE float *x = mem_alloc(OUTER_CHUNK, sizeof(float));
    AUTO_FREE float *d = mem_alloc(OUTER_CHUNK, sizeof(float));
    AUTO_FREE uint8_t *bytes = mem_alloc(OUTER_CHUNK, sizeof(float));
    for (uint64_t at = 0; at < s->elements; at += OUTER_CHUNK) {
        uint64_t left = s->elements - at;
        size_t n = left < OUTER_CHUNK ? (size_t)left : OUTER_CHUNK;
        TRY(os_pread_all(from->fd, x, 4 * n, from->offset + 4 * at, from->path, e));
        for (int i = c->count;
             i-- > 0;) { /* the oldest first, each rounded as the hub rounded it */
            enum codec codec = c->header[i].codec;
            TRY(os_pread_all(c->fd[i], bytes, (size_t)codec_bytes(codec, n),
                             UPDATE_HEADER_BYTES + codec_bytes(codec, at), c->path[i], e));
            if (codec_decode(codec, bytes, n, d) != BRG_OK)
                return err_set(e, BRG_E_CORRUPT, "%s: cannot be decoded", c->path[i]);
            update_add(x, d, n);
        }
        hasher_update(hash, x, 4 * n);
        TRY(os_pwrite_all(fd, x, 4 * n, THETA_HEADER_BYTES + 4 * at, path, e));
    }
    return BRG_OK;
}

static enum brg_status theta_make(const struct brg_site *s, const struct chain *c, const char *temp,
                                  struct err *e) {
    const struct update_header *last = &c->header[0];
    uint8_t h[THETA_HEADER_BYTES] = {0};
    struct local_base from;
    struct hasher hash;
    hasher_init(&hash);
    AUTO_CLOSE int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "opening", temp);
    TRY(local_base_open(s, c->header[c->count - 1].from, &from, e));
    enum brg_status status = add_all(s, c, &from, fd, temp, &hash, e);
    os_close_cleanup(&from.fd);
    TRY(status);
    struct hash theta = hasher_final(&hash);
    if (!hash_equal(&theta, &last->theta_to))
        return err_set(e, BRG_E_CORRUPT, "version %" PRIu64 ": the updates give other weights",
                       last->to);
    memcpy(h, theta_magic, sizeof theta_magic);
    put_le64(h + 8, last->to);
    put_le64(h + 16, last->tokens);
    put_le64(h + 24, s->elements);
    memcpy(h + 32, s->run.run.v, ID_BYTES);
    memcpy(h + 48, theta.v, HASH_BYTES);
    return os_pwrite_all(fd, h, sizeof h, 0, temp, e);
}

enum brg_status local_base_update(struct brg_site *s, uint64_t version, uint64_t oldest,
                                  const struct hash *want, struct fetched *out, struct err *e) {
    char temp[OS_PATH_MAX], path[OS_PATH_MAX];
    struct chain *c = mem_alloc(1, sizeof *c);
    name_of(s, version, "theta.tmp", temp);
    name_of(s, version, "theta", path);
    enum brg_status status = chain_fetch(s, version, oldest, c, e);
    if (status == BRG_OK && want && !hash_equal(want, &c->header[0].theta_to))
        status =
            err_set(e, BRG_E_CORRUPT, "%s: not to the weights that the hub announced", c->path[0]);
    if (status == BRG_OK) status = theta_make(s, c, temp, e);
    if (status == BRG_OK && rename(temp, path) != 0) status = os_errno(e, errno, "renaming", temp);
    out->updates = c->count;
    for (int i = 0; i < c->count; i++) { /* by its length: the last one may have no header */
        int64_t bytes = os_file_bytes(c->path[i]);
        if (bytes > 0) out->bytes += (uint64_t)bytes;
        (void)remove(c->path[i]);
    }
    out->tokens = c->header[0].tokens;
    out->theta = c->header[0].theta_to;
    if (status != BRG_OK) {
        (void)remove(temp);
        *out = (struct fetched){0};
    }
    chain_fini(c);
    return status;
}
