/* SPDX-License-Identifier: Apache-2.0 */
/* journal_pg_os.c - the journal in a schema of a PostgreSQL server: the second kind of journal_os.h.
 *
 *   journal (seq BIGINT PRIMARY KEY, kind INT, body BYTEA, chain BYTEA)      seq = 1, 2, 3, ...
 *   snapshot(seq BIGINT PRIMARY KEY, data BYTEA, sum BYTEA)                  the two newest stay
 *   meta    (name TEXT PRIMARY KEY, value TEXT)              format = 1, fence = N-RANDOM
 *
 * One writer, by an advisory lock of its session; the server gives that up when the session ends, and
 * ends a session that is silent for JOURNAL_SILENCE_MS (idle_session_timeout): a writer that was
 * killed, cut off or stopped loses the lock within seconds, by the server's clock alone.
 *
 * A writer that lost the lock does not know it yet. So each transaction also compares the fence (J3),
 * in the one statement that writes: no transaction is ever open while this process thinks, so a
 * process that is stopped holds nothing that a successor would have to wait for. Who becomes the writer
 * raises the fence with its first records; the number is for people, the random half makes two
 * processes that raise it from the same number differ.
 *
 *   writer --connection lost--> doubt --again--> writer       what was sent is there or is not
 *      ^                          `--again--> E_FENCED        somebody else raised the fence
 *      `--lead-- reader
 *
 * A COMMIT whose answer was lost is looked up, not repeated: by its last number and chain, after the
 * lock is ours again. The old session held the lock until its end, so by then nothing of it can still
 * come. Acknowledged records that the server does not have any more (a replica that was behind took
 * over, a copy was restored) are damage, told as E_JOURNAL. */
#include "store/journal_os.h"
#include "store/pg_os.h"

#ifndef HAVE_LIBPQ

static enum brg_status without(struct err *e) {
    return err_set(e, BRG_E_CONFIG,
                   "this program was built without PostgreSQL; install libpq-dev, build it again "
                   "(make clean all), or use a journal in a file");
}
enum brg_status journal_pg_open(const char *url, enum journal_how how, struct journal **out,
                                struct err *e) {
    (void)url, (void)how, (void)out;
    return without(e);
}
enum brg_status journal_pg_rename(const char *url, const char *from, const char *to,
                                  struct err *e) {
    (void)url, (void)from, (void)to;
    return without(e);
}
enum brg_status journal_pg_drop(const char *url, const char *schema, struct err *e) {
    (void)url, (void)schema;
    return without(e);
}

#else
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FENCE_BYTES = 64, SQL_BYTES = 1024, OID_INT4 = 23, OID_BYTEA = 17 };
enum {
    WAIT_S = 30,
    WAIT_LONG_S = 300,
    LOCK_WAIT_MS = JOURNAL_SILENCE_MS + 1500,
    LOOK_MS = 100,
    GUARD_START_MS = 120000
};

struct pgj {
    struct journal base;
    struct pg_name name;
    PGconn *c; /* NULL: lost */
    enum journal_how how;
    int session; /* of the server, of the newest connection */
    char fence_seen[FENCE_BYTES], fence_mine[FENCE_BYTES];
    bool raised;  /* fence_mine is there */
    int guard_ms; /* the server ends this session when it is silent for so long; 0: never */
    struct {
        bool open;
        uint64_t seq; /* of its last record */
        struct hash chain;
    } doubt;
};

static struct pgj *pgj_of(struct journal *j) {
    return (struct pgj *)j; /* base is its first member */
}

/* ---- Asking ------------------------------------------------------------------------------------ */
/* sql has one or more %s for the schema. NULL: E_NET, the connection is closed. */
static PGresult *ask(struct pgj *j, const char *sql, const struct pg_param *p, int count,
                     time_ns wait_s, struct err *e) {
    if (j->c == NULL) {
        err_set(e, BRG_E_NET, "%s: there is no connection", j->base.name);
        return NULL;
    }
    PGresult *r = pg_ask(j->c, sql, p, count, 1, wait_s * NS_PER_S, e);
    if (r == NULL) {
        err_prefix(e, "%s", j->base.name);
        PQfinish(j->c);
        j->c = NULL;
    }
    return r;
}

/* The schema in the places of '@'. */
static const char *in_schema(const struct pgj *j, const char *sql, char out[SQL_BYTES]) {
    size_t n = 0;
    for (const char *p = sql; *p != '\0'; p++) {
        if (*p != '@') {
            CHECK(n + 1 < SQL_BYTES);
            out[n++] = *p;
            continue;
        }
        int m = snprintf(out + n, SQL_BYTES - n, "%s", j->name.schema);
        CHECK(m > 0 && (size_t)m < SQL_BYTES - n);
        n += (size_t)m;
    }
    out[n] = '\0';
    return out;
}

/* For a statement whose rows do not matter. */
static enum brg_status tell(struct pgj *j, const char *sql, const char *what, struct err *e) {
    char text[SQL_BYTES];
    PGresult *r = ask(j, in_schema(j, sql, text), NULL, 0, WAIT_S, e);
    if (r == NULL) return BRG_E_NET;
    ExecStatusType st = PQresultStatus(r);
    bool good = st == PGRES_COMMAND_OK || st == PGRES_TUPLES_OK;
    enum brg_status s = good ? BRG_OK : pg_failed(r, j->base.name, what, e);
    PQclear(r);
    return s;
}

static struct pg_param text_param(const char *text) {
    return (struct pg_param){.value = text};
}

/* Rows of a query, or NULL with the reason in *e. */
static PGresult *query(struct pgj *j, const char *sql, const struct pg_param *p, int count,
                       struct err *e) {
    char text[SQL_BYTES];
    PGresult *r = ask(j, in_schema(j, sql, text), p, count, WAIT_LONG_S, e);
    if (r == NULL || PQresultStatus(r) == PGRES_TUPLES_OK) return r;
    (void)!pg_failed(r, j->base.name, "reading", e);
    PQclear(r);
    return NULL;
}

static uint64_t cell_u64(const PGresult *r, int row, int column) {
    const uint8_t *p = (const uint8_t *)PQgetvalue(r, row, column);
    uint64_t v = 0;
    for (int i = 0; i < PQgetlength(r, row, column) && i < 8; i++) v = v << 8 | p[i];
    return v;
}

static bool cell_hash(const PGresult *r, int row, int column, struct hash *out) {
    if (PQgetlength(r, row, column) != HASH_BYTES) return false;
    memcpy(out->v, PQgetvalue(r, row, column), HASH_BYTES);
    return true;
}

static void nap(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * NS_PER_MS};
    (void)nanosleep(&t, NULL);
}

/* ---- The lock and the fence ---------------------------------------------------------------------- */
static int64_t lock_key(const struct pgj *j) {
    char text[PG_SCHEMA_BYTES + 32];
    int n = snprintf(text, sizeof text, "beringia journal %s", j->name.schema);
    struct hash h = hash_of(text, (size_t)n);
    return (int64_t)get_le64(h.v);
}

/* BRG_OK: this session has it; E_BUSY: another one. */
static enum brg_status try_lock(struct pgj *j, struct err *e) {
    char key[32];
    (void)snprintf(key, sizeof key, "%" PRId64, lock_key(j));
    struct pg_param p[] = {text_param(key)};
    PGresult *r = query(j, "SELECT pg_try_advisory_lock($1::bigint)", p, 1, e);
    if (r == NULL) return e->status;
    bool got = PQntuples(r) == 1 && PQgetvalue(r, 0, 0)[0] == 1;
    PQclear(r);
    if (got) return BRG_OK;
    return err_set(e, BRG_E_BUSY,
                   "%s: another process has this journal; stop that hub, or start this one with "
                   "--standby",
                   j->base.name);
}

static enum brg_status wait_lock(struct pgj *j, int wait_ms, struct err *e) {
    time_ns until = os_now() + (time_ns)wait_ms * NS_PER_MS;
    for (;;) {
        enum brg_status s = try_lock(j, e);
        if (s != BRG_E_BUSY || os_now() >= until) return s;
        nap(LOOK_MS);
    }
}

/* Ends our own old session, where it is still there and has the lock: the server may not have noticed
 * that nobody is at its other end. */
static void end_session(struct pgj *j, int session) {
    struct err e = {0};
    char pid[24], high[24], low[24];
    uint64_t key = (uint64_t)lock_key(j);
    (void)snprintf(pid, sizeof pid, "%d", session);
    (void)snprintf(high, sizeof high, "%" PRIu64, key >> 32);
    (void)snprintf(low, sizeof low, "%" PRIu64, key & UINT32_MAX);
    struct pg_param p[] = {text_param(pid), text_param(high), text_param(low)};
    PQclear(query(j,
                  "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND "
                  "pid = $1::int AND classid = $2::oid AND objid = $3::oid AND objsubid = 1",
                  p, 3, &e));
}

static enum brg_status read_fence(struct pgj *j, char out[FENCE_BYTES], struct err *e) {
    PGresult *r = query(j, "SELECT value FROM @.meta WHERE name = 'fence'", NULL, 0, e);
    if (r == NULL) return e->status;
    bool there = PQntuples(r) == 1 && PQgetlength(r, 0, 0) < FENCE_BYTES;
    if (there) (void)snprintf(out, FENCE_BYTES, "%s", PQgetvalue(r, 0, 0));
    PQclear(r);
    return there ? BRG_OK
                 : err_set(e, BRG_E_JOURNAL, "%s: its fence is missing or damaged", j->base.name);
}

/* What this process will write where `fence_seen` stands. */
static void choose_fence(struct pgj *j) {
    uint64_t half;
    os_random(&half, sizeof half);
    (void)snprintf(j->fence_mine, sizeof j->fence_mine, "%llu-%016" PRIx64,
                   strtoull(j->fence_seen, NULL, 10) + 1, half);
}

static enum brg_status fenced(const struct pgj *j, struct err *e) {
    return err_set(e, BRG_E_FENCED,
                   "%s: another hub has taken over this run; this process stops, nothing that it "
                   "acknowledged is lost",
                   j->base.name);
}

/* A silent writer's lock is free after so long: GUARD_START_MS from a hub's first sign of life on, while it
 * starts; JOURNAL_SILENCE_MS from its first write on. */
static void guard(struct pgj *j, int ms) {
    struct err e = {0};
    char sql[64];
    if (j->c == NULL || j->guard_ms == ms) return;
    (void)snprintf(sql, sizeof sql, "SET idle_session_timeout = %d", ms);
    if (tell(j, sql, "guard", &e) == BRG_OK) j->guard_ms = ms; /* else: the next write tells it */
}

/* ---- Opening ------------------------------------------------------------------------------------- */
static enum brg_status create(struct pgj *j, struct err *e) {
    static const char *const steps[] = {
        "BEGIN",
        "CREATE SCHEMA IF NOT EXISTS @",
        "CREATE TABLE @.journal(seq BIGINT PRIMARY KEY, kind INT NOT NULL, body BYTEA NOT NULL,"
        " chain BYTEA NOT NULL)",
        "CREATE TABLE @.snapshot(seq BIGINT PRIMARY KEY, data BYTEA NOT NULL, sum BYTEA NOT NULL)",
        "CREATE TABLE @.meta(name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "INSERT INTO @.meta VALUES('format', '" JOURNAL_FORMAT "'), ('fence', '0')",
        "COMMIT"};
    PGresult *r = query(j, "SELECT to_regclass('@.journal')::text", NULL, 0, e);
    if (r == NULL) return e->status;
    bool there = PQgetisnull(r, 0, 0) == 0;
    PQclear(r);
    if (there)
        return err_set(e, BRG_E_EXISTS,
                       "%s: there is a journal already in schema %s; choose another one by "
                       "schema=NAME",
                       j->base.name, j->name.schema);
    for (size_t i = 0; i < ARRAY_COUNT(steps); i++) TRY(tell(j, steps[i], "create", e));
    return BRG_OK;
}

static enum brg_status check_format(struct pgj *j, struct err *e) {
    PGresult *r = query(j, "SELECT value FROM @.meta WHERE name = 'format'", NULL, 0, e);
    if (r == NULL && e->status == BRG_E_MISSING)
        return err_set(e, BRG_E_MISSING,
                       "%s: no journal in schema %s; create the run first, or look at schema= in "
                       "its name",
                       j->base.name, j->name.schema);
    if (r == NULL) return e->status;
    char there[32] = "";
    if (PQntuples(r) == 1) (void)snprintf(there, sizeof there, "%.20s", PQgetvalue(r, 0, 0));
    PQclear(r);
    if (strcmp(there, JOURNAL_FORMAT) == 0) return BRG_OK;
    if (there[0] == '\0')
        return err_set(e, BRG_E_JOURNAL, "%s: says no format; it is no journal of beringia",
                       j->base.name);
    return err_set(e, BRG_E_JOURNAL,
                   "%s: is of format %s, newer than this program knows (" JOURNAL_FORMAT
                   "); use the beringia that wrote it, or a newer one",
                   j->base.name, there);
}

/* The newest record's number and chain. Gaps before it are found by replay. */
static enum brg_status load_tail(struct pgj *j, uint64_t *out_seq, struct hash *out_chain,
                                 struct err *e) {
    PGresult *r =
        query(j, "SELECT seq, chain FROM @.journal ORDER BY seq DESC LIMIT 1", NULL, 0, e);
    if (r == NULL) return e->status;
    bool right = true;
    *out_seq = 0;
    memset(out_chain, 0, sizeof *out_chain);
    if (PQntuples(r) == 1) {
        *out_seq = cell_u64(r, 0, 0);
        right = (int64_t)*out_seq > 0 && cell_hash(r, 0, 1, out_chain);
    }
    PQclear(r);
    return right ? BRG_OK : err_set(e, BRG_E_JOURNAL, "%s: last record is damaged", j->base.name);
}

static enum brg_status reach(struct pgj *j, struct err *e) {
    if (j->c != NULL) PQfinish(j->c);
    j->guard_ms = 0;
    if (pg_connect(&j->name, &j->c, e) != BRG_OK) return err_prefix(e, "%s", j->base.name);
    j->session = PQbackendPID(j->c);
    return BRG_OK;
}

static const struct journal_ops pg_ops;

enum brg_status journal_pg_open(const char *url, enum journal_how how, struct journal **out,
                                struct err *e) {
    struct pgj *j = mem_alloc(1, sizeof *j);
    j->base.ops = &pg_ops;
    j->how = how;
    *out = &j->base;
    TRY(pg_name_parse(url, &j->name, e));
    (void)snprintf(j->base.name, sizeof j->base.name, "%s", url); /* holds no secret now */
    TRY(reach(j, e));
    if (how == JOURNAL_CREATE) TRY(create(j, e));
    TRY(check_format(j, e));
    if (how != JOURNAL_READ) TRY(wait_lock(j, LOCK_WAIT_MS, e));
    TRY(read_fence(j, j->fence_seen, e)); /* first: who raises it after this is noticed */
    choose_fence(j);
    return load_tail(j, &j->base.last_seq, &j->base.chain, e);
}

static void pg_close(struct journal *base) {
    struct pgj *j = pgj_of(base);
    if (j->c != NULL) PQfinish(j->c);
    mem_free(j);
}

/* ---- Writing ------------------------------------------------------------------------------------- */
static void put_be32(struct buf *b, uint32_t v) {
    uint8_t p[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
    buf_put(b, p, sizeof p);
}

/* A one-dimensional array as the server's binary form has it. */
static void array_head(struct buf *b, size_t bytes, uint32_t oid, size_t count) {
    buf_init(b, bytes + 64 + 8 * count);
    put_be32(b, 1); /* dimensions */
    put_be32(b, 0); /* no NULL in it */
    put_be32(b, oid);
    put_be32(b, (uint32_t)count);
    put_be32(b, 1); /* the first index */
}

static void array_item(struct buf *b, const void *data, size_t n) {
    put_be32(b, (uint32_t)n);
    if (n > 0) buf_put(b, data, n);
}

struct arrays {
    struct buf kinds, bodies, chains;
};

static void arrays_make(struct arrays *a, const struct journal_batch *b) {
    size_t bytes = 0;
    for (size_t i = 0; i < b->count; i++) bytes += b->records[i].bytes;
    array_head(&a->kinds, 4 * b->count, OID_INT4, b->count);
    array_head(&a->bodies, bytes, OID_BYTEA, b->count);
    array_head(&a->chains, HASH_BYTES * b->count, OID_BYTEA, b->count);
    for (size_t i = 0; i < b->count; i++) {
        const struct record *r = &b->records[i];
        uint8_t kind[4] = {0, 0, (uint8_t)(r->kind >> 8), (uint8_t)r->kind};
        array_item(&a->kinds, kind, sizeof kind);
        array_item(&a->bodies, r->body, r->bytes);
        array_item(&a->chains, b->chains[i].v, HASH_BYTES);
    }
    CHECK(!a->kinds.overflow && !a->bodies.overflow && !a->chains.overflow);
}

static void arrays_fini(struct arrays *a) {
    buf_fini(&a->kinds);
    buf_fini(&a->bodies);
    buf_fini(&a->chains);
}

/* The part of a statement that gives one row to the newest writer and none to any other: $1 is the fence
 * that must stand there, and the first write of a process puts $2 in its place. */
#define FENCE_HELD                                                                                 \
    "WITH f AS MATERIALIZED (SELECT 1 FROM @.meta WHERE name = 'fence' AND value = $1"             \
    " AND $2::text IS NOT NULL FOR SHARE)"
#define FENCE_RAISED                                                                               \
    "WITH f AS (UPDATE @.meta SET value = $2 WHERE name = 'fence' AND value = $1 RETURNING 1)"
#define APPEND                                                                                     \
    " INSERT INTO @.journal SELECT $3::bigint + r.n, r.k, r.b, r.c FROM f CROSS JOIN"              \
    " unnest($4::int4[], $5::bytea[], $6::bytea[]) WITH ORDINALITY AS r(k, b, c, n)"
#define SNAPSHOT                                                                                   \
    ", d AS (DELETE FROM @.snapshot WHERE EXISTS (SELECT FROM f) AND seq <"                        \
    " (SELECT max(seq) FROM @.snapshot WHERE seq <> $3::bigint))"                                  \
    " INSERT INTO @.snapshot SELECT $3::bigint, $4::bytea, $5::bytea FROM f"                       \
    " ON CONFLICT (seq) DO UPDATE SET data = excluded.data, sum = excluded.sum"

/* One statement, one transaction. *wrote: how many rows. */
static enum brg_status write_fenced(struct pgj *j, const char *held, const char *raised,
                                    struct pg_param *p, int count, time_ns wait_s, const char *what,
                                    uint64_t *wrote, struct err *e) {
    char text[SQL_BYTES];
    p[0] = text_param(j->raised ? j->fence_mine : j->fence_seen);
    p[1] = text_param(j->fence_mine);
    PGresult *r = ask(j, in_schema(j, j->raised ? held : raised, text), p, count, wait_s, e);
    if (r == NULL) return BRG_E_NET;
    enum brg_status s = BRG_OK;
    *wrote = 0;
    if (PQresultStatus(r) == PGRES_COMMAND_OK)
        (void)parse_u64(PQcmdTuples(r), wrote);
    else if (pg_state_is(r, "23505")) /* the number is taken: somebody wrote after our reading */
        s = fenced(j, e);
    else
        s = pg_failed(r, j->base.name, what, e);
    PQclear(r);
    if (s == BRG_E_NET && j->c != NULL) { /* what it says of itself: start from a new session */
        PQfinish(j->c);
        j->c = NULL;
    }
    TRY(s);
    if (*wrote == 0) return fenced(j, e); /* J3 */
    j->raised = true;
    return BRG_OK;
}

static enum brg_status pg_append(struct journal *base, const struct journal_batch *b,
                                 struct err *e) {
    struct pgj *j = pgj_of(base);
    struct arrays a;
    char last[24];
    uint64_t wrote;
    bool sent = j->c != NULL;
    if (j->doubt.open)
        return err_set(e, BRG_E_NET, "%s: what became of the last records is not looked up yet",
                       base->name);
    arrays_make(&a, b);
    (void)snprintf(last, sizeof last, "%" PRIu64, base->last_seq);
    struct pg_param p[6] = {[2] = text_param(last),
                            [3] = {a.kinds.data, a.kinds.bytes_count},
                            [4] = {a.bodies.data, a.bodies.bytes_count},
                            [5] = {a.chains.data, a.chains.bytes_count}};
    enum brg_status s =
        write_fenced(j, FENCE_HELD APPEND, FENCE_RAISED APPEND, p, 6, WAIT_S, "append", &wrote, e);
    arrays_fini(&a);
    if (s == BRG_E_NET && sent) {
        j->doubt.open = true;
        j->doubt.seq = base->last_seq + b->count;
        j->doubt.chain = b->chains[b->count - 1];
    }
    TRY(s);
    CHECK(wrote == b->count); /* J1 */
    guard(j, JOURNAL_SILENCE_MS);
    return BRG_OK;
}

static enum brg_status pg_snapshot_put(struct journal *base, uint64_t seq, const void *data,
                                       size_t n, const struct hash *sum, struct err *e) {
    struct pgj *j = pgj_of(base);
    char number[24];
    uint64_t wrote;
    int before = j->guard_ms;
    (void)snprintf(number, sizeof number, "%" PRIu64, seq);
    struct pg_param p[5] = {
        [2] = text_param(number), [3] = {n > 0 ? data : "", n}, [4] = {sum->v, HASH_BYTES}};
    guard(j, 0); /* while a large one is on its way the server hears no whole message */
    enum brg_status s = write_fenced(j, FENCE_HELD SNAPSHOT, FENCE_RAISED SNAPSHOT, p, 5,
                                     WAIT_LONG_S, "snapshot", &wrote, e);
    guard(j, before);
    return s;
}

/* ---- Reading ------------------------------------------------------------------------------------- */
static enum brg_status pg_snapshot_get(struct journal *base, uint64_t *out_seq, struct buf *out,
                                       struct hash *out_sum, bool *out_has_sum, struct err *e) {
    PGresult *r = query(pgj_of(base),
                        "SELECT seq, data, sum FROM @.snapshot ORDER BY seq DESC LIMIT 1", NULL, 0,
                        e);
    if (r == NULL) return e->status;
    *out_seq = 0;
    if (PQntuples(r) == 1) {
        *out_seq = cell_u64(r, 0, 0);
        *out_has_sum = cell_hash(r, 0, 2, out_sum);
        size_t n = (size_t)PQgetlength(r, 0, 1);
        if (n > 0) buf_put(out, PQgetvalue(r, 0, 1), n);
    }
    PQclear(r);
    return BRG_OK;
}

/* *there: is there such a record; with its chain in out, where that is whole. */
static enum brg_status look_up(struct pgj *j, uint64_t seq, bool *there, struct hash *out,
                               struct err *e) {
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRIu64, seq);
    struct pg_param p[] = {text_param(number)};
    PGresult *r = query(j, "SELECT chain FROM @.journal WHERE seq = $1::bigint", p, 1, e);
    if (r == NULL) return e->status;
    memset(out, 0, sizeof *out);
    *there = PQntuples(r) == 1 && cell_hash(r, 0, 0, out);
    PQclear(r);
    return BRG_OK;
}

static enum brg_status pg_chain_at(struct journal *base, uint64_t seq, struct hash *out,
                                   struct err *e) {
    bool there;
    TRY(look_up(pgj_of(base), seq, &there, out, e));
    return there ? BRG_OK
                 : err_set(e, BRG_E_JOURNAL, "%s: record %" PRIu64 " is missing or damaged",
                           base->name, seq);
}

static enum brg_status take_row(const PGresult *r, journal_row_visit *visit, void *user,
                                struct err *e) {
    struct journal_row row = {.kind = (int64_t)(int32_t)cell_u64(r, 0, 1)};
    row.r.seq = cell_u64(r, 0, 0);
    row.r.kind = (uint16_t)row.kind;
    row.r.body = (const uint8_t *)PQgetvalue(r, 0, 2);
    row.r.bytes = (size_t)PQgetlength(r, 0, 2);
    row.has_chain = cell_hash(r, 0, 3, &row.chain);
    return visit(user, &row, e);
}

/* After a visitor's failure: what the server still sends is not waited for. */
static void cut_short(struct pgj *j) {
    char words[256];
    PGcancel *x = PQgetCancel(j->c);
    if (x != NULL) (void)PQcancel(x, words, sizeof words);
    PQfreeCancel(x);
}

static enum brg_status pg_rows(struct journal *base, uint64_t after, uint64_t upto,
                               journal_row_visit *visit, void *user, struct err *e) {
    struct pgj *j = pgj_of(base);
    char text[SQL_BYTES], number[24], last[24];
    const char *values[] = {number, last};
    enum brg_status s = BRG_OK;
    bool lost = false;
    (void)snprintf(number, sizeof number, "%" PRIu64, after);
    (void)snprintf(last, sizeof last, "%" PRIu64, upto);
    in_schema(
        j,
        "SELECT seq, kind, body, chain FROM @.journal WHERE seq > $1::bigint AND seq <= $2::bigint"
        " ORDER BY seq",
        text);
    if (j->c == NULL || PQsendQueryParams(j->c, text, 2, NULL, values, NULL, NULL, 1) == 0)
        lost = true;
    else
        CHECK(PQsetSingleRowMode(j->c) == 1);
    while (!lost) {
        PGresult *r = pg_next(j->c, (time_ns)WAIT_LONG_S * NS_PER_S, &lost);
        if (r == NULL) break;
        ExecStatusType st = PQresultStatus(r);
        bool before = s == BRG_OK;
        if (st == PGRES_SINGLE_TUPLE && before)
            s = take_row(r, visit, user, e);
        else if (st != PGRES_SINGLE_TUPLE && st != PGRES_TUPLES_OK && before)
            s = pg_failed(r, base->name, "reading", e);
        if (before && s != BRG_OK && st == PGRES_SINGLE_TUPLE) cut_short(j);
        PQclear(r);
    }
    if (!lost) return s;
    if (j->c != NULL) PQfinish(j->c);
    j->c = NULL;
    return err_set(e, BRG_E_NET, "%s: the connection to the server is lost", base->name);
}

/* ---- A connection that comes and goes -------------------------------------------------------------- */
static enum brg_status pg_keep(struct journal *base, struct err *e) {
    struct pgj *j = pgj_of(base);
    char there[FENCE_BYTES];
    TRY(read_fence(j, there, e));
    if (j->raised && strcmp(there, j->fence_mine) != 0) return fenced(j, e); /* J3 */
    if (j->guard_ms == 0) guard(j, GUARD_START_MS);
    return BRG_OK;
}

/* Whose the journal is, by its fence; tells too whether our own raising of it, when the connection was
 * lost, was done. */
static enum brg_status judge_fence(struct pgj *j, struct err *e) {
    char there[FENCE_BYTES];
    TRY(read_fence(j, there, e));
    bool mine = strcmp(there, j->fence_mine) == 0, seen = strcmp(there, j->fence_seen) == 0;
    if (!mine && (j->raised || !seen)) return fenced(j, e); /* J3 */
    j->raised = mine;
    return BRG_OK;
}

/* What the server has is compared with what it acknowledged, and with what was under way. */
static enum brg_status look_back(struct pgj *j, enum journal_outcome *out, struct err *e) {
    struct hash chain;
    bool there;
    if (j->base.last_seq > 0) {
        TRY(look_up(j, j->base.last_seq, &there, &chain, e));
        if (!there || !hash_equal(&chain, &j->base.chain)) /* J2 */
            return err_set(e, BRG_E_JOURNAL,
                           "%s: the server does not have record %" PRIu64 " any more, which it "
                           "acknowledged (a replica that was behind, an old copy?); give it back",
                           j->base.name, j->base.last_seq);
    }
    if (j->doubt.open) {
        TRY(look_up(j, j->doubt.seq, &there, &chain, e));
        if (there && !hash_equal(&chain, &j->doubt.chain)) return fenced(j, e);
        *out = there ? JOURNAL_COMMITTED : JOURNAL_ABSENT;
    }
    TRY(load_tail(j, &j->base.last_seq, &j->base.chain, e));
    j->doubt.open = false;
    return BRG_OK;
}

static enum brg_status pg_again(struct journal *base, enum journal_outcome *out, struct err *e) {
    struct pgj *j = pgj_of(base);
    int before = j->session;
    TRY(reach(j, e));
    if (j->how == JOURNAL_READ) { /* it only has to go on where it stood */
        struct hash chain;
        bool there = true;
        if (base->last_seq > 0) TRY(look_up(j, base->last_seq, &there, &chain, e));
        if (base->last_seq == 0 || (there && hash_equal(&chain, &base->chain))) return BRG_OK;
        return err_set(e, BRG_E_JOURNAL, "%s: record %" PRIu64 " is another one than before",
                       base->name, base->last_seq);
    }
    enum brg_status s = try_lock(j, e);
    if (s == BRG_E_BUSY) {
        end_session(j, before);
        s = wait_lock(j, LOOK_MS * 5, e);
    }
    j->session = s == BRG_OK ? j->session : before; /* that one may still have it */
    if (s == BRG_E_BUSY) {
        struct err other = {0};
        if (judge_fence(j, &other) == BRG_E_FENCED) {
            *e = other;
            return BRG_E_FENCED;
        }
    }
    TRY(s);
    TRY(judge_fence(j, e));
    guard(j, GUARD_START_MS);
    return look_back(j, out, e);
}

static enum brg_status pg_lead(struct journal *base, struct err *e) {
    struct pgj *j = pgj_of(base);
    TRY(try_lock(j, e));
    TRY(read_fence(j, j->fence_seen, e));
    choose_fence(j);
    j->how = JOURNAL_WRITE;
    return BRG_OK;
}

static const struct journal_ops pg_ops = {.close = pg_close,
                                          .append = pg_append,
                                          .snapshot_put = pg_snapshot_put,
                                          .snapshot_get = pg_snapshot_get,
                                          .chain_at = pg_chain_at,
                                          .rows = pg_rows,
                                          .keep = pg_keep,
                                          .again = pg_again,
                                          .lead = pg_lead};

/* ---- Whole journals -------------------------------------------------------------------------------- */
static enum brg_status admin(const char *url, struct pgj **out, struct err *e) {
    struct pgj *j = mem_alloc(1, sizeof *j);
    *out = j;
    TRY(pg_name_parse(url, &j->name, e));
    (void)snprintf(j->base.name, sizeof j->base.name, "%s", url);
    return reach(j, e);
}

enum brg_status journal_pg_rename(const char *url, const char *from, const char *to,
                                  struct err *e) {
    struct pgj *j;
    char sql[SQL_BYTES];
    enum brg_status s = admin(url, &j, e);
    (void)snprintf(sql, sizeof sql, "ALTER SCHEMA %s RENAME TO %s", from, to);
    if (s == BRG_OK) {
        PGresult *r = ask(j, sql, NULL, 0, WAIT_S, e);
        if (r == NULL)
            s = BRG_E_NET;
        else if (pg_state_is(r, "42P06"))
            s = err_set(e, BRG_E_EXISTS, "%s: there is a schema %s already; choose another one",
                        j->base.name, to);
        else if (PQresultStatus(r) != PGRES_COMMAND_OK)
            s = pg_failed(r, j->base.name, "renaming", e);
        PQclear(r);
    }
    pg_close(&j->base);
    return s;
}

/* No CASCADE: what is not ours in there keeps the schema, and is told. */
enum brg_status journal_pg_drop(const char *url, const char *schema, struct err *e) {
    static const char *const steps[] = {"BEGIN", "DROP TABLE @.journal, @.snapshot, @.meta",
                                        "DROP SCHEMA @", "COMMIT"};
    struct pgj *j;
    bool there = false;
    enum brg_status s = admin(url, &j, e);
    (void)snprintf(j->name.schema, sizeof j->name.schema, "%s", schema);
    if (s == BRG_OK) {
        PGresult *r = query(j, "SELECT to_regclass('@.journal')::text", NULL, 0, e);
        s = r == NULL ? e->status : BRG_OK;
        there = r != NULL && PQgetisnull(r, 0, 0) == 0;
        PQclear(r);
    }
    for (size_t i = 0; s == BRG_OK && there && i < ARRAY_COUNT(steps); i++)
        s = tell(j, steps[i], "removing what an earlier try left", e);
    pg_close(&j->base);
    return s;
}
#endif
