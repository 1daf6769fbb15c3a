/* SPDX-License-Identifier: Apache-2.0 */
/* mutants.h - the planted faults: name, whether it is known to be harmless (docs/simulation.md gives
 * the argument), what it breaks. Included by the flags of `make mutants` alone. */
#ifndef SIM_MUTANTS_H
#define SIM_MUTANTS_H

#define SIM_MUTANTS(X)                                                                             \
    X(NO_CONTAINMENT, 0, "a manifest may reach beyond its lease")                                  \
    X(NO_FENCE, 0, "an earlier process of a site may go on")                                       \
    X(NO_NONCE, 0, "the nonce of a lease is not looked at")                                        \
    X(PARTIAL, 0, "the part of a contribution that is still leased is accepted")                   \
    X(LEASE_NOT_ENDED, 0, "a contribution does not end its leases")                                \
    X(NO_DEDUP, 0, "a COMMIT that comes again is a new one")                                       \
    X(NON_ATOMIC, 0, "a merge moves the head without all of the ledger")                           \
    X(BLOB_NOT_SYNCED, 0, "the record comes before the blob")                                      \
    X(DISCARD_LOSES, 0, "a discard gives nothing back")                                            \
    X(ROLLBACK_LEDGER, 0, "a rollback leaves the ledger")                                          \
    X(ROLLBACK_KEEPS_STAGED, 0, "a rollback keeps what is staged")                                 \
    X(ROLLBACK_KEEPS_PLAN, 0, "a rollback does not cancel the merge")                              \
    X(DROP_AFTER_3, 0, "positions that crash too often are dropped")                               \
    X(NEVER_RECLAIMS, 0, "a lapsed lease is never taken away")                                     \
    X(TERM_NOT_RAISED, 0, "a start does not raise the term")                                       \
    X(REST_OVERLAPS, 0, "the rest of a lease begins one too early")                                \
    X(SEAL_IGNORES_STAGED, 0, "an epoch is sealed with staged positions")                          \
    X(OVERLAP_EARLY, 0, "the next epoch is granted first")                                         \
    X(EPOCH_DURING_MERGE, 0, "an epoch opens while a checkpoint without it is made")               \
    X(LATE_AS_FRESH, 0, "a late contribution enters the momentum")                                 \
    X(STALENESS_OWN, 0, "own versions make a contribution late")                                   \
    X(SKIP_NOT_CANCELLED, 0, "an operator's skip does not cancel the merge")                       \
    X(SNAPSHOT_FORGETS, 0, "a snapshot forgets the last lease number")                             \
    X(REPLAY_SKIPS_DISCARD, 0, "replay skips a kind of record")                                    \
    X(HOLD_IGNORED, 0, "a hold does not stop grants and merges")                                   \
    X(ANSWER_BEFORE_DURABLE, 0, "answers do not wait for the journal")                             \
    X(OWN_GAP_IGNORED, 0, "a hub that stood still blames the sites")                               \
    X(DONE_AT_FETCH, 0, "a sample is done when it is taken")                                       \
    X(KEEPS_REJECTED, 0, "rejected work stays in the weights")                                     \
    X(RESET_KEEPS_DONE, 0, "a reset leaves the counts of leases")                                  \
    X(S_NOT_SHIFTED, 0, "a rebase moves the weights and not their base")                           \
    X(OWN_NOT_ADDED, 0, "a rebase does not give own merged work back")                             \
    X(REBASE_BLIND, 0, "a rebase before the fate of own work is known")                            \
    X(TORN_CHECKPOINT, 0, "counts of a local checkpoint without its weights")                      \
    X(CUT_KEEPS_DONE, 0, "work that was handed in stays in the segment")                           \
    X(SKIP_WITHOUT_EPOCH, 0, "a skip does not say its epoch")                                      \
    X(VOID_LIVELOCK, 0, "a reset makes void what was taken ahead, for ever")                       \
    X(NO_REJOIN_AFTER_ROLLBACK, 0, "a site ahead of the head is never told")                       \
    X(OLD_TERM_BELIEVED, 1, "a hub that was replaced is believed")                                 \
    X(UPLOAD_IS_UNSENT, 0, "a COMMIT that was answered UPLOAD is taken as never sent")             \
    X(UNKNOWN_IS_REJECTED, 0, "an unknown outcome is taken as a refusal")                          \
    X(HB_SEQ_IGNORED, 1, "late heartbeats count")                                                  \
    X(RESUME_KEEPS_ALL, 0, "a JOIN keeps leases that its site does not have")                      \
    X(SHRINK_NOT_KEPT, 1, "a site says SHRINK_OK and trains on")                                   \
    X(LEASE_NOT_REPEATED, 1, "a LEASE that comes again gets another lease")                        \
    X(ALONE_KEEPS_LOST, 0, "work done alone on a lease of somebody else stays in the weights")     \
    X(ALONE_SILENT, 0, "a site that trains alone does not ask to be let in")                       \
    X(ALONE_CUTS, 0, "a site that trains alone cuts contributions")                                \
    X(SEALS_NOT_SAVED, 0, "a site's checkpoint forgets the hub's seals")                           \
    X(STUCK_KEPT, 0, "a lease on which processes die in a row is kept")                            \
    X(GRADIENT_KEPT, 0, "a gradient counts again after a restart, and its samples come again")     \
    X(GRADIENT_SAVED, 0, "a local checkpoint has samples as done whose gradient is lost")          \
    X(GRADIENT_LATE, 0, "a staged gradient stays when the head moves on under it")                 \
    X(SYNC_TWICE, 0, "a replay takes a synchronous step twice")                                    \
    X(REGION_OFFERS_MORE, 0, "a region offers a position that its parent did not lease to it")     \
    X(REGION_ROLLBACK_OFFERS, 0, "a rollback in a region leaves its positions to be given")        \
    X(REGION_TAKES_TWICE, 0, "a version of the parent goes into two merges")                       \
    X(REGION_TAKES_DURING_MERGE, 0, "a version of the parent joins a merge that is under way")     \
    X(REGION_LEAVES_OUT, 0, "the parent's positions are merged without its weights")               \
    X(REGION_WITHDRAWS_HALF, 0, "a version that cannot be used leaves its positions staged")       \
    X(REGION_GOES_BACK, 0, "a region goes back to a version in between")                           \
    X(REGION_SKIPS_WAIT, 0, "skips alone wait although nobody else is waited for")                 \
    X(UPLINK_KEEPS_LOST, 0, "a region works on after its lease went to others")                    \
    X(UPLINK_CUTS_EARLY, 0, "a region hands in a set that is not merged yet")                      \
    X(UPLINK_TAKES_BLIND, 0, "a version is taken in before it is known what of ours it has")       \
    X(UPLINK_OWN_TWICE, 0, "a region takes its own contribution in once more")                     \
    X(UPLINK_SETTLES_EARLY, 0, "a contribution is over before its version is taken in")

enum mutant {
    MUTANT_NONE,
#define X(name, equivalent, text) MUTANT_##name,
    SIM_MUTANTS(X)
#undef X
};
extern int mutant_now;

#endif
