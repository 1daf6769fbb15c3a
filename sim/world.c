/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - the swarm: which faults this seed has, and how often; the turns in which fate and the
 * operator strike; the calm after them, in which the run must come to its end (L1).
 *
 * Each seed draws its own subset of faults, so that some seeds have one kind alone, at a high rate,
 * and no kind hides behind another. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

enum { SIM_SITES_SEED = 5, POSITIONS_A_SITE = 8 }; /* a seed draws up to so many sites by itself */

/* ---- Drawing ---------------------------------------------------------------------------------------------- */

static void draw_faults(struct sim *m) {
    struct sim_faults *f = &m->w.f;
    struct prng *g = &m->prng;
    static const struct {
        size_t offset;
        double often, rate;
    } table[] = {
#define ROW(field, often, rate) {offsetof(struct sim_faults, field), often, rate}
        ROW(lose, 0.4, 0.25),
        ROW(twice, 0.4, 0.5),
        ROW(slow, 0.25, 0.1),
        ROW(very_slow, 0.15, 0.01),
        ROW(cut, 0.25, 0.15),
        ROW(cut_one_way, 0.25, 0.15),
        ROW(cut_all, 0.15, 0.05),
        ROW(crash, 0.4, 0.2),
        ROW(fresh, 0.4, 0.8),
        ROW(old, 0.25, 0.8),
        ROW(twin, 0.25, 0.08),
        ROW(gone, 0.2, 0.05),
        ROW(freeze, 0.2, 0.1),
        ROW(close, 0.25, 0.08),
        ROW(save_torn, 0.15, 0.3),
        ROW(skip, 0.25, 0.2),
        ROW(hub_crash, 0.4, 0.04),
        ROW(hub_idle_crash, 0.25, 0.08),
        ROW(hub_freeze, 0.2, 0.08),
        ROW(hub_two, 0.15, 0.12),
        ROW(hub_restore, 0.2, 0.12),
        ROW(load_newer, 0.5, 1),
        ROW(full, 0.15, 0.06),
        ROW(damage_delta, 0.12, 0.2),
        ROW(damage_checkpoint, 0.08, 0.05),
        ROW(damage_snapshot, 0.2, 0.5),
        ROW(upload_breaks, 0.35, 0.6),
        ROW(upload_flips, 0.2, 0.15),
        ROW(download_breaks, 0.25, 0.3),
        ROW(discard, 0.2, 0.1),
        ROW(rollback, 0.15, 0.06),
        ROW(drain, 0.15, 0.05),
        ROW(clock_jump, 0.2, 0.08),
        ROW(merge_fails, 0.12, 0.08),
        ROW(break_promise, 0.2, 0.5),
        ROW(foreign, 0.03, 0.3),
        ROW(forget_files, 0.1, 0.2),
        ROW(append_s, 0.3, 0.03),
        ROW(skew, 0.25, 1),
#undef ROW
    };
    for (size_t i = 0; i < ARRAY_COUNT(table); i++) {
        double on = prng_unit(g), rate = prng_unit(g);
        *(double *)(void *)((char *)f + table[i].offset) =
            on < table[i].often ? rate * table[i].rate : 0;
    }
    double often = prng_unit(g);
    f->save = often < 0.2 ? 0.02 : prng_unit(g) * 0.6;
}

static void draw_codec(struct sim *m) {
    static const enum codec codecs[] = {CODEC_FP32, CODEC_BF16, CODEC_INT8};
    m->w.codec = codecs[prng_below(&m->prng, ARRAY_COUNT(codecs))];
    const float ones[4] = {0, -1, -1, 0};
    float back[4];
    uint8_t coded[64];
    bool exact = codec_encode(m->w.codec, ones, 4, coded) == BRG_OK &&
                 codec_decode(m->w.codec, coded, 4, back) == BRG_OK &&
                 memcmp(ones, back, sizeof ones) == 0;
    if (!exact) m->w.codec = CODEC_FP32; /* counts must survive their codec */
}

static void draw_poison(struct sim *m) {
    struct prng *g = &m->prng;
    memset(m->poison, 0, sizeof m->poison);
    if (m->settings.crashes_max > 0 && prng_unit(g) < 0.15)
        m->poison[prng_below(g, m->w.weights)] = 1;
    for (uint64_t n = prng_unit(g) < 0.15 ? 1 + prng_below(g, 3) : 0; n > 0; n--)
        m->poison[prng_below(g, m->w.weights)] = 2;
}

static void draw_settings(struct sim *m) {
    struct prng *g = &m->prng;
    struct sim_world *w = &m->w;
    m->settings = (struct hub_settings){
        .run = {{1}},
        .fingerprint = {{2}},
        .tensors = {{3}},
        .parameters = w->weights,
        .positions = w->positions,
        .seq_len = 16,
        .epochs = w->epochs,
        .order_seed = 1,
        .steps = w->steps,
        .quorum = 1 + (uint32_t)prng_below(g, w->sites),
        .grace_ns = sim_seconds(0.2 + 6 * prng_unit(g)),
        .staleness_max = (uint32_t)prng_below(g, 3),
        .cadence = prng_below(g, 2) == 1,
        .rule = outer_rule_default(),
        .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.001, .tokens_total = 1e6},
        .codec = w->codec,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .weight_decay = 0.1,
        .ttl_ns = sim_seconds(6 + 30 * prng_unit(g)),
        .lease_samples_min = 1 + prng_below(g, 3),
        .sites_max = w->sites > SIM_SITES_SEED ? SIM_PROCS : 16,
        .delta_bytes_max = 1 << 20};
    m->settings.rule.sum = true;
    m->settings.heartbeat_ns = m->settings.ttl_ns / (time_ns)(4 + prng_below(g, 8));
    m->settings.lease_samples_max = m->settings.lease_samples_min + prng_below(g, 16);
    m->settings.crashes_max = prng_below(g, 2) ? 2 + (uint32_t)prng_below(g, 2) : 0;
    m->settings.records_per_snapshot = prng_below(g, 2) ? 8 + (uint32_t)prng_below(g, 40) : 1000;
}

/* From numbers of its own: the worlds of all other seeds stay what they were. */
static void draw_synchronous(struct sim *m) {
    struct prng g;
    prng_seed(&g, mix64(m->seed ^ UINT64_C(0x73796e6368726f6e)));
    if (m->sync_one_in == 0 || prng_below(&g, m->sync_one_in) > 0) return;
    double share = prng_below(&g, 3) == 0 ? 1 : prng_unit(&g);
    m->settings.sync_tokens = ceil(share * (double)(m->w.weights * m->settings.seq_len));
    m->settings.eps = 1e-8;
}

void world_draw(struct sim *m) {
    struct prng *g = &m->prng;
    struct sim_world *w = &m->w;
    memset(w, 0, sizeof *w);
    bool big = prng_below(g, 100) == 0;
    w->sites = prng_below(g, 8) == 0 ? 4 + (uint32_t)prng_below(g, 2)
                                     : 1 + (uint32_t)prng_below(g, 3);
    w->epochs = prng_below(g, 6) == 0 ? 3 : 1 + (uint32_t)prng_below(g, 2);
    w->positions = big ? 60 + prng_below(g, SIM_POSITIONS - 60) : 6 + prng_below(g, 22);
    if (m->sites_wanted > 0) {
        w->sites = m->sites_wanted;
        w->epochs = 1;
        w->positions = w->sites * POSITIONS_A_SITE;
    }
    w->weights = w->epochs * w->positions;
    w->batch = 1 + prng_below(g, 4);
    w->steps = 1 + prng_below(g, 4);
    w->keep_checkpoints = 2 + prng_below(g, 3);
    w->real_bytes = prng_below(g, 50) == 0;
    w->survivor = (uint32_t)prng_below(g, w->sites);
    draw_codec(m);
    draw_settings(m);
    draw_synchronous(m);
    draw_faults(m);
    draw_poison(m);
    w->turn = sim_seconds(0.5 + 1.5 * prng_unit(g));
    w->faults_end = sim_seconds(3 + 25 * prng_unit(g));
    w->limit = w->faults_end + sim_seconds(4000);
}

/* ---- Beginning ---------------------------------------------------------------------------------------------- */

void world_begin(struct sim *m) {
    m->version0 = checkpoint_make(m, NULL, 0, 0);
    struct sim_blob *b = m->version0;
    b->theta_hash = sim_hash(b->theta, m->w.weights * sizeof(float), 1);
    b->hash = sim_hash("version 0", 9, get_le64(b->theta_hash.v));
    b->present = true;
    /* `beringia init` writes the opening record, long before anything can go wrong. */
    struct hub_out out;
    struct hub *h = hub_create(&m->settings, 1);
    struct hub_cmd init = {.kind = HUB_CMD_INIT};
    init.u.init.checkpoint = b->hash;
    init.u.init.theta = b->theta_hash;
    init.u.init.bytes = 1;
    hub_out_init(&out);
    hub_step(h, 0, &init, &out);
    journal_put(m, &out.records, out.records_count);
    hub_out_fini(&out);
    hub_destroy(h);
    hub_start(m, 0);
    for (uint32_t i = 0; i < m->w.sites; i++) {
        bool late = i != m->w.survivor && prng_below(&m->prng, 4) == 0;
        m->site_started[i] = !late;
        if (!late) sim_post(m, EV_RESTART, m->now + sim_seconds(sim_unit(m)), i, m->proc[i].life);
    }
    sim_post(m, EV_WORLD, m->w.turn, 0, 0);
    sim_post(m, EV_FAULTS_END, m->w.faults_end, 0, 0);
}

/* ---- Fate: sites ------------------------------------------------------------------------------------------ */

static struct sim_proc *any_proc(struct sim *m) {
    uint32_t from = (uint32_t)prng_below(&m->prng, SIM_PROCS);
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        struct sim_proc *p = &m->proc[(from + i) % SIM_PROCS];
        if (p->alive && !p->foreign) return p;
    }
    return NULL;
}

static struct sim_proc *free_slot(struct sim *m) {
    for (uint32_t i = SIM_SITES; i < SIM_PROCS; i++)
        if (!m->proc[i].alive) return &m->proc[i];
    return NULL;
}

static void twin_start(struct sim *m) {
    struct sim_proc *p = any_proc(m), *to = free_slot(m);
    if (p == NULL || to == NULL) return;
    dir_copy(&to->dir, &p->dir);
    if (sim_draw(m, 0.3)) dir_clear(&to->dir);
    to->twin = true;
    to->foreign = false;
    MARK(m, TWIN);
    site_proc_start(m, to, p->site);
}

static void foreign_start(struct sim *m) {
    struct sim_proc *to = free_slot(m);
    if (to == NULL) return;
    dir_clear(&to->dir);
    to->twin = to->foreign = true;
    site_proc_start(m, to, (uint32_t)prng_below(&m->prng, m->w.sites));
}

static void crash(struct sim *m, struct sim_proc *p, bool for_ever) {
    site_proc_die(m, p, for_ever ? "for ever" : "killed");
    if (p->twin) return;
    if (for_ever) {
        MARK(m, GONE);
        m->site_gone[p->site] = true;
        return;
    }
    double away = sim_draw(m, 0.2) ? 60 : 6;
    sim_post(m, EV_RESTART, m->now + sim_seconds(sim_unit(m) * away), p->index, p->life);
}

static void fate_of_sites(struct sim *m) {
    const struct sim_faults *f = &m->w.f;
    struct sim_proc *p = any_proc(m);
    if (sim_chance(m, f->twin)) twin_start(m);
    if (sim_chance(m, f->foreign)) foreign_start(m);
    for (uint32_t i = 0; i < m->w.sites; i++) {
        if (m->site_started[i] || !sim_draw(m, 0.1)) continue;
        m->site_started[i] = true;
        MARK(m, LATE_JOIN);
        sim_post(m, EV_RESTART, m->now, i, m->proc[i].life);
    }
    if (p == NULL) return;
    if (sim_chance(m, f->crash)) {
        crash(m, p, false);
    } else if (p->site != m->w.survivor && sim_chance(m, f->gone)) {
        crash(m, p, true);
    } else if (sim_chance(m, f->freeze)) {
        MARK(m, SITE_FROZEN);
        p->frozen_until = m->now + sim_seconds(60 * sim_unit(m));
    } else if (sim_chance(m, f->close)) {
        site_proc_event(m, p, &(struct site_event){.kind = SITE_CLOSE});
        if (!p->training) site_loop(m, p);
    } else if (sim_chance(m, f->clock_jump)) {
        MARK(m, CLOCK_JUMP);
        p->clock.local0 += sim_seconds(200 * sim_unit(m) * sim_unit(m));
    }
}

/* A machine starts a site's process again. */
static void restart(struct sim *m, const struct sim_event *e) {
    struct sim_proc *p = &m->proc[e->proc];
    if (p->alive || p->life != e->life || m->site_gone[p->site]) return;
    bool again = p->core.state != SITE_NEW;
    bool fresh = sim_chance(m, m->w.f.fresh);
    if (fresh) {
        dir_clear(&p->dir);
        if (again) MARK(m, SITE_FRESH);
    } else if (sim_chance(m, m->w.f.old)) {
        int at = 1 + (int)prng_below(&m->prng, SIM_SAVES - 1);
        if (p->dir.save[at].valid) {
            struct sim_save swap = p->dir.save[0];
            p->dir.save[0] = p->dir.save[at];
            p->dir.save[at] = swap;
            MARK(m, SITE_OLD);
        }
    }
    site_proc_start(m, p, p->site);
}

/* ---- Fate: network, hub, disk -------------------------------------------------------------------------------- */

static void fate_of_network(struct sim *m) {
    const struct sim_faults *f = &m->w.f;
    uint32_t site = (uint32_t)prng_below(&m->prng, m->w.sites);
    time_ns until = m->now + sim_seconds(25 * sim_unit(m));
    if (sim_chance(m, f->cut)) m->cut_up[site] = m->cut_down[site] = until;
    if (sim_chance(m, f->cut_one_way)) {
        MARK(m, CUT_ONE_WAY);
        *(sim_draw(m, 0.5) ? &m->cut_up[site] : &m->cut_down[site]) = until;
    }
    if (!sim_chance(m, f->cut_all)) return;
    MARK(m, CUT_ALL);
    for (uint32_t i = 0; i < SIM_SITES; i++) m->cut_up[i] = m->cut_down[i] = until;
}

static void second_hub(struct sim *m, struct sim_hub *s) {
    uint32_t other = (s->index + 1) % SIM_HUBS;
    if (m->hub[other].alive) return;
    MARK(m, HUB_TWO);
    if (sim_draw(m, 0.5)) s->frozen_until = m->now + sim_seconds(20 * sim_unit(m));
    hub_start(m, other);
}

static void restore_old(struct sim *m, struct sim_hub *s) {
    MARK(m, HUB_RESTORED);
    hub_die(m, s, "its disk is lost");
    for (uint32_t i = 0; i < SIM_HUBS; i++) hub_die(m, &m->hub[i], "its disk is lost");
    store_restore_old(m);
    sim_post(m, EV_HUB_START, m->now + sim_seconds(10 * sim_unit(m)), m->hub_now, 0);
}

static void fate_of_hub(struct sim *m) {
    const struct sim_faults *f = &m->w.f;
    struct sim_hub *s = hub_at(m);
    if (f->hub_restore > 0 && !m->has_backup && sim_draw(m, 0.3)) store_backup(m);
    if (sim_chance(m, f->full)) m->full_until = m->now + sim_seconds(12 * sim_unit(m));
    if (sim_chance(m, f->merge_fails)) m->merge_fails_until = m->now + sim_seconds(6 * sim_unit(m));
    if (s == NULL) return;
    if (sim_chance(m, f->hub_idle_crash)) {
        hub_die_and_restart(m, s, "killed");
    } else if (sim_chance(m, f->hub_freeze)) {
        MARK(m, HUB_FROZEN);
        s->frozen_until = m->now + sim_seconds(80 * sim_unit(m) * sim_unit(m));
    } else if (sim_chance(m, f->hub_two)) {
        second_hub(m, s);
    } else if (m->has_backup && sim_chance(m, f->hub_restore)) {
        restore_old(m, s);
    } else if (sim_chance(m, f->clock_jump)) {
        MARK(m, CLOCK_JUMP);
        s->clock.local0 += sim_seconds(100 * sim_unit(m) - 30);
    }
}

/* Bits flip on the hub's disk. */
static void fate_of_disk(struct sim *m) {
    const struct model *o = &m->model;
    if (sim_chance(m, m->w.f.damage_delta)) {
        for (uint32_t i = 0; i < o->deltas_count; i++) {
            struct sim_blob *b =
                o->deltas[i].state == MODEL_STAGED ? blob_find(m, &o->deltas[i].blob) : NULL;
            if (b != NULL && b->present) b->damaged = true;
        }
    }
    if (sim_chance(m, m->w.f.damage_checkpoint)) {
        struct sim_blob *b = blob_find(m, &o->versions[o->head].checkpoint);
        if (b != NULL && b != m->version0) b->damaged = true;
    }
}

/* ---- The operator --------------------------------------------------------------------------------------------- */

/* An ancestor of the head, or the head, whose checkpoint is kept. */
static uint64_t ancestor(struct sim *m) {
    const struct model *o = &m->model;
    const struct model_version *v = &o->versions[o->head];
    for (uint64_t back = prng_below(&m->prng, 3); back > 0 && v->version > 0; back--) {
        const struct model_version *parent = model_version_find(m, v->parent);
        const struct sim_blob *b = blob_find(m, &parent->checkpoint);
        if (b == NULL || !b->present || b->damaged) break;
        v = parent;
    }
    return v->version;
}

static void rollback(struct sim *m) {
    struct hub_cmd c = {.kind = HUB_CMD_ROLLBACK};
    c.u.rollback.version = ancestor(m);
    (void)hub_operator(m, &c);
}

static void end_of_hold(struct sim *m) {
    if (!sim_draw(m, m->faults_on ? 0.15 : 0.5)) return;
    if (!m->has_newer || !sim_draw(m, m->w.f.load_newer)) {
        rollback(m);
        return;
    }
    MARK(m, HUB_NEWER);
    for (uint32_t i = 0; i < SIM_HUBS; i++) hub_die(m, &m->hub[i], "the newer copy was found");
    store_load_newer(m);
    sim_post(m, EV_HUB_START, m->now + sim_seconds(2), m->hub_now, 0);
}

static void quarantine(struct sim *m) {
    const struct model *o = &m->model;
    for (uint32_t at = 0; at < o->epochs * m->w.positions; at++) {
        if (o->state[at] != EXTENT_QUARANTINED || !sim_draw(m, m->faults_on ? 0.15 : 1)) continue;
        struct hub_cmd c = {.kind = HUB_CMD_QUARANTINE};
        c.u.quarantine.epoch = (uint32_t)(at / m->w.positions);
        c.u.quarantine.range = (struct range){at % m->w.positions, 1};
        c.u.quarantine.skip = m->poison[at] == 1 ? sim_draw(m, m->faults_on ? 0.7 : 1)
                                                 : sim_draw(m, 0.1);
        snprintf(c.u.quarantine.reason, sizeof c.u.quarantine.reason, "kills");
        if (!hub_operator(m, &c)) return;
    }
}

static void discard(struct sim *m) {
    const struct model *o = &m->model;
    for (uint32_t i = o->deltas_count; i-- > 0;) {
        if (o->deltas[i].state != MODEL_STAGED) continue;
        struct hub_cmd c = {.kind = HUB_CMD_DISCARD};
        c.u.discard.did = o->deltas[i].did;
        snprintf(c.u.discard.text, sizeof c.u.discard.text, "an operator did not like it");
        (void)hub_operator(m, &c);
        return;
    }
}

static void operator_turn(struct sim *m) {
    const struct sim_faults *f = &m->w.f;
    if (sim_chance(m, f->discard)) discard(m);
    if (sim_chance(m, f->rollback)) rollback(m);
    if (sim_chance(m, f->drain)) {
        struct hub_cmd c = {.kind = HUB_CMD_DRAIN};
        c.u.drain.on = sim_draw(m, 0.6);
        MARK(m, DRAINED);
        (void)hub_operator(m, &c);
    }
    if (m->model.held) end_of_hold(m);
    quarantine(m);
}

void world_turn(struct sim *m) {
    fate_of_network(m);
    fate_of_hub(m);
    fate_of_disk(m);
    fate_of_sites(m);
    operator_turn(m);
    sim_post(m, EV_WORLD, m->now + m->w.turn * (m->faults_on ? 1 : 4), 0, 0);
}

/* ---- The calm --------------------------------------------------------------------------------------------------- */

static void calm_site(struct sim *m, struct sim_proc *p) {
    p->frozen_until = m->now;
    clock_set_rate(&p->clock, m->now, 1);
    if (!p->alive || p->site == m->w.survivor || p->foreign) return;
    if (!sim_draw(m, 0.3)) return;
    site_proc_die(m, p, "for ever");
    if (!p->twin) m->site_gone[p->site] = true;
}

/* From here on the hub and one site stay up and connected, and disks have room. */
void world_calm(struct sim *m) {
    SAY(m, "---- the faults stop");
    m->faults_on = false;
    m->full_until = m->merge_fails_until = m->now;
    for (uint32_t i = 0; i < SIM_SITES; i++) m->cut_up[i] = m->cut_down[i] = m->now;
    for (uint32_t i = 0; i < m->blobs_count; i++)
        if (m->blob[i].kind == BLOB_CHECKPOINT) m->blob[i].damaged = false;
    for (uint32_t i = 0; i < SIM_PROCS; i++) calm_site(m, &m->proc[i]);
    for (uint32_t i = 0; i < SIM_HUBS; i++) {
        struct sim_hub *s = &m->hub[i];
        s->frozen_until = m->now;
        clock_set_rate(&s->clock, m->now, 1);
        if (s->alive && s->owner) m->hub_now = i;
        if (s->alive && !s->owner) hub_die(m, s, "a person found two hubs");
    }
    if (hub_at(m) == NULL) hub_start(m, m->hub_now);
    struct hub_cmd c = {.kind = HUB_CMD_DRAIN};
    (void)hub_operator(m, &c);
    struct sim_proc *p = &m->proc[m->w.survivor];
    if (!p->alive) sim_post(m, EV_RESTART, m->now + NS_PER_S, p->index, p->life);
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

static void to_site(struct sim *m, struct sim_event *e) {
    struct sim_proc *p = &m->proc[e->proc];
    if (!p->alive || p->life != e->life) return;
    if (m->now < p->frozen_until) {
        struct sim_event *again =
            sim_post(m, (enum sim_event_kind)e->kind, p->frozen_until, e->proc, e->life);
        again->did = e->did;
        again->good = e->good;
        again->a = e->a;
        again->msg = e->msg;
        e->kind = EV_NONE; /* the message lives on */
        return;
    }
    site_on_event(m, p, e);
}

static void to_hub(struct sim *m, struct sim_event *e) {
    struct sim_hub *s = hub_at(m);
    struct sim_hub *other = &m->hub[(m->hub_now + 1) % SIM_HUBS];
    if (other->alive && sim_draw(m, 0.4)) s = other; /* the old address */
    if (s == NULL) return;
    if (hub_frozen(m, s, e)) {
        e->kind = EV_NONE;
        return;
    }
    hub_on_request(m, s, e);
}

static void hub_event(struct sim *m, struct sim_event *e) {
    struct sim_hub *s = &m->hub[e->proc];
    if (!s->alive || s->life != e->life || hub_frozen(m, s, e)) return;
    if (e->kind == EV_HUB_TICK) hub_on_tick(m, s);
    if (e->kind == EV_HUB_APPEND) hub_on_append(m, s, true);
    if (e->kind == EV_HUB_MERGE) merge_on_end(m, s, e->a);
    if (e->kind == EV_HUB_PROBE) hub_on_probe(m, s);
}

void sim_dispatch(struct sim *m, struct sim_event *e) {
    switch ((enum sim_event_kind)e->kind) {
    case EV_TO_HUB: to_hub(m, e); break;
    case EV_HUB_TICK:
    case EV_HUB_APPEND:
    case EV_HUB_MERGE:
    case EV_HUB_PROBE: hub_event(m, e); break;
    case EV_HUB_START:
        if (hub_at(m) == NULL) hub_start(m, e->proc);
        break;
    case EV_RESTART: restart(m, e); break;
    case EV_WORLD: world_turn(m); break;
    case EV_FAULTS_END: world_calm(m); break;
    case EV_TO_SITE:
    case EV_TIMER:
    case EV_TRAIN:
    case EV_STORED:
    case EV_SAVED:
    case EV_UPLOAD:
    case EV_UPLOADED:
    case EV_DOWNLOAD:
    case EV_DOWNLOADED: to_site(m, e); break;
    case EV_NONE:
    case EV_KINDS: break;
    }
}
