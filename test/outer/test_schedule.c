/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "outer/outer.h"

TEST(schedule_equals_the_reference_vectors) {
    FILE *f = fopen("test/golden/outer-v1.txt", "r");
    assert_non_null(f);
    static char line[16384];
    while (fgets(line, sizeof line, f) && strncmp(line, "schedules", 9) != 0) continue;
    struct schedule s = {0};
    assert_int_equal(sscanf(line, "schedules %la %la %la %la %la", &s.lr, &s.lr_min_ratio,
                            &s.tokens_total, &s.tokens_warmup, &s.decay_share),
                     5);
    size_t count;
    assert_int_equal(fscanf(f, "%zu", &count), 1);
    assert_int_equal(count, 13);
    for (size_t i = 0; i < count; i++) {
        double tokens, want[3];
        assert_int_equal(fscanf(f, "%la %la %la %la", &tokens, &want[0], &want[1], &want[2]), 4);
        static const enum schedule_kind kinds[] = {SCHEDULE_COSINE, SCHEDULE_WSD,
                                                   SCHEDULE_CONSTANT};
        for (size_t k = 0; k < 3; k++) {
            s.kind = kinds[k];
            assert_true(fabs(schedule_lr(&s, tokens) - want[k]) <= 1e-12 * s.lr);
        }
    }
    fclose(f);
}

TEST(schedule_is_sane_at_its_ends) {
    struct schedule s = {.lr = 1, .lr_min_ratio = 0.1, .tokens_total = 100, .decay_share = 0.2};
    static const enum schedule_kind kinds[] = {SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_CONSTANT};
    for (size_t k = 0; k < 3; k++) {
        s.kind = kinds[k];
        s.tokens_warmup = 0; /* no warm-up: the peak at once */
        assert_true(schedule_lr(&s, 0) == 1);
        s.tokens_warmup = 10;
        assert_true(schedule_lr(&s, 0) == 0);
        assert_true(schedule_lr(&s, -5) == 0);
        double last = 0;
        for (double t = 0; t <= 10; t += 0.5) { /* rises through the warm-up */
            double now = schedule_lr(&s, t);
            assert_true(now >= last);
            last = now;
        }
        for (double t = 10; t <= 200; t += 0.5) { /* and never after it */
            double now = schedule_lr(&s, t);
            assert_true(now <= last + 1e-15);
            assert_true(now >= 0.1 - 1e-15);
            last = now;
        }
    }
    s.kind = SCHEDULE_WSD;
    s.decay_share = 0; /* a cliff instead of a division by zero */
    assert_true(schedule_lr(&s, 99) == 1);
    s.kind = SCHEDULE_COSINE;
    s.tokens_warmup = s.tokens_total; /* nothing left after the warm-up */
    assert_true(isfinite(schedule_lr(&s, 100)));
}

TEST(schedule_steps_ramp_from_the_first_to_the_full_number) {
    const struct schedule_steps s = {
        .steps = 30, .steps_first = 5, .share = 0.1, .tokens_total = 1000};
    assert_int_equal(schedule_steps_at(&s, 0), 5);
    assert_int_equal(schedule_steps_at(&s, -3), 5);
    assert_int_equal(schedule_steps_at(&s, 50), 18); /* 17.5, to nearest */
    assert_int_equal(schedule_steps_at(&s, 100), 30);
    assert_int_equal(schedule_steps_at(&s, 1e9), 30);
    uint64_t before = 0;
    for (double t = 0; t <= 120; t += 0.5) {
        uint64_t now = schedule_steps_at(&s, t);
        assert_true(now >= before);
        before = now;
    }
    const struct schedule_steps none = {.steps = 30, .steps_first = 5, .tokens_total = 1000};
    assert_int_equal(schedule_steps_at(&none, 0), 30);
}
