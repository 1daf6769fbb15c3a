/* SPDX-License-Identifier: Apache-2.0 */
/* log_os.c - the shore of the log, and how the process ends when the program is wrong. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/log.h"

void log_os_stamp(char out[LOG_STAMP_BYTES]) {
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, LOG_STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, LOG_STAMP_BYTES - n, ".%03dZ", (int)(now.tv_nsec / NS_PER_MS));
}

static atomic_bool closed; /* seen once: for good */

void log_os_look(void) {
    if (fcntl(STDERR_FILENO, F_GETFD) < 0) atomic_store(&closed, true);
}

void log_os_write(const char *line, size_t n) {
    int keep = errno;
    if (atomic_load_explicit(&closed, memory_order_relaxed)) return;
    /* A log that cannot be written must not stop the training: the result is let go. */
    while (write(STDERR_FILENO, line, n) < 0 && errno == EINTR) {
    }
    errno = keep;
}

_Noreturn void check_failed(const char *cond, const char *file, int line) {
    char text[600], quoted[300];
    int n = snprintf(text, sizeof text, "lvl=error room=base ev=check_failed at=%s:%d cond=%s\n",
                     file, line, log_quote(cond, quoted, sizeof quoted));
    if (n > 0) log_os_write(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    guard_fall(BRG_E_INTERNAL,
               "a fault of the library: %s does not hold at %s:%d; please report it", cond, file,
               line);
    abort();
}
