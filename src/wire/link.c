/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - see link.h. */
#include "wire/link.h"

#include <math.h>
#include <string.h>

#include "wire/json.h"

#define MOST 1e9

static const struct field fields[] = {FIELD_TEXT(wire_link, site),
                                      FIELD_TEXT_OMIT(wire_link, fabric),
                                      FIELD_OMIT(wire_link, hub, JSON_BOOL),
                                      FIELD(wire_link, rtt_ms, JSON_F64),
                                      FIELD(wire_link, up_mb_s, JSON_F64),
                                      FIELD(wire_link, down_mb_s, JSON_F64),
                                      FIELD_END};

void wire_link_encode(const struct wire_link *l, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, fields, l, &first);
    buf_u8(out, '}');
}

static bool figure(double v) {
    return isfinite(v) && v > 0 && v <= MOST;
}

static enum brg_status check(const struct wire_link *l, struct err *e) {
    if (!wire_name_valid(l->site))
        return err_set(e, BRG_E_MESSAGE, "link.site: want 1 to %d of a-z 0-9 - _",
                       WIRE_NAME_MAX - 1);
    if (l->fabric[0] != '\0' && !wire_fabric_valid(l->fabric))
        return err_set(e, BRG_E_MESSAGE,
                       "link.fabric: want up to three words of a-z 0-9 - _, with / between");
    if (l->hub && l->fabric[0] == '\0')
        return err_set(e, BRG_E_MESSAGE, "link.fabric: missing, for the hub of a region");
    const char *wrong = !figure(l->rtt_ms)      ? "rtt_ms"
                        : !figure(l->up_mb_s)   ? "up_mb_s"
                        : !figure(l->down_mb_s) ? "down_mb_s"
                                                : NULL;
    if (wrong != NULL)
        return err_set(e, BRG_E_MESSAGE, "link.%s: want a number above 0, at most 1e9", wrong);
    return BRG_OK;
}

enum brg_status wire_link_decode(const void *json, size_t n, struct wire_link *out, struct err *e) {
    struct wire_link l;
    json_t *o = NULL;
    memset(&l, 0, sizeof l);
    TRY(json_object_parse(json, n, WIRE_BODY_MAX, &o, e));
    enum brg_status s = json_fields_get(o, fields, &l, "link", e);
    json_decref(o);
    TRY(s);
    TRY(check(&l, e));
    *out = l;
    return BRG_OK;
}
