/* SPDX-License-Identifier: Apache-2.0 */
/* scale.c - see scale.h. */
#include "place/scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SITES_MOST = 1000000 };

#define KEY(field, def, min, max, unit, source)                                                    \
    { #field, offsetof(struct scale_settings, field), def, min, max, unit, source }
static const struct scale_key keys[] = {
    KEY(h, 100, 1, 1e6, "steps", "a setting: outer.steps"),
    KEY(k, 4, 1, 1e3, "rounds", "a setting: of a level in one of the level above"),
    KEY(codec_up, 0.53125, 1e-3, 4, "bytes a parameter", "int4: blocks of 64 with a scale of 2"),
    KEY(codec_down, 0.53125, 1e-3, 4, "bytes a parameter", "the same"),
    KEY(site_flops, 1e15, 1e9, 1e21, "FLOP/s", "assumed: 8 x A100, 312e12 peak, 40 % of it"),
    KEY(step_tokens, 524288, 1, 1e12, "tokens", "assumed: of a site's step"),
    KEY(memory_rate, 1e10, 1e6, 1e15, "bytes/s", "assumed: a site's passes over its weights"),
    KEY(site_rate, 125e6, 1, 1e15, "bytes/s", "assumed: 1 Gbit/s, each way"),
    KEY(region_rate, 1250e6, 1, 1e15, "bytes/s", "assumed: 10 Gbit/s inside a region"),
    KEY(campus_rate, 12500e6, 1, 1e15, "bytes/s", "assumed: 100 Gbit/s on a campus"),
    KEY(hub_rate, 1250e6, 1, 1e15, "bytes/s", "assumed: a hub's own line, 10 Gbit/s, each way"),
    KEY(store_rate, 12500e6, 1, 1e15, "bytes/s", "assumed: an object store, all its clients"),
    KEY(rtt, 0.09, 0, 1e3, "s", "assumed: across an ocean"),
    KEY(region_rtt, 0.01, 0, 1e3, "s", "assumed"),
    KEY(campus_rtt, 0.001, 0, 1e3, "s", "assumed"),
    KEY(merge_rate, 2.5e9, 1, 1e15, "parameters/s a thread",
        "measured: docs/speed.md, three int4 contributions at 1.2 ns"),
    KEY(hub_threads, 8, 1, 1e4, "threads", "assumed of a hub"),
    KEY(disk_rate, 4e9, 1, 1e15, "bytes/s", "assumed of a hub: one NVMe disk, either way"),
    KEY(disk_bytes, 8e12, 1, 1e18, "bytes", "assumed of a hub"),
    KEY(keep, 3, 1, 1e4, "checkpoints", "a setting: hub.keep_checkpoints, and the one being made"),
    KEY(messages, 4, 1, 1e4, "a site and round", "lease, commit, outcome, and one to spare"),
    KEY(messages_rate, 22000, 1, 1e9, "a second", "measured: docs/speed.md, bench-hub durable"),
    KEY(heartbeat_s, 10, 0.01, 3600, "s", "a setting: lease.heartbeat"),
    KEY(heartbeats_rate, 12981, 1, 1e9, "a second", "measured: docs/speed.md, bench-hub members"),
    KEY(part_bytes, 64e6, 5e6, 5e9, "bytes", "assumed: one request to the store"),
    KEY(egress, 0.09, 0, 100, "USD a GB", "assumed: out of a cloud, first tier of a price list"),
    KEY(put_1000, 0.005, 0, 100, "USD", "assumed: 1,000 PUT of an object store's price list"),
    KEY(get_1000, 0.0004, 0, 100, "USD", "assumed: 1,000 GET"),
    KEY(site_hour, 16, 0, 1e9, "USD", "assumed: 8 GPUs at 2 USD an hour"),
};

const struct scale_key *scale_keys(size_t *out_count) {
    *out_count = ARRAY_COUNT(keys);
    return keys;
}

static double *field(struct scale_settings *s, const struct scale_key *k) {
    return (double *)((uint8_t *)s + k->offset);
}

struct scale_settings scale_defaults(void) {
    struct scale_settings s;
    memset(&s, 0, sizeof s);
    static_assert(sizeof s == ARRAY_COUNT(keys) * sizeof(double), "each setting has its key");
    for (size_t i = 0; i < ARRAY_COUNT(keys); i++) *field(&s, &keys[i]) = keys[i].def;
    return s;
}

enum brg_status scale_set(struct scale_settings *s, const char *assignment, struct err *e) {
    const char *equal = strchr(assignment, '=');
    char names[400] = "";
    for (size_t i = 0; i < ARRAY_COUNT(keys); i++) {
        size_t n = strlen(names);
        (void)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? " " : "", keys[i].name);
        if (equal == NULL || strlen(keys[i].name) != (size_t)(equal - assignment) ||
            memcmp(keys[i].name, assignment, (size_t)(equal - assignment)) != 0)
            continue;
        double v;
        if (!parse_f64(equal + 1, &v) || !(v >= keys[i].min) || !(v <= keys[i].max))
            return err_set(e, BRG_E_CONFIG, "%s: want %g to %g %s", keys[i].name, keys[i].min,
                           keys[i].max, keys[i].unit);
        *field(s, &keys[i]) = v;
        return BRG_OK;
    }
    return err_set(e, BRG_E_CONFIG, "%.60s: want NAME=VALUE, NAME one of %s", assignment, names);
}

const char *scale_design_name(enum scale_design d) {
    static const char *const names[SCALE_DESIGNS] = {"one hub", "two levels", "three levels",
                                                     "one hub, object store"};
    CHECK(d < SCALE_DESIGNS);
    return names[d];
}

static const char *const limits[SCALE_LIMITS][2] = {
    [SCALE_FITS] = {"fits", ""},
    [SCALE_SITE_LINE] = {"sites' lines", "a smaller codec, a longer round, or a hub nearer"},
    [SCALE_HUB_LINE] = {"a hub's line",
                        "a level more, or an object store: a hub's line no longer carries all"},
    [SCALE_MERGE] = {"a hub's merge", "a level more: merges are made beside each other"},
    [SCALE_CONTROL] = {"a hub's messages", "a level more, or a longer heartbeat"},
    [SCALE_DISK] = {"a hub's disk", "a larger disk, fewer checkpoints, or an object store"},
};
const char *scale_limit_name(enum scale_limit l) {
    CHECK(l < SCALE_LIMITS);
    return limits[l][0];
}
const char *scale_limit_remedy(enum scale_limit l) {
    CHECK(l < SCALE_LIMITS);
    return limits[l][1];
}

/* ---- One level -------------------------------------------------------------------------------------------- */
static double children_of(double sites, uint32_t parts) {
    return ceil(pow(sites, 1.0 / parts) - 1e-9);
}

/* The same number of children everywhere, as near as whole numbers come. False: too few sites. */
static bool fan_out(struct scale_row *r) {
    double left = r->sites, hubs = 1;
    for (uint32_t i = 0; i < r->levels_count; i++) {
        double n = children_of(left, r->levels_count - i);
        if (r->levels_count > 1 && n < 2) return false;
        r->levels[i].children = (uint32_t)n;
        r->levels[i].hubs = hubs;
        hubs *= n;
        left = ceil(left / n - 1e-9);
    }
    return true;
}

/* The line of a child of this level, from its own side: of a site where the level is the lowest, of a hub elsewhere. The
 * higher of two or three levels is across the ocean, the lowest of three on a campus. */
static struct topo_link line_of(const struct scale_settings *s, const struct scale_row *r,
                                uint32_t level) {
    uint32_t below = r->levels_count - 1 - level; /* levels below this one */
    struct topo_link l = {.rtt_s = s->rtt, .up = s->hub_rate, .down = s->hub_rate, .known = true};
    if (level == 0 && below == 0) l.up = l.down = s->site_rate;
    if (level > 0) {
        bool campus = level == 2;
        l.rtt_s = campus ? s->campus_rtt : s->region_rtt;
        l.up = l.down = campus ? s->campus_rate : s->region_rate;
    }
    return l;
}

/* Reads what came (it was written as it came) and the old state, writes the new one: theta and m. */
static double disk_s(const struct scale_settings *s, double p, double n) {
    return (2 * n * p * s->codec_up + 16 * p) / s->disk_rate;
}

static void store_cost(const struct scale_settings *s, double p, double n, struct topo_cost *c) {
    c->up_s =
        fmax(fmax(c->child_up / s->site_rate, c->hub_in / s->hub_rate), c->hub_in / s->store_rate);
    c->down_s = c->child_down / s->hub_rate +
                fmax(c->child_down / s->site_rate, n * c->child_down / s->store_rate);
    c->hub_bound = c->hub_in / s->hub_rate > c->child_up / s->site_rate;
    c->hub_out = p * s->codec_down; /* once */
    c->wait_s = c->up_s + c->merge_s + c->down_s + 4 * s->rtt;
}

struct worst {
    enum scale_limit limit;
    double excess;
};
static void press(struct worst *w, enum scale_limit l, double share) {
    if (share <= w->excess) return;
    w->limit = l;
    w->excess = share;
}

static void level_cost(const struct scale_settings *s, struct scale_row *r, uint32_t level,
                       struct worst *w) {
    struct scale_level *v = &r->levels[level];
    double p = (double)r->parameters, n = v->children;
    struct topo_exchange x = {.parameters = r->parameters,
                              .children = v->children,
                              .bytes_up = s->codec_up,
                              .bytes_down = s->codec_down,
                              .link = line_of(s, r, level),
                              .hub_in = level == 2 ? s->campus_rate : s->hub_rate,
                              .merge_rate = s->merge_rate * s->hub_threads};
    x.hub_out = x.hub_in;
    topo_exchange_cost(&x, &v->cost);
    struct topo_cost *c = &v->cost;
    double merge = fmax(c->merge_s, disk_s(s, p, n));
    c->wait_s += merge - c->merge_s;
    c->merge_s = merge;
    if (r->design == SCALE_STORE) store_cost(s, p, n, c);
    v->interval_s = r->step_s * s->h * pow(s->k, r->levels_count - 1 - level);
    v->delay_share = c->wait_s / v->interval_s;
    r->delay_share = fmax(r->delay_share, v->delay_share);
    /* What the whole exchange is made of mostly is what it breaks at. */
    bool merges = c->merge_s > c->up_s + c->down_s;
    press(w,
          merges         ? SCALE_MERGE
          : c->hub_bound ? SCALE_HUB_LINE
                         : SCALE_SITE_LINE,
          v->delay_share);
    double control = n * s->messages / s->messages_rate / v->interval_s +
                     n / s->heartbeat_s / s->heartbeats_rate;
    press(w, SCALE_CONTROL, control);
    double held = r->design == SCALE_STORE ? 0 : 8 * p * s->keep + c->child_down * s->keep;
    press(w, SCALE_DISK, (held + n * c->child_up) / s->disk_bytes);
}

/* ---- A row ------------------------------------------------------------------------------------------------ */
static void money(const struct scale_settings *s, struct scale_row *r) {
    const struct topo_cost *top = &r->levels[0].cost;
    double rounds = pow(s->k, r->levels_count - 1), n = r->sites;
    r->lines_usd = top->hub_out / 1e9 * s->egress;
    if (r->design == SCALE_STORE) {
        double up = ceil(top->child_up / s->part_bytes),
               down = ceil(top->child_down / s->part_bytes);
        r->lines_usd = 0; /* the hub is beside the store; the store's way out is below */
        r->store_usd = n * top->child_down / 1e9 * s->egress;
        r->store_usd += (n * up + down) / 1000 * s->put_1000;     /* sites; the hub's update */
        r->store_usd += (n * up + n * down) / 1000 * s->get_1000; /* the hub; sites */
    }
    r->exposed_usd = n * r->exposed_s * s->site_hour / 3600;
    double sites = n * r->step_s * s->h * rounds * s->site_hour / 3600;
    r->share = sites > 0 ? (r->lines_usd + r->store_usd + r->exposed_usd) / sites : 0;
}

void scale_row(const struct scale_settings *s, enum scale_design d, uint64_t parameters,
               uint32_t sites, struct scale_row *out) {
    static const uint32_t levels[SCALE_DESIGNS] = {1, 2, 3, 1};
    struct worst w = {SCALE_FITS, 0};
    CHECK(sites >= 1);
    CHECK(d < SCALE_DESIGNS);
    memset(out, 0, sizeof *out);
    out->parameters = parameters;
    out->sites = sites;
    out->design = d;
    out->levels_count = levels[d];
    out->step_s = 6.0 * (double)parameters * s->step_tokens / s->site_flops;
    if (!fan_out(out)) {
        out->levels_count = 0;
        return;
    }
    double rounds = pow(s->k, out->levels_count - 1);
    out->interval_steps = s->h * rounds;
    out->interval_s = out->step_s * out->interval_steps;
    for (uint32_t i = 0; i < out->levels_count; i++) level_cost(s, out, i, &w);
    out->limit = w.excess > 1 ? w.limit : SCALE_FITS;
    out->excess = w.excess;
    out->top_bytes = out->levels[0].cost.hub_in + out->levels[0].cost.hub_out;
    out->exposed_s = topo_exposed_s(parameters, s->memory_rate) * rounds;
    money(s, out);
}

uint32_t scale_most(const struct scale_settings *s, enum scale_design d, uint64_t parameters,
                    bool good, struct scale_row *out_next) {
    uint32_t low = 0, high = SITES_MOST + 1; /* low fits, high does not */
    while (high - low > 1) {
        struct scale_row r;
        uint32_t at = low + (high - low) / 2;
        scale_row(s, d, parameters, at, &r);
        bool fits = r.levels_count == 0 ||
                    (r.limit == SCALE_FITS && (!good || r.delay_share <= TOPO_DELAY_SHARE));
        if (fits)
            low = at;
        else
            high = at;
    }
    struct scale_row at_low;
    scale_row(s, d, parameters, high, out_next);
    if (low > 0) scale_row(s, d, parameters, low, &at_low);
    return low > 0 && at_low.levels_count > 0 ? low : 0;
}
