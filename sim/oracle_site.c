/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_site.c - a site's weights are what its counts say, position by position, after each step:
 *   weights - S = the positions of the running segment (S3),   S = base - own unmerged (W2),
 * together: local = global + own work that is not merged yet (W1). */
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

static void count_lease(struct sim *m, const struct site_lease *l, float *want) {
    uint64_t i = 0;
    for (uint32_t r = 0; r < l->w.ranges_count; r++)
        for (uint64_t k = 0; k < l->w.ranges[r].count; k++, i++)
            if (i >= l->cut && i < l->done)
                want[l->w.epoch * m->w.positions + l->w.ranges[r].start + k] += 1;
}

static void take_skips(const struct site_core *c, float *want) {
    for (uint32_t i = 0; i < c->seg.skips_count; i++) want[c->seg.skips[i].position] -= 1;
}

/* With many sites the vectors are long, and nearly every event leaves them alone. What they are compared with depends on
 * these figures; a weight that changes without them is seen at the next change of one. */
enum { LOOK_ALWAYS = 5 };
static bool seen_before(struct sim_proc *p) {
    const struct site_core *c = &p->core;
    uint64_t h = mix64(p->life) ^ mix64(p->changes + 1);
    const uint64_t words[] = {c->base,         c->seg.steps,   c->seg.samples, c->seg.skips_count,
                              c->deltas_count, c->leases_count};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++) h = mix64(h ^ words[i]) + i;
    for (uint32_t i = 0; i < c->deltas_count; i++)
        h = mix64(h ^ get_le64(c->deltas[i].c.did.v)) + c->deltas[i].state;
    for (uint32_t i = 0; i < c->leases_count; i++) {
        const struct site_lease *l = &c->leases[i];
        h = mix64(mix64(h ^ l->w.tok) ^ l->done) ^ mix64(l->cut << 1 | l->give_back);
    }
    bool seen = h == p->looked_at;
    p->looked_at = h;
    return seen;
}

static bool older_than(const struct sim_proc *other, const struct sim_proc *p) {
    return other->site != p->site || other->core.inc <= p->core.inc || !other->ever;
}

void oracle_site(struct sim *m, struct sim_proc *p) {
    const struct site_core *c = &p->core;
    if (!c->loaded || c->reset_due || c->state == SITE_STOPPED) return;
    /* A process that was replaced and does not know it yet may owe what its twin has handed in. */
    bool newest = m->restores == 0 && older_than(&m->proc[p->site], p);
    for (uint32_t i = SIM_SITES; i < SIM_PROCS; i++) newest &= older_than(&m->proc[i], p);
    for (uint32_t i = 0; i < c->deltas_count && newest; i++) {
        const struct model_delta *d = model_delta_find(m, &c->deltas[i].c.did);
        if (d == NULL || d->state != MODEL_MERGED || d->version > c->base) continue;
        if (!m->model.versions[m->model.head].on_branch) continue;
        sim_fail(m,
                 "W1: %s/%u: version %llu has an own contribution in it that the site owes still",
                 p->name, p->index, (unsigned long long)c->base);
    }
    if (m->w.sites > LOOK_ALWAYS && seen_before(p)) return;
    float want[SIM_WEIGHTS], have[SIM_WEIGHTS], own[SIM_WEIGHTS];
    size_t n = m->w.weights;
    memset(want, 0, n * sizeof *want);
    memset(own, 0, n * sizeof *own);
    for (uint32_t i = 0; i < c->deltas_count; i++)
        if (site_delta_local(&c->deltas[i]))
            weights_add(own, delta_of(m, &c->deltas[i].c.did)->content->d, n);
    for (size_t i = 0; i < n; i++) {
        have[i] = p->theta[i] - p->s[i];
        if (site_gradients(c) && have[i] != 0) /* a gradient moves no weight */
            sim_fail(m, "W1: %s/%u: a weight moved by %g in a synchronous round, at %zu", p->name,
                     p->index, (double)have[i], i);
        if (site_gradients(c) && p->gradient_samples > 0) have[i] = -p->gradient[i];
        if (p->s[i] != p->base->theta[i] - own[i])
            sim_fail(m, "W2: %s/%u: the subtraction base is %g at %zu, want %g", p->name, p->index,
                     (double)p->s[i], i, (double)(p->base->theta[i] - own[i]));
    }
    for (uint32_t i = 0; i < c->leases_count; i++)
        if (!c->leases[i].give_back) count_lease(m, &c->leases[i], want);
    take_skips(c, want);
    /* Trained under two leases a position counts twice, and int8 rounds what lies beside it; such a
     * contribution is refused, and until then its residual is in the weights. */
    float slack = m->w.codec == CODEC_INT8 ? 0.1f : 0;
    for (size_t i = 0; i < n; i++)
        if (have[i] - want[i] > slack || want[i] - have[i] > slack)
            sim_fail(m, "S3: %s/%u: the weights have %g at %zu, the segment says %g", p->name,
                     p->index, (double)have[i], i, (double)want[i]);
}
