/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - a hub and sites in virtual time, around the production step functions.
 *
 * The counting model is the oracle: the model has one weight a position, and training a position adds
 * one to its weight. A merge adds up what sites hand in. When the run is complete, every weight of the
 * head must be exactly one: a position that was lost leaves 0, one that counted twice leaves 2. The
 * weights of a site go through the same algebra as in production (site/weights.h).
 *
 * A seed chooses everything: delays, losses, doubled messages, crashes with and without a local
 * checkpoint, twins, hub crashes. Faults stop at a given time; then the run must come to its end. */
#ifndef TEST_SITE_WORLD_H
#define TEST_SITE_WORLD_H

#include "hub/hub.h"
#include "site/core.h"
#include "site/weights.h"

enum {
    WORLD_SITES = 3,
    WORLD_SLOTS = 8,
    WORLD_WEIGHTS_MAX = 1024,
    WORLD_VERSIONS_MAX = 4096,
    WORLD_BLOBS_MAX = 4096,
    WORLD_EVENTS_MAX = 4096
};

struct world_faults {           /* probabilities a message, or a step of training */
    double lose, twice, slow;   /* slow: a delay of up to 20 s instead of 50 ms */
    double crash, twin, forget; /* forget: a crash that also loses the local checkpoint */
    double hub_crash, save, skip, drain;
    double upload_fails, discard;
};

struct world_options {
    uint64_t seed;
    uint32_t sites, epochs;
    uint64_t positions, batch, steps;
    enum codec codec;
    struct world_faults faults;
    time_ns faults_until, limit;
};

struct world_counts {
    uint64_t merges, crashes, twins, hub_crashes, resets, rebases, cuts, fenced, rejected, saves,
        skipped, steps, wasted;
};

struct world;
struct world *world_create(const struct world_options *o);
void world_destroy(struct world *w);
/* Runs to completion; false: the limit was reached first. */
bool world_run(struct world *w);
/* One event; false when there is none. For scripted tests. */
bool world_step(struct world *w);
/* Weights of the head that are not what they should be. */
uint64_t world_wrong(const struct world *w);
struct world_counts world_counts(const struct world *w);
struct site_core *world_core(struct world *w, uint32_t slot);
struct hub *world_hub(struct world *w);
void world_hub_down(struct world *w, bool down);
void world_crash(struct world *w, uint32_t slot, bool keep_checkpoint);
void world_save(struct world *w, uint32_t slot);
/* A second process with the slot's name and checkpoint; gives its slot. */
uint32_t world_twin(struct world *w, uint32_t slot);
void world_event(struct world *w, uint32_t slot, const struct site_event *ev);
time_ns world_now(const struct world *w);
const float *world_theta(const struct world *w, uint32_t slot);

#endif
