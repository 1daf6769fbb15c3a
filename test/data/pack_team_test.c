/* SPDX-License-Identifier: Apache-2.0 */
/* Packing on several threads: the same bytes, the same first error; and what --special-tokens and
 * --template change. */
#include "../harness.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "data/data.h"

enum { FILES = 3 };

static const char *in_dir(const char *name, int k) {
    static char paths[16][OS_PATH_MAX];
    static int next;
    return os_path(paths[next++ % 16], test_dir(), "%s%d", name, k);
}

static void put_file(const char *path, const struct buf *b) {
    struct err e = {0};
    if (os_write_file_atomic(path, b->data, b->bytes_count, &e) != BRG_OK) fail_msg("%s", e.text);
}

/* Many documents, short and long, of lines of JSON; more than one job holds. */
static const char *make_lines(int k, int documents, int bad) {
    struct buf b;
    struct prng r;
    static char paths[FILES][OS_PATH_MAX];
    prng_seed(&r, (uint64_t)k);
    buf_init(&b, 1 << 26);
    for (int d = 0; d < documents; d++) {
        if (d == bad) buf_printf(&b, "{\"text\": 7}\n");
        buf_printf(&b, "{\"text\": \"%d.%d", k, d);
        uint64_t words = prng_below(&r, 50) == 0 ? 5000 : prng_below(&r, 60);
        for (; words > 0; words--)
            buf_printf(&b, " %s%d", prng_below(&r, 9) > 0 ? "whale" : "\\u00e9",
                       (int)prng_below(&r, 99));
        buf_printf(&b, "%s\"}\n", d % 7 == 0 ? "<|im_end|><|endoftext|>" : "");
    }
    os_path(paths[k], test_dir(), "in-%d.jsonl", k);
    put_file(paths[k], &b);
    buf_fini(&b);
    return paths[k];
}

static struct pack_options options(const char *const *inputs, const char *out, unsigned threads) {
    return (struct pack_options){.inputs = inputs,
                                 .inputs_count = FILES,
                                 .out_dir = out,
                                 .tokenizer = "test/golden/tokenizer/qwen3-small.json",
                                 .seq_len = 64,
                                 .heldout_share = 0.1,
                                 .shard_samples_max = 500,
                                 .seed = 3,
                                 .threads = threads};
}

static struct hash packed(const struct pack_options *o) {
    struct err e = {0};
    struct dataset *d = NULL;
    if (data_pack(o, &e) != BRG_OK) fail_msg("%s", e.text);
    if (data_open(o->out_dir, true, &d, &e) != BRG_OK) fail_msg("%s", e.text);
    struct hash h = data_fingerprint(d);
    assert_true(data_samples(d) > 1000);
    data_close(d);
    return h;
}

/* Of a file of a set that was packed. */
static struct hash file_hash(const char *dir, const char *name) {
    struct buf b;
    struct err e = {0};
    char path[OS_PATH_MAX];
    buf_init(&b, 1 << 26);
    assert_int_equal(os_read_file(os_path(path, dir, "%s", name), 1 << 26, &b, &e), BRG_OK);
    struct hash h = hash_of(b.data, b.bytes_count);
    buf_fini(&b);
    return h;
}

TEST_TIMEOUT(data_D7_threads_change_nothing, 180) {
    const char *inputs[FILES];
    static const unsigned THREADS[] = {1, 2, 3, 16, 0};
    for (int k = 0; k < FILES; k++) inputs[k] = make_lines(k, 800, -1);
    struct hash first = {0}, manifest = {0};
    for (size_t i = 0; i < ARRAY_COUNT(THREADS); i++) {
        struct pack_options o = options(inputs, in_dir("set", (int)i), THREADS[i]);
        struct hash h = packed(&o), m = file_hash(o.out_dir, "manifest.json");
        if (i == 0) first = h, manifest = m;
        assert_true(hash_equal(&h, &first));
        assert_true(hash_equal(&m, &manifest));
    }
    struct hash copy = file_hash(in_dir("set", 0), "tokenizer.json"),
                original = file_hash("test/golden/tokenizer", "qwen3-small.json");
    assert_true(hash_equal(&copy, &original)); /* copied as it is */
    for (int i = 0; i < 2; i++) {              /* where the end is not that of the inputs */
        struct pack_options o = options(inputs, in_dir("cut", i), i == 0 ? 1 : 4);
        o.train_samples_max = 1500;
        struct hash h = packed(&o);
        if (i == 0) first = h;
        assert_true(hash_equal(&h, &first));
    }
}

TEST(data_threads_give_the_first_error_in_order) {
    const char *inputs[FILES];
    for (int k = 0; k < FILES; k++) inputs[k] = make_lines(k, 400, k == 0 ? -1 : 399 - k * 100);
    for (unsigned threads = 1; threads <= 8; threads *= 2) {
        struct pack_options o = options(inputs, in_dir("set", 0), threads);
        struct err e = {0};
        assert_int_equal(data_pack(&o, &e), BRG_E_USAGE);
        if (strstr(e.text, "in-1.jsonl: line 300") == NULL) fail_msg("%s", e.text);
        assert_false(os_exists(o.out_dir));
    }
}

TEST(data_pack_takes_special_tokens_as_it_is_told) {
    const char *inputs[FILES];
    for (int k = 0; k < FILES; k++) inputs[k] = make_lines(k, 500, -1);
    struct pack_options o = options(inputs, in_dir("text", 0), 2);
    struct hash plain = packed(&o);
    o.out_dir = in_dir("ids", 0);
    o.special_ids = true;
    struct hash ids = packed(&o);
    assert_false(hash_equal(&plain, &ids));
    o.special_ids = false;
    o.around = true; /* this tokenizer's post-processor puts nothing around */
    o.out_dir = in_dir("around", 0);
    struct hash around = packed(&o);
    assert_true(hash_equal(&plain, &around));
    o.tokenizer = "test/golden/tokenizer/llama3-small.json";
    o.out_dir = in_dir("llama", 0);
    struct hash with = packed(&o);
    o.around = false;
    o.out_dir = in_dir("llama", 1);
    struct hash without = packed(&o);
    assert_false(hash_equal(&with, &without));
}
