/* SPDX-License-Identifier: Apache-2.0 */
/* manual.c - see manual.h. */
#include "cli/manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/help_text.h"

#define MANUAL_DATE                                                                                \
    "November 30, 2026" /* of the form of these pages; their text is the program's */
enum { COLUMNS = 76 };

/* ---- Words ---------------------------------------------------------------------------------------- */
static void put_escaped(struct buf *out, const char *begin, const char *end, bool line_begins) {
    if (line_begins && begin < end && (*begin == '.' || *begin == '\'')) buf_printf(out, "\\&");
    for (const char *p = begin; p < end; p++) {
        if (*p == '\\')
            buf_printf(out, "\\e");
        else if (*p == '-' && (p == begin || p[-1] == '-' || p[-1] == ' '))
            buf_printf(out, "\\-"); /* of an option: to be copied as it is */
        else
            buf_u8(out, (uint8_t)*p);
    }
}

static bool ends_sentence(const char *begin, const char *end) {
    while (end > begin && strchr(")\"'`", end[-1]) != NULL) end--;
    return end > begin && strchr(".?!:", end[-1]) != NULL;
}

void manual_text(struct buf *out, const char *begin, const char *end) {
    size_t column = 0;
    const char *p = begin;
    for (;;) {
        while (p < end && (*p == ' ' || *p == '\n')) p++;
        if (p == end) break;
        const char *word = p;
        while (p < end && *p != ' ' && *p != '\n') p++;
        size_t n = (size_t)(p - word);
        if (column > 0 && column + 1 + n > COLUMNS) {
            buf_u8(out, '\n');
            column = 0;
        }
        if (column > 0) buf_u8(out, ' ');
        put_escaped(out, word, p, column == 0);
        column += n + (column > 0);
        if (!ends_sentence(word, p)) continue;
        buf_u8(out, '\n');
        column = 0;
    }
    if (column > 0) buf_u8(out, '\n');
}

void manual_literal(struct buf *out, const char *begin, const char *end) {
    size_t indent = 0;
    while (begin + indent < end && begin[indent] == ' ') indent++;
    buf_printf(out, ".Bd -literal -compact\n");
    for (const char *p = begin; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (stop == NULL) stop = end;
        size_t skip = 0;
        while (skip < indent && p + skip < stop && p[skip] == ' ') skip++;
        put_escaped(out, p + skip, stop, true);
        buf_u8(out, '\n');
        p = stop < end ? stop + 1 : end;
    }
    buf_printf(out, ".Ed\n");
}

/* A word that mdoc may not take for a macro or for punctuation. */
static void put_word(struct buf *out, const char *begin, const char *end) {
    buf_printf(out, "\\&");
    put_escaped(out, begin, end, false);
}

void manual_head(struct buf *out, const char *name, int section, const char *what) {
    buf_printf(out, ".\\\" SPDX-License-Identifier: Apache-2.0\n.Dd " MANUAL_DATE "\n.Dt ");
    for (const char *p = name; *p != '\0'; p++) buf_u8(out, (uint8_t)toupper((unsigned char)*p));
    buf_printf(out, " %d\n.Os\n.Sh NAME\n.Nm %s\n.Nd ", section, name);
    put_escaped(out, what, what + strlen(what), true);
    buf_u8(out, '\n');
}

/* "agent.md 5 site.yaml 5": pairs of name and section, in order. */
static void put_also(struct buf *out, const char *own, const char *also) {
    bool any = false;
    buf_printf(out, ".Sh SEE ALSO\n");
    for (const char *p = also; p != NULL && *p != '\0';) {
        const char *space = strchrnul(p, ' '),
                   *end = *space != '\0' ? strchrnul(space + 1, ' ') : space;
        size_t n = (size_t)(space - p);
        if (strlen(own) != n || memcmp(own, p, n) != 0) {
            if (any) buf_printf(out, " ,\n");
            buf_printf(out, ".Xr %.*s", (int)(end - p), p);
            any = true;
        }
        p = *end != '\0' ? end + 1 : end;
    }
    buf_printf(out, "\n");
}

/* ---- A command ------------------------------------------------------------------------------------ */
/* "--beta2 X, --clip X" or "RUN". */
static void put_term(struct buf *out, const struct help_row *row) {
    buf_printf(out, ".It");
    if (row->term_end - row->term < 2 || memcmp(row->term, "--", 2) != 0) {
        buf_printf(out, " Ar \"");
        put_word(out, row->term, row->term_end);
        buf_printf(out, "\"\n");
        return;
    }
    for (const char *p = row->term; p < row->term_end;) {
        const char *end = p;
        while (end < row->term_end && *end != ' ' && *end != ',') end++;
        if (*p == '-') {
            buf_printf(out, " Fl \\-"); /* which gives the second one */
            put_escaped(out, p + 2, end, false);
        } else {
            buf_printf(out, " Ar ");
            put_word(out, p, end);
        }
        if (end < row->term_end && *end == ',') buf_printf(out, " ,");
        p = end;
        while (p < row->term_end && (*p == ' ' || *p == ',')) p++;
    }
    buf_u8(out, '\n');
}

/* A line of a row that is itself made of columns ("agent     the same") stays a line. */
static bool has_columns(const char *begin, const char *end) {
    const char *p = begin;
    while (p < end && *p == ' ') p++;
    for (; p + 2 < end; p++)
        if (p[0] == ' ' && p[1] == ' ' && p[2] != ' ') return true;
    return false;
}

static void put_row_text(struct buf *out, const struct help_row *row) {
    const char *begin = row->text;
    bool columns = false;
    for (const char *p = row->text; p < row->text_end;) {
        const char *stop = memchr(p, '\n', (size_t)(row->text_end - p));
        if (stop == NULL) stop = row->text_end;
        if (has_columns(p, stop)) {
            manual_text(out, begin, p);
            if (columns || p > row->text) buf_printf(out, ".br\n");
            columns = true;
            begin = p;
        }
        p = stop < row->text_end ? stop + 1 : row->text_end;
    }
    manual_text(out, begin, row->text_end);
}

static void put_rows(struct buf *out, const struct help_block *b) {
    struct help_row row;
    buf_printf(out, ".Bl -tag -width Ds\n");
    for (const char *p = b->begin; help_row_next(&p, b->end, &row);) {
        put_term(out, &row);
        put_row_text(out, &row);
    }
    buf_printf(out, ".El\n");
}

/* Every block of one kind; before: what stands before the first, between: before each further one. */
static size_t put_blocks(struct buf *out, const char *help, enum help_kind kind, const char *before,
                         const char *between) {
    struct help_block b;
    size_t count = 0;
    const char *at = help;
    for (bool first = true; help_block_next(&at, first, &b); first = false) {
        if (b.kind != kind) continue;
        buf_printf(out, "%s", count++ == 0 ? before : between);
        const char *begin = b.begin;
        if (kind == HELP_EXAMPLES)
            begin += begin[0] == 'E' ? strlen("Example: ") : strlen("examples\n");
        if (kind == HELP_ROWS)
            put_rows(out, &b);
        else if (kind == HELP_PROSE)
            manual_text(out, begin, b.end);
        else
            manual_literal(out, begin, b.end);
    }
    return count;
}

void manual_command(struct buf *out, const char *name, const char *help, const char *also) {
    char what[HELP_SHORT_MAX];
    help_title(help, what);
    manual_head(out, name, 1, what);
    (void)put_blocks(out, help, HELP_SYNOPSIS, ".Sh SYNOPSIS\n", ".Pp\n");
    if (put_blocks(out, help, HELP_PROSE, ".Sh DESCRIPTION\n", ".Pp\n") == 0) {
        what[0] = (char)toupper((unsigned char)what[0]);
        buf_printf(out, ".Sh DESCRIPTION\n");
        manual_text(out, what, what + strlen(what));
    }
    (void)put_blocks(out, help, HELP_ROWS, ".Sh OPTIONS\n", ".Pp\n");
    buf_printf(out, ".Sh EXIT STATUS\n0, or the number of the failure: see\n.Xr beringia 1 .\n");
    (void)put_blocks(out, help, HELP_EXAMPLES, ".Sh EXAMPLES\n", ".Pp\n");
    put_also(out, name, also);
}

/* ---- Settings ------------------------------------------------------------------------------------- */
void manual_settings_begin(struct buf *out, const struct manual_settings *m) {
    char name[HELP_WORD_MAX];
    (void)snprintf(name, sizeof name, "beringia-%s", m->name);
    manual_head(out, name, 5, m->what);
    buf_printf(out, ".Sh DESCRIPTION\n");
    manual_text(out, m->about, m->about + strlen(m->about));
    buf_printf(out, ".Pp\n");
    static const char form[] =
        "The form is a small part of YAML: a section, then its keys, two spaces deep; # begins a "
        "comment. An unknown section or key, a key given twice, and a value outside its bounds are "
        "errors that name file, line and column. Durations have a unit (500ms, 30s, 10m, 2h, 1d), "
        "sizes may have one (64, 10k, 2M, 1G).";
    manual_text(out, form, form + strlen(form));
}

void manual_settings_keys(struct buf *out, const struct config_key *keys, size_t count) {
    AUTO_BUF struct buf takes;
    buf_init(&takes, 4096);
    for (size_t i = 0; i < count; i++) {
        bool new_section = i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0;
        if (new_section && i > 0) buf_printf(out, ".El\n");
        if (new_section) buf_printf(out, ".Ss %s\n.Bl -tag -width Ds\n", keys[i].section);
        buf_printf(out, ".It Cm %s\n", keys[i].name);
        if (keys[i].help != NULL) {
            manual_text(out, keys[i].help, keys[i].help + strlen(keys[i].help));
            buf_printf(out, ".br\n");
        }
        buf_reset(&takes);
        config_key_describe(&keys[i], &takes);
        buf_u8(&takes, '.');
        const char *text = buf_cstr(&takes);
        manual_text(out, text, text + strlen(text));
    }
    if (count > 0) buf_printf(out, ".El\n");
}

void manual_settings_end(struct buf *out, const struct manual_settings *m) {
    buf_printf(out, ".Sh EXAMPLES\n");
    manual_literal(out, m->example, m->example + strlen(m->example));
    put_also(out, "", m->also);
}
