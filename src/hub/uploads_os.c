/* SPDX-License-Identifier: Apache-2.0 */
/* uploads_os.c - contributions on their way in: pieces, and the COMMIT that closes them.
 *
 *   (from an object store: objects_site_os.c, at COMMIT)
 *   PUT pieces -> incoming/<did>.part --COMMIT: size, hash, content--> blobs/<hash> --machine--> staged
 *
 * Order of a COMMIT (everything but the last step needs no lock of the machine):
 *   1. an outcome that is known already is asked for first: a repeat must not read gigabytes again
 *   2. the part is complete, hashed, synced and has its name under blobs/
 *   3. its content is looked at: header against message, finite, norm
 *   4. the machine decides; its record is durable; the answer goes out
 * One COMMIT of a did at a time. A blob that this COMMIT brought and that was not taken is removed; one
 * that was there before is not: a message may name any hash, also that of a kept checkpoint. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "hub/events_os.h"
#include "hub/http_os.h"
#include "hub/objects_os.h"
#include "wire/json.h"

/* ---- Pieces ---------------------------------------------------------------------------------------- */
static bool did_parse(struct exchange *x) {
    if (!hex_decode(x->segment[2], x->did.v, ID_BYTES)) return false;
    for (const char *c = x->segment[2]; *c != '\0'; c++)
        if (*c >= 'A' && *c <= 'F') return false;
    return true;
}

static uint64_t part_bytes(struct exchange *x) {
    uint64_t have = 0;
    if (blobs_part_bytes(x->s->blobs, &x->did, &have) != BRG_OK) have = 0;
    return have;
}

static void part_drop(struct exchange *x, const struct id128 *did) {
    pthread_mutex_t *stripe = server_stripe(x->s, did);
    CHECK(pthread_mutex_lock(stripe) == 0);
    if (blobs_part_drop(x->s->blobs, did) != BRG_OK)
        log_line(LOG_WARN, "hub", "part_stays", "name=%s", x->who.name);
    CHECK(pthread_mutex_unlock(stripe) == 0);
    objects_contribution_drop(x->s->objects, did, false);
}

/* Uploads that a site begins and leaves must not fill the disk: its oldest ones go. */
static bool part_take(struct exchange *x) {
    struct id128 oldest;
    bool drop = false;
    if (!gate_part_take(x->s->gate, &x->who, &x->did, &drop, &oldest)) return false;
    if (drop) part_drop(x, &oldest);
    return true;
}

enum MHD_Result upload_begin(struct exchange *x) {
    uint64_t bytes = 0, max = x->s->dir.settings.hub.delta_bytes_max;
    const char *offset = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "offset");
    const char *length = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Length");
    if (!did_parse(x))
        return reply_problem(x, 400, WIRE_BAD,
                             "a contribution is named by 32 lower-case hex digits");
    if (offset == NULL || !parse_u64(offset, &x->offset))
        return reply_problem(x, 400, WIRE_BAD, "want ?offset=N, the place of the first byte");
    if (length != NULL && !parse_u64(length, &bytes)) bytes = 0;
    if (x->offset > max || bytes > max - x->offset)
        return reply_problem(x, 413, WIRE_BAD,
                             "a contribution of this run has at most %" PRIu64 " bytes", max);
    if (!part_take(x)) return reply_other_name(x);
    uint64_t have = part_bytes(x);
    if (x->offset != have)
        return reply_offset(x, 409, have,
                            "the piece does not begin where the last one ended; go on at "
                            "offset");
    return MHD_YES;
}

void upload_piece(struct exchange *x, const void *data, size_t n) {
    struct hub_server *s = x->s;
    uint64_t max = s->dir.settings.hub.delta_bytes_max;
    if (x->upload_status != BRG_OK) return; /* the rest of the body is read and dropped */
    uint64_t at = x->offset + x->received;
    if (at > max || n > max - at) {
        x->upload_status = err_set(&x->upload_error, BRG_E_LIMIT, "larger than any contribution");
        return;
    }
    pthread_mutex_t *stripe = server_stripe(s, &x->did);
    CHECK(pthread_mutex_lock(stripe) == 0);
    x->upload_status = blobs_part_write(s->blobs, &x->did, at, data, n, &x->upload_error);
    CHECK(pthread_mutex_unlock(stripe) == 0);
    if (x->upload_status == BRG_OK) x->received += n;
}

enum MHD_Result upload_end(struct exchange *x) {
    struct hub_server *s = x->s;
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    s->times.uploads_bytes += x->received;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    enum brg_status st = x->upload_status;
    if (st == BRG_OK) return reply_offset(x, 200, x->offset + x->received, "");
    if (st == BRG_E_MESSAGE) /* another writer of the same contribution was faster */
        return reply_offset(x, 409, part_bytes(x),
                            "the piece does not begin where the last one ended; "
                            "go on at offset");
    if (st == BRG_E_LIMIT)
        return reply_problem(x, 413, WIRE_BAD,
                             "a contribution of this run has at most %" PRIu64 " bytes",
                             s->dir.settings.hub.delta_bytes_max);
    if (status_class(st) == BRG_CLASS_FULL) return reply_step(x, STEP_FULL);
    log_line(LOG_ERROR, "hub", "upload_failed", "cause=\"%s\"", x->upload_error.text);
    return reply_problem(x, 503, WIRE_RETRY, "the hub could not store the piece; come again");
}

/* Where an object store takes contributions: the URLs for this one. What the hub has all of already, or cannot have
 * from there, it takes itself, as ever. */
static enum MHD_Result reply_plan(struct exchange *x, uint64_t bytes) {
    uint64_t max = x->s->dir.settings.hub.delta_bytes_max;
    AUTO_BUF struct buf b;
    buf_init(&b, WIRE_BODY_MAX);
    if (bytes > max)
        return reply_problem(x, 413, WIRE_BAD,
                             "a contribution of this run has at most %" PRIu64 " bytes", max);
    if (!part_take(x)) return reply_other_name(x);
    uint64_t have = part_bytes(x);
    if (have >= bytes) return reply_offset(x, 200, have, "");
    AUTO_FREE struct direct_put *p = mem_alloc(1, sizeof *p);
    if (objects_contribution(x->s->objects, &x->did, bytes, p) != OBJECTS_THERE)
        return reply_offset(x, 200, have, "");
    direct_put_encode(p, &b);
    return b.overflow ? reply_offset(x, 200, have, "") : reply_json(x, 200, &b);
}

enum MHD_Result handle_blob_get(struct exchange *x) {
    const char *store = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "store");
    const char *text = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "bytes");
    uint64_t bytes = 0;
    if (!did_parse(x))
        return reply_problem(x, 400, WIRE_BAD,
                             "a contribution is named by 32 lower-case hex digits");
    bool direct = x->s->objects != NULL && x->method == METHOD_GET && store != NULL &&
                  strcmp(store, "1") == 0;
    if (direct && (text == NULL || !parse_u64(text, &bytes)))
        return reply_problem(x, 400, WIRE_BAD, "want ?store=1&bytes=N, the length of the file");
    if (direct) return reply_plan(x, bytes);
    return reply_offset(x, 200, part_bytes(x), "");
}

/* By whoever began it, and will not hand it in: `beringia doctor`. */
enum MHD_Result handle_blob_drop(struct exchange *x) {
    if (!did_parse(x))
        return reply_problem(x, 400, WIRE_BAD,
                             "a contribution is named by 32 lower-case hex digits");
    enum gate_part whose = gate_part_drop(x->s->gate, &x->who, &x->did);
    if (whose == GATE_PART_OTHERS) return reply_other_name(x);
    if (whose == GATE_PART_MINE) part_drop(x, &x->did);
    return reply_offset(x, 200, part_bytes(x), "");
}

/* ---- COMMIT ---------------------------------------------------------------------------------------- */
static bool outcome_known(struct hub_server *s, const struct wire_request *r) {
    struct wire_request ask = {.kind = WIRE_OUTCOME, .run = r->run};
    struct wire_answer a;
    struct hub_cmd cmd;
    memcpy(ask.site, r->site, sizeof ask.site);
    ask.u.outcome.did = r->u.commit.did;
    memset(&cmd, 0, sizeof cmd);
    cmd.kind = HUB_CMD_REQUEST;
    cmd.wall = os_wall();
    cmd.request = &ask;
    if (server_step(s, &cmd, &a) != STEP_DONE) return false;
    return a.code == WIRE_OK && a.u.commit.outcome != OUTCOME_UNKNOWN;
}

/* The bytes are all there, have the right hash and are durable under it: or how many there are. */
static enum brg_status blob_complete(struct hub_server *s, const struct wire_commit *c,
                                     struct hub_blob_verdict *v, bool *out_brought, struct err *e) {
    if (blobs_has(s->blobs, &c->blob)) {
        TRY(blobs_sync_name(s->blobs, &c->blob, e));
        v->complete = true;
        return BRG_OK;
    }
    TRY(objects_fetch(s->objects, &c->did, c->bytes, e));
    TRY(blobs_part_bytes(s->blobs, &c->did, &v->offset));
    if (v->offset < c->bytes) return BRG_OK;
    enum brg_status st = blobs_part_finish(s->blobs, &c->did, c->bytes, &c->blob, e);
    if (st == BRG_OK) {
        v->complete = *out_brought = true;
        FAULT("hub.blob.synced");
        return BRG_OK;
    }
    if (st != BRG_E_CORRUPT) return st;
    /* Damaged on the way, and dropped: the site sends it again from the start. */
    log_line(LOG_WARN, "hub", "upload_corrupt", "cause=\"%s\"", e->text);
    objects_contribution_drop(s->objects, &c->did, true);
    v->offset = 0;
    return BRG_OK;
}

/* What is in it. A fault of the content is the machine's to judge; a fault of the disk is ours. */
static enum brg_status blob_inspect(struct hub_server *s, const struct wire_commit *c,
                                    struct hub_blob_verdict *v, struct err *e) {
    struct blob_figures f;
    memset(&f, 0, sizeof f);
    enum brg_status st = server_inspect(s, c, &f, e);
    bool of_content = st == BRG_E_MESSAGE || st == BRG_E_CORRUPT || st == BRG_E_NONFINITE;
    if (st != BRG_OK && !of_content) return st;
    v->status = st;
    if (st != BRG_OK)
        (void)snprintf(v->text, sizeof v->text, "%.*s", (int)sizeof v->text - 1, e->text);
    v->norm = f.norm;
    v->max_abs = f.max_abs;
    v->cos_m = f.cos_m;
    v->theta_max = f.theta_max;
    return BRG_OK;
}

static enum brg_status look_at_blob(struct hub_server *s, const struct wire_request *r,
                                    struct hub_blob_verdict *v, bool *out_brought, struct err *e) {
    const struct wire_commit *c = &r->u.commit;
    memset(v, 0, sizeof *v);
    if (outcome_known(s, r) || c->bytes == 0) { /* nothing to look at: all positions skipped */
        v->complete = true;
        return BRG_OK;
    }
    if (c->bytes > s->dir.settings.hub.delta_bytes_max) {
        v->complete = true;
        v->status = BRG_E_MESSAGE;
        (void)snprintf(v->text, sizeof v->text, "larger than a contribution of this run can be");
        return BRG_OK;
    }
    TRY(blob_complete(s, c, v, out_brought, e));
    return v->complete ? blob_inspect(s, c, v, e) : BRG_OK;
}

static enum MHD_Result commit_locked(struct exchange *x, const struct wire_request *r) {
    struct hub_server *s = x->s;
    struct hub_cmd cmd;
    struct wire_answer a;
    struct err e = {0};
    memset(&cmd, 0, sizeof cmd);
    bool brought = false;
    enum brg_status st = look_at_blob(s, r, &cmd.blob, &brought, &e);
    if (status_class(st) == BRG_CLASS_FULL) return reply_step(x, STEP_FULL);
    if (st == BRG_E_TIMEOUT)
        return reply_problem(
            x, 503, WIRE_RETRY,
            "the contribution is on its way here from the object store; come again");
    if (st != BRG_OK) {
        log_line(LOG_ERROR, "hub", "commit_failed", "cause=\"%s\"", e.text);
        return reply_problem(x, 503, WIRE_RETRY,
                             "the hub could not read the contribution; come again");
    }
    cmd.kind = HUB_CMD_REQUEST;
    cmd.wall = os_wall();
    cmd.request = r;
    enum step_result step = server_step(s, &cmd, &a);
    if (step != STEP_DONE) return reply_step(x, step);
    bool taken = a.code == WIRE_OK &&
                 (a.u.commit.outcome == OUTCOME_STAGED || a.u.commit.outcome == OUTCOME_MERGED);
    if (taken && a.u.commit.outcome == OUTCOME_STAGED) events_staged(s->events, cmd.wall);
    if (brought) objects_contribution_drop(s->objects, &r->u.commit.did, false);
    if (!taken && brought && a.code != WIRE_RETRY) server_drop_blob_if_unused(s, &r->u.commit.blob);
    return reply_answer(x, &a);
}

enum MHD_Result handle_commit(struct exchange *x, const struct wire_request *r) {
    pthread_mutex_t *stripe = server_stripe(x->s, &r->u.commit.did);
    CHECK(pthread_mutex_lock(stripe) == 0);
    enum MHD_Result ok = commit_locked(x, r);
    CHECK(pthread_mutex_unlock(stripe) == 0);
    return ok;
}
