/* SPDX-License-Identifier: Apache-2.0 */
/* audit_region.c - a region's journal (docs/journal.md, kind 24), and a tree of runs (`--recursive`). */
#include <stdio.h>
#include <string.h>

#include "cli/audit.h"

/* What the next merge takes in. Positions come with a contribution of the parent. */
void audit_walk_parent(struct audit *a, struct reader *r) {
    uint64_t version = get_u64(r), from = get_u64(r);
    struct hash blob = {{0}};
    const void *p = get_bytes(r, HASH_BYTES);
    if (p != NULL) memcpy(blob.v, p, HASH_BYTES);
    uint64_t bytes = get_u64(r);
    if (!r->ok) return;
    if (from != audit_taken(a))
        audit_finding(a, "a PARENT from version %llu, the head has taken in %llu",
                      (unsigned long long)from, (unsigned long long)audit_taken(a));
    if (bytes > 0 ? version <= from || a->taking > 0 : version != from || a->taking == 0)
        audit_finding(a, "a PARENT that takes nothing in, or is the second before a merge");
    if (hash_is_zero(&blob) != (bytes == 0)) audit_finding(a, "a PARENT without its bytes");
    a->taking = bytes > 0 ? version : 0;
}
