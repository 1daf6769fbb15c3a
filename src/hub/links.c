/* SPDX-License-Identifier: Apache-2.0 */
/* links.c - see links.h. */
#include "hub/links.h"

#include <string.h>

#include "wire/json.h"

bool links_note(struct hub_links *t, const struct wire_link *l, double at) {
    uint32_t i = 0;
    while (i < t->count && (strcmp(t->v[i].l.site, l->site) != 0 || t->v[i].l.hub != l->hub)) i++;
    if (i == t->count) {
        if (t->count == HUB_LINKS_MAX) return false;
        t->v = mem_grow(t->v, t->count, t->count + 1, sizeof *t->v);
        t->count++;
    }
    t->v[i] = (struct hub_link){*l, at};
    return true;
}

void links_free(struct hub_links *t) {
    mem_free(t->v);
    memset(t, 0, sizeof *t);
}

void links_view(const struct hub_links *t, struct buf *out, bool *first) {
    json_key(out, first, "links");
    buf_u8(out, '[');
    for (uint32_t i = 0; t != NULL && i < t->count; i++) {
        const struct hub_link *k = &t->v[i];
        bool inner = true;
        buf_printf(out, i > 0 ? ",{" : "{");
        json_member_text(out, &inner, "from", k->l.site);
        json_member_text(out, &inner, "to", "hub");
        json_member_text(out, &inner, "fabric", k->l.fabric);
        json_member_bool(out, &inner, "hub", k->l.hub);
        json_member_f64(out, &inner, "rtt_ms", k->l.rtt_ms);
        json_member_f64(out, &inner, "up_mb_s", k->l.up_mb_s);
        json_member_f64(out, &inner, "down_mb_s", k->l.down_mb_s);
        json_member_f64(out, &inner, "at", k->at);
        buf_u8(out, '}');
    }
    buf_u8(out, ']');
}
