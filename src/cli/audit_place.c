/* SPDX-License-Identifier: Apache-2.0 */
/* audit_place.c - the records of placement, REPORT and ORDER: their bytes and what must hold among them.
 * They move no position; what is audited is that they can be read, and that orders are numbered. */
#include <string.h>

#include "cli/audit.h"

enum { ITEMS_MAX = 32, KINDS = 6, WORDS_BEFORE_WORD = 3, WORDS_BEFORE_WHY = 7 };

static void skip_text(struct reader *r, size_t cap) {
    char text[256];
    if (!get_str(r, text, cap)) r->ok = false;
}

void audit_walk_report(struct audit *a, struct reader *r) {
    uint64_t before = 0;
    skip_text(r, AUDIT_NAME_MAX);
    uint32_t count = get_u32(r);
    if (count > ITEMS_MAX) r->ok = false;
    for (uint32_t i = 0; i < count && r->ok; i++) {
        uint64_t n = get_u64(r);
        uint8_t kind = get_u8(r);
        if (kind == 0 || kind > KINDS) r->ok = false;
        if (r->ok && n <= before)
            audit_finding(a, "item %llu of a report comes again", (unsigned long long)n);
        before = n;
        (void)get_u64(r); /* at */
        skip_text(r, 48); /* shape */
        for (int k = 0; k < WORDS_BEFORE_WORD; k++) (void)get_u64(r);
        skip_text(r, 24); /* word */
        for (int k = 0; k < WORDS_BEFORE_WHY; k++) (void)get_u64(r);
        skip_text(r, 160); /* why */
    }
}

void audit_walk_order(struct audit *a, struct reader *r) {
    uint64_t id = get_u64(r);
    skip_text(r, AUDIT_NAME_MAX);
    skip_text(r, 48);
    (void)get_u32(r);
    uint8_t cancel = get_u8(r);
    if (cancel > 1) r->ok = false;
    if (!r->ok) return;
    if (cancel == 0 ? id != a->orders + 1 : id == 0 || id > a->orders)
        audit_finding(a, "order %llu is %s", (unsigned long long)id,
                      cancel == 0 ? "not the next one" : "cancelled and was never given");
    if (cancel == 0) a->orders = id;
}
