/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_plan.c - beringia plan: the planner on a live run, once or beside the hub. It asks the hub what there is,
 * and gives orders as an operator would; it keeps nothing, and may be ended at any moment. */
#include <curl/curl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/os.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/plan_print.h"
#include "cli/plan_topology.h"

static const char HELP[] =
    "beringia plan - what to submit where and when, which waiting jobs to cancel, and why\n"
    "\n"
    "  beringia plan RUN|URL [options]\n"
    "  beringia plan --topology FILE | RUN|URL [LABEL=RUN|URL ...] [--hub-line MB/S] [--json]\n"
    "  beringia plan --scale [--set NAME=VALUE ...] [--json]\n"
    "\n"
    "  --issue           give the orders to the hub (on the hub's own machine: loopback); without\n"
    "                    it the plan is only told\n"
    "  --every T         look again after each T (60s, 10m) until the run is complete; default: "
    "once\n"
    "  --json            one line of JSON a look\n"
    "  --speed S/H=N     tokens a second of shape H at site S, where the run has not shown it yet\n"
    "  --waiting N       jobs that may wait at a site at a time, 1 to 4 (default 2)\n"
    "  --join T          from a job's start to its first step (default 3m)\n"
    "  --overhead SHARE  of the time that rounds cost (default: as the newest rounds show, else "
    "0.02)\n"
    "  --prior T         a guess of a wait where nothing is known (default 1h)\n"
    "  --silent T        an agent not heard of for so long gets no orders (default 30m)\n"
    "  --draws N         futures that a choice is judged by, 8 to 256 (default 128)\n"
    "  --seed N          of the draws (default 1)\n"
    "  --topology        levels, H and codec that suit the links, with reasons: from a file, or "
    "what\n"
    "                    a hub was told (beringia doctor --links); LABEL=RUN|URL: the hub of a "
    "region\n"
    "  --hub-line MB/S   --topology: of the top hub's own line, each way; else it is no limit\n"
    "  --scale           bytes, seconds and money of a round by model, sites and levels, as "
    "tables\n"
    "  --set NAME=VALUE  --scale: one of the settings that its first table lists\n" CLI_WHO_HELP
    "\n"
    "The target is the run's token count. Shapes, estimates, jobs and budgets are what the agents "
    "of\n"
    "the facilities (beringia agent) reported; waits are learned from jobs that started or were\n"
    "cancelled; speeds come from heartbeats. With --issue every open order of the run is the "
    "plan's:\n"
    "it may cancel what waits. No budget of a site.yaml is ever exceeded. Exit status 0 also when\n"
    "nothing is to be done; docs/placement.md tells how a plan is made,\n"
    "docs/topology.md what --topology says, docs/scale.md what --scale does.\n"
    "\n"
    "examples\n"
    "  beringia plan myrun                        # look, and do nothing\n"
    "  beringia plan myrun --issue --every 5m     # beside the hub\n"
    "  beringia plan https://hub.example.org --json | jq .actions\n"
    "  beringia plan --topology links.yaml        # levels, H, codec; nothing has to run\n";

enum { STATUS_MAX = 64 << 20 };

struct arguments {
    struct hub_who who;
    bool issue, json, topology, scale, set,
        plan_only; /* plan_only: an option that only a plan takes */
    struct scale_settings scale_set;
    double hub_line;  /* MB/s */
    struct err wrong; /* of --set */
    time_ns every, join, prior, silent;
    uint64_t waiting, draws, seed;
    double overhead; /* -1: as measured */
    struct live_speed speeds[LIVE_SPEEDS_MAX];
    size_t speeds_count;
};

static volatile sig_atomic_t stop_asked;

static void on_signal(int sig) {
    (void)sig;
    stop_asked = 1;
}

/* ---- One look ---------------------------------------------------------------------------------------- */

static enum brg_status send_one(const struct hub_address *hub, const struct plan_look *k,
                                uint32_t at, struct plan_sent *out, struct err *e) {
    const struct plan_action *a = &k->result->v[at];
    const struct plan_site *s = &k->state->sites[a->site];
    char json[256];
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 16);
    if (a->kind == PLAN_SUBMIT)
        (void)snprintf(json, sizeof json, "{\"site\":\"%s\",\"shape\":\"%s\",\"jobs\":1}", s->name,
                       s->shapes[a->shape].name);
    else
        (void)snprintf(json, sizeof json, "{\"cancel\":%" PRIu64 "}", a->id);
    enum brg_status status = cli_hub_post(hub, "/v1/operator/order", json, &b, e);
    if (status != BRG_OK) {
        (void)snprintf(out->problem, sizeof out->problem, "%.190s", e->text);
        return status;
    }
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
    double number = json_number_value(json_object_get(o, "order"));
    out->sent = true;
    out->order = a->kind == PLAN_CANCEL ? a->id : number > 0 ? (uint64_t)number : 0;
    json_decref(o);
    return BRG_OK;
}

static const char *idle_word(const struct live *l) {
    return l->complete                ? "the run is complete"
           : l->tokens_total <= 0     ? "it has no token target, so there is nothing to plan for"
           : l->draining              ? "its sites are asked to leave (beringia drain): no orders"
           : l->held                  ? "the hub is held (see beringia rollback --help): no orders"
           : l->facilities_count == 0 ? "no facility has reported yet: start beringia agent there"
                                      : NULL;
}

static void print(const struct arguments *a, const struct plan_look *k) {
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 24);
    if (a->json)
        plan_print_json(k, &b);
    else
        plan_print_text(k, &b);
    fputs(buf_cstr(&b), stdout);
    (void)fflush(stdout);
}

static struct plan_options options_of(const struct arguments *a, const struct live *l) {
    struct plan_options o = plan_options_default();
    o.draws = (uint32_t)a->draws;
    o.join_s = (double)a->join / 1e9;
    if (a->every > 0) o.tick_s = (double)a->every / 1e9;
    if (a->overhead >= 0)
        o.overhead = a->overhead;
    else if (l->overhead >= 0)
        o.overhead = l->overhead;
    return o;
}

static enum brg_status plan_live(const struct arguments *a, const struct hub_address *hub,
                                 const struct live *l, struct err *e) {
    struct live_options lo = live_options_default();
    struct plan_state *state = mem_alloc(1, sizeof *state);
    struct plan_result *r = mem_alloc(1, sizeof *r);
    struct live_site_view *views = mem_alloc(PLAN_SITES_MAX, sizeof *views);
    struct plan_sent sent[PLAN_ACTIONS_MAX];
    struct plan_options o = options_of(a, l);
    struct plan_look k = {l, state, views, r, &o, a->issue ? sent : NULL, idle_word(l)};
    enum brg_status status = BRG_OK;
    lo.prior_s = (double)a->prior / 1e9;
    lo.silent_s = (double)a->silent / 1e9;
    lo.waiting_max = (uint32_t)a->waiting;
    lo.speeds = a->speeds;
    lo.speeds_count = a->speeds_count;
    memset(sent, 0, sizeof sent);
    if (k.idle == NULL) {
        live_state(l, &lo, (double)os_wall() / 1e9, state, views);
        plan_decide(state, &o, a->seed, r);
        for (uint32_t i = 0; i < r->count && a->issue; i++) {
            struct err one = {0};
            enum brg_status s = send_one(hub, &k, i, &sent[i], &one);
            if (s != BRG_OK && status == BRG_OK) {
                status = s;
                *e = one;
            }
        }
    }
    print(a, &k);
    mem_free(views);
    mem_free(r);
    mem_free(state);
    return status;
}

static enum brg_status look(const struct arguments *a, bool *out_complete, struct err *e) {
    struct hub_address hub;
    struct live l;
    AUTO_BUF struct buf b;
    buf_init(&b, STATUS_MAX);
    TRY(cli_hub_find(&a->who, &hub, e));
    TRY(cli_hub_get(&hub, "/v1/status", &b, e));
    enum brg_status s = live_read(b.data, b.bytes_count, &l, e);
    if (s != BRG_OK) return err_prefix(e, "%s/v1/status", hub.url);
    *out_complete = l.complete;
    s = plan_live(a, &hub, &l, e);
    live_free(&l);
    return s;
}

/* A hub that is away for a while, or refuses an order, is no reason to end: the next look sees what is there then. */
static bool passes(enum brg_status s) {
    return s == BRG_E_NET || s == BRG_E_REFUSED || s == BRG_E_TIMEOUT;
}

static int run(const struct arguments *a) {
    struct err e = {0};
    bool complete = false;
    struct sigaction sa = {.sa_handler = on_signal};
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    if (a->every > 0) {
        sigemptyset(&sa.sa_mask);
        sigaction(SIGTERM, &sa, NULL);
        sigaction(SIGINT, &sa, NULL);
    }
    for (;;) {
        enum brg_status s = look(a, &complete, &e);
        if (s != BRG_OK && (a->every == 0 || !passes(s))) return cli_fail("plan", &e);
        if (s != BRG_OK) (void)cli_fail("plan", &e);
        if (a->every == 0 || complete || stop_asked) return BRG_OK;
        struct timespec t = {a->every / NS_PER_S, a->every % NS_PER_S};
        if (nanosleep(&t, NULL) != 0 && stop_asked) return BRG_OK;
    }
}

/* ---- The command line -------------------------------------------------------------------------------- */

enum {
    OPT_ISSUE = 1,
    OPT_EVERY,
    OPT_JSON,
    OPT_SPEED,
    OPT_WAITING,
    OPT_JOIN,
    OPT_OVERHEAD,
    OPT_PRIOR,
    OPT_SILENT,
    OPT_DRAWS,
    OPT_SEED,
    OPT_TOPOLOGY,
    OPT_HUB_LINE,
    OPT_SCALE,
    OPT_SET,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    CLI_WHO_OPTIONS,
    {"issue", no_argument, NULL, OPT_ISSUE},
    {"every", required_argument, NULL, OPT_EVERY},
    {"json", no_argument, NULL, OPT_JSON},
    {"speed", required_argument, NULL, OPT_SPEED},
    {"waiting", required_argument, NULL, OPT_WAITING},
    {"join", required_argument, NULL, OPT_JOIN},
    {"overhead", required_argument, NULL, OPT_OVERHEAD},
    {"prior", required_argument, NULL, OPT_PRIOR},
    {"silent", required_argument, NULL, OPT_SILENT},
    {"draws", required_argument, NULL, OPT_DRAWS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"topology", no_argument, NULL, OPT_TOPOLOGY},
    {"hub-line", required_argument, NULL, OPT_HUB_LINE},
    {"scale", no_argument, NULL, OPT_SCALE},
    {"set", required_argument, NULL, OPT_SET},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool speed(struct arguments *a, const char *text) {
    const char *slash = strchr(text, '/'), *equal = slash != NULL ? strchr(slash, '=') : NULL;
    if (equal == NULL || a->speeds_count == LIVE_SPEEDS_MAX) return false;
    struct live_speed *s = &a->speeds[a->speeds_count];
    size_t site = (size_t)(slash - text), shape = (size_t)(equal - slash - 1);
    if (site >= sizeof s->site || shape >= sizeof s->shape) return false;
    memcpy(s->site, text, site);
    memcpy(s->shape, slash + 1, shape);
    if (!wire_name_valid(s->site) || !wire_name_valid(s->shape)) return false;
    if (!parse_f64(equal + 1, &s->tokens_per_s) || !(s->tokens_per_s > 0)) return false;
    a->speeds_count++;
    return true;
}

static bool duration(const char *text, time_ns *out) {
    return parse_duration(text, out) && *out > 0;
}

static bool take(struct arguments *a, int option, const char *v) {
    if (option >= OPT_ISSUE && option <= OPT_SEED && option != OPT_JSON) a->plan_only = true;
    switch (option) {
    case OPT_TOPOLOGY: a->topology = true; return true;
    case OPT_HUB_LINE: return parse_f64(v, &a->hub_line) && a->hub_line > 0 && a->hub_line <= 1e9;
    case OPT_SCALE: a->scale = true; return true;
    case OPT_SET: a->set = true; return scale_set(&a->scale_set, v, &a->wrong) == BRG_OK;
    case OPT_ISSUE: a->issue = true; return true;
    case OPT_JSON: a->json = true; return true;
    case OPT_EVERY: return duration(v, &a->every);
    case OPT_SPEED: return speed(a, v);
    case OPT_WAITING:
        return parse_u64(v, &a->waiting) && a->waiting >= 1 && a->waiting <= PLAN_JOBS_MAX;
    case OPT_JOIN: return parse_duration(v, &a->join) && a->join >= 0;
    case OPT_OVERHEAD: return parse_f64(v, &a->overhead) && a->overhead >= 0 && a->overhead < 1;
    case OPT_PRIOR: return duration(v, &a->prior);
    case OPT_SILENT: return duration(v, &a->silent);
    case OPT_DRAWS: return parse_u64(v, &a->draws) && a->draws >= 8 && a->draws <= 256;
    case OPT_SEED: return parse_u64(v, &a->seed);
    default: return cli_who_option(&a->who, option, v);
    }
}

static int run_scale(const struct arguments *a) {
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 24);
    if (a->json)
        plan_scale_json(&a->scale_set, &b);
    else
        plan_scale_text(&a->scale_set, &b);
    fputs(buf_cstr(&b), stdout);
    return BRG_OK;
}

/* What is wanted, once every option is known. */
static int run_what(struct arguments *a, int argc, char **argv) {
    if (a->topology && a->scale)
        return cli_usage("plan", "--topology and --scale are two things: ask for one", "");
    if ((a->topology || a->scale) && a->plan_only)
        return cli_usage("plan", "--topology and --scale take none of the options of a plan", "");
    if (a->hub_line > 0 && !a->topology) return cli_usage("plan", "--hub-line: of --topology", "");
    if (a->set && !a->scale) return cli_usage("plan", "--set: of --scale", "");
    if (a->scale)
        return optind == argc ? run_scale(a)
                              : cli_usage("plan", "--scale takes no RUN:", argv[optind]);
    if (a->topology)
        return optind < argc
                   ? plan_topology(&a->who, a->hub_line, a->json, argv + optind, argc - optind)
                   : cli_usage("plan", "--topology wants a FILE, a RUN directory or a URL", "");
    if (optind + 1 != argc) return cli_usage("plan", "want one RUN directory or URL", "");
    a->who.run = argv[optind];
    return run(a);
}

int cmd_plan(int argc, char **argv) {
    struct arguments a = {.join = 180 * (time_ns)NS_PER_S,
                          .prior = 3600 * (time_ns)NS_PER_S,
                          .silent = 1800 * (time_ns)NS_PER_S,
                          .waiting = 2,
                          .draws = 128,
                          .scale_set = scale_defaults(),
                          .seed = 1,
                          .overhead = -1};
    int index = 0;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", OPTIONS, &index)) != -1;) {
        char what[80];
        if (c == OPT_HELP || c == 'h') {
            fputs(HELP, stdout);
            return BRG_OK;
        }
        if (c == '?' || c == ':') return cli_bad_option("plan", argv);
        (void)snprintf(what, sizeof what, "--%s cannot be", OPTIONS[index].name);
        if (!take(&a, c, optarg)) {
            if (a.wrong.status != BRG_OK) return cli_fail("plan", &a.wrong);
            return cli_usage("plan", what, optarg != NULL ? optarg : "");
        }
    }
    return run_what(&a, argc, argv);
}
