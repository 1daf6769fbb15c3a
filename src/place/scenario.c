/* SPDX-License-Identifier: Apache-2.0 */
/* scenario.c - see scenario.h. */
#include "place/scenario.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct config_key general[] = {
    {"run", "target_tokens", CONFIG_F64, .min = 1,
     .help = "the run is done when it has trained on so many"},
    {"run", "repetitions", CONFIG_U64, .def = "1000", .min = 1, .max = 1e6},
    {"run", "join", CONFIG_DURATION, .def = "3m", .help = "from a job's start to its first step"},
    {"run", "overhead", CONFIG_F64, .def = "0.02", .max = 0.9,
     .help = "share of the time that rounds cost"},
    {"run", "horizon", CONFIG_DURATION, .def = "60d", .min = 3600e9,
     .help = "a run that has not reached its target by then counts with this time"},
    {"planner", "tick", CONFIG_DURATION, .def = "1h", .min = 60e9, .help = "from look to look"},
    {"planner", "draws", CONFIG_U64, .def = "24", .min = 1, .max = 256,
     .help = "futures a choice is judged by"},
    {"planner", "prior", CONFIG_DURATION, .def = "2h", .help = "a wait where nothing is known"},
};

/* The keys of one site; the first has to be given for each site that counts. */
static const struct config_key per_site[SCENARIO_KEYS] = {
    {NULL, "name", CONFIG_STRING, .def = "", .max = 31,
     .help = "the site counts where this is given"},
    {NULL, "shapes", CONFIG_STRINGS, .def = "", .max = PLAN_SHAPES_MAX,
     .help = "NODESxLIMIT: what may be submitted; the first is what other policies use"},
    {NULL, "tokens_per_node_s", CONFIG_F64, .def = "1", .help = "training speed of one node"},
    {NULL, "scaling", CONFIG_F64, .def = "1", .max = 1.5,
     .help = "speed of n nodes: n to this power times that of one"},
    {NULL, "waiting_max", CONFIG_U64, .def = "2", .min = 1, .max = PLAN_JOBS_MAX - 1,
     .help = "jobs that may wait at a time"},
    {NULL, "budget_node_hours", CONFIG_F64, .def = "0", .help = "0: no limit"},
    {NULL, "trace", CONFIG_STRING, .def = "", .max = 512,
     .help = "replay this trace (Standard Workload Format) rather than the idealised queue"},
    {NULL, "trace_nodes", CONFIG_F64, .def = "0",
     .help = "of the replayed machine; 0: the trace's"},
    {NULL, "wait_median", CONFIG_DURATION, .def = "2h", .help = "of a job of the first shape"},
    {NULL, "nodes_exponent", CONFIG_F64, .def = "0.4"},
    {NULL, "hours_exponent", CONFIG_F64, .def = "0.4"},
    {NULL, "spread", CONFIG_F64, .def = "0.8", .help = "standard deviation of log(wait)"},
    {NULL, "congestion", CONFIG_F64, .def = "0.7",
     .help = "the like of what all jobs of a time share"},
    {NULL, "congestion_time", CONFIG_DURATION, .def = "12h", .help = "how long that lasts"},
    {NULL, "daily", CONFIG_F64, .def = "0.3", .help = "amplitude of its daily wave"},
    {NULL, "estimate_bias", CONFIG_F64, .def = "2.5", .min = 1e-3, .max = 1e3,
     .help = "the scheduler's estimate over the true wait"},
    {NULL, "estimate_noise", CONFIG_F64, .def = "0.7",
     .help = "standard deviation of its logarithm"},
    {NULL, "refused", CONFIG_F64, .def = "0.05", .max = 1,
     .help = "share of probes that are refused"},
    {NULL, "estimate_hidden", CONFIG_BOOL, .def = "false",
     .help = "the scheduler tells no estimate"},
};

static const char *const sections[SCENARIO_SITES_MAX] = {"site1", "site2", "site3", "site4",
                                                         "site5", "site6", "site7", "site8"};

struct scenario *scenario_create(void) {
    struct scenario *s = mem_alloc(1, sizeof *s);
    s->config = config_create();
    config_declare(s->config, general, ARRAY_COUNT(general));
    for (size_t i = 0; i < SCENARIO_SITES_MAX; i++) {
        for (size_t k = 0; k < SCENARIO_KEYS; k++) {
            s->keys[i * SCENARIO_KEYS + k] = per_site[k];
            s->keys[i * SCENARIO_KEYS + k].section = sections[i];
        }
    }
    config_declare(s->config, s->keys, ARRAY_COUNT(s->keys));
    return s;
}

const struct config_key *scenario_general_keys(size_t *out_count) {
    *out_count = ARRAY_COUNT(general);
    return general;
}

void scenario_destroy(struct scenario *s) {
    if (!s) return;
    for (size_t i = 0; i < SCENARIO_SITES_MAX; i++) swf_fini(&s->traces[i]);
    config_destroy(s->config);
    mem_free(s);
}

static double seconds(const struct config *c, const char *section, const char *name) {
    return (double)config_duration(c, section, name) / NS_PER_S;
}

bool scenario_shape(const char *text, struct plan_shape *out) {
    const char *x = strchr(text, 'x');
    char nodes[16];
    uint64_t n;
    time_ns limit;
    if (!x || x == text || (size_t)(x - text) >= sizeof nodes || strlen(text) >= sizeof out->name)
        return false;
    memcpy(nodes, text, (size_t)(x - text));
    nodes[x - text] = 0;
    if (!parse_u64(nodes, &n) || n == 0 || !parse_duration(x + 1, &limit)) return false;
    if (limit < 60 * (time_ns)NS_PER_S) return false;
    *out = (struct plan_shape){.nodes = (double)n, .limit_s = (double)limit / NS_PER_S};
    (void)snprintf(out->name, sizeof out->name, "%s", text);
    return true;
}

static enum brg_status take_shapes(struct scenario *s, const char *section, struct plan_site *out,
                                   struct err *e) {
    const struct config *c = s->config;
    double speed = config_f64(c, section, "tokens_per_node_s");
    if (!(speed > 0)) TRY(config_fail(c, section, "tokens_per_node_s", e, "must be above 0"));
    out->shapes_count = (uint32_t)config_strings_count(c, section, "shapes");
    if (out->shapes_count == 0)
        TRY(config_fail(c, section, "shapes", e, "names no shape; give e.g. [16x12h, 4x4h]"));
    for (uint32_t i = 0; i < out->shapes_count; i++) {
        const char *text = config_string_at(c, section, "shapes", i);
        struct plan_shape *h = &out->shapes[i];
        if (!scenario_shape(text, h))
            TRY(config_fail(c, section, "shapes", e,
                            "\"%.40s\" is no shape; give nodes and a limit of at least a minute, "
                            "as in 16x12h",
                            text));
        h->tokens_per_s = speed * pow(h->nodes, config_f64(c, section, "scaling"));
    }
    return BRG_OK;
}

static void take_queue(const struct config *c, const char *section, struct ideal_queue *q) {
    *q = (struct ideal_queue){.median_s = seconds(c, section, "wait_median"),
                              .nodes_exponent = config_f64(c, section, "nodes_exponent"),
                              .hours_exponent = config_f64(c, section, "hours_exponent"),
                              .spread = config_f64(c, section, "spread"),
                              .congestion = config_f64(c, section, "congestion"),
                              .congestion_s = seconds(c, section, "congestion_time"),
                              .daily = config_f64(c, section, "daily"),
                              .estimate_bias = config_f64(c, section, "estimate_bias"),
                              .estimate_noise = config_f64(c, section, "estimate_noise"),
                              .refused = config_bool(c, section, "estimate_hidden")
                                             ? 1.0
                                             : config_f64(c, section, "refused")};
}

static enum brg_status take_site(struct scenario *s, const char *section, struct err *e) {
    struct project *p = &s->project;
    struct plan_site *f = &p->facility[p->sites_count];
    struct world_site *w = &p->sites[p->sites_count];
    const struct config *c = s->config;
    (void)snprintf(f->name, sizeof f->name, "%s", config_string(c, section, "name"));
    TRY(take_shapes(s, section, f, e));
    f->waiting_max = (uint32_t)config_u64(c, section, "waiting_max");
    double budget = config_f64(c, section, "budget_node_hours");
    f->budget_left_s = budget > 0 ? budget * 3600 : HUGE_VAL;
    w->site = f;
    take_queue(c, section, &w->ideal);
    w->trace_nodes = config_f64(c, section, "trace_nodes");
    p->sites_count++;
    return BRG_OK;
}

enum brg_status scenario_take(struct scenario *s, struct err *e) {
    struct project *p = &s->project;
    const struct config *c = s->config;
    p->target_tokens = config_f64(c, "run", "target_tokens");
    p->horizon_s = seconds(c, "run", "horizon");
    p->prior_s = seconds(c, "planner", "prior");
    p->plan = plan_options_default();
    p->plan.join_s = seconds(c, "run", "join");
    p->plan.overhead = config_f64(c, "run", "overhead");
    p->plan.tick_s = seconds(c, "planner", "tick");
    p->plan.draws = (uint32_t)config_u64(c, "planner", "draws");
    s->repetitions = (uint32_t)config_u64(c, "run", "repetitions");
    for (size_t i = 0; i < SCENARIO_SITES_MAX; i++)
        if (config_string(c, sections[i], "name")[0] != 0) TRY(take_site(s, sections[i], e));
    if (p->sites_count == 0)
        return config_fail(c, "run", "target_tokens", e,
                           "there is a target but no site; give site1 a name and shapes");
    return BRG_OK;
}
