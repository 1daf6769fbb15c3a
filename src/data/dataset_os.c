/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_os.c - opening a data set: every file is checked against the manifest before a sample is
 * given out. */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/os.h"
#include "data/dataset.h"
#include "data/tokenizer.h"

enum { PIECE_BYTES = 1 << 20 }; /* of whole tokens */

static enum brg_status open_manifest(struct dataset *d, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text;
    buf_init(&text, MANIFEST_BYTES_MAX);
    os_path(path, d->dir, "manifest.json");
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING,
                       "%.300s: there is no such file, so this is no data set; make "
                       "one with `beringia pack`",
                       path);
    TRY(os_read_file(path, MANIFEST_BYTES_MAX, &text, e));
    TRY(manifest_parse(path, text.data, text.bytes_count, &d->manifest, e));
    d->fingerprint = manifest_fingerprint(&d->manifest);
    return BRG_OK;
}

static enum brg_status open_tokenizer(struct dataset *d, struct err *e) {
    char path[OS_PATH_MAX];
    os_path(path, d->dir, d->manifest.tokenizer_bytes ? "manifest.json" : "tokenizer.json");
    if (d->manifest.tokenizer_bytes)
        d->tokenizer = tokenizer_bytes();
    else
        TRY(tokenizer_load(path, &d->tokenizer, e));
    struct hash have = tokenizer_hash(d->tokenizer);
    if (!hash_equal(&have, &d->manifest.tokenizer_hash) ||
        tokenizer_vocab(d->tokenizer) != d->manifest.vocab)
        return err_set(e, BRG_E_TOKENIZER,
                       "%.300s: is not the tokenizer that the manifest's field "
                       "tokenizer.sha256 names; put the original file back, or pack again",
                       path);
    return BRG_OK;
}

/* Through copies: see map.h. */
static enum brg_status check_shard(const struct dataset *d, const char *path, const struct map *map,
                                   const struct shard_entry *entry, bool verify, struct err *e) {
    AUTO_FREE uint8_t *piece = mem_alloc(PIECE_BYTES, 1);
    struct shard_scan scan;
    size_t at = 0, n = map->bytes < SHARD_HEAD_BYTES ? map->bytes : SHARD_HEAD_BYTES;
    bool there = map_copy(map, 0, n, piece);
    if (there) TRY(shard_check(path, piece, map->bytes, &d->manifest, entry->samples, e));
    shard_scan_begin(&scan);
    for (; there && verify && at < map->bytes; at += n) {
        n = map->bytes - at < PIECE_BYTES ? map->bytes - at : PIECE_BYTES;
        there = map_copy(map, at, n, piece);
        if (there) shard_scan_add(&scan, &d->manifest, piece, n);
    }
    if (!there)
        return err_set(e, BRG_E_SHARD,
                       "%.300s: became shorter while it was read, or its disk fails; copy the data "
                       "set again",
                       path);
    return verify ? shard_scan_end(&scan, path, &d->manifest, &entry->hash, e) : BRG_OK;
}

static enum brg_status open_half(struct dataset *d, enum half half, bool verify, struct err *e) {
    const struct half_entry *m = &d->manifest.half[half];
    struct shards *s = &d->half[half];
    s->maps = mem_alloc(m->shards_count, sizeof *s->maps);
    s->first = mem_alloc((size_t)m->shards_count + 1, sizeof *s->first);
    s->count = m->shards_count;
    for (uint32_t i = 0; i < m->shards_count; i++) {
        char path[OS_PATH_MAX], name[SHARD_NAME_BYTES];
        os_path(path, d->dir, "%s", shard_name(name, half, i));
        TRY(map_open(&s->maps[i], path, e));
        TRY(check_shard(d, path, &s->maps[i], &m->shards[i], verify, e));
        s->first[i + 1] = s->first[i] + m->shards[i].samples;
    }
    CHECK(s->first[s->count] == m->samples);
    return BRG_OK;
}

static enum brg_status open_all(struct dataset *d, bool verify, struct err *e) {
    if (strlen(d->dir) >= OS_PATH_MAX - SHARD_NAME_BYTES - 2)
        return err_set(e, BRG_E_MISSING, "the path of the data set is too long; use a shorter one");
    TRY(open_manifest(d, e));
    TRY(open_tokenizer(d, e));
    TRY(open_half(d, HALF_TRAIN, verify, e));
    return open_half(d, HALF_HELDOUT, verify, e);
}

enum brg_status data_open(const char *dir, bool verify, struct dataset **out, struct err *e) {
    struct dataset *d = mem_alloc(1, sizeof *d);
    d->dir = mem_strdup(dir);
    enum brg_status s = open_all(d, verify, e);
    if (s != BRG_OK) {
        data_close(d);
        return s;
    }
    *out = d;
    return BRG_OK;
}

void data_close(struct dataset *d) {
    if (d == NULL) return;
    for (int h = 0; h < HALF_COUNT; h++) {
        for (uint32_t i = 0; i < d->half[h].count; i++) map_close(&d->half[h].maps[i]);
        mem_free(d->half[h].maps);
        mem_free(d->half[h].first);
    }
    tokenizer_free(d->tokenizer);
    manifest_fini(&d->manifest);
    mem_free(d->dir);
    mem_free(d);
}

void dataset_altered(const struct dataset *d, enum half half, uint32_t shard) {
    char name[SHARD_NAME_BYTES], quoted[OS_PATH_MAX];
    log_line(
        LOG_ERROR, "data", "shard_altered",
        "dir=%s shard=%s status=E_SHARD remedy=\"the file changed after it was opened: copy the "
        "data set again and open it with verification\"",
        log_quote(d->dir, quoted, sizeof quoted), shard_name(name, half, shard));
    guard_fall(BRG_E_SHARD, "%s: a shard changed after it was opened; copy the data set again",
               d->dir);
    _Exit(BRG_E_SHARD);
}
