/* SPDX-License-Identifier: Apache-2.0 */
/* help_text.h - a command's --help taken apart: the one source of completions and of the manual's section 1,
 * so that neither can say something else than --help. Pure.
 *
 *   beringia NAME - what it does                    HELP_TITLE
 *                                                   (an empty line between blocks)
 *     beringia NAME WORDS [--option VALUE]          HELP_SYNOPSIS: the second block
 *
 *     --option VALUE  what it says, and             HELP_ROWS: two spaces, a term, its text
 *                     on further lines
 *
 *   Prose, not indented.                            HELP_PROSE
 *
 *   examples                                        HELP_EXAMPLES, or "Example: ..." on one line
 *     beringia NAME ...
 */
#ifndef CLI_HELP_TEXT_H
#define CLI_HELP_TEXT_H

#include "base/base.h"

enum help_kind { HELP_TITLE, HELP_SYNOPSIS, HELP_ROWS, HELP_PROSE, HELP_EXAMPLES };

struct help_block { /* borrows the text */
    enum help_kind kind;
    const char *begin, *end; /* end: behind the last newline */
};
/* The next block behind *at; *at must first be the text's begin, and `first` true then. */
bool help_block_next(const char **at, bool first, struct help_block *out);

struct help_row {
    const char *term, *term_end; /* "--beta2 X, --clip X" */
    const char *text, *text_end; /* of the first line and all further ones, as they are */
};
bool help_row_next(const char **at, const char *end, struct help_row *out);

enum { HELP_WORD_MAX = 48, HELP_OPTIONS_MAX = 64, HELP_VERBS_MAX = 8, HELP_SHORT_MAX = 200 };
struct help_option {
    char name[HELP_WORD_MAX];  /* without the two dashes */
    char value[HELP_WORD_MAX]; /* "FILE"; "": takes none */
    char text[HELP_SHORT_MAX]; /* what it says, on one line, cut where it is long */
    bool many;                 /* may come often */
};
/* The options of "--help" itself, then those of rows, then those that only the synopsis has. */
size_t help_options(const char *text, struct help_option out[HELP_OPTIONS_MAX]);

/* The fixed words of the synopsis, `create` in "beringia token RUN create", and which of the words that are
 * no options they are: 0 for the first. */
struct help_verbs {
    char words[HELP_VERBS_MAX][HELP_WORD_MAX];
    size_t count, place;
};
void help_verbs(const char *text, struct help_verbs *out);

/* "what it does", of the title. */
void help_title(const char *text, char out[HELP_SHORT_MAX]);

#endif
