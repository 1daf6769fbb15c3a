/* SPDX-License-Identifier: Apache-2.0 */
/* gate_os.c - see gate_os.h.
 *
 * RUN/tokens.json is looked at (one stat) for every request, and read again when it is another file than
 * before: `beringia token` replaces it by a rename. A file that cannot be read, or is gone, lets nobody in. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/gate_os.h"
#include "hub/limits.h"
#include "hub/watch.h"

static const char LOCAL_ID[] = "00000000"; /* of RUN/hub.token */
enum {
    LOOK_MS = 250,       /* between two looks at overdue connections */
    IDLE_S = 150,        /* of a friend's connection between two requests */
    STRANGER_BURST = 32, /* failures of one address at once, */
    REFUSED_LOG_BURST =
        20 /* lines about refusals at once; then one a second, as failures of an address */
};

struct part { /* an upload under way, and the name it belongs to */
    struct id128 did;
    char name[WIRE_NAME_MAX];
    uint64_t turn; /* 0: free */
};

struct gate {
    char run_dir[OS_PATH_MAX];
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t ended;
    pthread_t reaper;
    bool reaping, ending;
    uint64_t salt; /* so that nobody can choose addresses that share a bucket */
    /* tokens */
    bool wanted, broken;
    struct stat seen;
    struct tokens *tokens;
    struct hash local; /* of RUN/hub.token */
    struct limits of_token, of_stranger, of_log;
    uint64_t unlogged;
    struct part *parts;
    uint64_t turn;
    /* connections */
    struct watch_list list;
    time_ns patience;
    uint32_t strangers_max;
    struct gate_figures figures;
};

enum { PARTS_MAX = GATE_PARTS_A_NAME * TOKENS_MAX };

/* ---- Tokens ---------------------------------------------------------------------------------------- */
static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mode == b->st_mode && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static enum brg_status tokens_read(struct gate *g, const char *path, struct err *e) {
    AUTO_BUF struct buf text;
    buf_init(&text, TOKENS_FILE_MAX);
    TRY(os_read_file(path, TOKENS_FILE_MAX, &text, e));
    if (tokens_decode(text.data, text.bytes_count, g->tokens, e) == BRG_OK) return BRG_OK;
    return err_prefix(e, "%s", path);
}

/* The thread of the connection sees its end, as if the peer had gone. Under the lock: the descriptor is
 * closed by nobody before gate_watch_end. */
static void cut(struct gate *g, struct watch *w) {
    w->cut = true;
    g->figures.cut++;
    (void)shutdown(w->fd, SHUT_RDWR);
}

/* Other tokens than before: what was begun with one that is revoked, or with none, ends. */
static void cut_the_revoked(struct gate *g) {
    for (struct watch *w = g->list.oldest; w != NULL; w = w->newer) {
        if (!w->admitted || w->cut || strcmp(w->token, LOCAL_ID) == 0) continue;
        const struct token *t = tokens_by_id(g->tokens, w->token);
        if (t == NULL || t->revoked != 0) cut(g, w);
    }
}

/* Under the lock. False: nobody is to be let in. */
static bool tokens_fresh(struct gate *g, struct err *e) {
    char path[OS_PATH_MAX];
    struct stat now;
    os_path(path, g->run_dir, "tokens.json");
    bool there = stat(path, &now) == 0;
    if (!there && errno == ENOENT && !g->wanted) return true; /* nobody ever wanted tokens here */
    if (there && g->wanted && same_file(&now, &g->seen)) return !g->broken;
    bool was = g->broken;
    g->wanted = true;
    g->broken = true;
    memset(&g->seen, 0, sizeof g->seen);
    enum brg_status s = there ? BRG_OK : os_errno(e, errno, "looking at", path);
    if (s == BRG_OK && (now.st_mode & 022) != 0)
        s = err_set(e, BRG_E_CONFIG, "%s: others may write it; chmod 600 it", path);
    if (s == BRG_OK) s = tokens_read(g, path, e);
    if (there) g->seen = now;
    g->broken = s != BRG_OK;
    if (s == BRG_OK) {
        log_line(LOG_INFO, "hub", "tokens", "count=%u", g->tokens->tokens_count);
        cut_the_revoked(g);
    } else if (!was)
        log_line(LOG_ERROR, "hub", "tokens_unreadable",
                 "cause=\"%s\" remedy=\"put it back; nobody is let in\"", e->text);
    return !g->broken;
}

/* RUN/hub.token: whoever may read the run directory's secrets is its operator. */
static enum brg_status local_make(struct gate *g, struct err *e) {
    uint8_t random[TOKEN_RANDOM_BYTES];
    char path[OS_PATH_MAX], text[TOKEN_TEXT_BYTES + 1], id[TOKEN_ID_BYTES];
    os_random(random, sizeof random);
    memset(random, 0, 4);
    token_make(random, text, id, &g->local);
    text[TOKEN_TEXT_BYTES - 1] = '\n';
    enum brg_status s =
        os_write_secret_atomic(os_path(path, g->run_dir, "hub.token"), text, TOKEN_TEXT_BYTES, e);
    explicit_bzero(text, sizeof text);
    explicit_bzero(random, sizeof random);
    return s;
}

/* ---- Who asks -------------------------------------------------------------------------------------- */
static bool loopback(const struct sockaddr *a) {
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (a->sa_family == AF_INET) {
        memcpy(&in, a, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family != AF_INET6) return false;
    memcpy(&in6, a, sizeof in6);
    if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) return in6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) != 0;
}

/* IPv6: whoever has one address has its /64. */
static uint64_t address_number(const struct gate *g, const struct sockaddr *a) {
    uint64_t v = 0;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (a->sa_family == AF_INET) {
        memcpy(&in, a, sizeof in);
        v = ntohl(in.sin_addr.s_addr);
    } else if (a->sa_family == AF_INET6) {
        memcpy(&in6, a, sizeof in6);
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) != 0;
        for (int i = mapped ? 12 : 0; i < (mapped ? 16 : 8); i++)
            v = v << 8 | in6.sin6_addr.s6_addr[i];
    }
    return mix64(v ^ g->salt);
}

static void from_text(const struct sockaddr *a, char out[GATE_FROM_MAX]) {
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    out[0] = '\0';
    if (a->sa_family == AF_INET) {
        memcpy(&in, a, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, out, GATE_FROM_MAX);
    } else if (a->sa_family == AF_INET6) {
        memcpy(&in6, a, sizeof in6);
        (void)inet_ntop(AF_INET6, &in6.sin6_addr, out, GATE_FROM_MAX);
    }
}

/* Under the lock. */
static enum token_verdict whose(struct gate *g, const char *text, struct caller *out) {
    const struct token *t;
    struct hash h = hash_of(text, strlen(text));
    if (hash_equal(&h, &g->local)) {
        out->scope = TOKEN_OPERATOR;
        (void)snprintf(out->id, sizeof out->id, LOCAL_ID);
        (void)snprintf(out->name, sizeof out->name, "local");
        return TOKEN_GOOD;
    }
    enum token_verdict v = tokens_find(g->tokens, text, (uint64_t)(os_wall() / NS_PER_S), &t);
    if (t == NULL) return v;
    out->scope = t->scope;
    memcpy(out->id, t->id, sizeof out->id);
    memcpy(out->name, t->name, sizeof out->name);
    return v;
}

/* Under the lock: one line about a refusal, where there were not too many. */
static void log_refusal(struct gate *g, const struct caller *c, const char *why) {
    if (limits_take(&g->of_log, 1, os_now()) != 0) {
        g->unlogged++;
        return;
    }
    log_line(LOG_WARN, "hub", "refused", "from=%s token=%s name=%s why=\"%s\" unlogged=%llu",
             c->from, c->id[0] != '\0' ? c->id : "-", c->name[0] != '\0' ? c->name : "-", why,
             (unsigned long long)g->unlogged);
    g->unlogged = 0;
}

static enum gate_answer stranger(struct gate *g, uint64_t address, enum token_verdict v,
                                 const struct caller *c, time_ns *out_wait) {
    static const char *const why[] = {"", "no token that is known", "a revoked token",
                                      "an expired token"};
    g->figures.refused++;
    *out_wait = limits_take(&g->of_stranger, address, os_now());
    if (*out_wait == 0) log_refusal(g, c, why[v]);
    return *out_wait == 0 ? GATE_STRANGER : GATE_RATE;
}

static enum gate_answer admit_locked(struct gate *g, const struct gate_question *q,
                                     struct caller *c, time_ns *out_wait) {
    struct err e = {0};
    if (!tokens_fresh(g, &e)) return GATE_BROKEN;
    if (!g->wanted || (q->scopes & SCOPES_ANYBODY) != 0) return GATE_IN;
    char text[TOKEN_HEADER_MAX];
    bool shown = token_of_header(q->authorization, text);
    enum token_verdict v = shown ? whose(g, text, c) : TOKEN_UNKNOWN;
    explicit_bzero(text, sizeof text);
    if (v != TOKEN_GOOD) return stranger(g, address_number(g, q->from), v, c, out_wait);
    if ((q->scopes & 1u << c->scope) == 0) {
        g->figures.refused++;
        log_refusal(g, c, "a token of another scope");
        return GATE_SCOPE;
    }
    uint64_t key;
    memcpy(&key, c->id, sizeof key);
    *out_wait = q->counted ? limits_take(&g->of_token, key, os_now()) : 0;
    if (*out_wait != 0) g->figures.limited++;
    return *out_wait == 0 ? GATE_IN : GATE_RATE;
}

enum gate_answer gate_admit(struct gate *g, const struct gate_question *q, struct caller *out,
                            time_ns *out_wait) {
    memset(out, 0, sizeof *out);
    *out_wait = 0;
    out->loopback = loopback(q->from);
    from_text(q->from, out->from);
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    enum gate_answer a = admit_locked(g, q, out, out_wait);
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return a;
}

bool gate_closed_to_strangers(struct gate *g) {
    struct err e = {0};
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    (void)tokens_fresh(g, &e);
    bool wanted = g->wanted;
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return wanted;
}

bool gate_speaks_for(const struct caller *c, const char *name) {
    return c->scope == 0 || strcmp(c->name, name) == 0;
}

bool gate_part_take(struct gate *g, const struct caller *c, const struct id128 *did, bool *out_drop,
                    struct id128 *out_oldest) {
    struct part *free = NULL, *oldest = NULL, *mine = NULL;
    uint32_t have = 0;
    *out_drop = false;
    if (c->scope == 0) return true;
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    for (struct part *p = g->parts; p < g->parts + PARTS_MAX && mine == NULL; p++) {
        if (p->turn == 0) {
            if (free == NULL) free = p;
            continue;
        }
        if (id_equal(&p->did, did)) mine = p;
        if (strcmp(p->name, c->name) != 0) continue;
        have++;
        if (oldest == NULL || p->turn < oldest->turn) oldest = p;
    }
    bool good = mine == NULL || strcmp(mine->name, c->name) == 0;
    if (mine == NULL) {
        *out_drop = have >= GATE_PARTS_A_NAME;
        mine = *out_drop ? oldest : free;
        CHECK(mine != NULL); /* there is room for all names */
        if (*out_drop) *out_oldest = mine->did;
        mine->did = *did;
        memcpy(mine->name, c->name, sizeof mine->name);
    }
    if (good) mine->turn = ++g->turn;
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return good;
}

enum gate_part gate_part_drop(struct gate *g, const struct caller *c, const struct id128 *did) {
    enum gate_part whose = GATE_PART_NOBODYS;
    if (c->scope == 0) return GATE_PART_MINE;
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    for (struct part *p = g->parts; p < g->parts + PARTS_MAX; p++) {
        if (p->turn == 0 || !id_equal(&p->did, did)) continue;
        whose = strcmp(p->name, c->name) == 0 ? GATE_PART_MINE : GATE_PART_OTHERS;
        if (whose == GATE_PART_MINE) memset(p, 0, sizeof *p);
        break;
    }
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return whose;
}

/* ---- Connections ------------------------------------------------------------------------------------- */
struct watch *gate_watch_begin(struct gate *g, int fd, const struct sockaddr *from) {
    struct watch *w = mem_alloc(1, sizeof *w);
    w->fd = fd;
    w->since = os_now();
    struct err e = {0};
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    (void)tokens_fresh(g, &e); /* is it a stranger, by now? */
    w->address = address_number(g, from);
    w->admitted = !g->wanted;
    watch_add(&g->list, w);
    struct watch *over = watch_surplus(&g->list, w->address, g->strangers_max);
    if (over != NULL) cut(g, over);
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return w;
}

void gate_watch_end(struct gate *g, struct watch *w) {
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    watch_remove(&g->list, w);
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    mem_free(w);
}

void gate_watch_move(struct gate *g, struct watch *w, enum watch_phase to,
                     const struct caller *admitted) {
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    w->phase = to;
    w->since = os_now();
    if (to == WATCH_BODY) w->received = 0;
    if (admitted != NULL) {
        watch_admit(&g->list, w);
        (void)snprintf(w->token, sizeof w->token, "%s", admitted->id);
    }
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
}

void gate_watch_bytes(struct gate *g, struct watch *w, size_t n) {
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    w->received += n;
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
}

struct gate_figures gate_figures(struct gate *g) {
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    struct gate_figures f = g->figures;
    f.connections = g->list.count;
    f.strangers = g->list.strangers;
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return f;
}

static void *reaper_main(void *arg) {
    struct gate *g = arg;
    CHECK(pthread_mutex_lock(&g->lock) == 0);
    while (!g->ending) {
        time_ns now = os_now(), wake = now + (time_ns)LOOK_MS * NS_PER_MS;
        struct err e = {0};
        (void)tokens_fresh(
            g, &e); /* nobody may ask for long: a revoked one's transfer ends all the same */
        for (struct watch *w = g->list.oldest; g->wanted && w != NULL; w = w->newer)
            if (watch_deadline(w, g->patience, IDLE_S * (time_ns)NS_PER_S) <= now) cut(g, w);
        struct timespec t = {.tv_sec = wake / NS_PER_S, .tv_nsec = wake % NS_PER_S};
        (void)pthread_cond_timedwait(&g->ended, &g->lock, &t);
    }
    CHECK(pthread_mutex_unlock(&g->lock) == 0);
    return NULL;
}

/* ---- Opening and closing ------------------------------------------------------------------------------ */
enum brg_status gate_open(const struct gate_options *o, struct gate **out, struct err *e) {
    struct gate *g = mem_alloc(1, sizeof *g);
    pthread_condattr_t a;
    (void)snprintf(g->run_dir, sizeof g->run_dir, "%s", o->run_dir);
    CHECK(pthread_mutex_init(&g->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&a) == 0);
    CHECK(pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&g->ended, &a) == 0);
    pthread_condattr_destroy(&a);
    os_random(&g->salt, sizeof g->salt);
    g->tokens = mem_alloc(1, sizeof *g->tokens);
    g->parts = mem_alloc(PARTS_MAX, sizeof *g->parts);
    g->patience = o->patience_ns;
    g->strangers_max = o->connections_max / 4;
    limits_init(&g->of_token, o->rate, 2 * o->rate);
    limits_init(&g->of_stranger, 1, STRANGER_BURST);
    limits_init(&g->of_log, 1, REFUSED_LOG_BURST);
    enum brg_status s = tokens_fresh(g, e) ? BRG_OK : e->status;
    if (s == BRG_OK) {
        struct err why = {0};
        if (local_make(g, &why) != BRG_OK) /* a full disk: the hub serves readers all the same */
            log_line(LOG_WARN, "hub", "no_local_token", "cause=\"%s\"", why.text);
        g->reaping = pthread_create(&g->reaper, NULL, reaper_main, g) == 0;
        CHECK(g->reaping);
        *out = g;
    } else {
        gate_close(g);
    }
    return s;
}

void gate_close(struct gate *g) {
    char path[OS_PATH_MAX];
    if (g == NULL) return;
    if (g->reaping) {
        CHECK(pthread_mutex_lock(&g->lock) == 0);
        g->ending = true;
        pthread_cond_signal(&g->ended);
        CHECK(pthread_mutex_unlock(&g->lock) == 0);
        pthread_join(g->reaper, NULL);
        (void)unlink(os_path(path, g->run_dir, "hub.token"));
    }
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    mem_free(g->tokens);
    mem_free(g->parts);
    mem_free(g);
}
