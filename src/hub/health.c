/* SPDX-License-Identifier: Apache-2.0 */
/* health.c - what says whether a run is well, and what is done when it is not.
 *
 *   a delta's norm    against what its site is used to (outer_norms_z): refused where it is far longer, with the
 *                     reason; after NORM_REFUSALS_MAX in a row the site has become another, and is learnt anew
 *   cosines           of each site's delta to the others', as the merge worker measured them: recorded, shown; a
 *                     site that points against the others twice in a row is named in the log
 *   held-out loss     of a version, told by whoever measures (beringia eval --watch): recorded; where it is more than
 *                     loss_jump above that of the newest measured ancestor the run goes back to that ancestor
 *
 *   EVALUATED --no jump--> EVAL
 *             --jump, an ancestor is measured, kept, not returned to RETURNS_MAX times--> EVAL, ROLLBACK
 * After such a return the momentum begins anew with the next merge (outer_past.restart): it was built up on the way
 * into the jump. Where the same ancestor fails again and again the data or the settings are at fault, not a
 * delta: then the log says so, and a person decides.
 *
 * A STEP stands before its MERGE and speaks of it alone; of no other record, should a crash part them.
 *
 * Invariants
 *   (H22) a STEP acts on the MERGE of its own version that follows at once, and on nothing else.
 * What this file keeps is a function of the records (H1): sums and products alone, no C library's logarithm. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hub/machine.h"

enum { NORM_REFUSALS_MAX = 3, RETURNS_MAX = 2, AGAINST_NAMED = 2 };
#define AGAINST (-0.2) /* a cosine below: two bad rounds in a row are no chance */

/* ---- Norms ----------------------------------------------------------------------------------------- */
bool hub_norm_fine(struct hub *h, const struct record_stage *g, char *out, size_t cap) {
    struct hub_site *s = &h->sites[g->site];
    if (g->tokens == 0 || h->s.rule.sum || g->codec == CODEC_GRADIENT) return true;
    s->norm_z = outer_norms_z(&s->norms, g->norm, g->lr_sum, (double)g->steps);
    bool fine = !(h->s.norm_z > 0) || s->norm_z <= h->s.norm_z;
    if (fine || s->norm_refused == NORM_REFUSALS_MAX) {
        if (!fine)
            hub_note(h, "lvl=warn ev=norm_anew site=%s norm=%.4g z=%.1f", s->name, g->norm,
                     s->norm_z);
        s->norm_refused = 0;
        return true;
    }
    s->norm_refused++;
    (void)snprintf(
        out, cap,
        "the delta's norm %.4g is %.1f deviations above what this site is used to, at most "
        "%.1f (outer.norm_z) are taken: look at its last steps",
        g->norm, s->norm_z, h->s.norm_z);
    return false;
}

/* ---- STEP ------------------------------------------------------------------------------------------ */
static void sites_fill(const struct hub_merge *m, const double *cosines, struct record_step *r) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < m->plan.parts_count; i++) {
        const struct outer_part *p = &m->plan.parts[i].part;
        if (p->late > 0 || p->site == last || r->sites_count == RECORD_STEP_SITES_MAX) continue;
        last = p->site;
        r->sites[r->sites_count++] =
            (struct record_step_site){p->site, fmax(-1, fmin(1, cosines[i]))};
    }
}

static void against_note(struct hub *h, const struct record_step *r) {
    for (uint32_t i = 0; i < r->sites_count; i++) {
        struct hub_site *s = &h->sites[r->sites[i].site];
        s->against = r->sites[i].cos < AGAINST ? s->against + 1 : 0;
        if (s->against == AGAINST_NAMED)
            hub_note(h, "lvl=warn ev=against_the_others site=%s cos=%.3f", s->name,
                     r->sites[i].cos);
    }
}

void hub_step_emit(struct hub *h, const struct hub_cmd *c) {
    const struct hub_merge *m = h->merge;
    const double *cosines = c->u.merged.cosines;
    if (!m->plan.radial && !m->plan.keeps_ema && cosines == NULL) return;
    struct hub_record *r = hub_draft(h, RECORD_STEP);
    r->u.step = (struct record_step){.version = m->plan.version,
                                     .radial = m->plan.radial,
                                     .keeps_ema = m->plan.keeps_ema,
                                     .ema = m->plan.ema};
    if (cosines != NULL) {
        r->u.step.cos_mean = fmax(-1, fmin(1, c->u.merged.cos_mean));
        sites_fill(m, cosines, &r->u.step);
        against_note(h, &r->u.step);
    }
    hub_emit(h, r);
}

const char *hub_apply_step(struct hub *h, const struct record_step *r) {
    if (r->version != h->versions_next) return "a step of a version that is not the next one";
    for (uint32_t i = 0; i < r->sites_count; i++)
        if (r->sites[i].site == 0 || r->sites[i].site > h->sites_count) return "an unknown site";
    h->step = *r;
    return NULL;
}

/* ---- Held-out loss ------------------------------------------------------------------------------------ */
/* The newest ancestor of v that was measured; NULL: none. */
static const struct hub_version *measured_before(const struct hub *h, const struct hub_version *v) {
    while (v != h->versions) {
        v = hub_version_of(h, v->v.parent);
        CHECK(v != NULL); /* I5 */
        if (v->v.heldout > 0) return v;
    }
    return NULL;
}

bool hub_loss_jumped(const struct hub *h, uint64_t version) {
    const struct hub_version *v = hub_version_of(h, version);
    if (!v || !v->on_branch || !(v->v.heldout > 0) || !(h->s.loss_jump > 0)) return false;
    const struct hub_version *good = measured_before(h, v);
    return good && v->v.heldout > good->v.heldout + h->s.loss_jump;
}

static bool is_kept(const struct hub_cmd *c, uint64_t version) {
    for (uint32_t i = 0; i < c->u.evaluated.kept_count; i++)
        if (c->u.evaluated.kept[i] == version) return true;
    return false;
}

/* Where a jump leads back to; NULL: there is no jump, or no way. */
static const struct hub_version *way_back(struct hub *h, const struct hub_version *v,
                                          const struct hub_cmd *c) {
    const struct hub_version *good = measured_before(h, v);
    double loss = c->u.evaluated.loss, jump = h->s.loss_jump;
    if (!good || !(jump > 0) || !(loss > good->v.heldout + jump)) return NULL;
    hub_note(h, "lvl=error ev=loss_jumped version=%llu loss=%.4f before=%.4f measured=%llu",
             (unsigned long long)v->v.version, loss, good->v.heldout,
             (unsigned long long)good->v.version);
    while (good && (!is_kept(c, good->v.version) || loss <= good->v.heldout + jump))
        good = measured_before(h, good);
    if (!good)
        hub_note(h, "lvl=error ev=no_way_back text=\"no measured ancestor's checkpoint is kept\"");
    if (good && !hub_region_may_return(h, good->v.version)) {
        hub_note(h, "lvl=error ev=no_way_back text=\"a region does not go back; its parent may\"");
        return NULL;
    }
    if (good && good->v.returns >= RETURNS_MAX) {
        hub_note(h, "lvl=error ev=no_way_back text=\"version %llu has led to a jump %u times\"",
                 (unsigned long long)good->v.version, RETURNS_MAX + 1);
        return NULL;
    }
    return good;
}

void hub_evaluated(struct hub *h, const struct hub_cmd *c) {
    const struct hub_version *v = hub_version_of(h, c->u.evaluated.version);
    double loss = c->u.evaluated.loss;
    bool there = h->opened && v && v->on_branch;
    hub_operator_answer(h, there && loss > 0 && isfinite(loss),
                        there ? "a loss is a finite number of nats, above 0"
                              : "this version is not the head or one of its ancestors");
    if (!there || !(loss > 0) || !isfinite(loss) || v->v.heldout > 0) return; /* H5: told already */
    const struct hub_version *back = way_back(h, v, c);
    uint64_t to = back ? back->v.version : 0;
    struct hub_record *r = hub_draft(h, RECORD_EVAL);
    r->u.eval =
        (struct record_eval){.version = v->v.version, .loss = loss, .back = back != NULL, .to = to};
    hub_note(h, "lvl=info ev=evaluated version=%llu loss=%.4f",
             (unsigned long long)r->u.eval.version, loss);
    hub_emit(h, r);
    if (back) hub_roll_back(h, to, false);
}

const char *hub_apply_eval(struct hub *h, const struct record_eval *r) {
    struct hub_version *v = hub_version_of(h, r->version), *to = hub_version_of(h, r->to);
    if (!v || !v->on_branch) return "a loss of a version that is not on the branch";
    if (r->back && (!to || !to->on_branch || r->to >= r->version))
        return "a return to a version that is no ancestor";
    v->v.heldout = r->loss;
    if (r->back) to->v.returns++;
    return NULL;
}

/* ---- Behind the ledger of a snapshot --------------------------------------------------------------------- */
enum { HEALTH_LAYOUT = 1, HEALTH_LAYOUT_SYNC = 2 /* with the steps of synchronous rounds */ };

static bool site_is_plain(const struct hub_site *s) {
    return s->norms.count == 0 && s->cos_others == 0;
}

static bool version_is_plain(const struct hub_version *v) {
    return v->past.arrivals == 0 && v->past.work == 0 && v->v.cos_sites == 0 && v->v.heldout == 0 &&
           v->v.returns == 0 && v->past.adamw == 0 && !v->v.radial && !v->v.has_ema;
}

static bool any_synchronous(const struct hub *h) {
    for (uint32_t i = 0; i < h->versions_count; i++)
        if (h->versions[i].past.adamw > 0) return true;
    return false;
}

static bool all_plain(const struct hub *h) {
    for (uint32_t i = 1; i <= h->sites_count; i++)
        if (!site_is_plain(&h->sites[i])) return false;
    for (uint32_t i = 0; i < h->versions_count; i++)
        if (!version_is_plain(&h->versions[i])) return false;
    return true;
}

void hub_health_put(const struct hub *h, struct buf *out) {
    if (all_plain(h)) return;
    bool sync = any_synchronous(h);
    buf_u32(out, sync ? HEALTH_LAYOUT_SYNC : HEALTH_LAYOUT);
    for (uint32_t i = 1; i <= h->sites_count; i++) {
        const struct hub_site *s = &h->sites[i];
        buf_u64(out, s->norms.count);
        buf_f64(out, s->norms.mean);
        buf_f64(out, s->norms.var);
        buf_f64(out, s->norms.log_steps);
        buf_f64(out, s->cos_others);
    }
    for (uint32_t i = 0; i < h->versions_count; i++) {
        const struct hub_version *v = &h->versions[i];
        buf_f64(out, v->past.arrivals);
        buf_f64(out, v->past.work);
        buf_f64(out, v->v.cos_sites);
        buf_f64(out, v->v.heldout);
        buf_u64(out, v->v.returns);
        buf_u8(out, (uint8_t)(v->v.radial | v->v.has_ema << 1));
        if (sync) buf_u64(out, v->past.adamw);
    }
}

bool hub_health_get(struct hub *h, struct reader *r) {
    if (r->p == r->end) return true;
    uint32_t layout = get_u32(r);
    if (layout != HEALTH_LAYOUT && layout != HEALTH_LAYOUT_SYNC) return false;
    for (uint32_t i = 1; i <= h->sites_count; i++) {
        struct hub_site *s = &h->sites[i];
        s->norms.count = get_u64(r);
        s->norms.mean = get_f64(r);
        s->norms.var = get_f64(r);
        s->norms.log_steps = get_f64(r);
        s->cos_others = get_f64(r);
    }
    for (uint32_t i = 0; i < h->versions_count; i++) {
        struct hub_version *v = &h->versions[i];
        v->past.arrivals = get_f64(r);
        v->past.work = get_f64(r);
        v->v.cos_sites = get_f64(r);
        v->v.heldout = get_f64(r);
        v->v.returns = get_u64(r);
        uint8_t flags = get_u8(r);
        if (flags > 3) return false;
        v->v.radial = flags & 1;
        v->v.has_ema = flags >> 1;
        if (layout == HEALTH_LAYOUT_SYNC) v->past.adamw = get_u64(r);
    }
    bool form = !all_plain(h) && any_synchronous(h) == (layout == HEALTH_LAYOUT_SYNC);
    return r->ok && r->p == r->end && form; /* one state, one form */
}
