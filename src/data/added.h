/* SPDX-License-Identifier: Apache-2.0 */
/* added.h - added tokens: strings that are cut out of a text before it is split into words. Inside of
 * the data room; pure.
 *
 * At each place the longest token that begins there is taken, the leftmost place first. Two sets: raw
 * tokens are looked for in the text as it came, the others in what the normalizer made of the rest. */
#ifndef DATA_ADDED_H
#define DATA_ADDED_H

#include "base/base.h"

enum { ADDED_MAX = 1 << 16, ADDED_BYTES_MAX = 1024 };

struct added_token {
    char *content;
    uint32_t bytes, id;
    bool special;        /* a control token: in a text it counts only for those who ask for it */
    bool single_word;    /* not where a letter or digit touches it */
    bool lstrip, rstrip; /* takes the blanks before, behind it along */
    bool normalized;
};

struct added_set; /* a tree of bytes; may be shared by threads */
struct added_set *added_set_create(void);
void added_set_destroy(struct added_set *s);
/* text is looked for, token (borrowed) is what it means; the first of equal texts stays. */
void added_set_put(struct added_set *s, const char *text, size_t bytes,
                   const struct added_token *token);
bool added_set_empty(const struct added_set *s);

/* The next token in text[at..bytes): false where there is none. *out_begin and *out_end enclose it
 * with the blanks it takes along, *next is where to look on; begin is not before `from`, the end of
 * the one before. Special tokens are left in the text where special is false. */
struct added_walk {
    const char *text;
    size_t bytes, next, from;
    bool special;
};
bool added_next(const struct added_set *s, struct added_walk *w, const struct added_token **out,
                size_t *out_begin, size_t *out_end);

#endif
