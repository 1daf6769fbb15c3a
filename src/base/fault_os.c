/* SPDX-License-Identifier: Apache-2.0 */
/* fault_os.c - see fault.h. The two variables here are the only mutable globals of base: a fault point
 * must cost nothing and need no handle where it stands. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"

bool fault_off;
static uint64_t passages; /* of the named point */

void fault_passage(const char *name) {
    const char *spec = getenv("BERINGIA_FAULT"); /* nobody calls setenv once threads run */
    if (spec == NULL || *spec == '\0') {
        __atomic_store_n(&fault_off, true, __ATOMIC_RELAXED);
        return;
    }
    const char *colon = strrchr(spec, ':');
    uint64_t nth = 1;
    size_t n = colon != NULL ? (size_t)(colon - spec) : strlen(spec);
    if (colon != NULL && !parse_u64(colon + 1, &nth)) return;
    if (strlen(name) != n || memcmp(name, spec, n) != 0) return;
    if (__atomic_add_fetch(&passages, 1, __ATOMIC_SEQ_CST) != nth) return;
    log_line(LOG_WARN, "base", "fault", "point=%s passage=%llu", name, (unsigned long long)nth);
    (void)kill(getpid(), SIGKILL); /* no handler, no flush, no exit function: as a crash is */
    for (;;) (void)pause();
}
