/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_init.c - beringia init: data, model and settings become a run directory. Everything is made in a
 * directory beside it, which takes its name at the end: a run is there completely or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config_os.h"
#include "base/os.h"
#include "cli/cli.h"
#include "data/data.h"
#include "hub/settings.h"
#include "lease/lease.h"
#include "store/store.h"
#include "train/model_os.h"
#include "train/train.h"

static const char HELP[] =
    "beringia init - make a run\n"
    "\n"
    "  beringia init RUN --model MODEL --data DIR [options]\n"
    "  beringia init RUN --weights DIR --data DIR [options]\n"
    "  beringia init RUN --weights-file FILE --data DIR [options]\n"
    "\n"
    "  --model MODEL       config.json of a Qwen3 model, or a name in share/models (tiny, demo)\n"
    "  --data DIR          a data set made by beringia pack; every site needs the same one\n"
    "  --weights DIR       begin with the weights of this Hugging Face directory (safetensors, one "
    "file\n"
    "                      or shards with their index; F32, BF16 or F16); without --model its\n"
    "                      config.json is the model\n"
    "  --weights-file FILE begin with this safetensors file of F32 tensors; without --model it is "
    "all\n"
    "                      that is known of the model: for a trainer of your own (beringia.h)\n"
    "  --seed N            begin with random weights of this seed (default 1)\n"
    "  --config FILE       settings as YAML; the made RUN/run.yaml lists all keys\n"
    "  --set KEY=VALUE     one setting, for example outer.steps=100; may come often\n"
    "  --store URL         keep the journal in PostgreSQL: "
    "postgresql://USER@HOST/DATABASE?schema=NAME"
    "\n"
    "                      (no password in it: PGPASSFILE; docs/store.md) instead of "
    "RUN/journal.db\n"
    "\n"
    "RUN must be absent or empty. Edit RUN/run.yaml before beringia hub RUN, not the data or "
    "model.\n";

enum { SETS_MAX = 128 };
struct init {
    const char *run, *model, *data, *weights, *weights_file, *config, *store;
    const char *sets[SETS_MAX];
    size_t sets_count;
    uint64_t seed;
    char dir[OS_PATH_MAX]; /* where it is made */
    struct dataset *dataset;
    struct config *settings_text;
    struct model_config m; /* with --model */
    struct tensors table;  /* names and shapes, in the order of the weights vector */
    struct run_facts facts;
    struct run_settings settings;
    struct buf model_json;
    struct hash checkpoint, theta;
    uint64_t bytes;
};

/* ---- Model and data ---------------------------------------------------------------------------------- */

static enum brg_status check_fit(const struct init *x, const char *path, struct err *e) {
    uint32_t vocab = data_vocab(x->dataset), seq_len = data_seq_len(x->dataset);
    if (x->m.vocab_size < vocab || x->m.vocab_size - vocab >= 1024)
        return err_set(e, BRG_E_TOKENIZER,
                       "%s: vocab_size is %u, the data's tokenizer has %u ids; set "
                       "vocab_size to %u (up to 1023 more, as padding), or pack with the model's "
                       "tokenizer",
                       path, x->m.vocab_size, vocab, vocab);
    if (x->m.max_position_embeddings < seq_len)
        return err_set(e, BRG_E_MODEL,
                       "%s: max_position_embeddings is %u, the data has sequences of %u; "
                       "pack with a smaller --seq-len",
                       path, x->m.max_position_embeddings, seq_len);
    return BRG_OK;
}

/* Weights know tokens by their numbers: those of the data must be the same. A directory without a
 * tokenizer, and data of plain bytes, say nothing. */
static enum brg_status check_tokenizer(const struct init *x, struct err *e) {
    char path[OS_PATH_MAX];
    struct tokenizer *own = NULL;
    os_path(path, x->weights, "tokenizer.json");
    if (!os_exists(path) || strcmp(tokenizer_kind(data_tokenizer(x->dataset)), "bytes") == 0)
        return BRG_OK;
    TRY(tokenizer_load(path, &own, e));
    struct hash have = tokenizer_hash(own), want = data_tokenizer_hash(x->dataset);
    tokenizer_free(own);
    if (hash_equal(&have, &want)) return BRG_OK;
    return err_set(e, BRG_E_TOKENIZER,
                   "%s: is not the tokenizer that %s was packed with; pack the data with it", path,
                   x->data);
}

static enum brg_status load_model(struct init *x, struct err *e) {
    char path[OS_PATH_MAX];
    if (x->model != NULL) {
        TRY(model_config_load(cli_model_path(x->model, path), &x->m, e));
    } else {
        os_path(path, x->weights, "config.json");
    }
    if (x->weights != NULL) TRY(model_load_dir(x->weights, &x->m, x->model != NULL, e));
    TRY(check_fit(x, path, e));
    if (x->weights != NULL) TRY(check_tokenizer(x, e));
    model_config_json(&x->m, &x->model_json);
    model_tensors(&x->m, &x->table);
    x->facts.vocab_size = x->m.vocab_size;
    return BRG_OK;
}

/* A trainer of somebody's own: what the model is, is between the sites. The run needs its tensors. */
static enum brg_status load_table(struct init *x, struct err *e) {
    struct tensors have;
    memset(&have, 0, sizeof have);
    TRY(tensors_read(x->weights_file, &have, e));
    enum brg_status s = BRG_OK;
    for (size_t i = 0; s == BRG_OK && i < have.count; i++) {
        const struct tensor *t = &have.v[i];
        if (t->type != TENSOR_F32 || t->dims == 0 || t->elements == 0)
            s = err_set(e, BRG_E_MODEL,
                        "%s: tensor %s: want F32 and at least one element; convert it",
                        x->weights_file, t->name);
        else
            tensors_add(&x->table, t->name, TENSOR_F32, t->dims, t->shape);
    }
    if (s == BRG_OK && have.count == 0)
        s = err_set(e, BRG_E_MODEL, "%s: has no tensor", x->weights_file);
    tensors_fini(&have);
    buf_put(&x->model_json, "{}", 2);
    x->facts.vocab_size = data_vocab(x->dataset);
    return s;
}

static enum brg_status load_inputs(struct init *x, struct err *e) {
    TRY(data_open(x->data, true, &x->dataset, e));
    if (data_samples(x->dataset) == 0)
        return err_set(e, BRG_E_MANIFEST, "%s: has no training sample; pack more text", x->data);
    buf_init(&x->model_json, sizeof((struct wire_run *)0)->model_json - 1);
    TRY(x->model != NULL || x->weights != NULL ? load_model(x, e) : load_table(x, e));
    CHECK(!x->model_json.overflow);
    x->facts.tensors = tensors_hash(&x->table);
    x->facts.matrix_side = muon_side(&x->table);
    for (size_t i = 0; i < x->table.count; i++) x->facts.parameters += x->table.v[i].elements;
    os_random(x->facts.run.v, ID_BYTES);
    x->facts.fingerprint = data_fingerprint(x->dataset);
    x->facts.positions = data_samples(x->dataset);
    x->facts.order_seed = data_order_seed(x->dataset);
    x->facts.seq_len = data_seq_len(x->dataset);
    return BRG_OK;
}

static enum brg_status load_settings(struct init *x, struct err *e) {
    x->settings_text = config_create();
    run_settings_declare(x->settings_text);
    if (x->config != NULL) TRY(config_read_file(x->settings_text, x->config, e));
    for (size_t i = 0; i < x->sets_count; i++) TRY(config_set(x->settings_text, x->sets[i], e));
    TRY(config_finish(x->settings_text, e));
    return run_settings_take(x->settings_text, &x->facts, &x->settings, e);
}

/* ---- Version 0 ------------------------------------------------------------------------------------------ */
static enum brg_status write_version(struct init *x, const float *theta, const char *path,
                                     struct err *e) {
    enum { CHUNK = 65536 };
    struct buf ledger_bytes;
    struct checkpoint_writer *w = NULL;
    struct ledger *ledger = ledger_create(x->facts.positions, x->settings.hub.epochs);
    struct buf text;
    AUTO_FREE struct checkpoint_about *about = mem_alloc(1, sizeof *about);
    buf_init(&ledger_bytes, 4096);
    buf_init(&text, CHECKPOINT_SETTINGS_MAX - 1);
    run_facts_encode(&x->facts, &text);
    (void)snprintf(about->facts, sizeof about->facts, "%s", buf_cstr(&text));
    buf_reset(&text);
    config_print(x->settings_text, &text);
    CHECK(!text.overflow);
    (void)snprintf(about->settings, sizeof about->settings, "%s", buf_cstr(&text));
    buf_fini(&text);
    ledger_checkpoint_encode(ledger, 0, false, &ledger_bytes);
    ledger_destroy(ledger);
    struct checkpoint_head head = {.table = &x->table,
                                   .model_json = buf_cstr(&x->model_json),
                                   .run = x->facts.run,
                                   .ledger = ledger_bytes.data,
                                   .ledger_bytes = ledger_bytes.bytes_count,
                                   .about = about};
    AUTO_FREE float *zero = mem_alloc(CHUNK, sizeof *zero);
    uint64_t count = x->facts.parameters;
    enum brg_status s = checkpoint_writer_open(path, &head, &w, e);
    bool open = s == BRG_OK;
    for (uint64_t at = 0; s == BRG_OK && at < count; at += CHUNK) {
        size_t n = count - at < CHUNK ? (size_t)(count - at) : CHUNK;
        s = checkpoint_write_theta(w, theta + at, n, e);
        if (s == BRG_OK) s = checkpoint_write_m(w, zero, n, e);
    }
    if (s == BRG_OK)
        s = checkpoint_writer_finish(w, &x->checkpoint, &x->bytes, &x->theta, e);
    else if (open)
        checkpoint_writer_abort(w);
    buf_fini(&ledger_bytes);
    return s;
}

/* The tensors of --weights-file, in its order: the one that load_table took. */
static enum brg_status read_weights(const struct init *x, float *theta, struct err *e) {
    struct tensors have;
    memset(&have, 0, sizeof have);
    AUTO_CLOSE int fd = open(x->weights_file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "opening", x->weights_file);
    enum brg_status s = tensors_read(x->weights_file, &have, e);
    for (size_t i = 0; s == BRG_OK && i < have.count; i++) {
        s = os_pread_all(fd, theta, have.v[i].bytes, have.v[i].offset, x->weights_file, e);
        theta += have.v[i].elements;
    }
    tensors_fini(&have);
    return s;
}

static enum brg_status start_weights(struct init *x, float *theta, struct err *e) {
    if (x->weights != NULL) return model_load_weights(x->weights, &x->m, theta, e);
    if (x->model == NULL) return read_weights(x, theta, e);
    if (x->weights_file != NULL) return model_load_weights(x->weights_file, &x->m, theta, e);
    model_init(&x->m, x->seed, theta);
    return BRG_OK;
}

static enum brg_status make_version(struct init *x, struct err *e) {
    char path[OS_PATH_MAX];
    struct blobs *blobs = NULL;
    AUTO_FREE float *theta = try_mem_alloc(x->facts.parameters, sizeof *theta);
    if (theta == NULL)
        return err_set(e, BRG_E_MEMORY,
                       "%llu parameters do not fit into memory here; make the run on a "
                       "larger machine, the hub itself needs little",
                       (unsigned long long)x->facts.parameters);
    TRY(start_weights(x, theta, e));
    TRY(blobs_open(x->dir, &blobs, e));
    enum brg_status s = write_version(x, theta, os_path(path, x->dir, "incoming/version-0.tmp"), e);
    if (s == BRG_OK) s = blobs_adopt(blobs, path, &x->checkpoint, e);
    blobs_close(blobs);
    return s;
}

/* The opening record, as the machine writes it. */
static enum brg_status make_journal(struct init *x, struct err *e) {
    char path[OS_PATH_MAX];
    struct journal *j = NULL;
    struct hub_out out;
    struct hub_cmd cmd;
    memset(&cmd, 0, sizeof cmd);
    hub_out_init(&out);
    struct hub *h = hub_create(&x->settings.hub, x->seed);
    cmd.kind = HUB_CMD_INIT;
    cmd.wall = os_wall();
    cmd.u.init.checkpoint = x->checkpoint;
    cmd.u.init.theta = x->theta;
    cmd.u.init.bytes = x->bytes;
    hub_step(h, os_now(), &cmd, &out);
    enum brg_status s = x->store != NULL
                            ? journal_make(x->store, &j, e)
                            : journal_open(os_path(path, x->dir, "journal.db"), true, &j, e);
    struct reader r = reader_of(out.records.data, out.records.bytes_count);
    for (uint32_t i = 0; s == BRG_OK && i < out.records_count; i++) {
        struct record rec = {.seq = i + 1U, .kind = get_u16(&r)};
        rec.bytes = get_u32(&r);
        rec.body = get_bytes(&r, rec.bytes);
        CHECK(r.ok);
        s = journal_append(j, &rec, 1, e);
    }
    journal_close(j);
    hub_destroy(h);
    hub_out_fini(&out);
    return s;
}

/* ---- Files -------------------------------------------------------------------------------------------- */
static enum brg_status copy_file(const struct init *x, const char *name, bool must, struct err *e) {
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, (size_t)256 << 20);
    os_path(from, x->data, "%s", name);
    if (!must && !os_exists(from)) return BRG_OK;
    TRY(os_read_file(from, b.bytes_max, &b, e));
    return os_write_file_atomic(os_path(to, x->dir, "%s", name), b.data, b.bytes_count, e);
}

static enum brg_status make_files(struct init *x, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 20);
    config_print(x->settings_text, &b);
    TRY(os_write_file_atomic(os_path(path, x->dir, "run.yaml"), b.data, b.bytes_count, e));
    TRY(os_write_file_atomic(os_path(path, x->dir, "model.json"), x->model_json.data,
                             x->model_json.bytes_count, e));
    TRY(copy_file(x, "manifest.json", true, e));
    TRY(copy_file(x, "tokenizer.json", false, e));
    TRY(os_mkdirs(os_path(path, x->dir, "versions"), e));
    if (x->store != NULL) TRY(journal_where_set(x->dir, x->store, e));
    buf_reset(&b);
    run_facts_encode(&x->facts, &b);
    return os_write_file_atomic(os_path(path, x->dir, "run.json"), b.data, b.bytes_count, e);
}

static enum brg_status make_run(struct init *x, struct err *e) {
    TRY(load_inputs(x, e));
    TRY(load_settings(x, e));
    /* rename() takes the place of an empty directory, and of nothing else: that is the check. */
    if (os_exists(x->run) && rmdir(x->run) != 0)
        return err_set(e, BRG_E_EXISTS, "%s: is there and not empty; choose another directory",
                       x->run);
    if ((size_t)snprintf(x->dir, sizeof x->dir, "%s.partial-%ld", x->run, (long)getpid()) >=
        sizeof x->dir - 256)
        return err_set(e, BRG_E_USAGE, "RUN: the path is too long");
    TRY(os_mkdirs(x->dir, e));
    enum brg_status s = make_version(x, e);
    if (s == BRG_OK) s = make_journal(x, e);
    if (s == BRG_OK) s = make_files(x, e);
    if (s == BRG_OK && x->store != NULL) s = journal_publish(NULL, x->store, e);
    if (s == BRG_OK && rename(x->dir, x->run) != 0)
        s = err_set(e, errno == ENOTEMPTY || errno == EEXIST ? BRG_E_EXISTS : BRG_E_IO, "%s: %s",
                    x->run, strerror(errno));
    if (s != BRG_OK) cli_remove_tree(x->dir);
    return s;
}

static void tell(const struct init *x) {
    char hex[HASH_HEX_BYTES], run[ID_HEX_BYTES];
    const struct hub_settings *s = &x->settings.hub;
    id_hex(&x->facts.run, run);
    hash_hex(&x->theta, hex);
    printf("run        %s  %s\n", x->run, run);
    printf("model      %llu parameters, vocabulary %u\n", (unsigned long long)x->facts.parameters,
           x->facts.vocab_size);
    printf("data       %llu samples of %u tokens, %u epoch(s)\n",
           (unsigned long long)x->facts.positions, x->facts.seq_len, s->epochs);
    printf("rounds     H %llu, eta %g, mu %g, codec %s\n", (unsigned long long)s->steps,
           s->rule.eta, s->rule.mu, codec_name(s->codec));
    if (s->rule.kind != OUTER_NESTEROV || s->rule.radial || s->rule.ema > 0 || s->rule.last_mean)
        printf("outer      %s%s%s%s\n", outer_kind_name(s->rule.kind),
               s->rule.radial ? ", radial mean" : "",
               s->rule.ema > 0 ? ", a mean of the versions" : "",
               s->rule.last_mean ? ", the last round a plain mean" : "");
    printf("version 0  theta %s\n", hex);
    printf("next       beringia hub %s\n", x->run);
}

/* ---- The command line ---------------------------------------------------------------------------------- */
enum {
    OPT_MODEL = 1,
    OPT_DATA,
    OPT_WEIGHTS,
    OPT_WEIGHTS_FILE,
    OPT_SEED,
    OPT_CONFIG,
    OPT_SET,
    OPT_STORE,
    OPT_HELP
};
static const struct option options[] = {
    {"model", 1, NULL, OPT_MODEL},     {"data", 1, NULL, OPT_DATA},
    {"weights", 1, NULL, OPT_WEIGHTS}, {"weights-file", 1, NULL, OPT_WEIGHTS_FILE},
    {"seed", 1, NULL, OPT_SEED},       {"config", 1, NULL, OPT_CONFIG},
    {"set", 1, NULL, OPT_SET},         {"store", 1, NULL, OPT_STORE},
    {"help", 0, NULL, OPT_HELP},       {NULL, 0, NULL, 0}};

/* 0: go on; else an exit status + 1. */
static int read_options(int argc, char **argv, struct init *x) {
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_MODEL: x->model = optarg; break;
        case OPT_DATA: x->data = optarg; break;
        case OPT_WEIGHTS: x->weights = optarg; break;
        case OPT_WEIGHTS_FILE: x->weights_file = optarg; break;
        case OPT_CONFIG: x->config = optarg; break;
        case OPT_STORE: x->store = optarg; break;
        case OPT_SET:
            if (x->sets_count == SETS_MAX) return cli_usage("init", "too many --set", "") + 1;
            x->sets[x->sets_count++] = optarg;
            break;
        case OPT_SEED:
            if (!parse_u64(optarg, &x->seed))
                return cli_usage("init", "--seed wants a number, not", optarg) + 1;
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 1;
        default: return cli_bad_option("init", argv) + 1;
        }
    }
    if (optind + 1 != argc) return cli_usage("init", "want one RUN directory", "") + 1;
    if (x->model == NULL && x->weights == NULL && x->weights_file == NULL)
        return cli_usage("init", "--model (or --weights, --weights-file) is missing", "") + 1;
    if (x->weights_file != NULL && x->weights != NULL)
        return cli_usage("init", "--weights and --weights-file exclude each other", "") + 1;
    if (x->data == NULL) return cli_usage("init", "--data is missing", "") + 1;
    if (x->store != NULL && !journal_name_is_url(x->store)) /* not repeated: it may have a secret */
        return cli_usage("init", "--store wants postgresql://USER@HOST/DATABASE?schema=NAME", "") +
               1;
    x->run = argv[optind];
    size_t n = strlen(x->run);
    while (n > 1 && argv[optind][n - 1] == '/')
        argv[optind][--n] = '\0'; /* "run/" and "run" are one */
    return 0;
}

int cmd_init(int argc, char **argv) {
    struct err e = {0};
    struct init *x = mem_alloc(1, sizeof *x);
    x->seed = 1;
    int done = read_options(argc, argv, x);
    int status = done - 1;
    if (done == 0) {
        enum brg_status s = make_run(x, &e);
        status = s == BRG_OK ? 0 : cli_fail("init", &e);
        if (s == BRG_OK) tell(x);
    }
    if (x->dataset != NULL) data_close(x->dataset);
    if (x->settings_text != NULL) config_destroy(x->settings_text);
    tensors_fini(&x->table);
    buf_fini(&x->model_json);
    mem_free(x);
    return status;
}
