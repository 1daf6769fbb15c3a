/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox_os.h - private to the hub's shore: those who reach the run's object store and not the hub. wire/mail.h,
 * docs/protocol.md section 14, docs/s3.md
 *
 *   poller    looks into mail/req/, 100 ms after something came, then slower and slower
 *   workers   take a request away, ask this hub by a connection that never leaves the process, put its answer
 *
 * To the rest of the hub such a request is one of HTTP like any other: the same routes, with the same token, through the
 * same gate. A request that blocks holds up one worker and no look. One that is taken away and not answered, because this
 * process died, is a connection that was cut: the site asks again.
 *
 * Threads: any. Nobody is in a call while mailbox_close runs. */
#ifndef HUB_MAILBOX_OS_H
#define HUB_MAILBOX_OS_H

#include "hub/json_view.h"
#include "hub/server_os.h"

/* After the hub listens. s->mailbox stays NULL where blobs.mailbox is off. E_CONFIG: no tokens, settings, credentials;
 * a store that is not reached is no error. */
enum brg_status mailbox_open(struct hub_server *s, struct err *e) MUST_USE;
/* All of these take NULL too. */
void mailbox_stop(
    struct mailbox *m); /* its threads are joined; requests in work end as the hub lets them */
void mailbox_shut(struct mailbox *m);  /* its connections are gone: before the gate is */
void mailbox_close(struct mailbox *m); /* once nobody looks at it */
void mailbox_look_at(struct mailbox *m, struct mailbox_view *out);
const char *mailbox_address(const struct mailbox *m); /* "bucket:s3://..." */

#endif
