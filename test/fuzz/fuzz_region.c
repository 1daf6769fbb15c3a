/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_region.c - libFuzzer on what a region reads of its own: the note of its leases at the parent (RUN/uplink/state),
 * its journal (docs/journal.md, kind 24) and its snapshots, with wrong bytes. Each ends with the state, which written
 * again is the same bytes, or with a line of text.
 *   make fuzz F=region SECONDS=60
 * The first byte chooses which of the three. */
#include <stdio.h>

#include "hub/record.h"
#include "hub/uplink.h"
#include "test/fuzz/hub_run.h"
#include "test/fuzz/patched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16 };

/* ---- A small region, written down ---------------------------------------------------------------------------- */
static void hold(struct hub_run *x, uint64_t count) {
    const struct hub_span s = {.range = {0, count}};
    const struct hub_cmd c = {.kind = HUB_CMD_HOLD, .u.hold = {&s, count > 0}};
    CHECK(hub_run_step(x, &c)->code == WIRE_OK);
}

static struct hub_run *region_run(void) {
    static struct hub_run run, *x = NULL;
    const struct hub_span others[] = {{.range = {20, 6}}, {.skip = true, .range = {30, 2}}};
    if (x != NULL) return x;
    x = &run;
    hub_run_begin(x, 0);
    hold(x, 0);
    hold(x, 16);
    hub_run_site(x, "a", 1);
    hub_run_merge(x, 5LL * NS_PER_S);
    struct hub_cmd c = {.kind = HUB_CMD_TAKE_IN,
                        .u.take_in = {.version = 2,
                                      .blob = {{7}},
                                      .bytes = DELTA_HEADER_BYTES + 400,
                                      .did = {{8}},
                                      .spans = others,
                                      .count = 2}};
    CHECK(hub_run_step(x, &c)->code == WIRE_OK);
    hub_snapshot(x->h, &x->snapshot);
    x->snapshot_seq = x->count;
    hub_run_site(x, "b", 2);
    hub_run_merge(x, 7LL * NS_PER_S);
    c = (struct hub_cmd){.kind = HUB_CMD_RESET};
    (void)hub_run_at(x, 20LL * NS_PER_S, &c);
    return x;
}

/* ---- The three ---------------------------------------------------------------------------------------------------- */
static void note(const uint8_t *data, size_t size) {
    static uint8_t in[INPUT_MAX + HASH_BYTES];
    AUTO_FREE struct uplink_state *s = mem_alloc(1, sizeof *s);
    struct err e = {0};
    memcpy(in, data, size);
    if (uplink_decode(in, size, s, &e) != BRG_OK) { /* past its hash, where chance does not get */
        CHECK(e.text[0] != '\0');
        struct hash h = hash_of(in, size);
        memcpy(in + size, h.v, HASH_BYTES);
        size += HASH_BYTES;
        if (uplink_decode(in, size, s, &e) != BRG_OK) return;
    }
    CHECK(s->current.count <= UPLINK_LEASES_MAX);
    CHECK(s->pending.count <= UPLINK_LEASES_MAX);
    AUTO_FREE struct hub_span *spans = NULL;
    CHECK(uplink_spans(&s->current, &spans) <= UPLINK_LEASES_MAX * WIRE_RANGES_MAX);
    AUTO_BUF struct buf a;
    AUTO_BUF struct buf b;
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    uplink_encode(s, &a); /* the message inside is JSON: what is written is one form of several */
    CHECK(uplink_decode(a.data, a.bytes_count, s, &e) == BRG_OK);
    uplink_encode(s, &b);
    CHECK(a.bytes_count == b.bytes_count);
    CHECK(memcmp(a.data, b.data, a.bytes_count) == 0);
}

static void journal(struct hub_run *x, const uint8_t *data, size_t size) {
    static uint8_t bytes[2 * INPUT_MAX];
    struct reader r = reader_of(bytes, patched(&x->records, data, size, bytes));
    struct hub *h = hub_create(&x->s, 1);
    struct err e = {0};
    uint64_t seq = 0;
    bool good = true;
    while (good && r.p < r.end) {
        uint16_t kind = get_u16(&r);
        uint32_t n = get_u32(&r);
        const void *body = get_bytes(&r, n);
        good = r.ok && hub_apply(h, ++seq, kind, body, n, &e) == BRG_OK;
        CHECK(good || !r.ok || e.text[0] != '\0');
    }
    struct hub_view v;
    hub_view(h, 0, &v);
    if (good && !v.importing) hub_check(h);
    hub_destroy(h);
}

static void snapshot(struct hub_run *x, const uint8_t *data, size_t size) {
    static uint8_t bytes[2 * INPUT_MAX];
    struct err e = {0};
    size_t n = patched(&x->snapshot, data, size, bytes);
    struct hub *h = hub_create(&x->s, 1);
    if (hub_restore(h, x->snapshot_seq, bytes, n, &e) == BRG_OK) {
        AUTO_BUF struct buf b;
        buf_init(&b, 1 << 20);
        hub_check(h);
        hub_snapshot(h, &b);
        CHECK(b.bytes_count == n);
        CHECK(memcmp(b.data, bytes, n) == 0);
    } else {
        CHECK(e.text[0] != '\0');
    }
    hub_destroy(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > INPUT_MAX / 2) return 0;
    if (data[0] % 3 == 0)
        note(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        journal(region_run(), data + 1, size - 1);
    else
        snapshot(region_run(), data + 1, size - 1);
    return 0;
}
