/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox_os.c - see mailbox_os.h.
 *
 *   list --new names--> queue --> worker: GET it, DELETE it, ask, PUT mail/ans/ID
 *   not reached, or refused: down; looks after 1 s, 2 s, ... 30 s --works--> up
 *
 * A name that was taken is remembered for a while: a list may lag behind what was removed. What is no request is removed
 * unread, or once it was read; what nobody waits for any more too. */
#include "hub/mailbox_os.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/gate_os.h"
#include "hub/mailbox_ask_os.h"
#include "hub/objects_os.h"
#include "wire/mail.h"

enum {
    WORKERS = 12,
    QUEUE_MAX = 256,
    RECENT_MAX = 2048,
    JUNK_MAX = 32, /* a look removes so many; the next one the rest */
    AGAIN_MAX_S = 30,
    SWEEP_S = 600,
    PUT_TRIES = 5,
};

struct letter {
    struct id128 id;
    int64_t put_s; /* by the store's clock */
};

struct mailbox {
    struct hub_server *s;
    struct object_store *store;
    struct MHD_Daemon *door;
    double price_writes, price_reads;
    uint32_t idle_ms;
    char address[MAIL_ADDRESS_MAX + 8];
    pthread_t poller, workers[WORKERS];
    uint32_t workers_count;
    bool polls;
    atomic_bool stopping;
    time_ns swept;        /* of the poller alone */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t filled, hurry;
    struct letter queue[QUEUE_MAX];
    uint32_t first, count;
    struct id128 recent[RECENT_MAX]; /* queued, in work, done; zero: free */
    uint32_t recent_next;
    bool answered; /* since the last look: the site may go on at once */
    bool down;
    char cause[300];
    uint32_t failures;
    uint64_t requests, answers, refused, stale;
};

static void lock(struct mailbox *m) {
    CHECK(pthread_mutex_lock(&m->lock) == 0);
}

static void unlock(struct mailbox *m) {
    CHECK(pthread_mutex_unlock(&m->lock) == 0);
}

const char *mailbox_address(const struct mailbox *m) {
    return m->address;
}

void mailbox_look_at(struct mailbox *m, struct mailbox_view *out) {
    memset(out, 0, sizeof *out);
    if (m == NULL) return;
    struct object_counts c = object_store_counts(m->store);
    lock(m);
    out->on = true;
    out->down = m->down;
    (void)snprintf(out->cause, sizeof out->cause, "%s", m->cause);
    (void)snprintf(out->address, sizeof out->address, "%.299s", m->address);
    out->requests = m->requests;
    out->answers = m->answers;
    out->refused = m->refused;
    out->stale = m->stale;
    unlock(m);
    out->lists = c.lists;
    out->writes = c.writes;
    out->reads = c.reads;
    out->deletes = c.deletes;
    out->failures = c.failures;
    out->bytes_in = c.bytes_down;
    out->bytes_out = c.bytes_up;
    out->cost = object_cost(&c, m->price_writes, m->price_reads);
}

/* ---- Names ------------------------------------------------------------------------------------------------ */
/* Under the lock. */
static bool known(const struct mailbox *m, const struct id128 *id) {
    for (size_t i = 0; i < RECENT_MAX; i++)
        if (id_equal(&m->recent[i], id)) return true;
    return false;
}

static void remember(struct mailbox *m, const struct id128 *id) {
    m->recent[m->recent_next] = *id;
    m->recent_next = (m->recent_next + 1) % RECENT_MAX;
}

static void forget(struct mailbox *m, const struct id128 *id) {
    lock(m);
    for (size_t i = 0; i < RECENT_MAX; i++)
        if (id_equal(&m->recent[i], id)) memset(&m->recent[i], 0, sizeof m->recent[i]);
    unlock(m);
}

static void request_key(const struct id128 *id, char key[MAIL_KEY_MAX]) {
    char hex[ID_HEX_BYTES];
    id_hex(id, hex);
    mail_key(MAIL_REQUESTS, hex, key);
}

/* ---- Looking ------------------------------------------------------------------------------------------------ */
struct look {
    struct mailbox *m;
    bool any;
    struct object_entry junk[JUNK_MAX];
    uint32_t junk_count;
};

/* No request of anybody's: by name or length. Remembered by the hash of its name. */
static void take_junk(struct look *l, const struct object_entry *x) {
    struct hash h = hash_of(x->key, strlen(x->key));
    struct id128 id;
    memcpy(&id, h.v, sizeof id);
    lock(l->m);
    bool fresh = !known(l->m, &id) && l->junk_count < JUNK_MAX;
    if (fresh) remember(l->m, &id);
    l->m->refused += fresh;
    unlock(l->m);
    if (fresh) l->junk[l->junk_count++] = *x;
}

static void on_request(void *user, const struct object_entry *x) {
    struct look *l = user;
    struct mailbox *m = l->m;
    char hex[ID_HEX_BYTES];
    struct letter letter = {.put_s = x->unix_s};
    if (!mail_key_id(x->key, MAIL_REQUESTS, hex) || x->bytes > SPOOL_BYTES_MAX ||
        !hex_decode(hex, letter.id.v, sizeof letter.id.v)) {
        take_junk(l, x);
        return;
    }
    lock(m);
    if (m->count < QUEUE_MAX && !known(m, &letter.id)) {
        m->queue[(m->first + m->count++) % QUEUE_MAX] = letter;
        remember(m, &letter.id);
        CHECK(pthread_cond_signal(&m->filled) == 0);
        l->any = true;
    }
    unlock(m);
}

static void remove_junk(struct look *l) {
    char name[80];
    for (uint32_t i = 0; i < l->junk_count; i++) {
        struct err e = {0};
        (void)snprintf(name, sizeof name, "%.79s", l->junk[i].key);
        for (char *p = name; *p != '\0'; p++)
            if ((unsigned char)*p <= 0x20 || *p == '"' || (unsigned char)*p >= 0x7f) *p = '_';
        enum brg_status s = object_delete(l->m->store, l->junk[i].key, &e);
        log_line(LOG_WARN, "hub", "mailbox_refused", "key=%s bytes=%" PRIu64 " removed=%d", name,
                 l->junk[i].bytes, s == BRG_OK);
    }
}

/* ---- What nobody fetched -------------------------------------------------------------------------------------- */
static void on_answer(void *user, const struct object_entry *x) {
    struct look *l = user;
    if (l->junk_count < JUNK_MAX &&
        mail_stale(x->unix_s, object_store_date(l->m->store), MAIL_OLD_S * 1000))
        l->junk[l->junk_count++] = *x;
}

static enum brg_status sweep(struct look *l, struct err *e) {
    l->junk_count = 0;
    TRY(object_list(l->m->store, MAIL_ANSWERS, on_answer, l, e));
    for (uint32_t i = 0; i < l->junk_count; i++) TRY(object_delete(l->m->store, l->junk[i].key, e));
    if (l->junk_count < JUNK_MAX) l->m->swept = os_now();
    return BRG_OK;
}

/* ---- The poller ------------------------------------------------------------------------------------------------ */
static void note(struct mailbox *m, enum brg_status s, const struct err *e) {
    if (atomic_load(&m->stopping)) return;
    lock(m);
    bool was = m->down;
    m->down = s != BRG_OK;
    m->failures = m->down ? m->failures + 1 : 0;
    (void)snprintf(m->cause, sizeof m->cause, "%.*s", (int)sizeof m->cause - 1,
                   m->down ? e->text : "");
    unlock(m);
    if (m->down && !was)
        log_line(LOG_ERROR, "hub", "mailbox_down",
                 "cause=\"%s\" remedy=\"sites that come through the bucket wait\"", e->text);
    if (!m->down && was) log_line(LOG_INFO, "hub", "mailbox_up", "address=%s", m->address);
}

/* Gives what the next pause is. */
static uint32_t look(struct mailbox *m, struct look *l, uint32_t pause_ms) {
    struct err e = {0};
    l->m = m;
    l->any = false;
    l->junk_count = 0;
    enum brg_status s = object_list(m->store, MAIL_REQUESTS, on_request, l, &e);
    if (s == BRG_E_MISSING)
        s = err_set(&e, BRG_E_CONFIG, "%s: there is no such bucket", m->address);
    if (s == BRG_OK) remove_junk(l);
    bool due = m->swept == 0 || os_now() - m->swept > SWEEP_S * (time_ns)NS_PER_S;
    if (s == BRG_OK && due) s = sweep(l, &e);
    note(m, s, &e);
    lock(m);
    uint32_t shift = m->failures < 6 ? m->failures : 6;
    bool hurry = l->any || m->answered;
    m->answered = false;
    unlock(m);
    if (s == BRG_OK) return hurry ? MAIL_PAUSE_FIRST_MS : mail_pause_next(pause_ms, m->idle_ms);
    uint32_t again = 500u << shift;
    return again < AGAIN_MAX_S * 1000 ? again : AGAIN_MAX_S * 1000;
}

static void *poller_main(void *user) {
    struct mailbox *m = user;
    struct look *l = mem_alloc(1, sizeof *l);
    uint32_t pause = MAIL_PAUSE_FIRST_MS;
    while (!atomic_load(&m->stopping)) {
        uint64_t random;
        pause = look(m, l, pause);
        os_random(&random, sizeof random);
        time_ns now = os_now();
        time_ns until = now + (time_ns)mail_pause_spread(pause, random) * NS_PER_MS;
        time_ns soon = now + MAIL_PAUSE_FIRST_MS * (time_ns)NS_PER_MS;
        lock(m);
        while (!atomic_load(&m->stopping) && os_now() < until) {
            /* who was answered asks on soon; not while the store is down */
            if (m->answered && !m->down && until > soon) until = soon;
            if (os_now() >= until) break;
            server_cond_wait(&m->hurry, &m->lock, until);
        }
        unlock(m);
    }
    mem_free(l);
    return NULL;
}

/* ---- Workers ----------------------------------------------------------------------------------------------------- */
static void refuse(struct mailbox *m, const char *hex, const struct err *e) {
    lock(m);
    m->refused++;
    unlock(m);
    log_line(LOG_WARN, "hub", "mailbox_refused", "id=%s text=\"%s\"", hex, e->text);
}

/* False: not here any more, or not now. */
static bool fetch(struct mailbox *m, const struct letter *x, struct buf *text) {
    char key[MAIL_KEY_MAX];
    struct err e = {0};
    request_key(&x->id, key);
    enum brg_status s = object_get_bytes(m->store, key, SPOOL_BYTES_MAX, text, &e);
    if (s == BRG_E_MISSING) return false; /* its site took it away */
    if (s == BRG_OK) s = object_delete(m->store, key, &e);
    if (s == BRG_OK) return true;
    forget(m, &x->id); /* the next look finds it again */
    return false;
}

static void put_answer(struct mailbox *m, const char *hex, const struct spool_answer *a,
                       time_ns until) {
    char key[MAIL_KEY_MAX];
    AUTO_BUF struct buf out = {.bytes_max = SPOOL_BYTES_MAX};
    struct err e = {0};
    enum brg_status s = BRG_E_NET;
    mail_key(MAIL_ANSWERS, hex, key);
    spool_answer_encode(a, &out);
    for (int i = 0; s == BRG_E_NET && i < PUT_TRIES && os_now() < until; i++) {
        if (i > 0) mailbox_nap(&m->stopping, 200u << i);
        if (atomic_load(&m->stopping)) return;
        s = object_put_bytes(m->store, key, out.data, out.bytes_count, &e);
    }
    lock(m);
    m->answers += s == BRG_OK;
    m->answered = true;
    CHECK(pthread_cond_signal(&m->hurry) == 0);
    unlock(m);
    if (s != BRG_OK)
        log_line(LOG_WARN, "hub", "mailbox_unanswered", "id=%s cause=\"%s\"", hex, e.text);
}

static void serve(struct mailbox *m, struct mailbox_line *line, const struct letter *x) {
    AUTO_BUF struct buf text = {.bytes_max = SPOOL_BYTES_MAX};
    struct spool_request *r = &line->request;
    struct spool_answer a = {.http = 400};
    struct err e = {0};
    char hex[ID_HEX_BYTES];
    id_hex(&x->id, hex);
    if (!fetch(m, x, &text)) return;
    enum brg_status s = spool_request_decode(text.data, text.bytes_count, r, &e);
    if (s == BRG_OK && r->form != SPOOL_MAIL)
        s = err_set(&e, BRG_E_MESSAGE, "a request of a spool (BRGSPOOL1) in a bucket");
    bool stale = s == BRG_OK && mail_stale(x->put_s, object_store_date(m->store), r->timeout_ms);
    lock(m);
    m->requests++;
    m->stale += stale;
    unlock(m);
    time_ns until = os_now() + (time_ns)r->timeout_ms * NS_PER_MS;
    if (s == BRG_OK && stale) {
        log_line(LOG_INFO, "hub", "mailbox_stale", "id=%s target=%s", hex, r->target);
    } else if (s == BRG_OK) {
        FAULT("hub.mailbox_taken");
        mailbox_ask(line, &a);
        FAULT("hub.mailbox_asked");
        if (!atomic_load(&m->stopping)) put_answer(m, hex, &a, until);
    } else {
        refuse(m, hex, &e); /* whoever wrote it does not wait for an answer of ours */
    }
    explicit_bzero(r->token, sizeof r->token);
    if (text.data != NULL) explicit_bzero(text.data, text.bytes_count);
}

static void *worker_main(void *user) {
    struct mailbox *m = user;
    struct mailbox_line *line = mailbox_line_open(m->door, &m->stopping);
    for (;;) {
        struct letter x;
        lock(m);
        while (m->count == 0 && !atomic_load(&m->stopping))
            CHECK(pthread_cond_wait(&m->filled, &m->lock) == 0);
        bool stop = atomic_load(&m->stopping);
        if (!stop) {
            x = m->queue[m->first];
            m->first = (m->first + 1) % QUEUE_MAX;
            m->count--;
        }
        unlock(m);
        if (stop) break;
        serve(m, line, &x);
    }
    mailbox_line_close(line);
    return NULL;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */
static void threads_start(struct mailbox *m) {
    m->polls = pthread_create(&m->poller, NULL, poller_main, m) == 0;
    CHECK(m->polls);
    for (uint32_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&m->workers[m->workers_count++], NULL, worker_main, m) == 0);
}

enum brg_status mailbox_open(struct hub_server *s, struct err *e) {
    const struct run_settings *r = &s->dir.settings;
    struct object_place p;
    struct object_store *store = NULL;
    pthread_condattr_t monotonic;
    if (!r->blobs_mailbox) return BRG_OK;
    if (!gate_closed_to_strangers(s->gate))
        return err_set(e, BRG_E_CONFIG,
                       "blobs.mailbox: whoever reaches the bucket reaches the hub by it, and no "
                       "token is wanted yet; first `beringia token RUN create ...`");
    TRY(objects_store_open(s, &p, &store, e));
    struct mailbox *m = mem_alloc(1, sizeof *m);
    object_store_patience(store, MAIL_SILENCE_S);
    m->s = s;
    m->store = store;
    m->price_writes = r->blobs_price_writes;
    m->price_reads = r->blobs_price_reads;
    m->idle_ms = (uint32_t)(r->blobs_mailbox_idle_ns / NS_PER_MS);
    (void)snprintf(m->address, sizeof m->address, "bucket:s3://%s/%s", p.bucket, p.prefix);
    CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&monotonic) == 0);
    CHECK(pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&m->filled, &monotonic) == 0);
    CHECK(pthread_cond_init(&m->hurry, &monotonic) == 0);
    (void)pthread_condattr_destroy(&monotonic);
    m->door = server_door(s, WORKERS + 4);
    CHECK(m->door != NULL); /* no address that could be taken */
    threads_start(m);
    log_line(LOG_INFO, "hub", "mailbox_started", "address=%s endpoint=%s", m->address, p.endpoint);
    CHECK(pthread_mutex_lock(&s->lock) == 0); /* others look at it by now */
    s->mailbox = m;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return BRG_OK;
}

void mailbox_stop(struct mailbox *m) {
    if (m == NULL) return;
    lock(m);
    atomic_store(&m->stopping, true);
    CHECK(pthread_cond_broadcast(&m->filled) == 0);
    CHECK(pthread_cond_broadcast(&m->hurry) == 0);
    unlock(m);
    object_store_stop(m->store);
    if (m->polls) CHECK(pthread_join(m->poller, NULL) == 0);
    m->polls = false;
    for (uint32_t i = 0; i < m->workers_count; i++) CHECK(pthread_join(m->workers[i], NULL) == 0);
    m->workers_count = 0;
}

void mailbox_shut(struct mailbox *m) {
    if (m == NULL || m->door == NULL) return;
    MHD_stop_daemon(m->door);
    m->door = NULL;
}

void mailbox_close(struct mailbox *m) {
    if (m == NULL) return;
    object_store_close(m->store);
    (void)pthread_cond_destroy(&m->filled);
    (void)pthread_cond_destroy(&m->hurry);
    (void)pthread_mutex_destroy(&m->lock);
    explicit_bzero(m, sizeof *m);
    mem_free(m);
}
