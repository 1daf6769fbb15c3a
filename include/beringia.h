/* SPDX-License-Identifier: Apache-2.0 */
/* beringia.h - a training program's door to a run: the only public header of libberingia.
 *
 *   brg_options_init(&o); o.hub_url = ...;
 *   brg_open(&o, -1, &site, why, sizeof why);          the run is known, data and hub agree
 *   ... build the model from brg_model_json(site) ...
 *   brg_join(site, &trainer, -1);                      weights are there, local work is restored
 *   while ((s = brg_take(site, batch, wait, samples, NULL, &count)) == BRG_GO || s == BRG_WAIT) {
 *       if (s == BRG_GO) {
 *           ... gradient over these samples, optimizer step at rate brg_lr(site) ...
 *           brg_step(site, count, loss, NULL);
 *       }
 *       brg_sync(site, NULL);                          hand in, take in what others did
 *   }
 *   brg_close(site, timeout);
 *
 * Names. A sample is an index into the data set; the hub leases positions of a common order, and
 * brg_take translates. A version is a state of the global weights. Local weights are the newest
 * version this site took in plus its own work that is not merged yet.
 *
 * Results. Functions that return int give BRG_GO (0); a negative number where nothing is wrong but
 * there is nothing to do (BRG_WAIT, BRG_DRAIN, BRG_COMPLETE); or a status from 1 to 255, which is also
 * a good exit status. brg_why gives the sentence that goes with the last one.
 *
 * Threads. The thread that calls brg_join is the site's training thread: brg_join, take, untake, step, due,
 * sync, reset, checkpoint and lr are refused from any other one (USAGE). brg_model_json, run, sample, status and
 * why may be called from every thread, brg_drain even from a signal handler; brg_close from any thread
 * while no other call is under way. The library runs threads of its own for everything that waits for
 * the network, with all signals blocked.
 *
 * The host process. No call ends it, not even where the library finds itself wrong (INTERNAL) or without
 * memory (MEMORY): the site is then of no more use, each call says so, and brg_close frees its
 * directory. The library installs no signal handlers, changes neither locale nor environment, writes
 * nothing to standard output, and logs to standard error. What the host has set for itself (a locale whose
 * numbers have commas, traps on floating point, SIGPIPE's default) neither disturbs it nor is changed. A
 * child made by fork() cannot use a site: each call says USAGE; the parent goes on undisturbed, and alone
 * keeps the state directory locked.
 *
 * Later versions. A program that was built with this header runs with every library of the same soname:
 * functions stay, structs only grow at their end, and struct_bytes says which of their fields a program
 * knows. A field that an older library does not have must be zero there (else USAGE).
 *
 * Times are nanoseconds; a timeout below 0 waits for ever, 0 does not wait.
 * Everything here is since version 0.1 where nothing else is said. Manual: libberingia(3). */
#ifndef BERINGIA_H
#define BERINGIA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRG_VERSION_MAJOR 0
#define BRG_VERSION_MINOR 2

#if defined(__GNUC__)
#define BRG_API __attribute__((visibility("default")))
#else
#define BRG_API
#endif

enum brg_result {
    BRG_GO = 0,
    BRG_WAIT = -1,        /* no samples now; call brg_sync and take again */
    BRG_DRAIN = -2,       /* stop soon: somebody asked for it; call brg_close */
    BRG_COMPLETE = -3,    /* the run is complete; call brg_close */
    BRG_SYNCHRONOUS = -4, /* of brg_synchronous alone */
    /* A choice of statuses to act on; every other positive number is one of `beringia help status`. */
    BRG_FAIL_INTERNAL = 1, /* a fault of the library; close the site */
    BRG_FAIL_USAGE = 2,    /* the call makes no sense here; brg_why */
    BRG_FAIL_CONFIG = 3,
    BRG_FAIL_BUSY = 7,
    BRG_FAIL_DATA = 9,
    BRG_FAIL_NET = 14,
    BRG_FAIL_REFUSED = 15,
    BRG_FAIL_FENCED = 16,
    BRG_FAIL_NONFINITE = 19,
    BRG_FAIL_LIMIT = 20,
    BRG_FAIL_MEMORY = 21, /* close the site */
    BRG_FAIL_MODEL = 24,
    BRG_FAIL_TIMEOUT = 26
};

struct brg_site; /* opaque */

struct brg_options {
    size_t struct_bytes; /* set by brg_options_init */
    const char *hub_url; /* http://host:port, https://..., bucket:s3://BUCKET/PREFIX (docs/s3.md) */
    const char *site_name; /* [a-z0-9][a-z0-9_-]*, at most 47 bytes; one process at a time */
    const char *state_dir; /* of this site alone, kept from job to job; created */
    const char *data_dir;  /* the packed data set; NULL: data_fingerprint says which one it is */
    int32_t data_trusted;  /* 0: the shards are hashed at brg_open; 1: only sizes are looked at */
    const uint8_t *data_fingerprint; /* 32 bytes, where data_dir is NULL */
    const char *token_file;          /* mode 0600, one line; NULL: see ca_file */
    uint64_t batch_samples; /* samples of one optimizer step over all ranks, for planning */
    int64_t timeout_ns;     /* the one setting behind all network time limits; 30 s, <= a day */
    int64_t checkpoint_every_ns; /* how much work a kill may cost; 60 s */
    uint64_t warmup_steps;       /* local ramp of a site that joins a run under way; 20 */
    uint64_t seed;               /* 0: from the system */
    const volatile int *cancel;  /* NULL, or: not 0 means as after brg_drain; also ends brg_open */
    /* Since 0.2. PEM file of the CA that signed the hub's certificate; NULL: $BERINGIA_CA, else the
     * system's. (And token_file NULL: $BERINGIA_TOKEN_FILE, else $BERINGIA_TOKEN, the token itself.) */
    const char *ca_file;
    /* Since 0.3. Where this site stands, from coarse to fine: up to three words of a-z 0-9 - _ with '/' between,
     * as in "europe/alder/rack-3", at most 63 bytes. For `beringia plan --topology`, nothing else hangs on it.
     * NULL: $BERINGIA_FABRIC, else none. */
    const char *fabric;
};

enum brg_optimizer { BRG_OPTIMIZER_ADAMW = 0, BRG_OPTIMIZER_MUON = 1 };

struct brg_run { /* the run's settings, the same for every site */
    size_t struct_bytes;
    uint64_t parameters, positions, seq_len, vocab_size, epochs;
    uint64_t steps_per_round;                     /* nominal */
    double beta1, beta2, eps, weight_decay, clip; /* AdamW */
    double lr;                                    /* peak */
    /* Since 0.3. */
    uint64_t optimizer; /* of the layers' matrices: BRG_OPTIMIZER_...; all else is AdamW's */
    double muon_momentum, muon_lr_ratio; /* the matrices' rate as a multiple of brg_lr's */
};

struct brg_tensor { /* one parameter, in the order of the weights vector */
    const char *name;
    uint32_t dims;
    uint64_t shape[4];
};
struct brg_array {    /* state of the optimizer that belongs to the weights */
    const char *name; /* printable, no two alike, at most 63 bytes */
    float *data;      /* NULL: it does not lie here as a whole; see move_array */
    uint64_t count;   /* above 0 */
};
struct brg_trainer {
    size_t struct_bytes;
    const struct brg_tensor *tensors; /* borrowed during brg_join */
    size_t tensors_count;
    float *weights; /* all tensors, one after another; NULL: the library allocates */
    const struct brg_array
        *arrays; /* the list is borrowed during brg_join, the data until brg_close */
    size_t arrays_count;
    uint64_t *counters; /* step counts and the like; until brg_close */
    size_t counters_count;
    /* Since 0.2. Not 0: the weights and arrays live elsewhere, on a GPU for instance, and the vectors
     * here are only a stage. Then brg_due says when they are to be filled; see there. */
    int32_t weights_elsewhere;
    /* Since 0.3. Not 0: this trainer asks brg_synchronous before each step, and hands in gradients with
     * brg_gradient where it says so. Without it a run whose rounds are synchronous refuses this site. */
    int32_t gradients;
    /* Since 0.2. For arrays without data, such as optimizer states that lie in parts with other ranks:
     * gives elements [at, at + count) of array number `array` to values[count] (into_trainer 0), or takes
     * them from there (1). Called by the training thread, within brg_join, brg_sync, brg_checkpoint
     * and brg_close, for one array after another from its beginning to its end; must not call brg_*. */
    void (*move_array)(void *user, size_t array, uint64_t at, uint64_t count, float *values,
                       int into_trainer);
    void *move_user;
};

enum brg_due_bits { /* of brg_due's out_due */
                    BRG_DUE_WEIGHTS = 1,
                    BRG_DUE_CHECKPOINT = 2
};

enum brg_changed {                          /* bits of brg_sync's out_changed */
                   BRG_CHANGED_WEIGHTS = 1, /* other ranks need the weights again */
                   BRG_CHANGED_HANDED_IN = 2,
                   BRG_CHANGED_RESET =
                       4 /* work was refused: the weights went back, its samples come again */
};

struct brg_figures {
    size_t struct_bytes;
    uint64_t version, head;  /* taken in; known to exist */
    uint64_t global_tokens;  /* behind `version` */
    uint64_t steps, samples; /* of this site, over all its processes */
    uint64_t leased;         /* samples at hand */
    uint64_t segment_steps, steps_target;
    uint64_t pending, merged, refused; /* contributions */
    double tokens_per_s, loss;
    int32_t online, joined, draining, complete;
    char state[16];
    /* Since 0.3. Samples of a step that suit this site's speed, beside the others'; 0: the run has no wish. */
    uint64_t samples_target;
};

/* Since 0.3. A moment of a site. Of two moments of one site and run that one is newer whose first
 * differing field, in this order, is larger. */
struct brg_moment {
    size_t struct_bytes;
    uint64_t incarnation; /* of the process: the hub's fence */
    uint64_t steps;       /* of this site, over all its processes */
    uint64_t version;     /* taken in */
    uint64_t handed_in;   /* contributions */
};
#define BRG_KEPT_BYTES_MAX 262656 /* what brg_keep gives at most */

/* Sets the defaults of a struct brg_options of this header. */
BRG_API void brg_options_init_bytes(struct brg_options *o, size_t bytes); /* since 0.2 */
BRG_API void brg_options_init(struct brg_options *o); /* of the first header's size */
#define brg_options_init(o) brg_options_init_bytes((o), sizeof(struct brg_options))
BRG_API const char *brg_version(void); /* "0.3.0", of the library that is loaded */
/* sizeof(struct NAME) in the library that is loaded, "brg_options" for instance; 0: it has none of
 * this name. For bindings that check themselves. Since 0.2. */
BRG_API size_t brg_struct_bytes(const char *name);
/* error, warn, info, debug or trace; for the whole process. USAGE: none of these. */
BRG_API int brg_log_level(const char *name);
/* "E_NET" and "the other side cannot be reached"; static storage, any thread. */
BRG_API const char *brg_status_name(int status);
BRG_API const char *brg_status_sentence(int status);

/* Takes the state directory, fetches the run from the hub, and checks that both mean the same data.
 * o is borrowed during the call, o->cancel until brg_close. Gives *out (end with brg_close), untouched on
 * failure, when why (may be NULL) holds a sentence. Waits for a hub that cannot be reached, for up to
 * timeout_ns; where the state directory holds a local checkpoint and the run it is of, a tenth of
 * o->timeout_ns at most, and then goes on with these. CONFIG, BUSY, DATA: a person has to act. NET: no
 * hub within the time. DRAIN: cancelled. */
BRG_API int brg_open(const struct brg_options *o, int64_t timeout_ns, struct brg_site **out,
                     char *why, size_t why_bytes);
/* The model's config.json; borrowed until brg_close. */
BRG_API const char *brg_model_json(const struct brg_site *s);
BRG_API int brg_run(const struct brg_site *s,
                    struct brg_run *out); /* out->struct_bytes is set before */

/* The run's id into out_id[16]: what tells its files from those of other runs. Does not block. Since 0.3. */
BRG_API int brg_run_id(const struct brg_site *s, uint8_t *out_id);

/* Before brg_join: bytes of brg_keep, of this site and run. GO: brg_join will go on from that moment, and
 * not read the local checkpoint; then weights, arrays and counters must be those of that moment, filled
 * in before it (weights not NULL). Any other status: it cannot be used (the local checkpoint is newer, files
 * that it leans on are gone or damaged, bytes of something else), brg_why says why, and brg_join does as without
 * this call. A later call replaces an earlier one, 0 bytes take it back. Reads the files of the state directory.
 * Since 0.3. */
BRG_API int brg_offer(struct brg_site *s, const void *kept, size_t bytes);

/* Restores weights, arrays and counters from the local checkpoint where there is one, joins the run,
 * and otherwise loads the newest global weights (arrays and counters then keep what the caller put
 * there). Keeps t's weights, arrays' data and counters until brg_close; they may be changed between
 * brg_take and brg_step only. Waits up to timeout_ns; after TIMEOUT it may be called again with the
 * same arguments. A restored site that no hub lets in within a tenth of options.timeout_ns gets GO: it
 * trains the samples that it holds, and the library goes on asking (brg_status: joined is 0 until then);
 * what the hub says later (FENCED, another run) comes from brg_take. MODEL: the tensors are not the
 * run's. MEMORY: no memory, or no thread to be had; may be called again when there is. FENCED, REFUSED: see
 * brg_why. */
BRG_API int brg_join(struct brg_site *s, const struct brg_trainer *t, int64_t timeout_ns);
/* The vector of brg_join; borrowed until brg_close. NULL before brg_join. */
BRG_API float *brg_weights(struct brg_site *s); /* the vector of brg_join */

/* Takes the next `want` leased samples into out_samples[want] and their epochs into out_epochs[want] (may
 * be NULL); *out_count can be less near the end. want: 1 to 65536; more than options.batch_samples is fine.
 * Waits up to timeout_ns for samples. WAIT, DRAIN and
 * COMPLETE as above, with no samples taken. FENCED: another process took over, stop. */
BRG_API int brg_take(struct brg_site *s, uint64_t want, int64_t timeout_ns, uint64_t *out_samples,
                     uint32_t *out_epochs, uint64_t *out_count);
/* Puts back what was taken and not stepped: it is taken again, in the same order. For trainers that take
 * ahead and will not train on these: after BRG_CHANGED_RESET, before brg_close. Does not block. Since 0.2. */
BRG_API int brg_untake(struct brg_site *s);
/* The tokens of a sample: seq_len inputs and, shifted by one, targets: seq_len + 1 in all. Needs
 * data_dir. Does not block. */
BRG_API int brg_sample(const struct brg_site *s, uint64_t sample, int32_t *out_tokens);
/* The rate for the next optimizer step, from global tokens. */
BRG_API double brg_lr(const struct brg_site *s);
/* The optimizer step over the oldest `count` taken samples is done (skipped == NULL), or was skipped for
 * this reason and the weights are as before (a word; the samples are listed as skipped for good). Does
 * not block. USAGE: more than was taken. LIMIT: too many skipped in one segment. */
BRG_API int brg_step(struct brg_site *s, uint64_t count, double loss, const char *skipped);
/* Synchronous rounds: every site hands in the gradient of one batch at the same weights, and the hub takes one AdamW
 * step on their mean. BRG_SYNCHRONOUS: for the samples that are taken now, leave the weights as they are, compute
 * the gradient, and say brg_gradient instead of brg_step. BRG_GO: train as ever. The answer changes within brg_sync
 * alone, or to BRG_GO where the weights were lost (then either call is right). Needs brg_trainer.gradients.
 * Any thread; does not block. Since 0.3. */
BRG_API int brg_synchronous(const struct brg_site *s);
/* gradient: all tensors one after another as in the weights, d(mean loss)/d(weights) over the oldest `count` taken
 * samples; read during the call. Not clipped, no weight decay: the hub does both. Samples that were skipped go through
 * brg_step with a reason. USAGE: as brg_step, or brg_synchronous does not say so. NONFINITE: a number is not
 * finite, nothing was counted. MEMORY: no room for a copy; the samples come again. Does not block. Since 0.3. */
BRG_API int brg_gradient(struct brg_site *s, uint64_t count, double loss, const float *gradient);
/* Between steps: hands in what is due, takes in a new version, saves the local checkpoint now and then.
 * Changes the weights in place. Never waits for the network; works on memory and local files. */
BRG_API int brg_sync(struct brg_site *s, int *out_changed);
/* For trainers whose weights live elsewhere (weights_elsewhere): says what the next brg_sync will need.
 * BRG_DUE_WEIGHTS: it will read or change the weights; copy them into the vector before it, and out of it
 * where it says BRG_CHANGED_WEIGHTS. BRG_DUE_CHECKPOINT: copy the arrays and counters too. 0: brg_sync
 * will touch nothing. A brg_sync without this call touches nothing either. Before brg_checkpoint and
 * brg_close all of them must be filled. Does not block. Since 0.2. */
BRG_API int brg_due(struct brg_site *s, int *out_due);
/* The weights are spoilt, by half an optimizer step or a number that is not finite: the work since the
 * last hand-in is thrown away, its samples will come again. The weights go back at the next brg_sync
 * (BRG_CHANGED_RESET), or in brg_close, which then hands in nothing of it. Arrays and counters are the
 * caller's. Does not block. Since 0.2. */
BRG_API int brg_reset(struct brg_site *s);
/* Saves the local checkpoint now; returns when it is on disk. */
BRG_API int brg_checkpoint(struct brg_site *s);
/* For trainers that keep weights, arrays and counters themselves, in memory for instance: the library's own
 * part of this moment into out[BRG_KEPT_BYTES_MAX], *out_bytes of it, for brg_offer in another process on
 * this state directory, and which moment it is (out_moment->struct_bytes is set before). To be called between
 * brg_sync and the next brg_step, while nothing is taken or what is taken will be taken again. A
 * moment that is older than the local checkpoint cannot be offered any more. WAIT: not at this moment (a contribution is on its
 * way to the disk, work was refused); try after the next brg_sync. Does not block. Since 0.3. */
BRG_API int brg_keep(struct brg_site *s, void *out, size_t cap, size_t *out_bytes,
                     struct brg_moment *out_moment);
BRG_API int brg_status(const struct brg_site *s, struct brg_figures *out);
BRG_API const char *brg_why(const struct brg_site *s); /* borrowed until the next call */

/* Asks for an early end: brg_take says DRAIN from now on. Async-signal-safe, any thread. */
BRG_API void brg_drain(struct brg_site *s);
/* Hands in the last segment and waits up to timeout_ns until the hub has it, leaves, saves, frees
 * s (NULL is fine). Unused samples wait for the next process on this state directory, or for the first site that
 * needs them. After a failure or a timeout the state directory holds what is
 * not handed in, and the next process goes on from there (then the result is TIMEOUT). */
BRG_API int brg_close(struct brg_site *s, int64_t timeout_ns);

/* ---- A packed data set without a site: for other ranks, data loaders' workers, evaluation. Since 0.2. ---- */

struct brg_data; /* opaque; mapped read-only; every thread and every child process may use it */

struct brg_data_facts {
    size_t struct_bytes;
    uint64_t samples, heldout_samples; /* of training, and split off before it */
    uint64_t seq_len, vocab_size;
    uint8_t fingerprint[32]; /* what brg_options.data_fingerprint wants */
};
/* Opens what `beringia pack` made. trusted: 0 hashes every shard first, 1 looks at sizes only. Gives *out (end
 * with brg_data_close). A status above 0 and a sentence in why (may be NULL) where it cannot be used.
 * Blocks for as long as reading takes. */
BRG_API int brg_data_open(const char *dir, int trusted, struct brg_data **out, char *why,
                          size_t why_bytes);
/* out->struct_bytes is set before. */
BRG_API int brg_data_facts(const struct brg_data *d, struct brg_data_facts *out);
/* seq_len + 1 tokens into out_tokens: the inputs and, shifted by one, the targets. USAGE: no such sample. */
BRG_API int brg_data_sample(const struct brg_data *d, uint64_t sample, int32_t *out_tokens);
BRG_API int brg_data_heldout_sample(const struct brg_data *d, uint64_t sample, int32_t *out_tokens);
BRG_API void brg_data_close(struct brg_data *d); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
