/* SPDX-License-Identifier: Apache-2.0 */
/* Links and sites from outside: the first byte chooses between a topology's file, a hub's status (the top's, then a region's), and what a
 * party tells of its link. What can be read can be planned with: every figure is finite, and nothing is called carried that
 * takes longer than its interval. */
#include <math.h>
#include <string.h>

#include "place/topology.h"
#include "wire/link.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void plan(const struct topology *t) {
    struct topo_proposal p;
    struct err e = {0};
    if (t->sites_count > 32 || topo_check(t, &e) != BRG_OK) return;
    topo_propose(t, &p);
    for (uint32_t i = 0; i < TOPO_LEVELS_MAX; i++) {
        const struct topo_plan *c = &p.plans[i];
        CHECK(c->possible || c->missing[0] != '\0');
        for (uint32_t k = 0; k < c->groups_count && c->possible; k++) {
            const struct topo_group *g = &c->groups[k];
            CHECK(!isnan(g->delay));
            CHECK(!g->carried || g->delay <= g->interval);
        }
    }
    topo_proposal_free(&p);
}

static void link_read(const uint8_t *data, size_t n) {
    struct wire_link l, again;
    struct err e = {0};
    AUTO_BUF struct buf b = {.bytes_max = 4096};
    if (wire_link_decode(data, n, &l, &e) != BRG_OK) {
        CHECK(e.text[0] != '\0');
        return;
    }
    wire_link_encode(&l, &b);
    CHECK(wire_link_decode(b.data, b.bytes_count, &again, &e) == BRG_OK);
    AUTO_BUF struct buf c = {.bytes_max = 4096};
    wire_link_encode(&again, &c);
    CHECK(b.bytes_count == c.bytes_count);
    CHECK(memcmp(b.data, c.data, b.bytes_count) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct topology t;
    struct err e = {0};
    if (n == 0) return 0;
    uint8_t what = data[0] % 3;
    data++;
    n--;
    if (what == 2) {
        link_read(data, n);
        return 0;
    }
    enum brg_status s = what == 0 ? topofile_parse("links.yaml", (const char *)data, n, &t, &e)
                                  : topo_live_read(data, n, &t, &e);
    if (s == BRG_OK)
        plan(&t);
    else
        CHECK(e.text[0] != '\0');
    if (s == BRG_OK && what == 1 && topo_live_region(&t, "europe", data, n, &e) == BRG_OK) plan(&t);
    topology_free(&t);
    return 0;
}
