/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/hub/process.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void hub_process_start(struct hub_process *p, const char *program, const char *run) {
    int ends[2];
    char line[4096] = "";
    CHECK(pipe(ends) == 0);
    p->executed = os_now();
    p->pid = fork();
    CHECK(p->pid >= 0);
    if (p->pid == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)close(ends[0]);
        (void)execl(program, "beringia", "hub", run, "--listen", "127.0.0.1:0", "--log-level",
                    "error", (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    AUTO_FCLOSE FILE *f = fdopen(ends[0], "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "listening on ", 13) == 0) break;
    const char *colon = strrchr(line, ':');
    uint64_t port = 0;
    if (colon != NULL) line[strcspn(line, "\n")] = '\0';
    if (colon == NULL || !parse_u64(colon + 1, &port)) {
        fprintf(stderr, "bench hub: the hub of %s did not start\n", run);
        exit(1);
    }
    p->port = (uint16_t)port;
}

void hub_process_end(struct hub_process *p, int signal_number) {
    int status;
    (void)kill(p->pid, signal_number);
    (void)waitpid(p->pid, &status, 0);
}

int hub_process_connect(const struct hub_process *p) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(p->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    (void)close(fd);
    return -1;
}

/* Reads to the end of one answer by its Content-Length. */
int hub_process_ask(int fd, const char *request, size_t n) {
    static char got[32 << 20];
    size_t have = 0;
    int http = 0;
    if (send(fd, request, n, MSG_NOSIGNAL) != (ssize_t)n) return 0;
    while (have < sizeof got - 1) {
        ssize_t more = recv(fd, got + have, sizeof got - 1 - have, 0);
        if (more <= 0) return 0;
        have += (size_t)more;
        got[have] = '\0';
        const char *body = strstr(got, "\r\n\r\n"), *length = strstr(got, "Content-Length:");
        if (body == NULL || length == NULL || length > body) continue;
        if (have >= (size_t)(body + 4 - got) + strtoul(length + 15, NULL, 10)) {
            (void)sscanf(got, "HTTP/1.1 %d", &http);
            return http;
        }
    }
    return 0;
}

uint64_t hub_process_rss_bytes(const struct hub_process *p) {
    char path[64], line[256];
    unsigned long long kb = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    AUTO_FCLOSE FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmRSS: %llu", &kb) == 1) break;
    return kb * 1024;
}
