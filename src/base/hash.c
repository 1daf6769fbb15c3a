/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c - SHA-256 by nettle, comparison of hashes and ids, hexadecimal. */
#include <assert.h>
#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <string.h>

#include "base/base.h"

static_assert(sizeof(struct sha256_ctx) <= sizeof(struct hasher), "nettle's context fits");
static_assert(_Alignof(struct sha256_ctx) <= _Alignof(struct hasher),
              "nettle's context is aligned");
static_assert(SHA256_DIGEST_SIZE == HASH_BYTES, "SHA-256 has 32 bytes");

/* The context is copied in and out: 112 bytes a call buy freedom from aliasing questions. */
static struct sha256_ctx context_of(const struct hasher *h) {
    struct sha256_ctx ctx;
    memcpy(&ctx, h->opaque, sizeof ctx);
    return ctx;
}

void hasher_init(struct hasher *h) {
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    *h = (struct hasher){0};
    memcpy(h->opaque, &ctx, sizeof ctx);
}

void hasher_update(struct hasher *h, const void *data, size_t n) {
    if (n == 0) return;
    struct sha256_ctx ctx = context_of(h);
    sha256_update(&ctx, n, data);
    memcpy(h->opaque, &ctx, sizeof ctx);
}

struct hash hasher_final(struct hasher *h) {
    struct sha256_ctx ctx = context_of(h);
    struct hash out;
    sha256_digest(&ctx, sizeof out.v, out.v);
    hasher_init(h);
    return out;
}

struct hash hash_of(const void *data, size_t n) {
    struct hasher h;
    hasher_init(&h);
    hasher_update(&h, data, n);
    return hasher_final(&h);
}

struct hash hash_keyed(const struct hash *key, const void *data, size_t n) {
    struct hmac_sha256_ctx ctx;
    struct hash out;
    hmac_sha256_set_key(&ctx, HASH_BYTES, key->v);
    hmac_sha256_update(&ctx, n, data);
    hmac_sha256_digest(&ctx, sizeof out.v, out.v);
    return out;
}

/* Without an early exit: the hash of a token is compared by this function too. */
static bool bytes_equal(const uint8_t *a, const uint8_t *b, size_t n) {
    unsigned diff = 0;
    for (size_t i = 0; i < n; i++) diff |= (unsigned)(a[i] ^ b[i]);
    return diff == 0;
}

bool hash_equal(const struct hash *a, const struct hash *b) {
    return bytes_equal(a->v, b->v, HASH_BYTES);
}

bool hash_is_zero(const struct hash *a) {
    static const struct hash zero;
    return hash_equal(a, &zero);
}

bool id_equal(const struct id128 *a, const struct id128 *b) {
    return bytes_equal(a->v, b->v, ID_BYTES);
}

void hex_encode(const uint8_t *in, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * n] = '\0';
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool hex_decode(const char *in, uint8_t *out, size_t n) {
    /* Two passes, so that out is untouched where the text is wrong. */
    for (size_t i = 0; i < 2 * n; i++)
        if (digit_of(in[i]) < 0) return false;
    if (in[2 * n] != '\0') return false;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(digit_of(in[2 * i]) << 4 | digit_of(in[2 * i + 1]));
    return true;
}

void hash_hex(const struct hash *h, char out[HASH_HEX_BYTES]) {
    hex_encode(h->v, HASH_BYTES, out);
}

void id_hex(const struct id128 *id, char out[ID_HEX_BYTES]) {
    hex_encode(id->v, ID_BYTES, out);
}
