/* SPDX-License-Identifier: Apache-2.0 */
/* threads_os.c - the site's threads: one for control messages, one for heartbeats, one each for
 * uploads and downloads, and a writer for local files. Each network thread has its own connection, so
 * that a slow upload never costs a heartbeat, and a lost connection never costs the other ones.
 *
 * A thread takes its job from the mailbox with the lock held, does it without, and tells the core what
 * came of it. The core alone decides what happens next, and when. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/guard.h"
#include "site/host_os.h"
#include "site/site_os.h"

enum { STACK_BYTES = 2 << 20 };

/* ---- Mailboxes ---------------------------------------------------------------------------------- */

void site_notes(struct brg_site *s, struct buf *notes) {
    (void)s;
    const char *line = buf_cstr(notes);
    while (*line) {
        const char *end = strchr(line, '\n');
        if (!end) break;
        char event[40] = "note", level[16] = "info", rest[640] = "";
        (void)sscanf(line, "lvl=%15s ev=%39s", level, event);
        const char *fields = strstr(line, " ev=");
        if (fields && fields < end) fields = strchr(fields + 4, ' ');
        if (fields && fields < end)
            snprintf(rest, sizeof rest, "%.*s", (int)(end - fields - 1), fields + 1);
        enum log_level l = LOG_INFO;
        if (!log_level_parse(level, &l)) l = LOG_INFO;
        log_line(l, "site", event, "%s", rest);
        line = end + 1;
    }
    buf_reset(notes);
}

void site_event(struct brg_site *s, const struct site_event *ev) {
    struct site_out *o = &s->out;
    site_step(&s->core, os_now(), ev, o);
    if (o->has_control) {
        s->job_new[LINE_CONTROL] = true;
        s->job_id[LINE_CONTROL] = o->control_id;
        s->job_request[LINE_CONTROL] = o->control;
    }
    if (o->has_beat) {
        s->job_new[LINE_BEAT] = true;
        s->job_id[LINE_BEAT] = o->beat_id;
        s->job_request[LINE_BEAT] = o->beat;
    }
    if (o->has_upload) {
        s->job_new[LINE_UP] = true;
        s->job_did = o->upload_did;
    }
    if (o->has_download) {
        s->job_new[LINE_DOWN] = true;
        s->job_id[LINE_DOWN] = o->download_version;
    }
    site_notes(s, &o->notes);
    CHECK(pthread_cond_broadcast(&s->changed) == 0);
}

void site_tick(struct brg_site *s) {
    site_event(s, &(struct site_event){.kind = SITE_TICK});
}

static void wait_until(struct brg_site *s, time_ns until) {
    if (until == TIME_NS_NEVER) {
        CHECK(pthread_cond_wait(&s->changed, &s->lock) == 0);
        return;
    }
    struct timespec t = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};
    int rc = pthread_cond_timedwait(&s->changed, &s->lock, &t);
    CHECK(rc == 0 || rc == ETIMEDOUT);
}

void site_nap(struct brg_site *s, time_ns until) {
    time_ns soon = os_now() + 100 * (time_ns)NS_PER_MS;
    wait_until(s, until < soon ? until : soon);
    /* A thread of the library is gone: what is waited for here will never come. */
    if (atomic_load(&s->broken)) guard_fall(s->broken_status, "%s", s->broken_text);
}

bool site_cancelled(struct brg_site *s) {
    return atomic_load(&s->drain) || (s->cancel && *s->cancel);
}

/* ---- Messages ----------------------------------------------------------------------------------- */

static void deliver(struct brg_site *s, enum line line, uint64_t id, enum brg_status status,
                    const struct wire_answer *a, const struct err *e) {
    bool beat = line == LINE_BEAT;
    struct site_event ev = {.id = id};
    if (status == BRG_OK) {
        ev.kind = beat ? SITE_BEAT_ANSWER : SITE_ANSWER;
        ev.u.answer = a;
    } else {
        bool fatal = status_class(status) != BRG_CLASS_RETRY && !atomic_load(&s->stopping);
        log_line(fatal ? LOG_WARN : LOG_DEBUG, "site", "no_answer", "text=\"%s\"", e->text);
        ev.kind = beat ? SITE_BEAT_LOST : SITE_LOST;
        if (status == BRG_E_REFUSED) {
            ev.kind = SITE_FATAL;
            ev.u.fatal.status = status;
            ev.u.fatal.text = e->text;
        }
    }
    site_event(s, &ev);
}

static void message_loop(struct brg_site *s, enum line line) {
    struct wire_request *r = mem_alloc(1, sizeof *r);
    struct wire_answer *a = mem_alloc(1, sizeof *a);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (!atomic_load(&s->stopping)) {
        if (!s->job_new[line]) {
            /* The control thread also keeps the core's timers. */
            time_ns until = line == LINE_CONTROL ? site_expiry(&s->core) : TIME_NS_NEVER;
            if (line == LINE_CONTROL && until <= os_now())
                site_tick(s);
            else
                wait_until(s, until);
            continue;
        }
        s->job_new[line] = false;
        uint64_t id = s->job_id[line];
        *r = s->job_request[line];
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        struct err e = {0};
        enum brg_status status = client_post(s->clients[line], r, a, &e);
        if (line == LINE_CONTROL && status == BRG_OK)
            FAULT("site.answered"); /* known to the hub alone */
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        deliver(s, line, id, status, a, &e);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    mem_free(r);
    mem_free(a);
}

static void control_loop(struct brg_site *s) {
    message_loop(s, LINE_CONTROL);
}

static void beat_loop(struct brg_site *s) {
    message_loop(s, LINE_BEAT);
}

/* ---- Transfers ---------------------------------------------------------------------------------- */

static void up_loop(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (!atomic_load(&s->stopping)) {
        if (!s->job_new[LINE_UP]) {
            wait_until(s, TIME_NS_NEVER);
            continue;
        }
        s->job_new[LINE_UP] = false;
        struct id128 did = s->job_did;
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        char path[OS_PATH_MAX];
        struct err e = {0};
        local_delta_path(s, &did, path);
        time_ns began = os_now();
        enum brg_status status = client_upload(s->clients[LINE_UP], &did, path, &e);
        double seconds = (double)(os_now() - began) / NS_PER_S;
        if (status == BRG_OK) FAULT("site.uploaded");
        if (status == BRG_OK)
            log_line(LOG_INFO, "site", "uploaded", "bytes=%" PRId64 " seconds=%.3f",
                     os_file_bytes(path), seconds);
        else if (!atomic_load(&s->stopping))
            log_line(LOG_WARN, "site", "upload_failed", "text=\"%s\"", e.text);
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        site_event(
            s, &(struct site_event){.kind = status == BRG_OK ? SITE_UPLOADED : SITE_UPLOAD_FAILED,
                                    .did = did});
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

/* An update where that leads here, else the whole weights. oldest: the version rebased on, or NONE. */
static enum brg_status fetch(struct brg_site *s, uint64_t version, uint64_t oldest,
                             const struct hash *want, struct fetched *out, struct err *e) {
    char path[OS_PATH_MAX];
    local_base_path(s, version, path);
    bool fresh = false;
    *out = (struct fetched){0};
    if (!os_exists(path) && oldest != SITE_VERSION_NONE) {
        enum brg_status s1 = local_base_update(s, version, oldest, want, out, e);
        if (s1 == BRG_E_CORRUPT && client_doubt(s->clients[LINE_DOWN]))
            s1 = local_base_update(s, version, oldest, want, out, e);
        bool later = status_class(s1) == BRG_CLASS_RETRY || status_class(s1) == BRG_CLASS_FULL;
        if (s1 == BRG_OK || later)
            return s1; /* what is here already stays, and the next try resumes */
        if (s1 != BRG_E_MISSING)
            log_line(LOG_WARN, "site", "update_unusable",
                     "text=\"%s\" remedy=\"the whole weights\"", e->text);
    }
    if (!os_exists(path)) {
        TRY(client_download(s->clients[LINE_DOWN], version, path, e));
        out->bytes = (uint64_t)os_file_bytes(path);
        fresh = true;
    }
    enum brg_status status = local_base_verify(s, version, true, &out->tokens, &out->theta, e);
    if (status == BRG_OK && want && !hash_equal(want, &out->theta))
        status = err_set(e, BRG_E_CORRUPT, "%s: not the weights that the hub announced", path);
    if (status != BRG_OK && status_class(status) != BRG_CLASS_FULL) {
        local_base_drop(s, version);
        if (fresh) (void)client_doubt(s->clients[LINE_DOWN]);
    }
    return status;
}

static void down_loop(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (!atomic_load(&s->stopping)) {
        if (!s->job_new[LINE_DOWN]) {
            wait_until(s, TIME_NS_NEVER);
            continue;
        }
        s->job_new[LINE_DOWN] = false;
        uint64_t version = s->job_id[LINE_DOWN];
        bool head = s->core.round.head == version && !hash_is_zero(&s->core.round.theta);
        struct hash want = s->core.round.theta;
        uint64_t oldest = s->core.loaded ? s->core.base : SITE_VERSION_NONE;
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        struct err e = {0};
        struct fetched got;
        char hex[HASH_HEX_BYTES];
        time_ns began = os_now();
        enum brg_status status = fetch(s, version, oldest, head ? &want : NULL, &got, &e);
        double seconds = (double)(os_now() - began) / NS_PER_S;
        hash_hex(&got.theta, hex);
        if (status == BRG_OK)
            log_line(LOG_INFO, "site", "downloaded",
                     "version=%" PRIu64 " bytes=%" PRIu64 " updates=%d theta=%s seconds=%.3f",
                     version, got.bytes, got.updates, hex, seconds);
        else if (!atomic_load(&s->stopping))
            log_line(LOG_WARN, "site", "download_failed", "text=\"%s\"", e.text);
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        struct site_event ev = {.kind = status == BRG_OK ? SITE_DOWNLOADED : SITE_DOWNLOAD_FAILED};
        ev.u.download.version = version;
        ev.u.download.tokens = got.tokens;
        site_event(s, &ev);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

/* ---- The writer --------------------------------------------------------------------------------- */

/* A full disk is waited out: training goes on meanwhile, and the bytes stay in memory. */
static enum brg_status write_durably(struct brg_site *s, const char *path, const void *bytes,
                                     uint64_t count) {
    struct err e = {0};
    enum brg_status status;
    bool told = false;
    while ((status = os_write_file_atomic(path, bytes, count, &e)) != BRG_OK) {
        if (!told) log_line(LOG_ERROR, "site", "outbox_failed", "text=\"%s\"", e.text);
        told = true;
        if (atomic_load(&s->stopping)) return status;
        struct timespec pause = {.tv_sec = 1};
        nanosleep(&pause, NULL);
    }
    return BRG_OK;
}

/* A contribution's file says that its residual is here. */
static enum brg_status write_delta(struct brg_site *s, struct write_job *job) {
    char path[OS_PATH_MAX];
    if (job->residual) {
        local_residual_path(s, &job->did, path);
        local_residual_seal(s, job->residual);
        TRY(write_durably(s, path, job->residual, local_residual_bytes(s)));
    }
    local_delta_path(s, &job->did, path);
    return write_durably(s, path, job->bytes, job->bytes_count);
}

static void stage_done(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    CHECK(s->stage_users > 0);
    s->stage_users--;
    CHECK(pthread_cond_broadcast(&s->changed) == 0);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

static void run_job(struct brg_site *s, struct write_job *job) {
    struct err e = {0};
    struct site_event ev = {.kind = SITE_DELTA_STORED, .did = job->did};
    if (job->kind == WRITE_SHIFT) {
        job->status = duty_shift(s, job, &e);
    } else if (job->kind == WRITE_CHECKPOINT) {
        FAULT("site.before_checkpoint");
        job->status = local_checkpoint_write(s, job, &e);
        FAULT("site.checkpointed");
        if (job->status != BRG_OK)
            log_line(LOG_ERROR, "site", "checkpoint_failed", "text=\"%s\"", e.text);
    } else {
        job->status = duty_encode(s, job, &e);
        stage_done(s);
        if (job->status == BRG_OK) {
            ev.u.stored.blob = hash_of(job->bytes, job->bytes_count);
            ev.u.stored.bytes = job->bytes_count;
            FAULT("site.before_delta");
            job->status = write_delta(s, job);
            FAULT("site.delta_stored");
        }
    }
    if (job->kind != WRITE_DELTA) stage_done(s);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (job->kind == WRITE_CHECKPOINT) {
        s->snap.busy = false;
        if (job->status == BRG_OK) local_sweep(s, job);
    } else if (job->kind == WRITE_SHIFT) {
        s->shift = *job;
        s->shift_ready = job->status == BRG_OK;
        if (job->status != BRG_OK && job->from == s->core.base) duty_give_up(s, &e);
    } else if (job->status == BRG_OK) {
        site_event(s, &ev);
    } else if (!atomic_load(&s->stopping)) {
        duty_give_up(s, &e);
    }
    if (job->kind != WRITE_CHECKPOINT) site_notes(s, &s->out.notes);
    s->jobs_first = job->next;
    if (!s->jobs_first) s->jobs_last = NULL;
    job->done = true;
    CHECK(pthread_cond_broadcast(&s->changed) == 0);
    mem_free(job->bytes);
    mem_free(job->residual);
    job->bytes = NULL;
    job->residual = NULL;
    if (!job->waited_for) mem_free(job);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

static void writer_loop(struct brg_site *s) {
    for (;;) {
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        while (!s->jobs_first && !atomic_load(&s->stopping)) wait_until(s, TIME_NS_NEVER);
        struct write_job *job = s->jobs_first; /* stays at the head until it is done */
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        if (!job) return; /* only an empty queue ends the writer */
        run_job(s, job);
    }
}

void site_writer_drain(struct brg_site *s) {
    while (s->jobs_first) wait_until(s, TIME_NS_NEVER);
}

/* ---- Start and stop ------------------------------------------------------------------------------ */

/* A thread that finds the library wrong ends the site, not the process. */
static void guarded(struct brg_site *s, void loop(struct brg_site *)) {
    struct guard g;
    host_own_thread(); /* what the host's thread has set is inherited */
    if (setjmp(g.at) != 0) {
        site_broken(s, g.status, g.text);
        return;
    }
    guard_enter(&g);
    loop(s);
    guard_leave(&g);
}

static void *control_main(void *user) {
    guarded(user, control_loop);
    return NULL;
}

static void *beat_main(void *user) {
    guarded(user, beat_loop);
    return NULL;
}

static void *up_main(void *user) {
    guarded(user, up_loop);
    return NULL;
}

static void *down_main(void *user) {
    guarded(user, down_loop);
    return NULL;
}

static void *writer_main(void *user) {
    guarded(user, writer_loop);
    return NULL;
}

/* Of a size of their own: the host's limit may be for other threads than ours. */
static enum brg_status thread_start(pthread_t *out, void *main(void *), struct brg_site *s,
                                    struct err *e) {
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc == 0) {
        (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
        rc = pthread_create(out, &attr, main, s);
        (void)pthread_attr_destroy(&attr);
    }
    if (rc == 0) return BRG_OK;
    return err_set(e, BRG_E_MEMORY,
                   "a thread cannot be started (%s): raise the limits of this process (ulimit -u, "
                   "ulimit -v), or the memory of the job",
                   strerror(rc));
}

enum brg_status site_threads_start(struct brg_site *s, struct err *e) {
    static void *(*const mains[THREADS_COUNT])(void *) = {control_main, beat_main, up_main,
                                                          down_main, writer_main};
    struct client_options o = site_client_options(s);
    for (int i = 0; i < LINES_COUNT; i++)
        if (!s->clients[i]) TRY(client_open(&o, &s->clients[i], e));
    enum brg_status status = BRG_OK;
    sigset_t all, before; /* signals are the program's business, not this library's */
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    while (status == BRG_OK && s->threads_count < THREADS_COUNT) {
        status = thread_start(&s->threads[s->threads_count], mains[s->threads_count], s, e);
        s->threads_count += status == BRG_OK;
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    s->threads_run = status == BRG_OK;
    if (status == BRG_OK) return BRG_OK;
    site_threads_end(s);
    atomic_store(&s->stopping, false); /* the caller may try again */
    for (int i = 0; i < LINES_COUNT; i++) {
        client_close(s->clients[i]);
        s->clients[i] = NULL;
    }
    return status;
}

void site_threads_end(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    atomic_store(&s->stopping, true);
    CHECK(pthread_cond_broadcast(&s->changed) == 0);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    for (int i = 0; i < LINES_COUNT; i++)
        if (s->clients[i]) client_stop(s->clients[i]);
    for (int i = 0; i < s->threads_count; i++) CHECK(pthread_join(s->threads[i], NULL) == 0);
    s->threads_count = 0;
    s->threads_run = false;
}

void site_threads_stop(struct brg_site *s) {
    site_threads_end(s);
    for (int i = 0; i < LINES_COUNT; i++) {
        client_close(s->clients[i]);
        s->clients[i] = NULL;
    }
}
