/* SPDX-License-Identifier: Apache-2.0 */
/* host_os.h - what the process that we are guests in may have set for itself, and we must not work under.
 *
 *   locale            a comma in numbers would be no JSON
 *   floating point    trapped exceptions would end the process, flushed denormals make other bits
 *   SIGPIPE           a connection or a log that went away is a status, not a death
 *   cancellation      a thread that ends in the middle would leave the site locked
 *
 * A door of the API sets all of them aside and puts them back as they were; a thread of the library's
 * own has them so for good (its signals are blocked anyway). Nothing of the process is changed. */
#ifndef SITE_HOST_OS_H
#define SITE_HOST_OS_H

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

struct host { /* of the calling thread, as it was */
    locale_t locale;
    fenv_t floats;
    sigset_t signals;
    bool pipe_pending;
    int cancel;
};
void host_enter(struct host *h);
void host_leave(const struct host *h);
void host_own_thread(void);

#endif
