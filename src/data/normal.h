/* SPDX-License-Identifier: Apache-2.0 */
/* normal.h - Unicode's normalization form C, in linear time. Inside of the data room; pure.
 *
 * The decompositions and compositions are utf8proc's (Unicode 15.0); the order of marks is made
 * here, because utf8proc's own sorting is quadratic, and a megabyte of marks in the wrong order would
 * take hours. */
#ifndef DATA_NORMAL_H
#define DATA_NORMAL_H

#include "base/base.h"

struct normal; /* a table of the characters that may change; may be shared by threads */
struct normal *normal_create(void);
void normal_destroy(struct normal *n);
/* No character of the text needs a look: it is its own form C. Other texts may be, too. */
bool normal_is_plain(const struct normal *n, const char *text, size_t bytes);
/* Appends the form C of well-formed text. */
void normal_put(const struct normal *n, const char *text, size_t bytes, struct buf *out);

#endif
