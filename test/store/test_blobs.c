/* SPDX-License-Identifier: Apache-2.0 */
/* Blobs: offsets, resume, wrong hashes, sweeping, names. */
#include "../harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "store/store.h"

enum { BYTES = 100000 };
static uint8_t content[BYTES];
static const struct id128 key = {{1, 2, 3, 0xff}};

static struct blobs *open_blobs(void) {
    struct blobs *b;
    struct err e = {0};
    if (blobs_open(test_dir(), &b, &e) != BRG_OK) fail_msg("%s", e.text);
    for (size_t i = 0; i < BYTES; i++) content[i] = (uint8_t)mix64(i);
    return b;
}

static uint64_t part_bytes(struct blobs *b) {
    uint64_t n = 77;
    assert_int_equal(blobs_part_bytes(b, &key, &n), BRG_OK);
    return n;
}

static void put_all(struct blobs *b) {
    struct err e;
    assert_int_equal(blobs_part_write(b, &key, part_bytes(b), content, BYTES, &e), BRG_OK);
}

TEST(blobs_B2_pieces_arrive_in_order_only) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    struct hash h = hash_of(content, BYTES);
    assert_int_equal(part_bytes(b), 0);
    assert_int_equal(blobs_part_write(b, &key, 1, content, 10, &e), BRG_E_MESSAGE);
    assert_int_equal(part_bytes(b), 0);
    for (size_t at = 0; at < BYTES; at += 7000) {
        size_t n = BYTES - at < 7000 ? BYTES - at : 7000;
        assert_int_equal(blobs_part_write(b, &key, at, content + at, n, &e), BRG_OK);
        assert_int_equal(part_bytes(b), at + n);
        assert_int_equal(blobs_part_write(b, &key, at, content + at, n, &e),
                         BRG_E_MESSAGE); /* again */
        assert_non_null(strstr(e.text, "next byte is"));
        assert_int_equal(blobs_part_write(b, &key, at + n + 1, content, 1, &e), BRG_E_MESSAGE);
        assert_int_equal(part_bytes(b), at + n);
        if (at == 49000) { /* a restart in between */
            blobs_close(b);
            b = open_blobs();
            assert_int_equal(blobs_sweep(b, &e), BRG_OK);
        }
    }
    assert_false(blobs_has(b, &h));
    assert_int_equal(blobs_part_finish(b, &key, BYTES + 1, &h, &e), BRG_E_MESSAGE);
    assert_int_equal(blobs_part_finish(b, &key, BYTES, &h, &e), BRG_OK);
    assert_true(blobs_has(b, &h));
    assert_int_equal(part_bytes(b), 0);
    assert_int_equal(blobs_verify(b, &h, &e), BRG_OK);
    assert_int_equal(blobs_part_finish(b, &key, BYTES, &h, &e), BRG_OK); /* its answer was lost */
    blobs_close(b);
}

TEST(blobs_B1_a_wrong_hash_gets_no_name) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    struct hash h = hash_of(content, BYTES), wrong = h;
    wrong.v[31] ^= 1;
    put_all(b);
    assert_int_equal(blobs_part_finish(b, &key, BYTES, &wrong, &e), BRG_E_CORRUPT);
    assert_int_equal(part_bytes(b), 0); /* dropped: it cannot become right */
    assert_false(blobs_has(b, &wrong));
    assert_false(blobs_has(b, &h));
    put_all(b);
    assert_int_equal(blobs_part_finish(b, &key, BYTES - 1, &h, &e), BRG_E_CORRUPT); /* too long */
    assert_int_equal(part_bytes(b), 0);
    assert_int_equal(blobs_part_finish(b, &key, BYTES, &h, &e), BRG_E_MISSING);
    put_all(b);
    assert_int_equal(blobs_part_drop(b, &key), BRG_OK);
    assert_int_equal(blobs_part_drop(b, &key), BRG_OK);
    assert_int_equal(part_bytes(b), 0);
    blobs_close(b);
}

TEST(blobs_verify_finds_a_changed_byte_and_remove_is_repeatable) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    char path[OS_PATH_MAX];
    struct hash h = hash_of(content, BYTES);
    put_all(b);
    assert_int_equal(blobs_part_finish(b, &key, BYTES, &h, &e), BRG_OK);
    blobs_path(b, &h, path);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, BYTES / 2, SEEK_SET);
    fputc(content[BYTES / 2] ^ 1, f);
    fclose(f);
    assert_int_equal(blobs_verify(b, &h, &e), BRG_E_CORRUPT);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(blobs_remove(b, &h, &e), BRG_OK);
    assert_int_equal(blobs_remove(b, &h, &e), BRG_OK);
    assert_false(blobs_has(b, &h));
    assert_int_equal(blobs_verify(b, &h, &e), BRG_E_MISSING);
    blobs_close(b);
}

/* The n-th fsync from now fails, as a disk that reports an error once; what it was of must be written
 * anew before an fsync of it may succeed (B4). */
static struct {
    int fail_at, calls, repeats;
    ino_t failed;
    struct timespec changed;
} disk;

int fsync(int fd) {
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    if (++disk.calls == disk.fail_at) {
        disk.failed = st.st_ino;
        disk.changed = st.st_ctim;
        errno = EIO;
        return -1;
    }
    bool same = disk.failed == st.st_ino && disk.changed.tv_sec == st.st_ctim.tv_sec &&
                disk.changed.tv_nsec == st.st_ctim.tv_nsec;
    disk.repeats += same;
    return (int)syscall(SYS_fsync, fd);
}

static const struct timespec tick = {.tv_nsec = 30 * 1000 * 1000}; /* of the file system's clock */

TEST(blobs_B4_a_failed_fsync_is_never_merely_repeated) {
    struct err e;
    struct hash h = hash_of(content, BYTES);
    bool done = false;
    for (int n = 1; !done; n++) {
        struct blobs *b = open_blobs();
        h = hash_of(content, BYTES);
        put_all(b);
        nanosleep(&tick, NULL);
        memset(&disk, 0, sizeof disk);
        disk.fail_at = n;
        done = blobs_part_finish(b, &key, BYTES, &h, &e) == BRG_OK;
        assert_true(done || n < 20);
        nanosleep(&tick, NULL);
        for (int again = 0; again < 2 && !done; again++) { /* as COMMIT comes again */
            if (!blobs_has(b, &h) && part_bytes(b) == 0) put_all(b);
            enum brg_status s = blobs_has(b, &h) ? blobs_sync_name(b, &h, &e)
                                                 : blobs_part_finish(b, &key, BYTES, &h, &e);
            assert_int_equal(s, BRG_OK);
            assert_true(blobs_has(b, &h));
        }
        assert_int_equal(disk.repeats, 0);
        disk.fail_at = 0;
        assert_int_equal(blobs_remove(b, &h, &e), BRG_OK);
        blobs_close(b);
    }
    assert_true(disk.calls >= 4); /* the part, the directories */
}

TEST(blobs_adopt_takes_a_finished_file) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    char path[OS_PATH_MAX];
    struct hash h = hash_of(content, BYTES);
    os_path(path, test_dir(), "incoming/merge.tmp");
    assert_int_equal(os_write_file_atomic(path, content, BYTES, &e), BRG_OK);
    assert_int_equal(blobs_adopt(b, path, &h, &e), BRG_OK);
    assert_false(os_exists(path));
    assert_int_equal(blobs_verify(b, &h, &e), BRG_OK);
    assert_int_equal(blobs_adopt(b, path, &h, &e), BRG_E_MISSING);
    blobs_close(b);
}

TEST(blobs_sweep_removes_leftovers_and_keeps_what_may_be_resumed) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    char fresh[OS_PATH_MAX], old[OS_PATH_MAX], tmp[OS_PATH_MAX], link_path[OS_PATH_MAX],
        odd[OS_PATH_MAX];
    put_all(b);
    os_path(fresh, test_dir(), "incoming/010203ff000000000000000000000000.part");
    assert_true(os_exists(fresh));
    os_path(old, test_dir(), "incoming/ffffffffffffffffffffffffffffffff.part");
    os_path(tmp, test_dir(), "incoming/merge-12.tmp");
    os_path(odd, test_dir(), "incoming/0102030405060708090a0b0c0d0e0fzz.part");
    os_path(link_path, test_dir(), "incoming/00000000000000000000000000000000.part");
    assert_int_equal(os_write_file_atomic(old, "x", 1, &e), BRG_OK);
    assert_int_equal(os_write_file_atomic(tmp, "x", 1, &e), BRG_OK);
    assert_int_equal(os_write_file_atomic(odd, "x", 1, &e), BRG_OK);
    assert_int_equal(symlink("/etc/hostname", link_path), 0);
    const struct timespec days_ago[2] = {{1000000, 0}, {1000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, old, days_ago, 0), 0);
    assert_int_equal(blobs_sweep(b, &e), BRG_OK);
    assert_true(os_exists(fresh));
    assert_false(os_exists(old));
    assert_false(os_exists(tmp));
    assert_false(os_exists(odd));
    struct stat st;
    assert_int_equal(lstat(link_path, &st), -1);
    blobs_close(b);
}

/* Every file under the run lies where hash or key say, whatever their bytes are; and a link that
 * somebody put in the place of a part is not followed. */
TEST(blobs_names_come_from_hash_and_key_alone) {
    struct blobs *b = open_blobs();
    struct err e = {0};
    char path[OS_PATH_MAX], outside[OS_PATH_MAX];
    const struct id128 nasty = {{'.', '.', '/', 0, '/', '\n', 0xff, '%', 's'}};
    struct hash h = {{'.', '.', '/', 0, '/'}};
    blobs_path(b, &h, path);
    char want[OS_PATH_MAX];
    os_path(want, test_dir(), "blobs/2e/2e2e2f002f%054d", 0);
    assert_string_equal(path, want);
    assert_int_equal(blobs_part_write(b, &nasty, 0, "x", 1, &e), BRG_OK);
    os_path(path, test_dir(), "incoming/2e2e2f002f0aff257300000000000000.part");
    assert_int_equal(os_file_bytes(path), 1);
    assert_int_equal(unlink(path), 0);
    os_path(outside, test_dir(), "outside");
    assert_int_equal(symlink(outside, path), 0);
    assert_true(blobs_part_write(b, &nasty, 0, "x", 1, &e) != BRG_OK);
    assert_false(os_exists(outside));
    blobs_close(b);
}

/* Several writers of one key at once: exactly one piece is accepted at each offset. */
TEST(blobs_B2_writers_of_one_key_do_not_mix) {
    struct blobs *b = open_blobs();
    enum { WRITERS = 4, PIECES = 300, PIECE = 100 };
    for (int w = 0; w < WRITERS; w++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid != 0) continue;
        int accepted = 0;
        for (;;) {
            struct err e;
            uint64_t at;
            if (blobs_part_bytes(b, &key, &at) != BRG_OK || at >= PIECES * PIECE) break;
            if (at % PIECE != 0) continue; /* somebody is in the middle of a piece */
            accepted += blobs_part_write(b, &key, at, content + at, PIECE, &e) == BRG_OK;
        }
        _exit(accepted > 0 ? 0 : 9);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status));
    }
    struct err e = {0};
    struct hash h = hash_of(content, PIECES * PIECE);
    if (blobs_part_finish(b, &key, PIECES * PIECE, &h, &e) != BRG_OK) fail_msg("%s", e.text);
    blobs_close(b);
}

TEST(blobs_B2_a_full_disk_keeps_the_part_as_it_was) {
    char dir[OS_PATH_MAX];
    os_path(dir, test_dir(), "small");
    assert_int_equal(mkdir(dir, 0777), 0);
    if (mount("tmpfs", dir, "tmpfs", 0, "size=64k") != 0)
        SKIP("cannot mount a tmpfs: %s", strerror(errno));
    struct blobs *b;
    struct err e = {0};
    uint64_t bytes = 0;
    bool opened = blobs_open(dir, &b, &e) == BRG_OK;
    bool first = opened && blobs_part_write(b, &key, 0, content, 30000, &e) == BRG_OK;
    bool full = opened &&
                blobs_part_write(b, &key, 30000, content, BYTES - 30000, &e) == BRG_E_FULL;
    bool told = opened && blobs_part_bytes(b, &key, &bytes) == BRG_OK;
    if (opened) blobs_close(b);
    umount2(dir, MNT_DETACH);
    assert_true(opened);
    assert_true(first);
    assert_true(full);
    assert_true(told);
    assert_int_equal(bytes, 30000);
}
