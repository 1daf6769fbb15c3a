/* SPDX-License-Identifier: Apache-2.0 */
/* listen_os.c - where the hub listens, and with what certificate.
 *
 *   loopback               HTTP, or HTTPS where there is a certificate; tokens where there are some
 *   any other address      refused without both: who reaches the port could drain the run or take the model
 *
 * A renewed certificate is taken up without a restart: a second daemon of libmicrohttpd takes over the listening
 * socket, with the new files, and the first one keeps what is connected until it is gone. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hub/http_os.h"
#include "hub/http_text.h"
#include "hub/tls_os.h"

enum {
    CONNECTION_MEMORY = 32 *
                        1024, /* headers and a piece of a body; bodies have a buffer of their own */
    CONNECTION_STACK = 256 * 1024,
    CONNECTION_STACK_TLS = 512 * 1024, /* a handshake's sums */
    CONNECTION_IDLE_S = 150,
    LISTEN_BACKLOG = 4096,
    EXPIRES_SOON_S = 14 * 86400,
    WARN_EVERY_S = 86400
};
static const char PRIORITIES[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SERVER_PRECEDENCE";

static void on_log(void *user, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *user, const char *fmt, va_list ap) {
    char text[240], quoted[300];
    (void)user;
    (void)vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "hub", "http", "text=%s", log_quote(text, quoted, sizeof quoted));
}

static size_t unescape(void *user, struct MHD_Connection *mhd, char *s) {
    (void)user, (void)mhd;
    return http_unescape(s);
}

/* ---- Listening --------------------------------------------------------------------------------------- */
/* "host:port", "[v6]:port" or ":port". */
static bool address_split(const char *listen, char host[256], char port[8]) {
    const char *colon = strrchr(listen, ':');
    if (colon == NULL || strlen(colon + 1) == 0 || strlen(colon + 1) >= 8) return false;
    uint64_t number;
    if (!parse_u64(colon + 1, &number) || number > 65535) return false;
    size_t n = (size_t)(colon - listen);
    if (n >= 2 && listen[0] == '[' && listen[n - 1] == ']') {
        listen++;
        n -= 2;
    }
    if (n >= 256) return false;
    memcpy(host, listen, n);
    host[n] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

static bool loopback(const struct sockaddr *a) {
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (a->sa_family == AF_INET) {
        memcpy(&in, a, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family != AF_INET6) return false;
    memcpy(&in6, a, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) != 0;
}

/* Before the socket is there: nobody may get a connection that is not to be. */
static enum brg_status may_listen(const struct addrinfo *list, const char *listen_at, bool tls,
                                  bool tokens, struct err *e) {
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        if (loopback(a->ai_addr) || (tls && tokens)) continue;
        return err_set(e, BRG_E_CONFIG,
                       "listen: %s can be reached from other machines, and %s; first `beringia "
                       "%s`, or listen on 127.0.0.1; docs/security.md",
                       listen_at,
                       tls      ? "no token is wanted yet"
                       : tokens ? "there is no certificate"
                                : "there are neither a certificate nor tokens",
                       tls ? "token RUN create ..." : "tls RUN create --name HOST");
    }
    return BRG_OK;
}

static int socket_of(const struct addrinfo *list, int *out_error) {
    int fd = -1, on = 1;
    *out_error = 0;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            *out_error = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) return fd;
        *out_error = errno;
        (void)close(fd);
    }
    return -1;
}

static enum brg_status open_socket(const char *listen_at, bool tls, bool tokens, int *out_fd,
                                   struct err *e) {
    char host[256], port[8];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list = NULL;
    if (!address_split(listen_at, host, port))
        return err_set(e, BRG_E_CONFIG, "listen: '%s' is not HOST:PORT", listen_at);
    int rc = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, &list);
    if (rc != 0)
        return err_set(e, BRG_E_PORT, "listen: %s: %s; give an address of this machine", listen_at,
                       gai_strerror(rc));
    int error = 0;
    enum brg_status s = may_listen(list, listen_at, tls, tokens, e);
    int fd = s == BRG_OK ? socket_of(list, &error) : -1;
    freeaddrinfo(list);
    TRY(s);
    if (fd < 0)
        return err_set(e, BRG_E_PORT,
                       "listen: %s: %s; choose another port, port 0 takes a free one", listen_at,
                       strerror(error));
    *out_fd = fd;
    return BRG_OK;
}

/* The address that was really taken, as others may use it. Where the certificate is not for it: its own
 * first name, and in s->connect the address where commands on this machine find it. */
static void name_socket(struct hub_server *s, int fd, const struct tls_pair *tls) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[80], port[16], bound[120];
    CHECK(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    CHECK(getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV) == 0);
    bool v6 = a.ss_family == AF_INET6;
    s->connect[0] = '\0';
    (void)snprintf(bound, sizeof bound, v6 ? "[%s]:%s" : "%s:%s", host, port);
    (void)snprintf(s->url, sizeof s->url, "%s://%s", tls != NULL ? "https" : "http", bound);
    if (tls == NULL || tls_pair_covers(tls, host) || tls->name[0] == '\0') return;
    bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    if (any) (void)snprintf(bound, sizeof bound, v6 ? "[::1]:%s" : "127.0.0.1:%s", port);
    (void)snprintf(s->connect, sizeof s->connect, "%s", bound);
    bool bracket = strchr(tls->name, ':') != NULL;
    (void)snprintf(s->url, sizeof s->url, bracket ? "https://[%s]:%s" : "https://%s:%s", tls->name,
                   port);
}

/* Each connection is an open file, and an upload one more. What the system allows is the limit then. */
static uint32_t files_raise(uint32_t connections) {
    enum { OTHER_FILES = 256 };
    struct rlimit r;
    rlim_t wanted = 2 * (rlim_t)connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= wanted) return connections;
    struct rlimit more = {.rlim_cur = wanted,
                          .rlim_max = r.rlim_max > wanted ? r.rlim_max : wanted};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) return connections;
    more = (struct rlimit){.rlim_cur = r.rlim_max, .rlim_max = r.rlim_max}; /* without privileges */
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) r.rlim_cur = more.rlim_cur;
    uint32_t fits = r.rlim_cur > 2 * OTHER_FILES ? (uint32_t)(r.rlim_cur - OTHER_FILES)
                                                 : OTHER_FILES;
    if (fits >= connections) return connections;
    log_line(
        LOG_WARN, "hub", "few_files",
        "connections=%u wanted=%u remedy=\"raise the limit of open files (ulimit -n) to %llu\"",
        fits, connections, (unsigned long long)wanted);
    return fits;
}

/* ---- The certificate ------------------------------------------------------------------------------------ */
static void file_of(const struct hub_server *s, const char *set, const char *own,
                    char out[OS_PATH_MAX]) {
    if (set[0] == '/')
        (void)snprintf(out, OS_PATH_MAX, "%s", set);
    else
        (void)os_path(out, s->dir.path, "%s", set[0] != '\0' ? set : own);
}

/* Since the last look; also where one of them is not there. */
static bool files_changed(struct hub_server *s) {
    struct listening *l = &s->listening;
    const struct run_settings *set = &s->dir.settings;
    char path[OS_PATH_MAX];
    struct stat now[2], *was[2] = {&l->cert, &l->key};
    bool changed = false;
    for (int i = 0; i < 2; i++) {
        file_of(s, i == 0 ? set->tls_cert : set->tls_key,
                i == 0 ? "tls/hub.pem" : "tls/hub-key.pem", path);
        if (stat(path, &now[i]) != 0) memset(&now[i], 0, sizeof now[i]);
        changed |= now[i].st_ino != was[i]->st_ino || now[i].st_size != was[i]->st_size ||
                   now[i].st_mtim.tv_sec != was[i]->st_mtim.tv_sec ||
                   now[i].st_mtim.tv_nsec != was[i]->st_mtim.tv_nsec ||
                   now[i].st_mode != was[i]->st_mode;
        *was[i] = now[i];
    }
    return changed;
}

/* *out_there is false where the run has none: then it is HTTP. */
static enum brg_status tls_of(const struct hub_server *s, struct tls_pair *out, bool *out_there,
                              struct err *e) {
    const struct run_settings *set = &s->dir.settings;
    char cert[OS_PATH_MAX], key[OS_PATH_MAX];
    file_of(s, set->tls_cert, "tls/hub.pem", cert);
    file_of(s, set->tls_key, "tls/hub-key.pem", key);
    *out_there = set->tls_cert[0] != '\0' || set->tls_key[0] != '\0' || os_exists(cert);
    if (!*out_there) return BRG_OK;
    TRY(tls_pair_load(cert, key, out, e));
    (void)buf_cstr(&out->cert);
    (void)buf_cstr(&out->key);
    int64_t left = out->expires - (int64_t)(os_wall() / NS_PER_S);
    log_line(left < EXPIRES_SOON_S ? LOG_WARN : LOG_INFO, "hub", "certificate",
             "file=%s name=%s days_left=%lld sha256=%s", cert, out->name, (long long)(left / 86400),
             out->fingerprint);
    return BRG_OK;
}

static struct MHD_Daemon *daemon_start(struct hub_server *s, int fd, uint32_t connections_max,
                                       const struct tls_pair *tls) {
    bool door = fd < 0;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC;
    struct MHD_OptionItem more[] = {{MHD_OPTION_END, 0, NULL},
                                    {MHD_OPTION_END, 0, NULL},
                                    {MHD_OPTION_END, 0, NULL},
                                    {MHD_OPTION_END, 0, NULL}};
    char priorities[sizeof PRIORITIES];
    if (door) flags |= MHD_USE_NO_LISTEN_SOCKET;
    struct MHD_OptionItem where[] = {{door ? MHD_OPTION_END : MHD_OPTION_LISTEN_SOCKET, fd, NULL},
                                     {MHD_OPTION_END, 0, NULL}};
    memcpy(priorities, PRIORITIES, sizeof PRIORITIES);
    if (tls != NULL) {
        flags |= MHD_USE_TLS;
        more[0] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, tls->cert.data};
        more[1] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, tls->key.data};
        more[2] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, priorities};
    }
    return MHD_start_daemon(
        flags, 0, NULL, NULL, http_on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_ARRAY, where, MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_IDLE_S,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)connections_max, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)(tls != NULL ? CONNECTION_STACK_TLS : CONNECTION_STACK),
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
}

struct MHD_Daemon *server_door(struct hub_server *s, uint32_t connections_max) {
    return daemon_start(s, -1, connections_max, NULL);
}

static enum brg_status listen_with(struct hub_server *s, const char *listen_at,
                                   uint32_t connections_max, struct tls_pair *tls, struct err *e) {
    int fd = -1;
    TRY(open_socket(listen_at, tls != NULL, gate_closed_to_strangers(s->gate), &fd, e));
    name_socket(s, fd, tls);
    /* A core dump would have the key in it. */
    if (tls != NULL) (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    s->listening.fd = fd;
    s->listening.connections_max = connections_max;
    s->listening.tls = tls != NULL;
    if (tls != NULL) memcpy(s->listening.fingerprint, tls->fingerprint, HASH_HEX_BYTES);
    s->http = daemon_start(s, fd, connections_max, tls);
    if (s->http != NULL) return BRG_OK;
    (void)close(fd);
    return err_set(e, BRG_E_PORT, "listen: %s: the HTTP server could not be started", listen_at);
}

enum brg_status server_listen(struct hub_server *s, const char *listen_at, uint32_t connections_max,
                              struct err *e) {
    struct tls_pair tls = {.name = ""};
    bool there = false;
    connections_max = files_raise(connections_max);
    struct gate_options gate = {.run_dir = s->dir.path,
                                .rate = s->dir.settings.rate,
                                .patience_ns = s->dir.settings.patience_ns,
                                .connections_max = connections_max};
    TRY(gate_open(&gate, &s->gate, e));
    (void)files_changed(s); /* before they are read: what comes after that is seen */
    TRY(tls_of(s, &tls, &there, e));
    enum brg_status st = listen_with(s, listen_at, connections_max, there ? &tls : NULL, e);
    tls_pair_fini(&tls); /* the server has read them */
    return st;
}

static void old_one_ends(struct listening *l, uint32_t i) {
    MHD_stop_daemon(l->old[i]);
    os_close_cleanup(&l->old_fd[i]); /* one that was told to accept no more leaves it open */
}

/* Those of an earlier certificate whose last connection is gone; oldest: that one in any case. */
static void old_ones_end(struct listening *l, bool oldest) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->old_count; i++) {
        const union MHD_DaemonInfo *n =
            MHD_get_daemon_info(l->old[i], MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        if ((oldest && i == 0) || (n != NULL && n->num_connections == 0))
            old_one_ends(l, i); /* who is cut by it comes again */
        else {
            l->old_fd[kept] = l->old_fd[i];
            l->old[kept++] = l->old[i];
        }
    }
    l->old_count = kept;
}

/* Nobody who connects meanwhile is lost: the new one listens before the old one ceases to. */
static bool take_over(struct hub_server *s, const struct tls_pair *tls) {
    struct listening *l = &s->listening;
    int fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 0); /* the same socket, for each to close */
    struct MHD_Daemon *next = fd >= 0 ? daemon_start(s, fd, l->connections_max, tls) : NULL;
    if (next == NULL) {
        os_close_cleanup(&fd);
        return false;
    }
    (void)MHD_quiesce_daemon(s->http);
    old_ones_end(l, l->old_count == LISTENERS_OLD_MAX);
    l->old_fd[l->old_count] = l->fd;
    l->old[l->old_count++] = s->http;
    s->http = next;
    l->fd = fd;
    memcpy(l->fingerprint, tls->fingerprint, HASH_HEX_BYTES);
    return true;
}

static void expiry_watch(struct hub_server *s) {
    struct err e = {0};
    struct tls_pair tls = {.name = ""};
    bool there = false;
    time_ns now = os_now();
    if (s->listening.warned > 0 && now - s->listening.warned < (time_ns)WARN_EVERY_S * NS_PER_S)
        return;
    if (s->listening.warned > 0) (void)tls_of(s, &tls, &there, &e); /* says how long it holds */
    s->listening.warned = now;
    tls_pair_fini(&tls);
}

void hub_server_renew(struct hub_server *s, bool now) {
    struct listening *l = &s->listening;
    struct err e = {0};
    struct tls_pair tls = {.name = ""};
    bool there = false;
    old_ones_end(l, false);
    if (!l->tls) return; /* whether there is one at all was decided at the start */
    expiry_watch(s);
    bool changed = files_changed(s);
    if (!changed && l->bad_looks == 0 && !now) return;
    enum brg_status st = tls_of(s, &tls, &there, &e);
    if (st == BRG_OK && !there)
        st = err_set(&e, BRG_E_MISSING, "%s: there is no certificate any more", s->dir.path);
    bool same = st == BRG_OK && strcmp(tls.fingerprint, l->fingerprint) == 0;
    if (st == BRG_OK && !same && !take_over(s, &tls))
        st = err_set(&e, BRG_E_PORT, "the HTTP server could not be started again");
    /* Two files are not renewed at one moment: only what is still wrong at the next look is told. */
    l->bad_looks = st == BRG_OK ? 0 : changed ? 1 : l->bad_looks + 1;
    if (l->bad_looks == 2 || (now && l->bad_looks > 0))
        log_line(LOG_ERROR, "hub", "certificate_unusable",
                 "cause=\"%s\" remedy=\"mend the files; the one from before is used meanwhile\"",
                 e.text);
    if (st == BRG_OK && (!same || now))
        log_line(LOG_INFO, "hub", "certificate_renewed", "sha256=%s same=%d", l->fingerprint, same);
    tls_pair_fini(&tls);
}

void server_unlisten(struct hub_server *s) {
    for (uint32_t i = 0; i < s->listening.old_count; i++) old_one_ends(&s->listening, i);
    s->listening.old_count = 0;
    if (s->http != NULL) MHD_stop_daemon(s->http);
    s->http = NULL;
    gate_close(s->gate);
    s->gate = NULL;
}
