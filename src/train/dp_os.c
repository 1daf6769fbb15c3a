/* SPDX-License-Identifier: Apache-2.0 */
/* dp_os.c - finding out whether this process is a rank, and loading the part that speaks MPI.
 *
 * The program itself is not linked with MPI: the same file runs on machines without it, and each
 * facility builds beringia-mpi.so with its own mpicc. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "train/dp.h"

#define PLUGIN "beringia-mpi.so"

bool dp_use_parse(const char *word, enum dp_use *out) {
    static const char *const words[] = {"auto", "yes", "no"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = (enum dp_use)i;
        return true;
    }
    return false;
}

/* A launcher leaves the number of processes, or at least a rank, in the environment. A Slurm task that
 * was not started for MPI has none of these, whatever the size of its allocation; where Slurm serves
 * PMIx to all tasks, the step says how many there are. */
static bool launched(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "MV2_COMM_WORLD_RANK", "PALS_RANKID"};
    bool ranked = false;
    for (size_t i = 0; i < ARRAY_COUNT(ranks); i++) ranked = ranked || getenv(ranks[i]);
    for (size_t i = 0; ranked && i < ARRAY_COUNT(sizes); i++) {
        const char *v = getenv(sizes[i]);
        uint64_t n;
        if (v && parse_u64(v, &n)) return n > 1;
    }
    return ranked;
}

/* $BERINGIA_MPI, beside the program, or in ../lib/beringia of an installed one. */
static bool plugin_path(char out[OS_PATH_MAX]) {
    char exe[OS_PATH_MAX];
    const char *set = getenv("BERINGIA_MPI");
    if (set && *set) {
        snprintf(out, OS_PATH_MAX, "%s", set);
        return os_exists(out);
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (!slash) return false;
    *slash = '\0';
    snprintf(out, OS_PATH_MAX, "%.4000s/" PLUGIN, exe);
    if (os_exists(out)) return true;
    snprintf(out, OS_PATH_MAX, "%.4000s/../lib/beringia/" PLUGIN, exe);
    return os_exists(out);
}

static enum brg_status load(const char *path, time_ns timeout_ns, struct dp_net **out,
                            struct err *e) {
    char why[300] = "";
    /* Global, because MPI libraries load parts of their own that look for their symbols. It stays
     * loaded: an MPI library may have threads and handlers that outlive MPI_Finalize. */
    void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!so) {
        const char *text = dlerror();
        return err_set(e, BRG_E_MISSING,
                       "%s: cannot be loaded (%.300s): load the MPI module it was "
                       "built with, or build it again with: make mpi MPICC=...",
                       path, text ? text : "");
    }
    dp_open_fn *open_mpi;
    void *symbol = dlsym(so, "beringia_mpi_open");
    memcpy(&open_mpi, &symbol, sizeof open_mpi);
    if (!open_mpi)
        return err_set(e, BRG_E_CONFIG, "%s: is not " PLUGIN " of this program: make mpi", path);
    int status = open_mpi(DP_NET_VERSION, timeout_ns, out, why, sizeof why);
    if (status != BRG_OK) return err_set(e, (enum brg_status)status, "%s: %s", path, why);
    return BRG_OK;
}

enum brg_status dp_open(enum dp_use use, time_ns timeout_ns, struct dp_net **out, struct err *e) {
    char path[OS_PATH_MAX] = "";
    struct dp_net *net = NULL;
    *out = NULL;
    if (use == DP_NO || (use == DP_AUTO && !launched())) return BRG_OK;
    if (!plugin_path(path))
        return err_set(e, BRG_E_MISSING,
                       "%s: the part that speaks MPI is not there, and this process was started "
                       "as one of many: build it with make mpi MPICC=..., name it in BERINGIA_MPI, "
                       "or say --mpi no",
                       *path ? path : PLUGIN);
    TRY(load(path, timeout_ns, &net, e));
    if (net->ranks > DP_RANKS_MAX) {
        err_set(e, BRG_E_LIMIT, "%u ranks: at most %d are possible", net->ranks, DP_RANKS_MAX);
        net->close(net->self);
        return e->status;
    }
    *out = net;
    return BRG_OK;
}

void dp_close(struct dp_net *net) {
    if (net) net->close(net->self);
}
