/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - one line an event, logfmt:
 *   ts=2026-01-31T12:00:00.000Z lvl=info room=lease ev=granted lease=17 site=3 fence=91
 * A line is formatted here and handed to log_os.c whole, so that lines of several threads and
 * processes that share standard error do not mix. A line too long is cut, never split. */
#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

/* The one piece of state that is not passed in: a level for the whole process, set at start. */
static atomic_int level_now = LOG_INFO;

void log_level_set(enum log_level level) {
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool log_level_parse(const char *name, enum log_level *out) {
    for (size_t i = 0; i < ARRAY_COUNT(level_names); i++) {
        if (strcmp(level_names[i], name) != 0) continue;
        *out = (enum log_level)i;
        return true;
    }
    return false;
}

void log_line(enum log_level level, const char *room, const char *event, const char *fmt, ...) {
    if ((int)level > atomic_load_explicit(&level_now, memory_order_relaxed)) return;
    CHECK((size_t)level < ARRAY_COUNT(level_names));
    char stamp[LOG_STAMP_BYTES];
    char line[LOG_LINE_BYTES_MAX];
    const size_t room_bytes = sizeof line - 1; /* the newline always fits */
    log_os_stamp(stamp);
    int n = snprintf(line, room_bytes, "ts=%s lvl=%s room=%s ev=%s", stamp, level_names[level],
                     room, event);
    size_t used = n < 0 ? 0 : (size_t)n < room_bytes ? (size_t)n : room_bytes - 1;
    if (fmt && fmt[0] != '\0' && used + 2 < room_bytes) {
        line[used++] = ' ';
        va_list args;
        va_start(args, fmt);
        n = vsnprintf(line + used, room_bytes - used, fmt, args);
        va_end(args);
        size_t left = room_bytes - used - 1;
        used += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left;
    }
    /* A control character from outside must not be able to forge a second line. */
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = ' ';
    line[used++] = '\n';
    log_os_write(line, used);
}

static bool wants_quotes(const char *value) {
    if (value[0] == '\0') return true;
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7F || *p == '=' || *p == '"' || *p == '\\')
            return true;
    return false;
}

const char *log_quote(const char *value, char *buf, size_t cap) {
    CHECK(cap >= 8);
    size_t used = 0;
    bool quotes = wants_quotes(value);
    /* Room is kept for one escape, the closing quote and the NUL. */
    if (quotes) buf[used++] = '"';
    for (const char *p = value; *p && used + 4 < cap; p++) {
        char c = *p;
        if (c == '"' || c == '\\') {
            buf[used++] = '\\';
        } else if (c == '\n') {
            buf[used++] = '\\';
            c = 'n';
        } else if ((unsigned char)c < ' ' || c == 0x7F) {
            c = '?';
        }
        buf[used++] = c;
    }
    if (quotes) buf[used++] = '"';
    buf[used] = '\0';
    return buf;
}
