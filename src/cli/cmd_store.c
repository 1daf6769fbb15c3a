/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_store.c - beringia store migrate: a run's journal from a file to a server and back. The other one is
 * made whole beside its name, read again by the machine and by the audit, and named; only then the run
 * points to it, by one rename. The old one is kept under another name.
 *
 *   copy -> same chain, same state -> publish -> audit -> RUN/journal.url -> the old one retires
 *
 * A crash before the last arrow but one leaves the run as it was; after it, as it is to be. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "cli/audit.h"
#include "cli/cli.h"
#include "hub/hub.h"
#include "hub/server.h"
#include "store/store.h"

static const char HELP[] =
    "beringia store migrate - move a run's journal between a file and PostgreSQL\n"
    "\n"
    "  beringia store migrate RUN --to postgresql://USER@HOST/DATABASE?schema=NAME [--from "
    "sqlite]\n"
    "  beringia store migrate RUN --to sqlite [--from postgresql://...]\n"
    "\n"
    "  --to STORE    where the journal is to be; sqlite: RUN/journal.db. No password stands in a "
    "URL:\n"
    "                PGPASSFILE, ~/.pgpass or passfile=FILE have it\n"
    "  --from STORE  where it is now; the run knows that itself, so this is only compared\n"
    "\n"
    "The hub must be stopped (7, E_BUSY). All records are copied, with the newest snapshot; the "
    "copy "
    "is\n"
    "read again and must give the same chain, the same state and a good audit (17, E_AUDIT), "
    "before "
    "the\n"
    "run points to it. Blobs stay in RUN. The old journal is kept as journal.db.moved, or in the "
    "schema\n"
    "NAME_moved. 27 (E_EXISTS): there is a journal already. 14 (E_NET): the server is not "
    "reached.\n";

/* ---- Proofs ---------------------------------------------------------------------------------------- */
static enum brg_status apply(void *user, const struct record *r, struct err *e) {
    return hub_apply(user, r->seq, r->kind, r->body, r->bytes, e);
}

static enum brg_status digest(struct journal *j, const struct run_dir *d, struct hash *out,
                              struct err *e) {
    struct hub *h = hub_create(&d->settings.hub, 1);
    enum brg_status s = journal_replay(j, 0, apply, h, e);
    if (s == BRG_OK) *out = hub_digest(h);
    hub_destroy(h);
    return s;
}

static enum brg_status same(struct journal *from, struct journal *to, const struct run_dir *d,
                            struct hash *out, struct err *e) {
    struct hash a, b, chain_a = journal_chain(from), chain_b = journal_chain(to);
    TRY(digest(from, d, &a, e));
    TRY(digest(to, d, &b, e));
    *out = a;
    if (hash_equal(&a, &b) && hash_equal(&chain_a, &chain_b) &&
        journal_last_seq(from) == journal_last_seq(to))
        return BRG_OK;
    return err_set(e, BRG_E_AUDIT,
                   "%s: the copy gives another state; nothing was changed, report this", d->path);
}

static enum brg_status audited(const char *name, struct err *e) {
    struct audit *a = mem_alloc(1, sizeof *a);
    audit_init(a);
    enum brg_status s = audit_journal_at(a, name, e);
    if (s == BRG_OK) {
        audit_count(a);
        if (a->findings_count > 0 || a->doubled > 0 || a->lost > 0)
            s = err_set(e, BRG_E_AUDIT,
                        "%s: the audit of the copy finds %" PRIu64 " doubled, %" PRIu64
                        " lost, %" PRIu64 " problems; the run is as it was: beringia audit",
                        name, a->doubled, a->lost, (uint64_t)a->findings_count);
    }
    audit_fini(a);
    mem_free(a);
    return s;
}

/* ---- The move ---------------------------------------------------------------------------------------- */
struct move {
    const char *run, *to, *from; /* from: NULL where nothing is to be compared */
    char name_from[JOURNAL_NAME_MAX], name_to[JOURNAL_NAME_MAX];
    struct run_dir dir;
    uint64_t records;
    struct hash chain, digest;
};

static void name_of(const char *run, const char *word, char out[JOURNAL_NAME_MAX]) {
    if (strcmp(word, "sqlite") == 0)
        os_path(out, run, "journal.db");
    else
        (void)snprintf(out, JOURNAL_NAME_MAX, "%s", word);
}

static enum brg_status check_names(struct move *m, struct err *e) {
    char wanted[JOURNAL_NAME_MAX];
    TRY(journal_where(m->run, m->name_from, e));
    name_of(m->run, m->to, m->name_to);
    if (m->from != NULL) {
        name_of(m->run, m->from, wanted);
        if (strcmp(wanted, m->name_from) != 0)
            return err_set(e, BRG_E_CONFIG, "%s: the run's journal is %s, and not what --from says",
                           m->run, m->name_from);
    }
    if (strcmp(m->name_from, m->name_to) == 0)
        return err_set(e, BRG_E_EXISTS, "%s: its journal is there already", m->run);
    if (journal_name_is_url(m->name_from) && journal_name_is_url(m->name_to))
        return err_set(e, BRG_E_CONFIG,
                       "%s: from one server to another goes by way of --to sqlite, or by the tools "
                       "of PostgreSQL",
                       m->run);
    if (!journal_name_is_url(m->name_to) && os_exists(m->name_to))
        return err_set(e, BRG_E_EXISTS,
                       "%s: is there, and is not this run's journal now; move it away first",
                       m->name_to);
    return BRG_OK;
}

static enum brg_status make_copy(struct move *m, struct journal *from, struct err *e) {
    struct journal *to = NULL;
    enum brg_status s = journal_make(m->name_to, &to, e);
    if (s == BRG_OK) s = journal_copy_whole(from, to, e);
    if (s == BRG_OK) s = same(from, to, &m->dir, &m->digest, e);
    if (s == BRG_OK) {
        m->records = journal_last_seq(to);
        m->chain = journal_chain(to);
        return journal_publish(to, m->name_to, e);
    }
    journal_close(to);
    return s;
}

static enum brg_status migrate(struct move *m, struct err *e) {
    char path[OS_PATH_MAX];
    struct journal *from = NULL;
    AUTO_CLOSE int lock = -1;
    TRY(run_dir_load(m->run, &m->dir, e));
    TRY(check_names(m, e));
    TRY(os_lock(os_path(path, m->run, "lock"), &lock, e));
    TRY(journal_open(m->name_from, false, &from, e));
    enum brg_status s = make_copy(m, from, e);
    if (s == BRG_OK) s = audited(m->name_to, e);
    if (s != BRG_OK) {
        journal_close(from);
        return s;
    }
    FAULT("store.before_switch");
    s = journal_where_set(m->run, m->name_to, e);
    FAULT("store.after_switch");
    journal_close(from); /* until here it kept every hub out */
    return s == BRG_OK ? journal_retire(m->name_from, e) : s;
}

static int run_migrate(const char *run, const char *to, const char *from) {
    struct err e = {0};
    char chain[HASH_HEX_BYTES], state[HASH_HEX_BYTES];
    struct move *m = mem_alloc(1, sizeof *m);
    m->run = run;
    m->to = to;
    m->from = from;
    enum brg_status s = migrate(m, &e);
    hash_hex(&m->chain, chain);
    hash_hex(&m->digest, state);
    if (s == BRG_OK)
        printf("moved      %s to %s\nrecords    %" PRIu64 "\nchain      %s\ndigest     %s\n"
               "old        kept as %s%s\n",
               run, m->name_to, m->records, chain, state,
               journal_name_is_url(m->name_from) ? "schema ..." : m->name_from,
               journal_name_is_url(m->name_from) ? "_moved" : ".moved");
    mem_free(m);
    return s == BRG_OK ? 0 : cli_fail("store", &e);
}

int cmd_store(int argc, char **argv) {
    enum { OPT_TO = 1, OPT_FROM, OPT_HELP };
    static const struct option options[] = {{"to", 1, NULL, OPT_TO},
                                            {"from", 1, NULL, OPT_FROM},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    const char *to = NULL, *from = NULL;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_TO: to = optarg; break;
        case OPT_FROM: from = optarg; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("store", argv);
        }
    }
    if (optind + 2 != argc || strcmp(argv[optind], "migrate") != 0)
        return cli_usage("store", "want migrate and one RUN directory", "");
    if (to == NULL) return cli_usage("store", "--to is missing", "");
    const char *both[] = {to, from != NULL ? from : "sqlite"};
    for (size_t i = 0; i < ARRAY_COUNT(both); i++) /* not repeated: it may have a secret in it */
        if (strcmp(both[i], "sqlite") != 0 && !journal_name_is_url(both[i]))
            return cli_usage("store", "--to and --from want sqlite or postgresql://...", "");
    return run_migrate(argv[optind + 1], to, from);
}
