/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_object.c - libFuzzer on what an object store and a hub with one say: XML answers and refusals, credentials files,
 * addresses of stores, and where a site is sent.
 *   make fuzz F=object SECONDS=60 */
#include <string.h>

#include "object/object.h"
#include "wire/direct.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_entry(void *user, const struct object_entry *x) {
    size_t *count = user;
    CHECK(strlen(x->key) < sizeof x->key);
    CHECK(strlen(x->upload) < sizeof x->upload);
    CHECK(x->number <= OBJECT_PARTS_MAX && x->unix_s >= 0);
    ++*count;
}

static void of_answer(const uint8_t *data, size_t n) {
    struct object_answer a;
    struct err e = {0}, why = {0};
    size_t count = 0;
    enum brg_status s = object_answer_parse(data, n, on_entry, &count, &a, &e);
    CHECK(s == BRG_OK || e.text[0] != '\0');
    CHECK(count <= n);
    if (s == BRG_OK) CHECK(a.root[0] != '\0');
    (void)object_refusal(n % 2 != 0 ? 403 : 500, data, n, "store", "GET x", &why);
    CHECK(why.text[0] != '\0');
    CHECK(strchr(why.text, '\n') == NULL);
}

static void of_keys(const uint8_t *data, size_t n) {
    struct object_keys k;
    struct err e = {0};
    if (object_keys_parse("f", data, n, "default", &k, &e) == BRG_OK) {
        CHECK(k.id[0] != '\0');
        CHECK(k.secret[0] != '\0');
        CHECK(strpbrk(k.secret, " \r\n\t") == NULL);
    } else {
        CHECK(e.text[0] != '\0');
    }
}

static void of_place(const char *text) {
    struct object_place p;
    struct err e = {0};
    if (object_place_parse(text, "https://s3", "r", &p, &e) == BRG_OK) {
        CHECK(strstr(p.prefix, "..") == NULL);
        CHECK(p.bucket[0] != '\0');
    }
    (void)object_place_parse("s3://bucket", text, "r", &p, &e);
}

static void of_direct(const uint8_t *data, size_t n) {
    struct err e = {0};
    AUTO_BUF struct buf b;
    AUTO_FREE struct direct_get *g = mem_alloc(2, sizeof *g);
    AUTO_FREE struct direct_put *p = mem_alloc(2, sizeof *p);
    buf_init(&b, 1 << 20);
    if (direct_get_decode(data, n, g, &e) == BRG_OK) {
        char host[300];
        direct_host(g->url, host);
        CHECK(strchr(host, '?') == NULL);
        direct_get_encode(g, &b);
        CHECK(direct_get_decode(b.data, b.bytes_count, g + 1, &e) == BRG_OK);
        CHECK(memcmp(g, g + 1, sizeof *g) == 0);
        buf_reset(&b);
    }
    if (direct_put_decode(data, n, p, &e) == BRG_OK) {
        CHECK(p->pieces_count <= DIRECT_PUTS_MAX);
        direct_put_encode(p, &b);
        CHECK(direct_put_decode(b.data, b.bytes_count, p + 1, &e) == BRG_OK);
        CHECK(memcmp(p, p + 1, sizeof *p) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    size_t n = size - 1;
    char *text = mem_alloc(n + 1, 1);
    memcpy(text, data + 1, n);
    switch (data[0] % 4) {
    case 0: of_answer(data + 1, n); break;
    case 1: of_keys(data + 1, n); break;
    case 2: of_place(text); break;
    default: of_direct(data + 1, n); break;
    }
    mem_free(text);
    return 0;
}
