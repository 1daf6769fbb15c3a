/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - what a model is: config.json as Hugging Face writes it for Qwen3ForCausalLM, the table of
 * tensors that follows from it, the first weights.
 *
 * Reading is strict where a wrong guess would train another model: an unknown architecture, rope
 * scaling, sliding windows, biases or another activation are refused with the field's name. Keys that
 * do not change the mathematics (token ids, cache settings, library versions) are passed over. */
#include "train/train.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { SIZE_MAX_FIELD = 1 << 24, LAYERS_MAX = 1024, HEADS_MAX = 4096 };

struct fields { /* the object being read and where errors go */
    json_t *root;
    const char *path;
    struct err *e;
};

static enum brg_status get_count(const struct fields *f, const char *key, uint32_t max,
                                 uint32_t missing, uint32_t *out) {
    json_t *v = json_object_get(f->root, key);
    if (!v || json_is_null(v)) {
        if (missing == 0)
            return err_set(f->e, BRG_E_MODEL, "%s: field %s is missing: add it (a whole number)",
                           f->path, key);
        if (missing > max) /* it follows from other fields, and those are too large */
            return err_set(f->e, BRG_E_MODEL,
                           "%s: field %s is missing, and %u is too large for it: add it", f->path,
                           key, missing);
        *out = missing;
        return BRG_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return err_set(f->e, BRG_E_MODEL, "%s: field %s must be a whole number from 1 to %u",
                       f->path, key, max);
    *out = (uint32_t)json_integer_value(v);
    return BRG_OK;
}

/* above is the bound that the value must exceed. */
static enum brg_status get_number(const struct fields *f, json_t *object, const char *key,
                                  double above, double missing, double *out) {
    json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) {
        *out = missing;
        return BRG_OK;
    }
    double x = json_is_number(v) ? json_number_value(v) : (double)NAN;
    if (!isfinite(x) || !(x > above))
        return err_set(f->e, BRG_E_MODEL, "%s: field %s must be a number above %g", f->path, key,
                       above);
    *out = x;
    return BRG_OK;
}

static enum brg_status get_flag(const struct fields *f, const char *key, bool missing, bool *out) {
    json_t *v = json_object_get(f->root, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return err_set(f->e, BRG_E_MODEL, "%s: field %s must be true or false", f->path, key);
    *out = json_is_boolean(v) ? json_is_true(v) : missing;
    return BRG_OK;
}

static bool names_qwen3(json_t *list) {
    json_t *v = json_array_get(list, 0);
    return json_array_size(list) == 1 && json_is_string(v) &&
           strcmp(json_string_value(v), "Qwen3ForCausalLM") == 0;
}

static enum brg_status check_architecture(const struct fields *f) {
    json_t *list = json_object_get(f->root, "architectures");
    json_t *type = json_object_get(f->root, "model_type");
    if (list && !json_is_null(list) && !names_qwen3(list))
        return err_set(
            f->e, BRG_E_MODEL,
            "%s: field architectures must be [\"Qwen3ForCausalLM\"], the one architecture "
            "that is trained here",
            f->path);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "qwen3") != 0))
        return err_set(
            f->e, BRG_E_MODEL,
            "%s: field model_type must be \"qwen3\", the one architecture that is trained "
            "here",
            f->path);
    if (!type && (!list || json_is_null(list)))
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field architectures is missing: add \"architectures\": "
                       "[\"Qwen3ForCausalLM\"]",
                       f->path);
    return BRG_OK;
}

/* Fields that would change the mathematics must have the value that is implemented. */
static enum brg_status check_variants(const struct fields *f) {
    bool flag;
    double dropout;
    TRY(get_flag(f, "attention_bias", false, &flag));
    if (flag)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field attention_bias must be false: biases are not "
                       "implemented",
                       f->path);
    TRY(get_flag(f, "use_sliding_window", false, &flag));
    if (flag)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field use_sliding_window must be false: attention is "
                       "always full",
                       f->path);
    TRY(get_number(f, f->root, "attention_dropout", -1e-300, 0.0, &dropout));
    if (dropout > 0.0)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field attention_dropout must be 0: dropout is not "
                       "implemented",
                       f->path);
    json_t *act = json_object_get(f->root, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return err_set(f->e, BRG_E_MODEL, "%s: field hidden_act must be \"silu\"", f->path);
    json_t *scaling = json_object_get(f->root, "rope_scaling");
    if (scaling && !json_is_null(scaling))
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field rope_scaling must be null: scaled rotations are "
                       "not implemented",
                       f->path);
    if (json_object_get(f->root, "quantization_config"))
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field quantization_config: take the weights of the "
                       "unquantised model",
                       f->path);
    return BRG_OK;
}

/* Newer files keep the base under rope_parameters. */
static enum brg_status get_rope_theta(const struct fields *f, double *out) {
    json_t *inner = json_object_get(f->root, "rope_parameters");
    if (inner && !json_is_null(inner)) {
        if (!json_is_object(inner))
            return err_set(f->e, BRG_E_MODEL, "%s: field rope_parameters must be an object",
                           f->path);
        json_t *type = json_object_get(inner, "rope_type");
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
            return err_set(f->e, BRG_E_MODEL,
                           "%s: field rope_parameters.rope_type must be "
                           "\"default\": scaled rotations are not implemented",
                           f->path);
        if (json_object_get(inner, "rope_theta"))
            return get_number(f, inner, "rope_theta", 0.0, 10000.0, out);
    }
    return get_number(f, f->root, "rope_theta", 0.0, 10000.0, out);
}

static enum brg_status check_shape(const struct fields *f, const struct model_config *c) {
    if (c->num_attention_heads % c->num_key_value_heads != 0)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field num_key_value_heads (%u) must divide num_attention_heads (%u)",
                       f->path, c->num_key_value_heads, c->num_attention_heads);
    if (c->head_dim % 2 != 0)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: field head_dim (%u) must be even: rotation works on "
                       "halves",
                       f->path, c->head_dim);
    if ((double)model_parameters(c) > 1e12)
        return err_set(f->e, BRG_E_MODEL,
                       "%s: the model has %.3g parameters; at most 1e12 are "
                       "possible: shrink vocab_size, hidden_size or num_hidden_layers",
                       f->path, (double)model_parameters(c));
    return BRG_OK;
}

static enum brg_status read_fields(const struct fields *f, struct model_config *c) {
    TRY(check_architecture(f));
    TRY(check_variants(f));
    TRY(get_count(f, "vocab_size", SIZE_MAX_FIELD, 0, &c->vocab_size));
    TRY(get_count(f, "hidden_size", SIZE_MAX_FIELD, 0, &c->hidden_size));
    TRY(get_count(f, "intermediate_size", SIZE_MAX_FIELD, 0, &c->intermediate_size));
    TRY(get_count(f, "num_hidden_layers", LAYERS_MAX, 0, &c->num_hidden_layers));
    TRY(get_count(f, "num_attention_heads", HEADS_MAX, 0, &c->num_attention_heads));
    TRY(get_count(f, "num_key_value_heads", HEADS_MAX, c->num_attention_heads,
                  &c->num_key_value_heads));
    uint32_t head = c->hidden_size / c->num_attention_heads;
    TRY(get_count(f, "head_dim", 1 << 16, head ? head : 1, &c->head_dim));
    TRY(get_count(f, "max_position_embeddings", SIZE_MAX_FIELD, 32768,
                  &c->max_position_embeddings));
    TRY(get_number(f, f->root, "rms_norm_eps", 0.0, 1e-6, &c->rms_norm_eps));
    TRY(get_number(f, f->root, "initializer_range", 0.0, 0.02, &c->initializer_range));
    TRY(get_rope_theta(f, &c->rope_theta));
    TRY(get_flag(f, "tie_word_embeddings", false, &c->tie_word_embeddings));
    return check_shape(f, c);
}

enum brg_status model_config_parse(const char *json, size_t bytes, const char *path,
                                   struct model_config *out, struct err *e) {
    json_error_t je;
    struct model_config c = {0};
    struct fields f = {json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &je), path, e};
    if (!f.root)
        return err_set(e, BRG_E_MODEL, "%s: line %d: %s: correct the JSON", path, je.line, je.text);
    enum brg_status s =
        json_is_object(f.root)
            ? read_fields(&f, &c)
            : err_set(e, BRG_E_MODEL, "%s: the file must hold one JSON object", path);
    json_decref(f.root);
    if (s == BRG_OK) *out = c;
    return s;
}

void model_config_json(const struct model_config *c, struct buf *out) {
    buf_printf(out, "{\n  \"architectures\": [\n    \"Qwen3ForCausalLM\"\n  ],\n");
    buf_printf(out, "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n");
    buf_printf(out, "  \"head_dim\": %u,\n  \"hidden_act\": \"silu\",\n", c->head_dim);
    buf_printf(out, "  \"hidden_size\": %u,\n", c->hidden_size);
    buf_printf(out, "  \"initializer_range\": %.17g,\n", c->initializer_range);
    buf_printf(out, "  \"intermediate_size\": %u,\n", c->intermediate_size);
    buf_printf(out, "  \"max_position_embeddings\": %u,\n", c->max_position_embeddings);
    buf_printf(out, "  \"model_type\": \"qwen3\",\n");
    buf_printf(out, "  \"num_attention_heads\": %u,\n", c->num_attention_heads);
    buf_printf(out, "  \"num_hidden_layers\": %u,\n", c->num_hidden_layers);
    buf_printf(out, "  \"num_key_value_heads\": %u,\n", c->num_key_value_heads);
    buf_printf(out, "  \"rms_norm_eps\": %.17g,\n", c->rms_norm_eps);
    buf_printf(out, "  \"rope_scaling\": null,\n  \"rope_theta\": %.17g,\n", c->rope_theta);
    buf_printf(out, "  \"sliding_window\": null,\n  \"tie_word_embeddings\": %s,\n",
               c->tie_word_embeddings ? "true" : "false");
    buf_printf(out, "  \"torch_dtype\": \"float32\",\n  \"use_cache\": true,\n");
    buf_printf(out, "  \"use_sliding_window\": false,\n  \"vocab_size\": %u\n}\n", c->vocab_size);
}

const char *model_config_differs(const struct model_config *a, const struct model_config *b) {
    if (a->vocab_size != b->vocab_size) return "vocab_size";
    if (a->hidden_size != b->hidden_size) return "hidden_size";
    if (a->intermediate_size != b->intermediate_size) return "intermediate_size";
    if (a->num_hidden_layers != b->num_hidden_layers) return "num_hidden_layers";
    if (a->num_attention_heads != b->num_attention_heads) return "num_attention_heads";
    if (a->num_key_value_heads != b->num_key_value_heads) return "num_key_value_heads";
    if (a->head_dim != b->head_dim) return "head_dim";
    if (a->rms_norm_eps != b->rms_norm_eps) return "rms_norm_eps";
    if (a->rope_theta != b->rope_theta) return "rope_theta";
    if (a->tie_word_embeddings != b->tie_word_embeddings) return "tie_word_embeddings";
    return NULL;
}

static void add_1d(struct tensors *t, const char *name, uint64_t n) {
    tensors_add(t, name, TENSOR_F32, 1, &n);
}

static void add_2d(struct tensors *t, const char *name, uint64_t rows, uint64_t columns) {
    uint64_t shape[2] = {rows, columns};
    tensors_add(t, name, TENSOR_F32, 2, shape);
}

static const char *layer_name(char out[TENSOR_NAME_MAX], uint32_t layer, const char *rest) {
    snprintf(out, TENSOR_NAME_MAX, "model.layers.%u.%s.weight", layer, rest);
    return out;
}

void model_tensors(const struct model_config *c, struct tensors *out) {
    uint64_t C = c->hidden_size, F = c->intermediate_size, D = c->head_dim;
    uint64_t Q = c->num_attention_heads * D, K = c->num_key_value_heads * D;
    char n[TENSOR_NAME_MAX];
    add_2d(out, "model.embed_tokens.weight", c->vocab_size, C);
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        add_1d(out, layer_name(n, l, "input_layernorm"), C);
        add_2d(out, layer_name(n, l, "self_attn.q_proj"), Q, C);
        add_2d(out, layer_name(n, l, "self_attn.k_proj"), K, C);
        add_2d(out, layer_name(n, l, "self_attn.v_proj"), K, C);
        add_2d(out, layer_name(n, l, "self_attn.o_proj"), C, Q);
        add_1d(out, layer_name(n, l, "self_attn.q_norm"), D);
        add_1d(out, layer_name(n, l, "self_attn.k_norm"), D);
        add_1d(out, layer_name(n, l, "post_attention_layernorm"), C);
        add_2d(out, layer_name(n, l, "mlp.gate_proj"), F, C);
        add_2d(out, layer_name(n, l, "mlp.up_proj"), F, C);
        add_2d(out, layer_name(n, l, "mlp.down_proj"), C, F);
    }
    add_1d(out, "model.norm.weight", C);
    if (!c->tie_word_embeddings) add_2d(out, "lm_head.weight", c->vocab_size, C);
}

uint64_t model_parameters(const struct model_config *c) {
    uint64_t C = c->hidden_size, D = c->head_dim, V = c->vocab_size;
    uint64_t Q = c->num_attention_heads * D, K = c->num_key_value_heads * D;
    uint64_t layer = 2 * C + 2 * D + 2 * Q * C + 2 * K * C + 3 * C * c->intermediate_size;
    return V * C * (c->tie_word_embeddings ? 1 : 2) + layer * c->num_hidden_layers + C;
}

double model_flops_per_token(const struct model_config *c, uint32_t seq_len) {
    double C = c->hidden_size, Q = (double)c->num_attention_heads * c->head_dim;
    double K = (double)c->num_key_value_heads * c->head_dim;
    double layer = 2 * Q * C + 2 * K * C + 3 * C * c->intermediate_size;
    double products = layer * c->num_hidden_layers + C * c->vocab_size;
    /* scores and weighted values see (T+1)/2 keys on average */
    double attention = 2 * Q * (seq_len + 1.0) / 2 * c->num_hidden_layers;
    return 3 * 2 * (products + attention); /* a multiply-add counts 2, backward twice forward */
}

void model_init(const struct model_config *c, uint64_t seed, float *theta) {
    struct tensors table = {0};
    model_tensors(c, &table);
    for (size_t i = 0; i < table.count; i++) {
        const struct tensor *t = &table.v[i];
        struct prng p;
        prng_seed(&p, mix64(seed + mix64(i))); /* each tensor by itself */
        for (uint64_t j = 0; j < t->elements; j++)
            *theta++ = t->dims == 1 ? 1.0f : (float)(c->initializer_range * prng_normal(&p));
    }
    tensors_fini(&table);
}
