/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

static float *workspaces[2]; /* of the device under test, and of one that a test opens beside it */
static struct device *bound[2];

struct device *ops_bind(struct device *dev) {
    struct device_limits l = {.B = OPS_B,
                              .T = OPS_T,
                              .heads = OPS_HEADS,
                              .kv_heads = OPS_HEADS,
                              .D = OPS_D,
                              .R = (size_t)OPS_B * OPS_T,
                              .C = OPS_C};
    size_t slot = bound[0] ? 1 : 0;
    assert_null(bound[slot]);
    bound[slot] = dev;
    workspaces[slot] = dev->ops->alloc(dev, (size_t)dev->ops->workspace(dev, &l) * sizeof(float));
    assert_non_null(workspaces[slot]);
    dev->ops->bind(dev, &l, workspaces[slot]);
    return dev;
}

void ops_close(struct device *dev) {
    struct device_limits l = {.B = OPS_B,
                              .T = OPS_T,
                              .heads = OPS_HEADS,
                              .kv_heads = OPS_HEADS,
                              .D = OPS_D,
                              .R = (size_t)OPS_B * OPS_T,
                              .C = OPS_C};
    size_t slot = bound[0] == dev ? 0 : 1;
    dev->ops->release(dev, workspaces[slot], (size_t)dev->ops->workspace(dev, &l) * sizeof(float));
    bound[slot] = NULL;
    device_close(dev);
}

void each_device(void (*body)(struct device *dev)) {
    for (size_t i = 0; device_name(i); i++) {
        struct device *dev;
        struct err e = {0};
        if (device_open(device_name(i), i % 2 ? 3 : 1, PRECISION_F32, &dev, &e)) continue;
        print_message("device %s, %u threads\n", dev->name, dev->threads);
        body(ops_bind(dev));
        ops_close(dev);
    }
}

float *random_floats(struct prng *p, size_t n, double scale) {
    float *x = mem_alloc(n ? n : 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * prng_normal(p));
    return x;
}

double distance_d(const float *a, const double *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += b[i] * b[i];
    }
    return d == 0 ? 0 : sqrt(d / s);
}
