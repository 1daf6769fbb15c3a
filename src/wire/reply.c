/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/reply.h"

#include <string.h>

bool reply_offset_read(const char *text, uint64_t *out) {
    static const char key[] = "\"offset\"";
    const char *at = strstr(text, key);
    if (!at) return false;
    at += sizeof key - 1;
    while (*at == ' ' || *at == ':') at++;
    uint64_t v = 0;
    if (*at < '0' || *at > '9') return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (v > UINT64_MAX / 10 - 1) return false;
        v = v * 10 + (uint64_t)(*at - '0');
    }
    *out = v;
    return true;
}

void reply_head(const void *body, size_t n, char out[REPLY_HEAD_SHOWN + 1]) {
    const uint8_t *b = body;
    size_t count = n < REPLY_HEAD_SHOWN ? n : REPLY_HEAD_SHOWN;
    for (size_t i = 0; i < count; i++) out[i] = (char)(b[i] >= 0x20 && b[i] < 0x7f ? b[i] : ' ');
    out[count] = '\0';
}
