/* SPDX-License-Identifier: Apache-2.0 */
/* plan_topology.h - the parts of beringia plan that look at links and not at queues: --topology, --scale. */
#ifndef CLI_PLAN_TOPOLOGY_H
#define CLI_PLAN_TOPOLOGY_H

#include "cli/ask.h"
#include "place/scale.h"

/* What a topology's figures say, as text or as one line of JSON. Pure. */
void plan_topology_text(const struct topology *t, const struct topo_proposal *p, struct buf *out);
void plan_topology_json(const struct topology *t, const struct topo_proposal *p, struct buf *out);

/* Reads what is named (a file, or the top hub and LABEL=RUN|URL for those of regions), proposes, prints; gives the exit
 * status. hub_line: MB/s of the top hub's own line, 0: not given. */
int plan_topology(const struct hub_who *who, double hub_line, bool json, char *const *names,
                  int names_count);

/* The tables of docs/scale.md, or the like as one line of JSON. */
void plan_scale_text(const struct scale_settings *s, struct buf *out);
void plan_scale_json(const struct scale_settings *s, struct buf *out);

#endif
