/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_site.c - libFuzzer on the core's part of a site's checkpoint: one of a site at work, with wrong bytes. It ends with
 * E_CHECKPOINT and nothing loaded, or with a state that is sound and with which the site goes to the hub.
 *   make fuzz F=site SECONDS=60 */
#include "site/core.h"
#include "test/fuzz/patched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16 };

static void init(struct site_core *c) {
    struct site_settings s = {.name = "a",
                              .run = {{1}},
                              .tokens_per_sample = 10,
                              .elements = 4,
                              .codec = CODEC_FP32,
                              .batch = 4,
                              .pending_max = 2,
                              .steps_target = 3,
                              .seed = 7,
                              .retry_min_ns = NS_PER_S,
                              .retry_max_ns = 8LL * NS_PER_S,
                              .answer_ns = TIME_NS_NEVER,
                              .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.5}};
    struct id128 boot = {{9}};
    site_init(c, &s, &boot);
}

static void answer(struct site_core *c, struct site_out *out, struct wire_answer *a) {
    a->kind = c->control.request.kind;
    a->term = 1;
    struct site_event ev = {.kind = SITE_ANSWER, .id = c->control.id, .u.answer = a};
    site_step(c, NS_PER_S, &ev, out);
}

/* Joined, with a lease, a contribution that is cut, and steps behind it. */
static const struct buf *good(void) {
    static struct buf b;
    static struct wire_answer a;
    static struct site_position p[16];
    if (b.bytes_count > 0) return &b;
    struct site_core *c = mem_alloc(1, sizeof *c);
    struct site_out out;
    struct site_event ev = {.kind = SITE_START};
    site_out_init(&out);
    init(c);
    site_step(c, NS_PER_S, &ev, &out);
    a = (struct wire_answer){.u.join = {.inc = 5, .ttl_ms = 60000, .heartbeat_ms = 1000}};
    a.u.join.round = (struct wire_round){.steps_target = 3, .tokens_per_step = 40, .seal = {{1}}};
    answer(c, &out, &a);
    ev = (struct site_event){.kind = SITE_DOWNLOADED};
    site_step(c, NS_PER_S, &ev, &out);
    site_loaded(c);
    ev = (struct site_event){.kind = SITE_TICK};
    site_step(c, 2LL * NS_PER_S, &ev, &out);
    if (c->control.busy && c->control.request.kind == WIRE_LEASE) {
        a = (struct wire_answer){0};
        a.u.lease.granted = true;
        a.u.lease.lease = (struct wire_lease){
            .tok = 7, .nonce = 8, .count = 60, .ranges_count = 2, .ranges = {{3, 20}, {40, 40}}};
        a.u.lease.round = c->round;
        answer(c, &out, &a);
    }
    for (int i = 0; i < 4; i++) {
        uint64_t n = site_take(c, 4, p);
        if (n > 0) CHECK(site_trained(c, 3LL * NS_PER_S, n, 3, 0.5, NULL) == BRG_OK);
        if (i == 2 && site_duty(c) == SITE_DUTY_CUT) (void)site_cut(c, &out.notes);
    }
    buf_init(&b, INPUT_MAX);
    site_save(c, &b);
    CHECK(b.bytes_count > 0);
    site_out_fini(&out);
    mem_free(c);
    return &b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t bytes[INPUT_MAX];
    static struct site_core c;
    static struct site_out out;
    struct err e = {0};
    if (size == 0 || size > INPUT_MAX / 2) return 0;
    size_t n = patched(good(), data, size, bytes);
    if (out.notes.bytes_max == 0) site_out_init(&out);
    init(&c);
    if (site_load(&c, bytes, n, &e) != BRG_OK) {
        CHECK(!c.loaded);
        CHECK(e.text[0] != '\0');
        return 0;
    }
    site_check(&c);
    struct site_event ev = {.kind = SITE_START};
    site_step(&c, NS_PER_S, &ev, &out);
    ev.kind = SITE_TICK;
    for (int i = 2; i < 5; i++) site_step(&c, i * (time_ns)NS_PER_S, &ev, &out);
    site_check(&c);
    return 0;
}
