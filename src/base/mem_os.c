/* SPDX-License-Identifier: Apache-2.0 */
/* mem_os.c - the heap: checked for overflow, zeroed, and never NULL except where a caller asks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/log.h"

/* Without the log's level and without atexit: there may be no memory for either. */
static _Noreturn void out_of_memory(size_t count, size_t size_bytes) {
    char line[256];
    int n =
        snprintf(line, sizeof line,
                 "lvl=error room=base ev=out_of_memory count=%zu size_bytes=%zu status=E_MEMORY "
                 "remedy=\"give the process more memory or lower its limits\"\n",
                 count, size_bytes);
    if (n > 0) log_os_write(line, (size_t)n);
    guard_fall(BRG_E_MEMORY, "no memory for %zu elements of %zu bytes; give the process more",
               count, size_bytes);
    _exit(BRG_E_MEMORY);
}

void *try_mem_alloc(size_t count, size_t size_bytes) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size_bytes, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    /* calloc(0) may give NULL, which would read as failure. */
    return bytes == 0 ? calloc(1, 1) : calloc(count, size_bytes);
}

void *mem_alloc(size_t count, size_t size_bytes) {
    void *p = try_mem_alloc(count, size_bytes);
    if (!p) out_of_memory(count, size_bytes);
    return p;
}

void *mem_grow(void *p, size_t count_old, size_t count_new, size_t size_bytes) {
    size_t bytes_old, bytes_new;
    CHECK(!__builtin_mul_overflow(count_old, size_bytes, &bytes_old));
    if (__builtin_mul_overflow(count_new, size_bytes, &bytes_new) || bytes_new > PTRDIFF_MAX)
        out_of_memory(count_new, size_bytes);
    uint8_t *q = realloc(p, bytes_new > 0 ? bytes_new : 1);
    if (!q) out_of_memory(count_new, size_bytes);
    if (bytes_new > bytes_old) memset(q + bytes_old, 0, bytes_new - bytes_old);
    return q;
}

char *mem_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = mem_alloc(n, 1);
    memcpy(copy, s, n);
    return copy;
}

void mem_free(void *p) {
    free(p);
}

void mem_free_cleanup(void *pp) {
    /* pp is the address of a pointer of any object type; all have one representation here. */
    void *p;
    memcpy(&p, pp, sizeof p);
    free(p);
}
