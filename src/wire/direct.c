/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c - see direct.h. */
#include "wire/direct.h"

#include <string.h>

#include "wire/json.h"
#include "wire/wire.h"

static const struct field get_fields[] = {FIELD_TEXT(direct_get, url),
                                          FIELD(direct_get, bytes, JSON_U64), FIELD_END};
static const struct field piece_fields[] = {FIELD(direct_piece, at, JSON_U64),
                                            FIELD(direct_piece, bytes, JSON_U64),
                                            FIELD_TEXT(direct_piece, url), FIELD_END};
static const struct field put_fields[] = {FIELD_OPT(direct_put, store, JSON_BOOL),
                                          FIELD_OPT(direct_put, last, JSON_BOOL),
                                          FIELD_OPT(direct_put, offset, JSON_U64),
                                          FIELD_LIST(direct_put, pieces, piece_fields), FIELD_END};

static void encode(const struct field *fields, const void *base, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_fields_put(out, fields, base, &first);
    buf_put(out, "}\n", 2);
}

static enum brg_status decode(const struct field *fields, const void *data, size_t n, void *base,
                              struct err *e) {
    json_t *o;
    TRY(json_object_parse(data, n, WIRE_BODY_MAX, &o, e));
    enum brg_status s = json_fields_get(o, fields, base, "the hub's answer", e);
    json_decref(o);
    return s;
}

static bool url_fine(const char *url) {
    if (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0) return false;
    for (const char *c = url; *c != '\0'; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f) return false;
    return strchr(strstr(url, "://") + 3, '@') == NULL;
}

void direct_get_encode(const struct direct_get *g, struct buf *out) {
    encode(get_fields, g, out);
}

enum brg_status direct_get_decode(const void *data, size_t n, struct direct_get *out,
                                  struct err *e) {
    struct direct_get g = {.url = ""};
    TRY(decode(get_fields, data, n, &g, e));
    if (!url_fine(g.url)) return err_set(e, BRG_E_MESSAGE, "url: no address of an object store");
    *out = g;
    return BRG_OK;
}

void direct_put_encode(const struct direct_put *p, struct buf *out) {
    encode(put_fields, p, out);
}

static enum brg_status pieces_check(const struct direct_put *p, struct err *e) {
    for (uint32_t i = 0; i < p->pieces_count; i++)
        if (!url_fine(p->pieces[i].url))
            return err_set(e, BRG_E_MESSAGE, "pieces[%u].url: no address of an object store", i);
    return BRG_OK;
}

enum brg_status direct_put_decode(const void *data, size_t n, struct direct_put *out,
                                  struct err *e) {
    AUTO_FREE struct direct_put *p = mem_alloc(1, sizeof *p);
    TRY(decode(put_fields, data, n, p, e));
    TRY(pieces_check(p, e));
    *out = *p;
    return BRG_OK;
}

void direct_host(const char *url, char out[300]) {
    const char *host = strstr(url, "://");
    size_t n = host == NULL ? 0 : (size_t)(host + 3 - url) + strcspn(host + 3, "/?");
    if (n >= 300) n = 299;
    memcpy(out, url, n);
    out[n] = '\0';
}
