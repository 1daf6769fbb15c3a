/* SPDX-License-Identifier: Apache-2.0 */
/* places.c - files and schemas for the tests of the journal, and a relay that loses what it should carry. */
#include "places.h"

#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/os.h"
#include "store/pg_os.h"

static const char *server_url(void) {
    const char *url = getenv("BERINGIA_TEST_POSTGRES");
    if (url == NULL) SKIP("no PostgreSQL server here; make test-postgres starts one");
#ifndef HAVE_LIBPQ
    SKIP("built without libpq");
#endif
    return url;
}

const char *place_name(enum place p, const char *tag, char out[PLACE_BYTES]) {
    if (p == PLACE_FILE) return os_path(out, test_dir(), "%s.db", tag);
    int n = snprintf(out, PLACE_BYTES, "%s&schema=t%ld_%s", server_url(), (long)getpid(), tag);
    assert_true(n > 0 && n < PLACE_BYTES);
    return out;
}

/* ---- Another program ----------------------------------------------------------------------------- */
static void put_tables(const char *sql, const char *schema, char out[1024]) {
    size_t n = 0;
    for (; *sql != '\0'; sql++) {
        int m = *sql == '@' ? snprintf(out + n, 1024 - n, "%s", schema)
                            : snprintf(out + n, 1024 - n, "%c", *sql);
        assert_true(m >= 0 && n + (size_t)m < 1023);
        n += (size_t)m;
    }
}

static long file_ask(const char *name, const char *sql) {
    char text[1024];
    sqlite3 *db;
    sqlite3_stmt *row;
    long v = 0;
    put_tables(sql, "", text);
    assert_int_equal(sqlite3_open(name, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &row, NULL), SQLITE_OK);
    int rc = sqlite3_step(row);
    if (rc == SQLITE_ROW) v = (long)sqlite3_column_int64(row, 0);
    assert_true(rc == SQLITE_ROW || rc == SQLITE_DONE);
    sqlite3_finalize(row);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return v;
}

#ifdef HAVE_LIBPQ
static long server_ask(const char *name, const char *sql) {
    static struct pg_name n;
    struct err e = {0};
    char text[1024], schema[PG_SCHEMA_BYTES + 1];
    PGconn *c;
    assert_int_equal(pg_name_parse(name, &n, &e), BRG_OK);
    if (pg_connect(&n, &c, &e) != BRG_OK) fail_msg("%s", e.text);
    (void)snprintf(schema, sizeof schema, "%s.", n.schema);
    put_tables(sql, schema, text);
    PGresult *r = pg_ask(c, text, NULL, 0, 0, 20 * (time_ns)NS_PER_S, &e);
    if (r == NULL) fail_msg("%s", e.text);
    ExecStatusType st = PQresultStatus(r);
    if (st != PGRES_COMMAND_OK && st != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQresultErrorMessage(r));
    long v = PQntuples(r) > 0 ? strtol(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    PQclear(r);
    PQfinish(c);
    return v;
}
#else
static long server_ask(const char *name, const char *sql) {
    (void)name, (void)sql;
    return 0;
}
#endif

void place_tamper(enum place p, const char *name, const char *sql) {
    (void)place_count(p, name, sql);
}

long place_count(enum place p, const char *name, const char *sql) {
    return p == PLACE_FILE ? file_ask(name, sql) : server_ask(name, sql);
}

/* ---- The relay ----------------------------------------------------------------------------------- */
enum { PIPES_MAX = 16 };
struct relay {
    int listener, cut;
    bool stop;
    char to[108], dir[32], here[108];
    pthread_t thread;
    struct {
        int client, server;
    } pipes[PIPES_MAX];
};

static int dial(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

static void relay_accept(struct relay *r) {
    int client = accept(r->listener, NULL, NULL);
    for (size_t i = 0; i < PIPES_MAX && client >= 0; i++) {
        if (r->pipes[i].client >= 0) continue;
        r->pipes[i].client = client;
        r->pipes[i].server = dial(r->to);
        if (r->pipes[i].server >= 0) return;
        r->pipes[i].client = -1;
        break;
    }
    if (client >= 0) close(client);
}

/* False: this connection ends. */
static bool carry(struct relay *r, int from, int to, enum relay_cut direction) {
    uint8_t bytes[65536];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    if (__atomic_load_n(&r->cut, __ATOMIC_SEQ_CST) == (int)direction) {
        __atomic_store_n(&r->cut, RELAY_WHOLE, __ATOMIC_SEQ_CST);
        return false;
    }
    for (ssize_t at = 0; at < n;) {
        ssize_t m = send(to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (m <= 0) return false;
        at += m;
    }
    return true;
}

static void relay_turn(struct relay *r) {
    struct pollfd p[1 + 2 * PIPES_MAX] = {{.fd = r->listener, .events = POLLIN}};
    for (size_t i = 0; i < PIPES_MAX; i++) {
        p[1 + 2 * i] = (struct pollfd){.fd = r->pipes[i].client, .events = POLLIN};
        p[2 + 2 * i] = (struct pollfd){.fd = r->pipes[i].server, .events = POLLIN};
    }
    if (poll(p, ARRAY_COUNT(p), 20) <= 0) return;
    for (size_t i = 0; i < PIPES_MAX; i++) {
        int client = r->pipes[i].client, server = r->pipes[i].server;
        bool good = true;
        if (client < 0) continue;
        if (p[1 + 2 * i].revents != 0) good = carry(r, client, server, RELAY_CUT_ASKING);
        if (good && p[2 + 2 * i].revents != 0) good = carry(r, server, client, RELAY_CUT_ANSWER);
        if (good) continue;
        close(client);
        close(server);
        r->pipes[i].client = r->pipes[i].server = -1;
    }
    if (p[0].revents != 0) relay_accept(r);
}

static void *relay_main(void *arg) {
    struct relay *r = arg;
    while (!__atomic_load_n(&r->stop, __ATOMIC_SEQ_CST)) relay_turn(r);
    return NULL;
}

/* The value of a key of the URL's query part. */
static void url_value(const char *url, const char *key, char *out, size_t cap) {
    const char *at = strstr(url, key);
    assert_non_null(at);
    at += strlen(key);
    (void)snprintf(out, cap, "%.*s", (int)strcspn(at, "&"), at);
}

struct relay *relay_start(const char *name, char out[PLACE_BYTES]) {
    char host[80], port[16];
    struct relay *r = mem_alloc(1, sizeof *r);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    for (size_t i = 0; i < PIPES_MAX; i++) r->pipes[i].client = r->pipes[i].server = -1;
    url_value(name, "host=", host, sizeof host);
    url_value(name, "port=", port, sizeof port);
    (void)snprintf(r->to, sizeof r->to, "%s/.s.PGSQL.%s", host, port);
    memcpy(r->dir, "/tmp/brg-relay-XXXXXX", 22); /* a socket's path has to be short */
    assert_non_null(mkdtemp(r->dir));
    (void)snprintf(r->here, sizeof r->here, "%s/.s.PGSQL.%s", r->dir, port);
    memcpy(a.sun_path, r->here, sizeof a.sun_path);
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(r->listener, 8), 0);
    const char *at = strstr(name, "host=") + 5;
    int n =
        snprintf(out, PLACE_BYTES, "%.*s%s%s", (int)(at - name), name, r->dir, at + strlen(host));
    assert_true(n > 0 && n < PLACE_BYTES);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_main, r), 0);
    return r;
}

void relay_arm(struct relay *r, enum relay_cut cut) {
    __atomic_store_n(&r->cut, (int)cut, __ATOMIC_SEQ_CST);
}

void relay_stop(struct relay *r) {
    __atomic_store_n(&r->stop, true, __ATOMIC_SEQ_CST);
    pthread_join(r->thread, NULL);
    for (size_t i = 0; i < PIPES_MAX; i++) {
        if (r->pipes[i].client < 0) continue;
        close(r->pipes[i].client);
        close(r->pipes[i].server);
    }
    close(r->listener);
    unlink(r->here);
    rmdir(r->dir);
    mem_free(r);
}
