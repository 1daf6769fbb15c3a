/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - finds a backend by its name. A new backend adds its open function to the list. */
#include "train/device.h"

#include <string.h>

#include "train/cpu/cpu.h"

const char *const OP_NAMES[OP_KINDS] = {"matmul forward",
                                        "matmul input grad",
                                        "matmul weight grad",
                                        "attention",
                                        "attention grad",
                                        "rotation",
                                        "norms",
                                        "swiglu",
                                        "cross-entropy",
                                        "embedding",
                                        "adamw",
                                        "other"};

const char *precision_name(enum precision p) {
    return p == PRECISION_BF16 ? "bf16" : "f32";
}

bool precision_parse(const char *word, enum precision *out) {
    if (strcmp(word, "f32") != 0 && strcmp(word, "bf16") != 0) return false;
    *out = word[0] == 'b' ? PRECISION_BF16 : PRECISION_F32;
    return true;
}

const char *device_name(size_t i) {
    static const char *const names[] = {"cpu-base", "cpu-avx2", "cpu-avx512"};
    return i < ARRAY_COUNT(names) ? names[i] : NULL;
}

enum brg_status device_open(const char *name, uint32_t threads, enum precision precision,
                            struct device **out, struct err *e) {
    if (!name || strcmp(name, "cpu") == 0 || strncmp(name, "cpu-", 4) == 0)
        return cpu_open(name && name[3] == '-' ? name + 4 : NULL, threads, precision, out, e);
    return err_set(e, BRG_E_CONFIG,
                   "device %.40s is unknown: use cpu, cpu-base, cpu-avx2 or cpu-avx512", name);
}

void device_close(struct device *d) {
    if (d) d->ops->close(d);
}
