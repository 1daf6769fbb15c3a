/* SPDX-License-Identifier: Apache-2.0 */
/* successor_os.c - see successor.h. */
#include "cli/successor.h"

#include <unistd.h>

#include "base/os.h"

static const char *mark(char path[OS_PATH_MAX], const char *state_dir) {
    return os_path(path, state_dir, "successor");
}

void successor_ask(const char *state_dir) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    if (os_exists(mark(path, state_dir))) return;
    if (os_write_file_atomic(path, "", 0, &e) != BRG_OK)
        log_line(LOG_WARN, "site", "not_asked", "why=\"%s\"", e.text);
}

bool successor_waits(const char *state_dir) {
    char path[OS_PATH_MAX];
    return os_exists(mark(path, state_dir));
}

void successor_clear(const char *state_dir) {
    char path[OS_PATH_MAX];
    (void)unlink(mark(path, state_dir));
}
