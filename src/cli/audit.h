/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h - private to the audit: an independent reader of the journal. It is written from
 * docs/journal.md alone and shares nothing with the hub's machine, ledger or record code: a fault there
 * must not be able to hide itself here.
 *
 * Two models side by side. The strict one (audit_state.c, audit_walk.c) keeps every position's state as
 * runs and checks each record's conditions. The counting one (audit_count.c) ignores states: it adds up
 * which positions the contributions in the ancestry of the head hold, and finds what is there twice or
 * not at all. */
#ifndef CLI_AUDIT_H
#define CLI_AUDIT_H

#include "base/base.h"

enum {
    AUDIT_FINDINGS_MAX = 50,
    AUDIT_EPOCHS_MAX = 1000000,
    AUDIT_NAME_MAX = 48,
    AUDIT_REASON_MAX = 24
};
#define AUDIT_PARENT "_parent" /* the member of a region's journal that its parent is */

enum audit_position {
    POS_AVAILABLE = 0,
    POS_LEASED,
    POS_STAGED,
    POS_MERGED,
    POS_SKIPPED,
    POS_QUARANTINED,
    POS_STATES
};

struct audit_run {
    uint64_t start, count;
    uint8_t state, crashes;
    uint32_t reason; /* of a skip: index into reasons; 0 none */
    uint64_t owner;  /* LEASED: tok; STAGED: index of the delta; MERGED, SKIPPED: version */
};
struct audit_epoch {
    struct audit_run *runs;
    size_t count, cap;
    bool sealed, was_sealed;
};
struct audit_range {
    uint64_t start, count;
};
struct audit_lease {
    uint64_t tok, nonce, count;
    uint32_t site, inc, epoch, ranges_count;
    bool active;
    struct audit_range *ranges;
};
struct audit_segment { /* what a contribution holds */
    uint32_t epoch;
    uint64_t start, count;
    bool skipped;
};
enum audit_fate { FATE_STAGED = 1, FATE_MERGED, FATE_DISCARDED, FATE_REJECTED };
struct audit_delta {
    struct id128 did;
    uint32_t site, inc;
    enum audit_fate fate;
    bool gradient;
    uint64_t version, base, tokens, steps, bytes, samples, skips;
    struct hash blob;
    struct audit_segment *segments;
    size_t segments_count, segments_cap;
};
struct audit_version {
    uint64_t version, parent, tokens, bytes, taken; /* taken: of a region's parent */
    uint64_t sync_step; /* of the hub's moments; 0: no synchronous round */
    struct hash checkpoint, theta, ledger;
    size_t *parts; /* indices of deltas */
    uint32_t parts_count;
};
struct audit_site {
    char name[AUDIT_NAME_MAX];
    uint32_t inc;
    bool member;
};

struct audit {
    /* from OPEN */
    bool opened, held;
    struct id128 run;
    uint64_t positions, parameters;
    uint32_t seq_len, epochs_max;
    /* state */
    uint64_t seq, head, version_next;
    uint64_t sync_version, sync_step; /* the SYNC before; version 0: none */
    uint32_t term, lease_next, inc_floor;
    uint64_t taking; /* PARENT: the version that the next MERGE takes in; 0: none */
    struct hash chain;
    /* REBUILD: a ledger on its way in, and what it said was merged or skipped before this journal */
    uint64_t import_bytes;
    struct hash import_hash;
    struct buf import;
    struct audit_segment *before;
    size_t before_count, before_cap;
    struct audit_epoch *epochs;
    size_t epochs_count, epochs_cap;
    struct audit_lease *leases; /* all that ever were; tok grows */
    size_t leases_count, leases_cap;
    struct audit_delta *deltas;
    size_t deltas_count, deltas_cap;
    uint32_t *index; /* did -> delta + 1, open addressing */
    size_t index_cap;
    struct audit_version *versions;
    size_t versions_count, versions_cap;
    struct audit_site *sites; /* number i+1 */
    size_t sites_count, sites_cap;
    char (*reasons)[AUDIT_REASON_MAX];
    size_t reasons_count, reasons_cap;
    /* totals */
    uint64_t grants, reclaimed, returned, shrunk, rejected, discarded, staged_ever, merges,
        rollbacks, joins, leaves, samples_granted, samples_reclaimed, orders;
    /* the counting model's answer */
    uint64_t counted, doubled, lost;
    bool ledger_equal; /* the head checkpoint's ledger is the journal's at its end */
    /* files */
    uint64_t blobs_checked, blobs_missing, blobs_bad;
    /* what is wrong */
    uint64_t findings_count;
    char findings[AUDIT_FINDINGS_MAX][300];
};

void audit_init(struct audit *a);
void audit_fini(struct audit *a);
/* Notes something that must not be; the walk goes on. */
void audit_finding(struct audit *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Grows an array by one zeroed element. */
void *audit_push(void *array, size_t *count, size_t *cap, size_t element_bytes);

/* audit_state.c: runs of an epoch */
void audit_epoch_open(struct audit *a);
/* Runs that lie wholly inside [start, start+count): splits at both ends. Gives the first one's index and
 * how many; 0 where the range leaves the epoch. */
size_t audit_runs_cut(struct audit *a, uint32_t epoch, uint64_t start, uint64_t count,
                      size_t *out_first);
/* Joins neighbours that became alike in runs [first-1, first+n]. */
void audit_runs_join(struct audit *a, uint32_t epoch, size_t first, size_t n);
void audit_counts(const struct audit *a, uint64_t out[POS_STATES]);
void audit_epoch_counts(const struct audit_epoch *ep, uint64_t out[POS_STATES]);
/* journal.md, section 6: the whole ledger, and one epoch's runs. */
void audit_ledger(const struct audit *a, struct buf *out);
void audit_epoch_ledger(const struct audit *a, const struct audit_epoch *ep, struct buf *out);
struct audit_lease *audit_lease_find(struct audit *a, uint64_t tok);
struct audit_delta *audit_delta_find(struct audit *a, const struct id128 *did);
struct audit_delta *audit_delta_add(struct audit *a, const struct id128 *did);
struct audit_version *audit_version_find(struct audit *a, uint64_t version);
/* The version before v; NULL where the journal has none. A journal may name any number: no walk of parents goes in a circle. */
const struct audit_version *audit_parent(struct audit *a, const struct audit_version *v);
uint64_t audit_taken(struct audit *a); /* the parent's version that the head has taken in */
bool audit_is_ancestor(struct audit *a, uint64_t version); /* of the head, or the head itself */
uint32_t audit_reason(struct audit *a, const char *text);

/* audit_walk.c: one record. E_JOURNAL: not decodable, the walk ends. */
enum brg_status audit_record(struct audit *a, uint64_t seq, uint16_t kind, const void *body,
                             size_t n, struct err *e) MUST_USE;
/* audit_rebuild.c: kinds 16 and 17 */
void audit_walk_rebuild(struct audit *a, struct reader *r);
void audit_walk_ledger(struct audit *a, struct reader *r);
/* audit_place.c: kinds 18 and 19 */
void audit_walk_report(struct audit *a, struct reader *r);
void audit_walk_order(struct audit *a, struct reader *r);
/* audit_sync.c: kind 23, and what a MERGE must be after it, or without it. parent may be NULL. */
void audit_walk_sync(struct audit *a, struct reader *r);
void audit_sync_merge(struct audit *a, struct audit_version *v, const struct audit_version *parent);
/* audit_region.c: kind 24 */
void audit_walk_parent(struct audit *a, struct reader *r);
/* audit_tree.c: a region and the run above it, both read to their ends, the region's first. name is set; findings are the
 * parent's. */
struct audit_region {
    char name[AUDIT_NAME_MAX];
    struct id128 parent;                          /* the run that it is a region of */
    uint64_t head, taken, contributions, samples; /* of it, merged at the parent */
    uint64_t ahead;                               /* positions that it has and the parent not yet */
    uint64_t unheard; /* of them, what the parent has taken back, and the region not heard of */
    bool behind; /* the parent went back below what it has taken in, and it has not heard of that */
    bool good;
};
void audit_region_check(struct audit *parent, struct audit *region, struct audit_region *out);
/* audit_os.c: which region of which run the run in this directory is. E_MISSING: of none. */
enum brg_status audit_uplink(const char *run_dir, struct audit_region *out, struct err *e) MUST_USE;
/* audit_count.c: after the last record. */
void audit_count(struct audit *a);

/* audit_os.c */
struct sqlite3;
/* E_JOURNAL where the journal in this database is of a format that this program does not know. */
enum brg_status audit_format(struct sqlite3 *db, const char *path, struct err *e) MUST_USE;
/* One row of the journal as it lies there; it must have this number, and continue the chain. */
struct audit_row {
    uint64_t seq;
    int64_t kind;
    const void *body, *chain; /* NULL: empty */
    size_t bytes, chain_bytes;
};
enum brg_status audit_row(struct audit *a, const struct audit_row *row, uint64_t expected,
                          struct err *e) MUST_USE;
enum brg_status audit_server(struct audit *a, const char *url, struct err *e) MUST_USE;
/* Of a journal by its name, file or URL; of a run's. */
enum brg_status audit_journal_at(struct audit *a, const char *name, struct err *e) MUST_USE;
enum brg_status audit_journal(struct audit *a, const char *run_dir, struct err *e) MUST_USE;
void audit_files(struct audit *a, const char *run_dir, bool all);

#endif
