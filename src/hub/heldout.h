/* SPDX-License-Identifier: Apache-2.0 */
/* heldout.h - held-out losses that `beringia eval RUN --record` noted: RUN/heldout.jsonl, one JSON object a line.
 * Pure. Beside the journal and not in it: what is measured about a version changes nothing of the run. */
#ifndef HUB_HELDOUT_H
#define HUB_HELDOUT_H

#include "hub/hub.h"

#define HELDOUT_FILE "heldout.jsonl"
enum { HELDOUT_BYTES_MAX = 16 << 20, HELDOUT_LINES_MAX = 65536 };

struct heldout {
    uint64_t version, samples, tokens; /* tokens: predictions the mean is over */
    double loss, wall;                 /* nats per token; seconds since 1970 */
};
void heldout_encode(const struct heldout *x, struct buf *out); /* one line */
/* Lines that are no such object are passed over: the file is for people, too. Gives *out (mem_free). */
size_t heldout_parse(const char *text, size_t n, struct heldout **out);
/* {"heldout":[{version, tokens of the run, loss, perplexity, samples, wall}, ...]}: the newest line of each version
 * that the hub has, by version. */
void heldout_view(struct heldout *list, size_t count, const struct hub *h, struct buf *out);

#endif
