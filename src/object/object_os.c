/* SPDX-License-Identifier: Apache-2.0 */
/* object_os.c - requests to the store. libcurl signs each one (CURLOPT_AWS_SIGV4); what comes back goes into a bounded
 * buffer, or to a sink as it arrives.
 *
 *   object_put_file: short  PUT, with the bytes' SHA-256 in what is signed: the store refuses others
 *                    long   find or begin the upload; parts that are not there; finish
 *                    then   a look: size and hash in the metadata
 *
 * A look is a GET of one byte and no HEAD: the answer to a HEAD that was refused has no body, so nobody could say why.
 *
 * Credentials that the store does not know may have been renewed in their file: read again, and asked once more. */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "object/inner_os.h"

enum { POOL_MAX = 16, SILENCE_S = 60, CONNECT_MS = 15000, RANGE_MAX = 1024 };

/* ---- The store --------------------------------------------------------------------------------------- */
enum brg_status object_store_open(const struct object_place *p, const char *credentials,
                                  uint64_t part_bytes, struct object_store **out, struct err *e) {
    struct object_keys k;
    TRY(object_keys_read(credentials, &k, e));
    struct object_store *s = mem_alloc(1, sizeof *s);
    s->place = *p;
    s->keys = k;
    object_keys_wipe(&k);
    s->part_bytes = part_bytes;
    s->silence_s = SILENCE_S;
    s->connect_ms = CONNECT_MS;
    (void)snprintf(s->credentials, sizeof s->credentials, "%s", credentials);
    (void)snprintf(s->name, sizeof s->name, "%s/%s", p->endpoint, p->bucket);
    (void)snprintf(s->sigv4, sizeof s->sigv4, "aws:amz:%s:s3", p->region);
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
    *out = s;
    return BRG_OK;
}

void object_store_patience(struct object_store *s, uint32_t seconds) {
    s->silence_s = (long)seconds;
    s->connect_ms = (long)seconds * 1000;
}

void object_store_stop(struct object_store *s) {
    atomic_store(&s->stopped, true);
}

void object_store_close(struct object_store *s) {
    if (s == NULL) return;
    for (size_t i = 0; i < s->idle_count; i++) curl_easy_cleanup(s->idle[i]);
    pthread_mutex_destroy(&s->lock);
    object_keys_wipe(&s->keys);
    mem_free(s);
}

uint64_t object_part_bytes(const struct object_store *s) {
    return s->part_bytes;
}

struct object_counts object_store_counts(struct object_store *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    struct object_counts c = s->counts;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return c;
}

double object_cost(const struct object_counts *c, double price_writes, double price_reads) {
    return (double)c->writes / 1000 * price_writes + (double)c->reads / 1000 * price_reads;
}

int64_t object_store_date(struct object_store *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    int64_t date = s->date;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return date;
}

static CURL *handle_take(struct object_store *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    CURL *h = s->idle_count > 0 ? s->idle[--s->idle_count] : NULL;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (h == NULL) h = curl_easy_init();
    CHECK(h != NULL); /* memory */
    return h;
}

static void handle_give(struct object_store *s, CURL *h) {
    curl_easy_reset(h); /* the secret does not stay in it */
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool room = s->idle_count < ARRAY_COUNT(s->idle);
    if (room) s->idle[s->idle_count++] = h;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (!room) curl_easy_cleanup(h);
}

static struct object_keys keys_now(struct object_store *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    struct object_keys k = s->keys;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return k;
}

/* The file has other credentials by now than those that were refused. */
static bool keys_renew(struct object_store *s) {
    struct object_keys k;
    if (object_keys_read(s->credentials, &k, NULL) != BRG_OK) return false;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool other = strcmp(k.id, s->keys.id) != 0 || strcmp(k.secret, s->keys.secret) != 0 ||
                 strcmp(k.session, s->keys.session) != 0;
    s->keys = k;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    object_keys_wipe(&k);
    return other;
}

/* ---- What comes back ----------------------------------------------------------------------------------- */
static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct object_request *r = user;
    size_t n = size * count;
    long http = 0;
    curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &http);
    r->moved_down += n;
    if (r->sink == NULL || http < 200 || http >= 300) {
        buf_put(&r->body, data, n);
        return r->body.overflow ? 0 : n;
    }
    if (http == 200 && r->from > 0) { /* no Range on the way: skip what is here already */
        uint64_t skip = r->from - r->skipped < n ? r->from - r->skipped : n;
        r->skipped += skip;
        data += skip;
        n -= (size_t)skip;
    }
    if (n > 0) r->sink_status = r->sink(r->user, data, n, &r->sink_error);
    return r->sink_status == BRG_OK ? size * count : 0;
}

static void on_range(struct object_request *r, const char *value) {
    const char *slash = strchr(value, '/');
    uint64_t total;
    if (slash != NULL && parse_u64(slash + 1, &total)) r->total = total;
}

static size_t on_header(char *data, size_t size, size_t count, void *user) {
    struct object_request *r = user;
    size_t n = size * count, used = n < sizeof r->header - 1 ? n : sizeof r->header - 1;
    memcpy(r->header, data, used);
    while (used > 0 && (unsigned char)r->header[used - 1] <= ' ') used--;
    r->header[used] = '\0';
    char *value = strchr(r->header, ':');
    if (value == NULL) return n;
    *value++ = '\0';
    while (*value == ' ') value++;
    if (strcasecmp(r->header, "content-range") == 0) on_range(r, value);
    if (strcasecmp(r->header, "content-length") == 0) (void)parse_u64(value, &r->length);
    if (strcasecmp(r->header, "x-amz-meta-sha256") == 0)
        (void)hex_decode(value, r->sha256.v, HASH_BYTES);
    if (strcasecmp(r->header, "date") == 0) r->date = (int64_t)curl_getdate(value, NULL);
    if (strcasecmp(r->header, "etag") == 0)
        (void)snprintf(r->etag, sizeof r->etag, "%.127s", value);
    return n;
}

static size_t on_read(char *out, size_t size, size_t count, void *user) {
    struct object_request *r = user;
    uint64_t n = size * count;
    if (n > r->end - r->at) n = r->end - r->at;
    ssize_t got = n > 0 ? pread(r->fd, out, n, (off_t)r->at) : 0;
    if (got < 0) return CURL_READFUNC_ABORT;
    r->at += (uint64_t)got;
    r->moved_up += (uint64_t)got;
    return (size_t)got;
}

static int on_seek(void *user, curl_off_t offset, int origin) {
    struct object_request *r = user;
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_FAIL;
    r->at = r->begin + (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const struct object_request *r = user;
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(&r->store->stopped) || os_now() > r->until ? 1 : 0;
}

/* ---- One request ------------------------------------------------------------------------------------------ */
static bool header_add(struct curl_slist **list, const char *line) {
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer != NULL) *list = longer;
    return longer != NULL;
}

static void url_put(struct object_store *s, const char *key, const char *query, struct buf *out) {
    buf_printf(out, "%s/%s", s->place.endpoint, s->place.bucket);
    if (key != NULL) {
        buf_printf(out, "/%s%s", s->place.prefix, s->place.prefix[0] != '\0' ? "/" : "");
        object_escape(key, true, out); /* ours need none; what others put there may */
    }
    if (query != NULL) buf_printf(out, "?%s", query);
}

/* libcurl's own of another system than this one may not be there; the same places as wire's client looks at. */
static const char *ca_file(const struct object_store *s) {
    return s->place.ca[0] != '\0' ? s->place.ca : NULL;
}

/* Only what is sent: libcurl 7.88 signs what it is told to leave out ("Expect:") as well, and no store agrees. */
static struct curl_slist *headers_of(struct object_request *r, const struct object_keys *k) {
    struct curl_slist *list = NULL;
    char line[2200], hex[HASH_HEX_BYTES];
    bool good = true;
    hash_hex(&r->payload, hex);
    (void)snprintf(line, sizeof line, "x-amz-content-sha256: %s",
                   hash_is_zero(&r->payload) ? "UNSIGNED-PAYLOAD" : hex);
    good &= header_add(&list, line);
    if (r->meta != NULL) {
        hash_hex(r->meta, hex);
        (void)snprintf(line, sizeof line, "x-amz-meta-sha256: %s", hex);
        good &= header_add(&list, line);
    }
    if (k->session[0] != '\0') {
        (void)snprintf(line, sizeof line, "x-amz-security-token: %s", k->session);
        good &= header_add(&list, line);
    }
    CHECK(good); /* memory */
    explicit_bzero(line, sizeof line);
    return list;
}

static void options_set(struct object_request *r, const char *url, const struct object_keys *k,
                        struct curl_slist *headers) {
    CURL *h = r->curl;
    const char *ca = ca_file(r->store);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(h, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (ca != NULL) curl_easy_setopt(h, CURLOPT_CAINFO, ca);
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "beringia");
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, r->error);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, r);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, r->store->connect_ms);
    curl_easy_setopt(h, CURLOPT_EXPECT_100_TIMEOUT_MS, 300L); /* for stores that never say it */
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, r->store->silence_s);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_USERNAME, k->id);
    curl_easy_setopt(h, CURLOPT_PASSWORD, k->secret);
    curl_easy_setopt(h, CURLOPT_AWS_SIGV4, r->store->sigv4);
    if (r->kind == OBJECT_PUT) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(h, CURLOPT_READDATA, r);
        curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(h, CURLOPT_SEEKDATA, r);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(r->end - r->begin));
    } else if (r->kind == OBJECT_POST || r->kind == OBJECT_PUT_SMALL) {
        curl_easy_setopt(h, CURLOPT_POST, 1L);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, r->data != NULL ? r->data : "");
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->data_bytes);
        if (r->kind == OBJECT_PUT_SMALL) curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, "PUT");
    } else if (r->kind == OBJECT_DELETE) {
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, "DELETE");
    }
    if (r->range[0] != '\0') curl_easy_setopt(h, CURLOPT_RANGE, r->range);
}

static void count(struct object_request *r, bool failed) {
    struct object_store *s = r->store;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool lists = r->kind == OBJECT_GET && r->key == NULL;
    s->counts.lists += lists;
    if (r->date > 0) s->date = r->date;
    s->counts.reads += r->kind == OBJECT_GET && !lists;
    s->counts.deletes += r->kind == OBJECT_DELETE;
    s->counts.writes += r->kind == OBJECT_PUT || r->kind == OBJECT_PUT_SMALL ||
                        r->kind == OBJECT_POST || lists;
    s->counts.bytes_up += r->moved_up + r->data_bytes;
    s->counts.bytes_down += r->moved_down;
    s->counts.failures += failed;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
}

static enum brg_status judge(struct object_request *r, CURLcode rc, struct err *e) {
    struct object_store *s = r->store;
    if (atomic_load(&s->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
    if (r->sink_status != BRG_OK) {
        if (e != NULL) *e = r->sink_error;
        return r->sink_status;
    }
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, BRG_E_TIMEOUT, "the object store %s, %s: time is over", s->name, r->what);
    if (rc == CURLE_PARTIAL_FILE)
        return err_set(e, BRG_E_NET, "the object store %s, %s: cut on the way; it goes on there",
                       s->name, r->what);
    if (rc == CURLE_PEER_FAILED_VERIFICATION)
        return err_set(
            e, BRG_E_NET,
            "the object store %s: its certificate is not trusted (%s): set blobs.ca to the "
            "PEM file of its CA, or look at the address and this machine's clock",
            s->name, r->error);
    if (rc != CURLE_OK)
        return err_set(e, BRG_E_NET, "the object store %s is not reached: %s", s->name,
                       r->error[0] != '\0' ? r->error : curl_easy_strerror(rc));
    if (r->http >= 200 && r->http < 300) return BRG_OK;
    return object_refusal(r->http, r->body.data, r->body.bytes_count, s->name, r->what, e);
}

static enum brg_status perform_once(struct object_request *r, struct err *e) {
    struct object_store *s = r->store;
    AUTO_BUF struct buf url;
    buf_init(&url, OBJECT_URL_MAX);
    url_put(s, r->key, r->query, &url);
    if (atomic_load(&s->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
    buf_reset(&r->body);
    r->body.overflow = false;
    r->at = r->begin;
    r->skipped = r->moved_up = r->moved_down = r->length = 0;
    r->date = 0;
    r->total = UINT64_MAX;
    r->error[0] = '\0';
    struct object_keys k = keys_now(s);
    struct curl_slist *headers = headers_of(r, &k);
    r->curl = handle_take(s);
    options_set(r, buf_cstr(&url), &k, headers);
    CURLcode rc = curl_easy_perform(r->curl);
    r->http = 0;
    curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &r->http);
    handle_give(s, r->curl);
    curl_slist_free_all(headers);
    object_keys_wipe(&k);
    enum brg_status st = judge(r, rc, e);
    count(r, st != BRG_OK && st != BRG_E_MISSING);
    return st;
}

enum brg_status object_perform(struct object_request *r, struct err *e) {
    buf_init(&r->body, OBJECT_ANSWER_MAX);
    if (r->until == 0) r->until = TIME_NS_NEVER;
    enum brg_status st = perform_once(r, e);
    bool unknown = st == BRG_E_CONFIG && (r->http == 403 || r->http == 401 || r->http == 400);
    if (unknown && keys_renew(r->store)) st = perform_once(r, e);
    return st;
}

void object_request_fini(struct object_request *r) {
    buf_fini(&r->body);
}

/* ---- Objects ------------------------------------------------------------------------------------------------ */
static void what_of(struct object_request *r, const char *word) {
    (void)snprintf(r->what, sizeof r->what, "%s %.*s", word, 120,
                   r->key != NULL ? r->key : "the bucket");
}

enum brg_status object_look(struct object_store *s, const char *key, struct object_about *out,
                            struct err *e) {
    struct object_request r = {.store = s, .kind = OBJECT_GET, .key = key, .range = "0-0"};
    what_of(&r, "GET");
    enum brg_status st = object_perform(&r, e);
    bool empty = st == BRG_E_CORRUPT && r.http == 416; /* nothing in it has a first byte */
    if (st == BRG_OK || empty) {
        st = BRG_OK;
        out->bytes = empty ? 0 : r.total != UINT64_MAX ? r.total : r.length;
        out->sha256 = r.sha256;
    }
    object_request_fini(&r);
    return st;
}

enum brg_status object_get(struct object_store *s, const char *key, uint64_t from, time_ns limit,
                           object_sink *sink, void *user, uint64_t *out_bytes, struct err *e) {
    struct object_request r = {
        .store = s, .kind = OBJECT_GET, .key = key, .from = from, .sink = sink, .user = user};
    what_of(&r, "GET");
    if (from > 0) (void)snprintf(r.range, sizeof r.range, "%" PRIu64 "-", from);
    r.until = limit == TIME_NS_NEVER ? TIME_NS_NEVER : os_now() + limit;
    enum brg_status st = object_perform(&r, e);
    *out_bytes = r.total != UINT64_MAX ? r.total : r.length;
    object_request_fini(&r);
    return st;
}

static enum brg_status into_buf(void *user, const void *data, size_t n, struct err *e) {
    struct buf *b = user;
    buf_put(b, data, n);
    return b->overflow ? err_set(e, BRG_E_LIMIT, "an object that is longer than it may be")
                       : BRG_OK;
}

enum brg_status object_get_bytes(struct object_store *s, const char *key, size_t bytes_max,
                                 struct buf *out, struct err *e) {
    uint64_t bytes;
    buf_reset(out);
    out->bytes_max = bytes_max;
    out->overflow = false;
    return object_get(s, key, 0, TIME_NS_NEVER, into_buf, out, &bytes, e);
}

enum brg_status object_put_bytes(struct object_store *s, const char *key, const void *data,
                                 size_t n, struct err *e) {
    struct object_request r = {.store = s,
                               .kind = OBJECT_PUT_SMALL,
                               .key = key,
                               .data = data,
                               .data_bytes = n,
                               .payload = hash_of(data, n)};
    what_of(&r, "PUT");
    enum brg_status st = object_perform(&r, e);
    object_request_fini(&r);
    return st;
}

enum brg_status object_delete(struct object_store *s, const char *key, struct err *e) {
    struct object_request r = {.store = s, .kind = OBJECT_DELETE, .key = key};
    what_of(&r, "DELETE");
    enum brg_status st = object_perform(&r, e);
    object_request_fini(&r);
    return st == BRG_E_MISSING ? BRG_OK : st;
}

static enum brg_status put_whole(struct object_store *s, const char *key, int fd, uint64_t bytes,
                                 const struct hash *sha256, struct err *e) {
    struct object_request r = {.store = s,
                               .kind = OBJECT_PUT,
                               .key = key,
                               .fd = fd,
                               .end = bytes,
                               .payload = *sha256,
                               .meta = sha256};
    what_of(&r, "PUT");
    enum brg_status st = object_perform(&r, e);
    object_request_fini(&r);
    return st;
}

static enum brg_status put_parts(struct object_store *s, const char *key, int fd, uint64_t bytes,
                                 const struct hash *sha256, struct err *e) {
    char upload[OBJECT_TEXT_MAX];
    struct object_parts p = {0};
    enum brg_status st = object_upload_find(s, key, upload, e);
    if (st == BRG_E_MISSING) st = object_upload_begin(s, key, sha256, upload, e);
    TRY(st);
    st = object_upload_parts(s, key, upload, bytes, &p, e);
    for (uint32_t i = 0; st == BRG_OK && i < p.count; i++) {
        uint64_t at = i * s->part_bytes,
                 end = at + s->part_bytes < bytes ? at + s->part_bytes : bytes;
        if (p.etag[i][0] == '\0')
            st = object_put_part(s, key, upload, i + 1, fd, at, end, p.etag[i], e);
    }
    if (st == BRG_OK) st = object_upload_finish(s, key, upload, &p, e);
    object_parts_fini(&p);
    return st;
}

enum brg_status object_put_file(struct object_store *s, const char *key, const char *path,
                                const struct hash *sha256, struct err *e) {
    struct object_about there = {0};
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return os_errno(e, errno, "opening", path);
    if (fstat(fd, &st) != 0) return os_errno(e, errno, "looking at", path);
    uint64_t bytes = (uint64_t)st.st_size;
    if (bytes <= s->part_bytes)
        TRY(put_whole(s, key, fd, bytes, sha256, e));
    else
        TRY(put_parts(s, key, fd, bytes, sha256, e));
    TRY(object_look(s, key, &there, e));
    if (there.bytes == bytes && hash_equal(&there.sha256, sha256)) return BRG_OK;
    return err_set(e, BRG_E_CORRUPT,
                   "the object store %s has %" PRIu64 " of the %" PRIu64 " bytes of %s", s->name,
                   there.bytes, bytes, key);
}

/* ---- URLs for others ------------------------------------------------------------------------------------------ */
void object_presign(struct object_store *s, const char *method, const char *key, const char *upload,
                    uint32_t part, uint32_t expires_s, struct buf *out) {
    AUTO_BUF struct buf path;
    char number[16];
    struct object_param more[2] = {{"partNumber", number}, {"uploadId", upload}};
    struct object_keys k = keys_now(s);
    buf_init(&path, OBJECT_URL_MAX);
    (void)snprintf(number, sizeof number, "%u", part);
    buf_printf(&path, "/%s/%s%s%s", s->place.bucket, s->place.prefix,
               s->place.prefix[0] != '\0' ? "/" : "", key);
    const char *host = strstr(s->place.endpoint, "://");
    CHECK(host != NULL);
    struct object_signing x = {.method = method,
                               .host = host + 3,
                               .path = buf_cstr(&path),
                               .region = s->place.region,
                               .service = "s3",
                               .keys = &k,
                               .unix_s = (int64_t)(os_wall() / NS_PER_S),
                               .expires_s = expires_s,
                               .params = more,
                               .params_count = part > 0 ? 2 : 0};
    buf_printf(out, "%s%s?", s->place.endpoint, buf_cstr(&path));
    object_sign_query(&x, out);
    object_keys_wipe(&k);
}
