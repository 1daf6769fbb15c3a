/* SPDX-License-Identifier: Apache-2.0 */
/* mail.c - names, pauses and ages of a mailbox in a bucket. */
#include "wire/mail.h"

#include <stdio.h>
#include <string.h>

void mail_key(const char *below, const char *id, char out[MAIL_KEY_MAX]) {
    (void)snprintf(out, MAIL_KEY_MAX, "%s%.32s", below, id);
}

bool mail_key_id(const char *key, const char *below, char out[ID_HEX_BYTES]) {
    size_t n = strlen(below);
    if (strncmp(key, below, n) != 0 || strlen(key + n) != ID_HEX_BYTES - 1) return false;
    if (strspn(key + n, "0123456789abcdef") != ID_HEX_BYTES - 1) return false;
    memcpy(out, key + n, ID_HEX_BYTES);
    return true;
}

uint32_t mail_pause_next(uint32_t pause_ms, uint32_t last_ms) {
    uint64_t next = (uint64_t)pause_ms + pause_ms / 2 + 1;
    return next < last_ms ? (uint32_t)next : last_ms;
}

uint32_t mail_pause_spread(uint32_t pause_ms, uint64_t random) {
    return (uint32_t)((uint64_t)pause_ms * (80 + random % 41) / 100);
}

bool mail_stale(int64_t put_s, int64_t now_s, uint32_t timeout_ms) {
    if (put_s <= 0 || now_s <= 0) return false;
    return now_s - put_s > (int64_t)timeout_ms / 1000 + MAIL_SLACK_S;
}
