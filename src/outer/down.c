/* SPDX-License-Identifier: Apache-2.0 */
/* down.c - the way back: the update from one version to the next, coded, and what it leaves behind.
 *
 * The outer step gives theta*; what everybody gets is
 *   t = (theta* - theta_v) + e_v       the step, and what earlier updates could not carry
 *   theta_{v+1} = theta_v + dec(Q(t))  each site computes this sum too, in f32
 *   e_{v+1} = bf16(t - dec(Q(t)))      stays with the hub, inside its checkpoint
 * So theta_{v+1} is defined by the coded update, and the hub and every site have the same bits by the same
 * additions, whatever the codec loses; the error feedback (arXiv 1901.09847, 2508.15706) brings the loss
 * into later updates. e itself is kept in bf16, half the bytes: what that drops is below 2^-9 of what the
 * codec drops.
 *
 * Where a run goes back to whole weights, e is paid out in full by the first version: theta* + e.
 *
 * An update file: 128 bytes of header, then the payload of its codec.
 *   0 "BRGUPDT1"   8 u32 codec  12 u32 zero  16 u64 elements  24 u64 from  32 u64 to  40 u64 tokens of `to`
 *  48 run (16)    64 theta of from (32)      96 theta of to (32)
 *
 * Invariants
 *   (U1) theta_{v+1} is one addition away from theta_v, and the addend is what the file decodes to.
 * A step that is refused leaves theta and e as they were. */
#include <string.h>

#include "outer/outer.h"

static const char update_magic[8] = {'B', 'R', 'G', 'U', 'P', 'D', 'T', '1'};
#define UPDATE_ELEMENTS_MAX ((uint64_t)1 << 48)

void update_add(float *theta, const float *update, size_t n) {
    for (size_t i = 0; i < n; i++) theta[i] += update[i];
}

enum brg_status outer_down_chunk(enum codec c, const float *theta_old, float *theta, uint8_t *e,
                                 size_t n, uint8_t *out, float *scratch) {
    float *t = scratch, *decoded = scratch + n;
    CHECK(n <= OUTER_CHUNK);
    TRY(codec_decode(CODEC_BF16, e, n, t));
    for (size_t i = 0; i < n; i++) t[i] = (theta[i] - theta_old[i]) + t[i];
    TRY(codec_encode(c, t, n, out));
    TRY(codec_decode(c, out, n, decoded));
    for (size_t i = 0; i < n; i++) t[i] -= decoded[i];
    TRY(codec_encode(CODEC_BF16, t, n, e)); /* nothing is refused from here on */
    memcpy(theta, theta_old, n * sizeof *theta);
    update_add(theta, decoded, n); /* U1 */
    return BRG_OK;
}

enum brg_status outer_down_settle(float *theta, const uint8_t *e, size_t n, float *scratch) {
    TRY(codec_decode(CODEC_BF16, e, n, scratch));
    update_add(theta, scratch, n);
    return BRG_OK;
}

void update_header_encode(const struct update_header *h, uint8_t out[UPDATE_HEADER_BYTES]) {
    CHECK(h->elements > 0);
    CHECK(h->elements <= UPDATE_ELEMENTS_MAX);
    memset(out, 0, UPDATE_HEADER_BYTES);
    memcpy(out, update_magic, sizeof update_magic);
    put_le32(out + 8, (uint32_t)h->codec);
    put_le64(out + 16, h->elements);
    put_le64(out + 24, h->from);
    put_le64(out + 32, h->to);
    put_le64(out + 40, h->tokens);
    memcpy(out + 48, h->run.v, ID_BYTES);
    memcpy(out + 64, h->theta_from.v, HASH_BYTES);
    memcpy(out + 96, h->theta_to.v, HASH_BYTES);
}

enum brg_status update_header_decode(const uint8_t in[UPDATE_HEADER_BYTES],
                                     struct update_header *out, struct err *e) {
    if (memcmp(in, update_magic, sizeof update_magic) != 0)
        return err_set(e, BRG_E_MESSAGE, "update header: does not begin with BRGUPDT1");
    uint32_t codec = get_le32(in + 8);
    if (codec < CODEC_FP32 || codec > CODEC_TOPK)
        return err_set(e, BRG_E_MESSAGE,
                       "update header: codec %u is unknown; the hub may be newer than this site",
                       (unsigned)codec);
    uint64_t elements = get_le64(in + 16), from = get_le64(in + 24), to = get_le64(in + 32);
    if (get_le32(in + 12) != 0 || elements == 0 || elements > UPDATE_ELEMENTS_MAX || from >= to)
        return err_set(e, BRG_E_MESSAGE, "update header: elements, versions or reserved bytes");
    out->codec = (enum codec)codec;
    out->elements = elements;
    out->from = from;
    out->to = to;
    out->tokens = get_le64(in + 40);
    memcpy(out->run.v, in + 48, ID_BYTES);
    memcpy(out->theta_from.v, in + 64, HASH_BYTES);
    memcpy(out->theta_to.v, in + 96, HASH_BYTES);
    return BRG_OK;
}
