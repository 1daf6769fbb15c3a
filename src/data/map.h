/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - whole files, mapped read-only. Inside of the data room's shore.
 * Reading where a file was truncated since, or where its disk fails, is SIGBUS, and in a library that is the
 * end of somebody else's process: shards are read by map_copy alone. Texts, which only the program reads, are read
 * in place, and cli/bus_os.c says which file it was. */
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
/* n bytes from offset on, within m->bytes. False where the file does not have them (any more). What was cut off
 * within the last page that is left reads as zeros: only looking at the size would tell. */
bool map_copy(const struct map *m, size_t offset, size_t n, void *out) MUST_USE;
void map_close(struct map *m); /* takes zeroed structs too */

#endif
