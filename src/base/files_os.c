/* SPDX-License-Identifier: Apache-2.0 */
/* files_os.c - base's shore: clocks, randomness, whole files, durable renames, directory locks.
 *
 * Every call retries EINTR and short transfers, opens close-on-exec, and puts the path and a remedy
 * into the error. What is said to be durable is durable: fsync of the file, and of its directory. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

/* ---- Clocks and randomness ------------------------------------------------------------------- */

static time_ns clock_read(clockid_t id) {
    struct timespec t;
    CHECK(clock_gettime(id, &t) == 0);
    return (time_ns)t.tv_sec * NS_PER_S + t.tv_nsec;
}

time_ns os_now(void) {
    return clock_read(CLOCK_MONOTONIC);
}

time_ns os_wall(void) {
    return clock_read(CLOCK_REALTIME);
}

void os_random(void *out, size_t n) {
    uint8_t *p = out;
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR) continue;
        CHECK(got > 0);
        p += got;
        n -= (size_t)got;
    }
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static const char *remedy_of(int errno_value) {
    switch (errno_value) {
    case ENOSPC: return "free space on that file system";
    case EDQUOT: return "the quota is used up: free space or raise it";
    case ENOENT: return "check the path";
    case ENOTDIR: return "a part of the path is not a directory";
    case EACCES:
    case EPERM: return "check owner and mode";
    case EROFS: return "the file system is read-only: choose another directory";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EISDIR: return "a file is wanted, not a directory";
    case EIO: return "the disk or the network file system reports a fault";
    default: return "see the cause";
    }
}

enum brg_status os_errno(struct err *e, int errno_value, const char *what, const char *path) {
    char cause[128];
    enum brg_status status = BRG_E_IO;
    if (errno_value == ENOSPC || errno_value == EDQUOT) status = BRG_E_FULL;
    if (errno_value == ENOENT) status = BRG_E_MISSING;
    return err_set(e, status, "cannot %s %s: %s; %s", what, path,
                   strerror_r(errno_value, cause, sizeof cause), remedy_of(errno_value));
}

/* ---- Transfers ------------------------------------------------------------------------------- */

static enum brg_status cut_short(struct err *e, const char *path) {
    return err_set(e, BRG_E_IO, "cannot read %s: the file ends too early; it is truncated", path);
}

enum brg_status os_read_all(int fd, void *data, size_t n, const char *path, struct err *e) {
    uint8_t *p = data;
    while (n > 0) {
        ssize_t got = read(fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return os_errno(e, errno, "read", path);
        if (got == 0) return cut_short(e, path);
        p += got;
        n -= (size_t)got;
    }
    return BRG_OK;
}

enum brg_status os_write_all(int fd, const void *data, size_t n, const char *path, struct err *e) {
    const uint8_t *p = data;
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return os_errno(e, errno, "write", path);
        p += put;
        n -= (size_t)put;
    }
    return BRG_OK;
}

enum brg_status os_pread_all(int fd, void *data, size_t n, uint64_t offset, const char *path,
                             struct err *e) {
    uint8_t *p = data;
    if (offset > INT64_MAX || n > INT64_MAX - offset) return cut_short(e, path);
    while (n > 0) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return os_errno(e, errno, "read", path);
        if (got == 0) return cut_short(e, path);
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return BRG_OK;
}

enum brg_status os_pwrite_all(int fd, const void *data, size_t n, uint64_t offset, const char *path,
                              struct err *e) {
    const uint8_t *p = data;
    if (offset > INT64_MAX || n > INT64_MAX - offset) return os_errno(e, EFBIG, "write", path);
    while (n > 0) {
        ssize_t put = pwrite(fd, p, n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return os_errno(e, errno, "write", path);
        p += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return BRG_OK;
}

/* ---- Whole files ----------------------------------------------------------------------------- */

enum brg_status os_read_file(const char *path, size_t bytes_max, struct buf *out, struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "open", path);
    out->bytes_max = bytes_max;
    buf_reset(out);
    /* Not by the size that stat gives: pipes and files in /proc have none, and files may grow. */
    uint8_t chunk[16384];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return os_errno(e, errno, "read", path);
        if (got == 0) return BRG_OK;
        buf_put(out, chunk, (size_t)got);
        if (out->overflow)
            return err_set(e, BRG_E_LIMIT, "%s is larger than the %zu bytes allowed here", path,
                           bytes_max);
    }
}

/* The directory that holds path: "." where there is no slash. */
static void parent_of(const char *path, char out[OS_PATH_MAX]) {
    size_t n = strlen(path);
    CHECK(n < OS_PATH_MAX);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0) {
        memcpy(out, ".", 2);
        return;
    }
    memcpy(out, path, n);
    out[n] = '\0';
}

static enum brg_status fsync_parent(const char *path, struct err *e) {
    char dir[OS_PATH_MAX];
    parent_of(path, dir);
    return os_fsync_dir(dir, e);
}

static enum brg_status too_long(const char *path, struct err *e) {
    return err_set(e, BRG_E_IO, "the path %.200s... is too long; choose a shorter directory", path);
}

static enum brg_status write_and_sync(const char *tmp, const void *data, size_t n, mode_t mode,
                                      struct err *e) {
    AUTO_CLOSE int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return os_errno(e, errno, "create", tmp);
    TRY(os_write_all(fd, data, n, tmp, e));
    if (fsync(fd) != 0) return os_errno(e, errno, "fsync", tmp);
    /* Network file systems report a full disk as late as here. */
    int closed = close(fd);
    fd = -1;
    return closed == 0 ? BRG_OK : os_errno(e, errno, "close", tmp);
}

static enum brg_status write_atomic(const char *path, const void *data, size_t n, mode_t mode,
                                    struct err *e) {
    char tmp[OS_PATH_MAX];
    uint64_t tag;
    os_random(&tag, sizeof tag);
    int len = snprintf(tmp, sizeof tmp, "%s.tmp.%016llx", path, (unsigned long long)tag);
    if (len < 0 || len >= (int)sizeof tmp) return too_long(path, e);
    enum brg_status status = write_and_sync(tmp, data, n, mode, e);
    if (status == BRG_OK && rename(tmp, path) != 0)
        status = os_errno(e, errno, "rename a temporary file to", path);
    if (status != BRG_OK) {
        unlink(tmp);
        return status;
    }
    return fsync_parent(path, e);
}

enum brg_status os_write_file_atomic(const char *path, const void *data, size_t n, struct err *e) {
    return write_atomic(path, data, n, 0666, e);
}

enum brg_status os_write_secret_atomic(const char *path, const void *data, size_t n,
                                       struct err *e) {
    return write_atomic(path, data, n, 0600, e);
}

/* ---- Directories ----------------------------------------------------------------------------- */

static enum brg_status mkdir_one(const char *path, struct err *e) {
    struct stat st;
    if (mkdir(path, 0777) == 0) return BRG_OK;
    int why = errno;
    if (why == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return BRG_OK;
    if (why == EEXIST) why = ENOTDIR;
    return os_errno(e, why, "make the directory", path);
}

enum brg_status os_mkdirs(const char *path, struct err *e) {
    char part[OS_PATH_MAX];
    size_t n = strlen(path);
    if (n == 0) return os_errno(e, ENOENT, "make the directory", "\"\"");
    if (n >= sizeof part) return too_long(path, e);
    for (size_t i = 1; i < n; i++) {
        if (path[i] != '/' || path[i - 1] == '/') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        TRY(mkdir_one(part, e));
    }
    return mkdir_one(path, e);
}

enum brg_status os_fsync_dir(const char *path, struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "open the directory", path);
    /* Some file systems cannot fsync a directory and say EINVAL: there is nothing to do better. */
    if (fsync(fd) != 0 && errno != EINVAL) return os_errno(e, errno, "fsync the directory", path);
    return BRG_OK;
}

enum brg_status os_rename_durable(const char *from, const char *to, struct err *e) {
    if (rename(from, to) != 0) {
        enum brg_status status = os_errno(e, errno, "rename", from);
        return e ? err_prefix(e, "to %s", to) : status;
    }
    TRY(fsync_parent(to, e));
    char dir_from[OS_PATH_MAX], dir_to[OS_PATH_MAX];
    parent_of(from, dir_from);
    parent_of(to, dir_to);
    return strcmp(dir_from, dir_to) == 0 ? BRG_OK : os_fsync_dir(dir_from, e);
}

bool os_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

int64_t os_file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

/* "pid 17 on host" as the holder wrote it, made printable; "" where it has not written yet. */
static void holder_read(int fd, char out[96]) {
    ssize_t got = pread(fd, out, 95, 0);
    out[got > 0 ? got : 0] = '\0';
    for (char *p = out; *p; p++) {
        if (*p == '\n') *p = '\0';
        if (*p == '\0') break;
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7E) *p = '?';
    }
}

enum brg_status os_lock(const char *path, int *out_fd, struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return os_errno(e, errno, "open the lock", path);
    int rc;
    do {
        rc = flock(fd, LOCK_EX | LOCK_NB);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EWOULDBLOCK) return os_errno(e, errno, "lock", path);
    if (rc != 0) {
        char holder[96];
        holder_read(fd, holder);
        return err_set(e, BRG_E_BUSY,
                       "%s is locked by %s; stop that process or use another directory", path,
                       holder[0] ? holder : "another process");
    }
    char host[64] = "?", text[96];
    if (gethostname(host, sizeof host) != 0) memcpy(host, "?", 2);
    host[sizeof host - 1] = '\0';
    int n = snprintf(text, sizeof text, "pid %ld on %s\n", (long)getpid(), host);
    /* The name of the holder is a courtesy: a full disk must not keep the lock from being had. */
    if (n > 0 && (size_t)n < sizeof text && ftruncate(fd, 0) == 0)
        if (pwrite(fd, text, (size_t)n, 0) != n) *text = '\0';
    *out_fd = fd;
    fd = -1;
    return BRG_OK;
}

/* ---- Paths and cleanups ---------------------------------------------------------------------- */

const char *os_path(char out[OS_PATH_MAX], const char *dir, const char *fmt, ...) {
    int n = snprintf(out, OS_PATH_MAX, "%s/", dir);
    CHECK(n >= 0);
    CHECK(n < OS_PATH_MAX);
    va_list args;
    va_start(args, fmt);
    int m = vsnprintf(out + n, (size_t)(OS_PATH_MAX - n), fmt, args);
    va_end(args);
    CHECK(m >= 0);
    CHECK(m < OS_PATH_MAX - n);
    return out;
}

void os_close_cleanup(int *fd) {
    if (*fd < 0) return;
    int keep = errno;
    close(*fd);
    errno = keep;
}

void os_fclose_cleanup(FILE **f) {
    if (!*f) return;
    int keep = errno;
    fclose(*f);
    errno = keep;
}
