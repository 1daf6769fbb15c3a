/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h - how a hub whose blobs lie in an object store sends a site there: docs/protocol.md section 13. Pure.
 *
 * A URL in these answers is a capability: it is used once and never logged. */
#ifndef WIRE_DIRECT_H
#define WIRE_DIRECT_H

#include "base/base.h"

enum { DIRECT_URL_MAX = 4096, DIRECT_PUTS_MAX = 32 };

struct direct_get { /* with HTTP 303: fetch it there */
    char url[DIRECT_URL_MAX];
    uint64_t bytes; /* of the whole file */
};
struct direct_piece {
    uint64_t at, bytes; /* of the file */
    char url[DIRECT_URL_MAX];
};
struct direct_put {  /* where a contribution goes */
    bool store;      /* false, or absent: to the hub itself */
    bool last;       /* nothing is to be asked again once these are there */
    uint64_t offset; /* bytes that are there already */
    uint32_t pieces_count;
    struct direct_piece pieces[DIRECT_PUTS_MAX]; /* none: all of it is there */
};

void direct_get_encode(const struct direct_get *g, struct buf *out);
enum brg_status direct_get_decode(const void *data, size_t n, struct direct_get *out, struct err *e)
    MUST_USE;
void direct_put_encode(const struct direct_put *p, struct buf *out);
enum brg_status direct_put_decode(const void *data, size_t n, struct direct_put *out, struct err *e)
    MUST_USE;
/* "https://host:port" of a URL, for people: without path and query. */
void direct_host(const char *url, char out[300]);

#endif
