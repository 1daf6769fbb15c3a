/* SPDX-License-Identifier: Apache-2.0 */
/* objects_site_os.c - what a site is told about the object store, and a contribution's way in from it.
 *
 *   down   GET .../checkpoint?store=1   --> 303 with a URL, good for this object, GET and blobs.expires
 *   up     GET /v1/blobs/DID?store=1    --> URLs of the pieces that are not there, at most DIRECT_PUTS_MAX
 *          COMMIT                       --> the hub fetches it into incoming/DID.part, and all goes on as always
 *
 * A site is believed nothing about what it put there: the hash of the COMMIT is compared with what the hub fetched. */
#include "hub/objects_inner_os.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    WAIT_S = 5,     /* for an object that is on its way there */
    DOUBTS_MAX = 3, /* put there again so often; then the hub serves it itself */
    DOUBT_S = 10,   /* one put answers the doubts of so long */
    FETCH_S = 10,   /* of one COMMIT; the site asks again, and it goes on */
    FETCH_TRIES = 3,
};

/* ---- Down --------------------------------------------------------------------------------------------------- */
/* Under the lock: what a doubt changes. False: too many, the hub serves it; not where sites may come through the bucket,
 * to whom it cannot. */
static bool doubt_take(struct objects *o, struct object_row *r) {
    time_ns now = os_now();
    if (r->doubts > 0 && now - r->doubted < DOUBT_S * (time_ns)NS_PER_S) return true;
    if (r->doubts >= DOUBTS_MAX && !o->s->dir.settings.blobs_mailbox) return false;
    r->doubts++;
    r->doubted = now;
    r->there = false;
    o->dirty = true;
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    return true;
}

/* Under the lock. After two whole passes it is not coming: the thread does not want it there. */
static enum objects_answer await(struct objects *o, const char *key, uint64_t bytes) {
    time_ns until = os_now() + WAIT_S * (time_ns)NS_PER_S;
    uint64_t passes = o->passes;
    for (;;) {
        const struct object_row *r = objects_row(o, key);
        if (!o->up || o->stopping) return OBJECTS_SELF;
        if (r != NULL && r->there && r->bytes == bytes) return OBJECTS_THERE;
        if (r != NULL && r->there) return OBJECTS_SELF;
        if (o->passes >= passes + 2) return OBJECTS_SELF;
        if (os_now() >= until) return OBJECTS_SOON;
        if (!o->dirty) {
            o->dirty = true;
            CHECK(pthread_cond_broadcast(&o->changed) == 0);
        }
        server_cond_wait(&o->changed, &o->lock, until);
    }
}

static enum objects_answer get(struct objects *o, const char *key, uint64_t bytes, bool doubt,
                               struct direct_get *out) {
    AUTO_BUF struct buf url;
    buf_init(&url, DIRECT_URL_MAX);
    objects_lock(o);
    struct object_row *r = objects_row(o, key);
    enum objects_answer a = OBJECTS_THERE;
    if (doubt && r != NULL && o->up) {
        log_line(LOG_WARN, "hub", "object_doubted", "key=%s", key);
        if (!doubt_take(o, r)) a = OBJECTS_SELF;
    }
    if (a == OBJECTS_THERE) a = await(o, key, bytes);
    if (a == OBJECTS_THERE && !o->asked) {
        o->asked = true;
        CHECK(pthread_cond_broadcast(&o->changed) == 0);
    }
    objects_unlock(o);
    if (a != OBJECTS_THERE) return a;
    object_presign(o->store, "GET", key, NULL, 0, o->expires_s, &url);
    if (url.overflow) return OBJECTS_SELF;
    (void)snprintf(out->url, sizeof out->url, "%s", buf_cstr(&url));
    out->bytes = bytes;
    return OBJECTS_THERE;
}

enum objects_answer objects_checkpoint(struct objects *o, const struct hash *checkpoint,
                                       uint64_t bytes, bool doubt, struct direct_get *out) {
    char key[OBJECTS_KEY_MAX];
    if (o == NULL) return OBJECTS_SELF;
    objects_key_checkpoint(checkpoint, key);
    return get(o, key, bytes, doubt, out);
}

enum objects_answer objects_update(struct objects *o, uint64_t version, const struct hash *theta,
                                   uint64_t bytes, bool doubt, struct direct_get *out) {
    char key[OBJECTS_KEY_MAX];
    if (o == NULL) return OBJECTS_SELF;
    objects_key_update(version, theta, key);
    return get(o, key, bytes, doubt, out);
}

/* ---- Up ------------------------------------------------------------------------------------------------------ */
static void piece_add(struct objects *o, const char *key, const char *upload, uint32_t part,
                      uint64_t at, uint64_t bytes, struct direct_put *out) {
    AUTO_BUF struct buf url;
    struct direct_piece *p = &out->pieces[out->pieces_count];
    buf_init(&url, DIRECT_URL_MAX);
    object_presign(o->store, "PUT", key, upload, part, o->expires_s, &url);
    if (url.overflow) return;
    (void)snprintf(p->url, sizeof p->url, "%s", buf_cstr(&url));
    p->at = at;
    p->bytes = bytes;
    out->pieces_count++;
}

/* Which parts are not there; where none is missing, they become the object. */
static enum brg_status plan_parts(struct objects *o, const char *key, uint64_t bytes,
                                  struct direct_put *out, struct err *e) {
    char upload[OBJECT_TEXT_MAX];
    struct object_parts p = {0};
    uint64_t each = object_part_bytes(o->store);
    enum brg_status s = object_upload_find(o->store, key, upload, e);
    if (s == BRG_E_MISSING) s = object_upload_begin(o->store, key, NULL, upload, e);
    TRY(s);
    TRY(object_upload_parts(o->store, key, upload, bytes, &p, e));
    out->offset = p.bytes_here;
    if (p.missing == 0) s = object_upload_finish(o->store, key, upload, &p, e);
    for (uint32_t i = 0; i < p.count && out->pieces_count < DIRECT_PUTS_MAX; i++) {
        uint64_t at = i * each, left = bytes - at;
        if (p.etag[i][0] == '\0')
            piece_add(o, key, upload, i + 1, at, left < each ? left : each, out);
    }
    object_parts_fini(&p);
    return s;
}

static enum brg_status plan(struct objects *o, const char *key, uint64_t bytes,
                            struct direct_put *out, struct err *e) {
    struct object_about there = {0};
    enum brg_status s = object_look(o->store, key, &there, e);
    if (s != BRG_OK && s != BRG_E_MISSING) return s;
    if (s == BRG_OK && there.bytes == bytes) {
        out->offset = bytes;
        out->last = true;
        return BRG_OK;
    }
    if (bytes > object_part_bytes(o->store)) return plan_parts(o, key, bytes, out, e);
    piece_add(o, key, NULL, 0, 0, bytes, out);
    out->last = true;
    return BRG_OK;
}

enum objects_answer objects_contribution(struct objects *o, const struct id128 *did, uint64_t bytes,
                                         struct direct_put *out) {
    char key[OBJECTS_KEY_MAX];
    struct err e = {0};
    if (o == NULL || bytes == 0) return OBJECTS_SELF;
    objects_lock(o);
    bool up = o->up;
    objects_unlock(o);
    if (!up) return OBJECTS_SELF;
    objects_key_contribution(did, key);
    memset(out, 0, sizeof *out);
    out->store = true;
    if (!objects_noted(o, plan(o, key, bytes, out, &e), &e)) return OBJECTS_SELF;
    return out->pieces_count > 0 || out->offset == bytes ? OBJECTS_THERE : OBJECTS_SELF;
}

/* ---- In ------------------------------------------------------------------------------------------------------ */
struct fetching {
    struct objects *o;
    const struct id128 *did;
    uint64_t at, bytes;
};

static enum brg_status into_part(void *user, const void *data, size_t n, struct err *e) {
    struct fetching *f = user;
    if (n > f->bytes - f->at)
        return err_set(e, BRG_E_CORRUPT, "the object is longer than the contribution");
    TRY(blobs_part_write(f->o->s->blobs, f->did, f->at, data, n, e));
    f->at += n;
    return BRG_OK;
}

/* The object is not the contribution: it goes, and the site sends it again. */
static enum brg_status refuse(struct objects *o, const struct id128 *did, const char *why) {
    char hex[ID_HEX_BYTES];
    id_hex(did, hex);
    log_line(LOG_WARN, "hub", "upload_corrupt",
             "did=%s cause=\"%s in the object store; the site sends it again\"", hex, why);
    objects_contribution_drop(o, did, true);
    return blobs_part_drop(o->s->blobs, did);
}

enum brg_status objects_fetch(struct objects *o, const struct id128 *did, uint64_t bytes,
                              struct err *e) {
    char key[OBJECTS_KEY_MAX];
    struct fetching f = {.o = o, .did = did, .bytes = bytes};
    time_ns until = os_now() + FETCH_S * (time_ns)NS_PER_S;
    if (o == NULL) return BRG_OK;
    objects_key_contribution(did, key);
    for (int tries = 0; tries < FETCH_TRIES; tries++) {
        uint64_t total = 0, from = 0;
        time_ns left = until - os_now();
        TRY(blobs_part_bytes(o->s->blobs, did, &from));
        if (from >= bytes) return BRG_OK;
        objects_lock(o);
        bool up = o->up;
        objects_unlock(o);
        if (!up) return BRG_OK;
        if (left <= 0) return err_set(e, BRG_E_TIMEOUT, "more of it comes");
        f.at = from;
        enum brg_status s = object_get(o->store, key, from, left, into_part, &f, &total, e);
        if (s == BRG_E_TIMEOUT || status_class(s) == BRG_CLASS_FULL || s == BRG_E_IO) return s;
        if (s == BRG_E_CORRUPT || (s == BRG_OK && f.at < bytes))
            return refuse(o, did, "it is of another size");
        if (s == BRG_E_NET && f.at > from) tries = 0; /* cut on the way: it goes on there */
        if (s == BRG_E_NET && tries + 1 < FETCH_TRIES) continue;
        (void)objects_noted(o, s, e);
        return BRG_OK;
    }
    return BRG_OK;
}

void objects_contribution_drop(struct objects *o, const struct id128 *did, bool now) {
    char key[OBJECTS_KEY_MAX];
    struct err e = {0};
    if (o == NULL) return;
    if (now) {
        objects_key_contribution(did, key);
        (void)objects_noted(o, object_delete(o->store, key, &e), &e);
        return;
    }
    objects_lock(o);
    if (o->done_count < OBJECTS_DONE_MAX) o->done[o->done_count++] = *did; /* else: the sweep */
    CHECK(pthread_cond_broadcast(&o->changed) == 0);
    objects_unlock(o);
}
