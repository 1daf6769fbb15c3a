/* SPDX-License-Identifier: Apache-2.0 */
/* dashboard_os.c - what people's eyes and their monitoring read: the page, the lists behind it, /metrics. All of
 * it only reads, and tells nothing that is not durable yet. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "hub/events_os.h"
#include "hub/heldout.h"
#include "hub/page.h"
#include "wire/json.h"

enum { LIST_BYTES_MAX = 64 << 20, VERSIONS_MAX = 1000 };

static enum MHD_Result answer(struct exchange *x, struct MHD_Response *r, const char *type) {
    CHECK(r != NULL);
    (void)MHD_add_response_header(r, "Content-Type", type);
    return reply_response(x, 200, r);
}

/* ---- The page -------------------------------------------------------------------------------------- */
/* Nothing of another origin is ever loaded, and nobody may put the page into a frame; the page itself says
 * by their hashes which script and style are its own (web/build). */
enum MHD_Result handle_page(struct exchange *x) {
    size_t bytes;
    const char *html = page_html(&bytes);
    union { /* MHD takes a plain pointer, and does not write with this mode */
        const char *from;
        char *to;
    } cast = {.from = html};
    struct MHD_Response *r =
        MHD_create_response_from_buffer(bytes, cast.to, MHD_RESPMEM_PERSISTENT);
    CHECK(r != NULL);
    (void)MHD_add_response_header(r, "Content-Security-Policy",
                                  "frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
    (void)MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    return answer(x, r, "text/html; charset=utf-8");
}

/* ---- Lists ----------------------------------------------------------------------------------------- */
enum MHD_Result handle_timeline(struct exchange *x) {
    struct hub_server *s = x->s;
    AUTO_BUF struct buf b;
    const char *text = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "since");
    double since = 0;
    buf_init(&b, LIST_BYTES_MAX);
    if (text != NULL && (!parse_f64(text, &since) || !(since >= 0) || since > 1e10))
        return reply_problem(x, 400, WIRE_BAD, "since: want seconds since 1970");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    events_timeline(s->events, server_now(s), (time_ns)(since * 1e3) * NS_PER_MS, &b);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

static int newest_first(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The numbers in RUN/versions/, which has a name for each checkpoint that is kept; newest first. */
static size_t kept_versions(const struct hub_server *s, uint64_t **out) {
    char path[OS_PATH_MAX], digits[32];
    size_t count = 0, cap = 64;
    uint64_t *list = mem_alloc(cap, sizeof *list);
    DIR *d = opendir(os_path(path, s->dir.path, "versions"));
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        size_t n = strcspn(e->d_name, ".");
        if (n >= sizeof digits || strcmp(e->d_name + n, ".safetensors") != 0) continue;
        if (count == cap) {
            list = mem_grow(list, cap, 2 * cap, sizeof *list);
            cap *= 2;
        }
        (void)snprintf(digits, sizeof digits, "%.*s", (int)n, e->d_name);
        count += parse_u64(digits, &list[count]);
    }
    if (d != NULL) (void)closedir(d);
    qsort(list, count, sizeof *list, newest_first);
    *out = list;
    return count;
}

enum MHD_Result handle_versions(struct exchange *x) {
    struct hub_server *s = x->s;
    AUTO_BUF struct buf b;
    uint64_t *list = NULL;
    size_t count = kept_versions(s, &list), told = 0;
    buf_init(&b, LIST_BYTES_MAX);
    buf_printf(&b, "{\"versions\":[");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    for (size_t i = 0; i < count && told < VERSIONS_MAX; i++) {
        struct hub_version_view v;
        bool first = true;
        memset(&v, 0, sizeof v);
        if (!hub_version_find(s->hub, list[i], &v)) continue;
        buf_printf(&b, told++ > 0 ? ",{" : "{");
        view_version(&v, &b, &first);
        buf_u8(&b, '}');
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    bool weights = x->who.scope == 0 || (SCOPES_WEIGHTS & 1u << x->who.scope) != 0;
    buf_printf(&b, "],\"count\":%zu,\"weights\":%s}\n", count, weights ? "true" : "false");
    mem_free(list);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

/* What `beringia eval RUN --record` found; a file of the run directory, read when somebody asks. */
enum MHD_Result handle_heldout(struct exchange *x) {
    struct hub_server *s = x->s;
    char path[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf text;
    AUTO_BUF struct buf b;
    buf_init(&text, HELDOUT_BYTES_MAX);
    buf_init(&b, LIST_BYTES_MAX);
    os_path(path, s->dir.path, HELDOUT_FILE);
    if (os_exists(path) && os_read_file(path, HELDOUT_BYTES_MAX, &text, &e) != BRG_OK) {
        log_line(LOG_WARN, "hub", "heldout_unreadable", "cause=\"%s\"", e.text);
        buf_reset(&text);
    }
    struct heldout *list = NULL;
    size_t count = heldout_parse((const char *)text.data, text.bytes_count, &list);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    heldout_view(list, count, s->hub, &b);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    mem_free(list);
    enum step_result step = server_settle(s);
    return step == STEP_DONE ? reply_json(x, 200, &b) : reply_step(x, step);
}

/* ---- /metrics -------------------------------------------------------------------------------------- */
static uint64_t count_files(void) {
    uint64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL) return 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    (void)closedir(d);
    return n > 0 ? n - 1 : 0; /* the directory's own */
}

static void of_process(struct metrics_extra *m) {
    struct rusage u;
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, 64 * 1024);
    if (getrusage(RUSAGE_SELF, &u) == 0)
        m->cpu_s = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                   (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    m->open_files = count_files();
    if (os_read_file("/proc/self/status", 64 * 1024, &b, &e) != BRG_OK) return;
    const char *text = buf_cstr(&b), *at = strstr(text, "\nVmRSS:");
    if (at != NULL) m->resident_bytes = strtoull(at + 7, NULL, 10) * 1024;
    at = strstr(text, "\nThreads:");
    if (at != NULL) m->threads = strtoull(at + 9, NULL, 10);
}

enum MHD_Result handle_metrics(struct exchange *x) {
    struct hub_server *s = x->s;
    struct metrics_extra m = {0};
    struct statvfs disk;
    AUTO_BUF struct buf b;
    buf_init(&b, LIST_BYTES_MAX);
    of_process(&m);
    if (statvfs(s->dir.path, &disk) == 0)
        m.disk_free_bytes = (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
    events_figures(s->events, &m);
    struct gate_figures gate = gate_figures(s->gate);
    m.connections = gate.connections;
    m.strangers = gate.strangers;
    m.cut = gate.cut;
    m.refused = gate.refused;
    m.limited = gate.limited;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    struct view_extra extra = server_view_extra(s);
    metrics_put(s->hub, server_now(s), &s->dir.settings, &extra, &m, &b);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum step_result step = server_settle(s);
    if (step != STEP_DONE) return reply_step(x, step);
    CHECK(!b.overflow);
    return answer(x, MHD_create_response_from_buffer(b.bytes_count, b.data, MHD_RESPMEM_MUST_COPY),
                  "text/plain; version=0.0.4; charset=utf-8");
}
