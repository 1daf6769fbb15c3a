/* SPDX-License-Identifier: Apache-2.0 */
/* objects_os.c - what is in the object store, and the thread that makes it what the ledger keeps.
 *
 *   pass: list once; put what is kept and not there, the newest first; remove what is there and not kept any more
 *   down --(1 s, 2 s, ... 1 min)--> list again --works--> up
 *   up   --(any request fails: not reached, or refused)--> down; the hub serves sites itself meanwhile
 *
 * While URLs are handed out the store is asked something small now and then, since the hub does not see how sites fare
 * with them.
 *
 * An object is removed only if it was there before the pass began, and is neither kept then nor held: what a merge puts
 * there before its version exists is never taken away under it. Nobody is sent to an object that was not seen whole there
 * by this process: put and looked at, or listed with its size. */
#include "hub/objects_inner_os.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    AGAIN_MAX_S = 60,   /* between two tries while it is down */
    HEARD_S = 5,        /* an answer of the store says for so long that it is up */
    SWEEP_S = 6 * 3600, /* between two looks for what nobody finished */
    LEFT_S = 24 * 3600, /* contributions and uploads older than this were given up */
    IO_BYTES = 1 << 20,
};

void objects_lock(struct objects *o) {
    CHECK(pthread_mutex_lock(&o->lock) == 0);
}

void objects_unlock(struct objects *o) {
    CHECK(pthread_mutex_unlock(&o->lock) == 0);
}

/* ---- Keys ----------------------------------------------------------------------------------------------- */
void objects_key_checkpoint(const struct hash *h, char key[OBJECTS_KEY_MAX]) {
    char hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    (void)snprintf(key, OBJECTS_KEY_MAX, "checkpoints/%s", hex);
}

void objects_key_update(uint64_t version, const struct hash *theta, char key[OBJECTS_KEY_MAX]) {
    char hex[HASH_HEX_BYTES];
    hash_hex(theta, hex);
    (void)snprintf(key, OBJECTS_KEY_MAX, "updates/%" PRIu64 "-%s", version, hex);
}

void objects_key_contribution(const struct id128 *did, char key[OBJECTS_KEY_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(did, hex);
    (void)snprintf(key, OBJECTS_KEY_MAX, "contributions/%s", hex);
}

/* ---- Rows ------------------------------------------------------------------------------------------------ */
struct object_row *objects_row(struct objects *o, const char *key) {
    for (size_t i = 0; i < o->rows_count; i++)
        if (strcmp(o->rows[i].key, key) == 0) return &o->rows[i];
    return NULL;
}

/* Under the lock. */
static struct object_row *row_make(struct objects *o, const char *key) {
    struct object_row *r = objects_row(o, key);
    if (r != NULL) return r;
    if (o->rows_count == o->rows_cap) {
        size_t cap = o->rows_cap > 0 ? 2 * o->rows_cap : 64;
        o->rows = mem_grow(o->rows, o->rows_cap, cap, sizeof *o->rows);
        o->rows_cap = cap;
    }
    r = &o->rows[o->rows_count++];
    memset(r, 0, sizeof *r);
    (void)snprintf(r->key, sizeof r->key, "%s", key);
    return r;
}

static void row_there(struct objects *o, const char *key, uint64_t bytes) {
    objects_lock(o);
    struct object_row *r = row_make(o, key);
    r->there = true;
    r->bytes = bytes;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
}

static void row_gone(struct objects *o, const char *key) {
    objects_lock(o);
    struct object_row *r = objects_row(o, key);
    if (r != NULL) *r = o->rows[--o->rows_count];
    objects_unlock(o);
}

/* ---- Up and down ----------------------------------------------------------------------------------------- */
static bool of_the_store(enum brg_status s) {
    return s == BRG_E_NET || s == BRG_E_CONFIG || s == BRG_E_REFUSED || s == BRG_E_MESSAGE ||
           s == BRG_E_CORRUPT || s == BRG_E_LIMIT || s == BRG_E_TIMEOUT || s == BRG_E_MISSING;
}

static void note_up(struct objects *o) {
    objects_lock(o);
    bool came = !o->up;
    o->up = true;
    o->failures = 0;
    o->cause[0] = '\0';
    o->heard = os_now();
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
    if (came) log_line(LOG_INFO, "hub", "objects_up", "prefix=%s", o->s->dir.settings.blobs_store);
}

static void note_down(struct objects *o, const struct err *e) {
    objects_lock(o);
    bool first = o->up || o->cause[0] == '\0';
    time_ns wait = (time_ns)NS_PER_S << (o->failures < 6 ? o->failures : 6);
    if (wait > AGAIN_MAX_S * (time_ns)NS_PER_S) wait = AGAIN_MAX_S * (time_ns)NS_PER_S;
    o->up = o->listed = false; /* who knows what it has when it comes back */
    o->failures++;
    o->times_down += first;
    o->next = os_now() + wait;
    (void)snprintf(o->cause, sizeof o->cause, "%.*s", (int)sizeof o->cause - 1, e->text);
    for (size_t i = 0; i < o->rows_count; i++) o->rows[i].there = false;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
    if (first)
        log_line(LOG_ERROR, "hub", "objects_down",
                 "cause=\"%s\" remedy=\"sites are served by the hub itself meanwhile\"", e->text);
}

bool objects_noted(struct objects *o, enum brg_status s, const struct err *e) {
    objects_lock(o);
    bool stopping = o->stopping;
    objects_unlock(o);
    if (stopping) return s == BRG_OK;
    if (s == BRG_OK || s == BRG_E_MISSING) {
        note_up(o);
        return s == BRG_OK;
    }
    if (of_the_store(s)) {
        note_down(o, e);
        return false;
    }
    log_line(LOG_ERROR, "hub", "objects_failed", "cause=\"%s\"", e->text); /* of this disk */
    return false;
}

void objects_look_at(struct objects *o, struct objects_view *out) {
    memset(out, 0, sizeof *out);
    if (o == NULL) return;
    struct object_counts c = object_store_counts(o->store);
    objects_lock(o);
    out->on = true;
    out->up = o->up;
    out->down = !o->up && o->cause[0] != '\0';
    (void)snprintf(out->cause, sizeof out->cause, "%s", o->cause);
    for (size_t i = 0; i < o->rows_count; i++) out->objects += o->rows[i].there;
    out->times_down = o->times_down;
    objects_unlock(o);
    out->writes = c.writes;
    out->reads = c.reads;
    out->deletes = c.deletes;
    out->failures = c.failures;
    out->bytes_up = c.bytes_up;
    out->bytes_down = c.bytes_down;
    out->cost = object_cost(&c, o->price_writes, o->price_reads);
}

void objects_dirty(struct objects *o) {
    if (o == NULL) return;
    objects_lock(o);
    o->dirty = true;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
}

/* ---- What is wanted --------------------------------------------------------------------------------------- */
struct wanted {
    char key[OBJECTS_KEY_MAX], path[OS_PATH_MAX];
    struct hash hash; /* of the file; zero: to be read */
};

static enum brg_status hash_file(const char *path, struct hash *out, struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t bytes;
    if (fd < 0) return err_set(e, BRG_E_MISSING, "%s: is gone", path);
    return store_hash_fd(fd, path, out, &bytes, e);
}

static void want_checkpoint(struct objects *o, const struct hash *h, struct wanted *w) {
    objects_key_checkpoint(h, w->key);
    blobs_path(o->s->blobs, h, w->path);
    w->hash = *h;
}

static void want_update(struct objects *o, uint64_t version, const struct hash *theta,
                        struct wanted *w) {
    objects_key_update(version, theta, w->key);
    server_update_path(o->s, version, w->path);
    memset(&w->hash, 0, sizeof w->hash);
}

/* The newest first; of each its update before its checkpoint, which is for those who have nothing yet. */
static size_t wanted_now(struct objects *o, struct wanted **out) {
    struct hub_version_view *v = NULL;
    size_t count = server_kept(o->s, &v), n = 0;
    struct wanted *w = mem_alloc(2 * count + 1, sizeof *w);
    for (size_t i = count; i-- > 0;) {
        if (o->s->dir.settings.hub.down != 0 && v[i].version > 0) {
            want_update(o, v[i].version, &v[i].theta, &w[n]);
            n += os_exists(w[n].path);
        }
        want_checkpoint(o, &v[i].checkpoint, &w[n]);
        n += os_exists(w[n].path);
    }
    mem_free(v);
    *out = w;
    return n;
}

static bool is_there(struct objects *o, const char *key, uint64_t bytes) {
    objects_lock(o);
    const struct object_row *r = objects_row(o, key);
    bool there = r != NULL && r->there && r->bytes == bytes;
    objects_unlock(o);
    return there;
}

/* True: it is there now, or was. False: the store is down, or the file went meanwhile. */
static bool put(struct objects *o, const struct wanted *w) {
    struct err e = {0};
    struct hash h = w->hash;
    int64_t bytes = os_file_bytes(w->path);
    if (bytes < 0) return false;
    if (is_there(o, w->key, (uint64_t)bytes)) return true;
    enum brg_status s = hash_is_zero(&h) ? hash_file(w->path, &h, &e) : BRG_OK;
    if (s == BRG_E_MISSING) return false;
    if (s == BRG_OK) s = object_put_file(o->store, w->key, w->path, &h, &e);
    if (s == BRG_E_MISSING && !os_exists(w->path)) return false;
    if (s == BRG_E_MISSING) s = BRG_E_CORRUPT; /* put, and not there */
    if (!objects_noted(o, s, &e)) return false;
    log_line(LOG_DEBUG, "hub", "object_put", "key=%s bytes=%" PRId64, w->key, bytes);
    row_there(o, w->key, (uint64_t)bytes);
    return true;
}

/* ---- A pass ------------------------------------------------------------------------------------------------ */
struct left {
    struct objects *o;
    int64_t before;
    struct object_entry list[64]; /* a look takes so many away; the next one the rest */
    size_t count;
};

static bool is_contribution(const char *key) {
    return strncmp(key, "contributions/", 14) == 0;
}

static void on_object(void *user, const struct object_entry *x) {
    struct left *l = user;
    if (strlen(x->key) >= OBJECTS_KEY_MAX) return; /* not ours */
    if (strncmp(x->key, "checkpoints/", 12) == 0 || strncmp(x->key, "updates/", 8) == 0)
        row_there(l->o, x->key, x->bytes);
    bool stale = is_contribution(x->key) && x->unix_s > 0 && x->unix_s < l->before;
    if (stale && l->count < ARRAY_COUNT(l->list)) l->list[l->count++] = *x;
}

static void on_upload(void *user, const struct object_entry *x) {
    struct left *l = user;
    bool stale = x->unix_s > 0 && x->unix_s < l->before;
    if (stale && l->count < ARRAY_COUNT(l->list)) l->list[l->count++] = *x;
}

static enum brg_status sweep(struct objects *o, struct left *l, struct err *e) {
    enum brg_status s = BRG_OK;
    for (size_t i = 0; s == BRG_OK && i < l->count; i++)
        s = object_delete(o->store, l->list[i].key, e);
    l->count = 0;
    if (s == BRG_OK) s = object_uploads(o->store, "", on_upload, l, e);
    for (size_t i = 0; s == BRG_OK && i < l->count; i++)
        s = object_upload_abort(o->store, l->list[i].key, l->list[i].upload, e);
    if (s == BRG_OK) o->swept = os_now();
    return s;
}

static bool sweep_due(const struct objects *o) {
    return o->swept == 0 || os_now() - o->swept > SWEEP_S * (time_ns)NS_PER_S;
}

/* What is there, and what was given up by whoever began it. */
static bool take_stock(struct objects *o) {
    struct err e = {0};
    struct left *l = mem_alloc(1, sizeof *l);
    l->o = o;
    l->before = (int64_t)(os_wall() / NS_PER_S) - LEFT_S;
    enum brg_status s = object_list(o->store, "", on_object, l, &e);
    if (s == BRG_OK && sweep_due(o)) s = sweep(o, l, &e);
    mem_free(l);
    return objects_noted(o, s == BRG_E_MISSING ? BRG_E_CONFIG : s, &e);
}

static bool contributions_drop(struct objects *o) {
    for (;;) {
        char key[OBJECTS_KEY_MAX];
        struct err e = {0};
        objects_lock(o);
        bool any = o->done_count > 0 && !o->stopping;
        if (any) objects_key_contribution(&o->done[--o->done_count], key);
        objects_unlock(o);
        if (!any) return true;
        if (!objects_noted(o, object_delete(o->store, key, &e), &e)) return false;
    }
}

static bool remove_rest(struct objects *o, const struct wanted *w, size_t n) {
    for (;;) {
        char key[OBJECTS_KEY_MAX] = "";
        struct err e = {0};
        objects_lock(o);
        for (size_t i = 0; key[0] == '\0' && i < o->rows_count; i++) {
            struct object_row *r = &o->rows[i];
            bool keep = !r->old || !r->there;
            for (size_t k = 0; !keep && k < ARRAY_COUNT(o->held); k++)
                keep = strcmp(o->held[k], r->key) == 0;
            for (size_t k = 0; !keep && k < n; k++) keep = strcmp(w[k].key, r->key) == 0;
            if (!keep) (void)snprintf(key, sizeof key, "%s", r->key);
        }
        objects_unlock(o);
        if (key[0] == '\0') return true;
        if (!objects_noted(o, object_delete(o->store, key, &e), &e)) return false;
        log_line(LOG_DEBUG, "hub", "object_removed", "key=%s", key);
        row_gone(o, key);
    }
}

static bool pass(struct objects *o) {
    struct wanted *w = NULL;
    objects_lock(o);
    bool listed = o->listed && !sweep_due(o);
    o->dirty = false;
    objects_unlock(o);
    if (!listed && !take_stock(o)) return false;
    objects_lock(o);
    o->listed = true;
    for (size_t i = 0; i < o->rows_count; i++) o->rows[i].old = o->rows[i].there;
    objects_unlock(o);
    size_t n = wanted_now(o, &w);
    bool good = contributions_drop(o);
    for (size_t i = 0; good && i < n; i++) {
        (void)put(o, &w[i]);
        objects_lock(o);
        good = o->up && !o->stopping;
        objects_unlock(o);
    }
    good = good && remove_rest(o, w, n);
    mem_free(w);
    objects_lock(o);
    o->passes += good;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
    return good;
}

/* Something small is asked, of an object that should be there: sites were sent to such ones. */
static void probe(struct objects *o) {
    char key[OBJECTS_KEY_MAX] = "checkpoints/none";
    struct object_about a = {0};
    struct err e = {0};
    uint64_t bytes = 0;
    objects_lock(o);
    o->asked = false;
    for (size_t i = 0; i < o->rows_count; i++) {
        if (!o->rows[i].there) continue;
        (void)snprintf(key, sizeof key, "%s", o->rows[i].key);
        bytes = o->rows[i].bytes;
    }
    objects_unlock(o);
    enum brg_status s = object_look(o->store, key, &a, &e);
    (void)objects_noted(o, s, &e);
    if (bytes == 0 || (s == BRG_OK && a.bytes == bytes) || (s != BRG_OK && s != BRG_E_MISSING))
        return;
    log_line(LOG_WARN, "hub", "object_lost", "key=%s bytes=%" PRIu64 " there=%" PRIu64, key, bytes,
             s == BRG_OK ? a.bytes : 0);
    objects_lock(o);
    o->listed = false; /* others may be lost too */
    for (size_t i = 0; i < o->rows_count; i++) o->rows[i].there = false;
    o->dirty = true;
    objects_unlock(o);
}

/* ---- The thread -------------------------------------------------------------------------------------------- */
enum work { WORK_PASS, WORK_PROBE, WORK_STOP };

static enum work wait_for_work(struct objects *o) {
    enum work w = WORK_STOP;
    objects_lock(o);
    while (!o->stopping) {
        time_ns now = os_now(), until = TIME_NS_NEVER;
        bool down = o->cause[0] != '\0' && !o->up;
        bool due = o->dirty || !o->listed || o->done_count > 0 || sweep_due(o);
        time_ns heard_until = o->heard + HEARD_S * (time_ns)NS_PER_S;
        if (down)
            until = o->next;
        else if (due)
            until = now;
        else if (o->asked)
            until = heard_until;
        w = due || down ? WORK_PASS : WORK_PROBE;
        if (until <= now) break;
        time_ns later = now +
                        AGAIN_MAX_S * (time_ns)NS_PER_S; /* the sweep's time comes by itself */
        server_cond_wait(&o->changed, &o->lock, until < later ? until : later);
    }
    if (o->stopping) w = WORK_STOP;
    objects_unlock(o);
    return w;
}

static void *objects_main(void *user) {
    struct objects *o = user;
    for (;;) {
        enum work w = wait_for_work(o);
        if (w == WORK_STOP) return NULL;
        if (w == WORK_PASS)
            (void)pass(o);
        else
            probe(o);
    }
}

/* ---- A version before it is one ----------------------------------------------------------------------------- */
void objects_ahead(struct objects *o, uint64_t version, const struct hash *checkpoint,
                   const struct hash *theta) {
    if (o == NULL) return;
    struct wanted *w = mem_alloc(2, sizeof *w);
    bool updates = o->s->dir.settings.hub.down != 0;
    want_checkpoint(o, checkpoint, &w[0]);
    want_update(o, version, theta, &w[1]);
    objects_lock(o);
    for (size_t i = 0; i < 2; i++) (void)snprintf(o->held[i], sizeof o->held[i], "%s", w[i].key);
    bool up = o->up;
    objects_unlock(o);
    if (up) (void)put(o, &w[updates ? 1 : 0]);
    mem_free(w);
}

void objects_settled(struct objects *o) {
    if (o == NULL) return;
    objects_lock(o);
    memset(o->held, 0, sizeof o->held);
    o->dirty = true;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
}

/* ---- Opening and closing ------------------------------------------------------------------------------------ */
enum brg_status objects_store_open(const struct hub_server *s, struct object_place *out_place,
                                   struct object_store **out, struct err *e) {
    const struct run_settings *r = &s->dir.settings;
    struct object_place *p = out_place;
    char url[sizeof r->blobs_store + ID_HEX_BYTES + 2], id[ID_HEX_BYTES];
    id_hex(&s->dir.facts.run, id);
    size_t n = strlen(r->blobs_store);
    while (n > 0 && r->blobs_store[n - 1] == '/') n--;
    (void)snprintf(url, sizeof url, "%.*s/%s", (int)n, r->blobs_store, id);
    TRY(object_place_parse(url, r->blobs_endpoint, r->blobs_region, p, e));
    (void)snprintf(p->ca, sizeof p->ca, "%s", r->blobs_ca);
    if (p->ca[0] != '\0' && access(p->ca, R_OK) != 0)
        return err_set(e, BRG_E_CONFIG, "blobs.ca: %s cannot be read", p->ca);
    return object_store_open(p, r->blobs_credentials, r->blobs_part_bytes, out, e);
}

enum brg_status objects_open(struct hub_server *s, struct objects **out, struct err *e) {
    const struct run_settings *r = &s->dir.settings;
    struct object_place p;
    struct object_store *store = NULL;
    pthread_condattr_t monotonic;
    *out = NULL;
    if (r->blobs_store[0] == '\0') return BRG_OK;
    TRY(objects_store_open(s, &p, &store, e));
    struct objects *o = mem_alloc(1, sizeof *o);
    o->s = s;
    o->store = store;
    o->expires_s = (uint32_t)(r->blobs_expires_ns / NS_PER_S);
    o->price_writes = r->blobs_price_writes;
    o->price_reads = r->blobs_price_reads;
    CHECK(pthread_mutex_init(&o->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&monotonic) == 0);
    CHECK(pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&o->changed, &monotonic) == 0);
    (void)pthread_condattr_destroy(&monotonic);
    *out = o;
    return BRG_OK;
}

void objects_start(struct objects *o) {
    if (o == NULL) return;
    o->runs = pthread_create(&o->thread, NULL, objects_main, o) == 0;
    CHECK(o->runs);
}

void objects_stop(struct objects *o) {
    if (o == NULL) return;
    objects_lock(o);
    o->stopping = true;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
    object_store_stop(o->store);
    if (o->runs) CHECK(pthread_join(o->thread, NULL) == 0);
    o->runs = false;
}

void objects_close(struct objects *o) {
    if (o == NULL) return;
    object_store_close(o->store);
    (void)pthread_cond_destroy(&o->changed);
    (void)pthread_mutex_destroy(&o->lock);
    mem_free(o->rows);
    mem_free(o);
}
