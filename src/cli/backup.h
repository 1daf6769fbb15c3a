/* SPDX-License-Identifier: Apache-2.0 */
/* backup.h - a run's directory to another place and back. docs/operating.md says when.
 *
 * A backup has the form of a run directory, and backup.json beside: what `beringia audit`, `export` and `eval` read
 * they read there too. A hub does not start in it. */
#ifndef CLI_BACKUP_H
#define CLI_BACKUP_H

#include "base/base.h"

struct backup_told {
    uint64_t seq, version;                 /* the newest record; the head by it */
    uint64_t linked, copied, kept, pruned; /* files of blobs; kept: were there before */
    uint64_t bytes;                        /* copied */
};
/* Puts a consistent copy of `run` into `dir`, beside a running hub or without one. `dir` is absent, empty, or an earlier
 * backup of the same run, which becomes the new one (whoever ends it in between leaves the earlier one). copy: no hard
 * links, also on the same file system; what is copied is compared with its hash.
 *   E_MISSING: no run;  E_EXISTS: dir is something else;  E_BUSY: another backup goes to dir;  E_CORRUPT: a file of the
 *   run does not have its hash;  E_JOURNAL;  E_FULL;  E_IO */
enum brg_status backup_make(const char *run, const char *dir, bool copy, struct backup_told *out,
                            struct err *e) MUST_USE;
/* Makes `run`, which is absent or empty, of a backup. Every file is read and compared first, and the journal audited:
 *   E_EXISTS;  E_MISSING: dir is no backup;  E_CORRUPT, E_AUDIT, E_JOURNAL: the backup is damaged;  E_FULL;  E_IO */
enum brg_status backup_restore(const char *dir, const char *run, bool copy, struct backup_told *out,
                               struct err *e) MUST_USE;
/* A hub must not change a backup: E_CONFIG where `run` is one. */
enum brg_status backup_refuse(const char *run, struct err *e) MUST_USE;

#endif
