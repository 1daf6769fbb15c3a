/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - the journal's records to bytes and back.
 *
 * One function a kind describes its layout for both directions: a coder either puts a field or
 * gets it.
 * So an encoder and its decoder cannot drift apart, and docs/journal.md has one place to agree
 * with.
 * What is valid in itself (counts, flags, names) is checked here; what depends on the state (is
 * this lease active?) is checked where the record is applied.
 *
 * Invariants
 *   (R1) decode(encode(r)) = r, and encode(decode(b)) = b: a record has one form. */
#include "hub/record.h"

#include <math.h>
#include <string.h>

struct coder {
    struct buf *out;   /* encoding, or NULL */
    struct reader in;  /* decoding */
    const char *wrong; /* first field that is not valid in itself */
};

static void bad(struct coder *c, const char *field) {
    if (!c->wrong) c->wrong = field;
}

static void code_u8(struct coder *c, uint8_t *v) {
    if (c->out)
        buf_u8(c->out, *v);
    else
        *v = get_u8(&c->in);
}

static void code_u32(struct coder *c, uint32_t *v) {
    if (c->out)
        buf_u32(c->out, *v);
    else
        *v = get_u32(&c->in);
}

static void code_u64(struct coder *c, uint64_t *v) {
    if (c->out)
        buf_u64(c->out, *v);
    else
        *v = get_u64(&c->in);
}

static void code_f64(struct coder *c, double *v) {
    if (c->out)
        buf_f64(c->out, *v);
    else
        *v = get_f64(&c->in);
}

static void code_bytes(struct coder *c, uint8_t *v, size_t n) {
    if (c->out) {
        buf_put(c->out, v, n);
        return;
    }
    const void *p = get_bytes(&c->in, n);
    if (p) memcpy(v, p, n);
}

static void code_id(struct coder *c, struct id128 *v) {
    code_bytes(c, v->v, ID_BYTES);
}

static void code_hash(struct coder *c, struct hash *v) {
    code_bytes(c, v->v, HASH_BYTES);
}

static void code_text(struct coder *c, char *v, size_t cap, const char *field) {
    if (c->out) {
        buf_str(c->out, v);
        return;
    }
    if (!get_str(&c->in, v, cap)) bad(c, field);
}

static void code_flag(struct coder *c, bool *v, const char *field) {
    uint8_t b = *v;
    code_u8(c, &b);
    if (b > 1) bad(c, field);
    *v = b == 1;
}

/* A count with its maximum; 0 where it is too large, so that no loop runs over it. */
static void code_count(struct coder *c, uint32_t *v, uint32_t max, const char *field) {
    code_u32(c, v);
    if (*v <= max) return;
    bad(c, field);
    *v = 0;
}

static void code_toks(struct coder *c, uint32_t *count, uint64_t *toks, uint32_t max,
                      const char *field) {
    code_count(c, count, max, field);
    for (uint32_t i = 0; i < *count; i++) code_u64(c, &toks[i]);
}

/* ---- One function a kind
 * ------------------------------------------------------------------------ */

static void code_open(struct coder *c, struct record_open *r) {
    if (c->out)
        buf_u16(c->out, r->layout);
    else
        r->layout = get_u16(&c->in);
    if (r->layout != RECORD_LAYOUT) bad(c, "layout");
    code_id(c, &r->run);
    code_hash(c, &r->fingerprint);
    code_hash(c, &r->tensors);
    code_u64(c, &r->parameters);
    code_u64(c, &r->positions);
    code_u32(c, &r->seq_len);
    code_u32(c, &r->epochs);
    code_u64(c, &r->order_seed);
    code_hash(c, &r->checkpoint);
    code_hash(c, &r->theta);
    code_u64(c, &r->checkpoint_bytes);
    if (r->positions == 0 || r->seq_len == 0 || r->epochs == 0) bad(c, "positions");
}

static void code_join(struct coder *c, struct record_join *r) {
    code_u32(c, &r->site);
    code_u32(c, &r->inc);
    code_text(c, r->name, sizeof r->name, "name");
    code_id(c, &r->boot);
    code_u32(c, &r->crashes_max);
    code_toks(c, &r->kept_count, r->kept, WIRE_LEASES_MAX, "kept");
    code_toks(c, &r->fenced_count, r->fenced, WIRE_LEASES_MAX, "fenced");
}

static void code_grant(struct coder *c, struct record_grant *r) {
    code_u64(c, &r->tok);
    code_u64(c, &r->nonce);
    code_u32(c, &r->site);
    code_u32(c, &r->inc);
    code_u32(c, &r->epoch);
    code_u64(c, &r->req);
    code_count(c, &r->ranges_count, WIRE_RANGES_MAX, "ranges");
    if (r->ranges_count == 0) bad(c, "ranges");
    for (uint32_t i = 0; i < r->ranges_count; i++) {
        code_u64(c, &r->ranges[i].start);
        code_u64(c, &r->ranges[i].count);
    }
}

static void code_reclaim(struct coder *c, struct record_reclaim *r) {
    uint8_t reason = (uint8_t)r->reason;
    code_u64(c, &r->tok);
    code_u8(c, &reason);
    code_u64(c, &r->keep);
    code_u32(c, &r->crashes_max);
    if (reason < RECLAIM_LAPSED || reason > RECLAIM_SHRUNK) bad(c, "reason");
    if ((reason == RECLAIM_SHRUNK) != (r->keep > 0)) bad(c, "keep");
    if (reason != RECLAIM_LAPSED && r->crashes_max != 0) bad(c, "crashes_max");
    r->reason = (enum reclaim_reason)reason;
}

static void code_stage(struct coder *c, struct record_stage *r) {
    code_id(c, &r->did);
    code_u32(c, &r->site);
    code_u32(c, &r->inc);
    code_u64(c, &r->base);
    code_u64(c, &r->tokens);
    code_u64(c, &r->steps);
    code_f64(c, &r->lr_sum);
    code_f64(c, &r->loss);
    code_f64(c, &r->norm);
    code_f64(c, &r->max_abs);
    code_f64(c, &r->cos_m);
    code_u32(c, &r->codec);
    code_u64(c, &r->elements);
    code_u64(c, &r->bytes);
    code_hash(c, &r->blob);
    code_count(c, &r->parts_count, WIRE_PARTS_MAX, "parts");
    if (r->parts_count == 0) bad(c, "parts");
    for (uint32_t i = 0; i < r->parts_count; i++) {
        code_u64(c, &r->parts[i].tok);
        code_u64(c, &r->parts[i].nonce);
        code_u64(c, &r->parts[i].done);
    }
    code_count(c, &r->skips_count, WIRE_SKIPS_MAX, "skips");
    for (uint32_t i = 0; i < r->skips_count; i++) {
        code_u32(c, &r->skips[i].epoch);
        code_u64(c, &r->skips[i].position);
        code_text(c, r->skips[i].reason, sizeof r->skips[i].reason, "skip reason");
    }
    code_flag(c, &r->has_rest, "has_rest");
    if (!r->has_rest) return;
    code_u64(c, &r->rest_tok);
    code_u64(c, &r->rest_nonce);
}

static void code_reject(struct coder *c, struct record_reject *r) {
    code_id(c, &r->did);
    code_u32(c, &r->site);
    code_u32(c, &r->inc);
    code_u64(c, &r->base);
    code_u64(c, &r->tokens);
    code_u64(c, &r->steps);
    code_u64(c, &r->bytes);
    code_hash(c, &r->blob);
    code_hash(c, &r->manifest);
    code_text(c, r->reason, sizeof r->reason, "reason");
    code_toks(c, &r->freed_count, r->freed, WIRE_PARTS_MAX, "freed");
}

static void code_merge(struct coder *c, struct record_merge *r) {
    code_u64(c, &r->version);
    code_u64(c, &r->parent);
    code_hash(c, &r->checkpoint);
    code_hash(c, &r->theta);
    code_u64(c, &r->checkpoint_bytes);
    code_u64(c, &r->tokens_after);
    double *scalars[] = {&r->eta_r, &r->mu_r, &r->kappa_r,      &r->phi,
                         &r->meff,  &r->sbar, &r->tokens_fresh, &r->tokens_late};
    for (size_t i = 0; i < ARRAY_COUNT(scalars); i++) code_f64(c, scalars[i]);
    code_hash(c, &r->ledger);
    code_count(c, &r->parts_count, RECORD_MERGE_PARTS_MAX, "parts");
    if (!c->out) {
        enum { PART_BYTES = ID_BYTES + 8 + 1 };
        if ((size_t)(c->in.end - c->in.p) != (size_t)r->parts_count * PART_BYTES) {
            bad(c, "parts");
            r->parts_count = 0;
        }
        r->parts = r->parts_count > 0 ? mem_alloc(r->parts_count, sizeof *r->parts) : NULL;
    }
    for (uint32_t i = 0; i < r->parts_count; i++) {
        code_id(c, &r->parts[i].did);
        code_f64(c, &r->parts[i].weight);
        code_flag(c, &r->parts[i].late, "late");
    }
}

static void code_step(struct coder *c, struct record_step *r) {
    code_u64(c, &r->version);
    code_flag(c, &r->radial, "radial");
    code_flag(c, &r->keeps_ema, "keeps_ema");
    code_f64(c, &r->ema);
    code_f64(c, &r->cos_mean);
    code_count(c, &r->sites_count, RECORD_STEP_SITES_MAX, "sites");
    for (uint32_t i = 0; i < r->sites_count; i++) {
        code_u32(c, &r->sites[i].site);
        code_f64(c, &r->sites[i].cos);
        if (!(fabs(r->sites[i].cos) <= 1)) bad(c, "cosine");
    }
    if (!(r->ema >= 0 && r->ema <= 1) || (!r->keeps_ema && r->ema > 0)) bad(c, "ema");
    if (!(fabs(r->cos_mean) <= 1)) bad(c, "cosine");
}

static void code_sync(struct coder *c, struct record_sync *r) {
    double *const scalars[] = {&r->lr,           &r->beta1, &r->beta2, &r->eps,
                               &r->weight_decay, &r->clip,  &r->bias1, &r->bias2};
    code_u64(c, &r->version);
    code_u64(c, &r->step);
    code_flag(c, &r->counts, "counts");
    for (size_t i = 0; i < ARRAY_COUNT(scalars); i++) {
        code_f64(c, scalars[i]);
        if (!(*scalars[i] >= 0) || !isfinite(*scalars[i])) bad(c, "scalar");
        if (r->counts && *scalars[i] > 0) bad(c, "counts");
    }
    if (r->step == 0) bad(c, "step");
}

static void code_eval(struct coder *c, struct record_eval *r) {
    code_u64(c, &r->version);
    code_f64(c, &r->loss);
    code_flag(c, &r->back, "back");
    code_u64(c, &r->to);
    if (!(r->loss > 0) || !isfinite(r->loss)) bad(c, "loss");
    if (!r->back && r->to != 0) bad(c, "to");
}

static void code_parent(struct coder *c, struct record_parent *r) {
    code_u64(c, &r->version);
    code_u64(c, &r->from);
    code_hash(c, &r->blob);
    code_u64(c, &r->bytes);
    bool back = r->bytes == 0;
    if (back ? r->version != r->from : r->version <= r->from) bad(c, "version");
    if (hash_is_zero(&r->blob) != back) bad(c, "blob");
}

static void code_leave(struct coder *c, struct record_leave *r) {
    code_u32(c, &r->site);
    code_u32(c, &r->inc);
    code_toks(c, &r->toks_count, r->toks, WIRE_LEASES_MAX, "toks");
}

static void code_quarantine(struct coder *c, struct record_quarantine *r) {
    code_u32(c, &r->epoch);
    code_u64(c, &r->range.start);
    code_u64(c, &r->range.count);
    code_flag(c, &r->skip, "skip");
    code_text(c, r->reason, sizeof r->reason, "reason");
}

static void code_rebuild(struct coder *c, struct record_rebuild *r) {
    code_open(c, &r->open);
    code_u64(c, &r->version);
    code_u64(c, &r->parent);
    code_u64(c, &r->tokens);
    code_u32(c, &r->term);
    code_u32(c, &r->inc_floor);
    code_u64(c, &r->ledger_bytes);
    code_hash(c, &r->ledger);
    if (r->ledger_bytes == 0) bad(c, "ledger_bytes");
}

static void code_ledger(struct coder *c, struct record_ledger *r) {
    code_u64(c, &r->offset);
    code_count(c, &r->bytes, RECORD_LEDGER_MAX, "bytes");
    if (r->bytes == 0) bad(c, "bytes");
    if (c->out)
        buf_put(c->out, r->data, r->bytes);
    else
        r->data = get_bytes(&c->in, r->bytes);
}

static void code_item(struct coder *c, struct wire_item *i) {
    uint8_t kind = (uint8_t)i->kind;
    code_u64(c, &i->n);
    code_u8(c, &kind);
    if (kind < ITEM_SHAPE || kind > ITEM_BUDGET) bad(c, "kind of an item");
    i->kind = (enum wire_item_kind)kind;
    code_u64(c, &i->at);
    code_text(c, i->shape, sizeof i->shape, "shape");
    code_u64(c, &i->order);
    code_u64(c, &i->job);
    code_u64(c, &i->id);
    code_text(c, i->word, sizeof i->word, "word");
    uint64_t *const numbers[] = {&i->nodes, &i->seconds, &i->gpus,   &i->submit,
                                 &i->start, &i->end,     &i->took_ms};
    for (size_t k = 0; k < ARRAY_COUNT(numbers); k++) code_u64(c, numbers[k]);
    code_text(c, i->why, sizeof i->why, "why");
}

static void code_report(struct coder *c, struct record_report *r) {
    code_text(c, r->site, sizeof r->site, "site");
    code_count(c, &r->items_count, WIRE_ITEMS_MAX, "items");
    for (uint32_t i = 0; i < r->items_count; i++) code_item(c, &r->items[i]);
}

static void code_order(struct coder *c, struct record_order *r) {
    code_u64(c, &r->id);
    code_text(c, r->site, sizeof r->site, "site");
    code_text(c, r->shape, sizeof r->shape, "shape");
    code_u32(c, &r->jobs);
    code_flag(c, &r->cancel, "cancel");
}

static void code_small(struct coder *c, struct hub_record *r) {
    switch (r->kind) {
    case RECORD_TERM: code_u32(c, &r->u.term.term); return;
    case RECORD_DOWN:
        code_u32(c, &r->u.down.codec);
        if (r->u.down.codec > 5) bad(c, "codec"); /* enum codec, or 0 */
        return;
    case RECORD_EPOCH:
        code_u32(c, &r->u.epoch.epoch);
        code_u64(c, &r->u.epoch.positions);
        return;
    case RECORD_DISCARD:
        code_id(c, &r->u.discard.did);
        code_text(c, r->u.discard.reason, sizeof r->u.discard.reason, "reason");
        return;
    case RECORD_SEAL:
        code_u32(c, &r->u.seal.epoch);
        code_u64(c, &r->u.seal.merged);
        code_u64(c, &r->u.seal.skipped);
        code_hash(c, &r->u.seal.digest);
        return;
    case RECORD_ROLLBACK:
        code_u64(c, &r->u.rollback.version);
        code_u64(c, &r->u.rollback.versions_next);
        code_u32(c, &r->u.rollback.term);
        return;
    case RECORD_HOLD:
        code_u32(c, &r->u.hold.site);
        code_text(c, r->u.hold.name, sizeof r->u.hold.name, "name");
        code_u64(c, &r->u.hold.version_seen);
        code_u32(c, &r->u.hold.term_seen);
        return;
    default: bad(c, "kind");
    }
}

static void code_record(struct coder *c, struct hub_record *r) {
    uint64_t wall = (uint64_t)r->wall;
    code_u64(c, &wall);
    r->wall = (time_ns)wall;
    switch (r->kind) {
    case RECORD_OPEN: code_open(c, &r->u.open); return;
    case RECORD_JOIN: code_join(c, &r->u.join); return;
    case RECORD_GRANT: code_grant(c, &r->u.grant); return;
    case RECORD_RECLAIM: code_reclaim(c, &r->u.reclaim); return;
    case RECORD_STAGE: code_stage(c, &r->u.stage); return;
    case RECORD_REJECT: code_reject(c, &r->u.reject); return;
    case RECORD_MERGE: code_merge(c, &r->u.merge); return;
    case RECORD_STEP: code_step(c, &r->u.step); return;
    case RECORD_SYNC: code_sync(c, &r->u.sync); return;
    case RECORD_EVAL: code_eval(c, &r->u.eval); return;
    case RECORD_PARENT: code_parent(c, &r->u.parent); return;
    case RECORD_LEAVE: code_leave(c, &r->u.leave); return;
    case RECORD_QUARANTINE: code_quarantine(c, &r->u.quarantine); return;
    case RECORD_REBUILD: code_rebuild(c, &r->u.rebuild); return;
    case RECORD_LEDGER: code_ledger(c, &r->u.ledger); return;
    case RECORD_REPORT: code_report(c, &r->u.report); return;
    case RECORD_ORDER: code_order(c, &r->u.order); return;
    default: code_small(c, r);
    }
}

/* ---- Face
 * --------------------------------------------------------------------------------------- */

const char *record_kind_name(uint16_t kind) {
    static const char *const names[] = {
        [RECORD_OPEN] = "open",         [RECORD_TERM] = "term",
        [RECORD_JOIN] = "join",         [RECORD_EPOCH] = "epoch",
        [RECORD_GRANT] = "grant",       [RECORD_RECLAIM] = "reclaim",
        [RECORD_STAGE] = "stage",       [RECORD_REJECT] = "reject",
        [RECORD_DISCARD] = "discard",   [RECORD_MERGE] = "merge",
        [RECORD_SEAL] = "seal",         [RECORD_LEAVE] = "leave",
        [RECORD_ROLLBACK] = "rollback", [RECORD_QUARANTINE] = "quarantine",
        [RECORD_HOLD] = "hold",         [RECORD_REBUILD] = "rebuild",
        [RECORD_LEDGER] = "ledger",     [RECORD_REPORT] = "report",
        [RECORD_ORDER] = "order",       [RECORD_DOWN] = "down",
        [RECORD_STEP] = "step",         [RECORD_EVAL] = "eval",
        [RECORD_SYNC] = "sync",         [RECORD_PARENT] = "parent",
    };
    return kind < ARRAY_COUNT(names) && names[kind] ? names[kind] : "unknown";
}

void hub_record_encode(struct hub_record *r, struct buf *out) {
    struct coder c = {.out = out};
    code_record(&c, r);
    CHECK(c.wrong == NULL); /* R1: we write only what we would read */
}

enum brg_status hub_record_decode(uint16_t kind, const void *body, size_t n, struct hub_record *out,
                                  struct err *e) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    struct coder c = {.in = reader_of(body, n)};
    code_record(&c, out);
    if (!c.wrong && !c.in.ok) c.wrong = "length";
    if (!c.wrong && c.in.p != c.in.end) c.wrong = "bytes after the end";
    if (!c.wrong) return BRG_OK;
    hub_record_fini(out);
    return err_set(e, BRG_E_JOURNAL,
                   "a record of kind %s (%u) has a bad field: %s; the journal is "
                   "damaged, restore it from a backup",
                   record_kind_name(kind), kind, c.wrong);
}

void hub_record_fini(struct hub_record *r) {
    if (r->kind != RECORD_MERGE) return;
    mem_free(r->u.merge.parts);
    r->u.merge.parts = NULL;
    r->u.merge.parts_count = 0;
}
