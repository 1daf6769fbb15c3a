/* SPDX-License-Identifier: Apache-2.0 */
/* uplink_os.h - a region's way to its parent: a thread of the hub that is a site of another hub, and whose
 * trainer is this hub. Private to the hub's shore.
 *
 * One thread works (joins, leases, cuts, hands in, takes in), one sends heartbeats. All that has to outlive the
 * process is in the region's journal and in RUN/uplink/state; each step can be done again.
 *
 *   RUN/uplink/state             uplink.h
 *   RUN/uplink/V.safetensors     the parent's version that the region's head has taken in, or is about to
 *   RUN/uplink/DID.delta         the contribution that is on its way
 *
 * Invariants
 *   (N3) a lease is in the state file before its positions are open to the region's sites.
 *   (N4) a contribution is in the state file before its first byte leaves, with its did.
 *   (N5) a version is taken in only when it is known whether it has the pending contribution.
 *   (N6) where books and parent contradict each other, the region goes back to its first version and takes the
 *        parent's newest in: work is lost, no position. */
#ifndef HUB_UPLINK_OS_H
#define HUB_UPLINK_OS_H

#include <pthread.h>

#include "hub/server_os.h"
#include "hub/uplink.h"
#include "wire/client.h"

struct uplink {
    struct hub_server *s;
    struct hub_parent_options o;
    char url[1024], name[WIRE_NAME_MAX], token[OS_PATH_MAX], ca[OS_PATH_MAX], dir[OS_PATH_MAX];
    struct client *line, *beat;
    pthread_t worker, beater;
    bool worker_runs, beater_runs;
    /* of the worker alone */
    struct uplink_state st;
    struct wire_run run; /* the parent's; run.seq_len 0: not asked yet */
    bool next_closed;    /* nothing more is asked for it */
    bool root_fine;      /* the parent's version 0 is ours */
    uint64_t lease_req;  /* number of the LEASE that is not answered yet; 0: none */
    struct wire_lease_request lease_asked;
    time_ns lease_at, outcome_at;
    uint64_t outcome_head; /* the parent's, when the outcome was asked last */
    uint32_t term_seen;
    struct hash term_seal, head_seal, head_theta;
    uint64_t head_sealed; /* the version that head_theta and head_seal are of */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    bool stopping, rejoin, drain;
    enum brg_status dead; /* not BRG_OK: for good; why */
    char why[600];
    uint32_t inc;
    uint64_t req, hb_seq, head; /* head: the parent's newest version, as far as it was told */
    time_ns heartbeat_ns;
    struct id128 boot;
    uint32_t tells_count; /* leases that a heartbeat names */
    struct wire_progress tells[WIRE_LEASES_MAX];
    uint32_t gone_count;
    uint64_t gone[WIRE_LEASES_MAX];
};

/* uplink_os.c */
enum brg_status uplink_ask(struct uplink *u, struct wire_request *q, struct wire_answer *a,
                           struct err *e) MUST_USE;
enum brg_status uplink_keep(struct uplink *u, struct err *e) MUST_USE; /* the state file */
enum brg_status uplink_fail(struct uplink *u, enum brg_status status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* N6. */
enum brg_status uplink_reset(struct uplink *u, const char *why, struct err *e) MUST_USE;
void uplink_round(struct uplink *u, const struct wire_round *r);
/* A command to this hub's machine; E_BUSY: not now. */
enum brg_status uplink_step(struct uplink *u, const struct hub_cmd *c, struct err *e) MUST_USE;
void uplink_view(struct uplink *u, uint64_t since, struct hub_region_view *out);

/* uplink_work_os.c: each does what is due of its kind, or nothing. */
enum brg_status uplink_take_in(struct uplink *u, bool *did, struct err *e) MUST_USE;
enum brg_status uplink_cut(struct uplink *u, bool *did, struct err *e) MUST_USE;
enum brg_status uplink_root_check(struct uplink *u, struct err *e) MUST_USE;
void uplink_tidy(struct uplink *u); /* files that nobody needs */
void uplink_delta_path(const struct uplink *u, char out[OS_PATH_MAX]);

/* For server_os.c. Makes the region's parent a member before anybody is answered; then starts the threads. */
enum brg_status uplink_open(struct hub_server *s, const struct hub_parent_options *o,
                            struct uplink **out, struct err *e) MUST_USE;
enum brg_status uplink_start(struct uplink *u, struct err *e) MUST_USE;
void uplink_close(struct uplink *u);
enum brg_status uplink_failed(struct uplink *u, struct err *e);

#endif
