/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h - a small pool of workers that lives as long as a trainer.
 *
 * pool_run calls fn(ctx, chunk, worker) once for each chunk in [0, chunks) and returns when all have
 * ended. Which worker takes which chunk is left to chance, so a chunk may write only what no other
 * chunk reads or writes; then the result has the same bits whatever the number of workers. */
#ifndef TRAIN_THREADS_H
#define TRAIN_THREADS_H

#include "base/base.h"

enum { THREADS_MAX = 512 };
struct pool;
typedef void pool_fn(void *ctx, uint32_t chunk, uint32_t worker);

/* threads of 0 takes the processors this process may use. The caller is worker 0. */
enum brg_status pool_create(uint32_t threads, struct pool **out, struct err *e) MUST_USE;
void pool_destroy(struct pool *p); /* takes NULL */
uint32_t pool_threads(const struct pool *p);
void pool_run(struct pool *p, uint32_t chunks, pool_fn *fn, void *ctx);
uint64_t pool_clock(void); /* monotonic, ns */
/* Zeroed memory, aligned to 64 bytes, in huge pages where the system gives them. Its pages are touched
 * by the workers, piece by piece, so that on a machine of several memory nodes it lies spread over
 * those on which the workers run. NULL where not to be had; memory_free_bytes says what there is. */
void *pool_alloc(struct pool *p, size_t bytes) MUST_USE;
void pool_release(void *p, size_t bytes); /* takes NULL; bytes as asked for */
/* Memory that this process may still take, bytes: the system's estimate, the limits of its control
 * group and of the process. 0 where nothing is known. */
double memory_free_bytes(void);

#endif
