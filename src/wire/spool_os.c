/* SPDX-License-Identifier: Apache-2.0 */
/* spool_os.c - the site's end of the spool: writes a request, waits for its answer. It looks with growing pauses: a
 * shared filesystem has no notice of a file that another node made. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "wire/spool.h"

enum { PAUSE_FIRST_MS = 2, PAUSE_LAST_MS = 100 };

enum brg_status spool_open(const char *dir, struct err *e) {
    static const char *const below[] = {"req", "run", "ans", "tmp"};
    char path[OS_PATH_MAX];
    struct stat st;
    if (dir[0] != '/')
        return err_set(e, BRG_E_CONFIG, "the spool %.200s: want an absolute path", dir);
    bool fresh = !os_exists(dir);
    TRY(os_mkdirs(dir, e));
    if (fresh && chmod(dir, 0700) != 0) return os_errno(e, errno, "chmod", dir);
    if (stat(dir, &st) != 0) return os_errno(e, errno, "looking at", dir);
    if (st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return err_set(
            e, BRG_E_CONFIG,
            "the spool %.200s: others may write to it, or it is another user's; chmod 700 it", dir);
    for (size_t i = 0; i < ARRAY_COUNT(below); i++)
        TRY(os_mkdirs(os_path(path, dir, "%s", below[i]), e));
    return BRG_OK;
}

/* Whole or not at all; what a crash leaves in tmp is the courier's to sweep. */
static enum brg_status put(const char *dir, const char *id, const struct buf *b, bool transfer,
                           char path[OS_PATH_MAX], struct err *e) {
    char tmp[OS_PATH_MAX];
    os_path(tmp, dir, "tmp/%s", id);
    os_path(path, dir, "req/%s.%c", id, transfer ? 't' : 'c');
    AUTO_CLOSE int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return os_errno(e, errno, "creating", tmp);
    TRY(os_write_all(fd, b->data, b->bytes_count, tmp, e));
    if (rename(tmp, path) != 0) return os_errno(e, errno, "renaming", tmp);
    return BRG_OK;
}

static bool take(const char *path, struct buf *bytes) {
    struct err e;
    if (!os_exists(path)) return false;
    return os_read_file(path, SPOOL_BYTES_MAX, bytes, &e) == BRG_OK;
}

/* How far the courier says it is; a change of any kind is progress. */
static uint64_t progress(const char *path) {
    AUTO_BUF struct buf b = {.bytes_max = 64};
    struct err e;
    uint64_t v = 0;
    if (!os_exists(path) || os_read_file(path, 64, &b, &e) != BRG_OK) return 0;
    return parse_u64(buf_cstr(&b), &v) ? v + 1 : 0;
}

static void pause_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * NS_PER_MS};
    (void)nanosleep(&t, NULL);
}

enum brg_status spool_exchange(const char *dir, const struct spool_request *r,
                               bool (*stopped)(void *user), void *user, struct buf *bytes,
                               struct spool_answer *out, struct err *e) {
    char id[ID_HEX_BYTES], request[OS_PATH_MAX], answer[OS_PATH_MAX], moved[OS_PATH_MAX];
    struct id128 random;
    AUTO_BUF struct buf text = {.bytes_max = SPOOL_BYTES_MAX};
    bool transfer = r->file[0] != '\0';
    os_random(&random, sizeof random);
    id_hex(&random, id);
    os_path(answer, dir, "ans/%s", id);
    os_path(moved, dir, "ans/%s.p", id);
    if (strchr(r->file, '\n') != NULL)
        return err_set(e, BRG_E_CONFIG, "a path with a line end cannot travel through a spool");
    spool_request_encode(r, &text);
    CHECK(!text.overflow);
    TRY(put(dir, id, &text, transfer, request, e));
    time_ns limit = (time_ns)r->timeout_ms * NS_PER_MS, last = os_now();
    uint64_t seen = 0;
    int pause = PAUSE_FIRST_MS;
    while (!take(answer, bytes)) {
        uint64_t now_seen = transfer ? progress(moved) : 0;
        if (now_seen != seen) last = os_now();
        seen = now_seen;
        bool stop = stopped(user);
        if (stop || os_now() - last > limit) {
            (void)unlink(
                request); /* one that is under way ends by itself: every request may be sent again */
            return stop ? err_set(e, BRG_E_TIMEOUT, "stopped")
                        : err_set(e, BRG_E_NET,
                                  "spool %.200s: no answer; is beringia agent running on the login "
                                  "node, with courier.spool set?",
                                  dir);
        }
        pause_ms(pause);
        pause = pause * 3 / 2 + 1 < PAUSE_LAST_MS ? pause * 3 / 2 + 1 : PAUSE_LAST_MS;
    }
    (void)unlink(answer);
    (void)unlink(moved);
    TRY(spool_answer_decode(bytes->data, bytes->bytes_count, out, e));
    if (out->http == 0) return err_set(e, BRG_E_NET, "the courier: %.200s", out->text);
    return BRG_OK;
}
