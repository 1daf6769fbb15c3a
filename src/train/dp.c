/* SPDX-License-Identifier: Apache-2.0 */
/* dp.c - buckets, their parts, and who adds what. See dp.h.
 *
 *   backward --final--> exchange of a bucket under way (a slot) --done--> added up by its owner
 *
 * There are DP_SLOTS slots; where all are taken, the oldest is waited for. Every rank begins the same
 * exchanges in the same order, because where backward stands depends on the model alone.
 * Invariants
 *   (D1) each element has one owner, and the owners' parts make the vector.
 *   (D2) a sum has the order of ranks, so its bits do not depend on who was first. */
#include "train/dp.h"

#include <stdio.h>
#include <string.h>

#include "train/device.h"

/* Small models are cut too, or nothing of the exchange would be hidden behind backward. */
enum { BUCKET_MIN = 1 << 15, BUCKET_MAX = 1 << 20, BUCKETS_WISH = 16, PART_ALIGN = 16 };

/* ---- Small things --------------------------------------------------------------------------------- */

uint32_t dp_rank(const struct dp_net *net) {
    return net ? net->rank : 0;
}

uint32_t dp_ranks(const struct dp_net *net) {
    return net ? net->ranks : 1;
}

double dp_sum(const struct dp_net *net, double x) {
    if (dp_ranks(net) == 1) return x;
    AUTO_FREE double *all = mem_alloc(net->ranks, sizeof *all);
    net->allgather(net->self, &x, all, sizeof x);
    double sum = 0;
    for (uint32_t r = 0; r < net->ranks; r++) sum += all[r];
    return sum;
}

uint32_t dp_or(const struct dp_net *net, uint32_t bits) {
    if (dp_ranks(net) == 1) return bits;
    AUTO_FREE uint32_t *all = mem_alloc(net->ranks, sizeof *all);
    net->allgather(net->self, &bits, all, sizeof bits);
    for (uint32_t r = 0; r < net->ranks; r++) bits |= all[r];
    return bits;
}

enum brg_status dp_agree(const struct dp_net *net, enum brg_status status, struct err *e) {
    if (dp_ranks(net) == 1) return status;
    struct err mine = {.status = status}, *all = mem_alloc(net->ranks, sizeof *all);
    if (status != BRG_OK) memcpy(mine.text, e->text, sizeof mine.text);
    net->allgather(net->self, &mine, all, sizeof mine);
    uint32_t r = 0;
    while (r < net->ranks && all[r].status == BRG_OK) r++;
    if (r < net->ranks) {
        status = all[r].status;
        *e = all[r];
        if (r > 0) err_prefix(e, "rank %u", r);
    }
    mem_free(all);
    return status;
}

uint32_t dp_rows_at(const struct dp_net *net, uint32_t rows, uint32_t rank) {
    return (uint32_t)((uint64_t)rows * rank / dp_ranks(net));
}

/* ---- Parts ---------------------------------------------------------------------------------------- */

static size_t bucket_size(const struct dp_net *net, size_t P) {
    size_t n = net->bucket;
    if (n == 0) {
        n = (P / BUCKETS_WISH / 4096 + 1) * 4096;
        if (n < BUCKET_MIN) n = BUCKET_MIN;
        if (n > BUCKET_MAX) n = BUCKET_MAX;
        /* With many ranks the single message should not become tiny. */
        if (n / net->ranks < BUCKET_MIN / 2) n = (size_t)BUCKET_MIN / 2 * net->ranks;
    }
    return n < P ? n : P;
}

size_t dp_part_at(const struct dp *d, size_t bucket, uint32_t rank) {
    size_t begin = bucket * d->bucket, n = d->P - begin < d->bucket ? d->P - begin : d->bucket;
    if (rank == d->net->ranks) return begin + n;
    return begin + n * rank / d->net->ranks / PART_ALIGN * PART_ALIGN;
}

struct dp *dp_create(const struct dp_net *net, struct device *dev, size_t P) {
    if (dp_ranks(net) == 1) return NULL;
    CHECK(net->rank < net->ranks);
    struct dp *d = mem_alloc(1, sizeof *d);
    d->net = net;
    d->dev = dev;
    d->P = P;
    d->bucket = bucket_size(net, P);
    d->buckets = (P + d->bucket - 1) / d->bucket;
    d->starts = mem_alloc(d->buckets + 1, sizeof *d->starts);
    size_t sum = 0;
    for (size_t b = 0; b < d->buckets; b++) {
        CHECK(dp_part_at(d, b, 0) == b * d->bucket); /* D1 */
        d->starts[b] = d->own;
        d->own += dp_part_at(d, b, net->rank + 1) - dp_part_at(d, b, net->rank);
        sum += dp_part_at(d, b, net->ranks) - dp_part_at(d, b, 0);
    }
    CHECK(sum == P); /* D1 */
    d->starts[d->buckets] = d->own;
    for (int i = 0; i < DP_SLOTS; i++)
        d->slots[i].at = mem_alloc((size_t)net->ranks + 1, sizeof(size_t));
    return d;
}

void dp_destroy(struct dp *d) {
    if (!d) return;
    for (int i = 0; i < DP_SLOTS; i++) mem_free(d->slots[i].at);
    mem_free(d->starts);
    mem_free(d);
}

size_t dp_own(const struct dp *d, uint32_t rank) {
    size_t own = 0;
    for (size_t b = 0; b < d->buckets; b++)
        own += dp_part_at(d, b, rank + 1) - dp_part_at(d, b, rank);
    return own;
}

size_t dp_parts_count(const struct dp *d) {
    size_t part = d->bucket / d->net->ranks + 2 * PART_ALIGN;
    return part * d->net->ranks;
}

/* ---- Gradients ------------------------------------------------------------------------------------ */

/* The owner's sum into its own part of grad: ((rank 0 + rank 1) + rank 2) + ... (D2) */
static void add_up(struct dp *d, struct dp_slot *s) {
    uint32_t me = d->net->rank;
    size_t n = s->at[me + 1] - s->at[me];
    float *own = d->grad + s->at[me], *sum = me == 0 ? own : s->parts;
    CHECK(n * d->net->ranks <= dp_parts_count(d));
    for (uint32_t r = 1; r < d->net->ranks && n > 0; r++)
        d->dev->ops->add(d->dev, sum, r == me ? own : s->parts + r * n, n); /* D2 */
    if (me != 0) memcpy(own, sum, n * sizeof(float));
    s->busy = false;
}

static void bucket_bounds(const struct dp *d, size_t bucket, struct dp_slot *s) {
    for (uint32_t r = 0; r <= d->net->ranks; r++) s->at[r] = dp_part_at(d, bucket, r);
    s->bucket = bucket;
    s->busy = true;
}

static void begin_bucket(struct dp *d, size_t bucket) {
    uint32_t slot = (uint32_t)(bucket % DP_SLOTS);
    struct dp_slot *s = &d->slots[slot];
    if (s->busy) {
        d->net->wait(d->net->self, slot);
        add_up(d, s);
    }
    bucket_bounds(d, bucket, s);
    d->net->exchange(d->net->self, slot, d->grad, s->at, s->parts);
}

void dp_reduce_begin(struct dp *d) {
    for (int i = 0; i < DP_SLOTS; i++) CHECK(!d->slots[i].busy);
    d->left = d->buckets;
}

void dp_reduce_final(void *dp, size_t from) {
    struct dp *d = dp;
    while (d->left > 0 && (d->left - 1) * d->bucket >= from) begin_bucket(d, --d->left);
    for (uint32_t i = 0; i < DP_SLOTS; i++)
        if (d->slots[i].busy && d->net->done(d->net->self, i)) add_up(d, &d->slots[i]);
}

void dp_reduce_finish(struct dp *d) {
    CHECK(d->left == 0);
    for (uint32_t i = 0; i < DP_SLOTS; i++) {
        if (!d->slots[i].busy) continue;
        d->net->wait(d->net->self, i);
        add_up(d, &d->slots[i]);
    }
}

/* ---- Weights -------------------------------------------------------------------------------------- */

void dp_spread(struct dp *d, float *theta, size_t bucket) {
    uint32_t slot = (uint32_t)(bucket % DP_SLOTS);
    struct dp_slot *s = &d->slots[slot];
    if (s->busy) d->net->wait(d->net->self, slot);
    bucket_bounds(d, bucket, s);
    d->net->spread(d->net->self, slot, theta, s->at);
}

void dp_spread_finish(struct dp *d) {
    for (uint32_t i = 0; i < DP_SLOTS; i++) {
        if (d->slots[i].busy) d->net->wait(d->net->self, i);
        d->slots[i].busy = false;
    }
}

void dp_theta_get(const struct dp *d, const float *theta, float *out) {
    for (size_t b = 0; b < d->buckets; b++)
        memcpy(out + d->starts[b], theta + dp_part_at(d, b, d->net->rank),
               (d->starts[b + 1] - d->starts[b]) * sizeof(float));
}

void dp_theta_put(struct dp *d, float *theta, const float *in) {
    for (size_t b = 0; b < d->buckets; b++) {
        memcpy(theta + dp_part_at(d, b, d->net->rank), in + d->starts[b],
               (d->starts[b + 1] - d->starts[b]) * sizeof(float));
        dp_spread(d, theta, b);
    }
    dp_spread_finish(d);
}

/* ---- Moments as one vector ------------------------------------------------------------------------ */

/* One stretch that lies within one owner's part. */
struct stretch {
    size_t at, count;
    uint32_t owner;
    size_t in_part; /* where it begins in the owner's own vector; known to the owner */
};

static struct stretch stretch_at(const struct dp *d, size_t at, size_t end) {
    size_t bucket = at / d->bucket;
    uint32_t r = 0;
    while (dp_part_at(d, bucket, r + 1) <= at) r++;
    size_t stop = dp_part_at(d, bucket, r + 1);
    return (struct stretch){.at = at,
                            .count = (stop < end ? stop : end) - at,
                            .owner = r,
                            .in_part = d->starts[bucket] + at - dp_part_at(d, bucket, r)};
}

void dp_collect(const struct dp *d, const float *part, size_t at, size_t count, float *whole) {
    uint32_t me = d->net->rank;
    for (size_t i = at; i < at + count;) {
        struct stretch s = stretch_at(d, i, at + count);
        if (me == 0 && s.owner == 0)
            memcpy(whole + (s.at - at), part + s.in_part, s.count * sizeof(float));
        else if (me == 0)
            d->net->recv(d->net->self, s.owner, whole + (s.at - at), s.count);
        else if (me == s.owner)
            d->net->send(d->net->self, 0, part + s.in_part, s.count);
        i += s.count;
    }
}

void dp_scatter(const struct dp *d, float *part, size_t at, size_t count, const float *whole) {
    uint32_t me = d->net->rank;
    for (size_t i = at; i < at + count;) {
        struct stretch s = stretch_at(d, i, at + count);
        if (me == 0 && s.owner == 0)
            memcpy(part + s.in_part, whole + (s.at - at), s.count * sizeof(float));
        else if (me == 0)
            d->net->send(d->net->self, s.owner, whole + (s.at - at), s.count);
        else if (me == s.owner)
            d->net->recv(d->net->self, 0, part + s.in_part, s.count);
        i += s.count;
    }
}
