/* SPDX-License-Identifier: Apache-2.0 */
/* cli.c - how every command says that it failed: one line, what and what to do. */
#include <ftw.h>
#include <getopt.h>
#include <stdio.h>

#include "cli/cli.h"

int cli_fail(const char *name, const struct err *e) {
    fprintf(stderr, "beringia %s: %s\n", name, e->text);
    return (int)e->status;
}

int cli_usage(const char *name, const char *what, const char *value) {
    fprintf(stderr, "beringia %s: %s%s%.200s; see beringia %s --help\n", name, what,
            value[0] != '\0' ? " " : "", value, name);
    return BRG_E_USAGE;
}

int cli_bad_option(const char *name, char **argv) {
    return cli_usage(name, "unknown option, or one without its value:", argv[optind - 1]);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    (void)remove(path);
    return 0;
}

void cli_remove_tree(const char *path) {
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
