/* SPDX-License-Identifier: Apache-2.0 */
/* keys_os.c - where credentials come from: a file of the run's own, the environment, the user's usual file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "object/object.h"

enum { KEYS_FILE_MAX = 64 << 10 };

static const char *environment(const char *name) {
    const char *v = getenv(name); /* nobody calls setenv once threads run */
    return v != NULL ? v : "";
}

static enum brg_status from_file(const char *path, struct object_keys *out, struct err *e) {
    AUTO_BUF struct buf text;
    struct stat st;
    const char *profile = environment("AWS_PROFILE");
    buf_init(&text, KEYS_FILE_MAX);
    if (stat(path, &st) != 0) return os_errno(e, errno, "looking at", path);
    if ((st.st_mode & 077) != 0)
        return err_set(e, BRG_E_CONFIG, "%s: others may read these credentials; chmod 600 it",
                       path);
    TRY(os_read_file(path, KEYS_FILE_MAX, &text, e));
    enum brg_status s = object_keys_parse(path, text.data, text.bytes_count,
                                          *profile != '\0' ? profile : "default", out, e);
    if (text.data != NULL) explicit_bzero(text.data, text.bytes_count);
    return s;
}

static bool fits(const char *text, size_t cap) {
    return strlen(text) < cap && strpbrk(text, " \t\r\n") == NULL;
}

static enum brg_status from_environment(struct object_keys *out, struct err *e) {
    const char *id = environment("AWS_ACCESS_KEY_ID");
    const char *secret = environment("AWS_SECRET_ACCESS_KEY");
    const char *session = environment("AWS_SESSION_TOKEN");
    struct object_keys k = {.id = ""};
    if (*secret == '\0')
        return err_set(e, BRG_E_CONFIG, "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not");
    if (!fits(id, sizeof k.id) || !fits(secret, sizeof k.secret) ||
        !fits(session, sizeof k.session))
        return err_set(
            e, BRG_E_CONFIG,
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN: too long, or "
            "has blanks");
    (void)snprintf(k.id, sizeof k.id, "%s", id);
    (void)snprintf(k.secret, sizeof k.secret, "%s", secret);
    (void)snprintf(k.session, sizeof k.session, "%s", session);
    *out = k;
    object_keys_wipe(&k);
    return BRG_OK;
}

enum brg_status object_keys_read(const char *file, struct object_keys *out, struct err *e) {
    char path[OS_PATH_MAX];
    if (*file != '\0') return from_file(file, out, e);
    if (*environment("AWS_ACCESS_KEY_ID") != '\0') return from_environment(out, e);
    const char *shared = environment("AWS_SHARED_CREDENTIALS_FILE"), *home = environment("HOME");
    if (*shared != '\0') return from_file(shared, out, e);
    if (*home != '\0' && strlen(home) < sizeof path - 64 &&
        os_exists(os_path(path, home, ".aws/credentials")))
        return from_file(path, out, e);
    return err_set(e, BRG_E_CONFIG,
                   "no credentials for the object store: set blobs.credentials to a file, or "
                   "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials");
}
