/* SPDX-License-Identifier: Apache-2.0 */
/* outer.h - the outer loop's arithmetic: how deltas are coded, checked and merged. Pure; works on
 * chunks that the caller streams, so memory does not grow with the model.
 *
 * Outer step (design: DiLoCo arXiv 2311.08105 eq. in PyTorch's Nesterov form, generalised to
 * unequal work; exponent 1/3 fitted to the best outer rates of arXiv 2503.09799):
 *   w_i = n_i/N   N = sum n_i   D = sum w_i d_i   sbar = sum w_i s_i   Meff = N^2 / sum n_i^2
 *   phi = min(sbar/H_ref, 2)  mu_r = mu^phi  kappa_r = mu (1-mu^phi)/(1-mu)  eta_r = eta (Meff/M_ref)^(1/3)
 *   m <- mu_r m + D           theta <- theta - eta_r (D + kappa_r m)
 * where d_i is the sum of the deltas of one SITE in this round (a site that handed in twice moved
 * by both), n_i and s_i its tokens and steps. Late deltas (one version behind) are outside the
 * momentum:  theta <- theta - eta_r * lw/(N + L) * d,  lw = late_weight * n  (late_weight = 0.5),
 * where N are the fresh tokens of the round (0 where there are none) and L is the sum of lw over
 * the late deltas, so that several late ones together move theta by no more than their weighted
 * mean. A round with late deltas only takes Meff from them. With no contribution nothing changes,
 * not even m.
 *
 * The counting rule (outer_rule.sum) is the plain sum instead: a model whose parameters count their
 * samples stays exact, so that a test can read from the model itself that each sample is in it once.
 *
 * Determinism: everything is fp32, contributions are summed in the order given (callers sort by
 * site id, then by contribution id), chunk by chunk, without fused multiply-add: equal bits on
 * every machine and for every thread count. Invariants
 *   (O1) weights of fresh sites sum to 1 (within 1 ulp of f64) whenever there is a fresh site; to the
 *        round's share of arrivals under OUTER_DELAYED; under the counting rule they are all 1.
 *   (O2) no contribution, no change: theta and m keep their bits.
 *   (O3) the result does not depend on how the vector is cut into chunks. */
#ifndef OUTER_OUTER_H
#define OUTER_OUTER_H

#include "base/base.h"

/* ---- Codecs of a delta --------------------------------------------------------------------------
 * docs/store.md has the bytes; a vector of P elements takes, of fp32's bytes:
 *   fp32  100 %    as is
 *   bf16   50 %    round to nearest even
 *   int8   25.8 %  blocks of 128 with an f32 scale = max|x|/127, round half to even
 *   int4   13.3 %  blocks of 64 with a bf16 scale >= max|x|/7, round half to even
 *   topk    0.71 % of 4096 elements the 64 largest, two bits and a place each; wants mu = 0
 * A vector is coded in blocks from its start; a shorter last block holds only its elements. A vector may
 * be coded and decoded in any pieces that are multiples of CODEC_UNIT: the bytes are the same. */
/* CODEC_GRADIENT is no choice of a run: it says that a contribution is a mean gradient, as fp32 codes it, and no
 * displacement. Only a synchronous round takes it, and takes nothing else. */
enum codec {
    CODEC_FP32 = 1,
    CODEC_BF16 = 2,
    CODEC_INT8 = 3,
    CODEC_INT4 = 4,
    CODEC_TOPK = 5,
    CODEC_GRADIENT = 6,
};
enum {
    CODEC_BLOCK = 128,   /* of int8 */
    CODEC_UNIT = 4096,   /* elements; a multiple of every codec's block */
    OUTER_CHUNK = 65536, /* elements; a multiple of CODEC_UNIT */
};
/* What a contribution in this codec could not carry waits beside the weights, and each one leaves CODEC_KEEP of it: so
 * much of a delta stays behind in topk that weights which held it would be another model (site/weights.h). */
bool codec_aside(enum codec c);
#define CODEC_KEEP 0.95f /* arXiv 2508.15706 */
bool codec_parse(const char *name, enum codec *out);
const char *codec_name(enum codec c);
/* Exact payload bytes of n elements. For n a multiple of CODEC_UNIT, payloads concatenate. */
uint64_t codec_bytes(enum codec c, uint64_t n);
/* Codes n elements to out[codec_bytes(c, n)]. E_NONFINITE where an element is not finite,
 * or too large to have a finite code. Blocks below 127 * 2^-126 are coded as zeros by int8, below
 * 7 * 2^-126 by int4. */
enum brg_status codec_encode(enum codec c, const float *x, size_t n, uint8_t *out) MUST_USE;
/* Decodes; E_CORRUPT, out untouched, where the bytes are none that encode writes: a scale or value that
 * is not finite, a negative scale, positions out of order, padding that is not zero. in is outside bytes. */
enum brg_status codec_decode(enum codec c, const uint8_t *in, size_t n, float *out) MUST_USE;

/* ---- Delta file --------------------------------------------------------------------------------
 * Header, 128 bytes little-endian: "BRGDELT1" | u32 codec | u32 reserved 0 | u64 elements |
 *   u64 base_version | u64 tokens | u64 steps | id128 contribution | hash base_theta(32) | zero padding;
 * then the payload of codec_bytes(codec, elements). */
enum { DELTA_HEADER_BYTES = 128 };
struct delta_header {
    enum codec codec;
    uint64_t elements, base_version, tokens, steps;
    struct id128 did;
    struct hash base_theta; /* hash of theta_base's bytes */
};
void delta_header_encode(const struct delta_header *h, uint8_t out[DELTA_HEADER_BYTES]);
enum brg_status delta_header_decode(const uint8_t in[DELTA_HEADER_BYTES], struct delta_header *out,
                                    struct err *e) MUST_USE;

/* ---- The outer step --------------------------------------------------------------------------
 * Options, each for a whole run; rule.c has their equations.
 *   OUTER_NESTEROV  the step above
 *   OUTER_PLAIN     theta <- theta - D, the weights' mean (FedAvg, arXiv 1602.05629; local SGD); m = D is kept
 *                   for its cosines alone. eta, mu, m_ref and h_ref have no effect
 *   OUTER_DELAYED   delayed Nesterov (arXiv 2401.09135, c = 0), for rounds of few arrivals: with A fresh sites
 *                   in the round and N = delay, theta moves by eta min(A/N, 1) D at once, and momentum acts only
 *                   where N arrivals have come together since it last did
 *   radial          D by radial-directional averaging, tensor by tensor (arXiv 2604.21428): outer_radial below.
 *                   |D| does not shrink with the number of sites, so eta is not scaled by Meff
 *   late_decay      a late delta that misses k versions has late_weight exp(-late_decay (k - 1)) (CGAD, arXiv
 *                   2605.09126, without its gate)
 *   last_mean       the round that ends the run is a plain mean, whatever the others were
 *   ema             share that the mean of the global weights keeps in a round of phi = 1; 0: there is none */
enum outer_kind { OUTER_NESTEROV = 0, OUTER_PLAIN = 1, OUTER_DELAYED = 2 };
const char *outer_kind_name(enum outer_kind k); /* as in run.yaml */
struct outer_rule {
    double eta, mu, m_ref, h_ref, late_weight, late_decay, ema;
    enum outer_kind kind;
    uint32_t delay; /* OUTER_DELAYED: N >= 1 */
    bool radial, last_mean;
    bool
        sum; /* the counting rule: theta <- theta - sum of all deltas, late ones too; no momentum */
};
struct outer_rule outer_rule_default(void); /* 0.7, 0.9, 3, 30, 0.5, 0, 0; no option */
/* NULL, or the field that is not valid with the others, and in *out_why what is wrong. For settings. */
const char *outer_rule_misfit(const struct outer_rule *r, const char **out_why);

struct outer_part { /* one contribution in a merge plan */
    uint32_t site;
    uint64_t tokens, steps;
    uint32_t late; /* versions of others that it misses; 0: fresh */
};
struct outer_params { /* the round's scalars; recorded in the journal, so replay needs no pow() */
    double eta_r, mu_r, kappa_r, phi, meff, sbar, tokens_fresh, tokens_late;
};
struct
    outer_past { /* what a round inherits; zero: the first one. outer_past_after says how it goes on */
    double arrivals; /* fresh sites since momentum last acted (OUTER_DELAYED) */
    double work;     /* sum of phi so far */
    uint64_t adamw;  /* synchronous rounds in a row before it: steps of the hub's moments */
    bool last;       /* the run ends with this round */
    bool restart;    /* the first round after a return to an older version: m begins anew */
};
struct outer_round { /* all that the arithmetic of a round needs besides weights; recorded */
    struct outer_params params;
    bool radial;
    bool keeps_ema;
    double ema; /* the mean moves by this share towards the new theta */
};
/* parts sorted by (site, contribution); out_weight[count]. */
void outer_round_compute(const struct outer_rule *r, const struct outer_past *past,
                         const struct outer_part *parts, size_t count, struct outer_round *out,
                         double *out_weight);
/* Of recorded figures alone, so that a replay has the same: fresh_sites with tokens, not late. */
struct outer_past outer_past_after(const struct outer_past *past, const struct outer_params *p,
                                   uint32_t fresh_sites);

/* The first two arguments of above with nothing inherited, and the scalars alone. Fills the scalars and out_weight[count]: for a fresh part
 * the factor of its delta in D (tokens of its SITE / N, for each of the site's deltas), for a late
 * part the whole factor lw/(N + L) that multiplies eta_r. A part without tokens has weight 0 and
 * no effect. With rule.sum every part with tokens weighs 1, and eta_r = 1, mu_r = kappa_r = 0. */
void outer_params_compute(const struct outer_rule *r, const struct outer_part *parts, size_t count,
                          struct outer_params *out, double *out_weight);

struct outer_merge { /* one merge in progress; feed chunks in order, each of <= OUTER_CHUNK */
    struct outer_params params;
    size_t parts_count;
    const struct outer_part *parts; /* borrowed */
    const double *weight;           /* borrowed */
    const struct outer_radial
        *radial;    /* borrowed; NULL: a plain mean. Set it behind outer_merge_init */
    float *scratch; /* one tile of sums, owned */
};
void outer_merge_init(struct outer_merge *g, const struct outer_params *p,
                      const struct outer_part *parts, const double *weight, size_t count);
void outer_merge_fini(struct outer_merge *g);
/* theta[n] and m[n] are updated in place; delta[i][n] is part i's decoded chunk. */
void outer_merge_chunk(struct outer_merge *g, float *theta, float *m, const float *const *delta,
                       size_t n);
/* The same where g->radial is set: the chunk begins at element `at` of the vector. */
void outer_merge_chunk_at(struct outer_merge *g, uint64_t at, float *theta, float *m,
                          const float *const *delta, size_t n);
double outer_ema_share(const struct outer_rule *r, double work, double phi); /* of this round */
/* mean += share (theta - mean); a share of 1 copies. */
void outer_ema_chunk(float *mean, const float *theta, double share, size_t n);

/* The same from coded deltas: coded[i] is part i's payload of these n elements (n a multiple of CODEC_UNIT
 * except at the end). They are opened tile by tile, so that the floats of a delta never leave the
 * first-level cache; the bits are those of decoding first. E_CORRUPT, *out_bad_part: this payload is none;
 * theta and m are then half done and of no use. Threads may share g where each brings a room of its own. */
enum { OUTER_TILE = 1024 };
struct outer_room { /* one thread's */
    float *tiles;
    const float **delta;
    const uint8_t **int4;
    float sums[OUTER_TILE];
};
void outer_room_init(struct outer_room *r, size_t parts);
void outer_room_fini(struct outer_room *r);
enum brg_status outer_merge_coded(const struct outer_merge *g, float *theta, float *m,
                                  const uint8_t *const *coded, const enum codec *codecs, size_t n,
                                  struct outer_room *room, size_t *out_bad_part) MUST_USE;
/* at: as outer_merge_chunk_at; a multiple of CODEC_UNIT. */
enum brg_status outer_merge_coded_at(const struct outer_merge *g, uint64_t at, float *theta,
                                     float *m, const uint8_t *const *coded,
                                     const enum codec *codecs, size_t n, struct outer_room *room,
                                     size_t *out_bad_part) MUST_USE;

/* ---- Products of deltas, radial-directional averaging, cosines (radial.c) --------------------------
 * gram[parts * parts] of the fresh parts, symmetric; sums in f64 in the order of the elements. */
enum { OUTER_RADIAL_PARTS_MAX = 64 }; /* beyond: a plain mean, no cosines */
void outer_gram_add(double *gram, const struct outer_part *parts, size_t count,
                    const float *const *delta, size_t n);
/* How the sites' deltas agree: out_cos[i], of part i's site to the weighted sum of the other sites; 0 where it
 * cannot be told, and for late parts. Gives the mean over pairs of sites, in which each pair counts once. */
double outer_cosines(const double *gram, const struct outer_part *parts, const double *weight,
                     size_t count, double *out_cos);

struct outer_span { /* one tensor: the elements from the end of the one before up to `end` */
    uint64_t end;
    bool plain; /* a plain mean all the same: embeddings */
};
/* Embedding or output table, by its name: what is averaged plainly. */
bool outer_span_is_plain(const char *tensor_name);
struct outer_radial {
    size_t spans_count, parts_count;
    const struct outer_span *spans; /* borrowed */
    const struct outer_part *parts; /* borrowed */
    const double *weight;           /* borrowed */
    double *gram;                   /* [spans][parts * parts] */
    float *factor;                  /* [spans][parts]: of each part's delta in D */
};
/* init; measure all elements once, in order, in pieces as of codecs; finish; then set outer_merge.radial.
 * false: too many parts, use the plain mean. */
bool outer_radial_init(struct outer_radial *r, const struct outer_span *spans, size_t spans_count,
                       const struct outer_part *parts, const double *weight, size_t count) MUST_USE;
void outer_radial_fini(struct outer_radial *r);
void outer_radial_measure(struct outer_radial *r, uint64_t at, const float *const *delta, size_t n);
enum brg_status outer_radial_measure_coded(struct outer_radial *r, uint64_t at,
                                           const uint8_t *const *coded, const enum codec *codecs,
                                           size_t n, struct outer_room *room, size_t *out_bad_part)
    MUST_USE;
void outer_radial_finish(struct outer_radial *r);

/* ---- Synchronous rounds: one AdamW step on the sites' mean gradient (adamw.c has the equations) --------
 * A contribution is the mean gradient over its samples at its base. The moments lie with the hub: the first one in the
 * place of the outer momentum, the second one in a vector of its own beside it. */
struct outer_adamw {
    uint64_t step; /* of the moments; 1 begins them at zero. 0: no synchronous round */
    bool counts;   /* the counting rule: the parts' plain sum as in outer_merge, and no moments */
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip 0: the gradient is not clipped */
    double bias1, bias2; /* 1/(1 - beta^step): recorded, so that a replay needs no pow() */
};
struct outer_inner { /* the run's AdamW, as its sites have it */
    double beta1, beta2, eps, weight_decay, clip;
};
/* The scalars of a synchronous round and each part's share of its tokens. All parts are fresh. */
void outer_adamw_compute(const struct outer_rule *r, const struct outer_past *past,
                         const struct outer_inner *inner, double lr, const struct outer_part *parts,
                         size_t count, struct outer_round *out, struct outer_adamw *out_step,
                         double *out_weight);
/* mean[n]: the parts' weighted sum, in f64 in their order, rounded once. Gives sum2 and the squares of mean, added in
 * order: called for all of a vector, from its start, it is the norm that the clip wants. */
double outer_adamw_mean(const double *weight, size_t count, const float *const *gradient, size_t n,
                        float *mean, double sum2);
/* The factor of the clip for a norm^2. */
double outer_adamw_clip(const struct outer_adamw *a, double sum2);
/* One AdamW step of n elements in place, the trainer's own bits; decays: they lie in a tensor that does. */
void outer_adamw_chunk(const struct outer_adamw *a, double clip, bool decays, float *theta,
                       float *m, float *v, const float *gradient, size_t n);

/* ---- The way back: a version as an update on its parent (down.c has the equations) ------------- */
/* theta: in theta*, out theta_{v+1}; e: n bf16, in e_v, out e_{v+1}; out[codec_bytes(c, n)]: the update's
 * payload; scratch[2n]. E_NONFINITE, E_CORRUPT (e is not finite): nothing has changed. */
enum brg_status outer_down_chunk(enum codec c, const float *theta_old, float *theta, uint8_t *e,
                                 size_t n, uint8_t *out, float *scratch) MUST_USE;
/* theta += e, where the run goes back to whole weights; scratch[n]. */
enum brg_status outer_down_settle(float *theta, const uint8_t *e, size_t n, float *scratch)
    MUST_USE;
/* The one addition by which hub and sites get theta_{v+1} from theta_v. */
void update_add(float *theta, const float *update, size_t n);

enum { UPDATE_HEADER_BYTES = 128 };
struct update_header {
    enum codec codec;
    uint64_t elements, from, to, tokens; /* tokens: of version `to` */
    struct id128 run;
    struct hash theta_from, theta_to;
};
void update_header_encode(const struct update_header *h, uint8_t out[UPDATE_HEADER_BYTES]);
enum brg_status update_header_decode(const uint8_t in[UPDATE_HEADER_BYTES],
                                     struct update_header *out, struct err *e) MUST_USE;

/* ---- Checks before acceptance ---------------------------------------------------------------- */
struct delta_stats {
    double norm2, max_abs, dot_m, m_norm2; /* sums in f64 */
    uint64_t count;
};
void delta_stats_chunk(struct delta_stats *s, const float *d, const float *m_or_null, size_t n);
/* The largest move of a weight in `steps` AdamW steps at rates <= lr_sum in total (Cauchy-Schwarz):
 * lr_sum * (c + wd*theta_max), c = (1-b1)/sqrt((1-b2)(1-b1^2/b2)). Infinity where b1^2 >= b2. */
double outer_adamw_bound(double lr_sum, double b1, double b2, double wd, double theta_max);
/* The same of Muon, lr_sum being the sum of the matrices' rates and `side` the largest side of a matrix:
 * lr_sum * (1.21 * 0.2 sqrt(side) + wd*theta_max). No element of a matrix is larger than its largest singular
 * value, and five turns of the quintic leave none above 1.2024 (its maximum on [0, 1.21]; train/muon.c). */
double outer_muon_bound(double lr_sum, double side, double wd, double theta_max);

/* How far a delta's norm is from what its site is used to (EDiT, arXiv 2412.07210; alpha 0.02). What is
 * followed is x = log(norm / mean rate) - 0.75 log(steps): a norm grows with steps^0.5 (noise) to steps^1
 * (drift), so an unusual number of steps excuses up to a quarter of its logarithm either way. */
enum { OUTER_NORMS_WARM = 50 }; /* contributions before it judges */
struct outer_norms {
    uint64_t count;
    double mean, var, log_steps;
};
/* Standard deviations above (or below) the usual; 0 while it is warming up or where nothing can be said. */
double outer_norms_z(const struct outer_norms *s, double norm, double lr_sum, double steps);
/* Takes an accepted delta in. One that lies OUTER_NORMS_NEW away or more begins the statistics anew. */
#define OUTER_NORMS_NEW 4.0
void outer_norms_add(struct outer_norms *s, double norm, double lr_sum, double steps);

/* ---- The learning-rate schedule: a function of committed tokens, the same for every site ----- */
enum schedule_kind { SCHEDULE_COSINE = 1, SCHEDULE_WSD = 2, SCHEDULE_CONSTANT = 3 };
struct schedule {
    enum schedule_kind kind;
    double lr, lr_min_ratio; /* peak; floor as a share of the peak */
    double tokens_total, tokens_warmup;
    double decay_share; /* WSD: the last share of tokens that decays linearly */
};
double schedule_lr(const struct schedule *s, double tokens);

/* H as a ramp at the start of a run: from steps_first to steps over the first `share` of the tokens, in a
 * straight line, rounded to nearest. share 0 or steps_first >= steps: always steps. */
struct schedule_steps {
    uint64_t steps, steps_first;
    double share, tokens_total;
};
uint64_t schedule_steps_at(const struct schedule_steps *s, double tokens);

#endif
