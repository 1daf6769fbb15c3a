/* SPDX-License-Identifier: Apache-2.0 */
/* agent_inner.h - private to agent*.c. */
#ifndef PLACE_AGENT_INNER_H
#define PLACE_AGENT_INNER_H

#include "place/agent.h"

struct wire_item *agent_item(struct agent *a, enum wire_item_kind kind, const char *shape,
                             uint64_t wall_s);
void agent_copy(char *out, size_t cap, const char *text);
void agent_job_item(struct agent *a, const struct agent_job *j, const char *word, uint64_t wall_s);
void agent_order_over(struct agent *a, struct agent_order *o, const char *word, const char *why,
                      uint64_t wall_s);
struct agent_order *agent_order_of(struct agent *a, uint64_t id);
double agent_job_hours(const struct agent_job *j);
time_ns agent_jitter(struct agent *a, time_ns interval);
void agent_answered(struct agent *a, time_ns now, enum place_class c);

#endif
