/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check.c - beringia check: a file of settings, looked at as a whole before it costs a night. The readers are those of
 * the commands that use the files; here they tell of every fault rather than of the first. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/cli.h"
#include "hub/settings.h"
#include "place/scenario.h"
#include "place/sitefile.h"
#include "train/train.h"
#include "wire/net_os.h"

static const char HELP[] =
    "beringia check - are these files right? All faults at once, before anything is started\n"
    "\n"
    "  beringia check [--kind KIND] FILE...\n"
    "\n"
    "  --kind KIND  run, site, scenario or model; without it the sections in the file tell\n"
    "\n"
    "run is RUN/run.yaml, or what beringia init --config takes; with run.json beside it the run's\n"
    "size counts too. site is the site.yaml of an agent (docs/agent.md); its script, token and CA\n"
    "are looked for. scenario is of beringia project (docs/placement.md), with its traces. model "
    "is\n"
    "the config.json of a model.\n"
    "\n"
    "Each fault is a line on standard error: file:line:column, key, what is wrong, what to do. "
    "What\n"
    "depends on several keys is looked at where every key can be read. Ends with 0, or the status "
    "of\n"
    "the first fault: 3 (E_CONFIG), 24 (E_MODEL), 4 (a file is missing), 2 (kind not to be seen).\n"
    "\n"
    "examples\n"
    "  beringia check myrun/run.yaml\n"
    "  beringia check site.yaml && beringia agent --site site.yaml\n";

enum kind { KIND_UNKNOWN, KIND_RUN, KIND_SITE, KIND_SCENARIO, KIND_MODEL };
static const char *const kinds[] = {"", "run", "site", "scenario", "model"};

struct check {
    const char *file;
    struct buf text;
    size_t faults;
    enum brg_status status; /* of the first fault of all files */
};

static void tell(void *user, const struct err *e) {
    struct check *x = user;
    x->faults++;
    if (x->status == BRG_OK) x->status = e->status;
    (void)cli_fail("check", e);
}

/* ---- Which kind ------------------------------------------------------------------------------------- */
static enum kind section_kind(const char *name, size_t n) {
    static const struct {
        const char *name;
        enum kind kind;
    } known[] = {{"train", KIND_RUN},       {"outer", KIND_RUN},   {"lease", KIND_RUN},
                 {"hub", KIND_RUN},         {"site", KIND_SITE},   {"job", KIND_SITE},
                 {"etiquette", KIND_SITE},  {"budget", KIND_SITE}, {"courier", KIND_SITE},
                 {"planner", KIND_SCENARIO}};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0) return known[i].kind;
    if (n > 6 && memcmp(name, "shape_", 6) == 0) return KIND_SITE;
    if (n == 5 && memcmp(name, "site", 4) == 0 && name[4] >= '1' && name[4] <= '9')
        return KIND_SCENARIO;
    return KIND_UNKNOWN;
}

/* By the names at the start of lines; `run` is a section of two kinds, and counts where nothing else does. */
static enum kind kind_of(const char *text) {
    size_t votes[ARRAY_COUNT(kinds)] = {0};
    enum kind best = KIND_UNKNOWN;
    if (text[strspn(text, " \t\r\n")] == '{') return KIND_MODEL;
    for (const char *line = text; *line != '\0';) {
        size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (line[n] == ':') {
            votes[section_kind(line, n)] += 2;
            if (n == 3 && memcmp(line, "run", 3) == 0) votes[KIND_RUN]++;
        }
        line += strcspn(line, "\n");
        if (*line == '\n') line++;
    }
    for (size_t k = KIND_RUN; k <= KIND_SCENARIO; k++)
        if (votes[k] > 0 && (best == KIND_UNKNOWN || votes[k] > votes[best])) best = (enum kind)k;
    return best;
}

/* ---- One file of each kind -------------------------------------------------------------------------- */
static const char *beside(const char *file, const char *name, char out[OS_PATH_MAX]) {
    const char *slash = strrchr(file, '/');
    if (name[0] == '/' || slash == NULL)
        (void)snprintf(out, OS_PATH_MAX, "%s", name);
    else
        (void)snprintf(out, OS_PATH_MAX, "%.*s/%s", (int)(slash - file), file, name);
    return out;
}

/* Those of the run that the file lies in; else ones that no rule is broken by. */
static enum brg_status facts_of(const char *file, struct run_facts *out, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 16);
    memset(out, 0, sizeof *out);
    out->positions = UINT64_C(1) << 50;
    out->parameters = out->matrix_side = 1;
    out->seq_len = 1;
    if (!os_exists(beside(file, "run.json", path))) return BRG_OK;
    TRY(os_read_file(path, b.bytes_max, &b, e));
    if (run_facts_decode(b.data, b.bytes_count, out, e) == BRG_OK) return BRG_OK;
    return err_prefix(e, "%s", path);
}

static enum brg_status check_run(struct check *x, struct err *e) {
    struct config *c = config_create();
    struct run_settings *s = mem_alloc(1, sizeof *s);
    struct run_facts facts;
    run_settings_declare(c);
    config_collect(c, tell, x);
    enum brg_status st = config_parse(c, x->file, x->text.data, x->text.bytes_count, e);
    if (st == BRG_OK || config_faults_count(c) > 0) st = config_finish(c, e);
    if (st == BRG_OK && config_faults_count(c) == 0) st = facts_of(x->file, &facts, e);
    if (st == BRG_OK && config_faults_count(c) == 0) st = run_settings_take(c, &facts, s, e);
    config_destroy(c);
    mem_free(s);
    return st;
}

/* The files that it names. */
static enum brg_status site_files(const char *file, const struct place_site *s, struct err *e) {
    char path[OS_PATH_MAX], token[OS_PATH_MAX], ca[OS_PATH_MAX];
    struct net_identity *id = mem_alloc(1, sizeof *id);
    if (access(beside(file, s->script, path), R_OK) != 0) {
        mem_free(id);
        return err_set(
            e, BRG_E_MISSING,
            "%s: job.script: %s is not there, or not readable; docs/agent.md has one to begin with",
            file, path);
    }
    enum brg_status st =
        net_identity_open(s->hub, s->token[0] != '\0' ? beside(file, s->token, token) : NULL,
                          s->ca[0] != '\0' ? beside(file, s->ca, ca) : NULL, id, e);
    net_identity_fini(id);
    mem_free(id);
    return st == BRG_OK ? st : err_prefix(e, "%s", file);
}

static enum brg_status check_site(struct check *x, struct err *e) {
    struct place_site *s = mem_alloc(1, sizeof *s);
    enum brg_status st = sitefile_check(x->file,
                                        x->text.data != NULL ? (const char *)x->text.data : "",
                                        x->text.bytes_count, tell, x, s, e);
    if (st == BRG_OK) st = site_files(x->file, s, e);
    mem_free(s);
    return st;
}

static enum brg_status check_scenario(struct check *x, struct err *e) {
    struct scenario *s = scenario_create();
    config_collect(s->config, tell, x);
    enum brg_status st = config_parse(s->config, x->file, x->text.data, x->text.bytes_count, e);
    if (st == BRG_OK || config_faults_count(s->config) > 0) st = config_finish(s->config, e);
    if (st == BRG_OK && config_faults_count(s->config) == 0)
        st = scenario_read(s, x->file, NULL, 0, e);
    scenario_destroy(s);
    return st;
}

static enum brg_status check_model(struct check *x, struct err *e) {
    struct model_config m;
    return model_config_parse((const char *)x->text.data, x->text.bytes_count, x->file, &m, e);
}

static void check_one(struct check *x, enum kind kind) {
    struct err e = {0};
    x->faults = 0;
    buf_reset(&x->text);
    enum brg_status s = os_read_file(x->file, CONFIG_FILE_BYTES_MAX, &x->text, &e);
    if (s == BRG_OK && kind == KIND_UNKNOWN) kind = kind_of(buf_cstr(&x->text));
    if (s == BRG_OK)
        s = kind == KIND_RUN        ? check_run(x, &e)
            : kind == KIND_SITE     ? check_site(x, &e)
            : kind == KIND_SCENARIO ? check_scenario(x, &e)
            : kind == KIND_MODEL
                ? check_model(x, &e)
                : err_set(&e, BRG_E_USAGE,
                          "%s: no section tells what this file is; say --kind run, site, "
                          "scenario or model",
                          x->file);
    if (s != BRG_OK && x->faults == 0) tell(x, &e);
    if (x->faults == 0)
        printf("%s: %s: fine\n", x->file, kinds[kind]);
    else
        printf("%s: %s: %zu fault%s\n", x->file, kinds[kind][0] != '\0' ? kinds[kind] : "not read",
               x->faults, x->faults == 1 ? "" : "s");
    (void)fflush(stdout);
}

int cmd_check(int argc, char **argv) {
    static const struct option options[] = {
        {"kind", 1, NULL, 'k'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    enum kind kind = KIND_UNKNOWN;
    struct check x = {0};
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 'k':
            for (size_t k = KIND_RUN; k < ARRAY_COUNT(kinds); k++)
                if (strcmp(optarg, kinds[k]) == 0) kind = (enum kind)k;
            if (kind == KIND_UNKNOWN)
                return cli_usage("check", "--kind wants run, site, scenario or model, not", optarg);
            break;
        case 'h': fputs(HELP, stdout); return 0;
        default: return cli_bad_option("check", argv);
        }
    }
    if (optind >= argc) return cli_usage("check", "want a file", "");
    buf_init(&x.text, CONFIG_FILE_BYTES_MAX + 1);
    for (int i = optind; i < argc; i++) {
        x.file = argv[i];
        check_one(&x, kind);
    }
    buf_fini(&x.text);
    return (int)x.status;
}
