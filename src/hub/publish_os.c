/* SPDX-License-Identifier: Apache-2.0 */
/* publish_os.c - RUN/versions/N.safetensors for people, and which checkpoints are kept.
 *
 * A published file is the blob itself under a second name (hard link; a symbolic link where the
 * filesystem has none). The blob is what counts: a missing link is made again at the next start.
 *
 * Retention: the newest keep_checkpoints versions, every keep_every-th, the first one, and the head. Older
 * checkpoints go only after the newest one was read back and had its hash (a bad disk must not cost the
 * last good copy). Deltas stay: replay needs them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/server_os.h"

static void link_name(const struct hub_server *s, uint64_t version, char out[OS_PATH_MAX]) {
    os_path(out, s->dir.path, "versions/%" PRIu64 ".safetensors", version);
}

static void publish_one(struct hub_server *s, const struct hub_version_view *v) {
    char blob[OS_PATH_MAX], name[OS_PATH_MAX], target[OS_PATH_MAX], hex[HASH_HEX_BYTES];
    blobs_path(s->blobs, &v->checkpoint, blob);
    link_name(s, v->version, name);
    if (os_exists(name) || !os_exists(blob)) return;
    if (link(blob, name) == 0 || errno == EEXIST) return;
    hash_hex(&v->checkpoint, hex); /* relative, so that a run directory may be moved */
    (void)snprintf(target, sizeof target, "../blobs/%.2s/%s", hex, hex);
    (void)unlink(name); /* a dangling link of an earlier life */
    if (symlink(target, name) != 0)
        log_line(LOG_WARN, "hub", "publish_failed", "version=%" PRIu64 " cause=\"%s\"", v->version,
                 strerror(errno));
}

static bool is_kept(const struct run_settings *r, uint64_t version, uint64_t newest,
                    const struct hub_view *view) {
    if (version == view->root || version == view->head) return true;
    if (version + r->keep_checkpoints > newest) return true;
    return r->keep_every > 0 && version % r->keep_every == 0;
}

/* A rolled-back version number may share its checkpoint with nobody; equal content may: ask all kept. */
static bool shared_with_kept(struct hub_server *s, const struct hub_version_view *gone,
                             uint64_t newest, const struct hub_view *view) {
    for (uint64_t v = 0; v <= newest; v++) {
        struct hub_version_view x;
        if (v == gone->version || !hub_version_find(s->hub, v, &x)) continue;
        if (hash_equal(&x.checkpoint, &gone->checkpoint) &&
            is_kept(&s->dir.settings, v, newest, view))
            return true;
    }
    return false;
}

/* The versions that may go now, few at a time; under the lock. */
enum { DROPS_MAX = 16 };
static uint32_t choose_drops(struct hub_server *s, uint64_t newest, uint64_t from,
                             struct hub_version_view out[DROPS_MAX], uint64_t *out_next) {
    struct hub_view view;
    uint32_t count = 0;
    uint64_t v = from;
    hub_view(s->hub, server_now(s), &view);
    for (; v <= newest && count < DROPS_MAX; v++) {
        struct hub_version_view x;
        if (is_kept(&s->dir.settings, v, newest, &view) || !hub_version_find(s->hub, v, &x))
            continue;
        if (!shared_with_kept(s, &x, newest, &view)) out[count++] = x;
    }
    *out_next = v;
    return count;
}

static void retain(struct hub_server *s, uint64_t newest, uint64_t from) {
    struct err e = {0};
    while (from <= newest) {
        struct hub_version_view drops[DROPS_MAX];
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        uint32_t count = choose_drops(s, newest, from, drops, &from);
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        for (uint32_t i = 0; i < count; i++) {
            char name[OS_PATH_MAX];
            link_name(s, drops[i].version, name);
            (void)unlink(name);
            if (!blobs_has(s->blobs, &drops[i].checkpoint)) continue;
            if (blobs_remove(s->blobs, &drops[i].checkpoint, &e) != BRG_OK)
                log_line(LOG_WARN, "hub", "drop_failed", "cause=\"%s\"", e.text);
            else
                log_line(LOG_DEBUG, "hub", "checkpoint_dropped", "version=%" PRIu64,
                         drops[i].version);
        }
    }
}

void server_publish(struct hub_server *s, uint64_t version) {
    struct hub_version_view v;
    struct err e = {0};
    time_ns began = os_now();
    FAULT("hub.before_publish");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool there = hub_version_find(s->hub, version, &v);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (!there) return;
    publish_one(s, &v);
    if (blobs_verify(s->blobs, &v.checkpoint, &e) != BRG_OK) {
        log_line(LOG_ERROR, "hub", "checkpoint_bad",
                 "version=%" PRIu64 " cause=\"%s\" remedy=\"check the "
                 "disk; no older checkpoint is removed\"",
                 version, e.text);
        return;
    }
    uint64_t keep = s->dir.settings.keep_checkpoints;
    retain(s, version, version > keep + 2 ? version - keep - 2 : 1);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    s->times.publish_ns = os_now() - began;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

/* At start, when the head was verified already: what a crash kept from being done. */
void server_publish_all(struct hub_server *s) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    struct hub_view view;
    if (os_mkdirs(os_path(path, s->dir.path, "versions"), &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "publish_failed", "cause=\"%s\"", e.text);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    for (uint64_t v = 0; v <= view.head; v++) {
        struct hub_version_view x;
        if (hub_version_find(s->hub, v, &x)) publish_one(s, &x);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    retain(s, view.head, 1);
}

/* ---- Blobs that nobody needs ---------------------------------------------------------------------------- */
struct search {
    const struct hash *wanted;
    bool found;
};
static void on_blob(void *user, const struct hash *h) {
    struct search *x = user;
    if (hash_equal(h, x->wanted)) x->found = true;
}

void server_drop_blob_if_unused(struct hub_server *s, const struct hash *h) {
    struct search x = {.wanted = h};
    struct err e = {0};
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_blobs(s->hub, on_blob, &x);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (x.found || !blobs_has(s->blobs, h)) return;
    if (blobs_remove(s->blobs, h, &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "drop_failed", "cause=\"%s\"", e.text);
}
