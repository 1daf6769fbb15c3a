/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c - runs the registered tests, each in its own process group, a few at a time.
 *
 *   waiting --start--> running --ended--> ok | failed | skipped;   running --late--> failed
 *
 * The parent never runs a test's code. Output goes to a file instead of a pipe, so that a child may
 * print any amount while nobody reads; a reason to skip goes to a second file and exit status 77. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { JOBS_MAX = 16, PATH_BYTES = 512, EXIT_SKIPPED = 77, OUTPUT_SHOWN_MAX = 200000 };

struct job {
    const struct test_case *test;
    pid_t pid; /* 0: the slot is free */
    int64_t started_ms;
    bool late;
    char dir[PATH_BYTES], output[PATH_BYTES], reason[PATH_BYTES];
};

static struct test_case *tests;
static const char *base_dir;  /* of this run of the binary */
static const char *child_dir; /* in a child: where test_dir() is */
static const char *child_reason;
static pid_t quiet_child;
static int passed, failed, skipped;

/* Sorted by name: the order of constructors is the linker's, and nobody should depend on it. */
void test_register(struct test_case *t) {
    struct test_case **at = &tests;
    while (*at && strcmp((*at)->name, t->name) < 0) at = &(*at)->next;
    if (*at && strcmp((*at)->name, t->name) == 0) {
        fprintf(stderr, "two tests are called %s\n", t->name);
        exit(2);
    }
    t->next = *at;
    *at = t;
}

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "harness: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- What a test may call -------------------------------------------------------------------- */

void test_skip(const char *fmt, ...) {
    FILE *f = fopen(child_reason, "w");
    must(f != NULL, child_reason);
    va_list args;
    va_start(args, fmt);
    vfprintf(f, fmt, args);
    va_end(args);
    fclose(f);
    fflush(NULL);
    _exit(EXIT_SKIPPED);
}

const char *test_dir(void) {
    must(mkdir(child_dir, 0777) == 0 || errno == EEXIST, child_dir);
    return child_dir;
}

bool test_fork_quiet(void) {
    fflush(NULL);
    quiet_child = fork();
    must(quiet_child >= 0, "fork");
    if (quiet_child > 0) return false;
    /* cmocka and the sanitizers catch SIGABRT: the default is what the program itself meets. */
    signal(SIGABRT, SIG_DFL);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    must(fd >= 0, "/dev/null");
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    return true;
}

void test_child_survived(void) {
    _exit(0);
}

void test_expect_abort(const char *expr, const char *file, int line) {
    int status = 0;
    must(waitpid(quiet_child, &status, 0) == quiet_child, "waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) return;
    fprintf(stderr, "%s:%d: no CHECK stopped %s\n", file, line, expr);
    _fail(file, line);
}

/* ---- Children -------------------------------------------------------------------------------- */

static _Noreturn void child_run(const struct job *job, const sigset_t *mask_before) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, mask_before, NULL);
    int fd = open(job->output, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    must(fd >= 0, job->output);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    child_dir = job->dir;
    child_reason = job->reason;
    const struct CMUnitTest unit[] = {{job->test->name, job->test->body, NULL, NULL, NULL}};
    int failures = _cmocka_run_group_tests(job->test->name, unit, 1, NULL, NULL);
    fflush(NULL);
    /* Through exit, so that the leak check of the address sanitizer runs; a failed test jumped out
     * of its body, and what it left is not worth a report. */
    if (failures != 0) _exit(1);
    exit(0);
}

static void job_start(struct job *job, const struct test_case *test, const sigset_t *mask_before) {
    *job = (struct job){.test = test, .started_ms = now_ms()};
    snprintf(job->dir, sizeof job->dir, "%s/%.200s", base_dir, test->name);
    snprintf(job->output, sizeof job->output, "%s/%.200s.out", base_dir, test->name);
    snprintf(job->reason, sizeof job->reason, "%s/%.200s.skip", base_dir, test->name);
    fflush(NULL);
    job->pid = fork();
    must(job->pid >= 0, "fork");
    if (job->pid == 0) child_run(job, mask_before);
    setpgid(job->pid, job->pid); /* by both sides: whoever comes first */
}

/* What a test left running goes with it, so that no test can disturb the next one. */
static void group_kill(pid_t pid) {
    kill(-pid, SIGKILL);
}

static void output_show(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return;
    char line[2000];
    long shown = 0;
    while (fgets(line, sizeof line, f) && shown < OUTPUT_SHOWN_MAX) {
        size_t n = strlen(line);
        shown += (long)n;
        printf("    | %s%s", line, n > 0 && line[n - 1] == '\n' ? "" : "\n");
    }
    if (shown >= OUTPUT_SHOWN_MAX) printf("    | ... cut here\n");
    fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

static void tree_remove(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void job_ended(struct job *job, int status) {
    long ms = (long)(now_ms() - job->started_ms);
    const char *name = job->test->name;
    group_kill(job->pid);
    job->pid = 0;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !job->late;
    bool skip = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED && !job->late;
    if (good) {
        passed++;
        printf("ok %s (%ld ms)\n", name, ms);
    } else if (skip) {
        skipped++;
        char why[300] = "";
        FILE *f = fopen(job->reason, "r");
        if (f && fgets(why, sizeof why, f)) why[strcspn(why, "\n")] = '\0';
        if (f) fclose(f);
        printf("skip %s: %s\n", name, why);
    } else {
        failed++;
        printf("FAIL %s (%ld ms)\n", name, ms);
        output_show(job->output);
        if (job->late)
            printf("    | ended after its limit of %d s\n", job->test->seconds_max);
        else if (WIFSIGNALED(status))
            printf("    | ended by signal %d (%s)\n", WTERMSIG(status),
                   strsignal(WTERMSIG(status)));
        if (access(job->dir, F_OK) == 0) printf("    | kept: %s\n", job->dir);
    }
    if (good || skip) tree_remove(job->dir);
    unlink(job->output);
    unlink(job->reason);
    fflush(stdout);
}

/* ---- The run --------------------------------------------------------------------------------- */

static void jobs_reap(struct job *jobs, int jobs_count) {
    for (int i = 0; i < jobs_count; i++) {
        int status;
        if (jobs[i].pid == 0) continue;
        pid_t got = waitpid(jobs[i].pid, &status, WNOHANG);
        if (got == jobs[i].pid) job_ended(&jobs[i], status);
    }
}

static void jobs_check_late(struct job *jobs, int jobs_count) {
    for (int i = 0; i < jobs_count; i++) {
        struct job *job = &jobs[i];
        if (job->pid == 0 || job->late) continue;
        if (now_ms() - job->started_ms < (int64_t)job->test->seconds_max * 1000) continue;
        job->late = true;
        group_kill(job->pid);
    }
}

static int jobs_running(const struct job *jobs, int jobs_count) {
    int n = 0;
    for (int i = 0; i < jobs_count; i++) n += jobs[i].pid != 0;
    return n;
}

static void run_all(const char *filter, int jobs_count) {
    static struct job jobs[JOBS_MAX];
    sigset_t mask, mask_before;
    sigemptyset(&mask);
    const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) sigaddset(&mask, signals[i]);
    sigprocmask(SIG_BLOCK, &mask, &mask_before);
    const struct test_case *next = tests;
    for (;;) {
        for (int i = 0; i < jobs_count && next; i++) {
            while (next && !strstr(next->name, filter)) next = next->next;
            if (jobs[i].pid != 0 || !next) continue;
            job_start(&jobs[i], next, &mask_before);
            next = next->next;
        }
        if (jobs_running(jobs, jobs_count) == 0) break;
        struct timespec wait = {.tv_nsec = 200 * 1000000};
        int sig = sigtimedwait(&mask, NULL, &wait);
        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) {
            for (int i = 0; i < jobs_count; i++)
                if (jobs[i].pid != 0) group_kill(jobs[i].pid);
            tree_remove(base_dir);
            exit(128 + sig);
        }
        jobs_reap(jobs, jobs_count);
        jobs_check_late(jobs, jobs_count);
    }
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

static int jobs_wanted(void) {
    const char *text = getenv("TEST_JOBS");
    long n = text ? strtol(text, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > JOBS_MAX ? JOBS_MAX : (int)n;
}

int main(int argc, char **argv) {
    const char *filter = argc > 1 ? argv[1] : "";
    if (strcmp(filter, "--list") == 0) {
        for (const struct test_case *t = tests; t; t = t->next) printf("%s\n", t->name);
        return 0;
    }
    const char *tmp = getenv("TMPDIR");
    char dir[PATH_BYTES / 2];
    snprintf(dir, sizeof dir, "%s/brg-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    must(mkdtemp(dir) != NULL, dir);
    base_dir = dir;
    run_all(filter, jobs_wanted());
    rmdir(dir); /* stays where a failed test left something */
    const char *slash = strrchr(argv[0], '/');
    printf("# %s: %d passed, %d failed, %d skipped\n", slash ? slash + 1 : argv[0], passed, failed,
           skipped);
    return failed == 0 ? 0 : 1;
}
