/* SPDX-License-Identifier: Apache-2.0 */
/* uplink.h - what a region remembers of its parent beside its journal: the leases that it has there, and the
 * contribution that is on its way. Pure; the file is RUN/uplink/state.
 *
 *   next --its turn--> current --all of it merged in the region--> pending --merged at the parent, taken in--> gone
 *
 * A set is a handful of leases of the parent that the region works off together. One set is open to the sites at
 * a time; when all of it is merged in the region's versions, what they have changed is one contribution. Where the
 * one before is still on its way then, the next set is added to this one, so that nobody waits for the parent. */
#ifndef HUB_UPLINK_H
#define HUB_UPLINK_H

#include "hub/hub.h"
#include "lease/lease.h"
#include "wire/wire.h"

enum {
    UPLINK_ASKED_MAX = 5,
    UPLINK_LEASES_MAX = 2 * UPLINK_ASKED_MAX
}; /* of a set; two may become one */

struct uplink_set {
    uint32_t count;
    struct wire_lease leases[UPLINK_LEASES_MAX];
};
struct uplink_state {
    struct id128 run; /* the parent's */
    char name[WIRE_NAME_MAX];
    struct uplink_set current, next, pending;
    bool has_pending;
    struct wire_commit commit; /* of pending */
    uint64_t cut;              /* the region's version that it was cut at */
    uint64_t merged;           /* the parent's version that has it; 0: none yet */
    bool staged;               /* the parent has it, merged or not; not stored */
};
/* u64 magic "BRGUPLK1", the fields, SHA-256 of all before. */
void uplink_encode(const struct uplink_state *s, struct buf *out);
/* E_CORRUPT where the bytes are not what uplink_encode writes. */
enum brg_status uplink_decode(const void *data, size_t n, struct uplink_state *out, struct err *e)
    MUST_USE;

uint64_t uplink_samples(const struct uplink_set *s);
/* Its stretches; out is the caller's to free. */
uint32_t uplink_spans(const struct uplink_set *s, struct hub_span **out);
bool uplink_has(const struct uplink_set *s, uint64_t tok);
/* All of `more` becomes part of the set; false: it does not fit, nothing was done. */
bool uplink_add(struct uplink_set *s, struct uplink_set *more);
void uplink_drop(struct uplink_set *s, uint64_t tok);

/* ---- What is decided; the shore (uplink_os.c) does it. h is the region's hub, under its lock. */
/* The leases that a JOIN or a heartbeat names: what is worked on, or not handed in yet. */
uint32_t uplink_named(const struct uplink_state *s, const struct wire_lease *out[WIRE_LEASES_MAX]);
/* What is on its way is given up: the region goes back to its first version. */
void uplink_forget(struct uplink_state *s);
/* The parent has given a lease to others. true: it was of the open set, so the region has to go back. */
bool uplink_gone(struct uplink_state *s, uint64_t tok) MUST_USE;

enum uplink_cut {
    UPLINK_CUT_NOT = 0,
    UPLINK_CUT_NOW =
        1, /* all of the open set is merged or skipped in h: c is filled but for did and file */
    UPLINK_CUT_NEVER = 2 /* it is, with more skips than a contribution can name */
};
enum uplink_cut uplink_cut_due(const struct hub *h, const struct uplink_state *s,
                               struct wire_commit *c);
bool uplink_done(const struct hub *h, const struct uplink_state *s); /* all of the open set is */
/* The open set is the contribution c now, cut at the region's version `head`. */
void uplink_cut_take(struct uplink_state *s, const struct wire_commit *c, uint64_t head);
/* The next set may be opened: nobody works on one, or the one before is done and its turn has not come. */
bool uplink_next_due(const struct hub *h, const struct uplink_state *s);

enum uplink_verdict { UPLINK_NOTHING = 0, UPLINK_KEEP = 1 /* it has changed */, UPLINK_RESET = 2 };
enum uplink_verdict uplink_outcome(struct uplink_state *s, const struct wire_commit_answer *a);
/* Over: it is in the parent and taken in, or the region went back behind its cut. true: it was given up. */
bool uplink_settle(const struct hub *h, struct uplink_state *s) MUST_USE;

enum uplink_take { UPLINK_TAKE_NOT = 0, UPLINK_TAKE_NOW = 1, UPLINK_TAKE_RESET = 2 };
/* head: the parent's newest version, told before what became of the contribution was asked. own_in: it has it. */
enum uplink_take uplink_take_due(const struct hub *h, const struct uplink_state *s, uint64_t head,
                                 bool *own_in);
/* hub_region_others, for what the note says of the region's own. */
bool uplink_others(const struct hub *h, const struct uplink_state *s, bool own_in,
                   const struct ledger *at_parent, struct hub_span **out, uint32_t *out_count);

#endif
