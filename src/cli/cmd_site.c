/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_site.c - beringia site: a site's training job with the native trainer.
 *
 * Everything that concerns the run goes through include/beringia.h, as it would in anybody's trainer;
 * this file is the example of how little a trainer has to know. Under mpirun it is rank 0's part; the
 * other ranks follow it through site_ranks.h. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/os.h"
#include "beringia.h"
#include "cli/cli.h"
#include "cli/site_memory.h"
#include "cli/site_ranks.h"
#include "cli/successor.h"
#include "train/train.h"

static const char HELP[] =
    "beringia site - take part in a run: train here, on leased samples\n"
    "\n"
    "  beringia site --hub URL --name NAME --data DIR --state DIR [options]\n"
    "\n"
    "  --hub URL            the hub's address, http://HOST:PORT or https://...; spool:DIR through "
    "a\n"
    "                       courier; bucket:s3://BUCKET/PREFIX through an object store "
    "(docs/s3.md)\n"
    "  --name NAME          this site's name in the run; one process at a time\n"
    "  --data DIR           the packed data set\n"
    "  --state DIR          local checkpoints and contributions; keep it from job to job\n"
    "  --batch N            samples of one optimizer step, over all ranks (default 8)\n"
    "  --batch-max N        the most that fit; a run with outer.cadence_by=batch then chooses the\n"
    "                       batch by this site's speed, from 1 to N (default: --batch, for good)\n"
    "  --micro-batch N      samples in memory at once, of a rank (default: its part of the batch)\n"
    "  --precision P        of the operands of matrix products: f32 (default) or bf16\n"
    "  --recompute          keep less in memory: run each layer again in backward\n"
    "  --threads N          worker threads of a rank (default: the processors of its process)\n"
    "  --mpi U              auto (default), yes, no: share the batch over the ranks of an MPI job\n"
    "  --rank-timeout T     longest wait for another rank within a step (default 10m)\n"
    "  --throttle F         compute only this share of the time, 0 < F <= 1 (plays a slower "
    "machine)\n"
    "  --time-limit T       stop in good order after this time: 30m, 11h\n"
    "  --grace T            longest wait for the last hand-in when stopping (default 25s)\n"
    "  --take-over T        where an older job still trains with this state: ask it to hand in and "
    "leave,\n"
    "                       and wait so long for it (default 0: end with status 7)\n"
    "  --checkpoint-every T work that a kill may cost (default 60s)\n"
    "  --memory DIR         keep the state of the last steps in memory too, in DIR (/dev/shm), and "
    "a\n"
    "                       copy on another node: a restart goes on from there. %r in DIR: the "
    "rank\n"
    "                       (default: $BERINGIA_MEMORY; without it nothing is kept)\n"
    "  --memory-generations N  states that are kept, 2 to 8 (default 2)\n"
    "  --memory-every N     optimizer steps from one state to the next (default 1)\n"
    "  --timeout T          the one setting behind all network time limits (default 30s)\n"
    "  --token FILE         this site's token, a file with mode 0600; else "
    "$BERINGIA_TOKEN_FILE, $BERINGIA_TOKEN\n"
    "  --ca FILE            the hub's CA, PEM; else $BERINGIA_CA, else the system's\n"
    "  --fabric LABEL       where this site stands, for beringia plan --topology: up to three "
    "words,\n"
    "                       coarse to fine, as in europe/alder (default: $BERINGIA_FABRIC)\n"
    "  --steps N            stop in good order after N optimizer steps\n"
    "  --trust-data         do not hash the shards at the start\n"
    "  --seed N             of jitter and names (default: from the system)\n"
    "  --log-level L        error warn info debug trace (default info)\n"
    "\n"
    "SIGTERM, SIGUSR1 and SIGINT end it in good order: it hands in what it has, saves, and exits "
    "with 0.\n"
    "Start it again with the same --state to go on: its leases stay its own, until another site "
    "wants them.\n"
    "Exit status 0 also when the run is complete; see docs/exit-status.md for the others.\n"
    "\n"
    "examples\n"
    "  beringia site --hub http://localhost:8787 --name a --data data/bytes --state site-a\n"
    "  beringia site --hub https://hub.example.org --name lumi --data data/bpe --state "
    "$SCRATCH/run1 \\\n"
    "      --batch 64 --micro-batch 8 --time-limit 11h30m --token ~/.config/beringia/token\n"
    "  srun --mpi=pmix beringia site --hub https://hub.example.org --name lumi --data data/bpe \\\n"
    "      --state $SCRATCH/run1 --batch 512 --token ~/.config/beringia/token\n";

enum { NONFINITE_MAX = 3 };
#define SUCCESSOR_LOOK_NS ((time_ns)2 * NS_PER_S)

struct site_args {
    struct brg_options o;
    uint64_t batch, batch_max, micro, threads, steps_max, generations, memory_every;
    const char *memory_dir; /* NULL: none */
    double throttle;
    time_ns time_limit, grace, rank_timeout, take_over;
    enum dp_use mpi;
    enum precision precision;
    bool recompute;
};

struct job { /* one training under way */
    const struct site_args *args;
    struct brg_site *site;
    struct ranks ranks; /* this one's part, and those of others where there are some */
    struct tensors table;
    struct brg_run run;
    uint64_t *samples;
    uint64_t counters[1]; /* AdamW's step count */
    uint32_t nonfinite;
    struct site_memory memory;
    bool busy; /* the last result's */
    time_ns began, looked,
        stepping_ns; /* stepping includes the throttle: a slower machine steps slowly */
    uint64_t steps;
};

static volatile sig_atomic_t stop_asked; /* the one thing a signal handler may touch */

static void on_signal(int sig) {
    (void)sig;
    stop_asked = 1;
}

static void signals_install(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    a.sa_flags = (int)SA_RESETHAND; /* the second Ctrl-C ends it at once */
    sigaction(SIGINT, &a, NULL);
}

static int fail(int status, const char *text) {
    fprintf(stderr, "beringia site: %s (%s: %s)\n", text, brg_status_name(status),
            brg_status_sentence(status));
    return status;
}

/* ---- Building ------------------------------------------------------------------------------------ */

static enum brg_status trainer_build(struct job *j, struct err *e) {
    struct brg_data *data = NULL;
    struct brg_data_facts facts = {.struct_bytes = sizeof facts};
    char why[300] = "";
    struct rank_setup setup = {.seq_len = j->run.seq_len,
                               .batch = j->args->batch_max,
                               .adamw = {.beta1 = j->run.beta1,
                                         .beta2 = j->run.beta2,
                                         .eps = j->run.eps,
                                         .weight_decay = j->run.weight_decay,
                                         .clip = j->run.clip},
                               .optimizer = j->run.optimizer,
                               .muon = {j->run.muon_momentum, j->run.muon_lr_ratio}};
    bool muon = setup.optimizer == OPTIMIZER_MUON;
    if (setup.optimizer > OPTIMIZER_MUON ||
        (muon && !(setup.muon.lr_ratio > 0 && setup.muon.momentum >= 0 && setup.muon.momentum < 1)))
        return err_set(e, BRG_E_CONFIG,
                       "the run's optimizer number %" PRIu64
                       " is not known here, or its settings are none: take the hub's version of "
                       "this program",
                       setup.optimizer);
    if (brg_data_open(j->args->o.data_dir, 1, &data, why, sizeof why) != BRG_GO ||
        brg_data_facts(data, &facts) != BRG_GO)
        return err_set(e, BRG_E_MANIFEST, "%s", why);
    memcpy(setup.fingerprint.v, facts.fingerprint, sizeof setup.fingerprint.v);
    brg_data_close(data);
    snprintf(setup.site, sizeof setup.site, "%s", j->args->o.site_name);
    if (brg_run_id(j->site, setup.run.v) != BRG_GO)
        return err_set(e, BRG_E_INTERNAL, "%s", brg_why(j->site));
    TRY(ranks_setup(&j->ranks, &setup, brg_model_json(j->site), e));
    model_tensors(&j->ranks.model, &j->table);
    j->samples = mem_alloc(j->args->batch_max, sizeof *j->samples);
    return BRG_OK;
}

static const char *from_where(const struct job *j, const struct brg_figures *f) {
    if (j->memory.from) return j->memory.from;
    return f->steps > 0 ? "disk" : "hub";
}

static int join(struct job *j) {
    AUTO_FREE struct brg_tensor *tensors = mem_alloc(j->table.count, sizeof *tensors);
    for (size_t i = 0; i < j->table.count; i++) {
        tensors[i].name = j->table.v[i].name;
        tensors[i].dims = j->table.v[i].dims;
        memcpy(tensors[i].shape, j->table.v[i].shape, sizeof tensors[i].shape);
    }
    struct trainer *trainer = j->ranks.trainer;
    uint64_t P = trainer_parameters(trainer);
    bool alone = dp_ranks(j->ranks.net) ==
                 1; /* otherwise the moments lie in parts with the ranks */
    /* The names keep a checkpoint from being read by the other optimizer, to which it means nothing. */
    bool muon = j->ranks.setup.optimizer == OPTIMIZER_MUON;
    const struct brg_array arrays[] = {
        [MOMENT_M] = {muon ? "muon.m" : "adamw.m", alone ? trainer_m(trainer) : NULL, P},
        [MOMENT_V] = {muon ? "muon.v" : "adamw.v", alone ? trainer_v(trainer) : NULL, P}};
    struct brg_trainer t = {.struct_bytes = sizeof t,
                            .tensors = tensors,
                            .tensors_count = j->table.count,
                            .weights = trainer_theta(trainer),
                            .arrays = arrays,
                            .arrays_count = ARRAY_COUNT(arrays),
                            .counters = j->counters,
                            .counters_count = ARRAY_COUNT(j->counters),
                            .gradients = !muon,
                            .move_array = ranks_move,
                            .move_user = &j->ranks};
    int status = brg_join(j->site, &t, -1);
    if (status != BRG_GO) return status;
    trainer_steps_set(trainer, j->counters[0]);
    ranks_weights(&j->ranks);
    struct brg_figures f = {.struct_bytes = sizeof f};
    brg_status(j->site, &f);
    log_line(LOG_INFO, "site", "resumed", "from=%s steps=%" PRIu64 " recall_s=%.3f seconds=%.3f",
             from_where(j, &f), f.steps, j->memory.recall_s,
             (double)(os_now() - j->began) / NS_PER_S);
    AUTO_BUF struct buf memory = {.bytes_max = 1 << 12};
    trainer_memory(trainer, &memory);
    printf("site %s: memory %s\n", j->args->o.site_name, buf_cstr(&memory));
    printf("site %s: joined, version %" PRIu64 ", %" PRIu64 " global tokens, %" PRIu64
           " parameters, batch %" PRIu64 " x %" PRIu64 " tokens, %u rank%s\n",
           j->args->o.site_name, f.version, f.global_tokens, P, j->args->batch, j->run.seq_len,
           dp_ranks(j->ranks.net), alone ? "" : "s");
    fflush(stdout);
    return BRG_GO;
}

/* ---- Training ------------------------------------------------------------------------------------ */

static int fill(void *user, uint64_t sample, int32_t *tokens) {
    return brg_sample(user, sample, tokens);
}

/* One optimizer step over these samples; then the hub's library is told. */
static int step(struct job *j, uint64_t count) {
    struct err e = {0};
    struct rank_result result = {0};
    bool gradient = brg_synchronous(j->site) == BRG_SYNCHRONOUS;
    enum brg_status s = ranks_step(&j->ranks, j->samples, count, gradient, brg_lr(j->site), fill,
                                   j->site, &result, &e);
    if (result.stop) brg_drain(j->site); /* some other rank got the signal */
    j->busy = result.busy;
    double loss = result.loss;
    if (s != BRG_OK && s != BRG_E_NONFINITE) return fail((int)s, e.text);
    if (s == BRG_OK) {
        j->counters[0] = trainer_steps(j->ranks.trainer);
        j->nonfinite = 0;
        if (++j->steps == 1)
            log_line(LOG_INFO, "site", "first_step", "seconds=%.3f",
                     (double)(os_now() - j->began) / NS_PER_S);
        return gradient ? brg_gradient(j->site, count, loss, trainer_grad(j->ranks.trainer))
                        : brg_step(j->site, count, loss, NULL);
    }
    /* The update changed nothing: the samples are listed as skipped (S6). */
    log_line(LOG_ERROR, "site", "nonfinite",
             "step=%" PRIu64 " samples=%" PRIu64 " first_sample=%" PRIu64 " last_sample=%" PRIu64
             " loss=%g in_row=%u",
             j->counters[0] + 1, count, j->samples[0], j->samples[count - 1], loss,
             j->nonfinite + 1);
    int status = brg_step(j->site, count, 0, "nonfinite");
    if (++j->nonfinite < NONFINITE_MAX) return status;
    return fail(BRG_FAIL_NONFINITE,
                "the loss or gradient of three steps in a row is not finite; their "
                "samples are named above. Lower the learning rate, or look at the data.");
}

/* Sleeps so that computing takes only the share F of the time; a signal ends the sleep. */
static void throttle(const struct job *j, time_ns worked) {
    double f = j->args->throttle;
    if (f >= 1) return;
    time_ns rest = (time_ns)((double)worked * (1 - f) / f);
    struct timespec t = {.tv_sec = rest / NS_PER_S, .tv_nsec = rest % NS_PER_S};
    if (!stop_asked) nanosleep(&t, NULL);
}

static bool limit_reached(struct job *j) {
    const struct site_args *a = j->args;
    if (os_now() - j->looked >= SUCCESSOR_LOOK_NS) {
        j->looked = os_now();
        if (successor_waits(a->o.state_dir)) return true;
    }
    return (a->time_limit > 0 && os_now() - j->began >= a->time_limit) ||
           (a->steps_max > 0 && j->steps >= a->steps_max);
}

/* The run's wish, where this site has room to follow one. */
static uint64_t batch_now(const struct job *j) {
    struct brg_figures f = {.struct_bytes = sizeof f};
    const struct site_args *a = j->args;
    if (a->batch_max == a->batch || brg_status(j->site, &f) != BRG_GO || f.samples_target == 0)
        return a->batch;
    return f.samples_target < a->batch_max ? f.samples_target : a->batch_max;
}

static int train(struct job *j) {
    int status = BRG_GO;
    time_ns joined = os_now();
    struct rank_result word;
    while (status == BRG_GO || status == BRG_WAIT) {
        uint64_t count = 0, before_steps = j->steps;
        if (limit_reached(j)) brg_drain(j->site);
        status = brg_take(j->site, batch_now(j), NS_PER_S, j->samples, NULL, &count);
        if (status == BRG_GO) {
            time_ns before = os_now();
            status = step(j, count);
            if (status == BRG_E_LIMIT) status = BRG_GO; /* logged; its samples come again */
            throttle(j, os_now() - before);
            j->stepping_ns += os_now() - before;
        } else if (status == BRG_WAIT) {
            ranks_ping(&j->ranks, &word);
            if (word.stop) brg_drain(j->site);
            j->busy = word.busy;
        }
        if (status == BRG_GO || status == BRG_WAIT) {
            int changed = 0, s = brg_sync(j->site, &changed);
            if (s != BRG_GO) status = s;
            if (changed & BRG_CHANGED_WEIGHTS) ranks_weights(&j->ranks);
            if (status == BRG_GO || status == BRG_WAIT)
                site_memory_next(&j->memory, j->steps - before_steps, changed != 0, j->busy);
        }
    }
    /* What was not spent in steps went to waiting for leases, to cuts, rebases and checkpoints. */
    log_line(LOG_INFO, "site", "summary", "joined_s=%.3f steps_s=%.3f steps=%" PRIu64,
             (double)(os_now() - joined) / NS_PER_S, (double)j->stepping_ns / NS_PER_S, j->steps);
    if (status == BRG_DRAIN || status == BRG_COMPLETE) return BRG_GO;
    if (status != BRG_FAIL_NONFINITE) fail(status, brg_why(j->site));
    return status;
}

/* Opens the site; where an older job still has the state, asks it to leave and waits for it. */
static int open_site(struct job *j, char *why, size_t cap) {
    const struct site_args *a = j->args;
    const struct timespec pause = {.tv_nsec = 200 * NS_PER_MS};
    for (time_ns until = os_now() + a->take_over;;) {
        int status = brg_open(&a->o, -1, &j->site, why, cap);
        if (status == BRG_GO) successor_clear(a->o.state_dir);
        if (status != BRG_FAIL_BUSY || os_now() >= until) return status;
        if (stop_asked) return BRG_DRAIN;
        successor_ask(a->o.state_dir);
        nanosleep(&pause, NULL);
    }
}

/* Rank 0, or the only process. */
static int lead(struct job *j) {
    const struct site_args *a = j->args;
    char why[600] = "";
    struct err e = {0};
    int status = open_site(j, why, sizeof why);
    if (status == BRG_DRAIN)
        return BRG_GO; /* asked to stop before the hub was there: nothing to hand in */
    if (status != BRG_GO) return fail(status, why);
    status = brg_run(j->site, &j->run);
    if (status == BRG_GO) status = (int)trainer_build(j, &e);
    if (status == BRG_GO) {
        j->memory.site = j->site;
        status = (int)site_memory_begin(&j->memory, j->counters, &e);
    }
    if (status != BRG_GO) fail(status, e.text);
    if (status == BRG_GO) {
        status = join(j);
        if (status > 0) fail(status, brg_why(j->site));
    }
    if (status == BRG_GO) status = train(j);
    int closed = brg_close(j->site, a->grace); /* saves: the other ranks are still needed */
    if (status <= 0) status = closed;
    if (closed == BRG_FAIL_TIMEOUT)
        fprintf(
            stderr,
            "beringia site: the last work could not be handed in within the grace; it is in %s, "
            "start again with it\n",
            a->o.state_dir);
    return status;
}

static int run(const struct site_args *a) {
    struct err e = {0};
    struct rank_words words = {.data_dir = a->o.data_dir,
                               .micro = a->micro,
                               .threads = a->threads,
                               .precision = a->precision,
                               .recompute = a->recompute,
                               .memory_dir = a->memory_dir,
                               .memory_generations = (uint32_t)a->generations};
    struct job j = {.args = a,
                    .began = os_now(),
                    .run = {.struct_bytes = sizeof j.run},
                    .memory = {.name = a->o.site_name, .every = a->memory_every},
                    .ranks = {.words = &words, .stop = &stop_asked}};
    j.memory.ranks = &j.ranks;
    if (dp_open(a->mpi, a->rank_timeout, &j.ranks.net, &e) != BRG_OK)
        return fail((int)e.status, e.text);
    signals_install(); /* after MPI, which may have handlers of its own */
    int status;
    if (dp_rank(j.ranks.net) == 0) {
        status = lead(&j);
        site_memory_end(&j.memory);
        /* In good order all of it is handed in or in the local checkpoint, and memory is others' to use. */
        ranks_end(&j.ranks, status, status == BRG_GO);
    } else {
        status = ranks_follow(&j.ranks);
    }
    ranks_fini(&j.ranks);
    dp_close(j.ranks.net);
    tensors_fini(&j.table);
    mem_free(j.samples);
    return status;
}

/* ---- Arguments ----------------------------------------------------------------------------------- */

enum {
    OPT_HUB = 1,
    OPT_NAME,
    OPT_DATA,
    OPT_STATE,
    OPT_BATCH,
    OPT_BATCH_MAX,
    OPT_MICRO,
    OPT_THREADS,
    OPT_THROTTLE,
    OPT_TIME_LIMIT,
    OPT_GRACE,
    OPT_TAKE_OVER,
    OPT_CHECKPOINT,
    OPT_TIMEOUT,
    OPT_TOKEN,
    OPT_CA,
    OPT_FABRIC,
    OPT_STEPS,
    OPT_TRUST,
    OPT_SEED,
    OPT_LOG_LEVEL,
    OPT_MPI,
    OPT_RANK_TIMEOUT,
    OPT_PRECISION,
    OPT_RECOMPUTE,
    OPT_MEMORY,
    OPT_GENERATIONS,
    OPT_MEMORY_EVERY,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"hub", required_argument, NULL, OPT_HUB},
    {"name", required_argument, NULL, OPT_NAME},
    {"data", required_argument, NULL, OPT_DATA},
    {"state", required_argument, NULL, OPT_STATE},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"batch-max", required_argument, NULL, OPT_BATCH_MAX},
    {"micro-batch", required_argument, NULL, OPT_MICRO},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"recompute", no_argument, NULL, OPT_RECOMPUTE},
    {"throttle", required_argument, NULL, OPT_THROTTLE},
    {"time-limit", required_argument, NULL, OPT_TIME_LIMIT},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"take-over", required_argument, NULL, OPT_TAKE_OVER},
    {"checkpoint-every", required_argument, NULL, OPT_CHECKPOINT},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"token", required_argument, NULL, OPT_TOKEN},
    {"ca", required_argument, NULL, OPT_CA},
    {"fabric", required_argument, NULL, OPT_FABRIC},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"trust-data", no_argument, NULL, OPT_TRUST},
    {"seed", required_argument, NULL, OPT_SEED},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"mpi", required_argument, NULL, OPT_MPI},
    {"rank-timeout", required_argument, NULL, OPT_RANK_TIMEOUT},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"memory-generations", required_argument, NULL, OPT_GENERATIONS},
    {"memory-every", required_argument, NULL, OPT_MEMORY_EVERY},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool count(const char *s, uint64_t max, uint64_t *out) {
    uint64_t v;
    if (!parse_u64(s, &v) || v == 0 || v > max) return false;
    *out = v;
    return true;
}

static bool duration(const char *s, time_ns *out) {
    time_ns v;
    if (!parse_duration(s, &v) || v <= 0) return false;
    *out = v;
    return true;
}

static bool take_option(struct site_args *a, int option, const char *value) {
    enum log_level level;
    double f;
    switch (option) {
    case OPT_HUB: a->o.hub_url = value; return true;
    case OPT_NAME: a->o.site_name = value; return true;
    case OPT_DATA: a->o.data_dir = value; return true;
    case OPT_STATE: a->o.state_dir = value; return true;
    case OPT_BATCH: return count(value, 4096, &a->batch);
    case OPT_BATCH_MAX: return count(value, 4096, &a->batch_max);
    case OPT_MICRO: return count(value, 4096, &a->micro);
    case OPT_THREADS: return count(value, 1024, &a->threads);
    case OPT_PRECISION: return precision_parse(value, &a->precision);
    case OPT_RECOMPUTE: a->recompute = true; return true;
    case OPT_THROTTLE:
        if (!parse_f64(value, &f) || !(f > 0 && f <= 1)) return false;
        a->throttle = f;
        return true;
    case OPT_TIME_LIMIT: return duration(value, &a->time_limit);
    case OPT_GRACE: return duration(value, &a->grace);
    case OPT_TAKE_OVER: return duration(value, &a->take_over);
    case OPT_CHECKPOINT: return duration(value, &a->o.checkpoint_every_ns);
    case OPT_TIMEOUT: return duration(value, &a->o.timeout_ns);
    case OPT_TOKEN: a->o.token_file = value; return true;
    case OPT_CA: a->o.ca_file = value; return true;
    case OPT_FABRIC: a->o.fabric = value; return true;
    case OPT_STEPS: return count(value, UINT32_MAX, &a->steps_max);
    case OPT_MPI: return dp_use_parse(value, &a->mpi);
    case OPT_RANK_TIMEOUT: return duration(value, &a->rank_timeout);
    case OPT_MEMORY: a->memory_dir = *value ? value : NULL; return true;
    case OPT_GENERATIONS:
        return count(value, MEMORY_GENERATIONS_MAX, &a->generations) &&
               a->generations >= MEMORY_GENERATIONS_MIN;
    case OPT_MEMORY_EVERY: return count(value, UINT32_MAX, &a->memory_every);
    case OPT_TRUST: a->o.data_trusted = 1; return true;
    case OPT_SEED: return count(value, UINT64_MAX, &a->o.seed);
    case OPT_LOG_LEVEL:
        if (!log_level_parse(value, &level)) return false;
        log_level_set(level);
        return true;
    default: return false;
    }
}

static int usage(const char *what, const char *value) {
    fprintf(stderr, "beringia site: %s%s%.200s; see beringia site --help\n", what,
            *value ? " " : "", value);
    return BRG_E_USAGE;
}

int cmd_site(int argc, char **argv) {
    struct site_args a = {.batch = 8,
                          .throttle = 1,
                          .generations = MEMORY_GENERATIONS_MIN,
                          .memory_every = 1,
                          .grace = 25 * (time_ns)NS_PER_S,
                          .rank_timeout = 600 * (time_ns)NS_PER_S};
    brg_options_init(&a.o);
    int option, index = 0;
    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", OPTIONS, &index)) != -1) {
        if (option == OPT_HELP || option == 'h') {
            fputs(HELP, stdout);
            return BRG_OK;
        }
        if (option == '?' || option == ':') return usage("not understood:", argv[optind - 1]);
        if (!take_option(&a, option, optarg)) {
            char what[80];
            snprintf(what, sizeof what, "--%s cannot be", OPTIONS[index].name);
            return usage(what, optarg ? optarg : "");
        }
    }
    if (optind < argc) return usage("not understood:", argv[optind]);
    if (!a.o.hub_url || !a.o.site_name || !a.o.data_dir || !a.o.state_dir)
        return usage("--hub, --name, --data and --state are needed", "");
    const char *memory = getenv("BERINGIA_MEMORY");
    if (!a.memory_dir && memory && *memory) a.memory_dir = memory;
    if (a.batch_max == 0) a.batch_max = a.batch;
    if (a.batch_max < a.batch) return usage("--batch-max is smaller than --batch", "");
    if (a.micro > a.batch) return usage("--micro-batch is larger than --batch", "");
    a.o.batch_samples = a.batch;
    a.o.cancel = &stop_asked;
    guard_off(); /* this process is the library's own: a fault of it wants the core dump */
    return run(&a);
}
