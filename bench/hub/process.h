/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - a real hub as a child of the bench. */
#ifndef BENCH_HUB_PROCESS_H
#define BENCH_HUB_PROCESS_H

#include <sys/types.h>

#include "base/os.h"

struct hub_process {
    pid_t pid;
    uint16_t port;    /* on 127.0.0.1 */
    time_ns executed; /* when exec was about to happen */
};
/* Starts `program hub run` on a free port and waits until it says where it listens. Ends the bench where
 * it does not. */
void hub_process_start(struct hub_process *p, const char *program, const char *run);
void hub_process_end(struct hub_process *p, int signal);
/* A connection to it, blocking. */
int hub_process_connect(const struct hub_process *p);
/* One request, one answer, on a blocking connection that stays open. Gives the HTTP status, 0 where the
 * connection broke. */
int hub_process_ask(int fd, const char *request, size_t n);
uint64_t hub_process_rss_bytes(const struct hub_process *p);

#endif
