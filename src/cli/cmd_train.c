/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_train.c - beringia train --central: one trainer, no hub, no sites. It is the bar that a run over
 * several sites is held to, so it takes the same data in the same order (positions 0, 1, 2 ... of epoch
 * 0, then of epoch 1) and the same schedule by tokens.
 *
 * Under mpirun every rank runs this whole file on its part of each batch's rows; rank 0 alone prints and
 * writes. What only one rank can know (a signal, the clock, a failure) is agreed upon once a step, so
 * that all of them save, stop or fail after the same step. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os.h"
#include "cli/cli.h"
#include "outer/outer.h"
#include "train/dp.h"
#include "train/eval.h"
#include "train/export.h"
#include "train/model_os.h"
#include "train/save.h"

static const char HELP[] =
    "beringia train - train one model on this machine, without a hub\n"
    "\n"
    "  beringia train --central --data DIR --model config.json|--weights DIR --out DIR [options]\n"
    "\n"
    "  --data DIR           data set (beringia pack)\n"
    "  --model MODEL        config.json of a Qwen3 model, or a name in share/models (tiny, demo)\n"
    "  --weights DIR        begin with the weights of this Hugging Face directory; without "
    "--model\n"
    "                       its config.json is the model\n"
    "  --out DIR            gets config.json, model.safetensors, tokenizer.json\n"
    "  --tokens N           tokens to train on; k, M, G are powers of 1024\n"
    "  --epochs X           or passes over the data (default 1)\n"
    "  --batch N            samples a step (default 8)\n"
    "  --positions FILE     instead of the order of the data: a line a step with its positions, at "
    "most\n"
    "                       --batch of them, epoch * samples + position; one process, from the "
    "start\n"
    "  --micro-batch N      samples in memory at once (default: the batch)\n"
    "  --recompute          keep less in memory: run each layer again in backward; the same bits\n"
    "  --precision P        of the operands of matrix products: f32 (default) or bf16; weights, "
    "sums\n"
    "                       and the optimizer are f32 always\n"
    "  --z-loss X           adds X * (log sum exp of the logits)^2 to each loss (default 0)\n"
    "  --lr X               peak learning rate (default 1e-3)\n"
    "  --lr-min-ratio X     floor as a share of the peak (default 0.05)\n"
    "  --schedule S         cosine (default), wsd or constant\n"
    "  --warmup-tokens N    (default 5% of all tokens)\n"
    "  --decay-share X      wsd: last share of tokens that decays (default 0.2)\n"
    "  --beta2 X, --weight-decay X, --clip X   AdamW (default 0.95, 0.1, 1)\n"
    "  --optimizer O        adamw (default), or muon: the layers' matrices move along their\n"
    "                       orthogonalised momentum, all else stays with AdamW\n"
    "  --muon-momentum X, --muon-lr-ratio X   Muon's momentum; its rate as a multiple of --lr\n"
    "                       (default 0.95, 1)\n"
    "  --seed N             of the first weights (default 1)\n"
    "  --threads N          worker threads (default: the processors of this process)\n"
    "  --log FILE           a line a step: "
    "step,tokens,loss,lr,grad_norm,tokens_per_s,heldout_loss\n"
    "  --eval-every N       held-out loss every N steps; at the end always\n"
    "  --print-every N      a progress line every N steps (default 10)\n"
    "  --checkpoint-every T work that a kill may cost: 30s, 5m (default), 1h\n"
    "  --fresh              begin anew though DIR holds a checkpoint\n"
    "  --mpi U              auto (default), yes, no: share the batch over the ranks of an MPI job\n"
    "  --rank-timeout T     longest wait for another rank within a step (default 10m)\n"
    "\n"
    "SIGTERM, SIGUSR1 and SIGINT save after the step under way and end with status 23. Started "
    "again\n"
    "with the same options it goes on, after kill -9 too, and ends with the same bits as without "
    "any\n"
    "interruption. With mpirun each rank takes a part of the batch; see docs/mpi.md.\n"
    "\n"
    "examples\n"
    "  beringia train --central --data data/bytes --model config.json --out out/\n"
    "  beringia train --central --data data/bpe --model config.json --out out/ --tokens 20M \\\n"
    "      --batch 16 --lr 2e-3 --schedule wsd --log losses.csv --eval-every 200\n"
    "  mpirun -n 16 beringia train --central --data data/bpe --model config.json --out out/ "
    "--batch 256\n";

struct train_args {
    const char *data, *model, *weights, *out, *log;
    bool central, fresh;
    enum dp_use mpi;
    time_ns checkpoint_every, rank_timeout;
    uint64_t tokens, seed;
    double epochs, lr, lr_min_ratio, warmup, decay_share;
    uint32_t batch, micro, threads, eval_every, print_every;
    enum schedule_kind schedule;
    struct adamw adamw;
    enum optimizer optimizer;
    struct muon muon;
    enum precision precision;
    bool recompute;
    double z_loss;
    const char *positions; /* NULL: in their order */
};

struct central { /* a training under way */
    const struct train_args *args;
    struct dp_net *net; /* NULL: alone */
    uint32_t rank;
    struct dataset *data;
    struct model_config model;
    struct trainer *trainer;
    struct schedule schedule;
    char settings[SAVE_SETTINGS_MAX], checkpoint[OS_PATH_MAX];
    time_ns saved; /* when */
    struct order order;
    int32_t *tokens; /* [this rank's rows][T+1] */
    FILE *log;
    uint64_t samples, done, step; /* samples in all and so far */
    uint64_t *positions;          /* [samples], where they are given; */
    uint64_t *ends;               /* [steps]: samples up to the end of each step */
    time_ns since;                /* of the last progress line */
    uint64_t since_done;
};

static enum brg_status plan_run(struct central *r, struct err *e) {
    const struct train_args *a = r->args;
    uint64_t samples = data_samples(r->data), T = data_seq_len(r->data);
    if (samples == 0)
        return err_set(e, BRG_E_MANIFEST, "%s holds no training sample: pack more text", a->data);
    if (data_vocab(r->data) > r->model.vocab_size)
        return err_set(
            e, BRG_E_MODEL,
            "%s: field vocab_size (%u) is below the data set's vocabulary (%u): raise it",
            a->model ? a->model : a->weights, r->model.vocab_size, data_vocab(r->data));
    double wish = a->tokens ? (double)a->tokens / (double)T : a->epochs * (double)samples;
    if (!(wish >= 1) || wish > 1e15)
        return err_set(e, BRG_E_USAGE,
                       "%.3g samples of %llu tokens to train on: ask for more --tokens "
                       "or --epochs, within 1e15",
                       wish, (unsigned long long)T);
    r->samples = (uint64_t)wish;
    double total = (double)r->samples * (double)T;
    r->schedule = (struct schedule){.kind = a->schedule,
                                    .lr = a->lr,
                                    .lr_min_ratio = a->lr_min_ratio,
                                    .tokens_total = total,
                                    .decay_share = a->decay_share,
                                    .tokens_warmup = a->warmup >= 0 ? a->warmup : 0.05 * total};
    return BRG_OK;
}

/* All that must be equal for a checkpoint to be of use. */
static void write_settings(struct central *r) {
    const struct train_args *a = r->args;
    char hex[HASH_HEX_BYTES];
    struct hash f = data_fingerprint(r->data);
    AUTO_BUF struct buf model = {.bytes_max = 1 << 20}, text = {.bytes_max = SAVE_SETTINGS_MAX - 1};
    model_config_json(&r->model, &model);
    struct hash m = hash_of(model.data, model.bytes_count);
    hash_hex(&f, hex);
    buf_printf(&text, "data=%s\n", hex);
    hash_hex(&m, hex);
    buf_printf(&text, "model=%s\n", hex);
    buf_printf(&text, "weights=%.1024s\nbatch=%u\nsamples=%llu\nseed=%llu\n",
               a->weights ? a->weights : "", a->batch, (unsigned long long)r->samples,
               (unsigned long long)a->seed);
    /* Within, not behind: then the line that differs is told, and not that there is one more. */
    if (a->optimizer == OPTIMIZER_MUON)
        buf_printf(&text, "optimizer=muon\nmuon_momentum=%.17g\nmuon_lr_ratio=%.17g\n",
                   a->muon.momentum, a->muon.lr_ratio);
    buf_printf(&text, "lr=%.17g\nlr_min_ratio=%.17g\nschedule=%d\nwarmup_tokens=%.17g\n", a->lr,
               a->lr_min_ratio, (int)a->schedule, r->schedule.tokens_warmup);
    buf_printf(&text, "decay_share=%.17g\nbeta2=%.17g\nweight_decay=%.17g\nclip=%.17g\n",
               a->decay_share, a->adamw.beta2, a->adamw.weight_decay, a->adamw.clip);
    if (a->precision != PRECISION_F32 || a->z_loss > 0)
        buf_printf(&text, "precision=%s\nz_loss=%.17g\n", precision_name(a->precision), a->z_loss);
    snprintf(r->settings, sizeof r->settings, "%s", buf_cstr(&text));
}

/* Lines of steps that are to be done again are cut off. */
static enum brg_status log_cut(struct central *r, struct err *e) {
    AUTO_FREE char *line = mem_alloc(4096, 1);
    long keep = 0;
    while (fgets(line, 4096, r->log)) {
        char *comma = strchr(line, ',');
        uint64_t step = 0;
        if (comma) *comma = '\0';
        if (comma && keep > 0 && (!parse_u64(line, &step) || step > r->step)) break;
        keep = ftell(r->log);
    }
    if (fflush(r->log) != 0 || ftruncate(fileno(r->log), keep) != 0 ||
        fseek(r->log, 0, SEEK_END) != 0)
        return os_errno(e, errno, "cut", r->args->log);
    return BRG_OK;
}

static enum brg_status open_log(struct central *r, struct err *e) {
    if (!r->args->log || r->rank > 0) return BRG_OK;
    if (r->step > 0 && os_exists(r->args->log)) {
        r->log = fopen(r->args->log, "r+e");
        return r->log ? log_cut(r, e) : os_errno(e, errno, "open", r->args->log);
    }
    r->log = fopen(r->args->log, "we");
    if (!r->log) return os_errno(e, errno, "create", r->args->log);
    fprintf(r->log, "step,tokens,loss,lr,grad_norm,tokens_per_s,heldout_loss\n");
    return BRG_OK;
}

/* What each rank does by itself: what fails on one is told to all by the caller. */
static enum brg_status build(struct central *r, struct err *e) {
    const struct train_args *a = r->args;
    uint32_t ranks = dp_ranks(r->net), rows = (a->batch + ranks - 1) / ranks;
    char path[OS_PATH_MAX];
    if (a->model) TRY(model_config_load(cli_model_path(a->model, path), &r->model, e));
    if (a->weights) TRY(model_load_dir(a->weights, &r->model, a->model != NULL, e));
    TRY(data_open(a->data, r->rank == 0, &r->data, e));
    TRY(plan_run(r, e));
    write_settings(r);
    struct trainer_options o = {.model = &r->model,
                                .seq_len = data_seq_len(r->data),
                                .batch_max = rows,
                                .micro_batch = a->micro,
                                .threads = a->threads,
                                .precision = a->precision,
                                .recompute = a->recompute,
                                .z_loss = a->z_loss,
                                .muon = a->optimizer == OPTIMIZER_MUON ? &a->muon : NULL,
                                .net = r->net};
    TRY(trainer_create(&o, &r->trainer, e));
    r->tokens = mem_alloc((size_t)rows * (data_seq_len(r->data) + 1), sizeof *r->tokens);
    data_order(r->data, 0, &r->order);
    os_path(r->checkpoint, a->out, "checkpoint.safetensors");
    return r->rank == 0 ? os_mkdirs(a->out, e) : BRG_OK;
}

/* First weights, or those of the checkpoint. */
static enum brg_status restore(struct central *r, struct err *e) {
    struct save_mark mark;
    enum brg_status s = BRG_E_MISSING;
    r->saved = os_now();
    if (!r->args->fresh) s = save_read(r->checkpoint, r->trainer, &mark, r->settings, e);
    if (s == BRG_E_MISSING) {
        if (r->args->weights)
            return model_load_weights(r->args->weights, &r->model, trainer_theta(r->trainer), e);
        model_init(&r->model, r->args->seed, trainer_theta(r->trainer));
        return BRG_OK;
    }
    TRY(s);
    r->done = r->since_done = mark.samples;
    r->step = mark.step;
    return BRG_OK;
}

static char *mutable_text(struct buf *b) {
    buf_u8(b, 0);
    return (char *)b->data;
}

/* Numbers of one step a line. */
static enum brg_status read_positions(struct central *r, struct err *e) {
    const char *path = r->args->positions;
    AUTO_BUF struct buf text = {.bytes_max = 64 << 20};
    TRY(os_read_file(path, text.bytes_max, &text, e));
    size_t n = text.bytes_count / 2 + 2;
    r->positions = mem_alloc(n, sizeof *r->positions);
    r->ends = mem_alloc(n, sizeof *r->ends);
    uint64_t limit = data_samples(r->data) * (UINT64_C(1) << 20), steps = 0;
    r->samples = 0;
    for (char *rest = mutable_text(&text); rest && *rest; steps++) {
        char *more = NULL, *line = strsep(&rest, "\n");
        uint64_t before = r->samples;
        for (char *w = strtok_r(line, " ", &more); w; w = strtok_r(NULL, " ", &more)) {
            if (!parse_u64(w, &r->positions[r->samples]) || r->positions[r->samples] >= limit)
                return err_set(e, BRG_E_CONFIG, "%s: line %llu: \"%.40s\" is no position", path,
                               (unsigned long long)steps + 1, w);
            r->samples++;
        }
        uint64_t rows = r->samples - before;
        if (rows == 0 || rows > r->args->batch)
            return err_set(e, BRG_E_CONFIG, "%s: line %llu: %llu positions, want 1 to --batch %u",
                           path, (unsigned long long)steps + 1, (unsigned long long)rows,
                           r->args->batch);
        r->ends[steps] = r->samples;
    }
    if (steps > 0) return BRG_OK;
    return err_set(e, BRG_E_CONFIG, "%s: no step in it; want a line of positions a step", path);
}

static enum brg_status start(struct central *r, struct err *e) {
    TRY(dp_agree(r->net, build(r, e), e));
    TRY(dp_agree(r->net, restore(r, e), e));
    if (r->args->positions && (r->net || r->done > 0))
        return err_set(e, BRG_E_CONFIG,
                       "--positions wants one process that begins anew: give --fresh");
    if (r->args->positions) TRY(read_positions(r, e));
    TRY(dp_agree(r->net, open_log(r, e), e));
    if (r->rank > 0) return BRG_OK;
    uint32_t T = data_seq_len(r->data), batch = r->args->batch;
    printf("model     %llu parameters, %.1f MFLOP a token\n",
           (unsigned long long)trainer_parameters(r->trainer),
           model_flops_per_token(&r->model, T) / 1e6);
    AUTO_BUF struct buf memory = {.bytes_max = 1 << 12};
    trainer_memory(r->trainer, &memory);
    printf("memory    %s\n", buf_cstr(&memory));
    printf("data      %llu samples of %u tokens; training on %llu (%.3f epochs), %llu steps\n",
           (unsigned long long)data_samples(r->data), T, (unsigned long long)r->samples,
           (double)r->samples / (double)data_samples(r->data),
           (unsigned long long)((r->samples + batch - 1) / batch));
    if (r->net)
        printf("ranks     %u; this one keeps %llu of the optimizer's %llu states\n",
               dp_ranks(r->net), (unsigned long long)trainer_moments(r->trainer),
               (unsigned long long)trainer_parameters(r->trainer));
    if (r->step > 0)
        printf("resumed   after step %llu, from %s\n", (unsigned long long)r->step, r->checkpoint);
    fflush(stdout);
    return BRG_OK;
}

/* This rank's part of the next rows in the order of positions; a new epoch has an order of its own. */
static uint32_t fill_rows(struct central *r, uint32_t rows) {
    uint64_t per_epoch = data_samples(r->data);
    size_t width = (size_t)data_seq_len(r->data) + 1;
    uint32_t from = dp_rows_at(r->net, rows, r->rank), to = dp_rows_at(r->net, rows, r->rank + 1);
    for (uint32_t i = from; i < to; i++) {
        uint64_t position = r->positions ? r->positions[r->done + i] : r->done + i;
        uint32_t epoch = (uint32_t)(position / per_epoch);
        if (epoch != r->order.epoch) data_order(r->data, epoch, &r->order);
        data_sample(r->data, order_sample(&r->order, position % per_epoch),
                    r->tokens + (i - from) * width);
    }
    return to - from;
}

static enum brg_status report(struct central *r, double loss, double lr, double norm, double speed,
                              struct err *e) {
    const struct train_args *a = r->args;
    bool last = r->done == r->samples;
    bool evaluate = a->eval_every && r->step % a->eval_every == 0 && data_heldout_samples(r->data);
    struct eval_result x = {.nll = 0};
    if (evaluate) TRY(eval_heldout(r->trainer, r->data, &x, e));
    if (r->rank > 0) return BRG_OK;
    uint64_t tokens = r->done * data_seq_len(r->data);
    if (r->step == 1 || r->step % a->print_every == 0 || last || evaluate) {
        time_ns now = os_now();
        double recent = (double)((r->done - r->since_done) * data_seq_len(r->data)) /
                        ((double)(now - r->since) / 1e9);
        printf("step %llu  tokens %llu  loss %.4f  lr %.3e  norm %.3f  %.0f tokens/s",
               (unsigned long long)r->step, (unsigned long long)tokens, loss, lr, norm, recent);
        if (evaluate) printf("  held out %.4f (perplexity %.3f)", x.nll, x.perplexity);
        putchar('\n');
        fflush(stdout);
        r->since = os_now();
        r->since_done = r->done;
    }
    if (!r->log) return BRG_OK;
    fprintf(r->log, "%llu,%llu,%.8g,%.8g,%.8g,%.1f,", (unsigned long long)r->step,
            (unsigned long long)tokens, loss, lr, norm, speed);
    if (evaluate) fprintf(r->log, "%.8g", x.nll);
    if (fputc('\n', r->log) == EOF || fflush(r->log) != 0)
        return os_errno(e, errno, "write", a->log);
    return BRG_OK;
}

/* ---- Interruptions --------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked;

static void on_signal(int sig) {
    (void)sig;
    stop_asked = 1;
}

static void signals_install(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    a.sa_flags = (int)SA_RESETHAND; /* the second Ctrl-C ends it at once */
    sigaction(SIGINT, &a, NULL);
}

enum { STOP = 1, SAVE = 2, FAILED = 4 };

/* After a step: saves or stops where any rank has a reason to. */
static enum brg_status step_end(struct central *r, enum brg_status told, struct err *e) {
    uint32_t bits = (stop_asked ? STOP : 0) | (told == BRG_OK ? 0 : FAILED);
    if (r->rank == 0 && os_now() - r->saved >= r->args->checkpoint_every) bits |= SAVE;
    bits = dp_or(r->net, bits);
    if (bits & FAILED) return dp_agree(r->net, told, e);
    if (bits == 0 || r->done == r->samples) return BRG_OK;
    struct save_mark mark = {r->done, r->step};
    TRY(save_write(r->checkpoint, r->trainer, &mark, r->settings, e));
    r->saved = os_now();
    if (!(bits & STOP)) return BRG_OK;
    return err_set(e, BRG_E_DRAINED,
                   "stopped on request after step %llu; %s has it all: start again with the same "
                   "options to go on",
                   (unsigned long long)r->step, r->checkpoint);
}

/* The update has changed nothing (T2): what is there is the last good state, and it is kept. */
static enum brg_status not_finite(struct central *r, uint32_t rows, double loss, struct err *e) {
    struct save_mark mark = {r->done, r->step};
    TRY(save_write(r->checkpoint, r->trainer, &mark, r->settings, e));
    return err_set(
        e, BRG_E_NONFINITE,
        "step %llu, positions %llu to %llu: the loss (%g) or its gradient is not finite. "
        "%s holds the state after step %llu. Lower --lr and begin with --fresh, or look "
        "at these samples",
        (unsigned long long)(r->step + 1), (unsigned long long)r->done,
        (unsigned long long)(r->done + rows - 1), loss, r->checkpoint, (unsigned long long)r->step);
}

static enum brg_status train(struct central *r, struct err *e) {
    const struct train_args *a = r->args;
    uint32_t T = data_seq_len(r->data);
    r->since = os_now();
    while (r->done < r->samples) {
        uint64_t left = r->samples - r->done;
        uint32_t rows = left < a->batch ? (uint32_t)left : a->batch;
        if (r->ends) rows = (uint32_t)(r->ends[r->step] - r->done);
        time_ns before = os_now();
        double norm;
        uint32_t own = fill_rows(r, rows);
        double loss = trainer_gradient_part(r->trainer, r->tokens, own, rows);
        /* the rate at the end of this step, so that the first step of a warm-up moves */
        double lr = schedule_lr(&r->schedule, (double)(r->done + rows) * T);
        enum brg_status s = trainer_update(r->trainer, &a->adamw, lr, &norm, e);
        if (s == BRG_E_NONFINITE) return not_finite(r, rows, loss, e);
        TRY(s);
        r->done += rows;
        r->step++;
        FAULT("train.step");
        double speed = (double)rows * T / ((double)(os_now() - before) / 1e9);
        TRY(step_end(r, report(r, loss, lr, norm, speed, e), e));
    }
    return BRG_OK;
}

/* That of plain bytes has no file in the data set; other programs want one. */
static enum brg_status save_tokenizer(const struct central *r, struct err *e) {
    char path[OS_PATH_MAX];
    const struct tokenizer *t = data_tokenizer(r->data);
    os_path(path, r->args->out, "tokenizer.json");
    if (strcmp(tokenizer_kind(t), "bytes") != 0) return tokenizer_save(t, path, e);
    json_t *o = export_bytes_tokenizer();
    char *text = json_dumps(o, JSON_INDENT(2));
    CHECK(text != NULL);
    enum brg_status s = os_write_file_atomic(path, text, strlen(text), e);
    free(text);
    json_decref(o);
    return s;
}

static enum brg_status save_model(const struct central *r, struct err *e) {
    TRY(model_save(r->args->out, &r->model, trainer_theta(r->trainer), e));
    FAULT("train.saved");
    TRY(save_tokenizer(r, e));
    /* A kill before this line does the last steps again, with the same result. */
    if (unlink(r->checkpoint) != 0 && errno != ENOENT)
        return os_errno(e, errno, "remove", r->checkpoint);
    printf("saved     %s\n", r->args->out);
    return BRG_OK;
}

static enum brg_status finish(struct central *r, struct err *e) {
    struct eval_result x;
    TRY(dp_agree(r->net, r->rank == 0 ? save_model(r, e) : BRG_OK, e));
    if (data_heldout_samples(r->data) > 0) TRY(eval_heldout(r->trainer, r->data, &x, e));
    if (r->rank > 0) return BRG_OK;
    if (data_heldout_samples(r->data) == 0)
        printf("held out  nothing: the data set has no held-out sample\n");
    else
        printf("held out  %llu tokens, loss %.6f, perplexity %.4f, bits per byte %.4f\n",
               (unsigned long long)x.tokens, x.nll, x.perplexity, x.bits_per_byte);
    return BRG_OK;
}

static int fail(const struct err *e) {
    fprintf(stderr, "beringia train: %s\n", e->text);
    return (int)e->status;
}

static enum brg_status run_central(const struct train_args *a, struct err *e) {
    struct central r = {.args = a};
    if (dp_open(a->mpi, a->rank_timeout, &r.net, e) != BRG_OK) return (enum brg_status)fail(e);
    r.rank = dp_rank(r.net);
    signals_install(); /* after MPI, which may have handlers of its own */
    enum brg_status s = start(&r, e);
    if (s == BRG_OK) s = train(&r, e);
    if (s == BRG_OK) s = finish(&r, e);
    if (r.log && fclose(r.log) != 0 && s == BRG_OK) s = os_errno(e, errno, "write", a->log);
    if (s != BRG_OK && r.rank == 0) fail(e); /* once for all ranks */
    mem_free(r.tokens);
    mem_free(r.positions);
    mem_free(r.ends);
    trainer_destroy(r.trainer);
    if (r.data) data_close(r.data);
    dp_close(r.net);
    return s;
}

static int usage(const char *what, const char *value) {
    struct err e;
    err_set(&e, BRG_E_USAGE, "%s %.200s; see beringia train --help", what, value);
    return fail(&e);
}

enum {
    OPT_CENTRAL = 1,
    OPT_DATA,
    OPT_MODEL,
    OPT_WEIGHTS,
    OPT_OUT,
    OPT_TOKENS,
    OPT_EPOCHS,
    OPT_BATCH,
    OPT_POSITIONS,
    OPT_MICRO,
    OPT_RECOMPUTE,
    OPT_PRECISION,
    OPT_Z_LOSS,
    OPT_LR,
    OPT_LR_MIN,
    OPT_SCHEDULE,
    OPT_WARMUP,
    OPT_DECAY,
    OPT_BETA2,
    OPT_WEIGHT_DECAY,
    OPT_CLIP,
    OPT_OPTIMIZER,
    OPT_MUON_MOMENTUM,
    OPT_MUON_RATIO,
    OPT_SEED,
    OPT_THREADS,
    OPT_LOG,
    OPT_EVAL_EVERY,
    OPT_PRINT_EVERY,
    OPT_CHECKPOINT,
    OPT_FRESH,
    OPT_MPI,
    OPT_RANK_TIMEOUT,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"central", no_argument, NULL, OPT_CENTRAL},
    {"data", required_argument, NULL, OPT_DATA},
    {"model", required_argument, NULL, OPT_MODEL},
    {"weights", required_argument, NULL, OPT_WEIGHTS},
    {"out", required_argument, NULL, OPT_OUT},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"epochs", required_argument, NULL, OPT_EPOCHS},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"positions", required_argument, NULL, OPT_POSITIONS},
    {"micro-batch", required_argument, NULL, OPT_MICRO},
    {"recompute", no_argument, NULL, OPT_RECOMPUTE},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"z-loss", required_argument, NULL, OPT_Z_LOSS},
    {"lr", required_argument, NULL, OPT_LR},
    {"lr-min-ratio", required_argument, NULL, OPT_LR_MIN},
    {"schedule", required_argument, NULL, OPT_SCHEDULE},
    {"warmup-tokens", required_argument, NULL, OPT_WARMUP},
    {"decay-share", required_argument, NULL, OPT_DECAY},
    {"beta2", required_argument, NULL, OPT_BETA2},
    {"weight-decay", required_argument, NULL, OPT_WEIGHT_DECAY},
    {"clip", required_argument, NULL, OPT_CLIP},
    {"optimizer", required_argument, NULL, OPT_OPTIMIZER},
    {"muon-momentum", required_argument, NULL, OPT_MUON_MOMENTUM},
    {"muon-lr-ratio", required_argument, NULL, OPT_MUON_RATIO},
    {"seed", required_argument, NULL, OPT_SEED},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"log", required_argument, NULL, OPT_LOG},
    {"eval-every", required_argument, NULL, OPT_EVAL_EVERY},
    {"print-every", required_argument, NULL, OPT_PRINT_EVERY},
    {"checkpoint-every", required_argument, NULL, OPT_CHECKPOINT},
    {"fresh", no_argument, NULL, OPT_FRESH},
    {"mpi", required_argument, NULL, OPT_MPI},
    {"rank-timeout", required_argument, NULL, OPT_RANK_TIMEOUT},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool count(const char *s, uint32_t max, uint32_t *out) {
    uint64_t v;
    if (!parse_u64(s, &v) || v == 0 || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

static bool between(const char *s, double low, double high, double *out) {
    double v;
    if (!parse_f64(s, &v) || !(v >= low && v <= high)) return false;
    *out = v;
    return true;
}

static bool schedule_kind(const char *s, enum schedule_kind *out) {
    if (strcmp(s, "cosine") == 0)
        *out = SCHEDULE_COSINE;
    else if (strcmp(s, "wsd") == 0)
        *out = SCHEDULE_WSD;
    else if (strcmp(s, "constant") == 0)
        *out = SCHEDULE_CONSTANT;
    else
        return false;
    return true;
}

/* One option with a value; false where the value is not one. */
static bool take_option(struct train_args *a, int option, const char *value) {
    uint64_t n;
    switch (option) {
    case OPT_DATA: a->data = value; return true;
    case OPT_MODEL: a->model = value; return true;
    case OPT_WEIGHTS: a->weights = value; return true;
    case OPT_OUT: a->out = value; return true;
    case OPT_LOG: a->log = value; return true;
    case OPT_TOKENS: return parse_bytes(value, &a->tokens) && a->tokens > 0;
    case OPT_EPOCHS: return between(value, 1e-9, 1e9, &a->epochs);
    case OPT_POSITIONS: a->positions = value; return true;
    case OPT_BATCH: return count(value, 1 << 20, &a->batch);
    case OPT_MICRO: return count(value, 1 << 20, &a->micro);
    case OPT_PRECISION: return precision_parse(value, &a->precision);
    case OPT_Z_LOSS: return between(value, 0, 1, &a->z_loss);
    case OPT_LR: return between(value, 0, 1e3, &a->lr);
    case OPT_LR_MIN: return between(value, 0, 1, &a->lr_min_ratio);
    case OPT_SCHEDULE: return schedule_kind(value, &a->schedule);
    case OPT_WARMUP:
        if (!parse_bytes(value, &n)) return false;
        a->warmup = (double)n;
        return true;
    case OPT_DECAY: return between(value, 0, 1, &a->decay_share);
    case OPT_BETA2: return between(value, 0, 0.9999999, &a->adamw.beta2);
    case OPT_WEIGHT_DECAY: return between(value, 0, 1e3, &a->adamw.weight_decay);
    case OPT_CLIP: return between(value, 0, 1e9, &a->adamw.clip);
    case OPT_OPTIMIZER: return optimizer_parse(value, &a->optimizer);
    case OPT_MUON_MOMENTUM: return between(value, 0, 0.9999, &a->muon.momentum);
    case OPT_MUON_RATIO: return between(value, 1e-3, 1e3, &a->muon.lr_ratio);
    case OPT_SEED: return parse_u64(value, &a->seed);
    case OPT_THREADS: return count(value, 512, &a->threads);
    case OPT_EVAL_EVERY: return count(value, UINT32_MAX, &a->eval_every);
    case OPT_PRINT_EVERY: return count(value, UINT32_MAX, &a->print_every);
    case OPT_CHECKPOINT: return parse_duration(value, &a->checkpoint_every);
    case OPT_FRESH: a->fresh = true; return true;
    case OPT_RECOMPUTE: a->recompute = true; return true;
    case OPT_MPI: return dp_use_parse(value, &a->mpi);
    case OPT_RANK_TIMEOUT: return parse_duration(value, &a->rank_timeout) && a->rank_timeout > 0;
    default: return false;
    }
}

int cmd_train(int argc, char **argv) {
    struct train_args a = {.epochs = 1,
                           .lr = 1e-3,
                           .lr_min_ratio = 0.05,
                           .warmup = -1,
                           .decay_share = 0.2,
                           .batch = 8,
                           .print_every = 10,
                           .checkpoint_every = 300 * (time_ns)NS_PER_S,
                           .rank_timeout = 600 * (time_ns)NS_PER_S,
                           .seed = 1,
                           .schedule = SCHEDULE_COSINE,
                           .adamw = adamw_default(),
                           .muon = muon_default()};
    struct err e = {0};
    opterr = 0;
    optind = 1;
    for (int c, at = 0; (c = getopt_long(argc, argv, ":h", OPTIONS, &at)) != -1;) {
        if (c == OPT_HELP || c == 'h') return fputs(HELP, stdout), BRG_OK;
        if (c == ':') return usage("a value is missing after", argv[optind - 1]);
        if (c == '?') return usage("unknown option", argv[optind - 1]);
        if (c == OPT_CENTRAL) {
            a.central = true;
        } else if (!take_option(&a, c, optarg)) {
            char what[64];
            snprintf(what, sizeof what, "--%s does not take the value", OPTIONS[at].name);
            return usage(what, optarg);
        }
    }
    if (optind != argc) return usage("unexpected word", argv[optind]);
    if (!a.central)
        return usage("only --central training is done here; sites use beringia site", "");
    if (!a.data || !a.out || (!a.model && !a.weights))
        return usage("--data, --out and --model (or --weights) are all needed", "");
    return (int)run_central(&a, &e);
}
