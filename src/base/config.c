/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the declared keys, their typed values, and what is said when one is wrong.
 *
 * config_yaml.c reads the file, config_print.c writes it. A value is converted and checked when it
 * is set, so that the place is at hand for the error; the getters cannot fail.
 *
 * Invariants
 *   (B3) A slot's value is always one that its key's type and bounds allow. */
#include "base/config.h"

#include <stdio.h>
#include <string.h>

#include "base/config_slots.h"

static const char *const type_words[] = {
    [CONFIG_BOOL] = "true or false",
    [CONFIG_U64] = "a whole number such as 42",
    [CONFIG_F64] = "a number such as 0.9 or 1e-3",
    [CONFIG_DURATION] = "a duration with its unit, such as 500ms, 30s, 10m or 2h",
    [CONFIG_BYTES] = "a size in bytes such as 64, 10k, 2M or 1G",
    [CONFIG_STRING] = "a text",
    [CONFIG_ENUM] = "one of a list of words",
    [CONFIG_STRINGS] = "a list of texts such as [a, b]",
};

/* ---- Finding --------------------------------------------------------------------------------- */

/* Where in the index this key is, or would be. A scenario declares hundreds of keys, so no list is walked. */
static size_t index_place(const struct config *c, const char *section, const char *name) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *p = section; *p; p++) hash = (hash ^ (uint8_t)*p) * 16777619u;
    hash = (hash ^ '.') * 16777619u;
    for (const char *p = name; *p; p++) hash = (hash ^ (uint8_t)*p) * 16777619u;
    size_t at = hash % CONFIG_INDEX;
    for (; c->index[at] > 0; at = (at + 1) % CONFIG_INDEX) {
        const struct config_key *k = c->slots[c->index[at] - 1].key;
        if (strcmp(k->name, name) == 0 && strcmp(k->section, section) == 0) break;
    }
    return at;
}

struct config_slot *config_slot_find(struct config *c, const char *section, const char *name) {
    size_t i = c->index[index_place(c, section, name)];
    return i > 0 ? &c->slots[i - 1] : NULL;
}

/* Asking for what nobody declared is a slip in the program. */
static const struct config_slot *slot_declared(const struct config *c, const char *section,
                                               const char *name) {
    size_t i = c->index[index_place(c, section, name)];
    CHECK(i > 0);
    return &c->slots[i - 1];
}

bool config_section_known(const struct config *c, const char *section) {
    for (size_t i = 0; i < c->slots_count; i++)
        if (strcmp(c->slots[i].key->section, section) == 0) return true;
    return false;
}

/* Edits (insert, delete, replace) from a to b; large where either is no possible name. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[CONFIG_NAME_MAX + 1], n = strlen(b), m = strlen(a);
    if (m > CONFIG_NAME_MAX || n > CONFIG_NAME_MAX) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

enum brg_status config_unknown_section(const struct config *c, const char *origin,
                                       const char *section, struct err *e) {
    const char *near = NULL;
    size_t near_distance = 3;
    for (size_t i = 0; i < c->slots_count; i++) {
        size_t d = edit_distance(section, c->slots[i].key->section);
        if (d >= near_distance) continue;
        near = c->slots[i].key->section;
        near_distance = d;
    }
    if (near)
        return err_set(e, BRG_E_CONFIG, "%s: %.64s: unknown section; did you mean %s?", origin,
                       section, near);
    AUTO_BUF struct buf known = {.bytes_max = 300};
    const char *last = "";
    for (size_t i = 0; i < c->slots_count; i++) {
        const char *s = c->slots[i].key->section;
        if (strcmp(s, last) != 0) buf_printf(&known, "%s%s", *last ? ", " : "", s);
        last = s;
    }
    return err_set(e, BRG_E_CONFIG, "%s: %.64s: unknown section; there are: %s", origin, section,
                   buf_cstr(&known));
}

enum brg_status config_unknown_key(const struct config *c, const char *origin, const char *section,
                                   const char *name, struct err *e) {
    if (!config_section_known(c, section)) return config_unknown_section(c, origin, section, e);
    const struct config_key *near = NULL;
    size_t near_distance = 3;
    for (size_t i = 0; i < c->slots_count; i++) {
        const struct config_key *k = c->slots[i].key;
        size_t d = edit_distance(name, k->name);
        /* The same name in another section is a likely slip too; a similar one is not. */
        if (strcmp(k->section, section) != 0 && d > 0) continue;
        if (d >= near_distance) continue;
        near = k;
        near_distance = d;
    }
    if (near)
        return err_set(e, BRG_E_CONFIG, "%s: %s.%.64s: unknown key; did you mean %s.%s?", origin,
                       section, name, near->section, near->name);
    AUTO_BUF struct buf known = {.bytes_max = 400};
    for (size_t i = 0; i < c->slots_count; i++) {
        const struct config_key *k = c->slots[i].key;
        if (strcmp(k->section, section) != 0) continue;
        buf_printf(&known, "%s%s", known.bytes_count ? ", " : "", k->name);
    }
    return err_set(e, BRG_E_CONFIG, "%s: %s.%.64s: unknown key; remove it, there are: %s", origin,
                   section, name, buf_cstr(&known));
}

/* ---- Taking values --------------------------------------------------------------------------- */

/* Writes a bound as a person would write the value. */
static const char *bound_text(enum config_type type, double v, char out[48]) {
    if (type == CONFIG_DURATION && v >= 1e9)
        snprintf(out, 48, "%gs", v / 1e9);
    else if (type == CONFIG_DURATION)
        snprintf(out, 48, "%gms", v / 1e6);
    else
        snprintf(out, 48, "%.17g", v);
    return out;
}

static enum brg_status check_bounds(const struct config_key *k, const char *origin, double v,
                                    const char *value, const char *of_what, struct err *e) {
    if (k->min == 0 && k->max == 0) return BRG_OK;
    bool has_max = k->max > k->min;
    if (v >= k->min && (!has_max || v <= k->max)) return BRG_OK;
    char lo[48], hi[48];
    bound_text(k->type, k->min, lo);
    bound_text(k->type, k->max, hi);
    if (!has_max)
        return err_set(e, BRG_E_CONFIG, "%s: %s.%s: %s%.80s is too small; give %s or more", origin,
                       k->section, k->name, of_what, value, lo);
    return err_set(e, BRG_E_CONFIG, "%s: %s.%s: %s%.80s is out of range; give %s to %s", origin,
                   k->section, k->name, of_what, value, lo, hi);
}

static enum brg_status wrong_type(const struct config_key *k, const char *origin, const char *value,
                                  struct err *e) {
    return err_set(e, BRG_E_CONFIG, "%s: %s.%s: \"%.80s\" is not understood; give %s", origin,
                   k->section, k->name, value, type_words[k->type]);
}

static enum brg_status take_enum(const struct config_key *k, const char *origin, const char *value,
                                 uint64_t *out_index, struct err *e) {
    AUTO_BUF struct buf words = {.bytes_max = 300};
    const char *near = NULL;
    for (size_t i = 0; k->choices[i]; i++) {
        if (strcmp(k->choices[i], value) == 0) {
            *out_index = i;
            return BRG_OK;
        }
        if (edit_distance(value, k->choices[i]) <= 2) near = k->choices[i];
        buf_printf(&words, "%s%s", i ? ", " : "", k->choices[i]);
    }
    return err_set(e, BRG_E_CONFIG, "%s: %s.%s: \"%.80s\" is none of: %s%s%s%s", origin, k->section,
                   k->name, value, buf_cstr(&words), near ? "; did you mean " : "; choose one",
                   near ? near : "", near ? "?" : "");
}

struct number {
    uint64_t u64;
    double f64;
};

/* The types with a number behind them; n is untouched by CONFIG_STRING. */
static enum brg_status take_number(const struct config_key *k, const char *origin,
                                   const char *value, struct number *n, struct err *e) {
    time_ns ns = 0;
    char length[32];
    switch (k->type) {
    case CONFIG_BOOL:
        n->u64 = strcmp(value, "true") == 0;
        if (!n->u64 && strcmp(value, "false") != 0) return wrong_type(k, origin, value, e);
        return BRG_OK;
    case CONFIG_ENUM: return take_enum(k, origin, value, &n->u64, e);
    case CONFIG_U64:
        if (!parse_u64(value, &n->u64)) return wrong_type(k, origin, value, e);
        return check_bounds(k, origin, (double)n->u64, value, "", e);
    case CONFIG_BYTES:
        if (!parse_bytes(value, &n->u64)) return wrong_type(k, origin, value, e);
        return check_bounds(k, origin, (double)n->u64, value, "", e);
    case CONFIG_DURATION:
        if (!parse_duration(value, &ns)) return wrong_type(k, origin, value, e);
        n->u64 = (uint64_t)ns;
        return check_bounds(k, origin, (double)ns, value, "", e);
    case CONFIG_F64:
        if (!parse_f64(value, &n->f64)) return wrong_type(k, origin, value, e);
        return check_bounds(k, origin, n->f64, value, "", e);
    case CONFIG_STRING:
        snprintf(length, sizeof length, "%zu", strlen(value));
        return check_bounds(k, origin, (double)strlen(value), length, "the length ", e);
    case CONFIG_STRINGS: break;
    }
    CHECK(!"a list is no number");
    return BRG_E_INTERNAL;
}

static void slot_clear(struct config_slot *s) {
    mem_free(s->text);
    for (size_t i = 0; i < s->list_count; i++) mem_free(s->list[i]);
    mem_free(s->list);
    mem_free(s->origin);
    s->text = s->origin = NULL;
    s->list = NULL;
    s->list_count = 0;
}

enum brg_status config_slot_take_list(struct config_slot *s, const char *origin,
                                      const char *const *values, size_t count, struct err *e) {
    const struct config_key *k = s->key;
    if (k->type != CONFIG_STRINGS) return wrong_type(k, origin, "a list", e);
    char text[32];
    snprintf(text, sizeof text, "%zu", count);
    TRY(check_bounds(k, origin, (double)count, text, "the number of entries ", e));
    CHECK(count <= CONFIG_LIST_MAX); /* B3 */
    char **list = mem_alloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) list[i] = mem_strdup(values[i]);
    char *where = mem_strdup(origin);
    slot_clear(s);
    s->list = list;
    s->list_count = count;
    s->origin = where;
    s->has_value = true;
    return BRG_OK;
}

/* "a,b" as --set and defaults write a list; blanks around the commas do not count. */
static enum brg_status take_commas(struct config_slot *s, const char *origin, const char *value,
                                   struct err *e) {
    AUTO_FREE char *copy = mem_strdup(value);
    AUTO_FREE const char **values = mem_alloc(CONFIG_LIST_MAX, sizeof *values);
    size_t count = 0;
    char *p = copy + strspn(copy, " ");
    while (*p) {
        if (count == CONFIG_LIST_MAX)
            return err_set(e, BRG_E_CONFIG, "%s: %s.%s: more than %d entries; give fewer", origin,
                           s->key->section, s->key->name, CONFIG_LIST_MAX);
        size_t n = strcspn(p, ",");
        char *next = p[n] ? p + n + 1 : p + n;
        while (n > 0 && p[n - 1] == ' ') n--;
        p[n] = '\0';
        values[count++] = p;
        p = next + strspn(next, " ");
    }
    return config_slot_take_list(s, origin, values, count, e);
}

enum brg_status config_slot_take(struct config_slot *s, const char *origin, const char *value,
                                 struct err *e) {
    if (s->key->type == CONFIG_STRINGS) return take_commas(s, origin, value, e);
    struct number n = {0};
    TRY(take_number(s->key, origin, value, &n, e));
    char *where = mem_strdup(origin);
    char *text = s->key->type == CONFIG_STRING ? mem_strdup(value) : NULL;
    slot_clear(s);
    s->u64 = n.u64;
    s->f64 = n.f64;
    s->text = text;
    s->origin = where;
    s->has_value = true;
    return BRG_OK;
}

/* ---- All faults rather than the first -------------------------------------------------------- */

void config_collect(struct config *c, config_fault *tell, void *user) {
    CHECK(c->faults == NULL);
    c->faults = mem_alloc(1, sizeof *c->faults);
    *c->faults = (struct config_faults){.tell = tell, .user = user};
}

size_t config_faults_count(const struct config *c) {
    return c->faults != NULL ? c->faults->count : 0;
}

bool config_fault_told(const struct config *c, const struct err *e) {
    if (c->faults == NULL) return false;
    c->faults->count++;
    c->faults->tell(c->faults->user, e);
    return true;
}

/* ---- Life ------------------------------------------------------------------------------------ */

struct config *config_create(void) {
    return mem_alloc(1, sizeof(struct config));
}

void config_destroy(struct config *c) {
    if (!c) return;
    for (size_t i = 0; i < c->slots_count; i++) slot_clear(&c->slots[i]);
    mem_free(c->faults);
    mem_free(c->file);
    mem_free(c);
}

static bool name_is_good(const char *s) {
    size_t n = strlen(s);
    return n > 0 && n <= CONFIG_NAME_MAX && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

void config_declare(struct config *c, const struct config_key *keys, size_t keys_count) {
    for (size_t i = 0; i < keys_count; i++) {
        const struct config_key *k = &keys[i];
        CHECK(name_is_good(k->section));
        CHECK(name_is_good(k->name));
        CHECK((k->type == CONFIG_ENUM) == (k->choices != NULL));
        size_t at = index_place(c, k->section, k->name);
        CHECK(c->index[at] == 0);
        CHECK(c->slots_count < CONFIG_KEYS_MAX);
        struct config_slot *s = &c->slots[c->slots_count++];
        *s = (struct config_slot){.key = k};
        c->index[at] = (uint16_t)c->slots_count;
        if (k->def) CHECK(config_slot_take(s, "default", k->def, NULL) == BRG_OK); /* B3 */
    }
}

enum brg_status config_set(struct config *c, const char *assignment, struct err *e) {
    char section[CONFIG_NAME_MAX + 1], name[CONFIG_NAME_MAX + 1];
    size_t section_n = strcspn(assignment, ".=");
    const char *dot = assignment + section_n;
    size_t name_n = *dot == '.' ? strcspn(dot + 1, "=") : 0;
    if (section_n == 0 || name_n == 0 || dot[1 + name_n] != '=' || section_n > CONFIG_NAME_MAX ||
        name_n > CONFIG_NAME_MAX)
        return err_set(e, BRG_E_CONFIG,
                       "--set: \"%.80s\" is not understood; give section.key=value", assignment);
    memcpy(section, assignment, section_n);
    section[section_n] = '\0';
    memcpy(name, dot + 1, name_n);
    name[name_n] = '\0';
    struct config_slot *s = config_slot_find(c, section, name);
    if (!s) return config_unknown_key(c, "--set", section, name, e);
    TRY(config_slot_take(s, "--set", dot + 1 + name_n + 1, e));
    s->given = true;
    return BRG_OK;
}

enum brg_status config_finish(struct config *c, struct err *e) {
    enum brg_status status = BRG_OK;
    for (size_t i = 0; i < c->slots_count; i++) {
        const struct config_key *k = c->slots[i].key;
        if (c->slots[i].has_value || c->slots[i].faulty) continue;
        struct err own = {0}, *to = status == BRG_OK && e != NULL ? e : &own;
        status = err_set(to, BRG_E_CONFIG, "%s: %s.%s: must be given (%s); add it below \"%s:\"",
                         c->file ? c->file : "configuration", k->section, k->name,
                         k->help ? k->help : type_words[k->type], k->section);
        if (!config_fault_told(c, to)) break;
    }
    return status;
}

enum brg_status config_fail(const struct config *c, const char *section, const char *name,
                            struct err *e, const char *fmt, ...) {
    const struct config_slot *s = slot_declared(c, section, name);
    char text[sizeof e->text];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct err own = {0}, *to = e != NULL ? e : &own;
    enum brg_status status = err_set(to, BRG_E_CONFIG, "%s: %s.%s: %s",
                                     s->origin ? s->origin : "not given", section, name, text);
    return config_fault_told(c, to) ? BRG_OK : status;
}

/* ---- Getting --------------------------------------------------------------------------------- */

static const struct config_slot *slot_get(const struct config *c, const char *section,
                                          const char *name, enum config_type type) {
    const struct config_slot *s = slot_declared(c, section, name);
    CHECK(s->key->type == type);
    CHECK(s->has_value);
    return s;
}

bool config_bool(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_BOOL)->u64 != 0;
}

uint64_t config_u64(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_U64)->u64;
}

double config_f64(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_F64)->f64;
}

time_ns config_duration(const struct config *c, const char *section, const char *name) {
    return (time_ns)slot_get(c, section, name, CONFIG_DURATION)->u64;
}

uint64_t config_bytes(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_BYTES)->u64;
}

const char *config_string(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_STRING)->text;
}

size_t config_enum(const struct config *c, const char *section, const char *name) {
    return (size_t)slot_get(c, section, name, CONFIG_ENUM)->u64;
}

size_t config_strings_count(const struct config *c, const char *section, const char *name) {
    return slot_get(c, section, name, CONFIG_STRINGS)->list_count;
}

const char *config_string_at(const struct config *c, const char *section, const char *name,
                             size_t i) {
    const struct config_slot *s = slot_get(c, section, name, CONFIG_STRINGS);
    CHECK(i < s->list_count);
    return s->list[i];
}

bool config_given(const struct config *c, const char *section, const char *name) {
    return slot_declared(c, section, name)->given;
}
