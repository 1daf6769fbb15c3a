/* SPDX-License-Identifier: Apache-2.0 */
/* heldout.c - see the header. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hub/heldout.h"
#include "wire/json.h"

void heldout_encode(const struct heldout *x, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_u64(out, &first, "version", x->version);
    json_member_f64(out, &first, "loss", x->loss);
    json_member_u64(out, &first, "samples", x->samples);
    json_member_u64(out, &first, "tokens", x->tokens);
    json_member_f64(out, &first, "wall", x->wall);
    buf_put(out, "}\n", 2);
}

static bool whole(const json_t *o, const char *key, uint64_t *out) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static bool parse_line(const char *text, size_t n, struct heldout *out) {
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const json_t *loss = json_object_get(o, "loss");
    bool good = whole(o, "version", &out->version) && whole(o, "samples", &out->samples) &&
                whole(o, "tokens", &out->tokens) && json_is_number(loss);
    out->loss = json_number_value(loss);
    out->wall = json_number_value(json_object_get(o, "wall"));
    json_decref(o);
    return good && isfinite(out->loss) && out->loss >= 0;
}

size_t heldout_parse(const char *text, size_t n, struct heldout **out) {
    size_t count = 0, cap = 64;
    struct heldout *list = mem_alloc(cap, sizeof *list);
    const char *p = text, *end = text + n;
    while (p < end && count < HELDOUT_LINES_MAX) {
        const char *line = p, *stop = memchr(p, '\n', (size_t)(end - p));
        p = stop != NULL ? stop + 1 : end;
        if (count == cap) {
            list = mem_grow(list, cap, 2 * cap, sizeof *list);
            cap *= 2;
        }
        memset(&list[count], 0, sizeof *list);
        count += parse_line(line, (size_t)((stop != NULL ? stop : end) - line), &list[count]);
    }
    *out = list;
    return count;
}

/* By version, the line that came later first (a later line has a later or equal `wall`). */
static int order(const void *a, const void *b) {
    const struct heldout *x = a, *y = b;
    if (x->version != y->version) return x->version < y->version ? -1 : 1;
    return x->wall < y->wall ? 1 : x->wall > y->wall ? -1 : 0;
}

void heldout_view(struct heldout *list, size_t count, const struct hub *h, struct buf *out) {
    bool any = false;
    if (count > 1) qsort(list, count, sizeof *list, order);
    buf_printf(out, "{\"heldout\":[");
    for (size_t i = 0; i < count; i++) {
        struct hub_version_view v;
        bool first = true;
        if (i > 0 && list[i].version == list[i - 1].version) continue;
        if (!hub_version_find(h, list[i].version, &v)) continue;
        buf_printf(out, any ? ",{" : "{");
        any = true;
        json_member_u64(out, &first, "version", v.version);
        json_member_u64(out, &first, "tokens", v.tokens);
        json_member_f64(out, &first, "loss", list[i].loss);
        json_member_f64(out, &first, "perplexity", exp(list[i].loss));
        json_member_u64(out, &first, "samples", list[i].samples);
        json_member_f64(out, &first, "wall", list[i].wall);
        buf_u8(out, '}');
    }
    buf_printf(out, "]}\n");
}
