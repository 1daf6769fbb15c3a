/* SPDX-License-Identifier: Apache-2.0 */
/* config_print.c - the effective configuration as commented YAML; reading it gives it back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_slots.h"

/* A YAML double-quoted scalar. */
static void put_text(struct buf *out, const char *s) {
    buf_put(out, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            buf_printf(out, "\\x%02x", c);
        else
            buf_put(out, s, 1);
    }
    buf_put(out, "\"", 1);
}

/* The largest unit that gives a whole number. */
static void put_scaled(struct buf *out, uint64_t v, const uint64_t *factors,
                       const char *const *names) {
    size_t i = 0;
    while (factors[i] > 1 && (v == 0 || v % factors[i] != 0)) i++;
    buf_printf(out, "%llu%s", (unsigned long long)(v / factors[i]), names[i]);
}

static void put_duration(struct buf *out, uint64_t v) {
    static const uint64_t factors[] = {
        UINT64_C(3600) * NS_PER_S, UINT64_C(60) * NS_PER_S, NS_PER_S, NS_PER_MS, NS_PER_US, 1};
    static const char *const names[] = {"h", "m", "s", "ms", "us", "ns"};
    put_scaled(out, v, factors, names);
}

static void put_bytes(struct buf *out, uint64_t v) {
    static const uint64_t factors[] = {UINT64_C(1) << 40, 1 << 30, 1 << 20, 1 << 10, 1};
    static const char *const names[] = {"T", "G", "M", "k", ""};
    put_scaled(out, v, factors, names);
}

/* The shortest digits that read back to the same number. */
static void put_f64(struct buf *out, double v) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_put(out, text, strlen(text));
}

static void put_value(struct buf *out, const struct config_slot *s) {
    switch (s->key->type) {
    case CONFIG_BOOL: buf_printf(out, "%s", s->u64 ? "true" : "false"); return;
    case CONFIG_U64: buf_printf(out, "%llu", (unsigned long long)s->u64); return;
    case CONFIG_F64: put_f64(out, s->f64); return;
    case CONFIG_DURATION: put_duration(out, s->u64); return;
    case CONFIG_BYTES: put_bytes(out, s->u64); return;
    case CONFIG_STRING: put_text(out, s->text); return;
    case CONFIG_ENUM: put_text(out, s->key->choices[s->u64]); return;
    case CONFIG_STRINGS:
        buf_put(out, "[", 1);
        for (size_t i = 0; i < s->list_count; i++) {
            if (i > 0) buf_put(out, ", ", 2);
            put_text(out, s->list[i]);
        }
        buf_put(out, "]", 1);
        return;
    }
}

static void put_comment(struct buf *out, const struct config_slot *s) {
    const struct config_key *k = s->key;
    if (k->help) buf_printf(out, "  # %s\n", k->help);
    if (k->type == CONFIG_ENUM) {
        buf_printf(out, "  # one of:");
        for (size_t i = 0; k->choices[i]; i++) buf_printf(out, " %s", k->choices[i]);
        buf_printf(out, "\n");
    }
    if (!k->def)
        buf_printf(out, "  # must be given\n");
    else if (s->given)
        buf_printf(out, "  # default %s; set at %s\n", *k->def ? k->def : "empty", s->origin);
}

void config_print(const struct config *c, struct buf *out) {
    for (size_t i = 0; i < c->slots_count; i++) {
        const char *section = c->slots[i].key->section;
        bool is_first = true;
        for (size_t j = 0; j < i && is_first; j++)
            is_first = strcmp(c->slots[j].key->section, section) != 0;
        if (!is_first) continue;
        buf_printf(out, "%s%s:\n", out->bytes_count > 0 ? "\n" : "", section);
        for (size_t j = i; j < c->slots_count; j++) {
            const struct config_slot *s = &c->slots[j];
            if (strcmp(s->key->section, section) != 0) continue;
            put_comment(out, s);
            buf_printf(out, "  %s%s: ", s->has_value ? "" : "# ", s->key->name);
            if (s->has_value) put_value(out, s);
            buf_printf(out, "\n");
        }
    }
}

/* A bound in the key's own unit; of texts and lists it counts bytes or entries. */
static void put_bound(struct buf *out, const struct config_key *k, double v) {
    if (k->type == CONFIG_DURATION)
        put_duration(out, (uint64_t)v);
    else if (k->type == CONFIG_BYTES)
        put_bytes(out, (uint64_t)v);
    else
        put_f64(out, v);
}

static void put_bounds(struct buf *out, const struct config_key *k) {
    bool text = k->type == CONFIG_STRING, counts = text || k->type == CONFIG_STRINGS;
    const char *unit = text ? " bytes" : counts ? " entries" : "";
    if (k->type == CONFIG_BOOL || k->type == CONFIG_ENUM || (k->min == 0 && k->max == 0)) return;
    buf_printf(out, ", ");
    if (k->max <= k->min) {
        buf_printf(out, "at least ");
        put_bound(out, k, k->min);
    } else if (counts) {
        buf_printf(out, "at most ");
        put_bound(out, k, k->max);
    } else {
        put_bound(out, k, k->min);
        buf_printf(out, " to ");
        put_bound(out, k, k->max);
    }
    buf_printf(out, "%s", unit);
}

void config_key_describe(const struct config_key *k, struct buf *out) {
    static const char *const words[] = {
        [CONFIG_BOOL] = "true or false", [CONFIG_U64] = "whole number",
        [CONFIG_F64] = "number",         [CONFIG_DURATION] = "duration",
        [CONFIG_BYTES] = "size",         [CONFIG_STRING] = "text",
        [CONFIG_ENUM] = "one of ",       [CONFIG_STRINGS] = "list of texts",
    };
    buf_printf(out, "%s", words[k->type]);
    for (size_t i = 0; k->type == CONFIG_ENUM && k->choices[i] != NULL; i++)
        buf_printf(out, "%s%s", i > 0 ? ", " : "", k->choices[i]);
    put_bounds(out, k);
    if (k->def == NULL)
        buf_printf(out, "; must be given");
    else
        buf_printf(out, "; default %s", k->def[0] != '\0' ? k->def : "empty");
}
