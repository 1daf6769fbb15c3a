/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_agent.c - beringia agent, beringia courier: on a facility's login node, as its user. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/cli.h"
#include "place/agent_os.h"
#include "place/courier_os.h"
#include "place/local_os.h"
#include "place/slurm.h"
#include "wire/client.h"

static const char HELP[] =
    "beringia agent - on a login node: probe the queue, tell the hub, submit what it orders\n"
    "\n"
    "  beringia agent [--site FILE] [--once] [--log-level L]\n"
    "  beringia agent --explain KIND RC OUT ERR\n"
    "\n"
    "  --site FILE   what this facility offers (default site.yaml); docs/agent.md\n"
    "  --once        do what is due now, then end: for cron. No courier runs then\n"
    "  --explain     how an answer of Slurm's is read: KIND is probe, submit, queue, history, "
    "job,\n"
    "                cancel or config; RC its exit status; OUT, ERR files with what it printed\n"
    "\n"
    "Runs in the foreground (tmux) until SIGTERM or SIGINT; a kill -9 is no harm: jobs are found "
    "again by\n"
    "their names. Only shapes of the file are ever submitted, within its budget. One agent a "
    "state\n"
    "directory. Nothing connects to it.\n";
static const char COURIER_HELP[] =
    "beringia courier - carry the messages of jobs without a network\n"
    "\n"
    "  beringia courier --spool DIR --hub URL [--token FILE] [--ca FILE] [--log-level L]\n"
    "\n"
    "Jobs use --hub spool:DIR; DIR is an absolute path on a filesystem that they share with this\n"
    "machine. beringia agent does the same where site.yaml has courier.spool.\n"
    "\n"
    "  --token FILE  the token that its requests carry, mode 0600; else $BERINGIA_TOKEN_FILE, "
    "$BERINGIA_TOKEN\n"
    "  --ca FILE     the hub's CA, PEM; else $BERINGIA_CA, else the system's\n"
    "  --log-level L error warn info debug trace (default info)\n";

static volatile int stop_asked;

static void on_signal(int sig) {
    (void)sig;
    stop_asked = 1;
}

static void signals_install(void) {
    struct sigaction a = {.sa_handler = on_signal};
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGTERM, &a, NULL);
    (void)sigaction(SIGINT, &a, NULL);
}

/* ---- --explain -------------------------------------------------------------------------------------- */

static void show_jobs(const struct place_jobs *q) {
    for (uint32_t i = 0; i < q->count; i++)
        printf("job id=%llu state=%s submit=%lld start=%lld end=%lld name=%s\n",
               (unsigned long long)q->jobs[i].id, place_state_name(q->jobs[i].state),
               (long long)q->jobs[i].submit_s, (long long)q->jobs[i].start_s,
               (long long)q->jobs[i].end_s, q->jobs[i].name);
}

static bool explain_jobs(const char *kind, const struct place_reply *r, struct place_said *said) {
    struct place_jobs q = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *q.jobs)};
    bool known = true;
    if (strcmp(kind, "queue") == 0)
        slurm_queue_parse(r, &q);
    else if (strcmp(kind, "history") == 0)
        slurm_history_parse(r, &q);
    else if (strcmp(kind, "job") == 0)
        slurm_job_parse(r, &q);
    else
        known = false;
    if (known) show_jobs(&q);
    *said = q.said;
    mem_free(q.jobs);
    return known;
}

static bool explain(const char *kind, const struct place_reply *r, struct place_said *said) {
    if (strcmp(kind, "probe") == 0) {
        struct place_estimate e;
        slurm_probe_parse(r, &e);
        *said = e.said;
        if (said->class_ == PLACE_FINE)
            printf("estimate start=%lld processors=%llu nodes=%s partition=%s preempts=%d\n",
                   (long long)e.start_s, (unsigned long long)e.processors, e.nodes, e.partition,
                   e.preempts);
    } else if (strcmp(kind, "submit") == 0) {
        struct place_submitted s;
        slurm_submit_parse(r, &s);
        *said = s.said;
        if (said->class_ == PLACE_FINE) printf("submitted id=%llu\n", (unsigned long long)s.job);
    } else if (strcmp(kind, "cancel") == 0) {
        slurm_cancel_parse(r, said);
    } else if (strcmp(kind, "config") == 0) {
        struct slurm_config c;
        slurm_config_parse(r, &c);
        *said = c.said;
    } else {
        return explain_jobs(kind, r, said);
    }
    return true;
}

static int explain_main(char **words) {
    AUTO_BUF struct buf out = {.bytes_max = 4 << 20};
    AUTO_BUF struct buf err = {.bytes_max = 4 << 20};
    struct err e = {0};
    struct place_said said = {0};
    uint64_t rc = 0;
    if (!parse_u64(words[1], &rc) || rc > 255)
        return cli_usage("agent", "--explain wants an exit status, not", words[1]);
    if (os_read_file(words[2], 4 << 20, &out, &e) != BRG_OK ||
        os_read_file(words[3], 4 << 20, &err, &e) != BRG_OK)
        return cli_fail("agent", &e);
    struct place_reply r = {.rc = (int)rc,
                            .out_bytes = out.bytes_count,
                            .err_bytes = err.bytes_count,
                            .out = buf_cstr(&out),
                            .err = buf_cstr(&err)};
    if (!explain(words[0], &r, &said))
        return cli_usage("agent", "--explain knows no answers of kind", words[0]);
    printf("class=%s meaning=\"%s\" text=\"%s\"\n", place_class_name(said.class_),
           place_class_sentence(said.class_), said.text);
    return 0;
}

/* ---- Commands --------------------------------------------------------------------------------------- */

int cmd_agent(int argc, char **argv) {
    enum { OPT_SITE = 1, OPT_ONCE, OPT_LOG, OPT_EXPLAIN, OPT_LOCAL_JOB, OPT_HELP };
    static const struct option options[] = {{"site", 1, NULL, OPT_SITE},
                                            {"once", 0, NULL, OPT_ONCE},
                                            {"log-level", 1, NULL, OPT_LOG},
                                            {"explain", 0, NULL, OPT_EXPLAIN},
                                            {"local-job", 0, NULL, OPT_LOCAL_JOB},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    struct agent_run_options a = {.site_file = "site.yaml", .stop = &stop_asked};
    bool explaining = false, local_job = false;
    enum log_level level;
    struct err e = {0};
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_SITE: a.site_file = optarg; break;
        case OPT_ONCE: a.once = true; break;
        case OPT_LOG:
            if (!log_level_parse(optarg, &level))
                return cli_usage("agent", "--log-level: error warn info debug trace, not", optarg);
            log_level_set(level);
            break;
        case OPT_EXPLAIN: explaining = true; break;
        case OPT_LOCAL_JOB: local_job = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("agent", argv);
        }
    }
    int words = explaining || local_job ? 4 : 0;
    if (optind + words != argc)
        return cli_usage("agent", words > 0 ? "want four words" : "not understood:",
                         words > 0 || optind == argc ? "" : argv[optind]);
    if (explaining) return explain_main(argv + optind);
    if (local_job)
        return local_job_main(argv[optind], argv[optind + 1], argv[optind + 2], argv[optind + 3]);
    signals_install();
    enum brg_status s = agent_run(&a, &e);
    return s == BRG_OK ? 0 : cli_fail("agent", &e);
}

int cmd_courier(int argc, char **argv) {
    enum { OPT_SPOOL = 1, OPT_HUB, OPT_TOKEN, OPT_CA, OPT_LOG, OPT_HELP };
    static const struct option options[] = {{"spool", 1, NULL, OPT_SPOOL},
                                            {"hub", 1, NULL, OPT_HUB},
                                            {"token", 1, NULL, OPT_TOKEN},
                                            {"ca", 1, NULL, OPT_CA},
                                            {"log-level", 1, NULL, OPT_LOG},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    struct courier_options c = {0};
    struct courier *courier = NULL;
    enum log_level level;
    struct err e = {0};
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_SPOOL: c.spool = optarg; break;
        case OPT_HUB: c.hub = optarg; break;
        case OPT_TOKEN: c.token_file = optarg; break;
        case OPT_CA: c.ca_file = optarg; break;
        case OPT_LOG:
            if (!log_level_parse(optarg, &level))
                return cli_usage("courier", "--log-level: error warn info debug trace, not",
                                 optarg);
            log_level_set(level);
            break;
        case 'h':
        case OPT_HELP: fputs(COURIER_HELP, stdout); return 0;
        default: return cli_bad_option("courier", argv);
        }
    }
    if (optind != argc || c.spool == NULL || c.hub == NULL)
        return cli_usage("courier", "want --spool and --hub", "");
    signals_install();
    enum brg_status s = client_global_init(&e);
    if (s == BRG_OK) s = courier_start(&c, &courier, &e);
    if (s != BRG_OK) return cli_fail("courier", &e);
    while (!stop_asked) {
        struct timespec t = {.tv_sec = 1};
        (void)nanosleep(&t, NULL);
    }
    courier_stop(courier);
    return 0;
}
