/* SPDX-License-Identifier: Apache-2.0 */
/* core_save.c - the core's part of the local checkpoint (S2).
 *
 * Little-endian, field by field: "BRGSITE6" | identity | membership | weights | leases | segment |
 * contributions. What another process start makes anew is not in it: boot, incarnation, requests under
 * way, timers, and samples that were taken but not trained (they are taken again). So is a gradient that was not cut: it
 * lies in the process alone, and its samples are saved as not trained.
 *
 * A loaded contribution may have been committed after the checkpoint was written, so each one is asked
 * for before anything else happens (core_rejoin). The file has a checksum of its own; here only the
 * meaning is checked, against the invariants of core.c. */
#include <string.h>

#include "base/mutant.h"
#include "site/core.h"

/* Layout 1: without theta_seen; 2: without warmup_steps; 3: without residuals; 4: without the hub's
 * seals; 5: without warmup_from. */
static const char magic[8] = {'B', 'R', 'G', 'S', 'I', 'T', 'E', '6'};

static void put_lease(struct buf *b, const struct wire_lease *w) {
    buf_u64(b, w->tok);
    buf_u64(b, w->nonce);
    buf_u32(b, w->epoch);
    buf_u64(b, w->count);
    buf_u32(b, w->ranges_count);
    for (uint32_t i = 0; i < w->ranges_count; i++) {
        buf_u64(b, w->ranges[i].start);
        buf_u64(b, w->ranges[i].count);
    }
}

static void put_skips(struct buf *b, const struct wire_skip *s, uint32_t n) {
    buf_u32(b, n);
    for (uint32_t i = 0; i < n; i++) {
        buf_u64(b, s[i].position);
        buf_str(b, s[i].reason);
    }
}

static void put_delta(struct buf *b, const struct site_delta *d) {
    const struct wire_commit *m = &d->c;
    buf_u32(b, (uint32_t)d->state);
    buf_u64(b, d->known_at);
    buf_u64(b, d->merged);
    buf_put(b, m->did.v, ID_BYTES);
    buf_u64(b, m->base);
    buf_u64(b, m->tokens);
    buf_u64(b, m->steps);
    buf_f64(b, m->lr_sum);
    buf_f64(b, m->loss);
    buf_u64(b, m->elements);
    buf_u64(b, m->bytes);
    buf_u32(b, m->codec);
    buf_put(b, m->blob.v, HASH_BYTES);
    buf_u8(b, m->keep_rest);
    buf_u32(b, m->parts_count);
    for (uint32_t i = 0; i < m->parts_count; i++) {
        buf_u64(b, m->parts[i].tok);
        buf_u64(b, m->parts[i].nonce);
        buf_u64(b, m->parts[i].done);
    }
    put_skips(b, m->skips, m->skips_count);
    buf_u8(b, d->residual);
    buf_put(b, d->residual_before.v, ID_BYTES);
}

void site_save(const struct site_core *c, struct buf *b) {
    buf_put(b, magic, sizeof magic);
    buf_put(b, c->set.run.v, ID_BYTES);
    buf_str(b, c->set.name);
    buf_put(b, c->set.fingerprint.v, HASH_BYTES);
    buf_put(b, c->set.tensors.v, HASH_BYTES);
    buf_u64(b, c->version_seen);
    buf_u32(b, c->term_seen);
    buf_put(b, c->theta_seen.v, HASH_BYTES);
    static const struct hash none;
    buf_put(b, MUTANT(SEALS_NOT_SAVED) ? none.v : c->version_seal.v, HASH_BYTES);
    buf_put(b, MUTANT(SEALS_NOT_SAVED) ? none.v : c->term_seal.v, HASH_BYTES);
    buf_u8(b, c->reset_due);
    buf_u64(b, c->base);
    buf_u64(b, c->base_tokens);
    buf_u64(b, c->steps_total);
    buf_u64(b, c->set.warmup_steps);
    buf_u64(b, c->warmup_from);
    buf_u64(b, c->samples_total);
    buf_u64(b, c->handed_in);
    buf_u64(b, c->merged_count);
    buf_u64(b, c->rejected_count);
    bool unsaved = c->synchronous && !MUTANT(GRADIENT_SAVED);
    uint32_t leases = 0;
    for (uint32_t i = 0; i < c->leases_count; i++) leases += !c->leases[i].give_back;
    buf_u32(b, leases);
    for (uint32_t i = 0; i < c->leases_count; i++) {
        const struct site_lease *l = &c->leases[i];
        if (l->give_back) continue;
        put_lease(b, &l->w);
        buf_u64(b, l->cut);
        buf_u64(b, unsaved ? l->cut : l->done);
        buf_put(b, l->cut_did.v, ID_BYTES);
    }
    static const struct site_segment nothing;
    const struct site_segment *g = unsaved ? &nothing : &c->seg;
    buf_u64(b, g->steps);
    buf_u64(b, g->samples);
    buf_f64(b, g->lr_sum);
    buf_f64(b, g->loss_sum);
    put_skips(b, g->skips, g->skips_count);
    buf_u32(b, c->deltas_count);
    for (uint32_t i = 0; i < c->deltas_count; i++) put_delta(b, &c->deltas[i]);
    buf_put(b, c->residual.v, ID_BYTES);
}

/* ---- Reading ------------------------------------------------------------------------------------ */

static void get_copy(struct reader *r, void *out, size_t n) {
    const void *p = get_bytes(r, n);
    if (p) memcpy(out, p, n);
}

static void get_lease(struct reader *r, struct wire_lease *w) {
    w->tok = get_u64(r);
    w->nonce = get_u64(r);
    w->epoch = get_u32(r);
    w->count = get_u64(r);
    w->ranges_count = get_u32(r);
    if (w->ranges_count > WIRE_RANGES_MAX) r->ok = false;
    uint64_t sum = 0;
    for (uint32_t i = 0; r->ok && i < w->ranges_count; i++) {
        w->ranges[i].start = get_u64(r);
        w->ranges[i].count = get_u64(r);
        if (w->ranges[i].count > w->count - sum) r->ok = false;
        sum += w->ranges[i].count;
    }
    if (sum != w->count) r->ok = false;
}

static uint32_t get_skips(struct reader *r, struct wire_skip *s) {
    uint32_t n = get_u32(r);
    if (n > WIRE_SKIPS_MAX) r->ok = false;
    for (uint32_t i = 0; r->ok && i < n; i++) {
        s[i].position = get_u64(r);
        if (!get_str(r, s[i].reason, sizeof s[i].reason)) r->ok = false;
    }
    return r->ok ? n : 0;
}

static void get_delta(struct reader *r, uint8_t layout, struct site_delta *d) {
    struct wire_commit *m = &d->c;
    uint32_t state = get_u32(r);
    if (state < PENDING_CUT || state > PENDING_FAILED) r->ok = false;
    d->state = (enum site_delta_state)state;
    d->known_at = get_u64(r);
    d->merged = get_u64(r);
    get_copy(r, m->did.v, ID_BYTES);
    m->base = get_u64(r);
    m->tokens = get_u64(r);
    m->steps = get_u64(r);
    m->lr_sum = get_f64(r);
    m->loss = get_f64(r);
    m->elements = get_u64(r);
    m->bytes = get_u64(r);
    m->codec = get_u32(r);
    get_copy(r, m->blob.v, HASH_BYTES);
    m->keep_rest = get_u8(r) != 0;
    m->parts_count = get_u32(r);
    if (m->parts_count > WIRE_PARTS_MAX) r->ok = false;
    for (uint32_t i = 0; r->ok && i < m->parts_count; i++) {
        m->parts[i].tok = get_u64(r);
        m->parts[i].nonce = get_u64(r);
        m->parts[i].done = get_u64(r);
    }
    m->skips_count = get_skips(r, m->skips);
    if (layout > '3') {
        d->residual = get_u8(r) != 0;
        get_copy(r, d->residual_before.v, ID_BYTES);
    }
    d->ask = d->sent = d->state < PENDING_MERGED; /* may have been committed since it was written */
}

static void get_leases(struct reader *r, struct site_core *c) {
    uint32_t n = get_u32(r);
    if (n > WIRE_LEASES_MAX) r->ok = false;
    uint64_t worked = 0;
    bool undone = false;
    for (uint32_t i = 0; r->ok && i < n; i++) {
        struct site_lease *l = &c->leases[c->leases_count++];
        get_lease(r, &l->w);
        l->cut = get_u64(r);
        l->done = l->taken = get_u64(r);
        get_copy(r, l->cut_did.v, ID_BYTES);
        if (l->cut > l->done || l->done > l->w.count || (undone && l->done > 0)) r->ok = false;
        if (l->cut > 0 && i > 0) r->ok = false;
        undone |= l->done < l->w.count;
        worked += l->done - l->cut;
    }
    c->seg.steps = get_u64(r);
    c->seg.samples = get_u64(r);
    c->seg.lr_sum = get_f64(r);
    c->seg.loss_sum = get_f64(r);
    c->seg.skips_count = get_skips(r, c->seg.skips);
    if (worked != c->seg.samples && !c->reset_due) r->ok = false;
}

static enum brg_status identity(struct reader *r, const struct site_core *c, uint8_t *out_layout,
                                struct err *e) {
    const uint8_t *m = get_bytes(r, sizeof magic);
    *out_layout = m ? m[sizeof magic - 1] : 0;
    if (!m || memcmp(m, magic, sizeof magic - 1) != 0 || *out_layout < '1' || *out_layout > '6')
        return err_set(e, BRG_E_CHECKPOINT,
                       "the local checkpoint is of another version of this program");
    struct id128 run = {0};
    struct hash fingerprint = {0}, tensors = {0};
    char name[WIRE_NAME_MAX] = "";
    get_copy(r, run.v, ID_BYTES);
    if (!get_str(r, name, sizeof name)) r->ok = false;
    get_copy(r, fingerprint.v, HASH_BYTES);
    get_copy(r, tensors.v, HASH_BYTES);
    if (!id_equal(&run, &c->set.run))
        return err_set(e, BRG_E_CHECKPOINT, "the local checkpoint is of another run");
    if (strcmp(name, c->set.name) != 0)
        return err_set(e, BRG_E_CHECKPOINT, "the local checkpoint is of site %s", name);
    if (!hash_equal(&fingerprint, &c->set.fingerprint) || !hash_equal(&tensors, &c->set.tensors))
        return err_set(e, BRG_E_CHECKPOINT,
                       "the local checkpoint is of other data or another model");
    return BRG_OK;
}

enum brg_status site_load(struct site_core *c, const void *data, size_t n, struct err *e) {
    struct site_core *t = mem_alloc(1, sizeof *t); /* no partial result on failure */
    *t = *c;
    struct reader r = reader_of(data, n);
    uint8_t layout;
    enum brg_status s = identity(&r, c, &layout, e);
    if (s == BRG_OK) {
        t->version_seen = get_u64(&r);
        t->term_seen = get_u32(&r);
        if (layout > '1') get_copy(&r, t->theta_seen.v, HASH_BYTES);
        if (layout > '4') get_copy(&r, t->version_seal.v, HASH_BYTES);
        if (layout > '4') get_copy(&r, t->term_seal.v, HASH_BYTES);
        t->reset_due = get_u8(&r) != 0;
        t->base = get_u64(&r);
        t->base_tokens = get_u64(&r);
        t->steps_total = get_u64(&r);
        /* Whether there is a local ramp was decided when the first weights came: a resumed site goes on
         * as it began, or its first rates would be others than without the interruption. */
        if (layout > '2')
            t->set.warmup_steps = get_u64(&r);
        else if (t->base_tokens == 0)
            t->set.warmup_steps = 0;
        if (layout > '5') t->warmup_from = get_u64(&r);
        t->samples_total = get_u64(&r);
        t->handed_in = get_u64(&r);
        t->merged_count = get_u64(&r);
        t->rejected_count = get_u64(&r);
        get_leases(&r, t);
        t->deltas_count = get_u32(&r);
        if (t->deltas_count > SITE_PENDING_MAX) r.ok = false;
        for (uint32_t i = 0; r.ok && i < t->deltas_count; i++) get_delta(&r, layout, &t->deltas[i]);
        if (layout > '3') get_copy(&r, t->residual.v, ID_BYTES);
        if (!r.ok || r.p != r.end)
            s = err_set(e, BRG_E_CHECKPOINT, "the local checkpoint contradicts itself");
    }
    if (s == BRG_OK) {
        t->loaded = true;
        t->synchronous = t->base_tokens < t->round.sync_tokens;
        bool other = t->synchronous && t->seg.samples > 0 && !MUTANT(GRADIENT_SAVED);
        if (other) t->reset_due = true; /* a displacement, which no synchronous round takes */
        t->round.head = t->base;        /* until the hub says more */
        if (t->version_seen < t->base) t->version_seen = t->base;
        *c = *t;
    }
    mem_free(t);
    return s;
}
