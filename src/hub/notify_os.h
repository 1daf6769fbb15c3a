/* SPDX-License-Identifier: Apache-2.0 */
/* notify_os.h - what a service manager wants to know: that the hub serves, lives, stops. The protocol of systemd's
 * sd_notify(3): lines of KEY=VALUE in a datagram to the socket that $NOTIFY_SOCKET names; no library is needed for it.
 * Without that variable all of this does nothing. One thread at a time may use a struct notify. */
#ifndef HUB_NOTIFY_OS_H
#define HUB_NOTIFY_OS_H

#include "base/base.h"

struct notify {
    int socket;    /* -1: nobody wants to know */
    time_ns every; /* between two signs of life; 0: none is wanted */
    time_ns due;
};
/* Reads $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID. A socket that cannot be reached is logged, and no failure. */
void notify_open(struct notify *n);
void notify_close(struct notify *n);
/* "READY=1\nSTATUS=serving": lost where the other side does not listen any more. */
void notify_say(const struct notify *n, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A sign of life, where one is due. For the thread whose standing still means that the hub does. */
void notify_alive(struct notify *n, time_ns now);

#endif
