/* SPDX-License-Identifier: Apache-2.0 */
/* levels.h - a tree of hubs in virtual time: beringia sim --levels 2|3 [--sites N]. The production machines of hub and region
 * (hub_step, region.c) and the production decisions of the uplink (uplink.c) on a simulated shore; sites are simple ones that
 * lease, train, hand in, crash and come back. docs/simulation.md.
 *
 *   levels.c         the tree, the turns of fate, seeds in a row, the mutants' way in
 *   levels_hub.c     a hub's process: journal, snapshot, merges; the counts of every version, proved against its ledger
 *   levels_link.c    messages between hubs; the region's duties, as src/hub/uplink_os.c and uplink_work_os.c order them
 *
 * The counting model: one weight a position, to which training adds 1; the outer step is the plain sum. So the weights of
 * every version of every hub are 1 where its ledger says MERGED and 0 elsewhere, or a sample was lost or counted twice on
 * its way up or down. */
#ifndef SIM_LEVELS_H
#define SIM_LEVELS_H

#include <setjmp.h>

#include "hub/machine.h"
#include "hub/uplink.h"
#include "lease/lease.h"

enum {
    LV_POSITIONS = 40, /* of an epoch, at most: of a small tree */
    LV_EPOCHS = 2,
    LV_POSITIONS_A_SITE = 4, /* of a large one, of one epoch */
    LV_VERSIONS = 4096,
    LV_PARTS = 256,
};
struct lv_shape { /* a small tree: fan 2, 2 sites */
    uint32_t levels, fan;
    uint32_t sites; /* of a leaf hub */
    bool large;
};

struct lv_blob {
    struct hash hash;
    float *d; /* [weights] */
};
struct lv_version { /* a checkpoint; number 0 has no weights but zeros */
    uint64_t version, tokens;
    float *theta; /* [weights] */
    uint8_t *ledger;
    size_t ledger_bytes;
};
struct lv_site {
    uint32_t inc;
    uint64_t req;
    bool asking, has; /* asking: ask is sent until it is answered */
    struct wire_request ask;
    struct wire_lease lease;
};
struct lv_uplink {
    struct uplink_state st, disk; /* disk: RUN/uplink/state */
    bool file;                    /* the contribution's file is there */
    float *delta;                 /* in it; [weights] */
    /* volatile */
    bool member, next_closed, asking;
    uint32_t inc;
    uint64_t req, head, ask_at, cut_until; /* turns; cut_until: no way to the parent until then */
    struct id128 boot;
    struct wire_request lease_ask; /* while asking */
};
struct lv_hub {
    struct lv_world *w;
    uint32_t index;
    struct lv_hub *up; /* NULL: the top */
    char name[WIRE_NAME_MAX];
    bool alive, leaf;
    uint64_t down_until; /* turn */
    struct hub_settings s;
    struct hub *h;
    struct hub_out out;
    struct buf journal, snapshot;
    uint64_t seq, snapshot_seq, snapshot_offset;
    bool has_plan;
    struct hub_plan plan; /* parts and ledger are copies */
    struct hub_plan_part parts[LV_PARTS];
    struct lv_version *version; /* [LV_VERSIONS] */
    uint32_t versions,
        below;            /* sites below it, in units of a small tree's leaf; 1 in a small tree */
    struct lv_site *site; /* of a leaf; [shape.sites] */
    struct lv_uplink link;
};
struct lv_world {
    uint64_t seed, turn, positions, faults, crashes, resets, merges, lost;
    struct lv_shape shape;
    uint32_t hubs, epochs, rounds,
        pace; /* pace: turns until each hub had its, in those of a small tree */
    uint64_t weights;
    struct prng g;
    time_ns now;
    bool calm, trace;
    struct lv_hub *hub;
    struct lv_blob *blob;
    uint32_t blobs, blobs_max;
    uint64_t names;
    jmp_buf out;
    char why[400];
};

/* levels.c */
_Noreturn void lv_fail(struct lv_world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
void lv_say(const struct lv_world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool lv_chance(struct lv_world *w, uint32_t one_in); /* false once the faults are over */
struct id128 lv_name(struct lv_world *w);            /* a new one */
struct lv_blob *lv_blob_new(struct lv_world *w);
const struct lv_blob *lv_blob_find(const struct lv_world *w, const struct hash *hash);
uint64_t lv_at(const struct lv_world *w, uint32_t epoch, uint64_t position);

/* levels_hub.c */
void lv_hub_open(struct lv_hub *n);
void lv_hub_kill(struct lv_hub *n);
void lv_hub_start(struct lv_hub *n);
const struct wire_answer *lv_hub_step(struct lv_hub *n, const struct hub_cmd *c);
void lv_hub_tick(struct lv_hub *n);
void lv_hub_merge(struct lv_hub *n);
const struct lv_version *lv_version_find(const struct lv_hub *n, uint64_t version);
void lv_hub_close(struct lv_hub *n);

/* levels_link.c. lv_ask: false where the message or its answer is lost. */
bool lv_ask(struct lv_hub *n, const struct wire_request *q, struct wire_answer *a);
void lv_uplink_start(struct lv_hub *n);
void lv_uplink_pass(struct lv_hub *n);

/* levels.c: the command. The mutants' hunt: the first seed that fails, or 0. */
int cmd_sim_levels(const struct lv_shape *shape, uint64_t first, uint64_t count, bool trace);
/* sites: at the leaves, in all; 0: a small tree. */
struct lv_shape lv_shape_of(uint32_t levels, uint64_t sites);
uint64_t lv_hunt(uint32_t levels, uint64_t seeds, char why[400]);

#endif
