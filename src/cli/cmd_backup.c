/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_backup.c - beringia backup, restore. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/backup.h"
#include "cli/cli.h"

static const char BACKUP_HELP[] =
    "beringia backup - a consistent copy of a run, beside its running hub\n"
    "\n"
    "  beringia backup RUN --out DIR [--copy]\n"
    "\n"
    "  --out DIR  absent, empty, or an earlier backup of this run, which becomes the new one: "
    "only\n"
    "             what came since is added. One that is ended half-way leaves the earlier one\n"
    "  --copy     copy every file and compare it with its hash. Without this, files are hard\n"
    "             links where DIR is on the same file system: quick, no room, and no help against\n"
    "             a disk that dies: then copy DIR away\n"
    "\n"
    "DIR holds the journal, the checkpoints and contributions, settings, and the tokens' hashes "
    "and\n"
    "the certificate's KEY (mode 0700): keep it as you keep RUN. beringia audit, export and eval\n"
    "read it as they read a run; a hub does not start in it.\n"
    "\n"
    "example, from cron: beringia backup myrun --out /backup/myrun --copy\n";

static const char RESTORE_HELP[] =
    "beringia restore - make a run of a backup\n"
    "\n"
    "  beringia restore DIR --run RUN [--copy]\n"
    "\n"
    "  --run RUN  the directory to make: absent or empty\n"
    "  --copy     no hard links, also on the same file system\n"
    "\n"
    "Reads every file of DIR and audits its journal first. Then start beringia hub RUN. What was\n"
    "merged after the backup is trained again. Sites that have seen more than the backup make the\n"
    "hub hold until you decide: docs/operating.md, \"HUB_BEHIND\".\n";

static void say(const char *what, const char *to, const struct backup_told *t) {
    printf("%s %s: version %llu, record %llu; files: %llu linked, %llu copied (%.1f MB), %llu were "
           "there, %llu removed\n",
           what, to, (unsigned long long)t->version, (unsigned long long)t->seq,
           (unsigned long long)t->linked, (unsigned long long)t->copied, (double)t->bytes / 1e6,
           (unsigned long long)t->kept, (unsigned long long)t->pruned);
}

struct verb {
    const char *name, *help, *to, *usage, *said; /* to: the option that names where the copy goes */
    enum brg_status (*act)(const char *from, const char *to, bool copy, struct backup_told *out,
                           struct err *e);
};

/* Status; *out_to stays NULL where nothing was done. */
static int copy_run(int argc, char **argv, const struct verb *v, const char **out_to) {
    const struct option options[] = {
        {v->to, 1, NULL, 't'}, {"copy", 0, NULL, 'c'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *to = NULL;
    struct backup_told told;
    struct err e = {0};
    bool copy = false;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 't': to = optarg; break;
        case 'c': copy = true; break;
        case 'h': fputs(v->help, stdout); return 0;
        default: return cli_bad_option(v->name, argv);
        }
    }
    if (optind + 1 != argc || to == NULL) return cli_usage(v->name, v->usage, "");
    if (v->act(argv[optind], to, copy, &told, &e) != BRG_OK) return cli_fail(v->name, &e);
    say(v->said, to, &told);
    *out_to = to;
    return 0;
}

int cmd_backup(int argc, char **argv) {
    static const struct verb v = {"backup",       BACKUP_HELP, "out", "want RUN and --out DIR",
                                  "backed up to", backup_make};
    const char *to = NULL;
    return copy_run(argc, argv, &v, &to);
}

int cmd_restore(int argc, char **argv) {
    static const struct verb v = {"restore",  RESTORE_HELP,  "run", "want DIR and --run RUN",
                                  "restored", backup_restore};
    const char *to = NULL;
    int status = copy_run(argc, argv, &v, &to);
    if (to != NULL)
        printf("start it: beringia hub %s; sites that have seen more make it hold: "
               "docs/operating.md\n",
               to);
    return status;
}
