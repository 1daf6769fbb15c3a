/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_eval.c - beringia eval: the loss of a model, of a directory in Hugging Face's form or of a run's
 * version, over a data set's held-out samples or over the token ids of a file. */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/os.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/source.h"
#include "hub/heldout.h"
#include "train/eval.h"
#include "train/model_os.h"

static const char HELP[] =
    "beringia eval - held-out perplexity of a model\n"
    "\n"
    "  beringia eval RUN|DIR --data DIR [options]\n"
    "  beringia eval RUN|DIR --ids FILE [options]\n"
    "  beringia eval RUN --data DIR --watch [--poll 2s] [options]\n"
    "\n"
    "  RUN             directory of a run; its head unless --version says which\n"
    "  DIR             directory with config.json and safetensors weights, one file or shards\n"
    "  --data DIR      data set with held-out samples (beringia pack)\n"
    "  --ids FILE      instead: token ids, 32-bit little-endian, as one text\n"
    "  --seq-len T     of --ids: predictions in a piece; the pieces overlap by one id\n"
    "                  (default: all of the file in one piece)\n"
    "  --version V     version of the run, or head\n"
    "  --ema           the mean of its weights instead, in a run that keeps one (outer.ema)\n"
    "  --watch         each new version, beside the hub on the hub's machine; noted as by "
    "--record, "
    "and\n"
    "                  told to the hub, which goes back where the loss rose by more than\n"
    "                  outer.loss_jump; ends with the run\n"
    "  --poll D        with --watch: time between two looks (default 2s)\n"
    "  --every N       with --watch: only N versions after the last one measured (default 1)\n"
    "  --batch N       samples at a time (default 8); more memory, not other numbers\n"
    "  --threads N     worker threads (default: the processors of this process)\n"
    "  --json          one JSON object instead of text\n"
    "  --record        of a run, with --data: also note it in RUN/heldout.jsonl, which the hub's\n"
    "                  dashboard shows beside the training loss\n"
    "\n"
    "Every held-out sample counts; the mean is over tokens, in nats. Bits per byte do not depend "
    "on the\n"
    "tokenizer, so they compare models with different ones. --json gives the loss with all its "
    "digits.\n"
    "\n"
    "examples\n"
    "  beringia eval out/ --data data/bpe\n"
    "  beringia eval run1/ --version 12 --data data/bpe --json\n"
    "  beringia eval run1/ --data data/bpe --watch --every 10\n";

enum { IDS_BYTES_MAX = 1 << 30 };
struct eval_args {
    const char *dir, *data, *ids, *version;
    bool json, record, ema, watch;
    time_ns poll;
    uint32_t batch, threads, seq_len, every;
};

static void show_json(const struct model_source *s, const struct eval_result *r, double seconds) {
    json_t *o = json_object();
    json_object_set_new(o, "model", json_string(s->weights));
    if (s->run) json_object_set_new(o, "version", json_integer((json_int_t)s->version));
    json_object_set_new(o, "samples", json_integer((json_int_t)r->samples));
    json_object_set_new(o, "tokens", json_integer((json_int_t)r->tokens));
    json_object_set_new(o, "nll", json_real(r->nll));
    json_object_set_new(o, "perplexity", json_real(r->perplexity));
    if (r->bits_per_byte > 0) json_object_set_new(o, "bits_per_byte", json_real(r->bits_per_byte));
    json_object_set_new(o, "seconds", json_real(seconds));
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(o);
}

static void show_text(const struct eval_args *a, const struct model_source *s,
                      const struct eval_result *r) {
    printf("model          %s\n", s->weights);
    printf("%-14s %llu samples, %llu tokens\n", a->ids ? "ids" : "held out",
           (unsigned long long)r->samples, (unsigned long long)r->tokens);
    printf("loss           %.6f nats a token\n", r->nll);
    printf("perplexity     %.4f\n", r->perplexity);
    if (r->bits_per_byte > 0) printf("bits per byte  %.4f\n", r->bits_per_byte);
}

/* One write of one line to the end of the file: two evaluations at a time do not mix theirs. */
static enum brg_status record(const struct model_source *s, const struct eval_result *r,
                              struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    struct heldout x = {.version = s->version,
                        .samples = r->samples,
                        .tokens = r->tokens,
                        .loss = r->nll,
                        .wall = (double)(os_wall() / NS_PER_MS) / 1e3};
    buf_init(&b, 4096);
    heldout_encode(&x, &b);
    os_path(path, s->dir, HELDOUT_FILE);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return err_set(e, BRG_E_IO, "%s: %s", path, strerror(errno));
    ssize_t n = write(fd, b.data, b.bytes_count);
    if (n == (ssize_t)b.bytes_count) return BRG_OK;
    return err_set(e, n >= 0 || errno == ENOSPC ? BRG_E_FULL : BRG_E_IO,
                   "%s: the line was not written", path);
}

/* The ids of a file, cut into pieces of T+1 that overlap by one; *seq_len 0 takes all. */
static enum brg_status read_ids(const struct eval_args *a, const struct model_config *c,
                                uint32_t *seq_len, int32_t **out, uint64_t *out_rows,
                                struct err *e) {
    AUTO_BUF struct buf b = {.bytes_max = IDS_BYTES_MAX};
    TRY(os_read_file(a->ids, IDS_BYTES_MAX, &b, e));
    size_t count = b.bytes_count / 4;
    if (b.bytes_count % 4 != 0 || count < 2)
        return err_set(e, BRG_E_SHARD, "%s: want two or more ids of 4 bytes each", a->ids);
    for (size_t i = 0; i < count; i++)
        if (get_le32(b.data + 4 * i) >= c->vocab_size)
            return err_set(e, BRG_E_SHARD, "%s: id %zu is %u, not below the model's vocab_size %u",
                           a->ids, i, get_le32(b.data + 4 * i), c->vocab_size);
    if (a->seq_len == 0 && count - 1 > SEQ_LEN_MAX)
        return err_set(e, BRG_E_USAGE, "%s: too long for one piece; give --seq-len", a->ids);
    uint32_t T = a->seq_len ? a->seq_len : (uint32_t)(count - 1);
    uint64_t rows = (count - 1) / T;
    if (rows == 0)
        return err_set(e, BRG_E_USAGE, "%s: holds fewer than --seq-len + 1 ids; give a smaller one",
                       a->ids);
    int32_t *ids = mem_alloc(rows * (T + 1), sizeof *ids);
    for (uint64_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i <= T; i++)
            ids[r * (T + 1) + i] = (int32_t)get_le32(b.data + 4 * (r * T + i));
    *seq_len = T;
    *out = ids;
    *out_rows = rows;
    return BRG_OK;
}

static enum brg_status load(const struct eval_args *a, const struct model_source *s,
                            const struct model_config *c, uint32_t seq_len, struct trainer **t,
                            struct err *e) {
    struct trainer_options o = {
        .model = c, .seq_len = seq_len, .batch_max = a->batch, .threads = a->threads};
    TRY(trainer_create(&o, t, e));
    if (a->ema) return cli_ema_load(s, trainer_parameters(*t), trainer_theta(*t), e);
    return model_load_weights(s->weights, c, trainer_theta(*t), e);
}

/* ---- Beside a hub ---------------------------------------------------------------------------------- */
enum { ANSWER_MAX = 64 << 20, HUB_TRIES = 30 };
struct standing { /* of the run: what is to be measured */
    uint64_t head;
    bool measured, complete;
};

static enum brg_status ask_standing(const char *run, struct standing *out, struct err *e) {
    struct hub_address hub;
    size_t i;
    json_t *v;
    AUTO_BUF struct buf b = {.bytes_max = ANSWER_MAX};
    TRY(cli_hub_find(&(struct hub_who){.run = run}, &hub, e));
    TRY(cli_hub_get(&hub, "/v1/status", &b, e));
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
    if (!json_is_integer(json_object_get(o, "head"))) {
        json_decref(o);
        return err_set(e, BRG_E_MESSAGE, "%s: this is no status of a hub", hub.url);
    }
    json_int_t head = json_integer_value(json_object_get(o, "head"));
    *out = (struct standing){.head = (uint64_t)head,
                             .complete = json_is_true(json_object_get(o, "complete"))};
    json_array_foreach(json_object_get(o, "versions"), i,
                       v) if (json_integer_value(json_object_get(v, "version")) == head)
        out->measured = json_number_value(json_object_get(v, "heldout")) > 0;
    json_decref(o);
    return BRG_OK;
}

/* What the hub says against it is no reason to end: the version may have been rolled away meanwhile. */
static enum brg_status tell_hub(const char *run, uint64_t version, double loss, struct err *e) {
    struct hub_address hub;
    char json[128];
    AUTO_BUF struct buf b = {.bytes_max = ANSWER_MAX};
    (void)snprintf(json, sizeof json, "{\"version\":%llu,\"loss\":%.17g}",
                   (unsigned long long)version, loss);
    TRY(cli_hub_find(&(struct hub_who){.run = run}, &hub, e));
    enum brg_status s = cli_hub_post(&hub, "/v1/operator/evaluated", json, &b, e);
    if (s != BRG_E_REFUSED) return s;
    fprintf(stderr, "beringia eval: %s\n", e->text);
    return BRG_OK;
}

static enum brg_status measure(const struct eval_args *a, const struct model_config *c,
                               struct trainer *t, struct dataset *d, uint64_t version,
                               struct err *e) {
    struct model_source s = {0};
    struct eval_result r;
    char number[24];
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)version);
    TRY(cli_model_source(a->dir, number, &s, e));
    TRY(model_load_weights(s.weights, c, trainer_theta(t), e));
    TRY(eval_heldout(t, d, &r, e));
    TRY(record(&s, &r, e));
    if (a->json)
        show_json(&s, &r, 0);
    else
        printf("version %llu  loss %.6f  perplexity %.4f\n", (unsigned long long)version, r.nll,
               r.perplexity);
    (void)fflush(stdout);
    return tell_hub(a->dir, version, r.nll, e);
}

static enum brg_status watch(const struct eval_args *a, const struct model_config *c,
                             struct trainer *t, struct dataset *d, struct err *e) {
    struct standing at = {0};
    struct timespec nap = {.tv_sec = a->poll / NS_PER_S, .tv_nsec = a->poll % NS_PER_S};
    bool any = false;
    uint64_t last = 0;
    for (int tries = 0;; nanosleep(&nap, NULL)) {
        enum brg_status s = ask_standing(a->dir, &at, e);
        bool due = !any || at.head < last || at.head >= last + a->every || at.complete;
        if (s == BRG_OK && !at.measured && due) {
            uint64_t head = at.head;
            s = measure(a, c, t, d, head, e);
            any |= s == BRG_OK;
            if (s == BRG_OK) last = head;
        } else if (s == BRG_OK && at.complete)
            return BRG_OK;
        /* A hub that restarts is waited for; a version that was just dropped has a successor. */
        if (s != BRG_OK && s != BRG_E_NET && s != BRG_E_MISSING) return s;
        tries = s == BRG_OK ? 0 : tries + 1;
        if (tries > HUB_TRIES) return s;
    }
}

static enum brg_status watch_run(const struct eval_args *a, struct trainer **t, struct dataset **d,
                                 struct err *e) {
    struct model_config c;
    char path[OS_PATH_MAX];
    if (strlen(a->dir) >= sizeof path - 64)
        return err_set(e, BRG_E_USAGE, "%.100s...: the path is too long", a->dir);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    TRY(model_config_load(os_path(path, a->dir, "model.json"), &c, e));
    TRY(data_open(a->data, false, d, e));
    struct trainer_options o = {
        .model = &c, .seq_len = data_seq_len(*d), .batch_max = a->batch, .threads = a->threads};
    TRY(trainer_create(&o, t, e));
    return watch(a, &c, *t, *d, e);
}

static enum brg_status evaluate(struct eval_args *a, struct trainer **t, struct dataset **d,
                                struct err *e) {
    struct model_source s = {0};
    struct model_config c;
    struct eval_result r;
    AUTO_FREE int32_t *ids = NULL;
    uint32_t seq_len = 0;
    uint64_t rows = 0;
    TRY(cli_model_source(a->dir, a->version, &s, e));
    if (a->record && !s.run)
        return err_set(e, BRG_E_USAGE, "--record: %s is no run directory", a->dir);
    TRY(model_config_load(s.config, &c, e));
    if (a->ids) {
        TRY(read_ids(a, &c, &seq_len, &ids, &rows, e));
        if (a->batch > rows) a->batch = (uint32_t)rows;
    } else {
        TRY(data_open(a->data, false, d, e));
        seq_len = data_seq_len(*d);
    }
    TRY(load(a, &s, &c, seq_len, t, e));
    time_ns start = os_now();
    if (a->ids)
        eval_rows(*t, ids, rows, &r);
    else
        TRY(eval_heldout(*t, *d, &r, e));
    if (a->json)
        show_json(&s, &r, (double)(os_now() - start) / 1e9);
    else
        show_text(a, &s, &r);
    (void)fflush(stdout);
    return a->record ? record(&s, &r, e) : BRG_OK;
}

static int fail(const struct err *e) {
    fprintf(stderr, "beringia eval: %s\n", e->text);
    return (int)e->status;
}

static int usage(const char *what, const char *value) {
    struct err e;
    err_set(&e, BRG_E_USAGE, "%s %.200s; see beringia eval --help", what, value);
    return fail(&e);
}

static bool parse_count(const char *s, uint32_t max, uint32_t *out) {
    uint64_t v;
    if (!parse_u64(s, &v) || v == 0 || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

enum {
    OPT_DATA = 1,
    OPT_IDS,
    OPT_SEQ_LEN,
    OPT_VERSION,
    OPT_BATCH,
    OPT_THREADS,
    OPT_JSON,
    OPT_RECORD,
    OPT_EMA,
    OPT_WATCH,
    OPT_POLL,
    OPT_EVERY,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"data", required_argument, NULL, OPT_DATA},
    {"ids", required_argument, NULL, OPT_IDS},
    {"seq-len", required_argument, NULL, OPT_SEQ_LEN},
    {"version", required_argument, NULL, OPT_VERSION},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"json", no_argument, NULL, OPT_JSON},
    {"record", no_argument, NULL, OPT_RECORD},
    {"ema", no_argument, NULL, OPT_EMA},
    {"watch", no_argument, NULL, OPT_WATCH},
    {"poll", required_argument, NULL, OPT_POLL},
    {"every", required_argument, NULL, OPT_EVERY},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int cmd_eval(int argc, char **argv) {
    struct eval_args a = {.batch = 8, .every = 1, .poll = 2 * NS_PER_S};
    struct trainer *t = NULL;
    struct dataset *d = NULL;
    struct err e = {0};
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case OPT_DATA: a.data = optarg; break;
        case OPT_IDS: a.ids = optarg; break;
        case OPT_VERSION: a.version = optarg; break;
        case OPT_SEQ_LEN:
            if (!parse_count(optarg, SEQ_LEN_MAX, &a.seq_len))
                return usage("--seq-len: no number in 1..1048576:", optarg);
            break;
        case OPT_BATCH:
            if (!parse_count(optarg, 1 << 16, &a.batch))
                return usage("--batch: no number in 1..65536:", optarg);
            break;
        case OPT_THREADS:
            if (!parse_count(optarg, 512, &a.threads))
                return usage("--threads: no number in 1..512:", optarg);
            break;
        case OPT_JSON: a.json = true; break;
        case OPT_RECORD: a.record = true; break;
        case OPT_EVERY:
            if (!parse_count(optarg, 1 << 30, &a.every))
                return usage("--every: no number in 1..1073741824:", optarg);
            break;
        case OPT_EMA: a.ema = true; break;
        case OPT_WATCH: a.watch = true; break;
        case OPT_POLL:
            if (!parse_duration(optarg, &a.poll) || a.poll < 10 * NS_PER_MS)
                return usage("--poll: no time of 10ms or more, such as 2s:", optarg);
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return BRG_OK;
        case ':': return usage("a value is missing after", argv[optind - 1]);
        default: return usage("unknown option", argv[optind - 1]);
        }
    }
    if (optind + 1 != argc) return usage("name one run or model directory", "");
    if (!a.data == !a.ids) return usage("want either --data DIR or --ids FILE", "");
    if (a.seq_len && !a.ids) return usage("--seq-len goes with --ids; a data set has its own", "");
    if (a.record && (!a.data || a.ema))
        return usage("--record goes with --data, and not with --ema", "");
    if (a.watch && (a.ids || a.version || a.ema))
        return usage("--watch measures each version of a run over --data DIR alone", "");
    a.dir = argv[optind];
    enum brg_status s = a.watch ? watch_run(&a, &t, &d, &e) : evaluate(&a, &t, &d, &e);
    trainer_destroy(t);
    if (d) data_close(d);
    return s == BRG_OK ? BRG_OK : fail(&e);
}
