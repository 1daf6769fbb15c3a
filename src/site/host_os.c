/* SPDX-License-Identifier: Apache-2.0 */
/* host_os.c - see host_os.h. */
#include "site/host_os.h"

#include <time.h>

static locale_t plain; /* "C"; 0 without memory for it: then the host's is as good as any */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void plain_make(void) {
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static locale_t plain_use(void) {
    (void)pthread_once(&once, plain_make);
    return uselocale(plain); /* 0 asks only */
}

static bool pipe_pending(void) {
    sigset_t now;
    return sigpending(&now) == 0 && sigismember(&now, SIGPIPE) == 1;
}

void host_enter(struct host *h) {
    sigset_t pipe;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &h->cancel);
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    h->pipe_pending = pipe_pending();
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &h->signals);
    h->locale = plain_use();
    (void)fegetenv(&h->floats);
    (void)fesetenv(FE_DFL_ENV);
}

void host_leave(const struct host *h) {
    (void)fesetenv(&h->floats);
    (void)uselocale(h->locale);
    if (!h->pipe_pending && pipe_pending()) { /* ours: nobody waits for it */
        sigset_t pipe;
        struct timespec at_once = {0};
        (void)sigemptyset(&pipe);
        (void)sigaddset(&pipe, SIGPIPE);
        (void)sigtimedwait(&pipe, NULL, &at_once);
    }
    (void)pthread_sigmask(SIG_SETMASK, &h->signals, NULL);
    int ours;
    (void)pthread_setcancelstate(h->cancel, &ours);
}

void host_own_thread(void) {
    (void)plain_use();
    (void)fesetenv(FE_DFL_ENV);
}
