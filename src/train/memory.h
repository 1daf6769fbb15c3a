/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - a training under way, kept in the memory of its nodes: a restart takes seconds, and costs a step
 * or two instead of all since the last checkpoint on disk. After Gemini (Wang et al., SOSP 2023): each rank keeps
 * its own state on its node and a copy of another rank's, whose node is another one.
 *
 * What a rank keeps is its shard: its parts of weights and moments (dp.h), 12 bytes an element, so all ranks
 * together keep the state once, and once more as copies. A moment of all shards is a generation. Files lie in a
 * directory in memory (/dev/shm, a tmpfs), one for the own shard and one for the partner's:
 *
 *   DIR/beringia-UID/RUN.SITE.SHARD-of-RANKS.own|copy     mode 0600, mapped, all of it allocated at the start
 *   slot 0 | slot 1 | ...                                 one a generation, used in turn
 *   slot: header (memory.c) | the site's books (the same in all shards) | theta, m, v of the shard
 *
 *   keep:   copy the shard into the oldest slot; send it to the partner and sum it up, behind the next step
 *           both done on all ranks -> the generation is whole; only then the next one is begun
 *   recall: who has which shard of which generation? The newest that all ranks can have; each shard from
 *           the own node, else from a node that has it
 *
 * Invariants
 *   (M1) from the first whole generation on there is one that is whole on all ranks, at every moment.
 *   (M2) a slot without its sums is not taken: it is torn, rotten, or of another run, site or cut.
 *   (M3) a generation is taken as a whole: all shards have its hash, which covers the books and a random
 *        number of this keep.
 *   (M4) memory is taken at the start, or the start fails: nothing is allocated later.
 *
 * Threads: all calls are for the thread that owns the trainer; what is summed up has a thread of its own. */
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H

#include "train/dp.h"
#include "train/train.h"

enum {
    MEMORY_GENERATIONS_MIN = 2,
    MEMORY_GENERATIONS_MAX = 8,
    MEMORY_HEADER_BYTES = 512,
    MEMORY_PAGE_BYTES = 4096,
    MEMORY_BOOKS_MAX = 266240, /* whole pages */
    MEMORY_SITE_MAX = 48,
    MEMORY_CANDIDATES = 8
};

/* Which of two moments is newer: the first that differs, in this order. */
struct memory_moment {
    uint64_t incarnation, steps, version, handed_in;
};
struct memory_id {
    struct memory_moment moment;
    struct hash hash; /* M3 */
};
/* Newest first; then by hash, so that all ranks sort alike. */
int memory_id_compare(const struct memory_id *a, const struct memory_id *b);

struct memory_shape { /* shards of equal shapes fit each other */
    struct id128 run;
    char site[MEMORY_SITE_MAX];
    uint64_t elements, bucket; /* P; trainer_bucket */
    uint32_t ranks, optimizer;
};
struct memory_mark { /* a slot's header */
    struct memory_shape shape;
    struct memory_id id;
    uint32_t shard;
    uint64_t own, adamw_steps, books_bytes;
    uint64_t sum; /* of books and data */
};

/* ---- Pure (memory.c) ------------------------------------------------------------------------------ */
void memory_mark_encode(const struct memory_mark *m, uint8_t out[MEMORY_HEADER_BYTES]);
/* E_CORRUPT: no whole header (an unused slot, a torn one); *out is untouched. */
enum brg_status memory_mark_decode(const uint8_t in[MEMORY_HEADER_BYTES], struct memory_mark *out,
                                   struct err *e) MUST_USE;
bool memory_shape_equal(const struct memory_shape *a, const struct memory_shape *b);
/* The hash of a generation: the same on all ranks, of no other generation. */
struct hash memory_hash(const struct memory_shape *shape, const struct memory_moment *moment,
                        uint64_t adamw_steps, uint64_t salt, const void *books, size_t n);
/* Bytes of a slot whose shard has so many elements. 0: more than there are addresses for. */
uint64_t memory_slot_bytes(uint64_t own);
/* out[r]: who keeps a copy of rank r's shard. Each rank keeps one at most, on another place than r's where any
 * arrangement can have it; UINT32_MAX: nobody, all that is left is on its own place. */
void memory_partners(const uint64_t *places, uint32_t ranks, uint32_t *out);
/* have[rank * ranks + shard]: that rank can read it. out[shard]: who gives it: its own rank where possible. False:
 * somebody's shard is nowhere. */
bool memory_sources(const uint8_t *have, uint32_t ranks, uint32_t *out);
/* Sorts, drops doubles, gives how many are left (at most cap). */
size_t memory_candidates_merge(struct memory_id *ids, size_t n, size_t cap);

/* ---- Shore (memory_os.c, memory_find_os.c) ---------------------------------------------------------- */
struct memory_options {
    const char *dir; /* "%r": the rank, so that ranks of one machine can play nodes of their own */
    uint32_t generations;
    uint32_t optimizer;
    struct id128 run;
    const char *site;
};
struct memory;

/* Collective, as all below but memory_busy and memory_close. Looks at what is there; makes nothing but the
 * directory. E_CONFIG: dir is not this user's alone. */
enum brg_status memory_open(const struct memory_options *o, struct trainer *t,
                            const struct dp_net *net, struct memory **out, struct err *e) MUST_USE;
/* Generations of which some shard was found, newest first; the same number on all ranks. */
uint32_t memory_candidates(const struct memory *m);
struct memory_recalled {
    struct memory_moment moment;
    uint64_t adamw_steps;
    uint64_t foreign;  /* shards that did not come from their own rank's own file */
    const void *books; /* rank 0: borrowed until the next recall */
    size_t books_bytes;
};
/* Candidate number i into the trainer: weights on all ranks, moments. E_MISSING: not all shards are left of
 * it. After a failure the trainer's vectors are undefined. */
enum brg_status memory_recall(struct memory *m, uint32_t i, struct memory_recalled *out,
                              struct err *e) MUST_USE;
/* Takes the memory (M4). E_FULL says how much, for whom, and what makes it less. */
enum brg_status memory_take(struct memory *m, struct err *e) MUST_USE;
struct memory_figures {         /* of this rank */
    uint64_t bytes, copy_bytes; /* taken in all; of these for the partner's shard */
    uint32_t places;            /* different ones among all ranks */
    uint32_t partner;           /* who keeps this rank's copy; UINT32_MAX: nobody */
    uint64_t kept;              /* generations */
    double copy_s;              /* the trainer's thread spent */
    char dir[512];
};
void memory_figures(const struct memory *m, struct memory_figures *out);
/* Begins a generation of the trainer as it is now. Not while memory_busy on any rank. */
void memory_keep(struct memory *m, const struct memory_moment *moment, uint64_t adamw_steps,
                 uint64_t salt, const void *books, size_t n);
/* The generation begun last is not whole on this rank yet. Lets it come on; does not wait. */
bool memory_busy(struct memory *m);
/* removes: the run is over, or a checkpoint has all: gives the memory back. Takes NULL. */
void memory_close(struct memory *m, bool removes);

#endif
