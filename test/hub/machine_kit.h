/* SPDX-License-Identifier: Apache-2.0 */
/* machine_kit.h - a hub in a test's hands: virtual time, a journal in memory, sites by name.
 * Every step checks the invariants; kit_replay checks that the journal gives the same state. */
#ifndef TEST_HUB_MACHINE_KIT_H
#define TEST_HUB_MACHINE_KIT_H

#include "../harness.h"
#include "hub/hub.h"

enum { KIT_SEQ_LEN = 8, KIT_TTL = 120, KIT_HEARTBEAT = 10 }; /* seconds */

struct kit {
    struct hub_settings s;
    struct hub *h;
    struct hub_out out;
    time_ns now;
    struct buf journal; /* framed as hub_out.records */
    uint64_t seq;
    bool has_plan; /* a merge that was started and not reported yet */
    uint64_t plan;
    uint32_t plan_parts;
    uint64_t plan_version;
    uint64_t seed;
};

struct hub_settings kit_settings(uint64_t positions, uint32_t epochs);
void kit_open(struct kit *k, const struct hub_settings *s); /* INIT and START */
void kit_close(struct kit *k);
const struct wire_answer *kit_step(struct kit *k, const struct hub_cmd *c);
const struct wire_answer *kit_send(struct kit *k, const struct wire_request *q);
const struct wire_answer *kit_commit(struct kit *k, const struct wire_request *q,
                                     const struct hub_blob_verdict *blob);
void kit_wait(struct kit *k,
              double seconds); /* time passes, with the ticks that the hub asks for */
void kit_merge(struct kit *k); /* reports the running merge as done */
void kit_kill(struct kit *k);  /* the process dies and starts again from the journal */
struct hub *kit_replay(const struct kit *k, uint64_t seq_max); /* gives */
struct hub_view kit_view(const struct kit *k);

/* Requests. The returned struct is whole and can be sent, changed, sent again. */
struct wire_request kit_request(const struct kit *k, enum wire_kind kind, const char *site,
                                uint32_t inc);
struct wire_request kit_join_request(const struct kit *k, const char *site, uint8_t boot);
/* The seals that a site has which was told all that the JOIN claims. */
void kit_seal(const struct kit *k, struct wire_request *join);
uint32_t kit_join(struct kit *k, const char *site, uint8_t boot); /* asserts OK; gives inc */
/* A lease, asserted to be granted. */
struct wire_lease kit_lease(struct kit *k, const char *site, uint32_t inc, uint64_t req,
                            uint64_t want);
/* A contribution of the first `done` samples of one lease, base = head. */
struct wire_request kit_commit_request(const struct kit *k, const char *site, uint32_t inc,
                                       uint32_t did, const struct wire_lease *l, uint64_t done);
void kit_part_add(struct wire_request *q, const struct wire_lease *l, uint64_t done);
struct hub_blob_verdict kit_blob(void); /* complete and fine */
enum outcome kit_stage(struct kit *k, const char *site, uint32_t inc, uint32_t did,
                       const struct wire_lease *l, uint64_t done);
void kit_heartbeat(struct kit *k, const char *site, uint32_t inc, const struct wire_lease *l);

#endif
