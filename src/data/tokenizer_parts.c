/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_parts.c - the small fields of a tokenizer.json.
 *
 * What is read is what is understood in full. Anything else would give other ids than its authors
 * meant, silently, and is refused by name. */
#include "data/tokenizer_parts.h"

#include <stdio.h>

enum { PATH_BYTES = 80, AROUND_MAX = 64 };

bool json_unset(const json_t *v) {
    return v == NULL || json_is_null(v) || json_is_false(v) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static enum brg_status get_bool(const struct json_place *w, const char *path, const json_t *o,
                                const char *field, bool absent, bool *out) {
    const json_t *v = json_object_get(o, field);
    if (v != NULL && !json_is_boolean(v) && !json_is_null(v))
        return json_bad(w, path, field, "is %s where true or false is wanted",
                        json_type_name(json_typeof(v)));
    *out = v == NULL || json_is_null(v) ? absent : json_is_true(v);
    return BRG_OK;
}

static enum brg_status get_type(const struct json_place *w, const char *path, const json_t *o,
                                const char **out) {
    if (!json_is_object(o)) return json_bad(w, path, "", "is no object");
    return json_get_text(w, path, o, "type", out);
}

static enum brg_status bad_type(const struct json_place *w, const char *path, const char *have,
                                const char *supported) {
    char safe[41];
    snprintf(safe, sizeof safe, "%s", have);
    for (char *p = safe; *p != 0; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    return json_bad(w, path, "type", "is \"%s\" where %s is supported", safe, supported);
}

static void element(char out[PATH_BYTES], const char *path, const char *list, size_t i) {
    snprintf(out, PATH_BYTES, "%.40s.%s[%zu]", path, list, i);
}

/* ---- normalizer */
enum brg_status parts_normalizer(const struct json_place *w, const json_t *v, struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", NULL};
    static const char *const KNOWN_SEQUENCE[] = {"type", "normalizers", NULL};
    static const char PATH[] = "normalizer", SUPPORTED[] = "NFC, or a Sequence of those,";
    const char *type;
    bool form = false;
    if (json_unset(v)) return BRG_OK;
    TRY(get_type(w, PATH, v, &type));
    if (strcmp(type, "NFC") == 0) {
        TRY(json_known(w, PATH, v, KNOWN));
        form = true;
    } else if (strcmp(type, "Sequence") == 0) {
        json_t *list;
        TRY(json_known(w, PATH, v, KNOWN_SEQUENCE));
        TRY(json_get(w, PATH, v, "normalizers", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_array_size(list); i++) {
            char path[PATH_BYTES];
            element(path, PATH, "normalizers", i);
            TRY(get_type(w, path, json_array_get(list, i), &type));
            if (strcmp(type, "NFC") != 0) return bad_type(w, path, type, "NFC");
            form = true;
        }
    } else {
        return bad_type(w, PATH, type, SUPPORTED);
    }
    if (form) t->normal = normal_create();
    return BRG_OK;
}

/* ---- pre_tokenizer */
static enum brg_status bad_step(const struct json_place *w, const char *path, const char *why) {
    return json_bad(w, path, "", "%s", why);
}

static enum brg_status byte_level_step(const struct json_place *w, const char *path,
                                       const json_t *o, struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    bool prefix, regex;
    char why[160];
    TRY(json_known(w, path, o, KNOWN));
    TRY(get_bool(w, path, o, "add_prefix_space", true, &prefix));
    TRY(get_bool(w, path, o, "use_regex", true, &regex));
    if (prefix && !splitter_add_blank(t->splitter, why)) return bad_step(w, path, why);
    const char *pattern = split_pattern(SPLIT_GPT2);
    if (regex &&
        !splitter_add(t->splitter, pattern, strlen(pattern), false, SPLIT_ISOLATED, false, why))
        return bad_step(w, path, why);
    return BRG_OK;
}

static enum brg_status get_behavior(const struct json_place *w, const char *path, const json_t *o,
                                    enum split_behavior *out) {
    static const char *const NAMES[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *have;
    TRY(json_get_text(w, path, o, "behavior", &have));
    for (size_t i = 0; i < ARRAY_COUNT(NAMES); i++)
        if (strcmp(NAMES[i], have) == 0) {
            *out = (enum split_behavior)i;
            return BRG_OK;
        }
    return json_bad(w, path, "behavior",
                    "is none of Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

static enum brg_status split_step(const struct json_place *w, const char *path, const json_t *o,
                                  struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", "pattern", "behavior", "invert", NULL};
    json_t *pattern;
    enum split_behavior behavior = SPLIT_ISOLATED;
    bool invert;
    char why[160];
    TRY(json_known(w, path, o, KNOWN));
    TRY(json_get(w, path, o, "pattern", JSON_OBJECT, &pattern));
    TRY(get_behavior(w, path, o, &behavior));
    TRY(get_bool(w, path, o, "invert", false, &invert));
    const json_t *regex = json_object_get(pattern, "Regex"),
                 *literal = json_object_get(pattern, "String");
    const json_t *text = regex != NULL ? regex : literal;
    if (!json_is_string(text) || json_object_size(pattern) != 1)
        return json_bad(w, path, "pattern", "is neither {\"Regex\": ...} nor {\"String\": ...}");
    if (json_string_length(text) == 0) return json_bad(w, path, "pattern", "is empty");
    if (!splitter_add(t->splitter, json_string_value(text), json_string_length(text), regex == NULL,
                      behavior, invert, why))
        return json_bad(w, path, "pattern", "%s", why);
    return BRG_OK;
}

static enum brg_status digits_step(const struct json_place *w, const char *path, const json_t *o,
                                   struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", "individual_digits", NULL};
    static const char PATTERN[] = "\\p{N}";
    bool each;
    char why[160];
    TRY(json_known(w, path, o, KNOWN));
    TRY(get_bool(w, path, o, "individual_digits", false, &each));
    if (!splitter_add(t->splitter, PATTERN, sizeof PATTERN - 1, false,
                      each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, why))
        return bad_step(w, path, why);
    return BRG_OK;
}

/* *bytes: a ByteLevel step has been; nothing may follow it, since it changes the letters. */
static enum brg_status add_step(const struct json_place *w, const char *path, const json_t *o,
                                struct tokenizer *t, bool *bytes) {
    const char *type;
    TRY(get_type(w, path, o, &type));
    if (*bytes) return json_bad(w, path, "", "follows a ByteLevel step, which must be the last");
    *bytes = strcmp(type, "ByteLevel") == 0;
    if (*bytes) return byte_level_step(w, path, o, t);
    if (strcmp(type, "Split") == 0) return split_step(w, path, o, t);
    if (strcmp(type, "Digits") == 0) return digits_step(w, path, o, t);
    return bad_type(w, path, type, "Split, Digits, ByteLevel or a Sequence of those");
}

enum brg_status parts_pre_tokenizer(const struct json_place *w, const json_t *v,
                                    struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", "pretokenizers", NULL};
    static const char PATH[] = "pre_tokenizer";
    const char *type;
    bool bytes = false;
    t->splitter = splitter_create();
    if (v == NULL) return json_bad(w, "", PATH, "is missing");
    TRY(get_type(w, PATH, v, &type));
    if (strcmp(type, "Sequence") == 0) {
        json_t *list;
        TRY(json_known(w, PATH, v, KNOWN));
        TRY(json_get(w, PATH, v, "pretokenizers", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_array_size(list); i++) {
            char path[PATH_BYTES];
            element(path, PATH, "pretokenizers", i);
            TRY(add_step(w, path, json_array_get(list, i), t, &bytes));
        }
    } else {
        TRY(add_step(w, PATH, v, t, &bytes));
    }
    if (!bytes) return json_bad(w, "", PATH, "has no ByteLevel step");
    return BRG_OK;
}

/* ---- decoder */
enum brg_status parts_decoder(const struct json_place *w, const json_t *v) {
    static const char *const KNOWN[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    const char *type;
    if (v == NULL) return json_bad(w, "", "decoder", "is missing");
    TRY(get_type(w, "decoder", v, &type));
    if (strcmp(type, "ByteLevel") != 0) return bad_type(w, "decoder", type, "ByteLevel");
    return json_known(w, "decoder", v, KNOWN); /* its settings do not matter to a decoder */
}

/* ---- added_tokens */
static enum brg_status read_added(const struct json_place *w, const char *path, const json_t *o,
                                  struct added_token *out) {
    static const char *const KNOWN[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    const char *content;
    uint64_t id;
    if (!json_is_object(o)) return json_bad(w, path, "", "is no object");
    TRY(json_known(w, path, o, KNOWN));
    TRY(json_get_u64(w, path, o, "id", TOKENIZER_VOCAB_MAX - 1, &id));
    TRY(json_get_text(w, path, o, "content", &content));
    size_t bytes = strlen(content);
    if (bytes == 0 || bytes > ADDED_BYTES_MAX)
        return json_bad(w, path, "content", "is %zu bytes long where 1..%d are supported", bytes,
                        ADDED_BYTES_MAX);
    out->id = (uint32_t)id;
    out->bytes = (uint32_t)bytes;
    TRY(get_bool(w, path, o, "special", false, &out->special));
    TRY(get_bool(w, path, o, "single_word", false, &out->single_word));
    TRY(get_bool(w, path, o, "lstrip", false, &out->lstrip));
    TRY(get_bool(w, path, o, "rstrip", false, &out->rstrip));
    TRY(get_bool(w, path, o, "normalized", !out->special, &out->normalized));
    out->content = mem_strdup(content);
    return BRG_OK;
}

enum brg_status parts_added(const struct json_place *w, const json_t *v, struct tokenizer *t) {
    if (json_unset(v)) return BRG_OK;
    if (!json_is_array(v)) return json_bad(w, "", "added_tokens", "is no list");
    size_t count = json_array_size(v);
    if (count > ADDED_MAX)
        return json_bad(w, "", "added_tokens", "holds %zu tokens where %d are supported", count,
                        ADDED_MAX);
    t->added = mem_alloc(count, sizeof *t->added);
    for (size_t i = 0; i < count; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "added_tokens[%zu]", i);
        TRY(read_added(w, path, json_array_get(v, i), &t->added[t->added_count++]));
    }
    return BRG_OK;
}

/* ---- post_processor */
struct around {
    uint32_t before[AROUND_MAX], behind[AROUND_MAX], before_count, behind_count;
};

static enum brg_status special_ids(const struct json_place *w, const json_t *template,
                                   const char *name, uint32_t vocab, uint32_t *ids,
                                   uint32_t *count) {
    static const char PATH[] = "post_processor.special_tokens";
    const json_t *entry = json_object_get(json_object_get(template, "special_tokens"), name);
    const json_t *list = json_object_get(entry, "ids");
    if (!json_is_array(list))
        return json_bad(w, PATH, "ids", "is missing for a token of the template");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return json_bad(w, PATH, "ids", "holds what is no id below %u", vocab);
        if (*count == AROUND_MAX) return json_bad(w, PATH, "ids", "are more than %d", AROUND_MAX);
        ids[(*count)++] = (uint32_t)json_integer_value(id);
    }
    return BRG_OK;
}

static enum brg_status template_of(const struct json_place *w, const char *path, const json_t *o,
                                   uint32_t vocab, struct around *a) {
    static const char *const KNOWN[] = {"type", "single", "pair", "special_tokens", NULL};
    json_t *single;
    bool sequence = false;
    TRY(json_known(w, path, o, KNOWN));
    TRY(json_get(w, path, o, "single", JSON_ARRAY, &single));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *name = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        if (json_object_get(piece, "Sequence") != NULL && !sequence)
            sequence = true;
        else if (json_is_string(name))
            TRY(special_ids(w, o, json_string_value(name), vocab, sequence ? a->behind : a->before,
                            sequence ? &a->behind_count : &a->before_count));
        else
            return json_bad(w, path, "single", "holds more than one Sequence among SpecialTokens");
    }
    if (!sequence) return json_bad(w, path, "single", "holds no Sequence");
    return BRG_OK;
}

static enum brg_status processor(const struct json_place *w, const char *path, const json_t *o,
                                 uint32_t vocab, bool *template, struct around *a) {
    const char *type;
    TRY(get_type(w, path, o, &type));
    if (strcmp(type, "ByteLevel") == 0) return BRG_OK; /* it moves offsets, no ids */
    if (strcmp(type, "TemplateProcessing") != 0)
        return bad_type(w, path, type, "ByteLevel, TemplateProcessing or a Sequence of those");
    if (*template) return json_bad(w, path, "", "is a second TemplateProcessing");
    *template = true;
    return template_of(w, path, o, vocab, a);
}

enum brg_status parts_post_processor(const struct json_place *w, const json_t *v, uint32_t vocab,
                                     struct tokenizer *t) {
    static const char *const KNOWN[] = {"type", "processors", NULL};
    static const char PATH[] = "post_processor";
    const char *type;
    struct around a = {.before_count = 0};
    bool template = false;
    if (json_unset(v)) return BRG_OK;
    TRY(get_type(w, PATH, v, &type));
    if (strcmp(type, "Sequence") == 0) {
        json_t *list;
        TRY(json_known(w, PATH, v, KNOWN));
        TRY(json_get(w, PATH, v, "processors", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_array_size(list); i++) {
            char path[PATH_BYTES];
            element(path, PATH, "processors", i);
            TRY(processor(w, path, json_array_get(list, i), vocab, &template, &a));
        }
    } else {
        TRY(processor(w, PATH, v, vocab, &template, &a));
    }
    t->before = mem_alloc(a.before_count, sizeof *t->before);
    t->behind = mem_alloc(a.behind_count, sizeof *t->behind);
    memcpy(t->before, a.before, a.before_count * sizeof *t->before);
    memcpy(t->behind, a.behind, a.behind_count * sizeof *t->behind);
    t->before_count = a.before_count;
    t->behind_count = a.behind_count;
    return BRG_OK;
}

/* ---- model */
enum brg_status parts_model(const struct json_place *w, const json_t *v, struct tokenizer *t) {
    /* unk_token, fuse_unk and byte_fallback are for characters the vocabulary lacks; a byte-level one
     * lacks none, which is checked. */
    static const char *const KNOWN[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        NULL};
    static const char *const UNSET[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(v, "dropout");
    TRY(json_known(w, "model", v, KNOWN));
    if (json_object_get(v, "type") != NULL) { /* files of 2020 have none */
        const char *type;
        TRY(json_get_text(w, "model", v, "type", &type));
        if (strcmp(type, "BPE") != 0) return bad_type(w, "model", type, "BPE");
    }
    for (size_t i = 0; i < ARRAY_COUNT(UNSET); i++)
        if (!json_unset(json_object_get(v, UNSET[i])))
            return json_bad(w, "model", UNSET[i], "is set where null or \"\" is supported");
    if (!json_unset(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return json_bad(w, "model", "dropout", "is set where null is supported");
    return get_bool(w, "model", v, "ignore_merges", false, &t->ignore_merges);
}
