/* SPDX-License-Identifier: Apache-2.0 */
/* site_memory.c - see site_memory.h. */
#include "cli/site_memory.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/os.h"

#define MIB (1024.0 * 1024.0)
static_assert(BRG_KEPT_BYTES_MAX <= MEMORY_BOOKS_MAX, "the books fit into a slot");

/* From the newest on. What cannot be had is said, and the next one tried; at last the disk. */
static bool bring_back(struct site_memory *m, uint64_t *counter) {
    uint32_t count = memory_candidates(m->ranks->memory);
    for (uint32_t i = 0; i < count; i++) {
        struct memory_recalled r = {0};
        struct err e = {0};
        enum brg_status s = ranks_recall(m->ranks, i, &r, &e);
        const char *why = e.text;
        if (s == BRG_OK && brg_offer(m->site, r.books, r.books_bytes) == BRG_GO) {
            *counter = r.adamw_steps;
            m->from = r.foreign > 0 ? "partner" : "memory";
            log_line(LOG_INFO, "site", "recalled",
                     "from=%s steps=%" PRIu64 " incarnation=%" PRIu64 " foreign_shards=%" PRIu64,
                     m->from, r.moment.steps, r.moment.incarnation, r.foreign);
            return true;
        }
        if (s == BRG_OK) why = brg_why(m->site);
        log_line(LOG_WARN, "site", "memory_unusable",
                 "text=\"%s\" remedy=\"an older moment, or the local checkpoint\"", why);
    }
    return false;
}

static void say(const struct site_memory *m) {
    struct memory_figures f;
    memory_figures(m->ranks->memory, &f);
    printf("site %s: keeps %u generations in %s: %.1f MiB of rank 0", m->name,
           m->ranks->words->memory_generations, f.dir, (double)f.bytes / MIB);
    if (f.partner != UINT32_MAX)
        printf(", %.1f MiB of it for another rank's copy; its own copy is with rank %u",
               (double)f.copy_bytes / MIB, f.partner);
    else
        printf("; no copy of it, no other node has room for one");
    printf("; %u node%s\n", f.places, f.places == 1 ? "" : "s");
    fflush(stdout);
}

enum brg_status site_memory_begin(struct site_memory *m, uint64_t *counter, struct err *e) {
    time_ns began = os_now();
    if (!m->ranks->words->memory_dir) return BRG_OK;
    TRY(ranks_memory(m->ranks, e));
    bool back = bring_back(m, counter);
    m->recall_s = (double)(os_now() - began) / NS_PER_S;
    TRY(ranks_take(m->ranks, back, e));
    m->books = mem_alloc(BRG_KEPT_BYTES_MAX, 1);
    m->on = true;
    say(m);
    return BRG_OK;
}

void site_memory_next(struct site_memory *m, uint64_t stepped, bool changed, bool busy) {
    size_t n = 0;
    struct brg_moment b = {.struct_bytes = sizeof b};
    m->since += stepped;
    if (!m->on || (m->since < m->every && !changed)) return;
    if (busy) {
        m->put_off++;
        return;
    }
    if (brg_keep(m->site, m->books, BRG_KEPT_BYTES_MAX, &n, &b) != BRG_GO) return; /* not now */
    struct memory_moment moment = {b.incarnation, b.steps, b.version, b.handed_in};
    ranks_keep(m->ranks, &moment, m->books, n);
    m->since = 0;
    m->kept++;
}

void site_memory_end(struct site_memory *m) {
    if (m->on) {
        struct memory_figures f;
        memory_figures(m->ranks->memory, &f);
        log_line(LOG_INFO, "site", "memory_summary",
                 "generations=%" PRIu64 " put_off=%" PRIu64 " copy_s=%.3f bytes=%" PRIu64, m->kept,
                 m->put_off, f.copy_s, f.bytes);
    }
    mem_free(m->books);
    m->books = NULL;
}
