/* SPDX-License-Identifier: Apache-2.0 */
/* merge_thread_os.c - the worker that computes the next version, and the look into arriving deltas.
 *
 *   plan (copied) -> merge_run -> incoming/merge-*.tmp -> blobs_adopt (durable under its hash)
 *        -> HUB_CMD_MERGED -> the record that flips head and ledger is durable -> publish, retention
 * A crash before the record: nothing happened, the same plan is made again. A crash after it: only the
 * link in versions/ is missing, and is made at the next start. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/events_os.h"
#include "hub/objects_os.h"
#include "hub/server_os.h"

/* ---- Looking into a delta ------------------------------------------------------------------------------ */
/* Where the checkpoint of a version is; false where it is not kept. Empties path then. */
static bool checkpoint_path(struct hub_server *s, uint64_t version, char path[OS_PATH_MAX],
                            struct hub_version_view *out) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool there = hub_version_find(s->hub, version, out);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    path[0] = '\0';
    if (!there || !blobs_has(s->blobs, &out->checkpoint)) return false;
    blobs_path(s->blobs, &out->checkpoint, path);
    return true;
}

static enum brg_status scan_theta_max(const char *path, double *out, struct err *e) {
    struct checkpoint c;
    memset(&c, 0, sizeof c);
    TRY(checkpoint_open(path, &c, e));
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_FREE float *x = mem_alloc(OUTER_CHUNK, sizeof *x);
    enum brg_status st = BRG_OK;
    float max = 0;
    for (uint64_t at = 0; st == BRG_OK && at < c.elements;) {
        size_t n = c.elements - at < OUTER_CHUNK ? (size_t)(c.elements - at) : OUTER_CHUNK;
        st = os_pread_all(fd, x, n * sizeof *x, c.theta_offset + at * sizeof *x, path, e);
        for (size_t i = 0; st == BRG_OK && i < n; i++) max = fmaxf(max, fabsf(x[i]));
        at += n;
    }
    checkpoint_fini(&c);
    *out = (double)max;
    return st;
}

/* max|theta| of a version, for the bound on a delta: read once, then known. 0 where it cannot be had. */
static double theta_max_of(struct hub_server *s, uint64_t version) {
    char path[OS_PATH_MAX];
    struct hub_version_view v;
    struct err e = {0};
    double max = 0;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    for (size_t i = 0; i < ARRAY_COUNT(s->theta_max); i++)
        if (s->theta_max[i].known && s->theta_max[i].version == version) max = s->theta_max[i].max;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (max > 0 || !checkpoint_path(s, version, path, &v)) return max;
    if (scan_theta_max(path, &max, &e) != BRG_OK) return 0;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    size_t i = s->theta_max_next++ % ARRAY_COUNT(s->theta_max);
    s->theta_max[i].version = version;
    s->theta_max[i].max = max;
    s->theta_max[i].known = true;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return max;
}

static enum brg_status header_compare(const struct wire_commit *c, const struct delta_header *h,
                                      const struct hash *theta, struct err *e) {
    if (!id_equal(&h->did, &c->did))
        return err_set(e, BRG_E_MESSAGE, "delta: has another did inside");
    if (h->base_version != c->base || h->tokens != c->tokens || h->steps != c->steps)
        return err_set(e, BRG_E_MESSAGE,
                       "delta: base, tokens or steps inside are not those of the message");
    if ((uint32_t)h->codec != c->codec || h->elements != c->elements)
        return err_set(e, BRG_E_MESSAGE,
                       "delta: codec or elements inside are not those of the message");
    if (theta != NULL && !hash_equal(&h->base_theta, theta))
        return err_set(e, BRG_E_MESSAGE, "delta: was cut from other weights than version %" PRIu64,
                       c->base);
    return BRG_OK;
}

enum brg_status server_inspect(struct hub_server *s, const struct wire_commit *c,
                               struct blob_figures *out, struct err *e) {
    char path[OS_PATH_MAX], parent[OS_PATH_MAX];
    struct hub_view view;
    struct hub_version_view head, base;
    struct delta_header h;
    struct delta_stats x;
    memset(&h, 0, sizeof h);
    memset(&x, 0, sizeof x);
    blobs_path(s->blobs, &c->blob, path);
    if (os_file_bytes(path) != (int64_t)c->bytes)
        return err_set(e, BRG_E_MESSAGE, "delta: the file has another size than the message says");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    bool known = hub_version_find(s->hub, c->base, &base);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    bool has_head = checkpoint_path(s, view.head, parent, &head);
    TRY(merge_inspect(path, NULL, s->dir.facts.parameters, has_head ? parent : NULL, &h, &x, e));
    TRY(header_compare(c, &h, known ? &base.theta : NULL, e));
    out->norm = sqrt(x.norm2);
    out->max_abs = x.max_abs;
    double m_norm = sqrt(x.m_norm2);
    out->cos_m = out->norm > 0 && m_norm > 0 ? x.dot_m / (out->norm * m_norm) : 0;
    out->theta_max = theta_max_of(s, c->base);
    return BRG_OK;
}

/* ---- One merge -------------------------------------------------------------------------------------------- */
struct result {
    struct hash file, theta;
    uint64_t bytes;
    int bad_part;
    struct merge_figures figures; /* of the parts with a file */
    double *cosines;              /* [parts of the plan]; owned; NULL: not known */
};

/* The parts that carry a delta; one whose positions were all skipped has no file. Returns how many, and
 * index[k]: which part of the plan the k-th is. */
static size_t collect_parts(const struct hub_server *s, const struct hub_plan *p,
                            struct merge_part *parts, double *weight, uint32_t *index) {
    size_t count = 0;
    for (uint32_t i = 0; i < p->parts_count; i++) {
        const struct hub_plan_part *x = &p->parts[i];
        if (x->part.tokens == 0) continue;
        parts[count].part = x->part;
        parts[count].blob = x->blob;
        blobs_path(s->blobs, &x->blob, parts[count].path);
        weight[count] = x->weight;
        index[count++] = i;
    }
    return count;
}

static unsigned cpus(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 2   ? 2
           : n > 8 ? 8
                   : (unsigned)n; /* two even on one: one computes while one waits for a disk */
}

static enum brg_status compute(struct hub_server *s, const struct hub_plan *p, const char *out_path,
                               const char *update_path, struct result *out, struct err *e) {
    char parent[OS_PATH_MAX];
    struct checkpoint c;
    uint32_t n = p->parts_count > 0 ? p->parts_count : 1;
    AUTO_FREE struct checkpoint_about *about = mem_alloc(1, sizeof *about);
    AUTO_FREE struct merge_part *parts = mem_alloc(n, sizeof *parts);
    AUTO_FREE double *weight = mem_alloc(n, sizeof *weight);
    AUTO_FREE uint32_t *index = mem_alloc(n, sizeof *index);
    blobs_path(s->blobs, &p->parent_checkpoint, parent);
    memset(&c, 0, sizeof c);
    out->bad_part = -1;
    TRY(checkpoint_open(parent, &c, e));
    size_t count = collect_parts(s, p, parts, weight, index);
    struct merge_job job = {.parent_path = parent,
                            .out_path = out_path,
                            .params = p->params,
                            .radial = p->radial,
                            .keeps_ema = p->keeps_ema,
                            .ema = p->ema,
                            .adamw = p->adamw,
                            .figures = &out->figures,
                            .weight = weight,
                            .parts = parts,
                            .parts_count = count,
                            .threads = cpus(),
                            .down = p->down,
                            .update_path = update_path};
    job.head = (struct checkpoint_head){.table = &c.table,
                                        .model_json = s->dir.model_json,
                                        .run = s->dir.facts.run,
                                        .version = p->version,
                                        .parent = p->parent,
                                        .tokens = p->tokens_after,
                                        .ledger = p->ledger.data,
                                        .ledger_bytes = p->ledger.bytes_count};
    if (checkpoint_about_get(&c, about)) job.head.about = about;
    about->term = p->term;
    int bad = -1;
    enum brg_status st = merge_run(&job, &out->file, &out->bytes, &out->theta, &bad, e);
    if (bad >= 0) out->bad_part = (int)index[bad];
    if (out->figures.known) {
        out->cosines = mem_alloc(n, sizeof *out->cosines);
        for (size_t i = 0; i < count; i++) out->cosines[index[i]] = out->figures.cosines[i];
    }
    checkpoint_fini(&c);
    return st;
}

static void tell_failed(struct hub_server *s, const struct plan_job *j, const struct result *r,
                        const struct err *e) {
    struct hub_cmd cmd;
    log_line(LOG_WARN, "hub", "merge_failed", "version=%" PRIu64 " bad_part=%d cause=\"%s\"",
             j->plan.version, r->bad_part, e->text);
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_MERGE_FAILED;
    cmd.wall = os_wall();
    cmd.u.merge_failed.plan = j->plan.id;
    cmd.u.merge_failed.bad_part = r->bad_part;
    (void)snprintf(cmd.u.merge_failed.text, sizeof cmd.u.merge_failed.text, "%.*s",
                   WIRE_TEXT_MAX - 1, e->text);
    (void)server_step_generation(s, &cmd, j->generation);
}

static void tell_merged(struct hub_server *s, const struct plan_job *j, const struct result *r) {
    struct hub_cmd cmd;
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_MERGED;
    cmd.wall = os_wall();
    cmd.u.merged.plan = j->plan.id;
    cmd.u.merged.checkpoint = r->file;
    cmd.u.merged.theta = r->theta;
    cmd.u.merged.bytes = r->bytes;
    cmd.u.merged.cosines = r->cosines;
    cmd.u.merged.cos_mean = r->figures.cos_mean;
    if (server_step_generation(s, &cmd, j->generation) != STEP_DONE) {
        /* Void: an older generation, a full journal or the end. Equal bytes may be needed again. */
        server_drop_blob_if_unused(s, &r->file);
        return;
    }
    FAULT("hub.after_flip");
    server_publish(s, j->plan.version);
}

static void merge_once(struct hub_server *s, const struct plan_job *j) {
    char path[OS_PATH_MAX], update[OS_PATH_MAX];
    struct result r;
    struct err e = {0};
    time_ns began = os_now();
    memset(&r, 0, sizeof r);
    events_merge_began(s->events);
    os_path(path, s->dir.path, "incoming/merge-%016" PRIx64 ".tmp", s->mark);
    os_path(update, s->dir.path, "incoming/update-%016" PRIx64 ".tmp", s->mark);
    enum brg_status st = compute(s, &j->plan, path, update, &r, &e);
    FAULT("hub.after_checkpoint");
    if (st == BRG_OK) st = blobs_adopt(s->blobs, path, &r.file, &e);
    if (st == BRG_OK && j->plan.down != 0) server_update_adopt(s, update, j->plan.version);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    time_ns took = os_now() - began;
    s->times.merge_ns = took;
    s->times.merge_bad = st != BRG_OK;
    s->times.merges += st == BRG_OK;
    s->times.merges_failed += st != BRG_OK;
    if (st == BRG_OK) s->times.head_since = os_now();
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (st == BRG_OK) {
        objects_ahead(s->objects, j->plan.version, &r.file, &r.theta);
        tell_merged(s, j, &r);
        objects_settled(s->objects);
        events_merge_ended(s->events, j->plan.version, took);
    } else {
        (void)unlink(path);
        (void)unlink(update);
        events_merge_failed(s->events);
        tell_failed(s, j, &r, &e);
    }
    mem_free(r.cosines);
}

static void verify_late(struct hub_server *s) {
    struct err e = {0};
    if (hash_is_zero(&s->verify)) return;
    if (blobs_verify(s->blobs, &s->verify, &e) != BRG_OK) {
        log_line(LOG_ERROR, "hub", "checkpoint_bad",
                 "cause=\"%s\" remedy=\"check the disk; put the file back, or start with "
                 "--rollback-to and an older version\"",
                 e.text);
        _exit((int)e.status); /* nothing was made of it, and whoever fetched it has seen it too */
    }
    server_retain_all(s);
}

void *server_merge_main(void *server) {
    struct hub_server *s = server;
    verify_late(s);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (s->mode != SERVER_STOPPING) {
        if (!s->merge_ready) {
            pthread_cond_wait(&s->merge, &s->lock);
            continue;
        }
        struct plan_job job = s->job;
        memset(&s->job, 0, sizeof s->job);
        s->merge_ready = false;
        pthread_mutex_unlock(&s->lock);
        merge_once(s, &job);
        plan_job_fini(&job);
        CHECK(pthread_mutex_lock(&s->lock) == 0);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
