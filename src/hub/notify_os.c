/* SPDX-License-Identifier: Apache-2.0 */
/* notify_os.c - see notify_os.h. Nothing here ever waits: a manager that does not read costs a lost word. */
#include "hub/notify_os.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

enum { WORDS_MAX = 1024 };

static bool address(const char *name, struct sockaddr_un *out, socklen_t *out_bytes) {
    size_t n = strlen(name);
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (n < 2 || n >= sizeof out->sun_path || (name[0] != '/' && name[0] != '@')) return false;
    memcpy(out->sun_path, name, n);
    if (name[0] == '@')
        out->sun_path[0] = '\0'; /* Linux's abstract names: these bytes and no more */
    *out_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] == '/'));
    return true;
}

/* Half of the time after which the manager gives the process up, as sd_watchdog_enabled(3) advises. */
static time_ns watchdog(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    uint64_t us, of;
    if (usec == NULL || !parse_u64(usec, &us) || us == 0 || us > UINT64_C(1000000000000)) return 0;
    if (pid != NULL && (!parse_u64(pid, &of) || of != (uint64_t)getpid())) return 0;
    return (time_ns)us * NS_PER_US / 2;
}

void notify_open(struct notify *n) {
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to;
    socklen_t bytes = 0;
    *n = (struct notify){.socket = -1};
    if (name == NULL || *name == '\0') return;
    n->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->socket < 0 || !address(name, &to, &bytes) ||
        connect(n->socket, (struct sockaddr *)&to, bytes) != 0) {
        log_line(LOG_WARN, "hub", "notify_lost", "socket=\"%.100s\" why=\"%s\"", name,
                 bytes == 0 ? "no path and no abstract name" : strerror(errno));
        notify_close(n);
        return;
    }
    n->every = watchdog();
}

void notify_close(struct notify *n) {
    if (n->socket >= 0) (void)close(n->socket);
    *n = (struct notify){.socket = -1};
}

void notify_say(const struct notify *n, const char *fmt, ...) {
    char words[WORDS_MAX];
    va_list args;
    if (n->socket < 0) return;
    va_start(args, fmt);
    int count = vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    if (count <= 0) return;
    if (count >= WORDS_MAX) count = WORDS_MAX - 1;
    (void)send(n->socket, words, (size_t)count, MSG_NOSIGNAL);
}

void notify_alive(struct notify *n, time_ns now) {
    if (n->every == 0 || now < n->due) return;
    n->due = now + n->every;
    notify_say(n, "WATCHDOG=1");
}
