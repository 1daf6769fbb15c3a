/* SPDX-License-Identifier: Apache-2.0 */
/* shard.c - the head of a token shard, and what must hold for the bytes behind it (data.h has the
 * format). */
#include <stdio.h>
#include <string.h>

#include "data/manifest.h"

static const uint8_t MAGIC[8] = {'B', 'R', 'G', 'T', 'O', 'K', '1', 0};
static const char REMEDY[] = "copy the data set again, or make it anew with `beringia pack`";

const char *shard_name(char out[SHARD_NAME_BYTES], enum half half, uint32_t index) {
    snprintf(out, SHARD_NAME_BYTES, "%s-%05u.tok", HALF_NAMES[half], index);
    return out;
}

uint32_t shard_token_bytes(uint32_t vocab) {
    return vocab <= UINT32_C(1) << 16 ? 2 : 4;
}

uint64_t shard_tokens(uint64_t samples, uint32_t seq_len) {
    return samples == 0 ? 0 : samples * seq_len + 1;
}

void shard_head_encode(uint32_t token_bytes, uint64_t samples, uint64_t tokens,
                       uint8_t out[SHARD_HEAD_BYTES]) {
    memset(out, 0, SHARD_HEAD_BYTES);
    memcpy(out, MAGIC, sizeof MAGIC);
    put_le32(out + 8, token_bytes);
    put_le64(out + 16, samples);
    put_le64(out + 24, tokens);
}

enum brg_status shard_check(const char *name, const void *data, size_t bytes,
                            const struct manifest *m, uint64_t samples, struct err *e) {
    struct reader r = reader_of(data, bytes);
    const uint8_t *magic = get_bytes(&r, sizeof MAGIC);
    uint32_t token_bytes = get_u32(&r), reserved = get_u32(&r);
    uint64_t head_samples = get_u64(&r), tokens = get_u64(&r);
    const uint8_t *zeros = get_bytes(&r, 32);
    if (!r.ok)
        return err_set(e, BRG_E_SHARD, "%.300s: truncated: %zu bytes are fewer than its head; %s",
                       name, bytes, REMEDY);
    if (memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return err_set(e, BRG_E_SHARD, "%.300s: field magic: this is no token shard; %s", name,
                       REMEDY);
    if (token_bytes != m->token_bytes)
        return err_set(e, BRG_E_SHARD,
                       "%.300s: field token_bytes: is %u where the manifest says "
                       "%u; %s",
                       name, token_bytes, m->token_bytes, REMEDY);
    bool clean = reserved == 0;
    for (int i = 0; i < 32; i++) clean = clean && zeros[i] == 0;
    if (!clean)
        return err_set(e, BRG_E_SHARD, "%.300s: field reserved: is not zero; %s", name, REMEDY);
    if (head_samples != samples)
        return err_set(e, BRG_E_SHARD,
                       "%.300s: field samples: is %llu where the manifest says "
                       "%llu; %s",
                       name, (unsigned long long)head_samples, (unsigned long long)samples, REMEDY);
    uint64_t want = shard_tokens(samples, m->seq_len); /* bounded by the manifest's checks */
    if (tokens != want)
        return err_set(e, BRG_E_SHARD,
                       "%.300s: field tokens: is %llu where %llu belong to its "
                       "samples; %s",
                       name, (unsigned long long)tokens, (unsigned long long)want, REMEDY);
    if (bytes != SHARD_HEAD_BYTES + want * m->token_bytes)
        return err_set(e, BRG_E_SHARD,
                       "%.300s: truncated or grown: %zu bytes where there should "
                       "be %llu; %s",
                       name, bytes, (unsigned long long)(SHARD_HEAD_BYTES + want * m->token_bytes),
                       REMEDY);
    return BRG_OK;
}

void shard_scan_begin(struct shard_scan *s) {
    *s = (struct shard_scan){.bad = UINT64_MAX};
    hasher_init(&s->hasher);
}

void shard_scan_add(struct shard_scan *s, const struct manifest *m, const void *data,
                    size_t bytes) {
    uint32_t width = m->token_bytes;
    const uint8_t *p = data;
    hasher_update(&s->hasher, data, bytes);
    if (!s->begun) {
        p += SHARD_HEAD_BYTES;
        bytes -= SHARD_HEAD_BYTES;
        s->begun = true;
    }
    for (size_t i = 0; i < bytes / width && s->bad == UINT64_MAX; i++) {
        uint32_t id = width == 2 ? (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 8
                                 : get_le32(p + 4 * i);
        if (id < m->vocab) continue;
        s->bad = s->tokens + i;
        s->bad_id = id;
    }
    s->tokens += bytes / width;
}

enum brg_status shard_scan_end(struct shard_scan *s, const char *name, const struct manifest *m,
                               const struct hash *want, struct err *e) {
    struct hash have = hasher_final(&s->hasher);
    if (!hash_equal(&have, want)) {
        char hex[HASH_HEX_BYTES];
        hash_hex(&have, hex);
        return err_set(e, BRG_E_SHARD,
                       "%.300s: altered: its SHA-256 is %.16s..., not what the "
                       "manifest says; %s",
                       name, hex, REMEDY);
    }
    if (s->bad == UINT64_MAX) return BRG_OK;
    return err_set(e, BRG_E_SHARD,
                   "%.300s: token %llu: id %u is not below the vocabulary's "
                   "%u; %s",
                   name, (unsigned long long)s->bad, s->bad_id, m->vocab, REMEDY);
}

enum brg_status shard_verify(const char *name, const void *data, size_t bytes,
                             const struct manifest *m, const struct hash *want, struct err *e) {
    struct shard_scan s;
    shard_scan_begin(&s);
    shard_scan_add(&s, m, data, bytes);
    return shard_scan_end(&s, name, m, want, e);
}
