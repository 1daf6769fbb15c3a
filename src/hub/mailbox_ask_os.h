/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox_ask_os.h - private to mailbox_os.c: a request of a mailbox becomes one of HTTP to this very process.
 *
 * The connection is a pair of sockets; the other end is a daemon of libmicrohttpd's that has no address (server_door), so
 * nobody else can connect there. Each request has a connection of its own, since each shows another token. libcurl is not
 * used: 7.88 cannot be handed a socket that is connected already, and this peer is our own. */
#ifndef HUB_MAILBOX_ASK_OS_H
#define HUB_MAILBOX_ASK_OS_H

#include <stdatomic.h>

#include "base/base.h"
#include "wire/spool.h"

struct MHD_Daemon;
struct mailbox_line { /* of one worker */
    struct MHD_Daemon *door;
    atomic_bool *stopping;        /* ends what runs */
    struct spool_request request; /* the one in hand */
    struct buf answer;            /* as it came, head and body */
};
struct mailbox_line *mailbox_line_open(struct MHD_Daemon *door, atomic_bool *stopping);
void mailbox_line_close(struct mailbox_line *l);
/* Asks line->request. *out borrows from the line, until the next one; http 0: no answer, text says why. */
void mailbox_ask(struct mailbox_line *l, struct spool_answer *out);
/* Shorter where *stopping comes true. */
void mailbox_nap(const atomic_bool *stopping, uint32_t ms);

#endif
