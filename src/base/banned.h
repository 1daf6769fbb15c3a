/* SPDX-License-Identifier: Apache-2.0 */
/* banned.h - functions that no code here may use, as compile errors. The Makefile includes this
 * header before every source, so nobody has to remember it.
 *
 *   strcpy strcat sprintf strtok gets   no bound, or hidden state    -> snprintf, struct buf
 *   atoi                                no way to see a wrong number -> parse_u64
 *   rand                                hidden state                 -> struct prng
 *   localtime gmtime ctime              shared static result         -> gmtime_r and the like
 *
 * The headers that declare them come first: after the pragma the names may not appear at all. */
#ifndef BASE_BANNED_H
#define BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat sprintf strtok gets atoi rand localtime gmtime ctime

#endif
