/* SPDX-License-Identifier: Apache-2.0 */
/* loop_os.c - the calls of the training loop: take, step, sync, checkpoint. See site_os.c. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "site/api_os.h"

static int fail(struct brg_site *s, enum brg_status status, const char *text) {
    snprintf(s->why, sizeof s->why, "%s", text);
    return (int)status;
}

/* ---- Taking -------------------------------------------------------------------------------------- */

static const struct order *order_of(struct brg_site *s, uint32_t epoch) {
    uint32_t i = epoch % SITE_ORDERS;
    if (!s->orders_set[i] || s->orders[i].epoch != epoch) {
        order_init(&s->orders[i], s->run.order_seed, epoch, s->run.positions, 0, 0);
        s->orders_set[i] = true;
    }
    return &s->orders[i];
}

static enum brg_status translate(struct brg_site *s, uint64_t n, uint64_t *samples,
                                 uint32_t *epochs) {
    for (uint64_t i = 0; i < n; i++) {
        const struct site_position *p = &s->positions[i];
        if (p->position >= s->run.positions) return BRG_E_MESSAGE;
        samples[i] = order_sample(order_of(s, p->epoch), p->position);
        if (epochs) epochs[i] = p->epoch;
    }
    return BRG_OK;
}

int call_take(struct brg_site *s, uint64_t want, int64_t timeout_ns, uint64_t *out_samples,
              uint32_t *out_epochs, uint64_t *out_count) {
    if (want == 0 || want > SITE_TAKE_MAX)
        return fail(s, BRG_E_USAGE, "brg_take: want 1 to 65536 samples");
    if (want > s->positions_cap) {
        s->positions = mem_grow(s->positions, s->positions_cap, want, sizeof *s->positions);
        s->positions_cap = want;
    }
    time_ns until = site_deadline(timeout_ns);
    int result = BRG_WAIT;
    uint64_t got = 0;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    for (;;) {
        const struct site_core *c = &s->core;
        if (c->state == SITE_STOPPED) {
            result = fail(s, c->stop_status, c->stop_text);
            break;
        }
        if (site_cancelled(s) || c->round.drain || c->draining) result = BRG_DRAIN;
        if (c->complete) result = BRG_COMPLETE;
        if (result != BRG_WAIT) break;
        got = site_take(&s->core, want, s->positions);
        if (got > 0) {
            result = BRG_GO;
            site_tick(s); /* fewer samples are left now */
            break;
        }
        if (duty_next(s) != SITE_DUTY_NONE || os_now() >= until) break; /* brg_sync has work */
        site_nap(s, until);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (result != BRG_GO) return result;
    if (translate(s, got, out_samples, out_epochs) != BRG_OK)
        return fail(s, BRG_E_MESSAGE, "the hub leased positions that the data set does not have");
    *out_count = got;
    return BRG_GO;
}

double call_lr(const struct brg_site *s) {
    /* The lock is not part of the value; casting its constness away keeps the API honest for callers. */
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&s->lock;
    CHECK(pthread_mutex_lock(lock) == 0);
    double lr = site_lr(&s->core);
    CHECK(pthread_mutex_unlock(lock) == 0);
    return lr;
}

bool call_synchronous(const struct brg_site *s) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&s->lock;
    CHECK(pthread_mutex_lock(lock) == 0);
    bool wanted = site_gradients(&s->core);
    CHECK(pthread_mutex_unlock(lock) == 0);
    return wanted;
}

/* The mean over all samples since the last cut; with the first batch alone it has that one's bits. */
static bool gradient_add(struct brg_site *s, const float *gradient, uint64_t count) {
    if (!s->gradient) s->gradient = try_mem_alloc(s->elements, sizeof *s->gradient);
    if (!s->gradient) return false;
    double before = (double)s->gradient_samples, all = before + (double)count;
    if (s->gradient_samples == 0) memcpy(s->gradient, gradient, s->elements * sizeof *gradient);
    for (uint64_t i = 0; i < s->elements && s->gradient_samples > 0; i++)
        s->gradient[i] =
            (float)(((double)s->gradient[i] * before + (double)gradient[i] * (double)count) / all);
    s->gradient_samples += count;
    return true;
}

int call_gradient(struct brg_site *s, uint64_t count, double loss, const float *gradient) {
    for (uint64_t i = 0; i < s->elements; i++)
        if (!isfinite(gradient[i]))
            return fail(s, BRG_E_NONFINITE,
                        "brg_gradient: a number is not finite; say brg_step with a reason to skip");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    bool other = s->core.loaded && !site_gradients(&s->core), good = true;
    /* Where the weights were lost meanwhile the samples are, too: the core counts them as void. */
    enum brg_status status = other ? BRG_E_USAGE
                                   : site_trained(&s->core, os_now(), count, loss, 0, NULL);
    if (status == BRG_OK && site_gradients(&s->core)) good = gradient_add(s, gradient, count);
    if (status == BRG_OK) s->changes++;
    if (!good) s->core.reset_due = true;
    site_tick(s);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (!good) return fail(s, BRG_E_MEMORY, "brg_gradient: no memory for a vector of the weights");
    if (other)
        return fail(s, BRG_E_USAGE, "brg_gradient: brg_synchronous does not say so now; brg_step");
    if (status != BRG_OK) return fail(s, status, "brg_gradient: more samples than were taken");
    return BRG_GO;
}

int call_step(struct brg_site *s, uint64_t count, double loss, const char *skipped) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (site_gradients(&s->core) && !skipped) {
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        return fail(s, BRG_E_USAGE, "brg_step: the round is synchronous; brg_gradient");
    }
    double lr = site_lr(&s->core);
    enum brg_status status = site_trained(&s->core, os_now(), count, loss, lr, skipped);
    if (status != BRG_E_USAGE) s->changes++;
    s->stage_is_theta = false;
    site_tick(s);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (status == BRG_E_USAGE) return fail(s, status, "brg_step: more samples than were taken");
    if (status == BRG_E_LIMIT)
        return fail(s, status,
                    "too many samples were skipped in one segment; its work is thrown away");
    return BRG_GO;
}

/* ---- Sync ---------------------------------------------------------------------------------------- */

/* With each contribution too: a process that began with an older one would find that what it holds was
 * handed in since, and throw away what it did meanwhile. */
static bool checkpoint_due(const struct brg_site *s, bool changed, bool cut) {
    time_ns age = os_now() - s->saved_at;
    bool first = s->changes_saved == 0 && s->changes > 0;
    bool due = age >= s->checkpoint_every_ns && s->changes != s->changes_saved;
    cut = cut && !s->core.synchronous; /* each step would be written down, and little is lost */
    return (due || cut || (first && changed)) && !s->snap.busy;
}

static void checkpoint_maybe(struct brg_site *s, int changed) {
    bool cut = (changed & BRG_CHANGED_HANDED_IN) != 0;
    bool due = s->elsewhere ? (s->due & BRG_DUE_CHECKPOINT) != 0
                            : checkpoint_due(s, changed != 0, cut);
    if (!due) return;
    if (!s->core.loaded || s->core.reset_due) return;
    struct write_job *job = mem_alloc(1, sizeof *job);
    if (!local_checkpoint_begin(s, job)) mem_free(job);
}

int call_due(struct brg_site *s, int *out_due) {
    int due = 0;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    enum site_duty duty = duty_next(s);
    if (duty != SITE_DUTY_NONE) due |= BRG_DUE_WEIGHTS;
    /* A first checkpoint comes with the first change of the weights, which is about to happen. */
    if (s->core.loaded && checkpoint_due(s, due != 0, duty == SITE_DUTY_CUT))
        due |= BRG_DUE_WEIGHTS | BRG_DUE_CHECKPOINT;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    *out_due = s->due = due;
    return BRG_GO;
}

/* The weights are spoilt, or their caller gives up: back to what is surely ours, at the next brg_sync
 * or in brg_close. */
int call_reset(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (s->core.loaded) {
        s->core.reset_due = true;
        s->changes++;
    }
    site_tick(s);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return BRG_GO;
}

int call_untake(struct brg_site *s) {
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    site_untake(&s->core);
    site_tick(s);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return BRG_GO;
}

int call_sync(struct brg_site *s, int *out_changed) {
    struct err e = {0};
    int changed = 0;
    enum brg_status status = BRG_OK;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    for (int i = 0; i < 4 && status == BRG_OK;
         i++) { /* a reset may be followed by a rebase, a cut */
        if (s->elsewhere && !(s->due & BRG_DUE_WEIGHTS)) break; /* the vector is not filled */
        enum site_duty duty = duty_next(s);
        uint64_t before = s->changes;
        if (duty == SITE_DUTY_NONE) break;
        status = duty_run(s, duty, &changed, &e);
        if (s->changes == before) break;
    }
    site_notes(s, &s->out.notes);
    if (status == BRG_OK) checkpoint_maybe(s, changed);
    s->due = 0;
    site_tick(s);
    if (s->core.state == SITE_STOPPED) {
        status = s->core.stop_status;
        snprintf(e.text, sizeof e.text, "%s", s->core.stop_text);
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (out_changed) *out_changed = changed;
    return status == BRG_OK ? BRG_GO : fail(s, status, e.text);
}

int call_checkpoint(struct brg_site *s) {
    if (!s->core.loaded) return fail(s, BRG_E_USAGE, "brg_checkpoint: there are no weights yet");
    struct write_job *job = mem_alloc(1, sizeof *job);
    job->waited_for = true;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    while (s->snap.busy || (s->stage_users > 0 && !s->stage_is_theta)) site_nap(s, TIME_NS_NEVER);
    enum brg_status status = BRG_E_MEMORY;
    if (local_checkpoint_begin(s, job)) {
        while (!job->done) site_nap(s, TIME_NS_NEVER);
        status = job->status;
    }
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    mem_free(job);
    return status == BRG_OK ? BRG_GO : fail(s, status, "the local checkpoint could not be written");
}

/* ---- Figures ------------------------------------------------------------------------------------- */

int call_status(const struct brg_site *s, struct brg_figures *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&s->lock;
    CHECK(pthread_mutex_lock(lock) == 0);
    const struct site_core *c = &s->core;
    struct brg_figures f = {.struct_bytes = sizeof f,
                            .version = c->base,
                            .head = c->round.head,
                            .global_tokens = c->base_tokens,
                            .steps = c->steps_total,
                            .samples = c->samples_total,
                            .leased = site_available(c),
                            .segment_steps = c->seg.steps,
                            .steps_target = c->round.steps_target,
                            .samples_target = c->round.samples_target,
                            .pending = c->deltas_count,
                            .merged = c->merged_count,
                            .refused = c->rejected_count,
                            .tokens_per_s = c->tokens_per_s,
                            .loss = c->loss_last,
                            .online = !c->offline,
                            .joined = c->state >= SITE_SYNCING && c->state <= SITE_LEAVING,
                            .draining = c->draining || c->round.drain,
                            .complete = c->complete};
    snprintf(f.state, sizeof f.state, "%s", site_state_name(c->state));
    CHECK(pthread_mutex_unlock(lock) == 0);
    *out = f;
    return BRG_GO;
}
