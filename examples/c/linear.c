/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c - a trainer of one's own joins a run: which byte follows which, by a linear model.
 *
 * The model is one matrix W[V][V]: the scores of the next token are the row of the token before it.
 * Plain gradient descent, no library but libberingia. What a trainer has to do for a run is in main();
 * everything above it is the trainer.
 *
 *   cc -O2 linear.c $(pkg-config --cflags --libs beringia) -lm -o linear
 *   ./linear --weights w.safetensors 257              the model's first weights, for beringia init
 *   beringia init run --weights-file w.safetensors --data data --set train.lr=0.5 --set train.beta2=0
 *                     (beta2=0: the hub does not hold us to the pace of AdamW)
 *   beringia hub run --listen 127.0.0.1:7070 &
 *   ./linear http://127.0.0.1:7070 alpha data state-alpha
 *
 * C99, and C++ as well. SIGTERM ends it in good order. */
#include <beringia.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8 };
#define SECOND ((int64_t)1000000000)

static volatile int stop; /* brg_options.cancel: a signal handler sets it */

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* ---- The trainer ---------------------------------------------------------------------------------- */

/* One sample: T pairs of tokens. Adds to the gradient g[V][V], gives the sum of the losses in nats. */
static double gradient(const float *w, float *g, size_t V, const int32_t *tokens, size_t T,
                       float *p) {
    double loss = 0;
    for (size_t t = 0; t < T; t++) {
        const float *row = w + (size_t)tokens[t] * V;
        float *out = g + (size_t)tokens[t] * V;
        size_t next = (size_t)tokens[t + 1];
        float most = row[0], sum = 0;
        for (size_t i = 1; i < V; i++)
            if (row[i] > most) most = row[i];
        for (size_t i = 0; i < V; i++) sum += p[i] = expf(row[i] - most);
        for (size_t i = 0; i < V; i++) out[i] += p[i] / sum;
        out[next] -= 1;
        loss += log((double)(sum / p[next]));
    }
    return loss;
}

/* W = 0 as a safetensors file: the length of the header, the header, the numbers. */
static int weights_write(const char *path, unsigned long V) {
    char head[160];
    float row[1024] = {0};
    FILE *f = fopen(path, "wb");
    int n = snprintf(head, sizeof head,
                     "{\"W\":{\"dtype\":\"F32\",\"shape\":[%lu,%lu],\"data_offsets\":[0,%lu]}}", V,
                     V, V * V * 4);
    if (!f || V == 0 || V > 1024) return 1;
    for (int i = 0; i < 8; i++) fputc(i < 2 ? (n >> (8 * i)) & 255 : 0, f);
    fwrite(head, 1, (size_t)n, f);
    for (unsigned long i = 0; i < V; i++) fwrite(row, 4, V, f);
    return fclose(f) == 0 ? 0 : 1;
}

/* ---- The run -------------------------------------------------------------------------------------- */

static int complain(int status, const char *why) {
    fprintf(stderr, "linear: %s: %s\n", brg_status_name(status), why);
    return status;
}

static int train(struct brg_site *site, size_t V, size_t T) {
    uint64_t samples[BATCH], count = 0, steps = 0;
    int32_t *tokens = (int32_t *)malloc((T + 1) * sizeof *tokens);
    float *g = (float *)malloc(V * V * sizeof *g), *p = (float *)malloc(V * sizeof *p);
    float *w = brg_weights(site);
    int status = tokens && g && p ? BRG_GO : BRG_FAIL_MEMORY;
    while (status == BRG_GO || status == BRG_WAIT) {
        status = brg_take(site, BATCH, SECOND, samples, NULL, &count);
        if (status == BRG_GO) {
            double loss = 0, pairs = (double)count * (double)T;
            memset(g, 0, V * V * sizeof *g);
            for (uint64_t i = 0; i < count && status == BRG_GO; i++) {
                status = brg_sample(site, samples[i], tokens);
                if (status == BRG_GO) loss += gradient(w, g, V, tokens, T, p);
            }
            float rate = (float)(brg_lr(site) * (double)V / pairs);
            for (size_t i = 0; i < V * V; i++) w[i] -= rate * g[i];
            if (status == BRG_GO) status = brg_step(site, count, loss / pairs, NULL);
            if (steps++ % 20 == 0)
                printf("step %lu loss %.3f\n", (unsigned long)steps, loss / pairs);
        }
        if (status == BRG_GO || status == BRG_WAIT) {
            int synced = brg_sync(site, NULL); /* hands in, takes in; W changes in place */
            if (synced != BRG_GO) status = synced;
        }
    }
    free(tokens);
    free(g);
    free(p);
    return status;
}

int main(int argc, char **argv) {
    char why[600] = "";
    struct brg_options o;
    struct brg_run run;
    struct brg_tensor matrix;
    struct brg_trainer trainer;
    struct brg_site *site = NULL;
    if (argc == 4 && strcmp(argv[1], "--weights") == 0)
        return weights_write(argv[2], strtoul(argv[3], NULL, 10));
    if (argc != 5) return fprintf(stderr, "usage: linear HUB NAME DATA STATE\n"), BRG_FAIL_USAGE;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);

    brg_options_init(&o);
    o.hub_url = argv[1];
    o.site_name = argv[2];
    o.data_dir = argv[3];
    o.state_dir = argv[4];
    o.batch_samples = BATCH;
    o.cancel = &stop;
    int status = brg_open(&o, -1, &site, why, sizeof why);
    if (status == BRG_DRAIN) return 0;
    if (status != BRG_GO) return complain(status, why);
    memset(&run, 0, sizeof run);
    run.struct_bytes = sizeof run;
    brg_run(site, &run);

    memset(&matrix, 0, sizeof matrix);
    matrix.name = "W";
    matrix.dims = 2;
    matrix.shape[0] = matrix.shape[1] = run.vocab_size;
    memset(&trainer, 0, sizeof trainer);
    trainer.struct_bytes = sizeof trainer;
    trainer.tensors = &matrix;
    trainer.tensors_count = 1; /* weights stays NULL: the library allocates W */
    status = brg_join(site, &trainer, -1);
    if (status == BRG_GO) status = train(site, (size_t)run.vocab_size, (size_t)run.seq_len);
    if (status > 0) complain(status, brg_why(site));
    int closed = brg_close(site, 25 * SECOND);
    return status > 0 ? status : closed;
}
