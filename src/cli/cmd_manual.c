/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_manual.c - beringia manual: the pages of sections 1 and 5, made from --help and from the tables of keys by
 * which the program itself reads its files. Section 7, the ideas, is written by hand: man/man7. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/cli.h"
#include "cli/help_text.h"
#include "cli/manual.h"
#include "hub/settings.h"
#include "place/scenario.h"
#include "place/sitefile.h"

static const char HELP[] =
    "beringia manual - the texts of --help as pages for man\n"
    "\n"
    "  beringia manual                list the pages\n"
    "  beringia manual PAGE           print one, in mdoc's form\n"
    "  beringia manual --out DIR      write all, to DIR/man1 and DIR/man5\n"
    "\n"
    "  --out DIR  where they go; what is there is replaced\n"
    "\n"
    "make install, the package and the tarball bring them: man beringia, man beringia-site,\n"
    "man beringia-run.yaml, man 7 beringia. Without an installation:\n"
    "\n"
    "examples\n"
    "  beringia manual beringia-site | man -l -\n"
    "  beringia manual --out ~/.local/share/man\n";

enum { PAGE_BYTES_MAX = 1 << 20 };
typedef void page_fn(struct buf *out, const struct cli_command *all, size_t count);

/* ---- beringia(1) ---------------------------------------------------------------------------------- */
static const struct {
    const char *name, *what;
} variables[] = {
    {"BERINGIA_MEMORY",
     "Where a site keeps the state of its last steps, where --memory is not given."},
    {"BERINGIA_TOKEN_FILE", "A file with the token, mode 0600, where --token is not given."},
    {"BERINGIA_TOKEN", "The token itself, where neither is given."},
    {"BERINGIA_CA", "The hub's CA, PEM, where --ca is not given."},
    {"BERINGIA_S3_CA", "The CA of the run's object store, PEM, where it is none of the system's."},
    {"AWS_ACCESS_KEY_ID",
     "The hub's credentials for that store, where blobs.credentials is empty; a site's with --hub "
     "bucket:..."},
    {"AWS_SECRET_ACCESS_KEY", "The same."},
    {"AWS_SESSION_TOKEN", "The same, where they are for a while."},
    {"AWS_SHARED_CREDENTIALS_FILE", "A file of them, instead of ~/.aws/credentials."},
    {"AWS_PROFILE", "Which of the file's sections; default: default."},
    {"AWS_ENDPOINT_URL", "Where that store is, for a site with --hub bucket:...: https://HOST."},
    {"AWS_ENDPOINT_URL_S3", "The same; it counts first."},
    {"AWS_REGION", "Its region for such a site; AWS_DEFAULT_REGION too; else us-east-1."},
    {"BERINGIA_FABRIC", "Where a site stands, as in europe/alder, where --fabric is not given."},
    {"BERINGIA_SHARE", "Where the descriptions of models are looked for."},
    {"BERINGIA_MPI", "The file that speaks MPI, beringia-mpi.so."},
    {"BERINGIA_HISTORY", "A file that gets each message of a site and its answer, for tests."},
    {"BERINGIA_FAULT", "A point at which the program is to fail, for tests."},
    {"https_proxy", "The proxy on the way to the hub; http_proxy and all_proxy too."},
    {"no_proxy", "Hosts that are reached without it."},
    {"NO_COLOR", "Set to anything: no colours, on a terminal neither."},
    {"NOTIFY_SOCKET", "Set by systemd; the hub tells it when it serves, lives and stops."},
};

static void put_commands(struct buf *out, const struct cli_command *all, size_t count) {
    buf_printf(out, ".Sh COMMANDS\n.Bl -tag -width Ds\n");
    for (size_t i = 0; i < count; i++) {
        buf_printf(out, ".It Xr beringia-%s 1\n", all[i].name);
        manual_text(out, all[i].help, all[i].help + strlen(all[i].help));
    }
    buf_printf(out, ".El\n");
}

static void page_all(struct buf *out, const struct cli_command *all, size_t count) {
    static const struct {
        const char *name, *sentence;
    } statuses[] = {
#define X(name, number, class_, sentence) {#number, sentence " (" #name ")."},
        BRG_STATUS_TABLE(X)
#undef X
    };
    static const char about[] =
        "A hub keeps one model and the ledger of its training data; sites on other machines lease "
        "data, train, and hand in what they learned, whenever their queues let them. They connect "
        "to "
        "the hub by HTTPS; nothing ever connects to them. Each sample of an epoch is merged "
        "exactly "
        "once, whatever crashes.";
    manual_head(out, "beringia", 1,
                "one language model, trained on many machines that come and go");
    buf_printf(out, ".Sh SYNOPSIS\n.Nm\n.Ar COMMAND\n.Op Ar options\n.Nm\n.Fl \\-version\n"
                    ".Sh DESCRIPTION\n");
    manual_text(out, about, about + strlen(about));
    buf_printf(out, ".Pp\nEach command tells more with\n.Fl \\-help ,\nand has a page of its own.\n"
                    "The ideas are in\n.Xr beringia 7 .\n");
    put_commands(out, all, count);
    buf_printf(out, ".Sh ENVIRONMENT\n.Bl -tag -width Ds\n");
    for (size_t i = 0; i < ARRAY_COUNT(variables); i++) {
        buf_printf(out, ".It Ev %s\n", variables[i].name);
        manual_text(out, variables[i].what, variables[i].what + strlen(variables[i].what));
    }
    buf_printf(out,
               ".El\n.Sh EXIT STATUS\nOne line on standard error names the file, the field and "
               "what to do.\n.Bl -tag -width Ds -compact\n");
    for (size_t i = 0; i < ARRAY_COUNT(statuses); i++) {
        buf_printf(out, ".It %s\n", statuses[i].name);
        manual_text(out, statuses[i].sentence, statuses[i].sentence + strlen(statuses[i].sentence));
    }
    buf_printf(out, ".El\n.Sh SEE ALSO\n.Xr beringia-run.yaml 5 ,\n.Xr beringia-scenario.yaml 5 ,\n"
                    ".Xr beringia-site.yaml 5 ,\n.Xr beringia 7\n");
}

/* ---- Section 5 ------------------------------------------------------------------------------------ */
static void page_run(struct buf *out, const struct cli_command *all, size_t count) {
    static const struct manual_settings m = {
        .name = "run.yaml",
        .what = "settings of a run",
        .about =
            "beringia init writes RUN/run.yaml with every key, its meaning and the value in force. "
            "The hub reads it at each start, and tells sites what concerns them. Change it before "
            "the first start, or between two; --config and --set of beringia init take the same "
            "keys.",
        .example = "outer:\n  steps: 50\n  codec: int4\nhub:\n  listen: 0.0.0.0:7070\n",
        .also = "beringia-hub 1 beringia-init 1 beringia 7",
    };
    size_t n;
    const struct config_key *keys = run_settings_keys(&n);
    (void)all, (void)count;
    manual_settings_begin(out, &m);
    manual_settings_keys(out, keys, n);
    manual_settings_end(out, &m);
}

static void page_site(struct buf *out, const struct cli_command *all, size_t count) {
    static const struct manual_settings m = {
        .name = "site.yaml",
        .what = "what a facility offers to a run",
        .about =
            "Read by beringia agent, and by beringia doctor --site. Everything that ends up in a "
            "command of the scheduler stands here: the hub names a shape, and cannot make the "
            "agent "
            "run anything else. A section shape_NAME is one size of job that may be submitted; "
            "there "
            "may be 32. Relative paths are those of the file's own directory.",
        .example =
            "site:\n  name: lumi\n  hub: https://hub.example.org\n  token: token\n  state: state\n"
            "job:\n  script: job.sh\nbudget:\n  node_hours: 500\n"
            "shape_small:\n  partition: standard-g\n  nodes: 4\n  time: 4h\n",
        .also = "beringia-agent 1 beringia-doctor 1 beringia-order 1 beringia 7",
    };
    struct sitefile_keys keys;
    (void)all, (void)count;
    sitefile_keys(&keys);
    manual_settings_begin(out, &m);
    manual_settings_keys(out, keys.keys, keys.count);
    manual_settings_end(out, &m);
}

static void page_scenario(struct buf *out, const struct cli_command *all, size_t count) {
    static const struct manual_settings m = {
        .name = "scenario.yaml",
        .what = "sites, queues and target of a projection",
        .about =
            "Read by beringia project. Sections site1 to site8 have the same keys; a site counts "
            "where its name is given.",
        .example = "run:\n  target_tokens: 30e9\nsite1:\n  name: north\n  shapes: [16x24h, 8x12h]\n"
                   "  tokens_per_node_s: 6000\n  wait_median: 6h\n",
        .also = "beringia-plan 1 beringia-project 1",
    };
    struct scenario *s = scenario_create();
    size_t n;
    const struct config_key *keys = scenario_general_keys(&n);
    (void)all, (void)count;
    manual_settings_begin(out, &m);
    manual_settings_keys(out, keys, n);
    manual_settings_keys(out, s->keys, SCENARIO_KEYS);
    manual_settings_end(out, &m);
    scenario_destroy(s);
}

/* ---- The list ------------------------------------------------------------------------------------- */
static const struct page {
    const char *name;
    int section;
    page_fn *write;
} pages[] = {
    {"beringia", 1, page_all},
    {"beringia-run.yaml", 5, page_run},
    {"beringia-scenario.yaml", 5, page_scenario},
    {"beringia-site.yaml", 5, page_site},
};

static const char *also_of(const char *command) {
    static const char *const settings[][2] = {{"init", "beringia-hub 1 beringia-run.yaml 5"},
                                              {"hub", "beringia-init 1 beringia-run.yaml 5"},
                                              {"agent", "beringia-site.yaml 5"},
                                              {"courier", "beringia-site.yaml 5"},
                                              {"order", "beringia-site.yaml 5"},
                                              {"doctor", "beringia-site.yaml 5"},
                                              {"project", "beringia-scenario.yaml 5"}};
    for (size_t i = 0; i < ARRAY_COUNT(settings); i++)
        if (strcmp(settings[i][0], command) == 0) return settings[i][1];
    return "";
}

static void page_command(struct buf *out, const struct cli_command *c, const char *word) {
    AUTO_BUF struct buf help;
    char name[80], also[120];
    buf_init(&help, 1 << 16);
    cli_help_of(c, word, &help);
    (void)snprintf(name, sizeof name, "beringia-%s%s%s", c->name, word != NULL ? "-" : "",
                   word != NULL ? word : "");
    (void)snprintf(also, sizeof also, "beringia 1%s%s", also_of(c->name)[0] != '\0' ? " " : "",
                   also_of(c->name));
    manual_command(out, name, buf_cstr(&help), also);
}

/* One page: listed, printed where it is the one wanted, or written. */
static enum brg_status give(struct buf *page, const char *name, int section, const char *dir,
                            struct err *e) {
    char folder[OS_PATH_MAX], path[OS_PATH_MAX];
    CHECK(!page->overflow);
    if (dir == NULL) {
        (void)fwrite(page->data, 1, page->bytes_count, stdout);
        return BRG_OK;
    }
    (void)os_path(folder, dir, "man%d", section);
    TRY(os_mkdirs(folder, e));
    (void)os_path(path, folder, "%s.%d", name, section);
    return os_write_file_atomic(path, page->data, page->bytes_count, e);
}

struct walk {
    const struct cli_command *all;
    size_t count;
    const char *only, *dir; /* both NULL: list */
    bool found;
};

static bool wanted(struct walk *w, const char *name, int section, const char *what) {
    if (w->only == NULL && w->dir == NULL) {
        printf("%-24s (%d)  %s\n", name, section, what);
        return false;
    }
    bool it = w->only == NULL || strcmp(w->only, name) == 0;
    w->found = w->found || it;
    return it;
}

static enum brg_status walk_command(struct walk *w, const struct cli_command *c, const char *word,
                                    struct err *e) {
    AUTO_BUF struct buf page;
    char name[80];
    buf_init(&page, PAGE_BYTES_MAX);
    (void)snprintf(name, sizeof name, "beringia-%s%s%s", c->name, word != NULL ? "-" : "",
                   word != NULL ? word : "");
    if (!wanted(w, name, 1, word != NULL ? "prove what the journal gives" : c->help)) return BRG_OK;
    page_command(&page, c, word);
    return give(&page, name, 1, w->dir, e);
}

static enum brg_status walk(struct walk *w, struct err *e) {
    for (size_t i = 0; i < ARRAY_COUNT(pages); i++) {
        AUTO_BUF struct buf page;
        buf_init(&page, PAGE_BYTES_MAX);
        if (!wanted(w, pages[i].name, pages[i].section,
                    i == 0 ? "all commands" : "a settings file"))
            continue;
        pages[i].write(&page, w->all, w->count);
        TRY(give(&page, pages[i].name, pages[i].section, w->dir, e));
    }
    for (size_t i = 0; i < w->count; i++) {
        TRY(walk_command(w, &w->all[i], NULL, e));
        if (strcmp(w->all[i].name, "hub") == 0) TRY(walk_command(w, &w->all[i], "replay", e));
    }
    return BRG_OK;
}

int cli_manual(int argc, char **argv, const struct cli_command *all, size_t count) {
    static const struct option options[] = {
        {"out", 1, NULL, 'o'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct walk w = {.all = all, .count = count};
    struct err e = {0};
    for (int o; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o == 'h') {
            fputs(HELP, stdout);
            return 0;
        }
        if (o != 'o') return cli_bad_option("manual", argv);
        w.dir = optarg;
    }
    if (optind + 1 < argc || (w.dir != NULL && optind < argc))
        return cli_usage("manual", "want one PAGE, or --out DIR", "");
    if (optind < argc) w.only = argv[optind];
    if (walk(&w, &e) != BRG_OK) return cli_fail("manual", &e);
    if (w.only != NULL && !w.found)
        return cli_usage("manual", "there is no page of the name", w.only);
    return 0;
}
