/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - cuts a product into blocks (Goto, van de Geijn 2008): B is packed once a (n, k) block by
 * all workers, then each worker takes blocks of rows, packs its part of A and runs the micro-kernel.
 * How m and n are cut is free to follow the number of workers, since no sum crosses those cuts.
 *
 * The inner loop runs at the rate of the multiply-adds as long as what it reads is near; so a block asks
 * for what comes next while it computes: the next panel of B, and, over its last panels, the rows of A
 * that are packed after it. */
#include "train/cpu/matmul.h"

enum {
    PACK_PANELS = 8, /* panels of B a packing chunk takes */
    /* Below as many columns packing rows of A costs more than it brings, where they are short: long
     * ones lie on a page each. */
    PACK_COLUMNS_MIN = 512,
    LINE_FLOATS = 16,
    /* The panels of B during which the next part of A is asked for: enough for all its lines, and few
     * enough that they are still in the second level when they are packed. */
    AHEAD_PANELS = 12
};

struct job {
    const struct matmul *mm;
    enum matmul_form form;
    size_t M, N, K;
    const float *a, *b, *add;
    float *c;
    size_t n0, nc, k0, kc, kp; /* the block at hand; kp: kc as panels have it */
    size_t rows, cols, splits; /* a chunk is rows x cols of it; splits chunks side by side */
};

static size_t round_up(size_t x, size_t step) {
    return (x + step - 1) / step * step;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Where the panels of column `at` of the block begin, a multiple of nr. */
static float *panel_at(const struct job *j, size_t at) {
    return j->mm->pack_b + at * j->kp * j->mm->product->bytes / 4;
}

static void pack_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    (void)worker;
    struct job *j = ctx;
    const struct product *k = j->mm->product;
    size_t width = (size_t)PACK_PANELS * k->nr, at = chunk * width;
    size_t n = smaller(width, j->nc - at), col = j->n0 + at;
    float *dst = panel_at(j, at);
    if (j->form == MATMUL_NT)
        k->pack_b(dst, j->b + col * j->K + j->k0, 1, j->K, j->kc, n);
    else
        k->pack_b(dst, j->b + j->k0 * j->N + col, j->N, 1, j->kc, n);
}

/* The part of A that this worker packs after `chunk`, if the others keep pace. */
static struct ahead next_rows(const struct job *j, uint32_t chunk) {
    size_t blocks = (j->M + j->rows - 1) / j->rows, k0 = j->k0, kc = j->kc;
    size_t block = (chunk + pool_threads(j->mm->pool)) / j->splits;
    struct ahead none = {.rows = 0};
    if (block == chunk / j->splits) return none;
    if (block >= blocks) { /* in the next block of k, or of n */
        block -= blocks;
        k0 += kc;
        if (k0 >= j->K) k0 = 0;
        if (block >= blocks || (k0 == 0 && j->n0 + j->nc >= j->N)) return none;
        kc = smaller(MATMUL_KC, j->K - k0);
    }
    size_t m0 = block * j->rows, m = smaller(j->rows, j->M - m0);
    if (j->form == MATMUL_TN)
        return (struct ahead){.at = (const char *)(j->a + k0 * j->M + m0),
                              .stride = j->M * sizeof(float),
                              .rows = kc,
                              .lines = (uint32_t)((m + LINE_FLOATS - 1) / LINE_FLOATS)};
    return (struct ahead){.at = (const char *)(j->a + m0 * j->K + k0),
                          .stride = j->K * sizeof(float),
                          .rows = m,
                          .lines = (uint32_t)((kc + LINE_FLOATS - 1) / LINE_FLOATS)};
}

static void multiply_chunk(void *ctx, uint32_t chunk, uint32_t worker) {
    struct job *j = ctx;
    const struct product *k = j->mm->product;
    size_t m0 = chunk / j->splits * j->rows, m = smaller(j->rows, j->M - m0);
    size_t n0 = chunk % j->splits * j->cols;
    if (n0 >= j->nc) return;
    size_t n = smaller(j->cols, j->nc - n0);
    float *pa = j->mm->pack_a + (size_t)worker * MATMUL_PACK_A;
    bool direct = k->direct && j->form != MATMUL_TN && j->kc == j->K && n < PACK_COLUMNS_MIN;
    size_t at = m0 * j->N + j->n0 + n0, lda = direct ? j->K : 0;
    const float *add = j->k0 ? j->c + at : j->add ? j->add + at : NULL, *a = pa;
    if (j->form == MATMUL_TN) {
        k->pack_a(pa, j->a + j->k0 * j->M + m0, 1, j->M, m, j->kc);
    } else {
        size_t whole = direct ? m / k->mr * k->mr : 0; /* rows that stay where they are */
        if (direct) a = j->a + m0 * j->K + j->k0;
        if (whole < m) k->pack_a(pa, j->a + (m0 + whole) * j->K + j->k0, j->K, 1, m - whole, j->kc);
    }
    size_t early = n > AHEAD_PANELS * k->nr ? (n / k->nr - AHEAD_PANELS) * k->nr : 0;
    struct ahead none = {.rows = 0}, ahead = next_rows(j, chunk);
    if (early)
        k->block(m, early, j->kp, a, lda, pa, panel_at(j, n0), j->c + at, j->N, add, j->N, &none);
    k->block(m, n - early, j->kp, a, lda, pa, panel_at(j, n0 + early), j->c + at + early, j->N,
             add ? add + early : NULL, j->N, &ahead);
}

/* About four chunks a worker, so that one that is late holds nobody up; blocks as large as fit. */
static uint32_t cut(struct job *j) {
    size_t mr = j->mm->product->mr, nr = j->mm->product->nr;
    size_t threads = pool_threads(j->mm->pool), want = threads > 1 ? 4 * threads : 1;
    size_t most = MATMUL_MC / mr * mr;
    j->rows = smaller(most, round_up((j->M + want - 1) / want, mr));
    if (j->rows < most / 2) j->rows = smaller(most / 2 / mr * mr, round_up(j->M, mr));
    size_t blocks = (j->M + j->rows - 1) / j->rows;
    size_t splits = blocks >= want ? 1 : (want + blocks - 1) / blocks;
    j->cols = round_up((j->nc + splits - 1) / splits, nr);
    if (j->cols < 8 * nr) j->cols = 8 * nr;
    j->splits = (j->nc + j->cols - 1) / j->cols;
    return (uint32_t)(blocks * j->splits);
}

void matmul_run(const struct matmul *mm, enum matmul_form form, size_t M, size_t N, size_t K,
                const float *a, const float *b, float *c, const float *add) {
    CHECK(M > 0);
    CHECK(N > 0);
    CHECK(K > 0);
    struct job j = {
        .mm = mm, .form = form, .M = M, .N = N, .K = K, .a = a, .b = b, .c = c, .add = add};
    size_t width = (size_t)PACK_PANELS * mm->product->nr;
    for (j.n0 = 0; j.n0 < N; j.n0 += MATMUL_NC) {
        j.nc = smaller(MATMUL_NC, N - j.n0);
        uint32_t chunks = cut(&j);
        for (j.k0 = 0; j.k0 < K; j.k0 += MATMUL_KC) {
            j.kc = smaller(MATMUL_KC, K - j.k0);
            j.kp = round_up(j.kc, mm->product->kstep);
            pool_run(mm->pool, (uint32_t)((j.nc + width - 1) / width), pack_chunk, &j);
            pool_run(mm->pool, chunks, multiply_chunk, &j);
        }
    }
}
