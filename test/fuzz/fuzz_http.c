/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_http.c - libFuzzer on what hub and client read of HTTP beside the libraries: %XX, paths, Range; the offset of an
 * upload and the words of a proxy; and the two files of a run that are lines and an object of JSON.
 *   make fuzz F=http SECONDS=60 */
#include <stdlib.h>
#include <string.h>

#include "hub/heldout.h"
#include "hub/http_text.h"
#include "hub/settings.h"
#include "wire/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEGMENTS = 5 };

static void of_path(char *text) {
    const char *segments[SEGMENTS];
    uint32_t count = 0;
    size_t before = strlen(text), n = http_unescape(text);
    CHECK(n <= before);
    CHECK(strlen(text) == n);
    bool good = http_cut(text, segments, SEGMENTS, &count);
    CHECK(count <= SEGMENTS);
    for (uint32_t i = 0; good && i < count; i++) {
        CHECK(segments[i] > text && segments[i] < text + n);
        CHECK(segments[i][0] != '\0');
        CHECK(strchr(segments[i], '/') == NULL);
    }
}

static void of_range(const char *text, uint64_t bytes) {
    uint64_t from = 0, count = 0;
    if (http_range(text, bytes, &from, &count) != HTTP_RANGE_PART) return;
    CHECK(count > 0);
    CHECK(from < bytes && count <= bytes - from);
}

static void of_facts(const char *text, size_t n) {
    struct run_facts f, again;
    struct err e = {0};
    struct buf b;
    if (run_facts_decode(text, n, &f, &e) != BRG_OK) {
        CHECK(e.text[0] != '\0');
        return;
    }
    buf_init(&b, 1 << 16);
    run_facts_encode(&f, &b);
    CHECK(run_facts_decode(b.data, b.bytes_count, &again, &e) == BRG_OK);
    CHECK(memcmp(&f, &again, sizeof f) == 0);
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char head[REPLY_HEAD_SHOWN + 1];
    uint64_t v = 0;
    if (size < 2) return 0;
    size_t n = size - 2;
    char *text = mem_alloc(n + 1, 1);
    memcpy(text, data + 2, n);
    switch (data[0] % 5) {
    case 0: of_path(text); break;
    case 1: of_range(text, data[1] < 200 ? data[1] : UINT64_MAX >> (data[1] - 200)); break;
    case 2:
        (void)reply_offset_read(text, &v);
        reply_head(text, n, head);
        CHECK(strlen(head) <= REPLY_HEAD_SHOWN);
        break;
    case 3: {
        struct heldout *list = NULL;
        size_t count = heldout_parse(text, n, &list);
        CHECK(count <= HELDOUT_LINES_MAX);
        mem_free(list);
        break;
    }
    default: of_facts(text, n); break;
    }
    mem_free(text);
    return 0;
}
