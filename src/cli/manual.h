/* SPDX-License-Identifier: Apache-2.0 */
/* manual.h - pages for man in mdoc's form (mandoc, groff): section 1 from a command's --help, section 5 from the
 * tables of keys that read a settings file. Pure. */
#ifndef CLI_MANUAL_H
#define CLI_MANUAL_H

#include "base/config.h"

/* ---- Words ---------------------------------------------------------------------------------------- */
/* Text as it is, in lines of less than 80 columns, each sentence on a line of its own. */
void manual_text(struct buf *out, const char *begin, const char *end);
/* Lines as they are, in a display. */
void manual_literal(struct buf *out, const char *begin, const char *end);
void manual_head(struct buf *out, const char *name, int section, const char *what);

/* ---- Pages ---------------------------------------------------------------------------------------- */
/* Of one command; help is what its --help prints. also: names of other pages, "run.yaml 5", or NULL. */
void manual_command(struct buf *out, const char *name, const char *help, const char *also);

struct manual_settings {
    const char *name, *what; /* "run.yaml", half a sentence */
    const char *about;       /* some sentences */
    const char *example;     /* lines of YAML */
    const char *also;
};
void manual_settings_begin(struct buf *out, const struct manual_settings *m);
void manual_settings_keys(struct buf *out, const struct config_key *keys, size_t count);
void manual_settings_end(struct buf *out, const struct manual_settings *m);

#endif
