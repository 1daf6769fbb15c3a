/* SPDX-License-Identifier: Apache-2.0 */
/* json_scan.h - reading a JSON text in one pass, without a tree. Inside of the data room; pure.
 *
 * A tokenizer.json of ten megabytes is a dictionary of 150,000 words and a list as long; a tree of it
 * costs a hundred megabytes and half a second. So the two large values are read with this scanner,
 * and the small ones are cut out (scan_skip) and given to jansson, which checks them. */
#ifndef DATA_JSON_SCAN_H
#define DATA_JSON_SCAN_H

#include "base/base.h"

struct json_scan {
    const char *text; /* borrowed */
    size_t bytes, at;
};
/* Each skips blanks first, and says false, at the offending byte, where the text is another. */
bool scan_char(struct json_scan *s, char c);            /* takes c, or leaves the text as it is */
bool scan_string(struct json_scan *s, struct buf *out); /* decoded, well-formed UTF-8; resets out */
bool scan_u64(struct json_scan *s, uint64_t *out);      /* digits only, no fraction behind them */
bool scan_skip(struct json_scan *s, size_t *out_begin); /* one value, from *out_begin to s->at */
bool scan_end(struct json_scan *s);                     /* nothing but blanks follows */

#endif
