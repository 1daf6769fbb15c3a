/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_os.c - brings a file's header to the parser. Only the header is read: the data of a
 * model is gigabytes, and who wants them reads them at tensor.offset. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/os.h"
#include "store/store.h"

enum { HEADER_FILE_MAX = 100 * 1000 * 1000 + 8 };

enum brg_status tensors_read(const char *path, struct tensors *out, struct err *e) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) return os_errno(e, errno, "stat", path);
    if (!S_ISREG(st.st_mode)) return err_set(e, BRG_E_CHECKPOINT, "%s: not a regular file", path);
    uint64_t file_bytes = (uint64_t)st.st_size;
    uint8_t head[8];
    if (file_bytes < sizeof head) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: shorter than a safetensors header", path);
    }
    TRY(os_pread_all(fd, head, sizeof head, 0, path, e));
    uint64_t header = get_le64(head);
    if (header > HEADER_FILE_MAX - 8 || header > file_bytes - 8) {
        return err_set(
            e, BRG_E_CHECKPOINT,
            "%s: header of %llu bytes does not fit the file; it is cut off or not safetensors",
            path, (unsigned long long)header);
    }
    size_t n = (size_t)header + 8;
    AUTO_FREE uint8_t *data = try_mem_alloc(n, 1);
    if (data == NULL) return err_set(e, BRG_E_MEMORY, "%s: header of %zu bytes", path, n);
    TRY(os_pread_all(fd, data, n, 0, path, e));
    return tensors_parse(data, n, file_bytes, path, out, e);
}
