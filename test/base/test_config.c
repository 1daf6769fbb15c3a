/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/config_os.h"
#include "base/os.h"

static const char *const orders[] = {"permuted", "linear", NULL};

static const struct config_key keys[] = {
    {"hub", "dir", CONFIG_STRING, .min = 1, .max = 100, .help = "where the hub keeps its state"},
    {"hub", "port", CONFIG_U64, .def = "7070", .min = 1, .max = 65535, .help = "TCP port"},
    {"hub", "body_max", CONFIG_BYTES, .def = "1M", .min = 1024},
    {"hub", "tls", CONFIG_BOOL, .def = "true"},
    {"lease", "ttl", CONFIG_DURATION, .def = "120s", .min = 1e9, .max = 3600e9},
    {"lease", "order", CONFIG_ENUM, .def = "permuted", .choices = orders},
    {"outer", "lr", CONFIG_F64, .def = "0.7", .min = -1, .max = 2},
    {"outer", "sites", CONFIG_STRINGS, .def = "", .max = 3},
};

static struct config *fresh(void) {
    struct config *c = config_create();
    config_declare(c, keys, ARRAY_COUNT(keys));
    return c;
}

static enum brg_status parse(struct config *c, const char *text, struct err *e) {
    return config_parse(c, "run.yaml", text, strlen(text), e);
}

TEST(config_takes_every_type) {
    struct config *c = fresh();
    struct err e = {0};
    const char *text = "# a comment\n"
                       "hub:\n"
                       "  dir: \"/var/lib/x y\"\n"
                       "  port: 80\n"
                       "  body_max: 2k\n"
                       "  tls: false\n"
                       "lease: {ttl: 1.5s, order: linear}\n"
                       "outer:\n"
                       "  lr: -5e-1\n"
                       "  sites:\n"
                       "    - a\n"
                       "    - 'b c'\n";
    assert_int_equal(parse(c, text, &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_OK);
    assert_string_equal(config_string(c, "hub", "dir"), "/var/lib/x y");
    assert_int_equal(config_u64(c, "hub", "port"), 80);
    assert_int_equal(config_bytes(c, "hub", "body_max"), 2048);
    assert_false(config_bool(c, "hub", "tls"));
    assert_int_equal(config_duration(c, "lease", "ttl"), 1500000000);
    assert_int_equal(config_enum(c, "lease", "order"), 1);
    assert_true(config_f64(c, "outer", "lr") == -0.5);
    assert_int_equal(config_strings_count(c, "outer", "sites"), 2);
    assert_string_equal(config_string_at(c, "outer", "sites", 1), "b c");
    config_destroy(c);
}

TEST(config_takes_every_form) {
    struct config *c = fresh();
    struct err e = {0};
    const char *text = "---\r\n"
                       "hub: # the hub\r\n"
                       "\r\n"
                       "    dir:  a#b 'c' \"d\" -e   # comment\r\n"
                       "   # odd comment\r\n"
                       "    tls: true\r\n"
                       "lease: { ttl: 5s , # five\r\n"
                       "   order: \"linear\" }\r\n"
                       "outer:\n"
                       "  sites:\n"
                       "  - \"\\u00e9\\x41\\t\"\n"
                       "  # between\n"
                       "  - 'it''s'\n"
                       "\n"
                       "  - -x:y\n"
                       "  lr: 1";
    assert_int_equal(parse(c, text, &e), BRG_OK);
    assert_string_equal(config_string(c, "hub", "dir"), "a#b 'c' \"d\" -e");
    assert_int_equal(config_duration(c, "lease", "ttl"), 5000000000);
    assert_int_equal(config_enum(c, "lease", "order"), 1);
    assert_int_equal(config_strings_count(c, "outer", "sites"), 3);
    assert_string_equal(config_string_at(c, "outer", "sites", 0), "\xc3\xa9"
                                                                  "A\t");
    assert_string_equal(config_string_at(c, "outer", "sites", 1), "it's");
    assert_string_equal(config_string_at(c, "outer", "sites", 2), "-x:y");
    assert_true(config_f64(c, "outer", "lr") == 1);
    assert_int_equal(parse(c, "outer: {sites: [], lr: 0}\n", &e), BRG_OK);
    assert_int_equal(config_strings_count(c, "outer", "sites"), 0);
    config_destroy(c);
}

TEST(config_has_defaults_and_missing_keys) {
    struct config *c = fresh();
    struct err e = {0};
    assert_int_equal(parse(c, "", &e), BRG_OK);
    assert_int_equal(parse(c, "# nothing\n", &e), BRG_OK);
    assert_int_equal(parse(c, "hub:\n", &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_E_CONFIG);
    assert_string_equal(e.text, "run.yaml: hub.dir: must be given (where the hub keeps its state); "
                                "add it below \"hub:\"");
    assert_int_equal(config_set(c, "hub.dir=/x", &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_OK);
    assert_int_equal(config_u64(c, "hub", "port"), 7070);
    assert_true(config_given(c, "hub", "dir"));
    assert_false(config_given(c, "hub", "port"));
    assert_int_equal(config_strings_count(c, "outer", "sites"), 0);
    config_destroy(c);
}

/* Every wrong input gives one line with its place, its key and what to do. */
TEST(config_names_what_is_wrong) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"hub:\n  prot: 1\n", "run.yaml:2:3: hub.prot: unknown key; did you mean hub.port?"},
        {"hub:\n  ttl: 1s\n", "run.yaml:2:3: hub.ttl: unknown key; did you mean lease.ttl?"},
        {"lease:\n  nonsense: 1\n",
         "run.yaml:2:3: lease.nonsense: unknown key; remove it, there are: ttl, order"},
        {"hbu:\n  port: 1\n", "run.yaml:1:1: hbu: unknown section; did you mean hub?"},
        {"nonsense: 1\n", "run.yaml:1:1: nonsense: unknown section; there are: hub, lease, outer"},
        {"hub:\n  port: 1\n  port: 2\n",
         "run.yaml:3:3: hub.port: is given twice (first at run.yaml:2:9); remove one"},
        {"hub:\n  port: 1\nlease:\n  ttl: 1s\nhub:\n  tls: true\n",
         "run.yaml:5:1: hub: is given twice; put its keys together"},
        {"hub:\n  port: many\n", "run.yaml:2:9: hub.port: \"many\" is not understood; give a whole "
                                 "number such as 42"},
        {"hub:\n  port: \"80\"\n",
         "run.yaml:2:9: hub.port: a text in quotes is wrong here; remove them"},
        {"hub:\n  port: 0\n", "run.yaml:2:9: hub.port: 0 is out of range; give 1 to 65535"},
        {"hub:\n  port: -1\n", "run.yaml:2:9: hub.port: \"-1\" is not understood; give a whole "
                               "number such as 42"},
        {"hub:\n  port: 99999999999999999999\n", NULL},
        {"hub:\n  body_max: 1k\n  tls: yes\n", "run.yaml:3:8: hub.tls: \"yes\" is not understood; "
                                               "give true or false"},
        {"hub: {body_max: 5}\n", "run.yaml:1:17: hub.body_max: 5 is too small; give 1024 or more"},
        {"lease:\n  ttl: 120\n", "run.yaml:2:8: lease.ttl: \"120\" is not understood; give a "
                                 "duration with its unit, such as 500ms, 30s, 10m or 2h"},
        {"lease:\n  ttl: 2h\n", "run.yaml:2:8: lease.ttl: 2h is out of range; give 1s to 3600s"},
        {"lease:\n  order: linaer\n",
         "run.yaml:2:10: lease.order: \"linaer\" is none of: permuted, "
         "linear; did you mean linear?"},
        {"outer:\n  lr: nan\n", NULL},
        {"outer:\n  lr: 2.5\n", "run.yaml:2:7: outer.lr: 2.5 is out of range; give -1 to 2"},
        {"outer:\n  sites: a\n", "run.yaml:2:10: outer.sites: a list is wanted; write [a, b]"},
        {"outer:\n  sites: [a, b, c, d]\n", "run.yaml:2:10: outer.sites: the number of entries 4 "
                                            "is out of range; give 0 to 3"},
        {"outer:\n  sites: [a, [b]]\n",
         "run.yaml:2:14: a list of texts is wanted; lists do not nest here"},
        {"outer:\n  lr: [1]\n", NULL},
        {"hub:\n  port:\n", "run.yaml:2:8: hub.port: has no value; give one, or remove the line "
                            "for the default"},
        {"hub:\n  dir: ~\n", NULL},
        {"hub:\n  dir: \"\"\n",
         "run.yaml:2:8: hub.dir: the length 0 is out of range; give 1 to 100"},
        {"hub:\n  dir: \"a\\0b\"\n",
         "run.yaml:2:11: this escape is unknown; write \\\\ for a backslash"},
        {"hub:\n  dir: \"a\\x00b\"\n",
         "run.yaml:2:11: this escape is no character of a text; remove it"},
        {"hub:\n  port: {a: 1}\n",
         "run.yaml:2:9: hub.port: keys cannot stand below a key; there are two levels only"},
        {"hub: 5\n", "run.yaml:1:6: hub: is a section; write its keys indented below it"},
        {"- a\n", NULL},
        {"just text\n", NULL},
        {"hub: &a {port: 1}\n", NULL},
        {"hub:\n  port: !!int 5\n", NULL},
        {"hub: *a\n", NULL},
        {"hub:\n  tls: true\n---\nlease:\n  ttl: 5s\n", NULL},
        {"hub:\n  dir: \"open\n", NULL},
        {"hub:\n\tport: 1\n", NULL},
        {"? [a]\n: b\n", NULL},
        {"hub: [\n", NULL},
        {"hub:\n  port:\n    a: 1\n",
         "run.yaml:3:5: hub.port: keys cannot stand below a key; there "
         "are two levels only"},
        {"outer:\n  sites: [a, ~]\n",
         "run.yaml:2:14: a text is wanted in this list; write \"\" for an empty one"},
        {"hub:\n  tls: true\n   port: 5\n",
         "run.yaml:3:4: the keys of a section are indented alike; correct the spaces"},
        {"hub:\n  dir: two\n    lines\n", NULL},
        {"hub:\n  dir: a: b\n", "run.yaml:2:9: a colon within a text; put the text in quotes"},
        {"hub:\n  dir: \"a\"b\n", "run.yaml:2:11: this stands behind the closing quote; remove it"},
        {"hub:\n  dir: \"a\"#b\n", NULL},
        {"hub:\n  dir: |\n    a\n", NULL},
        {"hub:\n  dir: \"\\q\"\n", "run.yaml:2:10: this escape is unknown; write \\\\ for a "
                                   "backslash"},
        {" hub:\n", "run.yaml:1:2: a section begins in the first column; remove the spaces"},
        {"hub: {port: 1\n", "run.yaml:2:1: a bracket is not closed; add ] or }"},
        {"hub: {port: 1 tls: true}\n", NULL},
        {"hub: {port: }\n", NULL},
        {"outer:\n  sites: [a b\nlease:\n", NULL},
        {"outer:\n  sites:\n    - a\n      b\n", NULL},
        {"outer:\n  sites:\n    -\n", NULL},
        {"# \xff\n", "run.yaml:1:3: the byte 0xff is no UTF-8 text; save the file as UTF-8"},
        {"%YAML 9.9\n---\nhub: {}\n", NULL},
        {"hub:\n  dir: \xff\xfe\n", NULL},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct config *c = fresh();
        struct err e = {0};
        enum brg_status status = parse(c, cases[i].text, &e);
        printf("%s", e.text);
        printf("\n");
        assert_int_equal(status, BRG_E_CONFIG);
        if (cases[i].want) assert_string_equal(e.text, cases[i].want);
        assert_int_equal(strncmp(e.text, "run.yaml:", 9), 0);
        assert_null(strchr(e.text, '\n'));
        config_destroy(c);
    }
}

TEST(config_set_overrides_and_is_as_strict) {
    struct config *c = fresh();
    struct err e = {0};
    assert_int_equal(parse(c, "hub: {port: 1}\n", &e), BRG_OK);
    assert_int_equal(config_set(c, "hub.port=2", &e), BRG_OK);
    assert_int_equal(config_u64(c, "hub", "port"), 2);
    assert_int_equal(config_set(c, "hub.dir=a=b.c", &e), BRG_OK);
    assert_string_equal(config_string(c, "hub", "dir"), "a=b.c");
    assert_int_equal(config_set(c, "outer.sites= a , b", &e), BRG_OK);
    assert_int_equal(config_strings_count(c, "outer", "sites"), 2);
    assert_string_equal(config_string_at(c, "outer", "sites", 0), "a");
    const char *const bad[] = {"",           "hub",       "hub.port",   "=1",
                               ".port=1",    "hub.=1",    "hub.prot=1", "hubb.port=1",
                               "hub=1",      "hub.port=", "hub.port=x", "hub.port=70000",
                               "lease.ttl=5"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        assert_int_equal(config_set(c, bad[i], &e), BRG_E_CONFIG);
        assert_int_equal(strncmp(e.text, "--set: ", 7), 0);
    }
    assert_int_equal(config_u64(c, "hub", "port"), 2);
    config_destroy(c);
}

TEST(config_B3_only_what_type_and_bounds_allow_is_kept) {
    struct config *c = fresh();
    struct err e = {0};
    for (uint64_t port = 0; port < 70000; port += 7) {
        char text[64];
        snprintf(text, sizeof text, "hub.port=%llu", (unsigned long long)port);
        enum brg_status status = config_set(c, text, &e);
        assert_int_equal(status, port >= 1 && port <= 65535 ? BRG_OK : BRG_E_CONFIG);
        assert_in_range(config_u64(c, "hub", "port"), 1, 65535);
    }
    static const struct config_key wrong = {"hub", "x", CONFIG_U64, .def = "9", .min = 1, .max = 5};
    static const struct config_key twice = {"hub", "port", CONFIG_U64, .def = "9"};
    assert_check_fails((config_declare(c, &wrong, 1), 0));
    assert_check_fails((config_declare(c, &twice, 1), 0));
    assert_check_fails(config_u64(c, "hub", "nonsense"));
    assert_check_fails(config_u64(c, "hub", "tls"));
    assert_check_fails(config_string(c, "hub", "dir"));
    config_destroy(c);
}

TEST(config_print_reads_back_the_same) {
    struct config *c = fresh();
    struct err e = {0};
    struct buf first, second;
    buf_init(&first, 1 << 16);
    buf_init(&second, 1 << 16);
    assert_int_equal(parse(c,
                           "hub: {dir: \"a\\\"b\\\\c\\x01\\n\", body_max: 3000, tls: false}\n"
                           "lease: {ttl: 90s}\nouter: {lr: 0.1, sites: ['x, y', \"true\"]}\n",
                           &e),
                     BRG_OK);
    config_print(c, &first);
    struct config *again = fresh();
    assert_int_equal(config_parse(again, "run.yaml", first.data, first.bytes_count, &e), BRG_OK);
    assert_string_equal(config_string(again, "hub", "dir"), config_string(c, "hub", "dir"));
    assert_int_equal(config_bytes(again, "hub", "body_max"), 3000);
    assert_true(config_f64(again, "outer", "lr") == 0.1);
    assert_true(config_duration(again, "lease", "ttl") == (time_ns)90 * NS_PER_S);
    assert_string_equal(config_string_at(again, "outer", "sites", 0), "x, y");
    assert_non_null(strstr(buf_cstr(&first), "# where the hub keeps its state\n"));
    assert_non_null(strstr(buf_cstr(&first), "# one of: permuted linear\n"));
    config_print(again, &second);
    assert_false(second.overflow);
    buf_fini(&first);
    buf_fini(&second);
    config_destroy(c);
    config_destroy(again);
}

TEST(config_fail_names_the_place_of_the_value) {
    struct config *c = fresh();
    struct err e = {0};
    assert_int_equal(parse(c, "hub:\n  port: 81\n", &e), BRG_OK);
    assert_int_equal(config_fail(c, "hub", "port", &e, "is %d; give another", 81), BRG_E_CONFIG);
    assert_string_equal(e.text, "run.yaml:2:9: hub.port: is 81; give another");
    config_fail(c, "lease", "ttl", &e, "is too long");
    assert_string_equal(e.text, "default: lease.ttl: is too long");
    config_destroy(c);
}

/* ---- All faults at once ------------------------------------------------------------------------- */

struct told {
    char text[16][400];
    size_t count;
};

static void note(void *user, const struct err *e) {
    struct told *t = user;
    assert_int_equal(e->status, BRG_E_CONFIG);
    assert_true(t->count < ARRAY_COUNT(t->text));
    snprintf(t->text[t->count++], sizeof t->text[0], "%.399s", e->text);
}

static void all_faults(const char *text, size_t count, const char *const *want) {
    struct config *c = fresh();
    struct told t = {0};
    struct err e = {0};
    config_collect(c, note, &t);
    enum brg_status parsed = parse(c, text, &e), finished = config_finish(c, &e);
    assert_true((parsed != BRG_OK || finished != BRG_OK) == (count > 0));
    for (size_t i = 0; i < t.count && i < count; i++)
        if (strncmp(t.text[i], want[i], strlen(want[i])) != 0)
            fail_msg("fault %zu is \"%s\", not \"%s\"", i, t.text[i], want[i]);
    assert_int_equal(t.count, count);
    assert_int_equal(config_faults_count(c), count);
    config_destroy(c);
}

TEST(config_collects_every_fault) {
    static const char *const first[] = {
        "run.yaml:2:3: hub.prot: unknown key; did you mean hub.port?",
        "run.yaml:3:13: hub.body_max: \"much\"",
        "run.yaml:4:8: hub.tls: \"yes\"",
        "run.yaml:7:1: leese: unknown section",
        "run.yaml:12:10: outer.sites: the number of entries",
        "run.yaml: hub.dir: must be given"};
    all_faults("hub:\n"
               "  prot: 80\n"
               "  body_max: much\n"
               "  tls: yes\n"
               "  port: 81\n"
               "\n"
               "leese:\n"
               "  ttl: never\n"
               "    - odd\n"
               "outer:\n"
               "  lr: 0.5\n"
               "  sites: [a, b,\n"
               "    c, d]\n",
               ARRAY_COUNT(first), first);
    static const char *const flow[] = {
        "run.yaml:1:7: hub.prot: unknown key", "run.yaml:1:21: hub.tls: a text in quotes",
        "run.yaml:2:14: lease.ttl: \"soon\"", "run.yaml:3:2: a section begins in the first column"};
    all_faults("hub: {prot: 1, tls: \"x, {y\", dir: d}\n"
               "lease: {ttl: soon, order: linear}\n"
               " port: 1\n"
               "outer: {}\n",
               ARRAY_COUNT(flow), flow);
}

TEST(config_goes_on_after_what_it_cannot_read) {
    static const char *const open[] = {"run.yaml:2:1: a bracket is still open",
                                       "run.yaml:3:7: outer.lr: \"x\""};
    static const char *const spaces[] = {"run.yaml:3:4: the keys of a section",
                                         "run.yaml:4:8: hub.tls", "run.yaml:5:2: a tab",
                                         "run.yaml:6:13: hub.body_max: 1 is too small"};
    static const char *const twice[] = {"run.yaml:2:1: hub: is given twice",
                                        "run.yaml:3:14: lease.ttl: \"9\""};
    all_faults("hub: {dir: d\nouter:\n  lr: x\n", ARRAY_COUNT(open), open);
    all_faults("hub:\n  dir: d\n   port: 80\n  tls: no\n\tx: y\n  body_max: 1\n",
               ARRAY_COUNT(spaces), spaces);
    all_faults("hub: {dir: d}\nhub: {port: 1}\nlease: {ttl: 9}\n", ARRAY_COUNT(twice), twice);
}

TEST(config_fail_goes_on_where_faults_are_collected) {
    struct config *c = fresh();
    struct told t = {0};
    struct err e = {0};
    config_collect(c, note, &t);
    assert_int_equal(parse(c, "hub: {dir: d}\n", &e), BRG_OK);
    assert_int_equal(config_finish(c, &e), BRG_OK);
    assert_int_equal(config_fail(c, "hub", "port", &e, "one"), BRG_OK);
    assert_int_equal(config_fail(c, "hub", "dir", NULL, "two"), BRG_OK);
    assert_int_equal(t.count, 2);
    assert_string_equal(t.text[1], "run.yaml:1:12: hub.dir: two");
    config_destroy(c);
}

TEST(config_reads_a_file) {
    struct config *c = fresh();
    struct err e = {0};
    char path[OS_PATH_MAX];
    os_path(path, test_dir(), "run.yaml");
    assert_int_equal(config_read_file(c, path, &e), BRG_E_MISSING);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(os_write_file_atomic(path, "hub: {port: 9}\n", 15, &e), BRG_OK);
    assert_int_equal(config_read_file(c, path, &e), BRG_OK);
    assert_int_equal(config_u64(c, "hub", "port"), 9);
    config_destroy(c);
}

struct first {
    struct err e;
    size_t count;
};

static void keep_first(void *user, const struct err *e) {
    struct first *f = user;
    if (f->count++ == 0) f->e = *e;
}

/* Where one fault ends it, collecting finds that one first; where there is none, none. */
static void collects_the_same(const char *text, size_t n, enum brg_status status,
                              const struct err *e) {
    struct config *c = fresh();
    struct first f = {0};
    struct err other = {0};
    config_collect(c, keep_first, &f);
    assert_int_equal(config_parse(c, "run.yaml", text, n, &other), status);
    assert_int_equal(f.count > 0, status != BRG_OK);
    if (status != BRG_OK) assert_string_equal(f.e.text, e->text);
    assert_in_range(config_u64(c, "hub", "port"), 1, 65535);
    config_destroy(c);
}

/* Whatever the bytes are: a status and one line, no crash, no leak. Built by altering good text and by
 * stringing together what YAML finds interesting. */
TEST(config_survives_any_text) {
    static const char good[] = "hub:\n  dir: \"x\"\n  port: 80\nlease: {ttl: 1.5s, order: linear}\n"
                               "outer:\n  lr: 1e-1\n  sites: [a, 'b']\n";
    static const char *const bits[] = {
        "hub:", "\n",       "  ",     "port: ", "80", "{",  "}",   "[",  "]",
        "- ",   ": ",       ", ",     "\"",     "'",  "#",  "&a ", "*a", "!!x",
        "|\n",  ">-\n",     "---\n",  "...\n",  "? ", "\t", "%Y ", "\\", "\\u0000",
        "\xff", "\xc3\xa9", "lease:", "ttl",    "~",  "@",  "\r\n"};
    struct prng p;
    prng_seed(&p, 42);
    for (int round = 0; round < 4000; round++) {
        char text[512];
        size_t n = 0;
        if (round % 2 == 0) {
            memcpy(text, good, sizeof good);
            n = sizeof good - 1;
            for (uint64_t i = prng_below(&p, 4) + 1; i > 0; i--)
                text[prng_below(&p, n)] = (char)prng_below(&p, 256);
            if (prng_below(&p, 4) == 0) n = prng_below(&p, n);
        } else {
            for (uint64_t i = prng_below(&p, 40); i > 0; i--) {
                const char *bit = bits[prng_below(&p, ARRAY_COUNT(bits))];
                size_t len = strlen(bit);
                memcpy(text + n, bit, len);
                n += len;
            }
        }
        struct config *c = fresh();
        struct err e = {0};
        enum brg_status status = config_parse(c, "run.yaml", text, n, &e);
        assert_true(status == BRG_OK || status == BRG_E_CONFIG);
        if (status != BRG_OK) assert_int_equal(strncmp(e.text, "run.yaml:", 9), 0);
        assert_in_range(config_u64(c, "hub", "port"), 1, 65535);
        config_destroy(c);
        collects_the_same(text, n, status, &e);
    }
}
