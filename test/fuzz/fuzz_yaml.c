/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_yaml.c - libFuzzer on settings: run.yaml, an assignment of --set, and a scenario of `beringia project`; the first
 * byte chooses. What is accepted can be taken, and printed settings are read again. What is not is one line.
 *   make fuzz F=yaml SECONDS=60 */
#include <string.h>

#include "hub/settings.h"
#include "place/scenario.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void refused(const struct err *e) {
    CHECK(e->text[0] != '\0');
    CHECK(strchr(e->text, '\n') == NULL);
}

static void of_run(const uint8_t *data, size_t size, bool set) {
    static const struct run_facts facts = {
        .parameters = 100, .positions = 50, .seq_len = 16, .vocab_size = 257};
    static struct run_settings s;
    struct config *c = config_create();
    struct err e = {0};
    char text[256];
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    run_settings_declare(c);
    enum brg_status st;
    if (set) {
        memcpy(text, data, n);
        text[n] = '\0';
        st = config_set(c, text, &e);
    } else {
        st = config_parse(c, "fuzz", data, size, &e);
    }
    if (st == BRG_OK) st = config_finish(c, &e);
    if (st == BRG_OK) st = run_settings_take(c, &facts, &s, &e);
    if (st != BRG_OK) refused(&e);
    if (st == BRG_OK) {
        struct buf b;
        struct config *again = config_create();
        buf_init(&b, 1 << 20);
        config_print(c, &b);
        run_settings_declare(again);
        CHECK(config_parse(again, "again", b.data, b.bytes_count, &e) == BRG_OK);
        config_destroy(again);
        buf_fini(&b);
    }
    config_destroy(c);
}

static void of_scenario(const uint8_t *data, size_t size) {
    struct scenario *s = scenario_create();
    struct err e = {0};
    enum brg_status st = config_parse(s->config, "fuzz", data, size, &e);
    if (st == BRG_OK) st = config_finish(s->config, &e);
    if (st == BRG_OK) st = scenario_take(s, &e);
    if (st != BRG_OK) refused(&e);
    scenario_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    switch (data[0] % 4) {
    case 0: of_run(data + 1, size - 1, true); break;
    case 1: of_scenario(data + 1, size - 1); break;
    default: of_run(data + 1, size - 1, false); break;
    }
    return 0;
}
