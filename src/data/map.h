/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - whole files, mapped read-only. Inside of the data room's shore.
 * A file that is truncated while it is mapped ends the process by SIGBUS: that is the price for
 * reading shards and texts of any size without a copy. */
#ifndef DATA_MAP_H
#define DATA_MAP_H

#include "data/data.h"

struct map {
    const void *data; /* "" where the file is empty */
    size_t bytes;
};
/* Regular files only. */
enum brg_status map_open(struct map *m, const char *path, struct err *e) MUST_USE;
enum brg_status map_fd(struct map *m, int fd, const char *path, struct err *e) MUST_USE;
void map_close(struct map *m); /* takes zeroed structs too */

#endif
