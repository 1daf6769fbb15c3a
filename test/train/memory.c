/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - keeping a training in memory: headers, partners, who gives what; and ranks (threads) that lose nodes,
 * find torn and rotten slots, other runs' files, and go on with the same bits. Each rank has a directory of its own,
 * which plays its node's memory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"
#include "support.h"
#include "train/memory.h"

/* ---- Pure ----------------------------------------------------------------------------------------- */

static struct memory_mark some_mark(void) {
    struct memory_mark m = {.shape = {.run = {{1, 2, 3}},
                                      .site = "lumi",
                                      .elements = 1000,
                                      .bucket = 300,
                                      .ranks = 3,
                                      .optimizer = 1},
                            .id = {.moment = {7, 500, 12, 9}, .hash = {{42}}},
                            .shard = 2,
                            .own = 333,
                            .adamw_steps = 501,
                            .books_bytes = 4711,
                            .sum = 99};
    return m;
}

TEST(memory_M2_a_header_comes_back_and_any_other_bit_is_refused) {
    struct memory_mark m = some_mark(), back;
    uint8_t bytes[MEMORY_HEADER_BYTES], again[MEMORY_HEADER_BYTES];
    struct err e;
    memory_mark_encode(&m, bytes);
    assert_int_equal(memory_mark_decode(bytes, &back, &e), BRG_OK);
    memory_mark_encode(&back, again);
    assert_memory_equal(bytes, again, sizeof bytes);
    assert_true(memory_shape_equal(&back.shape, &m.shape));
    assert_int_equal(back.id.moment.steps, 500);
    assert_int_equal(back.own, 333);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(memory_mark_decode(bytes, &back, &e), BRG_E_CORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    m.shard = 3; /* whole, and nonsense */
    memory_mark_encode(&m, bytes);
    assert_int_equal(memory_mark_decode(bytes, &back, &e), BRG_E_CORRUPT);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(memory_mark_decode(bytes, &back, &e), BRG_E_CORRUPT);
}

TEST(memory_M3_a_generations_hash_covers_all_that_it_is) {
    struct memory_mark m = some_mark();
    struct memory_shape s = m.shape;
    struct memory_moment t = m.id.moment;
    struct hash seen[8];
    size_t n = 0;
    seen[n++] = memory_hash(&s, &t, 1, 1, "books", 5);
    seen[n++] = memory_hash(&s, &t, 1, 1, "bOoks", 5);
    seen[n++] = memory_hash(&s, &t, 1, 2, "books", 5);
    seen[n++] = memory_hash(&s, &t, 2, 1, "books", 5);
    t.steps++;
    seen[n++] = memory_hash(&s, &t, 1, 1, "books", 5);
    t.steps--;
    s.site[0] = 'x';
    seen[n++] = memory_hash(&s, &t, 1, 1, "books", 5);
    s = m.shape;
    s.run.v[15] = 1;
    seen[n++] = memory_hash(&s, &t, 1, 1, "books", 5);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) assert_false(hash_equal(&seen[i], &seen[k]));
}

/* Every arrangement of up to 7 ranks on up to 4 places. */
TEST(memory_partners_are_on_other_nodes_and_nobody_keeps_two) {
    for (uint32_t ranks = 1; ranks <= 7; ranks++) {
        uint32_t arrangements = 1;
        for (uint32_t r = 0; r < ranks; r++) arrangements *= 4;
        for (uint32_t a = 0; a < arrangements; a++) {
            uint64_t places[7];
            uint32_t partner[7], on[4] = {0}, keeps[7] = {0}, fullest = 0, none = 0;
            for (uint32_t r = 0, x = a; r < ranks; r++, x /= 4) on[places[r] = x % 4]++;
            for (int p = 0; p < 4; p++) fullest = on[p] > fullest ? on[p] : fullest;
            memory_partners(places, ranks, partner);
            for (uint32_t r = 0; r < ranks; r++) {
                none += partner[r] == UINT32_MAX;
                if (partner[r] == UINT32_MAX) continue;
                assert_true(partner[r] < ranks);
                assert_true(places[partner[r]] != places[r]);
                keeps[partner[r]]++;
            }
            for (uint32_t r = 0; r < ranks; r++) assert_true(keeps[r] <= 1);
            /* As many as there are seats elsewhere for those of the fullest place. */
            uint32_t must = 2 * fullest > ranks ? 2 * fullest - ranks : 0;
            assert_int_equal(none, must);
        }
    }
}

TEST(memory_sources_are_the_own_rank_else_one_that_has_it) {
    const uint8_t have[9] = {1, 0, 2, 0, 0, 0, 2, 2, 1}; /* [rank][shard] */
    uint32_t from[3];
    assert_true(memory_sources(have, 3, from));
    assert_int_equal(from[0], 0);
    assert_int_equal(from[1], 2);
    assert_int_equal(from[2], 2);
    const uint8_t lost[4] = {1, 0, 2, 0};
    assert_false(memory_sources(lost, 2, from));
}

TEST(memory_candidates_are_newest_first_and_each_once) {
    struct memory_id x[5] = {{{1, 5, 0, 0}, {{1}}},
                             {{1, 7, 0, 0}, {{2}}},
                             {{2, 3, 0, 0}, {{3}}},
                             {{1, 7, 0, 0}, {{2}}},
                             {{1, 7, 1, 0}, {{4}}}};
    assert_int_equal(memory_candidates_merge(x, 5, 8), 4);
    const int want[] = {3, 4, 2, 1};
    for (int i = 0; i < 4; i++) assert_int_equal(x[i].hash.v[0], want[i]);
    assert_int_equal(memory_candidates_merge(x, 4, 2), 2);
    assert_int_equal(memory_candidates_merge(x, 0, 2), 0);
}

/* ---- Ranks ---------------------------------------------------------------------------------------- */

enum { T = 8, ROWS = 6, RANKS_MOST = 5 };

struct life { /* of a job */
    const char *dir;
    struct id128 run;
    uint32_t generations, steps; /* to train, each kept */
    uint64_t incarnation, first; /* what is said of them */
    struct model_config model;
    const int32_t *tokens;
    float *theta; /* [P] to begin with; then of the end */
    /* what came of it */
    enum brg_status opened, recalled, taken;
    struct memory_recalled back;
    char books[64];
    uint32_t candidates;
    float *m, *v, *at_back; /* [P]; at_back: theta after the recall */
    struct memory_figures figures[RANKS_MOST];
    bool removes, muon;
};

static void all_moments(struct trainer *t, struct life *l) {
    uint64_t P = trainer_parameters(t);
    trainer_moment_get(t, MOMENT_M, 0, P, l->m);
    trainer_moment_get(t, MOMENT_V, 0, P, l->v);
}

static void train_and_keep(struct life *l, struct trainer *t, struct memory *m,
                           const struct dp_net *net) {
    struct adamw a = adamw_default();
    struct err e;
    uint32_t me = dp_rank(net), from = dp_rows_at(net, ROWS, me);
    for (uint32_t i = 0; i < l->steps; i++) {
        double norm;
        (void)trainer_gradient_part(t, l->tokens + from * (T + 1),
                                    dp_rows_at(net, ROWS, me + 1) - from, ROWS);
        assert_int_equal(trainer_update(t, &a, 1e-3, &norm, &e), BRG_OK);
        char books[64] = {0};
        uint64_t step = l->first + i + 1;
        snprintf(books, sizeof books, "books of step %u", (unsigned)step);
        struct memory_moment now = {l->incarnation, step, 3, 4};
        memory_keep(m, &now, trainer_steps(t), l->incarnation * 1000 + step, books, sizeof books);
        while (dp_or(net, memory_busy(m)) != 0) {
        }
    }
}

static void live(void *ctx, struct dp_net *net) {
    struct life *l = ctx;
    struct err e = {0};
    struct trainer_options o = {
        .model = &l->model, .seq_len = T, .batch_max = ROWS, .threads = 1, .net = net};
    struct muon muon = muon_default();
    if (l->muon) o.muon = &muon;
    struct trainer *t;
    struct memory *m = NULL;
    struct memory_recalled back = {0};
    uint32_t me = dp_rank(net);
    assert_int_equal(trainer_create(&o, &t, &e), BRG_OK);
    uint64_t P = trainer_parameters(t);
    memcpy(trainer_theta(t), l->theta, P * sizeof(float));
    struct memory_options mo = {
        .dir = l->dir, .generations = l->generations, .run = l->run, .site = "a"};
    enum brg_status opened = memory_open(&mo, t, net, &m, &e), recalled = BRG_E_MISSING, taken;
    assert_int_equal(opened, BRG_OK);
    uint32_t candidates = memory_candidates(m);
    for (uint32_t i = 0; i < candidates && recalled != BRG_OK; i++)
        recalled = memory_recall(m, i, &back, &e);
    if (recalled == BRG_OK) {
        trainer_steps_set(t, back.adamw_steps);
        if (me == 0) memcpy(l->at_back, trainer_theta(t), P * sizeof(float));
        all_moments(t, l);
        if (me == 0) memcpy(l->books, back.books, back.books_bytes);
    } else {
        memcpy(trainer_theta(t), l->theta, P * sizeof(float));
        trainer_part_clear(t);
    }
    taken = memory_take(m, &e);
    memory_figures(m, &l->figures[me]);
    if (taken == BRG_OK && l->steps > 0) {
        train_and_keep(l, t, m, net);
        all_moments(t, l);
    }
    if (me == 0) {
        l->opened = opened;
        l->recalled = recalled;
        l->taken = taken;
        l->back = back;
        l->candidates = candidates;
    }
    (void)dp_sum(net, 0); /* all have read what this rank sends, and theta */
    if (me == 0) memcpy(l->theta, trainer_theta(t), P * sizeof(float));
    memory_close(m, l->removes);
    trainer_destroy(t);
}

static unsigned world;   /* of directories: one a scenario */
static bool muon_trains; /* in what follows */

static void life_init(struct life *l, uint32_t seed, uint32_t steps) {
    char *dir = mem_alloc(OS_PATH_MAX, 1);
    snprintf(dir, OS_PATH_MAX, "%s/%u/node%%r", test_dir(), world);
    *l = (struct life){.dir = dir,
                       .run = {{9}},
                       .generations = 2,
                       .steps = steps,
                       .incarnation = 1,
                       .muon = muon_trains,
                       .model = small_model(seed)};
    uint64_t P = model_parameters(&l->model);
    struct prng p;
    prng_seed(&p, seed);
    int32_t *x = mem_alloc((size_t)ROWS * (T + 1), sizeof *x);
    for (size_t i = 0; i < (size_t)ROWS * (T + 1); i++)
        x[i] = (int32_t)prng_below(&p, l->model.vocab_size);
    l->tokens = x;
    l->theta = mem_alloc(P, sizeof(float));
    l->m = mem_alloc(P, sizeof(float));
    l->v = mem_alloc(P, sizeof(float));
    l->at_back = mem_alloc(P, sizeof(float));
    random_weights(&l->model, seed, l->theta);
}

static void life_fini(struct life *l) {
    mem_free((void *)(uintptr_t)l->dir);
    mem_free((void *)(uintptr_t)l->tokens);
    mem_free(l->theta);
    mem_free(l->m);
    mem_free(l->v);
    mem_free(l->at_back);
}

static void live_on(struct life *l, uint32_t ranks) {
    l->recalled = BRG_E_MISSING;
    memset(l->books, 0, sizeof l->books);
    if (ranks == 1)
        live(l, NULL);
    else
        ranks_run(ranks, 700, live, l);
}

static void node(uint32_t n, const char *file, char out[OS_PATH_MAX]) {
    char inner[64];
    snprintf(inner, sizeof inner, "%u/node%u/beringia-%u", world, n, (unsigned)geteuid());
    snprintf(out, OS_PATH_MAX, "%.2000s/%s/%s", test_dir(), inner, file);
}

static void file_of(uint32_t n, uint32_t shard, uint32_t ranks, const char *kind,
                    char out[OS_PATH_MAX]) {
    struct id128 run = {{9}};
    char hex[ID_HEX_BYTES], name[160];
    id_hex(&run, hex);
    snprintf(name, sizeof name, "%s.a.%u-of-%u.%s", hex, shard, ranks, kind);
    node(n, name, out);
}

/* The node's memory is gone: rank n's own shard, and what it kept for another. */
static void wipe(uint32_t n, uint32_t ranks) {
    char path[OS_PATH_MAX];
    for (uint32_t s = 0; s < ranks; s++) {
        file_of(n, s, ranks, "own", path);
        (void)unlink(path);
        file_of(n, s, ranks, "copy", path);
        (void)unlink(path);
    }
}

/* One byte of the data of the slot that holds `step` is another one. */
static void rot(uint32_t n, uint32_t shard, uint32_t ranks, const char *kind, uint64_t step) {
    char path[OS_PATH_MAX];
    struct memory_mark k;
    struct err e;
    uint8_t head[MEMORY_HEADER_BYTES], byte;
    file_of(n, shard, ranks, kind, path);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    uint64_t bytes = (uint64_t)os_file_bytes(path) / 2;
    for (uint64_t at = 0; at < 2 * bytes; at += bytes) {
        assert_int_equal(os_pread_all(fd, head, sizeof head, at, path, &e), BRG_OK);
        if (memory_mark_decode(head, &k, &e) != BRG_OK || k.id.moment.steps != step) continue;
        uint64_t place = at + MEMORY_PAGE_BYTES + MEMORY_BOOKS_MAX + 4 * k.own;
        assert_int_equal(os_pread_all(fd, &byte, 1, place, path, &e), BRG_OK);
        byte ^= 16;
        assert_int_equal(os_pwrite_all(fd, &byte, 1, place, path, &e), BRG_OK);
        return;
    }
    fail_msg("%s holds no step %u", path, (unsigned)step);
}

/* A job of `ranks` keeps 5 steps; then `harm`; the next job goes on from `step` (0: from nowhere) and trains to
 * step 8: what it has then are the bits of a job that was never interrupted. */
static void scenario(uint32_t ranks, void harm(uint32_t ranks), uint64_t step, bool foreign) {
    struct life whole, parts, next;
    uint64_t P;
    world++;
    life_init(&whole, 50 + ranks, 8);
    life_init(&parts, 50 + ranks, 5);
    life_init(&next, 50 + ranks, (uint32_t)(8 - step));
    P = model_parameters(&whole.model);
    whole.run.v[1] = 1; /* its files are of another run, and never taken */
    live_on(&whole, ranks);
    assert_int_equal(whole.candidates, 0);
    live_on(&parts, ranks);
    assert_int_equal(parts.candidates, 0);
    harm(ranks);
    next.incarnation = 2;
    next.first = step;
    live_on(&next, ranks);
    assert_int_equal(next.recalled, step > 0 ? BRG_OK : BRG_E_MISSING);
    if (step > 0) {
        char want[64];
        assert_int_equal(next.back.moment.steps, step);
        assert_int_equal(next.back.moment.incarnation, 1);
        assert_int_equal(next.back.adamw_steps, step);
        snprintf(want, sizeof want, "books of step %u", (unsigned)step);
        assert_string_equal(next.books, want);
        assert_true(foreign == (next.back.foreign > 0));
        if (step == 5) assert_memory_equal(next.at_back, parts.theta, P * sizeof(float));
    }
    assert_memory_equal(next.theta, whole.theta, P * sizeof(float));
    assert_memory_equal(next.m, whole.m, P * sizeof(float));
    assert_memory_equal(next.v, whole.v, P * sizeof(float));
    life_fini(&whole);
    life_fini(&parts);
    life_fini(&next);
}

static void nothing(uint32_t ranks) {
    (void)ranks;
}

static void lose_the_last(uint32_t ranks) {
    wipe(ranks - 1, ranks);
}

static void lose_the_first(uint32_t ranks) {
    wipe(0, ranks);
}

static void lose_all(uint32_t ranks) {
    for (uint32_t r = 0; r < ranks; r++) wipe(r, ranks);
}

static void rot_the_own(uint32_t ranks) {
    rot(0, 0, ranks, "own", 5);
}

static uint32_t keeper_of(uint32_t shard, uint32_t ranks) {
    char path[OS_PATH_MAX];
    for (uint32_t n = 0; n < ranks; n++) {
        file_of(n, shard, ranks, "copy", path);
        if (os_exists(path)) return n;
    }
    return UINT32_MAX;
}

static void rot_both(uint32_t ranks) {
    rot(0, 0, ranks, "own", 5);
    rot(keeper_of(0, ranks), 0, ranks, "copy", 5);
}

TEST(memory_a_job_goes_on_from_its_own_memory_with_the_same_bits) {
    for (uint32_t ranks = 1; ranks <= 3; ranks++) scenario(ranks, nothing, 5, false);
}

TEST(memory_holds_muons_momentum_too) {
    muon_trains = true;
    scenario(1, nothing, 5, false);
    scenario(1, rot_the_own, 4, false);
    scenario(1, lose_all, 0, false);
}

TEST(memory_a_lost_node_is_replaced_by_its_partners_copy) {
    for (uint32_t ranks = 2; ranks <= RANKS_MOST; ranks++) {
        scenario(ranks, lose_the_last, 5, true);
        scenario(ranks, lose_the_first, 5, true); /* rank 0 has the books from another one */
    }
}

/* The ranks come back on each other's nodes. */
static void move_node(uint32_t from, uint32_t to) {
    char a[OS_PATH_MAX], b[OS_PATH_MAX];
    snprintf(a, sizeof a, "%.2000s/%u/node%u", test_dir(), world, from);
    snprintf(b, sizeof b, "%.2000s/%u/node%u", test_dir(), world, to);
    assert_int_equal(rename(a, b), 0);
}

static void move_round(uint32_t ranks) {
    move_node(0, ranks);
    for (uint32_t n = 1; n <= ranks; n++) move_node(n, n - 1);
}

TEST(memory_ranks_on_each_others_nodes_find_their_state) {
    scenario(2, move_round, 5, true);
    scenario(3, move_round, 5, true);
}

TEST(memory_M2_what_does_not_have_its_sum_is_not_taken) {
    scenario(2, rot_the_own, 5, true);
    scenario(3, rot_the_own, 5, true);
    scenario(3, rot_both, 4, false); /* an older generation, whole on all ranks */
    scenario(1, rot_the_own, 4, false);
}

TEST(memory_where_nothing_is_left_it_begins_from_elsewhere) {
    scenario(2, lose_all, 0, false);
    scenario(1, lose_all, 0, false);
}

/* A file that was torn: header of zeros, as while a slot is filled. */
static void tear_the_newest(uint32_t ranks) {
    char path[OS_PATH_MAX];
    struct memory_mark k;
    struct err e;
    uint8_t head[MEMORY_HEADER_BYTES], zeros[MEMORY_HEADER_BYTES] = {0};
    for (uint32_t r = 0; r < ranks; r++) {
        file_of(r, r, ranks, "own", path);
        AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
        uint64_t bytes = (uint64_t)os_file_bytes(path) / 2;
        for (uint64_t at = 0; at < 2 * bytes; at += bytes) {
            assert_int_equal(os_pread_all(fd, head, sizeof head, at, path, &e), BRG_OK);
            if (memory_mark_decode(head, &k, &e) == BRG_OK && k.id.moment.steps == 5)
                assert_int_equal(os_pwrite_all(fd, zeros, sizeof zeros, at, path, &e), BRG_OK);
        }
    }
    uint32_t keeper = keeper_of(0, ranks);
    if (keeper != UINT32_MAX) wipe(keeper, ranks);
}

TEST(memory_M1_one_generation_is_whole_while_the_next_one_is_filled) {
    scenario(1, tear_the_newest, 4, false);
    scenario(2, tear_the_newest, 4, true);
}

TEST(memory_another_number_of_ranks_takes_nothing_and_clears_up) {
    struct life two, three;
    char path[OS_PATH_MAX];
    life_init(&two, 60, 3);
    life_init(&three, 60, 3);
    live_on(&two, 2);
    live_on(&three, 3);
    assert_int_equal(three.candidates, 0);
    file_of(0, 0, 2, "own", path);
    assert_false(os_exists(path)); /* of the same run and site, and of no use */
    file_of(0, 0, 3, "own", path);
    assert_true(os_exists(path));
    three.removes = true;
    live_on(&three, 3);
    for (uint32_t r = 0; r < 3; r++) {
        node(r, "", path);
        assert_false(os_exists(path));
    }
    life_fini(&two);
    life_fini(&three);
}

TEST(memory_M4_it_is_taken_at_the_start_private_and_of_the_size_that_was_said) {
    struct life l;
    char path[OS_PATH_MAX];
    struct stat st;
    life_init(&l, 61, 2);
    live_on(&l, 2);
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t bytes = 0;
        for (int k = 0; k < 2; k++) {
            file_of(r, k == 0 ? r : 1 - r, 2, k == 0 ? "own" : "copy", path);
            assert_int_equal(stat(path, &st), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
            bytes += (uint64_t)st.st_size;
            assert_true((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size); /* no holes */
        }
        assert_int_equal(l.figures[r].bytes, bytes);
        assert_int_equal(l.figures[r].places, 2);
        assert_int_equal(l.figures[r].partner, 1 - r);
    }
    node(0, "", path);
    assert_int_equal(chmod(path, 0755), 0); /* somebody else could look, or put a file there */
    struct memory_options o = {.dir = l.dir, .generations = 2, .site = "a"};
    struct err e = {0};
    struct memory *m = NULL;
    struct trainer *t = make_trainer(&l.model, T, ROWS, 0, 1, NULL);
    assert_int_equal(memory_open(&o, t, NULL, &m, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "0700"));
    trainer_destroy(t);
    life_fini(&l);
}

/* Ranks of one directory have no use for copies. */
TEST(memory_of_one_node_keeps_no_copies) {
    struct life l;
    char *dir = mem_alloc(OS_PATH_MAX, 1);
    life_init(&l, 62, 2);
    snprintf(dir, OS_PATH_MAX, "%s/node", test_dir());
    mem_free((void *)(uintptr_t)l.dir);
    l.dir = dir;
    live_on(&l, 3);
    assert_int_equal(l.figures[1].copy_bytes, 0);
    assert_int_equal(l.figures[1].places, 1);
    l.steps = 0;
    live_on(&l, 3);
    assert_int_equal(l.recalled, BRG_OK);
    assert_int_equal(l.back.foreign, 0);
    life_fini(&l);
}
