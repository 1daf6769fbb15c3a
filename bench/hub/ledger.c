/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.c - an epoch of 10^9 samples in leases of 262,144: what its ledger takes in memory and in a
 * checkpoint, and how long the audit's reader needs for the whole journal. Every lease is a version of its
 * own, the worst case for the ledger: no two neighbours join. */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "bench/hub/kit.h"
#include "cli/audit.h"
#include "hub/machine.h"
#include "store/store.h"

enum { LEASE = 262144 };
#define POSITIONS UINT64_C(1000000000)

struct writer {
    struct hub *h;
    struct hub_out out;
    struct buf records; /* framed */
    uint64_t count, merge_plan;
    bool merging;
    time_ns now;
};

static struct wire_answer step(struct writer *w, const struct hub_cmd *c) {
    w->now += NS_PER_MS;
    hub_step(w->h, w->now, c, &w->out);
    buf_put(&w->records, w->out.records.data, w->out.records.bytes_count);
    w->count += w->out.records_count;
    if (w->out.merge != NULL) {
        w->merging = true;
        w->merge_plan = w->out.merge->id;
    }
    return w->out.answer;
}

static struct wire_answer send(struct writer *w, struct wire_request *r, uint32_t inc,
                               uint64_t req) {
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .wall = 1, .request = r};
    c.blob.complete = true;
    r->inc = inc;
    r->req = req;
    return step(w, &c);
}

static void epoch_run(struct writer *w, const struct run_dir *d) {
    struct hub_cmd c = {.kind = HUB_CMD_INIT, .wall = 1};
    step(w, &c);
    c.kind = HUB_CMD_START;
    c.u.start.term_floor = 0;
    step(w, &c);
    struct wire_request r = kit_join_request(d, "one");
    uint32_t inc = send(w, &r, 0, 0).u.join.inc;
    for (uint64_t i = 1;; i++) {
        struct wire_request ask = {.kind = WIRE_LEASE, .run = d->facts.run, .site = "one"};
        ask.u.lease.want = LEASE;
        ask.u.lease.base = w->h->versions[w->h->head].v.version;
        struct wire_answer a = send(w, &ask, inc, i);
        if (a.code == WIRE_COMPLETE) break;
        CHECK(a.u.lease.granted);
        r = kit_commit_request(d, "one", &a.u.lease.lease, ask.u.lease.base);
        a = send(w, &r, inc, 0);
        CHECK(a.u.commit.outcome == OUTCOME_STAGED);
        CHECK(w->merging);
        w->merging = false;
        c = (struct hub_cmd){.kind = HUB_CMD_MERGED, .wall = 1, .u.merged.plan = w->merge_plan};
        c.u.merged.checkpoint.v[0] = 1;
        step(w, &c);
    }
}

static double audit_seconds(const struct writer *w, struct audit *a) {
    struct reader r = reader_of(w->records.data, w->records.bytes_count);
    struct err e = {0};
    time_ns began = os_now();
    audit_init(a);
    for (uint64_t seq = 1; seq <= w->count; seq++) {
        uint16_t kind = get_u16(&r);
        size_t n = get_u32(&r);
        if (audit_record(a, seq, kind, get_bytes(&r, n), n, &e) != BRG_OK) {
            fprintf(stderr, "%s\n", e.text);
            break;
        }
    }
    audit_count(a);
    return (double)(os_now() - began) / 1e9;
}

void part_ledger(const char *dir) {
    static const char *const sets[] = {"lease.samples_min=1024", "lease.samples_max=262144",
                                       "lease.ttl=86400s", "outer.quorum=1", NULL};
    struct writer w = {.now = 1};
    AUTO_FREE struct run_dir *d = mem_alloc(1, sizeof *d);
    AUTO_FREE struct audit *a = mem_alloc(1, sizeof *a);
    AUTO_BUF struct buf ledger;
    kit_run_make(dir, "ledger", POSITIONS, sets, d);
    buf_init(&w.records, (size_t)1 << 30);
    buf_init(&ledger, (size_t)1 << 30);
    hub_out_init(&w.out);
    w.h = hub_create(&d->settings.hub, 1);
    epoch_run(&w, d);
    ledger_checkpoint_encode(w.h->ledger, w.h->versions[w.h->head].v.version, false, &ledger);
    kit_figure("ledger_positions", (double)POSITIONS, 0);
    kit_figure("ledger_leases", (double)w.h->grants, 0);
    kit_promise("ledger_checkpoint_bytes", (double)ledger.bytes_count, 0, true, 1e6);
    kit_promise("ledger_memory_bytes", (double)ledger_bytes(w.h->ledger), 0, true, 2e7);
    double s = audit_seconds(&w, a);
    CHECK(a->counted == POSITIONS);
    CHECK(a->findings_count == 0);
    kit_figure("audit_records", (double)w.count, 0);
    kit_promise("audit_s", s, 3, true, 1);
    audit_fini(a);
    hub_destroy(w.h);
    hub_out_fini(&w.out);
    buf_fini(&w.records);
}
