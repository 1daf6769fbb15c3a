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
/* *out is NULL at the end; else borrowed until the next call. */
enum brg_status docs_next(struct docs *d, const char **out, size_t *out_bytes, struct err *e)
    MUST_USE;
void docs_fini(struct docs *d);

#endif
