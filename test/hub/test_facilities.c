/* SPDX-License-Identifier: Apache-2.0 */
/* Placement on the hub: reports are journaled once, orders are numbered, kept, closed by their facility. */
#include <string.h>

#include "hub/record.h"
#include "machine_kit.h"

static const struct wire_answer *report(struct kit *k, const struct wire_report *r) {
    struct hub_cmd c = {.kind = HUB_CMD_REPORT, .u = {.report = r}};
    return kit_step(k, &c);
}

static struct wire_report report_of(const struct kit *k, const char *site) {
    struct wire_report r = {.run = k->s.run};
    strncpy(r.site, site, sizeof r.site - 1);
    return r;
}

static struct wire_item *item(struct wire_report *r, uint64_t n, enum wire_item_kind kind,
                              const char *shape) {
    struct wire_item *i = &r->items[r->items_count++];
    *i = (struct wire_item){.n = n, .kind = kind, .at = 1000 + n, .nodes = 2, .seconds = 600};
    strncpy(i->shape, shape, sizeof i->shape - 1);
    return i;
}

static struct hub_cmd order_cmd(const char *site, const char *shape, uint32_t jobs,
                                uint64_t cancel) {
    struct hub_cmd c = {.kind = HUB_CMD_ORDER};
    strncpy(c.u.order.site, site, sizeof c.u.order.site - 1);
    strncpy(c.u.order.shape, shape, sizeof c.u.order.shape - 1);
    c.u.order.jobs = jobs;
    c.u.order.cancel = cancel;
    return c;
}

static void open_with_shape(struct kit *k) {
    struct hub_settings s = kit_settings(64, 1);
    kit_open(k, &s);
    struct wire_report r = report_of(k, "alder");
    item(&r, 1, ITEM_SHAPE, "small");
    assert_int_equal(report(k, &r)->code, WIRE_OK);
}

TEST(hub_H20_an_item_is_journaled_once) {
    struct kit k;
    open_with_shape(&k);
    uint64_t seq = k.seq;
    struct wire_report r = report_of(&k, "alder");
    item(&r, 1, ITEM_SHAPE, "small");
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    assert_int_equal(k.seq, seq); /* nothing new: no record */
    item(&r, 2, ITEM_PROBE, "small");
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    assert_int_equal(k.seq, seq + 1);
    kit_kill(&k);
    assert_int_equal(hub_facility_at(k.h, 0)->n, 2);
    assert_int_equal(hub_facility_at(k.h, 0)->probes[0].n, 2);
    seq = k.seq;
    assert_int_equal(report(&k, &r)->code, WIRE_OK); /* also by a hub that started again */
    assert_int_equal(k.seq, seq);
    kit_close(&k);
}

TEST(hub_H21_an_order_opens_once_and_its_facility_closes_it) {
    struct kit k;
    struct wire_agent_answer *a = mem_alloc(1, sizeof *a);
    open_with_shape(&k);
    struct hub_cmd c = order_cmd("alder", "small", 3, 0);
    const struct wire_answer *w = kit_step(&k, &c);
    assert_int_equal(w->code, WIRE_OK);
    assert_int_equal(w->req, 1);
    kit_kill(&k);
    hub_agent_answer(k.h, "alder", a);
    assert_int_equal(a->orders_count, 1);
    assert_int_equal(a->orders[0].id, 1);
    assert_int_equal(a->orders[0].jobs, 3);
    hub_agent_answer(k.h, "birch", a);
    assert_int_equal(a->orders_count, 0);
    c = order_cmd("", "", 0, 1);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    uint64_t seq = k.seq;
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK); /* again: nothing to do */
    assert_int_equal(k.seq, seq);
    hub_agent_answer(k.h, "alder", a);
    assert_true(a->orders[0].cancel);
    struct wire_report other = report_of(&k, "birch");
    item(&other, 1, ITEM_ORDER, "small")->order = 1; /* not its own */
    assert_int_equal(report(&k, &other)->code, WIRE_OK);
    assert_true(hub_order_at(k.h, 0)->open);
    struct wire_report r = report_of(&k, "alder");
    struct wire_item *i = item(&r, 2, ITEM_ORDER, "small");
    i->order = 1;
    snprintf(i->word, sizeof i->word, "cancelled");
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    assert_false(hub_order_at(k.h, 0)->open);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD); /* it is over */
    mem_free(a);
    kit_close(&k);
}

TEST(facilities_orders_want_a_known_place_and_shape) {
    struct kit k;
    open_with_shape(&k);
    struct hub_cmd c = order_cmd("birch", "small", 1, 0);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    c = order_cmd("alder", "large", 1, 0);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    c = order_cmd("alder", "small", 0, 0);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    c = order_cmd("alder", "small", WIRE_ORDER_JOBS_MAX + 1, 0);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD);
    for (int i = 0; i < WIRE_ORDERS_MAX; i++) {
        c = order_cmd("alder", "small", 1, 0);
        assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    }
    assert_int_equal(kit_step(&k, &c)->code, WIRE_BAD); /* 64 are open */
    struct wire_report r = report_of(&k, "alder");
    r.run.v[0] ^= 1;
    assert_int_equal(report(&k, &r)->code, WIRE_MISMATCH);
    kit_close(&k);
}

TEST(facilities_survive_a_snapshot) {
    struct kit k;
    struct buf b;
    struct err e = {0};
    open_with_shape(&k);
    struct wire_report r = report_of(&k, "alder");
    for (uint64_t n = 2; n < 30; n++) {
        struct wire_item *i = item(&r, n, n % 2 ? ITEM_JOB : ITEM_QUEUE, "small");
        i->order = 1;
        i->job = n;
    }
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    struct hub_cmd c = order_cmd("alder", "small", 3, 0);
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    buf_init(&b, 1 << 24);
    hub_snapshot(k.h, &b);
    struct hub *copy = hub_create(&k.s, 5);
    assert_int_equal(hub_restore(copy, k.seq, b.data, b.bytes_count, &e), BRG_OK);
    struct hash x = hub_digest(k.h), y = hub_digest(copy);
    assert_true(hash_equal(&x, &y));
    assert_int_equal(hub_facility_at(copy, 0)->jobs_count, 14);
    hub_destroy(copy);
    buf_fini(&b);
    kit_close(&k);
}

/* The estimate that stood when a job was submitted stays with it, whatever is said later; a second submission has its own. */
TEST(facilities_keep_what_was_said_when_a_job_was_submitted) {
    struct kit k;
    open_with_shape(&k);
    struct wire_report r = report_of(&k, "alder");
    item(&r, 2, ITEM_PROBE, "small")->start = 5000;
    struct wire_item *i = item(&r, 3, ITEM_JOB, "small");
    i->order = i->job = 1;
    i->submit = 1010;
    item(&r, 4, ITEM_PROBE, "small")->start = 9000;
    i = item(&r, 5, ITEM_JOB, "small");
    i->order = i->job = 1;
    i->submit = 1010;
    i->start = 1500;
    item(&r, 6, ITEM_BUDGET, "")->seconds = 77;
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    const struct hub_facility *f = hub_facility_at(k.h, 0);
    assert_int_equal(f->jobs_count, 1);
    assert_int_equal(f->said[0].start, 5000);
    assert_int_equal(f->said[0].at, 1002);
    kit_kill(&k); /* the journal gives the same */
    f = hub_facility_at(k.h, 0);
    assert_int_equal(f->said[0].start, 5000);
    assert_int_equal(f->jobs[0].start, 1500);
    assert_int_equal(f->budget.seconds, 77);
    r = report_of(&k, "alder");
    i = item(&r, 7, ITEM_JOB, "small");
    i->order = i->job = 1;
    i->submit = 2000;
    assert_int_equal(report(&k, &r)->code, WIRE_OK);
    assert_int_equal(hub_facility_at(k.h, 0)->said[0].start, 9000);
    kit_close(&k);
}

/* A message that a hostile agent may send: names, line ends, numbers that do not grow. */
TEST(facilities_reports_are_looked_at) {
    static const char *const bad[] = {
        "{}",
        "{\"site\":\"a b\",\"run\":\"00000000000000000000000000000000\"}",
        "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"items\":[{\"n\":0,\"kind\":"
        "\"job\",\"at\":1}]}",
        "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"items\":[{\"n\":2,\"kind\":"
        "\"job\",\"at\":1},"
        "{\"n\":2,\"kind\":\"job\",\"at\":1}]}",
        "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"items\":[{\"n\":2,\"kind\":"
        "\"shape\",\"at\":1,"
        "\"shape\":\"../x\"}]}",
        "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"items\":[{\"n\":2,\"kind\":"
        "\"job\",\"at\":1,"
        "\"why\":\"a\\nb\"}]}",
        "{\"site\":\"a\",\"run\":\"00000000000000000000000000000000\",\"items\":[{\"n\":2,\"kind\":"
        "\"rm\",\"at\":1}]}",
    };
    struct wire_report *r = mem_alloc(1, sizeof *r);
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        struct err e = {0};
        assert_int_equal(wire_report_decode(bad[i], strlen(bad[i]), r, &e), BRG_E_MESSAGE);
        assert_true(e.text[0] != '\0');
    }
    mem_free(r);
}
