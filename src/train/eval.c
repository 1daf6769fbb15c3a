/* SPDX-License-Identifier: Apache-2.0 */
/* eval.c - the held-out loss. The mean is over tokens, so a last batch with fewer rows counts less.
 * Ranks that share the trainer's model take turns in batches; all of them get the whole result. */
#include "train/eval.h"

#include <math.h>

#include "train/trainer.h"

enum brg_status eval_heldout(struct trainer *t, const struct dataset *d, struct eval_result *out,
                             struct err *e) {
    uint64_t samples = data_heldout_samples(d);
    if (samples == 0)
        return err_set(e, BRG_E_MANIFEST,
                       "the data set holds no held-out sample: pack it with a "
                       "larger held-out share");
    if (data_seq_len(d) != t->T)
        return err_set(e, BRG_E_MANIFEST,
                       "the data set's samples have %u tokens, the trainer takes %u",
                       data_seq_len(d), t->T);
    if (data_vocab(d) > t->V)
        return err_set(
            e, BRG_E_MODEL,
            "the data set's vocabulary (%u) exceeds the model's vocab_size (%zu): take the "
            "tokenizer that belongs to the model",
            data_vocab(d), t->V);
    size_t width = (size_t)t->T + 1;
    AUTO_FREE int32_t *tokens = mem_alloc(t->batch_max * width, sizeof *tokens);
    double sum = 0;
    uint64_t first = (uint64_t)dp_rank(t->net) * t->batch_max;
    uint64_t stride = (uint64_t)dp_ranks(t->net) * t->batch_max;
    for (uint64_t at = first; at < samples; at += stride) {
        uint32_t rows = samples - at < t->batch_max ? (uint32_t)(samples - at) : t->batch_max;
        for (uint32_t r = 0; r < rows; r++) data_heldout_sample(d, at + r, tokens + r * width);
        sum += trainer_loss(t, tokens, rows) * rows;
    }
    sum = dp_sum(t->net, sum);
    struct eval_result x = {
        .samples = samples, .tokens = samples * t->T, .nll = sum / (double)samples};
    x.perplexity = exp(x.nll);
    double bytes = (double)data_heldout_text_bytes(d);
    if (bytes > 0) x.bits_per_byte = x.nll * (double)x.tokens / 0.69314718055994531 / bytes;
    *out = x;
    return BRG_OK;
}

void eval_rows(struct trainer *t, const int32_t *tokens, uint64_t rows, struct eval_result *out) {
    size_t width = (size_t)t->T + 1;
    double sum = 0;
    CHECK(rows > 0);
    for (uint64_t at = 0; at < rows; at += t->batch_max) {
        uint32_t n = rows - at < t->batch_max ? (uint32_t)(rows - at) : t->batch_max;
        sum += trainer_loss(t, tokens + at * width, n) * n;
    }
    *out = (struct eval_result){.samples = rows, .tokens = rows * t->T, .nll = sum / (double)rows};
    out->perplexity = exp(out->nll);
}
