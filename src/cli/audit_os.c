/* SPDX-License-Identifier: Apache-2.0 */
/* audit_os.c - the audit's own way to the files: journal.db through SQLite, read-only and in one read
 * transaction (a live hub may go on writing; audit_pg_os.c: a journal in PostgreSQL), the head's
 * checkpoint, and the blobs.
 *
 *   journal (seq INTEGER PRIMARY KEY, kind INT, body BLOB, chain BLOB)
 *   chain_i = SHA-256(chain_(i-1) | seq u64 | kind u16 | body), little-endian; chain_0 = 32 zero bytes */
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/audit.h"
#include "store/store.h"

enum { BUSY_WAIT_MS = 10000 };

/* ---- Journal -------------------------------------------------------------------------------------- */
static enum brg_status check_chain(struct audit *a, uint64_t seq, uint16_t kind, const void *body,
                                   size_t n, const void *chain, size_t chain_bytes, struct err *e) {
    uint8_t number[8], kind_bytes[2] = {(uint8_t)kind, (uint8_t)(kind >> 8)};
    struct hasher h;
    put_le64(number, seq);
    hasher_init(&h);
    hasher_update(&h, a->chain.v, HASH_BYTES);
    hasher_update(&h, number, sizeof number);
    hasher_update(&h, kind_bytes, sizeof kind_bytes);
    hasher_update(&h, body, n);
    a->chain = hasher_final(&h);
    if (chain_bytes == HASH_BYTES && memcmp(chain, a->chain.v, HASH_BYTES) == 0) return BRG_OK;
    return err_set(e, BRG_E_JOURNAL,
                   "record %" PRIu64 ": the hash chain is broken here: this record or "
                   "one before it was altered or removed",
                   seq);
}

enum brg_status audit_row(struct audit *a, const struct audit_row *row, uint64_t expected,
                          struct err *e) {
    uint64_t seq = row->seq;
    int64_t kind = row->kind;
    const void *body = row->body, *chain = row->chain;
    size_t n = row->bytes, chain_bytes = row->chain_bytes;
    if (seq != expected)
        return err_set(e, BRG_E_JOURNAL, "record %" PRIu64 " is missing", expected);
    if (kind < 0 || kind > UINT16_MAX)
        return err_set(e, BRG_E_JOURNAL, "record %" PRIu64 ": kind %" PRId64 " is none", seq, kind);
    if (body == NULL) body = "";
    TRY(check_chain(a, seq, (uint16_t)kind, body, n, chain, chain_bytes, e));
    return audit_record(a, seq, (uint16_t)kind, body, n, e);
}

static enum brg_status take_row(struct audit *a, sqlite3_stmt *row, uint64_t expected,
                                struct err *e) {
    const struct audit_row x = {.seq = (uint64_t)sqlite3_column_int64(row, 0),
                                .kind = sqlite3_column_int64(row, 1),
                                .body = sqlite3_column_blob(row, 2),
                                .chain = sqlite3_column_blob(row, 3),
                                .bytes = (size_t)sqlite3_column_bytes(row, 2),
                                .chain_bytes = (size_t)sqlite3_column_bytes(row, 3)};
    return audit_row(a, &x, expected, e);
}

static enum brg_status read_rows(struct audit *a, sqlite3 *db, struct err *e) {
    sqlite3_stmt *row = NULL;
    enum brg_status s = BRG_OK;
    uint64_t expected = 1;
    if (sqlite3_prepare_v2(db, "SELECT seq, kind, body, chain FROM journal ORDER BY seq", -1, &row,
                           NULL) != SQLITE_OK)
        return err_set(e, BRG_E_JOURNAL, "journal.db: %s", sqlite3_errmsg(db));
    for (;;) {
        int rc = sqlite3_step(row);
        if (rc == SQLITE_DONE) break;
        s = rc == SQLITE_ROW ? take_row(a, row, expected++, e)
                             : err_set(e, BRG_E_JOURNAL, "journal.db: %s", sqlite3_errmsg(db));
        if (s != BRG_OK) break;
    }
    (void)sqlite3_finalize(row);
    if (s == BRG_OK && !a->opened) s = err_set(e, BRG_E_JOURNAL, "journal.db: holds no record");
    return s;
}

/* Read-only. A directory that cannot be written has no room for SQLite's shared memory file: then, and
 * only where no log is left beside the database, it is read as one that nobody changes. */
static int open_read_only(const char *path, sqlite3 **db) {
    char uri[OS_PATH_MAX + 32], wal[OS_PATH_MAX + 8];
    int rc = sqlite3_open_v2(path, db, SQLITE_OPEN_READONLY, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    (void)snprintf(wal, sizeof wal, "%s-wal", path);
    if (rc == SQLITE_OK || os_file_bytes(wal) > 0) return rc;
    (void)sqlite3_close(*db);
    *db = NULL;
    (void)snprintf(uri, sizeof uri, "file:%s?immutable=1", path);
    return sqlite3_open_v2(uri, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
}

/* The numbers of records and their bodies mean something only in the format that is known. */
enum brg_status audit_format(struct sqlite3 *db, const char *path, struct err *e) {
    sqlite3_stmt *row = NULL;
    enum brg_status s = BRG_OK;
    if (sqlite3_prepare_v2(db, "SELECT value FROM meta WHERE name = 'format'", -1, &row, NULL) !=
        SQLITE_OK)
        return err_set(e, BRG_E_JOURNAL, "%s: %s", path, sqlite3_errmsg(db));
    const unsigned char *value = sqlite3_step(row) == SQLITE_ROW ? sqlite3_column_text(row, 0)
                                                                 : NULL;
    if (value == NULL)
        s = err_set(e, BRG_E_JOURNAL, "%s: says no format; it is no journal of beringia", path);
    else if (strcmp((const char *)value, "1") != 0)
        s = err_set(e, BRG_E_JOURNAL,
                    "%s: is of format %.20s, newer than this program knows (1); use the beringia "
                    "that wrote it, or a newer one",
                    path, (const char *)value);
    (void)sqlite3_finalize(row);
    return s;
}

static enum brg_status audit_file(struct audit *a, const char *path, struct err *e) {
    sqlite3 *db = NULL;
    enum brg_status s = BRG_OK;
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING, "%s: there is no journal; give the directory of a run",
                       path);
    if (open_read_only(path, &db) != SQLITE_OK)
        s = err_set(e, BRG_E_JOURNAL, "%s: %s", path,
                    db != NULL ? sqlite3_errmsg(db) : "no memory");
    if (s == BRG_OK) {
        (void)sqlite3_busy_timeout(db, BUSY_WAIT_MS);
        s = audit_format(db, path, e);
    }
    if (s == BRG_OK) {
        s = read_rows(a, db, e);
        if (s != BRG_OK) s = err_prefix(e, "%s", path);
    }
    (void)sqlite3_close(db);
    return s;
}

enum brg_status audit_journal_at(struct audit *a, const char *name, struct err *e) {
    return journal_name_is_url(name) ? audit_server(a, name, e) : audit_file(a, name, e);
}

enum brg_status audit_journal(struct audit *a, const char *run_dir, struct err *e) {
    char name[JOURNAL_NAME_MAX];
    TRY(journal_where(run_dir, name, e));
    return audit_journal_at(a, name, e);
}

/* ---- Checkpoint and blobs ---------------------------------------------------------------------------- */
static void blob_path(char out[OS_PATH_MAX], const char *run_dir, const struct hash *h) {
    char hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    os_path(out, run_dir, "blobs/%.2s/%s", hex, hex);
}

/* The ledger in the head's checkpoint is the one of the journal, and so are its numbers. */
static void check_head(struct audit *a, const char *run_dir) {
    char path[OS_PATH_MAX];
    struct checkpoint c;
    struct err e = {0};
    struct buf ours;
    const struct audit_version *v = audit_version_find(a, a->head);
    if (v == NULL) return;
    blob_path(path, run_dir, &v->checkpoint);
    memset(&c, 0, sizeof c);
    if (!os_exists(path)) {
        audit_finding(a, "the head's checkpoint %s is missing", path);
        return;
    }
    if (checkpoint_open(path, &c, &e) != BRG_OK) {
        audit_finding(a, "%s", e.text);
        return;
    }
    if (c.version != v->version || c.tokens != v->tokens || !hash_equal(&c.theta_hash, &v->theta) ||
        !id_equal(&c.run, &a->run))
        audit_finding(a, "%s: version, tokens, theta or run are not those of the journal", path);
    buf_init(&ours, (size_t)1 << 30);
    /* The checkpoint's ledger is the one right after its MERGE: what came later must not show in it, and
     * only operator skips and rollbacks can; they are told by the journal alone. */
    audit_ledger(a, &ours);
    AUTO_FREE uint8_t *theirs = mem_alloc(c.ledger_bytes + 1, 1);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct hash h, want = v->ledger;
    if (fd < 0 || os_pread_all(fd, theirs, c.ledger_bytes, c.ledger_offset, path, &e) != BRG_OK) {
        audit_finding(a, "%s: the ledger cannot be read", path);
    } else {
        h = hash_of(theirs, c.ledger_bytes);
        if (v->version > 0 && !hash_equal(&h, &want))
            audit_finding(a, "%s: the ledger inside is not the one that was merged", path);
        a->ledger_equal = c.ledger_bytes == ours.bytes_count &&
                          memcmp(theirs, ours.data, ours.bytes_count) == 0;
    }
    buf_fini(&ours);
    checkpoint_fini(&c);
}

static bool hash_file(const char *path, struct hash *out) {
    enum { PIECE = 1 << 20 };
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_FREE uint8_t *piece = mem_alloc(PIECE, 1);
    struct hasher h;
    ssize_t n;
    if (fd < 0) return false;
    hasher_init(&h);
    while ((n = read(fd, piece, PIECE)) > 0) hasher_update(&h, piece, (size_t)n);
    *out = hasher_final(&h);
    return n == 0;
}

static void check_blob(struct audit *a, const char *run_dir, const struct hash *want, bool must,
                       const char *what) {
    char path[OS_PATH_MAX];
    struct hash got;
    blob_path(path, run_dir, want);
    if (!os_exists(path)) {
        a->blobs_missing++;
        if (must) audit_finding(a, "%s: the file of %s is missing", path, what);
        return;
    }
    a->blobs_checked++;
    if (hash_file(path, &got) && hash_equal(&got, want)) return;
    a->blobs_bad++;
    audit_finding(a, "%s: the file of %s does not have its hash", path, what);
}

void audit_files(struct audit *a, const char *run_dir, bool all) {
    check_head(a, run_dir);
    if (!all) return;
    for (size_t i = 0; i < a->versions_count; i++) /* older ones may be gone by retention */
        check_blob(a, run_dir, &a->versions[i].checkpoint, a->versions[i].version == a->head,
                   "a checkpoint");
    for (size_t i = 0; i < a->deltas_count; i++) {
        const struct audit_delta *d = &a->deltas[i];
        if (d->bytes == 0 || (d->fate != FATE_STAGED && d->fate != FATE_MERGED)) continue;
        check_blob(a, run_dir, &d->blob, d->fate == FATE_STAGED, "a contribution");
    }
}

/* ---- Of a region ---------------------------------------------------------------------------------- */
/* RUN/uplink/state: "BRGUPLK1", the parent's run, this region's name at it (docs/hierarchy.md). */
enum brg_status audit_uplink(const char *run_dir, struct audit_region *out, struct err *e) {
    enum { STATE_MAX = 4 << 20 };
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, STATE_MAX);
    os_path(path, run_dir, "uplink/state");
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING,
                       "%s: is no region's run (it has no uplink/state): name the regions of RUN "
                       "behind it",
                       run_dir);
    TRY(os_read_file(path, STATE_MAX, &b, e));
    struct reader r = reader_of(b.data, b.bytes_count);
    const void *magic = get_bytes(&r, 8);
    bool good = magic != NULL && memcmp(magic, "BRGUPLK1", 8) == 0;
    const void *run = get_bytes(&r, ID_BYTES);
    if (good && run != NULL && get_str(&r, out->name, sizeof out->name)) {
        memcpy(out->parent.v, run, ID_BYTES);
        return BRG_OK;
    }
    return err_set(
        e, BRG_E_CORRUPT,
        "%s: is damaged; remove it and start the hub of the region: it asks its parent anew", path);
}
