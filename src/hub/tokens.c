/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c - see tokens.h.
 *
 * Invariants
 *   (T1) a text is good only by a hash of the file, of a record that is neither revoked nor expired.
 *   (T2) a token of a site or an agent has a name. */
#include <nettle/base64.h>
#include <string.h>
#include <strings.h>

#include "hub/tokens.h"
#include "wire/json.h"

enum { FILE_VERSION = 1 };
static const char PREFIX[] = "brg_";
static const char *const scope_names[TOKEN_SCOPES] = {NULL, "site", "agent", "viewer", "operator"};

const char *token_scope_name(enum token_scope s) {
    CHECK(s >= TOKEN_SITE);
    CHECK(s < TOKEN_SCOPES);
    return scope_names[s];
}

bool token_scope_parse(const char *name, enum token_scope *out) {
    for (int s = TOKEN_SITE; s < TOKEN_SCOPES; s++) {
        if (strcmp(scope_names[s], name) != 0) continue;
        *out = (enum token_scope)s;
        return true;
    }
    return false;
}

/* ---- The file ------------------------------------------------------------------------------------ */
static const struct field token_fields[] = {
    FIELD_TEXT(token, id),           FIELD_NAME(token, scope, scope_names),
    FIELD_TEXT(token, name),         FIELD(token, hash, JSON_HASH),
    FIELD(token, created, JSON_U64), FIELD(token, expires, JSON_U64),
    FIELD(token, revoked, JSON_U64), FIELD_END};
static const struct field file_fields[] = {FIELD(tokens, version, JSON_U32),
                                           FIELD_LIST(tokens, tokens, token_fields), FIELD_END};

void tokens_encode(const struct tokens *t, struct buf *out) {
    struct tokens *copy = mem_alloc(1, sizeof *copy);
    bool first = true;
    *copy = *t;
    copy->version = FILE_VERSION;
    buf_u8(out, '{');
    json_fields_put(out, file_fields, copy, &first);
    buf_put(out, "}\n", 2);
    mem_free(copy);
}

static bool id_valid(const char *id) {
    return strlen(id) == TOKEN_ID_BYTES - 1 && strspn(id, "0123456789abcdef") == TOKEN_ID_BYTES - 1;
}

static bool bound(enum token_scope s) {
    return s == TOKEN_SITE || s == TOKEN_AGENT;
}

static enum brg_status token_check(const struct tokens *t, uint32_t i, struct err *e) {
    const struct token *k = &t->tokens[i];
    if (!id_valid(k->id))
        return err_set(e, BRG_E_MESSAGE, "tokens[%u].id: expected 8 lower-case hex digits", i);
    if (k->name[0] == '\0' ? bound(k->scope) : !wire_name_valid(k->name)) /* T2 */
        return err_set(e, BRG_E_MESSAGE, "tokens[%u].name: expected the name of a site", i);
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(t->tokens[j].id, k->id) == 0)
            return err_set(e, BRG_E_MESSAGE, "tokens[%u].id: is that of tokens[%u] too", i, j);
    return BRG_OK;
}

enum brg_status tokens_decode(const void *json, size_t n, struct tokens *out, struct err *e) {
    struct tokens *t = mem_alloc(1, sizeof *t);
    json_t *o = NULL;
    enum brg_status s = json_object_parse(json, n, TOKENS_FILE_MAX, &o, e);
    if (s == BRG_OK) s = json_fields_get(o, file_fields, t, "tokens", e);
    if (s == BRG_OK && t->version != FILE_VERSION)
        s = err_set(e, BRG_E_MESSAGE, "tokens.version: is %u, this program knows %d", t->version,
                    FILE_VERSION);
    for (uint32_t i = 0; s == BRG_OK && i < t->tokens_count; i++) s = token_check(t, i, e);
    if (s == BRG_OK) *out = *t;
    json_decref(o);
    mem_free(t);
    return s;
}

/* ---- Texts ----------------------------------------------------------------------------------------- */
void token_make(const uint8_t random[TOKEN_RANDOM_BYTES], char out_text[TOKEN_TEXT_BYTES],
                char out_id[TOKEN_ID_BYTES], struct hash *out_hash) {
    size_t at = sizeof PREFIX - 1;
    memcpy(out_text, PREFIX, at);
    hex_encode(random, 4, out_id);
    memcpy(out_text + at, out_id, 8);
    out_text[at + 8] = '_';
    hex_encode(random + 4, 32, out_text + at + 9);
    *out_hash = hash_of(out_text, TOKEN_TEXT_BYTES - 1);
}

enum token_verdict tokens_find(const struct tokens *t, const char *text, uint64_t now_s,
                               const struct token **out) {
    static const struct token nobody; /* compared with, so that an unknown id takes as long */
    const struct token *found = &nobody;
    size_t n = strlen(text), at = sizeof PREFIX - 1;
    *out = NULL;
    if (n != TOKEN_TEXT_BYTES - 1 || memcmp(text, PREFIX, at) != 0 || text[at + 8] != '_')
        return TOKEN_UNKNOWN;
    struct hash h = hash_of(text, n);
    for (uint32_t i = 0; i < t->tokens_count; i++)
        if (memcmp(t->tokens[i].id, text + at, TOKEN_ID_BYTES - 1) == 0) found = &t->tokens[i];
    bool same = hash_equal(&h, &found->hash);
    if (!same || found == &nobody) return TOKEN_UNKNOWN;
    *out = found;
    if (found->revoked != 0) return TOKEN_REVOKED;
    if (found->expires != 0 && now_s >= found->expires) return TOKEN_EXPIRED;
    CHECK(hash_equal(&h, &(*out)->hash));                  /* T1 */
    CHECK(!bound(found->scope) || found->name[0] != '\0'); /* T2 */
    return TOKEN_GOOD;
}

struct token *tokens_by_id(struct tokens *t, const char *id) {
    for (uint32_t i = 0; i < t->tokens_count; i++)
        if (strcmp(t->tokens[i].id, id) == 0) return &t->tokens[i];
    return NULL;
}

static bool basic_password(const char *text, char out[TOKEN_HEADER_MAX]) {
    struct base64_decode_ctx ctx;
    uint8_t plain[BASE64_DECODE_LENGTH(TOKEN_HEADER_MAX * 2)];
    size_t n = sizeof plain - 1, bytes = strlen(text);
    if (bytes > (size_t)TOKEN_HEADER_MAX * 2 - 4) return false;
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &n, plain, bytes, text) || !base64_decode_final(&ctx))
        return false;
    const uint8_t *colon = memchr(plain, ':', n);
    size_t rest = colon != NULL ? n - (size_t)(colon + 1 - plain) : 0;
    bool fits = rest > 0 && rest < TOKEN_HEADER_MAX;
    if (fits) memcpy(out, colon + 1, rest);
    if (fits) out[rest] = '\0';
    explicit_bzero(plain, sizeof plain);
    return fits;
}

bool token_of_header(const char *value, char out[TOKEN_HEADER_MAX]) {
    if (value == NULL) return false;
    bool basic = strncasecmp(value, "Basic ", 6) == 0;
    if (!basic && strncasecmp(value, "Bearer ", 7) != 0) return false;
    value += basic ? 6 : 7;
    while (*value == ' ') value++;
    if (basic) return basic_password(value, out);
    if (*value == '\0' || strlen(value) >= TOKEN_HEADER_MAX) return false;
    memcpy(out, value, strlen(value) + 1);
    return true;
}
