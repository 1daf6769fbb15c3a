/* SPDX-License-Identifier: Apache-2.0 */
/* audit_pg_os.c - the audit's own way to a journal in PostgreSQL: one SELECT, so one moment, beside a
 * hub that may go on writing. The connection is the store's; what is read and believed is not. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/audit.h"
#include "store/pg_os.h"

#ifndef HAVE_LIBPQ
enum brg_status audit_server(struct audit *a, const char *url, struct err *e) {
    (void)a, (void)url;
    return err_set(e, BRG_E_CONFIG,
                   "this program was built without PostgreSQL; install libpq-dev and build it "
                   "again (make clean all)");
}
#else

enum { WAIT_S = 300 };

static uint64_t big_endian(const PGresult *r, int column) {
    const uint8_t *p = (const uint8_t *)PQgetvalue(r, 0, column);
    uint64_t v = 0;
    for (int i = 0; i < PQgetlength(r, 0, column) && i < 8; i++) v = v << 8 | p[i];
    return v;
}

static enum brg_status take(struct audit *a, const PGresult *r, uint64_t expected, struct err *e) {
    const struct audit_row row = {.seq = big_endian(r, 0),
                                  .kind = (int32_t)big_endian(r, 1),
                                  .body = PQgetvalue(r, 0, 2),
                                  .chain = PQgetvalue(r, 0, 3),
                                  .bytes = (size_t)PQgetlength(r, 0, 2),
                                  .chain_bytes = (size_t)PQgetlength(r, 0, 3)};
    return audit_row(a, &row, expected, e);
}

/* The numbers of records and their bodies mean something only in the format that is known. */
static enum brg_status check_format(PGconn *c, const char *schema, struct err *e) {
    char sql[256];
    (void)snprintf(sql, sizeof sql, "SELECT value FROM %s.meta WHERE name = 'format'", schema);
    PGresult *r = pg_ask(c, sql, NULL, 0, 0, (time_ns)WAIT_S * NS_PER_S, e);
    if (r == NULL) return BRG_E_NET;
    enum brg_status s = BRG_OK;
    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        s = pg_failed(r, "the journal", "reading", e);
    else if (PQntuples(r) != 1)
        s = err_set(e, BRG_E_JOURNAL, "says no format; it is no journal of beringia");
    else if (strcmp(PQgetvalue(r, 0, 0), "1") != 0)
        s = err_set(e, BRG_E_JOURNAL,
                    "is of format %.20s, newer than this program knows (1); use the beringia that "
                    "wrote it, or a newer one",
                    PQgetvalue(r, 0, 0));
    PQclear(r);
    return s;
}

static enum brg_status read_all(struct audit *a, PGconn *c, const char *schema, struct err *e) {
    char sql[256];
    uint64_t expected = 1;
    bool lost = false;
    enum brg_status s = BRG_OK;
    (void)snprintf(sql, sizeof sql, "SELECT seq, kind, body, chain FROM %s.journal ORDER BY seq",
                   schema);
    lost = PQsendQueryParams(c, sql, 0, NULL, NULL, NULL, NULL, 1) == 0;
    if (!lost) CHECK(PQsetSingleRowMode(c) == 1);
    while (!lost && s == BRG_OK) {
        PGresult *r = pg_next(c, (time_ns)WAIT_S * NS_PER_S, &lost);
        if (r == NULL) break;
        ExecStatusType st = PQresultStatus(r);
        if (st == PGRES_SINGLE_TUPLE)
            s = take(a, r, expected++, e);
        else if (st != PGRES_TUPLES_OK)
            s = pg_failed(r, "the journal", "reading", e);
        PQclear(r);
    }
    if (lost) return err_set(e, BRG_E_NET, "the connection to the server is lost");
    if (s == BRG_OK && !a->opened) s = err_set(e, BRG_E_JOURNAL, "holds no record");
    return s;
}

enum brg_status audit_server(struct audit *a, const char *url, struct err *e) {
    AUTO_FREE struct pg_name *n = mem_alloc(1, sizeof *n);
    PGconn *c;
    TRY(pg_name_parse(url, n, e));
    enum brg_status s = pg_connect(n, &c, e);
    if (s == BRG_OK) {
        s = check_format(c, n->schema, e);
        if (s == BRG_OK) s = read_all(a, c, n->schema, e);
        PQfinish(c);
    }
    return s == BRG_OK ? BRG_OK : err_prefix(e, "%s", url);
}
#endif
