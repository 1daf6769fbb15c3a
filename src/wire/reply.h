/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h - answers that are no message of the protocol: the offset of an upload, and whatever a proxy says in the
 * hub's place. Pure. Inside of the wire room. */
#ifndef WIRE_REPLY_H
#define WIRE_REPLY_H

#include "base/base.h"

enum { REPLY_HEAD_SHOWN = 80 };
/* {"offset":N,...}: enough of JSON for one number that the hub writes itself. */
bool reply_offset_read(const char *text, uint64_t *out);
/* The first bytes of a body for people: no control characters, no line ends. */
void reply_head(const void *body, size_t n, char out[REPLY_HEAD_SHOWN + 1]);

#endif
