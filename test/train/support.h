/* SPDX-License-Identifier: Apache-2.0 */
/* support.h - what the trainer's tests share: golden models, random numbers, distances. */
#ifndef TEST_TRAIN_SUPPORT_H
#define TEST_TRAIN_SUPPORT_H

#include "../harness.h"

#include <math.h>
#include <string.h>

#include "base/os.h"
#include "train/trainer.h"

struct golden { /* test/golden/<name>: see make_qwen3.py */
    struct model_config model;
    struct tensors table;          /* canonical order */
    float *theta, *grad, *stepped; /* [P] */
    int32_t *ids;                  /* [rows][T+1] */
    uint32_t rows, T;
    double loss, norm, lr;
    struct adamw adamw;
};
void golden_load(const char *name, struct golden *g);
void golden_free(struct golden *g);

/* A small model of random shape; weights N(0, 0.25), norms about 1. */
struct model_config small_model(uint32_t seed);
void random_weights(const struct model_config *c, uint64_t seed, float *theta);
struct trainer *make_trainer(const struct model_config *c, uint32_t T, uint32_t batch,
                             uint32_t micro, uint32_t threads, const char *device);

float *random_floats(struct prng *p, size_t n, double scale); /* gives (mem_free) */
/* |a - b| / |b|; 0 where both are 0. */
double distance(const float *a, const float *b, size_t n);
double distance_d(const float *a, const double *b, size_t n);
/* Calls body for each device that is built in and runs here. */
void each_device(void (*body)(const char *device));

#endif
