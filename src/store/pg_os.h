/* SPDX-License-Identifier: Apache-2.0 */
/* pg_os.h - one connection to a PostgreSQL server, with limits on every wait. For src/store, and for
 * the audit, whose reading is its own. Only where the program is built with libpq (HAVE_LIBPQ).
 *
 * A name is postgresql://[USER@]HOST[:PORT][,...]/DATABASE[?KEY=VALUE&...] as libpq reads it, and one
 * key of ours: schema=NAME. A password in it is refused, because names stand in files, process lists
 * and logs: libpq's passfile=FILE, PGPASSFILE and ~/.pgpass hold those. */
#ifndef STORE_PG_OS_H
#define STORE_PG_OS_H

#ifdef HAVE_LIBPQ
#include <libpq-fe.h>

#include "base/base.h"

enum { PG_SCHEMA_BYTES = 64, PG_NAME_BYTES = 4096 };

struct pg_name {
    char conninfo[PG_NAME_BYTES]; /* for libpq: without our key */
    char schema[PG_SCHEMA_BYTES]; /* [a-z_][a-z0-9_]*: needs no quoting */
};
/* E_CONFIG names what is wrong, and never repeats a name that has a password in it. */
enum brg_status pg_name_parse(const char *url, struct pg_name *out, struct err *e) MUST_USE;

/* Connects and sets what durability wants. E_NET: nobody answers, or not for us; E_CONFIG: a server
 * that does not keep what it acknowledges (fsync off), or is older than 14. */
enum brg_status pg_connect(const struct pg_name *n, PGconn **out, struct err *e) MUST_USE;

/* Sends one statement with parameters and waits at most so long. NULL: the connection is lost, or
 * silent for too long and closed; *e says E_NET. Else a result, whatever its status: free with
 * PQclear. format_out 1: results in binary form. */
struct pg_param {
    const void *value; /* text with a NUL, or bytes */
    size_t bytes;      /* 0: text */
};
PGresult *pg_ask(PGconn *c, const char *sql, const struct pg_param *p, int count, int format_out,
                 time_ns wait, struct err *e);
/* The next result of a statement that was sent; NULL at its end, and *lost where the connection is. */
PGresult *pg_next(PGconn *c, time_ns wait, bool *lost);

/* The status that a failed result stands for; a text that names `name` and `what`. */
enum brg_status pg_failed(const PGresult *r, const char *name, const char *what, struct err *e);
bool pg_state_is(const PGresult *r, const char *sqlstate);
/* libpq's newest words about a connection, on one line. */
void pg_words(const char *message, char *out, size_t cap);

#endif
#endif
