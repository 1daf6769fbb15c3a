/* SPDX-License-Identifier: Apache-2.0 */
/* os.h - base's shore: files, directories, locks, clocks, randomness from the system. Only files
 * named *_os.c, the command line and tests include it. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <stdio.h>
#include <sys/types.h>

#include "base/base.h"

time_ns os_now(void);                /* CLOCK_MONOTONIC */
time_ns os_wall(void);               /* CLOCK_REALTIME, for logs and records only */
void os_random(void *out, size_t n); /* getrandom; stops the process where that fails */

/* Reads a whole file of at most bytes_max into out (which it resets). Text in *e names the file. */
enum brg_status os_read_file(const char *path, size_t bytes_max, struct buf *out, struct err *e)
    MUST_USE;
/* Replaces path by the bytes: temporary name beside it, write, fsync, rename, fsync of the directory. */
enum brg_status os_write_file_atomic(const char *path, const void *data, size_t n, struct err *e)
    MUST_USE;
/* The same, readable by this user alone: a token, a key. */
enum brg_status os_write_secret_atomic(const char *path, const void *data, size_t n, struct err *e)
    MUST_USE;
enum brg_status os_mkdirs(const char *path, struct err *e) MUST_USE; /* like mkdir -p, mode 0777 */
enum brg_status os_fsync_dir(const char *path, struct err *e) MUST_USE;
enum brg_status os_rename_durable(const char *from, const char *to, struct err *e) MUST_USE;
bool os_exists(const char *path);
int64_t os_file_bytes(const char *path); /* -1 where there is none */
/* The status that stands for errno, and a text that names what was tried: ENOSPC and EDQUOT are
 * E_FULL, ENOENT is E_MISSING, the rest E_IO. */
enum brg_status os_errno(struct err *e, int errno_value, const char *what, const char *path);

enum brg_status os_read_all(int fd, void *data, size_t n, const char *path, struct err *e) MUST_USE;
enum brg_status os_write_all(int fd, const void *data, size_t n, const char *path, struct err *e)
    MUST_USE;
enum brg_status os_pread_all(int fd, void *data, size_t n, uint64_t offset, const char *path,
                             struct err *e) MUST_USE;
enum brg_status os_pwrite_all(int fd, const void *data, size_t n, uint64_t offset, const char *path,
                              struct err *e) MUST_USE;

/* An exclusive lock on path (created) that lives as long as the descriptor: E_BUSY names the holder's
 * pid where it is known. The descriptor is close-on-exec. */
enum brg_status os_lock(const char *path, int *out_fd, struct err *e) MUST_USE;

enum { OS_PATH_MAX = 4096 };
/* dir + "/" + name into out; stops the process where it does not fit. */
const char *os_path(char out[OS_PATH_MAX], const char *dir, const char *fmt, ...) PRINTF_LIKE(3, 4);

void os_close_cleanup(int *fd);
void os_fclose_cleanup(FILE **f);
#define AUTO_CLOSE __attribute__((cleanup(os_close_cleanup)))
#define AUTO_FCLOSE __attribute__((cleanup(os_fclose_cleanup)))

#endif
