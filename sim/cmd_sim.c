/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_sim.c - beringia sim: many seeds and a report, one seed and its trace, or the mutants.
 *
 *   beringia sim --seeds N [--first N]     seeds 1 .. N; the last line is key=value
 *   beringia sim --seed N                  one seed, with a readable trace
 *   beringia sim --sites N                 N sites in each seed, up to a thousand
 *   beringia sim --levels 2|3              trees of hubs: levels.h
 * The exit status is 0, or 1 where a seed violated something (or, from 10,000 seeds on, where a mark
 * was reached by none). */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mutant.h"
#include "cli/cli.h"
#include "sim/levels.h"
#include "sim/sim.h"

enum { SEEDS_USUAL = 1000, SEEDS_FOR_MARKS = 10000, TWICE_EVERY = 64, VIOLATIONS_MAX = 5 };
enum { SYNC_ONE_IN = 4 };      /* seeds with synchronous rounds */
enum { POSITIONS_A_SITE = 8 }; /* as world.c draws them */

struct options {
    uint64_t first, count, list_count, sites, synchronous, levels;
    uint64_t *list;
    bool one, trace, marks, twice, quick, mutants;
};

static const char *const mark_names[] = {
#define X(name, text) #name,
    SIM_MARKS(X)
#undef X
};
static const char *const mark_texts[] = {
#define X(name, text) text,
    SIM_MARKS(X)
#undef X
};

static double cpu_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

static void help(void) {
    printf(
        "beringia sim - the protocol in virtual time, with faults; a seed chooses everything\n\n"
        "  --seeds N      run so many seeds (1000)\n"
        "  --first N      begin at this one (1)\n"
        "  --seed N       one seed, with its trace\n"
        "  --sites N      so many sites in each seed, 1 to 1000 (else a seed draws 1 to 5)\n"
        "  --synchronous N   one seed in N begins with synchronous rounds (4); 0: none, 1: each\n"
        "  --levels N     2 or 3: trees of hubs, each a site of the one above it, and their "
        "sites;\n"
        "                 with --sites (8 to 1000, rounded up) of so many, else of 4 or 8\n"
        "  --file PATH    the seeds that stand in this file, one a line, # begins a comment\n"
        "  --no-trace     one seed without its trace\n"
        "  --twice        run each seed twice and compare the traces\n"
        "  --marks        say how often each rare event was reached\n");
#ifdef BRG_MUTANTS
    printf("  --mutants [--quick]   each planted fault must be found; --mutant NAME for one\n");
#endif
}

/* ---- Seeds in a row ---------------------------------------------------------------------------------------- */

struct totals {
    uint64_t seeds, violations, events, hash;
};

static void say_violation(const struct sim *m, uint64_t seed) {
    printf("FAIL seed %" PRIu64 " at %.3f s: %s\n", seed, (double)m->now / NS_PER_S, m->why);
    if (m->sites_wanted > 0 || m->sync_one_in != SYNC_ONE_IN)
        printf("     replay: beringia sim --seed %" PRIu64 "%s%.0u --synchronous %" PRIu64 "\n",
               seed, m->sites_wanted > 0 ? " --sites " : "", m->sites_wanted, m->sync_one_in);
    else
        printf("     replay: make sim SEED=%" PRIu64 "    or: beringia sim --seed %" PRIu64 "\n",
               seed, seed);
    fflush(stdout);
}

static bool run_one(struct sim *m, uint64_t seed, const struct options *o, struct totals *t) {
    bool good = sim_run(m, seed, o->trace);
    uint64_t hash = m->hash, marks[MARKS];
    t->seeds++;
    t->events += m->events_done;
    t->hash = mix64(t->hash ^ hash);
    if (good && (o->twice || seed % TWICE_EVERY == 0)) {
        memcpy(marks, m->marks, sizeof marks);
        good = sim_run(m, seed, false);
        memcpy(m->marks, marks, sizeof marks);
        if (good && m->hash != hash) {
            snprintf(m->why, sizeof m->why, "the same seed gave another trace the second time");
            good = false;
        }
    }
    if (!good) {
        t->violations++;
        say_violation(m, seed);
    }
    return good;
}

static uint64_t faults_of(const struct sim *m) {
    static const enum sim_mark of[] = {MARK_TWIN,
                                       MARK_GONE,
                                       MARK_SITE_CRASH,
                                       MARK_SITE_FROZEN,
                                       MARK_SITE_TORN,
                                       MARK_POISON_KILL,
                                       MARK_HUB_CRASH,
                                       MARK_HUB_FROZEN,
                                       MARK_HUB_TWO,
                                       MARK_HUB_RESTORED,
                                       MARK_ROLLBACK,
                                       MARK_DRAINED,
                                       MARK_FULL,
                                       MARK_EIO,
                                       MARK_MERGE_FAILED,
                                       MARK_CHECKPOINT_DAMAGED,
                                       MARK_SNAPSHOT_DAMAGED,
                                       MARK_UPLOAD_FLIPPED,
                                       MARK_PROMISE_BROKEN,
                                       MARK_CUT_ONE_WAY,
                                       MARK_CUT_ALL,
                                       MARK_CLOCK_JUMP};
    uint64_t n = 0;
    for (size_t i = 0; i < ARRAY_COUNT(of); i++) n += m->marks[of[i]];
    return n;
}

static uint64_t report(const struct sim *m, const struct options *o, const struct totals *t) {
    uint64_t missed = 0;
    for (size_t i = 0; i < MARKS; i++) {
        if (o->marks)
            printf("  %-20s %10" PRIu64 "  %s\n", mark_names[i], m->marks[i], mark_texts[i]);
        if (m->marks[i] > 0) continue;
        missed++;
        if (t->seeds >= 100 || o->marks)
            printf("not reached: %s (%s)\n", mark_names[i], mark_texts[i]);
    }
    printf("seeds=%" PRIu64 " violations=%" PRIu64 " sealed=%" PRIu64 " faults=%" PRIu64
           " events=%" PRIu64 " marks=%d missed=%" PRIu64 " cpu_s=%.2f trace_hash=%016" PRIx64 "\n",
           t->seeds, t->violations, m->marks[MARK_SEALED], faults_of(m), t->events, (int)MARKS,
           missed, cpu_seconds(), t->hash);
    return missed;
}

static int run_seeds(const struct options *o) {
    struct sim *m = sim_create();
    struct totals t = {0};
    m->sites_wanted = (uint32_t)o->sites;
    m->sync_one_in = o->synchronous;
    if (o->list_count > 0)
        for (uint64_t i = 0; i < o->list_count && t.violations < VIOLATIONS_MAX; i++)
            (void)run_one(m, o->list[i], o, &t);
    else
        for (uint64_t i = 0; i < o->count && t.violations < VIOLATIONS_MAX; i++)
            (void)run_one(m, o->first + i, o, &t);
    uint64_t missed = report(m, o, &t);
    sim_destroy(m);
    return t.violations > 0 || (t.seeds >= SEEDS_FOR_MARKS && missed > 0) ? 1 : 0;
}

/* ---- Mutants ------------------------------------------------------------------------------------------------ */

#ifdef BRG_MUTANTS
int mutant_now;
static const struct {
    const char *name, *text;
    bool equivalent;
} mutants[] = {{"NONE", "", true},
#define X(name, equivalent, text) {#name, text, equivalent},
               SIM_MUTANTS(X)
#undef X
};

static bool of_levels(const char *name) {
    return strncmp(name, "REGION_", 7) == 0 || strncmp(name, "UPLINK_", 7) == 0;
}

/* In a process of its own: a broken machine may do anything. 0: survived; else the seeds it took. */
static uint64_t hunt(int mutant, uint64_t seeds, char why[400]) {
    int pipe_fd[2];
    uint64_t found[2] = {0, 0};
    why[0] = '\0';
    if (pipe(pipe_fd) != 0) return 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null_fd >= 0) (void)dup2(null_fd, STDERR_FILENO);
        mutant_now = mutant;
        alarm(240);
        struct sim *m = sim_create();
        bool levels =
            of_levels(mutants[mutant].name); /* they break what a single hub does not have */
        if (levels) found[0] = lv_hunt(3, seeds / 10, m->why);
        /* Without synchronous rounds, and where that does not show it with them in each seed. */
        for (; !levels && m->sync_one_in < 2 && found[0] == 0; m->sync_one_in++) {
            uint64_t seed = 1;
            while (seed <= seeds && sim_run(m, seed, false)) seed++;
            found[0] = seed <= seeds ? seed : 0;
        }
        bool told = write(pipe_fd[1], found, sizeof found) == sizeof found &&
                    write(pipe_fd[1], m->why, sizeof m->why) == sizeof m->why;
        _exit(told ? 0 : 1);
    }
    close(pipe_fd[1]);
    char text[600] = "";
    if (read(pipe_fd[0], found, sizeof found) == sizeof found) {
        if (read(pipe_fd[0], text, sizeof text) <= 0) text[0] = '\0';
    } else {
        found[0] = 1;
        snprintf(text, sizeof text, "the process hung or died");
    }
    close(pipe_fd[0]);
    (void)waitpid(pid, NULL, 0);
    snprintf(why, 400, "%.100s", text);
    return found[0];
}

static int run_mutants(const struct options *o, const char *only) {
    uint64_t seeds = o->quick ? 1000 : 10000, survived = 0, killed = 0, equivalent = 0;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    printf("%-24s %8s  %s\n", "mutant", "seeds", "found as");
    for (size_t i = 1; i < ARRAY_COUNT(mutants); i++) {
        char why[400];
        if (only != NULL && strcmp(only, mutants[i].name) != 0) continue;
        uint64_t n = hunt((int)i, seeds, why);
        if (n > 0) {
            printf("%-24s %8" PRIu64 "  %s\n", mutants[i].name, n, why);
            killed++;
        } else {
            printf("%-24s %8s  %s\n", mutants[i].name, "-",
                   mutants[i].equivalent ? "equivalent" : "SURVIVED");
            equivalent += mutants[i].equivalent;
            survived += !mutants[i].equivalent;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("mutants=%zu killed=%" PRIu64 " equivalent=%" PRIu64 " survived=%" PRIu64
           " seeds_max=%" PRIu64 " wall_s=%.1f\n",
           ARRAY_COUNT(mutants) - 1, killed, equivalent, survived, seeds,
           (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9);
    /* In a tenth of the seeds a few are not found yet; the whole run is what counts. */
    return survived > (o->quick ? 5 : 0) ? 1 : 0;
}
#endif

/* ---- The command line ------------------------------------------------------------------------------------------ */

static bool file_read(struct options *o, const char *path) {
    FILE *f = fopen(path, "re");
    char line[512];
    if (f == NULL) return false;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "# \t\n")] = '\0';
        uint64_t seed;
        if (line[0] == '\0' || !parse_u64(line, &seed)) continue;
        o->list = mem_grow(o->list, o->list_count, o->list_count + 1, sizeof *o->list);
        o->list[o->list_count++] = seed;
    }
    fclose(f);
    return true;
}

/* Of the simulator with room for more; not in a program that was linked without it. */
int cmd_sim_many(int argc, char **argv) __attribute__((weak));

#ifdef SIM_MANY
int cmd_sim_many(int argc, char **argv) {
#else
int cmd_sim(int argc, char **argv) {
#endif
    struct options o = {.first = 1, .count = SEEDS_USUAL, .synchronous = SYNC_ONE_IN};
    const char *only = NULL;
    bool no_trace = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) return help(), 0;
        if (strcmp(a, "--trace") == 0)
            o.trace = true;
        else if (strcmp(a, "--no-trace") == 0)
            no_trace = true;
        else if (strcmp(a, "--marks") == 0)
            o.marks = true;
        else if (strcmp(a, "--twice") == 0)
            o.twice = true;
        else if (strcmp(a, "--quick") == 0)
            o.quick = true;
        else if (strcmp(a, "--mutants") == 0)
            o.mutants = true;
        else if (strcmp(a, "--mutant") == 0)
            o.mutants = true, only = v, i++;
        else if (strcmp(a, "--seeds") == 0 && parse_u64(v, &o.count))
            i++;
        else if (strcmp(a, "--first") == 0 && parse_u64(v, &o.first))
            i++;
        else if (strcmp(a, "--sites") == 0 && parse_u64(v, &o.sites) && o.sites > 0)
            i++;
        else if (strcmp(a, "--synchronous") == 0 && parse_u64(v, &o.synchronous))
            i++;
        else if (strcmp(a, "--levels") == 0 && parse_u64(v, &o.levels) &&
                 (o.levels == 2 || o.levels == 3))
            i++;
        else if (strcmp(a, "--seed") == 0 && parse_u64(v, &o.first))
            o.count = 1, o.one = o.trace = true, i++;
        else if (strcmp(a, "--file") == 0 && file_read(&o, v))
            i++;
        else
            return cli_usage("sim", "option is not understood, or its value:", a);
    }
    if (no_trace) o.trace = false;
    if (o.levels > 0) {
        bool other = o.list_count > 0 || o.marks || o.mutants;
        const struct lv_shape shape = lv_shape_of((uint32_t)o.levels, o.sites);
        mem_free(o.list);
        if (other)
            return cli_usage("sim",
                             "goes with --seeds, --first, --seed and --sites alone:", "--levels");
        if (o.sites > 1000 || (o.sites > 0 && o.sites < 8))
            return cli_usage("sim", "with --levels from 8 to 1000:", "--sites");
        return cmd_sim_levels(&shape, o.first, o.count, o.trace);
    }
    if (o.sites > SIM_SITES || o.sites * POSITIONS_A_SITE > SIM_POSITIONS) {
#ifndef SIM_MANY
        if (cmd_sim_many != NULL) {
            mem_free(o.list);
            return cmd_sim_many(argc, argv);
        }
#endif
        return cli_usage("sim", "more sites than this program has room for:", "--sites");
    }
#ifdef BRG_MUTANTS
    if (o.mutants) return run_mutants(&o, only);
#else
    (void)only;
    if (o.mutants)
        return cli_usage("sim", "is in the program that `make mutants` builds:", "--mutants");
#endif
    int status = run_seeds(&o);
    mem_free(o.list);
    return status;
}
