/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/hub/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config_os.h"
#include "base/os.h"
#include "lease/lease.h"
#include "store/store.h"

enum { PARAMETERS = 1000, SEQ_LEN = 16, LINE_MAX_BYTES = 8192 };

static struct {
    char line[LINE_MAX_BYTES], broken[LINE_MAX_BYTES];
} figures; /* of the program; the parts run one after another */

static void must(enum brg_status s, const struct err *e) {
    if (s == BRG_OK) return;
    fprintf(stderr, "bench hub: %s\n", e->text);
    exit((int)s);
}

void kit_figure(const char *key, double value, int digits) {
    size_t n = strlen(figures.line);
    (void)snprintf(figures.line + n, sizeof figures.line - n, "%s%s=%.*f", n > 0 ? " " : "", key,
                   digits, value);
}

void kit_promise(const char *key, double value, int digits, bool at_most, double bound) {
    kit_figure(key, value, digits);
    if (at_most ? value <= bound : value >= bound) return;
    size_t n = strlen(figures.broken);
    (void)snprintf(figures.broken + n, sizeof figures.broken - n, "%s%s%s%g", n > 0 ? " " : "", key,
                   at_most ? "<=" : ">=", bound);
}

int kit_end(void) {
    printf("%s\n", figures.line);
    if (figures.broken[0] == '\0') return 0;
    fprintf(stderr, "bench hub: broken promises: %s\n", figures.broken);
    return 1;
}

/* ---- A run without data ------------------------------------------------------------------------------- */
static void about_fill(const struct run_facts *f, const char *const *sets,
                       struct checkpoint_about *out) {
    struct err e = {0};
    AUTO_BUF struct buf b;
    struct config *c = config_create();
    memset(out, 0, sizeof *out);
    buf_init(&b, CHECKPOINT_SETTINGS_MAX - 1);
    run_facts_encode(f, &b);
    (void)snprintf(out->facts, sizeof out->facts, "%s", buf_cstr(&b));
    run_settings_declare(c);
    for (size_t i = 0; sets[i] != NULL; i++) must(config_set(c, sets[i], &e), &e);
    must(config_finish(c, &e), &e);
    buf_reset(&b);
    config_print(c, &b);
    (void)snprintf(out->settings, sizeof out->settings, "%s", buf_cstr(&b));
    config_destroy(c);
}

static void checkpoint_make(const char *path, uint64_t positions, const char *const *sets) {
    struct err e = {0};
    struct tensors table = {0};
    struct checkpoint_writer *w;
    struct hash file, theta;
    uint64_t bytes, shape = PARAMETERS;
    float zero[PARAMETERS] = {0};
    AUTO_FREE struct checkpoint_about *about = mem_alloc(1, sizeof *about);
    AUTO_BUF struct buf ledger;
    tensors_add(&table, "w", TENSOR_F32, 1, &shape);
    struct run_facts f = {.parameters = PARAMETERS,
                          .positions = positions,
                          .order_seed = 1,
                          .seq_len = SEQ_LEN,
                          .vocab_size = 257,
                          .tensors = tensors_hash(&table)};
    os_random(&f.run, sizeof f.run);
    about_fill(&f, sets, about);
    buf_init(&ledger, 4096);
    struct ledger *l = ledger_create(positions, 1);
    ledger_checkpoint_encode(l, 0, false, &ledger);
    ledger_destroy(l);
    struct checkpoint_head head = {.table = &table,
                                   .model_json = "{}",
                                   .run = f.run,
                                   .ledger = ledger.data,
                                   .ledger_bytes = ledger.bytes_count,
                                   .about = about};
    must(checkpoint_writer_open(path, &head, &w, &e), &e);
    must(checkpoint_write_theta(w, zero, PARAMETERS, &e), &e);
    must(checkpoint_write_m(w, zero, PARAMETERS, &e), &e);
    must(checkpoint_writer_finish(w, &file, &bytes, &theta, &e), &e);
    tensors_fini(&table);
}

/* BENCH_STORE: a server instead of a file, in a schema that is this process's own. */
static void choose_store(const char *run, const char *name) {
    const char *url = getenv("BENCH_STORE");
    char text[OS_PATH_MAX];
    struct err e = {0};
    if (url == NULL) return;
    (void)snprintf(text, sizeof text, "%s%cschema=bench_%s_%ld", url,
                   strchr(url, '?') != NULL ? '&' : '?', name, (long)getpid());
    must(journal_where_set(run, text, &e), &e);
}

void kit_run_make(const char *dir, const char *name, uint64_t positions, const char *const *sets,
                  struct run_dir *out) {
    char run[OS_PATH_MAX], checkpoint[OS_PATH_MAX];
    struct err e = {0};
    struct rebuild_told told;
    os_path(run, dir, "%s", name);
    must(os_mkdirs(run, &e), &e);
    choose_store(run, name);
    checkpoint_make(os_path(checkpoint, dir, "%s.safetensors", name), positions, sets);
    must(run_rebuild(run, checkpoint, &told, &e), &e);
    must(run_dir_load(run, out, &e), &e);
}

/* ---- Messages ----------------------------------------------------------------------------------------- */
struct wire_request kit_join_request(const struct run_dir *d, const char *name) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_JOIN;
    r.run = d->facts.run;
    (void)snprintf(r.site, sizeof r.site, "%s", name);
    os_random(&r.u.join.boot, sizeof r.u.join.boot);
    r.u.join.protocol = WIRE_PROTOCOL;
    r.u.join.fingerprint = d->facts.fingerprint;
    r.u.join.tensors = d->facts.tensors;
    r.u.join.tokens_per_sample = d->facts.seq_len;
    return r;
}

struct wire_request kit_commit_request(const struct run_dir *d, const char *name,
                                       const struct wire_lease *l, uint64_t base) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    struct wire_commit *c = &r.u.commit;
    r.kind = WIRE_COMMIT;
    r.run = d->facts.run;
    (void)snprintf(r.site, sizeof r.site, "%s", name);
    os_random(&c->did, sizeof c->did);
    os_random(&c->blob, sizeof c->blob);
    c->base = base;
    c->tokens = l->count * d->facts.seq_len;
    c->steps = 1;
    c->lr_sum = 1e-4;
    c->elements = d->facts.parameters;
    c->codec = (uint32_t)d->settings.hub.codec;
    c->bytes = DELTA_HEADER_BYTES + codec_bytes(d->settings.hub.codec, c->elements);
    c->parts_count = 1;
    c->parts[0] = (struct wire_part){.tok = l->tok, .nonce = l->nonce, .done = l->count};
    return r;
}
