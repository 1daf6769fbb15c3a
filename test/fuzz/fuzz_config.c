/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_config.c - libFuzzer on config.json.
 *   make fuzz F=config SECONDS=60
 * What is accepted must be a model whose sizes do not overflow, and must survive being written and read. */
#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config c, again;
    struct err e;
    if (model_config_parse((const char *)data, size, "input", &c, &e) != BRG_OK) return 0;
    CHECK(c.num_attention_heads % c.num_key_value_heads == 0);
    CHECK(c.head_dim % 2 == 0);
    CHECK(model_parameters(&c) <= UINT64_C(1000000000000));
    struct buf b;
    buf_init(&b, 1 << 20);
    model_config_json(&c, &b);
    CHECK(!b.overflow);
    CHECK(model_config_parse((const char *)b.data, b.bytes_count, "again", &again, &e) == BRG_OK);
    CHECK(model_config_differs(&c, &again) == NULL);
    CHECK(c.max_position_embeddings == again.max_position_embeddings);
    CHECK(c.initializer_range == again.initializer_range);
    buf_fini(&b);
    if (c.num_hidden_layers <= 64) { /* the table is long for more */
        struct tensors t = {0};
        uint64_t sum = 0;
        model_tensors(&c, &t);
        for (size_t i = 0; i < t.count; i++) sum += t.v[i].elements;
        CHECK(sum == model_parameters(&c));
        tensors_fini(&t);
    }
    return 0;
}
