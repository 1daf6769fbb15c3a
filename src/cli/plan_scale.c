/* SPDX-License-Identifier: Apache-2.0 */
/* plan_scale.c - beringia plan --scale: the model of src/place/scale.h as tables in Markdown, which stand in docs/scale.md. */
#include <math.h>
#include <stdio.h>

#include "cli/plan_topology.h"
#include "wire/json.h"

static const struct {
    const char *name;
    uint64_t parameters;
} models[] = {{"0.6B", UINT64_C(596049920)},
              {"8B", UINT64_C(8190735360)},
              {"32B", UINT64_C(32762123264)},
              {"70B", UINT64_C(70553706496)}};
static const uint32_t sites[] = {3, 30, 300, 3000};

struct figure_text {
    char v[32];
};

static struct figure_text figure(double v) {
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    struct figure_text t;
    size_t i = 0;
    for (; v >= 999.5 && i + 1 < ARRAY_COUNT(units); i++) v /= 1000;
    (void)snprintf(t.v, sizeof t.v,
                   v >= 99.5 || i == 0 ? "%.0f%s"
                   : v >= 9.95         ? "%.3g%s"
                                       : "%.2f%s",
                   v, units[i]);
    return t;
}

static struct figure_text span(double s) {
    struct figure_text t;
    if (s < 10)
        (void)snprintf(t.v, sizeof t.v, "%.1f s", s);
    else if (s < 600)
        (void)snprintf(t.v, sizeof t.v, "%.0f s", s);
    else if (s < 36000)
        (void)snprintf(t.v, sizeof t.v, "%.0f min", s / 60);
    else if (s < 864000)
        (void)snprintf(t.v, sizeof t.v, "%.1f h", s / 3600);
    else
        (void)snprintf(t.v, sizeof t.v, "%.0f d", s / 86400);
    return t;
}

static struct figure_text usd(double v) {
    struct figure_text t;
    (void)snprintf(t.v, sizeof t.v, v >= 100 ? "%.0f" : v >= 1 ? "%.1f" : "%.3f", v);
    return t;
}

static void fan_text(const struct scale_row *r, struct buf *out) {
    for (uint32_t i = 0; i < r->levels_count; i++)
        buf_printf(out, "%s%u", i > 0 ? " x " : "", r->levels[i].children);
}

static void row_text(const char *model, const struct scale_row *r, struct buf *out) {
    const struct topo_cost *top = &r->levels[0].cost;
    buf_printf(out, "| %s | %u | %s | ", model, r->sites, scale_design_name(r->design));
    fan_text(r, out);
    buf_printf(out, " | %s | %sB | %s + %s + %s | %.0f | %.1f %% | %s + %s | %.2g %% | ",
               span(r->interval_s).v, figure(r->top_bytes).v, span(top->up_s).v,
               span(top->merge_s).v, span(top->down_s).v, top->wait_s / r->step_s,
               100 * r->delay_share, usd(r->lines_usd + r->store_usd).v, usd(r->exposed_usd).v,
               100 * r->share);
    if (r->limit != SCALE_FITS)
        buf_printf(out, "**%s**, %.2g x |\n", scale_limit_name(r->limit), r->excess);
    else
        buf_printf(out, "%s |\n", r->delay_share <= TOPO_DELAY_SHARE ? "good" : "fits, late");
}

static void settings_text(const struct scale_settings *s, struct buf *out) {
    size_t n;
    const struct scale_key *keys = scale_keys(&n);
    buf_printf(out, "| setting | value | unit | from |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        double v = *(const double *)((const uint8_t *)s + keys[i].offset);
        buf_printf(out, "| %s | %.6g | %s | %s |\n", keys[i].name, v, keys[i].unit,
                   v == keys[i].def ? keys[i].source : "given");
    }
}

static void most_text(const struct scale_settings *s, struct buf *out) {
    buf_printf(out, "\n| model | design | sites, delay good | sites that fit | one more breaks "
                    "at | what then |\n|---|---|---|---|---|---|\n");
    for (size_t m = 0; m < ARRAY_COUNT(models); m++) {
        for (uint32_t d = 0; d < SCALE_DESIGNS; d++) {
            struct scale_row next;
            uint32_t good = scale_most(s, (enum scale_design)d, models[m].parameters, true, &next);
            uint32_t fit = scale_most(s, (enum scale_design)d, models[m].parameters, false, &next);
            bool all = next.limit == SCALE_FITS; /* as many as are looked at */
            buf_printf(out, "| %s | %s | %u | %u%s | %s | %s |\n", models[m].name,
                       scale_design_name((enum scale_design)d), good, fit, all ? " at least" : "",
                       all ? "" : scale_limit_name(next.limit), scale_limit_remedy(next.limit));
        }
    }
}

void plan_scale_text(const struct scale_settings *s, struct buf *out) {
    settings_text(s, out);
    buf_printf(out, "\n| model | sites | design | children of each hub | a round of the top | over "
                    "the top hub's line | up + merge + down | steps of delay | of the interval, at "
                    "worst | USD a round: lines + waiting sites | of what the sites cost | |\n"
                    "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t m = 0; m < ARRAY_COUNT(models); m++) {
        for (size_t n = 0; n < ARRAY_COUNT(sites); n++) {
            for (uint32_t d = 0; d < SCALE_DESIGNS; d++) {
                struct scale_row r;
                scale_row(s, (enum scale_design)d, models[m].parameters, sites[n], &r);
                if (r.levels_count > 0) row_text(models[m].name, &r, out);
            }
        }
    }
    most_text(s, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */
static void level_json(const struct scale_level *v, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "children", v->children);
    json_member_f64(out, &first, "hubs", v->hubs);
    json_member_f64(out, &first, "interval_s", v->interval_s);
    json_member_f64(out, &first, "bytes_in", v->cost.hub_in);
    json_member_f64(out, &first, "bytes_out", v->cost.hub_out);
    json_member_f64(out, &first, "up_s", v->cost.up_s);
    json_member_f64(out, &first, "merge_s", v->cost.merge_s);
    json_member_f64(out, &first, "down_s", v->cost.down_s);
    json_member_f64(out, &first, "wait_s", v->cost.wait_s);
    json_member_f64(out, &first, "delay_share", v->delay_share);
    buf_u8(out, '}');
}

static void row_json(const struct scale_row *r, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "parameters", r->parameters);
    json_member_u64(out, &first, "sites", r->sites);
    json_member_text(out, &first, "design", scale_design_name(r->design));
    json_member_f64(out, &first, "step_s", r->step_s);
    json_member_f64(out, &first, "interval_steps", r->interval_steps);
    json_member_f64(out, &first, "interval_s", r->interval_s);
    json_member_f64(out, &first, "top_bytes", r->top_bytes);
    json_member_f64(out, &first, "exposed_s", r->exposed_s);
    json_member_f64(out, &first, "delay_share", r->delay_share);
    json_member_f64(out, &first, "lines_usd", r->lines_usd);
    json_member_f64(out, &first, "store_usd", r->store_usd);
    json_member_f64(out, &first, "exposed_usd", r->exposed_usd);
    json_member_f64(out, &first, "share", r->share);
    json_member_text(out, &first, "limit", scale_limit_name(r->limit));
    json_member_f64(out, &first, "excess", r->excess);
    json_key(out, &first, "levels");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < r->levels_count; i++) {
        if (i > 0) buf_u8(out, ',');
        level_json(&r->levels[i], out);
    }
    buf_printf(out, "]}");
}

void plan_scale_json(const struct scale_settings *s, struct buf *out) {
    size_t n;
    const struct scale_key *keys = scale_keys(&n);
    bool first = true, any = false;
    buf_printf(out, "{\"settings\":{");
    for (size_t i = 0; i < n; i++)
        json_member_f64(out, &first, keys[i].name,
                        *(const double *)((const uint8_t *)s + keys[i].offset));
    buf_printf(out, "},\"rows\":[");
    for (size_t m = 0; m < ARRAY_COUNT(models); m++) {
        for (size_t k = 0; k < ARRAY_COUNT(sites) * SCALE_DESIGNS; k++) {
            struct scale_row r;
            scale_row(s, (enum scale_design)(k % SCALE_DESIGNS), models[m].parameters,
                      sites[k / SCALE_DESIGNS], &r);
            if (r.levels_count == 0) continue;
            if (any) buf_u8(out, ',');
            row_json(&r, out);
            any = true;
        }
    }
    buf_printf(out, "]}\n");
}
