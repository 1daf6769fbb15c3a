/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_snapshot.c - libFuzzer on the hub's snapshots: a small run's with wrong bytes. It ends with E_JOURNAL (the journal
 * alone is enough then), or with a state that is sound, and written again is the same bytes.
 *   make fuzz F=snapshot SECONDS=60
 * An input that begins with 's' is about a run in synchronous rounds. */
#include <stdio.h>

#include "test/fuzz/hub_run.h"
#include "test/fuzz/patched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t bytes[INPUT_MAX];
    struct err e = {0};
    if (size == 0 || size > INPUT_MAX / 2) return 0;
    bool synchronous = data[0] == 's';
    struct hub_run *x = synchronous ? hub_run_synchronous() : hub_run();
    data += synchronous;
    size -= synchronous;
    size_t n = patched(&x->snapshot, data, size, bytes);
    struct hub *h = hub_create(&x->s, 1);
    if (hub_restore(h, x->snapshot_seq, bytes, n, &e) == BRG_OK) {
        struct buf b;
        buf_init(&b, 1 << 20);
        hub_check(h);
        hub_snapshot(h, &b);
        CHECK(b.bytes_count == n);
        CHECK(memcmp(b.data, bytes, n) == 0);
        buf_fini(&b);
    } else {
        CHECK(e.text[0] != '\0');
    }
    hub_destroy(h);
    return 0;
}
