/* SPDX-License-Identifier: Apache-2.0 */
/* bench_matmul.c - our matrix product beside oneDNN's, which is the bar and an oracle, and no part of the
 * program: it is loaded here if it is there (Debian's libdnnl2 or libdnnl-dev), one thread each.
 *
 *   bench_matmul [-n TRIES]
 *
 * Shapes are those of a step of the 7M and the 29M model of bench/train, and one large square. The
 * fastest of TRIES by processor time counts, in turns. Results must agree to 1e-5; the last line is
 * ours_gflops=... onednn_gflops=... ratio=... (geometric means). Fails where results differ. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/device.h"

/* dnnl_sgemm of oneDNN 2.x: row-major C[M,N] = alpha op(A) op(B) + beta C. */
typedef int sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha,
                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                  int64_t ldc);

static const struct shape {
    const char *name;
    size_t M, N, K;
    enum matmul_form form;
} SHAPES[] = {
    {"7m qkv", 2048, 512, 256, MATMUL_NT},
    {"7m gate, up", 2048, 1536, 256, MATMUL_NT},
    {"7m down", 2048, 256, 768, MATMUL_NT},
    {"7m head", 512, 8192, 256, MATMUL_NT},
    {"7m gate, up dx", 2048, 256, 1536, MATMUL_NN},
    {"7m head dx", 512, 256, 8192, MATMUL_NN},
    {"7m gate, up dw", 1536, 256, 2048, MATMUL_TN},
    {"7m down dw", 256, 768, 2048, MATMUL_TN},
    {"29m gate, up", 2048, 3072, 512, MATMUL_NT},
    {"29m gate, up dx", 2048, 512, 3072, MATMUL_NN},
    {"29m gate, up dw", 3072, 512, 2048, MATMUL_TN},
    {"large", 1024, 1024, 1024, MATMUL_NT},
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void theirs(sgemm *f, const struct shape *s, const float *a, const float *b, float *c) {
    bool ta = s->form == MATMUL_TN, tb = s->form == MATMUL_NT;
    int64_t M = (int64_t)s->M, N = (int64_t)s->N, K = (int64_t)s->K;
    if (f(ta ? 'T' : 'N', tb ? 'T' : 'N', M, N, K, 1.0f, a, ta ? M : K, b, tb ? K : N, 0.0f, c, N))
        exit(1);
}

struct rates {
    double ours, theirs, off;
};

static struct rates measure(struct device *d, sgemm *f, const struct shape *s, uint64_t tries) {
    size_t na = s->M * s->K, nb = s->N * s->K, nc = s->M * s->N, bytes = (na + nb + 2 * nc) * 4;
    float *a = d->ops->alloc(d, bytes), *b = a + na, *c = b + nb, *e = c + nc;
    CHECK(a != NULL);
    struct rates r = {0, 0, 0};
    struct prng p;
    prng_seed(&p, 1);
    for (size_t i = 0; i < na + nb; i++) a[i] = (float)(prng_unit(&p) - 0.5);
    double flop = 2.0 * (double)s->M * (double)s->N * (double)s->K, square = 0, off = 0;
    for (uint64_t i = 0; i < tries; i++) {
        double t0 = cpu_seconds();
        d->ops->matmul(d, s->form, s->M, s->N, s->K, a, b, c, NULL);
        double t1 = cpu_seconds();
        if (f) theirs(f, s, a, b, e);
        double t2 = cpu_seconds();
        r.ours = fmax(r.ours, flop / (t1 - t0) / 1e9);
        if (f) r.theirs = fmax(r.theirs, flop / (t2 - t1) / 1e9);
    }
    for (size_t i = 0; f && i < nc; i++) {
        off += pow((double)c[i] - (double)e[i], 2);
        square += pow((double)e[i], 2);
    }
    r.off = f ? sqrt(off / square) : 0;
    d->ops->release(d, a, bytes);
    return r;
}

int main(int argc, char **argv) {
    uint64_t tries = 15;
    if (argc > 2 && strcmp(argv[1], "-n") == 0 && (!parse_u64(argv[2], &tries) || tries == 0)) {
        fprintf(stderr, "bench_matmul: -n takes a whole number from 1\n");
        return 2;
    }
    struct err e = {0};
    struct device *d;
    setenv("OMP_NUM_THREADS", "1", 1);
    void *library = dlopen("libdnnl.so.2", RTLD_NOW);
    sgemm *f = NULL;
    if (library) *(void **)(void *)&f = dlsym(library, "dnnl_sgemm");
    if (device_open(NULL, 1, PRECISION_F32, &d, &e)) return 1;
    struct device_limits l = {.B = 1, .T = 1, .heads = 1, .kv_heads = 1, .D = 16, .R = 1, .C = 16};
    float *workspace = d->ops->alloc(d, (size_t)d->ops->workspace(d, &l) * 4);
    CHECK(workspace != NULL);
    d->ops->bind(d, &l, workspace);
    double ours = 0, others = 0;
    int wrong = 0;
    for (size_t i = 0; i < ARRAY_COUNT(SHAPES); i++) {
        struct rates r = measure(d, f, &SHAPES[i], tries);
        printf("%-16s %5zu %5zu %5zu  ours %6.1f  oneDNN %6.1f GFLOP/s  off by %.1e\n",
               SHAPES[i].name, SHAPES[i].M, SHAPES[i].N, SHAPES[i].K, r.ours, r.theirs, r.off);
        ours += log(r.ours) / ARRAY_COUNT(SHAPES);
        others += f ? log(r.theirs) / ARRAY_COUNT(SHAPES) : 0;
        wrong += !(r.off < 1e-5);
    }
    if (!f) printf("oneDNN is not here (libdnnl2): nothing beside\n");
    printf("device=%s ours_gflops=%.1f onednn_gflops=%.1f ratio=%.3f wrong=%d\n", d->name,
           exp(ours), f ? exp(others) : 0.0, f ? exp(ours - others) : 0.0, wrong);
    d->ops->release(d, workspace, (size_t)d->ops->workspace(d, &l) * 4);
    device_close(d);
    return wrong ? 1 : 0;
}
