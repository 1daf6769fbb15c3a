/* SPDX-License-Identifier: Apache-2.0 */
/* http_text.h - the parts of a request that the hub reads itself, beside what libmicrohttpd does: %XX, the
 * path's segments, Range. Pure. */
#ifndef HUB_HTTP_TEXT_H
#define HUB_HTTP_TEXT_H

#include "base/base.h"

/* As libmicrohttpd's own, but for %00: a path would end there for us, and not for whoever looks at it before us.
 * In place; gives the length. */
size_t http_unescape(char *s);
/* "/a/b" in place: segments without their slashes. "/" has none. False: empty segments, or too many. */
bool http_cut(char *path, const char **segments, uint32_t segments_max, uint32_t *out_count);
/* One range only (RFC 9110, 14.2). Parts are within bytes, and count is not 0 then. */
enum http_range { HTTP_RANGE_BAD = -1, HTTP_RANGE_NONE = 0, HTTP_RANGE_PART = 1 };
enum http_range http_range(const char *text, uint64_t bytes, uint64_t *out_from,
                           uint64_t *out_count);

#endif
