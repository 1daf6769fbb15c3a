/* SPDX-License-Identifier: Apache-2.0 */
/* undo.h - the log that faultfs.so writes and powercut reads: what was done to the files since the
 * program began, with what is needed to take it back.
 *
 * A record is struct undo_head, then path, path2 and data, without padding. Both programs run on one
 * machine and come from one build, so the struct goes to the file as it is. */
#ifndef SHIM_UNDO_H
#define SHIM_UNDO_H

#include <stdint.h>

enum { UNDO_MAGIC = 0x4f444e55 };

enum undo_kind {
    UNDO_WRITE = 1,    /* data: the old bytes of [offset, offset + length) as far as they existed */
    UNDO_TRUNCATE = 2, /* data: the old bytes from offset, the new size, to the old size */
    UNDO_CREATE = 3,   /* path appeared (open, mkdir, link); path2: the name it was linked from */
    UNDO_REMOVE = 4,   /* path went; path2: where its inode is kept, empty for a directory */
    UNDO_RENAME = 5,   /* path became path2; data: where the inode that path2 had is kept */
    UNDO_SYNC = 6,     /* writes and truncates of inode are durable */
    UNDO_SYNC_DIR = 7, /* creates, removes and renames in directory inode are durable */
    UNDO_SYNC_ALL = 8,
};

struct undo_head {
    uint32_t magic, kind;
    uint64_t inode;
    uint64_t dir, dir2; /* inodes of the directories of path and path2 */
    uint64_t offset, length;
    uint64_t old_size;
    uint32_t path_bytes, path2_bytes;
    uint64_t data_bytes;
};

#endif
