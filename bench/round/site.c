/* SPDX-License-Identifier: Apache-2.0 */
/* site.c - a site of bench/round: the real library, and a trainer whose steps are time alone, as a GPU's are
 * for the processor beside it. Written against include/beringia.h, as anybody's trainer.
 *
 *   round_site --make FILE --elements N          weights of a run, safetensors
 *   round_site --hub URL --name A --data DIR --state DIR --elements N --step-ms X --rounds R [--blocking 1]
 *
 * A step takes X ms from its begin to its end; within it a slice of the weights moves, so that contributions
 * are real. Everything else in the loop is what Beringia costs: for each round, from one rebase to the next,
 *   exposed = wall - time in steps    cut, rebase: the parts of it in the two calls that touch the weights
 *   overrun = time in steps - steps * X    what a busy machine adds to a sleep; no part of exposed
 *   delay = steps between a cut and the rebase on the version that has it
 * are printed as one line of JSON. --blocking: the trainer waits from each cut to its rebase. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "beringia.h"

enum { SLICES = 32, COUNTED_MAX = 1 << 16 };

struct bench {
    const char *make;
    struct brg_options o;
    uint64_t elements, rounds;
    double step_s;
    bool blocking;
    struct brg_site *site;
    uint64_t random, steps; /* of all rounds */
    /* of this round */
    double began, stepped_s, cut_s, rebase_s, idle_s, cut_at;
    uint64_t first_step, cut_step;
};

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double until) {
    double left = until - now();
    if (!(left > 0)) return;
    struct timespec t = {.tv_sec = (time_t)left};
    t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
    (void)nanosleep(&t, NULL);
}

static float noise(struct bench *b, float size) {
    b->random ^= b->random << 13, b->random ^= b->random >> 7, b->random ^= b->random << 17;
    return size * ((float)(b->random >> 40) * 0x1p-23f - 1.0f);
}

static int make(struct bench *b) {
    char header[256];
    FILE *f = fopen(b->make, "wb");
    static float piece[1 << 16];
    int n = snprintf(header + 8, sizeof header - 8,
                     "{\"weights\":{\"dtype\":\"F32\",\"shape\":[%" PRIu64
                     "],\"data_offsets\":[0,%" PRIu64 "]}}",
                     b->elements, b->elements * 4);
    while (n % 8 != 0) header[8 + n++] = ' ';
    for (int i = 0; i < 8; i++) header[i] = (char)((uint64_t)n >> 8 * i);
    bool good = f && fwrite(header, 1, (size_t)n + 8, f) == (size_t)n + 8;
    for (uint64_t left = b->elements; good && left > 0;) {
        size_t count = left < 1 << 16 ? (size_t)left : 1 << 16;
        for (size_t i = 0; i < count; i++) piece[i] = noise(b, 0.05f);
        good = fwrite(piece, 4, count, f) == count;
        left -= count;
    }
    good = f && fclose(f) == 0 && good;
    if (!good) fprintf(stderr, "round_site: %s cannot be written\n", b->make);
    return good ? 0 : 1;
}

/* A slice moves by an AdamW-like amount; a vector's worth of work in SLICES steps. */
static void step(struct bench *b) {
    double begun = now(), until = begun + b->step_s;
    float *theta = brg_weights(b->site);
    uint64_t from = b->elements * (b->steps % SLICES) / SLICES;
    uint64_t to = b->elements * (b->steps % SLICES + 1) / SLICES;
    for (uint64_t i = from; i < to; i++) {
        uint32_t z = (uint32_t)(i * 2654435761u) ^ (uint32_t)b->random;
        theta[i] += ((float)(z >> 9) * 0x1p-22f - 1.0f) * 1e-4f;
    }
    (void)noise(b, 1);
    sleep_until(until);
    b->stepped_s += now() - begun;
    b->steps++;
}

static void round_begin(struct bench *b) {
    b->began = now();
    b->first_step = b->steps;
    b->stepped_s = b->cut_s = b->rebase_s = b->idle_s = b->cut_at = 0;
}

static void round_end(struct bench *b, const struct brg_figures *f) {
    double wall = now() - b->began;
    uint64_t steps = b->steps - b->first_step;
    printf(
        "{\"version\":%" PRIu64 ",\"wall_s\":%.3f,\"steps\":%" PRIu64
        ",\"exposed_s\":%.3f,\"overrun_s\":%.3f,\"cut_s\":%.3f,\"rebase_s\":%.3f,\"idle_s\":%.3f,"
        "\"delay_steps\":%" PRIu64 ",\"delay_s\":%.3f}\n",
        f->version, wall, steps, wall - b->stepped_s, b->stepped_s - (double)steps * b->step_s,
        b->cut_s, b->rebase_s, b->idle_s, b->steps - b->cut_step, now() - b->cut_at);
    (void)fflush(stdout);
    if (b->rounds > 0) b->rounds--;
    round_begin(b);
}

/* What changed, and how long it took; ends the round where the own contribution came back. */
static int sync_site(struct bench *b) {
    struct brg_figures before = {.struct_bytes = sizeof before};
    struct brg_figures after = {.struct_bytes = sizeof after};
    int changed = 0;
    (void)brg_status(b->site, &before);
    double began = now();
    int status = brg_sync(b->site, &changed);
    double took = now() - began;
    (void)brg_status(b->site, &after);
    if (changed & BRG_CHANGED_HANDED_IN) {
        b->cut_s += took;
        b->cut_at = began;
        b->cut_step = b->steps;
    } else if (changed & BRG_CHANGED_WEIGHTS) {
        b->rebase_s += took;
    }
    if (changed & BRG_CHANGED_RESET) fprintf(stderr, "round_site: the weights were reset\n");
    if (before.pending > 0 && after.pending == 0 && b->cut_at > 0) round_end(b, &after);
    return status;
}

static int train(struct bench *b) {
    static uint64_t picked[16];
    int status = BRG_GO;
    round_begin(b);
    while ((status == BRG_GO || status == BRG_WAIT) && b->rounds > 0) {
        uint64_t count = 0;
        struct brg_figures f = {.struct_bytes = sizeof f};
        double before = now();
        (void)brg_status(b->site, &f);
        bool wait = b->blocking && f.pending > 0;
        if (!wait)
            status = brg_take(b->site, b->o.batch_samples, (int64_t)20 * 1000 * 1000, picked, NULL,
                              &count);
        if (wait) sleep_until(before + 0.005);
        if (wait || status == BRG_WAIT) b->idle_s += now() - before;
        if (!wait && status == BRG_GO) {
            step(b);
            status = brg_step(b->site, count, 1, NULL);
        }
        if (status == BRG_GO || status == BRG_WAIT) status = sync_site(b);
    }
    return status;
}

static int run(struct bench *b) {
    char why[600] = "";
    int status = brg_open(&b->o, (int64_t)120e9, &b->site, why, sizeof why);
    if (status != BRG_GO) {
        fprintf(stderr, "round_site: %s: %s\n", brg_status_name(status), why);
        return status;
    }
    struct brg_tensor t = {.name = "weights", .dims = 1, .shape = {b->elements}};
    struct brg_trainer trainer = {
        .struct_bytes = sizeof trainer, .tensors = &t, .tensors_count = 1};
    status = brg_join(b->site, &trainer, (int64_t)600e9);
    if (status == BRG_GO) status = train(b);
    if (status > 0)
        fprintf(stderr, "round_site: %s: %s\n", brg_status_name(status), brg_why(b->site));
    return status; /* the bench is over: no hand-in, and no checkpoint of the end */
}

static bool option(struct bench *b, const char *name, const char *value) {
    if (strcmp(name, "--hub") == 0) return b->o.hub_url = value, true;
    if (strcmp(name, "--name") == 0) return b->o.site_name = value, true;
    if (strcmp(name, "--data") == 0) return b->o.data_dir = value, true;
    if (strcmp(name, "--state") == 0) return b->o.state_dir = value, true;
    if (strcmp(name, "--make") == 0) return b->make = value, true;
    char *end;
    double v = strtod(value, &end);
    if (*end != '\0' || !(v >= 0)) return false;
    if (strcmp(name, "--elements") == 0) return b->elements = (uint64_t)v, true;
    if (strcmp(name, "--rounds") == 0) return b->rounds = (uint64_t)v, true;
    if (strcmp(name, "--step-ms") == 0) return b->step_s = v / 1e3, true;
    if (strcmp(name, "--blocking") == 0) return b->blocking = v > 0, true;
    if (strcmp(name, "--checkpoint-s") == 0)
        return b->o.checkpoint_every_ns = (int64_t)(v * 1e9), true;
    return false;
}

int main(int argc, char **argv) {
    static struct bench b;
    brg_options_init(&b.o);
    b.random = 88172645463325252u;
    b.o.batch_samples = 1;
    b.o.checkpoint_every_ns =
        (int64_t)86400e9; /* a trainer's own checkpoints are no cost of a round */
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && option(&b, argv[i], argv[i + 1])) continue;
        fprintf(stderr, "round_site: %s is not understood; see the head of bench/round/site.c\n",
                argv[i]);
        return BRG_FAIL_USAGE;
    }
    if (b.elements == 0) return BRG_FAIL_USAGE;
    return b.make ? make(&b) : run(&b) > 0;
}
