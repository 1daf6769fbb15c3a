/* SPDX-License-Identifier: Apache-2.0 */
/* pg_os.c - a connection to PostgreSQL: its name, its settings, and waits that end. */
#include "store/pg_os.h"

#include "base/os.h"

#ifdef HAVE_LIBPQ
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { SERVER_OLDEST = 140000, PARAMS_MAX = 8 };
#define CONNECT_SECONDS "5"

/* ---- Names ------------------------------------------------------------------------------------- */
static bool schema_good(const char *s) {
    if (!(*s >= 'a' && *s <= 'z') && *s != '_') return false;
    for (; *s != '\0'; s++)
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= '0' && *s <= '9') && *s != '_') return false;
    return true;
}

/* Takes schema=NAME out of the query part; the rest is libpq's. */
static enum brg_status take_schema(const char *url, struct pg_name *out, struct err *e) {
    char *to = out->conninfo;
    const char *q = strchr(url, '?');
    size_t head = q != NULL ? (size_t)(q - url) : strlen(url);
    (void)snprintf(out->schema, sizeof out->schema, "beringia");
    memcpy(to, url, head);
    to += head;
    char join = '?';
    for (const char *p = q; p != NULL && *p != '\0';) {
        size_t n = strcspn(p + 1, "&");
        if (strncmp(p + 1, "schema=", 7) == 0) {
            if (n - 7 >= sizeof out->schema)
                return err_set(e, BRG_E_CONFIG, "schema=: want at most %zu letters",
                               sizeof out->schema - 1);
            (void)snprintf(out->schema, sizeof out->schema, "%.*s", (int)(n - 7), p + 8);
        } else if (n > 0) {
            *to++ = join;
            memcpy(to, p + 1, n);
            to += n;
            join = '&';
        }
        p += 1 + n;
    }
    *to = '\0';
    if (schema_good(out->schema)) return BRG_OK;
    return err_set(e, BRG_E_CONFIG,
                   "schema=%s: want small letters, digits and _, not a digit first", out->schema);
}

enum brg_status pg_name_parse(const char *url, struct pg_name *out, struct err *e) {
    if (strlen(url) >= sizeof out->conninfo - 1)
        return err_set(e, BRG_E_CONFIG, "the journal's name is too long");
    TRY(take_schema(url, out, e));
    char *words = NULL;
    PQconninfoOption *all = PQconninfoParse(out->conninfo, &words), *o;
    PQfreemem(words); /* not told: it may repeat the name, and a password with it */
    if (all == NULL)
        return err_set(e, BRG_E_CONFIG,
                       "the journal's name is not understood; want "
                       "postgresql://USER@HOST/DATABASE?schema=NAME, further keys as libpq has "
                       "them");
    bool secret = false;
    for (o = all; o->keyword != NULL; o++) {
        bool is = strcmp(o->keyword, "password") == 0 || strcmp(o->keyword, "sslpassword") == 0;
        secret = secret || (is && o->val != NULL && o->val[0] != '\0');
    }
    PQconninfoFree(all);
    if (!secret) return BRG_OK;
    return err_set(e, BRG_E_CONFIG,
                   "the journal's name has a password in it, which everybody could read; take it "
                   "out and put it into a file (mode 0600) named by PGPASSFILE or passfile=FILE");
}

/* ---- Waiting ----------------------------------------------------------------------------------- */
void pg_words(const char *message, char *out, size_t cap) {
    size_t n = 0;
    for (const char *p = message != NULL ? message : ""; *p != '\0' && n + 1 < cap; p++) {
        bool blank = *p == '\n' || *p == '\r' || *p == '\t' || *p == ' ' || *p == '"';
        if (blank && (n == 0 || out[n - 1] == ' ')) continue;
        out[n++] = *p == '"' ? '\'' : blank ? ' ' : *p;
    }
    while (n > 0 && out[n - 1] == ' ') n--;
    out[n] = '\0';
}

/* Waits for the socket; false where the time is over. */
static bool wait_socket(PGconn *c, short events, time_ns until) {
    struct pollfd p = {.fd = PQsocket(c), .events = events};
    if (p.fd < 0) return false;
    for (;;) {
        time_ns left = until - os_now();
        if (left <= 0) return false;
        int n = poll(&p, 1, (int)(left / NS_PER_MS) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* All that was asked is on its way, and an answer is complete. */
static bool answered(PGconn *c, time_ns until) {
    for (;;) {
        int rest = PQflush(c);
        if (rest < 0) return false;
        if (rest == 0 && PQisBusy(c) == 0) return true;
        if (!wait_socket(c, (short)(POLLIN | (rest > 0 ? POLLOUT : 0)), until)) return false;
        if (PQconsumeInput(c) == 0) return false;
    }
}

PGresult *pg_next(PGconn *c, time_ns wait, bool *lost) {
    *lost = !answered(c, os_now() + wait);
    if (*lost) return NULL;
    PGresult *r = PQgetResult(c);
    *lost = r == NULL && PQstatus(c) != CONNECTION_OK;
    return r;
}

static PGresult *lost(PGconn *c, struct err *e) {
    char words[300];
    pg_words(PQerrorMessage(c), words, sizeof words);
    err_set(e, BRG_E_NET, "the connection to the server is lost: %s",
            words[0] != '\0' ? words : "no answer in time");
    return NULL;
}

PGresult *pg_ask(PGconn *c, const char *sql, const struct pg_param *p, int count, int format_out,
                 time_ns wait, struct err *e) {
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX], formats[PARAMS_MAX];
    CHECK(count <= PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        values[i] = p[i].value;
        lengths[i] = (int)p[i].bytes;
        formats[i] = p[i].bytes > 0;
    }
    if (PQstatus(c) != CONNECTION_OK ||
        PQsendQueryParams(c, sql, count, NULL, values, lengths, formats, format_out) == 0)
        return lost(c, e);
    PGresult *first = NULL;
    for (;;) {
        bool gone;
        PGresult *r = pg_next(c, wait, &gone);
        if (gone) {
            PQclear(first);
            return lost(c, e);
        }
        if (r == NULL) break;
        if (first == NULL)
            first = r;
        else
            PQclear(r);
    }
    /* The server said why before it hung up: there is no answer beyond that. */
    if (first != NULL && PQstatus(c) == CONNECTION_OK) return first;
    PQclear(first);
    return lost(c, e);
}

/* ---- What the server said ------------------------------------------------------------------------ */
bool pg_state_is(const PGresult *r, const char *sqlstate) {
    const char *s = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    return s != NULL && strcmp(s, sqlstate) == 0;
}

enum brg_status pg_failed(const PGresult *r, const char *name, const char *what, struct err *e) {
    static const struct {
        const char *state; /* a class of two letters, or a whole one */
        enum brg_status status;
    } table[] = {{"53", BRG_E_FULL}, /* disk full, out of memory, too many connections */
                 {"08", BRG_E_NET},  /* connection */
                 {"57", BRG_E_NET},  /* operator intervention: it shuts down, starts up, cancels */
                 {"25006", BRG_E_NET}, /* a replica that is not (yet) the primary */
                 {"40", BRG_E_NET},    /* rolled back, deadlock: nothing was done */
                 {"58", BRG_E_IO},        {"XX", BRG_E_IO},      {"28", BRG_E_CONFIG},
                 {"42501", BRG_E_CONFIG}, {"3D", BRG_E_MISSING}, {"3F", BRG_E_MISSING},
                 {"42P01", BRG_E_MISSING}};
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    enum brg_status s = BRG_E_JOURNAL;
    char words[300];
    for (size_t i = 0; state != NULL && i < ARRAY_COUNT(table); i++)
        if (strncmp(state, table[i].state, strlen(table[i].state)) == 0) s = table[i].status;
    pg_words(PQresultErrorMessage(r), words, sizeof words);
    return err_set(e, s, "%s: %s: %s%s", name, what, words,
                   s == BRG_E_FULL ? "; make space on the server, nothing is lost" : "");
}

/* ---- Connecting ---------------------------------------------------------------------------------- */
static void no_notice(void *user, const PGresult *r) {
    (void)user;
    (void)r;
}

static enum brg_status check_server(PGconn *c, struct err *e) {
    const time_ns wait = 10 * (time_ns)NS_PER_S;
    if (PQserverVersion(c) < SERVER_OLDEST)
        return err_set(e, BRG_E_CONFIG,
                       "the server is PostgreSQL %d; want 14 or newer (it ends sessions that are "
                       "silent, which a standby leans on)",
                       PQserverVersion(c) / 10000);
    PGresult *r = pg_ask(c, "SELECT current_setting('fsync')", NULL, 0, 0, wait, e);
    if (r == NULL) return BRG_E_NET;
    bool keeps = PQresultStatus(r) == PGRES_TUPLES_OK && strcmp(PQgetvalue(r, 0, 0), "on") == 0;
    PQclear(r);
    if (!keeps)
        return err_set(e, BRG_E_CONFIG,
                       "the server runs with fsync=off and would lose what it acknowledged; turn "
                       "it on");
    static const char *const sets[] = {
        "SET synchronous_commit = on", "SET default_transaction_isolation = 'read committed'",
        "SET statement_timeout = 0", "SET client_min_messages = warning"};
    for (size_t i = 0; i < ARRAY_COUNT(sets); i++) {
        r = pg_ask(c, sets[i], NULL, 0, 0, wait, e);
        if (r == NULL) return BRG_E_NET;
        bool good = PQresultStatus(r) == PGRES_COMMAND_OK;
        enum brg_status s = good ? BRG_OK : pg_failed(r, "the server", sets[i], e);
        PQclear(r);
        TRY(s);
    }
    return BRG_OK;
}

static bool finish_connecting(PGconn *c, time_ns until) {
    for (;;) {
        PostgresPollingStatusType st = PQconnectPoll(c);
        if (st == PGRES_POLLING_OK) return true;
        if (st == PGRES_POLLING_FAILED) return false;
        if (!wait_socket(c, st == PGRES_POLLING_READING ? POLLIN : POLLOUT, until)) return false;
    }
}

enum brg_status pg_connect(const struct pg_name *n, PGconn **out, struct err *e) {
    /* What stands in the name comes later and wins. */
    static const char *const keys[] = {
        "connect_timeout",     "tcp_user_timeout", "keepalives_idle",
        "keepalives_interval", "keepalives_count", "application_name",
        "client_encoding",     "dbname",           NULL};
    char who[PG_SCHEMA_BYTES + 16];
    (void)snprintf(who, sizeof who, "beringia/%s", n->schema); /* in pg_stat_activity */
    const char *values[] = {CONNECT_SECONDS, "10000",     "5", "5", "2", who,
                            "SQL_ASCII",     n->conninfo, NULL};
    *out = NULL;
    PGconn *c = PQconnectStartParams(keys, values, 1);
    CHECK(c != NULL);
    PQsetNoticeReceiver(c, no_notice, NULL);
    bool good = PQstatus(c) != CONNECTION_BAD &&
                finish_connecting(c, os_now() + 10 * (time_ns)NS_PER_S) &&
                PQsetnonblocking(c, 1) == 0;
    enum brg_status s = BRG_OK;
    if (!good) {
        char words[400];
        pg_words(PQerrorMessage(c), words, sizeof words);
        s = err_set(e, BRG_E_NET, "the server of the journal does not take the connection: %s",
                    words[0] != '\0' ? words : "no answer in time");
    } else {
        s = check_server(c, e);
    }
    if (s != BRG_OK) {
        PQfinish(c);
        return s;
    }
    *out = c;
    return BRG_OK;
}
#endif
