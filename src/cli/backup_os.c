/* SPDX-License-Identifier: Apache-2.0 */
/* backup_os.c - see backup.h.
 *
 * Blobs never change and are named by their hash, so they are hard links where that is possible. The journal is copied by
 * SQLite's backup interface through a connection that only reads: one read transaction, a state that the hub has
 * acknowledged, however much it writes meanwhile.
 *
 *   1 settings and other small files      2 blobs   3 journal -> DIR/new   4 blobs once more   5 is all there that 3 names?
 *   6 DIR/new/journal.db -> DIR/journal.db, backup.json                    7 blobs that neither run nor journal has: away
 * 2 before 3, because the hub may remove an old checkpoint between the two; 4, because it may have taken in a contribution
 * before 3. Where even so something is missing (a checkpoint came and went in between), all is done again.
 *
 * So at any moment DIR is nothing yet, or every blob is there that its journal's head and staged contributions want. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "cli/audit.h"
#include "cli/backup.h"
#include "cli/cli.h"
#include "store/store.h"

enum { PIECE = 1 << 20, TRIES = 5, BUSY_WAIT_MS = 10000, NOTE_MAX = 4096, HEX_DIGITS = 64 };
#define FORMAT 1

struct work {
    const char *from, *to;
    bool copy;
    struct backup_told *told;
};

/* ---- One file ------------------------------------------------------------------------------------------ */
/* Reads `from` to its end, and writes it to `out` where that is >= 0. */
static enum brg_status pump(const char *from, int in, int out, const char *to,
                            struct hash *out_hash, uint64_t *out_bytes, struct err *e) {
    AUTO_FREE uint8_t *piece = mem_alloc(PIECE, 1);
    struct hasher h;
    hasher_init(&h);
    *out_bytes = 0;
    for (;;) {
        ssize_t n = read(in, piece, PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return os_errno(e, errno, "read", from);
        if (n == 0) break;
        hasher_update(&h, piece, (size_t)n);
        if (out >= 0) TRY(os_write_all(out, piece, (size_t)n, to, e));
        *out_bytes += (uint64_t)n;
    }
    *out_hash = hasher_final(&h);
    return BRG_OK;
}

/* To a temporary name beside, synced, renamed. want: NULL, or the hash that it must have. */
static enum brg_status file_copy(const char *from, const char *to, const struct hash *want,
                                 uint64_t *out_bytes, struct err *e) {
    char tmp[OS_PATH_MAX + 8];
    struct stat st;
    struct hash got;
    AUTO_CLOSE int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) != 0) return os_errno(e, errno, "read", from);
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", to);
    AUTO_CLOSE int out = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) return os_errno(e, errno, "write", tmp);
    enum brg_status s = pump(from, in, out, tmp, &got, out_bytes, e);
    if (s == BRG_OK && want != NULL && !hash_equal(&got, want))
        s = err_set(e, BRG_E_CORRUPT,
                    "%s: its bytes do not have the hash that is its name; "
                    "restore it from an earlier backup",
                    from);
    if (s == BRG_OK && (fchmod(out, st.st_mode & 0777) != 0 || fsync(out) != 0))
        s = os_errno(e, errno, "write", tmp);
    if (s == BRG_OK) s = os_rename_durable(tmp, to, e);
    if (s != BRG_OK) (void)unlink(tmp);
    return s;
}

/* ---- Blobs --------------------------------------------------------------------------------------------- */
static bool blob_name(const char *name, struct hash *out) {
    return strlen(name) == HEX_DIGITS && hex_decode(name, out->v, HASH_BYTES);
}

/* One that vanishes meanwhile (retention) is none; whether it was needed shows later. */
static enum brg_status blob_take(struct work *w, const char *name, const struct hash *want,
                                 struct err *e) {
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    uint64_t bytes = 0;
    os_path(from, w->from, "blobs/%.2s/%s", name, name);
    os_path(to, w->to, "blobs/%.2s/%s", name, name);
    struct stat a, b;
    if (stat(from, &a) != 0) return BRG_OK;
    bool there = stat(to, &b) == 0 && a.st_size == b.st_size;
    bool same = there && a.st_dev == b.st_dev &&
                a.st_ino == b.st_ino; /* a hard link of an earlier time */
    if (there && !(same && w->copy)) {
        w->told->kept++;
        return BRG_OK;
    }
    if (!w->copy) {
        (void)unlink(to); /* of another size: cut off by something else */
        if (link(from, to) == 0) {
            w->told->linked++;
            return BRG_OK;
        }
    }
    if (!os_exists(from)) return BRG_OK;
    enum brg_status s = file_copy(from, to, want, &bytes, e);
    if (s != BRG_OK) return os_exists(from) ? s : BRG_OK;
    w->told->copied++;
    w->told->bytes += bytes;
    return BRG_OK;
}

/* Calls one() for each blob below dir. */
typedef enum brg_status blob_one(struct work *w, const char *name, const struct hash *h,
                                 struct err *e);
static enum brg_status blobs_walk(struct work *w, const char *dir, blob_one *one, struct err *e) {
    char top[OS_PATH_MAX], path[OS_PATH_MAX];
    enum brg_status s = BRG_OK;
    DIR *outer = opendir(os_path(top, dir, "blobs"));
    if (outer == NULL) return os_errno(e, errno, "read", top);
    for (const struct dirent *x; s == BRG_OK && (x = readdir(outer)) != NULL;) {
        if (strlen(x->d_name) != 2 || x->d_name[0] == '.') continue;
        DIR *inner = opendir(os_path(path, top, "%s", x->d_name));
        if (inner == NULL) continue;
        if (one == blob_take) s = os_mkdirs(os_path(path, w->to, "blobs/%s", x->d_name), e);
        for (const struct dirent *y; s == BRG_OK && (y = readdir(inner)) != NULL;) {
            struct hash h;
            if (blob_name(y->d_name, &h)) s = one(w, y->d_name, &h, e);
        }
        (void)closedir(inner);
        if (s == BRG_OK && one == blob_take) s = os_fsync_dir(path, e);
    }
    (void)closedir(outer);
    return s;
}

/* Of a backup, before anything is made of it; also what its journal does not name. */
static enum brg_status blob_verify(struct work *w, const char *name, const struct hash *want,
                                   struct err *e) {
    char path[OS_PATH_MAX];
    struct hash got;
    uint64_t bytes;
    os_path(path, w->from, "blobs/%.2s/%s", name, name);
    AUTO_CLOSE int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0) return os_errno(e, errno, "read", path);
    TRY(pump(path, in, -1, "", &got, &bytes, e));
    if (hash_equal(&got, want)) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT,
                   "%s: its bytes do not have the hash that is its name; take another backup",
                   path);
}

/* ---- Small files --------------------------------------------------------------------------------------- */
/* The hub's of this moment (its lock, address, token), the journal, which goes its own way, and what is half written. */
static bool passed_over(const char *name) {
    static const char *const names[] = {"lock",        "hub.json",    "hub.token",  "probe.tmp",
                                        "backup.json", "backup.lock", "journal.url"};
    size_t n = strlen(name);
    if (name[0] == '.' || strncmp(name, "journal.db", 10) == 0) return true;
    if (n > 4 && strcmp(name + n - 4, ".tmp") == 0) return true;
    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Every regular file directly in from/sub: settings, facts, tokens, certificates, and what is added some day. */
static enum brg_status files_take(struct work *w, const char *sub, struct err *e) {
    char dir[OS_PATH_MAX], to_dir[OS_PATH_MAX], from[OS_PATH_MAX], to[OS_PATH_MAX];
    enum brg_status s = BRG_OK;
    struct stat st;
    uint64_t bytes;
    DIR *d = opendir(os_path(dir, w->from, "%s", sub));
    if (d == NULL && sub[0] != '.') return BRG_OK; /* no tls/: no certificate */
    if (d == NULL) return os_errno(e, errno, "read", dir);
    s = os_mkdirs(os_path(to_dir, w->to, "%s", sub), e);
    for (const struct dirent *x; s == BRG_OK && (x = readdir(d)) != NULL;) {
        if (passed_over(x->d_name)) continue;
        os_path(from, dir, "%s", x->d_name);
        if (lstat(from, &st) != 0 || !S_ISREG(st.st_mode)) continue;
        s = file_copy(from, os_path(to, to_dir, "%s", x->d_name), NULL, &bytes, e);
        if (s != BRG_OK && !os_exists(from)) s = BRG_OK;
    }
    (void)closedir(d);
    return s;
}

/* ---- The journal --------------------------------------------------------------------------------------- */
static enum brg_status sqlite_failed(sqlite3 *db, const char *path, struct err *e) {
    int code = db != NULL ? sqlite3_errcode(db) : SQLITE_NOMEM;
    enum brg_status s = code == SQLITE_FULL                               ? BRG_E_FULL
                        : code == SQLITE_BUSY || code == SQLITE_LOCKED    ? BRG_E_BUSY
                        : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? BRG_E_JOURNAL
                                                                          : BRG_E_IO;
    return err_set(e, s, "%s: %s", path, db != NULL ? sqlite3_errmsg(db) : "no memory");
}

static enum brg_status file_journal_copy(const char *from, const char *to, struct err *e) {
    sqlite3 *in = NULL, *out = NULL;
    enum brg_status s = BRG_OK;
    if (!os_exists(from))
        return err_set(e, BRG_E_MISSING, "%s: there is no journal; give the directory of a run",
                       from);
    (void)unlink(to);
    if (sqlite3_open_v2(from, &in, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) {
        s = sqlite_failed(in, from, e);
    } else if (sqlite3_open_v2(to, &out, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) !=
               SQLITE_OK) {
        s = sqlite_failed(out, to, e);
    } else {
        (void)sqlite3_busy_timeout(in, BUSY_WAIT_MS);
        sqlite3_backup *b = sqlite3_backup_init(out, "main", in, "main");
        int rc = b != NULL ? sqlite3_backup_step(b, -1)
                           : SQLITE_ERROR; /* all pages: one read transaction */
        if (b != NULL) (void)sqlite3_backup_finish(b);
        if (rc != SQLITE_DONE) s = sqlite_failed(out, to, e);
    }
    (void)sqlite3_close(out);
    (void)sqlite3_close(in);
    if (s != BRG_OK) return s;
    AUTO_CLOSE int fd =
        open(to, O_RDWR | O_CLOEXEC); /* SQLite has synced it; a second time costs nothing */
    if (fd < 0 || fsync(fd) != 0) return os_errno(e, errno, "write", to);
    return BRG_OK;
}

/* From a server, beside a hub that may go on writing: the backup has a file whatever the run had. */
static enum brg_status server_journal_copy(const char *name, const char *to, struct err *e) {
    struct journal *in = NULL, *out = NULL;
    (void)unlink(to);
    TRY(journal_open_reader(name, &in, e));
    enum brg_status s = journal_open(to, true, &out, e);
    if (s == BRG_OK) s = journal_copy_whole(in, out, e);
    journal_close(out); /* folds the log into the file */
    journal_close(in);
    return s;
}

static enum brg_status journal_take(const char *run, const char *to, struct err *e) {
    char name[JOURNAL_NAME_MAX];
    TRY(journal_where(run, name, e));
    return journal_name_is_url(name) ? server_journal_copy(name, to, e)
                                     : file_journal_copy(name, to, e);
}

/* ---- Is all there? --------------------------------------------------------------------------------------- */
static bool blob_there(const char *dir, const struct hash *h) {
    char path[OS_PATH_MAX], hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    return os_exists(os_path(path, dir, "blobs/%.2s/%s", hex, hex));
}

/* What a hub that starts from this journal reads: the head's checkpoint, and what is staged. */
static bool blobs_complete(struct audit *a, const char *dir) {
    const struct audit_version *head = audit_version_find(a, a->head);
    if (head == NULL || !blob_there(dir, &head->checkpoint)) return false;
    for (size_t i = 0; i < a->deltas_count; i++) {
        const struct audit_delta *d = &a->deltas[i];
        if (d->fate == FATE_STAGED && d->bytes > 0 && !blob_there(dir, &d->blob)) return false;
    }
    return true;
}

/* Of an earlier backup to the same place: what the run has dropped by its own rules, the backup drops too. Contributions
 * stay: replay wants them all. */
struct prune {
    struct work w; /* first: blobs_walk gives it back */
    struct audit *a;
};
static enum brg_status blob_prune(struct work *w, const char *name, const struct hash *h,
                                  struct err *e) {
    const struct prune *p = (const struct prune *)w;
    char path[OS_PATH_MAX];
    (void)e;
    const struct audit_version *head = audit_version_find(p->a, p->a->head);
    if (blob_there(w->from, h) || (head != NULL && hash_equal(&head->checkpoint, h))) return BRG_OK;
    for (size_t i = 0; i < p->a->deltas_count; i++)
        if (hash_equal(&p->a->deltas[i].blob, h)) return BRG_OK;
    if (unlink(os_path(path, w->to, "blobs/%.2s/%s", name, name)) == 0) w->told->pruned++;
    return BRG_OK;
}

/* ---- The note beside ------------------------------------------------------------------------------------- */
static enum brg_status note_write(const char *dir, const struct audit *a, struct err *e) {
    char path[OS_PATH_MAX], text[NOTE_MAX], run[ID_HEX_BYTES];
    id_hex(&a->run, run);
    int n = snprintf(text, sizeof text,
                     "{\"format\":%d,\"run\":\"%s\",\"record\":%" PRIu64 ",\"version\":%" PRIu64
                     ",\"unix\":%" PRId64 "}\n",
                     FORMAT, run, a->seq, a->head, (int64_t)(os_wall() / NS_PER_S));
    return os_write_file_atomic(os_path(path, dir, "backup.json"), text, (size_t)n, e);
}

static enum brg_status note_read(const char *dir, char out_run[ID_HEX_BYTES], struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, NOTE_MAX);
    os_path(path, dir, "backup.json");
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING,
                       "%s: is no backup (there is no backup.json); make one with "
                       "`beringia backup RUN --out DIR`",
                       dir);
    TRY(os_read_file(path, NOTE_MAX, &b, e));
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
    const char *run = json_string_value(json_object_get(o, "run"));
    json_int_t format = json_integer_value(json_object_get(o, "format"));
    enum brg_status s = BRG_OK;
    if (format > FORMAT)
        s = err_set(e, BRG_E_CONFIG,
                    "%s: format %lld is newer than this program knows (%d); use the beringia that "
                    "made it, or a newer one",
                    path, (long long)format, FORMAT);
    else if (format != FORMAT || run == NULL || strlen(run) != 2 * ID_BYTES)
        s = err_set(e, BRG_E_CORRUPT, "%s: is not the note of a backup; take another backup", path);
    else
        (void)snprintf(out_run, ID_HEX_BYTES, "%s", run);
    json_decref(o);
    return s;
}

enum brg_status backup_refuse(const char *run, struct err *e) {
    char path[OS_PATH_MAX];
    if (!os_exists(os_path(path, run, "backup.json"))) return BRG_OK;
    return err_set(e, BRG_E_CONFIG,
                   "%s: is a backup, which a hub would change; make a run of it first: "
                   "beringia restore %s --run RUN",
                   run, run);
}

/* ---- Making ------------------------------------------------------------------------------------------------ */
static bool empty_or_absent(const char *dir) {
    DIR *d = opendir(dir);
    bool empty = true;
    if (d == NULL) return errno == ENOENT;
    for (const struct dirent *x; (x = readdir(d)) != NULL;)
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0) empty = false;
    (void)closedir(d);
    return empty;
}

/* dir is ready for a backup of a's run: new, or an earlier one of it. */
static enum brg_status place_ready(const char *dir, const struct audit *a, struct err *e) {
    char theirs[ID_HEX_BYTES], ours[ID_HEX_BYTES], path[OS_PATH_MAX];
    if (empty_or_absent(dir)) return os_mkdirs(dir, e);
    if (note_read(dir, theirs, e) != BRG_OK) {
        if (e->status != BRG_E_MISSING) return e->status;
        if (os_exists(os_path(path, dir, "backup.lock")))
            return BRG_OK; /* one that was ended before its note */
        return err_set(e, BRG_E_EXISTS, "%s: is there, and no backup; give another directory", dir);
    }
    id_hex(&a->run, ours);
    if (strcmp(theirs, ours) == 0) return BRG_OK;
    return err_set(e, BRG_E_EXISTS, "%s: is the backup of another run (%s); give another directory",
                   dir, theirs);
}

/* Blobs, journal, blobs: `a` then is the audit's reading of the copied journal. */
static enum brg_status one_try(struct work *w, struct audit *a, struct err *e) {
    char dir[OS_PATH_MAX], to[OS_PATH_MAX];
    os_path(dir, w->to, "new");
    TRY(os_mkdirs(dir, e));
    w->told->kept = 0;
    TRY(blobs_walk(w, w->from, blob_take, e));
    uint64_t kept = w->told->kept;
    FAULT("backup.before_journal");
    TRY(journal_take(w->from, os_path(to, dir, "journal.db"), e));
    FAULT("backup.after_journal");
    TRY(blobs_walk(w, w->from, blob_take, e));
    w->told->kept = kept; /* what the first look brought was not there before */
    return audit_journal(a, dir, e);
}

static void remove_new(const char *dir) {
    char path[OS_PATH_MAX];
    cli_remove_tree(os_path(path, dir, "new"));
}

static enum brg_status commit(struct work *w, struct audit *a, struct err *e) {
    static const char *const suffixes[] = {"-wal", "-shm"};
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    for (size_t i = 0; i < ARRAY_COUNT(suffixes);
         i++) /* of somebody who has looked into the earlier one */
        (void)unlink(os_path(to, w->to, "journal.db%s", suffixes[i]));
    TRY(os_rename_durable(os_path(from, w->to, "new/journal.db"), os_path(to, w->to, "journal.db"),
                          e));
    TRY(note_write(w->to, a, e));
    remove_new(w->to);
    struct prune p = {.w = *w, .a = a};
    return blobs_walk(&p.w, w->to, blob_prune, e);
}

static enum brg_status make_with(struct work *w, struct audit *a, struct err *e) {
    char path[OS_PATH_MAX];
    TRY(audit_journal(a, w->from,
                      e)); /* whose run is it, and is it sound, before anything is written */
    TRY(place_ready(w->to, a, e));
    AUTO_CLOSE int lock = -1;
    TRY(os_lock(os_path(path, w->to, "backup.lock"), &lock, e));
    if (chmod(w->to, 0700) != 0) return os_errno(e, errno, "protect", w->to);
    TRY(os_mkdirs(os_path(path, w->to, "blobs"), e));
    TRY(files_take(w, ".", e));
    TRY(files_take(w, "tls", e));
    enum brg_status s = BRG_OK;
    for (int i = 0; i < TRIES; i++) {
        audit_fini(a);
        audit_init(a);
        s = one_try(w, a, e);
        if (s != BRG_OK || blobs_complete(a, w->to)) break;
        s = err_set(
            e, BRG_E_TIMEOUT,
            "%s: files of the newest version came and went %d times while they were copied; "
            "raise hub.keep_checkpoints, or try again",
            w->from, i + 1);
    }
    if (s == BRG_OK) s = commit(w, a, e);
    if (s != BRG_OK) remove_new(w->to);
    return s;
}

/* ---- Restoring ----------------------------------------------------------------------------------------------- */
/* The whole proof, by the audit's own reader: a backup that cannot be trusted is told now, not after a week. */
static enum brg_status prove(const char *dir, struct audit *a, struct err *e) {
    TRY(audit_journal(a, dir, e));
    audit_count(a);
    audit_files(a, dir, false); /* the blobs have been read already */
    if (!blobs_complete(a, dir))
        return err_set(e, BRG_E_CORRUPT, "%s: %s; take another backup", dir,
                       a->findings_count > 0 ? a->findings[0]
                                             : "a file of its newest version is missing");
    if (a->findings_count == 0 && a->doubled == 0 && a->lost == 0) return BRG_OK;
    return err_set(e, BRG_E_AUDIT, "%s: %s; see beringia audit %s", dir,
                   a->findings_count > 0 ? a->findings[0] : "positions are doubled or lost", dir);
}

static enum brg_status restore_with(struct work *w, struct audit *a, struct err *e) {
    char note[ID_HEX_BYTES], path[OS_PATH_MAX], to[OS_PATH_MAX];
    uint64_t bytes;
    TRY(note_read(w->from, note, e));
    if (!empty_or_absent(w->to))
        return err_set(e, BRG_E_EXISTS,
                       "%s: is there, and not empty; give another directory, or move it away",
                       w->to);
    TRY(blobs_walk(w, w->from, blob_verify, e));
    TRY(prove(w->from, a, e));
    TRY(os_mkdirs(os_path(path, w->to, "blobs"), e));
    TRY(files_take(w, ".", e));
    TRY(files_take(w, "tls", e));
    TRY(blobs_walk(w, w->from, blob_take, e));
    /* Last: without a journal this is no run that a hub would start. */
    return file_copy(os_path(path, w->from, "journal.db"), os_path(to, w->to, "journal.db"), NULL,
                     &bytes, e);
}

/* ---- Both ---------------------------------------------------------------------------------------------------- */
typedef enum brg_status work_fn(struct work *w, struct audit *a, struct err *e);

static enum brg_status with_audit(work_fn *act, struct work w, struct err *e) {
    struct audit *a = mem_alloc(1, sizeof *a);
    memset(w.told, 0, sizeof *w.told);
    audit_init(a);
    enum brg_status s = act(&w, a, e);
    w.told->seq = a->seq;
    w.told->version = a->head;
    audit_fini(a);
    mem_free(a);
    return s;
}

enum brg_status backup_make(const char *run, const char *dir, bool copy, struct backup_told *out,
                            struct err *e) {
    return with_audit(make_with, (struct work){.from = run, .to = dir, .copy = copy, .told = out},
                      e);
}

enum brg_status backup_restore(const char *dir, const char *run, bool copy, struct backup_told *out,
                               struct err *e) {
    return with_audit(restore_with,
                      (struct work){.from = dir, .to = run, .copy = copy, .told = out}, e);
}
