/* SPDX-License-Identifier: Apache-2.0 */
/* blobs_os.c - files named by the SHA-256 of their content, and files that are still arriving.
 *
 *   RUN/blobs/ab/abcd...        complete: content, name and directory entry are on disk
 *   RUN/incoming/<key>.part     arriving: a prefix of the content, in any state after a power failure
 *
 *   nothing --part_write--> part --part_write--> part --part_finish--> blob --remove--> nothing
 *                             `------part_drop, part_finish with another hash-----> nothing
 *   file elsewhere --adopt--> blob
 *
 * A name is made here from 16 or 32 binary bytes; no string from outside becomes part of a path.
 *
 * A part survives a restart, so that a site with a thin line goes on where it was. What the power
 * failure did to its tail does not matter: the hash of the whole is compared before it becomes a
 * blob.
 *
 * Two writers of one key are kept apart by a lock on the part itself; the second one finds that its
 * offset does not fit and is told the right one.
 *
 * Invariants
 *   (B1) a file under blobs/ was complete, hashed and synced before it got its name.
 *   (B3) a try that ended between a name (of a file or of its directory) and the fsync of the directory
 *        above is finished by the next one: that something is there does not say that it is durable.
 *   (B4) what an fsync failed on is written anew before the next fsync of it: the kernel may have dropped
 *        the dirty pages with its one report, and a mere repeat would succeed and prove nothing.
 *   (B2) a part only grows at its end: a piece at another offset changes nothing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_os.h"

struct blobs {
    char blobs_dir[OS_PATH_MAX], incoming_dir[OS_PATH_MAX];
};

enum { PART_KEPT_HOURS = 24 };
#define PART_KEPT_NS ((time_ns)PART_KEPT_HOURS * 3600 * NS_PER_S)

/* ---- Shared ---------------------------------------------------------------------------------- */
enum brg_status store_hash_fd(int fd, const char *path, struct hash *out, uint64_t *out_bytes,
                              struct err *e) {
    AUTO_FREE uint8_t *piece = mem_alloc(STORE_IO_BYTES, 1);
    struct hasher h;
    hasher_init(&h);
    uint64_t at = 0;
    for (;;) {
        ssize_t got = pread(fd, piece, STORE_IO_BYTES, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return os_errno(e, errno, "read", path);
        if (got == 0) break;
        hasher_update(&h, piece, (size_t)got);
        at += (uint64_t)got;
    }
    *out = hasher_final(&h);
    *out_bytes = at;
    return BRG_OK;
}

enum brg_status store_fsync(int fd, const char *path, struct err *e) {
    return fsync(fd) == 0 ? BRG_OK : os_errno(e, errno, "fsync", path);
}

/* ---- Names ----------------------------------------------------------------------------------- */
void blobs_path(const struct blobs *b, const struct hash *h, char out[4096]) {
    char hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    os_path(out, b->blobs_dir, "%.2s/%s", hex, hex);
}

static void blob_dir(const struct blobs *b, const struct hash *h, char out[OS_PATH_MAX]) {
    char hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    os_path(out, b->blobs_dir, "%.2s", hex);
}

static void part_path(const struct blobs *b, const struct id128 *key, char out[OS_PATH_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(key, hex);
    os_path(out, b->incoming_dir, "%s.part", hex);
}

enum brg_status blobs_open(const char *run_dir, struct blobs **out, struct err *e) {
    if (strlen(run_dir) > OS_PATH_MAX - 200) {
        return err_set(e, BRG_E_CONFIG, "run directory: path is too long");
    }
    struct blobs *b = mem_alloc(1, sizeof *b);
    os_path(b->blobs_dir, run_dir, "blobs");
    os_path(b->incoming_dir, run_dir, "incoming");
    enum brg_status s = os_mkdirs(b->blobs_dir, e);
    if (s == BRG_OK) s = os_mkdirs(b->incoming_dir, e);
    if (s == BRG_OK) s = os_fsync_dir(run_dir, e);
    if (s != BRG_OK) {
        blobs_close(b);
        return s;
    }
    *out = b;
    return BRG_OK;
}

void blobs_close(struct blobs *b) {
    mem_free(b);
}

bool blobs_has(const struct blobs *b, const struct hash *h) {
    char path[OS_PATH_MAX];
    blobs_path(b, h, path);
    return os_exists(path);
}

/* ---- Arriving -------------------------------------------------------------------------------- */
enum brg_status blobs_part_bytes(struct blobs *b, const struct id128 *key, uint64_t *out_bytes) {
    char path[OS_PATH_MAX];
    part_path(b, key, path);
    int64_t bytes = os_file_bytes(path);
    *out_bytes = bytes < 0 ? 0 : (uint64_t)bytes;
    return BRG_OK;
}

/* Opens a part for one writer at a time and tells its length. While this one waited for the lock,
 * the part may have become a blob or have been dropped; writing through the old descriptor would
 * then change a finished blob. So the name is looked at again under the lock. */
static enum brg_status part_open(const char *path, int flags, int *out_fd, uint64_t *out_bytes,
                                 struct err *e) {
    for (;;) {
        AUTO_CLOSE int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0) return os_errno(e, errno, "open", path);
        while (flock(fd, LOCK_EX) != 0) {
            if (errno != EINTR) return os_errno(e, errno, "lock", path);
        }
        struct stat mine, named;
        if (fstat(fd, &mine) != 0) return os_errno(e, errno, "stat", path);
        if (lstat(path, &named) != 0 || named.st_ino != mine.st_ino) continue;
        *out_bytes = (uint64_t)mine.st_size;
        *out_fd = fd;
        fd = -1;
        return BRG_OK;
    }
}

enum brg_status blobs_part_write(struct blobs *b, const struct id128 *key, uint64_t offset,
                                 const void *data, size_t n, struct err *e) {
    char path[OS_PATH_MAX];
    part_path(b, key, path);
    AUTO_CLOSE int fd = -1;
    uint64_t bytes;
    TRY(part_open(path, O_RDWR | O_CREAT, &fd, &bytes, e));
    if (offset != bytes) { /* B2 */
        return err_set(e, BRG_E_MESSAGE,
                       "upload: the piece begins at byte %llu, the next byte is %llu",
                       (unsigned long long)offset, (unsigned long long)bytes);
    }
    enum brg_status s = os_pwrite_all(fd, data, n, offset, path, e);
    if (s != BRG_OK) {
        /* Half a piece would be accepted as progress; and on a full disk every byte counts. */
        if (ftruncate(fd, (off_t)offset) != 0) (void)unlink(path);
        return s;
    }
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    CHECK((uint64_t)st.st_size == offset + n); /* B2 */
    return BRG_OK;
}

/* B4: an entry that comes and goes makes the directory's block dirty again, whatever became of it. */
static enum brg_status dir_sync_anew(const char *dir, struct err *e) {
    char path[OS_PATH_MAX];
    uint64_t tag;
    os_random(&tag, sizeof tag);
    os_path(path, dir, "sync.%016llx.tmp", (unsigned long long)tag);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "create", path);
    if (unlink(path) != 0) return os_errno(e, errno, "remove", path);
    return os_fsync_dir(dir, e);
}

/* Gives a complete, synced file its name. The directory is made on first use. */
static enum brg_status settle(struct blobs *b, const char *path, const struct hash *h,
                              struct err *e) {
    char dir[OS_PATH_MAX], to[OS_PATH_MAX];
    blob_dir(b, h, dir);
    blobs_path(b, h, to);
    TRY(os_mkdirs(dir, e));
    TRY(dir_sync_anew(b->blobs_dir, e)); /* B3 */
    return os_rename_durable(path, to, e);
}

enum brg_status blobs_sync_name(const struct blobs *b, const struct hash *h, struct err *e) {
    char dir[OS_PATH_MAX];
    blob_dir(b, h, dir);
    TRY(dir_sync_anew(dir, e));             /* B3 */
    TRY(dir_sync_anew(b->incoming_dir, e)); /* where it came from: a rename is two entries */
    return dir_sync_anew(b->blobs_dir, e);
}

enum brg_status blobs_part_finish(struct blobs *b, const struct id128 *key, uint64_t bytes,
                                  const struct hash *want, struct err *e) {
    char path[OS_PATH_MAX];
    part_path(b, key, path);
    if (!os_exists(path) && blobs_has(b, want))
        return blobs_sync_name(b, want, e); /* the answer was lost, not the blob */
    AUTO_CLOSE int fd = -1;
    uint64_t have, hashed;
    TRY(part_open(path, O_RDWR, &fd, &have, e));
    if (have < bytes) {
        return err_set(e, BRG_E_MESSAGE, "upload: %llu of %llu bytes are here; send the rest",
                       (unsigned long long)have, (unsigned long long)bytes);
    }
    enum brg_status synced = store_fsync(fd, path, e);
    if (synced != BRG_OK) {
        if (status_class(synced) != BRG_CLASS_FULL) (void)unlink(path); /* B4: it is sent again */
        return synced;
    }
    struct hash got;
    TRY(store_hash_fd(fd, path, &got, &hashed, e));
    if (have != bytes || !hash_equal(&got, want)) {
        (void)unlink(path);
        return err_set(e, BRG_E_CORRUPT,
                       "upload: %llu bytes do not have the announced hash; send it again "
                       "from the start",
                       (unsigned long long)have);
    }
    CHECK(hashed == bytes); /* B1 */
    return settle(b, path, want, e);
}

enum brg_status blobs_part_drop(struct blobs *b, const struct id128 *key) {
    char path[OS_PATH_MAX];
    part_path(b, key, path);
    return unlink(path) == 0 || errno == ENOENT ? BRG_OK : BRG_E_IO;
}

/* ---- Complete -------------------------------------------------------------------------------- */
enum brg_status blobs_adopt(struct blobs *b, const char *path, const struct hash *h,
                            struct err *e) {
    {
        AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) return os_errno(e, errno, "open", path);
        TRY(store_fsync(fd, path, e));
    }
    return settle(b, path, h, e);
}

enum brg_status blobs_verify(const struct blobs *b, const struct hash *h, struct err *e) {
    char path[OS_PATH_MAX];
    blobs_path(b, h, path);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "open", path);
    struct hash got;
    uint64_t bytes;
    TRY(store_hash_fd(fd, path, &got, &bytes, e));
    if (hash_equal(&got, h)) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT,
                   "%s: %llu bytes do not have the hash of their name; restore this file", path,
                   (unsigned long long)bytes);
}

enum brg_status blobs_remove(struct blobs *b, const struct hash *h, struct err *e) {
    char path[OS_PATH_MAX], dir[OS_PATH_MAX];
    blobs_path(b, h, path);
    blob_dir(b, h, dir);
    if (unlink(path) != 0) {
        if (errno == ENOENT) return BRG_OK;
        return os_errno(e, errno, "remove", path);
    }
    return os_fsync_dir(dir, e);
}

/* ---- Sweeping -------------------------------------------------------------------------------- */
static bool is_part_name(const char *name) {
    uint8_t id[ID_BYTES];
    char hex[ID_HEX_BYTES];
    if (strlen(name) != ID_HEX_BYTES - 1 + strlen(".part")) return false;
    memcpy(hex, name, ID_HEX_BYTES - 1);
    hex[ID_HEX_BYTES - 1] = '\0';
    return hex_decode(hex, id, ID_BYTES) && strcmp(name + ID_HEX_BYTES - 1, ".part") == 0;
}

/* A part that was touched within a day may be resumed by its site; everything else in incoming/ is
 * left over from a process that is gone. A time in the future is a clock that was set back: keep. */
static bool is_leftover(const char *name, const struct stat *st) {
    if (!is_part_name(name) || !S_ISREG(st->st_mode)) return true;
    time_ns touched = (time_ns)st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
    return os_wall() - touched > PART_KEPT_NS;
}

enum brg_status blobs_sweep(struct blobs *b, struct err *e) {
    DIR *dir = opendir(b->incoming_dir);
    if (dir == NULL) return os_errno(e, errno, "open", b->incoming_dir);
    struct dirent *entry;
    enum brg_status s = BRG_OK;
    while (s == BRG_OK && (entry = readdir(dir)) != NULL) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISDIR(st.st_mode) || !is_leftover(entry->d_name, &st)) continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0) {
            s = os_errno(e, errno, "remove a leftover in", b->incoming_dir);
        }
    }
    closedir(dir);
    return s;
}
