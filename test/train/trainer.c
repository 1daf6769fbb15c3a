/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - what the trainer promises: bits, batches, failures. */
#include "support.h"

#include <stdatomic.h>

#include "train/cpu/threads.h"

static int32_t *random_tokens(const struct model_config *c, uint32_t rows, uint32_t T,
                              uint64_t seed) {
    struct prng p;
    prng_seed(&p, seed);
    int32_t *x = mem_alloc((size_t)rows * (T + 1), sizeof *x);
    for (size_t i = 0; i < (size_t)rows * (T + 1); i++)
        x[i] = (int32_t)prng_below(&p, c->vocab_size);
    return x;
}

/* Three steps; weights, moments, gradient and losses must agree to the bit. */
static void run_steps(struct trainer *t, const int32_t *tokens, uint32_t rows, double losses[3]) {
    struct adamw a = adamw_default();
    struct err e;
    double norm;
    for (int i = 0; i < 3; i++) {
        losses[i] = trainer_gradient(t, tokens, rows);
        assert_int_equal(trainer_update(t, &a, 1e-3, &norm, &e), BRG_OK);
    }
}

static void assert_same_bits(struct trainer *a, struct trainer *b) {
    size_t n = trainer_parameters(a) * sizeof(float);
    assert_memory_equal(trainer_grad(a), trainer_grad(b), n);
    assert_memory_equal(trainer_theta(a), trainer_theta(b), n);
    assert_memory_equal(trainer_m(a), trainer_m(b), n);
    assert_memory_equal(trainer_v(a), trainer_v(b), n);
}

static struct trainer *make_with(const struct model_config *c, uint32_t T, uint32_t batch,
                                 struct trainer_options o) {
    struct trainer *t = NULL;
    struct err e = {0};
    o.model = c;
    o.seq_len = T;
    o.batch_max = batch;
    if (trainer_create(&o, &t, &e)) fail_msg("%s", e.text);
    random_weights(c, 1, trainer_theta(t));
    return t;
}

static void threads_agree_in(const char *device, enum precision precision) {
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct model_config c = small_model(seed);
        uint32_t T = 37 + 30 * seed, rows = 5;
        int32_t *tokens = random_tokens(&c, rows, T, seed);
        struct trainer *t[3];
        double losses[3][3];
        for (uint32_t i = 0; i < 3; i++) {
            t[i] = make_with(
                &c, T, rows,
                (struct trainer_options){
                    .micro_batch = 2, .threads = i + 1, .device = device, .precision = precision});
            run_steps(t[i], tokens, rows, losses[i]);
        }
        for (int i = 1; i < 3; i++) {
            assert_memory_equal(losses[0], losses[i], sizeof losses[0]);
            assert_same_bits(t[0], t[i]);
        }
        for (int i = 0; i < 3; i++) trainer_destroy(t[i]);
        mem_free(tokens);
    }
}

static void threads_agree(const char *device) {
    threads_agree_in(device, PRECISION_F32);
}

static void threads_agree_in_bf16(const char *device) {
    threads_agree_in(device, PRECISION_BF16);
}

TEST(train_T1_bits_are_the_same_for_1_2_and_3_threads) {
    each_device(threads_agree);
}

TEST(train_T1_bits_are_the_same_for_any_threads_in_bf16) {
    each_device(threads_agree_in_bf16);
}

/* bf16 is coarse, and still the same model: the loss is near, the gradient points the same way. */
TEST(train_bf16_is_near_f32) {
    struct model_config c = small_model(17);
    uint32_t T = 50, rows = 4;
    int32_t *tokens = random_tokens(&c, rows, T, 3);
    struct trainer *f = make_with(&c, T, rows, (struct trainer_options){.threads = 2});
    struct trainer *h =
        make_with(&c, T, rows, (struct trainer_options){.threads = 2, .precision = PRECISION_BF16});
    double a = trainer_gradient(f, tokens, rows), b = trainer_gradient(h, tokens, rows);
    double off = distance(trainer_grad(h), trainer_grad(f), trainer_parameters(f));
    print_message("loss %.6f and %.6f, gradient off by %.4f\n", a, b, off);
    assert_true(fabs(a - b) < 0.01 * a);
    assert_true(off < 0.1);
    assert_true(off > 1e-4); /* it is not f32 by another name */
    trainer_destroy(f);
    trainer_destroy(h);
    mem_free(tokens);
}

TEST(train_micro_batches_agree_with_the_whole_batch) {
    struct model_config c = small_model(4);
    uint32_t T = 41, rows = 5;
    int32_t *tokens = random_tokens(&c, rows, T, 9);
    struct trainer *whole = make_trainer(&c, T, rows, 0, 2, NULL);
    random_weights(&c, 1, trainer_theta(whole));
    double loss = trainer_gradient(whole, tokens, rows);
    for (uint32_t micro = 1; micro <= 4; micro++) {
        struct trainer *t = make_trainer(&c, T, rows, micro, 2, NULL);
        random_weights(&c, 1, trainer_theta(t));
        assert_true(fabs(trainer_gradient(t, tokens, rows) - loss) < 1e-6);
        assert_true(distance(trainer_grad(t), trainer_grad(whole), trainer_parameters(t)) < 1e-5);
        trainer_destroy(t);
    }
    trainer_destroy(whole);
    mem_free(tokens);
}

TEST(train_a_short_batch_is_a_batch_of_its_own) {
    struct model_config c = small_model(5);
    uint32_t T = 33;
    int32_t *tokens = random_tokens(&c, 8, T, 9);
    for (uint32_t rows = 1; rows <= 3; rows++) {
        struct trainer *large = make_trainer(&c, T, 8, 0, 2, NULL);
        struct trainer *exact = make_trainer(&c, T, rows, 0, 2, NULL);
        random_weights(&c, 1, trainer_theta(large));
        random_weights(&c, 1, trainer_theta(exact));
        trainer_gradient(large, tokens, 8); /* leaves its rows behind in the buffers */
        double a[3], b[3];
        run_steps(large, tokens + T + 1, rows, a);
        run_steps(exact, tokens + T + 1, rows, b);
        assert_memory_equal(a, b, sizeof a);
        assert_same_bits(large, exact);
        trainer_destroy(large);
        trainer_destroy(exact);
    }
    mem_free(tokens);
}

static void one_position(const char *device) {
    struct model_config c = small_model(6);
    int32_t *tokens = random_tokens(&c, 3, 1, 2);
    struct trainer *t = make_trainer(&c, 1, 3, 0, 2, device);
    model_init(&c, 3, trainer_theta(t));
    double losses[3];
    run_steps(t, tokens, 3, losses);
    assert_true(fabs(losses[0] - log(c.vocab_size)) < 0.2);
    assert_true(losses[2] < losses[0]);
    trainer_destroy(t);
    mem_free(tokens);
}

TEST(train_sequences_of_one_token) {
    each_device(one_position);
}

TEST(train_T2_a_gradient_that_is_not_finite_changes_nothing) {
    struct model_config c = small_model(7);
    uint32_t T = 12;
    int32_t *tokens = random_tokens(&c, 2, T, 2);
    struct trainer *t = make_trainer(&c, T, 2, 0, 2, NULL);
    size_t P = trainer_parameters(t), at[] = {(size_t)tokens[0] * c.hidden_size, P / 2, P - 1};
    struct adamw a = adamw_default();
    double losses[3], norm = -1;
    for (size_t i = 0; i < ARRAY_COUNT(at); i++) {
        struct err e = {0};
        random_weights(&c, 1, trainer_theta(t));
        run_steps(t, tokens, 2, losses);
        trainer_theta(t)[at[i]] = i == 1 ? INFINITY : NAN;
        float *before = mem_alloc(3 * P, 4);
        memcpy(before, trainer_theta(t), P * 4);
        memcpy(before + P, trainer_m(t), P * 4);
        memcpy(before + 2 * P, trainer_v(t), P * 4);
        uint64_t steps = trainer_steps(t);
        assert_false(isfinite(trainer_gradient(t, tokens, 2)));
        assert_int_equal(trainer_update(t, &a, 1e-3, &norm, &e), BRG_E_NONFINITE);
        assert_int_equal(e.status, BRG_E_NONFINITE);
        assert_true(strlen(e.text) > 0);
        assert_memory_equal(before, trainer_theta(t), P * 4);
        assert_memory_equal(before + P, trainer_m(t), P * 4);
        assert_memory_equal(before + 2 * P, trainer_v(t), P * 4);
        assert_int_equal(trainer_steps(t), steps);
        assert_true(norm == -1);
        mem_free(before);
    }
    trainer_destroy(t);
    mem_free(tokens);
}

/* The optimizer alone over many steps, against the formula in double. */
static void adamw_steps(const char *device) {
    struct model_config c = small_model(8);
    struct trainer *t = make_trainer(&c, 4, 1, 0, 2, device);
    struct tensors table = {0};
    model_tensors(&c, &table);
    size_t P = trainer_parameters(t);
    struct prng p;
    prng_seed(&p, 3);
    random_weights(&c, 1, trainer_theta(t));
    double *x = mem_alloc(P, 8), *m = mem_alloc(P, 8), *v = mem_alloc(P, 8), lr = 1e-2, norm = 0;
    for (size_t i = 0; i < P; i++) x[i] = (double)trainer_theta(t)[i];
    struct adamw a = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.3, .clip = 2};
    for (int n = 1; n <= 20; n++) {
        double sum = 0, size = n % 3 ? 1.0 : 0.01; /* clipped and not clipped */
        struct err e;
        for (size_t i = 0; i < P; i++) {
            trainer_grad(t)[i] = (float)(size * prng_normal(&p));
            sum += (double)trainer_grad(t)[i] * (double)trainer_grad(t)[i];
        }
        assert_int_equal(trainer_update(t, &a, lr, &norm, &e), BRG_OK);
        assert_true(fabs(norm - sqrt(sum)) < 1e-12 * norm);
        double f = fmin(1, a.clip / (norm + 1e-6));
        size_t i = 0;
        for (size_t w = 0; w < table.count; w++)
            for (uint64_t j = 0; j < table.v[w].elements; j++, i++) {
                double g = f * (double)trainer_grad(t)[i];
                if (table.v[w].dims == 2) x[i] *= 1 - lr * a.weight_decay;
                m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
                v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
                x[i] -= lr * m[i] / (1 - pow(a.beta1, n)) /
                        (sqrt(v[i] / (1 - pow(a.beta2, n))) + a.eps);
            }
    }
    assert_true(distance_d(trainer_theta(t), x, P) < 1e-6);
    assert_true(distance_d(trainer_m(t), m, P) < 1e-6);
    assert_true(distance_d(trainer_v(t), v, P) < 1e-6);
    mem_free(x);
    mem_free(m);
    mem_free(v);
    tensors_fini(&table);
    trainer_destroy(t);
}

TEST(train_adamw_follows_the_formula) {
    each_device(adamw_steps);
}

/* The heap's calls are counted where no sanitizer has put its own in their place. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
static const bool counting = false;
static _Atomic unsigned long heap_calls;
#else
static const bool counting = true;
static _Atomic unsigned long heap_calls;
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
#define COUNTED(name, inner, params, args)                                                         \
    void *name params;                                                                             \
    __attribute__((visibility("default"))) void *name params {                                     \
        atomic_fetch_add(&heap_calls, 1);                                                          \
        return inner args;                                                                         \
    }
COUNTED(malloc, __libc_malloc, (size_t n), (n))
COUNTED(calloc, __libc_calloc, (size_t n, size_t size), (n, size))
COUNTED(realloc, __libc_realloc, (void *p, size_t n), (p, n))
COUNTED(aligned_alloc, __libc_memalign, (size_t align, size_t n), (align, n))
#endif

static void allocates_nothing_with(const char *device, const struct muon *muon) {
    struct model_config c = small_model(9);
    int32_t *tokens = random_tokens(&c, 5, 9, 2);
    unsigned long before = heap_calls;
    struct trainer *t = make_with(
        &c, 9, 5,
        (struct trainer_options){.micro_batch = 2, .threads = 3, .device = device, .muon = muon});
    assert_true(!counting || heap_calls > before); /* the count counts */
    void *slabs[ARRAY_COUNT(t->slabs)];
    double losses[3];
    memcpy(slabs, t->slabs, sizeof slabs);
    random_weights(&c, 1, trainer_theta(t));
    before = heap_calls;
    run_steps(t, tokens, 5, losses);
    trainer_loss(t, tokens, 3);
    assert_int_equal(heap_calls, before);
    assert_memory_equal(slabs, t->slabs, sizeof slabs);
    trainer_destroy(t);
    mem_free(tokens);
}

static void allocates_nothing(const char *device) {
    struct muon muon = muon_default();
    allocates_nothing_with(device, NULL);
    allocates_nothing_with(device, &muon);
}

TEST(train_T3_a_step_allocates_nothing) {
    each_device(allocates_nothing);
}

/* Less memory, the same bits: layers run again give what they gave. */
TEST(train_recomputed_activations_give_the_same_bits) {
    struct model_config c = small_model(14);
    c.num_hidden_layers = 4;
    uint32_t T = 45, rows = 5;
    int32_t *tokens = random_tokens(&c, rows, T, 3);
    struct trainer *keep = make_with(&c, T, rows, (struct trainer_options){.micro_batch = 2});
    struct trainer *again =
        make_with(&c, T, rows, (struct trainer_options){.micro_batch = 2, .recompute = true});
    assert_true(again->slab_bytes[SLAB_ACTS] < keep->slab_bytes[SLAB_ACTS] / 2);
    double a[3], b[3];
    run_steps(keep, tokens, rows, a);
    run_steps(again, tokens, rows, b);
    assert_memory_equal(a, b, sizeof a);
    assert_same_bits(keep, again);
    trainer_destroy(keep);
    trainer_destroy(again);
    mem_free(tokens);
}

/* z-loss: off it changes nothing; on, the gradient is that of what the loss says. */
TEST(train_z_loss_and_its_gradient) {
    struct model_config c = small_model(15);
    uint32_t T = 9, rows = 2;
    int32_t *tokens = random_tokens(&c, rows, T, 3);
    struct trainer *t = make_with(&c, T, rows, (struct trainer_options){.z_loss = 0.05});
    struct trainer *plain = make_with(&c, T, rows, (struct trainer_options){.z_loss = 0});
    double loss = trainer_gradient(t, tokens, rows);
    assert_true(loss > trainer_gradient(plain, tokens, rows) + 0.1);
    /* along a random direction: (loss(theta + h d) - loss(theta - h d)) / 2h = grad . d */
    size_t P = trainer_parameters(t);
    struct prng p;
    prng_seed(&p, 4);
    float *d = random_floats(&p, P, 1), *theta = mem_alloc(P, 4);
    memcpy(theta, trainer_theta(t), P * 4);
    double slope = 0, h = 2e-4, side[2];
    for (size_t i = 0; i < P; i++) slope += (double)trainer_grad(t)[i] * (double)d[i];
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < P; i++)
            trainer_theta(t)[i] = (float)((double)theta[i] + (s ? h : -h) * (double)d[i]);
        side[s] = trainer_loss(t, tokens, rows);
    }
    double is = (side[1] - side[0]) / (2 * h);
    if (!(fabs(is - slope) < 0.01 * fabs(slope) + 0.01)) fail_msg("%g, not %g", slope, is);
    mem_free(d);
    mem_free(theta);
    trainer_destroy(t);
    trainer_destroy(plain);
    mem_free(tokens);
}

/* A vocabulary of Qwen3's size: logits exist a piece of rows at a time, and what comes out of the pieces
 * is what one row at a time gives. */
TEST_TIMEOUT(train_cross_entropy_in_pieces_over_151936_words, 120) {
    struct model_config c = small_model(16);
    c.vocab_size = 151936;
    c.hidden_size = 8;
    c.num_hidden_layers = 1;
    c.tie_word_embeddings = true;
    uint32_t T = 70, rows = 2;
    int32_t *tokens = random_tokens(&c, rows, T, 3);
    struct trainer *t = make_with(&c, T, rows, (struct trainer_options){.micro_batch = 0});
    struct trainer *one = make_with(&c, T, 1, (struct trainer_options){.micro_batch = 0});
    assert_int_equal(t->logit_rows, LOGIT_ROWS_MIN); /* 140 rows take two pieces */
    double loss = trainer_gradient(t, tokens, rows), sum = 0;
    size_t P = trainer_parameters(t);
    float *grad = mem_alloc(P, 4);
    for (uint32_t r = 0; r < rows; r++) {
        sum += trainer_gradient(one, tokens + r * (T + 1), 1);
        for (size_t i = 0; i < P; i++) grad[i] += trainer_grad(one)[i] / (float)rows;
    }
    assert_true(fabs(loss - sum / rows) < 1e-6 * loss);
    assert_true(distance(trainer_grad(t), grad, P) < 1e-5);
    model_init(&c, 1, trainer_theta(t));
    assert_true(fabs(trainer_loss(t, tokens, rows) - log(151936)) < 0.1);
    mem_free(grad);
    trainer_destroy(t);
    trainer_destroy(one);
    mem_free(tokens);
}

TEST(train_too_much_memory_is_told_with_the_remedy) {
    struct model_config c = small_model(10);
    c.hidden_size = c.intermediate_size = 1 << 20;
    c.max_position_embeddings = 1 << 20;
    struct trainer_options o = {
        .model = &c, .seq_len = 1 << 20, .batch_max = 1 << 10, .threads = 2};
    struct trainer *t = NULL;
    struct err e = {0};
    assert_int_equal(trainer_create(&o, &t, &e), BRG_E_MEMORY);
    assert_null(t);
    assert_non_null(strstr(e.text, "micro-batch"));
    assert_non_null(strstr(e.text, "GiB free"));
}

TEST(train_options_that_do_not_fit_are_refused) {
    struct model_config c = small_model(11);
    struct trainer_options o = {.model = &c, .seq_len = 4097, .batch_max = 1, .threads = 1};
    struct trainer *t = NULL;
    struct err e = {0};
    assert_int_equal(trainer_create(&o, &t, &e), BRG_E_MODEL);
    assert_non_null(strstr(e.text, "max_position_embeddings"));
    o.seq_len = 0;
    assert_int_equal(trainer_create(&o, &t, &e), BRG_E_LIMIT);
    o.seq_len = 8;
    o.threads = 100000;
    assert_int_equal(trainer_create(&o, &t, &e), BRG_E_LIMIT);
}

TEST(train_a_token_beyond_the_vocabulary_is_a_fault_of_the_program) {
    struct model_config c = small_model(12);
    struct trainer *t = make_trainer(&c, 2, 1, 0, 1, NULL);
    int32_t tokens[3] = {0, (int32_t)c.vocab_size, 0};
    assert_check_fails(trainer_loss(t, tokens, 1));
    tokens[1] = -1;
    assert_check_fails(trainer_loss(t, tokens, 1));
    trainer_destroy(t);
}

/* A short training must learn what can be learnt: a fixed cycle of tokens. */
TEST(train_learns_a_cycle) {
    struct model_config c = small_model(13);
    uint32_t T = 24;
    struct trainer *t = make_trainer(&c, T, 4, 0, 2, NULL);
    struct adamw a = adamw_default();
    struct err e;
    int32_t tokens[4 * 25];
    double norm, loss = 0;
    model_init(&c, 1, trainer_theta(t));
    for (int n = 0; n < 150; n++) {
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t i = 0; i <= T; i++)
                tokens[r * (T + 1) + i] = (int32_t)((i + 3 * r + (uint32_t)n) % 11);
        loss = trainer_gradient(t, tokens, 4);
        assert_int_equal(trainer_update(t, &a, 5e-3, &norm, &e), BRG_OK);
    }
    assert_true(loss < 0.1);
    trainer_destroy(t);
}

/* ---- The pool --------------------------------------------------------------------------------------- */
struct tally {
    uint8_t seen[1000];
};

static void tally_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct tally *x = ctx;
    assert_true(worker < 4);
    x->seen[chunk]++;
}

TEST(train_P1_P2_each_chunk_runs_once_before_the_run_ends) {
    struct pool *p;
    struct err e;
    assert_int_equal(pool_create(4, &p, &e), BRG_OK);
    for (uint32_t n = 0; n < 3000; n++) {
        struct tally x = {{0}};
        uint32_t chunks = n % 7 == 0 ? 1000 : n % 23;
        pool_run(p, chunks, tally_chunk, &x);
        for (uint32_t i = 0; i < 1000; i++) assert_int_equal(x.seen[i], i < chunks);
    }
    pool_destroy(p);
}

/* What a listener hears: keeps what was called final, to compare it with the end. */
struct heard {
    struct trainer *t;
    size_t at;
    float *copy;
    int calls;
};

static void hear(void *ctx, size_t from) {
    struct heard *h = ctx;
    assert_true(from < h->at);
    memcpy(h->copy + from, h->t->grad + from, (h->at - from) * sizeof(float));
    h->at = from;
    h->calls++;
}

TEST(train_gradients_called_final_do_not_change_any_more) {
    for (int tied = 0; tied < 2; tied++) {
        struct model_config c = small_model(8);
        c.tie_word_embeddings = tied;
        struct trainer_options o = {
            .model = &c, .seq_len = 24, .batch_max = 5, .micro_batch = 2, .threads = 2};
        struct trainer *t;
        struct err e;
        assert_int_equal(trainer_create(&o, &t, &e), BRG_OK);
        model_init(&c, 3, trainer_theta(t));
        AUTO_FREE int32_t *tokens = random_tokens(&c, 5, 24, 11);
        AUTO_FREE float *copy = mem_alloc(t->P, sizeof *copy);
        struct heard h = {t, t->P, copy, 0};
        t->final = hear;
        t->final_ctx = &h;
        trainer_gradient(t, tokens, 5);
        assert_int_equal(h.at, 0);
        assert_true(h.calls > 2 * (int)c.num_hidden_layers); /* on the way, not all at the end */
        assert_memory_equal(copy, t->grad, t->P * sizeof(float));
        trainer_destroy(t);
    }
}
