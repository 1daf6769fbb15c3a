/* SPDX-License-Identifier: Apache-2.0 */
/* journal_os.h - what a kind of journal has to do, and what all kinds share. Private to src/store.
 *
 *   journal_os.c         finds the kind by the name, keeps numbers and chain, reads with both checked
 *   journal_sqlite_os.c  one file beside the run
 *   journal_pg_os.c      a schema of a PostgreSQL server
 *
 * A kind embeds struct journal as its first member. It is called by one thread at a time. */
#ifndef STORE_JOURNAL_OS_H
#define STORE_JOURNAL_OS_H

#include "base/os.h"
#include "store/store.h"

#define JOURNAL_FORMAT "1" /* of both kinds: the same tables, the same chain */

struct
    journal_batch { /* count records with the numbers last_seq + 1, ...; chains[i] goes with each */
    const struct record *records;
    const struct hash *chains;
    size_t count;
};
/* One row as it lies there; the hash is as long as it should be, or has_chain is false. */
struct journal_row {
    struct record r;
    int64_t kind; /* as stored: a wrong one must show */
    struct hash chain;
    bool has_chain;
};
typedef enum brg_status journal_row_visit(void *user, const struct journal_row *row, struct err *e);

struct journal_ops {
    void (*close)(struct journal *j);
    /* One durable transaction, which only the newest writer gets (J3). BRG_OK: all of it is there. */
    enum brg_status (*append)(struct journal *j, const struct journal_batch *b, struct err *e);
    enum brg_status (*snapshot_put)(struct journal *j, uint64_t seq, const void *data, size_t n,
                                    const struct hash *sum, struct err *e);
    /* *out_seq 0 where there is none; the caller compares the sum. */
    enum brg_status (*snapshot_get)(struct journal *j, uint64_t *out_seq, struct buf *out,
                                    struct hash *out_sum, bool *out_has_sum, struct err *e);
    /* The chain of one record; E_JOURNAL where there is none. */
    enum brg_status (*chain_at)(struct journal *j, uint64_t seq, struct hash *out, struct err *e);
    /* Rows with after < seq <= upto in order, of one moment; ends at the first failure of visit. */
    enum brg_status (*rows)(struct journal *j, uint64_t after, uint64_t upto,
                            journal_row_visit *visit, void *user, struct err *e);
    /* NULL where there is no connection that could be lost. */
    enum brg_status (*keep)(struct journal *j, struct err *e);
    enum brg_status (*again)(struct journal *j, enum journal_outcome *out, struct err *e);
    enum brg_status (*lead)(struct journal *j, struct err *e);
};

struct journal {
    const struct journal_ops *ops;
    uint64_t last_seq;
    struct hash chain;
    char name[OS_PATH_MAX]; /* for messages; holds no secret */
};

/* The kinds; *out may be set with a failure too, and is closed by the caller then. */
enum brg_status journal_sqlite_open(const char *path, bool create, struct journal **out,
                                    struct err *e) MUST_USE;
enum brg_status journal_pg_open(const char *url, enum journal_how how, struct journal **out,
                                struct err *e) MUST_USE;
/* Moves a whole journal that is closed: to another file, to another schema of the same server.
 * E_EXISTS: something is there. */
enum brg_status journal_pg_rename(const char *url, const char *from, const char *to, struct err *e)
    MUST_USE;
/* Drops a schema that an earlier try left unfinished, if it is there. */
enum brg_status journal_pg_drop(const char *url, const char *schema, struct err *e) MUST_USE;

struct hash journal_chain_next(const struct hash *chain, uint64_t seq, uint16_t kind,
                               const void *body, size_t n);

#endif
