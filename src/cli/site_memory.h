/* SPDX-License-Identifier: Apache-2.0 */
/* site_memory.h - rank 0's part of keeping a site's state in the memory of its nodes: when a generation is begun,
 * and which one a start goes on from. train/memory.h keeps, brg_keep and brg_offer have the site's books. */
#ifndef CLI_SITE_MEMORY_H
#define CLI_SITE_MEMORY_H

#include "beringia.h"
#include "cli/site_ranks.h"

struct site_memory {
    struct ranks *ranks;
    struct brg_site *site;
    const char *name;
    uint64_t every; /* optimizer steps from one generation to the next, at least */
    bool on;
    uint8_t *books;         /* [BRG_KEPT_BYTES_MAX] */
    const char *from;       /* "memory", "partner"; NULL: no generation was taken */
    double recall_s;        /* looking, reading, sending */
    uint64_t since;         /* steps since the last generation was begun */
    uint64_t kept, put_off; /* begun; wanted, but the last one was not whole yet */
};

/* Between ranks_setup and brg_join: brings back the newest generation that all ranks can have, where the
 * library takes it (then *counter is AdamW's step count), and takes memory for the new ones. E_FULL: it does not
 * fit. On all ranks or on none. */
enum brg_status site_memory_begin(struct site_memory *m, uint64_t *counter, struct err *e) MUST_USE;
/* After brg_sync, with the weights on all ranks: begins a generation if one is due. stepped: optimizer steps
 * since the last call; busy: the last result's. */
void site_memory_next(struct site_memory *m, uint64_t stepped, bool changed, bool busy);
void site_memory_end(struct site_memory *m); /* figures into the log */

#endif
