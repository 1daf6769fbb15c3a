/* SPDX-License-Identifier: Apache-2.0 */
/* uplink_os.c - the region as a site of its parent: membership, leases, heartbeats, the order of what is done.
 * What it does with weights: uplink_work_os.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hub/uplink_os.h"

enum { PAUSE_MS = 100, BACKOFF_MAX_MS = 5000, SET_TRIES = 64 };

/* ---- Talking ------------------------------------------------------------------------------------------------ */
enum brg_status uplink_fail(struct uplink *u, enum brg_status status, const char *fmt, ...) {
    char text[600];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    if (u->dead == BRG_OK) {
        u->dead = status;
        memcpy(u->why, text, sizeof u->why);
        log_line(LOG_ERROR, "hub", "parent_refused", "text=\"%s\"", text);
    }
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    return status;
}

enum brg_status uplink_failed(struct uplink *u, struct err *e) {
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    enum brg_status s = u->dead == BRG_OK ? BRG_OK : err_set(e, u->dead, "%s", u->why);
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    return s;
}

void uplink_round(struct uplink *u, const struct wire_round *r) {
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    u->head = r->head; /* also back: a rollback is seen by this */
    u->drain = r->drain;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
}

/* Of the worker. */
static void seals_note(struct uplink *u, const struct wire_answer *a, const struct wire_round *r) {
    if (a->term > u->term_seen) {
        u->term_seen = a->term;
        u->term_seal = a->term_seal;
    }
    if (r->head < u->head_sealed) return;
    u->head_sealed = r->head;
    u->head_theta = r->theta;
    u->head_seal = r->seal;
}

static const struct wire_round *round_of(const struct wire_answer *a) {
    switch (a->kind) {
    case WIRE_JOIN: return &a->u.join.round;
    case WIRE_LEASE: return &a->u.lease.round;
    case WIRE_HEARTBEAT: return &a->u.heartbeat.round;
    case WIRE_COMMIT:
    case WIRE_OUTCOME: return &a->u.commit.round;
    case WIRE_SHRINK_OK:
    case WIRE_RETURN:
    case WIRE_LEAVE: break;
    }
    return NULL;
}

/* The answer's code as a status: OK goes on, E_NET comes again, everything else is for good. */
static enum brg_status code_status(struct uplink *u, const struct wire_answer *a, struct err *e) {
    switch (a->code) {
    case WIRE_OK:
    case WIRE_COMPLETE:
    case WIRE_UPLOAD: return BRG_OK;
    case WIRE_RETRY:
    case WIRE_HUB_BEHIND: return err_set(e, BRG_E_NET, "the parent: %s", a->text);
    case WIRE_UNKNOWN_SITE:
        CHECK(pthread_mutex_lock(&u->lock) == 0);
        u->rejoin = true;
        CHECK(pthread_mutex_unlock(&u->lock) == 0);
        return err_set(e, BRG_E_NET, "the parent: %s", a->text);
    case WIRE_FENCED:
        return uplink_fail(u, BRG_E_FENCED, "another hub is region %s of %s now: %s", u->name,
                           u->url, a->text);
    case WIRE_MISMATCH:
    case WIRE_BAD:
    case WIRE_KEY_REUSED: break;
    }
    return uplink_fail(u, BRG_E_REFUSED, "%s: %s", u->url, a->text);
}

/* Only what a person has to mend is for good. */
static enum brg_status lost(struct uplink *u, enum brg_status s, const struct err *e) {
    if (s == BRG_E_REFUSED || s == BRG_E_CONFIG) return uplink_fail(u, s, "%s", e->text);
    return BRG_E_NET;
}

static void address(struct uplink *u, struct wire_request *q) {
    memcpy(q->site, u->name, sizeof q->site);
    q->run = u->run.run;
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    if (q->kind != WIRE_JOIN && q->kind != WIRE_OUTCOME) q->inc = u->inc;
    if (q->req == 0) q->req = ++u->req;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
}

enum brg_status uplink_ask(struct uplink *u, struct wire_request *q, struct wire_answer *a,
                           struct err *e) {
    address(u, q);
    enum brg_status s = client_post(u->line, q, a, e);
    if (s != BRG_OK) return lost(u, s, e);
    TRY(code_status(u, a, e));
    const struct wire_round *r = round_of(a);
    if (r == NULL) return BRG_OK;
    uplink_round(u, r);
    seals_note(u, a, r);
    return BRG_OK;
}

/* ---- This hub's machine ---------------------------------------------------------------------------------------- */
enum brg_status uplink_step(struct uplink *u, const struct hub_cmd *c, struct err *e) {
    struct hub_cmd cmd = *c;
    struct wire_answer a;
    cmd.wall = os_wall();
    if (server_step(u->s, &cmd, &a) != STEP_DONE)
        return err_set(e, BRG_E_BUSY, "the region's own journal takes nothing now");
    if (a.code == WIRE_OK) return BRG_OK;
    return err_set(e, BRG_E_BUSY, "%s", a.text);
}

void uplink_view(struct uplink *u, uint64_t since, struct hub_region_view *out) {
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    hub_region(u->s->hub, since, out);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
}

static bool sites_live(struct uplink *u) {
    bool live = false;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    for (uint32_t i = 0; i < hub_sites_count(u->s->hub) && !live; i++) {
        struct hub_site_view v;
        hub_site_at(u->s->hub, i, server_now(u->s), &v);
        live = v.live && strcmp(v.name, HUB_PARENT) != 0;
    }
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    return live;
}

static enum brg_status hold(struct uplink *u, struct err *e) {
    AUTO_FREE struct hub_span *spans = NULL;
    struct hub_cmd c = {.kind = HUB_CMD_HOLD};
    c.u.hold.count = uplink_spans(&u->st.current, &spans);
    c.u.hold.spans = spans;
    return uplink_step(u, &c, e);
}

/* ---- The state file ------------------------------------------------------------------------------------------------ */
static void state_path(const struct uplink *u, char out[OS_PATH_MAX]) {
    os_path(out, u->dir, "state");
}

/* What heartbeats name. */
static void tells_fill(struct uplink *u) {
    const struct wire_lease *named[WIRE_LEASES_MAX];
    uint32_t n = uplink_named(&u->st, named);
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    u->tells_count = n;
    for (uint32_t i = 0; i < n; i++)
        u->tells[i] = (struct wire_progress){.tok = named[i]->tok, .read_ahead = named[i]->count};
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
}

enum brg_status uplink_keep(struct uplink *u, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, 4 << 20);
    uplink_encode(&u->st, &b);
    CHECK(!b.overflow);
    state_path(u, path);
    tells_fill(u);
    return os_write_file_atomic(path, b.data, b.bytes_count, e);
}

static enum brg_status state_read(struct uplink *u, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, 4 << 20);
    state_path(u, path);
    memcpy(u->st.name, u->name, sizeof u->st.name);
    if (!os_exists(path)) return BRG_OK;
    TRY(os_read_file(path, 4 << 20, &b, e));
    if (uplink_decode(b.data, b.bytes_count, &u->st, e) != BRG_OK) return err_prefix(e, "%s", path);
    if (strcmp(u->st.name, u->name) != 0)
        return err_set(e, BRG_E_CONFIG,
                       "%s: this hub is region %s of its parent, not %s; give --region %s", path,
                       u->st.name, u->name, u->st.name);
    u->next_closed = u->st.next.count > 0;
    return BRG_OK;
}

enum brg_status uplink_reset(struct uplink *u, const char *why, struct err *e) {
    const struct hub_cmd c = {.kind = HUB_CMD_RESET};
    log_line(LOG_WARN, "hub", "region_reset", "why=\"%s\"", why);
    TRY(uplink_step(u, &c, e));
    /* Whatever becomes of it at the parent is others' work from here on; not before: where the process dies in between,
     * the note says that it was on its way (uplink_settle). */
    uplink_forget(&u->st);
    /* A process that joins anew, and does not name those leases: others may have them at once. */
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    os_random(&u->boot, sizeof u->boot);
    u->rejoin = true;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    return uplink_keep(u, e);
}

/* ---- Membership ------------------------------------------------------------------------------------------------------ */
static enum brg_status run_check(struct uplink *u, struct err *e) {
    const struct hub_settings *s = &u->s->dir.settings.hub;
    struct wire_run *r = &u->run;
    if (r->seq_len > 0) return BRG_OK;
    AUTO_FREE struct wire_run *got = mem_alloc(1, sizeof *got);
    enum brg_status st = client_run(u->line, got, e);
    if (st != BRG_OK) return lost(u, st, e);
    const char *differs = !hash_equal(&got->fingerprint, &s->fingerprint) ? "data set or its order"
                          : !hash_equal(&got->tensors, &s->tensors)       ? "model"
                          : got->seq_len != s->seq_len                    ? "data.seq_len"
                          : got->positions != s->positions                ? "number of samples"
                          : got->parameters != s->parameters              ? "number of parameters"
                          : got->order_seed != s->order_seed              ? "seed of the order"
                          : got->epochs != s->epochs                      ? "run.epochs"
                                                                          : NULL;
    if (differs != NULL)
        return uplink_fail(u, BRG_E_CONFIG,
                           "%s: the parent's run and this region's differ in %s; make the region "
                           "with `beringia init` from the same data, model and seed",
                           u->url, differs);
    if (codec_aside((enum codec)got->codec))
        return uplink_fail(u, BRG_E_CONFIG,
                           "%s: outer.codec topk keeps much of a contribution back, which a region "
                           "cannot; choose int4 or int8 at the parent",
                           u->url);
    if (got->sync_tokens > 0)
        return uplink_fail(
            u, BRG_E_CONFIG,
            "%s: outer.synchronous wants a gradient of every step, which a region has "
            "not; set it to 0 at the parent",
            u->url);
    if (id_equal(&got->run, &s->run))
        return uplink_fail(u, BRG_E_CONFIG, "%s: is this hub itself, or a copy of its run", u->url);
    struct id128 none = {{0}};
    if (!id_equal(&u->st.run, &none) && !id_equal(&u->st.run, &got->run))
        return uplink_fail(u, BRG_E_CONFIG, "%s: keeps another run than this region's parent",
                           u->url);
    *r = *got;
    u->st.run = r->run;
    return BRG_OK;
}

static bool lease_gone(struct uplink *u, uint64_t tok) {
    log_line(LOG_WARN, "hub", "parent_took_back", "lease=%" PRIx64, tok);
    return uplink_gone(&u->st, tok);
}

static enum brg_status outcome_take(struct uplink *u, const struct wire_commit_answer *a,
                                    struct err *e) {
    switch (uplink_outcome(&u->st, a)) {
    case UPLINK_RESET:
        log_line(LOG_WARN, "hub", "parent_rejected", "why=\"%s\"", a->reason);
        return uplink_reset(u, "the parent did not take the contribution", e);
    case UPLINK_KEEP:
        if (u->st.merged > 0)
            log_line(LOG_INFO, "hub", "parent_merged", "version=%" PRIu64, u->st.merged);
        return uplink_keep(u, e);
    case UPLINK_NOTHING: tells_fill(u); break;
    }
    return BRG_OK;
}

static enum brg_status outcome_ask(struct uplink *u, struct err *e) {
    struct wire_request q = {.kind = WIRE_OUTCOME};
    struct wire_answer a;
    if (!u->st.has_pending) return BRG_OK;
    q.u.outcome.did = u->st.commit.did;
    TRY(uplink_ask(u, &q, &a, e));
    return outcome_take(u, &a.u.commit, e);
}

static void join_fill(struct uplink *u, struct wire_join *j) {
    const struct hub_settings *s = &u->s->dir.settings.hub;
    struct hub_region_view v;
    uplink_view(u, 0, &v);
    j->boot = u->boot;
    j->protocol = WIRE_PROTOCOL;
    j->fingerprint = s->fingerprint;
    j->tensors = s->tensors;
    j->tokens_per_sample = s->seq_len;
    j->version_seen = v.taken > u->head_sealed ? v.taken : u->head_sealed;
    if (j->version_seen == u->head_sealed) {
        j->theta_seen = u->head_theta;
        j->version_seal = u->head_seal;
    }
    j->term_seen = u->term_seen;
    j->term_seal = u->term_seal;
    const struct wire_lease *named[WIRE_LEASES_MAX];
    j->resume_count = uplink_named(&u->st, named);
    for (uint32_t i = 0; i < j->resume_count; i++)
        j->resume[i] = (struct wire_part){named[i]->tok, named[i]->nonce, 0};
}

static enum brg_status join(struct uplink *u, struct err *e) {
    struct wire_request q = {.kind = WIRE_JOIN};
    struct wire_answer a;
    bool reset = false;
    TRY(run_check(u, e));
    TRY(uplink_root_check(u, e));
    TRY(outcome_ask(u, e));
    join_fill(u, &q.u.join);
    TRY(uplink_ask(u, &q, &a, e));
    const struct wire_join_answer *j = &a.u.join;
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    u->inc = j->inc;
    u->rejoin = false;
    u->gone_count = 0;
    u->lease_req = 0;
    u->heartbeat_ns = (time_ns)(j->heartbeat_ms > 0 ? j->heartbeat_ms : 1) * NS_PER_MS;
    pthread_cond_broadcast(&u->changed);
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    log_line(LOG_INFO, "hub", "parent_joined", "url=%s region=%s inc=%u", u->url, u->name, j->inc);
    for (uint32_t i = 0; i < j->leases_count; i++)
        if (j->leases[i].verdict == LEASE_GONE && !uplink_has(&u->st.pending, j->leases[i].tok))
            reset = lease_gone(u, j->leases[i].tok) || reset;
    /* What was open is not any more before the note says so (N3). */
    return reset ? uplink_reset(u, "leases of the work under way are lost", e) : uplink_keep(u, e);
}

static enum brg_status take_gone(struct uplink *u, struct err *e) {
    uint64_t gone[WIRE_LEASES_MAX];
    uint32_t count;
    bool reset = false;
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    count = u->gone_count;
    memcpy(gone, u->gone, sizeof gone);
    u->gone_count = 0;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    uint32_t hits = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!uplink_has(&u->st.current, gone[i]) && !uplink_has(&u->st.next, gone[i])) continue;
        hits++;
        reset = lease_gone(u, gone[i]) || reset;
    }
    if (reset) return uplink_reset(u, "leases of the work under way are lost", e);
    return hits > 0 ? uplink_keep(u, e) : BRG_OK;
}

/* ---- Leases ---------------------------------------------------------------------------------------------------------- */
/* Samples of so many rounds of the region: what its sites do in one, all together. */
static uint64_t set_want(struct uplink *u) {
    struct wire_round r;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    hub_round(u->s->hub, "", server_now(u->s), &r);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    uint64_t step = r.tokens_per_step / u->s->dir.settings.hub.seq_len;
    uint64_t want = u->o.rounds * (r.steps_target > 0 ? r.steps_target : 1) * (step > 0 ? step : 1);
    return want < (uint64_t)1 << 40 ? want : (uint64_t)1 << 40;
}

static uint32_t leases_held(const struct uplink *u) {
    uint32_t pending = u->st.has_pending && !u->st.staged ? u->st.pending.count : 0;
    return u->st.current.count + u->st.next.count + pending;
}

static enum brg_status lease_ask(struct uplink *u, bool *did, struct err *e) {
    struct wire_request q = {.kind = WIRE_LEASE, .req = u->lease_req};
    struct wire_answer a;
    struct hub_region_view v;
    uint64_t want = set_want(u), have = uplink_samples(&u->st.next);
    uplink_view(u, 0, &v);
    if (u->lease_req == 0) {
        u->lease_asked = (struct wire_lease_request){.want = want > have ? want - have : 1,
                                                     .base = v.taken,
                                                     .ahead = u->st.current.count > 0};
    }
    q.u.lease = u->lease_asked;
    address(u, &q);
    u->lease_req = q.req;
    TRY(uplink_ask(u, &q, &a, e));
    u->lease_req = 0;
    if (a.code == WIRE_COMPLETE) {
        enum { COMPLETE_BEATS = 10 }; /* a rollback there may undo it */
        u->lease_at = os_now() + COMPLETE_BEATS * u->heartbeat_ns;
        return BRG_OK;
    }
    const struct wire_lease_answer *l = &a.u.lease;
    if (l->granted && l->lease.ranges_count <= WIRE_RANGES_MAX) {
        u->st.next.leases[u->st.next.count++] = l->lease;
        TRY(uplink_keep(u, e)); /* N3 */
        *did = true;
        have += l->lease.count;
    } else {
        u->lease_at = os_now() + (time_ns)(l->wait_ms > 0 ? l->wait_ms : 1) * NS_PER_MS;
    }
    u->next_closed = u->st.next.count > 0 &&
                     (!l->granted || have >= want || u->st.next.count >= UPLINK_ASKED_MAX ||
                      leases_held(u) >= WIRE_LEASES_MAX);
    return BRG_OK;
}

static bool next_due(struct uplink *u) {
    if (!u->next_closed) return false;
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    bool due = uplink_next_due(u->s->hub, &u->st);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    return due;
}

static enum brg_status next_open(struct uplink *u, bool *did, struct err *e) {
    if (!uplink_add(&u->st.current, &u->st.next)) return BRG_OK;
    u->next_closed = false;
    *did = true;
    return uplink_keep(u, e); /* N3 */
}

static enum brg_status leases(struct uplink *u, bool *did, struct err *e) {
    struct hub_region_view v;
    uplink_view(u, 0, &v);
    if (u->st.next.count == 0) u->next_closed = false; /* it was lost, or there was none */
    if (next_due(u)) TRY(next_open(u, did, e));
    /* A region that has nothing of its parent yet begins with its newest version. */
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    bool behind = v.taken == 0 && u->head > 0, drain = u->drain;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (!behind) TRY(hold(u, e));
    /* A set that was asked for before the sites' speed was known is asked for again while there is time. */
    bool small = u->st.next.count < UPLINK_ASKED_MAX &&
                 4 * uplink_samples(&u->st.next) < 3 * set_want(u);
    if ((u->next_closed && !small) || drain || os_now() < u->lease_at || !sites_live(u) ||
        leases_held(u) >= WIRE_LEASES_MAX)
        return BRG_OK;
    return lease_ask(u, did, e);
}

/* ---- Handing in --------------------------------------------------------------------------------------------------------- */
static enum brg_status hand_in(struct uplink *u, bool *did, struct err *e) {
    char path[OS_PATH_MAX];
    struct wire_request q = {.kind = WIRE_COMMIT};
    struct wire_answer a;
    if (!u->st.has_pending || u->st.staged) return BRG_OK;
    uplink_delta_path(u, path);
    if (u->st.commit.bytes > 0) {
        enum brg_status s = client_upload(u->line, &u->st.commit.did, path, e);
        if (s == BRG_E_MISSING) return uplink_reset(u, "the contribution's file is gone", e);
        if (s != BRG_OK) return lost(u, s, e);
    }
    q.u.commit = u->st.commit;
    TRY(uplink_ask(u, &q, &a, e));
    if (a.code == WIRE_UPLOAD) return err_set(e, BRG_E_NET, "the parent wants the file again");
    *did = true;
    return outcome_take(u, &a.u.commit, e);
}

static enum brg_status settle(struct uplink *u, bool *did, struct err *e) {
    CHECK(pthread_mutex_lock(&u->s->lock) == 0);
    bool over = uplink_settle(u->s->hub, &u->st);
    CHECK(pthread_mutex_unlock(&u->s->lock) == 0);
    if (!over) return BRG_OK;
    *did = true;
    TRY(uplink_keep(u, e));
    uplink_tidy(u);
    return BRG_OK;
}

/* ---- The threads ---------------------------------------------------------------------------------------------------------- */
static enum brg_status drain_pass(struct uplink *u, bool *drained, struct err *e) {
    struct hub_cmd c = {.kind = HUB_CMD_DRAIN};
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    c.u.drain.on = u->drain;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (c.u.drain.on == *drained) return BRG_OK;
    TRY(uplink_step(u, &c, e));
    *drained = c.u.drain.on;
    return BRG_OK;
}

static enum brg_status work_once(struct uplink *u, bool *did, bool *drained, struct err *e) {
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    bool member = u->inc > 0 && !u->rejoin;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (!member) TRY(join(u, e));
    TRY(take_gone(u, e));
    TRY(drain_pass(u, drained, e));
    TRY(settle(u, did, e));
    TRY(hand_in(u, did, e));
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    bool back = u->st.merged > u->head; /* it was merged, and the parent went back behind that */
    /* Asked when there is another head, and else no oftener than heartbeats: this line is a long one. */
    bool due = u->head != u->outcome_head || os_now() >= u->outcome_at;
    u->outcome_head = u->head;
    if (due) u->outcome_at = os_now() + u->heartbeat_ns;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (due && u->st.staged && (u->st.merged == 0 || back)) TRY(outcome_ask(u, e));
    TRY(uplink_take_in(u, did, e));
    TRY(uplink_cut(u, did, e));
    return leases(u, did, e);
}

/* What needs no parent is done without it: the next set is opened when the current one is done. */
static void work_alone(struct uplink *u) {
    struct err e = {0};
    bool did = false;
    if (u->st.run.v[0] == 0 && u->run.seq_len == 0) return; /* it never joined */
    if (uplink_cut(u, &did, &e) != BRG_OK) return;
    u->next_closed = true; /* nothing is added to it now */
    if (next_due(u) && next_open(u, &did, &e) == BRG_OK && hold(u, &e) != BRG_OK)
        log_line(LOG_DEBUG, "hub", "hold_later", "cause=\"%s\"", e.text);
}

static bool pause_for(struct uplink *u, time_ns ns) {
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    if (!u->stopping) server_cond_wait(&u->changed, &u->lock, os_now() + ns);
    bool go = !u->stopping && u->dead == BRG_OK;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    return go;
}

static void *work(void *arg) {
    struct uplink *u = arg;
    time_ns pause = PAUSE_MS * (time_ns)NS_PER_MS, back = pause;
    bool drained = false, away = false;
    do {
        struct err e = {0};
        bool did = false;
        enum brg_status s = work_once(u, &did, &drained, &e);
        if (s == BRG_E_BUSY) s = BRG_OK; /* this hub's own machine: the next turn */
        if (s != BRG_OK && !away)
            log_line(LOG_WARN, "hub", "parent_away", "url=%s cause=\"%s\"", u->url, e.text);
        if (s == BRG_OK && away) log_line(LOG_INFO, "hub", "parent_back", "url=%s", u->url);
        away = s != BRG_OK;
        if (away) work_alone(u);
        back = !away ? pause : back * 2 > BACKOFF_MAX_MS * (time_ns)NS_PER_MS ? back : back * 2;
        pause = did ? NS_PER_MS : PAUSE_MS * (time_ns)NS_PER_MS;
    } while (pause_for(u, away ? back : pause));
    return NULL;
}

static void beat_take(struct uplink *u, const struct wire_answer *a) {
    const struct wire_heartbeat_answer *h = &a->u.heartbeat;
    struct err e;
    if (code_status(u, a, &e) != BRG_OK || a->code != WIRE_OK) return;
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    for (uint32_t i = 0; i < h->leases_count; i++)
        if (h->leases[i].verdict == LEASE_GONE && u->gone_count < WIRE_LEASES_MAX)
            u->gone[u->gone_count++] = h->leases[i].tok;
    u->head = h->round.head;
    u->drain = h->round.drain;
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
}

static void beat_once(struct uplink *u) {
    struct wire_request q = {.kind = WIRE_HEARTBEAT};
    struct wire_heartbeat *b = &q.u.heartbeat;
    struct wire_answer a;
    struct hub_region_view v;
    struct err e;
    bool live = sites_live(u);
    uplink_view(u, 0, &v);
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    bool member = u->inc > 0 && !u->rejoin;
    b->hb_seq = ++u->hb_seq;
    /* Without a site nothing moves: then the leases may lapse, as a dead site's do. */
    b->leases_count = live ? u->tells_count : 0;
    memcpy(b->leases, u->tells, sizeof b->leases);
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (!member) return;
    b->base = v.taken;
    b->phase = live && b->leases_count > 0 ? PHASE_TRAINING : PHASE_WAITING;
    address(u, &q);
    if (client_post(u->beat, &q, &a, &e) == BRG_OK) beat_take(u, &a);
}

static void *beats(void *arg) {
    struct uplink *u = arg;
    time_ns every;
    do {
        beat_once(u);
        CHECK(pthread_mutex_lock(&u->lock) == 0);
        every = u->heartbeat_ns;
        CHECK(pthread_mutex_unlock(&u->lock) == 0);
    } while (pause_for(u, every));
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------------------- */
static enum brg_status rules_fine(const struct hub_server *s, struct err *e) {
    const struct hub_settings *h = &s->dir.settings.hub;
    const char *field = h->down != 0                    ? "outer.down_codec"
                        : h->sync_tokens > 0            ? "outer.synchronous"
                        : h->rule.ema > 0               ? "outer.ema"
                        : h->rule.last_mean             ? "outer.last"
                        : h->rule.kind == OUTER_DELAYED ? "outer.optimizer"
                                                        : NULL;
    if (field == NULL) return BRG_OK;
    return err_set(e, BRG_E_CONFIG,
                   "%s/run.yaml: %s is not for a region: leave it at its default there, and set it "
                   "at the parent",
                   s->dir.path, field);
}

enum brg_status uplink_open(struct hub_server *s, const struct hub_parent_options *o,
                            struct uplink **out, struct err *e) {
    const struct hub_cmd c = {.kind = HUB_CMD_HOLD};
    struct hub_region_view v;
    pthread_condattr_t attr;
    TRY(rules_fine(s, e));
    struct uplink *u = mem_alloc(1, sizeof *u);
    *out = u; /* uplink_close takes it, whatever comes */
    u->s = s;
    u->o = *o;
    (void)snprintf(u->url, sizeof u->url, "%s", o->url);
    (void)snprintf(u->name, sizeof u->name, "%s", o->name);
    (void)snprintf(u->token, sizeof u->token, "%s", o->token_file != NULL ? o->token_file : "");
    (void)snprintf(u->ca, sizeof u->ca, "%s", o->ca_file != NULL ? o->ca_file : "");
    u->heartbeat_ns = NS_PER_S;
    os_random(&u->boot, sizeof u->boot);
    CHECK(pthread_mutex_init(&u->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&attr) == 0);
    CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&u->changed, &attr) == 0);
    pthread_condattr_destroy(&attr);
    os_path(u->dir, s->dir.path, "uplink");
    TRY(os_mkdirs(u->dir, e));
    TRY(state_read(u, e));
    tells_fill(u);
    uplink_view(u, 0, &v);
    if (!v.is && uplink_step(u, &c, e) != BRG_OK) {
        e->status = BRG_E_CONFIG;
        return err_prefix(e, "%s", s->dir.path);
    }
    TRY(client_global_init(e));
    const struct client_options line = {.url = u->url,
                                        .token_file = u->token[0] ? u->token : NULL,
                                        .ca_file = u->ca[0] ? u->ca : NULL,
                                        .timeout_ns = o->timeout_ns};
    TRY(client_open(&line, &u->line, e));
    return client_open(&line, &u->beat, e);
}

enum brg_status uplink_start(struct uplink *u, struct err *e) {
    u->worker_runs = pthread_create(&u->worker, NULL, work, u) == 0;
    u->beater_runs = u->worker_runs && pthread_create(&u->beater, NULL, beats, u) == 0;
    if (u->beater_runs) return BRG_OK;
    return err_set(e, BRG_E_MEMORY, "no thread to be had for the parent");
}

/* Its leases wait for its next process, as those of a site that leaves in order. */
static void leave(struct uplink *u) {
    enum { LEAVE_S = 3 };
    struct wire_request q = {.kind = WIRE_LEAVE};
    struct wire_answer a;
    struct err e;
    const struct client_options o = {.url = u->url,
                                     .token_file = u->token[0] ? u->token : NULL,
                                     .ca_file = u->ca[0] ? u->ca : NULL,
                                     .timeout_ns = LEAVE_S * (time_ns)NS_PER_S};
    client_close(u->line); /* it was stopped */
    u->line = NULL;
    if (u->inc == 0 || u->rejoin || u->dead != BRG_OK) return;
    q.u.leave.keep = true;
    if (client_open(&o, &u->line, &e) == BRG_OK && uplink_ask(u, &q, &a, &e) != BRG_OK)
        log_line(LOG_WARN, "hub", "parent_not_told", "cause=\"%s\"", e.text);
    client_close(u->line);
    u->line = NULL;
}

void uplink_close(struct uplink *u) {
    CHECK(pthread_mutex_lock(&u->lock) == 0);
    u->stopping = true;
    pthread_cond_broadcast(&u->changed);
    CHECK(pthread_mutex_unlock(&u->lock) == 0);
    if (u->beater_runs) client_stop(u->beat);
    if (u->worker_runs) client_stop(u->line);
    if (u->beater_runs) pthread_join(u->beater, NULL);
    if (u->worker_runs) pthread_join(u->worker, NULL);
    leave(u);
    client_close(u->beat);
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    mem_free(u);
}
