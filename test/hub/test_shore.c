/* SPDX-License-Identifier: Apache-2.0 */
/* test_shore.c - the hub's shore inside one process: settings, facts, the state as JSON, fault points, and
 * many threads at once on a small run. The hub as a process is test/e2e/hub.py. */
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness.h"
#include "base/config_os.h"
#include "base/fault.h"
#include "cli/cli.h"
#include "data/data.h"
#include "hub/json_view.h"
#include "hub/server_os.h"

static struct run_facts some_facts(void) {
    return (struct run_facts){.parameters = 1000,
                              .positions = 5000,
                              .seq_len = 16,
                              .vocab_size = 257,
                              .order_seed = UINT64_MAX};
}

static enum brg_status take(const char *assignment, struct run_settings *out, struct err *e) {
    struct config *c = config_create();
    struct run_facts f = some_facts();
    run_settings_declare(c);
    enum brg_status s = assignment[0] != '\0' ? config_set(c, assignment, e) : BRG_OK;
    if (s == BRG_OK) s = config_finish(c, e);
    if (s == BRG_OK) s = run_settings_take(c, &f, out, e);
    config_destroy(c);
    return s;
}

TEST(hub_settings_have_good_defaults) {
    struct run_settings s;
    struct err e = {0};
    assert_int_equal(take("", &s, &e), BRG_OK);
    assert_true(s.hub.rule.h_ref == (double)s.hub.steps); /* 0 stands for outer.steps */
    assert_int_equal(s.hub.codec, CODEC_INT8);
    assert_false(s.hub.rule.sum);
    assert_int_equal(s.hub.schedule.kind, SCHEDULE_COSINE);
    assert_true(s.hub.schedule.tokens_total == 5000.0 * 16);
    assert_int_equal(s.hub.delta_bytes_max, DELTA_HEADER_BYTES + 4000);
}

TEST(hub_settings_can_ask_for_the_counting_rule) {
    struct run_settings s;
    struct err e = {0};
    assert_int_equal(take("outer.average=sum", &s, &e), BRG_OK);
    assert_true(s.hub.rule.sum);
    assert_int_equal(take("outer.average=median", &s, &e), BRG_E_CONFIG);
}

static void blobs_are_refused(const char *const *set, const char *says) {
    struct run_settings s;
    struct run_facts f = some_facts();
    struct err e = {0};
    struct config *c = config_create();
    run_settings_declare(c);
    for (; *set != NULL; set++) assert_int_equal(config_set(c, *set, &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_OK);
    assert_int_equal(run_settings_take(c, &f, &s, &e), *says == '\0' ? BRG_OK : BRG_E_CONFIG);
    if (strstr(e.text, says) == NULL) fail_msg("\"%s\" is not in \"%s\"", says, e.text);
    config_destroy(c);
}

TEST(hub_settings_name_what_is_wrong_with_an_object_store) {
    static const char *const good[] = {"blobs.store=s3://bucket/a", "blobs.endpoint=https://s3",
                                       NULL};
    static const char *const alone[] = {"blobs.endpoint=https://s3", NULL};
    static const char *const bare[] = {"blobs.store=s3://bucket", NULL};
    static const char *const clear[] = {"blobs.store=s3://bucket", "blobs.endpoint=http://s3",
                                        NULL};
    static const char *const form[] = {"blobs.store=bucket", "blobs.endpoint=https://s3", NULL};
    static const char *const region[] = {"blobs.store=s3://bucket", "blobs.endpoint=https://s3",
                                         "blobs.region=a b", NULL};
    static const char *const met[] = {"blobs.store=s3://bucket", "blobs.endpoint=https://s3",
                                      "blobs.mailbox=true", NULL};
    static const char *const unmet[] = {"blobs.mailbox=true", NULL};
    blobs_are_refused(good, "");
    blobs_are_refused(met, "");
    blobs_are_refused(unmet, "blobs.store");
    blobs_are_refused(alone, "blobs.store");
    blobs_are_refused(bare, "blobs.endpoint");
    blobs_are_refused(clear, "blobs.endpoint");
    blobs_are_refused(form, "blobs.store");
    blobs_are_refused(region, "blobs.region");
}

TEST(hub_settings_can_ask_for_muon_where_there_are_matrices) {
    struct run_settings s;
    struct run_facts f = some_facts();
    struct err e = {0};
    assert_int_equal(take("train.optimizer=muon", &s, &e), BRG_E_CONFIG); /* no layers known */
    assert_non_null(strstr(e.text, "train.optimizer"));
    f.matrix_side = 96;
    struct config *c = config_create();
    run_settings_declare(c);
    assert_int_equal(config_set(c, "train.optimizer=muon", &e), BRG_OK);
    assert_int_equal(config_set(c, "train.muon_lr_ratio=2.5", &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_OK);
    assert_int_equal(run_settings_take(c, &f, &s, &e), BRG_OK);
    config_destroy(c);
    assert_true(s.hub.muon_ratio == 2.5);
    assert_true(s.hub.muon_side == 96);
    static struct wire_run w;
    run_describe(&s, &f, "{}", &w);
    assert_int_equal(w.optimizer, WIRE_MUON);
    assert_true(w.muon_lr_ratio == 2.5);
    assert_true(w.muon_momentum == 0.95);
}

TEST(hub_settings_that_do_not_fit_are_refused_by_key) {
    static const struct {
        const char *set, *names;
    } cases[] = {{"lease.samples_min=70000", "lease.samples_min"},
                 {"lease.heartbeat=61s", "lease.heartbeat"},
                 {"train.warmup_tokens=80001", "train.warmup_tokens"},
                 {"outer.mu=1", "outer.mu"},
                 {"outer.codec=int5", "outer.codec"},
                 {"outer.optimizer=adam", "outer.optimizer"},
                 {"outer.delay=2", "outer.delay"},
                 {"outer.ema=1", "outer.ema"},
                 {"outer.steps_first=31", "outer.steps_first"},
                 {"outer.late_decay=-1", "outer.late_decay"},
                 {"hub.keep_checkpoints=0", "hub.keep_checkpoints"},
                 {"outer.grace=3", "outer.grace"},
                 {"run.name=x", "run.name"},
                 {"cluster.x=1", "cluster"}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct run_settings s;
        struct err e = {0};
        assert_int_equal(take(cases[i].set, &s, &e), BRG_E_CONFIG);
        if (strstr(e.text, cases[i].names) == NULL) fail_msg("%s: %s", cases[i].set, e.text);
    }
}

TEST(hub_facts_go_both_ways_and_hostile_ones_are_refused) {
    struct run_facts f = some_facts(), back;
    struct err e = {0};
    struct buf b;
    buf_init(&b, 4096);
    run_facts_encode(&f, &b);
    assert_int_equal(run_facts_decode(b.data, b.bytes_count, &back, &e), BRG_OK);
    assert_memory_equal(&f, &back, sizeof f);
    for (size_t n = 0; n + 2 < b.bytes_count; n++)
        assert_int_equal(run_facts_decode(b.data, n, &back, &e), BRG_E_MESSAGE);
    buf_fini(&b);
}

/* ---- Fault points ---------------------------------------------------------------------------------------- */
static int die_at(const char *spec, int passages) {
    pid_t child = fork();
    if (child == 0) {
        (void)setenv("BERINGIA_FAULT", spec, 1);
        log_level_set(LOG_ERROR);
        for (int i = 0; i < passages; i++) {
            FAULT("test.other");
            FAULT("test.point");
        }
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(base_fault_points_end_the_process_at_their_passage) {
    fault_off = false;
    assert_int_equal(die_at("test.point:3", 2), 0);
    assert_int_equal(die_at("test.point:3", 3), SIGKILL);
    assert_int_equal(die_at("test.point", 1), SIGKILL);
    assert_int_equal(die_at("test.poin:1", 5), 0);
    assert_int_equal(die_at("test.point:x", 5), 0);
}

/* ---- A server in this process ------------------------------------------------------------------------------ */
static void make_run(char run[OS_PATH_MAX]) {
    char text[OS_PATH_MAX], data[OS_PATH_MAX];
    struct err e = {0};
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 3000; i++) buf_printf(&b, "some words of text, number %d\n", i);
    os_path(text, test_dir(), "text.txt");
    os_path(data, test_dir(), "data");
    os_path(run, test_dir(), "run");
    assert_int_equal(os_write_file_atomic(text, b.data, b.bytes_count, &e), BRG_OK);
    buf_fini(&b);
    const char *inputs[] = {text};
    struct pack_options o = {.inputs = inputs,
                             .inputs_count = 1,
                             .out_dir = data,
                             .tokenizer = "bytes",
                             .seq_len = 8,
                             .heldout_share = 0,
                             .seed = 1};
    if (data_pack(&o, &e) != BRG_OK) fail_msg("%s", e.text);
    char command[] = "init", model[] = "--model", tiny[] = "share/models/tiny.json",
         with[] = "--data", set[] = "--set", size[] = "lease.samples_min=1",
         most[] = "lease.samples_max=2", grace[] = "outer.grace=1h", sites[] = "hub.sites_max=64",
         every[] = "hub.snapshot_every=100";
    char *argv[] = {command, run, model, tiny, with,  data, set,   size, set,
                    most,    set, grace, set,  sites, set,  every, NULL};
    optind = 1;
    assert_int_equal(cmd_init((int)ARRAY_COUNT(argv) - 1, argv), 0);
}

struct worker {
    struct hub_server *s;
    pthread_t thread;
    char name[WIRE_NAME_MAX];
    uint32_t inc;
    uint64_t req, leases;
    uint64_t toks[200];
};

static enum step_result send_one(struct worker *w, struct wire_request *r, struct wire_answer *a) {
    struct hub_cmd c;
    memset(&c, 0, sizeof c);
    memcpy(r->site, w->name, sizeof r->site);
    r->run = w->s->dir.facts.run;
    r->inc = w->inc;
    r->req = ++w->req;
    c.kind = HUB_CMD_REQUEST;
    c.request = r;
    return server_step(w->s, &c, a);
}

static void *lease_and_return(void *arg) {
    struct worker *w = arg;
    struct wire_request r;
    struct wire_answer a;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_JOIN;
    os_random(&r.u.join.boot, sizeof r.u.join.boot);
    r.u.join.protocol = WIRE_PROTOCOL;
    r.u.join.fingerprint = w->s->dir.facts.fingerprint;
    r.u.join.tensors = w->s->dir.facts.tensors;
    r.u.join.tokens_per_sample = w->s->dir.facts.seq_len;
    if (send_one(w, &r, &a) == STEP_STOPPING) return NULL; /* a busy machine: it never began */
    CHECK(a.code == WIRE_OK);
    w->inc = a.u.join.inc;
    for (int i = 0; i < 200; i++) {
        memset(&r, 0, sizeof r);
        r.kind = WIRE_LEASE;
        r.u.lease.want = 2;
        enum step_result done = send_one(w, &r, &a);
        if (done == STEP_STOPPING) break;
        CHECK(done == STEP_DONE);
        CHECK(a.u.lease.granted);
        w->toks[w->leases++] = a.u.lease.lease.tok;
        memset(&r, 0, sizeof r);
        r.kind = WIRE_RETURN;
        r.u.give_back.tok = a.u.lease.lease.tok;
        r.u.give_back.nonce = a.u.lease.lease.nonce;
        if (send_one(w, &r, &a) != STEP_DONE) break;
    }
    return NULL;
}

enum { WORKERS = 16 };
static uint64_t run_workers(struct hub_server *s, struct worker *w, unsigned stop_after_ms) {
    uint64_t leases = 0;
    for (int i = 0; i < WORKERS; i++) {
        w[i].s = s;
        (void)snprintf(w[i].name, sizeof w[i].name, "w%d", i);
        assert_int_equal(pthread_create(&w[i].thread, NULL, lease_and_return, &w[i]), 0);
    }
    (void)usleep(stop_after_ms * 1000);
    if (stop_after_ms > 0) { /* as closing begins: what was queued is still made durable */
        pthread_mutex_lock(&s->lock);
        s->mode = SERVER_STOPPING;
        pthread_cond_broadcast(&s->work);
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(w[i].thread, NULL);
        leases += w[i].leases;
    }
    return leases;
}

static uint64_t grants_in(const char *run) {
    struct err e = {0};
    struct hub_server *s = NULL;
    struct hub_server_options o = {.run_dir = run, .listen = "127.0.0.1:0"};
    struct hub_view v;
    if (hub_server_open(&o, &s, &e) != BRG_OK) fail_msg("%s", e.text);
    hub_view(s->hub, os_now(), &v);
    hub_server_close(s);
    return v.grants;
}

TEST(hub_S1_many_threads_and_every_answer_is_on_disk) {
    char run[OS_PATH_MAX];
    struct err e = {0};
    struct hub_server *s = NULL;
    static struct worker w[WORKERS];
    make_run(run);
    log_level_set(LOG_ERROR);
    struct hub_server_options o = {.run_dir = run, .listen = "127.0.0.1:0"};
    if (hub_server_open(&o, &s, &e) != BRG_OK) fail_msg("%s", e.text);
    uint64_t leases = run_workers(s, w, 0);
    assert_int_equal(leases, WORKERS * 200);
    hub_server_close(s);
    for (int a = 0; a < WORKERS; a++) /* no token twice */
        for (int b = 0; b < a; b++) assert_int_not_equal(w[a].toks[0], w[b].toks[0]);
    assert_int_equal(grants_in(run), leases);
    optind = 1; /* getopt begins anew */
    char audit[] = "audit";
    char *argv[] = {audit, run, NULL};
    assert_int_equal(cmd_audit(2, argv), 0);
}

TEST(hub_S2_stopping_in_the_middle_loses_no_answer) {
    char run[OS_PATH_MAX];
    struct err e = {0};
    struct hub_server *s = NULL;
    static struct worker w[WORKERS];
    make_run(run);
    log_level_set(LOG_ERROR);
    struct hub_server_options o = {.run_dir = run, .listen = "127.0.0.1:0"};
    if (hub_server_open(&o, &s, &e) != BRG_OK) fail_msg("%s", e.text);
    uint64_t leases = run_workers(s, w, 60);
    hub_server_close(s);
    assert_int_equal(grants_in(run),
                     leases); /* answered, so durable; not answered, so not decided */
}

/* A head that is too large to be hashed before serving: served, then read; damaged: the process ends. */
TEST(hub_a_large_head_is_verified_while_serving) {
    char run[OS_PATH_MAX], path[OS_PATH_MAX];
    struct err e = {0};
    struct hub_server *s = NULL;
    make_run(run);
    log_level_set(LOG_ERROR);
    struct hub_server_options o = {.run_dir = run, .listen = "127.0.0.1:0", .verify_now_bytes = 1};
    if (hub_server_open(&o, &s, &e) != BRG_OK) fail_msg("%s", e.text);
    hub_server_close(s);
    os_path(path, run, "versions/0.safetensors");
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -40, SEEK_END), 0);
    int old = fgetc(f);
    assert_int_equal(fseek(f, -40, SEEK_END), 0);
    assert_int_equal(fputc(old ^ 1, f), old ^ 1);
    assert_int_equal(fclose(f), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (hub_server_open(&o, &s, &e) != BRG_OK) _exit(1);
        (void)sleep(20);
        _exit(2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), BRG_E_CORRUPT);
}

TEST(hub_status_is_json_with_what_the_page_promises) {
    char run[OS_PATH_MAX];
    struct err e = {0};
    struct hub_server *s = NULL;
    struct view_extra x = {.full = true, .round_s = 1.5};
    struct buf b;
    static struct worker w;
    make_run(run);
    log_level_set(LOG_ERROR);
    struct hub_server_options o = {.run_dir = run, .listen = "127.0.0.1:0"};
    if (hub_server_open(&o, &s, &e) != BRG_OK) fail_msg("%s", e.text);
    w.s = s;
    (void)snprintf(w.name, sizeof w.name, "alone");
    (void)lease_and_return(&w);
    buf_init(&b, 1 << 20);
    pthread_mutex_lock(&s->lock);
    view_status(s->hub, os_now(), &s->dir.settings, &x, &b);
    pthread_mutex_unlock(&s->lock);
    json_t *j = json_loadb((const char *)b.data, b.bytes_count, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_true(json_is_true(json_object_get(j, "full")));
    json_t *site = json_array_get(json_object_get(j, "sites"), 0);
    assert_string_equal(json_string_value(json_object_get(site, "name")), "alone");
    assert_int_equal(json_integer_value(json_object_get(j, "sites_live")), 1);
    assert_int_equal(json_integer_value(json_object_get(j, "grants")), 200);
    json_decref(j);
    buf_fini(&b);
    hub_server_close(s);
}
