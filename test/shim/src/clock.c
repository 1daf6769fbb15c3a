/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c - a shared object for LD_PRELOAD that bends the clocks of one program.
 *
 * BERINGIA_CLOCK names the control file, read again whenever it changes. One clock a line:
 *
 *   realtime  OFFSET_SECONDS RATE      CLOCK_REALTIME (also _COARSE, TAI), gettimeofday, time
 *   monotonic OFFSET_SECONDS RATE      CLOCK_MONOTONIC (also _COARSE, _RAW)
 *   boottime  OFFSET_SECONDS RATE      CLOCK_BOOTTIME
 *
 * A clock runs at RATE from the moment the program first reads it or the file changes, and stands
 * OFFSET away from the true one: writing a new offset is a jump, by a day or by a second, forwards
 * or backwards, of the monotonic clock too, since a test may want what no kernel does. A new rate
 * bends the clock where it stands, without a jump.
 * Waits for a moment (clock_nanosleep with TIMER_ABSTIME, timed waits of pthread and semaphores,
 * timerfd) are translated to true time, so that they end when the bent clock shows that moment. Waits
 * for a length of time (poll, nanosleep, usleep) run in true time. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { CLOCKS = 3, CHECK_EVERY_NS = 1000000 };

static const clockid_t base_of[CLOCKS] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME};
static const char *const name_of[CLOCKS] = {"realtime", "monotonic", "boottime"};

struct bent {
    int64_t offset_ns; /* as asked for */
    double rate;
    int64_t since_ns,
        drift_ns; /* true time of the last change; what the rate had made until then */
};
static struct bent bent[CLOCKS] = {{0, 1, 0, 0}, {0, 1, 0, 0}, {0, 1, 0, 0}};
static struct timespec file_time;
static off_t file_bytes = -1;
static int64_t checked_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t true_ns(clockid_t clock) {
    struct timespec ts;
    syscall(SYS_clock_gettime, clock, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int64_t bent_ns(int which, int64_t now) {
    const struct bent *b = &bent[which];
    if (b->since_ns == 0) return now;
    double gain = (b->rate - 1) * (double)(now - b->since_ns);
    return now + b->offset_ns + b->drift_ns + (int64_t)gain;
}

static void change(int which, double offset_s, double rate) {
    struct bent *b = &bent[which];
    int64_t now = true_ns(base_of[which]);
    b->drift_ns = b->since_ns == 0 ? 0 : bent_ns(which, now) - now - b->offset_ns;
    b->since_ns = now;
    b->offset_ns = (int64_t)(offset_s * 1e9);
    b->rate = rate;
}

static void file_read(const char *path) {
    static char text[4096];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    long n = syscall(SYS_read, fd, text, sizeof(text) - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = '\0';
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char word[32];
        double offset_s = 0, rate = 1;
        if (sscanf(line, "%31s %lf %lf", word, &offset_s, &rate) < 2) continue;
        for (int i = 0; i < CLOCKS; i++) {
            if (strcmp(word, name_of[i]) == 0) change(i, offset_s, rate);
        }
    }
}

/* The file is looked at once in a true millisecond: clocks are read often. */
static void refresh(void) {
    const char *path = getenv("BERINGIA_CLOCK");
    struct stat st;
    int64_t now = true_ns(CLOCK_MONOTONIC);
    if (path == NULL || now - checked_ns < CHECK_EVERY_NS) return;
    checked_ns = now;
    if (stat(path, &st) != 0) return;
    if (st.st_size == file_bytes && st.st_mtim.tv_sec == file_time.tv_sec &&
        st.st_mtim.tv_nsec == file_time.tv_nsec) {
        return;
    }
    file_bytes = st.st_size;
    file_time = st.st_mtim;
    file_read(path);
}

static int which_of(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_TAI: return 0;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW: return 1;
    case CLOCK_BOOTTIME: return 2;
    default: return -1; /* CPU time is not bent */
    }
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *out) {
    int which = which_of(clock);
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (rc != 0 || which < 0) return rc;
    pthread_mutex_lock(&lock);
    refresh();
    int64_t ns = bent_ns(which, (int64_t)out->tv_sec * 1000000000 + out->tv_nsec);
    pthread_mutex_unlock(&lock);
    if (ns < 0) ns = 0;
    out->tv_sec = (time_t)(ns / 1000000000);
    out->tv_nsec = (long)(ns % 1000000000);
    return 0;
}

EXPORT int gettimeofday(struct timeval *out, void *zone) {
    struct timespec ts;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &ts);
    out->tv_sec = ts.tv_sec;
    out->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

EXPORT time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out != NULL) *out = ts.tv_sec;
    return ts.tv_sec;
}

/* ---- Waits for a moment -------------------------------------------------------------------- */

static int64_t apart(int64_t a, int64_t b) {
    return a > b ? a - b : b - a;
}

/* The true moment at which the bent clock will show *bent_at. Which clock a condition variable or a
 * timer goes by is not visible here: it is the one whose reading is nearest. */
static struct timespec true_moment(const struct timespec *bent_at, int which) {
    int64_t want = (int64_t)bent_at->tv_sec * 1000000000 + bent_at->tv_nsec;
    pthread_mutex_lock(&lock);
    refresh();
    if (which < 0) {
        which = 0;
        for (int i = 1; i < CLOCKS; i++) {
            if (apart(want, bent_ns(i, true_ns(base_of[i]))) <
                apart(want, bent_ns(which, true_ns(base_of[which])))) {
                which = i;
            }
        }
    }
    const struct bent *b = &bent[which];
    int64_t now = true_ns(base_of[which]);
    double left = (double)(want - bent_ns(which, now)) / (b->rate > 0.01 ? b->rate : 0.01);
    pthread_mutex_unlock(&lock);
    int64_t at = now + (int64_t)left;
    if (at < 0) at = 0;
    return (struct timespec){(time_t)(at / 1000000000), (long)(at % 1000000000)};
}

/* The next definition of a name; the detour is POSIX's own way round ISO C. */
#define NEXT(pointer, name) (*(void **)&(pointer) = dlsym(RTLD_NEXT, name))

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *ts,
                           struct timespec *rest) {
    struct timespec at = *ts;
    if ((flags & TIMER_ABSTIME) != 0 && which_of(clock) >= 0) at = true_moment(ts, which_of(clock));
    return syscall(SYS_clock_nanosleep, clock, flags, &at, rest) == 0 ? 0 : errno;
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *ts) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (next == NULL) *(void **)&next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (next == NULL) NEXT(next, "pthread_cond_timedwait"); /* other machines have one version */
    struct timespec at = true_moment(ts, -1);
    return next(c, m, &at);
}

EXPORT int pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
                                  const struct timespec *ts) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (next == NULL) NEXT(next, "pthread_cond_clockwait");
    struct timespec at = true_moment(ts, which_of(clock));
    return next(c, m, clock, &at);
}

EXPORT int sem_timedwait(sem_t *s, const struct timespec *ts) {
    static int (*next)(sem_t *, const struct timespec *);
    if (next == NULL) NEXT(next, "sem_timedwait");
    struct timespec at = true_moment(ts, 0);
    return next(s, &at);
}

EXPORT int sem_clockwait(sem_t *s, clockid_t clock, const struct timespec *ts) {
    static int (*next)(sem_t *, clockid_t, const struct timespec *);
    if (next == NULL) NEXT(next, "sem_clockwait");
    struct timespec at = true_moment(ts, which_of(clock));
    return next(s, clock, &at);
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *ts) {
    static int (*next)(pthread_mutex_t *, const struct timespec *);
    if (next == NULL) NEXT(next, "pthread_mutex_timedlock");
    struct timespec at = true_moment(ts, 0);
    return next(m, &at);
}

EXPORT int timerfd_settime(int fd, int flags, const struct itimerspec *new,
                           struct itimerspec *old) {
    struct itimerspec its = *new;
    int armed = new->it_value.tv_sec != 0 || new->it_value.tv_nsec != 0;
    if ((flags & TFD_TIMER_ABSTIME) != 0 && armed) its.it_value = true_moment(&new->it_value, -1);
    return (int)syscall(SYS_timerfd_settime, fd, flags, &its, old);
}
