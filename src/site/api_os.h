/* SPDX-License-Identifier: Apache-2.0 */
/* api_os.h - the calls of include/beringia.h without their doors. api_os.c has the doors: it refuses what
 * no site can be asked (no handle, another process, another thread), and catches what must not reach
 * the host program. What is behind a door may rely on all of that, and on whole structs. */
#ifndef SITE_API_OS_H
#define SITE_API_OS_H

#include "site/site_os.h"

int call_open(const struct brg_options *o, int64_t timeout_ns, struct brg_site **out, char *why,
              size_t why_bytes);
int call_run(const struct brg_site *s, struct brg_run *out);
int call_join(struct brg_site *s, const struct brg_trainer *t, int64_t timeout_ns);
int call_take(struct brg_site *s, uint64_t want, int64_t timeout_ns, uint64_t *out_samples,
              uint32_t *out_epochs, uint64_t *out_count);
int call_untake(struct brg_site *s);
double call_lr(const struct brg_site *s);
int call_step(struct brg_site *s, uint64_t count, double loss, const char *skipped);
bool call_synchronous(const struct brg_site *s);
int call_gradient(struct brg_site *s, uint64_t count, double loss, const float *gradient);
int call_due(struct brg_site *s, int *out_due);
int call_sync(struct brg_site *s, int *out_changed);
int call_reset(struct brg_site *s);
int call_checkpoint(struct brg_site *s);
int call_keep(struct brg_site *s, void *out, size_t cap, size_t *out_bytes,
              struct brg_moment *out_moment);
int call_offer(struct brg_site *s, const void *kept, size_t n);
int call_status(const struct brg_site *s, struct brg_figures *out);
int call_close(struct brg_site *s, int64_t timeout_ns);
/* A site that is broken: its threads end, its directory is free, its memory stays. */
void call_abandon(struct brg_site *s);

/* fork_os.c: a child made by fork() must not keep the state directory locked when its parent dies. */
void site_lock_keep(int fd);
void site_lock_forget(int fd);

#endif
