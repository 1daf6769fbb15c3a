/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - the table of keys of run.yaml, and how they become the machine's settings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hub/settings.h"
#include "object/object.h"
#include "wire/json.h"

static const char *const schedules[] = {"cosine", "wsd", "constant", NULL};
static const char *const optimizers[] = {"adamw", "muon", NULL};
static const char *const averages[] = {"mean", "sum", "radial", NULL};
static const char *const outers[] = {"nesterov", "plain", "delayed", NULL};
static const char *const cadences[] = {"steps", "batch", NULL};
static const char *const lasts[] = {"same", "mean", NULL};
static const char *const downs[] = {"full", "bf16", "int8", "int4", "topk", NULL};
static const char *const codecs[] = {"fp32", "bf16", "int8", "int4", "topk", NULL};

static const struct config_key keys[] = {
    {"run", "epochs", CONFIG_U64, .def = "1", .min = 1, .max = 1e6,
     .help = "passes over the data; each position is merged exactly once in each"},

    {"train", "lr", CONFIG_F64, .def = "3e-4", .min = 1e-12, .max = 10,
     .help = "peak learning rate of the inner AdamW; half of a central run's is a good start"},
    {"train", "lr_min_ratio", CONFIG_F64, .def = "0.1", .min = 0, .max = 1,
     .help = "the schedule's floor as a share of the peak"},
    {"train", "schedule", CONFIG_ENUM, .def = "cosine", .choices = schedules,
     .help = "a function of committed tokens, equal on all sites"},
    {"train", "decay_share", CONFIG_F64, .def = "0.2", .min = 0, .max = 1,
     .help = "wsd: the last share of the tokens, in which the rate decays"},
    {"train", "warmup_tokens", CONFIG_F64, .def = "0", .min = 0, .max = 1e15,
     .help = "tokens over which the rate rises from 0"},
    {"train", "beta1", CONFIG_F64, .def = "0.9", .min = 0, .max = 0.99999},
    {"train", "beta2", CONFIG_F64, .def = "0.95", .min = 0, .max = 0.9999999},
    {"train", "eps", CONFIG_F64, .def = "1e-8", .min = 1e-30, .max = 1},
    {"train", "weight_decay", CONFIG_F64, .def = "0.1", .min = 0, .max = 10},
    {"train", "clip", CONFIG_F64, .def = "1", .min = 0, .max = 1e9,
     .help = "largest norm of a gradient; 0 does not clip"},
    {"train", "optimizer", CONFIG_ENUM, .def = "adamw", .choices = optimizers,
     .help =
         "muon: the layers' matrices; AdamW moves embeddings, head and norms then, and all else"},
    {"train", "muon_momentum", CONFIG_F64, .def = "0.95", .min = 0, .max = 0.9999},
    {"train", "muon_lr_ratio", CONFIG_F64, .def = "1", .min = 1e-3, .max = 1e3,
     .help = "the rate of Muon's matrices as a multiple of train.lr"},

    {"outer", "steps", CONFIG_U64, .def = "30", .min = 1, .max = 1e9,
     .help = "H: inner steps of a site in a round"},
    {"outer", "steps_first", CONFIG_U64, .def = "0", .min = 0, .max = 1e9,
     .help = "H at the start of the run, rising to outer.steps over outer.ramp; 0: no ramp"},
    {"outer", "ramp", CONFIG_F64, .def = "0.15", .min = 0, .max = 1,
     .help = "share of the run's tokens over which H rises from outer.steps_first"},
    {"outer", "synchronous", CONFIG_F64, .def = "0", .min = 0, .max = 1,
     .help = "share of the run's tokens, from its start, with one AdamW step a round on all sites' "
             "gradients; 0.05 is a warm start, 1 the whole run"},
    {"outer", "optimizer", CONFIG_ENUM, .def = "nesterov", .choices = outers,
     .help = "plain: the weights' mean; delayed: momentum acts every outer.delay arrivals"},
    {"outer", "delay", CONFIG_U64, .def = "1", .min = 1, .max = 4096,
     .help = "delayed: sites' contributions between two actions of the momentum"},
    {"outer", "eta", CONFIG_F64, .def = "0.7", .min = 0, .max = 10, .help = "outer learning rate"},
    {"outer", "mu", CONFIG_F64, .def = "0.9", .min = 0, .max = 0.9999,
     .help = "outer Nesterov momentum; less where the run has few rounds"},
    {"outer", "m_ref", CONFIG_F64, .def = "3", .min = 1e-3, .max = 1e6,
     .help = "effective number of sites for which eta holds"},
    {"outer", "h_ref", CONFIG_F64, .def = "0", .min = 0, .max = 1e9,
     .help = "steps of a round for which mu holds; 0: outer.steps"},
    {"outer", "late_weight", CONFIG_F64, .def = "0.5", .min = 0, .max = 1,
     .help = "weight of a contribution that comes one version late"},
    {"outer", "late_decay", CONFIG_F64, .def = "0", .min = 0, .max = 100,
     .help = "of that weight, e to the minus this for each further version"},
    {"outer", "last", CONFIG_ENUM, .def = "same", .choices = lasts,
     .help = "mean: the round that ends the run is a plain mean"},
    {"outer", "ema", CONFIG_F64, .def = "0", .min = 0, .max = 0.99999,
     .help = "keep a mean of the versions too, of which a round keeps this share; 0: none"},
    {"outer", "norm_z", CONFIG_F64, .def = "4", .min = 0, .max = 1e6,
     .help = "refuse a delta longer than its site's usual by so many deviations; 0: none"},
    {"outer", "loss_jump", CONFIG_F64, .def = "0.3", .min = 0, .max = 100,
     .help = "go back where the measured held-out loss rose by more nats; 0: never"},
    {"outer", "average", CONFIG_ENUM, .def = "mean", .choices = averages,
     .help = "mean: token-weighted; radial: lengths and directions apart, by tensor; sum: plain "
             "sum of deltas, no momentum, for models that count"},
    {"outer", "codec", CONFIG_ENUM, .def = "int8", .choices = codecs,
     .help = "how contributions are coded; topk wants mu = 0"},
    {"outer", "down_codec", CONFIG_ENUM, .def = "full", .choices = downs,
     .help = "how versions go to the sites: whole weights, or coded updates that define them"},
    {"outer", "quorum", CONFIG_U64, .def = "1", .min = 1, .max = 4096,
     .help =
         "sites that must have handed in before the others are waited for no longer than grace"},
    {"outer", "grace", CONFIG_DURATION, .def = "60s", .min = 0, .max = 86400e9,
     .help = "how long, from the quorum on, a round waits for the other live sites"},
    {"outer", "staleness_max", CONFIG_U64, .def = "1", .min = 0, .max = 64,
     .help = "versions that a contribution's base may be behind the head"},
    {"outer", "cadence", CONFIG_BOOL, .def = "true",
     .help = "ask faster sites for more, so that all finish a round together"},
    {"outer", "cadence_by", CONFIG_ENUM, .def = "steps", .choices = cadences,
     .help = "of what: steps; batch: samples of a step first, where a site has room (--batch-max)"},

    {"lease", "ttl", CONFIG_DURATION, .def = "120s", .min = 100e6, .max = 86400e9,
     .help = "how long a lease lives without a heartbeat"},
    {"lease", "heartbeat", CONFIG_DURATION, .def = "10s", .min = 10e6, .max = 3600e9,
     .help = "time between two heartbeats of a site"},
    {"lease", "samples_min", CONFIG_U64, .def = "64", .min = 1, .max = 1e12,
     .help = "a lease is not smaller, while there are so many left"},
    {"lease", "samples_max", CONFIG_U64, .def = "65536", .min = 1, .max = 1e12},
    {"lease", "crashes_max", CONFIG_U64, .def = "3", .min = 1, .max = 1000,
     .help = "positions whose leases ended by a crash so often are quarantined for an operator"},

    {"blobs", "store", CONFIG_STRING, .def = "", .max = 240,
     .help =
         "s3://BUCKET[/PREFIX]: sites fetch and send weights there, by URLs of the hub's; empty: "
         "from and to the hub (docs/s3.md)"},
    {"blobs", "endpoint", CONFIG_STRING, .def = "", .max = 255,
     .help = "where that store is: https://HOST[:PORT]"},
    {"blobs", "region", CONFIG_STRING, .def = "us-east-1", .min = 1, .max = 63,
     .help = "as the store wants it in signatures"},
    {"blobs", "credentials", CONFIG_STRING, .def = "", .max = 1023,
     .help = "a file of the AWS form, mode 0600; empty: AWS_ACCESS_KEY_ID and its like, then "
             "~/.aws/credentials"},
    {"blobs", "ca", CONFIG_STRING, .def = "", .max = 1023,
     .help = "the store's CA, PEM; empty: the system's"},
    {"blobs", "part", CONFIG_BYTES, .def = "64M", .min = 65536, .max = 5e9,
     .help = "what is longer goes in parts of this size; AWS wants 5M at least, and takes 10,000"},
    {"blobs", "expires", CONFIG_DURATION, .def = "1h", .min = 1e9, .max = 604800e9,
     .help = "how long a URL for a site is good: longer than a transfer lasts"},
    {"blobs", "price_writes", CONFIG_F64, .def = "0", .min = 0, .max = 1e6,
     .help = "of 1,000 requests that write or list, in any currency: for the cost in status"},
    {"blobs", "price_reads", CONFIG_F64, .def = "0", .min = 0, .max = 1e6,
     .help = "of 1,000 requests that read"},
    {"blobs", "mailbox", CONFIG_BOOL, .def = "false",
     .help = "sites may come through that store too: they need no way to the hub (docs/s3.md)"},
    {"blobs", "mailbox_idle", CONFIG_DURATION, .def = "2s", .min = 100e6, .max = 10e9,
     .help = "the longest pause between two looks into it; each look is one list"},

    {"hub", "listen", CONFIG_STRING, .def = "127.0.0.1:7070", .min = 1, .max = 255,
     .help = "HOST:PORT; port 0 takes any; [::1]:7070 for IPv6"},
    {"hub", "tls_cert", CONFIG_STRING, .def = "", .max = 1023,
     .help = "certificate and its chain, PEM; empty: RUN/tls/hub.pem, where it is there (beringia "
             "tls)"},
    {"hub", "tls_key", CONFIG_STRING, .def = "", .max = 1023,
     .help = "its key, mode 0600; empty: RUN/tls/hub-key.pem"},
    {"hub", "rate", CONFIG_U64, .def = "200", .min = 1, .max = 1e6,
     .help = "requests a second that one token may make, pieces of uploads not counted"},
    {"hub", "patience", CONFIG_DURATION, .def = "20s", .min = 500e6, .max = 600e9,
     .help = "how long a connection may go without showing a token, where tokens are wanted"},
    {"hub", "keep_checkpoints", CONFIG_U64, .def = "5", .min = 1, .max = 1e9,
     .help = "the newest so many versions keep their checkpoint: how far a rollback reaches"},
    {"hub", "keep_every", CONFIG_U64, .def = "50", .min = 0, .max = 1e9,
     .help = "beyond that every so-many-th is kept, and version 0; 0: only version 0"},
    {"hub", "sites_max", CONFIG_U64, .def = "64", .min = 1, .max = 65536},
    {"hub", "snapshot_every", CONFIG_U64, .def = "20000", .min = 10, .max = 1e9,
     .help = "journal records between two snapshots, which bound the time of a restart"},
};

void run_settings_declare(struct config *c) {
    config_declare(c, keys, ARRAY_COUNT(keys));
}

const struct config_key *run_settings_keys(size_t *out_count) {
    *out_count = ARRAY_COUNT(keys);
    return keys;
}

static void take_rounds(const struct config *c, struct hub_settings *s) {
    s->steps = config_u64(c, "outer", "steps");
    s->quorum = (uint32_t)config_u64(c, "outer", "quorum");
    s->grace_ns = config_duration(c, "outer", "grace");
    s->staleness_max = (uint32_t)config_u64(c, "outer", "staleness_max");
    s->cadence = config_bool(c, "outer", "cadence");
    s->cadence_batch = config_enum(c, "outer", "cadence_by") == 1;
    s->rule.eta = config_f64(c, "outer", "eta");
    s->rule.mu = config_f64(c, "outer", "mu");
    s->rule.m_ref = config_f64(c, "outer", "m_ref");
    s->rule.h_ref = config_f64(c, "outer", "h_ref");
    if (!(s->rule.h_ref > 0)) s->rule.h_ref = (double)s->steps;
    s->rule.late_weight = config_f64(c, "outer", "late_weight");
    s->rule.late_decay = config_f64(c, "outer", "late_decay");
    s->rule.sum = config_enum(c, "outer", "average") == 1;
    s->rule.radial = config_enum(c, "outer", "average") == 2;
    s->rule.kind = (enum outer_kind)config_enum(c, "outer", "optimizer");
    s->rule.delay = (uint32_t)config_u64(c, "outer", "delay");
    s->rule.last_mean = config_enum(c, "outer", "last") == 1;
    s->rule.ema = config_f64(c, "outer", "ema");
    s->steps_first = config_u64(c, "outer", "steps_first");
    s->ramp_share = config_f64(c, "outer", "ramp");
    s->norm_z = config_f64(c, "outer", "norm_z");
    s->loss_jump = config_f64(c, "outer", "loss_jump");
    CHECK(codec_parse(codecs[config_enum(c, "outer", "codec")], &s->codec));
    s->down = (enum codec)0;
    if (config_enum(c, "outer", "down_codec") > 0)
        CHECK(codec_parse(downs[config_enum(c, "outer", "down_codec")], &s->down));
}

static void take_training(const struct config *c, const struct run_facts *f,
                          struct hub_settings *s) {
    s->schedule.kind = (enum schedule_kind)(config_enum(c, "train", "schedule") + 1);
    s->schedule.lr = config_f64(c, "train", "lr");
    s->schedule.lr_min_ratio = config_f64(c, "train", "lr_min_ratio");
    s->schedule.tokens_warmup = config_f64(c, "train", "warmup_tokens");
    s->schedule.decay_share = config_f64(c, "train", "decay_share");
    s->schedule.tokens_total = (double)f->positions * f->seq_len * s->epochs;
    s->sync_tokens = ceil(config_f64(c, "outer", "synchronous") * s->schedule.tokens_total);
    s->eps = config_f64(c, "train", "eps");
    s->clip = config_f64(c, "train", "clip");
    s->beta1 = config_f64(c, "train", "beta1");
    s->beta2 = config_f64(c, "train", "beta2");
    s->weight_decay = config_f64(c, "train", "weight_decay");
}

/* The hub has to know how far a step of Muon can go, or it could not tell a broken delta from a good one. */
static enum brg_status take_optimizer(const struct config *c, const struct run_facts *f,
                                      struct run_settings *r, struct err *e) {
    r->muon = config_enum(c, "train", "optimizer") == 1;
    r->muon_momentum = config_f64(c, "train", "muon_momentum");
    r->muon_lr_ratio = config_f64(c, "train", "muon_lr_ratio");
    if (!r->muon) return BRG_OK;
    if (r->hub.sync_tokens > 0)
        TRY(config_fail(c, "outer", "synchronous", e,
                        "takes steps of AdamW, and train.optimizer is muon; want 0, or adamw"));
    r->hub.muon_ratio = r->muon_lr_ratio;
    r->hub.muon_side = (double)f->matrix_side;
    if (f->matrix_side > 0) return BRG_OK;
    return config_fail(
        c, "train", "optimizer", e,
        "muon is for the layers of a Qwen3 model, and the run's facts (run.json) name "
        "no matrix of one; want adamw, or a run made from --model or --weights");
}

static void take_leases(const struct config *c, struct hub_settings *s) {
    s->ttl_ns = config_duration(c, "lease", "ttl");
    s->heartbeat_ns = config_duration(c, "lease", "heartbeat");
    s->lease_samples_min = config_u64(c, "lease", "samples_min");
    s->lease_samples_max = config_u64(c, "lease", "samples_max");
    s->crashes_max = (uint32_t)config_u64(c, "lease", "crashes_max");
}

/* Each key is judged with harmless others beside it, so that the right one is named. */
static enum brg_status take_blobs(const struct config *c, struct run_settings *r, struct err *e) {
    struct object_place p;
    struct err why = {0};
    const char *store = config_string(c, "blobs", "store");
    const char *endpoint = config_string(c, "blobs", "endpoint");
    const char *region = config_string(c, "blobs", "region");
    (void)snprintf(r->blobs_store, sizeof r->blobs_store, "%s", store);
    (void)snprintf(r->blobs_endpoint, sizeof r->blobs_endpoint, "%s", endpoint);
    (void)snprintf(r->blobs_region, sizeof r->blobs_region, "%s", region);
    (void)snprintf(r->blobs_credentials, sizeof r->blobs_credentials, "%s",
                   config_string(c, "blobs", "credentials"));
    (void)snprintf(r->blobs_ca, sizeof r->blobs_ca, "%s", config_string(c, "blobs", "ca"));
    r->blobs_part_bytes = config_bytes(c, "blobs", "part");
    r->blobs_expires_ns = config_duration(c, "blobs", "expires");
    r->blobs_price_writes = config_f64(c, "blobs", "price_writes");
    r->blobs_price_reads = config_f64(c, "blobs", "price_reads");
    r->blobs_mailbox = config_bool(c, "blobs", "mailbox");
    r->blobs_mailbox_idle_ns = config_duration(c, "blobs", "mailbox_idle");
    if (*store == '\0' && r->blobs_mailbox)
        return config_fail(c, "blobs", "store", e,
                           "is missing, and blobs.mailbox is there: weights of those who come "
                           "through a bucket go by the store; want s3://BUCKET[/PREFIX]");
    if (*store == '\0' && *endpoint != '\0')
        return config_fail(c, "blobs", "store", e,
                           "is missing, and blobs.endpoint is there; want s3://BUCKET[/PREFIX]");
    if (*store == '\0') return BRG_OK;
    if (object_place_parse(store, "https://s3", "r", &p, &why) != BRG_OK)
        TRY(config_fail(c, "blobs", "store", e, "%s", why.text));
    if (object_place_parse("s3://bucket", endpoint, "r", &p, &why) != BRG_OK)
        TRY(config_fail(c, "blobs", "endpoint", e, "%s", why.text));
    if (object_place_parse("s3://bucket", "https://s3", region, &p, &why) != BRG_OK)
        TRY(config_fail(c, "blobs", "region", e, "%s", why.text));
    return BRG_OK;
}

/* Each rule with a TRY of its own: where all faults are collected, config_fail gives OK. */
static enum brg_status fit_together(const struct config *c, const struct run_settings *r,
                                    struct err *e) {
    const struct hub_settings *s = &r->hub;
    if (s->rule.sum && s->down != 0)
        TRY(config_fail(c, "outer", "down_codec", e,
                        "rounds, and outer.average sum is for models that count; want full"));
    const char *why, *misfit = outer_rule_misfit(&s->rule, &why);
    if (misfit != NULL) TRY(config_fail(c, "outer", misfit, e, "%s", why));
    if (s->sync_tokens > 0 && !(s->beta2 > 0))
        TRY(config_fail(c, "outer", "synchronous", e,
                        "takes steps of AdamW, for which train.beta2 is above 0; want 0.95, say"));
    if (s->steps_first > s->steps)
        TRY(config_fail(c, "outer", "steps_first", e, "is more than outer.steps; want at most %llu",
                        (unsigned long long)s->steps));
    if (s->lease_samples_min > s->lease_samples_max)
        TRY(config_fail(c, "lease", "samples_min", e, "is larger than lease.samples_max"));
    if (s->heartbeat_ns * 2 > s->ttl_ns)
        TRY(config_fail(c, "lease", "heartbeat", e,
                        "is more than half of lease.ttl; one lost heartbeat would cost the lease"));
    if (s->schedule.tokens_warmup > s->schedule.tokens_total)
        TRY(config_fail(c, "train", "warmup_tokens", e, "is more than the run's %.0f tokens",
                        s->schedule.tokens_total));
    return BRG_OK;
}

enum brg_status run_settings_take(const struct config *c, const struct run_facts *f,
                                  struct run_settings *out, struct err *e) {
    struct run_settings r;
    memset(&r, 0, sizeof r);
    struct hub_settings *s = &r.hub;
    s->run = f->run;
    s->fingerprint = f->fingerprint;
    s->tensors = f->tensors;
    s->parameters = f->parameters;
    s->positions = f->positions;
    s->seq_len = f->seq_len;
    s->order_seed = f->order_seed;
    s->epochs = (uint32_t)config_u64(c, "run", "epochs");
    take_rounds(c, s);
    take_training(c, f, s);
    take_leases(c, s);
    TRY(take_optimizer(c, f, &r, e));
    TRY(fit_together(c, &r, e));
    TRY(take_blobs(c, &r, e));
    s->sites_max = (uint32_t)config_u64(c, "hub", "sites_max");
    s->records_per_snapshot = (uint32_t)config_u64(c, "hub", "snapshot_every");
    s->delta_bytes_max = DELTA_HEADER_BYTES + codec_bytes(CODEC_FP32, f->parameters);
    r.eps = s->eps;
    r.clip = s->clip;
    r.keep_checkpoints = config_u64(c, "hub", "keep_checkpoints");
    r.keep_every = config_u64(c, "hub", "keep_every");
    (void)snprintf(r.listen, sizeof r.listen, "%s", config_string(c, "hub", "listen"));
    (void)snprintf(r.tls_cert, sizeof r.tls_cert, "%s", config_string(c, "hub", "tls_cert"));
    (void)snprintf(r.tls_key, sizeof r.tls_key, "%s", config_string(c, "hub", "tls_key"));
    if ((r.tls_cert[0] == '\0') != (r.tls_key[0] == '\0'))
        TRY(config_fail(c, "hub", r.tls_key[0] == '\0' ? "tls_key" : "tls_cert", e,
                        "is missing: a certificate and its key go together"));
    r.rate = (double)config_u64(c, "hub", "rate");
    r.patience_ns = config_duration(c, "hub", "patience");
    *out = r;
    return BRG_OK;
}

void run_describe(const struct run_settings *s, const struct run_facts *f, const char *model_json,
                  struct wire_run *out) {
    memset(out, 0, sizeof *out);
    out->run = f->run;
    out->protocol = WIRE_PROTOCOL;
    out->seq_len = f->seq_len;
    out->epochs = s->hub.epochs;
    out->codec = (uint32_t)s->hub.codec;
    out->vocab_size = f->vocab_size;
    out->parameters = f->parameters;
    out->positions = f->positions;
    out->order_seed = f->order_seed;
    out->fingerprint = f->fingerprint;
    out->tensors = f->tensors;
    out->lr = s->hub.schedule.lr;
    out->lr_min_ratio = s->hub.schedule.lr_min_ratio;
    out->warmup_tokens = s->hub.schedule.tokens_warmup;
    out->tokens_total = s->hub.schedule.tokens_total;
    out->decay_share = s->hub.schedule.decay_share;
    out->schedule = (uint32_t)s->hub.schedule.kind;
    out->beta1 = s->hub.beta1;
    out->beta2 = s->hub.beta2;
    out->eps = s->eps;
    out->weight_decay = s->hub.weight_decay;
    out->clip = s->clip;
    if (s->muon) {
        out->optimizer = WIRE_MUON;
        out->muon_momentum = s->muon_momentum;
        out->muon_lr_ratio = s->muon_lr_ratio;
    }
    out->sync_tokens = (uint64_t)s->hub.sync_tokens;
    out->steps = s->hub.steps;
    out->ttl_ms = (uint32_t)(s->hub.ttl_ns / NS_PER_MS);
    out->heartbeat_ms = (uint32_t)(s->hub.heartbeat_ns / NS_PER_MS);
    (void)snprintf(out->model_json, sizeof out->model_json, "%s", model_json);
}

/* ---- Facts --------------------------------------------------------------------------------------- */
static const struct field facts_fields[] = {FIELD(run_facts, run, JSON_ID),
                                            FIELD(run_facts, fingerprint, JSON_HASH),
                                            FIELD(run_facts, tensors, JSON_HASH),
                                            FIELD(run_facts, parameters, JSON_U64),
                                            FIELD(run_facts, positions, JSON_U64),
                                            FIELD(run_facts, order_seed, JSON_HEX64),
                                            FIELD(run_facts, seq_len, JSON_U32),
                                            FIELD(run_facts, vocab_size, JSON_U32),
                                            FIELD_OMIT(run_facts, matrix_side, JSON_U64),
                                            FIELD_END};

void run_facts_encode(const struct run_facts *f, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, facts_fields, f, &first);
    buf_put(out, "}\n", 2);
}

enum brg_status run_facts_decode(const void *json, size_t n, struct run_facts *out, struct err *e) {
    struct run_facts f;
    json_t *o;
    memset(&f, 0, sizeof f);
    TRY(json_object_parse(json, n, 64 * 1024, &o, e));
    enum brg_status s = json_fields_get(o, facts_fields, &f, "run.json", e);
    json_decref(o);
    if (s == BRG_OK) *out = f;
    return s;
}
