/* SPDX-License-Identifier: Apache-2.0 */
/* guard.h - a way back out of a CHECK that failed, for code that lives in somebody else's process.
 *
 * A program ends where it finds itself wrong or without memory: nothing else is safe. A library must
 * not take its host along. So each of its calls, and each of its threads, sets up a guard first; a
 * failed CHECK, a failed mem_alloc or an altered shard below it then comes back here with a status
 * and a sentence, and the handle is not used any more (what it holds is not freed: nobody knows in
 * which state it is).
 *
 *   struct guard g;
 *   if (setjmp(g.at) != 0) return broken(s, &g);      behind the jump g.status and g.text are set
 *   guard_enter(&g);
 *   ...
 *   guard_leave(&g);
 *
 * Guards nest; each belongs to one thread. Without one the process ends, as before. */
#ifndef BASE_GUARD_H
#define BASE_GUARD_H

#include <setjmp.h>

#include "base/base.h"

struct guard {
    jmp_buf at;
    struct guard *outer;
    enum brg_status status;
    char text[240];
};
void guard_enter(struct guard *g);
void guard_leave(struct guard *g);
/* Where this thread has a guard: jumps to it. Otherwise it returns, and the caller ends the process. */
void guard_fall(enum brg_status status, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The program itself is the host: it wants the core dump. For the whole process, at its start. */
void guard_off(void);

#endif
