/* SPDX-License-Identifier: Apache-2.0 */
/* api_os.c - the doors of include/beringia.h.
 *
 * Each call comes in here, is looked at, and goes on to its namesake in site_os.c or loop_os.c. A door
 *   - refuses a missing handle, a site of another process (fork), a training call from a thread that
 *     is not the training thread: BRG_FAIL_USAGE with a sentence, before anything is touched;
 *   - takes structs of other sizes: an older program's are shorter, what is missing is the default;
 *   - holds a guard (base/guard.h), so that a fault of the library ends the site and not its host;
 *   - sets aside what the host has set for its own use: host_os.h.
 *
 * Sentences of refused calls are the calling thread's own, because the site may not be touched. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/log.h"
#include "base/version.h"
#include "site/api_os.h"
#include "site/host_os.h"

static_assert(BRG_GO == (int)BRG_OK, "one numbering");
static_assert(BRG_FAIL_INTERNAL == (int)BRG_E_INTERNAL, "one numbering");
static_assert(BRG_FAIL_USAGE == (int)BRG_E_USAGE, "one numbering");
static_assert(BRG_FAIL_CONFIG == (int)BRG_E_CONFIG, "one numbering");
static_assert(BRG_FAIL_BUSY == (int)BRG_E_BUSY, "one numbering");
static_assert(BRG_FAIL_DATA == (int)BRG_E_MANIFEST, "one numbering");
static_assert(BRG_FAIL_NET == (int)BRG_E_NET, "one numbering");
static_assert(BRG_FAIL_REFUSED == (int)BRG_E_REFUSED, "one numbering");
static_assert(BRG_FAIL_FENCED == (int)BRG_E_FENCED, "one numbering");
static_assert(BRG_FAIL_NONFINITE == (int)BRG_E_NONFINITE, "one numbering");
static_assert(BRG_FAIL_LIMIT == (int)BRG_E_LIMIT, "one numbering");
static_assert(BRG_FAIL_MEMORY == (int)BRG_E_MEMORY, "one numbering");
static_assert(BRG_FAIL_MODEL == (int)BRG_E_MODEL, "one numbering");
static_assert(BRG_FAIL_TIMEOUT == (int)BRG_E_TIMEOUT, "one numbering");

/* Sizes in the first header, 0.1: programs that were built with it go on running. */
enum { OPTIONS_FIRST = 112, RUN_FIRST = 104, TRAINER_FIRST = 64, FIGURES_FIRST = 144 };
static_assert(sizeof(struct brg_options) >= OPTIONS_FIRST, "structs only grow");
static_assert(sizeof(struct brg_run) >= RUN_FIRST, "structs only grow");
static_assert(sizeof(struct brg_trainer) >= TRAINER_FIRST, "structs only grow");
static_assert(sizeof(struct brg_figures) >= FIGURES_FIRST, "structs only grow");
static_assert(sizeof(struct brg_tensor) == 48, "an array of these has one stride for ever");
static_assert(sizeof(struct brg_array) == 24, "an array of these has one stride for ever");

static _Thread_local char refused[300]; /* of this thread's last call, where a door refused it */

static int refuse(const char *call, const char *text) {
    snprintf(refused, sizeof refused, "%s: %s", call, text);
    return BRG_FAIL_USAGE;
}

/* ---- What every door asks ------------------------------------------------------------------------- */

enum who { ANYBODY, TRAINING_THREAD };

static int ask(const struct brg_site *s, const char *call, enum who who) {
    refused[0] = '\0';
    if (!s) return refuse(call, "no site; brg_open gives one");
    if (s->pid != getpid())
        return refuse(call, "this site was opened before a fork; only the process that called "
                            "brg_open may use it");
    if (atomic_load(&s->broken)) return (int)s->broken_status;
    if (who == TRAINING_THREAD && !s->joined_once) return refuse(call, "brg_join comes first");
    if (who == TRAINING_THREAD && !pthread_equal(s->owner, pthread_self()))
        return refuse(call, "called from another thread than brg_join was; a site belongs to one "
                            "training thread");
    return BRG_GO;
}

void site_broken(struct brg_site *s, enum brg_status status, const char *text) {
    (void)pthread_mutex_unlock(&s->lock); /* it checks: only where this thread holds it */
    if (atomic_exchange(&s->breaking, true)) return;
    s->broken_status = status;
    snprintf(s->broken_text, sizeof s->broken_text, "%s", text);
    log_line(LOG_ERROR, "site", "broken",
             "status=%s text=\"%s\" remedy=\"close the site; its state directory holds the work up "
             "to the last checkpoint\"",
             status_name(status), text);
    atomic_store(&s->broken, true);
}

/* Takes a struct of `bytes` bytes as one of `size`: what is missing is zero, what is too much must be. */
static int take_struct(void *to, size_t size, const void *from, size_t first, const char *call) {
    size_t bytes;
    if (!from) return refuse(call, "a struct is missing");
    memcpy(&bytes, from, sizeof bytes);
    if (bytes < first || bytes > 65536)
        return refuse(call, "struct_bytes is not set; brg_options_init or sizeof sets it");
    for (size_t i = size; i < bytes; i++)
        if (((const uint8_t *)from)[i] != 0)
            return refuse(call, "the program was built for a newer libberingia, and uses what this "
                                "one does not have");
    memset(to, 0, size);
    memcpy(to, from, bytes < size ? bytes : size);
    memcpy(to, &size, sizeof size);
    return BRG_GO;
}

/* Gives a struct to a program that knows the first out->struct_bytes bytes of it. */
static int give_struct(void *to, const void *from, size_t size, size_t first, const char *call) {
    size_t bytes;
    if (!to) return refuse(call, "a struct is missing");
    memcpy(&bytes, to, sizeof bytes);
    if (bytes < first || bytes > 65536)
        return refuse(call, "struct_bytes is not set; sizeof sets it");
    memset((uint8_t *)to + sizeof bytes, 0, bytes - sizeof bytes);
    size_t n = (bytes < size ? bytes : size) - sizeof bytes;
    memcpy((uint8_t *)to + sizeof bytes, (const uint8_t *)from + sizeof bytes, n);
    return BRG_GO;
}

/* The const of queries that take the lock; a broken site is marked through it as well. */
static struct brg_site *open_up(const struct brg_site *s) {
    return (struct brg_site *)(uintptr_t)s;
}

#define DOOR(s, call, who)                                                                         \
    int asked = ask((s), (call), (who));                                                           \
    if (asked != BRG_GO) return asked;                                                             \
    struct guard g;                                                                                \
    struct host h;                                                                                 \
    host_enter(&h);                                                                                \
    if (setjmp(g.at) != 0) {                                                                       \
        site_broken(open_up(s), g.status, g.text);                                                 \
        host_leave(&h);                                                                            \
        return (int)g.status;                                                                      \
    }                                                                                              \
    guard_enter(&g)

static void leave(struct guard *g, const struct host *h) {
    guard_leave(g);
    host_leave(h);
}

/* ---- About the library ---------------------------------------------------------------------------- */

const char *brg_version(void) {
    return BERINGIA_VERSION;
}

size_t brg_struct_bytes(const char *name) {
    static const struct {
        const char *name;
        size_t bytes;
    } sizes[] = {{"brg_options", sizeof(struct brg_options)},
                 {"brg_run", sizeof(struct brg_run)},
                 {"brg_tensor", sizeof(struct brg_tensor)},
                 {"brg_array", sizeof(struct brg_array)},
                 {"brg_trainer", sizeof(struct brg_trainer)},
                 {"brg_figures", sizeof(struct brg_figures)},
                 {"brg_data_facts", sizeof(struct brg_data_facts)},
                 {"brg_moment", sizeof(struct brg_moment)}};
    for (size_t i = 0; name && i < ARRAY_COUNT(sizes); i++)
        if (strcmp(sizes[i].name, name) == 0) return sizes[i].bytes;
    return 0;
}

int brg_log_level(const char *name) {
    enum log_level level;
    refused[0] = '\0';
    if (!name || !log_level_parse(name, &level))
        return refuse("brg_log_level", "want error, warn, info, debug or trace");
    log_level_set(level);
    return BRG_GO;
}

const char *brg_status_name(int status) {
    if (status == BRG_WAIT) return "WAIT";
    if (status == BRG_DRAIN) return "DRAIN";
    if (status == BRG_COMPLETE) return "COMPLETE";
    return status_name((enum brg_status)status);
}

const char *brg_status_sentence(int status) {
    if (status == BRG_WAIT) return "no samples now";
    if (status == BRG_DRAIN) return "stop soon, on request";
    if (status == BRG_COMPLETE) return "the run is complete";
    return status_sentence((enum brg_status)status);
}

void brg_options_init_bytes(struct brg_options *o, size_t bytes) {
    struct brg_options full = {.struct_bytes = bytes,
                               .batch_samples = 8,
                               .timeout_ns = 30 * (int64_t)NS_PER_S,
                               .checkpoint_every_ns = 60 * (int64_t)NS_PER_S,
                               .warmup_steps = 20};
    if (!o) return;
    memset(o, 0, bytes);
    memcpy(o, &full, bytes < sizeof full ? bytes : sizeof full);
}

/* The header makes a macro of this name; programs built with the first header call it itself. */
#undef brg_options_init
void brg_options_init(struct brg_options *o) {
    brg_options_init_bytes(o, OPTIONS_FIRST);
}

/* ---- Open, join, close ----------------------------------------------------------------------------- */

int brg_open(const struct brg_options *o, int64_t timeout_ns, struct brg_site **out, char *why,
             size_t why_bytes) {
    struct brg_options all;
    refused[0] = '\0';
    int result = out ? BRG_GO : refuse("brg_open", "out is missing");
    if (result == BRG_GO) result = take_struct(&all, sizeof all, o, OPTIONS_FIRST, "brg_open");
    if (result != BRG_GO) {
        if (why && why_bytes > 0) snprintf(why, why_bytes, "%s", refused);
        return result;
    }
    struct guard g;
    struct host h;
    host_enter(&h);
    if (setjmp(g.at) != 0) {
        host_leave(&h);
        if (why && why_bytes > 0) snprintf(why, why_bytes, "%s", g.text);
        return (int)g.status;
    }
    guard_enter(&g);
    log_os_look();
    result = call_open(&all, timeout_ns, out, why, why_bytes);
    leave(&g, &h);
    return result;
}

const char *brg_model_json(const struct brg_site *s) {
    return ask(s, "brg_model_json", ANYBODY) == BRG_GO ? s->run.model_json : NULL;
}

int brg_run(const struct brg_site *s, struct brg_run *out) {
    struct brg_run full;
    DOOR(s, "brg_run", ANYBODY);
    int result = call_run(s, &full);
    leave(&g, &h);
    if (result != BRG_GO) return result;
    return give_struct(out, &full, sizeof full, RUN_FIRST, "brg_run");
}

int brg_run_id(const struct brg_site *s, uint8_t *out_id) {
    DOOR(s, "brg_run_id", ANYBODY);
    int result = out_id ? BRG_GO : refuse("brg_run_id", "out_id is missing");
    if (result == BRG_GO) memcpy(out_id, s->run.run.v, ID_BYTES);
    leave(&g, &h);
    return result;
}

int brg_offer(struct brg_site *s, const void *kept, size_t bytes) {
    DOOR(s, "brg_offer", ANYBODY);
    int result = kept || bytes == 0 ? call_offer(s, kept, bytes)
                                    : refuse("brg_offer", "kept is missing");
    leave(&g, &h);
    return result;
}

int brg_join(struct brg_site *s, const struct brg_trainer *t, int64_t timeout_ns) {
    struct brg_trainer full;
    DOOR(s, "brg_join", s && s->joined_once ? TRAINING_THREAD : ANYBODY);
    if (atomic_exchange(&s->joining, true)) {
        leave(&g, &h);
        return refuse("brg_join", "another thread is in brg_join");
    }
    int result = take_struct(&full, sizeof full, t, TRAINER_FIRST, "brg_join");
    if (result == BRG_GO && s->joined) result = refuse("brg_join", "this site has joined already");
    if (result == BRG_GO && full.tensors_count > 0 && !full.tensors)
        result = refuse("brg_join", "tensors are missing");
    if (result == BRG_GO && full.arrays_count > 0 && !full.arrays)
        result = refuse("brg_join", "arrays are missing");
    if (result == BRG_GO && full.counters_count > 0 && !full.counters)
        result = refuse("brg_join", "counters are missing");
    if (result == BRG_GO) {
        if (!s->joined_once) s->owner = pthread_self();
        result = call_join(s, &full, timeout_ns);
        s->joined = result == BRG_GO;
    }
    atomic_store(&s->joining, false);
    leave(&g, &h);
    return result;
}

int brg_close(struct brg_site *s, int64_t timeout_ns) {
    refused[0] = '\0';
    if (!s) return BRG_GO;
    if (s->pid != getpid()) return ask(s, "brg_close", ANYBODY);
    struct guard g;
    struct host h;
    host_enter(&h);
    if (setjmp(g.at) != 0) site_broken(s, g.status, g.text);
    if (atomic_load(&s->broken)) {
        int status = (int)s->broken_status;
        call_abandon(s);
        host_leave(&h);
        return status;
    }
    guard_enter(&g);
    int result = call_close(s, timeout_ns);
    leave(&g, &h);
    return result;
}

void brg_drain(struct brg_site *s) {
    if (s) atomic_store(&s->drain, true); /* lock-free: fit for a signal handler */
}

/* ---- The loop -------------------------------------------------------------------------------------- */

float *brg_weights(struct brg_site *s) {
    return ask(s, "brg_weights", ANYBODY) == BRG_GO ? s->theta : NULL;
}

int brg_take(struct brg_site *s, uint64_t want, int64_t timeout_ns, uint64_t *out_samples,
             uint32_t *out_epochs, uint64_t *out_count) {
    DOOR(s, "brg_take", TRAINING_THREAD);
    int result = out_samples && out_count
                     ? call_take(s, want, timeout_ns, out_samples, out_epochs, out_count)
                     : refuse("brg_take", "out_samples or out_count is missing");
    leave(&g, &h);
    return result;
}

int brg_untake(struct brg_site *s) {
    DOOR(s, "brg_untake", TRAINING_THREAD);
    int result = call_untake(s);
    leave(&g, &h);
    return result;
}

int brg_sample(const struct brg_site *s, uint64_t sample, int32_t *out_tokens) {
    DOOR(s, "brg_sample", ANYBODY);
    int result = BRG_GO;
    if (!out_tokens)
        result = refuse("brg_sample", "out_tokens is missing");
    else if (!s->data)
        result = refuse("brg_sample", "this site was opened without data_dir");
    else if (sample >= data_samples(s->data))
        result = refuse("brg_sample", "there are not so many samples");
    else
        data_sample(s->data, sample, out_tokens);
    leave(&g, &h);
    return result;
}

double brg_lr(const struct brg_site *s) {
    if (ask(s, "brg_lr", TRAINING_THREAD) != BRG_GO) return 0;
    struct guard g;
    struct host h;
    host_enter(&h);
    if (setjmp(g.at) != 0) {
        site_broken(open_up(s), g.status, g.text);
        host_leave(&h);
        return 0;
    }
    guard_enter(&g);
    double lr = call_lr(s);
    leave(&g, &h);
    return lr;
}

int brg_step(struct brg_site *s, uint64_t count, double loss, const char *skipped) {
    DOOR(s, "brg_step", TRAINING_THREAD);
    int result = call_step(s, count, loss, skipped);
    leave(&g, &h);
    return result;
}

int brg_synchronous(const struct brg_site *s) {
    DOOR(s, "brg_synchronous", ANYBODY);
    bool result = call_synchronous(s);
    leave(&g, &h);
    return result ? BRG_SYNCHRONOUS : BRG_GO;
}

int brg_gradient(struct brg_site *s, uint64_t count, double loss, const float *gradient) {
    DOOR(s, "brg_gradient", TRAINING_THREAD);
    int result = gradient ? call_gradient(s, count, loss, gradient)
                          : refuse("brg_gradient", "gradient is missing");
    leave(&g, &h);
    return result;
}

int brg_due(struct brg_site *s, int *out_due) {
    DOOR(s, "brg_due", TRAINING_THREAD);
    int result = out_due ? call_due(s, out_due) : refuse("brg_due", "out_due is missing");
    leave(&g, &h);
    return result;
}

int brg_sync(struct brg_site *s, int *out_changed) {
    DOOR(s, "brg_sync", TRAINING_THREAD);
    int result = call_sync(s, out_changed);
    leave(&g, &h);
    return result;
}

int brg_reset(struct brg_site *s) {
    DOOR(s, "brg_reset", TRAINING_THREAD);
    int result = call_reset(s);
    leave(&g, &h);
    return result;
}

int brg_checkpoint(struct brg_site *s) {
    DOOR(s, "brg_checkpoint", TRAINING_THREAD);
    int result = call_checkpoint(s);
    leave(&g, &h);
    return result;
}

int brg_keep(struct brg_site *s, void *out, size_t cap, size_t *out_bytes,
             struct brg_moment *out_moment) {
    struct brg_moment full = {.struct_bytes = sizeof full};
    DOOR(s, "brg_keep", TRAINING_THREAD);
    int result = out && out_bytes && out_moment
                     ? call_keep(s, out, cap, out_bytes, &full)
                     : refuse("brg_keep", "out, out_bytes or out_moment is missing");
    leave(&g, &h);
    if (result != BRG_GO) return result;
    return give_struct(out_moment, &full, sizeof full, sizeof full, "brg_keep");
}

int brg_status(const struct brg_site *s, struct brg_figures *out) {
    struct brg_figures full;
    DOOR(s, "brg_status", ANYBODY);
    int result = call_status(s, &full);
    leave(&g, &h);
    if (result != BRG_GO) return result;
    return give_struct(out, &full, sizeof full, FIGURES_FIRST, "brg_status");
}

const char *brg_why(const struct brg_site *s) {
    if (refused[0] != '\0' || !s) return refused;
    return atomic_load(&s->broken) ? s->broken_text : s->why;
}

/* ---- A data set without a site ----------------------------------------------------------------------- */

struct brg_data {
    struct dataset *d;
};

int brg_data_open(const char *dir, int trusted, struct brg_data **out, char *why,
                  size_t why_bytes) {
    struct err e = {0};
    struct brg_data *d = NULL;
    struct guard g;
    struct host h;
    refused[0] = '\0';
    if (!dir || !out) return refuse("brg_data_open", "dir or out is missing");
    host_enter(&h);
    if (setjmp(g.at) != 0) {
        host_leave(&h);
        if (why && why_bytes > 0) snprintf(why, why_bytes, "%s", g.text);
        return (int)g.status;
    }
    guard_enter(&g);
    struct dataset *inner = NULL;
    log_os_look();
    enum brg_status status = data_open(dir, !trusted, &inner, &e);
    if (status == BRG_OK) {
        d = mem_alloc(1, sizeof *d);
        d->d = inner;
        *out = d;
    }
    leave(&g, &h);
    if (status != BRG_OK && why && why_bytes > 0) snprintf(why, why_bytes, "%s", e.text);
    return (int)status;
}

int brg_data_facts(const struct brg_data *d, struct brg_data_facts *out) {
    refused[0] = '\0';
    if (!d) return refuse("brg_data_facts", "no data set; brg_data_open gives one");
    struct hash fingerprint = data_fingerprint(d->d);
    struct brg_data_facts f = {.struct_bytes = sizeof f,
                               .samples = data_samples(d->d),
                               .heldout_samples = data_heldout_samples(d->d),
                               .seq_len = data_seq_len(d->d),
                               .vocab_size = data_vocab(d->d)};
    memcpy(f.fingerprint, fingerprint.v, sizeof f.fingerprint);
    return give_struct(out, &f, sizeof f, sizeof f, "brg_data_facts");
}

static int data_get(const struct brg_data *d, bool heldout, uint64_t sample, int32_t *out) {
    refused[0] = '\0';
    if (!d || !out) return refuse("brg_data_sample", "the data set or out_tokens is missing");
    if (sample >= (heldout ? data_heldout_samples(d->d) : data_samples(d->d)))
        return refuse("brg_data_sample", "there are not so many samples");
    struct guard g; /* and no host_enter: a sample is bytes, and loaders want many of them */
    if (setjmp(g.at) != 0) {
        snprintf(refused, sizeof refused, "%s", g.text);
        return (int)g.status;
    }
    guard_enter(&g);
    if (heldout)
        data_heldout_sample(d->d, sample, out);
    else
        data_sample(d->d, sample, out);
    guard_leave(&g);
    return BRG_GO;
}

int brg_data_sample(const struct brg_data *d, uint64_t sample, int32_t *out_tokens) {
    return data_get(d, false, sample, out_tokens);
}

int brg_data_heldout_sample(const struct brg_data *d, uint64_t sample, int32_t *out_tokens) {
    return data_get(d, true, sample, out_tokens);
}

void brg_data_close(struct brg_data *d) {
    if (!d) return;
    data_close(d->d);
    mem_free(d);
}
