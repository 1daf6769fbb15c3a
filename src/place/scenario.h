/* SPDX-License-Identifier: Apache-2.0 */
/* scenario.h - the file of `beringia project`: sites, shapes, queues, target. docs/placement.md explains
 * each key. */
#ifndef PLACE_SCENARIO_H
#define PLACE_SCENARIO_H

#include "base/config.h"
#include "place/project.h"

enum { SCENARIO_SITES_MAX = 8, SCENARIO_KEYS = 19 };

struct scenario {
    struct project project; /* points into facility and traces below: do not copy */
    struct swf_trace traces[SCENARIO_SITES_MAX];
    uint32_t repetitions;
    struct config *config;
    struct config_key keys[SCENARIO_SITES_MAX * SCENARIO_KEYS];
};

struct scenario *scenario_create(void); /* gives (free with scenario_destroy); all keys declared */
void scenario_destroy(struct scenario *s);
/* The keys that are no site's; those of a site are the first SCENARIO_KEYS of `keys`. For the manual. */
const struct config_key *scenario_general_keys(size_t *out_count);
/* Reads the file, then sets ("section.key=value") on top, then the traces it names, relative to it. */
enum brg_status scenario_read(struct scenario *s, const char *path, const char *const *sets,
                              size_t sets_count, struct err *e) MUST_USE;
/* Pure parts of scenario_read. */
enum brg_status scenario_take(struct scenario *s, struct err *e) MUST_USE;
/* "16x12h": nodes and the time limit. */
bool scenario_shape(const char *text, struct plan_shape *out);

#endif
