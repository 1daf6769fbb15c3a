/* SPDX-License-Identifier: Apache-2.0 */
/* uplink_weights_os.h - the parent's versions as they lie with a region, and how they come there. Private to the uplink.
 *
 *   RUN/uplink/V.safetensors   the parent's checkpoint, as it has it
 *   RUN/uplink/V.theta         its weights alone, made here of an earlier version and the parent's updates: the header
 *                              of the last update (outer.h), then the parameters
 *   RUN/uplink/V.ledger        the ledger of that version, which no update has
 *   RUN/uplink/V.update        an update on its way */
#ifndef HUB_UPLINK_WEIGHTS_OS_H
#define HUB_UPLINK_WEIGHTS_OS_H

#include "hub/uplink_os.h"
#include "lease/lease.h"

struct weights {
    int fd; /* -1: not open */
    char path[OS_PATH_MAX];
    uint64_t elements, offset, version, tokens; /* offset: of the parameters */
    uint64_t ledger_offset, ledger_bytes;       /* in the same file; 0: in none */
    struct hash theta;
    struct id128 run;
};
/* path is set. E_CHECKPOINT: damaged, or of another model. */
enum brg_status uplink_weights_open(struct weights *w, uint64_t elements, struct err *e) MUST_USE;
void uplink_weights_fini(struct weights *w);
#define AUTO_WEIGHTS __attribute__((cleanup(uplink_weights_fini)))
enum brg_status uplink_weights_read(const struct weights *w, uint64_t at, size_t n, float *out,
                                    struct err *e) MUST_USE;

/* Where version V lies here, or will; its version 0 is the region's too. */
void uplink_taken_path(struct uplink *u, uint64_t version, char out[OS_PATH_MAX]);
void uplink_version_path(const struct uplink *u, uint64_t version, const char *kind,
                         char out[OS_PATH_MAX]);
/* The parent's version, of updates where they lead from `taken` to it, else whole; and its ledger, which is the caller's
 * to destroy. What is here already is gone on with. E_NET: not now. */
enum brg_status uplink_fetch(struct uplink *u, uint64_t version, uint64_t taken,
                             struct weights *out, struct ledger **out_ledger, struct err *e)
    MUST_USE;
void uplink_version_drop(struct uplink *u, uint64_t version); /* its files */

#endif
