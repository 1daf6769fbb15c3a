/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint file: what is written in chunks reads back, and damage is told. */
#include "../harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "store/store.h"

enum { P = 1000 + 7 * 11 };
static float theta[P], m[P];

static void model_table(struct tensors *t) {
    tensors_add(t, "model.embed_tokens.weight", TENSOR_F32, 2, (const uint64_t[]){100, 10});
    tensors_add(t, "model.norm.weight", TENSOR_F32, 2, (const uint64_t[]){7, 11});
}

static struct checkpoint_head head_of(const struct tensors *t, const char *ledger) {
    struct checkpoint_head h = {.table = t,
                                .model_json = "{\"theta_sha256\":\"0000\", \"x\": 1}",
                                .version = 42,
                                .parent = 41,
                                .tokens = 123456789012,
                                .ledger = ledger,
                                .ledger_bytes = strlen(ledger)};
    for (size_t i = 0; i < ID_BYTES; i++) h.run.v[i] = (uint8_t)(i * 3);
    return h;
}

static void write_one(const char *path, const char *ledger, struct prng *r, struct hash *file,
                      uint64_t *bytes, struct hash *theta_hash) {
    struct tensors t = {0};
    struct err e = {0};
    struct checkpoint_writer *w;
    model_table(&t);
    struct checkpoint_head head = head_of(&t, ledger);
    if (checkpoint_writer_open(path, &head, &w, &e) != BRG_OK) fail_msg("%s", e.text);
    for (size_t a = 0, b = 0; a < P || b < P;) { /* two cursors in any interleaving */
        size_t n = prng_below(r, 200);
        if (prng_below(r, 2)) {
            if (n > P - a) n = P - a;
            assert_int_equal(checkpoint_write_theta(w, theta + a, n, &e), BRG_OK);
            a += n;
        } else {
            if (n > P - b) n = P - b;
            assert_int_equal(checkpoint_write_m(w, m + b, n, &e), BRG_OK);
            b += n;
        }
    }
    if (checkpoint_writer_finish(w, file, bytes, theta_hash, &e) != BRG_OK) fail_msg("%s", e.text);
    tensors_fini(&t);
}

static void check_contents(const char *path, const struct checkpoint *c, const char *ledger) {
    struct err e;
    static float x[P];
    char text[64];
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(os_pread_all(fd, x, sizeof x, c->theta_offset, path, &e), BRG_OK);
    assert_memory_equal(x, theta, sizeof x);
    assert_int_equal(os_pread_all(fd, x, sizeof x, c->m_offset, path, &e), BRG_OK);
    assert_memory_equal(x, m, sizeof x);
    assert_int_equal(c->ledger_bytes, strlen(ledger));
    assert_int_equal(os_pread_all(fd, text, c->ledger_bytes, c->ledger_offset, path, &e), BRG_OK);
    assert_memory_equal(text, ledger, c->ledger_bytes);
}

TEST(checkpoint_K1_K2_round_trip_in_any_chunks) {
    struct prng r;
    char path[OS_PATH_MAX];
    struct hash first = {0};
    prng_seed(&r, 40);
    for (size_t i = 0; i < P; i++) theta[i] = (float)prng_normal(&r), m[i] = (float)prng_normal(&r);
    os_path(path, test_dir(), "c.safetensors");
    const char *ledgers[] = {"the ledger", "", "the ledger"};
    for (int round = 0; round < 3; round++) {
        struct hash file, theta_hash;
        uint64_t bytes;
        struct checkpoint c = {0};
        struct err e = {0};
        const char *ledger = ledgers[round];
        write_one(path, ledger, &r, &file, &bytes, &theta_hash);
        struct buf all;
        buf_init(&all, 1 << 20);
        assert_int_equal(os_read_file(path, 1 << 20, &all, &e), BRG_OK);
        struct hash want = hash_of(all.data, all.bytes_count),
                    want_theta = hash_of(theta, sizeof theta);
        assert_int_equal(all.bytes_count, bytes);
        assert_true(hash_equal(&want, &file));
        assert_true(hash_equal(&want_theta, &theta_hash));
        if (checkpoint_open(path, &c, &e) != BRG_OK) fail_msg("%s", e.text);
        assert_int_equal(c.elements, P);
        assert_int_equal(c.theta_offset % 64, 0);
        assert_int_equal(c.version, 42);
        assert_int_equal(c.parent, 41);
        assert_true(c.tokens == 123456789012);
        assert_int_equal(c.run.v[5], 15);
        assert_true(hash_equal(&c.theta_hash, &theta_hash));
        assert_int_equal(c.table.count, 2);
        struct tensors t = {0};
        model_table(&t);
        struct hash h1 = tensors_hash(&t), h2 = tensors_hash(&c.table);
        assert_true(hash_equal(&h1, &h2));
        tensors_fini(&t);
        char model[64];
        assert_true(tensors_meta_get(&c.table, "model", model, sizeof model));
        assert_string_equal(model, "{\"theta_sha256\":\"0000\", \"x\": 1}");
        check_contents(path, &c, ledger);
        checkpoint_fini(&c);
        buf_fini(&all);
        if (round == 0) first = file;
        if (round == 2) assert_true(hash_equal(&first, &file)); /* same content, same bytes */
    }
}

TEST(checkpoint_K1_too_few_or_too_many_elements_are_a_fault_of_the_caller) {
    char path[OS_PATH_MAX];
    struct tensors t = {0};
    struct err e = {0};
    struct checkpoint_writer *w;
    struct hash h;
    uint64_t bytes;
    model_table(&t);
    struct checkpoint_head head = head_of(&t, "");
    os_path(path, test_dir(), "c.tmp");
    assert_int_equal(checkpoint_writer_open(path, &head, &w, &e), BRG_OK);
    assert_int_equal(checkpoint_write_theta(w, theta, P, &e), BRG_OK);
    assert_check_fails(!checkpoint_write_theta(w, theta, 1, &e));
    assert_check_fails(!checkpoint_writer_finish(w, &h, &bytes, &h, &e));
    checkpoint_writer_abort(w);
    assert_false(os_exists(path));
    tensors_fini(&t);
}

TEST(checkpoint_K2_damaged_files_are_refused) {
    struct prng r;
    char path[OS_PATH_MAX], other[OS_PATH_MAX];
    struct hash file, theta_hash;
    uint64_t bytes;
    struct err e = {0};
    struct checkpoint c = {0};
    prng_seed(&r, 41);
    os_path(path, test_dir(), "c.safetensors");
    os_path(other, test_dir(), "d.safetensors");
    write_one(path, "ledger!", &r, &file, &bytes, &theta_hash);
    struct buf all;
    buf_init(&all, 1 << 20);
    assert_int_equal(os_read_file(path, 1 << 20, &all, &e), BRG_OK);
    for (size_t cut = 1; cut < all.bytes_count; cut += 1 + cut / 4) {
        assert_int_equal(os_write_file_atomic(other, all.data, all.bytes_count - cut, &e), BRG_OK);
        assert_int_equal(checkpoint_open(other, &c, &e), BRG_E_CHECKPOINT);
        assert_non_null(strstr(e.text, "d.safetensors"));
    }
    static const struct {
        const char *from, *to;
    } swaps[] = {
        {"beringia-checkpoint-1", "beringia-checkpoint-2"},
        {"outer.m", "outer.n"},
        {"\"ledger\"", "\"budget\""},
        {"\"version\"", "\"persion\""},
        {"\"42\"", "\"4x\""},
        {"\"run\"", "\"fun\""},
        {"\"theta_sha256\":\"", "\"theta_sha256\":\"x"},
        {"\"U8\"", "\"I8\""},
    };
    for (size_t i = 0; i < ARRAY_COUNT(swaps); i++) {
        uint8_t *copy = mem_alloc(all.bytes_count, 1);
        memcpy(copy, all.data, all.bytes_count);
        uint8_t *at = memmem(copy, all.bytes_count, swaps[i].from, strlen(swaps[i].from));
        assert_non_null(at);
        memcpy(at, swaps[i].to, strlen(swaps[i].to));
        assert_int_equal(os_write_file_atomic(other, copy, all.bytes_count, &e), BRG_OK);
        if (checkpoint_open(other, &c, &e) != BRG_E_CHECKPOINT)
            fail_msg("accepted %s", swaps[i].to);
        assert_null(c.table.v);
        mem_free(copy);
    }
    buf_fini(&all);
}

TEST(checkpoint_of_a_plain_model_file_is_none) {
    char path[OS_PATH_MAX];
    struct tensors t = {0};
    struct checkpoint c = {0};
    struct buf b;
    struct err e;
    buf_init(&b, 1 << 20);
    model_table(&t);
    assert_int_equal(tensors_header(&t, &b, &e), BRG_OK);
    while (b.bytes_count < t.file_bytes) buf_u8(&b, 0);
    os_path(path, test_dir(), "model.safetensors");
    assert_int_equal(os_write_file_atomic(path, b.data, b.bytes_count, &e), BRG_OK);
    assert_int_equal(checkpoint_open(path, &c, &e), BRG_E_CHECKPOINT);
    assert_int_equal(checkpoint_open("/nonexistent/x", &c, &e), BRG_E_MISSING);
    tensors_fini(&t);
    tensors_add(&t, "outer.m", TENSOR_F32, 1, (const uint64_t[]){3});
    struct checkpoint_head head = head_of(&t, "");
    struct checkpoint_writer *w;
    assert_int_equal(checkpoint_writer_open(path, &head, &w, &e), BRG_E_MODEL);
    tensors_fini(&t);
    buf_fini(&b);
}
