/* SPDX-License-Identifier: Apache-2.0 */
/* guard.c - see guard.h. */
#include "base/guard.h"

#include <stdatomic.h>
#include <stdio.h>

static _Thread_local struct guard *guard_now;
static atomic_bool off; /* set once at the start of a program that wants to end instead */

void guard_enter(struct guard *g) {
    g->status = BRG_OK;
    g->text[0] = '\0';
    g->outer = guard_now;
    guard_now = g;
}

void guard_leave(struct guard *g) {
    guard_now = g->outer;
}

void guard_fall(enum brg_status status, const char *fmt, ...) {
    struct guard *g = guard_now;
    if (!g || atomic_load_explicit(&off, memory_order_relaxed)) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(g->text, sizeof g->text, fmt, args);
    va_end(args);
    g->status = status;
    guard_now = g->outer;
    longjmp(g->at, 1);
}

void guard_off(void) {
    atomic_store_explicit(&off, true, memory_order_relaxed);
}
