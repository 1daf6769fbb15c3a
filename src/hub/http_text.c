/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/http_text.h"

#include <string.h>

size_t http_unescape(char *s) {
    char *to = s;
    for (const char *p = s; *p != '\0';) {
        uint8_t byte = 0;
        char hex[3] = {0};
        if (*p == '%' && p[1] != '\0') memcpy(hex, p + 1, 2);
        if (hex[1] != '\0' && hex_decode(hex, &byte, 1) && byte != 0) {
            *to++ = (char)byte;
            p += 3;
        } else {
            *to++ = *p++;
        }
    }
    *to = '\0';
    return (size_t)(to - s);
}

bool http_cut(char *path, const char **segments, uint32_t segments_max, uint32_t *out_count) {
    *out_count = 0;
    if (path[0] != '/') return false;
    if (path[1] == '\0') return true;
    for (char *p = path; *p != '\0';) {
        *p++ = '\0'; /* a slash */
        if (*p == '\0' || *p == '/') return false;
        if (*out_count == segments_max) return false;
        segments[(*out_count)++] = p;
        while (*p != '\0' && *p != '/') p++;
    }
    return true;
}

/* HTTP_RANGE_NONE: there is none, or it is not understood; then all is sent. */
enum http_range http_range(const char *text, uint64_t bytes, uint64_t *out_from,
                           uint64_t *out_count) {
    uint64_t from, to;
    char a[24] = "", b[24] = "";
    if (strncmp(text, "bytes=", 6) != 0 || strchr(text, ',') != NULL) return HTTP_RANGE_NONE;
    const char *dash = strchr(text + 6, '-');
    if (dash == NULL || (size_t)(dash - text - 6) >= sizeof a || strlen(dash + 1) >= sizeof b)
        return HTTP_RANGE_NONE;
    memcpy(a, text + 6, (size_t)(dash - text - 6));
    memcpy(b, dash + 1, strlen(dash + 1));
    if (a[0] == '\0') { /* the last so many bytes */
        if (!parse_u64(b, &to)) return HTTP_RANGE_NONE;
        if (to == 0 || bytes == 0) return HTTP_RANGE_BAD;
        *out_count = to < bytes ? to : bytes;
        *out_from = bytes - *out_count;
        return HTTP_RANGE_PART;
    }
    if (!parse_u64(a, &from) || (b[0] != '\0' && !parse_u64(b, &to))) return HTTP_RANGE_NONE;
    if (b[0] == '\0' || to >= bytes) to = bytes > 0 ? bytes - 1 : 0;
    if (from >= bytes) return HTTP_RANGE_BAD;
    if (to < from) return HTTP_RANGE_NONE;
    *out_from = from;
    *out_count = to - from + 1;
    return HTTP_RANGE_PART;
}
