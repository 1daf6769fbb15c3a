/* SPDX-License-Identifier: Apache-2.0 */
/* dp.c - data parallel: several ranks (threads here, by MPI in test/e2e/mpi.py) against one process. */
#include "ranks.h"
#include "support.h"

enum { T = 16, STEPS_MAX = 64 };

struct job {
    struct model_config model;
    const int32_t *tokens; /* [rows][T+1], the same batch each step */
    uint32_t rows, steps, threads;
    uint64_t P;
    double losses[STEPS_MAX], norm;
    float *theta, *m,
        *v; /* [P] after the last step; where set before, m, v and theta to begin with */
    uint64_t steps_before;
    uint64_t own[16];
    float *thetas[16];
    bool nonfinite;
};

static void job_init(struct job *j, uint32_t seed, uint32_t rows, uint32_t steps) {
    *j = (struct job){.model = small_model(seed), .rows = rows, .steps = steps, .threads = 1};
    j->P = model_parameters(&j->model);
    struct prng p;
    prng_seed(&p, seed);
    int32_t *x = mem_alloc((size_t)rows * (T + 1), sizeof *x);
    for (size_t i = 0; i < (size_t)rows * (T + 1); i++)
        x[i] = (int32_t)prng_below(&p, j->model.vocab_size);
    j->tokens = x;
    j->theta = mem_alloc(j->P, sizeof(float));
    j->m = mem_alloc(j->P, sizeof(float));
    j->v = mem_alloc(j->P, sizeof(float));
    random_weights(&j->model, seed, j->theta);
}

static void job_fini(struct job *j) {
    for (int i = 0; i < 16; i++) mem_free(j->thetas[i]);
    mem_free(j->theta);
    mem_free(j->m);
    mem_free(j->v);
    mem_free((void *)(uintptr_t)j->tokens);
}

/* One rank's life: state in, steps, state out. */
static void work(void *ctx, struct dp_net *net) {
    struct job *j = ctx;
    struct err e;
    uint32_t me = dp_rank(net), from = dp_rows_at(net, j->rows, me);
    uint32_t rows = dp_rows_at(net, j->rows, me + 1) - from;
    struct trainer_options o = {
        .model = &j->model, .seq_len = T, .batch_max = j->rows, .threads = j->threads, .net = net};
    struct trainer *t;
    assert_int_equal(trainer_create(&o, &t, &e), BRG_OK);
    memcpy(trainer_theta(t), j->theta, j->P * sizeof(float));
    for (uint64_t at = 0; at < j->P; at += 1000) { /* pieces that fit no bucket */
        uint64_t n = j->P - at < 1000 ? j->P - at : 1000;
        trainer_moment_put(t, MOMENT_M, at, n, j->m + at);
        trainer_moment_put(t, MOMENT_V, at, n, j->v + at);
    }
    trainer_steps_set(t, j->steps_before);
    struct adamw a = adamw_default();
    for (uint32_t i = 0; i < j->steps; i++) {
        double norm, loss = trainer_gradient_part(t, j->tokens + from * (T + 1), rows, j->rows);
        if (j->nonfinite && me == dp_ranks(net) - 1) trainer_grad(t)[t->pieces[0].offset] = NAN;
        enum brg_status s = trainer_update(t, &a, 1e-3, &norm, &e);
        assert_int_equal(s, j->nonfinite ? BRG_E_NONFINITE : BRG_OK);
        if (me == 0) j->losses[i] = loss;
        if (me == 0) j->norm = norm;
    }
    dp_sum(net, 0); /* all have read theta by now */
    j->own[me] = trainer_moments(t);
    j->thetas[me] = mem_alloc(j->P, sizeof(float));
    memcpy(j->thetas[me], trainer_theta(t), j->P * sizeof(float));
    trainer_moment_get(t, MOMENT_M, 0, j->P, j->m);
    trainer_moment_get(t, MOMENT_V, 0, j->P, j->v);
    if (me == 0) memcpy(j->theta, trainer_theta(t), j->P * sizeof(float));
    trainer_destroy(t);
}

static void run_ranks(struct job *j, uint32_t ranks, uint32_t bucket) {
    for (int i = 0; i < 16; i++) {
        mem_free(j->thetas[i]);
        j->thetas[i] = NULL;
    }
    if (ranks == 1)
        work(j, NULL);
    else
        ranks_run(ranks, bucket, work, j);
}

TEST(dp_D1_every_element_has_one_owner) {
    for (uint32_t ranks = 2; ranks <= 7; ranks++)
        for (size_t P = 1; P < 3000; P = P * 2 + 13)
            for (uint32_t bucket = 0; bucket < 900; bucket += 299) {
                size_t own = 0, at = 0;
                for (uint32_t r = 0; r < ranks; r++) {
                    struct dp_net net = {.rank = r, .ranks = ranks, .bucket = bucket};
                    struct dp *d = dp_create(&net, NULL, P);
                    own += d->own;
                    if (r == 0)
                        for (size_t b = 0; b < d->buckets; b++)
                            for (uint32_t i = 0; i < ranks; i++) {
                                assert_int_equal(dp_part_at(d, b, i), at);
                                at = dp_part_at(d, b, i + 1);
                                assert_true((at - dp_part_at(d, b, i)) * ranks <=
                                            dp_parts_count(d));
                            }
                    dp_destroy(d);
                }
                assert_int_equal(own, P);
                assert_int_equal(at, P);
            }
}

/* Rows that do not divide, ranks without rows, buckets that end within tensors. */
TEST(dp_ranks_train_as_one_process_does) {
    static const struct {
        uint32_t ranks, rows, bucket;
    } cases[] = {{2, 4, 0}, {2, 5, 512}, {3, 5, 700}, {3, 7, 64}, {5, 3, 1000}, {4, 1, 333}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct job one, many;
        job_init(&one, 20 + (uint32_t)i, cases[i].rows, 12);
        job_init(&many, 20 + (uint32_t)i, cases[i].rows, 12);
        run_ranks(&one, 1, 0);
        run_ranks(&many, cases[i].ranks, cases[i].bucket);
        for (uint32_t s = 0; s < one.steps; s++)
            assert_true(fabs(one.losses[s] - many.losses[s]) <= 1e-5 * one.losses[s]);
        assert_true(fabs(one.norm - many.norm) <= 1e-3 * one.norm);
        assert_true(one.losses[11] < one.losses[0]);
        uint64_t own = 0;
        for (uint32_t r = 0; r < cases[i].ranks; r++) {
            own += many.own[r];
            assert_memory_equal(many.thetas[r], many.thetas[0], many.P * sizeof(float));
        }
        assert_int_equal(own, many.P); /* each moment lies with one rank */
        job_fini(&one);
        job_fini(&many);
    }
}

TEST(dp_D2_the_same_bits_every_time_and_for_any_threads) {
    struct job first;
    job_init(&first, 31, 6, 5);
    run_ranks(&first, 3, 257);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct job again;
        job_init(&again, 31, 6, 5);
        again.threads = threads;
        run_ranks(&again, 3, 257);
        assert_memory_equal(first.theta, again.theta, first.P * sizeof(float));
        assert_memory_equal(first.m, again.m, first.P * sizeof(float));
        assert_memory_equal(first.v, again.v, first.P * sizeof(float));
        assert_memory_equal(first.losses, again.losses, sizeof first.losses);
        job_fini(&again);
    }
    job_fini(&first);
}

TEST(dp_each_rank_holds_its_share_of_the_moments) {
    struct job j;
    job_init(&j, 33, 4, 1);
    run_ranks(&j, 4, 0);
    for (uint32_t r = 0; r < 4; r++) assert_true(j.own[r] <= j.P / 4 + 16 * (j.P / (1 << 15) + 1));
    job_fini(&j);
}

TEST(dp_goes_on_with_another_number_of_ranks) {
    struct job whole, parts;
    job_init(&whole, 35, 6, 9);
    job_init(&parts, 35, 6, 3);
    run_ranks(&whole, 1, 0);
    static const uint32_t ranks[] = {2, 5, 1};
    for (int i = 0; i < 3; i++) {
        run_ranks(&parts, ranks[i], 400);
        parts.steps_before += parts.steps;
        for (int s = 0; s < 3; s++)
            assert_true(fabs(whole.losses[3 * i + s] - parts.losses[s]) <= 1e-5 * whole.losses[s]);
    }
    assert_true(distance(parts.m, whole.m, whole.P) < 1e-4);
    assert_true(distance(parts.v, whole.v, whole.P) < 1e-4);
    job_fini(&whole);
    job_fini(&parts);
}

/* The same ranks, interrupted: the same bits. */
TEST(dp_resume_with_as_many_ranks_has_the_same_bits) {
    struct job whole, parts;
    job_init(&whole, 36, 5, 4);
    job_init(&parts, 36, 5, 2);
    run_ranks(&whole, 3, 300);
    run_ranks(&parts, 3, 300);
    parts.steps_before = 2;
    run_ranks(&parts, 3, 300);
    assert_memory_equal(parts.theta, whole.theta, whole.P * sizeof(float));
    assert_memory_equal(parts.m, whole.m, whole.P * sizeof(float));
    assert_memory_equal(parts.v, whole.v, whole.P * sizeof(float));
    job_fini(&whole);
    job_fini(&parts);
}

TEST(dp_T2_what_is_not_finite_on_one_rank_changes_nothing_on_any) {
    struct job j;
    job_init(&j, 37, 4, 2);
    AUTO_FREE float *before = mem_alloc(j.P, sizeof *before);
    memcpy(before, j.theta, j.P * sizeof(float));
    j.nonfinite = true;
    run_ranks(&j, 3, 500);
    for (int r = 0; r < 3; r++) assert_memory_equal(before, j.thetas[r], j.P * sizeof(float));
    job_fini(&j);
}

static void agree(void *ctx, struct dp_net *net) {
    struct err e = {0}, *out = ctx;
    enum brg_status mine = BRG_OK;
    if (net->rank >= 1) mine = err_set(&e, BRG_E_MANIFEST, "no data on %u", net->rank);
    assert_int_equal(dp_agree(net, mine, &e), BRG_E_MANIFEST);
    assert_int_equal(dp_or(net, 0), 0);
    assert_int_equal(dp_or(net, 1u << net->rank), 7);
    out[net->rank] = e;
}

TEST(dp_all_ranks_hear_what_failed_on_one) {
    struct err e[3] = {0};
    ranks_run(3, 0, agree, e);
    for (int r = 0; r < 3; r++) assert_string_equal(e[r].text, "rank 1: no data on 1");
}

/* ---- The whole gradient, as a synchronous round wants it --------------------------------------------- */

static void share_gradient(void *ctx, struct dp_net *net) {
    struct job *j = ctx;
    struct err e = {0};
    uint32_t me = dp_rank(net), from = dp_rows_at(net, j->rows, me);
    uint32_t rows = dp_rows_at(net, j->rows, me + 1) - from;
    struct trainer_options o = {
        .model = &j->model, .seq_len = T, .batch_max = j->rows, .threads = 1, .net = net};
    struct trainer *t;
    double norm = -1;
    assert_int_equal(trainer_create(&o, &t, &e), BRG_OK);
    memcpy(trainer_theta(t), j->theta, j->P * sizeof(float));
    for (uint32_t i = 0; i < j->steps; i++) { /* the second is not the first and more */
        (void)trainer_gradient_part(t, j->tokens + from * (T + 1), rows, j->rows);
        if (j->nonfinite && me == dp_ranks(net) - 1) trainer_grad(t)[t->pieces[0].offset] = NAN;
        enum brg_status s = trainer_gradient_share(t, &norm, &e);
        assert_int_equal(s, j->nonfinite ? BRG_E_NONFINITE : BRG_OK);
    }
    dp_sum(net, 0);
    j->thetas[me] = mem_alloc(j->P, sizeof(float));
    memcpy(j->thetas[me], trainer_grad(t), j->P * sizeof(float));
    assert_memory_equal(trainer_theta(t), j->theta, j->P * sizeof(float));
    assert_int_equal(trainer_steps(t), 0);
    if (me == 0) j->norm = norm;
    trainer_destroy(t);
}

TEST(dp_the_whole_gradient_reaches_every_rank_and_moves_nothing) {
    static const uint32_t ranks[] = {2, 3, 5}, buckets[] = {0, 512, 333};
    for (size_t i = 0; i < ARRAY_COUNT(ranks); i++) {
        struct job one, many;
        job_init(&one, 40 + (uint32_t)i, 5, 2);
        job_init(&many, 40 + (uint32_t)i, 5, 2);
        share_gradient(&one, NULL);
        ranks_run(ranks[i], buckets[i], share_gradient, &many);
        assert_true(one.norm > 0);
        assert_true(fabs(one.norm - many.norm) <= 1e-5 * one.norm);
        assert_true(distance(many.thetas[0], one.thetas[0], one.P) < 1e-5);
        for (uint32_t r = 1; r < ranks[i]; r++)
            assert_memory_equal(many.thetas[r], many.thetas[0], many.P * sizeof(float));
        job_fini(&one);
        job_fini(&many);
    }
    struct job bad;
    job_init(&bad, 44, 4, 1);
    bad.nonfinite = true;
    ranks_run(3, 500, share_gradient, &bad); /* no rank goes on alone */
    job_fini(&bad);
}
