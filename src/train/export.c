/* SPDX-License-Identifier: Apache-2.0 */
/* export.c - the small files beside the weights of an exported model. */
#include <stdlib.h>
#include <string.h>

#include "train/export.h"

void export_words_fini(struct export_words *w) {
    json_decref(w->tokenizer);
    json_decref(w->ids);
    *w = (struct export_words){0};
}

static json_t *added_by_text(const json_t *tokenizer, const char *text) {
    size_t i;
    json_t *token;
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, token) {
        const char *content = json_string_value(json_object_get(token, "content"));
        if (content != NULL && strcmp(content, text) == 0) return json_object_get(token, "id");
    }
    return NULL;
}

/* What stands between documents, in the tokenizers of Qwen and GPT-2, and of Llama 3. */
void export_words_complete(struct export_words *w) {
    if (w->ids == NULL) w->ids = json_object();
    json_t *end = added_by_text(w->tokenizer, "<|endoftext|>");
    if (end == NULL) end = added_by_text(w->tokenizer, "<|end_of_text|>");
    json_t *begin = added_by_text(w->tokenizer, "<|begin_of_text|>");
    if (json_object_get(w->ids, "eos_token_id") != NULL || !json_is_integer(end)) return;
    (void)json_object_set(w->ids, "eos_token_id", end);
    (void)json_object_set(w->ids, "bos_token_id", json_is_integer(begin) ? begin : end);
    (void)json_object_set(w->ids, "pad_token_id", end);
}

static void print(const json_t *o, struct buf *out) {
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    CHECK(text != NULL);
    buf_printf(out, "%s\n", text);
    free(text);
}

static const char *torch_name(enum tensor_type type) {
    return type == TENSOR_F32 ? "float32" : type == TENSOR_F16 ? "float16" : "bfloat16";
}

void export_config_json(const struct export *x, struct buf *out) {
    AUTO_BUF struct buf plain;
    buf_init(&plain, 1 << 16);
    model_config_json(x->model, &plain);
    json_t *o = json_loadb((const char *)plain.data, plain.bytes_count, 0, NULL);
    CHECK(o != NULL);
    CHECK(json_object_update(o, x->words->ids) == 0);
    CHECK(json_object_set_new(o, "torch_dtype", json_string(torch_name(x->type))) == 0);
    print(o, out);
    json_decref(o);
}

void export_generation_json(const struct export *x, struct buf *out) {
    json_t *o = json_object();
    CHECK(json_object_set_new(o, "_from_model_config", json_true()) == 0);
    CHECK(json_object_update(o, x->words->ids) == 0);
    print(o, out);
    json_decref(o);
}

/* The text of an id, or of the first of several; NULL where it has none. */
static json_t *text_of(const struct export_words *w, const char *key) {
    json_t *id = json_object_get(w->ids, key), *token;
    size_t i;
    if (json_is_array(id)) id = json_array_get(id, 0);
    if (!json_is_integer(id)) return NULL;
    json_array_foreach(json_object_get(w->tokenizer, "added_tokens"), i, token) {
        if (json_integer_value(json_object_get(token, "id")) == json_integer_value(id))
            return json_object_get(token, "content");
    }
    return NULL;
}

void export_tokenizer_config_json(const struct export *x, struct buf *out) {
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token"};
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *o = json_pack("{s:b, s:s}", "clean_up_tokenization_spaces", 0, "tokenizer_class",
                          "PreTrainedTokenizerFast");
    CHECK(o != NULL);
    for (size_t i = 0; i < ARRAY_COUNT(keys); i++) {
        json_t *text = text_of(x->words, ids[i]);
        if (text != NULL) CHECK(json_object_set(o, keys[i], text) == 0);
    }
    if (x->model != NULL)
        CHECK(json_object_set_new(o, "model_max_length",
                                  json_integer(x->model->max_position_embeddings)) == 0);
    print(o, out);
    json_decref(o);
}

/* GPT-2's alphabet: a byte is one printable character, itself where that is printable in Latin-1, else
 * the next free one from U+0100 on. */
json_t *export_bytes_tokenizer(void) {
    json_t *vocab = json_object();
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned c = printable ? b : next++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            text[0] = (char)(0xc0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3f));
        }
        CHECK(json_object_set_new(vocab, text, json_integer(b)) == 0);
    }
    json_t *o = json_pack(
        "{s:s, s:n, s:n, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n, s:{s:s, s:b, s:b, s:b}, s:n,"
        " s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", 256, "content",
        "<|endoftext|>", "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1,
        "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
        0, "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0,
        "trim_offsets", 0, "use_regex", 0, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
        "ignore_merges", 0, "vocab", vocab, "merges");
    CHECK(o != NULL);
    return o;
}
