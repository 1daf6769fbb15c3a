/* SPDX-License-Identifier: Apache-2.0 */
/* bus_os.c - a text that is truncated while pack or the tokenizer reads it is SIGBUS (data/map.h). Said in a
 * line with the file's name, and with a status, instead of a core dump. Of the program alone: a library has no
 * business with its host's signals, and reads no texts.
 *
 * In the handler only calls that signal-safety(7) allows. Which file it was is looked up in /proc/self/maps:
 * so nobody has to keep a list of what is mapped. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { LINE_MAX_BYTES = 1024, NAME_FIELD = 5 };

static void put(const char *s, size_t n) {
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, s, n);
        if (done <= 0) return;
        s += done;
        n -= (size_t)done;
    }
}

static const char *hex_of(const char *s, uintptr_t *out) {
    uintptr_t v = 0;
    for (;; s++) {
        if (*s >= '0' && *s <= '9')
            v = v << 4 | (uintptr_t)(*s - '0');
        else if (*s >= 'a' && *s <= 'f')
            v = v << 4 | (uintptr_t)(*s - 'a' + 10);
        else
            break;
    }
    *out = v;
    return s;
}

/* "7f00-7f10 r--s 00000000 08:01 1234   /a/file": the file, where at lies in the range. */
static const char *file_of_line(const char *line, uintptr_t at) {
    uintptr_t from = 0, to = 0;
    const char *p = hex_of(line, &from);
    if (*p == '-') p = hex_of(p + 1, &to);
    if (at < from || at >= to) return NULL;
    for (int field = 1; field < NAME_FIELD; field++) {
        while (*p == ' ') p++;
        while (*p != ' ' && *p != '\0') p++;
    }
    while (*p == ' ') p++;
    return *p == '/' ? p : NULL;
}

static const char *file_at(int fd, uintptr_t at, char line[LINE_MAX_BYTES]) {
    size_t n = 0;
    char c;
    while (read(fd, &c, 1) == 1) {
        if (c != '\n') {
            if (n < LINE_MAX_BYTES - 1) line[n++] = c;
            continue;
        }
        line[n] = '\0';
        n = 0;
        const char *name = file_of_line(line, at);
        if (name != NULL) return name;
    }
    return NULL;
}

static void on_bus(int sig, siginfo_t *info, void *context) {
    static const char before[] = "beringia: ",
                      after[] = ": became shorter while it was read, or its disk fails; leave the "
                                "file alone and start again\n";
    char line[LINE_MAX_BYTES];
    (void)context;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *name = fd >= 0 ? file_at(fd, (uintptr_t)info->si_addr, line) : NULL;
    if (name ==
        NULL) { /* no file of ours: a fault of the program or the machine, with its core dump */
        (void)signal(sig, SIG_DFL);
        return;
    }
    put(before, sizeof before - 1);
    put(name, strlen(name));
    put(after, sizeof after - 1);
    _exit(BRG_E_IO);
}

void cli_bus_catch(void) {
    struct sigaction a = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGBUS, &a, NULL);
}
