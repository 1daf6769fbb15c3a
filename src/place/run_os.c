/* SPDX-License-Identifier: Apache-2.0 */
/* run_os.c - runs one command with an argument vector, a bounded output, and a deadline of our own: commands
 * of a scheduler may hang for minutes where its controller does. See scheduler_os.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "place/scheduler_os.h"

extern char **environ;

/* ---- Environment --------------------------------------------------------------------------------- */

static bool env_scrubbed(const char *entry) {
    static const char *const begins[] = {"SLURM_",   "SBATCH_", "SQUEUE_", "SACCT_",
                                         "SCANCEL_", "SINFO_",  "SALLOC_", "SRUN_",
                                         "LC_",      "TZ=",     "LANG=",   "LANGUAGE="};
    if (strncmp(entry, "SLURM_CONF=", 11) == 0 || strncmp(entry, "SLURM_CONF_SERVER=", 18) == 0)
        return false;
    for (size_t i = 0; i < ARRAY_COUNT(begins); i++)
        if (strncmp(entry, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

/* `more` has this name too: the first of two would count. */
static bool env_named(const char *line, const char *const *more) {
    size_t n = strcspn(line, "=") + 1;
    for (; more != NULL && *more != NULL; more++)
        if (strncmp(line, *more, n) == 0) return true;
    return false;
}

char **env_make(bool exact, const char *const *more) {
    static const char *const exactly[] = {"TZ=UTC0", "LC_ALL=C", "SLURM_TIME_FORMAT=%s"};
    size_t count = 0, at = 0;
    while (environ[count] != NULL) count++;
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) count++;
    char **env = mem_alloc(count + ARRAY_COUNT(exactly) + 1, sizeof *env);
    for (size_t i = 0; environ[i] != NULL; i++) {
        if (env_named(environ[i], more)) continue;
        if (exact ? !env_scrubbed(environ[i])
                  : !env_scrubbed(environ[i]) || strncmp(environ[i], "L", 1) == 0 ||
                        strncmp(environ[i], "TZ=", 3) == 0)
            env[at++] = mem_strdup(environ[i]);
    }
    for (size_t i = 0; exact && i < ARRAY_COUNT(exactly); i++) env[at++] = mem_strdup(exactly[i]);
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) env[at++] = mem_strdup(more[i]);
    return env;
}

void env_free(char **env) {
    for (size_t i = 0; env != NULL && env[i] != NULL; i++) mem_free(env[i]);
    mem_free(env);
}

void job_env_make(const struct place_site *site, const char *job, struct job_env *out) {
    size_t n = 0;
    bool spool = site->spool[0] != '\0';
    (void)snprintf(out->hub, sizeof out->hub, "BERINGIA_HUB=%s%s", spool ? "spool:" : "",
                   spool ? site->spool : site->hub);
    (void)snprintf(out->site, sizeof out->site, "BERINGIA_SITE=%s", site->name);
    (void)snprintf(out->job, sizeof out->job, "BERINGIA_JOB=%s", job);
    (void)snprintf(out->token, sizeof out->token, "BERINGIA_TOKEN_FILE=%s", site->token);
    (void)snprintf(out->ca, sizeof out->ca, "BERINGIA_CA=%s", site->ca);
    (void)snprintf(out->fabric, sizeof out->fabric, "BERINGIA_FABRIC=%s", site->fabric);
    out->list[n++] = out->hub;
    out->list[n++] = out->site;
    out->list[n++] = out->job;
    if (site->token[0] != '\0' && !spool) out->list[n++] = out->token;
    if (site->ca[0] != '\0' && !spool) out->list[n++] = out->ca;
    if (site->fabric[0] != '\0') out->list[n++] = out->fabric;
    out->list[n] = NULL;
}

/* ---- Running -------------------------------------------------------------------------------------- */

static bool spawn(const struct run_command *c, int out, int err, pid_t *out_pid, int *out_errno) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawnattr_init(&attr) == 0);
    (void)sigemptyset(&none);
    (void)sigemptyset(&defaults);
    (void)sigaddset(&defaults, SIGPIPE);
    (void)sigaddset(&defaults, SIGINT);
    (void)sigaddset(&defaults, SIGTERM);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &defaults);
    (void)posix_spawnattr_setpgroup(&attr, 0); /* an interrupt of ours is not its */
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, out, 1) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, err, 2) == 0);
    if (c->keep_fd >= 0) CHECK(posix_spawn_file_actions_adddup2(&actions, c->keep_fd, 9) == 0);
    *out_errno = posix_spawnp(out_pid, c->argv[0], &actions, &attr, c->argv, c->envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return *out_errno == 0;
}

/* Takes what is there; false at the end of the stream. More than the maximum is read and dropped. */
static bool drain_pipe(int fd, struct buf *to) {
    char piece[16384];
    ssize_t n = read(fd, piece, sizeof piece);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n > 0) buf_put(to, piece, (size_t)n);
    return n > 0;
}

/* Until both streams end or the deadline comes. A grandchild may keep them open behind its parent's back:
 * the parent's end is looked for too. */
static bool collect(struct run_output *o, const int fds[2], time_ns deadline) {
    struct pollfd p[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    struct buf *to[2] = {&o->out, &o->err};
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        time_ns left = deadline - os_now();
        if (left <= 0) return false;
        int ready = poll(p, 2, (int)(left / NS_PER_MS < 1000 ? left / NS_PER_MS + 1 : 1000));
        for (int i = 0; i < 2 && ready > 0; i++)
            if (p[i].fd >= 0 && p[i].revents != 0 && !drain_pipe(p[i].fd, to[i])) p[i].fd = -1;
    }
    return true;
}

static int reap(pid_t pid, time_ns deadline, bool *out_killed) {
    int status = 0;
    *out_killed = false;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) break;
        if (got < 0 && errno != EINTR) return -1;
        if (!*out_killed && os_now() >= deadline) {
            (void)kill(pid, SIGKILL); /* the process that we started */
            *out_killed = true;
        }
        struct timespec t = {.tv_nsec = 2 * NS_PER_MS};
        (void)nanosleep(&t, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void run_command(const struct run_command *c, struct run_output *o) {
    int out[2], err[2], error = 0;
    pid_t pid = 0;
    memset(o, 0, sizeof *o);
    buf_init(&o->out, RUN_OUTPUT_MAX);
    buf_init(&o->err, RUN_OUTPUT_MAX);
    time_ns deadline = os_now() + c->timeout_ns;
    CHECK(pipe2(out, O_CLOEXEC) == 0);
    CHECK(pipe2(err, O_CLOEXEC) == 0);
    bool started = spawn(c, out[1], err[1], &pid, &error);
    (void)close(out[1]);
    (void)close(err[1]);
    if (started) {
        bool killed;
        const int fds[2] = {out[0], err[0]};
        bool ended = collect(o, fds, deadline);
        o->reply.rc = reap(pid, ended ? deadline : os_now(), &killed);
        o->reply.timed_out = killed;
    } else {
        o->reply.rc = 127;
        buf_printf(&o->err, "%s: %s: command not found or not to be started\n", c->argv[0],
                   strerror(error));
    }
    (void)close(out[0]);
    (void)close(err[0]);
    o->reply.out_bytes = o->out.bytes_count;
    o->reply.err_bytes = o->err.bytes_count;
    o->reply.out = buf_cstr(&o->out);
    o->reply.err = buf_cstr(&o->err);
}

void run_output_fini(struct run_output *o) {
    buf_fini(&o->out);
    buf_fini(&o->err);
}
