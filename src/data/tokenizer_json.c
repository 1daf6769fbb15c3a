/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.c - tokenizer.json, the form of Hugging Face's tokenizers, both ways.
 *
 * What is read is what is understood in full: a byte-level BPE model without options, one of the
 * patterns of split.c, no normalizer, and <|endoftext|> as the only added token. Anything else
 * would give other ids than its authors meant, silently, and is refused by name instead. More is
 * added here
 * (and in split.c), field by field.
 *
 * Vocabulary entries are written in GPT-2's alphabet: each byte is one printable character, the
 * byte itself where that is printable in Latin-1, else the next free one from U+0100 on. */
#include "data/json.h"
#include "data/tokenizer.h"

#include <stdio.h>

static const char REMEDY[] = "use a byte-level BPE file as `beringia tokenizer train` writes it";

/* ---- The alphabet
 * -------------------------------------------------------------------------------- */
struct alphabet {
    uint16_t of_byte[256];
    int16_t of_char[0x144]; /* -1 where it is no letter of the alphabet */
};

static void alphabet_init(struct alphabet *a) {
    for (size_t i = 0; i < ARRAY_COUNT(a->of_char); i++) a->of_char[i] = -1;
    uint16_t next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        a->of_byte[b] = printable ? (uint16_t)b : next++;
        a->of_char[a->of_byte[b]] = (int16_t)b;
    }
    CHECK(next == ARRAY_COUNT(a->of_char));
}

static void alphabet_put(const struct alphabet *a, const uint8_t *p, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        uint16_t c = a->of_byte[p[i]];
        if (c < 0x80) {
            buf_u8(out, (uint8_t)c);
        } else {
            buf_u8(out, (uint8_t)(0xc0 | c >> 6));
            buf_u8(out, (uint8_t)(0x80 | (c & 0x3f)));
        }
    }
}

/* Gives the number of bytes; -1 where a character is not of the alphabet or text is too long. */
static int alphabet_get(const struct alphabet *a, const char *text, size_t n,
                        uint8_t out[TOKENIZER_TOKEN_BYTES_MAX]) {
    int count = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0x80) {
            if (c >= 0xe0 || i + 1 >= n) return -1; /* jansson checked that it is UTF-8 */
            c = (c & 0x1f) << 6 | ((uint8_t)text[++i] & 0x3f);
        }
        if (c >= ARRAY_COUNT(a->of_char) || a->of_char[c] < 0) return -1;
        if (count == TOKENIZER_TOKEN_BYTES_MAX) return -1;
        out[count++] = (uint8_t)a->of_char[c];
    }
    return count;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------- */
/* A field that is absent, null, false or "" counts as not set. */
static bool unset(const json_t *v) {
    return v == NULL || json_is_null(v) || json_is_false(v) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static enum brg_status want_unset(const struct json_place *w, const char *path, const json_t *o,
                                  const char *const *fields) {
    for (; *fields != NULL; fields++)
        if (!unset(json_object_get(o, *fields)))
            return json_bad(w, path, *fields, "is set, and not supported");
    return BRG_OK;
}

static enum brg_status want_type(const struct json_place *w, const char *path, const json_t *o,
                                 const char *type) {
    const char *have;
    TRY(json_get_text(w, path, o, "type", &have));
    if (strcmp(have, type) != 0)
        return json_bad(w, path, "type", "is \"%.60s\" where only \"%s\" is supported", have, type);
    return BRG_OK;
}

static enum brg_status read_byte_level(const struct json_place *w, const char *path,
                                       const json_t *o) {
    static const char *const KNOWN[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    static const char *const UNSET[] = {"add_prefix_space", "use_regex", NULL};
    if (!json_is_object(o)) return json_bad(w, path, "", "is no object");
    TRY(want_type(w, path, o, "ByteLevel"));
    TRY(json_known(w, path, o, KNOWN));
    return want_unset(w, path, o, UNSET);
}

static enum brg_status read_pattern(const struct json_place *w, const json_t *root,
                                    const char **out) {
    static const char *const KNOWN[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const UNSET[] = {"invert", NULL};
    static const char PATH[] = "pre_tokenizer.pretokenizers[0]";
    json_t *pre, *list, *pattern;
    const char *text;
    TRY(json_get(w, "", root, "pre_tokenizer", JSON_OBJECT, &pre));
    TRY(want_type(w, "pre_tokenizer", pre, "Sequence"));
    TRY(json_get(w, "pre_tokenizer", pre, "pretokenizers", JSON_ARRAY, &list));
    if (json_array_size(list) != 2)
        return json_bad(w, "pre_tokenizer", "pretokenizers",
                        "holds %zu steps where Split and ByteLevel are supported",
                        json_array_size(list));
    const json_t *split = json_array_get(list, 0);
    if (!json_is_object(split)) return json_bad(w, PATH, "", "is no object");
    TRY(want_type(w, PATH, split, "Split"));
    TRY(json_known(w, PATH, split, KNOWN));
    TRY(want_unset(w, PATH, split, UNSET));
    TRY(json_get_text(w, PATH, split, "behavior", &text));
    if (strcmp(text, "Isolated") != 0) return json_bad(w, PATH, "behavior", "is not \"Isolated\"");
    TRY(json_get(w, PATH, split, "pattern", JSON_OBJECT, &pattern));
    TRY(json_get_text(w, PATH, pattern, "Regex", &text));
    *out = split_name(text, strlen(text));
    if (*out == NULL) return json_bad(w, PATH, "pattern", "is none of the known patterns");
    return read_byte_level(w, "pre_tokenizer.pretokenizers[1]", json_array_get(list, 1));
}

static enum brg_status read_added(const struct json_place *w, const json_t *root,
                                  uint64_t *out_eot) {
    static const char *const KNOWN[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    static const char *const UNSET[] = {"single_word", "lstrip", "rstrip", NULL};
    static const char PATH[] = "added_tokens[0]";
    json_t *list;
    const char *content;
    TRY(json_get(w, "", root, "added_tokens", JSON_ARRAY, &list));
    const json_t *o = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_object(o))
        return json_bad(w, "", "added_tokens",
                        "holds %zu tokens where exactly one, " TOKENIZER_EOT_TEXT ", is supported",
                        json_array_size(list));
    TRY(json_known(w, PATH, o, KNOWN));
    TRY(want_unset(w, PATH, o, UNSET));
    TRY(json_get_text(w, PATH, o, "content", &content));
    if (strcmp(content, TOKENIZER_EOT_TEXT) != 0)
        return json_bad(w, PATH, "content", "is not " TOKENIZER_EOT_TEXT);
    if (!json_is_true(json_object_get(o, "special")))
        return json_bad(w, PATH, "special", "is not true");
    return json_get_u64(w, PATH, o, "id", TOKENIZER_VOCAB_MAX - 1, out_eot);
}

/* What a vocabulary is read into. names: entries as bytes, numbered as they came; ids: their ids.
 * */
struct vocab {
    struct alphabet alphabet;
    struct string_set names;
    uint32_t *ids, *name_of; /* name_of: by id */
    uint32_t count;          /* with the end-of-text token */
    uint32_t eot;
};

static void vocab_fini(struct vocab *v) {
    string_set_fini(&v->names);
    mem_free(v->ids);
    mem_free(v->name_of);
}

static enum brg_status read_vocab(const struct json_place *w, json_t *object, struct vocab *v) {
    uint8_t bytes[TOKENIZER_TOKEN_BYTES_MAX];
    char field[32];
    size_t entries = json_object_size(object);
    if (entries < 256 || entries >= TOKENIZER_VOCAB_MAX)
        return json_bad(w, "model", "vocab", "holds %zu entries where 256..%d are supported",
                        entries, TOKENIZER_VOCAB_MAX - 1);
    v->count = (uint32_t)entries + 1;
    if (v->eot != entries)
        return json_bad(w, "added_tokens[0]", "id",
                        "is %u where the end of the vocabulary, %zu, is "
                        "supported",
                        v->eot, entries);
    v->ids = mem_alloc(v->count, sizeof *v->ids);
    v->name_of = mem_alloc(v->count, sizeof *v->name_of);
    memset(v->name_of, 0xff, v->count * sizeof *v->name_of);
    for (void *i = json_object_iter(object); i != NULL; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        snprintf(field, sizeof field, "vocab entry %u", v->names.count);
        int n = alphabet_get(&v->alphabet, key, strlen(key), bytes);
        if (n <= 0) return json_bad(w, "model", field, "is not in the byte-level alphabet");
        if (!json_is_integer(value)) return json_bad(w, "model", field, "has no integer as its id");
        json_int_t id = json_integer_value(value);
        if (id < 0 || (uint64_t)id >= entries)
            return json_bad(w, "model", field, "has id %lld outside 0..%zu", (long long)id,
                            entries - 1);
        if (v->name_of[id] != TOKEN_NONE)
            return json_bad(w, "model", field, "has the id %lld of another entry", (long long)id);
        uint32_t name = string_set_add(&v->names, bytes, (size_t)n);
        CHECK(name + 1 == v->names.count); /* keys differ, so their bytes do */
        v->ids[name] = (uint32_t)id;
        v->name_of[id] = name;
    }
    return BRG_OK;
}

/* "a b" or ["a", "b"] */
static bool merge_halves(const json_t *m, const char **a, size_t *a_bytes, const char **b,
                         size_t *b_bytes) {
    if (json_is_array(m)) {
        const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
        if (json_array_size(m) != 2 || !json_is_string(x) || !json_is_string(y)) return false;
        *a = json_string_value(x);
        *a_bytes = json_string_length(x);
        *b = json_string_value(y);
        *b_bytes = json_string_length(y);
        return true;
    }
    if (!json_is_string(m)) return false;
    *a = json_string_value(m);
    const char *blank = strchr(*a, ' ');
    if (blank == NULL) return false;
    *a_bytes = (size_t)(blank - *a);
    *b = blank + 1;
    *b_bytes = strlen(*b);
    return true;
}

static enum brg_status read_merges(const struct json_place *w, const json_t *list,
                                   const struct vocab *v, struct merge *out) {
    uint8_t joined[2 * TOKENIZER_TOKEN_BYTES_MAX];
    char field[32];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *a, *b;
        size_t a_bytes, b_bytes;
        snprintf(field, sizeof field, "merges[%zu]", i);
        if (!merge_halves(json_array_get(list, i), &a, &a_bytes, &b, &b_bytes))
            return json_bad(w, "model", field, "is no pair of vocabulary entries");
        int n = alphabet_get(&v->alphabet, a, a_bytes, joined);
        int m = n <= 0 ? -1 : alphabet_get(&v->alphabet, b, b_bytes, joined + n);
        if (m <= 0) return json_bad(w, "model", field, "is not in the byte-level alphabet");
        uint32_t left = string_set_find(&v->names, joined, (size_t)n);
        uint32_t right = string_set_find(&v->names, joined + n, (size_t)m);
        uint32_t both = string_set_find(&v->names, joined, (size_t)n + (size_t)m);
        if (left == TOKEN_NONE || right == TOKEN_NONE || both == TOKEN_NONE)
            return json_bad(w, "model", field, "names what the vocabulary lacks");
        out[i] = (struct merge){v->ids[left], v->ids[right], v->ids[both]};
    }
    return BRG_OK;
}

/* Tables by id out of what was read. */
static enum brg_status build(const struct json_place *w, const struct vocab *v, const char *pattern,
                             struct merge **merges, uint32_t merges_count, struct tokenizer **out) {
    uint32_t byte_id[256];
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t name = string_set_find(&v->names, &(uint8_t){(uint8_t)b}, 1);
        if (name == TOKEN_NONE) return json_bad(w, "model", "vocab", "lacks the byte %u", b);
        byte_id[b] = v->ids[name];
    }
    uint32_t *at = mem_alloc((size_t)v->count + 1, sizeof *at);
    struct buf text;
    buf_init(&text, UINT32_MAX);
    for (uint32_t id = 0; id + 1 < v->count; id++) {
        const uint64_t *from = v->names.at + v->name_of[id];
        buf_put(&text, v->names.text.data + from[0], (size_t)(from[1] - from[0]));
        at[id + 1] = (uint32_t)text.bytes_count;
    }
    buf_put(&text, TOKENIZER_EOT_TEXT, strlen(TOKENIZER_EOT_TEXT));
    CHECK(!text.overflow);
    at[v->count] = (uint32_t)text.bytes_count;
    struct merge *taken = *merges;
    *merges = NULL;
    enum brg_status s = tokenizer_create(pattern, v->count, v->eot, byte_id, at, &text, taken,
                                         merges_count, out, w->e);
    if (s != BRG_OK) err_prefix(w->e, "%.200s", w->file);
    return s;
}

static enum brg_status read_model(const struct json_place *w, const json_t *root, struct vocab *v,
                                  const char *pattern, struct tokenizer **out) {
    static const char *const KNOWN[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    static const char *const UNSET[] = {"dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        NULL};
    json_t *model, *vocab, *merges;
    TRY(json_get(w, "", root, "model", JSON_OBJECT, &model));
    TRY(want_type(w, "model", model, "BPE"));
    TRY(json_known(w, "model", model, KNOWN));
    TRY(want_unset(w, "model", model, UNSET));
    TRY(json_get(w, "model", model, "vocab", JSON_OBJECT, &vocab));
    TRY(json_get(w, "model", model, "merges", JSON_ARRAY, &merges));
    if (json_array_size(merges) > TOKENIZER_VOCAB_MAX)
        return json_bad(w, "model", "merges", "are more than %d", TOKENIZER_VOCAB_MAX);
    TRY(read_vocab(w, vocab, v));
    AUTO_FREE struct merge *list = mem_alloc(json_array_size(merges), sizeof *list);
    TRY(read_merges(w, merges, v, list));
    return build(w, v, pattern, &list, (uint32_t)json_array_size(merges), out);
}

static enum brg_status read_root(const struct json_place *w, const json_t *root,
                                 struct tokenizer **out) {
    static const char *const KNOWN[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const UNSET[] = {"truncation", "padding", "normalizer", NULL};
    const char *pattern = NULL;
    uint64_t eot = 0;
    TRY(json_known(w, "", root, KNOWN));
    TRY(want_unset(w, "", root, UNSET));
    TRY(read_pattern(w, root, &pattern));
    const json_t *post = json_object_get(root, "post_processor");
    if (!unset(post)) TRY(read_byte_level(w, "post_processor", post));
    json_t *decoder;
    TRY(json_get(w, "", root, "decoder", JSON_OBJECT, &decoder));
    TRY(read_byte_level(w, "decoder", decoder));
    TRY(read_added(w, root, &eot));
    struct vocab v = {.eot = (uint32_t)eot};
    alphabet_init(&v.alphabet);
    string_set_init(&v.names, TOKENIZER_JSON_BYTES_MAX);
    enum brg_status s = read_model(w, root, &v, pattern, out);
    vocab_fini(&v);
    return s;
}

enum brg_status tokenizer_parse(const char *name, const void *json, size_t bytes,
                                struct tokenizer **out, struct err *e) {
    struct json_place w = {.file = name, .remedy = REMEDY, .status = BRG_E_TOKENIZER, .e = e};
    json_t *root;
    TRY(json_read(&w, json, bytes, &root));
    enum brg_status s = read_root(&w, root, out);
    json_decref(root);
    return s;
}

/* ---- Writing
 * ------------------------------------------------------------------------------------- */
static json_t *byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 0, "use_regex", 0);
}

enum brg_status tokenizer_write(const struct tokenizer *t, struct buf *out, struct err *e) {
    if (t->bytes_kind)
        return err_set(e, BRG_E_USAGE,
                       "the bytes tokenizer has no file; name it \"bytes\" instead");
    struct alphabet a;
    alphabet_init(&a);
    AUTO_BUF struct buf word;
    buf_init(&word, 4 * TOKENIZER_TOKEN_BYTES_MAX + 1);
    json_t *vocab = json_object(), *merges = json_array();
    for (uint32_t id = 0; id < t->vocab; id++) {
        size_t n;
        const uint8_t *p = tokenizer_token(t, id, &n);
        if (id == t->eot) continue;
        buf_reset(&word);
        alphabet_put(&a, p, n, &word);
        json_object_set_new(vocab, buf_cstr(&word), json_integer(id));
    }
    for (uint32_t i = 0; i < t->merges_count; i++) {
        size_t n;
        buf_reset(&word);
        const uint8_t *p = tokenizer_token(t, t->merges[i].left, &n);
        alphabet_put(&a, p, n, &word);
        buf_u8(&word, ' ');
        p = tokenizer_token(t, t->merges[i].right, &n);
        alphabet_put(&a, p, n, &word);
        json_array_append_new(merges, json_string(buf_cstr(&word)));
    }
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n,"
        " s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}, s:n, s:o,"
        " s:{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:b, s:o, s:o}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", (int)t->eot, "content",
        TOKENIZER_EOT_TEXT, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
        1, "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
        "pattern", "Regex", split_pattern(t->pattern_name), "behavior", "Isolated", "invert", 0,
        byte_level(), "post_processor", "decoder", byte_level(), "model", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    CHECK(root != NULL);
    json_write(root, out);
    json_decref(root);
    if (out->overflow) return err_set(e, BRG_E_LIMIT, "the tokenizer is too large to be written");
    return BRG_OK;
}
