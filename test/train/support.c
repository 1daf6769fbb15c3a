/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

static const char *golden_dir(void) {
    static const char *const places[] = {"test/golden", "../test/golden", "../../test/golden"};
    for (size_t i = 0; i < ARRAY_COUNT(places); i++)
        if (os_exists(places[i])) return places[i];
    fail_msg("test/golden is not found: run from the top of the tree");
    return NULL;
}

static void read_floats(const struct buf *file, const struct tensors *t, const char *name,
                        void *out) {
    const struct tensor *x = tensors_find(t, name);
    if (!x) fail_msg("golden tensor %s is missing", name);
    for (uint64_t i = 0; i < x->elements; i++) {
        uint32_t u = get_le32(file->data + x->offset + 4 * i);
        memcpy((char *)out + 4 * i, &u, 4);
    }
}

static double meta_number(const struct tensors *t, const char *key) {
    char text[64];
    double v;
    assert_true(tensors_meta_get(t, key, text, sizeof text));
    assert_true(parse_f64(text, &v));
    return v;
}

static void read_expected(struct golden *g, const struct tensors *have, const struct buf *file) {
    char name[TENSOR_NAME_MAX + 8];
    size_t at = 0;
    for (size_t i = 0; i < g->table.count; i++) {
        snprintf(name, sizeof name, "grad.%s", g->table.v[i].name);
        read_floats(file, have, name, g->grad + at);
        snprintf(name, sizeof name, "step.%s", g->table.v[i].name);
        read_floats(file, have, name, g->stepped + at);
        at += g->table.v[i].elements;
    }
    const struct tensor *ids = tensors_find(have, "ids");
    assert_non_null(ids);
    g->rows = (uint32_t)ids->shape[0];
    g->T = (uint32_t)ids->shape[1] - 1;
    g->ids = mem_alloc(ids->elements, sizeof *g->ids);
    read_floats(file, have, "ids", g->ids);
    g->loss = meta_number(have, "loss");
    g->norm = meta_number(have, "norm");
    g->lr = meta_number(have, "lr");
    g->adamw = (struct adamw){.beta1 = meta_number(have, "beta1"),
                              .beta2 = meta_number(have, "beta2"),
                              .eps = meta_number(have, "eps"),
                              .clip = meta_number(have, "clip"),
                              .weight_decay = meta_number(have, "weight_decay")};
}

void golden_load(const char *name, struct golden *g) {
    char dir[OS_PATH_MAX], path[OS_PATH_MAX];
    struct err e = {0};
    struct tensors have = {0};
    struct buf file = {.bytes_max = 1 << 22};
    memset(g, 0, sizeof *g);
    os_path(dir, golden_dir(), "%s", name);
    if (model_config_load(os_path(path, dir, "config.json"), &g->model, &e)) fail_msg("%s", e.text);
    model_tensors(&g->model, &g->table);
    size_t P = model_parameters(&g->model);
    g->theta = mem_alloc(P, sizeof(float));
    g->grad = mem_alloc(P, sizeof(float));
    g->stepped = mem_alloc(P, sizeof(float));
    if (model_load_weights(dir, &g->model, g->theta, &e)) fail_msg("%s", e.text);
    os_path(path, dir, "expected.safetensors");
    if (tensors_read(path, &have, &e)) fail_msg("%s", e.text);
    if (os_read_file(path, 1 << 22, &file, &e)) fail_msg("%s", e.text);
    read_expected(g, &have, &file);
    buf_fini(&file);
    tensors_fini(&have);
}

void golden_free(struct golden *g) {
    tensors_fini(&g->table);
    mem_free(g->theta);
    mem_free(g->grad);
    mem_free(g->stepped);
    mem_free(g->ids);
}

struct model_config small_model(uint32_t seed) {
    struct prng p;
    prng_seed(&p, seed);
    uint32_t kv = 1 + (uint32_t)prng_below(&p, 3);
    return (struct model_config){.vocab_size = 30 + (uint32_t)prng_below(&p, 60),
                                 .hidden_size = 5 + (uint32_t)prng_below(&p, 40),
                                 .intermediate_size = 3 + (uint32_t)prng_below(&p, 50),
                                 .num_hidden_layers = 2,
                                 .num_key_value_heads = kv,
                                 .num_attention_heads = kv * (1 + (uint32_t)prng_below(&p, 3)),
                                 .head_dim = 2 * (1 + (uint32_t)prng_below(&p, 20)),
                                 .max_position_embeddings = 4096,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000,
                                 .initializer_range = 0.02,
                                 .tie_word_embeddings = prng_below(&p, 2) == 1};
}

void random_weights(const struct model_config *c, uint64_t seed, float *theta) {
    struct tensors table = {0};
    struct prng p;
    prng_seed(&p, seed);
    model_tensors(c, &table);
    for (size_t i = 0; i < table.count; i++)
        for (uint64_t j = 0; j < table.v[i].elements; j++) {
            double x = prng_normal(&p);
            *theta++ = (float)(table.v[i].dims == 1 ? 1 + 0.2 * x : 0.25 * x);
        }
    tensors_fini(&table);
}

struct trainer *make_trainer(const struct model_config *c, uint32_t T, uint32_t batch,
                             uint32_t micro, uint32_t threads, const char *device) {
    struct trainer_options o = {.model = c,
                                .seq_len = T,
                                .batch_max = batch,
                                .micro_batch = micro,
                                .threads = threads,
                                .device = device};
    struct trainer *t = NULL;
    struct err e = {0};
    if (trainer_create(&o, &t, &e)) fail_msg("%s", e.text);
    return t;
}

float *random_floats(struct prng *p, size_t n, double scale) {
    float *x = mem_alloc(n ? n : 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * prng_normal(p));
    return x;
}

double distance(const float *a, const float *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return d == 0 ? 0 : sqrt(d / s);
}

double distance_d(const float *a, const double *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += b[i] * b[i];
    }
    return d == 0 ? 0 : sqrt(d / s);
}

void each_device(void (*body)(const char *device)) {
    for (size_t i = 0; device_name(i); i++) {
        struct device *d;
        struct err e = {0};
        if (device_open(device_name(i), 1, PRECISION_F32, &d, &e)) continue;
        device_close(d);
        print_message("device %s\n", device_name(i));
        body(device_name(i));
    }
}
