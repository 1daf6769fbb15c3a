/* SPDX-License-Identifier: Apache-2.0 */
/* test_uplink.c - a region's way to its parent: the note of its leases as bytes, and two hubs in this process with a
 * site of the region in the test's hands. Each position adds 1 to a weight of its own (outer.average: sum), so the
 * parent's last weights say how often each was merged. The same between processes, with kills: test/e2e/region.py. */
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../harness.h"
#include "cli/cli.h"
#include "data/data.h"
#include "hub/machine.h"
#include "hub/uplink_os.h"
#include "wire/client.h"

/* ---- The note ------------------------------------------------------------------------------------------------ */
static struct wire_lease some_lease(uint64_t tok, uint64_t start) {
    return (struct wire_lease){.tok = tok,
                               .nonce = tok * 7,
                               .epoch = 1,
                               .ranges_count = 2,
                               .count = 12,
                               .ranges = {{start, 8}, {start + 20, 4}}};
}

static struct uplink_state *some_state(void) {
    struct uplink_state *s = mem_alloc(1, sizeof *s);
    s->run.v[0] = 9;
    memcpy(s->name, "east", 5);
    s->current.count = 2;
    s->current.leases[0] = some_lease(5, 0);
    s->current.leases[1] = some_lease(6, 100);
    s->next.count = 1;
    s->next.leases[0] = some_lease(7, 200);
    s->pending.count = 1;
    s->pending.leases[0] = some_lease(4, 300);
    s->has_pending = true;
    s->commit.did.v[0] = 3;
    s->commit.tokens = 96;
    s->commit.steps = 4;
    s->commit.lr_sum = 0.5;
    s->commit.loss = 2;
    s->commit.elements = 10;
    s->commit.bytes = 168;
    s->commit.codec = CODEC_FP32;
    s->commit.blob.v[0] = 1;
    s->commit.parts_count = 1;
    s->commit.parts[0] = (struct wire_part){4, 28, 12};
    s->cut = 8;
    s->merged = 2;
    return s;
}

TEST(hub_uplink_state_goes_both_ways_and_damage_is_seen) {
    AUTO_FREE struct uplink_state *s = some_state();
    AUTO_FREE struct uplink_state *back = mem_alloc(1, sizeof *back);
    AUTO_BUF struct buf a;
    AUTO_BUF struct buf b;
    struct err e = {0};
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    uplink_encode(s, &a);
    assert_int_equal(uplink_decode(a.data, a.bytes_count, back, &e), BRG_OK);
    uplink_encode(back, &b);
    assert_int_equal(a.bytes_count, b.bytes_count);
    assert_memory_equal(a.data, b.data, a.bytes_count);
    assert_int_equal(back->pending.leases[0].ranges[1].start, 320);
    assert_int_equal(back->commit.parts[0].nonce, 28);
    for (size_t i = 0; i < a.bytes_count; i++) {
        ((uint8_t *)a.data)[i] ^= 1;
        assert_int_equal(uplink_decode(a.data, a.bytes_count, back, &e), BRG_E_CORRUPT);
        ((uint8_t *)a.data)[i] ^= 1;
        assert_int_equal(uplink_decode(a.data, i, back, &e), BRG_E_CORRUPT);
    }
    assert_non_null(strstr(e.text, "remove it"));
}

TEST(hub_uplink_sets_of_leases) {
    AUTO_FREE struct uplink_state *s = some_state();
    AUTO_FREE struct hub_span *spans = NULL;
    assert_int_equal(uplink_samples(&s->current), 24);
    assert_int_equal(uplink_spans(&s->current, &spans), 4);
    assert_int_equal(spans[3].range.start, 120);
    assert_int_equal(spans[3].epoch, 1);
    assert_true(uplink_add(&s->current, &s->next));
    assert_int_equal(s->next.count, 0);
    assert_int_equal(s->current.count, 3);
    uplink_drop(&s->current, 6);
    assert_false(uplink_has(&s->current, 6));
    assert_true(uplink_has(&s->current, 7));
    s->current.count = UPLINK_LEASES_MAX;
    s->next.count = 1;
    assert_false(uplink_add(&s->current, &s->next)); /* full: both stay as they are */
    assert_int_equal(s->next.count, 1);
}

/* ---- Two hubs ---------------------------------------------------------------------------------------------------- */
enum { WAIT_S = 100 };
struct fake { /* a site in the test's hands */
    struct hub_server *s;
    char name[WIRE_NAME_MAX];
    uint32_t inc;
    uint64_t req, samples;
};
struct two {
    char parent_dir[OS_PATH_MAX], region_dir[OS_PATH_MAX], listen[64], url[128];
    struct hub_server *parent, *region;
    struct fake site;
};

static void run_make(const char *name, const char *data, const char *quorum,
                     char out[OS_PATH_MAX]) {
    os_path(out, test_dir(), "%s", name);
    char command[] = "init", model[] = "--model", tiny[] = "share/models/tiny.json",
         with[] = "--data", set[] = "--set", least[] = "lease.samples_min=1",
         most[] = "lease.samples_max=16", grace[] = "outer.grace=1h", sum[] = "outer.average=sum",
         codec[] = "outer.codec=fp32", lr[] = "train.lr=10", flat[] = "train.schedule=constant",
         steps[] = "outer.steps=2", beat[] = "lease.heartbeat=20ms", ttl[] = "lease.ttl=20s",
         sites[64], where[OS_PATH_MAX];
    (void)snprintf(sites, sizeof sites, "outer.quorum=%s", quorum);
    (void)snprintf(where, sizeof where, "%s", data);
    char *argv[] = {command, out,   model, tiny, with, where, set, least, set, most,
                    set,     grace, set,   sum,  set,  codec, set, lr,    set, flat,
                    set,     steps, set,   beat, set,  ttl,   set, sites, NULL};
    optind = 1;
    assert_int_equal(cmd_init((int)ARRAY_COUNT(argv) - 1, argv), 0);
}

static void runs_make(struct two *t, const char *parent_quorum) {
    char text[OS_PATH_MAX], data[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, 1 << 16);
    for (int i = 0; i < 20; i++) buf_printf(&b, "some words, number %d\n", i);
    os_path(text, test_dir(), "text.txt");
    os_path(data, test_dir(), "data");
    assert_int_equal(os_write_file_atomic(text, b.data, b.bytes_count, &e), BRG_OK);
    const char *inputs[] = {text};
    const struct pack_options o = {.inputs = inputs,
                                   .inputs_count = 1,
                                   .out_dir = data,
                                   .tokenizer = "bytes",
                                   .seq_len = 8,
                                   .heldout_share = 0,
                                   .seed = 1};
    if (data_pack(&o, &e) != BRG_OK) fail_msg("%s", e.text);
    log_level_set(LOG_ERROR);
    run_make("parent", data, parent_quorum, t->parent_dir);
    run_make("region", data, "1", t->region_dir);
}

static void parent_start(struct two *t) {
    struct err e = {0};
    const struct hub_server_options o = {.run_dir = t->parent_dir,
                                         .listen = t->listen[0] ? t->listen : "127.0.0.1:0"};
    if (hub_server_open(&o, &t->parent, &e) != BRG_OK) fail_msg("%s", e.text);
    (void)snprintf(t->url, sizeof t->url, "%s", hub_server_url(t->parent));
    (void)snprintf(t->listen, sizeof t->listen, "%s", t->url + strlen("http://"));
}

static void region_start(struct two *t) {
    struct err e = {0};
    const struct hub_parent_options up = {
        .url = t->url, .name = "east", .rounds = 4, .timeout_ns = 20LL * NS_PER_S};
    const struct hub_server_options o = {
        .run_dir = t->region_dir, .listen = "127.0.0.1:0", .parent = &up};
    if (hub_server_open(&o, &t->region, &e) != BRG_OK) fail_msg("%s", e.text);
    t->site.s = t->region;
}

static void stop(struct hub_server **s) {
    if (*s != NULL) hub_server_close(*s);
    *s = NULL;
}

/* ---- A site ---------------------------------------------------------------------------------------------------------- */
static bool ask(struct fake *f, struct wire_request *q, struct wire_answer *a) {
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .request = q, .wall = os_wall()};
    c.blob = (struct hub_blob_verdict){.complete = true, .norm = 1};
    memcpy(q->site, f->name, sizeof q->site);
    q->run = f->s->dir.facts.run;
    q->inc = q->kind == WIRE_JOIN ? 0 : f->inc;
    q->req = ++f->req;
    assert_int_equal(server_step(f->s, &c, a), STEP_DONE);
    if (a->code == WIRE_UNKNOWN_SITE || a->code == WIRE_FENCED) f->inc = 0;
    return a->code == WIRE_OK;
}

static struct hub_version_view head_of(struct hub_server *s) {
    struct hub_view v;
    struct hub_version_view out;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, os_now(), &v);
    assert_true(hub_version_find(s->hub, v.head, &out));
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return out;
}

static struct hub_view view_of(struct hub_server *s) {
    struct hub_view v;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_view(s->hub, os_now(), &v);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return v;
}

static void join(struct fake *f) {
    struct wire_request q = {.kind = WIRE_JOIN};
    struct wire_answer a;
    os_random(&q.u.join.boot, sizeof q.u.join.boot);
    q.u.join.protocol = WIRE_PROTOCOL;
    q.u.join.fingerprint = f->s->dir.facts.fingerprint;
    q.u.join.tensors = f->s->dir.facts.tensors;
    q.u.join.tokens_per_sample = f->s->dir.facts.seq_len;
    assert_true(ask(f, &q, &a));
    f->inc = a.u.join.inc;
}

/* The delta file: -1 for each position of the lease. */
static void delta_make(struct fake *f, const struct wire_lease *l, struct wire_commit *c) {
    const struct hub_version_view head = head_of(f->s);
    uint64_t p = f->s->dir.facts.parameters;
    struct delta_header h = {.codec = CODEC_FP32,
                             .elements = p,
                             .base_version = c->base,
                             .tokens = c->tokens,
                             .steps = c->steps,
                             .did = c->did,
                             .base_theta = head.theta};
    c->elements = p;
    c->bytes = DELTA_HEADER_BYTES + 4 * p;
    AUTO_FREE uint8_t *file = mem_alloc(c->bytes, 1);
    delta_header_encode(&h, file);
    float *x = (float *)(void *)(file + DELTA_HEADER_BYTES);
    for (uint32_t i = 0; i < l->ranges_count; i++)
        for (uint64_t k = 0; k < l->ranges[i].count; k++) x[l->ranges[i].start + k] = -1;
    char path[OS_PATH_MAX];
    struct err e = {0};
    os_path(path, f->s->dir.path, "incoming/fake.tmp");
    c->blob = hash_of(file, c->bytes);
    assert_int_equal(os_write_file_atomic(path, file, c->bytes, &e), BRG_OK);
    assert_int_equal(blobs_adopt(f->s->blobs, path, &c->blob, &e), BRG_OK);
}

static bool lease(struct fake *f, struct wire_lease *out) {
    struct wire_request q = {.kind = WIRE_LEASE};
    struct wire_answer a;
    if (f->inc == 0) join(f);
    q.u.lease.want = 4;
    q.u.lease.base = head_of(f->s).version;
    if (!ask(f, &q, &a) || !a.u.lease.granted) return false;
    *out = a.u.lease.lease;
    return true;
}

static void commit(struct fake *f, const struct wire_lease *l) {
    struct wire_request q = {.kind = WIRE_COMMIT};
    struct wire_answer a;
    struct wire_commit *c = &q.u.commit;
    os_random(&c->did, sizeof c->did);
    c->base = head_of(f->s).version;
    c->tokens = l->count * f->s->dir.facts.seq_len;
    c->steps = 2;
    c->lr_sum = 20;
    c->loss = 3;
    c->codec = CODEC_FP32;
    c->parts_count = 1;
    c->parts[0] = (struct wire_part){l->tok, l->nonce, l->count};
    delta_make(f, l, c);
    (void)ask(f, &q, &a);
    f->samples += l->count;
}

static void beat(struct fake *f) {
    struct wire_request q = {.kind = WIRE_HEARTBEAT};
    struct wire_answer a;
    if (f->inc == 0) return;
    q.u.heartbeat.hb_seq = f->req + 1;
    q.u.heartbeat.phase = PHASE_TRAINING;
    q.u.heartbeat.base = head_of(f->s).version;
    (void)ask(f, &q, &a);
}

/* One lease's work, where there is one; the checks of any moment. */
static struct uplink_state *note(const struct two *t) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, 4 << 20);
    os_path(path, t->region_dir, "uplink/state");
    struct uplink_state *s = mem_alloc(1, sizeof *s);
    if (!os_exists(path)) return s;
    assert_int_equal(os_read_file(path, 4 << 20, &b, &e), BRG_OK);
    if (uplink_decode(b.data, b.bytes_count, s, &e) != BRG_OK) fail_msg("%s", e.text);
    return s;
}

static bool in_set(const struct uplink_set *s, uint32_t epoch, struct range r) {
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->leases[i].ranges_count; k++) {
            const struct range *x = &s->leases[i].ranges[k];
            if (s->leases[i].epoch == epoch && r.start >= x->start && r.start < x->start + x->count)
                return true;
        }
    return false;
}

static void turn(struct two *t) {
    struct wire_lease l;
    beat(&t->site);
    if (!lease(&t->site, &l)) {
        (void)usleep(1000);
        return;
    }
    AUTO_FREE struct uplink_state *s = note(t);
    for (uint32_t i = 0; i < l.ranges_count; i++)
        assert_true(in_set(&s->current, l.epoch, l.ranges[i])); /* N3 */
    commit(&t->site, &l);
}

#define UNTIL(t_, cond_)                                                                           \
    do {                                                                                           \
        time_ns end_ = os_now() + WAIT_S * (time_ns)NS_PER_S;                                      \
        while (!(cond_)) {                                                                         \
            turn(t_);                                                                              \
            if (os_now() > end_) fail_msg("never: %s", #cond_);                                    \
        }                                                                                          \
    } while (0)

/* Each position was added once, in both hubs' last versions. */
static void counted_once(struct hub_server *s, const struct checkpoint *from, const char *from_path,
                         uint64_t positions) {
    struct checkpoint c;
    struct err e = {0};
    char path[OS_PATH_MAX];
    const struct hub_version_view head = head_of(s);
    blobs_path(s->blobs, &head.checkpoint, path);
    assert_int_equal(checkpoint_open(path, &c, &e), BRG_OK);
    AUTO_FREE float *x = mem_alloc(positions, sizeof *x), *y = mem_alloc(positions, sizeof *y);
    AUTO_CLOSE int a = open(path, O_RDONLY | O_CLOEXEC), b = open(from_path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(os_pread_all(a, x, 4 * positions, c.theta_offset, path, &e), BRG_OK);
    assert_int_equal(os_pread_all(b, y, 4 * positions, from->theta_offset, from_path, &e), BRG_OK);
    for (uint64_t i = 0; i < positions; i++)
        if (!(fabsf(x[i] - y[i] - 1) < 1e-4F))
            fail_msg("position %llu was merged %g times", (unsigned long long)i,
                     (double)(x[i] - y[i]));
    checkpoint_fini(&c);
}

static void finish(struct two *t) {
    struct checkpoint root;
    struct hub_version_view first;
    struct err e = {0};
    char path[OS_PATH_MAX];
    UNTIL(t, view_of(t->parent).complete);
    UNTIL(t, view_of(t->region).complete);
    uint64_t positions = view_of(t->parent).positions;
    assert_true(t->site.samples >= positions / 2);
    assert_true(hub_version_find(t->parent->hub, 0, &first));
    blobs_path(t->parent->blobs, &first.checkpoint, path);
    assert_int_equal(checkpoint_open(path, &root, &e), BRG_OK);
    counted_once(t->parent, &root, path, positions);
    counted_once(t->region, &root, path, positions);
    checkpoint_fini(&root);
    stop(&t->region);
    stop(&t->parent);
}

static void two_open(struct two *t, const char *parent_quorum) {
    memset(t, 0, sizeof *t);
    memcpy(t->site.name, "s", 2);
    struct err e = {0};
    assert_int_equal(client_global_init(&e), BRG_OK);
    runs_make(t, parent_quorum);
    parent_start(t);
    region_start(t);
}

TEST_TIMEOUT(hub_N3_what_is_open_to_sites_is_on_disk, 200) {
    static struct two t;
    two_open(&t, "1");
    finish(&t); /* turn() looks at each lease */
}

/* The contribution is cut while the parent is away; then the region's process is another one. */
static struct id128 cut_alone(struct two *t) {
    UNTIL(t, t->site.samples > 0);
    stop(&t->parent);
    for (;;) {
        turn(t);
        AUTO_FREE struct uplink_state *s = note(t);
        if (s->has_pending) return s->commit.did;
    }
}

TEST_TIMEOUT(hub_N4_a_contribution_keeps_its_name, 200) {
    static struct two t;
    two_open(&t, "1");
    struct id128 did = cut_alone(&t);
    stop(&t.region);
    region_start(&t);
    t.site.inc = 0;
    AUTO_FREE struct uplink_state *s = note(&t);
    assert_true(s->has_pending);
    assert_true(id_equal(&s->commit.did, &did));
    parent_start(&t);
    UNTIL(&t, view_of(t.parent).counts.merged > 0);
    CHECK(pthread_mutex_lock(&t.parent->lock) == 0);
    const struct delta *d = ledger_delta_find(t.parent->hub->ledger, &did);
    assert_non_null(d);
    assert_int_equal(d->state, DELTA_MERGED);
    CHECK(pthread_mutex_unlock(&t.parent->lock) == 0);
    finish(&t);
}

static struct hub_region_view region_of(struct hub_server *s) {
    struct hub_region_view v;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    hub_region(s->hub, 0, &v);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return v;
}

/* While the region's work is staged at the parent and not merged, no version is taken in; the one that has it comes with
 * the other site's work, and no more. */
TEST_TIMEOUT(hub_N5_a_version_comes_in_when_it_is_known_what_is_in_it, 200) {
    static struct two t;
    struct wire_lease l;
    two_open(&t, "2");
    struct fake other = {.s = t.parent, .name = "other"};
    assert_true(lease(&other, &l));
    UNTIL(&t, view_of(t.parent).counts.staged > 0); /* the region's */
    for (int i = 0; i < 50; i++) {
        turn(&t);
        beat(&other);
        assert_int_equal(region_of(t.region).taken, 0); /* N5 */
    }
    commit(&other, &l);
    uint64_t head = 0;
    while (head == 0) {
        turn(&t);
        head = view_of(t.parent).head;
    }
    UNTIL(&t, region_of(t.region).taken > 0);
    AUTO_FREE struct uplink_state *s = note(&t);
    if (s->has_pending) assert_int_equal(s->merged, region_of(t.region).taken);
    while (!view_of(t.parent).complete) { /* both to the end */
        turn(&t);
        beat(&other);
        if (lease(&other, &l)) commit(&other, &l);
    }
    UNTIL(&t, view_of(t.region).complete);
    t.site.samples = view_of(t.parent).positions; /* they have shared */
    finish(&t);
}

/* The file of the contribution is lost: the region goes back, and what it had done is done again. */
TEST_TIMEOUT(hub_N6_what_does_not_fit_costs_work_and_no_position, 200) {
    static struct two t;
    char path[OS_PATH_MAX], hex[ID_HEX_BYTES];
    two_open(&t, "1");
    struct id128 did = cut_alone(&t);
    id_hex(&did, hex);
    os_path(path, t.region_dir, "uplink/%s.delta", hex);
    assert_int_equal(unlink(path), 0);
    parent_start(&t);
    finish(&t);
}
