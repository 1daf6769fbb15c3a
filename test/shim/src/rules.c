/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c - the control file of faultfs.so. One rule a line; '#' begins a comment:
 *
 *   fail PREFIX CALL ERROR p=0.01    CALL: write fsync rename open any; ERROR: EIO ENOSPC EDQUOT
 *   fail PREFIX CALL ERROR nth=5     the 5th such call of a process; nth=5+ from then on
 *   space PREFIX BYTES               ENOSPC once a process has written so many bytes
 *   short PREFIX p=0.3               a write takes only a part, at least one byte
 *   log FILE                         undo records go there, for powercut
 *   root PREFIX                      only for files below (default: all)
 *   seed N                           of the chances above
 *
 * PREFIX is the beginning of an absolute path. Counters belong to the process and to the line: to
 * give space back, change the number. */
#include "rules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double chance(struct rules *r) {
    r->seed ^= r->seed << 13;
    r->seed ^= r->seed >> 7;
    r->seed ^= r->seed << 17;
    return (double)(r->seed >> 11) / 9007199254740992.0;
}

static unsigned call_of(const char *word) {
    if (strcmp(word, "write") == 0) return CALL_WRITE;
    if (strcmp(word, "fsync") == 0) return CALL_FSYNC;
    if (strcmp(word, "rename") == 0) return CALL_RENAME;
    if (strcmp(word, "open") == 0) return CALL_OPEN;
    return CALL_ANY;
}

static int error_of(const char *word) {
    if (strcmp(word, "ENOSPC") == 0) return ENOSPC;
    if (strcmp(word, "EDQUOT") == 0) return EDQUOT;
    return EIO;
}

static void when_of(struct rule *rule, const char *word) {
    rule->probability = 1;
    if (strncmp(word, "p=", 2) == 0) {
        rule->probability = strtod(word + 2, NULL);
    } else if (strncmp(word, "nth=", 4) == 0) {
        char *end;
        rule->nth = strtoull(word + 4, &end, 10);
        rule->from_then_on = *end == '+';
    }
}

/* A wrong line is a wrong test: it says so and ends the program rather than test nothing. */
static void wrong(const char *line) {
    fprintf(stderr, "faultfs: cannot read the rule: %s\n", line);
    abort();
}

static void line_parse(struct rules *r, const char *line, const struct rules *before) {
    char word[5][RULE_PATH_MAX] = {{0}};
    int n = sscanf(line, "%1023s %1023s %1023s %1023s %1023s", word[0], word[1], word[2], word[3],
                   word[4]);
    if (n <= 0 || word[0][0] == '#') return;
    if (n >= 2 && strcmp(word[0], "log") == 0) {
        memcpy(r->log, word[1], sizeof(r->log));
        return;
    }
    if (n >= 2 && strcmp(word[0], "root") == 0) {
        memcpy(r->root, word[1], sizeof(r->root));
        return;
    }
    if (n >= 2 && strcmp(word[0], "seed") == 0) {
        r->seed = strtoull(word[1], NULL, 10) * 2654435761u + 88172645463325252u;
        return;
    }
    if (r->count == RULES_MAX) wrong("too many");
    struct rule *rule = &r->rule[r->count];
    memset(rule, 0, sizeof(*rule));
    snprintf(rule->text, sizeof(rule->text), "%s", line);
    memcpy(rule->prefix, word[1], sizeof(rule->prefix));
    if (n >= 4 && strcmp(word[0], "fail") == 0) {
        rule->kind = RULE_FAIL;
        rule->calls = call_of(word[2]);
        rule->error = error_of(word[3]);
        when_of(rule, word[4]);
    } else if (n >= 3 && strcmp(word[0], "space") == 0) {
        rule->kind = RULE_SPACE;
        rule->bytes = strtoull(word[2], NULL, 10);
    } else if (n >= 2 && strcmp(word[0], "short") == 0) {
        rule->kind = RULE_SHORT;
        when_of(rule, word[2]);
    } else {
        wrong(line);
    }
    for (unsigned i = 0; before != NULL && i < before->count; i++) {
        if (strcmp(before->rule[i].text, rule->text) != 0) continue;
        rule->seen = before->rule[i].seen;
        rule->written = before->rule[i].written;
    }
    r->count++;
}

void rules_parse(struct rules *r, const char *text, size_t bytes) {
    struct rules *before = malloc(sizeof(*before));
    if (before == NULL) abort();
    memcpy(before, r, sizeof(*before));
    memset(r, 0, sizeof(*r));
    r->seed = before->seed != 0 ? before->seed : 88172645463325252u;
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        char line[RULE_PATH_MAX + 128];
        snprintf(line, sizeof(line), "%.*s", (int)length, text + at);
        line_parse(r, line, before);
        at += length + 1;
    }
    free(before);
}

static int below(const char *path, const char *prefix) {
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

static int fires(struct rules *r, struct rule *rule) {
    rule->seen++;
    if (rule->nth == 0) return chance(r) < rule->probability;
    return rule->seen == rule->nth || (rule->from_then_on && rule->seen > rule->nth);
}

int rules_error(struct rules *r, unsigned call, const char *path) {
    for (unsigned i = 0; i < r->count; i++) {
        struct rule *rule = &r->rule[i];
        if (rule->kind == RULE_FAIL && (rule->calls & call) != 0 && below(path, rule->prefix) &&
            fires(r, rule)) {
            return rule->error;
        }
    }
    return 0;
}

size_t rules_room(struct rules *r, const char *path, size_t bytes, int *out_error) {
    size_t room = bytes;
    for (unsigned i = 0; i < r->count; i++) {
        struct rule *rule = &r->rule[i];
        if (rule->kind == RULE_FAIL || !below(path, rule->prefix)) continue;
        if (rule->kind == RULE_SHORT) {
            if (room > 1 && fires(r, rule)) {
                room = 1 + (size_t)(chance(r) * (double)(room - 1));
            }
            continue;
        }
        uint64_t left = rule->bytes > rule->written ? rule->bytes - rule->written : 0;
        if (room > left) room = (size_t)left;
        rule->written += room;
        if (room == 0 && bytes > 0) *out_error = ENOSPC;
    }
    return room;
}
