/* SPDX-License-Identifier: Apache-2.0 */
/* cli.c - what commands share: how each says that it failed (one line, what and what to do), what --model means. */
#include <ftw.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
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

/* A name without slash and ".json" is looked for in share/models: of $BERINGIA_SHARE, of the source
 * tree that holds the program, of the place where it is installed. */
const char *cli_model_path(const char *model, char out[OS_PATH_MAX]) {
    char exe[OS_PATH_MAX];
    const char *share = getenv("BERINGIA_SHARE");
    os_path(out, ".", "%s", model);
    if (model[0] == '/') (void)snprintf(out, OS_PATH_MAX, "%s", model);
    if (strchr(model, '/') != NULL || strstr(model, ".json") != NULL || os_exists(out)) return out;
    if (share != NULL && os_exists(os_path(out, share, "models/%s.json", model))) return out;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return out;
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    if (os_exists(os_path(out, exe, "../../share/models/%s.json", model))) return out;
    return os_path(out, exe, "../share/beringia/models/%s.json", model);
}
