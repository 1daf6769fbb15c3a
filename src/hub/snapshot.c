/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c - the durable state as bytes, so that replay may begin there and not at record 1.
 *
 * Canonical: equal states give equal bytes, so the digest of a state is the hash of its snapshot.
 * The layout is the hub's own and promises nothing between versions of the program: `layout` grows
 * with each change, an older or newer snapshot is refused, and the journal alone gives the same
 * state. A snapshot is read with the suspicion of a foreign file: counts, names and relations are
 * looked at. What health.c knows stands behind the ledger, where there is any of it.
 *
 * Invariant
 *   (H6) restore(snapshot(h)) then the records after it = replay of all records. */
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* 3 has the codec of updates before the counters; 5 that, and placement before the ledger (4 had it without budgets and
 * estimates); 9 all of that, and a region's before the ledger. A run without these stays readable for older programs. */
enum {
    SNAPSHOT_LAYOUT = 2,
    SNAPSHOT_LAYOUT_DOWN = 3,
    SNAPSHOT_LAYOUT_PLACE = 5,
    SNAPSHOT_LAYOUT_REGION = 9
};
static const char magic[8] = {'B', 'R', 'G', 'S', 'N', 'A', 'P', '1'};

/* ---- Encoding
 * ----------------------------------------------------------------------------------- */

static void site_put(const struct hub_site *s, struct buf *out) {
    buf_str(out, s->name);
    buf_u32(out, s->inc);
    buf_u8(out, s->joined);
    buf_put(out, s->boot.v, ID_BYTES);
    buf_u32(out, s->boots_old_count);
    for (uint32_t i = 0; i < s->boots_old_count; i++) buf_put(out, s->boots_old[i].v, ID_BYTES);
    const uint64_t words[] = {s->req_last,      s->contributions, s->merged,    s->rejected,
                              s->tokens_merged, s->last_tokens,   s->last_steps};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) buf_u64(out, words[i]);
}

static void version_put(const struct hub_version *row, struct buf *out) {
    const struct hub_version_view *v = &row->v;
    const uint64_t words[] = {v->version, v->parent, v->tokens,        v->parts,
                              v->sites,   v->bytes,  (uint64_t)v->wall};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) buf_u64(out, words[i]);
    const double reals[] = {v->loss, v->norm, v->cos_mean, v->eta_r, v->mu_r, v->kappa_r};
    for (size_t i = 0; i < ARRAY_COUNT(reals); i++) buf_f64(out, reals[i]);
    buf_put(out, v->checkpoint.v, HASH_BYTES);
    buf_put(out, v->theta.v, HASH_BYTES);
    buf_u32(out, row->only_site);
    buf_u8(out, row->on_branch);
}

void hub_snapshot(const struct hub *h, struct buf *out) {
    buf_put(out, magic, sizeof magic);
    bool region = h->parent_site > 0;
    bool place = region || h->facilities_count > 0 || h->order_last > 0;
    buf_u32(out, region         ? SNAPSHOT_LAYOUT_REGION
                 : place        ? SNAPSHOT_LAYOUT_PLACE
                 : h->down != 0 ? SNAPSHOT_LAYOUT_DOWN
                                : SNAPSHOT_LAYOUT);
    buf_put(out, h->s.run.v, ID_BYTES);
    buf_u64(out, h->seq);
    buf_u8(out, h->opened);
    buf_u8(out, h->held);
    buf_u32(out, h->term);
    buf_u32(out, MUTANT(SNAPSHOT_FORGETS) ? 0 : h->tok_n);
    buf_u64(out, h->held_version);
    buf_u32(out, h->held_term);
    buf_u32(out, h->inc_floor);
    buf_u64(out, h->foreign_below);
    buf_u64(out, h->versions_next);
    if (place || h->down != 0) buf_u32(out, h->down);
    const uint64_t counters[] = {h->grants,          h->reclaimed,        h->returned,
                                 h->rejected,        h->discarded,        h->departures,
                                 h->samples_granted, h->samples_reclaimed};
    for (size_t i = 0; i < ARRAY_COUNT(counters); i++) buf_u64(out, counters[i]);
    buf_u32(out, h->sites_count);
    for (uint32_t i = 1; i <= h->sites_count; i++) site_put(&h->sites[i], out);
    buf_u32(out, h->versions_count);
    buf_u32(out, h->head);
    for (uint32_t i = 0; i < h->versions_count; i++) version_put(&h->versions[i], out);
    if (place) hub_facilities_put(h, out);
    if (region) hub_region_put(h, out);
    ledger_encode(h->ledger, out);
    hub_health_put(h, out);
}

struct hash hub_digest(const struct hub *h) {
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    hub_snapshot(h, &b);
    struct hash digest = hash_of(b.data, b.bytes_count);
    buf_fini(&b);
    return digest;
}

/* ---- Decoding
 * ----------------------------------------------------------------------------------- */

static bool flag_get(struct reader *r) {
    uint8_t v = get_u8(r);
    if (v > 1) r->ok = false;
    return v == 1;
}

static void bytes_get(struct reader *r, uint8_t *out, size_t n) {
    const void *p = get_bytes(r, n);
    if (p) memcpy(out, p, n);
}

static bool site_get(struct hub *h, struct reader *r) {
    struct hub_site s = {0};
    uint32_t number;
    (void)get_str(r, s.name, sizeof s.name);
    s.inc = get_u32(r);
    s.joined = flag_get(r);
    bytes_get(r, s.boot.v, ID_BYTES);
    s.boots_old_count = get_u32(r);
    if (!r->ok || s.boots_old_count > HUB_BOOTS_KEPT || s.inc == 0) return false;
    for (uint32_t i = 0; i < s.boots_old_count; i++) bytes_get(r, s.boots_old[i].v, ID_BYTES);
    uint64_t *const words[] = {&s.req_last,      &s.contributions, &s.merged,    &s.rejected,
                               &s.tokens_merged, &s.last_tokens,   &s.last_steps};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) *words[i] = get_u64(r);
    bool parent = strcmp(s.name, HUB_PARENT) == 0;
    if (!r->ok || !(parent || wire_name_valid(s.name)) || hub_site_named(h, s.name, &number))
        return false;
    *hub_site_add(h) = s;
    hub_site_index(h, h->sites_count);
    if (parent) h->parent_site = h->sites_count;
    return true;
}

static bool version_get(struct hub *h, struct reader *r) {
    struct hub_version row = {0};
    struct hub_version_view *v = &row.v;
    uint64_t wall = 0;
    uint64_t *const words[] = {&v->version, &v->parent, &v->tokens, &v->parts,
                               &v->sites,   &v->bytes,  &wall};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) *words[i] = get_u64(r);
    double *const reals[] = {&v->loss, &v->norm, &v->cos_mean, &v->eta_r, &v->mu_r, &v->kappa_r};
    for (size_t i = 0; i < ARRAY_COUNT(reals); i++) *reals[i] = get_f64(r);
    v->wall = (time_ns)wall;
    bytes_get(r, v->checkpoint.v, HASH_BYTES);
    bytes_get(r, v->theta.v, HASH_BYTES);
    row.only_site = get_u32(r);
    row.on_branch = flag_get(r);
    if (!r->ok || v->version >= h->versions_next) return false;
    if (h->versions_count == 0) {
        if (!row.on_branch) return false; /* the root: 0, or where the run was rebuilt */
    } else {
        if (v->version <= h->versions[h->versions_count - 1].v.version) return false;
        const struct hub_version *parent = hub_version_of(h, v->parent);
        if (!parent || (row.on_branch && !parent->on_branch)) return false;
    }
    *hub_version_add(h) = row;
    return true;
}

static bool hub_get(struct hub *h, struct reader *r, uint32_t layout, struct err *e) {
    h->opened = flag_get(r);
    h->held = flag_get(r);
    h->term = get_u32(r);
    h->tok_n = get_u32(r);
    h->held_version = get_u64(r);
    h->held_term = get_u32(r);
    h->inc_floor = get_u32(r);
    h->foreign_below = get_u64(r);
    h->versions_next = get_u64(r);
    if (layout != SNAPSHOT_LAYOUT) {
        h->down = get_u32(r);
        bool none = h->down == 0 && layout == SNAPSHOT_LAYOUT_DOWN;
        if (none || h->down > CODEC_TOPK) return false; /* one state, one form */
    }
    uint64_t *const counters[] = {&h->grants,          &h->reclaimed,        &h->returned,
                                  &h->rejected,        &h->discarded,        &h->departures,
                                  &h->samples_granted, &h->samples_reclaimed};
    for (size_t i = 0; i < ARRAY_COUNT(counters); i++) *counters[i] = get_u64(r);
    uint32_t sites = get_u32(r);
    for (uint32_t i = 0; i < sites && r->ok; i++)
        if (!site_get(h, r)) return false;
    uint32_t versions = get_u32(r), head = get_u32(r);
    for (uint32_t i = 0; i < versions && r->ok; i++)
        if (!version_get(h, r)) return false;
    if (!r->ok || (h->opened && (head >= h->versions_count || !h->versions[head].on_branch)))
        return false;
    h->head = head;
    if ((layout == SNAPSHOT_LAYOUT_REGION) != (h->parent_site > 0)) return false;
    if (layout == SNAPSHOT_LAYOUT_REGION && (!hub_facilities_get(h, r) || !hub_region_get(h, r)))
        return false;
    if (layout == SNAPSHOT_LAYOUT_PLACE) {
        if (!hub_facilities_get(h, r)) return false;
        if (h->facilities_count == 0 && h->order_last == 0) return false;
    }
    struct ledger *l;
    if (ledger_decode(r, h->s.epochs, h->sites_count, &l, e) != BRG_OK) return false;
    ledger_destroy(h->ledger);
    h->ledger = l;
    return hub_health_get(h, r) && hub_fault(h) == NULL;
}

enum brg_status hub_restore(struct hub *h, uint64_t seq, const void *data, size_t n,
                            struct err *e) {
    CHECK(h->seq == 0);
    CHECK(!h->opened);
    struct reader r = reader_of(data, n);
    const void *head = get_bytes(&r, sizeof magic);
    bool good = head && memcmp(head, magic, sizeof magic) == 0;
    uint32_t layout = get_u32(&r);
    good = good && ((layout >= SNAPSHOT_LAYOUT && layout <= SNAPSHOT_LAYOUT_PLACE) ||
                    layout == SNAPSHOT_LAYOUT_REGION);
    struct id128 run = {0};
    bytes_get(&r, run.v, ID_BYTES);
    if (good && r.ok && !id_equal(&run, &h->s.run))
        return err_set(e, BRG_E_JOURNAL, "the snapshot belongs to another run; remove it");
    good = good && get_u64(&r) == seq && r.ok && hub_get(h, &r, layout, e);
    if (!good)
        return err_set(e, BRG_E_JOURNAL,
                       "the snapshot at record %llu cannot be used; remove it, the journal "
                       "alone is enough",
                       (unsigned long long)seq);
    h->seq = seq;
    return BRG_OK;
}
