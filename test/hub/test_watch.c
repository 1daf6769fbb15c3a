/* SPDX-License-Identifier: Apache-2.0 */
/* What people see of a run: alarms, the timeline, metrics, held-out losses, and what counts as a change. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "hub/alarms.h"
#include "hub/events.h"
#include "hub/heldout.h"
#include "hub/metrics.h"
#include "hub/timeline.h"
#include "machine_kit.h"

/* ---- Alarms ---------------------------------------------------------------------------------------- */
struct heard {
    char words[2000]; /* "id:level:subject " of each */
};
static void hear(void *user, const struct alarm *a) {
    struct heard *w = user;
    size_t n = strlen(w->words);
    assert_true(a->text[0] != '\0');
    assert_true(a->remedy[0] != '\0'); /* no alarm without what to do */
    assert_true(strlen(a->remedy) + 1 < ALARM_TEXT_MAX);
    (void)snprintf(w->words + n, sizeof w->words - n, "%s:%s:%s ", a->id,
                   alarm_level_name(a->level), a->subject);
}
static const char *alarms_of(struct kit *k, const struct view_extra *x) {
    static struct heard w;
    w.words[0] = '\0';
    hub_alarms(k->h, k->now, x, hear, &w);
    return w.words;
}

TEST(hub_alarms_say_what_is_the_matter_and_end_with_it) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct view_extra x = {0};
    kit_open(&k, &s);
    assert_string_equal(alarms_of(&k, &x), "no_live_site:warn: ");
    uint32_t inc = kit_join(&k, "a", 1);
    assert_string_equal(alarms_of(&k, &x), "");
    x.full = true;
    assert_string_equal(alarms_of(&k, &x), "disk_full:error: ");
    x.full = false;
    x.merge_bad = true;
    x.merges_failed = 1;
    assert_string_equal(alarms_of(&k, &x), "merge_failed:error: ");
    x.merge_bad = false;
    assert_string_equal(alarms_of(&k, &x), "merges_failed:info: ");
    x.merges_failed = 0;
    x.round_s = 3599; /* no round is known: an hour is given */
    assert_string_equal(alarms_of(&k, &x), "");
    x.round_s = 3601;
    assert_string_equal(alarms_of(&k, &x), "head_still:warn: ");
    x.round_s = 0;
    kit_wait(&k, KIT_TTL + 1);
    assert_string_equal(alarms_of(&k, &x), "site_silent:warn:a no_live_site:warn: ");
    inc = kit_join(&k, "a", 2);
    assert_string_equal(alarms_of(&k, &x), "");
    struct hub_cmd drain = {.kind = HUB_CMD_DRAIN, .u = {.drain = {.on = true}}};
    (void)kit_step(&k, &drain);
    assert_string_equal(alarms_of(&k, &x), "draining:info: ");
    (void)inc;
    kit_close(&k);
}

TEST(hub_alarms_know_a_hub_that_holds_and_positions_in_quarantine) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct view_extra x = {0};
    s.crashes_max = 1;
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "a", 1);
    (void)kit_lease(&k, "a", inc, 7, 8);
    (void)kit_join(&k, "a", 2); /* a new process that holds nothing: the lease ended by a crash */
    assert_string_equal(alarms_of(&k, &x), "quarantine:warn: ");
    struct wire_request q = kit_join_request(&k, "b", 3);
    q.u.join.version_seen = 9;
    q.u.join.term_seen = 9;
    (void)kit_send(&k, &q);
    assert_false(kit_view(&k).held);
    assert_non_null(strstr(alarms_of(&k, &x), "unproved:warn:b "));
    kit_wait(&k, 601);
    assert_null(strstr(alarms_of(&k, &x), "unproved"));
    kit_seal(&k, &q);
    (void)kit_send(&k, &q);
    assert_true(kit_view(&k).held);
    assert_non_null(strstr(alarms_of(&k, &x), "hub_behind:error: "));
    kit_close(&k);
}

TEST(hub_alarms_know_an_object_store_that_is_gone) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct objects_view o = {.on = true, .down = true};
    struct view_extra x = {.objects = &o};
    kit_open(&k, &s);
    (void)kit_join(&k, "a", 1);
    memset(o.cause, 'x', sizeof o.cause - 1); /* longer than an alarm's text */
    assert_string_equal(alarms_of(&k, &x), "objects_down:error: ");
    o = (struct objects_view){.on = true, .up = true};
    assert_string_equal(alarms_of(&k, &x), "");
    kit_close(&k);
}

TEST(hub_alarms_know_a_mailbox_that_cannot_be_looked_into) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct mailbox_view m = {.on = true, .down = true};
    struct view_extra x = {.mailbox = &m};
    kit_open(&k, &s);
    (void)kit_join(&k, "a", 1);
    memset(m.cause, 'x', sizeof m.cause - 1); /* longer than an alarm's text */
    assert_string_equal(alarms_of(&k, &x), "mailbox_down:error: ");
    m = (struct mailbox_view){.on = true};
    assert_string_equal(alarms_of(&k, &x), "");
    kit_close(&k);
}

TEST(hub_alarms_know_a_site_that_is_refused_again_and_again) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct view_extra x = {0};
    struct hub_blob_verdict bad = kit_blob();
    bad.status = BRG_E_NONFINITE;
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "a", 1);
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(alarms_of(&k, &x), "");
        struct wire_lease l = kit_lease(&k, "a", inc, 10 + i, 4);
        struct wire_request q = kit_commit_request(&k, "a", inc, 100 + i, &l, l.count);
        assert_int_equal(kit_commit(&k, &q, &bad)->u.commit.outcome, OUTCOME_REJECTED);
    }
    assert_string_equal(alarms_of(&k, &x), "site_rejected:warn:a ");
    kit_close(&k);
}

TEST(hub_alarms_know_how_long_a_round_usually_lasts) {
    struct kit k;
    struct hub_settings s = kit_settings(256, 1);
    struct view_extra x = {0};
    s.quorum = 1;
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "a", 1);
    for (uint32_t i = 1; i <= 3; i++) { /* a version each 200 s: an alarm after 800 */
        struct wire_lease l = kit_lease(&k, "a", inc, 10 + i, 4);
        assert_int_equal(kit_stage(&k, "a", inc, i, &l, l.count), OUTCOME_STAGED);
        assert_true(k.has_plan);
        k.has_plan = false;
        struct hub_cmd c = {.kind = HUB_CMD_MERGED, .wall = (1700000000LL + 200 * i) * NS_PER_S};
        c.u.merged.plan = k.plan;
        c.u.merged.bytes = 100;
        c.u.merged.checkpoint.v[0] = (uint8_t)(1 + i);
        c.u.merged.theta.v[0] = (uint8_t)(2 + i);
        (void)kit_step(&k, &c);
        assert_int_equal(kit_view(&k).head, i);
    }
    x.round_s = 799;
    assert_string_equal(alarms_of(&k, &x), "");
    x.round_s = 801;
    assert_string_equal(alarms_of(&k, &x), "head_still:warn: ");
    kit_close(&k);
}

TEST(hub_alarms_are_few_even_where_many_sites_are_silent) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct view_extra x = {.merges_failed = 1, .full = true};
    char name[16];
    s.sites_max = 100;
    kit_open(&k, &s);
    for (int i = 0; i < 90; i++) {
        (void)snprintf(name, sizeof name, "s%02d", i);
        (void)kit_join(&k, name, (uint8_t)(i + 1));
    }
    kit_wait(&k, KIT_TTL + 1);
    const char *words = alarms_of(&k, &x);
    assert_int_equal(strncmp(words, "disk_full:error: site_silent:warn:s00 ", 38), 0);
    assert_non_null(strstr(words, "site_silent:warn:s19 site_silent:warn: no_live_site:warn: "));
    const char *last = strstr(words, "merges_failed:info: ");
    assert_non_null(last); /* what asks for least comes last */
    assert_int_equal(strlen(last), 20);
    kit_close(&k);
}

TEST(hub_alarms_know_an_agent_that_is_silent) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct view_extra x = {0};
    kit_open(&k, &s);
    struct wire_report r = {.run = k.s.run, .site = "alder", .items_count = 1};
    r.items[0] = (struct wire_item){.n = 1, .kind = ITEM_SHAPE, .at = 100, .shape = "small"};
    struct hub_cmd c = {.kind = HUB_CMD_REPORT, .u = {.report = &r}};
    assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
    kit_wait(&k, 3 * 3600 - 1);
    (void)kit_join(&k, "a", 1);
    assert_string_equal(alarms_of(&k, &x), "");
    kit_wait(&k, 2);
    assert_string_equal(alarms_of(&k, &x), "agent_silent:warn:alder ");
    kit_close(&k);
}

/* ---- The timeline ---------------------------------------------------------------------------------- */
static json_t *timeline_json(struct timeline *t, struct kit *k, time_ns wall, time_ns after) {
    struct buf b;
    buf_init(&b, 64 << 20);
    timeline_view(t, k->h, k->now, wall, after, &b);
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    buf_fini(&b);
    return o;
}

static const json_t *spans_of(const json_t *o, size_t site) {
    return json_object_get(json_array_get(json_object_get(o, "sites"), site), "spans");
}

static const char *state_at(const json_t *spans, size_t i) {
    return json_string_value(json_array_get(json_array_get(spans, i), 1));
}

TEST(hub_timeline_W2_keeps_what_changed_and_nothing_twice) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    kit_open(&k, &s);
    struct timeline *t = timeline_create(1000 * (time_ns)NS_PER_S);
    uint32_t inc = kit_join(&k, "a", 1);
    for (int i = 0; i < 5; i++) timeline_observe(t, k.h, k.now, (1001 + i) * (time_ns)NS_PER_S);
    kit_wait(&k, KIT_TTL + 1);
    timeline_observe(t, k.h, k.now, 2000 * (time_ns)NS_PER_S);
    inc = kit_join(&k, "a", 2);
    (void)kit_join(&k, "b", 3);
    timeline_observe(t, k.h, k.now, 2001 * (time_ns)NS_PER_S);
    struct wire_request q = kit_request(&k, WIRE_LEAVE, "a", inc);
    q.req = 5;
    (void)kit_send(&k, &q);
    timeline_observe(t, k.h, k.now, 2002 * (time_ns)NS_PER_S);
    json_t *o = timeline_json(t, &k, 2003 * (time_ns)NS_PER_S, 0);
    const json_t *a = spans_of(o, 0);
    assert_int_equal(json_array_size(a), 4);
    assert_string_equal(state_at(a, 0), "syncing");
    assert_string_equal(state_at(a, 1), "silent");
    assert_string_equal(state_at(a, 2), "syncing");
    assert_string_equal(state_at(a, 3), "away");
    assert_float_equal(json_number_value(json_array_get(json_array_get(a, 1), 0)), 2000, 1e-9);
    assert_int_equal(json_array_size(spans_of(o, 1)), 1);
    json_decref(o);
    o = timeline_json(t, &k, 2003 * (time_ns)NS_PER_S, 2000 * (time_ns)NS_PER_S);
    assert_int_equal(json_array_size(spans_of(o, 0)), 2);
    json_decref(o);
    timeline_destroy(t);
    kit_close(&k);
}

TEST(hub_timeline_W1_forgets_the_oldest_and_stays_whole) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    kit_open(&k, &s);
    struct timeline *t = timeline_create(NS_PER_S);
    uint32_t inc = kit_join(&k, "quiet", 1);
    timeline_observe(t, k.h, k.now, 2 * (time_ns)NS_PER_S);
    inc = kit_join(&k, "busy", 2);
    for (int i = 0; i < TIMELINE_STATES_MAX + 500; i++) {
        struct wire_request q = kit_request(&k, WIRE_HEARTBEAT, "busy", inc);
        q.u.heartbeat.hb_seq = (uint64_t)i + 1;
        q.u.heartbeat.phase = i % 2 == 0 ? PHASE_TRAINING : PHASE_WAITING;
        hub_step(k.h, k.now, &(struct hub_cmd){.kind = HUB_CMD_REQUEST, .request = &q}, &k.out);
        timeline_observe(t, k.h, k.now, (3 + i) * (time_ns)NS_PER_S);
    }
    json_t *o = timeline_json(t, &k, 1 << 20, 0);
    assert_int_equal(json_array_size(spans_of(o, 0)),
                     0); /* of `quiet` nothing is left, and it is not needed */
    const json_t *spans = spans_of(o, 1);
    assert_int_equal(json_array_size(spans), TIMELINE_STATES_MAX);
    for (size_t i = 1; i < json_array_size(spans); i++) {
        double x = json_number_value(json_array_get(json_array_get(spans, i - 1), 0));
        assert_float_equal(json_number_value(json_array_get(json_array_get(spans, i), 0)), x + 1,
                           1e-6);
        assert_string_not_equal(state_at(spans, i - 1), state_at(spans, i));
    }
    assert_true(json_number_value(json_object_get(o, "states_from")) > 2);
    json_decref(o);
    timeline_destroy(t);
    kit_close(&k);
}

TEST(hub_timeline_says_where_a_round_went) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    kit_open(&k, &s);
    struct timeline *t = timeline_create(100 * (time_ns)NS_PER_S);
    timeline_staged(t, 110 * (time_ns)NS_PER_S);
    timeline_staged(t, 112 * (time_ns)NS_PER_S);
    timeline_merge_began(t, 113 * (time_ns)NS_PER_S);
    timeline_merge_failed(t); /* planned again: what was staged still is */
    timeline_merge_began(t, 114 * (time_ns)NS_PER_S);
    timeline_staged(t, 115 * (time_ns)NS_PER_S); /* of the next round */
    timeline_staged(t, 109 * (time_ns)NS_PER_S); /* told late */
    timeline_merge_ended(t, 1, 2 * (time_ns)NS_PER_S, 117 * (time_ns)NS_PER_S);
    timeline_staged(t, 113 * (time_ns)NS_PER_S); /* told when the merge was over */
    timeline_merge_began(t, 120 * (time_ns)NS_PER_S);
    timeline_merge_ended(t, 2, NS_PER_S, 122 * (time_ns)NS_PER_S);
    json_t *o = timeline_json(t, &k, 130 * (time_ns)NS_PER_S, 0);
    static const double wanted[2][6] = {{100, 109, 113, 114, 116, 117},
                                        {117, 115, 115, 120, 121, 122}};
    static const char *const names[] = {"began",       "staged_first", "staged_last",
                                        "merge_began", "merged",       "published"};
    const json_t *list = json_object_get(o, "rounds");
    assert_int_equal(json_array_size(list), 2);
    for (size_t r = 0; r < 2; r++)
        for (size_t i = 0; i < ARRAY_COUNT(names); i++)
            assert_float_equal(
                json_number_value(json_object_get(json_array_get(list, r), names[i])), wanted[r][i],
                1e-6);
    json_decref(o);
    timeline_destroy(t);
    kit_close(&k);
}

TEST(hub_timeline_holds_a_promise_against_what_came) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    kit_open(&k, &s);
    struct timeline *t = timeline_create(NS_PER_S);
    static const struct {
        const char *word;
        uint64_t at, start, end;
    } news[] = {{"pending", 100, 500, 0},
                {"pending", 200, 450, 0},
                {"running", 620, 610, 0},
                {"done", 900, 610, 890}};
    for (size_t i = 0; i < ARRAY_COUNT(news); i++) {
        struct wire_report r = {.run = k.s.run, .site = "alder", .items_count = 1};
        r.items[0] = (struct wire_item){.n = i + 1,
                                        .kind = ITEM_JOB,
                                        .at = news[i].at,
                                        .shape = "small",
                                        .order = 3,
                                        .job = 1,
                                        .id = 77,
                                        .submit = 90,
                                        .start = news[i].start,
                                        .end = news[i].end};
        (void)snprintf(r.items[0].word, sizeof r.items[0].word, "%s", news[i].word);
        struct hub_cmd c = {.kind = HUB_CMD_REPORT, .u = {.report = &r}};
        assert_int_equal(kit_step(&k, &c)->code, WIRE_OK);
        timeline_observe(t, k.h, k.now, (time_ns)news[i].at * NS_PER_S);
    }
    json_t *o = timeline_json(t, &k, 1000 * (time_ns)NS_PER_S, 0);
    const json_t *jobs = json_object_get(o, "jobs"), *j = json_array_get(jobs, 0);
    assert_int_equal(json_array_size(jobs), 1);
    assert_int_equal(json_integer_value(json_object_get(j, "estimate")), 500);
    assert_int_equal(json_integer_value(json_object_get(j, "estimate_last")), 450);
    assert_int_equal(json_integer_value(json_object_get(j, "start")), 610);
    assert_int_equal(json_integer_value(json_object_get(j, "end")), 890);
    assert_string_equal(json_string_value(json_object_get(j, "state")), "done");
    json_decref(o);
    timeline_destroy(t);
    kit_close(&k);
}

/* ---- What counts as a change ----------------------------------------------------------------------- */
TEST(hub_a_status_has_changed_when_more_than_its_clocks_has) {
    static const char one[] = "{\"head\":3,\"uptime_s\":12.5,\"sites\":[{\"name\":\"a\\\"b\","
                              "\"heard_ago_s\":1},{\"heard_ago_s\":2}],"
                              "\"round\":{\"since_s\":7},\"wall\":1}";
    static const char later[] = "{\"head\":3,\"uptime_s\":99,\"sites\":[{\"name\":\"a\\\"b\","
                                "\"heard_ago_s\":100.25},{\"heard_ago_s\":-1}],"
                                "\"round\":{\"since_s\":8e1},\"wall\":2222}";
    static const char other[] = "{\"head\":4,\"uptime_s\":12.5,\"sites\":[{\"name\":\"a\\\"b\","
                                "\"heard_ago_s\":1},{\"heard_ago_s\":2}],"
                                "\"round\":{\"since_s\":7},\"wall\":1}";
    assert_true(events_digest(one, strlen(one)) == events_digest(later, strlen(later)));
    assert_false(events_digest(one, strlen(one)) == events_digest(other, strlen(other)));
    for (size_t n = 0; n < strlen(one); n++)
        (void)events_digest(one, n); /* cut anywhere: no step outside */
}

/* ---- Metrics --------------------------------------------------------------------------------------- */
TEST(hub_metrics_are_of_the_format_and_the_ledger_adds_up) {
    struct kit k;
    struct hub_settings s = kit_settings(64, 3);
    kit_open(&k, &s);
    uint32_t inc = kit_join(&k, "a", 1);
    (void)kit_lease(&k, "a", inc, 7, 8);
    s.schedule = (struct schedule){.kind = SCHEDULE_CONSTANT, .tokens_total = 1536};
    struct run_settings settings = {.hub = s};
    struct view_extra x = {0};
    struct metrics_extra m = {.cpu_s = NAN};
    struct buf b;
    buf_init(&b, 1 << 20);
    metrics_put(k.h, k.now, &settings, &x, &m, &b);
    double sum = 0;
    uint64_t lines = 0, samples = 0;
    const char *typed = "", *end;
    for (const char *p = buf_cstr(&b); *p != '\0'; p = end + 1) {
        char name[80], label[80];
        end = strchr(p, '\n');
        assert_non_null(end);
        lines++;
        if (strncmp(p, "# TYPE ", 7) == 0) typed = p + 7;
        if (*p == '#') continue;
        samples++;
        assert_int_equal(sscanf(p, "%79[a-z_]", name), 1);
        assert_int_equal(strncmp(name, typed, strlen(name)), 0); /* under its own TYPE */
        if (sscanf(p, "beringia_positions{state=\"%79[a-z]\"} ", label) == 1)
            sum += strtod(strchr(p, ' '), NULL);
    }
    assert_float_equal(sum, 64 * 3, 1e-9);
    assert_non_null(strstr(buf_cstr(&b), "beringia_process_cpu_seconds_total NaN\n"));
    assert_non_null(strstr(buf_cstr(&b), "beringia_site_up{site=\"a\"} 1\n"));
    assert_non_null(strstr(buf_cstr(&b), "beringia_positions{state=\"leased\"} 8\n"));
    assert_true(lines > samples);
    buf_fini(&b);
    kit_close(&k);
}

/* ---- Held-out losses ------------------------------------------------------------------------------- */
TEST(hub_heldout_lines_are_read_and_strange_ones_passed_over) {
    static const char text[] =
        "{\"version\":0,\"loss\":5.5,\"samples\":3,\"tokens\":96,\"wall\":10}\n"
        "not json\n\n{\"version\":-1,\"loss\":1,\"samples\":1,\"tokens\":1}\n"
        "{\"version\":0,\"loss\":\"x\",\"samples\":3,\"tokens\":96}\n"
        "{\"version\":7,\"loss\":1,\"samples\":3,\"tokens\":96,\"wall\":11}\n"
        "{\"version\":0,\"loss\":5.25,\"samples\":3,\"tokens\":96,\"wall\":12}";
    struct kit k;
    struct hub_settings s = kit_settings(64, 1);
    struct heldout *list, again;
    struct buf b;
    kit_open(&k, &s);
    for (size_t n = 0; n < sizeof text; n++) { /* cut anywhere */
        (void)heldout_parse(text, n, &list);
        mem_free(list);
    }
    size_t count = heldout_parse(text, strlen(text), &list);
    assert_int_equal(count, 3);
    again = list[0];
    buf_init(&b, 1 << 16);
    heldout_view(list, count, k.h, &b); /* of version 0 the newest line; there is no version 7 */
    assert_non_null(strstr(buf_cstr(&b), "[{\"version\":0,\"tokens\":0,\"loss\":5.25,"));
    assert_null(strstr(buf_cstr(&b), "\"version\":7"));
    mem_free(list);
    buf_reset(&b);
    heldout_encode(&again, &b);
    assert_int_equal(heldout_parse((const char *)b.data, b.bytes_count, &list), 1);
    assert_float_equal(list[0].loss, 5.5, 0);
    assert_float_equal(list[0].wall, 10, 0);
    mem_free(list);
    buf_fini(&b);
    kit_close(&k);
}
