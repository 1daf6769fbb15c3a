/* SPDX-License-Identifier: Apache-2.0 */
/* bench_hub.c - what a hub can bear, against what is promised. One line of key=value; exit status 1 where
 * a promise is broken, which is named.
 *
 *   build/release/bench/hub [part ...]      parts: durable ledger restart members; all without one
 *   make bench-hub ARGS=members
 *
 * BENCH_DIR (default: build/): a directory on the disk that is to be measured; BERINGIA: the program
 * (default: beside this one); MEMBERS (10000), RECORDS (1000000): sizes for a quick look.
 * BENCH_STORE: postgresql://... without a schema: the journal of durable there (make test-postgres).
 * Times are wall clock: run it on a machine that does little else, and write its load down. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "bench/hub/kit.h"

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static uint64_t size_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    uint64_t v;
    return text != NULL && parse_u64(text, &v) && v > 0 ? v : otherwise;
}

static void program_path(char out[OS_PATH_MAX]) {
    const char *given = getenv("BERINGIA");
    if (given != NULL) {
        (void)snprintf(out, OS_PATH_MAX, "%s", given);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", out, OS_PATH_MAX - 32);
    CHECK(n > 0);
    out[n] = '\0';
    *strrchr(out, '/') = '\0'; /* .../bench */
    memcpy(strrchr(out, '/'), "/beringia", sizeof "/beringia");
}

static void run_part(const char *name, const char *dir, const char *program) {
    if (strcmp(name, "durable") == 0)
        part_durable(dir);
    else if (strcmp(name, "ledger") == 0)
        part_ledger(dir);
    else if (strcmp(name, "restart") == 0)
        part_restart(dir, program, size_from("RECORDS", 1000 * 1000));
    else if (strcmp(name, "members") == 0)
        part_members(dir, program, (uint32_t)size_from("MEMBERS", 10000));
    else {
        fprintf(stderr, "bench hub: no part '%s'; there are durable ledger restart members\n",
                name);
        exit(BRG_E_USAGE);
    }
}

int main(int argc, char **argv) {
    static const char *const all[] = {"durable", "ledger", "restart", "members"};
    const char *where = getenv("BENCH_DIR");
    char dir[OS_PATH_MAX], program[OS_PATH_MAX];
    double load = 0;
    (void)snprintf(dir, sizeof dir, "%s/bench-hub-XXXXXX", where != NULL ? where : "build");
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        return BRG_E_IO;
    }
    program_path(program);
    log_level_set(LOG_ERROR);
    (void)getloadavg(&load, 1);
    kit_figure("load_before", load, 1);
    if (argc > 1)
        for (int i = 1; i < argc; i++) run_part(argv[i], dir, program);
    else
        for (size_t i = 0; i < ARRAY_COUNT(all); i++) run_part(all[i], dir, program);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return kit_end();
}
