/* SPDX-License-Identifier: Apache-2.0 */
/* uplink.c - the region's note of its leases at the parent: as bytes, and what is decided from it. */
#include <string.h>

#include "base/mutant.h"
#include "hub/uplink.h"

static const char magic[8] = {'B', 'R', 'G', 'U', 'P', 'L', 'K', '1'};
enum { COMMIT_BYTES_MAX = WIRE_BODY_MAX };

static void set_put(const struct uplink_set *s, struct buf *out) {
    buf_u32(out, s->count);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct wire_lease *l = &s->leases[i];
        buf_u64(out, l->tok);
        buf_u64(out, l->nonce);
        buf_u32(out, l->epoch);
        buf_u32(out, l->ranges_count);
        for (uint32_t k = 0; k < l->ranges_count; k++) {
            buf_u64(out, l->ranges[k].start);
            buf_u64(out, l->ranges[k].count);
        }
    }
}

static bool set_get(struct reader *r, struct uplink_set *s) {
    s->count = get_u32(r);
    if (s->count > UPLINK_LEASES_MAX) return false;
    for (uint32_t i = 0; i < s->count; i++) {
        struct wire_lease *l = &s->leases[i];
        l->tok = get_u64(r);
        l->nonce = get_u64(r);
        l->epoch = get_u32(r);
        l->ranges_count = get_u32(r);
        if (l->ranges_count == 0 || l->ranges_count > WIRE_RANGES_MAX) return false;
        for (uint32_t k = 0; k < l->ranges_count; k++) {
            l->ranges[k].start = get_u64(r);
            l->ranges[k].count = get_u64(r);
            uint64_t n = l->ranges[k].count;
            if (n == 0 || n > UINT64_MAX - l->count || n > UINT64_MAX - l->ranges[k].start)
                return false;
            l->count += n;
        }
    }
    return r->ok;
}

void uplink_encode(const struct uplink_state *s, struct buf *out) {
    buf_put(out, magic, sizeof magic);
    buf_put(out, s->run.v, ID_BYTES);
    buf_str(out, s->name);
    set_put(&s->current, out);
    set_put(&s->next, out);
    set_put(&s->pending, out);
    buf_u8(out, s->has_pending);
    if (s->has_pending) {
        struct wire_request q = {.kind = WIRE_COMMIT, .run = s->run};
        AUTO_BUF struct buf text;
        buf_init(&text, COMMIT_BYTES_MAX);
        memcpy(q.site, s->name, sizeof q.site);
        q.u.commit = s->commit;
        wire_request_encode(&q, &text);
        buf_u32(out, (uint32_t)text.bytes_count);
        buf_put(out, text.data, text.bytes_count);
        buf_u64(out, s->cut);
        buf_u64(out, s->merged);
    }
    struct hash h = hash_of(out->data, out->bytes_count);
    buf_put(out, h.v, HASH_BYTES);
}

static bool pending_get(struct reader *r, struct uplink_state *s) {
    struct wire_request q;
    struct err e;
    uint32_t n = get_u32(r);
    const void *text = n <= COMMIT_BYTES_MAX ? get_bytes(r, n) : NULL;
    if (text == NULL || wire_request_decode(WIRE_COMMIT, text, n, &q, &e) != BRG_OK) return false;
    s->commit = q.u.commit;
    s->cut = get_u64(r);
    s->merged = get_u64(r);
    return r->ok;
}

enum brg_status uplink_decode(const void *data, size_t n, struct uplink_state *out, struct err *e) {
    AUTO_FREE struct uplink_state *s = mem_alloc(1, sizeof *s);
    struct hash h = {{0}};
    bool good = n > sizeof magic + HASH_BYTES && memcmp(data, magic, sizeof magic) == 0;
    if (good) h = hash_of(data, n - HASH_BYTES);
    good = good && memcmp((const uint8_t *)data + n - HASH_BYTES, h.v, HASH_BYTES) == 0;
    struct reader r = reader_of(data, good ? n - HASH_BYTES : 0);
    (void)get_bytes(&r, sizeof magic);
    const void *run = get_bytes(&r, ID_BYTES);
    if (run != NULL) memcpy(s->run.v, run, ID_BYTES);
    good = good && get_str(&r, s->name, sizeof s->name) && set_get(&r, &s->current) &&
           set_get(&r, &s->next) && set_get(&r, &s->pending);
    uint8_t flag = get_u8(&r);
    good = good && flag <= 1;
    s->has_pending = flag == 1;
    good = good && (!s->has_pending || pending_get(&r, s)) && r.ok && r.p == r.end;
    if (!good)
        return err_set(e, BRG_E_CORRUPT,
                       "it is damaged; remove it: then the work that the parent does not have yet "
                       "is trained again");
    *out = *s;
    return BRG_OK;
}

uint64_t uplink_samples(const struct uplink_set *s) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->count; i++) n += s->leases[i].count;
    return n;
}

uint32_t uplink_spans(const struct uplink_set *s, struct hub_span **out) {
    uint32_t n = 0;
    struct hub_span *v = mem_alloc((size_t)UPLINK_LEASES_MAX * WIRE_RANGES_MAX, sizeof *v);
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->leases[i].ranges_count; k++)
            v[n++] =
                (struct hub_span){.epoch = s->leases[i].epoch, .range = s->leases[i].ranges[k]};
    *out = v;
    return n;
}

bool uplink_has(const struct uplink_set *s, uint64_t tok) {
    for (uint32_t i = 0; i < s->count; i++)
        if (s->leases[i].tok == tok) return true;
    return false;
}

void uplink_drop(struct uplink_set *s, uint64_t tok) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->leases[i].tok != tok) s->leases[n++] = s->leases[i];
    s->count = n;
}

bool uplink_add(struct uplink_set *s, struct uplink_set *more) {
    if (s->count + more->count > UPLINK_LEASES_MAX) return false;
    for (uint32_t i = 0; i < more->count; i++) s->leases[s->count++] = more->leases[i];
    memset(more, 0, sizeof *more);
    return true;
}

/* ---- Decisions ---------------------------------------------------------------------------------------------- */
uint32_t uplink_named(const struct uplink_state *s, const struct wire_lease *out[WIRE_LEASES_MAX]) {
    const struct uplink_set *sets[] = {&s->current, &s->next,
                                       s->has_pending && !s->staged ? &s->pending : NULL};
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_COUNT(sets); i++)
        for (uint32_t k = 0; sets[i] != NULL && k < sets[i]->count && n < WIRE_LEASES_MAX; k++)
            out[n++] = &sets[i]->leases[k];
    return n;
}

void uplink_forget(struct uplink_state *s) {
    s->has_pending = s->staged = false;
    s->merged = 0;
    memset(&s->pending, 0, sizeof s->pending);
}

bool uplink_gone(struct uplink_state *s, uint64_t tok) {
    bool open = uplink_has(&s->current, tok);
    if (MUTANT(UPLINK_KEEPS_LOST)) return false;
    uplink_drop(&s->current, tok);
    uplink_drop(&s->next, tok);
    return open;
}

struct skips {
    struct wire_commit *c;
    uint64_t positions;
    bool too_many;
};
static void skips_visit(void *user, const struct hub_span *s) {
    struct skips *k = user;
    for (uint64_t i = 0; i < s->range.count; i++) {
        k->too_many = k->c->skips_count == WIRE_SKIPS_MAX;
        if (k->too_many) return;
        struct wire_skip *x = &k->c->skips[k->c->skips_count++];
        x->position = s->epoch * k->positions + s->range.start + i;
        memcpy(x->reason, "in the region", sizeof "in the region");
    }
}

bool uplink_done(const struct hub *h, const struct uplink_state *s) {
    AUTO_FREE struct hub_span *spans = NULL;
    struct hub_counts n;
    uint32_t count = uplink_spans(&s->current, &spans);
    hub_span_counts(h, spans, count, &n);
    if (MUTANT(UPLINK_CUTS_EARLY) && n.merged > 0) return true;
    return count > 0 && n.merged + n.skipped == uplink_samples(&s->current);
}

enum uplink_cut uplink_cut_due(const struct hub *h, const struct uplink_state *s,
                               struct wire_commit *c) {
    AUTO_FREE struct hub_span *spans = NULL;
    struct hub_view all;
    if (s->current.count == 0 || s->has_pending || !uplink_done(h, s)) return UPLINK_CUT_NOT;
    hub_view(h, 0, &all);
    struct skips k = {c, all.positions, false};
    uint32_t count = uplink_spans(&s->current, &spans);
    hub_span_skips(h, spans, count, skips_visit, &k);
    if (k.too_many) return UPLINK_CUT_NEVER;
    c->tokens = (uplink_samples(&s->current) - c->skips_count) * hub_seq_len(h);
    for (uint32_t i = 0; i < s->current.count; i++) {
        const struct wire_lease *l = &s->current.leases[i];
        c->parts[c->parts_count++] = (struct wire_part){l->tok, l->nonce, l->count};
    }
    return UPLINK_CUT_NOW;
}

void uplink_cut_take(struct uplink_state *s, const struct wire_commit *c, uint64_t head) {
    s->commit = *c;
    s->pending = s->current;
    memset(&s->current, 0, sizeof s->current);
    s->has_pending = true;
    s->cut = head;
    s->merged = 0;
    s->staged = false;
}

bool uplink_next_due(const struct hub *h, const struct uplink_state *s) {
    if (s->next.count == 0) return false;
    return s->current.count == 0 || (s->has_pending && uplink_done(h, s));
}

enum uplink_verdict uplink_outcome(struct uplink_state *s, const struct wire_commit_answer *a) {
    switch (a->outcome) {
    case OUTCOME_REJECTED:
    case OUTCOME_DISCARDED: return UPLINK_RESET;
    case OUTCOME_STAGED:
        s->staged = true;
        if (s->merged == 0) return UPLINK_NOTHING;
        s->merged = 0; /* the parent went back */
        return UPLINK_KEEP;
    case OUTCOME_MERGED:
        s->staged = true;
        if (s->merged == a->version) return UPLINK_NOTHING;
        s->merged = a->version;
        return UPLINK_KEEP;
    case OUTCOME_UNKNOWN: break;
    }
    return UPLINK_NOTHING;
}

bool uplink_settle(const struct hub *h, struct uplink_state *s) {
    struct hub_region_view v;
    if (!s->has_pending) return false;
    hub_region(h, 0, &v);
    bool in = v.taken >= s->merged || MUTANT(UPLINK_SETTLES_EARLY);
    if (hub_on_branch(h, s->cut) && (s->merged == 0 || !in)) return false;
    uplink_forget(s);
    return true;
}

enum uplink_take uplink_take_due(const struct hub *h, const struct uplink_state *s, uint64_t head,
                                 bool *own_in) {
    struct hub_region_view v;
    hub_region(h, 0, &v);
    *own_in = s->has_pending && s->merged > 0 && s->merged <= head && !MUTANT(UPLINK_OWN_TWICE);
    bool merging = v.merging && !MUTANT(REGION_TAKES_DURING_MERGE);
    if (v.taking || merging || head == v.taken) return UPLINK_TAKE_NOT;
    if (head < v.taken) return UPLINK_TAKE_RESET;
    /* N5: what became of ours was asked after this head was told: it is in it, or in none up to it. */
    bool known = !s->has_pending || s->merged > 0 || !s->staged;
    if (!known && !MUTANT(UPLINK_TAKES_BLIND)) return UPLINK_TAKE_NOT;
    if (s->has_pending && s->merged > head) return UPLINK_TAKE_NOT;
    return UPLINK_TAKE_NOW;
}

bool uplink_others(const struct hub *h, const struct uplink_state *s, bool own_in,
                   const struct ledger *at_parent, struct hub_span **out, uint32_t *out_count) {
    enum { EACH = UPLINK_LEASES_MAX * WIRE_RANGES_MAX };
    AUTO_FREE struct hub_span *own = NULL;
    AUTO_FREE struct hub_span *pending = NULL;
    uint32_t count = uplink_spans(&s->current, &own), more = 0;
    if (s->has_pending && !own_in) more = uplink_spans(&s->pending, &pending);
    own = mem_grow(own, EACH, (size_t)2 * EACH, sizeof *own);
    if (more > 0) memcpy(own + count, pending, more * sizeof *own);
    return hub_region_others(h, at_parent, own, count + more, out, out_count);
}
