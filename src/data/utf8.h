/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - UTF-8 as the Unicode Standard (15.0, table 3-7) wants it. Inside of the data room; pure. */
#ifndef DATA_UTF8_H
#define DATA_UTF8_H

#include "base/base.h"

/* Bytes of the well-formed character at p[0..n), 0 where there is none. n > 0. */
size_t utf8_char(const uint8_t *p, size_t n);
/* Length of the longest prefix that is well-formed. */
size_t utf8_prefix(const char *text, size_t bytes);
/* The character at p, and its length; p must be well-formed there. */
uint32_t utf8_decode(const uint8_t *p, size_t *out_bytes);
/* Writes at most 4 bytes; c is no surrogate and at most U+10FFFF. */
size_t utf8_encode(uint32_t c, char out[4]);
/* Appends the text, each maximal ill-formed subpart replaced by U+FFFD: the practice of the Unicode
 * Standard (section 3.9), of the WHATWG's decoder and of Rust's from_utf8_lossy. */
void utf8_repair(const char *text, size_t bytes, struct buf *out);
bool utf8_is_space(uint32_t c); /* White_Space: U+0085 is one, U+180E and U+FEFF are none */

#endif
