/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c - the ledger as bytes, in two forms.
 *
 * For a checkpoint (docs/journal.md, section 6): only what the model contains, as runs of MERGED
 * and
 * SKIPPED with their versions, a handful of bytes each. Whoever holds a checkpoint knows which
 * samples are in it, and a hub that lost everything can start again from one.
 *
 * For a snapshot of the hub's state: everything durable, in one order (epochs by position, leases
 * by tok, deltas by age), so that equal states give equal bytes. This form is the hub's own; it
 * carries no promise between versions of the program: the journal does.
 *
 * Both decoders take the bytes as they come from outside: counts are bounded by what is left, and
 * what was decoded must fit together (leases and their extents, deltas and theirs), else nothing
 * is given. */
#include "lease/inner.h"

#include <string.h>

static const char magic[8] = {'B', 'R', 'G', 'L', 'E', 'D', 'G', '1'};
enum { RUN_OPEN = 0, RUN_MERGED = 1, RUN_SKIPPED = 2 };

/* ---- Varints
 * ------------------------------------------------------------------------------------ */

static void varint_put(struct buf *b, uint64_t v) {
    while (v >= 0x80) {
        buf_u8(b, (uint8_t)(v | 0x80));
        v >>= 7;
    }
    buf_u8(b, (uint8_t)v);
}

static uint64_t varint_get(struct reader *r) {
    uint64_t v = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
        uint8_t byte = get_u8(r);
        if (shift == 63 && byte > 1) break;
        v |= (uint64_t)(byte & 0x7F) << shift;
        if (byte & 0x80) continue;
        if (byte == 0 && shift > 0) break; /* not the shortest form */
        return v;
    }
    r->ok = false;
    return 0;
}

/* ---- Checkpoint form
 * ---------------------------------------------------------------------------- */

struct run {
    uint8_t kind;
    uint32_t reason;
    uint64_t count, version;
};

static void run_put(const struct ledger *l, const struct run *run, struct buf *out) {
    if (run->count == 0) return;
    buf_u8(out, run->kind);
    varint_put(out, run->count);
    if (run->kind != RUN_OPEN) varint_put(out, run->version);
    if (run->kind != RUN_SKIPPED) return;
    size_t n = strlen(l->reasons[run->reason]);
    buf_u8(out, (uint8_t)n);
    buf_put(out, l->reasons[run->reason], n);
}

static uint64_t *planned_serials(const struct ledger *l, size_t *out_count) {
    uint64_t *serials = mem_alloc((size_t)l->staged.count + 1, sizeof *serials);
    size_t n = 0;
    for (const struct delta *d = l->staged.first; d; d = d->list_next)
        if (d->live->planned) serials[n++] = d->serial; /* ascending: in order of staging */
    *out_count = n;
    return serials;
}

static bool serial_in(const uint64_t *serials, size_t count, uint64_t serial) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (serials[mid] == serial) return true;
        if (serials[mid] < serial)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

void ledger_runs_encode(const struct ledger *l, uint32_t epoch, uint64_t planned_version,
                        struct buf *out) {
    size_t planned_count = 0;
    AUTO_FREE uint64_t *planned = planned_version ? planned_serials(l, &planned_count) : NULL;
    struct run run = {0};
    struct extents_iter i;
    for (const struct extent *e = extents_first(&i, &l->epochs[epoch].x); e; e = extents_next(&i)) {
        struct run next = {.kind = RUN_OPEN, .count = e->count};
        bool merged = e->state == EXTENT_MERGED || e->state == EXTENT_SKIPPED;
        if (e->state == EXTENT_STAGED && serial_in(planned, planned_count, e->ref)) merged = true;
        if (merged) {
            next.kind = e->reason ? RUN_SKIPPED : RUN_MERGED;
            next.reason = e->reason;
            next.version = e->state == EXTENT_STAGED ? planned_version : e->ref;
        }
        bool same = next.kind == run.kind && next.version == run.version &&
                    next.reason == run.reason;
        if (same) {
            run.count += next.count;
        } else {
            run_put(l, &run, out);
            run = next;
        }
    }
    run_put(l, &run, out);
}

void ledger_checkpoint_encode(const struct ledger *l, uint64_t version, bool planned,
                              struct buf *out) {
    buf_put(out, magic, sizeof magic);
    varint_put(out, version);
    varint_put(out, l->epochs_count);
    varint_put(out, l->positions);
    for (uint32_t i = 0; i < l->epochs_count; i++) {
        struct buf runs;
        buf_init(&runs, SIZE_MAX / 2);
        ledger_runs_encode(l, i, planned ? version : 0, &runs);
        varint_put(out, runs.bytes_count);
        buf_put(out, runs.data, runs.bytes_count);
        buf_fini(&runs);
    }
}

static bool run_get(struct ledger *l, struct reader *r, struct extent *e, uint64_t version) {
    uint8_t kind = get_u8(r);
    e->count = varint_get(r);
    if (kind > RUN_SKIPPED) return false;
    e->state = EXTENT_AVAILABLE;
    if (kind == RUN_OPEN) return r->ok;
    e->state = kind == RUN_MERGED ? EXTENT_MERGED : EXTENT_SKIPPED;
    e->ref = varint_get(r);
    if (e->ref > version || (kind == RUN_MERGED && e->ref == 0)) return false;
    if (kind == RUN_MERGED) return r->ok;
    char reason[LEASE_REASON_MAX] = "";
    size_t n = get_u8(r);
    const char *text = get_bytes(r, n);
    if (!text || n >= sizeof reason || memchr(text, 0, n)) return false;
    memcpy(reason, text, n);
    e->reason = reason_number(l, reason);
    return r->ok;
}

static bool epoch_runs_get(struct ledger *l, struct reader *r, uint64_t version) {
    uint64_t bytes = varint_get(r);
    const void *data = get_bytes(r, bytes);
    if (!data) return false;
    struct reader runs = reader_of(data, bytes);
    struct epoch *e = epoch_add(l);
    *e = (struct epoch){0};
    extents_init_empty(&e->x, l->positions);
    uint64_t pos = 0;
    while (runs.p < runs.end) {
        struct extent x = {.start = pos};
        if (!run_get(l, &runs, &x, version) || !extents_append(&e->x, &x)) return false;
        pos += x.count;
    }
    return pos == l->positions;
}

enum brg_status ledger_checkpoint_decode(const void *data, size_t n, uint32_t epochs_max,
                                         struct ledger **out, uint64_t *out_version,
                                         struct err *e) {
    struct reader r = reader_of(data, n);
    const void *head = get_bytes(&r, sizeof magic);
    bool good = head && memcmp(head, magic, sizeof magic) == 0;
    uint64_t version = varint_get(&r), epochs = varint_get(&r), positions = varint_get(&r);
    struct ledger *l = NULL;
    good = good && r.ok && positions > 0 && epochs <= epochs_max && epochs_max <= LEDGER_EPOCHS_MAX;
    if (good) {
        l = ledger_create(positions, epochs_max);
        l->version_last = version;
        for (uint64_t i = 0; good && i < epochs; i++) good = epoch_runs_get(l, &r, version);
    }
    if (good && r.ok && r.p == r.end) {
        *out = l;
        *out_version = version;
        return BRG_OK;
    }
    ledger_destroy(l);
    return err_set(e, BRG_E_CHECKPOINT,
                   "the ledger inside the checkpoint cannot be read; use another "
                   "copy of the checkpoint");
}

/* ---- Snapshot form: encoding
 * -------------------------------------------------------------------- */

static void lease_put(const struct lease *a, struct buf *out) {
    buf_u64(out, a->tok);
    buf_u64(out, a->nonce);
    buf_u64(out, a->req);
    buf_u32(out, a->site);
    buf_u32(out, a->inc);
    buf_u32(out, a->epoch);
    buf_u32(out, a->spans_count);
    for (uint32_t i = 0; i < a->spans_count; i++) {
        buf_u64(out, a->spans[i].start);
        buf_u64(out, a->spans[i].count);
    }
}

static void live_put(const struct delta_live *v, struct buf *out) {
    const struct delta_info *i = &v->info;
    const uint64_t words[] = {i->base,  i->tokens,  i->steps,  i->elements,
                              i->bytes, v->samples, v->skipped};
    for (size_t k = 0; k < ARRAY_COUNT(words); k++) buf_u64(out, words[k]);
    const double reals[] = {i->lr_sum, i->loss, i->norm, i->max_abs, i->cos_m};
    for (size_t k = 0; k < ARRAY_COUNT(reals); k++) buf_f64(out, reals[k]);
    buf_u32(out, i->codec);
    buf_u32(out, v->spans_count);
    for (uint32_t k = 0; k < v->spans_count; k++) {
        buf_u32(out, v->spans[k].epoch);
        buf_u64(out, v->spans[k].span.start);
        buf_u64(out, v->spans[k].span.count);
    }
}

static void delta_put(const struct delta *d, struct buf *out) {
    buf_put(out, d->did.v, ID_BYTES);
    buf_put(out, d->blob.v, HASH_BYTES);
    buf_put(out, d->manifest.v, HASH_BYTES);
    buf_u64(out, d->serial);
    buf_u64(out, d->version);
    buf_u64(out, d->rest_tok);
    buf_u32(out, d->site);
    buf_u8(out, (uint8_t)d->state);
    buf_u8(out, d->reason != NULL);
    if (d->reason) buf_str(out, d->reason);
    buf_u32(out, d->toks_count);
    for (uint32_t i = 0; i < d->toks_count; i++) buf_u64(out, d->toks[i]);
    if (d->state == DELTA_STAGED) live_put(d->live, out);
}

/* Puts heads[at] where it belongs in a heap with the smallest tok on top. */
static void heap_sink(struct lease **heads, uint32_t count, uint32_t at) {
    struct lease *a = heads[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heads[child + 1]->tok < heads[child]->tok) child++;
        if (heads[child]->tok > a->tok) break;
        heads[at] = heads[child];
        at = child;
    }
    heads[at] = a;
}

/* By tok. A site's list is in that order already; its sites are merged through a heap of their heads,
 * for with thousands of sites the hub stands still as long as this takes. */
static void leases_put(const struct ledger *l, struct buf *out) {
    uint32_t count = 0;
    buf_u32(out, l->leases_count);
    AUTO_FREE struct lease **heads = mem_alloc((size_t)l->sites_cap + 1, sizeof *heads);
    for (uint32_t s = 0; s < l->sites_cap; s++)
        if (l->sites[s].first) heads[count++] = l->sites[s].first;
    for (uint32_t i = count / 2; i > 0; i--) heap_sink(heads, count, i - 1);
    while (count > 0) {
        lease_put(heads[0], out);
        heads[0] = heads[0]->site_next ? heads[0]->site_next : heads[--count];
        if (count > 0) heap_sink(heads, count, 0);
    }
}

void ledger_encode(const struct ledger *l, struct buf *out) {
    buf_u64(out, l->positions);
    buf_u64(out, l->tok_last);
    buf_u64(out, l->serial_last);
    buf_u64(out, l->version_last);
    buf_u32(out, l->reasons_count);
    for (uint32_t i = 1; i < l->reasons_count; i++) buf_str(out, l->reasons[i]);
    buf_u32(out, l->epochs_count);
    for (uint32_t k = 0; k < l->epochs_count; k++) {
        buf_u8(out, l->epochs[k].sealed);
        buf_u32(out, l->epochs[k].x.nodes);
        struct extents_iter i;
        for (const struct extent *e = extents_first(&i, &l->epochs[k].x); e; e = extents_next(&i)) {
            buf_u64(out, e->count);
            buf_u64(out, e->ref);
            buf_u32(out, e->reason);
            buf_u8(out, e->state);
            buf_u8(out, e->crashes);
        }
    }
    leases_put(l, out);
    buf_u32(out, l->final.count);
    for (const struct delta *d = l->final.first; d; d = d->list_next) delta_put(d, out);
    buf_u32(out, l->staged.count);
    for (const struct delta *d = l->staged.first; d; d = d->list_next) delta_put(d, out);
}

/* ---- Snapshot form: decoding
 * -------------------------------------------------------------------- */

static bool flag_get(struct reader *r) {
    uint8_t v = get_u8(r);
    if (v > 1) r->ok = false;
    return v == 1;
}

static bool epoch_get(struct ledger *l, struct reader *r) {
    struct epoch *k = epoch_add(l);
    *k = (struct epoch){.sealed = flag_get(r)};
    extents_init_empty(&k->x, l->positions);
    uint32_t nodes = get_u32(r);
    uint64_t pos = 0;
    for (uint32_t i = 0; i < nodes && r->ok; i++) {
        struct extent e = {.start = pos};
        e.count = get_u64(r);
        e.ref = get_u64(r);
        e.reason = get_u32(r);
        e.state = get_u8(r);
        e.crashes = get_u8(r);
        bool skip = e.state == EXTENT_STAGED || e.state == EXTENT_SKIPPED;
        if (e.reason != 0 && (!skip || e.reason >= l->reasons_count)) return false;
        if (e.reason == 0 && e.state == EXTENT_SKIPPED) return false;
        if (!extents_append(&k->x, &e)) return false;
        pos += e.count;
    }
    return r->ok && pos == l->positions;
}

static bool lease_get(struct ledger *l, struct reader *r, uint32_t sites, uint64_t *tok_before) {
    struct lease_span spans[LEASE_SPANS_MAX];
    struct lease_grant g = {.spans = spans};
    g.tok = get_u64(r);
    g.nonce = get_u64(r);
    g.req = get_u64(r);
    g.site = get_u32(r);
    g.inc = get_u32(r);
    g.epoch = get_u32(r);
    g.spans_count = get_u32(r);
    if (!r->ok || g.spans_count == 0 || g.spans_count > LEASE_SPANS_MAX) return false;
    if (g.site > sites || g.epoch >= l->epochs_count) return false;
    if (g.tok <= *tok_before || g.tok > l->tok_last) return false;
    *tok_before = g.tok;
    for (uint32_t i = 0; i < g.spans_count; i++) {
        spans[i].start = get_u64(r);
        spans[i].count = get_u64(r);
        if (!extents_all(&l->epochs[g.epoch].x, spans[i].start, spans[i].count, EXTENT_LEASED,
                         g.tok))
            return false;
    }
    if (!r->ok) return false;
    lease_add(l, &g);
    return true;
}

static bool live_get(struct ledger *l, struct delta *d, struct reader *r) {
    struct delta_info i = {0};
    uint64_t samples, skipped;
    uint64_t *const words[] = {&i.base,  &i.tokens, &i.steps, &i.elements,
                               &i.bytes, &samples,  &skipped};
    for (size_t k = 0; k < ARRAY_COUNT(words); k++) *words[k] = get_u64(r);
    double *const reals[] = {&i.lr_sum, &i.loss, &i.norm, &i.max_abs, &i.cos_m};
    for (size_t k = 0; k < ARRAY_COUNT(reals); k++) *reals[k] = get_f64(r);
    i.codec = get_u32(r);
    uint32_t n = get_u32(r);
    if (!r->ok || n == 0 || n > LEASE_PARTS_MAX * LEASE_SPANS_MAX) return false;
    delta_live_set(l, d, n);
    d->live->info = i;
    d->live->samples = samples;
    d->live->skipped = skipped;
    for (uint32_t k = 0; k < n; k++) {
        struct delta_span *s = &d->live->spans[k];
        s->epoch = get_u32(r);
        s->span.start = get_u64(r);
        s->span.count = get_u64(r);
        if (!r->ok || s->epoch >= l->epochs_count) return false;
        if (!extents_all(&l->epochs[s->epoch].x, s->span.start, s->span.count, EXTENT_STAGED,
                         d->serial))
            return false;
    }
    return true;
}

static bool delta_get(struct ledger *l, struct reader *r, uint32_t sites, bool staged) {
    struct delta d = {0};
    const void *p = get_bytes(r, ID_BYTES);
    if (p) memcpy(d.did.v, p, ID_BYTES);
    if ((p = get_bytes(r, HASH_BYTES))) memcpy(d.blob.v, p, HASH_BYTES);
    if ((p = get_bytes(r, HASH_BYTES))) memcpy(d.manifest.v, p, HASH_BYTES);
    d.serial = get_u64(r);
    d.version = get_u64(r);
    d.rest_tok = get_u64(r);
    d.site = get_u32(r);
    uint8_t state = get_u8(r);
    char reason[1024];
    bool has_reason = flag_get(r);
    if (has_reason) (void)get_str(r, reason, sizeof reason);
    uint32_t toks = get_u32(r);
    if (!r->ok || toks > LEASE_PARTS_MAX || d.site > sites || d.serial > l->serial_last)
        return false;
    if (staged != (state == DELTA_STAGED) || state < DELTA_STAGED || state > DELTA_DISCARDED)
        return false;
    if (ledger_delta_find(l, &d.did)) return false;
    uint64_t serial_last = l->serial_last; /* delta_add counts; here the number is known */
    struct delta *new = delta_add(l, &d.did, d.site, toks);
    l->serial_last = serial_last;
    new->blob = d.blob;
    new->manifest = d.manifest;
    new->serial = d.serial;
    new->version = d.version;
    new->rest_tok = d.rest_tok;
    for (uint32_t i = 0; i < toks; i++) new->toks[i] = get_u64(r);
    if (!r->ok) return false;
    if (!staged) {
        delta_finish(l, new, (enum delta_state)state, has_reason ? reason : NULL);
        return true;
    }
    if (has_reason || !live_get(l, new, r)) return false;
    if (l->staged.last && l->staged.last->serial >= new->serial) return false;
    delta_stage_link(l, new);
    return true;
}

static bool ledger_get(struct ledger *l, struct reader *r, uint32_t sites) {
    l->tok_last = get_u64(r);
    l->serial_last = get_u64(r);
    l->version_last = get_u64(r);
    uint32_t reasons = get_u32(r);
    if (reasons == 1) return false; /* none is 0: one state, one form */
    for (uint32_t i = 1; i < reasons && r->ok; i++) {
        char text[LEASE_REASON_MAX];
        if (!get_str(r, text, sizeof text) || reason_number(l, text) != i) return false;
    }
    uint32_t epochs = get_u32(r);
    if (epochs > l->epochs_max) return false;
    for (uint32_t i = 0; i < epochs && r->ok; i++)
        if (!epoch_get(l, r)) return false;
    uint64_t tok = 0;
    uint32_t leases = get_u32(r);
    for (uint32_t i = 0; i < leases && r->ok; i++)
        if (!lease_get(l, r, sites, &tok)) return false;
    for (int staged = 0; staged < 2; staged++) {
        uint32_t deltas = get_u32(r);
        for (uint32_t i = 0; i < deltas && r->ok; i++)
            if (!delta_get(l, r, sites, staged == 1)) return false;
    }
    return r->ok && ledger_fault(l) == NULL;
}

enum brg_status ledger_decode(struct reader *r, uint32_t epochs_max, uint32_t sites_max,
                              struct ledger **out, struct err *e) {
    uint64_t positions = get_u64(r);
    struct ledger *l = NULL;
    if (r->ok && positions > 0 && epochs_max <= LEDGER_EPOCHS_MAX) {
        l = ledger_create(positions, epochs_max);
        if (ledger_get(l, r, sites_max)) {
            *out = l;
            return BRG_OK;
        }
    }
    ledger_destroy(l);
    return err_set(e, BRG_E_JOURNAL,
                   "the snapshot's ledger is damaged; remove the snapshot, the journal "
                   "alone is enough");
}
