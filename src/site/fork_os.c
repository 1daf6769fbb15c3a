/* SPDX-License-Identifier: Apache-2.0 */
/* fork_os.c - what a fork of the host process must not take along.
 *
 * A lock on a file belongs to the open file, which a child made by fork() shares. A data loader's worker
 * that outlives a killed trainer would keep the state directory locked, and the next job would find
 * it busy. So a child closes its copies, at once; the parent's lock stays as it was. Everything else
 * of a site is of no use in a child, and each call says so (api_os.c). */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "site/api_os.h"

enum { LOCKS_MAX = 64 };                   /* sites of one process; more are not looked after */
static atomic_int locks_plus_1[LOCKS_MAX]; /* a file descriptor + 1; 0: free */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) {
    for (int i = 0; i < LOCKS_MAX; i++) {
        int fd = atomic_exchange(&locks_plus_1[i], 0) - 1;
        if (fd >= 0) (void)close(fd);
    }
}

static void handler_install(void) {
    (void)pthread_atfork(NULL, NULL, in_child); /* without memory for it: as if it was not there */
}

void site_lock_keep(int fd) {
    (void)pthread_once(&once, handler_install);
    for (int i = 0; i < LOCKS_MAX; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&locks_plus_1[i], &none, fd + 1)) return;
    }
}

void site_lock_forget(int fd) {
    for (int i = 0; i < LOCKS_MAX; i++) {
        int mine = fd + 1;
        if (atomic_compare_exchange_strong(&locks_plus_1[i], &mine, 0)) return;
    }
}
