/* SPDX-License-Identifier: Apache-2.0 */
/* slurm_os.c - Slurm's commands, with words from site.yaml alone. See scheduler_os.h and slurm.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "place/scheduler_os.h"
#include "place/slurm.h"

enum { ARGS_MAX = 128 };

struct args {
    char *v[ARGS_MAX + 1];
    int count;
};

static void arg(struct args *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void arg(struct args *a, const char *fmt, ...) {
    char text[4200];
    va_list list;
    va_start(list, fmt);
    int n = vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    CHECK(n >= 0);
    CHECK((size_t)n < sizeof text);
    CHECK(a->count < ARGS_MAX);
    a->v[a->count++] = mem_strdup(text);
}

static void args_fini(struct args *a) {
    for (int i = 0; i < a->count; i++) mem_free(a->v[i]);
}

static void shape_args(struct args *a, const struct place_site *site, const struct place_shape *s) {
    if (s->partition[0] != '\0') arg(a, "--partition=%s", s->partition);
    if (s->account[0] != '\0') arg(a, "--account=%s", s->account);
    if (s->qos[0] != '\0') arg(a, "--qos=%s", s->qos);
    arg(a, "--nodes=%u", s->nodes);
    if (s->tasks > 0) arg(a, "--ntasks-per-node=%u", s->tasks);
    if (s->gpus > 0) arg(a, "--gpus-per-node=%u", s->gpus);
    arg(a, "--time=%" PRIu64, (s->time_s + 59) / 60); /* Slurm counts in minutes */
    for (uint32_t i = 0; i < site->options_count; i++) arg(a, "%s", site->options[i]);
    for (uint32_t i = 0; i < s->options_count; i++) arg(a, "%s", s->options[i]);
}

static void run(struct scheduler_state *s, struct args *a, bool exact, int keep_fd,
                const char *const *more, struct run_output *o) {
    char **env = env_make(exact, more);
    struct run_command c = {
        .argv = a->v, .envp = env, .timeout_ns = s->site->timeout_ns, .keep_fd = keep_fd};
    a->v[a->count] = NULL;
    run_command(&c, o);
    env_free(env);
    args_fini(a);
}

static void slurm_probe(struct scheduler_state *s, const struct place_shape *shape,
                        struct place_estimate *out) {
    struct args a = {.count = 0};
    struct run_output o;
    arg(&a, "sbatch");
    arg(&a, "--test-only");
    shape_args(&a, s->site, shape);
    arg(&a, "%s", s->script);
    run(s, &a, true, -1, NULL, &o);
    slurm_probe_parse(&o.reply, out);
    run_output_fini(&o);
}

/* The job's own environment is the user's, with where the hub (or the courier) is. */
static void slurm_submit(struct scheduler_state *s, const struct place_shape *shape,
                         const char *name, uint64_t after, struct place_submitted *out) {
    struct args a = {.count = 0};
    struct run_output o;
    struct job_env env;
    job_env_make(s->site, name, &env);
    arg(&a, "sbatch");
    arg(&a, "--parsable");
    shape_args(&a, s->site, shape);
    arg(&a, "--job-name=%s", name);
    arg(&a, "--output=%s/%s.out", s->out_dir, name);
    if (s->site->drain_s > 0) arg(&a, "--signal=B:USR1@%" PRIu64, s->site->drain_s);
    if (after > 0) arg(&a, "--dependency=afterany:%" PRIu64, after);
    arg(&a, "%s", s->script);
    run(s, &a, false, s->submit_lock, env.list, &o);
    slurm_submit_parse(&o.reply, out);
    run_output_fini(&o);
}

static void slurm_queue(struct scheduler_state *s, struct place_jobs *out) {
    struct args a = {.count = 0};
    struct run_output o;
    arg(&a, "squeue");
    arg(&a, "-h");
    arg(&a, "--me");
    arg(&a, "-t");
    arg(&a, "all");
    arg(&a, "-o");
    arg(&a, "%s", SLURM_QUEUE_FORMAT);
    run(s, &a, true, -1, NULL, &o);
    slurm_queue_parse(&o.reply, out);
    run_output_fini(&o);
}

static void slurm_history(struct scheduler_state *s, const char *const *names, uint32_t count,
                          uint64_t since_s, struct place_jobs *out) {
    struct args a = {.count = 0};
    struct run_output o;
    AUTO_BUF struct buf list = {.bytes_max = 3000};
    (void)since_s;
    for (uint32_t i = 0; i < count && i < 40; i++)
        buf_printf(&list, "%s%s", i > 0 ? "," : "", names[i]);
    arg(&a, "sacct");
    arg(&a, "-X");
    arg(&a, "-n");
    arg(&a, "-P");
    arg(&a, "-S");
    arg(&a, "now-30days"); /* its default, midnight, forgets yesterday's jobs */
    /* Without states a job that was never eligible is left out: cancelled while it was held, or waited for another. */
    arg(&a, "-E");
    arg(&a, "now");
    arg(&a, "-s");
    arg(&a, "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO");
    arg(&a, "--name=%s", buf_cstr(&list));
    arg(&a, "-o");
    arg(&a, "%s", SLURM_HISTORY_FORMAT);
    run(s, &a, true, -1, NULL, &o);
    slurm_history_parse(&o.reply, out);
    run_output_fini(&o);
}

static void slurm_cancel(struct scheduler_state *s, uint64_t id, bool drain,
                         struct place_said *out) {
    struct args a = {.count = 0};
    struct run_output o;
    arg(&a, "scancel");
    if (drain) {
        arg(&a, "--signal=USR1");
        arg(&a, "--batch");
    }
    arg(&a, "%" PRIu64, id);
    run(s, &a, true, -1, NULL, &o);
    slurm_cancel_parse(&o.reply, out);
    run_output_fini(&o);
}

const struct scheduler scheduler_slurm = {
    .name = "slurm",
    .probe = slurm_probe,
    .submit = slurm_submit,
    .queue = slurm_queue,
    .history = slurm_history,
    .cancel = slurm_cancel,
};
