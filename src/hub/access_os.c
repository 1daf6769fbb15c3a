/* SPDX-License-Identifier: Apache-2.0 */
/* access_os.c - RUN/access.jsonl: one line of JSON for each privileged call. Opened for each line, so that it
 * may be moved away by whoever keeps logs; written by one write, so that lines of two processes do not mix. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "hub/gate_os.h"
#include "wire/json.h"

enum { LINE_MAX_BYTES = 16 * 1024 };

static void stamp(char out[40]) {
    struct timespec now;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + n, 40 - n, ".%03dZ", (int)(now.tv_nsec / NS_PER_MS));
}

static void member_if(struct buf *b, bool *first, const char *key, const char *text) {
    if (text[0] != '\0') json_member_text(b, first, key, text);
}

static void line_put(struct buf *b, const struct caller *c, const struct access_entry *x) {
    char at[40];
    bool first = true;
    stamp(at);
    buf_u8(b, '{');
    json_member_text(b, &first, "at", at);
    json_member_text(b, &first, "who", x->who);
    member_if(b, &first, "token", c->id);
    if (c->scope != 0) json_member_text(b, &first, "scope", token_scope_name(c->scope));
    member_if(b, &first, "name", c->name);
    member_if(b, &first, "from", c->from);
    json_member_text(b, &first, "what", x->what);
    if (x->args != NULL) {
        json_key(b, &first, "args");
        buf_put(b, x->args, strlen(x->args));
    }
    if (x->http != 0) json_member_u64(b, &first, "http", (uint64_t)x->http);
    buf_put(b, "}\n", 2);
}

enum brg_status access_append(const char *run_dir, const struct caller *c,
                              const struct access_entry *x, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, LINE_MAX_BYTES);
    line_put(&b, c, x);
    CHECK(!b.overflow);
    os_path(path, run_dir, "access.jsonl");
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    TRY(os_write_all(fd, b.data, b.bytes_count, path, e));
    return fdatasync(fd) == 0 ? BRG_OK : os_errno(e, errno, "syncing", path);
}
