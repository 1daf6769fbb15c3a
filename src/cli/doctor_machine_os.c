/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_machine_os.c - what a site needs of the machine it runs on, and an agent of its scheduler. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/doctor.h"
#include "data/data.h"
#include "place/scheduler_os.h"

enum { WRITE_BYTES = 32 << 20, WRITE_SLOW_MB_S = 20, SITE_FILES_MIN = 256 };

/* ---- Disk ----------------------------------------------------------------------------------------- */
/* Written and synced as a checkpoint is; 0 where that failed, and the finding is told. */
static double write_speed(struct doctor *d) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    void *block = mem_alloc(1, 1 << 20);
    os_random(block, 1 << 20);
    os_path(path, d->state, "doctor.%ld.tmp", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    enum brg_status s = fd < 0 ? os_errno(&e, errno, "create", path) : BRG_OK;
    time_ns began = os_now();
    for (int i = 0; s == BRG_OK && i < WRITE_BYTES >> 20; i++)
        s = os_write_all(fd, block, 1 << 20, path, &e);
    if (s == BRG_OK && fsync(fd) != 0) s = os_errno(&e, errno, "fsync", path);
    double took = (double)(os_now() - began) / 1e9;
    if (fd >= 0) (void)close(fd);
    if (fd >= 0) (void)unlink(path);
    mem_free(block);
    if (s == BRG_OK) return WRITE_BYTES / 1e6 / (took > 1e-6 ? took : 1e-6);
    doctor_say(d, FINDING_WRONG, s, "disk",
               s == BRG_E_FULL ? "free space or quota, or give --state on another disk"
                               : "give --state where this user may write",
               "%.300s", e.text);
    return 0;
}

static void say_space(struct doctor *d) {
    struct statvfs v;
    if (statvfs(d->state, &v) != 0) return;
    double free_gb = (double)v.f_bavail * (double)v.f_frsize / 1e9;
    /* Weights, two moments and what is on its way, twice while a file replaces another; the newest bases. */
    double need_gb = d->run_there ? 36.0 * (double)d->run.parameters / 1e9 : 0;
    if (free_gb < need_gb)
        doctor_say(d, FINDING_WRONG, BRG_E_FULL, "disk",
                   "free space, or give --state on a larger disk (scratch)",
                   "%s has %.1f GB free, a site of this model wants %.1f", d->state, free_gb,
                   need_gb);
    else
        doctor_say(d, FINDING_FINE, BRG_OK, "disk", "", "%s has %.1f GB free%s", d->state, free_gb,
                   need_gb > 0 ? ", which is enough" : "");
}

static void say_disk(struct doctor *d) {
    struct err e = {0};
    if (d->state[0] == '\0') return;
    enum brg_status s = os_mkdirs(d->state, &e);
    if (s != BRG_OK) {
        doctor_say(d, FINDING_WRONG, s, "disk", "give --state where this user may write", "%.300s",
                   e.text);
        return;
    }
    double speed = write_speed(d);
    if (speed <= 0) return;
    say_space(d);
    bool slow = speed < WRITE_SLOW_MB_S;
    doctor_say(d, slow ? FINDING_WARN : FINDING_FINE, BRG_OK, "disk",
               slow ? "checkpoints take long on it: a local or scratch disk is better" : "",
               "writes %.0f MB/s", speed);
}

/* ---- Data ------------------------------------------------------------------------------------------ */
static void say_data(struct doctor *d) {
    struct dataset *data = NULL;
    struct err e = {0};
    if (d->data[0] == '\0') return;
    enum brg_status s = data_open(d->data, false, &data, &e);
    if (s != BRG_OK) {
        doctor_say(d, FINDING_WRONG, s, "data", "copy the run's data set here again", "%.300s",
                   e.text);
        return;
    }
    struct hash mine = data_fingerprint(data);
    data_close(data);
    if (d->run_there && !hash_equal(&mine, &d->run.fingerprint))
        doctor_say(d, FINDING_WRONG, BRG_E_MANIFEST, "data",
                   "pack the same text with the same settings, or copy the run's data set here",
                   "%s is another data set than the run's", d->data);
    else
        doctor_say(d, FINDING_FINE, BRG_OK, "data", "", "%s is %s", d->data,
                   d->run_there ? "the run's (its shards are hashed when a site starts)"
                                : "a data set");
}

/* ---- Processors, memory, MPI -------------------------------------------------------------------------- */
static void say_processors(struct doctor *d) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    int mine = CPU_COUNT(&set);
    bool few = mine == 1 && online > 2;
    doctor_say(
        d, few ? FINDING_WARN : FINDING_FINE, BRG_OK, "threads",
        few ? "a job that is bound to one core trains with one thread: --cpus-per-task, or the "
              "launcher's binding"
            : "",
        "%d of %ld processors may be used here", mine, online);
}

static void say_memory(struct doctor *d) {
    AUTO_BUF struct buf b;
    struct err e = {0};
    unsigned long long kib = 0;
    buf_init(&b, 64 * 1024);
    if (!d->run_there || os_read_file("/proc/meminfo", 64 * 1024, &b, &e) != BRG_OK) return;
    const char *at = strstr(buf_cstr(&b), "MemAvailable:");
    if (at == NULL || sscanf(at, "MemAvailable: %llu", &kib) != 1) return;
    double have = (double)kib * 1024 / 1e9, need = 24.0 * (double)d->run.parameters / 1e9;
    bool few = have < need;
    doctor_say(d, few ? FINDING_WARN : FINDING_FINE, BRG_OK, "memory",
               few ? "more ranks (docs/mpi.md) or another node: weights, gradients, moments and "
                     "copies do not fit"
                   : "",
               "%.1f GB available, a site of one process wants about %.1f and its batch", have,
               need);
}

static void say_mpi(struct doctor *d) {
    char path[OS_PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", path, OS_PATH_MAX - 1);
    if (n <= 0) return;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    CHECK(slash != NULL);
    (void)snprintf(slash, sizeof path - (size_t)(slash - path), "/beringia-mpi.so");
    if (!os_exists(path)) {
        doctor_say(d, FINDING_FINE, BRG_OK, "mpi", "",
                   "not built (beringia-mpi.so): a site has one process; docs/mpi.md");
        return;
    }
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *why = so == NULL ? dlerror() : "";
    if (so == NULL)
        doctor_say(d, FINDING_WARN, BRG_OK, "mpi",
                   "load the MPI module that it was built with, or make mpi MPICC=...", "%.200s",
                   why != NULL ? why : "");
    else
        doctor_say(d, FINDING_FINE, BRG_OK, "mpi", "", "beringia-mpi.so and its library are there");
}

static void say_files(struct doctor *d) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_max >= SITE_FILES_MIN) return;
    doctor_say(d, FINDING_WARN, BRG_OK, "files", "ulimit -n 1024",
               "only %llu open files are allowed", (unsigned long long)r.rlim_max);
}

void doctor_machine(struct doctor *d) {
    say_disk(d);
    say_data(d);
    say_processors(d);
    say_memory(d);
    say_mpi(d);
    say_files(d);
}

/* ---- The scheduler -------------------------------------------------------------------------------------- */
static bool in_path(const char *name) {
    const char *path = getenv("PATH");
    char full[OS_PATH_MAX];
    for (const char *p = path != NULL ? path : ""; *p != '\0';) {
        size_t n = strcspn(p, ":");
        if (n > 0 && n + strlen(name) + 2 < sizeof full) {
            (void)snprintf(full, sizeof full, "%.*s/%s", (int)n, p, name);
            if (access(full, X_OK) == 0) return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

void doctor_queue(struct doctor *d) {
    static const char *const commands[] = {"sbatch", "squeue", "scancel", "scontrol"};
    bool all = true;
    if (!d->site_there || d->site.scheduler != PLACE_SLURM) return;
    for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
        if (in_path(commands[i])) continue;
        all = false;
        doctor_say(d, FINDING_WRONG, BRG_E_MISSING, "scheduler",
                   "load its module, or set PATH; or site.scheduler is not slurm here",
                   "%s is not in PATH", commands[i]);
    }
    if (!all) return;
    struct scheduler_state s = {.site = &d->site, .submit_lock = -1};
    struct place_jobs q = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *q.jobs)};
    scheduler_slurm.queue(&s, &q);
    if (q.said.class_ == PLACE_FINE)
        doctor_say(d, FINDING_FINE, BRG_OK, "scheduler", "", "answers: %u jobs of this user",
                   q.count);
    else
        doctor_say(d, FINDING_WRONG, BRG_E_NET, "scheduler",
                   "is this a login node of that cluster? does `squeue --me` answer?",
                   "squeue: %s: %.150s", place_class_name(q.said.class_), q.said.text);
    mem_free(q.jobs);
}
