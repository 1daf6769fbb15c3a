/* SPDX-License-Identifier: Apache-2.0 */
/* Levels, H and codec from links, and the model of scale: figures that were worked out by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "outer/outer.h"
#include "place/scale.h"
#include "wire/link.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-9 * (1 + fabs((double)(b))))

static struct topo_link line(double rtt_s, double mb_s) {
    return (struct topo_link){
        .rtt_s = rtt_s, .up = mb_s * 1e6, .down = mb_s * 1e6, .age_s = -1, .known = true};
}

struct world {
    struct topology t;
    struct topo_site sites[8];
    struct topo_fabric fabrics[4];
};

static void site(struct world *w, const char *name, const char *fabric, double step_s,
                 struct topo_link top) {
    struct topo_site *s = &w->sites[w->t.sites_count++];
    memset(s, 0, sizeof *s);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    (void)snprintf(s->fabric, sizeof s->fabric, "%s", fabric);
    s->step_s = step_s;
    s->top = top;
}

static void fabric(struct world *w, const char *label, struct topo_link up,
                   struct topo_link inner) {
    struct topo_fabric *f = &w->fabrics[w->t.fabrics_count++];
    memset(f, 0, sizeof *f);
    (void)snprintf(f->label, sizeof f->label, "%s", label);
    f->up = up;
    f->inner = inner;
}

static void begin(struct world *w) {
    memset(w, 0, sizeof *w);
    w->t = (struct topology){.parameters = 1000000000,
                             .merge_rate = 2.5e9,
                             .memory_rate = 10e9,
                             .sites = w->sites,
                             .fabrics = w->fabrics};
}

/* Two sites in Europe, two in Asia; 10 MB/s and 200 ms to the top, a GB/s inside a region. */
static void two_regions(struct world *w) {
    begin(w);
    site(w, "a", "europe/a", 2, line(0.2, 10));
    site(w, "b", "europe/b", 2, line(0.2, 10));
    site(w, "c", "asia/c", 2, line(0.2, 10));
    site(w, "d", "asia/d", 2, line(0.2, 10));
    fabric(w, "europe", line(0.2, 100), line(0.001, 1000));
    fabric(w, "asia", line(0.2, 100), line(0.001, 1000));
}

TEST(place_topology_the_bytes_of_a_codec_are_its_own) {
    static const enum codec real[TOPO_CODECS] = {CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT4,
                                                 CODEC_TOPK};
    for (uint32_t c = 0; c < TOPO_CODECS; c++) {
        uint64_t n = 4096 * 1000;
        assert_string_equal(topo_codec_name((enum topo_codec)c), codec_name(real[c]));
        NEAR(topo_codec_bytes((enum topo_codec)c) * (double)n, (double)codec_bytes(real[c], n));
    }
}

TEST(place_topology_labels) {
    char p[TOPO_LABEL_MAX];
    assert_true(topo_label_valid(""));
    assert_true(topo_label_valid("europe/alder/rack-3"));
    assert_false(topo_label_valid("a/b/c/d"));
    assert_false(topo_label_valid("/a"));
    assert_false(topo_label_valid("a/"));
    assert_false(topo_label_valid("a//b"));
    assert_false(topo_label_valid("A"));
    assert_int_equal(topo_label_prefix("a/b/c", 1, p), 3);
    assert_string_equal(p, "a");
    assert_int_equal(topo_label_prefix("a/b/c", 2, p), 3);
    assert_string_equal(p, "a/b");
    assert_int_equal(topo_label_prefix("a", 2, p), 1);
    assert_string_equal(p, "a");
    assert_int_equal(topo_label_prefix("", 1, p), 0);
    assert_string_equal(p, "");
    assert_int_equal(topo_label_prefix("a/b", 0, p), 2);
    assert_string_equal(p, "");
}

/* 0.53125 GB at 100 MB/s is 5.3125 s, three of them into a hub of 200 MB/s 7.96875 s. */
TEST(place_topology_an_exchange_by_hand) {
    struct topo_exchange x = {.parameters = 1000000000,
                              .children = 3,
                              .bytes_up = topo_codec_bytes(TOPO_INT4),
                              .bytes_down = 4,
                              .link = line(0.1, 100),
                              .hub_in = 200e6,
                              .merge_rate = 1e9};
    struct topo_cost c;
    topo_exchange_cost(&x, &c);
    NEAR(c.child_up, 531250000);
    NEAR(c.hub_in, 1593750000);
    NEAR(c.up_s, 7.96875);
    NEAR(c.merge_s, 3);
    NEAR(c.down_s, 40);
    NEAR(c.wait_s, 7.96875 + 3 + 40 + 0.2);
    assert_true(c.hub_bound);
    x.hub_in = 0;
    topo_exchange_cost(&x, &c);
    NEAR(c.up_s, 5.3125);
    assert_false(c.hub_bound);
    NEAR(topo_exposed_s(1000000000, 10e9), 2);
}

/* int4: 2 x 5.3125 + 1.2 + 0.2 = 12.025 s, 6.0125 steps of 2 s: within 5 % from 120.25 steps on. */
TEST(place_topology_one_hub_by_hand) {
    struct world w;
    struct topo_proposal p;
    struct err e = {0};
    begin(&w);
    for (int i = 0; i < 3; i++) site(&w, i == 0 ? "a" : i == 1 ? "b" : "c", "", 2, line(0.1, 100));
    w.t.steps = 30;
    w.t.codec = TOPO_INT8;
    w.t.down = TOPO_FP32;
    assert_int_equal(topo_check(&w.t, &e), BRG_OK);
    topo_propose(&w.t, &p);
    const struct topo_plan *f = &p.plans[0];
    assert_int_equal(p.chosen, 0);
    assert_true(f->possible);
    NEAR(f->h, 150);
    assert_int_equal(f->groups[0].codec, TOPO_INT4);
    NEAR(f->groups[0].delay, 6.0125);
    assert_true(f->good);
    NEAR(f->top_bytes, 6 * 531250000.0 / 150);
    /* as it is set: int8 up 10.3125 s, whole weights down 40 s: 51.7125 s of the 60 s of a round */
    NEAR(p.in_use.cost.wait_s, 51.7125);
    assert_true(p.in_use.carried);
    assert_false(p.in_use.good);
    assert_int_equal(p.notes_count, 1);
    assert_non_null(strstr(p.notes[0], "as it is set"));
    assert_false(p.plans[1].possible);
    assert_non_null(strstr(p.plans[1].missing, "fabric label"));
    topo_proposal_free(&p);
}

/* Inside a region int8: 2 x 1.03125 + 0.8 + 0.002 = 2.8645 s, 1.43225 steps: 4.8 % of 30. Above, two hubs at
 * 100 MB/s, int4: 2 x 5.3125 + 0.8 + 0.4 = 11.825 s, 5.9125 steps: 4.9 % of 120, so K = 4. */
TEST(place_topology_two_levels_by_hand) {
    struct world w;
    struct topo_proposal p;
    two_regions(&w);
    topo_propose(&w.t, &p);
    assert_int_equal(p.chosen, 1);
    const struct topo_plan *two = &p.plans[1];
    NEAR(two->h, 30);
    NEAR(two->k, 4);
    assert_true(two->good);
    assert_int_equal(two->groups_count, 3);
    assert_int_equal(two->groups[0].codec, TOPO_INT4);
    assert_int_equal(two->groups[0].hubs, 2);
    assert_int_equal(two->groups[0].sites, 0);
    NEAR(two->groups[0].delay, 5.9125);
    assert_int_equal(two->groups[1].codec, TOPO_INT8);
    assert_int_equal(two->groups[1].sites, 2);
    NEAR(two->groups[1].delay, 1.43225);
    /* flat: 2 x 53.125 + 1.6 + 0.4 = 108.25 s: no H up to 500 makes that 5 % */
    assert_true(p.plans[0].possible);
    assert_false(p.plans[0].good);
    NEAR(p.plans[0].groups[0].cost.wait_s, 108.25);
    /* a third word would be needed for a third level, and two sites that share two words */
    assert_false(p.plans[2].possible);
    topo_proposal_free(&p);
}

TEST(place_topology_three_levels_share_two_words) {
    struct world w;
    struct topo_proposal p;
    two_regions(&w);
    for (int i = 0; i < 2; i++)
        (void)snprintf(w.sites[i].fabric, TOPO_LABEL_MAX, "europe/north/%d", i);
    fabric(&w, "europe/north", line(0.01, 1000), line(0.0001, 10000));
    topo_propose(&w.t, &p);
    const struct topo_plan *three = &p.plans[2];
    assert_true(three->possible);
    assert_int_equal(three->groups_count, 4);
    assert_string_equal(three->groups[3].label, "europe/north");
    assert_int_equal(three->groups[3].sites, 2);
    assert_int_equal(three->groups[1].hubs, 1); /* europe has one hub below it, and no site */
    assert_int_equal(three->groups[1].sites, 0);
    NEAR(three->groups[0].interval, three->h * three->k * three->k);
    NEAR(three->groups[3].interval, three->h);
    topo_proposal_free(&p);
}

TEST(place_topology_T2_what_nobody_measured_is_asked_for) {
    struct world w;
    struct topo_proposal p;
    two_regions(&w);
    w.fabrics[1].up.known = false;
    topo_propose(&w.t, &p);
    assert_int_equal(p.chosen, 0);
    assert_false(p.plans[1].possible);
    assert_non_null(strstr(p.plans[1].missing, "asia"));
    assert_non_null(strstr(p.plans[1].missing, "doctor --links"));
    topo_proposal_free(&p);
    w.sites[2].top.known = false;
    topo_propose(&w.t, &p);
    assert_false(p.plans[0].possible);
    assert_non_null(strstr(p.plans[0].missing, "site c"));
    topo_proposal_free(&p);
    two_regions(&w);
    for (int i = 0; i < 4; i++) w.sites[i].step_s = 0;
    topo_propose(&w.t, &p);
    for (int i = 0; i < 2; i++) assert_non_null(strstr(p.plans[i].missing, "seconds a step"));
    topo_proposal_free(&p);
}

/* A site alone in its region goes to the top; the region gets no hub. */
TEST(place_topology_one_alone_has_no_hub) {
    struct world w;
    struct topo_proposal p;
    two_regions(&w);
    w.t.sites_count = 3;
    topo_propose(&w.t, &p);
    assert_int_equal(p.plans[1].groups_count, 2);
    assert_int_equal(p.plans[1].groups[0].sites, 1);
    assert_int_equal(p.plans[1].groups[0].hubs, 1);
    assert_string_equal(p.plans[1].groups[0].slowest, "c");
    topo_proposal_free(&p);
}

TEST(place_topology_few_merges_are_said) {
    struct world w;
    struct topo_proposal p;
    two_regions(&w);
    w.t.steps_total = 1200;
    topo_propose(&w.t, &p);
    bool said = false;
    for (uint32_t i = 0; i < p.notes_count; i++) said |= strstr(p.notes[i], "merges") != NULL;
    assert_true(said);
    topo_proposal_free(&p);
}

TEST(place_topology_T1_nothing_is_called_carried_that_takes_longer) {
    struct prng g;
    prng_seed(&g, 11);
    for (int n = 0; n < 300; n++) {
        struct world w;
        struct topo_proposal p;
        two_regions(&w);
        w.t.parameters = (uint64_t)exp(log(1e6) + prng_unit(&g) * log(1e5));
        w.t.topk = prng_below(&g, 2) == 0;
        w.t.steps = (double)prng_below(&g, 200);
        w.t.steps_total = prng_below(&g, 3) == 0 ? 0 : 1e5 * prng_unit(&g);
        w.t.hub_in = prng_below(&g, 2) == 0 ? 0 : 1e9 * prng_unit(&g);
        for (int i = 0; i < 4; i++) {
            w.sites[i].step_s = 0.01 + 20 * prng_unit(&g);
            w.sites[i].top = line(prng_unit(&g), 0.01 + 100 * prng_unit(&g));
        }
        topo_propose(&w.t, &p);
        for (uint32_t k = 0; k < 2; k++) {
            const struct topo_plan *c = &p.plans[k];
            assert_true(c->possible);
            bool all = true;
            for (uint32_t i = 0; i < c->groups_count; i++) {
                const struct topo_group *q = &c->groups[i];
                all = all && q->carried;
                assert_true(isfinite(q->delay));
                assert_int_equal(q->carried,
                                 q->cost.wait_s <= q->interval * q->step_s * (1 + 1e-12));
                assert_true(!q->good || q->carried);
            }
            assert_int_equal(all, c->carried);
        }
        if (!p.plans[p.chosen].carried) assert_true(p.notes_count > 0);
        topo_proposal_free(&p);
    }
}

/* ---- The file ------------------------------------------------------------------------------------------- */
static enum brg_status parse(const char *text, struct topology *t, struct err *e) {
    return topofile_parse("links.yaml", text, strlen(text), t, e);
}

TEST(place_topology_a_file) {
    static const char text[] =
        "run: {parameters: 1000000000, tokens_total: 2e10, step_tokens: 1e6,\n"
        "      steps: 30, codec: int8, down_codec: full}\n"
        "hub: {in: 1250, out: 1250}\n"
        "site_a: {fabric: europe/a, step: 2s, rtt: 200ms, up: 10, down: 20}\n"
        "site_b: {step: 500ms}\n"
        "fabric_eu: {label: europe, rtt: 90ms, up: 100, down: 100,\n"
        "            inner_rtt: 1ms, inner_up: 1000, inner_down: 1000}\n";
    struct topology t;
    struct err e = {0};
    assert_int_equal(parse(text, &t, &e), BRG_OK);
    assert_int_equal(t.sites_count, 2);
    assert_string_equal(t.sites[0].name, "a");
    assert_string_equal(t.sites[0].fabric, "europe/a");
    NEAR(t.sites[0].step_s, 2);
    NEAR(t.sites[0].top.rtt_s, 0.2);
    NEAR(t.sites[0].top.down, 20e6);
    assert_false(t.sites[1].top.known);
    assert_string_equal(t.fabrics[0].label, "europe");
    NEAR(t.fabrics[0].inner.up, 1e9);
    NEAR(t.steps_total, 20000);
    NEAR(t.hub_in, 1.25e9);
    assert_int_equal(t.codec, TOPO_INT8);
    assert_int_equal(t.down, TOPO_FP32);
    topology_free(&t);
}

TEST(place_topology_a_wrong_file_is_one_line) {
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"run: {parameters: 5}\n", "site_NAME"},
        {"site_a: {step: 1s}\n", "run.parameters"},
        {"run: {parameters: 5}\nsite_a: {up: 3}\n", "both"},
        {"run: {parameters: 5}\nsite_a: {fabric: a/b/c/d}\n", "three words"},
        {"run: {parameters: 5}\nsite_a: {speed: 3}\n", "speed"},
        {"run: {parameters: 5, tokens_total: 1e9}\nsite_a: {}\n", "step_tokens"},
        {"run: {parameters: 5}\nsite_a: {step: 1s}\nfabric_x: {label: a/b/c}\n",
         "one or two words"},
        {"run: {parameters: 5}\nsite_a: {step: 1s}\nfabric_x: {label: a}\nfabric_y: {label: a}\n",
         "twice"},
        {"run: {parameters: 5}\nsite_a: {up: -1}\n", "up"},
        {"run: {parameters: 5, codec: zip}\nsite_a: {step: 1s}\n", "codec"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(wrong); i++) {
        struct topology t;
        struct err e = {0};
        assert_int_equal(parse(wrong[i].text, &t, &e), BRG_E_CONFIG);
        if (strstr(e.text, wrong[i].says) == NULL) fail_msg("case %zu says: %s", i, e.text);
        assert_non_null(strstr(e.text, "links.yaml"));
        topology_free(&t);
    }
}

/* ---- What a hub says -------------------------------------------------------------------------------------- */
static const char STATUS[] =
    "{\"parameters\":1000,\"steps\":30,\"tokens_total\":1e6,\"wall\":1000,\"codec\":\"int4\","
    "\"down_codec\":\"full\",\"sites\":[{\"name\":\"a\",\"fabric\":\"europe/a\",\"joined\":true,"
    "\"steps_per_s\":0.5,\"tokens_per_s\":50},{\"name\":\"gone\",\"fabric\":\"\",\"joined\":false,"
    "\"steps_per_s\":0,\"tokens_per_s\":0}],\"links\":[{\"from\":\"a\",\"to\":\"hub\",\"fabric\":"
    "\"\","
    "\"hub\":false,\"rtt_ms\":90,\"up_mb_s\":10,\"down_mb_s\":20,\"at\":900},{\"from\":\"eu\","
    "\"to\":\"hub\",\"fabric\":\"europe\",\"hub\":true,\"rtt_ms\":80,\"up_mb_s\":100,"
    "\"down_mb_s\":100,\"at\":990}]}";

TEST(place_topology_a_status_and_a_region) {
    struct topology t;
    struct err e = {0};
    assert_int_equal(topo_live_read(STATUS, strlen(STATUS), &t, &e), BRG_OK);
    assert_int_equal(t.sites_count, 1);
    NEAR(t.sites[0].step_s, 2);
    NEAR(t.sites[0].top.age_s, 100);
    NEAR(t.sites[0].top.up, 10e6);
    NEAR(t.steps_total, 10000); /* 100 tokens a step */
    assert_int_equal(t.fabrics_count, 1);
    NEAR(t.fabrics[0].up.rtt_s, 0.08);
    assert_false(t.fabrics[0].inner.known);
    assert_int_equal(topo_live_region(&t, "europe", STATUS, strlen(STATUS), &e), BRG_OK);
    assert_true(t.fabrics[0].inner.known);
    NEAR(t.fabrics[0].inner.down, 20e6);
    assert_int_equal(topo_live_region(&t, "a/b/c", STATUS, strlen(STATUS), &e), BRG_E_MESSAGE);
    assert_int_equal(topo_check(&t, &e), BRG_OK);
    topology_free(&t);
    assert_int_equal(topo_live_read("{}", 2, &t, &e), BRG_E_MESSAGE);
    topology_free(&t);
}

TEST(place_topology_a_link_goes_there_and_back) {
    struct wire_link l = {.site = "a",
                          .fabric = "europe",
                          .hub = true,
                          .rtt_ms = 1.5,
                          .up_mb_s = 2,
                          .down_mb_s = 3},
                     back;
    struct err e = {0};
    AUTO_BUF struct buf b = {.bytes_max = 1000};
    wire_link_encode(&l, &b);
    assert_int_equal(wire_link_decode(b.data, b.bytes_count, &back, &e), BRG_OK);
    AUTO_BUF struct buf again = {.bytes_max = 1000};
    wire_link_encode(&back, &again);
    assert_string_equal(buf_cstr(&again), buf_cstr(&b));
    assert_true(back.hub);
    NEAR(back.up_mb_s, 2);
    static const char *const wrong[] = {
        "{\"site\":\"a\",\"rtt_ms\":1,\"up_mb_s\":0,\"down_mb_s\":1}",
        "{\"site\":\"A\",\"rtt_ms\":1,\"up_mb_s\":1,\"down_mb_s\":1}",
        "{\"site\":\"a\",\"rtt_ms\":1,\"up_mb_s\":1,\"down_mb_s\":1,\"hub\":true}",
        "{\"site\":\"a\",\"rtt_ms\":1,\"up_mb_s\":1,\"down_mb_s\":1,\"fabric\":\"/\"}",
        "{\"site\":\"a\",\"rtt_ms\":1,\"up_mb_s\":1}"};
    for (size_t i = 0; i < ARRAY_COUNT(wrong); i++)
        assert_int_equal(wire_link_decode(wrong[i], strlen(wrong[i]), &back, &e), BRG_E_MESSAGE);
}

/* ---- Scale ------------------------------------------------------------------------------------------------ */
/* A round number of everything: 1e9 parameters, 3 sites, lines of 100 MB/s, 1 byte a parameter each way. */
static struct scale_settings plain(void) {
    struct scale_settings s = scale_defaults();
    s.codec_up = s.codec_down = 1;
    s.site_rate = 100e6;
    s.hub_rate = 1000e6;
    s.rtt = 0.5;
    s.merge_rate = 1e9;
    s.hub_threads = 1;
    s.disk_rate = 100e9;
    s.site_flops = 6e15; /* step_tokens of 1e6: a second a step */
    s.step_tokens = 1e6;
    return s;
}

TEST(place_scale_one_hub_by_hand) {
    struct scale_settings s = plain();
    struct scale_row r;
    scale_row(&s, SCALE_FLAT, 1000000000, 3, &r);
    NEAR(r.step_s, 1);
    NEAR(r.interval_s, 100);
    NEAR(r.levels[0].cost.up_s, 10); /* the sites' lines; the hub's is 3 s */
    NEAR(r.levels[0].cost.merge_s, 3);
    NEAR(r.levels[0].cost.wait_s, 10 + 3 + 10 + 1);
    NEAR(r.delay_share, 0.24);
    NEAR(r.top_bytes, 6e9);
    NEAR(r.exposed_s, 2);
    assert_int_equal(r.limit, SCALE_FITS);
    NEAR(r.lines_usd, 3 * s.egress);
    NEAR(r.exposed_usd, 3 * 2 * s.site_hour / 3600);
    NEAR(r.share, (r.lines_usd + r.exposed_usd) / (3 * 100 * s.site_hour / 3600));
    /* With 40 sites the hub takes 40 s each way, and merges for 40 s: 121 s of 100 s. */
    scale_row(&s, SCALE_FLAT, 1000000000, 40, &r);
    NEAR(r.levels[0].cost.wait_s, 121);
    assert_int_equal(r.limit, SCALE_HUB_LINE);
    NEAR(r.excess, 1.21);
    struct scale_row next;
    assert_int_equal(scale_most(&s, SCALE_FLAT, 1000000000, false, &next), 33); /* 3 n + 1 <= 100 */
    assert_int_equal(next.limit, SCALE_HUB_LINE);
    assert_int_equal(scale_most(&s, SCALE_FLAT, 1000000000, true, &next), 0);
}

TEST(place_scale_levels_have_equal_children) {
    struct scale_settings s = scale_defaults();
    struct scale_row r;
    scale_row(&s, SCALE_TWO, 1000000000, 3000, &r);
    assert_int_equal(r.levels_count, 2);
    assert_int_equal(r.levels[0].children, 55); /* 55 x 55 = 3025 */
    assert_int_equal(r.levels[1].children, 55);
    NEAR(r.interval_steps, s.h * s.k);
    scale_row(&s, SCALE_THREE, 1000000000, 3000, &r);
    assert_int_equal(r.levels[0].children, 15);
    assert_int_equal(r.levels[1].children, 15);
    assert_int_equal(r.levels[2].children, 14);
    NEAR(r.levels[2].hubs, 225);
    assert_true(r.top_bytes < 3000 * 1e9 * (s.codec_up + s.codec_down) / 100);
    scale_row(&s, SCALE_THREE, 1000000000, 3, &r);
    assert_int_equal(r.levels_count, 0); /* too few for three levels */
}

/* Through a store the hub sends nothing to sites, and requests are counted. */
TEST(place_scale_a_store_by_hand) {
    struct scale_settings s = plain();
    struct scale_row r;
    s.part_bytes = 100e6;
    scale_row(&s, SCALE_STORE, 1000000000, 3, &r);
    NEAR(r.levels[0].cost.hub_out, 1e9); /* the update, once */
    NEAR(r.levels[0].cost.up_s, 10);
    NEAR(r.levels[0].cost.down_s, 1 + 10);
    NEAR(r.lines_usd, 0);
    NEAR(r.store_usd, 3 * s.egress + (3 * 10 + 10) / 1000.0 * s.put_1000 +
                          (3 * 10 + 3 * 10) / 1000.0 * s.get_1000);
}

TEST(place_scale_settings_have_names_and_bounds) {
    struct scale_settings s = scale_defaults();
    struct err e = {0};
    assert_int_equal(scale_set(&s, "egress=0.01", &e), BRG_OK);
    NEAR(s.egress, 0.01);
    assert_int_equal(scale_set(&s, "egress=-1", &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "egress"));
    assert_int_equal(scale_set(&s, "weather=1", &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "site_rate"));
    assert_int_equal(scale_set(&s, "h", &e), BRG_E_CONFIG);
    assert_int_equal(scale_set(&s, "h=nan", &e), BRG_E_CONFIG);
}
