/* SPDX-License-Identifier: Apache-2.0 */
/* topofile.c - links and sites from a file, for a plan before anything runs or with figures that no hub has seen. By the
 * house's YAML reader; sections site_NAME and fabric_NAME are declared as they are met, as those of a site file are.
 * docs/topology.md has an example. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "place/topology.h"
#include "wire/wire.h"

enum { FILE_SITES_MAX = 64, FILE_FABRICS_MAX = 20, SITE_KEYS = 5, FABRIC_KEYS = 9 };
#define RATE_MOST 1e9 /* MB/s */
#define DAY_NS 86400e9

static const char *const codec_names[] = {"fp32", "bf16", "int8", "int4", "topk", NULL};
static const char *const down_names[] = {"full", "bf16", "int8", "int4", "topk", NULL};

static const struct config_key fixed_keys[] = {
    {"run", "parameters", CONFIG_U64, .min = 1, .max = 1e15, .help = "of the model"},
    {"run", "tokens_total", CONFIG_F64, .def = "0", .min = 0, .max = 1e18,
     .help = "of the whole run; 0: the number of merges is not judged"},
    {"run", "step_tokens", CONFIG_F64, .def = "0", .min = 0, .max = 1e15,
     .help = "of all sites in one inner step"},
    {"run", "steps", CONFIG_U64, .def = "0", .max = 1e9,
     .help = "outer.steps in use, to be judged; 0: none"},
    {"run", "codec", CONFIG_ENUM, .def = "int8", .choices = codec_names,
     .help = "outer.codec in use"},
    {"run", "down_codec", CONFIG_ENUM, .def = "full", .choices = down_names,
     .help = "outer.down_codec in use"},
    {"run", "topk", CONFIG_BOOL, .def = "false",
     .help = "topk may be proposed: the run can do without outer momentum"},
    {"hub", "in", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST,
     .help = "MB/s of the top hub's own line; 0: as much as its sites' together"},
    {"hub", "out", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST, .help = "the like"},
    {"hub", "merge", CONFIG_F64, .def = "2.5e9", .min = 1, .max = 1e15,
     .help = "parameters of contributions that a hub merges a second (make bench-merge)"},
    {"hub", "memory", CONFIG_F64, .def = "10000", .min = 1, .max = RATE_MOST,
     .help = "MB/s of a site's pass over its weights"},
};

struct
    dynamic { /* the keys of one section that is met; names and keys live as long as the config */
    char section[64];
    bool site;
    struct config_key keys[FABRIC_KEYS];
};

static void keys_fill(struct dynamic *d) {
    const struct config_key site[SITE_KEYS] = {
        {d->section, "fabric", CONFIG_STRING, .def = "", .max = TOPO_LABEL_MAX - 1},
        {d->section, "step", CONFIG_DURATION, .def = "0s", .max = 30 * DAY_NS},
        {d->section, "rtt", CONFIG_DURATION, .def = "0s", .max = DAY_NS},
        {d->section, "up", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "down", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
    };
    const struct config_key fabric[FABRIC_KEYS] = {
        {d->section, "label", CONFIG_STRING, .min = 1, .max = TOPO_LABEL_MAX - 1},
        {d->section, "rtt", CONFIG_DURATION, .def = "0s", .max = DAY_NS},
        {d->section, "up", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "down", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "inner_rtt", CONFIG_DURATION, .def = "0s", .max = DAY_NS},
        {d->section, "inner_up", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "inner_down", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "hub_in", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
        {d->section, "hub_out", CONFIG_F64, .def = "0", .min = 0, .max = RATE_MOST},
    };
    if (d->site)
        memcpy(d->keys, site, sizeof site);
    else
        memcpy(d->keys, fabric, sizeof fabric);
}

struct sections {
    struct dynamic v[FILE_SITES_MAX + FILE_FABRICS_MAX];
    uint32_t count, sites, fabrics;
};

static bool name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static enum brg_status section_add(struct sections *s, const char *file, const char *name,
                                   size_t length, bool site, struct err *e) {
    size_t prefix = site ? strlen("site_") : strlen("fabric_");
    for (uint32_t i = 0; i < s->count; i++) /* the strict reader says that it is there twice */
        if (strlen(s->v[i].section) == length && memcmp(s->v[i].section, name, length) == 0)
            return BRG_OK;
    if (length - prefix >= TOPO_NAME_MAX || length >= sizeof s->v[0].section)
        return err_set(e, BRG_E_CONFIG, "%s: %.*s: a name has at most %d bytes", file, 60, name,
                       TOPO_NAME_MAX - 1);
    if (site ? s->sites == FILE_SITES_MAX : s->fabrics == FILE_FABRICS_MAX)
        return err_set(
            e, BRG_E_CONFIG,
            "%s: more than %d sections %s: leave some out, or ask a hub (--topology URL)", file,
            site ? FILE_SITES_MAX : FILE_FABRICS_MAX, site ? "site_NAME" : "fabric_NAME");
    struct dynamic *d = &s->v[s->count++];
    memcpy(d->section, name, length);
    d->section[length] = '\0';
    d->site = site;
    *(site ? &s->sites : &s->fabrics) += 1;
    keys_fill(d);
    return BRG_OK;
}

/* Sections that begin a line with "site_" or "fabric_": each once. */
static enum brg_status sections_find(const char *file, const char *text, size_t n,
                                     struct sections *s, struct err *e) {
    const char *p = text, *end = text + n;
    while (p < end) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        size_t at = 0, length = (size_t)((line_end != NULL ? line_end : end) - p);
        while (at < length && name_byte(p[at])) at++;
        bool named = at < length && p[at] == ':';
        bool site = named && at > 5 && memcmp(p, "site_", 5) == 0;
        bool fabric = named && at > 7 && memcmp(p, "fabric_", 7) == 0;
        if (site || fabric) TRY(section_add(s, file, p, at, site, e));
        p = line_end != NULL ? line_end + 1 : end;
    }
    return BRG_OK;
}

/* ---- Taking the values ---------------------------------------------------------------------------------- */
static double rate(const struct config *c, const char *section, const char *key) {
    return config_f64(c, section, key) * 1e6;
}

static double seconds(const struct config *c, const char *section, const char *key) {
    return (double)config_duration(c, section, key) / NS_PER_S;
}

static enum brg_status link_take(const struct config *c, const char *section,
                                 const char *const keys[3], struct topo_link *out, struct err *e) {
    *out = (struct topo_link){.rtt_s = seconds(c, section, keys[0]),
                              .up = rate(c, section, keys[1]),
                              .down = rate(c, section, keys[2]),
                              .age_s = -1};
    out->known = out->up > 0 && out->down > 0;
    if (!out->known && (out->up > 0 || out->down > 0))
        return config_fail(c, section, keys[out->up > 0 ? 2 : 1], e,
                           "one direction is given: give both %s and %s in MB/s, or neither",
                           keys[1], keys[2]);
    return BRG_OK;
}

static enum brg_status label_take(const struct config *c, const char *section, const char *key,
                                  char out[TOPO_LABEL_MAX], struct err *e) {
    const char *v = config_string(c, section, key);
    if (!topo_label_valid(v))
        return config_fail(c, section, key, e,
                           "want up to three words of a-z 0-9 - _, with / between, as in "
                           "europe/alder");
    (void)snprintf(out, TOPO_LABEL_MAX, "%s", v);
    return BRG_OK;
}

static enum brg_status site_take(const struct config *c, const char *section, struct topo_site *s,
                                 struct err *e) {
    static const char *const link[3] = {"rtt", "up", "down"};
    (void)snprintf(s->name, sizeof s->name, "%.47s", section + strlen("site_"));
    TRY(label_take(c, section, "fabric", s->fabric, e));
    s->step_s = seconds(c, section, "step");
    return link_take(c, section, link, &s->top, e);
}

static enum brg_status fabric_take(const struct config *c, const char *section,
                                   struct topo_fabric *f, struct err *e) {
    static const char *const up[3] = {"rtt", "up", "down"};
    static const char *const inner[3] = {"inner_rtt", "inner_up", "inner_down"};
    TRY(label_take(c, section, "label", f->label, e));
    f->hub_in = rate(c, section, "hub_in");
    f->hub_out = rate(c, section, "hub_out");
    TRY(link_take(c, section, up, &f->up, e));
    return link_take(c, section, inner, &f->inner, e);
}

static enum brg_status run_take(const struct config *c, struct topology *t, struct err *e) {
    double tokens = config_f64(c, "run", "tokens_total"),
           step = config_f64(c, "run", "step_tokens");
    if ((tokens > 0) != (step > 0))
        TRY(config_fail(c, "run", tokens > 0 ? "step_tokens" : "tokens_total", e,
                        "give both tokens_total and step_tokens, or neither"));
    t->parameters = config_u64(c, "run", "parameters");
    t->steps_total = step > 0 ? tokens / step : 0;
    t->steps = (double)config_u64(c, "run", "steps");
    t->codec = (enum topo_codec)config_enum(c, "run", "codec");
    t->down = (enum topo_codec)config_enum(c, "run", "down_codec");
    t->topk = config_bool(c, "run", "topk");
    t->hub_in = rate(c, "hub", "in");
    t->hub_out = rate(c, "hub", "out");
    t->merge_rate = config_f64(c, "hub", "merge");
    t->memory_rate = rate(c, "hub", "memory");
    return BRG_OK;
}

static enum brg_status all_take(const struct config *c, const struct sections *s,
                                struct topology *t, struct err *e) {
    TRY(run_take(c, t, e));
    t->sites = mem_alloc(s->sites > 0 ? s->sites : 1, sizeof *t->sites);
    t->fabrics = mem_alloc(s->fabrics > 0 ? s->fabrics : 1, sizeof *t->fabrics);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct dynamic *d = &s->v[i];
        if (d->site)
            TRY(site_take(c, d->section, &t->sites[t->sites_count++], e));
        else
            TRY(fabric_take(c, d->section, &t->fabrics[t->fabrics_count++], e));
    }
    return topo_check(t, e);
}

enum brg_status topofile_parse(const char *file, const char *text, size_t n, struct topology *out,
                               struct err *e) {
    struct sections *s = mem_alloc(1, sizeof *s);
    struct config *c = config_create();
    memset(out, 0, sizeof *out);
    config_declare(c, fixed_keys, ARRAY_COUNT(fixed_keys));
    enum brg_status status = sections_find(file, text, n, s, e);
    for (uint32_t i = 0; i < s->count && status == BRG_OK; i++)
        config_declare(c, s->v[i].keys, s->v[i].site ? SITE_KEYS : FABRIC_KEYS);
    if (status == BRG_OK) status = config_parse(c, file, text, n, e);
    if (status == BRG_OK) status = config_finish(c, e);
    if (status == BRG_OK) {
        status = all_take(c, s, out, e);
        if (status != BRG_OK && strstr(e->text, file) == NULL) (void)err_prefix(e, "%s", file);
    }
    config_destroy(c);
    mem_free(s);
    return status;
}
