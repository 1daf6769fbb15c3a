/* SPDX-License-Identifier: Apache-2.0 */
/* rundir_os.c - a run directory's files become settings, and its journal becomes the machine. */
#include <stdio.h>
#include <string.h>

#include "base/config_os.h"
#include "base/os.h"
#include "hub/server.h"
#include "store/store.h"

enum { FACTS_BYTES_MAX = 64 * 1024, SNAPSHOT_MAX = 512 << 20 };

static enum brg_status load_facts(struct run_dir *d, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text;
    buf_init(&text, FACTS_BYTES_MAX);
    os_path(path, d->path, "run.json");
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING,
                       "%s: is no run directory (there is no run.json); make one with "
                       "`beringia init`",
                       d->path);
    TRY(os_read_file(path, FACTS_BYTES_MAX, &text, e));
    if (run_facts_decode(text.data, text.bytes_count, &d->facts, e) == BRG_OK) return BRG_OK;
    return err_prefix(e, "%s", path);
}

static enum brg_status load_model(struct run_dir *d, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text;
    buf_init(&text, sizeof d->model_json);
    os_path(path, d->path, "model.json");
    TRY(os_read_file(path, sizeof d->model_json - 1, &text, e));
    (void)snprintf(d->model_json, sizeof d->model_json, "%s", buf_cstr(&text));
    return BRG_OK;
}

enum brg_status run_dir_load(const char *path, struct run_dir *out, struct err *e) {
    char yaml[OS_PATH_MAX];
    struct run_dir *d = mem_alloc(1, sizeof *d);
    struct config *c = config_create();
    enum brg_status s = BRG_OK;
    if ((size_t)snprintf(d->path, sizeof d->path, "%s", path) >= sizeof d->path - 256)
        s = err_set(e, BRG_E_CONFIG, "run directory: the path is too long");
    if (s == BRG_OK) s = load_facts(d, e);
    if (s == BRG_OK) s = load_model(d, e);
    run_settings_declare(c);
    if (s == BRG_OK) s = config_read_file(c, os_path(yaml, d->path, "run.yaml"), e);
    if (s == BRG_OK) s = config_finish(c, e);
    if (s == BRG_OK) s = run_settings_take(c, &d->facts, &d->settings, e);
    config_destroy(c);
    if (s == BRG_OK) *out = *d;
    mem_free(d);
    return s;
}

/* ---- The key of the hub's seals -----------------------------------------------------------------------
 * Made once, and then as old as the run: what an older process sealed has to hold for a restored one. */
static enum brg_status seal_key_read(const char *path, struct hash *out, struct err *e) {
    AUTO_BUF struct buf text;
    buf_init(&text, 2 * HASH_HEX_BYTES);
    enum brg_status s = os_read_file(path, HASH_HEX_BYTES, &text, e);
    bool whole = s == BRG_OK && text.bytes_count == HASH_HEX_BYTES &&
                 text.data[HASH_HEX_BYTES - 1] == '\n';
    if (whole) text.data[HASH_HEX_BYTES - 1] = '\0';
    bool fine = whole && hex_decode((const char *)text.data, out->v, HASH_BYTES);
    if (text.data != NULL) explicit_bzero(text.data, text.bytes_count);
    if (fine) return BRG_OK;
    if (s != BRG_OK && s != BRG_E_LIMIT) return s;
    return err_set(e, BRG_E_CONFIG,
                   "%s: want 64 hexadecimal digits and a newline: put its copy back, or remove it "
                   "(then what sites have seen of this run so far cannot be proved any more)",
                   path);
}

enum brg_status run_seal_key(struct run_dir *d, bool *out_fresh, struct err *e) {
    char path[OS_PATH_MAX];
    *out_fresh = !os_exists(os_path(path, d->path, "seal.key"));
    if (!*out_fresh) return seal_key_read(path, &d->settings.hub.seal_key, e);
    os_random(&d->settings.hub.seal_key, sizeof d->settings.hub.seal_key);
    return BRG_OK;
}

/* A full disk: the hub serves readers all the same. */
void run_seal_key_keep(const struct run_dir *d) {
    char path[OS_PATH_MAX], hex[HASH_HEX_BYTES];
    struct err why = {0};
    hash_hex(&d->settings.hub.seal_key, hex);
    hex[HASH_HEX_BYTES - 1] = '\n';
    os_path(path, d->path, "seal.key");
    if (os_write_secret_atomic(path, hex, HASH_HEX_BYTES, &why) != BRG_OK)
        log_line(LOG_WARN, "hub", "no_seal_key", "cause=\"%s\"", why.text);
    explicit_bzero(hex, sizeof hex);
}

/* ---- The machine from its journal ------------------------------------------------------------------- */
static enum brg_status apply(void *user, const struct record *r, struct err *e) {
    return hub_apply(user, r->seq, r->kind, r->body, r->bytes, e);
}

static uint64_t fresh_seed(void) {
    uint64_t seed;
    os_random(&seed, sizeof seed);
    return seed;
}

enum brg_status hub_rebuild(struct journal *j, const struct hub_settings *s, struct hub **out,
                            uint64_t *out_replayed, struct err *e) {
    AUTO_BUF struct buf snapshot;
    struct err skipped = {0};
    uint64_t seq = 0;
    buf_init(&snapshot, SNAPSHOT_MAX);
    struct hub *h = hub_create(s, fresh_seed());
    enum brg_status st = journal_snapshot_get(j, &seq, &snapshot, &skipped);
    if (st == BRG_OK && seq > 0)
        st = hub_restore(h, seq, snapshot.data, snapshot.bytes_count, &skipped);
    if (st != BRG_OK) { /* the records are all there: a snapshot is only a short cut */
        log_line(LOG_WARN, "hub", "snapshot_skipped", "cause=\"%s\"", skipped.text);
        hub_destroy(h);
        h = hub_create(s, fresh_seed());
        seq = 0;
    }
    struct hub_view v;
    st = journal_replay(j, seq, apply, h, e);
    hub_view(h, 0, &v);
    if (st == BRG_OK && v.importing)
        st = err_set(e, BRG_E_JOURNAL, "the journal ends within the ledger of its first record");
    if (st == BRG_OK && journal_last_seq(j) == 0)
        st = err_set(e, BRG_E_JOURNAL, "the journal is empty; the run was not made completely");
    if (st != BRG_OK) {
        hub_destroy(h);
        return st;
    }
    *out_replayed = journal_last_seq(j) - seq;
    *out = h;
    return BRG_OK;
}
