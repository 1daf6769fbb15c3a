/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h - who may ask the hub for what: tokens, their scopes, and the file that keeps them. Pure.
 *
 * A token is a text of its owner's alone: "brg_" ID "_" SECRET, where ID is 8 and SECRET 64 hexadecimal
 * digits. ID is public and stands in lists and logs; SECRET is 256 random bits. The hub keeps SHA-256 of
 * the whole text and nothing else: who reads RUN/tokens.json cannot act with it.
 *
 * RUN/tokens.json: {"version":1,"tokens":[{id, scope, name, hash, created, expires, revoked}]}, times in
 * seconds since 1970, 0: never. The file is there: no request is answered without a token. */
#ifndef HUB_TOKENS_H
#define HUB_TOKENS_H

#include "base/base.h"
#include "wire/wire.h"

enum token_scope {
    TOKEN_SITE = 1,     /* trains under one name, uploads, reads versions */
    TOKEN_AGENT = 2,    /* the same, and the reports of a facility's agent under that name */
    TOKEN_VIEWER = 3,   /* reads figures, no weights */
    TOKEN_OPERATOR = 4, /* decides, reads everything, trains nothing */
    TOKEN_SCOPES = 5
};
/* Sets of scopes, for the table of routes. */
enum {
    SCOPES_ANYBODY =
        1, /* the dashboard's page, which has nothing in it: it asks for a token itself */
    SCOPES_SITE = 1 << TOKEN_SITE | 1 << TOKEN_AGENT,
    SCOPES_AGENT = 1 << TOKEN_AGENT,
    SCOPES_OPERATOR = 1 << TOKEN_OPERATOR,
    SCOPES_WEIGHTS = SCOPES_SITE | SCOPES_OPERATOR,
    SCOPES_FIGURES = SCOPES_WEIGHTS | 1 << TOKEN_VIEWER
};
const char *token_scope_name(enum token_scope s);
bool token_scope_parse(const char *name, enum token_scope *out);

enum {
    TOKENS_MAX = 1024,
    TOKEN_ID_BYTES = 9,                                          /* 8 digits, NUL */
    TOKEN_TEXT_BYTES = 4 + 8 + 1 + 64 + 1,                       /* NUL included */
    TOKEN_RANDOM_BYTES = 4 + 32,                                 /* of an id and a secret */
    TOKENS_FILE_MAX = TOKENS_MAX * (256 + WIRE_NAME_MAX) + 1024, /* of RUN/tokens.json */
};

struct token {
    char id[TOKEN_ID_BYTES];
    enum token_scope scope;
    char name
        [WIRE_NAME_MAX]; /* of the site or facility; "": none, where the scope is bound to none */
    struct hash hash;
    uint64_t created, expires, revoked;
};
struct tokens {
    uint32_t version;
    uint32_t tokens_count;
    struct token tokens[TOKENS_MAX];
};

void tokens_encode(const struct tokens *t, struct buf *out);
/* E_MESSAGE: names the member; *out is untouched then. */
enum brg_status tokens_decode(const void *json, size_t n, struct tokens *out, struct err *e)
    MUST_USE;

/* The text and its record's id and hash, from random bytes. */
void token_make(const uint8_t random[TOKEN_RANDOM_BYTES], char out_text[TOKEN_TEXT_BYTES],
                char out_id[TOKEN_ID_BYTES], struct hash *out_hash);

enum token_verdict { TOKEN_GOOD = 0, TOKEN_UNKNOWN, TOKEN_REVOKED, TOKEN_EXPIRED };
/* Whose text this is. The id chooses the record, the hashes are compared without an early exit, so that
 * the time taken tells nothing of the secret. *out: the record, also of a revoked or expired one, whose
 * secret was right; NULL where it is unknown. */
enum token_verdict tokens_find(const struct tokens *t, const char *text, uint64_t now_s,
                               const struct token **out);
/* NULL where there is none. */
struct token *tokens_by_id(struct tokens *t, const char *id);

/* The token in an Authorization header; false where there is none. "Bearer TOKEN" as RFC 6750 has it, or the
 * password of "Basic" (RFC 7617), for tools that know nothing else; the user's name is anything. */
enum { TOKEN_HEADER_MAX = 256 };
bool token_of_header(const char *value, char out[TOKEN_HEADER_MAX]);

#endif
