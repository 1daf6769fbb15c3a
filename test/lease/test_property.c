/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger against a naive model: one struct a position, no ranges, no tree, no joining. Random
 * operations, with the hostile ones among them (foreign leases, wrong nonces, too long, twice,
 * ended), must be accepted by both or refused by both, and leave the same states behind. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "lease/lease.h"

enum { POS = 48, EPOCHS = 2, SITES = 3, LEASES = 400, DELTAS = 400, VERSIONS = 400 };

struct place {
    enum extent_state state;
    uint64_t tok, version;
    int delta;
    bool skip;
    uint32_t crashes;
};
struct mlease {
    uint64_t tok, nonce;
    uint32_t site, inc, epoch, count, pos[POS];
    bool active;
};
struct mdelta {
    struct id128 did;
    enum delta_state state;
    uint64_t version;
};
struct model {
    struct place p[EPOCHS][POS];
    uint32_t epochs;
    bool sealed[EPOCHS];
    struct mlease lease[LEASES];
    struct mdelta delta[DELTAS];
    uint32_t leases, deltas;
    uint64_t tok, version;
    uint32_t inc[SITES + 1];
};
struct pair {
    struct ledger *l;
    struct model m;
    struct prng g;
};

static uint32_t below(struct pair *t, uint32_t n) {
    return (uint32_t)prng_below(&t->g, n);
}

static struct id128 did_of(uint32_t n) {
    struct id128 id = {{0}};
    put_le32(id.v, n + 1);
    return id;
}

static void place_free(struct place *p) {
    p->state = EXTENT_AVAILABLE;
    p->skip = false;
}

/* ---- One operation on both
 * ---------------------------------------------------------------------- */

static void op_grant(struct pair *t) {
    struct model *m = &t->m;
    if (m->leases == LEASES) return;
    struct lease_span spans[LEASE_SPANS_MAX];
    uint32_t n, epoch = below(t, EPOCHS);
    if (below(t, 3) && epoch < m->epochs) {
        n = ledger_choose(t->l, epoch, 1 + below(t, 12), 3, 2, spans);
    } else {
        n = 1 + below(t, 3);
        for (uint32_t i = 0; i < n; i++) spans[i] = (struct lease_span){below(t, POS), below(t, 6)};
    }
    struct mlease *a = &m->lease[m->leases];
    *a = (struct mlease){.tok = m->tok + below(t, 3),
                         .nonce = prng_u64(&t->g),
                         .site = 1 + below(t, SITES),
                         .epoch = epoch};
    a->inc = m->inc[a->site];
    struct lease_grant g = {.tok = a->tok,
                            .nonce = a->nonce,
                            .site = a->site,
                            .inc = a->inc,
                            .epoch = epoch,
                            .spans_count = n,
                            .spans = spans};
    bool fine = n > 0 && epoch < m->epochs && !m->sealed[epoch] && a->tok > m->tok;
    bool used[POS] = {false};
    for (uint32_t i = 0; i < n && fine; i++) {
        fine = spans[i].count > 0;
        for (uint64_t p = spans[i].start; p < spans[i].start + spans[i].count && fine; p++) {
            fine = p < POS && m->p[epoch][p].state == EXTENT_AVAILABLE && !used[p];
            if (!fine) break;
            used[p] = true;
            a->pos[a->count++] = (uint32_t)p;
        }
    }
    assert_int_equal(ledger_grant(t->l, &g) == LEASE_FINE, fine);
    if (!fine) return;
    a->active = true;
    m->leases++;
    m->tok = a->tok;
    for (uint32_t i = 0; i < a->count; i++) {
        m->p[epoch][a->pos[i]].state = EXTENT_LEASED;
        m->p[epoch][a->pos[i]].tok = a->tok;
    }
}

static void op_free(struct pair *t) {
    struct model *m = &t->m;
    if (m->leases == 0) return;
    struct mlease *a = &m->lease[below(t, m->leases)];
    bool crashed = below(t, 4) == 0;
    uint64_t quarantined = 0, want = 0;
    assert_int_equal(ledger_free(t->l, a->tok, crashed, 3, &quarantined) == LEASE_FINE, a->active);
    if (!a->active) return;
    a->active = false;
    for (uint32_t i = 0; i < a->count; i++) {
        struct place *p = &m->p[a->epoch][a->pos[i]];
        place_free(p);
        if (!crashed) continue;
        if (++p->crashes < 3) continue;
        p->state = EXTENT_QUARANTINED;
        want++;
    }
    assert_int_equal(quarantined, want);
}

static void op_shrink(struct pair *t) {
    struct model *m = &t->m;
    if (m->leases == 0) return;
    struct mlease *a = &m->lease[below(t, m->leases)];
    uint32_t keep = below(t, 8);
    bool fine = a->active && keep > 0 && keep < a->count;
    assert_int_equal(ledger_shrink(t->l, a->tok, keep) == LEASE_FINE, fine);
    if (!fine) return;
    for (uint32_t i = keep; i < a->count; i++) place_free(&m->p[a->epoch][a->pos[i]]);
    a->count = keep;
}

/* A site comes back: some of its leases go on, the others are fenced. */
static void op_join(struct pair *t) {
    struct model *m = &t->m;
    uint32_t site = 1 + below(t, SITES);
    m->inc[site]++;
    for (uint32_t i = 0; i < m->leases; i++) {
        struct mlease *a = &m->lease[i];
        if (!a->active || a->site != site) continue;
        uint64_t quarantined;
        if (below(t, 2)) {
            assert_int_equal(ledger_keep(t->l, a->tok, a->inc), LEASE_FOREIGN);
            assert_int_equal(ledger_keep(t->l, a->tok, m->inc[site]), LEASE_FINE);
            a->inc = m->inc[site];
        } else {
            assert_int_equal(ledger_free(t->l, a->tok, false, 0, &quarantined), LEASE_FINE);
            a->active = false;
            for (uint32_t k = 0; k < a->count; k++) place_free(&m->p[a->epoch][a->pos[k]]);
        }
    }
}

static bool model_takes(const struct model *m, const struct lease_stage *s,
                        struct mlease *const *of) {
    uint64_t done = 0;
    for (uint32_t i = 0; i < s->parts_count; i++) {
        const struct lease_part *p = &s->parts[i];
        for (uint32_t k = 0; k < i; k++)
            if (s->parts[k].tok == p->tok) return false;
        if (!of[i]->active || of[i]->nonce != p->nonce || of[i]->site != s->site ||
            of[i]->inc != s->inc || p->done > of[i]->count)
            return false;
        done += p->done;
    }
    if (done == 0) return false;
    uint32_t last = s->parts_count - 1;
    if (s->has_rest && (s->parts[last].done == of[last]->count || s->rest_tok <= m->tok))
        return false;
    for (uint32_t i = 0; i < s->skips_count; i++) {
        bool inside = false;
        for (uint32_t k = 0; k < s->parts_count; k++)
            for (uint32_t n = 0; n < s->parts[k].done; n++)
                inside |= of[k]->epoch == s->skips[i].epoch &&
                          of[k]->pos[n] == s->skips[i].position;
        for (uint32_t k = 0; k < i; k++)
            if (s->skips[k].epoch == s->skips[i].epoch &&
                s->skips[k].position == s->skips[i].position)
                inside = false;
        if (!inside) return false;
    }
    return true;
}

static void model_stage(struct model *m, const struct lease_stage *s, struct mlease *const *of) {
    for (uint32_t i = 0; i < s->parts_count; i++) {
        struct mlease *a = of[i];
        a->active = false;
        bool rest = s->has_rest && i + 1 == s->parts_count;
        for (uint32_t n = 0; n < a->count; n++) {
            struct place *p = &m->p[a->epoch][a->pos[n]];
            if (n < s->parts[i].done) {
                p->state = EXTENT_STAGED;
                p->delta = (int)m->deltas;
            } else if (rest) {
                p->tok = s->rest_tok;
            } else {
                place_free(p);
            }
        }
        if (!rest) continue;
        struct mlease *b = &m->lease[m->leases++];
        *b = (struct mlease){.tok = s->rest_tok,
                             .nonce = s->rest_nonce,
                             .site = a->site,
                             .inc = a->inc,
                             .epoch = a->epoch,
                             .active = true};
        for (uint32_t n = (uint32_t)s->parts[i].done; n < a->count; n++)
            b->pos[b->count++] = a->pos[n];
        m->tok = s->rest_tok;
    }
    for (uint32_t i = 0; i < s->skips_count; i++)
        m->p[s->skips[i].epoch][s->skips[i].position].skip = true;
    m->delta[m->deltas++] = (struct mdelta){.did = s->did, .state = DELTA_STAGED};
}

static void op_stage(struct pair *t) {
    struct model *m = &t->m;
    if (m->leases == 0 || m->leases + 2 >= LEASES || m->deltas == DELTAS) return;
    struct lease_part parts[3];
    struct lease_skip skips[3];
    struct mlease *of[3];
    uint32_t at = below(t, m->leases);
    struct lease_stage s = {.did = did_of(m->deltas),
                            .site = m->lease[at].site,
                            .parts = parts,
                            .skips = skips,
                            .parts_count = 1 + below(t, 3),
                            .skips_count = below(t, 6) / 4};
    s.inc = m->inc[s.site] - (below(t, 10) == 0);
    for (uint32_t i = 0; i < s.parts_count; i++) {
        of[i] = &m->lease[at];
        uint64_t done = below(t, 4) ? of[i]->count : below(t, of[i]->count + 2);
        parts[i] = (struct lease_part){of[i]->tok, of[i]->nonce + (below(t, 20) == 0), done};
        /* Mostly another active lease of the same site; sometimes anything. */
        for (uint32_t tries = 0; tries < 20; tries++) {
            at = below(t, m->leases);
            if (m->lease[at].active && m->lease[at].site == s.site && &m->lease[at] != of[i]) break;
        }
    }
    for (uint32_t i = 0; i < s.skips_count; i++) {
        skips[i] =
            (struct lease_skip){.epoch = of[0]->epoch, .position = below(t, POS), .reason = "nan"};
        if (of[0]->count && below(t, 5)) skips[i].position = of[0]->pos[below(t, of[0]->count)];
    }
    s.has_rest = below(t, 3) == 0;
    s.rest_tok = m->tok + below(t, 4);
    s.rest_nonce = prng_u64(&t->g);
    bool fine = model_takes(m, &s, of);
    uint32_t part;
    assert_int_equal(ledger_stage_check(t->l, &s, &part) == LEASE_FINE, fine);
    assert_int_equal(ledger_stage(t->l, &s) == LEASE_FINE, fine);
    if (fine) model_stage(m, &s, of);
}

static void op_discard(struct pair *t) {
    struct model *m = &t->m;
    if (m->deltas == 0) return;
    uint32_t n = below(t, m->deltas);
    bool fine = m->delta[n].state == DELTA_STAGED;
    assert_int_equal(ledger_discard(t->l, &m->delta[n].did, "test") == LEASE_FINE, fine);
    if (!fine) return;
    m->delta[n].state = DELTA_DISCARDED;
    for (uint32_t e = 0; e < m->epochs; e++)
        for (uint32_t p = 0; p < POS; p++)
            if (m->p[e][p].state == EXTENT_STAGED && m->p[e][p].delta == (int)n)
                place_free(&m->p[e][p]);
}

static void op_merge(struct pair *t) {
    struct model *m = &t->m;
    struct id128 dids[DELTAS];
    bool in[DELTAS] = {false};
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->deltas; i++) {
        if (m->delta[i].state != DELTA_STAGED || below(t, 4) == 0) continue;
        dids[n++] = m->delta[i].did;
        in[i] = true;
    }
    bool fine = n > 0;
    if (n > 0 && below(t, 10) == 0) { /* twice: none of them */
        dids[n] = dids[below(t, n)];
        n++;
        fine = false;
    }
    /* What the checkpoint will say must be what the ledger says afterwards. */
    struct buf before, after;
    buf_init(&before, 1 << 20);
    buf_init(&after, 1 << 20);
    uint32_t k = 0;
    for (struct delta *d = ledger_staged_first(t->l); d; d = d->list_next) {
        while (!id_equal(&m->delta[k].did, &d->did)) k++;
        d->live->planned = in[k];
    }
    ledger_checkpoint_encode(t->l, m->version + 1, true, &before);
    assert_int_equal(ledger_merge(t->l, m->version + 1, dids, n) == LEASE_FINE, fine);
    for (struct delta *d = ledger_staged_first(t->l); d; d = d->list_next) d->live->planned = false;
    if (fine) {
        m->version++;
        for (uint32_t i = 0; i < m->deltas; i++)
            if (in[i]) m->delta[i] = (struct mdelta){m->delta[i].did, DELTA_MERGED, m->version};
        for (uint32_t e = 0; e < m->epochs; e++) {
            for (uint32_t p = 0; p < POS; p++) {
                struct place *at = &m->p[e][p];
                if (at->state != EXTENT_STAGED || !in[at->delta]) continue;
                at->state = at->skip ? EXTENT_SKIPPED : EXTENT_MERGED;
                at->version = m->version;
                at->crashes = 0;
            }
        }
        ledger_checkpoint_encode(t->l, m->version, false, &after);
        assert_int_equal(before.bytes_count, after.bytes_count);
        assert_memory_equal(before.data, after.data, after.bytes_count);
    }
    buf_fini(&before);
    buf_fini(&after);
}

static void op_rare(struct pair *t) {
    struct model *m = &t->m;
    uint32_t e = below(t, EPOCHS);
    if (below(t, 4) == 0) {
        assert_int_equal(ledger_epoch_open(t->l, e) == LEASE_FINE, e == m->epochs);
        if (e == m->epochs) m->epochs++;
        return;
    }
    if (below(t, 3) == 0 && e < m->epochs) { /* an operator decides on one position */
        uint32_t p = below(t, POS);
        for (uint32_t i = 0; i < POS && m->p[e][p].state != EXTENT_QUARANTINED; i++)
            p = (p + 1) % POS;
        bool fine = m->p[e][p].state == EXTENT_QUARANTINED, skip = below(t, 2);
        assert_int_equal(
            ledger_decide(t->l, e, (struct lease_span){p, 1}, skip, "op") == LEASE_FINE, fine);
        if (!fine) return;
        m->p[e][p] =
            (struct place){.state = skip ? EXTENT_SKIPPED : EXTENT_AVAILABLE, .skip = skip};
        return;
    }
    if (below(t, 2)) {
        bool fine = e < m->epochs && !m->sealed[e];
        for (uint32_t p = 0; p < POS && fine; p++)
            fine = m->p[e][p].state == EXTENT_MERGED || m->p[e][p].state == EXTENT_SKIPPED;
        struct hash digest;
        assert_int_equal(ledger_seal(t->l, e, &digest) == LEASE_FINE, fine);
        if (fine) m->sealed[e] = true;
        return;
    }
    if (below(t, 6)) return;
    uint64_t version = prng_below(&t->g, m->version + 1);
    ledger_rollback(t->l, version);
    for (uint32_t i = 0; i < m->leases; i++) m->lease[i].active = false;
    for (uint32_t i = 0; i < m->deltas; i++) {
        struct mdelta *d = &m->delta[i];
        if (d->state == DELTA_STAGED || (d->state == DELTA_MERGED && d->version > version))
            d->state = DELTA_DISCARDED;
    }
    for (uint32_t k = 0; k < m->epochs; k++) {
        for (uint32_t p = 0; p < POS; p++) {
            struct place *at = &m->p[k][p];
            bool later = (at->state == EXTENT_MERGED || at->state == EXTENT_SKIPPED) &&
                         at->version > version;
            if (at->state == EXTENT_LEASED || at->state == EXTENT_STAGED || later) place_free(at);
            if (!later) continue;
            at->crashes = 0;
            m->sealed[k] = false;
        }
    }
}

/* The ledger through its bytes and back: the same bytes again. */
static void op_bytes(struct pair *t) {
    struct buf b, again;
    buf_init(&b, 1 << 22);
    buf_init(&again, 1 << 22);
    ledger_encode(t->l, &b);
    struct reader r = reader_of(b.data, b.bytes_count);
    struct ledger *copy = NULL;
    struct err e;
    assert_int_equal(ledger_decode(&r, EPOCHS, 1000, &copy, &e), BRG_OK);
    ledger_encode(copy, &again);
    assert_int_equal(b.bytes_count, again.bytes_count);
    assert_memory_equal(b.data, again.data, b.bytes_count);
    ledger_destroy(t->l);
    t->l = copy;
    /* A byte that flipped is refused, or gives a ledger that is sound. */
    if (below(t, 2))
        b.data[below(t, (uint32_t)b.bytes_count)] ^= (uint8_t)(1 + below(t, 255));
    else
        b.bytes_count = below(t, (uint32_t)b.bytes_count);
    r = reader_of(b.data, b.bytes_count);
    if (ledger_decode(&r, EPOCHS, 1000, &copy, &e) == BRG_OK) ledger_destroy(copy);
    buf_fini(&b);
    buf_fini(&again);
}

static void op_checkpoint(struct pair *t) {
    struct buf b, again;
    buf_init(&b, 1 << 20);
    buf_init(&again, 1 << 20);
    ledger_checkpoint_encode(t->l, t->m.version, false, &b);
    struct ledger *copy = NULL;
    struct err e;
    uint64_t version;
    assert_int_equal(ledger_checkpoint_decode(b.data, b.bytes_count, EPOCHS, &copy, &version, &e),
                     BRG_OK);
    assert_int_equal(version, t->m.version);
    ledger_check(copy);
    ledger_checkpoint_encode(copy, version, false, &again);
    assert_int_equal(b.bytes_count, again.bytes_count);
    assert_memory_equal(b.data, again.data, b.bytes_count);
    for (uint32_t k = 0; k < t->m.epochs; k++)
        assert_int_equal(ledger_count(copy, k, EXTENT_MERGED),
                         ledger_count(t->l, k, EXTENT_MERGED));
    ledger_destroy(copy);
    b.data[below(t, (uint32_t)b.bytes_count)] ^= (uint8_t)(1 + below(t, 255));
    if (ledger_checkpoint_decode(b.data, b.bytes_count, EPOCHS, &copy, &version, &e) == BRG_OK) {
        ledger_check(copy);
        ledger_destroy(copy);
    }
    buf_fini(&b);
    buf_fini(&again);
}

/* ---- Comparing
 * ---------------------------------------------------------------------------------- */

struct walk {
    const struct model *m;
    uint32_t epoch, pos, counts[EXTENT_STATES];
};

static void walk_extent(void *user, enum extent_state state, struct lease_span span,
                        uint64_t version, uint32_t crashes) {
    struct walk *w = user;
    assert_int_equal(span.start, w->pos);
    for (uint64_t i = 0; i < span.count; i++, w->pos++) {
        const struct place *p = &w->m->p[w->epoch][w->pos];
        assert_int_equal(p->state, state);
        assert_int_equal(p->crashes, crashes);
        if (state == EXTENT_MERGED || state == EXTENT_SKIPPED)
            assert_int_equal(p->version, version);
        w->counts[state]++;
    }
}

static void compare(const struct pair *t) {
    ledger_check(t->l);
    assert_int_equal(ledger_epochs(t->l), t->m.epochs);
    for (uint32_t e = 0; e < t->m.epochs; e++) {
        struct walk w = {.m = &t->m, .epoch = e};
        ledger_walk(t->l, e, walk_extent, &w);
        assert_int_equal(w.pos, POS);
        for (uint32_t s = 0; s < EXTENT_STATES; s++)
            assert_int_equal(ledger_count(t->l, e, (enum extent_state)s), w.counts[s]);
        assert_int_equal(ledger_sealed(t->l, e), t->m.sealed[e]);
    }
    for (uint32_t i = 0; i < t->m.leases; i++) {
        const struct lease *a = ledger_lease_find(t->l, t->m.lease[i].tok);
        assert_int_equal(a != NULL, t->m.lease[i].active);
        if (a) assert_int_equal(a->count, t->m.lease[i].count);
    }
    for (uint32_t i = 0; i < t->m.deltas; i++) {
        const struct delta *d = ledger_delta_find(t->l, &t->m.delta[i].did);
        assert_non_null(d);
        assert_int_equal(d->state, t->m.delta[i].state);
    }
}

static void run_seed(uint64_t seed, uint32_t operations) {
    struct pair *t = mem_alloc(1, sizeof *t);
    t->l = ledger_create(POS, EPOCHS);
    prng_seed(&t->g, seed);
    for (uint32_t s = 1; s <= SITES; s++) t->m.inc[s] = 1;
    assert_int_equal(ledger_epoch_open(t->l, 0), LEASE_FINE);
    t->m.epochs = 1;
    for (uint32_t i = 0; i < operations; i++) {
        uint32_t what = below(t, 100);
        if (what < 35)
            op_grant(t);
        else if (what < 43)
            op_free(t);
        else if (what < 48)
            op_shrink(t);
        else if (what < 50)
            op_join(t);
        else if (what < 78)
            op_stage(t);
        else if (what < 81)
            op_discard(t);
        else if (what < 92)
            op_merge(t);
        else if (what < 97)
            op_rare(t);
        else if (what < 99)
            op_bytes(t);
        else
            op_checkpoint(t);
        compare(t);
    }
    ledger_destroy(t->l);
    mem_free(t);
}

TEST(lease_I8_random_operations_agree_with_a_naive_model) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        printf("seed=%llu\n", (unsigned long long)seed);
        run_seed(seed, 300);
    }
}

/* ---- All small cases
 * ---------------------------------------------------------------------------- */

enum { SMALL = 3, DEPTH = 7 };

/* Ghost: which positions the model of each version contains, and how often. */
struct ghost {
    uint8_t in[DEPTH + 2][SMALL];
    uint8_t content[DEPTH + 2][SMALL]; /* of each delta */
    uint64_t head, next;
    uint32_t deltas;
    uint64_t toks[2 * DEPTH + 2];
    uint32_t toks_count;
};

static uint64_t cases;

static struct ledger *clone(const struct ledger *l) {
    struct buf b;
    struct err e;
    buf_init(&b, 1 << 16);
    ledger_encode(l, &b);
    struct reader r = reader_of(b.data, b.bytes_count);
    struct ledger *copy = NULL;
    assert_int_equal(ledger_decode(&r, 1, 1000, &copy, &e), BRG_OK);
    buf_fini(&b);
    return copy;
}

/* Commit the first `done` of any lease ever given, whoever asks: the network may deliver anything.
 * */
static bool small_stage(struct ledger *l, struct ghost *g, uint64_t tok, uint32_t done, bool rest) {
    const struct lease *a = ledger_lease_find(l, tok);
    struct lease_part p = {tok, tok, done};
    struct lease_stage s = {.did = did_of(g->deltas),
                            .site = 1,
                            .inc = 1,
                            .parts_count = 1,
                            .parts = &p,
                            .has_rest = rest,
                            .rest_tok = ledger_tok_last(l) + 1};
    s.rest_nonce = s.rest_tok;
    memset(g->content[g->deltas], 0, SMALL);
    uint32_t left = done;
    for (uint32_t i = 0; a && i < a->spans_count; i++)
        for (uint64_t k = 0; k < a->spans[i].count && left > 0; k++, left--)
            g->content[g->deltas][a->spans[i].start + k]++;
    if (ledger_stage(l, &s) != LEASE_FINE) return false;
    g->deltas++;
    if (rest) g->toks[g->toks_count++] = s.rest_tok;
    return true;
}

static bool small_merge(struct ledger *l, struct ghost *g, bool only_first) {
    struct id128 dids[DEPTH + 2];
    uint32_t n = 0;
    memcpy(g->in[g->next], g->in[g->head], SMALL);
    for (const struct delta *d = ledger_staged_first(l); d; d = d->list_next) {
        if (only_first && n > 0) break;
        dids[n++] = d->did;
        for (uint32_t p = 0; p < SMALL; p++)
            g->in[g->next][p] += g->content[get_le32(d->did.v) - 1][p];
    }
    if (n == 0 || ledger_merge(l, g->next, dids, n) != LEASE_FINE) return false;
    g->head = g->next++;
    return true;
}

static bool small_op(struct ledger *l, struct ghost *g, uint32_t op, uint32_t arg) {
    uint64_t quarantined;
    struct lease_span spans[LEASE_SPANS_MAX];
    switch (op) {
    case 0: { /* grant 1 or 2 */
        uint32_t n = ledger_choose(l, 0, 1 + arg, 0, 0, spans);
        uint64_t tok = ledger_tok_last(l) + 1;
        struct lease_grant q = {
            .tok = tok, .nonce = tok, .site = 1, .inc = 1, .spans_count = n, .spans = spans};
        if (n == 0 || arg > 1 || ledger_grant(l, &q) != LEASE_FINE) return false;
        g->toks[g->toks_count++] = tok;
        return true;
    }
    case 1:
        return arg < g->toks_count &&
               ledger_free(l, g->toks[arg], false, 0, &quarantined) == LEASE_FINE;
    case 2: return arg < g->toks_count && small_stage(l, g, g->toks[arg], 1, false);
    case 3: return arg < g->toks_count && small_stage(l, g, g->toks[arg], 2, false);
    case 4: return arg < g->toks_count && small_stage(l, g, g->toks[arg], 1, true);
    case 5: return arg < 2 && small_merge(l, g, arg == 1);
    case 6: {
        const struct delta *d = ledger_staged_first(l);
        if (!d || arg > 0) return false;
        struct id128 id = d->did;
        return ledger_discard(l, &id, "x") == LEASE_FINE;
    }
    default:
        if (g->head == 0 || arg >= g->head) return false;
        ledger_rollback(l, arg);
        /* Only ancestors: versions between are gone; here every version follows on the one before,
         * or on the one it was rolled back to, whose contents the ghost copied. */
        g->head = arg;
        return true;
    }
}

static void small_walk(void *user, enum extent_state state, struct lease_span span,
                       uint64_t version, uint32_t crashes) {
    const struct ghost *g = user;
    (void)version;
    (void)crashes;
    for (uint64_t p = span.start; p < span.start + span.count; p++)
        assert_int_equal(g->in[g->head][p], state == EXTENT_MERGED ? 1 : 0);
}

static void small_all(const struct ledger *l, const struct ghost *g, uint32_t depth,
                      uint32_t branch) {
    if (depth == 0) return;
    for (uint32_t op = 0; op < 8; op++) {
        for (uint32_t arg = 0; arg < 4; arg++) {
            struct ghost h = *g;
            struct ledger *copy = clone(l);
            if (small_op(copy, &h, op, arg)) {
                cases++;
                ledger_check(copy);
                ledger_walk(copy, 0, small_walk, &h);
                if (op != 7 || branch == 0) small_all(copy, &h, depth - 1, branch + (op == 7));
            }
            ledger_destroy(copy);
        }
    }
}

TEST(lease_I5_all_small_cases_count_each_position_once) {
    struct ledger *l = ledger_create(SMALL, 1);
    struct ghost g = {.next = 1};
    assert_int_equal(ledger_epoch_open(l, 0), LEASE_FINE);
    small_all(l, &g, DEPTH, 0);
    printf("cases=%llu\n", (unsigned long long)cases);
    assert_true(cases > 10000);
    ledger_destroy(l);
}
