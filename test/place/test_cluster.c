/* SPDX-License-Identifier: Apache-2.0 */
/* The replayed machine: starts that were worked out by hand, and what may never happen. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "place/cluster.h"

/* A trace of four jobs on 4 nodes, far from its end. */
static const char TRACE[] = "; MaxProcs: 4\n"
                            "1 0 -1 1000 3 -1 -1 3 2000 -1 1 1 1 1 1 1 -1 -1\n"
                            "2 10 -1 500 4 -1 -1 4 600 -1 1 1 1 1 1 1 -1 -1\n"
                            "3 20 -1 90 1 -1 -1 1 100 -1 1 1 1 1 1 1 -1 -1\n"
                            "4 900000 -1 1 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n";

static struct swf_trace trace(void) {
    struct swf_trace t;
    struct err e;
    assert_int_equal(swf_parse("test", TRACE, sizeof TRACE - 1, &t, &e), BRG_OK);
    return t;
}

TEST(place_C2_backfill_does_not_delay_the_first) {
    struct swf_trace t = trace();
    struct cluster *c = cluster_create(&t, 0, 0, 0);
    uint64_t id;
    assert_true(cluster_nodes(c) == 4);
    assert_false(cluster_advance(c, 30, &id));
    /* now: job 1 runs on 3 nodes (limit at 2000), job 2 wants 4 and waits, job 3 backfilled until 110 */
    assert_int_equal(cluster_queued(c), 1);
    assert_true(cluster_estimate(c, 1, 600) == 90 + 60 * floor(4 * 600.0 / 60 / 4));
    cluster_submit(c, 7, 1, 1800); /* ends at 1910 at the latest if it starts at 110: before 2000 */
    cluster_submit(c, 8, 1, 1900);
    assert_true(cluster_advance(c, 5000, &id));
    assert_int_equal(id, 7);
    assert_true(cluster_next(c) == 1000);
    /* Job 1 ends at 1000, earlier than its limit; 7 runs to 1910, then 2 takes all until 2410. */
    assert_true(cluster_advance(c, 5000, &id));
    assert_int_equal(id, 8);
    assert_true(cluster_next(c) == 2410 + 1900);
    cluster_end(c, 8);
    cluster_end(c, 8); /* twice does nothing */
    cluster_destroy(c);
    swf_fini(&t);
}

TEST(place_a_job_that_left_the_queue_does_not_start) {
    struct swf_trace t = trace();
    struct cluster *c = cluster_create(&t, 0, 0, 0);
    uint64_t id;
    assert_false(cluster_advance(c, 30, &id));
    cluster_submit(c, 7, 4, 3600);
    cluster_end(c, 7);
    assert_false(cluster_advance(c, 10000, &id));
    cluster_destroy(c);
    swf_fini(&t);
}

/* The trace goes round for ever, and nodes never go missing (C1 is checked inside). */
TEST(place_C1_a_long_replay_keeps_its_nodes) {
    AUTO_BUF struct buf text;
    struct prng r;
    struct err e;
    struct swf_trace t;
    buf_init(&text, 1 << 20);
    prng_seed(&r, 9);
    for (int i = 0; i < 400; i++)
        buf_printf(&text, "%d %d -1 %d %d -1 -1 -1 %d -1 1 1 1 1 1 1 -1 -1\n", i + 1, i * 900,
                   (int)prng_below(&r, 4000), 1 + (int)prng_below(&r, 20), 4000);
    assert_int_equal(swf_parse("test", (const char *)text.data, text.bytes_count, &t, &e), BRG_OK);
    struct cluster *c = cluster_create(&t, 32, 5000, 86400);
    uint64_t id, told = 0;
    for (int i = 1; i <= 300; i++) {
        cluster_submit(c, (uint64_t)i, 1 + (double)prng_below(&r, 32), 1800);
        while (cluster_advance(c, i * 3600.0, &id)) told++;
        if (i % 7 == 0) cluster_end(c, (uint64_t)i);
    }
    assert_true(told > 200);
    cluster_destroy(c);
    swf_fini(&t);
}

TEST(place_a_wrong_trace_is_told_with_its_line) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "holds no job"},
        {"; only a header\n", "holds no job"},
        {"1 2 3\n", "wrong:1: 3 fields"},
        {"1 0 0 5 1 0 0 1 60 0 1 1 1 1 1 1 0 0\n1 x 0 5 1 0 0 1 60 0 1 1 1 1 1 1 0 0\n",
         "wrong:2: field 2: \"x\""},
        {"1 0 0 nan 1 0 0 1 60 0 1 1 1 1 1 1 0 0\n", "field 4"},
        {"1 0 0 -1 -1 0 0 -1 60 0 1 1 1 1 1 1 0 0\n", "holds no job"},
        {"; MaxNodes: 0\n1 0 0 5 0.89 0 0 1 60 0 1 1 1 1 1 1 0 0\n", "holds no job"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct swf_trace t;
        struct err e;
        assert_int_equal(swf_parse("wrong", cases[i].text, strlen(cases[i].text), &t, &e),
                         BRG_E_CONFIG);
        assert_non_null(strstr(e.text, cases[i].says));
    }
}
