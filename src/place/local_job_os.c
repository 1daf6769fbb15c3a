/* SPDX-License-Identifier: Apache-2.0 */
/* local_job_os.c - the supervisor of one local job: waits for the job before it and for a free slot, runs the
 * script, drains it before its time limit, ends it at the limit, and writes down how it ended. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "place/local_inner.h"
#include "place/local_os.h"

extern char **environ;

enum { POLL_MS = 50, KILL_AFTER_S = 30 };

static volatile sig_atomic_t cancelled, drain_asked;

static void on_signal(int sig) {
    if (sig == SIGUSR1)
        drain_asked = 1;
    else
        cancelled = 1;
}

struct supervised {
    const char *dir, *name, *script, *out;
    uint64_t job[LOCAL_JOB_FIELDS];
    int slot; /* its lock */
};

static void nap(void) {
    struct timespec t = {.tv_nsec = (long)POLL_MS * NS_PER_MS};
    (void)nanosleep(&t, NULL);
}

static void put(const struct supervised *s, const char *end, uint64_t a, uint64_t b, uint64_t c) {
    char path[OS_PATH_MAX], text[96];
    struct err e = {0};
    int n = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", a, b, c);
    os_path(path, s->dir, "%s.%s", s->name, end);
    if (os_write_file_atomic(path, text, (size_t)n, &e) != BRG_OK)
        log_line(LOG_ERROR, "local", "not_written", "text=\"%s\"", e.text); /* no end: it failed */
}

static uint64_t wall(void) {
    return (uint64_t)(os_wall() / NS_PER_S);
}

/* The job before it, by its number, is over or unknown. */
static bool predecessor_over(const struct supervised *s) {
    struct place_job j;
    char name[PLACE_JOBNAME_MAX];
    bool over = true;
    if (s->job[LOCAL_AFTER] == 0) return true;
    DIR *d = opendir(s->dir);
    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;) {
        size_t n = strlen(x->d_name);
        if (n < 5 || n - 4 >= sizeof name || strcmp(x->d_name + n - 4, ".job") != 0) continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)(n - 4), x->d_name);
        if (local_read(s->dir, name, &j) && j.id == s->job[LOCAL_AFTER])
            over = place_state_over(j.state);
    }
    if (d != NULL) (void)closedir(d);
    return over;
}

static bool slot_take(struct supervised *s) {
    char path[OS_PATH_MAX];
    for (uint64_t k = 0; k < s->job[LOCAL_SLOTS]; k++) {
        os_path(path, s->dir, "slot.%" PRIu64, k);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            s->slot = fd;
            return true;
        }
        (void)close(fd);
    }
    return false;
}

static bool script_spawn(const struct supervised *s, pid_t *out) {
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    sigset_t all;
    char *const words[] = {mem_strdup(s->script), NULL};
    CHECK(posix_spawnattr_init(&attr) == 0);
    CHECK(posix_spawn_file_actions_init(&files) == 0);
    (void)sigemptyset(&all);
    (void)sigaddset(&all, SIGUSR1);
    (void)sigaddset(&all, SIGTERM);
    (void)sigaddset(&all, SIGPIPE);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    (void)posix_spawnattr_setpgroup(&attr, 0);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawn_file_actions_addopen(&files, 1, s->out, O_WRONLY | O_CREAT | O_APPEND, 0666);
    (void)posix_spawn_file_actions_adddup2(&files, 1, 2);
    bool good = posix_spawn(out, s->script, &files, &attr, words, environ) == 0;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    mem_free(words[0]);
    return good;
}

/* Until the script ends; gives its state and exit status. */
static enum place_state script_watch(const struct supervised *s, pid_t pid, uint64_t *out_rc) {
    time_ns begin = os_now(), limit = begin + (time_ns)s->job[LOCAL_TIME] * NS_PER_S;
    time_ns drain_at = limit - (time_ns)s->job[LOCAL_DRAIN] * NS_PER_S;
    bool drained = s->job[LOCAL_DRAIN] == 0, told = false, over_time = false;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        time_ns now = os_now();
        if ((!drained && now >= drain_at) || drain_asked) {
            (void)kill(pid, SIGUSR1); /* the script's own process, as Slurm's --signal=B: does */
            drained = true;
            drain_asked = 0;
        }
        if (!told && (now >= limit || cancelled)) {
            over_time = now >= limit;
            told = true;
            limit = now;
            (void)kill(-pid, SIGTERM);
        }
        if (told && now >= limit + KILL_AFTER_S * (time_ns)NS_PER_S) (void)kill(-pid, SIGKILL);
        nap();
    }
    *out_rc = WIFEXITED(status) ? (uint64_t)WEXITSTATUS(status) : 128 + (uint64_t)WTERMSIG(status);
    return over_time      ? PLACE_JOB_TIMEOUT
           : cancelled    ? PLACE_JOB_CANCELLED
           : *out_rc == 0 ? PLACE_JOB_DONE
                          : PLACE_JOB_FAILED;
}

int local_job_main(const char *dir, const char *name, const char *script, const char *out) {
    struct supervised s = {.dir = dir, .name = name, .script = script, .out = out, .slot = -1};
    char path[OS_PATH_MAX];
    struct sigaction a = {.sa_handler = on_signal};
    struct err e = {0};
    int lock = -1;
    pid_t pid = 0;
    uint64_t rc = 0;
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGTERM, &a, NULL);
    (void)sigaction(SIGUSR1, &a, NULL);
    os_path(path, dir, "%s.job", name);
    if (!local_numbers(path, s.job, LOCAL_JOB_FIELDS)) return BRG_E_MISSING;
    os_path(path, dir, "%s.lock", name);
    if (os_lock(path, &lock, &e) != BRG_OK) return (int)e.status; /* another one has it */
    os_path(path, dir, "%s.end", name);
    if (os_exists(path)) return BRG_OK;
    put(&s, "pid", (uint64_t)getpid(), 0, 0);
    while (!cancelled && !(predecessor_over(&s) && slot_take(&s))) nap();
    if (cancelled) {
        put(&s, "end", PLACE_JOB_CANCELLED, 0, wall());
        return BRG_OK;
    }
    put(&s, "run", wall(), 0, 0);
    enum place_state state = PLACE_JOB_FAILED;
    if (script_spawn(&s, &pid))
        state = script_watch(&s, pid, &rc);
    else
        rc = 127;
    put(&s, "end", state, rc, wall());
    return BRG_OK;
}
