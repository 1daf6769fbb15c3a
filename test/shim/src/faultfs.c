/* SPDX-License-Identifier: Apache-2.0 */
/* faultfs.c - a shared object for LD_PRELOAD that makes the disk of one program bad: errors, a full
 * disk, short writes, and a log from which `powercut` can take back what was not fsynced. kill -9
 * alone does not lose anything that was written: the kernel still has it.
 *
 * BERINGIA_FAULTFS names the control file (rules.c has its language). It is read again whenever it
 * changes, so a test may turn faults on and off while the program runs.
 *
 * How the log stays true: under one lock, the old bytes are read, the record is appended, then the
 * call is made. A kill between the two leaves a record that takes back what never happened, which
 * changes nothing. An inode that is unlinked or replaced by a rename keeps a second name
 * (LOG.kept/N), so that it can come back.
 *
 * Not seen: writes through mmap (SQLite's -shm, which is rebuilt anyway), through stdio (glibc calls
 * its own write inside), copy_file_range and sendfile, and system calls without libc.
 * The system calls are made with syscall(), so nothing here depends on the order of preloads. */
#include "rules.h"
#include "undo.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rules rules;
static struct timespec rules_time;
static off_t rules_bytes;
static ino_t rules_inode;
static int log_fd = -1;
static char log_open[RULE_PATH_MAX];
static uint64_t kept_count;

/* ---- The control file ---------------------------------------------------------------------- */

static void log_reopen(void) {
    if (strcmp(log_open, rules.log) == 0) return;
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = -1;
    memcpy(log_open, rules.log, sizeof(log_open));
    if (log_open[0] == '\0') return;
    char kept[RULE_PATH_MAX + 16];
    snprintf(kept, sizeof(kept), "%s.kept", log_open);
    syscall(SYS_mkdirat, AT_FDCWD, kept, 0700);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_open, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                          0600);
    /* Far from the numbers that a program expects to get, or closes in a loop. */
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (log_fd < 0)
        log_fd = fd;
    else
        syscall(SYS_close, fd);
    if (log_fd < 0) {
        fprintf(stderr, "faultfs: cannot open the log %s\n", log_open);
        abort();
    }
}

/* Called with the lock held, before every call that is looked at. */
static int awake(void) {
    const char *control = getenv("BERINGIA_FAULTFS");
    struct stat st;
    if (control == NULL || stat(control, &st) != 0) return 0;
    if (st.st_ino == rules_inode && st.st_size == rules_bytes &&
        st.st_mtim.tv_sec == rules_time.tv_sec && st.st_mtim.tv_nsec == rules_time.tv_nsec) {
        return 1;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    static char text[65536];
    ssize_t n = read(fd, text, sizeof(text));
    syscall(SYS_close, fd);
    rules_parse(&rules, text, n > 0 ? (size_t)n : 0);
    rules_inode = st.st_ino;
    rules_bytes = st.st_size;
    rules_time = st.st_mtim;
    log_reopen();
    return 1;
}

/* ---- Names --------------------------------------------------------------------------------- */

static int path_of_fd(int fd, char out[PATH_MAX]) {
    char name[64];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, out, PATH_MAX - 1);
    if (n <= 0 || out[0] != '/') return 0;
    out[n] = '\0';
    return 1;
}

/* The absolute name: the directory resolved, the last part as it is. */
static int path_of(int dirfd, const char *path, char out[PATH_MAX]) {
    char dir[PATH_MAX] = "";
    if (path[0] != '/') {
        if (dirfd == AT_FDCWD ? getcwd(dir, sizeof(dir)) == NULL : !path_of_fd(dirfd, dir))
            return 0;
    }
    char joined[2 * PATH_MAX];
    snprintf(joined, sizeof(joined), "%s%s%s", dir, path[0] == '/' ? "" : "/", path);
    char *slash = strrchr(joined, '/');
    *slash = '\0';
    char resolved[PATH_MAX];
    if (realpath(joined[0] != '\0' ? joined : "/", resolved) == NULL) return 0;
    int n = snprintf(out, PATH_MAX, "%s/%s", strcmp(resolved, "/") == 0 ? "" : resolved, slash + 1);
    return n > 0 && n < PATH_MAX;
}

static uint64_t inode_of(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static uint64_t dir_inode_of(const char *path) {
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash == NULL) return 0;
    slash[slash == dir] = '\0';
    return inode_of(dir);
}

static int logged(const char *path) {
    return log_fd >= 0 && strncmp(path, rules.root, strlen(rules.root)) == 0 &&
           strncmp(path, log_open, strlen(log_open)) != 0;
}

/* ---- The log ------------------------------------------------------------------------------- */

static void append(struct undo_head head, const char *path, const char *path2, const void *data) {
    head.magic = UNDO_MAGIC;
    head.path_bytes = (uint32_t)strlen(path);
    head.path2_bytes = (uint32_t)strlen(path2);
    union {
        const void *in;
        void *out;
    } body = {.in = data}, p1 = {.in = path}, p2 = {.in = path2};
    struct iovec part[4] = {{&head, sizeof(head)},
                            {p1.out, head.path_bytes},
                            {p2.out, head.path2_bytes},
                            {body.out, head.data_bytes}};
    ssize_t want = (ssize_t)(sizeof(head) + head.path_bytes + head.path2_bytes + head.data_bytes);
    if (syscall(SYS_writev, log_fd, part, 4) != want) {
        fprintf(stderr, "faultfs: the log cannot take a record; the test would mean nothing\n");
        abort();
    }
}

static void log_name(enum undo_kind kind, uint64_t inode, const char *path, const char *path2,
                     const char *kept) {
    struct undo_head head = {.kind = kind, .inode = inode, .dir = dir_inode_of(path)};
    head.dir2 = kind == UNDO_RENAME ? dir_inode_of(path2) : head.dir;
    head.data_bytes = strlen(kept);
    append(head, path, path2, kept);
}

/* Gives the inode at path a second name, so that it outlives its first. */
static void keep(const char *path, char out[PATH_MAX]) {
    struct stat st;
    out[0] = '\0';
    if (lstat(path, &st) != 0 || S_ISDIR(st.st_mode)) return;
    snprintf(out, PATH_MAX, "%.1023s.kept/%ld.%lu", log_open, (long)getpid(),
             (unsigned long)++kept_count);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, out, 0) != 0) out[0] = '\0';
}

/* The old bytes of [from, to), before a write or a truncate changes them. */
static void log_bytes(enum undo_kind kind, int fd, const char *path, uint64_t from, uint64_t length,
                      uint64_t to, const struct stat *st) {
    struct undo_head head = {.kind = kind,
                             .inode = (uint64_t)st->st_ino,
                             .offset = from,
                             .length = length,
                             .old_size = (uint64_t)st->st_size};
    if (to > head.old_size) to = head.old_size;
    unsigned char *old = NULL;
    if (from < to) {
        /* The program's own descriptor may be write-only. */
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        int reader = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
        old = malloc((size_t)(to - from));
        ssize_t n =
            old != NULL && reader >= 0 ? pread(reader, old, (size_t)(to - from), (off_t)from) : -1;
        if (reader >= 0) syscall(SYS_close, reader);
        if (n < 0) {
            fprintf(stderr, "faultfs: cannot read back %s\n", path);
            abort();
        }
        head.data_bytes = (uint64_t)n;
    }
    append(head, path, "", old);
    free(old);
}

/* ---- Writes -------------------------------------------------------------------------------- */

/* Before a write: what may be written, or -1 with errno. at < 0: at the file's own offset. */
static ssize_t before_write(int fd, size_t bytes, off_t at, int *out_sync) {
    char path[PATH_MAX];
    struct stat st;
    *out_sync = 0;
    if (!awake() || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || !path_of_fd(fd, path)) {
        return (ssize_t)bytes;
    }
    int error = rules_error(&rules, CALL_WRITE, path);
    size_t room = error == 0 ? rules_room(&rules, path, bytes, &error) : 0;
    if (error != 0) {
        errno = error;
        return -1;
    }
    if (logged(path) && st.st_nlink > 0) {
        int flags = fcntl(fd, F_GETFL);
        if (at < 0) at = (flags & O_APPEND) != 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
        log_bytes(UNDO_WRITE, fd, path, (uint64_t)at, room, (uint64_t)at + room, &st);
        *out_sync = (flags & O_DSYNC) != 0;
    }
    return (ssize_t)room;
}

static void after_write(int fd, int sync) {
    struct stat st;
    if (!sync || fstat(fd, &st) != 0) return;
    append((struct undo_head){.kind = UNDO_SYNC, .inode = (uint64_t)st.st_ino}, "", "", NULL);
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes) {
    int sync;
    struct stat st;
    /* Pipes and sockets go by without the lock: they may block for long, and a signal handler may
     * write to one while its thread is in here. */
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return syscall(SYS_write, fd, data, bytes);
    pthread_mutex_lock(&lock);
    ssize_t n = before_write(fd, bytes, -1, &sync);
    if (n >= 0) n = syscall(SYS_write, fd, data, (size_t)n);
    after_write(fd, sync && n > 0);
    pthread_mutex_unlock(&lock);
    return n;
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    int sync;
    pthread_mutex_lock(&lock);
    ssize_t n = before_write(fd, bytes, at, &sync);
    if (n >= 0) n = syscall(SYS_pwrite64, fd, data, (size_t)n, at);
    after_write(fd, sync && n > 0);
    pthread_mutex_unlock(&lock);
    return n;
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    return pwrite(fd, data, bytes, at);
}

/* A vector is written part by part as far as it goes: for the caller that is a short write. */
static ssize_t write_parts(int fd, const struct iovec *part, int count, off_t at) {
    ssize_t done = 0;
    for (int i = 0; i < count; i++) {
        if (part[i].iov_len == 0) continue;
        ssize_t n = at < 0 ? write(fd, part[i].iov_base, part[i].iov_len)
                           : pwrite(fd, part[i].iov_base, part[i].iov_len, at + done);
        if (n < 0) return done > 0 ? done : -1;
        done += n;
        if ((size_t)n < part[i].iov_len) break;
    }
    return done;
}

EXPORT ssize_t writev(int fd, const struct iovec *part, int count) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return syscall(SYS_writev, fd, part, count);
    return write_parts(fd, part, count, -1);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *part, int count, off_t at) {
    return write_parts(fd, part, count, at);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *part, int count, off64_t at) {
    return write_parts(fd, part, count, at);
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static void before_truncate(int fd, off_t to) {
    char path[PATH_MAX];
    struct stat st;
    if (!awake() || fstat(fd, &st) != 0 || !path_of_fd(fd, path) || !logged(path)) return;
    log_bytes(UNDO_TRUNCATE, fd, path, (uint64_t)to, 0, (uint64_t)st.st_size, &st);
}

EXPORT int ftruncate(int fd, off_t to) {
    pthread_mutex_lock(&lock);
    before_truncate(fd, to);
    int rc = (int)syscall(SYS_ftruncate, fd, to);
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int ftruncate64(int fd, off64_t to) {
    return ftruncate(fd, to);
}

EXPORT int truncate(const char *path, off_t to) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int rc = ftruncate(fd, to);
    syscall(SYS_close, fd);
    return rc;
}

EXPORT int truncate64(const char *path, off64_t to) {
    return truncate(path, to);
}

EXPORT int fallocate(int fd, int mode, off_t at, off_t bytes) {
    char path[PATH_MAX];
    struct stat st;
    int error = 0;
    pthread_mutex_lock(&lock);
    if (awake() && fstat(fd, &st) == 0 && path_of_fd(fd, path)) {
        error = rules_error(&rules, CALL_WRITE, path);
        if (error == 0 && logged(path)) {
            log_bytes(UNDO_WRITE, fd, path, (uint64_t)at,
                      (mode & FALLOC_FL_KEEP_SIZE) != 0 ? 0 : (uint64_t)bytes,
                      (uint64_t)(at + bytes), &st);
        }
    }
    int rc = error == 0 ? (int)syscall(SYS_fallocate, fd, mode, at, bytes) : -1;
    if (error != 0) errno = error;
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int fallocate64(int fd, int mode, off64_t at, off64_t n) {
    return fallocate(fd, mode, at, n);
}
EXPORT int posix_fallocate(int fd, off_t at, off_t n) {
    return fallocate(fd, 0, at, n) == 0 ? 0 : errno;
}
EXPORT int posix_fallocate64(int fd, off64_t at, off64_t n) {
    return posix_fallocate(fd, at, n);
}

/* ---- Syncs --------------------------------------------------------------------------------- */

static int sync_fd(long number, int fd) {
    char path[PATH_MAX];
    struct stat st;
    pthread_mutex_lock(&lock);
    int seen = awake() && fstat(fd, &st) == 0 && path_of_fd(fd, path);
    int error = seen ? rules_error(&rules, CALL_FSYNC, path) : 0;
    int rc = -1;
    if (error == 0)
        rc = (int)syscall(number, fd);
    else
        errno = error;
    /* A failed sync leaves nothing durable, however often it is tried again. */
    if (rc == 0 && seen && log_fd >= 0) {
        struct undo_head head = {.kind = S_ISDIR(st.st_mode) ? UNDO_SYNC_DIR : UNDO_SYNC,
                                 .inode = (uint64_t)st.st_ino};
        if (logged(path)) append(head, path, "", NULL);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int fsync(int fd) {
    return sync_fd(SYS_fsync, fd);
}
EXPORT int fdatasync(int fd) {
    return sync_fd(SYS_fdatasync, fd);
}

static void sync_all(void) {
    pthread_mutex_lock(&lock);
    if (awake() && log_fd >= 0) append((struct undo_head){.kind = UNDO_SYNC_ALL}, "", "", NULL);
    pthread_mutex_unlock(&lock);
}

EXPORT void sync(void) {
    syscall(SYS_sync);
    sync_all();
}

EXPORT int syncfs(int fd) {
    int rc = (int)syscall(SYS_syncfs, fd);
    if (rc == 0) sync_all();
    return rc;
}

/* ---- Names that come and go ---------------------------------------------------------------- */

static int do_open(int dirfd, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int writes = (flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR)) != 0;
    if (!writes) return (int)syscall(SYS_openat, dirfd, name, flags, mode);
    pthread_mutex_lock(&lock);
    int seen = awake() && path_of(dirfd, name, path);
    int error = seen ? rules_error(&rules, CALL_OPEN, path) : 0;
    int fd = -1;
    uint64_t was = seen ? inode_of(path) : 0;
    if (error != 0) {
        errno = error;
    } else {
        if (seen && logged(path) && (flags & O_TRUNC) != 0 && was != 0) {
            int old =
                (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
            if (old >= 0) before_truncate(old, 0);
            if (old >= 0) syscall(SYS_close, old);
        }
        fd = (int)syscall(SYS_openat, dirfd, name, flags, mode);
        if (fd >= 0 && seen && was == 0 && logged(path)) {
            log_name(UNDO_CREATE, inode_of(path), path, "", "");
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE_OF(flags, mode)                                                                       \
    do {                                                                                           \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE)                            \
            (mode) = va_arg(list, mode_t);                                                         \
        va_end(list);                                                                              \
    } while (0)

EXPORT int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    MODE_OF(flags, mode);
    return do_open(AT_FDCWD, path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...) {
    mode_t mode = 0;
    MODE_OF(flags, mode);
    return do_open(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int dirfd, const char *path, int flags, ...) {
    mode_t mode = 0;
    MODE_OF(flags, mode);
    return do_open(dirfd, path, flags, mode);
}

EXPORT int openat64(int dirfd, const char *path, int flags, ...) {
    mode_t mode = 0;
    MODE_OF(flags, mode);
    return do_open(dirfd, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode) {
    return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static int do_rename(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    char path[PATH_MAX], path2[PATH_MAX], kept[PATH_MAX] = "";
    pthread_mutex_lock(&lock);
    int seen = awake() && path_of(from_fd, from, path) && path_of(to_fd, to, path2);
    int error = seen ? rules_error(&rules, CALL_RENAME, path2) : 0;
    int rc = -1;
    if (error != 0) {
        errno = error;
    } else {
        uint64_t inode = seen ? inode_of(path) : 0;
        int note = seen && logged(path2) && inode != 0 && inode != inode_of(path2);
        if (note) keep(path2, kept);
        rc = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
        if (rc == 0 && note) log_name(UNDO_RENAME, inode, path, path2, kept);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int rename(const char *from, const char *to) {
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int a, const char *from, int b, const char *to) {
    return do_rename(a, from, b, to, 0);
}
EXPORT int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return do_rename(a, from, b, to, flags);
}

static int do_remove(int dirfd, const char *name, int flags) {
    char path[PATH_MAX], kept[PATH_MAX] = "";
    pthread_mutex_lock(&lock);
    int seen = awake() && path_of(dirfd, name, path) && logged(path);
    uint64_t inode = seen ? inode_of(path) : 0;
    if (inode != 0) keep(path, kept);
    int rc = (int)syscall(SYS_unlinkat, dirfd, name, flags);
    if (rc == 0 && inode != 0) log_name(UNDO_REMOVE, inode, path, kept, "");
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int unlink(const char *path) {
    return do_remove(AT_FDCWD, path, 0);
}
EXPORT int unlinkat(int dirfd, const char *path, int flags) {
    return do_remove(dirfd, path, flags);
}
EXPORT int rmdir(const char *path) {
    return do_remove(AT_FDCWD, path, AT_REMOVEDIR);
}
EXPORT int remove(const char *path) {
    int rc = unlink(path);
    return rc != 0 && (errno == EISDIR || errno == EPERM) ? rmdir(path) : rc;
}

/* from: the other name of the same inode, where it has one */
static void created(int dirfd, const char *name, int from_fd, const char *from) {
    char path[PATH_MAX], path2[PATH_MAX] = "";
    pthread_mutex_lock(&lock);
    if (awake() && path_of(dirfd, name, path) && logged(path)) {
        if (from != NULL && !path_of(from_fd, from, path2)) path2[0] = '\0';
        log_name(UNDO_CREATE, inode_of(path), path, path2, "");
    }
    pthread_mutex_unlock(&lock);
}

EXPORT int mkdirat(int dirfd, const char *path, mode_t mode) {
    int rc = (int)syscall(SYS_mkdirat, dirfd, path, mode);
    if (rc == 0) created(dirfd, path, AT_FDCWD, NULL);
    return rc;
}
EXPORT int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

EXPORT int linkat(int a, const char *from, int b, const char *to, int flags) {
    int rc = (int)syscall(SYS_linkat, a, from, b, to, flags);
    if (rc == 0) created(b, to, a, from);
    return rc;
}
EXPORT int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* glibc makes these with its own open inside: they are made again with ours. */
EXPORT int mkostemps(char *name, int suffix, int flags) {
    static const char set[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t length = strlen(name);
    if (suffix < 0 || length < (size_t)suffix + 6) {
        errno = EINVAL;
        return -1;
    }
    for (int tries = 0; tries < 100; tries++) {
        unsigned char seed[6];
        if (syscall(SYS_getrandom, seed, sizeof(seed), 0) != (long)sizeof(seed)) return -1;
        for (size_t i = 0; i < 6; i++) name[length - (size_t)suffix - 6 + i] = set[seed[i] % 36];
        int fd = do_open(AT_FDCWD, name, flags | O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}
EXPORT int mkostemp(char *name, int flags) {
    return mkostemps(name, 0, flags);
}
EXPORT int mkstemp(char *name) {
    return mkostemps(name, 0, 0);
}
EXPORT int mkstemp64(char *name) {
    return mkostemps(name, 0, 0);
}
