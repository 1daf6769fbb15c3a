/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_journal.c - beringia journal: the records as lines of JSON, for jq and for people. Reads as the
 * audit does, beside a running hub. */
#include <getopt.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/audit.h"
#include "cli/cli.h"
#include "hub/record.h"
#include "store/store.h"
#include "wire/json.h"

static const char HELP[] = "beringia journal - the journal's records as lines of JSON\n"
                           "\n"
                           "  beringia journal RUN [--from SEQ]\n"
                           "\n"
                           "docs/journal.md says what each kind means.\n";

struct line {
    struct buf *b;
    bool first;
};
static void u64(struct line *l, const char *key, uint64_t v) {
    json_member_u64(l->b, &l->first, key, v);
}
static void f64(struct line *l, const char *key, double v) {
    json_member_f64(l->b, &l->first, key, v);
}
static void text(struct line *l, const char *key, const char *v) {
    json_member_text(l->b, &l->first, key, v);
}
static void id(struct line *l, const char *key, const struct id128 *v) {
    json_member_id(l->b, &l->first, key, v);
}
static void hash(struct line *l, const char *key, const struct hash *v) {
    json_member_hash(l->b, &l->first, key, v);
}
static void tok(struct line *l, const char *key, uint64_t v) {
    json_key(l->b, &l->first, key);
    buf_printf(l->b, "\"%016" PRIx64 "\"", v);
}
static void toks(struct line *l, const char *key, const uint64_t *v, uint32_t count) {
    json_key(l->b, &l->first, key);
    for (uint32_t i = 0; i < count; i++)
        buf_printf(l->b, "%s\"%016" PRIx64 "\"", i > 0 ? "," : "[", v[i]);
    buf_printf(l->b, count > 0 ? "]" : "[]");
}
static void ranges(struct line *l, const struct range *v, uint32_t count) {
    json_key(l->b, &l->first, "ranges");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < count; i++)
        buf_printf(l->b, "%s[%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "", v[i].start, v[i].count);
    buf_u8(l->b, ']');
}

static void put_open(struct line *l, const struct record_open *r) {
    u64(l, "layout", r->layout);
    id(l, "run", &r->run);
    hash(l, "fingerprint", &r->fingerprint);
    hash(l, "tensors", &r->tensors);
    u64(l, "parameters", r->parameters);
    u64(l, "positions", r->positions);
    u64(l, "seq_len", r->seq_len);
    u64(l, "epochs", r->epochs);
    tok(l, "order_seed", r->order_seed);
    hash(l, "checkpoint", &r->checkpoint);
    hash(l, "theta", &r->theta);
    u64(l, "checkpoint_bytes", r->checkpoint_bytes);
}

static void put_rebuild(struct line *l, const struct record_rebuild *r) {
    put_open(l, &r->open);
    u64(l, "version", r->version);
    u64(l, "parent", r->parent);
    u64(l, "tokens", r->tokens);
    u64(l, "term", r->term);
    u64(l, "inc_floor", r->inc_floor);
    u64(l, "ledger_bytes", r->ledger_bytes);
    hash(l, "ledger", &r->ledger);
}

static void put_join(struct line *l, const struct record_join *r) {
    u64(l, "site", r->site);
    u64(l, "inc", r->inc);
    text(l, "name", r->name);
    id(l, "boot", &r->boot);
    u64(l, "crashes_max", r->crashes_max);
    toks(l, "kept", r->kept, r->kept_count);
    toks(l, "fenced", r->fenced, r->fenced_count);
}

static void put_stage(struct line *l, const struct record_stage *r) {
    id(l, "did", &r->did);
    u64(l, "site", r->site);
    u64(l, "inc", r->inc);
    u64(l, "base", r->base);
    u64(l, "tokens", r->tokens);
    u64(l, "steps", r->steps);
    f64(l, "lr_sum", r->lr_sum);
    f64(l, "loss", r->loss);
    f64(l, "norm", r->norm);
    f64(l, "max_abs", r->max_abs);
    f64(l, "cos_m", r->cos_m);
    u64(l, "codec", r->codec);
    u64(l, "bytes", r->bytes);
    hash(l, "blob", &r->blob);
    json_key(l->b, &l->first, "parts");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < r->parts_count; i++)
        buf_printf(l->b, "%s{\"tok\":\"%016" PRIx64 "\",\"done\":%" PRIu64 "}", i > 0 ? "," : "",
                   r->parts[i].tok, r->parts[i].done);
    buf_u8(l->b, ']');
    json_key(l->b, &l->first, "skips");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < r->skips_count; i++) {
        buf_printf(l->b, "%s{\"epoch\":%u,\"position\":%" PRIu64 ",\"reason\":", i > 0 ? "," : "",
                   r->skips[i].epoch, r->skips[i].position);
        json_put_text(l->b, r->skips[i].reason);
        buf_u8(l->b, '}');
    }
    buf_u8(l->b, ']');
    if (r->has_rest) tok(l, "rest", r->rest_tok);
}

static void put_reject(struct line *l, const struct record_reject *r) {
    id(l, "did", &r->did);
    u64(l, "site", r->site);
    u64(l, "inc", r->inc);
    u64(l, "base", r->base);
    u64(l, "tokens", r->tokens);
    hash(l, "blob", &r->blob);
    hash(l, "manifest", &r->manifest);
    text(l, "reason", r->reason);
    toks(l, "freed", r->freed, r->freed_count);
}

static void put_merge(struct line *l, const struct record_merge *r) {
    u64(l, "version", r->version);
    u64(l, "parent", r->parent);
    u64(l, "tokens", r->tokens_after);
    hash(l, "checkpoint", &r->checkpoint);
    hash(l, "theta", &r->theta);
    u64(l, "checkpoint_bytes", r->checkpoint_bytes);
    f64(l, "eta", r->eta_r);
    f64(l, "mu", r->mu_r);
    f64(l, "kappa", r->kappa_r);
    f64(l, "meff", r->meff);
    f64(l, "sbar", r->sbar);
    hash(l, "ledger", &r->ledger);
    json_key(l->b, &l->first, "parts");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < r->parts_count; i++) {
        struct line part = {l->b, true};
        buf_printf(l->b, i > 0 ? ",{" : "{");
        id(&part, "did", &r->parts[i].did);
        f64(&part, "weight", r->parts[i].weight);
        json_member_bool(l->b, &part.first, "late", r->parts[i].late);
        buf_u8(l->b, '}');
    }
    buf_u8(l->b, ']');
}

static void put_step(struct line *l, const struct record_step *r) {
    u64(l, "version", r->version);
    json_member_bool(l->b, &l->first, "radial", r->radial);
    json_member_bool(l->b, &l->first, "keeps_ema", r->keeps_ema);
    f64(l, "ema", r->ema);
    f64(l, "cos_mean", r->cos_mean);
    json_key(l->b, &l->first, "sites");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < r->sites_count; i++) {
        struct line site = {l->b, true};
        buf_printf(l->b, i > 0 ? ",{" : "{");
        u64(&site, "site", r->sites[i].site);
        f64(&site, "cos", r->sites[i].cos);
        buf_u8(l->b, '}');
    }
    buf_u8(l->b, ']');
}

static void put_sync(struct line *l, const struct record_sync *r) {
    u64(l, "version", r->version);
    u64(l, "step", r->step);
    json_member_bool(l->b, &l->first, "counts", r->counts);
    f64(l, "lr", r->lr);
    f64(l, "beta1", r->beta1);
    f64(l, "beta2", r->beta2);
    f64(l, "eps", r->eps);
    f64(l, "weight_decay", r->weight_decay);
    f64(l, "clip", r->clip);
    f64(l, "bias1", r->bias1);
    f64(l, "bias2", r->bias2);
}

static void put_report(struct line *l, const struct record_report *r) {
    text(l, "site", r->site);
    json_key(l->b, &l->first, "items");
    buf_u8(l->b, '[');
    for (uint32_t i = 0; i < r->items_count; i++) {
        const struct wire_item *x = &r->items[i];
        struct line item = {l->b, true};
        buf_printf(l->b, i > 0 ? ",{" : "{");
        u64(&item, "n", x->n);
        text(&item, "kind", wire_item_kind_name(x->kind));
        u64(&item, "at", x->at);
        text(&item, "shape", x->shape);
        u64(&item, "order", x->order);
        u64(&item, "job", x->job);
        u64(&item, "id", x->id);
        text(&item, "word", x->word);
        u64(&item, "nodes", x->nodes);
        u64(&item, "seconds", x->seconds);
        u64(&item, "gpus", x->gpus);
        u64(&item, "submit", x->submit);
        u64(&item, "start", x->start);
        u64(&item, "end", x->end);
        u64(&item, "took_ms", x->took_ms);
        text(&item, "why", x->why);
        buf_u8(l->b, '}');
    }
    buf_u8(l->b, ']');
}

static void put_order(struct line *l, const struct record_order *r) {
    u64(l, "id", r->id);
    text(l, "site", r->site);
    text(l, "shape", r->shape);
    u64(l, "jobs", r->jobs);
    json_member_bool(l->b, &l->first, "cancel", r->cancel);
}

static void put_lease_records(struct line *l, const struct hub_record *r) {
    if (r->kind == RECORD_GRANT) {
        tok(l, "tok", r->u.grant.tok);
        u64(l, "site", r->u.grant.site);
        u64(l, "inc", r->u.grant.inc);
        u64(l, "epoch", r->u.grant.epoch);
        ranges(l, r->u.grant.ranges, r->u.grant.ranges_count);
    } else if (r->kind == RECORD_RECLAIM) {
        static const char *const why[] = {"none", "lapsed", "returned", "shrunk"};
        tok(l, "tok", r->u.reclaim.tok);
        text(l, "reason",
             r->u.reclaim.reason < ARRAY_COUNT(why) ? why[r->u.reclaim.reason] : "unknown");
        u64(l, "keep", r->u.reclaim.keep);
    } else if (r->kind == RECORD_LEAVE) {
        u64(l, "site", r->u.leave.site);
        u64(l, "inc", r->u.leave.inc);
        toks(l, "toks", r->u.leave.toks, r->u.leave.toks_count);
    } else if (r->kind == RECORD_DISCARD) {
        id(l, "did", &r->u.discard.did);
        text(l, "reason", r->u.discard.reason);
    }
}

static void put_run_records(struct line *l, const struct hub_record *r) {
    if (r->kind == RECORD_TERM) {
        u64(l, "term", r->u.term.term);
    } else if (r->kind == RECORD_DOWN) {
        u64(l, "codec", r->u.down.codec);
    } else if (r->kind == RECORD_EPOCH) {
        u64(l, "epoch", r->u.epoch.epoch);
        u64(l, "positions", r->u.epoch.positions);
    } else if (r->kind == RECORD_SEAL) {
        u64(l, "epoch", r->u.seal.epoch);
        u64(l, "merged", r->u.seal.merged);
        u64(l, "skipped", r->u.seal.skipped);
        hash(l, "digest", &r->u.seal.digest);
    } else if (r->kind == RECORD_ROLLBACK) {
        u64(l, "version", r->u.rollback.version);
        u64(l, "versions_next", r->u.rollback.versions_next);
        u64(l, "term", r->u.rollback.term);
    } else if (r->kind == RECORD_EVAL) {
        u64(l, "version", r->u.eval.version);
        f64(l, "loss", r->u.eval.loss);
        json_member_bool(l->b, &l->first, "back", r->u.eval.back);
        u64(l, "to", r->u.eval.to);
    } else if (r->kind == RECORD_PARENT) {
        u64(l, "version", r->u.parent.version);
        u64(l, "from", r->u.parent.from);
        hash(l, "blob", &r->u.parent.blob);
        u64(l, "bytes", r->u.parent.bytes);
    } else if (r->kind == RECORD_QUARANTINE) {
        u64(l, "epoch", r->u.quarantine.epoch);
        ranges(l, &r->u.quarantine.range, 1);
        json_member_bool(l->b, &l->first, "skip", r->u.quarantine.skip);
        text(l, "reason", r->u.quarantine.reason);
    } else if (r->kind == RECORD_LEDGER) {
        u64(l, "offset", r->u.ledger.offset);
        u64(l, "bytes", r->u.ledger.bytes);
    } else if (r->kind == RECORD_HOLD) {
        text(l, "name", r->u.hold.name);
        u64(l, "version_seen", r->u.hold.version_seen);
        u64(l, "term_seen", r->u.hold.term_seen);
    }
}

static enum brg_status put_record(struct buf *b, uint64_t seq, uint16_t kind, const void *body,
                                  size_t n, struct err *e) {
    struct hub_record r;
    struct line l = {b, true};
    TRY(hub_record_decode(kind, body, n, &r, e));
    buf_u8(b, '{');
    u64(&l, "seq", seq);
    text(&l, "kind", record_kind_name(kind));
    f64(&l, "wall", (double)r.wall / 1e9);
    if (kind == RECORD_OPEN)
        put_open(&l, &r.u.open);
    else if (kind == RECORD_REBUILD)
        put_rebuild(&l, &r.u.rebuild);
    else if (kind == RECORD_JOIN)
        put_join(&l, &r.u.join);
    else if (kind == RECORD_STAGE)
        put_stage(&l, &r.u.stage);
    else if (kind == RECORD_REJECT)
        put_reject(&l, &r.u.reject);
    else if (kind == RECORD_MERGE)
        put_merge(&l, &r.u.merge);
    else if (kind == RECORD_SYNC)
        put_sync(&l, &r.u.sync);
    else if (kind == RECORD_STEP)
        put_step(&l, &r.u.step);
    else if (kind == RECORD_REPORT)
        put_report(&l, &r.u.report);
    else if (kind == RECORD_ORDER)
        put_order(&l, &r.u.order);
    put_lease_records(&l, &r);
    put_run_records(&l, &r);
    buf_u8(b, '}');
    hub_record_fini(&r);
    return BRG_OK;
}

static enum brg_status visit(void *user, const struct record *r, struct err *e) {
    struct buf *b = user;
    buf_reset(b);
    TRY(put_record(b, r->seq, r->kind, r->bytes > 0 ? (const void *)r->body : "", r->bytes, e));
    printf("%s\n", buf_cstr(b));
    return BRG_OK;
}

static enum brg_status dump_server(const char *name, uint64_t from, struct err *e) {
    struct journal *j;
    AUTO_BUF struct buf b;
    buf_init(&b, 16 << 20);
    TRY(journal_open_reader(name, &j, e));
    uint64_t last = journal_last_seq(j);
    enum brg_status s = BRG_OK;
    if (from <= last) s = journal_replay(j, from > 0 ? from - 1 : 0, visit, &b, e);
    journal_close(j);
    return s;
}

static enum brg_status dump_file(const char *run, uint64_t from, struct err *e) {
    char path[OS_PATH_MAX];
    sqlite3 *db = NULL;
    sqlite3_stmt *row = NULL;
    struct buf b;
    enum brg_status s = BRG_OK;
    os_path(path, run, "journal.db");
    if (!os_exists(path))
        return err_set(e, BRG_E_MISSING, "%s: there is no journal; give the directory of a run",
                       path);
    buf_init(&b, 16 << 20);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(db, "SELECT seq, kind, body FROM journal WHERE seq >= ? ORDER BY seq",
                           -1, &row, NULL) != SQLITE_OK)
        s = err_set(e, BRG_E_JOURNAL, "%s: %s", path,
                    db != NULL ? sqlite3_errmsg(db) : "no memory");
    if (s == BRG_OK) s = audit_format(db, path, e);
    if (s == BRG_OK) (void)sqlite3_bind_int64(row, 1, (int64_t)from);
    while (s == BRG_OK && sqlite3_step(row) == SQLITE_ROW) {
        buf_reset(&b);
        const void *body = sqlite3_column_blob(row, 2);
        s = put_record(&b, (uint64_t)sqlite3_column_int64(row, 0),
                       (uint16_t)sqlite3_column_int(row, 1), body != NULL ? body : "",
                       (size_t)sqlite3_column_bytes(row, 2), e);
        if (s == BRG_OK) printf("%s\n", buf_cstr(&b));
    }
    (void)sqlite3_finalize(row);
    (void)sqlite3_close(db);
    buf_fini(&b);
    return s;
}

static enum brg_status dump(const char *run, uint64_t from, struct err *e) {
    char name[JOURNAL_NAME_MAX];
    TRY(journal_where(run, name, e));
    return journal_name_is_url(name) ? dump_server(name, from, e) : dump_file(run, from, e);
}

int cmd_journal(int argc, char **argv) {
    enum { OPT_FROM = 1, OPT_HELP };
    static const struct option options[] = {
        {"from", 1, NULL, OPT_FROM}, {"help", 0, NULL, OPT_HELP}, {NULL, 0, NULL, 0}};
    uint64_t from = 0;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_FROM:
            if (!parse_u64(optarg, &from))
                return cli_usage("journal", "--from wants a number, not", optarg);
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("journal", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("journal", "want one RUN directory", "");
    struct err e = {0};
    return dump(argv[optind], from, &e) == BRG_OK ? 0 : cli_fail("journal", &e);
}
