/* SPDX-License-Identifier: Apache-2.0 */
/* bad_use.c - a host program that does with libberingia what it should not, against a live hub.
 *
 *   bad_use HUB DATA SCRATCH        prints "ok library_..." or "FAIL library_..."
 *
 * What must hold: each call says so with a status and a sentence, none of them ends this process or
 * hangs, nothing is written to standard output but by this file, and no signal is handled by the library. */
#include <beringia.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND ((int64_t)1000000000)

static int failures;
static const char *hub, *data;
static char state[512], why[600];

static void check(const char *name, int good, int status, const char *text) {
    fprintf(stdout, "%s library_%s\n", good ? "ok" : "FAIL", name);
    if (!good) fprintf(stdout, "  status %d (%s): %s\n", status, brg_status_name(status), text);
    failures += !good;
}

/* ---- A heap that can be empty ----------------------------------------------------------------------- */

/* The dynamic linker takes these for the library's calls too. */
extern void *__libc_realloc(void *p, size_t n);
static volatile int no_memory;
void *realloc(void *p, size_t n) {
    return no_memory && n > 4096 ? NULL : __libc_realloc(p, n);
}

/* ---- Helpers ----------------------------------------------------------------------------------------- */

static struct brg_site *opened(const char *name, const char *dir) {
    struct brg_options o;
    struct brg_site *s = NULL;
    snprintf(state, sizeof state, "%s-%s", dir, name);
    brg_options_init(&o);
    o.hub_url = hub;
    o.site_name = name;
    o.data_dir = data;
    o.state_dir = state;
    o.timeout_ns = 5 * SECOND;
    int status = brg_open(&o, 20 * SECOND, &s, why, sizeof why);
    if (status != BRG_GO) {
        check("opens", 0, status, why);
        exit(1);
    }
    return s;
}

static int joined(struct brg_site *s, uint64_t rows, const char *tensor) {
    struct brg_run run;
    struct brg_tensor matrix;
    struct brg_trainer t;
    memset(&run, 0, sizeof run);
    run.struct_bytes = sizeof run;
    brg_run(s, &run);
    memset(&matrix, 0, sizeof matrix);
    matrix.name = tensor;
    matrix.dims = 2;
    matrix.shape[0] = rows ? rows : run.vocab_size;
    matrix.shape[1] = run.vocab_size;
    memset(&t, 0, sizeof t);
    t.struct_bytes = sizeof t;
    t.tensors = &matrix;
    t.tensors_count = 1;
    return brg_join(s, &t, 20 * SECOND);
}

/* ---- Structs and handles ------------------------------------------------------------------------------ */

static void no_site(void) {
    uint64_t samples[4], count = 0;
    size_t bytes = 0;
    uint8_t id[16];
    int due = 0;
    int good =
        brg_join(NULL, NULL, 0) == BRG_FAIL_USAGE && brg_sync(NULL, NULL) == BRG_FAIL_USAGE &&
        brg_take(NULL, 4, 0, samples, NULL, &count) == BRG_FAIL_USAGE &&
        brg_step(NULL, 1, 0, NULL) == BRG_FAIL_USAGE && brg_due(NULL, &due) == BRG_FAIL_USAGE &&
        brg_checkpoint(NULL) == BRG_FAIL_USAGE && brg_run(NULL, NULL) == BRG_FAIL_USAGE &&
        brg_status(NULL, NULL) == BRG_FAIL_USAGE && brg_close(NULL, 0) == BRG_GO &&
        brg_model_json(NULL) == NULL && brg_weights(NULL) == NULL && brg_lr(NULL) == 0 &&
        brg_reset(NULL) == BRG_FAIL_USAGE && brg_untake(NULL) == BRG_FAIL_USAGE &&
        brg_keep(NULL, samples, sizeof samples, &bytes, NULL) == BRG_FAIL_USAGE &&
        brg_offer(NULL, samples, 1) == BRG_FAIL_USAGE && brg_run_id(NULL, id) == BRG_FAIL_USAGE &&
        brg_sample(NULL, 0, NULL) == BRG_FAIL_USAGE && strlen(brg_why(NULL)) > 0;
    brg_drain(NULL);
    check("a_missing_site_is_refused", good, 0, brg_why(NULL));
}

static void structs(void) {
    struct {
        struct brg_options o;
        char newer[64];
    } big;
    struct brg_site *s = NULL;
    memset(&big, 0, sizeof big);
    int status = brg_open(&big.o, 0, &s, why, sizeof why);
    check("options_without_size_are_refused",
          status == BRG_FAIL_USAGE && strstr(why, "struct_bytes") != NULL, status, why);
    brg_options_init(&big.o);
    big.o.struct_bytes = sizeof big;
    big.newer[20] = 1;
    status = brg_open(&big.o, 0, &s, why, sizeof why);
    check("a_field_of_a_newer_header_is_refused",
          status == BRG_FAIL_USAGE && strstr(why, "newer") != NULL, status, why);
    big.newer[20] = 0;
    status = brg_open(&big.o, 0, &s, why, sizeof why);
    check("a_newer_header_is_fine", status == BRG_FAIL_CONFIG && strstr(why, "hub_url") != NULL,
          status, why);
    status = brg_open(NULL, 0, &s, why, sizeof why);
    check("missing_options_are_refused", status == BRG_FAIL_USAGE, status, why);
    check("sizes_are_known",
          brg_struct_bytes("brg_options") == sizeof(struct brg_options) &&
              brg_struct_bytes("brg_figures") == sizeof(struct brg_figures) &&
              brg_struct_bytes("nothing") == 0,
          0, "");
}

static void the_data(void) {
    struct brg_data *d = NULL;
    struct brg_data_facts f;
    int32_t tokens[4096];
    int status = brg_data_open("/nowhere", 0, &d, why, sizeof why);
    check("a_missing_data_set_is_told", status == 4 && strstr(why, "/nowhere") != NULL, status,
          why);
    status = brg_data_open(data, 0, &d, why, sizeof why);
    memset(&f, 0, sizeof f);
    int sizeless = brg_data_facts(d, &f);
    f.struct_bytes = sizeof f;
    int good = status == BRG_GO && sizeless == BRG_FAIL_USAGE && brg_data_facts(d, &f) == BRG_GO &&
               f.samples > 0 && f.seq_len < 4096 &&
               brg_data_sample(d, f.samples - 1, tokens) == BRG_GO &&
               brg_data_sample(d, f.samples, tokens) == BRG_FAIL_USAGE &&
               brg_data_heldout_sample(d, f.heldout_samples, tokens) == BRG_FAIL_USAGE &&
               brg_data_facts(NULL, &f) == BRG_FAIL_USAGE;
    brg_data_close(d);
    brg_data_close(NULL);
    check("a_data_set_alone", good, status, why);
}

/* ---- A live site ---------------------------------------------------------------------------------------- */

static void *from_elsewhere(void *user) {
    static int status;
    status = brg_sync((struct brg_site *)user, NULL);
    snprintf(why, sizeof why, "%s", brg_why((struct brg_site *)user));
    return &status;
}

static void threads(struct brg_site *s) {
    pthread_t t;
    void *result = NULL;
    if (pthread_create(&t, NULL, from_elsewhere, s) != 0 || pthread_join(t, &result) != 0) exit(1);
    int status = *(int *)result;
    check("another_thread_is_refused", status == BRG_FAIL_USAGE && strstr(why, "thread") != NULL,
          status, why);
    status = brg_sync(s, NULL);
    check("the_training_thread_goes_on", status == BRG_GO, status, brg_why(s));
}

static void forks(struct brg_site *s) {
    uint64_t samples[4], count = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int good = brg_take(s, 4, 0, samples, NULL, &count) == BRG_FAIL_USAGE &&
                   strstr(brg_why(s), "fork") != NULL && brg_sync(s, NULL) == BRG_FAIL_USAGE &&
                   brg_close(s, 0) == BRG_FAIL_USAGE && brg_model_json(s) == NULL;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) exit(1);
    check("a_child_is_refused", status == 0, status, "see the child");
    status = brg_sync(s, NULL);
    check("the_parent_goes_on", status == BRG_GO, status, brg_why(s));
}

static void live(const char *dir) {
    uint64_t samples[64], count = 0;
    struct brg_site *s = opened("live", dir), *twin = NULL;
    int status = brg_take(s, 4, 0, samples, NULL, &count);
    check("taking_before_joining_is_refused",
          status == BRG_FAIL_USAGE && strstr(brg_why(s), "brg_join") != NULL, status, brg_why(s));
    status = joined(s, 3, "W");
    check("another_shape_is_refused", status == BRG_FAIL_MODEL, status, brg_why(s));
    status = joined(s, 0, "V");
    check("another_name_is_refused", status == BRG_FAIL_MODEL, status, brg_why(s));
    status = joined(s, 0, "W");
    check("the_right_model_joins_after_that", status == BRG_GO, status, brg_why(s));
    status = joined(s, 0, "W");
    check("joining_twice_is_refused",
          status == BRG_FAIL_USAGE && strstr(brg_why(s), "already") != NULL, status, brg_why(s));
    struct brg_options o;
    brg_options_init(&o);
    o.hub_url = hub;
    o.site_name = "live";
    o.data_dir = data;
    o.state_dir = state;
    status = brg_open(&o, 0, &twin, why, sizeof why);
    check("a_second_site_on_one_directory_is_refused", status == BRG_FAIL_BUSY, status, why);
    status = brg_step(s, 1, 0, NULL);
    check("a_step_on_nothing_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    status = brg_take(s, 0, 0, samples, NULL, &count);
    check("taking_nothing_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    threads(s);
    forks(s);
    status = brg_take(s, 4, 20 * SECOND, samples, NULL, &count);
    check("samples_are_taken", status == BRG_GO && count == 4, status, brg_why(s));
    uint64_t first = samples[0];
    int put = brg_untake(s);
    status = brg_take(s, 4, 20 * SECOND, samples, NULL, &count);
    check("what_is_put_back_comes_again", put == BRG_GO && status == BRG_GO && samples[0] == first,
          status, brg_why(s));
    put = brg_reset(s);
    status = brg_sync(s, NULL);
    check("work_can_be_thrown_away", put == BRG_GO && status == BRG_GO, status, brg_why(s));
    status = brg_close(s, 20 * SECOND);
    check("and_the_site_closes", status == BRG_GO, status, "");
}

/* Weights that are not a number: three segments are thrown away, then the site says so. */
static void nonfinite(const char *dir) {
    uint64_t samples[4], count = 0;
    struct brg_site *s = opened("nan", dir);
    int status = joined(s, 0, "W");
    for (int i = 0; i < 2000 && (status == BRG_GO || status == BRG_WAIT); i++) {
        status = brg_take(s, 4, SECOND / 10, samples, NULL, &count);
        if (status == BRG_GO) {
            brg_weights(s)[7] = (float)strtod("nan", NULL);
            status = brg_step(s, count, 1, NULL);
        }
        if (status == BRG_GO || status == BRG_WAIT) status = brg_sync(s, NULL);
    }
    check("weights_that_are_no_numbers_are_told", status == BRG_FAIL_NONFINITE, status, brg_why(s));
    brg_close(s, 20 * SECOND);
}

static void memory(const char *dir) {
    static uint64_t samples[65536];
    uint64_t count = 0;
    struct brg_site *s = opened("poor", dir);
    int status = joined(s, 0, "W");
    check("a_site_before_memory_ends", status == BRG_GO, status, brg_why(s));
    no_memory = 1;
    status = brg_take(s, 65536, 0, samples, NULL, &count);
    no_memory = 0;
    check("no_memory_is_a_status", status == BRG_FAIL_MEMORY, status, brg_why(s));
    status = brg_sync(s, NULL);
    check("the_site_is_of_no_more_use", status == BRG_FAIL_MEMORY && strlen(brg_why(s)) > 0, status,
          brg_why(s));
    status = brg_close(s, 20 * SECOND);
    check("a_broken_site_closes", status == BRG_FAIL_MEMORY, status, "");
    s = opened("poor", dir);
    status = joined(s, 0, "W");
    check("the_next_one_on_its_directory_joins", status == BRG_GO, status, brg_why(s));
    brg_close(s, 20 * SECOND);
}

/* Bytes of brg_keep: garbage, old ones, at the wrong time. */
static void kept(const char *dir) {
    static uint8_t bytes[BRG_KEPT_BYTES_MAX], later[BRG_KEPT_BYTES_MAX];
    struct brg_moment m = {.struct_bytes = sizeof m}, n = m;
    uint64_t samples[4], count = 0;
    size_t size = 0, more = 0;
    struct brg_site *s = opened("kept", dir);
    int status = brg_offer(s, "BRGKEEP0 and then some", 22);
    check("garbage_is_no_moment", status > 0 && strstr(brg_why(s), "brg_keep") != NULL, status,
          brg_why(s));
    status = joined(s, 0, "W");
    check("and_the_site_joins_all_the_same", status == BRG_GO, status, brg_why(s));
    status = brg_keep(s, bytes, sizeof bytes, &size, &m);
    check("a_moment_is_kept", status == BRG_GO && size > 36 && m.incarnation > 0, status,
          brg_why(s));
    status = brg_keep(s, later, 10, &more, &n);
    check("too_small_a_place_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    status = brg_offer(s, bytes, size);
    check("offering_after_joining_is_refused", status == BRG_FAIL_USAGE, status, brg_why(s));
    status = brg_take(s, 4, 20 * SECOND, samples, NULL, &count);
    if (status == BRG_GO) status = brg_step(s, count, 1, NULL);
    if (status == BRG_GO) status = brg_sync(s, NULL);
    if (status == BRG_GO) status = brg_keep(s, later, sizeof later, &more, &n);
    check("a_later_moment_is_newer", status == BRG_GO && n.steps == m.steps + 1, status,
          brg_why(s));
    status = brg_checkpoint(s);
    check("a_checkpoint_is_saved", status == BRG_GO, status, brg_why(s));
    brg_close(s, 20 * SECOND);
    s = opened("kept", dir);
    status = brg_offer(s, bytes, size);
    check("a_moment_older_than_the_checkpoint_is_refused",
          status > 0 && strstr(brg_why(s), "newer") != NULL, status, brg_why(s));
    status = joined(s, 0, "W");
    check("and_the_checkpoint_is_read", status == BRG_GO, status, brg_why(s));
    brg_close(s, 20 * SECOND);
}

int main(int argc, char **argv) {
    struct sigaction before[65], now;
    if (argc != 4) return 2;
    hub = argv[1];
    data = argv[2];
    brg_log_level("error");
    for (int i = 1; i < 65; i++) sigaction(i, NULL, &before[i]);
    no_site();
    structs();
    the_data();
    live(argv[3]);
    nonfinite(argv[3]);
    memory(argv[3]);
    kept(argv[3]);
    int same = 1;
    for (int i = 1; i < 65; i++)
        if (sigaction(i, NULL, &now) == 0 && now.sa_handler != before[i].sa_handler) same = 0;
    check("no_signal_handlers", same, 0, "");
    check("log_levels_by_name", brg_log_level("loud") == BRG_FAIL_USAGE, 0, "");
    return failures > 0;
}
