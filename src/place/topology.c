/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c - see topology.h. A candidate is a number of levels, H, K: few enough to try them all. Each gets
 * a price, and the cheapest one is proposed:
 *
 *   ln(interval of the lowest level) + ln(interval of the top)      rarer merges cost quality
 *   + LEVEL_PRICE for each level beyond the first                   it must halve the product of the two
 *   + CARRIED_PRICE where a link takes longer than its interval     never, where anything else is possible
 *   + GOOD_PRICE + ln(excess) for each hub where the delay is beyond its share
 *   + 2 ln(TOPO_ROUNDS_GOOD / merges at the top) where they are fewer: rare merges count threefold there */
#include "place/topology.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "wire/wire.h"

#define LEVEL_PRICE 0.7
#define GOOD_PRICE 3.0
#define CARRIED_PRICE 100.0
#define AGE_OLD_S 172800.0

static_assert((int)TOPO_LABEL_MAX == (int)WIRE_FABRIC_MAX, "the same labels");
static_assert((int)TOPO_NAME_MAX == (int)WIRE_NAME_MAX, "the same names");

static const double h_choices[] = {30, 40, 50, 60, 80, 100, 150, 200, 300, 500};
static const double k_choices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

static const struct {
    const char *name;
    double bytes;
} codecs[TOPO_CODECS] = {[TOPO_FP32] = {"fp32", 4},
                         [TOPO_BF16] = {"bf16", 2},
                         [TOPO_INT8] = {"int8", 1 + 4.0 / 128},
                         [TOPO_INT4] = {"int4", 0.5 + 2.0 / 64},
                         [TOPO_TOPK] = {"topk", 116.0 / 4096}};

const char *topo_codec_name(enum topo_codec c) {
    CHECK(c < TOPO_CODECS);
    return codecs[c].name;
}

double topo_codec_bytes(enum topo_codec c) {
    CHECK(c < TOPO_CODECS);
    return codecs[c].bytes;
}

/* ---- Labels ------------------------------------------------------------------------------------------ */
bool topo_label_valid(const char *label) {
    return label[0] == '\0' || wire_fabric_valid(label);
}

uint32_t topo_label_prefix(const char *label, uint32_t words, char out[TOPO_LABEL_MAX]) {
    uint32_t has = label[0] != '\0';
    size_t end = words > 0 ? strlen(label) : 0;
    for (size_t i = 0; label[i] != '\0'; i++) {
        if (label[i] != '/') continue;
        if (has == words) end = i < end ? i : end;
        has++;
    }
    CHECK(end < TOPO_LABEL_MAX);
    memcpy(out, label, end);
    out[end] = '\0';
    return has;
}

/* ---- One exchange ------------------------------------------------------------------------------------- */
static double over(double bytes, double rate) {
    return rate > 0 ? bytes / rate : 0;
}

void topo_exchange_cost(const struct topo_exchange *x, struct topo_cost *out) {
    double p = (double)x->parameters, n = x->children;
    struct topo_cost c = {.child_up = p * x->bytes_up, .child_down = p * x->bytes_down};
    c.hub_in = n * c.child_up;
    c.hub_out = n * c.child_down;
    double up = over(c.child_up, x->link.up), hub_up = over(c.hub_in, x->hub_in);
    double down = over(c.child_down, x->link.down), hub_down = over(c.hub_out, x->hub_out);
    c.up_s = fmax(up, hub_up);
    c.down_s = fmax(down, hub_down);
    c.merge_s = over(n * p, x->merge_rate);
    c.wait_s = c.up_s + c.merge_s + c.down_s + 2 * x->link.rtt_s;
    c.hub_bound = hub_up > up || hub_down > down;
    *out = c;
}

double topo_exposed_s(uint64_t parameters, double memory_rate) {
    return over(TOPO_EXPOSED_BYTES * (double)parameters, memory_rate);
}

/* ---- The tree of a candidate --------------------------------------------------------------------------- */
static const struct topo_fabric *fabric_of(const struct topology *t, const char *label) {
    for (uint32_t i = 0; i < t->fabrics_count; i++)
        if (strcmp(t->fabrics[i].label, label) == 0) return &t->fabrics[i];
    return NULL;
}

static uint32_t group_find(const struct topo_plan *p, const char *label) {
    for (uint32_t i = 0; i < p->groups_count; i++)
        if (strcmp(p->groups[i].label, label) == 0) return i;
    return p->groups_count;
}

/* What a group is while it is gathered: the slowest of each figure of its children. */
struct gather {
    struct topo_link link;
    double slowest_s, speed_sum;
    uint32_t speeds;
};

static uint32_t sites_with(const struct topology *t, const char *label, uint32_t words) {
    char prefix[TOPO_LABEL_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->sites_count; i++)
        if (topo_label_prefix(t->sites[i].fabric, words, prefix) >= words)
            n += strcmp(prefix, label) == 0;
    return n;
}

/* Two sites or more with the same first words have a hub of their own; one alone goes to the hub above. */
static bool groups_make(const struct topology *t, struct topo_plan *p) {
    p->groups_count = 1;
    for (uint32_t words = 1; words < p->levels; words++) {
        uint32_t before = p->groups_count;
        for (uint32_t i = 0; i < t->sites_count; i++) {
            char prefix[TOPO_LABEL_MAX], above[TOPO_LABEL_MAX];
            if (topo_label_prefix(t->sites[i].fabric, words, prefix) < words) continue;
            if (group_find(p, prefix) < p->groups_count) continue;
            if (sites_with(t, prefix, words) < 2) continue;
            (void)topo_label_prefix(prefix, words - 1, above);
            uint32_t parent = group_find(p, above);
            if (parent == p->groups_count) continue;
            if (p->groups_count == TOPO_GROUPS_MAX) {
                (void)snprintf(p->missing, sizeof p->missing,
                               "more than %d hubs: use coarser labels", TOPO_GROUPS_MAX);
                return false;
            }
            struct topo_group *g = &p->groups[p->groups_count++];
            memcpy(g->label, prefix, sizeof g->label);
            g->level = words;
            g->parent = parent;
            p->groups[parent].hubs++;
        }
        if (p->groups_count > before) continue;
        (void)snprintf(p->missing, sizeof p->missing,
                       "no two sites have a fabric label with the same first %s",
                       words == 1 ? "word" : "two words");
        return false;
    }
    return true;
}

static uint32_t group_of_site(const struct topo_plan *p, const struct topo_site *s) {
    char prefix[TOPO_LABEL_MAX];
    for (uint32_t words = p->levels - 1; words > 0; words--) {
        if (topo_label_prefix(s->fabric, words, prefix) < words) continue;
        uint32_t at = group_find(p, prefix);
        if (at < p->groups_count) return at;
    }
    return 0;
}

static void child_add(struct topo_group *g, struct gather *a, const struct topo_link *link,
                      const char *name) {
    double s = over(1, link->up) + over(1, link->down);
    bool first = !a->link.known;
    a->link.known = true;
    a->link.rtt_s = fmax(a->link.rtt_s, link->rtt_s);
    a->link.up = first ? link->up : fmin(a->link.up, link->up);
    a->link.down = first ? link->down : fmin(a->link.down, link->down);
    if (s <= a->slowest_s) return;
    a->slowest_s = s;
    (void)snprintf(g->slowest, sizeof g->slowest, "%s", name);
}

static bool miss(struct topo_plan *p, const char *what, const char *name, const char *how) {
    (void)snprintf(p->missing, sizeof p->missing, "%s %.63s %s", what, name, how);
    return false;
}

/* The links of all children, and the speed of all sites below. False: something is not known (T2). */
static bool groups_fill(const struct topology *t, struct topo_plan *p, struct gather *a) {
    for (uint32_t i = 0; i < t->sites_count; i++) {
        const struct topo_site *s = &t->sites[i];
        uint32_t at = group_of_site(p, s);
        const struct topo_fabric *f = at > 0 ? fabric_of(t, p->groups[at].label) : NULL;
        const struct topo_link *link = at == 0 ? &s->top : f != NULL ? &f->inner : NULL;
        if (link == NULL || !link->known)
            return at == 0 ? miss(p, "the link of site", s->name,
                                  "to the top hub is not known: run beringia doctor --links there")
                           : miss(p, "the links inside fabric", p->groups[at].label,
                                  "are not known: measure towards a hub there (doctor --links)");
        p->groups[at].sites++;
        child_add(&p->groups[at], &a[at], link, s->name);
        for (uint32_t g = at; s->step_s > 0; g = p->groups[g].parent) {
            a[g].speed_sum += 1 / s->step_s;
            a[g].speeds++;
            if (g == 0) break;
        }
    }
    for (uint32_t i = 1; i < p->groups_count; i++) {
        const struct topo_fabric *f = fabric_of(t, p->groups[i].label);
        uint32_t above = p->groups[i].parent;
        if (f == NULL || !f->up.known)
            return miss(p, "the link from fabric", p->groups[i].label,
                        "to the hub above is not known: run beringia doctor --links there");
        child_add(&p->groups[above], &a[above], &f->up, f->label);
    }
    for (uint32_t i = 0; i < p->groups_count; i++) {
        if (a[i].speeds == 0)
            return miss(p, "no site's seconds a step are known",
                        i > 0 ? p->groups[i].label : "at all", "yet: let it train, or give step");
        p->groups[i].step_s = a[i].speeds / a[i].speed_sum;
    }
    return true;
}

/* ---- Judging ------------------------------------------------------------------------------------------- */
static void group_cost(const struct topology *t, struct topo_group *g, const struct gather *a,
                       double bytes_up, double bytes_down) {
    const struct topo_fabric *f = g->level > 0 ? fabric_of(t, g->label) : NULL;
    struct topo_exchange x = {.parameters = t->parameters,
                              .children = g->sites + g->hubs,
                              .bytes_up = bytes_up,
                              .bytes_down = bytes_down,
                              .link = a->link,
                              .hub_in = f != NULL ? f->hub_in : t->hub_in,
                              .hub_out = f != NULL ? f->hub_out : t->hub_out,
                              .merge_rate = t->merge_rate};
    topo_exchange_cost(&x, &g->cost);
    g->delay = g->cost.wait_s / g->step_s;
    g->carried = g->delay <= g->interval; /* T1 */
    g->good = g->delay <= TOPO_DELAY_SHARE * g->interval;
}

/* The most exact codec whose delay is good; else the smallest one. */
static void group_codec(const struct topology *t, struct topo_group *g, const struct gather *a) {
    enum topo_codec last = t->topk ? TOPO_TOPK : TOPO_INT4;
    for (enum topo_codec c = TOPO_FP32; c <= last; c++) {
        g->codec = c;
        group_cost(t, g, a, topo_codec_bytes(c), topo_codec_bytes(c));
        if (g->good) return;
    }
}

static double price(const struct topology *t, struct topo_plan *p, const struct gather *a, double h,
                    double k) {
    double top = h * pow(k, p->levels - 1);
    double sum = log(h) + log(top) + LEVEL_PRICE * (p->levels - 1);
    p->h = h;
    p->k = k;
    p->carried = p->good = true;
    for (uint32_t i = 0; i < p->groups_count; i++) {
        struct topo_group *g = &p->groups[i];
        g->interval = h * pow(k, p->levels - 1 - g->level);
        group_codec(t, g, &a[i]);
        p->carried = p->carried && g->carried;
        p->good = p->good && g->good;
        if (!g->carried) sum += CARRIED_PRICE;
        if (!g->good) sum += GOOD_PRICE + log(g->delay / (TOPO_DELAY_SHARE * g->interval));
    }
    p->merges = t->steps_total / top;
    if (t->steps_total > 0 && p->merges < TOPO_ROUNDS_GOOD)
        sum += 2 * log(TOPO_ROUNDS_GOOD / p->merges);
    const struct topo_cost *c = &p->groups[0].cost;
    p->top_bytes = (c->hub_in + c->hub_out) / top;
    p->exposed_s = topo_exposed_s(t->parameters, t->memory_rate);
    return sum;
}

/* Gives its price; HUGE_VAL where it is not possible. */
static double plan_make(const struct topology *t, uint32_t levels, struct topo_plan *p) {
    double best = HUGE_VAL, best_h = 0, best_k = 1;
    struct gather *a = mem_alloc(TOPO_GROUPS_MAX, sizeof *a);
    memset(p, 0, sizeof *p);
    p->levels = levels;
    p->possible = groups_make(t, p) && groups_fill(t, p, a);
    for (size_t i = 0; i < ARRAY_COUNT(h_choices) && p->possible; i++) {
        for (size_t j = 0; j < (levels > 1 ? ARRAY_COUNT(k_choices) : 1); j++) {
            double v = price(t, p, a, h_choices[i], k_choices[j]);
            if (v >= best) continue;
            best = v;
            best_h = h_choices[i];
            best_k = k_choices[j];
        }
    }
    if (p->possible) best = price(t, p, a, best_h, best_k);
    mem_free(a);
    return best;
}

/* The settings that the run has, with all sites at the top. */
static void judge_in_use(const struct topology *t, struct topo_proposal *out) {
    struct topo_plan *p = mem_alloc(1, sizeof *p);
    struct gather a[1];
    memset(a, 0, sizeof a);
    p->levels = 1;
    if (t->steps > 0 && groups_make(t, p) && groups_fill(t, p, a)) {
        p->groups[0].interval = t->steps;
        p->groups[0].codec = t->codec;
        group_cost(t, &p->groups[0], a, topo_codec_bytes(t->codec), topo_codec_bytes(t->down));
        out->in_use = p->groups[0];
    }
    mem_free(p);
}

/* ---- What is to be said --------------------------------------------------------------------------------- */
static char *note(struct topo_proposal *p) {
    return p->notes_count < TOPO_NOTES_MAX ? p->notes[p->notes_count++] : NULL;
}

static void note_group(struct topo_proposal *p, const char *what, const struct topo_group *g) {
    char *to = g->good ? NULL : note(p);
    const char *whose = g->cost.hub_bound ? "the hub's own link" : g->slowest;
    if (to == NULL) return;
    if (!g->carried)
        (void)snprintf(to, sizeof p->notes[0],
                       "%s: %.47s cannot carry a cadence of %.0f steps: an exchange takes %.3g s, "
                       "the steps %.3g s; rounds will last %.3g steps",
                       what, whose, g->interval, g->cost.wait_s, g->interval * g->step_s, g->delay);
    else
        (void)snprintf(to, sizeof p->notes[0],
                       "%s: %.3g steps of delay are %.0f %% of an interval of %.0f steps (%.47s), "
                       "above %.0f %%, which costs quality",
                       what, g->delay, 100 * g->delay / g->interval, g->interval, whose,
                       100 * TOPO_DELAY_SHARE);
}

static void notes_make(const struct topology *t, struct topo_proposal *p) {
    const struct topo_plan *c = &p->plans[p->chosen];
    if (p->in_use.interval > 0) note_group(p, "as it is set", &p->in_use);
    for (uint32_t i = 0; c->possible && i < c->groups_count; i++) {
        char what[TOPO_LABEL_MAX + 24];
        (void)snprintf(what, sizeof what, "as proposed, %s",
                       i > 0 ? c->groups[i].label : "the top");
        note_group(p, what, &c->groups[i]);
    }
    if (c->possible && t->steps_total > 0 && c->merges < TOPO_ROUNDS_GOOD) {
        char *to = note(p);
        if (to != NULL)
            (void)snprintf(to, sizeof p->notes[0],
                           "the run has %.0f merges at the top, less than %.0f: less momentum "
                           "(outer.mu), or more tokens",
                           c->merges, TOPO_ROUNDS_GOOD);
    }
    for (uint32_t i = 0; i < t->sites_count; i++) {
        if (t->sites[i].top.known && t->sites[i].top.age_s > AGE_OLD_S) {
            char *to = note(p);
            if (to != NULL)
                (void)snprintf(to, sizeof p->notes[0],
                               "the figures of %.47s are %.0f days old: run beringia doctor "
                               "--links there again",
                               t->sites[i].name, t->sites[i].top.age_s / 86400);
        }
    }
}

/* ---- All of it ------------------------------------------------------------------------------------------ */
static bool figure(double v) {
    return isfinite(v) && v >= 0 && v < 1e18;
}

static bool link_fine(const struct topo_link *l) {
    return !l->known || (figure(l->rtt_s) && figure(l->up) && figure(l->down) && l->up > 0 &&
                         l->down > 0 && isfinite(l->age_s));
}

enum brg_status topo_check(const struct topology *t, struct err *e) {
    if (t->parameters == 0 || t->parameters > UINT64_C(1) << 50)
        return err_set(e, BRG_E_CONFIG, "parameters: want 1 to 2^50");
    if (t->sites_count == 0)
        return err_set(e, BRG_E_CONFIG, "sites: none is given; a section site_NAME for each");
    if (!figure(t->steps_total) || !figure(t->steps) || !figure(t->hub_in) || !figure(t->hub_out) ||
        !figure(t->merge_rate) || !figure(t->memory_rate))
        return err_set(e, BRG_E_CONFIG, "the run's figures: want finite numbers, 0 or more");
    for (uint32_t i = 0; i < t->sites_count; i++) {
        const struct topo_site *s = &t->sites[i];
        if (!topo_label_valid(s->fabric))
            return err_set(e, BRG_E_CONFIG,
                           "site %s: fabric: want up to three words of a-z 0-9 - _, with / between",
                           s->name);
        if (!figure(s->step_s) || !link_fine(&s->top))
            return err_set(e, BRG_E_CONFIG, "site %s: a figure is negative or not finite", s->name);
    }
    for (uint32_t i = 0; i < t->fabrics_count; i++) {
        const struct topo_fabric *f = &t->fabrics[i];
        char prefix[TOPO_LABEL_MAX];
        if (f->label[0] == '\0' || !topo_label_valid(f->label) ||
            topo_label_prefix(f->label, 1, prefix) >= TOPO_LEVELS_MAX)
            return err_set(e, BRG_E_CONFIG,
                           "fabric %s: label: want one or two words of a-z 0-9 - _, with / between",
                           f->label);
        if (!link_fine(&f->up) || !link_fine(&f->inner) || !figure(f->hub_in) ||
            !figure(f->hub_out))
            return err_set(e, BRG_E_CONFIG, "fabric %s: a figure is negative or not finite",
                           f->label);
        if (fabric_of(t, f->label) != f)
            return err_set(e, BRG_E_CONFIG, "fabric %s: is there twice; remove one", f->label);
    }
    return BRG_OK;
}

void topo_propose(const struct topology *t, struct topo_proposal *out) {
    double best = HUGE_VAL;
    memset(out, 0, sizeof *out);
    out->plans = mem_alloc(TOPO_LEVELS_MAX, sizeof *out->plans);
    for (uint32_t i = 0; i < TOPO_LEVELS_MAX; i++) {
        double v = plan_make(t, i + 1, &out->plans[i]);
        if (v >= best) continue;
        best = v;
        out->chosen = i;
    }
    judge_in_use(t, out);
    notes_make(t, out);
}

void topo_proposal_free(struct topo_proposal *p) {
    mem_free(p->plans);
    memset(p, 0, sizeof *p);
}

void topology_free(struct topology *t) {
    mem_free(t->sites);
    mem_free(t->fabrics);
    memset(t, 0, sizeof *t);
}
