/* SPDX-License-Identifier: Apache-2.0 */
/* help_text.c - see help_text.h. The form is the house's own, so a text that does not follow it is not refused
 * here: test/e2e/manual.py compares what comes out with the tables that the commands parse by. */
#include "cli/help_text.h"

#include <string.h>

static const char *line_end(const char *p, const char *end) {
    const char *n = memchr(p, '\n', (size_t)(end - p));
    return n != NULL ? n + 1 : end;
}

static size_t spaces(const char *p, const char *end) {
    size_t n = 0;
    while (p + n < end && p[n] == ' ') n++;
    return n;
}

static bool begins(const char *p, const char *end, const char *word) {
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

static void copy(char *out, size_t cap, const char *p, const char *end) {
    size_t n = (size_t)(end - p) < cap - 1 ? (size_t)(end - p) : cap - 1;
    memcpy(out, p, n);
    out[n] = '\0';
}

/* ---- Blocks and rows ------------------------------------------------------------------------------ */
bool help_block_next(const char **at, bool first, struct help_block *out) {
    const char *p = *at, *end = p + strlen(p);
    bool second = !first && p[0] == '\n' && begins(p + 1, end, "  beringia ");
    while (*p == '\n') p++;
    if (*p == '\0') return false;
    out->begin = p;
    while (p < end && *p != '\n') p = line_end(p, end);
    out->end = *at = p;
    if (first)
        out->kind = HELP_TITLE;
    else if (second)
        out->kind = HELP_SYNOPSIS;
    else if (begins(out->begin, end, "examples\n") || begins(out->begin, end, "Example: "))
        out->kind = HELP_EXAMPLES;
    else
        out->kind = out->begin[0] == ' ' ? HELP_ROWS : HELP_PROSE;
    return true;
}

/* Behind "--name", and behind " VALUE" where one follows: a word in capitals after one space. */
static const char *option_end(const char *p, const char *end, const char **out_value) {
    while (p < end && *p != ' ' && *p != ',' && *p != '\n' && *p != ']' && *p != '=') p++;
    *out_value = NULL;
    if (p + 1 < end && *p == ' ' && p[1] >= 'A' && p[1] <= 'Z') {
        *out_value = ++p;
        while (p < end && *p != ' ' && *p != ',' && *p != '\n' && *p != ']') p++;
    }
    return p;
}

bool help_row_next(const char **at, const char *end, struct help_row *out) {
    const char *p = *at, *value;
    if (p >= end) return false;
    const char *stop = line_end(p, end);
    p += spaces(p, stop);
    out->term = p;
    if (begins(p, stop, "--")) {
        p = option_end(p, stop, &value);
        while (begins(p, stop, ", --")) p = option_end(p + 2, stop, &value);
    } else {
        while (p < stop && *p != '\n' && !begins(p, stop, "  ")) p++;
    }
    out->term_end = p;
    out->text = p + spaces(p, stop);
    while (stop < end && spaces(stop, end) > 2) stop = line_end(stop, end);
    out->text_end = *at = stop;
    return true;
}

/* On one line, with one space between words. */
static void flatten(const struct help_row *row, char out[HELP_SHORT_MAX]) {
    size_t n = 0;
    for (const char *p = row->text; p < row->text_end && n < HELP_SHORT_MAX - 1; p++) {
        bool space = *p == ' ' || *p == '\n';
        if (space && (n == 0 || out[n - 1] == ' ')) continue;
        out[n++] = space ? ' ' : *p;
    }
    while (n > 0 && out[n - 1] == ' ') n--;
    out[n] = '\0';
}

/* ---- Options -------------------------------------------------------------------------------------- */
struct taken {
    struct help_option *all;
    size_t count;
};

static struct help_option *take(struct taken *t, const char *p, const char *name_end,
                                const char *value, const char *value_end) {
    char name[HELP_WORD_MAX];
    copy(name, sizeof name, p + 2, name_end);
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->all[i].name, name) == 0) return NULL; /* what a row says counts */
    CHECK(t->count < HELP_OPTIONS_MAX);
    struct help_option *o = &t->all[t->count++];
    *o = (struct help_option){.many = false};
    copy(o->name, sizeof o->name, name, name + strlen(name));
    if (value != NULL) copy(o->value, sizeof o->value, value, value_end);
    return o;
}

static const char *name_end_of(const char *p, const char *end) {
    p += 2;
    while (p < end && (*p == '-' || (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9'))) p++;
    return p;
}

static void take_rows(struct taken *t, const struct help_block *b) {
    struct help_row row;
    for (const char *p = b->begin; help_row_next(&p, b->end, &row);) {
        for (const char *q = row.term; begins(q, row.term_end, "--");) {
            const char *value, *end = option_end(q, row.term_end, &value);
            struct help_option *o = take(t, q, name_end_of(q, end), value, end);
            if (o != NULL) {
                flatten(&row, o->text);
                o->many = strstr(o->text, "may come often") != NULL;
            }
            q = begins(end, row.term_end, ", ") ? end + 2 : row.term_end;
        }
    }
}

/* In a synopsis an option's value is what follows it after one space and is neither option nor text. */
static void take_synopsis(struct taken *t, const struct help_block *b) {
    for (const char *p = b->begin; p < b->end; p++) {
        if (!begins(p, b->end, "--") || (p[-1] != ' ' && p[-1] != '[' && p[-1] != '|')) continue;
        const char *name = name_end_of(p, b->end), *end = name;
        const char *value = name + 1 < b->end && *name == ' ' ? name + 1 : NULL;
        if (value != NULL && (*value == '-' || *value == '[' || *value == ' ' || *value == '|'))
            value = NULL;
        if (value != NULL)
            for (end = value; end < b->end && strchr(" ]|\n", *end) == NULL;) end++;
        (void)take(t, p, name, value, end);
        p = name - 1;
    }
}

size_t help_options(const char *text, struct help_option out[HELP_OPTIONS_MAX]) {
    struct taken t = {.all = out};
    struct help_block b;
    static const char help[] = "--help";
    struct help_option *o = take(&t, help, help + strlen(help), NULL, NULL);
    copy(o->text, sizeof o->text, "tells all this", "tells all this" + 14);
    const char *at = text;
    for (bool first = true; help_block_next(&at, first, &b); first = false)
        if (b.kind == HELP_ROWS) take_rows(&t, &b);
    at = text;
    for (bool first = true; help_block_next(&at, first, &b); first = false)
        if (b.kind == HELP_SYNOPSIS) take_synopsis(&t, &b);
    return t.count;
}

/* ---- Verbs ---------------------------------------------------------------------------------------- */
static bool is_verb(const char *p, const char *end) {
    if (p == end) return false;
    for (; p < end; p++)
        if (*p < 'a' || *p > 'z') return false;
    return true;
}

/* "  beringia token RUN create --scope SCOPE": words up to the first option or bracket. */
static void verb_of(const char *p, const char *stop, struct help_verbs *out) {
    p += spaces(p, stop);
    for (size_t i = 0; p < stop && *p != '\n' && *p != '-' && *p != '[' && *p != ' '; i++) {
        const char *end = p;
        while (end < stop && *end != ' ' && *end != '\n') end++;
        if (i >= 2 && is_verb(p, end)) {
            CHECK(out->count < HELP_VERBS_MAX);
            out->place = i - 2;
            copy(out->words[out->count++], HELP_WORD_MAX, p, end);
            return;
        }
        p = end < stop && *end == ' ' ? end + 1 : stop;
    }
}

void help_verbs(const char *text, struct help_verbs *out) {
    struct help_block b;
    *out = (struct help_verbs){.count = 0};
    const char *at = text;
    for (bool first = true; help_block_next(&at, first, &b); first = false) {
        if (b.kind != HELP_SYNOPSIS) continue;
        for (const char *p = b.begin; p < b.end; p = line_end(p, b.end))
            if (begins(p, b.end, "  beringia ")) verb_of(p, line_end(p, b.end), out);
    }
}

void help_title(const char *text, char out[HELP_SHORT_MAX]) {
    const char *end = strchrnul(text, '\n'), *dash = strstr(text, " - ");
    copy(out, HELP_SHORT_MAX, dash != NULL && dash < end ? dash + 3 : text, end);
}
