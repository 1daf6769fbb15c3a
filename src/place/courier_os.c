/* SPDX-License-Identifier: Apache-2.0 */
/* courier_os.c - see courier_os.h.
 *
 *   dispatcher   looks into req/, moves a request to run/, hands it to a worker
 *   workers      control and transfers apart: read it, ask the hub, write ans/, remove it from run/
 *
 * What lies in run/ when a courier starts was under way when an older one died: it goes back to req/. */
#include "place/courier_os.h"

#include <curl/curl.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "wire/net_os.h"
#include "wire/spool.h"

enum {
    WORKERS = 8, /* half for control messages, half for transfers */
    QUEUE_MAX = 128,
    NAME_MAX_BYTES = 48,
    LOOK_BUSY_MS = 10,
    LOOK_IDLE_MS = 200,
    STACK_BYTES = 256 << 10,
    OLD_S = 3600,
};

struct queue {
    char names[QUEUE_MAX][NAME_MAX_BYTES];
    uint32_t first, count;
    pthread_cond_t filled;
};

struct courier {
    char spool[OS_PATH_MAX], hub[1024];
    struct net_identity id; /* under mutex: it may be renewed */
    int lock;
    atomic_bool stop;
    pthread_mutex_t mutex;
    struct queue queues[2]; /* control, transfers */
    pthread_t dispatcher, workers[WORKERS];
    uint32_t workers_count;
    bool dispatching;
};

struct worker {
    struct courier *c;
    struct queue *queue;
    CURL *curl;
    struct curl_slist *json, *blob;
    struct net_identity id; /* a copy, that of the lists */
    /* of the request in hand */
    struct spool_request r;
    const char *name;
    struct buf body;
    int fd;
    uint64_t at, end, moved;
    time_ns told_at;
    long http;
    char error[CURL_ERROR_SIZE];
};

/* ---- Files ----------------------------------------------------------------------------------------- */

static bool name_fine(const char *name) {
    size_t n = strlen(name);
    if (n != ID_HEX_BYTES + 1 || name[n - 2] != '.') return false;
    return (name[n - 1] == 'c' || name[n - 1] == 't') &&
           strspn(name, "0123456789abcdef") == ID_HEX_BYTES - 1;
}

/* "ID.c" -> ID */
static void id_of(const char *name, char out[ID_HEX_BYTES]) {
    memcpy(out, name, ID_HEX_BYTES - 1);
    out[ID_HEX_BYTES - 1] = '\0';
}

static void put_whole(const char *dir, const char *to, const char *tmp_name, const void *data,
                      size_t n) {
    char tmp[OS_PATH_MAX];
    struct err e = {0};
    os_path(tmp, dir, "tmp/%s", tmp_name);
    AUTO_CLOSE int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0 && os_write_all(fd, data, n, tmp, &e) == BRG_OK && rename(tmp, to) == 0;
    if (!good)
        log_line(LOG_WARN, "courier", "no_answer", "file=%s cause=\"%s\"", to,
                 e.text[0] != '\0' ? e.text : strerror(errno));
}

/* What earlier couriers and sites left behind: old answers and half-written files. */
static void sweep(const struct courier *c, const char *below) {
    char path[OS_PATH_MAX];
    os_path(path, c->spool, "%s", below);
    DIR *d = opendir(path);
    time_t now = time(NULL);
    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;) {
        struct stat st;
        if (x->d_name[0] == '.') continue;
        if (fstatat(dirfd(d), x->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            now - st.st_mtime > OLD_S)
            (void)unlinkat(dirfd(d), x->d_name, 0);
    }
    if (d != NULL) (void)closedir(d);
}

static void back_to_req(const struct courier *c) {
    char path[OS_PATH_MAX], from[OS_PATH_MAX], to[OS_PATH_MAX];
    os_path(path, c->spool, "run");
    DIR *d = opendir(path);
    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;) {
        if (!name_fine(x->d_name)) continue;
        os_path(from, c->spool, "run/%s", x->d_name);
        os_path(to, c->spool, "req/%s", x->d_name);
        (void)rename(from, to);
    }
    if (d != NULL) (void)closedir(d);
}

/* ---- Asking the hub ------------------------------------------------------------------------------- */

static void tell_progress(struct worker *w, uint64_t moved) {
    char path[OS_PATH_MAX], tmp[NAME_MAX_BYTES + 8], text[32], id[ID_HEX_BYTES];
    time_ns now = os_now();
    if (moved == w->moved || now - w->told_at < NS_PER_S / 2) return;
    w->moved = moved;
    w->told_at = now;
    id_of(w->name, id);
    os_path(path, w->c->spool, "ans/%s.p", id);
    (void)snprintf(tmp, sizeof tmp, "%s.p", id);
    int n = snprintf(text, sizeof text, "%" PRIu64, moved);
    put_whole(w->c->spool, path, tmp, text, (size_t)n);
}

static int on_progress(void *user, curl_off_t dt, curl_off_t down, curl_off_t ut, curl_off_t up) {
    struct worker *w = user;
    (void)dt, (void)ut;
    if (w->r.file[0] != '\0') tell_progress(w, (uint64_t)down + (uint64_t)up);
    return atomic_load(&w->c->stop) ? 1 : 0;
}

/* A download goes to its place in the file, whatever an earlier try has written there: same bytes, same place. */
static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct worker *w = user;
    size_t n = size * count;
    long http = 0;
    struct err e = {0};
    curl_easy_getinfo(w->curl, CURLINFO_RESPONSE_CODE, &http);
    bool whole = http == 200 && w->r.offset == 0, rest = http == 206;
    if (w->r.method == SPOOL_GET && w->r.file[0] != '\0' && (whole || rest)) {
        if (os_pwrite_all(w->fd, data, n, w->at, w->r.file, &e) != BRG_OK) {
            (void)snprintf(w->error, sizeof w->error, "%.200s", e.text);
            return 0;
        }
        w->at += n;
        return n;
    }
    if (w->r.method == SPOOL_GET && w->r.file[0] != '\0' && http == 200) return 0; /* no Range */
    buf_put(&w->body, data, n);
    return w->body.overflow ? 0 : n;
}

static size_t on_read(char *out, size_t size, size_t count, void *user) {
    struct worker *w = user;
    uint64_t n = size * count;
    if (n > w->end - w->at) n = w->end - w->at;
    ssize_t got = n > 0 ? pread(w->fd, out, n, (off_t)w->at) : 0;
    if (got < 0) return CURL_READFUNC_ABORT;
    w->at += (uint64_t)got;
    return (size_t)got;
}

/* The file of a request: the user's own, no link, nothing but a file. */
static bool file_open(struct worker *w) {
    struct stat st;
    bool put = w->r.method == SPOOL_PUT;
    w->fd = -1;
    if (w->r.file[0] == '\0') return true;
    w->fd = open(w->r.file, (put ? O_RDONLY : O_WRONLY) | O_CLOEXEC | O_NOFOLLOW);
    bool good = w->fd >= 0 && fstat(w->fd, &st) == 0 && S_ISREG(st.st_mode) &&
                st.st_uid == geteuid() &&
                (!put || w->r.offset + w->r.bytes <= (uint64_t)st.st_size);
    if (!good)
        (void)snprintf(w->error, sizeof w->error, "%.150s: not a file of this user's, or too short",
                       w->r.file);
    w->at = w->r.offset;
    w->end = w->r.offset + w->r.bytes;
    return good;
}

static void options_set(struct worker *w, const char *url) {
    CURL *h = w->curl;
    bool transfer = w->r.file[0] != '\0';
    curl_easy_reset(h);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    net_curl_secure(h, &w->id);
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "beringia-courier");
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, w->error);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, w);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, w);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, transfer ? w->blob : w->json);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)(w->r.timeout_ms / 3 + 1));
    if (transfer) {
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)(w->r.timeout_ms / 1000 + 1));
    } else {
        curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)w->r.timeout_ms + 1);
    }
    if (w->r.method == SPOOL_POST) {
        curl_easy_setopt(h, CURLOPT_POST, 1L);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, w->r.body);
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)w->r.body_bytes);
    } else if (w->r.method == SPOOL_PUT) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(h, CURLOPT_READDATA, w);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)w->r.bytes);
    } else if (transfer && w->r.offset > 0) {
        curl_easy_setopt(h, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)w->r.offset);
    }
}

static bool header(struct curl_slist **list, const char *line) {
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer != NULL) *list = longer;
    return longer != NULL;
}

/* The lists anew, with the token as it is now. */
static void headers_make(struct worker *w) {
    curl_slist_free_all(w->json);
    curl_slist_free_all(w->blob);
    CHECK(pthread_mutex_lock(&w->c->mutex) == 0);
    w->id = w->c->id;
    CHECK(pthread_mutex_unlock(&w->c->mutex) == 0);
    bool good = net_headers_begin(&w->id, &w->json) && net_headers_begin(&w->id, &w->blob) &&
                header(&w->json, "Content-Type: application/json") && header(&w->json, "Expect:") &&
                header(&w->blob, "Expect:") &&
                header(&w->blob, "Content-Type: application/octet-stream");
    CHECK(good); /* memory */
}

/* The hub does not know the token: has its file another one by now, or has another worker taken it? */
static bool token_renewed(struct worker *w) {
    CHECK(pthread_mutex_lock(&w->c->mutex) == 0);
    bool other = strcmp(w->id.token, w->c->id.token) != 0 || net_identity_renew(&w->c->id);
    CHECK(pthread_mutex_unlock(&w->c->mutex) == 0);
    if (other) headers_make(w);
    return other;
}

/* Fills *a; its body lies in w->body. */
static void ask_once(struct worker *w, struct spool_answer *a) {
    char url[1400];
    memset(a, 0, sizeof *a);
    buf_reset(&w->body);
    w->body.overflow = false;
    w->error[0] = '\0';
    w->moved = 0;
    w->told_at = os_now();
    if (file_open(w)) {
        (void)snprintf(url, sizeof url, "%s%s", w->c->hub, w->r.target);
        options_set(w, url);
        CURLcode rc = curl_easy_perform(w->curl);
        long http = 0;
        curl_easy_getinfo(w->curl, CURLINFO_RESPONSE_CODE, &http);
        bool ranged = w->r.method == SPOOL_GET && w->r.offset > 0 && http == 200;
        if (rc == CURLE_OK || ranged) a->http = (uint32_t)http; /* the site starts over by itself */
        if (rc != CURLE_OK && w->error[0] == '\0')
            (void)snprintf(w->error, sizeof w->error, "%s", curl_easy_strerror(rc));
        if (*net_tls_remedy(rc) != '\0')
            log_line(LOG_WARN, "courier", "tls", "text=\"%.200s%s\"", w->error, net_tls_remedy(rc));
    }
    if (w->fd >= 0) {
        if (w->r.method == SPOOL_GET)
            (void)fsync(w->fd); /* before the answer says that it is there */
        (void)close(w->fd);
    }
    if (a->http == 0) (void)snprintf(a->text, sizeof a->text, "%.200s", w->error);
    for (char *p = a->text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20) *p = ' ';
    if (a->http != 0 && !w->body.overflow) {
        a->body = w->body.data;
        a->body_bytes = w->body.bytes_count;
    }
}

static void ask(struct worker *w, struct spool_answer *a) {
    ask_once(w, a);
    if (a->http == 401 && token_renewed(w)) ask_once(w, a);
}

/* ---- Threads ---------------------------------------------------------------------------------------- */

static void serve(struct worker *w, const char *name) {
    char run[OS_PATH_MAX], to[OS_PATH_MAX], id[ID_HEX_BYTES];
    AUTO_BUF struct buf text = {.bytes_max = SPOOL_BYTES_MAX};
    AUTO_BUF struct buf out = {.bytes_max = SPOOL_BYTES_MAX};
    struct spool_answer a = {.http = 400};
    struct err e = {0};
    w->name = name;
    id_of(name, id);
    os_path(run, w->c->spool, "run/%s", name);
    os_path(to, w->c->spool, "ans/%s", id);
    if (os_read_file(run, SPOOL_BYTES_MAX, &text, &e) != BRG_OK) return; /* the next courier's */
    enum brg_status s = spool_request_decode(text.data, text.bytes_count, &w->r, &e);
    if (s == BRG_OK && w->r.form != SPOOL_FILES)
        s = err_set(&e, BRG_E_MESSAGE, "a request of a bucket (BRGSPOOL2) in a spool");
    if (s == BRG_OK) {
        ask(w, &a);
    } else {
        log_line(LOG_WARN, "courier", "refused", "file=%s text=\"%s\"", run, e.text);
        (void)snprintf(a.text, sizeof a.text, "%.200s", e.text);
    }
    if (atomic_load(&w->c->stop)) return; /* it stays in run/ */
    spool_answer_encode(&a, &out);
    put_whole(w->c->spool, to, id, out.data, out.bytes_count);
    (void)unlink(run);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct courier *c = w->c;
    char name[NAME_MAX_BYTES];
    for (;;) {
        CHECK(pthread_mutex_lock(&c->mutex) == 0);
        while (w->queue->count == 0 && !atomic_load(&c->stop))
            pthread_cond_wait(&w->queue->filled, &c->mutex);
        bool stop = atomic_load(&c->stop);
        if (!stop) {
            memcpy(name, w->queue->names[w->queue->first], sizeof name);
            w->queue->first = (w->queue->first + 1) % QUEUE_MAX;
            w->queue->count--;
        }
        CHECK(pthread_mutex_unlock(&c->mutex) == 0);
        if (stop) break;
        serve(w, name);
    }
    curl_easy_cleanup(w->curl);
    curl_slist_free_all(w->json);
    curl_slist_free_all(w->blob);
    buf_fini(&w->body);
    net_identity_fini(&w->id);
    mem_free(w);
    return NULL;
}

/* Claims by rename; false where the queue is full. */
static bool claim(struct courier *c, const char *name) {
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    struct queue *q = &c->queues[name[strlen(name) - 1] == 't'];
    os_path(from, c->spool, "req/%s", name);
    os_path(to, c->spool, "run/%s", name);
    CHECK(pthread_mutex_lock(&c->mutex) == 0);
    bool room = q->count < QUEUE_MAX;
    if (room && rename(from, to) == 0) {
        (void)snprintf(q->names[(q->first + q->count) % QUEUE_MAX], NAME_MAX_BYTES, "%.47s", name);
        q->count++;
        pthread_cond_signal(&q->filled);
    }
    CHECK(pthread_mutex_unlock(&c->mutex) == 0);
    return room;
}

static bool look(struct courier *c) {
    char path[OS_PATH_MAX];
    bool any = false;
    os_path(path, c->spool, "req");
    DIR *d = opendir(path);
    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;)
        if (name_fine(x->d_name)) any = claim(c, x->d_name) || any;
    if (d != NULL) (void)closedir(d);
    return any;
}

static void *dispatcher_main(void *arg) {
    struct courier *c = arg;
    int pause = LOOK_BUSY_MS;
    time_ns swept = os_now();
    while (!atomic_load(&c->stop)) {
        pause = look(c) ? LOOK_BUSY_MS : pause + pause / 4 + 1;
        if (pause > LOOK_IDLE_MS) pause = LOOK_IDLE_MS;
        struct timespec t = {.tv_nsec = (long)pause * NS_PER_MS};
        (void)nanosleep(&t, NULL);
        if (os_now() - swept < 600 * (time_ns)NS_PER_S) continue;
        swept = os_now();
        sweep(c, "ans");
        sweep(c, "tmp");
    }
    return NULL;
}

static struct worker *worker_make(struct courier *c, uint32_t index) {
    struct worker *w = mem_alloc(1, sizeof *w);
    w->c = c;
    w->queue = &c->queues[index % 2];
    w->curl = curl_easy_init();
    buf_init(&w->body, WIRE_BODY_MAX);
    CHECK(w->curl != NULL); /* memory */
    headers_make(w);
    return w;
}

enum brg_status courier_start(const struct courier_options *o, struct courier **out,
                              struct err *e) {
    char path[OS_PATH_MAX];
    pthread_attr_t attr;
    if (strlen(o->hub) >= 1000 || strncmp(o->hub, "http", 4) != 0)
        return err_set(e, BRG_E_CONFIG, "the courier's hub: want http://HOST:PORT or https://...");
    struct net_identity id;
    TRY(net_identity_open(o->hub, o->token_file, o->ca_file, &id, e));
    TRY(spool_open(o->spool, e));
    struct courier *c = mem_alloc(1, sizeof *c);
    (void)snprintf(c->spool, sizeof c->spool, "%s", o->spool);
    (void)snprintf(c->hub, sizeof c->hub, "%.*s",
                   (int)(strlen(o->hub) - (o->hub[strlen(o->hub) - 1] == '/')), o->hub);
    c->id = id;
    net_identity_fini(&id);
    c->lock = -1;
    enum brg_status s = os_lock(os_path(path, c->spool, "courier.lock"), &c->lock, e);
    if (s != BRG_OK) {
        net_identity_fini(&c->id);
        mem_free(c);
        return s;
    }
    back_to_req(c);
    sweep(c, "ans");
    sweep(c, "tmp");
    CHECK(pthread_mutex_init(&c->mutex, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_cond_init(&c->queues[i].filled, NULL) == 0);
    CHECK(pthread_attr_init(&attr) == 0);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct worker *w = worker_make(c, i);
        CHECK(pthread_create(&c->workers[c->workers_count++], &attr, worker_main, w) == 0);
    }
    CHECK(pthread_create(&c->dispatcher, &attr, dispatcher_main, c) == 0);
    pthread_attr_destroy(&attr);
    log_line(LOG_INFO, "courier", "started", "spool=%s hub=%s", c->spool, c->hub);
    *out = c;
    return BRG_OK;
}

void courier_stop(struct courier *c) {
    if (c == NULL) return;
    atomic_store(&c->stop, true);
    CHECK(pthread_mutex_lock(&c->mutex) == 0);
    for (int i = 0; i < 2; i++) pthread_cond_broadcast(&c->queues[i].filled);
    CHECK(pthread_mutex_unlock(&c->mutex) == 0);
    CHECK(pthread_join(c->dispatcher, NULL) == 0);
    for (uint32_t i = 0; i < c->workers_count; i++) CHECK(pthread_join(c->workers[i], NULL) == 0);
    for (int i = 0; i < 2; i++) pthread_cond_destroy(&c->queues[i].filled);
    pthread_mutex_destroy(&c->mutex);
    (void)close(c->lock);
    net_identity_fini(&c->id);
    mem_free(c);
}
