/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_project.c - beringia project: policies side by side in the same worlds. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "cli/cli.h"
#include "cli/project_svg.h"
#include "place/scenario.h"
#include "train/cpu/threads.h"

static const char HELP[] =
    "beringia project - how long would a run take? Policies of placement side by side\n"
    "\n"
    "  beringia project SCENARIO.yaml [options]\n"
    "\n"
    "  --repetitions N   worlds to draw; each policy meets the same ones (default: the file's)\n"
    "  --seed N          of the worlds (default 1)\n"
    "  --threads N       default: the processors this process may use\n"
    "  --set S.K=V       change a value of the file\n"
    "  --csv FILE        one line a world and policy\n"
    "  --svg FILE        picture: share of the worlds that are done, over time\n"
    "  --need SHARE      end with status 1 unless queue_aware is that much shorter than wait_all\n"
    "  --show            print the effective scenario and end\n"
    "\n"
    "Policies: wait_all, first_free, static_best, elastic, queue_aware; docs/placement.md tells "
    "what\n"
    "each does, and what the two kinds of queue are.\n"
    "\n"
    "examples\n"
    "  beringia project share/place/ideal.yaml --repetitions 1000 --svg projection.svg\n"
    "  beringia project share/place/replay.yaml --set site1.budget_node_hours=2000\n";

struct arguments {
    const char *file, *csv, *svg, *sets[64];
    size_t sets_count;
    uint64_t repetitions, seed, threads;
    double need;
    bool show;
};

static int fail(const struct err *e) {
    return cli_fail("project", e);
}

struct work {
    const struct project *p;
    struct project_run *runs; /* [repetitions][POLICIES] */
    uint64_t seed;
};

static void one(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct work *w = ctx;
    uint32_t rep = chunk / POLICIES, policy = chunk % POLICIES;
    project_run(w->p, (enum policy)policy, mix64(w->seed * 1000003 + rep),
                &w->runs[(size_t)rep * POLICIES + policy]);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double mean, half_width, low, median, high; /* hours; half_width: 95 % of the mean */
    double node_hours, wait_hours, jobs, reached;
    uint64_t over_budget;
    double *times; /* sorted, hours */
};

static struct summary summarise(const struct project_run *runs, uint32_t n, uint32_t policy) {
    struct summary s = {.times = mem_alloc(n, sizeof(double))};
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct project_run *r = &runs[(size_t)i * POLICIES + policy];
        double h = r->time_s / 3600;
        s.times[i] = h;
        sum += h;
        squares += h * h;
        s.node_hours += r->node_s / 3600 / n;
        s.wait_hours += r->jobs ? r->wait_s / 3600 / r->jobs / n : 0;
        s.jobs += (double)r->jobs / n;
        s.reached += (double)r->reached / n;
        s.over_budget += r->over_budget;
    }
    qsort(s.times, n, sizeof(double), by_value);
    s.mean = sum / n;
    s.half_width = n > 1 ? 1.96 * sqrt(fmax(0.0, squares / n - s.mean * s.mean) / (n - 1)) : 0;
    s.low = s.times[n / 10];
    s.median = s.times[n / 2];
    s.high = s.times[n * 9 / 10];
    return s;
}

/* Share by which `policy` is shorter than wait_all: of the means, and the 10 % and 90 % of the worlds. */
struct shorter {
    double mean, low, high;
};

static struct shorter shorter_than_waiting(const struct project_run *runs, uint32_t n,
                                           const struct summary *all, uint32_t policy) {
    AUTO_FREE double *v = mem_alloc(n, sizeof *v);
    for (uint32_t i = 0; i < n; i++)
        v[i] = 1.0 - runs[(size_t)i * POLICIES + policy].time_s /
                         runs[(size_t)i * POLICIES + POLICY_WAIT_ALL].time_s;
    qsort(v, n, sizeof *v, by_value);
    return (struct shorter){1.0 - all[policy].mean / all[POLICY_WAIT_ALL].mean, v[n / 10],
                            v[n * 9 / 10]};
}

static void print_table(const struct project_run *runs, uint32_t n, const struct summary *s) {
    printf("%-12s %9s %8s %8s %8s %8s %10s %8s %6s %8s %7s\n", "policy", "hours", "+-95%", "10%",
           "median", "90%", "shorter", "node-h", "jobs", "wait h", "reached");
    for (uint32_t k = 0; k < POLICIES; k++) {
        struct shorter d = shorter_than_waiting(runs, n, s, k);
        printf("%-12s %9.1f %8.1f %8.1f %8.1f %8.1f %8.1f %% %8.0f %6.1f %8.2f %5.1f %%\n",
               policy_names[k], s[k].mean, s[k].half_width, s[k].low, s[k].median, s[k].high,
               100 * d.mean, s[k].node_hours, s[k].jobs, s[k].wait_hours, 100 * s[k].reached);
    }
}

static enum brg_status write_csv(const char *path, const struct project_run *runs, uint32_t n,
                                 struct err *e) {
    AUTO_BUF struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    buf_printf(&b, "world,policy,hours,reached,node_hours,jobs,cancelled,wait_hours,over_budget\n");
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < POLICIES; k++) {
            const struct project_run *r = &runs[(size_t)i * POLICIES + k];
            buf_printf(&b, "%u,%s,%.4f,%d,%.2f,%u,%u,%.4f,%d\n", i, policy_names[k],
                       r->time_s / 3600, r->reached, r->node_s / 3600, r->jobs, r->cancelled,
                       r->wait_s / 3600, r->over_budget);
        }
    return os_write_file_atomic(path, b.data, b.bytes_count, e);
}

static int closing_line(const struct arguments *a, const struct project_run *runs, uint32_t n,
                        const struct summary *s) {
    uint64_t asked = 0, held = 0, missed = 0, over = 0;
    double ours = 0, theirs = 0;
    for (size_t i = 0; i < (size_t)n * POLICIES; i++) {
        asked += runs[i].asked * (i % POLICIES == POLICY_QUEUE_AWARE);
        held += runs[i].held * (i % POLICIES == POLICY_QUEUE_AWARE);
        missed += runs[i].missed;
        ours += runs[i].miss_ours;
        theirs += runs[i].miss_theirs;
        over += runs[i].over_budget;
    }
    struct shorter d = shorter_than_waiting(runs, n, s, POLICY_QUEUE_AWARE);
    struct shorter el = shorter_than_waiting(runs, n, s, POLICY_ELASTIC);
    bool kept = d.mean >= a->need && over == 0;
    printf("worlds=%u seed=%llu hours_wait_all=%.2f hours_queue_aware=%.2f shorter=%.4f "
           "shorter_p10=%.4f shorter_p90=%.4f shorter_elastic=%.4f node_hours_wait_all=%.0f "
           "node_hours_queue_aware=%.0f coverage80=%.4f error_factor_ours=%.3f "
           "error_factor_scheduler=%.3f over_budget=%llu kept=%s\n",
           n, (unsigned long long)a->seed, s[POLICY_WAIT_ALL].mean, s[POLICY_QUEUE_AWARE].mean,
           d.mean, d.low, d.high, el.mean, s[POLICY_WAIT_ALL].node_hours,
           s[POLICY_QUEUE_AWARE].node_hours, asked ? (double)held / (double)asked : 0.8,
           missed ? exp(ours / (double)missed) : 1.0, missed ? exp(theirs / (double)missed) : 1.0,
           (unsigned long long)over, kept ? "true" : "false");
    return kept ? BRG_OK : BRG_E_INTERNAL;
}

static int run_worlds(const struct arguments *a, struct scenario *s) {
    struct err e;
    struct pool *pool = NULL;
    if (pool_create((uint32_t)a->threads, &pool, &e) != BRG_OK) return fail(&e);
    uint32_t n = a->repetitions ? (uint32_t)a->repetitions : s->repetitions;
    AUTO_FREE struct project_run *runs = mem_alloc((size_t)n * POLICIES, sizeof *runs);
    struct work w = {&s->project, runs, a->seed};
    pool_run(pool, n * POLICIES, one, &w);
    pool_destroy(pool);
    struct summary all[POLICIES];
    for (uint32_t k = 0; k < POLICIES; k++) all[k] = summarise(runs, n, k);
    print_table(runs, n, all);
    enum brg_status status = BRG_OK;
    if (a->csv) status = write_csv(a->csv, runs, n, &e);
    if (a->svg && status == BRG_OK) {
        const double *times[POLICIES];
        for (uint32_t k = 0; k < POLICIES; k++) times[k] = all[k].times;
        AUTO_BUF struct buf b;
        buf_init(&b, 1 << 24);
        project_svg(policy_names, times, POLICIES, n, &b);
        status = os_write_file_atomic(a->svg, b.data, b.bytes_count, &e);
    }
    int code = status == BRG_OK ? closing_line(a, runs, n, all) : fail(&e);
    for (uint32_t k = 0; k < POLICIES; k++) mem_free(all[k].times);
    return code;
}

enum {
    OPT_REPETITIONS = 1,
    OPT_SEED,
    OPT_THREADS,
    OPT_SET,
    OPT_CSV,
    OPT_SVG,
    OPT_NEED,
    OPT_SHOW,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"repetitions", required_argument, NULL, OPT_REPETITIONS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"set", required_argument, NULL, OPT_SET},
    {"csv", required_argument, NULL, OPT_CSV},
    {"svg", required_argument, NULL, OPT_SVG},
    {"need", required_argument, NULL, OPT_NEED},
    {"show", no_argument, NULL, OPT_SHOW},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static int number(const char *name, const char *text, uint64_t most, uint64_t *out) {
    if (parse_u64(text, out) && *out <= most) return -1;
    return cli_usage("project", name, text);
}

/* -1: go on; else the exit status. */
static int option(int c, struct arguments *a, char **argv) {
    switch (c) {
    case OPT_REPETITIONS:
        return number("--repetitions: no number up to 1000000:", optarg, 1000000, &a->repetitions);
    case OPT_SEED: return number("--seed: no number:", optarg, UINT64_MAX, &a->seed);
    case OPT_THREADS:
        return number("--threads: no number up to 512:", optarg, THREADS_MAX, &a->threads);
    case OPT_SET:
        if (a->sets_count == ARRAY_COUNT(a->sets))
            return cli_usage("project", "too many --set", "");
        a->sets[a->sets_count++] = optarg;
        return -1;
    case OPT_CSV: a->csv = optarg; return -1;
    case OPT_SVG: a->svg = optarg; return -1;
    case OPT_NEED:
        if (parse_f64(optarg, &a->need) && a->need < 1) return -1;
        return cli_usage("project", "--need: no share below 1:", optarg);
    case OPT_SHOW: a->show = true; return -1;
    case 'h':
    case OPT_HELP: fputs(HELP, stdout); return BRG_OK;
    default: return cli_bad_option("project", argv);
    }
}

int cmd_project(int argc, char **argv) {
    struct arguments a = {.seed = 1, .need = -HUGE_VAL};
    struct err e;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", OPTIONS, NULL)) != -1;) {
        int code = option(c, &a, argv);
        if (code >= 0) return code;
    }
    if (optind == argc) return cli_usage("project", "the scenario file is missing", "");
    if (optind + 1 < argc) return cli_usage("project", "one file, not also", argv[optind + 1]);
    struct scenario *s = scenario_create();
    int code;
    if (scenario_read(s, argv[optind], a.sets, a.sets_count, &e) != BRG_OK) {
        code = fail(&e);
    } else if (a.show) {
        AUTO_BUF struct buf b;
        buf_init(&b, CONFIG_FILE_BYTES_MAX);
        config_print(s->config, &b);
        fputs(buf_cstr(&b), stdout);
        code = BRG_OK;
    } else {
        code = run_worlds(&a, s);
    }
    scenario_destroy(s);
    return code;
}
