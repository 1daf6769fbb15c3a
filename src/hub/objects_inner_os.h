/* SPDX-License-Identifier: Apache-2.0 */
/* objects_inner_os.h - private to objects_os.c and objects_site_os.c. */
#ifndef HUB_OBJECTS_INNER_OS_H
#define HUB_OBJECTS_INNER_OS_H

#include <pthread.h>

#include "hub/objects_os.h"
#include "object/object.h"

enum { OBJECTS_KEY_MAX = 128, OBJECTS_DONE_MAX = 64 };

struct object_row { /* an object that is there, or that was doubted */
    char key[OBJECTS_KEY_MAX];
    uint64_t bytes;
    bool there;
    bool old;        /* was there when the pass began */
    uint32_t doubts; /* of sites */
    time_ns doubted;
};

struct objects {
    struct hub_server *s;
    struct object_store *store;
    uint32_t expires_s;
    double price_writes, price_reads;
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopping, listed, dirty, asked;
    bool up;             /* the last thing that was asked of it worked */
    char cause[300];     /* why it is not; "": not tried yet */
    uint32_t failures;   /* in a row */
    uint64_t times_down; /* since the start */
    uint64_t passes;     /* that came to their end */
    time_ns next, heard, swept;
    struct object_row *rows;
    size_t rows_count, rows_cap;
    char held[2][OBJECTS_KEY_MAX]; /* of a version that is not decided yet */
    struct id128 done[OBJECTS_DONE_MAX];
    size_t done_count;
};

void objects_lock(struct objects *o);
void objects_unlock(struct objects *o);
/* Under the lock. NULL: none. */
struct object_row *objects_row(struct objects *o, const char *key);
/* What asking the store came to: its being up or down follows. True: it worked. Not under the lock. */
bool objects_noted(struct objects *o, enum brg_status s, const struct err *e);
void objects_key_contribution(const struct id128 *did, char key[OBJECTS_KEY_MAX]);
void objects_key_checkpoint(const struct hash *h, char key[OBJECTS_KEY_MAX]);
void objects_key_update(uint64_t version, const struct hash *theta, char key[OBJECTS_KEY_MAX]);

#endif
