/* SPDX-License-Identifier: Apache-2.0 */
/* journal_sqlite_os.c - the journal as one SQLite file: the first kind of journal_os.h.
 *
 * What it is: an append-only list with one writer, group commit, and snapshots that shorten replay.
 * What it is not: a place that knows what a record means (that is hub), nor a queue.
 *
 *   closed --open--> ready --append--> ready        E_FULL: rolled back, nothing acknowledged, go on
 *                      |  `--append--> the process ends    (IOERR, CORRUPT: see below)
 *                      `--close--> closed
 *
 *   journal (seq INTEGER PRIMARY KEY, kind INT, body BLOB, chain BLOB)      seq = 1, 2, 3, ...
 *   snapshot(seq INTEGER PRIMARY KEY, data BLOB, sum BLOB)                  the two newest stay
 *   meta    (name TEXT PRIMARY KEY, value TEXT)                   format = 1, fence = 1, 2, ...
 * *
 * Durability. WAL with synchronous=FULL: one fsync of the log for each transaction, however many
 * records it holds. When an fsync fails, the kernel may have dropped the dirty pages and reported
 * it once; a second fsync would succeed and prove nothing. So after SQLITE_IOERR or SQLITE_CORRUPT
 * on the writing side the process ends and the next start reads what is really on disk. A full
 * disk is different: the write itself failed, SQLite rolls back, and the hub goes on refusing
 * until there is space.
 *
 * One connection in one process. A lock file beside the database keeps a second hub out, which
 * also keeps clear of a SQLite bug (fixed in 3.51.3) in which two connections that checkpoint at
 * once may corrupt the database. The log is checkpointed here, after a commit, because SQLite's
 * own automatic checkpoint does not report a failed fsync to anybody.
 *
 * The lock can fail: a network file system that forgets locks, a copy of the directory, somebody who
 * removes the file. So every writing process has a fence: its first transaction raises the number in
 * `meta`, and each transaction after that looks whether it still stands there. An older process that
 * wakes up writes nothing more and is told E_FENCED, in a record of any kind and in a snapshot.
 * (J1, J2, J3: journal_os.c.) */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/journal_os.h"

enum {
    CHECKPOINT_PAGES = 4096,           /* 16 MB of log before it is folded into the file */
    WAL_KEPT_BYTES = 64 * 1024 * 1024, /* a log that grew beyond this is cut when it is reset */
    BUSY_MS = 5000,                    /* an auditor that reads may hold a lock for a moment */
};

struct lite {
    struct journal base;
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *rollback, *insert, *snapshot_insert, *snapshot_trim;
    sqlite3_stmt *fence_get, *fence_set;
    uint64_t fence; /* 0: nothing written yet */
    int lock_fd;
    int wal_pages; /* after the newest commit */
};

static struct lite *lite_of(struct journal *j) {
    return (struct lite *)j; /* base is its first member */
}

/* ---- What SQLite said ------------------------------------------------------------------------ */

/* The world is wrong in a way that only a new start can look at: ends the process. */
static _Noreturn void die(const struct lite *j, const char *what) {
    char quoted[OS_PATH_MAX + 8];
    log_line(LOG_ERROR, "store", "journal_failed",
             "doing=\"%s\" path=%s code=%d errno=%d cause=\"%s\" "
             "remedy=\"check the disk, then start again: what was acknowledged is on disk\"",
             what, log_quote(j->base.name, quoted, sizeof quoted), sqlite3_extended_errcode(j->db),
             sqlite3_system_errno(j->db), sqlite3_errmsg(j->db));
    _exit(BRG_E_IO);
}

/* SHMSIZE is how a full disk shows in the index of the log, which is no data. */
static bool is_full(const struct lite *j) {
    int code = sqlite3_extended_errcode(j->db);
    return (code & 0xff) == SQLITE_FULL || code == SQLITE_IOERR_SHMSIZE;
}

static enum brg_status failed_reading(const struct lite *j, const char *what, struct err *e) {
    int code = sqlite3_errcode(j->db);
    enum brg_status s = code == SQLITE_BUSY || code == SQLITE_LOCKED ? BRG_E_BUSY
                        : code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR
                            ? BRG_E_JOURNAL
                        : code == SQLITE_CANTOPEN ? BRG_E_MISSING
                        : is_full(j)              ? BRG_E_FULL
                                                  : BRG_E_IO;
    return err_set(e, s, "%s: %s: %s", j->base.name, what, sqlite3_errmsg(j->db));
}

/* After a failed write: rolls back and says E_FULL or E_BUSY, or does not return. */
static enum brg_status failed_writing(struct lite *j, const char *what, struct err *e) {
    int code = sqlite3_errcode(j->db);
    bool full = is_full(j), busy = code == SQLITE_BUSY || code == SQLITE_LOCKED;
    if (!full && !busy) die(j, what);
    err_set(e, full ? BRG_E_FULL : BRG_E_BUSY, "%s: %s: %s; %s", j->base.name, what,
            sqlite3_errmsg(j->db),
            full ? "make space on this disk, nothing is lost"
                 : "another program writes to the journal");
    if (!sqlite3_get_autocommit(j->db)) {
        int rc = sqlite3_step(j->rollback);
        if (rc != SQLITE_DONE || !sqlite3_get_autocommit(j->db)) die(j, "rollback");
        sqlite3_reset(j->rollback);
    }
    return full ? BRG_E_FULL : BRG_E_BUSY;
}

/* Runs one statement that gives no rows. Bindings are cleared: they borrow the caller's memory. */
static bool run(sqlite3_stmt *stmt) {
    int rc = sqlite3_step(stmt);
    int again = sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return rc == SQLITE_DONE && again == SQLITE_OK;
}

static bool exec(struct lite *j, const char *sql) {
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

static bool prepare(struct lite *j, const char *sql, sqlite3_stmt **out) {
    return sqlite3_prepare_v3(j->db, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) == SQLITE_OK;
}

static int on_commit(void *user, sqlite3 *db, const char *name, int pages) {
    struct lite *j = user;
    (void)db;
    (void)name;
    j->wal_pages = pages;
    return SQLITE_OK;
}

static bool column_hash(sqlite3_stmt *stmt, int column, struct hash *out) {
    const void *p = sqlite3_column_blob(stmt, column);
    if (p == NULL || sqlite3_column_bytes(stmt, column) != HASH_BYTES) return false;
    memcpy(out->v, p, HASH_BYTES);
    return true;
}

/* ---- Opening --------------------------------------------------------------------------------- */
static enum brg_status create_schema(struct lite *j, struct err *e) {
    bool made = exec(j, "BEGIN IMMEDIATE;"
                        "CREATE TABLE journal(seq INTEGER PRIMARY KEY, kind INT NOT NULL,"
                        " body BLOB NOT NULL, chain BLOB NOT NULL);"
                        "CREATE TABLE snapshot(seq INTEGER PRIMARY KEY, data BLOB NOT NULL,"
                        " sum BLOB NOT NULL);"
                        "CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL);"
                        "INSERT INTO meta VALUES('format', '" JOURNAL_FORMAT "');"
                        "COMMIT;");
    if (!made) return failed_reading(j, "create", e);
    char dir[OS_PATH_MAX]; /* the names of the new files must survive too */
    const char *slash = strrchr(j->base.name, '/');
    if (slash == NULL) return os_fsync_dir(".", e);
    snprintf(dir, sizeof dir, "%.*s", slash == j->base.name ? 1 : (int)(slash - j->base.name),
             j->base.name);
    return os_fsync_dir(dir, e);
}

/* 1: a journal of this format; 0: an empty database; -1: failed, *e says why. */
static int look_at_format(struct lite *j, struct err *e) {
    sqlite3_stmt *stmt = NULL;
    if (!prepare(j, "SELECT count(*) FROM sqlite_schema", &stmt)) goto fail;
    if (sqlite3_step(stmt) != SQLITE_ROW) goto fail;
    bool empty = sqlite3_column_int(stmt, 0) == 0;
    sqlite3_finalize(stmt);
    stmt = NULL;
    if (empty) return 0;
    if (!prepare(j, "SELECT value FROM meta WHERE name = 'format'", &stmt)) goto fail;
    int rc = sqlite3_step(stmt);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) goto fail;
    const unsigned char *value = rc == SQLITE_ROW ? sqlite3_column_text(stmt, 0) : NULL;
    bool known = value != NULL && strcmp((const char *)value, JOURNAL_FORMAT) == 0;
    if (!known && value != NULL)
        err_set(e, BRG_E_JOURNAL,
                "%s: is of format %.20s, newer than this program knows (" JOURNAL_FORMAT
                "); use the beringia that wrote it, or a newer one",
                j->base.name, (const char *)value);
    else if (!known)
        err_set(e, BRG_E_JOURNAL, "%s: says no format; it is no journal of beringia", j->base.name);
    sqlite3_finalize(stmt);
    return known ? 1 : -1;
fail:
    failed_reading(j, "open", e);
    sqlite3_finalize(stmt);
    return -1;
}

static enum brg_status prepare_all(struct lite *j, struct err *e) {
    bool good =
        prepare(j, "BEGIN IMMEDIATE", &j->begin) && prepare(j, "COMMIT", &j->commit) &&
        prepare(j, "ROLLBACK", &j->rollback) &&
        prepare(j, "INSERT INTO journal VALUES(?, ?, ?, ?)", &j->insert) &&
        prepare(j, "INSERT OR REPLACE INTO snapshot VALUES(?, ?, ?)", &j->snapshot_insert) &&
        prepare(j,
                "DELETE FROM snapshot WHERE seq NOT IN"
                " (SELECT seq FROM snapshot ORDER BY seq DESC LIMIT 2)",
                &j->snapshot_trim) &&
        prepare(j, "SELECT value FROM meta WHERE name = 'fence'", &j->fence_get) &&
        prepare(j, "INSERT OR REPLACE INTO meta VALUES('fence', ?)", &j->fence_set);
    return good ? BRG_OK : failed_reading(j, "prepare", e);
}

/* Reads the newest record's number and chain. Gaps before it are found by replay. */
static enum brg_status load_tail(struct lite *j, struct err *e) {
    sqlite3_stmt *stmt = NULL;
    if (!prepare(j, "SELECT seq, chain FROM journal ORDER BY seq DESC LIMIT 1", &stmt)) {
        return failed_reading(j, "open", e);
    }
    int rc = sqlite3_step(stmt);
    bool good = rc == SQLITE_ROW || rc == SQLITE_DONE, right = true;
    if (rc == SQLITE_ROW) {
        j->base.last_seq = (uint64_t)sqlite3_column_int64(stmt, 0);
        right = sqlite3_column_int64(stmt, 0) > 0 && column_hash(stmt, 1, &j->base.chain);
    }
    enum brg_status s = good ? BRG_OK : failed_reading(j, "open", e);
    sqlite3_finalize(stmt);
    if (s == BRG_OK && !right)
        s = err_set(e, BRG_E_JOURNAL, "%s: last record is damaged", j->base.name);
    return s;
}

static enum brg_status open_db(struct lite *j, bool create, struct err *e) {
    char name[OS_PATH_MAX];
    if ((size_t)snprintf(name, sizeof name, "%s.lock", j->base.name) >= sizeof name) {
        return err_set(e, BRG_E_CONFIG, "journal path is too long");
    }
    if (!create && !os_exists(j->base.name)) {
        return err_set(e, BRG_E_MISSING, "%s: no journal here; create the run first", j->base.name);
    }
    TRY(os_lock(name, &j->lock_fd, e));
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (create ? SQLITE_OPEN_CREATE : 0);
    if (sqlite3_open_v2(j->base.name, &j->db, flags, NULL) != SQLITE_OK)
        return failed_reading(j, "open", e);
    sqlite3_extended_result_codes(j->db, 0);
    sqlite3_busy_timeout(j->db, BUSY_MS);
    sqlite3_db_config(j->db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    int format = look_at_format(j, e);
    if (format < 0) return e != NULL ? e->status : BRG_E_JOURNAL;
    if (format == 1 && create) {
        return err_set(e, BRG_E_EXISTS,
                       "%s: there is a journal already; open it or choose another "
                       "directory",
                       j->base.name);
    }
    if (format == 0 && !create)
        return err_set(e, BRG_E_JOURNAL, "%s: holds no journal", j->base.name);
    if (!exec(j, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA locking_mode=NORMAL;"
                 "PRAGMA wal_autocheckpoint=0; PRAGMA cell_size_check=ON;")) {
        return failed_reading(j, "open", e);
    }
    char limit[64];
    snprintf(limit, sizeof limit, "PRAGMA journal_size_limit=%d", WAL_KEPT_BYTES);
    if (!exec(j, limit)) return failed_reading(j, "open", e);
    sqlite3_wal_hook(j->db, on_commit, j);
    if (format == 0) TRY(create_schema(j, e));
    TRY(prepare_all(j, e));
    return load_tail(j, e);
}

static const struct journal_ops lite_ops;

enum brg_status journal_sqlite_open(const char *path, bool create, struct journal **out,
                                    struct err *e) {
    struct lite *j = mem_alloc(1, sizeof *j);
    j->base.ops = &lite_ops;
    j->lock_fd = -1;
    *out = &j->base;
    (void)snprintf(j->base.name, sizeof j->base.name, "%s", path);
    return open_db(j, create, e);
}

static void lite_close(struct journal *base) {
    struct lite *j = lite_of(base);
    sqlite3_stmt *all[] = {j->begin,           j->commit,        j->rollback,  j->insert,
                           j->snapshot_insert, j->snapshot_trim, j->fence_get, j->fence_set};
    for (size_t i = 0; i < ARRAY_COUNT(all); i++) sqlite3_finalize(all[i]);
    if (j->db != NULL) CHECK(sqlite3_close(j->db) == SQLITE_OK);
    os_close_cleanup(&j->lock_fd);
    mem_free(j);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static enum brg_status fenced(struct lite *j, struct err *e) {
    if (!sqlite3_get_autocommit(j->db)) (void)run(j->rollback);
    return err_set(e, BRG_E_FENCED,
                   "%s: another hub has taken over this run; this process stops, nothing that "
                   "it acknowledged is lost",
                   j->base.name);
}

/* Begins a transaction that only the newest writing process gets (J3). *out_fence: this process's
 * number, once the transaction is durable. */
static enum brg_status begin_fenced(struct lite *j, uint64_t *out_fence, struct err *e) {
    uint64_t there = 0;
    if (!run(j->begin)) return failed_writing(j, "begin", e);
    int rc = sqlite3_step(j->fence_get);
    if (rc == SQLITE_ROW) there = (uint64_t)sqlite3_column_int64(j->fence_get, 0);
    (void)sqlite3_reset(j->fence_get);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) return failed_writing(j, "fence", e);
    *out_fence = j->fence;
    if (j->fence != 0 && there == j->fence) return BRG_OK;
    if (j->fence != 0) return fenced(j, e); /* J3 */
    char text[24];
    *out_fence = there + 1;
    int n = snprintf(text, sizeof text, "%" PRIu64, *out_fence);
    bool good = sqlite3_bind_text(j->fence_set, 1, text, n, SQLITE_TRANSIENT) == SQLITE_OK &&
                run(j->fence_set);
    return good ? BRG_OK : failed_writing(j, "fence", e);
}

/* Folds the log into the file when it is long. Busy (somebody reads) is no failure: the log grows
 * and the next commit tries again. Full is none either: the records are safe in the log. */
static void checkpoint_when_due(struct lite *j) {
    if (j->wal_pages < CHECKPOINT_PAGES) return;
    int rc = sqlite3_wal_checkpoint_v2(j->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    if (rc == SQLITE_OK || rc == SQLITE_BUSY || rc == SQLITE_LOCKED) return;
    if (!is_full(j)) die(j, "checkpoint");
    log_line(LOG_WARN, "store", "journal_checkpoint_full", "wal_pages=%d", j->wal_pages);
}

static bool insert_one(struct lite *j, const struct record *r, const struct hash *chain) {
    const void *body = r->bytes > 0 ? (const void *)r->body : "";
    return sqlite3_bind_int64(j->insert, 1, (int64_t)r->seq) == SQLITE_OK &&
           sqlite3_bind_int(j->insert, 2, r->kind) == SQLITE_OK &&
           sqlite3_bind_blob(j->insert, 3, body, (int)r->bytes, SQLITE_STATIC) == SQLITE_OK &&
           sqlite3_bind_blob(j->insert, 4, chain->v, HASH_BYTES, SQLITE_STATIC) == SQLITE_OK &&
           run(j->insert);
}

static enum brg_status lite_append(struct journal *base, const struct journal_batch *b,
                                   struct err *e) {
    struct lite *j = lite_of(base);
    uint64_t fence;
    TRY(begin_fenced(j, &fence, e));
    for (size_t i = 0; i < b->count; i++) {
        if (insert_one(j, &b->records[i], &b->chains[i])) continue;
        /* The number is taken: somebody wrote between our reading and our first record. */
        if (sqlite3_errcode(j->db) == SQLITE_CONSTRAINT) return fenced(j, e);
        return failed_writing(j, "append", e);
    }
    if (!run(j->commit)) return failed_writing(j, "commit", e);
    CHECK(sqlite3_get_autocommit(j->db)); /* J2: the transaction has ended, its log is synced */
    j->fence = fence;
    CHECK(j->fence != 0); /* J3 */
    checkpoint_when_due(j);
    return BRG_OK;
}

static enum brg_status lite_snapshot_put(struct journal *base, uint64_t seq, const void *data,
                                         size_t n, const struct hash *sum, struct err *e) {
    struct lite *j = lite_of(base);
    sqlite3_stmt *put = j->snapshot_insert;
    uint64_t fence;
    TRY(begin_fenced(j, &fence, e));
    bool good = sqlite3_bind_int64(put, 1, (int64_t)seq) == SQLITE_OK &&
                sqlite3_bind_blob(put, 2, n > 0 ? data : "", (int)n, SQLITE_STATIC) == SQLITE_OK &&
                sqlite3_bind_blob(put, 3, sum->v, HASH_BYTES, SQLITE_STATIC) == SQLITE_OK &&
                run(put) && run(j->snapshot_trim);
    if (!good) return failed_writing(j, "snapshot", e);
    if (!run(j->commit)) return failed_writing(j, "commit", e);
    j->fence = fence;
    checkpoint_when_due(j);
    return BRG_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */
static enum brg_status lite_snapshot_get(struct journal *base, uint64_t *out_seq, struct buf *out,
                                         struct hash *out_sum, bool *out_has_sum, struct err *e) {
    struct lite *j = lite_of(base);
    sqlite3_stmt *stmt = NULL;
    if (!prepare(j, "SELECT seq, data, sum FROM snapshot ORDER BY seq DESC LIMIT 1", &stmt)) {
        return failed_reading(j, "snapshot", e);
    }
    enum brg_status s = BRG_OK;
    int rc = sqlite3_step(stmt);
    *out_seq = 0;
    if (rc == SQLITE_ROW) {
        const void *data = sqlite3_column_blob(stmt, 1);
        size_t n = (size_t)sqlite3_column_bytes(stmt, 1);
        *out_seq = (uint64_t)sqlite3_column_int64(stmt, 0);
        *out_has_sum = column_hash(stmt, 2, out_sum);
        if (n > 0) buf_put(out, data, n);
    } else if (rc != SQLITE_DONE) {
        s = failed_reading(j, "snapshot", e);
    }
    sqlite3_finalize(stmt);
    return s;
}

static enum brg_status lite_chain_at(struct journal *base, uint64_t seq, struct hash *out,
                                     struct err *e) {
    struct lite *j = lite_of(base);
    sqlite3_stmt *stmt = NULL;
    if (!prepare(j, "SELECT chain FROM journal WHERE seq = ?", &stmt))
        return failed_reading(j, "read", e);
    sqlite3_bind_int64(stmt, 1, (int64_t)seq);
    int rc = sqlite3_step(stmt);
    enum brg_status s = BRG_OK;
    if (rc == SQLITE_DONE || (rc == SQLITE_ROW && !column_hash(stmt, 0, out))) {
        s = err_set(e, BRG_E_JOURNAL, "%s: record %llu is missing or damaged", j->base.name,
                    (unsigned long long)seq);
    } else if (rc != SQLITE_ROW) {
        s = failed_reading(j, "read", e);
    }
    sqlite3_finalize(stmt);
    return s;
}

static enum brg_status lite_rows(struct journal *base, uint64_t after, uint64_t upto,
                                 journal_row_visit *visit, void *user, struct err *e) {
    (void)upto; /* there is no reader beside the writer, and what is too much must show */
    struct lite *j = lite_of(base);
    sqlite3_stmt *stmt = NULL;
    if (!prepare(j, "SELECT seq, kind, body, chain FROM journal WHERE seq > ? ORDER BY seq",
                 &stmt)) {
        return failed_reading(j, "read", e);
    }
    sqlite3_bind_int64(stmt, 1, (int64_t)after);
    enum brg_status s = BRG_OK;
    while (s == BRG_OK) {
        int rc = sqlite3_step(stmt);
        if (rc == SQLITE_DONE) break;
        if (rc != SQLITE_ROW) {
            s = failed_reading(j, "read", e);
            break;
        }
        struct journal_row row = {.kind = sqlite3_column_int64(stmt, 1)};
        row.r.seq = (uint64_t)sqlite3_column_int64(stmt, 0);
        row.r.kind = (uint16_t)row.kind;
        row.r.body = sqlite3_column_blob(stmt, 2);
        row.r.bytes = (size_t)sqlite3_column_bytes(stmt, 2);
        row.has_chain = column_hash(stmt, 3, &row.chain);
        s = visit(user, &row, e);
    }
    sqlite3_finalize(stmt);
    return s;
}

static const struct journal_ops lite_ops = {.close = lite_close,
                                            .append = lite_append,
                                            .snapshot_put = lite_snapshot_put,
                                            .snapshot_get = lite_snapshot_get,
                                            .chain_at = lite_chain_at,
                                            .rows = lite_rows};
