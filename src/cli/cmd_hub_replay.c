/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_hub_replay.c - beringia hub replay: the journal once more, from its first record. The machine must
 * come to the same state; and each version is merged again from the stored contributions, beginning with
 * version 0's checkpoint, and must have the recorded bytes: parameters, outer state and ledger.
 *
 * The ledger of each version comes from the audit's reader, not from the machine, so that equal files
 * also prove that both agree about every position. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/audit.h"
#include "cli/cli.h"
#include "hub/merge.h"
#include "hub/record.h"
#include "hub/server.h"
#include "store/store.h"
#include "wire/json.h"

static const char HELP[] =
    "beringia hub replay - read a run's journal again and prove every version\n"
    "\n"
    "  beringia hub replay RUN [--from V] [--json]\n"
    "\n"
    "  --from V  begin with the stored checkpoint of version V instead of version 0\n"
    "  --json    the result as one JSON object\n"
    "\n"
    "Needs the contributions (RUN/blobs) and room for three checkpoints in RUN. The hub must be "
    "stopped.\n"
    "Status 0: every version has the recorded bytes. 17 (E_AUDIT): one has not. 25 (E_CORRUPT), 4\n"
    "(E_MISSING): a stored file is damaged or gone.\n";

enum { ROLLBACKS_MAX = 256 };
struct replay {
    struct run_dir dir;
    struct blobs *blobs;
    struct hub *hub;
    struct audit audit;
    char tmp[OS_PATH_MAX];
    uint64_t from, last, versions; /* last: the newest version that lies in tmp, or from */
    bool has_last;
    uint64_t kept[ROLLBACKS_MAX]; /* versions that a rollback goes back to */
    size_t kept_count;
    uint64_t unequal, first_unequal;
    struct record_step step;     /* the record before, if it was a STEP; else version 0 */
    struct record_sync sync;     /* of the merge that is to come; else version 0 */
    enum codec down;             /* of the updates, as of the record that is being read */
    struct record_parent taking; /* what the next MERGE takes in; bytes 0: nothing */
    struct hash theta;
};

/* ---- Where a version's checkpoint is ---------------------------------------------------------------------- */
static void tmp_path(const struct replay *x, uint64_t version, char out[OS_PATH_MAX]) {
    os_path(out, x->tmp, "%" PRIu64, version);
}

static bool is_kept(const struct replay *x, uint64_t version) {
    for (size_t i = 0; i < x->kept_count; i++)
        if (x->kept[i] == version) return true;
    return false;
}

static enum brg_status parent_path(struct replay *x, uint64_t version, char out[OS_PATH_MAX],
                                   struct err *e) {
    tmp_path(x, version, out);
    if (os_exists(out)) return BRG_OK;
    const struct audit_version *v = audit_version_find(&x->audit, version);
    if (v == NULL) return err_set(e, BRG_E_JOURNAL, "version %" PRIu64 " is unknown", version);
    blobs_path(x->blobs, &v->checkpoint, out);
    if (!os_exists(out))
        return err_set(e, BRG_E_MISSING,
                       "%s: the checkpoint of version %" PRIu64 " is gone; give --from "
                       "with a version that is kept",
                       out, version);
    return blobs_verify(x->blobs, &v->checkpoint, e);
}

/* ---- One version ---------------------------------------------------------------------------------------- */
static enum brg_status take_parts(struct replay *x, const struct record_merge *m,
                                  struct merge_part *parts, double *weight, size_t *out_count,
                                  struct err *e) {
    size_t count = 0;
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct audit_delta *d = audit_delta_find(&x->audit, &m->parts[i].did);
        if (d == NULL) return err_set(e, BRG_E_JOURNAL, "a merged contribution was never staged");
        if (d->tokens == 0 || d->bytes == 0) continue;
        parts[count].part = (struct outer_part){.site = d->site,
                                                .tokens = d->tokens,
                                                .steps = d->steps,
                                                .late = m->parts[i].late ? 1 : 0};
        parts[count].blob = d->blob;
        blobs_path(x->blobs, &d->blob, parts[count].path);
        weight[count++] = m->parts[i].weight;
    }
    if (x->taking.bytes > 0) { /* of a region: what its parent's version changes */
        parts[count].part = (struct outer_part){.site = UINT32_MAX, .tokens = 1, .late = 1};
        parts[count].blob = x->taking.blob;
        blobs_path(x->blobs, &x->taking.blob, parts[count].path);
        weight[count++] = 1 / m->eta_r;
    }
    *out_count = count;
    return BRG_OK;
}

static struct outer_adamw step_of(const struct record_sync *r) {
    return (struct outer_adamw){.step = r->step,
                                .counts = r->counts,
                                .lr = r->lr,
                                .beta1 = r->beta1,
                                .beta2 = r->beta2,
                                .eps = r->eps,
                                .weight_decay = r->weight_decay,
                                .clip = r->clip,
                                .bias1 = r->bias1,
                                .bias2 = r->bias2};
}

static enum brg_status merge_again(struct replay *x, const struct record_merge *m,
                                   const char *parent, const char *out_path, struct hash *out_file,
                                   struct hash *out_theta, struct err *e) {
    struct checkpoint c;
    struct buf ledger;
    uint64_t bytes = 0;
    int bad = -1;
    size_t count = 0;
    AUTO_FREE struct merge_part *parts = mem_alloc(m->parts_count + 1U, sizeof *parts);
    AUTO_FREE double *weight = mem_alloc(m->parts_count + 1U, sizeof *weight);
    AUTO_FREE struct checkpoint_about *about = mem_alloc(1, sizeof *about);
    memset(&c, 0, sizeof c);
    TRY(take_parts(x, m, parts, weight, &count, e));
    TRY(checkpoint_open(parent, &c, e));
    buf_init(&ledger, (size_t)1 << 30);
    audit_ledger(&x->audit, &ledger);
    struct merge_job job = {.parent_path = parent,
                            .out_path = out_path,
                            .weight = weight,
                            .parts = parts,
                            .parts_count = count,
                            .threads = 2,
                            .down = x->down};
    job.params = (struct outer_params){.eta_r = m->eta_r,
                                       .mu_r = m->mu_r,
                                       .kappa_r = m->kappa_r,
                                       .phi = m->phi,
                                       .meff = m->meff,
                                       .sbar = m->sbar,
                                       .tokens_fresh = m->tokens_fresh,
                                       .tokens_late = m->tokens_late};
    if (x->step.version == m->version) {
        job.radial = x->step.radial;
        job.keeps_ema = x->step.keeps_ema;
        job.ema = x->step.ema;
    }
    if (x->sync.version == m->version) job.adamw = step_of(&x->sync);
    job.head = (struct checkpoint_head){.table = &c.table,
                                        .model_json = x->dir.model_json,
                                        .run = x->dir.facts.run,
                                        .version = m->version,
                                        .parent = m->parent,
                                        .tokens = m->tokens_after,
                                        .ledger = ledger.data,
                                        .ledger_bytes = ledger.bytes_count};
    if (checkpoint_about_get(&c, about)) job.head.about = about;
    about->term = x->audit.term; /* a plan ends with its hub, and with a rollback */
    enum brg_status s = merge_run(&job, out_file, &bytes, out_theta, &bad, e);
    buf_fini(&ledger);
    checkpoint_fini(&c);
    if (s != BRG_OK) return err_prefix(e, "version %" PRIu64, m->version);
    return BRG_OK;
}

static enum brg_status replay_merge(struct replay *x, const struct record_merge *m, struct err *e) {
    char parent[OS_PATH_MAX], path[OS_PATH_MAX], old[OS_PATH_MAX];
    struct hash file, theta;
    if (m->version <= x->from) return BRG_OK;
    TRY(parent_path(x, m->parent, parent, e));
    tmp_path(x, m->version, path);
    TRY(merge_again(x, m, parent, path, &file, &theta, e));
    if (!hash_equal(&file, &m->checkpoint) || !hash_equal(&theta, &m->theta)) {
        if (x->unequal++ == 0) x->first_unequal = m->version;
        fprintf(stderr, "version %" PRIu64 ": %s differ from the recorded ones\n", m->version,
                hash_equal(&theta, &m->theta) ? "outer state or ledger" : "parameters");
    }
    x->versions++;
    x->theta = theta;
    if (x->has_last && !is_kept(x, x->last)) {
        tmp_path(x, x->last, old);
        (void)unlink(old);
    }
    x->last = m->version;
    x->has_last = true;
    return BRG_OK;
}

/* ---- The journal ------------------------------------------------------------------------------------------ */
static enum brg_status visit(void *user, const struct record *r, struct err *e) {
    struct replay *x = user;
    struct hub_record rec;
    TRY(hub_apply(x->hub, r->seq, r->kind, r->body, r->bytes, e));
    TRY(audit_record(&x->audit, r->seq, r->kind, r->body, r->bytes, e));
    bool told = r->kind == RECORD_STEP || r->kind == RECORD_SYNC;
    if (r->kind != RECORD_MERGE) x->step.version = 0;
    if (r->kind != RECORD_MERGE && !told) x->sync.version = 0;
    if (r->kind == RECORD_ROLLBACK) x->taking.bytes = 0;
    if (r->kind != RECORD_MERGE && r->kind != RECORD_DOWN && r->kind != RECORD_PARENT && !told)
        return BRG_OK;
    TRY(hub_record_decode(r->kind, r->body, r->bytes, &rec, e));
    if (r->kind == RECORD_DOWN) {
        x->down = (enum codec)rec.u.down.codec;
        return BRG_OK;
    }
    if (r->kind == RECORD_STEP) {
        x->step = rec.u.step;
        return BRG_OK;
    }
    if (r->kind == RECORD_SYNC) {
        x->sync = rec.u.sync;
        return BRG_OK;
    }
    if (r->kind == RECORD_PARENT) {
        x->taking = rec.u.parent;
        return BRG_OK;
    }
    enum brg_status s = replay_merge(x, &rec.u.merge, e);
    x->step.version = x->sync.version = 0;
    x->taking.bytes = 0;
    hub_record_fini(&rec);
    return s;
}

static enum brg_status visit_rollbacks(void *user, const struct record *r, struct err *e) {
    struct replay *x = user;
    struct hub_record rec;
    if (r->kind != RECORD_ROLLBACK) return BRG_OK;
    TRY(hub_record_decode(r->kind, r->body, r->bytes, &rec, e));
    if (x->kept_count < ROLLBACKS_MAX) x->kept[x->kept_count++] = rec.u.rollback.version;
    hub_record_fini(&rec);
    return BRG_OK;
}

static void remove_tmp(struct replay *x) {
    char path[OS_PATH_MAX];
    for (size_t i = 0; i < x->audit.versions_count; i++) {
        tmp_path(x, x->audit.versions[i].version, path);
        (void)unlink(path);
    }
    (void)rmdir(x->tmp);
}

/* Also from snapshot and tail, as a restart does: the state must be the same one. */
static enum brg_status replay_all(struct replay *x, struct journal *j, struct hash *out_digest,
                                  struct err *e) {
    struct hub *restarted = NULL;
    uint64_t replayed;
    x->hub = hub_create(&x->dir.settings.hub, 1);
    TRY(journal_replay(j, 0, visit_rollbacks, x, e));
    os_path(x->tmp, x->dir.path, "replay-%ld", (long)getpid());
    TRY(os_mkdirs(x->tmp, e));
    enum brg_status s = journal_replay(j, 0, visit, x, e);
    remove_tmp(x);
    if (s != BRG_OK) return s;
    *out_digest = hub_digest(x->hub);
    TRY(hub_rebuild(j, &x->dir.settings.hub, &restarted, &replayed, e));
    struct hash again = hub_digest(restarted);
    hub_destroy(restarted);
    if (!hash_equal(&again, out_digest))
        return err_set(e, BRG_E_AUDIT,
                       "snapshot and tail give another state than all records; report this "
                       "with the run directory");
    return BRG_OK;
}

static void tell(const struct replay *x, const struct hash *digest, bool json) {
    char digest_hex[HASH_HEX_BYTES], theta_hex[HASH_HEX_BYTES];
    const struct audit *a = &x->audit;
    hash_hex(digest, digest_hex);
    hash_hex(&x->theta, theta_hex);
    if (json) {
        printf("{\"equal\":%s,\"records\":%" PRIu64 ",\"versions\":%" PRIu64 ",\"unequal\":%" PRIu64
               ",\"head\":%" PRIu64 ",\"digest\":\"%s\",\"theta\":\"%s\"}\n",
               x->unequal == 0 ? "true" : "false", a->seq, x->versions, x->unequal, a->head,
               digest_hex, theta_hex);
        return;
    }
    printf("records   %" PRIu64 "\nversions  %" PRIu64 " merged again, %" PRIu64
           " differ\nhead      %" PRIu64 "\ntheta     %s\ndigest    %s\n",
           a->seq, x->versions, x->unequal, a->head, theta_hex, digest_hex);
}

static int replay_run(const char *run, uint64_t from, bool json) {
    char name[JOURNAL_NAME_MAX];
    struct err e = {0};
    struct journal *j = NULL;
    struct hash digest = {{0}};
    struct replay *x = mem_alloc(1, sizeof *x);
    x->from = from;
    audit_init(&x->audit);
    enum brg_status s = run_dir_load(run, &x->dir, &e);
    if (s == BRG_OK) s = journal_where(run, name, &e);
    if (s == BRG_OK) s = journal_open(name, false, &j, &e);
    if (s == BRG_OK) s = blobs_open(run, &x->blobs, &e);
    if (s == BRG_OK) s = replay_all(x, j, &digest, &e);
    if (s == BRG_OK) tell(x, &digest, json);
    if (s == BRG_OK && x->unequal > 0)
        s = err_set(&e, BRG_E_AUDIT,
                    "%s: version %" PRIu64 " is the first that the records do not give", run,
                    x->first_unequal);
    journal_close(j);
    if (x->blobs != NULL) blobs_close(x->blobs);
    if (x->hub != NULL) hub_destroy(x->hub);
    audit_fini(&x->audit);
    mem_free(x);
    return s == BRG_OK ? 0 : cli_fail("hub replay", &e);
}

int cmd_hub_replay(int argc, char **argv) {
    enum { OPT_FROM = 1, OPT_JSON, OPT_HELP };
    static const struct option options[] = {{"from", 1, NULL, OPT_FROM},
                                            {"json", 0, NULL, OPT_JSON},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    uint64_t from = 0;
    bool json = false;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_FROM:
            if (!parse_u64(optarg, &from))
                return cli_usage("hub replay", "--from wants a version, not", optarg);
            break;
        case OPT_JSON: json = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("hub replay", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("hub replay", "want one RUN directory", "");
    return replay_run(argv[optind], from, json);
}
