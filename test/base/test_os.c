/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"

static int entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

TEST(os_write_file_atomic_replaces_and_leaves_nothing_else) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf b = {0};
    os_path(path, test_dir(), "file.%d", 1);
    assert_int_equal(os_write_file_atomic(path, "one", 3, &e), BRG_OK);
    assert_int_equal(os_write_file_atomic(path, "second", 6, &e), BRG_OK);
    assert_int_equal(os_read_file(path, 100, &b, &e), BRG_OK);
    assert_string_equal(buf_cstr(&b), "second");
    assert_int_equal(os_file_bytes(path), 6);
    assert_int_equal(entries(test_dir()), 1);
    assert_int_equal(os_read_file(path, 5, &b, &e), BRG_E_LIMIT);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(os_read_file(path, 6, &b, &e), BRG_OK);
    assert_int_equal(os_write_file_atomic("/nonexistent/x", "", 0, &e), BRG_E_MISSING);
    assert_int_equal(os_read_file(test_dir(), 10, &b, &e), BRG_E_IO);
}

TEST(os_a_full_disk_is_E_FULL) {
    struct err e = {0};
    AUTO_CLOSE int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (fd < 0) SKIP("no /dev/full here");
    assert_int_equal(os_write_all(fd, "x", 1, "/dev/full", &e), BRG_E_FULL);
    assert_non_null(strstr(e.text, "/dev/full"));
    assert_non_null(strstr(e.text, "free space"));
    assert_int_equal(os_errno(NULL, EDQUOT, "write", "x"), BRG_E_FULL);
    assert_int_equal(os_errno(NULL, ENOENT, "open", "x"), BRG_E_MISSING);
    assert_int_equal(os_errno(NULL, EIO, "read", "x"), BRG_E_IO);
}

TEST(os_mkdirs_makes_what_is_missing) {
    char path[OS_PATH_MAX], other[OS_PATH_MAX];
    struct err e = {0};
    os_path(path, test_dir(), "a//b/c/");
    assert_int_equal(os_mkdirs(path, &e), BRG_OK);
    assert_int_equal(os_mkdirs(path, &e), BRG_OK);
    assert_true(os_exists(path));
    assert_int_equal(os_file_bytes(path), -1);
    os_path(path, test_dir(), "a/file");
    assert_int_equal(os_write_file_atomic(path, "x", 1, &e), BRG_OK);
    os_path(other, test_dir(), "a/file/deeper");
    assert_int_equal(os_mkdirs(other, &e), BRG_E_IO);
    assert_int_equal(os_mkdirs("", &e), BRG_E_MISSING);
    os_path(other, test_dir(), "a/b/moved");
    assert_int_equal(os_rename_durable(path, other, &e), BRG_OK);
    assert_false(os_exists(path));
    assert_int_equal(os_rename_durable(path, other, &e), BRG_E_MISSING);
    assert_int_equal(os_file_bytes(other), 1);
}

TEST(os_pread_says_where_a_file_is_cut) {
    char path[OS_PATH_MAX], got[8];
    struct err e = {0};
    os_path(path, test_dir(), "f");
    assert_int_equal(os_write_file_atomic(path, "0123456789", 10, &e), BRG_OK);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(os_pread_all(fd, got, 4, 6, path, &e), BRG_OK);
    assert_memory_equal(got, "6789", 4);
    assert_int_equal(os_pread_all(fd, got, 5, 6, path, &e), BRG_E_IO);
    assert_non_null(strstr(e.text, "ends too early"));
    assert_int_equal(os_pread_all(fd, got, 1, UINT64_MAX, path, &e), BRG_E_IO);
    assert_int_equal(os_pwrite_all(fd, "xy", 2, 8, path, &e), BRG_OK);
    assert_int_equal(os_pwrite_all(fd, "xy", 2, UINT64_MAX, path, &e), BRG_E_IO);
    assert_int_equal(os_read_all(fd, got, 8, path, &e), BRG_OK);
    assert_int_equal(os_read_all(fd, got, 8, path, &e), BRG_E_IO);
}

TEST(os_lock_is_exclusive_and_names_its_holder) {
    char path[OS_PATH_MAX], pid[32];
    struct err e = {0};
    int first = -1, second = -1;
    os_path(path, test_dir(), "lock");
    assert_int_equal(os_lock(path, &first, &e), BRG_OK);
    assert_true(fcntl(first, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(os_lock(path, &second, &e), BRG_E_BUSY);
    assert_int_equal(second, -1);
    snprintf(pid, sizeof pid, "pid %ld on ", (long)getpid());
    assert_non_null(strstr(e.text, pid));
    close(first);
    assert_int_equal(os_lock(path, &second, &e), BRG_OK);
    close(second);
}

/* The exit status and standard error of a child that runs f. */
static int child(void (*f)(void), struct buf *out) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        f();
        _exit(0);
    }
    close(ends[1]);
    char chunk[256];
    ssize_t n;
    while ((n = read(ends[0], chunk, sizeof chunk)) > 0) buf_put(out, chunk, (size_t)n);
    close(ends[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void use_too_much(void) {
    volatile size_t huge = SIZE_MAX / 4;
    mem_free(mem_alloc(huge, 8));
}

TEST(os_out_of_memory_ends_with_21_and_a_line) {
    AUTO_BUF struct buf b = {.bytes_max = 10000};
    assert_int_equal(child(use_too_much, &b), BRG_E_MEMORY);
    assert_non_null(strstr(buf_cstr(&b), "ev=out_of_memory"));
}

static void log_some(void) {
    char text[5000];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    log_line(LOG_DEBUG, "base", "hidden", "x=1");
    log_line(LOG_INFO, "base", "shown", "x=%d name=%s", 1, "a\nlvl=error");
    log_line(LOG_WARN, "base", "bare", NULL);
    log_line(LOG_WARN, "base", "long", "y=%s", text);
    log_level_set(LOG_TRACE);
    log_line(LOG_TRACE, "base", "traced", "x=2");
}

TEST(os_log_is_one_line_an_event) {
    AUTO_BUF struct buf b = {.bytes_max = 20000};
    assert_int_equal(child(log_some, &b), 0);
    const char *text = buf_cstr(&b);
    assert_null(strstr(text, "hidden"));
    assert_non_null(strstr(text, "Z lvl=info room=base ev=shown x=1 name=a lvl=error\n"));
    assert_non_null(strstr(text, " lvl=warn room=base ev=bare\n"));
    assert_non_null(strstr(text, "ev=traced x=2\n"));
    int lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, 4);
    assert_int_equal(strncmp(text, "ts=20", 5), 0);
    assert_true(b.bytes_count < 4500);
}

TEST(os_log_quote_is_safe_and_bounded) {
    char q[32];
    assert_string_equal(log_quote("plain", q, sizeof q), "plain");
    assert_string_equal(log_quote("", q, sizeof q), "\"\"");
    assert_string_equal(log_quote("a b=\"c\"\\\n\x01", q, sizeof q), "\"a b=\\\"c\\\"\\\\\\n?\"");
    for (size_t cap = 8; cap < sizeof q; cap++) {
        memset(q, 0x55, sizeof q);
        log_quote("\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"", q, cap);
        assert_true(strlen(q) < cap);
        assert_int_equal(q[strlen(q) - 1], '"');
        for (size_t i = cap; i < sizeof q; i++) assert_int_equal(q[i], 0x55);
    }
    enum log_level level = LOG_ERROR;
    assert_true(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_DEBUG);
    assert_false(log_level_parse("loud", &level));
}

TEST(os_clocks_and_randomness) {
    time_ns a = os_now(), b = os_now();
    assert_true(b >= a);
    assert_true(os_wall() > (time_ns)1600000000 * NS_PER_S);
    uint8_t x[32] = {0}, y[32] = {0};
    os_random(x, sizeof x);
    os_random(y, sizeof y);
    assert_memory_not_equal(x, y, sizeof x);
}
