/* SPDX-License-Identifier: Apache-2.0 */
/* random_messages.h - valid messages with random and extreme values, for property tests. */
#ifndef TEST_WIRE_RANDOM_MESSAGES_H
#define TEST_WIRE_RANDOM_MESSAGES_H

#include "wire/wire.h"

void random_request(struct prng *p, enum wire_kind kind, struct wire_request *out);
void random_answer(struct prng *p, enum wire_kind kind, enum wire_code code,
                   struct wire_answer *out);
void random_run(struct prng *p, struct wire_run *out);

#endif
