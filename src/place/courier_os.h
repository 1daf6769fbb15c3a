/* SPDX-License-Identifier: Apache-2.0 */
/* courier_os.h - carries the requests of a spool (wire/spool.h) to the hub, and the answers back. Part of the agent, or
 * a command of its own (beringia courier). Threads of its own: a scheduler that hangs holds up no heartbeat, a long
 * transfer no short message.
 *
 * It may die at any moment and come back: a request goes away only after its answer is there, and every request
 * may be sent twice. One courier a spool (a lock). */
#ifndef PLACE_COURIER_OS_H
#define PLACE_COURIER_OS_H

#include "base/base.h"

struct courier_options {
    const char *spool, *hub;
    const char *token_file, *ca_file; /* "" or NULL: as the environment says; wire/net_os.h */
};
struct courier;
/* E_BUSY: another courier has this spool; E_CONFIG: the spool's owner or mode. */
enum brg_status courier_start(const struct courier_options *o, struct courier **out, struct err *e)
    MUST_USE;
void courier_stop(struct courier *c); /* takes NULL too */

#endif
