/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_hub.c - beringia hub: serves a run until SIGTERM or SIGINT. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/backup.h"
#include "cli/cli.h"
#include "hub/notify_os.h"
#include "hub/server.h"
#include "store/store.h"

static const char HELP[] =
    "beringia hub - keep a run: give out leases, take contributions in, merge them, serve "
    "versions\n"
    "\n"
    "  beringia hub RUN [--listen HOST:PORT] [--log-level LEVEL] [--standby] [--rollback-to V |\n"
    "                                           --rebuild-from FILE]\n"
    "  beringia hub RUN --parent URL --region NAME [--parent-token FILE] [--parent-ca FILE]\n"
    "                   [--parent-rounds K]  as a site of another hub\n"
    "  beringia hub replay RUN [--json]      read the journal again and prove every version\n"
    "\n"
    "  --listen HOST:PORT  instead of hub.listen in RUN/run.yaml; port 0 takes a free one\n"
    "  --log-level LEVEL   error, warn, info (default), debug, trace\n"
    "  --standby           wait for the end of the hub that serves RUN, following its journal; "
    "then "
    "serve\n"
    "                      it: within seconds, for a journal in PostgreSQL; docs/operating.md\n"
    "  --rollback-to V     go back to version V first: what was merged after it is trained again\n"
    "  --rebuild-from FILE the run's disk is gone: make RUN anew from a checkpoint, for example a "
    "site's\n"
    "                      STATE/base/N.safetensors, and serve it; docs/operating.md\n"
    "  --parent URL        be a region of the hub at URL: what its sites train is leased from "
    "there, "
    "and what\n"
    "                      they did together is handed in there; docs/hierarchy.md\n"
    "  --region NAME       the region's name there, as a site's\n"
    "  --parent-token FILE its token there, as a site's (else as for a site)\n"
    "  --parent-ca FILE    PEM file of the CA that signed the parent's certificate (else as for a "
    "site)\n"
    "  --parent-rounds K   rounds of this hub for one contribution to the parent; 4\n"
    "\n"
    "Where it can be reached from other machines it wants a certificate (beringia tls) and tokens\n"
    "(beringia token), or refuses; docs/security.md.\n"
    "Prints `listening on URL`, with blobs.mailbox a line `mailbox bucket:...`, and writes "
    "RUN/hub.json. SIGTERM and SIGINT stop it in order; after "
    "any\n"
    "other end start it again: nothing that was answered is lost. A renewed certificate is taken "
    "up\n"
    "within seconds, or at once by SIGHUP. A service manager that sets NOTIFY_SOCKET is told when\n"
    "it serves and that it lives: beringia-hub@.service, docs/install.md.\n";

enum { LOOK_S = 2 }; /* between two looks at the certificate */
enum {
    OPT_LISTEN = 1,
    OPT_LEVEL,
    OPT_REBUILD,
    OPT_ROLLBACK,
    OPT_STANDBY,
    OPT_PARENT,
    OPT_REGION,
    OPT_PARENT_TOKEN,
    OPT_PARENT_CA,
    OPT_PARENT_ROUNDS,
    OPT_HELP
};
static const struct option options[] = {{"listen", 1, NULL, OPT_LISTEN},
                                        {"log-level", 1, NULL, OPT_LEVEL},
                                        {"parent", 1, NULL, OPT_PARENT},
                                        {"parent-ca", 1, NULL, OPT_PARENT_CA},
                                        {"parent-rounds", 1, NULL, OPT_PARENT_ROUNDS},
                                        {"parent-token", 1, NULL, OPT_PARENT_TOKEN},
                                        {"rebuild-from", 1, NULL, OPT_REBUILD},
                                        {"region", 1, NULL, OPT_REGION},
                                        {"rollback-to", 1, NULL, OPT_ROLLBACK},
                                        {"standby", 0, NULL, OPT_STANDBY},
                                        {"help", 0, NULL, OPT_HELP},
                                        {NULL, 0, NULL, 0}};

enum { HUB_JSON_BYTES = 800 };
static enum brg_status write_hub_json(const char *run, const struct hub_server *hub,
                                      char text[HUB_JSON_BYTES], struct err *e) {
    char path[OS_PATH_MAX], connect[160] = "";
    if (hub_server_connect(hub)[0] != '\0')
        (void)snprintf(connect, sizeof connect, ",\"connect\":\"%s\"", hub_server_connect(hub));
    int n = snprintf(text, HUB_JSON_BYTES, "{\"url\":\"%s\"%s,\"pid\":%ld}\n", hub_server_url(hub),
                     connect, (long)getpid());
    return os_write_file_atomic(os_path(path, run, "hub.json"), text, (size_t)n, e);
}

/* Where it is still this process's: a standby may have taken over. */
static void remove_hub_json(const char *run, const char *text) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, HUB_JSON_BYTES);
    if (os_read_file(os_path(path, run, "hub.json"), HUB_JSON_BYTES, &b, &e) != BRG_OK) return;
    if (strcmp(buf_cstr(&b), text) == 0) (void)unlink(path);
}

static enum brg_status rebuild(const char *run, const char *from, struct err *e) {
    struct rebuild_told t;
    TRY(os_mkdirs(run, e));
    TRY(run_rebuild(run, from, &t, e));
    printf("rebuilt %s at version %llu, %llu tokens; what was not merged in it is trained again\n",
           run, (unsigned long long)t.version, (unsigned long long)t.tokens);
    if (t.settings_kept)
        printf("settings: %s/run.yaml, as it is\n", run);
    else if (t.settings_copied)
        printf("settings: as the run was made; what was changed in run.yaml later is lost: edit %s/"
               "run.yaml and start again\n",
               run);
    else
        printf(
            "settings: DEFAULTS, since the checkpoint has none: put the run's own into %s/run.yaml "
            "and start again\n",
            run);
    return BRG_OK;
}

/* SIGHUP: look at the certificate now; without it, every few seconds. */
static int wait_for_end(struct hub_server *s, const sigset_t *set) {
    static const struct timespec look = {.tv_sec = LOOK_S};
    for (;;) {
        int sig = sigtimedwait(set, NULL, &look);
        struct err why;
        if (sig == SIGTERM || sig == SIGINT || hub_server_failed(s, &why) != BRG_OK) return sig;
        if (sig == SIGHUP || (sig < 0 && errno == EAGAIN)) hub_server_renew(s, sig == SIGHUP);
    }
}

/* One process has a run: by a lock on its directory, or by the server of its journal, which other
 * machines ask too. A standby (who tells `standby` that it is one) waits for the other one's end. */
static enum brg_status have_run(struct hub_server_options *o, const struct notify *standby,
                                const sigset_t *stop, int *lock, bool *stopped, struct err *e) {
    char path[OS_PATH_MAX], name[JOURNAL_NAME_MAX];
    const char *run = o->run_dir;
    TRY(journal_where(run, name, e));
    if (!journal_name_is_url(name)) {
        if (standby != NULL)
            return err_set(e, BRG_E_CONFIG,
                           "%s: --standby wants a journal in PostgreSQL, and this one is a file; "
                           "move it with beringia store migrate",
                           name);
        return os_lock(os_path(path, run, "lock"), lock, e);
    }
    AUTO_FREE struct run_dir *d = mem_alloc(1, sizeof *d);
    TRY(run_dir_load(run, d, e));
    if (standby != NULL) {
        printf("standing by for %s\n", run);
        (void)fflush(stdout);
        notify_say(standby, "READY=1\nSTATUS=standing by for %.400s", run);
    }
    sigset_t end = *stop;
    (void)sigdelset(&end, SIGHUP); /* waits, for whoever serves then */
    TRY(hub_journal_open(d, name, standby != NULL, &end, o->alive, &o->journal, &o->hub, e));
    *stopped = o->journal == NULL;
    return BRG_OK;
}

/* The signals that stop it are taken synchronously: blocked before any thread is made, so that all
 * threads inherit it, and waited for here. */
static int serve(struct hub_server_options o, const char *rebuild_from, bool standby) {
    struct hub_server *s = NULL;
    struct err e = {0};
    const char *run = o.run_dir;
    char path[OS_PATH_MAX], text[HUB_JSON_BYTES];
    struct notify manager, alive; /* two, since the tick thread has its own */
    sigset_t stop;
    int sig = 0, lock = -1;
    bool stopped = false;
    enum brg_status failed = BRG_OK;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGHUP);
    CHECK(pthread_sigmask(SIG_BLOCK, &stop, NULL) == 0);
    notify_open(&manager);
    notify_open(&alive);
    o.alive = &alive;
    enum brg_status st = rebuild_from != NULL ? rebuild(run, rebuild_from, &e) : BRG_OK;
    if (st == BRG_OK && !os_exists(os_path(path, run, "run.json")))
        st = err_set(&e, BRG_E_MISSING,
                     "%s: is no run directory (there is no run.json); make one with "
                     "`beringia init`",
                     run);
    if (st == BRG_OK) st = backup_refuse(run, &e);
    if (st == BRG_OK) st = have_run(&o, standby ? &manager : NULL, &stop, &lock, &stopped, &e);
    if (st == BRG_OK && !stopped) st = hub_server_open(&o, &s, &e);
    if (st == BRG_OK && !stopped) st = write_hub_json(run, s, text, &e);
    if (st == BRG_OK && !stopped) {
        printf("listening on %s\n", hub_server_url(s));
        if (*hub_server_mailbox(s) != '\0') printf("mailbox %s\n", hub_server_mailbox(s));
        (void)fflush(stdout);
        notify_say(&manager, "READY=1\nSTATUS=serving %.400s at %.400s", run, hub_server_url(s));
        sig = wait_for_end(s, &stop);
        notify_say(&manager, "STOPPING=1\nSTATUS=stopping in order");
        failed = hub_server_failed(s, &e);
        log_line(LOG_INFO, "hub", "stopping", "signal=%d", sig);
    }
    if (s != NULL) hub_server_close(s);
    if (st == BRG_OK && !stopped) remove_hub_json(run, text);
    if (lock >= 0) (void)close(lock);
    notify_close(&alive);
    notify_close(&manager);
    return st == BRG_OK && failed == BRG_OK ? 0 : cli_fail("hub", &e);
}

int cmd_hub(int argc, char **argv) {
    struct hub_server_options server = {0};
    struct hub_parent_options parent = {.rounds = 4, .timeout_ns = 30 * (time_ns)NS_PER_S};
    const char *rebuild_from = NULL;
    bool standby = false;
    enum log_level level = LOG_INFO;
    int o;
    if (argc > 1 && strcmp(argv[1], "replay") == 0) return cmd_hub_replay(argc - 1, argv + 1);
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_LISTEN: server.listen = optarg; break;
        case OPT_REBUILD: rebuild_from = optarg; break;
        case OPT_STANDBY: standby = true; break;
        case OPT_PARENT: parent.url = optarg; break;
        case OPT_REGION: parent.name = optarg; break;
        case OPT_PARENT_TOKEN: parent.token_file = optarg; break;
        case OPT_PARENT_CA: parent.ca_file = optarg; break;
        case OPT_PARENT_ROUNDS:
            if (!parse_u64(optarg, &parent.rounds) || parent.rounds == 0 || parent.rounds > 10000)
                return cli_usage("hub", "--parent-rounds wants 1 to 10000, not", optarg);
            break;
        case OPT_ROLLBACK:
            server.rollback = true;
            if (!parse_u64(optarg, &server.rollback_to))
                return cli_usage("hub", "--rollback-to wants a version, not", optarg);
            break;
        case OPT_LEVEL:
            if (!log_level_parse(optarg, &level))
                return cli_usage("hub", "--log-level wants error, warn, info, debug or trace, not",
                                 optarg);
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("hub", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("hub", "want one RUN directory", "");
    if (server.rollback && rebuild_from != NULL)
        return cli_usage("hub", "--rollback-to and --rebuild-from exclude each other", "");
    if (standby && (server.rollback || rebuild_from != NULL))
        return cli_usage("hub", "--standby excludes --rollback-to and --rebuild-from", "");
    if (parent.url == NULL && (parent.name != NULL || parent.token_file || parent.ca_file))
        return cli_usage("hub", "--region, --parent-token and --parent-ca want --parent URL", "");
    if (parent.url != NULL && (parent.name == NULL || !wire_name_valid(parent.name)))
        return cli_usage("hub", "--parent wants --region NAME: lower-case letters, digits, - and _",
                         "");
    if (parent.url != NULL && (standby || rebuild_from != NULL))
        return cli_usage("hub", "--parent excludes --standby and --rebuild-from", "");
    if (parent.url != NULL) server.parent = &parent;
    log_level_set(level);
    server.run_dir = argv[optind];
    return serve(server, rebuild_from, standby);
}
