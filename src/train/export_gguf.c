/* SPDX-License-Identifier: Apache-2.0 */
/* export_gguf.c - a Qwen3 model in llama.cpp's words: metadata, tensor names, the tokenizer.
 *
 * llama.cpp knows pre-tokenizers by name only: the pattern in tokenizer.json must be one of those it has
 * a name for, else the file would be read without complaint and give other tokens. So an unknown one is
 * refused. It does no normalisation: NFC in tokenizer.json is lost on texts that are not NFC already. */
#include <stdio.h>
#include <string.h>

#include "train/export.h"

/* ---- The model ------------------------------------------------------------------------------- */
static uint32_t file_type(enum tensor_type type) {
    return type == TENSOR_F32 ? 0 : type == TENSOR_F16 ? 1 : 32;
}

void export_gguf_model(struct gguf *g, const struct export *x) {
    const struct model_config *c = x->model;
    gguf_put_string(g, "general.architecture", "qwen3", 5);
    gguf_put_string(g, "general.name", x->name, strlen(x->name));
    if (x->version != NULL) gguf_put_string(g, "general.version", x->version, strlen(x->version));
    gguf_put_u32(g, "general.file_type", file_type(x->type));
    gguf_put_u32(g, "general.quantization_version", 2);
    gguf_put_u32(g, "qwen3.vocab_size", c->vocab_size);
    gguf_put_u32(g, "qwen3.block_count", c->num_hidden_layers);
    gguf_put_u32(g, "qwen3.context_length", c->max_position_embeddings);
    gguf_put_u32(g, "qwen3.embedding_length", c->hidden_size);
    gguf_put_u32(g, "qwen3.feed_forward_length", c->intermediate_size);
    gguf_put_u32(g, "qwen3.attention.head_count", c->num_attention_heads);
    gguf_put_u32(g, "qwen3.attention.head_count_kv", c->num_key_value_heads);
    gguf_put_u32(g, "qwen3.attention.key_length", c->head_dim);
    gguf_put_u32(g, "qwen3.attention.value_length", c->head_dim);
    gguf_put_f32(g, "qwen3.rope.freq_base", (float)c->rope_theta);
    gguf_put_f32(g, "qwen3.attention.layer_norm_rms_epsilon", (float)c->rms_norm_eps);
}

void export_gguf_name(const char *name, char out[TENSOR_NAME_MAX]) {
    static const struct {
        const char *ours, *theirs;
    } whole[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                 {"model.norm.weight", "output_norm.weight"},
                 {"lm_head.weight", "output.weight"}},
      layer[] = {{"input_layernorm.weight", "attn_norm"},
                 {"self_attn.q_proj.weight", "attn_q"},
                 {"self_attn.k_proj.weight", "attn_k"},
                 {"self_attn.v_proj.weight", "attn_v"},
                 {"self_attn.o_proj.weight", "attn_output"},
                 {"self_attn.q_norm.weight", "attn_q_norm"},
                 {"self_attn.k_norm.weight", "attn_k_norm"},
                 {"post_attention_layernorm.weight", "ffn_norm"},
                 {"mlp.gate_proj.weight", "ffn_gate"},
                 {"mlp.up_proj.weight", "ffn_up"},
                 {"mlp.down_proj.weight", "ffn_down"}};
    unsigned number = 0;
    int at = 0;
    for (size_t i = 0; i < ARRAY_COUNT(whole); i++) {
        if (strcmp(name, whole[i].ours) != 0) continue;
        (void)snprintf(out, TENSOR_NAME_MAX, "%s", whole[i].theirs);
        return;
    }
    CHECK(sscanf(name, "model.layers.%u.%n", &number, &at) == 1);
    for (size_t i = 0; i < ARRAY_COUNT(layer); i++) {
        if (strcmp(name + at, layer[i].ours) != 0) continue;
        (void)snprintf(out, TENSOR_NAME_MAX, "blk.%u.%s.weight", number, layer[i].theirs);
        return;
    }
    CHECK(false);
}

/* ---- The tokenizer --------------------------------------------------------------------------- */
#define WORD_ENDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define OTHERS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *pattern, *name;
} patterns[] = {
    {WORD_ENDS "\\p{N}" OTHERS, "qwen2"},
    {WORD_ENDS "\\p{N}{1,3}" OTHERS, "llama-bpe"},
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "gpt-2"},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "gpt-2"},
};

enum { IDS_MAX = 1 << 24 };

static enum brg_status bad(struct err *e, const char *what) {
    return err_set(e, BRG_E_TOKENIZER,
                   "tokenizer.json: %s; llama.cpp has no name for that: export with --format hf",
                   what);
}

struct steps { /* what the pre-tokenizer does */
    const char *pattern;
    bool byte_level, own_pattern,
        prefix; /* GPT-2's own pattern inside ByteLevel; a blank in front */
    unsigned others;
};

static void look_at(const json_t *step, struct steps *s, unsigned depth) {
    const char *type = json_string_value(json_object_get(step, "type"));
    size_t i;
    json_t *inner;
    if (type != NULL && strcmp(type, "Sequence") == 0 && depth < 4) {
        json_array_foreach(json_object_get(step, "pretokenizers"), i, inner)
            look_at(inner, s, depth + 1);
    } else if (type != NULL && strcmp(type, "Split") == 0 && s->pattern == NULL) {
        s->pattern = json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
        if (s->pattern == NULL) s->others++;
    } else if (type != NULL && strcmp(type, "ByteLevel") == 0) {
        s->byte_level = true;
        s->own_pattern = !json_is_false(json_object_get(step, "use_regex"));
        s->prefix = json_is_true(json_object_get(step, "add_prefix_space"));
    } else {
        s->others++;
    }
}

static enum brg_status pattern_name(const json_t *tokenizer, const char **out, struct err *e) {
    const json_t *merges = json_object_get(json_object_get(tokenizer, "model"), "merges");
    struct steps s = {0};
    look_at(json_object_get(tokenizer, "pre_tokenizer"), &s, 0);
    if (!s.byte_level || s.others > 0)
        return bad(e, "pre_tokenizer: is not a Split by a pattern and ByteLevel");
    if (s.prefix) return bad(e, "pre_tokenizer: add_prefix_space is set");
    *out = NULL;
    for (size_t i = 0; s.pattern != NULL && !s.own_pattern && i < ARRAY_COUNT(patterns); i++)
        if (strcmp(patterns[i].pattern, s.pattern) == 0) *out = patterns[i].name;
    /* without merges every split gives the same ids */
    if (s.pattern == NULL && (s.own_pattern || json_array_size(merges) == 0)) *out = "gpt-2";
    if (*out == NULL)
        return bad(e, "pre_tokenizer: the pattern is not Qwen's, GPT-2's or Llama 3's");
    return BRG_OK;
}

struct words {
    const char **text; /* [count], borrowed; NULL where no token has the number */
    size_t *bytes;
    int32_t *kind;
    uint32_t count;
};
enum { KIND_NORMAL = 1, KIND_CONTROL = 3, KIND_ADDED = 4, KIND_UNUSED = 5 };

static enum brg_status put_word(struct words *w, const char *text, const json_t *token,
                                const json_t *id, int32_t kind, struct err *e) {
    json_int_t n = json_integer_value(id);
    if (text == NULL || !json_is_integer(id) || n < 0 || n >= (json_int_t)w->count)
        return err_set(
            e, BRG_E_TOKENIZER,
            "tokenizer.json: token \"%.60s\": its id is not below the model's vocab_size "
            "%u; take the tokenizer that belongs to the model",
            text != NULL ? text : "", w->count);
    if (w->text[n] != NULL && strcmp(w->text[n], text) != 0)
        return err_set(e, BRG_E_TOKENIZER,
                       "tokenizer.json: tokens \"%.60s\" and \"%.60s\" have the same id %lld",
                       w->text[n], text, (long long)n);
    w->text[n] = text;
    w->bytes[n] = token != NULL ? json_string_length(token) : strlen(text);
    w->kind[n] = kind;
    return BRG_OK;
}

static enum brg_status take_words(struct words *w, const json_t *tokenizer, struct err *e) {
    const char *key;
    json_t *model = json_object_get(tokenizer, "model"), *value;
    const char *type = json_string_value(json_object_get(model, "type"));
    size_t i;
    if (type == NULL || strcmp(type, "BPE") != 0) return bad(e, "model.type is not BPE");
    json_object_foreach(json_object_get(model, "vocab"), key, value)
        TRY(put_word(w, key, NULL, value, KIND_NORMAL, e));
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value) {
        const json_t *content = json_object_get(value, "content");
        int32_t kind = json_is_true(json_object_get(value, "special")) ? KIND_CONTROL : KIND_ADDED;
        TRY(put_word(w, json_string_value(content), content, json_object_get(value, "id"), kind,
                     e));
    }
    return BRG_OK;
}

static void put_words(struct gguf *g, const struct words *w) {
    gguf_put_list(g, "tokenizer.ggml.tokens", GGUF_STRING, w->count);
    for (uint32_t i = 0; i < w->count; i++) {
        char unused[32];
        int n = snprintf(unused, sizeof unused, "[PAD%u]", i);
        if (w->text[i] != NULL)
            gguf_element_string(g, w->text[i], w->bytes[i]);
        else
            gguf_element_string(g, unused, (size_t)n);
    }
    gguf_put_list(g, "tokenizer.ggml.token_type", GGUF_I32, w->count);
    for (uint32_t i = 0; i < w->count; i++)
        gguf_element_i32(g, w->text[i] != NULL ? w->kind[i] : KIND_UNUSED);
}

/* A merge is "a b", or ["a", "b"] in newer files. */
static enum brg_status put_merges(struct gguf *g, const json_t *tokenizer, struct err *e) {
    const json_t *merges = json_object_get(json_object_get(tokenizer, "model"), "merges");
    size_t i;
    json_t *merge;
    AUTO_BUF struct buf pair;
    buf_init(&pair, 1 << 20);
    gguf_put_list(g, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, merge) {
        const char *a = json_string_value(json_array_get(merge, 0));
        const char *b = json_string_value(json_array_get(merge, 1));
        buf_reset(&pair);
        if (json_is_string(merge))
            buf_put(&pair, json_string_value(merge), json_string_length(merge));
        else if (a != NULL && b != NULL && json_array_size(merge) == 2)
            buf_printf(&pair, "%s %s", a, b);
        else
            return err_set(e, BRG_E_TOKENIZER,
                           "tokenizer.json: model.merges[%zu] is no pair; copy the file again", i);
        gguf_element_string(g, (const char *)pair.data, pair.bytes_count);
    }
    return BRG_OK;
}

static void put_id(struct gguf *g, const struct export_words *w, const char *from, const char *to,
                   uint32_t vocab_size) {
    json_t *id = json_object_get(w->ids, from);
    if (json_is_array(id)) id = json_array_get(id, 0);
    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < vocab_size)
        gguf_put_u32(g, to, (uint32_t)json_integer_value(id));
}

enum brg_status export_gguf_words(struct gguf *g, const struct export_words *w, uint32_t vocab_size,
                                  struct err *e) {
    const char *name = NULL;
    CHECK(w->tokenizer != NULL); /* llama.cpp ends in an assertion where a model has none */
    TRY(pattern_name(w->tokenizer, &name, e));
    CHECK(vocab_size <= IDS_MAX);
    AUTO_FREE const char **text = mem_alloc(vocab_size, sizeof *text);
    AUTO_FREE size_t *bytes = mem_alloc(vocab_size, sizeof *bytes);
    AUTO_FREE int32_t *kind = mem_alloc(vocab_size, sizeof *kind);
    struct words words = {.text = text, .bytes = bytes, .kind = kind, .count = vocab_size};
    TRY(take_words(&words, w->tokenizer, e));
    gguf_put_string(g, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(g, "tokenizer.ggml.pre", name, strlen(name));
    put_words(g, &words);
    TRY(put_merges(g, w->tokenizer, e));
    gguf_put_bool(g, "tokenizer.ggml.add_bos_token", false);
    put_id(g, w, "bos_token_id", "tokenizer.ggml.bos_token_id", vocab_size);
    put_id(g, w, "eos_token_id", "tokenizer.ggml.eos_token_id", vocab_size);
    put_id(g, w, "pad_token_id", "tokenizer.ggml.padding_token_id", vocab_size);
    return BRG_OK;
}
