/* SPDX-License-Identifier: Apache-2.0 */
/* counting_site.c - a site whose model counts: training sample s of epoch e adds 1 to parameter
 * e * positions + s, and nothing else happens. With the hub's outer.average=sum and the fp32 codec a run
 * that is complete must have 1 in every parameter, whatever crashed on the way: the model itself is the
 * proof, not the books about it. Written against include/beringia.h alone, as anybody's trainer.
 *
 *   counting_site --hub URL --name NAME --data DIR --state DIR [options]
 *     --batch N              samples of a step (4)          --step-ms X    length of a step (50)
 *     --checkpoint-ms X      between local checkpoints (500)  --timeout-ms X  of the network (2000)
 *     --time-limit-ms X      leave after this, as a job at its limit; 0: never
 *     --grace-ms X           for the last hand-in (10000)
 *     --crash-ms X           dies as by SIGKILL after a random time of this mean; 0: never
 *     --seed N               of the library and of the crash
 *     --progress FILE        lines "T EVENT SAMPLES" are appended: begin, joined, at (now and then), end
 *
 * Times in FILE are the machine's monotonic clock in milliseconds, read past any preloaded shim. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "beringia.h"

enum { BATCH_MAX = 4096, PROGRESS_MS = 250 };

struct counting {
    struct brg_options o;
    double step_ms, time_limit_ms, grace_ms, crash_ms;
    const char *progress;
    int progress_fd;
    struct brg_site *site;
    struct brg_run run;
    uint64_t samples;
    double began_ms, crash_at_ms, told_ms;
    uint64_t picked[BATCH_MAX];
    uint32_t epochs[BATCH_MAX];
};

static volatile sig_atomic_t stop_asked; /* the one global: what a signal handler may touch */
static volatile int cancel;

static void on_stop(int number) {
    (void)number;
    stop_asked = 1;
    cancel = 1;
}

/* ---- Time ---------------------------------------------------------------------------------------- */

static double now_ms(void) {
    struct timespec t = {0};
    (void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void sleep_ms(double ms) {
    struct timespec t = {.tv_sec = (time_t)(ms / 1e3)};
    t.tv_nsec = (long)((ms - (double)t.tv_sec * 1e3) * 1e6);
    if (ms > 0 && !stop_asked) (void)nanosleep(&t, NULL);
}

static uint64_t mix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void tell(struct counting *c, const char *event) {
    char line[96];
    c->told_ms = now_ms();
    int n = snprintf(line, sizeof line, "%.1f %s %" PRIu64 "\n", c->told_ms, event, c->samples);
    if (c->progress_fd >= 0 && write(c->progress_fd, line, (size_t)n) != n) c->progress_fd = -1;
}

/* ---- Training ------------------------------------------------------------------------------------ */

static int step(struct counting *c, uint64_t count) {
    float *theta = brg_weights(c->site);
    sleep_ms(c->step_ms);
    for (uint64_t i = 0; i < count; i++) theta[c->epochs[i] * c->run.positions + c->picked[i]] += 1;
    c->samples += count;
    return brg_step(c->site, count, 1, NULL);
}

static void look_at_the_clock(struct counting *c) {
    double now = now_ms();
    if (c->crash_at_ms > 0 && now >= c->crash_at_ms) {
        tell(c, "crash");
        (void)kill(getpid(), SIGKILL);
    }
    if (c->time_limit_ms > 0 && now - c->began_ms >= c->time_limit_ms) brg_drain(c->site);
    if (now - c->told_ms >= PROGRESS_MS) tell(c, "at");
}

static int train(struct counting *c) {
    int status = BRG_GO;
    while (status == BRG_GO || status == BRG_WAIT) {
        uint64_t count = 0;
        look_at_the_clock(c);
        status = brg_take(c->site, c->o.batch_samples, (int64_t)100 * 1000 * 1000, c->picked,
                          c->epochs, &count);
        if (status == BRG_GO) status = step(c, count);
        if (status != BRG_GO && status != BRG_WAIT) break;
        int s = brg_sync(c->site, NULL);
        if (s != BRG_GO) status = s;
    }
    return status;
}

static int complain(int status, const char *why) {
    fprintf(stderr, "counting_site: %s: %s\n", brg_status_name(status), why);
    return status;
}

static int join(struct counting *c) {
    c->run.struct_bytes = sizeof c->run;
    int status = brg_run(c->site, &c->run);
    if (status != BRG_GO) return complain(status, "no run");
    struct brg_tensor counts = {.name = "counts", .dims = 1};
    counts.shape[0] = c->run.epochs * c->run.positions;
    struct brg_trainer t = {.struct_bytes = sizeof t, .tensors = &counts, .tensors_count = 1};
    do {
        status = brg_join(c->site, &t, (int64_t)200 * 1000 * 1000);
        look_at_the_clock(c);
    } while (status == BRG_FAIL_TIMEOUT && !stop_asked);
    if (status == BRG_FAIL_TIMEOUT) return BRG_DRAIN;
    if (status > 0) return complain(status, brg_why(c->site));
    tell(c, "joined");
    return status;
}

static int run(struct counting *c) {
    char why[600] = "";
    tell(c, "begin");
    int status = brg_open(&c->o, -1, &c->site, why, sizeof why);
    if (status == BRG_DRAIN) return 0;
    if (status != BRG_GO) return complain(status, why);
    status = join(c);
    if (status == BRG_GO) status = train(c);
    if (status > 0) complain(status, brg_why(c->site));
    int closed = brg_close(c->site, (int64_t)(c->grace_ms * 1e6));
    tell(c, "end");
    return status > 0 ? status : closed;
}

/* ---- Arguments ----------------------------------------------------------------------------------- */

static bool number(const char *text, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(v >= 0) || v > 1e12) return false;
    *out = v;
    return true;
}

static bool take_option(struct counting *c, const char *name, const char *value) {
    double v = 0;
    if (strcmp(name, "hub") == 0) return c->o.hub_url = value, true;
    if (strcmp(name, "name") == 0) return c->o.site_name = value, true;
    if (strcmp(name, "data") == 0) return c->o.data_dir = value, true;
    if (strcmp(name, "state") == 0) return c->o.state_dir = value, true;
    if (strcmp(name, "progress") == 0) return c->progress = value, true;
    if (!number(value, &v)) return false;
    if (strcmp(name, "batch") == 0)
        c->o.batch_samples = v >= 1 && v <= BATCH_MAX ? (uint64_t)v : 0;
    else if (strcmp(name, "seed") == 0)
        c->o.seed = (uint64_t)v;
    else if (strcmp(name, "step-ms") == 0)
        c->step_ms = v;
    else if (strcmp(name, "checkpoint-ms") == 0)
        c->o.checkpoint_every_ns = (int64_t)(v * 1e6);
    else if (strcmp(name, "timeout-ms") == 0)
        c->o.timeout_ns = (int64_t)(v * 1e6);
    else if (strcmp(name, "time-limit-ms") == 0)
        c->time_limit_ms = v;
    else if (strcmp(name, "grace-ms") == 0)
        c->grace_ms = v;
    else if (strcmp(name, "crash-ms") == 0)
        c->crash_ms = v;
    else
        return false;
    return true;
}

static bool take_arguments(struct counting *c, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        bool fine = strncmp(argv[i], "--", 2) == 0 && i + 1 < argc;
        if (fine && take_option(c, argv[i] + 2, argv[i + 1])) continue;
        fprintf(stderr,
                "counting_site: %s is not understood; the head of counting_site.c says what is\n",
                argv[i]);
        return false;
    }
    return c->o.hub_url && c->o.site_name && c->o.data_dir && c->o.state_dir &&
           c->o.batch_samples > 0;
}

int main(int argc, char **argv) {
    static struct counting c; /* too large for a stack */
    brg_options_init(&c.o);
    c.o.batch_samples = 4;
    c.o.checkpoint_every_ns = (int64_t)500 * 1000 * 1000;
    c.o.timeout_ns = (int64_t)2000 * 1000 * 1000;
    c.o.data_trusted = 1;
    c.o.warmup_steps = 0; /* no ramp: the hub's bound on a delta counts the rates of its steps */
    c.o.cancel = &cancel;
    c.step_ms = 50;
    c.grace_ms = 10000;
    c.progress_fd = -1;
    if (!take_arguments(&c, argc, argv)) return BRG_FAIL_USAGE;
    if (c.progress)
        c.progress_fd = open(c.progress, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    c.began_ms = now_ms();
    uint64_t state = c.o.seed;
    double u = ((double)(mix(&state) >> 11) + 1) * 0x1p-53;
    if (c.crash_ms > 0) c.crash_at_ms = c.began_ms - log(u) * c.crash_ms;
    struct sigaction act = {.sa_handler = on_stop};
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGUSR1, &act, NULL);
    int status = run(&c);
    return status < 0 ? 0 : status;
}
