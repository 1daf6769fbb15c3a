/* SPDX-License-Identifier: Apache-2.0 */
/* audit_sync.c - synchronous rounds, from docs/journal.md alone: a SYNC and the MERGE that it speaks of. A gradient is of
 * one version's weights; in a round on another one, or twice, it would be a step that nobody meant. */
#include <math.h>

#include "cli/audit.h"

void audit_walk_sync(struct audit *a, struct reader *r) {
    enum { SCALARS = 8 };
    uint64_t version = get_u64(r), step = get_u64(r);
    uint8_t counts = get_u8(r);
    bool sound = counts <= 1;
    for (int i = 0; i < SCALARS; i++) {
        double x = get_f64(r);
        sound &= x >= 0 && isfinite(x) && (counts == 0 || x <= 0);
    }
    if (!r->ok) return;
    if (!sound || step == 0) audit_finding(a, "a synchronous round with scalars that are none");
    if (version != a->version_next)
        audit_finding(a, "a synchronous round of version %llu, which is not the next one",
                      (unsigned long long)version);
    a->sync_version = version;
    a->sync_step = step;
}

void audit_sync_merge(struct audit *a, struct audit_version *v,
                      const struct audit_version *parent) {
    bool sync = a->sync_version == v->version && v->version > 0;
    uint64_t before = parent ? parent->sync_step : 0;
    bool moves = false;
    for (uint32_t i = 0; i < v->parts_count; i++) moves |= a->deltas[v->parts[i]].tokens > 0;
    v->sync_step = !moves ? before : sync ? a->sync_step : 0;
    if (sync && a->sync_step != 1 && a->sync_step != before + 1)
        audit_finding(a, "version %llu takes step %llu of the moments, its parent took %llu",
                      (unsigned long long)v->version, (unsigned long long)a->sync_step,
                      (unsigned long long)before);
    for (uint32_t i = 0; i < v->parts_count; i++) {
        const struct audit_delta *d = &a->deltas[v->parts[i]];
        if (d->tokens == 0) continue;
        if (d->gradient != sync)
            audit_finding(a, "version %llu takes a %s, but is%s of a synchronous round",
                          (unsigned long long)v->version, d->gradient ? "gradient" : "displacement",
                          sync ? "" : " not");
        else if (sync && d->base != v->parent)
            audit_finding(a, "version %llu takes a gradient of version %llu, and follows %llu",
                          (unsigned long long)v->version, (unsigned long long)d->base,
                          (unsigned long long)v->parent);
    }
}
