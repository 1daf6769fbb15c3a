/* SPDX-License-Identifier: Apache-2.0 */
/* sitefile.c - site.yaml by the house's YAML reader. Sections shape_NAME are declared as they are met: one
 * look over the text finds their names, then the strict reader reads all of it.
 *
 * What would take away from the agent what it decides itself (the job's name, whether it is a test, what
 * it depends on) is refused among the options; the rest is the user's own business. */
#include "place/sitefile.h"

#include <stdio.h>
#include <string.h>

#include "wire/agent.h"

#define SECOND 1e9
static const char *const scheduler_names[] = {"slurm", "local", NULL};
static const char *const chain_names[] = {"after", "free", NULL};

static const struct config_key fixed_keys[] = {
    {"site", "name", CONFIG_STRING, .min = 1, .max = PLACE_NAME_MAX - 1,
     .help = "of this facility in the run"},
    {"site", "hub", CONFIG_STRING, .min = 1, .max = SITE_PATH_MAX - 1,
     .help = "address of the hub"},
    {"site", "token", CONFIG_STRING, .def = "", .max = SITE_PATH_MAX - 1,
     .help = "a file with this site's token, mode 0600"},
    {"site", "ca", CONFIG_STRING, .def = "", .max = SITE_PATH_MAX - 1,
     .help = "a file with the CA of the hub's certificate, PEM; empty: the system's"},
    {"site", "fabric", CONFIG_STRING, .def = "", .max = WIRE_FABRIC_MAX - 1,
     .help = "where its jobs' sites stand, as in europe/alder; docs/topology.md"},
    {"site", "state", CONFIG_STRING, .min = 1, .max = SITE_PATH_MAX - 100,
     .help = "directory of the agent, on a disk that all login nodes share"},
    {"site", "scheduler", CONFIG_ENUM, .def = "slurm", .choices = scheduler_names,
     .help = "who runs the jobs"},
    {"job", "script", CONFIG_STRING, .min = 1, .max = SITE_PATH_MAX - 1,
     .help = "submitted as it is; docs/agent.md has one"},
    {"job", "options", CONFIG_STRINGS, .def = "", .max = SITE_OPTIONS_MAX,
     .help = "of the scheduler, for every job"},
    {"job", "drain", CONFIG_DURATION, .def = "2m", .min = 0, .max = 86400 * SECOND,
     .help = "USR1 so long before the time limit"},
    {"job", "chain", CONFIG_ENUM, .def = "after", .choices = chain_names,
     .help = "after: a job of a chain depends on the one before it"},
    {"etiquette", "probe", CONFIG_DURATION, .def = "10m", .min = SECOND, .max = 86400 * SECOND,
     .help = "between two probes of a shape"},
    {"etiquette", "look", CONFIG_DURATION, .def = "1m", .min = SECOND, .max = 86400 * SECOND,
     .help = "between two looks at the queue"},
    {"etiquette", "hub", CONFIG_DURATION, .def = "30s", .min = SECOND / 5, .max = 3600 * SECOND,
     .help = "between two questions to the hub"},
    {"etiquette", "timeout", CONFIG_DURATION, .def = "2m", .min = SECOND, .max = 3600 * SECOND,
     .help = "when a command of the scheduler is given up"},
    {"etiquette", "settle", CONFIG_DURATION, .def = "2m", .min = SECOND, .max = 86400 * SECOND,
     .help = "how late a submission without an answer may still arrive"},
    {"etiquette", "commands_per_hour", CONFIG_U64, .def = "120", .min = 1, .max = 100000,
     .help = "at most so many commands of the scheduler"},
    {"etiquette", "jitter", CONFIG_F64, .def = "0.2", .min = 0, .max = 1,
     .help = "intervals grow by up to this share, at random"},
    {"budget", "node_hours", CONFIG_F64, .min = 0, .max = 1e12,
     .help = "for ever, at this facility; jobs count by their time limit until they end"},
    {"budget", "jobs", CONFIG_U64, .def = "2", .min = 1, .max = 64,
     .help = "queued and running at a time"},
    {"local", "nodes", CONFIG_U64, .def = "1", .min = 1, .max = 64,
     .help = "scheduler: local: so many jobs run at a time"},
    {"courier", "spool", CONFIG_STRING, .def = "", .max = SITE_PATH_MAX - 100,
     .help = "directory for jobs without a network"},
};

enum { SHAPE_KEYS = 8, FILE_SHAPES_MAX = SITE_SHAPES_MAX };
struct shape_keys {
    char section[64];
    struct config_key keys[SHAPE_KEYS];
};

static void shape_keys_fill(struct shape_keys *k) {
    const struct config_key keys[SHAPE_KEYS] = {
        {k->section, "partition", CONFIG_STRING, .def = "", .max = 63, .help = "partition"},
        {k->section, "account", CONFIG_STRING, .def = "", .max = 63, .help = "account"},
        {k->section, "qos", CONFIG_STRING, .def = "", .max = 63, .help = "QOS"},
        {k->section, "nodes", CONFIG_U64, .def = "1", .min = 1, .max = 100000, .help = "nodes"},
        {k->section, "tasks", CONFIG_U64, .def = "0", .max = 100000, .help = "tasks of a node"},
        {k->section, "gpus", CONFIG_U64, .def = "0", .max = 1000, .help = "GPUs of a node"},
        {k->section, "time", CONFIG_DURATION, .min = SECOND, .max = 366 * 86400 * SECOND,
         .help = "time limit"},
        {k->section, "options", CONFIG_STRINGS, .def = "", .max = SITE_OPTIONS_MAX,
         .help = "of the scheduler, for this shape"},
    };
    memcpy(k->keys, keys, sizeof keys);
}

static void shape_declare(struct config *c, struct shape_keys *k) {
    shape_keys_fill(k);
    config_declare(c, k->keys, SHAPE_KEYS);
}

void sitefile_keys(struct sitefile_keys *out) {
    struct shape_keys shape = {.section = "shape_NAME"};
    static_assert(ARRAY_COUNT(fixed_keys) + SHAPE_KEYS <= SITEFILE_KEYS_MAX, "room for all keys");
    memset(out, 0, sizeof *out);
    shape_keys_fill(&shape);
    memcpy(out->section, shape.section, sizeof out->section);
    memcpy(out->keys, fixed_keys, sizeof fixed_keys);
    memcpy(out->keys + ARRAY_COUNT(fixed_keys), shape.keys, sizeof shape.keys);
    out->count = ARRAY_COUNT(fixed_keys) + SHAPE_KEYS;
    for (size_t i = ARRAY_COUNT(fixed_keys); i < out->count; i++)
        out->keys[i].section = out->section;
}

/* Sections that begin a line with "shape_": their names, each once. */
static enum brg_status shapes_find(const char *file, const char *text, size_t n,
                                   struct shape_keys *keys, uint32_t *out_count, struct err *e) {
    const char *p = text, *end = text + n;
    *out_count = 0;
    while (p < end) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        if (line_end == NULL) line_end = end;
        size_t at = 0, length = (size_t)(line_end - p);
        while (at < length &&
               ((p[at] >= 'a' && p[at] <= 'z') || (p[at] >= '0' && p[at] <= '9') || p[at] == '_'))
            at++;
        bool shape = at > 6 && at < length && p[at] == ':' && memcmp(p, "shape_", 6) == 0;
        const char *name = p;
        p = line_end + 1;
        if (!shape) continue;
        if (at >= PLACE_NAME_MAX)
            return err_set(e, BRG_E_CONFIG, "%s: %.*s: a shape's name has at most %d bytes", file,
                           (int)at, name, PLACE_NAME_MAX - 7);
        bool again = false;
        for (uint32_t i = 0; i < *out_count; i++)
            again = again ||
                    (strlen(keys[i].section) == at && memcmp(keys[i].section, name, at) == 0);
        if (again) continue; /* the strict reader says where */
        if (*out_count == FILE_SHAPES_MAX)
            return err_set(e, BRG_E_CONFIG, "%s: more than %d shapes; remove some", file,
                           FILE_SHAPES_MAX);
        memcpy(keys[*out_count].section, name, at);
        keys[(*out_count)++].section[at] = '\0';
    }
    return BRG_OK;
}

/* ---- Words of commands ------------------------------------------------------------------------- */

/* Options that the agent gives itself, or that would change what an answer means. */
static bool option_ours(const char *option) {
    static const char *const longs[] = {"--job-name", "--array",   "--test-only", "--parsable",
                                        "--quiet",    "--wrap",    "--wait",      "--dependency",
                                        "--hold",     "--nodes",   "--time",      "--partition",
                                        "--account",  "--qos",     "--signal",    "--help",
                                        "--usage",    "--version", "--verbose",   "--clusters"};
    static const char shorts[] = "JaQWdHNtpAqhVvM";
    if (option[0] == '-' && option[1] != '-' && option[1] != '\0')
        return strchr(shorts, option[1]) != NULL;
    for (size_t i = 0; i < ARRAY_COUNT(longs); i++) {
        size_t n = strcspn(option, "=");
        /* getopt takes abbreviations: --test is --test-only. */
        if (n > 2 && strncmp(longs[i], option, n) == 0) return true;
    }
    return false;
}

static enum brg_status options_take(const struct config *c, const char *section,
                                    char (*out)[SITE_WORD_MAX], uint32_t *out_count,
                                    struct err *e) {
    size_t count = config_strings_count(c, section, "options");
    for (size_t i = 0; i < count; i++) {
        const char *o = config_string_at(c, section, "options", i);
        if (o[0] != '-' || strlen(o) >= SITE_WORD_MAX || !wire_word_clean(o))
            TRY(config_fail(c, section, "options", e,
                            "\"%.60s\": want one option with its value, such as --constraint=x",
                            o));
        else if (option_ours(o))
            TRY(config_fail(c, section, "options", e,
                            "%.60s is given by the agent itself; remove it", o));
        (void)snprintf(out[i], SITE_WORD_MAX, "%s", o);
    }
    *out_count = (uint32_t)count;
    return BRG_OK;
}

static enum brg_status word_take(const struct config *c, const char *section, const char *key,
                                 char *out, size_t cap, struct err *e) {
    const char *v = config_string(c, section, key);
    if (v[0] == '-' || !wire_word_clean(v))
        TRY(config_fail(c, section, key, e, "want a plain text that begins with no '-'"));
    (void)snprintf(out, cap, "%s", v);
    return BRG_OK;
}

static enum brg_status shape_take(const struct config *c, const char *section,
                                  struct place_shape *s, struct err *e) {
    (void)snprintf(s->name, sizeof s->name, "%s", section + strlen("shape_"));
    if (!wire_name_valid(s->name))
        TRY(config_fail(c, section, "time", e,
                        "%s: the name behind shape_ begins with a letter or digit", section));
    TRY(word_take(c, section, "partition", s->partition, sizeof s->partition, e));
    TRY(word_take(c, section, "account", s->account, sizeof s->account, e));
    TRY(word_take(c, section, "qos", s->qos, sizeof s->qos, e));
    s->nodes = (uint32_t)config_u64(c, section, "nodes");
    s->tasks = (uint32_t)config_u64(c, section, "tasks");
    s->gpus = (uint32_t)config_u64(c, section, "gpus");
    s->time_s = (uint64_t)(config_duration(c, section, "time") / NS_PER_S);
    return options_take(c, section, s->options, &s->options_count, e);
}

/* ---- Whole ------------------------------------------------------------------------------------- */

static enum brg_status fixed_take(const struct config *c, struct place_site *s, struct err *e) {
    TRY(word_take(c, "site", "name", s->name, sizeof s->name, e));
    if (!wire_name_valid(s->name))
        TRY(config_fail(c, "site", "name", e, "want [a-z0-9][a-z0-9_-]*, at most %d bytes",
                        WIRE_NAME_MAX - 1));
    TRY(word_take(c, "site", "hub", s->hub, sizeof s->hub, e));
    bool bucket = strncmp(s->hub, "bucket:s3://", 12) == 0;
    if (strncmp(s->hub, "http://", 7) != 0 && strncmp(s->hub, "https://", 8) != 0 && !bucket)
        TRY(config_fail(c, "site", "hub", e,
                        "want http://HOST:PORT, https://... or bucket:s3://BUCKET/PREFIX"));
    TRY(word_take(c, "site", "token", s->token, sizeof s->token, e));
    TRY(word_take(c, "site", "ca", s->ca, sizeof s->ca, e));
    TRY(word_take(c, "site", "fabric", s->fabric, sizeof s->fabric, e));
    if (s->fabric[0] != '\0' && !wire_fabric_valid(s->fabric))
        TRY(config_fail(
            c, "site", "fabric", e,
            "want up to three words of a-z 0-9 - _ with / between, as in europe/alder"));
    TRY(word_take(c, "site", "state", s->state, sizeof s->state, e));
    TRY(word_take(c, "job", "script", s->script, sizeof s->script, e));
    TRY(word_take(c, "courier", "spool", s->spool, sizeof s->spool, e));
    if (bucket && s->spool[0] != '\0')
        TRY(config_fail(c, "courier", "spool", e,
                        "a courier carries to a hub by HTTP; site.hub is a bucket, to which jobs "
                        "go themselves"));
    s->scheduler = (enum place_scheduler)config_enum(c, "site", "scheduler");
    s->drain_s = (uint64_t)(config_duration(c, "job", "drain") / NS_PER_S);
    s->chain_after = config_enum(c, "job", "chain") == 0;
    s->probe_ns = config_duration(c, "etiquette", "probe");
    s->look_ns = config_duration(c, "etiquette", "look");
    s->hub_ns = config_duration(c, "etiquette", "hub");
    s->timeout_ns = config_duration(c, "etiquette", "timeout");
    s->settle_ns = config_duration(c, "etiquette", "settle");
    s->commands_per_hour = config_u64(c, "etiquette", "commands_per_hour");
    s->jitter = config_f64(c, "etiquette", "jitter");
    s->node_hours = config_f64(c, "budget", "node_hours");
    s->jobs_max = config_u64(c, "budget", "jobs");
    s->local_nodes = config_u64(c, "local", "nodes");
    return options_take(c, "job", s->options, &s->options_count, e);
}

static enum brg_status site_take(struct config *c, const char *file, const void *text, size_t n,
                                 const struct shape_keys *keys, uint32_t shapes,
                                 struct place_site *s, struct err *e) {
    enum brg_status parsed = config_parse(c, file, text, n, e);
    if (parsed != BRG_OK && config_faults_count(c) == 0) return parsed;
    TRY(config_finish(c, e));
    if (parsed != BRG_OK) return parsed;
    TRY(fixed_take(c, s, e));
    if (shapes == 0)
        return err_set(e, BRG_E_CONFIG,
                       "%s: no shape; add a section such as \"shape_small: {nodes: 1, time: 1h}\"",
                       file);
    for (uint32_t i = 0; i < shapes; i++) {
        TRY(shape_take(c, keys[i].section, &s->shapes[i], e));
        if (s->scheduler == PLACE_SLURM) /* which counts in minutes */
            s->shapes[i].time_s = (s->shapes[i].time_s + 59) / 60 * 60;
        if (s->drain_s >= s->shapes[i].time_s && s->drain_s > 0)
            TRY(config_fail(c, keys[i].section, "time", e,
                            "the time limit is not longer than job.drain"));
    }
    s->shapes_count = shapes;
    return BRG_OK;
}

enum brg_status sitefile_parse(const char *file, const void *text, size_t n, struct place_site *out,
                               struct err *e) {
    return sitefile_check(file, text, n, NULL, NULL, out, e);
}

enum brg_status sitefile_check(const char *file, const void *text, size_t n, config_fault *tell,
                               void *user, struct place_site *out, struct err *e) {
    struct shape_keys *keys = mem_alloc(FILE_SHAPES_MAX, sizeof *keys);
    struct place_site *s = mem_alloc(1, sizeof *s);
    struct config *c = config_create();
    uint32_t shapes = 0;
    if (tell != NULL) config_collect(c, tell, user);
    enum brg_status status = shapes_find(file, text, n, keys, &shapes, e);
    config_declare(c, fixed_keys, ARRAY_COUNT(fixed_keys));
    for (uint32_t i = 0; i < shapes && status == BRG_OK; i++) shape_declare(c, &keys[i]);
    if (status == BRG_OK) status = site_take(c, file, text, n, keys, shapes, s, e);
    if (status == BRG_OK && config_faults_count(c) > 0)
        status = err_set(e, BRG_E_CONFIG, "%s: %zu faults", file, config_faults_count(c));
    if (status == BRG_OK) *out = *s;
    config_destroy(c);
    mem_free(keys);
    mem_free(s);
    return status;
}

const struct place_shape *sitefile_shape(const struct place_site *s, const char *name) {
    for (uint32_t i = 0; i < s->shapes_count; i++)
        if (strcmp(s->shapes[i].name, name) == 0) return &s->shapes[i];
    return NULL;
}
