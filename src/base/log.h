/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - private to base: the two things of the world that a log line needs. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/base.h"

enum { LOG_STAMP_BYTES = 32, LOG_LINE_BYTES_MAX = 4096 };

void log_os_stamp(char out[LOG_STAMP_BYTES]); /* "2026-01-31T12:00:00.000Z" */
void log_os_write(const char *line, size_t n);
/* For a library: where the process has closed its standard error, the next file that is opened gets its
 * number, and no line may ever go there. Before anything is opened. */
void log_os_look(void); /* one write(2) to standard error; keeps errno */

#endif
