/* SPDX-License-Identifier: Apache-2.0 */
/* sync.c - synchronous rounds: every live site hands in the gradient of one batch at the head, and the hub takes one
 * AdamW step on their mean (outer/adamw.c). For sites with fast links, as the exact reference, and as a warm start
 * before rounds of many steps.
 *
 *   head's tokens < sync_tokens   synchronous: gradients of the head, no grace
 *   else                          as ever: displacements, and none of them a gradient
 *
 * Which it is follows from the committed tokens of a version, so every process of the hub, each site and each replay
 * agree on it for each base; what a round was stands in its SYNC record. The setting may change between two starts of
 * the hub, and a rollback may lead back into the synchronous phase: then what is staged fits no round any more.
 *
 * A gradient is of its base alone. Of any version but the head it is in no mean with the others', so it is refused when
 * it comes late and dropped when the head moves on under it; its samples are trained again, as with every refusal.
 *
 * Momentum and moments lie in one place of the checkpoint, so each kind of round begins its own at zero: a SYNC with
 * step 1, and the first round of the other kind with mu_r = 0 (outer_past.restart).
 *
 * Invariants
 *   (H23) a SYNC acts on the MERGE of its own version that follows at once or behind a STEP, and on nothing else; its
 *         step is 1 or that of the parent plus 1.
 *   (H24) a plan has gradients alone, all of the head, or none. */
#include <string.h>

#include "base/mutant.h"
#include "hub/machine.h"

static bool synchronous_at(const struct hub *h, const struct hub_version *v) {
    return (double)v->v.tokens < h->s.sync_tokens;
}

bool hub_synchronous(const struct hub *h) {
    return h->opened && synchronous_at(h, &h->versions[h->head]);
}

const char *hub_sync_misfit(const struct hub *h, uint64_t base, uint32_t codec) {
    const struct hub_version *v = hub_version_of(h, base);
    bool gradient = codec == CODEC_GRADIENT;
    if (v == NULL) return NULL; /* refused for that */
    if (gradient && !synchronous_at(h, v))
        return "a gradient, but rounds on its version are of displacements: the synchronous phase "
               "is over, or was shortened (outer.synchronous)";
    if (!gradient && synchronous_at(h, v))
        return "a displacement, but rounds on its version are synchronous and take gradients "
               "(outer.synchronous)";
    if (gradient && v != &h->versions[h->head])
        return "a gradient of an older version than the head; its samples are trained again";
    return NULL;
}

/* What is handed in was held against the head of then; only another head, or other settings, can make it fit no more. */
void hub_sync_discard(struct hub *h) {
    uint64_t head = h->versions[h->head].v.version + 1;
    if (h->sync_seen == head || MUTANT(GRADIENT_LATE)) return;
    h->sync_seen = head;
    for (const struct delta *d = ledger_staged_first(h->ledger); d;) {
        const struct delta *next = d->list_next;
        const struct delta_info *info = &d->live->info;
        const char *why = info->tokens > 0 ? hub_sync_misfit(h, info->base, info->codec) : NULL;
        if (why) {
            char hex[ID_HEX_BYTES];
            struct hub_record *r = hub_draft(h, RECORD_DISCARD);
            r->u.discard.did = d->did;
            hub_text_copy(r->u.discard.reason, sizeof r->u.discard.reason, why);
            id_hex(&d->did, hex);
            hub_note(h, "lvl=info ev=gradient_dropped site=%s did=%s text=\"%s\"",
                     h->sites[d->site].name, hex, why);
            hub_emit(h, r);
        }
        d = next;
    }
}

void hub_sync_emit(struct hub *h) {
    const struct hub_plan *p = &h->merge->plan;
    const struct outer_adamw *a = &p->adamw;
    if (a->step == 0) return;
    struct hub_record *r = hub_draft(h, RECORD_SYNC);
    r->u.sync = (struct record_sync){.version = p->version,
                                     .step = a->step,
                                     .counts = a->counts,
                                     .lr = a->lr,
                                     .beta1 = a->beta1,
                                     .beta2 = a->beta2,
                                     .eps = a->eps,
                                     .weight_decay = a->weight_decay,
                                     .clip = a->clip,
                                     .bias1 = a->bias1,
                                     .bias2 = a->bias2};
    hub_emit(h, r);
    if ((double)p->tokens_after >= h->s.sync_tokens)
        hub_note(h, "lvl=info ev=synchronous_over version=%llu tokens=%llu steps=%llu",
                 (unsigned long long)p->version, (unsigned long long)p->tokens_after,
                 (unsigned long long)a->step);
}

const char *hub_apply_sync(struct hub *h, const struct record_sync *r) {
    if (r->version != h->versions_next)
        return "a synchronous round of a version that is not the next one";
    if (r->step != 1 && r->step != h->versions[h->head].past.adamw + 1)
        return "a step of moments that does not follow the head's";
    h->sync = *r;
    return NULL;
}
