/* SPDX-License-Identifier: Apache-2.0 */
/* lab.h - a training over sites in one process: what does the two-loop scheme cost, and what brings it back?
 *
 * Time is virtual: a site of speed s makes a step in every (fastest/s)-th tick, in the order of sites, so
 * that a run is a function of its options. Everything that decides about quality is the program's own code:
 * the trainer, the order of samples, the ledger with its leases, the site's cut and rebase (weights.h), the
 * codecs, the outer step, the coded way back, the schedule by committed tokens. There is no network: a
 * merged version reaches a site `delay` of its own steps later (overlap; 0: at once, as if it had waited).
 *
 * sites = 0 is the central run: the same positions in order, one trainer, steps of `batch` samples. */
#ifndef BENCH_QUALITY_LAB_H
#define BENCH_QUALITY_LAB_H

#include "data/data.h"
#include "lease/lease.h"
#include "outer/outer.h"
#include "train/train.h"

enum {
    LAB_SITES_MAX = 8,
    LAB_EVENTS_MAX = 16,
    LAB_CURVE_MAX = 64,
    LAB_LEASES_MAX = 8,
    LAB_STOPS_MAX = LAB_CURVE_MAX
};

enum happening { SITE_LEAVES = 'l', SITE_CRASHES = 'c', SITE_JOINS = 'j' };
struct event { /* once so much of the run is merged */
    double share;
    enum happening what;
    uint32_t site;
};

struct lab_options {
    const char *data, *model;
    uint32_t sites, batch; /* samples of a step of a site of speed 1, or of the central run */
    uint64_t tokens, seed; /* seed: of the first weights, and of the order of samples */
    uint32_t speeds[LAB_SITES_MAX];
    bool cadence_batch; /* a faster site takes larger steps; else it makes more of them */
    enum optimizer optimizer;
    struct muon muon;
    struct adamw adamw;
    enum precision precision;
    enum schedule_kind schedule;
    double lr, lr_min_ratio, warmup_share, decay_share;
    struct outer_rule rule; /* h_ref 0: steps */
    double synchronous;     /* share of the tokens, from the start, in synchronous rounds */
    uint64_t steps;         /* H */
    uint64_t steps_first;   /* H at the start; 0: no ramp */
    double ramp;            /* share of the tokens over which H rises */
    enum codec codec, down; /* down 0: whole weights */
    double keep;            /* of a residual beside the weights, a contribution leaves so much */
    uint32_t delay, join_warmup; /* steps */
    struct event events[LAB_EVENTS_MAX];
    uint32_t events_count;
    uint64_t away; /* bit i: site i joins by an event only */
    uint32_t curve_points;
    uint64_t curve_rows;
    /* The run is given up at the first point of its curve at or behind the i-th share whose loss is above the bound */
    double stop_share[LAB_STOPS_MAX], stop_nll[LAB_STOPS_MAX];
    uint32_t stops_count;
};

struct lab_result {
    uint64_t parameters, tokens, steps, rounds, joins, lost_samples;
    double nll_ema; /* of the mean of the versions; 0: none was kept */
    double nll, perplexity, cosine, norm_ratio, bytes_up_share, seconds;
    double
        stopped; /* the share at which it was given up; 0: it was not, and nll and perplexity are its own */
    uint32_t curve_count;
    double curve_tokens[LAB_CURVE_MAX], curve_nll[LAB_CURVE_MAX];
};

struct lab_lease { /* of a site, oldest first */
    uint64_t tok, nonce, done, count;
    uint32_t spans_count;
    struct lease_span spans[LEASE_SPANS_MAX];
};

struct lab_site {
    struct trainer *trainer;
    float *s, *base;                   /* subtraction base; the version rebased on */
    float *residual, *residual_before; /* where the codec wants one beside the weights */
    uint8_t *delta; /* the contribution that is staged or merged and not in `base` yet */
    uint64_t base_version, base_tokens; /* tokens: committed then */
    bool live, pending, starved, late;
    bool doomed; /* it crashes half-way through its round */
    uint32_t id, inc, batch, period, rebase_in;
    uint64_t target;             /* H of this site */
    uint64_t steps_since, steps; /* since the last rebase; since it joined */
    uint64_t seg_steps, seg_tokens, pending_steps, pending_tokens;
    double loss_sum;
    uint64_t warmup;
    struct id128 did;
    struct lab_lease leases[LAB_LEASES_MAX];
    uint32_t leases_count;
    int32_t *rows;
};

struct lab {
    const struct lab_options *o;
    struct lab_result *r;
    struct dataset *data;
    struct model_config model;
    uint64_t P, positions, per_step; /* tokens a step of all live sites */
    struct trainer *judge;
    struct schedule schedule;
    struct ledger *ledger;
    struct order order;
    uint64_t order_of; /* the pass over the data that `order` is of; UINT64_MAX: none */
    uint64_t tok, nonce, dids;
    struct lab_site sites[LAB_SITES_MAX];
    float *theta, *m, *old; /* the head; its momentum; the version before it */
    uint8_t *feedback, *update;
    struct outer_past past;
    struct outer_span *spans; /* where the radial mean is taken: tensors */
    size_t spans_count;
    float *ema;
    bool has_ema;
    uint64_t version, merged_samples, tick;
    uint32_t next_event;
    int32_t *judge_rows; /* of a curve's points */
    uint64_t judge_count;
    double cosine_sum, ratio_sum;
    uint64_t cosines;
    double bytes_up;
};

/* Runs it; E_... with the reason. */
enum brg_status lab_run(const struct lab_options *o, struct lab_result *out, struct err *e)
    MUST_USE;

/* leases.c: the site's samples, by the ledger. */
/* Samples of the next step into site->rows; gives their number, 0 where nothing is to be had. */
uint32_t lab_take(struct lab *b, struct lab_site *s);
/* All that was done since the last cut becomes one staged contribution. */
void lab_stage(struct lab *b, struct lab_site *s, const struct delta_info *info);
/* Leases end: what was not staged goes to others. Gives how many samples were done in vain. */
uint64_t lab_drop(struct lab *b, struct lab_site *s, bool crashed);
/* Fills a row of a position; positions beyond the data set are its next pass, in an order of its own. */
void lab_row(struct lab *b, uint64_t position, int32_t *row);

/* sites.c */
void lab_enter(struct lab *b, struct lab_site *s);
void lab_turn(struct lab *b, struct lab_site *s);
void lab_cut(struct lab *b, struct lab_site *s);

/* sync.c: the synchronous rounds at the beginning, all of them. */
void lab_synchronous(struct lab *b);

/* hub.c: merges where a round is over; makes events happen. */
void lab_hub_turn(struct lab *b);
void lab_crash(struct lab *b, struct lab_site *s);
void lab_share_out(struct lab *b);
double lab_loss(struct lab *b, uint64_t rows); /* of the head; 0: all held-out samples */
/* Is a point of the curve due, so much of the run being done? */
bool lab_curve_due(const struct lab *b, uint64_t samples);
/* Adds it, of the head, and gives the run up where its options say so. */
void lab_curve_add(struct lab *b, uint64_t samples);
void lab_fail(enum brg_status s, const char *what); /* ends the process */
#endif
