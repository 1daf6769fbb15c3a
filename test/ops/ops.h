/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h - what a device must pass: each operation against its formula in double, odd shapes, extremes.
 * Tolerances (relative, of a whole result in the 2-norm): values 3e-6, gradients 3e-5 in f32. */
#ifndef TEST_OPS_OPS_H
#define TEST_OPS_OPS_H

#include "../harness.h"

#include <math.h>
#include <string.h>

#include "train/device.h"

enum { OPS_B = 2, OPS_T = 256, OPS_HEADS = 4, OPS_D = 64, OPS_C = 512 }; /* the largest that come */

/* Calls body with each device that is built in and runs here, with 1 or 3 threads. */
void each_device(void (*body)(struct device *dev));
/* Gives it scratch for the shapes above; takes it. */
struct device *ops_bind(struct device *dev);
void ops_close(struct device *dev);

float *random_floats(struct prng *p, size_t n, double scale); /* gives (mem_free) */
/* |a - b| / |b|; 0 where both are 0. */
double distance_d(const float *a, const double *b, size_t n);

#endif
