/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c - manifest.json: what a data set is, in a form that people and jq read.
 *
 *   format "beringia-dataset", version 1
 *   seq_len, vocab, token_bytes
 *   tokenizer {kind, sha256}           order {version, seed, block, group}
 *   heldout_share
 *   train, heldout {documents, samples, tokens, tokens_dropped, text_bytes,
 *                   shards [{file, samples, sha256}]}
 *   sources [{name, bytes, sha256}]
 *
 * Every field is required and no other is allowed: a field that this version does not know could
 * change the meaning of the rest. What can be computed from other fields (tokens, file names,
 * block) is written for readers, and checked here to be what it must be, so that no two programs
 * can take the same manifest for different data.
 *
 * Invariants
 *   (D6) Equal fingerprints: equal tokens at equal positions. The fingerprint covers everything
 *   that
 *        decides them, and not the names, counts and sources that do not. */
#include "data/manifest.h"

#include <stdio.h>
#include <string.h>

#include "data/json.h"
#include "data/tokenizer.h"

const char *const HALF_NAMES[HALF_COUNT] = {"train", "heldout"};
static const char FORMAT[] = "beringia-dataset";
static const char REMEDY[] = "copy the data set again, or make it anew with `beringia pack`";

void manifest_fini(struct manifest *m) {
    for (uint32_t i = 0; i < m->sources_count; i++) mem_free(m->sources[i].name);
    mem_free(m->sources);
    for (int h = 0; h < HALF_COUNT; h++) mem_free(m->half[h].shards);
    *m = (struct manifest){0};
}

static uint32_t grown(uint32_t cap) {
    return cap == 0 ? 16 : cap * 2;
}

struct shard_entry *manifest_shard_add(struct manifest *m, enum half half) {
    struct half_entry *h = &m->half[half];
    if (h->shards_count == h->shards_cap) {
        uint32_t cap = grown(h->shards_cap);
        h->shards = mem_grow(h->shards, h->shards_cap, cap, sizeof *h->shards);
        h->shards_cap = cap;
    }
    return &h->shards[h->shards_count++];
}

struct source_entry *manifest_source_add(struct manifest *m, const char *name) {
    if (m->sources_count == m->sources_cap) {
        uint32_t cap = grown(m->sources_cap);
        m->sources = mem_grow(m->sources, m->sources_cap, cap, sizeof *m->sources);
        m->sources_cap = cap;
    }
    struct source_entry *s = &m->sources[m->sources_count++];
    s->name = mem_strdup(name);
    return s;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------- */
static enum brg_status read_shards(const struct json_place *w, const json_t *list,
                                   struct manifest *m, enum half half) {
    static const char *const KNOWN[] = {"file", "samples", "sha256", NULL};
    char path[48], name[SHARD_NAME_BYTES];
    uint64_t sum = 0;
    size_t count = json_array_size(list);
    if (count == 0 || count > SHARDS_MAX)
        return json_bad(w, HALF_NAMES[half], "shards", "holds %zu entries where 1..%d are allowed",
                        count, SHARDS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s.shards[%u]", HALF_NAMES[half], i);
        const json_t *o = json_array_get(list, i);
        if (!json_is_object(o)) return json_bad(w, path, "", "is no object");
        struct shard_entry *s = manifest_shard_add(m, half);
        const char *file = NULL;
        TRY(json_known(w, path, o, KNOWN));
        TRY(json_get_text(w, path, o, "file", &file));
        /* A name from outside is never used as a path: it must be the one we would have given. */
        if (strcmp(file, shard_name(name, half, i)) != 0)
            return json_bad(w, path, "file", "is not \"%s\"", name);
        TRY(json_get_u64(w, path, o, "samples", SAMPLES_MAX, &s->samples));
        TRY(json_get_hash(w, path, o, "sha256", &s->hash));
        if (s->samples == 0 && count > 1)
            return json_bad(w, path, "samples", "is 0 in a list of several shards");
        sum += s->samples; /* no overflow: 1e5 times 2^48 */
    }
    if (sum != m->half[half].samples)
        return json_bad(w, HALF_NAMES[half], "samples", "is %llu but the shards hold %llu",
                        (unsigned long long)m->half[half].samples, (unsigned long long)sum);
    return BRG_OK;
}

static enum brg_status read_half(const struct json_place *w, const json_t *root, struct manifest *m,
                                 enum half half) {
    static const char *const KNOWN[] = {"documents",  "samples", "tokens", "tokens_dropped",
                                        "text_bytes", "shards",  NULL};
    const char *path = HALF_NAMES[half];
    struct half_entry *h = &m->half[half];
    json_t *o = NULL, *shards = NULL;
    TRY(json_get(w, "", root, path, JSON_OBJECT, &o));
    TRY(json_known(w, path, o, KNOWN));
    TRY(json_get_u64(w, path, o, "documents", TOKENS_MAX, &h->documents));
    TRY(json_get_u64(w, path, o, "samples", SAMPLES_MAX, &h->samples));
    TRY(json_get_u64(w, path, o, "tokens", TOKENS_MAX, &h->tokens));
    TRY(json_get_u64(w, path, o, "tokens_dropped", TOKENS_MAX, &h->tokens_dropped));
    TRY(json_get_u64(w, path, o, "text_bytes", TOKENS_MAX, &h->text_bytes));
    TRY(json_get(w, path, o, "shards", JSON_ARRAY, &shards));
    if (h->samples > TOKENS_MAX / m->seq_len || h->tokens != shard_tokens(h->samples, m->seq_len))
        return json_bad(w, path, "tokens", "is not samples * seq_len + 1");
    return read_shards(w, shards, m, half);
}

static enum brg_status read_order(const struct json_place *w, const json_t *root,
                                  struct manifest *m) {
    static const char *const KNOWN[] = {"version", "seed", "block", "group", NULL};
    json_t *o = NULL;
    uint64_t version = 0, block = 0, group = 0;
    TRY(json_get(w, "", root, "order", JSON_OBJECT, &o));
    TRY(json_known(w, "order", o, KNOWN));
    TRY(json_get_u64(w, "order", o, "version", INT64_MAX, &version));
    if (version != ORDER_VERSION)
        return json_bad(w, "order", "version", "is %llu where this program knows %d",
                        (unsigned long long)version, ORDER_VERSION);
    TRY(json_get_u64(w, "order", o, "seed", DATA_SEED_MAX, &m->order_seed));
    TRY(json_get_u64(w, "order", o, "block", UINT32_MAX, &block));
    TRY(json_get_u64(w, "order", o, "group", UINT32_MAX, &group));
    struct order want;
    order_init(&want, m->order_seed, 0, m->half[HALF_TRAIN].samples, 0, 0);
    if (block != want.block)
        return json_bad(w, "order", "block", "is %llu where it must be %u",
                        (unsigned long long)block, want.block);
    if (group != want.group)
        return json_bad(w, "order", "group", "is %llu where it must be %u",
                        (unsigned long long)group, want.group);
    return BRG_OK;
}

static enum brg_status read_tokenizer(const struct json_place *w, const json_t *root,
                                      struct manifest *m) {
    static const char *const KNOWN[] = {"kind", "sha256", NULL};
    json_t *o = NULL;
    const char *kind = NULL;
    TRY(json_get(w, "", root, "tokenizer", JSON_OBJECT, &o));
    TRY(json_known(w, "tokenizer", o, KNOWN));
    TRY(json_get_text(w, "tokenizer", o, "kind", &kind));
    m->tokenizer_bytes = strcmp(kind, "bytes") == 0;
    if (!m->tokenizer_bytes && strcmp(kind, "bpe") != 0)
        return json_bad(w, "tokenizer", "kind", "is \"%.40s\", neither bytes nor bpe", kind);
    return json_get_hash(w, "tokenizer", o, "sha256", &m->tokenizer_hash);
}

static enum brg_status read_sources(const struct json_place *w, const json_t *root,
                                    struct manifest *m) {
    static const char *const KNOWN[] = {"name", "bytes", "sha256", NULL};
    char path[32];
    json_t *list = NULL;
    TRY(json_get(w, "", root, "sources", JSON_ARRAY, &list));
    if (json_array_size(list) > SOURCES_MAX)
        return json_bad(w, "", "sources", "holds more than %d entries", SOURCES_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(path, sizeof path, "sources[%zu]", i);
        const json_t *o = json_array_get(list, i);
        if (!json_is_object(o)) return json_bad(w, path, "", "is no object");
        const char *name = NULL;
        TRY(json_known(w, path, o, KNOWN));
        TRY(json_get_text(w, path, o, "name", &name));
        struct source_entry *s = manifest_source_add(m, name);
        TRY(json_get_u64(w, path, o, "bytes", TOKENS_MAX, &s->bytes));
        TRY(json_get_hash(w, path, o, "sha256", &s->hash));
    }
    return BRG_OK;
}

static enum brg_status read_root(const struct json_place *w, const json_t *root,
                                 struct manifest *m) {
    static const char *const KNOWN[] = {"format",      "version",   "seq_len", "vocab",
                                        "token_bytes", "tokenizer", "order",   "heldout_share",
                                        "train",       "heldout",   "sources", NULL};
    const char *format = NULL;
    uint64_t n = 0;
    TRY(json_get_text(w, "", root, "format", &format));
    if (strcmp(format, FORMAT) != 0) return json_bad(w, "", "format", "is not \"%s\"", FORMAT);
    TRY(json_get_u64(w, "", root, "version", INT64_MAX, &n));
    if (n != MANIFEST_VERSION)
        return json_bad(w, "", "version", "is %llu where this program reads %d",
                        (unsigned long long)n, MANIFEST_VERSION);
    TRY(json_known(w, "", root, KNOWN));
    TRY(json_get_u64(w, "", root, "seq_len", SEQ_LEN_MAX, &n));
    if (n == 0) return json_bad(w, "", "seq_len", "is 0");
    m->seq_len = (uint32_t)n;
    TRY(json_get_u64(w, "", root, "vocab", TOKENIZER_VOCAB_MAX, &n));
    if (n < TOKENIZER_VOCAB_MIN)
        return json_bad(w, "", "vocab", "is below %d", TOKENIZER_VOCAB_MIN);
    m->vocab = (uint32_t)n;
    TRY(json_get_u64(w, "", root, "token_bytes", 4, &n));
    m->token_bytes = shard_token_bytes(m->vocab);
    if (n != m->token_bytes)
        return json_bad(w, "", "token_bytes", "is %llu where %u belongs to this vocabulary",
                        (unsigned long long)n, m->token_bytes);
    json_t *share = json_object_get(root, "heldout_share");
    if (!json_is_number(share)) return json_bad(w, "", "heldout_share", "is no number");
    m->heldout_share = json_number_value(share);
    if (!(m->heldout_share >= 0 && m->heldout_share < 1))
        return json_bad(w, "", "heldout_share", "is outside [0, 1)");
    TRY(read_tokenizer(w, root, m));
    TRY(read_half(w, root, m, HALF_TRAIN));
    TRY(read_half(w, root, m, HALF_HELDOUT));
    TRY(read_order(w, root, m));
    return read_sources(w, root, m);
}

enum brg_status manifest_parse(const char *name, const void *json, size_t bytes,
                               struct manifest *out, struct err *e) {
    struct json_place w = {.file = name, .remedy = REMEDY, .status = BRG_E_MANIFEST, .e = e};
    json_t *root = NULL;
    *out = (struct manifest){0};
    TRY(json_read(&w, json, bytes, &root));
    enum brg_status s = read_root(&w, root, out);
    json_decref(root);
    if (s != BRG_OK) manifest_fini(out);
    return s;
}

/* ---- Writing
 * ------------------------------------------------------------------------------------- */
static json_t *hash_json(const struct hash *h) {
    char hex[HASH_HEX_BYTES];
    hash_hex(h, hex);
    return json_string(hex);
}

static json_t *half_json(const struct manifest *m, enum half half) {
    const struct half_entry *h = &m->half[half];
    json_t *shards = json_array();
    for (uint32_t i = 0; i < h->shards_count; i++) {
        char name[SHARD_NAME_BYTES];
        json_array_append_new(shards,
                              json_pack("{s:s, s:I, s:o}", "file", shard_name(name, half, i),
                                        "samples", (json_int_t)h->shards[i].samples, "sha256",
                                        hash_json(&h->shards[i].hash)));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "documents", (json_int_t)h->documents,
                     "samples", (json_int_t)h->samples, "tokens", (json_int_t)h->tokens,
                     "tokens_dropped", (json_int_t)h->tokens_dropped, "text_bytes",
                     (json_int_t)h->text_bytes, "shards", shards);
}

void manifest_write(const struct manifest *m, struct buf *out) {
    json_t *sources = json_array();
    for (uint32_t i = 0; i < m->sources_count; i++) {
        const struct source_entry *s = &m->sources[i];
        /* A name that is no UTF-8 still has its hash. */
        json_t *name = json_string(s->name);
        json_array_append_new(
            sources, json_pack("{s:o, s:I, s:o}", "name", name != NULL ? name : json_string("?"),
                               "bytes", (json_int_t)s->bytes, "sha256", hash_json(&s->hash)));
    }
    struct order order;
    order_init(&order, m->order_seed, 0, m->half[HALF_TRAIN].samples, 0, 0);
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:{s:s, s:o}, s:{s:i, s:I, s:I, s:I}, s:f, s:o, s:o, s:o}",
        "format", FORMAT, "version", MANIFEST_VERSION, "seq_len", (int)m->seq_len, "vocab",
        (int)m->vocab, "token_bytes", (int)m->token_bytes, "tokenizer", "kind",
        m->tokenizer_bytes ? "bytes" : "bpe", "sha256", hash_json(&m->tokenizer_hash), "order",
        "version", ORDER_VERSION, "seed", (json_int_t)m->order_seed, "block",
        (json_int_t)order.block, "group", (json_int_t)order.group, "heldout_share",
        m->heldout_share, "train", half_json(m, HALF_TRAIN), "heldout", half_json(m, HALF_HELDOUT),
        "sources", sources);
    CHECK(root != NULL);
    json_write(root, out);
    json_decref(root);
    CHECK(!out->overflow);
}

struct hash manifest_fingerprint(const struct manifest *m) {
    AUTO_BUF struct buf b;
    buf_init(&b, MANIFEST_BYTES_MAX);
    buf_str(&b, "beringia data set fingerprint 1");
    buf_u32(&b, m->seq_len);
    buf_u32(&b, m->vocab);
    buf_u32(&b, m->token_bytes);
    buf_put(&b, m->tokenizer_hash.v, HASH_BYTES);
    struct order order;
    order_init(&order, m->order_seed, 0, m->half[HALF_TRAIN].samples, 0, 0);
    buf_u32(&b, ORDER_VERSION);
    buf_u64(&b, m->order_seed);
    buf_u32(&b, order.block);
    buf_u32(&b, order.group);
    for (int h = 0; h < HALF_COUNT; h++) {
        buf_u64(&b, m->half[h].samples);
        buf_u32(&b, m->half[h].shards_count);
        for (uint32_t i = 0; i < m->half[h].shards_count; i++) {
            buf_u64(&b, m->half[h].shards[i].samples);
            buf_put(&b, m->half[h].shards[i].hash.v, HASH_BYTES); /* D6 */
        }
    }
    CHECK(!b.overflow);
    return hash_of(b.data, b.bytes_count);
}
