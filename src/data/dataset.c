/* SPDX-License-Identifier: Apache-2.0 */
#include "data/dataset.h"

uint64_t data_samples(const struct dataset *d) {
    return d->manifest.half[HALF_TRAIN].samples;
}

uint64_t data_heldout_samples(const struct dataset *d) {
    return d->manifest.half[HALF_HELDOUT].samples;
}

uint32_t data_seq_len(const struct dataset *d) {
    return d->manifest.seq_len;
}

uint32_t data_vocab(const struct dataset *d) {
    return d->manifest.vocab;
}

uint64_t data_order_seed(const struct dataset *d) {
    return d->manifest.order_seed;
}

void data_order(const struct dataset *d, uint32_t epoch, struct order *out) {
    order_init(out, d->manifest.order_seed, epoch, data_samples(d), 0, 0);
}

struct hash data_fingerprint(const struct dataset *d) {
    return d->fingerprint;
}

struct hash data_tokenizer_hash(const struct dataset *d) {
    return d->manifest.tokenizer_hash;
}

const struct tokenizer *data_tokenizer(const struct dataset *d) {
    return d->tokenizer;
}

uint64_t data_heldout_text_bytes(const struct dataset *d) {
    return d->manifest.half[HALF_HELDOUT].text_bytes;
}

void data_counts(const struct dataset *d, struct data_counts *out_train,
                 struct data_counts *out_heldout) {
    for (int h = 0; h < HALF_COUNT; h++) {
        const struct half_entry *m = &d->manifest.half[h];
        struct data_counts *out = h == HALF_TRAIN ? out_train : out_heldout;
        if (out == NULL) continue;
        *out = (struct data_counts){.documents = m->documents,
                                    .samples = m->samples,
                                    .tokens = m->tokens,
                                    .tokens_dropped = m->tokens_dropped,
                                    .text_bytes = m->text_bytes,
                                    .shards = m->shards_count};
    }
}

enum { PIECE_BYTES = 16384 };

static void sample_get(const struct dataset *d, enum half half, uint64_t sample, int32_t *out) {
    const struct shards *s = &d->half[half];
    CHECK(sample < s->first[s->count]);
    uint32_t low = 0, high = s->count; /* first[low] <= sample < first[high] */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (s->first[middle] <= sample)
            low = middle;
        else
            high = middle;
    }
    uint32_t seq_len = d->manifest.seq_len, width = d->manifest.token_bytes,
             vocab = d->manifest.vocab;
    size_t at = SHARD_HEAD_BYTES + (size_t)(sample - s->first[low]) * seq_len * width;
    uint8_t piece[PIECE_BYTES];
    bool below = true;
    for (uint32_t done = 0; done <= seq_len;) {
        uint32_t left = seq_len + 1 - done, fit = PIECE_BYTES / width, n = left < fit ? left : fit;
        if (!map_copy(&s->maps[low], at, (size_t)n * width, piece)) dataset_altered(d, half, low);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t id = width == 2 ? (uint32_t)piece[2 * i] | (uint32_t)piece[2 * i + 1] << 8
                                     : get_le32(piece + 4 * (size_t)i);
            below &= id < vocab;
            out[done + i] = (int32_t)id;
        }
        at += (size_t)n * width;
        done += n;
    }
    if (!below) dataset_altered(d, half, low);
}

void data_sample(const struct dataset *d, uint64_t sample, int32_t *out) {
    sample_get(d, HALF_TRAIN, sample, out);
}

void data_heldout_sample(const struct dataset *d, uint64_t sample, int32_t *out) {
    sample_get(d, HALF_HELDOUT, sample, out);
}
