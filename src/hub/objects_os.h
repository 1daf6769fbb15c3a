/* SPDX-License-Identifier: Apache-2.0 */
/* objects_os.h - private to the hub's shore: an object store beside the directory of blobs. docs/s3.md
 *
 *   objects_os.c        what is in the store, and the thread that makes it what the ledger keeps
 *   objects_site_os.c   what a site is told: URLs down, URLs up; a contribution on its way in from the store
 *
 * The directory stays the hub's own: a merge reads and writes it alone, and whatever is in the store can be put there
 * again from it. So a store that is down, empty or wrong costs the run time and the hub's line, and nothing else.
 *
 *   checkpoints/HASH   updates/VERSION-THETA   contributions/DID      below PREFIX/RUN'S ID
 *
 * Threads: any. Nobody is in a call while objects_close runs, and none of them is called under the server's lock but
 * objects_look_at. */
#ifndef HUB_OBJECTS_OS_H
#define HUB_OBJECTS_OS_H

#include "hub/json_view.h"
#include "hub/server_os.h"
#include "object/object.h"
#include "wire/direct.h"

/* The store of blobs.store, opened at this run's place in it: PREFIX/RUN'S ID, for two runs may share a bucket and neither touches the
 * other's. E_CONFIG as objects_open. */
enum brg_status objects_store_open(const struct hub_server *s, struct object_place *out_place,
                                   struct object_store **out, struct err *e) MUST_USE;

struct objects;
/* *out NULL: this run has none. E_CONFIG: settings or credentials; a store that is not reached is no error. */
enum brg_status objects_open(struct hub_server *s, struct objects **out, struct err *e) MUST_USE;
void objects_start(struct objects *o); /* the thread; all of these take NULL too */
void objects_stop(struct objects *o);  /* what runs ends soon; the thread is joined */
void objects_close(struct objects *o);
void objects_look_at(struct objects *o, struct objects_view *out);
void objects_dirty(struct objects *o); /* versions came or went */

/* A version before anybody is told of it: what sites will fetch is put there first, so that none of them asks the hub.
 * A failure is the store's being down, no more. Then objects_settled, whatever became of the version. */
void objects_ahead(struct objects *o, uint64_t version, const struct hash *checkpoint,
                   const struct hash *theta);
void objects_settled(struct objects *o);

/* SELF: the hub serves it itself. SOON: it is on its way there, come again. */
enum objects_answer { OBJECTS_SELF, OBJECTS_THERE, OBJECTS_SOON };
/* doubt: what the site fetched last from there was not what it should be. Waits a few seconds for what is on its way. */
enum objects_answer objects_checkpoint(struct objects *o, const struct hash *checkpoint,
                                       uint64_t bytes, bool doubt, struct direct_get *out);
enum objects_answer objects_update(struct objects *o, uint64_t version, const struct hash *theta,
                                   uint64_t bytes, bool doubt, struct direct_get *out);
/* Where a site puts a contribution of so many bytes. */
enum objects_answer objects_contribution(struct objects *o, const struct id128 *did, uint64_t bytes,
                                         struct direct_put *out);
/* What the store has of it goes into the part. OK: as much as could be had is there. E_TIMEOUT: more comes, in
 * another call. Statuses of class FULL and E_IO are this side's. Under the contribution's stripe. */
enum brg_status objects_fetch(struct objects *o, const struct id128 *did, uint64_t bytes,
                              struct err *e) MUST_USE;
/* It is not wanted there any more; now: before anybody asks for it again. */
void objects_contribution_drop(struct objects *o, const struct id128 *did, bool now);

#endif
