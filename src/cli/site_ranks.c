/* SPDX-License-Identifier: Apache-2.0 */
/* site_ranks.c - see site_ranks.h. What is done together stands in one function for both sides. */
#include "cli/site_ranks.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/os.h"
#include "beringia.h"

enum told { SETUP = 1, STEP, PING, WEIGHTS, GET, PUT, MEMORY, RECALL, TAKE, KEEP, END };

struct order_word { /* one broadcast; ranks of a job are of one kind of machine and one program */
    enum told what;
    int32_t status;       /* END */
    uint64_t count, at;   /* samples of STEP; stretch of GET and PUT */
    uint64_t adamw_steps; /* STEP, KEEP: done before it */
    bool yes; /* STEP: the gradient alone; TAKE: a generation was taken; END: the memory may go */
    struct memory_moment moment; /* KEEP; count is the bytes of its books */
    uint64_t salt;               /* KEEP */
    enum moment which;           /* GET, PUT */
    double lr;                   /* STEP */
    struct rank_setup set;       /* SETUP */
};

static void tell(struct ranks *r, struct order_word *w) {
    if (r->net) r->net->bcast(r->net->self, w, sizeof *w, true);
}

void ranks_fini(struct ranks *r) {
    memory_close(r->memory, r->memory_removed);
    r->memory = NULL;
    trainer_destroy(r->trainer);
    if (r->data) data_close(r->data);
    mem_free(r->tokens);
    r->trainer = NULL;
    r->data = NULL;
    r->tokens = NULL;
}

/* ---- Together ------------------------------------------------------------------------------------- */

static enum brg_status open_data(struct ranks *r, struct err *e) {
    /* Rank 0 has hashed the shards; a whole allocation need not read all of them at its start. */
    TRY(data_open(r->words->data_dir, false, &r->data, e));
    struct hash f = data_fingerprint(r->data);
    if (hash_equal(&f, &r->setup.fingerprint)) return BRG_OK;
    return err_set(
        e, BRG_E_MANIFEST,
        "%s: is another data set on this node than on that of rank 0: all ranks need the "
        "same one under the same path",
        r->words->data_dir);
}

static enum brg_status build(struct ranks *r, const char *json, struct err *e) {
    uint32_t ranks = dp_ranks(r->net);
    uint64_t rows = (r->setup.batch + ranks - 1) / ranks;
    if (dp_rank(r->net) > 0) TRY(open_data(r, e));
    TRY(model_config_parse(json, r->setup.model_bytes, "the hub's model", &r->model, e));
    struct trainer_options o = {.model = &r->model,
                                .seq_len = (uint32_t)r->setup.seq_len,
                                .batch_max = (uint32_t)rows,
                                .micro_batch = (uint32_t)r->words->micro,
                                .threads = (uint32_t)r->words->threads,
                                .precision = r->words->precision,
                                .recompute = r->words->recompute,
                                .muon = r->setup.optimizer == OPTIMIZER_MUON ? &r->setup.muon
                                                                             : NULL,
                                .net = r->net};
    TRY(trainer_create(&o, &r->trainer, e));
    r->tokens = mem_alloc(rows * (r->setup.seq_len + 1), sizeof *r->tokens);
    return BRG_OK;
}

/* One word with all ranks. */
static void ask_all(struct ranks *r, struct rank_result *out) {
    enum { STOP = 1, BUSY = 2 };
    uint32_t mine = (*r->stop != 0 ? STOP : 0) | (r->memory && memory_busy(r->memory) ? BUSY : 0);
    uint32_t any = dp_or(r->net, mine);
    out->stop = (any & STOP) != 0;
    out->busy = (any & BUSY) != 0;
}

static enum brg_status memory_begin(struct ranks *r, struct err *e) {
    struct memory_options o = {.dir = r->words->memory_dir,
                               .generations = r->words->memory_generations,
                               .optimizer = (uint32_t)r->setup.optimizer,
                               .run = r->setup.run,
                               .site = r->setup.site};
    return memory_open(&o, r->trainer, r->net, &r->memory, e);
}

static enum brg_status take(struct ranks *r, bool recalled, struct err *e) {
    if (!recalled) trainer_part_clear(r->trainer);
    return memory_take(r->memory, e);
}

static void keep(struct ranks *r, const struct order_word *w, void *books) {
    if (r->net) r->net->bcast(r->net->self, books, w->count, false);
    memory_keep(r->memory, &w->moment, w->adamw_steps, w->salt, books, w->count);
}

/* Loss and norm have the same bits on all ranks, and so all of them go the same way. */
static enum brg_status train(struct ranks *r, uint64_t rows, bool gradient, double lr,
                             struct rank_result *out, struct err *e) {
    uint32_t me = dp_rank(r->net), all = (uint32_t)rows;
    uint32_t own = dp_rows_at(r->net, all, me + 1) - dp_rows_at(r->net, all, me);
    out->loss = trainer_gradient_part(r->trainer, r->tokens, own, all);
    enum brg_status s = BRG_OK;
    if (isfinite(out->loss) && gradient)
        s = trainer_gradient_share(r->trainer, &out->norm, e);
    else if (isfinite(out->loss))
        s = trainer_update(r->trainer, &r->setup.adamw, lr, &out->norm, e);
    else
        s = err_set(e, BRG_E_NONFINITE, "the loss is not finite");
    ask_all(r, out);
    FAULT("site.step");
    return s;
}

/* ---- Rank 0 --------------------------------------------------------------------------------------- */

enum brg_status ranks_setup(struct ranks *r, const struct rank_setup *setup, const char *model_json,
                            struct err *e) {
    r->setup = *setup;
    r->setup.model_bytes = strlen(model_json);
    struct order_word w = {.what = SETUP, .set = r->setup};
    tell(r, &w);
    AUTO_FREE char *json = mem_strdup(model_json);
    if (r->net) r->net->bcast(r->net->self, json, r->setup.model_bytes, false);
    return dp_agree(r->net, build(r, json, e), e);
}

enum brg_status ranks_step(struct ranks *r, const uint64_t *samples, uint64_t count, bool gradient,
                           double lr, int fill(void *user, uint64_t sample, int32_t *tokens),
                           void *user, struct rank_result *out, struct err *e) {
    uint32_t own = dp_rows_at(r->net, (uint32_t)count, 1);
    for (uint32_t i = 0; i < own; i++) {
        int status = fill(user, samples[i], r->tokens + i * (r->setup.seq_len + 1));
        if (status != 0)
            return err_set(e, (enum brg_status)status, "a leased sample is not in the data set");
    }
    struct order_word w = {.what = STEP,
                           .count = count,
                           .yes = gradient,
                           .lr = lr,
                           .adamw_steps = trainer_steps(r->trainer)};
    tell(r, &w);
    AUTO_FREE uint64_t *copy = mem_alloc(count, sizeof *copy);
    memcpy(copy, samples, count * sizeof *copy);
    if (r->net) r->net->bcast(r->net->self, copy, count * sizeof *copy, false);
    return train(r, count, gradient, lr, out, e);
}

void ranks_ping(struct ranks *r, struct rank_result *out) {
    struct order_word w = {.what = PING};
    tell(r, &w);
    ask_all(r, out);
}

void ranks_weights(struct ranks *r) {
    struct order_word w = {.what = WEIGHTS};
    tell(r, &w);
    trainer_theta_share(r->trainer);
}

void ranks_move(void *user, size_t array, uint64_t at, uint64_t count, float *values,
                int into_trainer) {
    struct ranks *r = user;
    struct order_word w = {.what = into_trainer ? PUT : GET,
                           .which = array == MOMENT_M ? MOMENT_M : MOMENT_V,
                           .at = at,
                           .count = count};
    tell(r, &w);
    if (into_trainer)
        trainer_moment_put(r->trainer, w.which, at, count, values);
    else
        trainer_moment_get(r->trainer, w.which, at, count, values);
}

enum brg_status ranks_memory(struct ranks *r, struct err *e) {
    struct order_word w = {.what = MEMORY};
    tell(r, &w);
    return memory_begin(r, e);
}

enum brg_status ranks_recall(struct ranks *r, uint32_t i, struct memory_recalled *out,
                             struct err *e) {
    struct order_word w = {.what = RECALL, .at = i};
    tell(r, &w);
    return memory_recall(r->memory, i, out, e);
}

enum brg_status ranks_take(struct ranks *r, bool recalled, struct err *e) {
    struct order_word w = {.what = TAKE, .yes = recalled};
    tell(r, &w);
    return take(r, recalled, e);
}

void ranks_keep(struct ranks *r, const struct memory_moment *moment, const void *books, size_t n) {
    struct order_word w = {
        .what = KEEP, .moment = *moment, .count = n, .adamw_steps = trainer_steps(r->trainer)};
    os_random(&w.salt, sizeof w.salt);
    AUTO_FREE uint8_t *copy = mem_alloc(n, 1); /* a broadcast wants what it may write to */
    memcpy(copy, books, n);
    tell(r, &w);
    keep(r, &w, copy);
}

void ranks_end(struct ranks *r, int status, bool removes) {
    struct order_word w = {.what = END, .status = status, .yes = removes};
    tell(r, &w);
    r->memory_removed = removes;
}

/* ---- The others ----------------------------------------------------------------------------------- */

static enum brg_status follow_setup(struct ranks *r, const struct order_word *w, struct err *e) {
    r->setup = w->set;
    AUTO_FREE char *json = mem_alloc(r->setup.model_bytes + 1, 1);
    r->net->bcast(r->net->self, json, r->setup.model_bytes, false);
    return dp_agree(r->net, build(r, json, e), e);
}

static void follow_step(struct ranks *r, const struct order_word *w) {
    struct rank_result result = {0};
    struct err e;
    uint32_t me = r->net->rank, rows = (uint32_t)w->count;
    uint32_t from = dp_rows_at(r->net, rows, me), to = dp_rows_at(r->net, rows, me + 1);
    AUTO_FREE uint64_t *samples = mem_alloc(w->count, sizeof *samples);
    r->net->bcast(r->net->self, samples, w->count * sizeof *samples, false);
    for (uint32_t i = from; i < to; i++)
        data_sample(r->data, samples[i], r->tokens + (i - from) * (r->setup.seq_len + 1));
    trainer_steps_set(r->trainer, w->adamw_steps);
    /* What is not finite changed nothing, here as on rank 0, which tells what comes of it. */
    (void)!train(r, w->count, w->yes, w->lr, &result, &e);
}

static void follow_keep(struct ranks *r, const struct order_word *w) {
    AUTO_FREE uint8_t *books = mem_alloc(w->count, 1);
    trainer_steps_set(r->trainer, w->adamw_steps);
    keep(r, w, books);
}

/* What fails here failed on all ranks: rank 0 decides, and tells what comes of it. */
static void follow_memory(struct ranks *r, const struct order_word *w, struct err *e) {
    struct memory_recalled recalled;
    if (w->what == MEMORY)
        (void)!memory_begin(r, e);
    else if (w->what == RECALL)
        (void)!memory_recall(r->memory, (uint32_t)w->at, &recalled, e);
    else
        (void)!take(r, w->yes, e);
}

int ranks_follow(struct ranks *r) {
    struct err e = {0};
    struct rank_result result;
    int status = BRG_GO;
    for (bool on = true; on;) {
        struct order_word w = {0};
        tell(r, &w); /* a broadcast: rank 0 sends, the others receive */
        switch (w.what) {
        case SETUP: status = (int)follow_setup(r, &w, &e); break; /* where it failed, END follows */
        case STEP: follow_step(r, &w); break;
        case PING: ask_all(r, &result); break;
        case WEIGHTS: trainer_theta_share(r->trainer); break;
        case GET: trainer_moment_get(r->trainer, w.which, w.at, w.count, NULL); break;
        case PUT: trainer_moment_put(r->trainer, w.which, w.at, w.count, NULL); break;
        case MEMORY:
        case RECALL:
        case TAKE: follow_memory(r, &w, &e); break;
        case KEEP: follow_keep(r, &w); break;
        case END:
            status = w.status;
            r->memory_removed = w.yes;
            on = false;
            break;
        }
    }
    return status;
}
