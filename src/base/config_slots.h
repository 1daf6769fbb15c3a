/* SPDX-License-Identifier: Apache-2.0 */
/* config_slots.h - private to config*.c: the declared keys with their values. */
#ifndef BASE_CONFIG_SLOTS_H
#define BASE_CONFIG_SLOTS_H

#include "base/config.h"

enum { CONFIG_NAME_MAX = 63, CONFIG_INDEX = 2 * CONFIG_KEYS_MAX };

struct config_slot {
    const struct config_key *key;
    bool has_value, given;
    bool faulty;           /* it stood there, and was refused: not missing, too (config_collect) */
    unsigned parse_number; /* the config_parse that gave it last: twice within one is an error */
    char *origin;          /* "run.yaml:3:9", "--set", "default" */
    /* The value: number by type in u64 (bool, duration, bytes, enum's index) or f64, text otherwise. */
    uint64_t u64;
    double f64;
    char *text;
    char **list;
    size_t list_count;
};

struct config_faults { /* where all are wanted rather than the first */
    config_fault *tell;
    void *user;
    size_t count;
};

struct config {
    struct config_slot slots[CONFIG_KEYS_MAX];
    size_t slots_count;
    uint16_t
        index[CONFIG_INDEX]; /* open addressing by section and name: a slot's number + 1; 0: none */
    unsigned parse_number;
    char *file; /* the last one parsed, for what is missing */
    struct config_faults
        *faults; /* NULL: the first fault ends it; a pointer, for config_fail takes it as const */
};

/* Tells a fault where they are collected: true, and the work goes on. */
bool config_fault_told(const struct config *c, const struct err *e);

/* NULL where no such key is declared. */
struct config_slot *config_slot_find(struct config *c, const char *section, const char *name);
bool config_section_known(const struct config *c, const char *section);

/* Converts, checks the bounds, stores. origin names the place, for errors and for later. On failure
 * the old value stays. The list form takes CONFIG_STRINGS only, the other one everything. */
enum brg_status config_slot_take(struct config_slot *s, const char *origin, const char *value,
                                 struct err *e) MUST_USE;
enum brg_status config_slot_take_list(struct config_slot *s, const char *origin,
                                      const char *const *values, size_t count, struct err *e)
    MUST_USE;

/* Errors that name what is near: always E_CONFIG. */
enum brg_status config_unknown_section(const struct config *c, const char *origin,
                                       const char *section, struct err *e);
enum brg_status config_unknown_key(const struct config *c, const char *origin, const char *section,
                                   const char *name, struct err *e);

#endif
