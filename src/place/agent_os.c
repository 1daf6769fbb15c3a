/* SPDX-License-Identifier: Apache-2.0 */
/* agent_os.c - see agent_os.h. The order of things: agent_next, the state made durable, then the action.
 *
 *   STATE/agent.lock    one agent at a time           STATE/submit.lock  inherited by each sbatch: held while one
 *   STATE/agent.json    the durable state                                lives, also one whose agent was killed
 *   STATE/jobs/         output of jobs, by name       STATE/local/       files of scheduler: local */
#include "place/agent_os.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "place/courier_os.h"
#include "place/scheduler_os.h"
#include "wire/client.h"

enum { STATE_BYTES_MAX = 4 << 20, ONCE_ACTIONS_MAX = 64 };

struct agent_process {
    struct place_site site;
    struct agent agent;
    struct scheduler_state state;
    const struct scheduler *scheduler;
    struct client *client;
    struct courier *courier;
    struct place_job *jobs;
    const struct agent_run_options *o;
    int lock;
};

static uint64_t wall_s(void) {
    return (uint64_t)(os_wall() / NS_PER_S);
}

static bool stopped(const struct agent_process *p) {
    return p->o->stop != NULL && *p->o->stop != 0;
}

/* ---- Opening ---------------------------------------------------------------------------------------- */

/* Relative paths of site.yaml begin where it lies. */
static void path_of(const char *site_file, const char *path, char out[OS_PATH_MAX]) {
    const char *slash = strrchr(site_file, '/');
    char here[OS_PATH_MAX];
    if (path[0] == '/' || path[0] == '\0') {
        (void)snprintf(out, OS_PATH_MAX, "%s", path);
        return;
    }
    if (site_file[0] != '/') CHECK(getcwd(here, sizeof here) != NULL);
    int n = snprintf(out, OS_PATH_MAX, "%s%s%.*s%s%s", site_file[0] == '/' ? "" : here,
                     site_file[0] == '/' ? "" : "/", slash != NULL ? (int)(slash - site_file) : 0,
                     site_file, slash != NULL ? "/" : "", path);
    CHECK(n > 0);
    CHECK(n < OS_PATH_MAX);
}

static enum brg_status path_fix(const char *site_file, char *path, struct err *e) {
    char full[OS_PATH_MAX];
    path_of(site_file, path, full);
    if (strlen(full) >= SITE_PATH_MAX)
        return err_set(e, BRG_E_CONFIG, "%s: the path %.100s is too long", site_file, path);
    memcpy(path, full, strlen(full) + 1);
    return BRG_OK;
}

static enum brg_status site_open(struct agent_process *p, struct err *e) {
    AUTO_BUF struct buf b = {.bytes_max = 1 << 20};
    const char *file = p->o->site_file;
    TRY(os_read_file(file, 1 << 20, &b, e));
    TRY(sitefile_parse(file, b.data != NULL ? (const char *)b.data : "", b.bytes_count, &p->site,
                       e));
    TRY(path_fix(file, p->site.state, e));
    TRY(path_fix(file, p->site.script, e));
    TRY(path_fix(file, p->site.token, e));
    TRY(path_fix(file, p->site.ca, e));
    TRY(path_fix(file, p->site.spool, e));
    if (!os_exists(p->site.script))
        return err_set(e, BRG_E_MISSING,
                       "%s: job.script: %s is not there; docs/agent.md has one to begin with", file,
                       p->site.script);
    return BRG_OK;
}

static enum brg_status state_open(struct agent_process *p, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b = {.bytes_max = STATE_BYTES_MAX};
    struct scheduler_state *s = &p->state;
    s->site = &p->site;
    s->stop = p->o->stop;
    (void)snprintf(s->script, sizeof s->script, "%s", p->site.script);
    (void)snprintf(s->out_dir, sizeof s->out_dir, "%s/jobs", p->site.state);
    (void)snprintf(s->state_dir, sizeof s->state_dir, "%s/local", p->site.state);
    TRY(os_mkdirs(s->out_dir, e));
    TRY(os_mkdirs(s->state_dir, e));
    os_path(path, p->site.state, "agent.lock");
    TRY(os_lock(path, &p->lock, e));
    os_path(path, p->site.state, "submit.lock");
    s->submit_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->submit_lock < 0) return os_errno(e, errno, "opening", path);
    uint64_t seed = p->o->seed;
    if (seed == 0) os_random(&seed, sizeof seed);
    agent_init(&p->agent, &p->site, seed);
    os_path(path, p->site.state, "agent.json");
    if (!os_exists(path)) return BRG_OK;
    TRY(os_read_file(path, STATE_BYTES_MAX, &b, e));
    return agent_load(&p->agent, path, b.data, b.bytes_count, e);
}

/* The run's id: asked for once, kept for ever. Another one later is a mistake of somebody's. */
static enum brg_status run_learn(struct agent_process *p, struct err *e) {
    struct wire_run *r = mem_alloc(1, sizeof *r);
    char hex[ID_HEX_BYTES];
    enum brg_status s = client_run(p->client, r, e);
    if (s == BRG_OK) {
        id_hex(&r->run, hex);
        if (p->agent.run[0] == '\0') {
            memcpy(p->agent.run, hex, sizeof hex);
            p->agent.dirty = true;
        } else if (strcmp(p->agent.run, hex) != 0) {
            s = err_set(e, BRG_E_REFUSED,
                        "%s keeps run %.8s, this agent's state is of run %.8s; give another state "
                        "directory in site.state for another run",
                        p->site.hub, hex, p->agent.run);
        }
    }
    mem_free(r);
    return s;
}

/* ---- Doing ------------------------------------------------------------------------------------------- */

static enum brg_status save(struct agent_process *p, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b = {.bytes_max = STATE_BYTES_MAX};
    if (!p->agent.dirty) return BRG_OK;
    agent_save(&p->agent, &b);
    CHECK(!b.overflow);
    os_path(path, p->site.state, "agent.json");
    TRY(os_write_file_atomic(path, b.data, b.bytes_count, e));
    p->agent.dirty = false;
    return BRG_OK;
}

/* Takes or gives the lock that submissions inherit; false: one of an earlier process still lives. */
static bool submit_lock(struct agent_process *p) {
    return flock(p->state.submit_lock, LOCK_EX | LOCK_NB) == 0;
}

static void submit_reopen(struct agent_process *p) {
    char path[OS_PATH_MAX];
    (void)close(p->state.submit_lock); /* a child that lives on keeps the lock by its own copy */
    os_path(path, p->site.state, "submit.lock");
    p->state.submit_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(p->state.submit_lock >= 0);
}

static void orphan_look(struct agent_process *p) {
    p->agent.orphan = !submit_lock(p);
    if (!p->agent.orphan) submit_reopen(p);
}

static void do_submit(struct agent_process *p, const struct agent_action *x) {
    struct place_submitted s;
    struct agent_job *j = &p->agent.jobs[x->job];
    char name[PLACE_JOBNAME_MAX];
    memcpy(name, j->name, sizeof name);
    if (!submit_lock(p)) { /* somebody else's sbatch of ours still lives: nothing is known */
        memset(&s, 0, sizeof s);
        s.said.class_ = PLACE_AWAY;
        (void)snprintf(s.said.text, sizeof s.said.text, "an earlier submission still runs");
        p->agent.orphan = true;
    } else {
        FAULT("agent.before_submit");
        p->scheduler->submit(&p->state, x->shape, name, x->after, &s);
        FAULT("agent.after_submit");
        submit_reopen(p);
    }
    log_line(s.said.class_ == PLACE_FINE ? LOG_INFO : LOG_WARN, "agent", "submitted",
             "name=%s class=%s id=%" PRIu64 " text=\"%s\"", name, place_class_name(s.said.class_),
             s.job, s.said.text);
    agent_submitted(&p->agent, os_now(), wall_s(), x->job, &s);
}

/* Whether each job left a mark of a run: its output. */
static void marks(struct agent_process *p, bool ran[AGENT_JOBS_MAX]) {
    char path[OS_PATH_MAX];
    for (uint32_t i = 0; i < p->agent.jobs_count; i++) {
        os_path(path, p->state.out_dir, "%s.out", p->agent.jobs[i].name);
        ran[i] = os_exists(path);
    }
}

static void do_look(struct agent_process *p, bool history) {
    struct place_jobs q = {.jobs = p->jobs};
    bool ran[AGENT_JOBS_MAX] = {false};
    const char *names[AGENT_JOBS_MAX];
    uint32_t count = 0;
    time_ns before = os_now();
    if (p->agent.orphan) orphan_look(p);
    for (uint32_t i = 0; i < p->agent.jobs_count; i++)
        if (p->agent.jobs[i].missing > 0 && p->agent.jobs[i].phase != AGENT_OVER)
            names[count++] = p->agent.jobs[i].name;
    if (history && count > 0)
        p->scheduler->history(&p->state, names, count, 0, &q);
    else if (!history)
        p->scheduler->queue(&p->state, &q);
    else
        return;
    if (q.said.class_ != PLACE_FINE && q.said.class_ != PLACE_ABSENT)
        log_line(LOG_WARN, "agent", history ? "history" : "queue", "class=%s text=\"%s\"",
                 place_class_name(q.said.class_), q.said.text);
    marks(p, ran);
    if (history)
        agent_recalled(&p->agent, os_now(), wall_s(), &q, ran);
    else
        agent_looked(&p->agent, os_now(), wall_s(), &q, ran,
                     (uint64_t)((os_now() - before) / NS_PER_MS));
}

static void do_cancel(struct agent_process *p, const struct agent_action *x) {
    struct place_said said = {0};
    bool drain = x->kind == AGENT_DRAIN;
    p->scheduler->cancel(&p->state, x->cancel, drain, &said);
    log_line(LOG_INFO, "agent", drain ? "drain" : "cancel", "id=%" PRIu64 " class=%s text=\"%s\"",
             x->cancel, place_class_name(said.class_), said.text);
    agent_cancelled(&p->agent, os_now(), wall_s(), x->job, &said, drain);
}

static void do_probe(struct agent_process *p, const struct agent_action *x) {
    struct place_estimate e;
    time_ns before = os_now();
    p->scheduler->probe(&p->state, x->shape, &e);
    log_line(e.said.class_ == PLACE_FINE ? LOG_DEBUG : LOG_WARN, "agent", "probe",
             "shape=%s class=%s text=\"%s\"", x->shape->name, place_class_name(e.said.class_),
             e.said.text);
    agent_probed(&p->agent, os_now(), wall_s(), x->shape, &e,
                 (uint64_t)((os_now() - before) / NS_PER_MS));
}

/* Orders that this agent took or refused: a line each. */
static void log_orders(struct agent_process *p, uint32_t before) {
    for (uint32_t i = before; i < p->agent.orders_count; i++) {
        const struct agent_order *o = &p->agent.orders[i];
        log_line(o->over ? LOG_WARN : LOG_INFO, "agent", o->over ? "order_refused" : "order",
                 "order=%" PRIu64 " shape=%s jobs=%u", o->id, o->shape, o->jobs);
    }
}

static enum brg_status do_hub(struct agent_process *p, struct err *e) {
    struct wire_report *r = mem_alloc(1, sizeof *r);
    struct wire_agent_answer *w = mem_alloc(1, sizeof *w);
    bool first = p->agent.run[0] == '\0'; /* then only the hub's number of our items is asked for */
    enum brg_status s = first ? run_learn(p, e) : BRG_OK;
    if (s == BRG_OK) {
        (void)snprintf(r->site, sizeof r->site, "%s", p->site.name);
        CHECK(hex_decode(p->agent.run, r->run.v, ID_BYTES));
        while (!first && r->items_count < p->agent.items_count && r->items_count < WIRE_ITEMS_MAX) {
            r->items[r->items_count] = p->agent.items[r->items_count];
            r->items_count++;
        }
        s = client_agent(p->client, r, w, e);
    }
    uint32_t orders = p->agent.orders_count;
    if (first && (s != BRG_OK || w->code != WIRE_OK)) p->agent.run[0] = '\0';
    if (s == BRG_OK && w->code == WIRE_OK) {
        if (first) agent_renumber(&p->agent, w->n);
        agent_told(&p->agent, os_now(), wall_s(), w);
        log_orders(p, orders < p->agent.orders_count ? orders : p->agent.orders_count);
    } else if (s == BRG_OK && w->code == WIRE_MISMATCH) {
        s = err_set(e, BRG_E_REFUSED, "the hub refuses: %.200s", w->text);
    } else {
        if (s == BRG_OK) (void)err_set(e, BRG_E_NET, "the hub: %.200s", w->text);
        log_line(LOG_WARN, "agent", "hub_away", "text=\"%s\"", e->text);
        agent_hub_away(&p->agent, os_now(), s == BRG_OK ? w->retry_ms : 0);
        if (s != BRG_E_REFUSED) s = BRG_OK;
    }
    mem_free(r);
    mem_free(w);
    return s;
}

static void sleep_until(const struct agent_process *p, time_ns until) {
    while (!stopped(p) && os_now() < until) {
        time_ns left = until - os_now();
        if (left > NS_PER_S) left = NS_PER_S; /* a signal may come just before the sleep */
        struct timespec t = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
        if (nanosleep(&t, NULL) != 0) return;
    }
}

static enum brg_status act(struct agent_process *p, const struct agent_action *x, struct err *e) {
    switch (x->kind) {
    case AGENT_WAIT: sleep_until(p, x->until); return BRG_OK;
    case AGENT_HUB: return do_hub(p, e);
    case AGENT_LOOK: do_look(p, false); return BRG_OK;
    case AGENT_HISTORY: do_look(p, true); return BRG_OK;
    case AGENT_SUBMIT: do_submit(p, x); return BRG_OK;
    case AGENT_CANCEL:
    case AGENT_DRAIN: do_cancel(p, x); return BRG_OK;
    case AGENT_PROBE: do_probe(p, x); return BRG_OK;
    }
    return BRG_OK;
}

static enum brg_status loop(struct agent_process *p, struct err *e) {
    uint32_t actions = 0;
    bool told = false;
    agent_start(&p->agent, os_now(), wall_s());
    orphan_look(p);
    while (!stopped(p)) {
        struct agent_action x;
        agent_next(&p->agent, os_now(), wall_s(), &x);
        /* Once: all that is due, and what came of it told to the hub. */
        if (p->o->once && (x.kind == AGENT_WAIT || ++actions > ONCE_ACTIONS_MAX)) {
            if (told || p->agent.items_count == 0) break;
            told = true;
            x = (struct agent_action){.kind = AGENT_HUB};
        }
        TRY(save(p, e)); /* G1 */
        TRY(act(p, &x, e));
        TRY(save(p, e));
    }
    return save(p, e);
}

enum brg_status agent_run(const struct agent_run_options *o, struct err *e) {
    struct agent_process *p = mem_alloc(1, sizeof *p);
    p->o = o;
    p->lock = p->state.submit_lock = -1;
    p->jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *p->jobs);
    enum brg_status s = site_open(p, e);
    if (s == BRG_OK) s = state_open(p, e);
    if (s == BRG_OK) s = client_global_init(e);
    if (s == BRG_OK) {
        p->scheduler = p->site.scheduler == PLACE_LOCAL ? &scheduler_local : &scheduler_slurm;
        struct client_options c = {.url = p->site.hub,
                                   .token_file = p->site.token,
                                   .ca_file = p->site.ca,
                                   .timeout_ns = 30 * (time_ns)NS_PER_S};
        s = client_open(&c, &p->client, e);
    }
    if (s == BRG_OK && p->site.spool[0] != '\0' && !o->once) {
        struct courier_options c = {.spool = p->site.spool,
                                    .hub = p->site.hub,
                                    .token_file = p->site.token,
                                    .ca_file = p->site.ca};
        s = courier_start(&c, &p->courier, e);
    }
    if (s == BRG_OK) s = loop(p, e);
    courier_stop(p->courier);
    client_close(p->client);
    if (p->lock >= 0) (void)close(p->lock);
    if (p->state.submit_lock >= 0) (void)close(p->state.submit_lock);
    mem_free(p->jobs);
    mem_free(p);
    return s;
}
