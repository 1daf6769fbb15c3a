/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - the configuration: strict YAML of two levels, typed keys, one clear line an error.
 *
 * Each room declares its keys in a table; the command line reads the file, sets what --set says,
 * and hands the object to the rooms, which take their values out once, at start:
 *
 *   static const struct config_key keys[] = {
 *       {"lease", "ttl", CONFIG_DURATION, .def = "120s", .min = 1e9, .max = 3600e9,
 *        .help = "how long a lease lives without a heartbeat"},
 *       {"lease", "order", CONFIG_ENUM, .def = "permuted", .choices = orders},
 *       {"hub", "dir", CONFIG_STRING, .help = "where the hub keeps its state"},  (must be given)
 *   };
 *   config_declare(c, keys, ARRAY_COUNT(keys));
 *   TRY(config_read_file(c, path, e));                 (config_os.h; or config_parse)
 *   TRY(config_set(c, "lease.ttl=90s", e));
 *   TRY(config_finish(c, e));
 *   time_ns ttl = config_duration(c, "lease", "ttl");
 *
 * Every failure is E_CONFIG with "file:line:col: section.key: what is wrong; remedy". */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include "base/base.h"

enum config_type {
    CONFIG_BOOL,     /* true | false */
    CONFIG_U64,      /* 42 */
    CONFIG_F64,      /* 0.9, 1e-3 */
    CONFIG_DURATION, /* 500ms, 30s, 10m, 2h, 1d */
    CONFIG_BYTES,    /* 64, 10k, 2M, 1G */
    CONFIG_STRING,   /* text, "text" */
    CONFIG_ENUM,     /* one of choices */
    CONFIG_STRINGS   /* [a, b] or a block list; in .def and --set: a,b */
};

enum { CONFIG_KEYS_MAX = 512, CONFIG_FILE_BYTES_MAX = 1 << 20, CONFIG_LIST_MAX = 1024 };

struct config_key {
    const char *section, *name; /* [a-z0-9_]+, at most 63 bytes */
    enum config_type type;
    const char *def; /* NULL: must be given. "" is the empty string or list */
    /* Bounds of the number (durations in ns, sizes in bytes), of the bytes of a string, of the
     * entries of a list. Both 0: none. max <= min: only the lower one. Exact up to 2^53. */
    double min, max;
    const char *const *choices; /* CONFIG_ENUM: ends with NULL */
    const char *help;           /* half a sentence; config_print writes it above the key */
};

struct config;

struct config *config_create(void); /* gives (free with config_destroy) */
void config_destroy(struct config *c);
/* Keeps keys until c is destroyed. A wrong table (a key twice, a default out of bounds) is a CHECK. */
void config_declare(struct config *c, const struct config_key *keys, size_t keys_count);

/* For a look at a file as a whole: from now on `tell` is told of every fault of config_parse, config_finish and config_fail, rather
 * than the first one ending it. A key that is refused keeps its old value, and reading goes on with the next one; parse and finish
 * give E_CONFIG at their end where they told of any, and config_fail gives OK. e is borrowed for the
 * call. What depends on several keys is worth looking at only where config_faults_count is 0. */
typedef void config_fault(void *user, const struct err *e);
void config_collect(struct config *c, config_fault *tell, void *user);
size_t config_faults_count(const struct config *c);

/* Takes the values of a YAML text; file is its name for the errors. A later call and config_set win
 * over an earlier one; within one text a key stands once. What was taken before a failure stays. */
enum brg_status config_parse(struct config *c, const char *file, const void *text, size_t n,
                             struct err *e) MUST_USE;
/* "section.key=value", as --set gives it. */
enum brg_status config_set(struct config *c, const char *assignment, struct err *e) MUST_USE;
/* Every key that must be given has been. Call it before the getters. */
enum brg_status config_finish(struct config *c, struct err *e) MUST_USE;

/* The key must be declared with that type, and have a value: anything else is a CHECK. Strings
 * are borrowed until c is destroyed or set again. */
bool config_bool(const struct config *c, const char *section, const char *name);
uint64_t config_u64(const struct config *c, const char *section, const char *name);
double config_f64(const struct config *c, const char *section, const char *name);
time_ns config_duration(const struct config *c, const char *section, const char *name);
uint64_t config_bytes(const struct config *c, const char *section, const char *name);
const char *config_string(const struct config *c, const char *section, const char *name);
size_t config_enum(const struct config *c, const char *section, const char *name); /* index */
size_t config_strings_count(const struct config *c, const char *section, const char *name);
const char *config_string_at(const struct config *c, const char *section, const char *name,
                             size_t i);
/* A file or --set gave it, rather than the default. */
bool config_given(const struct config *c, const char *section, const char *name);

/* For conditions between keys: E_CONFIG with the place where this key got its value. */
enum brg_status config_fail(const struct config *c, const char *section, const char *name,
                            struct err *e, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* The effective configuration as YAML with comments; reading it back gives the same values. */
void config_print(const struct config *c, struct buf *out);
/* "duration, 10ms to 1h, default 10s": what a key takes, for a manual. */
void config_key_describe(const struct config_key *k, struct buf *out);

#endif
