/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - a wide-area link on loopback: a TCP relay with delay, rate, cuts and resets, for tests
 * without root or network namespaces.
 *
 *   link --listen 127.0.0.1:0 --to HOST:PORT [--delay 45ms] [--jitter 5ms] [--rate 1gbit]
 *        [--loss-stall 0.001] [--seed N] [--control SOCKET]
 *
 * Prints "listening on 127.0.0.1:PORT". Commands come as lines on stdin, or on the UNIX socket of
 * --control, where each gets one line as an answer:
 *   cut up|down|both   heal            up: from who connected, towards --to
 *   stall 2s                           nothing moves for so long
 *   reset one|all                      RST to both sides, queued bytes are lost
 *   reset after BYTES                  the connection that carries this byte from now on is reset
 *   refuse on|off                      new connections are reset at once
 *   delay 45ms | jitter 5ms | rate 100mbit [up|down] | loss-stall 0.01
 *   stats | quit
 * On SIGTERM, SIGINT and quit it prints its counters, one key=value line.
 *
 * How: a byte is taken from its socket when the direction's token bucket (shared by all
 * connections) has room for it, and is due one delay later. What the bucket does not take stays in
 * the sender's socket: so memory holds no more than rate x delay, plus a window a connection for
 * receivers that do not read. A new connection waits one round trip, as for its SYN.
 * A cut holds bytes, as TCP would send them again after it; while one direction is cut the other
 * carries one window more, for its acknowledgements are lost. Loss is a pause of one round trip for
 * the bytes behind. Not here: slow start, back-off of retransmissions, datagrams. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { UP, DOWN, DIRECTIONS };
enum {
    CHUNK_BYTES = 64 * 1024,
    SOCKET_BUFFER_BYTES = 512 * 1024,
    CUT_CREDIT_BYTES = 256 * 1024, /* what one direction still carries while the other is cut */
    MSS_BYTES = 1448,
    CONNECTIONS_MAX = 4096,
    CONTROLS_MAX = 8,
    LINE_BYTES_MAX = 256,
};
#define MEMORY_BYTES_MAX (1024u * 1024 * 1024)
#define NEVER UINT64_MAX

struct chunk {
    struct chunk *next;
    uint64_t due_ns;
    size_t bytes, sent; /* bytes 0: the sender is done */
    unsigned char data[];
};

struct end { /* one socket of a connection; its address is the epoll cookie */
    struct connection *of;
    int fd, readable, writable, connecting, eof;
};

struct connection {
    struct end end[DIRECTIONS]; /* end[UP] is read for UP: who connected; end[DOWN] is --to */
    struct chunk *head[DIRECTIONS], **tail[DIRECTIONS];
    size_t queued[DIRECTIONS];
    uint64_t last_due_ns[DIRECTIONS], ready_ns;
    size_t credit[DIRECTIONS];
    int done[DIRECTIONS], dead;
    size_t index;
};

struct direction {
    double rate; /* bytes a second; 0: no limit */
    double tokens;
    uint64_t filled_ns;
    int cut;
    uint64_t bytes;
};

struct control {
    int fd, out;
    char line[LINE_BYTES_MAX];
    size_t bytes;
};

static struct direction dir[DIRECTIONS];
static struct connection *connections[CONNECTIONS_MAX];
static size_t connections_count, first;
static struct control controls[CONTROLS_MAX];
static uint64_t delay_ns, jitter_ns, stalled_until_ns, reset_after = NEVER;
static double loss_stall;
static int refuse, epoll_fd, listen_fd, control_fd = -1, running = 1;
static uint64_t rng = 88172645463325252u, memory_bytes, memory_peak, accepted, resets, refused,
                lost;
static struct addrinfo *target;
static volatile sig_atomic_t stop;

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double chance(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (double)(rng >> 11) / 9007199254740992.0;
}

static void die(const char *what) {
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* ---- Words --------------------------------------------------------------------------------- */

static uint64_t span_of(const char *word) /* 45ms 2s 300us; a bare number is milliseconds */
{
    char *unit;
    double x = strtod(word, &unit);
    if (strcmp(unit, "s") == 0) return (uint64_t)(x * 1e9);
    if (strcmp(unit, "us") == 0) return (uint64_t)(x * 1e3);
    return (uint64_t)(x * 1e6);
}

static double rate_of(const char *word) /* 1gbit 100mbit 64kbit; bytes a second */
{
    char *unit;
    double x = strtod(word, &unit);
    if (*unit == 'g') x *= 1e9;
    if (*unit == 'm') x *= 1e6;
    if (*unit == 'k') x *= 1e3;
    return x / 8;
}

/* ---- Connections --------------------------------------------------------------------------- */

static void watch(int fd, void *cookie, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = cookie};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
}

static void tune(int fd) {
    int one = 1, bytes = SOCKET_BUFFER_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static void close_with_rst(int fd) {
    struct linger linger = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    close(fd);
}

/* Marks it; the sweep after the events frees it, for events of it may still be in hand. */
static void connection_end(struct connection *c, int with_rst) {
    if (c->dead) return;
    c->dead = 1;
    for (int d = 0; d < DIRECTIONS; d++) {
        if (with_rst)
            close_with_rst(c->end[d].fd);
        else
            close(c->end[d].fd);
        for (struct chunk *k = c->head[d], *next; k != NULL; k = next) {
            next = k->next;
            free(k);
        }
        c->head[d] = NULL;
        memory_bytes -= c->queued[d];
    }
    resets += with_rst != 0;
}

static void sweep(void) {
    for (size_t i = 0; i < connections_count;) {
        if (!connections[i]->dead) {
            i++;
            continue;
        }
        free(connections[i]);
        connections[i] = connections[--connections_count];
    }
}

static void connection_open(int fd) {
    accepted++;
    int other = refuse || connections_count == CONNECTIONS_MAX
                    ? -1
                    : socket(target->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (other < 0) {
        refused++;
        close_with_rst(fd);
        return;
    }
    tune(fd);
    tune(other);
    struct connection *c = calloc(1, sizeof(*c));
    if (c == NULL) die("memory");
    if (connect(other, target->ai_addr, target->ai_addrlen) != 0 && errno != EINPROGRESS) {
        refused++;
        close_with_rst(fd);
        close(other);
        free(c);
        return;
    }
    c->end[UP] = (struct end){.of = c, .fd = fd, .writable = 1};
    c->end[DOWN] = (struct end){.of = c, .fd = other, .connecting = 1};
    c->ready_ns = now_ns() + 2 * delay_ns;
    for (int d = 0; d < DIRECTIONS; d++) {
        c->tail[d] = &c->head[d];
        c->credit[d] = CUT_CREDIT_BYTES;
    }
    connections[connections_count++] = c;
    watch(fd, &c->end[UP], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    watch(other, &c->end[DOWN], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

static void accept_all(void) {
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        connection_open(fd);
    }
}

/* ---- The two directions -------------------------------------------------------------------- */

static size_t window(int d) {
    double bytes = dir[d].rate > 0 ? 2 * dir[d].rate * (double)delay_ns / 1e9 : 16e6;
    return bytes < 256e3 ? 256000 : bytes > 64e6 ? 64000000 : (size_t)bytes;
}

static double burst(int d) {
    double bytes = dir[d].rate * 0.02; /* 20 ms: the loop may sleep that long on a busy machine */
    return bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes;
}

static void fill(int d, uint64_t now) {
    struct direction *x = &dir[d];
    if (x->rate > 0) {
        x->tokens += x->rate * (double)(now - x->filled_ns) / 1e9;
        if (x->tokens > burst(d)) x->tokens = burst(d);
    }
    x->filled_ns = now;
}

static void enqueue(struct connection *c, int d, struct chunk *k, uint64_t now) {
    uint64_t due = (now > c->ready_ns ? now : c->ready_ns) + delay_ns;
    if (jitter_ns > 0) due += (uint64_t)(chance() * (double)jitter_ns);
    if (loss_stall > 0 && k->bytes > 0 &&
        chance() > pow(1 - loss_stall, (double)(k->bytes + MSS_BYTES - 1) / MSS_BYTES)) {
        due += 2 * delay_ns;
        lost++;
    }
    if (due < c->last_due_ns[d]) due = c->last_due_ns[d];
    c->last_due_ns[d] = k->due_ns = due;
    k->next = NULL;
    *c->tail[d] = k;
    c->tail[d] = &k->next;
    c->queued[d] += k->bytes;
    memory_bytes += k->bytes;
    if (memory_bytes > memory_peak) memory_peak = memory_bytes;
}

/* Takes at most one chunk from the socket. Returns whether there may be more. */
static int take(struct connection *c, int d, uint64_t now) {
    struct end *from = &c->end[d];
    struct direction *x = &dir[d];
    int other_cut = dir[!d].cut;
    if (c->dead || !from->readable || from->eof || from->connecting || x->cut) return 0;
    if (c->queued[d] >= window(d) || memory_bytes >= MEMORY_BYTES_MAX) return 0;
    size_t want = CHUNK_BYTES;
    if (x->rate > 0 && x->tokens < MSS_BYTES) return 0;
    if (x->rate > 0 && x->tokens < (double)want) want = (size_t)x->tokens;
    if (other_cut && c->credit[d] < want) want = c->credit[d];
    if (want == 0) return 0;
    struct chunk *k = malloc(sizeof(*k) + want);
    if (k == NULL) die("memory");
    ssize_t n = recv(from->fd, k->data, want, 0);
    if (n < 0) {
        free(k);
        if (errno == EAGAIN || errno == EINTR)
            from->readable = 0;
        else
            connection_end(c, 1);
        return 0;
    }
    /* A short read is kept in a block of its size: else many small ones fill the memory. */
    if ((size_t)n < want) {
        struct chunk *fit = realloc(k, sizeof(*k) + (size_t)n);
        if (fit != NULL) k = fit;
    }
    k->bytes = (size_t)n;
    k->sent = 0;
    from->eof = n == 0;
    x->tokens -= (double)n;
    if (other_cut) c->credit[d] -= (size_t)n;
    enqueue(c, d, k, now);
    return n > 0;
}

/* Sends what is due. */
static void give(struct connection *c, int d, uint64_t now) {
    struct end *to = &c->end[!d];
    while (!c->dead && c->head[d] != NULL && !dir[d].cut && to->writable && !to->connecting) {
        struct chunk *k = c->head[d];
        if (k->due_ns > now) return;
        if (k->bytes == 0) {
            shutdown(to->fd, SHUT_WR);
            c->done[d] = 1;
            if (c->done[!d]) {
                connection_end(c, 0);
                return;
            }
        }
        size_t left = k->bytes - k->sent;
        if (left > reset_after) left = (size_t)reset_after;
        ssize_t n = left > 0 ? send(to->fd, k->data + k->sent, left, MSG_NOSIGNAL) : 0;
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR)
                to->writable = 0;
            else
                connection_end(c, 1);
            return;
        }
        k->sent += (size_t)n;
        c->queued[d] -= (size_t)n;
        memory_bytes -= (size_t)n;
        dir[d].bytes += (uint64_t)n;
        if (reset_after != NEVER && k->bytes > 0 && (reset_after -= (uint64_t)n) == 0) {
            reset_after = NEVER;
            connection_end(c, 1);
            return;
        }
        if (k->sent < k->bytes) continue;
        c->head[d] = k->next;
        if (k->next == NULL) c->tail[d] = &c->head[d];
        free(k);
    }
}

/* One turn: all connections give, then take in turns, a chunk each, until nobody may. The one that
 * begins moves on, so that a scarce bucket serves all. */
static void turn(uint64_t now) {
    if (now < stalled_until_ns) return;
    fill(UP, now);
    fill(DOWN, now);
    for (size_t i = 0; i < connections_count; i++) {
        give(connections[i], UP, now);
        give(connections[i], DOWN, now);
    }
    for (int more = 1; more;) {
        more = 0;
        for (size_t i = 0; i < connections_count; i++) {
            struct connection *c = connections[(first + i) % connections_count];
            more |= take(c, UP, now);
            more |= take(c, DOWN, now);
        }
    }
    if (delay_ns == 0) {
        for (size_t i = 0; i < connections_count; i++) {
            give(connections[i], UP, now);
            give(connections[i], DOWN, now);
        }
    }
    first++;
}

/* When there is something to do without a new event. */
static uint64_t next_ns(uint64_t now) {
    if (now < stalled_until_ns) return stalled_until_ns;
    uint64_t next = NEVER;
    for (size_t i = 0; i < connections_count; i++) {
        const struct connection *c = connections[i];
        for (int d = 0; d < DIRECTIONS; d++) {
            if (c->head[d] != NULL && !dir[d].cut && c->end[!d].writable &&
                c->head[d]->due_ns < next) {
                next = c->head[d]->due_ns;
            }
            if (c->end[d].readable && !c->end[d].eof && !c->end[d].connecting && !dir[d].cut &&
                c->queued[d] < window(d) && dir[d].rate > 0 && (!dir[!d].cut || c->credit[d] > 0)) {
                double lack = MSS_BYTES - dir[d].tokens;
                uint64_t at = now + (lack > 0 ? (uint64_t)(lack / dir[d].rate * 1e9) : 0);
                if (at < next) next = at;
            }
        }
    }
    /* Wakes are gathered: half a millisecond is little against a delay, and much for a CPU. */
    return next == NEVER ? NEVER : next < now + 300000 ? now + 300000 : next;
}

/* ---- Commands ------------------------------------------------------------------------------ */

static void stats_print(int fd) {
    dprintf(fd,
            "bytes_up=%" PRIu64 " bytes_down=%" PRIu64 " accepted=%" PRIu64
            " open=%zu resets=%" PRIu64 " refused=%" PRIu64 " lost=%" PRIu64 " queued=%" PRIu64
            " queued_peak=%" PRIu64 "\n",
            dir[UP].bytes, dir[DOWN].bytes, accepted, connections_count, resets, refused, lost,
            memory_bytes, memory_peak);
}

static void cut(int up, int down) {
    dir[UP].cut = up;
    dir[DOWN].cut = down;
    for (size_t i = 0; i < connections_count; i++) {
        connections[i]->credit[UP] = connections[i]->credit[DOWN] = CUT_CREDIT_BYTES;
    }
}

static int reset(const char *who, const char *number) {
    if (strcmp(who, "after") == 0) {
        reset_after = strtoull(number, NULL, 10);
        return reset_after > 0;
    }
    if (strcmp(who, "one") == 0 && connections_count > 0) {
        connection_end(connections[(size_t)(chance() * (double)connections_count)], 1);
        return 1;
    }
    for (size_t i = 0; strcmp(who, "all") == 0 && i < connections_count; i++)
        connection_end(connections[i], 1);
    return strcmp(who, "all") == 0;
}

/* Returns 0 for a command that is not known. */
static int command(char *line, int out) {
    char word[64] = "", a[64] = "", b[64] = "";
    if (sscanf(line, "%63s %63s %63s", word, a, b) < 1) return 1;
    if (strcmp(word, "cut") == 0)
        cut(strcmp(a, "down") != 0, strcmp(a, "up") != 0);
    else if (strcmp(word, "heal") == 0)
        cut(0, 0);
    else if (strcmp(word, "stall") == 0)
        stalled_until_ns = now_ns() + span_of(a);
    else if (strcmp(word, "reset") == 0)
        return reset(a, b);
    else if (strcmp(word, "refuse") == 0)
        refuse = strcmp(a, "on") == 0;
    else if (strcmp(word, "delay") == 0)
        delay_ns = span_of(a);
    else if (strcmp(word, "jitter") == 0)
        jitter_ns = span_of(a);
    else if (strcmp(word, "loss-stall") == 0)
        loss_stall = strtod(a, NULL);
    else if (strcmp(word, "stats") == 0)
        stats_print(out);
    else if (strcmp(word, "quit") == 0)
        running = 0;
    else if (strcmp(word, "rate") == 0) {
        if (strcmp(b, "down") != 0) dir[UP].rate = rate_of(a);
        if (strcmp(b, "up") != 0) dir[DOWN].rate = rate_of(a);
        dir[UP].tokens = dir[DOWN].tokens = 0;
    } else
        return 0;
    return 1;
}

static void control_read(struct control *x) {
    for (;;) {
        ssize_t n = read(x->fd, x->line + x->bytes, sizeof(x->line) - 1 - x->bytes);
        if (n < 0) return;
        if (n == 0) {
            epoll_ctl(epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
            if (x->fd != STDIN_FILENO) close(x->fd);
            x->fd = -1;
            return;
        }
        x->bytes += (size_t)n;
        x->line[x->bytes] = '\0';
        for (char *end; (end = strchr(x->line, '\n')) != NULL;) {
            *end = '\0';
            int stats = strncmp(x->line, "stats", 5) == 0;
            int known = command(x->line, x->out);
            if (!known)
                dprintf(x->out, "unknown: %s\n", x->line);
            else if (!stats && x->out != STDOUT_FILENO)
                dprintf(x->out, "ok\n");
            x->bytes -= (size_t)(end + 1 - x->line);
            memmove(x->line, end + 1, x->bytes + 1);
        }
        if (x->bytes == sizeof(x->line) - 1) x->bytes = 0; /* no command is so long */
        if (x->fd == STDIN_FILENO) return;                 /* it may block */
    }
}

static void control_open(int fd, int out) {
    for (int i = 0; i < CONTROLS_MAX; i++) {
        if (controls[i].fd >= 0) continue;
        controls[i] = (struct control){.fd = fd, .out = out};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &controls[i]};
        /* stdin may be a file or /dev/null, which epoll does not take: then there are no commands */
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) controls[i].fd = -1;
        return;
    }
    close(fd);
}

/* ---- Start --------------------------------------------------------------------------------- */

static struct addrinfo *resolve(const char *text) {
    char host[256];
    snprintf(host, sizeof(host), "%s", text);
    char *port = strrchr(host, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (port == NULL) {
        fprintf(stderr, "link: %s is not HOST:PORT\n", text);
        exit(2);
    }
    *port = '\0';
    if (getaddrinfo(host, port + 1, &hints, &found) != 0) {
        fprintf(stderr, "link: no address for %s\n", text);
        exit(2);
    }
    return found;
}

static void listen_on(const char *text) {
    struct addrinfo *at = resolve(text);
    struct sockaddr_in bound;
    socklen_t bytes = sizeof(bound);
    int one = 1;
    listen_fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(listen_fd, at->ai_addr, at->ai_addrlen) != 0 || listen(listen_fd, 4096) != 0)
        die(text);
    memset(&bound, 0, sizeof(bound));
    getsockname(listen_fd, (struct sockaddr *)&bound, &bytes);
    char host[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &bound.sin_addr, host, sizeof(host));
    printf("listening on %s:%u\n", host, (unsigned)ntohs(bound.sin_port));
    fflush(stdout);
    watch(listen_fd, &listen_fd, EPOLLIN);
    freeaddrinfo(at);
}

static void control_listen(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    unlink(path);
    control_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(control_fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(control_fd, 8) != 0)
        die(path);
    watch(control_fd, &control_fd, EPOLLIN);
}

static void start(int argc, char **argv) {
    const char *to = NULL, *at = "127.0.0.1:0", *socket_path = NULL;
    char line[LINE_BYTES_MAX];
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--to") == 0)
            to = value;
        else if (strcmp(argv[i], "--listen") == 0)
            at = value;
        else if (strcmp(argv[i], "--control") == 0)
            socket_path = strcmp(value, "stdin") != 0 ? value : NULL;
        else if (strcmp(argv[i], "--seed") == 0)
            rng ^= strtoull(value, NULL, 10) * 2654435761u;
        else if (strncmp(argv[i], "--", 2) == 0) {
            snprintf(line, sizeof(line), "%s %s", argv[i] + 2, value);
            if (!command(line, STDERR_FILENO)) to = NULL, i = argc;
        }
    }
    if (to == NULL || argc % 2 == 0) {
        fprintf(stderr,
                "usage: link --to HOST:PORT [--listen 127.0.0.1:0] [--delay 45ms] [--jitter 5ms] "
                "[--rate 1gbit] [--loss-stall P] [--seed N] [--control SOCKET]\n");
        exit(2);
    }
    /* Two descriptors a connection. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int i = 0; i < CONTROLS_MAX; i++) controls[i].fd = -1;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    target = resolve(to);
    dir[UP].filled_ns = dir[DOWN].filled_ns = now_ns();
    listen_on(at);
    if (socket_path != NULL) control_listen(socket_path);
    control_open(STDIN_FILENO, STDOUT_FILENO);
    signal(SIGPIPE, SIG_IGN);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
}

static void end_event(struct end *e, uint32_t events) {
    if (e->of->dead) return;
    int error = 0;
    socklen_t bytes = sizeof(error);
    if ((events & EPOLLERR) != 0) {
        getsockopt(e->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        connection_end(e->of,
                       1); /* refused, or reset by its peer: the other side sees a reset too */
        return;
    }
    if ((events & EPOLLOUT) != 0) e->writable = 1, e->connecting = 0;
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0) e->readable = 1;
}

static void event_handle(const struct epoll_event *event) {
    void *cookie = event->data.ptr;
    if (cookie == &listen_fd) {
        accept_all();
    } else if (cookie == &control_fd) {
        int fd = accept4(control_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) control_open(fd, fd);
    } else if ((char *)cookie >= (char *)controls &&
               (char *)cookie < (char *)(controls + CONTROLS_MAX)) {
        control_read(cookie);
    } else {
        end_event(cookie, event->events);
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    static struct epoll_event events[512];
    uint64_t next = NEVER;
    while (running && !stop) {
        uint64_t now = now_ns(), wait = next > now ? next - now : 0;
        struct timespec ts = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        int n = epoll_pwait2(epoll_fd, events, 512, next == NEVER ? NULL : &ts, NULL);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) event_handle(&events[i]);
        now = now_ns();
        turn(now);
        sweep();
        next = next_ns(now);
    }
    stats_print(STDOUT_FILENO);
    return 0;
}
