/* SPDX-License-Identifier: Apache-2.0 */
/* server_os.c - the duties of the machine, in their order, with many requests at a time.
 *
 *   request thread   lock; hub_step; queue the records; wait until seq_durable reaches the answer
 *   journal thread   takes the whole queue, one durable transaction for all of it, wakes everybody
 *   tick thread      HUB_CMD_TICK at hub_expiry
 *   merge thread     computes the plan, HUB_CMD_MERGED, publishes (merge_thread_os.c)
 *
 * Group commit comes by itself: while one transaction is synced, the next queue fills.
 *
 *   SERVING --journal full--> FULL --space again, START durable--> SERVING;   any --close--> STOPPING
 *   SERVING --server lost--> AWAY --reached, looked up, START durable--> SERVING
 *
 * journal_thread_os.c tells what FULL and AWAY are and how they end.
 *
 * Invariants
 *   (S1) no answer leaves before every record up to the state's sequence at its time is durable.
 *   (S2) records reach the journal in the order in which the machine made them, without a gap.     */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/events_os.h"
#include "hub/mailbox_os.h"
#include "hub/notify_os.h"
#include "hub/objects_os.h"
#include "hub/server_os.h"
#include "hub/uplink_os.h"

enum { PROBE_BYTES = 4 << 20, TICK_MAX_MS = 250, CONNECTIONS_MIN = 512 };
enum { VERIFY_NOW_BYTES = 256 << 20 };

/* ---- Time ------------------------------------------------------------------------------------------ */
/* Gaps of this process (SIGSTOP, a paused machine) are seen and forgiven by the machine itself. */
time_ns server_now(struct hub_server *s) {
    (void)s;
    return os_now();
}

static void cond_init(pthread_cond_t *c) {
    pthread_condattr_t a;
    CHECK(pthread_condattr_init(&a) == 0);
    CHECK(pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(c, &a) == 0);
    pthread_condattr_destroy(&a);
}

void server_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, time_ns when) {
    struct timespec t = {.tv_sec = when / NS_PER_S, .tv_nsec = when % NS_PER_S};
    (void)pthread_cond_timedwait(c, m, &t);
}

/* ---- After a step, under the lock -------------------------------------------------------------------- */
static void write_notes(struct buf *notes) {
    if (notes->bytes_count == 0) return;
    const char *line = buf_cstr(notes);
    while (*line != '\0') {
        const char *end = strchrnul(line, '\n');
        enum log_level level = LOG_INFO;
        char word[48] = "info", event[48] = "note";
        int used = 0;
        if (sscanf(line, "lvl=%47[a-z] ev=%47[a-z0-9_]%n", word, event, &used) < 2) used = 0;
        (void)log_level_parse(word, &level);
        line += used;
        while (*line == ' ') line++;
        log_line(level, "hub", event, "%.*s", line < end ? (int)(end - line) : 0, line);
        line = *end == '\n' ? end + 1 : end;
    }
}

void plan_job_fini(struct plan_job *j) {
    mem_free(j->plan.parts);
    buf_fini(&j->plan.ledger);
    memset(j, 0, sizeof *j);
}

void plan_job_copy(struct plan_job *to, const struct hub_plan *p, uint64_t generation) {
    memset(to, 0, sizeof *to);
    to->generation = generation;
    to->plan = *p;
    to->plan.parts = mem_alloc(p->parts_count > 0 ? p->parts_count : 1, sizeof *p->parts);
    for (uint32_t i = 0; i < p->parts_count; i++) to->plan.parts[i] = p->parts[i];
    buf_init(&to->plan.ledger, p->ledger.bytes_count + 1);
    if (p->ledger.bytes_count > 0) buf_put(&to->plan.ledger, p->ledger.data, p->ledger.bytes_count);
}

/* Takes over what the last hub_step gave: records, notes, a merge, a snapshot. */
void server_take_out(struct hub_server *s) {
    struct hub_out *o = &s->out;
    write_notes(&o->notes);
    if (o->records_count > 0) {
        CHECK(!o->records.overflow);
        buf_put(&s->queue, o->records.data, o->records.bytes_count);
        CHECK(!s->queue.overflow);
        s->queue_count += o->records_count;
        s->seq_queued += o->records_count;
        CHECK(s->seq_queued == o->seq_after); /* S2 */
    }
    if (o->snapshot_due && !s->snapshot_ready) {
        buf_reset(&s->snapshot);
        hub_snapshot(s->hub, &s->snapshot);
        s->snapshot_seq = s->seq_queued;
        s->snapshot_ready = !s->snapshot.overflow;
    }
    if (o->merge != NULL) {
        plan_job_fini(&s->job);
        plan_job_copy(&s->job, o->merge, s->generation);
        s->merge_ready = true;
        pthread_cond_signal(&s->merge);
    }
    if (s->queue_count > 0 || s->snapshot_ready) pthread_cond_signal(&s->work);
    time_ns due = hub_expiry(s->hub);
    if (due < s->tick_at) pthread_cond_signal(&s->tick);
}

/* ---- Waiting ----------------------------------------------------------------------------------------- */
/* Called with the lock, returns without it. Each thread sleeps on its own: when a transaction is durable
 * those it concerns wake once and need no lock any more. (One condition for all made every thread fight
 * for the lock after every transaction: half of the time of a busy hub.) */
static enum step_result wait_unlocking(struct hub_server *s, uint64_t seq) {
    if (s->seq_durable >= seq || s->away) {
        bool durable = s->seq_durable >= seq;
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        return durable ? STEP_DONE : STEP_AWAY;
    }
    struct waiter w = {.seq = seq, .result = STEP_FULL};
    CHECK(sem_init(&w.woken, 0, 0) == 0);
    CHECK(s->waiters_last == NULL || s->waiters_last->seq <= seq);
    if (s->waiters_last != NULL)
        s->waiters_last->next = &w;
    else
        s->waiters_first = &w;
    s->waiters_last = &w;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    while (sem_wait(&w.woken) != 0) CHECK(errno == EINTR);
    (void)sem_destroy(&w.woken);
    return (enum step_result)w.result;
}

/* Takes those out whose records are durable; all, where `all`. Under the lock. */
struct waiter *server_take_waiters(struct hub_server *s, bool all) {
    struct waiter *list = s->waiters_first, *last = NULL;
    while (s->waiters_first != NULL && (all || s->waiters_first->seq <= s->seq_durable)) { /* S1 */
        last = s->waiters_first;
        s->waiters_first = last->next;
    }
    if (s->waiters_first == NULL) s->waiters_last = NULL;
    if (last == NULL) return NULL;
    last->next = NULL;
    return list;
}

void server_wake(struct waiter *list, enum step_result result) {
    while (list != NULL) {
        struct waiter *next = list->next; /* after the post the waiter is gone */
        list->result = (int)result;
        CHECK(sem_post(&list->woken) == 0);
        list = next;
    }
}

static bool changes_state(const struct hub_cmd *c) {
    return c->kind != HUB_CMD_REQUEST || c->request->kind != WIRE_OUTCOME;
}

/* Called with the lock, returns without it. */
static enum step_result step_unlocking(struct hub_server *s, const struct hub_cmd *cmd,
                                       struct wire_answer *out_answer) {
    enum step_result refused = s->mode == SERVER_STOPPING                     ? STEP_STOPPING
                               : s->mode == SERVER_AWAY                       ? STEP_AWAY
                               : s->mode == SERVER_FULL && changes_state(cmd) ? STEP_FULL
                                                                              : STEP_DONE;
    if (refused != STEP_DONE) {
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        return refused;
    }
    hub_step(s->hub, server_now(s), cmd, &s->out);
    server_take_out(s);
    if (out_answer != NULL) {
        memset(out_answer, 0, sizeof *out_answer);
        if (s->out.has_answer) *out_answer = s->out.answer;
    }
    return wait_unlocking(s, s->seq_queued);
}

enum step_result server_step(struct hub_server *s, const struct hub_cmd *cmd,
                             struct wire_answer *out_answer) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    s->times.requests++;
    return step_unlocking(s, cmd, out_answer);
}

enum step_result server_step_generation(struct hub_server *s, const struct hub_cmd *cmd,
                                        uint64_t generation) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (s->generation == generation) return step_unlocking(s, cmd, NULL);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return STEP_FULL;
}

enum step_result server_settle(struct hub_server *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    return wait_unlocking(s, s->seq_queued);
}

pthread_mutex_t *server_stripe(struct hub_server *s, const struct id128 *did) {
    return &s->stripes[mix64(get_le64(did->v) ^ get_le64(did->v + 8)) % STRIPES];
}

/* ---- The tick thread --------------------------------------------------------------------------------- */
static void *tick_main(void *arg) {
    struct hub_server *s = arg;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (s->mode != SERVER_STOPPING) {
        time_ns now = server_now(s);
        /* Under the lock: who cannot take it cannot serve either, and should not seem alive. */
        if (s->alive != NULL) notify_alive(s->alive, now);
        s->tick_at = now + (time_ns)TICK_MAX_MS * NS_PER_MS;
        if (s->mode == SERVER_SERVING) {
            time_ns due = hub_expiry(s->hub);
            if (due <= now) {
                struct hub_cmd cmd;
                memset(&cmd, 0, sizeof cmd);
                cmd.kind = HUB_CMD_TICK;
                cmd.wall = os_wall();
                hub_step(s->hub, now, &cmd, &s->out);
                server_take_out(s); /* nobody waits for a tick */
                due = hub_expiry(s->hub);
                if (due <= now) due = now + NS_PER_MS; /* never spin, whatever the machine says */
            }
            if (due < s->tick_at) s->tick_at = due;
        }
        server_cond_wait(&s->tick, &s->lock, s->tick_at);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------------------------------------- */
static void init_sync(struct hub_server *s) {
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
    for (size_t i = 0; i < STRIPES; i++) CHECK(pthread_mutex_init(&s->stripes[i], NULL) == 0);
    cond_init(&s->work);
    cond_init(&s->tick);
    cond_init(&s->merge);
    buf_init(&s->queue, RECORDS_BYTES_MAX);
    buf_init(&s->snapshot, SNAPSHOT_BYTES_MAX);
    hub_out_init(&s->out);
}

/* The head's checkpoint is what sites will be given. A small one is read and hashed before anything is
 * served. Of a large one that takes longer than a restart may: header and size are looked at, and the
 * merge thread reads it all before its first merge, and before any older one is dropped; sites compare
 * the hash of what they fetch themselves. Where the hub is to go back first, that version's. */
static enum brg_status verify_head(struct hub_server *s, const struct hub_server_options *o,
                                   struct err *e) {
    struct hub_view v;
    struct hub_version_view head;
    hub_view(s->hub, server_now(s), &v);
    uint64_t version = o->rollback ? o->rollback_to : v.head;
    if (!hub_version_find(s->hub, version, &head))
        return err_set(e, o->rollback ? BRG_E_USAGE : BRG_E_JOURNAL,
                       "%s: the journal has no version %llu", s->dir.path,
                       (unsigned long long)version);
    if (!blobs_has(s->blobs, &head.checkpoint))
        return err_set(e, BRG_E_CHECKPOINT,
                       "%s: the checkpoint of version %llu is missing; put its file back, or start "
                       "with --rollback-to and a version that RUN/versions has",
                       s->dir.path, (unsigned long long)version);
    if (head.bytes <= (o->verify_now_bytes > 0 ? o->verify_now_bytes : VERIFY_NOW_BYTES))
        return blobs_verify(s->blobs, &head.checkpoint, e);
    char path[OS_PATH_MAX];
    struct checkpoint c;
    memset(&c, 0, sizeof c);
    blobs_path(s->blobs, &head.checkpoint, path);
    if (os_file_bytes(path) != (int64_t)head.bytes)
        return err_set(e, BRG_E_CORRUPT, "%s: has another size than version %llu had", path,
                       (unsigned long long)version);
    TRY(checkpoint_open(path, &c, e));
    bool same = hash_equal(&c.theta_hash, &head.theta) && c.version == version;
    checkpoint_fini(&c);
    if (!same)
        return err_set(e, BRG_E_CORRUPT, "%s: is not version %llu", path,
                       (unsigned long long)version);
    s->verify = head.checkpoint;
    return BRG_OK;
}

/* The state of a standby's machine, with the settings and the key of this moment, as after a restart. */
static bool settle_in(struct hub_server *s, struct hub *warm) {
    AUTO_BUF struct buf b;
    struct err e = {0};
    uint64_t seed;
    buf_init(&b, SNAPSHOT_BYTES_MAX);
    os_random(&seed, sizeof seed);
    hub_snapshot(warm, &b);
    s->hub = hub_create(&s->dir.settings.hub, seed);
    if (!b.overflow &&
        hub_restore(s->hub, journal_last_seq(s->journal), b.data, b.bytes_count, &e) == BRG_OK)
        return true;
    log_line(LOG_WARN, "hub", "snapshot_skipped", "cause=\"%s\"", e.text);
    hub_destroy(s->hub);
    s->hub = NULL;
    return false;
}

static enum brg_status open_state(struct hub_server *s, const struct hub_server_options *o,
                                  struct err *e) {
    char name[JOURNAL_NAME_MAX];
    uint64_t replayed = 0;
    time_ns began = os_now();
    TRY(blobs_open(s->dir.path, &s->blobs, e));
    if (s->journal == NULL) {
        TRY(journal_where(s->dir.path, name, e));
        TRY(journal_open(name, false, &s->journal, e));
    }
    TRY(blobs_sweep(s->blobs, e));
    if (o->hub == NULL || !settle_in(s, o->hub))
        TRY(hub_rebuild(s->journal, &s->dir.settings.hub, &s->hub, &replayed, e));
    s->seq_queued = s->seq_durable = journal_last_seq(s->journal);
    TRY(verify_head(s, o, e));
    log_line(LOG_INFO, "hub", "rebuilt", "records=%llu replayed=%llu ms=%lld",
             (unsigned long long)s->seq_durable, (unsigned long long)replayed,
             (long long)((os_now() - began) / NS_PER_MS));
    return BRG_OK;
}

/* The first command of each process; durable before anything is answered. On a full disk the journal
 * thread goes on trying, and until then the hub only serves readers. */
static void start_machine(struct hub_server *s) {
    struct hub_cmd cmd;
    server_start_cmd(&cmd);
    if (server_step(s, &cmd, NULL) == STEP_FULL)
        log_line(LOG_WARN, "hub", "started_full", "dir=%s", s->dir.path);
}

/* A site has one connection for its heartbeats and one for everything else; the others read. */
static uint32_t connections_for(const struct hub_server *s) {
    uint32_t wanted = 2 * s->dir.settings.hub.sites_max + 128 + EVENTS_VIEWERS_MAX;
    return wanted < CONNECTIONS_MIN ? CONNECTIONS_MIN : wanted;
}

static enum brg_status roll_back(struct hub_server *s, uint64_t version, struct err *e) {
    struct hub_cmd cmd;
    struct wire_answer a;
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_ROLLBACK;
    cmd.wall = os_wall();
    cmd.u.rollback.version = version;
    enum step_result step = server_step(s, &cmd, &a);
    if (step == STEP_AWAY)
        return err_set(
            e, BRG_E_NET,
            "%s: the journal's server was lost before it answered; start again, and look "
            "whether it went back",
            s->dir.path);
    if (step != STEP_DONE)
        return err_set(e, BRG_E_FULL, "%s: no space for the rollback's record", s->dir.path);
    if (a.code == WIRE_OK) return BRG_OK;
    return err_set(e, BRG_E_USAGE, "--rollback-to %llu: %s", (unsigned long long)version, a.text);
}

enum brg_status hub_server_open(const struct hub_server_options *o, struct hub_server **out,
                                struct err *e) {
    struct hub_server *s = mem_alloc(1, sizeof *s);
    init_sync(s);
    s->started = s->times.head_since = os_now();
    s->alive = o->alive;
    os_random(&s->mark, sizeof s->mark);
    enum brg_status st = run_dir_load(o->run_dir, &s->dir, e);
    s->journal = o->journal; /* freed with it, whatever comes */
    bool fresh_key = false;
    if (st == BRG_OK) st = run_seal_key(&s->dir, &fresh_key, e);
    if (st == BRG_OK) st = objects_open(s, &s->objects, e);
    if (st == BRG_OK) st = open_state(s, o, e);
    if (o->hub != NULL) hub_destroy(o->hub);
    if (st == BRG_OK && fresh_key) run_seal_key_keep(&s->dir);
    if (st == BRG_OK) {
        s->events = events_create(s);
        s->journal_runs = pthread_create(&s->journal_thread, NULL, server_journal_main, s) == 0;
        s->merge_runs = pthread_create(&s->merge_thread, NULL, server_merge_main, s) == 0;
        CHECK(s->journal_runs);
        CHECK(s->merge_runs);
        server_publish_all(s);
        objects_start(s->objects);
        if (hash_is_zero(&s->verify)) server_retain_all(s);
        start_machine(s);
        if (o->rollback) st = roll_back(s, o->rollback_to, e);
        if (st == BRG_OK && o->parent != NULL) st = uplink_open(s, o->parent, &s->uplink, e);
    }
    if (st == BRG_OK) {
        s->tick_runs = pthread_create(&s->tick_thread, NULL, tick_main, s) == 0;
        CHECK(s->tick_runs);
        st = server_listen(s, o->listen != NULL ? o->listen : s->dir.settings.listen,
                           o->connections_max > 0 ? o->connections_max : connections_for(s), e);
    }
    if (st == BRG_OK) st = mailbox_open(s, e);
    if (st == BRG_OK && s->uplink != NULL) st = uplink_start(s->uplink, e);
    if (st != BRG_OK) {
        hub_server_close(s);
        return st;
    }
    *out = s;
    return BRG_OK;
}

const char *hub_server_url(const struct hub_server *s) {
    return s->url;
}

const char *hub_server_connect(const struct hub_server *s) {
    return s->connect;
}

const char *hub_server_mailbox(const struct hub_server *s) {
    return s->mailbox != NULL ? mailbox_address(s->mailbox) : "";
}

enum brg_status hub_server_failed(struct hub_server *s, struct err *e) {
    return s->uplink != NULL ? uplink_failed(s->uplink, e) : BRG_OK;
}

void hub_server_close(struct hub_server *s) {
    if (s->uplink != NULL) uplink_close(s->uplink);
    s->uplink = NULL;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    s->mode = SERVER_STOPPING; /* requests that come now are refused; the queue is still written */
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->tick);
    pthread_cond_broadcast(&s->merge);
    pthread_mutex_unlock(&s->lock);
    mailbox_stop(s->mailbox);
    objects_stop(s->objects); /* a merge may wait for it */
    if (s->tick_runs) pthread_join(s->tick_thread, NULL);
    if (s->merge_runs) pthread_join(s->merge_thread, NULL);
    if (s->journal_runs) pthread_join(s->journal_thread, NULL);
    events_stop(s->events);
    mailbox_shut(s->mailbox);
    server_unlisten(s); /* its threads wait for the journal at most: that has written all */
    mailbox_close(s->mailbox);
    objects_close(s->objects);
    events_destroy(s->events);
    journal_close(s->journal);
    if (s->blobs != NULL) blobs_close(s->blobs);
    if (s->hub != NULL) hub_destroy(s->hub);
    plan_job_fini(&s->job);
    hub_out_fini(&s->out);
    links_free(&s->links);
    buf_fini(&s->queue);
    buf_fini(&s->snapshot);
    mem_free(s);
}
