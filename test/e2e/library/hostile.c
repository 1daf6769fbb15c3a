/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.c - a host that is hard to be a guest of, against a live hub.
 *
 *   hostile HUB DATA SCRATCH        prints "ok library_..." or "FAIL library_..."
 *
 * Numbers with a comma, traps on floating point, a broken standard error, a SIGPIPE that kills, no threads
 * to be had, two threads that join at once, a close from another thread, times without end. What must
 * hold: the site works or says why it does not; what the host had set is as before. */
#include <beringia.h>
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND ((int64_t)1000000000)

static int failures;
static const char *hub, *data, *scratch;
static char why[600];

static void check(const char *name, int good, int status, const char *text) {
    fprintf(stdout, "%s library_%s\n", good ? "ok" : "FAIL", name);
    if (!good) fprintf(stdout, "  status %d (%s): %s\n", status, brg_status_name(status), text);
    failures += !good;
}

/* ---- What the library calls, seen from here -------------------------------------------------------------- */

/* The dynamic linker takes these for the library's calls too. */
static int threads_left = -1; /* -1: as many as wanted */
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *user) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (threads_left == 0) return EAGAIN;
    if (threads_left > 0) threads_left--;
    return real(t, a, f, user);
}

/* ---- Helpers ----------------------------------------------------------------------------------------- */

static struct brg_site *opened(const char *name, const char *dir) {
    struct brg_options o;
    struct brg_site *s = NULL;
    char state[600];
    snprintf(state, sizeof state, "%s/%s", scratch, dir);
    brg_options_init(&o);
    o.hub_url = hub;
    o.site_name = name;
    o.data_dir = data;
    o.state_dir = state;
    o.batch_samples = 4;
    o.timeout_ns = 5 * SECOND;
    o.checkpoint_every_ns = 3600 * SECOND;
    int status = brg_open(&o, 20 * SECOND, &s, why, sizeof why);
    if (status != BRG_GO) {
        check("hostile_opens", 0, status, why);
        exit(1);
    }
    return s;
}

static struct brg_tensor matrix; /* of the run: "W", as many rows and columns as there are tokens */

static int joined_with(struct brg_site *s, const struct brg_array *arrays, size_t count) {
    struct brg_run run;
    struct brg_trainer t;
    memset(&run, 0, sizeof run);
    run.struct_bytes = sizeof run;
    int status = brg_run(s, &run);
    if (status != BRG_GO) return status;
    matrix.name = "W";
    matrix.dims = 2;
    matrix.shape[0] = matrix.shape[1] = run.vocab_size;
    memset(&t, 0, sizeof t);
    t.struct_bytes = sizeof t;
    t.tensors = &matrix;
    t.tensors_count = 1;
    t.arrays = arrays;
    t.arrays_count = count;
    return brg_join(s, &t, 20 * SECOND);
}

/* So many steps of the gentlest kind; gives the status that ended it. */
static int train(struct brg_site *s, int steps) {
    uint64_t samples[4], count = 0;
    int status = BRG_GO;
    for (int done = 0; done < steps && (status == BRG_GO || status == BRG_WAIT);) {
        status = brg_take(s, 4, SECOND, samples, NULL, &count);
        if (status == BRG_GO) {
            brg_weights(s)[done] += 1e-4F;
            status = brg_step(s, count, 0.5, NULL);
            done += status == BRG_GO;
        }
        if (status == BRG_GO || status == BRG_WAIT) status = brg_sync(s, NULL);
    }
    return status;
}

static uint64_t steps_of(struct brg_site *s) {
    struct brg_figures f;
    memset(&f, 0, sizeof f);
    f.struct_bytes = sizeof f;
    return brg_status(s, &f) == BRG_GO ? f.steps : UINT64_MAX;
}

/* ---- What the host has set ------------------------------------------------------------------------------ */

static int comma(void) {
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0,5") == 0;
}

/* Standard error is a pipe that nobody reads, and SIGPIPE kills; then a whole life of a site. */
static void environment(void) {
    int pipe_fd[2], keep = dup(STDERR_FILENO), traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    sigset_t mask;
    if (!setlocale(LC_NUMERIC, "comma") || !comma()) {
        check("hostile_has_its_locale", 0, 0, "LOCPATH must lead to a locale \"comma\"");
        return;
    }
    if (pipe(pipe_fd) != 0 || dup2(pipe_fd[1], STDERR_FILENO) < 0) exit(1);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    signal(SIGPIPE, SIG_DFL);
    brg_log_level("trace");
    int trapped = feenableexcept(traps) != -1;
    struct brg_site *s = opened("comma", "comma");
    int status = joined_with(s, NULL, 0);
    if (status == BRG_GO) status = train(s, 25); /* more than two rounds */
    snprintf(why, sizeof why, "%s", brg_why(s));
    int closed = brg_close(s, 20 * SECOND);
    int still = !trapped || (fegetexcept() & traps) == traps;
    fedisableexcept(traps);
    brg_log_level("error");
    dup2(keep, STDERR_FILENO);
    close(keep);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    check("a_site_works_under_commas_traps_and_a_broken_stderr",
          (status == BRG_GO || status == BRG_WAIT) && closed == BRG_GO, status ? status : closed,
          why);
    check("what_the_host_had_set_is_as_before", comma() && still && !sigismember(&mask, SIGPIPE), 0,
          "locale, traps or signals");
    setlocale(LC_NUMERIC, "C");
}

/* ---- Threads ---------------------------------------------------------------------------------------------- */

static void no_threads(void) {
    sigset_t before, after;
    struct brg_site *s = opened("poor", "threads");
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    for (int n = 0; n < 5; n++) { /* none, then one, two, ... of the five */
        threads_left = n;
        int status = joined_with(s, NULL, 0);
        threads_left = -1;
        if (status == BRG_FAIL_MEMORY && strstr(brg_why(s), "thread")) continue;
        check("no_threads_is_a_status", 0, status, brg_why(s));
        return;
    }
    check("no_threads_is_a_status", 1, 0, "");
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    int same = 1;
    for (int i = 1; i < 65; i++) same &= sigismember(&before, i) == sigismember(&after, i);
    check("and_the_hosts_signals_are_not_blocked", same, 0, "another mask");
    int status = joined_with(s, NULL, 0);
    if (status == BRG_GO) status = train(s, 2);
    check("and_the_site_joins_when_there_are_some", status == BRG_GO, status, brg_why(s));
    status = brg_close(s, 20 * SECOND);
    check("and_closes", status == BRG_GO, status, "");
}

static pthread_barrier_t both;
struct racer {
    struct brg_site *site;
    int joined, trained;
};
static void *race(void *user) {
    struct racer *r = user;
    (void)pthread_barrier_wait(&both);
    r->joined = joined_with(r->site, NULL, 0);
    r->trained = r->joined == BRG_GO ? train(r->site, 1) : -99;
    return NULL;
}

static void two_that_join(void) {
    struct racer r[2] = {{0}};
    pthread_t t[2];
    struct brg_site *s = opened("race", "race");
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) {
        r[i].site = s;
        if (pthread_create(&t[i], NULL, race, &r[i]) != 0) exit(1);
    }
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    int won = r[0].joined == BRG_GO ? 0 : 1;
    check("of_two_threads_that_join_one_does",
          r[won].joined == BRG_GO && r[won].trained == BRG_GO &&
              r[1 - won].joined == BRG_FAIL_USAGE,
          r[1 - won].joined, "");
    int status = brg_close(s, 20 * SECOND); /* by a third one */
    check("and_a_third_one_closes", status == BRG_GO, status, "");
}

static void *close_at_once(void *user) {
    static int status;
    status = brg_close(user, 0);
    return &status;
}

/* What was done since the last checkpoint must be in the one that a close writes, whoever closes. */
static void close_from_another_thread(void) {
    void *status = NULL;
    pthread_t t;
    struct brg_site *s = opened("closer", "closer");
    int result = joined_with(s, NULL, 0);
    if (result == BRG_GO) result = train(s, 3);
    if (pthread_create(&t, NULL, close_at_once, s) != 0) exit(1);
    pthread_join(t, &status);
    s = opened("closer", "closer");
    if (result == BRG_GO) result = joined_with(s, NULL, 0);
    uint64_t steps = steps_of(s);
    snprintf(why, sizeof why, "%llu steps after it", (unsigned long long)steps);
    check("a_close_from_another_thread_saves_what_was_done", result == BRG_GO && steps == 3,
          *(int *)status, why);
    brg_close(s, 20 * SECOND);
}

/* ---- Words ------------------------------------------------------------------------------------------------- */

static void arrays(void) {
    static float m[4], v[4];
    struct brg_array list[2] = {{"m", m, 4}, {"m", v, 4}};
    struct brg_site *s = opened("arrays", "arrays");
    int status = joined_with(s, list, 2);
    check("two_arrays_of_one_name_are_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    list[1].name = "a \"name\"\n";
    status = joined_with(s, list, 2);
    check("a_name_that_no_file_can_hold_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    list[1].name = "v";
    list[1].count = UINT64_MAX - 3;
    status = joined_with(s, list, 2);
    check("an_absurd_count_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    list[1].count = 4;
    list[1].data = (float *)(void *)((char *)v + 1);
    status = joined_with(s, list, 2);
    check("a_crooked_address_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    list[1].data = v;
    status = joined_with(s, list, 2);
    check("good_arrays_join_after_that", status == BRG_GO, status, brg_why(s));
    status = train(s, 1) == BRG_GO ? brg_checkpoint(s) : -99;
    check("and_are_saved", status == BRG_GO, status, brg_why(s));
    brg_close(s, 20 * SECOND);
}

static void times_and_counts(void) {
    static uint64_t samples[70000];
    static int32_t tokens[4096];
    uint64_t count = 0;
    struct brg_data *d = NULL;
    struct brg_data_facts f;
    struct brg_options o;
    struct brg_site *s = opened("times", "times");
    int status = joined_with(s, NULL, 0);
    if (status == BRG_GO) status = brg_take(s, 4, INT64_MAX, samples, NULL, &count);
    check("the_longest_time_waits", status == BRG_GO && count == 4, status, brg_why(s));
    status = brg_take(s, 70000, 0, samples, NULL, &count);
    check("too_many_at_once_are_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    (void)brg_untake(s);
    for (int i = 0; i < 40; i++) { /* options.batch_samples was 4 */
        status = brg_take(s, 700, SECOND, samples, NULL, &count);
        if (status != BRG_WAIT) break;
        if (brg_sync(s, NULL) != BRG_GO) break;
    }
    check("a_batch_larger_than_planned_comes", status == BRG_GO && count == 700, status,
          brg_why(s));
    status = brg_step(s, 701, 0, NULL);
    check("one_more_than_taken_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    status = brg_untake(s);
    if (status == BRG_GO) status = brg_step(s, 1, 0, NULL);
    check("what_was_put_back_cannot_be_stepped", status == BRG_FAIL_USAGE, status, brg_why(s));
    status = brg_sample(s, UINT64_MAX, tokens);
    check("a_sample_beyond_all_is_told",
          status == BRG_FAIL_USAGE && strstr(brg_why(s), "many samples") != NULL, status,
          brg_why(s));
    status = brg_close(s, INT64_MAX);
    check("a_close_without_end_ends", status == BRG_GO, status, "");

    memset(&f, 0, sizeof f);
    f.struct_bytes = sizeof f;
    char state[600];
    snprintf(state, sizeof state, "%s/nodata", scratch);
    brg_options_init(&o);
    o.hub_url = hub;
    o.site_name = "nodata";
    o.state_dir = state;
    o.data_fingerprint = f.fingerprint;
    if (brg_data_open(data, 1, &d, why, sizeof why) != BRG_GO) exit(1);
    (void)brg_data_facts(d, &f);
    brg_data_close(d);
    o.timeout_ns = INT64_MAX;
    status = brg_open(&o, INT64_MAX, &s, why, sizeof why);
    if (status == BRG_GO) status = brg_sample(s, 0, tokens);
    check("a_sample_without_data_is_told",
          status == BRG_FAIL_USAGE && strstr(brg_why(s), "data_dir") != NULL, status, brg_why(s));
    brg_close(s, 0);
    check("statuses_that_are_none_have_names",
          brg_status_name(-77) && brg_status_name(999) && brg_status_sentence(-77) &&
              brg_status_sentence(999),
          0, "");
}

/* ---- Any order ---------------------------------------------------------------------------------------------- */

static uint64_t dice(uint64_t *state, uint64_t n) { /* xorshift: the same calls every time */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % n;
}

static int any_call(struct brg_site *s, uint64_t *state) {
    static uint64_t samples[64];
    static uint32_t epochs[64];
    uint64_t count = 0;
    int bits = 0;
    switch (dice(state, 64)) {
    case 0: return brg_checkpoint(s);
    case 1: return brg_reset(s);
    case 2: return brg_step(s, dice(state, 6), 0.5, "chance");
    case 3: return brg_untake(s);
    case 4: return joined_with(s, NULL, 0);
    case 5: return brg_take(s, dice(state, 65), SECOND / 20, samples, epochs, &count);
    case 6: return brg_step(s, dice(state, 1000), strtod("nan", NULL), NULL);
    case 7: return brg_lr(s) > 0 ? BRG_GO : BRG_FAIL_INTERNAL;
    default: break;
    }
    switch (dice(state, 4)) {
    case 0: return brg_sync(s, &bits);
    case 1: return brg_due(s, &bits);
    case 2: return brg_step(s, 1 + dice(state, 6), 0.5, NULL);
    default: return brg_take(s, 1 + dice(state, 8), 0, samples, epochs, &count);
    }
}

/* Whatever the order, the library never finds itself wrong, and the site still closes well. */
static void any_order(void) {
    uint64_t state = 88172645463325252U;
    for (int life = 0; life < 3; life++) {
        struct brg_site *s = opened("order", "order");
        int status = joined_with(s, NULL, 0), at = 0;
        for (; at < 1500 && status != BRG_COMPLETE; at++) {
            status = any_call(s, &state);
            bool known = status <= 0 || status == BRG_FAIL_USAGE || status == BRG_FAIL_LIMIT;
            if (known) continue;
            snprintf(why, sizeof why, "call %d of life %d: %s", at, life, brg_why(s));
            check("calls_in_any_order_are_answered", 0, status, why);
            brg_close(s, 0);
            return;
        }
        status = brg_close(s, life == 1 ? 0 : 20 * SECOND);
        if (status == BRG_GO || (life == 1 && status == BRG_FAIL_TIMEOUT)) continue;
        check("calls_in_any_order_are_answered", 0, status, "the close of it");
        return;
    }
    check("calls_in_any_order_are_answered", 1, 0, "");
}

/* What is opened next gets its number; no line of the log may land there. */
static void closed_stderr(void) {
    char path[700], text[4096] = "";
    brg_log_level("trace");
    close(STDERR_FILENO);
    struct brg_site *s = opened("mute", "mute");
    int status = joined_with(s, NULL, 0);
    if (status == BRG_GO) status = train(s, 12);
    snprintf(why, sizeof why, "%s", brg_why(s));
    int closed = brg_close(s, 20 * SECOND);
    snprintf(path, sizeof path, "%s/mute/lock", scratch);
    FILE *f = fopen(path, "r");
    if (f && fread(text, 1, sizeof text - 1, f) == 0) text[0] = '\0';
    if (f) fclose(f);
    check("a_closed_stderr_gets_no_lines_into_other_files",
          f && !strstr(text, "lvl=") && status == BRG_GO && closed == BRG_GO, status, why);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    hub = argv[1];
    data = argv[2];
    scratch = argv[3];
    setvbuf(stdout, NULL, _IOLBF, 0);
    brg_log_level("error");
    environment();
    no_threads();
    two_that_join();
    close_from_another_thread();
    arrays();
    times_and_counts();
    any_order();
    closed_stderr();
    fprintf(stdout, "ok library_the_hostile_host_lives\n");
    return failures > 0;
}
