/* SPDX-License-Identifier: Apache-2.0 */
/* A file that may be a job trace; where it is one, a machine replays it for a while. */
#include "place/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct swf_trace t;
    struct err e;
    uint64_t id;
    if (swf_parse("fuzz", (const char *)data, n, &t, &e) != BRG_OK) return 0;
    if (t.span_s < 1e6 && t.count < 100) {
        struct cluster *c = cluster_create(&t, 0, 0, 0);
        cluster_submit(c, 1, 1, 60);
        for (int i = 0; i < 20; i++) (void)cluster_advance(c, 100.0 * i, &id);
        (void)cluster_estimate(c, 1, 60);
        cluster_destroy(c);
    }
    swf_fini(&t);
    return 0;
}
