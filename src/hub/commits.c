/* SPDX-License-Identifier: Apache-2.0 */
/* commits.c - a contribution is accepted whole or refused whole.
 *
 *   COMMIT --known did--> its recorded outcome (or KEY_REUSED, if it names another delta)
 *          --hub holds, too many staged, disk in trouble--> RETRY, nothing changed
 *          --refused by what it says--> REJECT record          (no need to upload it)
 *          --blob incomplete--> UPLOAD with the offset, its leases are renewed
 *          --refused by what it is--> REJECT record
 *          --else--> STAGE record
 *
 * The decision ends in one record. Whether the leases are still the site's is looked at in
 * ledger_stage, at the moment in which they are consumed (I3); everything before it is policy. A
 * refusal is recorded too, with the leases that it gives back: a retry of the same contribution
 * gets the same answer, and the samples go to somebody else. Blobs are durable before the record
 * that needs them: the shore says `complete` only then. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

/* ---- The manifest
 * ------------------------------------------------------------------------------- */

struct hash hub_manifest_hash(const struct record_stage *r) {
    struct buf b;
    buf_init(&b, 16384);
    buf_put(&b, r->did.v, ID_BYTES);
    buf_u64(&b, r->base);
    buf_u64(&b, r->tokens);
    buf_u64(&b, r->steps);
    buf_u32(&b, r->codec);
    buf_u64(&b, r->elements);
    buf_u64(&b, r->bytes);
    buf_put(&b, r->blob.v, HASH_BYTES);
    buf_u32(&b, r->parts_count);
    for (uint32_t i = 0; i < r->parts_count; i++) {
        buf_u64(&b, r->parts[i].tok);
        buf_u64(&b, r->parts[i].nonce);
        buf_u64(&b, r->parts[i].done);
    }
    buf_u32(&b, r->skips_count);
    for (uint32_t i = 0; i < r->skips_count; i++) buf_u64(&b, r->skips[i].position);
    CHECK(!b.overflow);
    struct hash hash = hash_of(b.data, b.bytes_count);
    buf_fini(&b);
    return hash;
}

/* The record as it would be written, from the site's words and the shore's measurements. */
static struct hub_record *stage_draft(struct hub *h, uint32_t site, const struct wire_commit *c,
                                      const struct hub_blob_verdict *blob) {
    struct hub_record *r = hub_draft(h, RECORD_STAGE);
    struct record_stage *g = &r->u.stage;
    g->did = c->did;
    g->site = site;
    g->inc = site ? h->sites[site].inc : 0;
    g->base = c->base;
    g->tokens = c->tokens;
    g->steps = c->steps;
    g->lr_sum = c->lr_sum;
    g->loss = c->loss;
    g->norm = blob->norm;
    g->max_abs = blob->max_abs;
    g->cos_m = blob->cos_m;
    g->codec = c->codec;
    g->elements = c->elements;
    g->bytes = c->bytes;
    g->blob = c->blob;
    g->parts_count = c->parts_count;
    memcpy(g->parts, c->parts, c->parts_count * sizeof *g->parts);
    if (MUTANT(PARTIAL)) {
        uint64_t done = 0;
        uint32_t left = 0;
        for (uint32_t i = 0; i < g->parts_count; i++) {
            if (!ledger_lease_find(h->ledger, g->parts[i].tok)) continue;
            done += g->parts[i].done;
            g->parts[left++] = g->parts[i];
        }
        if (left > 0 && c->skips_count == 0) g->tokens = done * h->s.seq_len;
        if (left > 0) g->parts_count = left;
    }
    g->skips_count = c->skips_count;
    for (uint32_t i = 0; i < c->skips_count; i++) {
        uint64_t epoch = c->skips[i].position / h->s.positions;
        g->skips[i].epoch = epoch < UINT32_MAX ? (uint32_t)epoch : UINT32_MAX;
        g->skips[i].position = c->skips[i].position % h->s.positions;
        hub_text_copy(g->skips[i].reason, sizeof g->skips[i].reason,
                      ledger_reason_fit(h->ledger, c->skips[i].reason));
    }
    if (!c->keep_rest || c->parts_count == 0) return r;
    const struct wire_part *last = &c->parts[c->parts_count - 1];
    const struct lease *a = ledger_lease_find(h->ledger, last->tok);
    if (!a || last->done >= a->count) return r;
    g->has_rest = true;
    g->rest_tok = hub_tok_next(h);
    g->rest_nonce = prng_u64(&h->prng);
    return r;
}

/* ---- Policy
 * ------------------------------------------------------------------------------------- */

bool hub_staleness(const struct hub *h, uint32_t site, uint64_t base, uint32_t enough,
                   uint32_t *out) {
    const struct hub_version *v = hub_version_of(h, base);
    if (!v || !v->on_branch) return false;
    uint32_t n = 0;
    const struct hub_version *at = &h->versions[h->head];
    while (at->v.version > base && n < enough) {
        n += at->v.parts > 0 && (at->only_site != site || MUTANT(STALENESS_OWN));
        at = hub_version_of(h, at->v.parent);
        CHECK(at != NULL);
    }
    *out = n;
    return true;
}

static bool reason_set(char out[WIRE_TEXT_MAX], const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool reason_set(char out[WIRE_TEXT_MAX], const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    hub_text_copy(out, WIRE_TEXT_MAX, text);
    return false;
}

/* What the site's words alone can be refused for. false: reason says why. */
static bool words_fine(const struct hub *h, const struct record_stage *g,
                       char reason[WIRE_TEXT_MAX]) {
    const struct hub_settings *s = &h->s;
    uint32_t behind = 0, part = 0;
    if (!hub_staleness(h, g->site, g->base, s->staleness_max + 1, &behind))
        return reason_set(reason, "version %llu is not on the run's branch any more",
                          (unsigned long long)g->base);
    if (behind > s->staleness_max)
        return reason_set(
            reason,
            "the base, version %llu, misses %u or more rounds of other sites; the limit "
            "is %u",
            (unsigned long long)g->base, behind, s->staleness_max);
    const char *wrong = g->tokens > 0 ? hub_sync_misfit(h, g->base, g->codec) : NULL;
    if (wrong) return reason_set(reason, "%s", wrong);
    if (!isfinite(g->loss) || !isfinite(g->lr_sum) || g->lr_sum < 0)
        return reason_set(reason, "loss or rates are not finite numbers");
    struct lease_part parts[LEASE_PARTS_MAX];
    struct lease_skip skips[LEASE_SKIPS_MAX];
    struct lease_stage stage = {.did = g->did,
                                .site = g->site,
                                .inc = g->inc,
                                .parts_count = g->parts_count,
                                .skips_count = g->skips_count,
                                .parts = parts,
                                .skips = skips,
                                .has_rest = g->has_rest,
                                .rest_tok = g->rest_tok};
    uint64_t done = 0;
    for (uint32_t i = 0; i < g->parts_count; i++) {
        parts[i] = (struct lease_part){g->parts[i].tok, g->parts[i].nonce, g->parts[i].done};
        done += g->parts[i].done;
    }
    for (uint32_t i = 0; i < g->skips_count; i++)
        skips[i] =
            (struct lease_skip){.epoch = g->skips[i].epoch, .position = g->skips[i].position};
    enum lease_fault f = ledger_stage_check(h->ledger, &stage, &part);
    if (f != LEASE_FINE)
        return reason_set(reason, "lease %llx: %s", (unsigned long long)g->parts[part].tok,
                          lease_fault_text(f));
    uint64_t tokens = (done - g->skips_count) * s->seq_len;
    if (g->tokens != tokens)
        return reason_set(reason, "%llu tokens are reported, the manifest says %llu",
                          (unsigned long long)g->tokens, (unsigned long long)tokens);
    if (tokens == 0) return true; /* skips only: no delta */
    if (g->steps == 0) return reason_set(reason, "tokens without a step");
    if (g->elements != s->parameters)
        return reason_set(reason, "the delta has %llu elements, the model %llu",
                          (unsigned long long)g->elements, (unsigned long long)s->parameters);
    if (g->codec != (uint32_t)s->codec && g->codec != CODEC_FP32 && g->codec != CODEC_GRADIENT)
        return reason_set(reason, "codec %u is neither fp32 nor the run's %s", g->codec,
                          codec_name(s->codec));
    uint64_t bytes = DELTA_HEADER_BYTES + codec_bytes((enum codec)g->codec, g->elements);
    if (g->bytes != bytes || (s->delta_bytes_max > 0 && bytes > s->delta_bytes_max))
        return reason_set(reason, "the delta file has %llu bytes, expected %llu, at most %llu",
                          (unsigned long long)g->bytes, (unsigned long long)bytes,
                          (unsigned long long)s->delta_bytes_max);
    return true;
}

/* What a delta may hold beside its own segment's moves: what the codec kept back earlier, as a share of
 * the move of a long round. int8 and int4 keep back half a step; topk's residual is a sum over rounds that fades by
 * CODEC_KEEP in each; older sites kept a weight back until it was among the largest of its 64. */
static double residual_share(uint32_t codec) {
    switch ((enum codec)codec) {
    case CODEC_FP32:
    case CODEC_GRADIENT: return 0;
    case CODEC_BF16: return 0.004;
    case CODEC_INT8: return 0.5 / 127;
    case CODEC_INT4: return 0.5 / 7;
    case CODEC_TOPK: return 64;
    }
    return 0;
}

/* Of weights that AdamW moves, or of those that Muon does, whichever go farther. */
static double moved_by(const struct hub_settings *s, double rates, double theta_max) {
    double adamw = outer_adamw_bound(rates, s->beta1, s->beta2, s->weight_decay, theta_max);
    if (!(s->muon_ratio > 0)) return adamw;
    double muon = outer_muon_bound(rates * s->muon_ratio, s->muon_side, s->weight_decay, theta_max);
    return muon > adamw ? muon : adamw;
}

/* No weight of an honest delta is larger, whatever the data were. */
static double move_bound(const struct hub *h, const struct record_stage *g, double theta_max) {
    const struct hub_settings *s = &h->s;
    enum { LONG = 4 /* rounds: a faster site, or one that the hub was out of reach for */ };
    double rates = LONG * (double)s->steps * s->schedule.lr;
    if (rates < g->lr_sum) rates = g->lr_sum;
    double own = moved_by(s, g->lr_sum, theta_max), kept = moved_by(s, rates, theta_max);
    double share = residual_share(g->codec);
    return 1.01 * own + (share > 0 ? share * kept : 0); /* a hundredth for roundings */
}

#define GRADIENT_MAX 1e15 /* beyond, its square may leave f32, in which the second moment is kept */

/* What the delta's content can be refused for. */
static bool blob_fine(const struct hub *h, const struct record_stage *g,
                      const struct hub_blob_verdict *blob, char reason[WIRE_TEXT_MAX]) {
    if (g->tokens == 0) return true;
    if (blob->status != BRG_OK)
        return reason_set(reason, "%s", blob->text[0] ? blob->text : status_sentence(blob->status));
    if (!blob->complete) return true;
    if (!isfinite(blob->norm) || !isfinite(blob->max_abs) || !isfinite(blob->cos_m))
        return reason_set(reason, "the delta holds numbers that are not finite");
    if (g->codec == CODEC_GRADIENT) {
        if (blob->max_abs <= GRADIENT_MAX) return true;
        return reason_set(reason, "the gradient has an element of %.3g, at most %.3g are taken",
                          blob->max_abs, GRADIENT_MAX);
    }
    if (blob->theta_max <= 0 || h->s.beta2 <= 0) return true;
    double bound = move_bound(h, g, blob->theta_max);
    if (blob->max_abs > bound)
        return reason_set(reason,
                          "a weight moved by %.3g, but %s moves it by %.3g at most in these steps",
                          blob->max_abs, h->s.muon_ratio > 0 ? "Muon" : "AdamW", bound);
    return true;
}

/* ---- Answers
 * ------------------------------------------------------------------------------------ */

static void answer_delta(struct hub *h, const struct delta *d) {
    struct wire_commit_answer *a = &h->out->answer.u.commit;
    static const enum outcome outcomes[] = {[DELTA_STAGED] = OUTCOME_STAGED,
                                            [DELTA_MERGED] = OUTCOME_MERGED,
                                            [DELTA_REJECTED] = OUTCOME_REJECTED,
                                            [DELTA_DISCARDED] = OUTCOME_DISCARDED};
    a->outcome = outcomes[d->state];
    a->version = d->version;
    if (d->reason) hub_text_copy(a->reason, sizeof a->reason, d->reason);
    if (d->state != DELTA_REJECTED) a->consumer = d->did;
    const struct lease *rest = d->rest_tok ? ledger_lease_find(h->ledger, d->rest_tok) : NULL;
    if (!rest) return;
    a->has_rest = true;
    hub_lease_fill(rest, &a->rest);
}

void hub_outcome(struct hub *h, uint32_t site, const struct id128 *did) {
    const struct delta *d = ledger_delta_find(h->ledger, did);
    if (d) answer_delta(h, d);
    hub_round_fill(h, site, &h->out->answer.u.commit.round);
}

static void consumer_fill(struct hub *h, const struct wire_commit *c) {
    const struct delta *d = c->parts_count > 0 ? ledger_consumer(h->ledger, c->parts[0].tok) : NULL;
    if (d) h->out->answer.u.commit.consumer = d->did;
}

/* The same did, the same contribution? The site's process may have changed; its claim may not. */
bool hub_commit_known(struct hub *h, uint32_t site, const struct wire_commit *c) {
    const struct delta *d = ledger_delta_find(h->ledger, &c->did);
    if (!d || MUTANT(NO_DEDUP)) return false;
    const struct hub_blob_verdict none = {0};
    struct hub_record *r = stage_draft(h, site, c, &none);
    struct hash manifest = hub_manifest_hash(&r->u.stage);
    if (d->site != site || !hash_equal(&d->blob, &c->blob) ||
        !hash_equal(&d->manifest, &manifest)) {
        hub_refuse(h, WIRE_KEY_REUSED, "this contribution id names another delta already");
        return true;
    }
    answer_delta(h, d);
    if (d->state == DELTA_REJECTED) consumer_fill(h, c);
    hub_round_fill(h, site, &h->out->answer.u.commit.round);
    return true;
}

/* ---- Decisions
 * ---------------------------------------------------------------------------------- */

static void reject(struct hub *h, uint32_t site, const struct wire_commit *c,
                   const struct hash *manifest, const char *reason) {
    struct hub_record *r = hub_draft(h, RECORD_REJECT);
    struct record_reject *j = &r->u.reject;
    j->did = c->did;
    j->site = site;
    j->inc = h->sites[site].inc;
    j->base = c->base;
    j->tokens = c->tokens;
    j->steps = c->steps;
    j->bytes = c->bytes;
    j->blob = c->blob;
    j->manifest = *manifest;
    hub_text_copy(j->reason, sizeof j->reason, reason);
    for (uint32_t i = 0; i < c->parts_count; i++) {
        const struct lease *a = ledger_lease_find(h->ledger, c->parts[i].tok);
        if (!a || a->site != site || a->inc != j->inc || a->nonce != c->parts[i].nonce) continue;
        bool again = false;
        for (uint32_t k = 0; k < j->freed_count; k++) again |= j->freed[k] == a->tok;
        if (!again) j->freed[j->freed_count++] = a->tok;
    }
    char hex[ID_HEX_BYTES];
    id_hex(&c->did, hex);
    hub_note(h, "lvl=warn ev=rejected site=%s did=%s freed=%u reason=\"%s\"", h->sites[site].name,
             hex, j->freed_count, j->reason);
    hub_emit(h, r);
    answer_delta(h, ledger_delta_find(h->ledger, &c->did));
    consumer_fill(h, c);
}

static void stage(struct hub *h, uint32_t site, const struct wire_commit *c, struct hub_record *r) {
    uint64_t rest_tok = r->u.stage.has_rest ? r->u.stage.rest_tok : 0;
    char hex[ID_HEX_BYTES];
    id_hex(&c->did, hex);
    hub_note(
        h,
        "lvl=info ev=staged site=%s did=%s base=%llu tokens=%llu steps=%llu loss=%.4f norm=%.4g "
        "z=%.2f cos=%.3f",
        h->sites[site].name, hex, (unsigned long long)c->base, (unsigned long long)c->tokens,
        (unsigned long long)c->steps, c->loss, r->u.stage.norm, h->sites[site].norm_z,
        r->u.stage.cos_m);
    hub_emit(h, r);
    struct lease *rest = rest_tok ? ledger_lease_find(h->ledger, rest_tok) : NULL;
    if (rest) rest->deadline = h->now + h->s.ttl_ns;
    answer_delta(h, ledger_delta_find(h->ledger, &c->did));
}

static void upload(struct hub *h, uint32_t site, const struct wire_commit *c,
                   const struct hub_blob_verdict *blob) {
    hub_refuse(h, WIRE_UPLOAD, "the delta is not complete: %llu of %llu bytes are there",
               (unsigned long long)blob->offset, (unsigned long long)c->bytes);
    h->out->answer.u.commit.offset = blob->offset;
    for (uint32_t i = 0; i < c->parts_count; i++) { /* a slow link must not cost the lease */
        struct lease *a = ledger_lease_find(h->ledger, c->parts[i].tok);
        if (a && a->site == site && a->nonce == c->parts[i].nonce)
            a->deadline = h->now + h->s.ttl_ns;
    }
}

static bool retry_needed(struct hub *h, uint32_t site, const struct hub_blob_verdict *blob) {
    enum brg_class class_ = status_class(blob->status);
    if (h->held)
        hub_refuse(h, WIRE_RETRY,
                   "the hub holds until an operator decides: a site has seen a newer version");
    else if (ledger_site_staged(h->ledger, site) >= HUB_STAGED_PER_SITE_MAX)
        hub_refuse(h, WIRE_RETRY, "%u contributions of this site wait for a merge already",
                   HUB_STAGED_PER_SITE_MAX);
    else if (blob->status != BRG_OK && (class_ == BRG_CLASS_RETRY || class_ == BRG_CLASS_FULL))
        hub_refuse(h, WIRE_RETRY, "the hub cannot read the delta now: %s",
                   status_sentence(blob->status));
    else
        return false;
    h->out->answer.retry_ms = hub_ms(h->s.heartbeat_ns);
    return true;
}

void hub_commit(struct hub *h, uint32_t site, const struct wire_request *q,
                const struct hub_blob_verdict *blob) {
    const struct wire_commit *c = &q->u.commit;
    struct wire_commit_answer *a = &h->out->answer.u.commit;
    char reason[WIRE_TEXT_MAX] = "";
    if (c->parts_count == 0) {
        hub_refuse(h, WIRE_BAD, "a contribution without a lease");
        return;
    }
    if (c->base >= h->versions_next) {
        hub_ask_to_join(h, c->base);
        return;
    }
    if (retry_needed(h, site, blob)) return;
    struct hub_record *r = stage_draft(h, site, c, blob);
    struct hash manifest = hub_manifest_hash(&r->u.stage);
    if (!words_fine(h, &r->u.stage, reason) || !blob_fine(h, &r->u.stage, blob, reason) ||
        (blob->complete && !hub_norm_fine(h, &r->u.stage, reason, sizeof reason)))
        reject(h, site, c, &manifest, reason);
    else if (!blob->complete && c->tokens > 0)
        upload(h, site, c, blob);
    else
        stage(h, site, c, r);
    hub_round_fill(h, site, &a->round);
}
