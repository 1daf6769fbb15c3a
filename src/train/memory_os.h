/* SPDX-License-Identifier: Apache-2.0 */
/* memory_os.h - what memory_os.c (keeping) and memory_find_os.c (bringing back) share. */
#ifndef TRAIN_MEMORY_OS_H
#define TRAIN_MEMORY_OS_H

#include <pthread.h>

#include "base/os.h"
#include "train/memory.h"

struct memory_file { /* taken: the own shard's, or the copy of another one's */
    char path[OS_PATH_MAX];
    int fd;
    uint8_t *map; /* NULL: this rank has no such file */
    uint64_t bytes, slot_bytes, own;
    uint32_t shard;
    struct memory_id ids[MEMORY_GENERATIONS_MAX];
    bool whole[MEMORY_GENERATIONS_MAX];
    uint32_t slot; /* that is being filled, or was filled last */
    struct memory_mark mark;
    bool sealed; /* lock */
};

struct memory_found { /* a generation of a shard that lies in this rank's directory */
    char name[200];
    bool own;
    uint32_t slot;
    struct memory_mark mark;
    bool struck; /* it did not have its sum */
};

struct memory {
    struct trainer *trainer;
    const struct dp_net *net;
    struct memory_shape shape;
    uint32_t rank, ranks, generations;
    char dir[OS_PATH_MAX], prefix[120]; /* of the names of this run and site */
    uint64_t *places;                   /* [ranks] */
    uint32_t *partners;                 /* [ranks]: who keeps whose copy */
    uint32_t keeps;                     /* whose copy this rank keeps; UINT32_MAX: nobody's */
    bool swaps;                         /* somebody keeps a copy */

    /* bringing back */
    struct memory_found *found;
    size_t found_count;
    struct memory_id candidates[MEMORY_CANDIDATES];
    uint32_t candidates_count;
    uint8_t *books; /* rank 0 */
    size_t books_bytes;

    /* keeping */
    struct memory_file own, copy;
    bool filling, swapping; /* a generation is under way; so are messages of it */
    bool has_good;
    struct memory_id good; /* the newest whole one, or what was brought back (M1) */
    uint64_t kept;
    time_ns copy_ns;

    /* the thread that sums up */
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct memory_file *todo[2]; /* lock; the first one is at work */
    uint32_t todo_count;
    bool stopping;
};

void memory_name(const struct memory *m, uint32_t shard, bool own, char out[OS_PATH_MAX]);
/* Reads one slot of a found file, and looks at its sum. E_CORRUPT: it is not what its header says. */
enum brg_status memory_load(const struct memory *m, const struct memory_found *f, uint8_t *books,
                            float *data, struct err *e) MUST_USE;
enum brg_status memory_scan(struct memory *m, struct err *e) MUST_USE;
/* Removes files of this run and site that no rank of this place needs as things are arranged now. */
void memory_sweep(const struct memory *m);

#endif
