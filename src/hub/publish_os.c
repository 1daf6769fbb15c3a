/* SPDX-License-Identifier: Apache-2.0 */
/* publish_os.c - RUN/versions/N.safetensors for people, and which checkpoints are kept.
 *
 * A published file is the blob itself under a second name (hard link; a symbolic link where the
 * filesystem has none). The blob is what counts: a missing link is made again at the next start.
 *
 * Retention: the newest keep_checkpoints versions, every keep_every-th, the first one, and the head. Older
 * checkpoints go only after the newest one was read back and had its hash (a bad disk must not cost the
 * last good copy). Deltas stay: replay needs them.
 *
 * RUN/updates/N.update is the way from N's parent to N, for sites that are there already. It has its name
 * before N is the head, so that nobody asks for it in vain, and no more: it is not synced, and a site that
 * finds it gone, or that its sum has not N's hash, takes the whole weights. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/server_os.h"

enum { UPDATES_KEPT = 8 };

static void link_name(const struct hub_server *s, uint64_t version, char out[OS_PATH_MAX]) {
    os_path(out, s->dir.path, "versions/%" PRIu64 ".safetensors", version);
}

void server_update_path(const struct hub_server *s, uint64_t version, char out[OS_PATH_MAX]) {
    os_path(out, s->dir.path, "updates/%" PRIu64 ".update", version);
}

void server_update_adopt(struct hub_server *s, const char *from, uint64_t version) {
    char path[OS_PATH_MAX];
    server_update_path(s, version, path);
    if (rename(from, path) != 0)
        log_line(LOG_WARN, "hub", "update_failed", "version=%" PRIu64 " cause=\"%s\"", version,
                 strerror(errno));
    if (version < UPDATES_KEPT) return;
    server_update_path(s, version - UPDATES_KEPT, path);
    (void)unlink(path);
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

size_t server_kept(struct hub_server *s, struct hub_version_view **out) {
    struct hub_view view;
    size_t count = 0, cap = 64;
    struct hub_version_view *list = mem_alloc(cap, sizeof *list);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    for (uint64_t v = 0; v <= view.head; v++) {
        if (!is_kept(&s->dir.settings, v, view.head, &view)) continue;
        if (count == cap) {
            list = mem_grow(list, cap, 2 * cap, sizeof *list);
            cap *= 2;
        }
        count += hub_version_find(s->hub, v, &list[count]);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    *out = list;
    return count;
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

/* The blob goes before its name in versions/: a name that is left tells the next start what to do. */
static void drop_if_old(struct hub_server *s, uint64_t version, uint64_t newest) {
    char name[OS_PATH_MAX];
    struct hub_view view;
    struct hub_version_view x;
    struct err e = {0};
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    bool drop = version <= newest && hub_version_find(s->hub, version, &x) &&
                !is_kept(&s->dir.settings, version, newest, &view) &&
                !shared_with_kept(s, &x, newest, &view);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (!drop) return;
    if (blobs_has(s->blobs, &x.checkpoint)) {
        if (blobs_remove(s->blobs, &x.checkpoint, &e) != BRG_OK) {
            log_line(LOG_WARN, "hub", "drop_failed", "cause=\"%s\"", e.text);
            return;
        }
        log_line(LOG_DEBUG, "hub", "checkpoint_dropped", "version=%" PRIu64, version);
    }
    link_name(s, version, name);
    (void)unlink(name);
}

static void retain(struct hub_server *s, uint64_t newest, uint64_t from) {
    for (uint64_t v = from; v <= newest; v++) drop_if_old(s, v, newest);
}

/* At start: what has a name is looked at, not every version that ever was. */
void server_retain_all(struct hub_server *s) {
    static const char suffix[] = ".safetensors";
    char path[OS_PATH_MAX], digits[32];
    struct hub_view view;
    uint64_t version;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    DIR *d = opendir(os_path(path, s->dir.path, "versions"));
    if (d == NULL) return;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        size_t n = strcspn(entry->d_name, ".");
        if (n >= sizeof digits || strcmp(entry->d_name + n, suffix) != 0) continue;
        (void)snprintf(digits, sizeof digits, "%.*s", (int)n, entry->d_name);
        if (parse_u64(digits, &version)) drop_if_old(s, version, view.head);
    }
    (void)closedir(d);
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

/* At start: the names that a crash kept from being made. */
void server_publish_all(struct hub_server *s) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    struct hub_view view;
    if (os_mkdirs(os_path(path, s->dir.path, "versions"), &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "publish_failed", "cause=\"%s\"", e.text);
    if (os_mkdirs(os_path(path, s->dir.path, "updates"), &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "publish_failed", "cause=\"%s\"", e.text);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, server_now(s), &view);
    for (uint64_t v = 0; v <= view.head; v++) {
        struct hub_version_view x;
        if (!is_kept(&s->dir.settings, v, view.head, &view)) continue;
        if (hub_version_find(s->hub, v, &x)) publish_one(s, &x);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
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
    x.found |= s->away; /* what the journal knows of it is not known here: it stays */
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (x.found || !blobs_has(s->blobs, h)) return;
    if (blobs_remove(s->blobs, h, &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "drop_failed", "cause=\"%s\"", e.text);
}
