/* SPDX-License-Identifier: Apache-2.0 */
/* rebuild_os.c - a run directory from one checkpoint file: `hub --rebuild-from`.
 *
 *   read and hash the checkpoint -> files that are missing -> its blob -> a new journal (whole, in
 *   one transaction) --rename--> its place
 * The journal gets its name last: after a crash before that there is still no journal, and the same
 * command begins again. Nothing that is there is overwritten. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config_os.h"
#include "base/os.h"
#include "hub/server.h"
#include "store/store.h"

enum { PIECE = 1 << 20, LEDGER_BYTES_MAX = 512 << 20 };

struct rebuild {
    const char *run, *source;
    struct checkpoint c;
    struct checkpoint_about about;
    bool told; /* about is filled */
    struct run_dir dir;
    struct hash file, theta;
    uint64_t bytes;
    struct buf ledger;
    struct rebuild_told out;
};

/* ---- The checkpoint --------------------------------------------------------------------------------- */
/* Copies it beside the blobs, and hashes the whole file and theta in the same pass. */
static enum brg_status copy_hashing(struct rebuild *x, const char *to, struct err *e) {
    struct hasher whole, theta;
    AUTO_FREE uint8_t *piece = mem_alloc(PIECE, 1);
    AUTO_CLOSE int in = open(x->source, O_RDONLY | O_CLOEXEC);
    if (in < 0) return os_errno(e, errno, "open", x->source);
    AUTO_CLOSE int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out < 0) return os_errno(e, errno, "create", to);
    uint64_t from = x->c.theta_offset, end = from + 4 * x->c.elements;
    hasher_init(&whole);
    hasher_init(&theta);
    for (uint64_t at = 0; at < x->bytes;) {
        uint64_t stop = at < from  ? from
                        : at < end ? end
                                   : x->bytes; /* never across theta's edges */
        size_t n = stop - at < PIECE ? (size_t)(stop - at) : PIECE;
        TRY(os_pread_all(in, piece, n, at, x->source, e));
        TRY(os_write_all(out, piece, n, to, e));
        hasher_update(&whole, piece, n);
        if (at >= from && at < end) hasher_update(&theta, piece, n);
        at += n;
    }
    x->file = hasher_final(&whole);
    x->theta = hasher_final(&theta);
    if (hash_equal(&x->theta, &x->c.theta_hash)) return BRG_OK;
    return err_set(
        e, BRG_E_CORRUPT,
        "%s: the parameters do not have the hash that the file promises; use another copy",
        x->source);
}

static enum brg_status read_ledger(struct rebuild *x, struct err *e) {
    AUTO_CLOSE int fd = open(x->source, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return os_errno(e, errno, "open", x->source);
    if (x->c.ledger_bytes == 0 || x->c.ledger_bytes > LEDGER_BYTES_MAX)
        return err_set(e, BRG_E_CHECKPOINT, "%s: has no ledger, or one beyond all bounds",
                       x->source);
    AUTO_FREE uint8_t *bytes = mem_alloc(x->c.ledger_bytes, 1);
    TRY(os_pread_all(fd, bytes, x->c.ledger_bytes, x->c.ledger_offset, x->source, e));
    buf_put(&x->ledger, bytes, x->c.ledger_bytes);
    return BRG_OK;
}

static enum brg_status read_checkpoint(struct rebuild *x, struct err *e) {
    TRY(checkpoint_open(x->source, &x->c, e));
    x->bytes = (uint64_t)os_file_bytes(x->source);
    x->told = checkpoint_about_get(&x->c, &x->about);
    x->out.version = x->c.version;
    x->out.tokens = x->c.tokens;
    return read_ledger(x, e);
}

/* ---- Files of the run ------------------------------------------------------------------------------- */
static enum brg_status write_missing(const struct rebuild *x, const char *name, const void *data,
                                     size_t n, struct err *e) {
    char path[OS_PATH_MAX];
    if (os_exists(os_path(path, x->run, "%s", name))) return BRG_OK;
    return os_write_file_atomic(path, data, n, e);
}

static enum brg_status write_defaults(const struct rebuild *x, struct err *e) {
    AUTO_BUF struct buf text;
    struct config *c = config_create();
    buf_init(&text, CHECKPOINT_SETTINGS_MAX);
    run_settings_declare(c);
    enum brg_status s = config_finish(c, e);
    if (s == BRG_OK) config_print(c, &text);
    config_destroy(c);
    if (s != BRG_OK) return s;
    return write_missing(x, "run.yaml", text.data, text.bytes_count, e);
}

static enum brg_status make_files(struct rebuild *x, struct err *e) {
    char path[OS_PATH_MAX], model[sizeof x->dir.model_json];
    TRY(os_mkdirs(x->run, e));
    if (!x->told && !os_exists(os_path(path, x->run, "run.json")))
        return err_set(e, BRG_E_MISSING,
                       "%s: tells nothing of its run (an older program made it); put the run's "
                       "run.json and run.yaml into %s first",
                       x->source, x->run);
    if (!tensors_meta_get(&x->c.table, "model", model, sizeof model))
        return err_set(e, BRG_E_CHECKPOINT, "%s: does not tell its model", x->source);
    TRY(write_missing(x, "model.json", model, strlen(model), e));
    if (x->told) TRY(write_missing(x, "run.json", x->about.facts, strlen(x->about.facts), e));
    x->out.settings_kept = os_exists(os_path(path, x->run, "run.yaml"));
    x->out.settings_copied = !x->out.settings_kept && x->told;
    if (x->told)
        return write_missing(x, "run.yaml", x->about.settings, strlen(x->about.settings), e);
    return write_defaults(x, e);
}

static enum brg_status compare_facts(const struct rebuild *x, struct err *e) {
    struct hash tensors = tensors_hash(&x->c.table);
    const struct run_facts *f = &x->dir.facts;
    if (!id_equal(&x->c.run, &f->run))
        return err_set(e, BRG_E_CHECKPOINT,
                       "%s: belongs to another run than %s/run.json; give a checkpoint of this run",
                       x->source, x->run);
    if (!hash_equal(&tensors, &f->tensors) || x->c.elements != f->parameters)
        return err_set(e, BRG_E_CHECKPOINT, "%s: is of another model than %s/run.json", x->source,
                       x->run);
    return BRG_OK;
}

/* ---- The journal ------------------------------------------------------------------------------------ */
static enum brg_status make_records(struct rebuild *x, struct hub_out *out, struct err *e) {
    struct hub_cmd cmd;
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_REBUILD;
    cmd.wall = os_wall();
    cmd.u.rebuild.checkpoint = x->file;
    cmd.u.rebuild.theta = x->theta;
    cmd.u.rebuild.bytes = x->bytes;
    cmd.u.rebuild.version = x->c.version;
    cmd.u.rebuild.parent = x->c.parent;
    cmd.u.rebuild.tokens = x->c.tokens;
    cmd.u.rebuild.term = x->about.term;
    cmd.u.rebuild.ledger = x->ledger.data;
    cmd.u.rebuild.ledger_bytes = x->ledger.bytes_count;
    struct hub *h = hub_create(&x->dir.settings.hub, 1);
    hub_step(h, os_now(), &cmd, out);
    hub_destroy(h);
    if (out->answer.code == WIRE_OK) return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT,
                   "%s: %s; give another copy, or check run.epochs in %s/run.yaml", x->source,
                   out->answer.text, x->run);
}

static enum brg_status append_records(struct journal *j, const struct hub_out *out, struct err *e) {
    AUTO_FREE struct record *all = mem_alloc(out->records_count, sizeof *all);
    struct reader r = reader_of(out->records.data, out->records.bytes_count);
    for (uint32_t i = 0; i < out->records_count; i++) {
        all[i] = (struct record){.seq = i + 1U, .kind = get_u16(&r)};
        all[i].bytes = get_u32(&r);
        all[i].body = get_bytes(&r, all[i].bytes);
        CHECK(r.ok);
    }
    return journal_append(j, all, out->records_count, e);
}

static enum brg_status make_journal(struct rebuild *x, struct err *e) {
    char name[JOURNAL_NAME_MAX];
    struct journal *j = NULL;
    struct hub_out out;
    TRY(journal_where(x->run, name, e));
    hub_out_init(&out);
    enum brg_status s = make_records(x, &out, e);
    if (s == BRG_OK) s = journal_make(name, &j, e);
    if (s == BRG_OK) s = append_records(j, &out, e);
    hub_out_fini(&out);
    if (s == BRG_OK) return journal_publish(j, name, e);
    journal_close(j);
    return s;
}

static enum brg_status make_blob(struct rebuild *x, struct err *e) {
    char path[OS_PATH_MAX];
    struct blobs *blobs = NULL;
    TRY(blobs_open(x->run, &blobs, e));
    enum brg_status s = copy_hashing(x, os_path(path, x->run, "incoming/rebuild.tmp"), e);
    if (s == BRG_OK) s = blobs_adopt(blobs, path, &x->file, e);
    if (s != BRG_OK) (void)unlink(path);
    blobs_close(blobs);
    return s;
}

/* In a file, or on the server that journal.url names. */
static enum brg_status has_journal(const struct rebuild *x, bool *there, struct err *e) {
    char name[JOURNAL_NAME_MAX];
    struct journal *j = NULL;
    TRY(journal_where(x->run, name, e));
    *there = !journal_name_is_url(name) && os_exists(name);
    if (!journal_name_is_url(name)) return BRG_OK;
    enum brg_status s = journal_open_reader(name, &j, e);
    *there = s == BRG_OK;
    journal_close(j);
    return s == BRG_E_MISSING ? BRG_OK : s;
}

static enum brg_status rebuild(struct rebuild *x, struct err *e) {
    char path[OS_PATH_MAX];
    bool there;
    TRY(has_journal(x, &there, e));
    if (there)
        return err_set(
            e, BRG_E_EXISTS,
            "%s: there is a journal; to go back to a version use `beringia rollback`, to "
            "give the journal up move it away first",
            os_path(path, x->run, "journal.db"));
    TRY(read_checkpoint(x, e));
    TRY(make_files(x, e));
    TRY(run_dir_load(x->run, &x->dir, e));
    TRY(compare_facts(x, e));
    TRY(make_blob(x, e));
    return make_journal(x, e);
}

enum brg_status run_rebuild(const char *run_dir, const char *checkpoint, struct rebuild_told *out,
                            struct err *e) {
    struct rebuild *x = mem_alloc(1, sizeof *x);
    x->run = run_dir;
    x->source = checkpoint;
    buf_init(&x->ledger, LEDGER_BYTES_MAX);
    enum brg_status s = rebuild(x, e);
    if (s == BRG_OK) *out = x->out;
    checkpoint_fini(&x->c);
    buf_fini(&x->ledger);
    mem_free(x);
    return s;
}
