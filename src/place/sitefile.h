/* SPDX-License-Identifier: Apache-2.0 */
/* sitefile.h - site.yaml: what the user of a facility offers to a run. docs/agent.md describes it.
 *
 * Everything that ends up in a command of the scheduler comes from here: the hub names a shape, and the
 * shape's words are these. */
#ifndef PLACE_SITEFILE_H
#define PLACE_SITEFILE_H

#include "base/config.h"
#include "place/place.h"
#include "wire/wire.h"

enum { SITE_SHAPES_MAX = 32, SITE_OPTIONS_MAX = 32, SITE_WORD_MAX = 200, SITE_PATH_MAX = 1024 };

struct place_shape {
    char name[PLACE_NAME_MAX];
    char partition[64], account[64], qos[64];
    uint32_t nodes, tasks, gpus; /* tasks and gpus of a node; 0: not asked for */
    uint64_t time_s;
    char options[SITE_OPTIONS_MAX][SITE_WORD_MAX];
    uint32_t options_count;
};

enum place_scheduler { PLACE_SLURM = 0, PLACE_LOCAL = 1 };

struct place_site {
    char name[PLACE_NAME_MAX];
    char hub[SITE_PATH_MAX], token[SITE_PATH_MAX], ca[SITE_PATH_MAX];
    char fabric[WIRE_FABRIC_MAX]; /* "": not told */
    char state[SITE_PATH_MAX];    /* directory of the agent */
    char script[SITE_PATH_MAX];   /* the job's script */
    enum place_scheduler scheduler;
    char options[SITE_OPTIONS_MAX][SITE_WORD_MAX]; /* of every submission */
    uint32_t options_count;
    uint64_t drain_s; /* USR1 so long before the time limit; 0: none */
    bool chain_after; /* a successor waits for its predecessor by a dependency */
    /* etiquette */
    time_ns probe_ns, look_ns, hub_ns, timeout_ns, settle_ns;
    uint64_t commands_per_hour;
    double jitter;
    /* budget */
    double node_hours;
    uint64_t jobs_max; /* queued and running at a time */
    /* local */
    uint64_t local_nodes;
    /* courier */
    char spool[SITE_PATH_MAX]; /* "": none */
    struct place_shape shapes[SITE_SHAPES_MAX];
    uint32_t shapes_count;
};

/* Reads a text. E_CONFIG names file, line, key, remedy. Pure. Relative paths stay as they are. */
enum brg_status sitefile_parse(const char *file, const void *text, size_t n, struct place_site *out,
                               struct err *e) MUST_USE;
/* Every key, those of a shape under the section shape_NAME: for the manual. */
enum { SITEFILE_KEYS_MAX = 64 };
struct sitefile_keys {
    struct config_key keys[SITEFILE_KEYS_MAX];
    size_t count;
    char section[64];
};
void sitefile_keys(struct sitefile_keys *out);
/* The same, but all faults at once, each told (config_collect); E_CONFIG at the end where there was one. What depends on several
 * keys is looked at only where every key can be read. */
enum brg_status sitefile_check(const char *file, const void *text, size_t n, config_fault *tell,
                               void *user, struct place_site *out, struct err *e) MUST_USE;
/* NULL: the file does not offer it. */
const struct place_shape *sitefile_shape(const struct place_site *s, const char *name);

#endif
