/* SPDX-License-Identifier: Apache-2.0 */
/* split.h - text -> words, by the steps of a pre-tokenizer. Inside of the data room. */
#ifndef DATA_SPLIT_H
#define DATA_SPLIT_H

#include "base/base.h"

enum { SPLIT_STEPS_MAX = 16 };

/* What becomes of the matches of a pattern, and of what lies between them. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

/* Patterns whose answer for ASCII text is also known by hand, which is ten times as fast. */
enum split_family { SPLIT_OTHER, SPLIT_QWEN2, SPLIT_LLAMA3, SPLIT_GPT2, SPLIT_FAMILIES };
const char *split_pattern(enum split_family f); /* NULL for SPLIT_OTHER */

struct splitter; /* may be shared by threads once it is complete */
struct splitter *splitter_create(void);
void splitter_destroy(struct splitter *s);
/* Adds a step. text is the pattern as a tokenizer.json has it (quoted: it means itself). On failure
 * why says what is wrong. */
bool splitter_add(struct splitter *s, const char *text, size_t bytes, bool quoted,
                  enum split_behavior behavior, bool invert, char why[160]);
/* Adds a step that puts a blank before each piece that begins with none. */
bool splitter_add_blank(struct splitter *s, char why[160]);
/* Adds a known pattern as an isolating step. */
void splitter_add_family(struct splitter *s, enum split_family f);
/* One step, of a known family, that keeps everything. */
bool splitter_is_simple(const struct splitter *s);
/* Every byte of a text is in some word, in order, and nothing is added. */
bool splitter_is_whole(const struct splitter *s);
/* Appends what the steps are, for hashing. */
void splitter_describe(const struct splitter *s, struct buf *out);

/* ---- A simple splitter, word by word ---------------------------------------------------------
 * Words follow each other without gaps and cover every byte. Bytes that are no UTF-8 come as words of
 * their own, one a maximal run. */
struct words {
    const struct splitter *splitter;
    void *match, *context, *stack; /* PCRE2's */
    const char *text;              /* borrowed */
    size_t bytes, at;
    size_t run_end;                     /* up to here the text is valid UTF-8 */
    bool shortcut;                      /* ASCII by hand; tests compare with and without */
    bool failed;                        /* a limit of PCRE2's: the text from `at` on is not split */
    struct buf blanks[SPLIT_STEPS_MAX]; /* scratch: pieces with a blank before them */
};
void words_init(struct words *w, const struct splitter *s);
void words_start(struct words *w, const char *text, size_t bytes);
bool words_next(struct words *w, const char **out, size_t *out_bytes);
void words_fini(struct words *w);

/* Any splitter: calls fn for each word of the text. False where PCRE2 met a limit. */
typedef void word_fn(const char *word, size_t bytes, void *user);
bool words_each(struct words *w, const char *text, size_t bytes, word_fn *fn, void *user);

#endif
