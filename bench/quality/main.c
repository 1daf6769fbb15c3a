/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - `quality key=value ...` makes one run and prints one line of JSON. bench/quality/quality calls it
 * for each row of its tables; lab.h says what the keys mean. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

enum kind { NUMBER, COUNT, COUNT32, WORD, FLAG };
struct key {
    const char *name;
    enum kind kind;
    void *at;
    double min, max;
};

static struct lab_options o = {.batch = 4,
                               .sites = 3,
                               .seed = 1,
                               .speeds = {1, 1, 1, 1, 1, 1, 1, 1},
                               .schedule = SCHEDULE_COSINE,
                               .lr = 1e-3,
                               .lr_min_ratio = 0.1,
                               .warmup_share = 0.05,
                               .decay_share = 0.2,
                               .steps = 30,
                               .ramp = 0.15,
                               .codec = CODEC_FP32,
                               .keep = CODEC_KEEP,
                               .join_warmup = 20,
                               .curve_points = 0,
                               .curve_rows = 256};
static const char *optimizer = "adamw", *precision = "f32", *schedule = "cosine", *codec = "fp32",
                  *down = "full", *outer = "nesterov", *speeds = "", *events = "", *away = "",
                  *stop = "";

static const struct key keys[] = {
    {"data", WORD, &o.data, 0, 0},
    {"model", WORD, &o.model, 0, 0},
    {"sites", COUNT32, &o.sites, 0, LAB_SITES_MAX},
    {"batch", COUNT32, &o.batch, 1, 4096},
    {"tokens", COUNT, &o.tokens, 1, 1e15},
    {"seed", COUNT, &o.seed, 0, 1e6},
    {"optimizer", WORD, &optimizer, 0, 0},
    {"momentum", NUMBER, &o.muon.momentum, 0, 0.9999},
    {"lr_ratio", NUMBER, &o.muon.lr_ratio, 1e-3, 1e3},
    {"beta2", NUMBER, &o.adamw.beta2, 0, 0.9999999},
    {"weight_decay", NUMBER, &o.adamw.weight_decay, 0, 10},
    {"clip", NUMBER, &o.adamw.clip, 0, 1e9},
    {"precision", WORD, &precision, 0, 0},
    {"schedule", WORD, &schedule, 0, 0},
    {"lr", NUMBER, &o.lr, 0, 10},
    {"lr_min_ratio", NUMBER, &o.lr_min_ratio, 0, 1},
    {"warmup_share", NUMBER, &o.warmup_share, 0, 1},
    {"decay_share", NUMBER, &o.decay_share, 0, 1},
    {"eta", NUMBER, &o.rule.eta, 0, 10},
    {"mu", NUMBER, &o.rule.mu, 0, 0.9999},
    {"m_ref", NUMBER, &o.rule.m_ref, 1e-3, 1e6},
    {"h_ref", NUMBER, &o.rule.h_ref, 0, 1e9},
    {"late_weight", NUMBER, &o.rule.late_weight, 0, 1},
    {"late_decay", NUMBER, &o.rule.late_decay, 0, 100},
    {"outer", WORD, &outer, 0, 0},                 /* nesterov, plain, delayed */
    {"arrivals", COUNT32, &o.rule.delay, 1, 4096}, /* of delayed */
    {"radial", FLAG, &o.rule.radial, 0, 0},
    {"last_mean", FLAG, &o.rule.last_mean, 0, 0},
    {"ema", NUMBER, &o.rule.ema, 0, 0.99999},
    {"synchronous", NUMBER, &o.synchronous, 0, 1}, /* share of the tokens, a warm start */
    {"steps", COUNT, &o.steps, 1, 1e9},
    {"steps_first", COUNT, &o.steps_first, 0, 1e9},
    {"ramp", NUMBER, &o.ramp, 0, 1},
    {"codec", WORD, &codec, 0, 0},
    {"down_codec", WORD, &down, 0, 0},
    {"keep", NUMBER, &o.keep, 0, 1},
    {"delay", COUNT32, &o.delay, 0, 1e6},
    {"join_warmup", COUNT32, &o.join_warmup, 0, 1e6},
    {"speeds", WORD, &speeds, 0, 0}, /* 1:2:4 */
    {"cadence_batch", FLAG, &o.cadence_batch, 0, 0},
    {"events", WORD, &events, 0, 0}, /* c0.3l,c0.5j: site c leaves (l) or crashes (c), joins (j) */
    {"away", WORD, &away, 0, 0},     /* sites that are not there at the beginning: c */
    {"curve_points", COUNT32, &o.curve_points, 0, LAB_CURVE_MAX},
    {"curve_rows", COUNT, &o.curve_rows, 1, 1e9},
    {"stop", WORD, &stop, 0, 0}, /* 0.3:2.5,0.6:2.2: given up where the curve is above */
};

static void wrong(const char *word, const char *why) {
    fprintf(stderr, "quality: %.200s: %s\n", word, why);
    exit(BRG_E_USAGE);
}

static bool set(const struct key *k, const char *value) {
    double v = 0;
    if (k->kind == WORD) {
        *(const char **)k->at = value;
        return true;
    }
    if (!parse_f64(value, &v)) return false;
    if (k->kind == FLAG) {
        *(bool *)k->at = v > 0;
        return true;
    }
    if (!(v >= k->min && v <= k->max)) return false;
    if (k->kind == NUMBER)
        *(double *)k->at = v;
    else if (floor(v) < v || v > floor(v))
        return false;
    else if (k->kind == COUNT)
        *(uint64_t *)k->at = (uint64_t)v;
    else
        *(uint32_t *)k->at = (uint32_t)v;
    return true;
}

static void take(const char *word) {
    const char *value = strchr(word, '=');
    for (size_t i = 0; value && i < ARRAY_COUNT(keys); i++) {
        if (strlen(keys[i].name) != (size_t)(value - word) ||
            strncmp(keys[i].name, word, (size_t)(value - word)) != 0)
            continue;
        if (!set(&keys[i], value + 1)) wrong(word, "is out of range, or no number");
        return;
    }
    wrong(word, "is not a key with its value; see bench/quality/main.c");
}

static void take_speeds(void) {
    const char *p = speeds;
    uint32_t most = 0;
    for (uint32_t i = 0; *p; i++) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || v == 0 || v > 1000 || i == LAB_SITES_MAX)
            wrong(speeds, "want speeds=1:2:4");
        o.speeds[i] = (uint32_t)v;
        most = o.speeds[i] > most ? o.speeds[i] : most;
        p = *end == ':' ? end + 1 : end;
        if (*end && *end != ':') wrong(speeds, "want speeds=1:2:4");
    }
    for (uint32_t i = 0; *speeds && i < o.sites; i++)
        if (most % o.speeds[i] != 0) wrong(speeds, "the fastest must be a multiple of each");
}

static uint32_t site_of(char c, const char *word) {
    if (c < 'a' || (uint32_t)(c - 'a') >= o.sites) wrong(word, "names a site that is not there");
    return (uint32_t)(c - 'a');
}

static void take_events(void) {
    const char *p = events;
    while (*p) {
        char *end;
        struct event x = {.site = site_of(*p, events)};
        x.share = strtod(p + 1, &end);
        if (end == p + 1 || !strchr("lcj", *end) || !*end || o.events_count == LAB_EVENTS_MAX)
            wrong(events, "want events=c0.3l,c0.5j (l leaves, c crashes, j joins), at most 16");
        x.what = (enum happening) * end++;
        if (o.events_count > 0 && x.share < o.events[o.events_count - 1].share)
            wrong(events, "must be in order");
        o.events[o.events_count++] = x;
        p = *end == ',' ? end + 1 : end;
    }
    for (p = away; *p; p++) o.away |= UINT64_C(1) << site_of(*p, away);
}

static void take_stops(void) {
    const char *p = stop;
    for (uint32_t i = 0; *p; i++) {
        char *end;
        double share = strtod(p, &end), nll = *end == ':' ? strtod(end + 1, &end) : -1;
        if (i == LAB_STOPS_MAX || !(share > 0 && share < 1) || !(nll > 0) || (*end && *end != ','))
            wrong(stop,
                  "want stop=0.3:2.5,0.6:2.2, shares of the tokens in order with a loss each");
        if (i > 0 && !(share > o.stop_share[i - 1])) wrong(stop, "must be in order");
        o.stop_share[i] = share;
        o.stop_nll[i] = nll;
        o.stops_count = i + 1;
        p = *end == ',' ? end + 1 : end;
    }
}

static void take_rule(void) {
    const char *why, *misfit;
    if (strcmp(outer, "plain") == 0)
        o.rule.kind = OUTER_PLAIN;
    else if (strcmp(outer, "delayed") == 0)
        o.rule.kind = OUTER_DELAYED;
    else if (strcmp(outer, "nesterov") != 0)
        wrong(outer, "want outer=nesterov, plain or delayed");
    if (!(o.rule.h_ref > 0)) o.rule.h_ref = (double)o.steps;
    misfit = outer_rule_misfit(&o.rule, &why);
    if (misfit) wrong(misfit, why);
    if (o.steps_first > o.steps) wrong("steps_first", "is more than steps");
}

static void take_words(void) {
    if (!o.data || !o.model || o.tokens == 0) wrong("data, model, tokens", "are needed");
    if (!optimizer_parse(optimizer, &o.optimizer)) wrong(optimizer, "want optimizer=adamw or muon");
    if (!precision_parse(precision, &o.precision)) wrong(precision, "want precision=f32 or bf16");
    if (!codec_parse(codec, &o.codec)) wrong(codec, "is no codec");
    if (strcmp(down, "full") != 0 && !codec_parse(down, &o.down)) wrong(down, "is no codec");
    if (strcmp(schedule, "wsd") == 0)
        o.schedule = SCHEDULE_WSD;
    else if (strcmp(schedule, "constant") == 0)
        o.schedule = SCHEDULE_CONSTANT;
    else if (strcmp(schedule, "cosine") != 0)
        wrong(schedule, "want schedule=cosine, wsd or constant");
    take_rule();
    take_speeds();
    take_events();
    take_stops();
    bool plain = o.optimizer == OPTIMIZER_ADAMW && o.events_count == 0 && o.away == 0;
    if (o.synchronous > 0 && !(plain && o.sites > 0))
        wrong("synchronous", "wants sites that stay, with optimizer=adamw");
}

int main(int argc, char **argv) {
    static struct lab_result r;
    struct err e = {0};
    o.adamw = adamw_default();
    o.muon = muon_default();
    o.rule = outer_rule_default();
    o.rule.h_ref = 0;
    for (int i = 1; i < argc; i++) take(argv[i]);
    take_words();
    enum brg_status s = lab_run(&o, &r, &e);
    if (s != BRG_OK) {
        fprintf(stderr, "quality: %s\n", e.text);
        return (int)s;
    }
    printf("{\"nll\": %.6f, \"nll_ema\": %.6f, \"perplexity\": %.5f, \"parameters\": %llu, "
           "\"tokens\": %llu, "
           "\"steps\": %llu, "
           "\"rounds\": %llu, \"cosine\": %.4f, \"norm_ratio\": %.4f, \"bytes_up_share\": %.5f, "
           "\"lost_samples\": %llu, \"joins\": %llu, \"stopped\": %.4f, \"seconds\": %.1f, "
           "\"curve\": [",
           r.nll, r.nll_ema, r.perplexity, (unsigned long long)r.parameters,
           (unsigned long long)r.tokens, (unsigned long long)r.steps, (unsigned long long)r.rounds,
           r.cosine, r.norm_ratio, r.bytes_up_share, (unsigned long long)r.lost_samples,
           (unsigned long long)r.joins, r.stopped, r.seconds);
    for (uint32_t i = 0; i < r.curve_count; i++)
        printf("%s[%.0f, %.5f]", i ? ", " : "", r.curve_tokens[i], r.curve_nll[i]);
    printf("]}\n");
    return 0;
}
