/* SPDX-License-Identifier: Apache-2.0 */
/* kit.h - what the parts of bench_hub share: a run directory of any size without data, and figures. */
#ifndef BENCH_HUB_KIT_H
#define BENCH_HUB_KIT_H

#include "hub/server.h"

/* Makes DIR/name, a run of so many positions with a model of 1,000 parameters; sets: "lease.ttl=3s", ends
 * with NULL. Ends the program where it cannot. */
void kit_run_make(const char *dir, const char *name, uint64_t positions, const char *const *sets,
                  struct run_dir *out);

/* A figure for the one line: key=value. */
void kit_figure(const char *key, double value, int digits);
/* The same, with what is promised; at_most: value <= bound, else value >= bound. */
void kit_promise(const char *key, double value, int digits, bool at_most, double bound);
/* Prints the line, and each broken promise; gives the exit status. */
int kit_end(void);

struct wire_request kit_join_request(const struct run_dir *d, const char *name);
/* A contribution of a whole lease that needs no file. */
struct wire_request kit_commit_request(const struct run_dir *d, const char *name,
                                       const struct wire_lease *l, uint64_t base);

/* The parts. dir: an empty directory on the disk that is measured. */
void part_durable(const char *dir);
void part_ledger(const char *dir);
void part_restart(const char *dir, const char *program, uint64_t records);
void part_members(const char *dir, const char *program, uint32_t members);

#endif
