/* SPDX-License-Identifier: Apache-2.0 */
/* The journal against what happens to it: replay, altered bytes, a second writer, SIGKILL at any
 * moment, and a disk that is full. EACH: in a file and on a server, the same test. */
#include "places.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "store/store.h"

/* Body i of these tests follows from i, so that a reader can tell what must be there. */
static size_t body_of(uint64_t seq, uint8_t *out, size_t cap) {
    size_t n = (size_t)(mix64(seq) % (cap + 1));
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)mix64(seq * 1000 + i);
    return n;
}

static uint16_t kind_of(uint64_t seq) {
    return (uint16_t)(1 + seq % 60000);
}

static enum brg_status append(struct journal *j, size_t count, size_t cap, struct err *e) {
    static uint8_t bodies[64][4096];
    struct record r[64];
    for (size_t i = 0; i < count; i++) {
        uint64_t seq = journal_last_seq(j) + 1 + i;
        r[i] = (struct record){.seq = seq, .kind = kind_of(seq), .body = bodies[i]};
        r[i].bytes = body_of(seq, bodies[i], cap);
    }
    return journal_append(j, r, count, e);
}

struct seen {
    uint64_t next;
    size_t cap;
};

static enum brg_status see(void *user, const struct record *r, struct err *e) {
    struct seen *s = user;
    static uint8_t want[4096];
    size_t n = body_of(r->seq, want, s->cap);
    if (r->seq != s->next || r->kind != kind_of(r->seq) || r->bytes != n ||
        (n > 0 && memcmp(r->body, want, n) != 0)) {
        return err_set(e, BRG_E_INTERNAL, "record %llu differs", (unsigned long long)r->seq);
    }
    s->next++;
    return BRG_OK;
}

static enum brg_status replay(struct journal *j, uint64_t after, size_t cap, struct err *e) {
    struct seen s = {after + 1, cap};
    enum brg_status status = journal_replay(j, after, see, &s, e);
    if (status == BRG_OK) assert_int_equal(s.next, journal_last_seq(j) + 1);
    return status;
}

static void must_open(const char *path, bool create, struct journal **out) {
    struct err e = {0};
    if (journal_open(path, create, out, &e) != BRG_OK) fail_msg("%s", e.text);
}

static const char *name_at(enum place at) {
    static char name[PLACE_BYTES];
    return place_name(at, "journal", name);
}

static const char *journal_path(void) {
    return name_at(PLACE_FILE);
}

/* Another program changes the closed file. */
static void tamper(const char *path, const char *sql) {
    place_tamper(PLACE_FILE, path, sql);
}

EACH(journal_gives_back_what_was_appended) {
    struct journal *j;
    struct err e;
    must_open(name_at(at), true, &j);
    assert_int_equal(journal_last_seq(j), 0);
    struct hash zero = journal_chain(j);
    assert_true(hash_is_zero(&zero));
    assert_int_equal(replay(j, 0, 300, &e), BRG_OK);
    for (size_t round = 0; round < 40; round++) {
        assert_int_equal(append(j, round % 9, 300, &e), BRG_OK);
    }
    uint64_t last = journal_last_seq(j);
    struct hash chain = journal_chain(j);
    assert_int_equal(replay(j, 0, 300, &e), BRG_OK);
    journal_close(j);
    must_open(name_at(at), false, &j);
    struct hash again = journal_chain(j);
    assert_int_equal(journal_last_seq(j), last);
    assert_true(hash_equal(&chain, &again));
    for (uint64_t after = 0; after <= last; after += 7) {
        assert_int_equal(replay(j, after, 300, &e), BRG_OK);
    }
    assert_int_equal(replay(j, last, 300, &e), BRG_OK);
    journal_close(j);
}

EACH(journal_chain_is_the_documented_hash) {
    struct journal *j;
    struct err e;
    must_open(name_at(at), true, &j);
    const struct record r = {
        .seq = 1, .kind = 0x0203, .body = (const uint8_t *)"hello", .bytes = 5};
    assert_int_equal(journal_append(j, &r, 1, &e), BRG_OK);
    const uint8_t input[32 + 8 + 2 + 5] = {[32] = 1, [40] = 3, [41] = 2, [42] = 'h',
                                           'e',      'l',      'l',      'o'};
    struct hash want = hash_of(input, sizeof input), got = journal_chain(j);
    assert_true(hash_equal(&want, &got));
    journal_close(j);
}

TEST(journal_J1_a_wrong_number_is_a_fault_of_the_caller) {
    struct journal *j;
    struct err e;
    must_open(journal_path(), true, &j);
    struct record r = {.seq = 2, .kind = 1};
    assert_check_fails(!journal_append(j, &r, 1, &e));
    r.seq = 0;
    assert_check_fails(!journal_append(j, &r, 1, &e));
    r = (struct record){
        .seq = 1, .kind = 1, .body = (const uint8_t *)"", .bytes = JOURNAL_BODY_MAX + 1};
    assert_check_fails(!journal_append(j, &r, 1, &e));
    journal_close(j);
}

EACH(journal_a_large_body_and_an_empty_one) {
    struct journal *j;
    struct err e;
    must_open(name_at(at), true, &j);
    uint8_t *large = mem_alloc(JOURNAL_BODY_MAX, 1);
    const struct record r[2] = {{1, 1, large, JOURNAL_BODY_MAX}, {2, 2, NULL, 0}};
    assert_int_equal(journal_append(j, r, 2, &e), BRG_OK);
    mem_free(large);
    journal_close(j);
    must_open(name_at(at), false, &j);
    assert_int_equal(journal_last_seq(j), 2);
    journal_close(j);
}

static const struct {
    const char *sql[2], *says; /* of the file, of the server; NULL: as of the file */
} faults[] = {
    {{"UPDATE @journal SET body = x'00' || substr(body, 2) WHERE seq = 5 AND substr(body,1,1) != "
      "x'00'",
      "UPDATE @journal SET body = '\\xff00'::bytea || body WHERE seq = 5"},
     "record 5"},
    {{"UPDATE @journal SET kind = kind + 1 WHERE seq = 17"}, "record 17"},
    {{"UPDATE @journal SET kind = kind + 65536 WHERE seq = 17"}, "record 17"},
    {{"UPDATE @journal SET chain = zeroblob(32) WHERE seq = 9",
      "UPDATE @journal SET chain = decode(repeat('00', 32), 'hex') WHERE seq = 9"},
     "record 9"},
    {{"UPDATE @journal SET chain = x'00' WHERE seq = 9",
      "UPDATE @journal SET chain = '\\x00' WHERE seq = 9"},
     "record 9"},
    {{"DELETE FROM @journal WHERE seq = 12"}, "record 12"},
    {{"DELETE FROM @journal WHERE seq = 1"}, "record 1 "},
    {{"UPDATE @journal SET seq = 1000 WHERE seq = 3"}, "record 3 "},
    {{"UPDATE @journal SET body = 'text' WHERE seq = 20"}, "record 20"},
};

static void gaps_and_altered_bytes(enum place at) {
    for (size_t i = 0; i < ARRAY_COUNT(faults); i++) {
        char name[PLACE_BYTES], tag[16];
        struct journal *j;
        struct err e = {0};
        (void)snprintf(tag, sizeof tag, "f%zu", i);
        must_open(place_name(at, tag, name), true, &j);
        assert_int_equal(append(j, 30, 300, &e), BRG_OK);
        journal_close(j);
        const char *sql = faults[i].sql[at] != NULL ? faults[i].sql[at] : faults[i].sql[0];
        place_tamper(at, name, sql);
        must_open(name, false, &j);
        assert_int_equal(replay(j, 0, 300, &e), BRG_E_JOURNAL);
        if (strstr(e.text, faults[i].says) == NULL) fail_msg("%s: %s", sql, e.text);
        journal_close(j);
    }
}
TEST(journal_J1_gaps_and_altered_bytes_are_found) {
    gaps_and_altered_bytes(PLACE_FILE);
}
TEST(journal_J1_gaps_and_altered_bytes_are_found_postgres) {
    gaps_and_altered_bytes(PLACE_SERVER);
}

TEST(journal_that_is_none_is_refused) {
    struct journal *j = NULL;
    struct err e = {0};
    char path[OS_PATH_MAX];
    assert_int_equal(journal_open(os_path(path, test_dir(), "none.db"), false, &j, &e),
                     BRG_E_MISSING);
    os_path(path, test_dir(), "noise.db");
    uint8_t noise[8192];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)mix64(i);
    assert_int_equal(os_write_file_atomic(path, noise, sizeof noise, &e), BRG_OK);
    assert_int_equal(journal_open(path, false, &j, &e), BRG_E_JOURNAL);
    os_path(path, test_dir(), "empty.db");
    assert_int_equal(os_write_file_atomic(path, "", 0, &e), BRG_OK);
    assert_int_equal(journal_open(path, false, &j, &e), BRG_E_JOURNAL);
    tamper(path, "CREATE TABLE other(x)");
    assert_int_equal(journal_open(path, false, &j, &e), BRG_E_JOURNAL);
    must_open(os_path(path, test_dir(), "new.db"), true, &j);
    journal_close(j);
    assert_int_equal(journal_open(path, true, &j, &e), BRG_E_EXISTS);
    tamper(path, "UPDATE meta SET value = '2'");
    assert_int_equal(journal_open(path, false, &j, &e), BRG_E_JOURNAL);
    assert_non_null(strstr(e.text, "format"));
    assert_null(strstr(e.text, "\n"));
}

EACH(journal_snapshots_are_kept_and_checked) {
    struct journal *j;
    struct err e;
    struct buf b;
    uint64_t seq = 99;
    buf_init(&b, 1 << 22);
    must_open(name_at(at), true, &j);
    assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_OK);
    assert_int_equal(seq, 0);
    assert_int_equal(b.bytes_count, 0);
    assert_int_equal(append(j, 30, 300, &e), BRG_OK);
    uint8_t *big = mem_alloc(1 << 20, 1);
    for (uint64_t to = 10; to <= 30; to += 10) {
        big[0] = (uint8_t)to;
        assert_int_equal(journal_snapshot_put(j, to, big, 1 << 20, &e), BRG_OK);
        assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_OK);
        assert_int_equal(seq, to);
        assert_int_equal(b.bytes_count, 1 << 20);
        assert_int_equal(b.data[0], to);
    }
    mem_free(big);
    assert_int_equal(replay(j, seq, 300, &e), BRG_OK);
    assert_int_equal(replay(j, 0, 300, &e), BRG_OK); /* the records before it stay */
    assert_check_fails(!journal_snapshot_put(j, 31, "x", 1, &e));
    journal_close(j);
    place_tamper(at, name_at(at),
                 at == PLACE_FILE ? "UPDATE snapshot SET data = x'00' WHERE seq = 30"
                                  : "UPDATE @snapshot SET data = '\\x00' WHERE seq = 30");
    must_open(name_at(at), false, &j);
    assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_E_JOURNAL);
    journal_close(j);
    place_tamper(at, name_at(at), "DELETE FROM @snapshot WHERE seq = 30");
    must_open(name_at(at), false, &j);
    assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_OK);
    assert_int_equal(seq, 20); /* the one before is kept, the one before that is not */
    journal_close(j);
    place_tamper(at, name_at(at), "DELETE FROM @snapshot WHERE seq = 20");
    must_open(name_at(at), false, &j);
    assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_OK);
    assert_int_equal(seq, 0);
    journal_close(j);
    buf_fini(&b);
}

EACH(journal_second_writer_is_refused) {
    struct journal *j;
    const char *name = name_at(at); /* of this process: a child has its own */
    must_open(name, true, &j);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct journal *other;
        struct err e;
        _exit(journal_open(name, false, &other, &e));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), BRG_E_BUSY);
    struct journal *twice = NULL;
    struct err e;
    assert_int_equal(journal_open(name_at(at), false, &twice, &e), BRG_E_BUSY);
    journal_close(j);
    must_open(name_at(at), false, &twice);
    journal_close(twice);
}

/* The lock is got round; what remains is the number in the file. */
TEST(journal_J3_an_older_writer_is_fenced_in_every_transaction) {
    struct journal *old, *new;
    struct err e;
    char lock[300];
    (void)snprintf(lock, sizeof lock, "%s.lock", journal_path());
    assert_int_equal(journal_open(journal_path(), true, &old, &e), BRG_OK);
    assert_int_equal(append(old, 3, 100, &e), BRG_OK);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(journal_open(journal_path(), false, &new, &e), BRG_OK);
    assert_int_equal(append(old, 1, 100, &e), BRG_OK); /* the newer one has not begun to write */
    assert_int_equal(append(new, 1, 100, &e), BRG_E_FENCED); /* and has read too early */
    journal_close(new);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(journal_open(journal_path(), false, &new, &e), BRG_OK);
    assert_int_equal(append(new, 1, 100, &e), BRG_OK);
    assert_int_equal(append(old, 1, 100, &e), BRG_E_FENCED);
    assert_non_null(strstr(e.text, "another hub"));
    assert_int_equal(journal_snapshot_put(old, 4, "x", 1, &e), BRG_E_FENCED);
    assert_int_equal(append(old, 2, 100, &e), BRG_E_FENCED); /* for good */
    assert_int_equal(append(new, 2, 100, &e), BRG_OK);
    struct seen s = {.next = 1, .cap = 100};
    assert_int_equal(journal_replay(new, 0, see, &s, &e), BRG_OK);
    assert_int_equal(s.next, 8);
    journal_close(old);
    journal_close(new);
}

TEST(journal_a_reader_beside_the_writer_sees_whole_batches) {
    struct journal *j;
    struct err e;
    must_open(journal_path(), true, &j);
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open_v2(journal_path(), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT count(*), max(seq) FROM journal", -1, &stmt, NULL),
        SQLITE_OK);
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(append(j, 5, 100, &e), BRG_OK);
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(stmt, 0), 5 * i);
        assert_int_equal(sqlite3_column_int(stmt, 1), 5 * i);
        sqlite3_reset(stmt);
    }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    journal_close(j);
}

/* ---- kill -9 --------------------------------------------------------------------------------- */
/* Appends for ever; after each acknowledged batch writes the last number into the pipe. */
static _Noreturn void appender(int pipe_fd, const char *path) {
    struct journal *j;
    struct err e;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (journal_open(path, false, &j, &e) != BRG_OK) _exit(1);
    for (;;) {
        size_t count = 1 + (size_t)(mix64(journal_last_seq(j)) % 20);
        if (append(j, count, 2000, &e) != BRG_OK) _exit(2);
        uint64_t last = journal_last_seq(j);
        if (last % 7 == 0 && journal_snapshot_put(j, last, &last, sizeof last, &e) != BRG_OK)
            _exit(3);
        if (write(pipe_fd, &last, sizeof last) != sizeof last) _exit(4);
    }
}

/* Kills the appender at a random moment; gives the last number that it was told is durable. */
static uint64_t kill_once(struct prng *r, const char *path) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        appender(fds[1], path);
    }
    close(fds[1]);
    uint64_t last = 0, got;
    assert_int_equal(read(fds[0], &got, sizeof got), sizeof got); /* it is up */
    last = got;
    struct timespec nap = {0, (long)prng_below(r, 15 * NS_PER_MS)};
    nanosleep(&nap, NULL);
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (read(fds[0], &got, sizeof got) == sizeof got) last = got;
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    close(fds[0]);
    return last;
}

static void records_survive_kill_9(enum place at, int rounds) {
    struct prng r;
    struct journal *j;
    struct err e = {0};
    char name[PLACE_BYTES];
    place_name(at, "journal", name);
    prng_seed(&r, 20);
    must_open(name, true, &j);
    journal_close(j);
    for (int round = 0; round < rounds; round++) {
        uint64_t acknowledged = kill_once(&r, name);
        must_open(name, false, &j);
        assert_true(journal_last_seq(j) >= acknowledged);
        if (replay(j, 0, 2000, &e) != BRG_OK) fail_msg("%s", e.text);
        struct buf b;
        uint64_t seq;
        buf_init(&b, 64);
        assert_int_equal(journal_snapshot_get(j, &seq, &b, &e), BRG_OK);
        assert_true(seq <= journal_last_seq(j));
        buf_fini(&b);
        journal_close(j);
    }
}
TEST_TIMEOUT(journal_J2_acknowledged_records_survive_kill_9, 240) {
    records_survive_kill_9(PLACE_FILE, 60);
}
TEST_TIMEOUT(journal_J2_acknowledged_records_survive_kill_9_postgres, 240) {
    records_survive_kill_9(PLACE_SERVER, 12);
}

/* ---- A full disk ----------------------------------------------------------------------------- */
static void fill_disk(const char *path) {
    static uint8_t block[65536];
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    while (fwrite(block, 1, sizeof block, f) == sizeof block) continue;
    for (size_t i = 0; i < 64 && fwrite(block, 1, 1024, f) == 1024; i++) continue;
    fclose(f);
}

TEST(journal_J2_a_full_disk_refuses_and_loses_nothing) {
    char dir[OS_PATH_MAX], path[OS_PATH_MAX], ballast[OS_PATH_MAX];
    os_path(dir, test_dir(), "small");
    assert_int_equal(mkdir(dir, 0777), 0);
    if (mount("tmpfs", dir, "tmpfs", 0, "size=4m") != 0)
        SKIP("cannot mount a tmpfs: %s", strerror(errno));
    os_path(path, dir, "journal.db");
    os_path(ballast, dir, "ballast");
    struct journal *j;
    struct err e = {0};
    must_open(path, true, &j);
    enum brg_status s = BRG_OK;
    assert_int_equal(append(j, 20, 2000, &e), BRG_OK);
    fill_disk(ballast);
    uint64_t acknowledged = journal_last_seq(j);
    for (int i = 0; i < 1000 && s == BRG_OK; i++) {
        acknowledged = journal_last_seq(j);
        s = append(j, 20, 2000, &e);
    }
    struct hash chain = journal_chain(j);
    bool full = s == BRG_E_FULL, same = journal_last_seq(j) == acknowledged;
    bool still = append(j, 20, 2000, &e) == BRG_E_FULL; /* it can be tried again */
    bool told = strstr(e.text, "journal.db") != NULL;
    bool readable = replay(j, 0, 2000, &e) == BRG_OK;
    unlink(ballast);
    bool again = append(j, 20, 2000, &e) == BRG_OK; /* space came back, without a restart */
    uint64_t last = journal_last_seq(j);
    bool snapshot = journal_snapshot_put(j, last, &chain, sizeof chain, &e) == BRG_OK;
    journal_close(j);
    must_open(path, false, &j);
    bool whole = journal_last_seq(j) == last && replay(j, 0, 2000, &e) == BRG_OK;
    journal_close(j);
    umount2(dir, MNT_DETACH);
    assert_true(full);
    assert_true(same);
    assert_true(still);
    assert_true(told);
    assert_true(readable);
    assert_true(again);
    assert_true(snapshot);
    assert_true(whole);
    assert_int_equal(last, acknowledged + 20);
}

/* A record that cannot be read back correctly must never be built upon: damage that SQLite itself
 * sees while writing ends the process with E_IO. */
TEST(journal_damage_seen_while_writing_ends_the_process) {
    struct journal *j;
    struct err e;
    must_open(journal_path(), true, &j);
    for (int i = 0; i < 40; i++) assert_int_equal(append(j, 60, 2000, &e), BRG_OK);
    journal_close(j);
    FILE *f = fopen(journal_path(), "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long bytes = ftell(f);
    static uint8_t noise[4096];
    memset(noise, 0xee, sizeof noise);
    for (long at = 4096 * 4; at + 4096 <= bytes;
         at += 4096) { /* all but the schema and the roots */
        fseek(f, at, SEEK_SET);
        fwrite(noise, 1, sizeof noise, f);
    }
    fclose(f);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        enum brg_status s = journal_open(journal_path(), false, &j, &e);
        if (s != BRG_OK) _exit(s);
        for (int i = 0; i < 200; i++) (void)!append(j, 60, 2000, &e);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == BRG_E_IO || WEXITSTATUS(status) == BRG_E_JOURNAL);
}
