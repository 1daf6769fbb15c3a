/* SPDX-License-Identifier: Apache-2.0 */
/* merge.h - the merge worker's file work: from the checkpoint of version v and the staged deltas
 * to the checkpoint of version v+1. The hub and `hub replay` call the same function, which is why
 * a replay proves theta. It decides nothing: parts, weights and scalars come from the hub's state
 * machine. */
#ifndef HUB_MERGE_H
#define HUB_MERGE_H

#include "outer/outer.h"
#include "store/store.h"

struct merge_part {
    struct outer_part part;
    char path[4096];
    struct hash blob; /* SHA-256 of the delta file; zero: not compared */
};
struct merge_figures { /* how the sites' deltas agree, from a sample of the elements; for people */
    bool known;        /* two or more fresh sites, not more parts than OUTER_RADIAL_PARTS_MAX */
    double cos_mean;   /* outer_cosines */
    double cosines[OUTER_RADIAL_PARTS_MAX];
};
struct merge_job {           /* everything is borrowed */
    const char *parent_path; /* checkpoint file of theta_v */
    const char *out_path;    /* created; removed again after a failure */
    struct outer_params params;
    bool radial, keeps_ema; /* struct outer_round */
    double ema;
    struct outer_adamw adamw; /* step above 0: a synchronous round, the parts are gradients */
    const double *weight;
    const struct merge_part *parts; /* sorted by (site, contribution) */
    size_t parts_count;
    struct checkpoint_head head; /* of the new version */
    unsigned threads;            /* 0 or 1: this thread alone; at most 8 */
    enum codec down; /* 0: theta is the outer step's; else what its coded update gives */
    struct merge_figures *figures; /* out; NULL: not wanted */
    const char *update_path; /* down: the update file, created; not synced. NULL: none is written */
};

/* Runs the job in bounded memory (about 100 MB, whatever the model and the threads). Blocks for as long as the
 * disk takes. The result is synced, but has no durable name yet: blobs_adopt gives it one.
 *   E_CORRUPT, E_MISSING, E_MESSAGE with *out_bad_part >= 0: this part is damaged; discard it, plan anew
 *   E_CORRUPT with *out_bad_part = -1: the parent does not have the theta that its header promises
 *   E_CHECKPOINT: the parent is of another model;  E_FULL: make space;  E_IO
 * The other outputs are untouched on failure. */
enum brg_status merge_run(const struct merge_job *job, struct hash *out_file, uint64_t *out_bytes,
                          struct hash *out_theta, int *out_bad_part, struct err *e) MUST_USE;

/* Looks at a delta file that has arrived: header, exact size, hash, finite, and its figures.
 * want may be NULL (the hash is known to be right); parent_path may be NULL (no cosine to m).
 *   E_MESSAGE: header or size are wrong;  E_CORRUPT: another hash;  E_NONFINITE: a number is not finite */
enum brg_status merge_inspect(const char *path, const struct hash *want, uint64_t elements,
                              const char *parent_path, struct delta_header *out_header,
                              struct delta_stats *out_stats, struct err *e) MUST_USE;

#endif
