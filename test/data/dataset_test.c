/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and reading: what goes in comes out, and whatever is wrong is refused by name. */
#include "../harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "data/docs.h"
#include "data/manifest.h"
#include "data/pack.h"

static const char *in_dir(const char *name) {
    static char paths[8][OS_PATH_MAX];
    static int next;
    return os_path(paths[next++ % 8], test_dir(), "%s", name);
}

static void put_file(const char *path, const void *data, size_t n) {
    struct err e = {0};
    if (os_write_file_atomic(path, data, n, &e) != BRG_OK) fail_msg("%s", e.text);
}

static size_t get_file(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, cap, f);
    assert_true(n < cap);
    fclose(f);
    out[n] = 0;
    return n;
}

/* Documents "0 ... \n", "1 ... \n" of varying length. */
static size_t make_text(char *out, size_t cap, int documents, uint64_t seed) {
    struct prng r;
    size_t n = 0;
    prng_seed(&r, seed);
    for (int d = 0; d < documents; d++) {
        if (d > 0) n += (size_t)snprintf(out + n, cap - n, "<|endoftext|>\n");
        n += (size_t)snprintf(out + n, cap - n, "%d", d);
        for (uint64_t w = prng_below(&r, 30); w > 0; w--)
            n += (size_t)snprintf(out + n, cap - n, " word%d", (int)prng_below(&r, 9));
        n += (size_t)snprintf(out + n, cap - n, "\n");
        assert_true(n + 400 < cap);
    }
    return n;
}

static enum brg_status pack(const char *out, const char *input, uint32_t seq_len, double heldout,
                            uint64_t shard, bool force, struct err *e) {
    struct pack_options o = {.inputs = &input,
                             .inputs_count = 1,
                             .out_dir = out,
                             .tokenizer = "bytes",
                             .seq_len = seq_len,
                             .heldout_share = heldout,
                             .shard_samples_max = shard,
                             .seed = 7,
                             .force = force};
    return data_pack(&o, e);
}

static const char *packed(const char *name, int documents, uint32_t seq_len, double heldout,
                          uint64_t shard) {
    static char text[1 << 20], out[OS_PATH_MAX];
    struct err e = {0};
    size_t n = make_text(text, sizeof text, documents, 5);
    put_file(in_dir("in.txt"), text, n);
    os_path(out, test_dir(), "%s", name);
    if (pack(out, in_dir("in.txt"), seq_len, heldout, shard, false, &e) != BRG_OK)
        fail_msg("%s", e.text);
    return out;
}

static struct dataset *opened(const char *dir) {
    struct dataset *d = NULL;
    struct err e = {0};
    if (data_open(dir, true, &d, &e) != BRG_OK) fail_msg("%s", e.text);
    return d;
}

static int entries(const char *dir, const char *with) {
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d)) != NULL;)
        n += x->d_name[0] != '.' && strstr(x->d_name, with) != NULL;
    closedir(d);
    return n;
}

/* The stream of one half, computed the plain way. */
static size_t plain_stream(const char *text, size_t n, double share, bool heldout, int32_t *out) {
    struct docs docs;
    struct err e = {0};
    const char *doc = NULL;
    size_t bytes = 0, count = 0;
    assert_int_equal(docs_init(&docs, "in.txt", text, n, &e), BRG_OK);
    while (docs_next(&docs, &doc, &bytes, &e) == BRG_OK && doc != NULL) {
        if (pack_is_heldout(doc, bytes, share) != heldout) continue;
        for (size_t i = 0; i < bytes; i++) out[count++] = (uint8_t)doc[i];
        out[count++] = TOKENIZER_BYTES_EOT;
    }
    docs_fini(&docs);
    return count;
}

TEST(data_samples_are_the_text_in_order) {
    static char text[1 << 20];
    static int32_t stream[1 << 20];
    const uint64_t shards[] = {1, 3, 1000};
    size_t n = make_text(text, sizeof text, 200, 5);
    for (size_t k = 0; k < ARRAY_COUNT(shards); k++) {
        char name[16];
        snprintf(name, sizeof name, "set%zu", k);
        struct dataset *d = opened(packed(name, 200, 32, 0.3, shards[k]));
        struct data_counts c[2];
        data_counts(d, &c[0], &c[1]);
        assert_int_equal(c[0].documents + c[1].documents, 200);
        for (int h = 0; h < 2; h++) {
            size_t count = plain_stream(text, n, 0.3, h == 1, stream);
            uint64_t samples = h == 0 ? data_samples(d) : data_heldout_samples(d);
            assert_int_equal(samples, (count - 1) / 32);
            assert_int_equal(c[h].tokens + c[h].tokens_dropped, count);
            assert_int_equal(c[h].shards, (samples + shards[k] - 1) / shards[k]);
            uint64_t text_bytes = 0;
            for (uint64_t s = 0; s < samples; s++) {
                int32_t got[33];
                (h == 0 ? data_sample : data_heldout_sample)(d, s, got);
                assert_memory_equal(got, stream + s * 32, sizeof got);
                for (int i = 1; i <= 32; i++) text_bytes += got[i] != TOKENIZER_BYTES_EOT;
            }
            assert_int_equal(c[h].text_bytes, text_bytes);
            if (h == 1) assert_int_equal(data_heldout_text_bytes(d), text_bytes);
        }
        int32_t none[33];
        assert_check_fails(data_sample(d, data_samples(d), none));
        data_close(d);
    }
}

TEST(data_sets_of_no_and_of_one_sample_work) {
    struct err e = {0};
    put_file(in_dir("empty.txt"), "", 0);
    assert_int_equal(pack(in_dir("none"), in_dir("empty.txt"), 8, 0, 0, false, &e), BRG_OK);
    struct dataset *d = opened(in_dir("none"));
    assert_int_equal(data_samples(d), 0);
    assert_int_equal(data_heldout_samples(d), 0);
    data_close(d);
    put_file(in_dir("eight.txt"), "abcdefgh", 8); /* and the end of text: 9 ids */
    assert_int_equal(pack(in_dir("one"), in_dir("eight.txt"), 8, 0, 0, false, &e), BRG_OK);
    d = opened(in_dir("one"));
    assert_int_equal(data_samples(d), 1);
    int32_t got[9];
    data_sample(d, 0, got);
    assert_int_equal(got[0], 'a');
    assert_int_equal(got[8], TOKENIZER_BYTES_EOT);
    data_close(d);
    put_file(in_dir("seven.txt"), "abcdefg", 7);
    assert_int_equal(pack(in_dir("short"), in_dir("seven.txt"), 8, 0, 0, false, &e), BRG_OK);
    d = opened(in_dir("short"));
    struct data_counts c;
    data_counts(d, &c, NULL);
    assert_int_equal(c.samples, 0);
    assert_int_equal(c.tokens_dropped, 8);
    data_close(d);
}

TEST(data_D6_same_input_same_bytes_and_fingerprint) {
    static char a[1 << 16], b[1 << 16];
    struct dataset *x = opened(packed("a", 100, 16, 0.2, 5)),
                   *y = opened(packed("b", 100, 16, 0.2, 5));
    struct hash fx = data_fingerprint(x), fy = data_fingerprint(y);
    assert_true(hash_equal(&fx, &fy));
    size_t n = get_file(in_dir("a/manifest.json"), a, sizeof a);
    assert_int_equal(get_file(in_dir("b/manifest.json"), b, sizeof b), n);
    assert_memory_equal(a, b, n);
    data_close(y);
    y = opened(packed("c", 101, 16, 0.2, 5));
    fy = data_fingerprint(y);
    assert_false(hash_equal(&fx, &fy));
    struct order o;
    data_order(x, 3, &o);
    assert_int_equal(o.samples_count, data_samples(x));
    assert_int_equal(o.epoch, 3);
    assert_int_equal(data_order_seed(x), 7);
    data_close(x);
    data_close(y);
}

TEST(data_bpe_sets_carry_their_tokenizer) {
    static char text[1 << 20];
    struct err e = {0};
    struct tokenizer *t = NULL;
    size_t n = make_text(text, sizeof text, 300, 5);
    put_file(in_dir("in.txt"), text, n);
    char input_path[OS_PATH_MAX], path[OS_PATH_MAX];
    const char *input = os_path(input_path, test_dir(), "in.txt");
    os_path(path, test_dir(), "tok.json");
    assert_int_equal(tokenizer_train_files(&input, 1, 261, &t, &e), BRG_OK);
    assert_int_equal(tokenizer_save(t, path, &e), BRG_OK);
    struct pack_options o = {.inputs = &input,
                             .inputs_count = 1,
                             .out_dir = in_dir("set"),
                             .tokenizer = path,
                             .seq_len = 16,
                             .heldout_share = 0.1};
    assert_int_equal(data_pack(&o, &e), BRG_OK);
    struct dataset *d = opened(in_dir("set"));
    struct hash a = tokenizer_hash(t), b = data_tokenizer_hash(d);
    assert_true(hash_equal(&a, &b));
    assert_int_equal(data_vocab(d), 261);
    assert_true(data_heldout_text_bytes(d) > 16 * data_heldout_samples(d));
    assert_string_equal(tokenizer_kind(data_tokenizer(d)), "bpe");
    data_close(d);
    tokenizer_free(t);

    /* Another tokenizer of the same size in its place. */
    static const char other[] =
        "entirely other text, entirely other merges, other other other text text";
    const char *texts = other;
    size_t bytes = sizeof other - 1;
    assert_int_equal(tokenizer_train(&texts, &bytes, 1, 261, &t, &e), BRG_OK);
    assert_int_equal(tokenizer_save(t, in_dir("set/tokenizer.json"), &e), BRG_OK);
    tokenizer_free(t);
    assert_int_equal(data_open(in_dir("set"), false, &d, &e), BRG_E_TOKENIZER);
    assert_non_null(strstr(e.text, "tokenizer.json"));
    assert_non_null(strstr(e.text, "tokenizer.sha256"));
    assert_int_equal(unlink(in_dir("set/tokenizer.json")), 0);
    assert_int_equal(data_open(in_dir("set"), false, &d, &e), BRG_E_MISSING);
}

/* ---- Documents
 * ----------------------------------------------------------------------------------- */
static void check_docs(const char *name, const char *text, const char *const *want) {
    struct docs d;
    struct err e = {0};
    const char *doc = NULL;
    size_t bytes = 0;
    assert_int_equal(docs_init(&d, name, text, strlen(text), &e), BRG_OK);
    for (; *want != NULL; want++) {
        assert_int_equal(docs_next(&d, &doc, &bytes, &e), BRG_OK);
        assert_non_null(doc);
        assert_int_equal(bytes, strlen(*want));
        assert_memory_equal(doc, *want, bytes);
    }
    assert_int_equal(docs_next(&d, &doc, &bytes, &e), BRG_OK);
    assert_null(doc);
    docs_fini(&d);
}

TEST(data_documents_are_cut_where_the_text_says) {
    check_docs("a.txt", "", (const char *const[]){NULL});
    check_docs("a.txt", "one", (const char *const[]){"one", NULL});
    check_docs("a.txt", "one\ntwo\n<|endoftext|>\nthree",
               (const char *const[]){"one\ntwo\n", "three", NULL});
    check_docs("a.txt", "<|endoftext|>\n\f\r\n\fx\n\f\n<|endoftext|>",
               (const char *const[]){"\fx\n", NULL});
    check_docs("a.txt", "a <|endoftext|>\n<|endoftext|> \n",
               (const char *const[]){"a <|endoftext|>\n<|endoftext|> \n", NULL});
    check_docs("a.jsonl",
               "{\"text\":\"one\",\"n\":1}\n\n {\"text\":\"\"}\r\n{\"text\":\"t\\u0077o\"}",
               (const char *const[]){"one", "two", NULL});
}

TEST(data_wrong_inputs_are_named) {
    struct err e = {0};
    put_file(in_dir("bad.jsonl"), "{\"text\":\"a\"}\n{\"txt\":\"a\"}\n", 25);
    assert_int_equal(pack(in_dir("o"), in_dir("bad.jsonl"), 8, 0, 0, false, &e), BRG_E_USAGE);
    assert_non_null(strstr(e.text, "bad.jsonl: line 2"));
    put_file(in_dir("bad.jsonl"), "{\"text\":\"a\"", 11);
    assert_int_equal(pack(in_dir("o"), in_dir("bad.jsonl"), 8, 0, 0, false, &e), BRG_E_USAGE);
    put_file(in_dir("in.txt.gz"), "x", 1);
    assert_int_equal(pack(in_dir("o"), in_dir("in.txt.gz"), 8, 0, 0, false, &e), BRG_E_USAGE);
    assert_non_null(strstr(e.text, "unpack"));
    assert_int_equal(pack(in_dir("o"), in_dir("absent.txt"), 8, 0, 0, false, &e), BRG_E_MISSING);
    assert_non_null(strstr(e.text, "absent.txt"));
    assert_int_equal(pack(in_dir("o"), test_dir(), 8, 0, 0, false, &e), BRG_E_USAGE);
    put_file(in_dir("in.txt"), "x", 1);
    assert_int_equal(pack(in_dir("o"), in_dir("in.txt"), 0, 0, 0, false, &e), BRG_E_USAGE);
    assert_int_equal(pack(in_dir("o"), in_dir("in.txt"), 8, 1, 0, false, &e), BRG_E_USAGE);
    assert_int_equal(pack(in_dir("o"), in_dir("in.txt"), 8, -0.1, 0, false, &e), BRG_E_USAGE);
    assert_false(os_exists(in_dir("o")));
    assert_int_equal(entries(test_dir(), "partial"), 0);
}

TEST(data_heldout_depends_on_the_bytes_alone) {
    int heldout = 0;
    for (int i = 0; i < 4000; i++) {
        char doc[16];
        int n = snprintf(doc, sizeof doc, "doc %d", i);
        bool is = pack_is_heldout(doc, (size_t)n, 0.25);
        heldout += is;
        assert_false(pack_is_heldout(doc, (size_t)n, 0));
        if (is)
            assert_true(
                pack_is_heldout(doc, (size_t)n, 0.5)); /* a larger share adds, never moves */
    }
    assert_in_range(heldout, 850, 1150);
}

/* ---- The target
 * ---------------------------------------------------------------------------------- */
TEST(data_targets_in_use_are_left_alone) {
    struct err e = {0};
    const char *out = packed("set", 20, 8, 0, 0);
    char input[OS_PATH_MAX];
    os_path(input, test_dir(), "in.txt");
    assert_int_equal(pack(out, input, 8, 0, 0, false, &e), BRG_E_EXISTS);
    assert_non_null(strstr(e.text, "--force"));
    assert_int_equal(pack(out, input, 16, 0, 0, true, &e), BRG_OK);
    struct dataset *d = opened(out);
    assert_int_equal(data_seq_len(d), 16);
    data_close(d);
    put_file(in_dir("set/notes.txt"), "mine", 4);
    assert_int_equal(pack(out, input, 8, 0, 0, true, &e), BRG_E_EXISTS);
    assert_non_null(strstr(e.text, "notes.txt"));
    assert_true(os_exists(in_dir("set/notes.txt")));
    assert_int_equal(mkdir(in_dir("dir"), 0777), 0);
    assert_int_equal(pack(in_dir("dir/"), input, 8, 0, 0, false, &e), BRG_OK); /* empty: taken */
    put_file(in_dir("file"), "mine", 4);
    assert_int_equal(pack(in_dir("file"), input, 8, 0, 0, true, &e), BRG_E_EXISTS);
    assert_int_equal(pack(in_dir("new/deep/set"), input, 8, 0, 0, false, &e), BRG_OK);
    assert_int_equal(entries(test_dir(), "partial"), 0);
}

/* A file system of 128 KiB in a mount namespace of our own. */
TEST(data_a_full_disk_is_said_and_leaves_nothing) {
    struct err e = {0};
    char text[4096];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i % 26);
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        SKIP("no mount namespace: %s", strerror(errno));
    assert_int_equal(mkdir(in_dir("small"), 0777), 0);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", in_dir("small"), "tmpfs", 0, "size=128k") != 0)
        SKIP("no tmpfs: %s", strerror(errno));
    FILE *f = fopen(in_dir("in.txt"), "w");
    for (int i = 0; i < 100; i++) fwrite(text, 1, sizeof text, f);
    fclose(f);
    assert_int_equal(pack(in_dir("small/set"), in_dir("in.txt"), 64, 0, 0, false, &e), BRG_E_FULL);
    assert_non_null(strstr(e.text, "free space"));
    assert_int_equal(entries(in_dir("small"), ""), 0);
    put_file(in_dir("in.txt"), text, 500);
    assert_int_equal(pack(in_dir("small/set"), in_dir("in.txt"), 64, 0, 0, false, &e), BRG_OK);
    assert_int_equal(umount2(in_dir("small"), MNT_DETACH), 0);
}

/* ---- Spoiled sets
 * -------------------------------------------------------------------------------- */
static void want_open(const char *dir, bool verify, enum brg_status want, const char *word) {
    struct dataset *d = NULL;
    struct err e = {0};
    enum brg_status s = data_open(dir, verify, &d, &e);
    if (s != want || strstr(e.text, word) == NULL || strchr(e.text, '\n') != NULL)
        fail_msg("wanted status %d and \"%s\", got %d: %s", (int)want, word, (int)s, e.text);
    assert_null(d);
}

static void spoil_manifest(const char *dir, const char *good, const char *from, const char *to,
                           const char *word) {
    static char text[1 << 16];
    const char *at = strstr(good, from);
    assert_non_null(at);
    int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    put_file(in_dir("set/manifest.json"), text, (size_t)n);
    want_open(dir, false, BRG_E_MANIFEST, word);
    want_open(dir, false, BRG_E_MANIFEST, "manifest.json");
}

TEST(data_wrong_manifests_are_refused_by_field) {
    static char good[1 << 16];
    const char *dir = packed("set", 60, 16, 0.3, 10);
    size_t n = get_file(in_dir("set/manifest.json"), good, sizeof good);
    static const char *const CASES[][3] = {
        {"\"seq_len\": 16", "\"seq_length\": 16", "seq_length"},
        {"\"seq_len\": 16,", "", "seq_len: is missing"},
        {"\"seq_len\": 16", "\"seq_len\": \"16\"", "seq_len: is a string"},
        {"\"seq_len\": 16", "\"seq_len\": 16.0", "seq_len"},
        {"\"seq_len\": 16", "\"seq_len\": 0", "seq_len"},
        {"\"seq_len\": 16", "\"seq_len\": -1", "seq_len"},
        {"\"seq_len\": 16", "\"seq_len\": 17", "train.tokens"},
        {"\"seq_len\": 16", "\"seq_len\": 99999999999999999999", "JSON"},
        {"\"seq_len\": 16", "\"seq_len\": 16, \"seq_len\": 16", "JSON"},
        {"\"version\": 1,\n \"seq", "\"version\": 2,\n \"seq", "version"},
        {"beringia-dataset", "beringia-model", "format"},
        {"\"vocab\": 257", "\"vocab\": 256", "vocab"},
        {"\"vocab\": 257", "\"vocab\": 70000", "token_bytes"},
        {"\"token_bytes\": 2", "\"token_bytes\": 3", "token_bytes"},
        {"\"kind\": \"bytes\"", "\"kind\": \"words\"", "tokenizer.kind"},
        {"\"seed\": 7", "\"seed\": -7", "order.seed"},
        {"\"group\": 64", "\"group\": 65", "order.group"},
        {"\"block\": ", "\"block\": 1", "order.block"},
        {"\"order\": {\n  \"version\": 1", "\"order\": {\n  \"version\": 2", "order.version"},
        {"\"heldout_share\": 0.2", "\"heldout_share\": 1.2", "heldout_share"},
        {"\"heldout_share\": 0", "\"heldout_share\": null, \"x\": 0", "x"},
        {"train-00001.tok", "../00001.tok", "train.shards[1].file"},
        {"train-00000.tok", "train-00001.tok", "train.shards[0].file"},
        {"\"sha256\": \"", "\"sha256\": \"0", "sha256"},
        {"\"samples\": 10", "\"samples\": 11", "train.samples"},
        {"\"samples\": 10", "\"samples\": 0", "shards[0].samples"},
        {"\"samples\": 10", "\"samples\": null", "shards[0].samples"},
        {"\"tokens_dropped\"", "\"dropped\"", "dropped"},
        {"\"sources\": [", "\"sources\": [ 1, ", "sources[0]"},
        {"\"name\": \"in.txt\"", "\"name\": 5", "sources[0].name"},
        {"\"train\": {", "\"train\": [], \"trains\": {", "trains"},
        {"{", "", "JSON"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(CASES); i++)
        spoil_manifest(dir, good, CASES[i][0], CASES[i][1], CASES[i][2]);
    for (size_t cut = 0; cut + 2 < n; cut += 1 + cut / 30) {
        put_file(in_dir("set/manifest.json"), good, cut);
        want_open(dir, false, BRG_E_MANIFEST, "manifest.json");
    }
    put_file(in_dir("set/manifest.json"), "[]", 2);
    want_open(dir, false, BRG_E_MANIFEST, "an object is wanted");
    unlink(in_dir("set/manifest.json"));
    want_open(dir, false, BRG_E_MISSING, "beringia pack");
    want_open(in_dir("nowhere"), false, BRG_E_MISSING, "nowhere");
}

TEST(data_wrong_shards_are_refused_by_field) {
    static char good[1 << 16], bad[1 << 16];
    char path[OS_PATH_MAX];
    const char *dir = packed("set", 60, 16, 0, 10);
    os_path(path, dir, "train-00001.tok");
    size_t n = get_file(path, good, sizeof good);
    assert_int_equal(n, 64 + 2 * (10 * 16 + 1));
    static const struct {
        size_t at;
        char byte;
        const char *word;
    } HEAD[] = {{0, 'X', "magic"},   {8, 4, "token_bytes"}, {12, 1, "reserved"},
                {16, 11, "samples"}, {23, 1, "samples"},    {24, 7, "tokens"},
                {32, 1, "reserved"}, {63, 1, "reserved"}};
    for (size_t i = 0; i < ARRAY_COUNT(HEAD); i++) {
        memcpy(bad, good, n);
        bad[HEAD[i].at] = HEAD[i].byte;
        put_file(path, bad, n);
        want_open(dir, false, BRG_E_SHARD, HEAD[i].word);
        want_open(dir, false, BRG_E_SHARD, "train-00001.tok");
    }
    for (size_t cut = 0; cut < n; cut += 13) {
        put_file(path, good, cut);
        want_open(dir, false, BRG_E_SHARD, "truncated");
    }
    memcpy(bad, good, n);
    put_file(path, bad, n + 1);
    want_open(dir, false, BRG_E_SHARD, "grown");
    bad[100] ^= 1;
    put_file(path, bad, n);
    want_open(dir, true, BRG_E_SHARD, "altered");
    struct dataset *d = NULL;
    struct err e = {0};
    assert_int_equal(data_open(dir, false, &d, &e), BRG_OK); /* only verification sees it */
    data_close(d);
    unlink(path);
    want_open(dir, false, BRG_E_MISSING, "train-00001.tok");
}

/* An id beyond the vocabulary whose hash is right: made by a broken writer, not by a broken disk.
 * */
TEST(data_ids_beyond_the_vocabulary_are_refused) {
    static char text[1 << 16], shard[1 << 16];
    struct err e = {0};
    struct manifest m;
    const char *dir = packed("set", 20, 16, 0, 0);
    size_t n = get_file(in_dir("set/train-00000.tok"), shard, sizeof shard);
    shard[64 + 2 * 5] = 1;
    shard[64 + 2 * 5 + 1] = 1; /* 257 */
    put_file(in_dir("set/train-00000.tok"), shard, n);
    size_t bytes = get_file(in_dir("set/manifest.json"), text, sizeof text);
    assert_int_equal(manifest_parse("m", text, bytes, &m, &e), BRG_OK);
    m.half[HALF_TRAIN].shards[0].hash = hash_of(shard, n);
    struct buf b;
    buf_init(&b, 1 << 16);
    manifest_write(&m, &b);
    put_file(in_dir("set/manifest.json"), b.data, b.bytes_count);
    want_open(dir, true, BRG_E_SHARD, "token 5: id 257");
    manifest_fini(&m);
    buf_fini(&b);

    struct dataset *d = NULL;
    assert_int_equal(data_open(dir, false, &d, &e), BRG_OK);
    pid_t child = fork();
    if (child == 0) {
        int32_t out[17];
        data_sample(d, 0, out);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), BRG_E_SHARD);
    data_close(d);
}

/* Somebody copies the data set anew while it is in use. It was SIGBUS, of the host's process too. */
TEST(data_a_shard_that_becomes_shorter_is_an_error_and_no_signal) {
    struct err e = {0};
    const char *dir = packed("set", 60, 16, 0, 0);
    const char *path = in_dir("set/train-00000.tok");
    struct dataset *d = NULL;
    assert_int_equal(data_open(dir, true, &d, &e), BRG_OK);
    int32_t out[17];
    data_sample(d, 0, out);
    for (int left = 64; left >= 0;
         left -= 64) { /* within a page, its rest reads as zeros; none at all */
        assert_int_equal(truncate(path, left), 0);
        pid_t child = fork();
        if (child == 0) {
            data_sample(d, data_samples(d) - 1, out);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (left == 0) assert_int_equal(WEXITSTATUS(status), BRG_E_SHARD);
    }
    data_close(d);
}

TEST(data_manifest_comes_back_the_same) {
    static char text[1 << 16];
    struct manifest m;
    struct err e = {0};
    struct buf b;
    packed("set", 60, 16, 0.3, 10);
    size_t n = get_file(in_dir("set/manifest.json"), text, sizeof text);
    assert_int_equal(manifest_parse("m", text, n, &m, &e), BRG_OK);
    buf_init(&b, 1 << 16);
    manifest_write(&m, &b);
    assert_int_equal(b.bytes_count, n);
    assert_memory_equal(b.data, text, n);
    manifest_fini(&m);
    buf_fini(&b);
}

TEST(data_spoiled_bytes_never_crash_the_readers) {
    static char good[1 << 16], bad[1 << 16];
    struct err e = {0};
    struct manifest m;
    struct prng r;
    prng_seed(&r, 21);
    packed("set", 60, 16, 0.3, 10);
    size_t n = get_file(in_dir("set/manifest.json"), good, sizeof good);
    for (int i = 0; i < 6000; i++) {
        memcpy(bad, good, n);
        for (uint64_t k = 1 + prng_below(&r, 3); k > 0; k--)
            bad[prng_below(&r, n)] =
                (char)(prng_below(&r, 2) ? prng_u64(&r) : '0' + prng_below(&r, 10));
        if (manifest_parse("m", bad, n, &m, &e) == BRG_OK) manifest_fini(&m);
    }
    assert_int_equal(manifest_parse("m", good, n, &m, &e), BRG_OK);
    size_t bytes = get_file(in_dir("set/train-00000.tok"), good, sizeof good);
    for (int i = 0; i < 20000; i++) {
        memcpy(bad, good, bytes);
        bad[prng_below(&r, 64)] = (char)prng_u64(&r);
        size_t cut = prng_below(&r, 4) == 0 ? prng_below(&r, bytes) : bytes;
        const struct hash *hash = &m.half[HALF_TRAIN].shards[0].hash;
        if (shard_check("s", bad, cut, &m, 10, &e) == BRG_OK && memcmp(bad, good, bytes) != 0)
            assert_int_equal(shard_verify("s", bad, cut, &m, hash, &e), BRG_E_SHARD);
    }
    manifest_fini(&m);
}
