/* SPDX-License-Identifier: Apache-2.0 */
/* local_os.c - the table's functions for scheduler: local. See local_os.h; local_job_os.c is the other half. */
#include "place/local_os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/os.h"
#include "place/local_inner.h"
#include "place/scheduler_os.h"

static int64_t wall(void) {
    return os_wall() / NS_PER_S;
}

static void say(struct place_said *said, enum place_class c, const char *text) {
    said->class_ = c;
    (void)snprintf(said->text, sizeof said->text, "%.199s", text);
}

/* ---- Files ----------------------------------------------------------------------------------------- */

bool local_numbers(const char *path, uint64_t *out, int count) {
    AUTO_BUF struct buf b = {.bytes_max = 4096};
    struct err e = {0};
    if (!os_exists(path) || os_read_file(path, 4096, &b, &e) != BRG_OK) return false;
    const char *p = buf_cstr(&b);
    for (int i = 0; i < count; i++) {
        int used = 0;
        if (sscanf(p, "%" SCNu64 "%n", &out[i], &used) != 1) return false;
        p += used;
    }
    return true;
}

bool local_lives(const char *dir, const char *name) {
    char path[OS_PATH_MAX];
    os_path(path, dir, "%s.lock", name);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    return flock(fd, LOCK_EX | LOCK_NB) != 0;
}

/* One job by its files; false where it is none. */
bool local_read(const char *dir, const char *name, struct place_job *out) {
    char path[OS_PATH_MAX];
    uint64_t job[LOCAL_JOB_FIELDS], run = 0, end[3];
    memset(out, 0, sizeof *out);
    os_path(path, dir, "%s.job", name);
    if (!local_numbers(path, job, LOCAL_JOB_FIELDS)) return false;
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    out->id = job[LOCAL_ID];
    out->submit_s = (int64_t)job[LOCAL_SUBMIT];
    out->limit_s = job[LOCAL_TIME];
    out->nodes = (uint32_t)job[LOCAL_NODES];
    out->state = PLACE_JOB_PENDING;
    (void)snprintf(out->reason, sizeof out->reason, "Resources");
    os_path(path, dir, "%s.run", name);
    if (local_numbers(path, &run, 1)) {
        out->start_s = (int64_t)run;
        out->state = PLACE_JOB_RUNNING;
        (void)snprintf(out->reason, sizeof out->reason, "None");
    }
    os_path(path, dir, "%s.end", name);
    if (local_numbers(path, end, 3)) {
        out->state = (enum place_state)end[0];
        out->exit_code = (uint32_t)end[1];
        out->end_s = (int64_t)end[2];
    } else if (!local_lives(dir, name) && wall() > out->submit_s + 5) {
        out->state = PLACE_JOB_FAILED; /* killed, or the machine went down */
        out->end_s = wall();
    }
    return true;
}

static bool ends_with_job(const char *file, char *name, size_t cap) {
    size_t n = strlen(file);
    if (n < 5 || strcmp(file + n - 4, ".job") != 0 || n - 4 >= cap) return false;
    memcpy(name, file, n - 4);
    name[n - 4] = '\0';
    return true;
}

static void local_queue(struct scheduler_state *s, struct place_jobs *out) {
    char name[PLACE_JOBNAME_MAX];
    DIR *d = opendir(s->state_dir);
    out->count = 0;
    if (d == NULL) {
        say(&out->said, PLACE_OURS, "the directory of local jobs cannot be read");
        return;
    }
    say(&out->said, PLACE_FINE, "");
    for (struct dirent *x; (x = readdir(d)) != NULL && out->count < PLACE_JOBS_MAX;)
        if (ends_with_job(x->d_name, name, sizeof name) &&
            local_read(s->state_dir, name, &out->jobs[out->count]))
            out->count++;
    (void)closedir(d);
}

/* ---- The table -------------------------------------------------------------------------------------- */

static void local_history(struct scheduler_state *s, const char *const *names, uint32_t count,
                          uint64_t since_s, struct place_jobs *out) {
    (void)s, (void)names, (void)count, (void)since_s;
    out->count = 0;
    say(&out->said, PLACE_ABSENT, "local jobs have no history but their files");
}

static void local_probe(struct scheduler_state *s, const struct place_shape *shape,
                        struct place_estimate *out) {
    struct place_jobs q = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *q.jobs)};
    int64_t now = wall(), first = 0;
    uint64_t running = 0, ahead = 0;
    memset(out, 0, sizeof *out);
    if (shape->nodes > 1) {
        say(&out->said, PLACE_NEVER, "scheduler: local has jobs of one node");
        mem_free(q.jobs);
        return;
    }
    local_queue(s, &q);
    for (uint32_t i = 0; i < q.count; i++) {
        ahead += q.jobs[i].state == PLACE_JOB_PENDING ? q.jobs[i].limit_s : 0;
        if (q.jobs[i].state != PLACE_JOB_RUNNING) continue;
        int64_t end = q.jobs[i].start_s + (int64_t)q.jobs[i].limit_s;
        running++;
        if (first == 0 || end < first) first = end;
    }
    mem_free(q.jobs);
    say(&out->said, PLACE_FINE, "");
    out->processors = 1;
    out->start_s = running < s->site->local_nodes || first < now ? now : first;
    out->start_s += (int64_t)(ahead / s->site->local_nodes);
}

static bool job_write(struct scheduler_state *s, const char *name, const uint64_t *job,
                      struct place_submitted *out) {
    char path[OS_PATH_MAX], text[256];
    struct err e = {0};
    int n = 0;
    for (int i = 0; i < LOCAL_JOB_FIELDS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%" PRIu64 " ", job[i]);
    os_path(path, s->state_dir, "%s.job", name);
    if (os_write_file_atomic(path, text, (size_t)n, &e) == BRG_OK) return true;
    say(&out->said, PLACE_OURS, e.text);
    return false;
}

static bool next_id(struct scheduler_state *s, uint64_t *out, struct place_submitted *told) {
    char path[OS_PATH_MAX], text[32];
    struct err e = {0};
    uint64_t last = 0;
    os_path(path, s->state_dir, "last");
    (void)local_numbers(path, &last, 1);
    *out = last + 1;
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", *out);
    if (os_write_file_atomic(path, text, (size_t)n, &e) == BRG_OK) return true;
    say(&told->said, PLACE_OURS, e.text);
    return false;
}

/* The supervisor is a process of its own session: it lives on when the agent dies. */
static bool supervisor_spawn(struct scheduler_state *s, const char *name) {
    char out[OS_PATH_MAX];
    struct job_env told;
    pid_t pid;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    os_path(out, s->out_dir, "%s.out", name);
    job_env_make(s->site, name, &told);
    char **env = env_make(false, told.list);
    char *const words[] = {mem_strdup("beringia"),    mem_strdup("agent"),
                           mem_strdup("--local-job"), mem_strdup(s->state_dir),
                           mem_strdup(name),          mem_strdup(s->script),
                           mem_strdup(out),           NULL};
    CHECK(posix_spawnattr_init(&attr) == 0);
    CHECK(posix_spawn_file_actions_init(&files) == 0);
    (void)posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);
    bool good = posix_spawn(&pid, "/proc/self/exe", &files, &attr, words, env) == 0;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    for (size_t i = 0; words[i] != NULL; i++) mem_free(words[i]);
    env_free(env);
    return good;
}

static void local_submit(struct scheduler_state *s, const struct place_shape *shape,
                         const char *name, uint64_t after, struct place_submitted *out) {
    uint64_t job[LOCAL_JOB_FIELDS];
    memset(out, 0, sizeof *out);
    if (shape->nodes > 1) {
        say(&out->said, PLACE_NEVER, "scheduler: local has jobs of one node");
        return;
    }
    if (!next_id(s, &job[LOCAL_ID], out)) return;
    job[LOCAL_SUBMIT] = (uint64_t)wall();
    job[LOCAL_TIME] = shape->time_s;
    job[LOCAL_NODES] = shape->nodes;
    job[LOCAL_DRAIN] = s->site->drain_s;
    job[LOCAL_AFTER] = after;
    job[LOCAL_SLOTS] = s->site->local_nodes;
    if (!job_write(s, name, job, out)) return;
    out->job = job[LOCAL_ID];
    if (supervisor_spawn(s, name))
        say(&out->said, PLACE_FINE, "");
    else
        say(&out->said, PLACE_STRANGE, "the job's supervisor could not be started");
}

static void local_cancel(struct scheduler_state *s, uint64_t id, bool drain,
                         struct place_said *out) {
    struct place_jobs q = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *q.jobs)};
    char path[OS_PATH_MAX];
    uint64_t pid = 0;
    local_queue(s, &q);
    say(out, PLACE_FINE, "");
    for (uint32_t i = 0; i < q.count; i++) {
        if (q.jobs[i].id != id || place_state_over(q.jobs[i].state)) continue;
        os_path(path, s->state_dir, "%s.pid", q.jobs[i].name);
        /* The pid is its supervisor's for as long as the supervisor holds the lock. */
        if (local_numbers(path, &pid, 1) && local_lives(s->state_dir, q.jobs[i].name))
            (void)kill((pid_t)pid, drain ? SIGUSR1 : SIGTERM);
    }
    mem_free(q.jobs);
}

const struct scheduler scheduler_local = {
    .name = "local",
    .probe = local_probe,
    .submit = local_submit,
    .queue = local_queue,
    .history = local_history,
    .cancel = local_cancel,
};
