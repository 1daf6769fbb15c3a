/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - what one party measured of its own way to a hub, told to that hub. Pure.
 *
 * POST /v1/links: docs/protocol.md section 4. Outward only: nobody is ever asked to listen. A site, or the hub of a
 * region, which is a child of the hub above it, tells its name, where it stands, and three figures; the hub keeps
 * the newest of each in memory and shows them in /v1/status, for `beringia plan --topology`. */
#ifndef WIRE_LINK_H
#define WIRE_LINK_H

#include "wire/wire.h"

struct wire_link {
    char site[WIRE_NAME_MAX];
    char fabric[WIRE_FABRIC_MAX];      /* "": not told */
    bool hub;                          /* the way of a region's hub that stands in that fabric */
    double rtt_ms, up_mb_s, down_mb_s; /* 10^6 bytes a second; above 0, at most 10^9 */
};
void wire_link_encode(const struct wire_link *l, struct buf *out);
/* E_MESSAGE names the field. */
enum brg_status wire_link_decode(const void *json, size_t n, struct wire_link *out, struct err *e)
    MUST_USE;

#endif
