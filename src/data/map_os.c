/* SPDX-License-Identifier: Apache-2.0 */
#include "data/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/os.h"

enum brg_status map_fd(struct map *m, int fd, const char *path, struct err *e) {
    struct stat st;
    *m = (struct map){.data = ""};
    if (fstat(fd, &st) != 0) return os_errno(e, errno, "look at", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, BRG_E_USAGE,
                       "%.400s: is no regular file; name files, not directories or "
                       "pipes",
                       path);
    if (st.st_size == 0) return BRG_OK;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return os_errno(e, errno, "map", path);
    *m = (struct map){.data = p, .bytes = (size_t)st.st_size};
    return BRG_OK;
}

enum brg_status map_open(struct map *m, const char *path, struct err *e) {
    *m = (struct map){0};
    /* Without O_NONBLOCK a pipe without a writer would hang here, before it can be refused. */
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return os_errno(e, errno, "open", path);
    return map_fd(m, fd, path, e);
}

/* The kernel copies from this process to this process: of a page that is not there it says EFAULT, where a load
 * of our own would be a signal. Files that are open instead would be one descriptor a shard: thousands. */
bool map_copy(const struct map *m, size_t offset, size_t n, void *out) {
    CHECK(offset <= m->bytes);
    CHECK(n <= m->bytes - offset);
    uint8_t *to = out;
    const uint8_t *from = (const uint8_t *)m->data + offset;
    while (n > 0) {
        struct iovec here = {to, n}, there = {(void *)(uintptr_t)from, n};
        ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        if (got < 0 && (errno == ENOSYS || errno == EPERM)) { /* a sandbox without this call */
            memcpy(to, from, n);
            return true;
        }
        if (got <= 0) return false;
        to += got;
        from += got;
        n -= (size_t)got;
    }
    return true;
}

void map_close(struct map *m) {
    /* munmap wants a writable pointer to what it will not write. */
    if (m->bytes > 0) CHECK(munmap((void *)(uintptr_t)m->data, m->bytes) == 0);
    *m = (struct map){0};
}
