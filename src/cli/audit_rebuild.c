/* SPDX-License-Identifier: Apache-2.0 */
/* audit_rebuild.c - kinds 16 and 17: a journal that begins with a checkpoint's ledger. What the ledger
 * says is merged or skipped counts as one contribution that was there before: the strict model takes its
 * states, the counting model adds 1 to each of its positions. Written from docs/journal.md, sections 3
 * and 6; shares nothing with the hub's decoder. */
#include <string.h>

#include "cli/audit.h"

enum { IMPORT_MAX = 1 << 30, PIECE_MAX = 256 << 10 };

static struct hash hash_get(struct reader *r) {
    struct hash v = {{0}};
    const void *p = get_bytes(r, HASH_BYTES);
    if (p != NULL) memcpy(v.v, p, HASH_BYTES);
    return v;
}

void audit_walk_rebuild(struct audit *a, struct reader *r) {
    if (a->opened || a->seq != 1) audit_finding(a, "REBUILD stands at record 1 only");
    if (get_u16(r) != 1) audit_finding(a, "layout is not 1");
    const void *run = get_bytes(r, ID_BYTES);
    (void)hash_get(r); /* fingerprint */
    (void)hash_get(r); /* tensors */
    uint64_t parameters = get_u64(r), positions = get_u64(r);
    uint32_t seq_len = get_u32(r), epochs = get_u32(r);
    (void)get_u64(r); /* order_seed */
    struct audit_version v = {.checkpoint = hash_get(r)};
    v.theta = hash_get(r);
    v.bytes = get_u64(r);
    v.version = get_u64(r);
    v.parent = get_u64(r);
    v.tokens = get_u64(r);
    uint32_t term = get_u32(r), inc_floor = get_u32(r);
    uint64_t bytes = get_u64(r);
    struct hash ledger = hash_get(r);
    if (a->opened || !r->ok) return;
    memcpy(a->run.v, run, ID_BYTES);
    a->parameters = parameters;
    a->positions = positions;
    a->seq_len = seq_len;
    a->epochs_max = epochs;
    a->term = term;
    a->inc_floor = inc_floor;
    a->lease_next = 1;
    v.ledger = ledger;
    a->versions =
        audit_push(a->versions, &a->versions_count, &a->versions_cap, sizeof *a->versions);
    a->versions[0] = v;
    a->head = v.version;
    a->version_next = v.version + 1;
    a->import_bytes = bytes;
    a->import_hash = ledger;
    buf_init(&a->import, IMPORT_MAX);
    if (bytes == 0 || bytes > IMPORT_MAX) audit_finding(a, "a ledger of no bytes, or too many");
    a->opened = true;
}

/* ---- The ledger's bytes -------------------------------------------------------------------------------- */
static uint64_t varint(struct reader *r) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 63; shift += 7) {
        uint8_t b = get_u8(r);
        v |= (uint64_t)(b & 0x7f) << shift;
        if ((b & 0x80) == 0) return v;
    }
    r->ok = false;
    return 0;
}

static void before_add(struct audit *a, uint32_t epoch, const struct audit_run *x) {
    a->before = audit_push(a->before, &a->before_count, &a->before_cap, sizeof *a->before);
    a->before[a->before_count - 1] =
        (struct audit_segment){epoch, x->start, x->count, x->state == POS_SKIPPED};
}

static bool run_take(struct audit *a, struct reader *r, struct audit_run *x) {
    char reason[AUDIT_REASON_MAX] = "";
    uint8_t state = get_u8(r);
    x->count = varint(r);
    x->state = state == 0 ? POS_AVAILABLE : state == 1 ? POS_MERGED : POS_SKIPPED;
    if (state > 2 || !r->ok || x->count == 0) return false;
    if (state == 0) return true;
    x->owner = varint(r);
    if (!r->ok || x->owner > a->head) return false;
    if (state == 1) return x->owner > 0;
    size_t n = get_u8(r);
    const void *text = get_bytes(r, n);
    if (text == NULL || n >= sizeof reason) return false;
    memcpy(reason, text, n);
    x->reason = audit_reason(a, reason);
    return true;
}

static bool epoch_take(struct audit *a, struct reader *r) {
    uint64_t bytes = varint(r), at = 0;
    const void *data = get_bytes(r, bytes);
    if (data == NULL || a->epochs_count >= a->epochs_max) return false;
    struct reader runs = reader_of(data, bytes);
    a->epochs = audit_push(a->epochs, &a->epochs_count, &a->epochs_cap, sizeof *a->epochs);
    uint32_t number = (uint32_t)(a->epochs_count - 1);
    while (runs.p != runs.end) {
        struct audit_run x = {.start = at};
        if (!run_take(a, &runs, &x) || x.count > a->positions - at) return false;
        struct audit_epoch *ep = &a->epochs[number];
        ep->runs = audit_push(ep->runs, &ep->count, &ep->cap, sizeof *ep->runs);
        ep->runs[ep->count - 1] = x;
        /* What an operator skipped, owner 0, is counted where such skips are. */
        if (x.state != POS_AVAILABLE && x.owner > 0) before_add(a, number, &x);
        at += x.count;
    }
    return at == a->positions;
}

static bool ledger_take(struct audit *a) {
    struct reader r = reader_of(a->import.data, a->import.bytes_count);
    const void *head = get_bytes(&r, 8);
    if (head == NULL || memcmp(head, "BRGLEDG1", 8) != 0) return false;
    uint64_t version = varint(&r), epochs = varint(&r), positions = varint(&r);
    if (!r.ok || version != a->head || positions != a->positions || positions == 0) return false;
    for (uint64_t i = 0; i < epochs; i++)
        if (!epoch_take(a, &r)) return false;
    return r.ok && r.p == r.end;
}

static void check_taken(struct audit *a) {
    uint64_t counts[POS_STATES];
    struct buf again;
    audit_counts(a, counts);
    if (counts[POS_MERGED] * a->seq_len != a->versions[0].tokens)
        audit_finding(a, "the ledger's merged positions are not the checkpoint's tokens");
    buf_init(&again, IMPORT_MAX); /* one ledger has one form */
    audit_ledger(a, &again);
    struct hash h = hash_of(again.data, again.bytes_count);
    if (!hash_equal(&h, &a->import_hash))
        audit_finding(a, "the ledger is not what its own runs say");
    buf_fini(&again);
}

void audit_walk_ledger(struct audit *a, struct reader *r) {
    uint64_t offset = get_u64(r);
    uint32_t bytes = get_u32(r);
    const void *data = get_bytes(r, bytes);
    if (!r->ok || data == NULL) {
        r->ok = false;
        return;
    }
    if (a->import_bytes == 0 || offset != a->import.bytes_count || bytes > PIECE_MAX ||
        bytes > a->import_bytes - offset) {
        audit_finding(a, "a piece of a ledger that is not the next one");
        return;
    }
    buf_put(&a->import, data, bytes);
    if (a->import.bytes_count < a->import_bytes) return;
    struct hash h = hash_of(a->import.data, a->import.bytes_count);
    if (!hash_equal(&h, &a->import_hash)) audit_finding(a, "the ledger has another hash");
    a->import_bytes = 0;
    if (ledger_take(a))
        check_taken(a);
    else
        r->ok = false; /* positions without a state: nothing after this makes sense */
}
