/* SPDX-License-Identifier: Apache-2.0 */
/* muon.c - Muon (K. Jordan et al., 2024) for the matrices of the layers.
 *
 * For a matrix W [r,c] with clipped gradient G, momentum M, rate lr and decay wd:
 *   M = mu M + G
 *   U = G + mu M                                  Nesterov's form
 *   X = U / |U|;  five times  X = a X + (b A + c A A) X,  A = X X',   a, b, c = 3.4445, -4.7750, 2.0315
 *   W = (1 - lr wd) W - lr s X,                   s = 0.2 sqrt(max(r, c))
 * The iteration (Newton and Schulz's, with coefficients that lift small singular values fast) leaves the
 * singular vectors of U and brings its singular values near 1. s gives the step the root mean square of an
 * AdamW step (arXiv 2502.16982), so that one schedule and one decay fit both. Where r > c the same
 * polynomial is taken from the other side, X (b A + c A A) with A = X' X: the smaller square.
 *
 * Query, key, value, output, gate, up and down are matrices of their own. The embedding, the head and the
 * norms are AdamW's, as in MuLoCo (arXiv 2505.23725), where Muon inside the two-loop scheme was measured.
 *
 * The products go through the device, in its precision: bf16 operands are what the method was made for.
 * Everything here is a fixed sequence of device operations, so (T1) bits do not depend on threads. */
#include <math.h>
#include <string.h>

#include "train/trainer.h"

enum { STEPS = 5 };
static const float A = 3.4445f, B = -4.7750f, C = 2.0315f;

struct muon muon_default(void) {
    return (struct muon){.momentum = 0.95, .lr_ratio = 1};
}

const char *optimizer_name(enum optimizer o) {
    return o == OPTIMIZER_MUON ? "muon" : "adamw";
}

bool optimizer_parse(const char *word, enum optimizer *out) {
    if (strcmp(word, "adamw") != 0 && strcmp(word, "muon") != 0) return false;
    *out = word[0] == 'm' ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
    return true;
}

static double scale_of(uint64_t rows, uint64_t columns) {
    return 0.2 * sqrt((double)(rows > columns ? rows : columns));
}

static bool is_muons(const struct tensor *x) {
    return x->dims == 2 && strncmp(x->name, "model.layers.", 13) == 0;
}

uint64_t muon_side(const struct tensors *model) {
    uint64_t most = 0;
    for (size_t i = 0; i < model->count; i++)
        for (uint32_t k = 0; is_muons(&model->v[i]) && k < 2; k++)
            if (model->v[i].shape[k] > most) most = model->v[i].shape[k];
    return most;
}

void muon_plan(struct trainer *t) {
    struct tensors table = {0};
    size_t at = 0, most = 0;
    if (!t->has_muon) return;
    model_tensors(&t->model, &table);
    t->matrices = mem_alloc(table.count, sizeof *t->matrices);
    for (size_t i = 0; i < table.count; i++) {
        const struct tensor *x = &table.v[i];
        if (is_muons(x))
            t->matrices[t->matrices_count++] =
                (struct matrix){at, (size_t)x->shape[0], (size_t)x->shape[1]};
        if (is_muons(x)) t->matrices_elements += x->elements;
        if (is_muons(x) && x->elements > most) most = x->elements;
        at += x->elements;
    }
    tensors_fini(&table);
    t->matrix_pieces = mem_alloc(most / ELEMENTS_CHUNK + 1, sizeof *t->matrix_pieces);
}

void muon_unplan(struct trainer *t) {
    mem_free(t->matrices);
    mem_free(t->matrix_pieces);
}

/* Each piece in double, pieces in order. */
static double norm_of(struct trainer *t, const float *x, size_t n) {
    size_t count = 0;
    double sum = 0;
    for (size_t at = 0; at < n; at += ELEMENTS_CHUNK)
        t->matrix_pieces[count++] = (struct piece){
            .offset = at, .count = n - at < ELEMENTS_CHUNK ? n - at : ELEMENTS_CHUNK};
    CHECK(count <= t->pieces_count); /* sums has that many places */
    t->ops->sum_squares(t->dev, t->sums, x, t->matrix_pieces, count);
    for (size_t i = 0; i < count; i++) sum += t->sums[i];
    return sqrt(sum);
}

/* One turn: from x to y. */
static void turn(struct trainer *t, const float *x, float *y, size_t r, size_t c) {
    const struct device_ops *ops = t->ops;
    float *gram = t->muon_gram, *poly = t->muon_gram2;
    size_t s = r <= c ? r : c;
    if (r <= c)
        ops->matmul(t->dev, MATMUL_NT, r, r, c, x, x, gram, NULL);
    else
        ops->matmul(t->dev, MATMUL_TN, c, c, r, x, x, gram, NULL);
    ops->matmul(t->dev, MATMUL_NN, s, s, s, gram, gram, poly, NULL);
    ops->axpby(t->dev, poly, gram, B, C, s * s);
    ops->axpby(t->dev, y, x, A, 0, r * c);
    if (r <= c)
        ops->matmul(t->dev, MATMUL_NN, r, c, r, poly, x, y, y);
    else
        ops->matmul(t->dev, MATMUL_NN, r, c, c, x, poly, y, y);
}

/* The orthogonalised x; it lies in x or in y. */
static const float *orthogonal(struct trainer *t, float *x, float *y, size_t r, size_t c) {
    double norm = norm_of(t, x, r * c);
    t->ops->axpby(t->dev, x, x, (float)(1 / (norm + 1e-7)), 0, r * c);
    for (int i = 0; i < STEPS; i++) {
        turn(t, x, y, r, c);
        float *swap = x;
        x = y;
        y = swap;
    }
    return x;
}

static void update_matrix(struct trainer *t, const struct matrix *w, float clip, double rate,
                          double decay) {
    const struct device_ops *ops = t->ops;
    size_t n = w->rows * w->columns;
    float mu = (float)t->muon.momentum, *m = t->m + w->offset, *u = t->muon_x;
    const float *g = t->grad + w->offset;
    ops->axpby(t->dev, m, g, clip, mu, n);
    ops->axpby(t->dev, u, g, clip, 0, n);
    ops->axpby(t->dev, u, m, mu, 1, n);
    const float *x = orthogonal(t, u, t->muon_y, w->rows, w->columns);
    double step = rate * scale_of(w->rows, w->columns);
    ops->axpby(t->dev, t->theta + w->offset, x, (float)-step, (float)decay, n);
}

void muon_update(struct trainer *t, const struct adamw *a, double lr, double clip) {
    double rate = lr * t->muon.lr_ratio;
    for (size_t i = 0; i < t->matrices_count; i++)
        update_matrix(t, &t->matrices[i], (float)clip, rate, 1 - rate * a->weight_decay);
    t->ops->finish(t->dev);
}
