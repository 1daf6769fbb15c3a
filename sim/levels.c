/* SPDX-License-Identifier: Apache-2.0 */
/* levels.c - trees of hubs, one a seed: who does something next, which faults there are, and that everything is merged once in
 * every hub when they are over. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/levels.h"

enum { TURNS = 1500, TURNS_CALM = 60000, VIOLATIONS_MAX = 5, TWICE_EVERY = 64 };

/* ---- Small things ------------------------------------------------------------------------------------------------ */
_Noreturn void lv_fail(struct lv_world *w, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(w->why, sizeof w->why, fmt, args);
    va_end(args);
    longjmp(w->out, 1);
}

void lv_say(const struct lv_world *w, const char *fmt, ...) {
    va_list args;
    if (!w->trace) return;
    printf("%6" PRIu64 "  ", w->turn);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

bool lv_chance(struct lv_world *w, uint32_t one_in) {
    return !w->calm && prng_below(&w->g, one_in) == 0;
}

struct id128 lv_name(struct lv_world *w) {
    struct id128 id = {{0}};
    put_le64(id.v, ++w->names);
    id.v[8] = 1;
    return id;
}

struct lv_blob *lv_blob_new(struct lv_world *w) {
    /* The oldest ones are long merged: nothing stays staged for as many as there is room for. */
    struct lv_blob *b = &w->blob[w->blobs++ % w->blobs_max];
    struct id128 name = lv_name(w);
    memset(&b->hash, 0, sizeof b->hash);
    if (b->d == NULL) b->d = mem_alloc(w->weights, sizeof *b->d);
    memset(b->d, 0, w->weights * sizeof *b->d);
    memcpy(b->hash.v, name.v, sizeof name.v);
    return b;
}

const struct lv_blob *lv_blob_find(const struct lv_world *w, const struct hash *hash) {
    for (uint32_t i = 0; i < w->blobs_max && i < w->blobs; i++)
        if (hash_equal(&w->blob[i].hash, hash)) return &w->blob[i];
    return NULL;
}

uint64_t lv_at(const struct lv_world *w, uint32_t epoch, uint64_t position) {
    return epoch * w->positions + position;
}

/* ---- Sites --------------------------------------------------------------------------------------------------------- */
static void site_ask(struct lv_hub *n, uint32_t i, enum wire_kind kind) {
    struct lv_site *s = &n->site[i];
    memset(&s->ask, 0, sizeof s->ask);
    s->ask.kind = kind;
    s->ask.site[0] = (char)('a' + i);
    s->ask.run = n->s.run;
    s->ask.inc = kind == WIRE_JOIN ? 0 : s->inc;
    s->ask.req = ++s->req;
    s->asking = true;
}

static void site_commit(struct lv_hub *n, uint32_t i) {
    struct lv_site *s = &n->site[i];
    const struct wire_lease *l = &s->lease;
    struct lv_blob *b = lv_blob_new(n->w);
    site_ask(n, i, WIRE_COMMIT);
    struct wire_commit *c = &s->ask.u.commit;
    uint64_t done = lv_chance(n->w, 4) ? 1 + prng_below(&n->w->g, l->count) : l->count, at = 0;
    c->did = lv_name(n->w);
    c->base = n->h->versions[n->h->head].v.version;
    for (uint32_t k = 0; k < l->ranges_count; k++)
        for (uint64_t p = l->ranges[k].start; p < l->ranges[k].start + l->ranges[k].count; p++) {
            if (at++ >= done) break;
            if (lv_chance(n->w, 60)) {
                struct wire_skip *x = &c->skips[c->skips_count++];
                x->position = lv_at(n->w, l->epoch, p);
                memcpy(x->reason, "poison", sizeof "poison");
            } else {
                b->d[lv_at(n->w, l->epoch, p)] = -1;
            }
        }
    c->tokens = (done - c->skips_count) * n->s.seq_len;
    c->steps = 1;
    c->lr_sum = c->loss = 1;
    c->elements = n->s.parameters;
    c->codec = CODEC_FP32;
    c->bytes = DELTA_HEADER_BYTES + codec_bytes(CODEC_FP32, n->s.parameters);
    c->blob = b->hash;
    c->parts_count = 1;
    c->parts[0] = (struct wire_part){l->tok, l->nonce, done};
    if (c->tokens == 0) {
        c->steps = c->elements = c->bytes = 0;
        c->lr_sum = c->loss = 0;
        memset(&c->blob, 0, sizeof c->blob);
    }
    s->has = false;
}

static void site_heard(struct lv_hub *n, uint32_t i, const struct wire_answer *a) {
    struct lv_site *s = &n->site[i];
    s->asking = false;
    if (a->code == WIRE_UNKNOWN_SITE || a->code == WIRE_FENCED) {
        s->inc = 0;
        s->has = false;
    } else if (a->code == WIRE_OK && a->kind == WIRE_JOIN) {
        s->inc = a->u.join.inc;
        s->has = false;
    } else if (a->code == WIRE_OK && a->kind == WIRE_LEASE && a->u.lease.granted) {
        s->lease = a->u.lease.lease;
        s->has = true;
    }
}

static void site_turn(struct lv_hub *n, uint32_t i) {
    struct lv_site *s = &n->site[i];
    struct wire_answer a;
    if (!n->alive) return;
    if (lv_chance(n->w, 80)) { /* it dies, and comes back as another process */
        memset(s, 0, sizeof *s);
        n->w->crashes++;
    }
    if (!s->asking && s->inc == 0) {
        site_ask(n, i, WIRE_JOIN);
        s->ask.u.join.boot = lv_name(n->w);
        s->ask.u.join.protocol = WIRE_PROTOCOL;
        s->ask.u.join.tokens_per_sample = n->s.seq_len;
    } else if (!s->asking && s->has) {
        site_commit(n, i);
    } else if (!s->asking) {
        site_ask(n, i, prng_below(&n->w->g, 3) > 0 ? WIRE_LEASE : WIRE_HEARTBEAT);
        if (s->ask.kind == WIRE_LEASE) {
            s->ask.u.lease.want = 1 + prng_below(&n->w->g, 6);
            s->ask.u.lease.base = n->h->versions[n->h->head].v.version;
        } else {
            s->ask.u.heartbeat.hb_seq = s->req;
            s->ask.u.heartbeat.phase = PHASE_TRAINING;
            s->ask.u.heartbeat.base = n->h->versions[n->h->head].v.version;
        }
    }
    if (lv_ask(n, &s->ask, &a)) site_heard(n, i, &a);
}

/* ---- Fate ---------------------------------------------------------------------------------------------------------- */
static void operator_turn(struct lv_hub *n) {
    struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK};
    const struct delta *d = ledger_staged_first(n->h->ledger);
    if (d != NULL && prng_below(&n->w->g, 2) == 0) {
        c.kind = HUB_CMD_DISCARD;
        c.u.discard.did = d->did;
        (void)snprintf(c.u.discard.text, sizeof c.u.discard.text, "dropped by hand");
    } else { /* in a region this is mostly refused: to the head or to version 0 it goes */
        uint64_t back = 1 + prng_below(&n->w->g, 3);
        const struct hub_version *v = &n->h->versions[n->h->head];
        while (back-- > 0 && v->v.version > 0) v = hub_version_of(n->h, v->v.parent);
        c.u.rollback.version = v->v.version;
    }
    n->w->faults++;
    lv_say(n->w, "%s: the operator %s", n->name,
           c.kind == HUB_CMD_DISCARD ? "discards" : "goes back");
    (void)lv_hub_step(n, &c);
}

static void fate(struct lv_world *w) {
    struct lv_hub *n = &w->hub[prng_below(&w->g, w->hubs)];
    w->faults++;
    switch (prng_below(&w->g, 4)) {
    case 0: lv_hub_kill(n); break;
    case 1: n->link.cut_until = w->turn + prng_below(&w->g, 80ULL * w->pace); break;
    case 2:
        if (n->alive && prng_below(&w->g, 4) == 0) operator_turn(n);
        break;
    default: w->now += (time_ns)prng_below(&w->g, 30) * NS_PER_S; break; /* leases lapse */
    }
}

static void turn(struct lv_world *w) {
    w->turn++;
    w->now += (time_ns)prng_below(&w->g, 300) * NS_PER_MS / w->pace;
    if (lv_chance(w, 25)) fate(w);
    for (uint32_t i = 0; i < w->hubs; i++)
        if (!w->hub[i].alive && (w->calm || w->turn >= w->hub[i].down_until))
            lv_hub_start(&w->hub[i]);
    struct lv_hub *n = &w->hub[prng_below(&w->g, w->hubs)];
    lv_hub_tick(n);
    uint64_t what = prng_below(&w->g, 8);
    if (what < 2 && n->alive)
        lv_hub_merge(n);
    else if (what < 5 && n->up != NULL)
        lv_uplink_pass(n);
    else if (n->leaf)
        site_turn(n, (uint32_t)prng_below(&w->g, w->shape.sites));
}

/* ---- A seed ---------------------------------------------------------------------------------------------------------- */
struct lv_shape lv_shape_of(uint32_t levels, uint64_t sites) {
    struct lv_shape s = {levels, 2, 2, sites > 0};
    uint64_t leaves = 2;
    if (sites == 0) return s;
    while (levels == 2 ? leaves * leaves < sites : leaves * leaves * leaves < sites) leaves++;
    s.fan = (uint32_t)leaves;
    if (levels == 3) leaves *= leaves;
    s.sites = (uint32_t)((sites + leaves - 1) / leaves);
    return s;
}

static struct hub_settings settings_of(struct lv_world *w, const struct lv_hub *n) {
    uint32_t members = n->leaf ? w->shape.sites : w->shape.fan;
    struct hub_settings s = {.parameters = w->weights,
                             .positions = w->positions,
                             .seq_len = 8,
                             .epochs = w->epochs,
                             .order_seed = 1,
                             .steps = 4,
                             .quorum = 1 + (uint32_t)prng_below(&w->g, 2),
                             .grace_ns = (time_ns)(1 + prng_below(&w->g, 10)) * NS_PER_S,
                             .staleness_max = 1 + (uint32_t)prng_below(&w->g, 3),
                             .rule = outer_rule_default(),
                             .codec = CODEC_FP32,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .ttl_ns = (time_ns)(10 + prng_below(&w->g, 30)) * NS_PER_S,
                             .heartbeat_ns = NS_PER_S,
                             .lease_samples_min = 1,
                             .lease_samples_max = n->below * (2 + prng_below(&w->g, 12)),
                             .crashes_max = 1000,
                             .sites_max = members < 7 ? 8 : members + 1,
                             .records_per_snapshot = 1000,
                             .delta_bytes_max = 1 << 20};
    s.run.v[0] = (uint8_t)(1 + n->index);
    s.rule.sum = true;
    s.rule.late_weight = 1;
    return s;
}

static void build(struct lv_world *w) {
    const struct lv_shape *s = &w->shape;
    uint32_t leaves = s->levels == 2 ? s->fan : s->fan * s->fan;
    w->positions = 12 + prng_below(&w->g, LV_POSITIONS - 11);
    w->epochs = 1 + (uint32_t)prng_below(&w->g, LV_EPOCHS);
    w->rounds = 1 + (uint32_t)prng_below(&w->g, 6);
    w->now = NS_PER_S;
    w->hubs = 1 + (s->levels == 2 ? 0 : s->fan) + leaves;
    w->weights = LV_POSITIONS * LV_EPOCHS;
    w->pace = 1;
    w->blobs_max = 4096;
    if (s->large) {
        w->positions = (uint64_t)LV_POSITIONS_A_SITE * leaves * s->sites;
        w->epochs = 1;
        w->weights = w->positions;
        w->pace = 1 + w->hubs * s->sites / 14;
        w->blobs_max = 16384;
    }
    w->hub = mem_alloc(w->hubs, sizeof *w->hub);
    w->blob = mem_alloc(w->blobs_max, sizeof *w->blob);
    for (uint32_t i = 0; i < w->hubs; i++) {
        struct lv_hub *n = &w->hub[i];
        bool middle = s->levels == 3 && i >= 1 && i <= s->fan;
        n->w = w;
        n->index = i;
        n->up = i == 0 ? NULL : &w->hub[(i - 1) / s->fan];
        n->leaf = s->fan * i + 1 >= w->hubs;
        n->below = !s->large ? 1
                   : n->leaf ? (s->sites + 1) / 2
                   : middle  ? s->sites * s->fan / 2
                             : 1 + leaves * s->sites / 4;
        n->site = mem_alloc(s->sites, sizeof *n->site);
        n->link.delta = mem_alloc(w->weights, sizeof *n->link.delta);
        (void)snprintf(n->name, sizeof n->name, "hub%u", i);
        n->s = settings_of(w, n);
        lv_hub_open(n);
    }
}

static void raze(struct lv_world *w) {
    for (uint32_t i = 0; i < w->hubs; i++) {
        lv_hub_close(&w->hub[i]);
        mem_free(w->hub[i].site);
        mem_free(w->hub[i].link.delta);
    }
    for (uint32_t i = 0; i < w->blobs_max; i++) mem_free(w->blob[i].d);
    mem_free(w->blob);
    mem_free(w->hub);
}

static bool all_complete(struct lv_world *w) {
    for (uint32_t i = 0; i < w->hubs; i++) {
        struct hub_view v;
        if (!w->hub[i].alive) return false;
        hub_view(w->hub[i].h, w->now, &v);
        if (!v.complete) return false;
    }
    return true;
}

/* Above all: every hub ends with the same weights. Their counts were proved version by version. */
static void end_check(struct lv_world *w) {
    const struct lv_hub *top = &w->hub[0];
    const struct lv_version *want = lv_version_find(top, top->h->versions[top->h->head].v.version);
    for (uint32_t i = 1; i < w->hubs; i++) {
        const struct lv_hub *n = &w->hub[i];
        const struct lv_version *v = lv_version_find(n, n->h->versions[n->h->head].v.version);
        if (memcmp(v->theta, want->theta, w->weights * sizeof *v->theta) != 0)
            lv_fail(w, "%s ends with other weights than the top", n->name);
    }
}

/* Where everybody stands, for who looks at a trace. */
static void say_state(const struct lv_world *w) {
    for (uint32_t i = 0; i < w->hubs; i++) {
        const struct lv_hub *n = &w->hub[i];
        const struct uplink_state *s = &n->link.st;
        struct hub_region_view r;
        struct hub_view v;
        hub_view(n->h, w->now, &v);
        hub_region(n->h, 0, &r);
        lv_say(
            w,
            "%s: head %llu%s%s: available %llu leased %llu staged %llu merged %llu skipped %llu; "
            "taken %llu%s; open %u next %u%s pending %u%s merged %llu cut %llu",
            n->name, (unsigned long long)v.head, v.complete ? " complete" : "",
            n->h->merge != NULL ? " merging" : "", (unsigned long long)v.counts.available,
            (unsigned long long)v.counts.leased, (unsigned long long)v.counts.staged,
            (unsigned long long)v.counts.merged, (unsigned long long)v.counts.skipped,
            (unsigned long long)r.taken, r.taking ? " taking" : "", s->current.count, s->next.count,
            n->link.next_closed ? " closed" : "", s->pending.count, s->staged ? " staged" : "",
            (unsigned long long)s->merged, (unsigned long long)s->cut);
    }
}

static bool run_seed(struct lv_world *w, const struct lv_shape *shape, uint64_t seed, bool trace) {
    memset(w, 0, sizeof *w);
    prng_seed(&w->g, seed);
    w->seed = seed;
    w->shape = *shape;
    w->trace = trace;
    if (setjmp(w->out) == 0) {
        build(w);
        while (w->turn < (uint64_t)TURNS * w->pace && !all_complete(w)) turn(w);
        w->calm = true;
        for (uint32_t i = 0; i < w->hubs; i++) w->hub[i].link.cut_until = 0;
        while (!all_complete(w)) {
            bool over = w->turn > (uint64_t)(TURNS + TURNS_CALM) * w->pace;
            if (over) say_state(w);
            if (over) lv_fail(w, "L1: not complete when the faults are over");
            turn(w);
        }
        end_check(w);
    }
    raze(w);
    return w->why[0] == '\0';
}

/* ---- Seeds in a row -------------------------------------------------------------------------------------------------- */
int cmd_sim_levels(const struct lv_shape *shape, uint64_t first, uint64_t count, bool trace) {
    struct lv_world *w = mem_alloc(1, sizeof *w);
    uint64_t violations = 0, seeds = 0, turns = 0, crashes = 0, faults = 0, resets = 0, lost = 0,
             merges = 0;
    for (uint64_t i = 0; i < count && violations < VIOLATIONS_MAX; i++) {
        bool good = run_seed(w, shape, first + i, trace);
        uint64_t before = w->turn;
        if (good && (first + i) % TWICE_EVERY == 0) {
            good = run_seed(w, shape, first + i, false);
            if (good && w->turn != before) {
                good = false;
                (void)snprintf(w->why, sizeof w->why, "the same seed went another way");
            }
        }
        seeds++;
        turns += w->turn;
        crashes += w->crashes;
        faults += w->faults;
        resets += w->resets;
        lost += w->lost;
        merges += w->merges;
        if (good) continue;
        violations++;
        printf("FAIL seed %" PRIu64 " at turn %" PRIu64
               ": %s\n     replay: beringia sim --levels %u%s --seed %" PRIu64 "\n",
               first + i, w->turn, w->why, shape->levels,
               shape->large ? " with the same --sites" : "", first + i);
    }
    printf("levels=%u hubs=%u sites=%u seeds=%" PRIu64 " violations=%" PRIu64 " turns=%" PRIu64
           " merges=%" PRIu64 " crashes=%" PRIu64 " faults=%" PRIu64 " lost=%" PRIu64
           " resets=%" PRIu64 "\n",
           shape->levels, w->hubs,
           w->shape.sites * (shape->levels == 2 ? w->shape.fan : w->shape.fan * w->shape.fan),
           seeds, violations, turns, merges, crashes, faults, lost, resets);
    mem_free(w);
    return violations > 0 ? 1 : 0;
}

uint64_t lv_hunt(uint32_t levels, uint64_t seeds, char why[400]) {
    struct lv_world *w = mem_alloc(1, sizeof *w);
    const struct lv_shape shape = lv_shape_of(levels, 0);
    uint64_t seed = 1;
    while (seed <= seeds && run_seed(w, &shape, seed, false)) seed++;
    (void)snprintf(why, 400, "%s", w->why);
    mem_free(w);
    return seed <= seeds ? seed : 0;
}
