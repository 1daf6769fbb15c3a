/* SPDX-License-Identifier: Apache-2.0 */
/* upload_os.c - lists, and uploads in parts. What is under way is asked of the store, never remembered here: so any
 * process goes on where another stopped. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "object/inner_os.h"

enum { PAGES_MAX = 10000 };

/* ---- Lists ------------------------------------------------------------------------------------------------ */
struct listing {
    struct object_store *store;
    object_visit *visit;
    void *user;
};

/* Keys are told below the store's prefix. */
static void below_prefix(void *user, const struct object_entry *x) {
    const struct listing *l = user;
    size_t n = strlen(l->store->place.prefix);
    struct object_entry y = *x;
    if (n > 0) {
        if (strncmp(x->key, l->store->place.prefix, n) != 0 || x->key[n] != '/') return;
        memmove(y.key, x->key + n + 1, strlen(x->key + n + 1) + 1);
    }
    l->visit(l->user, &y);
}

/* Performs r, reads its answer, and ends r. */
static enum brg_status ask(struct object_request *r, object_visit *visit, void *user,
                           struct object_answer *a, struct err *e) {
    enum brg_status st = object_perform(r, e);
    if (st == BRG_OK)
        st = object_answer_parse(r->body.data, r->body.bytes_count, visit, user, a, e);
    object_request_fini(r);
    return st;
}

static enum brg_status one_page(struct object_store *s, const char *key, const char *query,
                                const char *root, object_visit *visit, void *user,
                                struct object_answer *a, struct err *e) {
    struct object_request r = {.store = s, .kind = OBJECT_GET, .key = key, .query = query};
    (void)snprintf(r.what, sizeof r.what, "list of %.120s", key != NULL ? key : "the bucket");
    TRY(ask(&r, visit, user, a, e));
    if (strcmp(a->root, root) == 0) return BRG_OK;
    return err_set(e, BRG_E_MESSAGE, "the object store %s: <%s> instead of <%s>", s->name, a->root,
                   root);
}

/* NAME=VALUE, escaped. */
static void param_put(const char *name, const char *value, struct buf *out) {
    buf_printf(out, "%s=", name);
    object_escape(value, false, out);
}

static void prefix_put(struct object_store *s, const char *prefix, struct buf *out) {
    object_escape(s->place.prefix, false, out);
    if (s->place.prefix[0] != '\0') buf_printf(out, "%%2F");
    object_escape(prefix, false, out);
}

static void objects_query(struct object_store *s, const char *prefix, const struct object_answer *a,
                          struct buf *out) {
    if (a->more) param_put("continuation-token", a->next, out);
    buf_printf(out, "%slist-type=2&prefix=", a->more ? "&" : "");
    prefix_put(s, prefix, out);
}

static void uploads_query(struct object_store *s, const char *prefix, const struct object_answer *a,
                          struct buf *out) {
    if (a->more) param_put("key-marker", a->next, out);
    buf_printf(out, "%sprefix=", a->more ? "&" : "");
    prefix_put(s, prefix, out);
    if (a->more) param_put("&upload-id-marker", a->next_upload, out);
    buf_printf(out, "&uploads=");
}

/* query: of the page behind the answer *a, its parameters in order of their names as signing wants them. */
static enum brg_status all_pages(struct object_store *s, const char *prefix, const char *root,
                                 void (*query)(struct object_store *s, const char *prefix,
                                               const struct object_answer *a, struct buf *out),
                                 object_visit *visit, void *user, struct err *e) {
    struct listing l = {s, visit, user};
    struct object_answer a = {.root = ""};
    for (int page = 0; page < PAGES_MAX; page++) {
        AUTO_BUF struct buf q;
        buf_init(&q, OBJECT_URL_MAX);
        query(s, prefix, &a, &q);
        TRY(one_page(s, NULL, buf_cstr(&q), root, below_prefix, &l, &a, e));
        if (!a.more || a.next[0] == '\0') return BRG_OK;
    }
    return err_set(e, BRG_E_LIMIT, "the object store %s: a list without an end", s->name);
}

enum brg_status object_list(struct object_store *s, const char *prefix, object_visit *visit,
                            void *user, struct err *e) {
    return all_pages(s, prefix, "ListBucketResult", objects_query, visit, user, e);
}

enum brg_status object_uploads(struct object_store *s, const char *prefix, object_visit *visit,
                               void *user, struct err *e) {
    return all_pages(s, prefix, "ListMultipartUploadsResult", uploads_query, visit, user, e);
}

/* ---- Uploads ------------------------------------------------------------------------------------------------ */
struct newest {
    const char *key;
    char *upload;
    int64_t unix_s;
    bool found;
};

static void on_upload(void *user, const struct object_entry *x) {
    struct newest *n = user;
    if (strcmp(x->key, n->key) != 0 || (n->found && x->unix_s <= n->unix_s)) return;
    (void)snprintf(n->upload, OBJECT_TEXT_MAX, "%s", x->upload);
    n->unix_s = x->unix_s;
    n->found = true;
}

enum brg_status object_upload_find(struct object_store *s, const char *key,
                                   char out[OBJECT_TEXT_MAX], struct err *e) {
    struct newest n = {.key = key, .upload = out};
    TRY(object_uploads(s, key, on_upload, &n, e));
    return n.found ? BRG_OK : err_set(e, BRG_E_MISSING, "no upload of %s is under way", key);
}

enum brg_status object_upload_begin(struct object_store *s, const char *key,
                                    const struct hash *sha256, char out[OBJECT_TEXT_MAX],
                                    struct err *e) {
    struct object_request r = {
        .store = s, .kind = OBJECT_POST, .key = key, .query = "uploads=", .meta = sha256};
    struct object_answer a = {.root = ""};
    (void)snprintf(r.what, sizeof r.what, "beginning an upload of %.100s", key);
    TRY(ask(&r, NULL, NULL, &a, e));
    if (a.upload[0] == '\0')
        return err_set(e, BRG_E_MESSAGE, "the object store %s: an upload without a name", s->name);
    (void)snprintf(out, OBJECT_TEXT_MAX, "%s", a.upload);
    return BRG_OK;
}

struct gather {
    struct object_parts *p;
    uint64_t bytes, part_bytes;
};

static void on_part(void *user, const struct object_entry *x) {
    const struct gather *g = user;
    struct object_parts *p = g->p;
    if (x->number < 1 || x->number > p->count || x->etag[0] == '\0') return;
    uint64_t at = (x->number - 1) * g->part_bytes, left = g->bytes - at;
    if (x->bytes != (left < g->part_bytes ? left : g->part_bytes)) return;
    if (p->etag[x->number - 1][0] == '\0') {
        p->missing--;
        p->bytes_here += x->bytes;
    }
    (void)snprintf(p->etag[x->number - 1], sizeof p->etag[0], "%s", x->etag);
}

void object_parts_fini(struct object_parts *p) {
    mem_free(p->etag);
    memset(p, 0, sizeof *p);
}

enum brg_status object_upload_parts(struct object_store *s, const char *key, const char *upload,
                                    uint64_t bytes, struct object_parts *out, struct err *e) {
    uint64_t count = (bytes + s->part_bytes - 1) / s->part_bytes;
    if (count > OBJECT_PARTS_MAX)
        return err_set(e, BRG_E_CONFIG,
                       "%" PRIu64 " bytes are more than %d parts: raise blobs.part", bytes,
                       OBJECT_PARTS_MAX);
    struct object_parts p = {.count = (uint32_t)count, .missing = (uint32_t)count};
    struct gather g = {&p, bytes, s->part_bytes};
    struct object_answer a = {.root = ""};
    enum brg_status st = BRG_OK;
    p.etag = mem_alloc(count > 0 ? count : 1, sizeof p.etag[0]);
    for (int page = 0; st == BRG_OK && page < PAGES_MAX; page++) {
        AUTO_BUF struct buf query;
        buf_init(&query, OBJECT_URL_MAX);
        if (a.more) param_put("part-number-marker", a.next, &query);
        param_put(a.more ? "&uploadId" : "uploadId", upload, &query);
        st = one_page(s, key, buf_cstr(&query), "ListPartsResult", on_part, &g, &a, e);
        if (!a.more || a.next[0] == '\0') break;
    }
    if (st == BRG_OK)
        *out = p;
    else
        object_parts_fini(&p);
    return st;
}

enum brg_status object_put_part(struct object_store *s, const char *key, const char *upload,
                                uint32_t number, int fd, uint64_t at, uint64_t end, char etag[128],
                                struct err *e) {
    AUTO_BUF struct buf query;
    buf_init(&query, OBJECT_URL_MAX);
    buf_printf(&query, "partNumber=%u&", number);
    param_put("uploadId", upload, &query);
    struct object_request r = {.store = s,
                               .kind = OBJECT_PUT,
                               .key = key,
                               .query = buf_cstr(&query),
                               .fd = fd,
                               .begin = at,
                               .end = end};
    (void)snprintf(r.what, sizeof r.what, "PUT part %u of %.100s", number, key);
    enum brg_status st = object_perform(&r, e);
    if (st == BRG_OK) (void)snprintf(etag, 128, "%s", r.etag);
    object_request_fini(&r);
    return st;
}

static void etag_put(const char *etag, struct buf *out) {
    for (const char *c = etag; *c != '\0'; c++) {
        if (*c == '"')
            buf_printf(out, "&quot;");
        else if (*c != '<' && *c != '&')
            buf_u8(out, (uint8_t)*c);
    }
}

/* An answer of 200 may still be an error: the store says 200 when it begins to put the parts together. */
enum brg_status object_upload_finish(struct object_store *s, const char *key, const char *upload,
                                     const struct object_parts *p, struct err *e) {
    AUTO_BUF struct buf query, body;
    struct object_answer a = {.root = ""};
    buf_init(&query, OBJECT_URL_MAX);
    buf_init(&body, 4 << 20);
    param_put("uploadId", upload, &query);
    buf_printf(&body, "<CompleteMultipartUpload>");
    for (uint32_t i = 0; i < p->count; i++) {
        buf_printf(&body, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        etag_put(p->etag[i], &body);
        buf_printf(&body, "</ETag></Part>");
    }
    buf_printf(&body, "</CompleteMultipartUpload>");
    struct object_request r = {.store = s,
                               .kind = OBJECT_POST,
                               .key = key,
                               .query = buf_cstr(&query),
                               .data = body.data,
                               .data_bytes = body.bytes_count,
                               .payload = hash_of(body.data, body.bytes_count)};
    (void)snprintf(r.what, sizeof r.what, "finishing the upload of %.100s", key);
    enum brg_status st = object_perform(&r, e);
    if (st == BRG_OK &&
        (object_answer_parse(r.body.data, r.body.bytes_count, NULL, NULL, &a, e) != BRG_OK ||
         strcmp(a.root, "CompleteMultipartUploadResult") != 0))
        st = object_refusal(500, r.body.data, r.body.bytes_count, s->name, r.what, e);
    object_request_fini(&r);
    return st;
}

enum brg_status object_upload_abort(struct object_store *s, const char *key, const char *upload,
                                    struct err *e) {
    AUTO_BUF struct buf query;
    buf_init(&query, OBJECT_URL_MAX);
    param_put("uploadId", upload, &query);
    struct object_request r = {
        .store = s, .kind = OBJECT_DELETE, .key = key, .query = buf_cstr(&query)};
    (void)snprintf(r.what, sizeof r.what, "ending the upload of %.100s", key);
    enum brg_status st = object_perform(&r, e);
    object_request_fini(&r);
    return st == BRG_E_MISSING ? BRG_OK : st;
}
