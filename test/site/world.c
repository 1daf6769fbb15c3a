/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - see world.h. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

enum event_kind {
    EV_TO_HUB,
    EV_TO_SITE,
    EV_TRAIN,
    EV_TIMER,
    EV_HUB_TICK,
    EV_MERGED,
    EV_UPLOAD,
    EV_DOWNLOAD,
    EV_STORED,
    EV_RESTART,
    EV_HUB_START
};

struct event {
    time_ns at;
    uint64_t order;
    enum event_kind kind;
    uint32_t slot;
    uint64_t life, id; /* life: of the process it is meant for */
    bool beat;
    struct id128 did;
    struct wire_request *request;
    struct wire_answer *answer;
    uint64_t plan, version;
    struct hash theta;
};

struct blob {
    struct id128 did;
    struct hash hash;
    bool uploaded;
    float *d;
};

struct member {
    bool alive, ever;
    char name[WIRE_NAME_MAX];
    uint64_t life;
    struct site_core core;
    struct site_out out;
    float *theta, *s;
    struct site_position batch[64];
    uint64_t batch_count;
    bool skip_next;
    /* the local checkpoint */
    bool saved;
    struct buf save;
    float *save_theta, *save_s;
    time_ns timer;
};

struct world {
    struct world_options o;
    struct prng prng;
    time_ns now;
    uint64_t order, lives, weights;
    struct event events[WORLD_EVENTS_MAX];
    uint32_t events_count;
    struct hub *hub;
    struct hub_out out;
    struct hub_settings settings;
    bool hub_up;
    time_ns hub_timer;
    struct buf journal;
    uint64_t journal_seq;
    float *versions[WORLD_VERSIONS_MAX];
    struct hash version_hash[WORLD_VERSIONS_MAX];
    uint64_t version_tokens[WORLD_VERSIONS_MAX];
    struct blob blobs[WORLD_BLOBS_MAX];
    uint32_t blobs_count;
    struct member sites[WORLD_SLOTS];
    uint32_t sites_count;
    float scratch[4 * WORLD_WEIGHTS_MAX];
    uint8_t coded[8 * WORLD_WEIGHTS_MAX];
    struct world_counts n;
};

static bool chance(struct world *w, double p) {
    bool on = w->now < w->o.faults_until;
    return p > 0 && prng_unit(&w->prng) < p && on;
}

static time_ns delay(struct world *w) {
    if (chance(w, w->o.faults.slow)) return (time_ns)(prng_unit(&w->prng) * 20 * NS_PER_S);
    return (time_ns)((0.001 + 0.05 * prng_unit(&w->prng)) * NS_PER_S);
}

static struct event *post(struct world *w, enum event_kind kind, time_ns at, uint32_t slot) {
    CHECK(w->events_count < WORLD_EVENTS_MAX);
    struct event *e = &w->events[w->events_count++];
    memset(e, 0, sizeof *e);
    e->at = at > w->now ? at : w->now;
    e->order = ++w->order;
    e->kind = kind;
    e->slot = slot;
    e->life = w->sites[slot].life;
    return e;
}

static struct blob *blob_find(struct world *w, const struct id128 *did) {
    for (uint32_t i = 0; i < w->blobs_count; i++)
        if (id_equal(&w->blobs[i].did, did)) return &w->blobs[i];
    return NULL;
}

/* ---- The hub's shore ---------------------------------------------------------------------------- */

static void merge_begin(struct world *w, const struct hub_plan *p) {
    float *theta = mem_alloc(w->weights, sizeof *theta);
    CHECK(p->version < WORLD_VERSIONS_MAX);
    memcpy(theta, w->versions[p->parent], w->weights * sizeof *theta);
    for (uint32_t i = 0; i < p->parts_count; i++) {
        struct blob *b = blob_find(w, &p->parts[i].did);
        CHECK(b && b->uploaded);
        for (uint64_t k = 0; k < w->weights; k++) theta[k] -= b->d[k];
    }
    mem_free(w->versions[p->version]);
    w->versions[p->version] = theta;
    w->version_tokens[p->version] = p->tokens_after;
    w->version_hash[p->version] = hash_of(theta, w->weights * sizeof *theta);
    struct event *e = post(w, EV_MERGED, w->now + delay(w), 0);
    e->plan = p->id;
    e->version = p->version;
    e->theta = w->version_hash[p->version];
}

static void hub_command(struct world *w, const struct hub_cmd *cmd) {
    hub_step(w->hub, w->now, cmd, &w->out);
    buf_put(&w->journal, w->out.records.data, w->out.records.bytes_count);
    CHECK(!w->journal.overflow);
    w->journal_seq += w->out.records_count;
    CHECK(w->journal_seq == w->out.seq_after || w->out.records_count == 0);
    if (w->out.merge) merge_begin(w, w->out.merge);
    time_ns t = hub_expiry(w->hub);
    if (t != TIME_NS_NEVER && (w->hub_timer <= w->now || t < w->hub_timer)) {
        w->hub_timer = t;
        post(w, EV_HUB_TICK, t, 0);
    }
}

static void hub_start(struct world *w) {
    w->hub = hub_create(&w->settings, prng_u64(&w->prng));
    struct reader r = reader_of(w->journal.data, w->journal.bytes_count);
    for (uint64_t seq = 1; r.p < r.end; seq++) {
        uint16_t kind = get_u16(&r);
        uint32_t n = get_u32(&r);
        const void *body = get_bytes(&r, n);
        struct err e = {0};
        enum brg_status s = hub_apply(w->hub, seq, kind, body, n, &e);
        if (s != BRG_OK) fprintf(stderr, "replay: %s\n", e.text);
        CHECK(s == BRG_OK);
    }
    w->hub_up = true;
    w->hub_timer = 0;
    struct hub_cmd cmd = {.kind = HUB_CMD_START};
    if (w->journal.bytes_count == 0) {
        struct hub_cmd init = {.kind = HUB_CMD_INIT};
        init.u.init.checkpoint = init.u.init.theta = w->version_hash[0];
        init.u.init.bytes = 1;
        hub_command(w, &init);
    }
    hub_command(w, &cmd);
}

void world_hub_down(struct world *w, bool down) {
    if (down == !w->hub_up) return;
    if (!down) {
        hub_start(w);
        return;
    }
    hub_destroy(w->hub);
    w->hub = NULL;
    w->hub_up = false;
    w->n.hub_crashes++;
}

static void answer_send(struct world *w, const struct event *from) {
    for (int copies = chance(w, w->o.faults.twice) ? 2 : 1; copies > 0; copies--) {
        if (chance(w, w->o.faults.lose)) continue;
        struct event *e = post(w, EV_TO_SITE, w->now + delay(w), from->slot);
        e->life = from->life;
        e->id = from->id;
        e->beat = from->beat;
        e->answer = mem_alloc(1, sizeof *e->answer);
        *e->answer = w->out.answer;
    }
}

static void to_hub(struct world *w, const struct event *e) {
    if (!w->hub_up) return;
    struct hub_cmd cmd = {.kind = HUB_CMD_REQUEST, .request = e->request};
    if (e->request->kind == WIRE_COMMIT) {
        struct blob *b = blob_find(w, &e->request->u.commit.did);
        cmd.blob.complete = b && b->uploaded;
        cmd.blob.norm = 1;
        cmd.blob.max_abs = 1;
    }
    hub_command(w, &cmd);
    if (w->out.has_answer) answer_send(w, e);
}

/* ---- A site's shore ------------------------------------------------------------------------------ */

static void request_send(struct world *w, uint32_t slot, const struct wire_request *r, uint64_t id,
                         bool beat) {
    for (int copies = chance(w, w->o.faults.twice) ? 2 : 1; copies > 0; copies--) {
        if (chance(w, w->o.faults.lose)) continue;
        struct event *e = post(w, EV_TO_HUB, w->now + delay(w), slot);
        e->id = id;
        e->beat = beat;
        e->request = mem_alloc(1, sizeof *e->request);
        *e->request = *r;
    }
}

void world_event(struct world *w, uint32_t slot, const struct site_event *ev) {
    struct member *m = &w->sites[slot];
    struct site_out *o = &m->out;
    site_step(&m->core, w->now, ev, o);
    if (getenv("WORLD_TRACE"))
        fprintf(stderr, "%9.3f %s/%u ev=%d %s %s", (double)w->now / 1e9, m->name, slot, ev->kind,
                site_state_name(m->core.state), o->notes.bytes_count ? buf_cstr(&o->notes) : "\n");
    if (o->has_control) request_send(w, slot, &o->control, o->control_id, false);
    if (o->has_beat) request_send(w, slot, &o->beat, o->beat_id, true);
    if (o->has_upload) post(w, EV_UPLOAD, w->now + delay(w), slot)->did = o->upload_did;
    if (o->has_download)
        post(w, EV_DOWNLOAD, w->now + delay(w), slot)->version = o->download_version;
    time_ns t = site_expiry(&m->core);
    if (t != TIME_NS_NEVER && (m->timer <= w->now || t < m->timer)) {
        m->timer = t;
        post(w, EV_TIMER, t, slot);
    }
}

static void tick(struct world *w, uint32_t slot) {
    world_event(w, slot, &(struct site_event){.kind = SITE_TICK});
}

static void duty_cut(struct world *w, struct member *m, uint32_t slot) {
    CHECK(w->blobs_count < WORLD_BLOBS_MAX);
    struct blob *b = &w->blobs[w->blobs_count++];
    b->d = mem_alloc(w->weights, sizeof(float));
    bool still = m->core.seg.steps == 0;
    enum brg_status s =
        weights_cut(w->o.codec, m->s, still ? m->s : m->theta, w->weights, w->coded, w->scratch);
    CHECK(s == BRG_OK);
    s = codec_decode(w->o.codec, w->coded, w->weights, b->d);
    CHECK(s == BRG_OK);
    b->did = site_cut(&m->core, &m->out.notes)->c.did;
    b->hash = hash_of(b->did.v, ID_BYTES);
    post(w, EV_STORED, w->now + delay(w) / 4, slot)->did = b->did;
    w->n.cuts++;
}

static void sum_deltas(struct world *w, struct member *m, bool merged, float *sum) {
    memset(sum, 0, w->weights * sizeof *sum);
    for (uint32_t i = 0; i < m->core.deltas_count; i++) {
        const struct site_delta *d = &m->core.deltas[i];
        bool take = merged ? site_delta_in(d, m->core.ready) : d->state != PENDING_FAILED;
        if (take) weights_add(sum, blob_find(w, &d->c.did)->d, w->weights);
    }
}

static void duties(struct world *w, struct member *m, uint32_t slot) {
    for (int i = 0; i < 4; i++) {
        enum site_duty duty = site_duty(&m->core);
        if (duty == SITE_DUTY_NONE) return;
        for (uint32_t k = 0; k < m->core.deltas_count; k++)
            if (m->core.deltas[k].state == PENDING_CUT) return;
        sum_deltas(w, m, duty == SITE_DUTY_REBASE, w->scratch);
        if (duty == SITE_DUTY_CUT) {
            duty_cut(w, m, slot);
        } else if (duty == SITE_DUTY_LOAD) {
            weights_reset(m->theta, m->s, w->versions[m->core.ready], NULL, w->weights);
            site_loaded(&m->core);
        } else if (duty == SITE_DUTY_RESET) {
            weights_reset(m->theta, m->s, w->versions[m->core.base], w->scratch, w->weights);
            w->n.wasted += m->core.seg.samples;
            site_reset(&m->core, &m->out.notes);
            w->n.resets++;
        } else {
            weights_rebase(m->theta, m->s, w->versions[m->core.base], w->versions[m->core.ready],
                           w->scratch, w->weights);
            site_rebased(&m->core, &m->out.notes);
            w->n.rebases++;
        }
    }
}

/* S3: what is between the subtraction base and the weights is exactly the segment. W2: the subtraction
 * base is the version rebased on, less what is owed; counts are exact in fp32. */
static void content_check(struct world *w, struct member *m) {
    const struct site_core *c = &m->core;
    if (!c->loaded || c->reset_due || w->o.codec != CODEC_FP32) return;
    double sum = 0;
    float *owed = w->scratch;
    sum_deltas(w, m, false, owed);
    for (uint64_t i = 0; i < w->weights; i++) {
        sum += (double)m->theta[i] - (double)m->s[i];
        CHECK(m->s[i] == w->versions[c->base][i] - owed[i]); /* W2 */
    }
    CHECK(sum == (double)(c->seg.samples - c->seg.skips_count)); /* S3 */
}

static void train(struct world *w, uint32_t slot) {
    struct member *m = &w->sites[slot];
    struct site_core *c = &m->core;
    if (m->batch_count > 0) {
        for (uint64_t i = 0; i < m->batch_count && !m->skip_next; i++)
            m->theta[m->batch[i].epoch * w->o.positions + m->batch[i].position] += 1;
        enum brg_status s =
            site_trained(c, w->now, m->batch_count, 1.0, 0.001, m->skip_next ? "test" : NULL);
        CHECK(s == BRG_OK || s == BRG_E_LIMIT);
        w->n.steps++;
        m->batch_count = 0;
    }
    tick(w, slot);
    if (c->state == SITE_STOPPED || c->state == SITE_GONE) return;
    duties(w, m, slot);
    content_check(w, m);
    if (chance(w, w->o.faults.save)) world_save(w, slot);
    tick(w, slot);
    uint64_t n = 1 + prng_below(&w->prng, w->o.batch);
    m->batch_count = site_take(c, n, m->batch);
    m->skip_next = chance(w, w->o.faults.skip);
    tick(w, slot);
    if (c->state == SITE_STOPPED || c->state == SITE_GONE) return;
    double speed = 0.5 + 0.5 * (double)(slot % WORLD_SITES);
    post(w, EV_TRAIN, w->now + (time_ns)((0.05 + 0.2 * prng_unit(&w->prng)) / speed * NS_PER_S),
         slot);
}

/* ---- Local checkpoints, crashes, twins ------------------------------------------------------------- */

void world_save(struct world *w, uint32_t slot) {
    struct member *m = &w->sites[slot];
    if (!m->core.loaded || m->core.reset_due) return;
    for (uint32_t i = 0; i < m->core.deltas_count; i++)
        if (m->core.deltas[i].state == PENDING_CUT) return; /* the writer keeps this order */
    buf_reset(&m->save);
    site_save(&m->core, &m->save);
    memcpy(m->save_theta, m->theta, w->weights * sizeof(float));
    memcpy(m->save_s, m->s, w->weights * sizeof(float));
    m->saved = true;
    w->n.saves++;
}

static void member_start(struct world *w, uint32_t slot) {
    struct member *m = &w->sites[slot];
    struct site_settings set = {.run = w->settings.run,
                                .fingerprint = w->settings.fingerprint,
                                .tensors = w->settings.tensors,
                                .tokens_per_sample = w->settings.seq_len,
                                .positions = w->settings.positions,
                                .elements = w->weights,
                                .codec = w->o.codec,
                                .batch = w->o.batch,
                                .pending_max = 1,
                                .steps_target = w->o.steps,
                                .seed = prng_u64(&w->prng),
                                .retry_min_ns = NS_PER_S / 4,
                                .retry_max_ns = 8 * (time_ns)NS_PER_S,
                                .answer_ns = 2 * (time_ns)NS_PER_S,
                                .alone_ns = NS_PER_S / 2,
                                .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.001}};
    memcpy(set.name, m->name, sizeof set.name);
    struct id128 boot;
    put_le64(boot.v, prng_u64(&w->prng));
    put_le64(boot.v + 8, prng_u64(&w->prng));
    site_init(&m->core, &set, &boot);
    m->life = ++w->lives;
    m->alive = m->ever = true;
    m->batch_count = 0;
    m->timer = 0;
    if (m->saved) {
        struct err e = {0};
        enum brg_status s = site_load(&m->core, m->save.data, m->save.bytes_count, &e);
        if (s != BRG_OK) fprintf(stderr, "load: %s\n", e.text);
        CHECK(s == BRG_OK);
        memcpy(m->theta, m->save_theta, w->weights * sizeof(float));
        memcpy(m->s, m->save_s, w->weights * sizeof(float));
    }
    world_event(w, slot, &(struct site_event){.kind = SITE_START});
    post(w, EV_TRAIN, w->now, slot);
}

void world_crash(struct world *w, uint32_t slot, bool keep_checkpoint) {
    struct member *m = &w->sites[slot];
    if (!keep_checkpoint) m->saved = false;
    m->alive = false;
    m->life = ++w->lives; /* what is under way for the dead process finds nobody */
    w->n.crashes++;
    post(w, EV_RESTART, w->now + (time_ns)(prng_unit(&w->prng) * 30 * NS_PER_S), slot);
}

static void member_new(struct world *w, uint32_t slot, const char *name) {
    struct member *m = &w->sites[slot];
    snprintf(m->name, sizeof m->name, "%s", name);
    if (!m->theta) {
        m->theta = mem_alloc(4 * w->weights, sizeof(float));
        m->s = m->theta + w->weights;
        m->save_theta = m->s + w->weights;
        m->save_s = m->save_theta + w->weights;
        site_out_init(&m->out);
        buf_init(&m->save, 1 << 20);
    }
    m->saved = false;
}

uint32_t world_twin(struct world *w, uint32_t slot) {
    uint32_t to = w->o.sites;
    while (to < WORLD_SLOTS && w->sites[to].alive && w->sites[to].core.state != SITE_STOPPED) to++;
    if (to == WORLD_SLOTS) return slot;
    member_new(w, to, w->sites[slot].name);
    struct member *m = &w->sites[to], *from = &w->sites[slot];
    if (from->saved) {
        buf_reset(&m->save);
        buf_put(&m->save, from->save.data, from->save.bytes_count);
        memcpy(m->save_theta, from->save_theta, 2 * w->weights * sizeof(float));
        m->saved = true;
    }
    w->n.twins++;
    member_start(w, to);
    return to;
}

/* ---- Events ---------------------------------------------------------------------------------------- */

static void faults_of_site(struct world *w, uint32_t slot) {
    const struct world_faults *f = &w->o.faults;
    if (chance(w, f->crash))
        world_crash(w, slot, !chance(w, f->forget / (f->crash + f->forget + 1e-9)));
    else if (chance(w, f->twin))
        (void)world_twin(w, slot);
}

static void on_site_event(struct world *w, struct event *e) {
    struct member *m = &w->sites[e->slot];
    if (!m->alive || m->life != e->life) return;
    struct site_event ev = {.did = e->did, .id = e->id};
    if (e->kind == EV_TO_SITE) {
        ev.kind = e->beat ? SITE_BEAT_ANSWER : SITE_ANSWER;
        ev.u.answer = e->answer;
    } else if (e->kind == EV_STORED) {
        ev.kind = SITE_DELTA_STORED;
        ev.u.stored.blob = blob_find(w, &e->did)->hash;
        ev.u.stored.bytes = DELTA_HEADER_BYTES + codec_bytes(w->o.codec, w->weights);
    } else if (e->kind == EV_UPLOAD) {
        bool good = w->hub_up && !chance(w, w->o.faults.upload_fails);
        ev.kind = good ? SITE_UPLOADED : SITE_UPLOAD_FAILED;
        if (good) blob_find(w, &e->did)->uploaded = true;
    } else if (e->kind == EV_DOWNLOAD) {
        bool good = w->hub_up && w->versions[e->version] && !chance(w, w->o.faults.upload_fails);
        ev.kind = good ? SITE_DOWNLOADED : SITE_DOWNLOAD_FAILED;
        ev.u.download.version = e->version;
        ev.u.download.tokens = w->version_tokens[e->version];
    } else {
        ev.kind = SITE_TICK;
    }
    world_event(w, e->slot, &ev);
    if (m->core.state == SITE_STOPPED) {
        if (m->core.stop_status == BRG_E_FENCED) w->n.fenced++;
        m->alive = false;
        if (e->slot < w->o.sites &&
            m->core.stop_status == BRG_E_FENCED) /* its twin owns the name now */
            post(w, EV_RESTART, w->now + 60 * (time_ns)NS_PER_S, e->slot);
    }
}

static void on_event(struct world *w, struct event *e) {
    struct member *m = &w->sites[e->slot];
    switch (e->kind) {
    case EV_TO_HUB:
        to_hub(w, e);
        if (w->hub_up && chance(w, w->o.faults.hub_crash)) {
            world_hub_down(w, true);
            post(w, EV_HUB_START, w->now + (time_ns)(prng_unit(&w->prng) * 20 * NS_PER_S), 0);
        }
        break;
    case EV_HUB_START: world_hub_down(w, false); break;
    case EV_HUB_TICK:
        if (w->hub_up) hub_command(w, &(struct hub_cmd){.kind = HUB_CMD_TICK});
        break;
    case EV_MERGED:
        if (w->hub_up) {
            struct hub_cmd cmd = {.kind = HUB_CMD_MERGED};
            cmd.u.merged.plan = e->plan;
            cmd.u.merged.checkpoint = cmd.u.merged.theta = e->theta;
            cmd.u.merged.bytes = 1;
            hub_command(w, &cmd);
            hub_check(w->hub);
            w->n.merges++;
        }
        break;
    case EV_RESTART:
        if (!m->alive) member_start(w, e->slot);
        break;
    case EV_TRAIN:
        if (!m->alive || m->life != e->life) break;
        train(w, e->slot);
        if (m->alive) faults_of_site(w, e->slot);
        break;
    case EV_TO_SITE:
    case EV_TIMER:
    case EV_UPLOAD:
    case EV_DOWNLOAD:
    case EV_STORED: on_site_event(w, e); break;
    }
}

bool world_step(struct world *w) {
    if (w->events_count == 0) return false;
    uint32_t best = 0;
    for (uint32_t i = 1; i < w->events_count; i++) {
        const struct event *a = &w->events[i], *b = &w->events[best];
        if (a->at < b->at || (a->at == b->at && a->order < b->order)) best = i;
    }
    struct event e = w->events[best];
    w->events[best] = w->events[--w->events_count];
    w->now = e.at;
    on_event(w, &e);
    mem_free(e.request);
    mem_free(e.answer);
    return true;
}

bool world_run(struct world *w) {
    struct hub_view v = {0};
    while (w->now < w->o.limit && world_step(w)) {
        if (!w->hub_up) continue;
        hub_view(w->hub, w->now, &v);
        if (v.complete) return true;
    }
    return false;
}

uint64_t world_wrong(const struct world *w) {
    struct hub_view v;
    hub_view(w->hub, w->now, &v);
    double sum = 0;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < w->weights; i++) {
        float x = w->versions[v.head][i];
        wrong += x != 1.0f && x != 0.0f;
        sum += (double)x;
    }
    /* Zeros are right exactly where a sample was skipped, and the hub says how many those are. */
    return wrong + (uint64_t)(sum + (double)v.counts.skipped != (double)w->weights);
}

/* ---- Beginning and end ------------------------------------------------------------------------------ */

struct world *world_create(const struct world_options *o) {
    struct world *w = mem_alloc(1, sizeof *w);
    w->o = *o;
    w->weights = o->positions * o->epochs;
    CHECK(w->weights <= WORLD_WEIGHTS_MAX);
    prng_seed(&w->prng, o->seed);
    buf_init(&w->journal, 64 << 20);
    hub_out_init(&w->out);
    w->settings = (struct hub_settings){
        .run = {{1}},
        .fingerprint = {{2}},
        .tensors = {{3}},
        .parameters = w->weights,
        .positions = o->positions,
        .seq_len = 16,
        .epochs = o->epochs,
        .order_seed = 1,
        .steps = o->steps,
        .quorum = 1,
        .grace_ns = 5 * (time_ns)NS_PER_S,
        .staleness_max = 1,
        .rule = outer_rule_default(),
        .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 0.001, .tokens_total = 1e6},
        .codec = o->codec,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .weight_decay = 0.1,
        .ttl_ns = 20 * (time_ns)NS_PER_S,
        .heartbeat_ns = 2 * (time_ns)NS_PER_S,
        .lease_samples_min = 4,
        .lease_samples_max = 64,
        .crashes_max = 1000,
        .sites_max = 16,
        .records_per_snapshot = 1 << 30,
        .delta_bytes_max = 1 << 20};
    w->versions[0] = mem_alloc(w->weights, sizeof(float));
    w->version_hash[0] = hash_of(w->versions[0], w->weights * sizeof(float));
    hub_start(w);
    for (uint32_t i = 0; i < o->sites; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        member_new(w, i, name);
        member_start(w, i);
    }
    return w;
}

void world_destroy(struct world *w) {
    for (uint32_t i = 0; i < w->events_count; i++) {
        mem_free(w->events[i].request);
        mem_free(w->events[i].answer);
    }
    for (uint32_t i = 0; i < WORLD_VERSIONS_MAX; i++) mem_free(w->versions[i]);
    for (uint32_t i = 0; i < w->blobs_count; i++) mem_free(w->blobs[i].d);
    for (uint32_t i = 0; i < WORLD_SLOTS; i++) {
        mem_free(w->sites[i].theta);
        site_out_fini(&w->sites[i].out);
        buf_fini(&w->sites[i].save);
    }
    if (w->hub) hub_destroy(w->hub);
    hub_out_fini(&w->out);
    buf_fini(&w->journal);
    mem_free(w);
}

struct world_counts world_counts(const struct world *w) {
    return w->n;
}
struct site_core *world_core(struct world *w, uint32_t slot) {
    return &w->sites[slot].core;
}
struct hub *world_hub(struct world *w) {
    return w->hub;
}
time_ns world_now(const struct world *w) {
    return w->now;
}
const float *world_theta(const struct world *w, uint32_t slot) {
    return w->sites[slot].theta;
}
