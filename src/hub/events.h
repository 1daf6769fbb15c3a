/* SPDX-License-Identifier: Apache-2.0 */
/* events.h - private to the hub: what two statuses have in common. Pure. */
#ifndef HUB_EVENTS_H
#define HUB_EVENTS_H

#include "base/base.h"

/* Equal where two statuses differ in nothing but their clocks and counters of questions. */
uint64_t events_digest(const char *json, size_t n);

#endif
