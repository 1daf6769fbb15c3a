/* SPDX-License-Identifier: Apache-2.0 */
/* links.h - private to the hub: the newest figures of each party's way to this hub, in memory alone. Pure.
 *
 * They are measurements of a moment: a hub that starts again knows none until they are made again, nothing that is
 * promised hangs on them, and they are no part of the machine's state. One thread at a time. */
#ifndef HUB_LINKS_H
#define HUB_LINKS_H

#include "wire/link.h"

enum { HUB_LINKS_MAX = 8192 };
struct hub_link {
    struct wire_link l;
    double at; /* when it was told; seconds since 1970, by the hub's clock */
};
struct hub_links {
    struct hub_link *v; /* freed by links_free */
    uint32_t count;
};
/* Takes the place of the same party's older figures. false: the table is full. */
bool links_note(struct hub_links *t, const struct wire_link *l, double at);
void links_free(struct hub_links *t);
/* As member "links" of an object that the caller opened. t may be NULL: an empty list. */
void links_view(const struct hub_links *t, struct buf *out, bool *first);

#endif
