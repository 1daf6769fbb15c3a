/* SPDX-License-Identifier: Apache-2.0 */
/* plan_topology_print.c - a proposal of src/place/topology.h as text and as JSON. */
#include <stdio.h>

#include "cli/plan_topology.h"
#include "wire/json.h"

struct bytes_text {
    char v[24];
};

static struct bytes_text bytes(double v) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    struct bytes_text t;
    size_t i = 0;
    for (; v >= 999.5 && i + 1 < ARRAY_COUNT(units); i++) v /= 1000;
    (void)snprintf(t.v, sizeof t.v, "%.3g %s", v, units[i]);
    return t;
}

static const char *word_of(const struct topo_group *g) {
    return g->good ? "good" : g->carried ? "late" : "NOT CARRIED";
}

static void group_text(const struct topo_group *g, const char *codec, struct buf *out) {
    const struct topo_cost *c = &g->cost;
    buf_printf(out, "  %s (", g->label[0] != '\0' ? g->label : "the top");
    if (g->sites > 0) buf_printf(out, "%u site%s", g->sites, g->sites > 1 ? "s" : "");
    if (g->hubs > 0)
        buf_printf(out, "%s%u hub%s", g->sites > 0 ? ", " : "", g->hubs, g->hubs > 1 ? "s" : "");
    buf_printf(out, "): every %.0f steps, %s: %s up, %s down each, %s over the hub's line\n",
               g->interval, codec, bytes(c->child_up).v, bytes(c->child_down).v,
               bytes(c->hub_in + c->hub_out).v);
    buf_printf(out,
               "    up %.3g s + merge %.3g s + down %.3g s: %.3g s, %.3g steps of delay (%.3g %%), "
               "%s; it waits for %s\n",
               c->up_s, c->merge_s, c->down_s, c->wait_s, g->delay, 100 * g->delay / g->interval,
               word_of(g), c->hub_bound ? "the hub's own line" : g->slowest);
}

static void plan_text(const struct topo_plan *p, bool chosen, struct buf *out) {
    static const char *const names[TOPO_LEVELS_MAX] = {"one hub", "two levels", "three levels"};
    buf_printf(out, "%s %s: ", chosen ? "=>" : "  ", names[p->levels - 1]);
    if (!p->possible) {
        buf_printf(out, "not now: %s\n", p->missing);
        return;
    }
    buf_printf(out, "H %.0f", p->h);
    if (p->levels > 1)
        buf_printf(out, ", K %.0f rounds of a level in one of the level above", p->k);
    buf_printf(out, "; %s an inner step over the top's line; %.3g s exposed a round",
               bytes(p->top_bytes).v, p->exposed_s);
    if (p->merges > 0) buf_printf(out, "; %.0f merges at the top in the run", p->merges);
    buf_printf(out, "\n");
    for (uint32_t i = 0; i < p->groups_count; i++)
        group_text(&p->groups[i], topo_codec_name(p->groups[i].codec), out);
}

void plan_topology_text(const struct topology *t, const struct topo_proposal *p, struct buf *out) {
    buf_printf(out, "%u site%s, %llu parameters", t->sites_count, t->sites_count > 1 ? "s" : "",
               (unsigned long long)t->parameters);
    if (t->steps_total > 0) buf_printf(out, ", %.0f inner steps in the run", t->steps_total);
    buf_printf(out, "\n");
    if (p->in_use.interval > 0) {
        char codecs[48];
        (void)snprintf(codecs, sizeof codecs, "%s up, %s down", topo_codec_name(t->codec),
                       t->down == TOPO_FP32 ? "full" : topo_codec_name(t->down));
        buf_printf(out, "   as it is set: H %.0f\n", t->steps);
        group_text(&p->in_use, codecs, out);
    }
    for (uint32_t i = 0; i < TOPO_LEVELS_MAX; i++)
        plan_text(&p->plans[i], i == p->chosen && p->plans[i].possible, out);
    for (uint32_t i = 0; i < p->notes_count; i++) buf_printf(out, "! %s\n", p->notes[i]);
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */
static void group_json(const struct topo_group *g, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_text(out, &first, "fabric", g->label);
    json_member_u64(out, &first, "level", g->level);
    json_member_u64(out, &first, "sites", g->sites);
    json_member_u64(out, &first, "hubs", g->hubs);
    json_member_f64(out, &first, "interval_steps", g->interval);
    json_member_text(out, &first, "codec", topo_codec_name(g->codec));
    json_member_f64(out, &first, "step_s", g->step_s);
    json_member_f64(out, &first, "child_up_bytes", g->cost.child_up);
    json_member_f64(out, &first, "child_down_bytes", g->cost.child_down);
    json_member_f64(out, &first, "hub_in_bytes", g->cost.hub_in);
    json_member_f64(out, &first, "hub_out_bytes", g->cost.hub_out);
    json_member_f64(out, &first, "up_s", g->cost.up_s);
    json_member_f64(out, &first, "merge_s", g->cost.merge_s);
    json_member_f64(out, &first, "down_s", g->cost.down_s);
    json_member_f64(out, &first, "wait_s", g->cost.wait_s);
    json_member_f64(out, &first, "delay_steps", g->delay);
    json_member_bool(out, &first, "carried", g->carried);
    json_member_bool(out, &first, "good", g->good);
    json_member_text(out, &first, "waits_for", g->cost.hub_bound ? "hub" : g->slowest);
    buf_u8(out, '}');
}

static void plan_json(const struct topo_plan *p, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "levels", p->levels);
    json_member_bool(out, &first, "possible", p->possible);
    json_member_text(out, &first, "missing", p->missing);
    if (p->possible) {
        json_member_f64(out, &first, "h", p->h);
        json_member_f64(out, &first, "k", p->k);
        json_member_bool(out, &first, "carried", p->carried);
        json_member_bool(out, &first, "good", p->good);
        json_member_f64(out, &first, "merges", p->merges);
        json_member_f64(out, &first, "top_bytes_step", p->top_bytes);
        json_member_f64(out, &first, "exposed_s", p->exposed_s);
        json_key(out, &first, "groups");
        buf_u8(out, '[');
        for (uint32_t i = 0; i < p->groups_count; i++) {
            if (i > 0) buf_u8(out, ',');
            group_json(&p->groups[i], out);
        }
        buf_u8(out, ']');
    }
    buf_u8(out, '}');
}

void plan_topology_json(const struct topology *t, const struct topo_proposal *p, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "parameters", t->parameters);
    json_member_u64(out, &first, "sites", t->sites_count);
    json_member_f64(out, &first, "steps_total", t->steps_total);
    json_member_u64(out, &first, "levels",
                    p->plans[p->chosen].possible ? p->plans[p->chosen].levels : 0);
    if (p->in_use.interval > 0) {
        json_key(out, &first, "in_use");
        group_json(&p->in_use, out);
    }
    json_key(out, &first, "plans");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < TOPO_LEVELS_MAX; i++) {
        if (i > 0) buf_u8(out, ',');
        plan_json(&p->plans[i], out);
    }
    buf_u8(out, ']');
    json_key(out, &first, "warnings");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < p->notes_count; i++) {
        if (i > 0) buf_u8(out, ',');
        json_put_text(out, p->notes[i]);
    }
    buf_printf(out, "]}\n");
}
