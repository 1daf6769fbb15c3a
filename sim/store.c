/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the hub's disk: the journal as bytes, snapshots, blobs, arriving parts; backups of it.
 *
 * Stands for src/store: a transaction is whole or absent, a blob has its name only when all of it is
 * durable. What a disk does wrong (flipped bits, no space, a failed sync) is drawn by the callers. */
#include <stdio.h>
#include <string.h>

#include "sim/sim.h"

/* Stands for SHA-256 where the simulator itself names bytes; cheap, and as good against accidents. */
struct hash sim_hash(const void *data, size_t n, uint64_t salt) {
    struct checksum c;
    checksum_init(&c);
    checksum_update(&c, data, n);
    uint64_t sum = checksum_final(&c) ^ mix64(salt + n);
    struct hash h;
    for (int i = 0; i < 4; i++) put_le64(h.v + 8 * i, mix64(sum + (uint64_t)i));
    return h;
}

/* ---- Blobs ------------------------------------------------------------------------------------------ */

struct sim_blob *blob_find(struct sim *m, const struct hash *h) {
    for (uint32_t i = m->blobs_count; i-- > 0;)
        if (hash_equal(&m->blob[i].hash, h)) return &m->blob[i];
    return NULL;
}

struct sim_blob *blob_add(struct sim *m, enum sim_blob_kind kind) {
    if (m->blobs_count == SIM_BLOBS) sim_fail(m, "too many blobs");
    struct sim_blob *b = &m->blob[m->blobs_count++];
    memset(b, 0, sizeof *b);
    b->kind = (uint8_t)kind;
    b->born = m->journal.last_seq;
    return b;
}

struct sim_part *part_find(struct sim *m, const struct id128 *did) {
    for (uint32_t i = 0; i < m->parts_count; i++)
        if (id_equal(&m->part[i].did, did)) return &m->part[i];
    return NULL;
}

struct sim_part *part_get(struct sim *m, const struct id128 *did) {
    struct sim_part *p = part_find(m, did);
    if (p != NULL) return p;
    if (m->parts_count == ARRAY_COUNT(m->part)) part_drop(m, &m->part[0]);
    p = &m->part[m->parts_count++];
    *p = (struct sim_part){.did = *did};
    return p;
}

void part_drop(struct sim *m, struct sim_part *p) {
    *p = m->part[--m->parts_count];
}

struct sim_delta *delta_of(struct sim *m, const struct id128 *did) {
    for (uint32_t i = m->deltas_count; i-- > 0;)
        if (id_equal(&m->delta[i].did, did)) return &m->delta[i];
    return NULL;
}

/* ---- The journal -------------------------------------------------------------------------------------- */

void journal_reset(struct sim_journal *j) {
    if (j->bytes.bytes_max == 0) {
        buf_init(&j->bytes, 64 << 20);
        buf_init(&j->snapshot.data, 64 << 20);
    }
    buf_reset(&j->bytes);
    buf_reset(&j->snapshot.data);
    j->last_seq = j->snapshot.seq = 0;
    j->snapshot.damaged = false;
    j->offset[0] = 0;
}

void journal_copy(struct sim_journal *to, const struct sim_journal *from) {
    journal_reset(to);
    buf_put(&to->bytes, from->bytes.data, from->bytes.bytes_count);
    if (from->snapshot.seq > 0)
        buf_put(&to->snapshot.data, from->snapshot.data.data, from->snapshot.data.bytes_count);
    to->snapshot.seq = from->snapshot.seq;
    to->snapshot.damaged = from->snapshot.damaged;
    to->last_seq = from->last_seq;
    memcpy(to->offset, from->offset, (from->last_seq + 1) * sizeof *to->offset);
}

void journal_cut(struct sim_journal *j, uint64_t seq) {
    j->last_seq = seq;
    j->bytes.bytes_count = j->offset[seq];
    if (j->snapshot.seq > seq) j->snapshot.seq = 0;
}

void journal_put(struct sim *m, const struct buf *framed, uint32_t count) {
    struct sim_journal *j = &m->journal;
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (j->last_seq == SIM_RECORDS) sim_fail(m, "too many records");
        at += 6 + get_le32(framed->data + at + 2);
        j->last_seq++;
        j->offset[j->last_seq] = (uint32_t)(j->bytes.bytes_count + at);
    }
    CHECK(at == framed->bytes_count);
    buf_put(&j->bytes, framed->data, framed->bytes_count);
    model_records(m, framed->data, framed->bytes_count, count);
}

/* ---- Backups -------------------------------------------------------------------------------------------- */

static void refold(struct sim *m) {
    m->folding = true;
    model_reset(m);
    model_records(m, m->journal.bytes.data, m->journal.bytes.bytes_count,
                  (uint32_t)m->journal.last_seq);
    m->folding = false;
}

void store_backup(struct sim *m) {
    m->has_backup = true;
    m->backup_seq = m->journal.last_seq;
}

/* The disk is lost; an old copy takes its place. What was lost may turn up later. */
void store_restore_old(struct sim *m) {
    journal_copy(&m->newer, &m->journal);
    m->has_newer = true;
    journal_cut(&m->journal, m->backup_seq);
    for (uint32_t i = 0; i < m->blobs_count; i++)
        if (m->blob[i].born > m->backup_seq) m->blob[i].present = false;
    m->parts_count = 0;
    m->has_backup = false;
    m->restores++;
    for (uint32_t i = 0; i < m->deltas_count; i++) m->delta[i].restored_away = true;
    refold(m);
    /* A copy is made while checkpoints come and go: those of its own head are in it. */
    for (uint32_t i = 0; i < m->model.versions_count; i++) {
        struct sim_blob *b = blob_find(m, &m->model.versions[i].checkpoint);
        if (b != NULL && b->born <= m->backup_seq) b->present = true;
    }
    for (uint32_t i = 0; i < m->model.deltas_count; i++) {
        struct sim_blob *b = blob_find(m, &m->model.deltas[i].blob);
        if (b != NULL && m->model.deltas[i].state == MODEL_STAGED) b->present = true;
    }
}

void store_load_newer(struct sim *m) {
    journal_copy(&m->journal, &m->newer);
    m->has_newer = false;
    m->has_backup = false;
    m->parts_count = 0;
    for (uint32_t i = 0; i < m->deltas_count; i++) m->delta[i].restored_away = true;
    refold(m);
    for (uint32_t i = 0; i < m->model.versions_count; i++) {
        struct sim_blob *b = blob_find(m, &m->model.versions[i].checkpoint);
        if (b != NULL) b->present = true;
    }
    for (uint32_t i = 0; i < m->model.deltas_count; i++) {
        struct sim_blob *b = blob_find(m, &m->model.deltas[i].blob);
        if (b != NULL && m->model.deltas[i].state == MODEL_STAGED) b->present = true;
    }
}
