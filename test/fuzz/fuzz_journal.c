/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_journal.c - libFuzzer on what the hub reads of its own journal: each record alone, and records in a row, as a
 * disk or a hand may have bent them. It ends with the state or with E_JOURNAL, and a record that is read has one form.
 *   make fuzz F=journal SECONDS=60
 * The first byte chooses: a small run's records with wrong bytes, more records behind some of them, or one record; from
 * 128 on the run is one in synchronous rounds. */
#include <stdio.h>

#include "hub/record.h"
#include "test/fuzz/hub_run.h"
#include "test/fuzz/patched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16 };

static void one(uint16_t kind, const void *body, size_t n) {
    struct hub_record r;
    struct err e;
    struct buf b;
    if (hub_record_decode(kind, body, n, &r, &e) != BRG_OK) return;
    buf_init(&b, 1 << 20);
    hub_record_encode(&r, &b);
    CHECK(b.bytes_count == n);
    if (n > 0) CHECK(memcmp(b.data, body, n) == 0);
    buf_fini(&b);
    hub_record_fini(&r);
}

/* Framed records into a hub; false where one does not fit. */
static bool follow(struct hub *h, struct reader *r, uint64_t *seq, uint64_t most) {
    struct err e = {0};
    for (; r->p < r->end && most > 0; most--) {
        uint16_t kind = get_u16(r);
        uint32_t n = get_u32(r);
        const void *body = get_bytes(r, n);
        if (!r->ok) return false;
        one(kind, body, n);
        if (hub_apply(h, ++*seq, kind, body, n, &e) == BRG_OK) continue;
        CHECK(e.text[0] != '\0');
        return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t bytes[INPUT_MAX];
    if (size < 3 || size > INPUT_MAX / 2) return 0;
    struct hub_run *x = data[0] < 128 ? hub_run() : hub_run_synchronous();
    uint8_t mode = data[0], second = data[1];
    data += 2;
    size -= 2;
    if (mode % 3 == 0) {
        one(second, data, size);
        return 0;
    }
    struct hub *h = hub_create(&x->s, 1);
    uint64_t seq = 0;
    struct reader r = reader_of(x->records.data, x->records.bytes_count);
    bool good;
    if (mode % 3 == 1) {
        r = reader_of(bytes, patched(&x->records, data, size, bytes));
        good = follow(h, &r, &seq, UINT64_MAX);
    } else {
        good = follow(h, &r, &seq, second % (x->count + 1));
        r = reader_of(data, size);
        good = good && follow(h, &r, &seq, UINT64_MAX);
    }
    struct hub_view v;
    hub_view(h, 0, &v);
    if (good && !v.importing) hub_check(h);
    hub_destroy(h);
    return 0;
}
