/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.c - tokenizer.json, the form of Hugging Face's tokenizers, both ways: byte-level BPE
 * of the kinds of Qwen3, GPT-2 and Llama 3.
 *
 *   the file --json_scan.c: one pass--> spans --jansson, tokenizer_parts.c--> the small fields
 *                                             --json_scan.c--> model.vocab, model.merges
 *
 * Vocabulary entries are spelled in GPT-2's alphabet (alphabet.c). An entry that is not (an added token
 * that is in the vocabulary, too) is never made of a text's bytes, and stands for its own letters. */
#include "data/json_scan.h"
#include "data/tokenizer_parts.h"
#include "data/utf8.h"

#include <stdio.h>

static const char REMEDY[] = "use a byte-level BPE file of the Qwen3, GPT-2 or Llama 3 kind, or "
                             "one that `beringia tokenizer "
                             "train` writes";

/* ---- Reading
 * ------------------------------------------------------------------------------------- */
struct span {
    size_t begin, end; /* of the text; begin == end: not there */
};

/* What a file is read into. names: entries as they are spelled, numbered as they came. */
struct reading {
    const struct json_place *w;
    struct json_scan scan; /* of the whole file */
    struct alphabet alphabet;
    struct span vocab, merges;
    struct string_set names;
    uint32_t *ids;     /* by name */
    uint32_t *name_of; /* by id; TOKEN_NONE where there is none */
    uint32_t ids_cap, name_of_cap;
    uint32_t top; /* the highest id + 1, added tokens included */
    struct buf text;
    struct tokenizer *t; /* being filled */
};

static enum brg_status bad_json(struct reading *r, const struct json_scan *at) {
    return err_set(r->w->e, r->w->status, "%.200s: byte %zu: no valid JSON; %s", r->w->file, at->at,
                   r->w->remedy);
}

static struct json_scan scan_of(const struct reading *r, struct span s) {
    return (struct json_scan){.text = r->scan.text, .bytes = s.end, .at = s.begin};
}

static bool take_span(struct reading *r, struct span *out) {
    if (!scan_skip(&r->scan, &out->begin)) return false;
    out->end = r->scan.at;
    return true;
}

/* A small value, by jansson. */
static json_t *value_of(const struct reading *r, struct span s) {
    return json_loadb(r->scan.text + s.begin, s.end - s.begin,
                      JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
}

/* Puts the object's fields into out; vocab and merges of the model stay spans. */
static enum brg_status read_fields(struct reading *r, const char *path, json_t *out) {
    static const char *const TOP[] = {"model", NULL}, *const MODEL[] = {"vocab", "merges", NULL};
    bool model = path[0] != 0;
    if (!scan_char(&r->scan, '{')) return bad_json(r, &r->scan);
    for (bool first = true; !scan_char(&r->scan, '}'); first = false) {
        if (!first && !scan_char(&r->scan, ',')) return bad_json(r, &r->scan);
        struct span s;
        if (!scan_string(&r->scan, &r->text) || !scan_char(&r->scan, ':'))
            return bad_json(r, &r->scan);
        char field[64];
        snprintf(field, sizeof field, "%s", buf_cstr(&r->text));
        for (char *p = field; *p != 0; p++) /* it may come to stand in an error text */
            if (*p < ' ' || *p > '~') *p = '?';
        const char *const *kept = model ? MODEL : TOP;
        while (*kept != NULL && strcmp(*kept, field) != 0) kept++;
        bool twice = json_object_get(out, field) != NULL;
        if (*kept == NULL) {
            if (!take_span(r, &s)) return bad_json(r, &r->scan);
            json_t *v = value_of(r, s);
            if (v == NULL) return json_bad(r->w, path, field, "is no valid JSON");
            if (json_object_set_new(out, field, v) != 0)
                return json_bad(r->w, path, "", "has a field without a proper name");
        } else if (model) {
            struct span *to = strcmp(field, "vocab") == 0 ? &r->vocab : &r->merges;
            twice = to->end != 0;
            if (!take_span(r, to)) return bad_json(r, &r->scan);
        } else if (!twice) {
            json_t *inner = json_object();
            json_object_set_new(out, field, inner);
            TRY(read_fields(r, field, inner));
        }
        if (twice) return json_bad(r->w, path, field, "is there twice");
    }
    return BRG_OK;
}

static void vocab_room(struct reading *r, uint32_t id) {
    if (id >= r->name_of_cap) {
        uint32_t cap = r->name_of_cap == 0 ? 512 : r->name_of_cap;
        while (cap <= id) cap *= 2;
        r->name_of = mem_grow(r->name_of, r->name_of_cap, cap, sizeof *r->name_of);
        memset(r->name_of + r->name_of_cap, 0xff, (cap - r->name_of_cap) * sizeof *r->name_of);
        r->name_of_cap = cap;
    }
    if (r->names.count == r->ids_cap) {
        uint32_t cap = r->ids_cap == 0 ? 512 : 2 * r->ids_cap;
        r->ids = mem_grow(r->ids, r->ids_cap, cap, sizeof *r->ids);
        r->ids_cap = cap;
    }
    if (id >= r->top) r->top = id + 1;
}

static enum brg_status read_entry(struct reading *r, struct json_scan *s) {
    char field[32];
    uint64_t id;
    snprintf(field, sizeof field, "vocab entry %u", r->names.count);
    if (!scan_string(s, &r->text)) return bad_json(r, s);
    if (!scan_char(s, ':')) return bad_json(r, s);
    if (!scan_u64(s, &id)) return json_bad(r->w, "model", field, "has no integer as its id");
    if (id >= TOKENIZER_VOCAB_MAX)
        return json_bad(r->w, "model", field, "has id %llu outside 0..%d", (unsigned long long)id,
                        TOKENIZER_VOCAB_MAX - 1);
    size_t n = r->text.bytes_count;
    if (n == 0 || n > TOKENIZER_TOKEN_BYTES_MAX)
        return json_bad(r->w, "model", field, "is %zu bytes long where 1..%d are supported", n,
                        TOKENIZER_TOKEN_BYTES_MAX);
    vocab_room(r, (uint32_t)id);
    if (r->name_of[id] != TOKEN_NONE)
        return json_bad(r->w, "model", field, "has the id %llu of another entry",
                        (unsigned long long)id);
    uint32_t before = r->names.count, name = string_set_add(&r->names, r->text.data, n);
    if (r->names.count == before) return json_bad(r->w, "model", field, "is there twice");
    r->ids[name] = (uint32_t)id;
    r->name_of[id] = name;
    return BRG_OK;
}

static enum brg_status read_vocab(struct reading *r) {
    struct json_scan s = scan_of(r, r->vocab);
    if (r->vocab.end == 0) return json_bad(r->w, "model", "vocab", "is missing");
    if (!scan_char(&s, '{')) return json_bad(r->w, "model", "vocab", "is no object");
    for (bool first = true; !scan_char(&s, '}'); first = false) {
        if (!first && !scan_char(&s, ',')) return bad_json(r, &s);
        TRY(read_entry(r, &s));
    }
    return scan_end(&s) ? BRG_OK : bad_json(r, &s);
}

/* "a b" or ["a", "b"]: r->text becomes ab, *out_left the length of a. */
static bool read_halves(struct reading *r, struct json_scan *s, size_t *out_left) {
    if (scan_char(s, '[')) {
        AUTO_BUF struct buf left;
        buf_init(&left, TOKENIZER_JSON_BYTES_MAX);
        if (!scan_string(s, &left) || !scan_char(s, ',') || !scan_string(s, &r->text) ||
            !scan_char(s, ']'))
            return false;
        *out_left = left.bytes_count;
        buf_put(&left, r->text.data, r->text.bytes_count);
        struct buf t = r->text;
        r->text = left;
        left = t;
        return true;
    }
    if (!scan_string(s, &r->text)) return false;
    uint8_t *p = r->text.data, *blank = p == NULL ? NULL : memchr(p, ' ', r->text.bytes_count);
    if (blank == NULL) return false;
    *out_left = (size_t)(blank - p);
    memmove(blank, blank + 1, --r->text.bytes_count - *out_left);
    return true;
}

static enum brg_status read_merge(struct reading *r, struct json_scan *s, uint32_t i,
                                  struct merge *out) {
    char field[32];
    size_t left_bytes = 0; /* the thread sanitizer hides from gcc that read_halves sets it */
    snprintf(field, sizeof field, "merges[%u]", i);
    if (!read_halves(r, s, &left_bytes) || left_bytes == 0 || left_bytes == r->text.bytes_count)
        return json_bad(r->w, "model", field, "is no pair of vocabulary entries");
    const uint8_t *p = r->text.data;
    size_t n = r->text.bytes_count;
    uint32_t left = string_set_find(&r->names, p, left_bytes);
    uint32_t right = string_set_find(&r->names, p + left_bytes, n - left_bytes);
    uint32_t both = string_set_find(&r->names, p, n);
    if (left == TOKEN_NONE || right == TOKEN_NONE || both == TOKEN_NONE)
        return json_bad(r->w, "model", field, "names what the vocabulary lacks");
    *out = (struct merge){r->ids[left], r->ids[right], r->ids[both]};
    return BRG_OK;
}

static enum brg_status read_merges(struct reading *r) {
    struct json_scan s = scan_of(r, r->merges);
    uint32_t cap = 0;
    if (r->merges.end == 0) return json_bad(r->w, "model", "merges", "is missing");
    if (!scan_char(&s, '[')) return json_bad(r->w, "model", "merges", "is no list");
    for (bool first = true; !scan_char(&s, ']'); first = false) {
        if (!first && !scan_char(&s, ',')) return bad_json(r, &s);
        if (r->t->merges_count == TOKENIZER_MERGES_MAX)
            return json_bad(r->w, "model", "merges", "are more than %d", TOKENIZER_MERGES_MAX);
        if (r->t->merges_count == cap) {
            uint32_t more = cap == 0 ? 1024 : 2 * cap;
            r->t->merges = mem_grow(r->t->merges, cap, more, sizeof *r->t->merges);
            cap = more;
        }
        TRY(read_merge(r, &s, r->t->merges_count, &r->t->merges[r->t->merges_count]));
        r->t->merges_count++;
    }
    return scan_end(&s) ? BRG_OK : bad_json(r, &s);
}

/* ---- Tables by id
 * ---------------------------------------------------------------------------- */
static const uint8_t *name_at(const struct reading *r, uint32_t name, size_t *out_bytes) {
    *out_bytes = (size_t)(r->names.at[name + 1] - r->names.at[name]);
    return r->names.text.data + r->names.at[name];
}

/* An added token that is in the vocabulary has its id there; another one has an id of its own. */
static enum brg_status check_added(struct reading *r) {
    struct tokenizer *t = r->t;
    for (uint32_t i = 0; i < t->added_count; i++) {
        const struct added_token *a = &t->added[i];
        char path[40];
        snprintf(path, sizeof path, "added_tokens[%u]", i);
        uint32_t name = string_set_find(&r->names, a->content, a->bytes);
        if (name != TOKEN_NONE && r->ids[name] != a->id)
            return json_bad(r->w, path, "id", "is %u where the vocabulary says %u", a->id,
                            r->ids[name]);
        if (name == TOKEN_NONE && a->id < r->name_of_cap && r->name_of[a->id] != TOKEN_NONE)
            return json_bad(r->w, path, "id", "is %u, which is another entry of the vocabulary",
                            a->id);
        if (a->id >= r->top) r->top = a->id + 1;
    }
    return BRG_OK;
}

static enum brg_status build_added(struct reading *r, const struct added_token **by_id) {
    const struct tokenizer *t = r->t;
    enum brg_status s = BRG_OK;
    struct string_set seen;
    string_set_init(&seen, (size_t)ADDED_MAX * ADDED_BYTES_MAX);
    for (uint32_t i = 0; i < t->added_count && s == BRG_OK; i++) {
        char path[40];
        snprintf(path, sizeof path, "added_tokens[%u]", i);
        const struct added_token *a = &t->added[i];
        if (by_id[a->id] != NULL)
            s = json_bad(r->w, path, "id", "is %u, as that of another added token", a->id);
        else if (string_set_add(&seen, a->content, a->bytes) != i)
            s = json_bad(r->w, path, "content", "is that of another added token");
        by_id[a->id] = a;
    }
    string_set_fini(&seen);
    return s;
}

/* The text of each id, as decode gives it. */
static enum brg_status build_text(struct reading *r) {
    struct tokenizer *t = r->t;
    AUTO_FREE const struct added_token **by_id = mem_alloc(r->top, sizeof *by_id);
    TRY(build_added(r, by_id));
    t->vocab = r->top;
    t->token_at = mem_alloc((size_t)t->vocab + 1, sizeof *t->token_at);
    buf_init(&t->token_text, UINT32_MAX);
    for (uint32_t id = 0; id < t->vocab; id++) {
        uint32_t name = id < r->name_of_cap ? r->name_of[id] : TOKEN_NONE;
        size_t n;
        if (name != TOKEN_NONE) {
            const uint8_t *p = name_at(r, name, &n);
            if (!alphabet_get(&r->alphabet, (const char *)p, n, &t->token_text))
                buf_put(&t->token_text, p, n);
        } else if (by_id[id] != NULL) {
            buf_put(&t->token_text, by_id[id]->content, by_id[id]->bytes);
        }
        t->token_at[id + 1] = (uint32_t)t->token_text.bytes_count;
    }
    CHECK(!t->token_text.overflow);
    return BRG_OK;
}

static enum brg_status build_bytes(struct reading *r) {
    for (uint32_t b = 0; b < 256; b++) {
        buf_reset(&r->text);
        alphabet_put(&r->alphabet, &(uint8_t){(uint8_t)b}, 1, &r->text);
        uint32_t name = string_set_find(&r->names, r->text.data, r->text.bytes_count);
        bool never = b == 0xc0 || b == 0xc1 || b >= 0xf5; /* in UTF-8 */
        if (name == TOKEN_NONE && !never)
            return json_bad(r->w, "model", "vocab", "lacks the byte %u", b);
        r->t->byte_id[b] = name == TOKEN_NONE ? TOKEN_NONE : r->ids[name];
    }
    return BRG_OK;
}

/* For ignore_merges: the entries that a word can be. */
static void build_whole(struct reading *r) {
    struct tokenizer *t = r->t;
    if (!t->ignore_merges) return;
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, TOKENIZER_JSON_BYTES_MAX);
    t->whole = mem_alloc(1, sizeof *t->whole);
    string_set_init(t->whole, UINT32_MAX);
    t->whole_ids = mem_alloc(r->names.count, sizeof *t->whole_ids);
    for (uint32_t name = 0; name < r->names.count; name++) {
        size_t n;
        const uint8_t *p = name_at(r, name, &n);
        buf_reset(&bytes);
        if (r->ids[name] == t->eot || !alphabet_get(&r->alphabet, (const char *)p, n, &bytes))
            continue;
        t->whole_ids[string_set_add(t->whole, bytes.data, bytes.bytes_count)] = r->ids[name];
    }
}

/* What ends a text is not said in the file: the first of these names that it has. */
static uint32_t find_eot(const struct tokenizer *t) {
    static const char *const NAMES[] = {
        TOKENIZER_EOT_TEXT, /* Qwen, GPT-2; Llama 3; DeepSeek; ... */
        "<|end_of_text|>",
        ("<\xef\xbd\x9c"
         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
        "</s>",
        "<eos>",
        "<EOT>"};
    for (size_t k = 0; k < ARRAY_COUNT(NAMES); k++)
        for (uint32_t i = 0; i < t->added_count; i++)
            if (t->added[i].special && strcmp(t->added[i].content, NAMES[k]) == 0)
                return t->added[i].id;
    return TOKEN_NONE;
}

static enum brg_status read_parts(struct reading *r, const json_t *root) {
    static const char *const KNOWN[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const UNSET[] = {"truncation", "padding"};
    const struct json_place *w = r->w;
    struct tokenizer *t = r->t;
    const json_t *model = json_object_get(root, "model");
    TRY(json_known(w, "", root, KNOWN));
    for (size_t i = 0; i < ARRAY_COUNT(UNSET); i++)
        if (!json_unset(json_object_get(root, UNSET[i])))
            return json_bad(w, "", UNSET[i], "is set where null is supported");
    if (model == NULL) return json_bad(w, "", "model", "is missing");
    TRY(parts_model(w, model, t));
    TRY(parts_decoder(w, json_object_get(root, "decoder")));
    TRY(parts_added(w, json_object_get(root, "added_tokens"), t));
    TRY(read_vocab(r));
    TRY(read_merges(r));
    TRY(check_added(r));
    TRY(build_text(r));
    TRY(build_bytes(r));
    TRY(parts_post_processor(w, json_object_get(root, "post_processor"), t->vocab, t));
    /* These two last: patterns are compiled and a table is made, which is dear where the file is bad. */
    TRY(parts_pre_tokenizer(w, json_object_get(root, "pre_tokenizer"), t));
    TRY(parts_normalizer(w, json_object_get(root, "normalizer"), t));
    t->eot = find_eot(t);
    build_whole(r);
    enum brg_status s = tokenizer_complete(t, w->e);
    if (s != BRG_OK) err_prefix(w->e, "%.200s", w->file);
    return s;
}

static enum brg_status read_root(struct reading *r, json_t *root) {
    TRY(read_fields(r, "", root));
    if (!scan_end(&r->scan)) return bad_json(r, &r->scan);
    return read_parts(r, root);
}

enum brg_status tokenizer_parse(const char *name, const void *json, size_t bytes,
                                struct tokenizer **out, struct err *e) {
    struct json_place w = {.file = name, .remedy = REMEDY, .status = BRG_E_TOKENIZER, .e = e};
    struct reading r = {.w = &w, .scan = {.text = bytes == 0 ? "" : json, .bytes = bytes}};
    json_t *root = json_object();
    alphabet_init(&r.alphabet);
    string_set_init(&r.names, TOKENIZER_JSON_BYTES_MAX);
    buf_init(&r.text, TOKENIZER_JSON_BYTES_MAX);
    r.t = mem_alloc(1, sizeof *r.t);
    enum brg_status s = read_root(&r, root);
    json_decref(root);
    string_set_fini(&r.names);
    buf_fini(&r.text);
    mem_free(r.ids);
    mem_free(r.name_of);
    if (s != BRG_OK) {
        tokenizer_free(r.t);
        return s;
    }
    buf_init(&r.t->source, TOKENIZER_JSON_BYTES_MAX);
    buf_put(&r.t->source, json, bytes);
    *out = r.t;
    return BRG_OK;
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
    if (t->source.bytes_count > 0) {
        buf_put(out, t->source.data, t->source.bytes_count);
        return out->overflow ? err_set(e, BRG_E_LIMIT, "the tokenizer is too large to be written")
                             : BRG_OK;
    }
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
        "pattern", "Regex", split_pattern(SPLIT_QWEN2), "behavior", "Isolated", "invert", 0,
        byte_level(), "post_processor", "decoder", byte_level(), "model", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    CHECK(root != NULL);
    json_write(root, out);
    json_decref(root);
    if (out->overflow) return err_set(e, BRG_E_LIMIT, "the tokenizer is too large to be written");
    return BRG_OK;
}
