/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_ledger.c - libFuzzer on the ledger inside a checkpoint, which may come from any site's disk (hub --rebuild-from).
 *   make fuzz F=ledger SECONDS=60
 * What is read is sound, and written again is the same bytes. */
#include "lease/lease.h"
#include "test/fuzz/patched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16, EPOCHS = 3, VERSION = 7 };

static const struct buf *good(void) {
    static struct buf b;
    if (b.bytes_count > 0) return &b;
    struct ledger *l = ledger_create(50, EPOCHS);
    CHECK(ledger_epoch_open(l, 0) == LEASE_FINE);
    CHECK(ledger_epoch_open(l, 1) == LEASE_FINE);
    for (uint32_t i = 0; i < 4; i++) {
        struct lease_span span = {10 * i, 8};
        struct lease_grant g = {.tok = ((uint64_t)1 << 32) + i + 1,
                                .nonce = i + 1,
                                .site = 1,
                                .inc = 1,
                                .epoch = i % 2,
                                .spans = &span,
                                .spans_count = 1};
        CHECK(ledger_grant(l, &g) == LEASE_FINE);
        struct lease_part part = {.tok = g.tok, .nonce = g.nonce, .done = 5};
        struct lease_stage s = {
            .did = {{(uint8_t)(i + 1)}}, .site = 1, .inc = 1, .parts = &part, .parts_count = 1};
        CHECK(ledger_stage(l, &s) == LEASE_FINE);
        struct id128 did = s.did;
        CHECK(ledger_merge(l, i + 1, &did, 1) == LEASE_FINE);
    }
    buf_init(&b, INPUT_MAX);
    ledger_checkpoint_encode(l, VERSION, false, &b);
    ledger_destroy(l);
    return &b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t bytes[INPUT_MAX];
    struct ledger *l = NULL;
    struct err e = {0};
    uint64_t version = 0;
    if (size == 0 || size > INPUT_MAX / 2) return 0;
    size_t n = patched(good(), data, size, bytes);
    if (ledger_checkpoint_decode(bytes, n, EPOCHS, &l, &version, &e) != BRG_OK) {
        CHECK(e.text[0] != '\0');
        return 0;
    }
    struct buf b;
    buf_init(&b, 1 << 20);
    ledger_check(l);
    ledger_checkpoint_encode(l, version, false, &b);
    CHECK(b.bytes_count == n);
    CHECK(memcmp(b.data, bytes, n) == 0);
    buf_fini(&b);
    ledger_destroy(l);
    return 0;
}
