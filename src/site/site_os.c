/* SPDX-License-Identifier: Apache-2.0 */
/* site_os.c - the C API of include/beringia.h over the core: opening, joining, closing.
 *
 *   training thread          lock           threads
 *   brg_take  -- site_take --+
 *   brg_step  -- site_trained+-- core --+-- control    POST join, lease, commit, outcome, ...
 *   brg_sync  -- duty_run ---+          +-- beat       POST heartbeat
 *                                       +-- up, down   blobs, versions
 *                                       +-- writer     outbox, local checkpoint
 *
 * Only the training thread touches the weights, and only inside the calls above; only the core decides.
 * loop_os.c has the calls of the training loop. */
#include <errno.h>
#include <inttypes.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "site/api_os.h"
#include "wire/net_os.h"

#define TIMEOUT_MAX_NS (24 * 3600 * (time_ns)NS_PER_S)

/* ---- Open ---------------------------------------------------------------------------------------- */

time_ns site_deadline(int64_t timeout_ns) {
    time_ns until = 0;
    bool never = timeout_ns < 0 || __builtin_add_overflow(os_now(), timeout_ns, &until);
    return never ? TIME_NS_NEVER : until;
}

/* Only the names are kept: the file is read by whoever opens a connection, and may change. */
static enum brg_status files_take(struct brg_site *s, const struct brg_options *o, struct err *e) {
    const char *token = o->token_file ? o->token_file : "", *ca = o->ca_file ? o->ca_file : "";
    if (strlen(token) >= sizeof s->token_file)
        return err_set(e, BRG_E_CONFIG, "token_file: the path is too long");
    if (strlen(ca) >= sizeof s->ca_file)
        return err_set(e, BRG_E_CONFIG, "ca_file: the path is too long");
    snprintf(s->token_file, sizeof s->token_file, "%s", token);
    snprintf(s->ca_file, sizeof s->ca_file, "%s", ca);
    struct net_identity id;
    struct client_options c = site_client_options(s);
    TRY(client_identity(&c, &id, e));
    net_identity_fini(&id);
    return BRG_OK;
}

struct client_options site_client_options(const struct brg_site *s) {
    return (struct client_options){.url = s->url,
                                   .token_file = s->token_file,
                                   .ca_file = s->ca_file,
                                   .timeout_ns = s->timeout_ns};
}

static enum brg_status fabric_take(struct brg_site *s, const char *given, struct err *e) {
    const char *label = given != NULL ? given : getenv("BERINGIA_FABRIC");
    if (label == NULL || *label == '\0') return BRG_OK;
    if (!wire_fabric_valid(label))
        return err_set(e, BRG_E_CONFIG,
                       "%s \"%.80s\": want up to three words of a-z 0-9 - _ with / between, as in "
                       "europe/alder",
                       given != NULL ? "fabric" : "BERINGIA_FABRIC", label);
    snprintf(s->fabric, sizeof s->fabric, "%s", label);
    return BRG_OK;
}

static enum brg_status options_take(struct brg_site *s, const struct brg_options *o,
                                    struct err *e) {
    if (!o->hub_url || strlen(o->hub_url) >= sizeof s->url)
        return err_set(e, BRG_E_CONFIG, "hub_url: want http://HOST:PORT");
    if (!o->site_name || !wire_name_valid(o->site_name))
        return err_set(e, BRG_E_CONFIG,
                       "site_name \"%.60s\": want [a-z0-9][a-z0-9_-]*, at most %d bytes",
                       o->site_name ? o->site_name : "", WIRE_NAME_MAX - 1);
    if (!o->state_dir || strlen(o->state_dir) + 80 >= sizeof s->dir)
        return err_set(e, BRG_E_CONFIG, "state_dir: want a directory");
    if (!o->data_dir && !o->data_fingerprint)
        return err_set(e, BRG_E_CONFIG, "data_dir: want a packed data set");
    if (o->batch_samples == 0 || o->batch_samples > SITE_TAKE_MAX)
        return err_set(e, BRG_E_CONFIG, "batch_samples: want 1 to %d", SITE_TAKE_MAX);
    snprintf(s->url, sizeof s->url, "%s", o->hub_url);
    snprintf(s->name, sizeof s->name, "%s", o->site_name);
    snprintf(s->dir, sizeof s->dir, "%s", o->state_dir);
    TRY(fabric_take(s, o->fabric, e));
    s->timeout_ns = client_timeout(s->url, o->timeout_ns);
    if (s->timeout_ns > TIMEOUT_MAX_NS) s->timeout_ns = TIMEOUT_MAX_NS; /* pauses are made of it */
    s->checkpoint_every_ns = o->checkpoint_every_ns;
    s->batch = o->batch_samples;
    s->warmup_steps = o->warmup_steps;
    s->seed = o->seed;
    s->cancel = o->cancel;
    if (s->seed == 0) os_random(&s->seed, sizeof s->seed);
    return files_take(s, o, e);
}

static enum brg_status dirs_make(struct brg_site *s, struct err *e) {
    char path[OS_PATH_MAX];
    TRY(os_mkdirs(os_path(path, s->dir, "outbox"), e));
    TRY(os_mkdirs(os_path(path, s->dir, "base"), e));
    TRY(os_lock(os_path(path, s->dir, "lock"), &s->lock_fd, e));
    site_lock_keep(s->lock_fd);
    return BRG_OK;
}

/* How long a start waits for the hub where the state directory would do as well. */
static time_ns patience(const struct brg_site *s) {
    return s->timeout_ns / 10;
}

/* One short try; without an answer, what the last process of this site was told, where it left a
 * checkpoint of that run: so a job that starts while the hub is away trains on. False: neither. */
static bool run_known(struct brg_site *s) {
    struct err e = {0}, why = {0};
    struct client_options o = site_client_options(s);
    o.timeout_ns = patience(s);
    struct client *c;
    struct wire_run *asked = mem_alloc(1, sizeof *asked);
    bool known = local_run_read(s, &why) == BRG_OK;
    if (known && client_open(&o, &c, &e) == BRG_OK) {
        enum brg_status status = client_run(c, asked, &e);
        client_close(c);
        s->hub_away = status_class(status) == BRG_CLASS_RETRY && status != BRG_OK;
        known = status == BRG_OK || s->hub_away;
        if (status == BRG_OK) s->run = *asked;
    }
    mem_free(asked);
    if (known && s->hub_away)
        log_line(LOG_WARN, "site", "hub_unreachable",
                 "text=\"%s\" remedy=\"going on with the run and the leases in %s\"", e.text,
                 s->dir);
    return known;
}

/* Tries until the hub answers; says once that it does not. */
static enum brg_status run_fetch(struct brg_site *s, time_ns until, struct err *e) {
    struct client_options o = site_client_options(s);
    if (run_known(s)) return BRG_OK;
    struct client *c;
    TRY(client_open(&o, &c, e));
    enum brg_status status;
    time_ns pause = 200 * (time_ns)NS_PER_MS;
    bool told = false;
    for (;;) {
        status = client_run(c, &s->run, e);
        if (status == BRG_OK || status_class(status) != BRG_CLASS_RETRY) break;
        if (!told)
            log_line(LOG_WARN, "site", "hub_unreachable", "text=\"%s\" remedy=\"waiting for it\"",
                     e->text);
        told = true;
        for (time_ns wake = os_now() + pause; os_now() < wake && !site_cancelled(s);) {
            struct timespec nap = {.tv_nsec = 50 * NS_PER_MS};
            nanosleep(&nap, NULL);
            if (os_now() >= until) break;
        }
        if (site_cancelled(s) || os_now() >= until) break;
        if (pause < 5 * (time_ns)NS_PER_S) pause *= 2;
    }
    client_close(c);
    if (status == BRG_OK && told)
        log_line(LOG_INFO, "site", "hub_back", "text=\"the hub answers\"");
    return status;
}

static enum brg_status data_check(struct brg_site *s, const struct brg_options *o, struct err *e) {
    if (o->data_dir) {
        TRY(data_open(o->data_dir, !o->data_trusted, &s->data, e));
        s->fingerprint = data_fingerprint(s->data);
    } else {
        memcpy(s->fingerprint.v, o->data_fingerprint, HASH_BYTES);
    }
    if (s->run.protocol != WIRE_PROTOCOL)
        return err_set(e, BRG_E_REFUSED,
                       "the hub speaks protocol %u, this program %d; use equal versions",
                       s->run.protocol, WIRE_PROTOCOL);
    if (!hash_equal(&s->fingerprint, &s->run.fingerprint))
        return err_set(e, BRG_E_MANIFEST,
                       "%s holds other data than the run's: pack the same text with the "
                       "same settings, or copy the run's data set here",
                       o->data_dir ? o->data_dir : "the caller");
    /* Whoever reads a sample makes room for seq_len + 1 tokens of brg_run's. */
    if (s->data &&
        (data_seq_len(s->data) != s->run.seq_len || data_vocab(s->data) > s->run.vocab_size))
        return err_set(e, BRG_E_MANIFEST,
                       "the hub says seq_len %u and vocab_size %u, but its data set in %s has %u "
                       "and %u: update the hub or this library",
                       s->run.seq_len, s->run.vocab_size, o->data_dir, data_seq_len(s->data),
                       data_vocab(s->data));
    return BRG_OK;
}

static void lock_let_go(struct brg_site *s) {
    if (s->lock_fd < 0) return;
    site_lock_forget(s->lock_fd);
    close(s->lock_fd);
    s->lock_fd = -1;
}

static void site_free(struct brg_site *s) {
    lock_let_go(s);
    data_close(s->data);
    tensors_fini(&s->table);
    mem_free(s->theta_own);
    mem_free(s->stage);
    mem_free(s->gradient);
    mem_free(s->positions);
    mem_free(s->snap.vectors);
    buf_fini(&s->snap.core);
    buf_fini(&s->offer);
    if (s->core_ready) site_out_fini(&s->out);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

int call_open(const struct brg_options *o, int64_t timeout_ns, struct brg_site **out, char *why,
              size_t why_bytes) {
    struct err e = {0};
    time_ns until = site_deadline(timeout_ns);
    struct brg_site *s = mem_alloc(1, sizeof *s);
    s->lock_fd = -1;
    s->pid = getpid();
    pthread_mutexattr_t kind; /* an owner is known, so that a guard can let go what is held */
    CHECK(pthread_mutexattr_init(&kind) == 0);
    CHECK(pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK) == 0);
    CHECK(pthread_mutex_init(&s->lock, &kind) == 0);
    pthread_mutexattr_destroy(&kind);
    pthread_condattr_t attr;
    CHECK(pthread_condattr_init(&attr) == 0);
    CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&s->changed, &attr) == 0);
    pthread_condattr_destroy(&attr);
    enum brg_status status = options_take(s, o, &e);
    if (status == BRG_OK) status = client_global_init(&e);
    if (status == BRG_OK) status = dirs_make(s, &e);
    if (status == BRG_OK) status = run_fetch(s, until, &e);
    if (status == BRG_OK) status = data_check(s, o, &e);
    if (status == BRG_OK && !s->hub_away) local_run_write(s);
    int result = status != BRG_OK && site_cancelled(s) ? BRG_DRAIN : (int)status;
    if (result == BRG_GO) {
        *out = s;
        return BRG_GO;
    }
    if (why && why_bytes > 0) snprintf(why, why_bytes, "%s", e.text);
    site_free(s);
    return result;
}

int call_run(const struct brg_site *s, struct brg_run *out) {
    const struct wire_run *r = &s->run;
    *out = (struct brg_run){.struct_bytes = sizeof *out,
                            .parameters = r->parameters,
                            .positions = r->positions,
                            .seq_len = r->seq_len,
                            .vocab_size = r->vocab_size,
                            .epochs = r->epochs,
                            .steps_per_round = r->steps,
                            .beta1 = r->beta1,
                            .beta2 = r->beta2,
                            .eps = r->eps,
                            .weight_decay = r->weight_decay,
                            .clip = r->clip,
                            .lr = r->lr,
                            .optimizer = r->optimizer,
                            .muon_momentum = r->muon_momentum,
                            .muon_lr_ratio = r->muon_lr_ratio};
    return BRG_GO;
}

/* ---- Join ---------------------------------------------------------------------------------------- */

#define ARRAYS_ELEMENTS_MAX (UINT64_C(1) << 48)

static enum brg_status table_take(struct brg_site *s, const struct brg_trainer *t, struct err *e) {
    uint64_t total = 0;
    for (size_t i = 0; i < t->tensors_count; i++) {
        const struct brg_tensor *x = &t->tensors[i];
        bool good = x->name && strlen(x->name) < TENSOR_NAME_MAX && x->dims > 0 &&
                    x->dims <= TENSOR_DIMS_MAX;
        uint64_t n = 1;
        for (uint32_t k = 0; good && k < x->dims; k++)
            good = x->shape[k] > 0 && !__builtin_mul_overflow(n, x->shape[k], &n);
        if (!good || total + n < total)
            return err_set(e, BRG_E_USAGE,
                           "tensor %zu: want a name, 1 to %d dimensions, sizes above 0", i,
                           TENSOR_DIMS_MAX);
        tensors_add(&s->table, x->name, TENSOR_F32, x->dims, x->shape);
        total += n;
    }
    s->elements = total;
    s->tensors_hash = tensors_hash(&s->table);
    if (total != s->run.parameters || !hash_equal(&s->tensors_hash, &s->run.tensors))
        return err_set(e, BRG_E_MODEL,
                       "this model's tensors (%zu, %" PRIu64 " parameters) are not the run's "
                       "(%" PRIu64 " parameters): names, shapes and order must be equal",
                       t->tensors_count, total, s->run.parameters);
    return BRG_OK;
}

/* Names become those of tensors in the local checkpoint, which must be readable again. */
static enum brg_status array_check(const struct brg_site *s, const struct brg_trainer *t, size_t i,
                                   uint64_t *left, struct err *e) {
    const struct brg_array *a = &t->arrays[i];
    bool named = a->name && a->name[0] != '\0' && strlen(a->name) < sizeof s->array_names[i];
    for (const char *p = a->name; named && *p; p++)
        named = *p > ' ' && *p < 0x7f && *p != '"' && *p != '\\';
    for (size_t k = 0; named && k < i; k++) named = strcmp(a->name, t->arrays[k].name) != 0;
    if (!named || (!a->data && !t->move_array) || (uintptr_t)a->data % alignof(float) != 0)
        return err_set(e, BRG_E_USAGE,
                       "array %zu: want a name of its own (printable, below %zu bytes), and data "
                       "that is aligned for floats, or move_array",
                       i, sizeof s->array_names[i]);
    if (a->count == 0 || a->count > *left)
        return err_set(e, BRG_E_USAGE, "array %zu (%s): want a count above 0 that is not absurd", i,
                       a->name);
    *left -= a->count;
    return BRG_OK;
}

static enum brg_status trainer_take(struct brg_site *s, const struct brg_trainer *t,
                                    struct err *e) {
    if (t->arrays_count > SITE_ARRAYS_MAX || t->counters_count > SITE_COUNTERS_MAX)
        return err_set(e, BRG_E_USAGE, "struct brg_trainer: more than %d arrays or counters",
                       SITE_ARRAYS_MAX);
    TRY(table_take(s, t, e));
    if ((uintptr_t)t->weights % alignof(float) != 0)
        return err_set(e, BRG_E_USAGE, "weights: want an address that is aligned for floats");
    uint64_t left = ARRAYS_ELEMENTS_MAX;
    for (size_t i = 0; i < t->arrays_count; i++) {
        TRY(array_check(s, t, i, &left, e));
        s->arrays[i] = t->arrays[i];
        snprintf(s->array_names[i], sizeof s->array_names[i], "%s", t->arrays[i].name);
    }
    s->arrays_count = t->arrays_count;
    s->counters = t->counters;
    s->counters_count = t->counters_count;
    s->elsewhere = t->weights_elsewhere != 0;
    s->gradients = t->gradients != 0;
    s->move_array = t->move_array;
    s->move_user = t->move_user;
    s->theta = t->weights;
    if (!s->theta) s->theta = s->theta_own = try_mem_alloc(s->elements, sizeof(float));
    s->stage = try_mem_alloc(s->elements, sizeof(float));
    if (!s->theta || !s->stage)
        return err_set(e, BRG_E_MEMORY, "no memory for two vectors of %" PRIu64 " weights",
                       s->elements);
    return BRG_OK;
}

void site_core_begin(struct brg_site *s) {
    const struct wire_run *r = &s->run;
    struct site_settings set = {.run = r->run,
                                .fingerprint = s->fingerprint,
                                .tensors = s->tensors_hash,
                                .tokens_per_sample = r->seq_len,
                                .positions = r->positions,
                                .elements = s->elements,
                                .codec = (enum codec)r->codec,
                                .batch = s->batch,
                                .pending_max = 1,
                                .steps_target = r->steps,
                                .seed = s->seed,
                                .retry_min_ns = 250 * (time_ns)NS_PER_MS,
                                .retry_max_ns = s->timeout_ns,
                                .answer_ns = TIME_NS_NEVER,
                                .alone_ns = s->hub_away ? 0 : patience(s),
                                .warmup_steps = s->warmup_steps,
                                .warmup_cold = s->warmup_steps,
                                .sync_tokens = r->sync_tokens,
                                .gradients = s->gradients,
                                .schedule = {.kind = (enum schedule_kind)r->schedule,
                                             .lr = r->lr,
                                             .lr_min_ratio = r->lr_min_ratio,
                                             .tokens_total = r->tokens_total,
                                             .tokens_warmup = r->warmup_tokens,
                                             .decay_share = r->decay_share}};
    memcpy(set.name, s->name, sizeof set.name);
    memcpy(set.fabric, s->fabric, sizeof set.fabric);
    struct id128 boot;
    os_random(boot.v, sizeof boot.v);
    site_init(&s->core, &set, &boot);
    if (s->core_ready) site_out_fini(&s->out); /* a join that found no threads comes again */
    site_out_init(&s->out);
    s->core_ready = true;
}

enum brg_status site_files_check(struct brg_site *s, struct err *e) {
    uint64_t tokens;
    TRY(local_base_verify(s, s->core.base, true, &tokens, &s->base_theta, e));
    for (uint32_t i = 0; i < s->core.deltas_count; i++) {
        struct site_delta *d = &s->core.deltas[i];
        char path[OS_PATH_MAX];
        if (d->state == PENDING_FAILED) continue;
        local_delta_path(s, &d->c.did, path);
        AUTO_BUF struct buf b = {0};
        b.bytes_max = DELTA_HEADER_BYTES + codec_bytes((enum codec)d->c.codec, s->elements);
        TRY(os_read_file(path, b.bytes_max, &b, e));
        struct hash h = hash_of(b.data, b.bytes_count);
        if (d->state == PENDING_CUT) { /* the file was on its way to the disk; it arrived */
            d->c.blob = h;
            d->c.bytes = b.bytes_count;
            d->state = PENDING_UPLOAD;
        }
        if (!hash_equal(&h, &d->c.blob))
            return err_set(e, BRG_E_CORRUPT, "%s: does not have its hash", path);
    }
    return local_residuals_check(s, e);
}

static void restore(struct brg_site *s) {
    struct err e = {0};
    bool offered = s->offer.bytes_count > 0;
    enum brg_status status = offered ? keep_restore(s, &e) : local_checkpoint_read(s, &e);
    if (status == BRG_E_MISSING) return;
    if (status != BRG_OK) {
        log_line(LOG_WARN, "site", "checkpoint_unusable",
                 "text=\"%s\" remedy=\"joining afresh; local work "
                 "that was not handed in is done again\"",
                 e.text);
        return;
    }
    if (!offered) status = site_files_check(s, &e); /* brg_offer has looked at them */
    if (status != BRG_OK) {
        log_line(LOG_WARN, "site", "local_files", "text=\"%s\"", e.text);
        site_forget(&s->core, "local files are missing or damaged", &s->out.notes);
        site_notes(s, &s->out.notes);
        return;
    }
    if (offered) s->changes++; /* the disk is behind */
    log_line(LOG_INFO, "site", "restored",
             "from=%s steps=%" PRIu64 " version=%" PRIu64 " segment_steps=%" PRIu64
             " contributions=%u leases=%u",
             offered ? "memory" : "disk", s->core.steps_total, s->core.base, s->core.seg.steps,
             s->core.deltas_count, s->core.leases_count);
}

static enum brg_status join_begin(struct brg_site *s, const struct brg_trainer *t, struct err *e) {
    tensors_fini(&s->table);
    memset(&s->table, 0, sizeof s->table);
    mem_free(s->stage);
    mem_free(s->theta_own);
    s->stage = s->theta_own = NULL;
    s->stage_users = 0;
    s->stage_is_theta = s->shift_ready = false;
    TRY(trainer_take(s, t, e));
    site_core_begin(s);
    restore(s);
    s->saved_at = os_now();
    TRY(site_threads_start(s, e));
    s->joined_once = true;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    site_event(s, &(struct site_event){.kind = SITE_START});
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return BRG_OK;
}

int call_join(struct brg_site *s, const struct brg_trainer *t, int64_t timeout_ns) {
    struct err e = {0};
    time_ns until = site_deadline(timeout_ns);
    if (!s->joined_once) {
        enum brg_status status = join_begin(s, t, &e);
        if (status != BRG_OK) {
            snprintf(s->why, sizeof s->why, "%s", e.text);
            return (int)status;
        }
    }
    int result = BRG_FAIL_TIMEOUT;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    do {
        int changed = 0;
        if (s->core.state == SITE_STOPPED) {
            result = (int)s->core.stop_status;
            snprintf(s->why, sizeof s->why, "%s", s->core.stop_text);
            break;
        }
        if (duty_next(s) == SITE_DUTY_LOAD) {
            if (duty_run(s, SITE_DUTY_LOAD, &changed, &e) != BRG_OK)
                log_line(LOG_WARN, "site", "load_failed", "text=\"%s\"", e.text);
            site_notes(s, &s->out.notes);
            site_tick(s);
        }
        if (s->core.loaded && (s->core.state == SITE_ACTIVE || s->core.alone))
            result = BRG_GO;
        else if (s->core.complete)
            result = BRG_COMPLETE;
        else if (site_cancelled(s))
            result = BRG_DRAIN;
        else
            site_nap(s, until);
    } while (result == BRG_FAIL_TIMEOUT && os_now() < until);
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    if (result == BRG_FAIL_TIMEOUT)
        snprintf(s->why, sizeof s->why, "the hub did not let this site in yet");
    return result;
}

/* ---- Close --------------------------------------------------------------------------------------- */

static void save_now(struct brg_site *s) {
    if (s->snap.busy || !s->core.loaded || s->core.reset_due) return;
    struct write_job *job = mem_alloc(1, sizeof *job);
    if (!local_checkpoint_begin(s, job)) mem_free(job);
}

static uint32_t contributions_unsent(const struct site_core *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        n += c->deltas[i].state < PENDING_STAGED || c->deltas[i].state == PENDING_FAILED;
    return n;
}

/* Hands in, waits, leaves. True: nothing is left that only this directory knows. */
static bool close_politely(struct brg_site *s, time_ns until) {
    struct err e = {0};
    /* What was trained alone cannot be handed in yet, and the patience of a batch system is short. */
    if (s->core.alone && s->changes != s->changes_saved) save_now(s);
    site_event(s, &(struct site_event){.kind = SITE_CLOSE});
    for (;;) {
        int changed = 0;
        enum site_duty duty = duty_next(s);
        bool more = false;
        if (duty != SITE_DUTY_NONE && duty != SITE_DUTY_LOAD) {
            uint64_t before = s->changes;
            if (duty_run(s, duty, &changed, &e) != BRG_OK)
                log_line(LOG_ERROR, "site", "handing_in_failed", "text=\"%s\"", e.text);
            more = s->changes != before;
            site_notes(s, &s->out.notes);
            if (changed & BRG_CHANGED_HANDED_IN) save_now(s); /* before the network may fail */
            site_tick(s);
        }
        bool unborn = s->core.inc == 0 && s->core.deltas_count == 0 && s->core.seg.samples == 0;
        if (s->core.state >= SITE_GONE || unborn) return s->core.state != SITE_STOPPED;
        if (os_now() >= until) return false;
        if (!more) site_nap(s, until);
    }
}

int call_close(struct brg_site *s, int64_t timeout_ns) {
    if (!s) return BRG_GO;
    int result = BRG_GO;
    if (s->threads_run) {
        time_ns until = site_deadline(timeout_ns);
        CHECK(pthread_mutex_lock(&s->lock) == 0);
        bool stopped = s->core.state == SITE_STOPPED;
        bool clean = !stopped && close_politely(s, until);
        if (s->core.state == SITE_STOPPED)
            result = (int)s->core.stop_status;
        else if (!clean)
            result = BRG_FAIL_TIMEOUT;
        CHECK(pthread_mutex_unlock(&s->lock) == 0);
        /* After FENCED this directory may belong to somebody else's process by now: hands off. */
        if (result != BRG_FAIL_FENCED && s->core.loaded && s->changes != s->changes_saved)
            (void)call_checkpoint(s); /* not its door: brg_close may come from any thread */
        site_threads_stop(s);
        log_line(LOG_INFO, "site", "closed",
                 "result=%s steps=%" PRIu64 " samples=%" PRIu64 " handed_in=%" PRIu64 " unsent=%u",
                 brg_status_name(result), s->core.steps_total, s->core.samples_total,
                 s->core.handed_in, contributions_unsent(&s->core));
    }
    site_free(s);
    return result;
}

void call_abandon(struct brg_site *s) {
    site_threads_end(s);
    lock_let_go(s);
}
