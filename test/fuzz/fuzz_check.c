/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_check.c - libFuzzer on the files that people write: run.yaml, site.yaml, a scenario (the first byte chooses), as the commands
 * read them and as `beringia check` does.
 *   make fuzz F=check SECONDS=60
 * Whoever collects all faults finds the one that the other ends at, and none where the other finds none. */
#include <string.h>

#include "hub/settings.h"
#include "place/scenario.h"
#include "place/sitefile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct first {
    struct err e;
    size_t count;
};

static void keep_first(void *user, const struct err *e) {
    struct first *f = user;
    CHECK(e->status == BRG_E_CONFIG);
    CHECK(e->text[0] != '\0');
    if (f->count++ == 0) f->e = *e;
}

static void agree(enum brg_status strict, const struct err *e, enum brg_status all,
                  const struct first *f) {
    CHECK((strict == BRG_OK) == (all == BRG_OK));
    if (f->count > 0) CHECK(strcmp(f->e.text, e->text) == 0);
}

static enum brg_status run_take(struct config *c, const void *data, size_t n, struct err *e) {
    struct run_facts facts = {.positions = 1000, .seq_len = 8, .parameters = 100};
    struct run_settings s;
    enum brg_status st = config_parse(c, "f", data, n, e);
    if (st == BRG_OK || config_faults_count(c) > 0) {
        struct err more = {0};
        enum brg_status done = config_finish(c, st == BRG_OK ? e : &more);
        if (st == BRG_OK) st = done;
    }
    if (st == BRG_OK && config_faults_count(c) == 0) st = run_settings_take(c, &facts, &s, e);
    return config_faults_count(c) > 0 ? BRG_E_CONFIG : st;
}

static enum brg_status scenario_all(struct scenario *s, const void *data, size_t n, struct err *e) {
    enum brg_status st = config_parse(s->config, "f", data, n, e);
    if (st == BRG_OK) st = config_finish(s->config, e);
    if (st == BRG_OK && config_faults_count(s->config) == 0) st = scenario_take(s, e);
    return config_faults_count(s->config) > 0 ? BRG_E_CONFIG : st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err e = {0}, other = {0};
    struct first f = {0};
    if (size == 0) return 0;
    const uint8_t *text = data + 1;
    size_t n = size - 1;
    if (data[0] % 3 == 0) {
        struct config *strict = config_create(), *all = config_create();
        run_settings_declare(strict);
        run_settings_declare(all);
        config_collect(all, keep_first, &f);
        enum brg_status s = run_take(strict, text, n, &e);
        agree(s, &e, run_take(all, text, n, &other), &f);
        config_destroy(strict);
        config_destroy(all);
    } else if (data[0] % 3 == 1) {
        static struct place_site site;
        enum brg_status s = sitefile_parse("f", text, n, &site, &e);
        agree(s, &e, sitefile_check("f", text, n, keep_first, &f, &site, &other), &f);
    } else {
        struct scenario *strict = scenario_create(), *all = scenario_create();
        config_collect(all->config, keep_first, &f);
        enum brg_status s = scenario_all(strict, text, n, &e);
        agree(s, &e, scenario_all(all, text, n, &other), &f);
        scenario_destroy(strict);
        scenario_destroy(all);
    }
    return 0;
}
