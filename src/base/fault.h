/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h - named places where a test may end the process as SIGKILL does, at the N-th passage.
 *
 *   BERINGIA_FAULT="hub.after_append:3" beringia hub run      dies at the third passage
 *
 * Always compiled in: without the variable a passage costs one load and one branch. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include "base/base.h"

extern bool fault_off; /* true once the variable was looked for and not found */
void fault_passage(const char *name);
#define FAULT(name)                                                                                \
    do {                                                                                           \
        if (!__atomic_load_n(&fault_off, __ATOMIC_RELAXED)) fault_passage(name);                   \
    } while (0)

#endif
