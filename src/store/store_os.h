/* SPDX-License-Identifier: Apache-2.0 */
/* store_os.h - what the shore files of this room share. Private to src/store. */
#ifndef STORE_STORE_OS_H
#define STORE_STORE_OS_H

#include "base/os.h"
#include "store/store.h"

enum { STORE_IO_BYTES = 1 << 20 }; /* one piece of a sequential read */

/* fsync; after a failure the file's pages are in doubt, so it is not tried again. */
enum brg_status store_fsync(int fd, const char *path, struct err *e) MUST_USE;

#endif
