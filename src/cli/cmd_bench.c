/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench.c - beringia bench train: how fast the native trainer is here, and where the time goes.
 *
 * What a step could cost at least is what its matrix products cost; so their rate is measured in the
 * same process, before and after the steps, and the trainer's FLOP/s are told as a share of it. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/os.h"
#include "cli/cli.h"
#include "train/measure.h"

static const char HELP[] =
    "beringia bench - measure this machine\n"
    "\n"
    "  beringia bench train --model config.json [options]\n"
    "\n"
    "  --model MODEL        config.json of a Qwen3 model, or a name in share/models (tiny, demo)\n"
    "  --seq-len N          positions of a sample (default 256)\n"
    "  --batch N            samples a step (default 8)\n"
    "  --micro-batch N      samples in memory at once (default: the batch)\n"
    "  --threads N          worker threads (default: the processors of this process)\n"
    "  --precision P        of the operands of matrix products: f32 (default) or bf16\n"
    "  --recompute          keep only the inputs of layers and run them again in backward\n"
    "  --device D           cpu (default), cpu-base, cpu-avx2, cpu-avx512\n"
    "  --steps N            measured steps (default 8), after one that is not measured\n"
    "  --weights DIR        first weights (default: random)\n"
    "  --ids FILE           token ids, 32-bit little-endian, (seq-len + 1) a sample, repeated as\n"
    "                       needed (default: random)\n"
    "\n"
    "Prints the memory that was planned, tokens and FLOP a second of the fastest and the median "
    "step,\n"
    "the share of the matrix-product rate that was measured beside (large: n = 1024; own: the "
    "shapes\n"
    "of this model), the time of each kind of operation, and one last line key=value. first_loss "
    "is\n"
    "the loss of the first step, before any update. cpu_s is processor time a step, best: on a\n"
    "machine with other work it tells more than the clock.\n"
    "\n"
    "examples\n"
    "  beringia bench train --model share/models/demo.json\n"
    "  beringia bench train --model share/models/qwen3-0.6b.json --batch 1 --steps 1\n";

struct bench_args {
    const char *model, *weights, *ids, *device;
    uint32_t seq_len, batch, micro, threads, steps;
    enum precision precision;
    bool recompute;
};

enum { STEPS_MAX = 10000, IDS_BYTES_MAX = 1 << 30 };

struct bench {
    const struct bench_args *args;
    struct model_config model;
    struct trainer *trainer;
    int32_t *tokens; /* [rows_count][T+1] */
    size_t rows_count, at;
    double *wall, *cpu; /* seconds of each step */
    double first_loss, last_loss;
    double large, own, large_cpu, own_cpu; /* by the clock; by processor time of all threads */
    struct measured times;
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

static enum brg_status read_ids(struct bench *b, struct err *e) {
    const struct bench_args *a = b->args;
    size_t width = (size_t)a->seq_len + 1;
    AUTO_BUF struct buf file = {.bytes_max = IDS_BYTES_MAX};
    if (a->ids) TRY(os_read_file(a->ids, IDS_BYTES_MAX, &file, e));
    b->rows_count = a->ids ? file.bytes_count / 4 / width : a->batch;
    if (b->rows_count == 0)
        return err_set(e, BRG_E_SHARD, "%s holds %zu bytes: a sample of --seq-len %u takes %zu",
                       a->ids, file.bytes_count, a->seq_len, 4 * width);
    b->tokens = mem_alloc(b->rows_count * width, sizeof *b->tokens);
    struct prng p;
    prng_seed(&p, 1);
    for (size_t i = 0; i < b->rows_count * width; i++) {
        uint32_t id = a->ids ? get_le32(file.data + 4 * i)
                             : (uint32_t)prng_below(&p, b->model.vocab_size);
        if (id >= b->model.vocab_size)
            return err_set(e, BRG_E_SHARD, "%s: id %zu is %u, vocab_size of %s is %u", a->ids, i,
                           id, a->model, b->model.vocab_size);
        b->tokens[i] = (int32_t)id;
    }
    return BRG_OK;
}

static enum brg_status start(struct bench *b, struct err *e) {
    const struct bench_args *a = b->args;
    char path[OS_PATH_MAX];
    TRY(model_config_load(cli_model_path(a->model, path), &b->model, e));
    struct trainer_options o = {.model = &b->model,
                                .seq_len = a->seq_len,
                                .batch_max = a->batch,
                                .micro_batch = a->micro,
                                .threads = a->threads,
                                .precision = a->precision,
                                .recompute = a->recompute,
                                .device = a->device};
    TRY(trainer_create(&o, &b->trainer, e));
    AUTO_BUF struct buf line = {.bytes_max = 1 << 12};
    trainer_memory(b->trainer, &line);
    printf("device    %s, %u threads, operands in %s\n", measure_device(b->trainer),
           measure_threads(b->trainer), precision_name(a->precision));
    printf("model     %llu parameters, %.1f MFLOP a token\n",
           (unsigned long long)trainer_parameters(b->trainer),
           model_flops_per_token(&b->model, a->seq_len) / 1e6);
    printf("memory    %s\n", buf_cstr(&line));
    fflush(stdout);
    if (a->weights)
        TRY(model_load_weights(a->weights, &b->model, trainer_theta(b->trainer), e));
    else
        model_init(&b->model, 1, trainer_theta(b->trainer));
    b->wall = mem_alloc(a->steps, sizeof *b->wall);
    b->cpu = mem_alloc(a->steps, sizeof *b->cpu);
    return read_ids(b, e);
}

/* The next batch's rows, one after another in `rows`. */
static void next_rows(struct bench *b, int32_t *rows) {
    size_t width = (size_t)b->args->seq_len + 1;
    for (uint32_t i = 0; i < b->args->batch; i++, b->at++)
        memcpy(rows + i * width, b->tokens + b->at % b->rows_count * width, width * sizeof *rows);
}

static enum brg_status run_steps(struct bench *b, struct err *e) {
    const struct bench_args *a = b->args;
    struct adamw adamw = adamw_default();
    AUTO_FREE int32_t *rows = mem_alloc((size_t)a->batch * (a->seq_len + 1), sizeof *rows);
    double norm;
    for (uint32_t i = 0; i <= a->steps; i++) {
        next_rows(b, rows);
        if (i == 1) measure_reset(b->trainer);
        time_ns wall = os_now();
        double cpu = cpu_seconds();
        double loss = trainer_gradient(b->trainer, rows, a->batch);
        TRY(trainer_update(b->trainer, &adamw, 1e-3, &norm, e));
        if (i == 0)
            b->first_loss = loss;
        else {
            b->wall[i - 1] = (double)(os_now() - wall) / 1e9;
            b->cpu[i - 1] = cpu_seconds() - cpu;
        }
        b->last_loss = loss;
    }
    measure_take(b->trainer, &b->times);
    return BRG_OK;
}

static void keep_larger(double *x, double y) {
    if (y > *x) *x = y;
}

static double wall_seconds(void) {
    return (double)os_now() / 1e9;
}

static void measure_products(struct bench *b) {
    double threads = measure_threads(b->trainer);
    keep_larger(&b->large, measure_large(b->trainer, wall_seconds));
    keep_larger(&b->own, measure_own_shapes(b->trainer, wall_seconds));
    keep_larger(&b->large_cpu, threads * measure_large(b->trainer, cpu_seconds));
    keep_larger(&b->own_cpu, threads * measure_own_shapes(b->trainer, cpu_seconds));
}

static void show_times(const struct bench *b) {
    double sum = 0, all = 0;
    for (uint32_t i = 0; i < b->args->steps; i++) all += b->wall[i];
    printf("\n  %-20s %10s %7s\n", "operation", "ms a step", "share");
    for (int i = 0; i < OP_KINDS; i++) {
        sum += b->times.seconds[i];
        printf("  %-20s %10.2f %6.1f%%\n", OP_NAMES[i], b->times.seconds[i] * 1e3 / b->args->steps,
               100 * b->times.seconds[i] / all);
    }
    printf("  %-20s %10.2f %6.1f%%\n\n", "between them", (all - sum) * 1e3 / b->args->steps,
           100 * (all - sum) / all);
}

static void show(struct bench *b) {
    const struct bench_args *a = b->args;
    double tokens = (double)a->batch * a->seq_len;
    double flop = model_flops_per_token(&b->model, a->seq_len) * tokens;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    show_times(b);
    double middle = median(b->wall, a->steps), best = b->wall[0];
    median(b->cpu, a->steps);
    double cpu = b->cpu[0], of_cpu = flop / cpu * measure_threads(b->trainer);
    printf("tokens/s  %.0f best, %.0f median; %.1f and %.1f GFLOP/s\n", tokens / best,
           tokens / middle, flop / best / 1e9, flop / middle / 1e9);
    printf("products  %.1f GFLOP/s large, %.1f at this model's shapes; the trainer reaches %.1f%% "
           "and %.1f%%\n",
           b->large / 1e9, b->own / 1e9, 100 * flop / best / b->large, 100 * flop / best / b->own);
    printf("device=%s precision=%s threads=%u batch=%u seq_len=%u parameters=%llu tokens_s=%.1f "
           "tokens_s_median=%.1f step_s=%.4f cpu_s=%.4f gflops=%.2f matmul_gflops=%.2f "
           "matmul_own_gflops=%.2f share=%.4f share_own=%.4f share_cpu=%.4f share_own_cpu=%.4f "
           "first_loss=%.7f last_loss=%.7f "
           "rss_mib=%.0f\n",
           measure_device(b->trainer), precision_name(a->precision), measure_threads(b->trainer),
           a->batch, a->seq_len, (unsigned long long)trainer_parameters(b->trainer), tokens / best,
           tokens / middle, best, cpu, flop / best / 1e9, b->large / 1e9, b->own / 1e9,
           flop / best / b->large, flop / best / b->own, of_cpu / b->large_cpu, of_cpu / b->own_cpu,
           b->first_loss, b->last_loss, (double)u.ru_maxrss / 1024);
}

static enum brg_status run_bench(const struct bench_args *a, struct err *e) {
    struct bench b = {.args = a};
    enum brg_status s = start(&b, e);
    if (s == BRG_OK) {
        keep_larger(&b.large, measure_large(b.trainer, wall_seconds));
        keep_larger(&b.large_cpu,
                    measure_threads(b.trainer) * measure_large(b.trainer, cpu_seconds));
        s = run_steps(&b, e);
    }
    if (s == BRG_OK) {
        measure_products(&b);
        show(&b);
    }
    mem_free(b.tokens);
    mem_free(b.wall);
    mem_free(b.cpu);
    trainer_destroy(b.trainer);
    return s;
}

enum {
    OPT_MODEL = 1,
    OPT_SEQ_LEN,
    OPT_BATCH,
    OPT_MICRO,
    OPT_THREADS,
    OPT_PRECISION,
    OPT_RECOMPUTE,
    OPT_DEVICE,
    OPT_STEPS,
    OPT_WEIGHTS,
    OPT_IDS,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"model", required_argument, NULL, OPT_MODEL},
    {"seq-len", required_argument, NULL, OPT_SEQ_LEN},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"micro-batch", required_argument, NULL, OPT_MICRO},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"recompute", no_argument, NULL, OPT_RECOMPUTE},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"weights", required_argument, NULL, OPT_WEIGHTS},
    {"ids", required_argument, NULL, OPT_IDS},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool count(const char *s, uint32_t max, uint32_t *out) {
    uint64_t v;
    if (!parse_u64(s, &v) || v == 0 || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

static bool take_option(struct bench_args *a, int option, const char *value) {
    switch (option) {
    case OPT_MODEL: a->model = value; return true;
    case OPT_DEVICE: a->device = value; return true;
    case OPT_WEIGHTS: a->weights = value; return true;
    case OPT_IDS: a->ids = value; return true;
    case OPT_SEQ_LEN: return count(value, 1 << 24, &a->seq_len);
    case OPT_BATCH: return count(value, 1 << 20, &a->batch);
    case OPT_MICRO: return count(value, 1 << 20, &a->micro);
    case OPT_THREADS: return count(value, 512, &a->threads);
    case OPT_STEPS: return count(value, STEPS_MAX, &a->steps);
    case OPT_PRECISION: return precision_parse(value, &a->precision);
    default: return false;
    }
}

int cmd_bench(int argc, char **argv) {
    struct bench_args a = {.seq_len = 256, .batch = 8, .steps = 8};
    struct err e = {0};
    int option, index = 0;
    while ((option = getopt_long(argc, argv, ":h", OPTIONS, &index)) != -1) {
        if (option == OPT_HELP || option == 'h') {
            fputs(HELP, stdout);
            return BRG_OK;
        }
        if (option == '?' || option == ':') return cli_bad_option("bench", argv);
        if (option == OPT_RECOMPUTE)
            a.recompute = true;
        else if (!take_option(&a, option, optarg)) {
            char what[64];
            snprintf(what, sizeof what, "--%s cannot be", OPTIONS[index].name);
            return cli_usage("bench", what, optarg);
        }
    }
    if (optind >= argc)
        return cli_usage("bench", "what is to be measured? beringia bench train", "");
    if (strcmp(argv[optind], "train") != 0) return cli_usage("bench", "unknown:", argv[optind]);
    if (optind + 1 < argc) return cli_usage("bench", "unexpected", argv[optind + 1]);
    if (!a.model) return cli_usage("bench", "--model is missing", "");
    return run_bench(&a, &e) == BRG_OK ? BRG_OK : cli_fail("bench", &e);
}
