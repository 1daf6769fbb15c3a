/* SPDX-License-Identifier: Apache-2.0 */
/* topolive.c - sites and links from the status of one or several hubs, read as the words of strangers. */
#include <math.h>
#include <string.h>

#include "place/topology.h"
#include "wire/json.h"
#include "wire/wire.h"

enum { STATUS_BYTES_MAX = 64 << 20 };

struct said_run {
    uint64_t parameters, steps;
    double tokens_total, wall;
    char codec[16], down_codec[16];
};
static const struct field run_fields[] = {FIELD(said_run, parameters, JSON_U64),
                                          FIELD(said_run, steps, JSON_U64),
                                          FIELD(said_run, tokens_total, JSON_F64),
                                          FIELD(said_run, wall, JSON_F64),
                                          FIELD_TEXT(said_run, codec),
                                          FIELD_TEXT(said_run, down_codec),
                                          FIELD_END};
struct said_site {
    char name[WIRE_NAME_MAX], fabric[WIRE_FABRIC_MAX];
    bool joined;
    double steps_per_s, tokens_per_s;
};
static const struct field site_fields[] = {FIELD_TEXT(said_site, name),
                                           FIELD_TEXT(said_site, fabric),
                                           FIELD(said_site, joined, JSON_BOOL),
                                           FIELD(said_site, steps_per_s, JSON_F64),
                                           FIELD(said_site, tokens_per_s, JSON_F64),
                                           FIELD_END};
struct said_link {
    char from[WIRE_NAME_MAX], fabric[WIRE_FABRIC_MAX];
    bool hub;
    double rtt_ms, up_mb_s, down_mb_s, at;
};
static const struct field link_fields[] = {
    FIELD_TEXT(said_link, from),         FIELD_TEXT(said_link, fabric),
    FIELD(said_link, hub, JSON_BOOL),    FIELD(said_link, rtt_ms, JSON_F64),
    FIELD(said_link, up_mb_s, JSON_F64), FIELD(said_link, down_mb_s, JSON_F64),
    FIELD(said_link, at, JSON_F64),      FIELD_END};

/* ---- Adding ---------------------------------------------------------------------------------------------- */
static enum brg_status site_named(struct topology *t, const char *name, struct topo_site **out,
                                  struct err *e) {
    if (!wire_name_valid(name))
        return err_set(e, BRG_E_MESSAGE, "status: \"%.47s\" is no name of a site", name);
    for (uint32_t i = 0; i < t->sites_count; i++) {
        if (strcmp(t->sites[i].name, name) != 0) continue;
        *out = &t->sites[i];
        return BRG_OK;
    }
    if (t->sites_count == TOPO_SITES_MAX)
        return err_set(e, BRG_E_LIMIT, "more than %d sites, which a plan cannot take",
                       TOPO_SITES_MAX);
    t->sites = mem_grow(t->sites, t->sites_count, t->sites_count + 1, sizeof *t->sites);
    struct topo_site *s = &t->sites[t->sites_count++];
    memset(s, 0, sizeof *s);
    memcpy(s->name, name, strlen(name) + 1);
    *out = s;
    return BRG_OK;
}

static enum brg_status fabric_named(struct topology *t, const char *label, struct topo_fabric **out,
                                    struct err *e) {
    char two[TOPO_LABEL_MAX];
    if (!wire_fabric_valid(label) || topo_label_prefix(label, 1, two) >= TOPO_LEVELS_MAX)
        return err_set(e, BRG_E_MESSAGE,
                       "fabric \"%.63s\" of a hub: want one or two words of a-z 0-9 - _, with / "
                       "between",
                       label);
    for (uint32_t i = 0; i < t->fabrics_count; i++) {
        if (strcmp(t->fabrics[i].label, label) != 0) continue;
        *out = &t->fabrics[i];
        return BRG_OK;
    }
    if (t->fabrics_count == TOPO_FABRICS_MAX)
        return err_set(e, BRG_E_LIMIT, "more than %d hubs of regions, which a plan cannot take",
                       TOPO_FABRICS_MAX);
    t->fabrics = mem_grow(t->fabrics, t->fabrics_count, t->fabrics_count + 1, sizeof *t->fabrics);
    struct topo_fabric *f = &t->fabrics[t->fabrics_count++];
    memset(f, 0, sizeof *f);
    memcpy(f->label, label, strlen(label) + 1);
    *out = f;
    return BRG_OK;
}

static bool link_of(const struct said_link *l, double wall, struct topo_link *out) {
    *out = (struct topo_link){.rtt_s = l->rtt_ms / 1e3,
                              .up = l->up_mb_s * 1e6,
                              .down = l->down_mb_s * 1e6,
                              .age_s = fmax(0, wall - l->at),
                              .known = true};
    return out->rtt_s >= 0 && out->rtt_s < 1e9 && out->up > 0 && out->up < 1e16 && out->down > 0 &&
           out->down < 1e16;
}

static enum brg_status label_take(char to[TOPO_LABEL_MAX], const char *label, struct err *e) {
    if (label[0] == '\0') return BRG_OK;
    if (!wire_fabric_valid(label))
        return err_set(e, BRG_E_MESSAGE, "status: \"%.63s\" is no label of a fabric", label);
    memcpy(to, label, strlen(label) + 1);
    return BRG_OK;
}

/* ---- Reading ---------------------------------------------------------------------------------------------- */
/* region: "" for the top. Sums what the sites train at one step together. */
static enum brg_status sites_read(struct topology *t, const json_t *o, const char *region,
                                  double *step_tokens, struct err *e) {
    const json_t *list = json_object_get(o, "sites");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct said_site v;
        struct topo_site *s = NULL;
        memset(&v, 0, sizeof v);
        TRY(json_fields_get(json_array_get(list, i), site_fields, &v, "status.sites", e));
        if (!v.joined) continue;
        TRY(site_named(t, v.name, &s, e));
        TRY(label_take(s->fabric, v.fabric[0] != '\0' ? v.fabric : region, e));
        if (v.steps_per_s > 1e-9) {
            s->step_s = 1 / v.steps_per_s;
            if (v.tokens_per_s > 0) *step_tokens += v.tokens_per_s / v.steps_per_s;
        }
    }
    return BRG_OK;
}

/* Of several inside a region the slowest figures count: a hub there waits for all. */
static void inner_take(struct topo_fabric *f, const struct topo_link *l) {
    struct topo_link *in = &f->inner;
    if (!in->known) {
        *in = *l;
        return;
    }
    in->rtt_s = fmax(in->rtt_s, l->rtt_s);
    in->up = fmin(in->up, l->up);
    in->down = fmin(in->down, l->down);
    in->age_s = fmax(in->age_s, l->age_s);
}

static enum brg_status links_read(struct topology *t, const json_t *o, const char *region,
                                  double wall, struct err *e) {
    const json_t *list = json_object_get(o, "links");
    if (!json_is_array(list))
        return err_set(e, BRG_E_MESSAGE, "status.links: missing; is this a hub of this version?");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct said_link v;
        struct topo_link l;
        struct topo_fabric *f = NULL;
        struct topo_site *s = NULL;
        memset(&v, 0, sizeof v);
        TRY(json_fields_get(json_array_get(list, i), link_fields, &v, "status.links", e));
        if (!link_of(&v, wall, &l))
            return err_set(e, BRG_E_MESSAGE, "status.links: figures of %.47s that are none",
                           v.from);
        if (v.hub) {
            TRY(fabric_named(t, v.fabric, &f, e));
            f->up = l;
            continue;
        }
        TRY(site_named(t, v.from, &s, e));
        if (s->fabric[0] == '\0') TRY(label_take(s->fabric, v.fabric[0] ? v.fabric : region, e));
        if (region[0] == '\0') {
            s->top = l;
            continue;
        }
        TRY(fabric_named(t, region, &f, e));
        inner_take(f, &l);
    }
    return BRG_OK;
}

static bool codec_named(const char *name, enum topo_codec *out) {
    for (enum topo_codec c = TOPO_FP32; c < TOPO_CODECS; c++) {
        bool full = c == TOPO_FP32 && strcmp(name, "full") == 0;
        if (!full && strcmp(topo_codec_name(c), name) != 0) continue;
        *out = c;
        return true;
    }
    return false;
}

static enum brg_status run_read(struct topology *t, const json_t *o, double *out_wall,
                                double *out_tokens, struct err *e) {
    struct said_run r;
    memset(&r, 0, sizeof r);
    TRY(json_fields_get(o, run_fields, &r, "status", e));
    if (!codec_named(r.codec, &t->codec) || !codec_named(r.down_codec, &t->down))
        return err_set(e, BRG_E_MESSAGE, "status.codec, status.down_codec: not known: %s, %s",
                       r.codec, r.down_codec);
    t->parameters = r.parameters;
    t->steps = (double)r.steps;
    t->topk = t->codec == TOPO_TOPK; /* it goes without outer momentum already */
    t->merge_rate = TOPO_MERGE_RATE;
    t->memory_rate = TOPO_MEMORY_RATE;
    *out_wall = r.wall;
    *out_tokens = r.tokens_total;
    return BRG_OK;
}

enum brg_status topo_live_read(const void *json, size_t n, struct topology *out, struct err *e) {
    double wall = 0, tokens = 0, step_tokens = 0;
    json_t *o = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_object_parse(json, n, STATUS_BYTES_MAX, &o, e));
    enum brg_status s = run_read(out, o, &wall, &tokens, e);
    if (s == BRG_OK) s = sites_read(out, o, "", &step_tokens, e);
    if (s == BRG_OK) s = links_read(out, o, "", wall, e);
    json_decref(o);
    if (s == BRG_OK && step_tokens > 0 && tokens > 0) out->steps_total = tokens / step_tokens;
    return s;
}

enum brg_status topo_live_region(struct topology *t, const char *label, const void *json, size_t n,
                                 struct err *e) {
    struct said_run r;
    struct topo_fabric *f = NULL;
    double step_tokens = 0;
    json_t *o = NULL;
    memset(&r, 0, sizeof r);
    TRY(fabric_named(t, label, &f, e));
    TRY(json_object_parse(json, n, STATUS_BYTES_MAX, &o, e));
    enum brg_status s = json_fields_get(o, run_fields, &r, "status", e);
    if (s == BRG_OK && r.parameters != t->parameters)
        s = err_set(e, BRG_E_MESSAGE, "status.parameters: another model than the top hub's");
    if (s == BRG_OK) s = sites_read(t, o, label, &step_tokens, e);
    if (s == BRG_OK) s = links_read(t, o, label, r.wall, e);
    json_decref(o);
    return s;
}
