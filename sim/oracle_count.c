/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_count.c - the counting model: what is in the weights is what the records say.
 *
 * Training a position adds 1 to its weight, a contribution is the difference, a merge adds up. So a
 * staged contribution must be -1 at exactly its positions (a contribution is base minus weights), and
 * each version 1 where MERGED and 0 elsewhere. The ledger inside a checkpoint is read by code of its
 * own. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

void count_stage(struct sim *m, const struct model_delta *d) {
    if (d->tokens == 0 || m->folding) return;
    const struct sim_blob *b = blob_find(m, &d->blob);
    if (b == NULL || !b->present)
        sim_fail(m, "I11: record %llu stages a contribution without its bytes",
                 (unsigned long long)m->model.seq);
    float want[SIM_WEIGHTS] = {0};
    for (uint32_t i = 0; i < d->count; i++)
        if (!d->skip[i]) want[d->at[i]] = -1;
    for (uint64_t i = 0; i < m->w.weights; i++) {
        if (b->d[i] == want[i]) continue;
        sim_fail(m,
                 "S3: record %llu: the contribution has %g at epoch %llu position %llu, its "
                 "manifest says %g",
                 (unsigned long long)m->model.seq, (double)-b->d[i],
                 (unsigned long long)(i / m->w.positions), (unsigned long long)(i % m->w.positions),
                 (double)-want[i]);
    }
}

static void theta_check(struct sim *m, const struct sim_blob *b) {
    const struct model *o = &m->model;
    for (uint64_t i = 0; i < m->w.weights; i++) {
        float want = o->state[i] == EXTENT_MERGED ? 1 : 0;
        if (b->theta[i] == want) continue;
        sim_fail(m, "I5: version %llu has %g at epoch %llu position %llu, the records say %g",
                 (unsigned long long)o->versions[o->head].version, (double)b->theta[i],
                 (unsigned long long)(i / m->w.positions), (unsigned long long)(i % m->w.positions),
                 (double)want);
    }
}

/* ---- The ledger's bytes: section 6 of docs/journal.md -------------------------------------------------- */

static uint64_t varint(struct sim *m, struct reader *r) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b = get_u8(r);
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
    sim_fail(m, "I5: a number in a checkpoint's ledger is too long");
}

static uint8_t run_state(uint8_t state) {
    return state == EXTENT_MERGED ? 1 : state == EXTENT_SKIPPED ? 2 : 0;
}

static void ledger_run(struct sim *m, struct reader *r, uint32_t epoch, uint64_t *at) {
    const struct model *o = &m->model;
    uint8_t state = get_u8(r);
    uint64_t count = varint(m, r), version = 0;
    if (state > 0) version = varint(m, r);
    if (state == 2) (void)get_bytes(r, get_u8(r));
    if (!r->ok || count == 0 || count > m->w.positions - *at)
        sim_fail(m, "I5: a checkpoint's ledger is damaged");
    for (uint64_t i = 0; i < count; i++, ++*at) {
        uint64_t x = epoch * m->w.positions + *at;
        if (run_state(o->state[x]) != state || (state > 0 && o->owner[x] != version))
            sim_fail(
                m,
                "I5: the ledger in version %llu says %d for epoch %u position %llu, the records %d",
                (unsigned long long)o->versions[o->head].version, state, epoch,
                (unsigned long long)*at, o->state[x]);
    }
}

static void ledger_compare(struct sim *m, const struct sim_blob *b) {
    const struct model *o = &m->model;
    struct reader r = reader_of(b->ledger, b->ledger_bytes);
    const void *magic = get_bytes(&r, 8);
    if (magic == NULL || memcmp(magic, "BRGLEDG1", 8) != 0)
        sim_fail(m, "I5: a checkpoint without a ledger");
    uint64_t version = varint(m, &r), epochs = varint(m, &r), positions = varint(m, &r);
    if (version != o->versions[o->head].version || epochs != o->epochs ||
        positions != m->w.positions)
        sim_fail(m, "I5: the ledger in a checkpoint is of another version");
    for (uint32_t e = 0; e < epochs; e++) {
        (void)varint(m, &r);
        for (uint64_t at = 0; at < positions;) ledger_run(m, &r, e, &at);
    }
    if (!r.ok || r.p != r.end) sim_fail(m, "I5: the ledger in a checkpoint is damaged");
}

/* ---- Versions --------------------------------------------------------------------------------------------- */

void count_merge(struct sim *m, const struct record_merge *r) {
    const struct sim_blob *b = blob_find(m, &r->checkpoint);
    struct hash theta = r->theta;
    if (m->folding) return;
    if (b == NULL || !b->present)
        sim_fail(m, "I11: version %llu has no checkpoint", (unsigned long long)r->version);
    if (!hash_equal(&b->theta_hash, &theta))
        sim_fail(m, "I11: a record names other weights than the file");
    struct hash ledger = hash_of(b->ledger, b->ledger_bytes);
    if (!hash_equal(&ledger, &r->ledger))
        sim_fail(m, "I5: a record names another ledger than the file");
    theta_check(m, b);
    ledger_compare(m, b);
}

void count_head(struct sim *m) {
    const struct model *o = &m->model;
    const struct sim_blob *b = blob_find(m, &o->versions[o->head].checkpoint);
    if (m->folding) return;
    if (b == NULL) sim_fail(m, "I11: the head has no checkpoint");
    theta_check(m, b);
}

/* I11: what is staged, and the head, can be read now. */
void count_blobs(struct sim *m) {
    const struct model *o = &m->model;
    for (uint32_t i = 0; i < o->deltas_count; i++) {
        if (o->deltas[i].state != MODEL_STAGED || o->deltas[i].tokens == 0) continue;
        const struct sim_blob *b = blob_find(m, &o->deltas[i].blob);
        if (b == NULL || !b->present) sim_fail(m, "I11: a staged contribution has no bytes");
    }
    const struct sim_blob *b = blob_find(m, &o->versions[o->head].checkpoint);
    if (b == NULL || !b->present) sim_fail(m, "I11: the head has no checkpoint");
}
