/* SPDX-License-Identifier: Apache-2.0 */
/* pack.h - the decisions of packing. Inside of the data room; pure. */
#ifndef DATA_PACK_H
#define DATA_PACK_H

#include "data/data.h"

/* Which half a document goes to: by its bytes alone, so that a document which is there twice, or in
 * another file next time, never leaks from one half to the other. */
bool pack_is_heldout(const char *text, size_t bytes, double share);

/* Cuts a stream of ids into samples of seq_len + 1, of which neighbours share one id.
 *   cutter_put fills; when it says true, ids[0..seq_len] is a sample, and cutter_next makes room.
 *   */
struct cutter {
    uint32_t *ids;
    uint32_t seq_len, count;
    uint64_t tokens_seen, samples;
};
void cutter_init(struct cutter *c, uint32_t seq_len);
void cutter_fini(struct cutter *c);
/* Takes as many of the ids as fit; adds their number to *at. */
bool cutter_put(struct cutter *c, const uint8_t *ids_le, size_t count, size_t *at);
void cutter_next(struct cutter *c);

#endif
