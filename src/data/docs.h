/* SPDX-License-Identifier: Apache-2.0 */
/* docs.h - a text file -> its documents. Inside of the data room; pure.
 *
 * NAME.jsonl: one JSON object a line, the document in its field "text"; other fields are ignored.
 * Any other name: plain text, cut at lines that hold only <|endoftext|> or a form feed. Those lines
 * belong to no document. Documents without a byte in them are skipped. */
#ifndef DATA_DOCS_H
#define DATA_DOCS_H

#include "data/data.h"

struct docs {
    const char *name, *text; /* borrowed */
    size_t bytes, at;
    uint64_t line; /* of at, in jsonl */
    bool jsonl;
    void *json; /* the line that out points into */
};
enum brg_status docs_init(struct docs *d, const char *name, const char *text, size_t bytes,
                          struct err *e) MUST_USE;
/* The next document as it stands in the file, for docs_decode: text, or a line of JSON. NULL at the
 * end; borrowed from the file. */
struct docs_span {
    const char *at;
    size_t bytes;
    uint64_t line; /* in jsonl */
};
bool docs_next_span(struct docs *d, struct docs_span *out);
/* The text of a span; *out_bytes 0 where it is to be left out. *json is what out points into: free it
 * with docs_release, or pass it on for the next. Of d only name and jsonl are looked at. */
enum brg_status docs_decode(const struct docs *d, const struct docs_span *span, void **json,
                            const char **out, size_t *out_bytes, struct err *e) MUST_USE;
void docs_release(void **json);
/* *out is NULL at the end; else borrowed until the next call. */
enum brg_status docs_next(struct docs *d, const char **out, size_t *out_bytes, struct err *e)
    MUST_USE;
void docs_fini(struct docs *d);

#endif
