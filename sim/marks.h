/* SPDX-License-Identifier: Apache-2.0 */
/* marks.h - the rare events that a run of the simulator counts, and the places where fate strikes.
 * A run of many seeds that misses one of them did not test what it claims. */
#ifndef SIM_MARKS_H
#define SIM_MARKS_H

/* name, what a person reads */
#define SIM_MARKS(X)                                                                               \
    X(STAGED, "contribution staged")                                                               \
    X(MERGED, "version merged")                                                                    \
    X(SEALED, "epoch sealed")                                                                      \
    X(LATE, "late contribution folded in")                                                         \
    X(OWN_VERSION, "not late: only own versions in between")                                       \
    X(REJECTED, "contribution rejected")                                                           \
    X(REJECTED_STALE, "rejected as too stale")                                                     \
    X(RETRAINED, "positions of a rejected contribution merged later")                              \
    X(DISCARDED, "contribution discarded")                                                         \
    X(KEEP_REST, "rest of a lease goes on as a new lease")                                         \
    X(KEEP_REST_3, "chain of three rests")                                                         \
    X(TWO_EPOCHS, "contribution of two epochs")                                                    \
    X(SEAL_OVERLAP, "epoch sealed while the next one is at work")                                  \
    X(SEAL_EARLY_NEXT, "later epoch sealed before an earlier one")                                 \
    X(SKIPS_ONLY, "contribution of skips only")                                                    \
    X(SKIPPED, "position skipped by a site")                                                       \
    X(LEASE_STOLEN, "lapsed lease taken")                                                          \
    X(LEASE_SHRUNK, "lease shrunk")                                                                \
    X(LEASE_RETURNED, "lease returned")                                                            \
    X(LEASE_KEPT, "lease kept across a restart of its site")                                       \
    X(LEASE_FENCED, "lease fenced by a new process")                                               \
    X(QUARANTINED, "position quarantined")                                                         \
    X(QUARANTINE_SKIP, "quarantined position skipped")                                             \
    X(QUARANTINE_BACK, "quarantined position given back")                                          \
    X(TWIN, "twin of a living process started")                                                    \
    X(TWIN_FENCED, "process fenced by its twin")                                                   \
    X(LEFT, "site left in order")                                                                  \
    X(GONE, "site gone for ever")                                                                  \
    X(LATE_JOIN, "site joined late")                                                               \
    X(FOREIGN_REFUSED, "site with other data refused")                                             \
    X(SITE_CRASH, "site crash")                                                                    \
    X(SITE_FRESH, "site back without its directory")                                               \
    X(SITE_OLD, "site back from an old local checkpoint")                                          \
    X(SITE_TORN, "torn local checkpoint refused")                                                  \
    X(SITE_FROZEN, "site frozen")                                                                  \
    X(SITE_RESET, "site reset its weights")                                                        \
    X(SITE_FORGOT, "site forgot its base")                                                         \
    X(REBASED_IN_SEGMENT, "rebase in the middle of a segment")                                     \
    X(KEPT_CUT, "resumed with a contribution on its way")                                          \
    X(POISON_KILL, "data killed a trainer")                                                        \
    X(HUB_CRASH, "hub crash")                                                                      \
    X(HUB_CRASH_LOST, "hub crash lost its records")                                                \
    X(HUB_CRASH_KEPT, "hub crash after its records, before the answer")                            \
    X(HUB_CRASH_BLOB, "hub crash between blob and record")                                         \
    X(HUB_CRASH_CHECKPOINT, "hub crash between checkpoint and record")                             \
    X(HUB_CRASH_PUBLISH, "hub crash between record and publishing")                                \
    X(HUB_FROZEN, "hub frozen")                                                                    \
    X(HUB_TWO, "two hubs on one store")                                                            \
    X(HUB_OLD_FAILED, "older hub failed at its next record")                                       \
    X(HUB_RESTORED, "hub restored from an old backup")                                             \
    X(HUB_BEHIND, "hub holds because a site saw more")                                             \
    X(HUB_BRANCH, "hold ended by a rollback")                                                      \
    X(HUB_NEWER, "hold ended by loading the newer copy")                                           \
    X(ROLLBACK, "rollback by an operator")                                                         \
    X(DRAINED, "run drained by an operator")                                                       \
    X(FULL, "journal full, machine rebuilt")                                                       \
    X(FULL_LEFT, "space again")                                                                    \
    X(EIO, "journal failed, process ended")                                                        \
    X(GROUP_COMMIT, "several commands in one transaction")                                         \
    X(SNAPSHOT_RESTORE, "machine restored from a snapshot")                                        \
    X(SNAPSHOT_DAMAGED, "damaged snapshot skipped")                                                \
    X(MERGE_AGAIN, "merge computed again after a crash")                                           \
    X(MERGE_CANCELLED, "merge cancelled")                                                          \
    X(MERGE_FAILED, "merge failed")                                                                \
    X(MERGE_BAD_PART, "damaged contribution discarded at its merge")                               \
    X(CHECKPOINT_DAMAGED, "damaged head refused at start")                                         \
    X(UPLOAD_RESUMED, "upload resumed")                                                            \
    X(UPLOAD_FLIPPED, "upload with flipped bits dropped")                                          \
    X(COMMIT_AGAIN, "known contribution answered again")                                           \
    X(PROMISE_BROKEN, "site broke its promise to shrink")                                          \
    X(CUT_ONE_WAY, "one-way cut")                                                                  \
    X(CUT_ALL, "all sites cut")                                                                    \
    X(CLOCK_JUMP, "clock jump")                                                                    \
    X(VERY_SLOW, "message late by minutes")                                                        \
    X(OUTCOME_UNKNOWN, "outcome asked and not known")                                              \
    X(ALONE, "restored site trains before the hub lets it in")                                     \
    X(ALONE_KEPT, "work done alone stays")                                                         \
    X(ALONE_LOST, "work done alone thrown away at the JOIN")                                       \
    X(STUCK, "lease taken from processes that die on it in a row")                                 \
    X(LEFT_KEPT, "lease kept by a site that left in order")                                        \
    X(GRADIENT, "gradient handed in")                                                              \
    X(SYNC_ROUND, "synchronous round")                                                             \
    X(SYNC_ROUND_3, "third synchronous round in a row, or a later one")                            \
    X(GRADIENT_DROPPED, "staged gradient dropped: the head moved on under it")                     \
    X(SYNC_OVER, "site left the synchronous phase")                                                \
    X(SYNC_AGAIN, "rollback into the synchronous phase")

enum sim_mark {
#define X(name, text) MARK_##name,
    SIM_MARKS(X)
#undef X
        MARKS
};

#endif
