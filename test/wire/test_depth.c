/* SPDX-License-Identifier: Apache-2.0 */
/* Lists in lists in lists: the parser calls itself for each, on a small stack. */
#include <string.h>

#include "../harness.h"
#include "wire/json.h"

enum { DEPTH_TEXT_MAX = 1 << 20 };

static enum brg_status nested(size_t depth, char open, char close, struct err *e) {
    AUTO_BUF struct buf b = {.bytes_max = DEPTH_TEXT_MAX};
    json_t *o = NULL;
    buf_printf(&b, "{\"a\\\"[[[\":");
    for (size_t i = 0; i < depth; i++) buf_printf(&b, open == '{' ? "{\"k\":" : "[");
    buf_printf(&b, "1");
    for (size_t i = 0; i < depth; i++) buf_u8(&b, (uint8_t)close);
    buf_printf(&b, ",\"b\":\"[[[[\"}");
    enum brg_status s = json_object_parse(b.data, b.bytes_count, DEPTH_TEXT_MAX, &o, e);
    json_decref(o);
    return s;
}

TEST(wire_depth_is_bounded) {
    struct err e = {0};
    assert_int_equal(nested(JSON_DEPTH_MAX - 1, '[', ']', &e), BRG_OK);
    assert_int_equal(nested(JSON_DEPTH_MAX - 1, '{', '}', &e), BRG_OK);
    assert_int_equal(nested(JSON_DEPTH_MAX, '[', ']', &e), BRG_E_MESSAGE);
    assert_non_null(strstr(e.text, "levels"));
    assert_int_equal(nested(JSON_DEPTH_MAX, '{', '}', &e), BRG_E_MESSAGE);
    assert_int_equal(nested(100000, '[', ']', &e), BRG_E_MESSAGE);
}
