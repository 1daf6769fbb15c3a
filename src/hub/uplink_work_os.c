/* SPDX-License-Identifier: Apache-2.0 */
/* uplink_work_os.c - what a region does with weights: the displacement that it hands in, and the one by which it
 * takes a version of its parent in. Streams over files, chunk by chunk.
 *
 *   cut:      d = theta_V - theta_region, coded; V: the parent's version that the region has taken in
 *   take in:  d = (theta_V - theta_W) - own delta, if it is in (V, W]; fp32. What the next merge subtracts.
 * What the codec of a cut lost stays in theta_region, and travels with the next one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hub/uplink_weights_os.h"

void uplink_delta_path(const struct uplink *u, char out[OS_PATH_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(&u->st.commit.did, hex);
    os_path(out, u->dir, "%s.delta", hex);
}

/* ---- Writing a delta file ------------------------------------------------------------------------------------------ */
struct out_file {
    int fd;
    char path[OS_PATH_MAX];
    struct hasher hash;
    uint64_t bytes;
};

static enum brg_status out_put(struct out_file *f, const void *data, size_t n, struct err *e) {
    hasher_update(&f->hash, data, n);
    f->bytes += n;
    return os_write_all(f->fd, data, n, f->path, e);
}

static enum brg_status out_open(struct out_file *f, const struct delta_header *h, struct err *e) {
    uint8_t head[DELTA_HEADER_BYTES];
    hasher_init(&f->hash);
    f->bytes = 0;
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) return os_errno(e, errno, "opening", f->path);
    delta_header_encode(h, head);
    return out_put(f, head, sizeof head, e);
}

static enum brg_status out_close(struct out_file *f, enum brg_status s, struct err *e) {
    if (s == BRG_OK && fsync(f->fd) != 0) s = os_errno(e, errno, "syncing", f->path);
    if (f->fd >= 0) (void)close(f->fd);
    f->fd = -1;
    if (s != BRG_OK) (void)unlink(f->path);
    return s;
}

/* A coded delta that is read from its start. */
struct own_delta {
    int fd; /* -1: there is none */
    char path[OS_PATH_MAX];
    enum codec codec;
};

static enum brg_status own_read(const struct own_delta *d, uint64_t at, size_t n, uint8_t *bytes,
                                float *out, struct err *e) {
    TRY(os_pread_all(d->fd, bytes, (size_t)codec_bytes(d->codec, n),
                     DELTA_HEADER_BYTES + codec_bytes(d->codec, at), d->path, e));
    if (codec_decode(d->codec, bytes, n, out) == BRG_OK) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT, "%s: cannot be decoded", d->path);
}

/* d = (a - b) - own, coded. Where b_hash is given, it gets the hash of all of b. */
static enum brg_status difference(const struct weights *a, const struct weights *b,
                                  const struct own_delta *own, enum codec codec, struct out_file *f,
                                  struct hash *b_hash, struct err *e) {
    AUTO_FREE float *x = mem_alloc(OUTER_CHUNK, sizeof *x);
    AUTO_FREE float *y = mem_alloc(OUTER_CHUNK, sizeof *y);
    AUTO_FREE uint8_t *bytes = mem_alloc((size_t)OUTER_CHUNK * 4 + CODEC_UNIT, 1);
    struct hasher h;
    hasher_init(&h);
    for (uint64_t at = 0; at < a->elements; at += OUTER_CHUNK) {
        uint64_t left = a->elements - at;
        size_t n = left < OUTER_CHUNK ? (size_t)left : OUTER_CHUNK;
        TRY(uplink_weights_read(a, at, n, x, e));
        TRY(uplink_weights_read(b, at, n, y, e));
        hasher_update(&h, y, n * sizeof *y);
        for (size_t i = 0; i < n; i++) x[i] -= y[i];
        if (own->fd >= 0) TRY(own_read(own, at, n, bytes, y, e));
        for (size_t i = 0; own->fd >= 0 && i < n; i++) x[i] -= y[i];
        enum brg_status s = codec_encode(codec, x, n, bytes);
        if (s != BRG_OK) return err_set(e, s, "a weight has no finite code");
        TRY(out_put(f, bytes, (size_t)codec_bytes(codec, n), e));
    }
    if (b_hash != NULL) *b_hash = hasher_final(&h);
    return BRG_OK;
}

/* ---- The first version ------------------------------------------------------------------------------------------------- */
enum brg_status uplink_root_check(struct uplink *u, struct err *e) {
    struct hub_version_view v = {0};
    struct hash theirs = u->run.theta;
    char mark[OS_PATH_MAX];
    os_path(mark, u->dir, "root-checked");
    if (u->root_fine || os_exists(mark)) return BRG_OK;
    if (u->run.head > 0) { /* its file tells */
        AUTO_WEIGHTS struct weights w = {.fd = -1};
        uplink_version_path(u, 0, "safetensors", w.path);
        enum brg_status s = client_download(u->line, 0, w.path, e);
        if (s != BRG_OK) return BRG_E_NET;
        s = uplink_weights_open(&w, u->run.parameters, e);
        theirs = w.theta;
        (void)unlink(w.path);
        TRY(s);
    }
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    bool there = hub_version_find(u->s->hub, 0, &v);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    if (!there || !hash_equal(&v.theta, &theirs))
        return uplink_fail(u, BRG_E_CONFIG,
                           "%s: the parent's run began with other weights: make the region with "
                           "`beringia init` from the same model and --seed",
                           u->url);
    u->root_fine = true;
    return os_write_file_atomic(mark, "1\n", 2, e);
}

/* ---- Cutting ------------------------------------------------------------------------------------------------------------ */
/* The sum of the sites' rates is an upper bound of what a weight can have moved by. */
static double rates_of(const struct uplink *u, uint64_t steps) {
    const struct outer_rule *r = &u->s->dir.settings.hub.rule;
    double outer = r->kind == OUTER_PLAIN || r->sum ? 1 : r->eta / (1 - r->mu);
    return 4 * (double)steps * u->run.lr * (outer > 1 ? outer : 1);
}

static enum brg_status cut_file(struct uplink *u, const struct hub_region_view *v,
                                struct wire_commit *c, struct err *e) {
    AUTO_WEIGHTS struct weights from = {.fd = -1};
    AUTO_WEIGHTS struct weights now = {.fd = -1};
    const struct own_delta none = {.fd = -1};
    struct out_file f = {.fd = -1};
    uplink_taken_path(u, v->taken, from.path);
    blobs_path(u->s->blobs, &v->checkpoint, now.path);
    TRY(uplink_weights_open(&from, u->run.parameters, e));
    TRY(uplink_weights_open(&now, u->run.parameters, e));
    if (v->tokens != from.tokens + c->tokens)
        return uplink_reset(u, "the region's tokens are not the parent's and its own", e);
    if (c->tokens == 0) return BRG_OK;
    const struct delta_header h = {.codec = (enum codec)c->codec,
                                   .elements = c->elements,
                                   .base_version = c->base,
                                   .tokens = c->tokens,
                                   .steps = c->steps,
                                   .did = c->did,
                                   .base_theta = from.theta};
    char hex[ID_HEX_BYTES];
    id_hex(&c->did, hex);
    os_path(f.path, u->dir, "%s.delta", hex);
    enum brg_status s = out_open(&f, &h, e);
    if (s == BRG_OK) s = difference(&from, &now, &none, h.codec, &f, NULL, e);
    TRY(out_close(&f, s, e));
    c->blob = hasher_final(&f.hash);
    c->bytes = f.bytes;
    return BRG_OK;
}

enum brg_status uplink_cut(struct uplink *u, bool *did, struct err *e) {
    struct hub_region_view v;
    AUTO_FREE struct wire_commit *c = mem_alloc(1, sizeof *c);
    if (u->run.seq_len == 0) return BRG_OK;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    enum uplink_cut due = uplink_cut_due(u->s->hub, &u->st, c);
    hub_region(u->s->hub, u->st.cut, &v);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    if (due == UPLINK_CUT_NOT) return BRG_OK;
    if (due == UPLINK_CUT_NEVER) /* a reset would only lead here again */
        return uplink_fail(
            u, BRG_E_LIMIT,
            "%s: the sites skipped more than %d of the samples that are to be handed "
            "in together: their data or their rate is bad (their logs say what); "
            "then remove %s/state and start with a smaller --parent-rounds",
            u->s->dir.path, (int)WIRE_SKIPS_MAX, u->dir);
    uint64_t steps = (v.versions > 0 ? v.versions : 1) * u->s->dir.settings.hub.steps;
    os_random(&c->did, sizeof c->did);
    c->base = v.taken;
    if (c->tokens > 0) {
        c->steps = steps;
        c->lr_sum = rates_of(u, steps);
        c->loss = v.versions > 0 ? v.loss_sum / (double)v.versions : 0;
        c->elements = u->run.parameters;
    }
    c->codec = u->run.codec;
    TRY(cut_file(u, &v, c, e));
    if (c->tokens > 0 && c->bytes == 0) return BRG_OK; /* it went back instead */
    uplink_cut_take(&u->st, c, v.head);
    *did = true;
    TRY(uplink_keep(u, e)); /* N4 */
    log_line(LOG_INFO, "hub", "region_cut",
             "head=%" PRIu64 " base=%" PRIu64 " tokens=%" PRIu64 " rounds=%" PRIu64
             " bytes=%" PRIu64,
             v.head, c->base, c->tokens, v.versions, c->bytes);
    return BRG_OK;
}

/* ---- Taking in ------------------------------------------------------------------------------------------------------------ */
struct taking {
    struct weights from, to;
    struct own_delta own;
    struct ledger *ledger;
    struct hub_span *others;
    uint32_t others_count;
};

static void taking_fini(struct taking *t) {
    uplink_weights_fini(&t->from);
    uplink_weights_fini(&t->to);
    if (t->own.fd >= 0) (void)close(t->own.fd);
    if (t->ledger != NULL) ledger_destroy(t->ledger);
    mem_free(t->others);
}
#define AUTO_TAKING __attribute__((cleanup(taking_fini)))

/* false: the parent's books and ours contradict each other. */
static bool others_find(struct uplink *u, bool own_in, struct taking *t) {
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    bool fits = uplink_others(u->s->hub, &u->st, own_in, t->ledger, &t->others, &t->others_count);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    return fits;
}

static enum brg_status own_open(struct uplink *u, struct taking *t, struct err *e) {
    uplink_delta_path(u, t->own.path);
    t->own.codec = (enum codec)u->st.commit.codec;
    t->own.fd = open(t->own.path, O_RDONLY | O_CLOEXEC);
    return t->own.fd >= 0 ? BRG_OK : os_errno(e, errno, "opening", t->own.path);
}

static enum brg_status stage(struct uplink *u, const struct hub_region_view *v, uint64_t version,
                             struct taking *t, struct err *e) {
    struct out_file f = {.fd = -1};
    struct hub_cmd c = {.kind = HUB_CMD_TAKE_IN};
    struct hash theta, blob;
    struct delta_header h = {.codec = CODEC_FP32,
                             .elements = u->run.parameters,
                             .base_version = v->head,
                             .tokens = 1,
                             .steps = 1,
                             .base_theta = v->theta};
    os_random(&c.u.take_in.did, sizeof c.u.take_in.did);
    memset(c.u.take_in.did.v + 12, 0, 4);
    h.did = c.u.take_in.did;
    os_path(f.path, u->s->dir.path, "incoming/parent-%016" PRIx64 ".tmp", u->s->mark);
    enum brg_status s = out_open(&f, &h, e);
    if (s == BRG_OK) s = difference(&t->from, &t->to, &t->own, CODEC_FP32, &f, &theta, e);
    TRY(out_close(&f, s, e));
    if (!hash_equal(&theta, &t->to.theta)) {
        (void)unlink(f.path);
        uplink_version_drop(u, version);
        return err_set(e, BRG_E_CORRUPT, "%s: the weights do not have their hash", t->to.path);
    }
    blob = hasher_final(&f.hash);
    TRY(blobs_adopt(u->s->blobs, f.path, &blob, e));
    c.u.take_in.version = version;
    c.u.take_in.from = v->taken;
    c.u.take_in.blob = blob;
    c.u.take_in.bytes = f.bytes;
    c.u.take_in.spans = t->others;
    c.u.take_in.count = t->others_count;
    s = uplink_step(u, &c, e);
    if (s != BRG_OK) server_drop_blob_if_unused(u->s, &blob);
    return s;
}

enum brg_status uplink_take_in(struct uplink *u, bool *did, struct err *e) {
    struct hub_region_view v;
    AUTO_TAKING struct taking t = {.from.fd = -1, .to.fd = -1, .own.fd = -1};
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    uint64_t head = u->head;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    bool own_in = false;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    hub_region(u->s->hub, 0, &v);
    enum uplink_take due = uplink_take_due(u->s->hub, &u->st, head, &own_in);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    if (due == UPLINK_TAKE_NOT) return BRG_OK;
    if (due == UPLINK_TAKE_RESET) return uplink_reset(u, "the parent went back", e);
    TRY(uplink_fetch(u, head, v.taken, &t.to, &t.ledger, e));
    if (!others_find(u, own_in, &t)) return uplink_reset(u, "the parent's books differ", e);
    uplink_taken_path(u, v.taken, t.from.path);
    enum brg_status s = uplink_weights_open(&t.from, u->run.parameters, e);
    if (s == BRG_OK && own_in && u->st.commit.bytes > 0) s = own_open(u, &t, e);
    if (s == BRG_E_MISSING || s == BRG_E_CHECKPOINT)
        return uplink_reset(u, "files of the uplink are missing or damaged", e);
    TRY(s);
    s = stage(u, &v, head, &t, e);
    *did = *did || s == BRG_OK;
    uplink_tidy(u);
    return s;
}

/* ---- Files that nobody needs ------------------------------------------------------------------------------------------------- */
void uplink_tidy(struct uplink *u) {
    struct hub_region_view v;
    char delta[OS_PATH_MAX], path[OS_PATH_MAX];
    uplink_view(u, 0, &v);
    uplink_delta_path(u, delta);
    DIR *d = opendir(u->dir);
    if (d == NULL) return;
    for (const struct dirent *x = readdir(d); x != NULL; x = readdir(d)) {
        char digits[32];
        uint64_t version;
        size_t n = strcspn(x->d_name, ".");
        bool drop = false;
        os_path(path, u->dir, "%s", x->d_name);
        if (strcmp(x->d_name + n, ".delta") == 0) {
            drop = !u->st.has_pending || strcmp(path, delta) != 0;
        } else if (n < sizeof digits) { /* of a version: before the one that was taken in last */
            (void)snprintf(digits, sizeof digits, "%.*s", (int)n, x->d_name);
            drop = parse_u64(digits, &version) && version < v.taken;
        }
        if (drop) (void)unlink(path);
    }
    (void)closedir(d);
}
