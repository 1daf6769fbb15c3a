/* SPDX-License-Identifier: Apache-2.0 */
/* site_files.c - a site's state directory, simulated: what src/site/local_os.c writes and sweeps, and
 * what src/site/site_os.c (restore, files_check) makes of it at the next start.
 *
 * The writer works in order, so a contribution's file is there before a checkpoint that names it. */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/sim.h"

/* ---- base/<version> ------------------------------------------------------------------------------------ */

const struct sim_blob *base_file(const struct sim_proc *p, uint64_t version) {
    for (uint32_t i = 0; i < p->dir.base_count; i++)
        if (p->dir.base[i].version == version) return p->dir.base[i].blob;
    return NULL;
}

void base_remove(struct sim_proc *p, uint64_t version) {
    struct sim_dir *d = &p->dir;
    for (uint32_t i = 0; i < d->base_count; i++)
        if (d->base[i].version == version) d->base[i] = d->base[--d->base_count];
}

/* local_sweep, kept a little longer: an older checkpoint may be put back by a person. */
static void sweep(struct sim_proc *p) {
    struct sim_dir *d = &p->dir;
    uint64_t kept = p->core.loaded ? p->core.base : 0;
    for (int i = 0; i < SIM_SAVES; i++)
        if (d->save[i].valid && d->save[i].base < kept) kept = d->save[i].base;
    for (uint32_t i = d->base_count; i-- > 0;)
        if (d->base[i].version < kept) d->base[i] = d->base[--d->base_count];
}

void base_put(struct sim_proc *p, uint64_t version, const struct sim_blob *b) {
    struct sim_dir *d = &p->dir;
    base_remove(p, version);
    if (d->base_count == SIM_BASES) sweep(p);
    if (d->base_count == SIM_BASES) { /* the oldest one, never the one in use */
        uint32_t low = 0;
        for (uint32_t i = 1; i < d->base_count; i++)
            if (d->base[i].version < d->base[low].version) low = i;
        if (d->base[low].blob == p->base) low = (low + 1) % d->base_count;
        d->base[low] = d->base[--d->base_count];
    }
    d->base[d->base_count++] = (struct sim_base){version, b};
}

/* ---- The local checkpoint ------------------------------------------------------------------------------- */

static void save_copy(struct sim_save *to, const struct sim_save *from, size_t n) {
    if (to->core.bytes_max == 0) buf_init(&to->core, 256 * 1024);
    to->valid = from->valid;
    to->torn = from->torn;
    if (!from->valid) return;
    to->base = from->base;
    buf_reset(&to->core);
    buf_put(&to->core, from->core.data, from->core.bytes_count);
    memcpy(to->theta, from->theta, n * sizeof(float));
    memcpy(to->s, from->s, n * sizeof(float));
}

/* A memory copy at this moment; the writer makes a file of it (save_done) after what it does now. */
void save_begin(struct sim *m, struct sim_proc *p) {
    struct sim_save *k = &p->pending;
    size_t bytes = m->w.weights * sizeof(float);
    if (p->saving || !p->core.loaded || p->core.reset_due) return;
    if (k->core.bytes_max == 0) buf_init(&k->core, 256 * 1024);
    buf_reset(&k->core);
    site_save(&p->core, &k->core);
    memcpy(k->theta, p->theta, bytes);
    memcpy(k->s, p->s, bytes);
    k->base = p->core.base;
    k->valid = true;
    k->torn = false;
    p->saving = true;
    p->changes_saved = p->changes;
    time_ns at = p->writer_free > m->now ? p->writer_free : m->now;
    p->writer_free = at + sim_seconds(0.002 + 0.02 * sim_unit(m));
    sim_post(m, EV_SAVED, p->writer_free, p->index, p->life);
}

void save_done(struct sim *m, struct sim_proc *p) {
    struct sim_dir *d = &p->dir;
    size_t n = m->w.weights;
    p->saving = false;
    if (m->w.f.old > 0)
        for (int i = SIM_SAVES - 1; i > 0; i--) save_copy(&d->save[i], &d->save[i - 1], n);
    if (MUTANT(TORN_CHECKPOINT) && d->save[0].valid) { /* the counts are new, the weights are not */
        buf_reset(&d->save[0].core);
        buf_put(&d->save[0].core, p->pending.core.data, p->pending.core.bytes_count);
        return;
    }
    save_copy(&d->save[0], &p->pending, n);
    if (sim_chance(m, m->w.f.save_torn)) d->save[0].torn = true;
    sweep(p);
}

/* site_os.c, files_check: every file that the restored state leans on is there. */
static bool files_fine(struct sim *m, struct sim_proc *p) {
    p->base = base_file(p, p->core.base);
    if (p->base == NULL || sim_chance(m, m->w.f.forget_files)) return false;
    for (uint32_t i = 0; i < p->core.deltas_count; i++) {
        struct site_delta *d = &p->core.deltas[i];
        if (d->state == PENDING_FAILED) continue;
        const struct sim_delta *x = delta_of(m, &d->c.did);
        if (x == NULL || !x->stored) return false;
        if (d->state == PENDING_CUT) {
            MARK(m, KEPT_CUT);
            d->c.blob = x->content->hash;
            d->c.bytes = x->content->bytes;
            d->state = PENDING_UPLOAD;
        }
    }
    return true;
}

bool save_restore(struct sim *m, struct sim_proc *p) {
    struct sim_save *k = &p->dir.save[0];
    struct err e;
    if (!k->valid) return false;
    if (k->torn) { /* its checksum is wrong */
        MARK(m, SITE_TORN);
        return false;
    }
    if (site_load(&p->core, k->core.data, k->core.bytes_count, &e) != BRG_OK)
        sim_fail(m, "a local checkpoint cannot be loaded: %s", e.text);
    memcpy(p->theta, k->theta, m->w.weights * sizeof(float));
    memcpy(p->s, k->s, m->w.weights * sizeof(float));
    if (!files_fine(m, p)) {
        MARK(m, SITE_FORGOT);
        site_forget(&p->core, "local files are missing or damaged", &p->out.notes);
        return false;
    }
    return true;
}

void dir_clear(struct sim_dir *d) {
    for (int i = 0; i < SIM_SAVES; i++) d->save[i].valid = false;
    d->base_count = 0;
}

void dir_copy(struct sim_dir *to, const struct sim_dir *from) {
    for (int i = 0; i < SIM_SAVES; i++) save_copy(&to->save[i], &from->save[i], SIM_WEIGHTS);
    memcpy(to->base, from->base, sizeof to->base);
    to->base_count = from->base_count;
}
