/* SPDX-License-Identifier: Apache-2.0 */
/* rule.c - from tokens and steps to the scalars of a round and one weight for each delta.
 *
 *   parts, what the round inherits --outer_round_compute--> scalars, weights --journal--> the arithmetic (outer.c)
 *
 * Everything an option does is said in these few numbers, so a replay does not know the rule:
 *
 *   nesterov  phi = min(sbar/H_ref, 2)  mu_r = mu^phi  kappa_r = mu (1 - mu^phi)/(1 - mu)  eta_r = eta (Meff/M_ref)^(1/3)
 *   plain     eta_r = 1, mu_r = 0, kappa_r = 0: theta <- theta - D, and m is the last D
 *   delayed   A fresh sites arrive, a before them since momentum last acted, N = delay:
 *             weights are w_i min(A/N, 1); eta_r = eta
 *             mu_r    = mu where a = 0, else 1   m of the finished period decays once, then collects D
 *             kappa_r = mu where a + A >= N, else 0
 *             With A = 1 these are the lines of arXiv 2401.09135 with c = 0: theta moves by eta g/N at each arrival, and
 *             at the N-th by eta mu m too, m = mu m + (sum of g)/N. There m and the sum are two vectors; here m holds the
 *             sum while it collects, since nothing reads it before the N-th.
 *   sum       weights 1, eta_r = 1, mu_r = kappa_r = 0: the plain sum, late ones too
 *   last_mean the last round of a run: as plain, and not radial
 *   restart   mu_r = 0 for one round: what led to a version that was given up does not push again
 *
 * Late parts. A delta that missed its round moves theta, not m: its direction was measured at weights that
 * are gone, and momentum would repeat it for ten rounds. With several late parts the weight of each is
 * lw_i / (N + sum of lw), so that together they move theta by at most their weighted mean; for one late part
 * this is lw / (N + lw); lw = late_weight exp(-late_decay (k - 1)) n where it misses k versions. A round with
 * late parts only takes Meff from them, and phi = 0, for which the rule gives mu_r = 1 and kappa_r = 0: no
 * time has passed for the momentum.
 *
 * The mean of the weights moves by max((1 - ema) phi, phi/work) towards theta, work the sum of phi up to and with
 * this round: a plain mean at first, so that the random initial weights do not stay in it, and exponential later.
 * It is linear in phi, not a power: what a replay computes must not depend on a C library.
 *
 * Invariants
 *   (O1) weights of fresh sites sum to 1 (within 1 ulp of f64 for each) whenever there is a fresh site; to
 *        min(A/N, 1) under `delayed`; under the counting rule they are all 1. */
#include <math.h>

#include "outer/codec_parts.h"

struct outer_rule outer_rule_default(void) {
    return (struct outer_rule){
        .eta = 0.7, .mu = 0.9, .m_ref = 3, .h_ref = 30, .late_weight = 0.5, .delay = 1};
}

const char *outer_kind_name(enum outer_kind k) {
    static const char *const names[] = {"nesterov", "plain", "delayed"};
    return (size_t)k < ARRAY_COUNT(names) ? names[k] : "unknown";
}

const char *outer_rule_misfit(const struct outer_rule *r, const char **out_why) {
    *out_why = "";
    if (r->sum && r->kind != OUTER_NESTEROV) {
        *out_why = "is for models that learn, and outer.average sum for models that count";
        return "optimizer";
    }
    if (r->sum && (r->ema > 0 || r->last_mean)) {
        *out_why = "is for models that learn, and outer.average sum for models that count";
        return r->ema > 0 ? "ema" : "last";
    }
    if (r->kind == OUTER_DELAYED && !(r->mu > 0)) {
        *out_why = "delayed wants momentum: outer.mu is 0";
        return "optimizer";
    }
    if (r->kind != OUTER_DELAYED && r->delay > 1) {
        *out_why = "has an effect with outer.optimizer delayed only";
        return "delay";
    }
    return NULL;
}

/* ---- Sums over sites ------------------------------------------------------------------------------- */
struct totals {
    double tokens, tokens2; /* sum of n, sum of n^2, over sites */
    double tokens_steps;    /* sum of n * s */
    uint32_t sites;         /* with tokens */
};

/* Sums over the sites among the fresh (late = false) or the late parts. A site that handed in
 * twice in one round moved by the sum of its deltas, so it counts once, with all its tokens and
 * steps. */
static struct totals totals_of(const struct outer_part *parts, size_t count, bool late) {
    struct totals t = {0};
    size_t i = 0;
    while (i < count) {
        double tokens = 0, steps = 0;
        size_t first = i;
        for (; i < count && parts[i].site == parts[first].site; i++) {
            if ((parts[i].late > 0) != late) continue;
            tokens += (double)parts[i].tokens;
            steps += (double)parts[i].steps;
        }
        t.tokens += tokens;
        t.tokens2 += tokens * tokens;
        t.tokens_steps += tokens * steps;
        t.sites += tokens > 0;
    }
    return t;
}

static double site_tokens_fresh(const struct outer_part *parts, size_t count, uint32_t site) {
    double tokens = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].site == site && parts[i].late == 0) tokens += (double)parts[i].tokens;
    }
    return tokens;
}

static bool first_fresh_of_site(const struct outer_part *parts, size_t at) {
    for (size_t i = at; i > 0 && parts[i - 1].site == parts[at].site; i--) {
        if (parts[i - 1].late == 0) return false;
    }
    return true;
}

void outer_parts_check(const struct outer_part *parts, size_t count) {
    for (size_t i = 1; i < count; i++) CHECK(parts[i - 1].site <= parts[i].site);
}

static double late_tokens(const struct outer_rule *r, const struct outer_part *p) {
    double w = r->late_weight * (double)p->tokens;
    return r->late_decay > 0 && p->late > 1 ? w * exp(-r->late_decay * (p->late - 1)) : w;
}

/* ---- Scalars --------------------------------------------------------------------------------------- */
static void nesterov_params(const struct outer_rule *r, const struct totals *lead,
                            struct outer_params *p) {
    if (lead->tokens > 0) p->eta_r = r->radial ? r->eta : r->eta * cbrt(p->meff / r->m_ref);
    if (!(p->tokens_fresh > 0)) return;
    p->mu_r = pow(r->mu, p->phi);
    p->kappa_r = r->mu * (1 - p->mu_r) / (1 - r->mu);
}

/* Gives the share of the weights. */
static double delayed_params(const struct outer_rule *r, double before, uint32_t arrivals,
                             struct outer_params *p) {
    p->eta_r = r->eta;
    if (arrivals == 0) return 1;
    p->mu_r = before > 0 ? 1 : r->mu;
    p->kappa_r = before + arrivals >= r->delay ? r->mu : 0;
    return arrivals < r->delay ? (double)arrivals / r->delay : 1;
}

static void plain_params(struct outer_params *p) {
    p->eta_r = 1;
    p->mu_r = p->tokens_fresh > 0 ? 0 : 1;
    p->kappa_r = 0;
}

static void mean_weights(const struct outer_rule *r, const struct outer_part *parts, size_t count,
                         double tokens_fresh, double share, double *out_weight) {
    double sum = 0, late_all = tokens_fresh;
    for (size_t i = 0; i < count; i++)
        if (parts[i].late > 0) late_all += late_tokens(r, &parts[i]);
    for (size_t i = 0; i < count; i++) {
        if (parts[i].late > 0) {
            double w = late_tokens(r, &parts[i]);
            out_weight[i] = w > 0 ? w / late_all : 0;
        } else {
            double n = site_tokens_fresh(parts, count, parts[i].site);
            double w = n > 0 ? n / tokens_fresh : 0;
            if (first_fresh_of_site(parts, i)) sum += w;
            out_weight[i] = w * share;
        }
    }
    if (tokens_fresh > 0) CHECK(fabs(sum - 1) <= 0x1p-52 * (double)(count + 1)); /* O1 */
}

/* A late part counts like a fresh one: what it trained is in it once, whenever it arrives. */
static void count_params(const struct outer_part *parts, size_t count, struct outer_params *p,
                         double *out_weight) {
    p->eta_r = 1;
    p->mu_r = 0;
    p->kappa_r = 0;
    for (size_t i = 0; i < count; i++) out_weight[i] = parts[i].tokens > 0 ? 1 : 0; /* O1 */
}

double outer_ema_share(const struct outer_rule *r, double work, double phi) {
    if (!(phi > 0)) return 0;
    return fmin(1, fmax((1 - r->ema) * phi, phi / (work + phi)));
}

void outer_round_compute(const struct outer_rule *r, const struct outer_past *past,
                         const struct outer_part *parts, size_t count, struct outer_round *out,
                         double *out_weight) {
    CHECK(r->mu >= 0);
    CHECK(r->mu < 1);
    CHECK(r->h_ref > 0);
    CHECK(r->m_ref > 0);
    CHECK(r->kind != OUTER_DELAYED || r->delay > 0);
    outer_parts_check(parts, count);
    struct totals fresh = totals_of(parts, count, false), late = totals_of(parts, count, true);
    const struct totals *lead = fresh.tokens > 0 ? &fresh : &late;
    struct outer_params p = {.mu_r = 1, .tokens_fresh = fresh.tokens, .tokens_late = late.tokens};
    bool mean = r->last_mean && past->last && !r->sum;
    double share = 1;
    if (lead->tokens > 0) p.meff = lead->tokens * lead->tokens / lead->tokens2;
    if (fresh.tokens > 0) {
        p.sbar = fresh.tokens_steps / fresh.tokens;
        p.phi = fmin(p.sbar / r->h_ref, 2);
    }
    if (lead->tokens > 0 && (mean || r->kind == OUTER_PLAIN))
        plain_params(&p);
    else if (lead->tokens > 0 && r->kind == OUTER_DELAYED)
        share = delayed_params(r, past->restart ? 0 : past->arrivals, fresh.sites, &p);
    else
        nesterov_params(r, lead, &p);
    if (past->restart && fresh.tokens > 0) p.mu_r = 0;
    if (r->sum)
        count_params(parts, count, &p, out_weight);
    else
        mean_weights(r, parts, count, fresh.tokens, share, out_weight);
    *out = (struct outer_round){.params = p,
                                .radial = r->radial && !mean && !r->sum && fresh.tokens > 0,
                                .keeps_ema = r->ema > 0,
                                .ema = r->ema > 0 ? outer_ema_share(r, past->work, p.phi) : 0};
}

struct outer_past outer_past_after(const struct outer_past *past, const struct outer_params *p,
                                   uint32_t fresh_sites) {
    return (struct outer_past){.arrivals = p->kappa_r > 0 ? 0 : past->arrivals + fresh_sites,
                               .work = past->work + p->phi};
}

void outer_params_compute(const struct outer_rule *r, const struct outer_part *parts, size_t count,
                          struct outer_params *out, double *out_weight) {
    struct outer_round round;
    outer_round_compute(r, &(struct outer_past){0}, parts, count, &round, out_weight);
    *out = round.params;
}
