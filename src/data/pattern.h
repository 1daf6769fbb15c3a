/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h - the patterns of tokenizer.json files, for PCRE2. Inside of the data room; pure.
 *
 * Those patterns are written for Oniguruma or Rust's regex crate. PCRE2 reads most of them alike, but
 * not all: \s takes U+180E, \v and \h are other sets, \p{Han} is another property, [a[b]] is no union.
 * A pattern that would silently mean something else is refused here. */
#ifndef DATA_PATTERN_H
#define DATA_PATTERN_H

#include "base/base.h"

enum { PATTERN_BYTES_MAX = 1 << 14 };
/* Appends the PCRE2 form (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE). Where it cannot, says false
 * and puts the reason into why. */
bool pattern_translate(const char *text, size_t bytes, struct buf *out, char why[120]);
/* Appends a pattern that matches the text itself. */
void pattern_quote(const char *text, size_t bytes, struct buf *out);

#endif
