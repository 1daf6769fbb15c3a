/* SPDX-License-Identifier: Apache-2.0 */
/* A hub's status as the planner reads it. What can be read can be planned with, and never beyond a budget. */
#include <math.h>

#include "place/live.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct live l;
    struct err e = {0};
    if (live_read(data, n, &l, &e) != BRG_OK) {
        CHECK(e.text[0] != '\0');
        return 0;
    }
    struct live_options o = live_options_default();
    struct plan_options p = plan_options_default();
    struct plan_state *state = mem_alloc(1, sizeof *state);
    struct plan_result *r = mem_alloc(1, sizeof *r);
    struct live_site_view *views = mem_alloc(PLAN_SITES_MAX, sizeof *views);
    p.draws = 8;
    live_state(&l, &o, 1.8e9, state, views);
    plan_decide(state, &p, 1, r);
    CHECK(!isnan(r->mean_s));
    for (uint32_t i = 0; i < r->count; i++) {
        const struct plan_site *s = &state->sites[r->v[i].site];
        const struct plan_shape *h = &s->shapes[r->v[i].shape];
        if (r->v[i].kind == PLAN_SUBMIT) CHECK(h->nodes * h->limit_s <= s->budget_left_s);
    }
    mem_free(views);
    mem_free(r);
    mem_free(state);
    live_free(&l);
    return 0;
}
