/* SPDX-License-Identifier: Apache-2.0 */
/* config_yaml.c - reads the configuration: a small part of YAML 1.2, chosen so that every text taken
 * here means the same to any YAML reader, and everything else is refused with its line and column.
 *
 *   # a comment                   section ::= name ":" (keys below it, indented alike | flow-mapping)
 *   hub:                          key     ::= name ":" (scalar | flow-list | block-list)
 *     dir: "/var/lib/x"           scalar  ::= plain | 'single' | "double", on one line
 *     port: 80                    flow    ::= [a, b]   {port: 80, tls: true}, may span lines
 *   outer: {lr: 0.7}              block   ::= lines of "- scalar"
 *
 * Not taken: anchors, aliases, tags, directives, block scalars, texts over several lines, deeper
 * nesting, a second document. Nobody needs them here, and each is a way to hide a value.
 *
 * Written by hand because the C libraries at hand do not suit: libfyaml 0.7.12 turns in a circle or
 * crashes on texts of twenty bytes, and libyaml reads YAML 1.1, where `no` is false. It is one pass
 * without recursion; each function begins at the first character of its matter and ends behind it. */
#include <stdio.h>
#include <string.h>

#include "base/config_slots.h"

struct cursor {
    const char *p, *line_start;
    int line;
};

struct yaml {
    struct config *c;
    const char *file, *end;
    struct cursor at;
    struct err *e;
    bool told; /* what failed has been told already (config_collect) */
};

enum { ORIGIN_BYTES = 300, SCALAR_BYTES_MAX = 65536, NOTHING_LEFT = -1 };

/* ---- Places and errors ----------------------------------------------------------------------- */

/* "run.yaml:3:9", counted from 1, in characters, as editors do. */
static const char *origin(const struct yaml *y, char out[ORIGIN_BYTES]) {
    int column = 1;
    for (const char *p = y->at.line_start; p < y->at.p; p++)
        column += ((unsigned char)*p & 0xC0) != 0x80;
    snprintf(out, ORIGIN_BYTES, "%.250s:%d:%d", y->file, y->at.line, column);
    return out;
}

static enum brg_status refuse(const struct yaml *y, const char *text) {
    char at[ORIGIN_BYTES];
    return err_set(y->e, BRG_E_CONFIG, "%s: %s", origin(y, at), text);
}

/* ---- Characters ------------------------------------------------------------------------------ */

/* Bytes of the UTF-8 character at p, 0 where it is none that YAML allows. */
static size_t character_bytes(const unsigned char *p, size_t left) {
    if (p[0] < 0x80)
        return p[0] >= 0x20 || p[0] == '\t' || p[0] == '\n' ||
               (p[0] == '\r' && left > 1 && p[1] == '\n');
    size_t n = p[0] >= 0xF5 ? 0 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : p[0] >= 0xC2 ? 2 : 0;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    if (p[0] == 0xE0 && p[1] < 0xA0) return 0;  /* longer than needed */
    if (p[0] == 0xED && p[1] >= 0xA0) return 0; /* half of a surrogate pair */
    if (p[0] == 0xF0 && p[1] < 0x90) return 0;  /* longer than needed */
    if (p[0] == 0xF4 && p[1] >= 0x90) return 0; /* beyond Unicode */
    return n;
}

static enum brg_status check_characters(struct yaml *y) {
    struct cursor start = y->at;
    while (y->at.p < y->end) {
        const unsigned char *p = (const unsigned char *)y->at.p;
        size_t bytes = character_bytes(p, (size_t)(y->end - y->at.p));
        char at[ORIGIN_BYTES];
        if (bytes == 0)
            return err_set(y->e, BRG_E_CONFIG,
                           "%s: the byte 0x%02x is no UTF-8 text; save the file as UTF-8",
                           origin(y, at), *p);
        y->at.p += bytes;
        if (*p != '\n') continue;
        y->at.line++;
        y->at.line_start = y->at.p;
    }
    y->at = start;
    return BRG_OK;
}

/* The character i places on; a newline stands for the end too, so that it need not be asked for. */
static char peek(const struct yaml *y, size_t i) {
    if (i >= (size_t)(y->end - y->at.p)) return '\n';
    char c = y->at.p[i];
    return c == '\r' ? '\n' : c; /* only before a newline: check_characters */
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static bool is_gap(char c) {
    return is_blank(c) || c == '\n';
}

static bool is_flow(char c) {
    return c != '\0' && strchr(",[]{}", c) != NULL;
}

static void skip_blanks(struct yaml *y) {
    while (is_blank(peek(y, 0))) y->at.p++;
}

/* Blanks and a comment up to the end of the line. A '#' is a comment only behind a blank. */
static void skip_comment(struct yaml *y) {
    skip_blanks(y);
    if (peek(y, 0) != '#') return;
    if (y->at.p > y->at.line_start && !is_blank(y->at.p[-1])) return;
    while (peek(y, 0) != '\n') y->at.p++;
}

static void skip_newline(struct yaml *y) {
    if (y->at.p < y->end && *y->at.p == '\r') y->at.p++;
    if (y->at.p < y->end) y->at.p++;
    y->at.line++;
    y->at.line_start = y->at.p;
}

static enum brg_status end_of_line(struct yaml *y) {
    skip_comment(y);
    if (peek(y, 0) != '\n') return refuse(y, "this does not belong here; remove it, or use quotes");
    if (y->at.p < y->end) skip_newline(y);
    return BRG_OK;
}

/* At the start of a line: moves to the next one with content and gives its indentation. */
static enum brg_status next_line(struct yaml *y, int *out_indent) {
    for (;;) {
        while (peek(y, 0) == ' ') y->at.p++;
        const char *content = y->at.p;
        bool tab = peek(y, 0) == '\t';
        skip_comment(y);
        if (peek(y, 0) != '\n') {
            if (tab) return refuse(y, "a tab stands in the indentation; use spaces");
            *out_indent = (int)(content - y->at.line_start);
            return BRG_OK;
        }
        if (y->at.p >= y->end) {
            *out_indent = NOTHING_LEFT;
            return BRG_OK;
        }
        skip_newline(y);
    }
}

/* Inside brackets: blanks, comments and newlines. */
static enum brg_status skip_flow_space(struct yaml *y) {
    for (;;) {
        skip_comment(y);
        if (peek(y, 0) != '\n') return BRG_OK;
        if (y->at.p >= y->end) return refuse(y, "a bracket is not closed; add ] or }");
        skip_newline(y);
        if (!is_gap(peek(y, 0)) && peek(y, 0) != '#')
            return refuse(y, "a bracket is still open; close it, or indent the lines within it");
    }
}

/* ---- Scalars --------------------------------------------------------------------------------- */

static void put_utf8(struct buf *out, uint32_t c) {
    if (c < 0x80) {
        buf_u8(out, (uint8_t)c);
    } else if (c < 0x800) {
        buf_u8(out, (uint8_t)(0xC0 | c >> 6));
        buf_u8(out, (uint8_t)(0x80 | (c & 0x3F)));
    } else {
        buf_u8(out, (uint8_t)(0xE0 | c >> 12));
        buf_u8(out, (uint8_t)(0x80 | (c >> 6 & 0x3F)));
        buf_u8(out, (uint8_t)(0x80 | (c & 0x3F)));
    }
}

/* At the character behind a backslash. */
static enum brg_status read_escape(struct yaml *y, struct buf *out) {
    static const char names[] = "\"\\/ntre", values[] = "\"\\/\n\t\r\033";
    char c = peek(y, 0);
    const char *simple = c != '\n' ? strchr(names, c) : NULL;
    if (simple) {
        buf_put(out, &values[simple - names], 1);
        y->at.p++;
        return BRG_OK;
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    char hex[5] = "";
    uint8_t bytes[2];
    for (size_t i = 0; i < digits; i++) hex[i] = peek(y, 1 + i);
    if (digits == 0 || !hex_decode(hex, bytes, digits / 2))
        return refuse(y, "this escape is unknown; write \\\\ for a backslash");
    uint32_t value = digits == 2 ? bytes[0] : (uint32_t)bytes[0] << 8 | bytes[1];
    if (value == 0 || (value >= 0xD800 && value < 0xE000))
        return refuse(y, "this escape is no character of a text; remove it");
    put_utf8(out, value);
    y->at.p += 1 + digits;
    return BRG_OK;
}

static enum brg_status read_quoted(struct yaml *y, struct buf *out) {
    struct cursor start = y->at;
    char quote = *y->at.p++;
    for (;;) {
        char c = peek(y, 0);
        if (c == '\n') {
            y->at = start;
            return refuse(y, "the quotes are not closed on this line; close them");
        }
        y->at.p++;
        if (c == quote && quote == '\'' && peek(y, 0) == quote) {
            buf_u8(out, (uint8_t)*y->at.p++); /* '' is one ' */
        } else if (c == quote) {
            if (is_gap(peek(y, 0)) || is_flow(peek(y, 0))) return BRG_OK;
            return refuse(y, "this stands behind the closing quote; remove it");
        } else if (c == '\\' && quote == '"') {
            TRY(read_escape(y, out));
        } else {
            buf_put(out, &c, 1);
        }
    }
}

static enum brg_status read_plain(struct yaml *y, bool in_flow, struct buf *out) {
    char c = peek(y, 0), after = peek(y, 1);
    if (strchr("&*!|>%@`#", c))
        return refuse(y,
                      "a value cannot begin like this (anchors, tags and block texts are not used "
                      "here); put a text in quotes");
    if (is_flow(c) || (strchr("-?:", c) && (is_gap(after) || (in_flow && is_flow(after)))))
        return refuse(y, "a value is wanted here; put a text in quotes");
    for (;; y->at.p++) {
        c = peek(y, 0);
        after = peek(y, 1);
        if (c == '\n' || (in_flow && is_flow(c))) break;
        if (c == '#' && is_blank(y->at.p[-1])) break;
        if (c == ':' && (is_gap(after) || (in_flow && is_flow(after))))
            return refuse(y, "a colon within a text; put the text in quotes");
        buf_put(out, &c, 1);
    }
    while (out->bytes_count > 0 && is_blank((char)out->data[out->bytes_count - 1]))
        out->bytes_count--;
    return BRG_OK;
}

static enum brg_status read_scalar(struct yaml *y, bool in_flow, struct buf *out,
                                   bool *out_quoted) {
    char c = peek(y, 0);
    bool quoted = c == '"' || c == '\'';
    struct cursor start = y->at;
    TRY(quoted ? read_quoted(y, out) : read_plain(y, in_flow, out));
    if (out->overflow) {
        y->at = start;
        return refuse(y, "the text is too long; shorten it");
    }
    *out_quoted = quoted;
    return BRG_OK;
}

static bool is_null(const char *text) {
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

struct list {
    char **values;
    size_t count;
};

static enum brg_status list_add(struct yaml *y, bool in_flow, struct list *list) {
    AUTO_BUF struct buf text = {.bytes_max = SCALAR_BYTES_MAX};
    struct cursor start = y->at;
    bool quoted = false;
    if (peek(y, 0) == '[' || peek(y, 0) == '{')
        return refuse(y, "a list of texts is wanted; lists do not nest here");
    TRY(read_scalar(y, in_flow, &text, &quoted));
    if (!quoted && is_null(buf_cstr(&text))) {
        y->at = start;
        return refuse(y, "a text is wanted in this list; write \"\" for an empty one");
    }
    if (list->count == CONFIG_LIST_MAX)
        return refuse(y, "the list is too long; give fewer entries");
    list->values[list->count++] = mem_strdup(buf_cstr(&text));
    return BRG_OK;
}

/* At '['. */
static enum brg_status read_flow_list(struct yaml *y, struct list *list) {
    y->at.p++;
    for (;;) {
        TRY(skip_flow_space(y));
        if (peek(y, 0) == ']') break;
        TRY(list_add(y, true, list));
        TRY(skip_flow_space(y));
        if (peek(y, 0) == ']') break;
        if (peek(y, 0) != ',') return refuse(y, "a comma or ] is wanted here");
        y->at.p++;
    }
    y->at.p++;
    return BRG_OK;
}

/* At the first '-' of a line indented by indent; ends at the start of the line behind the list. */
static enum brg_status read_block_list(struct yaml *y, int indent, struct list *list) {
    for (;;) {
        y->at.p++;
        skip_blanks(y);
        if (peek(y, 0) == '\n') return refuse(y, "an entry is wanted behind the \"-\"");
        TRY(list_add(y, false, list));
        TRY(end_of_line(y));
        struct cursor back = y->at;
        int next_indent;
        TRY(next_line(y, &next_indent));
        if (next_indent == indent && peek(y, 0) == '-' && is_gap(peek(y, 1))) continue;
        if (next_indent > indent)
            return refuse(
                y, "this line is indented too far; entries begin with \"- \" below each other");
        y->at = back;
        return BRG_OK;
    }
}

/* The list at hand, flow (indent < 0) or block, into the slot. */
static enum brg_status take_list(struct yaml *y, struct config_slot *s, int indent) {
    char at[ORIGIN_BYTES];
    origin(y, at);
    struct list list = {.values = mem_alloc(CONFIG_LIST_MAX, sizeof *list.values)};
    enum brg_status status = indent < 0 ? read_flow_list(y, &list)
                                        : read_block_list(y, indent, &list);
    if (status == BRG_OK)
        status = config_slot_take_list(s, at, (const char *const *)list.values, list.count, y->e);
    for (size_t i = 0; i < list.count; i++) mem_free(list.values[i]);
    mem_free(list.values);
    return status;
}

/* ---- Going on after a fault ------------------------------------------------------------------- */

/* Where all faults are wanted (config_collect): tells this one, once. Else gives it back. */
static enum brg_status tell(struct yaml *y, enum brg_status failed) {
    if (!y->told && !config_fault_told(y->c, y->e)) return failed;
    y->told = false;
    return BRG_OK;
}

/* After a fault in what began at `start`, indented by `indent`: to the start of the first line behind it that does not
 * belong to it. What is indented further does, and entries and brackets that close. */
static enum brg_status go_on(struct yaml *y, enum brg_status failed, struct cursor start,
                             int indent) {
    TRY(tell(y, failed));
    if (y->at.p < start.p) y->at = start;
    bool here = y->at.p == y->at.line_start &&
                y->at.line > start.line; /* it ended before this line */
    for (;; here = false) {
        while (!here && y->at.p < y->end && *y->at.p != '\n') y->at.p++;
        if (y->at.p >= y->end) return BRG_OK;
        if (!here) skip_newline(y);
        const char *p = y->at.p;
        int spaces = 0;
        for (; p < y->end && *p == ' '; p++) spaces++;
        if (p >= y->end) continue;
        bool empty = *p == '\n' || *p == '\r' || *p == '#';
        bool entry = *p == '-' && p + 1 < y->end && is_gap(p[1]) && spaces == indent;
        if (!empty && spaces <= indent && !entry && *p != ']' && *p != '}') return BRG_OK;
    }
}

/* The same within braces, from a key on: behind it, at the comma or the brace. Its line's end is the end of the section:
 * false. */
static bool go_on_flow(struct yaml *y, struct cursor start) {
    int depth = 0;
    char quote = '\0';
    for (y->at = start; peek(y, 0) != '\n'; y->at.p++) {
        char c = peek(y, 0);
        if (quote != '\0') {
            if (c == quote) quote = '\0';
            if (c == '\\' && quote == '"' && peek(y, 1) != '\n') y->at.p++;
            continue;
        }
        if (c == '"' || c == '\'') quote = c;
        if (depth == 0 && (c == ',' || c == '}')) return true;
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    }
    return false;
}

/* ---- Keys and sections ----------------------------------------------------------------------- */

/* "name:", and the blanks behind it. */
static enum brg_status take_name(struct yaml *y, const char *what, char out[CONFIG_NAME_MAX + 1]) {
    size_t n = 0;
    char c, message[128];
    for (; (c = peek(y, n)) != ':' && !is_gap(c) && !is_flow(c); n++) {
    }
    if (n == 0 || n > CONFIG_NAME_MAX || c != ':' ||
        !(is_gap(peek(y, n + 1)) || is_flow(peek(y, n + 1)))) {
        snprintf(message, sizeof message, "a %s is wanted here; write \"name: value\"", what);
        return refuse(y, message);
    }
    memcpy(out, y->at.p, n);
    out[n] = '\0';
    return BRG_OK;
}

static void skip_name(struct yaml *y, const char *name) {
    y->at.p += strlen(name) + 1;
    skip_blanks(y);
}

static enum brg_status take_scalar(struct yaml *y, struct config_slot *s, bool in_flow) {
    const struct config_key *k = s->key;
    AUTO_BUF struct buf text = {.bytes_max = SCALAR_BYTES_MAX};
    char at[ORIGIN_BYTES];
    bool quoted = false;
    origin(y, at);
    bool nothing = peek(y, 0) == '\n' || peek(y, 0) == '#' || (in_flow && strchr(",}", peek(y, 0)));
    if (!nothing) TRY(read_scalar(y, in_flow, &text, &quoted));
    if (!quoted && is_null(buf_cstr(&text)))
        return err_set(y->e, BRG_E_CONFIG,
                       "%s: %s.%s: has no value; give one, or remove the line for the default", at,
                       k->section, k->name);
    if (k->type == CONFIG_STRINGS)
        return err_set(y->e, BRG_E_CONFIG, "%s: %s.%s: a list is wanted; write [a, b]", at,
                       k->section, k->name);
    /* "8080" in quotes is a text, and a text is no number. */
    if (quoted && k->type != CONFIG_STRING && k->type != CONFIG_ENUM)
        return err_set(y->e, BRG_E_CONFIG, "%s: %s.%s: a text in quotes is wrong here; remove them",
                       at, k->section, k->name);
    return config_slot_take(s, at, buf_cstr(&text), y->e);
}

static enum brg_status two_levels_only(const struct yaml *y, const struct config_key *k) {
    char at[ORIGIN_BYTES];
    return err_set(y->e, BRG_E_CONFIG,
                   "%s: %s.%s: keys cannot stand below a key; there are two levels only",
                   origin(y, at), k->section, k->name);
}

/* "key:" and nothing more on its line: a block list below it, or no value. */
static enum brg_status take_below(struct yaml *y, struct config_slot *s, int indent) {
    struct cursor back = y->at;
    int next_indent;
    TRY(end_of_line(y));
    TRY(next_line(y, &next_indent));
    if (next_indent >= indent && peek(y, 0) == '-' && is_gap(peek(y, 1)))
        return take_list(y, s, next_indent);
    if (next_indent > indent) return two_levels_only(y, s->key);
    y->at = back;
    return take_scalar(y, s, false);
}

/* At a key's name. indent < 0: within braces. Else it ends at the start of a line. */
static enum brg_status read_key(struct yaml *y, const char *section, int indent) {
    char name[CONFIG_NAME_MAX + 1], at[ORIGIN_BYTES];
    bool in_flow = indent < 0;
    TRY(take_name(y, "key", name));
    origin(y, at);
    struct config_slot *s = config_slot_find(y->c, section, name);
    if (!s) return config_unknown_key(y->c, at, section, name, y->e);
    if (s->parse_number == y->c->parse_number)
        return err_set(y->e, BRG_E_CONFIG, "%s: %s.%s: is given twice (first at %s); remove one",
                       at, section, name, s->origin);
    s->faulty = y->c->faults != NULL;
    skip_name(y, name);
    if (peek(y, 0) == '{') return two_levels_only(y, s->key);
    bool nothing = peek(y, 0) == '\n' || peek(y, 0) == '#';
    bool below = nothing && !in_flow;
    if (below)
        TRY(take_below(y, s, indent));
    else if (peek(y, 0) == '[')
        TRY(take_list(y, s, -1));
    else
        TRY(take_scalar(y, s, in_flow));
    if (!below && !in_flow) TRY(end_of_line(y));
    s->parse_number = y->c->parse_number;
    s->given = true;
    s->faulty = false;
    return BRG_OK;
}

/* At '{'. */
static enum brg_status read_flow_section(struct yaml *y, const char *section) {
    y->at.p++;
    for (;;) {
        TRY(skip_flow_space(y));
        if (peek(y, 0) == '}') break;
        struct cursor start = y->at;
        enum brg_status s = read_key(y, section, -1);
        if (s != BRG_OK) {
            TRY(tell(y, s));
            y->told = !go_on_flow(y, start);
            if (y->told) return s;
        }
        TRY(skip_flow_space(y));
        if (peek(y, 0) == '}') break;
        if (peek(y, 0) != ',') return refuse(y, "a comma or } is wanted here");
        y->at.p++;
    }
    y->at.p++;
    return end_of_line(y);
}

/* At the start of the line behind "section:"; ends before the next line that is not indented. */
static enum brg_status read_block_section(struct yaml *y, const char *section) {
    int indent = 0;
    for (;;) {
        struct cursor back = y->at;
        int next_indent = 0;
        enum brg_status s = next_line(y, &next_indent);
        if (s == BRG_OK && next_indent <= 0) {
            y->at = back;
            return BRG_OK;
        }
        struct cursor start = y->at;
        if (s == BRG_OK && indent == 0) indent = next_indent;
        if (s == BRG_OK && next_indent != indent)
            s = refuse(y, "the keys of a section are indented alike; correct the spaces");
        else if (s == BRG_OK)
            s = read_key(y, section, indent);
        if (s != BRG_OK) TRY(go_on(y, s, start, indent));
    }
}

static enum brg_status read_section(struct yaml *y, struct buf *seen) {
    char section[CONFIG_NAME_MAX + 1], tagged[CONFIG_NAME_MAX + 3], at[ORIGIN_BYTES];
    TRY(take_name(y, "section", section));
    origin(y, at);
    if (!config_section_known(y->c, section))
        return config_unknown_section(y->c, at, section, y->e);
    /* Known sections hold no '/', so that a search in one string will do. */
    snprintf(tagged, sizeof tagged, "/%s/", section);
    if (strstr(buf_cstr(seen), tagged))
        return err_set(y->e, BRG_E_CONFIG, "%s: %s: is given twice; put its keys together", at,
                       section);
    buf_printf(seen, "%s", tagged);
    skip_name(y, section);
    if (peek(y, 0) == '{') return read_flow_section(y, section);
    if (peek(y, 0) != '\n' && peek(y, 0) != '#')
        return err_set(y->e, BRG_E_CONFIG, "%s: %s: is a section; write its keys indented below it",
                       origin(y, at), section);
    TRY(end_of_line(y));
    return read_block_section(y, section);
}

static enum brg_status read_document(struct yaml *y) {
    AUTO_BUF struct buf seen = {.bytes_max = CONFIG_KEYS_MAX * (CONFIG_NAME_MAX + 2)};
    bool first = true;
    for (;;) {
        int indent = 0;
        enum brg_status s = next_line(y, &indent);
        if (s == BRG_OK && indent == NOTHING_LEFT) return BRG_OK;
        struct cursor start = y->at;
        if (s == BRG_OK && indent > 0) {
            s = refuse(y, "a section begins in the first column; remove the spaces");
        } else if (s == BRG_OK && first && peek(y, 0) == '-' && peek(y, 1) == '-' &&
                   peek(y, 2) == '-') {
            y->at.p += 3;
            s = end_of_line(y);
        } else if (s == BRG_OK) {
            s = read_section(y, &seen);
        }
        if (s != BRG_OK) TRY(go_on(y, s, start, 0));
        first = false;
    }
}

enum brg_status config_parse(struct config *c, const char *file, const void *text, size_t n,
                             struct err *e) {
    if (n > CONFIG_FILE_BYTES_MAX)
        return err_set(e, BRG_E_CONFIG, "%s: larger than %d bytes; this is no configuration", file,
                       CONFIG_FILE_BYTES_MAX);
    mem_free(c->file);
    c->file = mem_strdup(file);
    c->parse_number++;
    if (n == 0) return BRG_OK;
    struct err own = {0};
    size_t before = config_faults_count(c);
    struct cursor start = {.p = text, .line_start = text, .line = 1};
    struct yaml y = {.c = c, .file = file, .end = start.p + n, .at = start, .e = e};
    if (c->faults != NULL || e == NULL)
        y.e = &own; /* each fault has its text; the caller's is the first one's */
    enum brg_status s = check_characters(&y);
    if (s == BRG_OK) s = read_document(&y);
    if (s != BRG_OK) s = tell(&y, s);
    if (s == BRG_OK && config_faults_count(c) > before)
        s = err_set(e, BRG_E_CONFIG, "%s: %zu faults", file, config_faults_count(c) - before);
    return s;
}
