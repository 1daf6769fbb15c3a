/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - config.json, the table of tensors, first weights, weights from files. */
#include "support.h"

#include "train/model_os.h"

#define BASE                                                                                       \
    "\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":50,\"hidden_size\":24,"               \
    "\"intermediate_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                  \
    "\"num_key_value_heads\":2"

static enum brg_status parse(const char *text, struct model_config *c, struct err *e) {
    memset(e, 0, sizeof *e);
    return model_config_parse(text, strlen(text), "x/config.json", c, e);
}

TEST(train_config_takes_defaults) {
    struct model_config c;
    struct err e;
    assert_int_equal(parse("{" BASE "}", &c, &e), BRG_OK);
    assert_int_equal(c.head_dim, 6);
    assert_false(c.tie_word_embeddings);
    assert_true(c.rope_theta == 10000.0 && c.rms_norm_eps == 1e-6);
    assert_int_equal(parse("{" BASE ",\"rope_parameters\":{\"rope_type\":\"default\","
                           "\"rope_theta\":500000},\"head_dim\":8,\"some_new_key\":[1,2]}",
                           &c, &e),
                     BRG_OK);
    assert_int_equal(c.head_dim, 8);
    assert_true(c.rope_theta == 500000.0);
}

TEST(train_config_refuses_with_file_and_field) {
    static const char *const cases[][2] = {
        {"{", "line"},
        {"[]", "object"},
        {"{}", "architectures"},
        {"{" BASE ",\"vocab_size\":50}", "duplicate"},
        {"{" BASE ",\"model_type\":\"llama\"}", "model_type"},
        {"{\"architectures\":[\"LlamaForCausalLM\"]}", "architectures"},
        {"{\"model_type\":\"qwen3\"}", "vocab_size"},
        {"{" BASE ",\"attention_bias\":true}", "attention_bias"},
        {"{" BASE ",\"attention_bias\":0}", "attention_bias"},
        {"{" BASE ",\"attention_dropout\":0.1}", "attention_dropout"},
        {"{" BASE ",\"hidden_act\":\"gelu\"}", "hidden_act"},
        {"{" BASE ",\"rope_scaling\":{\"type\":\"yarn\"}}", "rope_scaling"},
        {"{" BASE ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "rope_type"},
        {"{" BASE ",\"rope_theta\":0}", "rope_theta"},
        {"{" BASE ",\"rms_norm_eps\":\"small\"}", "rms_norm_eps"},
        {"{" BASE ",\"use_sliding_window\":true}", "use_sliding_window"},
        {"{" BASE ",\"quantization_config\":{}}", "quantization_config"},
        {"{" BASE ",\"head_dim\":7}", "head_dim"},
        {"{" BASE ",\"head_dim\":-2}", "head_dim"},
        {"{" BASE ",\"tie_word_embeddings\":1}", "tie_word_embeddings"},
        {"{\"model_type\":\"qwen3\",\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,"
         "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":3}",
         "num_key_value_heads"},
        {"{\"model_type\":\"qwen3\",\"vocab_size\":30,\"hidden_size\":88824,\"intermediate_size\":"
         "8,"
         "\"num_hidden_layers\":1,\"num_attention_heads\":1}",
         "head_dim"}, /* what follows from others is bounded too */
        {"{\"model_type\":\"qwen3\",\"vocab_size\":1e3}", "vocab_size"},
        {"{\"model_type\":\"qwen3\",\"vocab_size\":99999999999}", "vocab_size"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct model_config c = {.vocab_size = 77};
        struct err e;
        enum brg_status s = parse(cases[i][0], &c, &e);
        if (s != BRG_E_MODEL) fail_msg("%s: status %d", cases[i][0], s);
        if (!strstr(e.text, "x/config.json") || !strstr(e.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], e.text);
        assert_int_equal(c.vocab_size, 77);
    }
}

TEST(train_config_text_reads_back) {
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct model_config c = small_model(seed), d;
        struct buf b = {.bytes_max = 1 << 16};
        struct err e;
        c.initializer_range = 0.1 / 3;
        memset(&d, 0, sizeof d);
        model_config_json(&c, &b);
        assert_int_equal(model_config_parse((char *)b.data, b.bytes_count, "x", &d, &e), BRG_OK);
        assert_true(c.initializer_range == d.initializer_range && c.rope_theta == d.rope_theta &&
                    c.rms_norm_eps == d.rms_norm_eps);
        assert_int_equal(c.head_dim, d.head_dim);
        assert_int_equal(c.tie_word_embeddings, d.tie_word_embeddings);
        assert_int_equal(model_parameters(&c), model_parameters(&d));
        buf_fini(&b);
    }
}

TEST(train_table_counts_what_the_formula_counts) {
    for (uint32_t seed = 0; seed < 30; seed++) {
        struct model_config c = small_model(seed);
        struct tensors t = {0};
        uint64_t sum = 0;
        model_tensors(&c, &t);
        for (size_t i = 0; i < t.count; i++) sum += t.v[i].elements;
        assert_int_equal(sum, model_parameters(&c));
        assert_string_equal(t.v[0].name, "model.embed_tokens.weight");
        assert_string_equal(t.v[2].name, "model.layers.0.self_attn.q_proj.weight");
        tensors_fini(&t);
    }
    struct model_config q = {.vocab_size = 151936,
                             .hidden_size = 1024,
                             .intermediate_size = 3072,
                             .num_hidden_layers = 28,
                             .num_attention_heads = 16,
                             .num_key_value_heads = 8,
                             .head_dim = 128,
                             .tie_word_embeddings = true};
    assert_int_equal(model_parameters(&q), 596049920); /* Qwen3-0.6B */
    assert_true(fabs(model_flops_per_token(&q, 1024) - 3.93e9) < 0.01e9);
}

TEST(train_first_weights_follow_from_the_seed) {
    struct model_config c = small_model(1);
    struct tensors t = {0};
    size_t P = model_parameters(&c), at = 0;
    float *a = mem_alloc(P, 4), *b = mem_alloc(P, 4);
    model_init(&c, 7, a);
    model_init(&c, 7, b);
    assert_memory_equal(a, b, P * 4);
    model_init(&c, 8, b);
    assert_memory_not_equal(a, b, P * 4);
    model_tensors(&c, &t);
    for (size_t i = 0; i < t.count; i++) {
        double sum = 0, squares = 0, n = (double)t.v[i].elements;
        for (size_t j = 0; j < t.v[i].elements; j++, at++) {
            sum += (double)a[at];
            squares += (double)a[at] * (double)a[at];
        }
        if (t.v[i].dims == 1)
            assert_true(sum == n && squares == n);
        else
            assert_true(fabs(sqrt(squares / n) - 0.02) < 0.02 * 3 / sqrt(n) + 1e-4);
    }
    tensors_fini(&t);
    mem_free(a);
    mem_free(b);
}

static void save(const char *dir, const struct model_config *c, const float *theta) {
    struct err e;
    if (model_save(dir, c, theta, &e)) fail_msg("%s", e.text);
}

TEST(train_weights_read_back_and_foreign_ones_are_refused) {
    struct model_config c = small_model(2), other;
    struct err e = {0};
    char path[OS_PATH_MAX];
    size_t P = model_parameters(&c);
    float *a = mem_alloc(P, 4), *b = mem_alloc(4 * P + 100000, 4);
    model_init(&c, 7, a);
    save(test_dir(), &c, a);
    assert_int_equal(model_load_weights(test_dir(), &c, b, &e), BRG_OK);
    assert_memory_equal(a, b, P * 4);
    assert_int_equal(model_config_load(os_path(path, test_dir(), "config.json"), &other, &e),
                     BRG_OK);
    assert_int_equal(model_parameters(&other), P);
    other.num_hidden_layers = 3;
    assert_int_equal(model_load_weights(test_dir(), &other, b, &e), BRG_E_MODEL);
    assert_non_null(strstr(e.text, "model.layers.2."));
    other.num_hidden_layers = 1;
    assert_int_equal(model_load_weights(test_dir(), &other, b, &e), BRG_E_MODEL);
    assert_non_null(strstr(e.text, "model.layers.1."));
    other = c;
    other.intermediate_size++;
    assert_int_equal(model_load_weights(test_dir(), &other, b, &e), BRG_E_MODEL);
    assert_non_null(strstr(e.text, "mlp.gate_proj"));
    assert_int_equal(model_load_weights("/nonexistent", &c, b, &e), BRG_E_MISSING);
    mem_free(a);
    mem_free(b);
}

/* A file in half precision: the values of every f16 class, and of bf16. */
TEST(train_half_precision_weights_are_read_exactly) {
    struct model_config c = small_model(3);
    struct tensors want = {0};
    c.tie_word_embeddings = true;
    model_tensors(&c, &want);
    size_t P = model_parameters(&c);
    float *theta = mem_alloc(P, 4);
    for (int kind = TENSOR_BF16; kind <= TENSOR_F16; kind++) {
        struct tensors t = {0};
        struct buf file = {.bytes_max = 1 << 22};
        struct err e = {0};
        char path[OS_PATH_MAX];
        for (size_t i = 0; i < want.count; i++)
            tensors_add(&t, want.v[i].name, (enum tensor_type)kind, want.v[i].dims,
                        want.v[i].shape);
        assert_int_equal(tensors_header(&t, &file, &e), BRG_OK);
        static const uint16_t half[] = {0x0000, 0x3c00, 0xc000, 0x0001, 0x83ff, 0x7bff, 0x0400};
        static const double value[] = {0, 1, -2, 0x1p-24, -1023 * 0x1p-24, 65504, 0x1p-14};
        static const uint16_t brain[] = {0x0000, 0x3f80, 0xc000, 0x3e80, 0xbf00, 0x7f00, 0x0080};
        static const double brain_value[] = {0, 1, -2, 0.25, -0.5, 0x1p127, 0x1p-126};
        for (size_t i = 0; i < P; i++) buf_u16(&file, (kind == TENSOR_F16 ? half : brain)[i % 7]);
        assert_int_equal(os_write_file_atomic(os_path(path, test_dir(), "model.safetensors"),
                                              file.data, file.bytes_count, &e),
                         BRG_OK);
        if (model_load_weights(test_dir(), &c, theta, &e)) fail_msg("%s", e.text);
        for (size_t i = 0; i < P; i++)
            assert_true((double)theta[i] == (kind == TENSOR_F16 ? value : brain_value)[i % 7]);
        buf_fini(&file);
        tensors_fini(&t);
    }
    tensors_fini(&want);
    mem_free(theta);
}
