/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - how fast a trainer's matrix products could be, and what its time went to. */
#ifndef TRAIN_MEASURE_H
#define TRAIN_MEASURE_H

#include "train/train.h"

struct measured {
    double seconds[OP_KINDS]; /* of the calling thread, since measure_reset */
};
void measure_reset(struct trainer *t);
void measure_take(const struct trainer *t, struct measured *out);
const char *measure_device(const struct trainer *t);
uint32_t measure_threads(const struct trainer *t);
typedef double measure_clock(void); /* seconds: the clock's, or this process' processor time */
/* FLOP/s of the device's matrix product, best of a few: over all products of one layer and the head at
 * the model's own shapes, each in its three forms; and of large square ones (n = 1024). Overwrites
 * activations and gradients. 0 where memory for the large ones is not to be had. */
double measure_own_shapes(struct trainer *t, measure_clock *now);
double measure_large(struct trainer *t, measure_clock *now);

#endif
