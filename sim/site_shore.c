/* SPDX-License-Identifier: Apache-2.0 */
/* site_shore.c - a site's process, simulated: the order of src/site/threads_os.c (what the core asks
 * for is sent, carried, written), src/site/loop_os.c (take, step, sync) and src/site/duty_os.c (what
 * happens to the weights). The trainer of the counting model stands at the end of it. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

/* ---- What the core asks for: threads_os.c ------------------------------------------------------------- */

static void timer_arm(struct sim *m, struct sim_proc *p) {
    time_ns due = site_expiry(&p->core);
    if (due == TIME_NS_NEVER) return;
    time_ns at = clock_when(&p->clock, due, m->now);
    if (p->timer_at > m->now && p->timer_at <= at) return; /* one comes sooner */
    p->timer_at = at;
    sim_post(m, EV_TIMER, at, p->index, p->life);
}

void site_proc_event(struct sim *m, struct sim_proc *p, const struct site_event *ev) {
    struct site_out *o = &p->out;
    site_step(&p->core, clock_local(&p->clock, m->now), ev, o);
    if (m->trace && o->notes.bytes_count > 0)
        SAY(m, "%s/%u: %s", p->name, p->index, buf_cstr(&o->notes));
    if (o->has_control) net_request(m, p, &o->control, o->control_id, false);
    if (o->has_beat) net_request(m, p, &o->beat, o->beat_id, true);
    if (o->has_upload)
        sim_post(m, EV_UPLOAD, m->now + net_delay(m), p->index, p->life)->did = o->upload_did;
    if (o->has_download)
        sim_post(m, EV_DOWNLOAD, m->now + net_delay(m), p->index, p->life)->a = o->download_version;
    timer_arm(m, p);
}

static void tick(struct sim *m, struct sim_proc *p) {
    site_proc_event(m, p, &(struct site_event){.kind = SITE_TICK});
}

static bool hub_reached(struct sim *m, const struct sim_proc *p, struct sim_hub **out) {
    *out = hub_at(m);
    return *out != NULL && m->now >= (*out)->frozen_until && net_up(m, p->site);
}

/* client_upload: pieces, resumed where the last one ended. */
static void upload(struct sim *m, struct sim_proc *p, const struct id128 *did) {
    struct sim_hub *s;
    const struct sim_delta *x = delta_of(m, did);
    bool good = hub_reached(m, p, &s) && m->now >= m->full_until && x != NULL;
    if (good) {
        struct sim_part *part = part_get(m, did);
        if (part->bytes > 0 && part->bytes < x->content->bytes) MARK(m, UPLOAD_RESUMED);
        if (sim_chance(m, m->w.f.upload_breaks)) {
            uint64_t left = x->content->bytes - part->bytes;
            part->bytes += left / 2;
            good = false;
        } else {
            part->bytes = x->content->bytes;
        }
        if (sim_chance(m, m->w.f.upload_flips)) part->bad = true;
    }
    struct sim_event *e = sim_post(m, EV_UPLOADED, m->now + net_delay(m), p->index, p->life);
    e->did = *did;
    e->good = good;
}

/* threads_os.c, fetch: a file that is here already is looked at, else the hub is asked. */
static bool fetch(struct sim *m, struct sim_proc *p, uint64_t version) {
    const struct wire_round *r = &p->core.round;
    bool head = r->head == version && !hash_is_zero(&r->theta);
    const struct sim_blob *b = base_file(p, version);
    if (b == NULL) {
        struct sim_hub *s;
        if (!hub_reached(m, p, &s) || sim_chance(m, m->w.f.download_breaks)) return false;
        if (s->seq_queued != s->seq_durable)
            return false; /* nobody is told what a crash can undo */
        const struct hub_version *v = hub_version_of(s->h, version);
        b = v != NULL ? blob_find(m, &v->v.checkpoint) : NULL;
        if (b == NULL || !b->present || b->damaged) return false;
        struct model_version *known = model_version_find(m, version);
        if (s->owner && (known == NULL || !hash_equal(&known->checkpoint, &b->hash)))
            sim_fail(m, "I6: version %llu was seen by a site before it was committed",
                     (unsigned long long)version);
    }
    if (head && !hash_equal(&r->theta, &b->theta_hash)) {
        base_remove(p, version);
        return false;
    }
    base_put(p, version, b);
    return true;
}

static void download(struct sim *m, struct sim_proc *p, uint64_t version) {
    bool good = fetch(m, p, version);
    struct sim_event *e = sim_post(m, EV_DOWNLOADED, m->now + net_delay(m), p->index, p->life);
    e->a = version;
    e->good = good;
}

/* loop_os.c, gradient_add: under the counting rule a sum; with the sign of a contribution. */
static void gradient_add(struct sim_proc *p, size_t at) {
    p->gradient[at] -= 1;
    p->gradient_samples++;
}

static void gradient_forget(struct sim_proc *p) {
    memset(p->gradient, 0, sizeof p->gradient);
    p->gradient_samples = 0;
}

/* ---- The weights: duty_os.c ------------------------------------------------------------------------------ */

static void owed(struct sim *m, struct sim_proc *p, bool merged, float *sum) {
    memset(sum, 0, m->w.weights * sizeof *sum);
    for (uint32_t i = 0; i < p->core.deltas_count; i++) {
        const struct site_delta *d = &p->core.deltas[i];
        bool take = site_delta_local(d) && (!merged || site_delta_in(d, p->core.ready));
        if (take) weights_add(sum, delta_of(m, &d->c.did)->content->d, m->w.weights);
    }
}

/* stage_fill: the segment's gradient, zeros where all of it was skipped. */
static enum brg_status gradient_cut(struct sim *m, struct sim_proc *p, bool still, uint8_t *coded) {
    if ((p->gradient_samples > 0) == still)
        sim_fail(m, "S3: a segment of %llu steps with a gradient of %llu samples",
                 (unsigned long long)p->core.seg.steps, (unsigned long long)p->gradient_samples);
    if (still) memset(p->gradient, 0, sizeof p->gradient);
    enum brg_status st = codec_encode(CODEC_GRADIENT, p->gradient, m->w.weights, coded);
    gradient_forget(p);
    MARK(m, GRADIENT);
    return st;
}

static void duty_cut(struct sim *m, struct sim_proc *p) {
    float scratch[2 * SIM_WEIGHTS];
    size_t n = m->w.weights;
    if (m->deltas_count == SIM_DELTAS) sim_fail(m, "too many contributions");
    enum codec codec = p->core.synchronous ? CODEC_GRADIENT : m->w.codec;
    uint64_t bytes = codec_bytes(codec, n);
    uint8_t *coded = sim_alloc(m, bytes);
    float *d = sim_alloc(m, n * sizeof *d);
    bool still = p->core.seg.steps == 0;
    enum brg_status st = codec == CODEC_GRADIENT
                             ? gradient_cut(m, p, still, coded)
                             : weights_cut(codec, p->s, still ? p->s : p->theta, n, coded, scratch);
    if (st == BRG_OK) st = codec_decode(codec, coded, n, d);
    if (st != BRG_OK) sim_fail(m, "a contribution cannot be coded");
    const struct site_delta *x = site_cut(&p->core, &p->out.notes);
    struct sim_blob *b = blob_add(m, BLOB_DELTA);
    b->header = (struct delta_header){.codec = codec,
                                      .elements = n,
                                      .base_version = x->c.base,
                                      .tokens = x->c.tokens,
                                      .steps = x->c.steps,
                                      .did = x->c.did,
                                      .base_theta = p->base->theta_hash};
    b->coded = coded;
    b->d = d;
    b->bytes = DELTA_HEADER_BYTES + bytes;
    uint8_t header[DELTA_HEADER_BYTES];
    delta_header_encode(&b->header, header);
    b->hash = sim_hash(coded, bytes, get_le64(sim_hash(header, sizeof header, 2).v));
    m->delta[m->deltas_count++] = (struct sim_delta){.did = x->c.did, .content = b};
    time_ns at = p->writer_free > m->now ? p->writer_free : m->now;
    p->writer_free = at + sim_seconds(0.002 + 0.02 * sim_unit(m));
    sim_post(m, EV_STORED, p->writer_free, p->index, p->life)->did = x->c.did;
    p->changes++;
}

/* false: its files are gone; what is known to be right is the head (give_up_base). */
static bool duty_weights(struct sim *m, struct sim_proc *p, enum site_duty duty) {
    float sum[SIM_WEIGHTS];
    struct site_core *c = &p->core;
    size_t n = m->w.weights;
    const struct sim_blob *from = base_file(p, duty == SITE_DUTY_LOAD ? c->ready : c->base);
    const struct sim_blob *to = base_file(p, c->ready);
    if (from == NULL || (duty == SITE_DUTY_REBASE && to == NULL)) return false;
    if (duty != SITE_DUTY_LOAD) owed(m, p, duty == SITE_DUTY_REBASE, sum);
    if (duty != SITE_DUTY_REBASE) gradient_forget(p);
    if (duty == SITE_DUTY_REBASE && c->synchronous) { /* no own work: the version's bits */
        weights_reset(p->theta, p->s, to->theta, NULL, n);
        p->base = to;
        site_rebased(c, &p->out.notes);
        if (!c->synchronous) MARK(m, SYNC_OVER);
    } else if (duty == SITE_DUTY_LOAD) {
        weights_reset(p->theta, p->s, from->theta, NULL, n);
        p->base = from;
        site_loaded(c);
    } else if (duty == SITE_DUTY_RESET) {
        MARK(m, SITE_RESET);
        m->resets++;
        weights_reset(p->theta, p->s, from->theta, sum, n);
        site_reset(c, &p->out.notes);
    } else {
        if (c->seg.samples > 0) MARK(m, REBASED_IN_SEGMENT);
        weights_rebase(p->theta, p->s, from->theta, to->theta, sum, n);
        p->base = to;
        site_rebased(c, &p->out.notes);
    }
    p->changes++;
    return true;
}

static void duty_run(struct sim *m, struct sim_proc *p, enum site_duty duty) {
    for (uint32_t i = 0; i < p->core.deltas_count; i++) /* its file is still being written: later */
        if (p->core.deltas[i].state == PENDING_CUT) return;
    if (duty == SITE_DUTY_CUT) {
        duty_cut(m, p);
    } else if (!duty_weights(m, p, duty)) {
        if (p->core.loaded) {
            MARK(m, SITE_FORGOT);
            site_forget(&p->core, "local files are missing or damaged", &p->out.notes);
        } else {
            base_remove(p, p->core.ready);
            p->core.ready = SITE_VERSION_NONE;
        }
    }
}

/* ---- The training loop: loop_os.c ------------------------------------------------------------------------- */

static size_t weight_of(const struct sim *m, const struct site_position *x) {
    return x->epoch * m->w.positions + x->position;
}

/* The oldest batch is through. false: its data killed the process. */
static bool train(struct sim *m, struct sim_proc *p) {
    uint64_t n = p->batch_count[0];
    const char *skip = sim_chance(m, m->w.f.skip) ? "overflow" : NULL;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t poison = m->poison[weight_of(m, &p->batch[0][i])];
        if (poison == 1) return false;
        if (poison == 2) skip = "nonfinite";
    }
    bool gradient = site_gradients(&p->core);
    for (uint64_t i = 0; i < n && skip == NULL && !gradient; i++)
        p->theta[weight_of(m, &p->batch[0][i])] += 1;
    if (skip != NULL) MARK(m, SKIPPED);
    enum brg_status st = site_trained(&p->core, m->now, n, 1, 0.001, skip);
    if (st == BRG_E_USAGE) sim_fail(m, "more samples trained than taken");
    for (uint64_t i = 0; i < n && skip == NULL && gradient; i++)
        gradient_add(p, weight_of(m, &p->batch[0][i]));
    p->changes++;
    p->batches--;
    memcpy(p->batch[0], p->batch[1], sizeof p->batch[0]);
    p->batch_count[0] = p->batch_count[1];
    return true;
}

static void sync_weights(struct sim *m, struct sim_proc *p) {
    for (int i = 0; i < 4; i++) {
        enum site_duty duty = site_duty(&p->core);
        uint64_t before = p->changes;
        if (duty == SITE_DUTY_NONE) break;
        duty_run(m, p, duty);
        if (p->changes == before) break;
    }
    bool first = p->changes_saved == 0 && p->changes > 0;
    if (p->changes != p->changes_saved && (first || sim_draw(m, m->w.f.save))) save_begin(m, p);
}

static void stopped(struct sim *m, struct sim_proc *p) {
    const struct site_core *c = &p->core;
    bool fenced = c->stop_status == BRG_E_FENCED;
    SAY(m, "%s/%u stopped: %s", p->name, p->index, c->stop_text);
    if (fenced) MARK(m, TWIN_FENCED);
    if (c->stop_status == BRG_E_MANIFEST) {
        if (!p->foreign) sim_fail(m, "a site with the right data was refused: %s", c->stop_text);
        MARK(m, FOREIGN_REFUSED);
    }
    if (!fenced && c->stop_status != BRG_E_MANIFEST && c->failed_in_row == 0)
        sim_fail(m, "a site stopped: %s", c->stop_text);
    p->alive = false;
    p->life = ++m->lives;
    if (p->foreign || p->twin) return;
    if (!fenced) dir_clear(&p->dir); /* a person looked at it, and starts afresh */
    sim_post(m, EV_RESTART, m->now + sim_seconds(20 + 40 * sim_unit(m)), p->index, p->life);
}

static void gone(struct sim *m, struct sim_proc *p) {
    MARK(m, LEFT);
    if (p->core.loaded && p->changes != p->changes_saved) {
        save_begin(m, p);
        if (p->saving) save_done(m, p);
    }
    p->alive = false;
    p->life = ++m->lives;
    if (!p->twin)
        sim_post(m, EV_RESTART, m->now + sim_seconds(30 * sim_unit(m)), p->index, p->life);
}

/* Takes batches ahead; posts the end of the oldest. */
static void take(struct sim *m, struct sim_proc *p) {
    while (p->batches < p->prefetch) {
        uint64_t n = site_take(&p->core, m->w.batch, p->batch[p->batches]);
        if (n == 0) break;
        p->batch_count[p->batches++] = n;
        if (p->core.alone) MARK(m, ALONE);
        tick(m, p);
        if (!p->alive || p->core.state >= SITE_GONE) return;
    }
    if (p->batches == 0 || p->training) return;
    p->training = true;
    double s = p->step_s * (0.8 + 0.4 * sim_unit(m));
    sim_post(m, EV_TRAIN, m->now + sim_seconds(s), p->index, p->life);
}

/* Sync and take, after a step or when something came that may matter to an idle trainer. */
void site_loop(struct sim *m, struct sim_proc *p) {
    if (p->core.state < SITE_GONE) {
        sync_weights(m, p);
        tick(m, p);
        oracle_site(m, p);
    }
    bool end = p->core.complete ||
               p->core.round.drain; /* brg_take says so, and the trainer closes */
    if (end && !p->core.closing && p->core.state < SITE_LEAVING)
        site_proc_event(m, p, &(struct site_event){.kind = SITE_CLOSE});
    if (p->core.state == SITE_STOPPED)
        stopped(m, p);
    else if (p->core.state == SITE_GONE)
        gone(m, p);
    else
        take(m, p);
    if (p->alive && p->core.state == SITE_STOPPED) stopped(m, p);
}

/* ---- Processes --------------------------------------------------------------------------------------------- */

static struct site_settings settings_of(struct sim *m, const struct sim_proc *p) {
    struct site_settings set = {.run = m->settings.run,
                                .fingerprint = m->settings.fingerprint,
                                .tensors = m->settings.tensors,
                                .tokens_per_sample = m->settings.seq_len,
                                .positions = m->w.positions,
                                .elements = m->w.weights,
                                .codec = m->w.codec,
                                .batch = m->w.batch,
                                .pending_max = 1,
                                .steps_target = m->w.steps,
                                .seed = prng_u64(&m->prng),
                                .retry_min_ns = NS_PER_S / 4,
                                .retry_max_ns = 8 * (time_ns)NS_PER_S,
                                .answer_ns = 3 * (time_ns)NS_PER_S,
                                .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.001},
                                .warmup_cold = 20,
                                .sync_tokens = (uint64_t)m->settings.sync_tokens,
                                .gradients = true};
    set.alone_ns = sim_seconds((double)(set.seed >> 40) * 0x1p-24 * 3);
    if (p->foreign) set.fingerprint.v[5] ^= 1;
    memcpy(set.name, p->name, sizeof set.name);
    return set;
}

void site_proc_start(struct sim *m, struct sim_proc *p, uint32_t site) {
    p->site = (uint16_t)site;
    snprintf(p->name, sizeof p->name, "s%u", site);
    struct site_settings set = settings_of(m, p);
    struct id128 boot;
    put_le64(boot.v, prng_u64(&m->prng));
    put_le64(boot.v + 8, prng_u64(&m->prng));
    if (p->out.notes.bytes_max == 0) site_out_init(&p->out);
    site_init(&p->core, &set, &boot);
    p->life = ++m->lives;
    p->alive = p->ever = true;
    p->training = p->saving = false;
    p->batches = 0;
    p->prefetch = 1 + (uint32_t)prng_below(&m->prng, 2);
    p->timer_at = p->frozen_until = 0;
    p->writer_free = m->now;
    p->changes = p->changes_saved = 0;
    p->base = NULL;
    if (!MUTANT(GRADIENT_KEPT)) gradient_forget(p);
    double rate = m->faults_on && m->w.f.skew > 0 ? 0.2 + 3.8 * sim_unit(m) * sim_unit(m) : 1;
    p->clock =
        (struct sim_clock){.t0 = m->now, .local0 = sim_seconds(500 * sim_unit(m)), .rate = rate};
    p->step_s = 0.05 + 0.4 * sim_unit(m);
    /* site_os.c, run_known: it starts with what the last process was told, hub or no hub. */
    bool resumed = save_restore(m, p);
    SAY(m, "%s/%u starts%s", p->name, p->index, resumed ? " from its local checkpoint" : "");
    site_proc_event(m, p, &(struct site_event){.kind = SITE_START});
    site_loop(m, p);
}

void site_proc_die(struct sim *m, struct sim_proc *p, const char *why) {
    SAY(m, "%s/%u dies: %s", p->name, p->index, why);
    p->alive = false;
    p->life = ++m->lives;
    MARK(m, SITE_CRASH);
}

/* ---- What comes in ------------------------------------------------------------------------------------------ */

/* A site that says SHRINK_OK and does not keep it: its contribution will not fit. */
static void promise_break(struct sim *m, struct sim_proc *p, const struct wire_answer *a) {
    if (a->kind != WIRE_HEARTBEAT || a->code != WIRE_OK) return;
    for (uint32_t i = 0; i < a->u.heartbeat.leases_count; i++) {
        const struct wire_lease_state *v = &a->u.heartbeat.leases[i];
        const struct site_lease *l = core_lease_find(&p->core, v->tok);
        double often = m->w.f.break_promise * (v->verdict == LEASE_WISH ? 1 : 0.1);
        if (l == NULL || l->taken == 0 || !sim_chance(m, often)) continue;
        struct wire_request q = {
            .kind = WIRE_SHRINK_OK, .run = m->settings.run, .inc = p->core.inc, .req = 1};
        memcpy(q.site, p->name, sizeof q.site);
        q.u.shrink_ok = (struct wire_shrink_ok){v->tok, l->w.nonce, (l->taken + 1) / 2};
        MARK(m, PROMISE_BROKEN);
        net_request(m, p, &q, 0, false);
    }
}

/* A lease is given back by a message that the core does not know of, as an older program may do. */
static void give_back(struct sim *m, struct sim_proc *p) {
    if (p->core.leases_count == 0 || !sim_chance(m, m->w.f.break_promise * 0.05)) return;
    const struct site_lease *l = &p->core.leases[p->core.leases_count - 1];
    struct wire_request q = {
        .kind = WIRE_RETURN, .run = m->settings.run, .inc = p->core.inc, .req = 1};
    memcpy(q.site, p->name, sizeof q.site);
    q.u.give_back = (struct wire_return){l->w.tok, l->w.nonce};
    net_request(m, p, &q, 0, false);
}

static void on_answer(struct sim *m, struct sim_proc *p, const struct sim_event *e) {
    const struct sim_msg *x = &m->msg[e->msg];
    struct site_event ev = {.kind = x->beat ? SITE_BEAT_ANSWER : SITE_ANSWER, .id = x->id};
    ev.u.answer = &x->u.a;
    promise_break(m, p, &x->u.a);
    give_back(m, p);
    bool alone = p->core.alone;
    site_proc_event(m, p, &ev);
    if (!alone || p->core.alone || p->core.seg.samples == 0) return;
    if (p->core.reset_due)
        MARK(m, ALONE_LOST);
    else
        MARK(m, ALONE_KEPT);
}

void site_on_event(struct sim *m, struct sim_proc *p, const struct sim_event *e) {
    struct site_event ev = {.did = e->did};
    switch ((enum sim_event_kind)e->kind) {
    case EV_TRAIN:
        p->training = false;
        SAY(m, "%s/%u: a batch of %u is through", p->name, p->index, (unsigned)p->batch_count[0]);
        if (!train(m, p)) {
            MARK(m, POISON_KILL);
            site_proc_die(m, p, "poison");
            if (!p->twin) sim_post(m, EV_RESTART, m->now + sim_seconds(5), p->index, p->life);
            return;
        }
        tick(m, p);
        break;
    case EV_TO_SITE: on_answer(m, p, e); break;
    case EV_STORED: {
        struct sim_delta *x = delta_of(m, &e->did);
        x->stored = true;
        ev.kind = SITE_DELTA_STORED;
        ev.u.stored.blob = x->content->hash;
        ev.u.stored.bytes = x->content->bytes;
        site_proc_event(m, p, &ev);
        break;
    }
    case EV_UPLOADED:
        ev.kind = e->good ? SITE_UPLOADED : SITE_UPLOAD_FAILED;
        site_proc_event(m, p, &ev);
        break;
    case EV_DOWNLOADED:
        ev.kind = e->good ? SITE_DOWNLOADED : SITE_DOWNLOAD_FAILED;
        ev.u.download.version = e->a;
        if (e->good && base_file(p, e->a) != NULL)
            ev.u.download.tokens = base_file(p, e->a)->tokens;
        site_proc_event(m, p, &ev);
        break;
    case EV_SAVED: save_done(m, p); return;
    case EV_UPLOAD: upload(m, p, &e->did); return;
    case EV_DOWNLOAD: download(m, p, e->a); return;
    case EV_TIMER: tick(m, p); break;
    case EV_NONE:
    case EV_TO_HUB:
    case EV_RESTART:
    case EV_HUB_TICK:
    case EV_HUB_APPEND:
    case EV_HUB_MERGE:
    case EV_HUB_PROBE:
    case EV_HUB_START:
    case EV_WORLD:
    case EV_FAULTS_END:
    case EV_KINDS: CHECK(!"not an event of a site");
    }
    /* In a step the trainer looks at nothing else; brg_sync comes after it. */
    if (p->alive && !p->training) site_loop(m, p);
}
