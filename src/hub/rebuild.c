/* SPDX-License-Identifier: Apache-2.0 */
/* rebuild.c - a journal that begins with a checkpoint, when the old one is gone with its disk.
 *
 *   (empty) --REBUILD--> importing --LEDGER ...--> open, at the checkpoint's version --TERM--> serving
 *
 * A checkpoint holds theta, the outer state and the ledger: which positions are in it. That is all a
 * run needs to go on without doing a position twice. What was staged or leased when the hub was lost
 * is not in it, so those positions are AVAILABLE and are trained again; whatever a site still brings
 * of them names leases that this journal never gave, and is rejected whole.
 *
 * The lost hub may have given numbers after the checkpoint was made, and they must not come again:
 * terms (and with them the tokens of leases) and incarnations begin so far above those that the
 * checkpoint knows that no number of restarts in between reaches them. Version numbers are not raised:
 * a site that has seen a later version is proof of a newer checkpoint, and makes the hub hold.
 *
 * Invariant
 *   (H7) after the last LEDGER record the MERGED positions are the checkpoint's, and account for its
 *   tokens; until then no other record is taken. */
#include <string.h>

#include "hub/machine.h"

enum { NUMBERS_AHEAD = 65536 }; /* restarts of a hub, or joins of a site, since the checkpoint */

/* ---- Applying
 * ----------------------------------------------------------------------------------- */

const char *hub_apply_rebuild(struct hub *h, const struct record_rebuild *r, time_ns wall) {
    const char *wrong = hub_opening_misfit(h, &r->open);
    if (wrong) return wrong;
    struct hub_version *v = hub_version_add(h);
    v->v.version = r->version;
    v->v.parent = r->parent;
    v->v.tokens = r->tokens;
    v->v.checkpoint = r->open.checkpoint;
    v->v.theta = r->open.theta;
    v->v.bytes = r->open.checkpoint_bytes;
    v->v.wall = wall;
    v->on_branch = true;
    h->versions_next = r->version + 1;
    h->term = r->term;
    h->inc_floor = r->inc_floor;
    h->import_bytes = r->ledger_bytes;
    h->import_hash = r->ledger;
    h->opened = true;
    return NULL;
}

/* What the bytes of a ledger must be: of this version, this run's positions, and its tokens. */
static const char *ledger_misfit(const struct hub *h, const struct ledger *l, uint64_t of_version,
                                 uint64_t version, uint64_t tokens) {
    uint64_t merged = 0;
    for (uint32_t e = 0; e < ledger_epochs(l); e++) merged += ledger_count(l, e, EXTENT_MERGED);
    if (of_version != version) return "the ledger is of another version than its checkpoint";
    if (ledger_positions(l) != h->s.positions) return "the ledger is of other data";
    if (merged * h->s.seq_len != tokens)
        return "the ledger's positions are not the tokens"; /* H3 */
    return NULL;
}

static const char *ledger_take(struct hub *h, const void *data, size_t n, uint64_t version,
                               uint64_t tokens, struct ledger **out) {
    struct err e;
    uint64_t of_version = 0;
    struct ledger *l = NULL;
    if (ledger_checkpoint_decode(data, n, h->s.epochs, &l, &of_version, &e) != BRG_OK)
        return "the ledger cannot be read";
    const char *wrong = ledger_misfit(h, l, of_version, version, tokens);
    if (wrong) {
        ledger_destroy(l);
        return wrong;
    }
    *out = l;
    return NULL;
}

const char *hub_apply_ledger(struct hub *h, const struct record_ledger *r) {
    if (h->import_bytes == 0 || r->offset != h->import.bytes_count ||
        r->bytes > h->import_bytes - r->offset)
        return "a piece of a ledger that is not the next one";
    buf_put(&h->import, r->data, r->bytes);
    if (h->import.overflow) return "a ledger beyond all bounds";
    if (h->import.bytes_count < h->import_bytes) return NULL;
    struct hash hash = hash_of(h->import.data, h->import.bytes_count);
    if (!hash_equal(&hash, &h->import_hash)) return "a ledger with another hash";
    struct ledger *l = NULL;
    const struct hub_version_view *v = &h->versions[h->head].v;
    const char *wrong =
        ledger_take(h, h->import.data, h->import.bytes_count, v->version, v->tokens, &l); /* H7 */
    if (wrong) return wrong;
    ledger_destroy(h->ledger);
    h->ledger = l;
    h->import_bytes = 0;
    buf_fini(&h->import);
    buf_init(&h->import, 0);
    return NULL;
}

/* ---- Deciding
 * ----------------------------------------------------------------------------------- */

static void emit_ledger(struct hub *h, const uint8_t *data, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += RECORD_LEDGER_MAX) {
        struct hub_record *r = hub_draft(h, RECORD_LEDGER);
        r->u.ledger.offset = at;
        r->u.ledger.bytes = bytes - at < RECORD_LEDGER_MAX ? (uint32_t)(bytes - at)
                                                           : RECORD_LEDGER_MAX;
        r->u.ledger.data = data + at;
        hub_emit(h, r);
    }
}

void hub_rebuild_from(struct hub *h, const struct hub_cmd *c) {
    const uint8_t *data = c->u.rebuild.ledger;
    uint64_t bytes = c->u.rebuild.ledger_bytes;
    struct ledger *l = NULL;
    const char *wrong =
        h->opened || h->seq > 0 ? "the journal has an opening record already"
        : bytes > h->import.bytes_max / 2
            ? "the ledger is larger than a rebuild can take"
            : ledger_take(h, data, bytes, c->u.rebuild.version, c->u.rebuild.tokens, &l);
    ledger_destroy(l);
    hub_operator_answer(h, wrong == NULL, wrong ? wrong : "");
    if (wrong) return;
    struct hub_record *r = hub_draft(h, RECORD_REBUILD);
    r->u.rebuild =
        (struct record_rebuild){.open = hub_open_record(h, &c->u.rebuild.checkpoint,
                                                        &c->u.rebuild.theta, c->u.rebuild.bytes),
                                .version = c->u.rebuild.version,
                                .parent = c->u.rebuild.parent,
                                .tokens = c->u.rebuild.tokens,
                                .term = c->u.rebuild.term + NUMBERS_AHEAD,
                                .inc_floor = c->u.rebuild.term + NUMBERS_AHEAD,
                                .ledger_bytes = bytes,
                                .ledger = hash_of(data, bytes)};
    hub_emit(h, r);
    emit_ledger(h, data, bytes);
    hub_note(h, "lvl=warn ev=rebuilt_from version=%llu tokens=%llu term=%u",
             (unsigned long long)c->u.rebuild.version, (unsigned long long)c->u.rebuild.tokens,
             h->term);
    if (ledger_epochs(h->ledger) > 0) return;
    r = hub_draft(h, RECORD_EPOCH); /* as after OPEN: version 0 has no epoch yet */
    r->u.epoch.epoch = 0;
    r->u.epoch.positions = h->s.positions;
    hub_emit(h, r);
}
