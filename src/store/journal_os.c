/* SPDX-License-Identifier: Apache-2.0 */
/* journal_os.c - the hub's memory that survives it, whatever it lies in: numbers, chain, names.
 *
 * What it is: an append-only list with one writer, group commit, and snapshots that shorten replay.
 * What it is not: a place that knows what a record means (that is hub), nor a queue.
 *
 *   closed --open--> ready --append--> ready     E_FULL: rolled back, nothing acknowledged, go on
 *                     | ^ `--append--> doubt     E_NET: connection lost, outcome not known
 *                     |  `---again------'        looked up by number and chain, never repeated blindly
 *                     `--close--> closed
 *
 *   chain_i = SHA-256(chain_(i-1) | seq as u64 | kind as u16 | body), numbers little-endian; chain_0 is
 *   32 zero bytes.  sum = SHA-256(seq as u64 | data).
 * The chain binds each record to all before it: an altered, moved or missing record shows at the
 * first replay, and one hash names a whole history, in whichever kind of store it lies.
 *
 * Invariants
 *   (J1) a record is visible to readers whole or not at all, and seq has no gaps.
 *   (J2) nothing that journal_append returned OK for is ever lost.
 *   (J3) no transaction of a process follows one of a process that began to write after it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/journal_os.h"

enum { CHAIN_HEAD_BYTES = 8 + 2 };

struct hash journal_chain_next(const struct hash *chain, uint64_t seq, uint16_t kind,
                               const void *body, size_t n) {
    uint8_t head[CHAIN_HEAD_BYTES];
    put_le64(head, seq);
    head[8] = (uint8_t)kind;
    head[9] = (uint8_t)(kind >> 8);
    struct hasher h;
    hasher_init(&h);
    hasher_update(&h, chain->v, HASH_BYTES);
    hasher_update(&h, head, sizeof head);
    if (n > 0) hasher_update(&h, body, n);
    return hasher_final(&h);
}

static struct hash snapshot_sum(uint64_t seq, const void *data, size_t n) {
    uint8_t head[8];
    put_le64(head, seq);
    struct hasher h;
    hasher_init(&h);
    hasher_update(&h, head, sizeof head);
    if (n > 0) hasher_update(&h, data, n);
    return hasher_final(&h);
}

/* ---- Names --------------------------------------------------------------------------------------- */
bool journal_name_is_url(const char *name) {
    return strncmp(name, "postgresql://", 13) == 0 || strncmp(name, "postgres://", 11) == 0;
}

enum brg_status journal_where(const char *run_dir, char out[JOURNAL_NAME_MAX], struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, JOURNAL_NAME_MAX);
    if (!os_exists(os_path(path, run_dir, "journal.url"))) {
        os_path(out, run_dir, "journal.db");
        return BRG_OK;
    }
    TRY(os_read_file(path, JOURNAL_NAME_MAX - 1, &b, e));
    const char *text = buf_cstr(&b);
    size_t n = strcspn(text, "\r\n");
    if (!journal_name_is_url(text) || text[n + strspn(text + n, "\r\n")] != '\0')
        return err_set(e, BRG_E_CONFIG,
                       "%s: want one line, postgresql://USER@HOST/DATABASE?schema=NAME; remove the "
                       "file where the journal is %s/journal.db",
                       path, run_dir);
    (void)snprintf(out, JOURNAL_NAME_MAX, "%.*s", (int)n, text);
    return BRG_OK;
}

enum brg_status journal_where_set(const char *run_dir, const char *name, struct err *e) {
    char path[OS_PATH_MAX], line[JOURNAL_NAME_MAX + 2];
    os_path(path, run_dir, "journal.url");
    if (journal_name_is_url(name)) {
        int n = snprintf(line, sizeof line, "%s\n", name);
        return os_write_file_atomic(path, line, (size_t)n, e);
    }
    if (unlink(path) != 0 && os_exists(path))
        return err_set(e, BRG_E_IO, "%s: cannot be removed", path);
    return os_fsync_dir(run_dir, e);
}

/* ---- Opening ------------------------------------------------------------------------------------- */
static enum brg_status open_kind(const char *name, enum journal_how how, struct journal **out,
                                 struct err *e) {
    struct err own;
    struct journal *j = NULL;
    if (e == NULL) e = &own;
    *out = NULL;
    if (strlen(name) >= OS_PATH_MAX - 16)
        return err_set(e, BRG_E_CONFIG, "journal path is too long");
    bool url = journal_name_is_url(name);
    if (!url && how == JOURNAL_READ)
        return err_set(e, BRG_E_CONFIG,
                       "%s: a file can not be followed; a standby wants a journal in PostgreSQL "
                       "(beringia store migrate)",
                       name);
    enum brg_status s = url ? journal_pg_open(name, how, &j, e)
                            : journal_sqlite_open(name, how == JOURNAL_CREATE, &j, e);
    if (s != BRG_OK) {
        journal_close(j);
        return s;
    }
    *out = j;
    return BRG_OK;
}

enum brg_status journal_open(const char *name, bool create, struct journal **out, struct err *e) {
    return open_kind(name, create ? JOURNAL_CREATE : JOURNAL_WRITE, out, e);
}

enum brg_status journal_open_reader(const char *name, struct journal **out, struct err *e) {
    return open_kind(name, JOURNAL_READ, out, e);
}

void journal_close(struct journal *j) {
    if (j != NULL) j->ops->close(j);
}

uint64_t journal_last_seq(const struct journal *j) {
    return j->last_seq;
}

struct hash journal_chain(const struct journal *j) {
    return j->chain;
}

/* ---- Writing ------------------------------------------------------------------------------------- */
enum brg_status journal_append(struct journal *j, const struct record *records, size_t count,
                               struct err *e) {
    for (size_t i = 0; i < count; i++) {
        CHECK(records[i].seq == j->last_seq + 1 + i); /* J1 */
        CHECK(records[i].bytes <= JOURNAL_BODY_MAX);
    }
    if (count == 0) return BRG_OK;
    AUTO_FREE struct hash *chains = mem_alloc(count, sizeof *chains);
    const struct hash *before = &j->chain;
    for (size_t i = 0; i < count; i++) {
        const struct record *r = &records[i];
        chains[i] = journal_chain_next(before, r->seq, r->kind, r->body, r->bytes);
        before = &chains[i];
    }
    const struct journal_batch b = {.records = records, .chains = chains, .count = count};
    TRY(j->ops->append(j, &b, e));
    j->last_seq += count;
    j->chain = chains[count - 1];
    return BRG_OK;
}

enum brg_status journal_snapshot_put(struct journal *j, uint64_t seq, const void *data, size_t n,
                                     struct err *e) {
    CHECK(seq <= j->last_seq);
    if (n > INT32_MAX / 2) return err_set(e, BRG_E_LIMIT, "snapshot of %zu bytes is too large", n);
    struct hash sum = snapshot_sum(seq, data, n);
    return j->ops->snapshot_put(j, seq, data, n, &sum, e);
}

/* ---- Reading ------------------------------------------------------------------------------------- */
enum brg_status journal_snapshot_get(struct journal *j, uint64_t *out_seq, struct buf *out,
                                     struct err *e) {
    struct hash sum = {{0}};
    bool has_sum = false;
    uint64_t seq = 0;
    buf_reset(out);
    TRY(j->ops->snapshot_get(j, &seq, out, &sum, &has_sum, e));
    *out_seq = 0;
    if (seq == 0) return BRG_OK;
    size_t n = out->bytes_count;
    struct hash want = snapshot_sum(seq, out->data, n);
    if (out->overflow)
        return err_set(e, BRG_E_LIMIT, "%s: snapshot of more than %zu bytes", j->name, n);
    if (!has_sum || !hash_equal(&sum, &want) || seq > j->last_seq) {
        buf_reset(out);
        return err_set(e, BRG_E_JOURNAL,
                       "%s: snapshot of record %llu is damaged; start with a full "
                       "replay",
                       j->name, (unsigned long long)seq);
    }
    *out_seq = seq;
    return BRG_OK;
}

struct walk {
    const struct journal *j;
    journal_visit *visit;
    void *user;
    uint64_t seq;
    struct hash chain;
};

/* One row: number, chain, then the visitor. */
static enum brg_status walk_row(void *user, const struct journal_row *row, struct err *e) {
    struct walk *w = user;
    const struct record *r = &row->r;
    w->seq++;
    if (r->seq != w->seq) {
        return err_set(e, BRG_E_JOURNAL, "%s: record %llu is missing", w->j->name,
                       (unsigned long long)w->seq);
    }
    w->chain = journal_chain_next(&w->chain, r->seq, r->kind, r->body, r->bytes);
    if (row->kind != r->kind || !row->has_chain || !hash_equal(&row->chain, &w->chain)) {
        return err_set(e, BRG_E_JOURNAL, "%s: record %llu was altered: its chain does not fit",
                       w->j->name, (unsigned long long)w->seq);
    }
    return w->visit(w->user, r, e);
}

enum brg_status journal_replay(struct journal *j, uint64_t after, journal_visit *visit, void *user,
                               struct err *e) {
    struct walk w = {.j = j, .visit = visit, .user = user, .seq = after};
    if (after > 0) TRY(j->ops->chain_at(j, after, &w.chain, e));
    TRY(j->ops->rows(j, after, j->last_seq, walk_row, &w, e)); /* a writer may be beside a reader */
    if (w.seq == j->last_seq && hash_equal(&w.chain, &j->chain)) return BRG_OK;
    return err_set(e, BRG_E_JOURNAL, "%s: ends at record %llu instead of %llu", j->name,
                   (unsigned long long)w.seq, (unsigned long long)j->last_seq);
}

/* ---- Over a connection --------------------------------------------------------------------------- */
time_ns journal_keep_ns(const struct journal *j) {
    return j->ops->keep != NULL ? (time_ns)JOURNAL_KEEP_MS * NS_PER_MS : 0;
}

enum brg_status journal_keep(struct journal *j, struct err *e) {
    return j->ops->keep != NULL ? j->ops->keep(j, e) : BRG_OK;
}

enum brg_status journal_again(struct journal *j, enum journal_outcome *out, struct err *e) {
    static const char *const words[] = {"none", "committed", "absent"};
    *out = JOURNAL_NO_DOUBT;
    if (j->ops->again == NULL) return BRG_OK;
    TRY(j->ops->again(j, out, e));
    log_line(LOG_INFO, "store", "journal_again", "doubt=%s seq=%llu", words[*out],
             (unsigned long long)j->last_seq);
    return BRG_OK;
}

/* What came since, where the reader stands now; a failure leaves it before the record that failed. */
static enum brg_status follow_row(void *user, const struct journal_row *row, struct err *e) {
    struct walk *w = user;
    struct walk before = *w;
    enum brg_status s = walk_row(w, row, e);
    if (s != BRG_OK) *w = before;
    return s;
}

enum brg_status journal_follow(struct journal *j, journal_visit *visit, void *user, struct err *e) {
    struct walk w = {.j = j, .visit = visit, .user = user, .seq = j->last_seq, .chain = j->chain};
    enum brg_status s = j->ops->rows(j, w.seq, INT64_MAX, follow_row, &w, e);
    j->last_seq = w.seq;
    j->chain = w.chain;
    return s;
}

enum brg_status journal_lead(struct journal *j, struct err *e) {
    return j->ops->lead != NULL ? j->ops->lead(j, e) : BRG_OK;
}

/* ---- Made whole, then named ---------------------------------------------------------------------- */
enum { SCHEMA_BYTES = 64 };
static const char SCHEMA_DEFAULT[] = "beringia";

/* The schema in a URL, or the default; false where it is too long. */
static bool schema_of(const char *url, char out[SCHEMA_BYTES]) {
    const char *q = strchr(url, '?'), *at = q;
    while (at != NULL && strncmp(at + 1, "schema=", 7) != 0) at = strchr(at + 1, '&');
    if (at == NULL) {
        memcpy(out, SCHEMA_DEFAULT, sizeof SCHEMA_DEFAULT);
        return true;
    }
    size_t n = strcspn(at + 8, "&");
    if (n >= SCHEMA_BYTES - 8) return false;
    (void)snprintf(out, SCHEMA_BYTES, "%.*s", (int)n, at + 8);
    return true;
}

/* The URL with another schema. */
static void with_schema(const char *url, const char *schema, char out[JOURNAL_NAME_MAX]) {
    const char *q = strchr(url, '?'), *at = q;
    while (at != NULL && strncmp(at + 1, "schema=", 7) != 0) at = strchr(at + 1, '&');
    size_t head = at != NULL ? (size_t)(at - url) + 1 : strlen(url);
    const char *tail = at != NULL ? at + 8 + strcspn(at + 8, "&") : "";
    const char *join = at != NULL ? "" : q != NULL ? "&" : "?";
    (void)snprintf(out, JOURNAL_NAME_MAX, "%.*s%sschema=%s%s", (int)head, url, join, schema, tail);
}

struct aside {
    char schema[SCHEMA_BYTES], schema_aside[SCHEMA_BYTES + 16], name[JOURNAL_NAME_MAX + 128];
};

static enum brg_status aside_of(const char *name, const char *word, struct aside *out,
                                struct err *e) {
    if (!journal_name_is_url(name)) {
        (void)snprintf(out->name, sizeof out->name, "%s.%s", name, word);
        return BRG_OK;
    }
    if (!schema_of(name, out->schema))
        return err_set(e, BRG_E_CONFIG, "the schema's name is too long; want at most 55 letters");
    (void)snprintf(out->schema_aside, sizeof out->schema_aside, "%s_%s", out->schema, word);
    with_schema(name, out->schema_aside, out->name);
    return BRG_OK;
}

enum brg_status journal_make(const char *name, struct journal **out, struct err *e) {
    static const char *const left[] = {"", "-wal", "-shm", ".lock"};
    struct aside a;
    char side[OS_PATH_MAX + 160];
    TRY(aside_of(name, "new", &a, e));
    if (journal_name_is_url(name)) {
        TRY(journal_pg_drop(name, a.schema_aside, e));
    } else {
        for (size_t i = 0; i < ARRAY_COUNT(left); i++) { /* of an attempt that a crash ended */
            (void)snprintf(side, sizeof side, "%s%s", a.name, left[i]);
            (void)unlink(side);
        }
    }
    return journal_open(a.name, true, out, e);
}

enum brg_status journal_publish(struct journal *j, const char *name, struct err *e) {
    struct aside a;
    char lock[OS_PATH_MAX + 160];
    journal_close(j); /* SQLite: folds the log into the file, nothing is left beside it */
    TRY(aside_of(name, "new", &a, e));
    if (journal_name_is_url(name)) return journal_pg_rename(name, a.schema_aside, a.schema, e);
    (void)snprintf(lock, sizeof lock, "%s.lock", a.name);
    (void)unlink(lock);
    return os_rename_durable(a.name, name, e);
}

enum brg_status journal_retire(const char *name, struct err *e) {
    struct aside a;
    TRY(aside_of(name, "moved", &a, e));
    if (!journal_name_is_url(name)) return os_rename_durable(name, a.name, e);
    TRY(journal_pg_drop(name, a.schema_aside, e));
    return journal_pg_rename(name, a.schema, a.schema_aside, e);
}

/* ---- Whole --------------------------------------------------------------------------------------- */
enum { BATCH_MAX = 512, BATCH_BYTES = 4 << 20, SNAPSHOT_MAX = 512 << 20 };

struct copy {
    struct journal *from, *to;
    struct record batch[BATCH_MAX];
    struct buf bytes; /* the bodies of the batch */
    size_t at[BATCH_MAX], count;
};

static enum brg_status flush_batch(struct copy *c, struct err *e) {
    for (size_t i = 0; i < c->count; i++) c->batch[i].body = c->bytes.data + c->at[i];
    TRY(journal_append(c->to, c->batch, c->count, e));
    c->count = 0;
    buf_reset(&c->bytes);
    return BRG_OK;
}

static enum brg_status copy_record(void *user, const struct record *r, struct err *e) {
    struct copy *c = user;
    if (c->count == BATCH_MAX || c->bytes.bytes_count + r->bytes > BATCH_BYTES)
        TRY(flush_batch(c, e));
    c->batch[c->count] = *r;
    c->at[c->count++] = c->bytes.bytes_count;
    buf_put(&c->bytes, r->bytes > 0 ? (const void *)r->body : "", r->bytes);
    return BRG_OK;
}

static enum brg_status copy_snapshot(struct copy *c, struct err *e) {
    AUTO_BUF struct buf b;
    struct err ignored = {0};
    uint64_t seq = 0;
    buf_init(&b, SNAPSHOT_MAX);
    /* A damaged one is left behind, and so is one that a writer made since: it is a short cut, and all
     * records are there. */
    if (journal_snapshot_get(c->from, &seq, &b, &ignored) != BRG_OK || seq == 0) return BRG_OK;
    return journal_snapshot_put(c->to, seq, b.data, b.bytes_count, e);
}

enum brg_status journal_copy_whole(struct journal *from, struct journal *to, struct err *e) {
    AUTO_FREE struct copy *c = mem_alloc(1, sizeof *c);
    c->from = from;
    c->to = to;
    buf_init(&c->bytes, BATCH_BYTES + JOURNAL_BODY_MAX);
    enum brg_status s = journal_replay(from, 0, copy_record, c, e);
    if (s == BRG_OK) s = flush_batch(c, e);
    if (s == BRG_OK) s = copy_snapshot(c, e);
    buf_fini(&c->bytes);
    return s;
}
