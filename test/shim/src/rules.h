/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h - what the control file of faultfs.so asks for; see rules.c for its language. */
#ifndef SHIM_RULES_H
#define SHIM_RULES_H

#include <stddef.h>
#include <stdint.h>

enum { RULES_MAX = 64, RULE_PATH_MAX = 1024 };

enum rule_kind { RULE_FAIL, RULE_SPACE, RULE_SHORT };
enum rule_call { CALL_WRITE = 1, CALL_FSYNC = 2, CALL_RENAME = 4, CALL_OPEN = 8, CALL_ANY = 15 };

struct rule {
    char text[RULE_PATH_MAX + 128]; /* its line: an unchanged line keeps its counters */
    enum rule_kind kind;
    unsigned calls;
    int error;
    char prefix[RULE_PATH_MAX];
    double probability;
    uint64_t nth; /* 0: by probability */
    int from_then_on;
    uint64_t bytes; /* RULE_SPACE: how many may be written */
    uint64_t seen, written;
};

struct rules {
    struct rule rule[RULES_MAX];
    unsigned count;
    char log[RULE_PATH_MAX];  /* empty: no undo log */
    char root[RULE_PATH_MAX]; /* only paths below are logged */
    uint64_t seed;
};

void rules_parse(struct rules *r, const char *text, size_t bytes);
/* The errno that this call is to fail with, or 0. */
int rules_error(struct rules *r, unsigned call, const char *path);
/* How many of the bytes may be written: fewer by a short write or a full disk. *out_error is set
 * where it is none. */
size_t rules_room(struct rules *r, const char *path, size_t bytes, int *out_error);

#endif
