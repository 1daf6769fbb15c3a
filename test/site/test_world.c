/* SPDX-License-Identifier: Apache-2.0 */
/* Sites against the hub's own state machine, with random faults. See world.h for the oracle. */
#include "../harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "world.h"

static const time_ns S = NS_PER_S;

static struct world_options plain(uint64_t seed) {
    return (struct world_options){.seed = seed,
                                  .sites = 2,
                                  .epochs = 1,
                                  .positions = 400,
                                  .batch = 4,
                                  .steps = 8,
                                  .codec = CODEC_FP32,
                                  .limit = 3600 * S};
}

static struct world_counts run(const struct world_options *o) {
    struct world *w = world_create(o);
    bool done = world_run(w);
    uint64_t wrong = done ? world_wrong(w) : 0;
    struct world_counts n = world_counts(w);
    if (!done || wrong > 0) {
        struct hub_view v = {0};
        if (world_hub(w)) hub_view(world_hub(w), world_now(w), &v);
        fprintf(stderr,
                "seed %llu: done %d, wrong %llu; head %llu merged %llu leased %llu staged %llu "
                "available "
                "%llu; %llu crashes %llu resets\n",
                (unsigned long long)o->seed, done, (unsigned long long)wrong,
                (unsigned long long)v.head, (unsigned long long)v.counts.merged,
                (unsigned long long)v.counts.leased, (unsigned long long)v.counts.staged,
                (unsigned long long)v.counts.available, (unsigned long long)n.crashes,
                (unsigned long long)n.resets);
    }
    assert_true(done);
    assert_int_equal(wrong, 0);
    world_destroy(w);
    return n;
}

TEST(site_world_two_sites_train_an_epoch) {
    struct world_options o = plain(1);
    struct world_counts n = run(&o);
    assert_true(n.merges > 4);
    assert_true(n.rebases > 4);
    assert_int_equal(n.resets, 0);
    assert_int_equal(n.wasted, 0);
}

TEST(site_world_one_site_trains_two_epochs) {
    struct world_options o = plain(2);
    o.sites = 1;
    o.epochs = 2;
    struct world_counts n = run(&o);
    assert_int_equal(n.resets, 0);
}

/* Every fault at its own rate, drawn from the seed: most runs have few kinds, some have all. */
static struct world_options swarm(uint64_t seed) {
    struct world_options o = plain(seed);
    struct prng p;
    prng_seed(&p, seed ^ 0x5eed);
    struct world_faults *f = &o.faults;
#define DRAW(field, rate)                                                                          \
    do {                                                                                           \
        if (prng_below(&p, 2) == 0) f->field = (rate)*prng_unit(&p);                               \
    } while (0)
    DRAW(lose, 0.3);
    DRAW(twice, 0.3);
    DRAW(slow, 0.1);
    DRAW(crash, 0.03);
    DRAW(forget, 0.01);
    DRAW(twin, 0.01);
    DRAW(hub_crash, 0.02);
    DRAW(skip, 0.1);
    DRAW(upload_fails, 0.5);
    f->save = prng_below(&p, 4) == 0 ? 0 : prng_unit(&p);
#undef DRAW
    o.sites = 1 + (uint32_t)prng_below(&p, WORLD_SITES);
    o.epochs = 1 + (uint32_t)prng_below(&p, 2);
    o.positions = 50 + prng_below(&p, 350);
    o.batch = 1 + prng_below(&p, 8);
    o.steps = 1 + prng_below(&p, 12);
    o.faults_until = 300 * S;
    o.limit = 7200 * S;
    return o;
}

static uint64_t seeds_wanted(uint64_t usual) {
    const char *text = getenv("SITE_SEEDS");
    uint64_t n;
    return text && parse_u64(text, &n) ? n : usual;
}

TEST_TIMEOUT(site_world_any_faults_end_with_every_position_once, 300) {
    struct world_counts all = {0};
    const char *one = getenv("SITE_SEED");
    uint64_t first = 1, last = seeds_wanted(300);
    if (one && parse_u64(one, &first)) last = first;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct world_options o = swarm(seed);
        struct world_counts n = run(&o);
        all.crashes += n.crashes;
        all.twins += n.twins;
        all.hub_crashes += n.hub_crashes;
        all.resets += n.resets;
        all.fenced += n.fenced;
        all.merges += n.merges;
        all.cuts += n.cuts;
        all.steps += n.steps;
    }
    printf(
        "merges %llu cuts %llu crashes %llu twins %llu hub crashes %llu resets %llu fenced %llu\n",
        (unsigned long long)all.merges, (unsigned long long)all.cuts,
        (unsigned long long)all.crashes, (unsigned long long)all.twins,
        (unsigned long long)all.hub_crashes, (unsigned long long)all.resets,
        (unsigned long long)all.fenced);
    if (last - first < 50) return;
    assert_true(all.crashes > 20);
    assert_true(all.twins > 5);
    assert_true(all.hub_crashes > 20);
    assert_true(all.resets > 5);
    assert_true(all.fenced > 5);
}
