/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - what a run is: the keys of run.yaml, and the facts that `beringia init` found out about
 * data and model (run.json). Pure.
 *
 * RUN/
 *   run.yaml        settings, effective and commented; read at each start of the hub
 *   run.json        facts: run id, fingerprint, sizes; never changes
 *   model.json      config.json of the model        manifest.json, tokenizer.json   copies of the data's
 *   journal.db      the hub's memory                blobs/, incoming/               checkpoints, deltas
 *   versions/N.safetensors   published checkpoints  hub.json                        url and pid while it runs
 */
#ifndef HUB_SETTINGS_H
#define HUB_SETTINGS_H

#include "base/config.h"
#include "hub/hub.h"

struct run_facts {
    struct id128 run;
    struct hash fingerprint, tensors;
    uint64_t parameters, positions, order_seed;
    uint64_t matrix_side; /* the largest of a layer's matrices; 0: not known, or no such model */
    uint32_t seq_len, vocab_size;
};
void run_facts_encode(const struct run_facts *f, struct buf *out);
enum brg_status run_facts_decode(const void *json, size_t n, struct run_facts *out, struct err *e)
    MUST_USE;

struct run_settings {
    struct hub_settings hub;
    double eps, clip; /* of the inner AdamW, for wire_run */
    bool muon;        /* the layers' matrices are Muon's */
    double muon_momentum, muon_lr_ratio;
    uint64_t keep_checkpoints, keep_every;
    char listen[256], tls_cert[1024], tls_key[1024]; /* "": RUN/tls, where it is there */
    char blobs_store[256], blobs_endpoint[256], blobs_region[64]; /* store "": none */
    char blobs_credentials[1024], blobs_ca[1024];
    uint64_t blobs_part_bytes;
    int64_t blobs_expires_ns;
    double blobs_price_writes, blobs_price_reads;
    bool blobs_mailbox;
    int64_t blobs_mailbox_idle_ns;
    double rate;         /* requests a second of one token */
    int64_t patience_ns; /* what a connection that has shown no token is given */
};
/* Declares every key of run.yaml. */
void run_settings_declare(struct config *c);
const struct config_key *run_settings_keys(size_t *out_count); /* the same, for the manual */
/* Takes the values out of a finished config; E_CONFIG where two keys do not fit together. */
enum brg_status run_settings_take(const struct config *c, const struct run_facts *f,
                                  struct run_settings *out, struct err *e) MUST_USE;
/* GET /v1/run, apart from head and theta. */
void run_describe(const struct run_settings *s, const struct run_facts *f, const char *model_json,
                  struct wire_run *out);

#endif
