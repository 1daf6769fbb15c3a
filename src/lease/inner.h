/* SPDX-License-Identifier: Apache-2.0 */
/* inner.h - the ledger's inside, shared by the files of this room. */
#ifndef LEASE_INNER_H
#define LEASE_INNER_H

#include "lease/extents.h"

struct epoch {
    struct extents x;
    bool sealed;
};

struct ledger_site {
    struct lease *first, *last;
    uint32_t leases, staged;
};

struct delta_list {
    struct delta *first, *last;
    uint32_t count;
};

struct ledger {
    uint64_t positions, tok_last, serial_last, version_last;
    uint32_t epochs_max, epochs_count, epochs_cap;
    struct epoch *epochs;
    /* hash tables by chaining; sizes are powers of two */
    struct lease **leases;
    struct delta **deltas;
    uint32_t leases_count, leases_cap, deltas_count, deltas_cap;
    struct ledger_site *sites; /* by number */
    uint32_t sites_cap;
    struct delta_list staged, final;
    char (*reasons)[LEASE_REASON_MAX]; /* [0] is "not skipped" */
    uint32_t reasons_count, reasons_cap;
    size_t items_bytes; /* of leases and deltas, their spans and texts */
};

/* tables.c */
struct ledger_site *ledger_site(struct ledger *l, uint32_t site);
struct lease *lease_add(struct ledger *l,
                        const struct lease_grant *g); /* tables only, no extents */
void lease_drop(struct ledger *l, struct lease *lease);
struct delta *delta_add(struct ledger *l, const struct id128 *did, uint32_t site,
                        uint32_t toks_count);
void delta_live_set(struct ledger *l, struct delta *d, uint32_t spans_count);
void delta_stage_link(struct ledger *l, struct delta *d);
/* Out of the staged list (where it is in it) and into the final one; forgets the oldest one. */
void delta_finish(struct ledger *l, struct delta *d, enum delta_state state, const char *reason);
void delta_reason_set(struct ledger *l, struct delta *d, const char *reason);
uint32_t reason_number(struct ledger *l, const char *reason); /* adds it where it is new */
struct epoch *epoch_add(struct ledger *l);
uint64_t id_key(const struct id128 *id);

#endif
