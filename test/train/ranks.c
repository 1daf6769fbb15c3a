/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c - see ranks.h. A rank that sends publishes where its data lie; one that receives copies them
 * once they are published. Who comes first is left to chance, as on a machine. */
#include "ranks.h"

#include <pthread.h>
#include <string.h>

#include "support.h"

enum { RANKS_MAX = 16, SMALL_MAX = 4096, POSTS = 8 };

struct posted { /* what a rank has on offer in a slot: the last few, as others may be slower */
    uint64_t count;
    const float *data[POSTS];
};

struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ranks;
    struct posted posted[RANKS_MAX][DP_SLOTS_ALL];
    uint64_t arrived[RANKS_MAX]; /* allgathers a rank has put its part into */
    uint64_t read[RANKS_MAX];    /* and has read all parts of */
    uint8_t small[RANKS_MAX][SMALL_MAX];
    const float *letter[RANKS_MAX][RANKS_MAX]; /* send and recv: [from][to] */
};

struct under_way {
    bool busy, spread;
    float *target;
    const size_t *at; /* NULL: a swap, of so many elements from that rank */
    size_t count;
    uint32_t from;
};

struct rank {
    struct world *w;
    struct dp_net net;
    struct under_way slots[DP_SLOTS_ALL];
    void (*body)(void *ctx, struct dp_net *net);
    void *ctx;
};

static void lock(struct world *w) {
    CHECK(pthread_mutex_lock(&w->lock) == 0);
}

static void unlock(struct world *w) {
    CHECK(pthread_cond_broadcast(&w->changed) == 0);
    CHECK(pthread_mutex_unlock(&w->lock) == 0);
}

static void sleep_on(struct world *w) {
    CHECK(pthread_cond_wait(&w->changed, &w->lock) == 0);
}

static void net_allgather(void *self, const void *mine, void *all, size_t bytes) {
    struct rank *r = self;
    struct world *w = r->w;
    uint32_t me = r->net.rank;
    CHECK(bytes <= SMALL_MAX);
    lock(w);
    for (uint32_t i = 0; i < w->ranks; i++) /* what lies there may still be wanted */
        while (w->read[i] < w->arrived[me]) sleep_on(w);
    memcpy(w->small[me], mine, bytes);
    w->arrived[me]++;
    CHECK(pthread_cond_broadcast(&w->changed) == 0);
    for (uint32_t i = 0; i < w->ranks; i++) {
        while (w->arrived[i] < w->arrived[me]) sleep_on(w);
        memcpy((char *)all + i * bytes, w->small[i], bytes);
    }
    w->read[me]++;
    unlock(w);
}

static void net_bcast(void *self, void *data, size_t bytes, bool idle) {
    struct rank *r = self;
    (void)idle;
    AUTO_FREE uint8_t *all = mem_alloc(RANKS_MAX, SMALL_MAX);
    for (size_t at = 0; at < bytes; at += SMALL_MAX) {
        size_t n = bytes - at < SMALL_MAX ? bytes - at : SMALL_MAX;
        net_allgather(r, (char *)data + at, all, n);
        memcpy((char *)data + at, all, n);
    }
}

static void net_send(void *self, uint32_t to, const float *data, size_t count) {
    struct rank *r = self;
    struct world *w = r->w;
    (void)count;
    lock(w);
    w->letter[r->net.rank][to] = data;
    CHECK(pthread_cond_broadcast(&w->changed) == 0);
    while (w->letter[r->net.rank][to]) sleep_on(w);
    unlock(w);
}

static void net_recv(void *self, uint32_t from, float *data, size_t count) {
    struct rank *r = self;
    struct world *w = r->w;
    lock(w);
    while (!w->letter[from][r->net.rank]) sleep_on(w);
    memcpy(data, w->letter[from][r->net.rank], count * sizeof(float));
    w->letter[from][r->net.rank] = NULL;
    unlock(w);
}

static void post(struct rank *r, uint32_t slot, const float *data, const struct under_way *u) {
    CHECK(!r->slots[slot].busy);
    r->slots[slot] = *u;
    lock(r->w);
    struct posted *p = &r->w->posted[r->net.rank][slot];
    p->data[p->count++ % POSTS] = data;
    unlock(r->w);
}

static void net_exchange(void *self, uint32_t slot, const float *data, const size_t *at,
                         float *parts) {
    post(self, slot, data, &(struct under_way){true, false, parts, at, 0, 0});
}

static void net_spread(void *self, uint32_t slot, float *data, const size_t *at) {
    post(self, slot, data, &(struct under_way){true, true, data, at, 0, 0});
}

/* As in the other slots: who goes on may overwrite what it sent only after a word with all ranks. */
static void net_swap(void *self, uint32_t to, const float *data, size_t count, uint32_t from,
                     float *into, size_t into_count) {
    (void)to;
    (void)count;
    post(self, DP_SLOT_SWAP, data, &(struct under_way){true, false, into, NULL, into_count, from});
}

/* With the lock held: have all ranks posted what this one has? */
static bool all_posted(const struct rank *r, uint32_t slot) {
    uint64_t want = r->w->posted[r->net.rank][slot].count;
    for (uint32_t i = 0; i < r->w->ranks; i++)
        if (r->w->posted[i][slot].count < want) return false;
    return true;
}

static void fetch(struct rank *r, uint32_t slot) {
    struct world *w = r->w;
    struct under_way *u = &r->slots[slot];
    uint32_t me = r->net.rank;
    uint64_t number = w->posted[me][slot].count - 1;
    if (!u->at && u->count > 0)
        memcpy(u->target, w->posted[u->from][slot].data[number % POSTS], u->count * sizeof(float));
    for (uint32_t i = 0; u->at && i < w->ranks; i++) {
        const float *from = w->posted[i][slot].data[number % POSTS];
        uint32_t part = u->spread ? i : me;
        size_t at = u->at[part], n = u->at[part + 1] - at;
        if (i != me && n > 0)
            memcpy(u->spread ? u->target + at : u->target + i * n, from + at, n * sizeof(float));
    }
    u->busy = false;
}

static bool net_done(void *self, uint32_t slot) {
    struct rank *r = self;
    lock(r->w);
    bool all = all_posted(r, slot);
    if (all) fetch(r, slot);
    unlock(r->w);
    return all;
}

static void net_wait(void *self, uint32_t slot) {
    struct rank *r = self;
    lock(r->w);
    while (!all_posted(r, slot)) sleep_on(r->w);
    fetch(r, slot);
    unlock(r->w);
}

static void net_abort(void *self, int status) {
    (void)self;
    fail_msg("a rank gave up with status %d", status);
}

static void net_close(void *self) {
    (void)self;
}

static void *rank_main(void *arg) {
    struct rank *r = arg;
    r->body(r->ctx, &r->net);
    return NULL;
}

void ranks_run(uint32_t ranks, uint32_t bucket, void (*body)(void *ctx, struct dp_net *net),
               void *ctx) {
    struct world *w = mem_alloc(1, sizeof *w);
    struct rank *r = mem_alloc(ranks, sizeof *r);
    pthread_t threads[RANKS_MAX];
    CHECK(ranks <= RANKS_MAX);
    CHECK(pthread_mutex_init(&w->lock, NULL) == 0);
    CHECK(pthread_cond_init(&w->changed, NULL) == 0);
    w->ranks = ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        r[i] = (struct rank){.w = w, .body = body, .ctx = ctx};
        r[i].net =
            (struct dp_net){i,        ranks,     bucket,       &r[i],      net_bcast, net_allgather,
                            net_send, net_recv,  net_exchange, net_spread, net_swap,  net_done,
                            net_wait, net_abort, net_close};
        CHECK(pthread_create(&threads[i], NULL, rank_main, &r[i]) == 0);
    }
    for (uint32_t i = 0; i < ranks; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_cond_destroy(&w->changed) == 0);
    CHECK(pthread_mutex_destroy(&w->lock) == 0);
    mem_free(r);
    mem_free(w);
}
