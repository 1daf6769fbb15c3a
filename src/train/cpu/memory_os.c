/* SPDX-License-Identifier: Apache-2.0 */
/* memory_os.c - large memory for a pool of workers: huge pages, first touched by the workers.
 *
 * A page belongs to the memory node of the processor that touches it first. Touching by the workers, in
 * the way in which chunks are handed out, spreads the pages over the nodes on which the workers run;
 * touched by one thread, all would lie behind one memory controller. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "train/cpu/threads.h"

enum { MAP_MIN = 1 << 20, PIECE = 1 << 21, PAGE = 4096, ALIGN = 64 };

uint64_t pool_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct touch {
    char *at;
    size_t bytes;
};

static void touch_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct touch *t = ctx;
    size_t from = (size_t)chunk * PIECE, to = from + PIECE < t->bytes ? from + PIECE : t->bytes;
    for (size_t i = from; i < to; i += PAGE) ((volatile char *)t->at)[i] = 0;
}

/* A mapping begins at a multiple of PIECE, so that all of it can be huge pages. */
static void *map_aligned(size_t bytes) {
    char *p = mmap(NULL, bytes + PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t skip = (PIECE - (uintptr_t)p % PIECE) % PIECE;
    if (skip) munmap(p, skip);
    if (PIECE - skip) munmap(p + skip + bytes, PIECE - skip);
    return p + skip;
}

static size_t whole_pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void *pool_alloc(struct pool *p, size_t bytes) {
    if (bytes < MAP_MIN) {
        size_t n = (bytes + ALIGN - 1) / ALIGN * ALIGN;
        void *x = aligned_alloc(ALIGN, n ? n : ALIGN);
        return x ? memset(x, 0, n) : NULL;
    }
    if (bytes > PTRDIFF_MAX / 2) return NULL;
    struct touch t = {map_aligned(whole_pages(bytes)), bytes};
    if (!t.at) return NULL;
    madvise(t.at, whole_pages(bytes), MADV_HUGEPAGE); /* a wish */
    pool_run(p, (uint32_t)((bytes + PIECE - 1) / PIECE), touch_chunk, &t);
    return t.at;
}

void pool_release(void *p, size_t bytes) {
    if (!p) return;
    if (bytes < MAP_MIN)
        free(p);
    else
        CHECK(munmap(p, whole_pages(bytes)) == 0);
}

/* ---- What is free ---------------------------------------------------------------------------------- */
/* The number behind `key` at the beginning of a line; key "" takes the file's first number. */
static double number_in(const char *path, const char *key) {
    char line[256];
    double v = -1;
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    while (v < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lf", &v) != 1)
            v = -1;
    fclose(f);
    return v;
}

static double least(double a, double b) {
    return b < 0 ? a : a < 0 ? b : a < b ? a : b;
}

/* The control group of this process (version 2), as its own namespace shows it. */
static double group_free(void) {
    char line[512], path[640];
    double most = -1, used = -1;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return -1;
    bool found = fgets(line, sizeof line, f) && strncmp(line, "0::", 3) == 0;
    fclose(f);
    if (!found) return -1;
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
    most = number_in(path, ""); /* "max" is no number */
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
    used = number_in(path, "");
    return most < 0 || used < 0 ? -1 : most > used ? most - used : 0;
}

double memory_free_bytes(void) {
    double kb = number_in("/proc/meminfo", "MemAvailable:"), free_bytes = kb < 0 ? -1 : kb * 1024;
    struct rlimit limit;
    free_bytes = least(free_bytes, group_free());
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        double size = number_in("/proc/self/status", "VmSize:");
        double left = (double)limit.rlim_cur - (size < 0 ? 0 : size * 1024);
        free_bytes = least(free_bytes, left > 0 ? left : 0);
    }
    return free_bytes < 0 ? 0 : free_bytes;
}
